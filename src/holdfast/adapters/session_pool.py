"""The open sessions of an adapter: an agent serves many conversations, and each has a session.

The pool opens the session of each conversation once and closes the least recently used ones. The messages of a closed
session remain in the store, unless it is a private store in memory, which then deletes them.

A session belongs to one event loop. Engines for durable workflows run an agent again on a loop of their own, so the
pool opens a conversation once for each loop; sessions of a loop that has ended go over to the next one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from holdfast.adapters.framework_conversation import FrameworkConversation
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Budget
from holdfast.errors import SettingsError
from holdfast.models.base import Summarizer
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.session import Session, SessionOpener
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


def _opener(options: SessionOptions, session_id: str, store: str | Store) -> SessionOpener:
    return Session.open(
        session_id,
        store=store,
        policy=options.policy or "default",
        summarizer=options.summarizer,
        compaction=options.compaction,
    )


def check_budget(budget: int | Budget | None) -> int | Budget | None:
    """Return a budget; raises a `SettingsError` for one that cannot hold a conversation."""
    Budget.resolve(user=budget)
    return budget


PooledT = TypeVar("PooledT", bound=FrameworkConversation[Any])


class _LoopSessions(Generic[PooledT]):
    """What is open on one event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.conversations: OrderedDict[str, PooledT] = OrderedDict()
        self.lock = asyncio.Lock()


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
        if session is None:
            # Opens nothing, but refuses wrong options here and not only when the first run begins.
            _opener(options, "options", options.store or "memory://")
        self._options = options
        self._make = make
        self._format = format
        self._fixed = make(self._check_format(session)) if session is not None else None
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopSessions[PooledT]] = {}
        self._memory_store = MemoryStore() if options.store in {None, "memory://"} else None
        """A private store in memory, which all loops share."""

    def __getstate__(self) -> object:
        """Raise a `TypeError` that says what to do: an open session can be neither copied nor pickled."""
        if self.conversations:
            problem = "holds open sessions, which can be neither copied nor pickled; make a new one with the same store"
            raise TypeError(f"the adapter {problem}")
        return super().__getstate__()

    @property
    def conversations(self) -> list[PooledT]:
        """All conversations whose sessions are open."""
        opened = [one for each in list(self._by_loop.values()) for one in each.conversations.values()]
        return [*([self._fixed] if self._fixed else []), *opened]

    async def conversation(self, session_id: str) -> PooledT:
        """Return a conversation; open its session first if necessary."""
        if self._fixed is not None and session_id == self._fixed.session.id:
            return self._fixed
        here = self._loop_sessions()
        async with here.lock:
            known = here.conversations.get(session_id)
            if known is None:
                opened = self._check_format(await self._open_session(session_id, here.store))
                known = here.conversations[session_id] = self._make(opened)
                await self._close_idle(here, known)
            here.conversations.move_to_end(session_id)
            return known

    async def close(self) -> None:
        """Close what the pool has opened; a session or a store that was passed in stays open."""
        here = asyncio.get_running_loop()
        for loop, opened in list(self._by_loop.items()):
            if loop is here:
                await self._close_all(opened)
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(self._close_all(opened), loop)
                await asyncio.wrap_future(closing)
            elif loop.is_closed():
                opened.lock = asyncio.Lock()
                await self._close_all(opened)
            else:
                # It stands still between two calls of `run_until_complete`, as pydantic-ai's `run_sync` leaves it.
                await asyncio.to_thread(loop.run_until_complete, self._close_all(opened))
        self._by_loop.clear()

    async def _close_all(self, opened: _LoopSessions[PooledT]) -> None:
        async with opened.lock:
            while opened.conversations:
                _, conversation = opened.conversations.popitem(last=False)
                await conversation.session.close()
            if isinstance(self._options.store, str | None) and opened.store is not self._memory_store:
                await opened.store.close()

    def _loop_sessions(self) -> _LoopSessions[PooledT]:
        """Return what is open on the running loop, or was open on one that has ended."""
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            ended = next((one for one in self._by_loop if one.is_closed()), None)
            if ended is not None:
                self._by_loop[loop] = self._by_loop.pop(ended)
                self._by_loop[loop].lock = asyncio.Lock()
            else:
                self._by_loop[loop] = _LoopSessions(
                    self._memory_store or open_store(self._options.store or "memory://")
                )
        return self._by_loop[loop]

    async def _open_session(self, session_id: str, store: Store) -> Session:
        if self._fixed is not None:
            return await self._fixed.session.open_sibling(session_id)
        return await _opener(self._options, session_id, store)

    async def _close_idle(self, here: _LoopSessions[PooledT], newest: PooledT) -> None:
        """Close the idle conversations that are too many; the newest has no run yet, but will have one."""
        others = [(session_id, one) for session_id, one in here.conversations.items() if one is not newest]
        idle = [session_id for session_id, one in others if not one.is_in_use]
        for session_id in idle[: max(0, len(here.conversations) - MAX_OPEN_SESSIONS)]:
            await here.conversations.pop(session_id).session.close()
            if self._memory_store is not None and len(self._by_loop) == 1:
                await self._memory_store.delete(session_id)

    def _check_format(self, session: Session) -> Session:
        known = session.history.format or self._format
        if known != self._format:
            problem = f"session {session.id!r} has the format {known}; copy it into a new session with convert()"
            raise SettingsError("format", problem)
        return session
