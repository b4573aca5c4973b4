"""A summarizer that calls any endpoint with OpenAI's chat completions: hosted, proxied, or on this machine."""

from collections.abc import Mapping
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from holdfast.errors import ModelRefusedError
from holdfast.models.base import CachedPrefix, ModelReply, SummaryPrompt
from holdfast.models.errors import CONTENT_FILTERED
from holdfast.models.http_endpoint import HTTP_OK, MAX_SILENCE_SECONDS, HttpEndpoint, StreamedReply
from holdfast.redaction import redact_text
from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.usage import chat_usage, usage_if_readable

OutputField: TypeAlias = Literal["max_tokens", "max_completion_tokens"]
CHAT_FORMAT = "openai-chat"
OPENAI_HOST = "api.openai.com"
CUT_OFF_FINISH_REASONS = frozenset({"length", "max_tokens"})


def _add_chunk(reply: StreamedReply, payload: Mapping[str, object]) -> None:
    """Add a chunk of a chat completion, or a whole one."""
    reply.model = str(payload.get("model") or reply.model)
    reply.request_id = str(payload.get("id") or "") or reply.request_id
    reply.usage = usage_if_readable(chat_usage, payload.get("usage")) or reply.usage
    choices = payload.get("choices")
    first: object = choices[0] if is_list(choices) and choices else None
    if is_mapping(first):
        _add_choice(reply, first)


def _add_choice(reply: StreamedReply, choice: Mapping[str, object]) -> None:
    reply.has_begun = True
    piece: object = choice.get("delta") or choice.get("message")
    if is_mapping(piece):
        reply.add_text(_text_of(piece.get("content")))
        if declined := piece.get("refusal"):
            problem = f"the model declined: {str(declined)[:200]}"
            raise ModelRefusedError(reply.requested_model, problem, status=HTTP_OK)
    finish = choice.get("finish_reason")
    if finish == "content_filter":
        raise ModelRefusedError(reply.requested_model, CONTENT_FILTERED, status=HTTP_OK)
    reply.finish = str(finish) if finish else reply.finish


def _text_of(content: object) -> str:
    """Return the text of a string or of blocks."""
    if is_list(content):
        return "".join(str(block.get("text") or "") for block in content if is_mapping(block))
    return content if isinstance(content, str) else ""


class ChatSummarizer:
    """Calls one model of one endpoint."""

    prefix_formats = frozenset({CHAT_FORMAT})

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        window: int | None = None,
        output_field: OutputField | None = None,
        options: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        idle_seconds: float = MAX_SILENCE_SECONDS,
    ) -> None:
        """`base_url` ends before `/chat/completions`; `options` are added to the request unchanged.

        `output_field` is the endpoint's name for the output limit: by default that of OpenAI's newer models at OpenAI's
        own address, which refuse `max_tokens`, and `max_tokens` elsewhere. `idle_seconds` is the longest silence.
        """
        self._endpoint = HttpEndpoint(base_url, model, api_key=api_key, headers=headers, idle_seconds=idle_seconds)
        self.base_url = self._endpoint.base_url
        self.name = model
        self.window = window
        is_openai = urlsplit(self.base_url).hostname == OPENAI_HOST
        self._output_field: OutputField = output_field or ("max_completion_tokens" if is_openai else "max_tokens")
        self._options = dict(options or {})

    def __repr__(self) -> str:
        """Show the address and the model, never the key or a password."""
        return f"ChatSummarizer({redact_text(self.base_url)!r}, {self.name!r})"

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return the reply of the model."""
        key = self._endpoint.key
        return await self._endpoint.ask(
            "/chat/completions",
            self._body(prompt),
            prompt,
            _add_chunk,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            cut_off_reasons=CUT_OFF_FINISH_REASONS,
        )

    def _body(self, prompt: SummaryPrompt) -> dict[str, object]:
        prefix = prompt.prefix if prompt.prefix and prompt.prefix.format == CHAT_FORMAT else None
        tools: dict[str, object] = {"tools": prefix.tools, "tool_choice": "none"} if prefix and prefix.tools else {}
        return {
            **self._options,
            "model": self.name,
            "messages": _messages(prompt, prefix),
            **tools,
            self._output_field: prompt.max_output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def _messages(prompt: SummaryPrompt, prefix: CachedPrefix | None) -> list[Mapping[str, object]]:
    """Return the prompt alone, or after the last request of the conversation.

    After a prefix the instructions are part of the prompt: anywhere else they would change the cached prefix.
    """
    if prefix is None:
        return [*_system_messages(prompt.system), {"role": "user", "content": prompt.text}]
    text = "\n\n".join(text for text in (prompt.system, prompt.text) if text)
    return [*_system_messages(prefix.system), *prefix.messages, {"role": "user", "content": text}]


def _system_messages(system: object) -> list[Mapping[str, object]]:
    """Return system text as messages."""
    if is_mapping(system):
        return [system]
    if is_list(system) and all(is_mapping(item) and "role" in item for item in system):
        return list(system)
    return [{"role": "system", "content": system}] if system else []
