"""Each rule of each provider: broken, named and located."""

from collections.abc import Mapping
from functools import reduce
from typing import Any

import pytest
from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode, get_validator
from mistral_common.tokens.tokenizers.base import TokenizerVersion

from holdfast import MalformedInputError, SettingsError, Violation, validate
from holdfast.testing.chat import (
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.responses import (
    compaction_item,
    function_call_item,
    function_output_item,
    output_message_item,
    reasoning_item,
)

ORACLE = get_validator(TokenizerVersion.v11, ValidationMode.serving)
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}

OPENAI = [
    ([], [("not-empty", "messages")]),
    ([user_message("hi"), tool_call_message("a")], [("call-answered", "messages[1]")]),
    (
        [user_message("hi"), tool_call_message("a"), user_message("wait"), tool_result_message("a")],
        [("call-answered", "messages[1]"), ("result-has-call", "messages[3]")],
    ),
    ([user_message("hi"), tool_result_message("a")], [("result-has-call", "messages[1]")]),
    (
        [user_message("hi"), tool_call_message("a"), tool_result_message("a"), tool_result_message("a")],
        [("result-has-call", "messages[3]")],
    ),
    (
        [
            user_message("hi"),
            tool_call_message("a"),
            tool_result_message("a"),
            tool_call_message("a"),
            tool_result_message("a"),
        ],
        [("unique-id", "messages[3].tool_calls")],
    ),
    ([{"role": "user", "content": None}], [("content", "messages[0].content")]),
    ([{"role": "assistant", "content": None}], [("content", "messages[0].content")]),
    ([{"role": "robot", "content": "x"}], [("role", "messages[0].role")]),
    ([user_message("x" * 1_048_577)], [("string-length", "messages[0].content")]),
    ([{"role": "user", "content": [IMAGE] * 501}], [("images", "messages")]),
    (
        [
            assistant_message("assistant first is fine"),
            system_message("system anywhere is fine"),
            user_message("a"),
            user_message("b"),
        ],
        [],
    ),
    ([user_message("hi"), tool_call_message("a", "b"), tool_result_message("b"), tool_result_message("a")], []),
]


def message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


RESPONSES = [
    ([], [("not-empty", "messages")]),
    ([user_message("hi"), function_call_item("a")], [("call-answered", "messages[1]")]),
    ([user_message("hi"), function_output_item("a")], [("output-has-call", "messages[1]")]),
    (
        [function_output_item("a"), function_call_item("a")],
        [("output-has-call", "messages[0]"), ("call-answered", "messages[1]")],
    ),
    (
        [function_call_item("a"), function_output_item("a"), function_output_item("a")],
        [("output-has-call", "messages[2]")],
    ),
    (
        [function_call_item("a"), {"type": "custom_tool_call_output", "call_id": "a", "output": "x"}],
        [("output-kind", "messages[1].type")],
    ),
    ([function_call_item("a"), function_output_item("a", None)], [("output", "messages[1].output")]),
    (
        [function_call_item("a"), function_output_item("a"), function_call_item("a"), function_output_item("a")],
        [("unique-id", "messages[2].call_id")],
    ),
    ([function_call_item("a" * 65), function_output_item("a" * 65)], [("id-length", "messages[0].call_id")]),
    ([{**function_call_item("a"), "id": "call_a"}, function_output_item("a")], [("item-id", "messages[0].id")]),
    ([user_message("hi"), reasoning_item()], [("reasoning-followed", "messages[1]")]),
    ([reasoning_item(), user_message("hi")], [("reasoning-followed", "messages[0]")]),
    ([message("user", None)], [("content", "messages[0].content")]),
    ([message("tool", "x")], [("role", "messages[0].role")]),
    ([{"type": "compaction", "id": "cmp_1"}], [("compaction", "messages[0].encrypted_content")]),
    ([user_message("x" * 10_485_761)], [("string-length", "messages[0].content")]),
    ([message("user", [{"type": "input_image", "image_url": "u"}] * 501)], [("images", "messages")]),
    (
        [
            user_message("hi"),
            function_call_item("a"),
            user_message("wait"),
            function_output_item("a"),
            reasoning_item(),
            function_call_item("b"),
            function_output_item("b"),
            compaction_item(),
            reasoning_item(encrypted=None),
            output_message_item("ok"),
        ],
        [],
    ),
]

