"""What one agent is shown of a history: a snapshot that later events do not change.

How a conversation stands: which of its messages are shown, and in what form.

A value: each change of context gives another one, and taking a change back is going back to the value
before it. What is said afterwards belongs to all of them alike, because they speak of positions.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.messages import Entry, EntryMessages, Message, Text, assistant, user
from holdfast.core.conversation.shorten import clip_outputs, recall_range_hint, turns_as_text
from holdfast.core.history import events as log
from holdfast.core.history.message_cache import MessageCache
from holdfast.core.history.recall_marks import RecallMarks
from holdfast.core.history.scopes import Scopes, is_answer_message
from holdfast.errors import MalformedInputError


@dataclass(frozen=True, slots=True)
class ContextState:
    """How one scope's conversation is to be shown."""

    compactions: tuple[log.CompactionCompleted, ...] = ()
    """The compactions that stand, in the order of their spans; what they stand for is not shown any more."""
    offloaded: log.OutputsOffloaded | None = None
    """The line before which tool outputs are shown as a preview."""
    text_only_before: int = 0
    """Of turns before this only the words are shown."""
    cleared_at: int = 0
    """Nothing before this is shown."""
    earlier_clears: tuple[int, ...] = ()
    """Where it was cleared earlier: a rewind to before the last clear does not take those back."""
    changed_at: int = 0
    """How much had been said when this last changed."""


INITIAL_CONTEXT = ContextState()


@dataclass(frozen=True, slots=True)
class ContextVersion:
    """How all scopes stand."""

    states: Mapping[str, ContextState] = field(default_factory=dict[str, ContextState])
    hidden: tuple[range, ...] = ()
    """Positions that a rewind took out of the conversation."""
    checkpoints: tuple[tuple[int, int], ...] = ()
    """The numbers of the checkpoints of what was folded, each with the position before which it reaches."""

    def state_of(self, scope: str) -> ContextState:
        """Return how one scope stands."""
        return self.states.get(scope, INITIAL_CONTEXT)

    def is_hidden(self, position: int) -> bool:
        """Return whether a rewind took a message out."""
        if not self.hidden:
            return False
        number = bisect_right(self.hidden, position, key=_range_start) - 1
        return number >= 0 and position in self.hidden[number]

    def after(self, event: log.Event, length: int) -> "ContextVersion | None":
        """Return how everything stands after an event, or None if it changes nothing of that."""
        match event:
            case log.CompactionCompleted(success=True):
                _check_span(event, length, self.state_of(event.scope).compactions)
                standing = replace(
                    self.state_of(event.scope),
                    compactions=_with_compaction(self.state_of(event.scope).compactions, event),
                )
            case log.OutputsOffloaded():
                _check_cut(event, length)
                standing = replace(self.state_of(event.scope), offloaded=event)
            case log.TurnsReducedToText():
                _check_cut(event, length)
                standing = replace(self.state_of(event.scope), text_only_before=event.line)
            case log.ContextCleared():
                return self._after_clear(event, length)
            case log.Rewound():
                return self._after_rewind(event, length)
            case _:
                return None
        made = self.checkpoints
        if isinstance(event, log.CompactionCompleted) and event.checkpoint_number is not None:
            made = (*made, (event.checkpoint_number, event.stop))
        standings = {**self.states, event.scope: replace(standing, changed_at=length)}
        return replace(self, states=standings, checkpoints=made)

    def _after_clear(self, event: log.ContextCleared, length: int) -> "ContextVersion":
        """Return the version in which an agent has forgotten: those it has sent out keep none of its summaries."""
        known = self.state_of(event.scope)
        standings = {scope: _without_compactions_of(event.scope, one, length) for scope, one in self.states.items()}
        earlier = (*known.earlier_clears, known.cleared_at) if known.cleared_at else ()
        standings[event.scope] = ContextState(cleared_at=length, earlier_clears=earlier, changed_at=length)
        return replace(self, states=standings)

    def _after_rewind(self, event: log.Rewound, length: int) -> "ContextVersion":
        """Return the version that goes on from an earlier message: later changes do not stand either."""
        if not 0 <= event.to <= length:
            raise MalformedInputError(event.KIND, f"there is no message {event.to}")
        standings = {
            scope: replace(_state_before(standing, event.to), changed_at=length)
            for scope, standing in self.states.items()
        }
        kept = tuple((number, stop) for number, stop in self.checkpoints if stop <= event.to)
        return ContextVersion(standings, _with_range(self.hidden, range(event.to, length)), kept)


def _range_start(span: range) -> int:
    return span.start


def _with_range(spans: tuple[range, ...], new: range) -> tuple[range, ...]:
    """Return ranges in order, with one more that reaches to the end; those it touches are part of it."""
    before = [span for span in spans if span.stop < new.start]
    touched = [span.start for span in spans if span.stop >= new.start]
    return (*before, range(min([new.start, *touched]), new.stop)) if new else spans


def _state_before(state: ContextState, position: int) -> ContextState:
    """Return a standing without what speaks of messages from a position on."""
    clears = (*state.earlier_clears, state.cleared_at)
    return replace(
        state,
        compactions=tuple(fold for fold in state.compactions if fold.stop <= position),
        text_only_before=min(state.text_only_before, position),
        cleared_at=max((at for at in clears if at <= position), default=0),
        earlier_clears=tuple(at for at in clears if at <= position)[:-1],
    )


def _without_compactions_of(scope: str, state: ContextState, length: int) -> ContextState:
    """Return how an agent stands without the folds that another one has made and handed down."""
    folds = tuple(fold for fold in state.compactions if fold.scope != scope)
    return state if len(folds) == len(state.compactions) else replace(state, compactions=folds, changed_at=length)


def _with_compaction(
    compactions: tuple[log.CompactionCompleted, ...], compaction: log.CompactionCompleted
) -> tuple[log.CompactionCompleted, ...]:
    """Return the folds with one more; those whose span it touches are part of it now."""
    apart = [other for other in compactions if other.stop <= compaction.start or compaction.stop <= other.start]
    return tuple(sorted([*apart, compaction], key=lambda one: one.start))


def _check_cut(event: log.OutputsOffloaded | log.TurnsReducedToText, length: int) -> None:
    if isinstance(event, log.OutputsOffloaded) and event.max_chars < 0:
        raise MalformedInputError(event.KIND, f"{event.max_chars} is no number of characters")
    if not 0 <= event.line <= length:
        raise MalformedInputError(event.KIND, f"there is no message {event.line}")


def _check_span(event: log.CompactionCompleted, length: int, compactions: tuple[log.CompactionCompleted, ...]) -> None:
    if not 0 <= event.start <= event.stop <= length:
        raise MalformedInputError(event.KIND, f"{event.start}–{event.stop} is no span of {length} messages")
    if any(not event.start <= position < event.stop for position in event.kept):
        raise MalformedInputError(event.KIND, f"{event.kept} are not all inside {event.start}–{event.stop}")
    for fold in compactions:
        is_apart = fold.stop <= event.start or event.stop <= fold.start
        if not is_apart and not (event.start <= fold.start and fold.stop <= event.stop):
            spans = f"{event.start}–{event.stop} cuts through {fold.start}–{fold.stop}"
            raise MalformedInputError(event.KIND, f"{spans}, which was folded before")


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
