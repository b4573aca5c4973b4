"""The settings of a PostgreSQL server and its roles do not weaken the store, and do not make it hang."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.stores import postgres, postgres_pool
from holdfast.stores.base import IndexEntry, Snapshot
from holdfast.stores.postgres import POSTGRES_TABLES, PostgresStore
from holdfast.stores.postgres_check import (
    FACTS,
    StoreFinding,
    _about_server,
    _about_tables,
    _ServerFacts,
    check_postgres,
)
from holdfast.testing.store_contract import NOW_MS, message_record
from tests.gateway.serving import ask, running_gateway
from tests.stores.concurrent_writers import write_at_once
from tests.support import wait_until


def set_default(url: str, setting: str) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f'ALTER DATABASE "{owner.info.dbname}" SET {setting}'.encode())


async def asked(store: PostgresStore, setting: str) -> str:
    return (await store._rows("SELECT current_setting(%s)", (setting,)))[0][0]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_concurrent_appends_succeed_whatever_isolation_the_database_has(
    new_database: Callable[[], str], level: str
) -> None:
    url = new_database()
    set_default(url, f"default_transaction_isolation = '{level}'")
    stores = [PostgresStore(url) for _ in range(6)]

    texts = await write_at_once(stores)

    assert len(texts) == len(set(texts)) == 60


FAIL_TWICE = """
    CREATE SEQUENCE holdfast.attempts;
    CREATE FUNCTION holdfast.fail_twice() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('holdfast.attempts') < 3 THEN
            RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '{state}';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail_twice BEFORE INSERT ON holdfast.events FOR EACH ROW EXECUTE FUNCTION holdfast.fail_twice();
