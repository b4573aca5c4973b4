"""A full disk loses no acknowledged message, and appends succeed again once there is space."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.apps.cli.main import main
from holdfast.errors import StoreUnavailableError
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import user_message

DISK_BYTES = 2_000_000
BALLAST_BYTES = 400_000
"""The file that is removed to free space."""
MAX_FILE_BYTES = 600_000
MORE_THAN_FIT = 1_000
"""Messages."""
FULL = "the disk is full; free some space and try again"
LIMITED = (
    "the file cannot be written to: a quota or a limit is reached, or the disk fails; free some space and try again"
)


@pytest.fixture
def small_disk(new_disk: Callable[[int], Path]) -> Path:
    """Yield a small file system with some ballast on it."""
    folder = new_disk(DISK_BYTES)
    (folder / "ballast").write_bytes(bytes(BALLAST_BYTES))
    return folder


def fill(disk: Path) -> None:
    """Fill the disk completely."""
    with (disk / "rest").open("wb", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


async def recorded(url: str) -> dict[int, Any]:
    """Return every message of the log by its position, read by a new session."""
    async with Session.open("shared", store=url) as session:
        assert session.damage == []
        return dict(enumerate(await session.messages_at(0, len(session)))) if len(session) else {}


async def goes_on(writer: Any, path: Path, problem: str, make_room: Callable[[], object]) -> None:
    """Let a writer run out of space, check the log, free space, and let the same writer continue."""
    url = f"sqlite:///{path}"
    writer.go(MORE_THAN_FIT)

    assert writer.result() == {"error": "StoreUnavailableError", "problem": f"{path}: {problem}"}
    assert len(writer.acknowledged) > 5
    assert await recorded(url) == writer.acknowledged
    make_room()
    writer.go(8)
    assert writer.result() is None
    assert await recorded(url) == writer.acknowledged


async def test_a_session_on_a_full_disk_reports_it_and_continues_when_there_is_space(
    small_disk: Path, writers: Any
) -> None:
    path = small_disk / "chats.db"
    (writer,) = writers.start(f"sqlite:///{path}", "numbered")

    await goes_on(writer, path, FULL, (small_disk / "ballast").unlink)


async def test_a_session_at_a_file_size_limit_reports_it_and_continues_when_it_is_lifted(
    tmp_path: Path, writers: Any
) -> None:
    path = tmp_path / "chats.db"
    (writer,) = writers.start(f"sqlite:///{path}", "numbered", max_file_bytes=MAX_FILE_BYTES)

    await goes_on(writer, path, LIMITED, lambda: None)


async def test_a_writer_killed_on_a_full_disk_loses_nothing(small_disk: Path, writers: Any) -> None:
    url = f"sqlite:///{small_disk}/chats.db"
    (writer,) = writers.start(url, "numbered")
    writer.go(MORE_THAN_FIT)
    assert writer.result()["error"] == "StoreUnavailableError"
    writers.kill()

    (small_disk / "ballast").unlink()

    assert await recorded(url) == writer.acknowledged
    async with Session.open("shared", store=url) as session:
        length = len(session)
        assert await session.record([user_message("after")]) == range(length, length + 1)


async def test_a_log_on_a_full_disk_can_be_read_and_continues_when_there_is_space(small_disk: Path) -> None:
    url = f"sqlite:///{small_disk}/chats.db"
    async with Session.open("shared", store=url) as session:
        await session.record([user_message("one"), user_message("two")])
    fill(small_disk)

    read = await recorded(url)
    session = await Session.open("shared", store=url)
    with pytest.raises(StoreUnavailableError) as refusal:
        await session.record([user_message("three")])
    os.truncate(small_disk / "rest", 0)
    await session.record([user_message("four")])
    await session.close()

    assert read == {0: user_message("one"), 1: user_message("two")}
    assert refusal.value.problem == FULL
    assert await recorded(url) == {**read, 2: user_message("four")}


async def test_the_doctor_looks_at_the_disk_of_the_store(
    small_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    url = f"sqlite:///{small_disk}/chats.db"
    async with Session.open("shared", store=url) as session:
        await session.record([user_message("one")])
    fill(small_disk)

    code = await asyncio.to_thread(main, ["doctor", "--json", "--store", url])

    findings = json.loads(capsys.readouterr().out)
    found = {(one["what"], one["state"], one["said"]) for one in findings}
    assert code == 1
    assert {("store", "ok", f"{url} opens"), ("disk", "fail", f"0.0 GB free in {small_disk}")} <= found


async def test_a_log_of_an_older_version_on_a_full_disk_says_that_the_disk_is_full(small_disk: Path) -> None:
    path = small_disk / "chats.db"
    async with Session.open("shared", store=f"sqlite:///{path}") as session:
        await session.record([user_message("one")])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP INDEX facts_by_session")
        connection.execute("PRAGMA user_version = 2")
    fill(small_disk)

    with pytest.raises(StoreUnavailableError) as refusal:
        await recorded(f"sqlite:///{path}")
    os.truncate(small_disk / "rest", 0)

    assert refusal.value.problem == FULL
    assert await recorded(f"sqlite:///{path}") == {0: user_message("one")}


async def test_a_store_that_cannot_be_created_on_a_full_disk_leaves_no_partial_file(small_disk: Path) -> None:
    fill(small_disk)
    store = SqliteStore(small_disk / "chats.db")

    with pytest.raises(StoreUnavailableError) as refusal:
        await store.length("shared")
    os.truncate(small_disk / "rest", 0)

    assert refusal.value.problem == FULL
    assert await store.length("shared") == 0
    await store.close()
