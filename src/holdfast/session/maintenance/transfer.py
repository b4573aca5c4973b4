"""Exports and imports whole logs, and imports the records recovered from a damaged store.

Records are copied unchanged, with large messages inlined and unknown events kept. A record that could not be read back
is reported instead of imported. If it is a message, a notice replaces it, so that compactions, pins and rewinds still
refer to the right positions.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

from holdfast.core.history import events as log
from holdfast.core.history.codec import RECORD_SCHEMA, from_record, to_record
from holdfast.core.history.history import History
from holdfast.errors import HoldfastError, MalformedInputError, MissingBlobError, SettingsError
from holdfast.session.log.index_text import index_entries
from holdfast.session.log.records import RECORDS_PER_PAGE, blob_digest, extract_blob, inline_blob, lost_message_record
from holdfast.stores.base import JsonRecord, Store, StoredRecord
from holdfast.stores.jsonl import LoadedConversation
from holdfast.stores.sqlite.recover import RecoveredStore
from holdfast.wire.formats import format_named

ImportProgress = Callable[[int], None]


@dataclass(slots=True)
class ImportResult:
    """The result of an import."""

    session: str
    records: int = 0
    messages: int = 0
    newest_schema: int = RECORD_SCHEMA
    refused: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """The line or position of each record that could not be imported, and why."""

    @property
    def is_read_only(self) -> bool:
        """Whether a newer version wrote the session, so that this version must not write to it."""
        return self.newest_schema > RECORD_SCHEMA


@dataclass(frozen=True, slots=True)
class RecoveredSession:
    """The part of one session that was recovered."""

    result: ImportResult
    lost: list[int]
    """The positions of records that could not be read at all."""


async def export_records(store: Store, session: str, missing: list[int] | None = None) -> AsyncIterator[StoredRecord]:
    """Yield the records of a log with large messages inlined.

    A notice replaces a message whose content the store has lost; its position is added to `missing`.
    """
    start = 0
    while page := await store.read(session, start=start, limit=RECORDS_PER_PAGE):
        for stored in page:
            try:
                record = await inline_blob(store, stored.record)
            except (MissingBlobError, MalformedInputError):
                record = lost_message_record(stored.record)
                if missing is not None:
                    missing.append(stored.position)
            yield StoredRecord(stored.position, stored.time_ms, record)
        start += len(page)


def records_from_file(conversation: LoadedConversation, now_ms: int) -> list[tuple[int, int, JsonRecord]]:
    """Return the content of a file as records, each with its line number and a time."""
    out: list[tuple[int, int, JsonRecord]] = []
    time_ms = now_ms
    for line, recorded_ms, record in conversation.records:
        time_ms = time_ms if recorded_ms is None else recorded_ms
        out.append((line, time_ms, record))
    for line, message in conversation.messages:
        out.append((line, now_ms, to_record(log.MessageAppended(format=conversation.format, native=message))))
    return out


async def import_session(
    store: Store,
    session: str,
    records: Iterable[tuple[int, int, JsonRecord]],
    *,
    name: str = "",
    progress: ImportProgress = lambda _: None,
) -> ImportResult:
    """Write records, each with its place and time, as a new session: all in one append, or none."""
    if await store.length(session):
        raise SettingsError("session", f"{session!r} already exists; choose another id")
    result = ImportResult(session)
    history = History(format_named)
    read = [(time_ms, _readable_record(place, record, history, result)) for place, time_ms, record in records]
    readable = [(time_ms, record) for time_ms, record in read if record is not None]
    if not readable:
        raise MalformedInputError("session", "no record could be imported")
    blobs, packed = list[str](), list[JsonRecord]()
    for number, (_, record) in enumerate(readable, start=1):
        packed.append(await extract_blob(store, record, blobs))
        progress(number)
    result.messages = len(history)
    index = index_entries((at, entry.message) for at, entry in enumerate(history.entries))
    times = [time_ms for time_ms, _ in readable]
    # Other programs may have written the file: a name stays in its line.
    name = "".join(char if char.isprintable() else " " for char in name)
    result.records = await store.append(session, packed, after=0, time_ms=times, index=index, blobs=blobs, name=name)
    return result


def _readable_record(place: int, record: JsonRecord, history: History, result: ImportResult) -> JsonRecord | None:
    """Return a record that can be read back: itself, or a notice that replaces a message; None otherwise."""
    try:
        event = from_record(record)
        history.append(event)
    except HoldfastError as error:
        result.refused.append((place, "its content is missing" if blob_digest(record) else str(error)))
        if record.get("type") != log.MessageAppended.KIND:
            return None
        notice = lost_message_record(record)
        history.append(from_record(notice))
        return notice
    if isinstance(event, log.UnknownEvent):
        result.newest_schema = max(result.newest_schema, event.schema)
    return record


async def import_recovered(
    recovered: RecoveredStore, store: Store, progress: ImportProgress = lambda _: None
) -> list[RecoveredSession]:
    """Write the records recovered from a damaged store into a new one."""
    sessions: list[RecoveredSession] = []
    for found in recovered.logs.values():
        records = [
            (position, time_ms, _with_blob_inlined(recovered, record))
            for position, (time_ms, record) in sorted(found.records.items())
        ]
        try:
            result = await import_session(store, found.id, records, name=found.name, progress=progress)
        except MalformedInputError as error:
            # A session without a single readable record must not prevent the import of the others.
            result = ImportResult(found.id, refused=[(records[0][0], str(error))])
        sessions.append(RecoveredSession(result, found.lost))
    for key, value in recovered.values.items():
        await store.put_value(key, value)
    return sessions


def _with_blob_inlined(recovered: RecoveredStore, record: JsonRecord) -> JsonRecord:
    """Return a record with its message inlined; if the blob is lost, without it, which `import_session` reports."""
    content = recovered.blobs.get(blob_digest(record) or "")
    if content is None:
        return record
    return {**record, "data": {**cast("dict[str, object]", record["data"]), "native": json.loads(content)}}
