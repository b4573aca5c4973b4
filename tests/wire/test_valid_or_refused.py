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


@pytest.mark.parametrize("field", [{"refusal": "No."}, {"audio": {"id": "audio_1"}}])
def test_an_empty_list_of_content_beside_a_refusal_or_a_spoken_answer_becomes_null(field: dict[str, Any]) -> None:
    messages = [user_message("go"), {"role": "assistant", "content": [], **field}, user_message("and?")]

    request = govern(messages, budget=1_000, model="gpt-5")

    assert validate(messages, "openai-chat") == [
        Violation("content", "messages[1].content", "expected at least one part, got an empty list")
    ]
    assert request.messages == [
        user_message("go"),
        {"role": "assistant", "content": None, **field},
        user_message("and?"),
    ]


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


MARK = {"cache_control": {"type": "ephemeral"}}
PICTURE = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
USE = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
SEEN = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "Failed:"}, PICTURE]}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
SAID = {"type": "text", "text": "Yes."}
UNTYPED = {name: value for name, value in CALL.items() if name != "type"}
SHOWN = {"type": "image_url", "image_url": "https://x/y.png"}


@pytest.mark.parametrize(
    ("name", "turn", "sent", "violation"),
    [
        (
            "anthropic-messages",
            [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [{**SEEN, "is_error": True}]}],
            [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [SEEN]}],
            Violation(
                "failed-result", "messages[2].content[0]", "all content must be type `text` if `is_error` is true"
            ),
        ),
        (
            "anthropic-messages",
            [{"role": "assistant", "content": [{**THOUGHT, **MARK}, SAID]}, user_message("and?")],
            [{"role": "assistant", "content": [THOUGHT, SAID]}, user_message("and?")],
            Violation("thinking-mark", "messages[1].content[0].cache_control", "extra inputs are not permitted"),
        ),
        (
            "openai-chat",
            [
                {"role": "assistant", "content": None, "tool_calls": [UNTYPED]},
                {"role": "tool", "tool_call_id": "call_1", "content": "done"},
            ],
            [
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "done"},
            ],
            Violation("call-type", "messages[1].tool_calls[0].type", "missing required parameter"),
        ),
        (
            "openai-chat",
            [{"role": "assistant", "content": "Show me."}, {"role": "user", "content": [SHOWN]}],
            [
                {"role": "assistant", "content": "Show me."},
                {"role": "user", "content": [{**SHOWN, "image_url": {"url": "https://x/y.png"}}]},
            ],
            Violation("image-url", "messages[2].content[0].image_url", "expected an object with a url"),
        ),
        *(
            (
                "openai-chat",
                [{"role": "assistant", "content": "Show me."}, {"role": "user", "content": [{**SHOWN, **without}]}],
                [
                    {"role": "assistant", "content": "Show me."},
                    {"role": "user", "content": [{"type": "text", "text": "[image without an address]"}]},
                ],
                Violation("image-url", "messages[2].content[0].image_url", "expected an object with a url"),
            )
            for without in ({"image_url": None}, {"image_url": ""}, {"image_url": {"detail": "low"}})
        ),
    ],
)
def test_a_turn_that_the_provider_refuses_is_repaired_with_one_line_on_the_receipt(
    name: str, turn: list[Any], sent: list[Any], violation: Violation
) -> None:
    messages = [user_message("go"), *turn]

    request = govern(messages, budget=8_000, format=name, model="claude-sonnet-4" if "anth" in name else "gpt-5")

    assert validate(messages, name) == [violation]
    assert (request.messages, validate(request.messages, name)) == ([user_message("go"), *sent], [])
    assert len(request.receipt.repairs) == 1


def test_a_failed_result_with_an_image_is_converted_to_anthropic_without_the_mark_and_with_a_note() -> None:
    binary = {"kind": "image-url", "url": "https://x/y.png"}
    part = {"part_kind": "tool-return", "tool_name": "look", "tool_call_id": "a", "content": ["Failed:", binary]}
    call = {"part_kind": "tool-call", "tool_name": "look", "args": {}, "tool_call_id": "a"}
    messages = [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "go"}]},
        {"kind": "response", "parts": [call]},
        {"kind": "request", "parts": [{**part, "outcome": "failed"}]},
    ]

    converted = convert(messages, source="pydantic-ai", target="anthropic-messages")

    assert converted.messages[2] == {"role": "user", "content": [SEEN]}
    assert validate(converted.messages, "anthropic-messages") == []
    assert converted.notes == (
        "failed tool results with media are not marked as failed: the target accepts only text there",
    )


def test_a_block_whose_type_is_a_list_is_refused_with_its_place() -> None:
    messages = [user_message("go"), {"role": "assistant", "content": [{"type": [], "text": "x"}]}, user_message("so?")]

    with pytest.raises(HoldfastError, match=r"messages\[1\]\.content\[0\]\.type: must be a string, not a list"):
        govern(messages, budget=1_000, format="anthropic-messages", model="claude-sonnet-4")
