"""A request that does not begin with the one before it says why, in the log."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast import Session
from holdfast.core.history import events as log
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from tests.support import WORDS, record_turns

TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
TIGHT_BUDGET = 420


async def breaks(session: Session) -> list[log.PrefixBreak | None]:
    return [event.prefix_break for event in await session.events() if isinstance(event, log.RequestPrepared)]


async def talked(session: Session, **options: Any) -> None:
    await session.record([user_message(f"why? {WORDS}")])
    await session.prepare(64_000, **options)
    await session.record([assistant_message(f"so {WORDS}")])


async def test_a_conversation_that_only_grows_breaks_no_prefix() -> None:
    session = await Session.open("s", store=MemoryStore(), model="gpt-5")

    for _ in range(5):
        await talked(session, system="Be brief.", tools=TOOLS)

    assert await breaks(session) == [None] * 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"system": "Be long."}, log.PrefixBreak(at=0, reason="the system text changed")),
        ({"tools": TOOLS}, log.PrefixBreak(at=0, reason="the tools changed")),
        ({"model": "gpt-5-mini", "tools": TOOLS}, log.PrefixBreak(at=0, reason="the model and the tools changed")),
    ],
)
async def test_what_precedes_the_messages_breaks_the_prefix_by_name(
    options: dict[str, Any], expected: log.PrefixBreak
) -> None:
    session = await Session.open("s", store=MemoryStore(), model="gpt-5")
    await talked(session, system="Be brief.")

    await talked(session, **{"system": "Be brief.", **options})

    assert await breaks(session) == [None, expected]


async def test_a_rewind_and_a_compaction_break_the_prefix_where_they_begin() -> None:
    session = await Session.open("s", store=MemoryStore(), model="gpt-5")
    for _ in range(4):
        await talked(session)
    await session.rewind(to=3)
    await talked(session)
    await record_turns(session, 4)
    await session.prepare(64_000)
    await session.compact()
    await session.prepare(64_000)

    found = [one for one in await breaks(session) if one]

    assert found[0] == log.PrefixBreak(at=3, reason="a change of the context since the last request")
    assert (found[1].at, found[1].reason.partition(";")[0]) == (0, "a compaction since the last request")


async def test_a_request_that_is_fitted_anew_gives_the_reasons_of_its_receipt() -> None:
    session = await Session.open("s", store=MemoryStore(), model="gpt-5")
    await record_turns(session, 12)
    await session.prepare(64_000)

    smaller = await session.prepare(1_500)

    (found,) = [one for one in await breaks(session) if one]
    assert found.reason.endswith("; ".join(smaller.receipt.reasons))
    assert smaller.receipt.reasons


@given(st.lists(st.sampled_from(["talk", "rewind", "clear", "undo", "compact", "small"]), max_size=10))
@settings(max_examples=25, deadline=None)
async def test_every_request_extends_the_one_before_it_or_its_event_says_why_not(actions: list[str]) -> None:
    session = await Session.open("s", store=MemoryStore(), model="gpt-5")
    sent = list[list[Any]]()
    for action in ["talk", "talk", *actions]:
        if action == "rewind":
            await session.rewind(to=len(session) // 2)
        elif action == "clear":
            await session.clear()
        elif action == "undo":
            await session.undo()
        elif action == "compact" and len(await session.messages()) > 6:
            await session.compact()
        await session.record([user_message(f"why? {WORDS}")])
        sent.append((await session.prepare(700 if action == "small" else 64_000)).messages)
        await session.record([assistant_message(f"so {WORDS}")])

    recorded = await breaks(session)
    for before, after, found in zip(sent, sent[1:], recorded[1:], strict=False):
        is_extended = after[: len(before)] == before
        assert is_extended is (found is None)
        assert found is None or (found.reason and after[: found.at] == before[: found.at])
    assert all(one.is_same and one.is_chained for one in rebuilt_requests(await session.events()))


TIGHT_TURNS = st.lists(
    st.tuples(st.sampled_from([40, 60, 150]), st.lists(st.sampled_from([4, 60, 150, 500]), max_size=3))
    | st.just((330, list[int]())),
    min_size=4,
    max_size=8,
)
"""The words of prompts and of the outputs that follow them; some prompts fill most of a small budget."""
LARGE_PROMPT_AFTER_A_COMPACTION = [(60, [4]), (150, []), (330, []), (330, []), (40, [])]


@example(LARGE_PROMPT_AFTER_A_COMPACTION)
@given(TIGHT_TURNS)
@settings(max_examples=20, deadline=None)
async def test_under_a_tight_budget_a_prefix_breaks_only_where_a_compaction_is_on_record(
    turns: list[tuple[int, list[int]]],
) -> None:
    session = await Session.open("s", store=MemoryStore(), model="gpt-5")

    for number, (prompt, outputs) in enumerate(turns):
        await session.record([user_message(f"{number}: " + "word " * prompt)])
        await session.prepare(TIGHT_BUDGET)
        for step, size in enumerate(outputs):
            call_id = f"c{number}-{step}"
            output = f"{call_id}: " + "line " * size  # the same again would count as a loop
            await session.record([tool_call_message(call_id), tool_result_message(call_id, output)])
            await session.prepare(TIGHT_BUDGET)
        await session.record([assistant_message(f"answer {number}: " + "word " * 40)])

    found = [one.reason.partition(";")[0] for one in await breaks(session) if one]
    assert {*found} <= {"a compaction since the last request"}
