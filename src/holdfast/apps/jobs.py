"""Background work on DBOS: compactions, consolidation and retention as durable jobs, on one machine or on many.

Every process that runs `BackgroundJobs` is a worker. A job names a session and a compaction of its log, and nothing
else: DBOS's tables hold neither a key nor a word of a message. Of one session one compaction runs at a time, on
whichever machine. A worker that was killed is noticed because its heartbeat stands still, and another one takes its
jobs over after `SILENT_SECONDS`. A worker that has no key for the model ends the compaction in a digest.

DBOS runs jobs in threads and loops of its own. Their work is done on the event loop that started the worker, where its
sessions and its store belong.

DBOS keeps its tables in a schema of its own in the same PostgreSQL, or in a SQLite file beside the store. It never uses
LISTEN, which does not pass through PgBouncer: that cannot be changed once the tables exist. Needs `holdfast[dbos]`.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import socket
import sqlite3
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Self, TypeVar, cast

from holdfast.core.history.events import CompactionTrigger
from holdfast.core.planning.changes import compaction_abandoned_event
from holdfast.errors import (
    CompactionRunningError,
    DamagedStoreError,
    HoldfastError,
    SettingsError,
    StoreError,
    StoreUnavailableError,
    imports_of_extra,
)
from holdfast.session.compaction.compactor import CANCEL_GRACE_SECONDS, CompactionQueue
from holdfast.session.log.event_log import SessionLog, locked, now_ms
from holdfast.session.memory.consolidation import RemAgent
from holdfast.session.requested_compaction import JobOutcome
from holdfast.session.session import Session
from holdfast.stores.base import JsonRecord, Store
from holdfast.stores.files import create_private_file, disk_remedy
from holdfast.stores.open import SHARED_STORES, open_store
from holdfast.stores.retention import delete_expired_sessions
from holdfast.stores.sqlite.schema import as_sqlite_store_error
from holdfast.stores.sqlite.store import SqliteStore

with imports_of_extra("dbos", "background jobs"):
    from dbos import DBOS, DBOSConfig, SetEnqueueOptions, SetWorkflowID, WorkflowHandleAsync
    from sqlalchemy import URL, make_url

JOBS_SCHEMA = "holdfast_jobs"
GRANT_JOBS = (
    f"let a role that may CREATE start them once, and grant USAGE on the schema {JOBS_SCHEMA} and SELECT, INSERT, "
    "UPDATE, DELETE on its tables"
)
DAMAGED_JOBS = "the file of background jobs is damaged; stop all workers and delete it: it holds no conversation"
JOBS_VERSION = "1"
"""Workers with the same version take over each other's jobs; it changes when jobs take other arguments."""
HEARTBEAT_SECONDS, SILENT_SECONDS = 4.0, 18.0
"""How often a worker shows that it lives, and after how much silence it counts as dead."""
JOB_POLL_SECONDS = 1.0
"""How often a worker looks for jobs, and whoever waits for one looks for its result."""
UPKEEP_SECONDS = 3600
"""How often retention and consolidation are done."""
PRIORITIES: Mapping[CompactionTrigger, int] = {"context_limit_retry": 1, "model_switch": 1}
ORDINARY_PRIORITY = 10
RETENTION_QUEUE = "holdfast-retention"
WORKER_PREFIX = "jobs-worker:"
CANCELLED = "it was cancelled"
_LOGGER = logging.getLogger("holdfast")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How many compactions may be started in a time, for all workers together."""

    jobs: int
    seconds: float


class BackgroundJobs:
    """A worker, and the queue that sessions leave their compactions to; one at a time in a process.

    `open_session` opens a session with the model that writes summaries. `model_key` names the key that pays for it: all
    workers with the same name share one queue, and `rate_limit` is the limit of that key. Pass the object as
    `CompactionOptions(queue=…)`. With `consolidation` the worker updates the board of that agent every hour.
    `delete_files` removes what belongs to a session outside the store, once the session itself is deleted.
    """

    running: ClassVar["BackgroundJobs | None"] = None
    """The worker of this process."""

    def __init__(
        self,
        store: str,
        open_session: Callable[[str], AbstractAsyncContextManager[Session]],
        *,
        model_key: str = "default",
        rate_limit: RateLimit | None = None,
        jobs_at_once: int = 4,
        consolidation: RemAgent | None = None,
        delete_files: Callable[[str], object] | None = None,
    ) -> None:
        self.store_url = store
        self._open_session = open_session
        self._rate_limit = rate_limit
        self._jobs_at_once = jobs_at_once
        self._consolidation = consolidation
        self._delete_files = delete_files
        # The name of a key may be the key itself, by mistake.
        self._queue = f"holdfast-compactions-{hashlib.sha256(model_key.encode()).hexdigest()[:12]}"
        self.worker = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._beat_key = f"{WORKER_PREFIX}{self.worker}"
        self._store = SHARED_STORES.share(store, self)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None
        self._running: dict[str, asyncio.Task[JobOutcome]] = {}
        """By owner, the compactions that run here."""
        self._ended: dict[str, tuple[str, str]] = {}
        """By owner, the session of a compaction that failed or was cancelled here, and why, until its log says so."""
        self._cancelled: set[str] = set()
        """The owners of compactions that somebody has cancelled while they ran here."""
        self.here: CompactionQueue = _JobsHere(self)
        """A queue whose jobs begin in this process at once, for sessions whose key only this process has. If it is
        killed, another worker takes them over."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start to work."""
        if BackgroundJobs.running is not None:
            raise SettingsError("jobs", "DBOS runs once in a process; close the other BackgroundJobs first")
        BackgroundJobs.running, self._loop = self, asyncio.get_running_loop()
        try:
            # DBOS would create a database that is missing, and its errors say nothing to an operator.
            await self._store.sessions(limit=1)
            launching = asyncio.ensure_future(asyncio.to_thread(self._launch))
            try:
                await asyncio.shield(launching)
            except asyncio.CancelledError:
                # The thread goes on: what it launches would keep every other worker of this process from starting.
                await asyncio.wait({launching})
                if launching.exception() is None:
                    await asyncio.to_thread(DBOS.destroy)
                raise
        except BaseException:
            BackgroundJobs.running = None
            await SHARED_STORES.release(self._store, self)
            raise
        self._watch = asyncio.create_task(self._watch_workers())

    async def close(self) -> None:
        """Stop to work; what is not finished is taken over by others. A worker that does not work is left as it is."""
        if BackgroundJobs.running is not self:
            return
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await asyncio.to_thread(lambda: DBOS.destroy(workflow_completion_timeout_sec=0))
        if running := [*self._running.values()]:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=CANCEL_GRACE_SECONDS)
        else:
            with suppress(StoreError):  # another worker deletes it, as that of one with jobs, which it takes over first
                await self._store.delete_value(self._beat_key)
        # DBOS has made its own threads those of this event loop, and has ended them.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
        BackgroundJobs.running = None
        await SHARED_STORES.release(self._store, self)

    def _launch(self) -> None:
        database = jobs_database(self.store_url)
        config: DBOSConfig = {
            "name": "holdfast",
            "system_database_url": database.url,
            "dbos_system_schema": JOBS_SCHEMA,
            "executor_id": self.worker,
            "application_version": JOBS_VERSION,
            "use_listen_notify": False,
            # PgBouncer accepts no options at the start of a connection.
            "sys_db_idle_transaction_timeout_sec": 0,
            "log_level": "CRITICAL",
            "db_engine_kwargs": dict(database.engine_options),
        }
        DBOS(config=config)
        upkeep = [RETENTION_QUEUE, *([self._consolidation_queue] if self._consolidation else [])]
        DBOS.listen_queues([self._queue, *upkeep])
        try:
            DBOS.launch()
            self._register_queues(upkeep)
        except BaseException as error:
            # It counts as launched from now on, and no other worker could start in this process.
            DBOS.destroy()
            if (problem := _database_error(error, database.url)) is not None:
                raise problem from error
            raise

    def _register_queues(self, upkeep: Sequence[str]) -> None:
        limit = self._rate_limit
        # Not partitioned by session: DBOS compares priorities within a partition only.
        DBOS.register_queue(
            self._queue,
            worker_concurrency=self._jobs_at_once,
            limiter={"limit": limit.jobs, "period": limit.seconds} if limit else None,
            polling_interval_sec=JOB_POLL_SECONDS,
        )
        for name in upkeep:
            DBOS.register_queue(name, global_concurrency=1, polling_interval_sec=JOB_POLL_SECONDS)

    # The queue of sessions.

    async def submit(self, session: str, owner: str, trigger: CompactionTrigger) -> None:
        """Store the job of a compaction durably; raises if another job of the session waits or runs."""
        priority = PRIORITIES.get(trigger, ORDINARY_PRIORITY)
        options = SetEnqueueOptions(deduplication_id=session, duplication_policy="return-existing", priority=priority)
        with SetWorkflowID(owner), options:
            job = await DBOS.enqueue_workflow_async(self._queue, compaction_job, session, owner)
        if job.workflow_id != owner:
            raise CompactionRunningError(session)

    async def cancel(self, owner: str) -> None:
        """Cancel a job that waits or runs; the worker that runs it stops within a few seconds."""
        await DBOS.cancel_workflow_async(owner)
        await self._stop_cancelled()

    async def result(self, owner: str) -> JobOutcome:
        """Wait for a job, and return what came of it."""
        handle = cast("WorkflowHandleAsync[JobOutcome]", await DBOS.retrieve_workflow_async(owner))
        return await handle.get_result(polling_interval_sec=JOB_POLL_SECONDS)

    # What jobs do, on the event loop of the worker.

    async def run_here(self, work: Callable[[], Coroutine[object, object, T]]) -> T:
        """Return the result of work that is done on the event loop of this worker."""
        if self._loop is None:  # pragma: no cover - jobs run only after the start
            raise AssertionError
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop))
        except Exception as error:  # noqa: BLE001 - DBOS stores whatever is raised
            problem = _logged_failure(error)
        # Not the error itself: its text may quote a message or a key, and DBOS would store it.
        raise HoldfastError(f"a background job failed with {problem}")

    async def run_compaction(self, session: str, owner: str) -> JobOutcome:
        """Carry out the job of a compaction."""
        task = self._running[owner] = asyncio.ensure_future(self._compact(session, owner))
        task.add_done_callback(lambda _: self._running.pop(owner, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled() or owner not in self._cancelled:
                raise  # this worker ends, and another one takes the job over
        finally:
            self._cancelled.discard(owner)
        self._ended[owner] = session, CANCELLED
        await self._record_ended()
        return "not wanted"

    async def _compact(self, session: str, owner: str) -> JobOutcome:
        try:
            async with self._open_session(session) as opened:
                return await opened.run_compaction(owner)
        except Exception as error:  # noqa: BLE001 - `open_session` is the caller's
            problem = _logged_failure(error)
        self._ended[owner] = session, f"the worker failed with {problem}"
        await self._record_ended()
        return "failed"

    async def _record_ended(self) -> None:
        """Record which compactions have ended here; what the store refuses now is written with a later heartbeat."""
        for owner, (session, why) in list(self._ended.items()):
            with suppress(StoreError):
                await _EndedJob(self._store, session).end_compaction(owner, why)
                self._ended.pop(owner, None)

    async def delete_expired(self) -> int:
        """Delete the sessions whose own retention is over, each in a transaction of its own; return how many."""
        delete_files = self._delete_files
        return len(await delete_expired_sessions(self._store, now_ms=now_ms(), keep="", delete_files=delete_files))

    async def consolidate(self) -> int:
        """Update the board of this worker from finished conversations, and return how many entries have changed."""
        agent = self._consolidation
        if agent is None:
            return 0
        result = await agent.run()
        await agent.apply(result)
        return len(result.proposals)

    @property
    def _consolidation_queue(self) -> str:
        key = self._consolidation.board.repository.key if self._consolidation else ""
        return f"holdfast-consolidation-{key}"

    # Taking over.

    async def _watch_workers(self) -> None:
        """Show that this worker lives, take over the jobs of those that do not, and have the hourly work done."""
        seen: dict[str, tuple[JsonRecord | None, float]] = {}
        beats = 0
        while True:
            beats += 1
            with suppress(Exception):  # the database may be away for a while
                await self._store.put_value(self._beat_key, {"beats": beats})
                await self._take_over(seen)
                await self._stop_cancelled()
                await self._queue_upkeep(int(time.time()) // UPKEEP_SECONDS)
                await self._record_ended()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _queue_upkeep(self, hour: int) -> None:
        """Queue the work of an hour, which one of all workers does once."""
        with SetWorkflowID(f"retention-{hour}"):
            await DBOS.enqueue_workflow_async(RETENTION_QUEUE, retention_job)
        if self._consolidation:
            with SetWorkflowID(f"{self._consolidation_queue}-{hour}"):
                await DBOS.enqueue_workflow_async(self._consolidation_queue, consolidation_job)

    async def _stop_cancelled(self) -> None:
        """Stop the compactions of this worker that somebody has cancelled."""
        if not self._running:
            return
        cancelled = await DBOS.list_workflows_async(
            workflow_ids=[*self._running], status="CANCELLED", load_input=False, load_output=False
        )
        for one in cancelled:
            if (task := self._running.get(one.workflow_id)) and not task.cancelling():
                self._cancelled.add(one.workflow_id)
                task.cancel()

    async def _take_over(self, seen: dict[str, tuple[JsonRecord | None, float]]) -> None:
        """Put the jobs of dead workers back into the queue, and delete their heartbeats.

        No clock of another machine is relied on. A worker that was only slow writes its heartbeat again.
        """
        running = await DBOS.list_workflows_async(status="PENDING", load_input=False, load_output=False)
        with_jobs = {one.executor_id for one in running if one.executor_id}
        stored = await self._store.values(WORKER_PREFIX)
        beats = {key.removeprefix(WORKER_PREFIX): beat for key, beat in stored.items()}
        others = {*with_jobs, *beats} - {self.worker}
        for ended in seen.keys() - others:
            del seen[ended]
        for worker in others:
            beat = beats.get(worker)
            known, since = seen.get(worker, (None, 0.0))
            if worker not in seen or beat != known:
                seen[worker] = beat, time.monotonic()
            elif time.monotonic() - since > SILENT_SECONDS:
                if worker in with_jobs:
                    # DBOS calls this for its own service; on one database, the workers do it for each other.
                    await asyncio.to_thread(DBOS._recover_pending_workflows, [worker])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                await self._store.delete_value(f"{WORKER_PREFIX}{worker}")
                del seen[worker]


class JobsConnection(sqlite3.Connection):
    """A connection of DBOS to a SQLite file.

    With Python 3.12 and later DBOS writes times as `unixepoch('subsec')`, which is NULL before SQLite 3.42: the SQLite
    of Debian 12, to which a newer Python may be linked, is 3.40.
    """

    def __init__(self, database: str, *, check_same_thread: bool = True, factory: object = None) -> None:
        """Connect as `sqlite3.connect` tells with `factory`, which is this class."""
        del factory
        super().__init__(database, check_same_thread=check_same_thread)
        self.create_function("unixepoch", 1, _seconds_now)


def _seconds_now(modifier: str) -> float:
    del modifier  # DBOS passes "subsec" only
    return round(time.time(), 3)


def _logged_failure(error: Exception) -> str:
    """Log that a job failed, and return the class of its error; its text may quote a message or a key."""
    problem = type(error).__name__
    _LOGGER.error("A background job failed with %s", problem)
    return problem


class JobsDatabase(NamedTuple):
    """Where DBOS keeps its tables, as SQLAlchemy needs it."""

    url: str
    engine_options: Mapping[str, object]


def jobs_database(store: str) -> JobsDatabase:
    """Return the database of DBOS: that of the store, or a SQLite file beside it."""
    if store.startswith(("postgresql://", "postgres://")):
        return _postgres_jobs(store)
    if store.startswith("sqlite:///"):
        path = cast("SqliteStore", open_store(store)).path.absolute()
        file = path.with_name(f"{path.name}-jobs")
        try:
            create_private_file(file)
        except OSError as error:
            raise StoreUnavailableError(str(file), f"{error.strerror or error}; {disk_remedy(error)}") from error
        url = URL.create("sqlite", database=str(file))
        options = {"connect_args": {"factory": JobsConnection}}
        return JobsDatabase(url.render_as_string(hide_password=False), options)
    raise SettingsError("store", "background jobs need a store on disk: postgresql://… or sqlite:///file")


def _postgres_jobs(store: str) -> JobsDatabase:
    """Return the database of a store in PostgreSQL.

    The driver connects as for the store. SQLAlchemy reads fewer URLs: none with a port for each of several hosts, and
    none that leaves the database to PGDATABASE. DBOS gets the name that the server knows: it would create a database
    that is missing there, as that of a pooler may be, which has names of its own.
    """
    from holdfast.stores.postgres_pool import as_postgres_store_error, postgres_dsn, psycopg  # noqa: PLC0415 - an extra

    # PgBouncer 1.18 accepts no prepared statements.
    connect = partial(psycopg.connect, postgres_dsn(store), prepare_threshold=None, client_encoding="UTF8")
    try:
        with connect() as connection:
            row = connection.execute("SELECT current_database()").fetchone()
    except psycopg.Error as error:
        raise as_postgres_store_error(error) from error
    url = URL.create("postgresql", database=row[0] if row else "")
    return JobsDatabase(url.render_as_string(hide_password=False), {"creator": connect, "pool_size": 4})


def _database_error(error: BaseException, jobs_url: str) -> StoreError | None:
    """Return what a database says to DBOS as an error of the store; None if it is no error of a database."""
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.Error):
        file = make_url(jobs_url).database or ""
        found = as_sqlite_store_error(cause, file)
        return StoreUnavailableError(file, DAMAGED_JOBS) if isinstance(found, DamagedStoreError) else found
    from holdfast.stores.postgres_pool import POSTGRES_LABEL, as_postgres_store_error, psycopg  # noqa: PLC0415 - an extra

    if not isinstance(cause, psycopg.Error):
        return None
    if isinstance(cause, psycopg.errors.InsufficientPrivilege):
        first = str(cause).partition("\n")[0]
        return StoreUnavailableError(
            POSTGRES_LABEL, f"background jobs need tables of their own ({first}); {GRANT_JOBS}"
        )
    return as_postgres_store_error(cause)


def _worker() -> BackgroundJobs:
    if BackgroundJobs.running is None:
        raise SettingsError("jobs", "there is no BackgroundJobs in this process")
    return BackgroundJobs.running


class _EndedJob:
    """Writes the log of a session whose compaction has ended without an outcome of its own."""

    def __init__(self, store: Store, session: str) -> None:
        self._log = SessionLog(store, session, now_ms)

    @locked
    async def end_compaction(self, owner: str, why: str) -> None:
        """Record that a compaction has ended; until its lease ends, it would count as running."""
        state = self._log.history.session_state
        run = state.running_compaction
        if run is not None and run.owner == owner and state.ready_summary is None:
            await self._log.append(compaction_abandoned_event(run, why, is_cancelled=why == CANCELLED))


class _JobsHere:
    """The queue of compactions that begin in the process that submits them."""

    def __init__(self, jobs: BackgroundJobs) -> None:
        self._jobs = jobs

    async def submit(self, session: str, owner: str, trigger: CompactionTrigger) -> None:
        del trigger  # nothing waits
        with SetWorkflowID(owner):
            await DBOS.start_workflow_async(compaction_job, session, owner)

    async def cancel(self, owner: str) -> None:
        await self._jobs.cancel(owner)


@DBOS.workflow(name="holdfast.compaction")
async def compaction_job(session: str, owner: str) -> JobOutcome:
    """Write the summary of one compaction."""
    worker = _worker()

    async def compact() -> JobOutcome:
        return await worker.run_compaction(session, owner)

    return await DBOS.run_step_async({"name": "summary"}, worker.run_here, compact)


@DBOS.workflow(name="holdfast.retention")
async def retention_job() -> int:
    """Delete what has expired."""
    worker = _worker()
    return await DBOS.run_step_async({"name": "delete"}, worker.run_here, worker.delete_expired)


@DBOS.workflow(name="holdfast.consolidation")
async def consolidation_job() -> int:
    """Update a board."""
    worker = _worker()
    return await DBOS.run_step_async({"name": "read"}, worker.run_here, worker.consolidate)
