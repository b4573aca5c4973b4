"""What the next fold will cost, before it is made.

A fold comes when its line is reached, so the forecast is of that moment: how much there will be, what the rule leaves
of it, what a model reads and writes for that, and what is sent as new afterwards, because no cache holds it. Sizes are
what the policy allows at most, and what the last summary took where there was one; dollars are told where prices are
known. Whatever a fold really did cost is on its receipt, in the same terms.
"""

from dataclasses import dataclass

from holdfast.core.planning.cost import MILLION, Prices
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.steps import PlanInput, Threshold


@dataclass(frozen=True, slots=True)
class SummaryAuthor:
    """Who will write the summary."""

    prices: Prices | None = None
    """None where nobody knows them."""
    reuses_prefix: bool = False
    """Whether it is asked behind the last request, so that a cache pays for reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostForecast:
    """What the next fold is expected to cost, in tokens as the provider counts them."""

    tokens_before: int
    """What the messages will take when it is made."""
    tokens_after: int
    """What they will take at most after it: all of it is sent as new."""
    read_tokens: int = 0
    """What a model reads to write the summary; 0 where that is made by rule."""
    is_cached: bool = False
    """Whether that comes from the provider's cache."""
    written_tokens: int = 0
    """What it writes at most."""
    summary_dollars: float | None = None
    rewrite_dollars: float | None = None

    @property
    def dollars(self) -> float | None:
        """What is paid for it; None where a price is not known."""
        if self.rewrite_dollars is None or (self.written_tokens and self.summary_dollars is None):
            return None
        return self.rewrite_dollars + (self.summary_dollars or 0)


def cost_forecast(
    plan_input: PlanInput, policy: Policy, threshold: Threshold | None, summary_author: SummaryAuthor | None = None
) -> CostForecast | None:
    """Return what the fold at a line is expected to cost; None where there will be none."""
    held = _tokens_at(threshold, plan_input.projection.tokens) if threshold is not None else 0
    leaves = policy.fold.forecast(plan_input, held) if policy.fold and held else None
    if leaves is None:
        return None
    factor, prices = plan_input.situation.calibration.factor, plan_input.situation.prices
    folded = max(0, held - leaves.kept_tokens)
    # What is no smaller than what it stands for does not count.
    stands = min(
        leaves.replacement_tokens,
        folded,
        (_last_summary_tokens(plan_input) if leaves.by_model else 0) or leaves.replacement_tokens,
    )
    after, written = min(held, leaves.kept_tokens + leaves.quoted_tokens + stands), stands if leaves.by_model else 0
    is_cached = summary_author is not None and summary_author.reuses_prefix
    read = (held + plan_input.situation.extras_tokens if is_cached else folded) if written else 0
    sent, read, written = (_billed_tokens(tokens, factor) for tokens in (after, read, written))
    return CostForecast(
        tokens_before=_billed_tokens(held, factor),
        tokens_after=sent,
        read_tokens=read,
        is_cached=is_cached and bool(written),
        written_tokens=written,
        summary_dollars=_summary_dollars(summary_author, read, written) if summary_author and written else None,
        rewrite_dollars=prices.dollars_to_write(sent) if prices else None,
    )


def _tokens_at(threshold: Threshold, tokens: int) -> int:
    """Return what the messages will take when a line is reached, at the size they have now where that is not tokens."""
    if threshold.unit == "tokens":
        return tokens + max(0, threshold.limit - threshold.current)
    return tokens * max(threshold.limit, threshold.current) // max(1, threshold.current)


def _last_summary_tokens(plan_input: PlanInput) -> int:
    """Return what the last summary took; 0 where no model has written one."""
    usages = (fold.usage for fold in reversed(plan_input.projection.context.state.compactions) if fold.by_model)
    return next((usage.output_tokens for usage in usages if usage is not None), 0)


def _summary_dollars(summary_author: SummaryAuthor, read: int, written: int) -> float | None:
    if summary_author.prices is None or summary_author.prices.dollars is None:
        return None
    units = (
        read * (summary_author.prices.read if summary_author.reuses_prefix else 1)
        + summary_author.prices.output * written
    )
    return units * summary_author.prices.dollars / MILLION


def _billed_tokens(tokens: int, factor: float) -> int:
    return -int(-tokens * factor // 1)
