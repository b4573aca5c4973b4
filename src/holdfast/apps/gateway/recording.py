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
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from itertools import dropwhile
from time import monotonic
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast.apps.gateway.client_body import LIST_MEMBERS, ClientBody, members_of, read_body, texts_of
from holdfast.apps.gateway.governing import (
    BINDING_BETA,
    COMPACTION_HEADER,
    JOINABLE_WIRES,
    NOTHING_REQUESTED,
    RECALL_HEADER,
    GoverningChoice,
    RequestedGoverning,
    governed_body,
    is_whole,
    model_of,
    thinking_that_drops_blocks,
    with_members,
)
from holdfast.apps.gateway.identity import (
    UNNAMED_PREFIX,
    AnswerIndex,
    Chain,
    Signals,
    chain_start,
    essential_fingerprint,
    is_optional,
    is_prompt,
    is_unnamed_session,
    name_outside_body,
    orders_a_summary,
    read_signals,
    response_link,
    session_id_for,
    side_purpose_of_words,
)
from holdfast.apps.gateway.lanes import (
    MAIN_LANE,
    ClientList,
    Lane,
    OpenAnswer,
    OpenSession,
    StoredValues,
    without_given_ids,
)
from holdfast.apps.gateway.recall_rounds import (
    MAX_RECALL_ROUNDS,
    NO_MORE_ROUNDS,
    RECALL_DEFINITIONS,
    RecallCall,
    has_one_choice,
    has_other_calls,
    recall_calls,
    recall_results,
    tools_with_recall,
    with_messages,
    without_recall_calls,
)
from holdfast.apps.gateway.upstream_summarizer import ClientAccess, Payment
from holdfast.apps.gateway.wires import answer_events, header_line
from holdfast.core.history.events import SideCallPurpose, Usage
from holdfast.core.history.visibility import SEES_NOTHING
from holdfast.core.planning.policy import PRESETS, Policy, policy_named
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import (
    CompactionError,
    ConcurrentWriteError,
    HoldfastError,
    RecordingError,
    SettingsError,
    StoreError,
)
from holdfast.models.base import Summarizer
from holdfast.session.compaction.compactor import CompactionOptions, CompactionQueue
from holdfast.session.delegation import Delegate
from holdfast.session.log.event_log import Clock, now_ms
from holdfast.session.session import Session
from holdfast.session.sync import client_summary_in
from holdfast.stores.base import Store, session_value_key
from holdfast.stores.open import open_store
from holdfast.wire.answers import Answer, JsonMapping, JsonObject, Wire, answer_text, argument_texts, read_answer
from holdfast.wire.equivalence import essential_message
from holdfast.wire.json_reader import is_list
from holdfast.wire.overflow import classify
from holdfast.wire.request import Request
from holdfast.wire.usage import read_usage

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Ending: TypeAlias = Literal["complete", "cut", "client_left", "refused"]
"""How an answer ended: whole; cut by the upstream; left by the client; refused with an error."""
MAX_HELD_SESSIONS = 256
WARM_UP_SESSIONS, WARM_UP_SECONDS = 4, 5.0
"""Whose models a gateway prepares for at its start, and how long it waits for the store meanwhile."""
MAX_ANSWER_BYTES = 64 * 2**20
"""How much of an answer is kept to be recorded; a longer one is recorded as cut."""
MAX_INLINE_ANSWER_BYTES = 1 << 18
"""A larger answer is read in a thread."""
MAX_ALIKE_SESSIONS = 64
"""How many conversations with the same answer are compared with a list."""
MAX_RECENT = 256
"""How many of the last conversations are searched for the words that a side call quotes."""
MIN_QUOTED_CHARS, MAX_QUOTED_CHARS, MAX_QUOTED_PROMPTS = 8, 200, 6
MIN_SUMMARY_CHARS = 24
"""A shorter summary does not identify a conversation."""
MAX_DELEGATED_CHARS, FIRST_PROMPTS = 20_000, 3
"""How long a sub-agent's task may be, and among how many first messages it is looked for."""
TOKEN_COUNT_PATHS = ("/count_tokens", ":countTokens", "/input_tokens")
MAX_OVERTAKEN = 8
"""How often a request is recorded again because another process was faster."""


class _Newest(OrderedDict[K, V]):
    """The `MAX_RECENT` values that were set last."""

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > MAX_RECENT:
            self.popitem(last=False)


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
    """The upstream that answers, as NAME=URL: what is learned about a model there applies nowhere else."""
    governing: RequestedGoverning = NOTHING_REQUESTED
    """What it says about governing."""
    access: ClientAccess | None = None
    """How the client reaches its provider, if it has a key that may pay for summaries."""


@dataclass(frozen=True, slots=True)
class _Happened:
    """What a list shows; the main agent went on if neither is set."""

    side_call: SideCallPurpose | None = None
    """What a request beside the conversation is for."""
    summary: str | None = None
    """The summary of a compaction that the client has made."""


class _Server(NamedTuple):
    """A model at an upstream, and how it is spoken to."""

    wire: Wire
    upstream: str
    model: str | None


@dataclass(frozen=True, slots=True)
class _Reading:
    """A request that was read."""

    request: ClientRequest
    body: ClientBody
    signals: Signals
    start: bytes
    """The first link of its chain."""


def _read_request(request: ClientRequest, before: ClientBody | None) -> _Reading | None:
    """Return a request that was read; None if it has no messages of its wire. It may continue the body `before`."""
    try:
        body = read_body(request.wire, request.body, before)
        signals = read_signals(request.session_in_path, request.headers, body)
        if not body.slices or not body.message(len(body.slices) - 1):
            return None
    except ValueError:
        return None
    return _Reading(request, body, signals, chain_start(request.namespace, request.wire))


