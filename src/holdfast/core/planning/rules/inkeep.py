"""Compresses all that came before, or all that a run has produced, as Inkeep has it.

At half of the window everything before the newest prompt becomes a summary; while an agent works, what it
has gathered since that prompt becomes one at a share that grows with the window, and the task itself stays.
Large tool results become artifacts: the summary refers to them, they are not in it. Without a model to write
summaries there are fixed limits instead.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.messages import Entry, Message, user
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
from holdfast.core.planning.triggers import mid_run_fraction
from holdfast.core.recall.artifacts import DEFAULT_ARTIFACT_TOKENS, Artifact, large_results
from holdfast.core.schema import check_fields, integer_bounds, share_bounds

MAX_ARTIFACTS = 12
SUMMARY_HEADING = "[Summary of the conversation so far, for reference.]"
COMPRESSION_ADVICE = (
    "The task and all before it stand above. Go on from what was found; do not call again what it answers.",
    "The results begin to repeat. Call a tool only for what is still missing, and then conclude.",
    "Stop calling tools. Answer the task now with what was found, and say what is still open.",
)
"""By how often a run was compressed."""
_CYCLE = re.compile(r"\[Compression (\d{1,6}) of this run\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class InkeepCompaction:
    """Folds all that came before the newest prompt, or all that was done since."""

    RULE: ClassVar[str] = "everything"
    offers_recall: ClassVar[bool] = True
    detects_loops: ClassVar[bool] = False

    fraction: float = field(default=0.5, metadata=share_bounds())
    """Of the window: where the conversation is compressed."""
    artifact_tokens: int = field(default=DEFAULT_ARTIFACT_TOKENS, metadata=integer_bounds(1, 10**9))
    """A tool result larger than this is referred to by name."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.fold")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the compression that is due; it happens before the request goes out."""
        if not plan_input.situation.has_summarizer:
            return NO_STEPS
        window, is_working = plan_input.window, _is_working(plan_input)
        part = mid_run_fraction(window) if is_working else self.fraction
        if plan_input.tokens < part * window:
            return NO_STEPS
        # While an agent works, what it was asked and all before that stays to the letter as long as that can be.
        step = (self._since_prompt(plan_input) if is_working else None) or self._before_prompt(plan_input)
        why = f"{plan_input.tokens:,} tokens are {part:.0%} of the window or more"
        return Plan(now=(step,), reasons=(why,)) if step else NO_STEPS

    def threshold(self, plan_input: PlanInput) -> Threshold:
        """Return how near the next compression is."""
        return Threshold(plan_input.tokens, int(self.fraction * plan_input.window), "tokens")

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast | None:
        """Return what a compression is expected to leave: the prompt and a summary."""
        del tokens
        has_summarizer = plan_input.situation.has_summarizer
        return (
            CompactionForecast(plan_input.prompt_tokens, MAX_SUMMARY_TOKENS, by_model=True) if has_summarizer else None
        )

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return the fold of everything."""
        return compact_all_step(plan_input)

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the summary with references to the artifacts of the span."""
        if summary is None:
            return ()
        found = list(artifacts_in(plan_input, step, self.artifact_tokens))[-MAX_ARTIFACTS:]
        lines = [SUMMARY_HEADING, summary.text, *(["", *map(str, found)] if found else [])]
        if step.span.start > 0:
            lines += ["", _advice_for(_compression_count(plan_input, step) + 1)]
        return ("\n".join(lines),)

    def agent_requested_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return the fold that a working agent asks for: of what it has gathered, else of what came before."""
        return self._since_prompt(plan_input) or self._before_prompt(plan_input)

    @staticmethod
    def _before_prompt(plan_input: PlanInput) -> CompactSpan | None:
        prompt = plan_input.projection.newest_prompt
        if prompt is None:
            return None
        return _span_step(plan_input, 0, prompt)

    @staticmethod
    def _since_prompt(plan_input: PlanInput) -> CompactSpan | None:
        shown = plan_input.projection
        if shown.newest_prompt is None:
            return None
        last = uncuttable_span(shown, len(shown) - 1)[0]
        return _span_step(plan_input, shown.newest_prompt + 1, last)


def _is_working(plan_input: PlanInput) -> bool:
    """Return whether an agent has done something since it was asked."""
    prompt = plan_input.projection.newest_prompt
    return prompt is not None and prompt < len(plan_input.projection) - 1


