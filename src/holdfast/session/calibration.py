"""Learns from bills and refusals how a provider counts and what it accepts, and stores that for later sessions.

Reports can be false: a gateway leaves out cached tokens, a message mentions some other number. So everything that is
learned is bounded, belongs to one model at one endpoint, and never raises a request above its budget. A limit expires.
"""

import asyncio
from contextlib import suppress
from typing import NamedTuple

from holdfast.core.conversation.json_values import replace_surrogates
from holdfast.core.conversation.tokens import Calibration, calibration_bounds
from holdfast.core.history.events import MAIN, Usage
from holdfast.core.schema import is_integer, is_number
from holdfast.counters.vocabularies import counter_for
from holdfast.dataclass import dataclass
from holdfast.errors import StoreError
from holdfast.session.log.event_log import Clock, now_ms
from holdfast.stores.base import JsonRecord, Store
from holdfast.wire.overflow import is_silently_truncated

MIN_PLAUSIBLE_WINDOW, MAX_PLAUSIBLE_WINDOW = 1_024, 1_000_000_000
"""A number outside this range is no context window: an error message happened to mention it."""
LIMIT_LIFETIME_MS = 24 * 60 * 60 * 1_000
"""How long a limit applies: providers change theirs, and accounts are moved to larger ones."""
LIMIT_REFRESH_MS = 60 * 1_000
"""How often a session looks for what others have learned about a limit meanwhile, also that it is refuted."""

MIN_TRUNCATED_TOKENS = 1_024
"""No server truncates a prompt to less than this; a lower bill that never grows is not real."""
GROWTH_FACTOR, SAME_BILL_FACTOR = 1.05, 1.02
"""Signs of truncation: the sent size grows at least by the first factor, the billed size at most by the second."""
SHARE_TOLERANCE = 0.1
"""How far the billed shares of two requests may differ if the provider counts both in the same way."""


class ServedModel(NamedTuple):
    """A model at an endpoint: what is learned about one says nothing about the same model elsewhere."""

    model: str | None = None
    endpoint: str | None = None
    """The address, without anything secret; None if the caller did not name it."""

    @property
    def key(self) -> str:
        """The name under which a store keeps what is learned."""
        # A client may send any name, and no store takes a NUL or half of a character.
        model = replace_surrogates((self.model or "unknown").replace("\0", "\ufffd"))
        # An endpoint has no spaces, so no other endpoint and model have the same key.
        return f"{self.endpoint} {model}" if self.endpoint else model


@dataclass(frozen=True, slots=True)
class _Limit:
    """A context window that a provider has reported, and when."""

    tokens: int
    learned_ms: int


