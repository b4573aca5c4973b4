"""A store in one file: SQLite in WAL mode, every append on the disk before it returns.

One connection lives in one thread of its own, so an event loop never waits for a disk. Several processes may
open the same file; SQLite's own lock decides who writes.

A thread that does one thing after another for whoever awaits it.

What a disk takes is nobody's to know beforehand, so an event loop never waits for one. An executor from the standard
library does the same for twice the time, and that is paid for every message that is recorded.
"""

import asyncio
import sqlite3
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

from holdfast.errors import StoreUnavailableError
from holdfast.stores.base import (
    IndexEntry,
    JsonRecord,
    SearchHit,
    SessionInfo,
    Snapshot,
    StoredRecord,
    check_session_id,
    check_storable_text,
)
from holdfast.stores.encoding import encode_record
from holdfast.stores.sqlite.database import AppendBatch, SqliteDatabase
from holdfast.stores.sqlite.schema import as_sqlite_store_error

T = TypeVar("T")
_Queue: TypeAlias = "SimpleQueue[Callable[[], object] | None]"


class WorkerThread:
    """Begins with the first thing to do, and ends with its owner."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: _Queue | None = None

    async def run(self, action: Callable[[], T]) -> T:
        """Return what an action comes to; one that was given up before its turn is not done."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(lambda: None if future.cancelled() else _run_and_settle(action, future, loop))
        return await future

    def submit(self, action: Callable[[], object]) -> None:
        """Do something that nobody waits for, in its turn; whatever it raises is told to nobody."""
        self._put(action)

    def _put(self, action: Callable[[], object]) -> None:
        if self._queue is None:
            self._queue = SimpleQueue()
            # A program may end without waiting for it: what was not acknowledged may be missing, nothing is half done.
            threading.Thread(target=_work, args=(self._queue,), name=self._name, daemon=True).start()
            weakref.finalize(self, self._queue.put, None)
        self._queue.put(action)


def _work(queue: _Queue) -> None:
    while (action := queue.get()) is not None:
        with suppress(Exception):
            action()
        # While there is nothing to do nobody is to be kept alive by what was done last.
        del action


def _run_and_settle(action: Callable[[], T], future: "asyncio.Future[T]", loop: asyncio.AbstractEventLoop) -> None:
    try:
        settle = partial(future.set_result, action())
    except BaseException as error:  # noqa: BLE001 - it is raised where the action is awaited
        settle = partial(future.set_exception, error)
    # Where the loop was closed meanwhile there is nobody to tell.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: future.done() or settle())


class SqliteStore:
    """Keeps everything in one file, which only its owner can read."""

    def __init__(self, path: str | Path, *, max_bytes: int | None = None) -> None:
        self.path = Path(path)
        self._max_bytes = max_bytes
        """What the file may grow to; None for as much as the disk holds."""
        self._thread = WorkerThread("holdfast-sqlite")
        self._database: SqliteDatabase | None = None

    async def append(
        self,
        session: str,
        records: Sequence[JsonRecord],
        *,
        after: int,
        time_ms: int,
        index: Sequence[IndexEntry] = (),
        blobs: Sequence[str] = (),
    ) -> int:
        """Append records to a log that has `after` records, and return how many it has now."""
        check_session_id(session)
        batch = AppendBatch(session, after, time_ms, [encode_record(record) for record in records], index, blobs)
        length = await self._run(lambda db: db.append(batch))
        if (database := self._database) and database.needs_indexing:
            # Nobody waits for that; where it cannot be done, what is to be found stays noted.
            self._thread.submit(lambda: database.needs_indexing and database.index_pending())
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
        """Replace records by their positions, append the one that tells of it, and return the length of the log."""
        check_session_id(session)
        batch = AppendBatch(session, after, time_ms, [encode_record(tombstone)], index, blobs)
        changed = {position: encode_record(record) for position, record in records.items()}
        return await self._run(lambda db: db.rewrite(batch, changed, dropped))

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        """Return the records of a log from a position on."""
        check_session_id(session)
        return await self._run(lambda db: db.read(session, start, limit))

    async def read_at(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        """Return the records at some positions, in the order of the log."""
        check_session_id(session)
        return await self._run(lambda db: db.read_at(session, positions))

    async def length(self, session: str) -> int:
        """Return how many records a log has; 0 for a session that is not there."""
        check_session_id(session)
        return await self._run(lambda db: db.length(session))

    async def put_blob(self, content: bytes) -> str:
        """Keep some content and return its hash."""
        return await self._run(lambda db: db.put_blob(content))

    async def get_blob(self, digest: str) -> bytes:
        """Return some content by its hash."""
        return await self._run(lambda db: db.get_blob(digest))

    async def search(
        self, words: str, *, session: str | None = None, limit: int = 20, start: int = 0, stop: int | None = None
    ) -> list[SearchHit]:
        """Return where words stand, the best first."""
        return await self._run(lambda db: db.search(words, session, limit, (start, stop)))

    async def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        """Return sessions whose id begins with `prefix`, newest change first."""
        return await self._run(lambda db: db.sessions(prefix, before, limit))

    async def rename(self, session: str, name: str) -> None:
        """Give a session a name for people."""
        check_session_id(session)
        check_storable_text("name", name)
        await self._run(lambda db: db.rename(session, name))

    async def delete(self, session: str) -> bool:
        """Delete a session, and say whether there was one."""
        check_session_id(session)
        return await self._run(lambda db: db.delete(session))

    async def put_snapshot(self, session: str, snapshot: Snapshot) -> bool:
        """Keep a shortcut in the place of an older one, and say whether the log still had that length."""
        check_session_id(session)
        return await self._run(lambda db: db.put_snapshot(session, snapshot))

    async def get_snapshot(self, session: str) -> Snapshot | None:
        """Return the shortcut of a session, if there is one."""
        check_session_id(session)
        return await self._run(lambda db: db.get_snapshot(session))

    async def put_value(self, key: str, value: JsonRecord) -> None:
        """Keep a value under a key; an older one goes."""
        await self._run(lambda db: db.put_value(key, value))

    async def get_value(self, key: str) -> JsonRecord | None:
        """Return the value of a key."""
        return await self._run(lambda db: db.get_value(key))

    async def close(self) -> None:
        """Close the file; the store opens it again if it is asked for more."""
        if self._database is not None:
            database, self._database = self._database, None
            await self._thread.run(database.close)

    async def _run(self, action: Callable[[SqliteDatabase], T]) -> T:
        return await self._thread.run(lambda: self._run_in_thread(action))

    def _run_in_thread(self, action: Callable[[SqliteDatabase], T]) -> T:
        try:
            if self._database is None:
                self._database = SqliteDatabase(self.path, self._max_bytes)
            self._database.check_file()
            return action(self._database)
        except sqlite3.Error as error:
            if self._database is not None and getattr(error, "sqlite_errorname", "").startswith("SQLITE_READONLY"):
                # A file opened for reading stays so, whatever becomes of its permissions: it is opened anew.
                self._database.close()
                self._database = None
            raise as_sqlite_store_error(error, str(self.path)) from error
        except (UnicodeError, OverflowError) as error:
            raise StoreUnavailableError(str(self.path), f"it cannot keep this: {error}; give another") from error
        except OSError as error:
            raise StoreUnavailableError(str(self.path), f"{error.strerror or error}; check the path") from error
