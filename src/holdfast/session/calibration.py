"""What providers' own counts have taught about ours, kept for the model and not for the conversation."""

from holdfast.core.conversation.tokens import Calibration
from holdfast.core.history.events import Usage
from holdfast.stores.base import Store
from holdfast.wire.overflow import is_silently_truncated

MIN_PLAUSIBLE_WINDOW, MAX_PLAUSIBLE_WINDOW = 512, 1_000_000_000
"""What is smaller or larger is no window: a number that a message happened to mention."""

CALIBRATION_KEY_PREFIX = "calibration:"
MIN_TRUNCATED_TOKENS = 1_024
"""No server cuts what it is sent to less than this; a lower bill that never grows is somebody's invention."""
GROWTH_FACTOR, SAME_BILL_FACTOR = 1.05, 1.02
"""What is sent has grown by this at least, and what is billed by this at most, where a server cuts what it is sent."""
SHARE_TOLERANCE = 0.1
"""How far two bills may differ from what was sent, each beside the other, for both to be of one way to count."""


class UsageCalibrator:
    """Learns from each bill how far our counting is off, and remembers it for the next session too."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._calibrations: dict[str, Calibration] = {}
        self._limits: dict[str, int | None] = {}
        self._last_counted: tuple[str, int] | None = None
        """The model and our own count of the last request."""
        self._suspected_bills: dict[str, tuple[int, int]] = {}
        """Of models whose last bill was for far less than was sent, what was sent and billed."""

    async def calibration(self, model: str | None) -> Calibration:
        """Return what is known of a model's counts."""
        key = _calibration_key(model)
        if key not in self._calibrations:
            fact = await self._store.get_value(key) or {}
            factor, samples, spread = fact.get("factor"), fact.get("samples"), fact.get("spread")
            self._calibrations[key] = Calibration()
            if isinstance(factor, int | float) and isinstance(samples, int):
                measured = float(spread) if isinstance(spread, int | float) else None
                self._calibrations[key] = Calibration(factor, samples, measured)
        return self._calibrations[key]

    async def provider_limit(self, model: str | None) -> int | None:
        """Return the window that a provider has named for a model, if it ever did."""
        key = f"limit:{model or 'unknown'}"
        if key not in self._limits:
            tokens = (await self._store.get_value(key) or {}).get("tokens")
            self._limits[key] = tokens if isinstance(tokens, int) and is_plausible_window(tokens) else None
        return self._limits[key]

    async def learn_limit(self, model: str | None, tokens: int) -> None:
        """Remember the window that a provider has named."""
        if not is_plausible_window(tokens):
            return
        key = f"limit:{model or 'unknown'}"
        self._limits[key] = tokens
        await self._store.put_value(key, {"tokens": tokens})

    def record_request(self, model: str | None, counted: int) -> None:
        """Remember what a request counted as, until its bill comes."""
        self._last_counted = _calibration_key(model), counted

    async def record_usage(self, usage: Usage) -> None:
        """Learn from a bill, if it is for a request that was counted."""
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
        """Return whether a bill may be for a prompt that was cut without a word: it then says nothing about counting.

        Once nobody knows. Where more is sent and no more is billed, what is billed is the window. It is believed where
        it goes up and down with what is sent.
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
    """Return whether a number that a provider has named can be what its model takes in."""
    return MIN_PLAUSIBLE_WINDOW <= tokens <= MAX_PLAUSIBLE_WINDOW


def _calibration_key(model: str | None) -> str:
    return f"{CALIBRATION_KEY_PREFIX}{model or 'unknown'}"
