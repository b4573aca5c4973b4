"""Find the conversation of a request: by its name, by what its provider keeps, or by its messages.

Clients send their whole list with every request. What an earlier answer, a summary, a task for a sub-agent or a prompt
said tells which conversation a list without a name continues.
"""

import hashlib
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from holdfast.apps.gateway.recording.client_body import ClientBody, texts_of
from holdfast.apps.gateway.recording.client_list import MAIN_AGENT, ClientList
from holdfast.apps.gateway.recording.exchange import ClientRequest, ReadRequest
from holdfast.apps.gateway.recording.governing import model_of
from holdfast.apps.gateway.recording.identity import (
    MAX_RECENT,
    UNNAMED_PREFIX,
    Chain,
    Newest,
    compaction_hash,
    encoded_session_id,
    is_prompt,
    is_unnamed_session,
    name_outside_body,
    orders_a_summary,
    provider_compactions,
    response_hash,
    session_id_for,
    side_purpose_of_words,
)
from holdfast.apps.gateway.recording.open_sessions import OpenSession, OpenSessions
from holdfast.core.history.events import SideCallPurpose
from holdfast.dataclass import dataclass
from holdfast.session.calibration import ServedModel
from holdfast.session.log.event_log import Clock
from holdfast.session.sync import client_summary_in
from holdfast.wire.answers import Answer, Wire, argument_texts

MAX_ALIKE_SESSIONS = 64
"""How many conversations with the same answer are compared with a list."""
MIN_QUOTED_CHARS, MAX_QUOTED_CHARS, MAX_QUOTED_PROMPTS = 8, 200, 6
MIN_SUMMARY_CHARS = 24
"""A shorter summary does not identify a conversation."""
MAX_DELEGATED_CHARS, FIRST_PROMPTS = 20_000, 3
"""How long a sub-agent's task may be, and among how many first messages it is looked for."""
TASK_PREFIX = "task-"
"""How the names of sub-agents begin that are known by their tasks."""
TOKEN_COUNT_PATHS = ("/count_tokens", ":countTokens", "/input_tokens")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request belongs. The session is locked, unless the request is a side call."""

    reading: ReadRequest
    """The request; with the name of the sub-agent that speaks, if its task told who that is."""
    opened: OpenSession
    is_continuation: bool = False
    """Whether its list holds only what is new, because the provider keeps the rest."""
    side_call: SideCallPurpose | None = None
    """What it is for, if it is known to be beside the conversation."""
    chain: Chain | None = None
    """The chain of a side call."""


class _HeldPlace:
    """Holds the session of a request inside of `async with`: open, and locked unless the request is a side call."""

    def __init__(self, finder: "ConversationFinder", sessions: OpenSessions, reading: ReadRequest) -> None:
        self._finder, self._sessions, self._reading = finder, sessions, reading
        self._opened: OpenSession | None = None
        self._is_locked = False

    async def __aenter__(self) -> Place | None:
        try:
            return await self._finder.place_of(self._reading, self)
        except BaseException:
            await self.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def open(self, session_id: str) -> OpenSession:
        """Hold a session open, and no other one."""
        await self.release()
        request = self._reading.request
        served = ServedModel(model_of(request.path, self._reading.body), request.upstream)
        self._opened = await self._sessions.acquire(session_id, served)
        return self._opened

    async def lock(self, opened: OpenSession) -> OpenSession:
        """Lock the session that is held open, and return it; a new one if it was deleted while this waited."""
        while True:
            await opened.lock.acquire()
            self._is_locked = True
            if self._sessions.has(opened):
                return opened
            opened = await self.open(opened.id)

    async def open_locked(self, session_id: str) -> OpenSession:
        """Hold a session open and locked."""
        return await self.lock(await self.open(session_id))

    async def release(self) -> None:
        """Let go of the session that is held."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        if self._is_locked:
            self._is_locked = False
            opened.lock.release()
        await self._sessions.release(opened)


