"""A session that was opened from a snapshot is the session that was read from its beginning."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import MalformedInputError, counter_for
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.history.snapshot import HistorySnapshot, from_snapshot_json, to_snapshot_json, unpack_positions
from holdfast.core.ledger.render import render_ledger
from holdfast.errors import NotInMemoryError, PendingToolCallsError
from holdfast.session.log.event_log import SNAPSHOT_AFTER_COMPACTION
from holdfast.session.log.session_snapshot import decode_snapshot
from holdfast.session.maintenance.scrub import scrub
from holdfast.session.session import Session
from holdfast.stores.base import Snapshot, StoredRecord
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import (
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.models import ScriptedModel
from holdfast.testing.sessions import generate_session
from holdfast.wire.formats import format_named
from tests.support import appended

T = TypeVar("T")
COUNTER = counter_for("gpt-5")
POSITIONS = st.integers(0, 12)
MESSAGES = [
    user_message("always use tabs in src/a.py"), assistant_message("done with src/b.py"),
    tool_call_message("a"), tool_result_message("a", "Error: no " * 40),
    system_message("be brief"), user_message("more of docs/c.md"), user_message("half \ud800 of a pair"),
]  # fmt: skip


def compaction(start: int, length: int, kept: int) -> log.Event:
    return log.CompactionCompleted(
        success=True,
        span=Span(start=start, stop=start + length, kept=(kept,)),
        replacement=("then", "yes"),
        summary=log.Summary("", usage=log.Usage(input_tokens=7)),
    )


EVENTS: st.SearchStrategy[log.Event] = st.one_of(
    st.builds(appended, st.sampled_from(MESSAGES)),
    st.builds(appended, st.sampled_from(MESSAGES), st.sampled_from([log.MAIN, "d1"])),
    st.builds(compaction, POSITIONS, POSITIONS, POSITIONS),
    st.builds(log.OutputsOffloaded, line=POSITIONS, max_chars=st.just(100)),
    st.builds(log.TurnsReducedToText, line=POSITIONS),
    st.builds(log.Rewound, to=POSITIONS),
    st.builds(log.Pinned, position=POSITIONS),
    st.sampled_from(
        [
            log.ContextCleared(), log.ChangeUndone(), log.ChangeRedone(), log.TurnInterrupted(),
            log.ToolsChanged(tools=({"name": "t", "parameters": {"type": "object", "required": ["a"]}},)),
            log.SystemChanged(text="be kind"), log.SkillInvoked(name="s", instructions="i"),
            log.CompactionStarted(span=Span(stop=2)), log.DelegationStarted(scope="d1", agent="x"),
            log.Forked(parent="p", at=1),
        ]
    ),
)  # fmt: skip


class Reading:
    """A history without its past, and the log from which that can be read."""

    def __init__(self, live: History, events: list[log.Event]) -> None:
        self.history = History.from_snapshot(
            from_snapshot_json(HistorySnapshot, to_snapshot_json(live.snapshot())), format_named
        )
        self.events = events

    def asked(self, question: Callable[[History], T]) -> T:
        while True:
            try:
                return question(self.history)
            except NotInMemoryError as missing:
                self._read(list(missing.positions))

    def _read(self, positions: list[int]) -> None:
        if not positions:
            self.history = History.replay(self.events, format_named)
        spoken = [event for event in self.events if isinstance(event, log.MessageAppended)]
        for position in positions:
            self.history.load_message(position, spoken[position])


def seen(history: History, scope: str) -> object:
    shown = history.projection(COUNTER, scope)
    return (
        shown.entries, shown.cumulative_tokens, shown.answered_tokens, shown.newest_prompt,
        history.session_state, history.can_undo, history.can_redo,
        history.format, history.system_positions, history.prompt_positions, history.message_scopes, history.scopes,
        render_ledger(history.ledger(scope, len(history)), 500, COUNTER),
    )  # fmt: skip


@given(st.lists(EVENTS, max_size=30), st.lists(EVENTS, max_size=8), st.sampled_from([log.MAIN, "d1"]), POSITIONS)
def test_going_on_from_a_state_is_going_on_from_the_log(
    before: list[log.Event], after: list[log.Event], scope: str, asked_at: int
) -> None:
    live, events = History(format_named), list[log.Event]()

    def take_in(history: History, event: log.Event) -> bool:
        try:
            history.append(event)
        except MalformedInputError:
            return False
        return True

    for number, event in enumerate(before):
        if take_in(live, event):
            events.append(event)
        if number == asked_at:
            live.ledger(scope, len(live))
    resumed = Reading(live, events)
    for event in after:
        is_true = take_in(live, event)
        assert resumed.asked(lambda history, event=event: take_in(history, event)) == is_true
        if is_true:
            events.append(event)

    assert resumed.asked(lambda history: seen(history, scope)) == seen(live, scope)


async def long_session(store: MemoryStore | SqliteStore, steps: int = 120) -> Session:
    session = await Session.open("long", store=store, model="gpt-5")
    talk = generate_session(4 * steps)
    for start in range(0, 4 * steps, 4):
        await session.record(talk[start : start + 4])
        with suppress(PendingToolCallsError):
            await session.prepare(4_000)
    return session


async def test_a_closed_session_is_opened_without_reading_its_past(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chats.db")
    session = await long_session(store)
    before, events = await session.prepare(4_000), await session.events()
    await session.close()

    again = await Session.open("long", store=store, model="gpt-5")
    request = await again.prepare(4_000)

    assert len(again) == len(session) == 480
    assert again.history.entries.missing_count > 300
    assert request.messages == before.messages
    assert (await again.events())[: len(events)] == events
    assert await again.messages_at(0, 480) == generate_session(480)
    assert again.history.entries.missing_count == 0
    await store.close()


async def test_whatever_reaches_back_reads_what_it_needs() -> None:
    store = MemoryStore()
    session = await long_session(store)
    await session._log.save_snapshot()
    await session.record([user_message("and now?")])

    def reopened() -> Any:
        return Session.open("long", store=store, model="gpt-5")

    rewound = await reopened()
    await rewound.rewind(to=10)
    assert [entry.position for entry in await rewound.visible_messages()] == list(range(10))
    assert await rewound.undo()
    synced = await reopened()
    assert await synced.sync([*generate_session(480), user_message("and now?")]) == range(481, 481)
    forked = await (await reopened()).fork("other", at=3)
    assert await forked.messages_at(0, 3) == generate_session(480)[:3]
    compacted = await reopened()
    assert (await compacted.compact(budget=4_000)).success
    await compacted.close()
    names = " ".join(item.text for item in compacted.history.ledger(log.MAIN, len(compacted)).names.ranked(20))
    writer = ScriptedModel(iter(lambda: f"Done so far [#3]: {names}. Next: go on.", None))
    again = await Session.open("long", store=store, model="gpt-5", summarizer=writer)
    assert again.history.entries.missing_count > 300
    await again.record([assistant_message("ok"), *generate_session(40)])
    assert (await again.compact(budget=4_000)).success
    assert len(writer.prompts) > 0


async def test_every_change_can_be_taken_back_after_a_snapshot() -> None:
    store = MemoryStore()
    session = await long_session(store)
    changes, events = 0, await session.events()
    await session.close()

    again = await Session.open("long", store=store, model="gpt-5")
    while await again.undo():
        changes += 1

    kinds = (log.CompactionCompleted, log.OutputsOffloaded)
    assert changes == sum(isinstance(event, kinds) for event in events) > 8
    assert [entry.position for entry in await again.visible_messages()] == list(range(480))
    assert not await again.undo()


@pytest.mark.parametrize("harm", ["deleted", "damaged", "of another make", "not JSON"])
async def test_a_snapshot_that_cannot_be_used_costs_nothing_but_time(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "chats.db"
    store = SqliteStore(path)
    session = await long_session(store, 30)
    before = await session.visible_messages()
    await session.close()
    await store.close()
    kept = sqlite3.connect(path)
    data = bytes(kept.execute("SELECT data FROM snapshots").fetchone()[0])
    harmed = {
        "damaged": data[:-9] + b"\x00" * 9, "of another make": b"\x00" + b"x" * 40, "not JSON": b"\x02nothing",
    }  # fmt: skip
    if harm == "deleted":
        kept.execute("DELETE FROM snapshots")
    else:
        kept.execute("UPDATE snapshots SET data = ?", (harmed[harm],))
    kept.commit()
    kept.close()

    again = await Session.open("long", store=store, model="gpt-5")

    assert again.history.entries.missing_count == 0
    assert await again.visible_messages() == before
    await again.close()
    await store.close()


async def test_a_scrubbed_secret_does_not_come_back_by_a_snapshot() -> None:
    store = MemoryStore()
    session = await long_session(store, 30)
    await session.record([user_message("the password is hunter-two-hunter")])
    await session.prepare(4_000)
    await scrub(store, "long", "hunter-two-hunter", time_ms=1)
    await session.close()

    assert await store.get_snapshot("long") is None
    again = await Session.open("long", store=store, model="gpt-5")
    assert again.history.entries[120].message.text == "the password is [scrubbed]"


async def test_a_long_running_session_saves_snapshots_on_its_way() -> None:
    store = MemoryStore()
    session = await Session.open("long", store=store)
    for _ in range(21):
        await session.record([user_message("word")] * 100)

    snapshot = await store.get_snapshot("long")

    assert snapshot is not None
    assert snapshot.length == 2_000
    shortcut = decode_snapshot(snapshot.data)
    assert shortcut is not None
    assert list(unpack_positions(shortcut.log_positions)) == list(range(2_000))
    assert decode_snapshot(Snapshot(1, b"x").data) is None


class CountingStore(MemoryStore):
    """Counts the records that were read, and the snapshots that were saved."""

    def __init__(self) -> None:
        super().__init__()
        self.read_count = self.saved_count = 0

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        found = await super().read(session, start=start, limit=limit)
        self.read_count += len(found)
        return found

    async def read_at(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        found = await super().read_at(session, positions)
        self.read_count += len(found)
        return found

    async def put_snapshot(self, session: str, snapshot: Snapshot) -> bool:
        self.saved_count += 1
        return await super().put_snapshot(session, snapshot)


async def talk(session: Session, numbers: range) -> None:
    for number in numbers:
        async with session.one_write():
            await session.record([user_message(f"question {number} " + "about many words " * 40)])
            await session.prepare(2_000)
        await session.record([assistant_message(f"answer {number}")])


async def test_another_process_opens_a_compacted_session_by_its_messages_alone() -> None:
    store = CountingStore()
    killed = await Session.open("one", store=store, model="gpt-5")
    await talk(killed, range(40))
    length, saved = await store.length("one"), store.saved_count
    store.read_count = 0

    opened = await Session.open("one", store=store, model="gpt-5")

    # The requests and the compactions before the last snapshot are not read, which are the larger part of the log.
    assert length > 150
    assert 2 <= saved <= length // SNAPSHOT_AFTER_COMPACTION
    assert len(killed) == 80
    assert store.read_count < 80 + 2 * SNAPSHOT_AFTER_COMPACTION
    assert opened.history.entries.missing_count == 0
    assert (await opened.prepare(2_000)).messages == (await killed.prepare(2_000)).messages


async def test_no_request_waits_for_a_snapshot() -> None:
    store = CountingStore()
    session = await Session.open("one", store=store, model="gpt-5")
    for number in range(40):
        saved = store.saved_count
        async with session.one_write():
            await session.record([user_message(f"question {number} " + "about many words " * 40)])
            await session.prepare(2_000)
        assert store.saved_count == saved
        async with session.one_write():
            await session.record([assistant_message(f"answer {number}")])
    assert store.saved_count >= 2


async def test_a_session_that_was_never_compacted_saves_no_snapshot_before_its_end() -> None:
    store = CountingStore()
    session = await Session.open("one", store=store, model="gpt-5")
    for number in range(40):
        await session.record([user_message(f"question {number}")])
        await session.prepare(200_000)
        await session.record([assistant_message(f"answer {number}")])
    assert store.saved_count == 0
    await session.close()
    assert store.saved_count == 1
