"""Whole turns go or are reduced to words, as CowAgent has it.

The older half of the complete turns goes when there are too many of them. If tokens are still over the
budget, the older half goes again, or, with few turns left, each keeps only what was asked and answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.core.conversation.cuts import turn_ranges
from holdfast.core.conversation.messages import Entry, Message, Text
from holdfast.core.conversation.shorten import clip_outputs, clip_text, turn_as_text, turns_as_text
from holdfast.core.conversation.spans import Span
from holdfast.core.history.events import Summary
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    NO_STEPS,
    AwaitSummary,
    CompactionForecast,
    CompactSpan,
    Plan,
    PlanInput,
    ReduceTurnsToText,
    Threshold,
)
from holdfast.core.schema import check_fields, integer_bounds

FEW_TURNS = 5
KEPT_TURNS = 2
"""What stays when the user asks for a compaction."""


def trim_cut(entries: Sequence[Entry], max_turns: int) -> int:
    """Return where the retained turns begin when there are more than `max_turns`; 0 where nothing goes."""
    spans = turn_ranges(entries)
    return half_cut(entries) if len(spans) > max_turns else 0


def half_cut(entries: Sequence[Entry]) -> int:
    """Return where the newer half begins: the older half of the complete turns is before it."""
    spans = turn_ranges(entries)
    # The last turn is still running, so it is not among the complete ones.
    half = (len(spans) - 1) // 2
    return spans[half].start if half > 0 else 0


def has_few_turns(entries: Sequence[Entry]) -> bool:
    """Return whether there are so few turns that words are all that can be saved of them."""
    return len(turn_ranges(entries)) < FEW_TURNS


def turns_reduced_to_text(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with each complete turn reduced to its first user text and its last reply."""
    return turns_as_text(entries, keep_last=1)


def recent_as_text(entries: Sequence[Entry], max_turns: int) -> list[Entry]:
    """Return the newest turns as words alone: what a session is restored with."""
    spans = turn_ranges(entries)[-restored_turn_count(max_turns) :]
    return [entry for span in spans for entry in turn_as_text([entries[index] for index in span])]


