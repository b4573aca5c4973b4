"""Record what passes through the gateway, in the sessions of a store.

`Recorder.receive` finds the conversation of a request and stores the client's new messages. The `Exchange` it returns
collects the answer as it arrives, and `finish` stores it. Both are durable when they return.

Clients send their whole list with every request. The difference from the list before says what happened: nothing new,
new messages, an edit or a rewind, a fork, a compaction of the client's own, or a call beside the conversation. A call
that was taken for a side call by mistake loses nothing: the next prompt after its answer shows that it was none, and
the whole list is recorded then.
"""

import asyncio
import hashlib
import re
import secrets
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import orjson

from holdfast.apps.gateway.client_body import ClientBody, read_body, read_json, texts_of
from holdfast.apps.gateway.identity import (
    UNNAMED_PREFIX,
    Agent,
    AnswerIndex,
    Chain,
    Signals,
    chain_start,
    essential_fingerprint,
    is_from_model,
    is_prompt,
    is_unnamed_session,
    orders_a_summary,
    read_signals,
    response_link,
    session_id_for,
    side_purpose_of_words,
)
from holdfast.core.history.events import SideCallPurpose
from holdfast.core.history.visibility import SEES_NOTHING
from holdfast.core.planning.policy import Policy
from holdfast.errors import HoldfastError, RecordingError, SettingsError
from holdfast.session.conversation import Conversation
from holdfast.session.delegation import Delegate
from holdfast.session.log.event_log import Clock, now_ms
from holdfast.session.session import Session
from holdfast.session.sync import client_summary_in
from holdfast.stores.base import Store, session_value_key
from holdfast.stores.open import open_store
from holdfast.wire.answers import Answer, Wire, answer_text, read_answer
from holdfast.wire.equivalence import essential_message
from holdfast.wire.json_reader import is_list
from holdfast.wire.usage import read_usage

T = TypeVar("T")
K = TypeVar("K")
Ending: TypeAlias = Literal["complete", "cut", "client_left", "refused"]
"""How an answer ended: whole; cut by the upstream; left by the client; refused with an error."""
MAX_OPEN_SESSIONS = 256
MAX_ANSWER_BYTES = 64 * 2**20
"""How much of an answer is kept to be recorded; a longer one is recorded as cut."""
MAX_SIDE_LISTS = 8
MAX_CANDIDATES = 64
"""How many conversations with the same answer are compared with a list."""
MAX_RECENT = 256
"""How many of the last conversations are searched for the words that a side call quotes."""
MIN_QUOTED_CHARS, MAX_QUOTED_CHARS, MAX_QUOTED_PROMPTS = 8, 200, 6
MIN_SUMMARY_CHARS = 24
"""A shorter summary does not identify a conversation."""
MAX_TASK_CHARS = 2_000
TOKEN_COUNT_PATHS = ("/count_tokens", ":countTokens", "/input_tokens")
MAIN_LANE = ""


