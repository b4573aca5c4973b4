"""The conversations that runs take part in, each opened once.

An agent serves many conversations, so those that nobody has taken part in for longest are closed again. What was said
is in the store; only a store in memory, which nobody else can read, forgets them with that.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields

from holdfast.adapters.pydantic_ai.conversation import AgentConversation
from holdfast.adapters.pydantic_ai.natives import SESSION_FORMAT
from holdfast.core.planning.policy import Policy
from holdfast.errors import SettingsError
from holdfast.models.base import Summarizer
from holdfast.session.compactor import CompactionOptions
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

MAX_OPEN_SESSIONS = 256
"""How many conversations stay open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How sessions are opened, as `Session.open` takes it."""

    store: str | Store | None = None
    policy: str | Policy | None = None
    summarizer: str | Summarizer | None = None
    compaction: CompactionOptions | None = None


class SessionPool:
    """Conversations by the ids of their sessions."""

    def __init__(self, options: SessionOptions, session: Session | None = None) -> None:
        for setting in fields(options):
            if session is not None and getattr(options, setting.name) is not None:
                raise SettingsError(setting.name, "is the open session's own; give it where you open that")
        self._options = options
        self._fixed = AgentConversation(_check_session_format(session)) if session is not None else None
        self._store: Store | None = None
        self._conversations: OrderedDict[str, AgentConversation] = OrderedDict()
        self._open_lock = asyncio.Lock()

    @property
    def sessions(self) -> Mapping[str, Session]:
        """All sessions that are open, by id."""
        everybody = [*([self._fixed] if self._fixed else []), *self._conversations.values()]
        return {one.session.id: one.session for one in everybody}

    @property
    def busy_ids(self) -> list[str]:
        """The ids of sessions that a run takes part in."""
        everybody = [*([self._fixed] if self._fixed else []), *self._conversations.values()]
        return [one.session.id for one in everybody if one.active_runs]

    async def conversation(self, session_id: str) -> AgentConversation:
        """Return a conversation, opened now or before."""
        if self._fixed is not None and session_id == self._fixed.session.id:
            return self._fixed
        async with self._open_lock:
            known = self._conversations.get(session_id)
            if known is None:
                known = self._conversations[session_id] = AgentConversation(
                    _check_session_format(await self._open_session(session_id))
                )
                await self._close_idle()
            self._conversations.move_to_end(session_id)
            return known

    async def close(self) -> None:
        """Close what was opened here; what was given stays open."""
        async with self._open_lock:
            while self._conversations:
                _, conversation = self._conversations.popitem(last=False)
                await conversation.session.close()
            if self._store is not None and isinstance(self._options.store, str | None):
                await self._store.close()
                self._store = None

    async def _open_session(self, session_id: str) -> Session:
        if self._fixed is not None:
            return await self._fixed.session.open_sibling(session_id)
        how = self._options
        if self._store is None:
            self._store = open_store(how.store or "memory://")
        return await Session.open(
            session_id,
            store=self._store,
            policy=how.policy or "default",
            summarizer=how.summarizer,
            compaction=how.compaction,
        )

    async def _close_idle(self) -> None:
        idle = [session_id for session_id, one in self._conversations.items() if not one.active_runs]
        for session_id in idle[: max(0, len(self._conversations) - MAX_OPEN_SESSIONS)]:
            await self._conversations.pop(session_id).session.close()
            if isinstance(self._store, MemoryStore) and not isinstance(self._options.store, MemoryStore):
                await self._store.delete(session_id)


def _check_session_format(session: Session) -> Session:
    """Return a session if its messages are pydantic-ai's."""
    spoken = session.history.format or SESSION_FORMAT
    if spoken != SESSION_FORMAT:
        raise SettingsError(
            "format", f"session {session.id!r} speaks {spoken}; bring it into another one with convert()"
        )
    return session
