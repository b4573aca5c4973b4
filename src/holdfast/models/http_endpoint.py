"""One call to a model's HTTP endpoint, with a streamed reply.

A stream is complete when the model or the server reports that it finished. A stream that ends without such a report
was cut. An empty stream is a refusal: some servers send one when a request is too long. We parse the events
ourselves, because httpx-sse 0.4.3 fails three of our tests (it drops an event that the end of the stream cuts or closes
and the `error:` lines of some servers) and has no limit on the length of a line. Needs the extra `http`, and
loads it at the first call.
"""

import asyncio
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, urlsplit

from holdfast.core.conversation.json_values import dump_json
from holdfast.core.history.events import Usage
from holdfast.distribution import install_command
from holdfast.errors import HoldfastError, ModelRefusedError, ModelUnreachableError, SettingsError
from holdfast.models.base import INTERACTION_HEADER, ModelReply, SummaryPrompt
from holdfast.models.errors import as_model_error, error_from_response, retry_after_seconds
from holdfast.redaction import REDACTED_MARK
from holdfast.wire.json_reader import is_mapping
from holdfast.wire.overflow import classify

if TYPE_CHECKING:
    import httpx

STREAM_DONE = "[DONE]"
ERROR_EVENT = "error"
MAX_EVENT_BYTES = 8_000_000
"""No server sends this much in one event. Without a limit, a broken server would fill the memory."""
HTTP_OK = 200
HTTP_CONNECT_SECONDS = 10.0
MAX_SILENCE_SECONDS = 120.0
MIN_STREAM_CHARS, STREAM_CHARS_PER_TOKEN = 65_536, 32
"""A model that writes more characters than this for each allowed token ignores its output limit."""
MAX_ERROR_BODY_BYTES = 65_536


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


PayloadReader: TypeAlias = Callable[["StreamedReply", Mapping[str, object]], None]
"""Adds one provider's event to a reply, or the whole reply of a server that does not stream; raises its error."""


@dataclass(slots=True)
class StreamedReply:
    """A reply as it arrives."""

    requested_model: str
    """The name of the model in the request."""
    max_chars: int
    reader: PayloadReader
    cut_off_reasons: frozenset[str]
    """The reasons for finishing that mean that the output limit was reached."""
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

    def add_text(self, text: str) -> None:
        """Add a piece of the text."""
        self.texts.append(text)
        self.chars += len(text)

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
        self.reader(self, payload)

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
            is_cut_off=self.finish in self.cut_off_reasons or self.is_overlong,
            request_id=self.request_id,
        )


class HttpEndpoint:
    """An address that answers for one model."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None,
        headers: Mapping[str, str] | None,
        idle_seconds: float = MAX_SILENCE_SECONDS,
    ) -> None:
        parts = split_http_url(base_url)
        if parts is None:
            raise SettingsError("base_url", f"{base_url!r} is not an http:// or https:// address")
        if not model:
            raise SettingsError("model", "needs a name")
        if find_spec("httpx") is None:
            raise SettingsError("model", f"{model} needs an HTTP client: {install_command('http')}")
        self.base_url = base_url.rstrip("/")
        self.model = model
        self.key = _check_key(api_key)
        self._headers = dict(headers or {})
        self._idle_seconds = idle_seconds
        self._is_loopback = is_loopback(parts.hostname or "")
        self._tls: ssl.SSLContext | None = None

    async def ask(
        self,
        path: str,
        body: Mapping[str, object],
        prompt: SummaryPrompt,
        reader: PayloadReader,
        *,
        headers: Mapping[str, str],
        cut_off_reasons: frozenset[str],
    ) -> ModelReply:
        """Post a body, and return the whole reply."""
        limit = max(MIN_STREAM_CHARS, prompt.max_output_tokens * STREAM_CHARS_PER_TOKEN)
        reply = StreamedReply(self.model, limit, reader, cut_off_reasons)
        try:
            async with (
                await self._client() as client,
                client.stream(
                    "POST",
                    f"{self.base_url}{path}",
                    content=dump_json(body).encode("utf-8", "replace"),
                    headers={
                        "Content-Type": "application/json",
                        "Accept": "text/event-stream",
                        "User-Agent": "holdfast",
                        INTERACTION_HEADER: prompt.interaction,
                        **self._headers,
                        **headers,
                    },
                ) as response,
            ):
                await self._receive(response, reply)
        except HoldfastError:
            raise
        except Exception as error:
            if not reply.finish:
                raise as_model_error(self.model, error) from error
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
            if self.key:
                body = body.replace(self.key, REDACTED_MARK)
            wait = retry_after_seconds(response.headers)
            raise error_from_response(self.model, body, status=response.status_code, retry_after=wait)
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


def token_count(value: object) -> int:
    """Return a number of tokens that a provider reports; 0 if it is none."""
    return value if isinstance(value, int) and value > 0 else 0


def _tls_for(url: str) -> ssl.SSLContext:
    """Return a TLS context; loading httpx and the certificates takes a sixth of a second."""
    import httpx  # noqa: PLC0415 - an extra

    return httpx.create_ssl_context() if url.startswith("https://") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


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


def split_http_url(url: str) -> SplitResult | None:
    """Return the parts of an address with a host; None for what is no `http://` or `https://` address."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket is missing, or the port is no number up to 65535
        return None
    return parts if is_address else None


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Return whether a host name or address leads to this machine only."""
    name = host.strip("[]").lower()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
