"""A session's history in memory beside its log in the store: whatever changes is durable before it is true.

When another process has written meanwhile, that is taken in first and the change is made after it. A long log is
opened by a shortcut, and of what was said only what is asked for is read.

What misses messages of the past, or was overtaken by another writer, begins again.
"""

import asyncio
from array import array
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from itertools import zip_longest
from random import random
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.codec import RECORD_SCHEMA
from holdfast.core.history.history import History
from holdfast.core.history.snapshot import pack_positions, unpack_positions
from holdfast.errors import (
    ConcurrentWriteError,
    MalformedInputError,
    MissingBlobError,
    NotInMemoryError,
    SequenceConflictError,
    SessionClosedError,
    StoreError,
    StoreUnavailableError,
    UnknownScopeError,
    UnknownSessionError,
)
from holdfast.session.log.index_text import index_entries
from holdfast.session.log.records import StoredLog, encode_event
from holdfast.session.log.snapshot import SessionSnapshot, decode_snapshot, encode_snapshot
from holdfast.stores.base import IndexEntry, Snapshot, Store, StoredRecord
from holdfast.wire.formats import format_named

T = TypeVar("T")
Clock: TypeAlias = Callable[[], int]
MakeEvents: TypeAlias = Callable[[], tuple[Sequence[log.Event], Sequence[IndexEntry]]]
MAX_CONFLICTS = 1_000
"""How often a writer lets others go first before it gives up."""
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.002, 0.1
"""In seconds."""
SNAPSHOT_EVERY, SNAPSHOT_SHARE, SNAPSHOT_AT_CLOSE = 2_000, 20, 100
"""How many records later another shortcut is worth its price: so many, and a twentieth of all; fewer at the end."""
FIRST_LOAD_MESSAGES, LOAD_BEFORE_MESSAGES = 256, 16
"""How many messages are read around one that is missing; twice as many each time."""
MAX_EXTRA_CACHED = 256
"""How many messages are held besides those that are shown, before all but the newest of them are let go."""


class _UnconfirmedAppend(NamedTuple):
    """What was said when the store failed, and where it stands in the log if it arrived all the same."""

    log_position: int
    events: tuple[log.MessageAppended, ...]


