"""Which differences between two messages of a client's list mean nothing."""

import json
from collections.abc import Callable

import pytest

from holdfast import Session
from holdfast.apps.gateway.recording.identity import essential_fingerprint
from holdfast.session.sync import message_fingerprint
from holdfast.testing.chat import JsonMessage, user_message
from holdfast.wire.answers import Wire
from holdfast.wire.equivalence import essential_gemini_content, essential_message


@pytest.mark.parametrize(
    "message",
    [
        {"type": "message", "role": "user", "content": "go on"},
        {"role": "user", "content": "go on"},
        {"type": "function_call", "call_id": "call-1", "name": "read", "arguments": "{}"},
    ],
    ids=["item", "message", "call"],
)
def test_an_id_that_a_client_or_a_server_gave_makes_no_difference(message: JsonMessage) -> None:
    assert essential_message({**message, "id": "one"}) == essential_message({**message, "id": "two"})


@pytest.mark.parametrize("reference", [{"type": "item_reference"}, {}], ids=["typed", "bare"])
def test_a_reference_to_an_item_is_nothing_but_its_id(reference: JsonMessage) -> None:
    assert essential_message({**reference, "id": "one"}) != essential_message({**reference, "id": "two"})


async def test_a_list_with_arguments_that_lie_thousands_deep_is_compared_and_recorded() -> None:
    def said(arguments: str, *more: JsonMessage) -> list[JsonMessage]:
        call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": arguments}}
        result: JsonMessage = {"role": "tool", "tool_call_id": "c", "content": "That is no JSON."}
        return [user_message("Read it."), {"role": "assistant", "tool_calls": [call]}, result, *more]

    deep = '{"path":' + "[" * 100_000
    later = said(f"{deep} ", user_message("Again."))

    async with Session.open("s", store="memory://", format="openai-chat") as session:
        await session.sync(said(deep))
        await session.sync(later)

        assert await session.messages() == later


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"data": "-_A=", "mime_type": "image/png"}},
        {"inline_data": {"data": "+/A=", "mime_type": "image/png"}, "thought_signature": "c2ln"},
    ],
    ids=["sent by Google's library", "in snake case"],
)
def test_an_image_of_gemini_that_its_client_spells_differently_is_the_same(part: JsonMessage) -> None:
    answer = {"role": "model", "parts": [{"inlineData": {"mimeType": "image/png", "data": "+/A="}}]}

    assert essential_gemini_content({"role": "model", "parts": [part]}) == answer


@pytest.mark.parametrize(
    "said",
    [
        {"content": "No."},
        {"content": None, "refusal": "No."},
        {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"content": "", "audio": {"id": "audio_1"}},
    ],
    ids=["text", "refusal", "older call", "audio"],
)
def test_reasoning_that_a_client_leaves_out_makes_no_difference_beside_anything_else(said: JsonMessage) -> None:
    answer = {"role": "assistant", **said}

    assert essential_message({**answer, "reasoning_content": "Hm."}) == essential_message(answer)


def test_an_empty_text_beside_a_call_of_the_older_form_says_nothing() -> None:
    call = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}

    assert essential_message({**call, "content": ""}) == essential_message({**call, "content": None}) == call


CITED = [{"type": "url_citation", "title": "Grass"}]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ({"role": "assistant", "content": "Yes.", "annotations": CITED, "images": [{"type": "image_url"}]}, ()),
        ({"role": "assistant", "content": "Yes.", "provider_specific_fields": {"a": 1}, "executed_tools": [{}]}, ()),
        ({"role": "assistant", "refusal": "No.", "annotations": CITED}, ("refusal",)),
        ({"role": "assistant", "content": "Yes.", "phase": "final_answer", "type": "message"}, ()),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"}, ()),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x", "caller": {"type": "direct"}}, ()),
    ],
    ids=["references and images", "other members", "refusal", "phase", "call", "custom call"],
)
def test_what_stands_beside_an_answer_makes_no_difference(answer: JsonMessage, kept: tuple[str, ...]) -> None:
    said = {"type", "role", "content", "call_id", "name", "arguments", "input", *kept}

    assert essential_message(answer) == essential_message({name: answer[name] for name in answer if name in said})


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"type": "text", "text": "Yes.", "citations": CITED}, {"type": "text", "text": "Yes."}),
        ({"type": "output_text", "text": "Yes.", "annotations": CITED}, {"type": "text", "text": "Yes."}),
        (
            {"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": {"type": "direct"}},
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        ),
    ],
    ids=["Anthropic", "Responses", "call"],
)
def test_what_stands_beside_a_text_or_a_call_of_an_answer_makes_no_difference(
    block: JsonMessage, said: JsonMessage
) -> None:
    assert essential_message({"role": "assistant", "content": [block]}) == {"role": "assistant", "content": [said]}


def test_what_a_server_adds_to_a_call_makes_no_difference() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    signed = {**call, "extra_content": {"google": {"thought_signature": "c2ln"}}}

    one, other = ({"role": "assistant", "content": None, "tool_calls": [each]} for each in (signed, call))

    assert essential_message(one) == essential_message(other)


