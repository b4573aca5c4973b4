"""A session's log in its store: events become records, and large messages become blobs beside them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from holdfast.core.conversation.messages import Media, Message, user
from holdfast.core.history import events as log
from holdfast.core.history.identifiers import argument_text
from holdfast.core.history.recall.bodies import described
from holdfast.core.history.records import SCHEMA, from_record, to_record
from holdfast.errors import MalformedInputError, MissingBlobError, StoreUnavailableError
from holdfast.stores.base import Indexed, Record, Store, StoredRecord
from holdfast.wire.formats import FORMATS, format_named

MIN_BLOB_BYTES = 16_384
"""A message larger than this is kept apart, once, whoever repeats it."""
MAX_INDEXED_CHARS = 200_000
"""So much of a message is indexed as it is; behind it, of as much again, each further word once."""
MAX_READ_CHARS = 8_000_000
IN_PART = "holdfastindexedinpart"
"""Stands in the index where words of a message are missing from it."""
_WORD = re.compile(r"\w+(?:[-./_]\w+)*")
DAMAGED = "damaged"
LOST = "[this message could not be read]"
"""What stands in the place of a message whose content is gone."""
PAGE = 2_000
"""How many records are read at a time."""


class Log:
    """The log of one session."""

    def __init__(self, store: Store, session: str) -> None:
        self.store = store
        self.session = session
        self.length = 0
        """How many records have been read or written."""
        self.newest_schema = SCHEMA
        self.damage: list[str] = []
        """What could not be read."""
        self.gone: dict[int, str] = {}
        """By the place of a message whose content is gone from the store, the hash of that."""

    async def append(self, whole: Sequence[Record], time_ms: int, index: Sequence[Indexed] = ()) -> None:
        """Write records; raises `SequenceConflictError` if another writer was faster, and then wrote nothing."""
        if self.newest_schema > SCHEMA:
            problem = "a newer Holdfast has written to it, so this one only reads it; update Holdfast"
            raise StoreUnavailableError(f"session {self.session!r}", problem)
        for attempt in range(2):
            blobs: list[str] = []
            records = [await packed_record(self.store, record, blobs) for record in whole]
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

    async def news(self) -> list[tuple[int, log.Event]]:
        """Return what was written since, by whomever, with the times."""
        found: list[tuple[int, log.Event]] = []
        while True:
            page = await self.store.read(self.session, start=self.length, limit=PAGE)
            events = [await self._event(stored) for stored in page]
            found += [(stored.time_ms, event) for stored, event in zip(page, events, strict=True)]
            schemas = [event.schema for event in events if isinstance(event, log.Unknown)]
            self.newest_schema = max([self.newest_schema, *schemas])
            self.length += len(page)
            if len(page) < PAGE:
                return found

    async def _event(self, stored: StoredRecord) -> log.Event:
        """Return the event of a record; one that cannot be read is kept as something nobody knows, and told.

        A message whose content is gone leaves a notice in its place, so that all others stay where they are.
        """
        try:
            return from_record(await whole_record(self.store, stored.record))
        except (MalformedInputError, MissingBlobError) as error:
            if stored.position not in self.gone:
                self.damage.append(f"record {stored.position}: {error}")
            if digest := blob_of(stored.record):
                self.gone[stored.position] = digest
            is_message = digest is not None and is_known_message(stored.record)
            return from_record(lost_message(stored.record)) if is_message else _unreadable(stored.record)

    async def events(self) -> list[log.Event]:
        """Return everything that happened, from the beginning."""
        return [event for _, event in await self.timed()]

    async def timed(self) -> list[tuple[int, log.Event]]:
        """Return everything that happened, each with its time."""
        return await Log(self.store, self.session).news()

    async def picked(self, places: Sequence[int]) -> list[tuple[int, log.Event]]:
        """Return single events by their places in the log."""
        found = await self.store.pick(self.session, places)
        return [(stored.position, await self._event(stored)) for stored in found]


def checked_record(event: log.Event) -> Record:
    """Return an event as a record that can be read again; raises `MalformedInputError` where it could not be."""
    record = to_record(event)
    if not isinstance(event, log.Unknown):
        from_record(record)
    return record


async def packed_record(store: Store, record: Record, blobs: list[str]) -> Record:
    """Return a record as it is kept: a large message becomes a blob, whose hash is added to `blobs`."""
    data = record.get("data")
    if record.get("type") != log.MessageAppended.KIND or not isinstance(data, dict) or "native" not in data:
        return record
    values = cast("dict[str, object]", data)
    content = json.dumps(values["native"], ensure_ascii=True).encode()
    if len(content) < MIN_BLOB_BYTES:
        return record
    digest = await store.put_blob(content)
    blobs.append(digest)
    return {**record, "data": {**{key: value for key, value in values.items() if key != "native"}, "blob": digest}}


async def whole_record(store: Store, record: Record) -> Record:
    """Return a record with the message inside that is kept apart."""
    digest = blob_of(record)
    if digest is None:
        return record
    content = await store.get_blob(digest)
    try:
        native = json.loads(content)
    except ValueError as error:
        raise MalformedInputError("blob", f"{digest} is not JSON: {error}") from error
    values = cast("dict[str, object]", record["data"])
    return {**record, "data": {**{key: value for key, value in values.items() if key != "blob"}, "native": native}}


def _unreadable(record: Record) -> log.Unknown:
    """Return what stands for a record that nobody can read, with the schema that it is of."""
    schema = record.get("schema")
    return log.Unknown(kind=DAMAGED, schema=schema if isinstance(schema, int) else SCHEMA, data={})


def said_in(record: Record) -> tuple[str, Mapping[str, object]]:
    """Return the format and the message of a record that tells of one."""
    event = from_record(record) if record.get("schema") != SCHEMA else None
    data = event or record.get("data")
    if isinstance(event, log.MessageAppended):
        return event.format, event.native
    if record.get("type") == log.MessageAppended.KIND and isinstance(data, Mapping):
        values = cast("Mapping[str, object]", data)
        spoken, native = values.get("format"), values.get("native")
        if isinstance(spoken, str) and isinstance(native, Mapping):
            return spoken, cast("Mapping[str, object]", native)
    raise MalformedInputError("record", "tells of no message")


def blob_of(record: Record) -> str | None:
    """Return the hash of the message that a record keeps apart."""
    data = record.get("data")
    if record.get("type") != log.MessageAppended.KIND or not isinstance(data, dict) or "blob" not in data:
        return None
    return str(cast("dict[str, object]", data)["blob"])


def lost_message(record: Record) -> Record:
    """Return what stands in the place of a message that could not be read: reference, and nobody's word."""
    data = record.get("data")
    values = cast("Mapping[str, object]", data if isinstance(data, Mapping) else {})
    spoken = str(values.get("format"))
    wire = spoken if spoken in FORMATS else "openai-chat"
    native = format_named(wire).encode(user(LOST, trust="memory"))
    scope = values.get("scope")
    spoken_in = scope if isinstance(scope, str) else log.MAIN
    return to_record(log.MessageAppended(format=wire, native=native, scope=spoken_in, trust="memory"))


