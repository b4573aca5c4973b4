"""Compaction by whole turns, as in CowAgent: turns are dropped or reduced to text.

If there are too many turns, the older half of the complete turns is dropped. If the tokens are still over the budget,
the older half is dropped again; with few turns left, each turn keeps only its question and its answer instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar

from holdfast.core.conversation.cuts import pinned_exchanges, turn_ranges
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.shorten import clip_outputs, clip_user_texts, turns_as_text
from holdfast.core.conversation.spans import Span
from holdfast.core.conversation.tokens import message_tokens
from holdfast.core.history.events import CompactionCompleted, Event, Summary, TurnsReducedToText
from holdfast.core.planning.rules.rule import CompactionRule, PolicyThreshold, TrimmedList
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    NO_STEPS,
    AwaitSummary,
    CompactionForecast,
    CompactSpan,
    OffloadOutputs,
    Plan,
    PlanInput,
    ReduceTurnsToText,
    Step,
    Threshold,
)
from holdfast.core.schema import check_fields, integer_bounds
from holdfast.dataclass import dataclass

if TYPE_CHECKING:
    from holdfast.core.history.context import Context

EMERGENCY_REASON = (
    "the provider refused the request as too long, so only the newest turns are sent, with long texts clipped"
)
FEW_TURNS = 5
KEPT_TURNS = 2
"""How many turns stay when the user asks for a compaction."""
NO_PINS = frozenset[int]()


def trimmable_turns(entries: Sequence[Entry], pins: frozenset[int] = NO_PINS) -> list[range]:
    """Return the turns that a trim shortens, and the running one. What pins keep of trimmed turns is no turn."""
    spans = turn_ranges(entries)
    if not pins:
        return spans
    pinned = pinned_exchanges(entries, pins)
    return [
        span
        for span in spans
        if span is spans[-1] or any(index not in pinned and entries[index].message.role != "system" for index in span)
    ]


def trim_cut(entries: Sequence[Entry], max_turns: int, pins: frozenset[int] = NO_PINS) -> int:
    """Return where the kept turns begin if there are more than `max_turns`; 0 if nothing is dropped."""
    return half_cut(entries, pins) if len(trimmable_turns(entries, pins)) > max_turns else 0


def half_cut(entries: Sequence[Entry], pins: frozenset[int] = NO_PINS) -> int:
    """Return where the newer half of the complete turns begins."""
    spans = trimmable_turns(entries, pins)
    # The last turn is still running, so it is not among the complete ones.
    half = (len(spans) - 1) // 2
    return spans[half].start if half > 0 else 0


def has_few_turns(entries: Sequence[Entry], pins: frozenset[int] = NO_PINS) -> bool:
    """Return whether there are so few turns that they are reduced to text."""
    return len(trimmable_turns(entries, pins)) < FEW_TURNS


def restored_turn_count(max_turns: int) -> int:
    """Return how many turns a session is restored with."""
    return max(3, max_turns // 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emergency(CompactionRule):
    """Keeps a few clipped turns after a provider refused the request, and clears the context after another refusal."""

    max_chars: int = field(default=10_000, metadata=integer_bounds(64, 10**9))
    """The length of each tool result and each user text; the newest prompt is exempt."""
    max_turns: int = field(default=5, metadata=integer_bounds(1, 10**9))
    first: int = field(default=1, metadata=integer_bounds(1, 10**3))
    """After how many refusals the rule applies; after one more it clears the context."""
    persists: bool = False
    """Whether later requests keep the cut too, and no other rule trims anything in its place."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.emergency")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return steps that keep the cut, or clear the context if the shortened request was refused too."""
        if plan_input.situation.refusals > self.first:
            return self._clearing(plan_input)
        is_due = self.persists and plan_input.situation.refusals == self.first
        return Plan(tuple(self._lasting_steps(plan_input)), reasons=(EMERGENCY_REASON,)) if is_due else NO_STEPS

    def _clearing(self, plan_input: PlanInput) -> Plan:
        """Return a step that clears the context; prompt and pins stay."""
        projection, prompt = plan_input.projection, plan_input.projection.newest_prompt
        has_more = any(
            entry.message.role != "system" and index != prompt for index, entry in enumerate(projection.entries)
        )
        if not has_more:
            return NO_STEPS
        step = CompactSpan(
            span=Span(
                start=0,
                stop=projection.position_at(len(projection)),
                kept=() if prompt is None else (projection.entries[prompt].position or 0,),
                count=len(projection),
            ),
            by="nothing",
            trigger="context_limit_retry",
        )
        return Plan(
            now=(step,), reasons=("the provider refused the shortened request too, so the context was cleared",)
        )

    def _lasting_steps(self, plan_input: PlanInput) -> Iterator[Step]:
        """Yield the steps after which the context is what `shrink` returns."""
        projection, pins = plan_input.projection, plan_input.situation.pins
        spans = trimmable_turns(projection.entries, pins)
        if len(spans) > self.max_turns:
            stop, count = projection.position_at(spans[-self.max_turns].start), len(spans) - self.max_turns
            yield CompactSpan(span=Span(start=0, stop=stop, count=count), by="nothing", trigger="context_limit_retry")
        whole = {id(entry.message) for entry in projection.entries}
        if any(id(entry.message) not in whole for entry in self.shrink(projection.entries, pins)):
            prompt = projection.newest_prompt
            yield OffloadOutputs(
                before=projection.context.length,
                max_chars=self.max_chars,
                prompts_before=0 if prompt is None else projection.position_at(prompt),
            )

    def shrink(self, entries: Sequence[Entry], pins: frozenset[int] = NO_PINS) -> list[Entry]:
        """Return the newest turns with results and user texts clipped; pinned messages stay whole."""
        spans = trimmable_turns(entries, pins)
        start = spans[-self.max_turns].start if len(spans) >= self.max_turns else 0
        prompt = max((index for index, entry in enumerate(entries) if entry.message.is_prompt), default=None)
        shrunk: list[Entry] = []
        for index, entry in enumerate(entries):
            if entry.position in pins or entry.message.role == "system":
                shrunk.append(entry)
            elif index >= start:
                clipped = clip_outputs(entry.message, self.max_chars)
                shrunk.append(
                    entry.with_message(clipped if index == prompt else clip_user_texts(clipped, self.max_chars))
                )
        return shrunk


def _without_turns_before(entries: Sequence[Entry], cut: int, pins: frozenset[int]) -> list[Entry]:
    pinned = pinned_exchanges(entries, pins)
    return [
        entry
        for index, entry in enumerate(entries)
        if index >= cut or index in pinned or entry.message.role == "system"
    ]


def _finished_turns_as_text(entries: Sequence[Entry], pins: frozenset[int]) -> list[Entry]:
    spans = turn_ranges(entries)
    left = list(entries[: spans[0].start] if spans else entries)
    for span in spans:
        turn = entries[span.start : span.stop]
        is_whole = span is spans[-1] or any(entry.position in pins or entry.message.role == "system" for entry in turn)
        left += turn if is_whole else turns_as_text(turn)
    return left


@dataclass(frozen=True, slots=True, kw_only=True)
class CowAgentCompaction(CompactionRule):
    """Trims the older half of the complete turns at once; their summary is merged into the first prompt later."""

    RULE: ClassVar[str] = "cowagent"

    max_turns: int = field(default=20, metadata=integer_bounds(1, 10**9))
    max_tokens: int = field(default=50_000, metadata=integer_bounds(64, 10**12))
    """The most tokens of a request, system text and tools included."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.compaction")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the trim, the reduction to text, or the summary that an earlier trim still lacks."""
        entries, pins = plan_input.entries, plan_input.situation.pins
        count = len(trimmable_turns(entries, pins))
        if plan_input.situation.has_ready_summary and self._is_next_turn(plan_input):
            return Plan(now=(AwaitSummary(),), reasons=("the summary of the trimmed turns is ready",))
        if cut := trim_cut(entries, self.max_turns, pins):
            return self._trim_proposal(plan_input, cut, f"{count:,} turns are more than {self.max_turns:,}")
        limit = plan_input.situation.limit
        if plan_input.tokens <= limit or plan_input.fixed_tokens >= limit:
            return self._summary_proposal(plan_input)
        reason = f"{plan_input.tokens:,} tokens are more than {limit:,}"
        if not has_few_turns(entries, pins):
            return self._trim_proposal(plan_input, half_cut(entries, pins), reason)
        current = turn_ranges(entries)[-1].start if count else 0
        step = ReduceTurnsToText(before=plan_input.projection.position_at(current))
        old = plan_input.projection.entries[:current]
        is_text = step.before <= plan_input.projection.context.state.text_only_before or turns_as_text(old) == old
        if is_text:
            # There is nothing to reduce, so an event would change nothing.
            return self._summary_proposal(plan_input)
        return Plan(
            now=(step,), reasons=(f"{reason}, and there are fewer than {FEW_TURNS} turns: each is reduced to its text",)
        )

    def trim(self, entries: Sequence[Entry], situation: Situation) -> TrimmedList:
        """Return the newer turns; with few turns left, the finished ones as text. System text and pins stay whole."""

        def is_too_long(some: Sequence[Entry]) -> bool:
            tokens = sum(sum(message_tokens(entry.message, situation.counter)) for entry in some)
            return tokens > situation.message_budget

        pins = situation.pins
        left = _without_turns_before(entries, trim_cut(entries, self.max_turns, pins), pins)
        while is_too_long(left) and not has_few_turns(left, pins):
            left = _without_turns_before(left, half_cut(left, pins), pins)
        if is_too_long(left):
            left = _finished_turns_as_text(left, pins)
        limits = f"{self.max_turns:,} turns or {situation.billed_limit:,} tokens"
        return TrimmedList(left, f"more than {limits}: the oldest turns were dropped or reduced to their text")

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast:
        """Return the expected size after a trim: the newer half, and a summary that is merged into it later."""
        has_summarizer = plan_input.situation.has_summarizer
        summary = MAX_SUMMARY_TOKENS if has_summarizer else 0
        return CompactionForecast(tokens - tokens // 2, summary, by_model=has_summarizer)

    def threshold(self, plan_input: PlanInput) -> Threshold:
        """Return the nearer of the two limits, turns or tokens."""
        turns = trimmable_turns(plan_input.entries, plan_input.situation.pins)
        by_turns = Threshold(len(turns), self.max_turns, "turns")
        by_tokens = Threshold(plan_input.tokens, plan_input.situation.limit, "tokens")
        return max(by_turns, by_tokens, key=lambda one: one.fill)

    def request_limit(self, window: int) -> int | None:
        """Return the most tokens of a request, whatever the window."""
        del window
        return self.max_tokens

    def thresholds(self, situation: Situation, window: int) -> Iterator[PolicyThreshold]:
        """Yield the limits on turns and tokens."""
        del window
        yield PolicyThreshold("older half dropped", self.max_turns, "turns")
        yield PolicyThreshold("older half dropped", situation.limit)

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return the compaction of all turns but the last two."""
        entries = plan_input.entries
        spans = trimmable_turns(entries, plan_input.situation.pins)[:-KEPT_TURNS]
        if not spans:
            return None
        stop = spans[-1].stop
        count = sum(span.stop <= stop for span in turn_ranges(entries))
        span = Span(start=0, stop=plan_input.projection.position_at(stop), count=count, is_merged=True)
        return CompactSpan(span=span, by="summary", trigger="manual")

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the text that is merged into the first kept prompt; nothing until there is a summary."""
        del plan_input
        if summary is None:
            return ()
        head = f"[System: Previous conversation summary — {step.span.count} turns were compacted]"
        return (f"{head}\n\n{summary.framed_text}\n\nThe recent conversation continues below.\n\n---\n\n",)

    def restore_events(self, context: "Context") -> list[Event]:
        """Return the events that reduce the context to the text of the newest turns."""
        events: list[Event] = []
        entries = context.visible_entries()
        compacted_stop = max((one.span.stop for one in context.state.compactions), default=0)
        spans = turn_ranges(entries)
        newest = spans[-restored_turn_count(self.max_turns) :]
        start = (entries[newest[0].start].position or 0) if newest else 0
        # A pinned message follows the compaction that kept it, with an older position: nothing remains before it.
        if len(newest) < len(spans) and start > compacted_stop:
            events.append(CompactionCompleted(success=True, trigger="restore", span=Span(stop=start)))
        recent = [entries[index] for span in newest for index in span]
        if turns_as_text(recent) != recent:
            events.append(TurnsReducedToText(line=context.length))
        return events

    @staticmethod
    def _is_next_turn(plan_input: PlanInput) -> bool:
        """Return whether a turn has begun since the last trim."""
        projection, spans = plan_input.projection, turn_ranges(plan_input.entries)
        return bool(spans) and projection.position_at(spans[-1].start) >= projection.context.state.changed_at

    @staticmethod
    def _trim_proposal(plan_input: PlanInput, cut: int, reason: str) -> Plan:
        turns = trimmable_turns(plan_input.entries, plan_input.situation.pins)
        count = sum(span.start < cut for span in turns)
        step = CompactSpan(span=Span(start=0, stop=plan_input.projection.position_at(cut), count=count), by="nothing")
        return Plan(now=(step,), reasons=(f"{reason}: the oldest {count:,} turns were trimmed",))

    @staticmethod
    def _summary_proposal(plan_input: PlanInput) -> Plan:
        """Return the summary of the last trim, unless it has one, one is being written, or the last attempt failed."""
        compactions, state = plan_input.projection.context.state.compactions, plan_input.history.session_state
        can_write = plan_input.situation.has_summarizer and not plan_input.is_summarizing
        last = compactions[-1] if compactions else None
        if (
            last is None
            or last.replacement
            or last.trigger == "client"
            or not can_write
            or last.span.stop == state.failed_stop
        ):
            return NO_STEPS
        prompts, entries = plan_input.prompts_between(last.span.start, last.span.stop), plan_input.history.entries
        entries.require(prompts)
        count = sum(not entries[position].message.outline.result_ids for position in prompts)
        step = CompactSpan(span=replace(last.span, kept=(), count=count, is_merged=True), by="summary")
        return Plan(later=(step,), reasons=("a summary of the trimmed turns is written for the next turn",))
