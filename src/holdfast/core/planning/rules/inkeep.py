"""Compaction of everything before the newest prompt, or of everything since, as in Inkeep.

At half of the limit a summary replaces everything before the newest prompt. While an agent works, a summary replaces
its messages since that prompt instead, at a share that grows with the window; the task itself stays. The limit is the
model's window, and never more than the budget allows. Large tool results
become artifacts, to which the summary refers. Without a summarizer, fixed limits apply instead; after a failed summary
they do as long as one is due.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import ClassVar

from holdfast.core.conversation.cuts import pinned_exchanges, uncuttable_span
from holdfast.core.conversation.messages import Entry, EntryMessages, Message, user
from holdfast.core.conversation.shorten import DEFAULT_ARTIFACT_TOKENS
from holdfast.core.conversation.spans import Span
from holdfast.core.history.events import Summary
from holdfast.core.planning.rules.rule import CompactionRule, PolicyThreshold
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
from holdfast.core.schema import check_fields, integer_bounds, share_bounds
from holdfast.dataclass import dataclass
from holdfast.text import lazy_pattern

SMALL_WINDOW, LARGE_WINDOW = 100_000, 500_000
MAX_ARTIFACTS = 12
SUMMARY_HEADING = "[Summary of the conversation so far, for reference.]"
COMPRESSION_ADVICE = (
    "The task and all before it stand above. Go on from what was found; do not call again what it answers.",
    "The results begin to repeat. Call a tool only for what is still missing, and then conclude.",
    "Stop calling tools. Answer the task now with what was found, and say what is still open.",
)
"""The advice to the agent, by how often its run was compacted."""
_CYCLE = lazy_pattern(r"\[Compression (\d{1,6}) of this run\.")


def mid_run_fraction(window: int) -> float:
    """Return the share of the limit at which the tool results of a running agent are compacted."""
    if window < SMALL_WINDOW:
        return 0.75
    return 0.83 if window < LARGE_WINDOW else 0.91


@dataclass(frozen=True, slots=True, kw_only=True)
class InkeepCompaction(CompactionRule):
    """Compacts everything before the newest prompt, or everything done since."""

    RULE: ClassVar[str] = "inkeep"
    offers_recall: ClassVar[bool] = True
    shows_tool_use: ClassVar[bool] = True

    fraction: float = field(default=0.5, metadata=share_bounds())
    """The share of the limit at which the conversation is compacted."""
    artifact_tokens: int = field(default=DEFAULT_ARTIFACT_TOKENS, metadata=integer_bounds(1, 10**9))
    """The summary refers to a larger tool result by name."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.compaction")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the compaction that is due, to carry out before the request is sent."""
        if not plan_input.situation.has_summarizer:
            return NO_STEPS
        situation, prompt = plan_input.situation, plan_input.projection.newest_prompt
        is_working = prompt is not None and prompt < len(plan_input.projection) - 1
        part = mid_run_fraction(plan_input.window) if is_working else self.fraction
        if plan_input.tokens < part * situation.limit:
            return NO_STEPS
        # While an agent works, its task and everything before that stay unchanged as long as possible.
        step = (_span_since_prompt(plan_input) if is_working else None) or _span_before_prompt(plan_input)
        tokens, limit = situation.billed_tokens(plan_input.tokens), situation.billed_limit
        reason = f"{tokens:,} tokens are {part:.0%} of the limit of {limit:,} or more"
        return Plan(now=(step,), reasons=(reason,)) if step else NO_STEPS

    def is_due(self, plan_input: PlanInput) -> bool:
        """Return whether the conversation was due at its newest prompt, or the run since then is due."""
        projection, limit = plan_input.projection, plan_input.situation.limit
        prompt = projection.newest_prompt
        since_prompt = projection.tokens - projection.cumulative_tokens[prompt + 1] if prompt is not None else 0
        at_prompt = plan_input.tokens - since_prompt
        return at_prompt >= self.fraction * limit or plan_input.tokens >= mid_run_fraction(plan_input.window) * limit

    def threshold(self, plan_input: PlanInput) -> Threshold:
        """Return how near the next compaction is."""
        return Threshold(plan_input.tokens, int(self.fraction * plan_input.situation.limit), "tokens")

    def request_limit(self, window: int) -> int | None:
        """Return the window."""
        return window

    def thresholds(self, situation: Situation, window: int) -> Iterator[PolicyThreshold]:
        """Yield where a conversation is compacted, and where a run is."""
        yield PolicyThreshold("compacted", int(self.fraction * situation.limit))
        yield PolicyThreshold("compacted in a run", int(mid_run_fraction(window) * situation.limit))

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast | None:
        """Return the expected size after a compaction: the prompt and a summary."""
        del tokens
        if not plan_input.situation.has_summarizer:
            return None
        return CompactionForecast(plan_input.prompt_tokens, MAX_SUMMARY_TOKENS, by_model=True)

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the summary with references to the artifacts of the span."""
        if summary is None:
            return ()
        entries = plan_input.projection.context.entries_between(step.span.start, step.span.stop)
        from holdfast.core.recall.artifacts import large_results  # noqa: PLC0415 - only for a compaction

        found = list(large_results(entries, self.artifact_tokens, plan_input.situation.counter))[-MAX_ARTIFACTS:]
        lines = [SUMMARY_HEADING, summary.framed_text, *(["", *map(str, found)] if found else [])]
        if step.span.start > 0:
            cycle = _compression_count(plan_input, step) + 1
            # The more often a run was compacted, the more urgent the advice.
            advice = COMPRESSION_ADVICE[min(cycle, len(COMPRESSION_ADVICE)) - 1]
            lines += ["", f"[Compression {cycle} of this run. {advice}]"]
        return ("\n".join(lines),)

    def agent_requested_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return the compaction of the messages since the prompt; if there are none, of those before it."""
        return _span_since_prompt(plan_input) or _span_before_prompt(plan_input)


def _span_before_prompt(plan_input: PlanInput) -> CompactSpan | None:
    projection = plan_input.projection
    if projection.newest_prompt is None:
        return None
    # A prompt that also answers a call keeps that call: the model has not read the result yet.
    return _span_step(plan_input, 0, uncuttable_span(projection, projection.newest_prompt)[0])


def _span_since_prompt(plan_input: PlanInput) -> CompactSpan | None:
    projection = plan_input.projection
    if projection.newest_prompt is None:
        return None
    last = uncuttable_span(projection, len(projection) - 1)[0]
    return _span_step(plan_input, projection.newest_prompt + 1, last)


def _span_step(plan_input: PlanInput, first: int, last: int) -> CompactSpan | None:
    """Return the compaction of a part of the projection; None if the part has no uncompacted messages."""
    projection = plan_input.projection
    new = [
        entry
        for entry in projection.entries[first:last]
        if entry.position is not None and entry.message.role != "system"
    ]
    if not new:
        return None
    start, stop = 0 if first == 0 else projection.position_at(first), projection.position_at(last)
    # Messages that an earlier compaction kept follow it with an older position: they stay.
    kept = [entry.position for entry in projection.entries[last:] if entry.position is not None]
    span = Span(start=start, stop=stop, kept=tuple(at for at in kept if at < stop), count=len(new))
    return CompactSpan(span=span, by="summary")


def _compression_count(plan_input: PlanInput, step: CompactSpan) -> int:
    """Return how often this run was compacted before."""
    compactions = plan_input.projection.context.state.compactions
    texts = [
        text for one in compactions if step.span.start <= one.span.start < step.span.stop for text in one.replacement
    ]
    return max((int(cycle) for text in texts for cycle in _CYCLE.findall(text)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLimits:
    """Limits a request without a summary to the newest messages, with few tokens before the newest prompt."""

    max_messages: int = field(default=50, metadata=integer_bounds(1, 10**9))
    max_tokens: int = field(default=8_000, metadata=integer_bounds(1, 10**9))
    """The most tokens of the messages before the newest prompt."""
    max_retrieved: int = field(default=10_000, metadata=integer_bounds(1, 10**9))
    """How many of the newest messages are retrieved if there is a summarizer."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.limits")

    @property
    def reason(self) -> str:
        """Why messages are missing from a request within the limits."""
        return (
            f"there is no summary, so at most the newest {self.max_messages:,} messages are sent, with at most "
            f"{self.max_tokens:,} tokens before the newest prompt"
        )

    def keep_retrieved(
        self, entries: Sequence[Entry], first_position: int, pins: frozenset[int] = frozenset()
    ) -> list[Entry]:
        """Return the retrieved entries and those that always stay: system text, summaries, pins, the newest prompt.

        `first_position` is where the newest messages of the whole conversation begin; messages that the agent may not
        see count too.
        """
        staying = _always_kept(entries, pins)
        return [
            entry for index, entry in enumerate(entries) if index in staying or not _is_before(entry, first_position)
        ]

    def keep_limited(
        self, entries: Sequence[Entry], first_position: int, tokens_of: Callable[[Message], int], pins: frozenset[int]
    ) -> list[Entry]:
        """Return the retrieved entries that stay within the limits, with a marker for the others."""
        staying = _always_kept(entries, pins)
        prompt = _newest_prompt(entries)
        spoken = [index for index, entry in enumerate(entries) if entry.message.role != "system"]
        older = [index for index in spoken if index not in staying and _is_before(entries[index], first_position)]
        first = older[-1] + 1 if older else 0
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
    """Return the indices that no limit removes; a prompt that also answers a call keeps that call."""
    systems = (index for index, entry in enumerate(entries) if entry.message.role == "system")
    if not entries:
        return frozenset()
    prompt = range(*uncuttable_span(EntryMessages(entries), _newest_prompt(entries)))
    return frozenset({*systems, *pinned_exchanges(entries, pins), *prompt})
