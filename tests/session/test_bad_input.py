"""Bad luck is normal too: a clock that jumps, a result of a hundred megabytes, a program from the future."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.errors import MalformedInputError, StoreUnavailableError, UnknownSessionError
from holdfast.stores.base import JsonRecord, Store, expired_sessions
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.store_contract import NOW_MS

DAY_MS = 86_400_000
TALK = [user_message("one"), assistant_message("1"), user_message("two")]


async def test_a_clock_that_goes_backwards_changes_nothing_but_the_times(store: Store) -> None:
    times: Iterator[int] = iter(range(NOW_MS, 0, -DAY_MS))
    session = await Session.open("s", store=store, model="claude-sonnet-4-5", clock=lambda: next(times))
    await session.record(TALK)
    requests = [await session.prepare(16_000) for _ in range(3)]
    await session.rewind(to=2)
    await session.record([user_message("other")])

    again = await Session.open("s", store=store)

    assert [request.messages for request in requests] == [TALK] * 3
    assert [request.receipt.reasons for request in requests] == [requests[0].receipt.reasons] * 3
    assert again.history.context().visible_entries() == session.history.context().visible_entries()
    written = [stored.time_ms for stored in await store.read("s")]
    assert written == sorted(written, reverse=True)
    assert [(info.created_ms, info.updated_ms) for info in await store.sessions()] == [(written[0], written[0])]


async def test_a_session_of_a_later_time_than_now_is_neither_old_nor_lost(store: Store) -> None:
    ahead = await Session.open("ahead", store=store, clock=lambda: NOW_MS + 400 * DAY_MS)
    await ahead.record(TALK)
    await ahead.prepare(16_000)

    now = await Session.open("ahead", store=store, policy="cowagent", clock=lambda: NOW_MS)

    assert await expired_sessions(store, days=30, now_ms=NOW_MS) == []
    assert (await now.prepare(16_000)).messages == TALK
    assert await now.record([assistant_message("2")]) == range(3, 4)


FUTURE: list[JsonRecord] = [
    {"type": "message.appended", "schema": 7, "data": {"holo": "gram"}},
    {"type": "session.dreamt", "schema": 2, "data": {}},
]


@pytest.mark.parametrize("record", FUTURE, ids=["newer message", "newer kind"])
async def test_what_a_newer_program_writes_meanwhile_makes_a_session_one_to_read(
    store: Store, record: JsonRecord
) -> None:
    session = await Session.open("s", store=store)
    await session.record(TALK)

    await store.append("s", [record], after=3, time_ms=NOW_MS)

    for attempt in (
        session.record([assistant_message("2")]),
        session.prepare(16_000),
        session.clear(),
        session.rewind(to=0),
    ):
        with pytest.raises(StoreUnavailableError) as refusal:
            await attempt
        assert str(refusal.value) == (
            "session 's': a newer Holdfast has written to it, so this one only reads it; update Holdfast"
        )
    assert await session.messages_at(0, 3) == TALK
    assert [stored.record for stored in await store.read("s", start=3)] == [record]


async def test_a_kind_that_nobody_knows_yet_does_not_stop_a_session(store: Store) -> None:
    session = await Session.open("s", store=store)
    await session.record(TALK)

    await store.append("s", [{"type": "session.dreamt", "schema": 1, "data": {"of": "sheep"}}], after=3, time_ms=NOW_MS)

    assert await session.record([assistant_message("2"), user_message("three")]) == range(3, 5)
    assert (await session.prepare(16_000)).messages == [*TALK, assistant_message("2"), user_message("three")]


async def test_a_tool_result_of_a_hundred_megabytes_is_kept_whole_and_sent_within_the_budget(tmp_path: Path) -> None:
    line = "2024-01-01 12:00:00 INFO request handled in 12 ms\n"
    huge = tool_result_message("x", line * (100_000_000 // len(line)))
    async with Session.open("s", store=f"sqlite:///{tmp_path}/chats.db") as session:
        assert await session.record([user_message("go"), tool_call_message("x"), huge, user_message("and?")]) == range(
            4
        )

    async with Session.open("s", store=f"sqlite:///{tmp_path}/chats.db") as session:
        assert await session.messages_at(2) == [huge]
        request = await session.prepare(16_000)

    assert request.tokens.total <= 16_000
    assert request.receipt.clipped == (2,)
    assert [message["role"] for message in request.messages] == ["user", "assistant", "tool", "user"]


async def test_a_session_that_nobody_began_has_no_name_to_change(store: Store) -> None:
    session = await Session.open("nobody", store=store)

    with pytest.raises(
        UnknownSessionError, match="session 'nobody' is not known; `holdfast sessions` lists what is there"
    ):
        await session.rename("Somebody")

    assert await store.sessions() == []


async def test_the_log_keeps_what_no_provider_accepts_and_a_request_has_a_replacement() -> None:
    answer = {"role": "assistant", "content": "on", "scores": [float("inf"), 1.5], "by": "half \ud800"}

    async with Session.open("s1", store="memory://", model="gpt-5") as session:
        await session.record([user_message("hi"), answer, user_message("go")])
        request = await session.prepare(16_000)
        recorded = await session.messages()

    sent = {"role": "assistant", "content": "on", "scores": [None, 1.5], "by": "half \ufffd"}
    assert recorded == [user_message("hi"), answer, user_message("go")]
    assert request.messages == [user_message("hi"), sent, user_message("go")]


@pytest.mark.parametrize(
    "message",
    [
        {"role": {"name": "user"}, "content": "hello"},
        {"role": "user", "content": [{"type": ["text"], "text": "hello"}]},
        {"role": "user", "content": "hello", "kind": ["request"], "parts": [[]]},
    ],
)
async def test_a_first_message_whose_kind_is_no_text_is_refused_with_its_place(message: dict[str, object]) -> None:
    async with Session.open("one", store=MemoryStore()) as session:
        with pytest.raises(MalformedInputError, match=r"^messages\[0\]"):
            await session.record([message])
