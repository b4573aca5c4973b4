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
class Standing:
    """How one scope's conversation is to be shown."""

    folds: tuple[log.CompactionCompleted, ...] = ()
    """The compactions that stand, in the order of their spans; what they stand for is not shown any more."""
    offloaded: log.OutputsOffloaded | None = None
    """The line before which tool outputs are shown as a preview."""
    text_line: int = 0
    """Of turns before this only the words are shown."""
    cleared_at: int = 0
    """Nothing before this is shown."""
    cleared_before: tuple[int, ...] = ()
    """Where it was cleared earlier: a rewind to before the last clear does not take those back."""
    changed_at: int = 0
    """How much had been said when this last changed."""


AS_SAID = Standing()


@dataclass(frozen=True, slots=True)
class Version:
    """How all scopes stand."""

    standings: Mapping[str, Standing] = field(default_factory=dict[str, Standing])
    hidden: tuple[range, ...] = ()
    """Positions that a rewind took out of the conversation."""
    checkpoints: tuple[tuple[int, int], ...] = ()
    """The numbers of the checkpoints of what was folded, each with the position before which it reaches."""

    def of(self, scope: str) -> Standing:
        """Return how one scope stands."""
        return self.standings.get(scope, AS_SAID)

    def is_hidden(self, position: int) -> bool:
        """Return whether a rewind took a message out."""
        if not self.hidden:
            return False
        number = bisect_right(self.hidden, position, key=_start) - 1
        return number >= 0 and position in self.hidden[number]

    def after(self, event: log.Event, length: int) -> "Version | None":
        """Return how everything stands after an event, or None if it changes nothing of that."""
        match event:
            case log.CompactionCompleted(success=True):
                _check_span(event, length, self.of(event.scope).folds)
                standing = replace(self.of(event.scope), folds=_with_fold(self.of(event.scope).folds, event))
            case log.OutputsOffloaded():
                _check_line(event, length)
                standing = replace(self.of(event.scope), offloaded=event)
            case log.TurnsReducedToText():
                _check_line(event, length)
                standing = replace(self.of(event.scope), text_line=event.line)
            case log.ContextCleared():
                return self._cleared(event, length)
            case log.Rewound():
                return self._rewound(event, length)
            case _:
                return None
        made = self.checkpoints
        if isinstance(event, log.CompactionCompleted) and event.checkpoint_number is not None:
            made = (*made, (event.checkpoint_number, event.stop))
        standings = {**self.standings, event.scope: replace(standing, changed_at=length)}
        return replace(self, standings=standings, checkpoints=made)

    def _cleared(self, event: log.ContextCleared, length: int) -> "Version":
        """Return the version in which an agent has forgotten: those it has sent out keep none of its summaries."""
        known = self.of(event.scope)
        standings = {scope: _without_folds_of(event.scope, one, length) for scope, one in self.standings.items()}
        earlier = (*known.cleared_before, known.cleared_at) if known.cleared_at else ()
        standings[event.scope] = Standing(cleared_at=length, cleared_before=earlier, changed_at=length)
        return replace(self, standings=standings)

    def _rewound(self, event: log.Rewound, length: int) -> "Version":
        """Return the version that goes on from an earlier message: later changes do not stand either."""
        if not 0 <= event.to <= length:
            raise MalformedInputError(event.KIND, f"there is no message {event.to}")
        standings = {
            scope: replace(_as_of(standing, event.to), changed_at=length) for scope, standing in self.standings.items()
        }
        kept = tuple((number, stop) for number, stop in self.checkpoints if stop <= event.to)
        return Version(standings, _joined(self.hidden, range(event.to, length)), kept)


def _start(span: range) -> int:
    return span.start


def _joined(spans: tuple[range, ...], new: range) -> tuple[range, ...]:
    """Return ranges in order, with one more that reaches to the end; those it touches are part of it."""
    before = [span for span in spans if span.stop < new.start]
    touched = [span.start for span in spans if span.stop >= new.start]
    return (*before, range(min([new.start, *touched]), new.stop)) if new else spans


def _as_of(standing: Standing, position: int) -> Standing:
    """Return a standing without what speaks of messages from a position on."""
    clears = (*standing.cleared_before, standing.cleared_at)
    return replace(
        standing,
        folds=tuple(fold for fold in standing.folds if fold.stop <= position),
        text_line=min(standing.text_line, position),
        cleared_at=max((at for at in clears if at <= position), default=0),
        cleared_before=tuple(at for at in clears if at <= position)[:-1],
    )


def _without_folds_of(scope: str, standing: Standing, length: int) -> Standing:
    """Return how an agent stands without the folds that another one has made and handed down."""
    folds = tuple(fold for fold in standing.folds if fold.scope != scope)
    return standing if len(folds) == len(standing.folds) else replace(standing, folds=folds, changed_at=length)


def _with_fold(
    folds: tuple[log.CompactionCompleted, ...], fold: log.CompactionCompleted
) -> tuple[log.CompactionCompleted, ...]:
    """Return the folds with one more; those whose span it touches are part of it now."""
    apart = [other for other in folds if other.stop <= fold.start or fold.stop <= other.start]
    return tuple(sorted([*apart, fold], key=lambda one: one.start))


def _check_line(event: log.OutputsOffloaded | log.TurnsReducedToText, length: int) -> None:
    if isinstance(event, log.OutputsOffloaded) and event.max_chars < 0:
        raise MalformedInputError(event.KIND, f"{event.max_chars} is no number of characters")
    if not 0 <= event.line <= length:
        raise MalformedInputError(event.KIND, f"there is no message {event.line}")


def _check_span(event: log.CompactionCompleted, length: int, folds: tuple[log.CompactionCompleted, ...]) -> None:
    if not 0 <= event.start <= event.stop <= length:
        raise MalformedInputError(event.KIND, f"{event.start}–{event.stop} is no span of {length} messages")
    if any(not event.start <= position < event.stop for position in event.kept):
        raise MalformedInputError(event.KIND, f"{event.kept} are not all inside {event.start}–{event.stop}")
    for fold in folds:
        is_apart = fold.stop <= event.start or event.stop <= fold.start
        if not is_apart and not (event.start <= fold.start and fold.stop <= event.stop):
            spans = f"{event.start}–{event.stop} cuts through {fold.start}–{fold.stop}"
            raise MalformedInputError(event.KIND, f"{spans}, which was folded before")
