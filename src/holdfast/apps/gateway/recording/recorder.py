"""Record what passes through the gateway, in the sessions of a store.

`Recorder.receive` finds the conversation of a request and stores the client's new messages. The `Exchange` it returns
collects the answer as it arrives, and `finish` stores it. Both are durable when they return.

Clients send their whole list with every request. The difference from the list before says what happened: nothing new,
new messages, an edit or a rewind, a fork, a compaction of the client's own, or a call beside the conversation. A call
that was taken for a side call by mistake loses nothing: the next prompt after its answer shows that it was none, and
the whole list is recorded then.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import dropwhile
from types import TracebackType
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.apps.gateway.recording.client_body import LIST_MEMBERS, ClientBody, members_of, texts_of
from holdfast.apps.gateway.recording.client_forms import (
    MAX_JOINED_MESSAGES,
    client_forms,
    count_joined,
    count_shared_contents,
    has_cut_calls,
)
from holdfast.apps.gateway.recording.client_list import MAIN_AGENT, AgentList, ClientList, OpenAnswer, without_given_ids
from holdfast.apps.gateway.recording.exchange import ClientRequest, Exchange, ReadRequest, read_request, usage_of
from holdfast.apps.gateway.recording.finding import MAX_DELEGATED_CHARS, TASK_PREFIX, ConversationFinder, task_hash
from holdfast.apps.gateway.recording.governing import model_of, with_members
from holdfast.apps.gateway.recording.governor import Governor
from holdfast.apps.gateway.recording.identity import (
    Chain,
    agent_key,
    is_optional,
    joined_contents,
    orders_a_summary,
    provider_compactions,
    reasoning_key,
    response_hash,
    side_purpose_of_words,
)
from holdfast.apps.gateway.recording.open_sessions import OpenSession, OpenSessions
from holdfast.apps.gateway.recording.readable import readable_messages
from holdfast.apps.gateway.recording.recall_rounds import (
    MAX_RECALL_ROUNDS,
    NO_MORE_ROUNDS,
    RecallCall,
    has_other_calls,
    recall_calls,
    recall_results,
    with_messages,
    without_recall_calls,
)
from holdfast.apps.gateway.recording.references import ReferredItems
from holdfast.apps.gateway.recording.rehearsal import rehearse
from holdfast.apps.gateway.upstream_summarizer import Payment
from holdfast.apps.threads import run_at_low_priority
from holdfast.core.history import events as log
from holdfast.core.history.events import MAIN, SideCallPurpose
from holdfast.core.history.scopes import is_answer_message
from holdfast.core.history.visibility import SEES_NOTHING
from holdfast.core.planning.policy import Policy
from holdfast.counters.vocabularies import load_vocabulary
from holdfast.dataclass import dataclass
from holdfast.errors import ConcurrentWriteError, HoldfastError, MalformedInputError, RecordingError
from holdfast.models.base import Summarizer
from holdfast.session.calibration import ServedModel
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.delegation import Delegate
from holdfast.session.log.event_log import Clock, now_ms
from holdfast.session.session import Session, SessionOpener
from holdfast.session.sync import client_summary_in
from holdfast.stores.base import Store, session_value_key
from holdfast.stores.open import open_store
from holdfast.wire.answers import Answer, JsonMapping, JsonObject, Wire, answer_text
from holdfast.wire.equivalence import essential_message
from holdfast.wire.json_reader import as_object, is_list, is_mapping

T = TypeVar("T")
MAX_HELD_SESSIONS, MAX_HELD_BYTES = 2_048, 64 << 20
"""How many sessions stay open, and how large their last requests may be together. A session takes some 50 KB, and
three to four times its last request."""
_logger = logging.getLogger("holdfast.gateway")
WARM_UP_SESSIONS, WARM_UP_SECONDS = 4, 5.0
"""Whose models a gateway prepares for at its start, and how long it waits for the store meanwhile."""
MAX_OVERTAKEN = 8
"""How often a request is recorded again because another process was faster."""


@dataclass(frozen=True, slots=True)
class _Happened:
    """What a list shows; the main agent went on if neither is set."""

    side_call: SideCallPurpose | None = None
    """What a request beside the conversation is for."""
    summary: str | None = None
    """The summary of a compaction that the client has made."""


class _Shared(NamedTuple):
    """What the lists of the agent and of the client begin with."""

    length: int
    """How many messages of the chain; the last one may be an answer of which they share only the first contents."""
    first: int
    """The index in the list of the first message after them."""
    rewind_to: int | None
    """Where the first message was recorded that the list does not have; None if it has all."""


_NOTHING_SHARED = _Shared(0, 0, None)


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
        max_open_bytes: int = MAX_HELD_BYTES,
        delete_files: Callable[[str], object] | None = None,
        clock: Clock = now_ms,
    ) -> None:
        self.store = open_store(store)
        self._owns_store = isinstance(store, str)
        self.store_url = store if isinstance(store, str) else None
        """Where the store is; None if it was opened elsewhere."""
        self._clock = clock
        self.sessions = OpenSessions(
            self.store,
            self._open_session,
            max_open=max_open_sessions,
            max_bytes=max_open_bytes,
            delete_files=delete_files,
        )
        self.session = self.sessions.session
        self._finder = ConversationFinder(self.sessions, clock)
        self.note_unanswered = self._finder.note_unanswered
        self._referred_items = ReferredItems(self.sessions)
        self.governor = Governor(
            self.sessions,
            policy=policy,
            policies=policies,
            budget=budget,
            summarizer=summarizer,
            payment=payment,
            offers_recall=offers_recall,
        )
        self.is_stopping = False
        """Whether the gateway stops as soon as running exchanges have ended."""

    def _open_session(self, session_id: str, served: ServedModel) -> SessionOpener:
        return Session.open(
            session_id,
            store=self.store,
            model=served.model,
            endpoint=served.endpoint,
            policy=self.governor.policy,
            summarizer=self.governor.summarizer,
            compaction=CompactionOptions(queue=self.governor.queue),
            clock=self._clock,
            delete_files=self.sessions.delete_files,
        )

    async def warm_up(self) -> None:
        """Connect to the store, load the vocabularies of the models that its last conversations use, and rehearse one.

        All streams wait while that is done, so it is done before the gateway serves. If there are no conversations
        yet, the vocabulary is loaded that most models are counted with.
        """
        models = sorted(await self._last_models()) or [None]
        for model in models:
            await run_at_low_priority(partial(load_vocabulary, model))
        # Not at a low priority, which the threads would keep that it starts.
        await rehearse(self.governor.policy, models[0])

    async def _last_models(self) -> set[str]:
        """Return the models of the last conversations.

        If they cannot be read, that is logged, and the first request tries again: the store may be started later than
        the gateway.
        """
        try:
            async with asyncio.timeout(WARM_UP_SECONDS):
                newest = await self.store.sessions(limit=WARM_UP_SESSIONS)
                keys = [session_value_key(info.id, "client") for info in newest]
                clients = await asyncio.gather(*map(self.store.get_value, keys))
            return {str(client["model"]) for client in clients if client and client.get("model")}
        except HoldfastError as error:
            _logger.warning("nothing can be recorded yet: %s", error)
        except TimeoutError:
            _logger.warning("nothing can be recorded yet: the store has not answered for %d s", WARM_UP_SECONDS)
        return set()

    async def receive(self, request: ClientRequest, *, seconds: float | None = None) -> Exchange:
        """Record the new messages of a request, and return its exchange; raises `RecordingError`.

        A body that is no request of its wire is not recorded: its exchange has no session. The upstream will refuse it.
        Raises `TimeoutError` if it takes longer than `seconds`; the messages are recorded nevertheless.
        """
        reading = read_request(request, self._finder.last_body(request))
        if reading is None:
            exchange = Exchange(request)
            what = f"has no messages of {request.wire}" if request.body else "is empty"
            exchange.headers["x-holdfast-error"] = f"not recorded: the body {what}"
            return exchange
        try:
            recording = self._until_current(lambda: self._receive(reading))
            # An exchange that comes too late would else wait for its answer for ever, and hold its session open.
            return await self.sessions.run_to_completion(recording, seconds=seconds, discard=Exchange.give_up)
        except (HoldfastError, ValueError) as error:
            raise RecordingError(str(error)) from error

    async def _until_current(self, record: Callable[[], Awaitable[T]]) -> T:
        """Record something, and again if another process has written to its session meanwhile."""
        for _ in range(MAX_OVERTAKEN):
            try:
                return await record()
            except ConcurrentWriteError:
                self.sessions.has_other_writers = True
        return await record()

    async def close(self) -> None:
        """Finish what is being recorded, and close all sessions."""
        self.is_stopping = True
        await self.sessions.close()
        if self._owns_store:
            await self.store.close()

    @asynccontextmanager
    async def session_for_job(self, session_id: str) -> AsyncGenerator[Session]:
        """Hold a session open whose compaction was left to this process."""
        async with self.sessions.session(session_id) as opened:
            async with opened.lock:
                await self.governor.use_policy(opened, opened.choice)
            yield opened.session

    # A request.

    async def _receive(self, reading: ReadRequest) -> Exchange:
        await self._referred_items.resolve(reading.request.namespace, reading.body, reading.request.body)
        async with self._finder.find(reading) as place:
            if place is None:
                return Exchange(reading.request)
            if place.side_call is not None and place.chain is not None:
                return self._side_call(reading, place.opened, place.side_call, place.chain)
            if place.is_continuation:
                return await self._record_continuation(reading, place.opened)
            return await self._record(place.reading, place.opened)

    def _side_call(self, reading: ReadRequest, opened: OpenSession, purpose: SideCallPurpose, chain: Chain) -> Exchange:
        return Exchange(reading.request).record_with(_SideSink(self, opened, reading, purpose, chain), self.sessions)

    async def _record(self, reading: ReadRequest, opened: OpenSession) -> Exchange:
        """Record a request in its session. Caller must hold the session's lock."""
        if reading.signals.agent:
            return await self._record_delegate(reading, opened)
        agent_list = await opened.main_list(reading.request.wire, reading.start)
        listed = agent_list.read(reading.body)
        is_same = agent_list.chain.shared_length(listed.chain) == len(agent_list.chain.hashes)
        if not is_same and await opened.session.refresh():
            # Another gateway went on with the session: the list is to be compared with what that one has recorded.
            reading = await self._finder.as_known_agent(reading, opened)
            if reading.signals.agent:
                return await self._record_delegate(reading, opened)
            agent_list = await opened.main_list(reading.request.wire, reading.start)
            listed = agent_list.read(reading.body)
        shared = await self._take_client_forms(opened, agent_list, listed)
        happened = await self._compare(reading, opened, agent_list, listed, shared)
        if happened.side_call:
            return self._side_call(reading, opened, happened.side_call, listed.chain)
        async with _Writing(opened, MAIN_AGENT, agent_list):
            if opened.is_empty:
                await self.governor.offer_recall(reading, opened, agent_list)
            await self._end_answered_delegates(opened, listed, shared.length)
            if happened.summary is not None:
                natives = [*reading.body.leading_messages(), *listed.to_record(0)[0]]
                name = opened.session.history.format or _format_for(reading.body)
                await opened.session.sync(natives, format=name, compacted=happened.summary)
                agent = opened.agent_lists.pop(MAIN_AGENT).agent
                agent_list = await opened.main_list(reading.request.wire, reading.start)
                agent_list.agent = agent
            else:
                await self._go_on(opened, agent_list, listed, shared)
            saving = self._remember_client(reading, opened, agent_list)
            agent_list.keep(listed)
            exchange = await self.governor.govern(reading, opened, agent_list, listed)
        if saving:
            await saving
        self._finder.note_prompt(reading, opened, listed)
        return self._governed(exchange, _AgentSink(self, opened, reading, MAIN_AGENT, agent_list))

    def _governed(self, exchange: Exchange, sink: "_AgentSink") -> Exchange:
        """Return an exchange that is recorded, and whose body is made smaller only while it is the newest request."""
        if (shrink := exchange.shrink) is not None:

            async def shrink_newest(error: str, status: int) -> None:
                async with sink.opened.lock:
                    if not sink.is_newest:
                        raise RecordingError("another request of the same agent came meanwhile")
                    await shrink(error, status)

            exchange.shrink = shrink_newest
        return exchange.record_with(sink, self.sessions)

    async def _take_client_forms(self, opened: OpenSession, agent_list: AgentList, listed: ClientList) -> _Shared:
        """Return what an agent's list shares with the client's, after it took answers as the client has them.

        Each form that it takes is one message more that it shares.
        """
        wire = listed.body.wire
        while True:
            shared = agent_list.chain.shared_length(listed.chain)
            both_go_on = shared < min(len(agent_list.chain.hashes), len(listed.chain.hashes))
            is_answer = both_go_on and agent_list.chain.from_model[shared]
            if not is_answer or agent_list.has_recall:
                return _shared_messages(agent_list, listed, shared)
            if wire == "gemini":
                return await self._with_shared_contents(opened, agent_list, listed, shared)
            stop = min(agent_list.chain.end_of_answer(shared), shared + MAX_JOINED_MESSAGES)
            run = await self._recorded(opened, agent_list, shared, stop)
            native = listed.body.message(listed.first_after(shared))
            count = count_joined(wire, [one for _, one in run], native)
            if not count:
                return _shared_messages(agent_list, listed, shared)
            recorded = await self._recorded(opened, agent_list, shared, len(agent_list.positions))
            agent_list.take_form(wire, native, count, recorded)

    async def _with_shared_contents(
        self, opened: OpenSession, agent_list: AgentList, listed: ClientList, shared: int
    ) -> _Shared:
        """Return what both lists share: so many messages, and contents of the answer that follows them."""
        run = await self._recorded(opened, agent_list, shared, shared + 1)
        first, stop = listed.first_after(shared), listed.first_after(shared + 1)
        given = listed.body.messages(first, stop) if listed.chain.from_model[shared] else []
        count, given_count = count_shared_contents([native for _, native in run], given)
        if not count:
            return _shared_messages(agent_list, listed, shared)
        rest = [place for place, _ in run[count:]] or agent_list.positions[shared + 1 :]
        return _Shared(shared + 1, first + given_count, rest[0] if rest else None)

    async def _recorded(
        self, opened: OpenSession, agent_list: AgentList, start: int, stop: int
    ) -> list[tuple[int, Mapping[str, object]]]:
        """Return the messages between two places of an agent's list as they were recorded, with their positions."""
        places = [place for index in range(start, stop) for place in agent_list.parts_at(index)]
        return [(place, native) for place in places for native in await opened.session.messages_at(place)]

    async def _go_on(self, opened: OpenSession, agent_list: AgentList, listed: ClientList, shared: _Shared) -> None:
        """Make the log of the main agent the same as its list: go back to where they differ, and record the rest."""
        if shared.rewind_to is not None:
            await opened.session.rewind(to=shared.rewind_to)
            agent_list.forget(shared.length, shared.rewind_to)
        elif agent_list.open_answer is not None:
            await opened.session.rewind(to=agent_list.open_answer.position)
        agent_list.open_answer = None
        await self._append(opened, agent_list, listed, shared)

    async def _append(self, opened: OpenSession, agent_list: AgentList, listed: ClientList, shared: _Shared) -> None:
        """Record the messages of a list after those that the agent's list shares with it."""
        leading = listed.body.leading_messages() if opened.is_empty else []
        natives, lengths = listed.to_record(shared.first)
        if listed.body.wire == "gemini" and shared.length and natives:
            answer = await self._recorded(opened, agent_list, shared.length - 1, shared.length)
            natives[0] = without_given_ids(joined_contents([native for _, native in answer]), natives[0])
        name, recorded = opened.session.history.format or _format_for(listed.body), [*leading, *natives]
        places = await agent_list.conversation.record(recorded, format=name) if recorded else range(0)
        agent_list.chain = listed.chain
        agent_list.note_places(natives, places[len(leading) :], lengths)

    async def _compare(
        self, reading: ReadRequest, opened: OpenSession, agent_list: AgentList, listed: ClientList, shared: _Shared
    ) -> _Happened:
        """Return what a list says has happened since the last one."""
        body, signals, chain = reading.body, reading.signals, listed.chain
        recorded, has_all = len(agent_list.chain.hashes), shared.rewind_to is None
        if signals.purpose:
            return _Happened(side_call=signals.purpose)
        if not recorded:
            return _Happened(side_call=side_purpose_of_words(body))
        if agent_list.is_other_agent(body) and not listed.has_prompt_after(opened.side_hashes):
            return _Happened(side_call=side_purpose_of_words(body) or ("memory" if has_all else "other"))
        is_order = orders_a_summary(listed.last)
        if has_all:
            return _Happened(side_call="summary" if is_order and len(chain.hashes) > recorded else None)
        if is_order:
            return _Happened(side_call="summary")
        summaries, text = opened.session.history.session_state.client_summaries, listed.text_after(shared.length)
        if found := client_summary_in(text, summaries):
            return _Happened(summary=found)
        if signals.has_compacted or (signals.window and opened.window not in {None, signals.window}):
            return _Happened(summary=summaries[-1] if summaries else text)
        if found := await self._finder.provider_summary(reading, opened.id, shared.first):
            return _Happened(summary=found)
        if await self._adds_an_order(opened, agent_list, listed):
            return _Happened(side_call="summary")
        return _Happened(side_call="other" if agent_list.in_flight and len(chain.hashes) > shared.length else None)

    async def _adds_an_order(self, opened: OpenSession, agent_list: AgentList, listed: ClientList) -> bool:
        """Return whether a list ends with an earlier recorded message to which an order was added.

        That is how a client orders a summary of a part of its list: nobody edits a message by adding a block to it
        after later ones were answered.
        """
        shared, content = agent_list.chain.shared_length(listed.chain), listed.last.get("content")
        is_earlier = len(listed.chain.hashes) == shared + 1 and len(agent_list.positions) > shared + 1
        if not is_list(content) or not is_earlier:
            return False
        [recorded] = await opened.session.messages_at(agent_list.positions[shared])
        before = essential_message(recorded).get("content")
        first = len(before) if is_list(before) else 0
        return first > 0 and essential_message({**listed.last, "content": content[:first]}).get("content") == before

    async def _record_continuation(self, reading: ReadRequest, opened: OpenSession) -> Exchange:
        """Record a list that holds only what is new, because the provider keeps the rest."""
        agent_list = await opened.main_list(reading.request.wire, reading.start)
        listed, shared = self._continuation(reading, opened, agent_list)
        exchange = Exchange(reading.request)
        async with _Writing(opened, MAIN_AGENT, agent_list):
            if opened.is_empty:
                await self.governor.offer_recall(reading, opened, agent_list)
            await self._end_answered_delegates(opened, listed, shared)
            await self._go_on(opened, agent_list, listed, _shared_messages(agent_list, listed, shared))
            saving = self._remember_client(reading, opened, agent_list)
        if saving:
            await saving
        if tools := self.governor.recall_tools(reading, agent_list, exchange):
            exchange.body = with_members(
                exchange.body, {"tools": tools, **await self._continued_response(reading, opened)}
            )
            exchange.headers["x-holdfast-compacted"] = "1"
        return exchange.record_with(_AgentSink(self, opened, reading, MAIN_AGENT, agent_list), self.sessions)

    def _continuation(self, reading: ReadRequest, opened: OpenSession, agent_list: AgentList) -> tuple[ClientList, int]:
        """Return a list that holds only what is new after what was before it, and how much of both the agent has.

        Normally a request follows the newest answer. One that is sent again follows the one before it: the newest
        answer was cut, or did not come.
        """
        recorded = len(agent_list.chain.hashes)
        if end := opened.length_after(reading.signals.response_id or "", agent_list.chain):
            listed = ClientList.read(reading.body, agent_list.chain.first(end))
            shared = agent_list.chain.shared_length(listed.chain)
            if shared == recorded or not agent_list.in_flight:
                return listed, shared
        listed = ClientList.read(reading.body, agent_list.chain.first(recorded))
        if 0 < (count := len(listed.chain.hashes) - recorded) <= recorded:
            # Where the answer that it follows is not known any more, the end of the log tells a repeated request.
            repeated = ClientList.read(reading.body, agent_list.chain.first(recorded - count))
            listed = repeated if repeated.chain.last_hash == agent_list.chain.last_hash else listed
        return listed, recorded

    async def _continued_response(self, reading: ReadRequest, opened: OpenSession) -> dict[str, bytes]:
        """Return the response that a request continues, if the client knows only the first part of it."""
        named = reading.signals.response_id
        kept = response_hash(reading.request.namespace, named) if named else None
        rest = await self.sessions.index.rest_of(kept, opened.id) if kept else ""
        if rest and reading.request.wire == "anthropic":
            thread = {**as_object(reading.body.fields.get("thread")), "previous_message_id": rest}
            return {"thread": msgspec.json.encode(thread)}
        return {"previous_response_id": msgspec.json.encode(rest)} if rest else {}

    # Sub-agents.

    async def _record_delegate(self, reading: ReadRequest, opened: OpenSession) -> Exchange:
        """Record a request of a sub-agent, in a scope of its own."""
        body, signals, name = reading.body, reading.signals, agent_key(reading.signals.agent or "")
        if signals.purpose:
            known = opened.agent_lists.get(name)
            listed = known.read(body) if known else ClientList.read(body, Chain(reading.start))
            return self._side_call(reading, opened, signals.purpose, listed.chain)
        agent_list, shared = await self._known_delegate(reading, opened, name), _NOTHING_SHARED
        listed = agent_list.read(body) if agent_list else ClientList.read(body, Chain(reading.start))
        if agent_list is not None:
            shared = await self._take_client_forms(opened, agent_list, listed)
        if agent_list is None or shared.rewind_to is not None:
            # It is new, or its list has changed: it goes on in a new scope, and what it did before stays.
            if (before := opened.agent_lists.get(name)) is not None and isinstance(before.conversation, Delegate):
                scope, problem = before.conversation.scope, "its client went back to an earlier message"
                await before.conversation.end(log.DelegationFinished(scope=scope, state="cancelled", error=problem))
            task = "\n".join(texts_of(body.message(0)))[-MAX_DELEGATED_CHARS:]
            # What the main agent hears of it unasked is in the list of its client.
            context = opened.session.delegate(
                signals.agent_type, task=task, sees=SEES_NOTHING, main_sees="recall", adds_task_message=False, key=name
            )
            agent_list = AgentList(await opened.delegates.enter_async_context(context), Chain(reading.start))
            shared = _NOTHING_SHARED
            if name.startswith(TASK_PREFIX) and not signals.name:
                await self.sessions.index.add(task_hash(reading.request, name), opened.id)
        async with _Writing(opened, name, agent_list):
            opened.agent_lists[name] = agent_list
            await self._append(opened, agent_list, listed, shared)
            agent_list.keep(listed)
            exchange = await self.governor.govern(reading, opened, agent_list, listed)
        return self._governed(exchange, _AgentSink(self, opened, reading, name, agent_list))

    async def _known_delegate(self, reading: ReadRequest, opened: OpenSession, name: str) -> AgentList | None:
        """Return the list of a sub-agent as the log has it, wherever it ran; None if the request does not continue it.

        A sub-agent that has ended goes on, and so does one of another gateway: from now on it runs here.
        """
        agent_list = await self._own_delegate(reading, opened, name)
        if agent_list is not None and _goes_on(agent_list, reading):
            return agent_list
        await opened.session.refresh()
        if (agent_list := await self._own_delegate(reading, opened, name)) is not None:
            return agent_list
        scope = opened.session.history.scopes.keys.get(name)
        if scope is None:
            return None
        stored = AgentList(opened.session, Chain(reading.start))
        await self._read_again(reading, opened, stored, scope)
        listed = stored.read(reading.body)
        if (await self._take_client_forms(opened, stored, listed)).rewind_to is not None:
            return None
        delegate = await opened.delegates.enter_async_context(opened.session.resume_delegate(name))
        agent_list = opened.agent_lists[name] = AgentList(delegate, Chain(reading.start))
        await self._read_again(reading, opened, agent_list, delegate.scope)
        return agent_list

    async def _own_delegate(self, reading: ReadRequest, opened: OpenSession, name: str) -> AgentList | None:
        """Return the list of a sub-agent that this gateway runs, read again if the log has other messages by now."""
        agent_list = opened.agent_lists.get(name)
        if agent_list is None or not _is_run_here(agent_list):
            return None
        version, places = opened.session.history.version, agent_list.positions
        if agent_list.is_behind or (places and version.is_hidden(places[-1])):
            await self._read_again(reading, opened, agent_list, agent_list.conversation.scope)
        return agent_list

    async def _read_again(self, reading: ReadRequest, opened: OpenSession, agent_list: AgentList, scope: str) -> None:
        numbered = await opened.session.numbered_messages(scope=scope, refreshes=False)
        numbered = [*dropwhile(lambda one: one[1].get("role") in ("system", "developer"), numbered)]
        agent_list.read_again(reading.request.wire, reading.start, numbered)

    async def _end_answered_delegates(self, opened: OpenSession, listed: ClientList, shared: int) -> None:
        """End the delegations whose last answer the main agent received, wherever they ran."""
        history = opened.session.history
        running = history.session_state.running_delegates
        names = [name for name, scope in history.scopes.keys.items() if scope in running]
        heard = listed.heard_after(shared) if names else []
        for name in names if any(heard) else ():
            agent_list = opened.agent_lists.get(name)
            is_own = agent_list is not None and _is_run_here(agent_list)
            if agent_list is not None and agent_list.in_flight:
                continue
            answer = agent_list.last_text if agent_list is not None and is_own else ""
            answer = answer or await self._last_answer(opened, history.scopes.keys[name])
            if not (answer.strip() and any(answer.strip() in text for text in heard)):
                continue
            if agent_list is not None and is_own and isinstance(agent_list.conversation, Delegate):
                await agent_list.conversation.answer(answer)
            else:
                delegate = await opened.delegates.enter_async_context(opened.session.resume_delegate(name))
                await delegate.answer(answer)
            opened.agent_lists.pop(name, None)

    async def _last_answer(self, opened: OpenSession, scope: str) -> str:
        """Return the last message of a sub-agent, if it is an answer. Only that message is read."""
        history = opened.session.history
        scopes, is_hidden = history.message_scopes, history.version.is_hidden
        places = range(len(scopes) - 1, history.version.state_of(MAIN).cleared_at - 1, -1)
        last = next((place for place in places if scopes[place] == scope and not is_hidden(place)), None)
        if last is None:
            return ""
        [native] = await opened.session.messages_at(last)
        message = history.message_format.decode(native, 0)
        return message.text if is_answer_message(message) else ""

    # Its answer.

    async def record_answer(self, sink: "_AgentSink", answer: Answer, duration_ms: int) -> None:
        """Record an answer in the conversation of its request."""
        opened = sink.opened
        async with opened.lock:
            sink.agent_list.in_flight -= 1
            if not await self._append_to(sink, partial(self._append_if_current, sink, answer, duration_ms)):
                # The client went on without this answer: another request was faster.
                await record_side_answer(opened.session, answer, "other")
                return
            if not answer.is_complete:
                await sink.agent_list.conversation.interrupt()
            if sink.agent_name != MAIN_AGENT:
                return
            last_hash = sink.agent_list.chain.last_hash
            if sink.reading.signals.name:
                opened.unsaved_hash = last_hash
                self.sessions.index.remember(last_hash, opened.id)
            else:
                for answer_hash in (*await self._hashes_of_forms(sink, answer), last_hash):
                    await self.sessions.index.add(answer_hash, opened.id)
            await self._finder.note_compactions(sink.reading.request, opened.id, answer)
            await self._index_response(sink, answer)

    async def _append_to(self, sink: "_AgentSink", append: Callable[[], Awaitable[bool]]) -> bool:
        """Record an answer, or a part of it; each attempt begins with the state of the request before the first."""
        last_hash, open_answer = sink.last_hash, sink.open_answer

        async def attempt() -> bool:
            sink.last_hash, sink.open_answer = last_hash, open_answer
            return await append()

        return await self._until_current(attempt)

    async def _hashes_of_forms(self, sink: "_AgentSink", answer: Answer) -> list[bytes]:
        """Return the hashes that an answer has if the client has it in another form."""
        agent_list, wire = sink.agent_list, sink.reading.request.wire
        hashes, start, stop = list[bytes](), agent_list.chain.start_of_last_answer(), len(agent_list.chain.hashes)
        is_alone = stop - start <= len(answer.messages) and not has_cut_calls(wire, answer.messages)
        if is_alone or agent_list.has_recall:
            return hashes
        recorded = await self._recorded(sink.opened, agent_list, start, stop)
        for form in client_forms(wire, [native for _, native in recorded]):
            chain = agent_list.chain.first(start)
            chain.extend(wire, form)
            hashes.append(chain.last_hash)
        return hashes

    async def _append_if_current(self, sink: "_AgentSink", answer: Answer, duration_ms: int) -> bool:
        """Record an answer after the messages of its request; return False if something else follows them already.

        Another gateway may have written to the session meanwhile. A whole answer still belongs to the conversation if
        nothing was said since. One that was cut does not: its client has asked another gateway for a whole one.
        """
        if sink.agent_name == MAIN_AGENT:
            sink.agent_list = await sink.opened.main_list(sink.reading.request.wire, sink.reading.start)
        elif await self._own_delegate(sink.reading, sink.opened, sink.agent_name) is not sink.agent_list:
            return False  # another gateway goes on with it
        if not self._is_current(sink) or not (answer.is_complete or sink.is_newest):
            return False
        async with _Writing(sink.opened, sink.agent_name, sink.agent_list):
            await self._append_answer(sink, answer, duration_ms)
        return True

    def _is_current(self, sink: "_AgentSink") -> bool:
        """Return whether the client still waits for this answer, and nothing came in between."""
        agent_list = sink.agent_list
        has_same_end = _place_of(agent_list.open_answer) == _place_of(sink.open_answer)
        is_same = agent_list.chain.last_hash == sink.last_hash and has_same_end
        return is_same and sink.opened.agent_lists.get(sink.agent_name) is agent_list

    async def _index_response(self, sink: "_AgentSink", answer: Answer) -> None:
        """Remember which session has a response that the provider keeps, and where the rest of it is."""
        fields, request = sink.reading.body.fields, sink.reading.request
        if not answer.response_id or not _is_kept(request.wire, fields):
            return
        sink.response_ids.append(answer.response_id)
        end = len(sink.agent_list.chain.hashes), sink.agent_list.chain.last_hash
        sink.opened.response_ends.update(dict.fromkeys(sink.response_ids, end))
        await asyncio.gather(
            self.sessions.index.add(response_hash(request.namespace, answer.response_id), sink.opened.id),
            self._referred_items.add(request.namespace, sink.opened.id, answer.messages),
        )
        if len(sink.response_ids) > 1:
            first = response_hash(request.namespace, sink.response_ids[0])
            await self.sessions.index.add(first, sink.opened.id, goes_on_in=answer.response_id)

    async def _append_answer(self, sink: "_AgentSink", answer: Answer, duration_ms: int) -> None:
        opened, agent_list = sink.opened, sink.agent_list
        wire = sink.reading.request.wire
        results: list[JsonObject] = []
        if agent_list.has_recall and (calls := recall_calls(wire, answer.messages)):
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
            self._finder.note_calls(sink.reading.request, opened.id, answer)

    async def _append_messages(
        self, sink: "_AgentSink", answer: Answer, duration_ms: int, results: Sequence[JsonMapping]
    ) -> None:
        """Record what an answer says, and the results of its calls of `recall`."""
        agent_list, wire, name = sink.agent_list, sink.reading.request.wire, sink.opened.session.history.format
        record = partial(agent_list.conversation.record, format=name, usage=usage_of(answer), duration_ms=duration_ms)
        said: Sequence[JsonMapping] = answer.messages
        try:
            places = await record(said)
        except MalformedInputError:
            said = readable_messages(name or _format_for(sink.reading.body), said)
            places = await record(said)
        agent_list.add_answer(wire, said, places)
        agent_list.last_text = answer_text(answer)
        if wire == "openai-responses" and sink.reading.body.fields.get("store") is not False:
            self._referred_items.note(sink.reading.request.namespace, said)
        if results:
            places = await agent_list.conversation.record(results, format=name)
            agent_list.add_recorded(wire, [*zip(places, results, strict=True)])
        sink.last_hash, sink.open_answer = agent_list.chain.last_hash, agent_list.open_answer

    async def record_side_call(self, sink: "_SideSink", answer: Answer) -> None:
        """Record the answer of a side call."""
        opened, wire = sink.opened, sink.reading.request.wire
        if compactions := provider_compactions(answer.messages):
            # Beside it are the prompts that stay, which are no summary.
            summary = {"role": "assistant", "content": compactions[-1][1]}
            await record_side_answer(opened.session, replace(answer, messages=[summary]), sink.purpose)
            return await self._finder.note_compactions(sink.reading.request, opened.id, answer)
        await record_side_answer(opened.session, answer, sink.purpose)
        text = answer_text(answer)
        if sink.purpose == "summary" and text:
            self._finder.note_summary(sink.reading.request, opened.id, text)
        sink.chain.extend(wire, answer.messages)
        opened.side_hashes.append(sink.chain.last_hash)

    def _remember_client(
        self, reading: ReadRequest, opened: OpenSession, agent_list: AgentList
    ) -> asyncio.Task[None] | None:
        """Note who speaks; return what stores that if it is new, at the same time as the messages."""
        agent = agent_list.agent_of(reading.body)
        opened.window = reading.signals.window or opened.window
        model = model_of(reading.request.path, reading.body)
        known, opened.session.model = opened.session.model, model
        self._finder.note_list(reading, opened.id)
        if agent == agent_list.agent and known in {None, model}:
            return None
        opened.agent = agent_list.agent = agent
        client = {"client": reading.request.headers.get("user-agent", "")[:200], "wire": reading.request.wire}
        client["model"] = model or ""
        return self.sessions.start(
            self.store.put_value(session_value_key(opened.id, "client"), client | agent.to_json())
        )

    # Recall.

    async def answer_recall(
        self, exchange: Exchange, sink: "_AgentSink", answer: Answer, duration_ms: int
    ) -> bytes | None:
        """Answer the calls of `recall` in an answer, and return the request that continues it.

        None means that the answer is over: the client has calls to answer first, or there are none of ours.
        """
        wire, opened = sink.reading.request.wire, sink.opened
        calls = recall_calls(wire, answer.messages)
        is_over = not calls or has_other_calls(wire, answer.messages) or not answer.is_complete
        if is_over or sink.rounds > MAX_RECALL_ROUNDS:
            return None
        results = await self._recall_results(sink, calls)
        sink.rounds += 1
        sent = exchange.body
        async with opened.lock:
            append = partial(self._append_round, exchange, sink, answer, duration_ms, results)
            is_recorded = self._is_current(sink) and await self._append_to(sink, append)
        if is_recorded:
            await self._index_response(sink, answer)
        if is_recorded and exchange.prepare_again is not None:
            return exchange.body
        return _continued_body(sent, sink.reading, [*answer.messages, *results])

    async def _append_round(
        self, exchange: Exchange, sink: "_AgentSink", answer: Answer, duration_ms: int, results: Sequence[JsonMapping]
    ) -> bool:
        """Record an answer and the results of its calls of `recall`, and prepare the request that follows them.

        Return False if others have recorded something since that its client has, too.
        """
        opened, agent_list, reading = sink.opened, sink.agent_list, sink.reading
        if opened.has_news:
            await opened.read_main_again(agent_list, reading.request.wire, reading.start)
        if not self._is_current(sink):
            return False
        async with _Writing(opened, sink.agent_name, agent_list):
            await self._append_messages(sink, answer, duration_ms, results)
            if exchange.prepare_again is not None:
                await exchange.prepare_again()
        return True

    async def _recall_results(self, sink: "_AgentSink", calls: Sequence[RecallCall]) -> list[JsonObject]:
        wire, tool = sink.reading.request.wire, sink.opened.session.recall_tool()
        if sink.rounds == MAX_RECALL_ROUNDS:
            return recall_results(wire, calls, [NO_MORE_ROUNDS] * len(calls))
        return recall_results(wire, calls, [await tool.call(call.arguments) for call in calls])


