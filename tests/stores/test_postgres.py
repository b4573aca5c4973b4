"""The PostgreSQL store keeps the contract, and its errors say what is wrong."""

import asyncio
import random
import select
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from holdfast.errors import SettingsError, StoreUnavailableError
from holdfast.stores import postgres_pool
from holdfast.stores.base import IndexEntry, Store
from holdfast.stores.open import open_store
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres_pool import Cursor, PostgresPool, as_postgres_store_error
from holdfast.testing.store_contract import NOW_MS, StoreContract, message_record
from tests.stores.concurrent_writers import write_at_once


class TestPostgres(StoreContract):
    @pytest.fixture
    async def store(self, new_database: Callable[[], str]) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(new_database())
        yield store
        await store.close()

    async def reopen(self, store: Store) -> Store:
        assert isinstance(store, PostgresStore)
        return PostgresStore(store.url)


async def test_ten_writers_neither_lose_nor_repeat_a_message(new_database: Callable[[], str]) -> None:
    url = new_database()
    stores = [PostgresStore(url) for _ in range(10)]

    texts = await write_at_once(stores)

    assert len(texts) == len(set(texts)) == 100
    for number in range(10):
        own = [text for text in texts if f"'{number}-" in text]
        assert own == [str(message_record(f"{number}-{turn}")) for turn in range(10)]


async def test_only_the_first_connection_looks_for_the_indexes(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, look = list[list[str]](), postgres_pool.missing_indexes

    async def noted(connection: Any) -> list[str]:
        looked.append(await look(connection))
        return looked[-1]

    monkeypatch.setattr(postgres_pool, "missing_indexes", noted)
    store = PostgresStore(new_database())
    await store.length("a")

    await asyncio.gather(*(store.length("a") for _ in range(4)))

    assert looked == [[]]
    await store.close()


async def test_a_database_that_was_made_anew_gets_its_tables(own_server: Any) -> None:
    store = PostgresStore(own_server.url)
    await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
    with psycopg.connect(own_server.url, autocommit=True) as owner:
        owner.execute("DROP SCHEMA holdfast CASCADE")
        owner.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'holdfast'"
        )

    assert await store.append("s", [message_record("b")], after=0, time_ms=NOW_MS) == 1
    with psycopg.connect(own_server.url) as owner:
        indexes = {name for (name,) in owner.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'holdfast'")}
        kept = owner.execute("SELECT reloptions FROM pg_class WHERE relname = 'words_by_body'").fetchone()
    assert indexes >= {*postgres_pool.POSTGRES_INDEXES}
    assert kept == (["gin_pending_list_limit=256"],)
    await store.close()


async def test_connections_that_the_server_ended_while_idle_are_replaced(new_database: Callable[[], str]) -> None:
    url = new_database()
    store = PostgresStore(url)
    await asyncio.gather(*(store.append(f"s{n}", [message_record("a")], after=0, time_ms=NOW_MS) for n in range(3)))
    await asyncio.gather(*(store.length(f"s{n}") for n in range(3)))
    with psycopg.connect(url, autocommit=True) as other:
        ended = other.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE application_name = 'holdfast' AND datname = current_database()"
        ).fetchall()
    assert len(ended) > 1

    assert await store.append("s0", [message_record("b")], after=1, time_ms=NOW_MS) == 2
    assert await asyncio.gather(*(store.length(f"s{n}") for n in range(3))) == [2, 1, 1]
    await store.close()


async def test_a_statement_that_finds_its_connection_ended_for_being_idle_runs_on_another(
    new_database: Callable[[], str],
) -> None:
    pool, processes = PostgresPool(new_database()), list[int]()

    async def read(cursor: Cursor) -> object:
        processes.append(cursor.connection.info.backend_pid)
        if len(processes) == 1:
            # If it were over before this answer is read, the driver would take the server's reason for a notice.
            await cursor.execute("SET idle_session_timeout = 500")
            ended = select.poll()
            ended.register(cursor.connection.pgconn.socket, select.POLLHUP)
            assert await asyncio.to_thread(ended.poll, 60_000)  # the server has closed it
        await cursor.execute("SELECT 'read'")
        return await cursor.fetchone()

    assert await pool.run(read) == ("read",)
    assert len({*processes}) == 2
    await pool.close()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("{}_nowhere", "there is no such database"),
        ("postgresql://nobody:hunter2@127.0.0.1:1/x", "the server cannot be reached"),
    ],
)
async def test_a_wrong_url_is_named_without_its_password(
    new_database: Callable[[], str], url: str, problem: str
) -> None:
    server, _, query = new_database().partition("?")

    with pytest.raises(StoreUnavailableError, match=problem) as refusal:
        await PostgresStore(url.format(server) + (f"?{query}" if "{}" in url else "")).length("s")

    assert "hunter2" not in str(refusal.value)


