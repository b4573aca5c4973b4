"""Learns from providers' bills how far our token counts are off, and stores that by model for later sessions."""

from holdfast.core.conversation.tokens import Calibration
from holdfast.core.history.events import Usage
from holdfast.stores.base import Store
from holdfast.wire.overflow import is_silently_truncated

MIN_PLAUSIBLE_WINDOW, MAX_PLAUSIBLE_WINDOW = 512, 1_000_000_000
"""A number outside this range is no context window: an error message happened to mention it."""

CALIBRATION_KEY_PREFIX = "calibration:"
MIN_TRUNCATED_TOKENS = 1_024
"""No server truncates a prompt to less than this; a lower bill that never grows is not real."""
GROWTH_FACTOR, SAME_BILL_FACTOR = 1.05, 1.02
"""Signs of truncation: the sent size grows at least by the first factor, the billed size at most by the second."""
SHARE_TOLERANCE = 0.1
"""How far the billed shares of two requests may differ if the provider counts both in the same way."""


class UsageCalibrator:
    """Learns from each bill how far our counts are off, and stores it for later sessions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._calibrations: dict[str, Calibration] = {}
        self._limits: dict[str, int | None] = {}
        self._last_counted: tuple[str, int] | None = None
        """The model and our own count of the last request."""
        self._suspected_bills: dict[str, tuple[int, int]] = {}
        """By model whose last bill was far too low: the size that was sent, and the size that was billed."""

    async def calibration(self, model: str | None) -> Calibration:
        """Return the ratio between a model's token counts and ours."""
        key = f"{CALIBRATION_KEY_PREFIX}{model or 'unknown'}"
        if key not in self._calibrations:
            fact = await self._store.get_value(key) or {}
            factor, samples, spread = fact.get("factor"), fact.get("samples"), fact.get("spread")
            self._calibrations[key] = Calibration()
            if isinstance(factor, int | float) and isinstance(samples, int):
                measured = float(spread) if isinstance(spread, int | float) else None
                self._calibrations[key] = Calibration(factor, samples, measured)
        return self._calibrations[key]

    async def provider_limit(self, model: str | None) -> int | None:
        """Return the context window that a provider has reported for a model, or None."""
        key = f"limit:{model or 'unknown'}"
        if key not in self._limits:
            tokens = (await self._store.get_value(key) or {}).get("tokens")
            self._limits[key] = tokens if isinstance(tokens, int) and is_plausible_window(tokens) else None
        return self._limits[key]

    async def learn_limit(self, model: str | None, tokens: int) -> None:
        """Store the context window that a provider has reported."""
        if not is_plausible_window(tokens):
            return
        key = f"limit:{model or 'unknown'}"
        self._limits[key] = tokens
        await self._store.put_value(key, {"tokens": tokens})

    def record_request(self, model: str | None, counted: int) -> None:
        """Keep our count of a request until its bill arrives."""
        self._last_counted = f"{CALIBRATION_KEY_PREFIX}{model or 'unknown'}", counted

    async def record_usage(self, usage: Usage) -> None:
        """Learn from a bill for a request that was counted."""
        reported = usage.all_input_tokens
        if self._last_counted is None or not reported:
            return
        (key, counted), self._last_counted = self._last_counted, None
        before = self._calibrations.get(key, Calibration())
        if await self._may_be_truncated(key, round(counted * before.factor), reported):
            return
        after = before.learn(counted=counted, reported=reported)
        if after != before:
            self._calibrations[key] = after
            await self._store.put_value(key, {"factor": after.factor, "samples": after.samples, "spread": after.spread})

    async def _may_be_truncated(self, key: str, counted: int, reported: int) -> bool:
        """Return whether a server may have silently truncated the prompt; its bill then says nothing about counting.

        A single low bill is only a suspicion. If more is sent and no more is billed, the billed size is the context
        window. Bills that rise and fall with the sent size are trusted.
        """
        if not is_silently_truncated(counted=counted, reported=reported):
            self._suspected_bills.pop(key, None)
            return False
        before = self._suspected_bills.get(key)
        self._suspected_bills[key] = counted, reported
        if before is None:
            return True
        is_as_much = before[1] / SAME_BILL_FACTOR <= reported <= before[1] * SAME_BILL_FACTOR
        if is_as_much and counted > before[0] * GROWTH_FACTOR and reported >= MIN_TRUNCATED_TOKENS:
            await self.learn_limit(key.removeprefix(CALIBRATION_KEY_PREFIX), reported)
        share, share_before = reported / counted, before[1] / before[0]
        return is_as_much or abs(share - share_before) > SHARE_TOLERANCE * share_before


def is_plausible_window(tokens: int) -> bool:
    """Return whether a number that a provider has reported can be the context window of a model."""
    return MIN_PLAUSIBLE_WINDOW <= tokens <= MAX_PLAUSIBLE_WINDOW
