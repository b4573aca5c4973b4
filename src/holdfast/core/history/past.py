"""Everything that was said, by position; what nobody needs now stays in the store.

A conversation of a hundred thousand messages is opened without reading them, and one that grows to so many lets go
of those that are not shown any more. Whoever asks for one that is not here is told which are missing; a session
fetches those and asks again.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, overload

from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.errors import NotInMemoryError


class _Held(NamedTuple):
    entry: Entry
    origin: log.MessageAppended


class Past(Sequence[Entry]):
    """Messages with the events that brought them, as far as they are here; the first `unread` are not yet."""

    def __init__(self, unread: int = 0) -> None:
        self._length = unread
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(self._length))]
        held = self._held.get(index)
        return held.entry if held else self._at(range(self._length)[index]).entry

    def __iter__(self) -> Iterator[Entry]:
        return (self[position] for position in range(self._length))

    @property
    def held_count(self) -> int:
        """How many messages are here."""
        return len(self._held)

    @property
    def unread(self) -> int:
        """How many messages are not here."""
        return self._length - len(self._held)

    def native(self, position: int) -> Mapping[str, object]:
        """Return a message exactly as it was recorded."""
        return self._at(position).origin.native

    def held(self, position: int) -> Entry | None:
        """Return a message if it is here."""
        held = self._held.get(position)
        return held.entry if held else None

    def need(self, positions: Iterable[int]) -> None:
        """Raise `NotInMemoryError` with all of these that are not here; costs nothing where all are."""
        if self.unread and (missing := [position for position in positions if position not in self._held]):
            raise NotInMemoryError(missing)

    def append(self, entry: Entry, origin: log.MessageAppended) -> None:
        """Take in what was said next."""
        self._held[self._length] = _Held(entry, origin)
        self._length += 1

    def put(self, entry: Entry, origin: log.MessageAppended) -> None:
        """Take in what was said before, at its position."""
        self._held[entry.position or 0] = _Held(entry, origin)

    def let_go(self, stop: int, wanted: Container[int]) -> list[int]:
        """Let go of what was said before a position and is not wanted, and return where it stood."""
        gone = [position for position in self._held if position < stop and position not in wanted]
        for position in gone:
            del self._held[position]
        return gone

    def _at(self, position: int) -> _Held:
        held = self._held.get(position)
        if held is None:
            raise NotInMemoryError([position])
        return held
