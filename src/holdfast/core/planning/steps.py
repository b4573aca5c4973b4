"""The input of a rule, and the steps that it proposes.

A rule changes nothing itself; the session carries out its steps and records each as one event. Steps in `now` run
before the request is sent, steps in `later` run in the background.
"""

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from holdfast.core.conversation.cuts import MAX_WHOLE_PROMPT_SHARE, prompt_start, uncuttable_span
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.spans import Span
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.conversation.transcript import json_bytes
from holdfast.core.history.events import CompactionTrigger
from holdfast.core.planning.situation import Situation
from holdfast.dataclass import dataclass

if TYPE_CHECKING:
    from holdfast.core.history.history import History
    from holdfast.core.history.projection import Projection

OVERSIZE_REMEDIES = {
    "system": "shorten the system text",
    "tools": "offer fewer tools",
    "pins": "unpin some messages",
    "newest prompt": "shorten the newest prompt, or put it into a file",
}
MAX_SUMMARY_TOKENS = 4_000
"""The largest summary if the policy sets no size."""
ReplacementKind: TypeAlias = Literal["summary", "digest", "marker", "nothing"]
"""What replaces a span: a model's summary, a digest made by rule, a marker that messages were removed, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSpan:
    """Replace the messages of a span; becomes `CompactionCompleted`."""

    span: Span
    by: ReplacementKind
    trigger: CompactionTrigger = "threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadOutputs:
    """Replace tool outputs before a position by previews; becomes `OutputsOffloaded`."""

    before: int
    max_chars: int
    prompts_before: int = 0
    """Texts of the user before this position are shortened too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceTurnsToText:
    """Reduce turns before a position to their text; becomes `TurnsReducedToText`."""

    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitSummary:
    """Wait for the summary that is being written, and apply it."""


Step: TypeAlias = CompactSpan | OffloadOutputs | ReduceTurnsToText | AwaitSummary


@dataclass(frozen=True, slots=True)
class CompactionForecast:
    """The expected size of the messages after a compaction, in tokens."""

    kept_tokens: int
    """The size of the messages that stay unchanged."""
    replacement_tokens: int
    """The largest size of the replacement."""
    quoted_tokens: int = 0
    """The size of the messages that are quoted next to the replacement."""
    by_model: bool = False
    """Whether a model writes the replacement."""


