"""What there is to do: each step is the twin of the event that will tell of it.

A rule looks at what stands and proposes steps; it touches nothing. What is to be done before the request
goes out is `now`, what may be done meanwhile is `later`.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from holdfast.core.conversation.cuts import uncuttable_span
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.history.events import CompactionTrigger, Usage
from holdfast.core.history.history import History
from holdfast.core.history.projection import Projection
from holdfast.core.planning.situation import Situation

MAX_SUMMARY_TOKENS = 4_000
"""What a model may write where the policy names no size."""
ReplacementKind: TypeAlias = Literal["summary", "digest", "marker", "nothing"]
"""What takes the place of a span: a model's summary, one made by rule, a word that there was something, nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSpan:
    """Replace the messages of a span; becomes `CompactionCompleted`."""

    start: int
    stop: int
    """Positions in the history."""
    by: ReplacementKind
    count: int
    """How many messages, as the rule counts them, the replacement stands for."""
    kept: tuple[int, ...] = ()
    """Positions inside the span that stay whole."""
    trigger: CompactionTrigger = "threshold"
    is_merged: bool = False
    """Whether the text goes into the first prompt that stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadOutputs:
    """Show tool outputs before a line as a preview; becomes `OutputsOffloaded`."""

    before: int
    max_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceTurnsToText:
    """Show turns before a line as words alone; becomes `TurnsReducedToText`."""

    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitSummary:
    """Wait for the summary that is being written, and apply it."""


Step: TypeAlias = CompactSpan | OffloadOutputs | ReduceTurnsToText | AwaitSummary


@dataclass(frozen=True, slots=True)
class Summary:
    """What a model wrote about a span."""

    text: str
    by_model: str | None = None
    usage: Usage | None = None
    duration_ms: int | None = None
    score: float | None = None
    """Which share of what must not be forgotten it holds, with what stands beside it."""
    dollars: float | None = None
    """What writing it cost, where the prices of the model are known."""
    request_id: str | None = None
    """What the provider calls the call."""
    put_back: tuple[str, ...] = ()
    """What the model's text had lost and the check gave back to it, a fact each."""
    left_out: tuple[str, ...] = ()
    """What must not be forgotten and stands neither in it nor beside it; each names its message, one recall away."""
    redacted: tuple[tuple[str, int], ...] = ()
    """How many keys and passwords were kept from the summariser, by kind; never one of them."""


@dataclass(frozen=True, slots=True)
class CompactionForecast:
    """What a fold is expected to leave of the messages, in tokens: a forecast is made of it."""

    kept_tokens: int
    """As it was said."""
    replacement_tokens: int
    """For the rest, at most."""
    quoted_tokens: int = 0
    """Beside that, of what was said."""
    by_model: bool = False
    """Whether a model writes what stands for the rest."""


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What a rule looks at: everything that happened, what stands of it, and the circumstances."""

    history: History
    projection: Projection
    situation: Situation
    window: int
    """The model's, or what the policy takes for that of a model nobody knows."""
    entries: list[Entry]
    """What stands, with old tool output shown as the policy wants it."""
    message_tokens: int
    """What those cost."""

    @property
    def tokens(self) -> int:
        """What a request with all of them would cost, as our counter counts."""
        return self.message_tokens + self.situation.extras_tokens + REPLY_OVERHEAD

    def prompts_between(self, start: int, stop: int) -> list[int]:
        """Return the positions of what the user said in a span, as far as it stands, newest first."""
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
        budget, shown = self.situation.budget, self.projection
        shares = [self.token_fill]
        if budget.messages:
            shares.append(len(shown) / budget.messages)
        if budget.turns:
            shares.append(sum(entry.message.is_prompt for entry in shown.entries) / budget.turns)
        if budget.bytes:
            shares.append(sum(map(self._bytes, shown.entries)) / budget.bytes)
        return max(shares)

    @property
    def token_fill(self) -> float:
        """How much of their room the messages take."""
        return self.projection.tokens / max(1, self.situation.message_budget)

    @property
    def prompt_tokens(self) -> int:
        """What the newest prompt costs."""
        newest = self.projection.newest_prompt
        return 0 if newest is None else self.projection.entry_tokens()[newest]

    @property
    def fixed_tokens(self) -> int:
        """What no fold makes smaller: system text, tools, pins, and the newest prompt."""
        shown, pins = self.projection, self.situation.pins
        kept = sum(
            size
            for index, (entry, size) in enumerate(zip(shown.entries, shown.entry_tokens(), strict=True))
            if entry.message.role == "system" or entry.position in pins or index == shown.newest_prompt
        )
        return kept + self.situation.extras_tokens + REPLY_OVERHEAD

    def _bytes(self, entry: Entry) -> int:
        return self.history.reader.json_bytes(entry.message)

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
    """Where a rule acts: how much there is of something, and how much there may be."""

    current: int
    limit: int
    unit: str

    @property
    def fill(self) -> float:
        """Which share of it is reached."""
        return self.current / max(1, self.limit)


def compact_all_step(plan_input: PlanInput) -> CompactSpan | None:
    """Return the fold of everything that was said and answered, on the user's word; None where nothing was."""
    shown = plan_input.projection
    said = [entry for entry in shown.entries if entry.position is not None and entry.message.role != "system"]
    if not said:
        return None
    step = CompactSpan(start=0, stop=shown.position_at(len(shown)), by="summary", count=len(said), trigger="manual")
    # A prompt that nobody has answered yet is the next thing to answer, whatever is folded.
    return step if said[-1].message.role == "assistant" else without_open_exchange(step, plan_input)


def without_open_exchange(step: CompactSpan, plan_input: PlanInput) -> CompactSpan | None:
    """Return a fold without the newest exchange, which may not be over, and with the newest prompt kept."""
    shown = plan_input.projection
    if not len(shown):
        return None
    stop = min(step.stop, shown.position_at(uncuttable_span(shown, len(shown) - 1)[0]))
    prompt = None if shown.newest_prompt is None else shown.entries[shown.newest_prompt].position
    kept = {position for position in (*step.kept, prompt) if position is not None and step.start <= position < stop}
    gone = [
        entry for entry in plan_input.projection.context.entries_between(step.start, stop) if entry.position not in kept
    ]
    return replace(step, stop=stop, kept=tuple(sorted(kept)), count=len(gone)) if gone else None
