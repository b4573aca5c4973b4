"""Bad input is normal: a typed error that names the place and the remedy, or a repair with a line in the receipt."""

import json
from collections import UserDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from holdfast import Budget, CannotFitError, HoldfastError, MalformedInputError, Session, SettingsError, govern
from holdfast.core.conversation.json_values import NotJsonError, is_sendable_json
from holdfast.core.history.events import ToolsChanged
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

MALFORMED: list[tuple[Any, str]] = [
    ("hello", r"messages: must be a list of messages, not a string; parse the JSON first"),
    (None, r"messages: must be a list of messages, not null"),
    ({"role": "user"}, r"messages: must be a list of messages, not an object"),
    (5, r"messages: must be a list of messages, not a number"),
    ([user_message("a"), "oops"], r"messages\[1\]: must be an object, not str"),
    ([None], r"messages\[0\]: must be an object, not NoneType"),
    (
        [{"content": "x"}],
        r"messages\[0\]\.role: null is not a role; use one of: system, developer, user, assistant, tool",
    ),
    ([{"role": "narrator", "content": "x"}], r"messages\[0\]\.role: 'narrator' is not a role"),
    ([{"role": ["user"], "content": "x"}], r"messages\[0\]\.role"),
    ([{"role": "user", "content": 5}], r"messages\[0\]\.content: must be a string or a list of blocks, not a number"),
    ([{"role": "user", "content": ["x"]}], r"messages\[0\]\.content\[0\]: must be an object with a type, not a string"),
    ([{"role": "user", "content": [{"text": "x"}]}], r"messages\[0\]\.content\[0\]\.type: must be a string, not null"),
    (
        [{"role": "user", "content": [{"type": "text"}]}],
        r"messages\[0\]\.content\[0\]\.text: must be a string, not null",
    ),
    ([{"role": "assistant", "tool_calls": {}}], r"messages\[0\]\.tool_calls: must be a list"),
    ([{"role": "assistant", "tool_calls": [5]}], r"messages\[0\]\.tool_calls\[0\]: must be an object"),
    ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], r"tool_calls\[0\]\.function: must be an object with name"),
    ([{"role": "tool", "tool_call_id": 7, "content": "x"}], r"messages\[0\]\.tool_call_id: must be a string"),
    (
        [{"role": "assistant", "content": "x", "reasoning_content": 5}],
        r"messages\[0\]\.reasoning_content: must be a str",
    ),
]


@pytest.mark.parametrize(("messages", "problem"), MALFORMED)
def test_the_place_and_the_problem_are_named(messages: Any, problem: str) -> None:
    with pytest.raises(MalformedInputError, match=problem):
        govern(messages, budget=1_000)


@pytest.mark.parametrize("messages", [messages for messages, _ in MALFORMED if isinstance(messages, list)])
def test_a_malformed_message_is_found_among_thousands_that_will_be_compacted(messages: list[Any]) -> None:
    many = [user_message("x" * 400), assistant_message("y" * 400)] * 500
    shifted = [*many, *messages, *many, user_message("now")]

    with pytest.raises(MalformedInputError) as refusal:
        govern(shifted, budget=1_000)

    assert refusal.value.where.startswith(("messages[1000]", "messages[1001]"))


ANTHROPIC_MALFORMED: list[tuple[Any, str]] = [
    ([{"role": "system", "content": "x"}], r"'system' is not a role; use 'user' or 'assistant'; system text goes into"),
    ([{"role": "user", "content": 5}], r"messages\[0\]\.content: must be a string or a list of blocks, not a number"),
    (
        [{"role": "user", "content": [{"type": "tool_result", "content": 5}]}],
        r"content\[0\]\.content: must be a string",
    ),
    ([{"role": "assistant", "content": [{"type": "thinking"}]}], r"content\[0\]\.thinking: must be a string, not null"),
    (
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {"x": {1, 2}}}]}],
        r"content\[0\]\.input\.x: is a set, which JSON cannot express",
    ),
]


@pytest.mark.parametrize(("messages", "problem"), ANTHROPIC_MALFORMED)
def test_the_place_and_the_problem_are_named_in_anthropic_messages(messages: Any, problem: str) -> None:
    with pytest.raises(MalformedInputError, match=problem):
        govern(messages, budget=1_000, format="anthropic")


