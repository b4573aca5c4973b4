"""A session's history in memory beside its log in the store: whatever changes is durable before it is true.

When another process has written meanwhile, that is taken in first and the change is made after it. A long log is
opened by a shortcut, and of what was said only what is asked for is read.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from random import random
from typing import NamedTuple, TypeAlias, TypeVar

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.history.plain import packed, unpacked
from holdfast.core.history.records import SCHEMA
from holdfast.errors import (
    MalformedInputError,
    MissingBlobError,
    NotInMemoryError,
    OvertakenError,
    SequenceConflictError,
    SessionClosedError,
    StoreError,
    StoreUnavailableError,
    UnknownScopeError,
    UnknownSessionError,
)
from holdfast.session.indexing import indexed
from holdfast.session.log import Log, checked_record
from holdfast.session.snapshot import Shortcut, opened_shortcut, packed_shortcut
from holdfast.stores.base import Indexed, Snapshot, Store, StoredRecord
from holdfast.wire.formats import format_named

T = TypeVar("T")
Clock: TypeAlias = Callable[[], int]
Change: TypeAlias = Callable[[], tuple[Sequence[log.Event], Sequence[Indexed]]]
MAX_CONFLICTS = 1_000
"""How often a writer lets others go first before it gives up."""
FIRST_STEP_BACK, MAX_STEP_BACK = 0.002, 0.1
"""In seconds."""
SNAPSHOT_EVERY, SNAPSHOT_SHARE, SNAPSHOT_AT_CLOSE = 2_000, 20, 100
"""How many records later another shortcut is worth its price: so many, and a twentieth of all; fewer at the end."""
FIRST_FETCH, BEFORE = 256, 16
"""How many messages are read around one that is missing; twice as many each time."""
AT_HAND = 256
"""How many messages are held besides those that are shown, before all but the newest of them are let go."""


class _Unsettled(NamedTuple):
    """What was said when the store failed, and where it stands in the log if it arrived all the same."""

    place: int
    events: tuple[log.MessageAppended, ...]


class Turn:
    """Held by who reads and changes; never while waiting for anybody but the store, and by nobody after the end."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._lock = asyncio.Lock()
        self.is_over = False
        """Whether the session was closed."""

    def check(self) -> None:
        """Raise `SessionClosedError` where the session was closed."""
        if self.is_over:
            raise SessionClosedError(self._session)

    async def __aenter__(self) -> None:
        self.check()
        await self._lock.acquire()
        if self.is_over:
            self._lock.release()
        self.check()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class Keeper:
    """Holds one history and writes its log."""

    def __init__(self, store: Store, session: str, clock: Clock) -> None:
        self.store = store
        self.session = session
        self.clock = clock
        self.turn = Turn(session)
        self._is_open = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget everything that is held in memory."""
        self.history = History(format_named)
        self.log = Log(self.store, self.session)
        self.damage: list[str] = []
        """What of the log could not be taken in, and why."""
        self.asked_ms: int | None = None
        """When the last request was prepared."""
        self.began_ms: int | None = None
        """When the last compaction was started."""
        self.sent: list[tuple[Mapping[str, object], str, int | None]] = []
        """What was last sent, with its hashes and the positions it came from."""
        self.hashes: dict[int, str] = {}
        """Of recorded messages that are held, by position."""
        self.names: dict[str, dict[int, str]] = {}
        """By format, what recorded messages go by when they are sent again, by position; notes by no name."""
        self._places = array("q")
        """Where in the log each message is."""
        self._unsettled: _Unsettled | None = None
        self._shortcut_at = 0
        self._fetched = FIRST_FETCH
        self._most_held = AT_HAND

    # Reading.

    async def _open(self) -> None:
        """Take the shortcut, if there is one."""
        self._is_open = True
        try:
            snapshot = await self.store.get_snapshot(self.session)
        except StoreError:
            snapshot = None
        if snapshot and (shortcut := opened_shortcut(snapshot.data)):
            self.history = History.resumed(shortcut.state, format_named)
            self._places = unpacked(shortcut.places)
            self.asked_ms, self.began_ms = shortcut.asked_ms, shortcut.began_ms
            self.damage = list(shortcut.damage)
            self.log.length = self._shortcut_at = snapshot.length
            self.log.newest_schema = max(SCHEMA, shortcut.newest_schema)

    async def scope(self, scope: str) -> str:
        """Return a scope that somebody works or has worked under; raises `UnknownScopeError` for any other."""
        if not self._knows(scope):
            async with self.turn:
                await self.take_in()
            if not self._knows(scope):
                raise UnknownScopeError(scope, sorted(self.history.scopes.parents))
        return scope

    def _knows(self, scope: str) -> bool:
        return scope == log.MAIN or scope in self.history.scopes.parents or scope in self.history.counts

    async def take_in(self) -> int:
        """Take in what others have written since, and return how many events that were."""
        if not self._is_open:
            await self._open()
        start = self.log.length
        news = await self.log.news()
        if start and any(isinstance(event, log.SessionScrubbed) for _, event in news):
            # What was taken out of the log must not live on here; whoever is stopped meanwhile hears of it again.
            self.log.length = start
            return await self._read_anew()
        return self._taken(news, start)

    async def _read_anew(self) -> int:
        """Forget everything, and read the log from its beginning; all of it or nothing."""
        whole = Log(self.store, self.session)
        news = await whole.news()
        self.begin_anew()
        self.log = whole
        return self._taken(news, 0)

    def _taken(self, news: Sequence[tuple[int, log.Event]], start: int) -> int:
        for place, (time_ms, event) in enumerate(news, start):
            try:
                self._learn(event, time_ms, place)
            except MalformedInputError as error:
                self.damage.append(str(error))
        self.damage += self.log.damage
        self.log.damage = []
        return len(news)

    async def fetch(self, positions: Sequence[int]) -> None:
        """Read messages of the past that are not in memory; the whole log, where it is more than messages."""
        if not positions:
            await self._read_anew()
            return
        if len(positions) == 1:
            start, self._fetched = positions[0], self._fetched * 2
            positions = range(max(0, start - BEFORE), min(start + self._fetched, len(self._places)))
        places = {self._places[position]: position for position in positions}
        for place, event in await self.log.picked(list(places)):
            if isinstance(event, log.MessageAppended):
                self.history.read(places[place], event)

    async def pick(self, positions: Sequence[int]) -> list[tuple[int, StoredRecord]]:
        """Return the records of messages, with their positions; what is held in memory stays as it is."""
        places = {self._places[position]: position for position in positions}
        found = await self.store.pick(self.session, list(places)) if places else []
        return [(places[stored.position], stored) for stored in found]

    def check_there(self, positions: Iterable[int]) -> None:
        """Raise `MissingBlobError` where the content of a message that was read is gone from the store."""
        for position in positions:
            if digest := self.log.gone.get(self._places[position]):
                raise MissingBlobError(digest)

    async def decided(self, decide: Callable[[], T]) -> T:
        """Return what a pure decision comes to; what of the past it misses is read, and it is made again."""
        while True:
            try:
                return decide()
            except NotInMemoryError as missing:
                await self.fetch(missing.positions)

    def _learn(self, event: log.Event, time_ms: int, place: int, message: Message | None = None) -> None:
        self.history.append(event, message)
        if isinstance(event, log.RequestPrepared):
            self.asked_ms = time_ms
        elif isinstance(event, log.CompactionStarted):
            self.began_ms = time_ms
        elif isinstance(event, log.MessageAppended):
            self._places.append(place)

    # Writing.

    async def change(self, *events: log.Event) -> None:
        """Record events that speak of what was said; refused where they cannot be true."""
        await self.write(lambda: (events, ()), is_decision=True)

    async def say(
        self, events: Sequence[log.MessageAppended], messages: Sequence[Message], *, is_decision: bool = False
    ) -> range:
        """Record what was said, and return the positions.

        What is said again after the store failed may have arrived the first time; then it is not said twice.
        """
        if (known := await self._arrived(events)) is not None:
            return known
        start = len(self.history)

        def change() -> tuple[Sequence[log.Event], Sequence[Indexed]]:
            nonlocal start
            start, answers = len(self.history), self.history.answers.ahead()
            said = enumerate(zip(events, messages, strict=True), start)
            marked = [(at, answers.observe(message, at, event.scope)) for at, (event, message) in said]
            return events, indexed(marked)

        if events:
            try:
                await self.write(change, messages, is_decision=is_decision)
            except (StoreUnavailableError, asyncio.CancelledError):
                self._unsettled = _Unsettled(self.log.length, tuple(events))
                raise
            if self.log.length - self._shortcut_at >= max(SNAPSHOT_EVERY, self.log.length // SNAPSHOT_SHARE):
                await self.keep_shortcut()
        return range(start, start + len(events))

    async def _arrived(self, events: Sequence[log.MessageAppended]) -> range | None:
        """Return where messages stand that are said again, if they arrived when nobody could say so."""
        unsettled = self._unsettled
        if unsettled is None or unsettled.events != tuple(events):
            self._unsettled = None
            return None
        await self.take_in()
        places, found = range(unsettled.place, unsettled.place + len(events)), list[log.Event]()
        with suppress(MalformedInputError):
            found = [event for _, event in await self.log.picked(places)]
        self._unsettled = None
        if found != list(events):
            return None
        start = self._places.index(unsettled.place)
        return range(start, start + len(events))

    async def write(self, change: Change, said: Sequence[Message] = (), *, is_decision: bool = False) -> None:
        """Make a change durable and then true; when others were faster, take in theirs and try again.

        `said` are the messages of its events, where they were read already.
        What was decided by how everything stood is not written after somebody else's change: `OvertakenError`.
        """
        for conflicts in range(MAX_CONFLICTS):
            events, words = change()
            records = [checked_record(event) for event in events]
            for event in events if is_decision else ():
                self.history.check(event)
            place, time_ms = self.log.length, self.clock()
            try:
                await self.log.append(records, time_ms, words)
            except SequenceConflictError:
                # Whoever was overtaken steps back for a moment, each for another one, or all would run again at once.
                moment = min(MAX_STEP_BACK, FIRST_STEP_BACK * 2 ** min(conflicts, 6))
                await asyncio.sleep(random() * moment)  # noqa: S311 - nobody is to guess it, only to differ
                if await self.store.length(self.session) < place:
                    raise UnknownSessionError(self.session) from None
                await self.take_in()
                if is_decision:
                    raise OvertakenError(self.session) from None
                continue
            for number, (event, message) in enumerate(zip_longest(events, said), place):
                self._learn(event, time_ms, number, message)
            self._let_go()
            return
        actual = await self.store.length(self.session)
        raise SequenceConflictError(self.session, expected=self.log.length, actual=actual)

    def _let_go(self) -> None:
        """Hold no more messages than are of use; only who writes does so, or what was fetched would go at once."""
        if self.history.entries.held_count <= self._most_held:
            return
        with suppress(NotInMemoryError):  # pins that were not read yet: they are when somebody asks what is shown
            for position in self.history.let_go(AT_HAND // 2):
                self.hashes.pop(position, None)
        self._most_held = self.history.entries.held_count + AT_HAND

    async def copy_to(self, other: "Keeper", at: int | None = None) -> None:
        """Give a new log this one's past, up to a message if `at` says so."""
        stop = len(self.history) if at is None else at
        if not 0 <= stop <= len(self.history):
            raise MalformedInputError(log.Forked.KIND, f"there is no message {at}")
        past, said = _before(await self.log.events(), stop)
        words = indexed((entry.position or 0, entry.message) for entry in said.entries)
        await other.write(lambda: ([*past, log.Forked(parent=self.session, at=stop)], words))

    async def close(self) -> None:
        """Leave a shortcut for who comes next, where that is worth it, and let nobody go on; by who holds the turn."""
        if self.log.length - self._shortcut_at >= SNAPSHOT_AT_CLOSE:
            await self.keep_shortcut()
        self.turn.is_over = True

    async def keep_shortcut(self) -> None:
        """Keep a shortcut to how everything stands; a cache, so that nothing is lost where that cannot be done."""
        shortcut = Shortcut(
            state=self.history.state(),
            places=packed(self._places),
            asked_ms=self.asked_ms,
            began_ms=self.began_ms,
            damage=tuple(self.damage),
            newest_schema=self.log.newest_schema,
        )
        try:
            await self.store.put_snapshot(self.session, Snapshot(self.log.length, packed_shortcut(shortcut)))
        except StoreError:
            return
        self._shortcut_at = self.log.length


def _before(events: Sequence[log.Event], stop: int) -> tuple[list[log.Event], History]:
    """Return what happened before the message at a position was said, as far as it could be taken in."""
    past, history = list[log.Event](), History(format_named)
    for event in events:
        if isinstance(event, log.MessageAppended) and len(history) == stop:
            break
        with suppress(MalformedInputError):
            history.append(event)
            past.append(event)
    return past, history
