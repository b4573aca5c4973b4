"""What the next compaction will cost, before it is made."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast import Session
from holdfast.core.history import events as log
from holdfast.core.planning.context_report import CostForecast, SummaryAuthor, _tokens_at, context_report, cost_forecast
from holdfast.core.planning.plan import plan_input_of
from holdfast.core.planning.policy import PRESETS, policy_named
from holdfast.core.planning.rules.co_cli import CoCliCompaction
from holdfast.core.planning.situation import MILLION, PROVIDER_PRICES, Prices, format_dollars, request_cost
from holdfast.core.planning.steps import PlanInput, Threshold
from holdfast.models.base import ModelReply
from holdfast.session.prepare import RequestOptions
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel

BUDGET = 16_000
SUMMARY = "src/step_0.py, src/step_1.py and src/step_2.py were read. [#0-9]"
PRICED = replace(PROVIDER_PRICES["anthropic"], dollars=4.0)


async def worked(steps: int, **settings: Any) -> Session:
    session = await Session.open("f1", store=MemoryStore(), model="gpt-5", **settings)
    for number in range(steps):
        await step(session, number)
    return session


async def step(session: Session, number: int) -> None:
    await session.record([user_message(f"Do step {number}.")])
    read = tool_call_message(f"c{number}", name="read_file", arguments={"path": f"src/step_{number}.py"})
    await session.record([read, tool_result_message(f"c{number}", f"def step_{number}(): pass\n" * 60)])
    await session.prepare(BUDGET)
    await session.record([assistant_message(f"Step {number} is done.")])


async def outlook(session: Session, **changes: Any) -> PlanInput:
    situation = session._builder.situation(RequestOptions(budget=BUDGET, model="gpt-5"))
    return plan_input_of(session.history, session.policy, replace(situation, **changes))


async def test_a_compaction_by_rule_costs_what_is_sent_as_new() -> None:
    session = await worked(10)

    found = (await session.context_breakdown(budget=BUDGET)).forecast

    room, price = BUDGET - 3, 1.25
    after = int(0.02 * room) + 2_000
    assert found == CostForecast(
        tokens_before=int(0.95 * room), tokens_after=after, rewrite_dollars=after * price / MILLION
    )
    assert found is not None
    assert found.dollars == found.rewrite_dollars


async def test_the_forecast_of_a_compaction_is_an_upper_limit_of_its_receipt() -> None:
    session, number, forecast = await worked(4), 4, None

    while not (compactions := await session.receipts()):
        forecast = (await session.context_breakdown(budget=BUDGET)).forecast
        await step(session, number)
        number += 1

    assert forecast is not None
    assert forecast.tokens_before >= compactions[0].tokens_before > 0.9 * forecast.tokens_before
    assert forecast.tokens_after >= compactions[0].tokens_after > 0.5 * forecast.tokens_after
    assert (forecast.rewrite_dollars or 0) >= (compactions[0].effect.rewrite_dollars or 1)


async def test_a_summary_is_forecast_at_its_writers_prices_and_from_the_cache_where_it_holds_it() -> None:
    session = await worked(10)
    seen = await outlook(session, has_summarizer=True, prices=PRICED)
    line = Threshold(seen.projection.tokens, 12_000, "tokens")

    apart = cost_forecast(seen, session.policy, line, SummaryAuthor(PRICED))
    behind = cost_forecast(seen, session.policy, line, SummaryAuthor(PRICED, reuses_prefix=True))
    unpriced = cost_forecast(seen, session.policy, line, SummaryAuthor())

    plain = CostForecast(
        tokens_before=12_000,
        tokens_after=1_519,
        read_tokens=11_681,
        written_tokens=1_200,
        rewrite_dollars=1_519 * 1.25 * 4 / MILLION,
    )
    cached = replace(plain, read_tokens=12_000, is_cached=True, summary_dollars=(1_200 + 5 * 1_200) * 4 / MILLION)
    assert unpriced == plain
    assert apart == replace(plain, summary_dollars=(11_681 + 5 * 1_200) * 4 / MILLION)
    assert behind == cached
    assert [one.dollars is None for one in (apart, behind, unpriced) if one] == [False, False, True]


async def test_what_the_last_summary_took_is_what_the_next_is_expected_to_take() -> None:
    answer = ModelReply(text=SUMMARY, model="gpt-5", usage=log.Usage(input_tokens=9_000, output_tokens=120))
    session = await worked(10, summarizer=ScriptedModel([answer]))
    before = (await session.context_breakdown(budget=BUDGET)).forecast

    await session.compact(budget=BUDGET)

    after = (await session.context_breakdown(budget=BUDGET)).forecast
    assert (before.written_tokens if before else 0, after.written_tokens if after else 0) == (1_200, 120)


@pytest.mark.parametrize("name", list(PRESETS))
async def test_every_policy_says_what_its_next_compaction_will_leave_if_there_will_be_one(
    name: str,
) -> None:
    session = await worked(6, policy=name)

    alone = context_report(await outlook(session), session.policy).forecast
    helped = context_report(await outlook(session, has_summarizer=True), session.policy, SummaryAuthor()).forecast

    assert helped is not None
    assert 0 < helped.written_tokens < helped.tokens_before
    assert 0 < helped.tokens_after <= helped.tokens_before
    assert (alone is None) == (name in {"inkeep", "copilot"}), "these two compact with a model or not at all"
    assert alone is None or (alone.read_tokens, alone.written_tokens, alone.summary_dollars) == (0, 0, None)


async def test_nothing_is_forecast_where_nothing_is_compacted() -> None:
    session = await worked(2)
    seen = await outlook(session)

    assert cost_forecast(seen, replace(session.policy, compaction=None), Threshold(1, 2, "tokens")) is None
    assert cost_forecast(seen, policy_named("default"), None) is None


@pytest.mark.parametrize(("dollars", "told"), [(1.5, "$1.50"), (0.0123, "$0.01"), (0.00456, "$0.00456"), (0, "$0.00")])
def test_money_is_told_as_people_write_it(dollars: float, told: str) -> None:
    assert format_dollars(dollars) == told


def test_a_request_costs_its_cached_and_its_new_tokens_and_the_answer() -> None:
    prices = Prices(name="mine", read=0.1, write=1.25, output=5)

    assert request_cost(prices, cached=1_000, fresh=200, output=30) == 0.1 * 1_000 + 1.25 * 200 + 5 * 30


def test_providers_price_cached_and_new_tokens_and_keep_a_prefix_for_a_while() -> None:
    known = {name: (one.read, one.write, one.output, one.ttl_seconds) for name, one in PROVIDER_PRICES.items()}

    assert known == {
        "anthropic": (0.1, 1.25, 5, 300),
        "gpt-5": (0.1, 1, 8, 300),
        "gpt-4o": (0.5, 1, 4, 300),
        "deepseek": (0.02, 1, 1.5, None),
        "none": (1, 1, 4, None),
    }


def test_other_units_are_converted_at_their_present_size() -> None:
    assert _tokens_at(Threshold(10, 40, "messages"), 1_000) == 4_000
    assert _tokens_at(Threshold(50, 40, "messages"), 1_000) == 1_000


async def test_co_cli_expects_to_keep_half_of_its_messages() -> None:
    rules = [CoCliCompaction(max_messages=messages) for messages in (40, 9, 3)]
    seen = await outlook(await worked(3))

    found = [rule.forecast(seen, 4_000) for rule in rules]
    assert [(one.kept_tokens, one.by_model) for one in found if one] == [(2_000, False), (1_777, False), (4_000, False)]
    assert CoCliCompaction(max_messages=0).forecast(seen, 4_000) is None
