"""The endpoint that agents run against: what it answers, what it refuses, and what it counts."""

import json
from typing import Any

import pytest

from benchmarks.loop import (
    ANSWER,
    MODEL,
    PROMPT,
    SUMMARIZER_MODEL,
    Script,
    Tally,
    count_orphans,
    log_parts,
    render_table,
    run_figures,
)
from holdfast import counter_for
from holdfast.testing.chat import JsonMessage, tool_call_message, tool_result_message, user_message
from holdfast.testing.endpoint import ReceivedRequest


def sent(*messages: JsonMessage, model: str = MODEL) -> ReceivedRequest:
    return ReceivedRequest("POST /v1/0/chat/completions HTTP/1.1", {}, {"model": model, "messages": list(messages)})


def answer_of(pieces: list[Any]) -> dict[str, Any]:
    return json.loads(pieces[1])


def test_the_script_calls_the_tool_for_each_step_and_then_answers() -> None:
    script = Script(steps=1)

    first, second = (answer_of(script.reply(sent(user_message(PROMPT))))["choices"][0]["message"] for _ in range(2))

    assert (first["content"], first["tool_calls"][0]["function"]["arguments"]) == (None, '{"number": 1}')
    assert second == {"role": "assistant", "content": ANSWER}


def test_what_is_larger_than_the_window_is_refused_as_openai_does_and_counted() -> None:
    script = Script(window=10)

    refusal = answer_of(script.reply(sent(user_message(PROMPT))))

    assert refusal["error"]["code"] == "context_length_exceeded"
    tally = script.tallies["0"]
    assert (tally.requests, tally.answered, tally.over, tally.has_task) == (1, 0, 1, True)


def test_a_summary_is_counted_apart_and_refused_when_it_does_not_fit() -> None:
    script = Script(window=20)

    script.reply(sent(user_message("Sum up."), model=SUMMARIZER_MODEL))
    script.reply(sent(user_message("Sum up. " * 20), model=SUMMARIZER_MODEL))

    tally = script.tallies["0"]
    assert (tally.requests, tally.summaries, tally.refused_summaries) == (0, 2, 1)


@pytest.mark.parametrize(
    ("messages", "broken"),
    [
        ([user_message("a"), tool_call_message("x", "y"), tool_result_message("x"), tool_result_message("y")], 0),
        ([tool_call_message("x", "y"), tool_result_message("x"), user_message("b")], 1),
        ([user_message("a"), tool_result_message("x")], 1),
        ([tool_call_message("x"), user_message("b"), tool_result_message("x")], 2),
        ([tool_call_message("x")], 1),
    ],
)
def test_a_result_belongs_right_after_its_call(messages: list[JsonMessage], broken: int) -> None:
    assert count_orphans(messages) == broken


def test_parts_of_the_log_have_about_the_tokens_they_should_have() -> None:
    parts = log_parts(3, tokens=500)

    assert all(480 <= counter_for(MODEL).count(part) <= 560 for part in parts)


def test_a_run_that_did_not_end_has_its_reason_under_the_table_and_no_ratio() -> None:
    tally = Tally(requests=4, answered=3, over=1, tokens=900, with_task=2)

    written = render_table(
        [run_figures({"name": "window", "failed": "BadRequestError: too long"}, tally)]
    ).splitlines()[2:]

    assert written == [
        "| window | **no** | 3 | 1 | 0 | **no** | 50% | 900 | 0 | – | – |",
        "",
        "- window ended with: BadRequestError: too long",
    ]
