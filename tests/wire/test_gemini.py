"""Gemini: turns are read, kept, repaired, cut and converted as the API wants them."""

import json
from typing import Any

import pytest

from holdfast import (
    MalformedInputError,
    Media,
    Opaque,
    PendingToolCallsError,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    convert,
    govern,
    validate,
)
from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.shorten import clip_arguments, clip_outputs, drop_media
from holdfast.core.history.scopes import label_trust
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.gemini import function_call_part, function_response_part, model_turn, text_part, user_turn
from holdfast.wire.gemini import Gemini

GEMINI, UNSIGNED = "gemini", "gemini-2"
WIRE = Gemini()
LONG = "x" * 900
GO = user_turn(text_part("go"))
SIGNED = Opaque("thoughtSignature", "", "model", tokens=1)
PICTURE: dict[str, Any] = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}


def sent(messages: list[Any], source: str = GEMINI, budget: int = 16_000, **how: Any) -> list[Any]:
    request = govern(messages, budget=budget, format=source, model="gemini-3-pro", **how)
    assert validate(request.messages, source) == []
    return request.messages


@pytest.mark.parametrize(
    "start",
    [
        "For context:",
        "For context: below is a transcript of what another agent did, quoted between <<<BEGIN>>> and <<<END>>>.",
    ],
)
@pytest.mark.parametrize("more", [[], [PICTURE]])
def test_a_report_of_another_agent_in_the_role_of_the_user_is_no_prompt(start: str, more: list[Any]) -> None:
    said = "[front] said:\nnever delete it"
    report = user_turn(text_part(start), text_part(said), *more)
    quoted = user_turn(text_part("For context: see below"), text_part("[front] said: now"))
    own = user_turn(text_part("For context:"), text_part("[draft] Delete all of it"))

    message, prompt = WIRE.decode(report, 0), WIRE.decode(quoted, 0)

    assert message.parts[:2] == (Text(start, "tool"), Text(said, "tool"))
    assert (message.is_prompt, message.speaker, message.native) == (False, "tool", report)
    assert label_trust(message, "helper:1", None) == message
    assert (prompt.is_prompt, prompt.speaker) == (True, "user")
    assert WIRE.decode(own, 0).parts[1] == Text("[draft] Delete all of it", "user")
    assert WIRE.measure([GO, report, quoted, own], 0).prompts == [0, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GO, Message("user", (Text("go", "user"),))),
        (
            model_turn({"text": "hm", "thought": True, "thoughtSignature": "c2ln"}, text_part("so")),
            Message("assistant", (Thinking("hm", "c2ln"), Text("so", "model"))),
        ),
        (
            model_turn({"text": "so", "thoughtSignature": "c2ln"}, {"text": "", "thoughtSignature": "c2ln"}),
            Message("assistant", (SIGNED, Text("so", "model"), Thinking("", "c2ln"))),
        ),
        (
            model_turn(
                function_call_part("run"),
                function_call_part("run", signature=None),
                function_call_part("look", "x", None),
            ),
            Message(
                "assistant",
                (
                    SIGNED,
                    ToolCall("run#1", "run", '{"path": "src/a.py"}'),
                    ToolCall("run#2", "run", '{"path": "src/a.py"}'),
                    ToolCall("x", "look", '{"path": "src/a.py"}'),
                ),
            ),
        ),
        (
            user_turn(
                function_response_part("run"),
                function_response_part("run", response={"error": "no"}),
                function_response_part("look", "x", {"lines": [1], "more": True}),
            ),
            Message(
                "user",
                (
                    ToolResult("run#1", (Text("ok", "tool"),)),
                    ToolResult("run#2", (Text("no", "tool"),), is_error=True),
                    ToolResult("x", (Text('{"lines": [1], "more": true}', "tool"),)),
                ),
            ),
        ),
        (
            user_turn(PICTURE, {"fileData": {"mimeType": "application/pdf", "fileUri": "u"}}),
            Message("user", (Media("image", "user", 1_600), Media("document", "user", 1_600))),
        ),
        (
            model_turn({"executableCode": {"code": "1"}}),
            Message("assistant", (Opaque("executableCode", '{"executableCode": {"code": "1"}}', "model"),)),
        ),
    ],
)
def test_a_turn_is_read_into_parts_and_goes_out_as_it_came(content: Any, message: Message) -> None:
    read = WIRE.decode(content, 0)

    assert read == message
    assert WIRE.encode(read) is content
    assert json.dumps(WIRE.encode(read.with_parts((*read.parts,)))) == json.dumps(content)


