"""Recall from earlier sessions.

A query reads only sessions that it names and only messages of their main agents, and it writes nothing. If it names
many sessions, those that match its words best are searched. Together they get at most half of the token budget.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.recall.answer import RecallAnswer
from holdfast.core.recall.query import MIN_RECALL_TOKENS, RecallQuery
from holdfast.core.recall.ranking import search_words
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import NotInMemoryError
from holdfast.session.log.event_log import Clock, SessionLog
from holdfast.session.recall.answerer import answer_recall
from holdfast.stores.base import Store

MAX_EARLIER_SESSIONS = 3
"""How many sessions one query searches."""


class EarlierSessions:
    """The other sessions that a query may search."""

    def __init__(self, store: Store, clock: Clock, model: str | None, names: Sequence[str]) -> None:
        self._store, self._clock, self._model = store, clock, model
        self.names = list(dict.fromkeys(names))

    async def missing_notes(self) -> list[str]:
        """Return a note about named sessions that do not exist."""
        gone = [f"{name!r:.80}" for name in self.names if not await self._store.length(name)]
        return [f"there is no session {', '.join(gone[:MAX_EARLIER_SESSIONS])}"] if gone else []

    def session_of_refs(self, refs: str) -> str | None:
        """Return the session that all references point into, or None."""
        # The longest first: an id may begin with another one and `#`.
        longest_first = sorted(self.names, key=len, reverse=True)
        return next((name for name in longest_first if _own_refs(refs, name)), None)

    async def answer_references(self, query: RecallQuery) -> RecallAnswer | None:
        """Return the messages that references into an earlier session name, or None if they point into none."""
        name = self.session_of_refs(query.refs)
        if name is None:
            return None
        found = await self._answer_from(name, replace(query, refs=_own_refs(query.refs, name)))
        more = found.next_query and replace(
            found.next_query, refs=", ".join(f"{name}{ref}" for ref in found.next_query.refs.split(", "))
        )
        return replace(found, session=name, next_query=more)

    async def search(self, query: RecallQuery) -> list[RecallAnswer]:
        """Return the answers of the sessions that match best, each within an equal share of the budget."""
        words = search_words(" ".join(query.questions))
        # Search each session separately: in a common search, sessions that were not named could crowd these out.
        hits = [hit for name in self.names for hit in await self._store.search(words, session=name, limit=1)]
        best = [hit.session for hit in sorted(hits, key=lambda hit: -hit.score)]
        best = best[: min(MAX_EARLIER_SESSIONS, query.max_tokens // 2 // MIN_RECALL_TOKENS)]
        share = max(MIN_RECALL_TOKENS, query.max_tokens // 2 // max(1, len(best)))
        found = [await self._answer_within(name, replace(query, max_tokens=share)) for name in best]
        return [one for one in found if one and one.excerpts]

    async def _answer_within(self, name: str, query: RecallQuery) -> RecallAnswer | None:
        """Return a session's answer with the session's name, or None if it does not fit."""
        counter, asked = counter_for(self._model), query
        while True:
            found = replace(await self._answer_from(name, asked), session=name, next_query=None, query=query)
            excess = counter.count(str(found)) - query.max_tokens
            if excess <= 0:
                return found
            if asked.max_tokens - excess < MIN_RECALL_TOKENS:
                return None
            asked = replace(asked, max_tokens=asked.max_tokens - excess)

    async def _answer_from(self, name: str, query: RecallQuery) -> RecallAnswer:
        session_log = SessionLog(self._store, name, self._clock)
        await session_log.refresh()
        while True:
            try:
                return await answer_recall(session_log, session_log.history.context(), query, self._model)
            except NotInMemoryError as missing:
                await session_log.load_messages(missing.positions)


def _own_refs(refs: str, name: str) -> str:
    """Return references into a session as it writes them itself; empty if one of them points elsewhere.

    The id may hold commas, which also stand between references.
    """
    prefix = f"{name}#"
    pieces = [piece.strip() for piece in re.split(rf",\s*(?={re.escape(prefix)})", refs)]
    is_own = all(piece.startswith(prefix) and "," not in piece.replace(prefix, "#") for piece in pieces)
    return ", ".join(piece.replace(prefix, "#") for piece in pieces) if is_own else ""
