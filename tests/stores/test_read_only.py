"""A read-only file or folder is reported, loses nothing, and is written to again as soon as it is writable."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.apps.cli.main import main
from holdfast.errors import StoreUnavailableError
from holdfast.stores.base import IndexEntry
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import user_message

NOBODY = 65_534
FILE = "the file, its -wal or its -shm file is read-only; change their permissions, or open another file"
FOLDER = "the folder of the file is read-only; change its permissions, or open a copy of the file elsewhere"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder as a user whom permissions restrict: they do not restrict root."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-read-only-"))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(made, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield made
    if is_root:
        os.seteuid(0)
    made.chmod(0o700)
    shutil.rmtree(made)


async def kept(path: Path) -> list[str]:
    async with Session.open("s", store=f"sqlite:///{path}") as session:
        return [entry.message.text for entry in session.history.entries]


async def test_a_session_in_a_read_only_file_can_be_read_and_continues_when_the_file_is_writable(
    folder: Path,
) -> None:
    path = folder / "chats.db"
    async with Session.open("s", store=f"sqlite:///{path}") as session:
        await session.record([user_message("one")])
    path.chmod(0o400)

    async with Session.open("s", store=f"sqlite:///{path}") as session:
        assert len(session) == 1
        with pytest.raises(StoreUnavailableError) as refusal:
            await session.record([user_message("two")])
        assert (refusal.value.store, refusal.value.problem) == (str(path), FILE)
        assert len(session) == 1
        for file in folder.iterdir():
            file.chmod(0o600)
        assert await session.record([user_message("two")]) == range(1, 2)

    assert await kept(path) == ["one", "two"]


async def test_pending_texts_are_found_in_a_read_only_file(folder: Path) -> None:
    path = folder / "chats.db"
    store = SqliteStore(path)
    await store.append("s", [user_message("one")], after=0, time_ms=1, index=[IndexEntry(0, "one")])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await store.close()
    path.chmod(0o400)

    assert [hit.position for hit in await store.search("one")] == [0]
    await store.close()


async def test_a_session_in_a_read_only_folder_can_be_read_and_continues_when_the_folder_is_writable(
    folder: Path,
) -> None:
    path = folder / "chats.db"
    async with Session.open("s", store=f"sqlite:///{path}") as session:
        await session.record([user_message("one")])
    folder.chmod(0o500)

    async with Session.open("s", store=f"sqlite:///{path}", policy="cowagent") as session:
        assert [str(one["content"]) for one in await session.messages()] == ["one"]
        assert [hit.position for hit in await session.store.search("one")] == [0]
        with pytest.raises(StoreUnavailableError) as refusal:
            await session.record([user_message("two")])
        assert (refusal.value.store, refusal.value.problem) == (str(path), FOLDER)
        folder.chmod(0o700)
        assert await session.record([user_message("two")]) == range(1, 2)

    assert await kept(path) == ["one", "two"]


async def test_a_file_in_a_read_only_folder_is_read_again_when_it_has_changed(folder: Path) -> None:
    path, newer = folder / "chats.db", folder / "newer.db"
    async with Session.open("s", store=f"sqlite:///{path}") as session:
        await session.record([user_message("one")])
    shutil.copy(path, newer)
    async with Session.open("s", store=f"sqlite:///{newer}") as session:
        await session.record([user_message("two")])
    folder.chmod(0o500)
    store = SqliteStore(path)
    assert await store.length("s") == 1

    path.write_bytes(newer.read_bytes())

    assert await store.length("s") == 2
    await store.close()


async def test_records_that_only_a_writer_could_read_from_a_read_only_folder_are_reported_and_not_left_out(
    folder: Path,
) -> None:
    path = folder / "chats.db"
    async with Session.open("s", store=f"sqlite:///{path}") as session:
        await session.record([user_message("one")])
        copied = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    for file in folder.iterdir():
        file.unlink()
    for name, content in copied.items():
        (folder / name).write_bytes(content)
    folder.chmod(0o500)

    with pytest.raises(StoreUnavailableError) as refusal:
        await Session.open("s", store=f"sqlite:///{path}")
    folder.chmod(0o700)

    assert (refusal.value.store, refusal.value.problem) == (str(path), FOLDER)
    assert await kept(path) == ["one"]


def remount_read_only(disk: Path) -> None:
    subprocess.run([shutil.which("mount") or "mount", "-o", "remount,ro", str(disk)], check=True)


async def test_a_store_on_a_read_only_mount_can_be_read(new_disk: Callable[[int], Path]) -> None:
    disk = new_disk(16_000_000)
    path = disk / "chats.db"
    async with Session.open("s", store=f"sqlite:///{path}") as session:
        await session.record([user_message("one")])
    path.chmod(0o644)
    remount_read_only(disk)

    assert await kept(path) == ["one"]
    async with Session.open("s", store=f"sqlite:///{path}") as session:
        with pytest.raises(StoreUnavailableError) as refusal:
            await session.record([user_message("two")])

    assert refusal.value.problem == FOLDER


def test_a_recovery_on_a_read_only_mount_names_the_file_that_it_cannot_write(
    new_disk: Callable[[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = new_disk(16_000_000) / "chats.db"

    async def talk() -> None:
        async with Session.open("s", store=f"sqlite:///{path}") as session:
            await session.record([user_message("one")])

    asyncio.run(talk())
    remount_read_only(path.parent)

    assert main(["recover", str(path)]) == 2

    problem = "Read-only file system; choose a folder that can be written to"
    assert capsys.readouterr().err == f"holdfast: {path.with_name('chats.recovered.db')}: {problem}\n"


async def test_a_folder_in_which_no_file_can_be_created_is_reported(folder: Path) -> None:
    path = folder / "chats.db"
    folder.chmod(0o500)

    with pytest.raises(StoreUnavailableError) as refusal:
        await Session.open("s", store=f"sqlite:///{path}")

    assert (refusal.value.store, refusal.value.problem) == (str(path), "Permission denied; check the path")
