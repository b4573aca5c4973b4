"""Reading JSON that may be anything.

Every decoder names the place of what it cannot read and says what would do; what can be mended
without losing anything is mended, and noted on the message.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeGuard, cast

from holdfast.core.conversation.json_values import Json, NotJsonError, dump_json, is_sendable_json, sendable_json
from holdfast.errors import MalformedInputError

_KINDS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "a boolean"),
    ((int, float), "a number"),
    ((str,), "a string"),
    ((list, tuple), "a list"),
    ((dict,), "an object"),
)


class InputPath:
    """Where in the input we are, and what had to be mended there."""

    __slots__ = ("_where", "repair_notes")

    def __init__(self, where: int | str) -> None:
        self._where = where
        self.repair_notes: list[str] = []

    @property
    def name(self) -> str:
        """The place in words: the index of a message, or the name of something else."""
        return self._where if isinstance(self._where, str) else f"messages[{self._where}]"

    def fail(self, path: str, problem: str) -> NoReturn:
        """Raise an error that names the place."""
        raise MalformedInputError(self.name + path, problem)

    def require_mapping(self, value: object, path: str, what: str = "an object") -> Mapping[str, Any]:
        """Return the value if it is an object."""
        if is_mapping(value):
            return value
        self.fail(path, f"must be {what}, not {json_type_name(value)}")

    def require_text(self, value: object, path: str) -> str:
        """Return the value if it is a string."""
        if isinstance(value, str):
            return value
        self.fail(path, f"must be a string, not {json_type_name(value)}")

    def sendable_message(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message that can be sent: itself, or a mended copy with a note."""
        try:
            if is_sendable_json(native):
                return native
        except NotJsonError as error:
            self.fail(error.path, error.problem)
        self.repair_notes.append("replaced lone surrogates by a replacement character, and NaN or infinity by null")
        return cast("dict[str, Any]", sendable_json(native))

    def sendable_value(self, value: object, path: str = "") -> Json:
        """Return a value that can be sent, mended where it has to be."""
        try:
            is_sendable_json(value)
        except NotJsonError as error:
            self.fail(path + error.path, error.problem)
        return sendable_json(value)

    def json_text(self, value: object, path: str) -> str:
        """Return a value as JSON text."""
        return json.dumps(self.sendable_value(value, path), ensure_ascii=False)


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value is a JSON object."""
    # Nearly everything is a plain dict, and asking for that first is ten times faster.
    return isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a JSON list."""
    return isinstance(value, list | tuple)


def json_type_name(value: object) -> str:
    """Return what a value is, in JSON's words where it has one."""
    if value is None:
        return "null"
    for kinds, name in _KINDS:
        if isinstance(value, kinds):
            return name
    return f"a {type(value).__name__}"


def preview_value(value: object) -> str:
    """Return a value as an error can show it."""
    return repr(value[:40]) if isinstance(value, str) else json_type_name(value)


def check_list(messages: object) -> list[object]:
    """Return the messages if they are a list of something."""
    if isinstance(messages, list):
        return cast("list[object]", messages)
    if isinstance(messages, tuple):
        return list(cast("tuple[object, ...]", messages))
    hint = "; read the JSON first" if isinstance(messages, str | bytes) else ""
    raise MalformedInputError("messages", f"must be a list of messages, not {json_type_name(messages)}{hint}")


def extra_fields(value: Any, known: frozenset[str] | None) -> str:
    """Return fields that no part stands for as JSON text: they are sent, so they count; None knows all."""
    if known is None or not is_mapping(value) or value.keys() <= known:
        return ""
    return json.dumps({key: item for key, item in value.items() if key not in known}, ensure_ascii=False)


def json_bytes(value: object) -> int:
    """Return the size of a value as clients send it: compact, in UTF-8."""
    return len(dump_json(value).encode())