MISTRAL = [
    ([], [("not-empty", "messages")]),
    ([user_message("hi"), assistant_message("yes")], [("last-role", "messages[1]")]),
    ([assistant_message("yes"), user_message("hi")], [("first-role", "messages[0]")]),
    (
        [user_message("hi"), assistant_message("yes"), system_message("now"), user_message("go")],
        [("order", "messages[2]")],
    ),
    (
        [user_message("hi"), tool_call_message("call_1"), tool_result_message("call_1")],
        [("id", "messages[1]"), ("id", "messages[2]")],
    ),
    (
        [user_message("hi"), tool_call_message("abcdefgh1", name="no.dots"), tool_result_message("abcdefgh1")],
        [("name", "messages[1].tool_calls")],
    ),
    ([user_message("hi"), tool_call_message("abcdefgh1"), user_message("go")], [("call-answered", "messages[1]")]),
    ([user_message("hi"), {"role": "assistant", "content": ""}, user_message("go")], [("empty", "messages[1]")]),
    ([{"role": "user", "content": [IMAGE] * 9}], [("images", "messages")]),
    ([user_message("hi"), {"role": "robot", "content": "x"}, user_message("go")], [("role", "messages[1].role")]),
    ([{"role": "system", "content": None}, user_message("hi")], [("empty", "messages[0]")]),
    (
        [
            system_message("be"),
            user_message("hi"),
            tool_call_message("abcdefgh1"),
            tool_result_message("abcdefgh1"),
            user_message("go"),
        ],
        [],
    ),
]


def use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "run", "input": {}}


def result(call_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "ok"}


def turn(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


MARKED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
HI = {"role": "user", "content": "hi"}

SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}

ANTHROPIC = [
    ([], [("not-empty", "messages")]),
    ([turn("assistant", {"type": "text", "text": "x"}), HI], [("first-role", "messages[0]")]),
    ([HI, {"role": "assistant", "content": "pre"}], [("last-role", "messages[1]")]),
    ([HI, {"role": "system", "content": "x"}, HI], [("role", "messages[1].role")]),
    ([HI, turn("assistant", use("a")), HI], [("use-answered", "messages[1]")]),
    ([turn("user", result("a"))], [("result-has-use", "messages[0]")]),
    ([HI, turn("assistant", use("a")), turn("user", result("a"), result("a"))], [("result-has-use", "messages[2]")]),
    (
        [HI, turn("assistant", use("a")), turn("user", {"type": "text", "text": "x"}, result("a"))],
        [("results-first", "messages[2]")],
    ),
    (
        [
            HI,
            turn("assistant", use("a")),
            turn("user", result("a")),
            turn("assistant", use("a")),
            turn("user", result("a")),
        ],
        [("unique-id", "messages[3]")],
    ),
    ([HI, turn("assistant", use("a b")), turn("user", result("a b"))], [("id", "messages[1]")]),
    ([turn("user", {"type": "text", "text": " "})], [("empty-text", "messages[0].content[0]")]),
    ([{"role": "user", "content": ""}], [("empty", "messages[0]")]),
    ([HI, turn("assistant", {"type": "thinking", "thinking": "x"}), HI], [("signature", "messages[1].content[0]")]),
    (
        [HI, turn("assistant", {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}), HI],
        [("server-result", "messages[1].content[0]")],
    ),
    ([HI, turn("assistant", SEARCH, MARKED), HI], [("server-use", "messages[1].content[0]")]),
    ([HI, turn("assistant", SEARCH, FOUND, FOUND), HI], [("server-result", "messages[1].content[2]")]),
    ([HI, turn("assistant", SEARCH, use("a")), turn("user", result("a")), turn("assistant", FOUND), HI], []),
    ([HI, turn("assistant", SEARCH, use("a")), turn("user", result("a"))], []),
    ([HI, turn("assistant", SEARCH)], []),
    ([HI, turn("assistant", SEARCH, FOUND)], [("last-role", "messages[1]")]),
    ([turn("user", *[MARKED] * 5)], [("cache-marks", "request")]),
    ([turn("user", *[{"type": "image", "source": {}}] * 101)], [("images", "messages")]),
    ([HI, turn("assistant", use("a"), use("b")), turn("user", result("b"), result("a"), MARKED)], []),
]


def part(role: str, *parts: Any) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


CALL = {"functionCall": {"name": "run", "args": {}}, "thoughtSignature": "c2ln"}
ANSWER = {"functionResponse": {"name": "run", "response": {}}}
WORD = {"text": "x"}

