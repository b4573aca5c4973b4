"""A session's log in its store: events become records, and large messages become blobs beside them."""

import json
from collections.abc import Iterable, Sequence
from typing import cast

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.identifiers import argument_text
from holdfast.core.history.records import from_record, to_record
from holdfast.errors import MalformedInputError
from holdfast.stores.base import Indexed, Record, Store

MIN_BLOB_BYTES = 16_384
"""A message larger than this is kept apart, once, whoever repeats it."""
MAX_INDEXED_CHARS = 200_000
PAGE = 2_000
"""How many records are read at a time."""


class Log:
    """The log of one session."""

    def __init__(self, store: Store, session: str) -> None:
        self.store = store
        self.session = session
        self.length = 0
        """How many records have been read or written."""

    async def append(self, events: Sequence[log.Event], time_ms: int, index: Sequence[Indexed] = ()) -> None:
        """Write events; raises `SequenceConflictError` if another writer was faster, and then wrote nothing."""
        blobs: list[str] = []
        records = [await self._packed(event, blobs) for event in events]
        self.length = await self.store.append(
            self.session, records, after=self.length, time_ms=time_ms, index=index, blobs=blobs
        )

    async def news(self) -> list[tuple[int, log.Event]]:
        """Return what was written since, by whomever, with the times."""
        found: list[tuple[int, log.Event]] = []
        while True:
            page = await self.store.read(self.session, start=self.length, limit=PAGE)
            found += [(stored.time_ms, from_record(await self._unpacked(stored.record))) for stored in page]
            self.length += len(page)
            if len(page) < PAGE:
                return found

    async def _packed(self, event: log.Event, blobs: list[str]) -> Record:
        record = to_record(event)
        if not isinstance(event, log.MessageAppended):
            return record
        content = json.dumps(event.native, ensure_ascii=True).encode()
        if len(content) < MIN_BLOB_BYTES:
            return record
        digest = await self.store.put_blob(content)
        blobs.append(digest)
        data = {key: value for key, value in cast("dict[str, object]", record["data"]).items() if key != "native"}
        return {**record, "data": {**data, "blob": digest}}

    async def _unpacked(self, record: Record) -> Record:
        data = record.get("data")
        if not isinstance(data, dict) or "blob" not in data:
            return record
        values = cast("dict[str, object]", data)
        content = await self.store.get_blob(str(values["blob"]))
        try:
            native = json.loads(content)
        except ValueError as error:
            raise MalformedInputError("blob", f"{values['blob']} is not JSON: {error}") from error
        return {**record, "data": {**{key: value for key, value in values.items() if key != "blob"}, "native": native}}


def indexed(messages: Iterable[tuple[int, Message]]) -> list[Indexed]:
    """Return what is to be found of messages: their words, and those of calls and results."""
    return [Indexed(position, text) for position, message in messages if (text := _words(message))]


def _words(message: Message) -> str:
    pieces = [message.text, *(result.text for result in message.results)]
    pieces += [f"{call.name} {argument_text(call.arguments)}" for call in message.calls]
    return "\n".join(piece for piece in pieces if piece)[:MAX_INDEXED_CHARS]


def events_before(events: Sequence[log.Event], stop: int) -> list[log.Event]:
    """Return what happened before the message at a position was said."""
    said, past = 0, list[log.Event]()
    for event in events:
        if isinstance(event, log.MessageAppended):
            if said == stop:
                break
            said += 1
        past.append(event)
    return past
