"""A local HTTP endpoint that answers from a script, byte by byte.

Only a real connection shows how a client handles a broken stream; this one breaks where the script says.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from holdfast.testing.chat import JsonMessage

ResponsePiece: TypeAlias = bytes | None
"""Bytes to send at once; None waits until the client disconnects."""
LOOPBACK_HOST = "127.0.0.1"
LAST_CHUNK = b"0\r\n\r\n"
SETTLING_ROUNDS = 10
"""Event-loop ticks in which a connection that was just accepted gets its task, which is then cancelled."""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request that the endpoint received."""

    line: str
    headers: Mapping[str, str]
    """The names are in lower case."""
    body: JsonMessage


@dataclass(slots=True)
class ScriptedEndpoint:
    """Answers each request with the next reply, then closes the connection."""

    replies: Sequence[Sequence[ResponsePiece]] | Callable[[ReceivedRequest], Sequence[ResponsePiece]]
    """A sequence, or a function of the request."""
    requests: list[ReceivedRequest] = field(default_factory=list[ReceivedRequest])
    url: str = ""
    request_received: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has arrived."""
    client_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has disconnected from an endless reply."""
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Future[None]] = field(default_factory=set[asyncio.Future[None]])

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK_HOST, 0)
        self.url = f"http://{LOOPBACK_HOST}:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening, and close all connections."""
        if self._server:
            # A server that closes while it accepts leaves that connection open, so first stop accepting.
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            for _turn in range(SETTLING_ROUNDS):
                await asyncio.sleep(0)
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._answer(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A client may disconnect at any time, even before it sends anything.
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await task

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            self.requests.append(request)
            self.request_received.set()
            for piece in self.replies(request) if callable(self.replies) else self.replies[len(self.requests) - 1]:
                if piece is None:
                    await reader.read()
                    self.client_left.set()
                    break
                writer.write(piece)
                await writer.drain()
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (header.partition(": ") for header in rest)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(line, headers, json.loads(body or "{}"))


def http_response(status: int, body: object, *, headers: Mapping[str, str] | None = None) -> list[ResponsePiece]:
    """Return a whole response; a body that is not text is sent as JSON."""
    text = body if isinstance(body, str) else json.dumps(body)
    kind = "text/plain" if isinstance(body, str) else "application/json"
    length = {"Content-Type": kind, "Content-Length": str(len(text.encode()))}
    return [_head(status, {**length, **(headers or {})}), text.encode()]


def stream_response(*pieces: str | bytes | None, is_cut: bool = False) -> list[ResponsePiece]:
    """Return a chunked stream; a cut one ends without the last chunk."""
    head = _head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
    raw = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    chunks = [None if piece is None else b"%x\r\n%s\r\n" % (len(piece), piece) for piece in raw if piece != b""]
    return [head, *chunks, *([] if is_cut else [LAST_CHUNK])]


def sse_event(value: object) -> str:
    """Return an event of a stream."""
    return f"data: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n\n"


def text_chunk(text: str | None = None, finish: str | None = None) -> str:
    """Return an event with a piece of a reply."""
    return sse_event(
        {"model": "served", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}
    )


def text_stream(*pieces: str | None, input_tokens: int = 100, cached_tokens: int = 0) -> list[ResponsePiece]:
    """Return a whole reply as a stream, followed by its usage; None waits until the client disconnects."""
    output = sum(len(piece or "") for piece in pieces) // 4
    chunks = [None if piece is None else text_chunk(piece) for piece in pieces]
    return stream_response(
        *chunks, text_chunk(finish="stop"), _usage_chunk(input_tokens, cached_tokens, output), sse_event("[DONE]")
    )


def tool_call_stream(*calls: tuple[str, Mapping[str, object]], input_tokens: int = 100) -> list[ResponsePiece]:
    """Return a reply that calls tools, by name and arguments."""
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
    chunk = sse_event({"model": "served", "choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]})
    return stream_response(chunk, _usage_chunk(input_tokens, 0, 10), sse_event("[DONE]"))


def _usage_chunk(input_tokens: int, cached_tokens: int, output_tokens: int) -> str:
    usage = {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    return sse_event({"model": "served", "choices": [], "usage": usage})


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} -", "Connection: close", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