def test_a_call_that_came_without_its_type_is_the_same_with_it() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}

    one, other = ({"role": "assistant", "tool_calls": [each]} for each in (call, {**call, "type": "function"}))

    assert essential_message(one) == essential_message(other)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "moss"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
    ],
    ids=["use", "result"],
)
def test_the_caller_of_a_server_tool_that_a_client_leaves_out_makes_no_difference(block: JsonMessage) -> None:
    one, other = ({"role": "assistant", "content": [each]} for each in (block, {**block, "caller": {"type": "direct"}}))

    assert essential_message(one) == essential_message(other) == one


def test_members_that_a_library_adds_as_null_to_what_a_server_tool_did_make_no_difference() -> None:
    search = {"type": "web_search_call", "action": {"type": "search", "query": "moss"}}
    page = {"type": "web_search_result", "url": "https://moss", "encrypted_content": "ZQ=="}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [page]}

    dumped = {**search, "action": {**search["action"], "sources": None}}  # pyright: ignore[reportGeneralTypeIssues]
    aged = {**result, "content": [{**page, "page_age": None}]}

    assert essential_message(dumped) == essential_message(search) == search
    assert [essential_message({"role": "assistant", "content": [block]})["content"] for block in (aged, result)] == [
        [result],
        [result],
    ]


def test_an_image_is_what_an_answer_says_that_has_nothing_else() -> None:
    answer = {"role": "assistant", "content": "", "images": [{"type": "image_url", "image_url": {"url": "data:,A"}}]}

    assert essential_message(answer) == {**answer, "content": []}


@pytest.mark.parametrize("role", ["user", "tool"])
def test_what_others_than_the_model_say_is_compared_with_all_its_members(role: str) -> None:
    message = {"role": role, "content": [{"type": "text", "text": "a", "title": "A"}], "files": ["a.txt"]}

    assert essential_message(message) == message


NUMBERS = '{"at": 1.0, "of": [2e3, -0.0, 0.5], "id": 12345678901234567890}'
NUMBERS_IN_JAVASCRIPT = '{"at":1,"of":[2000,0,0.5],"id":12345678901234567000}'


def chat_call(arguments: str) -> JsonMessage:
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}]}


def responses_call(arguments: str) -> JsonMessage:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}


def anthropic_call(arguments: str) -> JsonMessage:
    block = {"type": "tool_use", "id": "c", "name": "f", "input": json.loads(arguments)}
    return {"role": "assistant", "content": [block]}


def gemini_call(arguments: str) -> JsonMessage:
    return {"role": "model", "parts": [{"functionCall": {"name": "f", "args": json.loads(arguments)}}]}


def test_numbers_of_a_call_of_pydantic_ai_that_a_browser_writes_again_make_no_difference() -> None:
    call = {"part_kind": "tool-call", "tool_name": "f", "tool_call_id": "c"}

    said, again, other = (
        message_fingerprint({"kind": "response", "parts": [{**call, "args": args}]}, "pydantic-ai")
        for args in (NUMBERS, json.loads(NUMBERS_IN_JAVASCRIPT), NUMBERS.replace("0.5", "1.5"))
    )

    assert said == again != other


@pytest.mark.parametrize(
    ("wire", "call"),
    [
        ("openai-chat", chat_call),
        ("openai-responses", responses_call),
        ("anthropic", anthropic_call),
        ("gemini", gemini_call),
    ],
)
def test_numbers_of_a_call_that_a_client_in_javascript_writes_again_make_no_difference(
    wire: Wire, call: Callable[[str], JsonMessage]
) -> None:
    said, again, other = (
        essential_fingerprint(wire, call(arguments))
        for arguments in (NUMBERS, NUMBERS_IN_JAVASCRIPT, NUMBERS.replace("0.5", "1.5"))
    )

    assert said == again != other


@pytest.mark.parametrize("call", [chat_call, responses_call])
def test_a_call_without_any_text_of_arguments_is_one_with_an_empty_object(call: Callable[[str], JsonMessage]) -> None:
    assert essential_message(call("")) == essential_message(call("{}")) != essential_message(call('{"a": 1}'))


@pytest.mark.parametrize("call", [{"name": "f"}, {"name": "f", "args": None}], ids=["left out", "null"])
def test_a_call_of_gemini_without_arguments_is_one_with_an_empty_object(call: JsonMessage) -> None:
    said, again = ({"role": "model", "parts": [{"functionCall": one}]} for one in (call, {"name": "f", "args": {}}))

    assert essential_gemini_content(said) == again


async def test_a_list_whose_client_has_written_its_numbers_again_is_no_other_conversation() -> None:
    def listed(arguments: str, *more: JsonMessage) -> list[JsonMessage]:
        result: JsonMessage = {"role": "tool", "tool_call_id": "c", "content": "Done."}
        return [user_message("Wait."), chat_call(arguments), result, *more]

    async with Session.open("s", store="memory://", format="openai-chat") as session:
        await session.sync(listed(NUMBERS))
        await session.sync(listed(NUMBERS_IN_JAVASCRIPT, user_message("Again.")))

        assert await session.messages() == listed(NUMBERS, user_message("Again."))