ENCODE = "in a password, write %25 for %, %40 for @, %2F for /, %3A for :, %23 for # and %3F for ?"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (
            "u:hunter%zz@db/x",
            f"this is no URL of PostgreSQL: each % must be followed by two hexadecimal digits; {ENCODE}",
        ),
        ("u:hunter 2@db/x", "this is no URL of PostgreSQL: it has a space; write %20 for it"),
        *(
            (
                f"u:hunter{odd}@db/x",
                "this is no URL of PostgreSQL: it holds a NUL, or bytes that are no UTF-8; write such bytes as % and "
                "two hexadecimal digits",
            )
            for odd in ("\0", "\udcff")
        ),
        ("u:hunter2@[::1/x", "this is no URL of PostgreSQL: an IPv6 address needs brackets, such as [::1]"),
        ("u:hunter@2@db/x", f"the URL has more than one @; {ENCODE}"),
        ("localhost:hunter/2@db/x", f"the port in the URL must be a number from 1 to 65535; {ENCODE}"),
        ("db:99999/x", "the port in the URL must be a number from 1 to 65535"),
        (
            "u:hunter2@db/x?sslmod=require",
            "this is no URL of PostgreSQL: it has the parameter 'sslmod', which PostgreSQL does not know",
        ),
        (
            "u@db/x?password=2&hunter=2",
            f"this is no URL of PostgreSQL: its parameters must be NAME=VALUE, with & between them; {ENCODE}",
        ),
        (
            "u:hunter2@[::1]x/y",
            f"this is no URL of PostgreSQL: it must be postgresql://USER:PASSWORD@HOST:PORT/DATABASE; {ENCODE}",
        ),
    ],
)
def test_a_url_that_cannot_be_read_is_explained_and_not_quoted(url: str, problem: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        open_store(f"postgresql://{url}")

    assert str(refusal.value) == f"store: {problem}"
    assert refusal.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("u:hunter2@127.0.0.1/x?sslmode=sure", 'connection is bad: invalid sslmode value: "sure"'),
        ("u:hunter2@127.0.0.1/x?connect_timeout=soon", "bad value for connect_timeout: 'soon'"),
    ],
)
async def test_an_option_that_cannot_work_is_named(url: str, problem: str) -> None:
    with pytest.raises(StoreUnavailableError) as refusal:
        await open_store(f"postgresql://{url}").length("s")

    assert str(refusal.value) == f"postgresql: an option of the URL does not fit ({problem}); correct the URL"


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ('FATAL:  role "nobody" does not exist', "user or password is wrong; check the URL"),
        (
            'FATAL:  no pg_hba.conf entry for host "10.0.0.9", user "app", database "x", no encryption',
            'the server does not let this user in (no pg_hba.conf entry for host "10.0.0.9", user "app", database "x", '
            "no encryption); add a line for it to pg_hba.conf, or check the URL",
        ),
        (
            "server does not support SSL, but SSL was required",
            "an option of the URL does not fit (connection failed: server does not support SSL, but SSL was required); "
            "correct the URL",
        ),
        (
            "SSL connection has been closed unexpectedly",
            "the server cannot be reached (connection failed: SSL connection has been closed unexpectedly); try again "
            "when it is available",
        ),
    ],
)
def test_a_server_that_refuses_a_connection_is_not_called_unreachable(said: str, problem: str) -> None:
    error = psycopg.OperationalError(f"connection failed: {said}")

    assert str(as_postgres_store_error(error)) == f"postgresql: {problem}"


async def test_a_new_database_can_be_opened_by_two_stores_at_once(new_database: Callable[[], str]) -> None:
    url = new_database()
    stores = [PostgresStore(url) for _ in range(5)]

    lengths = await asyncio.gather(*(store.length("s") for store in stores))
    for store in stores:
        await store.close()

    assert lengths == [0] * 5


async def test_a_text_with_more_words_than_the_server_can_index_is_recorded_and_found_by_the_first(
    new_database: Callable[[], str],
) -> None:
    store = PostgresStore(new_database())
    chance = random.Random(1)
    text = "".join(chr(chance.randint(0x4E00, 0x9FFF)) for _ in range(200_000))

    await store.append("s", [message_record(text)], after=0, time_ms=NOW_MS, index=[IndexEntry(0, text)])

    assert [stored.record for stored in await store.read("s")] == [message_record(text)]
    assert [hit.position for hit in await store.search(text[:2])] == [0]
    assert await store.search(text[-2:]) == []
    await store.close()


async def test_a_query_with_too_many_words_is_searched_by_its_first_words(new_database: Callable[[], str]) -> None:
    store = PostgresStore(new_database())
    await store.append("s", [message_record("x")], after=0, time_ms=NOW_MS, index=[IndexEntry(0, "findme")])

    assert [hit.position for hit in await store.search(" ".join(["findme", *map(str, range(50_000))]))] == [0]
    await store.close()