async def record_side_answer(session: Session, answer: Answer, purpose: SideCallPurpose) -> None:
    """Record an answer beside the conversation, with its cost."""
    usage = usage_of(answer)
    if answer.messages or usage:
        await session.record_side_call(answer_text(answer), purpose=purpose, model=answer.model, usage=usage)


class _Writing:
    """Writes new messages and the request with them at once; after a failure the agent's list is read from the log."""

    def __init__(self, opened: OpenSession, name: str, agent_list: AgentList) -> None:
        self._opened, self._name, self._agent_list = opened, name, agent_list
        self._write = agent_list.conversation.one_write()

    async def __aenter__(self) -> None:
        try:
            await self._write.__aenter__()
        except BaseException:
            await self._read_again()
            raise
        if self._name == MAIN_AGENT and self._opened.has_news:
            error = ConcurrentWriteError(self._opened.id)
            await self.__aexit__(ConcurrentWriteError, error, None)
            raise error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._write.__aexit__(kind, error, trace)
        except BaseException:
            await self._read_again()
            raise
        if error is not None:
            await self._read_again()

    async def _read_again(self) -> None:
        if self._name == MAIN_AGENT:
            self._opened.agent_lists.pop(MAIN_AGENT, None)
        else:
            # Nobody else writes for a sub-agent that runs here: its answer may follow whatever others have recorded.
            self._agent_list.is_behind = True
        self._opened.is_outdated = True
        # Nothing may be in memory any more, and the answer of a sub-agent may be the next to be recorded.
        with suppress(HoldfastError):
            await self._opened.session.refresh()


