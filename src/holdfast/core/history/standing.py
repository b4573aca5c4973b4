"""How a conversation stands: which of its messages are shown, and in what form.

A value: each change of context gives another one, and taking a change back is going back to the value
before it. What is said afterwards belongs to all of them alike, because they speak of positions.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.core.history import events as log
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
