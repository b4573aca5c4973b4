"""What a change of context did: the receipt of a compaction, and bringing parts of one back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.errors import MalformedInputError, NothingToCompactError


@dataclass(frozen=True, slots=True)
class ChangeReceipt:
    """What one compaction did, or why it did nothing."""

    event: log.CompactionCompleted
    is_undone: bool

    @property
    def folded(self) -> range:
        """The positions that its replacement stands for."""
        return range(self.event.start, self.event.stop)

    @property
    def kept(self) -> tuple[int, ...]:
        """The positions inside that stay whole."""
        return self.event.kept

    def __str__(self) -> str:
        event = self.event
        if not event.success:
            return f"not compacted ({event.trigger}): {event.error}"
        who = event.by_model or "rule"
        lines = [
            f"compacted ({event.trigger}) #{event.start}–#{max(event.start, event.stop - 1)} by {who}",
            f"tokens    {event.pre_compaction_tokens:,} → {event.post_compaction_tokens:,}",
            f"messages  {event.messages_removed:,} fewer in view, {len(event.kept):,} kept whole; all are in the log",
        ]
        if event.score is not None:
            lines.append(f"survival  {event.score:.0%} of what must not be forgotten")
        if event.usage is not None:
            lines.append(f"spent     {event.usage.input_tokens:,} in, {event.usage.output_tokens:,} out")
        if event.duration_ms is not None:
            lines.append(f"took      {event.duration_ms / 1000:.1f} s")
        if event.reason:
            lines.append(f"because   {event.reason}")
        lines.append("undone" if self.is_undone else "undo with session.undo()")
        return "\n".join(lines)


def receipts_of(events: Iterable[log.Event]) -> list[ChangeReceipt]:
    """Return the receipt of every compaction of a log, in order, with those taken back marked."""
    found: list[ChangeReceipt] = []
    done: list[int | None] = []
    undone: list[int | None] = []
    for event in events:
        if isinstance(event, log.CompactionCompleted):
            found.append(ChangeReceipt(event, is_undone=False))
        if isinstance(event, log.ChangeUndone) and done:
            undone.append(done.pop())
            _mark(found, undone[-1], is_undone=True)
        elif isinstance(event, log.ChangeRedone) and undone:
            done.append(undone.pop())
            _mark(found, done[-1], is_undone=False)
        elif _changes(event):
            done.append(len(found) - 1 if isinstance(event, log.CompactionCompleted) else None)
            undone.clear()
    return found


def _mark(found: list[ChangeReceipt], number: int | None, *, is_undone: bool) -> None:
    if number is not None:
        found[number] = replace(found[number], is_undone=is_undone)


def _changes(event: log.Event) -> bool:
    """Return whether an event is a change of context that can be taken back."""
    if isinstance(event, log.CompactionCompleted):
        return event.success
    return isinstance(event, log.OutputsOffloaded | log.TurnsReducedToText | log.ContextCleared | log.Rewound)


def brought_back(context: Context, positions: Sequence[int]) -> log.CompactionCompleted:
    """Return the last compaction once more, with chosen messages of it kept whole."""
    folds = context.standing.folds
    if not folds:
        raise NothingToCompactError(context.length)
    fold = folds[-1]
    is_listed = isinstance(positions, Sequence) and not isinstance(positions, str) and len(positions) > 0
    if not is_listed or not all(type(position) is int and fold.start <= position < fold.stop for position in positions):
        raise MalformedInputError("positions", f"give positions between {fold.start} and {fold.stop - 1}")
    kept = tuple(sorted({*fold.kept, *positions}))
    return replace(
        fold,
        kept=kept,
        ends_run=False,
        reason="messages were brought back",
        checkpoint_number=None,
        checkpoint_path=None,
        usage=None,
        duration_ms=None,
    )
