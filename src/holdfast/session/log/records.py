"""A session's log in its store: encodes events as records, and decodes records as events.

A large message is stored as a blob, once, however often it is repeated. A notice replaces a message whose blob is lost.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import NoneType
from typing import cast

from holdfast.core.conversation.json_values import is_certainly_shorter
from holdfast.core.conversation.messages import user
from holdfast.core.history import events as log
from holdfast.core.history.codec import RECORD_SCHEMA, from_record, to_record
from holdfast.errors import MalformedInputError, MissingBlobError, StoreUnavailableError
from holdfast.session.heavy_work import MAX_INLINE_CHARS, MAX_INLINE_MESSAGES, record_in_thread
from holdfast.stores.base import IndexEntry, JsonRecord, Store, StoredRecord
from holdfast.stores.encoding import decode_json
from holdfast.wire.formats import FORMATS, format_named

MIN_BLOB_BYTES = 16_384
"""A message of at least this size becomes a blob."""
LOST_MESSAGE_TEXT = "[this message could not be read]"
"""Replaces a message whose content is lost."""


async def extract_blob(store: Store, record: JsonRecord, blobs: list[str]) -> JsonRecord:
    """Return a record in its stored form: a large message becomes a blob, whose hash is added to `blobs`."""
    (content,) = _blob_contents([record])
    return record if content is None else await _with_blob(store, record, content, blobs)


def _blob_contents(records: Sequence[JsonRecord]) -> list[bytes | None]:
    """Return the message of each record that is so large that it becomes a blob."""
    contents: list[bytes | None] = []
    for record in records:
        data = record.get("data") if record.get("type") == log.MessageAppended.KIND else None
        native = cast("dict[str, object]", data).get("native") if isinstance(data, dict) else None
        content = b""
        if native is not None and not is_certainly_shorter(native, MIN_BLOB_BYTES):
            content = json.dumps(native, ensure_ascii=True).encode()
        contents.append(content if len(content) >= MIN_BLOB_BYTES else None)
    return contents


async def _with_blob(store: Store, record: JsonRecord, content: bytes, blobs: list[str]) -> JsonRecord:
    digest = await store.put_blob(content)
    blobs.append(digest)
    values = cast("dict[str, object]", record["data"])
    return {**record, "data": {**{key: value for key, value in values.items() if key != "native"}, "blob": digest}}


async def inline_blob(store: Store, record: JsonRecord) -> JsonRecord:
    """Return a record with the message of its blob inlined."""
    digest = blob_digest(record)
    if digest is None:
        return record
    content = await store.get_blob(digest)
    try:
        is_long = len(content) > MAX_INLINE_CHARS
        native = await record_in_thread(partial(decode_json, content)) if is_long else decode_json(content)
    except ValueError as error:
        raise MalformedInputError("blob", f"{digest} is not JSON: {error}") from error
    values = cast("dict[str, object]", record["data"])
    return {**record, "data": {**{key: value for key, value in values.items() if key != "blob"}, "native": native}}


def blob_digest(record: JsonRecord) -> str | None:
    """Return the hash of a record's blob, or None."""
    data = record.get("data")
    if record.get("type") != log.MessageAppended.KIND or not isinstance(data, dict) or "blob" not in data:
        return None
    return str(cast("dict[str, object]", data)["blob"])


def message_in_record(record: JsonRecord) -> tuple[str, Mapping[str, object]]:
    """Return the format and the message of a message record."""
    event = from_record(record) if record.get("schema") != RECORD_SCHEMA else None
    data = event or record.get("data")
    if isinstance(event, log.MessageAppended):
        return event.format, event.native
    if record.get("type") == log.MessageAppended.KIND and isinstance(data, Mapping):
        values = cast("Mapping[str, object]", data)
        name, native = values.get("format"), values.get("native")
        if isinstance(name, str) and isinstance(native, Mapping):
            return name, cast("Mapping[str, object]", native)
    raise MalformedInputError("record", "is not a message")


def lost_message_record(record: JsonRecord) -> JsonRecord:
    """Return the record of a notice that replaces an unreadable message."""
    data = record.get("data")
    values = cast("Mapping[str, object]", data if isinstance(data, Mapping) else {})
    name, scope = str(values.get("format")), values.get("scope")
    name = name if name in FORMATS else "openai-chat"
    native = format_named(name).encode(user(LOST_MESSAGE_TEXT, trust="memory"))
    scope = scope if isinstance(scope, str) else log.MAIN
    return to_record(log.MessageAppended(format=name, native=native, scope=scope, trust="memory"))


def is_message_record(record: JsonRecord) -> bool:
    """Return whether a record is a message in a schema that this version reads."""
    schema = record.get("schema", RECORD_SCHEMA)
    return record.get("type") == log.MessageAppended.KIND and isinstance(schema, int) and schema <= RECORD_SCHEMA


DAMAGED_KIND = "damaged"
RECORDS_PER_PAGE = 2_000
"""How many records are read at a time."""


