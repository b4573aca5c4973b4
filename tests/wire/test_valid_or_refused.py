"""What providers reject is repaired, left out with a note, or refused with an error: never sent (R-9)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import EmptyConversationError, HoldfastError, Violation, convert, govern, validate
from holdfast.testing.chat import system_message, user_message
from holdfast.testing.strategies.every_format import HISTORIES_BY_FORMAT

CALL = {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
TARGETS = ["openai-chat", "openai-responses", "anthropic", "gemini", "mistral", "bedrock", "pydantic-ai"]


def test_an_empty_list_of_content_beside_calls_becomes_null() -> None:
    messages = [
        user_message("go"),
        {"role": "assistant", "content": [], "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": []},
        user_message("and?"),
    ]

    request = govern(messages, budget=1_000, model="gpt-5")

    assert validate(messages, "openai-chat") == [
        Violation("content", f"messages[{index}].content", "expected at least one part, got an empty list")
        for index in (1, 2)
    ]
    assert request.messages == [
        user_message("go"),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
        user_message("and?"),
    ]
    assert [repair.position for repair in request.receipt.repairs] == [1, 2]


def test_a_spoken_answer_is_sent_back_by_its_id_and_its_words_are_carried_to_other_providers() -> None:
    audio = {"id": "audio_1", "data": "QUFB" * 10_000, "transcript": "Hello there", "expires_at": 9}
    messages = [
        user_message("Say hello."),
        {"role": "assistant", "content": None, "audio": audio},
        user_message("And?"),
    ]

    request = govern(messages, budget=1_000, model="gpt-5")
    converted = convert(messages, source="openai-chat", target="anthropic-messages")

    sent = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert request.messages == [user_message("Say hello."), sent, user_message("And?")]
    assert [repair.position for repair in request.receipt.repairs] == [1]
    assert converted.messages[1] == {"role": "assistant", "content": "Hello there"}


@pytest.mark.parametrize(
    ("call", "output", "sent"),
    [
        (
            {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
            {"type": "function_call_output", "call_id": "c", "output": "done"},
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "x"},
            {"type": "function_call_output", "call_id": "c", "output": "done"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"},
            {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "file_id": "f"}},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": "[The result is of another kind than the call, and has no text.]",
            },
        ),
    ],
)
def test_an_output_of_another_kind_is_rewritten_as_its_call_needs_it(
    call: dict[str, Any], output: dict[str, Any], sent: dict[str, Any]
) -> None:
    request = govern([user_message("go"), call, output, user_message("?")], budget=2_000, format="openai-responses")

    assert request.messages == [user_message("go"), call, sent, user_message("?")]
    assert [str(repair.description) for repair in request.receipt.repairs] == [
        "rewrote a result that was of another kind than its call"
    ]
    assert validate(request.messages, "openai-responses") == []


def test_mistral_gets_a_notice_in_place_of_a_file() -> None:
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}
    message = {"role": "user", "content": [{"type": "text", "text": "read this"}, file]}

    converted = convert([message], source="openai-chat", target="mistral")

    assert validate([message], "mistral") == [
        Violation("part-type", "messages[0].content[1]", "'file' is not a type of content part")
    ]
    assert converted.messages == [user_message("read this\n[document not carried over]")]
    assert converted.notes == ("files were left out: the target accepts none in messages",)


@pytest.mark.parametrize("target", TARGETS)
def test_a_conversion_that_leaves_nothing_is_refused(target: str) -> None:
    only_thinking = [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}]

    with pytest.raises(EmptyConversationError, match="append a user message"):
        convert(only_thinking, source="anthropic", target=target)


@pytest.mark.parametrize("target", ["anthropic", "gemini", "bedrock", "pydantic-ai"])
def test_system_text_alone_is_refused_where_it_is_no_message(target: str) -> None:
    with pytest.raises(EmptyConversationError):
        convert([system_message("be")], source="openai-chat", target=target)


@pytest.mark.parametrize("source", HISTORIES_BY_FORMAT)
@given(data=st.data(), target=st.sampled_from(TARGETS))
def test_what_is_governed_and_converted_is_valid_or_there_is_a_typed_error(
    source: str, data: st.DataObject, target: str
) -> None:
    try:
        request = govern(data.draw(HISTORIES_BY_FORMAT[source]), budget=4_000, format=source, interrupted=True)
        converted = convert(request.messages, source=source, target=target)
    except HoldfastError:
        return

    tools = [{"name": "run"}]
    assert validate(request.messages, source) == []
    assert validate(converted.messages, target, system=converted.system, tools=tools) == []
