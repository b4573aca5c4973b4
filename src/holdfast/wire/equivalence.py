"""When two messages say the same, although a client has written one of them differently.

Clients keep the conversation themselves and send it again with every request. Between two requests they add fields of
their own, leave out empty ones, write a text as a block, or move their cache marks. The essential form of a message
leaves out everything that makes no difference to what was said, so that equal forms mean equal messages. It is used to
compare messages only, never to send them.
"""

import json
from collections.abc import Container, Mapping
from typing import Any

from holdfast.core.conversation.json_values import MAX_JSON_DEPTH
from holdfast.wire.gemini import FIELD_SPELLINGS, SIGNATURE_FIELD, camel_case_keys
from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.media import standard_base64

_REASONING = frozenset({"reasoning", "reasoning_content", "reasoning_details"})
"""Members that clients leave out later, if anything else is said."""
_SAID = frozenset({"role", "content", "tool_calls", "function_call"})
"""What a message of the model says. Clients leave out what stands beside it, such as references and reasoning."""
_SAID_WITHOUT_CONTENT = _SAID | {"refusal", "audio"}
"""What it says that has neither a text nor calls."""
_SAID_IN_BLOCKS = {"text": ("type", "text"), "tool_use": ("type", "id", "name", "input")}
"""What blocks of the model say, by their types; of others, every member counts."""
_SAID_IN_ITEMS = {
    "function_call": ("type", "call_id", "name", "arguments"),
    "custom_tool_call": ("type", "call_id", "name", "input"),
}
"""What items of the model say, by their types."""
_CALL_MEMBERS = ("id", "type", "function", "custom")
_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "refusal", "audio")
"""Members beside which an empty content says nothing."""
_THINKING_TYPES = ("thinking", "redacted_thinking")
"""Blocks that clients leave out of earlier turns, if there is other content."""
_WITH_ITEM_ID = ("item_reference",)
"""Items that their id alone identifies."""
_TEXT_TYPES = ("text", "input_text", "output_text")
_MAX_EXACT_INTEGER = 2**53
"""The largest integer up to which a client that has all numbers as floating point writes each as it came."""