def is_known_message(record: Record) -> bool:
    """Return whether a record tells of a message in a way that this program knows."""
    schema = record.get("schema", SCHEMA)
    return record.get("type") == log.MessageAppended.KIND and isinstance(schema, int) and schema <= SCHEMA


def indexed(messages: Iterable[tuple[int, Message]]) -> list[Indexed]:
    """Return what is to be found of messages: their words, and those of calls and results."""
    return [Indexed(position, text) for position, message in messages if (text := words_of_message(message))]


def words_of_message(message: Message) -> str:
    """Return what one message is found by; what recall has answered is found where it was said."""
    results = [result for result in message.results if not result.is_recalled]
    parts = (*message.parts, *(inner for result in results for inner in result.content))
    pieces = [message.text, *(result.text for result in results)]
    pieces += [f"{call.name} {argument_text(call.arguments)}" for call in message.calls]
    pieces += [described(part) for part in parts if isinstance(part, Media)]
    text = "\n".join(piece for piece in pieces if piece)
    return text if len(text) <= MAX_INDEXED_CHARS else text[:MAX_INDEXED_CHARS] + _further_words(text)


def _further_words(text: str) -> str:
    """Return the words of a long text that its first part has not, each once, and a mark where some are left out."""
    known = {*_WORD.findall(text, 0, MAX_INDEXED_CHARS)}
    # From a little before the first part ends: it may end within a word.
    found = dict.fromkeys(_WORD.findall(text, MAX_INDEXED_CHARS - 200, MAX_READ_CHARS))
    words = " ".join(word for word in found if word not in known)
    is_whole = len(text) <= MAX_READ_CHARS and len(words) <= MAX_INDEXED_CHARS
    return f" {words[:MAX_INDEXED_CHARS]}{'' if is_whole else f' {IN_PART}'}"
