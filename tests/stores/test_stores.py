"""The memory and SQLite stores keep the contract, and their errors say what is wrong."""

import asyncio
import hashlib
import os
import pickle
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from holdfast.errors import DamagedStoreError, SettingsError, StoreUnavailableError
from holdfast.stores.base import IndexEntry, Store
from holdfast.stores.memory import HASHED_AT_ONCE, INDEXED_AT_ONCE, MemoryStore
from holdfast.stores.open import open_store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.store_contract import NOW_MS, StoreContract, message_record


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


class TestSqlite(StoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(tmp_path / "chats" / "chats.db")
        yield store
        await store.close()

    async def reopen(self, store: Store) -> Store:
        assert isinstance(store, SqliteStore)
        return SqliteStore(store.path)


async def test_the_event_loop_goes_on_while_a_large_blob_is_put_into_memory() -> None:
    content = b"boats " * 500_000
    putting = asyncio.ensure_future(MemoryStore().put_blob(content))
    steps = 0
    while not putting.done():
        await asyncio.sleep(0)
        steps += 1

    assert putting.result() == hashlib.sha256(content).hexdigest()
    assert steps == len(content) // HASHED_AT_ONCE


async def test_the_event_loop_goes_on_while_a_search_adds_many_texts_to_the_words_in_memory() -> None:
    text = "boats and harbors " * 100
    store, count = MemoryStore(), 40
    index = [IndexEntry(position, text) for position in range(count)]
    await store.append("s", [message_record(text)] * count, after=0, time_ms=NOW_MS, index=index)

    searching = asyncio.ensure_future(store.search("harbor", limit=count))
    steps = 0
    while not searching.done():
        await asyncio.sleep(0)
        steps += 1

    assert [hit.position for hit in searching.result()] == [*reversed(range(count))]
    assert steps > count * len(text) // INDEXED_AT_ONCE // 2


async def test_no_word_of_a_text_that_was_replaced_stays_in_memory() -> None:
    store = MemoryStore()
    index = [IndexEntry(0, "the password is swordfish7"), IndexEntry(1, "the harbor")]
    await store.append("s", [message_record("old"), message_record("kept")], after=0, time_ms=NOW_MS, index=index)
    found = await store.search("swordfish7")
    new = message_record("new")
    await store.rewrite(
        "s", {0: new}, tombstone=message_record("t"), after=2, time_ms=NOW_MS, index=[IndexEntry(0, "the password is")]
    )

    held = pickle.dumps(store)
    after = [await store.search(word) for word in ("swordfish7", "password", "the")]

    assert (len(found), b"swordfish7" in held, [len(hits) for hits in after]) == (1, False, [0, 1, 2])
    assert b"swordfish7" not in pickle.dumps(store)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "chats.db"


async def test_only_the_owner_can_read_the_file(path: Path) -> None:
    store = SqliteStore(path)
    await store.append("s", [message_record("secret")], after=0, time_ms=NOW_MS)

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in [path.parent, *path.parent.iterdir()]}
    await store.close()

    assert modes.pop("deep") == 0o700
    assert set(modes.values()) == {0o600}


async def test_a_file_that_others_can_read_is_made_private(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o644)
    store = SqliteStore(path)
    await store.length("s")
    await store.close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_damaged_file_is_reported(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 100)
    store = SqliteStore(path)

    with pytest.raises(DamagedStoreError, match=r"chats\.db is damaged .*holdfast recover"):
        await store.length("s")


async def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"it is a folder; name a file in it$"):
        await SqliteStore(tmp_path).length("s")


