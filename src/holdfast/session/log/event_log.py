"""A session's history in memory and its log in the store: a change is durable before the history has it.

If another process has written meanwhile, its events are applied first. A long log is opened from a snapshot, and only
the messages that are needed are read. Callers use the history through `locked` and `retried`: both run a method again
when it needs messages that are not in memory, or when another writer appended first.
"""

import asyncio
import os
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial, wraps
from itertools import zip_longest
from typing import ClassVar, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.codec import RECORD_SCHEMA
from holdfast.core.history.history import History
from holdfast.core.history.scopes import abandoned_delegation_events
from holdfast.core.history.snapshot import pack_positions, unpack_positions
from holdfast.errors import (
    ConcurrentWriteError,
    HoldfastError,
    MalformedInputError,
    MissingBlobError,
    NotInMemoryError,
    SequenceConflictError,
    SessionClosedError,
    SettingsError,
    StoreError,
    StoreUnavailableError,
    UnknownScopeError,
    UnknownSessionError,
    WrongEventLoopError,
)
from holdfast.session.heavy_work import MAX_INLINE_CHARS, MAX_INLINE_MESSAGES, are_long, record_in_thread, release
from holdfast.session.log.index_text import index_entries
from holdfast.session.log.records import RECORDS_PER_PAGE, StoredLog, encode_event
from holdfast.session.log.sent_body import SentBodies
from holdfast.session.log.session_snapshot import SessionSnapshot, decode_snapshot, encode_snapshot
from holdfast.session.subscription import EventPublisher
from holdfast.stores.base import IndexEntry, JsonRecord, Snapshot, Store, StoredRecord
from holdfast.stores.retention import record_retention, stored_retention
from holdfast.wire.formats import format_named
from holdfast.wire.signals import message_signals

T = TypeVar("T")
Clock: TypeAlias = Callable[[], int]
"""Returns the time in milliseconds since 1970."""
MAX_CONFLICTS = 1_000
"""How many sequence conflicts a writer tolerates before it gives up."""
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.002, 0.1
SNAPSHOT_EVERY, SNAPSHOT_SHARE, SNAPSHOT_AT_CLOSE, SNAPSHOT_AFTER_COMPACTION = 2_000, 20, 100, 32
"""A snapshot pays off after this many new records and a twentieth of the log.

At close it does after fewer, and after a compaction: what was compacted before is the larger part of such a log, and
nobody needs it to go on. Other processes that serve the same session then open it without reading that.
"""
FIRST_LOAD_MESSAGES, LOAD_BEFORE_MESSAGES = 256, 16
"""How many messages are read around a missing one; the first number doubles each time."""
MAX_EXTRA_CACHED = 256
"""How many messages outside the view are cached before all but the newest of them are evicted."""


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return int(time.time() * 1000)


class _OneWrite:
    """What one task appends together: the history has it at once, and the store with the next append."""

    def __init__(self, task: asyncio.Task[object] | None = None) -> None:
        self.task = task
        """The task that defers what it appends; None if no task does."""
        self.messages: list[tuple[int, log.MessageAppended]] = []
        """All messages that the task has appended, with their positions, also those that the store has by now."""
        self.failure: HoldfastError | None = None
        """Why the task must do all of it again: another writer was first, or its messages are lost."""
        self.events: list[log.Event] = []
        """The events that the store does not have yet."""
        self.records: list[JsonRecord] = []
        """The records of these events."""
        self.entries: list[IndexEntry] = []
        """Their entries for the search index."""


_EVICTING = log.MessageAppended, log.RequestPrepared
"""Events after which messages may be evicted: what a compaction has removed may be needed for its request."""
_UNCHECKED = log.MessageAppended, log.UsageMeasured, log.RequestPrepared
"""Events that need no check: the format of a message is known to be right, and no history refuses the others."""


