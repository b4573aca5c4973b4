"""After a scrub the secret is in no file of the store, or the result says where it is and what to do."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Session
from holdfast.errors import SequenceConflictError
from holdfast.session.maintenance.scrub import TOMBSTONE, ScrubResult, scrub
from holdfast.stores import postgres
from holdfast.stores.base import Store
from holdfast.stores.encoding import pack_record
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres import POSTGRES_TABLES, PostgresStore
from holdfast.stores.sqlite import database
from holdfast.stores.sqlite.search import FullTextIndex
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.store_contract import NOW_MS

SECRET = "zqxjkvbwhunter2zqxjkvbw"
WAL = (
    "{}-wal still holds what was replaced, because another program is reading the store; when that program has "
    "finished, run this again"
)


async def talked(store: Store, secret: str = SECRET, session: str = "s") -> list[bytes]:
    """Record a secret, and return the texts that must not be on the disk after a scrub."""
    async with Session.open(session, store=store) as talk:
        await talk.record([user_message(f"the key is {secret}"), assistant_message(f"{secret}, I see")])
        await talk.record([user_message(f"again {number}") for number in range(70)])
    packed = [pack_record(stored.record) for stored in await store.read(session)]
    return [secret.encode(), secret.encode()[4:], *packed[:2]]


def found_in(folder: Path, texts: list[bytes]) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if any(text in file.read_bytes() for text in texts))


async def test_a_scrubbed_secret_is_in_no_file_of_a_sqlite_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    texts = await talked(store)
    assert found_in(tmp_path, texts) != []

    assert await scrub(store, "s", SECRET, time_ms=NOW_MS) == ScrubResult(2, (0, 1), ())

    assert found_in(tmp_path, texts) == []
    await store.close()


@given(sizes=st.lists(st.integers(1, 9_000), min_size=1, max_size=30), at=st.integers(0, 29))
@settings(max_examples=15, deadline=None)
async def test_no_page_of_a_sqlite_store_keeps_a_copy_wherever_the_secret_was(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], at: int
) -> None:
    folder = tmp_path_factory.mktemp("scrubbed")
    store = SqliteStore(folder / "a.db")
    async with Session.open("s", store=store) as talk:
        for number, size in enumerate(sizes):
            secret = SECRET if number == at % len(sizes) else ""
            await talk.record([user_message(f"{secret} {number} " + chr(97 + number % 26) * size)])
    texts = [SECRET.encode(), *(pack_record(one.record) for one in await store.read("s") if SECRET in str(one.record))]

    done = await scrub(store, "s", SECRET, time_ms=NOW_MS)
    left = found_in(folder, texts)
    await store.close()

    assert (done.count, done.remaining, left) == (1, (), [])


async def test_a_scrub_beside_an_open_reader_says_what_remains_and_is_completed_by_running_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_MS", 50)
    store = SqliteStore(tmp_path / "a.db")
    texts = await talked(store)
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM events").fetchone()[0] > 0

        done = await scrub(store, "s", SECRET, time_ms=NOW_MS)

        assert done == ScrubResult(2, (0, 1), (), (WAL.format(tmp_path / "a.db"),))
        assert "a.db-wal" in found_in(tmp_path, texts)

    assert await scrub(store, "s", SECRET, time_ms=NOW_MS) == ScrubResult(0, (), ())
    assert found_in(tmp_path, texts) == []
    await store.close()


async def test_a_scrub_that_was_killed_before_the_index_was_cleaned_is_completed_by_running_it_again(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "a.db")
    texts = await talked(store)
    await store.search(SECRET)
    with pytest.MonkeyPatch.context() as killed:
        # What an earlier version left behind when it was killed after its commit.
        killed.setattr(FullTextIndex, "optimize", leave_as_it_is)
        killed.setattr(SqliteStore, "purge", nothing)
        await scrub(store, "s", SECRET, time_ms=NOW_MS)
    await store.close()
    assert found_in(tmp_path, texts) == ["a.db"]

    again = SqliteStore(tmp_path / "a.db")
    assert await scrub(again, "s", SECRET, time_ms=NOW_MS) == ScrubResult(0, (), ())

    assert found_in(tmp_path, texts) == []
    await again.close()


def leave_as_it_is(_: FullTextIndex) -> None:
    """Do nothing."""


async def nothing(_: SqliteStore) -> tuple[str, ...]:
    return ()


async def test_the_search_index_is_cleaned_in_the_transaction_that_replaces_the_secret(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await talked(store)

    def die(_: FullTextIndex) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(FullTextIndex, "optimize", die)
        with pytest.raises(KeyboardInterrupt):
            await scrub(store, "s", SECRET, time_ms=NOW_MS)

    assert [SECRET in str(stored.record) for stored in await store.read("s")][:2] == [True, True], "all or nothing"
    await store.close()


def tables_hold(url: str, folder: Path, texts: list[bytes]) -> list[str]:
    """Return the tables whose files hold one of the texts."""
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CHECKPOINT")
        rows = owner.execute(
            "SELECT oid::regclass::text, pg_relation_filepath(oid) FROM pg_class "
            "WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'i')"
        ).fetchall()
    return sorted(name for name, path in rows if any(text in (folder / path).read_bytes() for text in texts))


async def test_a_scrubbed_secret_is_in_no_table_of_a_postgres_store(
    new_database: Callable[[], str], postgres_server: Any
) -> None:
    url = new_database()
    store = PostgresStore(url)
    texts = await talked(store)
    assert "holdfast.events" in tables_hold(url, postgres_server.pgdata, texts)

    assert await scrub(store, "s", SECRET, time_ms=NOW_MS) == ScrubResult(2, (0, 1), ())

    assert tables_hold(url, postgres_server.pgdata, texts) == []
    assert TOMBSTONE in str((await store.read("s"))[0].record)
    await store.close()


async def test_a_scrub_beside_an_open_transaction_says_what_remains_and_is_completed_by_running_it_again(
    new_database: Callable[[], str], postgres_server: Any
) -> None:
    url = new_database()
    store = PostgresStore(url)
    texts = await talked(store)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
        await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await other.execute("SELECT 1")

        done = await scrub(store, "s", SECRET, time_ms=NOW_MS)

        assert (done.count, len(done.remaining)) == (2, 1)
        assert done.remaining[0].startswith("the tables of the server still hold ")
        assert done.remaining[0].endswith(
            " replaced rows that an open transaction can see; end that transaction, and run this again"
        )
        assert tables_hold(url, postgres_server.pgdata, texts) != []

    assert await scrub(store, "s", SECRET, time_ms=NOW_MS) == ScrubResult(0, (), ())
    assert tables_hold(url, postgres_server.pgdata, texts) == []
    await store.close()


REWRITE = f"VACUUM (FULL, VERBOSE) {', '.join(POSTGRES_TABLES)}"


async def test_large_tables_are_left_to_their_owner_who_gets_the_command(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "MAX_PURGED_BYTES", 1)
    store = PostgresStore(new_database())
    await talked(store)

    assert (await scrub(store, "s", SECRET, time_ms=NOW_MS)).remaining == (
        "the tables of the server still hold what was replaced, and are too large to be rewritten while others use "
        f"them; when nobody does, run as their owner: {REWRITE}",
    )
    await store.close()


async def test_a_role_that_does_not_own_the_tables_is_told_who_can_finish(own_server: Any) -> None:
    own_server.ask_for_passwords()
    owner_store = PostgresStore(own_server.url)
    await talked(owner_store)
    await owner_store.close()
    with psycopg.connect(own_server.url, autocommit=True) as owner:
        owner.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
        owner.execute("GRANT USAGE ON SCHEMA holdfast TO guest")
        owner.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO guest")
    store = PostgresStore(own_server.url.replace("postgres:@", "guest:right@"))

    done = await scrub(store, "s", SECRET, time_ms=NOW_MS)

    assert done.remaining == (
        f"{', '.join(POSTGRES_TABLES)} of the server still hold what was replaced, because only their owner may "
        f"rewrite them; run as their owner: {REWRITE}",
    )
    await store.close()


async def go_on(store: Store, text: str) -> None:
    async with Session.open("s", store=store, clock=lambda: NOW_MS) as other:
        await other.record([user_message(text)])
        await other.prepare(200_000, encode_body=lambda request: json.dumps(request.messages).encode())


class BusyStore(MemoryStore):
    """Somebody else goes on with a session each time it is about to be rewritten."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self._texts = texts

    async def rewrite(self, session: str, *args: Any, **kwargs: Any) -> int:
        if self._texts:
            await go_on(self, self._texts.pop(0))
        return await super().rewrite(session, *args, **kwargs)