class _AgentSink:
    """Where the answer of a conversation goes."""

    def __init__(
        self, recorder: Recorder, opened: OpenSession, reading: ReadRequest, agent_name: str, agent_list: AgentList
    ) -> None:
        self.recorder, self.opened, self.reading = recorder, opened, reading
        self.agent_name, self.agent_list = agent_name, agent_list
        self.last_hash = agent_list.chain.last_hash
        """The hash of the last message of the request."""
        self.open_answer: OpenAnswer | None = None
        """What was recorded of the answer so far, if `recall` was called in it."""
        self.rounds = 0
        """How often `recall` was answered."""
        self.response_ids: list[str] = []
        # Not the sink itself: with it, a closed session would wait for the garbage collector.
        self._mark = agent_list.newest = object()
        agent_list.in_flight += 1

    @property
    def is_newest(self) -> bool:
        """Whether no request of its agent came after this one."""
        return self._mark is self.agent_list.newest

    async def store(self, answer: Answer | None, duration_ms: int) -> None:
        asked = self.last_hash
        if answer is None:
            self.agent_list.in_flight -= 1
        else:
            await self.recorder.record_answer(self, answer, duration_ms)
        if self.agent_name == MAIN_AGENT and self.agent_list.chain.last_hash == asked:
            self.recorder.note_unanswered(self.reading, self.opened.id, asked)

    def work_ahead(self, *, compacts: bool) -> None:
        if reading := self.agent_list.conversation.read_ahead():
            self.opened.users += 1
            self.recorder.sessions.start(self._work_ahead(reading, compacts=compacts))

    async def _work_ahead(self, reading: Awaitable[None], *, compacts: bool) -> None:
        opened, agent_list, sessions = self.opened, self.agent_list, self.recorder.sessions
        try:
            await reading
            if not compacts or self.agent_name != MAIN_AGENT:
                return
            async with opened.lock:
                if self.is_newest and not agent_list.in_flight and sessions.has(opened):
                    await agent_list.conversation.compact_ahead(endpoint=self.reading.request.upstream)
        finally:
            await sessions.release(opened)

    async def answer_recall(self, exchange: Exchange, answer: Answer, duration_ms: int) -> bytes | None:
        return await self.recorder.answer_recall(exchange, self, answer, duration_ms)


