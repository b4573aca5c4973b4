"""What providers' own counts have taught about ours, kept for the model and not for the conversation."""

from holdfast.core.conversation.tokens import Calibration
from holdfast.core.history.events import Usage
from holdfast.stores.base import Store
from holdfast.wire.overflow import is_silently_truncated

LEAST_WINDOW, MOST_WINDOW = 512, 1_000_000_000
"""What is smaller or larger is no window: a number that a message happened to mention."""

CALIBRATION = "calibration:"
LEAST_CUT = 1_024
"""No server cuts what it is sent to less than this; a lower bill that never grows is somebody's invention."""
GROWN, AS_MUCH = 1.05, 1.02
"""What is sent has grown by this at least, and what is billed by this at most, where a server cuts what it is sent."""
ALIKE = 0.1
"""How far two bills may differ from what was sent, each beside the other, for both to be of one way to count."""


class Meter:
    """Learns from each bill how far our counting is off, and remembers it for the next session too."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Calibration] = {}
        self._limits: dict[str, int | None] = {}
        self._last: tuple[str, int] | None = None
        """The model and our own count of the last request."""
        self._suspected: dict[str, tuple[int, int]] = {}
        """Of models whose last bill was for far less than was sent, what was sent and billed."""

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
            self._limits[key] = tokens if isinstance(tokens, int) and is_window(tokens) else None
        return self._limits[key]

    async def learn_limit(self, model: str | None, tokens: int) -> None:
        """Remember the window that a provider has named."""
        if not is_window(tokens):
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
        if await self._is_suspect(key, round(counted * before.factor), reported):
            return
        after = before.learn(counted=counted, reported=reported)
        if after != before:
            self._known[key] = after
            await self._store.put_fact(key, {"factor": after.factor, "samples": after.samples, "spread": after.spread})

    async def _is_suspect(self, key: str, counted: int, reported: int) -> bool:
        """Return whether a bill may be for a prompt that was cut without a word: it then says nothing about counting.

        Once nobody knows. Where more is sent and no more is billed, what is billed is the window. It is believed where
        it goes up and down with what is sent.
        """
        if not is_silently_truncated(counted=counted, reported=reported):
            self._suspected.pop(key, None)
            return False
        before = self._suspected.get(key)
        self._suspected[key] = counted, reported
        if before is None:
            return True
        is_as_much = before[1] / AS_MUCH <= reported <= before[1] * AS_MUCH
        if is_as_much and counted > before[0] * GROWN and reported >= LEAST_CUT:
            await self.learn_limit(key.removeprefix(CALIBRATION), reported)
        share, share_before = reported / counted, before[1] / before[0]
        return is_as_much or abs(share - share_before) > ALIKE * share_before


def is_window(tokens: int) -> bool:
    """Return whether a number that a provider has named can be what its model takes in."""
    return LEAST_WINDOW <= tokens <= MOST_WINDOW


def _key(model: str | None) -> str:
    return f"{CALIBRATION}{model or 'unknown'}"
