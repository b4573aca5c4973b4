"""The messages of a history by position; messages that no view needs stay in the store.

A session with a hundred thousand messages opens without reading them, and a long-running session evicts messages that
are no longer in view. Access to a message that is not in memory raises `NotInMemoryError` with the missing positions.
The session then loads these messages and retries.
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
    """The messages in memory, with the events that recorded them; the first `unread` messages are not loaded yet."""

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
        """The number of messages in memory."""
        return len(self._cached)

    @property
    def missing_count(self) -> int:
        """The number of messages not in memory."""
        return self._length - len(self._cached)

    def cached(self) -> Iterator[Entry]:
        """Return the messages in memory, in any order."""
        return (held.entry for held in self._cached.values())

    def event(self, position: int) -> log.MessageAppended:
        """Return the event that recorded a message."""
        return self._cached_at(position).event

    def native(self, position: int) -> Mapping[str, object]:
        """Return a message exactly as it was recorded."""
        return self.event(position).native

    def get(self, position: int) -> Entry | None:
        """Return a message if it is in memory."""
        held = self._cached.get(position)
        return held.entry if held else None

    def require(self, positions: Iterable[int]) -> None:
        """Raise `NotInMemoryError` with all missing positions; free of cost while every message is in memory."""
        if self.missing_count and (missing := [position for position in positions if position not in self._cached]):
            raise NotInMemoryError(missing)

    def append(self, entry: Entry, event: log.MessageAppended) -> None:
        """Add the next message."""
        self._cached[self._length] = _CachedMessage(entry, event)
        self._length += 1

    def load(self, entry: Entry, event: log.MessageAppended) -> None:
        """Add an earlier message at its position."""
        self._cached[entry.position or 0] = _CachedMessage(entry, event)

    def evict(self, stop: int, keep: Container[int]) -> list[int]:
        """Evict messages before `stop` that are not in `keep`, and return their positions."""
        gone = [position for position in self._cached if position < stop and position not in keep]
        for position in gone:
            del self._cached[position]
        return gone

    def _cached_at(self, position: int) -> _CachedMessage:
        held = self._cached.get(position)
        if held is None:
            raise NotInMemoryError([position])
        return held