class SessionLock:
    """Guards a session's history: held only while waiting for the store, and never granted after the close.

    It belongs to the event loop and the process of its first use. A second loop would wait for ever for what only the
    first can finish, so that mistake is reported at once. Tasks get it in the order in which they asked for it. Every
    call takes it, mostly without waiting, for which `asyncio.Lock` makes three calls more.
    """

    _fork_count: ClassVar[int] = 0
    """How often this process and its parents were forked, which tells a process without a system call."""

    def __init__(self, session: str) -> None:
        self._session = session
        self.is_held = False
        self._waiting = deque[asyncio.Future[None]]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forks = 0
        self.is_closed = False

    @classmethod
    def note_fork(cls) -> None:
        """Note that this process has been forked."""
        cls._fork_count += 1

    def check_open(self) -> None:
        """Raise `SessionClosedError` if the session was closed, `WrongEventLoopError` if another loop runs it."""
        loop, forks = asyncio.get_running_loop(), SessionLock._fork_count
        if self._loop is not loop or self._forks != forks:
            if self._loop is not None and not (self._forks == forks and self._loop.is_closed()):
                raise WrongEventLoopError(f"session {self._session!r}")
            # No task can hold the lock of an ended loop any more: a program may call `asyncio.run` for each turn.
            self._loop, self._forks, self.is_held = loop, forks, False
            self._waiting.clear()
        if self.is_closed:
            raise SessionClosedError(self._session)

    async def __aenter__(self) -> None:
        if self._loop is not asyncio.get_running_loop() or self._forks != SessionLock._fork_count or self.is_closed:
            self.check_open()
        if self.is_held:
            await self._wait()
        self.is_held = True
        if self.is_closed:
            self._release()
            raise SessionClosedError(self._session)

    async def __aexit__(self, *_: object) -> None:
        if self._waiting:
            self._release()
        else:
            self.is_held = False

    async def _wait(self) -> None:
        """Wait until the task that holds the lock passes it on."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except BaseException:
            if not waiter.cancel() and not waiter.cancelled():  # the lock was passed on to it in the same moment
                self._release()
            raise

    def _release(self) -> None:
        """Pass the lock on to the next task that waits and was not cancelled, or free it."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.is_held = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SessionLock.note_fork)


def other_format_error(known: str, given: str) -> SettingsError:
    """Return the error for messages of another format than those of their session."""
    return SettingsError(
        "format", f"the messages of this session are in {known}; convert {given} messages with convert()"
    )


