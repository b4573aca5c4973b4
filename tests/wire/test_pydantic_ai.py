"""Requests and responses of pydantic-ai go out as they came, and what is edited or made up is still pydantic-ai's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    CompactionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast import (
    EmptyConversationError,
    HoldfastError,
    MalformedInputError,
    Media,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    convert,
    govern,
    validate,
)
from holdfast.core.conversation.messages import Entry, Message, user
from holdfast.core.conversation.repair import repair_entries
from holdfast.core.conversation.shorten import clip_arguments, clip_outputs, drop_media
from holdfast.testing.pydantic_ai import (
    request_message,
    response_message,
    system_prompt_part,
    text_reply_part,
    tool_call_part,
    tool_return_part,
    user_prompt_part,
)
from holdfast.testing.strategies.pydantic_ai import AGENT_BINARY, AGENT_IMAGE, pydantic_ai_histories
from holdfast.wire.pydantic_ai import PydanticAI, split_messages

WIRE = PydanticAI()
LONG = "x" * 900
MARK = {"kind": "cache-point", "ttl": "5m"}


def read(native: Any) -> Message:
    return WIRE.decode(native, 0)


def loaded(*natives: Any) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_python(natives)


def test_a_response_is_read_into_parts_with_trust_labels_and_goes_out_as_it_came() -> None:
    native = response_message(
        {"content": "hm", "signature": "c2ln", "provider_name": "p", "part_kind": "thinking"},
        text_reply_part("Looking."),
        tool_call_part("a", args={"path": "a.py"}),
        tool_call_part("b", args='{"n": 1}'),
        tool_call_part("c"),
        {"tool_name": "web", "args": {"q": 1}, "tool_call_id": "n1", "part_kind": "builtin-tool-call"},
        {"tool_name": "web", "content": {"r": 1}, "tool_call_id": "n1", "part_kind": "builtin-tool-return"},
        {"content": AGENT_BINARY, "part_kind": "file"},
    )

    message = read(native)

    assert message == Message(
        "assistant",
        (
            Thinking("hm", "c2ln"),
            Text("Looking.", "model"),
            ToolCall("a", "run", '{"path":"a.py"}'),
            ToolCall("b", "run", '{"n": 1}'),
            ToolCall("c", "run", "{}"),
            Opaque("builtin-tool-call", '{"tool_name": "web", "args": {"q": 1}}', "model"),
            Opaque("builtin-tool-return", '{"tool_name": "web", "content": {"r": 1}}', "tool"),
            Media("image", "model", 1_600),
        ),
    )
    assert WIRE.encode(message) is native


def test_a_request_is_read_into_results_and_pieces_of_the_prompt() -> None:
    noted = {"content": "noted", "metadata": {"a": 1}, "kind": "text-content"}
    native = request_message(
        tool_return_part("a", {"lines": [1]}),
        tool_return_part("b", ["see", AGENT_IMAGE]),
        {"content": "n must be a number", "tool_name": "run", "tool_call_id": "c", "part_kind": "retry-prompt"},
        user_prompt_part([MARK, "look", MARK, noted, AGENT_IMAGE]),
        {"content": "no", "retry": {"cause": "model_retry"}, "part_kind": "retry-feedback"},
        {"tools_added": ["look"], "part_kind": "tool-availability-delta"},
    )

    message = read(native)

    assert message == Message(
        "user",
        (
            ToolResult("a", (Text('{"lines": [1]}', "tool"),)),
            ToolResult("b", (Text("see", "tool"), Media("image", "tool", 1_600))),
            ToolResult("c", (Text("n must be a number", "tool"),), is_error=True),
            Text("look", "user"),
            Text("noted", "user"),
            Media("image", "user", 1_600),
            Text("no", "system"),
        ),
    )
    assert message.extra_fields_json == '[{"tools_added": ["look"], "part_kind": "tool-availability-delta"}]'
    assert WIRE.encode(message) is native


@pytest.mark.parametrize(
    ("part", "is_prompt"),
    [
        (user_prompt_part("hello"), True),
        (user_prompt_part([AGENT_IMAGE]), True),
        ({"content": "no", "retry": {"cause": "model_retry"}, "part_kind": "retry-feedback"}, False),
        ({"content": "What happened.", "part_kind": "compaction"}, False),
        ({"content": "Now only.", "scope": "request", "part_kind": "system-prompt"}, False),
        ({"tools_added": ["look"], "part_kind": "tool-availability-delta"}, False),
        ({"rays": 3, "part_kind": "hologram"}, True),
    ],
)
def test_only_what_a_person_may_have_said_makes_a_request_a_prompt(part: Any, is_prompt: bool) -> None:  # noqa: FBT001
    message = read(request_message(part))

    assert (message.role, message.is_prompt) == ("user", is_prompt)


def test_a_request_that_opens_with_system_text_is_two_elements() -> None:
    natives = [
        request_message(system_prompt_part("Be brief."), system_prompt_part("Be kind."), user_prompt_part("hello")),
        response_message(text_reply_part("hi")),
        request_message(system_prompt_part("!")),
    ]

    found, places = split_messages(natives)

    assert places == [0, 0, 1, 2]
    assert [read(native).role for native in found] == ["system", "user", "assistant", "system"]
    assert found == [
        request_message(system_prompt_part("Be brief."), system_prompt_part("Be kind.")),
        request_message(user_prompt_part("hello")), *natives[1:],
    ]  # fmt: skip


def test_system_text_before_a_prompt_outlives_it() -> None:
    middle = [
        one
        for n in range(30)
        for one in (response_message(text_reply_part(f"{n} " * 200)), request_message(user_prompt_part(f"and {n}?")))
    ]
    history = [request_message(system_prompt_part("Be brief."), user_prompt_part("hello " * 200)), *middle]

    sent = govern(history, format="pydantic-ai", budget=1_000, pins=[1])

    assert sent.messages[0] == request_message(system_prompt_part("Be brief."))
    assert history[1] in sent.messages
    assert not any("hello" in str(message) for message in sent.messages[2:])
    assert validate(sent.messages, "pydantic-ai") == []


def test_clipping_a_result_changes_its_content_and_nothing_else() -> None:
    native = request_message(tool_return_part("a", LONG, metadata={"k": 1}, outcome="failed"), user_prompt_part("so?"))

    edited = WIRE.encode(clip_outputs(read(native), 200))

    assert {**edited["parts"][0], "content": LONG} == native["parts"][0]  # type: ignore[index]
    assert len(edited["parts"][0]["content"]) <= 200
    assert edited["parts"][1] is native["parts"][1]  # type: ignore[index]


def test_an_object_that_is_clipped_becomes_its_clipped_json() -> None:
    native = request_message(tool_return_part("a", {"lines": [LONG]}))

    edited = WIRE.encode(clip_outputs(read(native), 200))

    (part,) = edited["parts"]
    assert part["content"].startswith('{"lines": ["xxx')
    assert isinstance(
        loaded(request_message(user_prompt_part("?")), response_message(tool_call_part("a")), edited)[-1], ModelRequest
    )


def test_beside_a_text_that_is_clipped_objects_and_files_stay_as_they_are() -> None:
    image = {"kind": "image-url", "url": "https://a.example/b.png"}
    native = request_message(tool_return_part("a", [LONG, {"rows": 3}, image]))

    (part,) = WIRE.encode(clip_outputs(read(native), 200))["parts"]

    assert len(part["content"][0]) <= 200
    assert part["content"][1:] == [{"rows": 3}, image]


def test_what_pydantic_ai_reads_again_keeps_its_shape() -> None:
    found = {"discovered_tools": [{"name": f"tool_{n}", "description": LONG} for n in range(5)]}
    native = request_message(tool_return_part("a", found, "search_tools", tool_kind="tool-search"))

    assert WIRE.encode(clip_outputs(read(native), 200)) is native


def test_renaming_a_result_leaves_what_it_says() -> None:
    native = request_message(
        tool_return_part("a", {"lines": [1]}), {"tools_added": ["look"], "part_kind": "tool-availability-delta"}
    )
    message = read(native)

    edited = WIRE.encode(message.with_parts((message.results[0].with_call_id("b"),)))

    assert edited["parts"] == [{**native["parts"][0], "tool_call_id": "b"}, native["parts"][1]]  # type: ignore[index]


def rewritten(native: Any, **places: str) -> Any:
    """Return a message whose texts at some places were replaced, as it goes out."""
    message = read(native)
    parts = [
        part.with_text(places[f"at_{number}"]) if isinstance(part, Text) and f"at_{number}" in places else part
        for number, part in enumerate(message.parts)
    ]
    return WIRE.encode(message.with_parts(tuple(parts)))


def test_new_text_replaces_the_old_text_and_nothing_else_moves() -> None:
    spoken: Any = {"kind": "text", "content": "second", "metadata": {"x": 1}}
    speech: Any = {"part_kind": "speech", "transcript": "so", "id": "s_1"}

    asked = rewritten(request_message(user_prompt_part(["first", MARK, spoken, AGENT_IMAGE])), at_0="1", at_1="2")
    said = rewritten(
        response_message(text_reply_part("yes"), {**text_reply_part("no"), "id": "msg_1"}, speech), at_1="2", at_2="3"
    )

    assert asked["parts"][0]["content"] == ["1", MARK, {**spoken, "content": "2"}, AGENT_IMAGE]
    assert said["parts"] == [
        text_reply_part("yes"),
        {**text_reply_part("2"), "id": None},
        {**speech, "transcript": "3", "id": None},
    ]


def test_speech_unknown_items_and_retries_are_decoded_by_kind() -> None:
    speech: Any = {"part_kind": "speech", "audio": {"data": "A" * 120_000}}
    retry: Any = {"part_kind": "retry-prompt", "content": [{"loc": ["x"], "msg": "missing"}]}

    heard = read(request_message(speech, user_prompt_part([{"kind": "hologram", "rays": 3}]), retry))

    assert heard.parts == (
        Media("audio", "user", 2_000),
        Opaque("hologram", '{"kind": "hologram", "rays": 3}', "user"),
        Text('validation errors: [{"loc": ["x"], "msg": "missing"}]', "system"),
    )
    assert WIRE.encode(heard.with_parts((*heard.parts,))) == request_message(
        speech, user_prompt_part([{"kind": "hologram", "rays": 3}]), retry
    )


def test_a_message_without_json_is_encoded_by_its_kind() -> None:
    image = Media("image", "user", native={"source": {"type": "url", "url": "u"}})
    parts = (Thinking("hm"), Opaque("hologram", "rays", "model"), Media("audio", "model"))

    said = WIRE.encode(Message("assistant", parts))
    asked = WIRE.encode(Message("user", (image, Media("audio", "user"), Opaque("hologram", "rays", "user"))))

    assert said["parts"] == [
        {"part_kind": "thinking", "content": "hm"},
        {"part_kind": "text", "content": "rays"},
        {"part_kind": "text", "content": "[audio not carried over]"},
    ]
    assert asked["parts"] == [
        {"part_kind": "user-prompt", "content": [{"kind": "image-url", "url": "u"}]},
        {"part_kind": "user-prompt", "content": ["[audio not carried over]"]},
        {"part_kind": "user-prompt", "content": "rays"},
    ]


def test_eliding_an_image_leaves_the_prompt_one_part() -> None:
    native = request_message(
        user_prompt_part(["look", MARK, AGENT_IMAGE, "well?"]), tool_return_part("a", ["see", AGENT_IMAGE])
    )

    edited = WIRE.encode(drop_media(read(native)))

    assert edited["parts"] == [
        user_prompt_part(["look", MARK, "[image elided]", "well?"]),
        tool_return_part("a", "see\n[image elided]"),
    ]


RETRY = {"part_kind": "retry-prompt", "tool_name": "t", "tool_call_id": "call_a", "content": "no"}


@pytest.mark.parametrize(
    "parts", [[RETRY, user_prompt_part([]), RETRY], [twice := user_prompt_part(["look"]), twice, RETRY, twice]]
)
def test_a_part_that_occurs_twice_in_a_request_keeps_its_order(parts: list[Any]) -> None:
    message = read(request_message(*parts))

    rewritten = WIRE.encode(message.with_parts((*message.parts,)))

    assert rewritten == request_message(*parts)


def test_clipping_arguments_keeps_them_as_they_were_written() -> None:
    native = response_message(
        tool_call_part("a", args={"t": LONG, "n": 1}), {**tool_call_part("b", args=f'{{"t": "{LONG}"}}'), "id": "fc_1"}
    )

    edited = WIRE.encode(clip_arguments(read(native), 200))

    assert edited["parts"][0]["args"]["n"] == 1
    assert len(edited["parts"][0]["args"]["t"]) <= 200
    assert isinstance(edited["parts"][1]["args"], str)
    assert edited["parts"][1]["id"] is None


def test_an_unanswered_call_is_answered_as_pydantic_ai_would() -> None:
    history = [
        request_message(user_prompt_part("go")),
        response_message(tool_call_part("a"), tool_call_part("b", "look")),
        request_message(tool_return_part("b")),
        request_message(user_prompt_part("so?")),
    ]
    entries = [Entry(WIRE.decode(native, index), index) for index, native in enumerate(history)]

    sent = [WIRE.encode(entry.message) for entry in repair_entries(entries, batching=WIRE.batching).entries]

    assert validate(sent, "pydantic-ai") == []
    (kept, made) = loaded(*sent)[2].parts
    assert isinstance(kept, ToolReturnPart)
    assert isinstance(made, ToolReturnPart)
    assert (made.tool_name, made.tool_call_id, made.content, made.outcome) == (
        "run", "a", "Interrupted by user.", "interrupted",
    )  # fmt: skip


def test_a_tool_that_failed_elsewhere_has_failed_and_one_without_a_result_was_interrupted() -> None:
    calls = [{"type": "tool_use", "id": call_id, "name": "run", "input": {}} for call_id in ("a", "b", "c")]
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": "file not found", "is_error": True},
        {"type": "tool_result", "tool_use_id": "b", "content": "fine"},
    ]
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": [*results, {"type": "text", "text": "so?"}]},
    ]

    converted = convert(history, source="anthropic-messages", target="pydantic-ai").messages

    parts = [part for part in loaded(*converted)[2].parts if isinstance(part, ToolReturnPart)]
    assert [(part.tool_call_id, part.content, part.outcome, part.metadata) for part in parts] == [
        ("a", "file not found", "failed", None),
        ("b", "fine", "success", None),
        ("c", "Interrupted by user.", "interrupted", {"pydantic_ai_synthesized_tool_return": True}),
    ]


def test_what_is_made_up_is_short_and_valid() -> None:
    made = [Message("system", (Text("Be.", "system"),)), user("What happened.", trust="summary"), user("go")]
    made.append(Message("assistant", (Text("fine", "model"),)))

    natives = [WIRE.encode(message) for message in made]

    first, second, third, fourth = loaded(*natives)
    assert isinstance(first, ModelRequest)
    assert isinstance(first.parts[0], SystemPromptPart)
    assert isinstance(second.parts[0], CompactionPart)
    assert isinstance(third.parts[0], UserPromptPart)
    assert isinstance(fourth, ModelResponse)
    assert [part.content for message in (first, second, third) for part in message.parts] == [  # type: ignore[union-attr]
        "Be.", "What happened.", "go",
    ]  # fmt: skip
    assert fourth.parts == [TextPart("fine")]


@pytest.mark.parametrize("content", [{"kind": ["a"]}, [{"kind": {"of": "a"}}, {"kind": None}, {"kind": "binary-tree"}]])
def test_a_tool_returns_objects_of_any_kind(content: Any) -> None:
    messages = [
        request_message(user_prompt_part("go")),
        response_message(tool_call_part("a", "read")),
        request_message(tool_return_part("a", content, "read")),
    ]

    request = govern(messages, budget=2_000, format="pydantic-ai", model="gpt-5")
    converted = convert(messages, source="pydantic-ai", target="openai-chat")

    assert (request.messages, validate(messages, "pydantic-ai")) == (messages, [])
    assert json.loads(converted.messages[-1]["content"]) == content


@pytest.mark.parametrize(
    ("native", "problem"),
    [
        (7, "messages[0]: must be an object, not int"),
        ({"role": "user", "content": "x"}, "messages[0].kind: null is not a kind of message"),
        ({"kind": "request", "parts": "x"}, "messages[0].parts: must be a list of parts"),
        (request_message({"content": "x"}), "messages[0].parts[0].part_kind: must be a string, not null"),
        (
            request_message(user_prompt_part(7)),
            "messages[0].parts[0].content: must be a string or a list, not a number",
        ),
        (
            request_message(user_prompt_part([7])),
            "messages[0].parts[0].content[0]: must be a string or an object with a kind",
        ),
        (
            response_message({"content": 7, "part_kind": "text"}),
            "messages[0].parts[0].content: must be a string, not a number",
        ),
    ],
)
def test_what_cannot_be_read_is_named_by_its_place(native: Any, problem: str) -> None:
    with pytest.raises(MalformedInputError) as error:
        read(native)

    assert str(error.value).startswith(problem)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([request_message(user_prompt_part("hi"))], []),
        ([], [("not-empty", "messages"), ("first-kind", "messages")]),
        ([request_message(system_prompt_part("Be."))], [("first-kind", "messages")]),
        (
            [response_message(text_reply_part("hi")), request_message(user_prompt_part("hi"))],
            [("first-kind", "messages[0]")],
        ),
        (
            [request_message(user_prompt_part("hi")), response_message(text_reply_part("hi"))],
            [("last-kind", "messages[1]")],
        ),
        ([request_message(user_prompt_part("hi"), text_reply_part("hi"))], [("part-kind", "messages[0].parts[1]")]),
        (
            [
                request_message(user_prompt_part("hi")),
                {"kind": "hologram", "parts": []},
                request_message(user_prompt_part("hi")),
            ],
            [("kind", "messages[1]"), ("empty", "messages[1]")],
        ),
        ([request_message(user_prompt_part(" "))], [("empty-text", "messages[0].parts[0]")]),
        ([request_message(user_prompt_part([MARK]))], [("empty", "messages[0]")]),
        ([request_message(user_prompt_part([AGENT_IMAGE] * 101))], [("images", "messages")]),
        (
            [
                request_message(user_prompt_part("go")),
                response_message(tool_call_part("a")),
                request_message(user_prompt_part("so?")),
            ],
            [("call-answered", "messages[1]")],
        ),
        (
            [request_message(user_prompt_part("go")), response_message(tool_call_part("a"))],
            [("last-kind", "messages[1]"), ("call-answered", "messages[1]")],
        ),
        (
            [request_message(user_prompt_part("go"), tool_return_part("a"))],
            [("result-has-call", "messages[0]"), ("results-first", "messages[0]")],
        ),
        (
            [
                request_message(user_prompt_part("go")),
                response_message(tool_call_part("a")),
                request_message(tool_return_part("a"), tool_return_part("a")),
            ],
            [("result-has-call", "messages[2]")],
        ),
        (
            [
                request_message(user_prompt_part("go")),
                response_message(tool_call_part("a"), tool_call_part("a")),
                request_message(tool_return_part("a")),
            ],
            [("unique-id", "messages[1]")],
        ),
    ],
)
def test_an_invalid_pydantic_ai_message_is_named_and_located(
    messages: list[Any], expected: list[tuple[str, str]]
) -> None:
    assert [(violation.rule, violation.path) for violation in validate(messages, "pydantic-ai")] == expected


@pytest.mark.seed("A-44")
@given(pydantic_ai_histories(), st.sampled_from([300, 1_500, 100_000]))
def test_whatever_is_sent_pydantic_ai_can_read(messages: list[Any], budget: int) -> None:
    try:
        sent = govern(messages, format="pydantic-ai", budget=budget, interrupted=True).messages
    except HoldfastError:
        return

    assert len(loaded(*sent)) == len(sent)


@given(pydantic_ai_histories(), st.sampled_from(["anthropic", "gemini", "openai-chat"]))
def test_what_comes_back_from_another_format_pydantic_ai_can_read(messages: list[Any], other: str) -> None:
    try:
        there = convert(messages, source="pydantic-ai", target=other)
        back = convert(there.messages, source=other, target="pydantic-ai", system=there.system)
    except EmptyConversationError:
        return

    assert len(loaded(*back.messages)) == len(back.messages)
