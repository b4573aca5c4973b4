"""A user's own stages of a request, beside those that shorten it.

A processor takes the messages of one request as provider JSON and returns them changed, left out or with others added.
It changes that request alone: the log keeps what was recorded, and the event of the request keeps what was sent. What
comes out is made valid and fitted into the budget like any request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from itertools import takewhile
from typing import TypeAlias, cast

from holdfast.core.conversation.messages import Entry, Message, Text, Trust
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
        if not current:
            break  # there is nothing to change, and a function may read the last message
        natives = [message_format.encode(entry.message) for entry in current]
        # A copy, because a stored message must not change if the processor writes into what it gets.
        given = [dict(deepcopy(native)) for native in natives]
        indices = {id(copy): index for index, copy in enumerate(given)}
        place, result = f"processors.{stage.replace(' ', '_')}", cast("object", processor(given))
        if not isinstance(result, Iterable) or isinstance(result, str | bytes | Mapping):
            name = getattr(processor, "__name__", "a processor")
            problem = f"{name} must be a plain function that returns the list of messages, not {result!r:.60}"
            raise SettingsError(place, problem)
        returned = list(cast("Iterable[Mapping[str, object]]", result))
        origins = [indices.get(id(native)) for native in returned]
        messages = [
            current[origin].message
            if origin is not None and native == natives[origin]
            else _decoded(native, message_format, place)
            for native, origin in zip(returned, origins, strict=True)
        ]
        if None in origins:
            origins = _with_origins_of_copies(origins, messages, [entry.message for entry in current])
        current = [
            Entry(message)
            if origin is None
            else current[origin]
            if native == natives[origin]
            else current[origin].with_message(_labelled(message, current[origin].message))
            for native, message, origin in zip(returned, messages, origins, strict=True)
        ]
    return current


def _decoded(native: Mapping[str, object], message_format: MessageFormat, place: str) -> Message:
    try:
        return message_format.decode(native, 0)
    except MalformedInputError as error:
        raise MalformedInputError(place, f"returned a message that cannot be sent: {error}") from error


def _labelled(message: Message, given: Message) -> Message:
    """Return a changed message with the trust label of the given one, which its JSON does not have.

    Otherwise a summary or a note from memory would count as the user's own words.
    """
    labels: set[Trust] = {part.trust for part in given.parts if isinstance(part, Text)}
    return message.with_trust(labels.pop()) if len(labels) == 1 and message.role == given.role else message


def _with_origins_of_copies(
    origins: Sequence[int | None], messages: Sequence[Message], given: Sequence[Message]
) -> list[int | None]:
    """Return where messages come from, also those that a processor has returned as new objects.

    Otherwise the newest prompt and pins would count as added by the processor, and might be left out. A message with
    the words of a given one is that one, the newest first. Others are changed copies if they match in kind what was
    given between two known ones.
    """
    found, used = list(origins), {*origins}
    same: dict[object, list[int]] = {}
    for index, message in enumerate(given):
        if index not in used:
            same.setdefault((message.text, _kind(message)), []).append(index)
    for at in range(len(found) - 1, -1, -1):
        if found[at] is None and (indices := same.get((messages[at].text, _kind(messages[at])))):
            found[at] = indices.pop()
            used.add(found[at])
    start = 0
    for stop, origin in enumerate([*found, len(given)]):
        if origin is None:
            continue
        first = (found[start - 1] or 0) + 1 if start else 0
        new, left = range(start, stop), [index for index in range(first, origin) if index not in used]
        for at, index in _changed_copies(new, left, messages, given, is_end=stop == len(found)):
            found[at] = index
        start = stop + 1
    return found


def _changed_copies(
    new: Sequence[int], left: Sequence[int], messages: Sequence[Message], given: Sequence[Message], *, is_end: bool
) -> list[tuple[int, int]]:
    """Return pairs of new and given messages that match in kind, counted from the end or from the start."""
    if len(new) < len(left) and not is_end:
        return []  # something was left out or replaced by other words, such as a summary

    def matching(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        return list(takewhile(lambda pair: _kind(messages[pair[0]]) == _kind(given[pair[1]]), pairs))

    from_end = matching(zip(reversed(new), reversed(left), strict=False))
    from_start = matching(zip(new, left, strict=False)) if len(new) >= len(left) else []
    return max(from_end, from_start, key=len)


def _kind(message: Message) -> object:
    return message.role, message.outline.call_ids, message.outline.result_ids
