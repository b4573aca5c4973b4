"""What a rule looks at, and the steps it proposes; each step becomes one event.

A rule touches nothing. Steps to carry out before the request goes out are `now`, steps for the background are `later`.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.spans import Span
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.history.events import CompactionTrigger
from holdfast.core.history.history import History
from holdfast.core.history.projection import Projection
from holdfast.core.planning.situation import Situation

MAX_SUMMARY_TOKENS = 4_000
"""What a model may write where the policy names no size."""
ReplacementKind: TypeAlias = Literal["summary", "digest", "marker", "nothing"]
"""What replaces a span: a model's summary, one made by rule, a marker that something was there, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSpan:
    """Replace the messages of a span; becomes `CompactionCompleted`."""

    span: Span
    by: ReplacementKind
    trigger: CompactionTrigger = "threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadOutputs:
    """Show tool outputs before a position as a preview; becomes `OutputsOffloaded`."""

    before: int
    max_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceTurnsToText:
    """Show turns before a position as text alone; becomes `TurnsReducedToText`."""

    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitSummary:
    """Wait for the summary that is being written, and apply it."""


Step: TypeAlias = CompactSpan | OffloadOutputs | ReduceTurnsToText | AwaitSummary


@dataclass(frozen=True, slots=True)
class CompactionForecast:
    """What a compaction is expected to leave of the messages, in tokens."""

    kept_tokens: int
    """Of messages that stay unchanged."""
    replacement_tokens: int
    """Of what replaces the rest, at most."""
    quoted_tokens: int = 0
    """Of messages that are quoted next to it."""
    by_model: bool = False
    """Whether a model writes the replacement."""


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What a rule looks at: the history, its projection for one agent, and the situation."""

    history: History
    projection: Projection
    situation: Situation
    window: int
    """The model's window, or the policy's assumption for an unknown model."""
    entries: list[Entry]
    """The visible messages, with old tool output as the policy shows it."""
    message_tokens: int
    """Of those entries."""

    @property
    def tokens(self) -> int:
        """What a request with all entries would cost, as our counter counts."""
        return self.message_tokens + self.situation.extras_tokens + REPLY_OVERHEAD

    def prompts_between(self, start: int, stop: int) -> list[int]:
        """Return the positions of the user's visible prompts in a span, newest first."""
        prompts, context = self.history.prompt_positions, self.projection.context
        own = context.scopes.lineage(context.scope)
        first, last = bisect_left(prompts, start), bisect_left(prompts, stop)
        return [
            position
            for position in reversed(prompts[first:last])
            if context.is_visible(position) and context.message_scopes[position] in own
        ]

    @property
    def fill(self) -> float:
        """How full the budget is: the largest share of any of its limits."""
        budget, projection = self.situation.budget, self.projection
        shares = [self.token_fill]
        if budget.messages:
            shares.append(len(projection) / budget.messages)
        if budget.turns:
            shares.append(sum(entry.message.is_prompt for entry in projection.entries) / budget.turns)
        if budget.bytes:
            sizes = (self.history.reader.json_bytes(entry.message) for entry in projection.entries)
            shares.append(sum(sizes) / budget.bytes)
        return max(shares)

    @property
    def token_fill(self) -> float:
        """Which share of their budget the messages take."""
        return self.projection.tokens / max(1, self.situation.message_budget)

    @property
    def prompt_tokens(self) -> int:
        """What the newest prompt costs."""
        newest = self.projection.newest_prompt
        return 0 if newest is None else self.projection.entry_tokens()[newest]

    @property
    def fixed_tokens(self) -> int:
        """What no compaction makes smaller: system text, tools, pins, and the newest prompt."""
        projection, pins = self.projection, self.situation.pins
        kept = sum(
            size
            for index, (entry, size) in enumerate(zip(projection.entries, projection.entry_tokens(), strict=True))
            if entry.message.role == "system" or entry.position in pins or index == projection.newest_prompt
        )
        return kept + self.situation.extras_tokens + REPLY_OVERHEAD

    @property
    def is_summarizing(self) -> bool:
        """Whether a summary of this scope's conversation is being written."""
        running = self.history.session_state.running_compaction
        return running is not None and running.scope == self.situation.scope


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about a request, and why."""

    now: tuple[Step, ...] = ()
    """Before the request goes out."""
    later: tuple[Step, ...] = ()
    """In the background."""
    reasons: tuple[str, ...] = ()


NO_STEPS = Plan()


@dataclass(frozen=True, slots=True)
class Threshold:
    """Where a rule acts: the current amount of something, and its limit."""

    current: int
    limit: int
    unit: str

    @property
    def fill(self) -> float:
        """Which share of the limit is reached."""
        return self.current / max(1, self.limit)


def compact_all_step(plan_input: PlanInput) -> CompactSpan | None:
    """Return a manual compaction of everything that was said and answered; None where nothing was."""
    projection = plan_input.projection
    said = [entry for entry in projection.entries if entry.position is not None and entry.message.role != "system"]
    if not said:
        return None
    step = CompactSpan(
        span=Span(start=0, stop=projection.position_at(len(projection)), count=len(said)),
        by="summary",
        trigger="manual",
    )
    # A prompt without an answer stays: it is the next thing to answer.
    return step if said[-1].message.role == "assistant" else without_open_exchange(step, plan_input)


def without_open_exchange(step: CompactSpan, plan_input: PlanInput) -> CompactSpan | None:
    """Return a compaction that keeps the newest exchange, which may not be over, and the newest prompt."""
    projection, span = plan_input.projection, step.span
    if not len(projection):
        return None
    stop = min(span.stop, projection.position_at(uncuttable_span(projection, len(projection) - 1)[0]))
    prompt = None if projection.newest_prompt is None else projection.entries[projection.newest_prompt].position
    kept = {position for position in (*span.kept, prompt) if position is not None and span.start <= position < stop}
    gone = [entry for entry in projection.context.entries_between(span.start, stop) if entry.position not in kept]
    return replace(step, span=replace(span, stop=stop, kept=tuple(sorted(kept)), count=len(gone))) if gone else None
