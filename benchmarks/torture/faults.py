"""A disk that is full, a file that is locked or gone, a lease that is lost, a clock that jumps: nothing is lost.

A session works on a real file while one fault follows another. Each call succeeds or raises an error of Holdfast. What
was acknowledged is recorded in its order; what was not is recorded once or not at all. A newly opened session agrees,
and the same session continues.
"""

import asyncio
import resource
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from benchmarks.torture.observed import (
    POLL_SECONDS,
    STUCK_SECONDS,
    differing_requests,
    messages_of,
    observed_state,
    wait_for_summaries,
)
from holdfast import HoldfastError, Session, validate
from holdfast.errors import ConcurrentWriteError, NotInMemoryError, SequenceConflictError, StoreError
from holdfast.models.base import SummaryPrompt
from holdfast.session.log import leases as owners
from holdfast.stores.sqlite import database as sqlite_database
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import JsonMessage, assistant_message, user_message
from holdfast.testing.models import ScriptedModel
from holdfast.wire.request import Request

INTERNAL = (NotInMemoryError, ConcurrentWriteError, SequenceConflictError)
"""Errors that may not leave the session."""
UNAVAILABLE = {"full", "locked", "gone"}
"""The faults during which the store may raise."""
BUDGET, NAME = 1_200, "s"
HOUR_MS = 3_600_000
BUSY_MS = 30
"""How long a writer waits here for a locked file."""
LARGE = 4_000
"""Words of a message that is large enough to be stored as a blob."""
LOOP_TICKS = 200
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa "
STEPS = ["record", "large", "prepare", "compact", "recall", "undo", "clear", "rewind", "pin"]
FAULTS = ["none", "full", "held", "locked", "gone", "lease", "clock"]
CASES = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["default", "co-cli", "copilot"]),
        "moments": st.lists(
            st.fixed_dictionaries(
                {
                    "fault": st.sampled_from(FAULTS),
                    "room": st.sampled_from([0, 4_096, 40_000]),
                    "hours": st.sampled_from([-30, -1, 1, 30]),
                    "steps": st.lists(st.sampled_from(STEPS), min_size=1, max_size=5),
                }
            ),
            min_size=1,
            max_size=5,
        ),
    }
)
STRATEGIES = (CASES,)


