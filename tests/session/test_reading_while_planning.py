"""A long plan runs in a thread while the event loop goes on: whoever reads meanwhile reads what is there, unchanged."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Session
from holdfast.core.history.history import History
from holdfast.core.planning.plan import view_of
from holdfast.session import prepare
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

EXTENDED_BY_PLANS = ("projection", "ledger", "ledger_covering", "compacted_reads")
"""The methods of a history that only the holder of the session's lock may call."""
BUDGET = 20_000


async def converse(session: Session) -> None:
    """Record 26,000 tokens: a request is planned in a thread, and compacted by rule."""
    for number in range(50):
        lines = "\n".join(f"src/part_{number}.py line {line}: value_{number}_{line} = {line}" for line in range(24))
        await session.record(
            [
                user_message(f"Please read src/part_{number}.py; never touch src/kept_{number}.py."),
                tool_call_message(f"call_{number}", name="read_file", arguments={"path": f"src/part_{number}.py"}),
                tool_result_message(f"call_{number}", lines),
                assistant_message(f"Part {number} is read."),
            ]
        )
    await session.record([user_message("Go on.")])


@pytest.fixture
def locked_histories(monkeypatch: pytest.MonkeyPatch) -> Callable[[Session], list[str]]:
    """Return a function that lists the calls of a session's plans that were made without its lock."""
    watched: dict[int, tuple[Session, list[str]]] = {}

    def watch(name: str) -> None:
        original: Any = getattr(History, name)

        def called(self: History, *args: Any) -> Any:
            session, unlocked = watched.get(id(self), (None, []))
            if session is not None and not session._log.lock.is_held:
                unlocked.append(name)
            return original(self, *args)

        monkeypatch.setattr(History, name, called)

    def start(session: Session) -> list[str]:
        watched[id(session.history)] = session, []
        return watched[id(session.history)][1]

    for name in EXTENDED_BY_PLANS:
        watch(name)
    return start


async def test_only_the_holder_of_the_lock_extends_what_plans_keep(
    locked_histories: Callable[[Session], list[str]],
) -> None:
    async with Session.open("one", store=MemoryStore(), model="gpt-5") as session:
        await converse(session)
        unlocked = locked_histories(session)

        await session.prepare(BUDGET)
        await session.recall("which values does part 7 have?")
        await session.recall("#3")
        await session.context_breakdown(budget=BUDGET)
        await session.sync([*await session.messages(), assistant_message("Done.")])
        async with session.delegate("reader", task="Read the rest.") as delegate:
            await delegate.prepare(BUDGET)
        await session.rewind(to=150)
        await session.preview(budget=BUDGET)
        await session.compact(budget=BUDGET)
        await session.undo()
        await session.record([user_message("And now?")])

        assert unlocked == []


async def test_readers_without_the_lock_see_the_same_history_before_and_during_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_planning, may_go_on = threading.Event(), threading.Event()

    def held_view_of(*args: Any) -> Any:
        view = view_of(*args)
        if threading.current_thread() is not threading.main_thread():
            is_planning.set()
            may_go_on.wait(60)
        return view

    monkeypatch.setattr(prepare, "view_of", held_view_of)

    def read(session: Session) -> list[object]:
        history, context = session.history, session.history.context()
        return [
            len(session),
            [*history.entries],
            history.version,
            history.session_state,
            context.visible_entries(),
            [*context.entries_between(0, len(history))],
            [*history.prompt_positions],
            session.attachments,
            session.damage,
        ]

    async with Session.open("one", store=MemoryStore(), model="gpt-5") as session:
        await converse(session)
        before = read(session)
        preparing = asyncio.ensure_future(session.prepare(BUDGET))
        await asyncio.to_thread(is_planning.wait, 30)
        during = read(session)
        recalling = asyncio.ensure_future(session.recall("which values does part 7 have?"))
        may_go_on.set()
        request, answer = await asyncio.gather(preparing, recalling)

        assert during == before
        assert request.receipt.compacted
        assert "value_7_" in str(answer)
