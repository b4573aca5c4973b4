"""A window over the middle of a conversation, as co-cli has it: first run, one marker, newest messages.

Messages are counted, not tokens: per-message counting needs a tokenizer, and the cap on tool output bounds
the worst single message. Counted are requests and responses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.core.conversation.cuts import exchange_ranges
from holdfast.core.conversation.messages import Entry, Text
from holdfast.core.conversation.spans import Span
from holdfast.core.history.events import Summary
from holdfast.core.planning.fit.protection import pinned_exchanges
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    NO_STEPS,
    CompactionForecast,
    CompactSpan,
    Plan,
    PlanInput,
    Threshold,
    compact_all_step,
)
from holdfast.core.schema import check_fields, integer_bounds

MIN_TAIL = 4


@dataclass(frozen=True, slots=True)
class CompactionWindow:
    """What to keep and what to summarise, as ranges of entries."""

    head: range
    dropped: range
    tail: range
    dropped_count: int
    """How many requests and responses the marker stands for."""


def first_run_end(entries: Sequence[Entry]) -> int | None:
    """Return the exchange that ends the first run: the first response with text; None if there is none."""
    for number, group in enumerate(exchange_ranges(entries)):
        message = entries[group.start].message
        if message.role == "assistant" and any(isinstance(part, Text) for part in message.parts):
            return number
    return None


def plan_window(entries: Sequence[Entry], max_messages: int = 40) -> CompactionWindow | None:
    """Return where to cut, or None where nothing has to be or can be: 0 switches it off."""
    groups = exchange_ranges(entries)
    if max_messages == 0 or len(groups) <= max_messages:
        return None
    end = first_run_end(entries)
    head = 0 if end is None else end + 1
    tail = len(groups) - max(MIN_TAIL, max_messages // 2)
    if head >= tail:
        return None
    first, last = groups[head].start, groups[tail].start
    return CompactionWindow(range(first), range(first, last), range(last, len(entries)), tail - head)


def summary_marker(count: int, summary: str) -> str:
    """Return the text that stands for messages that were summarised."""
    return f"[Summary of {count} earlier messages]\n{summary}"


def static_marker(count: int) -> str:
    """Return the text that stands for messages when no summary could be had."""
    return f"[Earlier conversation trimmed — {count} messages removed to stay within context budget]"


def manual_compaction_texts(summary: str) -> tuple[str, str]:
    """Return the two texts a compaction on the user's word leaves: the user's and the assistant's."""
    return f"[Compacted conversation summary]\n{summary}", "Understood. I have the conversation context."


@dataclass(frozen=True, slots=True, kw_only=True)
class CoCliCompaction:
    """Folds what stands between the first run and the newest messages, before the request goes out."""

    RULE: ClassVar[str] = "middle"
    offers_recall: ClassVar[bool] = False
    detects_loops: ClassVar[bool] = False

    max_messages: int = field(default=40, metadata=integer_bounds(0, 10**9))
    """More requests and responses than this are too many; 0 switches it off."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.fold")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the fold of the middle, if there are too many messages."""
        pinned = len(pinned_exchanges(plan_input.entries, plan_input.situation.pins))
        window = plan_window(plan_input.entries, self.max_messages + pinned if self.max_messages else 0)
        if window is None:
            return NO_STEPS
        shown, prompt = plan_input.projection, plan_input.projection.newest_prompt
        is_inside = prompt is not None and prompt in window.dropped
        step = CompactSpan(
            span=Span(
                kept=(shown.entries[prompt].position or 0,) if is_inside and prompt is not None else (),
                start=shown.position_at(window.dropped.start),
                stop=shown.position_at(window.tail.start),
                count=window.dropped_count,
            ),
            by="summary" if plan_input.situation.has_summarizer else "marker",
        )
        count = len(exchange_ranges(plan_input.entries))
        return Plan(now=(step,), reasons=(f"{count:,} messages are more than {self.max_messages:,}",))

    def threshold(self, plan_input: PlanInput) -> Threshold | None:
        """Return how many messages there may be; None where the window is switched off."""
        return (
            Threshold(len(exchange_ranges(plan_input.entries)), self.max_messages, "messages")
            if self.max_messages
            else None
        )

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast | None:
        """Return what a fold is expected to leave: its share of messages, and a summary or a marker."""
        if not self.max_messages:
            return None
        stays = min(tokens, tokens * max(MIN_TAIL, self.max_messages // 2) // self.max_messages)
        marker = plan_input.situation.counter.count(static_marker(self.max_messages))
        has_summarizer = plan_input.situation.has_summarizer
        return CompactionForecast(stays, MAX_SUMMARY_TOKENS if has_summarizer else marker, by_model=has_summarizer)

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return the fold of everything: two messages take its place."""
        return compact_all_step(plan_input)

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the marker; a static one where no summary could be had."""
        del plan_input
        if step.trigger == "manual" and summary:
            return manual_compaction_texts(summary.text)
        return (summary_marker(step.span.count, summary.text) if summary else static_marker(step.span.count),)
