"""The instruments: what a replay measures, on conversations small enough to reckon by hand."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.apps.lab.baselines import BASELINES, ReplayRequest, SummaryCost
from holdfast.apps.lab.metrics.cost import PrefixStability, SimulatedCost, bill_deviation, cost_growth, token_slope
from holdfast.apps.lab.metrics.validity import BudgetAdherence, Determinism, RequestValidity
from holdfast.apps.lab.recordings import RecordedCompaction, Recording, concatenate, read_recording
from holdfast.apps.lab.replay import Replayer, ReplayTurn
from holdfast.apps.lab.simulation import SimulatedSession
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.situation import PROVIDER_PRICES, Prices, break_even_turns, request_cost
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.sessions import generate_session

ANTHROPIC = PROVIDER_PRICES["anthropic"]


def recorded(messages: list[JsonMessage], **marks: list[Any]) -> Recording:
    times, usage = marks.get("times"), marks.get("usage")
    return Recording("test", messages, times or [None] * len(messages), usage or [None] * len(messages))


def turn(**fields: Any) -> ReplayTurn:
    plain: dict[str, Any] = {
        "sent_tokens": 100,
        "shared_tokens": 80,
        "is_extension": True,
        "output_tokens": 10,
        "gap_seconds": 1.0,
    }
    return ReplayTurn(**{**plain, **fields})


async def turns_of(recording: Recording, name: str, budget: int = 10**6, static: int = 0) -> Sequence[ReplayTurn]:
    player = Replayer(recording, BASELINES[name](), budget, static)
    await player.play()
    return player.turns


async def sound(recording: Recording, name: str, budget: int, seconds: float | None = None) -> dict[str, float]:
    async with SimulatedSession(PRESETS[name], summary_seconds=seconds) as played:
        return await Replayer(recording, played, budget).play(
            [PrefixStability(), RequestValidity(), BudgetAdherence(), Determinism(played)]
        )


def test_a_request_costs_what_is_held_what_is_new_and_the_answer() -> None:
    assert request_cost(ANTHROPIC, cached=80, fresh=20, output=10) == pytest.approx(80 * 0.1 + 20 * 1.25 + 10 * 5)


def test_a_cache_that_has_expired_holds_nothing() -> None:
    assert turn(gap_seconds=299).cached_tokens(ANTHROPIC) == 80
    assert turn(gap_seconds=301).cached_tokens(ANTHROPIC) == 0
    assert turn(gap_seconds=301).cached_tokens(PROVIDER_PRICES["deepseek"]) == 80


@pytest.mark.parametrize(
    ("after", "read", "turns"), [(10_000, 0.1, 3.2), (10_000, 1.25, 16.0), (20_000, 0.1, 5.1), (50_000, 0.1, 14.5)]
)
def test_a_deep_compaction_pays_after_fewer_turns_than_a_shallow_one(after: int, read: float, turns: float) -> None:
    found = break_even_turns(ANTHROPIC, before=100_000, after=after, summary_input=read, summary_output=1_000)

    assert found == pytest.approx(turns, rel=0.15)


def test_a_compaction_that_saves_nothing_never_pays() -> None:
    assert break_even_turns(ANTHROPIC, before=100, after=100) == float("inf")
    assert break_even_turns(Prices(name="free", read=0, write=1, output=1), before=100, after=10) == float("inf")


async def test_sending_everything_only_ever_extends_the_prefix() -> None:
    turns = await turns_of(recorded(generate_session(60)), "full")

    assert all(one.is_extension for one in turns)
    assert [one.shared_tokens for one in turns[1:]] == [one.sent_tokens for one in turns[:-1]]


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("full", ["system", "user", "assistant", "tool", "assistant", "user"]),
        ("sliding", ["system", "assistant", "tool", "assistant", "user"]),
        ("pair-safe", ["system", "user"]),
        ("head-tail", ["system", "assistant", "tool", "assistant", "user"]),
        ("masking", ["system", "user", "assistant", "tool", "assistant", "user"]),
        ("hysteresis", ["system", "assistant", "tool", "assistant", "user"]),
    ],
)
async def test_a_baseline_sends_what_its_name_says(name: str, roles: list[str]) -> None:
    talk = [
        system_message("s"),
        user_message("w " * 300),
        tool_call_message("a"),
        tool_result_message("a", "r " * 20),
        assistant_message("b"),
        user_message("c"),
        assistant_message("d"),
    ]
    asked = ReplayRequest(talk[:-1], Replayer(recorded(talk), BASELINES[name](), 200, static=0).message_sizes(), 200)

    prepared = await BASELINES[name]().prepare(asked)

    assert [message["role"] for message in prepared.messages] == roles


async def test_a_sliding_window_breaks_its_prefix_and_the_default_seldom_does() -> None:
    recording = recorded(generate_session(300))

    sliding = await Replayer(recording, BASELINES["sliding"](), 12_000).play([PrefixStability(), RequestValidity()])
    floor = await Replayer(recording, BASELINES["floor"](), 12_000).play(
        [PrefixStability(), RequestValidity(), BudgetAdherence()]
    )
    default = await sound(recording, "default", 12_000)

    assert sliding["M5.hit_share"] < floor["M5.hit_share"] < default["M5.hit_share"]
    assert sliding["M8.invalid"] > 0
    assert (floor["M8.invalid"], floor["M9.over"]) == (0, 0)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("seconds", [None, 60.0])
async def test_every_preset_sends_only_what_is_valid_fits_and_can_be_made_again(name: str, seconds: float) -> None:
    figures = await sound(recorded(generate_session(240)), name, 8_000, seconds)

    assert (figures["M8.invalid"], figures["M8.elsewhere"], figures["M9.over"], figures["M14.differences"]) == (0,) * 4


def test_a_summary_by_a_model_is_priced_and_one_from_the_cache_less() -> None:
    fresh, held = turn(summaries=[SummaryCost(1_000)]), turn(summaries=[SummaryCost(100, cached_tokens=900)])

    assert fresh.cost(ANTHROPIC) - turn().cost(ANTHROPIC) == 1_000 + 1_000 * ANTHROPIC.output
    assert held.cost(ANTHROPIC) - turn().cost(ANTHROPIC) == pytest.approx(100 + 90 + 1_000 * ANTHROPIC.output)


def test_growth_compares_the_last_quarter_with_the_first() -> None:
    turns = [turn(sent_tokens=100, shared_tokens=0)] * 4 + [turn(sent_tokens=300, shared_tokens=0)] * 4

    assert cost_growth(turns, Prices(name="x", read=1, write=1, output=0)) == 3.0
    assert token_slope([turn(sent_tokens=100), turn(sent_tokens=150), turn(sent_tokens=200)]) == 50.0


async def test_stability_and_cost_are_sums_over_all_requests() -> None:
    talk = [user_message("a"), assistant_message("b"), user_message("c"), assistant_message("d")]
    player = Replayer(recorded(talk), BASELINES["full"](), 10**6, static=100)

    figures = await player.play([PrefixStability(), SimulatedCost([PROVIDER_PRICES["none"]])])

    first, second = player.turns
    assert figures["M5.hit_share"] == second.shared_tokens / (first.sent_tokens + second.sent_tokens)
    assert second.shared_tokens == first.sent_tokens
    assert figures["M6.none.total"] == first.sent_tokens + second.sent_tokens + 4 * (
        first.output_tokens + second.output_tokens
    )
    assert figures["turns"] == 2


def test_a_record_is_read_without_its_annotations() -> None:
    record = {
        "id": "s",
        "messages": [
            {"role": "user", "content": "x", "x_ts": "2026-01-01T00:00:00Z", "x_id": "D1"},
            {"role": "assistant", "content": "y", "x_ts": "2026-01-01T00:01:00Z", "x_usage": {"input": 5, "cost": {}}},
        ],
        "probes": [
            {"question": "What?", "answer": "x", "category": 1, "evidence": ["D1"]},
            {"question": "Who?", "answer": "y", "category": 1, "evidence": ["D9"]},
        ],
        "meta": {"compactions": [{"at_message": 1, "summary": "x was said"}, {"at_message": 2, "summary": "late"}, 7]},
    }

    recording = read_recording(json.loads(json.dumps(record)))

    assert recording.messages == [user_message("x"), assistant_message("y")]
    assert recording.times[1] is not None
    assert recording.times[0] is not None
    assert recording.times[1] - recording.times[0] == 60
    assert recording.usage == [None, {"input": 5}]
    assert [(probe.question, probe.evidence) for probe in recording.probes] == [("What?", (0,))]
    assert recording.compactions == (RecordedCompaction(1, "x was said"),)


def test_calls_without_an_id_stay_without_one_in_recordings_that_are_joined() -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    one = read_recording({"messages": messages})

    assert concatenate([one, one]).messages == [*messages, *messages]


async def test_conversations_are_joined_without_mixing_their_calls() -> None:
    one = recorded(generate_session(20))

    joined = concatenate([one, one])

    assert joined.messages[0]["role"] == "system"
    assert [message["role"] for message in joined.messages].count("system") == 1
    figures = await Replayer(joined, BASELINES["full"](), 10**6).play([RequestValidity()])
    assert figures["M8.invalid"] == 0


def test_the_simulator_says_how_far_it_is_from_the_bills_until_the_client_compacted() -> None:
    messages = [
        user_message("a"),
        assistant_message("b"),
        user_message("c"),
        assistant_message("d"),
        user_message("e"),
        assistant_message("f"),
    ]
    bills = [None, {"input": 6_600}, None, {"input": 100, "cacheRead": 6_500}, None, {"input": 10}]
    recording = recorded(messages, usage=bills)
    turns = [
        turn(sent_tokens=2_750, shared_tokens=0),
        turn(sent_tokens=2_750, shared_tokens=2_750),
        turn(sent_tokens=2_750),
    ]

    assert bill_deviation(recording, turns) == pytest.approx(
        {"bills.prompt_tokens": 1.0, "bills.hit_share": 0.75 - 6_500 / 13_200}
    )
    assert bill_deviation(recorded(messages), turns) is None
