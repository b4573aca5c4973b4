"""The tables of a SQLite store, their migrations, and what SQLite's errors mean.

Migrations go forward only. The first process that opens an older file runs each once, in order.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain

from holdfast.errors import DamagedStoreError, StoreError, StoreUnavailableError

POSITION_BITS = 32
"""A row id is the position, with the session's number in the bits above: the rows of one session are one range."""
POSITION_MASK = (1 << POSITION_BITS) - 1

INDEX_TABLES = (
    # We split words ourselves, so that every store finds the same. The index holds no text; a compressed copy is kept
    # in `indexed`, because FTS5 deletes a row only if it is given the indexed text.
    "CREATE VIRTUAL TABLE words USING fts5 (body, content = '', tokenize = 'unicode61 remove_diacritics 0')",
    "CREATE TABLE indexed (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
)
SQLITE_AFTER_QUALIFIER = "substr(key, instr(key, ':') + 1 + instr(substr(key, instr(key, ':') + 1), ':'))"
"""What follows the qualifier in the key of a value: the session."""
SQLITE_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE sessions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name_id TEXT NOT NULL UNIQUE,
            title TEXT NOT NULL DEFAULT '',
            length INTEGER NOT NULL DEFAULT 0,
            created_ms INTEGER NOT NULL,
            updated_ms INTEGER NOT NULL
        )""",
        "CREATE INDEX sessions_by_change ON sessions (updated_ms, name_id)",
        # The session is in the upper bits of the id: with a key of two columns, most pages that hold larger records
        # would stay nearly empty.
        "CREATE TABLE events (id INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, data BLOB NOT NULL)",
        "CREATE TABLE blobs (digest BLOB PRIMARY KEY, data BLOB NOT NULL)",
        """CREATE TABLE blob_uses (
            session INTEGER NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
            digest BLOB NOT NULL,
            PRIMARY KEY (session, digest)
        ) WITHOUT ROWID""",
        """CREATE TABLE snapshots (
            session INTEGER PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
            length INTEGER NOT NULL,
            data BLOB NOT NULL
        )""",
        "CREATE TABLE facts (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
        *INDEX_TABLES,
    ),
    # Texts that are not in the index yet.
    ("CREATE TABLE noted (id INTEGER PRIMARY KEY, text BLOB NOT NULL)",),
    # With it the values of a session are found without reading those of all others.
    (f"CREATE INDEX facts_by_session ON facts ({SQLITE_AFTER_QUALIFIER})",),
)

OWN_TABLES = frozenset({"sessions", "events", "blobs"})
"""What every store has."""
DISK_FULL = "the disk is full; free some space and try again"
READ_ONLY = "the file, its -wal or its -shm file is read-only; change their permissions, or open another file"
READ_ONLY_FOLDER = "the folder of the file is read-only; change its permissions, or open a copy of the file elsewhere"
"""Said of a write; of a read only if the -wal file next to it has records, or if the file is of an older version."""
FILE_LOCKED = "another process has locked the file; try again later"
CANNOT_OPEN = "the file cannot be opened; check that the folder exists and that you may write to it"
NOT_WRITTEN = (
    "the file cannot be written to: a quota or a limit is reached, or the disk fails; free some space and try again"
)
DISK_FAILURE = "the disk reported an error; check the disk"
SQLITE_PROBLEMS: Mapping[str, str] = {
    "SQLITE_FULL": DISK_FULL,
    # Opening a database creates the -shm file, which needs space too.
    "SQLITE_IOERR_SHMSIZE": DISK_FULL,
    # SQLite does not report a quota or a file size limit as a full disk.
    "SQLITE_IOERR_WRITE": NOT_WRITTEN,
    "SQLITE_READONLY_DIRECTORY": READ_ONLY_FOLDER,
    "SQLITE_READONLY": READ_ONLY,
    "SQLITE_BUSY": FILE_LOCKED,
    "SQLITE_LOCKED": FILE_LOCKED,
    "SQLITE_CANTOPEN": CANNOT_OPEN,
    "SQLITE_IOERR": DISK_FAILURE,
    "SQLITE_PERM": READ_ONLY,
}
"""By the prefix of the error code; the first match counts."""


def require_own_database(connection: sqlite3.Connection, name: str) -> None:
    """Raise if the tables of a file are those of another program, before anything in it is changed."""
    listed = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    tables = {table for (table,) in listed if not table.startswith("sqlite_")}
    # The version is read after the tables: another process may create them at this moment.
    if tables and not (_version(connection) and tables >= OWN_TABLES):
        raise StoreUnavailableError(name, "it is the database of another program; choose another file for the store")


def migrate_sqlite(connection: sqlite3.Connection, name: str) -> None:
    """Bring the tables up to date."""
    if _checked_version(connection, name) == len(SQLITE_MIGRATIONS):
        return
    with Transaction(connection) as write:
        # While this one waited for the lock, another process may have migrated the file, also to a newer version.
        if (version := _checked_version(connection, name)) < len(SQLITE_MIGRATIONS):
            for statements in SQLITE_MIGRATIONS[version:]:
                for statement in statements:
                    write(statement)
            write(f"PRAGMA user_version = {len(SQLITE_MIGRATIONS)}")


def _checked_version(connection: sqlite3.Connection, name: str) -> int:
    if (version := _version(connection)) > len(SQLITE_MIGRATIONS):
        raise StoreUnavailableError(name, "it was written by a newer Holdfast; update Holdfast")
    return version


class Transaction:
    """Takes the write lock at once, so that two writers wait for each other instead of failing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Callable[..., sqlite3.Cursor]:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection.execute

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


ROWS_OF_STATEMENTS = 64, 16, 4, 1
"""How many rows one statement writes: few statements for any number of rows, and few different ones."""


def write_rows(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Write rows in few statements, each with many in place of `{rows}`; callers roll back after an error.

    Between two statements this thread may wait for the interpreter, which a busy event loop holds for milliseconds.

    So that it could undo its own rows, a statement copies each page before it changes it, mostly to a temporary file.
    One that begins with `INSERT OR FAIL` or `UPDATE OR FAIL` and calls no function does not.
    """
    start = 0
    for count in ROWS_OF_STATEMENTS:
        while len(rows) - start >= count:
            part = rows[start : start + count]
            connection.execute(_with_rows(statement, count, len(part[0])), [*chain.from_iterable(part)])
            start += count


@cache
def _with_rows(statement: str, rows: int, values: int) -> str:
    row = f"({', '.join('?' * values)})"
    return statement.format(rows=", ".join([row] * rows))


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def as_sqlite_store_error(error: sqlite3.Error, name: str) -> StoreError:
    """Return a SQLite error as a `StoreError`."""
    code = getattr(error, "sqlite_errorname", "") or ""
    for known, problem in SQLITE_PROBLEMS.items():
        if code.startswith(known):
            return StoreUnavailableError(name, problem)
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return DamagedStoreError(name, str(error))
    return StoreUnavailableError(name, f"SQLite says: {error}")
