"""The content of one message is gone from the store: the others stay, and what is missing is told."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import Session
from holdfast.errors import (
    MalformedInputError,
    MissingBlobError,
    SequenceConflictError,
    StoreUnavailableError,
    UnknownSessionError,
)
from holdfast.recall import RecallQuery
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.log import event_log
from holdfast.session.log.records import LOST_MESSAGE_TEXT, blob_digest, message_in_record
from holdfast.session.maintenance.scrub import TOMBSTONE, scrub
from holdfast.session.maintenance.transfer import export_records, import_session
from holdfast.session.memory.daily import DailyMemory
from holdfast.stores.base import SearchHit, Store, StoredRecord
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

TALK = [
    user_message("top"),
    tool_call_message("call_1"),
    tool_result_message("call_1", "row " * 40_000),
    assistant_message("done"),
    user_message("next"),
]
GONE = "[the content of #2 is gone from the store or cannot be read]"


class Unsearchable(MemoryStore):
    """A store whose index cannot be reached."""

    async def search(self, *_: object, **__: object) -> list[SearchHit]:
        raise StoreUnavailableError("memory", "it does not answer; try again later")


async def lost(store: MemoryStore, more: int = 0) -> None:
    """Let there be a session that has lost its one large message."""
    async with Session.open("s1", store=store, model="gpt-5") as session:
        await session.record([*TALK, *(user_message(f"more {number}") for number in range(more))])
    store._blobs.clear()


@pytest.mark.parametrize("more", [0, 200])
async def test_a_session_opens_with_a_notice_in_the_place_of_a_message_that_is_gone(more: int) -> None:
    store = MemoryStore()
    await lost(store, more)

    async with Session.open("s1", store=store, model="gpt-5") as session:
        shown = await session.visible_messages()
        request = await session.prepare(100_000)
        damage = list(session.damage)

    assert [entry.message.text for entry in shown[:5]] == ["top", "", LOST_MESSAGE_TEXT, "done", "next"]
    assert LOST_MESSAGE_TEXT in [str(message["content"]) for message in request.messages]
    assert ["record 2: the store has no content with the hash" in problem for problem in damage] == [True]


async def test_what_is_gone_is_nobodys_word_and_is_never_given_out_as_what_was_said() -> None:
    store = MemoryStore()
    await lost(store)

    async with Session.open("s1", store=store, model="gpt-5") as session:
        with pytest.raises(MissingBlobError):
            await session.messages_at(2)
        assert await session.messages() == [message for message in TALK if message is not TALK[2]]
        assert GONE in await session.recall_tool().call({"ref": "#2"})


@pytest.mark.parametrize("more", [0, 200])
async def test_a_note_is_written_of_a_session_that_has_lost_a_message(more: int, tmp_path: Path) -> None:
    store = MemoryStore()
    await lost(store, more)

    async with Session.open("s1", store=store, compaction=CompactionOptions(memory=DailyMemory(tmp_path))) as session:
        await session.clear()

    notes = "".join(path.read_text() for path in tmp_path.glob("*.md"))
    assert (notes.count("## Cleared Context"), LOST_MESSAGE_TEXT in notes) == (1, False)


async def test_an_earlier_session_that_has_lost_a_message_is_still_asked() -> None:
    store = MemoryStore()
    await lost(store)

    async with Session.open("now", store=store, model="gpt-5") as session:
        tool = session.recall_tool(earlier=["s1"])

        assert (await tool.call({"ref": "s1#0"})).splitlines()[-1] == "top"
        assert (await tool.call({"query": "top"})).splitlines()[-1] == GONE


async def test_a_store_that_fails_is_told_to_the_model_that_asks() -> None:
    async with Session.open("s1", store=Unsearchable(), model="gpt-5") as session:
        await session.record([user_message("top")])

        answer = await session.recall_tool().call({"query": "top"})

    assert answer == "[Recall: memory: it does not answer; try again later]"


async def test_a_session_that_has_lost_a_message_goes_out_with_a_notice_in_its_place() -> None:
    store, gone = MemoryStore(), list[int]()
    await lost(store)

    records = [stored.record async for stored in export_records(store, "s1", gone)]
    arrived = await import_session(store, "s2", [(place, 1, record) for place, record in enumerate(records)])

    async with Session.open("s2", store=store) as session:
        shown = await session.visible_messages()
    assert (gone, arrived.messages, arrived.refused) == ([2], 5, [])
    assert [entry.message.text for entry in shown] == ["top", "", LOST_MESSAGE_TEXT, "done", "next"]


async def test_a_secret_is_taken_out_of_a_session_that_has_lost_a_message() -> None:
    store = MemoryStore()
    await lost(store)

    scrubbed = await scrub(store, "s1", "done", time_ms=1)

    async with Session.open("s1", store=store) as session:
        shown = await session.visible_messages()
    assert (scrubbed.count, scrubbed.positions) == (1, (3,))
    assert [entry.message.text for entry in shown] == ["top", "", LOST_MESSAGE_TEXT, TOMBSTONE, "next"]


class Forgetful(MemoryStore):
    """A store that has lost a blob again when it is first referred to."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def append(self, session: str, records: Any, **options: Any) -> int:
        if options.get("blobs") and self.times:
            self.times -= 1
            [digest] = options["blobs"]
            del self._blobs[digest]
            raise MissingBlobError(digest)
        return await super().append(session, records, **options)