class _SideSink:
    """Where the answer of a side call goes."""

    def __init__(
        self, recorder: Recorder, opened: OpenSession, reading: ReadRequest, purpose: SideCallPurpose, chain: Chain
    ) -> None:
        self.recorder, self.opened, self.reading = recorder, opened, reading
        self.purpose: SideCallPurpose = purpose
        self.chain = chain

    async def store(self, answer: Answer | None, duration_ms: int) -> None:
        del duration_ms
        if answer is not None:
            await self.recorder.record_side_call(self, answer)

    def work_ahead(self, *, compacts: bool) -> None:
        """A side call adds nothing to the conversation."""

    async def answer_recall(self, exchange: Exchange, answer: Answer, duration_ms: int) -> bytes | None:
        del exchange, answer, duration_ms  # a side call has no recall tool


def _is_kept(wire: Wire, fields: JsonMapping) -> bool:
    """Return whether the provider keeps an answer, so that a later request can continue it by its id."""
    if wire == "anthropic":
        return is_mapping(fields.get("thread"))
    return wire == "openai-responses" and fields.get("store") is not False


def _continued_body(raw: bytes, reading: ReadRequest, natives: Sequence[JsonMapping]) -> bytes:
    """Return a request with more messages after its own; a conversation at the provider has those of the model."""
    member = LIST_MEMBERS[reading.request.wire]
    if "conversation" in reading.body.fields:
        natives = [native for native in natives if native.get("type") == "function_call_output"]
        return with_members(raw, {member: with_messages(reading.request.wire, b"[]", natives)})
    if reading.body.fields.get("store") is False:
        natives = [one for one in natives if not is_optional(one) or one.get("encrypted_content")]
    listed = bytes(members_of(raw)[member])
    return with_members(raw, {member: with_messages(reading.request.wire, listed, natives)})


