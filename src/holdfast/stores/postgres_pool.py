"""The connections of a PostgreSQL store: how they are opened, shared and replaced, and what their errors mean.

The server's defaults do not weaken the contract. Transactions are READ COMMITTED whatever the database says, because
the locks of the store rely on it; a transaction that the server rolls back for a conflict runs again. A commit waits
for the disk even where `synchronous_commit` is off. No statement, and no lost network, makes a caller wait for ever.
Once the tables exist, a role without the right to CREATE can use them.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import random
from typing import TypeAlias, TypeVar

from holdfast.errors import StoreUnavailableError, imports_of_extra

with imports_of_extra("postgres", "PostgreSQL"):
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import TransactionStatus
    from psycopg.rows import TupleRow

POSTGRES_LABEL = "postgresql"
POSTGRES_CONNECT_DEFAULTS: Mapping[str, str | int] = {
    "connect_timeout": 10,
    "application_name": "holdfast",
    # Notice within a minute that the other end of the network is gone.
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
    "tcp_user_timeout": 60_000,
}
"""Options of a connection that the URL does not name."""
STATEMENT_TIMEOUT_MS = 60_000
"""How long one statement may take, unless the role, the database or the URL has a limit of its own."""
MAX_ROLLBACKS = 100
"""How often a transaction is run again that the server rolled back for a conflict."""
ROLLBACK_PAUSE_SECONDS = 0.02
MAX_CONNECTIONS = 4
"""How many connections one event loop uses at most: one for appends, the others so that a long search delays nobody."""
MIGRATION_LOCK = 0x686F6C64
"""The key of the advisory lock that makes the migrations of several machines wait for each other."""
T = TypeVar("T")
Connection: TypeAlias = "psycopg.AsyncConnection[TupleRow]"
Cursor: TypeAlias = "psycopg.AsyncCursor[TupleRow]"
UNREACHABLE_STATES = ("08", "57P", "53300")
"""The prefixes of the codes for a server that is unreachable, shutting down, or out of connections."""
POSTGRES_MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE holdfast.sessions (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL DEFAULT '',
        length BIGINT NOT NULL DEFAULT 0,
        created_ms BIGINT NOT NULL,
        updated_ms BIGINT NOT NULL
    );
    CREATE INDEX sessions_by_change ON holdfast.sessions (updated_ms, id);
    CREATE TABLE holdfast.events (
        session BIGINT NOT NULL REFERENCES holdfast.sessions ON DELETE CASCADE,
        position BIGINT NOT NULL,
        time_ms BIGINT NOT NULL,
        data BYTEA NOT NULL,
        PRIMARY KEY (session, position)
    );
    CREATE TABLE holdfast.blobs (digest TEXT PRIMARY KEY, data BYTEA NOT NULL);
    CREATE TABLE holdfast.blob_uses (
        session BIGINT NOT NULL REFERENCES holdfast.sessions ON DELETE CASCADE,
        digest TEXT NOT NULL,
        PRIMARY KEY (session, digest)
    );
    CREATE INDEX blob_uses_by_digest ON holdfast.blob_uses (digest);
    CREATE TABLE holdfast.snapshots (
        session BIGINT PRIMARY KEY REFERENCES holdfast.sessions ON DELETE CASCADE,
        length BIGINT NOT NULL,
        data BYTEA NOT NULL
    );
    CREATE TABLE holdfast.facts (key TEXT PRIMARY KEY, value BYTEA NOT NULL);
    CREATE TABLE holdfast.words (
        session BIGINT NOT NULL REFERENCES holdfast.sessions ON DELETE CASCADE,
        position BIGINT NOT NULL,
        body TSVECTOR NOT NULL,
        PRIMARY KEY (session, position)
    );
    CREATE INDEX words_by_body ON holdfast.words USING GIN (body);
    """,
)


class PostgresPool:
    """A few connections for one event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._closings = 0
        """How often the pool was closed: a connection that was in use at that time is not used again."""

    async def run(self, action: Callable[[Cursor], Awaitable[T]]) -> T:
        """Return the result of an action of one statement; translate the driver's errors.

        The action runs again if the server rolled it back because of a concurrent transaction.
        """
        return await self._run(action, is_transaction=False)

    async def in_transaction(self, action: Callable[[Cursor], Awaitable[T]]) -> T:
        """Return the result of an action of several statements, as `run` does."""
        return await self._run(action, is_transaction=True)

    async def _run(self, action: Callable[[Cursor], Awaitable[T]], *, is_transaction: bool) -> T:
        try:
            async with self.connection() as connection:
                for _ in range(MAX_ROLLBACKS):
                    try:
                        return await _attempt(connection, action, is_transaction=is_transaction)
                    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                        # Wait with jitter so that conflicting writers do not retry in lockstep.
                        await asyncio.sleep(random() * ROLLBACK_PAUSE_SECONDS)  # noqa: S311 - jitter needs no cryptography
                return await _attempt(connection, action, is_transaction=is_transaction)
        except psycopg.Error as error:
            raise as_postgres_store_error(error) from error
        except (UnicodeError, OverflowError) as error:
            raise StoreUnavailableError(POSTGRES_LABEL, f"it cannot store this value: {error}; pass another") from error

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection, None]:
        """Lend a connection; a new one if none is idle."""
        async with self._slots:
            closings = self._closings
            connection = self._idle.pop() if self._idle else await self._connect()
            is_usable = True
            try:
                yield connection
            except psycopg.OperationalError:
                # The server may have gone away, and the other connections with it.
                is_usable = False
                await self.close()
                raise
            finally:
                is_idle = connection.info.transaction_status == TransactionStatus.IDLE
                if is_usable and is_idle and closings == self._closings:
                    self._idle.append(connection)
                else:
                    await connection.close()

    async def _connect(self) -> Connection:
        named = conninfo_to_dict(self._url)
        others = {option: value for option, value in POSTGRES_CONNECT_DEFAULTS.items() if option not in named}
        connection = await psycopg.AsyncConnection.connect(make_conninfo(self._url, **others), autocommit=True)
        try:
            await _strengthen_settings(connection)
            await _migrate(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Close all connections, those in use when they are returned; the next call connects again."""
        self._closings += 1
        while self._idle:
            await self._idle.pop().close()

    def discard(self) -> None:
        """Close all idle connections, without the event loop that opened them."""
        self._closings += 1
        while self._idle:
            connection = self._idle.pop()
            connection.pgconn.finish()