GEMINI = [
    ([part("model", WORD), part("user", WORD)], [("edge-role", "messages[0]")]),
    ([part("user", WORD), part("robot", WORD), part("user", WORD)], [("role", "messages[1].role")]),
    ([part("user"), part("model", WORD), part("user", WORD)], [("empty", "messages[0].parts")]),
    (
        [part("user", WORD), part("model", WORD), part("model", CALL), part("user", ANSWER)],
        [("call-follows-user", "messages[2]")],
    ),
    ([part("user", ANSWER)], [("response-has-call", "messages[0]")]),
    (
        [part("user", WORD), part("model", CALL)],
        [("edge-role", "messages[1]"), ("call-answered", "messages[1]")],
    ),
    (
        [part("user", CALL), part("user", ANSWER)],
        [("call-follows-user", "messages[0]"), ("call-role", "messages[0].parts[0]")],
    ),
    ([part("user", WORD), part("model", CALL, CALL), part("user", ANSWER)], [("same-number", "messages[2]")]),
    (
        [part("user", WORD), part("model", {"functionCall": {"name": "run"}}), part("user", ANSWER)],
        [("signature", "messages[1]")],
    ),
    (
        [part("user", WORD, {"text": ""}, {})],
        [("empty-part", "messages[0].parts[1]"), ("empty-part", "messages[0].parts[2]")],
    ),
    (
        [part("user", WORD), part("model", CALL), part("user", {"functionResponse": {"name": "run"}})],
        [("response-object", "messages[2].parts[0]")],
    ),
    (
        [part("user", WORD), part("model", WORD, ANSWER), part("user", WORD)],
        [("response-has-call", "messages[1]"), ("response-role", "messages[1].parts[1]")],
    ),
    ([part("user", WORD), part("model", CALL), part("user", ANSWER), part("model", WORD), part("user", WORD)], []),
    ([part("user", WORD), part("model", {"text": "", "thoughtSignature": "c2ln"}, WORD), part("user", WORD)], []),
]


def block_use(call_id: str) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": call_id, "name": "run", "input": {}}}


def block_result(call_id: str) -> dict[str, Any]:
    return {"toolResult": {"toolUseId": call_id, "content": [{"text": "ok"}]}}


BEDROCK = [
    ([turn("user", WORD), turn("user", WORD)], [("alternate", "messages[1]")]),
    ([turn("assistant", WORD), turn("user", WORD)], [("edge-role", "messages[0]")]),
    (
        [turn("user", WORD), turn("assistant", WORD), turn("user", block_result("a"))],
        [("result-has-use", "messages[2]")],
    ),
    ([turn("user", WORD), turn("assistant", block_use("a")), turn("user", WORD)], [("use-answered", "messages[1]")]),
    (
        [turn("user", WORD), turn("assistant", block_use("a"), block_use("a")), turn("user", block_result("a"))],
        [("unique-id", "messages[1]")],
    ),
    (
        [turn("user", WORD), turn("assistant", block_use("a"))],
        [("edge-role", "messages[1]"), ("use-answered", "messages[1]")],
    ),
    ([turn("user")], [("empty", "messages[0]")]),
    ([turn("user", {"text": " "})], [("empty-text", "messages[0].content[0]")]),
    ([turn("user", WORD), turn("assistant", block_use("a")), turn("user", block_result("a"))], []),
]


def found(messages: Any, provider: str, **rest: Any) -> list[tuple[str, str]]:
    return [(violation.rule, violation.path) for violation in validate(messages, provider, **rest)]


@pytest.mark.parametrize(("messages", "expected"), OPENAI)
def test_openai_rules(messages: Any, expected: list[tuple[str, str]]) -> None:
    assert found(messages, "openai-chat") == expected


@pytest.mark.parametrize(("messages", "expected"), RESPONSES)
def test_responses_rules(messages: Any, expected: list[tuple[str, str]]) -> None:
    assert found(messages, "openai-responses") == expected


def test_where_nothing_is_stored_nothing_may_refer_to_storage() -> None:
    items = [
        reasoning_item(encrypted=None),
        output_message_item("ok"),
        {"type": "item_reference", "id": "msg_1"},
        reasoning_item(),
    ]

    assert found([*items, output_message_item("yes")], "openai-responses") == []
    assert found([*items, output_message_item("yes")], "openai-responses-stateless") == [
        ("stored", "messages[0]"),
        ("stored", "messages[2]"),
    ]


