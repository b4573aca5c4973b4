"""What one agent is shown of a history: a snapshot that later events do not change."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.core.conversation.clip import clip_outputs
from holdfast.core.conversation.cuts import unit_around
from holdfast.core.conversation.handles import look_up
from holdfast.core.conversation.messages import Message, Text, assistant, user
from holdfast.core.conversation.view import Entry, Spoken
from holdfast.core.conversation.words import turns_in_words
from holdfast.core.history import events as log
from holdfast.core.history.answers import Answers
from holdfast.core.history.past import Past
from holdfast.core.history.scope import Scopes, is_answer
from holdfast.core.history.standing import Standing, Version


@dataclass(frozen=True, slots=True)
class Context:
    """The arrays of a history, a length and a version, seen from one scope."""

    entries: Past
    said_in: Sequence[str]
    length: int
    version: Version
    scopes: Scopes
    scope: str
    systems: Sequence[int] = ()
    """Positions of system messages: they are shown whatever is folded."""
    pins: frozenset[int] = frozenset()
    answers: Answers | None = None
    """What is recall's own, where this agent has it; None where it has not, and markers do not name it."""

    @property
    def standing(self) -> Standing:
        """How this scope stands."""
        return self.version.of(self.scope)

    @property
    def has_recall(self) -> bool:
        """Whether this agent can ask for what it is not shown."""
        return self.answers is not None

    def shown(self) -> list[Entry]:
        """Return the messages that stand, in order, with what replaces those that were folded."""
        standing = self.standing
        self.entries.need(self.looked_at())
        shown: list[Entry] = []
        position, opening = standing.cleared_at, ""
        for fold in standing.folds:
            shown += self._formed(position, fold.start)
            shown += self._in_place_of(fold)
            position = max(position, fold.stop)
            opening = "\n\n".join(fold.replacement) if fold.is_merged else ""
        tail = self._formed(position, self.length)
        return [*shown, *(_merged(opening, tail) if opening else tail)]

    def folded(self) -> list[Entry]:
        """Return the messages that compactions stand for."""
        start = self.standing.cleared_at
        return [entry for fold in self.standing.folds for entry in self.between(max(start, fold.start), fold.stop)]

    def between(self, start: int, stop: int) -> Iterator[Entry]:
        """Yield the messages of a span as they were said, as far as they stand and are this scope's to see."""
        for position in range(start, min(stop, self.length)):
            if self.stands(position):
                yield self.entries[position]

    def stands(self, position: int) -> bool:
        """Return whether a message is this scope's to see, no rewind took it out and whoever said it still knows it."""
        return not self.version.is_hidden(position) and self._sees(position)

    def recalls(self, position: int) -> bool:
        """Return whether a message may be recalled: it stands, is this scope's to see, and nobody has forgotten it."""
        if not self.standing.cleared_at <= position < self.length:
            return False
        return self.stands(position)

    def newest(self, count: int) -> int:
        """Return the position at which the newest `count` messages begin, whoever said them and may see them.

        System text and what a rewind took out do not count.
        """
        systems, position = frozenset(self.systems), self.length
        while position > self.standing.cleared_at and count:
            position -= 1
            count -= position not in systems and not self.version.is_hidden(position)
        return position if not count else self.standing.cleared_at

    def shows(self, position: int) -> Entry:
        """Return a message in the form in which it is shown: its outputs may have been offloaded."""
        entry, offloaded = self._attributed(position), self.standing.offloaded
        if offloaded is None or position >= offloaded.line or position in self.pins:
            return entry
        place = position if self.has_recall else None
        shorter = clip_outputs(entry.message, offloaded.max_chars, place, spares_recalled=self.has_recall)
        return entry if shorter is entry.message else entry.saying(shorter)

    def _attributed(self, position: int) -> Entry:
        """Return a message; what another agent was told says so, as it stands in a user's place."""
        entry, scope = self.entries[position], self.said_in[position]
        if scope == self.scope or scope not in self.scopes.attributed or not entry.message.is_task:
            return entry
        return entry.saying(_with_opening(entry.message, f"[Told to the agent {scope}, and not by the user:]\n"))

    def _sees(self, position: int) -> bool:
        scope = self.said_in[position]
        if scope != self.scope and position < self.version.of(scope).cleared_at:
            return False
        is_seen = self.scopes.sees(self.scope, scope, position)
        return is_answer(self.entries[position].message) if is_seen is None else is_seen

    def may_see(self, position: int) -> bool:
        """Return whether a message has to be looked at."""
        return self.scopes.sees(self.scope, self.said_in[position], position) is not False

    def looked_at(self) -> Iterator[int]:
        """Yield the positions of what has to be here for this to be shown."""
        return filter(self.may_see, self._read())

    def held_for(self) -> set[int]:
        """Return the positions of all that is looked at, with what stands beside pins and tells where they end."""
        pinned = self._pinned(0, self.length) if self.pins else set[int]()
        return {*self.looked_at(), *(at - 1 for at in pinned), *(at + 1 for at in pinned)}

    def _read(self) -> Iterator[int]:
        position = self.standing.cleared_at
        for fold in self.standing.folds:
            yield from range(position, min(fold.start, self.length))
            yield from self._wanted(fold)
            position = max(position, fold.stop)
        yield from range(position, self.length)

    def _formed(self, start: int, stop: int) -> list[Entry]:
        """Return the messages of a span in the form in which they are shown."""
        line = self.standing.text_line
        shown = [self.shows(position) for position in range(start, min(stop, self.length)) if self.stands(position)]
        if not start < line:
            return shown
        old = bisect_left(shown, line, key=_position)
        words = {_position(entry): entry for entry in turns_in_words(shown[:old], keep_last=0)}
        pinned = self._pinned(start, line)
        whole = {
            _position(entry): entry
            for entry in shown[:old]
            if entry.position in pinned or entry.message.role == "system"
        }
        return [*sorted((words | whole).values(), key=_position), *shown[old:]]

    def _in_place_of(self, fold: log.CompactionCompleted) -> list[Entry]:
        """Return what stands for a span: its system messages, the texts of the fold, and what is kept of it."""
        kept = self._kept(fold)
        systems = [entry for entry in kept if entry.message.role == "system"]
        others = [entry for entry in kept if entry.message.role != "system"]
        made = () if fold.is_merged else fold.replacement
        if made and fold.offers_recall and self.has_recall:
            made = (*made[:-1], f"{made[-1]}\n{look_up(fold.start, fold.stop)}")
        return [*systems, *_spoken(made), *others]

    def _kept(self, fold: log.CompactionCompleted) -> list[Entry]:
        return [self.shows(position) for position in self._wanted(fold) if self.stands(position)]

    def _wanted(self, fold: log.CompactionCompleted) -> list[int]:
        """Return the positions of a span that stay whole."""
        start = max(fold.start, self.standing.cleared_at)
        systems = self.systems[bisect_left(self.systems, start) : bisect_left(self.systems, fold.stop)]
        wanted = {*systems, *self._pinned(start, fold.stop), *fold.kept}
        return [position for position in sorted(wanted) if start <= position < fold.stop]

    def _pinned(self, start: int, stop: int) -> set[int]:
        """Return the positions of a span that pins keep; a pin keeps all of its exchange."""
        pins = [pin for pin in self.pins if start <= pin < stop]
        return {position for pin in pins for position in range(*unit_around(Spoken(self.entries), pin))}


def _spoken(texts: Sequence[str]) -> list[Entry]:
    """Return the texts of a fold as messages, in turns: the user's first."""
    return [Entry(assistant(text) if number % 2 else user(text, trust="summary")) for number, text in enumerate(texts)]


def _merged(opening: str, tail: list[Entry]) -> list[Entry]:
    """Return what follows a fold with its text before the words of the first prompt, or first of all."""
    first = next((index for index, entry in enumerate(tail) if entry.message.is_prompt), None)
    if first is None:
        return [*_spoken((opening,)), *tail]
    merged = tail[first].saying(_with_opening(tail[first].message, opening))
    return [*tail[:first], merged, *tail[first + 1 :]]


def _with_opening(message: Message, opening: str) -> Message:
    """Return a prompt with a text placed before its own words, which follow to the letter."""
    for number, part in enumerate(message.parts):
        if isinstance(part, Text):
            parts = (*message.parts[:number], part.rewritten(opening + part.text), *message.parts[number + 1 :])
            return message.with_parts(parts)
    return message.with_parts((Text(opening, "summary", is_edited=True), *message.parts))


def _position(entry: Entry) -> int:
    return -1 if entry.position is None else entry.position
