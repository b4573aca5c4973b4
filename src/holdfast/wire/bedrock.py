"""Bedrock Converse: strictly alternating turns of content blocks."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.conversation.messages import Media, Message, Part, Text, ToolCall, ToolResult
from holdfast.wire.anthropic_messages import arguments_object
from holdfast.wire.media import image_source


def encode_converse(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """Return alternating messages as Converse messages."""
    return [
        {
            "role": "assistant" if message.role == "assistant" else "user",
            "content": [block for part in message.parts if (block := _converse_block(part))],
        }
        for message in messages
    ]


def _converse_block(part: Part) -> Mapping[str, Any] | None:
    if isinstance(part, Text):
        return {"text": part.text}
    if isinstance(part, ToolCall):
        return {"toolUse": {"toolUseId": part.id, "name": part.name, "input": arguments_object(part.arguments)}}
    if isinstance(part, ToolResult):
        content = [block for item in part.content if (block := _converse_block(item))] or [{"text": "(no output)"}]
        return {
            "toolResult": {
                "toolUseId": part.call_id,
                "content": content,
                "status": "error" if part.is_error else "success",
            }
        }
    return _converse_image(part) if isinstance(part, Media) else None


def _converse_image(media: Media) -> Mapping[str, Any]:
    source = image_source(media)
    if source is None or source[0] == "url":
        return {"text": f"[{media.kind} not carried over]"}
    return {"image": {"format": source[0].rpartition("/")[2], "source": {"bytes": source[1]}}}
