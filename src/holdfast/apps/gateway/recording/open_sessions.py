"""The sessions that a gateway holds open, and what is known about each beside its log."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.apps.gateway.recording.client_list import MAIN_AGENT, MAX_SIDE_LISTS, AgentList
from holdfast.apps.gateway.recording.governing import GoverningChoice
from holdfast.apps.gateway.recording.identity import Agent, AnswerIndex, Chain
from holdfast.apps.gateway.upstream_summarizer import UpstreamSummarizer
from holdfast.core.history.events import CompactionCompleted
from holdfast.core.planning.policy import Policy
from holdfast.errors import HoldfastError
from holdfast.session.calibration import ServedModel
from holdfast.session.session import Session, SessionOpener
from holdfast.stores.base import JsonRecord, Store, session_value_key
from holdfast.wire.answers import JsonMapping, Wire

T = TypeVar("T")
NO_MODEL = ServedModel()


class StoredValues(NamedTuple):
    """What is stored about a session beside its log."""

    client: JsonRecord | None
    """Who speaks in it."""
    governing: JsonRecord | None
    """How it is governed."""


@dataclass(slots=True)
class OpenSession:
    """A session that the recorder holds open."""

    id: str
    session: Session
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request is compared and recorded, never while the upstream answers."""
    agent_lists: dict[str, AgentList] = field(default_factory=dict[str, AgentList])
    delegates: AsyncExitStack = field(default_factory=AsyncExitStack)
    side_hashes: deque[bytes] = field(default_factory=lambda: deque[bytes](maxlen=MAX_SIDE_LISTS))
    """The hashes of the answers of the last side calls."""
    unsaved_hash: bytes | None = None
    """The hash of the last answer, while only memory has it."""
    response_ends: dict[str, tuple[int, bytes]] = field(default_factory=dict[str, tuple[int, bytes]])
    """By the id of a response that the provider keeps, how many messages the chain had after it, and its last hash."""
    window: str | None = None
    """Which window of its conversation the client was in."""
    events_read: int = 0
    """How many events its log had read when the list of the main agent was compared with it."""
    is_outdated: bool = False
    """Whether a write failed, so that the session must be read again before it is used."""
    is_deleted: bool = False
    """Whether it was deleted, with everything that belongs to it, while it was held open."""
    users: int = 0
    size: int = 0
    """How large the last requests of its agents were together, when it was last used."""
    policy: Policy | None = None
    """The policy that was set last."""
    summarizer: UpstreamSummarizer = field(default_factory=UpstreamSummarizer)
    """Writes summaries with the key of a client, if that is allowed."""
    has_key: bool = False
    """Whether there is such a key."""
    agent: Agent | None = None
    """The main agent, as its last request showed it."""
    choice: GoverningChoice = field(default_factory=GoverningChoice)
    """How somebody wants it to be governed."""
    has_compacted: bool = False
    """Whether a request of it was ever compacted."""
    has_recall: bool = False
    """Whether the model has the recall tool, and the gateway answers it."""
    compaction_due: str = ""
    """Why the policy would compact now, if that waits for approval."""
    previews: dict[str, CompactionCompleted] = field(default_factory=dict[str, CompactionCompleted])
    """By id, the compactions that were previewed and can be approved."""

    def use_stored(self, stored: StoredValues) -> None:
        """Take what this gateway or another one has stored."""
        governing = stored.governing or {}
        self.agent = Agent.from_json(stored.client) if stored.client else None
        self.choice = msgspec.convert(governing.get("choice") or {}, GoverningChoice)
        self.has_compacted = bool(governing.get("compacted"))
        self.has_recall = self.has_recall or bool(governing.get("recall"))

    @property
    def has_news(self) -> bool:
        """Whether others have recorded something that the list of the main agent may lack.

        Whoever reads the session here learns of it: a page, a tool, or a side call that is recorded.
        """
        return self.events_read != self.session.events_read

    def _note_news(self) -> None:
        self.events_read = self.session.events_read
        if (agent_list := self.agent_lists.get(MAIN_AGENT)) is not None:
            agent_list.is_behind = True
            if agent_list.in_flight:
                del self.agent_lists[MAIN_AGENT]

    def note_changed_view(self) -> None:
        """Compare the next lists with what is in view then: a rewind was undone, or made again."""
        for agent_list in self.agent_lists.values():
            agent_list.is_behind = True

    def measure(self) -> int:
        """Bring `size` up to date, and return by how much it grew."""
        before, self.size = self.size, sum([one.last_body.size for one in self.agent_lists.values() if one.last_body])
        return self.size - before

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said in it yet."""
        return not len(self.session)

    def length_after(self, response_id: str, chain: Chain) -> int:
        """Return how many messages of a chain there are up to the end of a response; 0 if it is not there."""
        length, last_hash = self.response_ends.get(response_id, (0, b""))
        return length if 0 < length <= len(chain.hashes) and chain.hashes[length - 1] == last_hash else 0

    async def main_list(self, wire: Wire, start: bytes) -> AgentList:
        """Return the main agent's list, read from the log if the session was just opened or others have written."""
        if self.has_news:
            self._note_news()
        agent_list = self.agent_lists.get(MAIN_AGENT)
        if agent_list and not agent_list.is_behind:
            return agent_list
        numbered = await self._numbered_messages()
        if agent_list is None or self.has_recall or not agent_list.catch_up(wire, numbered, self.agent):
            agent_list = AgentList(self.session, Chain(start), self.agent, has_recall=self.has_recall)
            agent_list.add_recorded(wire, numbered)
        self.agent_lists[MAIN_AGENT] = agent_list
        return agent_list

    async def read_main_again(self, agent_list: AgentList, wire: Wire, start: bytes) -> None:
        """Read the main agent's list from the log as it is now; what goes on with that list keeps it."""
        self.events_read = self.session.events_read
        agent_list.read_again(wire, start, await self._numbered_messages())
        self.agent_lists[MAIN_AGENT] = agent_list

    async def _numbered_messages(self) -> list[tuple[int, JsonMapping]]:
        # What is recorded next fails if another process has written since.
        numbered = await self.session.numbered_messages(refreshes=False)
        return [*dropwhile(lambda one: one[1].get("role") in ("system", "developer"), numbered)]


