"""The connections of a PostgreSQL store: how they are opened, shared and replaced, and what their errors mean.

The server's defaults do not weaken the contract. Transactions are READ COMMITTED whatever the database says, because
the locks of the store rely on it; a transaction that the server rolls back for a conflict runs again. A commit waits
for the disk even where `synchronous_commit` is off. No statement, and no lost network, makes a caller wait for ever.
Once the tables exist, a role without the right to CREATE can use them.

A pooler such as PgBouncer may give each transaction another connection of the server. So nothing here lives longer than
a transaction where a pooler stands between: no setting, no prepared statement, no lock.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import random
from typing import TypeAlias, TypeVar

from holdfast.core.conversation.json_values import is_utf8
from holdfast.errors import SettingsError, StoreUnavailableError, imports_of_extra

with imports_of_extra("postgres", "PostgreSQL"):
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import TransactionStatus
    from psycopg.rows import TupleRow

# The driver logs what it ignores once a connection is lost; the caller gets the error itself. In a program without
# logging, Python would write that line to its standard error, over the screen of a chat.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

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
"""How many connections one event loop uses at most: two for appends, the others so that a long search delays nobody."""
MIGRATION_LOCK_MS = 5_000
"""How long a change of the tables waits for a lock before it gives up."""
MIGRATION_LOCK = 0x686F6C64
"""The key of the advisory lock that makes the migrations of several machines wait for each other."""
INDEX_BUILD_SECONDS = 10
"""How long closing a store waits for indexes that are being built."""
INDEX_LOCK = MIGRATION_LOCK + 1
"""The key of the advisory lock of the program that builds indexes."""
T = TypeVar("T")
Connection: TypeAlias = "_Connection"
Cursor: TypeAlias = "psycopg.AsyncCursor[TupleRow]"
MAX_PORT = 65_535
HOW_TO_ENCODE = "in a password, write %25 for %, %40 for @, %2F for /, %3A for :, %23 for # and %3F for ?"
WRONG_OPTIONS = ("bad value for", "could not match", "certificate", "does not support SSL")
"""What the driver says of an option that cannot work, at whatever server."""
SERVER_IS_READ_ONLY = "the server only reads: it is a standby, or default_transaction_read_only is on"
USE_PRIMARY = "use the URL of the primary server, or turn the setting off"
NO_FREE_CONNECTION = (
    "too many connections",
    "too many clients",
    "connection slots are reserved",
    "no more connections allowed",
)
"""What a server or a pooler says that has no connection left."""
REFUSED_SECONDS = 5.0
"""How long a pool makes do with the connections it has, after it was refused another."""
OTHER_TABLES = "the schema holdfast of this database does not have the tables of Holdfast"
USE_OTHER_DATABASE = (
    "use another database, restore the whole schema from a backup, or, if it belongs to another program, move it away: "
    "ALTER SCHEMA holdfast RENAME TO another_name"
)
FOREIGN_STATES = frozenset({"42P07", "42710", "42P01", "42703", "42804", "42809", "42883"})
"""The codes for a table, column or type that is there already, is missing, or is of another kind."""
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
    -- The write that fills the list of new words puts them into the index: 15 ms, where the default of 4 MB takes 75.
    CREATE INDEX words_by_body ON holdfast.words USING GIN (body) WITH (gin_pending_list_limit = 256);
    """,
)


POSTGRES_AFTER_QUALIFIER = "substr(key, strpos(key, ':') + 1 + strpos(substr(key, strpos(key, ':') + 1), ':'))"
"""What follows the qualifier in the key of a value: the session."""
POSTGRES_INDEXES: Mapping[str, str] = {
    "sessions_newest_first": 'holdfast.sessions (updated_ms DESC, id COLLATE "C" DESC)',
    "facts_by_prefix": 'holdfast.facts (key COLLATE "C")',
    "facts_by_session": f"holdfast.facts ({POSTGRES_AFTER_QUALIFIER})",
}
"""Indexes for speed alone, by name: a program that does not know one works all the same, so they have no version."""


