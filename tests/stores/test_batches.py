"""Appends of many sessions are written together, and each has its own result."""

import asyncio
import random
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import cast, get_args

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Session
from holdfast.errors import StoreUnavailableError
from holdfast.stores import postgres
from holdfast.stores.appends import MAX_BATCH, Append
from holdfast.stores.base import IndexEntry
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import database
from holdfast.stores.sqlite import store as store_module
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import user_message
from holdfast.testing.store_contract import (
    NOW_MS,
    AppendKind,
    PlannedAppend,
    check_concurrent_appends,
    message_record,
)

PLANS = st.lists(
    st.builds(
        PlannedAppend,
        session=st.sampled_from(["a", "b", "c", "d"]),
        kind=st.sampled_from(get_args(AppendKind)),
        cancelled_after=st.none() | st.integers(0, 3),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=25)
@given(rounds=st.lists(PLANS, min_size=1, max_size=3))
def test_each_append_of_any_batch_has_its_own_result(rounds: list[list[PlannedAppend]]) -> None:
    async def run(folder: str) -> None:
        store = SqliteStore(Path(folder) / "a.db")
        for plans in rounds:
            await check_concurrent_appends(store, plans)
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(folder))


@pytest.fixture
async def sqlite_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "a.db")
    yield store
    await store.close()


async def append_to(count: int, store: SqliteStore | PostgresStore, after: int) -> list[int]:
    appends = (
        store.append(f"s{number}", [message_record(str(number))], after=after, time_ms=NOW_MS)
        for number in range(count)
    )
    return await asyncio.gather(*appends)


async def append_to_fifty(store: SqliteStore | PostgresStore, after: int) -> list[int]:
    return await append_to(50, store, after)


async def test_more_appends_than_one_batch_holds_are_all_written(
    sqlite_store: SqliteStore, new_database: Callable[[], str]
) -> None:
    count, shared = MAX_BATCH + 20, PostgresStore(new_database())
    for store in (sqlite_store, shared):
        assert await append_to(count, store, 0) == [1] * count
        assert len(await store.sessions(limit=2 * count)) == count
    await shared.close()


async def append_while_busy(store: SqliteStore) -> list[int]:
    """Append to fifty sessions while the thread of a store is at work, so that it writes all of them at once."""
    gate, loop = asyncio.Event(), asyncio.get_running_loop()
    holding = asyncio.ensure_future(
        store.run_in_thread(lambda _: asyncio.run_coroutine_threadsafe(gate.wait(), loop).result())
    )
    appending = asyncio.ensure_future(append_to_fifty(store, 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gate.set()
    await holding
    return await appending


async def test_sqlite_writes_appends_that_wait_together_in_one_transaction(sqlite_store: SqliteStore) -> None:
    statements: list[str] = []
    await sqlite_store.run_in_thread(lambda opened: opened._connection.set_trace_callback(statements.append))

    assert await append_while_busy(sqlite_store) == [1] * 50
    assert statements.count("BEGIN IMMEDIATE") == 1
    assert [len(await sqlite_store.read(f"s{number}")) for number in range(50)] == [1] * 50


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs to know what this process has written")
async def test_sqlite_writes_each_page_of_a_batch_once(sqlite_store: SqliteStore) -> None:
    def written() -> int:
        return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])

    text = "".join(random.Random(1).choices("0123456789abcdef", k=5_000))  # pages of its own for each session
    first, more = [message_record(text)], [message_record("more")]
    names = [f"{number}-{text[:1_500]}" for number in range(100)]
    appends = [Append.of(name, first, after=0, time_ms=NOW_MS) for name in names]
    again = [Append.of(name, more, after=1, time_ms=NOW_MS + 1) for name in names]
    await sqlite_store.run_in_thread(lambda database: database.append_batch(appends))
    await sqlite_store.close()
    await sqlite_store.length(names[0])
    before = written()

    await sqlite_store.run_in_thread(lambda database: database.append_batch(again))

    log_bytes = sqlite_store.path.with_name("a.db-wal").stat().st_size
    assert log_bytes > 200 * 4_096
    assert written() - before < 1.1 * log_bytes


