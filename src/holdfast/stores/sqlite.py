"""A store in one file: SQLite in WAL mode, every append on the disk before it returns.

One connection lives in one thread of its own, so an event loop never waits for a disk. Several processes may
open the same file; SQLite's own lock decides who writes.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from holdfast.errors import MissingBlobError, SequenceConflictError, StoreUnavailableError, UnknownSessionError
from holdfast.stores.base import Hit, Indexed, Record, SessionInfo, Snapshot, StoredRecord
from holdfast.stores.files import identity_of, make_private
from holdfast.stores.packing import digest_of, packed, read, unpacked, written
from holdfast.stores.sqlite_schema import migrate, translated
from holdfast.stores.words import words_of

T = TypeVar("T")

BUSY_SECONDS = 10.0
PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # Each commit is flushed: what was acknowledged survives a pulled plug.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA secure_delete = ON",
)


class SqliteStore:
    """Keeps everything in one file, which only its owner can read."""

    def __init__(self, path: str | Path, *, max_bytes: int | None = None) -> None:
        self.path = Path(path)
        self._max_bytes = max_bytes
        """What the file may grow to; None for as much as the disk holds."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-sqlite")
        self._database: _Database | None = None

    async def append(
        self,
        session: str,
        records: Sequence[Record],
        *,
        after: int,
        time_ms: int,
        index: Sequence[Indexed] = (),
        blobs: Sequence[str] = (),
    ) -> int:
        """Append records to a log that has `after` records, and return how many it has now."""
        batch = _batch(session, records, index, blobs, after=after, time_ms=time_ms)
        return await self._run(lambda db: db.append(batch))

    async def rewrite(
        self,
        session: str,
        records: Mapping[int, Record],
        *,
        tombstone: Record,
        after: int,
        time_ms: int,
        index: Sequence[Indexed] = (),
        blobs: Sequence[str] = (),
        dropped: Sequence[str] = (),
    ) -> int:
        """Replace records by their positions, append the one that tells of it, and return the length of the log."""
        batch = _batch(session, [tombstone], index, blobs, after=after, time_ms=time_ms)
        lines = {position: packed(written(record)) for position, record in records.items()}
        return await self._run(lambda db: db.rewrite(batch, lines, dropped))

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        """Return the records of a log from a position on."""
        return await self._run(lambda db: db.read(session, start, limit))

    async def length(self, session: str) -> int:
        """Return how many records a log has; 0 for a session that is not there."""
        return await self._run(lambda db: db.length(session))

    async def put_blob(self, content: bytes) -> str:
        """Keep some content and return its hash."""
        return await self._run(lambda db: db.put_blob(content))

    async def get_blob(self, digest: str) -> bytes:
        """Return some content by its hash."""
        return await self._run(lambda db: db.get_blob(digest))

    async def search(self, words: str, *, session: str | None = None, limit: int = 20) -> list[Hit]:
        """Return where words stand, the best first."""
        return await self._run(lambda db: db.search(words, session, limit))

    async def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        """Return sessions whose id begins with `prefix`, newest change first."""
        return await self._run(lambda db: db.sessions(prefix, before, limit))

    async def rename(self, session: str, name: str) -> None:
        """Give a session a name for people."""
        await self._run(lambda db: db.rename(session, name))

    async def delete(self, session: str) -> bool:
        """Delete a session, and say whether there was one."""
        return await self._run(lambda db: db.delete(session))

    async def put_snapshot(self, session: str, snapshot: Snapshot) -> None:
        """Keep a shortcut; an older one goes."""
        await self._run(lambda db: db.put_snapshot(session, snapshot))

    async def get_snapshot(self, session: str) -> Snapshot | None:
        """Return the shortcut of a session, if there is one."""
        return await self._run(lambda db: db.get_snapshot(session))

    async def put_fact(self, key: str, value: Record) -> None:
        """Keep a value under a key; an older one goes."""
        await self._run(lambda db: db.put_fact(key, value))

    async def get_fact(self, key: str) -> Record | None:
        """Return the value of a key."""
        return await self._run(lambda db: db.get_fact(key))

    async def close(self) -> None:
        """Close the file; the store opens it again if it is asked for more."""
        if self._database is not None:
            database, self._database = self._database, None
            await asyncio.get_running_loop().run_in_executor(self._thread, database.close)

    async def _run(self, action: "Callable[[_Database], T]") -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._act, action)

    def _act(self, action: "Callable[[_Database], T]") -> T:
        try:
            if self._database is None:
                self._database = _Database(self.path, self._max_bytes)
            self._database.check()
            return action(self._database)
        except sqlite3.Error as error:
            if self._database is not None and getattr(error, "sqlite_errorname", "").startswith("SQLITE_READONLY"):
                # A file opened for reading stays so, whatever becomes of its permissions: it is opened anew.
                self._database.close()
                self._database = None
            raise translated(error, str(self.path)) from error
        except (UnicodeError, OverflowError) as error:
            raise StoreUnavailableError(str(self.path), f"it cannot keep this: {error}; give another") from error
        except OSError as error:
            raise StoreUnavailableError(str(self.path), f"{error.strerror or error}; check the path") from error


