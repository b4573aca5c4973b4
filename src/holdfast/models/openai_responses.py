"""A summarizer that calls any endpoint with OpenAI's Responses API.

It can continue the conversation's last request: instructions, tools and items are sent as they were, so that the
provider reads them from its cache, and the prompt is one more user message. Tools may not be called.
"""

import os
from collections.abc import Mapping

from holdfast.errors import ModelRefusedError
from holdfast.models.base import CachedPrefix, ModelReply, SummaryPrompt
from holdfast.models.errors import CONTENT_FILTERED, error_from_response
from holdfast.models.http_endpoint import HTTP_OK, MAX_SILENCE_SECONDS, HttpEndpoint, StreamedReply
from holdfast.redaction import redact_text
from holdfast.wire.json_reader import as_object, is_mapping, objects_in
from holdfast.wire.usage import responses_usage, usage_if_readable

OPENAI_URL = "https://api.openai.com/v1"
STATELESS_FORMAT = "openai-responses-stateless"
RESPONSES_FORMATS = frozenset({"openai-responses", STATELESS_FORMAT})
CUT_OFF_DETAILS = frozenset({"max_output_tokens"})
ENDED_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class ResponsesSummarizer:
    """Calls one model of one endpoint."""

    prefix_formats = RESPONSES_FORMATS

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        window: int | None = None,
        options: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        idle_seconds: float = MAX_SILENCE_SECONDS,
    ) -> None:
        """`base_url` ends before `/responses`; for OpenAI's own, the key is OPENAI_API_KEY by default.

        `options` are added to the request unchanged. Pass the conversation's own `prompt_cache_key` and `reasoning`
        there: the provider's cache depends on them.
        """
        if api_key is None and base_url.rstrip("/") == OPENAI_URL:
            api_key = os.environ.get("OPENAI_API_KEY")
        self._endpoint = HttpEndpoint(base_url, model, api_key=api_key, headers=headers, idle_seconds=idle_seconds)
        self.name = model
        self.window = window
        self._options = dict(options or {})

    def __repr__(self) -> str:
        """Show the address and the model, never the key or a password."""
        return f"ResponsesSummarizer({redact_text(self._endpoint.base_url)!r}, {self.name!r})"

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return the reply of the model."""
        key = self._endpoint.key
        return await self._endpoint.ask(
            "/responses",
            self._body(prompt),
            prompt,
            _add_event,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            cut_off_reasons=CUT_OFF_DETAILS,
        )

    def _body(self, prompt: SummaryPrompt) -> dict[str, object]:
        prefix = prompt.prefix if prompt.prefix and prompt.prefix.format in RESPONSES_FORMATS else None
        instructions: object = prompt.system if prefix is None else prefix.system
        tools: dict[str, object] = {"tools": prefix.tools, "tool_choice": "none"} if prefix and prefix.tools else {}
        # A conversation whose responses are stored refers to stored items, so nothing says otherwise there.
        is_stateless = prefix is None or prefix.format == STATELESS_FORMAT
        return {
            **self._options,
            "model": self.name,
            **({"instructions": instructions} if instructions else {}),
            "input": _items(prompt, prefix),
            **tools,
            **({"store": False} if is_stateless else {}),
            "max_output_tokens": prompt.max_output_tokens,
            "stream": True,
        }


def _items(prompt: SummaryPrompt, prefix: CachedPrefix | None) -> list[Mapping[str, object]]:
    """Return the prompt alone, or after the items of the conversation's last request."""
    if prefix is None:
        return [{"role": "user", "content": prompt.text}]
    text = "\n\n".join(filter(None, (prompt.system, prompt.text)))
    return [*prefix.messages, {"role": "user", "content": text}]


def _add_event(reply: StreamedReply, payload: Mapping[str, object]) -> None:
    """Add an event of a stream, or a whole response."""
    kind = str(payload.get("type"))
    if kind == "response.output_text.delta":
        reply.has_begun = True
        reply.add_text(str(payload.get("delta") or ""))
    elif kind == "response.refusal.done":
        raise ModelRefusedError(reply.requested_model, "the model declined", status=HTTP_OK)
    elif kind == "error":
        raise error_from_response(reply.requested_model, {"error": payload}, status=HTTP_OK)
    elif kind in ENDED_EVENTS and is_mapping(response := payload.get("response")):
        _add_end(reply, response)
    elif payload.get("object") == "response":
        for text in _texts(payload):
            reply.add_text(text)
        _add_end(reply, payload)


def _texts(response: Mapping[str, object]) -> list[str]:
    """Return the texts of a whole response."""
    blocks = [block for item in objects_in(response.get("output")) for block in objects_in(item.get("content"))]
    return [str(block.get("text") or "") for block in blocks if block.get("type") == "output_text"]


def _add_end(reply: StreamedReply, response: Mapping[str, object]) -> None:
    """Add how a response ended, and what it cost."""
    reply.has_begun = reply.is_done = True
    if response.get("status") == "failed":
        raise error_from_response(reply.requested_model, {"error": response.get("error")}, status=HTTP_OK)
    reply.model = str(response.get("model") or reply.model)
    reply.request_id = str(response.get("id") or "") or reply.request_id
    reply.usage = usage_if_readable(responses_usage, response.get("usage")) or reply.usage
    reason = as_object(response.get("incomplete_details")).get("reason")
    if reason == "content_filter":
        raise ModelRefusedError(reply.requested_model, CONTENT_FILTERED, status=HTTP_OK)
    reply.finish = str(reason or response.get("status") or "completed")
