"""A store shared by many machines: PostgreSQL, through psycopg. `Store` documents each method.

Each event loop that uses the store has a few connections of its own. Appends that wait at the same time are written in
one statement, or in two at the same time if they are many; values that are asked for at the same time are read in one;
each has its own result. When a connection is lost, the call that noticed raises and the next call connects again. An
append whose connection is lost may have been committed, so it checks that first. A search adds up PostgreSQL's own rank
of each term, weighted by how rare the term is. Needs the extra `postgres`.
"""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias, cast

from holdfast.core.conversation.json_values import encode_json
from holdfast.errors import (
    MissingBlobError,
    SequenceConflictError,
    StoreUnavailableError,
    UnknownSessionError,
    WrongEventLoopError,
)
from holdfast.stores.appends import MAX_BATCH, Append
from holdfast.stores.base import (
    LAST_CHARACTER,
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
    plain_value_keys,
)
from holdfast.stores.encoding import compress, decode_record, decompress, pack_record, sha256_hex, unpack_records
from holdfast.stores.postgres_pool import (
    POSTGRES_AFTER_QUALIFIER,
    POSTGRES_LABEL,
    Cursor,
    PostgresPool,
    TupleRow,
    as_postgres_store_error,
    check_postgres_url,
    is_rejected_statement,
    psycopg,
)
from holdfast.stores.search_terms import SearchTerm, index_body, rarity_weight, search_terms

