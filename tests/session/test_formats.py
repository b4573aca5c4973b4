"""The format of a session: said once, or shown by its first messages."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest
from google.genai import types
from openai.types.chat import (
    ChatCompletionMessage,
    ParsedChatCompletionMessage,
    ParsedFunction,
    ParsedFunctionToolCall,
)
from openai.types.responses import (
    ParsedResponseFunctionToolCall,
    ParsedResponseOutputMessage,
    ParsedResponseOutputText,
)
from pydantic import BaseModel

from holdfast import Session, validate
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.stores.memory import MemoryStore

HELLO = {"role": "user", "content": "Hello"}
TOOL_USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "read", "input": {}}]}
TOOL_RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "text"}]}
FIRST_MESSAGES: dict[str, list[dict[str, Any]]] = {
    "openai-chat": [{"role": "assistant", "content": None, "tool_calls": []}],
    "anthropic-messages": [HELLO, TOOL_USE, TOOL_RESULT],
    "openai-responses": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
    "gemini": [{"role": "user", "parts": [{"text": "Hello"}]}],
    "pydantic-ai": [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hello"}]}],
}


@pytest.mark.parametrize("name", FIRST_MESSAGES)
async def test_the_first_messages_show_the_format(name: str) -> None:
    async with Session.open("s", store=MemoryStore()) as session:
        await session.record(FIRST_MESSAGES[name])

        assert session.history.format == name


async def test_a_session_that_was_opened_with_a_format_needs_it_nowhere_else() -> None:
    async with Session.open("s", store=MemoryStore(), format="anthropic", model="claude-sonnet-5-5") as session:
        await session.record([HELLO])
        await session.record([TOOL_USE])
        await session.record([TOOL_RESULT])
        await session.attach("notes", "some text")
        request = await session.prepare(16_000)

    assert session.history.format == "anthropic-messages"
    assert request.messages == [HELLO, TOOL_USE, TOOL_RESULT]
    assert validate(request.messages, "anthropic-messages") == []


async def test_messages_of_another_format_are_refused_with_the_way_out() -> None:
    async with Session.open("s", store=MemoryStore()) as session:
        await session.record([HELLO])

        with pytest.raises(SettingsError) as refused:
            await session.record([TOOL_USE])

        assert len(session) == 1
    assert str(refused.value) == (
        "format: the messages of this session are in openai-chat, and these are in anthropic-messages; "
        "open a new session with format='anthropic-messages', or convert them with convert()"
    )


@pytest.mark.parametrize(
    ("response", "messages"),
    [
        ({"object": "chat.completion", "choices": [{"message": HELLO}]}, "[response.choices[0].message]"),
        ({"object": "response", "output": [{"type": "message", "role": "assistant"}]}, "response.output"),
        ({"candidates": [{"content": {"role": "model", "parts": []}}]}, "[response.candidates[0].content]"),
    ],
)
async def test_a_whole_response_is_refused_with_the_messages_to_record(response: Any, messages: str) -> None:
    async with Session.open("s", store=MemoryStore()) as session:
        with pytest.raises(MalformedInputError) as refused:
            await session.record([response])

    assert str(refused.value) == f"messages[0]: is a whole response; record {messages} instead"


async def test_messages_of_the_providers_libraries_are_recorded_as_they_are_sent_back() -> None:
    reply = ChatCompletionMessage(role="assistant", content="Hi")
    answer = anthropic.types.Message(
        id="msg_1",
        content=[anthropic.types.TextBlock(type="text", text="Hi")],
        model="claude-sonnet-5-5",
        role="assistant",
        stop_reason="end_turn",
        type="message",
        usage=anthropic.types.Usage(input_tokens=3, output_tokens=1),
    )
    async with (
        Session.open("chat", store=MemoryStore()) as chat,
        Session.open("messages", store=MemoryStore()) as claude,
    ):
        await chat.record([HELLO, reply], usage={"prompt_tokens": 8, "completion_tokens": 1})
        await claude.record([HELLO, answer], format="anthropic", usage=answer.usage)

        assert await chat.messages() == [HELLO, {"role": "assistant", "content": "Hi"}]
        assert await claude.messages() == [
            HELLO,
            {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
        ]


async def test_a_session_that_is_not_open_yet_says_how_to_open_it() -> None:
    opener: Any = Session.open("s", store=MemoryStore())

    with pytest.raises(AttributeError, match="the session is not open yet, so it has no 'record': write `async with"):
        await opener.record([])
    await (await opener).close()


class Total(BaseModel):
    cents: int


async def test_contents_of_googles_library_are_recorded_and_it_takes_them_back_with_their_bytes() -> None:
    said = [
        types.Content(role="user", parts=[types.Part(text="What is in a.py?")]),
        types.Content(
            role="model",
            parts=[
                types.Part(function_call=types.FunctionCall(name="read", args={}), thought_signature=b"\xff\xfe\x00")
            ],
        ),
        types.Content(role="user", parts=[types.Part.from_function_response(name="read", response={"output": "1"})]),
    ]

    async with Session.open("s", model="gemini-3-pro-preview", format="gemini") as session:
        await session.record(said)
        request = await session.prepare(16_000)

    assert [types.Content.model_validate(message) for message in request.messages] == said


async def test_what_openais_library_has_parsed_is_recorded_as_the_api_takes_it_back() -> None:
    function = ParsedFunction(name="add", arguments='{"cents":1}', parsed_arguments=Total(cents=1))
    called = ParsedFunctionToolCall(id="c1", type="function", function=function)
    chat = ParsedChatCompletionMessage[Total](
        role="assistant", content="{}", parsed=Total(cents=1), tool_calls=[called]
    )
    call = ParsedResponseFunctionToolCall(
        type="function_call", call_id="c1", name="add", arguments="{}", parsed_arguments=Total(cents=1)
    )
    text = ParsedResponseOutputText[Total](type="output_text", text="{}", annotations=[], parsed=Total(cents=1))
    said = ParsedResponseOutputMessage[Total](
        id="msg_1", type="message", role="assistant", status="completed", content=[text]
    )
    async with Session.open("chat", store="memory://", format="openai-chat") as session:
        await session.record([chat])
        recorded = await session.messages()
    async with Session.open("items", store="memory://", format="openai-responses") as session:
        await session.record([call, said])
        items = await session.messages()

    plain = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"cents":1}'}}
    assert recorded == [{"role": "assistant", "content": "{}", "tool_calls": [plain]}]
    assert items == [
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "{}", "annotations": []}],
        },
    ]


async def test_messages_of_another_format_than_another_writers_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with Session.open("s", store=url) as one, Session.open("s", store=url) as other:
        await one.record([{"role": "user", "content": "chat"}])

        with pytest.raises(SettingsError) as raised:
            await other.record([{"role": "user", "parts": [{"text": "gemini"}]}])

        assert (await one.prepare(5_000)).messages == [{"role": "user", "content": "chat"}]
    assert str(raised.value) == (
        "format: the messages of this session are in openai-chat; convert gemini messages with convert()"
    )


async def test_of_two_formats_that_are_recorded_at_once_one_is_refused() -> None:
    async with Session.open("s", store="memory://") as session:
        chat = [{"role": "user", "content": f"chat {number}"} for number in range(400)]
        gemini = [{"role": "user", "parts": [{"text": f"gemini {number}"}]} for number in range(400)]

        results = await asyncio.gather(session.record(chat), session.record(gemini), return_exceptions=True)

        assert [type(one) for one in results] in ([range, SettingsError], [SettingsError, range])
        assert len(session.history) == 400