class SessionLog:
    """Holds one history and writes its log. Callers of the methods after `find_scope` must hold the lock."""

    def __init__(self, store: Store, session: str, clock: Clock, format_name: str | None = None) -> None:
        self.store = store
        self.format_name = format_name
        """The format of a session without messages, if its caller has named one."""
        self.session = session
        self.clock = clock
        self.lock = SessionLock(session)
        self.publisher = EventPublisher()
        self.is_loaded = False
        """Whether the log was read before; the history may still lack what other writers have appended since."""
        self.events_read = 0
        """How many events were read from the store: those at the start, and all that others have appended since."""
        self.restarts = 0
        """How often everything in memory was dropped because it held a scrubbed secret, or was of a deleted session.

        What was made of it before may hold the same.
        """
        self._retention_days: int | None = None
        self._stored_retention: int | None = None
        self._one_write = _OneWrite()
        self.reset()

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None, None]:
        """Hold the lock over a history that has every event of the store."""
        async with self.lock:
            await self.refresh()
            yield

    async def find_scope(self, scope: str) -> str:
        """Return a scope as `require_scope` does; refreshes first if the scope is unknown. Acquires the lock itself."""
        with suppress(UnknownScopeError):
            return self.require_scope(scope)
        async with self.locked():
            return self.require_scope(scope)

    def reset(self) -> None:
        """Discard everything that is in memory."""
        self.history = History(format_named)
        if self.format_name is not None:
            self.history.message_format = format_named(self.format_name)
        self.stored = StoredLog(self.store, self.session)
        self.damage: list[str] = []
        """Which records could not be applied, and why."""
        self.last_request_ms: int | None = None
        """When the last request was prepared."""
        self.compaction_started_ms: int | None = None
        """When the last compaction was started."""
        self.last_sent: tuple[Sequence[Mapping[str, object]], Sequence[str], Sequence[int | None]] = (), (), ()
        """The messages of the last request, with their hashes and the positions they came from."""
        self.last_sent_length = 0
        """How many messages the log had when that request was planned."""
        self.message_hashes: dict[int, str] = {}
        """The hashes of cached messages, by position."""
        self.prefix_hashes: dict[tuple[int, bool], str] = {}
        """The hashes of cached messages without cache marks, by position, with and without their thinking."""
        self.fingerprints: dict[str, dict[int, str]] = {}
        """By format and position, the fingerprints of recorded messages; empty for a note from memory."""
        self.sent_bodies = SentBodies()
        """The last body of each agent."""
        self._log_positions = array("q")
        """The place of each message in the log."""
        self.long_until = 0
        """The position after the last message that is so long that threads read it, or came with so many others."""
        self._unconfirmed: dict[int, log.MessageAppended] = {}
        """Messages whose append failed, by their place in the log if the store has them nevertheless."""
        del self._one_write.events[:], self._one_write.records[:], self._one_write.entries[:]
        self._snapshot_length = 0
        self._has_compacted = False
        """Whether a compaction was recorded since the last snapshot."""
        self._load_count = FIRST_LOAD_MESSAGES
        self._cache_limit = MAX_EXTRA_CACHED
        self._changes_at_eviction = 0
        """How many changes of the context the history had when messages were last evicted."""

    def set_retention(self, days: int | None) -> None:
        """Set for how many days the policy keeps the session; it is recorded with the next message."""
        self._retention_days = days

    # Reading.

    async def _read_from_snapshot(self) -> tuple[Snapshot | None, list[StoredRecord] | None]:
        with suppress(StoreError):
            return await self.store.read_from_snapshot(self.session, limit=RECORDS_PER_PAGE)
        return None, None  # what cannot be read is read again without the snapshot, and reported then

    async def _load_snapshot(self) -> tuple[Sequence[int], list[StoredRecord] | None]:
        """Begin with the snapshot, if there is one, and return what comes next.

        That is the positions of messages to read with the news, and the first page of the news, if it was read.
        """
        (stored, page), self._stored_retention = await asyncio.gather(
            self._read_from_snapshot(), stored_retention(self.store, self.session)
        )
        self.is_loaded = True
        if not stored:
            return (), None if self.stored.length else page  # a session that was made here has its beginning
        is_long = len(stored.data) > MAX_INLINE_CHARS
        read = partial(_read_snapshot, stored)
        if (known := await record_in_thread(read) if is_long else read()) is None:
            return (), None
        snapshot, self.history, self._log_positions = known
        self.last_request_ms, self.compaction_started_ms = snapshot.last_request_ms, snapshot.compaction_started_ms
        self.damage = list(snapshot.damage)
        self.stored.length = self._snapshot_length = stored.length
        self.stored.newest_schema = max(RECORD_SCHEMA, snapshot.newest_schema)
        # Whoever compares or compacts a short conversation needs most of its messages: one round instead of several.
        return (range(len(self.history)) if len(self.history) <= FIRST_LOAD_MESSAGES else ()), page

    def require_scope(self, scope: str) -> str:
        """Return a scope that an agent uses or has used; raises `UnknownScopeError` for any other."""
        if scope != log.MAIN and scope not in self.history.scopes.parents and scope not in self.history.message_counts:
            raise UnknownScopeError(scope, sorted(self.history.scopes.parents))
        return scope

    async def refresh(self, *, is_shorter: bool = False) -> int:
        """Apply what other writers have appended since, and return the number of events.

        If another session has the id now, all of that one is read; `is_shorter` says that the log has become shorter.
        Raises `ConcurrentWriteError` if there are any while this task is in `deferring_messages`.
        """
        await self._write_deferred()
        was_loaded = self.is_loaded
        known, page = ((), None) if was_loaded else await self._load_snapshot()
        start, last = self.stored.length, self.stored.last
        if known:
            news, _ = await asyncio.gather(self.stored.read_new(page=page), self.load_messages(known))
        else:
            news = await self.stored.read_new(page=page)
        begins_anew = is_shorter or any(isinstance(event, log.SessionScrubbed) for _, event in news)
        if start and (begins_anew or (news and last)):
            # Until these events are applied, the next refresh sees them again, also if this one is cancelled.
            read, self.stored.length, self.stored.last = (self.stored.length, self.stored.last), start, last
            if begins_anew or await self.stored.is_replaced():
                # A scrubbed secret, or a session that was deleted, must not stay in memory.
                self.restarts += 1
                count = await self._reload()
            else:
                self.stored.length, self.stored.last = read
                count = await self._apply_all(news, start)
        else:
            count = await self._apply_all(news, start)
        if was_loaded:
            self.publisher.publish([event for _, event in news])
            if count and (write := self._one_write).task is not None:
                if write.failure is None:
                    write.failure = ConcurrentWriteError(self.session)
                    self._unconfirmed |= self._messages_of_block()
                if write.task is asyncio.current_task():
                    raise write.failure
        return count

    async def _reload(self) -> int:
        """Read the log from its beginning, and only then replace what is in memory."""
        stored = StoredLog(self.store, self.session)
        news = await stored.read_new()
        self.reset()
        self.stored = stored
        return await self._apply_all(news, 0)

    async def _apply_all(self, timed_events: Sequence[tuple[int, log.Event]], start: int) -> int:
        def apply() -> None:
            for place, (time_ms, event) in enumerate(timed_events, start):
                try:
                    self._apply([event], time_ms, place)
                except MalformedInputError as error:
                    self.damage.append(str(error))

        natives = [event.native for _, event in timed_events if isinstance(event, log.MessageAppended)]
        is_long = len(timed_events) > MAX_INLINE_MESSAGES or are_long(natives)
        await record_in_thread(apply) if is_long else apply()
        self.long_until = len(self.history) if is_long else self.long_until
        self.damage += self.stored.damage
        self.stored.damage = []
        self.events_read += len(timed_events)
        return len(timed_events)

    async def load_messages(self, positions: Sequence[int]) -> None:
        """Read messages that are not in memory; without positions, the whole log."""
        if not positions:
            await self._reload()
            return
        if len(positions) == 1:
            start, self._load_count = positions[0], self._load_count * 2
            positions = range(
                max(0, start - LOAD_BEFORE_MESSAGES), min(start + self._load_count, len(self._log_positions))
            )
        log_positions, are_many = self._log_positions, len(positions) > MAX_INLINE_MESSAGES

        def find() -> dict[int, int]:
            return {log_positions[position]: position for position in positions}

        places = await record_in_thread(find) if are_many else find()
        events = await self.stored.events_at(list(places))

        def load() -> set[int]:
            """Load the messages, and return the places that have none."""
            missing = set(places)
            for place, event in events:
                if isinstance(event, log.MessageAppended):
                    self.history.load_message(places[place], event)
                    missing.discard(place)
            release(events)
            return missing

        is_long = are_many or are_long([event.native for _, event in events if isinstance(event, log.MessageAppended)])
        self.long_until = max(self.long_until, max(positions) + 1) if is_long else self.long_until
        missing = await record_in_thread(load) if is_long else load()
        if missing:  # whoever needs them would ask for them again, without end
            await self._check_exists()
            problem = f"record {min(missing)} is no message any more; restore the store from a copy"
            raise StoreUnavailableError(f"session {self.session!r}", problem)

    async def _check_exists(self) -> None:
        """Raise if somebody has deleted the session."""
        if await self.store.length(self.session) < self.stored.length:
            raise UnknownSessionError(self.session)

    async def message_records(self, positions: Sequence[int]) -> list[tuple[int, StoredRecord]]:
        """Return the records of messages, with their positions, without caching them."""
        places = {self._log_positions[position]: position for position in positions}
        found = await self.store.read_at(self.session, list(places)) if places else []
        return [(places[stored.position], stored) for stored in found]

    def require_content(self, positions: Iterable[int]) -> None:
        """Raise `MissingBlobError` if the store has lost the content of one of the messages."""
        for position in positions:
            if digest := self.stored.missing_blobs.get(self._log_positions[position]):
                raise MissingBlobError(digest)

    async def load_and_retry(self, decide: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a function that changes nothing, called again after each load of messages it needs."""
        while True:
            try:
                return await decide()
            except NotInMemoryError as missing:
                await self.load_messages(missing.positions)

    def _apply(
        self,
        events: Sequence[log.Event],
        time_ms: int | Sequence[int],
        place: int,
        messages: Sequence[Message] = (),
    ) -> None:
        """Apply events that the log has at a place; `messages` are the decoded messages of the events, if known.

        `time_ms` is the time of all events, or one time for each.
        """
        for number, (event, message) in enumerate(zip_longest(events, messages), place):
            self.history.append(event, message)
            if isinstance(event, log.MessageAppended):
                self._log_positions.append(number)
            elif isinstance(event, log.RequestPrepared):
                self.last_request_ms = time_ms if isinstance(time_ms, int) else time_ms[number - place]
                if event.body_hash is not None:
                    self.sent_bodies.observe(event)
            elif isinstance(event, log.CompactionStarted):
                self.compaction_started_ms = time_ms if isinstance(time_ms, int) else time_ms[number - place]
            elif isinstance(event, log.CompactionCompleted):
                self._has_compacted = True

    # Writing.

    async def append(self, *events: log.Event, index: Sequence[IndexEntry] = (), with_next: bool = False) -> None:
        """Record events that were decided on the current history; raises `ConcurrentWriteError` if it has changed.

        `index` holds what a search finds in messages among them. With `with_next` they are written with what this task
        appends next, if it is in `deferring_messages`.
        """
        if self._one_write.failure is not None:  # mostly there is none: one call less
            self._check_block()
        if with_next and self._is_deferring:
            for event in events:
                self.history.check(event)
            self._defer(events)
        elif not await self._try_append(events, index=index, must_be_current=True):
            raise ConcurrentWriteError(self.session)

    async def append_messages(
        self,
        events: Sequence[log.MessageAppended],
        messages: Sequence[Message],
        *,
        is_long: bool,
        must_be_current: bool = False,
    ) -> range:
        """Record messages, and return their positions. `is_long` is what `are_long` says of them.

        A failed or cancelled append may have reached the store; the same messages are then not recorded a second time.
        """
        if not events:
            return range(len(self.history), len(self.history))
        for conflicts in range(MAX_CONFLICTS):
            if self._unconfirmed and (known := await self._already_appended(events)):
                return known
            # Whoever decoded the messages may not have known those of another writer yet.
            if self.history.format not in {None, events[0].format}:
                raise other_format_error(str(self.history.format), events[0].format)
            start, log_position = self.history.entries.length, self.stored.length + len(self._one_write.records)
            self.long_until = start + len(events) if is_long else self.long_until
            index = (
                await record_in_thread(self._index_entries, events, messages)
                if is_long
                else self._index_entries(events, messages)
            )
            if self._one_write.task is not None and self._is_deferring:  # mostly no task defers: one call less
                self._defer(events, messages, index)
                self._one_write.messages += zip(range(start, len(self.history)), events, strict=True)
                return range(start, start + len(events))
            try:
                if await self._try_append(
                    events, messages, index, is_long=is_long, must_be_current=must_be_current, conflicts=conflicts
                ):
                    places = range(start, start + len(events))
                    await self._after_append(places, events, may_save=True)
                    return places
            except asyncio.CancelledError:
                if self.stored.length > log_position:  # they are stored
                    self._unconfirmed = dict(enumerate(events, log_position))
                raise
            if must_be_current:
                raise ConcurrentWriteError(self.session)
        actual = await self.store.length(self.session)
        raise SequenceConflictError(self.session, expected=self.stored.length, actual=actual)

    def _index_entries(
        self, events: Sequence[log.MessageAppended], messages: Sequence[Message]
    ) -> Sequence[IndexEntry]:
        """Return what a search finds in messages that come next."""
        observed, marks = [*enumerate(messages, self.history.entries.length)], self.history.recall_marks
        if marks.open_calls or any(message.outline.call_ids for message in messages):
            marks = marks.for_unrecorded()
            observed = [
                (position, marks.observe(message, position, event.scope))
                for event, (position, message) in zip(events, observed, strict=True)
            ]
        return index_entries(observed)

    async def _after_append(
        self, places: Sequence[int], events: Sequence[log.MessageAppended], *, may_save: bool
    ) -> None:
        """Record what recorded messages say about their provider, and what is kept beside the log.

        With `may_save` no request waits, so that a conversation that was compacted may get a snapshot.
        """
        is_long = bool(places) and self.long_until > places[0]
        signals = await record_in_thread(_signals_of, places, events) if is_long else _signals_of(places, events)
        if signals:
            # The messages are recorded; without the observation nothing is missing.
            with suppress(StoreError):
                await self._try_append(signals)
        if self._retention_days != self._stored_retention:
            await self._record_retention()
        added = self.stored.length - self._snapshot_length
        enough = SNAPSHOT_AFTER_COMPACTION if may_save and self._has_compacted else SNAPSHOT_EVERY
        if added >= enough and added >= self.stored.length // SNAPSHOT_SHARE:
            await self.save_snapshot()

    async def _record_retention(self) -> None:
        """Record the retention. If that fails, the next append tries again; until then nothing expires."""
        with suppress(StoreError):
            await record_retention(self.store, self.session, self._retention_days)
            self._stored_retention = self._retention_days

    async def _already_appended(self, events: Sequence[log.MessageAppended]) -> range | None:
        """Return the positions of messages whose append failed although the store has them.

        A server that has lost its client may write them later: then the next append conflicts, and asks again.
        """
        self._check_block()
        unconfirmed, places = self._unconfirmed, _places_of(events, self._unconfirmed)
        if not places:
            if not self._one_write.records:  # else some of them may wait to be written again
                self._unconfirmed = {}
            return None
        await self.refresh()
        if self.stored.length <= places[0]:
            return None
        start, known = bisect_left(self._log_positions, places[0]), frozenset(places)
        found = list[log.Event]()
        with suppress(MalformedInputError):
            found = [event for _, event in await self.stored.events_at(places)]
        if found != list(events) or [*self._log_positions[start : start + len(events)]] != places:
            self._unconfirmed = {}
            return None
        self._unconfirmed = {place: event for place, event in unconfirmed.items() if place not in known}
        known_places = range(start, start + len(events))
        if self._is_deferring:
            self._one_write.messages += zip(known_places, events, strict=True)
        return known_places

    def _note_unconfirmed(self, first_place: int, events: Sequence[log.Event], error: BaseException) -> None:
        """Note the messages of an append that the store may have nevertheless; without messages, change nothing."""
        if isinstance(error, StoreUnavailableError | asyncio.CancelledError):
            messages = {at: one for at, one in enumerate(events, first_place) if isinstance(one, log.MessageAppended)}
            if self._is_deferring:
                messages = {**self._messages_of_block(), **messages}
            self._unconfirmed = messages or self._unconfirmed

    def _confirm(self, place: int, events: Sequence[log.Event]) -> None:
        """Forget the unconfirmed messages once others are stored; what waited before `place` may be recorded again."""
        if any(isinstance(event, log.MessageAppended) for event in events):
            write = self._one_write
            waited = self._unconfirmed.items() if write.records and write.task is None else ()
            self._unconfirmed = {at: event for at, event in waited if at < place}

    async def _try_append(
        self,
        events: Sequence[log.Event],
        messages: Sequence[Message] = (),
        index: Sequence[IndexEntry] = (),
        *,
        times: Sequence[int] | None = None,
        is_long: bool = False,
        must_be_current: bool = False,
        conflicts: int = 0,
    ) -> bool:
        """Append events to the store, then apply them; after a conflict, refresh and return False.

        `messages` are the decoded messages of the events, and `times` their times if they did not happen now. With
        `must_be_current` the events were decided on the current history, so the history checks them first.
        """
        is_long = is_long or len(events) > MAX_INLINE_MESSAGES
        if is_long:
            records = await record_in_thread(lambda: [*map(encode_event, events)])
        else:
            records = [*map(encode_event, events)]
        if must_be_current:
            self._check(events)
        write, time_ms = self._one_write, self.clock() if times is None else times
        first_place, published = self.stored.length, [*write.events, *events]
        place = first_place + len(write.records)
        try:
            await self.stored.append([*write.records, *records], time_ms, [*write.entries, *index], is_long=is_long)
        except BaseException as error:
            self._note_unconfirmed(first_place, published, error)
            if write.records:
                self._lose_deferred(error)
            if not isinstance(error, SequenceConflictError):
                raise
            # Back off with jitter so that conflicting writers do not retry in lockstep.
            seconds = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** min(conflicts, 6))
            from random import random  # noqa: PLC0415 - only for writers in conflict

            await asyncio.sleep(random() * seconds)  # noqa: S311 - jitter needs no cryptography
            length = await self.store.length(self.session)
            if place and not length:
                raise UnknownSessionError(self.session) from None
            await self.refresh(is_shorter=length < place)
            return False
        if self._unconfirmed:
            self._confirm(place, published)
        del write.events[:], write.records[:], write.entries[:]
        try:
            applied = events, time_ms, place, messages
            await record_in_thread(self._apply, *applied) if is_long else self._apply(*applied)
            if published and isinstance(published[-1], _EVICTING):
                await self._evict_if_many()
        finally:  # if this is cancelled, the events are applied nevertheless
            if self.publisher.callbacks or self.publisher.subscriptions:
                self.publisher.publish(published)
        return True

    def _check(self, events: Sequence[log.Event]) -> None:
        for event in events:
            if not isinstance(event, _UNCHECKED):
                self.history.check(event)

    def deferring_messages(self) -> AbstractAsyncContextManager[None]:
        """Write the messages that this task appends inside together with what it appends after them.

        They are durable at the end, also if an error ends it; raises if they could not be written. All that is decided
        inside is decided on the history as it is now: raises `ConcurrentWriteError` as soon as another writer is known
        to have changed it. Acquires the lock itself.
        """
        return _DeferringMessages(self)

    async def begin_deferring(self) -> _OneWrite | None:
        """Begin `deferring_messages`; None if the messages of another task wait already: those of this one do not."""
        if not self.is_loaded or self._unconfirmed or (self._one_write.task is None and self._one_write.records):
            async with self.lock:
                # It also writes what waits of a block whose end was cancelled, and finds what an outage has stored.
                await self.refresh()
        if self._one_write.task is not None:
            return None
        self._one_write = _OneWrite(asyncio.current_task())
        return self._one_write

    async def end_deferring(self, write: _OneWrite) -> None:
        """Write what waits, at the end of `deferring_messages`."""
        try:
            if self.lock.is_closed:  # the close has written what waited, or has noted why it could not
                if write.failure is not None:
                    raise write.failure
                return
            async with self.lock:
                has_request = not write.records  # written with it already
                await self._write_deferred()
                if write.failure is not None:
                    raise write.failure
                write.task = None  # all is written: what others write from now on changes nothing
                places, events = [place for place, _ in write.messages], [event for _, event in write.messages]
                await self._after_append(places, events, may_save=not has_request)
        except asyncio.CancelledError:
            if write.failure is None:  # its messages are stored, or are written with what comes next
                self._unconfirmed = self._messages_of_block()
            raise
        finally:
            write.task = None

    @property
    def _is_deferring(self) -> bool:
        """Whether what this task appends may wait for its next append."""
        return self._one_write.task is not None and self._one_write.task is asyncio.current_task()

    def _defer(
        self, events: Sequence[log.Event], messages: Sequence[Message] = (), index: Sequence[IndexEntry] = ()
    ) -> None:
        self._check_block()
        records, write = [encode_event(event) for event in events], self._one_write
        self._apply(events, self.clock(), self.stored.length + len(write.records), messages)
        write.events += events
        write.records += records
        write.entries += index

    async def _write_deferred(self) -> None:
        """Write what waits for an append, if there is anything."""
        if self._one_write.records:
            await self._try_append(())

    def _lose_deferred(self, error: BaseException) -> None:
        """Discard what is in memory, because the store does not have all of it; raises if another writer was first."""
        # The task does all of its block again, also what an earlier append of it has stored.
        stored = {place: event for place, event in self._messages_of_block().items() if place < self.stored.length}
        unconfirmed = self._unconfirmed
        self.reset()
        self.is_loaded, self._unconfirmed = False, {**stored, **unconfirmed}
        if isinstance(error, SequenceConflictError):
            self._one_write.failure = ConcurrentWriteError(self.session)
            raise self._one_write.failure from error
        if isinstance(error, asyncio.CancelledError) and self._one_write.task is not asyncio.current_task():
            error = ConcurrentWriteError(self.session)  # another task was cancelled; this one does all of it again
        elif not isinstance(error, HoldfastError):
            error = StoreUnavailableError(f"session {self.session!r}", "the last write was cancelled; send it again")
        self._one_write.failure = error

    @property
    def must_begin_again(self) -> bool:
        """Whether this task has to leave `deferring_messages`, and to do all of it again."""
        return self._one_write.failure is not None and self._one_write.task is asyncio.current_task()

    def _messages_of_block(self) -> dict[int, log.MessageAppended]:
        """Return the messages that the task in `deferring_messages` has appended, by their place in the log."""
        return {self._log_positions[position]: event for position, event in self._one_write.messages}

    def _check_block(self) -> None:
        """Raise if this task has to do all of its block again: what it records now would be recorded twice."""
        failure = self._one_write.failure
        if failure is not None and self.must_begin_again:
            raise failure

    async def _evict_if_many(self) -> None:
        """Evict messages outside the view, if there may be many.

        Only writes of messages and requests call this: a read would evict what it has just loaded, and what makes a
        request, such as a compaction, may still need what it has compacted.
        """
        if self.history.change_count != self._changes_at_eviction:
            self._cache_limit = MAX_EXTRA_CACHED  # most of what is cached may have left the view
        if self.history.entries.cached_count <= self._cache_limit:
            return

        def evict() -> None:
            with suppress(NotInMemoryError):  # pinned messages may not be loaded yet
                for position in self.history.evict(MAX_EXTRA_CACHED // 2):
                    self.message_hashes.pop(position, None)
                    self.prefix_hashes.pop((position, True), None)
                    self.prefix_hashes.pop((position, False), None)

        are_many = self.history.entries.cached_count > self._cache_limit + MAX_INLINE_MESSAGES
        await record_in_thread(evict) if are_many else evict()
        self._cache_limit = self.history.entries.cached_count + MAX_EXTRA_CACHED
        self._changes_at_eviction = self.history.change_count

    async def copy_to(self, other: "SessionLog", at: int | None = None) -> None:
        """Copy this log into a new one, up to the message at a position if there is one.

        No answer of a delegate that is at work reaches the copy, so its delegation ends there.
        """
        known_messages = len(self.history)
        stop = known_messages if at is None else at
        if not 0 <= stop <= known_messages:
            problem = f"there is no message {at}; there are {known_messages}, counted from 0"
            raise MalformedInputError(log.Forked.KIND, problem)
        # What others have written since this history was read may be meant for another context.
        known = await StoredLog(self.store, self.session).read_new(self.stored.length)
        if len(known) < self.stored.length:
            await self._check_exists()

        def copied() -> tuple[list[log.Event], list[int], list[log.Event], list[IndexEntry]]:
            past, history = _events_before(known, stop)
            words = index_entries((entry.position or 0, entry.message) for entry in history.entries)
            ended = abandoned_delegation_events(
                history.session_state.running_delegates, "the session was forked before its answer"
            )
            events, times = [event for _, event in past], [time_ms for time_ms, _ in past]
            release(known, past)
            return events, times, ended, words

        past, times, ended, words = await record_in_thread(copied)
        events = [*past, log.Forked(parent=self.session, at=stop), *ended]
        times += [self.clock()] * (len(events) - len(past))
        if not await other._try_append(  # noqa: SLF001 - one log to another
            events, index=words, times=times, is_long=True
        ):
            raise ConcurrentWriteError(other.session)
        await other._record_retention()  # noqa: SLF001 - one log to another

    async def close(self) -> None:
        """Write what waits, save a snapshot if worthwhile, and mark the session closed."""
        with suppress(HoldfastError):  # raised at the end of the block that waits, too
            await self._write_deferred()
        if self.stored.length - self._snapshot_length >= SNAPSHOT_AT_CLOSE:
            await self.save_snapshot()
        self.lock.is_closed = True
        self.publisher.close()

    async def save_snapshot(self) -> None:
        """Save a snapshot. It is a cache, so a store that cannot keep it loses nothing."""

        def encoded() -> bytes:
            snapshot = SessionSnapshot(
                state=self.history.snapshot(),
                log_positions=pack_positions(self._log_positions),
                last_request_ms=self.last_request_ms,
                compaction_started_ms=self.compaction_started_ms,
                damage=tuple(self.damage),
                newest_schema=self.stored.newest_schema,
            )
            return encode_snapshot(snapshot)

        content = await record_in_thread(encoded) if len(self.history) > MAX_INLINE_MESSAGES else encoded()
        try:
            await self.store.put_snapshot(self.session, Snapshot(self.stored.length, content))
        except StoreError:
            return
        self._snapshot_length, self._has_compacted = self.stored.length, False


def _read_snapshot(stored: Snapshot) -> tuple[SessionSnapshot, History, "array[int]"] | None:
    """Return a snapshot with its history and the places of its messages; None if it cannot be used."""
    if (snapshot := decode_snapshot(stored.data)) is None:
        return None
    log_positions = unpack_positions(snapshot.log_positions)
    if log_positions and log_positions[-1] >= stored.length:
        return None  # it holds a message that the log does not have
    return snapshot, History.from_snapshot(snapshot.state, format_named), log_positions


class _DeferringMessages:
    """What `SessionLog.deferring_messages` returns. An async generator in its place takes three times as long."""

    def __init__(self, session_log: SessionLog) -> None:
        self._log = session_log
        self._write: _OneWrite | None = None

    async def __aenter__(self) -> None:
        self._write = await self._log.begin_deferring()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._write is None:
            return
        try:
            await self._log.end_deferring(self._write)
        except HoldfastError:
            if kind is not asyncio.CancelledError:  # a task that is cancelled ends so, whatever was lost
                raise


def _places_of(events: Sequence[log.MessageAppended], unconfirmed: Mapping[int, log.MessageAppended]) -> list[int]:
    """Return the places at which unconfirmed messages are these, one after the other; none if they are others."""
    places, known, count = [*unconfirmed], [*unconfirmed.values()], len(events)
    for start, first in enumerate(known):
        if first == events[0] and known[start : start + count] == [*events]:
            return places[start : start + count]
    return []


def _signals_of(places: Sequence[int], events: Sequence[log.MessageAppended]) -> list[log.ProviderSignalled]:
    """Return what recorded messages say about their provider."""
    signals: list[log.ProviderSignalled] = []
    for position, event in zip(places, events, strict=True):
        if found := [*message_signals(event.native)]:
            signals += [log.ProviderSignalled(signal=signal, payload={"position": position}) for signal in found]
    return signals


def _events_before(
    timed_events: Sequence[tuple[int, log.Event]], stop: int
) -> tuple[list[tuple[int, log.Event]], History]:
    """Return the events before the message at a position that could be applied, with their times, and their history."""
    past, history = list[tuple[int, log.Event]](), History(format_named)
    for time_ms, event in timed_events:
        if isinstance(event, log.MessageAppended) and len(history) == stop:
            break
        with suppress(MalformedInputError):
            history.append(event)
            past.append((time_ms, event))
    return past, history


class HasSessionLog(Protocol):
    """An object that works on a session's log."""

    _log: SessionLog


P = ParamSpec("P")
S = TypeVar("S", bound=HasSessionLog)
AsyncMethod: TypeAlias = Callable[Concatenate[S, P], Coroutine[object, object, T]]


def _log_of(owner: HasSessionLog) -> SessionLog:
    return owner._log  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - decorators are part of their class


def retried(method: AsyncMethod[S, P, T]) -> AsyncMethod[S, P, T]:
    """Run a method again after loading messages that it needs, or after another writer appended first.

    This is safe because decisions are pure: events that the method has already recorded are not recorded twice.
    """

    @wraps(method)
    async def wrapper(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return await method(self, *args, **kwargs)
            except NotInMemoryError as missing:
                session_log = _log_of(self)
                async with session_log.lock:
                    await session_log.load_messages(missing.positions)
            except ConcurrentWriteError:
                if _log_of(self).must_begin_again:
                    raise  # what was recorded or decided before must be done again, too

    return wrapper


def locked(method: AsyncMethod[S, P, T]) -> AsyncMethod[S, P, T]:
    """Run a method under the session's lock, on a refreshed history, and again whenever `retried` would."""

    @retried
    @wraps(method)
    async def wrapper(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        async with _log_of(self).locked():
            return await method(self, *args, **kwargs)

    return wrapper