def test_lone_surrogates_become_a_replacement_with_a_line_in_the_receipt() -> None:
    request = govern([user_message("bad \ud800 half"), assistant_message("ok"), user_message("go")], budget=1_000)

    assert request.messages[0] == user_message("bad \ufffd half")
    assert "#0: replaced lone surrogates" in str(request.receipt)
    json.dumps(request.messages).encode()


def test_a_split_surrogate_pair_becomes_its_character_again() -> None:
    request = govern([user_message("party \ud83c\udf89!")], budget=1_000)

    assert request.messages[0] == user_message("party 🎉!")


def test_surrogates_in_arguments_and_results_are_repaired_too() -> None:
    bad_call = tool_call_message("a")
    bad_call["tool_calls"][0]["function"]["arguments"] = '{"x": "\ud800"}'  # pyright: ignore[reportIndexIssue]

    request = govern(
        [user_message("go"), bad_call, tool_result_message("a", "\udfff"), user_message("on")], budget=1_000
    )

    json.dumps(request.messages, ensure_ascii=False).encode()
    assert len([repair for repair in request.receipt.repairs if "surrogates" in repair.description]) == 2


def test_nan_in_a_tool_input_becomes_null_with_a_line_in_the_receipt() -> None:
    use = {"type": "tool_use", "id": "a", "name": "run", "input": {"x": float("nan"), "y": [float("inf"), 1]}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}]},
    ]

    request = govern(messages, budget=1_000, format="anthropic")

    assert request.messages[1]["content"][0]["input"] == {"x": None, "y": [None, 1]}
    assert "#1: replaced lone surrogates by a replacement character, and NaN or infinity by null" in str(
        request.receipt
    )


def test_arguments_that_are_no_text_become_json_text() -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "run", "arguments": {"x": 1}}}]}

    request = govern([user_message("go"), call, tool_result_message("a")], budget=1_000)

    assert request.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert "as JSON text" in str(request.receipt)


def test_deep_nesting_is_refused_with_its_place() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"x": deep}
    use = {"type": "tool_use", "id": "a", "name": "run", "input": deep}

    with pytest.raises(
        MalformedInputError, match=r"messages\[0\]\.content\[0\]\.input.*: is nested deeper than 100 levels; flatten it"
    ):
        govern([{"role": "assistant", "content": [use]}], budget=1_000, format="anthropic")


@pytest.mark.parametrize("kind", ["object", "list"])
def test_a_value_may_be_nested_a_hundred_levels_deep(kind: str) -> None:
    deep: object = "x"
    for _ in range(100):
        deep = {"x": deep} if kind == "object" else [deep]

    assert is_sendable_json(deep)
    with pytest.raises(NotJsonError, match="is nested deeper than 100 levels; flatten it"):
        is_sendable_json([deep])


def test_a_tool_output_of_fifty_megabytes_is_clipped() -> None:
    request = govern(
        [user_message("go"), tool_call_message("a"), tool_result_message("a", "0123456789 " * 4_600_000)], budget=2_000
    )

    assert request.tokens.total <= 2_000
    assert request.receipt.clipped == (2,)


def test_a_prompt_of_fifty_megabytes_is_refused_by_name() -> None:
    with pytest.raises(CannotFitError) as refusal:
        govern([user_message("0123456789 " * 4_600_000)], budget=2_000)

    assert refusal.value.part == "the newest prompt"


def test_any_mapping_is_an_object_and_a_tuple_is_a_list() -> None:
    message: Mapping[str, Any] = MappingProxyType(user_message("hi"))

    assert govern((message,), budget=1_000).messages[0] is message


