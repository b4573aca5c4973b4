"""Logs leave a store and come into another one whole; what is damaged costs no more than itself."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import SettingsError
from holdfast.core.history import events as log
from holdfast.core.history.codec import to_record
from holdfast.errors import MalformedInputError, SequenceConflictError, StoreUnavailableError
from holdfast.session.log.records import LOST_MESSAGE_TEXT
from holdfast.session.maintenance.scrub import TOMBSTONE, scrub
from holdfast.session.maintenance.transfer import export_records, import_session, records_from_file
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.session import Session
from holdfast.stores.base import JsonRecord, Store
from holdfast.stores.jsonl import export_lines, load_bytes, load_file
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.sessions import generate_session
from holdfast.testing.store_contract import NOW_MS

CORPUS = Path(__file__).parent.parent / "corpus"
SECRET = 'sk-proj-"Ab1\\2cde3'


def message(text: str) -> JsonRecord:
    return to_record(log.MessageAppended(format="openai-chat", native=user_message(text)))


async def test_a_session_is_the_same_after_export_and_import(store: Store) -> None:
    session: Session = await Session.open("c1", store=store, model="gpt-5")
    await session.record([*generate_session(120), user_message("x" * 40_000)])
    await session.prepare(24_000, system="Be brief.")
    lines = export_lines("c1", "Parser", [stored async for stored in export_records(store, "c1")])
    found = load_bytes("".join(lines).encode())

    other = MemoryStore()
    arrived = await import_session(
        other, "c2", records_from_file(found.conversations[0], NOW_MS), name=found.conversations[0].name
    )
    again: Session = await Session.open("c2", store=other)

    assert await again.events() == await session.events()
    assert [proof.is_same for proof in rebuilt_requests(await again.events())] == [True]
    assert (arrived.messages, arrived.refused, (await other.sessions())[0].name) == (len(session), [], "Parser")
    assert [stored.time_ms for stored in await other.read("c2")] == [s.time_ms for s in await store.read("c1")]
    assert len(await other.search("x" * 40_000)) == len(await store.search("x" * 40_000))


async def test_a_record_that_cannot_be_opened_leaves_a_notice_where_a_message_stood(store: Store) -> None:
    broken: JsonRecord = {"type": "message.appended", "schema": 1, "data": {"format": "openai-chat", "native": {}}}
    pinned = to_record(log.Pinned(position=99))
    records = [message("one"), broken, message("two"), pinned, to_record(log.Pinned(position=2))]

    arrived = await import_session(store, "c1", [(line, NOW_MS, record) for line, record in enumerate(records, 1)])
    session: Session = await Session.open("c1", store=store)

    assert [entry.message.text for entry in session.history.entries] == ["one", LOST_MESSAGE_TEXT, "two"]
    assert session.history.session_state.pins == {2}
    assert [line for line, _ in arrived.refused] == [2, 4]
    assert session.damage == []


async def test_what_a_newer_program_wrote_is_kept_and_only_read(store: Store) -> None:
    found = load_file(CORPUS / "newer_schema.jsonl")

    arrived = await import_session(store, "c1", records_from_file(found.conversations[0], NOW_MS))
    session: Session = await Session.open("c1", store=store)

    assert (arrived.is_read_only, arrived.newest_schema, arrived.records) == (True, 7, 2)
    assert [entry.message.text for entry in session.history.entries] == ["one"]
    with pytest.raises(StoreUnavailableError, match="only reads it; update Holdfast"):
        await session.record([user_message("more")])


async def test_a_session_that_is_there_is_not_written_over_and_nothing_is_nothing(store: Store) -> None:
    await import_session(store, "c1", [(1, NOW_MS, message("one"))])

    with pytest.raises(SettingsError, match="already exists"):
        await import_session(store, "c1", [(1, NOW_MS, message("two"))])
    with pytest.raises(MalformedInputError):
        await import_session(store, "c2", [])

    assert [info.id for info in await store.sessions()] == ["c1"]


async def leaky(store: Store, name: str = "c1") -> Any:
    session: Session = await Session.open(name, store=store, model="gpt-5")
    call = tool_call_message("a", arguments={"key": SECRET, SECRET: 1})
    await session.record(
        [
            user_message(f"use {SECRET} please"),
            call,
            tool_result_message("a", "out " * 9_000 + SECRET),
            assistant_message("ok"),
        ]
    )
    await session.record([user_message("clean")])
    await session.prepare(16_000, system=f"The key is {SECRET}.")
    return session


async def test_a_scrubbed_secret_stands_nowhere_and_the_log_says_so(store: Store) -> None:
    await leaky(store)

    done = await scrub(store, "c1", SECRET, time_ms=NOW_MS)
    session: Session = await Session.open("c1", store=store)
    kept = [stored.record async for stored in export_records(store, "c1")]

    assert (done.positions[:3], done.count >= 5, done.elsewhere) == ((0, 1, 2), True, ())
    assert "Ab1" not in str(kept)
    assert session.history.entries[0].message.text == f"use {TOMBSTONE} please"
    assert (await session.events())[-1] == log.SessionScrubbed(positions=done.positions, count=done.count)
    assert await store.search("ab1") == []
    assert [hit.position for hit in await store.search("please")] == [0]
    proofs = list(rebuilt_requests(await session.events()))
    assert [(proof.is_same, proof.is_scrubbed) for proof in proofs] == [(False, True)]
    if isinstance(store, SqliteStore):
        await store.close()
        assert all(b"Ab1" not in file.read_bytes() for file in store.path.parent.iterdir())


async def test_a_session_that_is_open_forgets_a_secret_too(store: Store) -> None:
    session = await leaky(store)

    await scrub(store, "c1", SECRET, time_ms=NOW_MS)
    await session.record([user_message("go on")])
    request = await session.prepare(16_000)

    assert "Ab1" not in str(request.messages)
    assert len(session) == 6


async def test_other_sessions_that_hold_it_are_named_and_their_content_stays(store: Store) -> None:
    session = await leaky(store)
    await session.fork("c2")

    done = await scrub(store, "c1", SECRET, time_ms=NOW_MS)

    assert done.elsewhere == ("c2",)
    assert SECRET in (await Session.open("c2", store=store)).history.entries[2].message.results[0].text


@pytest.mark.parametrize("text", ["", "abc", "user", "scrubbed", "message"])
async def test_a_text_that_would_break_the_log_is_refused_or_found_in_words_only(store: Store, text: str) -> None:
    await leaky(store)

    try:
        done = await scrub(store, "c1", text, time_ms=NOW_MS)
    except SettingsError:
        assert await store.length("c1") == 8
    else:
        assert done.count == 0

    assert (await Session.open("c1", store=store)).damage == []


async def test_a_secret_in_the_name_of_a_session_goes_too(store: Store) -> None:
    await leaky(store)
    await store.rename("c1", f"about {SECRET}")

    await scrub(store, "c1", SECRET, time_ms=NOW_MS)

    assert (await store.sessions())[0].name == f"about {TOMBSTONE}"


class Killed(BaseException):
    """Ends a process in a test."""


class MortalStore(MemoryStore):
    """Dies after a number of writes, and then does nothing any more."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    async def append(self, *args: Any, **options: Any) -> int:
        if not self.left:
            raise Killed
        self.left -= 1
        return await super().append(*args, **options)

    async def rename(self, session: str, name: str) -> None:
        if not self.left:
            raise Killed
        await super().rename(session, name)

    async def delete(self, session: str, *, length: int | None = None) -> bool:
        if not self.left:
            raise Killed
        return await super().delete(session, length=length)


@pytest.mark.parametrize("writes", range(4))
async def test_an_import_that_is_killed_at_any_write_leaves_a_whole_session_or_none(writes: int) -> None:
    store = MortalStore(writes)
    records = [(number, NOW_MS + number, message(f"{number} " + "large " * 4_000)) for number in range(4)]

    with suppress(Killed):
        await import_session(store, "s", records, name="whole")

    found = [(stored.position, stored.time_ms) for stored in await store.read("s")]
    names = [info.name for info in await store.sessions()]
    assert (found, names) in (([], []), ([(number, NOW_MS + number) for number in range(4)], ["whole"]))


class OvertakenStore(MemoryStore):
    """Another process begins the session just before the first append."""

    async def append(self, *args: Any, **options: Any) -> int:
        await super().append("s", [message("theirs")], after=0, time_ms=NOW_MS)
        return await super().append(*args, **options)


async def test_an_import_does_not_delete_a_session_that_another_process_began_meanwhile() -> None:
    store = OvertakenStore()

    with pytest.raises(SequenceConflictError):
        await import_session(store, "s", [(0, NOW_MS, message("ours"))])

    assert [stored.record for stored in await store.read("s")] == [message("theirs")]
