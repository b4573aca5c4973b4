"""What is not edited goes out as it came in; what is edited changes only there."""

from typing import Any

import pytest

from holdfast import MalformedInputError, Media, Opaque, SettingsError, Text, Thinking, ToolCall, ToolResult
from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.shorten import clip_arguments, clip_outputs, drop_media
from holdfast.wire.anthropic import AnthropicMessages, drop_excess_cache_marks
from holdfast.wire.formats import format_named
from holdfast.wire.openai_chat import OpenAIChat, join_same_roles

CHAT, ANTHROPIC = OpenAIChat(), AnthropicMessages()
LONG = "x" * 900


def test_a_chat_message_is_read_into_parts_with_trust_labels() -> None:
    native = {
        "role": "assistant",
        "content": "Looking.",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}}],
    }

    assert CHAT.decode(native, 0) == Message(
        "assistant", (Thinking("hm"), Text("Looking.", "model"), ToolCall("a", "run", "{}"))
    )
    assert CHAT.decode({"role": "tool", "tool_call_id": "a", "content": "ok"}, 0) == Message(
        "tool", (ToolResult("a", (Text("ok", "tool"),)),)
    )
    assert CHAT.decode({"role": "developer", "content": "Be."}, 0) == Message("system", (Text("Be.", "system"),))


def test_chat_blocks_are_read_by_kind_and_unknown_ones_are_kept() -> None:
    native = {
        "role": "user",
        "content": [
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "A" * 600_000, "format": "wav"}},
            {"type": "file", "file": {"file_data": "AAAA"}},
            {"type": "hologram", "rays": 3},
        ],
    }

    message = CHAT.decode(native, 0)

    assert message.parts == (
        Text("see", "user"),
        Media("image", "user", 85),
        Media("audio", "user", 10_000),
        Media("document", "user", 1_600),
        Opaque("hologram", '{"type": "hologram", "rays": 3}', "user"),
    )
    assert CHAT.encode(message) is native


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "image", "base64": "A" * 600_000, "mime_type": "image/png"}, Media("image", "user", 1_600)),
        (
            {"type": "image", "source_type": "base64", "data": "A" * 600_000, "mime_type": "image/png"},
            Media("image", "user", 1_600),
        ),
        ({"type": "image", "url": "https://example.org/a.png", "id": "lc_1"}, Media("image", "user", 1_600)),
        ({"type": "media", "data": "A" * 600_000, "mime_type": "image/png"}, Media("image", "user", 1_600)),
        ({"type": "audio", "base64": "A" * 600_000, "mime_type": "audio/wav"}, Media("audio", "user", 10_000)),
        ({"type": "video", "base64": "A" * 600_000, "mime_type": "video/mp4"}, Media("document", "user", 10_000)),
        ({"type": "file", "base64": "A" * 600_000, "filename": "a.pdf"}, Media("document", "user", 10_000)),
        ({"type": "file", "file_id": "file-1"}, Media("document", "user", 1_600)),
    ],
)
def test_langchains_own_images_and_files_are_no_text_and_go_out_as_they_came(block: Any, part: Media) -> None:
    native: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "see"}, block]}

    message = CHAT.decode(native, 0)

    assert (message.parts, message.extra_fields_json) == ((Text("see", "user"), part), "")
    assert CHAT.encode(message) is native
    edited = Message("user", (Text("look", "user"), message.parts[1]), native)
    assert CHAT.encode(edited) == {"role": "user", "content": [{"type": "text", "text": "look"}, block]}


def test_anthropic_blocks_are_read_by_kind_and_go_out_as_they_came() -> None:
    native = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "b3Bh"},
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": 1}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
            {"type": "text", "text": "so", "citations": [{"x": 1}], "cache_control": {"type": "ephemeral"}},
            {"type": "tool_use", "id": "t1", "name": "run", "input": {"b": 1, "a": 2}},
        ],
        "x_unknown": {"kept": True},
    }

    message = ANTHROPIC.decode(native, 0)

    kinds = [type(part).__name__ for part in message.parts]
    assert kinds == ["Thinking", "Thinking", "Opaque", "Opaque", "Text", "ToolCall"]
    assert message.parts[0] == Thinking("", "c2ln")
    assert message.parts[-1] == ToolCall("t1", "run", '{"b": 1, "a": 2}')
    assert ANTHROPIC.encode(message) is native


