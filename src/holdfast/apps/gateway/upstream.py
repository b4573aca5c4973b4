"""Calls to providers: one pool of connections, a limit for each phase of a call, and retries where they are safe.

A call is repeated only if the provider cannot have begun to answer: no connection was made, or an idle connection
turned out to be closed. Every other failure reaches the client, which knows better what to do about it.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Literal, TypeAlias, cast
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.streams import StreamReader
from aiohttp.tracing import Trace
from multidict import CIMultiDict
from yarl import URL

from holdfast.apps.gateway.provider_apis import Destination, Provider, upstream_path
from holdfast.errors import SettingsError
from holdfast.models.http_endpoint import split_http_url
from holdfast.stores.files import disk_remedy

PUBLIC_UPSTREAMS: Mapping[str, str] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
"""The base URLs that the providers' own clients use."""
UPSTREAM_KEYS: Mapping[str, Sequence[str]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
KEY_HEADERS: Mapping[Provider, str] = {
    "openai": "authorization",
    "anthropic": "x-api-key",
    "gemini": "x-goog-api-key",
}
CREDENTIAL_HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Headers about one connection, which no proxy passes on."""
NOT_PASSED = HOP_BY_HOP | {"host", "content-length", "expect"}
"""Headers of a request that are not passed on."""
_HOP_BY_HOP_BYTES = frozenset(name.encode() for name in HOP_BY_HOP)
SLICE_BYTES = 1 << 20
"""A larger body is written in slices of this size, between which other requests run."""
MAX_HEADER_BYTES = 1 << 16
ANSWER_STATUSES = range(200, 600)
"""Statuses that can be passed on; what has a lower one is no answer yet, and 101 ends HTTP on a connection."""
_CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""Bytes that no header may have."""
RETRY_SECONDS = 0.25

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
UpstreamFailure: TypeAlias = Literal["unreachable", "timeout", "closed", "invalid"]


class UpstreamError(Exception):
    """Raised when a provider could not be reached or did not answer in HTTP. The client gets it as a 502 or 504."""

    def __init__(self, failure: UpstreamFailure, text: str) -> None:
        super().__init__(text)
        self.failure: UpstreamFailure = failure
        self.status = 504 if failure == "timeout" else 502


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimeouts:
    """How long each phase of a call may take, in seconds."""

    connect_seconds: float = 10.0
    first_byte_seconds: float = 1_800.0
    """From the request to the headers of the answer; a model may think for long before it says anything."""
    silence_seconds: float = 1_800.0
    """Between two pieces of an answer."""
    retries: int = 1
    """How often a connection that failed is tried again."""
    stale_seconds: float = 1.0
    """How soon after a request a used connection closes that the provider had given up while it was idle. One that
    closes later may have been read from."""


class Upstreams:
    """The providers that requests may be forwarded to, by name."""

    def __init__(self, base_urls: Mapping[str, str], environ: Mapping[str, str] | None = None) -> None:
        self._bases = {name: _checked_base(name, url) for name, url in {**PUBLIC_UPSTREAMS, **base_urls}.items()}
        self._environ = os.environ if environ is None else environ
        self._described = {name: f"{name}={base}" for name, base in self._bases.items()}
        self._origins = {name: str(base.origin()) for name, base in self._bases.items()}
        proxies = getproxies()
        self._proxies = {
            name: proxies.get(base.scheme) for name, base in self._bases.items() if not proxy_bypass(base.host or "")
        }

    def __contains__(self, name: str) -> bool:
        return name in self._bases

    @property
    def names(self) -> list[str]:
        """The names of all upstreams."""
        return list(self._bases)

    def described(self, name: str) -> str:
        """Return an upstream as `--upstream` names it."""
        return self._described[name]

    def url(self, destination: Destination, query: str) -> URL:
        """Return the address of a request, with path and query percent-encoded as the client sent them."""
        base = self._bases[destination.upstream]
        path = upstream_path(base.raw_path, destination.path, destination.provider)
        return URL(f"{self._origins[destination.upstream]}{path}{'?' * bool(query)}{query}", encoded=True)

    def proxy(self, name: str) -> str | None:
        """Return the address of the proxy that leads to an upstream, from the environment; raises `UpstreamError`."""
        address = (self._proxies.get(name) or "").strip()
        if not address:
            return None
        url = address if "://" in address else f"http://{address}"  # as curl and others read it
        if split_http_url(url) is None:
            kind = f"it begins with {url.partition('://')[0]!r:.20}"
            problem = f"the proxy that the environment names has no address such as http://host:8080 ({kind}); check it"
            raise UpstreamError("invalid", f"{self._origins[name]} was not called: {problem}")
        return url

    def key_header(self, destination: Destination) -> tuple[str, str] | None:
        """Return the header with the key of an upstream, if the environment has one."""
        name = destination.upstream
        own = f"{name.upper().replace('-', '_')}_API_KEY"
        for variable in UPSTREAM_KEYS.get(name, (own,)):
            if key := self._environ.get(variable):
                header = KEY_HEADERS[destination.provider]
                return header, f"Bearer {key}" if header == "authorization" else key
        return None


def _checked_base(name: str, url: str) -> URL:
    parts = split_http_url(url)
    if parts is None or parts.query or parts.fragment:
        problem = f"{url!r:.80} is not a base URL such as http://127.0.0.1:8000/v1"
        raise SettingsError("upstream", f"{name}: {problem}")
    if parts.username or parts.password:
        raise SettingsError("upstream", f"{name}: the URL has a password; set ${name.upper()}_API_KEY instead")
    return URL(url.rstrip("/"), encoded=True)


class UpstreamClient:
    """Sends requests to providers. It opens its connections on the event loop of its first request."""

    def __init__(self, timeouts: PhaseTimeouts) -> None:
        self.timeouts = timeouts
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        body: bytes | AsyncIterator[bytes] | None,
        proxy: str | None,
    ) -> aiohttp.ClientResponse:
        """Return the answer to a request once its headers are there; raises `UpstreamError`."""
        failures = 0
        while True:
            _is_reused.set(False)
            started = monotonic()
            try:
                async with asyncio.timeout(self.timeouts.first_byte_seconds):
                    response = await self._open_session().request(
                        method,
                        url,
                        headers=headers,
                        data=_slices(body) if isinstance(body, bytes) and len(body) > SLICE_BYTES else body,
                        proxy=proxy,
                        allow_redirects=False,
                    )
            except (aiohttp.ClientError, OSError) as error:
                failure = _failure(error, url, self.timeouts)
                is_stale = _is_reused.get() and monotonic() - started < self.timeouts.stale_seconds
                is_safe = is_stale if failure.failure == "closed" else failure.failure == "unreachable"
                if not is_safe or failures >= self.timeouts.retries or isinstance(body, AsyncIterator):
                    raise failure from error
                failures += 1
                if failure.failure == "unreachable":
                    await asyncio.sleep(RETRY_SECONDS)
            else:
                if response.status in ANSWER_STATUSES:
                    return response
                response.close()
                problem = f"answered with the status {response.status}, which no answer has in HTTP"
                raise UpstreamError("invalid", f"{url.scheme}://{url.authority} {problem}")

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=_Connector(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.timeouts.connect_seconds),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
                max_headers=1_024,
            )
        return self._session


