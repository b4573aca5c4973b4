"""Replaces a leaked secret by a tombstone everywhere in a session.

This is the only operation that changes recorded data. Requests that held the secret can no longer be verified by their
hash; the event of the scrub says why. Other sessions that hold the secret, including forks, are listed but not changed.

A database keeps the bytes of replaced rows for a while, so the store is purged at the end, also if the secret was not
found: a scrub that was interrupted, or that says what remains, is completed by running it again.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record, to_record
from holdfast.core.history.history import History
from holdfast.errors import MalformedInputError, MissingBlobError, SettingsError, StoreUnavailableError
from holdfast.session.log.index_text import index_text_of
from holdfast.session.log.records import RECORDS_PER_PAGE, blob_digest, extract_blob, inline_blob, lost_message_record
from holdfast.session.log.sent_body import TOMBSTONE, body_pieces, body_positions, is_whole_body, join_pieces
from holdfast.stores.base import IndexEntry, JsonRecord, Store, iter_sessions
from holdfast.stores.files import write_private_lines
from holdfast.wire.formats import format_named

MIN_SECRET_CHARS = 4
"""Shorter texts occur everywhere by chance."""


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
    words = secret_spellings(secret)
    copies = await _scrubbed_copies(store, session, words)
    count = sum(copy.count for copy in copies)
    changed: list[int] = []
    if count:
        _scrub_bodies(copies, words)
        changed = [position for position, copy in enumerate(copies) if copy.is_changed]
        history, positions = _replayed(copies)
        messages = {positions[at]: history.entries[positions[at]].message for at in changed if at in positions}
        index = [IndexEntry(position, index_text_of(message)) for position, message in messages.items()]
        blobs: list[str] = []
        records = {at: await extract_blob(store, copies[at].record, blobs) for at in changed}
        still_used = {blob_digest(copy.stored) for copy in copies if not copy.is_changed} | set(blobs)
        dropped = {digest for at in changed if (digest := blob_digest(copies[at].stored))} - still_used
        await store.rewrite(
            session,
            records,
            tombstone=to_record(log.SessionScrubbed(positions=tuple(changed), count=count)),
            after=len(copies),
            time_ms=time_ms,
            index=index,
            blobs=blobs,
            dropped=sorted(dropped),
        )
    async for info in iter_sessions(store, session):
        if info.id == session and secret in info.name:
            await store.rename(session, info.name.replace(secret, TOMBSTONE))
            count += info.name.count(secret)
    others = [info.id async for info in iter_sessions(store) if info.id != session]
    elsewhere = [one for one in others if any(copy.count for copy in await _scrubbed_copies(store, one, words))]
    return ScrubResult(count, tuple(changed), tuple(elsewhere), await store.purge())


def scrub_files(paths: Iterable[Path], secret: str) -> list[Path]:
    """Replace a secret in text files, and return the files that held it."""
    words, changed = secret_spellings(secret), list[Path]()
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
        for word in (*words, secret.replace("\n", "\n+")):
            text, before = text.replace(word, TOMBSTONE), text
            if text != before and path not in changed:
                changed.append(path)
        if path in changed:
            write_private_lines(path, [text])
    return changed


def secret_spellings(secret: str) -> list[str]:
    """Return the spellings of a secret: plain, in JSON, and in JSON inside JSON."""
    found = {secret}
    for _ in range(2):
        found |= {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in found for ascii_only in (True, False)}
    return sorted(found, key=lambda text: (-len(text), text))


def replace_secret(value: object, words: Sequence[str]) -> tuple[object, int]:
    """Return a JSON value with every spelling replaced, and the number of replacements."""
    if isinstance(value, str):
        count = 0
        for word in words:
            count += value.count(word)
            value = value.replace(word, TOMBSTONE)
        return value, count
    if isinstance(value, list | tuple):
        pairs = [replace_secret(item, words) for item in cast("Sequence[object]", value)]
        return [item for item, _ in pairs], sum(count for _, count in pairs)
    if not isinstance(value, Mapping):
        return value, 0
    total, out = 0, dict[str, object]()
    # Field names of formats are plain words, so a secret that is a plain word is replaced in values only.
    keys = () if all(re.fullmatch("[A-Za-z_]+", word) for word in words) else words
    for key, item in cast("Mapping[str, object]", value).items():
        new_key, in_key = replace_secret(key, keys)
        out[str(new_key)], in_item = replace_secret(item, words)
        total += in_key + in_item
    return out, total


async def _scrubbed_copies(store: Store, session: str, words: Sequence[str]) -> list[_RecordCopy]:
    copies: list[_RecordCopy] = []
    while page := await store.read(session, start=len(copies), limit=RECORDS_PER_PAGE):
        for stored in page:
            try:
                whole = await inline_blob(store, stored.record)
            except (MissingBlobError, MalformedInputError):
                whole = lost_message_record(stored.record)  # lost content holds no secret
            data, count = replace_secret(whole.get("data"), words)
            copies.append(_RecordCopy(stored.record, whole, {**whole, "data": data} if count else whole, count))
    return copies


def _scrub_bodies(copies: Sequence[_RecordCopy], words: Sequence[str]) -> None:
    """Divide the bytes of requests anew: what an earlier body has lost has moved all that later ones refer to."""
    messages: list[Mapping[str, object]] = []
    scrubbed_messages: list[Mapping[str, object]] = []
    last: dict[str, tuple[bytes, bytes]] = {}
    """By scope, the last body before and after."""
    for copy in copies:
        try:
            event, scrubbed = from_record(copy.whole), from_record(copy.record)
        except MalformedInputError:
            continue
        if isinstance(event, log.MessageAppended) and isinstance(scrubbed, log.MessageAppended):
            messages.append(event.native)
            scrubbed_messages.append(scrubbed.native)
        if not isinstance(event, log.RequestPrepared) or event.body_hash is None:
            continue
        before, scrubbed_before = (b"", b"") if is_whole_body(event) else last.get(event.scope, (b"", b""))
        try:
            body = scrubbed_body = join_pieces(event.body, before, messages.__getitem__)
            for word in words:
                scrubbed_body = scrubbed_body.replace(word.encode(errors="surrogatepass"), TOMBSTONE.encode())
            if before != scrubbed_before or body != scrubbed_body:
                positions = [*body_positions(event, len(messages))]
                _, pieces = body_pieces(scrubbed_before, scrubbed_body, positions, scrubbed_messages.__getitem__)
                data = cast("Mapping[str, object]", copy.record["data"])
                copy.record = {**copy.record, "data": {**data, "body": [*pieces]}}
        except (MalformedInputError, UnicodeDecodeError):
            last.pop(event.scope, None)  # nothing puts it together
            continue
        last[event.scope] = body, scrubbed_body


def _replayed(copies: Sequence[_RecordCopy]) -> tuple[History, Mapping[int, int]]:
    """Return the history after the scrub, and the message position of each record; raises if a record would break."""
    history, positions = History(format_named), dict[int, int]()
    for position, copy in enumerate(copies):
        before = len(history)
        try:
            history.append(from_record(copy.record))
        except MalformedInputError as error:
            if copy.count:
                problem = (
                    f"removing it would make record {position} unreadable ({error.where}); pass more of the secret"
                )
                raise SettingsError("text", problem) from error
        if len(history) > before:
            positions[position] = before
    return history, positions