_ONE_LINE_EVENT = re.compile(rb"^data: ?(\{.*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request of a client, as it came."""

    wire: Wire
    path: str
    session_in_path: str | None
    """The session that the path names."""
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    """Decompressed."""
    namespace: str
    """Whose conversations these are: the name of the gateway's own key, or empty."""
    upstream: str
    """The name of the upstream that answers."""


class Lane:
    """The messages of one agent in a session, as the list of its client has them."""

    def __init__(self, conversation: Conversation, chain: Chain, agent: Agent | None = None) -> None:
        self.conversation = conversation
        self.chain = chain
        self.positions: list[int] = []
        """Where each message of the chain was recorded."""
        self.agent = agent
        self.in_flight = 0
        """How many requests wait for their answer."""
        self.last_response: str | None = None
        self.last_text = ""
        """The text of the last answer."""
        self._slices: list[msgspec.Raw] = []
        self._lengths: list[int] = []
        self._agent_slices: tuple[list[msgspec.Raw], msgspec.Raw] | None = None

    def chain_of(self, body: ClientBody) -> tuple[Chain, list[int]]:
        """Return the chain of a list, and how long it is after each message of the list.

        Messages that came as the same bytes before are not parsed again.
        """
        same = self.same_slices(body)
        lengths = self._lengths[:same]
        chain = self.chain.first(lengths[-1] if lengths else 0)
        return chain, lengths + add_to_chain(chain, body, same)

    def same_slices(self, body: ClientBody) -> int:
        """Return how many messages of a list came as the same bytes before."""
        new, old = body.slices, self._slices
        low, high = 0, min(len(new), len(old))
        if new[:high] == old[:high]:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if new[low:middle] == old[low:middle] else (low, middle - 1)
        return low

    def keep_list(self, body: ClientBody, lengths: list[int]) -> None:
        """Keep a list, to compare the next one with it."""
        self._slices, self._lengths = body.slices, lengths
        self._agent_slices = body.system_slices, body.tools_slice

    def agent_of(self, body: ClientBody) -> Agent:
        """Return the agent that speaks in a request."""
        is_unchanged = self._agent_slices == (body.system_slices, body.tools_slice)
        return self.agent if is_unchanged and self.agent else Agent.of(body)


def add_to_chain(chain: Chain, body: ClientBody, start: int = 0) -> list[int]:
    """Add the messages of a list from an index on to a chain, and return how long it is after each of them."""
    lengths: list[int] = []
    for native in body.messages(start):
        if (fingerprint := essential_fingerprint(body.wire, native)) is not None:
            chain.add(fingerprint, from_model=is_from_model(body.wire, native))
        lengths.append(len(chain.links))
    return lengths


@dataclass(slots=True)
class OpenSession:
    """A session that the recorder holds open."""

    id: str
    session: Session
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request is compared and recorded, never while the upstream answers."""
    lanes: dict[str, Lane] = field(default_factory=dict[str, Lane])
    delegates: AsyncExitStack = field(default_factory=AsyncExitStack)
    side_tips: deque[bytes] = field(default_factory=lambda: deque[bytes](maxlen=MAX_SIDE_LISTS))
    """The links after the answers of the last side calls."""
    unsaved_tip: bytes | None = None
    """The link of the last answer, while only memory has it."""
    window: str | None = None
    users: int = 0


@dataclass(frozen=True, slots=True)
class _Reading:
    """A request that was read."""

    request: ClientRequest
    body: ClientBody
    signals: Signals
    start: bytes
    """The first link of its chain."""


class Recorder:
    """Records the exchanges of clients in the sessions of a store."""

    def __init__(
        self,
        store: str | Store,
        *,
        policy: str | Policy = "default",
        max_open_sessions: int = MAX_OPEN_SESSIONS,
        clock: Clock = now_ms,
    ) -> None:
        self.store = open_store(store)
        self._owns_store = isinstance(store, str)
        self._policy = policy
        self._clock = clock
        self._max_open = max_open_sessions
        self._open: OrderedDict[str, OpenSession] = OrderedDict()
        self._opening: dict[str, asyncio.Task[OpenSession]] = {}
        self._index = AnswerIndex(self.store)
        self._recent: OrderedDict[tuple[str, str], deque[str]] = OrderedDict()
        """By namespace and session, the last prompts."""
        self._agent_sessions: OrderedDict[str, str] = OrderedDict()
        """By the name that a sub-agent gives its own session, the session it works in."""
        self._summaries: deque[tuple[str, str, str]] = deque(maxlen=MAX_RECENT)
        """Namespace, session and text of the last summaries that clients had written."""
        self._by_first: OrderedDict[tuple[str, Wire, bytes], OrderedDict[str, None]] = OrderedDict()
        """By the first message as it came, the open sessions that begin with it."""
        self._by_cache_key: OrderedDict[str, str] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def receive(self, request: ClientRequest) -> "Exchange":
        """Record the new messages of a request, and return its exchange; raises `RecordingError`.

        A body that is no request of its wire is not recorded: its exchange has no session. The upstream will refuse it.
        """
        try:
            body = read_body(request.wire, request.body)
            signals = read_signals(request.session_in_path, request.headers, body)
            is_readable = bool(body.slices) and all(map(bool, body.messages(len(body.slices) - 1)))
        except (ValueError, msgspec.MsgspecError):
            return Exchange(request)
        if not is_readable:
            return Exchange(request)
        reading = _Reading(request, body, signals, chain_start(request.namespace, request.wire))
        try:
            return await self.run_to_completion(self._receive(reading))
        except (HoldfastError, ValueError) as error:
            raise RecordingError(str(error)) from error

    async def close(self) -> None:
        """Finish what is being recorded, and close all sessions."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        for opened in list(self._open.values()):
            await self._close_session(opened)
        self._open.clear()
        if self._owns_store:
            await self.store.close()

    @asynccontextmanager
    async def session(self, session_id: str) -> AsyncGenerator[OpenSession]:
        """Hold a session open while it is used."""
        opened = await self._acquire(session_id)
        try:
            yield opened
        finally:
            opened.users -= 1
            await self._evict()

    async def delete(self, session_id: str) -> bool:
        """Delete a session with all that belongs to it, and return whether it existed."""
        async with self.session(session_id) as opened, opened.lock:
            del self._open[session_id]
            await self._close_session(opened)
            return await self.store.delete(session_id)

    async def run_to_completion(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of work that is finished even if the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return await asyncio.shield(task)

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may be gone

    # Open sessions.

    async def _acquire(self, session_id: str) -> OpenSession:
        while (opened := self._open.get(session_id)) is None:
            task = self._opening.get(session_id)
            if task is None:
                task = self._opening[session_id] = asyncio.ensure_future(self._open_session(session_id))
            await asyncio.shield(task)
        opened.users += 1
        self._open.move_to_end(session_id)
        return opened

    async def _open_session(self, session_id: str) -> OpenSession:
        try:
            session = await Session.open(session_id, store=self.store, policy=self._policy, clock=self._clock)
            opened = self._open[session_id] = OpenSession(session_id, session)
            return opened
        finally:
            del self._opening[session_id]

    async def _evict(self) -> None:
        while len(self._open) > self._max_open:
            idle = next((one for one in self._open.values() if not one.users), None)
            if idle is None:
                return
            del self._open[idle.id]
            await self._close_session(idle)

    async def _close_session(self, opened: OpenSession) -> None:
        with suppress(HoldfastError):
            if opened.unsaved_tip:
                await self._index.add(opened.unsaved_tip, opened.id)
            await opened.delegates.aclose()
            await opened.session.close()

    # Finding the conversation.

    async def _receive(self, reading: _Reading) -> "Exchange":
        request, signals = reading.request, reading.signals
        if request.path.partition("?")[0].endswith(TOKEN_COUNT_PATHS):
            return await self._receive_token_count(reading)
        if signals.name:
            session_id = session_id_for(request.namespace, signals.name)
            session_id = self._agent_sessions.get(session_id, session_id)
            if signals.agent:
                own = session_id_for(request.namespace, signals.agent)
                self._agent_sessions[own] = session_id
                _keep_newest(self._agent_sessions, own)
            return await self._receive_named(reading, session_id)
        if signals.response_id:
            found = await self._index.sessions_with([response_link(request.namespace, signals.response_id)])
            session_id = found[1][-1] if found else self._new_id(request)
            async with self.session(session_id) as opened, opened.lock:
                return await self._record_continuation(reading, opened)
        return await self._receive_unnamed(reading)

    async def _receive_token_count(self, reading: _Reading) -> "Exchange":
        name = reading.signals.name
        session_id = session_id_for(reading.request.namespace, name) if name else ""
        if not session_id or (session_id not in self._open and not await self.store.length(session_id)):
            return Exchange(reading.request)
        async with self.session(session_id) as opened:
            return Exchange(reading.request, _SideSink(self, opened, reading, "other", Chain(reading.start)))

    async def _receive_named(self, reading: _Reading, session_id: str) -> "Exchange":
        async with self.session(session_id) as opened, opened.lock:
            if not len(opened.session) and not reading.signals.agent and not self._side_purpose_of_first(reading):
                await self._copy_fork(reading, opened)
            if "conversation" in reading.body.fields and reading.request.wire == "openai-responses":
                return await self._record_continuation(reading, opened)
            return await self._record(reading, opened)

    async def _copy_fork(self, reading: _Reading, opened: OpenSession) -> None:
        """Begin a new session with the conversation that its first list continues, if another session has it."""
        chain = Chain(reading.start)
        add_to_chain(chain, reading.body)
        found = await self._index.sessions_with([chain.links[end - 1] for end in chain.answers()])
        if found is None:
            return
        async with self.session(found[1][-1]) as source:
            lane = await self._main_lane(source, reading)
            shared = lane.chain.shared_length(chain)
            if source.id == opened.id or not shared or not _has_format(source.session, reading.body):
                return
            at = lane.positions[shared] if shared < len(lane.positions) else None
            other = await source.session.fork(opened.id, at=at)
            await other.close()
        await opened.session.refresh()
        opened.lanes.clear()

    async def _receive_unnamed(self, reading: _Reading) -> "Exchange":
        """Find the conversation of a request by its messages."""
        request, body, key = reading.request, reading.body, reading.signals.cache_key
        chain = self._chain_near(reading)
        links = [chain.links[end - 1] for end in chain.answers()]
        is_candidate = partial(is_unnamed_session, namespace=request.namespace, cache_key=key)
        if found := await self._index.sessions_with(links, is_candidate):
            link, session_ids = found
            session_id, is_continued = await self._choose_session(reading, chain, session_ids)
            if not is_continued:
                # Before a restart other conversations may have had the same answer to the same words.
                others = {one for one in await self._index.stored_sessions(link) if is_candidate(one)}
                other_id, is_continued = await self._choose_session(reading, chain, sorted(others - {*session_ids}))
                session_id = other_id if is_continued else session_id or other_id
            if session_id is not None:
                async with self.session(session_id) as opened, opened.lock:
                    lane = await self._main_lane(opened, reading)
                    is_branch = (
                        not is_continued
                        and lane.in_flight
                        and lane.agent_of(body).is_same(lane.agent or Agent.of(body))
                    )
                    if not is_branch and not self._is_promoted(opened, chain, body):
                        return await self._record(reading, opened)
        elif session_id := self._session_with_summary(reading):
            async with self.session(session_id) as opened, opened.lock:
                return await self._record(reading, opened)
        elif (purpose := reading.signals.purpose or side_purpose_of_words(body)) and (
            session_id := self._session_quoted(reading) or (self._by_cache_key.get(key) if key else None)
        ):
            async with self.session(session_id) as opened:
                return Exchange(request, _SideSink(self, opened, reading, purpose, chain))
        session_id = await self._id_for_cache_key(reading, chain) if key else self._new_id(request)
        async with self.session(session_id) as opened, opened.lock:
            if found:
                await self._copy_fork(reading, opened)
            return await self._record(reading, opened)

    async def _id_for_cache_key(self, reading: _Reading, chain: Chain) -> str:
        """Return the session for a key that several conversations may share: that of the key, or a new one."""
        namespace, key = reading.request.namespace, reading.signals.cache_key or ""
        first = session_id_for(namespace, key)
        session_id = self._by_cache_key.get(first, first)
        async with self.session(session_id) as opened, opened.lock:
            lane = await self._main_lane(opened, reading)
            is_other_agent = lane.agent is not None and not lane.agent.is_same(lane.agent_of(reading.body))
            is_order = orders_a_summary(reading.body.message(len(reading.body.slices) - 1))
            is_here = not lane.chain.links or is_other_agent or is_order or lane.chain.tip == chain.tip
            has_summary = client_summary_in(
                _new_text(reading.body, 0), opened.session.history.session_state.client_summaries
            )
            if not (is_here or has_summary):
                session_id = f"{first}.{secrets.token_hex(4)}"
        self._by_cache_key[first] = session_id
        _keep_newest(self._by_cache_key, first)
        return session_id

    async def _choose_session(
        self, reading: _Reading, chain: Chain, session_ids: Sequence[str]
    ) -> tuple[str | None, bool]:
        """Return one of the sessions that have an answer of the list, and whether the list continues all it has."""
        fallback: str | None = None
        for session_id in list(reversed(session_ids))[:MAX_CANDIDATES]:
            async with self.session(session_id) as opened, opened.lock:
                if not len(opened.session):
                    continue  # it was deleted
                lane = await self._main_lane(opened, reading)
                if lane.chain.shared_length(chain) == len(lane.chain.links):
                    return session_id, True
                fallback = fallback or session_id
        return fallback, False

    def _chain_near(self, reading: _Reading) -> Chain:
        """Return the chain of a list, with the help of the open session whose list is most like it."""
        body, best, lane = reading.body, 0, None
        for session_id in self._by_first.get(_first_key(reading), ()):
            opened = self._open.get(session_id)
            other = opened.lanes.get(MAIN_LANE) if opened else None
            if other and (same := other.same_slices(body)) > best:
                best, lane = same, other
        if lane is not None:
            return lane.chain_of(body)[0]
        chain = Chain(reading.start)
        add_to_chain(chain, body)
        return chain

    def _session_with_summary(self, reading: _Reading) -> str | None:
        """Return the session whose summary, written for a compaction of its client, is in a list."""
        text = _new_text(reading.body, 0)
        for namespace, session_id, summary in reversed(self._summaries):
            is_own = namespace == reading.request.namespace and len(summary) >= MIN_SUMMARY_CHARS
            if is_own and client_summary_in(text, (summary,)):
                return session_id
        return None

    def _session_quoted(self, reading: _Reading) -> str | None:
        """Return the session whose last prompts a side call quotes, that with most of them."""
        text, namespace = _new_text(reading.body, 0), reading.request.namespace
        quoted = [
            (sum(len(prompt) for prompt in prompts if prompt in text), session_id)
            for (owner, session_id), prompts in self._recent.items()
            if owner == namespace
        ]
        length, session_id = max(quoted, default=(0, ""))
        return session_id if length >= MIN_QUOTED_CHARS else None

    def _new_id(self, request: ClientRequest) -> str:
        return session_id_for(request.namespace, f"{UNNAMED_PREFIX}{self._clock():x}-{secrets.token_hex(4)}")

    # Recording a request.

    async def _main_lane(self, opened: OpenSession, reading: _Reading) -> Lane:
        """Return the main agent's lane, read from the log if the session was just opened."""
        if lane := opened.lanes.get(MAIN_LANE):
            return lane
        wire, chain = reading.request.wire, Chain(reading.start)
        stored = await self.store.get_value(session_value_key(opened.id, "client"))
        lane = Lane(opened.session, chain, Agent.from_json(stored) if stored else None)
        is_leading = True
        for position, native in await opened.session.numbered_messages():
            is_leading = is_leading and native.get("role") in {"system", "developer"}
            fingerprint = None if is_leading else essential_fingerprint(wire, native)
            if fingerprint is not None:
                chain.add(fingerprint, from_model=is_from_model(wire, native))
                lane.positions.append(position)
        opened.lanes[MAIN_LANE] = lane
        return lane

    def _side_purpose_of_first(self, reading: _Reading) -> SideCallPurpose | None:
        return reading.signals.purpose or side_purpose_of_words(reading.body)

    def _is_promoted(self, opened: OpenSession, chain: Chain, body: ClientBody) -> bool:
        """Return whether a prompt follows the answer of a side call: then it was a conversation of its own."""
        for end in chain.answers():
            if chain.links[end - 1] in opened.side_tips:
                return any(is_prompt(native) for native in body.messages(len(body.slices) - (len(chain.links) - end)))
        return False

    async def _record(self, reading: _Reading, opened: OpenSession) -> "Exchange":
        """Record a request in its session. Caller must hold the session's lock."""
        if reading.signals.agent:
            return await self._record_delegate(reading, opened)
        body, lane = reading.body, await self._main_lane(opened, reading)
        chain, lengths = lane.chain_of(body)
        purpose, shared, summary = await self._compare(reading, opened, lane, chain, lengths)
        if purpose is not None:
            return Exchange(reading.request, _SideSink(self, opened, reading, purpose, chain))
        try:
            await self._end_answered_delegates(opened, body, lengths, shared)
            if summary is not None:
                natives = [*body.leading_messages(), *body.messages()]
                await opened.session.sync(natives, format=self._format(opened, body), compacted=summary)
                agent = lane.agent
                del opened.lanes[MAIN_LANE]
                lane = await self._main_lane(opened, reading)
                lane.agent = agent
            else:
                if shared < len(lane.chain.links):
                    await opened.session.rewind(to=lane.positions[shared])
                await self._append(opened, lane, body, chain, lengths, shared)
            await self._remember_client(reading, opened, lane)
        except BaseException:
            opened.lanes.pop(MAIN_LANE, None)  # read again from the log
            raise
        lane.keep_list(body, lengths)
        self._remember_prompt(reading, opened)
        return Exchange(reading.request, _LaneSink(self, opened, reading, MAIN_LANE, lane, lane.chain.tip))

    async def _append(
        self, opened: OpenSession, lane: Lane, body: ClientBody, chain: Chain, lengths: list[int], shared: int
    ) -> None:
        """Record the messages of a list after those that the lane shares with it."""
        first = _first_new(lengths, shared)
        natives = body.messages(first)
        leading = body.leading_messages() if not len(opened.session) else []
        if natives or leading:
            places = await lane.conversation.record([*leading, *natives], format=self._format(opened, body))
            numbered = zip(places[len(leading) :], [shared, *lengths[first:]], lengths[first:], strict=False)
            added = [place for place, before, after in numbered if after > before]
        else:
            added = []
        lane.chain, lane.positions = chain, lane.positions[:shared] + added

    async def _compare(
        self, reading: _Reading, opened: OpenSession, lane: Lane, chain: Chain, lengths: list[int]
    ) -> tuple[SideCallPurpose | None, int, str | None]:
        """Return the purpose of a side call; else how many messages the list shares, and the summary of the client."""
        body, signals = reading.body, reading.signals
        shared, recorded = lane.chain.shared_length(chain), len(lane.chain.links)
        if signals.purpose:
            return signals.purpose, shared, None
        if not recorded:
            return side_purpose_of_words(body), shared, None
        is_whole = shared == recorded
        if lane.agent and not lane.agent.is_same(lane.agent_of(body)) and not self._is_promoted(opened, chain, body):
            return side_purpose_of_words(body) or ("memory" if is_whole else "other"), shared, None
        last = body.message(len(body.slices) - 1)
        is_order = orders_a_summary(last)
        if is_whole:
            return ("summary" if is_order and len(chain.links) > recorded else None), shared, None
        summaries = opened.session.history.session_state.client_summaries
        text = _new_text(body, _first_new(lengths, shared))
        if found := client_summary_in(text, summaries):
            return None, shared, found
        is_next_window = signals.window is not None and opened.window not in {None, signals.window}
        if signals.has_compacted or is_next_window:
            return None, shared, summaries[-1] if summaries else text
        if is_order or await self._extends_recorded(opened, lane, last, shared, len(chain.links)):
            return "summary", shared, None
        if lane.in_flight and len(chain.links) > shared:
            return "other", shared, None
        return None, shared, None

    async def _extends_recorded(
        self, opened: OpenSession, lane: Lane, last: Mapping[str, Any], shared: int, length: int
    ) -> bool:
        """Return whether a list ends with an earlier recorded message to which an order was added.

        That is how a client orders a summary of a part of its list: nobody edits a message by adding a block after
        later ones were answered.
        """
        content = last.get("content")
        if not is_list(content) or length != shared + 1 or len(lane.positions) - shared < 2:
            return False
        [recorded] = await opened.session.messages_at(lane.positions[shared])
        before = essential_message(recorded).get("content")
        now = essential_message({**last, "content": content[: len(before)]}).get("content") if is_list(before) else None
        return is_list(before) and len(content) > len(before) and now == before

    async def _record_continuation(self, reading: _Reading, opened: OpenSession) -> "Exchange":
        """Record a list that holds only what is new, because the provider keeps the rest."""
        body, lane = reading.body, await self._main_lane(opened, reading)
        chain = lane.chain.first(len(lane.chain.links))
        shared = len(chain.links)
        try:
            await self._append(opened, lane, body, chain, add_to_chain(chain, body), shared)
            await self._remember_client(reading, opened, lane)
        except BaseException:
            opened.lanes.pop(MAIN_LANE, None)
            raise
        return Exchange(reading.request, _LaneSink(self, opened, reading, MAIN_LANE, lane, lane.chain.tip))

    # Sub-agents.

    async def _record_delegate(self, reading: _Reading, opened: OpenSession) -> "Exchange":
        """Record a request of a sub-agent, in a scope of its own."""
        body, signals, name = reading.body, reading.signals, reading.signals.agent or ""
        lane = opened.lanes.get(name)
        chain, lengths = lane.chain_of(body) if lane else (Chain(reading.start), [])
        if signals.purpose:
            return Exchange(reading.request, _SideSink(self, opened, reading, signals.purpose, chain))
        shared = lane.chain.shared_length(chain) if lane else 0
        if lane is None or shared < len(lane.chain.links):
            # Its list has changed, or it is new: it works on in a new scope, and what it did before stays.
            task = "\n".join(texts_of(body.message(0)))[-MAX_TASK_CHARS:]
            context = opened.session.delegate(signals.agent_type, task=task, sees=SEES_NOTHING, adds_task_message=False)
            lane = Lane(await opened.delegates.enter_async_context(context), Chain(reading.start))
            chain, lengths, shared = Chain(reading.start), [], 0
            lengths = add_to_chain(chain, body)
        try:
            opened.lanes[name] = lane
            await self._append(opened, lane, body, chain, lengths, shared)
        except BaseException:
            opened.lanes.pop(name, None)
            raise
        lane.keep_list(body, lengths)
        return Exchange(reading.request, _LaneSink(self, opened, reading, name, lane, lane.chain.tip))

    async def _end_answered_delegates(
        self, opened: OpenSession, body: ClientBody, lengths: list[int], shared: int
    ) -> None:
        """End the delegations whose last answer the main agent received."""
        waiting = {
            name: lane
            for name, lane in opened.lanes.items()
            if name != MAIN_LANE and not lane.in_flight and lane.last_text.strip()
        }
        if not waiting:
            return
        first = _first_new(lengths, shared)
        text = _new_text(body, first)
        for name, lane in waiting.items():
            if isinstance(lane.conversation, Delegate) and lane.last_text.strip() in text:
                await lane.conversation.answer(lane.last_text)
                del opened.lanes[name]

    # What is kept for the next request.

    def _format(self, opened: OpenSession, body: ClientBody) -> str:
        return opened.session.history.format or _format_for(body)

    async def _remember_client(self, reading: _Reading, opened: OpenSession, lane: Lane) -> None:
        agent = lane.agent_of(reading.body)
        opened.window = reading.signals.window or opened.window
        opened.session.model = reading.body.model
        if agent != lane.agent:
            lane.agent = agent
            client = {"client": reading.request.headers.get("user-agent", "")[:200], "wire": reading.request.wire}
            await self.store.put_value(session_value_key(opened.id, "client"), client | agent.to_json())
        if reading.body.slices:
            known = self._by_first.setdefault(_first_key(reading), OrderedDict())
            known[opened.id] = None
            _keep_newest(known, opened.id)
            _keep_newest(self._by_first, _first_key(reading))

    def _remember_prompt(self, reading: _Reading, opened: OpenSession) -> None:
        last = reading.body.message(len(reading.body.slices) - 1)
        if is_prompt(last) and (texts := texts_of(last)):
            key = reading.request.namespace, opened.id
            prompts = self._recent.setdefault(key, deque[str](maxlen=MAX_QUOTED_PROMPTS))
            prompts.append(texts[-1].strip()[:MAX_QUOTED_CHARS])
            _keep_newest(self._recent, key)

    async def record_answer(self, sink: "_LaneSink", answer: Answer, duration_ms: int) -> None:
        """Record an answer in the conversation of its request."""
        opened, lane, wire = sink.opened, sink.lane, sink.reading.request.wire
        async with opened.lock:
            lane.in_flight -= 1
            is_current = opened.lanes.get(sink.lane_name) is lane and lane.chain.tip == sink.tip
            if not is_current:
                # The client went on without this answer: another request was faster.
                await record_side_answer(opened.session, answer, "other")
                return
            try:
                await self._append_answer(opened, lane, wire, answer, duration_ms)
            except BaseException:
                opened.lanes.pop(sink.lane_name, None)
                raise
            if sink.lane_name != MAIN_LANE:
                return
            if sink.reading.signals.name:
                opened.unsaved_tip = lane.chain.tip
                self._index.remember(lane.chain.tip, opened.id)
            else:
                await self._index.add(lane.chain.tip, opened.id)
            if answer.response_id and sink.reading.body.fields.get("store") is not False and wire == "openai-responses":
                await self._index.add(response_link(sink.reading.request.namespace, answer.response_id), opened.id)

    async def _append_answer(
        self, opened: OpenSession, lane: Lane, wire: Wire, answer: Answer, duration_ms: int
    ) -> None:
        if not answer.messages or not _says_something(answer):
            if answer.usage:
                await record_side_answer(opened.session, answer, "other")
        else:
            usage = answer.usage if has_usage(answer) else None
            name = opened.session.history.format
            places = await lane.conversation.record(answer.messages, format=name, usage=usage, duration_ms=duration_ms)
            for place, native in zip(places, answer.messages, strict=True):
                if (fingerprint := essential_fingerprint(wire, native)) is not None:
                    lane.chain.add(fingerprint, from_model=True)
                    lane.positions.append(place)
            lane.last_text, lane.last_response = answer_text(answer), answer.response_id
        if not answer.is_complete:
            await lane.conversation.interrupt()

    async def record_side_call(self, sink: "_SideSink", answer: Answer) -> None:
        """Record the answer of a side call."""
        opened, wire = sink.opened, sink.reading.request.wire
        await record_side_answer(opened.session, answer, sink.purpose)
        text = answer_text(answer)
        if sink.purpose == "summary" and text:
            self._summaries.append((sink.reading.request.namespace, opened.id, text))
        for native in answer.messages:
            if (fingerprint := essential_fingerprint(wire, native)) is not None:
                sink.chain.add(fingerprint, from_model=True)
        opened.side_tips.append(sink.chain.tip)

    async def release(self, opened: OpenSession) -> None:
        """Let go of a session that an exchange held open."""
        opened.users -= 1
        await self._evict()


async def record_side_answer(session: Session, answer: Answer, purpose: SideCallPurpose) -> None:
    """Record an answer beside the conversation, with its cost."""
    usage = answer.usage if has_usage(answer) else None
    if answer.messages or usage:
        await session.record_side_call(answer_text(answer), purpose=purpose, model=answer.model, usage=usage)


def has_usage(answer: Answer) -> bool:
    """Return whether an answer has a usage report that can be read."""
    try:
        return answer.usage is not None and read_usage(answer.usage) is not None
    except SettingsError:
        return False


class _LaneSink:
    """Where the answer of a conversation goes."""

    def __init__(
        self, recorder: Recorder, opened: OpenSession, reading: _Reading, lane_name: str, lane: Lane, tip: bytes
    ) -> None:
        self.recorder, self.opened, self.reading = recorder, opened, reading
        self.lane_name, self.lane, self.tip = lane_name, lane, tip
        lane.in_flight += 1
        opened.users += 1

    async def store(self, answer: Answer | None, duration_ms: int) -> None:
        if answer is None:
            self.lane.in_flight -= 1
        else:
            await self.recorder.record_answer(self, answer, duration_ms)


class _SideSink:
    """Where the answer of a side call goes."""

    def __init__(
        self, recorder: Recorder, opened: OpenSession, reading: _Reading, purpose: SideCallPurpose, chain: Chain
    ) -> None:
        self.recorder, self.opened, self.reading = recorder, opened, reading
        self.purpose: SideCallPurpose = purpose
        self.chain = chain
        opened.users += 1

    async def store(self, answer: Answer | None, duration_ms: int) -> None:
        del duration_ms
        if answer is not None:
            await self.recorder.record_side_call(self, answer)


class Exchange:
    """One request on record, and its answer as it arrives."""

    def __init__(self, request: ClientRequest, sink: _LaneSink | _SideSink | None = None) -> None:
        self.session_id = sink.opened.id if sink else ""
        """Empty if the request is not recorded."""
        self.request_id = secrets.token_hex(8)
        self.body = request.body
        """What to send: the client's own bytes where nothing was compacted."""
        self.headers: dict[str, str] = {"x-holdfast-request": self.request_id}
        if sink:
            self.headers["x-holdfast-session"] = self.session_id
        self.tokens = 0
        """What the answer cost, input and output together, once it is finished; 0 if the provider did not say."""
        self._wire: Wire = request.wire
        self._sink = sink
        self._chunks: list[bytes] = []
        self._size = 0
        self._started = monotonic()

    def feed(self, chunk: bytes) -> None:
        """Take bytes of a successful answer as they arrive."""
        if self._sink is not None and self._size < MAX_ANSWER_BYTES:
            self._chunks.append(chunk)
            self._size += len(chunk)

    async def finish(self, ended: Ending, status: int) -> None:
        """Record how the answer ended; it is durable when this returns. A second call changes nothing."""
        sink, self._sink = self._sink, None
        if sink is None:
            return
        is_answer = ended != "refused" and status < 400
        try:
            await sink.recorder.run_to_completion(self._store(sink, is_answer=is_answer))
        except (HoldfastError, ValueError) as error:
            raise RecordingError(str(error)) from error

    async def _store(self, sink: _LaneSink | _SideSink, *, is_answer: bool) -> None:
        try:
            answer = read_answer(self._wire, answer_events(b"".join(self._chunks))) if is_answer else None
            if answer is not None and has_usage(answer):
                usage = read_usage(answer.usage)
                self.tokens = usage.all_input_tokens + usage.output_tokens
            await sink.store(answer, int((monotonic() - self._started) * 1000))
        finally:
            await sink.recorder.release(sink.opened)


def answer_events(raw: bytes) -> list[object]:
    """Return the events of an answer: those of a stream, or the JSON of a response without one."""
    start = raw[:64].lstrip()
    if start.startswith((b"{", b"[")):
        with suppress(ValueError):
            whole = read_json(raw)
            return list(whole) if is_list(whole) else [whole]
        return []
    # Nearly every event is one line: reading all of them at once takes a third of the time.
    with suppress(ValueError):
        return orjson.loads(b"[%s]" % b",".join(_ONE_LINE_EVENT.findall(raw)))
    found: list[object] = []
    for event in raw.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        with suppress(ValueError):
            found.append(read_json(data))
    return found


def _says_something(answer: Answer) -> bool:
    return any(
        message.get("content") or message.get("tool_calls") or message.get("parts") or "type" in message
        for message in answer.messages
    )


def _first_new(lengths: Sequence[int], shared: int) -> int:
    """Return the index in a list of the first message after those that are shared."""
    return bisect_right(lengths, shared)


def _new_text(body: ClientBody, first: int) -> str:
    return "".join(text for native in body.messages(first) for text in texts_of(native))


def _keep_newest(values: OrderedDict[K, Any], key: K) -> None:
    """Mark a key as the newest, and forget the oldest ones."""
    values.move_to_end(key)
    while len(values) > MAX_RECENT:
        values.popitem(last=False)


def _first_key(reading: _Reading) -> tuple[str, Wire, bytes]:
    return reading.request.namespace, reading.request.wire, hashlib.sha256(reading.body.slices[0]).digest()


def _format_for(body: ClientBody) -> str:
    """Return the format in which a new session keeps the messages of a wire."""
    match body.wire:
        case "anthropic":
            return "anthropic-messages"
        case "openai-responses":
            return "openai-responses-stateless" if body.fields.get("store") is False else "openai-responses"
        case "gemini":
            return "gemini-2" if (body.model or "").startswith(("gemini-1", "gemini-2")) else "gemini"
        case "openai-chat":
            return "openai-chat"


def _has_format(session: Session, body: ClientBody) -> bool:
    return (session.history.format or _format_for(body)) == _format_for(body)
