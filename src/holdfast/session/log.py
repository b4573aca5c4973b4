"""A session's log in its store: events become records, and records events."""

from collections.abc import Sequence

from holdfast.core.history import events as log
from holdfast.core.history.records import RECORD_SCHEMA, from_record, to_record
from holdfast.errors import MalformedInputError, MissingBlobError, StoreUnavailableError
from holdfast.session.blobs import blob_digest, extract_blob, inline_blob, is_message_record, lost_message_record
from holdfast.stores.base import IndexEntry, JsonRecord, Store, StoredRecord

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
        self.newest_schema = RECORD_SCHEMA
        self.damage: list[str] = []
        """What could not be read."""
        self.missing_blobs: dict[int, str] = {}
        """By the place of a message whose content is gone from the store, the hash of that."""

    async def append(self, whole: Sequence[JsonRecord], time_ms: int, index: Sequence[IndexEntry] = ()) -> None:
        """Write records; raises `SequenceConflictError` if another writer was faster, and then wrote nothing."""
        if self.newest_schema > RECORD_SCHEMA:
            problem = "a newer Holdfast has written to it, so this one only reads it; update Holdfast"
            raise StoreUnavailableError(f"session {self.session!r}", problem)
        for attempt in range(2):
            blobs: list[str] = []
            records = [await extract_blob(self.store, record, blobs) for record in whole]
            try:
                self.length = await self.store.append(
                    self.session, records, after=self.length, time_ms=time_ms, index=index, blobs=blobs
                )
            except MissingBlobError:
                # The last session that referred to it was deleted in between: it is put there once more.
                if attempt:
                    raise
                continue
            return

    async def read_new(self) -> list[tuple[int, log.Event]]:
        """Return what was written since, by whomever, with the times."""
        found: list[tuple[int, log.Event]] = []
        while True:
            page = await self.store.read(self.session, start=self.length + len(found), limit=RECORDS_PER_PAGE)
            found += [(stored.time_ms, await self._decode(stored)) for stored in page]
            if len(page) < RECORDS_PER_PAGE:
                break
        # Only now: whoever is stopped on the way has read nothing, and reads all of it the next time.
        schemas = [event.schema for _, event in found if isinstance(event, log.UnknownEvent)]
        self.newest_schema = max([self.newest_schema, *schemas])
        self.length += len(found)
        return found

    async def _decode(self, stored: StoredRecord) -> log.Event:
        """Return the event of a record; one that cannot be read is kept as something nobody knows, and told.

        A message whose content is gone leaves a notice in its place, so that all others stay where they are.
        """
        try:
            return from_record(await inline_blob(self.store, stored.record))
        except (MalformedInputError, MissingBlobError) as error:
            problem = f"record {stored.position}: {error}"
            if stored.position not in self.missing_blobs and problem not in self.damage:
                self.damage.append(problem)
            if digest := blob_digest(stored.record):
                self.missing_blobs[stored.position] = digest
            is_message = digest is not None and is_message_record(stored.record)
            return from_record(lost_message_record(stored.record)) if is_message else _damaged_event(stored.record)

    async def events(self) -> list[log.Event]:
        """Return everything that happened, from the beginning."""
        return [event for _, event in await self.timed_events()]

    async def timed_events(self) -> list[tuple[int, log.Event]]:
        """Return everything that happened, each with its time."""
        return await StoredLog(self.store, self.session).read_new()

    async def events_at(self, positions: Sequence[int]) -> list[tuple[int, log.Event]]:
        """Return single events by their places in the log."""
        found = await self.store.read_at(self.session, positions)
        return [(stored.position, await self._decode(stored)) for stored in found]


def encode_event(event: log.Event) -> JsonRecord:
    """Return an event as a record that can be read again; raises `MalformedInputError` where it could not be."""
    record = to_record(event)
    if not isinstance(event, log.UnknownEvent):
        from_record(record)
    return record


def _damaged_event(record: JsonRecord) -> log.UnknownEvent:
    """Return what stands for a record that nobody can read, with the schema that it is of."""
    schema = record.get("schema")
    return log.UnknownEvent(kind=DAMAGED_KIND, schema=schema if isinstance(schema, int) else RECORD_SCHEMA, data={})
