"""The ladder after a provider's refusal: each rung sends less, none sends the same again, and no word is lost.

First what the provider said is learned, for this session and the next: its limit, and how it counts. Then the
context is compacted by force, then pruned harder, then cut to the bone, and at last emptied but for the prompt and
what is pinned. The log is untouched throughout. Anything but "too long" is no business of the ladder's.
"""

from dataclasses import replace

from holdfast.core.history.events import Usage
from holdfast.core.planning.situation import MIN_TOKENS, Budget
from holdfast.counters.models import budget_for
from holdfast.errors import HoldfastError, ModelOverflowError
from holdfast.models.refusals import refused, translated
from holdfast.session.circumstances import Wanted
from holdfast.session.meter import Meter
from holdfast.session.preparer import Beside, Preparer
from holdfast.session.request import PreparedRequest

SHARES = (0.95, 0.75, 0.5, 0.35, 0.25)
"""Of what was sent or may be sent, on each rung."""


class Ladder:
    """Climbed by one session, from one answer to the next."""

    def __init__(self, preparer: Preparer, meter: Meter) -> None:
        self._preparer = preparer
        self._meter = meter
        self._refusals = 0
        self._refused: set[str] = set()
        self._last: tuple[Wanted, Beside, PreparedRequest] | None = None

    async def prepare(self, wanted: Wanted, beside: Beside) -> PreparedRequest:
        """Return the next request, within what a provider has said before."""
        known = await self._meter.limit(wanted.model)
        request = await self._preparer.prepare(_within(wanted, known), beside)
        self._last = wanted, beside, request
        return request

    def answered(self) -> None:
        """Begin at the bottom again: the provider has answered."""
        self._refusals = 0
        self._refused.clear()

    async def climb(self, error: object, status: int | None = None) -> PreparedRequest:
        """Return a smaller request after a refusal; raises it as an error where it is no overflow, or nothing helps."""
        if self._last is None:
            raise _problem("model", error, status)
        wanted, beside, last = self._last
        problem = _problem(wanted.model or "model", error, status)
        if not isinstance(problem, ModelOverflowError):
            raise problem
        await self._learn(wanted, last, problem)
        base = min(last.tokens.total, _limit(wanted, problem.limit))
        self._refused.add(last.hash)
        while self._refusals < len(SHARES):
            share = SHARES[self._refusals]
            self._refusals += 1
            budget = Budget(max(MIN_TOKENS, int(base * share)), source="provider")
            try:
                request = await self._preparer.prepare(replace(wanted, budget=budget, refusals=self._refusals), beside)
            except HoldfastError:
                # What must not be shortened is larger than this: the next rung empties the rest.
                if self._refusals == len(SHARES):
                    raise
                continue
            is_smaller = request.tokens.counted < last.tokens.counted
            if is_smaller and request.hash not in self._refused:
                self._last = wanted, beside, request
                return request
        raise problem

    async def _learn(self, wanted: Wanted, last: PreparedRequest, problem: ModelOverflowError) -> None:
        if problem.limit is not None:
            await self._meter.learn_limit(wanted.model, problem.limit)
        if problem.size is not None:
            self._meter.sent(wanted.model, last.tokens.counted)
            await self._meter.billed(Usage(input_tokens=problem.size))


def _problem(model: str, error: object, status: int | None) -> HoldfastError:
    """Return a refusal as one of our errors."""
    if isinstance(error, Exception):
        return translated(model, error)
    return refused(model, error, status=status)


def _limit(wanted: Wanted, told: int | None) -> int:
    """Return what may be sent: what the provider says, else what was meant to be sent."""
    if told is not None:
        return budget_for(None, provider_window=told).tokens
    return budget_for(wanted.model, wanted.budget).tokens


def _within(wanted: Wanted, known: int | None) -> Wanted:
    """Return what is wanted, within a limit that a provider has named."""
    if known is None:
        return wanted
    budget = budget_for(wanted.model, wanted.budget)
    most = budget_for(None, provider_window=known).tokens
    return wanted if budget.tokens <= most else replace(wanted, budget=replace(budget, tokens=most, source="provider"))
