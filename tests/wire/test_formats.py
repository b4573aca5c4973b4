"""What is not edited goes out as it came in; what is edited changes only there."""

from typing import Any

import pytest

from holdfast import Media, Opaque, SettingsError, Text, Thinking, ToolCall, ToolResult
from holdfast.core.conversation.clip import clip_arguments, clip_outputs
from holdfast.core.conversation.elide import elide_media
from holdfast.core.conversation.messages import Message
from holdfast.wire.formats import format_named

CHAT, ANTHROPIC = format_named("openai"), format_named("anthropic")
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


def test_clipping_a_block_leaves_its_neighbours_the_same_objects() -> None:
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


def test_eliding_an_image_leaves_the_words_beside_it() -> None:
    words = {"type": "text", "text": "see"}
    native = {"role": "user", "content": [words, {"type": "image", "source": {"type": "url", "url": "u"}}]}

    edited = ANTHROPIC.encode(elide_media(ANTHROPIC.decode(native, 0)))

    assert edited == {"role": "user", "content": [words, {"type": "text", "text": "[image elided]"}]}
    assert edited["content"][0] is words


def test_renaming_a_call_keeps_a_content_that_was_null_or_empty() -> None:
    for content in (None, "", "words"):
        native = {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
        }
        message = CHAT.decode(native, 0)
        parts = tuple(part.renamed("b") if isinstance(part, ToolCall) else part for part in message.parts)

        edited = CHAT.encode(message.with_parts(parts))

        assert edited["content"] == content
        assert edited["tool_calls"] == [{"id": "b", "function": {"name": "f", "arguments": "{}"}}]


def test_a_custom_tool_call_is_read_and_renamed() -> None:
    native = {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
    }
    message = CHAT.decode(native, 0)

    (call,) = message.calls
    assert call == ToolCall("a", "sh", "ls")
    edited = CHAT.encode(message.with_parts((call.renamed("b"),)))
    assert edited["tool_calls"] == [{"id": "b", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]


def test_an_unknown_format_is_named_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="'soap' is not known; choose one of: openai-chat, anthropic-messages"):
        format_named("soap")
