"""A summarizer that calls any endpoint with OpenAI's chat completions: hosted, proxied, or on this machine.

A stream is complete when the model or the server reports that it finished. A stream that ends without such a report
was cut. An empty stream is a refusal: some servers send one when a request is too long. We parse the events
ourselves, because httpx-sse 0.4.3 fails three of our tests (it drops an event that the end of the stream cuts or closes
and the `error:` lines of some servers) and has no limit on the length of a line. Needs the extra `holdfast[http]`, and
loads it at the first call.
"""

import asyncio
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

from holdfast.core.conversation.json_values import dump_json
from holdfast.core.history.events import Usage
from holdfast.errors import HoldfastError, ModelRefusedError, ModelUnreachableError, SettingsError
from holdfast.models.base import INTERACTION_HEADER, CachedPrefix, ModelReply, SummaryPrompt
from holdfast.models.errors import CONTENT_FILTERED, as_model_error, error_from_response, retry_after_seconds
from holdfast.redaction import REDACTED_MARK
from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.overflow import classify
from holdfast.wire.usage import chat_usage

if TYPE_CHECKING:
    import httpx

STREAM_DONE = "[DONE]"
ERROR_EVENT = "error"
CUT_OFF_FINISH_REASONS = {"length", "max_tokens"}
MAX_EVENT_BYTES = 8_000_000
"""No server sends this much in one event. Without a limit, a broken server would fill the memory."""
HTTP_OK = 200


async def server_sent_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, str]]:
    """Yield the kind and the text of each event of a stream; the last one need not be closed by a blank line."""
    kind, lines = "", list[str]()
    async for line in _lines(chunks):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            lines.append(value)
        elif name == "event":
            kind = value
        elif name == ERROR_EVENT:
            yield ERROR_EVENT, value
        elif not line and lines:
            yield kind, "\n".join(lines)
            kind, lines = "", []
    if lines:
        yield kind, "\n".join(lines)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield lines; only a line feed ends one, because JSON text may hold the other line separators of Unicode."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"a line of more than {MAX_EVENT_BYTES:,} bytes")
    if rest:
        yield rest.decode("utf-8", "replace")


@dataclass(slots=True)
class StreamedReply:
    """A reply as it arrives."""

    requested_model: str
    """The name of the model in the request."""
    max_chars: int
    texts: list[str] = field(default_factory=list[str])
    chars: int = 0
    model: str = ""
    request_id: str | None = None
    usage: Usage | None = None
    finish: str | None = None
    has_begun: bool = False
    is_done: bool = False

    @property
    def is_overlong(self) -> bool:
        """Whether the model ignores its output limit."""
        return self.chars > self.max_chars

    def add_event(self, kind: str, text: str) -> None:
        """Add an event, or raise the error that it reports."""
        if text.strip() == STREAM_DONE:
            self.is_done = True
            return
        try:
            payload: object = json.loads(text)
        except (ValueError, RecursionError):
            if kind != ERROR_EVENT:
                problem = f"the stream was cut inside an event: {text[:80]!r}"
                raise ModelUnreachableError(self.requested_model, problem) from None
            payload = {"error": {"message": text}}
        if kind == ERROR_EVENT and not (is_mapping(payload) and "error" in payload):
            payload = {"error": payload}
        self.add_payload(payload)

    def add_payload(self, payload: object) -> None:
        """Add a piece of the reply, or the whole reply of a server that does not stream."""
        if not is_mapping(payload) or classify(payload, status=HTTP_OK):
            raise error_from_response(self.requested_model, payload, status=HTTP_OK)
        self.model = str(payload.get("model") or self.model)
        self.request_id = str(payload.get("id") or "") or self.request_id
        self.usage = usage_from_chat(payload.get("usage")) or self.usage
        choices = payload.get("choices")
        first: object = choices[0] if is_list(choices) and choices else None
        if is_mapping(first):
            self._add_choice(first)

    def to_reply(self) -> ModelReply:
        """Return the reply, or raise if it is incomplete."""
        if not self.has_begun:
            raise ModelRefusedError(
                self.requested_model,
                "the stream ended without an event",
                status=HTTP_OK,
                remedy="send less (some servers answer like this when a request is too long), or choose another model",
            )
        if not (self.finish or self.is_done or self.is_overlong):
            raise ModelUnreachableError(self.requested_model, f"the stream was cut after {self.chars:,} characters")
        return ModelReply(
            text="".join(self.texts),
            model=self.model or self.requested_model,
            usage=self.usage,
            is_cut_off=self.finish in CUT_OFF_FINISH_REASONS or self.is_overlong,
            request_id=self.request_id,
        )

    def _add_choice(self, choice: Mapping[str, object]) -> None:
        self.has_begun = True
        piece: object = choice.get("delta") or choice.get("message")
        if is_mapping(piece):
            text = _text_of(piece.get("content"))
            self.texts.append(text)
            self.chars += len(text)
            if declined := piece.get("refusal"):
                problem = f"the model declined: {str(declined)[:200]}"
                raise ModelRefusedError(self.requested_model, problem, status=HTTP_OK)
        finish = choice.get("finish_reason")
        if finish == "content_filter":
            raise ModelRefusedError(self.requested_model, CONTENT_FILTERED, status=HTTP_OK)
        self.finish = str(finish) if finish else self.finish


