"""The ladder after a provider's refusal: each rung sends less, none sends the same again, and no word is lost.

First what the provider said is learned, for this session and the next: its limit, and how it counts. Then the
context is compacted by force, then pruned harder, then cut to the bone, and at last emptied but for the prompt and
what is pinned. The log is untouched throughout. Anything but "too long" is no business of the ladder's.
"""

from dataclasses import dataclass, field, replace

from holdfast.core.history.events import MAIN, Usage
from holdfast.core.planning.situation import MIN_BUDGET_TOKENS, Budget
from holdfast.counters.models import budget_for
from holdfast.errors import CannotFitError, HoldfastError, ModelOverflowError
from holdfast.models.errors import as_model_error, error_from_response
from holdfast.session.calibration import UsageCalibrator, is_plausible_window
from holdfast.session.prepare import RequestBuilder, RequestOptions
from holdfast.session.request import PreparedRequest

RETRY_SHARES = (0.95, 0.75, 0.5, 0.35, 0.25)
"""Of what was sent or may be sent, on each rung."""


@dataclass(slots=True)
class _RetryState:
    """How far one agent's request has come."""

    options: RequestOptions
    last_request: PreparedRequest
    message_count: int
    """How much had been said by then: a new message begins a new climb."""
    refusals: int = 0
    refused_hashes: set[str] = field(default_factory=set[str])


class OverflowRetry:
    """Climbed by each agent of a session, from one answer to the next."""

    def __init__(self, builder: RequestBuilder, calibrator: UsageCalibrator) -> None:
        self._builder = builder
        self._calibrator = calibrator
        self._states: dict[str, _RetryState] = {}

    async def prepare(self, options: RequestOptions) -> PreparedRequest:
        """Return the next request, within what a provider has said before."""
        known = await self._calibrator.provider_limit(options.model)
        request = await self._builder.prepare(_limited_options(options, known))
        climb = self._states.get(options.scope)
        if climb is None or climb.message_count != self._builder.message_count:
            climb = self._states[options.scope] = _RetryState(options, request, self._builder.message_count)
        climb.options, climb.last_request = options, request
        return request

    def reset(self, scope: str) -> None:
        """Begin at the bottom again: the provider has answered."""
        self._states.pop(scope, None)

    async def retry(self, error: object, status: int | None = None, scope: str = MAIN) -> PreparedRequest:
        """Return a smaller request after a refusal; raises it as an error where it is no overflow, or nothing helps."""
        climb = self._states.get(scope)
        problem = _as_error((climb.options.model if climb else None) or "model", error, status)
        if climb is None or not isinstance(problem, ModelOverflowError):
            raise problem
        await self._learn(climb.options, climb.last_request, problem)
        base = min(climb.last_request.tokens.total, _allowed_tokens(climb.options, problem.limit))
        climb.refused_hashes.add(climb.last_request.hash)
        while climb.refusals < len(RETRY_SHARES):
            budget = Budget(max(MIN_BUDGET_TOKENS, int(base * RETRY_SHARES[climb.refusals])), source="provider")
            climb.refusals += 1
            smaller = replace(climb.options, budget=budget, refusals=climb.refusals)
            try:
                request = await self._builder.prepare(smaller)
            except CannotFitError:
                # What must not be shortened is larger than this: the next rung empties the rest.
                if climb.refusals == len(RETRY_SHARES):
                    raise
                continue
            is_smaller = request.tokens.counted < climb.last_request.tokens.counted
            if is_smaller and request.hash not in climb.refused_hashes:
                climb.last_request = request
                return request
        raise problem

    async def _learn(self, options: RequestOptions, last_request: PreparedRequest, problem: ModelOverflowError) -> None:
        if problem.limit is not None:
            await self._calibrator.learn_limit(options.model, problem.limit)
        if problem.size is not None:
            self._calibrator.record_request(options.model, last_request.tokens.counted)
            await self._calibrator.record_usage(Usage(input_tokens=problem.size))


def _as_error(model: str, error: object, status: int | None) -> HoldfastError:
    """Return a refusal as one of our errors."""
    if isinstance(error, BaseException):
        if not isinstance(error, Exception):
            raise error
        return as_model_error(model, error)
    return error_from_response(model, error, status=status)


def _allowed_tokens(options: RequestOptions, provider_limit: int | None) -> int:
    """Return what may be sent: what the provider says, else what was meant to be sent."""
    if provider_limit is not None and is_plausible_window(provider_limit):
        return budget_for(None, provider_window=provider_limit).tokens
    return budget_for(options.model, options.budget).tokens


def _limited_options(options: RequestOptions, provider_limit: int | None) -> RequestOptions:
    """Return what is wanted, within a limit that a provider has named."""
    if provider_limit is None:
        return options
    budget = budget_for(options.model, options.budget)
    most = budget_for(None, provider_window=provider_limit).tokens
    return (
        options if budget.tokens <= most else replace(options, budget=replace(budget, tokens=most, source="provider"))
    )
