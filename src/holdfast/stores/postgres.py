"""A store shared by many machines: PostgreSQL, through psycopg. `Store` documents each method.

The store holds one connection. When it is lost, the call that noticed raises and the next call connects again. An
append whose connection is lost may have been committed, so it checks that first. A search adds up PostgreSQL's own rank
of each term, weighted by how rare the term is. Needs the extra `holdfast[postgres]`.

The server's defaults do not weaken the contract. Transactions are READ COMMITTED whatever the database says, because
the locks below rely on it; a transaction that the server rolls back for a conflict runs again. A commit waits for the
disk even where `synchronous_commit` is off. No statement, and no lost network, makes a caller wait for ever. Once the
tables exist, a role without the right to CREATE can use them.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from random import random
from typing import TypeAlias, TypeVar

from holdfast.errors import MissingBlobError, SequenceConflictError, StoreUnavailableError, UnknownSessionError
from holdfast.stores.base import (
    AppendTimes,
    IndexEntry,
    JsonRecord,
    SearchHit,
    SessionInfo,
    Snapshot,
    StoredRecord,
    check_session_id,
    check_storable_text,
    is_session_value_key,
)
from holdfast.stores.encoding import (
    compress,
    decode_record,
    decompress,
    encode_record,
    pack_record,
    sha256_hex,
    unpack_records,
)
from holdfast.stores.event_loop import EventLoopGuard
from holdfast.stores.search_terms import SearchTerm, index_words, search_terms

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.rows import TupleRow
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise ImportError("PostgreSQL needs a driver: pip install '.[postgres]' in Holdfast's folder") from error

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
MAX_VECTOR_BYTES = 1_000_000
"""A little less than PostgreSQL's limit for the index of one text; it rejects larger ones."""
MIGRATION_LOCK = 0x686F6C64
"""The key of the advisory lock that makes the migrations of several machines wait for each other."""
T = TypeVar("T")
Cursor: TypeAlias = "psycopg.AsyncCursor[TupleRow]"
_FIRST_NUMBER = re.compile(r"[0-9]+")
_EVENTS_OF = "FROM holdfast.events JOIN holdfast.sessions ON number = session WHERE id = %s"
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
POSTGRES_TABLES = tuple(
    f"holdfast.{name}" for name in ("sessions", "events", "blobs", "blob_uses", "snapshots", "facts", "words")
)
MAX_PURGED_BYTES = 2**30
"""Larger tables are not rewritten while others use them: that locks them for too long."""
MAX_POSITION = 2**62
POSTGRES_SEARCH = """
    WITH queries AS (
        SELECT number, to_tsquery('simple', term) AS query
        FROM unnest(%s::text[]) WITH ORDINALITY AS input (term, number)
    ), matches AS (
        SELECT id, position, queries.number AS term, ts_rank(body, query, 1) AS fit
        FROM queries
        JOIN holdfast.words ON body @@ query
        JOIN holdfast.sessions ON sessions.number = session
        WHERE (%s::text IS NULL OR id = %s) AND position >= %s AND position < %s
    ), weights AS (
        SELECT term, power(ln(1 + counted.total / (count(*) + 0.5)), 1.5) AS weight
        FROM matches, (SELECT sum(length) AS total FROM holdfast.sessions WHERE %s::text IS NULL OR id = %s) AS counted
        GROUP BY term, counted.total
    )
    SELECT id, position, sum(fit * weight)::float8 AS score FROM matches JOIN weights USING (term)
    GROUP BY id, position ORDER BY score DESC, position DESC LIMIT %s
"""
"""Parameters: the terms, a session twice, two positions, the session twice again, a limit."""


