"""What callers hand over, checked at the door."""

from collections.abc import Mapping, Sequence
from typing import cast

from holdfast.core.conversation.messages import Message
from holdfast.errors import MalformedInputError
from holdfast.wire.formats import Format, elements_of


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
