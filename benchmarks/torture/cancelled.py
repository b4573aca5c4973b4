"""A task that is cancelled at any of its awaits leaves nothing half done.

One action runs again and again on copies of one file: it is cancelled at its first await, then at its second, until it
runs to the end. Each await is cancelled once before the awaited work is done, and once when it is done but not yet
reported. Afterwards the session agrees with its log, nothing is recorded in part or twice, and the next request can be
made.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import coroutine
from typing import Any, TypeVar
from unittest import mock

from hypothesis import strategies as st

from benchmarks.torture.observed import differing_requests, messages_of, observed_state, wait_for_summaries
from holdfast import HoldfastError, Session
from holdfast.errors import ConcurrentWriteError, NotInMemoryError, SequenceConflictError
from holdfast.models.base import SummaryPrompt
from holdfast.session.log import records as session_log
from holdfast.session.log.leases import HELD_HERE
from holdfast.session.session import SessionOpener
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import ScriptedModel

T = TypeVar("T")
NAME, BUDGET = "s", 1_200
PAGE = 7
"""How many records are read at a time; small, so that reading takes several pages."""
MAX_AWAITS = 300
NEW = [assistant_message("ok"), user_message("And what is next? " + "word " * 40)]
LARGE = [assistant_message("out " * 6_000), user_message("And?")]
ANOTHER = [user_message("Something else."), *NEW]
CANCEL_TIMES = ["before", "after"]
"""When a task is cancelled: before the awaited work is done, or when it is done but not yet reported."""


async def _delegate(session: Session) -> object:
    async with session.delegate("reviewer", task="look at it") as child:
        await child.record([assistant_message("I looked.")])
        await child.prepare(BUDGET)
    return None


async def _retry_after_refusal(session: Session) -> object:
    await session.prepare(BUDGET)
    return await session.retry({"error": {"message": "prompt is too long: 2000 tokens > 700 maximum"}}, status=400)


OPERATIONS: Mapping[str, Callable[[Session], Awaitable[object]]] = {
    "record": lambda session: session.record(NEW),
    "record what is large": lambda session: session.record(LARGE),
    "sync": lambda session: session.sync(ANOTHER),
    "prepare": lambda session: session.prepare(BUDGET, system="Be brief."),
    "retry": _retry_after_refusal,
    "compact": lambda session: session.compact(budget=BUDGET),
    "compact_ahead": lambda session: session.compact_ahead(),
    "recompact": lambda session: session.recompact(budget=BUDGET),
    "draft": lambda session: session.preview(draft=True, budget=BUDGET),
    "undo": lambda session: session.undo(),
    "redo": lambda session: session.redo(),
    "clear": lambda session: session.clear(),
    "rewind": lambda session: session.rewind(to=3),
    "pin": lambda session: session.pin(1),
    "fork": lambda session: session.fork("other"),
    "recall": lambda session: session.messages_at(0, 6),
    "search": lambda session: session.recall("word alpha"),
    "delegate": _delegate,
    "contents": lambda session: session.context_breakdown(budget=BUDGET),
    "catch up": lambda session: session.refresh(),
}
ADDED = {"record": NEW, "record what is large": LARGE, "sync": ANOTHER}
"""The message of each action, which is recorded once even if the action is repeated."""
INTERNAL = (NotInMemoryError, ConcurrentWriteError, SequenceConflictError)
"""Errors that may not leave the session."""
CASES = st.fixed_dictionaries(
    {
        "operation": st.sampled_from(list(OPERATIONS)),
        "way": st.sampled_from(CANCEL_TIMES),
        "policy": st.sampled_from(["default", "co-cli", "copilot"]),
        "turns": st.sampled_from([4, 12]),
        "others": st.sampled_from([0, 1, 20]),
        "has_summarizer": st.booleans(),
    }
)
STRATEGIES = (CASES,)


@dataclass(slots=True)
class CancellingAwaits:
    """Counts the awaits of a task, and cancels it at one of them."""

    stop_at: int
    way: str
    count: int = 0

    @property
    def was_reached(self) -> bool:
        """Whether there was such an await."""
        return self.count >= self.stop_at

    @coroutine
    def run(self, action: Awaitable[T]) -> Generator[Any, Any, T]:
        """Run an action, and cancel it at the await."""
        steps: Any = action.__await__()
        error: BaseException | None = None
        while True:
            try:
                waited = steps.throw(error) if error else steps.send(None)
            except StopIteration as done:
                return done.value
            error = None
            self.count += 1
            is_here, task = self.count == self.stop_at, asyncio.current_task()
            if is_here and self.way == "before" and task:
                task.cancel()
            try:
                yield waited
            except BaseException as raised:  # noqa: BLE001 - it is for who waits
                error = raised
            if is_here and self.way == "after":
                error = asyncio.CancelledError()


def check(case: Mapping[str, Any]) -> None:
    """Cancel the action of a case at each of its awaits."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(session_log, "RECORDS_PER_PAGE", PAGE):
        asyncio.run(_cancel_everywhere(Path(folder), case))


