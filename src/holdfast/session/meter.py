"""What providers' own counts have taught about ours, kept for the model and not for the conversation."""

from holdfast.core.conversation.tokens import Calibration
from holdfast.core.history.events import Usage
from holdfast.stores.base import Store

LEAST_WINDOW = 512
"""What is smaller is no window: a number that a message happened to mention."""


class Meter:
    """Learns from each bill how far our counting is off, and remembers it for the next session too."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Calibration] = {}
        self._limits: dict[str, int | None] = {}
        self._last: tuple[str, int] | None = None
        """The model and our own count of the last request."""

    async def calibration(self, model: str | None) -> Calibration:
        """Return what is known of a model's counts."""
        key = _key(model)
        if key not in self._known:
            fact = await self._store.get_fact(key) or {}
            factor, samples, spread = fact.get("factor"), fact.get("samples"), fact.get("spread")
            self._known[key] = Calibration()
            if isinstance(factor, int | float) and isinstance(samples, int):
                measured = float(spread) if isinstance(spread, int | float) else None
                self._known[key] = Calibration(factor, samples, measured)
        return self._known[key]

    async def limit(self, model: str | None) -> int | None:
        """Return the window that a provider has named for a model, if it ever did."""
        key = f"limit:{model or 'unknown'}"
        if key not in self._limits:
            tokens = (await self._store.get_fact(key) or {}).get("tokens")
            self._limits[key] = tokens if isinstance(tokens, int) and tokens >= LEAST_WINDOW else None
        return self._limits[key]

    async def learn_limit(self, model: str | None, tokens: int) -> None:
        """Remember the window that a provider has named."""
        if tokens < LEAST_WINDOW:
            return
        key = f"limit:{model or 'unknown'}"
        self._limits[key] = tokens
        await self._store.put_fact(key, {"tokens": tokens})

    def sent(self, model: str | None, counted: int) -> None:
        """Remember what a request counted as, until its bill comes."""
        self._last = _key(model), counted

    async def billed(self, usage: Usage) -> None:
        """Learn from a bill, if it is for a request that was counted."""
        reported = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        if self._last is None or not reported:
            return
        (key, counted), self._last = self._last, None
        before = self._known.get(key, Calibration())
        after = before.learn(counted=counted, reported=reported)
        if after != before:
            self._known[key] = after
            await self._store.put_fact(key, {"factor": after.factor, "samples": after.samples, "spread": after.spread})


def _key(model: str | None) -> str:
    return f"calibration:{model or 'unknown'}"