_is_reused: ContextVar[bool] = ContextVar("holdfast_is_reused", default=False)
"""Whether the call that runs has got a connection that was used before."""


class _Protocol(ResponseHandler):
    """A connection that knows whether it was used before.

    Where aiohttp has no such members any more, connections count as new and read on as aiohttp does it.
    """

    was_used = False

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 - as aiohttp says
        """Read on, if reading was paused: aiohttp asks for it with each piece that is taken out of an answer."""
        if getattr(self, "_reading_paused", True) or getattr(self, "_buffer_paused", True):
            super().resume_reading(resume_parser)


class _Connector(aiohttp.TCPConnector):
    """Notes which calls reuse a connection. aiohttp's own traces tell it too, but take longer than the pool itself."""

    def __init__(self) -> None:
        super().__init__(limit=0)  # pyright: ignore[reportUnknownMemberType]
        self._factory = partial(_Protocol, loop=self._loop)

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - as aiohttp says
    ) -> Connection:
        """Return a connection, new or used."""
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        _is_reused.set(isinstance(protocol, _Protocol) and protocol.was_used)
        if isinstance(protocol, _Protocol):
            protocol.was_used = True
        return connection


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    view = memoryview(body)
    for start in range(0, len(view), SLICE_BYTES):
        yield bytes(view[start : start + SLICE_BYTES])


class _AnswerReader(StreamReader):
    """Takes the chunks of an answer that have arrived at once; `readany` makes several calls for each of them.

    It is written with members of aiohttp that may change, so it is used only where they are.
    """

    __slots__ = ()
    is_usable = frozenset(StreamReader.__slots__) >= {
        "_buffer", "_buffer_offset", "_cursor", "_eof", "_exception", "_http_chunk_splits", "_protocol", "_size"
    }  # fmt: skip

    def has_arrived(self) -> bool:
        """Return whether bytes have arrived."""
        return bool(self._buffer)

    async def take_arrived(self) -> bytes:
        """Return the next bytes as `readany` does."""
        while not self._buffer and not self._eof and self._exception is None:
            await self._wait("readany")
        if len(self._buffer) <= 1 or self._buffer_offset or self._exception is not None:
            return await self.readany()
        data = b"".join(self._buffer)
        self._buffer.clear()
        self._size, self._cursor = 0, self._cursor + len(data)
        if self._http_chunk_splits is not None:
            self._http_chunk_splits.clear()
        self._protocol.resume_reading()
        return data