def essential_message(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a chat message, an Anthropic message or a Responses item says."""
    message = _essential_members(native)
    kind = message.get("type")
    if kind not in _WITH_ITEM_ID and (kind is not None or "role" in message):
        message.pop("id", None)
    message.pop("status", None)
    if kind == "message":
        del message["type"]
    for key in ("content", "output"):
        if key in message:
            message[key] = _essential_content(message[key], role=message.get("role"))
    if "arguments" in message:
        message["arguments"] = _essential_arguments(message["arguments"])
    if is_mapping(audio := message.get("audio")) and "id" in audio:
        message["audio"] = {"id": audio["id"]}
    if is_list(calls := message.get("tool_calls")):
        message["tool_calls"] = [_essential_call(call) for call in calls]
    has_other = any(message.get(name) for name in _INSTEAD_OF_CONTENT)
    if not message.get("content") and has_other:
        message.pop("content", None)
    if message.get("content") or has_other:
        message = _said_by(message)
    return _said_by_item(kind, message) if isinstance(kind, str) and kind != "message" else message


def _said_by_item(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    """Return an item of Responses without what its client may leave out or add later."""
    is_call = kind in _SAID_IN_ITEMS
    return _only(item, _SAID_IN_ITEMS.get(kind)) if is_call or kind.endswith("_output") else _without_nulls(item)


def _said_by(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message that says something, without what its client may leave out later."""
    has_content = message.get("content") or message.get("tool_calls")
    if message.get("role") == "assistant":
        return _only(message, _SAID if has_content else _SAID_WITHOUT_CONTENT)
    beside = _REASONING | {"refusal", "audio"} if has_content else _REASONING
    return {key: value for key, value in message.items() if key not in beside}


def _only(value: dict[str, Any], names: Container[str] | None) -> dict[str, Any]:
    return value if names is None else {key: item for key, item in value.items() if key in names}


def _essential_members(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are neither null, nor a client's own, nor marks or notes that are empty."""
    return {
        key: item
        for key, item in value.items()
        if item is not None
        and not key.startswith("__")
        and key != "cache_control"
        and not (key in {"annotations", "logprobs", "tool_calls"} and not item)
    }


def essential_gemini_content(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a content of Gemini says, without thoughts, signatures and the ids that clients give to calls.

    Clients join the texts of a stream, and may repeat a result when they resume.
    """
    parts = native.get("parts")
    if not is_list(parts):
        return native
    essential: list[Any] = []
    texts: list[list[str]] = []
    """For each part, the pieces of its text; joined one by one they would take quadratic time."""
    for part in parts:
        if is_mapping(part) and part.get("thought"):
            continue
        members = _essential_part(part) if is_mapping(part) else part
        text = members.get("text") if is_mapping(members) else None
        if texts and texts[-1] and isinstance(text, str):
            texts[-1].append(text)
        elif members != {} and not _is_repeated_result(members, essential):
            essential.append(members)
            texts.append([text] if isinstance(text, str) else [])
    trimmed = [
        {**one, "text": "".join(pieces).strip()} if pieces else one
        for one, pieces in zip(essential, texts, strict=True)
    ]
    return {**native, "parts": [one for one in trimmed if one != {"text": ""}]}


def _essential_part(part: Mapping[str, Any]) -> dict[str, Any]:
    spelled = {FIELD_SPELLINGS.get(key, key): value for key, value in part.items()}
    if is_mapping(call := spelled.get("functionCall")):
        spelled["functionCall"] = {**call, "args": essential_value(call.get("args") or {})}
    return {key: _essential_member(value) for key, value in spelled.items() if key != SIGNATURE_FIELD}


def _is_repeated_result(part: Any, before: list[Any]) -> bool:
    return is_mapping(part) and "functionResponse" in part and bool(before) and part == before[-1]


def _essential_member(value: Any) -> Any:
    """Return a member of a part without its id, spelled and encoded as Gemini answers."""
    if not is_mapping(value):
        return value
    members = {key: item for key, item in camel_case_keys(value).items() if key != "id"}
    return members | {"data": standard_base64(data)} if isinstance(data := members.get("data"), str) else members


def _essential_content(content: Any, *, role: object) -> Any:
    """Return content as a list of blocks, without white space around what somebody said and without old thinking."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not is_list(blocks):
        return blocks
    essential = [_essential_block(block, role=role) for block in blocks]
    said = [block for block in essential if not (is_mapping(block) and block.get("type") in _THINKING_TYPES)]
    return [block for block in said or essential if block != {"type": "text", "text": ""}]


def _essential_block(block: Any, *, role: object) -> Any:
    if not is_mapping(block):
        return block
    members = _essential_members(block)
    if members.get("type") in _TEXT_TYPES:
        members["type"] = "text"
        if isinstance(text := members.get("text"), str):
            members["text"] = text.rstrip() if role == "user" else text
    if role == "assistant" and isinstance(kind := members.get("type"), str):
        members = _only(members, _SAID_IN_BLOCKS.get(kind))
        members = members if kind in _SAID_IN_BLOCKS else _without_nulls(members)
        members.pop("caller", None)  # who calls a server tool; clients that write its blocks again leave it out
        if "input" in members:
            members["input"] = essential_value(members["input"])
    if members.get("type") == "tool_result" and "content" in members:
        members["content"] = _essential_content(members["content"], role=None)
    return members


def _essential_call(call: Any) -> Any:
    if not is_mapping(call):
        return call
    members = _only(_essential_members(call), _CALL_MEMBERS)
    if is_mapping(function := members.get("function")):
        members.setdefault("type", "function")  # some servers leave it out, and clients add it
        members["function"] = {
            "name": function.get("name"),
            "arguments": _essential_arguments(function.get("arguments")),
        }
    return members


def _essential_arguments(arguments: Any) -> Any:
    """Return the value of a call's arguments: clients that parse them write them again with other white space.

    Some providers write no text at all for a call without arguments, and clients send it back with an empty object.
    """
    try:
        return essential_value(json.loads(arguments.strip() or "{}") if isinstance(arguments, str) else arguments)
    except (ValueError, RecursionError):
        return arguments


def _without_nulls(value: Any, depth: int = 0) -> Any:
    """Return what a provider's own tool did, without members that are null, which libraries add."""
    if depth > MAX_JSON_DEPTH:
        return value
    if is_mapping(value):
        return {key: _without_nulls(item, depth + 1) for key, item in value.items() if item is not None}
    return [_without_nulls(item, depth + 1) for item in value] if is_list(value) else value


def essential_value(value: Any, depth: int = 0) -> Any:
    """Return a value with its numbers as clients in JavaScript write them: 1.0 as 1, and a long integer rounded."""
    if isinstance(value, str | bool) or value is None or depth > MAX_JSON_DEPTH:
        return value
    if is_mapping(value):
        return {key: essential_value(item, depth + 1) for key, item in value.items()}
    if is_list(value):
        return [essential_value(item, depth + 1) for item in value]
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return value
    return int(number) if number.is_integer() and abs(number) <= _MAX_EXACT_INTEGER else number
