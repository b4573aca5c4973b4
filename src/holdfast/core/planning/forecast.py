"""What the next fold will cost, before it is made.

A fold comes when its line is reached, so the forecast is of that moment: how much there will be, what the rule leaves
of it, what a model reads and writes for that, and what is sent as new afterwards, because no cache holds it. Sizes are
what the policy allows at most, and what the last summary took where there was one; dollars are told where prices are
known. Whatever a fold really did cost is on its receipt, in the same terms.
"""

from dataclasses import dataclass

from holdfast.core.planning.cost import MILLION, Prices
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.steps import Line, Outlook


@dataclass(frozen=True, slots=True)
class SummaryBy:
    """Who will write the summary."""

    prices: Prices | None = None
    """None where nobody knows them."""
    is_behind: bool = False
    """Whether it is asked behind the last request, so that a cache pays for reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the next fold is expected to cost, in tokens as the provider counts them."""

    before: int
    """What the messages will take when it is made."""
    after: int
    """What they will take at most after it: all of it is sent as new."""
    read: int = 0
    """What a model reads to write the summary; 0 where that is made by rule."""
    is_cached: bool = False
    """Whether that comes from the provider's cache."""
    written: int = 0
    """What it writes at most."""
    summary_dollars: float | None = None
    rewrite_dollars: float | None = None

    @property
    def dollars(self) -> float | None:
        """What is paid for it; None where a price is not known."""
        if self.rewrite_dollars is None or (self.written and self.summary_dollars is None):
            return None
        return self.rewrite_dollars + (self.summary_dollars or 0)


def forecast_of(outlook: Outlook, policy: Policy, line: Line | None, by: SummaryBy | None = None) -> Forecast | None:
    """Return what the fold at a line is expected to cost; None where there will be none."""
    held = _held_at(line, outlook.shown.tokens) if line is not None else 0
    leaves = policy.fold.leaves(outlook, held) if policy.fold and held else None
    if leaves is None:
        return None
    factor, prices = outlook.situation.calibration.factor, outlook.situation.prices
    folded = max(0, held - leaves.stays)
    # What is no smaller than what it stands for does not count.
    stands = min(leaves.written, folded, (_last_written(outlook) if leaves.by_model else 0) or leaves.written)
    after, written = min(held, leaves.stays + leaves.quoted + stands), stands if leaves.by_model else 0
    is_cached = by is not None and by.is_behind
    read = (held + outlook.situation.static_tokens if is_cached else folded) if written else 0
    sent, read, written = (_billed(tokens, factor) for tokens in (after, read, written))
    return Forecast(
        before=_billed(held, factor),
        after=sent,
        read=read,
        is_cached=is_cached and bool(written),
        written=written,
        summary_dollars=_summary_dollars(by, read, written) if by and written else None,
        rewrite_dollars=prices.dollars_to_write(sent) if prices else None,
    )


def _held_at(line: Line, tokens: int) -> int:
    """Return what the messages will take when a line is reached, at the size they have now where that is not tokens."""
    if line.unit == "tokens":
        return tokens + max(0, line.limit - line.held)
    return tokens * max(line.limit, line.held) // max(1, line.held)


def _last_written(outlook: Outlook) -> int:
    """Return what the last summary took; 0 where no model has written one."""
    usages = (fold.usage for fold in reversed(outlook.shown.context.standing.folds) if fold.by_model)
    return next((usage.output_tokens for usage in usages if usage is not None), 0)


def _summary_dollars(by: SummaryBy, read: int, written: int) -> float | None:
    if by.prices is None or by.prices.dollars is None:
        return None
    units = read * (by.prices.read if by.is_behind else 1) + by.prices.output * written
    return units * by.prices.dollars / MILLION


def _billed(tokens: int, factor: float) -> int:
    return -int(-tokens * factor // 1)
