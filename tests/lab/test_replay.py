"""The instruments: what a replay measures, on sessions small enough to reckon by hand."""

import json
from typing import Any

import pytest

from holdfast import SettingsError
from holdfast.core.planning.cost import PRICES, Prices, break_even_turns, prices_named, request_cost
from holdfast.core.planning.presets import PRESETS
from holdfast.lab.baselines import POLICIES
from holdfast.lab.metrics import against_bills, growth, measured
from holdfast.lab.planned import Planned
from holdfast.lab.replay import Player, Session, Turn, concatenated, read_session
from holdfast.testing.chat import Json, answered, said
from holdfast.testing.sessions import generated_session

ANTHROPIC = PRICES["anthropic"]


def recorded(messages: list[Json], **marks: list[Any]) -> Session:
    times, usage = marks.get("times"), marks.get("usage")
    return Session("test", messages, times or [None] * len(messages), usage or [None] * len(messages))


def turn(**fields: Any) -> Turn:
    plain: dict[str, Any] = {
        "sent": 100, "shared": 80, "is_extension": True, "output": 10, "summarised": 0, "gap_seconds": 1.0,
        "is_invalid": False, "is_over": False, "is_different": False,
    }  # fmt: skip
    return Turn(**{**plain, **fields})


def test_a_request_costs_what_is_held_what_is_new_and_the_answer() -> None:
    assert request_cost(ANTHROPIC, held=80, fresh=20, output=10) == pytest.approx(80 * 0.1 + 20 * 1.25 + 10 * 5)


def test_a_cache_that_has_expired_holds_nothing() -> None:
    assert turn(gap_seconds=299).held(ANTHROPIC) == 80
    assert turn(gap_seconds=301).held(ANTHROPIC) == 0
    assert turn(gap_seconds=301).held(PRICES["deepseek"]) == 80


@pytest.mark.parametrize(
    ("after", "read", "turns"), [(10_000, 0.1, 3.2), (10_000, 1.25, 16.0), (20_000, 0.1, 5.1), (50_000, 0.1, 14.5)]
)
def test_a_deep_fold_pays_after_few_turns_and_a_shallow_one_after_many(after: int, read: float, turns: float) -> None:
    found = break_even_turns(ANTHROPIC, before=100_000, after=after, summary_input=read, summary_output=1_000)

    assert found == pytest.approx(turns, rel=0.15)


def test_a_fold_that_saves_nothing_never_pays() -> None:
    assert break_even_turns(ANTHROPIC, before=100, after=100) == float("inf")
    assert break_even_turns(Prices(name="free", read=0, write=1, output=1), before=100, after=10) == float("inf")


def test_an_unknown_price_model_is_named_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="'acme' is not known; choose one of: anthropic, gpt-5"):
        prices_named("acme")


def test_sending_everything_only_ever_extends_the_prefix() -> None:
    turns = list(Player(recorded(generated_session(60)), POLICIES["full"](), 10**6, static=0).turns())

    assert all(one.is_extension for one in turns)
    assert [one.shared for one in turns[1:]] == [one.sent for one in turns[:-1]]
    assert measured(turns)["M5.breaks_per_100"] == 0


def test_a_sliding_window_breaks_its_prefix_and_the_default_seldom_does() -> None:
    session = recorded(generated_session(500))

    policies = {"sliding": POLICIES["sliding"](), "floor": POLICIES["floor"](), "default": Planned(PRESETS["default"])}
    figures = {name: measured(list(Player(session, policy, 12_000).turns())) for name, policy in policies.items()}

    assert figures["sliding"]["M5.hit_share"] < figures["floor"]["M5.hit_share"] < figures["default"]["M5.hit_share"]
    assert figures["sliding"]["M8.invalid"] > 0
    for name in ("floor", "default"):
        assert (figures[name]["M8.invalid"], figures[name]["M9.over"], figures[name]["M14.differences"]) == (0, 0, 0)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("has_summariser", [False, True])
def test_every_preset_sends_only_what_is_valid_fits_and_can_be_made_again(name: str, has_summariser: bool) -> None:  # noqa: FBT001
    policy = Planned(PRESETS[name], has_summariser=has_summariser)

    figures = measured(list(Player(recorded(generated_session(400)), policy, 12_000).turns()))

    assert (figures["M8.invalid"], figures["M9.over"], figures["M14.differences"]) == (0, 0, 0)


def test_a_summary_by_a_model_is_priced() -> None:
    assert turn(summarised=1_000).cost(ANTHROPIC) - turn().cost(ANTHROPIC) == 1_000 + 1_000 * ANTHROPIC.output


def test_growth_compares_the_last_quarter_with_the_first() -> None:
    turns = [turn(sent=100, shared=0)] * 4 + [turn(sent=300, shared=0)] * 4

    assert growth(turns, Prices(name="x", read=1, write=1, output=0)) == 3.0


def test_a_record_is_read_without_its_annotations() -> None:
    record = {
        "id": "s",
        "messages": [
            {"role": "user", "content": "x", "x_ts": "2026-01-01T00:00:00Z"},
            {"role": "assistant", "content": "y", "x_ts": "2026-01-01T00:01:00Z", "x_usage": {"input": 5, "cost": {}}},
        ],
    }

    session = read_session(json.loads(json.dumps(record)))

    assert session.messages == [said("x"), answered("y")]
    assert session.times[1] is not None
    assert session.times[0] is not None
    assert session.times[1] - session.times[0] == 60
    assert session.usage == [None, {"input": 5}]


def test_sessions_are_joined_without_mixing_their_calls() -> None:
    one = recorded(generated_session(20))

    joined = concatenated([one, one])

    assert joined.messages[0]["role"] == "system"
    assert [message["role"] for message in joined.messages].count("system") == 1
    turns = list(Player(joined, POLICIES["full"](), 10**6).turns())
    assert not any(one.is_invalid for one in turns)


def test_the_simulator_says_how_far_it_is_from_the_bills_until_the_client_compacted() -> None:
    messages = [said("a"), answered("b"), said("c"), answered("d"), said("e"), answered("f")]
    bills = [None, {"input": 6_600}, None, {"input": 100, "cacheRead": 6_500}, None, {"input": 10}]
    session = recorded(messages, usage=bills)
    turns = [turn(sent=2_750, shared=0), turn(sent=2_750, shared=2_750), turn(sent=2_750)]

    assert against_bills(session, turns) == pytest.approx({"prompt_tokens": 1.0, "hit_share": 0.75 - 6_500 / 13_200})
    assert against_bills(recorded(messages), turns) is None
