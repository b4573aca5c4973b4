"""Counts say where they came from, and learn from what providers report."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest

from holdfast import Budget, Calibration, SettingsError, TokenCount, govern
from holdfast.core.conversation.messages import Message, Text
from holdfast.core.conversation.tokens import Provenance, message_tokens, tokens_of_messages, utf8_length
from holdfast.core.planning.situation import Situation
from holdfast.counters.vocabularies import EstimatingCounter, counter_for
from holdfast.testing.chat import assistant_message, system_message, user_message
from holdfast.wire.formats import format_named

MESSAGES = [
    system_message("Be brief."),
    user_message("one two three"),
    assistant_message("four five"),
    user_message("six"),
]


def test_a_count_is_broken_down_and_says_where_it_came_from() -> None:
    tools = [{"type": "function", "function": {"name": "run"}}]

    tokens = govern(MESSAGES, budget=1_000, model="gpt-5", tools=tools).tokens

    assert tokens == TokenCount(45, "counted", system=7, tools=17, conversation=21, counter="o200k_base", counted=45)
    assert tokens.total == tokens.system + tokens.tools + tokens.conversation + tokens.media
    assert str(tokens) == "45 tokens (counted)"


def test_media_make_a_count_an_estimate() -> None:
    image = {"type": "image_url", "image_url": {"url": "u"}}

    tokens = govern([{"role": "user", "content": [image]}], budget=9_000, model="gpt-5").tokens

    assert (tokens.media, tokens.provenance) == (1_600, "estimated")


def test_a_text_that_two_messages_share_is_counted_once_by_each_counter() -> None:
    class Noting(EstimatingCounter):
        def count(self, text: str) -> int:
            counted.append(text)
            return super().count(text)

    counted: list[str] = []
    text = Text("shared", "user")
    counters = Noting(), Noting()

    counts = [message_tokens(Message("user", (text,)), counter) for counter in counters * 2]

    assert counted == ["shared"] * 2
    assert len({*counts}) == 1


def test_messages_with_the_same_count_share_it_in_memory_and_another_counter_has_its_own() -> None:
    counter, other = EstimatingCounter(), EstimatingCounter()
    one, two, three = (Message("user", (Text(text, "user"),)) for text in ("abcd", "efgh", "ijkl"))

    counts = message_tokens(one, counter), message_tokens(two, counter), message_tokens(three, other)

    assert counts == (counts[0],) * 3
    assert one.counts is two.counts
    assert (one.counts[0], three.counts[0]) == (counter, other)


@pytest.mark.parametrize(("text", "size"), [("", 0), ("plain", 5), ("é", 2), ("€", 3), ("a😀", 5), ("\ud83d", 3)])
def test_the_size_of_a_text_is_that_of_its_bytes(text: str, size: int) -> None:
    assert utf8_length(text) == size


def test_a_providers_own_total_takes_the_place_of_ours() -> None:
    tokens = govern(MESSAGES, budget=1_000, model="gpt-5").tokens

    reported = tokens.as_reported(812)

    assert (reported.total, reported.provenance) == (812, "reported")


def test_calibration_moves_in_steps_and_upwards_first() -> None:
    start = Calibration()

    first = start.learn(counted=1_000, reported=1_183)
    second = first.learn(counted=1_000, reported=1_190)
    third = second.learn(counted=1_000, reported=1_021)

    assert first == Calibration(1.2, 1)
    assert second == Calibration(1.2, 2)
    assert third == Calibration(1.05, 3)


@pytest.mark.parametrize("report", [None, "812", True])
def test_a_report_that_is_no_number_is_named(report: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        Calibration().learn(counted=1_000, reported=report)

    assert str(refused.value) == f"calibration.reported: must be a number of tokens, not {report!r}"


def test_a_calibration_measures_how_far_off_it_is() -> None:
    reports = (1_183, 1_190, 1_188, 1_194, 1_152, 1_200, 1_200)

    learned = list(
        accumulate(reports, lambda known, one: known.learn(counted=1_000, reported=one), initial=Calibration())
    )

    assert [one.spread for one in learned] == [None, 0.0142, 0.0128, 0.0115, 0.0103, 0.04, 0.036, 0.0324]
    assert [one.error for one in learned] == [0.05, 0.05, 0.05, 0.0115, 0.0103, 0.04, 0.036, 0.0324]
    assert Calibration(1.2, 9).error == Calibration.STEP, "what was learned before anybody measured it"


def test_a_report_that_is_far_off_shows_in_the_error_and_fades() -> None:
    settled = Calibration(1.0, 9, 0.01)

    far = settled.learn(counted=1_000, reported=1_500)
    later = far
    for _ in range(40):
        later = later.learn(counted=1_000, reported=1_150)

    assert (far, far.spread) == (Calibration(1.15, 10), 0.5)
    assert later.error < 0.01


@pytest.mark.parametrize(
    ("model", "calibration", "error", "shown"),
    [
        ("gpt-5", Calibration(), 0.06, "21 ± 6 %"),
        ("claude-sonnet-4-5", Calibration(), 0.15, "24 ± 15 %"),
        ("claude-sonnet-4-5", Calibration(1.0, 8, 0.021), 0.021, "24 ± 3 %"),
        ("gpt-5", Calibration(1.0, 1, 0.001), 0.05, "21 ± 5 %"),
    ],
)
def test_a_count_knows_how_far_off_it_may_be(model: str, calibration: Calibration, error: float, shown: str) -> None:
    tokens = govern(MESSAGES[1:], budget=1_000, model=model, calibration=calibration).tokens

    assert (tokens.error, tokens.display) == (error, shown)
    reported = tokens.as_reported(41_200)
    assert (reported.error, reported.display) == (0.0, "41,200")


def test_nobody_says_how_far_off_a_guess_is() -> None:
    situation = Situation(budget=Budget(10_000), counter=counter_for("gpt-5"))

    guess = situation.billed_count(system=0, conversation=41_200, is_counted=False)

    assert (guess.provenance, guess.error, guess.display) == ("estimated", None, "about 41,200")


@pytest.mark.parametrize(
    ("provenance", "reported", "factor"),
    [
        ("estimated", 260, 0.75),
        ("estimated", 900, 0.9),
        ("estimated", 3_900, 2.0),
        ("counted", 260, 0.95),
        ("counted", 1_020, 1.05),
        ("counted", 3_900, 1.1),
    ],
)
def test_a_report_moves_the_factor_only_as_far_as_vocabularies_differ(
    provenance: Provenance, reported: int, factor: float
) -> None:
    calibration = Calibration()
    for _ in range(9):
        calibration = calibration.learn(counted=1_000, reported=reported, provenance=provenance)

    assert calibration.factor == factor
    assert calibration.error >= abs(reported / 1_000 / factor - 1) - 0.001, "what it cannot follow is in its error"


@pytest.mark.parametrize(("counted", "reported"), [(0, 5), (5, 0), (10, 1_000), (1_000, 10), (-1, 5)])
def test_reports_that_make_no_sense_are_ignored(counted: int, reported: int) -> None:
    assert Calibration().learn(counted=counted, reported=reported) == Calibration()


def test_a_calibrated_count_is_the_providers_and_so_is_its_budget() -> None:
    plain = govern(MESSAGES, budget=1_000, model="gpt-5")
    calibrated = govern(MESSAGES, budget=1_000, model="gpt-5", calibration=Calibration(1.5, 3))

    assert calibrated.tokens.provenance == "calibrated"
    assert plain.tokens.total * 1.5 <= calibrated.tokens.total <= plain.tokens.total * 1.5 + 3


@pytest.mark.parametrize(
    ("model", "calibration", "usable"),
    [
        ("gpt-5", Calibration(), 10_000),
        ("unknown-model", Calibration(), 8_500),
        ("claude-sonnet-4-5", Calibration(), 8_500),
        ("claude-sonnet-4-5", Calibration(1.0, 4), 9_500),
        ("gpt-5", Calibration(1.25, 4), 7_600),
        ("gpt-5", Calibration(0.95, 4), 10_000),
        ("gpt-5", Calibration(0.75, 4), 10_000),
        ("claude-sonnet-4-5", Calibration(0.75, 4), 12_666),
    ],
)
def test_the_margin_depends_on_how_the_count_is_known(model: str, calibration: Calibration, usable: int) -> None:
    situation = Situation(budget=Budget(10_000), counter=counter_for(model), calibration=calibration)

    assert situation.usable_tokens == usable


@pytest.mark.parametrize(
    ("said_by", "expected"),
    [
        ({"user": 5_000, "provider_window": 8_000, "table_window": 9_000}, Budget(5_000, source="user")),
        ({"user": Budget(7_000, turns=3)}, Budget(7_000, turns=3)),
        ({"provider_window": 8_000, "table_window": 9_000, "max_output": 1_000}, Budget(7_000, source="provider")),
        ({"table_window": 200_000, "max_output": 64_000}, Budget(150_000, source="table")),
        ({"table_window": 200_000, "max_output": 8_000}, Budget(192_000, source="table")),
        ({}, Budget(96_000, source="default")),
    ],
)
def test_a_budget_comes_from_the_first_who_has_a_word_to_say(said_by: dict[str, Any], expected: Budget) -> None:
    assert Budget.resolve(**said_by) == expected


def test_a_silly_window_is_refused() -> None:
    with pytest.raises(SettingsError, match="provider_window: must be at least 1, not -1"):
        Budget.resolve(provider_window=-1)


def test_any_counter_can_be_given() -> None:
    request = govern(MESSAGES, budget=1_000, counter=EstimatingCounter())

    assert (request.tokens.counter, request.tokens.provenance) == ("estimate", "estimated")


class CountsTexts:
    """Counts words, of many texts at once, and notes the texts of each call."""

    name = "words"
    provenance: Provenance = "counted"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def count(self, text: str) -> int:
        return len(text.split())

    def count_texts(self, texts: Sequence[str]) -> list[int]:
        self.calls.append([*texts])
        return [self.count(text) for text in texts]


def test_messages_of_one_text_are_counted_together_and_once() -> None:
    def decoded() -> list[Message]:
        call = {"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}}
        reader = format_named("openai-chat")
        return [
            reader.decode(message, 0)
            for message in (*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}, user_message(" "))
        ]

    counter, messages = CountsTexts(), decoded()

    assert tokens_of_messages(messages, counter) == ([6, 7, 6, 5, 15, 4], [0] * 6)
    assert [message_tokens(one, counter) for one in decoded()] == [(words, 0) for words in (6, 7, 6, 5, 15, 4)]
    assert tokens_of_messages(messages[:2], counter) == ([6, 7], [0, 0])
    assert [len(texts) for texts in counter.calls] == [4]


def test_a_first_request_counts_its_messages_in_a_few_calls() -> None:
    counter = CountsTexts()
    history = [user_message(f"question {number} about the log") for number in range(2_000)]

    govern(history, budget=9_000, counter=counter)

    counted = [text for texts in counter.calls for text in texts if text.startswith("question")]
    assert sorted(counted) == sorted(str(message["content"]) for message in history[-1_000:])  # as many as have room
    assert len(counter.calls) < 50