@pytest.mark.parametrize(("messages", "expected"), MISTRAL)
def test_mistral_rules_and_its_own_validator_agree(messages: Any, expected: list[tuple[str, str]]) -> None:
    assert found(messages, "mistral") == expected

    if expected in ([("images", "messages")], [("empty", "messages[1]")], [("first-role", "messages[0]")]):
        return  # what the live service refuses, or lets pass, beyond what its validator sees
    try:
        ORACLE.validate_request(ChatCompletionRequest.from_openai(messages, model="mistral"))
    except (MistralCommonException, ValueError):  # it may refuse even to read it
        assert expected
    else:
        assert not expected


@pytest.mark.parametrize(("messages", "expected"), ANTHROPIC)
def test_anthropic_rules(messages: Any, expected: list[tuple[str, str]]) -> None:
    assert found(messages, "anthropic") == expected


@pytest.mark.parametrize(("messages", "expected"), GEMINI)
def test_gemini_rules(messages: Any, expected: list[tuple[str, str]]) -> None:
    assert found(messages, "gemini") == expected


def test_models_before_gemini_3_need_no_signature() -> None:
    messages = [part("user", WORD), part("model", {"functionCall": {"name": "run"}}), part("user", ANSWER)]

    assert found(messages, "gemini-2") == []


@pytest.mark.parametrize(("messages", "expected"), BEDROCK)
def test_bedrock_rules(messages: Any, expected: list[tuple[str, str]]) -> None:
    assert found(messages, "bedrock", tools=[{}]) == expected


def test_bedrock_wants_tools_defined_where_there_are_tool_blocks() -> None:
    messages = [turn("user", WORD), turn("assistant", block_use("a")), turn("user", block_result("a"))]

    assert found(messages, "bedrock") == [("tool-config", "toolConfig")]


def test_cache_marks_on_system_text_and_tools_count() -> None:
    system = [MARKED, MARKED]
    tools = [{"name": "run", "cache_control": {"type": "ephemeral"}}]

    assert found([turn("user", MARKED)], "anthropic", system=system, tools=tools) == []
    assert found([turn("user", MARKED, MARKED)], "anthropic", system=system, tools=tools) == [
        ("cache-marks", "request")
    ]


def test_a_violation_reads_well() -> None:
    (violation,) = validate([user_message("hi"), tool_call_message("a")], "openai-chat")

    assert str(violation) == "messages[1]: call 'a' has no result directly after it [call-answered]"


def test_an_unknown_provider_is_named_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="'acme' is not known; choose one of: openai-chat"):
        validate([], "acme")


def test_a_value_that_is_not_a_message_is_located() -> None:
    with pytest.raises(MalformedInputError, match=r"messages\[1\]: must be an object, not a string"):
        validate([user_message("hi"), "oops"], "openai-chat")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("provider", ["openai-chat", "anthropic"])
def test_a_shape_that_a_rule_cannot_read_is_refused_and_raises_nothing(provider: str) -> None:
    [violation] = validate([{"role": ["user"], "content": "hello"}], provider)

    assert violation == Violation("shape", "messages", "cannot be read: unhashable type: 'list'")


DEEP_VALUE: list[Any] = reduce(lambda inner, _: [inner], range(3_000), [])
MESSAGES_WITH_DEEP_VALUES: dict[str, Mapping[str, Any]] = {
    "openai-chat": {"role": "tool", "tool_call_id": DEEP_VALUE, "content": "so"},
    "openai-responses": {"type": "function_call", "call_id": DEEP_VALUE, "name": "look", "arguments": "{}"},
    "anthropic": {"role": "user", "content": [{"type": DEEP_VALUE}]},
    "gemini": {"role": "model", "parts": [{"functionCall": {"name": DEEP_VALUE}}]},
    "mistral": {"role": "tool", "tool_call_id": DEEP_VALUE, "content": "so"},
    "bedrock": {"role": "user", "content": [{"toolUse": {"toolUseId": DEEP_VALUE}}]},
    "pydantic-ai": {"kind": "request", "parts": [{"part_kind": DEEP_VALUE}]},
}


@pytest.mark.parametrize(("provider", "message"), MESSAGES_WITH_DEEP_VALUES.items(), ids=MESSAGES_WITH_DEEP_VALUES)
def test_a_value_that_is_nested_too_deep_is_refused_and_raises_nothing(
    provider: str, message: Mapping[str, Any]
) -> None:
    violations = validate([message], provider)

    assert Violation("shape", "messages", "cannot be read: a value is nested too deep") in violations
