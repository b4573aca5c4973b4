"""Retries after a provider refused a request as too long: each sends less, and none sends the same again.

First the session learns what the provider said, for later sessions too: its limit, and how it counts. Then the context
is compacted by force, then shortened more and more, and at last emptied but for the prompt and what is pinned. The log
stays as it is. Errors other than "too long" are raised as they are.
"""

from dataclasses import dataclass, field, replace

from holdfast.core.history.events import MAIN, Usage
from holdfast.core.planning.situation import MIN_BUDGET_TOKENS, Budget
from holdfast.counters.models import budget_for
from holdfast.errors import CannotFitError, HoldfastError, ModelOverflowError
from holdfast.models.errors import as_model_error, error_from_response
from holdfast.session.calibration import UsageCalibrator, is_plausible_window
from holdfast.session.prepare import LastPrepared, RequestBuilder, RequestOptions
from holdfast.session.request import Request

RETRY_SHARES = (0.95, 0.75, 0.5, 0.35, 0.25)
"""Of what was sent or may be sent, at each retry."""


@dataclass(slots=True)
class _RetryState:
    """How far the retries of one agent's request have come."""

    prepared: LastPrepared
    last_request: Request
    """The last one that was refused, or may be."""
    refusals: int = 0
    refused_hashes: set[str] = field(default_factory=set[str])


class OverflowRetry:
    """Makes the requests of a session smaller after a provider's refusals."""

    def __init__(self, builder: RequestBuilder, calibrator: UsageCalibrator) -> None:
        self._builder = builder
        self._calibrator = calibrator
        self._states: dict[str, _RetryState] = {}

    def reset(self, scope: str) -> None:
        """Start over with the next request: the provider has answered."""
        self._states.pop(scope, None)
        self._builder.forget_prepared(scope)

    async def retry(self, error: object, status: int | None = None, scope: str = MAIN) -> Request:
        """Return a smaller request after a refusal; raises it as an error where it is no overflow, or nothing helps."""
        state = self._state_of(scope)
        problem = _as_error((state.prepared.options.model if state else None) or "model", error, status)
        if state is None or not isinstance(problem, ModelOverflowError):
            raise problem
        options = state.prepared.options
        if problem.limit is not None:
            await self._calibrator.learn_limit(options.model, problem.limit)
        if problem.size is not None:
            self._calibrator.record_request(options.model, state.last_request.tokens.counted)
            await self._calibrator.record_usage(Usage(input_tokens=problem.size))
        base = min(state.last_request.tokens.total, _allowed_tokens(options, problem.limit))
        state.refused_hashes.add(state.last_request.hash)
        while state.refusals < len(RETRY_SHARES):
            budget = Budget(max(MIN_BUDGET_TOKENS, int(base * RETRY_SHARES[state.refusals])), source="provider")
            state.refusals += 1
            try:
                request = await self._builder.prepare(replace(options, budget=budget, refusals=state.refusals))
            except CannotFitError:
                # Protected messages alone are larger than this budget: a later retry empties the rest.
                if state.refusals == len(RETRY_SHARES):
                    raise
                continue
            is_smaller = request.tokens.counted < state.last_request.tokens.counted
            if is_smaller and request.hash not in state.refused_hashes:
                state.last_request = request
                return request
        raise problem

    def _state_of(self, scope: str) -> _RetryState | None:
        """Return how far retries have come; the first request after a new message starts over."""
        state, prepared = self._states.get(scope), self._builder.last_prepared(scope)
        if prepared is None:
            return None
        if state is None or state.prepared.message_count != prepared.message_count:
            state = self._states[scope] = _RetryState(prepared, prepared.request)
        elif state.prepared is not prepared:
            state.prepared, state.last_request = prepared, prepared.request
        return state


def _as_error(model: str, error: object, status: int | None) -> HoldfastError:
    """Return a provider's refusal as one of our errors."""
    if isinstance(error, BaseException):
        if not isinstance(error, Exception):
            raise error
        return as_model_error(model, error)
    return error_from_response(model, error, status=status)


def _allowed_tokens(options: RequestOptions, provider_limit: int | None) -> int:
    """Return the limit that the provider named, else the budget of the request."""
    if provider_limit is not None and is_plausible_window(provider_limit):
        return budget_for(None, provider_window=provider_limit).tokens
    return budget_for(options.model, options.budget).tokens
