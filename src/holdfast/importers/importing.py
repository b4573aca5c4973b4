"""Imports a session of another program into a store, as often as one likes.

The log in the store says what was imported before: each of its messages must be the next one of its agent in the
source. What the source has after that is new and is appended, in batches, so an import that was interrupted continues.
If the source has changed before its end, the session is rewound to that place, and the rest is imported again.

An answer that the program may still be writing is left for the next import.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from holdfast.core.conversation.messages import Message, user
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record, to_record
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.importers.source import (
    SETTLED_MS,
    FoundSession,
    LoggedItem,
    ReadReport,
    SourceProgram,
    count_of,
    list_at,
    object_at,
    scope_of,
    text_at,
)
from holdfast.session.log.index_text import index_entries
from holdfast.session.log.records import extract_blob
from holdfast.session.maintenance.transfer import export_records
from holdfast.stores.base import IndexEntry, JsonRecord, Store, session_value_key
from holdfast.wire.formats import format_named

BATCH_RECORDS = 500
"""How many records are appended at a time."""
WENT_ON_HERE = "went on in this store since its import, so what is new in its log was not added"
FORMAT_VERSION = 1
"""The version of what the store remembers about an import."""


@dataclass(slots=True)
class SessionImport:
    """What an import of one session did."""

    found: FoundSession
    session: str
    report: ReadReport = field(default_factory=ReadReport)
    is_new: bool = False
    new_messages: int = 0
    messages: int = 0
    """The messages of the session in the store, of all agents."""
    agents: int = 0
    compactions: int = 0
    waiting: int = 0
    """The messages at the end that the program may still be writing; the next import takes them."""
    rewound_to: int | None = None
    """The position from which on the source had changed since the last import."""


async def import_found(
    store: Store, program: SourceProgram, found: FoundSession, *, now_ms: int, session: str | None = None
) -> SessionImport:
    """Import what is new in a session of a program; raises `SettingsError` if it went on in the store."""
    session = session or found.session_id
    result = SessionImport(found, session)
    key = import_key(session)
    known = await store.get_value(key)
    length = await store.length(session)
    if length and known is None:
        raise SettingsError("session", f"{session!r} exists already and was not imported; delete or export it first")
    files = _file_facts(found)
    if known is not None and length and known.get("files") == files:
        result.messages, result.agents, result.compactions = (
            count_of(known.get(name)) for name in ("messages", "agents", "compactions")
        )
        _restore_report(result.report, known)
        return result
    result.is_new = not length
    items = program.read(found, result.report)
    writer = _Writer(store, result, program.format, is_settled=now_ms - found.modified_ms > SETTLED_MS)
    await writer.run(items, known or {}, length)
    if not writer.length:
        return result
    facts = {
        "version": FORMAT_VERSION,
        "program": found.program,
        "id": found.id,
        "path": str(found.path),
        "title": found.title,
        "folder": found.folder,
        "model": found.model,
        "size": found.size,
        "files": [] if result.waiting else files,
        "programVersions": sorted(result.report.versions),
        "unknown": dict(result.report.unknown),
        "damaged": dict(result.report.damaged),
        "length": writer.length,
        "messages": result.messages,
        "agents": result.agents,
        "compactions": result.compactions,
        "superseded": writer.superseded,
    }
    await store.put_value(key, facts)
    if found.title and (result.is_new or text_at(known, "title") != found.title):
        await store.rename(session, found.title)
    return result


def import_key(session: str) -> str:
    """Return the key under which a store remembers the import of a session."""
    return session_value_key(session, "import")


def _file_facts(found: FoundSession) -> list[object]:
    """Return what changes with the content of a session's files."""
    stats = [path.stat() for path in found.files]
    return [found.modified_ms, *([one.st_size, one.st_mtime_ns] for one in stats)]


def _restore_report(report: ReadReport, known: JsonRecord) -> None:
    """Report again what the last import met in files that have not changed."""
    report.versions.update(str(one) for one in list_at(known, "programVersions"))
    report.unknown.update({name: count_of(value) for name, value in object_at(known, "unknown").items()})
    report.damaged.update({name: count_of(value) for name, value in object_at(known, "damaged").items()})


class _Lanes:
    """The items of a source, by the agent that they are about; agents take turns in any order."""

    def __init__(self, items: Iterator[LoggedItem]) -> None:
        self._items = enumerate(items)
        self._waiting: dict[str, deque[tuple[int, LoggedItem]]] = {}

    def peek(self, scope: str) -> LoggedItem | None:
        """Return the next item of an agent."""
        waiting = self._waiting.setdefault(scope, deque())
        while not waiting:
            numbered = next(self._items, None)
            if numbered is None:
                return None
            self._waiting.setdefault(numbered[1].scope, deque()).append(numbered)
        return waiting[0][1]

    def take(self, scope: str) -> None:
        """Leave the next item of an agent behind."""
        self._waiting[scope].popleft()

    def rest(self) -> Iterator[LoggedItem]:
        """Yield the items that are left, in their order."""
        waiting = sorted(chain.from_iterable(self._waiting.values()), key=lambda one: one[0])
        return (item for _, item in chain(waiting, self._items))


