"""A store in one file: SQLite in WAL mode, every append on the disk before it returns.

One connection lives in one thread, so that the event loop never waits for a disk. The thread is our own: an executor
of the standard library takes twice the time, and every recorded message pays it. Several processes may open the same
file; SQLite's lock decides which one writes.
"""

import asyncio
import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from queue import SimpleQueue
from types import CoroutineType
from typing import Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

from holdfast.errors import StoreUnavailableError, WrongEventLoopError
from holdfast.stores.appends import MAX_BATCH, Append
from holdfast.stores.base import IndexEntry, JsonRecord
from holdfast.stores.files import disk_remedy
from holdfast.stores.sqlite.database import SqliteDatabase
from holdfast.stores.sqlite.schema import FILE_LOCKED, as_sqlite_store_error

P = ParamSpec("P")
T = TypeVar("T")
FILE_REPLACED = "the file was removed or replaced while it was open; put it back, or close it and open it again"
_Queue: TypeAlias = "SimpleQueue[Callable[[], object] | None]"


class WorkerThread:
    """Runs actions one after another; starts with the first action and ends with its owner."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: _Queue | None = None
        self._process = 0
        """The process in which the thread runs: a fork does not copy it."""

    async def run(self, action: Callable[[], T]) -> T:
        """Return the result of an action; an action that is cancelled while it waits does not run."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.submit(lambda: None if future.cancelled() else _run_and_settle(action, future, loop))
        return await future

    def submit(self, action: Callable[[], object]) -> None:
        """Queue an action without waiting for it; its errors are dropped. Raises in a forked process."""
        if self._queue is None:
            self._queue, self._process = SimpleQueue(), os.getpid()
            # A daemon, so that the program may exit at once: only unacknowledged writes can be missing, none is torn.
            threading.Thread(target=_work, args=(self._queue,), name=self._name, daemon=True).start()
            weakref.finalize(self, self._queue.put, None)
        self.check_process()
        self._queue.put(action)

    def check_process(self) -> None:
        """Raise in a forked process."""
        if self._queue is not None and self._process != os.getpid():
            raise WrongEventLoopError("this SQLite store")


def _work(queue: _Queue) -> None:
    while (action := queue.get()) is not None:
        with suppress(Exception):
            action()
        # While the thread waits, the last action must not keep its owner alive.
        del action


def _run_and_settle(action: Callable[[], T], future: "asyncio.Future[T]", loop: asyncio.AbstractEventLoop) -> None:
    try:
        settle = partial(future.set_result, action())
    except BaseException as error:  # noqa: BLE001 - raised where the action is awaited
        settle = partial(future.set_exception, error)
    # The loop may have been closed meanwhile.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: future.done() or settle())


class _WaitingAppend(NamedTuple):
    item: Append
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[int]"


def _settle(results: Iterable[tuple["asyncio.Future[int]", int | BaseException]]) -> None:
    for future, result in results:
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)


def _in_thread(
    method: Callable[Concatenate[SqliteDatabase, P], T],
) -> "Callable[Concatenate[SqliteStore, P], CoroutineType[None, None, T]]":
    """Return a method of the database as a method of the store, run in the store's thread."""

    @wraps(method)
    async def run(store: "SqliteStore", *args: P.args, **kwargs: P.kwargs) -> T:
        return await store.run_in_thread(lambda database: method(database, *args, **kwargs))

    return run