def test_clipping_a_chat_result_changes_its_content_and_nothing_else() -> None:
    native = {"role": "tool", "tool_call_id": "a", "content": LONG, "name": "run", "x_extra": [1]}

    edited = CHAT.encode(clip_outputs(CHAT.decode(native, 0), 200))

    assert list(edited) == list(native)
    assert {**edited, "content": LONG} == native
    assert len(edited["content"]) <= 200
    assert native["content"] == LONG


def test_clipping_a_block_leaves_its_neighbors_the_same_objects() -> None:
    short: dict[str, Any] = {"type": "text", "text": "short", "cache_control": {"type": "ephemeral"}}
    native: dict[str, Any] = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [short, {"type": "text", "text": LONG, "x": 1}]},
            short,
        ],
    }

    edited = ANTHROPIC.encode(clip_outputs(ANTHROPIC.decode(native, 0), 200))

    assert edited["content"][1] is short
    assert edited["content"][0]["content"][0] is short
    assert edited["content"][0]["content"][1]["x"] == 1
    assert edited["content"][0]["tool_use_id"] == "a"
    assert len(edited["content"][0]["content"][1]["text"]) <= 200
    assert native["content"][0]["content"][1]["text"] == LONG


def test_clipping_arguments_keeps_them_json_in_both_formats() -> None:
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "w", "arguments": '{"t": "' + LONG + '", "n": 1}'},
        "x": 1,
    }
    use = {"type": "tool_use", "id": "a", "name": "w", "input": {"t": LONG, "n": [1, {"deep": LONG}]}, "x": 1}

    chat = CHAT.encode(clip_arguments(CHAT.decode({"role": "assistant", "tool_calls": [call]}, 0), 200))
    blocks = ANTHROPIC.encode(clip_arguments(ANTHROPIC.decode({"role": "assistant", "content": [use]}, 0), 200))

    assert chat["tool_calls"][0]["x"] == blocks["content"][0]["x"] == 1
    assert '"n":1' in chat["tool_calls"][0]["function"]["arguments"]
    assert blocks["content"][0]["input"]["n"][0] == 1
    assert len(blocks["content"][0]["input"]["n"][1]["deep"]) <= 200


def test_dropping_an_image_keeps_the_text_next_to_it() -> None:
    words = {"type": "text", "text": "see"}
    native = {"role": "user", "content": [words, {"type": "image", "source": {"type": "url", "url": "u"}}]}

    edited = ANTHROPIC.encode(drop_media(ANTHROPIC.decode(native, 0)))

    assert edited == {"role": "user", "content": [words, {"type": "text", "text": "[image elided]"}]}
    assert edited["content"][0] is words


def test_renaming_a_call_keeps_a_content_that_was_null_or_empty() -> None:
    for content in (None, "", "words"):
        native = {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        }
        message = CHAT.decode(native, 0)
        parts = tuple(part.with_id("b") if isinstance(part, ToolCall) else part for part in message.parts)

        edited = CHAT.encode(message.with_parts(parts))

        assert edited["content"] == content
        assert edited["tool_calls"] == [{"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_a_custom_tool_call_is_read_and_renamed() -> None:
    native = {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
    }
    message = CHAT.decode(native, 0)

    (call,) = message.calls
    assert call == ToolCall("a", "sh", "ls")
    edited = CHAT.encode(message.with_parts((call.with_id("b"),)))
    assert edited["tool_calls"] == [{"id": "b", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]


@pytest.mark.parametrize("name", ["openai-chat", "anthropic-messages"])
def test_a_message_without_json_is_encoded_by_its_kind(name: str) -> None:
    made = Message("assistant", (Thinking("hm", "c2ln"), Opaque("hologram", "rays", "model"), Text("so", "model")))

    written = {
        "openai-chat": [{"type": "text", "text": "[hologram]"}, {"type": "text", "text": "so"}],
        "anthropic-messages": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "text", "text": "rays"},
            {"type": "text", "text": "so"},
        ],
    }
    assert format_named(name).encode(made) == {"role": "assistant", "content": written[name]}


def test_reasoning_that_was_taken_out_of_a_chat_message_takes_its_field_along() -> None:
    native = {"role": "assistant", "content": "so", "reasoning_content": "hm"}
    message = CHAT.decode(native, 0)

    assert CHAT.encode(message.with_parts(message.parts[1:])) == {"role": "assistant", "content": "so"}


def test_a_call_without_a_name_and_an_input_that_is_not_an_object_are_repaired_with_a_note() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "", "arguments": "{}"}}
    chat = CHAT.decode({"role": "assistant", "tool_calls": [call]}, 0)
    uses = [
        {"type": "tool_use", "id": str(place), "name": "", "input": value} for place, value in enumerate((None, [1]))
    ]
    blocks = ANTHROPIC.decode({"role": "assistant", "content": uses}, 0)

    assert (chat.calls[0].name, chat.repair_notes) == ("tool", ("added a missing name to a call",))
    assert [(call.name, call.arguments) for call in blocks.calls] == [("tool", "{}"), ("tool", '{"arguments": [1]}')]
    assert (
        blocks.repair_notes
        == ("wrapped the input of a tool_use that was not an object", "added a missing name to a tool_use") * 2
    )


