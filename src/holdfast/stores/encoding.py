"""How records and blobs become bytes: JSON in UTF-8, compressed where that saves space.

Every store writes these bytes, so a record can be moved from one store to another unchanged.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable
from typing import cast

from holdfast.core.conversation.json_values import encode_json
from holdfast.errors import DamagedStoreError
from holdfast.stores.base import JsonRecord, StoredRecord

MIN_COMPRESSED_BYTES = 64
"""Smaller content does not gain from compression."""
UNCOMPRESSED, DEFLATED, DEFLATED_WITH_DICTIONARY = b"\x00", b"\x01", b"\x02"
COMPRESSION_DICTIONARY = (
    b'{"type":"session.truncation","schema":1,"data":{"tokenLimit":128000,"preTruncationTokens":0,"performedBy":'
    b'"BasicTruncator"}}{"type":"session.compaction_complete","schema":1,"data":{"success":true,"trigger":"threshold",'
    b'"start":0,"stop":0,"kept":[],"replacement":["[Summary of earlier messages","summaryContent":"","isMerged":false,'
    b'"tokensRemoved":0,"messagesRemoved":0,"endsRun":false,"scope":"main"}}{"type":"message.appended","schema":1,"data":'
    b'{"format":"anthropic-messages","native":{"role":"user","content":[{"type":"text","text":"{"type":"message.appended",'
    b'"schema":1,"data":{"format":"openai-chat","native":{"role":"tool","tool_call_id":"call_","content":"{"type":'
    b'"message.appended","schema":1,"data":{"format":"openai-chat","native":{"role":"assistant","content":null,'
    b'"tool_calls":[{"id":"call_","type":"function","function":{"name":"","arguments":"{\\"path\\":\\""}}]},"scope":"main",'
    b'"usage":{"inputTokens":0,"outputTokens":0,"cacheReadTokens":0,"cacheWriteTokens":0}}}{"type":"message.appended",'
    b'"schema":1,"data":{"format":"openai-chat","native":{"role":"user","content":""},"scope":"main"}}{"type":'
    b'"session.usage_info","schema":1,"data":{"tokenLimit":16000,"currentTokens":0,"messagesLength":0,"tokens":'
    b'{"systemTokens":0,"conversationTokens":0,"toolDefinitionsTokens":0},"isInitial":false,"provenance":"counted"}}'
    b'{"type":"request.prepared","schema":1,"data":{"view":[{"from":0,"to":0}],"payloadHash":"","policy":"default:",'
    b'"engine":"0.1.0","situation":{"budget":16000,"source":"user","counter":"o200k_base","factor":1.0,"systemTokens":0,'
    b'"toolsTokens":0,"tokens":0},"scope":"main"}}'
)
"""The text that most records share, so that small ones compress well. Never change it: stored records need it."""
COMPRESSION_LEVEL = 3
"""Twice as fast as the default 6, and a few percent larger."""
MAX_SMALL_BYTES = 4_096
"""Up to this size a window of 8 KB compresses as well as one of 32 KB, which takes longer to set up than to fill."""
DIGIT_MARKS = bytes(ord("d") if byte in b"0123456789" else ord(" ") for byte in range(256))
"""Translates JSON into a text that shows only where its digits are."""
MANY_DIGITS = b"d" * 19
"""An integer with fewer digits has at most 64 bits."""
_SMALL_DEFLATE = zlib.compressobj(COMPRESSION_LEVEL, wbits=13, memLevel=5, zdict=COMPRESSION_DICTIONARY)
"""Has read the dictionary, and is copied for each piece of content."""
_INFLATE = zlib.decompressobj(zdict=COMPRESSION_DICTIONARY)
"""Is copied for each piece of content, in half the time that a new one takes."""


def compress(content: bytes) -> bytes:
    """Return content as it is stored: one byte for the encoding, then the bytes."""
    if len(content) >= MIN_COMPRESSED_BYTES:
        is_small = len(content) <= MAX_SMALL_BYTES
        deflate = (
            _SMALL_DEFLATE.copy() if is_small else zlib.compressobj(COMPRESSION_LEVEL, zdict=COMPRESSION_DICTIONARY)
        )
        smaller = deflate.compress(content) + deflate.flush()
        if len(smaller) < len(content):
            return DEFLATED_WITH_DICTIONARY + smaller
    return UNCOMPRESSED + content


def decompress(data: bytes, store: str) -> bytes:
    """Return content from its stored form."""
    try:
        encoding, content = data[:1], data[1:]
        if encoding == UNCOMPRESSED:
            return bytes(content)
    except TypeError as error:  # SQLite keeps the type with the value, so damage changes it too
        raise DamagedStoreError(store, f"a piece is no bytes: {error}") from error
    if encoding not in {DEFLATED, DEFLATED_WITH_DICTIONARY}:
        raise DamagedStoreError(store, f"a piece is kept in an unknown way, {encoding!r}")
    try:
        if encoding == DEFLATED:
            return zlib.decompress(content)
        inflate = _INFLATE.copy()
        whole = inflate.decompress(content)
    except zlib.error as error:
        raise DamagedStoreError(store, f"a piece cannot be decompressed: {error}") from error
    if not inflate.eof:
        raise DamagedStoreError(store, "a piece is cut off")
    return whole


def decode_json(content: bytes) -> object:
    """Return a JSON value as Python's own decoder does, mostly in half the time; raises `ValueError`."""
    # orjson reads an integer of more than 64 bits as a float, and nothing that Python reads beyond JSON.
    if content.translate(DIGIT_MARKS).find(MANY_DIGITS) < 0:  # for bytes, `in` raises and catches an error first
        import orjson  # noqa: PLC0415 - not needed to import the package

        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            pass
    return json.loads(content)


def decode_record(content: bytes, store: str) -> JsonRecord:
    """Return the record that some JSON holds."""
    try:
        return cast("JsonRecord", decode_json(content))
    except (ValueError, TypeError, AttributeError) as error:  # as above
        raise DamagedStoreError(store, f"a record is not JSON: {error}") from error


def pack_record(record: JsonRecord) -> bytes:
    """Return a record as compressed JSON."""
    return compress(encode_json(record))


def unpack_records(rows: Iterable[tuple[int, int, bytes]], store: str) -> list[StoredRecord]:
    """Return records from their positions, times and packed bytes."""
    return [
        StoredRecord(position, time_ms, decode_record(decompress(data, store), store))
        for position, time_ms, data in rows
    ]


def sha256_hex(content: bytes) -> str:
    """Return the SHA-256 of some content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
