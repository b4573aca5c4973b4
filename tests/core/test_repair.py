"""Each defect of a history, and how it is repaired."""

from typing import Any

import pytest

from holdfast.core.conversation.batching import RESULTS_IN_ONE_MESSAGE
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.repair import RepairedEntries, repair_entries
from holdfast.testing.chat import (
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.wire.formats import format_named

CHAT, ANTHROPIC = format_named("openai-chat"), format_named("anthropic-messages")
OPENING = user_message("[The conversation before this point is not available.]")
CLOSING = user_message("[No new message from the user.]")


def mended(*messages: Any, **how: Any) -> RepairedEntries:
    return repair_entries([Entry(CHAT.decode(native, index), index) for index, native in enumerate(messages)], **how)


def sent(result: RepairedEntries) -> list[Any]:
    return [CHAT.encode(entry.message) for entry in result.entries]


def what(result: RepairedEntries) -> list[tuple[int | None, str]]:
    return [(repair.position, repair.description) for repair in result.repairs]


def test_a_call_that_was_interrupted_gets_a_result_that_says_so() -> None:
    result = mended(user_message("go"), tool_call_message("a", "b"), tool_result_message("a"), user_message("stop"))

    assert sent(result) == [
        user_message("go"),
        tool_call_message("a", "b"),
        tool_result_message("a"),
        {"role": "tool", "tool_call_id": "b", "content": "Interrupted by user."},
        user_message("stop"),
    ]
    assert what(result) == [(1, "made up a result for call 'b'")]


def test_a_call_the_assistant_went_on_from_gets_a_result_that_says_nothing_was_recorded() -> None:
    result = mended(user_message("go"), tool_call_message("a"), assistant_message("well"), user_message("and?"))

    assert sent(result)[2] == {"role": "tool", "tool_call_id": "a", "content": "No result was recorded for this call."}


def test_a_call_that_may_still_be_running_is_left_alone() -> None:
    result = mended(user_message("go"), tool_call_message("a", "b"), tool_result_message("a"))

    assert sent(result) == [user_message("go"), tool_call_message("a", "b"), tool_result_message("a")]
    assert result.pending == ("b",)


def test_the_callers_word_that_the_turn_was_interrupted_settles_it() -> None:
    result = mended(user_message("go"), tool_call_message("a"), is_interrupted=True)

    assert sent(result)[2] == {"role": "tool", "tool_call_id": "a", "content": "Interrupted by user."}
    assert result.pending == ()


def test_a_late_result_takes_its_place() -> None:
    result = mended(user_message("go"), tool_call_message("a"), user_message("wait"), tool_result_message("a", "late"))

    assert sent(result) == [
        user_message("go"),
        tool_call_message("a"),
        tool_result_message("a", "late"),
        user_message("wait"),
    ]
    assert what(result) == [(1, "moved the late result of 'a' to its call")]


def test_an_orphaned_and_a_duplicate_result_are_removed() -> None:
    result = mended(
        user_message("go"),
        tool_result_message("x"),
        tool_call_message("a"),
        tool_result_message("a", "1"),
        tool_result_message("a", "2"),
    )

    assert sent(result) == [user_message("go"), tool_call_message("a"), tool_result_message("a", "1")]
    assert what(result) == [
        (1, "removed a result for 'x' that answers no open call"),
        (4, "removed a result for 'a' that answers no open call"),
    ]


def test_a_result_belongs_to_the_nearest_call_before_it() -> None:
    result = mended(
        user_message("go"),
        tool_call_message("a"),
        user_message("again"),
        tool_call_message("a"),
        tool_result_message("a", "second"),
    )

    assert [message.get("content") for message in sent(result)] == [
        "go",
        None,
        "Interrupted by user.",
        "again",
        None,
        "second",
    ]


def test_a_repeated_id_is_replaced_on_both_sides_by_one_that_depends_on_its_position() -> None:
    result = mended(
        user_message("go"),
        tool_call_message("a"),
        tool_result_message("a", "1"),
        tool_call_message("a"),
        tool_result_message("a", "2"),
    )

    assert sent(result)[3]["tool_calls"][0]["id"] == "a_3_0"
    assert sent(result)[4] == tool_result_message("a_3_0", "2")
    assert what(result) == [
        (3, "renamed a repeated, empty or unusable call id to 'a_3_0'"),
        (4, "renamed its call id accordingly"),
    ]


def test_an_empty_id_becomes_a_real_one() -> None:
    result = mended(user_message("go"), tool_call_message(""), tool_result_message("", "1"))

    assert sent(result)[1]["tool_calls"][0]["id"] == "call_1_0"
    assert sent(result)[2] == tool_result_message("call_1_0", "1")


def test_two_calls_of_one_message_with_one_id_get_a_result_each() -> None:
    result = mended(
        user_message("go"), tool_call_message("a", "a"), tool_result_message("a", "1"), tool_result_message("a", "2")
    )

    assert [message.get("tool_call_id") for message in sent(result)[2:]] == ["a", "a_1_1"]
    assert [message["content"] for message in sent(result)[2:]] == ["1", "2"]


@pytest.mark.parametrize(
    "empty",
    [
        assistant_message(""),
        assistant_message(" \n"),
        {"role": "assistant", "content": None},
        user_message(""),
        system_message(""),
    ],
)
def test_an_empty_turn_is_removed(empty: Any) -> None:
    result = mended(user_message("go"), assistant_message("ok"), empty, user_message("next"))

    assert sent(result) == [user_message("go"), assistant_message("ok"), user_message("next")]
    assert what(result) == [(2, f"removed an empty {empty['role']} turn")]


def test_reasoning_that_led_to_nothing_is_removed() -> None:
    result = mended(
        user_message("go"), {"role": "assistant", "content": "", "reasoning_content": "hm"}, user_message("next")
    )

    assert sent(result) == [user_message("go"), user_message("next")]
    assert what(result) == [(1, "removed a turn that holds only reasoning")]


def test_a_conversation_begins_with_a_user_and_ends_with_one() -> None:
    result = mended(system_message("be"), assistant_message("hello"))

    assert sent(result) == [system_message("be"), OPENING, assistant_message("hello"), CLOSING]


def test_a_system_message_at_the_end_is_no_last_word() -> None:
    result = mended(user_message("go"), system_message("be brief"))

    assert sent(result) == [user_message("go"), system_message("be brief")]
    assert result.repairs == []


def test_messages_that_were_fine_stay_the_same_objects() -> None:
    messages = [
        user_message("go"),
        tool_call_message("a"),
        user_message("stop"),
        tool_call_message("b"),
        tool_result_message("b"),
    ]
    result = mended(*messages)

    kept = [entry for entry in result.entries if entry.position is not None]
    assert [CHAT.encode(entry.message) for entry in kept] == messages
    assert all(CHAT.encode(entry.message) is messages[entry.position or 0] for entry in kept)


def anthropic(*messages: Any) -> list[Any]:
    entries = [Entry(ANTHROPIC.decode(native, index), index) for index, native in enumerate(messages)]
    return [
        ANTHROPIC.encode(entry.message) for entry in repair_entries(entries, batching=RESULTS_IN_ONE_MESSAGE).entries
    ]


USE = {"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": "run", "input": {}} for name in "ab"]}
TEXT = {"type": "text", "text": "and now this", "cache_control": {"type": "ephemeral"}}


