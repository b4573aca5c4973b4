"""Replaces a leaked secret by a tombstone everywhere in a session.

This is the only operation that changes recorded data. Requests that held the secret can no longer be verified by their
hash; the event of the scrub says why. Other sessions that hold the secret, including forks, are listed but not changed.

A client may write a character of a JSON text in several ways, and a message may hold JSON texts within its strings. So
the secret is searched for in each text as it stands and as JSON reads it, at most `MAX_TEXT_DEPTH` texts deep.

A database keeps the bytes of replaced rows for a while, so the store is purged at the end, also if the secret was not
found: a scrub that was interrupted, or that says what remains, is completed by running it again.
"""

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import cast

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record, to_record
from holdfast.core.history.history import History
from holdfast.errors import (
    MalformedInputError,
    MissingBlobError,
    SequenceConflictError,
    SettingsError,
    StoreUnavailableError,
)
from holdfast.session.heavy_work import release
from holdfast.session.log.index_text import index_text_of
from holdfast.session.log.records import RECORDS_PER_PAGE, blob_digest, extract_blob, inline_blob, lost_message_record
from holdfast.session.log.sent_body import TOMBSTONE, body_pieces, body_positions, is_whole_body, join_pieces
from holdfast.stores.base import IndexEntry, JsonRecord, Store, iter_sessions, session_info, session_value_key
from holdfast.stores.files import write_private_lines
from holdfast.text import lazy_pattern
from holdfast.wire.formats import format_named

MIN_SECRET_CHARS = 4
"""Shorter texts occur everywhere by chance."""
MAX_OTHER_APPENDS = 100
"""How often others may append while a secret is replaced. Each time only what they appended is scrubbed."""
MAX_TEXT_DEPTH = 3
"""A body is JSON, holds the arguments of a call as JSON in a string, and these may hold JSON in a string again."""
FOREIGN_FIELDS = frozenset({"native", "tools", "payload", "findings"})
"""Fields of events that hold JSON of others, in which a number may be the secret; all other numbers are our own."""
_ESCAPE = lazy_pattern(
    r"\\(?:u(?:([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|([0-9a-fA-F]{4}))|([\"\\/bfnrt]))"
)
"""An escape of JSON: a surrogate pair, any other character by its code, or a short escape."""
_SHORT_ESCAPES: Mapping[str, str] = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_EXPONENT_NUMBER = lazy_pattern(r"(?<![\d.])[0-9]++(?:\.[0-9]++)?[eE][+-]?[0-9]{1,3}(?![0-9])")


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """The result of a scrub."""

    count: int
    """How often the secret occurred."""
    positions: tuple[int, ...]
    """The records that were changed."""
    elsewhere: tuple[str, ...]
    """Other sessions that hold the secret."""
    remaining: tuple[str, ...] = ()
    """Where the store still holds what was replaced, and what to do about it."""


@dataclass(slots=True)
class _RecordCopy:
    """A record before and after the scrub."""

    stored: JsonRecord
    whole: JsonRecord
    """The record before, with its message."""
    record: JsonRecord
    """The record after."""
    count: int
    """How often it held the secret."""

    @property
    def is_changed(self) -> bool:
        """Whether it has to be written again."""
        return self.record is not self.whole


async def scrub(store: Store, session: str, secret: str, *, time_ms: int) -> ScrubResult:
    """Replace a secret in everything that a session has recorded; writes nothing if it is not found."""
    if len(secret.strip()) < MIN_SECRET_CHARS:
        raise SettingsError("text", f"give at least {MIN_SECRET_CHARS} characters of the secret")
    if secret in TOMBSTONE:
        raise SettingsError("text", f"is part of {TOMBSTONE}, which replaces secrets; pass more of the secret")
    scrubbed = _ScrubbedLog(store, session, secret)
    await scrubbed.replace(time_ms=time_ms)
    count, changed = scrubbed.count, tuple(scrubbed.changed)
    await asyncio.to_thread(scrubbed.release)
    in_title = await _scrub_noted_title(store, session, secret)
    info = await session_info(store, session)
    if info is not None and secret in info.name:
        await store.rename(session, info.name.replace(secret, TOMBSTONE))
        in_title = info.name.count(secret)
    count += in_title
    others = [info.id async for info in iter_sessions(store) if info.id != session]
    elsewhere = [one for one in others if await _holds(store, one, secret)]
    return ScrubResult(count, changed, tuple(elsewhere), await store.purge())


