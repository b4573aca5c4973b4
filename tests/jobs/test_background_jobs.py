"""Compactions on DBOS: durable, taken over, cancelled, and without a word of a message in its tables."""

import asyncio
import base64
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from dbos import DBOS
from sqlalchemy import create_engine, make_url, text

from benchmarks.scale.servers import Server, pgbouncer, pgbouncer_program
from benchmarks.scale.servers import new_database as made_database
from holdfast import Session
from holdfast.apps import jobs as jobs_module
from holdfast.compaction import CompactionOptions, ModelReply, SummaryPrompt
from holdfast.core.history import events as log
from holdfast.core.planning.policy import PRESETS
from holdfast.errors import (
    CompactionRunningError,
    HoldfastError,
    ModelAccessError,
    SettingsError,
    StoreUnavailableError,
)
from holdfast.jobs import BackgroundJobs, RateLimit
from holdfast.models.base import Summarizer
from holdfast.session.memory.board_file import ContextBoard, Repository, board_key
from holdfast.session.memory.consolidation import ConsolidationResult, RemAgent
from holdfast.session.session import SessionOpener
from holdfast.stores.open import open_store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.clock import SimulatedClock
from tests.jobs.conversing import BUDGET, SECRET, converse_until_started

PGBOUNCER = pgbouncer_program() or ""
KEY = "sk-the-key-of-the-model"
SUMMARY = f"The user counts in Greek letters with {SECRET} [#0]. Done: alpha to kappa [#1]. Next: go on."


class Author:
    """Writes a summary when it may; it has a key, as models have."""

    name = "author"
    window = None
    key = KEY

    def __init__(self, error: Exception | None = None) -> None:
        self.asked, self.may_answer, self.stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        self.error = error
        self.calls = 0

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        del prompt
        self.calls += 1
        self.asked.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        if self.error:
            raise self.error
        return ModelReply(text=SUMMARY, model="author")


def opener(url: str, model: Summarizer | None) -> Callable[[str], SessionOpener]:
    return lambda name: Session.open(name, store=url, summarizer=model)


def queued(url: str, jobs: BackgroundJobs, name: str = "s") -> SessionOpener:
    """Open a session of a process that leaves its compactions to the queue."""
    return Session.open(name, store=url, compaction=CompactionOptions(automatic=Author(), queue=jobs))


async def completed(session: Session) -> list[tuple[bool, str | None, str | None]]:
    """Return how each compaction ended: whether it helped, who wrote it, and why a digest was made."""
    events = [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]
    return [(event.success, event.summary.by_model, event.reason or event.error) for event in events]


async def test_a_job_writes_the_summary_and_the_next_request_applies_it(new_file: str, tmp_path: Path) -> None:
    url, author = new_file, Author()
    async with BackgroundJobs(url, opener(url, author)) as jobs, queued(url, jobs) as session:
        started = await converse_until_started(session)

        assert await jobs.result(started.owner) == "summary"
        await session.prepare(BUDGET)

        assert author.calls == 1
        assert [(success, by) for success, by, _ in await completed(session)] == [(True, "author")]
    for file in tmp_path.glob("chats.db-jobs*"):
        assert not [word for word in (SECRET, KEY, "Greek") if word.encode() in file.read_bytes()]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (None, "a digest, because this worker has no model to write a summary"),
        (
            Author(ModelAccessError("author", "there is no key", "set one")),
            "a digest, because author: there is no key; ",
        ),
    ],
)
async def test_a_worker_without_a_key_ends_the_compaction_in_a_digest(
    new_file: str, model: Author | None, why: str
) -> None:
    url = new_file
    async with BackgroundJobs(url, opener(url, model)) as jobs, queued(url, jobs) as session:
        started = await converse_until_started(session)

        assert await jobs.result(started.owner) == "digest"

        success, by, reason = (await completed(session))[-1]
        assert (success, by) == (True, None)
        assert (reason or "").startswith(why)


