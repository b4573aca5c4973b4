"""Which messages of a history are in force for one agent, and in what form.

A `ContextVersion` is an immutable value: each change of context creates a new version, and undo returns to the previous
one. Versions refer to messages by position, so messages appended later belong to every version. A `Context` is the
view of one scope on a version; it is a snapshot that later events do not change.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.messages import Entry, EntryMessages, Message, Text, assistant, user
from holdfast.core.conversation.shorten import clip_outputs, clip_user_texts, recall_range_hint, turns_as_text
from holdfast.core.conversation.spans import PositionRanges, Span, is_in_ranges, merge_ranges, subtract_ranges
from holdfast.core.history import events as log
from holdfast.core.history.message_cache import MessageCache
from holdfast.core.history.recall_marks import RecallMarks
from holdfast.core.history.scopes import Scopes, is_answer_message
from holdfast.dataclass import dataclass
from holdfast.errors import MalformedInputError


@dataclass(frozen=True, slots=True)
class ContextState:
    """The changes of context in force for one scope."""

    compactions: tuple[log.CompactionCompleted, ...] = ()
    """The compactions in force, in the order of their spans."""
    offloaded: log.OutputsOffloaded | None = None
    """Before which position tool outputs are sent as a preview, and how long a preview is."""
    text_only_before: int = 0
    """Turns before this position are sent as text only."""
    cleared_at: int = 0
    """Nothing before this position is sent."""
    earlier_clears: tuple[int, ...] = ()
    """Positions of earlier clears: a rewind to before the last clear does not undo them."""
    changed_at: int = 0
    """The number of messages when this state last changed."""
    left_out: PositionRanges = ()
    """Positions that a client has left out of its own list: they are recalled, and never sent again."""

    def is_left_out(self, position: int) -> bool:
        """Return whether a client has left a message out of its own list."""
        return bool(self.left_out) and is_in_ranges(position, self.left_out)


INITIAL_CONTEXT = ContextState()
CONTEXT_CHANGES = (
    log.CompactionCompleted,
    log.OutputsOffloaded,
    log.TurnsReducedToText,
    log.ContextCleared,
    log.Rewound,
)
"""The events that change the context of a scope."""


@dataclass(frozen=True, slots=True)
class ContextVersion:
    """The state of every scope's context."""

    states: Mapping[str, ContextState] = field(default_factory=dict[str, ContextState])
    hidden: PositionRanges = ()
    """Positions that a rewind hides."""
    checkpoints: tuple[tuple[int, int], ...] = ()
    """The checkpoint number of each compaction, with the position where its span stops."""

    def state_of(self, scope: str) -> ContextState:
        """Return the state of one scope."""
        return self.states.get(scope, INITIAL_CONTEXT)

    def is_hidden(self, position: int) -> bool:
        """Return whether a rewind hides a message."""
        return bool(self.hidden) and is_in_ranges(position, self.hidden)

    def after(self, event: log.Event, length: int) -> "ContextVersion | None":
        """Return the version after an event, or None if the event changes no context."""
        if not isinstance(event, CONTEXT_CHANGES):
            return None
        checkpoints = self.checkpoints
        match event:
            case log.CompactionCompleted(success=True):
                state = self.state_of(event.scope)
                _check_span(event, length, state.compactions)
                state = replace(state, compactions=_with_compaction(state.compactions, event))
                if event.trigger == "client":
                    state = replace(state, left_out=merge_ranges(state.left_out, event.span.replaced))
                if event.checkpoint_number is not None:
                    checkpoints = (*checkpoints, (event.checkpoint_number, event.span.stop))
            case log.OutputsOffloaded():
                _check_cut(event, length)
                state = replace(self.state_of(event.scope), offloaded=event)
            case log.TurnsReducedToText():
                _check_cut(event, length)
                state = replace(self.state_of(event.scope), text_only_before=event.line)
            case log.ContextCleared():
                return self._after_clear(event, length)
            case log.Rewound():
                return self._after_rewind(event, length)
            case _:
                return None
        states = {**self.states, event.scope: replace(state, changed_at=length)}
        return replace(self, states=states, checkpoints=checkpoints)

    def _after_clear(self, event: log.ContextCleared, length: int) -> "ContextVersion":
        """Return the version after a clear, without the summaries that delegates inherited from the agent."""
        known = self.state_of(event.scope)
        states = {scope: _without_compactions_of(event.scope, one, length) for scope, one in self.states.items()}
        earlier = (*known.earlier_clears, known.cleared_at) if known.cleared_at else ()
        states[event.scope] = ContextState(cleared_at=length, earlier_clears=earlier, changed_at=length)
        return replace(self, states=states)

    def _after_rewind(self, event: log.Rewound, length: int) -> "ContextVersion":
        """Return the version that continues from an earlier message, without the later changes of context."""
        if not 0 <= event.to <= length:
            raise MalformedInputError(event.KIND, f"there is no message {event.to}; there are {length}, counted from 0")
        states = {
            scope: replace(_state_before(state, event.to), changed_at=length) for scope, state in self.states.items()
        }
        kept = tuple((number, stop) for number, stop in self.checkpoints if stop <= event.to)
        return ContextVersion(states, merge_ranges(self.hidden, [range(event.to, length)]), kept)


