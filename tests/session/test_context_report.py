"""The report of what fills the context, and of when the next compaction is due."""

import pytest

from holdfast import Session
from holdfast.core.planning.context_report import ContextReport, CostForecast
from holdfast.core.planning.steps import Threshold
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import tool_call_message, tool_result_message, user_message


async def talked(session: Session, turns: int) -> None:
    for number in range(turns):
        await session.record([{"role": "user", "content": f"question {number}: " + "why? " * 40}])
        await session.record([{"role": "assistant", "content": f"answer {number}: " + "because. " * 40}])


@pytest.mark.seed("D-20")
async def test_contents_say_what_was_said_by_whom_and_how_long_it_is() -> None:
    async with Session.open("s", model="gpt-5") as session:
        await session.record([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}])

        contents = await session.context_breakdown(budget=16_000)

    assert contents == ContextReport(
        budget=16_000,
        system=7,
        turns=8,
        reclaimable=0,
        messages=2,
        roles={"system": 1, "user": 1},
        characters=14,
        prompts=1,
        threshold=Threshold(current=15, limit=15_200, unit="tokens"),
        turns_left=1265,
        forecast=CostForecast(tokens_before=15_197, tokens_after=11_477, rewrite_dollars=11_477 * 1.25 / 1_000_000),
    )


@pytest.mark.seed("D-20")
async def test_the_results_of_tools_count_among_the_characters_and_by_their_own_role() -> None:
    async with Session.open("s", model="gpt-5") as session:
        await session.record([user_message("look"), tool_call_message("a"), tool_result_message("a", "seen" * 10)])

        contents = await session.context_breakdown(budget=16_000)

    assert (contents.messages, dict(contents.roles), contents.characters) == (
        3, {"user": 1, "assistant": 1, "tool": 1}, 44,
    )  # fmt: skip


async def test_every_part_has_its_share_after_a_compaction() -> None:
    async with Session.open("s", model="gpt-5") as session:
        await session.record([{"role": "system", "content": "Be brief."}])
        await talked(session, 30)
        await session.pin(1)
        await session.prepare(4_000, tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}])

        contents = await session.context_breakdown(budget=4_000)

    assert min(contents.system, contents.tools, contents.pins, contents.summary, contents.turns) > 0
    assert contents.total + contents.free == 4_000
    assert 0 < contents.reclaimable < contents.total


async def test_the_budget_is_that_of_the_last_request_to_the_same_model_unless_one_is_named() -> None:
    async with Session.open("s", model="gpt-5") as session:
        await talked(session, 3)
        await session.prepare(4_000)
        await session.prepare(9_000, model="gpt-4o")

        found = [
            await session.context_breakdown(),
            await session.context_breakdown(model="gpt-4o"),
            await session.context_breakdown(budget=6_000),
        ]

    assert [one.capacity for one in found] == [4_000, 9_000, 6_000]


@pytest.mark.parametrize(
    ("policy", "unit"),
    [("default", "tokens"), ("co-cli", "messages"), ("inkeep", "tokens"), ("copilot", "tokens"), ("cowagent", "turns")],
)
async def test_every_preset_says_how_near_its_next_compaction_is(policy: str, unit: str) -> None:
    async with Session.open("s", model="gpt-5", policy=policy) as session:
        await talked(session, 3)

        line = (await session.context_breakdown()).threshold

    assert line is not None
    assert line.unit == unit
    assert 0 < line.current < line.limit


async def test_how_far_off_the_numbers_may_be_is_learned_from_what_is_billed_and_kept_for_the_model() -> None:
    store, errors = MemoryStore(), list[float | None]()
    for number in range(4):
        async with Session.open(f"s{number}", model="claude-sonnet-4-5", store=store) as session:
            await talked(session, 2)
            await session.record([{"role": "user", "content": "so?"}])
            errors.append((await session.context_breakdown(budget=16_000)).error)
            request = await session.prepare(16_000)
            answer = {"role": "assistant", "content": "so."}
            await session.record([answer], usage={"input_tokens": request.tokens.counted * 98 // 100})

    assert errors[:3] == [0.15, 0.05, 0.05], "the first reports say no less than a step"
    assert 0 < (errors[3] or 0) < 0.03
