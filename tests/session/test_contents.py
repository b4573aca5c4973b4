"""What a conversation is made of."""

import pytest

from holdfast import Session
from holdfast.core.planning.contents import Contents
from holdfast.core.planning.forecast import Forecast
from holdfast.core.planning.steps import Line


async def talked(session: Session, turns: int) -> None:
    for number in range(turns):
        await session.record([{"role": "user", "content": f"question {number}: " + "why? " * 40}])
        await session.record([{"role": "assistant", "content": f"answer {number}: " + "because. " * 40}])


@pytest.mark.seed("D-20")
async def test_contents_say_what_was_said_by_whom_and_how_long_it_is() -> None:
    async with Session.open("s", model="gpt-5") as session:
        await session.record([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}])

        contents = await session.contents(budget=16_000)

    assert contents == Contents(
        budget=16_000,
        system=7,
        turns=8,
        reclaimable=0,
        messages=2,
        roles={"system": 1, "user": 1},
        characters=14,
        prompts=1,
        line=Line(held=15, limit=15_200, unit="tokens"),
        turns_left=1265,
        forecast=Forecast(before=15_197, after=6_358, rewrite_dollars=6_358 * 1.25 / 1_000_000),
    )


async def test_every_part_has_its_share_after_a_fold() -> None:
    async with Session.open("s", model="gpt-5") as session:
        await session.record([{"role": "system", "content": "Be brief."}])
        await talked(session, 30)
        await session.pin(1)
        await session.prepare(4_000, tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}])
        await session.compact(budget=4_000)

        contents = await session.contents(budget=4_000)

    assert min(contents.system, contents.tools, contents.pins, contents.summary, contents.turns) > 0
    assert contents.total + contents.free == 4_000
    assert 0 < contents.reclaimable < contents.total


@pytest.mark.parametrize(
    ("policy", "unit"),
    [("default", "tokens"), ("co-cli", "messages"), ("inkeep", "tokens"), ("copilot", "tokens"), ("cowagent", "turns")],
)
async def test_every_preset_says_how_near_its_next_fold_is(policy: str, unit: str) -> None:
    async with Session.open("s", model="gpt-5", policy=policy) as session:
        await talked(session, 3)

        line = (await session.contents()).line

    assert line is not None
    assert line.unit == unit
    assert 0 < line.held < line.limit