def check_postgres_url(url: str) -> None:
    """Raise a `SettingsError` that says what is wrong with a URL, and quotes nothing that may be of the password."""
    if "\0" in url or not is_utf8(url):
        problem = "it holds a NUL, or bytes that are no UTF-8; write such bytes as % and two hexadecimal digits"
        raise SettingsError("store", f"this is no URL of PostgreSQL: {problem}")
    try:
        named = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise SettingsError("store", f"this is no URL of PostgreSQL: {_url_problem(url, str(error))}") from None
    if "@" in str(named.get("host", "")):
        raise SettingsError("store", f"the URL has more than one @; {HOW_TO_ENCODE}")
    ports = str(named.get("port", "")).split(",")
    if not all(not port or (port.isdecimal() and 0 < int(port[:6]) <= MAX_PORT) for port in ports):
        problem = f"the port in the URL must be a number from 1 to {MAX_PORT}"
        raise SettingsError("store", f"{problem}; {HOW_TO_ENCODE}" if "@" in url else problem)


def postgres_dsn(url: str) -> str:
    """Return a URL as a connection string, with `POSTGRES_CONNECT_DEFAULTS` for what it does not name."""
    named = conninfo_to_dict(url)
    others = {option: value for option, value in POSTGRES_CONNECT_DEFAULTS.items() if option not in named}
    return make_conninfo(url, **others)


def _url_problem(url: str, error: str) -> str:
    """Return in words of our own what the driver says of a URL: it quotes parts, and also the whole of it."""
    if "space" in error:
        return "it has a space; write %20 for it"
    if "percent" in error:
        return f"each % must be followed by two hexadecimal digits; {HOW_TO_ENCODE}"
    if "IPv6" in error:
        return "an IPv6 address needs brackets, such as [::1]"
    parameter = re.search(r'invalid URI query parameter: "(\w+)"', error)
    if parameter and "password" not in url.partition("?")[2]:
        return f"it has the parameter {parameter[1]!r}, which PostgreSQL does not know"
    if "query parameter" in error:
        return f"its parameters must be NAME=VALUE, with & between them; {HOW_TO_ENCODE}"
    return f"it must be postgresql://USER:PASSWORD@HOST:PORT/DATABASE; {HOW_TO_ENCODE}"


class _Connection(psycopg.AsyncConnection[TupleRow]):
    """A connection, and how each of its transactions must begin."""

    transaction_settings: tuple[tuple[str, str], ...] = ()
    """What to set at the beginning of each; nothing if the connection has it for good, or the server by itself."""


