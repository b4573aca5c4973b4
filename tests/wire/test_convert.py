"""From one format to another: what the target allows is carried, the rest is said."""

import json
from typing import Any

import pytest

from holdfast import Converted, MalformedInputError, SettingsError, convert, validate
from holdfast.testing.chat import (
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)

PNG = "iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
WRAPPED = "arguments that were no object were wrapped in one"
CHAT: list[Any] = [
    system_message("Be brief."),
    {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]},
    {**tool_call_message("call:1", "b", arguments={"path": "a"}), "content": "Reading."},
    tool_result_message("b", "second"),
    tool_result_message("call:1", "first"),
    system_message("Hurry."),
    user_message("and?"),
]


def test_chat_becomes_anthropic() -> None:
    converted = convert(CHAT, source="openai-chat", target="anthropic")

    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    first = converted.messages[1]["content"][1]["id"]
    assert first != "call:1"
    assert converted == Converted(
        [
            {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Reading."},
                    {"type": "tool_use", "id": first, "name": "read_file", "input": {"path": "a"}},
                    {"type": "tool_use", "id": "b", "name": "read_file", "input": {"path": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": first, "content": "first"},
                    {"type": "tool_result", "tool_use_id": "b", "content": "second"},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
        "Be brief.\n\nHurry.",
        (
            f"renamed a repeated, empty or unusable call id to {first!r}",
            "renamed its call id accordingly",
            "moved the results of one batch to the start of one message",
        ),
    )


def test_anthropic_becomes_chat() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}}, image]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Reading."},
                {"type": "tool_use", "id": "a", "name": "read", "input": {"path": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "ok"},
                {"type": "text", "text": "go on"},
            ],
        },
    ]

    converted = convert(messages, source="anthropic", target="openai-chat", system=[{"type": "text", "text": "Be."}])

    assert converted.messages == [
        system_message("Be."),
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": "Reading.",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}}],
        },
        tool_result_message("a", "ok"),
        user_message("go on"),
    ]
    assert converted.notes == ("reasoning was left out: it is only valid with the provider that wrote it",)


NO_DATA = {"kind": "binary", "media_type": "image/png", "data": None}


@pytest.mark.parametrize(
    ("source", "message", "expected"),
    [
        (
            "gemini",
            {"role": "user", "parts": [{"fileData": {"mimeType": "image/png", "fileUri": "u"}}]},
            {"type": "image_url", "image_url": {"url": "u"}},
        ),
        (
            "anthropic",
            {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]},
            {"type": "text", "text": "[image not carried over]"},
        ),
        (
            "pydantic-ai",
            {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": [NO_DATA]}]},
            {"type": "text", "text": "[image not carried over]"},
        ),
    ],
)
def test_an_image_is_carried_by_its_address_or_leaves_a_word(source: str, message: Any, expected: Any) -> None:
    assert convert([message], source=source, target="openai-chat").messages == [{"role": "user", "content": [expected]}]


@pytest.mark.parametrize(
    ("block", "source"),
    [
        (
            {"type": "image", "base64": PNG, "mime_type": "image/png"},
            {"type": "base64", "media_type": "image/png", "data": PNG},
        ),
        ({"type": "image", "url": "https://example.org/a.png"}, {"type": "url", "url": "https://example.org/a.png"}),
    ],
)
def test_an_image_as_langchain_has_it_is_carried_over(block: Any, source: Any) -> None:
    converted = convert([{"role": "user", "content": [block]}], source="openai-chat", target="anthropic")

    assert converted.messages == [{"role": "user", "content": [{"type": "image", "source": source}]}]


DRAWN: list[Any] = [
    {"role": "user", "parts": [{"text": "Draw it."}]},
    {"role": "model", "parts": [{"text": "Here."}, {"inlineData": {"mimeType": "image/png", "data": PNG}}]},
    {"role": "user", "parts": [{"text": "Thanks."}]},
]


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("openai-chat", "Here.\n[image not carried over]"),
        ("openai-responses", "Here.\n[image not carried over]"),
        ("mistral", "Here.\n[image not carried over]"),
        (
            "anthropic-messages",
            [{"type": "text", "text": "Here."}, {"type": "text", "text": "[image not carried over]"}],
        ),
        ("bedrock", [{"text": "Here."}, {"text": "[image not carried over]"}]),
    ],
)
def test_an_image_that_a_model_has_drawn_is_said_where_answers_have_no_images(target: str, answer: Any) -> None:
    converted = convert(DRAWN, source="gemini", target=target)

    assert converted.messages[1] == {"role": "assistant", "content": answer}
    assert converted.notes == ("image in an answer was left out: the target has media in prompts only",)