async def test_a_file_of_a_newer_version_is_rejected(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(StoreUnavailableError, match="written by a newer Holdfast; update Holdfast"):
        await SqliteStore(path).length("s")


async def test_an_impossible_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(StoreUnavailableError, match="check the path"):
        await SqliteStore(tmp_path / "file" / "chats.db").length("s")


async def test_a_full_disk_leaves_the_log_unchanged(path: Path) -> None:
    store = SqliteStore(path, max_bytes=200_000)
    await store.append("s", [message_record("kept")], after=0, time_ms=NOW_MS)

    with pytest.raises(StoreUnavailableError, match="the disk is full; free some space and try again"):
        await store.append("s", [{"noise": os.urandom(400_000).hex()}], after=1, time_ms=NOW_MS)

    assert [stored.record for stored in await store.read("s")] == [message_record("kept")]
    assert await store.append("s", [message_record("small")], after=1, time_ms=NOW_MS) == 2
    await store.close()


@pytest.mark.parametrize("becomes", ["removed", "replaced"])
async def test_no_append_to_a_removed_or_replaced_file_is_acknowledged(path: Path, becomes: str) -> None:
    store, elsewhere = SqliteStore(path), path.with_name("elsewhere.db")
    await store.append("s", [message_record("one")], after=0, time_ms=NOW_MS)
    path.rename(elsewhere)
    if becomes == "replaced":
        path.write_bytes(elsewhere.read_bytes())

    for attempt in (
        store.append("s", [message_record("lost")], after=1, time_ms=NOW_MS),
        store.put_blob(b"x"),
        store.read("s"),
    ):
        with pytest.raises(StoreUnavailableError, match="removed or replaced while it was open; put it back, or close"):
            await attempt
    elsewhere.rename(path)

    assert await store.append("s", [message_record("two")], after=1, time_ms=NOW_MS) == 2
    assert [stored.record for stored in await store.read("s")] == [message_record("one"), message_record("two")]
    await store.close()


async def test_a_closed_store_creates_its_removed_file_again(path: Path) -> None:
    store = SqliteStore(path)
    await store.append("s", [message_record("one")], after=0, time_ms=NOW_MS)
    await store.close()
    path.unlink()

    assert await store.append("s", [message_record("new")], after=0, time_ms=NOW_MS) == 1
    await store.close()


async def test_nothing_of_a_deleted_session_is_left_in_the_file(path: Path) -> None:
    store = SqliteStore(path)
    secret = "correcthorsebatterystaple"
    await store.append("s", [message_record(secret)], after=0, time_ms=NOW_MS, index=[IndexEntry(0, secret)])
    await store.append("t", [message_record("other")], after=0, time_ms=NOW_MS, index=[IndexEntry(0, "other")])

    await store.delete("s")
    await store.close()

    assert all(secret.encode() not in file.read_bytes() for file in path.parent.iterdir())


@pytest.mark.parametrize("name", ["a#1.db", "a?2.db", "a b%.db"])
def test_every_character_of_a_sqlite_url_belongs_to_the_file_name(tmp_path: Path, name: str) -> None:
    relative, absolute = open_store(f"sqlite:///{quote(name, safe='#?')}"), open_store(f"sqlite:///{tmp_path}/{name}")

    assert isinstance(relative, SqliteStore)
    assert isinstance(absolute, SqliteStore)
    assert (relative.path, absolute.path) == (Path(name), tmp_path / name)


def test_a_query_of_a_sqlite_url_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / "b.db?mode=ro").touch()

    opened = [open_store(f"sqlite:///{tmp_path}/{name}") for name in ("b.db?mode=ro", "a.db%3Fmode=ro")]
    with pytest.raises(SettingsError) as wrong:
        open_store(f"sqlite:///{tmp_path}/a.db?mode=ro")

    assert [one.path.name for one in opened if isinstance(one, SqliteStore)] == ["b.db?mode=ro", "a.db?mode=ro"]
    assert str(wrong.value) == (
        "store: ?mode=ro would be a part of the file's name; leave it out, or write %3F for the question mark"
    )


def test_a_sqlite_url_that_others_use_for_memory_makes_no_file() -> None:
    with pytest.raises(SettingsError, match="store: sqlite:///:memory: would be a file; memory:// keeps"):
        open_store("sqlite:///:memory:")


@pytest.mark.parametrize(
    "tables",
    [
        "CREATE TABLE users (name)",
        "CREATE TABLE users (name); PRAGMA user_version = 3",
        "CREATE TABLE users (name); PRAGMA user_version = 77",
        "CREATE TABLE sessions (id); CREATE TABLE events (id); CREATE TABLE blobs (id)",
    ],
)
async def test_the_database_of_another_program_is_refused_and_not_changed(tables: str, tmp_path: Path) -> None:
    path = tmp_path / "places.db"
    connection = sqlite3.connect(path)
    connection.executescript(tables)
    connection.close()
    path.chmod(0o644)
    before = path.read_bytes()
    store = SqliteStore(path)

    with pytest.raises(StoreUnavailableError, match="it is the database of another program; choose another file"):
        await store.length("s")
    await store.close()

    assert ([*tmp_path.iterdir()], path.read_bytes()) == ([path], before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


async def test_a_file_that_is_no_database_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0:root:/root:/bin/bash\n")
    path.chmod(0o644)
    store = SqliteStore(path)

    with pytest.raises(DamagedStoreError, match="file is not a database"):
        await store.length("s")
    await store.close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o644


async def test_a_store_that_others_could_read_becomes_private_with_the_files_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    first = SqliteStore(path)
    await first.put_value("a", {})
    path.chmod(0o644)
    store = SqliteStore(path)
    await store.put_value("b", {})

    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    await store.close()
    await first.close()
    assert modes == {"chats.db": 0o600, "chats.db-wal": 0o600, "chats.db-shm": 0o600}


def test_a_sqlite_url_with_a_nul_is_refused() -> None:
    with pytest.raises(SettingsError, match="store: sqlite:/// needs the path of a file"):
        open_store("sqlite:///a\0b")
