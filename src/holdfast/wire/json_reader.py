"""Reads JSON that may be anything, and holds what the decoders of several formats share.

A decoder names the place of what it cannot read and says what it expects there. It repairs what can be repaired
without loss, and records that as a note on the message.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, NoReturn, TypeGuard, TypeVar, cast

from holdfast.core.conversation.json_values import Json, NotJsonError, copied_json, is_sendable_json, sendable_json
from holdfast.core.conversation.messages import Message, Role, Text, Trust
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD_BYTES, message_bytes
from holdfast.core.conversation.transcript import MessageMeasures
from holdfast.core.schema import short_repr
from holdfast.errors import MalformedInputError

T = TypeVar("T")
_TYPE_NAMES: Mapping[type, str] = {
    NoneType: "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}
OBJECT_HINT = "turn SDK objects into dicts first"


class InputPath:
    """The message that is being decoded, and what had to be repaired in it."""

    __slots__ = ("_root", "repair_notes")

    def __init__(self, root: int | str) -> None:
        """Take the index of a message, or the name of another input."""
        self._root = root
        self.repair_notes: list[str] = []

    def fail(self, path: str, problem: str) -> NoReturn:
        """Raise an error that names the place."""
        root = self._root if isinstance(self._root, str) else f"messages[{self._root}]"
        raise MalformedInputError(root + path, problem)

    def require_message(self, native: object, hint: str = OBJECT_HINT) -> Mapping[str, Any]:
        """Return a message if it is an object."""
        if is_mapping(native):
            return native
        self.fail("", f"must be an object, not {type(native).__name__}; {hint}")

    def require_role(self, native: Mapping[str, Any], roles: Mapping[str, Role]) -> Role:
        """Return the role of a message if it is one of the provider's `roles`."""
        spelled = native.get("role")
        role = roles.get(spelled) if isinstance(spelled, str) else None
        if role is not None:
            return role
        choices = f"one of: {', '.join(roles)}" if "system" in roles else " or ".join(map(repr, roles))
        hint = "; system text goes into system=" if spelled == "system" else ""
        self.fail(".role", f"{preview_value(spelled)} is not a role; use {choices}{hint}")

    def require_mapping(self, value: object, path: str, what: str = "an object") -> Mapping[str, Any]:
        """Return a value if it is an object."""
        if is_mapping(value):
            return value
        self.fail(path, f"must be {what}, not {json_type_name(value)}")

    def require_text(self, value: object, path: str) -> str:
        """Return a value if it is a string."""
        if isinstance(value, str):
            return value
        self.fail(path, f"must be a string, not {json_type_name(value)}")

    def optional_text(self, native: Mapping[str, Any], key: str, path: str = "") -> str:
        """Return the string under a key, or an empty one if there is none."""
        return "" if native.get(key) is None else self.require_text(native[key], f"{path}.{key}")

    def decode_blocks(
        self,
        value: object,
        trust: Trust,
        path: str,
        decode_block: Callable[[Mapping[str, Any], str, Trust, "InputPath", str], T],
    ) -> tuple[T | Text, ...]:
        """Return the parts of content: a string, a list of blocks, or null. `decode_block` gets the type of a block."""
        if value is None or isinstance(value, str):
            return (Text(value, trust),) if value else ()
        if not is_list(value):
            self.fail(path, f"must be a string or a list of blocks, not {json_type_name(value)}")
        parts: list[T] = []
        for number, item in enumerate(value):
            place = f"{path}[{number}]"
            block = self.require_mapping(item, place, "an object with a type")
            kind = self.require_text(block.get("type"), f"{place}.type")
            parts.append(decode_block(block, kind, trust, self, place))
        return tuple(parts)

    def sendable_message(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message that can be sent: itself, or a repaired copy with a note."""
        try:
            if is_sendable_json(native):
                return native
        except NotJsonError as error:
            self.fail(error.path, error.problem)
        self.repair_notes.append("replaced lone surrogates by a replacement character, and NaN or infinity by null")
        return cast("dict[str, Any]", sendable_json(native))

    def sendable_value(self, value: object, path: str = "") -> Json:
        """Return a value that can be sent, repaired if needed."""
        try:
            is_sendable_json(value)
        except NotJsonError as error:
            self.fail(path + error.path, error.problem)
        return sendable_json(value)

    def json_text(self, value: object, path: str) -> str:
        """Return a value as JSON text."""
        return json.dumps(self.sendable_value(value, path), ensure_ascii=False)

    def text_or_json(self, value: object, path: str) -> str:
        """Return a string as it is, and any other value as JSON text."""
        return value if isinstance(value, str) else self.json_text(value, path)

    def repair_name(self, name: object, accepted: re.Pattern[str]) -> dict[str, str]:
        """Return the change that the name of a tool needs, in a call and in its result alike; {} if it needs none."""
        if not isinstance(name, str) or not name or accepted.fullmatch(name):
            return {}
        safe = safe_tool_name(name)
        # Gemini's names begin with a letter or an underscore.
        safe = safe if accepted.fullmatch(safe) else f"_{safe}"[:MAX_SAFE_NAME_CHARS]
        self.repair_notes.append(f"the tool {name!r} was renamed to {safe!r}")
        return {"name": safe}

    def repair_text_call(
        self, call: Mapping[str, Any], key: str, path: str, accepted_name: re.Pattern[str]
    ) -> dict[str, Any]:
        """Return the changes that a call needs: arguments under `key` that are text, and a name."""
        changes: dict[str, Any] = {}
        if not isinstance(call.get(key), str):
            value = call.get(key)
            changes[key] = "{}" if value is None else self.json_text(value, f"{path}.{key}")
            self.repair_notes.append("wrote the arguments of a call as JSON text")
        if call.get("name") == "":
            changes["name"] = "tool"
            self.repair_notes.append("added a missing name to a call")
        return changes | self.repair_name(call.get("name"), accepted_name)


MAX_SAFE_NAME_CHARS = 64


def safe_tool_name(name: str) -> str:
    """Return the name of a tool shortened and cleaned so that every provider accepts it."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:MAX_SAFE_NAME_CHARS] or "tool"


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value is a JSON object."""
    # Nearly every object is a plain dict, and that check is ten times faster.
    return isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a JSON list."""
    return isinstance(value, list | tuple)


def as_object(value: object) -> dict[str, Any]:
    """Return a value if it is a JSON object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def objects_in(value: object) -> list[dict[str, Any]]:
    """Return the JSON objects in a list; none if it is no list."""
    return [cast("dict[str, Any]", one) for one in value if isinstance(one, dict)] if is_list(value) else []


def json_type_name(value: object) -> str:
    """Return the type of a value, in the words of JSON if possible."""
    names = (name for kind, name in _TYPE_NAMES.items() if isinstance(value, kind))
    return next(names, f"a {type(value).__name__}")


def preview_value(value: object) -> str:
    """Return a value as an error message shows it."""
    return repr(value[:40]) if isinstance(value, str) else json_type_name(value)


def check_list(messages: object) -> list[object]:
    """Return messages as a list; raises if they are no list."""
    if is_list(messages):
        return messages if isinstance(messages, list) else list(messages)
    hint = "; parse the JSON first" if isinstance(messages, str | bytes) else ""
    raise MalformedInputError("messages", f"must be a list of messages, not {json_type_name(messages)}{hint}")


def check_tools(tools: object) -> Sequence[Mapping[str, object]] | None:
    """Return tools as they were given; raises if they are no list of objects."""
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise MalformedInputError("tools", f"must be a list of objects, not {short_repr(tools)}")
    for index, tool in enumerate(cast("Sequence[object]", tools)):
        if not isinstance(tool, Mapping):
            is_json = tool is None or isinstance(tool, str | int | float)
            shown = short_repr(tool) if is_json else f"{type(tool).__name__}; {OBJECT_HINT}"
            raise MalformedInputError(f"tools[{index}]", f"must be an object, not {shown}")
    return cast("Sequence[Mapping[str, object]]", tools)


def extra_fields(value: Any, known: frozenset[str] | None) -> str:
    """Return the fields that no part represents as JSON text: they are sent, so they count. None knows all fields."""
    if known is None or not is_mapping(value) or value.keys() <= known:
        return ""
    return json.dumps(copied_json({key: item for key, item in value.items() if key not in known}), ensure_ascii=False)


def replace_items(native: Mapping[str, Any], key: str, items: Sequence[Any]) -> Mapping[str, Any]:
    """Return an object with other items under a key; the object itself if they are the same items."""
    old_items = native[key]
    is_same = len(items) == len(old_items) and all(new is old for new, old in zip(items, old_items, strict=True))
    return native if is_same else {**native, key: items}


def measure_messages(
    natives: Sequence[Any],
    start: int,
    measure_plain: Callable[[Any], tuple[Role, int, bool]],
    decode: Callable[[object, int], Message],
) -> MessageMeasures:
    """Return the sizes and roles of messages.

    `measure_plain` returns the role and the size of a plain message, and whether it is more than tool results. It
    raises for any other message; such a message is decoded, which refuses it if it has to.
    """
    measures = MessageMeasures([], [], [])
    for index, native in enumerate(natives, start):
        try:
            role, size, is_prompt = measure_plain(native)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            message = decode(native, index)
            role, size, is_prompt = message.role, message_bytes(message), message.is_prompt
            if role != "system" and message.outline.is_fixed:
                measures.systems.append(index)
        measures.sizes.append(size + MESSAGE_OVERHEAD_BYTES)
        if role == "system":
            measures.systems.append(index)
        elif role == "user" and is_prompt:
            measures.prompts.append(index)
    return measures
