"""A store in memory, for tests and for programs that want no file. `Store` documents each method."""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from holdfast.core.conversation.json_values import encode_json
from holdfast.dataclass import dataclass
from holdfast.errors import MissingBlobError, SequenceConflictError, UnknownSessionError
from holdfast.stores.base import (
    AppendTimes,
    IndexEntry,
    JsonRecord,
    SearchHit,
    SessionInfo,
    Snapshot,
    Store,
    StoredRecord,
    check_session_id,
    check_storable_text,
    is_session_value_key,
)
from holdfast.stores.encoding import decode_record
from holdfast.stores.search_terms import SearchTerm, index_body, rarity_weight, search_terms

LABEL = "memory"
"""Names this store in errors."""
ENCODED_AT_ONCE, HASHED_AT_ONCE = 200, 1_000_000
"""More records, and more bytes, are encoded and hashed in slices of a few milliseconds, so that the event loop goes on
between them."""


class _Words(NamedTuple):
    """The words of a text."""

    body: str
    """The words in order, each with a space before and after it."""
    counts: Counter[str]

    @classmethod
    def of(cls, text: str) -> "_Words":
        body = index_body(text)
        return cls(f" {body} ", Counter(body.split()))

    def term_count(self, term: SearchTerm) -> int:
        """Return how often the text holds a term; the words of a phrase follow one another."""
        first, *others = term.words
        if others:
            is_possible = all(word in self.counts for word in term.words)
            # The space between two phrases belongs to both.
            return len(re.findall(rf"(?= {' '.join(term.words)} )", self.body)) if is_possible else 0
        if not term.is_stem:
            return self.counts[first]
        return sum(count for held, count in self.counts.items() if held.startswith(first))


@dataclass(slots=True)
class _Log:
    session: str
    created_ms: int
    updated_ms: int
    name: str = ""
    records: list[bytes] = field(default_factory=list[bytes])
    """The JSON of each record: a caller that changes a value it passed or got changes nothing here."""
    times: list[int] = field(default_factory=list[int])
    """The time of each record."""
    texts: dict[int, str] = field(default_factory=dict[int, str])
    """The texts that a search finds, and has not counted yet."""
    words: dict[int, "_Words"] = field(default_factory=dict[int, "_Words"])
    blobs: set[str] = field(default_factory=set[str])
    snapshot: Snapshot | None = None

    @property
    def info(self) -> SessionInfo:
        return SessionInfo(self.session, self.name, len(self.records), self.created_ms, self.updated_ms)

    def count_words(self) -> None:
        """Count the words of the texts that were added since the last search."""
        self.words |= {position: _Words.of(text) for position, text in self.texts.items()}
        self.texts.clear()


