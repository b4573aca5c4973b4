"""Anthropic Messages: blocks in user and assistant turns, with system text outside the messages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.conversation.batching import RESULTS_IN_ONE_MESSAGE
from holdfast.core.conversation.json_values import parse_json
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
from holdfast.core.conversation.tokens import utf8_length
from holdfast.core.conversation.transcript import MessageMeasures
from holdfast.text import lazy_pattern
from holdfast.wire.json_reader import InputPath, extra_fields, is_list, is_mapping, measure_messages, replace_items
from holdfast.wire.media import (
    PDF_NAME,
    PDF_TYPE,
    data_tokens,
    image_source,
    image_tokens,
    is_data_block,
    opaque_block,
    pdf_data,
    pdf_name,
)

ANTHROPIC_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant"}
_ROLES_WITHIN: Mapping[str, Role] = {**ANTHROPIC_ROLES, "system": "user"}
"""Also of messages after the first: system text there follows a turn of the user."""
COMPACTION_BLOCK = "compaction"
"""The provider's own summary of everything before it, which it reads instead of that."""
_TOOL_CHANGES = frozenset({"tool_addition", "tool_removal"})
_SYSTEM_FIELDS = ("clear_at", "output_config")
"""Fields that only a system message may have."""
MAX_CACHE_MARKS = 4
_TOOL_NAME = lazy_pattern(r"[a-zA-Z0-9_-]{1,128}")
_THINKING_TYPES = ("thinking", "redacted_thinking")
_FIELDS = frozenset({"role", "content"})
_BLOCK_FIELDS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "text"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    "image": frozenset({"type", "source"}),
    "document": frozenset({"type", "source"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error"}),
}
"""The fields that parts represent, by type of block; other fields are sent too, and counted as JSON."""


class AnthropicMessages:
    """Reads and writes Anthropic messages."""

    name = "anthropic-messages"
    batching = RESULTS_IN_ONE_MESSAGE
    has_separate_system = True
    max_cache_marks: int | None = MAX_CACHE_MARKS
    max_text_chars: int | None = None
    max_images = 100

    def measure(self, natives: Sequence[Any], start: int) -> MessageMeasures:
        if start == 0 and natives and is_mapping(natives[0]) and natives[0].get("role") == "system":
            InputPath(0).require_role(natives[0], ANTHROPIC_ROLES)
        return measure_messages(natives, start, _measure_message, self.decode)

    def decode(self, native: object, index: int) -> Message:
        place = InputPath(index)
        native = place.require_message(native)
        role = place.require_role(native, _ROLES_WITHIN)
        native = _repair_message(place.sendable_message(native), role, place)
        trust = "system" if native.get("role") == "system" else TRUST_OF_ROLE[role]
        parts = place.decode_blocks(native.get("content"), trust, ".content", _part)
        extras = extra_fields(native, _FIELDS) + _extras(native.get("content"))
        # One that ends with the turn that it follows belongs to that turn.
        holds_on = trust == "system" and native.get("clear_at") != "next_user_message"
        kept_role: Role = "system" if parts and (holds_on or _is_fixed(parts)) else role
        if not parts and trust == "system" and is_mapping(native.get("output_config")):
            # A message may only change the effort. Without a part it would count as empty.
            parts, extras = (Opaque("output_config", extras, trust, native),), ""
        return Message(kept_role, parts, native, parts, tuple(place.repair_notes), extras)

    def encode(self, message: Message) -> Mapping[str, Any]:
        if message.is_unedited and message.native is not None:
            return message.native
        native: Mapping[str, Any] = message.native or {"role": "user" if message.role == "tool" else message.role}
        return {**native, "content": _content_json(message.parts, native.get("content"))}


def _is_fixed(parts: Sequence[Part]) -> bool:
    """Return whether every later request needs a message: it replaces all before it, or changes the tools.

    Such a message is treated as system text. An answer that continues after a compaction stays the model's.
    """
    kinds = [part.kind if isinstance(part, Opaque) else "" for part in parts]
    return not _TOOL_CHANGES.isdisjoint(kinds) or (
        bool(parts) and all(isinstance(part, Opaque) and part.is_fixed for part in parts)
    )


def _extras(content: Any) -> str:
    """Return every field of blocks that no part represents, as JSON text."""
    if not is_list(content):
        return ""
    extras = ""
    for block in content:
        kind = str(block.get("type"))
        extras += extra_fields(block, _BLOCK_FIELDS.get(kind))
        if kind == "tool_result":
            extras += _extras(block.get("content"))
    return extras


def _measure_message(native: Any) -> tuple[Role, int, bool]:
    return ANTHROPIC_ROLES[native["role"]], *_measure_content(native["content"])


def _measure_content(content: Any) -> tuple[int, bool]:
    """Return the size of plain content and whether it is more than results; raises if it is not plain."""
    if isinstance(content, str):
        return utf8_length(content), True
    size, is_prompt = 0, False
    for block in content:
        kind = block["type"]
        if kind == "text":
            size += utf8_length(block["text"])
            is_prompt = True
        elif kind == "tool_use":
            size += len(block["id"] + block["name"]) + len(json.dumps(block["input"], allow_nan=False))
        elif kind == "tool_result":
            size += len(block["tool_use_id"] + "") + _measure_content(block.get("content") or "")[0]
        else:
            raise ValueError(kind)
    return size, is_prompt


def _repair_message(native: Mapping[str, Any], role: Role, place: InputPath) -> Mapping[str, Any]:
    """Return a message that the provider accepts, with a note for each repair."""
    content = native.get("content")
    if not is_list(content):
        return native
    blocks = [block for raw in content if (block := _repair_block(raw, role, place)) is not None]
    return replace_items(native, "content", blocks)


def _repair_block(block: Any, role: Role, place: InputPath) -> Any:
    kind = block.get("type") if is_mapping(block) else None
    # Services that imitate this API write empty signatures, and need their reasoning again.
    if kind == "thinking" and "thinking" in block and not isinstance(block.get("signature"), str):
        place.repair_notes.append("left out reasoning without a signature")
        return None
    if (kind == "tool_use" and role != "assistant") or (kind == "tool_result" and role != "user"):
        place.repair_notes.append(f"left out a {kind} in a message of the {role}")
        return None
    if kind in _THINKING_TYPES and "cache_control" in block:
        place.repair_notes.append("removed a cache mark from reasoning, which cannot be marked")
        return {key: value for key, value in block.items() if key != "cache_control"}
    if kind == "tool_result" and block.get("is_error") and not _is_text_only(block.get("content")):
        place.repair_notes.append("left out the mark of a failed tool result: it holds more than text")
        return {key: value for key, value in block.items() if key != "is_error"}
    if kind != "tool_use":
        return _without_blank_inside(block, kind, place)
    changes: dict[str, Any] = {}
    if not is_mapping(block.get("input")):
        changes["input"] = {} if block.get("input") is None else {"arguments": block["input"]}
        place.repair_notes.append("wrapped the input of a tool_use that was not an object")
    if not block.get("name"):
        changes["name"] = "tool"
        place.repair_notes.append("added a missing name to a tool_use")
    changes |= place.repair_name(block.get("name"), _TOOL_NAME)
    return {**block, **changes} if changes else block


def _is_text_only(content: Any) -> bool:
    return not is_list(content) or all(is_mapping(block) and block.get("type") == "text" for block in content)


def _without_blank_inside(block: Any, kind: object, place: InputPath) -> Any:
    """Return a provider's own block without the empty texts inside it."""
    inner = block.get("content") if is_mapping(block) and str(kind) not in _BLOCK_FIELDS else None
    if not is_list(inner) or not any(map(_is_blank_text, inner)):
        return block
    place.repair_notes.append("removed an empty text")
    left = [item for item in inner if not _is_blank_text(item)]
    return {**block, "content": left} if left or kind != "search_result" else None


def _is_blank_text(block: Any) -> bool:
    if not is_mapping(block) or block.get("type") != "text":
        return False
    text = block.get("text")
    return not isinstance(text, str) or not text.strip()


def _part(block: Mapping[str, Any], kind: str, trust: Trust, place: InputPath, path: str) -> Part:
    if kind == "tool_use":
        name = place.optional_text(block, "name", path)
        arguments = place.json_text(block.get("input", {}), f"{path}.input")
        call_id = place.optional_text(block, "id", path)
        return ToolCall(call_id, name, arguments, native=block, caller=_caller(block))
    if kind == "tool_result":
        return _result(block, place, path)
    if kind == "thinking":
        text = place.require_text(block.get("thinking"), f"{path}.thinking")
        return Thinking(text, place.require_text(block.get("signature"), f"{path}.signature"), native=block)
    if kind == "redacted_thinking":
        return Thinking("", place.optional_text(block, "data", path), native=block)
    return _content(block, kind, trust, place, path)


def _caller(block: Mapping[str, Any]) -> str:
    """Return the id of the server tool use whose program made a call; empty if the model made it directly."""
    return str(caller.get("tool_id") or "") if is_mapping(caller := block.get("caller")) else ""


def _content(block: Mapping[str, Any], kind: str, trust: Trust, place: InputPath, path: str) -> Content:
    if kind == "text":
        return Text(place.require_text(block.get("text"), f"{path}.text"), trust, block)
    if kind == "image":
        return Media("image", trust, image_tokens(), block)
    source = block.get("source")
    if kind == "document" and is_mapping(source) and str(source.get("type")) not in {"text", "content"}:
        return Media("document", trust, data_tokens(source.get("data")), block)
    for key in ("id", "tool_use_id"):
        if key in block:
            place.require_text(block[key], f"{path}.{key}")
    # The provider's own tools pair by id like others, and a result may come in a later answer than its use.
    use = str(block.get("id")) if kind.endswith("_tool_use") else ""
    result = str(block.get("tool_use_id")) if kind.endswith("_tool_result") else ""
    # A compaction that failed has no content, and the provider ignores it.
    is_fixed = kind == COMPACTION_BLOCK and block.get("content") is not None
    opaque = opaque_block(kind, block, trust, place, path)
    # A signature says that the API takes the block at the beginning of the conversation alone.
    is_first = is_fixed and bool(block.get("signature"))
    return replace(opaque, server_use=use, server_result=result, is_fixed=is_fixed, is_first=is_first)


def _result(block: Mapping[str, Any], place: InputPath, path: str) -> ToolResult:
    value = block.get("content")
    content = (
        (Text(value, "tool"),)
        if isinstance(value, str)
        else place.decode_blocks(value, "tool", f"{path}.content", _content)
    )
    call_id = place.optional_text(block, "tool_use_id", path)
    return ToolResult(call_id, content, bool(block.get("is_error")), native=block)


def _content_json(parts: Sequence[Part], original: object) -> object:
    """Return content as a string if it is one text and was not a list before, else as a list of blocks."""
    if not is_list(original) and len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [_block_json(part) for part in parts]


def _block_json(part: Part) -> Mapping[str, Any]:
    if isinstance(part, Text):
        if not is_mapping(part.native):
            return {"type": "text", "text": part.text}
        return {**part.native, "text": part.text} if part.is_edited else part.native
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


def _call_json(call: ToolCall) -> Mapping[str, Any]:
    block = call.native if is_mapping(call.native) else {"type": "tool_use"}
    if block.get("type") == "tool_use" and not call.is_edited and "id" in block:
        return block
    edited = {**block, "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}
    if _caller(block) and not call.caller:
        del edited["caller"]
    return edited


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call as an object, wrapped if they are not one."""
    try:
        value = parse_json(arguments or "{}")
    except ValueError:
        return {"arguments": arguments}
    return dict(value) if is_mapping(value) else {"arguments": value}


def _result_json(result: ToolResult) -> Mapping[str, Any]:
    block = result.native if is_mapping(result.native) else {"type": "tool_result"}
    if result.native is not None and not result.is_edited:
        return block
    content = _content_json(result.content, block.get("content"))
    edited = {**block, "tool_use_id": result.call_id, "content": content}
    # A failed result may hold text alone.
    return {**edited, "is_error": True} if result.is_error and _is_text_only(content) else edited


def _media_json(media: Media) -> Mapping[str, Any]:
    native = media.native
    if is_mapping(native) and native.get("type") in {"image", "document"} and not is_data_block(native):
        return native
    if (pdf := pdf_data(media)) is not None:
        title = {"title": name} if (name := pdf_name(media)) != PDF_NAME else {}
        return {"type": "document", "source": {"type": "base64", "media_type": PDF_TYPE, "data": pdf}, **title}
    source = image_source(media)
    if source is None:
        return {"type": "text", "text": f"[{media.kind} not carried over]"}
    kind, data = source
    if kind == "url":
        return {"type": "image", "source": {"type": "url", "url": data}}
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def count_cache_marks(blocks: object) -> int:
    """Return the number of cache marks in a list of messages, blocks or tools."""
    if not is_list(blocks):
        return 0
    return sum(
        ("cache_control" in block and block["cache_control"] is not None) + count_cache_marks(block.get("content"))
        for block in blocks
        if is_mapping(block)
    )


def place_system_messages(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages in which those of the role `system` are the user's where the provider refuses that role.

    It accepts one after a message of the user, before one of the assistant or at the end.
    """
    roles = [message.get("role") for message in messages]
    if "system" not in roles:
        return [*messages]
    before, after = [None, *roles], [*roles[1:], "assistant"]
    return [
        _as_user(message) if role == "system" and (previous, following) != ("user", "assistant") else message
        for message, role, previous, following in zip(messages, roles, before, after, strict=False)
    ]


def _as_user(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a system message as the user's, without the fields that only a system message may have."""
    config = message.get("output_config")
    placed = {**message, "role": "user"}
    for name in _SYSTEM_FIELDS:
        placed.pop(name, None)
    if not placed.get("content"):
        effort = config.get("effort") if is_mapping(config) else None
        placed["content"] = f"[Setting of the conversation: effort {effort}]"
    return placed


def drop_excess_cache_marks(messages: Sequence[Mapping[str, Any]], allowed: int) -> list[Mapping[str, Any]]:
    """Return messages without the oldest cache marks, so that at most `allowed` are left."""
    excess = count_cache_marks(messages) - max(0, allowed)

    def without_first_marks(block: Any) -> Any:
        nonlocal excess
        if excess <= 0 or not count_cache_marks([block]):
            return block
        bare = dict(block)
        if bare.get("cache_control") is not None:
            del bare["cache_control"]
            excess -= 1
        if is_list(content := bare.get("content")):
            bare["content"] = [without_first_marks(inner) for inner in content]
        return bare

    return [without_first_marks(message) for message in messages]