@dataclass(slots=True)
class PlanInput:
    """The input of a rule: the history, its projection for one agent, and the situation. Nobody changes one."""

    history: "History"
    projection: "Projection"
    situation: Situation
    window: int
    """The model's window, or the policy's assumption for an unknown model."""
    entries: list[Entry]
    """The visible messages, with old tool output shortened as the policy demands."""
    message_tokens: int
    """The tokens of `entries`."""

    @property
    def tokens(self) -> int:
        """The tokens of a request with all entries, as our counter counts them."""
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
        if not (budget.messages or budget.turns or budget.bytes):
            return shares[0]
        if budget.messages:
            shares.append(len(projection) / budget.messages)
        if budget.turns:
            shares.append(sum(entry.message.is_prompt for entry in projection.entries) / budget.turns)
        if budget.bytes:
            sizes = (json_bytes(self.history.message_format, entry.message) for entry in projection.entries)
            shares.append(sum(sizes) / budget.bytes)
        return max(shares)

    @property
    def token_fill(self) -> float:
        """The share of their token budget that the messages fill."""
        return self.projection.tokens / max(1, self.situation.message_budget)

    @property
    def prompt(self) -> range:
        """The newest prompt, as a range of the projection: it may be several messages."""
        newest, before = self.projection.newest_prompt, self.projection.cumulative_tokens
        if newest is None:
            return range(0)
        start = prompt_start(self.projection, newest)
        is_too_long = before[newest + 1] - before[start] > MAX_WHOLE_PROMPT_SHARE * self.situation.message_budget
        return range(newest if is_too_long else start, newest + 1)

    @property
    def prompt_tokens(self) -> int:
        """The tokens of the newest prompt."""
        prompt, before = self.prompt, self.projection.cumulative_tokens
        return before[prompt.stop] - before[prompt.start]

    @property
    def fixed_parts(self) -> dict[str, int]:
        """The tokens of each part that no compaction makes smaller."""
        projection, situation, prompt = self.projection, self.situation, self.prompt
        pins = 0
        if situation.pins:
            for index, (entry, size) in enumerate(zip(projection.entries, projection.entry_tokens(), strict=True)):
                is_other = entry.message.role == "system" or index in prompt
                pins += size if entry.position in situation.pins and not is_other else 0
        return {
            "system": situation.system_tokens + projection.system_tokens,
            "tools": situation.tools_tokens,
            "pins": pins,
            "newest prompt": self.prompt_tokens,
        }

    @property
    def fixed_tokens(self) -> int:
        """The tokens that no compaction frees."""
        return sum(self.fixed_parts.values()) + REPLY_OVERHEAD

    def tokens_outside(self, span: Span) -> int:
        """Return the tokens of the messages that a compaction of a span does not touch."""
        kept = {*span.kept, *self.situation.pins, *self.history.system_positions}
        return sum(
            size
            for entry, size in zip(self.projection.entries, self.projection.entry_tokens(), strict=True)
            if entry.position is not None and (entry.position >= span.stop or entry.position in kept)
        )

    @property
    def is_summarizing(self) -> bool:
        """Whether a summary of this scope's conversation is being written."""
        running = self.history.session_state.running_compaction
        return running is not None and running.scope == self.situation.scope


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps that a rule proposes for a request, and why."""

    now: tuple[Step, ...] = ()
    """Steps that run before the request is sent."""
    later: tuple[Step, ...] = ()
    """Steps that run in the background."""
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
        """The share of the limit that is reached."""
        return self.current / max(1, self.limit)


def describe_breakdown(plan_input: PlanInput) -> str:
    """Describe the parts of a request and their sizes."""
    projection, sizes = plan_input.projection, plan_input.projection.entry_tokens()
    last = sum(sizes[slice(*uncuttable_span(projection, len(projection) - 1))]) if len(projection) else 0
    summaries = sum(size for entry, size in zip(projection.entries, sizes, strict=True) if entry.position is None)
    parts = {**plan_input.fixed_parts, "last exchange": last, "summaries": summaries}
    listed = ", ".join(f"{name} {tokens:,}" for name, tokens in parts.items() if tokens)
    whole = projection.tokens + plan_input.situation.extras_tokens + REPLY_OVERHEAD
    return f"of {whole:,} tokens: {listed}" if listed else f"{whole:,} tokens"


def cannot_help_plan(plan_input: PlanInput, parts: str, limit: str) -> Plan:
    """Return a plan without steps that says why no compaction can help, and which part to make smaller."""
    fixed = plan_input.fixed_parts
    remedy = OVERSIZE_REMEDIES[max(fixed, key=lambda name: fixed[name])]
    reason = f"{parts} and the newest prompt alone exceed {limit}: a compaction cannot help"
    return Plan(reasons=(f"{reason} ({describe_breakdown(plan_input)}; {remedy})",))


def compact_all_step(plan_input: PlanInput) -> CompactSpan | None:
    """Return a manual compaction of all answered messages, or of all messages if none is; None if there are none."""
    projection = plan_input.projection
    said = [entry for entry in projection.entries if entry.position is not None and entry.message.role != "system"]
    if not said:
        return None
    step = CompactSpan(
        span=Span(start=0, stop=projection.position_at(len(projection)), count=len(said)),
        by="summary",
        trigger="manual",
    )
    if said[-1].message.role == "assistant":
        return step
    # A prompt without an answer stays, because the model has to answer it next, unless there is nothing else.
    return without_open_exchange(step, plan_input) or step


def without_open_exchange(step: CompactSpan, plan_input: PlanInput) -> CompactSpan | None:
    """Return a compaction that keeps the newest exchange, which may be unfinished, and the newest prompt."""
    projection, span = plan_input.projection, step.span
    if not len(projection):
        return None
    stop = min(span.stop, projection.position_at(uncuttable_span(projection, len(projection) - 1)[0]))
    prompt = [projection.entries[index].position for index in plan_input.prompt]
    kept = {position for position in (*span.kept, *prompt) if position is not None and span.start <= position < stop}
    gone = [entry for entry in projection.context.entries_between(span.start, stop) if entry.position not in kept]
    return replace(step, span=replace(span, stop=stop, kept=tuple(sorted(kept)), count=len(gone))) if gone else None