"""


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_an_append_that_the_server_rolled_back_for_a_conflict_is_run_again(
    new_database: Callable[[], str], state: str
) -> None:
    url = new_database()
    store = PostgresStore(url)
    assert await store.length("s") == 0
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(FAIL_TWICE.replace("{state}", state).encode())

    assert await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS) == 1

    assert [stored.record for stored in await store.read("s")] == [message_record("a")]
    await store.close()


async def test_a_statement_that_waits_too_long_for_a_lock_is_reported(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database()
    monkeypatch.setattr(postgres_pool, "STATEMENT_TIMEOUT_MS", 1_000)
    store = PostgresStore(url)
    await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("LOCK TABLE holdfast.sessions IN ROW EXCLUSIVE MODE")
        await other.execute("SELECT 1 FROM holdfast.sessions FOR UPDATE")

        with pytest.raises(StoreUnavailableError) as refusal:
            async with asyncio.timeout(60):
                await store.append("s", [message_record("b")], after=1, time_ms=NOW_MS)

    assert refusal.value.problem == (
        "a statement took longer than the server's statement_timeout, or was cancelled; another program may hold "
        "a lock on the tables of Holdfast; try again"
    )
    assert await store.append("s", [message_record("b")], after=1, time_ms=NOW_MS) == 2
    await store.close()


async def test_a_limit_that_the_database_sets_for_statements_is_kept(new_database: Callable[[], str]) -> None:
    url = new_database()
    unlimited, limited = PostgresStore(url), PostgresStore(url)
    assert await asked(unlimited, "statement_timeout") == "1min"
    set_default(url, "statement_timeout = '5s'")

    assert await asked(limited, "statement_timeout") == "5s"
    for store in (unlimited, limited):
        await store.close()


async def test_a_role_without_the_right_to_create_can_use_tables_that_exist(own_server: Any) -> None:
    own_server.ask_for_passwords()
    owner_store = PostgresStore(own_server.url)
    await owner_store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
    with psycopg.connect(own_server.url, autocommit=True) as owner:
        owner.execute("CREATE ROLE plain LOGIN PASSWORD 'right'")
    store = PostgresStore(own_server.url.replace("postgres:@", "plain:right@"))

    with pytest.raises(StoreUnavailableError, match=r"the role may not do this .+ grant USAGE on the schema holdfast"):
        await store.length("s")
    with psycopg.connect(own_server.url, autocommit=True) as owner:
        owner.execute("GRANT USAGE ON SCHEMA holdfast TO plain")
        owner.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO plain")

    assert await store.append("s", [message_record("b")], after=1, time_ms=NOW_MS) == 2
    assert await store.put_snapshot("s", Snapshot(2, b"x"))
    # Only the owner of the index may put new words into it; for others, a write does.
    for number in (2, 3):
        words = IndexEntry(number, " ".join(f"word{one}" for one in range(2_000)))
        await store.append("s", [message_record("c")], after=number, time_ms=NOW_MS, index=[words])
    assert [hit.position for hit in await store.search("word1999", session="s")] == [3, 2]
    assert await store.delete("s")
    for one in (owner_store, store):
        await one.close()


@pytest.mark.parametrize(("configured", "used"), [("off", "on"), ("local", "local"), ("on", "on")])
async def test_a_commit_waits_for_the_disk_even_where_the_server_would_not(
    new_database: Callable[[], str], configured: str, used: str
) -> None:
    url = new_database()
    set_default(url, f"synchronous_commit = {configured}")
    store = PostgresStore(url)

    assert await asked(store, "synchronous_commit") == used
    await store.close()


async def test_indexes_that_an_older_version_did_not_make_are_built_while_others_write(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    old = PostgresStore(url)
    await old.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
    await old.close()
    found = "SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indisvalid AND relname = %s"
    names = list(postgres_pool.POSTGRES_INDEXES)
    with psycopg.connect(url, autocommit=True) as owner:
        for name in names:
            owner.execute(f"DROP INDEX holdfast.{name}".encode())

        store = PostgresStore(url)
        async with await psycopg.AsyncConnection.connect(url) as writing:
            await writing.execute("UPDATE holdfast.sessions SET name = 'being written'")
            # The build waits for this transaction, and no other writer waits for the build.
            assert await store.append("t", [message_record("b")], after=0, time_ms=NOW_MS) == 1
        length = 1
        while any(owner.execute(found, (name,)).fetchone() == (0,) for name in names):
            length = await store.append("t", [message_record("c")], after=length, time_ms=NOW_MS)
    await store.close()


async def test_a_statement_that_was_cancelled_neither_ends_nor_waits_for_the_indexes_that_are_being_built(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    async with await psycopg.AsyncConnection.connect(url) as writing:
        old = PostgresStore(url)
        await old.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
        await old.close()
        [name, *_] = postgres_pool.POSTGRES_INDEXES
        await writing.execute(f"DROP INDEX holdfast.{name}".encode())
        await writing.commit()
        # The build waits for this transaction.
        await writing.execute("UPDATE holdfast.sessions SET name = 'being written'")
        pool = postgres_pool.PostgresPool(url)
        await pool.run(lambda cursor: cursor.execute("SELECT 1"))

        async with asyncio.timeout(postgres_pool.INDEX_BUILD_SECONDS / 2):
            with pytest.raises(StoreUnavailableError):
                await pool.run(lambda cursor: cursor.execute("SELECT pg_cancel_backend(pg_backend_pid())"))
    await pool.close()

    with psycopg.connect(url) as connection:
        query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
        assert connection.execute(query, (f"holdfast.{name}",)).fetchone() == (True,)


async def test_a_search_of_a_large_store_finds_rare_words_anywhere_and_common_ones_in_the_newest_sessions(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "MANY_MESSAGES", 100)
    monkeypatch.setattr(postgres, "RARE_WORD_MESSAGES", 20)
    monkeypatch.setattr(postgres, "NEWEST_SESSIONS", 3)
    url = new_database()
    store = PostgresStore(url)
    for number in range(300):
        text = f"common words of {number}" + (" marmalade" if number == 7 else "")
        index = [IndexEntry(0, text)]
        await store.append(f"s{number:03}", [message_record(text)], after=0, time_ms=NOW_MS + number, index=index)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("ANALYZE holdfast.words")

    rare = await store.search("common marmalade")
    common = await store.search("common words")
    await store.close()

    assert [hit.session for hit in rare] == ["s007"]
    assert [hit.session for hit in common] == ["s299", "s298", "s297"]


async def test_the_doctor_says_what_an_operator_should_know_about_the_server(own_server: Any) -> None:
    own_server.ask_for_passwords()
    store = PostgresStore(own_server.url)
    await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
    await store.close()
    with psycopg.connect(own_server.url, autocommit=True) as owner:
        owner.execute("CREATE ROLE reader LOGIN PASSWORD 'right'")
        owner.execute("GRANT USAGE ON SCHEMA holdfast TO reader")
        owner.execute("GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO reader")
        owner.execute("DROP INDEX holdfast.sessions_newest_first")

        well, missing, *others = await check_postgres(own_server.url)
        found = await check_postgres(own_server.url.replace("postgres:@", "reader:right@"))
        tables = list(POSTGRES_TABLES)
        with psycopg.connect(own_server.url.replace("postgres:@", "reader:right@")) as reader:
            counts = [_ServerFacts(*one.execute(FACTS, (tables,)).fetchone() or ()) for one in (owner, reader)]
        owner.execute("DROP OWNED BY reader")
        owner.execute("DROP ROLE reader")

    assert well.state == "ok"
    assert re.fullmatch(r"PostgreSQL \d+\.\d+.*, directly, as postgres; [\d.]+ MB, 1 session", well.said)
    assert re.fullmatch(r"PostgreSQL .*, as reader; [\d.]+ MB, about \d+ sessions?", found[0].said), "it may not count"
    assert missing == (
        "warn",
        "the indexes sessions_newest_first are missing, so that large stores are slower",
        "run as the owner of the tables: DROP INDEX CONCURRENTLY IF EXISTS holdfast.sessions_newest_first; "
        "CREATE INDEX CONCURRENTLY sessions_newest_first ON holdfast.sessions "
        '(updated_ms DESC, id COLLATE "C" DESC)',
    )
    assert others == []
    assert [(one.connections, one.unseen) for one in counts] == [(2, 0), (2, 1)]
    assert found[1] == (
        "ok",
        "the transactions of other roles cannot be seen, so that an old one among them is not found",
        "to see them: GRANT pg_read_all_stats TO reader",
    )
    assert [(one.state, one.remedy) for one in found if one.state == "fail"] == [
        ("fail", "as their owner: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO reader")
    ]


SERVER = _ServerFacts(
    number=160004,
    version="16.4",
    process=1,
    role="holdfast",
    isolation="read committed",
    commit="on",
    max_connections=100,
    connections=10,
    size=2_500_000,
    oldest_seconds=None,
    sessions=12,
    read_only="off",
    encoding="UTF8",
)
WELL = StoreFinding("ok", "PostgreSQL 16.4, directly, as holdfast; 2.5 MB, about 12 sessions")


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (SERVER, []),
        (
            SERVER._replace(connections=99),
            [
                StoreFinding(
                    "warn", "99 of 100 connections are in use", "raise max_connections, or put PgBouncer in front"
                )
            ],
        ),
        (
            SERVER._replace(oldest_seconds=90_000.0),
            [
                StoreFinding(
                    "warn",
                    "a transaction is open for 90,000 s, and nothing deleted since can be reused",
                    "end it: see pg_stat_activity",
                )
            ],
        ),
        (
            SERVER._replace(read_only="on", encoding="LATIN1"),
            [
                StoreFinding(
                    "fail",
                    "the server only reads: it is a standby, or default_transaction_read_only is on",
                    "use the URL of the primary server, or turn the setting off",
                ),
                StoreFinding(
                    "fail",
                    "the database has the encoding LATIN1, which cannot hold every text",
                    "create one with ENCODING 'UTF8' TEMPLATE template0, and move the sessions there",
                ),
            ],
        ),
    ],
    ids=["well", "full", "an old transaction", "read-only and not in UTF-8"],
)
def test_the_doctor_warns_of_a_full_server_of_old_transactions_and_of_one_that_cannot_write(
    server: _ServerFacts, expected: list[StoreFinding]
) -> None:
    assert list(_about_server(server, is_pooled=False)) == [WELL, *expected]


def test_the_doctor_says_what_saves_round_trips_behind_a_pooler() -> None:
    server = SERVER._replace(isolation="serializable", commit="off")

    _, warning = _about_server(server, is_pooled=True)

    settings = "default_transaction_isolation, synchronous_commit"
    assert warning == StoreFinding(
        "warn",
        f"behind a pooler each statement sets {settings} again, which takes three more round trips",
        "to save them: ALTER ROLE holdfast SET default_transaction_isolation = 'read committed'; "
        "ALTER ROLE holdfast SET synchronous_commit = on",
    )


def test_the_doctor_names_tables_that_nobody_vacuums() -> None:
    assert list(_about_tables(SERVER, [], [], [("events", 20_000, 500)])) == [
        StoreFinding(
            "warn",
            "holdfast.events has 20,000 deleted rows beside 500",
            "run VACUUM holdfast.events, and see why autovacuum does not",
        )
    ]


async def test_the_doctor_says_that_a_server_cannot_be_reached() -> None:
    [finding] = await check_postgres("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2")

    assert (finding.state, "cannot be reached" in finding.said) == ("fail", True)


async def test_a_server_that_only_reads_is_read_and_named_when_something_is_written(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    store = PostgresStore(url)
    await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
    await store.close()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"ALTER DATABASE {owner.info.dbname} SET default_transaction_read_only = on".encode())
    later = PostgresStore(url)

    length = await later.length("s")
    with pytest.raises(StoreUnavailableError) as refusal:
        await later.append("s", [message_record("b")], after=1, time_ms=NOW_MS)
    found = await check_postgres(url)
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as owner:
        owner.execute(f"ALTER DATABASE {owner.info.dbname} RESET default_transaction_read_only".encode())
    once_it_is_off = await later.append("s", [message_record("b")], after=1, time_ms=NOW_MS)
    await later.close()

    assert (length, once_it_is_off) == (1, 2)
    assert str(refusal.value) == (
        "postgresql: the server only reads: it is a standby, or default_transaction_read_only is on; use the URL of "
        "the primary server, or turn the setting off"
    )
    assert [(one.state, one.said) for one in found][1:] == [
        ("fail", "the server only reads: it is a standby, or default_transaction_read_only is on")
    ]


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        ("CREATE TABLE holdfast.sessions (id int)", 'relation "sessions" already exists'),
        ("CREATE VIEW holdfast.words AS SELECT 1 AS body", 'relation "words" already exists'),
        ("CREATE TYPE holdfast.events AS ENUM ('a')", 'type "events" already exists'),
        ("CREATE TABLE holdfast.schema (number int)", 'column "version" does not exist'),
        (
            "CREATE TABLE holdfast.schema (version text); INSERT INTO holdfast.schema VALUES ('2024-05')",
            "holdfast.schema says that its version is '2024-05'",
        ),
        (
            "CREATE TABLE holdfast.schema (version int); INSERT INTO holdfast.schema VALUES (1)",
            'relation "holdfast.sessions" does not exist',
        ),
    ],
)
async def test_a_schema_of_another_program_is_named_with_what_to_do(
    new_database: Callable[[], str], statements: str, said: str
) -> None:
    url = new_database()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE SCHEMA holdfast; {statements}".encode())
    store = PostgresStore(url)

    with pytest.raises(StoreUnavailableError) as refusal:
        await store.sessions()
    await store.close()
    found = await check_postgres(url)

    problem = f"the schema holdfast of this database does not have the tables of Holdfast ({said})"
    remedy = (
        "use another database, restore the whole schema from a backup, or, if it belongs to another program, move it "
        "away: ALTER SCHEMA holdfast RENAME TO another_name"
    )
    assert str(refusal.value) == f"postgresql: {problem}; {remedy}"
    assert found == [StoreFinding("fail", f"postgresql: {problem}; {remedy}")]


async def test_a_role_that_may_not_create_is_told_that_a_newer_version_wrote_the_store(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    store = PostgresStore(url)
    await store.sessions()
    await store.close()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("UPDATE holdfast.schema SET version = version + 1")
        owner.execute("CREATE ROLE reader_of_newer LOGIN")
        owner.execute("GRANT USAGE ON SCHEMA holdfast TO reader_of_newer")
        owner.execute("GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO reader_of_newer")
    limited = PostgresStore(url.replace("postgres:@", "reader_of_newer:@", 1))

    with pytest.raises(StoreUnavailableError) as refusal:
        await limited.sessions()
    await limited.close()

    assert str(refusal.value) == "postgresql: it was written by a newer Holdfast; update Holdfast"


async def test_a_gateway_on_a_server_that_only_reads_is_not_ready_and_says_why(new_database: Callable[[], str]) -> None:
    url = new_database()
    answers: list[tuple[int | None, Any]] = []

    for setting in ("default_transaction_read_only = off", "default_transaction_read_only = on"):
        set_default(url, setting)
        async with running_gateway("http://127.0.0.1:9", store=url) as gateway:
            seen = await ask(gateway, "GET", "/readyz")
        answers.append((seen.status, json.loads(seen.body)))
    store = PostgresStore(url)
    kept = await store.sessions()
    await store.close()

    problem = "the server only reads: it is a standby, or default_transaction_read_only is on"
    remedy = "use the URL of the primary server, or turn the setting off"
    assert answers == [
        (200, {"status": "ok"}),
        (503, {"status": f"the store cannot be written: {problem}; {remedy}"}),
    ]
    assert kept == []


async def test_a_database_that_cannot_hold_every_text_is_named_with_what_to_do(own_server: Any) -> None:
    server, _, query = own_server.url.partition("?")
    with psycopg.connect(own_server.url, autocommit=True) as owner:
        owner.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    store = PostgresStore(f"{server.rpartition('/')[0]}/latin?{query}")

    with pytest.raises(StoreUnavailableError) as refusal:
        await store.append(
            "s", [message_record("日本")], after=0, time_ms=NOW_MS, index=[IndexEntry(position=0, text="日本")]
        )
    await store.close()

    assert str(refusal.value) == (
        "postgresql: the database has the encoding latin-1, which cannot hold every text; use a database that was "
        "created with ENCODING 'UTF8' TEMPLATE template0"
    )


@pytest.mark.parametrize("limit", [1, 2])
async def test_calls_wait_for_each_other_where_the_server_has_few_connections(
    new_database: Callable[[], str], limit: int
) -> None:
    url = new_database()
    store = PostgresStore(url)
    await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
    await store.close()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE few_{limit} LOGIN CONNECTION LIMIT {limit}".encode())
        owner.execute(f"GRANT USAGE ON SCHEMA holdfast TO few_{limit}".encode())
        owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO few_{limit}".encode())
    limited = url.replace("postgres:@", f"few_{limit}:@", 1)
    few, other = PostgresStore(limited), PostgresStore(limited)

    lengths = await asyncio.gather(*(few.length("s") for _ in range(20)))
    with pytest.raises(StoreUnavailableError) as refusal:
        await other.length("s")
    await few.close()
    await other.close()

    assert lengths == [1] * 20
    assert str(refusal.value) == (
        f'postgresql: the server has no free connection (too many connections for role "few_{limit}"); try again, '
        "raise max_connections or the limit of the role, or put PgBouncer in front"
    )


async def test_a_connection_that_is_returned_while_another_is_refused_is_used(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, asked, refused = (
        postgres_pool.PostgresPool(new_database(), builds_indexes=False),
        asyncio.Event(),
        asyncio.Event(),
    )
    used: list[object] = []

    async def use(until: asyncio.Event) -> None:
        async with pool.connection() as connection:
            used.append(connection)
            await until.wait()

    async def refuse() -> None:
        asked.set()
        await refused.wait()
        raise psycopg.OperationalError("FATAL:  sorry, too many clients already")

    released = asyncio.Event()
    first = asyncio.ensure_future(use(released))
    await wait_until(lambda: bool(used))
    monkeypatch.setattr(pool, "_connect", refuse)
    second = asyncio.ensure_future(use(released))
    await asked.wait()
    released.set()
    await first
    refused.set()
    await second

    assert used == [used[0]] * 2
    await pool.close()


async def test_a_database_without_an_encoding_returns_texts_as_they_were(own_server: Any) -> None:
    server, _, query = own_server.url.partition("?")
    with psycopg.connect(own_server.url, autocommit=True) as owner:
        owner.execute("CREATE DATABASE bare ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    store = PostgresStore(f"{server.rpartition('/')[0]}/bare?{query}")

    digest = await store.put_blob(b"content")
    entry = IndexEntry(position=0, text="日本 harbor")
    await store.append("日本", [message_record("日本")], after=0, time_ms=NOW_MS, index=[entry], blobs=[digest])
    await store.put_value("größe", {"a": "日本"})
    found = (
        [(one.id, one.length) for one in await store.sessions()],
        [one.record for one in await store.read("日本")],
        [(one.session, one.position) for one in await store.search("harbor")],
        await store.get_value("größe"),
        await store.values("grö"),
        await store.get_blob(digest),
    )
    await store.close()

    value = {"a": "日本"}
    assert found == ([("日本", 1)], [message_record("日本")], [("日本", 0)], value, {"größe": value}, b"content")


@pytest.mark.parametrize("setting", ["standard_conforming_strings = off", "client_encoding = 'LATIN1'"])
async def test_no_setting_of_the_server_changes_what_is_stored(new_database: Callable[[], str], setting: str) -> None:
    url = new_database()
    set_default(url, setting)
    records = [message_record(f"日本 \\ ' \" {number}") for number in range(40)]
    store = PostgresStore(url)

    await store.append("日本 \\", records, after=0, time_ms=NOW_MS)
    digest = await store.put_blob(b"\\x00\0")
    await store.append("日本 \\", records[:1], after=40, time_ms=NOW_MS)
    await store.append("日本 \\", records, after=41, time_ms=NOW_MS, blobs=[digest])
    await store.put_value("größe \\", records[0])
    found = (
        [one.record for one in await store.read("日本 \\")],
        [one.id for one in await store.sessions()],
        await store.get_blob(digest),
        await store.values("größe"),
    )
    await store.close()

    assert found == ([*records, records[0], *records], ["日本 \\"], b"\\x00\0", {"größe \\": records[0]})


async def test_the_id_of_a_session_that_no_index_can_hold_is_named_with_what_to_do(
    new_database: Callable[[], str],
) -> None:
    store = PostgresStore(new_database())
    name = "".join(map(chr, range(0x4E00, 0x4E00 + 1_000)))

    with pytest.raises(StoreUnavailableError) as refusal:
        await store.append(name, [message_record("a")], after=0, time_ms=NOW_MS)
    await store.close()

    assert re.sub(r"index row size .* for", "index row size … for", str(refusal.value)) == (
        'postgresql: the id of the session is too long for PostgreSQL (index row size … for index "sessions_id_key"); '
        "choose one of at most 2,000 bytes"
    )


async def test_tables_of_a_newer_version_are_not_touched(new_database: Callable[[], str]) -> None:
    url = new_database()
    store = PostgresStore(url)
    await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
    await store.close()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("UPDATE holdfast.schema SET version = 99")
    later = PostgresStore(url)

    with pytest.raises(StoreUnavailableError, match="it was written by a newer Holdfast; update Holdfast"):
        await later.length("s")

    await later.close()


async def test_an_append_that_always_conflicts_is_given_up(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pool, "ROLLBACK_PAUSE_SECONDS", 0)
    url = new_database()
    store = PostgresStore(url)
    assert await store.length("s") == 0
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(FAIL_TWICE.replace("{state}", "40001").replace("< 3", "< 3000").encode())

    with pytest.raises(StoreUnavailableError, match="other writers changed the same rows too often; try again"):
        await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)

    assert await store.read("s") == []
    await store.close()


async def test_one_program_builds_missing_indexes_and_only_for_their_owner(own_server: Any) -> None:
    own_server.ask_for_passwords()
    store = PostgresStore(own_server.url)
    await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
    await store.close()
    [name, *_] = postgres_pool.POSTGRES_INDEXES
    lock = f"SELECT pg_advisory_lock({postgres_pool.INDEX_LOCK})"
    with psycopg.connect(own_server.url, autocommit=True) as owner:
        owner.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
        owner.execute("GRANT USAGE ON SCHEMA holdfast TO guest")
        owner.execute(f"DROP INDEX holdfast.{name}".encode())
        owner.execute(lock.encode())

        await postgres_pool._build_indexes(own_server.url, [name])
        by_another = owner.execute("SELECT to_regclass(%s)", (f"holdfast.{name}",)).fetchone()
        owner.execute("SELECT pg_advisory_unlock_all()")
        await postgres_pool._build_indexes(own_server.url.replace("postgres:@", "guest:right@"), [name])
        by_guest = owner.execute("SELECT to_regclass(%s)", (f"holdfast.{name}",)).fetchone()
        await postgres_pool._build_indexes(own_server.url, [name])
        by_owner = owner.execute("SELECT to_regclass(%s)::text", (f"holdfast.{name}",)).fetchone()
        owner.execute("DROP OWNED BY guest")
        owner.execute("DROP ROLE guest")

    assert (by_another, by_guest, by_owner) == ((None,), (None,), (f"holdfast.{name}",))


def test_a_long_text_of_few_words_is_indexed_whole() -> None:
    text = "the same words again " * 20_000

    assert postgres._indexable(text).split() == text.split()


def test_a_statement_that_was_cancelled_says_nothing_about_others_like_it() -> None:
    def raised(cause: Exception) -> StoreUnavailableError:
        error = StoreUnavailableError("postgresql", "it failed")
        error.__cause__ = cause
        return error

    causes = (psycopg.errors.QueryCanceled(), psycopg.errors.UniqueViolation())

    assert [postgres_pool.is_rejected_statement(raised(cause)) for cause in causes] == [False, True]