def test_documents_and_search_results_of_anthropic_are_carried_as_their_text() -> None:
    pieces = [{"type": "text", "text": "Tides."}, {"type": "text", "text": "Winds."}]
    found = {"type": "search_result", "source": "https://example.org", "title": "Sea", "content": pieces}
    source = {"type": "content", "content": pieces}
    document = {"type": "document", "source": source, "title": "Atlas", "context": "Of 1910."}
    messages: list[Any] = [
        {"role": "user", "content": [document, {"type": "text", "text": "Look it up."}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "search", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [found]}]},
    ]

    converted = convert(messages, source="anthropic", target="openai-chat")

    assert converted.messages[0] == user_message("Atlas\nOf 1910.\nTides.\nWinds.\nLook it up.")
    assert converted.messages[2] == tool_result_message("a", "Sea\nhttps://example.org\nTides.\nWinds.")
    assert converted.notes == ()


@pytest.mark.parametrize(
    ("url", "block"),
    [
        ("data:image/jpg;base64,QUJD", {"format": "jpeg", "source": {"bytes": "QUJD"}}),
        ("data:image/PNG;charset=binary;base64,QUJD", {"format": "png", "source": {"bytes": "QUJD"}}),
        ("data:image/svg+xml;base64,QUJD", None),
        ("data:image/svg+xml;utf8,<svg/>", None),
        ("gs://bucket/a.png", None),
        ("https://generativelanguage.googleapis.com/v1beta/files/a", None),
    ],
)
def test_an_image_that_a_target_cannot_read_leaves_a_word_and_a_type_is_spelled_as_it_reads_it(
    url: str, block: Any
) -> None:
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]

    anthropic, bedrock = (convert(chat, source="openai", target=target) for target in ("anthropic", "bedrock"))

    left = "[image not carried over]"
    assert bedrock.messages == [{"role": "user", "content": [{"image": block} if block else {"text": left}]}]
    source = block and {"type": "base64", "media_type": f"image/{block['format']}", "data": "QUJD"}
    assert anthropic.messages == [{"role": "user", "content": [{"type": "image", "source": source}] if block else left}]
    assert [note.startswith("an image was left out: ") for note in anthropic.notes] == [True] * (not block)


def test_images_beyond_what_is_taken_leave_a_word_inside_results_too() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "u"}}
    looks = {"type": "tool_result", "tool_use_id": "a", "content": [image, {"type": "text", "text": "see"}, image]}
    messages: list[Any] = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [looks, *[image] * 19]},
    ]

    converted = convert(messages, source="anthropic", target="bedrock")

    assert converted.notes[0] == "1 image(s) were left out: bedrock accepts 20"


def test_chat_becomes_gemini_with_foreign_calls_marked() -> None:
    converted = convert(
        [
            system_message("Be."),
            user_message("go"),
            tool_call_message("a", "b"),
            tool_result_message("a", "1"),
            tool_result_message("b", "2"),
        ],
        source="openai",
        target="gemini",
    )

    assert converted.system == {"parts": [{"text": "Be."}]}
    assert converted.messages == [
        {"role": "user", "parts": [{"text": "go"}]},
        {
            "role": "model",
            "parts": [
                {
                    "functionCall": {"id": "a", "name": "read_file", "args": {"path": "src/a.py"}},
                    "thoughtSignature": "skip_thought_signature_validator",
                },
                {"functionCall": {"id": "b", "name": "read_file", "args": {"path": "src/a.py"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "a", "name": "read_file", "response": {"output": "1"}}},
                {"functionResponse": {"id": "b", "name": "read_file", "response": {"output": "2"}}},
            ],
        },
    ]


def test_chat_becomes_bedrock() -> None:
    converted = convert(
        [
            system_message("Be."),
            user_message("one"),
            user_message("two"),
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, IMAGE],
            },
            tool_call_message("a"),
            tool_result_message("a", "1"),
        ],
        source="openai",
        target="bedrock",
    )

    assert converted.system == [{"text": "Be."}]
    assert converted.messages == [
        {
            "role": "user",
            "content": [
                {"text": "one"},
                {"text": "two"},
                {"text": "[image not carried over]"},
                {"image": {"format": "png", "source": {"bytes": PNG}}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"toolUse": {"toolUseId": "a", "name": "read_file", "input": {"path": "src/a.py"}}}],
        },
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "a", "content": [{"text": "1"}], "status": "success"}}],
        },
    ]


