"""An endpoint on this machine that answers from a script, byte by byte.

What a client makes of a broken stream can only be seen with a real connection; this one breaks where it is told.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from holdfast.testing.chat import Json

Piece: TypeAlias = bytes | None
"""Bytes to send at once; None waits until the client goes away."""
HOST = "127.0.0.1"
LAST_CHUNK = b"0\r\n\r\n"
SETTLING_TURNS = 10
"""Of the event loop, in which a connection that was just accepted gets the task that hangs up on it."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came in."""

    line: str
    headers: Mapping[str, str]
    """With names in lower case."""
    body: Json


@dataclass(slots=True)
class Endpoint:
    """Answers each request with the next reply; connections are not kept."""

    replies: Sequence[Sequence[Piece]] | Callable[[Received], Sequence[Piece]]
    """One after the other, or made of the request."""
    requests: list[Received] = field(default_factory=list[Received])
    url: str = ""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has come in."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has gone away from an endless answer."""
    _server: asyncio.Server | None = None
    _answering: set[asyncio.Future[None]] = field(default_factory=set[asyncio.Future[None]])

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.url = f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more, and hang up."""
        if self._server:
            # A server that closes while it accepts leaves that connection open: first nobody is accepted any more.
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            for _turn in range(SETTLING_TURNS):
                await asyncio.sleep(0)
            self._server.close()
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._answer(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        # Who goes away in the middle, or says nothing at all, is gone.
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await task

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _received(reader)
            self.requests.append(request)
            self.arrived.set()
            for piece in self._reply(request):
                if piece is None:
                    await reader.read()
                    self.left.set()
                    break
                writer.write(piece)
                await writer.drain()
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    def _reply(self, request: Received) -> Sequence[Piece]:
        return self.replies(request) if callable(self.replies) else self.replies[len(self.requests) - 1]


async def _received(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (header.partition(": ") for header in rest)}
    return Received(line, headers, json.loads(await reader.readexactly(int(headers["content-length"]))))


def replied(status: int, body: object, *, headers: Mapping[str, str] | None = None) -> list[Piece]:
    """Return a whole answer; what is not text goes out as JSON."""
    text = body if isinstance(body, str) else json.dumps(body)
    kind = "text/plain" if isinstance(body, str) else "application/json"
    length = {"Content-Type": kind, "Content-Length": str(len(text.encode()))}
    return [_head(status, {**length, **(headers or {})}), text.encode()]


def streamed(*pieces: str | bytes | None, is_cut: bool = False) -> list[Piece]:
    """Return a stream in chunks; a cut one ends without the last chunk."""
    head = _head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
    raw = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    chunks = [None if piece is None else b"%x\r\n%s\r\n" % (len(piece), piece) for piece in raw if piece != b""]
    return [head, *chunks, *([] if is_cut else [LAST_CHUNK])]


def event(value: object) -> str:
    """Return an event of a stream."""
    return f"data: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n\n"


def said_chunk(text: str | None = None, finish: str | None = None) -> str:
    """Return an event with a piece of an answer."""
    return event({"model": "served", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def spoken(*pieces: str | None, input_tokens: int = 100, cached_tokens: int = 0) -> list[Piece]:
    """Return a whole answer as a stream, with a bill behind it; None waits until the client goes away."""
    output = sum(len(piece or "") for piece in pieces) // 4
    chunks = [None if piece is None else said_chunk(piece) for piece in pieces]
    return streamed(*chunks, said_chunk(finish="stop"), _bill(input_tokens, cached_tokens, output), event("[DONE]"))


def called(*calls: tuple[str, Mapping[str, object]], input_tokens: int = 100) -> list[Piece]:
    """Return an answer that calls tools, by name and arguments."""
    listed = [
        {
            "index": number,
            "id": f"call_{secrets.token_hex(4)}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    delta = {"role": "assistant", "tool_calls": listed}
    chunk = event({"model": "served", "choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]})
    return streamed(chunk, _bill(input_tokens, 0, 10), event("[DONE]"))


def _bill(input_tokens: int, cached_tokens: int, output_tokens: int) -> str:
    usage = {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    return event({"model": "served", "choices": [], "usage": usage})


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} -", "Connection: close", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
