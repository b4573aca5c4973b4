"""Earlier sessions, asked along with this one: only those that were named, only their main agent's part, never changed.

Of many sessions those are asked that fit the words best. Together they get a half of the allowance at most.
"""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.recall.answer import RecallAnswer
from holdfast.core.recall.query import MIN_RECALL_TOKENS, RecallQuery
from holdfast.core.recall.ranking import search_words
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import NotInMemoryError
from holdfast.session.log.event_log import Clock, SessionLog
from holdfast.session.recall.answer import answer_recall
from holdfast.stores.base import Store

MAX_EARLIER_SESSIONS = 3
"""How many sessions are asked at once."""


class EarlierSessions:
    """The sessions of a store that may be asked."""

    def __init__(self, store: Store, clock: Clock, model: str | None, names: Sequence[str]) -> None:
        self._store, self._clock, self._model = store, clock, model
        self.names = list(dict.fromkeys(names))

    async def missing_notes(self) -> list[str]:
        """Return a note of the sessions that were named and are not there."""
        gone = [name for name in self.names if not await self._store.length(name)]
        return (
            [f"there is no session {', '.join(f'{name!r:.80}' for name in gone[:MAX_EARLIER_SESSIONS])}"]
            if gone
            else []
        )

    def session_of_refs(self, refs: str) -> str | None:
        """Return the session that all of some references are into; None where there is none."""
        pieces = [piece.strip() for piece in refs.split(",")]
        return next((name for name in self.names if all(piece.startswith(f"{name}#") for piece in pieces)), None)

    async def answer_references(self, query: RecallQuery) -> RecallAnswer | None:
        """Return what references into an earlier session mean; None where they are not of one of these."""
        name = self.session_of_refs(query.refs)
        if name is None:
            return None
        found = await self._answer_from(name, replace(query, refs=query.refs.replace(f"{name}#", "#")))
        more = found.next_query and replace(
            found.next_query, refs=", ".join(f"{name}{ref}" for ref in found.next_query.refs.split(", "))
        )
        return replace(found, session=name, next_query=more)

    async def search(self, query: RecallQuery) -> list[RecallAnswer]:
        """Return what the sessions that fit best have to say, each in an equal share."""
        words = search_words(" ".join(query.questions))
        # Each is searched for itself: others of the store, which nobody named, may have the words more often.
        hits = [hit for name in self.names for hit in await self._store.search(words, session=name, limit=1)]
        best = [hit.session for hit in sorted(hits, key=lambda hit: -hit.score)]
        best = best[: min(MAX_EARLIER_SESSIONS, query.max_tokens // 2 // MIN_RECALL_TOKENS)]
        share = max(MIN_RECALL_TOKENS, query.max_tokens // 2 // max(1, len(best)))
        found = [await self._answer_within(name, replace(query, max_tokens=share)) for name in best]
        return [one for one in found if one and one.excerpts]

    async def _answer_within(self, name: str, query: RecallQuery) -> RecallAnswer | None:
        """Return what a session has to say under its name, which may be long; None where there is no room for it."""
        counter, asked = counter_for(self._model), query
        while True:
            found = replace(await self._answer_from(name, asked), session=name, next_query=None, query=query)
            over = counter.count(str(found)) - query.max_tokens
            if over <= 0:
                return found
            if asked.max_tokens - over < MIN_RECALL_TOKENS:
                return None
            asked = replace(asked, max_tokens=asked.max_tokens - over)

    async def _answer_from(self, name: str, query: RecallQuery) -> RecallAnswer:
        keeper = SessionLog(self._store, name, self._clock)
        await keeper.refresh()
        while True:
            try:
                return await answer_recall(keeper, keeper.history.context(), query, self._model)
            except NotInMemoryError as missing:
                await keeper.load_messages(missing.positions)