async def test_a_session_takes_any_mapping_as_an_object_wherever_it_is() -> None:
    call = {"id": "a", "type": "function", "function": MappingProxyType({"name": "read", "arguments": "{}"})}
    said: list[Mapping[str, Any]] = [
        MappingProxyType(user_message("hi")),
        {"role": "assistant", "tool_calls": [MappingProxyType(call)], "extra": MappingProxyType({"a": 1})},
        UserDict({"role": "tool", "tool_call_id": "a", "content": "done"}),
    ]
    plain = [
        user_message("hi"),
        {
            "role": "assistant",
            "tool_calls": [{**call, "function": {"name": "read", "arguments": "{}"}}],
            "extra": {"a": 1},
        },
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]
    tool = MappingProxyType({"type": "function", "function": MappingProxyType({"name": "read"})})

    async with Session.open("s", store="memory://", model="gpt-5") as session:
        await session.record(said[:2])
        await session.sync(said)
        requests = [await session.prepare(16_000, tools=[tool]) for _ in range(2)]
        recorded = await session.messages()
        changes = [event for event in await session.events() if isinstance(event, ToolsChanged)]

    assert recorded == plain
    assert [json.dumps(request.messages) for request in requests] == [json.dumps(plain)] * 2
    assert requests[1].tools == [{"type": "function", "function": {"name": "read"}}]
    assert len(changes) == 1


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        (5, "tools: must be a list of objects, not 5"),
        ("read", "tools: must be a list of objects, not 'read'"),
        ({"name": "read"}, "tools: must be a list of objects, not {'name': 'read'}"),
        (["read"], "tools[0]: must be an object, not 'read'"),
        ([print], "tools[0]: must be an object, not builtin_function_or_method; turn SDK objects into dicts first"),
    ],
)
def test_what_are_no_tools_is_refused_with_what_they_are(tools: object, problem: str) -> None:
    with pytest.raises(MalformedInputError) as refused:
        govern([user_message("hi")], budget=1_000, tools=tools)

    assert str(refused.value) == problem


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"budget": 0}, "budget: must be at least 1, not 0"),
        ({"budget": -5}, "budget: must be at least 1, not -5"),
        ({"budget": 10}, "budget: 10 tokens cannot hold a conversation; give at least 64"),
        ({"budget": 1.5}, "budget: must be a whole number, not 1.5"),
        ({"budget": True}, "budget: must be a whole number, not True"),
        ({"budget": "16k"}, "budget: must be a whole number, not '16k'"),
        ({"format": "xml"}, "format: 'xml' is not known; choose one of: openai-chat, anthropic-messages"),
        ({"policy": "nope"}, "policy: 'nope' is not known; choose one of: default"),
        ({"pins": [7]}, "pins: 7 is not the index of a message; there are 1"),
        ({"pins": ["a"]}, "pins: 'a' is not the index of a message"),
    ],
)
def test_silly_settings_are_refused_with_the_reason(settings: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"budget": 1_000, **settings}

    with pytest.raises(SettingsError, match=problem):
        govern([user_message("hi")], **given)


class OneTokenCounter:
    """Gives the same answer for every text."""

    name = "mine"

    def __init__(self, answer: Any, provenance: Any = "estimated") -> None:
        self.answer, self.provenance = answer, provenance

    def count(self, text: str) -> int:
        del text
        return self.answer


@pytest.mark.parametrize("answer", [None, "1", 1.25, float("nan"), -1, True])
def test_a_counter_that_counts_no_whole_tokens_is_refused_by_name(answer: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        govern([user_message("hi")], budget=1_000, counter=OneTokenCounter(answer))

    assert str(refused.value) == f"counter: its `count` must return a whole number of tokens, not {answer!r}"


def test_a_counter_says_where_its_counts_come_from() -> None:
    with pytest.raises(SettingsError, match=r"^counter: its `provenance` must be .*, not 'exact'"):
        govern([user_message("hi")], budget=1_000, counter=OneTokenCounter(1, "exact"))


def test_silly_budgets_are_refused_with_the_reason() -> None:
    with pytest.raises(SettingsError, match=r"budget\.messages: must be at least 1, not 0"):
        Budget(1_000, messages=0)
    with pytest.raises(SettingsError, match=r"budget\.bytes: must be a whole number, not 'x'"):
        Budget(1_000, bytes="x")  # pyright: ignore[reportArgumentType]


def test_an_unknown_model_is_counted_with_a_margin_and_says_so() -> None:
    request = govern([user_message("word " * 700)], budget=1_000, model="acme-9000")

    assert request.tokens.provenance == "estimated"
    with pytest.raises(CannotFitError):
        govern([user_message("word " * 900)], budget=1_000, model="acme-9000")


def test_every_error_is_a_holdfast_error() -> None:
    for messages, _ in MALFORMED:
        with pytest.raises(HoldfastError):
            govern(messages, budget=1_000)
