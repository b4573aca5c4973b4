"""Compaction of the middle of a conversation, as in co-cli: the first run, one marker, and the newest messages remain.

The window counts requests and responses, not tokens: counting tokens needs a tokenizer, and the cap on tool output
bounds the largest message.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import ClassVar

from holdfast.core.conversation.cuts import exchange_ranges, pinned_exchanges
from holdfast.core.conversation.messages import Entry, Text, user
from holdfast.core.conversation.spans import Span
from holdfast.core.history.events import Summary
from holdfast.core.planning.rules.rule import CompactionRule, PolicyThreshold, TrimmedList
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    NO_STEPS,
    CompactionForecast,
    CompactSpan,
    Plan,
    PlanInput,
    Threshold,
)
from holdfast.core.schema import check_fields, integer_bounds
from holdfast.dataclass import dataclass

MIN_TAIL = 4


@dataclass(frozen=True, slots=True)
class CompactionWindow:
    """What to keep and what to summarize, as ranges of entries."""

    head: range
    dropped: range
    tail: range
    dropped_count: int
    """How many requests and responses the marker replaces."""


def first_run_end(entries: Sequence[Entry], *, is_itemized: bool = False) -> int | None:
    """Return the exchange that ends the first run: the first response with text; None if there is none."""
    for number, group in enumerate(exchange_ranges(entries, is_itemized=is_itemized)):
        messages = [entries[index].message for index in group]
        if messages[0].role == "assistant" and any(
            isinstance(part, Text) for message in messages for part in message.parts
        ):
            return number
    return None


def plan_window(
    entries: Sequence[Entry], max_messages: int = 40, *, is_itemized: bool = False
) -> CompactionWindow | None:
    """Return where to cut; None if there is no need or no way to. 0 switches the window off."""
    groups = exchange_ranges(entries, is_itemized=is_itemized)
    if max_messages == 0 or len(groups) <= max_messages:
        return None
    end = first_run_end(entries, is_itemized=is_itemized)
    head = 0 if end is None else end + 1
    tail = len(groups) - max(MIN_TAIL, max_messages // 2)
    if head >= tail:
        return None
    first, last = groups[head].start, groups[tail].start
    return CompactionWindow(range(first), range(first, last), range(last, len(entries)), tail - head)


def summary_marker(count: int, summary: str) -> str:
    """Return the text that replaces messages that were summarized."""
    return f"[Summary of {count} earlier messages]\n{summary}"


def static_marker(count: int) -> str:
    """Return the text that replaces messages without a summary."""
    return f"[Earlier conversation trimmed — {count} messages removed to stay within context budget]"


def manual_compaction_texts(summary: str) -> tuple[str, str]:
    """Return the two messages that a compaction at the user's request leaves: the user's and the assistant's."""
    return f"[Compacted conversation summary]\n{summary}", "Understood. I have the conversation context."


@dataclass(frozen=True, slots=True, kw_only=True)
class CoCliCompaction(CompactionRule):
    """Compacts the messages between the first run and the newest messages, before the request is sent."""

    RULE: ClassVar[str] = "co-cli"
    counts_requests_as_turns: ClassVar[bool] = True
    allows_recall_tool: ClassVar[bool] = False

    max_messages: int = field(default=40, metadata=integer_bounds(0, 10**9))
    """More requests and responses than this trigger a compaction; 0 switches the rule off."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.compaction")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the compaction of the middle, if there are too many messages."""
        window = self._window(plan_input.entries, plan_input.situation)
        if window is None:
            return NO_STEPS
        projection, prompt = plan_input.projection, plan_input.projection.newest_prompt
        entries = plan_input.entries
        staying = {prompt, *pinned_exchanges(entries, plan_input.situation.pins)}
        if all(
            index in staying or entries[index].position is None or entries[index].message.role == "system"
            for index in window.dropped
        ):
            # A long first run leaves the window above its limit: the marker stays until there is more to summarize.
            return NO_STEPS
        is_inside = prompt is not None and prompt in window.dropped
        step = CompactSpan(
            span=Span(
                kept=(projection.entries[prompt].position or 0,) if is_inside and prompt is not None else (),
                start=projection.position_at(window.dropped.start),
                stop=projection.position_at(window.tail.start),
                count=window.dropped_count,
            ),
            by="summary" if plan_input.situation.has_summarizer else "marker",
        )
        count = _exchange_count(plan_input)
        return Plan(now=(step,), reasons=(f"{count:,} messages are more than {self.max_messages:,}",))

    def trim(self, entries: Sequence[Entry], situation: Situation) -> TrimmedList:
        """Return the first run, the static marker and the newest messages; system text, pins and the prompt stay."""
        window = self._window(entries, situation)
        if window is None:
            return TrimmedList(list(entries))
        pinned = pinned_exchanges(entries, situation.pins)
        prompt = max((index for index, entry in enumerate(entries) if entry.message.is_prompt), default=-1)
        kept = [
            entries[index]
            for index in window.dropped
            if index == prompt or index in pinned or entries[index].message.role == "system"
        ]
        marker = Entry(user(static_marker(window.dropped_count), trust="summary"))
        around = entries[window.head.start : window.head.stop], entries[window.tail.start : window.tail.stop]
        reason = f"more than {self.max_messages:,} messages: a marker replaces the middle"
        return TrimmedList([*around[0], marker, *kept, *around[1]], reason)

    def _window(self, entries: Sequence[Entry], situation: Situation) -> CompactionWindow | None:
        """Return where to cut; pinned messages do not count."""
        pinned = pinned_exchanges(entries, situation.pins)
        limit = self.max_messages + len(pinned) if self.max_messages else 0
        return plan_window(entries, limit, is_itemized=situation.batching.is_itemized)

    def threshold(self, plan_input: PlanInput) -> Threshold | None:
        """Return how many messages there may be; None if the window is off."""
        if not self.max_messages:
            return None
        return Threshold(_exchange_count(plan_input), self.max_messages, "messages")

    def thresholds(self, situation: Situation, window: int) -> Iterator[PolicyThreshold]:
        """Yield the limit on messages, unless the window is off."""
        del situation, window
        if self.max_messages:
            yield PolicyThreshold("middle compacted", self.max_messages, "messages")

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast | None:
        """Return the expected size after a compaction: the kept share of messages, and a summary or a marker."""
        if not self.max_messages:
            return None
        stays = min(tokens, tokens * max(MIN_TAIL, self.max_messages // 2) // self.max_messages)
        marker = plan_input.situation.counter.count(static_marker(self.max_messages))
        has_summarizer = plan_input.situation.has_summarizer
        return CompactionForecast(stays, MAX_SUMMARY_TOKENS if has_summarizer else marker, by_model=has_summarizer)

    def may_grow(self, step: CompactSpan) -> bool:
        """Return True: the window counts messages, and the marker replaces them whatever their size."""
        del step
        return True

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the marker; a static one without a summary."""
        del plan_input
        if step.trigger == "manual" and summary:
            return manual_compaction_texts(summary.framed_text)
        return (summary_marker(step.span.count, summary.framed_text) if summary else static_marker(step.span.count),)


def _exchange_count(plan_input: PlanInput) -> int:
    return len(exchange_ranges(plan_input.entries, is_itemized=plan_input.situation.batching.is_itemized))