async def _run_and_settle(
    work: Coroutine[object, object, T],
    ended: "asyncio.Future[T]",
    discard: Callable[[T], Awaitable[object]] | None,
) -> None:
    try:
        result = await work
    except BaseException as error:
        if not ended.done():
            ended.set_exception(error)
        raise
    if not ended.done():
        ended.set_result(result)
    elif discard is not None:
        await discard(result)


def _time_out(ended: "asyncio.Future[T]") -> None:
    if not ended.done():
        ended.set_exception(TimeoutError())


class _HeldOpen:
    """A session that is held open inside of `async with`."""

    def __init__(self, sessions: "OpenSessions", session_id: str) -> None:
        self._sessions, self._id = sessions, session_id

    async def __aenter__(self) -> OpenSession:
        self._opened = await self._sessions.acquire(self._id)
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        await self._sessions.release(self._opened)


class OpenSessions:
    """Opens each session once, and closes the least recently used ones where there are too many or too large ones."""

    def __init__(
        self,
        store: Store,
        open_session: Callable[[str, ServedModel], SessionOpener],
        *,
        max_open: int,
        max_bytes: int,
        delete_files: Callable[[str], object] | None = None,
    ) -> None:
        """`delete_files` removes what belongs to a session outside the store."""
        self.store = store
        self.delete_files = delete_files
        self._opener = open_session
        self._max_open, self._max_bytes = max_open, max_bytes
        self._size = 0
        """How large the open sessions are together."""
        self._open: OrderedDict[str, OpenSession] = OrderedDict()
        self._opening: dict[str, asyncio.Task[OpenSession]] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self.index = AnswerIndex(store)
        """Which sessions have an answer."""
        self.has_other_writers = False
        """Whether another process has written to a session that is open here: then others may be outdated too."""

    def get(self, session_id: str) -> OpenSession | None:
        """Return a session if it is open."""
        return self._open.get(session_id)

    def has(self, opened: OpenSession) -> bool:
        """Return whether an open session was not deleted since."""
        return self._open.get(opened.id) is opened

    def session(self, session_id: str) -> _HeldOpen:
        """Hold a session open while it is used."""
        return _HeldOpen(self, session_id)

    async def release(self, opened: OpenSession) -> None:
        """Let go of a session that was held open; if too much is open, close what was idle for longest."""
        opened.users -= 1
        if self.has(opened):
            self._size += opened.measure()
        # The one that was used last stays open, however large it is.
        while len(self._open) > self._max_open or (self._size > self._max_bytes and len(self._open) > 1):
            idle = next((one for one in self._open.values() if not one.users), None)
            if idle is None:
                return
            self._forget(idle)
            await self._close_session(idle)

    def _forget(self, opened: OpenSession) -> None:
        del self._open[opened.id]
        self._size -= opened.size

    async def delete(self, session_id: str) -> bool:
        """Delete a session with all that belongs to it, and return whether it existed."""
        async with self.session(session_id) as opened, opened.lock:
            if not self.has(opened):
                return False  # somebody else has deleted it
            # The files first: if one cannot be deleted, the session is still there to delete again.
            if self.delete_files is not None:
                await asyncio.to_thread(self.delete_files, session_id)
            self._forget(opened)
            await self._close_session(opened)
            existed = await self.store.delete(session_id)
            opened.is_deleted = True
            return existed

    async def close(self) -> None:
        """Finish what was started, and close all sessions."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        # Together, because a store writes what comes at once in one transaction.
        await asyncio.gather(*map(self._close_session, self._open.values()))
        self._open.clear()

    async def run_to_completion(
        self,
        work: Coroutine[object, object, T],
        *,
        seconds: float | None = None,
        discard: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        """Return the result of work that is finished even if the caller is cancelled.

        Raises `TimeoutError` if it takes longer than `seconds`; it is finished then, too. `discard` gets a result that
        nobody waits for any more.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        self.start(_run_and_settle(work, ended, discard))
        timer = None if seconds is None else loop.call_later(seconds, _time_out, ended)
        try:
            return await ended
        finally:
            if timer is not None:
                timer.cancel()

    def start(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Start work that is finished before the sessions are closed."""

        def forget(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # the caller may be gone

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(forget)
        return task

    async def store_governing(self, opened: OpenSession) -> None:
        """Store how a session is governed, for the next time that it is opened."""
        value = {"choice": msgspec.to_builtins(opened.choice), "compacted": opened.has_compacted}
        if opened.has_recall:
            value["recall"] = True
        await self.store.put_value(session_value_key(opened.id, "governing"), value)

    async def acquire(self, session_id: str, served: ServedModel = NO_MODEL) -> OpenSession:
        """Open a session, and hold it open until it is released; `served` is the model that it is opened for."""
        is_new = False
        """Whether all of it was read since this call."""
        while (opened := self._open.get(session_id)) is None:
            task = self._opening.get(session_id)
            if task is None:
                task = self._opening[session_id] = asyncio.ensure_future(self._open_session(session_id, served))
                is_new = True
            await asyncio.shield(task)
        if self.has_other_writers and not opened.users and not is_new:
            opened.is_outdated = True
        opened.users += 1  # from here on nobody closes it to make room
        if opened.is_outdated:
            try:
                _, stored = await asyncio.gather(opened.session.refresh(), self._stored_values(session_id))
            except BaseException:
                await self.release(opened)
                raise
            opened.use_stored(stored)
            opened.is_outdated = False
        if self.has(opened):
            self._open.move_to_end(session_id)
        return opened

    async def _open_session(self, session_id: str, served: ServedModel) -> OpenSession:
        async def open_it() -> Session:
            return await self._opener(session_id, served)

        try:
            # What another machine stores is far away, so it is read at once.
            session, stored = await asyncio.gather(open_it(), self._stored_values(session_id))
            opened = OpenSession(session_id, session)
            opened.use_stored(stored)
            self._open[session_id] = opened
            return opened
        finally:
            del self._opening[session_id]

    async def _stored_values(self, session_id: str) -> StoredValues:
        """Return what is stored about a session beside its log."""
        client, governing = await asyncio.gather(
            self.store.get_value(session_value_key(session_id, "client")),
            self.store.get_value(session_value_key(session_id, "governing")),
        )
        return StoredValues(client, governing)

    async def _close_session(self, opened: OpenSession) -> None:
        with suppress(HoldfastError):
            if opened.unsaved_hash:
                await self.index.add(opened.unsaved_hash, opened.id)
            await opened.delegates.aclose()
            await opened.session.close()