def _shared_messages(agent_list: AgentList, listed: ClientList, length: int) -> _Shared:
    """Return what the lists of agent and client share that begin with so many messages of the chain.

    Reasoning has no place in the chain. What stands between these messages and the next one is shared if the log has it
    there, too; all other reasoning belongs to what follows.
    """
    rest = agent_list.positions[length:]
    first, last = listed.first_after(length), agent_list.positions[length - 1] if length else -1
    start = listed.start_of_optional(first)
    for index in range(start, first):
        place = agent_list.reasoning_positions.get(reasoning_key(listed.body.message(index)), -1)
        if place <= last or (rest and place >= rest[0]):
            first = index
            break
        last = place
    if not rest:
        return _Shared(length, first, None)
    unseen, rewind_to = {*agent_list.reasoning_positions.values(), *agent_list.hidden}, rest[0]
    while rewind_to - 1 > last and rewind_to - 1 in unseen:
        rewind_to -= 1
    return _Shared(length, first, rewind_to)


def _is_run_here(agent_list: AgentList) -> bool:
    return isinstance(agent_list.conversation, Delegate) and agent_list.conversation.is_running_here


def _goes_on(agent_list: AgentList, reading: ReadRequest) -> bool:
    """Return whether the list of a request has all messages of an agent, and maybe more."""
    chain = agent_list.read(reading.body).chain
    return agent_list.chain.shared_length(chain) == len(agent_list.chain.hashes)


def _place_of(answer: OpenAnswer | None) -> int | None:
    return None if answer is None else answer.position


def _says_something(answer: Answer) -> bool:
    said = ("content", "tool_calls", "parts", "refusal", "audio", "images", "function_call")
    return any("type" in message or any(message.get(name) for name in said) for message in answer.messages)


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