async def test_a_rejected_statement_is_not_reported_as_a_lost_server(new_database: Callable[[], str]) -> None:
    store = PostgresStore(new_database())
    too_long = "x" * 2_000_000

    with pytest.raises(StoreUnavailableError, match="postgresql: the server says: index row"):
        await store.append(too_long, [message_record("x")], after=0, time_ms=NOW_MS)

    assert await store.sessions() == []
    await store.close()


async def test_new_words_are_put_into_the_index_while_nobody_waits(new_database: Callable[[], str]) -> None:
    url = new_database()
    store = PostgresStore(url)
    text = " ".join(f"word{number}" for number in range(1_000))
    waiting: list[int] = []
    for length in range(6):
        await store.append("s", [message_record("a")], after=length, time_ms=NOW_MS, index=[IndexEntry(length, text)])
        await store.close()  # what is under way is finished
        if length in (0, 5):
            with psycopg.connect(url, autocommit=True) as other:
                query = "SELECT gin_clean_pending_list('holdfast.words_by_body')"
                waiting.append((other.execute(query).fetchone() or (0,))[0])

    # One text alone is left to the next; six of them were put into the index by then.
    assert waiting[0] > 0
    assert waiting[1] == 0
    await store.close()


async def test_a_page_of_a_long_log_is_read_without_what_comes_after_it(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, plans = new_database(), list[str]()
    store = PostgresStore(url)
    await store.append("long", [{"n": number} for number in range(3_000)], after=0, time_ms=NOW_MS)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("ANALYZE holdfast.sessions")
        other.execute("ANALYZE holdfast.events")
    execute = psycopg.AsyncCursor.execute

    async def explained(cursor: Any, query: bytes, *args: Any, **options: Any) -> object:
        await execute(cursor, b"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) " + query, *args, **options)
        plans.append("\n".join([line for (line,) in await cursor.fetchall()]))
        return await execute(cursor, query, *args, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", explained)
    pages = [await store.read("long", start=1_000, limit=10), (await store.read_from_snapshot("long", limit=10))[1]]

    assert [[stored.record["n"] for stored in page] for page in pages] == [[*range(1_000, 1_010)], [*range(10)]]
    for plan in plans:
        (events,) = [line for line in plan.splitlines() if "on events" in line]
        assert "Index Scan using events_pkey on events (actual rows=10" in events
    monkeypatch.undo()
    await store.close()


async def test_values_that_are_asked_for_at_once_are_read_in_one_statement_and_each_has_its_own_result(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, statements = PostgresStore(new_database()), list[object]()
    await store.put_value("a", {"of": "a"})
    await store.put_value("b", {"of": "b"})
    execute = psycopg.AsyncCursor.execute

    async def noted(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        statements.append(query)
        return await execute(self, query, *args, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", noted)
    found = await asyncio.gather(*map(store.get_value, ("a", "missing", "b", "a")))
    read_at_once = len(statements)
    left = asyncio.ensure_future(store.get_value("a"))
    mixed = asyncio.gather(*map(store.get_value, ("b", "not \0 storable")), return_exceptions=True)
    await asyncio.sleep(0)
    left.cancel()
    of_b, refused = await mixed
    await store.put_value("a", {"of": "a, again"})

    assert (found, read_at_once) == ([{"of": "a"}, None, {"of": "b"}, {"of": "a"}], 1)
    assert (of_b, left.cancelled()) == ({"of": "b"}, True)
    assert isinstance(refused, StoreUnavailableError), "only the key that the server does not take"
    assert await store.get_value("a") == {"of": "a, again"}
    await store.close()


async def test_a_blob_that_a_waiting_append_refers_to_survives_the_deletion_of_another_session(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    one, other = PostgresStore(url), PostgresStore(url)
    digest = await one.put_blob(b"large")
    await one.append("a", [message_record("x")], after=0, time_ms=NOW_MS, blobs=[digest])
    await one.append("b", [message_record("y")], after=0, time_ms=NOW_MS)
    async with await psycopg.AsyncConnection.connect(url) as appending:
        await appending.execute("SELECT 1 FROM holdfast.blobs FOR KEY SHARE")
        uses = (
            "INSERT INTO holdfast.blob_uses SELECT number, digest FROM holdfast.sessions, holdfast.blobs WHERE id = 'b'"
        )
        await appending.execute(uses)
        deleting = asyncio.create_task(other.delete("a"))
        await asyncio.to_thread(wait_for_a_lock, url)
    assert await deleting

    assert await one.get_blob(digest) == b"large"
    for store in (one, other):
        await store.close()


def wait_for_a_lock(url: str) -> None:
    query = b"SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(url, autocommit=True) as connection:
        while not connection.execute(query).fetchall():
            pass
