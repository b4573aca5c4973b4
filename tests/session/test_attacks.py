"""Faults that hostile use has found, so that they stay repaired."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from holdfast import MalformedInputError, Session
from holdfast.core.history import events as log
from holdfast.errors import CompactionCancelledError, HoldfastError, ModelRefusedError, SettingsError
from holdfast.models.base import ModelReply, SummaryPrompt
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import FailingModel, ScriptedModel
from tests.support import open_session, wait_until

WORDS = "word " * 200
GOOD = "Intent: find the lost file [#0]. Next: look in docs/."


opened = partial(open_session, session_id="c")


async def talked(session: Session, turns: int = 6) -> None:
    for number in range(turns):
        await session.record(
            [user_message(f"Where is file {number}? {WORDS}"), assistant_message(f"Not here {number}. {WORDS}")]
        )


def between(store: Any, kind: str, act: Callable[[], Awaitable[object]]) -> None:
    """Let somebody else act once, after a decision was made and before it is written."""
    append, done = store.append, list[int]()

    async def overtaken(session: str, records: Any, **settings: Any) -> int:
        if not done and any(kind in str(record.get("type")) for record in records):
            done.append(1)
            await act()
        return await append(session, records, **settings)

    store.append = overtaken


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("record", ([user_message("x")],), {"duration_ms": 12.5}),
    ("record", ([user_message("x")],), {"scope": 5}),
    ("record", (None,), {}),
    ("record", ("text",), {}),
    ("sync", ([user_message("x"), 5],), {}),
    ("pin", (True,), {}),
    ("pin", ("a",), {}),
    ("rewind", (), {"to": 1.5}),
    ("record_state", (log.PlanChanged(text=5),), {}),  # pyright: ignore[reportArgumentType]
    ("compact", (), {"trigger": "bogus"}),
]


@pytest.mark.parametrize(("method", "given", "named"), WRONG)
async def test_what_could_not_be_read_again_is_not_written(
    method: str, given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    store = MemoryStore()
    session = await opened(store)
    await talked(session, 3)
    before = await session.events()

    with pytest.raises((MalformedInputError, SettingsError)):
        await getattr(session, method)(*given, **named)

    assert await session.events() == before
    assert (await opened(store)).damage == []


async def test_a_record_that_cannot_be_read_is_told_and_the_session_opens() -> None:
    store = MemoryStore()
    session = await opened(store)
    await session.record([user_message("one")])
    broken = {"type": log.MessageAppended.KIND, "schema": 1, "data": {"format": "openai-chat", "native": 5}}
    await store.append("c", [broken], after=1, time_ms=1)

    again = await opened(store)

    assert len(again) == 1
    assert [line.partition(":")[0] for line in again.damage] == ["record 1"]
    assert (await again.prepare(16_000)).messages == [user_message("one")]


@pytest.mark.parametrize("change", ["clear", "rewind"])
async def test_what_was_cleared_does_not_come_back_by_a_summary_that_is_late(change: str) -> None:
    gate = asyncio.Event()

    async def held(_: float) -> None:
        await gate.wait()

    model = ScriptedModel(repeat("SECRET-ABC " + GOOD), seconds=1, sleep=held)
    session = await opened(summarizer=model)
    await talked(session)
    running = asyncio.ensure_future(session.compact())
    while session.history.session_state.running_compaction is None:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0)
    await (session.clear() if change == "clear" else session.rewind(to=2))
    gate.set()
    await asyncio.gather(running, return_exceptions=True)
    await talked(session)
    await session.compact()

    assert "SECRET-ABC" not in model.prompts[-1].text


async def test_a_decision_is_made_again_when_another_writer_was_faster(tmp_path: Path) -> None:
    one = await opened(SqliteStore(tmp_path / "a.db"), summarizer=ScriptedModel(repeat(GOOD)))
    other = await opened(SqliteStore(tmp_path / "a.db"), summarizer=ScriptedModel(repeat(GOOD)))
    await talked(one)
    await other.refresh()
    between(other.store, "compaction_complete", one.clear)
    with pytest.raises(HoldfastError):
        await other.compact()
    assert await other.visible_messages() == []
    await one.record([user_message("anew")])
    between(other.store, "request", lambda: one.record([user_message("meanwhile")]))
    assert [message["content"] for message in (await other.prepare(16_000)).messages] == ["anew", "meanwhile"]
    assert all(proof.is_same for proof in rebuilt_requests(await other.events()))
    await one.store.close()
    await other.store.close()


async def test_two_who_send_the_same_list_at_once_record_it_once(tmp_path: Path) -> None:
    one, other = await opened(SqliteStore(tmp_path / "a.db")), await opened(SqliteStore(tmp_path / "a.db"))
    between(other.store, "message", lambda: one.sync([user_message("a"), assistant_message("b")]))

    await other.sync([user_message("a"), assistant_message("b")])

    assert len(other) == 2
    await one.store.close()
    await other.store.close()


@pytest.mark.parametrize(
    "told",
    [
        "This model's maximum context length is 0 tokens",
        "prompt is too long: 9 > 5 maximum",
        "prompt token count of 9 exceeds the limit of 2000000000000",
    ],
)
async def test_an_absurd_limit_is_not_learned(told: str) -> None:
    store = MemoryStore()
    session = await opened(store)
    await talked(session)
    await session.prepare(16_000)

    assert (await session.retry(told, status=400)).messages

    other = await Session.open("other", store=store, model="gpt-5")
    await talked(other)
    assert len((await other.prepare(16_000)).messages) == 13


async def test_a_summary_that_waits_to_be_put_in_place_stands_in_nobodys_way() -> None:
    session = await opened(summarizer=ScriptedModel(repeat(GOOD)))
    for number in range(40):
        await session.record([user_message(f"{number} {WORDS}"), assistant_message(WORDS), user_message("and?")])
        await session.prepare(8_000)
        if session.history.session_state.running_compaction:
            await wait_until(lambda: session.history.session_state.ready_summary is not None)
            break
        await session.record([assistant_message("so")])

    assert session.history.session_state.ready_summary is not None
    assert (await session.compact()).success


async def test_recompacting_takes_back_a_compaction_and_nothing_else() -> None:
    session = await opened(summarizer=ScriptedModel(repeat(GOOD)))
    await talked(session)
    await session.compact()
    await talked(session, 3)
    await session.rewind(to=14)
    with pytest.raises(MalformedInputError, match="not a compaction"):
        await session.recompact(focus="x")
    other = await opened(summarizer=ScriptedModel([GOOD]))
    await talked(other)
    await other.compact()
    other._compactor.options = CompactionOptions(automatic=FailingModel("unauthorized"))
    with pytest.raises(HoldfastError):
        await other.recompact()
    assert len(other.history.version.state_of(log.MAIN).compactions) == 1


async def test_two_that_recompact_at_once_undo_compactions_and_no_other_change(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    session = await opened(store)
    await talked(session)
    await session.rewind(to=10)
    await session.record([user_message("more")])
    await session.compact()

    await asyncio.gather(session.recompact(focus="a"), session.recompact(focus="b"), return_exceptions=True)

    kinds = [type(event) for event in await session.events()]
    assert kinds.count(log.ChangeUndone) == kinds.count(log.CompactionCompleted) - 1
    assert "Where is file 5?" not in str((await session.prepare(60_000)).messages)
    await session.close()
    await store.close()


class FailsAfterAction:
    """A model that first lets somebody do something, and then refuses."""

    name, window = "fails", None

    def __init__(self, action: Callable[[], Awaitable[object]]) -> None:
        self._action = action

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        del prompt
        await self._action()
        raise ModelRefusedError(self.name, "no")


async def test_a_recompaction_that_fails_leaves_the_compaction_whatever_was_done_meanwhile() -> None:
    session = await opened(summarizer=ScriptedModel([GOOD]), policy="copilot")
    await talked(session)
    await session.prepare(60_000)
    before = await session.compact()
    await session.record([user_message("and?"), assistant_message("so"), user_message("more")])
    last = len(session.history) - 1
    session._compactor.options = CompactionOptions(automatic=FailsAfterAction(lambda: session.rewind(to=last)))

    with pytest.raises(ModelRefusedError):
        await session.recompact()

    [after] = session.history.version.state_of(log.MAIN).compactions
    assert (after.span, after.replacement) == (before.span, before.replacement)
    assert "more" not in str((await session.prepare(60_000)).messages[-1])


class CancelsAfterUndo(MemoryStore):
    """Cancels its caller once an undo is stored."""

    async def append(self, session: str, records: Any, **options: Any) -> int:
        length = await super().append(session, records, **options)
        if records[0]["type"] == log.ChangeUndone.KIND:
            raise asyncio.CancelledError
        return length


async def test_a_recompaction_that_is_cancelled_while_it_undoes_leaves_the_compaction_in_force() -> None:
    session = await opened(CancelsAfterUndo(), summarizer=ScriptedModel([GOOD]), policy="copilot")
    await talked(session)
    await session.prepare(60_000)
    before = await session.compact()

    with pytest.raises(asyncio.CancelledError):
        await session.recompact()
    await session.refresh()

    assert [one.span for one in session.history.version.state_of(log.MAIN).compactions] == [before.span]


async def test_callbacks_that_raise_hurt_nobody_and_only_a_yes_is_approval() -> None:
    def broken(_: object) -> None:
        raise KeyError

    async def silent(_: object) -> Any:
        return None

    loud = await opened(
        compaction=CompactionOptions(automatic=ScriptedModel(repeat(GOOD)), progress=broken, notice=broken)
    )
    await talked(loud)
    assert (await loud.compact()).success
    for approve in (silent, broken):
        how = CompactionOptions(automatic=ScriptedModel(repeat(GOOD)), approve=approve)  # pyright: ignore[reportArgumentType]
        session = await opened(compaction=how)
        await talked(session)
        with pytest.raises(CompactionCancelledError):
            await session.compact()
        assert len(await session.visible_messages()) == 12
