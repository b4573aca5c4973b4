"""What one agent is shown of a history: a snapshot that later events do not change."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.core.conversation.clip import clip_outputs
from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.handles import recall_range_hint
from holdfast.core.conversation.messages import Message, Text, assistant, user
from holdfast.core.conversation.view import Entry, EntryMessages
from holdfast.core.conversation.words import turns_as_text
from holdfast.core.history import events as log
from holdfast.core.history.answers import RecallMarks
from holdfast.core.history.past import MessageCache
from holdfast.core.history.scope import Scopes, is_answer_message
from holdfast.core.history.standing import ContextState, ContextVersion


@dataclass(frozen=True, slots=True)
class Context:
    """The arrays of a history, a length and a version, seen from one scope."""

    entries: MessageCache
    message_scopes: Sequence[str]
    length: int
    version: ContextVersion
    scopes: Scopes
    scope: str
    system_positions: Sequence[int] = ()
    """Positions of system messages: they are shown whatever is folded."""
    pins: frozenset[int] = frozenset()
    recall_marks: RecallMarks | None = None
    """What is recall's own, where this agent has it; None where it has not, and markers do not name it."""

    @property
    def state(self) -> ContextState:
        """How this scope stands."""
        return self.version.state_of(self.scope)

    @property
    def has_recall(self) -> bool:
        """Whether this agent can ask for what it is not shown."""
        return self.recall_marks is not None

    def visible_entries(self) -> list[Entry]:
        """Return the messages that stand, in order, with what replaces those that were folded."""
        standing = self.state
        self.entries.require(self.needed_positions())
        shown: list[Entry] = []
        position, opening = standing.cleared_at, ""
        for fold in standing.compactions:
            shown += self._visible_between(position, fold.start)
            shown += self._replacement_entries(fold)
            position = max(position, fold.stop)
            opening = "\n\n".join(fold.replacement) if fold.is_merged else ""
        tail = self._visible_between(position, self.length)
        return [*shown, *(_merge_opening(opening, tail) if opening else tail)]

    def compacted_entries(self) -> list[Entry]:
        """Return the messages that compactions stand for."""
        start = self.state.cleared_at
        return [
            entry
            for fold in self.state.compactions
            for entry in self.entries_between(max(start, fold.start), fold.stop)
        ]

    def entries_between(self, start: int, stop: int) -> Iterator[Entry]:
        """Yield the messages of a span as they were said, as far as they stand and are this scope's to see."""
        for position in range(start, min(stop, self.length)):
            if self.is_visible(position):
                yield self.entries[position]

    def is_visible(self, position: int) -> bool:
        """Return whether a message is this scope's to see, no rewind took it out and whoever said it still knows it."""
        return not self.version.is_hidden(position) and self._is_in_scope(position)

    def is_recallable(self, position: int) -> bool:
        """Return whether a message may be recalled: it stands, is this scope's to see, and nobody has forgotten it."""
        if not self.state.cleared_at <= position < self.length:
            return False
        return self.is_visible(position)

    def newest_start(self, count: int) -> int:
        """Return the position at which the newest `count` messages begin, whoever said them and may see them.

        System text and what a rewind took out do not count.
        """
        systems, position = frozenset(self.system_positions), self.length
        while position > self.state.cleared_at and count:
            position -= 1
            count -= position not in systems and not self.version.is_hidden(position)
        return position if not count else self.state.cleared_at

    def visible_entry(self, position: int) -> Entry:
        """Return a message in the form in which it is shown: its outputs may have been offloaded."""
        entry, offloaded = self._entry_with_addressee(position), self.state.offloaded
        if offloaded is None or position >= offloaded.line or position in self.pins:
            return entry
        place = position if self.has_recall else None
        shorter = clip_outputs(entry.message, offloaded.max_chars, place, keep_recall_answers=self.has_recall)
        return entry if shorter is entry.message else entry.with_message(shorter)

    def _entry_with_addressee(self, position: int) -> Entry:
        """Return a message; what another agent was told says so, as it stands in a user's place."""
        entry, scope = self.entries[position], self.message_scopes[position]
        if scope == self.scope or scope not in self.scopes.attributed_scopes or not entry.message.is_task:
            return entry
        return entry.with_message(_prepend_text(entry.message, f"[Told to the agent {scope}, and not by the user:]\n"))

    def _is_in_scope(self, position: int) -> bool:
        scope = self.message_scopes[position]
        if scope != self.scope and position < self.version.state_of(scope).cleared_at:
            return False
        is_seen = self.scopes.is_message_visible(self.scope, scope, position)
        return is_answer_message(self.entries[position].message) if is_seen is None else is_seen

    def may_be_visible(self, position: int) -> bool:
        """Return whether a message has to be looked at."""
        return self.scopes.is_message_visible(self.scope, self.message_scopes[position], position) is not False

    def needed_positions(self) -> Iterator[int]:
        """Yield the positions of what has to be here for this to be shown."""
        return filter(self.may_be_visible, self._candidate_positions())

    def retained_positions(self) -> set[int]:
        """Return the positions of all that is looked at, with what stands beside pins and tells where they end."""
        pinned = self._pinned_positions(0, self.length) if self.pins else set[int]()
        return {*self.needed_positions(), *(at - 1 for at in pinned), *(at + 1 for at in pinned)}

    def _candidate_positions(self) -> Iterator[int]:
        position = self.state.cleared_at
        for fold in self.state.compactions:
            yield from range(position, min(fold.start, self.length))
            yield from self._kept_positions(fold)
            position = max(position, fold.stop)
        yield from range(position, self.length)

    def _visible_between(self, start: int, stop: int) -> list[Entry]:
        """Return the messages of a span in the form in which they are shown."""
        line = self.state.text_only_before
        shown = [
            self.visible_entry(position)
            for position in range(start, min(stop, self.length))
            if self.is_visible(position)
        ]
        if not start < line:
            return shown
        old = bisect_left(shown, line, key=_position_or_before)
        words = {_position_or_before(entry): entry for entry in turns_as_text(shown[:old], keep_last=0)}
        pinned = self._pinned_positions(start, line)
        whole = {
            _position_or_before(entry): entry
            for entry in shown[:old]
            if entry.position in pinned or entry.message.role == "system"
        }
        return [*sorted((words | whole).values(), key=_position_or_before), *shown[old:]]

    def _replacement_entries(self, compaction: log.CompactionCompleted) -> list[Entry]:
        """Return what stands for a span: its system messages, the texts of the fold, and what is kept of it."""
        kept = self._kept_entries(compaction)
        systems = [entry for entry in kept if entry.message.role == "system"]
        others = [entry for entry in kept if entry.message.role != "system"]
        made = () if compaction.is_merged else compaction.replacement
        if made and compaction.offers_recall and self.has_recall:
            made = (*made[:-1], f"{made[-1]}\n{recall_range_hint(compaction.start, compaction.stop)}")
        return [*systems, *_replacement_messages(made), *others]

    def _kept_entries(self, compaction: log.CompactionCompleted) -> list[Entry]:
        return [
            self.visible_entry(position) for position in self._kept_positions(compaction) if self.is_visible(position)
        ]

    def _kept_positions(self, compaction: log.CompactionCompleted) -> list[int]:
        """Return the positions of a span that stay whole."""
        start = max(compaction.start, self.state.cleared_at)
        systems = self.system_positions[
            bisect_left(self.system_positions, start) : bisect_left(self.system_positions, compaction.stop)
        ]
        wanted = {*systems, *self._pinned_positions(start, compaction.stop), *compaction.kept}
        return [position for position in sorted(wanted) if start <= position < compaction.stop]

    def _pinned_positions(self, start: int, stop: int) -> set[int]:
        """Return the positions of a span that pins keep; a pin keeps all of its exchange."""
        pins = [pin for pin in self.pins if start <= pin < stop]
        return {position for pin in pins for position in range(*uncuttable_span(EntryMessages(self.entries), pin))}


def _replacement_messages(texts: Sequence[str]) -> list[Entry]:
    """Return the texts of a fold as messages, in turns: the user's first."""
    return [Entry(assistant(text) if number % 2 else user(text, trust="summary")) for number, text in enumerate(texts)]


def _merge_opening(opening: str, tail: list[Entry]) -> list[Entry]:
    """Return what follows a fold with its text before the words of the first prompt, or first of all."""
    first = next((index for index, entry in enumerate(tail) if entry.message.is_prompt), None)
    if first is None:
        return [*_replacement_messages((opening,)), *tail]
    merged = tail[first].with_message(_prepend_text(tail[first].message, opening))
    return [*tail[:first], merged, *tail[first + 1 :]]


def _prepend_text(message: Message, opening: str) -> Message:
    """Return a prompt with a text placed before its own words, which follow to the letter."""
    for number, part in enumerate(message.parts):
        if isinstance(part, Text):
            parts = (*message.parts[:number], part.with_text(opening + part.text), *message.parts[number + 1 :])
            return message.with_parts(parts)
    return message.with_parts((Text(opening, "summary", is_edited=True), *message.parts))


def _position_or_before(entry: Entry) -> int:
    return -1 if entry.position is None else entry.position
