"""A full disk loses no acknowledged message, and appends succeed again once there is space."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
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


async def test_a_log_that_cannot_be_opened_on_a_full_disk_reports_it(small_disk: Path) -> None:
    url = f"sqlite:///{small_disk}/chats.db"
    async with Session.open("shared", store=url) as session:
        await session.record([user_message("one"), user_message("two")])
    fill(small_disk)

    with pytest.raises(StoreUnavailableError) as refusal:
        await recorded(url)
    os.truncate(small_disk / "rest", 0)

    assert refusal.value.problem == FULL
    assert await recorded(url) == {0: user_message("one"), 1: user_message("two")}


async def test_a_store_that_cannot_be_created_on_a_full_disk_leaves_no_partial_file(small_disk: Path) -> None:
    fill(small_disk)
    store = SqliteStore(small_disk / "chats.db")

    with pytest.raises(StoreUnavailableError) as refusal:
        await store.length("shared")
    os.truncate(small_disk / "rest", 0)

    assert refusal.value.problem == FULL
    assert await store.length("shared") == 0
    await store.close()
