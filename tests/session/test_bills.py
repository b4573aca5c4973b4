"""Which bills are believed: those that go up and down with what is sent; and none raises a request above its budget."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.torture import usage as reports
from holdfast import Session
from holdfast.core.history.events import MessageAppended, Usage
from holdfast.core.history.visibility import Visibility
from holdfast.core.planning.policy import PRESETS
from holdfast.errors import SettingsError
from holdfast.session.arguments import check_endpoint
from holdfast.session.calibration import ServedModel, UsageCalibrator
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.wire.request import Request

BUDGET = 4_000
HERE, THERE = "https://here.example/v1", "https://there.example/v1"


async def paid(*bills: tuple[int, int]) -> tuple[float, int | None]:
    """Return the factor (in steps, rounded up) and the window that were learned of what was sent and billed."""
    meter, served = UsageCalibrator(MemoryStore()), ServedModel("m")
    for sent, billed in bills:
        meter.record_request(served, sent)
        await meter.record_usage(Usage(input_tokens=billed))
    return round((await meter.calibration(served)).factor, 2), await meter.provider_limit(served)


@pytest.mark.parametrize(
    ("bills", "learned"),
    [
        pytest.param([(1_000, 1_100)], (1.15, None), id="a little more than was counted"),
        pytest.param([(1_000, 3_000)], (2.0, None), id="far more than any vocabulary needs"),
        pytest.param([(1_000, 700)], (1.0, None), id="far less, once"),
        pytest.param([(1_000, 700), (2_000, 1_420)], (0.75, None), id="far less, and more for more"),
        pytest.param([(1_000, 300), (2_000, 600)], (0.75, None), id="less than any vocabulary needs"),
        pytest.param([(5_000, 2_048), (6_000, 2_048)], (1.0, 2_048), id="the same for more: a window"),
        pytest.param([(5_000, 2_048), (5_050, 2_050)], (1.0, None), id="the same for as much"),
        pytest.param([(3_800, 100), (4_900, 2_000)], (1.0, None), id="first one thing, then another"),
        pytest.param([(500, 100), (5_000, 100)], (1.0, None), id="the same for anything, and too little for a window"),
    ],
)
async def test_a_bill_is_believed_that_goes_up_and_down_with_what_is_sent(
    bills: list[tuple[int, int]], learned: tuple[float, int | None]
) -> None:
    assert await paid(*bills) == learned


async def test_many_bills_alike_are_written_a_few_times_and_another_one_at_once() -> None:
    class Counted(MemoryStore):
        written = 0

        async def put_value(self, key: str, value: Any) -> None:
            self.written += 1
            await super().put_value(key, value)

    store, served = Counted(), ServedModel("m")
    meter = UsageCalibrator(store)

    async def bill(sent: int, billed: int) -> None:
        meter.record_request(served, sent)
        await meter.record_usage(Usage(input_tokens=billed))

    for _ in range(100):
        await bill(1_000, 1_100)
    alike = store.written
    await bill(1_000, 1_400)

    assert (alike, store.written) == (8, 9)
    assert (await UsageCalibrator(store).calibration(served)).factor == (await meter.calibration(served)).factor


async def billed_turns(session: Session, share: float, *, turns: int = 24) -> list[Request]:
    """Return the requests of a conversation for which a share of their tokens is billed."""
    requests: list[Request] = []
    for number in range(turns):
        await session.record([user_message(f"question {number} " + "word " * 250)])
        requests.append(await session.prepare(BUDGET))
        billed = {"input_tokens": int(requests[-1].tokens.counted * share)}
        await session.record([assistant_message("word " * 250)], usage=billed)
    return requests


@pytest.mark.parametrize("policy", sorted(PRESETS))
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 1.0, 1.5, 3.0])
async def test_no_report_raises_a_request_above_its_exactly_counted_budget(share: float, policy: str) -> None:
    session = await Session.open("c1", model="gpt-5", policy=policy)

    requests = await billed_turns(session, share)

    assert [request.tokens.counted for request in requests if request.tokens.counted > BUDGET] == []
    told = [request.tokens.total / request.tokens.counted for request in requests]
    assert 0.94 < min(told) <= max(told) < 1.11, "the model's own vocabulary is never far off"


async def test_a_report_with_cached_tokens_says_that_all_of_them_were_sent() -> None:
    session = await Session.open("c1", model="claude-sonnet-4-5")
    for number in range(4):
        await session.record([user_message(f"question {number} " + "word " * 400)])
        request = await session.prepare(100_000)
        fresh = request.tokens.counted // 10
        billed = {
            "input_tokens": fresh,
            "cache_read_input_tokens": request.tokens.counted - fresh,
            "cache_creation_input_tokens": 0,
            "output_tokens": 3,
        }
        await session.record([assistant_message("so")], usage=billed)

    await session.record([user_message("and now?")])
    request = await session.prepare(100_000)

    assert (request.tokens.provenance, request.tokens.total) == ("calibrated", request.tokens.counted)


async def sent_after(store: Store, *, endpoint: str | None, model: str = "claude-sonnet-4-5") -> Request:
    """Return a request of a new session that has reported nothing."""
    async with Session.open("other", store=store, model=model, endpoint=endpoint) as session:
        await session.record([user_message(f"word {number} " * 200) for number in range(12)])
        return await session.prepare(BUDGET)


async def test_what_is_learned_belongs_to_one_model_at_one_endpoint() -> None:
    store = MemoryStore()
    untouched = await sent_after(MemoryStore(), endpoint=THERE)
    async with Session.open("c1", store=store, model="claude-sonnet-4-5", endpoint=HERE) as session:
        await billed_turns(session, 1.5)

    assert await sent_after(store, endpoint=THERE) == untouched
    await store.delete("other")
    assert (await sent_after(store, endpoint=HERE)).tokens.provenance == "calibrated"
    await store.delete("other")
    assert (await sent_after(store, endpoint=HERE, model="gpt-5")).tokens.provenance == "counted"
    await store.delete("other")
    assert (await sent_after(store, endpoint=None)).tokens.provenance == "estimated"


async def test_the_bill_of_a_sub_agent_is_compared_with_its_own_request() -> None:
    store = MemoryStore()
    async with Session.open("c1", store=store, model="some-model") as session:
        await session.record([user_message("word " * 2_000)])
        async with session.delegate("scout", task="Look.", sees=Visibility()) as scout:
            own = await session.prepare(100_000)
            await scout.prepare(100_000)
            await session.record([assistant_message("so")], usage={"input_tokens": own.tokens.counted})

    assert (await UsageCalibrator(store).calibration(ServedModel("some-model"))).factor == 1.0


@pytest.mark.parametrize("model", ["gpt-5", "claude-sonnet-4-5"])
@pytest.mark.parametrize("factor", [0.25, 0.5, 3.9, "much", None])
async def test_a_stored_factor_that_cannot_be_true_is_ignored(model: str, factor: object) -> None:
    store = MemoryStore()
    await store.put_value(f"calibration:{model}", {"factor": factor, "samples": 9, "spread": 0.01})

    assert (await sent_after(store, endpoint=None, model=model)) == await sent_after(
        MemoryStore(), endpoint=None, model=model
    )


async def test_a_factor_that_an_earlier_version_stored_without_an_endpoint_is_still_known() -> None:
    store = MemoryStore()
    await store.put_value("calibration:claude-sonnet-4-5", {"factor": 1.2, "samples": 9, "spread": 0.01})

    request = await sent_after(store, endpoint=None)

    assert request.tokens.total / request.tokens.counted == pytest.approx(1.2, abs=0.01)


@pytest.mark.parametrize(
    ("endpoint", "kept"),
    [
        (None, None),
        ("https://API.example.com/v1/", "https://api.example.com/v1"),
        ("https://me:secret@api.example.com/v1?key=secret#secret", "https://api.example.com/v1"),
        ("https://me:sec/ret@api.example.com/v1", "https://api.example.com/v1"),
        ("http://127.0.0.1:11434/v1", "http://127.0.0.1:11434/v1"),
        ("http://127.0.0.1:49152/v1", "http://127.0.0.1/v1"),
        ("eu gateway", "eugateway"),
    ],
)
def test_the_address_of_an_endpoint_is_kept_without_its_secrets(endpoint: str | None, kept: str | None) -> None:
    assert check_endpoint(endpoint) == kept


@pytest.mark.parametrize("endpoint", ["", "  ", 5, "x" * 3_000])
async def test_an_endpoint_that_is_none_is_refused(endpoint: Any) -> None:
    with pytest.raises(SettingsError, match="endpoint: must be the address that serves the model"):
        await Session.open("c1", endpoint=endpoint)


@given(
    st.sampled_from(["gpt-5", "claude-sonnet-4-5", "some-model"]),
    st.integers(2_000, 20_000),
    st.lists(st.tuples(st.floats(0.01, 10), st.sampled_from(sorted(reports.ALL_REPORTS))), min_size=1, max_size=8),
)
@settings(max_examples=25, deadline=None)
def test_whatever_is_reported_the_room_for_a_request_stays_within_its_bounds(
    model: str, budget: int, bills: list[tuple[float, str]]
) -> None:
    async def converse() -> list[int]:
        counted: list[int] = []
        async with Session.open("c1", model=model) as session:
            for number, (ratio, names) in enumerate(bills):
                await session.record([user_message(f"question {number} " + "word " * (budget // 3))])
                request = await session.prepare(budget)
                counted.append(request.tokens.counted)
                bill = reports.split_bill(max(1, int(counted[-1] * ratio)), cached=0.5, written=0, has_writes=False)
                await session.record([assistant_message("so")], usage=reports.ALL_REPORTS[names](bill))
        return counted

    most = budget if model == "gpt-5" else int(budget * 0.95 / 0.75)
    assert max(asyncio.run(converse())) <= most


@given(reports.STRATEGIES[0])
@settings(max_examples=6, deadline=None)
def test_no_report_has_an_effect_on_the_budget_or_on_another_endpoint(case: dict[str, Any]) -> None:
    reports.check(case)


async def test_a_bill_belongs_to_the_answer_that_was_billed_and_not_to_the_result_of_its_call() -> None:
    billed = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
    async with Session.open("s") as session:
        await session.record([user_message("what is there?")])
        await session.record([tool_call_message("c1"), tool_result_message("c1", "nothing")], usage=billed)
        events = await session.events()

    said = [(event.native["role"], event.usage) for event in events if isinstance(event, MessageAppended)]
    assert said == [("user", None), ("assistant", Usage(input_tokens=90, output_tokens=10)), ("tool", None)]


@pytest.mark.parametrize("model", ["gpt\0five", "gpt\ud800five"])
async def test_what_is_learned_of_a_model_with_an_odd_name_can_be_stored(tmp_path: Path, model: str) -> None:
    store, served = SqliteStore(tmp_path / "a.db"), ServedModel(model, "https://api.example")

    await UsageCalibrator(store).learn_refusal(served, counted=1_000, size=1_200, limit=None)
    learned = await UsageCalibrator(store).calibration(served)
    kept = await store.values("calibration:")
    await store.close()

    assert (learned.factor > 1, list(kept)) == (True, ["calibration:https://api.example gpt\ufffdfive"])
