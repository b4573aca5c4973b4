"""Databases whose tables of DBOS are there already, and workers that look for jobs all the time."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from benchmarks.scale.servers import Server
from benchmarks.scale.servers import new_database as made_database
from holdfast import Session
from holdfast.apps import jobs as jobs_module
from holdfast.jobs import BackgroundJobs
from tests.stores.conftest import postgres_server

__all__ = ["postgres_server"]

FAST_POLL_SECONDS = 0.05


@pytest.fixture(autouse=True)
def fast_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "JOB_POLL_SECONDS", FAST_POLL_SECONDS)
    monkeypatch.setattr(jobs_module, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(jobs_module, "UPKEEP_SECONDS", 1 << 40)  # no hour ends during a test


def prepare_database(url: str) -> None:
    """Let a worker make its tables, which takes DBOS longer than a test."""

    async def work() -> None:
        async with BackgroundJobs(url, lambda name: Session.open(name, store=url)):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_module, "JOB_POLL_SECONDS", FAST_POLL_SECONDS)
        asyncio.run(work())


@pytest.fixture(scope="session")
def prepared_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a SQLite store that has seen a worker."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare_database(f"sqlite:///{folder}/chats.db")
    return folder


@pytest.fixture
def new_file(prepared_file: Path, tmp_path: Path) -> str:
    """Return the URL of a SQLite store that has seen a worker."""
    shutil.copytree(prepared_file, tmp_path, dirs_exist_ok=True)
    return f"sqlite:///{tmp_path}/chats.db"


@pytest.fixture(scope="session")
def prepared_database(postgres_server: Server) -> str:
    """Return the URL of a database that has seen a worker."""
    url = made_database(postgres_server)
    prepare_database(url)
    return url


@pytest.fixture
def new_database(postgres_server: Server, prepared_database: str) -> Callable[[], str]:
    """Return a function that creates a database that has seen a worker, and returns its URL."""
    template = prepared_database.partition("?")[0].rpartition("/")[2]

    def make() -> str:
        url = made_database(postgres_server)
        name = url.partition("?")[0].rpartition("/")[2]
        with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}"'.encode())
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
        return url

    return make
