"""Folds deep and rarely: the rule of the default policy.

With a prompt cache, what costs is not a long prompt but a changed one. So nothing is touched until a line is
reached; then everything goes but a short tail, in one break of the prefix, and the conversation has the
whole window to grow into again. Between the two lines a fold waits until the prefix has been read often
enough to be worth giving up; at the hard line, or when the cache has forgotten it anyway, it waits no longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from holdfast.core.conversation.cuts import next_cut, unit_around
from holdfast.core.conversation.view import Entry
from holdfast.core.history.events import MAIN
from holdfast.core.planning.breaker import floor_told, stuck
from holdfast.core.planning.cost import PRICES, break_even_turns
from holdfast.core.planning.protection import reasoning_exchange
from holdfast.core.planning.reference import Allowance, beside, reference
from holdfast.core.planning.settings import check_settings, ratio, share, whole
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import NOTHING, AwaitSummary, FoldSpan, Leaves, Line, Outlook, Proposal, Summary
from holdfast.core.planning.talk import scale, talk_share
from holdfast.errors import SettingsError

LEAST_SUMMARY_TOKENS, MOST_SUMMARY_SHARE = 256, 0.25
"""What a summary may take even where its share is less, and the share of a small window that this may be."""
MOST_QUOTED = 0.75
"""The share of a talk that may stay whole: a fold that keeps more is none."""
TAIL_PARTS = 4
"""Where messages, turns or bytes are what there is too much of, one in so many messages stays."""
ASSUMED_PRICES = PRICES["anthropic"]
"""What a fold is weighed with where nobody says what tokens cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldDeep:
    """Shares are of the room that system text and tools leave to the messages."""

    RULE: ClassVar[str] = "deep"
    offers_recall: ClassVar[bool] = True
    notices_loops: ClassVar[bool] = True

    soft_share: float = field(default=0.8, metadata=share())
    """From here on a summary is asked for, and a fold is made once it pays."""
    hard_share: float = field(default=0.95, metadata=share())
    """Here a fold is made at once."""
    cold_share: float = field(default=0.6, metadata=share())
    """From here on a fold is made if the prompt cache has expired anyway."""
    tail_share: float = field(default=0.05, metadata=share())
    """What stays of the newest messages."""
    summary_share: float = field(default=0.06, metadata=share())
    summary_max_tokens: int = field(default=3_000, metadata=whole(1, 10**6))
    """What a summary or digest with the user's words and the ledger may take."""
    talk_share: float = field(default=0.6, metadata=share())
    talk_max_tokens: int = field(default=4_600, metadata=whole(0, 10**6))
    """What turns may take besides that stay whole because they say much, where nearly all that is folded is talk."""
    min_reuse: float = field(default=30.0, metadata=ratio(0, 10**6))
    """A fold pays when what it gives up was read this often, at a cache whose reading costs nothing."""
    min_gain_share: float = field(default=0.2, metadata=share())
    """A fold that frees less is not made unless the request would not fit otherwise."""
    min_messages: int = field(default=4, metadata=whole(1, 10**6))

    def __post_init__(self) -> None:
        check_settings(self, "fold")
        kept = self.tail_share + self.summary_share
        for name, above, below in (
            ("hard_share", self.hard_share, self.soft_share),
            ("soft_share", self.soft_share, kept + self.min_gain_share),
            ("cold_share", self.cold_share, kept + self.min_gain_share),
        ):
            if above < below:
                problem = f"must be at least {below:g}: the next lower line, or what a fold keeps and has to free"
                raise SettingsError(f"policy.fold.{name}", f"{problem}, not {above:g}")

    def propose(self, outlook: Outlook) -> Proposal:
        """Return the fold to make now, or the summary to ask for meanwhile."""
        held, room = outlook.shown.tokens, outlook.situation.room
        if outlook.situation.has_ready_summary:
            return Proposal(now=(AwaitSummary(),), reasons=("a summary is ready",))
        why = self._why(outlook)
        is_full = outlook.fill >= self.soft_share and outlook.situation.has_summariser
        if room <= 0 or (why is None and not is_full):
            return NOTHING
        step = self._span(outlook, room)
        if step is None:
            return NOTHING
        if why is not None and outlook.fixed_tokens - outlook.situation.static_tokens > self.soft_share * room:
            told = "system text, pins and the newest prompt alone fill the room: folding cannot help"
            return Proposal(reasons=(f"{told} ({floor_told(outlook)})",)) if outlook.fill <= 1 else NOTHING
        after = self._left(outlook, step) + sum(self._allowed(outlook, step))
        if held - after < self._least_gain(outlook):
            told = f"folding would free only {max(0, held - after):,} of {held:,} tokens, so nothing was folded"
            return Proposal(reasons=(told,)) if why else NOTHING
        if not outlook.situation.refusals and (told := stuck(outlook)):
            return Proposal(reasons=(told,))
        if why is not None:
            return Proposal(now=(step,), reasons=(f"{why}; {_price(outlook, after)}",))
        if outlook.is_summarising:
            return NOTHING
        later = replace(step, by="summary")
        return Proposal(later=(later,), reasons=(f"{_fill(outlook)}: a summary is written meanwhile",))

    def line(self, outlook: Outlook) -> Line:
        """Return how near the next fold is: the soft line with a summariser, the hard one without."""
        reach = self.soft_share if outlook.situation.has_summariser else self.hard_share
        return Line(outlook.shown.tokens, int(reach * max(0, outlook.situation.room)), "tokens")

    def leaves(self, outlook: Outlook, tokens: int) -> Leaves:
        """Return what a fold is expected to leave that is made when the messages take so many tokens."""
        room = max(0, outlook.situation.room)
        stays = int(self.tail_share * room)
        folded = max(0, tokens - stays)
        summary = min(self._summary_share(room), folded // 2)
        talk = min(self._talk(outlook.shown.entries, room), self._spare(folded, room) - summary)
        return Leaves(stays, summary, max(0, int(talk)), by_model=outlook.situation.has_summariser)

    def manual(self, outlook: Outlook) -> FoldSpan | None:
        """Return the fold that the hard line would make, as if what there is filled the room."""
        step = self._span(outlook, min(outlook.situation.room, outlook.shown.tokens), least=1)
        by = "summary" if outlook.situation.has_summariser else "digest"
        return replace(step, by=by, trigger="manual") if step else None

    def replacement(self, outlook: Outlook, step: FoldSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the text that stands for a span: the user's words, what was done, and the names that were used."""
        return (reference(outlook, step, summary, self._allowed(outlook, step)),)

    def beside(self, outlook: Outlook, step: FoldSpan) -> list[str]:
        """Return the texts that a summary of a span will stand next to: where it is looked up what it loses."""
        return beside(outlook, step, self._allowed(outlook, step))

    def allowance(self, outlook: Outlook, step: FoldSpan) -> int:
        """Return what a summary may take: its share, and never more than half of what it stands for."""
        folded = outlook.shown.tokens - self._left(outlook, step)
        return min(self._summary_share(outlook.situation.room), folded // 2)

    def _summary_share(self, room: int) -> int:
        # A share of a small window holds no sentence: there it may be more, as long as the window is not full of it.
        share = max(int(room * self.summary_share), min(LEAST_SUMMARY_TOKENS, int(room * MOST_SUMMARY_SHARE)))
        return min(self.summary_max_tokens, share)

    def _allowed(self, outlook: Outlook, step: FoldSpan) -> Allowance:
        """Return what may stand for a span: more where it is talk, of which a ledger holds nothing."""
        tokens, held = self.allowance(outlook, step), outlook.shown.tokens
        room, folded = min(outlook.situation.room, held), held - self._left(outlook, step)
        said = [entry for entry in outlook.shown.entries if (entry.position or 0) < step.stop]
        # Nothing is quoted twice.
        spare = min(self._spare(folded, room) - tokens, _said_once(outlook, step))
        return Allowance(tokens, max(0, min(int(self._talk(said, room)), spare)))

    def _talk(self, said: Sequence[Entry], room: int) -> float:
        """Return what turns may take that stay whole."""
        return min(self.talk_max_tokens, int(room * self.talk_share)) * scale(talk_share(said))

    def _spare(self, folded: int, room: int) -> int:
        """Return what may be quoted of what is folded: whatever it is, a fold frees something."""
        return min(int(folded * MOST_QUOTED), folded - int(self.min_gain_share * room) - 1)

    def _least_gain(self, outlook: Outlook) -> float:
        """Return how many tokens a fold has to free: any, where it is not tokens that there are too many of."""
        is_about_tokens = outlook.fill == outlook.token_fill
        return self.min_gain_share * outlook.situation.room if is_about_tokens and outlook.fill <= 1 else 1

    @staticmethod
    def _left(outlook: Outlook, step: FoldSpan) -> int:
        """Return the tokens of what a fold leaves as it is."""
        kept = {*step.kept, *outlook.history.facts.pins, *outlook.history.systems}
        return sum(
            size
            for entry, size in zip(outlook.shown.entries, outlook.shown.sizes(), strict=True)
            if entry.position is not None and (entry.position >= step.stop or entry.position in kept)
        )

    def _why(self, outlook: Outlook) -> str | None:
        """Return why a fold is made now, or None if it can wait."""
        fill, situation = outlook.fill, outlook.situation
        if situation.refusals:
            return "the provider refused the request as too long"
        if fill >= self.hard_share:
            return _fill(outlook)
        if situation.is_cold and fill >= self.cold_share:
            return f"{_fill(outlook)} and the prompt cache has expired, so a new prefix costs nothing extra"
        reuse = outlook.shown.sent / max(1, outlook.shown.tokens)
        if fill >= self.soft_share and reuse >= self._wanted_reuse(situation) and not situation.has_summariser:
            return f"{_fill(outlook)} and its prefix was read {reuse:.0f} times"
        return None

    def _wanted_reuse(self, situation: Situation) -> float:
        """Return how often a prefix has to be read before it is given up: never, where reading is no cheaper."""
        prices = situation.prices or ASSUMED_PRICES
        return self.min_reuse * (1 - prices.read / prices.write)

    def _span(self, outlook: Outlook, room: int, least: int | None = None) -> FoldSpan | None:
        """Return what to fold: everything before a short tail, the prompt that is being answered excepted."""
        shown = outlook.shown
        first = shown.first_free
        last = unit_around(shown, len(shown) - 1)[0] if len(shown) else 0
        tail = shown.start_within(int(self.tail_share * room))
        if outlook.fill > outlook.token_fill:
            tail = max(tail, len(shown) - len(shown) // TAIL_PARTS)
        cut = min(next_cut(shown, max(first, tail)), last)
        if cut - first < (self.min_messages if least is None else least):
            return None
        kept: list[int] = []
        prompt = shown.newest_prompt
        if prompt is not None and prompt < cut:
            kept += _positions(outlook, [*range(*unit_around(shown, prompt)), *reasoning_exchange(shown, prompt, cut)])
        stop = shown.position(cut)
        standing = shown.context.standing
        count = max(1, _count(outlook, standing.cleared_at, stop) - len(kept))
        return FoldSpan(
            start=standing.cleared_at,
            stop=stop,
            kept=tuple(sorted({*kept})),
            by="digest",
            count=count,
            trigger="context_limit_retry" if outlook.situation.refusals else "threshold",
        )


def _said_once(outlook: Outlook, step: FoldSpan) -> int:
    """Return the tokens of what was said before a fold, each text once."""
    sizes = {
        entry.message.text: size
        for entry, size in zip(outlook.shown.entries, outlook.shown.sizes(), strict=True)
        if (entry.position or 0) < step.stop
    }
    return sum(sizes.values())


def _positions(outlook: Outlook, indices: Sequence[int]) -> list[int]:
    found = [outlook.shown.entries[index].position for index in indices]
    return [position for position in found if position is not None]


def _count(outlook: Outlook, start: int, stop: int) -> int:
    """Return how many messages of a span stand; a main agent that sees everything need not look at each."""
    history = outlook.history
    if outlook.situation.scope != MAIN or not history.scopes.is_all_shown_to_main:
        return sum(1 for _ in outlook.shown.context.between(start, stop))
    hidden = {
        position for span in history.version.hidden for position in range(max(start, span.start), min(stop, span.stop))
    }
    return stop - start - len(hidden)


def _fill(outlook: Outlook) -> str:
    return (
        f"{outlook.shown.tokens:,} tokens in {len(outlook.shown):,} messages are {outlook.fill:.0%} of what may be sent"
    )


def _price(outlook: Outlook, after: int) -> str:
    prices = outlook.situation.prices or ASSUMED_PRICES
    turns = break_even_turns(prices, before=outlook.shown.tokens, after=after)
    return f"folding to about {after:,} pays for itself after {turns:.1f} requests ({prices.name} prices)"