async def test_after_a_write_of_several_sqlite_waits_for_all_tasks_that_are_ready(sqlite_store: SqliteStore) -> None:
    statements: list[str] = []
    await append_while_busy(sqlite_store)
    await sqlite_store.run_in_thread(lambda opened: opened._connection.set_trace_callback(statements.append))

    assert await append_to_fifty(sqlite_store, 1) == [2] * 50
    assert statements.count("BEGIN IMMEDIATE") == 1


def test_a_loop_that_ends_before_its_write_leaves_the_store_usable(tmp_path: Path) -> None:
    store, ended = SqliteStore(tmp_path / "a.db"), asyncio.new_event_loop()
    ended.run_until_complete(append_while_busy(store))
    unfinished = store.append("a", [message_record("a")], after=0, time_ms=NOW_MS)
    ended.call_soon(lambda: unfinished.send(None))
    ended.call_soon(ended.stop)
    ended.run_forever()
    ended.close()
    unfinished.close()

    async def append_and_close() -> int:
        length = await store.append("b", [message_record("b")], after=0, time_ms=NOW_MS)
        await store.close()
        return length

    assert asyncio.run(append_and_close()) == 1


class WatchedWrites:
    """The sessions of each batch that PostgreSQL is asked to write; those of `held` wait until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held: str = "") -> None:
        self.batches: list[list[str]] = []
        self.began, self.released = asyncio.Event(), asyncio.Event()
        write_batch = postgres._BatchWriter._write_batch

        async def watched(writer: postgres._BatchWriter, batch: list[Append]) -> list[bool | StoreUnavailableError]:
            self.batches.append([item.session for item in batch])
            self.began.set()
            if held in self.batches[-1]:
                await self.released.wait()
            return await write_batch(writer, batch)

        monkeypatch.setattr(postgres._BatchWriter, "_write_batch", watched)


async def test_postgres_writes_appends_that_wait_together_in_two_statements_at_most(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, watched = PostgresStore(new_database()), WatchedWrites(monkeypatch)

    assert await append_to_fifty(store, 0) == [1] * 50
    assert await append_to(20, store, 1) == [2] * 20

    assert [len(batch) for batch in watched.batches] == [32, 18, 20]
    await store.close()


async def test_postgres_writes_an_append_while_it_still_writes_another_batch(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, watched = PostgresStore(new_database()), WatchedWrites(monkeypatch, held="slow")

    slow = asyncio.ensure_future(store.append("slow", [message_record("1")], after=0, time_ms=NOW_MS))
    await watched.began.wait()

    assert await store.append("quick", [message_record("1")], after=0, time_ms=NOW_MS) == 1
    assert watched.batches == [["slow"], ["quick"]]
    watched.released.set()
    assert await slow == 1
    await store.close()


async def test_the_next_append_of_a_session_waits_for_the_one_that_postgres_is_writing(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, watched = PostgresStore(new_database()), WatchedWrites(monkeypatch, held="slow")

    first = asyncio.ensure_future(store.append("slow", [message_record("1")], after=0, time_ms=NOW_MS))
    await watched.began.wait()
    second = asyncio.ensure_future(store.append("slow", [message_record("2")], after=1, time_ms=NOW_MS))
    assert await store.append("quick", [message_record("1")], after=0, time_ms=NOW_MS) == 1
    watched.released.set()

    assert await asyncio.gather(first, second) == [1, 2]
    assert watched.batches == [["slow"], ["quick"], ["slow"]]
    await store.close()


async def test_an_append_is_written_that_comes_when_two_batches_end_in_the_same_moment(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, written, may_end = PostgresStore(new_database()), asyncio.Queue[list[str]](), asyncio.Event()
    write_batch = postgres._BatchWriter._write_batch

    async def ends_later(writer: postgres._BatchWriter, batch: list[Append]) -> list[bool | StoreUnavailableError]:
        results = await write_batch(writer, batch)
        written.put_nowait([item.session for item in batch])
        await may_end.wait()
        return results

    monkeypatch.setattr(postgres._BatchWriter, "_write_batch", ends_later)

    async def append_twice() -> int:
        await store.append("a", [message_record("1")], after=0, time_ms=NOW_MS)
        return await store.append("a", [message_record("2")], after=1, time_ms=NOW_MS)

    twice = asyncio.ensure_future(append_twice())
    assert await written.get() == ["a"]
    once = asyncio.ensure_future(store.append("b", [message_record("1")], after=0, time_ms=NOW_MS))
    assert await written.get() == ["b"]
    may_end.set()

    assert await asyncio.gather(twice, once) == [2, 1]
    await store.close()


async def test_a_message_whose_caller_gave_up_is_stored_once_if_it_is_recorded_again_at_once(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(new_database())
    session = await Session.open("slow", store=store)
    await session.record([user_message("hello")])
    watched = WatchedWrites(monkeypatch, held="slow")

    first = asyncio.ensure_future(session.record([user_message("answer me")]))
    await watched.began.wait()
    first.cancel()
    await asyncio.wait({first})
    second = asyncio.ensure_future(session.record([user_message("answer me")]))
    while not (writer := store._writers[asyncio.get_running_loop()])._waiting:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)
    watched.released.set()

    assert await second == range(1, 2)
    assert await session.messages() == [user_message("hello"), user_message("answer me")]
    assert writer._in_flight == set()
    await session.close()
    await store.close()


@pytest.mark.parametrize("texts", [["?!"], ["?!", ""], ["one", "?!"], ["", "two words"], ["a\nb", "c"]])
@pytest.mark.parametrize("is_new", [True, False])
async def test_texts_with_and_without_words_are_written_together(
    new_database: Callable[[], str],
    texts: list[str],
    is_new: bool,  # noqa: FBT001
) -> None:
    store = PostgresStore(new_database())
    start = 0 if is_new else await store.append("s", [message_record("before")], after=0, time_ms=NOW_MS)
    records, index = [*map(message_record, texts)], [IndexEntry(start + at, text) for at, text in enumerate(texts)]

    assert await store.append("s", records, after=start, time_ms=NOW_MS, index=index) == start + len(texts)

    assert [stored.record for stored in await store.read("s", start=start)] == records
    found = {word: [hit.position - start for hit in await store.search(word)] for word in ("one", "two", "b", "c")}
    said = {word: [at for at, text in enumerate(texts) if word in text.split()] for word in ("one", "two", "b", "c")}
    assert found == said
    await store.close()


async def test_an_append_that_the_database_rejects_fails_alone_on_sqlite(sqlite_store: SqliteStore) -> None:
    await append_to_fifty(sqlite_store, 0)
    with closing(sqlite3.connect(sqlite_store.path)) as owner:
        owner.execute(
            "CREATE TRIGGER rejects BEFORE INSERT ON events WHEN NEW.id >> 32 = (SELECT id FROM sessions WHERE "
            "name_id = 's7') BEGIN SELECT RAISE(ABORT, 'rejected'); END"
        )
        owner.commit()

    results = await asyncio.gather(
        *(sqlite_store.append(f"s{n}", [message_record("x")], after=1, time_ms=NOW_MS) for n in range(50)),
        return_exceptions=True,
    )

    assert [n for n, result in enumerate(results) if result != 2] == [7]
    assert str(results[7]) == f"{sqlite_store.path}: SQLite says: rejected"
    assert [await sqlite_store.length(f"s{n}") for n in (6, 7, 8)] == [2, 1, 2]


REJECTS = """
    CREATE FUNCTION holdfast.rejects() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.session = (SELECT number FROM holdfast.sessions WHERE id = 's7') THEN
            RAISE EXCEPTION 'rejected';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER rejects BEFORE INSERT ON holdfast.events FOR EACH ROW EXECUTE FUNCTION holdfast.rejects();