class Recorder:
    """Records the exchanges of clients in the sessions of a store."""

    def __init__(
        self,
        store: str | Store,
        *,
        policy: str | Policy = "default",
        policies: Mapping[str, Policy] | None = None,
        budget: int | None = None,
        summarizer: str | Summarizer | None = None,
        payment: Payment = "digest",
        offers_recall: bool = False,
        max_open_sessions: int = MAX_HELD_SESSIONS,
        clock: Clock = now_ms,
    ) -> None:
        self.store = open_store(store)
        self._owns_store = isinstance(store, str)
        self.store_url = store if isinstance(store, str) else None
        """Where the store is; None if it was opened elsewhere."""
        self._policy = policy_named(policy)
        self.policies: Mapping[str, Policy] = {**PRESETS, **(policies or {})}
        """The policies that requests may name."""
        self._budget = budget
        self.summarizer = summarizer
        """Writes the summaries of all sessions, with a key of its own."""
        self._payment: Payment = payment
        self._queue: CompactionQueue | None = None
        """Where summaries are left that any gateway can write."""
        self._queue_here: CompactionQueue | None = None
        """Where summaries are left that need the key of a client, which only this process has."""
        self._offers_recall = offers_recall
        self._clock = clock
        self._max_open = max_open_sessions
        self._open: OrderedDict[str, OpenSession] = OrderedDict()
        self._opening: dict[str, asyncio.Task[OpenSession]] = {}
        self._index = AnswerIndex(self.store)
        self._recent = _Newest[tuple[str, str], deque[str]]()
        """By namespace and session, the last prompts."""
        self._agent_sessions = _Newest[str, str]()
        """By the name that a sub-agent gives its own session, the session it works in."""
        self._delegated = _Newest[tuple[str, Wire, str], tuple[str, str]]()
        """By namespace, wire and argument of a call: the call's session, and a name for the sub-agent that gets it."""
        self._summaries: deque[tuple[str, str, str]] = deque(maxlen=MAX_RECENT)
        """Namespace, session and text of the last summaries that clients had written."""
        self._by_first = _Newest[tuple[str, Wire, bytes], _Newest[str, None]]()
        """By the first message as it came, the open sessions that begin with it."""
        self._alternating = _Newest[_Server, None]()
        """What has refused neighbors of one role."""
        self._by_cache_key = _Newest[str, str]()
        self._begun_by_side_call = _Newest[tuple[str, bytes], str]()
        """By namespace and words, the session of a side call about a conversation whose first turn is yet to come."""
        self._tasks: set[asyncio.Task[object]] = set()
        self._has_other_writers = False
        """Whether another process has written to a session that is open here: then others may be outdated too."""
        self.is_stopping = False
        """Whether the gateway stops as soon as running exchanges have ended."""

    async def warm_up(self) -> None:
        """Connect to the store, and load the vocabularies of the models that its last conversations use.

        A vocabulary takes some 200 ms in which nothing else runs here. A gateway that is started again does it before
        it serves, because else its first streams would wait. Whatever fails is done with the first request.
        """
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(WARM_UP_SECONDS):
                newest = await self.store.sessions(limit=WARM_UP_SESSIONS)
                keys = [session_value_key(info.id, "client") for info in newest]
                clients = await asyncio.gather(*map(self.store.get_value, keys))
            for model in {str(client["model"]) for client in clients if client and client.get("model")}:
                await asyncio.to_thread(counter_for(model).count, model)

    async def receive(self, request: ClientRequest) -> "Exchange":
        """Record the new messages of a request, and return its exchange; raises `RecordingError`.

        A body that is no request of its wire is not recorded: its exchange has no session. The upstream will refuse it.
        """
        reading = _read_request(request, self._last_body(request))
        if reading is None:
            exchange = Exchange(request)
            if request.body:
                exchange.headers["x-holdfast-error"] = f"not recorded: the body has no messages of {request.wire}"
            return exchange
        try:
            return await self.run_to_completion(self._until_current(lambda: self._receive(reading)))
        except (HoldfastError, ValueError) as error:
            raise RecordingError(str(error)) from error

    def _last_body(self, request: ClientRequest) -> ClientBody | None:
        """Return the last body of the conversation that a request names, if it does so outside of its own body."""
        name = name_outside_body(request.session_in_path, request.headers)
        opened = self._open.get(session_id_for(request.namespace, name)) if name else None
        lane = opened.lanes.get(MAIN_LANE) if opened else None
        return lane.last_body if lane else None

    async def _until_current(self, record: Callable[[], Awaitable[T]]) -> T:
        """Record something, and again if another process has written to its session meanwhile."""
        for _ in range(MAX_OVERTAKEN):
            try:
                return await record()
            except ConcurrentWriteError:
                self._has_other_writers = True
        return await record()

    async def close(self) -> None:
        """Finish what is being recorded, and close all sessions."""
        self.is_stopping = True
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

    def use_queues(self, queue: CompactionQueue, here: CompactionQueue) -> None:
        """Leave the summaries of sessions that are opened from now on to workers.

        `here` is for those that need the key of a client: their jobs begin in this process.
        """
        self._queue, self._queue_here = queue, here

    @asynccontextmanager
    async def session_for_job(self, session_id: str) -> AsyncGenerator[Session]:
        """Hold a session open whose compaction was left to this process."""
        async with self.session(session_id) as opened:
            async with opened.lock:
                await self.use_policy(opened, opened.choice)
            yield opened.session

    async def delete(self, session_id: str) -> bool:
        """Delete a session with all that belongs to it, and return whether it existed."""
        async with self.session(session_id) as opened, opened.lock:
            del self._open[session_id]
            await self._close_session(opened)
            return await self.store.delete(session_id)

    async def run_to_completion(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of work that is finished even if the caller is cancelled."""
        return await asyncio.shield(self._start(work))

    def _start(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Start work that is finished before the recorder is closed."""

        def forget(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # the caller may be gone

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(forget)
        return task

    # Open sessions.

    async def _acquire(self, session_id: str) -> OpenSession:
        while (opened := self._open.get(session_id)) is None:
            task = self._opening.get(session_id)
            if task is None:
                task = self._opening[session_id] = asyncio.ensure_future(self._open_session(session_id))
            await asyncio.shield(task)
        if opened.is_outdated or (self._has_other_writers and not opened.users):
            news, stored = await asyncio.gather(opened.session.refresh(), self._stored_values(session_id))
            opened.use_stored(stored)
            if news:
                opened.note_news()
            opened.is_outdated = False
        opened.users += 1
        self._open.move_to_end(session_id)
        return opened

    async def _open_session(self, session_id: str) -> OpenSession:
        async def open_it() -> Session:
            return await Session.open(
                session_id,
                store=self.store,
                policy=self._policy,
                summarizer=self.summarizer,
                compaction=CompactionOptions(queue=self._queue),
                clock=self._clock,
            )

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
        if not signals.agent and (task := self._delegated_task(reading)):
            index, session_id, agent = task
            if not await self._was_said_before(reading, index, session_id):
                async with self.session(session_id) as opened, opened.lock:
                    return await self._record_delegate(replace(reading, signals=replace(signals, agent=agent)), opened)
        if signals.name:
            session_id = session_id_for(request.namespace, signals.name)
            session_id = self._agent_sessions.get(session_id, session_id)
            if signals.agent:
                self._agent_sessions[session_id_for(request.namespace, signals.agent)] = session_id
            return await self._receive_named(reading, session_id)
        if signals.response_id:
            found = await self._index.sessions_with([response_link(request.namespace, signals.response_id)])
            session_id = found[1][-1] if found else self._new_id(request)
            async with self.session(session_id) as opened, opened.lock:
                return await self._record_continuation(reading, opened)
        return await self._receive_unnamed(reading)

    def _delegated_task(self, reading: _Reading) -> tuple[int, str, str] | None:
        """Return the index of a prompt that is an argument of a call, the call's session and a sub-agent's name."""
        if not self._delegated:
            return None
        for index, native in enumerate(reading.body.messages(0, FIRST_PROMPTS)):
            for text in texts_of(native) if is_prompt(native) else ():
                if found := self._delegated.get((reading.request.namespace, reading.request.wire, text.strip())):
                    return index, *found
        return None

    async def _was_said_before(self, reading: _Reading, index: int, caller_id: str) -> bool:
        """Return whether the message at an index is already in the conversation of its list.

        A model that searches often does so with the words of its user. These are then an argument of a call, and yet
        no task for a sub-agent: neither in the conversation of the call nor in another that began with them.
        """
        name, session_ids = reading.signals.name, [caller_id]
        if name:
            session_ids.append(session_id_for(reading.request.namespace, name))
        elif found := await self._index.sessions_with(self._read_near(reading).chain.answer_links()):
            session_ids += found[1]
        for session_id in dict.fromkeys(session_ids):
            async with self.session(session_id) as opened, opened.lock:
                if not (opened.session.history.format or "").startswith(reading.request.wire):
                    continue
                lane = await self._main_lane(opened, reading)
                listed = lane.read(reading.body)
                is_shared = lane.chain.shared_length(listed.chain) >= listed.lengths[index]
                if is_shared and not lane.is_other_agent(reading.body):
                    return True
        return False

    async def _receive_token_count(self, reading: _Reading) -> "Exchange":
        name = reading.signals.name
        session_id = session_id_for(reading.request.namespace, name) if name else ""
        if not session_id or (session_id not in self._open and not await self.store.length(session_id)):
            return Exchange(reading.request)
        async with self.session(session_id) as opened:
            return Exchange(reading.request, _SideSink(self, opened, reading, "other", Chain(reading.start)))

    async def _receive_named(self, reading: _Reading, session_id: str) -> "Exchange":
        async with self.session(session_id) as opened:
            known = opened.session.history.format
            if known is None or known.startswith(reading.request.wire):
                async with opened.lock:
                    return await self._record_named(reading, opened)
        # The client went on with another provider.
        async with self.session(f"{session_id}.{reading.request.wire}") as opened, opened.lock:
            return await self._record_named(reading, opened)

    async def _record_named(self, reading: _Reading, opened: OpenSession) -> "Exchange":
        if opened.is_empty and not (reading.signals.agent or _purpose_without_history(reading)):
            await self._copy_fork(reading, opened)
        if "conversation" in reading.body.fields and reading.request.wire == "openai-responses":
            return await self._record_continuation(reading, opened)
        return await self._record(reading, opened)

    async def _copy_fork(self, reading: _Reading, opened: OpenSession) -> None:
        """Begin a new session with the conversation that its first list continues, if another session has it."""
        chain = ClientList.read(reading.body, Chain(reading.start)).chain
        found = await self._index.sessions_with(chain.answer_links())
        if found is None or found[1][-1] == opened.id:
            return
        async with self.session(found[1][-1]) as source, source.lock:
            lane = await self._main_lane(source, reading)
            shared = lane.chain.shared_length(chain)
            if not shared:
                return
            at = lane.positions[shared] if shared < len(lane.positions) else None
            other = await source.session.fork(opened.id, at=at)
            await other.close()
            opened.has_recall = source.has_recall
        await opened.session.refresh()
        opened.lanes.clear()
        if opened.has_recall:
            await self._store_governing(opened)

    async def _receive_unnamed(self, reading: _Reading) -> "Exchange":
        """Find the conversation of a request by its messages."""
        request, body, key = reading.request, reading.body, reading.signals.cache_key
        listed = self._read_near(reading)
        chain = listed.chain
        is_candidate = partial(is_unnamed_session, namespace=request.namespace, cache_key=key)
        if found := await self._index.sessions_with(chain.answer_links(), is_candidate):
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
                    is_branch = not is_continued and lane.in_flight and not lane.is_other_agent(body)
                    is_new = is_branch or listed.has_prompt_after(opened.side_tips)
                    if reading.signals.purpose or not is_new:
                        return await self._record(reading, opened)
        elif session_id := self._session_with_summary(reading):
            async with self.session(session_id) as opened, opened.lock:
                return await self._record(reading, opened)
        elif (purpose := _purpose_without_history(reading)) and (session_id := self._session_quoted(reading)):
            async with self.session(session_id) as opened:
                return Exchange(request, _SideSink(self, opened, reading, purpose, chain))
        session_id = await self._id_for_cache_key(reading, listed) if key else self._id_of_first_turn(reading)
        async with self.session(session_id) as opened, opened.lock:
            if found:
                await self._copy_fork(reading, opened)
            return await self._record(reading, opened)

    def _id_of_first_turn(self, reading: _Reading) -> str:
        """Return a new session, or that of a side call about the same words that came before the first turn."""
        new_id, purpose = self._new_id(reading.request), reading.signals.purpose
        if not purpose and not self._begun_by_side_call:
            return new_id
        key = reading.request.namespace, hashlib.sha256(_text_of(reading.body).encode(errors="replace")).digest()
        session_id = self._begun_by_side_call.pop(key, new_id)
        if purpose:
            self._begun_by_side_call[key] = session_id
        return session_id

    async def _id_for_cache_key(self, reading: _Reading, listed: ClientList) -> str:
        """Return the session for a key that several conversations may share: that of the key, or a new one."""
        first = session_id_for(reading.request.namespace, reading.signals.cache_key or "")
        session_id = self._by_cache_key.get(first, first)
        async with self.session(session_id) as opened, opened.lock:
            lane = await self._main_lane(opened, reading)
            is_repeated = lane.chain.tip == listed.chain.tip  # also where both are empty
            is_beside = lane.is_other_agent(reading.body) or orders_a_summary(listed.last)
            is_here = not lane.chain.links or is_repeated or is_beside
            has_summary = client_summary_in(listed.text_after(0), opened.session.history.session_state.client_summaries)
            if not (is_here or has_summary):
                session_id = f"{first}.{secrets.token_hex(4)}"
        self._by_cache_key[first] = session_id
        return session_id

    async def _choose_session(
        self, reading: _Reading, chain: Chain, session_ids: Sequence[str]
    ) -> tuple[str | None, bool]:
        """Return one of the sessions that have an answer of the list, and whether the list continues all it has."""
        fallback: str | None = None
        for session_id in list(reversed(session_ids))[:MAX_ALIKE_SESSIONS]:
            async with self.session(session_id) as opened, opened.lock:
                if not len(opened.session):
                    continue  # it was deleted
                lane = await self._main_lane(opened, reading)
                if lane.chain.shared_length(chain) == len(lane.chain.links):
                    return session_id, True
                fallback = fallback or session_id
        return fallback, False

    def _read_near(self, reading: _Reading) -> ClientList:
        """Return the list of a request, with the help of the open session whose list is most like it."""
        body, best, nearest = reading.body, 0, None
        for session_id in self._by_first.get(_first_key(reading), ()):
            opened = self._open.get(session_id)
            lane = opened.lanes.get(MAIN_LANE) if opened else None
            if lane and (same := lane.count_same(body)) > best:
                best, nearest = same, lane
        return nearest.read(body) if nearest else ClientList.read(body, Chain(reading.start))

    def _session_with_summary(self, reading: _Reading) -> str | None:
        """Return the session whose summary, written for a compaction of its client, is in a list."""
        text = _text_of(reading.body)
        for namespace, session_id, summary in reversed(self._summaries):
            is_own = namespace == reading.request.namespace and len(summary) >= MIN_SUMMARY_CHARS
            if is_own and client_summary_in(text, (summary,)):
                return session_id
        return None

    def _session_quoted(self, reading: _Reading) -> str | None:
        """Return the session whose last prompts a side call quotes, that with most of them."""
        text, namespace = _text_of(reading.body), reading.request.namespace
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
        """Return the main agent's lane, read from the log if the session was just opened or others have written."""
        lane = opened.lanes.get(MAIN_LANE)
        if lane and not lane.is_behind:
            return lane
        # What is recorded next fails if another process has written since.
        numbered = await opened.session.numbered_messages(refreshes=False)
        numbered = [*dropwhile(lambda one: one[1].get("role") in ("system", "developer"), numbered)]
        if lane is None or opened.has_recall or not lane.catch_up(reading.request.wire, numbered, opened.agent):
            lane = Lane(opened.session, Chain(reading.start), opened.agent, has_recall=opened.has_recall)
            lane.add_recorded(reading.request.wire, numbered)
        opened.lanes[MAIN_LANE] = lane
        return lane

    async def _record(self, reading: _Reading, opened: OpenSession) -> "Exchange":
        """Record a request in its session. Caller must hold the session's lock."""
        if reading.signals.agent:
            return await self._record_delegate(reading, opened)
        lane = await self._main_lane(opened, reading)
        listed = lane.read(reading.body)
        shared = lane.chain.shared_length(listed.chain)
        if shared < len(lane.chain.links) and await opened.session.refresh():
            # Another gateway went on with the session: the list is to be compared with what that one has recorded.
            opened.note_news()
            lane = await self._main_lane(opened, reading)
            listed = lane.read(reading.body)
            shared = lane.chain.shared_length(listed.chain)
        happened = await self._compare(reading, opened, lane, listed)
        if happened.side_call:
            return Exchange(reading.request, _SideSink(self, opened, reading, happened.side_call, listed.chain))
        async with self._writing(opened, MAIN_LANE, lane):
            if opened.is_empty:
                await self._offer_recall(reading, opened, lane)
            await self._end_answered_delegates(opened, listed, shared)
            if happened.summary is not None:
                natives = [*reading.body.leading_messages(), *reading.body.messages()]
                name = opened.session.history.format or _format_for(reading.body)
                await opened.session.sync(natives, format=name, compacted=happened.summary)
                agent = opened.lanes.pop(MAIN_LANE).agent
                lane = await self._main_lane(opened, reading)
                lane.agent = agent
            else:
                await self._go_on(opened, lane, listed, shared)
            saving = self._remember_client(reading, opened, lane)
            lane.keep(listed)
            exchange = await self._govern(reading, opened, lane, listed)
        if saving:
            await saving
        self._remember_prompt(reading, opened, listed)
        exchange.record_with(_LaneSink(self, opened, reading, MAIN_LANE, lane))
        return exchange

    @asynccontextmanager
    async def _writing(self, opened: OpenSession, name: str, lane: Lane) -> AsyncGenerator[None]:
        """Write new messages and the request with them at once; if that fails, the lane is read again from the log."""
        try:
            async with lane.conversation.one_write():
                yield
        except BaseException:
            opened.lanes.pop(name, None)
            opened.is_outdated = True
            raise

    async def _go_on(self, opened: OpenSession, lane: Lane, listed: ClientList, shared: int) -> None:
        """Make the log of the main agent the same as its list: go back to where they differ, and record the rest."""
        if shared < len(lane.chain.links):
            await opened.session.rewind(to=lane.positions[shared])
        elif lane.open_answer is not None:
            await opened.session.rewind(to=lane.open_answer.position)
        lane.open_answer = None
        await self._append(opened, lane, listed, shared)

    async def _append(self, opened: OpenSession, lane: Lane, listed: ClientList, shared: int) -> None:
        """Record the messages of a list after those that the lane shares with it."""
        first = listed.first_after(shared)
        leading = listed.body.leading_messages() if opened.is_empty else []
        natives = [*leading, *listed.body.messages(first)]
        if listed.body.wire == "gemini" and shared and natives:
            [answer] = await opened.session.messages_at(lane.positions[shared - 1])
            natives[0] = without_given_ids(answer, natives[0])
        name = opened.session.history.format or _format_for(listed.body)
        places = await lane.conversation.record(natives, format=name) if natives else range(0)
        lane.note_reasoning(natives[len(leading) :], places[len(leading) :])
        lengths = listed.lengths[first:]
        numbered = zip(places[len(leading) :], [shared, *lengths], lengths, strict=False)
        lane.chain = listed.chain
        lane.positions = lane.positions[:shared] + [place for place, before, after in numbered if after > before]

    async def _compare(self, reading: _Reading, opened: OpenSession, lane: Lane, listed: ClientList) -> "_Happened":
        """Return what a list says has happened since the last one."""
        body, signals, chain = reading.body, reading.signals, listed.chain
        shared, recorded = lane.chain.shared_length(chain), len(lane.chain.links)
        if signals.purpose:
            return _Happened(side_call=signals.purpose)
        if not recorded:
            return _Happened(side_call=side_purpose_of_words(body))
        if lane.is_other_agent(body) and not listed.has_prompt_after(opened.side_tips):
            return _Happened(side_call=side_purpose_of_words(body) or ("memory" if shared == recorded else "other"))
        is_order = orders_a_summary(listed.last)
        if shared == recorded:
            return _Happened(side_call="summary" if is_order and len(chain.links) > recorded else None)
        if is_order:
            return _Happened(side_call="summary")
        summaries, text = opened.session.history.session_state.client_summaries, listed.text_after(shared)
        if found := client_summary_in(text, summaries):
            return _Happened(summary=found)
        if signals.has_compacted or (signals.window and opened.window not in {None, signals.window}):
            return _Happened(summary=summaries[-1] if summaries else text)
        if await self._adds_an_order(opened, lane, listed):
            return _Happened(side_call="summary")
        return _Happened(side_call="other" if lane.in_flight and len(chain.links) > shared else None)

    async def _adds_an_order(self, opened: OpenSession, lane: Lane, listed: ClientList) -> bool:
        """Return whether a list ends with an earlier recorded message to which an order was added.

        That is how a client orders a summary of a part of its list: nobody edits a message by adding a block to it
        after later ones were answered.
        """
        shared, content = lane.chain.shared_length(listed.chain), listed.last.get("content")
        is_earlier = len(listed.chain.links) == shared + 1 and len(lane.positions) > shared + 1
        if not is_list(content) or not is_earlier:
            return False
        [recorded] = await opened.session.messages_at(lane.positions[shared])
        before = essential_message(recorded).get("content")
        first = len(before) if is_list(before) else 0
        return first > 0 and essential_message({**listed.last, "content": content[:first]}).get("content") == before

    async def _record_continuation(self, reading: _Reading, opened: OpenSession) -> "Exchange":
        """Record a list that holds only what is new, because the provider keeps the rest."""
        lane = await self._main_lane(opened, reading)
        listed, shared = self._continuation(reading, opened, lane)
        exchange = Exchange(reading.request)
        async with self._writing(opened, MAIN_LANE, lane):
            if opened.is_empty:
                await self._offer_recall(reading, opened, lane)
            await self._go_on(opened, lane, listed, shared)
            saving = self._remember_client(reading, opened, lane)
        if saving:
            await saving
        if tools := self._recall_tools(reading, lane, exchange):
            exchange.body = with_members(
                exchange.body, {"tools": tools, **await self._continued_response(reading, opened)}
            )
            exchange.headers["x-holdfast-compacted"] = "1"
        exchange.record_with(_LaneSink(self, opened, reading, MAIN_LANE, lane))
        return exchange

    def _continuation(self, reading: _Reading, opened: OpenSession, lane: Lane) -> tuple[ClientList, int]:
        """Return a list that holds only what is new after what was before it, and how much of both the lane has.

        Normally a request follows the newest answer. One that is sent again follows the one before it: the newest
        answer was cut, or did not come.
        """
        recorded = len(lane.chain.links)
        end, tip = opened.response_ends.get(reading.signals.response_id or "", (0, b""))
        if 0 < end <= recorded and lane.chain.links[end - 1] == tip:
            listed = ClientList.read(reading.body, lane.chain.first(end))
            shared = lane.chain.shared_length(listed.chain)
            if shared == recorded or not lane.in_flight:
                return listed, shared
        listed = ClientList.read(reading.body, lane.chain.first(recorded))
        if 0 < (count := len(listed.chain.links) - recorded) <= recorded:
            # Where the answer that it follows is not known any more, the end of the log tells a repeated request.
            repeated = ClientList.read(reading.body, lane.chain.first(recorded - count))
            listed = repeated if repeated.chain.tip == lane.chain.tip else listed
        return listed, recorded

    async def _continued_response(self, reading: _Reading, opened: OpenSession) -> dict[str, bytes]:
        """Return the response that a request continues, if the client knows only the first part of it."""
        named = reading.signals.response_id
        link = response_link(reading.request.namespace, named) if named else None
        rest = await self._index.rest_of(link, opened.id) if link else ""
        return {"previous_response_id": msgspec.json.encode(rest)} if rest else {}

    # Sub-agents.

    async def _record_delegate(self, reading: _Reading, opened: OpenSession) -> "Exchange":
        """Record a request of a sub-agent, in a scope of its own."""
        body, signals, name = reading.body, reading.signals, reading.signals.agent or ""
        lane = opened.lanes.get(name)
        listed = lane.read(body) if lane else ClientList.read(body, Chain(reading.start))
        if signals.purpose:
            return Exchange(reading.request, _SideSink(self, opened, reading, signals.purpose, listed.chain))
        shared = lane.chain.shared_length(listed.chain) if lane else 0
        if lane is None or shared < len(lane.chain.links):
            # It is new, or its list has changed: it goes on in a new scope, and what it did before stays.
            task = "\n".join(texts_of(body.message(0)))[-MAX_DELEGATED_CHARS:]
            # What the main agent hears of it unasked is in the list of its client.
            context = opened.session.delegate(
                signals.agent_type, task=task, sees=SEES_NOTHING, main_sees="recall", adds_task_message=False
            )
            lane = Lane(await opened.delegates.enter_async_context(context), Chain(reading.start))
            shared = 0
        async with self._writing(opened, name, lane):
            opened.lanes[name] = lane
            await self._append(opened, lane, listed, shared)
            lane.keep(listed)
            exchange = await self._govern(reading, opened, lane, listed)
        exchange.record_with(_LaneSink(self, opened, reading, name, lane))
        return exchange

    # Governing.

    async def choose(self, opened: OpenSession, choice: GoverningChoice) -> None:
        """Govern a session in another way from now on; raises `SettingsError` for a policy that there is not."""
        self.check_policy(choice)
        opened.choice = choice
        await self._store_governing(opened)

    async def _store_governing(self, opened: OpenSession) -> None:
        value = {"choice": msgspec.to_builtins(opened.choice), "compacted": opened.has_compacted}
        if opened.has_recall:
            value["recall"] = True
        await self.store.put_value(session_value_key(opened.id, "governing"), value)

    def check_policy(self, choice: GoverningChoice) -> None:
        """Check that there is a policy of that name."""
        if choice.policy is not None and choice.policy not in self.policies:
            known = ", ".join(self.policies)
            raise SettingsError("policy", f"none is called {choice.policy!r:.60}; there are {known}")

    async def use_policy(self, opened: OpenSession, choice: GoverningChoice, *, has_key: bool | None = None) -> None:
        """Give a session the policy that was chosen for it or the gateway's, and a summarizer if it has a key."""
        policy = self.policies[choice.policy] if choice.policy else self._policy
        has_key = opened.has_key if has_key is None else has_key
        if policy is opened.policy and has_key is opened.has_key:
            return
        options = None
        if self.summarizer is None:
            options = CompactionOptions(automatic=opened.summarizer if has_key else None, queue=self._queue_here)
        await opened.session.set_policy(policy, compaction=options)
        opened.policy, opened.has_key = policy, has_key

    @property
    def may_use_client_keys(self) -> bool:
        """Whether the keys of clients may pay for summaries."""
        return self.summarizer is None and self._payment != "digest"

    def _take_key(self, reading: _Reading, opened: OpenSession) -> bool:
        """Return whether summaries may be written with the key of a request, which then is the one to use."""
        access, model = reading.request.access, reading.body.model
        if not self.may_use_client_keys or access is None or model is None or not access.pays(self._payment):
            return False
        return opened.summarizer.use(reading.request.wire, model, access, reading.request.body)

    async def _govern(self, reading: _Reading, opened: OpenSession, lane: Lane, listed: ClientList) -> "Exchange":
        """Return an exchange with the body that fits the budget: the client's own bytes where nothing had to change."""
        exchange, wanted = Exchange(reading.request), reading.request.governing
        choice = wanted.choice.otherwise(opened.choice)
        await self.use_policy(opened, choice, has_key=self._take_key(reading, opened))
        body, raw, model = reading.body, reading.request.body, model_of(reading.request.path, reading.body)
        server = _Server(body.wire, reading.request.upstream, model)
        extras, recall_tools = lane.extras_of(body), self._recall_tools(reading, lane, exchange)
        tools = extras.tools if recall_tools is None else [*(extras.tools or ()), RECALL_DEFINITIONS[body.wire]]

        def encode(prepared: Request) -> bytes:
            is_untouched = prepared.receipt.is_unchanged and not lane.hidden
            slices: Mapping[int, msgspec.Raw] = {} if is_untouched else lane.recorded_slices(listed)
            is_cut = not is_whole(prepared, slices)
            left_out = lane.tokens_left_out(prepared, slices, model) if slices and not is_cut else 0
            is_over = prepared.tokens.total + left_out > prepared.receipt.budget.tokens
            is_changed = is_cut or (left_out > 0 and is_over and compacts)
            has_hidden = bool(lane.hidden) and not lane.hidden.isdisjoint(prepared.positions)
            changes = is_changed or has_hidden
            exchange.body = raw
            if changes:
                hidden, joins = lane.hidden_slices(listed), server in self._alternating
                exchange.body = governed_body(raw, body, slices, prepared, hidden, joins=joins)
            if recall_tools is not None:
                exchange.body = with_members(exchange.body, {"tools": recall_tools})
            exchange.is_compacted = is_changed
            tokens = prepared.tokens.total + (0 if changes else left_out)
            exchange.describe(prepared, tokens, has_compacted=is_changed or opened.has_compacted)
            return exchange.body

        async def prepare() -> Request:
            return await lane.conversation.prepare(
                budget,
                model=model,
                endpoint=reading.request.upstream,
                system=extras.system,
                tools=tools,
                has_recall=None if recall_tools is None else True,
                encode_body=encode,
                compacts=compacts,
            )

        budget, compacts = choice.budget or self._budget, choice.compaction in {None, "auto"}
        exchange.prepare_again = prepare
        try:
            if wanted.compacts_now:
                await self._compact_now(exchange, lane, budget)
            prepared = await prepare()
            if exchange.is_compacted and not opened.has_compacted:
                opened.has_compacted = True
                await self._store_governing(opened)
            opened.compaction_due = prepared.compaction_due if choice.compaction == "ask" else ""
            exchange.headers |= {COMPACTION_HEADER: "due"} if opened.compaction_due else {}
        except (ConcurrentWriteError, StoreError):
            # Not governed, because the log was not read: then the request is received again, or not recorded at all.
            raise
        except (HoldfastError, ValueError) as error:
            # What cannot be governed goes on as it came; the provider has the last word.
            exchange.headers["x-holdfast-error"] = header_line(f"not governed: {error}")
        else:
            exchange.shrink = partial(self._make_acceptable, exchange, lane, server) if compacts else None
        return exchange

    async def _make_acceptable(
        self, exchange: "Exchange", lane: Lane, server: _Server, error: str, status: int
    ) -> None:
        """Make the body of a request acceptable after a refusal: smaller, or with messages of one role joined."""
        refusal = classify(error, status=status)
        with exchange.unless_it_fails():
            # A client that has neighbors of one role by itself hears what its server says to it.
            is_ours = exchange.is_compacted and server.wire in JOINABLE_WIRES and server not in self._alternating
            if is_ours and refusal is not None and refusal.wants_alternating_roles and exchange.prepare_again:
                self._alternating[server] = None
                await exchange.prepare_again()
            else:
                await lane.conversation.retry(error, status=status)

    # Recall.

    async def _offer_recall(self, reading: _Reading, opened: OpenSession, lane: Lane) -> None:
        """Give the model the recall tool, if the first request of a conversation asks for it and can have it."""
        asked = reading.request.governing.recalls
        if not (self._offers_recall if asked is None else asked) or tools_with_recall(reading.body) is None:
            return
        opened.has_recall = lane.has_recall = True
        await self._store_governing(opened)

    def _recall_tools(self, reading: _Reading, lane: Lane, exchange: "Exchange") -> bytes | None:
        """Return the tools of a request with the recall tool; None if it goes without."""
        if not lane.has_recall:
            if reading.request.governing.recalls:
                exchange.headers[RECALL_HEADER] = "off"
            return None
        tools = tools_with_recall(reading.body) if has_one_choice(reading.body.wire, reading.request.body) else None
        exchange.has_recall = tools is not None
        exchange.headers[RECALL_HEADER] = "off" if tools is None else "on"
        return tools

    async def answer_recall(
        self, exchange: "Exchange", sink: "_LaneSink", answer: Answer, duration_ms: int
    ) -> bytes | None:
        """Answer the calls of `recall` in an answer, and return the request that continues it.

        None means that the answer is over: the client has calls to answer first, or there are none of ours.
        """
        wire, opened, lane = sink.reading.request.wire, sink.opened, sink.lane
        calls = recall_calls(wire, answer.messages)
        is_over = not calls or has_other_calls(wire, answer.messages) or not answer.is_complete
        if is_over or sink.rounds > MAX_RECALL_ROUNDS:
            return None
        results = await self._recall_results(sink, calls)
        sink.rounds += 1
        async with opened.lock:
            if not self._is_current(sink):
                return _continued_body(exchange.body, sink.reading, [*answer.messages, *results])
            async with self._writing(opened, sink.lane_name, lane):
                await self._append_messages(sink, answer, duration_ms, results)
                if exchange.prepare_again is None:
                    await self._index_response(sink, answer)
                    return _continued_body(exchange.body, sink.reading, [*answer.messages, *results])
                await exchange.prepare_again()
        await self._index_response(sink, answer)
        return exchange.body

    async def _recall_results(self, sink: "_LaneSink", calls: Sequence[RecallCall]) -> list[JsonObject]:
        wire, tool = sink.reading.request.wire, sink.opened.session.recall_tool()
        if sink.rounds == MAX_RECALL_ROUNDS:
            return recall_results(wire, calls, [NO_MORE_ROUNDS] * len(calls))
        return recall_results(wire, calls, [await tool.call(call.arguments) for call in calls])

    async def _compact_now(self, exchange: "Exchange", lane: Lane, budget: int | None) -> None:
        """Compact by rule before a request, because it says so; a model's summary would take too long here."""
        try:
            preview = await lane.conversation.preview(budget=budget)
            await lane.conversation.apply_preview(preview, budget=budget)
        except CompactionError as error:
            exchange.headers["x-holdfast-error"] = header_line(f"not compacted: {error}")

    async def _end_answered_delegates(self, opened: OpenSession, listed: ClientList, shared: int) -> None:
        """End the delegations whose last answer the main agent received."""
        if len(opened.lanes) == 1:
            return
        text = listed.text_after(shared)
        for name, lane in list(opened.lanes.items()):
            answer = lane.last_text.strip()
            if isinstance(lane.conversation, Delegate) and not lane.in_flight and answer and answer in text:
                await lane.conversation.answer(lane.last_text)
                del opened.lanes[name]

    # What is kept for the next request.

    def _remember_client(self, reading: _Reading, opened: OpenSession, lane: Lane) -> asyncio.Task[None] | None:
        """Note who speaks; return what stores that if it is new, at the same time as the messages."""
        agent = lane.agent_of(reading.body)
        opened.window = reading.signals.window or opened.window
        known, opened.session.model = opened.session.model, reading.body.model
        key = _first_key(reading)
        alike = self._by_first[key] = self._by_first.get(key) or _Newest[str, None]()
        alike[opened.id] = None
        if agent == lane.agent and known in {None, reading.body.model}:
            return None
        opened.agent = lane.agent = agent
        client = {"client": reading.request.headers.get("user-agent", "")[:200], "wire": reading.request.wire}
        client["model"] = reading.body.model or ""
        return self._start(self.store.put_value(session_value_key(opened.id, "client"), client | agent.to_json()))

    def _remember_prompt(self, reading: _Reading, opened: OpenSession, listed: ClientList) -> None:
        if is_prompt(listed.last) and (texts := texts_of(listed.last)):
            key = reading.request.namespace, opened.id
            prompts = self._recent[key] = self._recent.get(key) or deque[str](maxlen=MAX_QUOTED_PROMPTS)
            prompts.append(texts[-1].strip()[:MAX_QUOTED_CHARS])

    async def record_answer(self, sink: "_LaneSink", answer: Answer, duration_ms: int) -> None:
        """Record an answer in the conversation of its request."""
        opened = sink.opened
        async with opened.lock:
            sink.lane.in_flight -= 1
            tip, open_answer = sink.tip, sink.open_answer

            async def append() -> bool:
                sink.tip, sink.open_answer = tip, open_answer
                return await self._append_if_current(sink, answer, duration_ms)

            if not await self._until_current(append):
                # The client went on without this answer: another request was faster.
                await record_side_answer(opened.session, answer, "other")
                return
            if not answer.is_complete:
                await sink.lane.conversation.interrupt()
            if sink.lane_name != MAIN_LANE:
                return
            tip = sink.lane.chain.tip
            if sink.reading.signals.name:
                opened.unsaved_tip = tip
                self._index.remember(tip, opened.id)
            else:
                await self._index.add(tip, opened.id)
            await self._index_response(sink, answer)

    async def _append_if_current(self, sink: "_LaneSink", answer: Answer, duration_ms: int) -> bool:
        """Record an answer after the messages of its request; return False if something else follows them already.

        Another gateway may have written to the session meanwhile. A whole answer still belongs to the conversation if
        nothing was said since. One that was cut does not: its client has asked another gateway for a whole one.
        """
        is_main = sink.lane_name == MAIN_LANE
        if is_main:
            sink.lane = await self._main_lane(sink.opened, sink.reading)
        if not self._is_current(sink) or not (answer.is_complete or sink is sink.lane.newest):
            return False
        # Nobody else writes in the scope of a sub-agent: its answer may follow whatever others have recorded.
        async with self._writing(sink.opened, MAIN_LANE, sink.lane) if is_main else nullcontext():
            await self._append_answer(sink, answer, duration_ms)
        return True

    def _is_current(self, sink: "_LaneSink") -> bool:
        """Return whether the client still waits for this answer, and nothing came in between."""
        lane = sink.lane
        is_same = lane.chain.tip == sink.tip and _place_of(lane.open_answer) == _place_of(sink.open_answer)
        return is_same and sink.opened.lanes.get(sink.lane_name) is lane

    async def _index_response(self, sink: "_LaneSink", answer: Answer) -> None:
        """Remember which session has a response that the provider keeps, and where the rest of it is."""
        fields, request = sink.reading.body.fields, sink.reading.request
        if not answer.response_id or fields.get("store") is False or request.wire != "openai-responses":
            return
        sink.response_ids.append(answer.response_id)
        end = len(sink.lane.chain.links), sink.lane.chain.tip
        sink.opened.response_ends.update(dict.fromkeys(sink.response_ids, end))
        await self._index.add(response_link(request.namespace, answer.response_id), sink.opened.id)
        if len(sink.response_ids) > 1:
            first = response_link(request.namespace, sink.response_ids[0])
            await self._index.add(first, sink.opened.id, goes_on_in=answer.response_id)

    async def _append_answer(self, sink: "_LaneSink", answer: Answer, duration_ms: int) -> None:
        opened, lane = sink.opened, sink.lane
        wire, namespace = sink.reading.request.wire, sink.reading.request.namespace
        results: list[JsonObject] = []
        if lane.has_recall and (calls := recall_calls(wire, answer.messages)):
            if answer.is_complete and has_other_calls(wire, answer.messages):
                results = await self._recall_results(sink, calls)
            else:
                # Nobody answers these calls any more.
                answer = replace(answer, messages=without_recall_calls(wire, answer.messages))
        if not answer.messages or not _says_something(answer):
            if answer.usage:
                await record_side_answer(opened.session, answer, "other")
        else:
            await self._append_messages(sink, answer, duration_ms, results)
            for text in argument_texts(answer):
                if MIN_QUOTED_CHARS <= len(text) <= MAX_DELEGATED_CHARS:
                    agent = f"task-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}"
                    self._delegated[namespace, wire, text.strip()] = opened.id, agent

    async def _append_messages(
        self, sink: "_LaneSink", answer: Answer, duration_ms: int, results: Sequence[JsonMapping]
    ) -> None:
        """Record what an answer says, and the results of its calls of `recall`."""
        lane, wire, name = sink.lane, sink.reading.request.wire, sink.opened.session.history.format
        usage = usage_of(answer)
        places = await lane.conversation.record(answer.messages, format=name, usage=usage, duration_ms=duration_ms)
        lane.add_answer(wire, answer.messages, places)
        lane.last_text = answer_text(answer)
        if results:
            places = await lane.conversation.record(results, format=name)
            lane.add_recorded(wire, [*zip(places, results, strict=True)])
        sink.tip, sink.open_answer = lane.chain.tip, lane.open_answer

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
    usage = usage_of(answer)
    if answer.messages or usage:
        await session.record_side_call(answer_text(answer), purpose=purpose, model=answer.model, usage=usage)


def usage_of(answer: Answer) -> Usage | None:
    """Return what an answer cost; None if there is no report, or none that can be read."""
    if answer.usage is None:
        return None
    try:
        return read_usage(answer.usage)
    except SettingsError:
        return None


class _LaneSink:
    """Where the answer of a conversation goes."""

    def __init__(self, recorder: Recorder, opened: OpenSession, reading: _Reading, lane_name: str, lane: Lane) -> None:
        self.recorder, self.opened, self.reading = recorder, opened, reading
        self.lane_name, self.lane = lane_name, lane
        self.tip = lane.chain.tip
        """The link after the last message of the request."""
        self.open_answer: OpenAnswer | None = None
        """What was recorded of the answer so far, if `recall` was called in it."""
        self.rounds = 0
        """How often `recall` was answered."""
        self.response_ids: list[str] = []
        lane.newest = self
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
        self.session_id = ""
        """Empty if the request is not recorded."""
        self.request_id = secrets.token_hex(8)
        self._received = self.body = request.body
        """What to send: the client's own bytes where nothing was compacted."""
        self.headers: dict[str, str] = {"x-holdfast-request": self.request_id}
        self.beta = ""
        """A feature of the provider that the body uses and the client has not named."""
        self.tokens = 0
        """What the answer cost, input and output together, once it is finished; 0 if the provider did not say."""
        self.shrink: Callable[[str, int], Awaitable[None]] | None = None
        """Makes `body` acceptable after a refusal, most often smaller; raises `HoldfastError` if nothing helps."""
        self.prepare_again: Callable[[], Awaitable[Request]] | None = None
        """Makes `body` the request that follows what was recorded since; None if requests are not governed."""
        self.has_recall = False
        """Whether calls of `recall` in the answer are for the gateway."""
        self.is_compacted = False
        self._wire: Wire = request.wire
        self._sink: _LaneSink | _SideSink | None = None
        if sink is not None:
            self.record_with(sink)
        self._chunks: list[bytes] = []
        self._size = 0
        self._started = monotonic()

    def record_with(self, sink: _LaneSink | _SideSink) -> None:
        """Say where the answer goes."""
        self._sink, self.session_id = sink, sink.opened.id
        self.headers["x-holdfast-session"] = self.session_id

    @contextmanager
    def unless_it_fails(self) -> Generator[None]:
        """Keep body and headers if there is no smaller request: the answer tells of the one that was sent."""
        sent = self.body, self.is_compacted, dict(self.headers)
        try:
            yield
        except HoldfastError:
            self.body, self.is_compacted, self.headers = sent
            raise

    def describe(self, prepared: Request, tokens: int, *, has_compacted: bool) -> None:
        """Complete the body of a prepared request, and tell in headers what was done for it, and its tokens."""
        self.headers["x-holdfast-tokens"] = str(tokens)
        self.headers["x-holdfast-budget"] = str(prepared.receipt.budget.tokens)
        if has_compacted and (thinking := thinking_that_drops_blocks(self._wire, self.body)):
            self.body, self.beta = with_members(self.body, {"thinking": thinking}), BINDING_BETA
        if self.body is not self._received:
            self.headers["x-holdfast-compacted"] = "1"

    def feed(self, chunk: bytes) -> None:
        """Take bytes of a successful answer as they arrive."""
        if self._sink is not None and not self._size:
            self._sink.opened.summarizer.note_answer()
        if self._sink is not None and self._size < MAX_ANSWER_BYTES:
            self._chunks.append(chunk)
            self._size += len(chunk)

    async def continue_answer(self) -> bytes | None:
        """Answer the model's calls of `recall`, and return the request for the rest of its answer; None if it is over.

        Raises `RecordingError`.
        """
        sink = self._sink
        assert isinstance(sink, _LaneSink)  # noqa: S101 - only answers of a conversation have calls of `recall`
        duration_ms = int((monotonic() - self._started) * 1000)
        try:
            answer = await self._read_answer()
            work = sink.recorder.answer_recall(self, sink, answer, duration_ms)
            body = await sink.recorder.run_to_completion(work)
        except (HoldfastError, ValueError) as error:
            raise RecordingError(str(error)) from error
        if body is not None:
            if (usage := usage_of(answer)) is not None:
                self.tokens += usage.all_input_tokens + usage.output_tokens
            self.body, self._chunks, self._size, self._started = body, [], 0, monotonic()
        return body

    async def finish(self, ended: Ending, status: int) -> None:
        """Record how the answer ended; it is durable when this returns. A second call changes nothing."""
        sink, self._sink = self._sink, None
        if sink is None:
            return
        sink.opened.summarizer.note_answer()
        is_answer = ended != "refused" and status < HTTPStatus.BAD_REQUEST
        try:
            await sink.recorder.run_to_completion(self._store(sink, is_answer=is_answer))
        except (HoldfastError, ValueError) as error:
            raise RecordingError(str(error)) from error

    async def _read_answer(self) -> Answer:
        raw, wire = b"".join(self._chunks), self._wire
        if len(raw) <= MAX_INLINE_ANSWER_BYTES:
            return read_answer(wire, answer_events(wire, raw))
        return await asyncio.to_thread(lambda: read_answer(wire, answer_events(wire, raw)))

    async def _store(self, sink: _LaneSink | _SideSink, *, is_answer: bool) -> None:
        try:
            answer = await self._read_answer() if is_answer else None
            if answer is not None and (usage := usage_of(answer)) is not None:
                self.tokens += usage.all_input_tokens + usage.output_tokens
            await sink.store(answer, int((monotonic() - self._started) * 1000))
        finally:
            await sink.recorder.release(sink.opened)


def _continued_body(raw: bytes, reading: _Reading, natives: Sequence[JsonMapping]) -> bytes:
    """Return a request with more messages after its own; a conversation at the provider has those of the model."""
    member = LIST_MEMBERS[reading.request.wire]
    if "conversation" in reading.body.fields:
        natives = [native for native in natives if native.get("type") == "function_call_output"]
        return with_members(raw, {member: with_messages(reading.request.wire, b"[]", natives)})
    if reading.body.fields.get("store") is False:
        natives = [one for one in natives if not is_optional(one) or one.get("encrypted_content")]
    listed = bytes(members_of(raw)[member])
    return with_members(raw, {member: with_messages(reading.request.wire, listed, natives)})


def _place_of(answer: OpenAnswer | None) -> int | None:
    return None if answer is None else answer.position


def _says_something(answer: Answer) -> bool:
    said = ("content", "tool_calls", "parts", "refusal", "audio", "function_call")
    return any("type" in message or any(message.get(name) for name in said) for message in answer.messages)


def _text_of(body: ClientBody) -> str:
    return "".join(text for native in body.messages() for text in texts_of(native))


def _purpose_without_history(reading: _Reading) -> SideCallPurpose | None:
    """Return what a request is for if it says by itself that it is no turn of a conversation."""
    return reading.signals.purpose or side_purpose_of_words(reading.body)


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