async def _cancel_everywhere(folder: Path, case: Mapping[str, Any]) -> None:
    begun = folder / "begun.db"
    await _write_session(begun, case)
    for number in range(1, MAX_AWAITS):
        path = folder / f"{number}.db"
        shutil.copy(begun, path)
        if not await _cancel_at(path, case, number):
            return
    raise AssertionError("it never ends")


def _open_session(store: SqliteStore, case: Mapping[str, Any]) -> SessionOpener:
    model = ScriptedModel(iter(lambda: _summary, None), seconds=0.001) if case["has_summarizer"] else None
    return Session.open(NAME, store=store, policy=case["policy"], model="gpt-5", summarizer=model)


async def _write_session(path: Path, case: Mapping[str, Any]) -> None:
    """Write the file that every run starts from: some turns, a compaction, and an undone change."""
    store = SqliteStore(path)
    async with Session.open(NAME, store=store, model="gpt-5") as session:
        for number in range(case["turns"]):
            await session.record(
                [user_message(f"question {number} " + "alpha beta " * 20), assistant_message("word " * 40)]
            )
        await session.record([user_message("And then?")])
        await session.prepare(BUDGET)
        with suppress(HoldfastError):
            await session.compact(budget=BUDGET)
        if case["operation"] == "redo":
            await session.clear()
            await session.undo()
    await store.close()


async def _cancel_at(path: Path, case: Mapping[str, Any], number: int) -> bool:
    """Cancel at one await, check all properties, and return whether there was such an await."""
    store = SqliteStore(path)
    name, live = str(case["operation"]), set(HELD_HERE)
    async with _open_session(store, case) as session:
        await _write_meanwhile(store, case["others"])
        before = messages_of(await session.events())
        awaits = CancellingAwaits(number, case["way"])
        outcome = await _outcome(awaits, OPERATIONS[name](session))
        await wait_for_summaries(session)

        assert not (awaits.was_reached and outcome is None), "it continued although it was cancelled"
        added = messages_of(await session.events())[len(before) :]
        assert name == "delegate" or added in ([], ADDED.get(name, [])), "half of it was recorded"
        await _check_agreement(session, store)
        if name in ADDED and awaits.was_reached:
            await OPERATIONS[name](session)
            assert messages_of(await session.events()) == [*before, *ADDED[name]], "lost or doubled"
        await _check_continues(session)
        await _check_agreement(session, store)
    assert live >= HELD_HERE, "a compaction is still marked as running"
    await store.close()
    return awaits.was_reached


async def _outcome(awaits: CancellingAwaits, action: Awaitable[object]) -> BaseException | None:
    """Return the error that ended an action early."""

    async def act() -> object:
        return await awaits.run(action)

    task = asyncio.ensure_future(act())
    await asyncio.wait({task})
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    if error is not None and (isinstance(error, INTERNAL) or not isinstance(error, HoldfastError)):
        raise error
    return error


async def _write_meanwhile(store: SqliteStore, count: int) -> None:
    """Let another writer append to the session meanwhile."""
    async with Session.open(NAME, store=store) as other:
        for number in range(count):
            await other.record([(assistant_message if number % 2 else user_message)(f"another's {number}")])


async def _check_agreement(session: Session, store: SqliteStore) -> None:
    async with Session.open(NAME, store=store) as reopened:
        fresh, live = await observed_state(reopened), await observed_state(session)

    assert live == fresh, "memory and log do not agree"
    assert live["damage"] == []
    assert differing_requests(await session.events()) == []


async def _check_continues(session: Session) -> None:
    length = len(session)
    positions = await session.record([assistant_message("Yes."), user_message("Go on.")])
    request = await session.prepare(BUDGET)

    assert positions == range(length, length + 2)
    assert request.tokens.total <= BUDGET
    await wait_for_summaries(session)


def _summary(ask: SummaryPrompt) -> str:
    return f"The user asks questions in Greek letters. Said: {ask.text[:60]!r}. Next: go on."
