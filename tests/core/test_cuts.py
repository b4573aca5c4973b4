"""Where a history may be cut, rule by rule."""

from holdfast.core.conversation.cuts import (
    CALL_AND_RESULT,
    PARALLEL_BATCH,
    REASONING_WITH_CALL,
    SAME_TURN,
    WHOLE_TURN_RULES,
    cut_points,
    next_cut,
    uncuttable_span,
)
from holdfast.core.conversation.messages import (
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    tool_result,
    user,
)


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

    assert cut_points(conversation) == [0, 1, 4, 5]


def test_a_history_is_not_cut_behind_a_call_that_waits_for_its_result() -> None:
    assert cut_points([user("go"), calls("a")]) == [0, 1]


def test_calls_in_neighbouring_messages_are_one_batch() -> None:
    conversation = [user("go"), calls("a"), calls("b"), tool_result("a", "1"), tool_result("b", "2"), user("next")]

    assert cut_points(conversation) == [0, 1, 5, 6]


def test_results_in_neighbouring_user_messages_are_one_batch() -> None:
    results = [Message("user", (ToolResult(call_id, (Text("1", "tool"),)),)) for call_id in ("a", "b")]

    assert cut_points([user("go"), calls("a", "b"), *results, assistant("done")]) == [0, 1, 4, 5]


def test_reasoning_stays_with_what_follows_it() -> None:
    reasoning = Message("assistant", (Thinking("hm", "sig"),))

    assert cut_points([user("go"), reasoning, calls("a"), tool_result("a", "1")]) == [0, 1, 4]
    assert cut_points([user("go"), reasoning]) == [0, 1]


def test_whole_turns_are_cut_only_before_a_prompt() -> None:
    conversation = [user("one"), calls("a"), tool_result("a", "1"), assistant("done"), user("two"), assistant("done")]

    assert cut_points(conversation, WHOLE_TURN_RULES) == [0, 4, 6]


def test_the_next_cut_moves_out_of_a_batch_and_the_unit_spans_it() -> None:
    conversation = [user("go"), calls("a", "b"), tool_result("a", "1"), tool_result("b", "2"), assistant("done")]

    assert [next_cut(conversation, index) for index in range(6)] == [0, 1, 4, 4, 4, 5]
    assert uncuttable_span(conversation, 2) == (1, 4)
    assert uncuttable_span(conversation, 0) == (0, 1)


def test_each_rule_has_a_name() -> None:
    names = [rule.name for rule in (CALL_AND_RESULT, PARALLEL_BATCH, REASONING_WITH_CALL, SAME_TURN)]

    assert names == ["call and result", "parallel batch", "reasoning with its call", "turn"]
