"""Receipts of context changes, and the event that restores messages of a compaction.

A receipt is computed from the session log: it says what one event did to the context and how to undo it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import TypeAlias

from holdfast.core.conversation.spans import PositionRanges, format_positions
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.planning.situation import format_dollars
from holdfast.dataclass import dataclass
from holdfast.errors import MalformedInputError, NothingToCompactError
from holdfast.text import pluralize

ContextChange: TypeAlias = (
    log.CompactionCompleted | log.OutputsOffloaded | log.TurnsReducedToText | log.ContextCleared | log.Rewound
)
"""The events that change a context and can be undone."""


@dataclass(frozen=True, slots=True)
class ChangeReceipt:
    """What one context change did, or why a compaction failed. Positions are those of the history."""

    event: ContextChange
    is_undone: bool = False
    undo_steps: int = 0
    """How many calls of `undo` revert the change; 0 if it is not in force."""
    at_ms: int | None = None
    """The time of the event, in milliseconds since 1970; None if it is unknown."""
    length: int = 0
    """How many messages the history had at that time."""

    @property
    def compaction(self) -> log.CompactionCompleted | None:
        """The event, if it is a compaction."""
        return self.event if isinstance(self.event, log.CompactionCompleted) else None

    @property
    def compacted(self) -> range:
        """The positions that the texts of a compaction replace."""
        done = self.compaction
        is_replaced = done and done.success and (done.replacement or done.trigger == "client")
        return done.span.positions if done and is_replaced else range(0)

    @property
    def dropped(self) -> PositionRanges:
        """The positions that left the view without a replacement."""
        match self.event:
            case log.Rewound(to=to):
                return (range(to, self.length),) if to < self.length else ()
            case log.ContextCleared():
                return (range(self.length),) if self.length else ()
            case log.CompactionCompleted(success=True, replacement=()) as done if done.trigger != "client":
                return done.span.replaced
            case _:
                return ()

    @property
    def tokens_before(self) -> int:
        """Tokens of the whole request before the change, as `Request.tokens` counts them; 0 if they were not counted.

        A log of an earlier version has only those of the messages.
        """
        effect = self.effect
        return (
            self.compaction.request_tokens[0]
            if self.compaction
            else effect.request_tokens_before or effect.tokens_before
        )

    @property
    def tokens_after(self) -> int:
        """Tokens of the whole request after the change."""
        effect = self.effect
        return (
            self.compaction.request_tokens[1] if self.compaction else effect.request_tokens_after or effect.tokens_after
        )

    @property
    def effect(self) -> log.Effect:
        """The effect on the next request; all zero if it was not measured."""
        return self.event.effect or log.Effect()

    @property
    def summary(self) -> log.Summary:
        """The summary or digest of a compaction, with its cost; empty for other changes."""
        return self.compaction.summary if self.compaction else log.Summary("")

    @property
    def reason(self) -> str:
        """Why the change was made, or why a compaction failed."""
        match self.event:
            case log.CompactionCompleted(reason=reason, error=error):
                return reason or error or ""
            case log.OutputsOffloaded(reason=reason) | log.TurnsReducedToText(reason=reason):
                return reason
            case _:
                return ""

    @property
    def undo(self) -> str:
        """How to undo the change, as text; "undone" if it was undone already."""
        if self.is_undone:
            return "undone"
        times = f", {self.undo_steps} times" if self.undo_steps > 1 else ""
        return f"undo with session.undo(){times}" if self.undo_steps else ""

    def __str__(self) -> str:
        return "\n".join(line for line in (_headline(self), *_lines(self), self.undo) if line)


def _headline(receipt: ChangeReceipt) -> str:
    match receipt.event:
        case log.CompactionCompleted(success=False) as failed:
            return f"not compacted ({failed.trigger}): {failed.error}"
        case log.CompactionCompleted() as done:
            positions = format_positions(done.span.replaced) or "nothing"
            return f"compacted ({done.trigger}) {positions} by {done.summary.by_model or 'rule'}"
        case log.OutputsOffloaded(line=line, max_chars=most, prompts_before=prompts) if prompts:
            return f"tool outputs before #{line} and prompts before #{prompts} shortened to {most:,} characters"
        case log.OutputsOffloaded(line=line, max_chars=most):
            return f"tool outputs before #{line} replaced by previews of {most:,} characters"
        case log.TurnsReducedToText(line=line):
            return f"turns before #{line} reduced to their text"
        case log.ContextCleared():
            return "context cleared"
        case log.Rewound(to=to):
            return f"rewound to before #{to}"


def _lines(receipt: ChangeReceipt) -> Iterator[str]:
    done, effect, summary = receipt.compaction, receipt.effect, receipt.summary
    if done is not None and not done.success:
        return
    if receipt.tokens_before:
        origin = f" ({effect.provenance})" if effect.provenance else ""
        yield f"tokens    {receipt.tokens_before:,} → {receipt.tokens_after:,}{origin}"
    if done is not None:
        into = f"replaced by {len(done.replacement):,}" if done.replacement else "dropped"
        into = "left out by the client" if done.trigger == "client" else into
        count = done.span.message_count if done.replacement else done.messages_removed or done.span.message_count
        yield f"messages  {count:,} {into}, {len(done.span.kept):,} kept whole; all stay in the log"
    if receipt.dropped:
        yield f"dropped   {format_positions(receipt.dropped)}; all stay in the log"
    if effect.prefix_lost:
        yield f"cache     {effect.prefix_lost:,} tokens of the cached prefix lost, {effect.rewritten:,} sent uncached"
    if summary.score is not None:
        counts = ((len(summary.put_back), "restored"), (len(summary.left_out), "left to recall"))
        details = "".join(f", {count:,} {what}" for count, what in counts if count)
        yield f"facts     {summary.score:.0%} of the facts that must be kept{details}"
    if summary.redacted:
        yield f"redacted  {', '.join(_describe_secrets(*one) for one in summary.redacted)} hidden from the summarizer"
    yield from _cost_lines(summary, effect)
    if receipt.reason:
        yield f"because   {receipt.reason}"


def _describe_secrets(kind: str, count: int) -> str:
    return pluralize(count, kind) if not kind.endswith("URL") else f"{pluralize(count, 'password')} in URLs"


def _cost_lines(summary: log.Summary, effect: log.Effect) -> Iterator[str]:
    if usage := summary.usage:
        cached = f" ({usage.cache_read_tokens:,} from the cache)" if usage.cache_read_tokens else ""
        yield f"spent     {usage.all_input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"
    costs = ((summary.dollars, "for the summary"), (effect.rewrite_dollars, "for uncached input"))
    if text := ", ".join(f"{format_dollars(dollars)} {what}" for dollars, what in costs if dollars):
        yield f"cost      {text}"
    if summary.duration_ms is not None:
        yield f"took      {summary.duration_ms / 1000:.1f} s"


def change_receipts(events: Iterable[log.Event], times: Iterable[int] = ()) -> list[ChangeReceipt]:
    """Return the receipts of all context changes and failed compactions in a log, in order.

    `times` are the times of the events, in milliseconds since 1970.
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
    applied = {
        number for number, receipt in enumerate(found) if receipt.compaction is None or receipt.compaction.success
    }
    return [
        replace(receipt, undo_steps=steps.get(number, 0), is_undone=number in applied and number not in steps)
        for number, receipt in enumerate(found)
    ]


RESTORED_REASON = "messages were restored"
"""The reason of a compaction that was copied to put messages of it back."""


def with_messages_restored(context: Context, positions: Sequence[int]) -> log.CompactionCompleted:
    """Return a copy of the last compaction that keeps the messages at `positions` whole."""
    if not context.state.compactions:
        raise NothingToCompactError(context.length)
    last = context.state.compactions[-1]
    span = last.span
    is_listed = isinstance(positions, Sequence) and not isinstance(positions, str) and len(positions) > 0
    if not is_listed or not all(type(position) is int and position in span.positions for position in positions):
        raise MalformedInputError("positions", f"give positions between {span.start} and {span.stop - 1}")
    kept = tuple(sorted({*span.kept, *positions}))
    return replace(
        last,
        span=replace(span, kept=kept, count=max(0, span.message_count - len(kept) + len(span.kept))),
        summary=replace(last.summary, put_back=(), left_out=(), redacted=(), usage=None, duration_ms=None),
        ends_run=False,
        reason=RESTORED_REASON,
        checkpoint_number=None,
        checkpoint_path=None,
    )