class UsageCalibrator:
    """Learns from each bill how far our counts are off, and stores it for later sessions."""

    def __init__(self, store: Store, clock: Clock = now_ms) -> None:
        self._store = store
        self._clock = clock
        self._calibrations: dict[ServedModel, Calibration] = {}
        self._limits: dict[ServedModel, tuple[_Limit | None, int]] = {}
        """Each with when it was read or learned."""
        self._last_counted: dict[str, tuple[ServedModel, int]] = {}
        """By scope, the model and our own count of the last request, until its bill arrives."""
        self._largest_accepted: dict[ServedModel, int] = {}
        """The most tokens that were billed, and so accepted, since the session was opened."""
        self._suspected_bills: dict[ServedModel, tuple[int, int]] = {}
        """By model whose last bill was far too low: the size that was sent, and the size that was billed."""

    async def calibration(self, served: ServedModel) -> Calibration:
        """Return the ratio between a model's token counts and ours."""
        known = self._calibrations.get(served)
        if known is None:
            await self._read_learned(served)
            known = self._calibrations[served]
        return known

    async def read_ahead(self, served: ServedModel) -> None:
        """Read what is known about a model before its first request needs it; if that fails, the request does it."""
        with suppress(StoreError):
            await self._read_learned(served)

    def known_calibration(self, served: ServedModel) -> Calibration:
        """Return that ratio as far as it has been read or learned since the session was opened."""
        return self._calibrations.get(served) or Calibration()

    async def provider_limit(self, served: ServedModel) -> int | None:
        """Return the context window that a provider has reported for a model within the last day, or None."""
        known = self._limits.get(served)
        if known is not None and known[0] is None and abs(self._clock() - known[1]) < LIMIT_REFRESH_MS:
            return None  # as for most models
        limit = await self._current_limit(served)
        return None if limit is None or self._is_refuted(served, limit) else limit

    async def _current_limit(self, served: ServedModel) -> int | None:
        """Return the limit that was learned last, here or in another session, unless it has expired."""
        now, known = self._clock(), self._limits.get(served)
        if known is None:
            await self._read_learned(served)
            known = self._limits[served]
        elif abs(now - known[1]) >= LIMIT_REFRESH_MS:  # a clock may jump, so a time that lies ahead expires too
            known = _read_limit(await self._store.get_value(f"limit:{served.key}") or {}), now
            self._limits[served] = known
        limit = known[0]
        return limit.tokens if limit is not None and abs(now - limit.learned_ms) < LIMIT_LIFETIME_MS else None

    def _is_refuted(self, served: ServedModel, limit: int) -> bool:
        """Return whether a larger request was accepted since the session was opened."""
        return limit * SAME_BILL_FACTOR < self._largest_accepted.get(served, 0)

    async def _read_learned(self, served: ServedModel) -> None:
        """Read at once what earlier sessions have learned about a model, except what this one knows already."""
        calibration, limit = await asyncio.gather(
            self._store.get_value(f"calibration:{served.key}"), self._store.get_value(f"limit:{served.key}")
        )
        self._calibrations.setdefault(served, _read_calibration(calibration or {}, _factor_bounds(served)))
        self._limits.setdefault(served, (_read_limit(limit or {}), self._clock()))

    async def learn_refusal(self, served: ServedModel, *, counted: int, size: int | None, limit: int | None) -> None:
        """Learn from a request that was refused as too long: its size and the limit, as far as the provider says."""
        if limit is not None:
            await self._learn_limit(served, limit)
        if size is not None:
            await self._learn_factor(served, counted, size)

    def record_request(self, served: ServedModel, counted: int, scope: str = MAIN) -> None:
        """Keep our count of a request until its bill arrives."""
        self._last_counted[scope] = served, counted

    async def record_usage(self, usage: Usage, scope: str = MAIN) -> None:
        """Learn from the bill for the last request of a scope."""
        reported = usage.all_input_tokens
        if scope not in self._last_counted or not reported:
            return
        served, counted = self._last_counted.pop(scope)
        await self._learn_accepted(served, min(reported, int(counted * _factor_bounds(served)[1])))
        await self._learn_factor(served, counted, reported)

    async def _learn_accepted(self, served: ServedModel, tokens: int) -> None:
        """Learn that a request was accepted, which refutes a lower limit."""
        self._largest_accepted[served] = max(tokens, self._largest_accepted.get(served, 0))
        limit = await self._current_limit(served)
        if limit is not None and tokens > limit * SAME_BILL_FACTOR:
            self._limits[served] = None, self._clock()
            await self._store.put_value(f"limit:{served.key}", {})

    async def _learn_limit(self, served: ServedModel, tokens: int) -> None:
        """Store a context window, unless it cannot be one or a larger request was accepted."""
        if self._is_refuted(served, tokens) or not is_plausible_window(tokens):
            return
        limit = _Limit(tokens, self._clock())
        self._limits[served] = limit, limit.learned_ms
        await self._store.put_value(f"limit:{served.key}", {"tokens": tokens, "learnedMs": limit.learned_ms})

    async def _learn_factor(self, served: ServedModel, counted: int, reported: int) -> None:
        before = await self.calibration(served)
        if await self._may_be_truncated(served, round(counted * before.factor), reported):
            return
        provenance = counter_for(served.model).provenance
        after = before.learn(counted=counted, reported=reported, provenance=provenance)
        if after == before:
            return
        self._calibrations[served] = after
        is_settled = after.factor == before.factor and after.samples > Calibration.SETTLED_SAMPLES
        # One more report of the same is written rarely: it would be a write for every answer.
        if not is_settled or after.samples & (after.samples - 1) == 0:
            fact: JsonRecord = {"factor": after.factor, "samples": after.samples, "spread": after.spread}
            await self._store.put_value(f"calibration:{served.key}", fact)

    async def _may_be_truncated(self, served: ServedModel, counted: int, reported: int) -> bool:
        """Return whether a server may have silently truncated the prompt; its bill then says nothing about counting.

        A single low bill is only a suspicion. If more is sent and no more is billed, the billed size is the context
        window. Bills that rise and fall with the sent size are trusted.
        """
        if not is_silently_truncated(counted=counted, reported=reported):
            self._suspected_bills.pop(served, None)
            return False
        before = self._suspected_bills.get(served)
        self._suspected_bills[served] = counted, reported
        if before is None:
            return True
        is_as_much = before[1] / SAME_BILL_FACTOR <= reported <= before[1] * SAME_BILL_FACTOR
        if is_as_much and counted > before[0] * GROWTH_FACTOR and reported >= MIN_TRUNCATED_TOKENS:
            await self._learn_limit(served, reported)
        share, share_before = reported / counted, before[1] / before[0]
        return is_as_much or abs(share - share_before) > SHARE_TOLERANCE * share_before


def is_plausible_window(tokens: int) -> bool:
    """Return whether a number that a provider has reported can be the context window of a model."""
    return MIN_PLAUSIBLE_WINDOW <= tokens <= MAX_PLAUSIBLE_WINDOW


def _factor_bounds(served: ServedModel) -> tuple[float, float]:
    return calibration_bounds(counter_for(served.model).provenance)


def _read_calibration(fact: JsonRecord, bounds: tuple[float, float]) -> Calibration:
    """Return a stored calibration; one outside the bounds was learned from false reports, so it starts over."""
    factor, samples, spread = fact.get("factor"), fact.get("samples"), fact.get("spread")
    if not is_number(factor) or not is_integer(samples) or not bounds[0] <= factor <= bounds[1]:
        return Calibration()
    return Calibration(factor, samples, float(spread) if is_number(spread) else None)


def _read_limit(fact: JsonRecord) -> _Limit | None:
    """Return a stored limit; one without its time was stored before limits expired, so it has expired."""
    tokens, learned_ms = fact.get("tokens"), fact.get("learnedMs")
    if not is_integer(tokens) or not is_integer(learned_ms) or not is_plausible_window(tokens):
        return None
    return _Limit(tokens, learned_ms)
