"""What one agent is shown of a history: a snapshot that later events do not change."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.core.conversation.messages import Message, Text, assistant, user
from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.history.scope import Scopes
from holdfast.core.history.standing import Standing, Version


@dataclass(frozen=True, slots=True)
class Context:
    """The arrays of a history, a length and a version, seen from one scope."""

    entries: Sequence[Entry]
    origins: Sequence[log.MessageAppended]
    length: int
    version: Version
    scopes: Scopes
    scope: str

    @property
    def standing(self) -> Standing:
        """How this scope stands."""
        return self.version.of(self.scope)

    def shown(self) -> list[Entry]:
        """Return the messages that stand, in order, with what replaces those that were folded."""
        fold = self.standing.fold
        if fold is None:
            return list(self._between(self.standing.cleared_at, self.length))
        head = list(self._between(self.standing.cleared_at, fold.start))
        tail = list(self._between(max(fold.stop, self.standing.cleared_at), self.length))
        return [*head, *_replaced(fold, tail)]

    def folded(self) -> list[Entry]:
        """Return the messages that the last compaction stands for."""
        fold = self.standing.fold
        return [] if fold is None else list(self._between(max(fold.start, self.standing.cleared_at), fold.stop))

    def _between(self, start: int, stop: int) -> Iterator[Entry]:
        for position in range(start, stop):
            entry = self.entries[position]
            if not self.version.is_hidden(position) and self._sees(position, entry.message):
                yield entry

    def _sees(self, position: int, message: Message) -> bool:
        scope = self.origins[position].scope
        return scope == self.scope or self.scopes.sees(self.scope, scope, message)


def _replaced(fold: log.CompactionCompleted, tail: list[Entry]) -> list[Entry]:
    """Return what follows the head: the texts of a fold in turns, or merged into the first prompt that stays."""
    if not fold.is_merged:
        made = [
            Entry(assistant(text) if number % 2 else user(text, trust="summary"))
            for number, text in enumerate(fold.replacement)
        ]
        return [*made, *tail]
    first = next((index for index, entry in enumerate(tail) if entry.message.is_prompt), None)
    opening = "\n\n".join(fold.replacement)
    if first is None:
        return [Entry(user(opening, trust="summary")), *tail]
    merged = tail[first].saying(_with_opening(tail[first].message, opening))
    return [*tail[:first], merged, *tail[first + 1 :]]


def _with_opening(message: Message, opening: str) -> Message:
    """Return a prompt with a text placed before its own words, which follow to the letter."""
    for number, part in enumerate(message.parts):
        if isinstance(part, Text):
            parts = (*message.parts[:number], part.rewritten(opening + part.text), *message.parts[number + 1 :])
            return message.with_parts(parts)
    return message.with_parts((Text(opening, "summary", is_edited=True), *message.parts))
