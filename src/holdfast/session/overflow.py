"""The ladder after a provider's refusal: each rung sends less, none sends the same again, and no word is lost.

First what the provider said is learned, for this session and the next: its limit, and how it counts. Then the
context is compacted by force, then pruned harder, then cut to the bone, and at last emptied but for the prompt and
what is pinned. The log is untouched throughout. Anything but "too long" is no business of the ladder's.
"""

from dataclasses import dataclass, field, replace

from holdfast.core.history.events import MAIN, Usage
from holdfast.core.planning.situation import MIN_TOKENS, Budget
from holdfast.counters.models import budget_for
from holdfast.errors import CannotFitError, HoldfastError, ModelOverflowError
from holdfast.models.refusals import refused, translated
from holdfast.session.circumstances import Wanted
from holdfast.session.meter import Meter, is_window
from holdfast.session.preparer import Preparer
from holdfast.session.request import PreparedRequest

SHARES = (0.95, 0.75, 0.5, 0.35, 0.25)
"""Of what was sent or may be sent, on each rung."""


@dataclass(slots=True)
class _Climb:
    """How far one agent's request has come."""

    wanted: Wanted
    last: PreparedRequest
    said: int
    """How much had been said by then: a new message begins a new climb."""
    refusals: int = 0
    refused: set[str] = field(default_factory=set[str])


class Ladder:
    """Climbed by each agent of a session, from one answer to the next."""

    def __init__(self, preparer: Preparer, meter: Meter) -> None:
        self._preparer = preparer
        self._meter = meter
        self._climbs: dict[str, _Climb] = {}

    async def prepare(self, wanted: Wanted) -> PreparedRequest:
        """Return the next request, within what a provider has said before."""
        known = await self._meter.limit(wanted.model)
        request = await self._preparer.prepare(_within(wanted, known))
        climb = self._climbs.get(wanted.scope)
        if climb is None or climb.said != self._preparer.said:
            climb = self._climbs[wanted.scope] = _Climb(wanted, request, self._preparer.said)
        climb.wanted, climb.last = wanted, request
        return request

    def answered(self, scope: str) -> None:
        """Begin at the bottom again: the provider has answered."""
        self._climbs.pop(scope, None)

    async def climb(self, error: object, status: int | None = None, scope: str = MAIN) -> PreparedRequest:
        """Return a smaller request after a refusal; raises it as an error where it is no overflow, or nothing helps."""
        climb = self._climbs.get(scope)
        problem = _problem((climb.wanted.model if climb else None) or "model", error, status)
        if climb is None or not isinstance(problem, ModelOverflowError):
            raise problem
        await self._learn(climb.wanted, climb.last, problem)
        base = min(climb.last.tokens.total, _limit(climb.wanted, problem.limit))
        climb.refused.add(climb.last.hash)
        while climb.refusals < len(SHARES):
            budget = Budget(max(MIN_TOKENS, int(base * SHARES[climb.refusals])), source="provider")
            climb.refusals += 1
            smaller = replace(climb.wanted, budget=budget, refusals=climb.refusals)
            try:
                request = await self._preparer.prepare(smaller)
            except CannotFitError:
                # What must not be shortened is larger than this: the next rung empties the rest.
                if climb.refusals == len(SHARES):
                    raise
                continue
            is_smaller = request.tokens.counted < climb.last.tokens.counted
            if is_smaller and request.hash not in climb.refused:
                climb.last = request
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
    if isinstance(error, BaseException):
        if not isinstance(error, Exception):
            raise error
        return translated(model, error)
    return refused(model, error, status=status)


def _limit(wanted: Wanted, told: int | None) -> int:
    """Return what may be sent: what the provider says, else what was meant to be sent."""
    if told is not None and is_window(told):
        return budget_for(None, provider_window=told).tokens
    return budget_for(wanted.model, wanted.budget).tokens


def _within(wanted: Wanted, known: int | None) -> Wanted:
    """Return what is wanted, within a limit that a provider has named."""
    if known is None:
        return wanted
    budget = budget_for(wanted.model, wanted.budget)
    most = budget_for(None, provider_window=known).tokens
    return wanted if budget.tokens <= most else replace(wanted, budget=replace(budget, tokens=most, source="provider"))