async def _attempt(connection: Connection, action: Callable[[Cursor], Awaitable[T]], *, is_transaction: bool) -> T:
    async with connection.cursor() as cursor:
        if not is_transaction:
            return await action(cursor)
        async with connection.transaction():
            return await action(cursor)


async def _strengthen_settings(connection: Connection) -> None:
    """Replace those settings of the server that would break the contract, for this connection only."""
    statement = (
        "SELECT set_config(name, value, false) FROM (VALUES ('default_transaction_isolation', 'read committed'), "
        "('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' END), "
        "('statement_timeout', CASE current_setting('statement_timeout') WHEN '0' THEN %s END)"
        ") AS stronger (name, value) WHERE value IS NOT NULL"
    )
    await connection.execute(statement, (str(STATEMENT_TIMEOUT_MS),))


async def _migrate(connection: Connection) -> None:
    """Bring the tables up to date; of several processes that open a new database at once, one does it."""
    if await _schema_version(connection) == len(POSTGRES_MIGRATIONS):
        return
    async with connection.transaction(), connection.cursor() as cursor:
        await cursor.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        await cursor.execute("CREATE SCHEMA IF NOT EXISTS holdfast")
        await cursor.execute("CREATE TABLE IF NOT EXISTS holdfast.schema (version INTEGER NOT NULL)")
        version = await _schema_version(connection)
        if version > len(POSTGRES_MIGRATIONS):
            raise StoreUnavailableError(POSTGRES_LABEL, "it was written by a newer Holdfast; update Holdfast")
        for migration in POSTGRES_MIGRATIONS[version:]:
            await cursor.execute(migration.encode())
        if version < len(POSTGRES_MIGRATIONS):
            await cursor.execute("DELETE FROM holdfast.schema")
            await cursor.execute("INSERT INTO holdfast.schema (version) VALUES (%s)", (len(POSTGRES_MIGRATIONS),))


async def _schema_version(connection: Connection) -> int:
    """Return how many migrations the tables have; 0 if there are no tables."""
    found = await (await connection.execute("SELECT to_regclass('holdfast.schema') IS NOT NULL")).fetchone()
    if not found or not found[0]:
        return 0
    row = await (await connection.execute("SELECT version FROM holdfast.schema")).fetchone()
    return row[0] if row else 0


def as_postgres_store_error(error: "psycopg.Error") -> StoreUnavailableError:
    """Return a driver's error as a `StoreUnavailableError`, never with the password in it."""
    state = error.sqlstate or ""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state.startswith("28") or "password authentication failed" in first:
        problem = "user or password is wrong; check the URL"
    elif state == "57014":
        problem = (
            "a statement took longer than the server's statement_timeout, or was cancelled; another program may hold "
            "a lock on the tables of Holdfast; try again"
        )
    elif state == "42501":
        problem = f"the role may not do this ({first}); let a role that may CREATE open the store once, and grant "
        problem += "USAGE on the schema holdfast and SELECT, INSERT, UPDATE, DELETE on its tables"
    elif state in {"40001", "40P01"}:
        problem = "other writers changed the same rows too often; try again"
    elif state == "53100":
        problem = "the disk of the server is full; free some space and try again"
    elif state == "3D000" or ("FATAL" in first and 'database "' in first and "does not exist" in first):
        problem = "there is no such database; create it, or check the URL"
    elif isinstance(error, psycopg.OperationalError) and (not state or state.startswith(UNREACHABLE_STATES)):
        problem = f"the server cannot be reached ({first}); try again when it is available"
    else:
        problem = f"the server says: {first}"
    return StoreUnavailableError(POSTGRES_LABEL, problem)


def is_rejected_statement(error: StoreUnavailableError) -> bool:
    """Return whether the server is well and rejected one statement, for a reason that need not concern another."""
    cause = error.__cause__
    if isinstance(cause, psycopg.errors.QueryCanceled):
        return False
    is_unreachable = isinstance(cause, psycopg.OperationalError) and (
        not cause.sqlstate or cause.sqlstate.startswith(UNREACHABLE_STATES)
    )
    return not is_unreachable