class SessionLock:
    """Held by who reads and changes; never while waiting for anybody but the store, and by nobody after the end."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._lock = asyncio.Lock()
        self.is_closed = False
        """Whether the session was closed."""

    def check_open(self) -> None:
        """Raise `SessionClosedError` where the session was closed."""
        if self.is_closed:
            raise SessionClosedError(self._session)

    async def __aenter__(self) -> None:
        self.check_open()
        await self._lock.acquire()
        if self.is_closed:
            self._lock.release()
        self.check_open()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class SessionLog:
    """Holds one history and writes its log."""

    def __init__(self, store: Store, session: str, clock: Clock) -> None:
        self.store = store
        self.session = session
        self.clock = clock
        self.lock = SessionLock(session)
        self._is_loaded = False
        self.reset()

    def reset(self) -> None:
        """Forget everything that is held in memory."""
        self.history = History(format_named)
        self.stored = StoredLog(self.store, self.session)
        self.damage: list[str] = []
        """What of the log could not be taken in, and why."""
        self.last_request_ms: int | None = None
        """When the last request was prepared."""
        self.compaction_started_ms: int | None = None
        """When the last compaction was started."""
        self.last_sent: list[tuple[Mapping[str, object], str, int | None]] = []
        """What was last sent, with its hashes and the positions it came from."""
        self.message_hashes: dict[int, str] = {}
        """Of recorded messages that are held, by position."""
        self.fingerprints: dict[str, dict[int, str]] = {}
        """By format, what recorded messages go by when they are sent again, by position; notes by no name."""
        self._log_positions = array("q")
        """Where in the log each message is."""
        self._unconfirmed: _UnconfirmedAppend | None = None
        self._snapshot_length = 0
        self._load_count = FIRST_LOAD_MESSAGES
        self._cache_limit = MAX_EXTRA_CACHED

    # Reading.

    async def _load_snapshot(self) -> None:
        """Take the shortcut, if there is one."""
        self._is_loaded = True
        try:
            snapshot = await self.store.get_snapshot(self.session)
        except StoreError:
            snapshot = None
        if snapshot and (shortcut := decode_snapshot(snapshot.data)):
            self.history = History.from_snapshot(shortcut.state, format_named)
            self._log_positions = unpack_positions(shortcut.log_positions)
            self.last_request_ms, self.compaction_started_ms = shortcut.last_request_ms, shortcut.compaction_started_ms
            self.damage = list(shortcut.damage)
            self.stored.length = self._snapshot_length = snapshot.length
            self.stored.newest_schema = max(RECORD_SCHEMA, shortcut.newest_schema)

    async def check_scope(self, scope: str) -> str:
        """Return a scope that somebody works or has worked under; raises `UnknownScopeError` for any other."""
        if not self._has_scope(scope):
            async with self.lock:
                await self.refresh()
            if not self._has_scope(scope):
                raise UnknownScopeError(scope, sorted(self.history.scopes.parents))
        return scope

    def _has_scope(self, scope: str) -> bool:
        return scope == log.MAIN or scope in self.history.scopes.parents or scope in self.history.message_counts

    async def refresh(self) -> int:
        """Take in what others have written since, and return how many events that were."""
        if not self._is_loaded:
            await self._load_snapshot()
        start = self.stored.length
        news = await self.stored.read_new()
        if start and any(isinstance(event, log.SessionScrubbed) for _, event in news):
            # What was taken out of the log must not live on here; whoever is stopped meanwhile hears of it again.
            self.stored.length = start
            return await self._reload()
        return self._apply_all(news, start)

    async def _reload(self) -> int:
        """Forget everything, and read the log from its beginning; all of it or nothing."""
        whole = StoredLog(self.store, self.session)
        news = await whole.read_new()
        self.reset()
        self.stored = whole
        return self._apply_all(news, 0)

    def _apply_all(self, timed_events: Sequence[tuple[int, log.Event]], start: int) -> int:
        for place, (time_ms, event) in enumerate(timed_events, start):
            try:
                self._apply(event, time_ms, place)
            except MalformedInputError as error:
                self.damage.append(str(error))
        self.damage += self.stored.damage
        self.stored.damage = []
        return len(timed_events)

    async def load_messages(self, positions: Sequence[int]) -> None:
        """Read messages of the past that are not in memory; the whole log, where it is more than messages."""
        if not positions:
            await self._reload()
            return
        if len(positions) == 1:
            start, self._load_count = positions[0], self._load_count * 2
            positions = range(
                max(0, start - LOAD_BEFORE_MESSAGES), min(start + self._load_count, len(self._log_positions))
            )
        places = {self._log_positions[position]: position for position in positions}
        for place, event in await self.stored.events_at(list(places)):
            if isinstance(event, log.MessageAppended):
                self.history.load_message(places[place], event)

    async def message_records(self, positions: Sequence[int]) -> list[tuple[int, StoredRecord]]:
        """Return the records of messages, with their positions; what is held in memory stays as it is."""
        places = {self._log_positions[position]: position for position in positions}
        found = await self.store.read_at(self.session, list(places)) if places else []
        return [(places[stored.position], stored) for stored in found]

    def require_content(self, positions: Iterable[int]) -> None:
        """Raise `MissingBlobError` where the content of a message that was read is gone from the store."""
        for position in positions:
            if digest := self.stored.missing_blobs.get(self._log_positions[position]):
                raise MissingBlobError(digest)

    async def load_and_retry(self, decide: Callable[[], T]) -> T:
        """Return what a pure decision comes to; what of the past it misses is read, and it is made again."""
        while True:
            try:
                return decide()
            except NotInMemoryError as missing:
                await self.load_messages(missing.positions)

    def _apply(self, event: log.Event, time_ms: int, log_position: int, message: Message | None = None) -> None:
        self.history.append(event, message)
        if isinstance(event, log.RequestPrepared):
            self.last_request_ms = time_ms
        elif isinstance(event, log.CompactionStarted):
            self.compaction_started_ms = time_ms
        elif isinstance(event, log.MessageAppended):
            self._log_positions.append(log_position)

    # Writing.

    async def append(self, *events: log.Event) -> None:
        """Record events that speak of what was said; refused where they cannot be true."""
        await self.write(lambda: (events, ()), must_be_current=True)

    async def append_messages(
        self, events: Sequence[log.MessageAppended], messages: Sequence[Message], *, must_be_current: bool = False
    ) -> range:
        """Record what was said, and return the positions.

        What is said again after the store failed may have arrived the first time; then it is not said twice.
        """
        if (known := await self._already_appended(events)) is not None:
            return known
        start = len(self.history)

        def change() -> tuple[Sequence[log.Event], Sequence[IndexEntry]]:
            nonlocal start
            start, answers = len(self.history), self.history.recall_marks.for_unrecorded()
            said = enumerate(zip(events, messages, strict=True), start)
            marked = [(at, answers.observe(message, at, event.scope)) for at, (event, message) in said]
            return events, index_entries(marked)

        if events:
            try:
                await self.write(change, messages, must_be_current=must_be_current)
            except (StoreUnavailableError, asyncio.CancelledError):
                self._unconfirmed = _UnconfirmedAppend(self.stored.length, tuple(events))
                raise
            if self.stored.length - self._snapshot_length >= max(SNAPSHOT_EVERY, self.stored.length // SNAPSHOT_SHARE):
                await self.save_snapshot()
        return range(start, start + len(events))

    async def _already_appended(self, events: Sequence[log.MessageAppended]) -> range | None:
        """Return where messages stand that are said again, if they arrived when nobody could say so."""
        unsettled = self._unconfirmed
        if unsettled is None or unsettled.events != tuple(events):
            self._unconfirmed = None
            return None
        await self.refresh()
        places, found = range(unsettled.log_position, unsettled.log_position + len(events)), list[log.Event]()
        with suppress(MalformedInputError):
            found = [event for _, event in await self.stored.events_at(places)]
        self._unconfirmed = None
        if found != list(events):
            return None
        start = self._log_positions.index(unsettled.log_position)
        return range(start, start + len(events))

    async def write(
        self, make_events: MakeEvents, messages: Sequence[Message] = (), *, must_be_current: bool = False
    ) -> None:
        """Make a change durable and then true; when others were faster, take in theirs and try again.

        `said` are the messages of its events, where they were read already.
        What was decided by how everything stood is not written after somebody else's change: `ConcurrentWriteError`.
        """
        for conflicts in range(MAX_CONFLICTS):
            events, words = make_events()
            records = [encode_event(event) for event in events]
            for event in events if must_be_current else ():
                self.history.check(event)
            place, time_ms = self.stored.length, self.clock()
            try:
                await self.stored.append(records, time_ms, words)
            except SequenceConflictError:
                # Whoever was overtaken steps back for a moment, each for another one, or all would run again at once.
                moment = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** min(conflicts, 6))
                await asyncio.sleep(random() * moment)  # noqa: S311 - nobody is to guess it, only to differ
                if await self.store.length(self.session) < place:
                    raise UnknownSessionError(self.session) from None
                await self.refresh()
                if must_be_current:
                    raise ConcurrentWriteError(self.session) from None
                continue
            for number, (event, message) in enumerate(zip_longest(events, messages), place):
                self._apply(event, time_ms, number, message)
            self._evict()
            return
        actual = await self.store.length(self.session)
        raise SequenceConflictError(self.session, expected=self.stored.length, actual=actual)

    def _evict(self) -> None:
        """Hold no more messages than are of use; only who writes does so, or what was fetched would go at once."""
        if self.history.entries.cached_count <= self._cache_limit:
            return
        with suppress(NotInMemoryError):  # pins that were not read yet: they are when somebody asks what is shown
            for position in self.history.evict(MAX_EXTRA_CACHED // 2):
                self.message_hashes.pop(position, None)
        self._cache_limit = self.history.entries.cached_count + MAX_EXTRA_CACHED

    async def copy_to(self, other: "SessionLog", at: int | None = None) -> None:
        """Give a new log this one's past, up to a message if `at` says so."""
        stop = len(self.history) if at is None else at
        if not 0 <= stop <= len(self.history):
            raise MalformedInputError(log.Forked.KIND, f"there is no message {at}")
        past, said = _events_before(await self.stored.events(), stop)
        words = index_entries((entry.position or 0, entry.message) for entry in said.entries)
        await other.write(lambda: ([*past, log.Forked(parent=self.session, at=stop)], words))

    async def close(self) -> None:
        """Leave a shortcut for who comes next, where that is worth it, and let nobody go on; by who holds the turn."""
        if self.stored.length - self._snapshot_length >= SNAPSHOT_AT_CLOSE:
            await self.save_snapshot()
        self.lock.is_closed = True

    async def save_snapshot(self) -> None:
        """Keep a shortcut to how everything stands; a cache, so that nothing is lost where that cannot be done."""
        shortcut = SessionSnapshot(
            state=self.history.snapshot(),
            log_positions=pack_positions(self._log_positions),
            last_request_ms=self.last_request_ms,
            compaction_started_ms=self.compaction_started_ms,
            damage=tuple(self.damage),
            newest_schema=self.stored.newest_schema,
        )
        try:
            await self.store.put_snapshot(self.session, Snapshot(self.stored.length, encode_snapshot(shortcut)))
        except StoreError:
            return
        self._snapshot_length = self.stored.length


def _events_before(events: Sequence[log.Event], stop: int) -> tuple[list[log.Event], History]:
    """Return what happened before the message at a position was said, as far as it could be taken in."""
    past, history = list[log.Event](), History(format_named)
    for event in events:
        if isinstance(event, log.MessageAppended) and len(history) == stop:
            break
        with suppress(MalformedInputError):
            history.append(event)
            past.append(event)
    return past, history


class LoadsMessages(Protocol):
    """Who can read messages of the past into memory."""

    async def load_messages(self, positions: Sequence[int]) -> None:
        """Read messages of the past into memory."""
        ...


P = ParamSpec("P")
S = TypeVar("S", bound=LoadsMessages)


def retry_when_not_loaded(
    method: Callable[Concatenate[S, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[S, P], Coroutine[object, object, T]]:
    """Let a method that misses messages of the past begin again when they have been read.

    Safe because decisions are pure: what was recorded before the gap was found stands, and is not done twice.
    """

    @wraps(method)
    async def again(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return await method(self, *args, **kwargs)
            except NotInMemoryError as missing:
                await self.load_messages(missing.positions)
            except ConcurrentWriteError:
                continue

    return again
