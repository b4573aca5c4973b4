"""Imports a session of another program into a store, as often as one likes.

The log in the store says what was imported before: each of its messages must be the next one of its agent in the
source. What the source has after that is new and is appended, in batches, so an import that was interrupted continues.
If the source has changed before its end, the session is rewound to that place, and the rest is imported again.

An answer that the program may still be writing is left for the next import.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import random

from holdfast.core.conversation.messages import Message, user
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record, to_record
from holdfast.errors import MalformedInputError, SequenceConflictError, SettingsError
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
from holdfast.session.maintenance.scrub import is_scrubbed_copy
from holdfast.session.maintenance.transfer import export_records
from holdfast.stores.base import IndexEntry, JsonRecord, Store, session_value_key
from holdfast.wire.formats import format_named

BATCH_RECORDS = 500
"""How many records are appended at a time."""
MAX_CONFLICTS, BACKOFF_SECONDS = 10, 0.05
"""How often an import begins again because another process has appended first."""
WENT_ON_HERE = "went on in this store since its import, so what is new in its log was not added"
NOT_ALLOWED = "a message that its format does not allow"
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


async def import_found(store: Store, program: SourceProgram, found: FoundSession, *, now_ms: int) -> SessionImport:
    """Import what is new in a session of a program; raises `SettingsError` if it went on in the store.

    Where another process imports the same session at once, compare again with what is then in the store.
    """
    for conflicts in range(MAX_CONFLICTS):
        try:
            return await _import_once(store, program, found, now_ms=now_ms)
        except SequenceConflictError:
            # Back off with jitter so that two imports do not retry in lockstep.
            await asyncio.sleep(random() * BACKOFF_SECONDS * conflicts)  # noqa: S311 - jitter needs no cryptography
    return await _import_once(store, program, found, now_ms=now_ms)


async def _import_once(store: Store, program: SourceProgram, found: FoundSession, *, now_ms: int) -> SessionImport:
    session = found.session_id
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
    writer = _Writer(store, result, program, is_settled=now_ms - found.modified_ms > SETTLED_MS)
    await writer.run(known or {}, length)
    if not writer.length:
        return result
    title = text_at(known, "title")
    if not is_scrubbed_copy(title, found.title):
        title = found.title
    facts = {
        "version": FORMAT_VERSION,
        "program": found.program,
        "id": found.id,
        "path": str(found.path),
        "title": title,
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
    # The title first: once the facts are stored, an import of the same files has nothing to do.
    if title and (result.is_new or text_at(known, "title") != title):
        await store.rename(session, title)
    await store.put_value(key, facts)
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


class _ItemsByAgent:
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

    def take(self, scope: str) -> tuple[int, LoggedItem]:
        """Take the next item of an agent, which `peek` has returned, and return it with its number in the source."""
        return self._waiting[scope].popleft()

    def put_back(self, scope: str, taken: Iterable[tuple[int, LoggedItem]]) -> None:
        """Return items of an agent that were taken last, in their order."""
        self._waiting[scope].extendleft(reversed([*taken]))

    def rest(self) -> Iterator[LoggedItem]:
        """Yield the items that are left, in their order."""
        waiting = sorted(chain.from_iterable(self._waiting.values()), key=lambda one: one[0])
        return (item for _, item in chain(waiting, self._items))


class _TakenBack:
    """What was imported from what the source no longer holds: messages, and what happened between them."""

    def __init__(self, ranges: list[list[int]]) -> None:
        self._ranges = ranges
        self._ended: list[list[int]] = []
        """The ranges after whose rewind the log is being read."""

    def covers(self, event: log.Event, count: int) -> bool:
        """Return whether an event after a number of messages was taken back; events come in their order."""
        if isinstance(event, log.MessageAppended):
            return any(start <= count < stop for start, stop in self._ranges)
        if isinstance(event, log.Rewound) and [event.to, count] in self._ranges:
            self._ended.append([event.to, count])
            return True
        return any(one[0] < count <= one[1] for one in self._ranges if one not in self._ended)


class _Writer:
    """Compares the log in the store with a source, and appends what is new."""

    def __init__(self, store: Store, result: SessionImport, program: SourceProgram, *, is_settled: bool) -> None:
        self._store, self._session, self._result = store, result.session, result
        self._program, self._format, self._is_settled = program, program.format, is_settled
        self.length = 0
        self.superseded: list[list[int]] = []
        """Ranges of positions that were imported from what the source no longer holds."""
        self._positions: dict[str, dict[str, int]] = {}
        """By scope and key, the position of each message."""
        self._places: dict[str, dict[str, int]] = {}
        """The same, also for messages that were left out: the position of the next one."""
        self._count = 0
        self._answers: dict[str, str] = {}
        """By scope, the answer of each sub-agent that has finished."""
        self._agents: set[str] = set()
        self._records: list[JsonRecord] = []
        self._times: list[int] = []
        self._index: list[IndexEntry] = []

    async def run(self, known: Mapping[str, object], length: int) -> None:
        """Read the log in the store and the source, and append the difference."""
        items = self._read()
        self.superseded = [[count_of(a), count_of(b)] for a, b in map(_pair, list_at(known, "superseded"))]
        self.length = length
        if length and (changed_at := await self._first_change(items, count_of(known.get("length")))) is not None:
            if not changed_at:
                items, self._result.compactions = self._read(), 0
                self._positions.clear()
                self._places.clear()
            self.superseded.append([changed_at, self._count])
            self._result.rewound_to = changed_at
            self._append(log.Rewound(to=changed_at), self._result.found.modified_ms)
        held: set[str] = set()
        for item in items.rest():
            if item.scope in held or (item.may_grow and not self._is_settled):
                held.add(item.scope)
                self._result.waiting += isinstance(item.event, log.MessageAppended)
                continue
            self._add(item)
            if len(self._records) >= BATCH_RECORDS:
                await self._flush()
                # Whoever continues after an interruption must know what was rewound, and what came from an import.
                progress = {"program": self._program.name, "superseded": self.superseded, "length": self.length}
                await self._store.put_value(import_key(self._session), {**known, **progress, "files": []})
        await self._flush()
        self._result.messages = self._count
        self._result.agents = len(self._agents)

    def _read(self) -> "_ItemsByAgent":
        """Read the source from its beginning."""
        self._result.report = ReadReport()
        return _ItemsByAgent(self._program.read(self._result.found, self._result.report))

    async def _first_change(self, items: _ItemsByAgent, imported: int) -> int | None:
        """Skip what the store has of the source, and return the position from which on the source differs.

        It is the beginning if a compaction of the source's own has to be taken back: what such a compaction left out of
        the list is in no list again unless all of it is imported again.
        """
        changed_at, taken_back = None, _TakenBack(self.superseded)
        async for stored in export_records(self._store, self._session):
            event = from_record(stored.record)
            position, is_old = self._count, taken_back.covers(event, self._count)
            self._count += isinstance(event, log.MessageAppended)
            if isinstance(event, log.DelegationStarted | log.DelegationFinished):
                self._note_delegation(event)
                self._take_other(items, event)
            elif is_old:
                continue
            elif isinstance(event, log.MessageAppended):
                if changed_at is None and not self._take_message(items, event, position):
                    changed_at = position
                if changed_at is not None and stored.position >= imported:
                    raise SettingsError("session", f"{self._session!r} {WENT_ON_HERE}")
            elif isinstance(event, log.CompactionCompleted) and event.success and event.trigger == "client":
                self._result.compactions += 1
                if changed_at is not None or not self._take_other(items, event):
                    changed_at = 0
            elif changed_at is None and not self._take_other(items, event):
                # A rewind that the source no longer has is taken back; one that was made here stays.
                changed_at = 0 if isinstance(event, log.Rewound) and stored.position < imported else None
        return changed_at

    def _take_message(self, items: _ItemsByAgent, event: log.MessageAppended, position: int) -> bool:
        """Take the next message of an agent from the source if it is this one, with what the source has before it."""
        item, skipped = self._next_of_list(items, event.scope, position)
        known = self._positions.setdefault(event.scope, {})
        is_message = item is not None and (isinstance(item.event, log.MessageAppended) or not known)
        if item is None or not is_message or not _is_same(self._as_message(item), event):
            items.put_back(event.scope, skipped)
            return False
        known[item.key] = self._places.setdefault(event.scope, {})[item.key] = position
        items.take(event.scope)
        self._count_damaged(skipped)
        return True

    def _next_of_list(
        self, items: _ItemsByAgent, scope: str, position: int
    ) -> tuple[LoggedItem | None, list[tuple[int, LoggedItem]]]:
        """Take the items of an agent before the next one that changes its list; return that one, and those taken.

        `position` is that of the next message of the list.
        """
        taken: list[tuple[int, LoggedItem]] = []
        places = self._places.setdefault(scope, {})
        while (item := items.peek(scope)) is not None:
            match item.event:
                case log.CompactionCompleted():
                    break
                case log.Rewound() if item.rewind_to in places:
                    break
                case log.MessageAppended() as event if _can_be_read(event):
                    break
                case log.MessageAppended():
                    places[item.key] = position
                    taken.append(items.take(scope))
                case _:
                    taken.append(items.take(scope))
        return item, taken

    def _as_message(self, item: LoggedItem) -> log.MessageAppended | None:
        """Return the message of an item; also for a summary of what is not in the log."""
        if isinstance(item.event, log.MessageAppended):
            return item.event
        return _summary_message(item.event, self._format) if isinstance(item.event, log.CompactionCompleted) else None

    def _take_other(self, items: _ItemsByAgent, event: log.Event) -> bool:
        """Take the next item of an agent from the source if it is this event, and return whether it is."""
        scope, skipped = scope_of(event), list[tuple[int, LoggedItem]]()
        item, known = items.peek(scope), self._positions.get(scope, {})
        if isinstance(event, log.CompactionCompleted | log.Rewound):
            item, skipped = self._next_of_list(items, scope, self._count)
        match item.event if item else None, event:
            case (log.CompactionCompleted() as new, log.CompactionCompleted()) if item:
                new = self._placed(new, item, known)
                is_same = new.span.kept == event.span.kept and is_scrubbed_copy(event.replacement, new.replacement)
            case (log.Rewound(), log.Rewound(to=to)) if item:
                is_same = self._places.get(scope, {}).get(item.rewind_to) == to
            case (log.Forked(), log.Forked()) | (log.DelegationStarted(), log.DelegationStarted()):
                is_same = True
            case (log.DelegationFinished(), log.DelegationFinished()):
                is_same = True
            case new, _:
                is_same = new is not None and is_scrubbed_copy(to_record(event), to_record(new))
        if is_same:
            items.take(scope)
            self._count_damaged(skipped)
        else:
            items.put_back(scope, skipped)
        return is_same

    def _count_damaged(self, skipped: Sequence[tuple[int, LoggedItem]]) -> None:
        """Report the messages that this import leaves out as an earlier one did."""
        left_out = sum(isinstance(item.event, log.MessageAppended) for _, item in skipped)
        if left_out:
            self._result.report.damaged[NOT_ALLOWED] += left_out

    def _add(self, item: LoggedItem) -> None:
        """Append the event of an item, with its positions."""
        known = self._positions.setdefault(item.scope, {})
        places = self._places.setdefault(item.scope, {})
        match item.event:
            case log.MessageAppended() as event:
                self._add_message(item, event)
            case log.CompactionCompleted() as event if not known:
                self._add_message(item, _summary_message(event, self._format))
            case log.CompactionCompleted() as event:
                self._result.compactions += 1
                self._append(self._placed(event, item, known), item.time_ms)
            case log.Rewound() if item.rewind_to in places:
                self._append(log.Rewound(to=places[item.rewind_to]), item.time_ms)
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
        else:
            is_known = is_scrubbed_copy(self._answers.get(event.scope), event.answer)
        self._note_delegation(event)
        if not is_known:
            self._append(event, time_ms)

    def _note_delegation(self, event: log.DelegationStarted | log.DelegationFinished) -> None:
        if isinstance(event, log.DelegationStarted):
            self._agents.add(event.scope)
        else:
            self._answers[event.scope] = event.answer

    def _add_message(self, item: LoggedItem, event: log.MessageAppended) -> None:
        self._places.setdefault(item.scope, {})[item.key] = self._count
        try:
            message = _decoded(event, self._count)
        except MalformedInputError:
            self._result.report.damaged[NOT_ALLOWED] += 1
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
        start = 0 if item.scope == log.MAIN or not own else own[0]
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
        key = import_key(self._session)
        if not self.length and await self._store.get_value(key) is None:
            # An import that is interrupted after its first records must be known as one. Where another process has
            # imported the session meanwhile, what it has noted stays, and the append fails.
            await self._store.put_value(key, {"program": self._result.found.program})
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
    if is_scrubbed_copy(stored.native, new.native):
        return True
    return _can_be_read(new) and is_scrubbed_copy(stored.native, _decoded(new, 0).native)


def _summary_message(event: log.CompactionCompleted, format_name: str) -> log.MessageAppended:
    """Return the summary of messages that the log does not hold, as in a fork, as a message of the program."""
    native = format_named(format_name).encode(user("\n\n".join(event.replacement), trust="memory"))
    return log.MessageAppended(format=format_name, native=native, scope=event.scope, trust="memory")