def test_an_edit_changes_its_part_and_keeps_the_signature_and_the_missing_id() -> None:
    call: dict[str, Any] = {"functionCall": {"name": "run", "args": {"text": LONG, "n": 1}}, "thoughtSignature": "c2ln"}
    other: dict[str, Any] = {"text": "hm", "thought": True}
    answer = function_response_part("run", response=LONG)
    table = function_response_part("look", response={"rows": [LONG], "count": 1})

    turn = WIRE.encode(clip_arguments(WIRE.decode(model_turn(other, call), 0), 200))
    answers = WIRE.encode(clip_outputs(WIRE.decode(user_turn(answer, table), 0), 200))

    assert turn["parts"][0] is other
    assert turn["parts"][1]["thoughtSignature"] == "c2ln"
    assert set(turn["parts"][1]["functionCall"]) == {"name", "args"}
    assert len(turn["parts"][1]["functionCall"]["args"]["text"]) <= 200
    assert set(answers["parts"][0]["functionResponse"]) == {"name", "response"}
    assert len(answers["parts"][0]["functionResponse"]["response"]["output"]) <= 200
    assert answers["parts"][1]["functionResponse"]["response"]["output"].startswith('{"rows": ["xxx')


def test_media_inside_a_response_leave_a_placeholder() -> None:
    shown: dict[str, Any] = {"functionResponse": {"name": "look", "response": {"output": "see"}, "parts": [PICTURE]}}

    read = WIRE.decode(user_turn(shown, PICTURE), 0)
    elided = WIRE.encode(drop_media(read))

    assert read.results[0].content == (Text("see", "tool"), Media("image", "tool", 1_600))
    assert elided["parts"] == [
        {"functionResponse": {"name": "look", "response": {"output": "see\n[image elided]"}}},
        {"text": "[image elided]"},
    ]


def test_a_response_whose_text_is_clipped_keeps_its_image() -> None:
    shown: dict[str, Any] = {"functionResponse": {"name": "look", "response": {"output": LONG}, "parts": [PICTURE]}}

    clipped = WIRE.encode(clip_outputs(WIRE.decode(user_turn(shown), 0), 200))

    (response,) = (part["functionResponse"] for part in clipped["parts"])
    assert (response["parts"], len(response["response"]["output"]) <= 200) == ([PICTURE], True)


def test_a_response_without_a_name_gets_one() -> None:
    read = WIRE.decode(user_turn({"functionResponse": {"response": {"output": "ok"}}}), 0)

    assert read.native == user_turn(function_response_part("tool"))
    assert read.repair_notes == ("added a missing name to a response",)


SOUND: list[Any] = [
    GO,
    model_turn({"text": "hm", "thought": True}, function_call_part("run"), function_call_part("run", signature=None)),
    user_turn(function_response_part("run", response="1"), function_response_part("run", response="2")),
    model_turn(function_call_part("run")),
    user_turn(function_response_part("run", response="3"), text_part("and hurry")),
    model_turn({"text": "Done.", "thoughtSignature": "c2ln"}),
    user_turn(text_part("and now?")),
]


def test_a_sound_list_without_ids_goes_out_as_the_same_objects() -> None:
    request = govern(SOUND, budget=16_000, format=GEMINI, model="gemini-3-pro", system={"parts": [{"text": "Be."}]})

    assert all(new is old for new, old in zip(request.messages, SOUND, strict=True))
    assert request.receipt.is_unchanged
    assert request.tokens.system > 0


def test_a_call_that_waits_is_not_answered_for() -> None:
    with pytest.raises(PendingToolCallsError) as pending:
        govern([GO, model_turn(function_call_part("run"))], budget=1_000, format=GEMINI)

    assert pending.value.call_ids == ("run#1",)