async def _scrub_noted_title(store: Store, session: str, secret: str) -> int:
    """Replace a secret in the title that an import has noted, and return how often it was there."""
    key = session_value_key(session, "import")
    noted = await store.get_value(key) or {}
    title, count = replace_secret(noted.get("title"), secret)
    if count:
        await store.put_value(key, {**noted, "title": title})
    return count


def is_scrubbed_copy(copy: object, original: object) -> bool:
    """Return whether a JSON value is equal to another, or is what scrubs have made of it."""
    if copy == original:
        return True
    if isinstance(copy, str):
        if copy == TOMBSTONE and isinstance(original, int | float):
            return True
        return TOMBSTONE in copy and isinstance(original, str) and _is_scrubbed_text(copy.split(TOMBSTONE), original)
    if isinstance(copy, list | tuple) and isinstance(original, list | tuple):
        copy, original = cast("Sequence[object]", copy), cast("Sequence[object]", original)
        return len(copy) == len(original) and all(map(is_scrubbed_copy, copy, original))
    if isinstance(copy, Mapping) and isinstance(original, Mapping):
        copy, original = cast("Mapping[str, object]", copy), cast("Mapping[str, object]", original)
        # A scrub replaces keys too, and keeps their order.
        if copy.keys() == original.keys():
            return all(is_scrubbed_copy(value, original[key]) for key, value in copy.items())
        return is_scrubbed_copy([*copy.items()], [*original.items()])
    return False


def _is_scrubbed_text(pieces: Sequence[str], text: str) -> bool:
    """Return whether a text has all pieces in their order, from its beginning to its end."""
    first, *between, last = pieces
    if not text.startswith(first):
        return False
    at = len(first)
    for piece in between:
        at = text.find(piece, at) + len(piece)
        if at < len(piece):
            return False
    return text.endswith(last) and len(text) - len(last) >= at


def _dropped_blobs(copies: Sequence[_RecordCopy], new: Sequence[str]) -> list[str]:
    """Return the blobs that only records with the secret refer to."""
    replaced, kept = ({blob_digest(copy.stored) for copy in copies if copy.is_changed is one} for one in (True, False))
    return sorted(digest for digest in replaced - kept if digest and digest not in new)


def scrub_files(paths: Iterable[Path], secret: str) -> list[Path]:
    """Replace a secret in text files, and return the files that held it."""
    changed = list[Path]()
    for path in paths:
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            continue
        except OSError as error:
            raise StoreUnavailableError(
                str(path), f"{error.strerror or error}; remove the secret from this file by hand"
            ) from error
        # A prompt history prefixes its lines with "+", so a secret of several lines has such prefixes inside.
        text, count = replace_secret_in_text(text, secret)
        if count + text.count(prefixed := secret.replace("\n", "\n+")):
            changed.append(path)
            write_private_lines(path, [text.replace(prefixed, TOMBSTONE)])
    return changed


def replace_secret(value: object, secret: str, *, is_foreign: bool = False) -> tuple[object, int]:
    """Return a JSON value without the secret, and the number of replacements; in JSON of others also in numbers."""
    if isinstance(value, str):
        return replace_secret_in_text(value, secret)
    if isinstance(value, list | tuple):
        pairs = [replace_secret(item, secret, is_foreign=is_foreign) for item in cast("Sequence[object]", value)]
        return [item for item, _ in pairs], sum(count for _, count in pairs)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (TOMBSTONE, 1) if is_foreign and secret in _decimal_digits(value) else (value, 0)
    if not isinstance(value, Mapping):
        return value, 0
    total, out = 0, dict[str, object]()
    # Field names of formats are plain words, so a secret that is a plain word is replaced in values only.
    has_keys = not re.fullmatch("[A-Za-z_]+", secret)
    for key, item in cast("Mapping[str, object]", value).items():
        new_key, in_key = replace_secret_in_text(key, secret) if has_keys else (key, 0)
        is_foreign_item = is_foreign or (key in FOREIGN_FIELDS and not isinstance(item, int))
        out[new_key], in_item = replace_secret(item, secret, is_foreign=is_foreign_item)
        total += in_key + in_item
    return out, total