class StoredLog:
    """The log of one session."""

    def __init__(self, store: Store, session: str) -> None:
        self.store = store
        self.session = session
        self.length = 0
        """How many records have been read or written."""
        self.first: tuple[int, int] | None = None
        self.last: tuple[int, int] | None = None
        """The place and the time of a record that was read or written here: an early one, and the last one."""
        self.newest_schema = RECORD_SCHEMA
        self.damage: list[str] = []
        """The problems of records that could not be read."""
        self.missing_blobs: dict[int, str] = {}
        """The hashes of lost blobs, by the place of their message in the log."""

    async def append(
        self,
        whole: Sequence[JsonRecord],
        time_ms: int | Sequence[int],
        index: Sequence[IndexEntry] = (),
        *,
        is_long: bool = False,
    ) -> None:
        """Write records; raises `SequenceConflictError`, and writes nothing, if another writer appended first.

        Long ones are encoded in a thread.
        """
        if self.newest_schema > RECORD_SCHEMA:
            problem = "a newer Holdfast has written to it, so this one only reads it; update Holdfast"
            raise StoreUnavailableError(f"session {self.session!r}", problem)
        contents = await record_in_thread(lambda: _blob_contents(whole)) if is_long else _blob_contents(whole)

        async def append_with_blobs() -> int:
            blobs: list[str] = []
            records = [
                record if content is None else await _with_blob(self.store, record, content, blobs)
                for record, content in zip(whole, contents, strict=True)
            ]
            return await self.store.append(
                self.session, records, after=self.length, time_ms=time_ms, index=index, blobs=blobs
            )

        if any(contents):
            try:
                self.length = await append_with_blobs()
            except MissingBlobError:
                # The last session that referred to a blob was deleted meanwhile: store the blob again.
                self.length = await append_with_blobs()
        else:
            self.length = await self.store.append(self.session, whole, after=self.length, time_ms=time_ms, index=index)
        self.last = self.length - 1, time_ms if isinstance(time_ms, int) else time_ms[-1]
        self.first = self.first or self.last

    async def is_replaced(self) -> bool:
        """Return whether the session was deleted since its last record was known, and another one has its id now."""
        marks = [mark for mark in (self.first, self.last) if mark is not None]
        found = await self.store.read_at(self.session, [place for place, _ in marks]) if marks else ()
        return {*marks} != {(stored.position, stored.time_ms) for stored in found}

    async def read_new(
        self, limit: int | None = None, *, page: Sequence[StoredRecord] | None = None
    ) -> list[tuple[int, log.Event]]:
        """Return the events that were written since the last read, each with its time; at most `limit` of them.

        `page` is the first page of their records, if it was read already.
        """
        found: list[tuple[int, log.Event]] = []
        while limit is None or len(found) < limit:
            count = RECORDS_PER_PAGE if limit is None else min(RECORDS_PER_PAGE, limit - len(found))
            if page is None:
                page = await self.store.read(self.session, start=self.length + len(found), limit=count)
            found += await self._decode(page, attrgetter("time_ms"))
            if len(page) < count:
                break
            page = None
        # Update the progress last: a cancelled read has then read nothing, and the next one reads everything again.
        self.length += len(found)
        if found:
            self.last = self.length - 1, found[-1][0]
            self.first = self.first or self.last
        return found

    async def _decode(
        self, page: Sequence[StoredRecord], number: Callable[[StoredRecord], int]
    ) -> list[tuple[int, log.Event]]:
        """Return events with a number of each record, in slices, so that the event loop goes on between them."""
        events = list[tuple[int, log.Event]]()
        for start in range(0, len(page), MAX_INLINE_MESSAGES):
            if start:
                await asyncio.sleep(0)
            part = page[start : start + MAX_INLINE_MESSAGES]
            events += [(number(stored), await self.decode(stored)) for stored in part]
        return events

    async def decode(self, stored: StoredRecord) -> log.Event:
        """Return the event of a record; an unreadable record becomes an unknown event and is reported as damage.

        A notice replaces a message whose content is lost, so that all other messages keep their positions.
        """
        try:
            event = from_record(await inline_blob(self.store, stored.record))
        except (MalformedInputError, MissingBlobError) as error:
            problem = f"record {stored.position}: {error}"
            if stored.position not in self.missing_blobs and problem not in self.damage:
                self.damage.append(problem)
            if digest := blob_digest(stored.record):
                self.missing_blobs[stored.position] = digest
            is_message = digest is not None and is_message_record(stored.record)
            event = from_record(lost_message_record(stored.record)) if is_message else _damaged_event(stored.record)
        if isinstance(event, log.UnknownEvent):
            self.newest_schema = max(self.newest_schema, event.schema)
        return event

    async def events(self) -> list[log.Event]:
        """Return all events from the beginning."""
        return [event for _, event in await self.timed_events()]

    async def timed_events(self) -> list[tuple[int, log.Event]]:
        """Return all events from the beginning, each with its time."""
        return await StoredLog(self.store, self.session).read_new()

    async def events_at(self, positions: Sequence[int]) -> list[tuple[int, log.Event]]:
        """Return the events at some places in the log, with those places."""
        found: list[tuple[int, log.Event]] = []
        for start in range(0, len(positions), RECORDS_PER_PAGE):
            page = await self.store.read_at(self.session, positions[start : start + RECORDS_PER_PAGE])
            found += await self._decode(page, attrgetter("position"))
        return found


_TEXT_OR_NONE, _INTEGER_OR_NONE = frozenset({str, NoneType}), frozenset({int, NoneType})
_MADE_HERE = (log.UsageMeasured, log.RequestPrepared, log.UnknownEvent)
"""Events whose values no caller has passed."""


def encode_event(event: log.Event) -> JsonRecord:
    """Return an event as a record; raises `MalformedInputError` if the record could not be read back."""
    record = to_record(event)
    if isinstance(event, log.MessageAppended):
        # The message itself was decoded; callers may have passed these two.
        is_made_here = type(event.agent) in _TEXT_OR_NONE and type(event.duration_ms) in _INTEGER_OR_NONE
    else:
        is_made_here = isinstance(event, _MADE_HERE)
    if not is_made_here:
        from_record(record)
    return record


def _damaged_event(record: JsonRecord) -> log.UnknownEvent:
    """Return an unknown event with the schema of an unreadable record."""
    schema = record.get("schema")
    return log.UnknownEvent(kind=DAMAGED_KIND, schema=schema if isinstance(schema, int) else RECORD_SCHEMA, data={})
