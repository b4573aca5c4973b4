"""What the pages know about a session without its texts: where each message is, its requests, its changes of context.

The log is read once, in the background and in small steps, and later only what was added. A page of a long session that
is not read yet is served from the session's snapshot, which knows the position of every message. Texts stay in the
store; a page loads those that it shows.
"""

import asyncio
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar, cast

from holdfast.core.conversation.json_values import encode_json
from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.history import events as log
from holdfast.core.history.context import ContextVersion
from holdfast.core.history.history import History
from holdfast.core.history.session_state import SessionState
from holdfast.core.history.snapshot import unpack_positions
from holdfast.core.planning.change_receipt import ChangeReceipt, ContextChange, change_receipts
from holdfast.counters.models import dollars_of
from holdfast.errors import MalformedInputError, NotInMemoryError, StoreError, UnknownSessionError
from holdfast.session.heavy_work import are_long, plan_in_thread
from holdfast.session.log.records import StoredLog
from holdfast.session.log.sent_body import SentBody, body_positions, is_whole_body, join_body
from holdfast.session.log.session_snapshot import decode_snapshot
from holdfast.session.request import chain_hash, message_hash, rebuild_messages
from holdfast.stores.base import Store, StoredRecord, session_value_key
from holdfast.text import clip_to_line
from holdfast.wire.formats import format_named

T = TypeVar("T")
RECORDS_PER_STEP = 250
"""How many records are read at a time: about twenty milliseconds of work."""
PAUSE_SECONDS = 0.02
"""The pause between two steps, if a snapshot serves the pages meanwhile."""
SNAPSHOT_MIN_RECORDS = 2_000
"""A shorter log is read at once, so its snapshot is of no use."""
MAX_LOADED_MESSAGES = 4_000
MAX_INDEXES = 64
MAX_FIRST_PROMPT_CHARS = 90
FIRST_MESSAGES = 8
"""Among how many first messages the title of a session is looked for."""

EVENT_SENTENCES: Mapping[type[log.Event], str] = {
    log.ModelSwitched: "the model is now {0.model}",
    log.SystemChanged: "the system text of {0.scope} has changed",
    log.ToolsChanged: "the tools of {0.scope} have changed",
    log.Pinned: "#{0.position} was pinned",
    log.Unpinned: "#{0.position} was unpinned",
    log.Forked: "forked from {0.parent} at #{0.at}",
    log.AgentChanged: "the agent is now {0.name}",
    log.DelegationStarted: "a task for the agent {0.agent}: {0.task:.160}",
    log.DelegationResumed: "the delegation {0.scope} goes on",
    log.DelegationFinished: "the delegation {0.scope} ended: {0.state}",
    log.TurnInterrupted: "the turn was interrupted",
    log.CompactionStarted: "a summary is being written ({0.trigger})",
    log.ProviderSignalled: "the provider signalled {0.signal}",
    log.SideCallRecorded: "a call beside the conversation ({0.purpose})",
    log.SessionScrubbed: "a secret was scrubbed from the log",
    log.UnknownEvent: "an event of the unknown kind {0.kind}",
}
"""What the transcript says about events that are no messages, no requests and no changes of context."""