"""


async def test_an_append_that_the_database_rejects_fails_alone_on_postgres(new_database: Callable[[], str]) -> None:
    url = new_database()
    store = PostgresStore(url)
    await append_to_fifty(store, 0)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(REJECTS.encode())

    results = await asyncio.gather(
        *(store.append(f"s{n}", [message_record("x")], after=1, time_ms=NOW_MS) for n in range(50)),
        return_exceptions=True,
    )

    assert [n for n, result in enumerate(results) if result != 2] == [7]
    assert str(results[7]) == "postgresql: the server says: rejected"
    assert [await store.length(f"s{n}") for n in (6, 7, 8)] == [2, 1, 2]
    await store.close()


async def test_an_append_with_a_text_that_is_none_fails_alone(
    sqlite_store: SqliteStore, new_database: Callable[[], str]
) -> None:
    shared = PostgresStore(new_database())
    for store in (sqlite_store, shared):
        await append_to(3, store, 0)
        results = await asyncio.gather(
            *(
                store.append(
                    f"s{n}",
                    [message_record("x")],
                    after=1,
                    time_ms=NOW_MS,
                    index=[IndexEntry(0, cast("str", b"bytes") if n == 1 else "text")],
                )
                for n in range(3)
            ),
            return_exceptions=True,
        )

        assert [
            result if isinstance(result, int) else type(result) in {TypeError, AttributeError} for result in results
        ] == [2, True, 2]
        assert [await store.length(f"s{n}") for n in range(3)] == [2, 1, 2]
    await shared.close()


async def test_a_session_that_another_program_has_locked_does_not_delay_the_others(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    store = PostgresStore(url)
    await append_to_fifty(store, 0)
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("SELECT 1 FROM holdfast.sessions WHERE id = 's7' FOR UPDATE")
        tasks = [
            asyncio.ensure_future(store.append(f"s{n}", [message_record("x")], after=1, time_ms=NOW_MS))
            for n in range(50)
        ]
        async with asyncio.timeout(30):
            done = await asyncio.gather(*(task for n, task in enumerate(tasks) if n != 7))
        assert (done, tasks[7].done()) == ([2] * 49, False)

    assert await tasks[7] == 2
    await store.close()


async def test_appends_to_a_locked_file_fail_together_and_not_one_after_another(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_MS", 50)
    await append_to_fifty(sqlite_store, 0)
    statements: list[str] = []
    await sqlite_store.run_in_thread(lambda opened: opened._connection.set_trace_callback(statements.append))
    with closing(sqlite3.connect(sqlite_store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        results = await asyncio.gather(
            *(sqlite_store.append(f"s{n}", [message_record("x")], after=1, time_ms=NOW_MS) for n in range(50)),
            return_exceptions=True,
        )
        other.execute("ROLLBACK")

    assert {str(result) for result in results} == {
        f"{sqlite_store.path}: another process has locked the file; try again later"
    }
    assert len({id(result) for result in results}) == 50
    assert statements.count("BEGIN IMMEDIATE") <= 3
    assert await append_to_fifty(sqlite_store, 1) == [2] * 50


async def test_more_appends_than_one_batch_holds_are_written_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_BATCH", 2)
    store = SqliteStore(tmp_path / "a.db")
    appends = [store.append(f"s{n}", [message_record(str(n))], after=0, time_ms=NOW_MS) for n in range(7)]

    lengths = await asyncio.gather(*appends)

    assert lengths == [1] * 7
    assert [len(await store.read(f"s{number}")) for number in range(7)] == [1] * 7
    await store.close()