def replace_secret_in_text(text: str, secret: str) -> tuple[str, int]:
    """Return a text without the secret, however JSON spells it, and the number of replacements."""
    pieces, count, at = list[str](), 0, 0
    for start, stop in sorted(_secret_spans(text, secret, MAX_TEXT_DEPTH)):
        if start >= at:  # else it was found in the text as it stands, and again as JSON reads it
            pieces += text[at:start], TOMBSTONE
            count += 1
        at = max(at, stop)
    return ("".join([*pieces, text[at:]]), count) if count else (text, 0)


def _secret_spans(text: str, secret: str, depth: int) -> list[tuple[int, int]]:
    """Return where a text holds the secret, as it stands or in any spelling of JSON."""
    spans = [match.span() for match in re.finditer(re.escape(secret), text)]
    if secret.isascii() and secret.isdecimal():
        numbers = _EXPONENT_NUMBER.finditer(text)
        spans += [number.span() for number in numbers if secret in _decimal_digits(Decimal(number[0]))]
    if depth and "\\" in text:
        plain, position_of = _unescaped(text)
        if plain != text:
            inner = _secret_spans(plain, secret, depth - 1)
            spans += [(position_of(start), position_of(stop)) for start, stop in inner]
    return spans


def _unescaped(text: str) -> tuple[str, Callable[[int], int]]:
    """Return a text with the escapes of JSON resolved, and a function from its positions to those of the text."""
    pieces, plain_ends, ends = list[str](), [0], [0]
    for match in _ESCAPE.finditer(text):
        literal = text[ends[-1] : match.start()]
        pieces += literal, _escaped_character(match)
        plain_ends.append(plain_ends[-1] + len(literal) + 1)
        ends.append(match.end())

    def position_of(plain_position: int) -> int:
        number = bisect_right(plain_ends, plain_position) - 1
        return ends[number] + plain_position - plain_ends[number]

    return "".join([*pieces, text[ends[-1] :]]), position_of


def _escaped_character(match: re.Match[str]) -> str:
    high, low, code, short = match.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    return chr(int(code, 16)) if code else _SHORT_ESCAPES.get(short, short)


def _decimal_digits(number: float | Decimal) -> str:
    """Return a number without an exponent."""
    return format(Decimal(str(number)), "f")


async def _holds(store: Store, session: str, secret: str) -> bool:
    """Return whether a session has recorded a secret."""
    start = 0
    while page := await _scrubbed_page(store, session, start, secret):
        if any(copy.count for copy in page):
            return True
        start += len(page)
    return False


async def _scrubbed_page(store: Store, session: str, start: int, secret: str) -> list[_RecordCopy]:
    """Return what a page of a log, from a record on, is without a secret."""
    page = await store.read(session, start=start, limit=RECORDS_PER_PAGE)
    whole = [await _whole_record(store, stored.record) for stored in page]

    def scrubbed() -> list[_RecordCopy]:
        return [_scrubbed_copy(stored.record, full, secret) for stored, full in zip(page, whole, strict=True)]

    return await asyncio.to_thread(scrubbed)


async def _whole_record(store: Store, record: JsonRecord) -> JsonRecord:
    try:
        return await inline_blob(store, record)
    except (MissingBlobError, MalformedInputError):
        return lost_message_record(record)  # lost content holds no secret


def _scrubbed_copy(stored: JsonRecord, whole: JsonRecord, secret: str) -> _RecordCopy:
    data, count = replace_secret(whole.get("data"), secret)
    return _RecordCopy(stored, whole, {**whole, "data": data} if count else whole, count)