class _Batch(NamedTuple):
    """What one append writes."""

    session: str
    after: int
    time_ms: int
    lines: Sequence[bytes]
    words: Sequence[tuple[int, str]]
    blobs: Sequence[str]


def _batch(
    session: str, records: Sequence[Record], index: Sequence[Indexed], blobs: Sequence[str], *, after: int, time_ms: int
) -> _Batch:
    words = [(item.position, " ".join(words_of(item.text))) for item in index]
    return _Batch(session, after, time_ms, [packed(written(record)) for record in records], words, blobs)


class _Database:
    """The connection, used by one thread."""

    def __init__(self, path: Path, max_bytes: int | None) -> None:
        self._path, self._name = path, str(path)
        make_private(path)
        self._identity = identity_of(path)
        self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            for pragma in PRAGMAS:
                self._connection.execute(pragma)
            migrate(self._connection, self._name)
            if max_bytes is not None:
                page_bytes = self._connection.execute("PRAGMA page_size").fetchone()[0]
                self._connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page_bytes)}")
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def check(self) -> None:
        """Refuse to go on with a file that is not in its place any more: nobody would find what it is given."""
        if identity_of(self._path) != self._identity:
            problem = "the file was removed or replaced while it was open; put it back, or close it and open it again"
            raise StoreUnavailableError(self._name, problem)

    def append(self, batch: "_Batch") -> int:
        with _transaction(self._connection):
            number = self._grow(batch)
            self._put(number, batch)
        return batch.after + len(batch.lines)

    def _put(self, number: int, batch: "_Batch") -> None:
        write = self._connection.execute
        events = "INSERT INTO events (session, position, time_ms, data) VALUES (?, ?, ?, ?)"
        self._connection.executemany(
            events, [(number, at, batch.time_ms, line) for at, line in enumerate(batch.lines, batch.after)]
        )
        for position, body in batch.words:
            row_id = _row_id(number, position)
            write("INSERT INTO words (rowid, body) VALUES (?, ?)", (row_id, body))
            write("INSERT INTO indexed (id, body) VALUES (?, ?)", (row_id, packed(body.encode())))
        for digest in batch.blobs:
            uses = "INSERT OR REPLACE INTO blob_uses (session, digest) SELECT ?, digest FROM blobs WHERE digest = ?"
            if not write(uses, (number, bytes.fromhex(digest))).rowcount:
                raise MissingBlobError(digest)

    def rewrite(self, batch: "_Batch", lines: Mapping[int, bytes], dropped: Sequence[str]) -> int:
        with _transaction(self._connection) as write:
            number = self._grow(batch)
            for position, _ in batch.words:
                self._forget_words(_row_id(number, position), _row_id(number, position) + 1)
            self._put(number, batch)
            for position, line in lines.items():
                write("UPDATE events SET data = ? WHERE session = ? AND position = ?", (line, number, position))
            write("DELETE FROM snapshots WHERE session = ?", (number,))
            for digest in map(bytes.fromhex, dropped):
                write("DELETE FROM blob_uses WHERE session = ? AND digest = ?", (number, digest))
                unused = "DELETE FROM blobs WHERE digest = ? AND digest NOT IN (SELECT digest FROM blob_uses)"
                write(unused, (digest,))
        self._leave_no_trace()
        return batch.after + len(batch.lines)

    def _grow(self, batch: "_Batch") -> int:
        """Lengthen a session, made where it is not there yet, and return its number."""
        write, length = self._connection.execute, batch.after + len(batch.lines)
        row = write("SELECT id, length FROM sessions WHERE name_id = ?", (batch.session,)).fetchone()
        actual = row[1] if row else 0
        if actual != batch.after:
            raise SequenceConflictError(batch.session, expected=batch.after, actual=actual)
        if row is None:
            insert = "INSERT INTO sessions (name_id, length, created_ms, updated_ms) VALUES (?, ?, ?, ?) RETURNING id"
            return write(insert, (batch.session, length, batch.time_ms, batch.time_ms)).fetchone()[0]
        update = "UPDATE sessions SET length = ?, updated_ms = max(updated_ms, ?) WHERE id = ?"
        write(update, (length, batch.time_ms, row[0]))
        return row[0]

    def read(self, session: str, start: int, limit: int | None) -> list[StoredRecord]:
        query = (
            "SELECT position, time_ms, data FROM events WHERE session = (SELECT id FROM sessions WHERE name_id = ?) "
            "AND position >= ? ORDER BY position LIMIT ?"
        )
        rows = self._connection.execute(query, (session, start, -1 if limit is None else limit))
        return [
            StoredRecord(position, time_ms, read(unpacked(data, self._name), self._name))
            for position, time_ms, data in rows
        ]

    def length(self, session: str) -> int:
        row = self._connection.execute("SELECT length FROM sessions WHERE name_id = ?", (session,)).fetchone()
        return row[0] if row else 0

    def put_blob(self, content: bytes) -> str:
        digest = digest_of(content)
        key = bytes.fromhex(digest)
        if not self._connection.execute("SELECT 1 FROM blobs WHERE digest = ?", (key,)).fetchone():
            insert = "INSERT OR IGNORE INTO blobs (digest, data) VALUES (?, ?)"
            self._connection.execute(insert, (key, packed(content)))
        return digest

    def get_blob(self, digest: str) -> bytes:
        query = "SELECT data FROM blobs WHERE digest = ?"
        row = self._connection.execute(query, (bytes.fromhex(digest),)).fetchone()
        if row is None:
            raise MissingBlobError(digest)
        return unpacked(row[0], self._name)

    def search(self, words: str, session: str | None, limit: int) -> list[Hit]:
        wanted = " OR ".join(f'"{word}"' for word in dict.fromkeys(words_of(words)))
        if not wanted:
            return []
        first, last = 0, 1 << 62
        if session is not None:
            row = self._connection.execute("SELECT id FROM sessions WHERE name_id = ?", (session,)).fetchone()
            if row is None:
                return []
            first, last = _row_id(row[0], 0), _row_id(row[0] + 1, 0)
        query = (
            "SELECT sessions.name_id, words.rowid & ?, -bm25(words) AS score FROM words "
            "JOIN sessions ON sessions.id = words.rowid >> ? "
            "WHERE words MATCH ? AND words.rowid >= ? AND words.rowid < ? "
            "ORDER BY score DESC, words.rowid DESC LIMIT ?"
        )
        rows = self._connection.execute(query, (POSITION_MASK, POSITION_BITS, wanted, first, last, limit))
        return [Hit(name, position, score) for name, position, score in rows]

    def sessions(self, prefix: str, before: tuple[int, str] | None, limit: int) -> list[SessionInfo]:
        query = (
            "SELECT name_id, title, length, created_ms, updated_ms FROM sessions "
            "WHERE substr(name_id, 1, ?) = ? AND (? IS NULL OR (updated_ms, name_id) < (?, ?)) "
            "ORDER BY updated_ms DESC, name_id DESC LIMIT ?"
        )
        time_ms, name = before or (None, None)
        rows = self._connection.execute(query, (len(prefix), prefix, time_ms, time_ms, name, limit))
        return [SessionInfo(*row) for row in rows]

    def rename(self, session: str, name: str) -> None:
        update = "UPDATE sessions SET title = ? WHERE name_id = ?"
        if not self._connection.execute(update, (name, session)).rowcount:
            raise UnknownSessionError(session)

    def delete(self, session: str) -> bool:
        with _transaction(self._connection) as write:
            row = write("SELECT id FROM sessions WHERE name_id = ?", (session,)).fetchone()
            if row is None:
                return False
            first, last = _row_id(row[0], 0), _row_id(row[0] + 1, 0)
            self._forget_words(first, last)
            write(
                "DELETE FROM blobs WHERE digest IN (SELECT digest FROM blob_uses WHERE session = ?) "
                "AND digest NOT IN (SELECT digest FROM blob_uses WHERE session != ?)",
                (row[0], row[0]),
            )
            write("DELETE FROM sessions WHERE id = ?", row)
        self._leave_no_trace()
        return True

    def _leave_no_trace(self) -> None:
        # An index forgets by adding; what was deleted must not linger in it, nor in the log of changes.
        self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _forget_words(self, first: int, last: int) -> None:
        rows = self._connection.execute(
            "SELECT id, body FROM indexed WHERE id >= ? AND id < ?", (first, last)
        ).fetchall()
        self._connection.executemany(
            "INSERT INTO words (words, rowid, body) VALUES ('delete', ?, ?)",
            [(row_id, unpacked(body, self._name).decode()) for row_id, body in rows],
        )
        self._connection.execute("DELETE FROM indexed WHERE id >= ? AND id < ?", (first, last))

    def put_snapshot(self, session: str, snapshot: Snapshot) -> None:
        insert = (
            "INSERT OR REPLACE INTO snapshots (session, length, data) SELECT id, ?, ? FROM sessions WHERE name_id = ?"
        )
        if not self._connection.execute(insert, (snapshot.length, packed(snapshot.data), session)).rowcount:
            raise UnknownSessionError(session)

    def get_snapshot(self, session: str) -> Snapshot | None:
        query = (
            "SELECT snapshots.length, data FROM snapshots JOIN sessions ON sessions.id = snapshots.session "
            "WHERE name_id = ?"
        )
        row = self._connection.execute(query, (session,)).fetchone()
        return Snapshot(row[0], unpacked(row[1], self._name)) if row else None

    def put_fact(self, key: str, value: Record) -> None:
        self._connection.execute("INSERT OR REPLACE INTO facts (key, value) VALUES (?, ?)", (key, written(value)))

    def get_fact(self, key: str) -> Record | None:
        row = self._connection.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return read(row[0], self._name) if row else None


POSITION_BITS = 32
POSITION_MASK = (1 << POSITION_BITS) - 1


def _row_id(session: int, position: int) -> int:
    """Return the row of a message in the index: the session in the upper bits, so that one session is one range."""
    return (session << POSITION_BITS) | position


class _transaction:  # noqa: N801 - used as a verb, like a function
    """Begins a write at once, so that two writers wait for each other and do not fail; ends it either way."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Callable[..., sqlite3.Cursor]:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection.execute

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._connection.execute("COMMIT")
        elif self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