class PostgresPool:
    """A few connections for one event loop."""

    def __init__(self, url: str, *, builds_indexes: bool = True) -> None:
        self._url = url
        self._builds_indexes = builds_indexes
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._indexing: asyncio.Task[None] | None = None
        """Builds indexes that an older version of Holdfast did not make; only `close` waits for it."""
        self._closings = 0
        """How often the pool was closed: a connection that was in use at that time is not used again."""
        self._lent = 0
        """How many connections are in use, or being opened."""
        self._returned = asyncio.Event()
        """Set when a connection is returned, or could not be opened."""
        self._refused_until = 0.0
        """Until when no further connection is asked for; by the clock of the event loop."""
        self._has_indexes = False
        """Whether a connection has found all indexes. Tables that are made anew are made with them."""

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
            try:
                return await self._run_on_one(action, is_transaction=is_transaction)
            except psycopg.errors.IdleSessionTimeout:
                # The server had ended an idle connection before it could read the statement.
                return await self._run_on_one(action, is_transaction=is_transaction)
        except psycopg.Error as error:
            raise as_postgres_store_error(error) from error
        except (UnicodeError, OverflowError) as error:
            raise StoreUnavailableError(POSTGRES_LABEL, _value_problem(error)) from error

    async def _run_on_one(self, action: Callable[[Cursor], Awaitable[T]], *, is_transaction: bool) -> T:
        """Run an action on one connection, again if the server rolled it back because of a concurrent transaction."""
        async with self.connection() as connection:
            for _ in range(MAX_ROLLBACKS):
                try:
                    return await _attempt(connection, action, is_transaction=is_transaction)
                except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                    # Wait with jitter so that conflicting writers do not retry in lockstep.
                    await asyncio.sleep(random() * ROLLBACK_PAUSE_SECONDS)  # noqa: S311 - jitter needs no cryptography
            return await _attempt(connection, action, is_transaction=is_transaction)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection, None]:
        """Lend a connection; a new one if none is idle."""
        async with self._slots:
            closings = self._closings
            connection = await self._free_connection()
            is_usable = True
            try:
                yield connection
            except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
                # The server may have gone away, and the other connections with it. Where it only reads, it may be no
                # primary any more, or was told so by a setting, which connections keep that are open.
                is_usable = False
                await self._close_connections()
                raise
            finally:
                self._lent -= 1
                self._returned.set()
                is_idle = connection.info.transaction_status == TransactionStatus.IDLE
                if is_usable and is_idle and closings == self._closings:
                    self._idle.append(connection)
                else:
                    await connection.close()

    async def _free_connection(self) -> Connection:
        """Return an idle connection, or a new one; if the server has none left, wait for one that is in use here."""
        clock = asyncio.get_running_loop().time
        while True:
            if self._idle or not self._lent or clock() >= self._refused_until:
                self._lent += 1
                try:
                    return await self._idle_connection() or await self._connect()
                except BaseException as error:
                    self._lent -= 1
                    self._returned.set()
                    is_full = isinstance(error, psycopg.OperationalError) and _is_full(str(error), error.sqlstate)
                    if not is_full or not (self._lent or self._idle):
                        raise
                    self._refused_until = clock() + REFUSED_SECONDS
            if not self._idle:  # one may have been returned while the server refused another
                self._returned.clear()
                await self._returned.wait()

    async def _idle_connection(self) -> "Connection | None":
        """Take an idle connection; those that the server has ended meanwhile are closed."""
        while self._idle:
            connection = self._idle.pop()
            if not _has_ended(connection):
                return connection
            await connection.close()
        return None

    async def _connect(self) -> Connection:
        dsn = postgres_dsn(self._url)
        connection = await _Connection.connect(dsn, autocommit=True)
        try:
            await _make_values_exact(connection)
            await _strengthen_settings(connection)
            await _create_tables(connection)
            if self._builds_indexes and self._indexing is None and not self._has_indexes:
                if missing := await missing_indexes(connection):
                    self._indexing = asyncio.create_task(_build_indexes(dsn, missing))
                    self._indexing.add_done_callback(lambda done: done.cancelled() or done.exception())
                else:
                    self._has_indexes = True
        except BaseException:
            await connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Close all connections, those in use when they are returned; the next call connects again."""
        indexing, self._indexing = self._indexing, None
        if indexing:
            # A build that is interrupted begins anew with the next program, so a short one may end.
            await asyncio.wait({indexing}, timeout=INDEX_BUILD_SECONDS)
            indexing.cancel()
            await asyncio.wait({indexing})
        await self._close_connections()

    async def _close_connections(self) -> None:
        """Close all connections but those that build indexes; the next call connects again."""
        self._closings += 1
        if self._indexing is not None and self._indexing.done():
            self._indexing = None
        while self._idle:
            await self._idle.pop().close()

    def discard(self) -> None:
        """Close all idle connections, without the event loop that opened them."""
        self._closings += 1
        while self._idle:
            connection = self._idle.pop()
            connection.pgconn.finish()


def _is_full(said: str, state: str | None) -> bool:
    """Return whether a server refused a connection because it has none left."""
    return state == "53300" or (not state and any(words in said for words in NO_FREE_CONNECTION))


def _has_ended(connection: Connection) -> bool:
    """Return whether the server has ended an idle connection. Nothing is sent: only what has arrived is read."""
    try:
        for _ in ("the reason", "the end"):
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return connection.closed


async def _attempt(connection: Connection, action: Callable[[Cursor], Awaitable[T]], *, is_transaction: bool) -> T:
    settings = connection.transaction_settings
    async with connection.cursor() as cursor:
        if not is_transaction and {name for name, _ in settings} <= {"statement_timeout"}:
            try:
                # For one statement, a clock of our own saves the transaction that the setting would need.
                async with asyncio.timeout(STATEMENT_TIMEOUT_MS / 1000 if settings else None):
                    return await action(cursor)
            except TimeoutError as error:
                raise psycopg.errors.QueryCanceled from error
        async with connection.transaction():
            if settings:
                await _set(connection, settings, is_local=True)
            return await action(cursor)


async def _make_values_exact(connection: Connection) -> None:
    """Replace those settings that would change texts and bytes on their way. PgBouncer keeps both for each client."""
    status = connection.info.parameter_status
    # A database without an encoding stores bytes as they come, and the driver would return bytes for texts.
    has_every_text = status("server_encoding") in {"UTF8", "SQL_ASCII"}
    settings = [
        (name, value)
        for name, is_wrong, value in (
            ("client_encoding", has_every_text and status("client_encoding") != "UTF8", "UTF8"),
            # The driver would write each backslash twice.
            ("standard_conforming_strings", status("standard_conforming_strings") == "off", "on"),
        )
        if is_wrong
    ]
    if settings:
        await _set(connection, settings)


async def _strengthen_settings(connection: Connection) -> None:
    """Replace those settings of the server that would break the contract, for this program only."""
    statement = """
        SELECT pg_backend_pid(), current_setting('default_transaction_isolation'),
            current_setting('synchronous_commit'), current_setting('statement_timeout')
    """
    row = await (await connection.execute(statement)).fetchone()
    process, isolation, commit, timeout = row or (0, "", "", "")
    settings = [
        (name, stronger)
        for name, is_weak, stronger in (
            ("default_transaction_isolation", isolation != "read committed", "read committed"),
            ("synchronous_commit", commit == "off", "on"),
            ("statement_timeout", timeout == "0", str(STATEMENT_TIMEOUT_MS)),
        )
        if is_weak
    ]
    await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
    if process != connection.info.backend_pid:
        # A pooler answers with process numbers of its own.
        connection.prepare_threshold = None
        connection.transaction_settings = tuple(settings)
    elif settings:
        await _set(connection, settings)


async def _set(connection: Connection, settings: Sequence[tuple[str, str]], *, is_local: bool = False) -> None:
    """Change settings of a connection, or of its running transaction only."""
    each = ", ".join(["set_config(%s, %s, %s)"] * len(settings))
    await connection.execute(f"SELECT {each}".encode(), [one for pair in settings for one in (*pair, is_local)])


async def _create_tables(connection: Connection) -> None:
    """Bring the tables up to date; of several processes that open a new database at once, one does it."""
    if (found := await _schema_version(connection)) == len(POSTGRES_MIGRATIONS):
        return
    _check_version(found)  # also for a role that may not CREATE
    async with connection.transaction(), connection.cursor() as cursor:
        # A change of a table that waits for its lock makes every later statement wait too.
        await cursor.execute("SELECT set_config('lock_timeout', %s, true)", (str(MIGRATION_LOCK_MS),))
        await cursor.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        await cursor.execute("CREATE SCHEMA IF NOT EXISTS holdfast")
        await cursor.execute("CREATE TABLE IF NOT EXISTS holdfast.schema (version INTEGER NOT NULL)")
        version = await _schema_version(connection)
        _check_version(version)
        for migration in POSTGRES_MIGRATIONS[version:]:
            await cursor.execute(migration.encode())
        if version == 0:
            # The tables are empty, so their indexes are made at once.
            for name, definition in POSTGRES_INDEXES.items():
                await cursor.execute(f"CREATE INDEX {name} ON {definition}".encode())
        if version < len(POSTGRES_MIGRATIONS):
            await cursor.execute("DELETE FROM holdfast.schema")
            await cursor.execute("INSERT INTO holdfast.schema (version) VALUES (%s)", (len(POSTGRES_MIGRATIONS),))


def _check_version(version: int) -> None:
    if version > len(POSTGRES_MIGRATIONS):
        raise StoreUnavailableError(POSTGRES_LABEL, "it was written by a newer Holdfast; update Holdfast")


async def missing_indexes(connection: Connection) -> list[str]:
    """Return the names of `POSTGRES_INDEXES` that the tables do not have, or not whole."""
    query = """
        SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
        WHERE relnamespace = to_regnamespace('holdfast') AND indisvalid AND relname = ANY (%s)
    """
    found = await (await connection.execute(query, (list(POSTGRES_INDEXES),))).fetchall()
    return [name for name in POSTGRES_INDEXES if (name,) not in found]


async def _build_indexes(dsn: str, names: Sequence[str]) -> None:
    """Build indexes of tables that are in use, without locking them, unless another program builds them already.

    Everything works without them, only slower, so a role that does not own the tables leaves them out.
    """
    connect = psycopg.AsyncConnection[TupleRow].connect
    # The lock belongs to a transaction, and CREATE INDEX CONCURRENTLY runs outside of one: two connections.
    async with await connect(dsn) as waiting, await connect(dsn, autocommit=True, prepare_threshold=None) as building:
        query = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass('holdfast.sessions')"
        if (await (await building.execute(query)).fetchone()) != (True,):
            return
        # Without parameters: a statement that has some keeps its snapshot, for which the build would wait.
        lock = await waiting.execute(f"SELECT pg_try_advisory_xact_lock({INDEX_LOCK})".encode())
        if (await lock.fetchone()) != (True,):
            return
        for name in names:
            # A build that was interrupted leaves an index that is never used.
            await building.execute(f"DROP INDEX CONCURRENTLY IF EXISTS holdfast.{name}".encode())
            await building.execute(f"CREATE INDEX CONCURRENTLY {name} ON {POSTGRES_INDEXES[name]}".encode())


async def _schema_version(connection: Connection) -> int:
    """Return how many migrations the tables have; 0 if there are no tables."""
    found = await (await connection.execute("SELECT to_regclass('holdfast.schema') IS NOT NULL")).fetchone()
    if not found or not found[0]:
        return 0
    row = await (await connection.execute("SELECT version FROM holdfast.schema")).fetchone()
    version = row[0] if row else 0
    if not isinstance(version, int):
        problem = f"{OTHER_TABLES} (holdfast.schema says that its version is {version!r:.40}); {USE_OTHER_DATABASE}"
        raise StoreUnavailableError(POSTGRES_LABEL, problem)
    return version


def as_postgres_store_error(error: "psycopg.Error") -> StoreUnavailableError:
    """Return a driver's error as a `StoreUnavailableError`, never with the password in it."""
    state = error.sqlstate or ""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if refused := _refused_connection(first, state):
        problem = refused
    elif state == "57014":
        problem = (
            "a statement took longer than the server's statement_timeout, or was cancelled; another program may hold "
            "a lock on the tables of Holdfast; try again"
        )
    elif state == "42501":
        problem = f"the role may not do this ({first}); let a role that may CREATE open the store once, and grant "
        problem += "USAGE on the schema holdfast and SELECT, INSERT, UPDATE, DELETE on its tables"
    elif state == "25006" or first.endswith("session is read-only"):
        problem = f"{SERVER_IS_READ_ONLY}; {USE_PRIMARY}"
    elif state == "54000" and "index row size" in first:
        problem = f"the id of the session is too long for PostgreSQL ({first}); choose one of at most 2,000 bytes"
    elif state in {"40001", "40P01"}:
        problem = "other writers changed the same rows too often; try again"
    elif state == "53100":
        problem = "the disk of the server is full; free some space and try again"
    elif state in FOREIGN_STATES:
        problem = f"{OTHER_TABLES} ({first}); {USE_OTHER_DATABASE}"
    elif isinstance(error, psycopg.OperationalError) and (not state or state.startswith(UNREACHABLE_STATES)):
        problem = f"the server cannot be reached ({first}); try again when it is available"
    else:
        problem = f"the server says: {first}"
    return StoreUnavailableError(POSTGRES_LABEL, problem)


