"""Recall says what it could not do: a wrong scope, session, line or order is named, and is never silence."""

from functools import partial

import pytest

from holdfast import Session, counter_for
from holdfast.core.conversation.frames import IDENTIFIERS_HEADING
from holdfast.errors import MalformedInputError, UnknownScopeError
from holdfast.recall import RecallQuery
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.wire.convert import convert

WORK = [
    user_message("read it"),
    tool_call_message("c1", arguments={"path": "a.py"}),
    tool_result_message("c1", "the tides"),
    assistant_message("done"),
    user_message("thanks"),
]


@pytest.mark.parametrize(
    "format_name", ["openai-chat", "openai-responses", "anthropic-messages", "gemini", "pydantic-ai"]
)
async def test_what_a_tool_returned_is_found_under_its_role_in_every_format(format_name: str) -> None:
    async with Session.open("f", store=MemoryStore()) as session:
        messages = convert(WORK, source="openai-chat", target=format_name).messages
        await session.record(messages, format=format_name)

        tools = await session.recall(RecallQuery(role="tool"))
        people = await session.recall(RecallQuery(role="user"))
        words = await session.recall(RecallQuery(query="tides", role="tool"))

    assert [(one.position, one.speaker_label, one.text) for one in tools.excerpts] == [(2, "tool", "the tides")]
    assert [(one.position, one.speaker_label, one.text) for one in people.excerpts] == [
        (4, "user", "thanks"),
        (0, "user", "read it"),
    ]
    assert [one.position for one in words.excerpts] == [2]


async def test_a_scope_that_nobody_works_under_is_refused_by_name() -> None:
    async with Session.open("s", store=MemoryStore()) as session:
        await session.record([user_message("the key is under the pot")])
        async with session.delegate("scout", task="look") as scout:
            await scout.record([assistant_message("found it")])

        with pytest.raises(
            UnknownScopeError, match=r"no agent has the scope 'nosuch'; pass 'main' or one of"
        ) as refused:
            await session.recall("key", scope="nosuch")
        retry = partial(session.retry, "too long", status=400)
        for asked in (session.prepare, session.visible_messages, session.artifacts, session.compact, retry):
            with pytest.raises(UnknownScopeError):
                await asked(scope="nosuch")
        theirs = await session.recall("found", scope=scout.scope)

    assert refused.value.scope == "nosuch"
    assert [one.text for one in theirs.excerpts][:1] == ["found it"]


async def test_an_earlier_session_that_is_not_there_is_told_of() -> None:
    async with Session.open("s", store=MemoryStore()) as session:
        await session.record([user_message("the key is under the pot")])

        found = await session.recall("key", earlier=["nosuch"])

    assert found.notes == ("there is no session 'nosuch'",)
    assert [one.ref for one in found.excerpts] == ["#0"]


@pytest.mark.parametrize(
    ("ref", "note"),
    [
        ("#0:L5-L9", "#0 has 1 line"),
        ("#1:L5-L9", "#1 has 3 lines"),
        ("#0:500-900", "#0 has 24 characters"),
        ("#0.1:L5-L9", "#0.1 has 1 line"),
    ],
)
async def test_who_asks_for_what_is_after_the_end_is_told_how_long_a_message_is(ref: str, note: str) -> None:
    async with Session.open("s", store=MemoryStore()) as session:
        await session.record([user_message("the key is under the pot"), assistant_message("one\ntwo\nthree")])

        found = await session.recall(ref)

    assert (found.excerpts, found.notes) == ((), (note,))


async def test_an_answer_names_the_lines_that_it_is() -> None:
    async with Session.open("s", store=MemoryStore()) as session:
        await session.record([user_message("\n".join(f"line {number}" for number in range(1, 121)))])

        found = await session.recall("#0:L40-L41")
        last = await session.recall("#0:L119-L300")

    assert [(one.text, one.lines) for one in found.excerpts] == [("line 40\nline 41\n", "40-41 of 120")]
    assert "lines 40-41 of 120, characters " in str(found)
    assert last.excerpts[0].lines == "119-120 of 120"


@pytest.mark.parametrize("ref", ["#5-#2", "#5 – #2", "#0:L9-L5"])
async def test_a_range_from_behind_to_front_is_refused_and_not_searched_for(ref: str) -> None:
    async with Session.open("s", store=MemoryStore()) as session:
        await session.record([user_message("5 and 2")])

        with pytest.raises(MalformedInputError, match="goes from behind to front; give the smaller number first"):
            await session.recall(ref)


async def test_several_questions_in_a_list_are_refused_with_what_would_do() -> None:
    async with Session.open("s", store=MemoryStore()) as session:
        with pytest.raises(MalformedInputError, match=r"pass RecallQuery\(query=\(…\)\)"):
            await session.recall(["a", "b"])  # pyright: ignore[reportArgumentType]


async def test_the_names_that_go_with_a_question_and_left_the_view_are_told_after_what_was_found() -> None:
    async with Session.open("n", store=MemoryStore(), model="gpt-5") as session:
        await session.record([user_message("go through all of them")])
        for number in range(150):
            names = "\n".join(f"src/harbour_{number}/tide_{number}_{place}.py" for place in range(12))
            await session.record(
                [tool_call_message(f"c{number}", arguments={"n": number}), tool_result_message(f"c{number}", names)]
            )
        await session.record([assistant_message("seen"), user_message("go on")])
        await session.compact()

        told = await session.recall_tool().call({"query": "harbour_7", "max_tokens": 600})

    assert told.splitlines()[-3] == IDENTIFIERS_HEADING
    assert 570 < counter_for("gpt-5").count(told) <= 600, "names have all the room that is left"


@pytest.mark.parametrize(
    ("since", "until", "found"),
    [
        ("2026-01-31T11:00+02:00", "", ["nine", "ten"]),
        ("2026-01-31 09:30", "", ["ten"]),
        ("", "2026-01-31t09", ["nine"]),
        ("", "2026-01-31", ["nine", "ten"]),
        ("", "2026-01-30", []),
    ],
)
async def test_a_time_may_name_its_zone_and_a_day_lasts_to_its_end(since: str, until: str, found: list[str]) -> None:
    times = iter([1_769_850_000_000, 1_769_853_600_000])  # 2026-01-31, 09:00 and 10:00 UTC
    async with Session.open("f", store=MemoryStore(), clock=lambda: next(times)) as session:
        for text in ("nine", "ten"):
            await session.record([user_message(text)])

        answer = await session.recall(RecallQuery(role="user", since=since, until=until))

    assert sorted(one.text for one in answer.excerpts) == found