def _compression_count(plan_input: PlanInput, step: CompactSpan) -> int:
    """Return how often this run was compressed before."""
    within = [
        fold
        for fold in plan_input.projection.context.state.compactions
        if step.span.start <= fold.span.start < step.span.stop
    ]
    found = [match for fold in within for text in fold.replacement for match in _CYCLE.findall(text)]
    return max(map(int, found), default=0)


def _advice_for(cycle: int) -> str:
    """Return what an agent is told that goes on from its own summary; the more often, the more urgently."""
    return f"[Compression {cycle} of this run. {COMPRESSION_ADVICE[min(cycle, len(COMPRESSION_ADVICE)) - 1]}]"


def _span_step(plan_input: PlanInput, first: int, last: int) -> CompactSpan | None:
    """Return the fold of a part of what is shown, unless there is nothing new in it."""
    shown = plan_input.projection
    new = [
        entry for entry in shown.entries[first:last] if entry.position is not None and entry.message.role != "system"
    ]
    if not new:
        return None
    start, stop = 0 if first == 0 else shown.position_at(first), shown.position_at(last)
    # What an earlier fold kept stands behind it with an older position: it stays kept.
    kept = [entry.position for entry in shown.entries[last:] if entry.position is not None and entry.position < stop]
    return CompactSpan(span=Span(start=start, stop=stop, kept=tuple(kept), count=len(new)), by="summary")


def artifacts_in(plan_input: PlanInput, step: CompactSpan, min_tokens: int) -> Iterator[Artifact]:
    """Yield the large tool results of a span."""
    spoken = plan_input.projection.context.entries_between(step.span.start, step.span.stop)
    return large_results(spoken, min_tokens, plan_input.situation.counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLimits:
    """What is sent where nobody can summarise: the newest messages, and of those before the prompt few tokens."""

    max_messages: int = field(default=50, metadata=integer_bounds(1, 10**9))
    max_tokens: int = field(default=8_000, metadata=integer_bounds(1, 10**9))
    """Of the messages before the newest prompt."""
    max_retrieved: int = field(default=10_000, metadata=integer_bounds(1, 10**9))
    """How many of the newest messages are looked at where summaries can be had."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.limits")

    def keep_retrieved(
        self, entries: Sequence[Entry], first_position: int, pins: frozenset[int] = frozenset()
    ) -> list[Entry]:
        """Return what was retrieved, and what always stays: system text, summaries, pins, the newest prompt.

        `line` is the position at which the newest messages of the whole conversation begin: how many there are is
        counted before it is asked which of them an agent may see.
        """
        staying = _always_kept(entries, pins)
        return [
            entry for index, entry in enumerate(entries) if index in staying or not _is_before(entry, first_position)
        ]

    def keep_limited(
        self, entries: Sequence[Entry], first_position: int, tokens_of: Callable[[Message], int], pins: frozenset[int]
    ) -> list[Entry]:
        """Return the entries that stay of those that were retrieved, with a marker for those that went."""
        staying = _always_kept(entries, pins)
        prompt = _newest_prompt(entries)
        spoken = [index for index, entry in enumerate(entries) if entry.message.role != "system"]
        older = (
            index for index in reversed(spoken) if index not in staying and _is_before(entries[index], first_position)
        )
        first = next(older, -1) + 1
        left, start = self.max_tokens, prompt
        for index in range(prompt - 1, first - 1, -1):
            message = entries[index].message
            if message.role == "system":
                continue
            left -= tokens_of(message)
            if left < 0:
                break
            start = index
        start = max(first, start)
        gone = sum(index < start and index not in staying for index in spoken)
        if not gone:
            return list(entries)
        kept = [entry for index, entry in enumerate(entries[:start]) if index in staying]
        systems = [entry for entry in kept if entry.message.role == "system"]
        others = [entry for entry in kept if entry.message.role != "system"]
        marker = f"[Previous conversation history truncated - {gone} earlier messages]"
        return [*systems, Entry(user(marker, trust="summary")), *others, *entries[start:]]


def _is_before(entry: Entry, first_position: int) -> bool:
    return entry.position is not None and entry.position < first_position


def _newest_prompt(entries: Sequence[Entry]) -> int:
    return max((index for index, entry in enumerate(entries) if entry.message.is_prompt), default=0)


def _always_kept(entries: Sequence[Entry], pins: frozenset[int]) -> frozenset[int]:
    """Return the indices that no limit takes away."""
    systems = (index for index, entry in enumerate(entries) if entry.message.role == "system")
    return frozenset({*systems, *pinned_exchanges(entries, pins), _newest_prompt(entries)})