MAX_INLINE_BLOB_BYTES = 64_000
"""Larger blobs are hashed and compressed in a thread: 5 MB take 100 ms."""
MAX_VECTOR_BYTES = 1_000_000
"""A little less than PostgreSQL's limit for the index of one text; it rejects larger ones."""
_FIRST_NUMBER = re.compile(r"[0-9]+")
_NUMBER_OF = "(SELECT number FROM holdfast.sessions WHERE id = %s)"
"""A session by its id. With a join instead, each page of a log would read and sort all that comes after it."""
_EVENTS_OF = f"FROM holdfast.events WHERE session = {_NUMBER_OF}"
READ_FROM_SNAPSHOT = f"""
    SELECT NULL, length, data FROM holdfast.snapshots WHERE session = {_NUMBER_OF}
    UNION ALL (
        SELECT position, time_ms, data {_EVENTS_OF}
        AND position >= coalesce((SELECT length FROM holdfast.snapshots WHERE session = {_NUMBER_OF}), 0)
        ORDER BY position LIMIT %s
    )
"""  # noqa: S608 - made of parts of ours
"""Parameters: the session three times, a limit. The row of the snapshot has its length as a time, and no position."""
POSTGRES_TABLES = tuple(
    f"holdfast.{name}" for name in ("sessions", "events", "blobs", "blob_uses", "snapshots", "facts", "words")
)
MAX_PURGED_BYTES = 2**30
"""Larger tables are not rewritten while others use them: that locks them for too long."""
MAX_POSITION = 2**62
_RANKED = """
    ), weights AS (
        SELECT term, power(ln(1 + counted.total / (count(*) + 0.5)), 1.5) AS weight
        FROM matches, counted GROUP BY term, counted.total
    )
    SELECT id, position, sum(fit * weight)::float8 AS score FROM matches JOIN weights USING (term)
    JOIN holdfast.sessions ON number = session
    GROUP BY id, position ORDER BY score DESC, position DESC LIMIT %s
"""
_QUERIES = """
    WITH queries AS (
        SELECT term, to_tsquery('simple', words) AS query
        FROM unnest(%s::text[]) WITH ORDINALITY AS input (words, term)
    ), matches AS (
        SELECT session, position, term, ts_rank(body, query, 1) AS fit
"""
SEARCH_SESSION = f"""
    {_QUERIES} FROM queries JOIN holdfast.words ON body @@ query
        WHERE session = (SELECT number FROM holdfast.sessions WHERE id = %s) AND position >= %s AND position < %s
    ), counted AS (
        SELECT length AS total FROM holdfast.sessions WHERE id = %s
    {_RANKED}
"""  # noqa: S608 - made of parts of ours
"""Parameters: the terms, the session, two positions, the session again, a limit."""
SEARCH_ALL = f"""
    {_QUERIES} FROM queries JOIN holdfast.words ON body @@ query
    ), counted AS (
        SELECT sum(length) AS total FROM holdfast.sessions
    {_RANKED}
"""  # noqa: S608 - made of parts of ours
"""Parameters: the terms, a limit."""
SEARCH_MANY = """
    WITH queries AS (
        SELECT to_tsquery('simple', words) AS query, weight, is_rare
        FROM unnest(%s::text[], %s::float8[], %s::boolean[]) AS input (words, weight, is_rare)
    ), candidates AS (
        SELECT found.session, found.position, found.body FROM queries CROSS JOIN LATERAL (
            SELECT * FROM holdfast.words WHERE body @@ query LIMIT %s
        ) AS found WHERE is_rare
        UNION
        SELECT session, position, body FROM (
            SELECT number FROM holdfast.sessions ORDER BY updated_ms DESC, id COLLATE "C" DESC LIMIT %s
        ) AS newest JOIN holdfast.words ON session = number
    )
    SELECT id, position, sum(ts_rank(body, query, 1) * weight)::float8 AS score
    FROM candidates JOIN queries ON body @@ query JOIN holdfast.sessions ON number = session
    GROUP BY id, position, updated_ms ORDER BY score DESC, updated_ms DESC, position DESC LIMIT %s
"""
"""Parameters: the terms, the weight of each and whether it is rare; how many messages each rare term selects, and how
many of the newest sessions are read for the others; a limit."""
MANY_MESSAGES = 10_000
"""From how many messages on a search of all sessions does not rank every message that holds a common word."""
RARE_WORD_MESSAGES, MAX_RARE_MESSAGES, NEWEST_SESSIONS = 1_000, 2_000, 200
SESSION_VALUES = f"""
    SELECT key FROM holdfast.facts WHERE key = ANY (%s)
    UNION SELECT key FROM holdfast.facts WHERE {POSTGRES_AFTER_QUALIFIER} = %s
"""  # noqa: S608 - made of parts of ours
"""Parameters: the keys without a qualifier, and the session, which is what follows a qualifier."""
APPEND_BATCH = b"""
    WITH input AS (
        SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
        WITH ORDINALITY AS input (id, after, length, first_ms, latest_ms, item)
    ), created AS (
        INSERT INTO holdfast.sessions (id, length, created_ms, updated_ms)
        SELECT id, length, first_ms, latest_ms FROM input WHERE after = 0 ORDER BY id
        ON CONFLICT (id) DO NOTHING RETURNING number, id
    ), current AS (
        SELECT number, item, input.length, latest_ms FROM holdfast.sessions JOIN input USING (id)
        WHERE sessions.length = after ORDER BY number FOR NO KEY UPDATE OF sessions SKIP LOCKED
    ), extended AS (
        UPDATE holdfast.sessions SET length = current.length, updated_ms = greatest(updated_ms, latest_ms)
        FROM current WHERE sessions.number = current.number RETURNING sessions.number, item
    ), written AS (
        SELECT number, item FROM extended UNION ALL SELECT number, item FROM created JOIN input USING (id)
    ), inserted AS (
        INSERT INTO holdfast.events (session, position, time_ms, data)
        SELECT number, position, time_ms, substring(content FROM start FOR size)
        FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::integer[], %s::integer[])
            AS lines (item, position, time_ms, start, size)
        JOIN written USING (item) CROSS JOIN (SELECT %s::bytea AS content) AS whole
    ), indexed AS (
        INSERT INTO holdfast.words (session, position, body)
        SELECT number, position, to_tsvector('simple', body)
        FROM unnest(%s::bigint[], %s::bigint[], string_to_array(%s::text, chr(10))) AS texts (item, position, body)
        JOIN written USING (item)
        ON CONFLICT (session, position) DO UPDATE SET body = excluded.body
    )
    SELECT item FROM written
"""
"""Writes the appends of different sessions and returns the numbers of those written, from 1.

It leaves out an append whose log has another length, and one whose session another transaction has locked: it waits for
nobody, so one append does not delay the others. Parameters: for each append the session, the length before and after,
the first and the latest time; for each record the append, its position and time, and where in the bytes of all records,
which follow, its own start (from 1) and how many they are; for each text of the index the append and its position, and
then the words of each, a line for each text.
"""
APPEND_ONE = b"""
    WITH current AS (
        SELECT number FROM holdfast.sessions WHERE id = %s AND length = %s FOR NO KEY UPDATE SKIP LOCKED
    ), extended AS (
        UPDATE holdfast.sessions SET length = %s, updated_ms = greatest(updated_ms, %s)
        FROM current WHERE sessions.number = current.number RETURNING sessions.number
    ), inserted AS (
        INSERT INTO holdfast.events (session, position, time_ms, data)
        SELECT number, position, time_ms, substring(content FROM start FOR size)
        FROM extended, (SELECT %s::bytea AS content) AS whole,
            unnest(%s::bigint[], %s::bigint[], %s::integer[], %s::integer[]) AS lines (position, time_ms, start, size)
    ), indexed AS (
        INSERT INTO holdfast.words (session, position, body)
        SELECT number, position, to_tsvector('simple', body)
        FROM extended, unnest(%s::bigint[], string_to_array(%s::text, chr(10))) AS texts (position, body)
        ON CONFLICT (session, position) DO UPDATE SET body = excluded.body
    )
    SELECT 1::bigint FROM extended
"""
"""Writes one append to a session that exists, as `APPEND_BATCH` does in nearly twice the time.

Most of it is planning, and behind a pooler every statement is planned. Parameters: the session, the length before and
after, the latest time; the bytes of all records, and for each its position and time, where its bytes start (from 1) and
how many they are; the position of each text of the index, and the words of each, a line for each text.
"""
FIND_APPENDED = """
    SELECT item, time_ms, data
    FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) WITH ORDINALITY AS input (id, after, stop, item)
    JOIN holdfast.sessions USING (id)
    JOIN holdfast.events ON session = number AND position >= after AND position < stop
    ORDER BY item, position
"""
MAX_WRITERS, MIN_SHARED_BATCH = 2, 32
"""How many batches are written at the same time, and from how many appends on a batch is divided between them."""
INDEX_NEW_WORDS = b"SELECT gin_clean_pending_list('holdfast.words_by_body')"
INDEXED_CHARS = 8_000
"""After how much text the words that PostgreSQL has collected are put into the index, before a write has to do it."""
_Waiting: TypeAlias = "tuple[Append, asyncio.Future[bool]]"
_Asked: TypeAlias = "tuple[str, asyncio.Future[bytes | None]]"


