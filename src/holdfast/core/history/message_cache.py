"""Everything that was said, by position; what nobody needs now stays in the store.

A conversation of a hundred thousand messages is opened without reading them, and one that grows to so many lets go
of those that are not shown any more. Whoever asks for one that is not here is told which are missing; a session
fetches those and asks again.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, overload

from holdfast.core.conversation.messages import Entry
from holdfast.core.history import events as log
from holdfast.errors import NotInMemoryError


class _CachedMessage(NamedTuple):
    entry: Entry
    event: log.MessageAppended


class MessageCache(Sequence[Entry]):
    """Messages with the events that brought them, as far as they are here; the first `unread` are not yet."""

    def __init__(self, unread: int = 0) -> None:
        self._length = unread
        self._cached: dict[int, _CachedMessage] = {}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self._length))]
        held = self._cached.get(index)
        return held.entry if held else self._cached_at(range(self._length)[index]).entry

    def __iter__(self) -> Iterator[Entry]:
        return (self[position] for position in range(self._length))

    @property
    def cached_count(self) -> int:
        """How many messages are here."""
        return len(self._cached)

    @property
    def missing_count(self) -> int:
        """How many messages are not here."""
        return self._length - len(self._cached)

    def native(self, position: int) -> Mapping[str, object]:
        """Return a message exactly as it was recorded."""
        return self._cached_at(position).event.native

    def get(self, position: int) -> Entry | None:
        """Return a message if it is here."""
        held = self._cached.get(position)
        return held.entry if held else None

    def require(self, positions: Iterable[int]) -> None:
        """Raise `NotInMemoryError` with all of these that are not here; costs nothing where all are."""
        if self.missing_count and (missing := [position for position in positions if position not in self._cached]):
            raise NotInMemoryError(missing)

    def append(self, entry: Entry, event: log.MessageAppended) -> None:
        """Take in what was said next."""
        self._cached[self._length] = _CachedMessage(entry, event)
        self._length += 1

    def load(self, entry: Entry, event: log.MessageAppended) -> None:
        """Take in what was said before, at its position."""
        self._cached[entry.position or 0] = _CachedMessage(entry, event)

    def evict(self, stop: int, keep: Container[int]) -> list[int]:
        """Let go of what was said before a position and is not wanted, and return where it stood."""
        gone = [position for position in self._cached if position < stop and position not in keep]
        for position in gone:
            del self._cached[position]
        return gone

    def _cached_at(self, position: int) -> _CachedMessage:
        held = self._cached.get(position)
        if held is None:
            raise NotInMemoryError([position])
        return held