def _state_before(state: ContextState, position: int) -> ContextState:
    """Return the state without changes that affect messages at or after `position`."""
    clears = (*state.earlier_clears, state.cleared_at)
    undone = [one for one in state.compactions if one.span.stop > position]
    # What a client had left out for a summary is in its list again if it has gone back to before that summary.
    returned = [part for one in undone if one.trigger == "client" for part in one.span.replaced]
    return replace(
        state,
        compactions=tuple(one for one in state.compactions if one.span.stop <= position),
        text_only_before=min(state.text_only_before, position),
        cleared_at=max((at for at in clears if at <= position), default=0),
        earlier_clears=tuple(at for at in clears if at <= position)[:-1],
        left_out=tuple(one for one in subtract_ranges(state.left_out, returned) if one.stop <= position),
    )


def _without_compactions_of(scope: str, state: ContextState, length: int) -> ContextState:
    """Return an agent's state without the compactions that it inherited from `scope`."""
    own = tuple(one for one in state.compactions if one.scope != scope)
    return state if len(own) == len(state.compactions) else replace(state, compactions=own, changed_at=length)


def _with_compaction(
    compactions: tuple[log.CompactionCompleted, ...], compaction: log.CompactionCompleted
) -> tuple[log.CompactionCompleted, ...]:
    """Return the compactions with a new one, which replaces those that it overlaps."""
    others = [one for one in compactions if not one.span.overlaps(compaction.span)]
    return tuple(sorted([*others, compaction], key=lambda one: one.span.start))


def _check_cut(event: log.OutputsOffloaded | log.TurnsReducedToText, length: int) -> None:
    if isinstance(event, log.OutputsOffloaded) and event.max_chars < 0:
        raise MalformedInputError(event.KIND, f"max_chars must not be negative, but is {event.max_chars}")
    if not 0 <= event.line <= length:
        raise MalformedInputError(event.KIND, f"there is no message {event.line}")


def _check_span(event: log.CompactionCompleted, length: int, compactions: tuple[log.CompactionCompleted, ...]) -> None:
    span = event.span
    if not 0 <= span.start <= span.stop <= length:
        raise MalformedInputError(event.KIND, f"{span.start}–{span.stop} is not a span of the {length} messages")
    if any(position not in span.positions for position in span.kept):
        raise MalformedInputError(event.KIND, f"kept {span.kept} are not all inside {span.start}–{span.stop}")
    for other in (one.span for one in compactions):
        if span.overlaps(other) and not span.contains(other):
            cut = f"{span.start}–{span.stop} cuts through {other.start}–{other.stop}"
            raise MalformedInputError(event.KIND, f"{cut}, which an earlier compaction replaced")