def result_block(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": call_id}]}


def test_results_of_one_batch_gather_in_one_message_before_anything_else() -> None:
    go = {"role": "user", "content": "go"}
    scattered = [
        {"role": "user", "content": [TEXT, result_block("a")]},
        {"role": "user", "content": [result_block("b")]},
    ]

    assert anthropic(go, USE, *scattered) == [
        go,
        USE,
        {"role": "user", "content": [result_block("a"), result_block("b"), TEXT]},
    ]


def test_a_missing_result_joins_those_that_are_there() -> None:
    go = {"role": "user", "content": "go"}
    made_up = {"type": "tool_result", "tool_use_id": "b", "content": "Interrupted by user.", "is_error": True}

    assert anthropic(go, USE, {"role": "user", "content": [result_block("a"), TEXT]}) == [
        go,
        USE,
        {"role": "user", "content": [result_block("a"), made_up, TEXT]},
    ]


def test_an_empty_text_block_is_removed_and_its_neighbours_stay_as_they_are() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": ""}, TEXT]}

    (only,) = anthropic(message)
    assert only == {"role": "user", "content": [TEXT]}
    assert only["content"][0] is TEXT


def test_a_result_without_an_id_answers_the_call_before_it() -> None:
    bare = {"role": "tool", "content": "done"}

    result = mended(user_message("go"), tool_call_message("a", "b"), tool_result_message("b"), bare, user_message("?"))

    assert sent(result)[2:4] == [tool_result_message("b"), {**bare, "tool_call_id": "a"}]
    assert what(result) == [(3, "gave a result without an id the id 'a'")]


def test_a_result_without_an_id_answers_no_call_further_back() -> None:
    bare = {"role": "tool", "content": "done"}

    result = mended(user_message("go"), tool_call_message("a"), user_message("wait"), bare, user_message("?"))

    assert what(result) == [
        (1, "made up a result for call 'a'"),
        (3, "removed a result for '' that answers no open call"),
    ]