def test_a_made_up_response_names_its_function_and_joins_the_others() -> None:
    calls = model_turn(function_call_part("run", "x"), function_call_part("look", None, None))

    assert sent([GO, calls, user_turn(function_response_part("run", "x"), text_part("stop"))])[2] == user_turn(
        function_response_part("run", "x"),
        function_response_part("look", response={"error": "Interrupted by user."}),
        text_part("stop"),
    )


def test_a_response_that_lost_its_id_gets_the_id_of_its_call() -> None:
    calls = model_turn(function_call_part("run", "x"), function_call_part("run", "y", None))

    assert sent(
        [GO, calls, user_turn(function_response_part("run", response="1"), function_response_part("run", response="2"))]
    )[2] == (user_turn(function_response_part("run", "x", "1"), function_response_part("run", "y", "2")))


def test_a_late_response_without_an_id_finds_its_call() -> None:
    wait = user_turn(text_part("wait"))

    assert sent([GO, model_turn(function_call_part("run")), wait, user_turn(function_response_part("run"))]) == [
        GO,
        model_turn(function_call_part("run")),
        user_turn(function_response_part("run")),
        wait,
    ]


def test_a_call_joins_the_model_turn_before_it() -> None:
    spoken = [
        GO,
        model_turn(text_part("Looking.")),
        model_turn(function_call_part("run")),
        user_turn(function_response_part("run")),
    ]

    assert sent(spoken) == [
        GO,
        model_turn(text_part("Looking."), function_call_part("run")),
        user_turn(function_response_part("run")),
    ]


def test_history_begins_with_the_user_even_after_a_compaction() -> None:
    history: list[Any] = []
    for turn in range(60):
        history += [user_turn(text_part(f"prompt {turn} " + "word " * 80)), model_turn(function_call_part("run"))]
        history += [
            user_turn(function_response_part("run", response="line\n" * 200)),
            model_turn(text_part(f"answer {turn}")),
        ]
    history.append(user_turn(text_part("and now?"), PICTURE))

    request = govern(history, budget=5_000, format=GEMINI, model="gemini-3-pro")

    assert request.receipt.compacted
    assert request.messages[0]["role"] == "user"
    assert request.tokens.total <= 5_000
    assert validate(request.messages, GEMINI) == []


def test_an_unsigned_call_is_marked_unless_the_model_never_signs() -> None:
    unsigned = [GO, model_turn(function_call_part("run", signature=None)), user_turn(function_response_part("run"))]

    request = govern(unsigned, budget=1_000, format=GEMINI)

    marked = function_call_part("run", signature="skip_thought_signature_validator")
    assert request.messages[1] == model_turn(marked)
    assert "#1: marked a call without a signature as another model's" in str(request.receipt)
    assert all(new is old for new, old in zip(sent(unsigned, UNSIGNED), unsigned, strict=True))
    assert convert(unsigned, source=UNSIGNED, target=GEMINI).messages == request.messages


def test_fields_as_the_python_sdk_dumps_them_are_understood() -> None:
    dumped: list[Any] = [
        {"role": None, "parts": [{"text": "go", "function_call": None}]},
        {"role": "model", "parts": [{"function_call": {"name": "run", "args": {}}, "thought_signature": "c2ln"}]},
        {"role": "function", "parts": [{"function_response": {"name": "run", "response": {"output": "ok"}}}]},
        user_turn({"inline_data": {"mime_type": "image/png", "data": "AAAA"}}),
    ]

    assert sent(dumped) == [
        GO,
        model_turn({"functionCall": {"name": "run", "args": {}}, "thoughtSignature": "c2ln"}),
        user_turn(function_response_part("run")),
        user_turn({"inlineData": {"mimeType": "image/png", "data": "AAAA"}}),
    ]


def test_an_image_as_the_python_sdk_sends_it_is_an_image_of_the_usual_cost() -> None:
    picture = user_turn({"inlineData": {"mime_type": "image/png", "data": "-_" * 300_000}})

    message = WIRE.decode(picture, 0)
    converted = convert([GO, picture], source=GEMINI, target="anthropic-messages")

    assert (message.parts, message.native) == ((Media("image", "user", 1_600),), picture)
    assert converted.messages[-1]["content"][-1] == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "+/" * 300_000},
    }
    assert convert(
        [user_turn({"fileData": {"mime_type": "image/png", "file_uri": "https://example.org/a.png"}})],
        source=GEMINI,
        target="openai-chat",
    ).messages == [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}
    ]


