"""Retries after a provider rejected a request as too long: each retry sends less, and none repeats a request.

First the session learns from the error, for later sessions too: the provider's limit, and how it counts. Then the
context is compacted by force, then shortened step by step, and finally reduced to the prompt and the pinned messages.
The log does not change. Errors other than "too long" are raised unchanged.
"""

from dataclasses import field, replace
from math import inf

from holdfast.core.history.events import MAIN
from holdfast.core.planning.situation import MIN_BUDGET_TOKENS, Budget
from holdfast.counters.models import budget_for
from holdfast.dataclass import dataclass
from holdfast.errors import CannotFitError, HoldfastError, ModelOverflowError
from holdfast.models.errors import as_model_error, error_from_response
from holdfast.session.calibration import UsageCalibrator, is_plausible_window
from holdfast.session.prepare import LastPrepared, RequestBuilder
from holdfast.wire.request import Request

RETRY_SHARES = (0.95, 0.75, 0.5, 0.35, 0.25)
"""The budget of each retry, as a share of what was sent or may be sent."""


@dataclass(slots=True)
class _RetryState:
    """The progress of the retries for one agent's request."""

    prepared: LastPrepared
    last_request: Request
    """The last request, which the provider has rejected or may reject."""
    refusals: int = 0
    limit: int | None = None
    """The lowest limit that the rejections have named."""
    lowered_limits: int = 0
    """How many of the rejections named a lower limit than those before."""
    refused_hashes: set[str] = field(default_factory=set[str])


class OverflowRetry:
    """Makes the requests of a session smaller after a provider rejects them."""

    def __init__(self, builder: RequestBuilder, calibrator: UsageCalibrator) -> None:
        self._builder = builder
        self._calibrator = calibrator
        self._states: dict[str, _RetryState] = {}

    def reset(self, scope: str) -> None:
        """Start over with the next request, because the provider has answered."""
        self._states.pop(scope, None)
        self._builder.last_prepared.pop(scope, None)

    async def retry(self, error: object, status: int | None = None, scope: str = MAIN) -> Request:
        """Return a smaller request after a rejection; raises it as an error if it is no overflow, or nothing helps.

        An exception that is no overflow is raised itself, so that callers can catch it by its own type.
        """
        state = self._state_of(scope)
        problem = _as_error((state.prepared.options.model if state else None) or "model", error, status)
        if state is None or not isinstance(problem, ModelOverflowError):
            raise error if isinstance(error, Exception) else problem
        options = state.prepared.options
        await self._calibrator.learn_refusal(
            options.served_model, counted=state.last_request.tokens.counted, size=problem.size, limit=problem.limit
        )
        allowed = _allowed_tokens(state.prepared.request.receipt.budget, problem.limit)
        base, emergency = min(state.last_request.tokens.total, allowed), self._builder.policy.emergency
        state.refused_hashes.add(state.last_request.hash)
        truncator, is_lowered = self._builder.policy.truncator, False
        if problem.limit is not None and is_plausible_window(problem.limit) and problem.limit < (state.limit or inf):
            state.limit, is_lowered = problem.limit, True
            state.lowered_limits += 1
        while state.refusals < len(RETRY_SHARES):
            size = int(base * RETRY_SHARES[state.refusals])
            state.refusals += 1
            if emergency and emergency.persists and state.refusals == emergency.first:
                # The policy says by itself how much less is sent.
                size = allowed
            elif truncator and not is_lowered and state.refusals - state.lowered_limits <= truncator.MAX_RETRIES:
                # The truncator takes its buffer off by itself, and would else take it off what was lowered already.
                size = min(state.prepared.request.tokens.total, allowed)
            budget = Budget(max(MIN_BUDGET_TOKENS, size), source="provider")
            retry = replace(options, budget=budget, refusals=state.refusals, lowered_limits=state.lowered_limits)
            try:
                request = await self._builder.prepare(retry)
            except CannotFitError:
                # Protected messages alone exceed this budget: a later retry removes everything else.
                if state.refusals == len(RETRY_SHARES):
                    raise
                continue
            is_smaller = request.tokens.counted < state.last_request.tokens.counted
            if is_smaller and request.hash not in state.refused_hashes:
                state.last_request = request
                return request
        raise problem from (error if isinstance(error, Exception) else None)

    def _state_of(self, scope: str) -> _RetryState | None:
        """Return the progress of the retries; the first request after a new message starts over."""
        state, prepared = self._states.get(scope), self._builder.last_prepared.get(scope)
        if prepared is None:
            return None
        if state is None or state.prepared.message_count != prepared.message_count:
            state = self._states[scope] = _RetryState(prepared, prepared.request)
        elif state.prepared is not prepared:
            state.prepared, state.last_request = prepared, prepared.request
        return state


def _as_error(model: str, error: object, status: int | None) -> HoldfastError:
    """Return a provider's rejection as one of our errors."""
    if isinstance(error, BaseException):
        if not isinstance(error, Exception):
            raise error
        return as_model_error(model, error)
    return error_from_response(model, error, status=status)


def _allowed_tokens(budget: Budget, provider_limit: int | None) -> int:
    """Return the budget of the request, or the limit that the provider reported if that is lower."""
    if provider_limit is not None and is_plausible_window(provider_limit):
        return min(budget.tokens, budget_for(None, provider_window=provider_limit).tokens)
    return budget.tokens
