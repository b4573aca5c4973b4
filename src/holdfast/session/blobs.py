"""Large messages are kept apart from their records, once, whoever repeats them; what is gone leaves a notice."""

import json
from collections.abc import Mapping
from typing import cast

from holdfast.core.conversation.messages import user
from holdfast.core.history import events as log
from holdfast.core.history.records import RECORD_SCHEMA, from_record, to_record
from holdfast.errors import MalformedInputError
from holdfast.stores.base import JsonRecord, Store
from holdfast.wire.formats import FORMATS, format_named

MIN_BLOB_BYTES = 16_384
"""A message larger than this is kept apart."""
LOST_MESSAGE_TEXT = "[this message could not be read]"
"""What stands in the place of a message whose content is gone."""


async def extract_blob(store: Store, record: JsonRecord, blobs: list[str]) -> JsonRecord:
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


async def inline_blob(store: Store, record: JsonRecord) -> JsonRecord:
    """Return a record with the message inside that is kept apart."""
    digest = blob_digest(record)
    if digest is None:
        return record
    content = await store.get_blob(digest)
    try:
        native = json.loads(content)
    except ValueError as error:
        raise MalformedInputError("blob", f"{digest} is not JSON: {error}") from error
    values = cast("dict[str, object]", record["data"])
    return {**record, "data": {**{key: value for key, value in values.items() if key != "blob"}, "native": native}}


def blob_digest(record: JsonRecord) -> str | None:
    """Return the hash of the message that a record keeps apart."""
    data = record.get("data")
    if record.get("type") != log.MessageAppended.KIND or not isinstance(data, dict) or "blob" not in data:
        return None
    return str(cast("dict[str, object]", data)["blob"])


def message_in_record(record: JsonRecord) -> tuple[str, Mapping[str, object]]:
    """Return the format and the message of a record that tells of one."""
    event = from_record(record) if record.get("schema") != RECORD_SCHEMA else None
    data = event or record.get("data")
    if isinstance(event, log.MessageAppended):
        return event.format, event.native
    if record.get("type") == log.MessageAppended.KIND and isinstance(data, Mapping):
        values = cast("Mapping[str, object]", data)
        spoken, native = values.get("format"), values.get("native")
        if isinstance(spoken, str) and isinstance(native, Mapping):
            return spoken, cast("Mapping[str, object]", native)
    raise MalformedInputError("record", "tells of no message")


def lost_message_record(record: JsonRecord) -> JsonRecord:
    """Return what stands in the place of a message that could not be read: reference, and nobody's word."""
    data = record.get("data")
    values = cast("Mapping[str, object]", data if isinstance(data, Mapping) else {})
    spoken = str(values.get("format"))
    wire = spoken if spoken in FORMATS else "openai-chat"
    native = format_named(wire).encode(user(LOST_MESSAGE_TEXT, trust="memory"))
    scope = values.get("scope")
    spoken_in = scope if isinstance(scope, str) else log.MAIN
    return to_record(log.MessageAppended(format=wire, native=native, scope=spoken_in, trust="memory"))


def is_message_record(record: JsonRecord) -> bool:
    """Return whether a record tells of a message in a way that this program knows."""
    schema = record.get("schema", RECORD_SCHEMA)
    return record.get("type") == log.MessageAppended.KIND and isinstance(schema, int) and schema <= RECORD_SCHEMA
