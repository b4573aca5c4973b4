"""A client of an application in this process: sends any bytes, and may leave in the middle of an answer."""

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

ADDRESS = ("127.0.0.1", 8788)
STUCK_SECONDS = 20.0


@dataclass(slots=True)
class AsgiAnswer:
    """What came back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class AsgiRequest:
    """A request, with the bytes of its path and its headers."""

    method: str
    path: str
    """With its query; characters are bytes, as Latin-1."""
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    leaves_after: int | None = None
    """After how many bytes of the answer the client leaves; None if it stays to the end."""


async def ask(app: ASGIApp, request: AsgiRequest) -> AsgiAnswer:
    """Send a request; an error that the application does not answer is raised here."""
    answer, has_left, is_sent = AsgiAnswer(), asyncio.Event(), False

    async def receive() -> Message:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": request.body, "more_body": False}
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        elif not has_left.is_set():
            answer.body += message.get("body", b"")
            answer.is_complete = not message.get("more_body", False)
        if request.leaves_after is not None and len(answer.body) >= request.leaves_after:
            has_left.set()

    async with asyncio.timeout(STUCK_SECONDS):
        await app(_scope(request), receive, send)
    return answer


def _scope(request: AsgiRequest) -> Scope:
    raw_path, _, query = request.path.partition("?")
    named = [("host", f"{ADDRESS[0]}:{ADDRESS[1]}"), ("content-type", "application/json"), *request.headers]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode("latin-1", "replace"),
        "query_string": query.encode("latin-1", "replace"),
        "root_path": "",
        "headers": [
            (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in named
        ],
        "client": ADDRESS,
        "server": ADDRESS,
        "state": {},
    }


@contextmanager
def quiet_loggers(level: int, *names: str) -> Generator[None]:
    """Let loggers say nothing below a level."""
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, own in before.items():
            logging.getLogger(name).setLevel(own)
