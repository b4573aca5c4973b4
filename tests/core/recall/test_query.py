"""A question to the past, as people, programs and models ask it: read loosely, refused with what to say instead."""

from typing import Any

import pytest

from holdfast.core.recall.query import RecallQuery
from holdfast.core.recall.ranking import is_by_named_speaker, search_words, split_questions
from holdfast.core.recall.references import MessageReference, TextSpan, parse_references, parse_span
from holdfast.errors import MalformedInputError


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda: RecallQuery.from_text("  "), "recall: say what to look for"),
        (lambda: RecallQuery.from_arguments(["#12"]), r"recall: the arguments must be an object, not \['#12'\]"),
        (lambda: RecallQuery(text=7), "recall.text: must be a text, not 7"),  # pyright: ignore[reportArgumentType]
        (lambda: parse_references(" , "), "recall.ref: ' , ' is no reference; give one such as #12"),
        (lambda: parse_references(" ".join(f"#{n}" for n in range(201))), "recall.ref: 201 references are too many"),
        (lambda: parse_span("recall.lines", "first", is_lines=True), "recall.lines: 'first' is no range"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_to_say_instead(ask: Any, problem: str) -> None:
    with pytest.raises(MalformedInputError, match=problem):
        ask()


def test_a_model_may_write_numbers_as_it_likes() -> None:
    asked = RecallQuery.from_arguments({"ref": [3, "#5"], "last": " #4", "skip": 2.0, "max_tokens": "1"})

    assert (asked.refs, asked.last, asked.skip, asked.max_tokens) == ("#3, #5", 4, 2, 100)


def test_only_a_models_question_puts_what_it_can_see_last() -> None:
    asked = RecallQuery.from_arguments({"query": "tide"})

    assert asked == RecallQuery(query="tide", is_unseen_first=True)
    assert RecallQuery(query="tide").is_unseen_first is False


def test_one_line_or_character_is_a_range_of_one() -> None:
    assert parse_span("recall.lines", "40", is_lines=True) == TextSpan(40, 40, is_lines=True)
    assert parse_span("recall.chars", "40", is_lines=False) == TextSpan(40, 41, is_lines=False)


def test_two_hundred_references_are_not_too_many() -> None:
    assert len(parse_references(" ".join(f"#{number}" for number in range(200)))) == 200


def test_a_reference_by_the_id_of_a_call_is_written_as_that_id() -> None:
    assert [str(place) for place in parse_references("call_abc, #3, 12, #4-#6")] == ["call_abc", "#3", "#12", "#4-#6"]
    assert str(MessageReference(3, 3, 2, TextSpan(10, 20))) == "#3.2:10-20"


def test_something_that_was_pasted_is_one_question_and_a_few_are_asked_apart() -> None:
    assert split_questions("Who sailed? When did she land?") == [
        "Who sailed When did she land", "Who sailed", "When did she land",
    ]  # fmt: skip
    assert split_questions("one? two? three? four? five?") == ["one two three four five"]


def test_a_list_of_very_many_questions_is_one_question_as_pasted_text_is() -> None:
    few = [f"tide {number}" for number in range(20)]

    assert RecallQuery.from_arguments({"query": few}).questions == tuple(few)
    assert RecallQuery.from_arguments({"query": [*few, "harbor"]}).questions == (" ".join([*few, "harbor"]),)
    with pytest.raises(MalformedInputError, match=r"^recall.query: must have at most 10,000 characters$"):
        RecallQuery.from_arguments({"query": ["tide"] * 50_000})


def test_of_many_words_names_and_long_ones_are_looked_for_in_their_order() -> None:
    words = [f"w{'o' * number}rd" for number in range(1, 19)]

    assert search_words(f"{words[0]} BRG_40 {' '.join(words[1:])}") == " ".join(["BRG_40", *words[3:]])


def test_a_text_is_by_whoever_a_question_names() -> None:
    assert is_by_named_speaker("Mara: the tide turned", ["What did Mara's crew see?"])
    assert not is_by_named_speaker("Mara: the tide turned", ["What did Jonas see?"])
    assert not is_by_named_speaker("the tide turned", ["What did Mara see?"])
