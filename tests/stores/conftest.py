"""PostgreSQL servers and writer processes for the tests of stores."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.scale.servers import Server, started_server, stop_server
from benchmarks.scale.servers import new_database as made_database

WRITER = Path(__file__).parent / "numbered_writer.py"


@contextmanager
def hasty_server() -> Generator[Server]:
    """Start a server that does not wait for the disk: a test may kill its processes, but not the machine."""
    with started_server() as server:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """Start the server that tests share."""
    with hasty_server() as server:
        yield server


@pytest.fixture
def new_database(postgres_server: Server) -> Callable[[], str]:
    """Return a function that creates an empty database and returns its URL."""
    return lambda: made_database(postgres_server)


class OwnServer:
    """A server that a test may stop and start, with an empty database."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.url = made_database(server)
        """The URL for the user who needs no password."""
        self._name = self.url.partition("?")[0].rpartition("/")[2]

    def stop(self, mode: str = "fast") -> None:
        stop_server(self._server, mode)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def use_disk(self, folder: Path) -> None:
        """Keep the tables of the database on another disk."""
        shutil.chown(folder, self._server.system_user or os.getuid())
        self._order(f"CREATE TABLESPACE {self._name} LOCATION '{folder}'")
        self._order(f"ALTER DATABASE {self._name} SET TABLESPACE {self._name}")

    def leave(self) -> None:
        """Start the server if it is stopped, and delete everything in it."""
        self.start()
        self._order(f"DROP DATABASE {self._name} WITH (FORCE)")
        self._order(f"DROP TABLESPACE IF EXISTS {self._name}")

    def _order(self, command: str) -> None:
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(command.encode())

    def ask_for_passwords(self) -> None:
        """Require a password from everyone but the owner."""
        self.stop()
        rules = self._server.pgdata / "pg_hba.conf"
        rules.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        self.start()


@pytest.fixture(scope="module")
def stoppable_server() -> Iterator[Server]:
    """Start a second server, so that stopping it affects no other test."""
    with hasty_server() as server:
        yield server


@pytest.fixture
def own_server(stoppable_server: Server) -> Iterator[OwnServer]:
    """Yield a running server, and leave it running."""
    own = OwnServer(stoppable_server)
    yield own
    own.leave()


@pytest.fixture
def new_disk() -> Iterator[Callable[[int], Path]]:
    """Return a function that mounts an empty file system of a given size."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if mount is None or unmount is None:
        pytest.skip("there is no mount here to make a small disk with")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-disk-"))

    def make(max_bytes: int) -> Path:
        command = [mount, "-t", "tmpfs", "-o", f"size={max_bytes}", "tmpfs", str(folder)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"only root on Linux may mount a small disk: {done.stderr.partition(chr(10))[0]}")
        return folder

    yield make
    subprocess.run([unmount, "-l", str(folder)], check=False, capture_output=True)
    folder.rmdir()


class Writer:
    """A process that records numbered messages; see `numbered_writer.py`."""

    def __init__(self, talk: socket.socket) -> None:
        self._talk = talk.makefile("rw")
        self._expected = 0
        self.acknowledged: dict[int, Any] = {}
        """Messages by the position they were acknowledged at."""
        assert self._told() == "ready"

    def _told(self) -> Any:
        return json.loads(self._talk.readline())

    def go(self, count: int) -> None:
        """Let it record a number of messages."""
        self._talk.write(f"{count}\n")
        self._talk.flush()
        self._expected = count

    def result(self) -> Any:
        """Wait until it is done, and return the error that stopped it, or None."""
        for _ in range(self._expected):
            told = self._told()
            if "error" in told:
                return told
            assert told["position"] not in self.acknowledged
            self.acknowledged[told["position"]] = told["message"]
        return None


class Writers:
    """Starts writer processes, and kills them."""

    def __init__(self) -> None:
        self._running = ExitStack()

    def start(self, url: str, *names: str, max_file_bytes: int = 0) -> list[Writer]:
        """Start one process for each name; all of them have opened the session when this returns."""
        pairs = [socket.socketpair() for _ in names]
        writers = [f"{name}={theirs.fileno()}" for name, (_, theirs) in zip(names, pairs, strict=True)]
        process = subprocess.Popen(
            [sys.executable, str(WRITER), url, str(max_file_bytes), *writers],
            pass_fds=[theirs.fileno() for _, theirs in pairs],
            start_new_session=True,
        )
        self._running.callback(process.wait)
        self._running.callback(os.killpg, process.pid, signal.SIGKILL)
        for ours, theirs in pairs:
            theirs.close()
            self._running.enter_context(ours)
        return [Writer(ours) for ours, _ in pairs]

    def kill(self) -> None:
        """Kill every process."""
        self._running.close()


@pytest.fixture
def writers() -> Iterator[Writers]:
    """Yield what starts writer processes."""
    started = Writers()
    yield started
    started.kill()