def _refused_connection(said: str, state: str) -> str:
    """Return why a server that was reached, or would be, lets nobody in; empty if nothing is known of it."""
    is_missing_role = "FATAL" in said and 'role "' in said and "does not exist" in said
    if state.startswith("28") or is_missing_role or "password authentication failed" in said:
        return "user or password is wrong; check the URL"
    reason = said.rpartition("FATAL:  ")[2]
    if _is_full(said, state):
        remedy = "try again, raise max_connections or the limit of the role, or put PgBouncer in front"
        return f"the server has no free connection ({reason}); {remedy}"
    if "pg_hba.conf" in said:
        return f"the server does not let this user in ({reason}); add a line for it to pg_hba.conf, or check the URL"
    if state == "3D000" or ("FATAL" in said and 'database "' in said and "does not exist" in said):
        return "there is no such database; create it, or check the URL"
    is_invalid = "invalid" in said and "value" in said
    if not state and (is_invalid or any(words in said for words in WRONG_OPTIONS)):
        return f"an option of the URL does not fit ({said}); correct the URL"
    return ""


def _value_problem(error: Exception) -> str:
    """Return why a value cannot be stored, and what to do."""
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return (
            f"the database has the encoding {error.encoding}, which cannot hold every text; use a database that was "
            "created with ENCODING 'UTF8' TEMPLATE template0"
        )
    return f"it cannot store this value: {error}; pass another"


def is_rejected_statement(error: StoreUnavailableError) -> bool:
    """Return whether the server is well and rejected one statement, for a reason that need not concern another."""
    cause = error.__cause__
    if isinstance(cause, psycopg.errors.QueryCanceled):
        return False
    is_unreachable = isinstance(cause, psycopg.OperationalError) and (
        not cause.sqlstate or cause.sqlstate.startswith(UNREACHABLE_STATES)
    )
    return not is_unreachable