class SqliteStore:
    """Keeps everything in one file, which only its owner can read."""

    def __init__(self, path: str | Path, *, max_bytes: int | None = None) -> None:
        """`max_bytes` limits the size of the file; without it only the disk does."""
        self.path = Path(path)
        self._max_bytes = max_bytes
        self._thread = WorkerThread("holdfast-sqlite")
        self._database: SqliteDatabase | None = None
        self._waiting = deque[_WaitingAppend]()
        self._writing_loop: asyncio.AbstractEventLoop | None = None
        """The event loop that is about to queue a write of what waits."""
        self._had_several = False
        """Whether the last write had several appends."""

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
        """Append records; all appends that wait at the same time are written in one transaction.

        If the last write had several, the next one begins when every task that is ready has run, so that it includes
        their appends. If it began with the first of them, the others would need a second write, and both threads would
        wait for the interpreter. The append of a session that works alone is written at once.
        """
        item = Append.of(session, records, after=after, time_ms=time_ms, index=index, blobs=blobs, name=name)
        if not item.is_batchable:
            return await self.run_in_thread(lambda database: database.append(item))
        # Not in the thread, where each call of zlib would release the interpreter's lock, and wait for the loop.
        item.lines()
        self._thread.check_process()
        loop = asyncio.get_running_loop()
        waiting = _WaitingAppend(item, loop, loop.create_future())
        self._waiting.append(waiting)
        if self._writing_loop is not loop:  # a loop that has ended meanwhile queues no write any more
            self._writing_loop = loop
            if self._had_several:
                loop.call_soon(self._thread.submit, self._write_waiting)
            else:
                self._thread.submit(self._write_waiting)
        return await waiting.future

    def _write_waiting(self) -> None:
        """Write every append that waits, and settle each with its own result."""
        # First this, then the appends: one that comes between the two finds no write queued, and queues one.
        self._writing_loop = None
        taken = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
        if self._waiting:
            self._thread.submit(self._write_waiting)
        self._had_several = len(taken) > 1
        batch = [waiting for waiting in taken if not waiting.future.cancelled()]
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[int], int | BaseException]]] = {}
        for waiting, result in zip(batch, self._write([waiting.item for waiting in batch]), strict=True):
            by_loop.setdefault(waiting.loop, []).append((waiting.future, result))
        for loop, results in by_loop.items():
            # The loop may have been closed meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, results)

    def _write(self, batch: Sequence[Append]) -> list[int | BaseException]:
        """Return the new length of each log, or the error of its append."""
        written: Sequence[int | None] = [None] * len(batch)
        if len(batch) > 1:
            try:
                written = self._run(SqliteDatabase.append_batch, batch)
            except StoreUnavailableError as error:
                if error.problem == FILE_LOCKED:
                    # Each of them would wait as long again.
                    return [StoreUnavailableError(error.store, error.problem) for _ in batch]
            except Exception:  # noqa: BLE001, S110 - whatever is wrong with the batch, each is written alone
                pass
        return [
            self._append_alone(item) if length is None else length for item, length in zip(batch, written, strict=True)
        ]

    def _append_alone(self, item: Append) -> int | BaseException:
        try:
            return self._run(SqliteDatabase.append, item)
        except BaseException as error:  # noqa: BLE001 - raised where the append is awaited
            return error

    rewrite = _in_thread(SqliteDatabase.rewrite)
    purge = _in_thread(SqliteDatabase.purge)
    read = _in_thread(SqliteDatabase.read)
    read_at = _in_thread(SqliteDatabase.read_at)
    length = _in_thread(SqliteDatabase.length)
    put_blob = _in_thread(SqliteDatabase.put_blob)
    get_blob = _in_thread(SqliteDatabase.get_blob)
    search = _in_thread(SqliteDatabase.search)
    sessions = _in_thread(SqliteDatabase.sessions)
    rename = _in_thread(SqliteDatabase.rename)
    delete = _in_thread(SqliteDatabase.delete)
    put_snapshot = _in_thread(SqliteDatabase.put_snapshot)
    get_snapshot = _in_thread(SqliteDatabase.get_snapshot)
    read_from_snapshot = _in_thread(SqliteDatabase.read_from_snapshot)
    put_value = _in_thread(SqliteDatabase.put_value)
    get_value = _in_thread(SqliteDatabase.get_value)
    values = _in_thread(SqliteDatabase.values)
    delete_value = _in_thread(SqliteDatabase.delete_value)

    @property
    def is_file_replaced(self) -> bool:
        """Whether the file was removed or replaced while it was open: this store cannot be used until it is closed."""
        database = self._database
        return database is not None and database.is_file_replaced

    async def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._waiting:
            self._thread.submit(self._write_waiting)
        if self._database is not None:
            await self._thread.run(self._close_database)

    async def run_in_thread(self, action: Callable[[SqliteDatabase], T]) -> T:
        """Return the result of an action on the open database; raises a `StoreError` for what the driver raises."""
        return await self._thread.run(lambda: self._run(action))

    def _run(self, action: Callable[Concatenate[SqliteDatabase, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            if self._database is not None and self._database.is_immutable and self._database.is_outdated:
                self._close_database()
            if self._database is None:
                self._database = SqliteDatabase(self.path, self._max_bytes, self._thread.submit)
            if self._database.is_file_replaced:
                raise StoreUnavailableError(str(self.path), FILE_REPLACED)
            with self._database.in_use:
                return action(self._database, *args, **kwargs)
        except sqlite3.Error as error:
            if self._database is not None and getattr(error, "sqlite_errorname", "").startswith("SQLITE_READONLY"):
                # A connection opened read-only stays read-only when the permissions change, so it is opened again.
                problem = self._database.write_problem
                self._close_database()
                if problem:
                    raise StoreUnavailableError(str(self.path), problem) from error
            raise as_sqlite_store_error(error, str(self.path)) from error
        except (UnicodeError, OverflowError) as error:
            raise StoreUnavailableError(str(self.path), f"it cannot store this value: {error}; pass another") from error
        except OSError as error:
            raise StoreUnavailableError(str(self.path), f"{error.strerror or error}; {disk_remedy(error)}") from error

    def _close_database(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()