MALFORMED: list[tuple[Any, str]] = [
    ("oops", r"messages\[0\]: must be an object, not str"),
    (
        {"role": "system", "parts": []},
        r"messages\[0\]\.role: 'system' is not a role; use 'user' or 'model'; system",
    ),
    ({"role": 5, "parts": []}, r"messages\[0\]\.role: a number is not a role"),
    ({"role": "user", "parts": "x"}, r"messages\[0\]\.parts: must be a list of parts, not a string"),
    (user_turn("x"), r"messages\[0\]\.parts\[0\]: must be an object, not a string"),  # pyright: ignore[reportArgumentType]
    (user_turn({"text": 5}), r"messages\[0\]\.parts\[0\]\.text: must be a string, not a number"),
    (model_turn({"functionCall": 5}), r"parts\[0\]\.functionCall: must be an object, not a number"),
    (model_turn({"functionCall": {"name": 5}}), r"parts\[0\]\.functionCall\.name: must be a string"),
    (model_turn({"functionCall": {"name": "f", "id": 5}}), r"parts\[0\]\.functionCall\.id: must be a string"),
    (model_turn({"text": "x", "thoughtSignature": 5}), r"parts\[0\]\.thoughtSignature: must be a string"),
    (model_turn({"functionCall": {"name": "f", "args": {"x": {1}}}}), r"functionCall\.args\.x: is a set, which JSON"),
    (
        user_turn({"functionResponse": {"name": "f", "response": {}, "parts": 5}}),
        r"functionResponse\.parts: must be a list",
    ),
]


@pytest.mark.parametrize(("content", "problem"), MALFORMED)
def test_a_malformed_turn_is_named_by_its_place(content: Any, problem: str) -> None:
    with pytest.raises(MalformedInputError, match=problem):
        govern([content, GO], budget=1_000, format=GEMINI)


@pytest.mark.parametrize("content", [content for content, _ in MALFORMED])
def test_a_malformed_message_is_found_among_many_that_will_be_compacted(content: Any) -> None:
    many: list[Any] = [user_turn(text_part("x" * 400)), model_turn(text_part("y" * 400))] * 300

    with pytest.raises(MalformedInputError) as refusal:
        govern([*many, content, *many, GO], budget=1_000, format=GEMINI)

    assert refusal.value.where.startswith("messages[600]")


def test_a_part_in_the_wrong_place_or_shape_is_repaired_with_a_note() -> None:
    messages: list[Any] = [
        user_turn(text_part("a\ud800"), function_call_part("run"), {}),
        model_turn({"functionCall": {"name": "", "args": [1]}, "thoughtSignature": "c2ln"}),
        user_turn({"functionResponse": {"name": "tool", "response": "bare"}}),
    ]

    assert sent(messages) == [
        user_turn(text_part("a\ufffd")),
        model_turn({"functionCall": {"name": "tool", "args": {"arguments": [1]}}, "thoughtSignature": "c2ln"}),
        user_turn(function_response_part("tool", response={"output": "bare"})),
    ]


def test_contents_become_chat_and_come_back() -> None:
    converted = convert(SOUND[:3], source=GEMINI, target="openai-chat")

    calls = tool_call_message("run_1_0", "run_1_1", name="run", arguments={"path": "src/a.py"})
    assert converted.messages == [
        user_message("go"),
        {key: value for key, value in calls.items() if key != "content"},
        tool_result_message("run_1_0", "1"),
        tool_result_message("run_1_1", "2"),
    ]
    assert converted.notes == (
        "reasoning was left out: it is only valid with the provider that wrote it",
        "a block of type 'thoughtSignature' was left out",
    )
    back = convert(converted.messages, source="openai-chat", target=GEMINI)
    assert validate(back.messages, GEMINI) == []
    assert convert(
        [user_message("a"), assistant_message("b"), user_message("c")], source="openai", target=UNSIGNED
    ).messages == [
        user_turn(text_part("a")),
        model_turn(text_part("b")),
        user_turn(text_part("c")),
    ]


