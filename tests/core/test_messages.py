"""The messages of a conversation, whatever API they come from."""

from dataclasses import FrozenInstanceError, fields

import pytest

from holdfast import counter_for
from holdfast.core.conversation.messages import (
    Media,
    Message,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    plain_message,
)
from holdfast.core.conversation.tokens import message_tokens

NATIVE = {"type": "block", "key": "sk-1"}
CALL = ToolCall(
    "c1", "read", "{}", native=NATIVE, is_edited=True, result_overhead_tokens=3, result_kind="custom", caller="p1"
)
RESULT = ToolResult(
    "c1",
    (Text("done", "tool", native=NATIVE),),
    native=NATIVE,
    is_edited=True,
    answered_call=CALL,
    kind="custom",
    is_recall_answer=True,
    caller="p1",
)


@pytest.mark.parametrize(
    ("part", "same", "shown"),
    [
        (
            Text("hello", "user", native=NATIVE, is_edited=True),
            Text("hello", "user"),
            "Text(text='hello', trust='user')",
        ),
        (
            Thinking("why", "sig", native=NATIVE),
            Thinking("why", "sig"),
            "Thinking(text='why', signature='sig', trust='model')",
        ),
        (
            Media("image", "user", 85, native=NATIVE),
            Media("image", "user", 85),
            "Media(kind='image', trust='user', tokens=85)",
        ),
        (
            Opaque("citation", "a source", "model", native=NATIVE),
            Opaque("citation", "a source", "model"),
            "Opaque(kind='citation', text='a source', trust='model', tokens=None, server_use='', server_result='',"
            " is_final=False)",
        ),
        (
            CALL,
            ToolCall("c1", "read", "{}", caller="p1"),
            "ToolCall(id='c1', name='read', arguments='{}', trust='model')",
        ),
        (
            RESULT,
            ToolResult("c1", (Text("done", "tool"),), caller="p1"),
            "ToolResult(call_id='c1', content=(Text(text='done', trust='tool'),), is_error=False, trust='tool')",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_part_is_what_it_says_whatever_json_it_was_read_from(part: Part, same: Part, shown: str) -> None:
    message = Message("user", (part,), native=NATIVE, decoded=(part,), repair_notes=("joined",), extra_fields_json="{}")
    message_tokens(message, counter_for("gpt-5"))  # what a counter has counted is kept in both

    assert (repr(part), repr(message)) == (shown, f"Message(role='user', parts=({shown},))")
    assert (part, message) == (same, Message("user", (same,)))


def test_a_call_and_its_result_belong_to_the_program_that_made_the_call() -> None:
    direct = ToolCall("c1", "read", "{}"), ToolResult("c1", (Text("done", "tool"),))

    assert (CALL.without_caller(), RESULT.without_caller()) == direct
    assert direct not in ((CALL, direct[1]), (direct[0], RESULT))


@pytest.mark.parametrize(
    ("message", "speaker"),
    [
        (Message("user", (Text("remember", "memory"),)), "memory"),
        (Message("user", (Text("a file", "attachment"),)), "attachment"),
        (Message("user", (RESULT,)), "tool"),
        (Message("user", (RESULT, Text("and?", "user"))), "user"),
        (Message("user", (Text("run the tests", "agent"),)), "task"),
        (Message("user", (Text("hello", "user"),)), "user"),
        (Message("assistant", (Text("yes", "model"),)), "assistant"),
    ],
)
def test_a_message_names_its_author(message: Message, speaker: str) -> None:
    assert message.speaker == speaker


def test_a_plain_message_has_every_field_that_its_initializer_sets() -> None:
    native = {"role": "user", "content": "hello"}
    parts = (Text("hello", "user"),)
    made, initialized = plain_message("user", "hello", native), Message("user", parts, native, parts)

    assert [getattr(made, one.name) for one in fields(Message)] == [
        getattr(initialized, one.name) for one in fields(Message)
    ]
    assert [getattr(made.parts[0], one.name) for one in fields(Text)] == [
        getattr(parts[0], one.name) for one in fields(Text)
    ]
    assert made.is_unedited
    with pytest.raises(FrozenInstanceError):
        made.role = "tool"  # pyright: ignore[reportAttributeAccessIssue]
    assert plain_message("user", " \n", native).outline == Message("user", (Text(" \n", "user"),)).outline