class _Writer:
    """Compares the log in the store with a source, and appends what is new."""

    def __init__(self, store: Store, result: SessionImport, format_name: str, *, is_settled: bool) -> None:
        self._store, self._session, self._result = store, result.session, result
        self._format, self._is_settled = format_name, is_settled
        self.length = 0
        self.superseded: list[list[int]] = []
        """Ranges of positions that were imported from what the source no longer holds."""
        self._positions: dict[str, dict[str, int]] = {}
        """By scope and key, the position of each message."""
        self._count = 0
        self._answers: dict[str, str] = {}
        """By scope, the answer of each sub-agent that has finished."""
        self._agents: set[str] = set()
        self._records: list[JsonRecord] = []
        self._times: list[int] = []
        self._index: list[IndexEntry] = []

    async def run(self, items: Iterator[LoggedItem], known: Mapping[str, object], length: int) -> None:
        """Read the log in the store and the source, and append the difference."""
        lanes = _Lanes(items)
        self.superseded = [[count_of(a), count_of(b)] for a, b in map(_pair, list_at(known, "superseded"))]
        self.length = length
        if length:
            await self._compare(lanes, count_of(known.get("length")))
        held: set[str] = set()
        for item in lanes.rest():
            if item.scope in held or (item.may_grow and not self._is_settled):
                held.add(item.scope)
                self._result.waiting += isinstance(item.event, log.MessageAppended)
                continue
            self._add(item)
            if len(self._records) >= BATCH_RECORDS:
                await self._flush()
        await self._flush()
        self._result.messages = self._count
        self._result.agents = len(self._agents)

    async def _compare(self, lanes: _Lanes, imported: int) -> None:
        """Skip what the store has of the source; rewind to the first message that is not in the source."""
        changed_at: int | None = None
        async for stored in export_records(self._store, self._session):
            event = from_record(stored.record)
            if isinstance(event, log.MessageAppended):
                position, self._count = self._count, self._count + 1
                if changed_at is not None or any(start <= position < stop for start, stop in self.superseded):
                    continue
                if not self._take_message(lanes, event, position):
                    if stored.position >= imported:
                        raise SettingsError("session", f"{self._session!r} {WENT_ON_HERE}")
                    changed_at = position
            elif changed_at is None:
                self._take_other(lanes, event)
        if changed_at is not None:
            self.superseded.append([changed_at, self._count])
            self._result.rewound_to = changed_at
            self._append(log.Rewound(to=changed_at), self._result.found.modified_ms)

    def _take_message(self, lanes: _Lanes, event: log.MessageAppended, position: int) -> bool:
        """Take the next message of an agent from the source if it is this one."""
        while (item := lanes.peek(event.scope)) is not None:
            if isinstance(item.event, log.CompactionCompleted) and not self._positions.get(event.scope):
                break  # It was imported as a message, because there was nothing before it.
            if isinstance(item.event, log.MessageAppended) and _can_be_read(item.event):
                break
            lanes.take(event.scope)
        if item is None or not _is_same(self._as_message(item), event):
            return False
        self._positions.setdefault(event.scope, {})[item.key] = position
        lanes.take(event.scope)
        return True

    def _as_message(self, item: LoggedItem) -> log.MessageAppended | None:
        """Return the message of an item; also for a summary of what is not in the log."""
        if isinstance(item.event, log.MessageAppended):
            return item.event
        return _summary_message(item.event, self._format) if isinstance(item.event, log.CompactionCompleted) else None

    def _take_other(self, lanes: _Lanes, event: log.Event) -> None:
        """Take the next item of an agent from the source if it is this event."""
        scope = scope_of(event)
        item = lanes.peek(scope)
        if isinstance(event, log.DelegationFinished):
            self._answers[scope] = event.answer
            is_same = item is not None and isinstance(item.event, log.DelegationFinished)
        elif isinstance(event, log.DelegationStarted):
            self._agents.add(scope)
            is_same = item is not None and isinstance(item.event, log.DelegationStarted)
        elif isinstance(event, log.CompactionCompleted):
            is_own = event.trigger == "client" and event.success
            self._result.compactions += is_own
            new = item.event if item else None
            is_same = is_own and isinstance(new, log.CompactionCompleted) and new.replacement == event.replacement
        elif isinstance(event, log.Rewound):
            is_same = item is not None and self._positions.get(scope, {}).get(item.rewind_to) == event.to
        elif isinstance(event, log.Forked):
            is_same = item is not None and isinstance(item.event, log.Forked)
        else:
            is_same = item is not None and to_record(item.event) == to_record(event)
        if is_same:
            lanes.take(scope)

    def _add(self, item: LoggedItem) -> None:
        """Append the event of an item, with its positions."""
        known = self._positions.setdefault(item.scope, {})
        match item.event:
            case log.MessageAppended() as event:
                self._add_message(item, event)
            case log.CompactionCompleted() as event if not known:
                self._add_message(item, _summary_message(event, self._format))
            case log.CompactionCompleted() as event:
                self._result.compactions += 1
                self._append(self._placed(event, item, known), item.time_ms)
            case log.Rewound() if item.rewind_to in known:
                self._append(log.Rewound(to=known[item.rewind_to]), item.time_ms)
            case log.Rewound():
                pass
            case log.Forked() as event:
                self._append(replace(event, at=self._count), item.time_ms)
            case log.DelegationStarted() | log.DelegationFinished() as event:
                self._add_delegation(event, item.time_ms)
            case event:
                self._append(event, item.time_ms)

    def _add_delegation(self, event: log.DelegationStarted | log.DelegationFinished, time_ms: int) -> None:
        """Append the start or the end of a sub-agent, unless the log has it."""
        if isinstance(event, log.DelegationStarted):
            is_known = event.scope in self._agents
            self._agents.add(event.scope)
        else:
            is_known = self._answers.get(event.scope) == event.answer
            self._answers[event.scope] = event.answer
        if not is_known:
            self._append(event, time_ms)

    def _add_message(self, item: LoggedItem, event: log.MessageAppended) -> None:
        try:
            message = _decoded(event, self._count)
        except MalformedInputError:
            self._result.report.damaged["a message that its format does not allow"] += 1
            return
        self._positions.setdefault(item.scope, {})[item.key] = self._count
        self._index += index_entries([(self._count, message)])
        self._append(replace(event, native=message.native or event.native), item.time_ms)
        self._count += 1
        self._result.new_messages += 1

    def _placed(
        self, event: log.CompactionCompleted, item: LoggedItem, known: Mapping[str, int]
    ) -> log.CompactionCompleted:
        """Return a compaction of everything that its agent said so far, except what the source says was kept."""
        own = sorted(known.values())
        first_kept = known.get(item.kept_from, self._count)
        kept = tuple(sorted({known[key] for key in item.kept if key in known} | {at for at in own if at >= first_kept}))
        start = 0 if item.scope == log.MAIN else own[0]
        removed = len(own) - len(kept)
        span = Span(start=start, stop=self._count, kept=kept, count=removed)
        return replace(event, span=span, read_to=self._count, messages_removed=removed)

    def _append(self, event: log.Event, time_ms: int) -> None:
        self._records.append(to_record(event))
        self._times.append(time_ms)

    async def _flush(self) -> None:
        """Write the records that wait."""
        if not self._records:
            return
        if not self.length:
            # An import that is interrupted after its first records must be known as one.
            await self._store.put_value(import_key(self._session), {"program": self._result.found.program})
        blobs: list[str] = []
        packed = [await extract_blob(self._store, record, blobs) for record in self._records]
        self.length = await self._store.append(
            self._session, packed, after=self.length, time_ms=self._times, index=self._index, blobs=blobs
        )
        self._records, self._times, self._index = [], [], []


def _pair(value: object) -> tuple[object, object]:
    pair = list_at({"of": value}, "of")
    return (pair[0], pair[1]) if len(pair) > 1 else (0, 0)


def _decoded(event: log.MessageAppended, position: int) -> Message:
    return format_named(event.format).decode(event.native, position)


def _can_be_read(event: log.MessageAppended) -> bool:
    """Return whether an import records a message: one that its format does not allow is left out."""
    try:
        _decoded(event, 0)
    except MalformedInputError:
        return False
    return True


def _is_same(new: log.MessageAppended | None, stored: log.MessageAppended) -> bool:
    """Return whether a message of the source is the stored one, which decoding may have repaired."""
    if new is None or new.format != stored.format:
        return False
    if new.native == stored.native:
        return True
    return _can_be_read(new) and _decoded(new, 0).native == stored.native


def _summary_message(event: log.CompactionCompleted, format_name: str) -> log.MessageAppended:
    """Return the summary of messages that the log does not hold, as in a fork, as a message of the program."""
    native = format_named(format_name).encode(user("\n\n".join(event.replacement), trust="memory"))
    return log.MessageAppended(format=format_name, native=native, scope=event.scope, trust="memory")