class PartTokens(NamedTuple):
    """The tokens of a request by part. System text and tools are counted; the others are their shares by size."""

    system: int = 0
    tools: int = 0
    summary: int = 0
    user: int = 0
    assistant: int = 0
    tool_output: int = 0

    @property
    def total(self) -> int:
        """All tokens."""
        return sum(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedRequest:
    """A recorded request, with the state of the session from which it is rebuilt."""

    number: int
    """Counted from 1, over all agents of the session."""
    log_position: int
    time_ms: int
    length: int
    """How many messages there were."""
    scope: str
    version: ContextVersion
    state: SessionState
    format: str | None
    parts: PartTokens
    budget: int
    payload_hash: str
    is_chained: bool
    """Whether its hash continues the chain of the requests before it."""
    previous: int | None
    """The number of the request before it of the same agent."""
    break_reason: str
    """Why it does not begin with the request before, as it was recorded; empty if it does, or if nobody knew."""
    change_count: int
    """How many changes of context there were."""
    body_start: int | None
    """The number of the request with which its bytes begin to be put together; None if they were not recorded."""


class ContextPoint(NamedTuple):
    """The size of the main agent's context at one moment: at a request, or at an answer that was billed."""

    number: int
    """The number of the request, or the position of the answer."""
    time_ms: int
    length: int
    parts: PartTokens
    budget: int
    change_count: int


@dataclass(frozen=True, slots=True)
class LogMark:
    """An event between two messages, for display."""

    log_position: int
    time_ms: int
    length: int
    """How many messages came before it."""
    kind: str
    text: str
    number: int = 0
    """Which request or which change of context it is, counted from 1."""


class LoadedMessage(NamedTuple):
    """A message read from the store."""

    event: log.MessageAppended
    time_ms: int
    message: Message


@dataclass(slots=True)
class _Bills:
    usage: dict[str | None, log.Usage] = field(default_factory=dict[str | None, log.Usage])
    """The billed tokens by model."""
    summaries: float = 0.0
    """The dollars of summaries."""
    latest: log.Usage | None = None

    def add(self, usage: log.Usage, model: str | None) -> None:
        self.usage[model] = self.usage.get(model, log.Usage()) + usage

    def dollars(self, unnamed_model: str | None) -> float | None:
        """Return what everything cost; None if nothing was billed or a price is unknown."""
        billed = {model: usage for model, usage in self.usage.items() if usage != log.Usage()}
        costs = [dollars_of(usage, model or unnamed_model or "") for model, usage in billed.items()]
        known = [cost for cost in costs if cost is not None]
        return sum(known) + self.summaries if known and len(known) == len(costs) else self.summaries or None


class SessionIndex:
    """The index of one session. Callers hold `lock` while they read it."""

    def __init__(self, store: Store, session: str) -> None:
        self.store = store
        self.session = session
        self.lock = asyncio.Lock()
        self.client = ""
        self.client_model: str | None = None
        """The model that the gateway's client or an imported session names."""
        self._loaded: OrderedDict[int, LoadedMessage] = OrderedDict()
        self._measured: dict[int, tuple[str, int]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._refreshes = 0
        """How many pages wait for it."""
        self.total = 0
        """How many records the log has."""
        self._reset()

    def _reset(self) -> None:
        self._stored = StoredLog(self.store, self.session)
        self._snapshot: tuple[History, array[int]] | None = None
        self._clean_length = 0
        """How long the log was when the reading began: all scrubs among these records came before it."""
        self._first: list[StoredRecord] = []
        """The first record, by which another session of the same name is recognized."""
        self._history = History(format_named)
        self._positions = array("q")
        self._chars = {name: array("q", [0]) for name in ("system", "user", "assistant", "tool_output")}
        """By part, the characters of the messages before each position."""
        self._chain = ""
        self._loaded.clear()
        self._measured.clear()
        self.requests: list[IndexedRequest] = []
        self._last_request: dict[str, int] = {}
        self._body_starts: dict[str, int] = {}
        self._billed_points: list[ContextPoint] = []
        self.changes: list[tuple[LogMark, ContextChange]] = []
        self._change_events: list[tuple[int, int, log.Event]] = []
        self.marks: list[LogMark] = []
        self._remembered: dict[str, tuple[int, object]] = {}
        """Values computed from the index, with the number of records that they were computed from."""
        self.bills = _Bills()
        self.title = ""
        self.damage: list[str] = []

    # What is known.

    @property
    def length(self) -> int:
        """How many records were read."""
        return self._stored.length

    @property
    def is_complete(self) -> bool:
        """Whether everything that the log had at the last refresh was read."""
        return self._stored.length >= self.total

    @property
    def history(self) -> History:
        """The history without its messages: of the whole log, or of its snapshot as long as the log is being read."""
        return self._history if self.is_complete or self._snapshot is None else self._snapshot[0]

    @property
    def message_count(self) -> int:
        """How many messages are known."""
        return len(self._known_positions)

    @property
    def _known_positions(self) -> "array[int]":
        if self.is_complete or self._snapshot is None:
            return self._positions
        return max(self._positions, self._snapshot[1], key=len)

    @property
    def model(self) -> str | None:
        """The model of the session, if the log or the gateway's client names it."""
        return self._history.session_state.model or self.client_model

    def remember(self, name: str, compute: Callable[[], T]) -> T:
        """Return a value that depends on the index only, computed once for each state of the log."""
        known = self._remembered.get(name)
        if known is None or known[0] != self.length:
            known = self._remembered[name] = self.length, compute()
        return cast("T", known[1])

    def context_points(self) -> list[ContextPoint]:
        """Return the size of the main agent's context at each request; without requests, at each billed answer."""
        return [
            ContextPoint(one.number, one.time_ms, one.length, one.parts, one.budget, one.change_count)
            for one in self.requests
            if one.scope == log.MAIN
        ] or self._billed_points

    def receipts(self) -> list[ChangeReceipt]:
        """Return the receipt of every change of context, the oldest first."""
        found = change_receipts(
            (event for _, _, event in self._change_events), (time_ms for _, time_ms, _ in self._change_events)
        )
        return [replace(receipt, length=mark.length) for receipt, (mark, _) in zip(found, self.changes, strict=True)]

    def request_counts(self) -> list[int]:
        """Return for each change of context how many requests its agent sent while it was in force.

        Without requests on record, billed answers are counted. A cleared context ends all changes before.
        """
        counts = [0] * len(self.changes)
        starts: dict[int, int] = {}
        """The changes in force, each with its place in the log."""
        done, undone, number = list[int](), list[int](), 0

        def end(ended: Iterable[int], place: int) -> None:
            for one in ended:
                change = self.changes[one][1]
                places = self._request_places(log.MAIN if isinstance(change, log.Rewound) else change.scope)
                counts[one] += bisect_left(places, place) - bisect_left(places, starts.pop(one, place))

        for place, _, event in self._change_events:
            match event:
                case log.ChangeUndone() if done:
                    undone.append(done.pop())
                    end(undone[-1:], place)
                case log.ChangeRedone() if undone:
                    done.append(undone.pop())
                    starts[done[-1]] = place
                case log.ChangeUndone() | log.ChangeRedone():
                    pass
                case _:
                    if isinstance(event, log.ContextCleared):
                        end([*starts], place)
                    if not isinstance(event, log.CompactionCompleted) or event.success:
                        done.append(number)
                        undone.clear()
                        starts[number] = place
                    number += 1
        end([*starts], self.length)
        return counts

    def _request_places(self, scope: str) -> list[int]:
        """Return the places of an agent's requests in the log; without requests, those of billed answers."""
        if self.requests:
            return self.remember(
                f"requests of {scope}", lambda: [one.log_position for one in self.requests if one.scope == scope]
            )
        return [self._positions[one.number] for one in self._billed_points] if scope == log.MAIN else []

    def marks_between(self, start: int, stop: int) -> list[LogMark]:
        """Return the events after the message before `start`, up to the one before `stop`."""
        first = bisect_left(self.marks, start, key=lambda mark: mark.length)
        last = bisect_left(self.marks, stop, key=lambda mark: mark.length)
        return self.marks[first:last]

    # Reading.

    @property
    def is_awaited(self) -> bool:
        """Whether a page waits for what is being read."""
        return self._refreshes > 0

    async def refresh(self, *, wait_seconds: float | None = None, needed_messages: int | None = None) -> None:
        """Read what was added since; return when it is read, or after `wait_seconds`.

        If a snapshot knows so many messages, return at once. What is left is read in the background.
        """
        self._refreshes += 1
        try:
            await self._refresh(wait_seconds, needed_messages)
        finally:
            self._refreshes -= 1

    async def _refresh(self, wait_seconds: float | None, needed_messages: int | None) -> None:
        total = await self.store.length(self.session)
        if total != self._stored.length:
            first = await self.store.read_at(self.session, [0])
            if self._stored.length and (total < self._stored.length or first != self._first):
                async with self.lock:
                    self._reset()  # the session was deleted, and another one has its name
            self._first = first
        self.total = total
        if self._stored.length >= total:
            return
        is_at_beginning = self._stored.length == 0
        if is_at_beginning:
            await self._read_client()
        if self._reading is None or self._reading.done():
            if is_at_beginning and total >= SNAPSHOT_MIN_RECORDS:
                await self._read_snapshot()
            self._reading = asyncio.create_task(self._read_all())
        task = self._reading
        if wait_seconds is not None and self._snapshot is not None and self.message_count >= (needed_messages or 0):
            wait_seconds = 0  # a long log takes longer than any page would wait
        done, _ = await asyncio.wait([task], timeout=wait_seconds)
        for one in done:
            if one.cancelled():
                raise UnknownSessionError(self.session)  # it was deleted
            one.result()

    async def _read_client(self) -> None:
        """Read who speaks: the gateway's client, or the program that an import came from."""
        client = await self.store.get_value(session_value_key(self.session, "client"))
        client = client or await self.store.get_value(session_value_key(self.session, "import")) or {}
        name, model = client.get("client") or client.get("program"), client.get("model")
        self.client = name if isinstance(name, str) else ""
        self.client_model = model if isinstance(model, str) else None

    async def _read_snapshot(self) -> None:
        with suppress(StoreError):
            stored = await self.store.get_snapshot(self.session)
            if stored and (snapshot := await asyncio.to_thread(decode_snapshot, stored.data)):
                positions = unpack_positions(snapshot.log_positions)
                self._snapshot = History.from_snapshot(snapshot.state, format_named), positions

    async def _read_all(self) -> None:
        while True:
            async with self.lock:
                start = self._stored.length  # a page that waited before may have begun anew
                if start == 0:
                    self._clean_length = await self.store.length(self.session)
                news = await self._stored.read_new(RECORDS_PER_STEP)
                later = news[max(0, self._clean_length - start) :]
                if any(isinstance(event, log.SessionScrubbed) for _, event in later):
                    # A scrubbed secret must not stay in memory.
                    self._reset()
                    continue
                if not news:
                    break
                await asyncio.to_thread(self._apply_all, start, news)
                self.damage += self._stored.damage
                self._stored.damage = []
            # Pages come first: each step delays them by as long as it takes.
            await asyncio.sleep(PAUSE_SECONDS if self._snapshot is not None else 0)
        self.total = self._stored.length
        self._snapshot = None

    def _apply_all(self, start: int, news: Sequence[tuple[int, log.Event]]) -> None:
        for place, (time_ms, event) in enumerate(news, start):
            try:
                if isinstance(event, log.RequestPrepared):
                    self._add_request(event, place, time_ms)
                self._history.append(event)
            except MalformedInputError as error:
                self.damage.append(str(error))
                continue
            self._observe(event, place, time_ms)
        self._history.entries.evict(len(self._history), ())

    def _observe(self, event: log.Event, place: int, time_ms: int) -> None:
        length = len(self._history)
        match event:
            case log.MessageAppended():
                self._add_message(event, place, time_ms)
            case log.ChangeUndone() | log.ChangeRedone():
                self._change_events.append((place, time_ms, event))
                verb = "undone" if isinstance(event, log.ChangeUndone) else "in force again"
                self.marks.append(LogMark(place, time_ms, length, event.KIND, f"the last change of context is {verb}"))
            case (
                log.CompactionCompleted()
                | log.OutputsOffloaded()
                | log.TurnsReducedToText()
                | log.ContextCleared()
                | log.Rewound()
            ):
                self._change_events.append((place, time_ms, event))
                mark = LogMark(place, time_ms, length, event.KIND, "", len(self.changes) + 1)
                self.changes.append((mark, event))
                self.marks.append(mark)
                if isinstance(event, log.CompactionCompleted) and event.summary.dollars:
                    self.bills.summaries += event.summary.dollars
            case log.RequestPrepared():
                row = self.requests[-1]
                self.marks.append(LogMark(place, time_ms, length, event.KIND, "", row.number))
            case _:
                if isinstance(event, log.SideCallRecorded) and event.usage is not None:
                    self.bills.add(event.usage, event.model)
                if sentence := EVENT_SENTENCES.get(type(event)):
                    self.marks.append(LogMark(place, time_ms, length, event.KIND, sentence.format(event)))

    def _add_message(self, event: log.MessageAppended, place: int, time_ms: int) -> None:
        message = self._history.entries[len(self._history) - 1].message
        self._positions.append(place)
        part, chars = _part_of(message), message.chat_chars + message.outline.work_chars
        for name, sums in self._chars.items():
            sums.append(sums[-1] + (chars if name == part else 0))
        if event.usage is not None:
            self.bills.add(event.usage, self._history.session_state.model)
            self.bills.latest = event.usage
            if event.scope == log.MAIN and event.usage.all_input_tokens:
                length = len(self._history)
                parts = self._part_tokens(log.MAIN, event.usage.all_input_tokens, stop=length - 1)
                point = ContextPoint(length - 1, time_ms, length, parts, 0, len(self.changes))
                self._billed_points.append(point)
        if not self.title and len(self._history) <= FIRST_MESSAGES and message.is_prompt:
            self.title = clip_to_line(message.text, MAX_FIRST_PROMPT_CHARS)

    def _add_request(self, event: log.RequestPrepared, place: int, time_ms: int) -> None:
        history, situation = self._history, event.situation
        number = len(self.requests) + 1
        if event.body_hash is not None and is_whole_body(event):
            self._body_starts[event.scope] = number
        self.requests.append(
            IndexedRequest(
                number=number,
                log_position=place,
                time_ms=time_ms,
                length=len(history),
                scope=event.scope,
                version=history.version,
                state=history.session_state,
                format=history.format,
                parts=self._part_tokens(
                    event.scope,
                    _count(situation.get("tokens")),
                    system=_count(situation.get("systemTokens")),
                    tools=_count(situation.get("toolsTokens")),
                    stop=len(history),
                ),
                budget=_count(situation.get("budget")),
                payload_hash=event.payload_hash,
                is_chained=event.chain_hash in {None, chain_hash(self._chain, event.payload_hash)},
                previous=self._last_request.get(event.scope),
                break_reason=event.prefix_break.reason if event.prefix_break else "",
                change_count=len(self.changes),
                body_start=None if event.body_hash is None else self._body_starts.get(event.scope),
            )
        )
        self._chain = event.chain_hash or self._chain
        self._last_request[event.scope] = number

    def _part_tokens(self, scope: str, tokens: int, *, stop: int, system: int = 0, tools: int = 0) -> PartTokens:
        """Return the tokens of a request by part; the conversation's are divided by the sizes of what is in view."""
        history = self._history
        conversation = max(0, tokens - system - tools)
        state = history.version.state_of(scope)
        summary, position, spans = 0, state.cleared_at, list[tuple[int, int]]()
        for compaction in state.compactions:
            span = compaction.span
            spans.append((position, span.start))
            spans += [(kept, kept + 1) for kept in span.kept]
            position = max(position, span.stop)
            summary += sum(map(len, compaction.replacement))
        spans.append((position, stop))
        sizes = {name: sum(max(0, sums[b] - sums[a]) for a, b in spans if a < b) for name, sums in self._chars.items()}
        for hidden in history.version.hidden:
            for name, sums in self._chars.items():
                overlap = (sums[min(hidden.stop, b)] - sums[max(hidden.start, a)] for a, b in spans
                           if max(hidden.start, a) < min(hidden.stop, b))  # fmt: skip
                sizes[name] -= sum(overlap)
        whole = max(1, summary + sum(sizes.values()))
        share = {name: conversation * size // whole for name, size in (*sizes.items(), ("summary", summary))}
        rest = conversation - sum(share.values())
        return PartTokens(
            system + share["system"], tools, share["summary"], share["user"] + rest, share["assistant"],
            share["tool_output"],
        )  # fmt: skip

    # Texts.

    async def load(self, positions: Iterable[int]) -> dict[int, LoadedMessage]:
        """Return messages by position, from memory or from the store. Caller must hold the lock."""
        wanted, known = list(positions), self._known_positions
        places = {known[at]: at for at in wanted if at not in self._loaded and 0 <= at < len(known)}
        found = {at: self._loaded[at] for at in wanted if at in self._loaded}
        for stored in await self.store.read_at(self.session, list(places)) if places else ():
            event = await self._stored.decode(stored)
            if isinstance(event, log.MessageAppended):
                at = places[stored.position]
                decode = partial(self._decode_message, at, event)
                message = await plan_in_thread(decode) if are_long([event.native]) else decode()
                found[at] = self._loaded[at] = LoadedMessage(event, stored.time_ms, message)
        while len(self._loaded) > MAX_LOADED_MESSAGES:
            gone, _ = self._loaded.popitem(last=False)
            self._measured.pop(gone, None)
        return found

    def _decode_message(self, position: int, event: log.MessageAppended) -> Message:
        history = self.history
        history.load_message(position, event)
        message = history.entries[position].message
        history.entries.evict(position + 1, range(position))
        return message

    async def event_at(self, log_position: int) -> log.Event | None:
        """Return the event at a place in the log."""
        found = await self._stored.events_at([log_position])
        return found[0][1] if found else None

    async def rebuild(
        self, request: IndexedRequest
    ) -> tuple[log.RequestPrepared, History, list[tuple[int | None, Mapping[str, object]]]]:
        """Return a request's event, the history of its moment, and its messages with their positions.

        Only messages that it holds are read. Caller must hold the lock.
        """
        event = await self.event_at(request.log_position)
        if not isinstance(event, log.RequestPrepared):
            raise MalformedInputError(f"request {request.number}", "the log does not hold it any more")
        past = self.history_at(request)
        while True:
            try:
                return event, past, rebuild_messages(event, past)
            except NotInMemoryError as missing:
                found = await self.load(missing.positions)
                if not found:
                    raise
                for at, loaded in found.items():
                    past.entries.load(Entry(loaded.message, at), loaded.event)

    async def sent_body(self, request: IndexedRequest) -> SentBody | None:
        """Return the bytes of a request as they were sent; None if they were not recorded. Caller must hold the lock.

        Raises `MalformedInputError` if the log no longer has what they are made of.
        """
        if request.body_start is None:
            return None
        chain = [
            one.log_position
            for one in self.requests[request.body_start - 1 : request.number]
            if one.scope == request.scope and one.body_start is not None
        ]
        events = [event for _, event in await self._stored.events_at(chain) if isinstance(event, log.RequestPrepared)]
        if len(events) != len(chain):
            raise MalformedInputError(f"request {request.number}", "the log does not hold all of its bytes any more")
        count = len(self._known_positions)
        loaded = await self.load({position for event in events for position in body_positions(event, count)})
        return join_body(events, {at: one.event.native for at, one in loaded.items()})

    def measure(self, position: int | None, message: Mapping[str, object]) -> tuple[str, int]:
        """Return the hash and the bytes of a message of a request; of an unchanged message they are computed once."""
        loaded = self._loaded.get(position) if position is not None else None
        if position is None or loaded is None or loaded.event.native is not message:
            return message_hash(message), compact_size(message)
        known = self._measured.get(position)
        if known is None:
            known = self._measured[position] = message_hash(message), compact_size(message)
        return known

    def history_at(self, request: IndexedRequest) -> History:
        """Return the history at a request, without its messages."""
        return self._history.at(request.length, request.version, request.state, request.format)

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._reading


class SessionIndexes:
    """The indexes of the sessions that were looked at last."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._indexes: OrderedDict[str, SessionIndex] = OrderedDict()

    async def get(self, session: str) -> SessionIndex:
        """Return the index of a session, as far as it was read."""
        index = self._indexes.get(session)
        if index is None:
            index = self._indexes[session] = SessionIndex(self.store, session)
        self._indexes.move_to_end(session)
        while len(self._indexes) > MAX_INDEXES:
            unused = (name for name, one in self._indexes.items() if one is not index and not one.is_awaited)
            if (oldest := next(unused, None)) is None:
                break
            await self._indexes.pop(oldest).close()
        return index

    def length_read(self, session: str) -> int:
        """Return how many records of a session were read."""
        index = self._indexes.get(session)
        return index.length if index else 0

    async def forget(self, session: str) -> None:
        """Drop the index of a session."""
        if index := self._indexes.pop(session, None):
            await index.close()

    async def close(self) -> None:
        """Stop reading everywhere."""
        for index in self._indexes.values():
            await index.close()


def compact_size(message: Mapping[str, object]) -> int:
    """Return the size of a message as compact JSON."""
    return len(encode_json(message if isinstance(message, dict) else dict(message)))


def _part_of(message: Message) -> str:
    speaker = message.speaker
    if speaker in {"system", "assistant"}:
        return speaker
    return "tool_output" if speaker == "tool" else "user"


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
