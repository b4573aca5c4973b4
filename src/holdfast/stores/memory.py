"""A store in memory, for tests and for programs that want no file. `Store` documents each method."""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

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
INDEXED_AT_ONCE = 10_000
"""How many characters are added to the index of words in one slice."""


class _WordIndex:
    """Which messages of one session hold a word, and how often."""

    def __init__(self) -> None:
        self.pending: dict[int, str] = {}
        """Texts that are not in the index yet: the next search adds them."""
        self.bodies: dict[int, str] = {}
        """The words of each text in order, each with a space before and after it."""
        self._sizes: dict[int, int] = {}
        """How many words each text has."""
        self._counts: dict[str, dict[int, int]] = {}
        """How often each word is in the texts that hold it."""

    async def add_pending(self) -> None:
        """Add the texts that wait, in slices, so that the event loop goes on between them."""
        chars = 0
        while self.pending:
            position, text = next(iter(self.pending.items()))
            is_long = len(text) > INDEXED_AT_ONCE
            words = await asyncio.to_thread(_words_of, text) if is_long else _words_of(text)
            if self.pending.get(position) is text:  # no other search has added it, and no rewrite has replaced it
                self._add(position, *words)
                del self.pending[position]
            chars += len(text)
            if chars > INDEXED_AT_ONCE:
                chars = 0
                await asyncio.sleep(0)

    def drop(self, position: int) -> None:
        """Keep no word of a text that another one replaces: it may have been scrubbed."""
        for word in {*self.bodies.pop(position).split()}:
            del self._counts[word][position]
            if not self._counts[word]:
                del self._counts[word]
        del self._sizes[position]

    def _add(self, position: int, body: str, counts: Counter[str]) -> None:
        for word, count in counts.items():
            self._counts.setdefault(word, {})[position] = count
        self.bodies[position], self._sizes[position] = f" {body} ", counts.total()

    def sizes(self, start: int, stop: int | None) -> Mapping[int, int]:
        """Return the number of words of each text in a range."""
        if not start and stop is None:
            return self._sizes
        return {at: size for at, size in self._sizes.items() if start <= at and (stop is None or at < stop)}

    def counts(self, term: SearchTerm) -> Mapping[int, int]:
        """Return how often the texts that hold a term do so; the words of a phrase follow one another."""
        first, *others = term.words
        if others:
            holding = [self._counts.get(word, {}).keys() for word in others]
            # The space between two phrases belongs to both.
            phrase = re.compile(rf"(?= {' '.join(term.words)} )")
            return {
                at: len(phrase.findall(self.bodies[at]))
                for at in set(self._counts.get(first, {})).intersection(*holding)
            }
        if not term.is_stem:
            return self._counts.get(first, {})
        total = Counter[int]()
        for word in [word for word in self._counts if word.startswith(first)]:
            total.update(self._counts[word])
        return total


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
    words: _WordIndex = field(default_factory=_WordIndex)
    blobs: set[str] = field(default_factory=set[str])
    snapshot: Snapshot | None = None

    @property
    def info(self) -> SessionInfo:
        return SessionInfo(self.session, self.name, len(self.records), self.created_ms, self.updated_ms)


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
        name: str = "",
    ) -> int:
        log, count = self._find_log(session), len(records)
        if name:
            check_storable_text("name", name)
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
        if blobs:
            self._check_blobs(blobs)
        if log is None:
            log = self._logs[session] = _Log(session, first, latest)
        log.records += lines
        log.times.extend(each)
        for item in index:
            if item.position in log.words.bodies:
                log.words.drop(item.position)
            log.words.pending[item.position] = item.text
        if blobs:
            log.blobs.update(blobs)
        log.updated_ms = max(log.updated_ms, latest)
        log.name = name or log.name
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
        logs = [(name, log.words) for name, log in self._logs.items() if session in {None, name}]
        span = (0, None) if session is None else (start, stop)
        found: list[tuple[str, Mapping[int, int], list[Mapping[int, int]]]] = []
        for name, held in logs:
            await held.add_pending()
            sizes = held.sizes(*span)
            found.append((name, sizes, [_within(held.counts(term), sizes) for term in terms]))
        total = sum(len(sizes) for _, sizes, _ in found)
        weights = [
            rarity_weight(sum(len(counts[number]) for *_, counts in found), total) for number in range(len(terms))
        ]
        hits = [
            SearchHit(name, at, _score([each.get(at, 0) for each in counts], weights, sizes[at]))
            for name, sizes, counts in found
            for at in set[int]().union(*counts)
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

    async def delete_value(self, key: str) -> None:
        self._values.pop(key, None)

    async def close(self) -> None:
        """Do nothing: the store holds nothing open."""

    def _find_log(self, session: str) -> _Log | None:
        """Return the log of a session, if there is one; the id of a session that has one was checked before."""
        return self._logs.get(session) or self._logs.get(check_session_id(session))

    def _check_blobs(self, digests: Iterable[str]) -> None:
        """Raise if one of some blobs is not there."""
        for digest in digests:
            if digest not in self._blobs:
                raise MissingBlobError(digest)

    def _delete_unused_blobs(self, digests: Iterable[str]) -> None:
        used = {digest for log in self._logs.values() for digest in log.blobs}
        for digest in set(digests) - used:
            self._blobs.pop(digest, None)


def _words_of(text: str) -> tuple[str, Counter[str]]:
    """Return the words of a text in order, and how often it has each."""
    body = index_body(text)
    return body, Counter(body.split())


def _within(counts: Mapping[int, int], sizes: Mapping[int, int]) -> Mapping[int, int]:
    """Return those counts that are not zero, of the texts whose sizes are given."""
    return {at: count for at, count in counts.items() if count and at in sizes}


def _score(times: Sequence[int], weights: Sequence[float], size: int) -> float:
    return sum(weight * count / (count + 0.5 + 0.01 * size) for weight, count in zip(weights, times, strict=True))