def test_mistral_gets_ids_of_nine_characters_the_same_each_time_and_system_text_first() -> None:
    messages = [
        user_message("go"),
        tool_call_message("call_long_id"),
        tool_result_message("call_long_id"),
        system_message("Be."),
        user_message("on"),
    ]

    first, again = (convert(messages, source="openai", target="mistral").messages for _ in range(2))

    call_id = first[2]["tool_calls"][0]["id"]
    assert first == again
    assert first[0] == system_message("Be.")
    assert len(call_id) == 9
    assert call_id.isalnum()
    assert first[3]["tool_call_id"] == call_id


def test_what_cannot_be_carried_is_said() -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA"}}, {"type": "hologram"}]},
        {"role": "assistant", "content": "yes", "audio": {"id": "x"}, "reasoning_content": "hm"},
        user_message("go"),
    ]

    converted = convert(messages, source="openai", target="anthropic")

    assert converted.messages[0]["content"] == [
        {"type": "text", "text": "[audio not carried over]"},
        {"type": "text", "text": "[hologram not carried over]"},
    ]
    assert converted.notes == (
        "a block of type 'hologram' was left out",
        "reasoning was left out: it is only valid with the provider that wrote it",
        "a block of type 'audio' was left out",
        "audio was left out: the target does not take it in this form",
    )


def test_a_refusal_keeps_its_text_and_broken_arguments_are_wrapped() -> None:
    broken = tool_call_message("a")
    broken["tool_calls"][0]["function"]["arguments"] = "not json"  # pyright: ignore[reportIndexIssue]
    messages = [
        user_message("x"),
        {"role": "assistant", "content": None, "refusal": "No."},
        user_message("y"),
        broken,
        tool_result_message("a"),
    ]

    converted = convert(messages, source="openai", target="anthropic")

    assert converted.messages[1]["content"] == "No."
    assert converted.messages[3]["content"][0]["input"] == {"arguments": "not json"}


def test_the_same_format_is_only_repaired() -> None:
    messages = [user_message("go"), tool_call_message("a"), user_message("stop")]

    converted = convert(messages, source="openai", target="openai-chat")

    assert converted.messages[0] is messages[0]
    assert converted.messages[2]["content"] == "Interrupted by user."
    assert converted.notes == ("made up a result for call 'a'",)


def test_a_refusal_that_is_a_part_of_a_chat_answer_keeps_its_text() -> None:
    answer = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}
    chat = [user_message("Do it."), answer, user_message("Why?")]

    assert convert(chat, source="openai", target="openai").messages == chat
    assert convert(chat, source="openai", target="anthropic").messages[1] == assistant_message("I cannot.")


@pytest.mark.parametrize("target", ["gemini", "gemini-2"])
@pytest.mark.parametrize(("name", "safe"), [("2captcha", "_2captcha"), ("-x", "_-x"), ("_x", "_x"), ("9" * 70, None)])
def test_a_tool_is_called_at_gemini_as_a_function_may_be_called_there(target: str, name: str, safe: str | None) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    chat: list[Any] = [user_message("q"), {"role": "assistant", "tool_calls": [call]}, tool_result_message("c1", "ok")]

    converted = convert(chat, source="openai", target=target)

    names = [
        part[kind]["name"]
        for turn, kind in zip(converted.messages[1:], ("functionCall", "functionResponse"), strict=True)
        for part in turn["parts"]
    ]
    assert names == [safe or f"_{'9' * 63}"] * 2
    assert validate(converted.messages, target) == []


def test_what_anthropic_has_compacted_is_carried_over_as_its_text() -> None:
    compaction = {"type": "compaction", "content": "The boat is called Albatross."}
    answer = {"role": "assistant", "content": [compaction, {"type": "text", "text": "Yes."}]}

    converted = convert([user_message("Is it?"), answer, user_message("q")], source="anthropic", target="openai")

    assert converted.messages[1] == assistant_message("The boat is called Albatross.\nYes.")
    assert converted.notes == ()


def test_images_beyond_what_a_target_takes_are_elided_oldest_first() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
        assistant_message("ok"),
    ] * 10

    converted = convert([*messages, user_message("end")], source="openai", target="mistral")

    prompts = [message["content"] for message in converted.messages[:-1:2]]
    assert prompts == ["a\n[image elided]"] * 2 + [[{"type": "text", "text": "a"}, image]] * 8
    assert converted.notes == ("2 image(s) were left out: mistral accepts 8",)