class PostgresStore:
    """Keeps everything in the schema `holdfast` of one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: psycopg.AsyncConnection[TupleRow] | None = None
        self._lock = asyncio.Lock()
        self._guard = EventLoopGuard("this PostgreSQL store")

    async def append(
        self,
        session: str,
        records: Sequence[JsonRecord],
        *,
        after: int,
        time_ms: int | Sequence[int],
        index: Sequence[IndexEntry] = (),
        blobs: Sequence[str] = (),
    ) -> int:
        check_session_id(session)
        times = AppendTimes.of(time_ms, len(records))
        lines = [(time, pack_record(record)) for time, record in zip(times.each, records, strict=True)]
        length = after + len(lines)

        async def write(cursor: Cursor) -> None:
            number = await _extend_session(cursor, session, after=after, length=length, times=times)
            rows = [(number, position, *line) for position, line in enumerate(lines, after)]
            await _insert_records(cursor, number, rows, index, blobs)

        try:
            await self._in_transaction(write)
        except StoreUnavailableError:
            if not await self._was_appended(session, after, lines):
                raise
        return length

    async def rewrite(
        self,
        session: str,
        records: Mapping[int, JsonRecord],
        *,
        tombstone: JsonRecord,
        after: int,
        time_ms: int,
        index: Sequence[IndexEntry] = (),
        blobs: Sequence[str] = (),
        dropped: Sequence[str] = (),
    ) -> int:
        check_session_id(session)

        async def write(cursor: Cursor) -> None:
            times = AppendTimes.of(time_ms, 1)
            number = await _extend_session(cursor, session, after=after, length=after + 1, times=times)
            await _insert_records(cursor, number, [(number, after, time_ms, pack_record(tombstone))], index, blobs)
            update = "UPDATE holdfast.events SET data = %s WHERE session = %s AND position = %s"
            rows = [(pack_record(record), number, position) for position, record in records.items()]
            await cursor.executemany(update, rows)
            await cursor.execute("DELETE FROM holdfast.snapshots WHERE session = %s", (number,))
            uses = "DELETE FROM holdfast.blob_uses WHERE session = %s AND digest = ANY (%s)"
            await cursor.execute(uses, (number, list(dropped)))
            await _delete_unused_blobs(cursor, dropped)

        await self._in_transaction(write)
        return after + 1

    async def purge(self) -> tuple[str, ...]:
        """Rewrite the tables, because PostgreSQL keeps the bytes of old rows in their pages; each is locked meanwhile.

        Only the owner of a table may rewrite it.
        """
        sizes = "SELECT sum(pg_total_relation_size(one)) FROM unnest(%s::regclass[]) AS one"
        rewrite = f"VACUUM (FULL, VERBOSE) {', '.join(POSTGRES_TABLES)}"
        if (await self._rows(sizes, (list(POSTGRES_TABLES),)))[0][0] > MAX_PURGED_BYTES:
            too_large = (
                "the tables of the server still hold what was replaced, and are too large to be rewritten while "
            )
            return (f"{too_large}others use them; when nobody does, run as their owner: {rewrite}",)
        before, visible = await self._filenodes(), 0

        def count_visible(notice: "psycopg.errors.Diagnostic") -> None:
            nonlocal visible
            found = _FIRST_NUMBER.search(notice.message_detail or "")
            visible += int(found[0]) if found else 0

        self._check_loop()
        async with self._lock:
            try:
                connection = await self._connect()
                connection.add_notice_handler(count_visible)
                try:
                    await connection.execute(rewrite.encode())
                finally:
                    connection.remove_notice_handler(count_visible)
            except psycopg.Error as error:
                await self._disconnect()
                problem = _as_store_error(error).problem
                return (f"the tables of the server still hold what was replaced: {problem}; then run this again",)
        after = await self._filenodes()
        kept = [table for table, old, new in zip(POSTGRES_TABLES, before, after, strict=True) if old == new]
        remaining: list[str] = []
        if kept:
            remaining.append(
                f"{', '.join(kept)} of the server still hold what was replaced, because only their owner may rewrite "
                f"them; run as their owner: {rewrite}"
            )
        if visible:
            remaining.append(
                f"the tables of the server still hold {visible:,} replaced rows that an open transaction can see; end "
                "that transaction, and run this again"
            )
        return tuple(remaining)

    async def _filenodes(self) -> list[int]:
        """Return the file of each table; it changes when the table is rewritten."""
        query = (
            "SELECT pg_relation_filenode(one) FROM unnest(%s::regclass[]) WITH ORDINALITY AS tables (one, number) "
            "ORDER BY number"
        )
        return [number for (number,) in await self._rows(query, (list(POSTGRES_TABLES),))]

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        check_session_id(session)
        query = f"SELECT position, time_ms, data {_EVENTS_OF} AND position >= %s ORDER BY position LIMIT %s"
        return unpack_records(await self._rows(query, (session, start, limit)), POSTGRES_LABEL)

    async def read_at(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        check_session_id(session)
        query = f"SELECT position, time_ms, data {_EVENTS_OF} AND position = ANY (%s) ORDER BY position"
        return unpack_records(await self._rows(query, (session, list(positions))), POSTGRES_LABEL)

    async def length(self, session: str) -> int:
        check_session_id(session)
        rows = await self._rows("SELECT length FROM holdfast.sessions WHERE id = %s", (session,))
        return rows[0][0] if rows else 0

    async def put_blob(self, content: bytes) -> str:
        digest = sha256_hex(content)
        if not await self._rows("SELECT 1 FROM holdfast.blobs WHERE digest = %s", (digest,)):
            insert = "INSERT INTO holdfast.blobs (digest, data) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            await self._execute(insert, (digest, compress(content)))
        return digest

    async def get_blob(self, digest: str) -> bytes:
        rows = await self._rows("SELECT data FROM holdfast.blobs WHERE digest = %s", (digest,))
        if not rows:
            raise MissingBlobError(digest)
        return decompress(rows[0][0], POSTGRES_LABEL)

    async def search(
        self, words: str, *, session: str | None = None, limit: int = 20, start: int = 0, stop: int | None = None
    ) -> list[SearchHit]:
        terms = [_to_tsquery(term) for term in search_terms(words)]
        first, last = (0, MAX_POSITION) if session is None else (start, MAX_POSITION if stop is None else stop)
        values = terms, session, session, first, last, session, session, limit
        return [SearchHit(*row) for row in await self._rows(POSTGRES_SEARCH, values)] if terms else []

    async def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        query = (
            "SELECT id, name, length, created_ms, updated_ms FROM holdfast.sessions WHERE starts_with(id, %s) "
            'AND (%s::bigint IS NULL OR (updated_ms, id COLLATE "C") < (%s::bigint, %s::text COLLATE "C")) '
            'ORDER BY updated_ms DESC, id COLLATE "C" DESC LIMIT %s'
        )
        time_ms, name = before or (None, None)
        return [SessionInfo(*row) for row in await self._rows(query, (prefix, time_ms, time_ms, name, limit))]

    async def rename(self, session: str, name: str) -> None:
        check_session_id(session)
        check_storable_text("name", name)
        if not await self._execute("UPDATE holdfast.sessions SET name = %s WHERE id = %s", (name, session)):
            raise UnknownSessionError(session)

    async def delete(self, session: str) -> bool:
        check_session_id(session)

        async def write(cursor: Cursor) -> bool:
            await cursor.execute("SELECT number FROM holdfast.sessions WHERE id = %s FOR UPDATE", (session,))
            row = await cursor.fetchone()
            if row is None:
                return False
            await cursor.execute("SELECT digest FROM holdfast.blob_uses WHERE session = %s", row)
            used = [digest for (digest,) in await cursor.fetchall()]
            await cursor.execute("DELETE FROM holdfast.sessions WHERE number = %s", row)
            await _delete_unused_blobs(cursor, used)
            ending = f":{session}"
            await cursor.execute("SELECT key FROM holdfast.facts WHERE right(key, %s) = %s", (len(ending), ending))
            about = [key for (key,) in await cursor.fetchall() if is_session_value_key(key, session)]
            await cursor.execute("DELETE FROM holdfast.facts WHERE key = ANY(%s)", (about,))
            return True

        return await self._in_transaction(write)

    async def put_snapshot(self, session: str, snapshot: Snapshot) -> bool:
        check_session_id(session)
        insert = (
            "INSERT INTO holdfast.snapshots (session, length, data) "
            "SELECT number, length, %s FROM holdfast.sessions WHERE id = %s AND length = %s FOR SHARE "
            "ON CONFLICT (session) DO UPDATE SET length = excluded.length, data = excluded.data"
        )
        return bool(await self._execute(insert, (compress(snapshot.data), session, snapshot.length)))

    async def get_snapshot(self, session: str) -> Snapshot | None:
        check_session_id(session)
        query = (
            "SELECT snapshots.length, data FROM holdfast.snapshots "
            "JOIN holdfast.sessions ON number = session WHERE id = %s"
        )
        rows = await self._rows(query, (session,))
        return Snapshot(rows[0][0], decompress(rows[0][1], POSTGRES_LABEL)) if rows else None

    async def put_value(self, key: str, value: JsonRecord) -> None:
        insert = (
            "INSERT INTO holdfast.facts (key, value) VALUES (%s, %s) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
        await self._execute(insert, (key, encode_record(value)))

    async def get_value(self, key: str) -> JsonRecord | None:
        rows = await self._rows("SELECT value FROM holdfast.facts WHERE key = %s", (key,))
        return decode_record(rows[0][0], POSTGRES_LABEL) if rows else None

    async def values(self, prefix: str) -> dict[str, JsonRecord]:
        query = "SELECT key, value FROM holdfast.facts WHERE starts_with(key, %s) ORDER BY key"
        return {key: decode_record(value, POSTGRES_LABEL) for key, value in await self._rows(query, (prefix,))}

    async def close(self) -> None:
        """Close the connection; the next call connects again."""
        self._check_loop()
        async with self._lock:
            await self._disconnect()

    async def _was_appended(self, session: str, after: int, sent: list[tuple[int, bytes]]) -> bool:
        """Return whether the log holds these records at their positions; False if the server cannot be asked."""
        query = f"SELECT time_ms, data {_EVENTS_OF} AND position >= %s ORDER BY position LIMIT %s"
        try:
            rows = await self._rows(query, (session, after, len(sent)))
        except StoreUnavailableError:
            return False
        return bool(sent) and [(time_ms, bytes(data)) for time_ms, data in rows] == sent

    async def _rows(self, query: str, values: Sequence[object]) -> list[TupleRow]:
        async def read(cursor: Cursor) -> list[TupleRow]:
            await cursor.execute(query.encode(), values, binary=True)
            return await cursor.fetchall()

        return await self._in_transaction(read)

    async def _execute(self, statement: str, values: Sequence[object]) -> int:
        async def write(cursor: Cursor) -> int:
            await cursor.execute(statement.encode(), values)
            return cursor.rowcount

        return await self._in_transaction(write)

    async def _in_transaction(self, action: Callable[[Cursor], Awaitable[T]]) -> T:
        """Return the result of an action, one at a time; translate the driver's errors.

        The action runs again if the server rolled its transaction back because of a concurrent one.
        """
        self._check_loop()
        async with self._lock:
            try:
                for _ in range(MAX_ROLLBACKS):
                    try:
                        return await self._attempt(action)
                    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                        # Wait with jitter so that conflicting writers do not retry in lockstep.
                        await asyncio.sleep(random() * ROLLBACK_PAUSE_SECONDS)  # noqa: S311 - jitter needs no cryptography
                return await self._attempt(action)
            except psycopg.Error as error:
                if self._connection is None or self._connection.closed or isinstance(error, psycopg.OperationalError):
                    await self._disconnect()
                raise _as_store_error(error) from error
            except (UnicodeError, OverflowError) as error:
                raise StoreUnavailableError(
                    POSTGRES_LABEL, f"it cannot store this value: {error}; pass another"
                ) from error

    async def _attempt(self, action: Callable[[Cursor], Awaitable[T]]) -> T:
        connection = await self._connect()
        async with connection.transaction(), connection.cursor() as cursor:
            return await action(cursor)

    def _check_loop(self) -> None:
        """Raise if the connection belongs to another event loop or process; discard that of a loop that has ended."""
        if self._guard.has_loop_ended:
            self._guard, self._lock = EventLoopGuard("this PostgreSQL store"), asyncio.Lock()
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.pgconn.finish()
        self._guard.check()

    async def _connect(self) -> "psycopg.AsyncConnection[TupleRow]":
        if self._connection is None or self._connection.closed:
            named = conninfo_to_dict(self.url)
            others = {option: value for option, value in POSTGRES_CONNECT_DEFAULTS.items() if option not in named}
            connection = await psycopg.AsyncConnection.connect(make_conninfo(self.url, **others), autocommit=True)
            try:
                await _strengthen_settings(connection)
                await _migrate(connection)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _insert_records(
    cursor: "psycopg.AsyncCursor[TupleRow]",
    number: int,
    rows: Sequence[tuple[int, int, int, bytes]],
    index: Sequence[IndexEntry],
    blobs: Sequence[str],
) -> None:
    """Write records, their index entries and their references to blobs."""
    events = "INSERT INTO holdfast.events (session, position, time_ms, data) VALUES (%s, %s, %s, %s)"
    await cursor.executemany(events, rows)
    if index:
        words = (
            "INSERT INTO holdfast.words (session, position, body) VALUES (%s, %s, to_tsvector('simple', %s)) "
            "ON CONFLICT (session, position) DO UPDATE SET body = excluded.body"
        )
        bodies = [(number, item.position, " ".join(_indexable(item.text))) for item in index]
        await cursor.executemany(words, bodies)
    if blobs:
        stored = "SELECT digest FROM holdfast.blobs WHERE digest = ANY (%s) ORDER BY digest FOR KEY SHARE"
        await cursor.execute(stored, (list(blobs),))
        for missing in set(blobs) - {digest for (digest,) in await cursor.fetchall()}:
            raise MissingBlobError(missing)
        uses = "INSERT INTO holdfast.blob_uses (session, digest) VALUES (%s, %s) ON CONFLICT DO NOTHING"
        await cursor.executemany(uses, [(number, digest) for digest in blobs])


async def _delete_unused_blobs(cursor: "psycopg.AsyncCursor[TupleRow]", digests: Sequence[str]) -> None:
    """Delete those blobs that no session refers to."""
    # The lock waits for writers that are about to refer to a blob; only the next statement sees their references.
    lock = "SELECT 1 FROM holdfast.blobs WHERE digest = ANY (%s) ORDER BY digest FOR UPDATE"
    await cursor.execute(lock, (list(digests),))
    unused = (
        "DELETE FROM holdfast.blobs WHERE digest = ANY (%s) AND digest NOT IN (SELECT digest FROM holdfast.blob_uses)"
    )
    await cursor.execute(unused, (list(digests),))


def _indexable(text: str) -> Iterator[str]:
    """Yield the first words of a text, as many as PostgreSQL can index."""
    size, known = 0, set[str]()
    for word in index_words(text):
        # PostgreSQL stores a word once, with two bytes for each occurrence.
        size += 2 if word in known else len(word.encode()) + 5
        if size > MAX_VECTOR_BYTES:
            return
        known.add(word)
        yield word


async def _extend_session(
    cursor: "psycopg.AsyncCursor[TupleRow]", session: str, *, after: int, length: int, times: AppendTimes
) -> int:
    """Set the length of a session, creating it if it does not exist, and return its number; locks its row."""
    if after == 0:
        insert = (
            "INSERT INTO holdfast.sessions (id, length, created_ms, updated_ms) VALUES (%s, 0, %s, %s) "
            "ON CONFLICT (id) DO NOTHING"
        )
        await cursor.execute(insert, (session, times.first, times.latest))
    update = (
        "UPDATE holdfast.sessions SET length = %s, updated_ms = greatest(updated_ms, %s) "
        "WHERE id = %s AND length = %s RETURNING number"
    )
    await cursor.execute(update, (length, times.latest, session, after))
    row = await cursor.fetchone()
    if row is None:
        await cursor.execute("SELECT length FROM holdfast.sessions WHERE id = %s", (session,))
        actual = await cursor.fetchone()
        raise SequenceConflictError(session, expected=after, actual=actual[0] if actual else 0)
    return row[0]


def _to_tsquery(term: SearchTerm) -> str:
    """Return a term in the syntax of `to_tsquery`."""
    return " <-> ".join(f"'{word}'" for word in term.words) + (":*" if term.is_stem else "")


async def _strengthen_settings(connection: "psycopg.AsyncConnection[TupleRow]") -> None:
    """Replace those settings of the server that would break the contract, for this connection only."""
    statement = (
        "SELECT set_config(name, value, false) FROM (VALUES ('default_transaction_isolation', 'read committed'), "
        "('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' END), "
        "('statement_timeout', CASE current_setting('statement_timeout') WHEN '0' THEN %s END)"
        ") AS stronger (name, value) WHERE value IS NOT NULL"
    )
    await connection.execute(statement, (str(STATEMENT_TIMEOUT_MS),))


async def _migrate(connection: "psycopg.AsyncConnection[TupleRow]") -> None:
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


async def _schema_version(connection: "psycopg.AsyncConnection[TupleRow]") -> int:
    """Return how many migrations the tables have; 0 if there are no tables."""
    found = await (await connection.execute("SELECT to_regclass('holdfast.schema') IS NOT NULL")).fetchone()
    if not found or not found[0]:
        return 0
    row = await (await connection.execute("SELECT version FROM holdfast.schema")).fetchone()
    return row[0] if row else 0


def _as_store_error(error: "psycopg.Error") -> StoreUnavailableError:
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