async def test_a_session_that_somebody_goes_on_with_is_scrubbed_as_one_that_rests() -> None:
    texts = ["nothing", f"and {SECRET} again " * 5_000, "nothing either", SECRET]
    busy, resting = BusyStore([*texts]), MemoryStore()
    for store in (busy, resting):
        await go_on(store, f"the key is {SECRET}")
    for text in texts:
        await go_on(resting, text)

    results = [await scrub(store, "s", SECRET, time_ms=NOW_MS) for store in (busy, resting)]

    assert results[0] == results[1] != ScrubResult(0, (), ())
    assert await busy.read("s") == await resting.read("s")
    assert SECRET not in json.dumps([stored.record for stored in await busy.read("s")])


class DeletingStore(MemoryStore):
    """Somebody deletes a session just before it is rewritten."""

    async def rewrite(self, session: str, *args: Any, **kwargs: Any) -> int:
        await self.delete(session)
        return await super().rewrite(session, *args, **kwargs)


async def test_a_session_that_is_deleted_while_it_is_scrubbed_is_reported_at_once() -> None:
    store = DeletingStore()
    await talked(store)

    with pytest.raises(SequenceConflictError) as conflict:
        await scrub(store, "s", SECRET, time_ms=NOW_MS)

    assert conflict.value.actual == 0