def has_arrived(response: aiohttp.ClientResponse) -> bool:
    """Return whether the next bytes of an answer are certainly here already."""
    content = response.content
    is_usable = _AnswerReader.is_usable and type(content) is StreamReader
    return is_usable and _AnswerReader.has_arrived(cast("_AnswerReader", content))


async def next_chunk(response: aiohttp.ClientResponse) -> bytes:
    """Return the next bytes of an answer as they arrived; empty at its end. Raises if the answer was cut."""
    try:
        content = response.content
        if not _AnswerReader.is_usable or type(content) is not StreamReader:  # an answer without a body has another one
            return await content.readany()
        return await _AnswerReader.take_arrived(cast("_AnswerReader", content))
    except aiohttp.ClientError:
        # What arrived before the cut is still in the buffer, and a client without a gateway would see it.
        if rest := response.content._read_nowait(-1):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return rest
        raise


def _failure(error: Exception, url: URL, timeouts: PhaseTimeouts) -> UpstreamError:
    where = f"{url.scheme}://{url.authority}"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return UpstreamError("timeout", f"{where} did not accept a connection in {timeouts.connect_seconds:g} s")
    if isinstance(error, TimeoutError):
        return UpstreamError("timeout", f"{where} did not answer in {timeouts.first_byte_seconds:g} s")
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        reason = error.strerror or error.os_error
        problem = f"{where} cannot be reached through the proxy that the environment names: {reason}"
        return UpstreamError("unreachable", f"{problem}; check HTTPS_PROXY, HTTP_PROXY and NO_PROXY")
    if isinstance(error, aiohttp.ClientHttpProxyError):
        problem = f"the proxy that the environment names answered {error.status}"
        return UpstreamError("invalid", f"{where} cannot be reached: {problem}; check HTTPS_PROXY and NO_PROXY")
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.strerror or error.os_error
        remedy = disk_remedy(error, "check --upstream and the network")
        return UpstreamError("unreachable", f"{where} cannot be reached: {reason}; {remedy}")
    if isinstance(error, aiohttp.ServerDisconnectedError | OSError):
        return UpstreamError("closed", f"{where} closed the connection before it answered")
    return UpstreamError("invalid", f"{where} did not answer in HTTP: {type(error).__name__}")


def request_headers(
    headers: Headers, *, body_bytes: int | None, without: frozenset[str] = frozenset(), encodings: bool = False
) -> CIMultiDict[str]:
    """Return the headers of a request as they travel on: all but those about the connection, and our own.

    `body_bytes` is the length of the body if it is known. With `encodings`, only those encodings of an answer are
    asked for that the gateway can read too.
    """
    named = _connection_tokens(headers)
    dropped = NOT_PASSED | named | without if named or without else NOT_PASSED
    passed: CIMultiDict[str] = CIMultiDict()
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1")
        if name in dropped or name.startswith("x-holdfast-"):
            continue
        value = _header_text(raw_value)
        passed.add(name, _readable_encodings(value) if encodings and name == "accept-encoding" else value)
    if body_bytes is not None:
        passed["content-length"] = str(body_bytes)
    return passed


def response_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer as they travel on: all but those about the connection.

    A value with control bytes is left out: servers refuse to send it, and the whole answer with it.
    """
    dropped = _HOP_BY_HOP_BYTES.union(name.encode() for name in _connection_tokens(headers))
    return [
        (lower, value)
        for name, value in headers
        if (lower := name.lower()) not in dropped and not _CONTROL_BYTES.search(value)
    ]


def _connection_tokens(headers: Headers) -> frozenset[str]:
    """Return the headers that `Connection` names as being about this connection."""
    lists = [value.decode("latin-1") for name, value in headers if name.lower() == b"connection"]
    return frozenset([token.strip().lower() for token in ",".join(lists).split(",")]) if lists else frozenset()


def _header_text(value: bytes) -> str:
    # aiohttp writes UTF-8; almost every header is ASCII.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


READABLE_ENCODINGS = ("gzip", "x-gzip", "deflate", "zstd", "identity")


def _readable_encodings(value: str) -> str:
    kept = [one.strip() for one in value.split(",") if one.split(";")[0].strip().lower() in READABLE_ENCODINGS]
    return ", ".join(kept) or "identity"
