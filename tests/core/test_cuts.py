"""Where a history may be cut, rule by rule."""

import pytest

from holdfast.core.conversation.cuts import next_cut, prompt_start, turn_ranges, uncuttable_span
from holdfast.core.conversation.messages import (
    Entry,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    tool_result,
    user,
)
from tests.support import legal_cuts


def calls(*ids: str) -> Message:
    return assistant("", *(ToolCall(call_id, "run", "{}") for call_id in ids))


def test_no_cut_separates_parallel_tool_calls_from_their_results() -> None:
    conversation = [
        user("compare A and B"),
        calls("a", "b"),
        tool_result("a", "1"),
        tool_result("b", "2"),
        assistant("A"),
    ]

    assert legal_cuts(conversation) == [1, 4]


def test_a_history_is_not_cut_after_a_call_that_waits_for_its_result() -> None:
    assert legal_cuts([user("go"), calls("a")]) == [1]


def test_calls_in_neighbouring_messages_are_one_batch() -> None:
    conversation = [user("go"), calls("a"), calls("b"), tool_result("a", "1"), tool_result("b", "2"), user("next")]

    assert legal_cuts(conversation) == [1, 5]


def test_results_in_neighbouring_user_messages_are_one_batch() -> None:
    results = [Message("user", (ToolResult(call_id, (Text("1", "tool"),)),)) for call_id in ("a", "b")]

    assert legal_cuts([user("go"), calls("a", "b"), *results, assistant("done")]) == [1, 4]


def test_reasoning_stays_with_what_follows_it() -> None:
    reasoning = Message("assistant", (Thinking("hm", "sig"),))

    assert legal_cuts([user("go"), reasoning, calls("a"), tool_result("a", "1")]) == [1]
    assert legal_cuts([user("go"), reasoning, assistant("done")]) == [1]


def test_whole_turns_are_cut_only_before_a_prompt() -> None:
    conversation = [user("one"), calls("a"), tool_result("a", "1"), assistant("done"), user("two"), assistant("done")]

    assert turn_ranges([Entry(message) for message in conversation]) == [range(4), range(4, 6)]


def test_the_next_cut_moves_out_of_a_batch_and_the_unit_spans_it() -> None:
    conversation = [user("go"), calls("a", "b"), tool_result("a", "1"), tool_result("b", "2"), assistant("done")]

    assert [next_cut(conversation, index) for index in range(6)] == [0, 1, 4, 4, 4, 5]
    assert uncuttable_span(conversation, 2) == (1, 4)
    assert uncuttable_span(conversation, 0) == (0, 1)


@pytest.mark.parametrize(
    ("texts", "start"),
    [
        (["hello", "question"], 1),
        (["question", "<system-reminder>\nbe brief\n</system-reminder>"], 0),
        (["question", "<system-reminder>a</system-reminder>", "  <plan-mode>b</plan-mode>\n"], 0),
        (["<system-reminder>a</system-reminder>", "question"], 1),
        (["question", "<system-reminder>a</system-reminder> and more"], 1),
        (["question", "<note>a</other>"], 1),
        (["question", "< note>a</note>"], 1),
    ],
)
def test_a_prompt_begins_before_the_reminders_that_follow_it(texts: list[str], start: int) -> None:
    messages = [user("earlier"), assistant("answer"), *map(user, texts)]

    assert prompt_start(messages, len(messages) - 1) == 2 + start


def test_a_reminder_after_an_answer_is_a_prompt_of_its_own() -> None:
    messages = [user("question"), assistant("answer"), user("<system-reminder>be brief</system-reminder>")]

    assert prompt_start(messages, 2) == 2