def stored_texts(folder: Path) -> list[str]:
    """Return every value in the tables of DBOS, and what those hold that it has packed as base64."""
    found: list[str] = []
    with closing(sqlite3.connect(folder / "chats.db-jobs")) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            rows = connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608 - the name is the database's own
            values = [str(value) for row in rows for value in row]
            found += values
            for value in values:
                with suppress(ValueError):
                    found.append(base64.b64decode(value).decode(errors="replace"))
    return found


class UnluckyAgent(RemAgent):
    """Fails with a text of the conversation that it reads."""

    async def run(self, *, exclude: str = "", only: str = "", include_active: bool = False) -> ConsolidationResult:
        del exclude, only, include_active
        raise ValueError(f"cannot read {SECRET}")


async def test_an_error_of_a_callers_code_leaves_neither_a_key_nor_a_word_in_the_tables(
    new_file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def open_session(name: str) -> SessionOpener:
        raise RuntimeError(f"cannot open {name} with {KEY}: {SECRET}")

    store = open_store(new_file)
    board = ContextBoard(tmp_path / "boards", Repository(tmp_path))
    agent = UnluckyAgent(store, board, clock=lambda: 0)
    async with BackgroundJobs(new_file, open_session, consolidation=agent) as jobs, queued(new_file, jobs) as session:
        started = await converse_until_started(session)

        assert await jobs.result(started.owner) == "failed"
        with pytest.raises(HoldfastError, match="a background job failed with ValueError"):
            await hourly_result(jobs, f"holdfast-consolidation-{board.repository.key}")

    assert [text for text in stored_texts(tmp_path) if SECRET in text or KEY in text] == []
    assert {record.getMessage() for record in caplog.records if record.name == "holdfast"} == {
        "A background job failed with RuntimeError",
        "A background job failed with ValueError",
    }
    await store.close()


async def test_a_compaction_whose_worker_cannot_open_the_session_has_failed_in_the_log(new_file: str) -> None:
    def open_session(name: str) -> SessionOpener:
        raise RuntimeError(f"cannot open {name} with {KEY}")

    async with BackgroundJobs(new_file, open_session) as jobs, queued(new_file, jobs) as session:
        started = await converse_until_started(session)
        assert await jobs.result(started.owner) == "failed"
        await session.refresh()

        assert await completed(session) == [(False, None, "the worker failed with RuntimeError")]
        assert session.history.session_state.running_compaction is None


async def test_a_failed_compaction_ends_in_the_log_once_the_store_takes_writes_again(
    new_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, refused = SqliteStore.append, list[str]()

    async def append_or_refuse(store: SqliteStore, session: str, *given: Any, **named: Any) -> int:
        if is_failing.is_set() and len(refused) < 2:
            refused.append(session)
            raise StoreUnavailableError("store", "away")
        return await append(store, session, *given, **named)

    def open_session(name: str) -> SessionOpener:
        is_failing.set()
        raise RuntimeError(f"cannot open {name} with {KEY}")

    is_failing = asyncio.Event()
    monkeypatch.setattr(SqliteStore, "append", append_or_refuse)
    monkeypatch.setattr(jobs_module, "HEARTBEAT_SECONDS", 0.1)
    async with BackgroundJobs(new_file, open_session) as jobs, queued(new_file, jobs) as session:
        started = await converse_until_started(session)
        assert await jobs.result(started.owner) == "failed"
        async with asyncio.timeout(60):
            while session.history.session_state.running_compaction is not None:
                await session.refresh()

        assert refused == ["s", "s"]
        assert await completed(session) == [(False, None, "the worker failed with RuntimeError")]


async def test_a_cancelled_compaction_ends_and_the_conversation_goes_on(new_file: str) -> None:
    url, author = new_file, Author()
    author.may_answer.clear()
    async with BackgroundJobs(url, opener(url, author)) as jobs, queued(url, jobs) as session:
        await converse_until_started(session)
        await author.asked.wait()

        assert await session.cancel_compaction()
        await author.stopped.wait()

        assert not await session.cancel_compaction()
        assert (await completed(session))[-1] == (False, None, "it was cancelled")
        author.may_answer.set()
        started = await converse_until_started(session)
        assert await jobs.result(started.owner) == "summary"


async def test_a_cancelled_job_ends_in_the_log_even_if_whoever_cancelled_it_has_not_recorded_it(new_file: str) -> None:
    url, author = new_file, Author()
    author.may_answer.clear()
    async with BackgroundJobs(url, opener(url, author)) as jobs, queued(url, jobs) as session:
        started = await converse_until_started(session)
        await author.asked.wait()

        await jobs.cancel(started.owner)
        while session.history.session_state.running_compaction is not None:
            await session.refresh()

        assert await completed(session) == [(False, None, "it was cancelled")]


async def test_a_worker_that_is_closed_leaves_the_summary_that_it_writes_to_another_worker(
    new_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "SILENT_SECONDS", 0.3)
    url, closed, other = new_file, Author(), Author()
    closed.may_answer.clear()
    async with BackgroundJobs(url, opener(url, closed)) as jobs, queued(url, jobs) as session:
        started = await converse_until_started(session)
        await closed.asked.wait()
    was_stopped = closed.stopped.is_set()

    async with BackgroundJobs(url, opener(url, other)) as jobs:
        outcome = await jobs.result(started.owner)
    async with Session.open("s", store=url) as session:
        await session.prepare(BUDGET)

        assert (was_stopped, outcome, other.calls) == (True, "summary", 1)
        assert [(success, by) for success, by, _ in await completed(session)] == [(True, "author")]


async def test_the_jobs_of_a_killed_worker_are_taken_over_and_end_in_a_digest_where_there_is_no_key(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "SILENT_SECONDS", 0.3)
    url, ended = new_database(), {"shared": ("summary", "author"), "here": ("digest", None)}
    worker = [sys.executable, "-W", "ignore", "-m", "tests.jobs.killed_worker", url]
    process = subprocess.Popen(worker, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    told = [process.stdout.readline().strip() for _ in range(4)]
    process.kill()
    process.wait()
    process.stdout.close()
    owners = dict(zip(ended, [line for line in told if line != "asked"], strict=True))

    def open_with_own_key(name: str) -> SessionOpener:
        return Session.open(name, store=url, summarizer=Author() if name == "shared" else None)

    async with BackgroundJobs(url, open_with_own_key) as jobs:
        for name, (outcome, by) in ended.items():
            assert await jobs.result(owners[name]) == outcome
            async with Session.open(name, store=url) as session:
                await session.prepare(BUDGET)
                assert [(success, who) for success, who, _ in await completed(session)] == [(True, by)]
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'holdfast_jobs'"
        ).fetchall()
        every = [f"SELECT t::text FROM {name} AS t".encode() for (name,) in tables]  # noqa: S608 - names of tables
        rows = [str(connection.execute(query).fetchall()) for query in every]
    assert all(any(owner in row for row in rows) for owner in owners.values())
    assert not [word for word in (SECRET, KEY, "Greek") for row in rows if word in row]


@pytest.mark.skipif(not PGBOUNCER, reason="there is no pgbouncer here: apt-get install pgbouncer")
async def test_jobs_work_behind_pgbouncer(new_database: Callable[[], str], postgres_server: Server) -> None:
    with pgbouncer(PGBOUNCER, new_database(), postgres_server.system_user, pool_size=2) as url:
        async with BackgroundJobs(url, opener(url, Author())) as jobs, queued(url, jobs) as session:
            started = await converse_until_started(session)

            assert await jobs.result(started.owner) == "summary"


class NotedSessions:
    """Notes which sessions jobs open, and lets them go on when it is told to."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.opened: list[str] = []
        self.may_go_on = asyncio.Event()
        self.is_entered = asyncio.Event()

    @asynccontextmanager
    async def open(self, name: str) -> AsyncGenerator[Session]:
        self.opened.append(name)
        self.is_entered.set()
        await self.may_go_on.wait()
        async with Session.open(name, store=self._url) as session:
            yield session


async def test_what_a_provider_has_refused_goes_first(new_file: str) -> None:
    noted = NotedSessions(new_file)
    async with BackgroundJobs(new_file, noted.open, jobs_at_once=1) as jobs:
        await jobs.submit("running", "job:1", "threshold")
        await noted.is_entered.wait()
        await jobs.submit("can wait", "job:2", "threshold")
        await jobs.submit("was refused", "job:3", "context_limit_retry")
        noted.may_go_on.set()
        assert [await jobs.result(f"job:{number}") for number in (1, 2, 3)] == ["not wanted"] * 3

    assert noted.opened == ["running", "was refused", "can wait"]


async def test_a_model_key_has_a_limit_of_its_own(new_file: str) -> None:
    noted = NotedSessions(new_file)
    noted.may_go_on.set()
    async with BackgroundJobs(new_file, noted.open, model_key="team-a", rate_limit=RateLimit(2, 3600.0)) as jobs:
        for number in range(4):
            await jobs.submit(f"s{number}", f"job:{number}", "threshold")
        assert [await jobs.result("job:0"), await jobs.result("job:1")] == ["not wanted"] * 2
    async with BackgroundJobs(new_file, noted.open, model_key="team-b", rate_limit=RateLimit(2, 3600.0)) as jobs:
        await jobs.submit("other", "job:other", "threshold")
        assert await jobs.result("job:other") == "not wanted"

    assert sorted(noted.opened) == ["other", "s0", "s1"]


async def test_of_one_session_one_compaction_waits_or_runs_at_a_time(new_file: str) -> None:
    noted = NotedSessions(new_file)
    async with BackgroundJobs(new_file, noted.open) as jobs:
        await jobs.submit("s", "job:1", "threshold")
        await noted.is_entered.wait()
        with pytest.raises(CompactionRunningError):
            await jobs.submit("s", "job:2", "threshold")
        noted.may_go_on.set()
        await jobs.result("job:1")

        await jobs.submit("s", "job:3", "threshold")
        assert await jobs.result("job:3") == "not wanted"


async def hourly_result(jobs: BackgroundJobs, name: str) -> object:
    """Wait for what a worker does every hour, once it has queued it."""
    job = f"{name}-{int(time.time()) // jobs_module.UPKEEP_SECONDS}"
    while not await DBOS.list_workflows_async(workflow_ids=[job]):
        pass
    return await jobs.result(job)


async def test_a_worker_deletes_what_has_expired_once_an_hour(new_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    day, now = 86_400_000, int(time.time() * 1000)
    policy = replace(PRESETS["default"], retention_days=3)
    for name, age in (("old", 10), ("new", 0)):
        clock = SimulatedClock(now - age * day)
        async with Session.open(name, store=new_file, policy=policy, clock=clock.time_ms) as session:
            await session.record([user_message("hello")])
    monkeypatch.setattr(jobs_module, "now_ms", lambda: now)
    files = list[str]()
    async with BackgroundJobs(new_file, opener(new_file, None), delete_files=files.append) as jobs:
        marked = await hourly_result(jobs, "retention")
        monkeypatch.setattr(jobs_module, "now_ms", lambda: now + 2 * day)
        deleted = await jobs.delete_expired()

    store = open_store(new_file)
    assert (marked, deleted, files) == (0, 1, ["old"])
    assert [info.id for info in await store.sessions()] == ["new"]
    await store.close()


async def test_no_heartbeat_stays_of_a_worker_that_was_closed_or_killed(
    new_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(jobs_module, "HEARTBEAT_SECONDS", 0.01)
    store = open_store(new_file)
    await store.put_value("jobs-worker:killed", {"beats": 7})

    async with BackgroundJobs(new_file, opener(new_file, None)) as jobs:
        await hourly_result(jobs, "retention")
        while [*await store.values("jobs-worker:")] != [f"jobs-worker:{jobs.worker}"]:
            pass

    assert await store.values("jobs-worker:") == {}
    await store.close()


async def test_a_worker_updates_its_board_once_an_hour(new_file: str, tmp_path: Path) -> None:
    board, clock = ContextBoard(tmp_path / "boards", Repository(tmp_path)), SimulatedClock(1_700_000_000_000)
    async with Session.open("s", store=new_file, clock=clock.time_ms) as session:
        await session.record([user_message("Never deploy on a Friday."), assistant_message("I will not.")])
    store = open_store(new_file)
    await store.put_value(board_key("s"), {"board": board.repository.key})
    await clock.advance(3_600)
    agent = RemAgent(store, board, clock=clock.time_ms)
    async with BackgroundJobs(new_file, opener(new_file, None), consolidation=agent) as jobs:
        assert await hourly_result(jobs, f"holdfast-consolidation-{board.repository.key}") == 1

    assert [note.text for note in (await board.read()).notes] == ["Never deploy on a Friday."]
    await store.close()


async def test_a_second_worker_in_one_process_is_refused(new_file: str) -> None:
    url = new_file
    async with BackgroundJobs(url, opener(url, None), rate_limit=RateLimit(10, 60.0)):
        with pytest.raises(SettingsError, match="DBOS runs once in a process"):
            async with BackgroundJobs(url, opener(url, None)):
                pass


async def test_the_close_of_a_worker_that_was_refused_leaves_the_one_that_works_alone(new_file: str) -> None:
    url, author = new_file, Author()
    async with BackgroundJobs(url, opener(url, author)) as jobs, queued(url, jobs) as session:
        refused = BackgroundJobs(url, opener(url, None))
        with pytest.raises(SettingsError):
            await refused.start()
        await refused.close()
        async with asyncio.timeout(60):
            started = await converse_until_started(session)

            assert await jobs.result(started.owner) == "summary"


async def test_after_a_worker_whose_start_was_cancelled_another_one_starts(
    new_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, is_launching, url = BackgroundJobs._launch, threading.Event(), new_file

    def launch_and_say_so(jobs: BackgroundJobs) -> None:
        is_launching.set()
        launch(jobs)

    monkeypatch.setattr(BackgroundJobs, "_launch", launch_and_say_so)
    starting = asyncio.create_task(BackgroundJobs(url, opener(url, None)).start())
    await asyncio.create_task(asyncio.to_thread(is_launching.wait))
    starting.cancel()
    await asyncio.wait({starting})

    async with BackgroundJobs(url, opener(url, Author())) as jobs, queued(url, jobs) as session:
        started = await converse_until_started(session)

        assert (starting.cancelled(), await jobs.result(started.owner)) == (True, "summary")


async def test_after_a_worker_that_could_not_start_another_one_starts(new_file: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "damaged.db-jobs").write_bytes(b"no database " * 1_000)
    nowhere, damaged = f"sqlite:///{tmp_path}/file/chats.db", f"sqlite:///{tmp_path}/damaged.db"
    with pytest.raises(StoreUnavailableError):
        await BackgroundJobs(nowhere, opener(nowhere, None)).start()
    with pytest.raises(StoreUnavailableError) as refusal:
        await BackgroundJobs(damaged, opener(damaged, None)).start()
    assert str(refusal.value) == (
        f"{tmp_path}/damaged.db-jobs: the file of background jobs is damaged; stop all workers and delete it: it holds "
        "no conversation"
    )

    author = Author()
    async with BackgroundJobs(new_file, opener(new_file, author)) as jobs, queued(new_file, jobs) as session:
        started = await converse_until_started(session)

        assert await jobs.result(started.owner) == "summary"


async def test_a_worker_keeps_its_jobs_in_a_private_file_beside_a_store_with_any_path(
    new_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    del new_file
    for url, name in (("sqlite:///~/chats.db", "chats.db"), (f"sqlite:///{tmp_path}/a?b#c %25.db", "a?b#c %.db")):
        async with BackgroundJobs(url, opener(url, None)):
            file = tmp_path / f"{name}-jobs"

            assert (file.is_file(), file.stat().st_mode & 0o777) == (True, 0o600)


async def test_a_worker_creates_no_database_and_says_what_it_may_not_do(
    new_database: Callable[[], str], postgres_server: Server
) -> None:
    url = made_database(postgres_server)
    server, _, query = url.partition("?")
    store = open_store(url)
    await store.sessions(limit=1)
    await store.close()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE ROLE worker LOGIN")
        owner.execute("GRANT USAGE ON SCHEMA holdfast TO worker")
        owner.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO worker")
    prepared = new_database()
    with psycopg.connect(prepared, autocommit=True) as owner:
        for schema in ("holdfast", "holdfast_jobs"):
            owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO worker".encode())
            owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO worker".encode())
    problems = list[str]()
    for wrong in (f"{server}_missing?{query}", url.replace("postgres:@", "worker@")):
        with pytest.raises(StoreUnavailableError) as refusal:
            await BackgroundJobs(wrong, opener(wrong, None)).start()
        problems.append(str(refusal.value))

    granted = prepared.replace("postgres:@", "worker@")
    async with BackgroundJobs(granted, opener(granted, Author())) as jobs, queued(granted, jobs) as session:
        outcome = await jobs.result((await converse_until_started(session)).owner)

    database = server.rpartition("/")[2]
    assert problems == [
        "postgresql: there is no such database; create it, or check the URL",
        f"postgresql: background jobs need tables of their own (permission denied for database {database}); let a role "
        "that may CREATE start them once, and grant USAGE on the schema holdfast_jobs and SELECT, INSERT, UPDATE, "
        "DELETE on its tables",
    ]
    assert outcome == "summary"


async def test_a_worker_starts_with_every_form_of_url_that_the_store_takes(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database()
    server, _, folder = url.partition("?host=")
    name = server.rpartition("/")[2]
    monkeypatch.setenv("PGDATABASE", name)
    socket = quote(folder, safe="")

    working = list[bool]()
    for one in (f"postgresql://postgres@localhost:1,{socket}:5432/{name}", f"postgres://postgres@{socket}"):
        async with BackgroundJobs(one, opener(one, None)) as jobs:
            working.append(BackgroundJobs.running is jobs)

    assert working == [True, True]


async def test_jobs_read_texts_from_a_database_without_an_encoding(postgres_server: Server) -> None:
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE jobs_ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' TEMPLATE template0")
    database = jobs_module.jobs_database(postgres_server.get_uri("jobs_ascii"))
    engine = create_engine(make_url(database.url).set(drivername="postgresql+psycopg"), **database.engine_options)

    with engine.connect() as connection:
        row = connection.execute(text("SELECT current_database(), 'straße'::text")).one()

    engine.dispose()
    assert row == ("jobs_ascii", "straße")


def test_the_times_of_a_jobs_database_are_written_with_any_sqlite(tmp_path: Path) -> None:
    before = time.time() - 1
    with closing(sqlite3.connect(tmp_path / "jobs.db", factory=jobs_module.JobsConnection)) as connection:
        connection.execute("CREATE TABLE made (at INTEGER NOT NULL DEFAULT (unixepoch('subsec') * 1000))")
        connection.execute("INSERT INTO made DEFAULT VALUES")
        [(at,)] = connection.execute("SELECT at FROM made")

    assert before * 1000 < at < (time.time() + 1) * 1000
