"""Runs the gateway under uvicorn: says when it listens, and finishes running streams before it stops."""

import logging
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from holdfast.apps.gateway.app import stop_live_streams
from holdfast.errors import SettingsError

KEEP_ALIVE_SECONDS = 120
"""Longer than clients keep idle connections, so that none is closed while a client begins to use it again."""
UNFINISHED_ANSWER = "ASGI callable returned without completing response."
"""An error for uvicorn. The gateway does it on purpose: an answer that its provider cut is passed on as cut."""


class GatewayServer(uvicorn.Server):
    """A server that prints one line once it takes requests, and ends with code 0 after a signal."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop after running exchanges."""
        self._on_stop()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.started and sockets:
            address = sockets[0].getsockname()
            host = f"[{address[0]}]" if ":" in address[0] else address[0]
            print(f"listening on http://{host}:{address[1]}", file=sys.stderr, flush=True)  # noqa: T201

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Finish what is running at the first signal; stop at once at a second interrupt."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def serve_gateway(app: Starlette, *, host: str, port: int, drain_seconds: int) -> int:
    """Serve until a signal comes; then running exchanges have `drain_seconds` to end. Return the exit code."""
    config = uvicorn.Config(
        app,
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
    server = GatewayServer(config, lambda: stop_live_streams(app))
    await server.serve(sockets=[_listening_socket(host, port)])
    return 0


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING and record.msg != UNFINISHED_ANSWER


def _listening_socket(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2_048)
    except OSError as error:
        problem = f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --port and --host"
        raise SettingsError("gateway", problem) from error
