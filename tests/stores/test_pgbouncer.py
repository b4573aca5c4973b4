"""The PostgreSQL store keeps its contract behind PgBouncer in transaction mode."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest

from benchmarks.scale.servers import pgbouncer, pgbouncer_program
from holdfast import Session
from holdfast.errors import StoreUnavailableError
from holdfast.stores import postgres_pool
from holdfast.stores.base import Store
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.store_contract import NOW_MS, StoreContract, message_record
from tests.stores.concurrent_writers import write_at_once

PROGRAM = pgbouncer_program() or ""
pytestmark = pytest.mark.skipif(not PROGRAM, reason="there is no pgbouncer here: apt-get install pgbouncer")


@pytest.fixture(scope="module")
def pooler(postgres_server: Any) -> Iterator[Callable[[str], str]]:
    """Yield a function that returns the URL of the same database behind one PgBouncer."""
    with pgbouncer(PROGRAM, postgres_server.get_uri("any"), postgres_server.system_user, pool_size=2) as behind:
        folder = behind.partition("?host=")[2]
        yield lambda url: f"{url.partition('?')[0]}?host={folder}"


class TestBehindPgBouncer(StoreContract):
    @pytest.fixture
    async def store(
        self, new_database: Callable[[], str], pooler: Callable[[str], str]
    ) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(pooler(new_database()))
        yield store
        await store.close()

    async def reopen(self, store: Store) -> Store:
        assert isinstance(store, PostgresStore)
        return PostgresStore(store.url)


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
async def test_stores_that_share_two_connections_neither_lose_nor_repeat_a_message(
    new_database: Callable[[], str], pooler: Callable[[str], str], level: str
) -> None:
    url = new_database()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"ALTER DATABASE {owner.info.dbname} SET default_transaction_isolation = '{level}'".encode())
    stores = [PostgresStore(pooler(url)) for _ in range(6)]

    texts = await write_at_once(stores)

    assert len(texts) == len(set(texts)) == 60


async def test_no_setting_stays_on_a_connection_that_other_programs_use_next(
    new_database: Callable[[], str], pooler: Callable[[str], str]
) -> None:
    url = new_database()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"ALTER DATABASE {owner.info.dbname} SET synchronous_commit = off".encode())
    store = PostgresStore(pooler(url))
    names = "SELECT current_setting('statement_timeout'), current_setting('synchronous_commit'), "
    query = f"{names} current_setting('transaction_isolation')"

    used = await store._rows(query, ())
    async with await psycopg.AsyncConnection.connect(pooler(url), autocommit=True, prepare_threshold=None) as other:
        left = await (await other.execute(query.encode())).fetchall()
    await store.close()

    assert used == [("1min", "on", "read committed")], "the transaction is needed for the commit anyway"
    assert left == [("0", "off", "read committed")]


async def test_a_statement_that_waits_too_long_for_a_lock_is_reported(
    new_database: Callable[[], str], pooler: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database()
    monkeypatch.setattr(postgres_pool, "STATEMENT_TIMEOUT_MS", 1_000)
    store = PostgresStore(pooler(url))
    await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("SELECT 1 FROM holdfast.sessions FOR UPDATE")

        with pytest.raises(StoreUnavailableError, match="a statement took longer than"):
            await store.append("s", [message_record("b")], after=1, time_ms=NOW_MS)
        with pytest.raises(StoreUnavailableError, match="a statement took longer than"):
            await store.rename("s", "waits too")

    assert await store.append("s", [message_record("b")], after=1, time_ms=NOW_MS) == 2
    await store.close()


async def test_a_session_continues_after_the_server_behind_the_pooler_was_restarted(
    own_server: Any, stoppable_server: Any
) -> None:
    with pgbouncer(PROGRAM, own_server.url, stoppable_server.system_user, pool_size=2) as url:
        async with Session.open("s", store=url) as session:
            await session.record([user_message("one"), assistant_message("1"), user_message("two")])
            own_server.stop("immediate")
            own_server.start()

            said = [user_message("one"), assistant_message("1"), user_message("two"), assistant_message("2")]
            while True:
                try:
                    await session.sync(said)
                except StoreUnavailableError:
                    continue
                break

        async with Session.open("s", store=url) as session:
            assert [entry.message.text for entry in session.history.entries] == ["one", "1", "two", "2"]
