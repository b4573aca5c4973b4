"""What callers hand over, checked at the door: a wrong kind is named before it does harm, with what would do."""

from collections.abc import Mapping, Sequence
from typing import cast

from holdfast.core.conversation.json_values import cleaned_text, is_clean, written
from holdfast.core.conversation.messages import Message
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.wire.formats import Format, elements_of
from holdfast.wire.reading import Place


def read_messages(messages: object, wire: Format) -> tuple[list[Mapping[str, object]], list[Message]]:
    """Return messages, each an element of its own, and what they say."""
    natives, places = elements_of(wire, _listed(messages))
    decoded = [wire.decode(native, index) for index, native in zip(places, natives, strict=True)]
    return cast("list[Mapping[str, object]]", natives), decoded


def _listed(messages: object) -> list[object]:
    """Return messages as a list of objects, or say what is none."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise MalformedInputError("messages", f"must be a list of objects, not {messages!r:.60}")
    given = cast("Sequence[object]", messages)
    for index, native in enumerate(given):
        if not isinstance(native, Mapping):
            raise MalformedInputError(f"messages[{index}]", "must be an object")
    return list(given)


def read_beside(system: object, tools: object) -> tuple[object, Sequence[Mapping[str, object]] | None]:
    """Return system text and tools; whether JSON can carry what is in them is looked at when they change."""
    if isinstance(system, str):
        system = cleaned_text(system)
    if tools is None:
        return system, None
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise MalformedInputError("tools", f"must be a list of objects, not {shown(tools)}")
    given = cast("Sequence[object]", tools)
    for index, tool in enumerate(given):
        if not isinstance(tool, Mapping):
            raise MalformedInputError(f"tools[{index}]", f"must be an object, not {shown(tool)}")
    return system, cast("Sequence[Mapping[str, object]]", given)


def position(where: str, value: object) -> int:
    """Return the position of a message, or say what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedInputError(where, f"must be the position of a message, a whole number, not {shown(value)}")
    return value


def scope_named(value: object) -> str:
    """Return whose request it is."""
    if not isinstance(value, str) or not value:
        raise SettingsError("scope", f"must be the name of an agent's scope, such as 'main', not {shown(value)}")
    return value


def model_named(value: object) -> str | None:
    """Return the name of a model; None where nobody says."""
    if value is not None and not isinstance(value, str):
        raise SettingsError("model", f"must be the name of a model, not {shown(value)}")
    return value


def words(setting: str, value: object) -> str:
    """Return words."""
    if not isinstance(value, str):
        raise SettingsError(setting, f"must be text, not {shown(value)}")
    return value


def count(setting: str, value: object) -> int:
    """Return how many there are of something."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SettingsError(setting, f"must be a whole number from 0 on, not {shown(value)}")
    return value


def shown(value: object) -> str:
    """Return the beginning of what a value looks like."""
    try:
        return f"{value!r:.60}"
    except ValueError:  # an integer of thousands of digits
        return "a number without end"


def json_text(name: str, value: object) -> str:
    """Return what travels beside the messages as JSON, or say what in it cannot be sent."""
    Place(name).json(value, "")
    if not is_clean(value):
        raise MalformedInputError(name, "holds lone surrogates, NaN or infinity; mend it first")
    return written(value)
