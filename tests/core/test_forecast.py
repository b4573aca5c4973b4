"""What the next fold will cost, told before it is made."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast import Session
from holdfast.core.history import events as log
from holdfast.core.planning.contents import contents_of
from holdfast.core.planning.cost import MILLION, PRICES, money
from holdfast.core.planning.forecast import Forecast, SummaryBy, forecast_of
from holdfast.core.planning.plan import outlook_of
from holdfast.core.planning.presets import PRESETS, policy_of
from holdfast.core.planning.steps import Line, Outlook
from holdfast.models.base import Answer
from holdfast.session.circumstances import Wanted
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import answered, called, returned, said
from holdfast.testing.models import ScriptedModel

BUDGET = 16_000
SUMMARY = "src/step_0.py, src/step_1.py and src/step_2.py were read. [#0-9]"
PRICED = replace(PRICES["anthropic"], dollars=4.0)


async def worked(steps: int, **settings: Any) -> Session:
    session = await Session.open("f1", store=MemoryStore(), model="gpt-5", **settings)
    for number in range(steps):
        await step(session, number)
    return session


async def step(session: Session, number: int) -> None:
    await session.record([said(f"Do step {number}.")])
    read = called(f"c{number}", name="read_file", arguments={"path": f"src/step_{number}.py"})
    await session.record([read, returned(f"c{number}", f"def step_{number}(): pass\n" * 60)])
    await session.prepare(BUDGET)
    await session.record([answered(f"Step {number} is done.")])


async def outlook(session: Session, **changes: Any) -> Outlook:
    situation = session._preparer.situation(Wanted(budget=BUDGET, model="gpt-5"))
    return outlook_of(session.history, session.policy, replace(situation, **changes))


async def test_a_fold_by_rule_costs_what_is_sent_as_new() -> None:
    session = await worked(10)

    found = (await session.contents(budget=BUDGET)).forecast

    room, price = BUDGET - 3, 1.25
    after = int(0.05 * room) + int(0.06 * room)
    assert found == Forecast(before=int(0.95 * room), after=after, rewrite_dollars=after * price / MILLION)
    assert found is not None
    assert found.dollars == found.rewrite_dollars


async def test_the_forecast_of_a_fold_is_an_upper_limit_of_its_receipt() -> None:
    session, number, forecast = await worked(4), 4, None

    while not (folds := await session.receipts()):
        forecast = (await session.contents(budget=BUDGET)).forecast
        await step(session, number)
        number += 1

    assert forecast is not None
    assert forecast.before >= folds[0].tokens_before > 0.9 * forecast.before
    assert forecast.after >= folds[0].tokens_after > 0.5 * forecast.after
    assert (forecast.rewrite_dollars or 0) >= (folds[0].rewrite_dollars or 1)


async def test_a_summary_is_forecast_at_its_writers_prices_and_from_the_cache_where_it_holds_it() -> None:
    session = await worked(10)
    seen = await outlook(session, has_summariser=True, prices=PRICED)
    line = Line(seen.shown.tokens, 12_000, "tokens")

    apart = forecast_of(seen, session.policy, line, SummaryBy(PRICED))
    behind = forecast_of(seen, session.policy, line, SummaryBy(PRICED, is_behind=True))
    unpriced = forecast_of(seen, session.policy, line, SummaryBy())

    plain = Forecast(before=12_000, after=1_758, read=11_201, written=959, rewrite_dollars=1_758 * 1.25 * 4 / MILLION)
    cached = replace(plain, read=12_000, is_cached=True, summary_dollars=(1_200 + 5 * 959) * 4 / MILLION)
    assert unpriced == plain
    assert apart == replace(plain, summary_dollars=(11_201 + 5 * 959) * 4 / MILLION)
    assert behind == cached
    assert [one.dollars is None for one in (apart, behind, unpriced) if one] == [False, False, True]


async def test_what_the_last_summary_took_is_what_the_next_is_expected_to_take() -> None:
    answer = Answer(text=SUMMARY, model="gpt-5", usage=log.Usage(input_tokens=9_000, output_tokens=120))
    session = await worked(10, summariser=ScriptedModel([answer]))
    before = (await session.contents(budget=BUDGET)).forecast

    await session.compact(budget=BUDGET)

    after = (await session.contents(budget=BUDGET)).forecast
    assert (before.written if before else 0, after.written if after else 0) == (959, 120)


@pytest.mark.parametrize("name", list(PRESETS))
async def test_every_policy_says_what_its_next_fold_will_leave_and_none_where_there_will_be_none(name: str) -> None:
    session = await worked(6, policy=name)

    alone = contents_of(await outlook(session), session.policy).forecast
    helped = contents_of(await outlook(session, has_summariser=True), session.policy, SummaryBy()).forecast

    assert helped is not None
    assert 0 < helped.written < helped.before
    assert 0 < helped.after <= helped.before
    assert (alone is None) == (name in {"inkeep", "copilot"}), "these two fold with a model or not at all"
    assert alone is None or (alone.read, alone.written, alone.summary_dollars) == (0, 0, None)


async def test_nothing_is_forecast_where_nothing_is_folded() -> None:
    session = await worked(2)
    seen = await outlook(session)

    assert forecast_of(seen, replace(session.policy, fold=None), Line(1, 2, "tokens")) is None
    assert forecast_of(seen, policy_of("default"), None) is None


@pytest.mark.parametrize(("dollars", "told"), [(1.5, "$1.50"), (0.0123, "$0.01"), (0.00456, "$0.00456"), (0, "$0.00")])
def test_money_is_told_as_people_write_it(dollars: float, told: str) -> None:
    assert money(dollars) == told