def _search(number: int) -> tuple[Any, Any]:
    """Return a call of a tool that the provider runs itself, and its response."""
    call = {"toolType": "GOOGLE_SEARCH_WEB", "args": {"query": "boats"}, "id": f"t{number}"}
    response = {"toolType": "GOOGLE_SEARCH_WEB", "response": {"pages": "boat " * 40}, "id": f"t{number}"}
    return {"toolCall": call, "thoughtSignature": "c2ln"}, {"toolResponse": response, "thoughtSignature": "c2ln"}


@pytest.mark.parametrize("source", [GEMINI, UNSIGNED])
def test_no_cut_parts_a_call_of_the_providers_tool_from_its_response(source: str) -> None:
    talk: list[Any] = [GO]
    for number in range(40):
        call, response = _search(number)
        talk += [model_turn(call), model_turn(response, text_part("Found.")), user_turn(text_part(f"and {number}?"))]
    lengths: set[int] = set()

    for budget in range(400, 4_000, 150):
        messages = sent(talk, source, budget)
        parts = [part for turn in messages for part in turn["parts"]]
        calls = [part["toolCall"]["id"] for part in parts if "toolCall" in part]
        responses = [part["toolResponse"]["id"] for part in parts if "toolResponse" in part]
        assert calls == responses
        lengths.add(len(calls))

    assert len(lengths) > 3


def test_half_of_a_pair_of_the_providers_tool_is_left_out() -> None:
    call, response = _search(0)

    assert sent([GO, model_turn(call, text_part("Hm.")), GO]) == [GO, model_turn(text_part("Hm.")), GO]
    assert sent([GO, model_turn(response, text_part("Hm.")), GO]) == [GO, model_turn(text_part("Hm.")), GO]
    assert sent([GO, model_turn(text_part("Hm."), call)])[:2] == [GO, model_turn(text_part("Hm."))]


def test_a_call_of_the_providers_tool_waits_for_the_users_responses() -> None:
    call, response = _search(0)
    asked = model_turn(call, {**function_call_part("read"), "thoughtSignature": "c2ln"})
    answered = user_turn(function_response_part("read"))

    assert sent([GO, asked, answered]) == [GO, asked, answered]
    talk = [GO, asked, answered, model_turn(response, text_part("Found.")), GO]
    assert sent(talk) == talk


def test_tools_of_the_provider_are_spelled_as_the_api_does() -> None:
    call: Any = {"tool_call": {"tool_type": "FILE_SEARCH", "id": "t0", "args": None}, "text": None}
    response: Any = {"tool_response": {"tool_type": "FILE_SEARCH", "id": "t0", "response": {"files": 1}}, "text": None}

    assert sent([GO, model_turn(call, response), GO])[1] == model_turn(
        {"toolCall": {"toolType": "FILE_SEARCH", "id": "t0"}},
        {"toolResponse": {"toolType": "FILE_SEARCH", "id": "t0", "response": {"files": 1}}},
    )


def test_an_image_in_a_response_is_one_as_the_python_sdk_spells_it_too() -> None:
    inner = {"inline_data": {"mime_type": "image/png", "data": "iVBORw0KGgo=", "display_name": None}, "file_data": None}
    response = {"name": "read", "response": {"output": "a page"}, "parts": [inner], "id": None}
    turn = user_turn({"function_response": response, "text": None})

    [read] = WIRE.decode(turn, 0).parts

    assert isinstance(read, ToolResult)
    assert [type(part) for part in read.content] == [Text, Media]
    [part] = sent([GO, model_turn({**function_call_part("read"), "thoughtSignature": "c2ln"}), turn])[-1]["parts"]
    assert part["functionResponse"]["parts"] == [{"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}]


def test_media_of_other_formats_follow_after_all_responses_of_a_turn() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    uses = [{"type": "tool_use", "id": name, "name": "look", "input": {}} for name in ("a", "b")]
    results = [{"type": "tool_result", "tool_use_id": name, "content": [image]} for name in ("a", "b")]
    messages: list[Any] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": uses},
        {"role": "user", "content": [*results, {"type": "text", "text": "and?"}]},
    ]

    converted = convert(messages, source="anthropic-messages", target=GEMINI).messages

    fields = ["functionResponse", "functionResponse", "inlineData", "inlineData", "text"]
    assert [next(iter(part)) for part in converted[-1]["parts"]] == fields
    assert sent([*converted]) == converted