def test_an_unknown_target_is_named_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="target: 'acme' is not known; choose one of: openai-chat"):
        convert([], source="openai", target="acme")


def test_a_text_document_becomes_text_and_a_prompt_never_disappears() -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "IMPORTANT"}}

    for target in ("openai-chat", "gemini", "mistral", "bedrock"):
        converted = convert([{"role": "user", "content": [document]}], source="anthropic", target=target)
        assert "IMPORTANT" in str(converted.messages)
        assert convert([{"role": "user", "content": [{"type": "zz"}]}], source="anthropic", target=target).messages


def test_a_call_that_waits_and_a_tool_that_is_called_otherwise_are_said() -> None:
    converted = convert(
        [user_message("x"), tool_call_message("a", name="my.tool")], source="openai", target="anthropic"
    )

    assert converted.notes == (
        "the tool 'my.tool' was renamed to 'my_tool'",
        "no result yet for 'a': add it before you send the messages",
    )


@pytest.mark.parametrize(
    "arguments", ['{"a": NaN}', "Infinity", '{"a": 1e999}', '{"a": "\\ud800"}', "[" * 500 + "]" * 500]
)
def test_arguments_that_cannot_be_sent_are_repaired_or_wrapped(arguments: str) -> None:
    call: Any = tool_call_message("a")
    call["tool_calls"][0]["function"]["arguments"] = arguments

    for target in ("anthropic", "gemini", "bedrock"):
        sent = convert([user_message("x"), call, tool_result_message("a")], source="openai", target=target).messages
        json.dumps(sent, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("target", ["mistral", "openai-responses", "pydantic-ai"])
@pytest.mark.parametrize(
    ("call", "arguments", "notes"),
    [
        ({"type": "custom", "custom": {"name": "run", "input": "ls -l"}}, {"arguments": "ls -l"}, (WRAPPED,)),
        (
            {"type": "function", "function": {"name": "run", "arguments": '{"a": [1'}},
            {"arguments": '{"a": [1'},
            (WRAPPED,),
        ),
        ({"type": "function", "function": {"name": "run", "arguments": "[1]"}}, {"arguments": [1]}, (WRAPPED,)),
        ({"type": "function", "function": {"name": "run", "arguments": ""}}, {}, ()),
    ],
)
def test_arguments_are_an_object_in_every_format(
    target: str, call: dict[str, Any], arguments: object, notes: tuple[str, ...]
) -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_0001", **call}]}

    converted = convert(
        [user_message("x"), calling, tool_result_message("call_0001")], source="openai-chat", target=target
    )

    match converted.messages[1]:
        case {"tool_calls": [{"function": {"arguments": sent}}]} | {"arguments": sent} | {"parts": [{"args": sent}]}:
            assert (json.loads(sent), converted.notes) == (arguments, notes)
        case other:
            pytest.fail(f"no call in {other}")


def test_system_text_joins_the_messages_where_the_format_has_it_there() -> None:
    converted = convert([user_message("x")], source="openai", target="openai", system="Be.")

    assert converted == Converted([system_message("Be."), user_message("x")])


def test_system_text_that_is_not_text_is_refused() -> None:
    with pytest.raises(MalformedInputError, match="system: must be a string or a list of text blocks, not a number"):
        convert([user_message("x")], source="openai", target="anthropic", system=5)


def test_separate_system_text_is_repaired_or_refused_too() -> None:
    assert convert([user_message("x")], source="anthropic", target="anthropic", system="a\ud800").system == "a\ufffd"
    with pytest.raises(MalformedInputError, match="system"):
        convert([user_message("x")], source="anthropic", target="anthropic", system=[{1: 2}])


def test_calls_and_outputs_of_the_older_form_become_those_of_tools() -> None:
    called = {"name": "read", "arguments": '{"path": "a"}'}
    messages = [
        user_message("go"),
        {"role": "assistant", "content": None, "function_call": called},
        {"role": "function", "name": "read", "content": "done"},
    ]

    converted = convert(messages, source="openai-chat", target="openai-responses")

    assert converted.messages == [
        user_message("go"),
        {"type": "function_call", "call_id": "call_1", **called},
        {"type": "function_call_output", "call_id": "call_1", "output": "done"},
    ]
    for target in ("anthropic-messages", "gemini", "mistral", "bedrock"):
        assert '"done"' in json.dumps(convert(messages, source="openai-chat", target=target).messages)


PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
PDF_URL = "data:application/pdf;base64,JVBERi0="
PDF_BLOCKS: dict[str, Any] = {
    "anthropic-messages": {"role": "user", "content": [{"type": "document", "source": PDF}]},
    "openai-chat": {
        "role": "user",
        "content": [{"type": "file", "file": {"filename": "document.pdf", "file_data": PDF_URL}}],
    },
    "openai-responses": {
        "role": "user",
        "content": [{"type": "input_file", "filename": "document.pdf", "file_data": PDF_URL}],
    },
    "gemini": {"role": "user", "parts": [{"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0="}}]},
}


