"""Names, ids and types of text that providers refuse in every later request are repaired, in call and result alike."""

from typing import Any

import pytest

from holdfast import govern, validate
from holdfast.testing.chat import tool_result_message, user_message

NAME, SAFE = "browser.tabs open", "browser_tabs_open"
ASK, NEXT = user_message("q"), user_message("z")


def turn(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def chat(name: str) -> list[Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    result = {**tool_result_message("c1", "done"), "name": name}
    return [ASK, {"role": "assistant", "content": None, "tool_calls": [call]}, result, NEXT]


def anthropic(name: str) -> list[Any]:
    use = {"type": "tool_use", "id": "t1", "name": name, "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "done"}
    return [ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}, NEXT]


def responses(name: str) -> list[Any]:
    call = {"type": "function_call", "call_id": "c1", "name": name, "arguments": "{}"}
    return [ASK, call, {"type": "function_call_output", "call_id": "c1", "output": "done"}, NEXT]


def gemini(name: str) -> list[Any]:
    call = {"functionCall": {"name": name, "args": {}}, "thoughtSignature": "c2ln"}
    answer = {"functionResponse": {"name": name, "response": {"output": "done"}}}
    return [turn({"text": "q"}), turn(call, role="model"), turn(answer), turn({"text": "z"})]


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("openai-chat", chat),
        ("anthropic-messages", anthropic),
        ("openai-responses", responses),
        ("openai-responses-stateless", responses),
        ("gemini", gemini),
    ],
)
def test_a_tool_name_that_the_provider_refuses_is_renamed_in_call_and_result(name: str, messages: Any) -> None:
    request = govern(messages(NAME), format=name, budget=10_000)

    assert request.messages == messages(SAFE)
    assert {one.rule for one in validate(messages(NAME), name)} == {"tool-name"}
    assert validate(request.messages, name) == []
    assert {repair.description for repair in request.receipt.repairs} == {f"the tool {NAME!r} was renamed to {SAFE!r}"}


def test_gemini_keeps_dots_and_colons_and_renames_what_begins_with_a_digit() -> None:
    assert govern(gemini("ns:a.b"), format="gemini", budget=10_000).messages == gemini("ns:a.b")
    assert govern(gemini("9a b"), format="gemini", budget=10_000).messages == gemini("_9a_b")


def test_a_chat_call_id_above_forty_characters_is_renamed_in_call_and_result() -> None:
    messages = chat("run")
    messages[1]["tool_calls"] = [{**messages[1]["tool_calls"][0], "id": "c" * 60}]
    messages[2]["tool_call_id"] = "c" * 60

    request = govern(messages, format="openai-chat", budget=10_000)

    assert [one.rule for one in validate(messages, "openai-chat")] == ["id-length"]
    assert validate(request.messages, "openai-chat") == []
    assert request.messages[1]["tool_calls"][0]["id"] == request.messages[2]["tool_call_id"] == "c" * 36 + "_1_0"


def test_a_responses_text_gets_the_type_of_its_author() -> None:
    said = {"role": "assistant", "content": [{"type": "input_text", "text": "a"}]}
    asked = {"role": "user", "content": [{"type": "output_text", "text": "b", "annotations": []}]}

    request = govern([ASK, said, asked], format="openai-responses", budget=10_000)

    assert [one.rule for one in validate([ASK, said, asked], "openai-responses")] == ["text-type", "text-type"]
    assert request.messages == [
        ASK,
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "b"}]},
    ]
    assert validate(request.messages, "openai-responses") == []