def test_a_block_that_only_its_provider_understands_loses_its_empty_texts_and_nothing_else() -> None:
    found = {"type": "search_result", "source": "u"}
    full = {**found, "content": [{"type": "text", "text": " "}, {"type": "hologram"}]}
    empty = {**found, "content": [{"type": "text", "text": ""}]}

    message = ANTHROPIC.decode({"role": "user", "content": [full, empty, {"type": "text", "text": "so?"}]}, 0)

    assert message.native == {
        "role": "user",
        "content": [{**found, "content": [{"type": "hologram"}]}, {"type": "text", "text": "so?"}],
    }
    assert message.repair_notes == ("removed an empty text", "removed an empty text")


def test_the_oldest_marks_go_and_a_message_without_any_stays_the_same_object() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    bare: dict[str, Any] = {"role": "user", "content": "hi"}
    marked: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "a", **mark}]}

    kept = drop_excess_cache_marks([bare, marked, bare, marked], 1)

    assert kept == [bare, {"role": "user", "content": [{"type": "text", "text": "a"}]}, bare, marked]
    assert (kept[0] is bare, kept[3] is marked) == (True, True)


def test_a_value_that_is_not_a_message_differs_from_a_result_without_content() -> None:
    silent = {"type": "tool_result", "tool_use_id": "a", "content": None}

    assert ANTHROPIC.decode({"role": "user", "content": [silent]}, 0) == Message("user", (ToolResult("a", ()),))
    with pytest.raises(MalformedInputError, match=r"messages\[3\]: must be an object, not int; turn SDK objects into"):
        ANTHROPIC.decode(7, 3)


def test_a_turn_without_content_has_no_parts() -> None:
    assert ANTHROPIC.decode({"role": "user", "content": None}, 0) == Message("user", ())
    assert format_named("gemini").decode({"role": "user", "parts": None}, 0) == Message("user", ())


def test_an_unknown_format_is_named_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="'soap' is not known; choose one of: openai-chat, anthropic-messages"):
        format_named("soap")


def test_neighbors_of_one_role_are_joined_for_servers_that_want_alternating_roles() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    call: dict[str, object] = {"role": "assistant", "content": "b", "tool_calls": [{"id": "1"}]}
    result: dict[str, object] = {"role": "tool", "tool_call_id": "1", "content": "c"}
    listed: list[dict[str, object]] = [
        {"role": "system", "content": "one"},
        {"role": "system", "content": "two"},
        {"role": "user", "content": "summary"},
        {"role": "user", "name": "Ann", "content": [image]},
        {"role": "user", "content": ""},
        {"role": "user", "content": "prompt"},
        {"role": "assistant", "content": "a"},
        call,
        result,
        result,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "2"}]},
        {"role": "assistant", "content": "d"},
    ]

    joined = join_same_roles(listed)

    texts = [{"type": "text", "text": "summary"}, image, {"type": "text", "text": "prompt"}]
    assert joined == [
        *listed[:2],
        {"role": "user", "name": "Ann", "content": texts},
        {**call, "content": "a\n\nb"},
        result,
        result,
        *listed[-2:],
    ]
    assert all(one is other for one, other in zip(joined[:2], listed[:2], strict=True))


def test_members_of_a_chat_message_that_nothing_of_ours_represents_are_counted_as_sent() -> None:
    function = {"name": "run", "arguments": "{}", "strict": True}
    call = {
        "id": "a",
        "type": "function",
        "extra_content": {"google": {"thought_signature": "s"}},
        "function": function,
    }
    blocks = [{"type": "text", "text": "so", "mark": 1}]

    decoded = format_named("openai-chat").decode(
        {"role": "assistant", "content": blocks, "note": 2, "tool_calls": [call]}, 0
    )

    assert decoded.extra_fields_json == (
        '{"note": 2}{"mark": 1}{"extra_content": {"google": {"thought_signature": "s"}}}{"strict": true}'
    )
