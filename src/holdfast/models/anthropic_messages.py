"""A summarizer that calls Anthropic's Messages API: an ordinary request, or the provider's own compaction on demand.

It can continue the conversation's last request. Its system text, tools, messages and cache marks are sent as they
were, so that the provider reads them from its cache; the prompt comes after them. `tool_choice` is not sent: a change
of it invalidates the cache of the messages.
"""

import os
from collections.abc import Mapping

from holdfast.core.history.events import Usage
from holdfast.errors import ModelRefusedError
from holdfast.models.base import ModelReply, SummaryPrompt
from holdfast.models.http_endpoint import HTTP_OK, MAX_SILENCE_SECONDS, HttpEndpoint, StreamedReply, token_count
from holdfast.redaction import redact_text
from holdfast.wire.json_reader import as_object, is_list, is_mapping, objects_in
from holdfast.wire.usage import anthropic_usage, usage_if_readable

ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_VERSION = "2023-06-01"
COMPACTION_BETA = "compact-2026-09-04"
MESSAGES_FORMAT = "anthropic-messages"
CUT_OFF_STOP_REASONS = frozenset({"max_tokens", "model_context_window_exceeded"})


class MessagesSummarizer:
    """Calls one model of the Messages API."""

    prefix_formats = frozenset({MESSAGES_FORMAT})

    def __init__(
        self,
        model: str,
        *,
        base_url: str = ANTHROPIC_URL,
        api_key: str | None = None,
        compacts_on_demand: bool = False,
        window: int | None = None,
        options: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        idle_seconds: float = MAX_SILENCE_SECONDS,
    ) -> None:
        """`base_url` ends before `/v1/messages`; for Anthropic's own, the key is ANTHROPIC_API_KEY by default.

        With `compacts_on_demand` the provider compacts the conversation by itself, with our prompt as instructions. Its
        summary is readable text, which is checked, completed and recorded like every other summary. `options` are added
        to the request unchanged. Pass the conversation's own `thinking` there: the cache of the messages depends on it.
        """
        key = os.environ.get("ANTHROPIC_API_KEY") if api_key is None and base_url == ANTHROPIC_URL else api_key
        self._endpoint = HttpEndpoint(base_url, model, api_key=key, headers=headers, idle_seconds=idle_seconds)
        self.name = model
        self.window = window
        self._compacts_on_demand = compacts_on_demand
        self._options = dict(options or {})

    def __repr__(self) -> str:
        """Show the address and the model, never the key or a password."""
        return f"MessagesSummarizer({self.name!r}, base_url={redact_text(self._endpoint.base_url)!r})"

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return the reply of the model, or the text of the provider's compaction block."""
        headers = {"anthropic-version": ANTHROPIC_VERSION}
        if self._endpoint.key:
            headers["x-api-key"] = self._endpoint.key
        if self._compacts_on_demand:
            headers["anthropic-beta"] = COMPACTION_BETA
        return await self._endpoint.ask(
            "/v1/messages",
            self._body(prompt),
            prompt,
            _add_event,
            headers=headers,
            cut_off_reasons=CUT_OFF_STOP_REASONS,
        )

    def _body(self, prompt: SummaryPrompt) -> dict[str, object]:
        """Return a request; with a prefix, the conversation's last request with the prompt after it."""
        prefix = prompt.prefix if prompt.prefix and prompt.prefix.format == MESSAGES_FORMAT else None
        system: object = prompt.system if prefix is None else prefix.system
        task = prompt.text if prefix is None else "\n\n".join(filter(None, (prompt.system, prompt.text)))
        messages = [] if prefix is None else list(prefix.messages)
        compaction: dict[str, object] = {}
        if self._compacts_on_demand:
            instructions = prompt.system if prefix is None else task
            compaction = {"compaction": {"type": "summarize", "instructions": instructions}}
        if prefix is None or not compaction:
            messages.append({"role": "user", "content": task})
        return {
            **self._options,
            "model": self.name,
            **({"system": system} if system else {}),
            **({"tools": prefix.tools} if prefix and prefix.tools else {}),
            "messages": messages,
            **compaction,
            "max_tokens": prompt.max_output_tokens + self._thinking_tokens(),
            "stream": True,
        }

    def _thinking_tokens(self) -> int:
        """Return the budget for thinking, which counts as output."""
        thinking = self._options.get("thinking")
        return token_count(thinking.get("budget_tokens")) if is_mapping(thinking) else 0


def _add_event(reply: StreamedReply, payload: Mapping[str, object]) -> None:
    """Add an event of a stream, or a whole message."""
    kind = payload.get("type")
    message = payload.get("message") if kind == "message_start" else payload if kind == "message" else None
    if is_mapping(message):
        reply.has_begun = True
        reply.model = str(message.get("model") or reply.model)
        reply.request_id = str(message.get("id") or "") or reply.request_id
        blocks = message.get("content")
        for block in blocks if is_list(blocks) else ():
            _add_block(reply, block)
        _add_stop(reply, message)
    elif kind == "content_block_start":
        _add_block(reply, payload.get("content_block"))
    elif kind == "content_block_delta":
        delta = payload.get("delta")
        if is_mapping(delta) and delta.get("type") == "text_delta":
            reply.add_text(str(delta.get("text") or ""))
    elif kind == "message_delta":
        _add_stop(reply, as_object(payload.get("delta")) | {"usage": payload.get("usage")})
    elif kind == "message_stop":
        reply.is_done = True


def _add_block(reply: StreamedReply, block: object) -> None:
    """Add the text of a text block or of a compaction block."""
    if not is_mapping(block):
        return
    if block.get("type") == "text":
        reply.add_text(str(block.get("text") or ""))
    elif block.get("type") == "compaction":
        if not isinstance(block.get("content"), str):
            raise ModelRefusedError(reply.requested_model, "the provider compacted without a readable text")
        reply.add_text(str(block["content"]))


def _add_stop(reply: StreamedReply, message: Mapping[str, object]) -> None:
    stop = message.get("stop_reason")
    if stop == "refusal":
        raise ModelRefusedError(reply.requested_model, "the model declined", status=HTTP_OK)
    reply.finish = str(stop) if stop else reply.finish
    reply.usage = usage_from_messages(message.get("usage"), reply.usage)


def usage_from_messages(value: object, before: Usage | None = None) -> Usage | None:
    """Return the billed usage; a later report of a stream completes an earlier one.

    The cost of a compaction on demand is in `iterations`.
    """
    if not is_mapping(value):
        return before
    found = Usage()
    for row in objects_in(value.get("iterations")) or [value]:
        found += usage_if_readable(anthropic_usage, row) or Usage()
    known = before or Usage()
    return Usage(
        input_tokens=found.input_tokens or known.input_tokens,
        output_tokens=found.output_tokens or known.output_tokens,
        cache_read_tokens=found.cache_read_tokens or known.cache_read_tokens,
        cache_write_tokens=found.cache_write_tokens or known.cache_write_tokens,
    )
