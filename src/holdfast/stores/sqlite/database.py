"""The statements of a SQLite store, on one connection.

Each method of `Store` is written here as a plain function; `SqliteStore` runs it in its thread. Nothing else may
use this class.
"""

import json
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.core.conversation.json_values import encode_json
from holdfast.errors import (
    DamagedStoreError,
    MissingBlobError,
    SequenceConflictError,
    StoreError,
    StoreUnavailableError,
    UnknownSessionError,
)
from holdfast.stores.appends import Append
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
from holdfast.stores.files import create_missing_file, file_identity, is_folder_writable, make_private
from holdfast.stores.search_terms import search_terms
from holdfast.stores.sqlite.schema import (
    DISK_FULL,
    POSITION_BITS,
    POSITION_MASK,
    READ_ONLY_FOLDER,
    SQLITE_AFTER_QUALIFIER,
    Transaction,
    as_sqlite_store_error,
    migrate_sqlite,
    require_own_database,
    write_rows,
)
from holdfast.stores.sqlite.search import FullTextIndex

BUSY_MS = 10_000
MIN_FREE_BYTES = 65_536
"""A file on a full disk is opened for writing again when the disk has this much: the -shm file takes half of it."""
PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # Each commit is flushed: acknowledged records survive a power cut.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA secure_delete = ON",
)
FIND_SESSION = "SELECT id, length FROM sessions WHERE name_id = ?"
UPDATE_SESSION = "UPDATE sessions SET length = ?, updated_ms = max(updated_ms, ?) WHERE id = ?"
FIND_SESSIONS = """
    SELECT json_group_array(json_array(names.key, sessions.id, sessions.length))
    FROM json_each(?) AS names JOIN sessions ON name_id = names.value
"""
UPDATE_SESSIONS = """
    UPDATE OR FAIL sessions SET
        length = new.column2, updated_ms = CASE WHEN updated_ms < new.column3 THEN new.column3 ELSE updated_ms END
    FROM (VALUES {rows}) AS new WHERE id = new.column1
"""
INSERT_EVENTS = "INSERT OR FAIL INTO events (id, time_ms, data) VALUES {rows}"


