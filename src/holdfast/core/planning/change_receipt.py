"""What each change of context did: its receipt, and bringing parts of a compaction back."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import TypeAlias

from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.planning.fit.receipt import PositionRanges, format_positions, ranges_without
from holdfast.core.planning.situation import format_dollars
from holdfast.errors import MalformedInputError, NothingToCompactError
from holdfast.text import pluralize

ContextChange: TypeAlias = (
    log.CompactionCompleted | log.OutputsOffloaded | log.TurnsReducedToText | log.ContextCleared | log.Rewound
)
"""What changes how a conversation stands, and can be taken back."""


@dataclass(frozen=True, slots=True)
class ChangeReceipt:
    """What one change of context did, or why a compaction did nothing. Positions are those of what was said."""

    event: ContextChange
    is_undone: bool = False
    undo_steps: int = 0
    """How many times `undo` has to be called to take it back; 0 where it does not stand."""
    at_ms: int | None = None
    """When it was made, in milliseconds since 1970."""
    length: int = 0
    """How much had been said by then."""

    @property
    def compaction(self) -> log.CompactionCompleted | None:
        """The compaction, if it is one."""
        return self.event if isinstance(self.event, log.CompactionCompleted) else None

    @property
    def compacted(self) -> range:
        """The positions that its replacement stands for."""
        has_text = self.compaction is not None and self.compaction.success and bool(self.compaction.replacement)
        return range(self.compaction.start, self.compaction.stop) if self.compaction and has_text else range(0)

    @property
    def kept(self) -> tuple[int, ...]:
        """The positions inside that stay whole."""
        return self.compaction.kept if self.compaction else ()

    @property
    def dropped(self) -> PositionRanges:
        """The positions that are not shown any more, and that nothing stands for."""
        match self.event:
            case log.Rewound(to=to):
                return (range(to, self.length),) if to < self.length else ()
            case log.ContextCleared():
                return (range(self.length),) if self.length else ()
            case log.CompactionCompleted(success=True, replacement=()) as fold:
                return ranges_without(fold.stop, list(fold.kept), start=fold.start)
            case _:
                return ()

    @property
    def tokens_before(self) -> int:
        """What the messages cost before; 0 where nobody counted."""
        return self.compaction.pre_compaction_tokens if self.compaction else self._effect.tokens_before

    @property
    def tokens_after(self) -> int:
        """What they cost after it."""
        return self.compaction.post_compaction_tokens if self.compaction else self._effect.tokens_after

    @property
    def provenance(self) -> str:
        """Where the counts come from."""
        return self._effect.provenance

    @property
    def lost_prefix_tokens(self) -> int:
        """Tokens that the provider's cache held, and that are not sent as they were any more."""
        return self._effect.prefix_lost

    @property
    def rewritten_tokens(self) -> int:
        """Tokens that are sent as new because of that."""
        return self._effect.rewritten

    @property
    def model(self) -> str | None:
        """Who wrote the summary; None where it was made by rule, or there is none."""
        return self.compaction.by_model if self.compaction else None

    @property
    def usage(self) -> log.Usage | None:
        """What the summary was billed, and how much of it came from the cache."""
        return self.compaction.usage if self.compaction else None

    @property
    def seconds(self) -> float | None:
        """How long it took to write."""
        duration_ms = self.compaction.duration_ms if self.compaction else None
        return None if duration_ms is None else duration_ms / 1000

    @property
    def summary_dollars(self) -> float | None:
        """What writing the summary cost, where the prices are known."""
        return self.compaction.dollars if self.compaction else None

    @property
    def rewrite_dollars(self) -> float | None:
        """What the next request pays for what is sent as new, where the prices are known."""
        return self._effect.rewrite_dollars

    @property
    def score(self) -> float | None:
        """Which share of what must not be forgotten the summary and what stands beside it hold."""
        return self.compaction.score if self.compaction else None

    @property
    def put_back(self) -> tuple[str, ...]:
        """The facts that the model's text had lost, and that the check gave back to it."""
        return self.compaction.put_back if self.compaction else ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """The facts that stand neither in the summary nor beside it, each with its message."""
        return self.compaction.left_out if self.compaction else ()

    @property
    def redacted(self) -> tuple[tuple[str, int], ...]:
        """How many keys and passwords were kept from the summariser, by kind."""
        return self.compaction.redacted if self.compaction else ()

    @property
    def reason(self) -> str:
        """Why it was made, or why not."""
        match self.event:
            case log.CompactionCompleted(reason=reason, error=error):
                return reason or error or ""
            case log.OutputsOffloaded(reason=reason) | log.TurnsReducedToText(reason=reason):
                return reason
            case _:
                return ""

    @property
    def undo(self) -> str:
        """How to take it back."""
        if self.is_undone:
            return "undone"
        times = f", {self.undo_steps} times" if self.undo_steps > 1 else ""
        return f"undo with session.undo(){times}" if self.undo_steps else ""

    def __str__(self) -> str:
        return "\n".join(line for line in (_headline(self), *_lines(self), self.undo) if line)

    @property
    def _effect(self) -> log.Effect:
        return self.event.effect or log.Effect()