class PostgresStore:
    """Keeps everything in the schema `holdfast` of one database."""

    def __init__(self, url: str) -> None:
        check_postgres_url(url)
        self.url = url
        self._writers: dict[asyncio.AbstractEventLoop, _BatchWriter] = {}
        """By event loop, its connections and the appends that wait there."""
        self._process = os.getpid()

    async def append(
        self,
        session: str,
        records: Sequence[JsonRecord],
        *,
        after: int,
        time_ms: int | Sequence[int],
        index: Sequence[IndexEntry] = (),
        blobs: Sequence[str] = (),
        name: str = "",
    ) -> int:
        item = Append.of(session, records, after=after, time_ms=time_ms, index=index, blobs=blobs, name=name)
        writer = self._writer()
        item.lines()
        if not item.is_batchable or not await writer.write_in_batch(item):
            await writer.write_alone(item)
        return item.length

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

        await self._pool.in_transaction(write)
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

        try:
            async with self._pool.connection() as connection:
                connection.add_notice_handler(count_visible)
                try:
                    await connection.execute(rewrite.encode())
                finally:
                    connection.remove_notice_handler(count_visible)
        except psycopg.Error as error:
            problem = as_postgres_store_error(error).problem
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
        is_large = len(content) > MAX_INLINE_BLOB_BYTES
        digest = await asyncio.to_thread(sha256_hex, content) if is_large else sha256_hex(content)
        if not await self._rows("SELECT 1 FROM holdfast.blobs WHERE digest = %s", (digest,)):
            insert = "INSERT INTO holdfast.blobs (digest, data) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            data = await asyncio.to_thread(compress, content) if is_large else compress(content)
            await self._execute(insert, (digest, data))
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
        if not terms:
            return []
        if session is not None:
            last = MAX_POSITION if stop is None else stop
            rows = await self._rows(SEARCH_SESSION, (terms, session, start, last, session, limit))
        elif (total := await self._estimated_messages()) < MANY_MESSAGES:
            rows = await self._rows(SEARCH_ALL, (terms, limit))
        else:
            rows = await self._search_many(terms, total, limit)
        return [SearchHit(*row) for row in rows]

    async def _estimated_messages(self) -> float:
        """Return about how many messages there are, as the server knows without counting them."""
        query = "SELECT reltuples::float8 FROM pg_class WHERE oid = 'holdfast.words'::regclass"
        return (await self._rows(query, ()))[0][0]

    async def _search_many(self, terms: Sequence[str], total: float, limit: int) -> list[TupleRow]:
        """Search a large store: rare words select messages, common ones are looked for in the newest sessions."""
        each = " UNION ALL ".join(["SELECT 1 FROM holdfast.words WHERE body @@ to_tsquery('simple', %s)"] * len(terms))
        plan = (await self._rows(f"EXPLAIN (FORMAT JSON) {each}", terms))[0][0][0]["Plan"]
        counts = [part["Plan Rows"] for part in ([plan] if len(terms) == 1 else plan["Plans"])]
        rare = [count <= RARE_WORD_MESSAGES for count in counts]
        weights = [rarity_weight(count, total) for count in counts]
        newest = 0 if any(rare) else NEWEST_SESSIONS
        return await self._rows(SEARCH_MANY, (terms, weights, rare, MAX_RARE_MESSAGES, newest, limit))

    async def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        # A condition that is left out lets the index begin where the page does.
        after = "" if before is None else 'AND (updated_ms, id COLLATE "C") < (%s::bigint, %s::text COLLATE "C") '
        query = (
            "SELECT id, name, length, created_ms, updated_ms FROM holdfast.sessions WHERE starts_with(id, %s) "  # noqa: S608 - ours
            + after
            + 'ORDER BY updated_ms DESC, id COLLATE "C" DESC LIMIT %s'
        )
        return [SessionInfo(*row) for row in await self._rows(query, (prefix, *(before or ()), limit))]

    async def rename(self, session: str, name: str) -> None:
        check_session_id(session)
        check_storable_text("name", name)
        if not await self._execute("UPDATE holdfast.sessions SET name = %s WHERE id = %s", (name, session)):
            raise UnknownSessionError(session)

    async def delete(self, session: str, *, length: int | None = None) -> bool:
        check_session_id(session)

        async def write(cursor: Cursor) -> bool:
            await cursor.execute("SELECT number, length FROM holdfast.sessions WHERE id = %s FOR UPDATE", (session,))
            found = await cursor.fetchone()
            if found is None or length not in {None, found[1]}:
                return False
            row = found[:1]
            await cursor.execute("SELECT digest FROM holdfast.blob_uses WHERE session = %s", row)
            used = [digest for (digest,) in await cursor.fetchall()]
            await cursor.execute("DELETE FROM holdfast.sessions WHERE number = %s", row)
            await _delete_unused_blobs(cursor, used)
            await cursor.execute(SESSION_VALUES.encode(), (plain_value_keys(session), session))
            about = [key for (key,) in await cursor.fetchall() if is_session_value_key(key, session)]
            await cursor.execute("DELETE FROM holdfast.facts WHERE key = ANY(%s)", (about,))
            return True

        return await self._pool.in_transaction(write)

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
        query = f"SELECT length, data FROM holdfast.snapshots WHERE session = {_NUMBER_OF}"  # noqa: S608 - a part of ours
        rows = await self._rows(query, (session,))
        return Snapshot(rows[0][0], decompress(rows[0][1], POSTGRES_LABEL)) if rows else None

    async def read_from_snapshot(
        self, session: str, *, limit: int | None = None
    ) -> tuple[Snapshot | None, list[StoredRecord]]:
        check_session_id(session)
        rows = await self._rows(READ_FROM_SNAPSHOT, (session, session, session, limit))
        stored = [Snapshot(row[1], decompress(row[2], POSTGRES_LABEL)) for row in rows if row[0] is None]
        records = unpack_records([row for row in rows if row[0] is not None], POSTGRES_LABEL)
        return stored[0] if stored else None, records

    async def put_value(self, key: str, value: JsonRecord) -> None:
        insert = (
            "INSERT INTO holdfast.facts (key, value) VALUES (%s, %s) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        )
        await self._execute(insert, (key, encode_json(value)))

    async def get_value(self, key: str) -> JsonRecord | None:
        value = await self._writer().read_value(key)
        return None if value is None else decode_record(value, POSTGRES_LABEL)

    async def values(self, prefix: str) -> dict[str, JsonRecord]:
        query = """
            SELECT key, value FROM holdfast.facts
            WHERE starts_with(key, %s) AND key COLLATE "C" >= %s AND key COLLATE "C" < %s ORDER BY key COLLATE "C"
        """
        values = prefix, prefix, f"{prefix}{LAST_CHARACTER}"
        return {key: decode_record(value, POSTGRES_LABEL) for key, value in await self._rows(query, values)}

    async def delete_value(self, key: str) -> None:
        await self._execute("DELETE FROM holdfast.facts WHERE key = %s", (key,))

    async def close(self) -> None:
        """Close all connections; the next call connects again."""
        self._check_process()
        own = self._writers.get(asyncio.get_running_loop())
        for writer in [*self._writers.values()]:
            if writer is own:
                await writer.close()
            else:
                writer.pool.discard()

    async def _rows(self, query: str, values: Sequence[object]) -> list[TupleRow]:
        async def read(cursor: Cursor) -> list[TupleRow]:
            await cursor.execute(query.encode(), values, binary=True)
            return await cursor.fetchall()

        return await self._pool.run(read)

    async def _execute(self, statement: str, values: Sequence[object]) -> int:
        async def write(cursor: Cursor) -> int:
            await cursor.execute(statement.encode(), values)
            return cursor.rowcount

        return await self._pool.run(write)

    @property
    def _pool(self) -> PostgresPool:
        return self._writer().pool

    def _writer(self) -> "_BatchWriter":
        """Return the writer of the running event loop; discard the connections of loops that have ended."""
        self._check_process()
        loop = asyncio.get_running_loop()
        if (writer := self._writers.get(loop)) is None:
            for ended in [one for one in [*self._writers] if one.is_closed()]:
                if left := self._writers.pop(ended, None):
                    left.pool.discard()
            writer = self._writers[loop] = _BatchWriter(self.url)
        return writer

    def _check_process(self) -> None:
        """Raise in a forked process: connections cannot be shared with the process that opened them."""
        if self._process != os.getpid():
            if self._writers:
                raise WrongEventLoopError("this PostgreSQL store")
            self._process = os.getpid()


class _BatchWriter:
    """The connections of one event loop, its appends, and the values it reads: what waits at once is one statement."""

    def __init__(self, url: str) -> None:
        self.pool = PostgresPool(url)
        self._waiting: list[_Waiting] = []
        self._writers: set[asyncio.Task[None]] = set()
        """The tasks that write batches; each writes one at a time."""
        self._starting: asyncio.Task[None] | None = None
        """The one of them that has not run yet: it will take what waits then."""
        self._in_flight: set[str] = set()
        """The sessions that have an append in a batch that is being written: the next one waits for it."""
        self._asked: list[_Asked] = []
        self._readings: set[asyncio.Task[None]] = set()
        self._new_chars = 0
        """How much text was written since its words were last put into the index."""
        self._indexing: asyncio.Task[None] | None = None
        self._may_index = True
        """Whether the role may do that, as the owner of the index; else the write that fills the list does it."""

    async def close(self) -> None:
        """Close all connections once the values that somebody has asked for are read."""
        if running := [*self._readings, *filter(None, [self._indexing])]:
            await asyncio.wait(running)
        await self.pool.close()

    def _note_new_words(self, item: Append) -> None:
        """Put new words into the index while nobody waits for it; it takes some 3 µs a character."""
        self._new_chars += sum([len(entry.text) for entry in item.index])
        if self._new_chars >= INDEXED_CHARS and self._may_index and self._indexing is None:
            self._new_chars = 0
            self._indexing = asyncio.create_task(self._index_new_words())

    async def _index_new_words(self) -> None:
        try:
            await self.pool.run(lambda cursor: cursor.execute(INDEX_NEW_WORDS))
        except StoreUnavailableError as error:
            self._may_index = not is_rejected_statement(error)
        finally:
            self._indexing = None

    async def read_value(self, key: str) -> bytes | None:
        """Return a value, read in one statement with those that are asked for in the same moment; None if none is."""
        value: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._asked.append((key, value))
        if len(self._asked) == 1:
            reading = asyncio.create_task(self._read_asked())
            self._readings.add(reading)
            reading.add_done_callback(self._readings.discard)
        try:
            return await value
        finally:
            del value  # its error refers to this call, and to the session that has made it

    async def _read_asked(self) -> None:
        """Read the values that are asked for until it is this task's turn."""
        asked: list[_Asked] = []
        try:
            try:
                await asyncio.sleep(0)  # opening a session asks for several, in tasks that begin one after the other
            finally:
                asked, self._asked = self._asked, []
            values = await self._values([*{key for key, _ in asked}])
            for key, future in asked:
                value = values.get(key)
                if future.done():
                    continue
                if isinstance(value, StoreUnavailableError):
                    future.set_exception(_copy_of(value))
                else:
                    future.set_result(value)
        finally:
            # When the loop ends in between, nobody reads what is still asked for.
            for _, future in asked:
                future.cancel()

    async def _values(self, keys: Sequence[str]) -> Mapping[str, bytes | StoreUnavailableError]:
        """Return the values of those keys that have one, and for each that cannot be read the error."""

        async def read(cursor: Cursor) -> dict[str, bytes]:
            await cursor.execute(b"SELECT key, value FROM holdfast.facts WHERE key = ANY (%s)", (keys,), binary=True)
            return dict(await cursor.fetchall())

        try:
            return await self.pool.run(read)
        except StoreUnavailableError as error:
            if len(keys) == 1 or not is_rejected_statement(error):
                return dict.fromkeys(keys, error)
        # One key may be none that the server takes: that concerns no other.
        alone = [await self._values([key]) for key in keys]
        return {key: value for values in alone for key, value in values.items()}

    async def write_in_batch(self, item: Append) -> bool:
        """Write an append with others that wait, and return whether it was written; otherwise it must be written alone.

        If the caller is cancelled while the append waits, nothing is written; later, it may be written.
        """
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, written))
        if self._starting is None and len(self._writers) < MAX_WRITERS:
            self._start_writer()
        try:
            return await written
        finally:
            del written  # as above

    def _start_writer(self) -> None:
        self._starting = writer = asyncio.create_task(self._write_waiting())
        self._writers.add(writer)
        writer.add_done_callback(self._end_writer)

    def _end_writer(self, writer: "asyncio.Task[None]") -> None:
        """Remove a writer that has ended, also one that never ran."""
        self._writers.discard(writer)
        if self._starting is writer:
            self._starting = None
        if not self._writers:
            # When the loop ends in between, nobody writes what still waits.
            for _, future in self._waiting:
                future.cancel()

    async def _write_waiting(self) -> None:
        """Write batch after batch until no append waits that this task can write."""
        writer, self._starting = self._starting, None
        while batch := self._take_batch():
            try:
                results = await self._write_batch([item for item, _ in batch])
            except BaseException:
                for _, future in batch:
                    future.cancel()
                raise
            finally:
                self._in_flight.difference_update([item.session for item, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, bool):
                    future.set_result(result)
                else:
                    future.set_exception(result)
        # At once, not when the loop calls back: an append that comes in between would find no place for its writer.
        self._writers.discard(cast("asyncio.Task[None]", writer))

    def _take_batch(self) -> list[_Waiting]:
        """Take appends that wait, one for each session; those that were cancelled are dropped.

        Of many, a writer takes a half and leaves the other to the second writer: while the server writes the one, this
        program goes on with the sessions of the other.
        """
        batch: dict[str, _Waiting] = {}
        others: list[_Waiting] = []
        most = min(MAX_BATCH, max(MIN_SHARED_BATCH, (len(self._waiting) + 1) // 2))
        for item, future in self._waiting:
            if future.done():
                continue
            if item.session in batch or item.session in self._in_flight or len(batch) == most:
                others.append((item, future))
            else:
                batch[item.session] = item, future
        self._waiting = others
        self._in_flight.update(batch)
        if len(batch) == most and others and self._starting is None and len(self._writers) < MAX_WRITERS:
            self._start_writer()
        return [*batch.values()]

    async def _write_batch(self, batch: Sequence[Append]) -> list[bool | StoreUnavailableError]:
        """Return for each append whether it was written; an error if the server cannot be asked."""
        statement, values = APPEND_BATCH, _batch_values
        if len(batch) == 1 and batch[0].after:
            statement, values = APPEND_ONE, _one_append_values

        async def write(cursor: Cursor) -> set[int]:
            await cursor.execute(statement, values(batch), binary=True)
            return {number for (number,) in await cursor.fetchall()}

        try:
            written = await self.pool.run(write)
        except StoreUnavailableError as error:
            if is_rejected_statement(error):
                return [False] * len(batch)
            found = await self._find_appended(batch)
            return [number in found or _copy_of(error) for number in range(1, len(batch) + 1)]
        except Exception:  # noqa: BLE001 - a value that Python cannot encode fails its own append, not the batch
            found = await self._find_appended(batch)
            return [number in found for number in range(1, len(batch) + 1)]
        for number in written:
            self._note_new_words(batch[number - 1])
        return [number in written for number in range(1, len(batch) + 1)]

    async def write_alone(self, item: Append) -> None:
        """Write an append in a transaction of its own."""
        lines = item.lines()

        async def write(cursor: Cursor) -> None:
            number = await _extend_session(cursor, item.session, after=item.after, length=item.length, times=item.times)
            rows = [
                (number, position, time_ms, line)
                for position, (time_ms, line) in enumerate(zip(item.times.each, lines, strict=True), item.after)
            ]
            await _insert_records(cursor, number, rows, item.index, item.blobs)
            if item.name:
                await cursor.execute("UPDATE holdfast.sessions SET name = %s WHERE number = %s", (item.name, number))

        try:
            await self.pool.in_transaction(write)
        except StoreUnavailableError:
            if not await self._find_appended([item]):
                raise
        self._note_new_words(item)

    async def _find_appended(self, batch: Sequence[Append]) -> set[int]:
        """Return the numbers, from 1, of those appends that the logs hold; none if the server cannot be asked."""
        values = [item.session for item in batch], [item.after for item in batch], [item.length for item in batch]

        async def read(cursor: Cursor) -> list[TupleRow]:
            await cursor.execute(FIND_APPENDED.encode(), values, binary=True)
            return await cursor.fetchall()

        try:
            rows = await self.pool.run(read)
        except StoreUnavailableError:
            return set()
        stored: dict[int, list[tuple[int, bytes]]] = {}
        for number, time_ms, data in rows:
            stored.setdefault(number, []).append((time_ms, bytes(data)))
        return {
            number
            for number, item in enumerate(batch, 1)
            if stored.get(number) == [*zip(item.times.each, item.lines(), strict=True)]
        }


def _batch_values(batch: Sequence[Append]) -> list[object]:
    """Return the parameters of `APPEND_BATCH`."""
    appends = [(item.after, item.length, item.times.first, item.times.latest) for item in batch]
    places = [
        (number, position, time_ms)
        for number, item in enumerate(batch, 1)
        for position, time_ms in enumerate(item.times.each, item.after)
    ]
    texts = [(number, entry) for number, item in enumerate(batch, 1) for entry in item.index]
    return [
        [item.session for item in batch],
        *_columns(appends, 4),
        *_columns(places, 3),
        *_slices([line for item in batch for line in item.lines()]),
        *_columns([(number, entry.position) for number, entry in texts], 2),
        _bodies([entry for _, entry in texts]),
    ]


def _one_append_values(batch: Sequence[Append]) -> list[object]:
    """Return the parameters of `APPEND_ONE`."""
    [item] = batch
    starts, sizes, content = _slices(item.lines())
    return [
        *(item.session, item.after, item.length, item.times.latest, content),
        *_columns([*enumerate(item.times.each, item.after)], 2),
        *(starts, sizes),
        *_columns([(entry.position,) for entry in item.index], 1),
        _bodies(item.index),
    ]


def _columns(rows: Sequence[tuple[int, ...]], count: int) -> list[str]:
    """Return the columns of a table as PostgreSQL writes arrays. For lists of integers the driver takes far longer."""
    return [f"{{{','.join([str(row[column]) for row in rows])}}}" for column in range(count)]


def _slices(lines: Sequence[bytes]) -> tuple[str, str, bytes]:
    """Return where each of some lines starts in all of them, from 1, how long it is, and all of them."""
    starts = accumulate((len(line) for line in lines), initial=1)
    starts_of_lines, sizes = _columns([(start, len(line)) for start, line in zip(starts, lines, strict=False)], 2)
    return starts_of_lines, sizes, b"".join(lines)


def _bodies(index: Sequence[IndexEntry]) -> str:
    """Return the words of some texts in a line for each; the space before them tells no words from no text."""
    return "\n".join([f" {_indexable(entry.text)}" for entry in index])


def _copy_of(error: StoreUnavailableError) -> StoreUnavailableError:
    """Return an error for one of several callers: an exception that is raised twice mixes up its tracebacks."""
    copy = StoreUnavailableError(error.store, error.problem)
    copy.__cause__ = error.__cause__
    return copy


async def _insert_records(
    cursor: Cursor,
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
        bodies = [(number, item.position, _indexable(item.text)) for item in index]
        await cursor.executemany(words, bodies)
    if blobs:
        stored = "SELECT digest FROM holdfast.blobs WHERE digest = ANY (%s) ORDER BY digest FOR KEY SHARE"
        await cursor.execute(stored, (list(blobs),))
        for missing in set(blobs) - {digest for (digest,) in await cursor.fetchall()}:
            raise MissingBlobError(missing)
        uses = "INSERT INTO holdfast.blob_uses (session, digest) VALUES (%s, %s) ON CONFLICT DO NOTHING"
        await cursor.executemany(uses, [(number, digest) for digest in blobs])


async def _delete_unused_blobs(cursor: Cursor, digests: Sequence[str]) -> None:
    """Delete those blobs that no session refers to."""
    # The lock waits for writers that are about to refer to a blob; only the next statement sees their references.
    lock = "SELECT 1 FROM holdfast.blobs WHERE digest = ANY (%s) ORDER BY digest FOR UPDATE"
    await cursor.execute(lock, (list(digests),))
    unused = (
        "DELETE FROM holdfast.blobs WHERE digest = ANY (%s) AND digest NOT IN (SELECT digest FROM holdfast.blob_uses)"
    )
    await cursor.execute(unused, (list(digests),))


def _indexable(text: str) -> str:
    """Return the words of a text, the first ones if there are more than PostgreSQL can index."""
    body = index_body(text)
    if 7 * len(body) <= MAX_VECTOR_BYTES:
        # A character has at most four bytes, and a word and its space at most five more.
        return body
    size, known, words = 0, set[str](), list[str]()
    for word in body.split():
        # PostgreSQL stores a word once, with two bytes for each occurrence.
        size += 2 if word in known else len(word.encode()) + 5
        if size > MAX_VECTOR_BYTES:
            break
        known.add(word)
        words.append(word)
    return " ".join(words)


async def _extend_session(cursor: Cursor, session: str, *, after: int, length: int, times: AppendTimes) -> int:
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
