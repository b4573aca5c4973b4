"""Anthropic Messages: blocks in user and assistant turns, system text apart."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.conversation.messages import (
    TRUST_OF_ROLE,
    Content,
    Media,
    Message,
    Opaque,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Trust,
)
from holdfast.core.conversation.transcript import Survey
from holdfast.wire.media import data_tokens, image_source, image_tokens
from holdfast.wire.reading import MESSAGE_WEIGHT, Place, is_list, is_mapping, weight_of

NAME = "anthropic-messages"
ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant"}
MAX_CACHE_MARKS = 4


class AnthropicMessages:
    """Reads and writes Anthropic messages."""

    name = NAME
    groups_results = True

    def survey(self, natives: Sequence[Any], start: int) -> Survey:
        """Return the sizes and roles of messages."""
        survey = Survey([], [], [])
        for index, native in enumerate(natives, start):
            message = self.decode(native, index)
            survey.weights.append(weight_of(message) + MESSAGE_WEIGHT)
            if message.role == "user":
                survey.prompts.append(index)
        return survey

    def decode(self, native: object, index: int) -> Message:
        """Return a message with its parts."""
        place = Place(index)
        if not is_mapping(native):
            place.refuse("", f"must be an object, not {type(native).__name__}; turn SDK objects into dicts first")
        role = ROLES.get(native.get("role", "")) if isinstance(native.get("role"), str) else None
        if role is None:
            hint = "; system text goes into system=" if native.get("role") == "system" else ""
            place.refuse(".role", f"{native.get('role')!r} is not a role; use 'user' or 'assistant'{hint}")
        parts = _parts(native.get("content"), TRUST_OF_ROLE[role], place)
        return Message(role, parts, native, () if place.notes else parts, tuple(place.notes))

    def encode(self, message: Message) -> Mapping[str, Any]:
        """Return a message as JSON: the JSON it came from, changed only where it was edited."""
        if message.is_untouched and message.native is not None:
            return message.native
        native = dict(message.native or {"role": "user" if message.role == "tool" else message.role})
        parts = message.parts
        if not is_list(native.get("content")) and len(parts) == 1 and isinstance(parts[0], Text):
            native["content"] = parts[0].text
        else:
            native["content"] = [_block_json(part) for part in parts]
        return native

    def json_bytes(self, message: Message) -> int:
        """Return the size of a message as it would be sent."""
        return len(json.dumps(self.encode(message)))


def _parts(content: object, trust: Trust, place: Place) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        text = place.clean(content, ".content")
        return (Text(text, trust, is_edited=text is not content),) if content else ()
    if not is_list(content):
        place.refuse(".content", f"must be a string or a list of blocks, not {type(content).__name__}")
    return tuple(_part(block, trust, place, f".content[{number}]") for number, block in enumerate(content))


def _part(value: object, trust: Trust, place: Place, path: str) -> Part:
    block = place.mapping(value, path, "an object with a type")
    kind = place.text(block.get("type"), f"{path}.type")
    if kind == "tool_use":
        arguments = place.json(block.get("input", {}), f"{path}.input")
        is_edited = bool(place.notes)
        return ToolCall(
            _text(block, "id", place, path),
            _text(block, "name", place, path),
            arguments,
            native=block,
            is_edited=is_edited,
        )
    if kind == "tool_result":
        return _result(block, place, path)
    if kind == "thinking":
        signature = block.get("signature")
        text = place.text(block.get("thinking"), f"{path}.thinking")
        return Thinking(text, signature if isinstance(signature, str) else None, native=block)
    if kind == "redacted_thinking":
        return Thinking("", _text(block, "data", place, path), native=block)
    return _content(block, kind, trust, place, path)


def _content(block: Mapping[str, Any], kind: str, trust: Trust, place: Place, path: str) -> Content:
    if kind == "text":
        text = place.text(block.get("text"), f"{path}.text")
        return Text(text, trust, block, is_edited=text is not block["text"])
    if kind == "image":
        return Media("image", trust, image_tokens(), block)
    if kind == "document":
        source = block.get("source")
        if is_mapping(source) and source.get("type") == "text":
            return Opaque(kind, place.json(block, path), trust, block)
        return Media("document", trust, data_tokens(source.get("data") if is_mapping(source) else None), block)
    return Opaque(kind, place.json(block, path), trust, block)


def _result(block: Mapping[str, Any], place: Place, path: str) -> ToolResult:
    value = block.get("content")
    content: tuple[Content, ...] = ()
    is_edited = False
    if isinstance(value, str):
        text = place.clean(value, f"{path}.content")
        is_edited = text is not value
        content = (Text(text, "tool", is_edited=is_edited),)
    elif is_list(value):
        content = tuple(_inner(item, place, f"{path}.content[{number}]") for number, item in enumerate(value))
        is_edited = any(isinstance(part, Text) and part.is_edited for part in content)
    elif value is not None:
        place.refuse(f"{path}.content", f"must be a string or a list of blocks, not {type(value).__name__}")
    call_id = _text(block, "tool_use_id", place, path)
    return ToolResult(call_id, content, bool(block.get("is_error")), native=block, is_edited=is_edited)


def _inner(value: object, place: Place, path: str) -> Content:
    block = place.mapping(value, path, "an object with a type")
    return _content(block, place.text(block.get("type"), f"{path}.type"), "tool", place, path)


def _text(block: Mapping[str, Any], key: str, place: Place, path: str) -> str:
    return "" if block.get(key) is None else place.text(block[key], f"{path}.{key}")


def _block_json(part: Part) -> Mapping[str, Any]:
    if isinstance(part, Text):
        return _text_json(part)
    if isinstance(part, ToolCall):
        return _call_json(part)
    if isinstance(part, ToolResult):
        return _result_json(part)
    if isinstance(part, Media):
        return _media_json(part)
    if is_mapping(part.native):
        return part.native
    if isinstance(part, Thinking):
        return {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}
    return {"type": "text", "text": part.text}


def _text_json(part: Text) -> Mapping[str, Any]:
    if not is_mapping(part.native):
        return {"type": "text", "text": part.text}
    return {**part.native, "text": part.text} if part.is_edited else part.native


def _call_json(call: ToolCall) -> Mapping[str, Any]:
    block = call.native if is_mapping(call.native) else {"type": "tool_use"}
    if block.get("type") == "tool_use" and not call.is_edited and "id" in block:
        return block
    return {**block, "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as an object; what is not one is wrapped."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {"arguments": arguments}
    return dict(value) if is_mapping(value) else {"arguments": value}


def _result_json(result: ToolResult) -> Mapping[str, Any]:
    block = result.native if is_mapping(result.native) else {"type": "tool_result"}
    if result.native is not None and not result.is_edited:
        return block
    edited: dict[str, Any] = {**block, "tool_use_id": result.call_id}
    if not is_list(block.get("content")) and len(result.content) == 1 and isinstance(result.content[0], Text):
        edited["content"] = result.content[0].text
    else:
        edited["content"] = [_block_json(part) for part in result.content]
    if result.is_error:
        edited["is_error"] = True
    return edited


def _media_json(media: Media) -> Mapping[str, Any]:
    if is_mapping(media.native) and media.native.get("type") in {"image", "document"}:
        return media.native
    source = image_source(media)
    if source is None:
        return {"type": "text", "text": f"[{media.kind} not carried over]"}
    kind, data = source
    if kind == "url":
        return {"type": "image", "source": {"type": "url", "url": data}}
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def count_cache_marks(blocks: object) -> int:
    """Return how many cache marks a list of messages, blocks or tools carries."""
    if not is_list(blocks):
        return 0
    return sum(
        ("cache_control" in block and block["cache_control"] is not None) + count_cache_marks(block.get("content"))
        for block in blocks
        if is_mapping(block)
    )


def without_excess_marks(messages: Sequence[Mapping[str, Any]], allowed: int) -> list[Mapping[str, Any]]:
    """Return the messages with the oldest cache marks removed, so that at most `allowed` are left."""
    excess = count_cache_marks(messages) - max(0, allowed)
    out: list[Mapping[str, Any]] = []
    for message in messages:
        marks = count_cache_marks([message]) if excess > 0 else 0
        if marks:
            message = _unmarked(message)  # noqa: PLW2901
            excess -= marks
        out.append(message)
    return out


def _unmarked(value: Mapping[str, Any]) -> Mapping[str, Any]:
    bare = {key: item for key, item in value.items() if key != "cache_control"}
    if is_list(bare.get("content")):
        bare["content"] = [_unmarked(block) if is_mapping(block) else block for block in bare["content"]]
    return bare
