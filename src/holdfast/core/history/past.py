"""Everything that was said, by position; what nobody needs now may have stayed in the store.

A conversation of a hundred thousand messages is opened without reading them. Whoever asks for one that was not
read is told which are missing; a session fetches those and asks again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.errors import NotInMemoryError


class Past(Sequence[Entry]):
    """Messages with the events that brought them; the first `unread` of them are not there yet."""

    def __init__(self, unread: int = 0) -> None:
        self._entries: list[Entry | None] = [None] * unread
        self._origins: list[log.MessageAppended | None] = [None] * unread
        self._unread = unread

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        entry = self._entries[index]
        if entry is None:
            raise NotInMemoryError([index])
        return entry

    def __iter__(self) -> Iterator[Entry]:
        return (self[position] for position in range(len(self)))

    @property
    def unread(self) -> int:
        """How many messages are not there."""
        return self._unread

    def native(self, position: int) -> Mapping[str, object]:
        """Return a message exactly as it was recorded."""
        origin = self._origins[position]
        if origin is None:
            raise NotInMemoryError([position])
        return origin.native

    def held(self, position: int) -> Entry | None:
        """Return a message if it is there."""
        return self._entries[position]

    def need(self, positions: Iterable[int]) -> None:
        """Raise `NotInMemoryError` with all of these that are not there; costs nothing where all are."""
        if self._unread and (missing := [position for position in positions if self._entries[position] is None]):
            raise NotInMemoryError(missing)

    def append(self, entry: Entry, origin: log.MessageAppended) -> None:
        """Take in what was said next."""
        self._entries.append(entry)
        self._origins.append(origin)

    def put(self, entry: Entry, origin: log.MessageAppended) -> None:
        """Take in what was said before, at its position."""
        position = entry.position or 0
        self._unread -= self._entries[position] is None
        self._entries[position], self._origins[position] = entry, origin