class MemoryStore:
    """Keeps everything in dictionaries."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}
        self._blobs: dict[str, bytes] = {}
        self._values: dict[str, bytes] = {}

    async def append(
        self,
        session: str,
        records: Sequence[JsonRecord],
        *,
        after: int,
        time_ms: int | Sequence[int],
        index: Sequence[IndexEntry] = (),
        blobs: Sequence[str] = (),
    ) -> int:
        log, count = self._find_log(session), len(records)
        if isinstance(time_ms, int):
            each, first, latest = [time_ms] * count, time_ms, time_ms
        else:
            each, first, latest = AppendTimes.of(time_ms, count)
        lines = [*map(encode_json, records[:ENCODED_AT_ONCE])]
        for start in range(ENCODED_AT_ONCE, count, ENCODED_AT_ONCE):
            await asyncio.sleep(0)
            log = self._find_log(session)
            lines += map(encode_json, records[start : start + ENCODED_AT_ONCE])
        length = len(log.records) if log else 0
        if length != after:
            raise SequenceConflictError(session, expected=after, actual=length)
        for digest in blobs:
            if digest not in self._blobs:
                raise MissingBlobError(digest)
        if log is None:
            log = self._logs[session] = _Log(session, first, latest)
        log.records += lines
        log.times.extend(each)
        for item in index:
            log.texts[item.position] = item.text
        if blobs:
            log.blobs.update(blobs)
        log.updated_ms = max(log.updated_ms, latest)
        return length + count

    async def rewrite(
        self,
        session: str,
        records: Mapping[int, JsonRecord],
        *,
        tombstone: JsonRecord,
        after: int,
        time_ms: int,
        index: Sequence[IndexEntry] = (),
        blobs: Sequence[str] = (),
        dropped: Sequence[str] = (),
    ) -> int:
        check_session_id(session)
        lines = {position: encode_json(record) for position, record in records.items()}
        length = await self.append(session, [tombstone], after=after, time_ms=time_ms, index=index, blobs=blobs)
        log = self._logs[session]
        for position, line in lines.items():
            log.records[position] = line
        log.snapshot = None
        log.blobs.difference_update(dropped)
        self._delete_unused_blobs(dropped)
        return length

    async def purge(self) -> tuple[str, ...]:
        """Do nothing: what was replaced is not kept."""
        return ()

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        log = self._find_log(session)
        lines = log.records[start : None if limit is None else start + limit] if log else []
        times = log.times if log else []
        return [StoredRecord(at, times[at], decode_record(text, LABEL)) for at, text in enumerate(lines, start)]

    async def read_at(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        log = self._find_log(session)
        lines, times = (log.records, log.times) if log else ([], [])
        known = sorted({position for position in positions if 0 <= position < len(lines)})
        return [StoredRecord(at, times[at], decode_record(lines[at], LABEL)) for at in known]

    async def length(self, session: str) -> int:
        log = self._find_log(session)
        return len(log.records) if log else 0

    async def put_blob(self, content: bytes) -> str:
        hashed = hashlib.sha256()
        for start in range(0, len(content), HASHED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            hashed.update(memoryview(content)[start : start + HASHED_AT_ONCE])
        digest = hashed.hexdigest()
        self._blobs[digest] = content
        return digest

    async def get_blob(self, digest: str) -> bytes:
        if digest not in self._blobs:
            raise MissingBlobError(digest)
        return self._blobs[digest]

    async def search(
        self, words: str, *, session: str | None = None, limit: int = 20, start: int = 0, stop: int | None = None
    ) -> list[SearchHit]:
        terms = search_terms(words)
        for name, log in self._logs.items():
            if session in {None, name}:
                log.count_words()
        places = [
            (name, position, held)
            for name, log in self._logs.items()
            if session in {None, name}
            for position, held in log.words.items()
            if session is None or (start <= position and (stop is None or position < stop))
        ]
        holding = [[held.term_count(term) for term in terms] for *_, held in places]
        weights = [rarity_weight(sum(map(bool, column)), len(places)) for column in zip(*holding, strict=True)]
        hits = [
            SearchHit(name, position, _score(times, weights, held.counts.total()))
            for (name, position, held), times in zip(places, holding, strict=True)
            if any(times)
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.session, -hit.position))[:limit]

    async def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        infos = [log.info for name, log in self._logs.items() if name.startswith(prefix)]
        later = [info for info in infos if before is None or (info.updated_ms, info.id) < before]
        return sorted(later, key=lambda info: (info.updated_ms, info.id), reverse=True)[:limit]

    async def rename(self, session: str, name: str) -> None:
        log = self._find_log(session)
        check_storable_text("name", name)
        if log is None:
            raise UnknownSessionError(session)
        log.name = name

    async def delete(self, session: str, *, length: int | None = None) -> bool:
        log = self._find_log(session)
        if log is None or length not in {None, len(log.records)}:
            return False
        del self._logs[session]
        self._delete_unused_blobs(log.blobs)
        self._values = {key: value for key, value in self._values.items() if not is_session_value_key(key, session)}
        return True

    async def put_snapshot(self, session: str, snapshot: Snapshot) -> bool:
        log = self._find_log(session)
        if log is None or len(log.records) != snapshot.length:
            return False
        log.snapshot = snapshot
        return True

    async def get_snapshot(self, session: str) -> Snapshot | None:
        log = self._find_log(session)
        return log.snapshot if log else None

    read_from_snapshot = Store.read_from_snapshot

    async def put_value(self, key: str, value: JsonRecord) -> None:
        self._values[key] = encode_json(value)

    async def get_value(self, key: str) -> JsonRecord | None:
        return decode_record(self._values[key], LABEL) if key in self._values else None

    async def values(self, prefix: str) -> dict[str, JsonRecord]:
        return {key: decode_record(value, LABEL) for key, value in self._values.items() if key.startswith(prefix)}

    async def close(self) -> None:
        """Do nothing: the store holds nothing open."""

    def _find_log(self, session: str) -> _Log | None:
        """Return the log of a session, if there is one; the id of a session that has one was checked before."""
        return self._logs.get(session) or self._logs.get(check_session_id(session))

    def _delete_unused_blobs(self, digests: Iterable[str]) -> None:
        used = {digest for log in self._logs.values() for digest in log.blobs}
        for digest in set(digests) - used:
            self._blobs.pop(digest, None)


def _score(times: Sequence[int], weights: Sequence[float], size: int) -> float:
    return sum(weight * count / (count + 0.5 + 0.01 * size) for weight, count in zip(weights, times, strict=True))