def _headline(receipt: ChangeReceipt) -> str:
    match receipt.event:
        case log.CompactionCompleted(success=False) as fold:
            return f"not compacted ({fold.trigger}): {fold.error}"
        case log.CompactionCompleted() as fold:
            span = format_positions(ranges_without(fold.stop, list(fold.kept), start=fold.start)) or "nothing"
            return f"compacted ({fold.trigger}) {span} by {fold.by_model or 'rule'}"
        case log.OutputsOffloaded(line=line, max_chars=most):
            return f"tool outputs before #{line} are shown as previews of {most:,} characters"
        case log.TurnsReducedToText(line=line):
            return f"of the turns before #{line} only the words are shown"
        case log.ContextCleared():
            return "the conversation begins anew"
        case log.Rewound(to=to):
            return f"the conversation goes on from before #{to}"


def _lines(receipt: ChangeReceipt) -> Iterator[str]:
    fold = receipt.compaction
    if fold is not None and not fold.success:
        return
    if receipt.tokens_before:
        origin = f" ({receipt.provenance})" if receipt.provenance else ""
        yield f"tokens    {receipt.tokens_before:,} → {receipt.tokens_after:,}{origin}"
    if fold is not None:
        into = f"folded into {len(fold.replacement):,}" if fold.replacement else "left out"
        yield f"messages  {fold.messages_compacted:,} {into}, {len(fold.kept):,} kept whole; all are in the log"
    if receipt.dropped:
        yield f"dropped   {format_positions(receipt.dropped)}; all are in the log"
    if receipt.lost_prefix_tokens:
        lost, rewritten = receipt.lost_prefix_tokens, receipt.rewritten_tokens
        yield f"cache     {lost:,} tokens of the prefix lost, {rewritten:,} sent as new"
    if receipt.score is not None:
        apart = ((len(receipt.put_back), "put back"), (len(receipt.left_out), "one recall away"))
        told = "".join(f", {count:,} {what}" for count, what in apart if count)
        yield f"survival  {receipt.score:.0%} of what must not be forgotten{told}"
    if receipt.redacted:
        yield f"redacted  {', '.join(_describe_secrets(*one) for one in receipt.redacted)} kept from the summariser"
    yield from _cost_lines(receipt)
    if receipt.reason:
        yield f"because   {receipt.reason}"


def _describe_secrets(kind: str, count: int) -> str:
    return pluralize(count, kind) if not kind.endswith("URL") else f"{pluralize(count, 'password')} in URLs"


def _cost_lines(receipt: ChangeReceipt) -> Iterator[str]:
    """Yield what a change cost, as far as that is known."""
    if usage := receipt.usage:
        whole = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        cached = f" ({usage.cache_read_tokens:,} from the cache)" if usage.cache_read_tokens else ""
        yield f"spent     {whole:,} tokens in{cached}, {usage.output_tokens:,} out"
    costs = ((receipt.summary_dollars, "for the summary"), (receipt.rewrite_dollars, "for what is sent as new"))
    if told := ", ".join(f"{format_dollars(dollars)} {what}" for dollars, what in costs if dollars):
        yield f"cost      {told}"
    if receipt.seconds is not None:
        yield f"took      {receipt.seconds:.1f} s"


def change_receipts(events: Iterable[log.Event], times: Iterable[int] = ()) -> list[ChangeReceipt]:
    """Return the receipt of every change of context of a log, and of every compaction that came to nothing, in order.

    `times` are those of the events, in milliseconds since 1970.
    """
    found: list[ChangeReceipt] = []
    done: list[int] = []
    undone: list[int] = []
    length = 0
    for event, at_ms in zip(events, chain(times, repeat(None))):  # noqa: B905 - the times may be unknown
        length += isinstance(event, log.MessageAppended)
        if isinstance(event, log.ChangeUndone) and done:
            undone.append(done.pop())
        elif isinstance(event, log.ChangeRedone) and undone:
            done.append(undone.pop())
        elif isinstance(event, ContextChange):
            found.append(ChangeReceipt(event, at_ms=at_ms, length=length))
            if not isinstance(event, log.CompactionCompleted) or event.success:
                done.append(len(found) - 1)
                undone.clear()
    steps = {number: len(done) - place for place, number in enumerate(done)}
    stood = {number for number, receipt in enumerate(found) if receipt.compaction is None or receipt.compaction.success}
    return [
        replace(receipt, undo_steps=steps.get(number, 0), is_undone=number in stood and number not in steps)
        for number, receipt in enumerate(found)
    ]


def with_messages_restored(context: Context, positions: Sequence[int]) -> log.CompactionCompleted:
    """Return the last compaction once more, with chosen messages of it kept whole."""
    folds = context.state.compactions
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
        count=max(0, fold.messages_compacted - len(kept) + len(fold.kept)),
        ends_run=False,
        reason="messages were brought back",
        checkpoint_number=None,
        checkpoint_path=None,
        put_back=(),
        left_out=(),
        redacted=(),
        usage=None,
        duration_ms=None,
    )
