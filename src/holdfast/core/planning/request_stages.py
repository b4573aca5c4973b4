"""A user's own stages of a request, beside those that shorten it.

A processor takes the messages of one request as provider JSON and returns them changed, left out or with others added.
It changes that request alone: the log keeps what was recorded, and the event of the request keeps what was sent. What
comes out is made valid and fitted into the budget like any request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import TypeAlias, cast

from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.transcript import MessageFormat
from holdfast.dataclass import dataclass
from holdfast.errors import MalformedInputError, SettingsError

RequestProcessor: TypeAlias = Callable[[list[dict[str, object]]], Sequence[Mapping[str, object]]]
"""Returns the messages of a request; it is called again whenever the request is planned anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProcessors:
    """Functions that change each request, by the stage at which they run; those of one stage run in their order."""

    attachments: tuple[RequestProcessor, ...] = ()
    """Before anything is shortened: attachments and documents in the provider's own form."""
    immediate_prompt: tuple[RequestProcessor, ...] = ()
    """After the request was shortened: what the model must be told right now."""
    file_content: tuple[RequestProcessor, ...] = ()
    """Last: the content of files and of tools."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value: object = getattr(self, item.name)
            functions = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (None,)
            if not all(map(callable, functions)):
                raise SettingsError(f"processors.{item.name}", f"must be a tuple of functions, not {value!r:.60}")


NO_PROCESSORS = RequestProcessors()


def processed_entries(
    entries: Sequence[Entry], processors: Sequence[RequestProcessor], message_format: MessageFormat, stage: str
) -> list[Entry]:
    """Return the entries after the processors of a stage; an entry that they leave alone stays the same value."""
    current = list(entries)
    for processor in processors:
        natives = [message_format.encode(entry.message) for entry in current]
        # A copy, because a stored message must not change if the processor writes into what it gets.
        given = [dict(deepcopy(native)) for native in natives]
        known = {id(copy): pair for copy, pair in zip(given, zip(current, natives, strict=True), strict=True)}
        place, returned = f"processors.{stage.replace(' ', '_')}", cast("object", processor(given))
        if not isinstance(returned, Iterable) or isinstance(returned, str | bytes | Mapping):
            name = getattr(processor, "__name__", "a processor")
            problem = f"{name} must be a plain function that returns the list of messages, not {returned!r:.60}"
            raise SettingsError(place, problem)
        messages = cast("Iterable[Mapping[str, object]]", returned)
        current = [_entry_of(native, known.get(id(native)), message_format, place) for native in messages]
    return current


def _entry_of(
    native: Mapping[str, object],
    known: tuple[Entry, Mapping[str, object]] | None,
    message_format: MessageFormat,
    place: str,
) -> Entry:
    """Return the entry of a processed message; `known` is what it was before, if it is not new."""
    if known is not None and native == known[1]:
        return known[0]
    try:
        message = message_format.decode(native, 0)
    except MalformedInputError as error:
        raise MalformedInputError(place, f"returned a message that cannot be sent: {error}") from error
    return Entry(message) if known is None else known[0].with_message(message)
