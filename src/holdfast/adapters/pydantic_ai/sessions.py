"""The conversations that runs take part in, each opened once.

An agent serves many conversations, so those that nobody has taken part in for longest are closed again. What was said
is in the store; only a store in memory, which nobody else can read, forgets them with that.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields

from holdfast.adapters.pydantic_ai.conversation import Conversation
from holdfast.adapters.pydantic_ai.natives import FORMAT
from holdfast.core.planning.policy import Policy
from holdfast.errors import SettingsError
from holdfast.models.base import Writer
from holdfast.session.compactor import Compaction
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

MOST = 256
"""How many conversations stay open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """How sessions are opened, as `Session.open` takes it."""

    store: str | Store | None = None
    policy: str | Policy | None = None
    summariser: str | Writer | None = None
    compaction: Compaction | None = None


class Sessions:
    """Conversations by the ids of their sessions."""

    def __init__(self, how: Opened, given: Session | None = None) -> None:
        for setting in fields(how):
            if given is not None and getattr(how, setting.name) is not None:
                raise SettingsError(setting.name, "is the open session's own; give it where you open that")
        self._how = how
        self._given = Conversation(_speaking(given)) if given is not None else None
        self._store: Store | None = None
        self._open: OrderedDict[str, Conversation] = OrderedDict()
        self._opening = asyncio.Lock()

    @property
    def sessions(self) -> Mapping[str, Session]:
        """All sessions that are open, by id."""
        everybody = [*([self._given] if self._given else []), *self._open.values()]
        return {one.session.id: one.session for one in everybody}

    @property
    def busy(self) -> list[str]:
        """The ids of sessions that a run takes part in."""
        everybody = [*([self._given] if self._given else []), *self._open.values()]
        return [one.session.id for one in everybody if one.runs]

    async def conversation(self, session_id: str) -> Conversation:
        """Return a conversation, opened now or before."""
        if self._given is not None and session_id == self._given.session.id:
            return self._given
        async with self._opening:
            known = self._open.get(session_id)
            if known is None:
                known = self._open[session_id] = Conversation(_speaking(await self._opened(session_id)))
                await self._close_idle()
            self._open.move_to_end(session_id)
            return known

    async def close(self) -> None:
        """Close what was opened here; what was given stays open."""
        async with self._opening:
            while self._open:
                _, conversation = self._open.popitem(last=False)
                await conversation.session.close()
            if self._store is not None and isinstance(self._how.store, str | None):
                await self._store.close()
                self._store = None

    async def _opened(self, session_id: str) -> Session:
        if self._given is not None:
            return await self._given.session.beside(session_id)
        how = self._how
        if self._store is None:
            self._store = open_store(how.store or "memory://")
        return await Session.open(
            session_id,
            store=self._store,
            policy=how.policy or "default",
            summariser=how.summariser,
            compaction=how.compaction,
        )

    async def _close_idle(self) -> None:
        idle = [session_id for session_id, one in self._open.items() if not one.runs]
        for session_id in idle[: max(0, len(self._open) - MOST)]:
            await self._open.pop(session_id).session.close()
            if isinstance(self._store, MemoryStore) and not isinstance(self._how.store, MemoryStore):
                await self._store.delete(session_id)


def _speaking(session: Session) -> Session:
    """Return a session if its messages are pydantic-ai's."""
    spoken = session.history.format or FORMAT
    if spoken != FORMAT:
        raise SettingsError(
            "format", f"session {session.id!r} speaks {spoken}; bring it into another one with convert()"
        )
    return session