@dataclass(slots=True)
class Context:
    """The messages of a history up to a length, in one version, as one scope sees them. Nobody changes one."""

    entries: MessageCache
    message_scopes: Sequence[str]
    length: int
    version: ContextVersion
    scopes: Scopes
    scope: str
    system_positions: Sequence[int] = ()
    """Positions of system messages, which stay in view even if their span is compacted."""
    pins: frozenset[int] = frozenset()
    recall_marks: RecallMarks | None = None
    """Which messages belong to recall; None if this agent has no recall tool, so that markers do not name the tool."""
    attachments: frozenset[int] = frozenset()
    """Positions of attachments, which no view contains and recall reads."""

    @property
    def state(self) -> ContextState:
        """The state of this scope."""
        return self.version.state_of(self.scope)

    @property
    def has_recall(self) -> bool:
        """Whether this agent has the recall tool for messages outside its view."""
        return self.recall_marks is not None

    def visible_entries(self) -> list[Entry]:
        """Return the messages in force, in order; replacements take the place of compacted messages."""
        self.entries.require(self.needed_positions())
        entries: list[Entry] = []
        position, opening = self.state.cleared_at, ""
        for compaction in self.state.compactions:
            span = compaction.span
            entries += self._visible_between(position, span.start)
            entries += self._replacement_entries(compaction)
            position = max(position, span.stop)
            opening = "\n\n".join(compaction.replacement) if span.is_merged else ""
        tail = self._visible_between(position, self.length)
        return [*entries, *(_merge_opening(opening, tail) if opening else tail)]

    def entries_between(self, start: int, stop: int) -> Iterator[Entry]:
        """Yield the visible messages of a span as they were recorded, also those that a client left out of its list."""
        for position in range(start, min(stop, self.length)):
            if position not in self.attachments and self.is_visible(position):
                yield self.entries[position]

    def is_in_view(self, position: int) -> bool:
        """Return whether views of this scope contain a message, unless a compaction replaces it."""
        return position not in self.attachments and not self.state.is_left_out(position) and self.is_visible(position)

    def own_positions(self) -> list[int]:
        """Return where the agent's own messages are that views contain unless a compaction replaces them."""
        own = range(self.state.cleared_at, self.length)
        return [at for at in own if self.message_scopes[at] == self.scope and self.is_in_view(at)]

    def is_visible(self, position: int) -> bool:
        """Return whether this scope may see a message that no rewind hides and that its own scope has not cleared."""
        if self.version.is_hidden(position):
            return False
        scope = self.message_scopes[position]
        if scope == self.scope:
            return True
        if position < self.version.state_of(scope).cleared_at:
            return False
        is_visible = self.scopes.is_message_visible(self.scope, scope, position)
        return is_answer_message(self.entries[position].message) if is_visible is None else is_visible

    def is_recallable(self, position: int) -> bool:
        """Return whether a message may be recalled: it may be seen or asked for, and this scope has not cleared it."""
        if not self.state.cleared_at <= position < self.length:
            return False
        return self.is_visible(position) or self._is_shown_when_asked_for(position)

    def _is_shown_when_asked_for(self, position: int) -> bool:
        scope = self.message_scopes[position]
        if self.scope != log.MAIN or scope == log.MAIN or self.scopes.main_view_of(scope) != "recall":
            return False
        return position >= self.version.state_of(scope).cleared_at and not self.version.is_hidden(position)

    def newest_start(self, count: int) -> int:
        """Return the position at which the newest `count` messages of all scopes begin.

        System messages, attachments and messages that a rewind hides do not count.
        """
        others, position = self.attachments.union(self.system_positions), self.length
        while position > self.state.cleared_at and count:
            position -= 1
            count -= position not in others and not self.version.is_hidden(position)
        return position if not count else self.state.cleared_at

    def visible_entry(self, position: int) -> Entry:
        """Return a message in the form in which it is sent, with its texts clipped if they are offloaded."""
        entry, offloaded = self._entry_with_addressee(position), self.state.offloaded
        if offloaded is None or position >= offloaded.line or position in self.pins:
            return entry
        place = position if self.has_recall else None
        shorter = clip_outputs(
            entry.message,
            offloaded.max_chars,
            place,
            keep_recall_answers=self.has_recall,
            is_per_text=not offloaded.is_per_output,
        )
        if position < offloaded.prompts_before:
            shorter = clip_user_texts(shorter, offloaded.max_chars, is_per_text=not offloaded.is_per_output)
        return entry if shorter is entry.message else entry.with_message(shorter)

    def _entry_with_addressee(self, position: int) -> Entry:
        """Return a message; a task for another agent names that agent, because its role is that of a user."""
        entry, scope = self.entries[position], self.message_scopes[position]
        if scope == self.scope or scope not in self.scopes.attributed_scopes or not entry.message.is_task:
            return entry
        agent = neutralize(scope, "name")
        return entry.with_message(_prepend_text(entry.message, f"[Told to the agent {agent}, and not by the user:]\n"))

    def may_be_in_view(self, position: int) -> bool:
        """Return whether views may contain a message, without reading it."""
        scope = self.message_scopes[position]
        return (
            position not in self.attachments
            and self.scopes.is_message_visible(self.scope, scope, position) is not False
        )

    @property
    def is_whole(self) -> bool:
        """Whether views contain all messages of this agent, as they were recorded."""
        state = self.state
        changes = self.attachments, self.version.hidden, state.left_out, state.compactions
        return not (state.text_only_before or state.cleared_at or any(changes))

    def message_before(self, position: int) -> tuple[int, Message] | None:
        """Return the message of the same agent before a position, with its position; None if there is none."""
        scope = self.message_scopes[position]
        for at in range(position - 1, -1, -1):
            if self.message_scopes[at] == scope and not self.version.is_hidden(at) and at not in self.attachments:
                return at, self.entries[at].message
        return None

    def needed_positions(self) -> Iterator[int]:
        """Yield the positions of the messages that must be in memory to build the view."""
        return filter(self.may_be_in_view, self._candidate_positions())

    def retained_positions(self) -> set[int]:
        """Return the positions of the messages to keep in memory: those of the view, and neighbors of those kept."""
        systems = self._system_positions(self.state.cleared_at, self.length)
        kept = self._continued_exchanges(systems) | self._pinned_positions(0, self.length)
        return {*self.needed_positions(), *(at - 1 for at in kept), *(at + 1 for at in kept)}

    def _candidate_positions(self) -> Iterator[int]:
        position = self.state.cleared_at
        for span in (one.span for one in self.state.compactions):
            yield from range(position, min(span.start, self.length))
            yield from self._kept_positions(span)
            position = max(position, span.stop)
        yield from range(position, self.length)

    def _visible_between(self, start: int, stop: int) -> list[Entry]:
        """Return the visible messages of a span in the form in which they are sent."""
        cut = self.state.text_only_before
        entries = [
            self.visible_entry(position)
            for position in range(start, min(stop, self.length))
            if self.is_in_view(position)
        ]
        if not start < cut:
            return entries
        old = bisect_left(entries, cut, key=_position_or_before)
        texts = {_position_or_before(entry): entry for entry in turns_as_text(entries[:old])}
        pinned = self._pinned_positions(start, cut)
        whole = {
            _position_or_before(entry): entry
            for entry in entries[:old]
            if entry.position in pinned or entry.message.role == "system"
        }
        return [*sorted((texts | whole).values(), key=_position_or_before), *entries[old:]]

    def _replacement_entries(self, compaction: log.CompactionCompleted) -> list[Entry]:
        """Return the replacement of a span: its system messages, the replacement texts, and the kept messages."""
        span = compaction.span
        kept = [self.visible_entry(position) for position in self._kept_positions(span) if self.is_in_view(position)]
        leading = self._leading_positions(span.start, span.stop)
        systems = [entry for entry in kept if entry.position in leading]
        others = [entry for entry in kept if entry.position not in leading]
        texts = () if span.is_merged else compaction.replacement
        if texts and compaction.offers_recall and self.has_recall:
            texts = (*texts[:-1], f"{texts[-1]}\n{recall_range_hint(span.start, span.stop)}")
        return [*systems, *_replacement_messages(texts), *others]

    def _kept_positions(self, span: Span) -> list[int]:
        """Return the positions of a span that the compaction leaves unchanged."""
        start = max(span.start, self.state.cleared_at)
        leading = self._leading_positions(start, span.stop)
        kept = {*leading, *self._pinned_positions(start, span.stop), *span.kept}
        return [position for position in sorted(kept) if start <= position < span.stop]

    def _pinned_positions(self, start: int, stop: int) -> set[int]:
        """Return the positions of a span that pins keep; a pin keeps every message that cannot be cut from it."""
        return self._exchanges([pin for pin in self.pins if start <= pin < stop])

    def _leading_positions(self, start: int, stop: int) -> set[int]:
        """Return the positions of a span's system text, and of what replaces everything before it."""
        systems = self._system_positions(start, stop)
        return {*systems, *self._continued_exchanges(systems)}

    def _system_positions(self, start: int, stop: int) -> list[int]:
        systems = self.system_positions
        systems = systems[bisect_left(systems, start) : bisect_left(systems, stop)]
        return [position for position in systems if not self.state.is_left_out(position)]

    def _continued_exchanges(self, systems: Sequence[int]) -> set[int]:
        """Return the exchanges of the answers among these: they go on after what replaces everything before them."""
        seen = [position for position in systems if self.may_be_in_view(position)]
        self.entries.require(seen)
        return self._exchanges([position for position in seen if self.entries[position].message.role != "system"])

    def _exchanges(self, positions: Sequence[int]) -> set[int]:
        """Return positions with those of every message that cannot be cut from them."""
        spans = (uncuttable_span(EntryMessages(self.entries), position) for position in positions)
        return {position for span in spans for position in range(*span)}


def _replacement_messages(texts: Sequence[str]) -> list[Entry]:
    """Return the texts of a replacement as alternating messages, starting with the user role."""
    return [Entry(assistant(text) if number % 2 else user(text, trust="summary")) for number, text in enumerate(texts)]


def _merge_opening(opening: str, tail: list[Entry]) -> list[Entry]:
    """Return the tail with `opening` prepended to its first prompt, or as a separate message if there is no prompt."""
    first = next((index for index, entry in enumerate(tail) if entry.message.is_prompt), None)
    if first is None:
        return [*_replacement_messages((opening,)), *tail]
    merged = tail[first].with_message(_prepend_text(tail[first].message, opening))
    return [*tail[:first], merged, *tail[first + 1 :]]


def _prepend_text(message: Message, opening: str) -> Message:
    """Return a message with `opening` prepended to its first text."""
    for number, part in enumerate(message.parts):
        if isinstance(part, Text):
            parts = (*message.parts[:number], part.with_text(opening + part.text), *message.parts[number + 1 :])
            return message.with_parts(parts)
    return message.with_parts((Text(opening, "summary", is_edited=True), *message.parts))


def _position_or_before(entry: Entry) -> int:
    return -1 if entry.position is None else entry.position