def usage_from_chat(value: object) -> Usage | None:
    """Return the billed usage, or None if the endpoint reports none that can be read."""
    try:
        return chat_usage(value) if is_mapping(value) else None
    except SettingsError:
        return None


def _text_of(content: object) -> str:
    """Return the text of a string or of blocks."""
    if is_list(content):
        return "".join(str(block.get("text") or "") for block in content if is_mapping(block))
    return content if isinstance(content, str) else ""


OutputField: TypeAlias = Literal["max_tokens", "max_completion_tokens"]
CHAT_FORMAT = "openai-chat"
HTTP_CONNECT_SECONDS = 10.0
MAX_SILENCE_SECONDS = 120.0
MIN_STREAM_CHARS, STREAM_CHARS_PER_TOKEN = 65_536, 32
"""A model that writes more characters than this for each allowed token ignores its output limit."""
MAX_ERROR_BODY_BYTES = 65_536


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
        output_field: OutputField = "max_tokens",
        options: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        idle_seconds: float = MAX_SILENCE_SECONDS,
    ) -> None:
        """`base_url` ends before `/chat/completions`; `options` are added to the request unchanged.

        `output_field` is the endpoint's name for the output limit; `idle_seconds` is the longest silence.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise SettingsError("base_url", f"{base_url!r} is not an http:// or https:// address")
        if not model:
            raise SettingsError("model", "needs a name")
        if find_spec("httpx") is None:
            raise SettingsError("model", f"{model} needs an HTTP client: pip install '.[http]' in Holdfast's folder")
        self.base_url = base_url.rstrip("/")
        self.name = model
        self.window = window
        self._key = _check_key(api_key)
        self._output_field: OutputField = output_field
        self._options = dict(options or {})
        self._headers = dict(headers or {})
        self._idle_seconds = idle_seconds
        self._is_loopback = _is_loopback(parts.hostname)
        self._tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        """Show the address and the model, never the key."""
        return f"ChatSummarizer({self.base_url!r}, {self.name!r})"

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return the reply of the model."""
        reply = StreamedReply(self.name, max(MIN_STREAM_CHARS, prompt.max_output_tokens * STREAM_CHARS_PER_TOKEN))
        try:
            async with (
                await self._client() as client,
                client.stream(
                    "POST",
                    f"{self.base_url}/chat/completions",
                    content=dump_json(self._body(prompt)).encode("utf-8", "replace"),
                    headers=self._headers_for(prompt),
                ) as response,
            ):
                await self._receive(response, reply)
        except HoldfastError:
            raise
        except Exception as error:
            if not reply.finish:
                raise as_model_error(self.name, error) from error
        return reply.to_reply()

    async def _client(self) -> "httpx.AsyncClient":
        """Return a client for one call: calls are minutes apart and may come from different event loops."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(_tls_for, self.base_url)
        import httpx  # noqa: PLC0415 - an extra; loaded in a thread by now

        timeout = httpx.Timeout(self._idle_seconds, connect=HTTP_CONNECT_SECONDS)
        # A proxy from the environment cannot reach a server on our loopback interface.
        return httpx.AsyncClient(verify=self._tls, timeout=timeout, trust_env=not self._is_loopback)

    async def _receive(self, response: "httpx.Response", reply: StreamedReply) -> None:
        if response.status_code != HTTP_OK:
            body = await _read_error_body(response)
            if self._key:
                body = body.replace(self._key, REDACTED_MARK)
            wait = retry_after_seconds(response.headers)
            raise error_from_response(self.name, body, status=response.status_code, retry_after=wait)
        if "json" in response.headers.get("content-type", ""):
            # A server that does not stream, or an error under the status 200.
            await response.aread()
            reply.add_payload(response.json())
            reply.is_done = True
            return
        async for kind, text in server_sent_events(response.aiter_bytes()):
            reply.add_event(kind, text)
            if reply.is_done or reply.is_overlong:
                return

    def _headers_for(self, prompt: SummaryPrompt) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "User-Agent": "holdfast",
            INTERACTION_HEADER: prompt.interaction,
            **self._headers,
        }
        return headers | {"Authorization": f"Bearer {self._key}"} if self._key else headers

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


def _tls_for(url: str) -> ssl.SSLContext:
    """Return a TLS context; loading httpx and the certificates takes a sixth of a second."""
    import httpx  # noqa: PLC0415 - an extra

    return httpx.create_ssl_context() if url.startswith("https://") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


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


async def _read_error_body(response: "httpx.Response") -> str:
    """Return the first part of an error response."""
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_ERROR_BODY_BYTES:
            break
    return body[:MAX_ERROR_BODY_BYTES].decode("utf-8", "replace")


def _check_key(key: str | None) -> str | None:
    key = key.strip() if key else None
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise SettingsError("api_key", "has a character that no key can have")
    return key or None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