class ConversationFinder:
    """Finds the conversations of requests, and keeps of each what the next request may be recognized by."""

    def __init__(self, sessions: OpenSessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._recent = Newest[tuple[str, str], deque[str]]()
        """By namespace and session, the last prompts."""
        self._agent_sessions = Newest[str, str]()
        """By the name that a sub-agent gives its own session, the session it works in."""
        self._delegated = Newest[tuple[str, Wire, str], str]()
        """By namespace, wire and the name of the sub-agent that gets an argument of a call: the call's session."""
        self._summaries: deque[tuple[str, str, str]] = deque(maxlen=MAX_RECENT)
        """Namespace, session and text of the last summaries that clients had written."""
        self._by_first = Newest[tuple[str, Wire, bytes], Newest[str, None]]()
        """By the first message as it came, the open sessions that begin with it."""
        self._by_cache_key = Newest[str, str]()
        self._begun_by_side_call = Newest[tuple[str, bytes], str]()
        """By namespace and words, the session of a side call about a conversation whose first turn is yet to come."""
        self._unanswered = Newest[tuple[bytes, bytes], str]()
        """By what was asked, the session of a request that got no answer: its client sends it again."""

    def last_body(self, request: ClientRequest) -> ClientBody | None:
        """Return the last body of the conversation that a request names, if it does so outside of its own body."""
        name = name_outside_body(request.session_in_path, request.headers)
        opened = self._sessions.get(session_id_for(request.namespace, name)) if name else None
        if name and opened is None and not name.isascii():
            opened = self._sessions.get(encoded_session_id(request.namespace, name))
        agent_list = opened.agent_lists.get(MAIN_AGENT) if opened else None
        return agent_list.last_body if agent_list else None

    def find(self, reading: ReadRequest) -> _HeldPlace:
        """Hold the session of a request open, and locked unless it is a side call; None if it has none."""
        return _HeldPlace(self, self._sessions, reading)

    async def place_of(self, reading: ReadRequest, held: _HeldPlace) -> Place | None:
        """Return where a request belongs, and leave its session to `held`."""
        request, signals = reading.request, reading.signals
        if request.path.partition("?")[0].endswith(TOKEN_COUNT_PATHS):
            session_id = await self._named_id(request.namespace, signals.name) if signals.name else ""
            is_known = session_id and (self._sessions.get(session_id) or await self._sessions.store.length(session_id))
            if not is_known:
                return None
            return Place(reading, await held.open(session_id), side_call="other", chain=Chain(reading.start))
        if not signals.agent and (task := self._delegated_task(reading)):
            index, session_id, agent = task
            if not await self._was_said_before(reading, index, session_id):
                return Place(_as_agent(reading, agent), await held.open_locked(session_id))
        if signals.name:
            session_id = await self._named_id(request.namespace, signals.name)
            session_id = self._agent_sessions.get(session_id, session_id)
            if signals.agent:
                self._agent_sessions[await self._named_id(request.namespace, signals.agent)] = session_id
            opened = await held.open(session_id)
            if not (opened.session.history.format or request.wire).startswith(request.wire):
                # The client went on with another provider.
                opened = await held.open(f"{session_id}.{request.wire}")
            return await self._named_place(reading, await held.lock(opened))
        if signals.response_id:
            return await self._continued_place(reading, signals.response_id, held)
        return await self._unnamed_place(reading, held)

    async def _continued_place(self, reading: ReadRequest, response_id: str, held: _HeldPlace) -> Place:
        """Find the conversation of a request whose list holds only what follows a response that the provider keeps."""
        request, purpose = reading.request, reading.signals.purpose
        kept = response_hash(request.namespace, response_id)
        found = await self._sessions.index.sessions_with([kept])
        session_id = found[1][-1] if found else self._new_id(request)
        if purpose:
            return Place(reading, await held.open(session_id), side_call=purpose, chain=Chain(reading.start))
        opened = await held.open_locked(session_id)
        agent_list = await opened.main_list(request.wire, reading.start)
        end = opened.length_after(response_id, agent_list.chain)
        listed = ClientList.read(reading.body, agent_list.chain.first(end))
        if not end or agent_list.chain.shared_length(listed.chain) == len(agent_list.chain.hashes):
            return Place(reading, opened, is_continuation=True)
        at, is_branch = agent_list.positions[end], agent_list.in_flight > 0
        await held.release()
        if repeated := await self._unanswered_session(reading, listed.chain, held):
            return Place(reading, repeated, is_continuation=True)
        if not is_branch:
            return Place(reading, await held.open_locked(session_id), is_continuation=True)
        # Another request that continues the same response is still waiting for its answer.
        opened = await held.open_locked(self._new_id(request))
        async with self._sessions.session(session_id) as source, source.lock:
            await self._copy(source, opened, at)
        if rest := await self._sessions.index.rest_of(kept, session_id):
            await self._sessions.index.add(kept, opened.id, goes_on_in=rest)
        return Place(reading, opened, is_continuation=True)

    async def _named_id(self, namespace: str, name: str) -> str:
        """Return the id of the session with a name; one that has an encoded id from before keeps it."""
        session_id = session_id_for(namespace, name)
        if name.isascii() or self._sessions.get(session_id) or await self._sessions.store.length(session_id):
            return session_id
        encoded = encoded_session_id(namespace, name)
        return encoded if await self._sessions.store.length(encoded) else session_id

    async def _named_place(self, reading: ReadRequest, opened: OpenSession) -> Place:
        if opened.is_empty and not (reading.signals.agent or _purpose_without_history(reading)):
            await self._copy_fork(reading, opened)
        reading = await self.as_known_agent(reading, opened)
        signals, is_conversation = reading.signals, "conversation" in reading.body.fields
        is_continued = reading.request.wire in ("openai-responses", "anthropic") and (
            is_conversation or (signals.response_id is not None and not signals.agent)
        )
        return Place(reading, opened, is_continuation=is_continued and not signals.purpose)

    async def _unnamed_place(self, reading: ReadRequest, held: _HeldPlace) -> Place:
        """Find the conversation of a request by its messages."""
        request, body, key = reading.request, reading.body, reading.signals.cache_key
        listed = self._read_near(reading)
        chain = listed.chain
        is_candidate = partial(is_unnamed_session, namespace=request.namespace, cache_key=key)
        if found := await self._sessions.index.sessions_with(chain.answer_hashes(), is_candidate):
            answer_hash, session_ids = found
            session_id, is_continued = await self._choose_session(reading, chain, session_ids)
            if not is_continued:
                # Before a restart other conversations may have had the same answer to the same words.
                others = {one for one in await self._sessions.index.stored_sessions(answer_hash) if is_candidate(one)}
                other_id, is_continued = await self._choose_session(reading, chain, sorted(others - {*session_ids}))
                session_id = other_id if is_continued else session_id or other_id
            if session_id is not None:
                opened = await held.open_locked(session_id)
                agent_list = await opened.main_list(request.wire, reading.start)
                is_branch = not is_continued and agent_list.in_flight
                # After a side call of its own, another agent goes on in a conversation of its own.
                beside = {*opened.side_hashes}.difference(agent_list.chain.hashes)
                is_new = listed.has_prompt_after(beside) if agent_list.is_other_agent(body) else is_branch
                if reading.signals.purpose or not is_new:
                    return Place(reading, opened)
                await held.release()
        elif session_id := await self._session_compacted(reading, is_candidate):
            return Place(reading, await held.open_locked(session_id))
        elif chain.answer_hashes() and (place := await self._resumed_elsewhere(reading, held)):
            return place
        elif (purpose := _purpose_without_history(reading)) and (session_id := self._session_quoted(reading)):
            return Place(reading, await held.open(session_id), side_call=purpose, chain=chain)
        if not key and (opened := await self._unanswered_session(reading, chain, held)):
            return Place(reading, opened)
        session_id = await self._id_for_cache_key(reading, listed) if key else self._id_of_first_turn(reading)
        opened = await held.open_locked(session_id)
        if found:
            await self._copy_fork(reading, opened)
        return Place(reading, opened)

    async def _unanswered_session(self, reading: ReadRequest, chain: Chain, held: _HeldPlace) -> OpenSession | None:
        """Open the session that ends with this request, if it was sent before and got no answer."""
        session_id = self._unanswered.pop(_repeat_key(reading, chain.last_hash), None)
        if session_id is None:
            return None
        opened = await held.open_locked(session_id)
        agent_list = await opened.main_list(reading.request.wire, reading.start)
        if agent_list.chain.last_hash == chain.last_hash and not agent_list.in_flight:
            return opened
        await held.release()
        return None

    async def as_known_agent(self, reading: ReadRequest, opened: OpenSession) -> ReadRequest:
        """Return a request with the name of its sub-agent, if the log of its session knows that by its task.

        So one goes on whose call was answered before a restart, or by another gateway.
        """
        keys = opened.session.history.scopes.keys
        if reading.signals.agent or not any(key.startswith(TASK_PREFIX) for key in keys):
            return reading
        found = [(index, name) for index, name in _task_names(reading) if name in keys]
        if not found:
            return reading
        agent_list = await opened.main_list(reading.request.wire, reading.start)
        listed = agent_list.read(reading.body)
        shared = 0 if agent_list.is_other_agent(reading.body) else agent_list.chain.shared_length(listed.chain)
        return _as_agent(reading, next((name for index, name in found if shared < listed.lengths[index]), None))

    async def _resumed_elsewhere(self, reading: ReadRequest, held: _HeldPlace) -> Place | None:
        """Return the place of a sub-agent without any name that goes on, if the store knows it by its task."""
        hashes = [task_hash(reading.request, name) for _, name in _task_names(reading)]
        found = await self._sessions.index.sessions_with(hashes)
        if found is None:
            return None
        opened = await held.open_locked(found[1][-1])
        named = await self.as_known_agent(reading, opened)
        if named.signals.agent:
            return Place(named, opened)
        await held.release()
        return None

    def _delegated_task(self, reading: ReadRequest) -> tuple[int, str, str] | None:
        """Return the index of a prompt that is an argument of a call, the call's session and a sub-agent's name."""
        if not self._delegated:
            return None
        for index, name in _task_names(reading):
            if session_id := self._delegated.get((reading.request.namespace, reading.request.wire, name)):
                return index, session_id, name
        return None

    async def _was_said_before(self, reading: ReadRequest, index: int, caller_id: str) -> bool:
        """Return whether the message at an index is already in the conversation of its list.

        A model that searches often does so with the words of its user. These are then an argument of a call, and yet
        no task for a sub-agent: neither in the conversation of the call nor in another that began with them.
        """
        name, session_ids = reading.signals.name, [caller_id]
        if name:
            session_ids.append(await self._named_id(reading.request.namespace, name))
        elif found := await self._sessions.index.sessions_with(self._read_near(reading).chain.answer_hashes()):
            session_ids += found[1]
        for session_id in dict.fromkeys(session_ids):
            async with self._sessions.session(session_id) as opened, opened.lock:
                if not (opened.session.history.format or "").startswith(reading.request.wire):
                    continue
                agent_list = await opened.main_list(reading.request.wire, reading.start)
                listed = agent_list.read(reading.body)
                is_shared = agent_list.chain.shared_length(listed.chain) >= listed.lengths[index]
                if is_shared and not agent_list.is_other_agent(reading.body):
                    return True
        return False

    async def _copy_fork(self, reading: ReadRequest, opened: OpenSession) -> None:
        """Begin a new session with the conversation that its first list continues, if another session has it."""
        chain = ClientList.read(reading.body, Chain(reading.start)).chain
        found = await self._sessions.index.sessions_with(chain.answer_hashes())
        if found is None or found[1][-1] == opened.id:
            return
        async with self._sessions.session(found[1][-1]) as source, source.lock:
            agent_list = await source.main_list(reading.request.wire, reading.start)
            shared = agent_list.chain.shared_length(chain)
            if not shared:
                return
            at = agent_list.positions[shared] if shared < len(agent_list.positions) else None
            await self._copy(source, opened, at)

    async def _copy(self, source: OpenSession, opened: OpenSession, at: int | None) -> None:
        """Begin a new session with what another one has, up to the message at a position."""
        other = await source.session.fork(opened.id, at=at)
        await other.close()
        await opened.session.refresh()
        opened.agent_lists.clear()
        opened.has_recall = source.has_recall
        if opened.has_recall:
            await self._sessions.store_governing(opened)

    def _id_of_first_turn(self, reading: ReadRequest) -> str:
        """Return a new session, or that of a side call about the same words that came before the first turn."""
        new_id, purpose = self._new_id(reading.request), reading.signals.purpose
        if not purpose and not self._begun_by_side_call:
            return new_id
        key = reading.request.namespace, hashlib.sha256(_text_of(reading.body).encode(errors="replace")).digest()
        session_id = self._begun_by_side_call.pop(key, new_id)
        if purpose:
            self._begun_by_side_call[key] = session_id
        return session_id

    async def _id_for_cache_key(self, reading: ReadRequest, listed: ClientList) -> str:
        """Return the session for a key that several conversations may share: that of the key, or a new one."""
        first = session_id_for(reading.request.namespace, reading.signals.cache_key or "")
        session_id = self._by_cache_key.get(first, first)
        async with self._sessions.session(session_id) as opened, opened.lock:
            agent_list = await opened.main_list(reading.request.wire, reading.start)
            is_repeated = agent_list.chain.last_hash == listed.chain.last_hash  # also where both are empty
            is_beside = agent_list.is_other_agent(reading.body) or orders_a_summary(listed.last)
            is_here = not agent_list.chain.hashes or is_repeated or is_beside
            has_summary = client_summary_in(listed.text_after(0), opened.session.history.session_state.client_summaries)
            if not (is_here or has_summary):
                session_id = f"{first}.{secrets.token_hex(4)}"
        self._by_cache_key[first] = session_id
        return session_id

    async def _choose_session(
        self, reading: ReadRequest, chain: Chain, session_ids: Sequence[str]
    ) -> tuple[str | None, bool]:
        """Return one of the sessions that have an answer of the list, and whether the list continues all it has."""
        fallback: str | None = None
        for session_id in list(reversed(session_ids))[:MAX_ALIKE_SESSIONS]:
            async with self._sessions.session(session_id) as opened, opened.lock:
                if not len(opened.session):
                    continue  # it was deleted
                agent_list = await opened.main_list(reading.request.wire, reading.start)
                if agent_list.chain.shared_length(chain) == len(agent_list.chain.hashes):
                    return session_id, True
                fallback = fallback or session_id
        return fallback, False

    def _read_near(self, reading: ReadRequest) -> ClientList:
        """Return the list of a request, with the help of the open session whose list is most like it."""
        body, best, nearest = reading.body, 0, None
        for session_id in self._by_first.get(_first_key(reading), ()):
            opened = self._sessions.get(session_id)
            agent_list = opened.agent_lists.get(MAIN_AGENT) if opened else None
            if agent_list and (same := agent_list.count_same(body)) > best:
                best, nearest = same, agent_list
        return nearest.read(body) if nearest else ClientList.read(body, Chain(reading.start))

    async def _session_compacted(self, reading: ReadRequest, is_candidate: Callable[[str], bool]) -> str | None:
        """Return the session whose compaction, made by its client or by its provider, is in a list."""
        if session_id := self._session_with_summary(reading):
            return session_id
        compactions = reversed(provider_compactions(reading.body.messages()))
        hashes = [compaction_hash(reading.request.namespace, name) for name, _ in compactions]
        found = await self._sessions.index.sessions_with(hashes, is_candidate)
        return found[1][-1] if found else None

    async def provider_summary(self, reading: ReadRequest, session_id: str, first: int) -> str | None:
        """Return the summary of a compaction by the provider that a session and a list have, from an index on."""
        for name, summary in reversed(provider_compactions(reading.body.messages(first))):
            known = [compaction_hash(reading.request.namespace, name)]
            if await self._sessions.index.sessions_with(known, lambda one: one == session_id):
                return summary
        return None

    async def note_compactions(self, request: ClientRequest, session_id: str, answer: Answer) -> None:
        """Remember durably the compactions that a provider has made: its client's list may begin with them."""
        for name, _ in provider_compactions(answer.messages):
            await self._sessions.index.add(compaction_hash(request.namespace, name), session_id)

    def _session_with_summary(self, reading: ReadRequest) -> str | None:
        """Return the session whose summary, written for a compaction of its client, is in a list."""
        text = _text_of(reading.body)
        for namespace, session_id, summary in reversed(self._summaries):
            is_own = namespace == reading.request.namespace and len(summary) >= MIN_SUMMARY_CHARS
            if is_own and client_summary_in(text, (summary,)):
                return session_id
        return None

    def _session_quoted(self, reading: ReadRequest) -> str | None:
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

    # What the next request may be recognized by.

    def note_list(self, reading: ReadRequest, session_id: str) -> None:
        """Remember with which message a conversation begins."""
        key = _first_key(reading)
        alike = self._by_first[key] = self._by_first.get(key) or Newest[str, None]()
        alike[session_id] = None

    def note_unanswered(self, reading: ReadRequest, session_id: str, last_hash: bytes) -> None:
        """Remember a request that got no answer, if only its messages tell which conversation it belongs to."""
        signals = reading.signals
        if not (signals.name or (signals.cache_key and not signals.response_id)):
            self._unanswered[_repeat_key(reading, last_hash)] = session_id

    def note_prompt(self, reading: ReadRequest, opened: OpenSession, listed: ClientList) -> None:
        """Remember the words of the last prompts, which a side call may quote."""
        if is_prompt(listed.last) and (texts := texts_of(listed.last)):
            key = reading.request.namespace, opened.id
            prompts = self._recent[key] = self._recent.get(key) or deque[str](maxlen=MAX_QUOTED_PROMPTS)
            prompts.append(texts[-1].strip()[:MAX_QUOTED_CHARS])

    def note_calls(self, request: ClientRequest, session_id: str, answer: Answer) -> None:
        """Remember the arguments of calls: one of them may be the task of a sub-agent."""
        for text in argument_texts(answer):
            if MIN_QUOTED_CHARS <= len(text) <= MAX_DELEGATED_CHARS:
                self._delegated[request.namespace, request.wire, _task_name(text)] = session_id

    def note_summary(self, request: ClientRequest, session_id: str, text: str) -> None:
        """Remember a summary that a client had written: its list will begin with it."""
        self._summaries.append((request.namespace, session_id, text))


def _task_name(text: str) -> str:
    """Return the name of the sub-agent that has a text as its task."""
    return f"{TASK_PREFIX}{hashlib.sha256(text.strip().encode(errors='replace')).hexdigest()[:12]}"


def _task_names(reading: ReadRequest) -> list[tuple[int, str]]:
    """Return the names that a sub-agent would have by its first prompts, each with the index of the prompt."""
    return [
        (index, _task_name(text))
        for index, native in enumerate(reading.body.messages(0, FIRST_PROMPTS))
        for text in (texts_of(native) if is_prompt(native) else ())
        if MIN_QUOTED_CHARS <= len(text.strip()) <= MAX_DELEGATED_CHARS
    ]


def task_hash(request: ClientRequest, name: str) -> bytes:
    """Return the hash by which the index knows a sub-agent that is named after its task."""
    return response_hash(request.namespace, f"{request.wire}\0{name}")


def _as_agent(reading: ReadRequest, agent: str | None) -> ReadRequest:
    return replace(reading, signals=replace(reading.signals, agent=agent))


def _text_of(body: ClientBody) -> str:
    return "".join(text for native in body.messages() for text in texts_of(native))


def _purpose_without_history(reading: ReadRequest) -> SideCallPurpose | None:
    """Return what a request is for if it says by itself that it is no turn of a conversation."""
    return reading.signals.purpose or side_purpose_of_words(reading.body)


def _repeat_key(reading: ReadRequest, last_hash: bytes) -> tuple[bytes, bytes]:
    """Return what is the same in a request that is sent again: its messages, its system text and its tools."""
    digest = hashlib.sha256(bytes(reading.body.tools_slice))
    for one in reading.body.system_slices:
        digest.update(b"\0" + bytes(one))
    return last_hash, digest.digest()


def _first_key(reading: ReadRequest) -> tuple[str, Wire, bytes]:
    return reading.request.namespace, reading.request.wire, hashlib.sha256(reading.body.slices[0]).digest()
