"""A long session keeps in memory what is in view and little more; the rest is read from the store when it is needed."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import PendingToolCallsError, Session
from holdfast.compaction import CompactionOptions
from holdfast.core.conversation.messages import Entry
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.history.message_cache import MessageCache
from holdfast.memory import DailyMemory
from holdfast.session.log import event_log as keeping
from holdfast.stores.base import SearchHit
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel
from holdfast.testing.sessions import generate_session

MESSAGES = 800


async def worked(session: Session, messages: int = MESSAGES) -> None:
    talk = generate_session(messages)[:messages]
    for start in range(0, messages, 8):
        await session.record(talk[start : start + 8])
        with suppress(PendingToolCallsError):
            await session.prepare(4_000)


async def test_a_session_that_is_never_closed_holds_what_it_shows_and_little_more(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chats.db")
    session = await Session.open("long", store=store, model="gpt-5")

    await worked(session)

    shown = len(await session.visible_messages())
    assert session.history.entries.cached_count <= shown + 2 * keeping.MAX_EXTRA_CACHED
    assert len(session.history.entries) == MESSAGES
    assert len(session._log.message_hashes) <= session.history.entries.cached_count
    await store.close()


async def test_what_a_compaction_removes_from_view_leaves_memory_with_its_request() -> None:
    store = MemoryStore()
    session = await Session.open("long", store=store, model="gpt-5")
    await session.record([*generate_session(MESSAGES)[:MESSAGES], user_message("Go on.")])
    await session.prepare(1_000_000)
    assert session.history.entries.cached_count == MESSAGES + 1

    request = await session.prepare(4_000)

    kept = {position for position in request.positions if position is not None}
    cached = {entry.position for entry in session.history.entries.cached()}
    assert kept < cached
    assert len(cached) <= len(kept) + keeping.MAX_EXTRA_CACHED // 2
    assert (await session.messages_at(0, 1)) == generate_session(MESSAGES)[:1]
    await store.close()


async def test_a_result_that_a_repair_moves_reads_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MAX_EXTRA_CACHED", 0)
    store = SqliteStore(tmp_path / "chats.db")
    session = await Session.open("long", store=store, model="gpt-5", format="anthropic")
    for number in range(200):
        await session.record([user_message(f"question {number}: " + "why " * 60), assistant_message("so " * 120)])
        await session.prepare(4_000)
    calls = [{"type": "tool_use", "id": one, "name": "look", "input": {}} for one in ("a", "b")]
    results = [{"type": "tool_result", "tool_use_id": one, "content": f"{one} is here"} for one in ("a", "b")]
    listed = [user_message("look"), {"role": "assistant", "content": calls}]
    await session.record([*listed, *({"role": "user", "content": [one]} for one in results), user_message("go on")])
    read, load = list[int | None](), MessageCache.load

    def noting(cache: MessageCache, entry: Entry, event: log.MessageAppended) -> None:
        read.append(entry.position)
        load(cache, entry, event)

    monkeypatch.setattr(MessageCache, "load", noting)
    assert session.history.entries.missing_count > 300

    receipt = (await session.prepare(4_000)).receipt

    assert "moved the results of one batch" in str(receipt.repairs)
    assert (receipt.clipped, read) == ((), [])
    await store.close()


async def test_what_was_evicted_is_there_for_whoever_asks(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chats.db")
    session = await Session.open("long", store=store, model="gpt-5")
    await worked(session)
    changes = sum(isinstance(event, log.CompactionCompleted | log.OutputsOffloaded) for event in await session.events())

    recalled = await session.messages_at(0, MESSAGES)
    taken_back = 0
    while await session.undo():
        taken_back += 1

    assert recalled == generate_session(MESSAGES)[:MESSAGES]
    assert taken_back == changes > 8
    assert [entry.position for entry in await session.visible_messages()] == list(range(MESSAGES))
    await store.close()


async def test_a_session_that_has_evicted_messages_makes_the_requests_of_one_that_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: dict[int, list[object]] = {}

    for at_hand in (0, 1_000_000):
        monkeypatch.setattr(keeping, "MAX_EXTRA_CACHED", at_hand)
        store = SqliteStore(tmp_path / f"{at_hand}.db")
        async with Session.open("long", store=store, model="gpt-5", clock=lambda: 1_700_000_000_000) as session:
            await session.record([user_message("Always write metric units.")])
            await session.pin(0)
            talk = generate_session(400)
            requests[at_hand] = []
            for start in range(0, len(talk), 4):
                await session.record(talk[start : start + 4])
                with suppress(PendingToolCallsError):
                    requests[at_hand].append((await session.prepare(4_000, has_recall=True)).messages)
        await store.close()

    assert requests[0] == requests[1_000_000]


async def test_a_client_that_sends_everything_again_is_known_by_names_and_nothing_is_read_for_it(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "chats.db")
    session = await Session.open("long", store=store, model="gpt-5")
    sent = []
    for number in range(150):
        sent += [
            user_message(f"Step {number}?"),
            tool_call_message(f"call_{number}", arguments={"path": f"src/part{number}.py"}),
            tool_result_message(f"call_{number}", "line\n" * 40),
            assistant_message(f"Step {number} is done."),
        ]
        await session.sync(sent)
        await session.prepare(4_000)

    new = await session.sync([*sent, user_message("And now?")])

    assert new == range(len(sent), len(sent) + 1)
    assert session.history.entries.missing_count > 200
    await store.close()


async def test_messages_that_are_far_apart_are_all_read_again() -> None:
    session: Session = await Session.open("c1", store=MemoryStore(), model="gpt-5")
    await session.record([user_message(f"question {number}") for number in range(400)])
    entries = session.history.entries
    entries.evict(400, keep=())

    await session._log.load_messages([390, 3])

    assert [entries[position].message.text for position in (3, 390)] == ["question 3", "question 390"]


class BusyStore(MemoryStore):
    """While a search runs, the conversation goes on."""

    session: Session | None = None

    async def search(self, *args: Any, **options: Any) -> list[SearchHit]:
        found = await super().search(*args, **options)
        session, self.session = self.session, None
        if session is not None:
            await worked(session)
        return found


async def test_a_recall_is_answered_from_what_was_evicted_while_it_searched() -> None:
    store = BusyStore()
    session = await Session.open("long", store=store, model="gpt-5")
    await worked(session)
    tool, store.session = session.recall_tool(), session

    answered = await tool.call({"query": "src/search/model.py"})

    assert len(session.history.entries) == 2 * MESSAGES
    assert answered == await tool.call({"query": "src/search/model.py"})


async def spoken(session: Session) -> None:
    await session.record([user_message("Where is the key?")])
    await session.prepare(4_000)
    await session.record([assistant_message("Under the mat.")])


async def delegated(session: Session) -> None:
    await spoken(session)
    async with session.delegate("scout", task="Look for the key.") as scout:
        await scout.prepare(4_000)
        await scout.record([assistant_message("It is under the mat.")])
        await scout.answer("It is under the mat.")


async def recalled(session: Session) -> None:
    await worked(session, 80)
    await session.recall_tool().call({"query": "src/search/model.py"})


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def histories() -> list[int]:
    return [id(one) for one in gc.get_objects() if isinstance(one, History)]


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("parts", ["a rule", "a model", "a rule and a memory", "a model and a memory"])
@pytest.mark.parametrize("use", [spoken, worked, delegated, recalled])
async def test_a_closed_session_does_not_wait_for_the_garbage_collector(
    tmp_path: Path, use: Callable[[Session], Awaitable[None]], parts: str
) -> None:
    options = CompactionOptions(
        memory=DailyMemory(tmp_path) if "memory" in parts else None,
        automatic=ScriptedModel(iter(lambda: "## Goal\nThe key.", None)) if "model" in parts else None,
    )
    before = histories()
    async with Session.open("short", store=MemoryStore(), model="gpt-5", compaction=options) as session:
        await use(session)

    del session

    assert [one for one in histories() if one not in before] == []


async def test_a_session_whose_close_was_cancelled_still_writes_its_memory(tmp_path: Path) -> None:
    options = CompactionOptions(memory=DailyMemory(tmp_path))
    async with Session.open("short", store=MemoryStore(), model="gpt-5", compaction=options) as session:
        async with session._log.lock:
            closing = asyncio.ensure_future(session.close())
            for _ in range(20):  # until it waits for the lock
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
        before = [*tmp_path.rglob("*.md")]

        await worked(session)

    assert closing.cancelled()
    assert (before, [*tmp_path.rglob("*.md")] != []) == ([], True)
