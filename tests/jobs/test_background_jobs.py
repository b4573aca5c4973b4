"""Compactions on DBOS: durable, taken over, cancelled, and without a word of a message in its tables."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from holdfast import Session
from holdfast.apps import jobs as jobs_module
from holdfast.compaction import CompactionOptions, ModelReply, SummaryPrompt
from holdfast.core.history import events as log
from holdfast.errors import ModelAccessError, SettingsError
from holdfast.jobs import BackgroundJobs, RateLimit
from holdfast.models.base import Summarizer
from holdfast.session.session import SessionOpener
from tests.jobs.conversing import BUDGET, SECRET, converse_until_started

KEY = "sk-the-key-of-the-model"
SUMMARY = f"The user counts in Greek letters with {SECRET} [#0]. Done: alpha to kappa [#1]. Next: go on."


class Author:
    """Writes a summary when it may; it has a key, as models have."""

    name = "author"
    window = None
    key = KEY

    def __init__(self, error: Exception | None = None) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.error = error
        self.running = self.most_running = self.calls = 0

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        del prompt
        self.calls += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.to_thread(self.may_answer.wait)
        finally:
            self.running -= 1
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


async def test_a_job_writes_the_summary_and_the_next_request_applies_it(tmp_path: Path) -> None:
    url, author = f"sqlite:///{tmp_path}/chats.db", Author()
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
    tmp_path: Path, model: Author | None, why: str
) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with BackgroundJobs(url, opener(url, model)) as jobs, queued(url, jobs) as session:
        started = await converse_until_started(session)

        assert await jobs.result(started.owner) == "digest"

        success, by, reason = (await completed(session))[-1]
        assert (success, by) == (True, None)
        assert (reason or "").startswith(why)


async def test_a_cancelled_compaction_ends_and_the_conversation_goes_on(tmp_path: Path) -> None:
    url, author = f"sqlite:///{tmp_path}/chats.db", Author()
    author.may_answer.clear()
    async with BackgroundJobs(url, opener(url, author)) as jobs, queued(url, jobs) as session:
        await converse_until_started(session)

        assert await session.cancel_compaction()
        author.may_answer.set()

        assert not await session.cancel_compaction()
        assert (await completed(session))[-1] == (False, None, "it was cancelled")
        await converse_until_started(session)


async def test_the_jobs_of_a_killed_worker_are_taken_over(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(jobs_module, "SILENT_SECONDS", 1.0)
    url, author = new_database(), Author()
    worker = [sys.executable, "-W", "ignore", "-m", "tests.jobs.killed_worker", url]
    process = subprocess.Popen(worker, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    told = {process.stdout.readline().strip(), process.stdout.readline().strip()}
    process.kill()
    process.wait()
    process.stdout.close()
    [owner] = told - {"asked"}

    async with BackgroundJobs(url, opener(url, author)) as jobs:
        assert await jobs.result(owner) == "summary"
        async with Session.open("s", store=url) as session:
            await session.prepare(BUDGET)
            assert [(success, by) for success, by, _ in await completed(session)] == [(True, "author")]
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'holdfast_jobs'"
        ).fetchall()
        every = [f"SELECT t::text FROM {name} AS t".encode() for (name,) in tables]  # noqa: S608 - names of tables
        rows = [str(connection.execute(query).fetchall()) for query in every]
    assert any(owner in row for row in rows)
    assert not [word for word in (SECRET, KEY, "Greek") for row in rows if word in row]


async def test_a_second_worker_in_one_process_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    async with BackgroundJobs(url, opener(url, None), rate_limit=RateLimit(10, 60.0)):
        with pytest.raises(SettingsError, match="DBOS runs once in a process"):
            async with BackgroundJobs(url, opener(url, None)):
                pass