@pytest.mark.parametrize(
    ("source", "target"), [(source, target) for source in PDF_BLOCKS for target in PDF_BLOCKS if source != target]
)
def test_a_pdf_is_carried_over(source: str, target: str) -> None:
    converted = convert([PDF_BLOCKS[source]], source=source, target=target)

    assert (converted.messages, converted.notes) == ([PDF_BLOCKS[target]], ())


def test_a_pdf_keeps_its_name() -> None:
    named = {"filename": "lease.pdf", "file_data": PDF_URL}
    chat = [{"role": "user", "content": [{"type": "file", "file": named}]}]
    items = [{"role": "user", "content": [{"type": "input_file", **named}]}]
    anthropic = [{"role": "user", "content": [{"type": "document", "source": PDF, "title": "lease.pdf"}]}]

    assert convert(chat, source="openai-chat", target="anthropic-messages").messages == anthropic
    assert convert(anthropic, source="anthropic-messages", target="openai-responses").messages == items
    assert convert(items, source="openai-responses", target="openai-chat").messages == chat


def test_a_pdf_is_carried_over_to_pydantic_ai() -> None:
    converted = convert([PDF_BLOCKS["anthropic-messages"]], source="anthropic-messages", target="pydantic-ai")

    [request] = converted.messages
    assert request["parts"][0]["content"] == [{"kind": "binary", "media_type": "application/pdf", "data": "JVBERi0="}]
    assert converted.notes == ()


def not_taken(kind: str) -> str:
    return f"{kind} was left out: the target does not take it in this form"


IMAGE_BY_URL = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
PDF_BY_URL = {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}


@pytest.mark.parametrize(
    ("block", "target", "note"),
    [
        ({"type": "document", "source": PDF}, "bedrock", not_taken("document")),
        ({"type": "document", "source": PDF}, "mistral", "files were left out: the target accepts none in messages"),
        (PDF_BY_URL, "openai-chat", not_taken("document")),
        (PDF_BY_URL, "openai-responses", not_taken("document")),
        (PDF_BY_URL, "gemini", not_taken("document")),
        (PDF_BY_URL, "pydantic-ai", not_taken("document")),
        (IMAGE_BY_URL, "bedrock", not_taken("image")),
    ],
)
def test_a_file_that_the_target_does_not_take_is_noted(block: dict[str, Any], target: str, note: str) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "see"}, block]}

    assert convert([message], source="anthropic-messages", target=target).notes == (note,)


@pytest.mark.parametrize("target", ["anthropic-messages", "gemini", "bedrock", "pydantic-ai"])
def test_sounds_files_by_id_and_names_of_chat_messages_are_noted(target: str) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    blocks = [{"type": "text", "text": "q"}, sound, {"type": "file", "file": {"file_id": "f1"}}]

    converted = convert([{"role": "user", "content": blocks, "name": "bob"}], source="openai-chat", target=target)

    names = "the names of speakers were left out: the target has no field for them"
    assert converted.notes == (names, not_taken("audio"), not_taken("document"))


CITATION = {"type": "char_location", "cited_text": "so it is", "document_index": 0}
CITING: dict[str, Any] = {
    "anthropic-messages": {"content": [{"type": "text", "text": "x", "citations": [CITATION]}]},
    "openai-responses": {"content": [{"type": "output_text", "text": "x", "annotations": [{"type": "url_citation"}]}]},
    "openai-chat": {"content": "x", "annotations": [{"type": "url_citation"}]},
}


@pytest.mark.parametrize("source", CITING)
@pytest.mark.parametrize("target", ["bedrock", "gemini", "mistral"])
def test_citations_that_are_left_out_are_noted(source: str, target: str) -> None:
    messages = [user_message("q"), {"role": "assistant", **CITING[source]}, user_message("z")]

    notes = convert(messages, source=source, target=target).notes

    assert notes == ("citations were left out: only the text that cites is carried over",)