async def test_a_blob_that_another_process_deletes_before_it_is_referred_to_is_stored_again() -> None:
    store = Forgetful(1)
    async with Session.open("s1", store=store, model="gpt-5") as session:
        await session.record(TALK)
    async with Session.open("s1", store=store, model="gpt-5") as session:
        assert (await session.messages(), session.damage) == (TALK, [])


async def test_a_blob_that_cannot_be_kept_is_told() -> None:
    async with Session.open("s1", store=Forgetful(9), model="gpt-5") as session:
        with pytest.raises(MissingBlobError):
            await session.record(TALK)


async def test_a_blob_that_is_no_json_is_lost_like_one_that_is_gone_and_is_told_once() -> None:
    store = MemoryStore()
    await lost(store)
    stored = await store.read("s1")
    digest = next(digest for one in stored if (digest := blob_digest(one.record)))
    store._blobs[digest] = b"{odd"

    async with Session.open("s1", store=store, model="gpt-5") as session:
        texts = [entry.message.text for entry in await session.visible_messages()]
        read = [await session._log.stored.decode(one) for one in (*stored, *stored)]
        damage = list(session.damage)

    assert texts[:4] == ["top", "", LOST_MESSAGE_TEXT, "done"]
    assert len(read) == 2 * len(stored)
    assert [f"record 2: blob: {digest} is not JSON" in problem for problem in damage] == [True]


async def test_an_export_that_asks_for_no_list_of_losses_has_the_notice_too() -> None:
    store = MemoryStore()
    await lost(store)

    records = [one.record async for one in export_records(store, "s1")]

    assert [LOST_MESSAGE_TEXT in str(record) for record in records[:5]] == [False, False, True, False, False]


async def test_of_many_losses_a_few_are_named_and_the_others_counted() -> None:
    store = MemoryStore()
    async with Session.open("s1", store=store, model="gpt-5") as session:
        await session.record([user_message(f"row {number} " * 10_000) for number in range(5)])
    store._blobs.clear()

    async with Session.open("s1", store=store, model="gpt-5") as session:
        answer = await session.recall(RecallQuery(refs="#0,#1,#2,#3,#4"))

    assert [note for note in answer.notes if note] == [
        *(f"the content of #{number} is gone from the store or cannot be read" for number in range(3)),
        "and 2 more like this",
    ]


async def test_a_message_is_read_from_a_record_of_any_version_and_from_nothing_else() -> None:
    store = MemoryStore()
    async with Session.open("s1", store=store, model="gpt-5") as session:
        await session.record([user_message("hello")])
    [stored, *_] = await store.read("s1")
    record = dict(stored.record)
    data = cast("dict[str, object]", record["data"])
    without_version = {name: value for name, value in record.items() if name != "schema"}

    assert [message_in_record(one) for one in (record, without_version)] == [("openai-chat", user_message("hello"))] * 2
    for odd in (
        record | {"type": "session.title"},
        record | {"data": 7},
        record | {"data": data | {"native": "hello"}},
    ):
        with pytest.raises(MalformedInputError, match="is not a message"):
            message_in_record(odd)


class Contended(MemoryStore):
    """A store to which another writer always appends first."""

    appends = 0

    async def append(self, session: str, *_: object, **__: object) -> int:
        self.appends += 1
        raise SequenceConflictError(session, expected=0, actual=self.appends)


async def test_a_message_that_other_writers_always_overtake_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_CONFLICTS", 3)
    monkeypatch.setattr(event_log, "MAX_BACKOFF_SECONDS", 0)
    store = Contended()
    async with Session.open("s1", store=store, model="gpt-5") as session:
        with pytest.raises(SequenceConflictError) as refused:
            await session.record([user_message("hello")])

    assert (store.appends, refused.value.expected, refused.value.actual) == (3, 0, 0)


async def with_snapshot(store: Store, messages: int) -> Session:
    """Return a session whose messages are in the store and not in memory."""
    async with Session.open("s1", store=store) as session:
        await session.record([user_message(f"message {number}") for number in range(messages)])
    return await Session.open("s1", store=store)


NEEDING: dict[str, Callable[[Session], Awaitable[object]]] = {
    "reading": lambda session: session.messages_at(1),
    "preparing": lambda session: session.prepare(8_000),
    "rewinding": lambda session: session.rewind(to=100),
    "syncing": lambda session: session.sync([user_message("message 0")]),
    "forking": lambda session: session.fork("copy"),
}


@pytest.mark.parametrize("call", NEEDING.values(), ids=NEEDING)
async def test_a_session_that_somebody_has_deleted_is_unknown_to_whoever_still_has_it_open(
    store: Store, call: Callable[[Session], Awaitable[object]]
) -> None:
    session = await with_snapshot(store, 600)
    await store.delete("s1")

    with pytest.raises(UnknownSessionError, match="session 's1' is not known"):
        await call(session)

    assert await store.sessions() == []
    await session.close()


class WithoutSecondRecord(MemoryStore):
    """A store that has lost one record."""

    async def read_at(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        return [stored for stored in await super().read_at(session, positions) if stored.position != 1]


async def test_a_message_whose_record_is_gone_ends_the_call_that_needs_it() -> None:
    session = await with_snapshot(WithoutSecondRecord(), 600)

    with pytest.raises(StoreUnavailableError, match="session 's1': record 1 is no message any more"):
        await session.messages_at(1)

    assert await session.messages_at(300) == [user_message("message 300")]
    await session.close()