class SqliteDatabase:
    """The connection to one file, used by one thread."""

    def __init__(self, path: Path, max_bytes: int | None, run_later: Callable[[Callable[[], object]], None]) -> None:
        """`run_later` runs an action in the same thread, after the current one."""
        self._path, self._name = path, str(path)
        self._run_later = run_later
        self.in_use = threading.RLock()
        """Held while the connection is used, so that the exit of the program closes only an idle one."""
        create_missing_file(path)
        self.write_problem = ""
        """Why nothing can be written next to the file, so that it is read without locks; empty if it can be written."""
        try:
            self._connection = self._open(f"{path.absolute().as_uri()}?mode=rw")
        except sqlite3.OperationalError as error:
            self.write_problem = self._why_not_writable(error)
            if not self.write_problem:
                raise
            if self._wal_bytes():
                # Only a process that may write to the folder can read the newest records there.
                raise StoreUnavailableError(self._name, self.write_problem) from None
            self._connection = self._open_immutable()
        self._identity = file_identity(path, with_content=self.is_immutable)
        self._index = FullTextIndex(self._connection, self._name)
        if max_bytes is not None:
            page_bytes = self._connection.execute("PRAGMA page_size").fetchone()[0]
            self._connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page_bytes)}")

    def _open(self, uri: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False, uri=True
        )
        # Python 3.13 warns of a connection that nobody has closed.
        weakref.finalize(self, _close_if_idle, connection, self.in_use)
        try:
            require_own_database(connection, self._name)
            # Not before: the permissions of another program's file are not ours to change.
            for suffix in ("", "-wal", "-shm"):
                make_private(self._path.with_name(f"{self._path.name}{suffix}"))
            for pragma in () if self.is_immutable else PRAGMAS:
                connection.execute(pragma)
            migrate_sqlite(connection, self._name)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_immutable(self) -> sqlite3.Connection:
        try:
            return self._open(f"{self._path.absolute().as_uri()}?mode=ro&immutable=1")
        except sqlite3.OperationalError:  # a file of an older version cannot be brought up to date
            raise StoreUnavailableError(self._name, self.write_problem) from None

    def _why_not_writable(self, error: sqlite3.Error) -> str:
        """Return why a file could not be opened that can be read nevertheless; empty if it cannot."""
        if not is_folder_writable(self._path.parent):
            return READ_ONLY_FOLDER
        # Locks need the -shm file, and so some space.
        is_full = getattr(as_sqlite_store_error(error, self._name), "problem", "") == DISK_FULL
        return DISK_FULL if is_full and self._path.stat().st_size else ""

    @property
    def is_immutable(self) -> bool:
        """Whether the file is read without locks, because nothing can be written next to it."""
        return bool(self.write_problem)

    def close(self) -> None:
        with self.in_use:
            with suppress(sqlite3.Error, StoreError):
                self._index_pending_if_free()
            self._connection.close()

    @property
    def is_outdated(self) -> bool:
        """Whether a file that is read without locks has changed, or can be written, so that it must be opened again."""
        if self.write_problem == DISK_FULL and shutil.disk_usage(self._path.parent).free > MIN_FREE_BYTES:
            return True
        return self._wal_bytes() > 0 or file_identity(self._path, with_content=True) != self._identity

    @property
    def is_file_replaced(self) -> bool:
        """Whether the open file is no longer at its path: whatever is written to it would be lost."""
        return not self.is_immutable and file_identity(self._name) != self._identity

    def _wal_bytes(self) -> int:
        wal = self._path.with_name(f"{self._path.name}-wal")
        return wal.stat().st_size if wal.exists() else 0

    def _index_pending(self) -> None:
        if self._index.has_pending():
            with Transaction(self._connection):
                self._index.index_pending()

    def _index_pending_if_free(self) -> None:
        """Index pending texts unless another process is writing or the file cannot be written; then they stay."""
        with self._without_waiting():
            self._index_pending()

    @contextmanager
    def _without_waiting(self) -> Generator[None]:
        """Do what is not urgent, and give it up if another process has locked the file."""
        try:
            self._connection.execute("PRAGMA busy_timeout = 0")
            with suppress(sqlite3.OperationalError):
                yield
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    def append(self, item: Append) -> int:
        """Write one append in a transaction of its own, and return the new length of its log."""
        lines = item.lines()
        with Transaction(self._connection):
            number = self._extend_session(item.session, item.after, len(lines), item.times)
            self._insert(number, lines, after=item.after, times=item.times, index=item.index, blobs=item.blobs)
            if item.name:
                self._connection.execute("UPDATE sessions SET title = ? WHERE id = ?", (item.name, number))
        self._index_later()
        return item.length

    def append_batch(self, batch: Sequence[Append]) -> list[int | None]:
        """Write the appends of several sessions in one transaction, and return the new length of each log.

        None stands for an append that was not written, because of a conflict, or because another append to the same
        session comes before it. The number of statements does not depend on the number of appends: between two
        statements this thread may wait for the interpreter, which a busy event loop holds for milliseconds.
        """
        packed = [item.lines() for item in batch]
        with Transaction(self._connection):
            numbers = self._numbers_of_current(batch)
            written = [number is not None for number in numbers]
            rows, texts = list[tuple[int, int, bytes]](), list[tuple[int, str]]()
            extended = list[tuple[int, int, int]]()
            for item, lines, number in zip(batch, packed, numbers, strict=True):
                if number is None:
                    continue
                extended.append((number, item.length, item.times.latest))
                rows += _event_rows(number, item.after, item.times, lines)
                texts += [(_row_id(number, entry.position), entry.text) for entry in item.index]
            write_rows(self._connection, UPDATE_SESSIONS, extended)
            write_rows(self._connection, INSERT_EVENTS, rows)
            self._index.add_pending(texts)
        self._index_later()
        return [item.length if is_written else None for item, is_written in zip(batch, written, strict=True)]

    def _numbers_of_current(self, batch: Sequence[Append]) -> list[int | None]:
        """Return the number of each session, creating those that are new; None where an append cannot be written."""
        write = self._connection.execute
        names = json.dumps([item.session for item in batch], ensure_ascii=False)
        known = {number: row for number, *row in json.loads(write(FIND_SESSIONS, (names,)).fetchone()[0])}
        numbers, seen = list[int | None](), set[str]()
        for place, item in enumerate(batch):
            number, length = known.get(place, (None, 0))
            is_current = length == item.after and item.session not in seen
            seen.add(item.session)
            if is_current and number is None:
                insert = "INSERT INTO sessions (name_id, created_ms, updated_ms) VALUES (?, ?, ?) RETURNING id"
                number = write(insert, (item.session, item.times.first, item.times.latest)).fetchone()[0]
            numbers.append(number if is_current else None)
        return numbers

    def _index_later(self) -> None:
        """Index pending texts after the current action if there are enough; no caller waits for that."""
        if self._index.needs_indexing:
            # If it fails, the texts stay pending.
            self._run_later(self._index_if_needed)

    def _index_if_needed(self) -> None:
        with self.in_use:
            if self._index.needs_indexing:
                self._index_pending()

    def rewrite(
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
        last = pack_record(tombstone)
        changed = [(position, pack_record(record)) for position, record in records.items()]
        with Transaction(self._connection) as write:
            times = AppendTimes.of(time_ms, 1)
            number = self._extend_session(session, after, 1, times)
            self._index.index_pending()
            for item in index:
                self._index.remove(_row_id(number, item.position), _row_id(number, item.position) + 1)
            self._insert(number, [last], after=after, times=times, index=index, blobs=blobs)
            for position, line in changed:
                write("UPDATE events SET data = ? WHERE id = ?", (line, _row_id(number, position)))
            write("DELETE FROM snapshots WHERE session = ?", (number,))
            for digest in map(bytes.fromhex, dropped):
                write("DELETE FROM blob_uses WHERE session = ? AND digest = ?", (number, digest))
                unused = "DELETE FROM blobs WHERE digest = ? AND digest NOT IN (SELECT digest FROM blob_uses)"
                write(unused, (digest,))
            self._index.optimize()
        self._shorten_wal()
        return after + 1

    def purge(self) -> tuple[str, ...]:
        # `secure_delete` overwrites deleted rows in the file itself.
        with Transaction(self._connection):
            self._index.optimize()
        is_busy = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        remaining = (
            f"{self._name}-wal still holds what was replaced, because another program is reading the store; when that "
            "program has finished, run this again"
        )
        return (remaining,) if is_busy else ()

    def _shorten_wal(self) -> None:
        """Empty the write-ahead log, unless another connection still needs it."""
        with self._without_waiting():
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _extend_session(self, session: str, after: int, added: int, times: AppendTimes) -> int:
        """Add to the length of a session, creating it if it does not exist, and return its number."""
        write = self._connection.execute
        number, length = write(FIND_SESSION, (session,)).fetchone() or (None, 0)
        if length != after:
            raise SequenceConflictError(session, expected=after, actual=length)
        if number is None:
            insert = "INSERT INTO sessions (name_id, length, created_ms, updated_ms) VALUES (?, ?, ?, ?) RETURNING id"
            return write(insert, (session, added, times.first, times.latest)).fetchone()[0]
        # Not found by its name once more: with `RETURNING`, both in one statement take longer than two.
        write(UPDATE_SESSION, (after + added, times.latest, number))
        return number

    def _insert(
        self,
        number: int,
        lines: Sequence[bytes],
        *,
        after: int,
        times: AppendTimes,
        index: Sequence[IndexEntry],
        blobs: Sequence[str],
    ) -> None:
        write, first = self._connection.execute, _row_id(number, 0)
        write_rows(self._connection, INSERT_EVENTS, _event_rows(number, after, times, lines))
        if index:
            self._index.add([(first + item.position, item.text) for item in index])
        for digest in blobs:
            uses = "INSERT OR REPLACE INTO blob_uses (session, digest) SELECT ?, digest FROM blobs WHERE digest = ?"
            if not write(uses, (number, bytes.fromhex(digest))).rowcount:
                raise MissingBlobError(digest)

    def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        check_session_id(session)
        start = max(0, start)
        number, length = self._number_and_length(session)
        query = "SELECT id & ?, time_ms, data FROM events WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        values = POSITION_MASK, _row_id(number, start), _row_id(number + 1, 0), -1 if limit is None else limit
        records = unpack_records(self._connection.execute(query, values), self._name)
        stop = length if limit is None else min(length, start + limit)
        # There may be more by now. Damage of a page can hide rows of which SQLite says nothing.
        self._check_complete(session, number, records, range(start, max(stop, start + len(records))))
        return records

    def read_at(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        check_session_id(session)
        number, length = self._number_and_length(session)
        known = sorted({position for position in positions if 0 <= position < length})
        ids = json.dumps([_row_id(number, position) for position in known])
        query = "SELECT id & ?, time_ms, data FROM events WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
        records = unpack_records(self._connection.execute(query, (POSITION_MASK, ids)), self._name)
        self._check_complete(session, number, records, known)
        return records

    def _number_and_length(self, session: str) -> tuple[int, int]:
        """Return the number of a session, and the length of its log; 0, which has no rows, for an unknown one."""
        return self._connection.execute(FIND_SESSION, (session,)).fetchone() or (0, 0)

    def _check_complete(
        self, session: str, number: int, records: Sequence[StoredRecord], positions: Sequence[int]
    ) -> None:
        """Raise if some of the records are missing, unless the session was deleted since its length was read."""
        found = [stored.position for stored in records]
        if found != [*positions] and self._session_number(session) == number:
            missing = {*positions}.difference(found) or {*found}
            raise DamagedStoreError(self._name, f"record {min(missing)} of session {session!r} cannot be found")

    def _session_number(self, session: str) -> int:
        """Return the number of a session; 0, which has no rows, for an unknown one."""
        return self._number_and_length(session)[0]

    def length(self, session: str) -> int:
        check_session_id(session)
        row = self._connection.execute("SELECT length FROM sessions WHERE name_id = ?", (session,)).fetchone()
        return row[0] if row else 0

    def put_blob(self, content: bytes) -> str:
        digest = sha256_hex(content)
        key = bytes.fromhex(digest)
        if not self._connection.execute("SELECT 1 FROM blobs WHERE digest = ?", (key,)).fetchone():
            insert = "INSERT OR IGNORE INTO blobs (digest, data) VALUES (?, ?)"
            self._connection.execute(insert, (key, compress(content)))
        return digest

    def get_blob(self, digest: str) -> bytes:
        query = "SELECT data FROM blobs WHERE digest = ?"
        row = self._connection.execute(query, (bytes.fromhex(digest),)).fetchone()
        if row is None:
            raise MissingBlobError(digest)
        return decompress(row[0], self._name)

    def search(
        self, words: str, *, session: str | None = None, limit: int = 20, start: int = 0, stop: int | None = None
    ) -> list[SearchHit]:
        first, last = 0, 1 << 62
        if session is not None:
            number = self._session_number(session)
            stop = POSITION_MASK if stop is None else min(stop, POSITION_MASK)
            first, last = _row_id(number, max(0, start)), _row_id(number, max(0, stop))
        self._index_pending_if_free()
        found = self._index.search(search_terms(words), (first, last), limit)
        numbers = json.dumps(sorted({row_id >> POSITION_BITS for row_id, _ in found}))
        query = "SELECT id, name_id FROM sessions WHERE id IN (SELECT value FROM json_each(?))"
        names = dict(self._connection.execute(query, (numbers,)).fetchall())
        return [
            SearchHit(names[row_id >> POSITION_BITS], row_id & POSITION_MASK, score)
            for row_id, score in found
            if row_id >> POSITION_BITS in names
        ]

    def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        # A condition that is left out lets the index begin where the page does.
        after = "" if before is None else "AND (updated_ms, name_id) < (?, ?) "
        query = (
            "SELECT name_id, title, length, created_ms, updated_ms FROM sessions WHERE substr(name_id, 1, ?) = ? "  # noqa: S608 - ours
            + after
            + "ORDER BY updated_ms DESC, name_id DESC LIMIT ?"
        )
        rows = self._connection.execute(query, (len(prefix), prefix, *(before or ()), limit))
        return [SessionInfo(*row) for row in rows]

    def rename(self, session: str, name: str) -> None:
        check_session_id(session)
        check_storable_text("name", name)
        update = "UPDATE sessions SET title = ? WHERE name_id = ?"
        if not self._connection.execute(update, (name, session)).rowcount:
            raise UnknownSessionError(session)

    def delete(self, session: str, *, length: int | None = None) -> bool:
        check_session_id(session)
        with Transaction(self._connection) as write:
            number, actual = write(FIND_SESSION, (session,)).fetchone() or (0, 0)
            if not number or length not in {None, actual}:
                return False
            first, last = _row_id(number, 0), _row_id(number + 1, 0)
            self._index.index_pending()
            self._index.remove(first, last)
            write("DELETE FROM events WHERE id >= ? AND id < ?", (first, last))
            write(
                "DELETE FROM blobs WHERE digest IN (SELECT digest FROM blob_uses WHERE session = ?) "
                "AND digest NOT IN (SELECT digest FROM blob_uses WHERE session != ?)",
                (number, number),
            )
            write("DELETE FROM sessions WHERE id = ?", (number,))
            qualified = f"SELECT key FROM facts WHERE {SQLITE_AFTER_QUALIFIER} = ?"  # noqa: S608 - an expression of ours
            for key in [*plain_value_keys(session), *(key for (key,) in write(qualified, (session,)).fetchall())]:
                if is_session_value_key(key, session):
                    write("DELETE FROM facts WHERE key = ?", (key,))
            self._index.optimize_if_small()
        self._shorten_wal()
        return True

    def put_snapshot(self, session: str, snapshot: Snapshot) -> bool:
        check_session_id(session)
        insert = (
            "INSERT OR REPLACE INTO snapshots (session, length, data) "
            "SELECT id, length, ? FROM sessions WHERE name_id = ? AND length = ?"
        )
        return bool(self._connection.execute(insert, (compress(snapshot.data), session, snapshot.length)).rowcount)

    def get_snapshot(self, session: str) -> Snapshot | None:
        check_session_id(session)
        query = (
            "SELECT snapshots.length, data FROM snapshots JOIN sessions ON sessions.id = snapshots.session "
            "WHERE name_id = ?"
        )
        row = self._connection.execute(query, (session,)).fetchone()
        return Snapshot(row[0], decompress(row[1], self._name)) if row else None

    def read_from_snapshot(
        self, session: str, *, limit: int | None = None
    ) -> tuple[Snapshot | None, list[StoredRecord]]:
        snapshot = self.get_snapshot(session)
        return snapshot, self.read(session, start=snapshot.length if snapshot else 0, limit=limit)

    def put_value(self, key: str, value: JsonRecord) -> None:
        self._connection.execute("INSERT OR REPLACE INTO facts (key, value) VALUES (?, ?)", (key, encode_json(value)))

    def get_value(self, key: str) -> JsonRecord | None:
        row = self._connection.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return decode_record(row[0], self._name) if row else None

    def values(self, prefix: str) -> dict[str, JsonRecord]:
        query = "SELECT key, value FROM facts WHERE key >= ? AND key < ? ORDER BY key"
        rows = self._connection.execute(query, (prefix, f"{prefix}{LAST_CHARACTER}"))
        return {key: decode_record(value, self._name) for key, value in rows}

    def delete_value(self, key: str) -> None:
        self._connection.execute("DELETE FROM facts WHERE key = ?", (key,))


def _close_if_idle(connection: sqlite3.Connection, in_use: threading.RLock) -> None:
    """Close a connection whose owner is garbage, or at the exit of the program, which waits for nobody."""
    if in_use.acquire(blocking=False):
        try:
            connection.close()
        finally:
            in_use.release()


def _event_rows(session: int, after: int, times: AppendTimes, lines: Sequence[bytes]) -> list[tuple[int, int, bytes]]:
    """Return the rows of records; the ids of a session's rows follow each other."""
    first = _row_id(session, after)
    return list(zip(range(first, first + len(lines)), times.each, lines, strict=True))


def _row_id(session: int, position: int) -> int:
    """Return the id of a row: the session in the upper bits, so that the rows of one session are one range."""
    return (session << POSITION_BITS) | position