def restored_turn_count(max_turns: int) -> int:
    """Return how many turns a session is restored with."""
    return max(3, max_turns // 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emergency:
    """What is left after a provider's refusal, before the context is cleared: little of little."""

    offers_recall: ClassVar[bool] = False
    detects_loops: ClassVar[bool] = False

    max_chars: int = field(default=10_000, metadata=integer_bounds(64, 10**9))
    """Of each tool result and each user text; the newest prompt is exempt."""
    max_turns: int = field(default=5, metadata=integer_bounds(1, 10**9))
    first: int = field(default=1, metadata=integer_bounds(1, 10**3))
    """After how many refusals it begins; after one more the context is cleared."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.emergency")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return what empties the context when even that was refused; prompt and pins stay, and so does the log."""
        shown, prompt = plan_input.projection, plan_input.projection.newest_prompt
        free = [
            index for index, entry in enumerate(shown.entries) if entry.message.role != "system" and index != prompt
        ]
        if plan_input.situation.refusals <= self.first or not free:
            return NO_STEPS
        kept = () if prompt is None else (shown.entries[prompt].position or 0,)
        step = CompactSpan(
            span=Span(start=0, stop=shown.position_at(len(shown)), kept=kept, count=len(shown)),
            by="nothing",
            trigger="context_limit_retry",
        )
        return Plan(now=(step,), reasons=("the provider refused even that, so the context was cleared",))

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return nothing: nobody asks for an emergency."""
        del plan_input

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return nothing: nothing takes the place of a context that was cleared."""
        del plan_input, step, summary
        return ()

    def shrink(self, entries: Sequence[Entry], pins: frozenset[int] = frozenset()) -> list[Entry]:
        """Return the newest turns with results and user texts cut, pinned messages whole."""
        spans = turn_ranges(entries)
        start = spans[-self.max_turns].start if len(spans) >= self.max_turns else 0
        prompt = spans[-1].start if spans else None
        pinned = [entry for entry in entries[:start] if entry.position in pins or entry.message.role == "system"]
        newest = [
            entry
            if index == prompt or entry.position in pins or entry.message.role == "system"
            else entry.with_message(_clip_message(entry.message, self.max_chars))
            for index, entry in enumerate(entries)
            if index >= start
        ]
        return [*pinned, *newest]


def _clip_message(message: Message, max_chars: int) -> Message:
    shorter = clip_outputs(message, max_chars)
    if message.role != "user" or not any(
        isinstance(part, Text) and len(part.text) > max_chars for part in message.parts
    ):
        return shorter
    return shorter.with_parts(
        tuple(
            part.with_text(clip_text(part.text, max_chars))
            if isinstance(part, Text) and len(part.text) > max_chars
            else part
            for part in shorter.parts
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CowAgentCompaction:
    """Trims the older half of the complete turns at once; a summary of them comes into the first prompt later."""

    RULE: ClassVar[str] = "halve-turns"
    offers_recall: ClassVar[bool] = False
    detects_loops: ClassVar[bool] = False

    max_turns: int = field(default=20, metadata=integer_bounds(1, 10**9))
    max_tokens: int = field(default=50_000, metadata=integer_bounds(64, 10**12))
    """Of a request, system text and tools included."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.fold")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the trim, the reduction to words, or the summary that an earlier trim still lacks."""
        entries, count = plan_input.entries, len(turn_ranges(plan_input.entries))
        if plan_input.situation.has_ready_summary and self._is_next_turn(plan_input):
            return Plan(now=(AwaitSummary(),), reasons=("the summary of the trimmed turns is ready",))
        line = trim_cut(entries, self.max_turns)
        if line:
            return self._trim_proposal(plan_input, line, f"{count:,} turns are more than {self.max_turns:,}")
        limit = min(self.max_tokens, plan_input.situation.usable_tokens)
        if plan_input.tokens <= limit or plan_input.fixed_tokens >= limit:
            return self._summary_proposal(plan_input)
        why = f"{plan_input.tokens:,} tokens are more than {limit:,}"
        if not has_few_turns(entries):
            return self._trim_proposal(plan_input, half_cut(entries), why)
        current = turn_ranges(entries)[-1].start if count else 0
        step = ReduceTurnsToText(before=plan_input.projection.position_at(current))
        if not current or step.before <= plan_input.projection.context.state.text_only_before:
            return self._summary_proposal(plan_input)
        return Plan(now=(step,), reasons=(f"{why}, and there are fewer than {FEW_TURNS} turns",))

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast:
        """Return what a trim is expected to leave: the newer half, and a summary that comes into it later."""
        has_summarizer = plan_input.situation.has_summarizer
        return CompactionForecast(
            tokens - tokens // 2, MAX_SUMMARY_TOKENS if has_summarizer else 0, by_model=has_summarizer
        )

    def threshold(self, plan_input: PlanInput) -> Threshold:
        """Return which of its two limits is nearer."""
        by_turns = Threshold(len(turn_ranges(plan_input.entries)), self.max_turns, "turns")
        by_tokens = Threshold(plan_input.tokens, min(self.max_tokens, plan_input.situation.usable_tokens), "tokens")
        return max(by_turns, by_tokens, key=lambda line: line.fill)

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return the fold of all turns but the last two."""
        spans = turn_ranges(plan_input.entries)[:-KEPT_TURNS]
        if not spans:
            return None
        stop = plan_input.projection.position_at(spans[-1].stop)
        return CompactSpan(
            span=Span(start=0, stop=stop, count=len(spans), is_merged=True), by="summary", trigger="manual"
        )

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the text for the first prompt that stays; nothing as long as there is no summary."""
        del plan_input
        if summary is None:
            return ()
        head = f"[System: Previous conversation summary — {step.span.count} turns were compacted]"
        return (f"{head}\n\n{summary.text}\n\nThe recent conversation continues below.\n\n---\n\n",)

    @staticmethod
    def _is_next_turn(plan_input: PlanInput) -> bool:
        """Return whether the user has said something since the last trim."""
        prompt, changed_at = plan_input.projection.newest_prompt, plan_input.projection.context.state.changed_at
        return prompt is not None and plan_input.projection.position_at(prompt) >= changed_at

    def _trim_proposal(self, plan_input: PlanInput, cut: int, reason: str) -> Plan:
        gone = sum(span.start < cut for span in turn_ranges(plan_input.entries))
        step = CompactSpan(span=Span(start=0, stop=plan_input.projection.position_at(cut), count=gone), by="nothing")
        return Plan(now=(step,), reasons=(f"{reason}: the oldest {gone:,} turns were trimmed",))

    def _summary_proposal(self, plan_input: PlanInput) -> Plan:
        """Return the summary of the last trim, if it has none yet, none is being written, and the last did not fail."""
        folds, facts = plan_input.projection.context.state.compactions, plan_input.history.session_state
        is_wanted = plan_input.situation.has_summarizer and not plan_input.is_summarizing
        if not folds or folds[-1].replacement or not is_wanted or folds[-1].span.stop == facts.failed_stop:
            return NO_STEPS
        fold = folds[-1]
        count = len(plan_input.prompts_between(fold.span.start, fold.span.stop))
        step = CompactSpan(
            span=Span(start=fold.span.start, stop=fold.span.stop, count=count, is_merged=True), by="summary"
        )
        return Plan(later=(step,), reasons=("a summary of the trimmed turns is written for the next turn",))