class _ScrubbedLog:
    """The log of a session before and after the scrub; it is read on as long as others append to it."""

    def __init__(self, store: Store, session: str, secret: str) -> None:
        self._store, self._session, self._secret = store, session, secret
        self._copies: list[_RecordCopy] = []
        self._scrubbed = 0
        """How many of the records were scrubbed as a whole."""
        self._messages: list[Mapping[str, object]] = []
        self._scrubbed_messages: list[Mapping[str, object]] = []
        self._last_bodies: dict[str, tuple[bytes, bytes]] = {}
        """By scope, the last body before and after."""
        self._history = History(format_named)
        """What is replayed from the records after the scrub."""
        self._index: list[IndexEntry] = []
        self._blobs: list[str] = []
        self._records: dict[int, JsonRecord] = {}
        self.changed: list[int] = []
        """The records to write again."""

    @property
    def count(self) -> int:
        """How often the log holds the secret."""
        return sum(copy.count for copy in self._copies)

    async def replace(self, *, time_ms: int) -> None:
        """Replace the secret in the store, if the log holds it; raises if others never stop appending."""
        for attempt in range(1, MAX_OTHER_APPENDS + 1):
            while page := await _scrubbed_page(self._store, self._session, len(self._copies), self._secret):
                self._copies += page
            if not self.count:
                return
            await asyncio.to_thread(self._scrub_new)
            try:
                await self._rewrite(time_ms)
            except SequenceConflictError as error:
                if attempt == MAX_OTHER_APPENDS or error.actual < len(self._copies):  # or it was deleted
                    raise
            else:
                return

    def release(self) -> None:
        """Free what was read of the log; call it in a thread."""
        release(self._copies)
        release(self._messages, self._scrubbed_messages)
        self._history = History(format_named)

    async def _rewrite(self, time_ms: int) -> None:
        for at in self.changed[len(self._records) :]:
            self._records[at] = await extract_blob(self._store, self._copies[at].record, self._blobs)
        dropped = await asyncio.to_thread(_dropped_blobs, self._copies, self._blobs)
        await self._store.rewrite(
            self._session,
            self._records,
            tombstone=to_record(log.SessionScrubbed(positions=tuple(self.changed), count=self.count)),
            after=len(self._copies),
            time_ms=time_ms,
            index=self._index,
            blobs=self._blobs,
            dropped=dropped,
        )

    def _scrub_new(self) -> None:
        """Scrub what depends on several records, in those that are new; raises if a record would break."""
        for position, copy in enumerate(self._copies[self._scrubbed :], start=self._scrubbed):
            self._scrub_body(copy)
            message = self._replay(position, copy)
            if copy.is_changed:
                self.changed.append(position)
                if message is not None:
                    self._index.append(IndexEntry(position, index_text_of(message)))
        self._scrubbed = len(self._copies)

    def _scrub_body(self, copy: _RecordCopy) -> None:
        """Divide the bytes of a request anew: what an earlier body has lost has moved all that later ones refer to."""
        try:
            event, scrubbed = from_record(copy.whole), from_record(copy.record)
        except MalformedInputError:
            return
        if isinstance(event, log.MessageAppended) and isinstance(scrubbed, log.MessageAppended):
            self._messages.append(event.native)
            self._scrubbed_messages.append(scrubbed.native)
        if not isinstance(event, log.RequestPrepared) or event.body_hash is None:
            return
        is_whole = is_whole_body(event)
        before, scrubbed_before = (b"", b"") if is_whole else self._last_bodies.get(event.scope, (b"", b""))
        try:
            body = join_pieces(event.body, before, self._messages.__getitem__)
            scrubbed_text, _ = replace_secret_in_text(body.decode(errors="surrogatepass"), self._secret)
            scrubbed_body = scrubbed_text.encode(errors="surrogatepass")
            if before != scrubbed_before or body != scrubbed_body:
                positions = [*body_positions(event, len(self._messages))]
                _, pieces = body_pieces(scrubbed_before, scrubbed_body, positions, self._scrubbed_messages.__getitem__)
                data = cast("Mapping[str, object]", copy.record["data"])
                copy.record = {**copy.record, "data": {**data, "body": [*pieces]}}
        except (MalformedInputError, UnicodeDecodeError):
            self._last_bodies.pop(event.scope, None)  # nothing puts it together
            return
        self._last_bodies[event.scope] = body, scrubbed_body

    def _replay(self, position: int, copy: _RecordCopy) -> Message | None:
        """Append a record to the history, and return its message, if it has one."""
        before = len(self._history)
        try:
            self._history.append(from_record(copy.record))
        except MalformedInputError as error:
            if copy.count:
                problem = (
                    f"removing it would make record {position} unreadable ({error.where}); pass more of the secret"
                )
                raise SettingsError("text", problem) from error
        return self._history.entries[before].message if len(self._history) > before else None
