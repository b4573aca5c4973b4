"""The messages of a history by position; messages that no view needs stay in the store.

A session with a hundred thousand messages opens without reading them, and a long-running session evicts messages that
are no longer in view. Access to a message that is not in memory raises `NotInMemoryError` with the missing positions.
The session then loads these messages and retries.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

from holdfast.core.conversation.messages import Entry
from holdfast.core.history import events as log
from holdfast.errors import NotInMemoryError

T = TypeVar("T")


class MessageCache(Sequence[Entry]):
    """The messages in memory, with the events that recorded them; the first `unread` messages are not loaded yet."""

    def __init__(self, unread: int = 0) -> None:
        self.length = unread
        """How many messages there are: what `len` returns, without a call."""
        self._entries: dict[int, Entry] = {}
        self._events: dict[int, log.MessageAppended] = {}

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self.length))]
        return self._entries.get(index) or self._found(self._entries, range(self.length)[index])

    def __iter__(self) -> Iterator[Entry]:
        return (self[position] for position in range(self.length))

    @property
    def cached_count(self) -> int:
        """The number of messages in memory."""
        return len(self._entries)

    @property
    def missing_count(self) -> int:
        """The number of messages not in memory."""
        return self.length - len(self._entries)

    def cached(self) -> Iterator[Entry]:
        """Return the messages in memory, in any order."""
        return iter(self._entries.values())

    def event(self, position: int) -> log.MessageAppended:
        """Return the event that recorded a message."""
        return self._found(self._events, position)

    def native(self, position: int) -> Mapping[str, object]:
        """Return a message exactly as it was recorded."""
        return self.event(position).native

    def get(self, position: int) -> Entry | None:
        """Return a message if it is in memory."""
        return self._entries.get(position)

    def require(self, positions: Iterable[int]) -> None:
        """Raise `NotInMemoryError` with all missing positions; free of cost while every message is in memory."""
        if self.missing_count and (missing := [position for position in positions if position not in self._entries]):
            raise NotInMemoryError(missing)

    def append(self, entry: Entry, event: log.MessageAppended) -> None:
        """Add the next message."""
        self._entries[self.length], self._events[self.length] = entry, event
        self.length += 1

    def load(self, entry: Entry, event: log.MessageAppended) -> None:
        """Add an earlier message at its position."""
        position = entry.position or 0
        self._entries[position], self._events[position] = entry, event

    def evict(self, stop: int, keep: Container[int]) -> list[int]:
        """Evict messages before `stop` that are not in `keep`, and return their positions."""
        gone = [position for position in self._entries if position < stop and position not in keep]
        for position in gone:
            del self._entries[position], self._events[position]
        if gone:  # the old tables keep their size
            self._entries, self._events = dict(self._entries), dict(self._events)
        return gone

    def _found(self, held: Mapping[int, T], position: int) -> T:
        if position not in held:
            raise NotInMemoryError([position])
        return held[position]
