"""A provider on the loopback interface that breaks its answers at any byte, to test what stands in front of it.

Only a real connection shows what a client sees of an answer that stalls, is cut or is reset.
"""

import asyncio
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, TypeAlias

from holdfast.testing.endpoint import LOOPBACK_HOST

AnswerFault: TypeAlias = Literal["none", "close", "reset", "stall"]
"""What happens in an answer: nothing; the connection is closed; it is reset; it stays open and silent."""
AnswerFraming: TypeAlias = Literal["length", "chunked", "close"]
"""How a client knows where an answer ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyAnswer:
    """An answer of the upstream, and where it breaks."""

    status: int = 200
    headers: Sequence[tuple[str, str]] = (("content-type", "application/json"),)
    pieces: Sequence[bytes] = ()
    """The body, in the pieces in which it is written."""
    framing: AnswerFraming = "length"
    fault: AnswerFault = "none"
    at: int = 0
    """The number of bytes, head included, that are sent before the fault."""

    def encoded(self) -> list[bytes]:
        """Return the whole answer as it is written without a fault."""
        framing = {
            "length": [f"content-length: {sum(map(len, self.pieces))}"],
            "chunked": ["transfer-encoding: chunked"],
            "close": ["connection: close"],
        }[self.framing]
        lines = [f"HTTP/1.1 {self.status} Answer", *(f"{name}: {value}" for name, value in self.headers), *framing]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        if self.framing != "chunked":
            return [head, *self.pieces]
        return [head, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in self.pieces if piece), b"0\r\n\r\n"]


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request that the upstream got."""

    line: str
    headers: Sequence[tuple[str, str]]
    """The names are in lower case."""
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of a header."""
        return next((value for known, value in self.headers if known == name), None)


@dataclass(slots=True)
class FaultyUpstream:
    """Answers every request with `answer`; keeps connections open as a provider does."""

    answer: FaultyAnswer = field(default_factory=FaultyAnswer)
    requests: list[UpstreamRequest] = field(default_factory=list[UpstreamRequest], repr=False)
    connections: int = 0
    """How many connections were made."""
    url: str = ""
    request_received: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has arrived."""
    client_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has closed the connection of a stalled answer."""
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK_HOST, 0)
        self.url = f"http://{LOOPBACK_HOST}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        await self.drop_connections()

    async def drop_connections(self) -> None:
        """Close every connection, as a provider does with idle ones."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a callback of a server runs in a task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read a request and answer it; return whether the connection stays open."""
        request = await _read_whole_request(reader)
        self.requests.append(request)
        self.request_received.set()
        answer, sent = self.answer, 0
        for piece in answer.encoded()[: 1 if request.line.startswith("HEAD ") else None]:
            room = len(piece) if answer.fault == "none" else max(0, answer.at - sent)
            writer.write(piece[:room])
            sent += len(piece[:room])
            await writer.drain()
            if room < len(piece):
                await self._break(answer.fault, reader, writer)
                return False
        if answer.fault != "none":
            await self._break(answer.fault, reader, writer)
            return False
        return answer.framing != "close"

    async def _break(self, fault: AnswerFault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if fault == "stall":
            await reader.read()
            self.client_left.set()
        elif fault == "reset":
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


async def _read_whole_request(reader: asyncio.StreamReader) -> UpstreamRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.rstrip("\r\n").split("\r\n")
    headers = [(name.lower(), value) for name, _, value in (one.partition(": ") for one in rest)]
    named = dict(headers)
    if named.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(named.get("content-length", 0)))
    return UpstreamRequest(line, headers, body)