def check(case: Mapping[str, Any]) -> None:
    """Inject the faults of a case."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(sqlite_database, "BUSY_MS", BUSY_MS):
        asyncio.run(_converse(Path(folder) / "chats.db", case))


async def _converse(path: Path, case: Mapping[str, Any]) -> None:
    conversation = FaultyConversation(SqliteStore(path), case["policy"])
    async with conversation.open_session():
        for moment in case["moments"]:
            await conversation.run_moment(moment)
            await conversation.check_agreement()


class FaultyConversation:
    """A session, what it has acknowledged, and the errors that it raised."""

    def __init__(self, store: SqliteStore, policy: str) -> None:
        self.store = store
        self.policy = policy
        self.now_ms = 40 * HOUR_MS
        self.acknowledged: list[JsonMessage] = []
        self.open_ended: list[JsonMessage] = []
        """The last message, if it is unknown whether it was recorded."""
        self.numbers = count()
        self.gate = asyncio.Event()
        """Cleared while the summarizer must not answer."""
        self.gate.set()

    @asynccontextmanager
    async def open_session(self) -> AsyncGenerator[None]:
        """Open the session and record some messages."""
        model = ScriptedModel(iter(lambda: _summary, None), sleep=self._wait, seconds=1)
        opening = Session.open(
            NAME, store=self.store, policy=self.policy, model="gpt-5", summarizer=model, clock=lambda: self.now_ms
        )
        async with opening as self.session:
            for _ in range(20):
                await self.say(30)
            yield
        await self.store.close()

    async def _wait(self, _: float) -> None:
        await self.gate.wait()

    async def run_moment(self, moment: Mapping[str, Any]) -> None:
        """Take some steps during a fault; a step succeeds or raises an error to its caller."""
        async with getattr(self, f"_{moment['fault']}")(moment):
            for name in moment["steps"]:
                try:
                    await asyncio.wait_for(self.step(name), STUCK_SECONDS)
                except INTERNAL:
                    raise
                except StoreError:
                    assert moment["fault"] in UNAVAILABLE, "the store is there"
                except HoldfastError:
                    continue

    async def step(self, name: str) -> None:
        session = self.session
        match name:
            case "record" | "large":
                await self.say(30 if name == "record" else LARGE)
            case "prepare":
                request = await session.prepare(BUDGET)
                assert request.tokens.total <= BUDGET, "over budget"
                assert validate(request.messages, "openai") == [], "not valid"
            case "compact":
                await session.compact(budget=BUDGET)
            case "recall":
                await session.messages_at(max(0, len(session) - 3), len(session))
            case "undo":
                await session.undo()
            case "clear":
                await session.clear()
            case "rewind":
                await session.rewind(to=max(0, len(session) - 2))
            case _:
                await session.pin(0)

    async def say(self, words: int) -> None:
        if not self.open_ended:
            number = next(self.numbers)
            # What is large is an answer: a prompt that is larger than the budget cannot be sent at all.
            said_now = user_message if number % 2 == 0 and words < LARGE else assistant_message
            self.open_ended = [said_now(f"message {number}: " + (WORDS * words)[: words * 6])]
        # A message without acknowledgement is recorded again until it is acknowledged.
        positions = await self.session.record(self.open_ended)
        assert positions == range(len(self.acknowledged), len(self.acknowledged) + 1), "not the next position"
        self.acknowledged += self.open_ended
        self.open_ended = []

    async def check_agreement(self) -> None:
        """Compare the session with a newly opened one, and both with what was acknowledged; then continue."""
        await wait_for_summaries(self.session)
        async with Session.open(NAME, store=self.store, clock=lambda: self.now_ms) as reopened:
            fresh, live = await observed_state(reopened), await observed_state(self.session)
        events = await self.session.events()

        assert live == fresh, "memory and log do not agree"
        assert live["damage"] == []
        assert messages_of(events) in (self.acknowledged, [*self.acknowledged, *self.open_ended]), "lost or doubled"
        assert differing_requests(events) == []
        await self.say(30)
        if self.acknowledged[-1]["role"] == "user":
            await self.step("prepare")
        await wait_for_summaries(self.session)

    # What goes wrong.

    @asynccontextmanager
    async def _none(self, _: Mapping[str, Any]) -> AsyncGenerator[None]:
        yield

    @asynccontextmanager
    async def _full(self, moment: Mapping[str, Any]) -> AsyncGenerator[None]:
        """Let no file grow by more than a little: the kernel rejects the rest."""
        files = self.store.path.parent.iterdir()
        largest = max(file.stat().st_size for file in files)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + moment["room"], hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    @asynccontextmanager
    async def _locked(self, _: Mapping[str, Any]) -> AsyncGenerator[None]:
        """Let another process lock the file for longer than a writer waits."""
        with closing(sqlite3.connect(self.store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                other.execute("ROLLBACK")

    @asynccontextmanager
    async def _held(self, _: Mapping[str, Any]) -> AsyncGenerator[None]:
        """Let another process lock the file for a moment: a writer waits for it and succeeds."""
        with (
            mock.patch.object(sqlite_database, "BUSY_MS", 20_000),
            closing(sqlite3.connect(self.store.path, isolation_level=None)) as other,
        ):
            await self.store.close()
            await self.store.length(NAME)
            other.execute("BEGIN IMMEDIATE")
            saying = asyncio.ensure_future(self.say(30))
            for _turn in range(LOOP_TICKS):
                await asyncio.sleep(0)
            other.execute("COMMIT")
            await saying
            await self.store.close()
        yield

    @asynccontextmanager
    async def _gone(self, _: Mapping[str, Any]) -> AsyncGenerator[None]:
        """Move the file away and back, as when a disk is mounted again."""
        await self.store.length(NAME)
        away = self.store.path.with_name("away.db")
        self.store.path.rename(away)
        try:
            yield
        finally:
            away.rename(self.store.path)

    @asynccontextmanager
    async def _clock(self, moment: Mapping[str, Any]) -> AsyncGenerator[None]:
        self.now_ms += moment["hours"] * HOUR_MS
        yield

    @asynccontextmanager
    async def _lease(self, moment: Mapping[str, Any]) -> AsyncGenerator[None]:
        """Let a compaction of another host seem abandoned and then finish."""
        self.gate.clear()
        with mock.patch.object(owners.socket, "gethostname", return_value="elsewhere"):
            preparing = await self._start_summary()
        mine = {owner for owner in owners.HELD_HERE if owner.startswith("elsewhere")}
        owners.HELD_HERE.difference_update(mine)
        self.now_ms += moment["hours"] * HOUR_MS
        async with Session.open(NAME, store=self.store, policy=self.policy, clock=lambda: self.now_ms) as other:
            run = other.history.session_state.running_compaction
            assert run is None or run.owner not in mine, "an expired lease still prevents compaction"
            with suppress(HoldfastError):
                await other.compact(budget=BUDGET)
        self.gate.set()
        await asyncio.gather(preparing, return_exceptions=True)
        yield

    async def _start_summary(self) -> asyncio.Future[Request]:
        """Record messages until a summary starts, and return the last request, which may wait for it."""
        for left in reversed(range(8)):
            await self.say(80)
            preparing = asyncio.ensure_future(self.session.prepare(BUDGET))
            while not preparing.done() and self.session.history.session_state.running_compaction is None:  # noqa: ASYNC110 - it emits no event
                await asyncio.sleep(POLL_SECONDS)
            if not left or self.session.history.session_state.running_compaction is not None:
                return preparing
        raise AssertionError


def _summary(ask: SummaryPrompt) -> str:
    """Return a summary that quotes its input."""
    return f"The user counts in Greek letters. Said: {ask.text[:60]!r}. Next: go on."
