"""The open sessions of an adapter: an agent serves many conversations, and each has a session.

The pool opens the session of each conversation once and closes the least recently used ones. The messages of a closed
session remain in the store, unless it is a private store in memory, which then deletes them.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Generic, Protocol, TypeVar

from holdfast.core.planning.policy import Policy
from holdfast.errors import SettingsError
from holdfast.models.base import Summarizer
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

MAX_OPEN_SESSIONS = 256
"""How many sessions stay open at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The options of `Session.open` that all sessions share."""

    store: str | Store | None = None
    policy: str | Policy | None = None
    summarizer: str | Summarizer | None = None
    compaction: CompactionOptions | None = None


class PooledConversation(Protocol):
    """A framework's conversation in a session."""

    session: Session
    active_runs: int
    """How many runs use it: it is not closed meanwhile."""


PooledT = TypeVar("PooledT", bound=PooledConversation)


class SessionPool(Generic[PooledT]):
    """Open conversations by the ids of their sessions."""

    def __init__(
        self,
        options: SessionOptions,
        make: Callable[[Session], PooledT],
        *,
        format: str,  # noqa: A002 - the word users say
        session: Session | None = None,
    ) -> None:
        """`make` returns the conversation of a session, whose messages have a format."""
        for setting in fields(options):
            if session is not None and getattr(options, setting.name) is not None:
                raise SettingsError(setting.name, "cannot be combined with an open session; pass it to Session.open")
        self._options = options
        self._make = make
        self._format = format
        self._fixed = make(self._check_format(session)) if session is not None else None
        self._store: Store | None = None
        self._conversations: OrderedDict[str, PooledT] = OrderedDict()
        self._open_lock = asyncio.Lock()

    @property
    def conversations(self) -> list[PooledT]:
        """All conversations whose sessions are open."""
        return [*([self._fixed] if self._fixed else []), *self._conversations.values()]

    async def conversation(self, session_id: str) -> PooledT:
        """Return a conversation; open its session first if necessary."""
        if self._fixed is not None and session_id == self._fixed.session.id:
            return self._fixed
        async with self._open_lock:
            known = self._conversations.get(session_id)
            if known is None:
                opened = self._check_format(await self._open_session(session_id))
                known = self._conversations[session_id] = self._make(opened)
                await self._close_idle()
            self._conversations.move_to_end(session_id)
            return known

    async def close(self) -> None:
        """Close what the pool has opened; a session or a store that was passed in stays open."""
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
        options = self._options
        if self._store is None:
            self._store = open_store(options.store or "memory://")
        return await Session.open(
            session_id,
            store=self._store,
            policy=options.policy or "default",
            summarizer=options.summarizer,
            compaction=options.compaction,
        )

    async def _close_idle(self) -> None:
        idle = [session_id for session_id, one in self._conversations.items() if not one.active_runs]
        for session_id in idle[: max(0, len(self._conversations) - MAX_OPEN_SESSIONS)]:
            await self._conversations.pop(session_id).session.close()
            if isinstance(self._store, MemoryStore) and not isinstance(self._options.store, MemoryStore):
                await self._store.delete(session_id)

    def _check_format(self, session: Session) -> Session:
        known = session.history.format or self._format
        if known != self._format:
            problem = f"session {session.id!r} has the format {known}; copy it into a new session with convert()"
            raise SettingsError("format", problem)
        return session
