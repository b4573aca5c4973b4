"""Folds deep and rarely: the rule of the default policy.

With a prompt cache, what costs is not a long prompt but a changed one. So nothing is touched until a line is
reached; then everything goes but a short tail, in one break of the prefix, and the conversation has the
whole window to grow into again. Between the two lines a fold waits until the prefix has been read often
enough to be worth giving up; at the hard line, or when the cache has forgotten it anyway, it waits no longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from holdfast.core.conversation.cuts import next_cut, uncuttable_span
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.spans import Span
from holdfast.core.history.events import MAIN, Summary
from holdfast.core.planning.breaker import describe_fixed_size, loop_reason
from holdfast.core.planning.fit.protection import reasoning_exchange
from holdfast.core.planning.replacement import (
    ReplacementBudget,
    chat_scale,
    chat_share,
    replacement_text,
    texts_beside_summary,
)
from holdfast.core.planning.situation import PROVIDER_PRICES, Situation, break_even_turns
from holdfast.core.planning.steps import (
    NO_STEPS,
    AwaitSummary,
    CompactionForecast,
    CompactSpan,
    Plan,
    PlanInput,
    Threshold,
)
from holdfast.core.schema import check_fields, integer_bounds, number_bounds, share_bounds
from holdfast.errors import SettingsError

MIN_SUMMARY_TOKENS, MAX_SUMMARY_SHARE = 256, 0.25
"""What a summary may take even where its share is less, and the share of a small window that this may be."""
MAX_QUOTED_SHARE = 0.75
"""The share of a talk that may stay whole: a fold that keeps more is none."""
TAIL_DIVISOR = 4
"""Where messages, turns or bytes are what there is too much of, one in so many messages stays."""
ASSUMED_PRICES = PROVIDER_PRICES["anthropic"]
"""What a fold is weighed with where nobody says what tokens cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultCompaction:
    """Shares are of the room that system text and tools leave to the messages."""

    RULE: ClassVar[str] = "deep"
    offers_recall: ClassVar[bool] = True
    detects_loops: ClassVar[bool] = True

    soft_share: float = field(default=0.8, metadata=share_bounds())
    """From here on a summary is asked for, and a fold is made once it pays."""
    hard_share: float = field(default=0.95, metadata=share_bounds())
    """Here a fold is made at once."""
    cold_share: float = field(default=0.6, metadata=share_bounds())
    """From here on a fold is made if the prompt cache has expired anyway."""
    tail_share: float = field(default=0.05, metadata=share_bounds())
    """What stays of the newest messages."""
    summary_share: float = field(default=0.06, metadata=share_bounds())
    summary_max_tokens: int = field(default=3_000, metadata=integer_bounds(1, 10**6))
    """What a summary or digest with the user's words and the ledger may take."""
    talk_share: float = field(default=0.6, metadata=share_bounds())
    talk_max_tokens: int = field(default=4_600, metadata=integer_bounds(0, 10**6))
    """What turns may take besides that stay whole because they say much, where nearly all that is folded is talk."""
    min_reuse: float = field(default=30.0, metadata=number_bounds(0, 10**6))
    """A fold pays when what it gives up was read this often, at a cache whose reading costs nothing."""
    min_gain_share: float = field(default=0.2, metadata=share_bounds())
    """A fold that frees less is not made unless the request would not fit otherwise."""
    min_messages: int = field(default=4, metadata=integer_bounds(1, 10**6))

    def __post_init__(self) -> None:
        check_fields(self, "policy.fold")
        kept = self.tail_share + self.summary_share
        for name, above, below in (
            ("hard_share", self.hard_share, self.soft_share),
            ("soft_share", self.soft_share, kept + self.min_gain_share),
            ("cold_share", self.cold_share, kept + self.min_gain_share),
        ):
            if above < below:
                problem = f"must be at least {below:g}: the next lower line, or what a fold keeps and has to free"
                raise SettingsError(f"policy.fold.{name}", f"{problem}, not {above:g}")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the fold to make now, or the summary to ask for meanwhile."""
        held, room = plan_input.projection.tokens, plan_input.situation.message_budget
        if plan_input.situation.has_ready_summary:
            return Plan(now=(AwaitSummary(),), reasons=("a summary is ready",))
        why = self._compaction_reason(plan_input)
        is_full = plan_input.fill >= self.soft_share and plan_input.situation.has_summarizer
        if room <= 0 or (why is None and not is_full):
            return NO_STEPS
        step = self._span(plan_input, room)
        if step is None:
            return NO_STEPS
        if why is not None and plan_input.fixed_tokens - plan_input.situation.extras_tokens > self.soft_share * room:
            told = "system text, pins and the newest prompt alone fill the room: folding cannot help"
            return Plan(reasons=(f"{told} ({describe_fixed_size(plan_input)})",)) if plan_input.fill <= 1 else NO_STEPS
        after = self._remaining_tokens(plan_input, step) + sum(self._replacement_budget(plan_input, step))
        if held - after < self._min_gain(plan_input):
            told = f"folding would free only {max(0, held - after):,} of {held:,} tokens, so nothing was folded"
            return Plan(reasons=(told,)) if why else NO_STEPS
        if not plan_input.situation.refusals and (told := loop_reason(plan_input)):
            return Plan(reasons=(told,))
        if why is not None:
            return Plan(now=(step,), reasons=(f"{why}; {_describe_cost(plan_input, after)}",))
        if plan_input.is_summarizing:
            return NO_STEPS
        later = replace(step, by="summary")
        return Plan(later=(later,), reasons=(f"{_describe_fill(plan_input)}: a summary is written meanwhile",))

    def threshold(self, plan_input: PlanInput) -> Threshold:
        """Return how near the next fold is: the soft line with a summariser, the hard one without."""
        reach = self.soft_share if plan_input.situation.has_summarizer else self.hard_share
        return Threshold(
            plan_input.projection.tokens, int(reach * max(0, plan_input.situation.message_budget)), "tokens"
        )

    def forecast(self, plan_input: PlanInput, tokens: int) -> CompactionForecast:
        """Return what a fold is expected to leave that is made when the messages take so many tokens."""
        room = max(0, plan_input.situation.message_budget)
        stays = int(self.tail_share * room)
        folded = max(0, tokens - stays)
        summary = min(self._summary_tokens(room), folded // 2)
        talk = min(
            self._chat_tokens(plan_input.projection.entries, room), self._max_quoted_tokens(folded, room) - summary
        )
        return CompactionForecast(stays, summary, max(0, int(talk)), by_model=plan_input.situation.has_summarizer)

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return the fold that the hard line would make, as if what there is filled the room."""
        step = self._span(plan_input, min(plan_input.situation.message_budget, plan_input.projection.tokens), least=1)
        by = "summary" if plan_input.situation.has_summarizer else "digest"
        return replace(step, by=by, trigger="manual") if step else None

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the text that stands for a span: the user's words, what was done, and the names that were used."""
        return (replacement_text(plan_input, step, summary, self._replacement_budget(plan_input, step)),)

    def texts_beside_summary(self, plan_input: PlanInput, step: CompactSpan) -> list[str]:
        """Return the texts that a summary of a span will stand next to: where it is looked up what it loses."""
        return texts_beside_summary(plan_input, step, self._replacement_budget(plan_input, step))

    def max_summary_tokens(self, plan_input: PlanInput, step: CompactSpan) -> int:
        """Return what a summary may take: its share, and never more than half of what it stands for."""
        folded = plan_input.projection.tokens - self._remaining_tokens(plan_input, step)
        return min(self._summary_tokens(plan_input.situation.message_budget), folded // 2)

    def _summary_tokens(self, room: int) -> int:
        # A share of a small window holds no sentence: there it may be more, as long as the window is not full of it.
        share = max(int(room * self.summary_share), min(MIN_SUMMARY_TOKENS, int(room * MAX_SUMMARY_SHARE)))
        return min(self.summary_max_tokens, share)

    def _replacement_budget(self, plan_input: PlanInput, step: CompactSpan) -> ReplacementBudget:
        """Return what may stand for a span: more where it is talk, of which a ledger holds nothing."""
        tokens, held = self.max_summary_tokens(plan_input, step), plan_input.projection.tokens
        room, folded = min(plan_input.situation.message_budget, held), held - self._remaining_tokens(plan_input, step)
        said = [entry for entry in plan_input.projection.entries if (entry.position or 0) < step.span.stop]
        # Nothing is quoted twice.
        spare = min(self._max_quoted_tokens(folded, room) - tokens, _distinct_tokens(plan_input, step))
        return ReplacementBudget(tokens, max(0, min(int(self._chat_tokens(said, room)), spare)))

    def _chat_tokens(self, said: Sequence[Entry], room: int) -> float:
        """Return what turns may take that stay whole."""
        return min(self.talk_max_tokens, int(room * self.talk_share)) * chat_scale(chat_share(said))

    def _max_quoted_tokens(self, folded: int, room: int) -> int:
        """Return what may be quoted of what is folded: whatever it is, a fold frees something."""
        return min(int(folded * MAX_QUOTED_SHARE), folded - int(self.min_gain_share * room) - 1)

    def _min_gain(self, plan_input: PlanInput) -> float:
        """Return how many tokens a fold has to free: any, where it is not tokens that there are too many of."""
        is_about_tokens = plan_input.fill == plan_input.token_fill
        return (
            self.min_gain_share * plan_input.situation.message_budget if is_about_tokens and plan_input.fill <= 1 else 1
        )

    @staticmethod
    def _remaining_tokens(plan_input: PlanInput, step: CompactSpan) -> int:
        """Return the tokens of what a fold leaves as it is."""
        kept = {*step.span.kept, *plan_input.history.session_state.pins, *plan_input.history.system_positions}
        return sum(
            size
            for entry, size in zip(plan_input.projection.entries, plan_input.projection.entry_tokens(), strict=True)
            if entry.position is not None and (entry.position >= step.span.stop or entry.position in kept)
        )

    def _compaction_reason(self, plan_input: PlanInput) -> str | None:
        """Return why a fold is made now, or None if it can wait."""
        fill, situation = plan_input.fill, plan_input.situation
        if situation.refusals:
            return "the provider refused the request as too long"
        if fill >= self.hard_share:
            return _describe_fill(plan_input)
        if situation.is_cache_cold and fill >= self.cold_share:
            return f"{_describe_fill(plan_input)} and the prompt cache has expired, so a new prefix costs nothing extra"
        reuse = plan_input.projection.answered_tokens / max(1, plan_input.projection.tokens)
        if fill >= self.soft_share and reuse >= self._required_reuse(situation) and not situation.has_summarizer:
            return f"{_describe_fill(plan_input)} and its prefix was read {reuse:.0f} times"
        return None

    def _required_reuse(self, situation: Situation) -> float:
        """Return how often a prefix has to be read before it is given up: never, where reading is no cheaper."""
        prices = situation.prices or ASSUMED_PRICES
        return self.min_reuse * (1 - prices.read / prices.write)

    def _span(self, plan_input: PlanInput, room: int, least: int | None = None) -> CompactSpan | None:
        """Return what to fold: everything before a short tail, the prompt that is being answered excepted."""
        shown = plan_input.projection
        first = shown.first_uncompacted
        last = uncuttable_span(shown, len(shown) - 1)[0] if len(shown) else 0
        tail = shown.tail_start(int(self.tail_share * room))
        if plan_input.fill > plan_input.token_fill:
            tail = max(tail, len(shown) - len(shown) // TAIL_DIVISOR)
        cut = min(next_cut(shown, max(first, tail)), last)
        if cut - first < (self.min_messages if least is None else least):
            return None
        kept: list[int] = []
        prompt = shown.newest_prompt
        if prompt is not None and prompt < cut:
            kept += _positions(
                plan_input, [*range(*uncuttable_span(shown, prompt)), *reasoning_exchange(shown, prompt, cut)]
            )
        stop = shown.position_at(cut)
        standing = shown.context.state
        count = max(1, _visible_count(plan_input, standing.cleared_at, stop) - len(kept))
        return CompactSpan(
            span=Span(start=standing.cleared_at, stop=stop, kept=tuple(sorted({*kept})), count=count),
            by="digest",
            trigger="context_limit_retry" if plan_input.situation.refusals else "threshold",
        )


def _distinct_tokens(plan_input: PlanInput, step: CompactSpan) -> int:
    """Return the tokens of what was said before a fold, each text once."""
    sizes = {
        entry.message.text: size
        for entry, size in zip(plan_input.projection.entries, plan_input.projection.entry_tokens(), strict=True)
        if (entry.position or 0) < step.span.stop
    }
    return sum(sizes.values())


def _positions(plan_input: PlanInput, indices: Sequence[int]) -> list[int]:
    found = [plan_input.projection.entries[index].position for index in indices]
    return [position for position in found if position is not None]


def _visible_count(plan_input: PlanInput, start: int, stop: int) -> int:
    """Return how many messages of a span stand; a main agent that sees everything need not look at each."""
    history = plan_input.history
    if plan_input.situation.scope != MAIN or not history.scopes.does_main_see_all:
        return sum(1 for _ in plan_input.projection.context.entries_between(start, stop))
    hidden = {
        position for span in history.version.hidden for position in range(max(start, span.start), min(stop, span.stop))
    }
    return stop - start - len(hidden)


def _describe_fill(plan_input: PlanInput) -> str:
    shown = plan_input.projection
    return f"{shown.tokens:,} tokens in {len(shown):,} messages are {plan_input.fill:.0%} of what may be sent"


def _describe_cost(plan_input: PlanInput, after: int) -> str:
    prices = plan_input.situation.prices or ASSUMED_PRICES
    turns = break_even_turns(prices, before=plan_input.projection.tokens, after=after)
    return f"folding to about {after:,} pays for itself after {turns:.1f} requests ({prices.name} prices)"
