"""What the programs with an HTTP server share: how they run under uvicorn, and which requests they never serve.

Any web page can send requests to a port of this machine, and can make its own name lead here. So each request must name
this server in `Host`, and no other page in `Origin`.
"""

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Literal

import uvicorn
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive

from holdfast.errors import (
    CompactionError,
    MalformedInputError,
    ModelError,
    SettingsError,
    UnknownReferenceError,
    UnknownSessionError,
)

KEEP_ALIVE_SECONDS = 120
"""Longer than clients keep idle connections, so that none is closed while a client begins to use it again."""
UNFINISHED_ANSWER = "ASGI callable returned without completing response."
"""An error for uvicorn. The gateway does it on purpose: an answer that its provider cut is passed on as cut."""
FORCED_STOP_SECONDS = 3
"""How long a second interrupt may still take, for what running answers have to store."""
COLLECTION_THRESHOLDS = 2_000, 5, 100
"""After how many new objects the collector looks for cycles; requests make thousands, and hardly any cycle.

With these a pause takes some 4 ms for 12,000 objects. The whole heap is searched after 1.2 million more.
"""
MAX_NUMBER_DIGITS = 12
"""Of a number in an address: more than any log has."""
MAX_TIME_DIGITS = 15
"""Of a time in milliseconds: more than any session has, and no more than a store can compare."""
SAFE_FETCH_SITES = frozenset({"same-origin", "none"})
MAX_OWN_BODY_BYTES = 1 << 20
"""Of a body that is for this server itself, such as a form; conversations are larger, and are not read here."""


class ShortNumberConvertor(Convertor[int]):
    """A number in a path, as `{number:short}`; longer ones than any log has are no path of ours."""

    regex = f"[0-9]{{1,{MAX_NUMBER_DIGITS}}}"

    def convert(self, value: str) -> int:
        """Return the number of a path."""
        return int(value)

    def to_string(self, value: int) -> str:
        """Return a number as it is in a path."""
        return str(value)


register_url_convertor("short", ShortNumberConvertor())


def query_number(query: Mapping[str, str], name: str) -> int | None:
    """Return a number of a query or a form, None if it has none; raises `MalformedInputError` for anything else."""
    text = query.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > MAX_NUMBER_DIGITS:
        raise MalformedInputError(name, f"must be a whole number, not {text!r:.40}")
    return int(text)


def page_cursor(text: str | None) -> tuple[int, str] | None:
    """Return where a page of sessions begins: the time and the id of the last session of the page before."""
    if not text:
        return None
    time, _, session = text.partition(":")
    is_time = time.isascii() and time.isdecimal() and len(time) <= MAX_TIME_DIGITS
    if not is_time or not session or "\0" in session:
        raise MalformedInputError("after", f"must be the `next` of the page before, not {text!r:.40}")
    return int(time), session


class AccessDeniedError(Exception):
    """Raised when a request may not be served. The client gets the status and the text."""

    def __init__(self, status: int, text: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_seconds = retry_after_seconds


def error_status(error: Exception) -> int:
    """Return the status with which an error is answered."""
    match error:
        case AccessDeniedError():
            return error.status
        case UnknownSessionError() | UnknownReferenceError():
            return 404
        case MalformedInputError() | SettingsError() | ValueError():
            return 400
        case CompactionError() | ModelError():  # a summary is all that is asked of a model here
            return 409
        case _:
            return 503


async def read_own_body(request: Request) -> bytes:
    """Return a body that is for this server itself; raises `AccessDeniedError` as soon as it is too large."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_OWN_BODY_BYTES:
            raise AccessDeniedError(413, f"the body is too large: it may have at most {MAX_OWN_BODY_BYTES:,} bytes")
    return bytes(body)


def received_again(body: bytes, receive: Receive) -> Receive:
    """Return what receives a body that was read already, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def check_source(headers: Mapping[str, str], is_own_host: Callable[[str], bool], *, name: str, hint: str = "") -> None:
    """Raise `AccessDeniedError` for a request of a web page, or one that was lured here by a foreign name.

    `is_own_host` says whether a host name in small letters, without its port, leads to this server.
    """
    host = headers.get("host", "")
    bare = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if not is_own_host(bare.lower()):
        raise AccessDeniedError(403, f"{name} is not called {host!r:.80}{hint}")
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}:
        raise AccessDeniedError(403, f"requests of the web page {origin!r:.80} are refused")
    if headers.get("sec-fetch-site", "none") not in SAFE_FETCH_SITES:
        raise AccessDeniedError(403, "requests of other web pages are refused")


def is_address(name: str) -> bool:
    """Return whether a host is given as an address, without brackets."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class AppServer(uvicorn.Server):
    """A server that tells its address once it takes requests, and ends with code 0 after a signal."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[str], None], on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop after running exchanges."""
        self._on_stop()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        # An interrupt that came before this server handles signals is raised here, where nothing has started.
        await asyncio.sleep(0)
        # What is loaded now stays for good, so the collector need not walk through it, not even once.
        gc.freeze()
        gc.set_threshold(*COLLECTION_THRESHOLDS)
        gc.enable()
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            self._announce(f"http://{_host_in_url(host)}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; after a second interrupt, cut running answers, and give the application a moment to close."""
        await super().shutdown(sockets)
        if self.force_exit:
            running = {*self.server_state.tasks}
            for task in running:
                task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(FORCED_STOP_SECONDS):
                    await asyncio.gather(*running, return_exceptions=True)
                    await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Finish what is running at the first signal; stop at once at a second interrupt."""
        numbers = [signal.SIGINT, signal.SIGTERM]
        # A terminal that is closed ends the server as SIGTERM does, unless `nohup` lets it go on.
        if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def serve_app(
    app: ASGIApp,
    *,
    name: str,
    host: str,
    port: int,
    remedy: str,
    drain_seconds: int,
    announce: Callable[[str], None],
    on_stop: Callable[[], None] = lambda: None,
) -> int:
    """Serve until a signal comes; then running exchanges have `drain_seconds` to end. Return the exit code.

    `name` is the program and `remedy` what to do about a port in use, for errors. `announce` is called with the address
    once the server takes requests, `on_stop` when it begins to stop.
    """
    config = uvicorn.Config(
        app,
        http=http_protocol(),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=drain_seconds,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_error)
    with _bound_socket(host, port, name, remedy) as bound:
        await AppServer(config, announce, on_stop).serve(sockets=[bound])
    return 0


def http_protocol() -> "type[asyncio.Protocol] | Literal['h11']":
    """Return what reads HTTP: a parser in C, where it is installed."""
    try:
        from holdfast.apps.http_protocol import HttpProtocol  # noqa: PLC0415 - an extra
    except ImportError:
        return "h11"
    return HttpProtocol


def _is_error(record: logging.LogRecord) -> bool:
    """Return whether a line of uvicorn is about an error, and not about what was cut: here, upstream or by a client."""
    is_cut = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError | ClientDisconnect)
    return record.levelno > logging.WARNING and record.msg != UNFINISHED_ANSWER and not is_cut


def _host_in_url(host: str) -> str:
    """Return a name or an address as a URL has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def _bound_socket(host: str, port: int, setting: str, remedy: str) -> socket.socket:
    """Return a socket with the address, on which the server listens once the application has started.

    Until then a connection is refused, so that a load balancer asks another server instead of waiting for this one.
    """
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        problem = f"cannot listen on {_host_in_url(host)}:{port}: {error.strerror or error}; {remedy}"
        raise SettingsError(setting, problem) from error
    return bound
