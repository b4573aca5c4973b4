"""A running gateway for tests, and a client that sees every byte of an answer."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from holdfast.apps.gateway.app import close_gateway, gateway_app
from holdfast.apps.serving import http_protocol
from holdfast.stores.memory import MemoryStore
from holdfast.testing.endpoint import LOOPBACK_HOST

OWN_HEADERS = re.compile(r"x-holdfast-|x-accel-buffering$|transfer-encoding$|connection$|content-length$|date$")


@dataclass(frozen=True)
class Seen:
    """What a client saw of an answer."""

    status: int | None = None
    """None if the connection ended before there was one."""
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    is_whole: bool = False
    """Whether the client knows that the body is complete."""

    def header(self, name: str) -> str | None:
        """Return the value of a header."""
        return next((value for known, value in self.headers if known == name), None)

    @property
    def provider_headers(self) -> list[tuple[str, str]]:
        """The headers that a gateway must not change."""
        return sorted(pair for pair in self.headers if not OWN_HEADERS.match(pair[0]))


@dataclass
class RawClient:
    """A client of one connection, which reads an answer as far as it goes."""

    url: str
    head: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    _is_head: bool = False
    _headers: Mapping[str, str] = field(default_factory=dict[str, str])
    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter | None = None

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a request."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host.strip("[]"), int(port))
        named = {"host": f"{host}:{port}", "content-type": "application/json", "content-length": str(len(body))}
        named |= headers or {}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        self._is_head = method == "HEAD"
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)

    async def read(self, until: bytes | None = None) -> Seen:
        """Read the answer to its end, or until the body contains some bytes."""
        assert self._reader is not None
        try:
            self.head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return Seen()
        line, *rest = self.head.decode("latin-1").rstrip("\r\n").split("\r\n")
        headers = [(name.lower(), value) for name, _, value in (one.partition(": ") for one in rest)]
        self._headers = dict(headers)
        status = int(line.split(" ")[1])
        has_no_body = self._is_head or (status in {204, 304} and "transfer-encoding" not in self._headers)
        is_whole = has_no_body or await self._read_body(self._headers, until)
        return Seen(status, headers, bytes(self.body), is_whole)

    async def read_more(self, until: bytes | None = None) -> bool:
        """Read on, to the end or until the body contains some bytes; return whether it is complete."""
        return await self._read_body(self._headers, until)

    async def _read_body(self, headers: Mapping[str, str], until: bytes | None) -> bool:
        assert self._reader is not None
        length = int(headers["content-length"]) if "content-length" in headers else None
        is_chunked = headers.get("transfer-encoding") == "chunked"
        try:
            while until is None or until not in self.body:
                if is_chunked:
                    size = int(await self._reader.readuntil(b"\r\n"), 16)
                    while size:
                        piece = await self._reader.read(size)
                        if not piece:
                            return False
                        self.body += piece
                        size -= len(piece)
                        if not size:
                            await self._reader.readexactly(2)
                            break
                    else:
                        await self._reader.readexactly(2)
                        return True
                    continue
                if length is not None and len(self.body) >= length:
                    return True
                piece = await self._reader.read(65_536)
                if not piece:
                    return length is None
                self.body += piece
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        return False

    @property
    def is_at_end(self) -> bool:
        """Whether the server has closed the connection."""
        return self._reader is None or self._reader.at_eof()

    def leave(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.transport.abort()


async def ask(
    url: str, method: str = "POST", path: str = "/v1/chat/completions", body: bytes = b"", **headers: str
) -> Seen:
    """Send one request on a connection of its own, and return what came back."""
    client = RawClient(url)
    try:
        await client.send(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        return await client.read()
    finally:
        client.leave()


class WaitingStore(MemoryStore):
    """A store that waits before it reads a value, once it is told to."""

    waits = False

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def get_value(self, key: str) -> Any:
        if self.waits:
            self.waits = False
            self.reached.set()
            await self.opened.wait()
        return await super().get_value(key)


class _Server(uvicorn.Server):
    """A server that leaves the signals of the test run alone."""

    def capture_signals(self) -> Any:
        return nullcontext()


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncGenerator[str]:
    """Serve an application on a free port, and yield its address."""
    listening = socket.create_server((LOOPBACK_HOST, 0))
    config = uvicorn.Config(
        app,
        http=http_protocol(),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://{LOOPBACK_HOST}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await running


@asynccontextmanager
async def running_gateway(upstream: str, **options: Any) -> AsyncGenerator[str]:
    """Run a gateway in front of one upstream, and yield its address."""
    upstreams = {"openai": f"{upstream}/v1", "anthropic": upstream, "gemini": upstream}
    app = gateway_app(upstreams=options.pop("upstreams", upstreams), **options)
    try:
        async with served(app) as url:
            yield url
    finally:
        await close_gateway(app)
