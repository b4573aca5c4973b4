"""Earlier sessions, asked along with this one: only those that were named, only their main agent's part, never changed.

Of many sessions those are asked that fit the words best. Together they get a half of the allowance at most.
"""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.history.recall.answer import Recalled
from holdfast.core.history.recall.asking import MIN_TOKENS, Recall
from holdfast.core.history.recall.ranking import telling_words
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import NotInMemoryError
from holdfast.session.keeping import Clock, Keeper
from holdfast.session.recollecting import recollected
from holdfast.stores.base import Store

MOST = 3
"""How many sessions are asked at once."""


class Earlier:
    """The sessions of a store that may be asked."""

    def __init__(self, store: Store, clock: Clock, model: str | None, names: Sequence[str]) -> None:
        self._store, self._clock, self._model = store, clock, model
        self.names = list(dict.fromkeys(names))

    async def missing(self) -> list[str]:
        """Return a note of the sessions that were named and are not there."""
        gone = [name for name in self.names if not await self._store.length(name)]
        return [f"there is no session {', '.join(f'{name!r:.80}' for name in gone[:MOST])}"] if gone else []

    def named_in(self, refs: str) -> str | None:
        """Return the session that all of some references are into; None where there is none."""
        pieces = [piece.strip() for piece in refs.split(",")]
        return next((name for name in self.names if all(piece.startswith(f"{name}#") for piece in pieces)), None)

    async def places(self, asking: Recall) -> Recalled | None:
        """Return what references into an earlier session mean; None where they are not of one of these."""
        name = self.named_in(asking.refs)
        if name is None:
            return None
        found = await self._asked(name, replace(asking, refs=asking.refs.replace(f"{name}#", "#")))
        more = found.more and replace(found.more, refs=", ".join(f"{name}{ref}" for ref in found.more.refs.split(", ")))
        return replace(found, session=name, more=more)

    async def search(self, asking: Recall) -> list[Recalled]:
        """Return what the sessions that fit best have to say, each in an equal share."""
        words = telling_words(" ".join(asking.questions))
        # Each is searched for itself: others of the store, which nobody named, may have the words more often.
        hits = [hit for name in self.names for hit in await self._store.search(words, session=name, limit=1)]
        best = [hit.session for hit in sorted(hits, key=lambda hit: -hit.score)]
        best = best[: min(MOST, asking.max_tokens // 2 // MIN_TOKENS)]
        share = max(MIN_TOKENS, asking.max_tokens // 2 // max(1, len(best)))
        found = [await self._within(name, replace(asking, max_tokens=share)) for name in best]
        return [one for one in found if one and one.excerpts]

    async def _within(self, name: str, asking: Recall) -> Recalled | None:
        """Return what a session has to say under its name, which may be long; None where there is no room for it."""
        counter, asked = counter_for(self._model), asking
        while True:
            found = replace(await self._asked(name, asked), session=name, more=None, asked=asking)
            over = counter.count(str(found)) - asking.max_tokens
            if over <= 0:
                return found
            if asked.max_tokens - over < MIN_TOKENS:
                return None
            asked = replace(asked, max_tokens=asked.max_tokens - over)

    async def _asked(self, name: str, asking: Recall) -> Recalled:
        keeper = Keeper(self._store, name, self._clock)
        await keeper.take_in()
        while True:
            try:
                return await recollected(keeper, keeper.history.context(), asking, self._model)
            except NotInMemoryError as missing:
                await keeper.fetch(missing.positions)
