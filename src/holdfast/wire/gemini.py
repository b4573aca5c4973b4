"""Gemini contents: roles user and model, one part a call or response, signatures on calls."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.conversation.messages import Media, Message, Part, Text, ToolCall, ToolResult
from holdfast.wire.anthropic_messages import arguments_object
from holdfast.wire.media import image_source

FOREIGN_SIGNATURE = "skip_thought_signature_validator"
"""What Gemini 3 accepts in place of its own signature on a call that another model made."""


def encode(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """Return alternating messages as contents."""
    names = {call.id: call.name for message in messages for call in message.calls}
    return [_content(message, names) for message in messages]


def _content(message: Message, names: Mapping[str, str]) -> Mapping[str, Any]:
    parts: list[dict[str, Any]] = []
    is_signed = False
    for part in message.parts:
        parts += _part(part, names)
        if isinstance(part, ToolCall) and not is_signed:
            # Only the first of parallel calls carries a signature.
            parts[-1]["thoughtSignature"] = FOREIGN_SIGNATURE
            is_signed = True
    return {"role": "model" if message.role == "assistant" else "user", "parts": parts}


def _part(part: Part, names: Mapping[str, str]) -> list[dict[str, Any]]:
    if isinstance(part, ToolCall):
        return [{"functionCall": {"id": part.id, "name": part.name, "args": arguments_object(part.arguments)}}]
    if isinstance(part, ToolResult):
        key = "error" if part.is_error else "output"
        response = {"id": part.call_id, "name": names.get(part.call_id, "tool"), "response": {key: part.text}}
        # A function response holds no media of its own; they follow as parts of the same turn.
        media = [block for item in part.content if isinstance(item, Media) for block in _media(item)]
        return [{"functionResponse": response}, *media]
    if isinstance(part, Media):
        return _media(part)
    return [{"text": part.text}] if isinstance(part, Text) else []


def _media(media: Media) -> list[dict[str, Any]]:
    source = image_source(media)
    if source is None:
        return [{"text": f"[{media.kind} not carried over]"}]
    kind, data = source
    if kind == "url":
        return [{"fileData": {"fileUri": data}}]
    return [{"inlineData": {"mimeType": kind, "data": data}}]
