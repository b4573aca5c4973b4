"""Whole logs on their way out of a store and into one: export, import, and what was salvaged.

Records travel as they are, with large messages inside; what this program does not know is kept. A record that
could not be opened again is not brought in: it is reported, and a message leaves a notice in its place, so that
folds, pins and rewinds still speak of the messages they meant.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import cast

from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.history.records import SCHEMA, from_record, to_record
from holdfast.errors import HoldfastError, MalformedInputError, MissingBlobError, SettingsError
from holdfast.session.blobs import blob_of, is_known_message, lost_message, packed_record, whole_record
from holdfast.session.indexing import indexed
from holdfast.session.log import PAGE
from holdfast.stores.base import Indexed, Record, Store, StoredRecord
from holdfast.stores.jsonl import Conversation
from holdfast.stores.salvage import Salvage
from holdfast.wire.formats import format_named

Progress = Callable[[int], None]


@dataclass(slots=True)
class Arrived:
    """What came in."""

    session: str
    records: int = 0
    messages: int = 0
    newest_schema: int = SCHEMA
    refused: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Where it stood (a line or a position), and why it could not be taken in."""

    @property
    def is_read_only(self) -> bool:
        """Whether a newer program wrote it, so that this one must not go on writing."""
        return self.newest_schema > SCHEMA


@dataclass(frozen=True, slots=True)
class Rescued:
    """What was saved of one session."""

    arrived: Arrived
    lost: list[int]
    """The positions of records that could not be read at all."""


async def outgoing(store: Store, session: str, gone: list[int] | None = None) -> AsyncIterator[StoredRecord]:
    """Yield the records of a log with large messages inside.

    A notice goes out in the place of a message whose content the store has lost; its position is added to `gone`.
    """
    start = 0
    while page := await store.read(session, start=start, limit=PAGE):
        for stored in page:
            try:
                record = await whole_record(store, stored.record)
            except (MissingBlobError, MalformedInputError):
                record = lost_message(stored.record)
                if gone is not None:
                    gone.append(stored.position)
            yield StoredRecord(stored.position, stored.time_ms, record)
        start += len(page)


def records_of(conversation: Conversation, now_ms: int) -> list[tuple[int, int, Record]]:
    """Return what a file holds as records, each with its line and a time."""
    out: list[tuple[int, int, Record]] = []
    time_ms = now_ms
    for line, given, record in conversation.records:
        time_ms = time_ms if given is None else given
        out.append((line, time_ms, record))
    for line, message in conversation.messages:
        out.append((line, now_ms, to_record(log.MessageAppended(format=conversation.format, native=message))))
    return out


async def bring_in(
    store: Store,
    session: str,
    records: Iterable[tuple[int, int, Record]],
    *,
    name: str = "",
    progress: Progress = lambda _: None,
) -> Arrived:
    """Write records, each with its place and time, as a new session; on a failure nothing of it stays."""
    if await store.length(session):
        raise SettingsError("session", f"{session!r} is already there; choose another name")
    arrived = Arrived(session)
    history = History(format_named)
    readable = [(time_ms, _readable(place, record, history, arrived)) for place, time_ms, record in records]
    if not any(record for _, record in readable):
        raise MalformedInputError("session", "there is no record that could be taken in")
    said = 0
    try:
        for time_ms, group in groupby(readable, key=lambda pair: pair[0]):
            batch = [record for _, record in group if record is not None]
            more = sum(map(is_known_message, batch))
            words = indexed((at, history.entries[at].message) for at in range(said, said + more))
            said += more
            await _append(store, arrived, batch, time_ms, words)
            progress(arrived.records)
        if name:
            await store.rename(session, name)
    except BaseException:
        await store.delete(session)
        raise
    arrived.messages = said
    return arrived


async def _append(
    store: Store, arrived: Arrived, batch: Sequence[Record], time_ms: int, words: Sequence[Indexed]
) -> None:
    """Write records of one time."""
    if not batch:
        return
    blobs: list[str] = []
    packed = [await packed_record(store, record, blobs) for record in batch]
    arrived.records = await store.append(
        arrived.session, packed, after=arrived.records, time_ms=time_ms, index=words, blobs=blobs
    )


def _readable(place: int, record: Record, history: History, arrived: Arrived) -> Record | None:
    """Return a record that can be opened again: itself, a notice in the place of a message, or None."""
    try:
        event = from_record(record)
        history.append(event)
    except HoldfastError as error:
        arrived.refused.append((place, "its content is gone" if blob_of(record) else str(error)))
        if record.get("type") != log.MessageAppended.KIND:
            return None
        notice = lost_message(record)
        history.append(from_record(notice))
        return notice
    if isinstance(event, log.Unknown):
        arrived.newest_schema = max(arrived.newest_schema, event.schema)
    return record


async def rescue(salvage: Salvage, store: Store, progress: Progress = lambda _: None) -> list[Rescued]:
    """Write what was salvaged of a damaged store into a new one."""
    rescued: list[Rescued] = []
    for salvaged in salvage.logs.values():
        records = [
            (position, time_ms, _whole(salvage, record))
            for position, (time_ms, record) in sorted(salvaged.records.items())
        ]
        try:
            arrived = await bring_in(store, salvaged.id, records, name=salvaged.name, progress=progress)
        except MalformedInputError as error:
            # One session of which nothing can be used must not cost the others.
            arrived = Arrived(salvaged.id, refused=[(records[0][0], str(error))])
        rescued.append(Rescued(arrived, salvaged.lost))
    for key, value in salvage.facts.items():
        await store.put_fact(key, value)
    return rescued


def _whole(salvage: Salvage, record: Record) -> Record:
    """Return a record with its message inside; without one where that is gone, which `bring_in` reports."""
    digest = blob_of(record)
    content = salvage.blobs.get(digest) if digest else None
    if content is None:
        return record
    values = cast("dict[str, object]", record["data"])
    return {**record, "data": {**values, "native": json.loads(content)}}
