"""A store that lives as long as the program: for tests, and for those who want no file."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.errors import MissingBlobError, SequenceConflictError, UnknownSessionError
from holdfast.stores.base import Hit, Indexed, Record, SessionInfo, Snapshot, StoredRecord, session_named, written_down
from holdfast.stores.facts import is_about
from holdfast.stores.packing import digest_of, packed, read, unpacked, written
from holdfast.stores.terms import Term, rarity, terms_of
from holdfast.stores.words import words_of

NAME = "memory"


@dataclass(slots=True)
class _Log:
    info: SessionInfo
    records: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    words: dict[int, Counter[str]] = field(default_factory=dict[int, Counter[str]])
    blobs: set[str] = field(default_factory=set[str])
    snapshot: Snapshot | None = None


class MemoryStore:
    """Keeps everything in dictionaries."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}
        self._blobs: dict[str, bytes] = {}
        self._facts: dict[str, bytes] = {}

    async def append(
        self,
        session: str,
        records: Sequence[Record],
        *,
        after: int,
        time_ms: int,
        index: Sequence[Indexed] = (),
        blobs: Sequence[str] = (),
    ) -> int:
        """Append records to a log that has `after` records, and return how many it has now."""
        session_named(session)
        lines = [(time_ms, packed(written(record))) for record in records]
        log = self._logs.get(session)
        length = len(log.records) if log else 0
        if length != after:
            raise SequenceConflictError(session, expected=after, actual=length)
        for missing in (digest for digest in blobs if digest not in self._blobs):
            raise MissingBlobError(missing)
        if log is None:
            log = self._logs[session] = _Log(SessionInfo(session, "", 0, time_ms, time_ms))
        log.records += lines
        log.words |= {item.position: Counter(words_of(item.text)) for item in index}
        log.blobs.update(blobs)
        log.info = replace(log.info, length=len(log.records), updated_ms=max(log.info.updated_ms, time_ms))
        return len(log.records)

    async def rewrite(
        self,
        session: str,
        records: Mapping[int, Record],
        *,
        tombstone: Record,
        after: int,
        time_ms: int,
        index: Sequence[Indexed] = (),
        blobs: Sequence[str] = (),
        dropped: Sequence[str] = (),
    ) -> int:
        """Replace records by their positions, append the one that tells of it, and return the length of the log."""
        session_named(session)
        lines = {position: packed(written(record)) for position, record in records.items()}
        length = await self.append(session, [tombstone], after=after, time_ms=time_ms, index=index, blobs=blobs)
        log = self._logs[session]
        for position, line in lines.items():
            log.records[position] = log.records[position][0], line
        log.snapshot = None
        log.blobs.difference_update(dropped)
        self._forget_unused(dropped)
        return length

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        """Return the records of a log from a position on."""
        session_named(session)
        log = self._logs.get(session)
        lines = log.records[start : None if limit is None else start + limit] if log else []
        return [
            StoredRecord(position, time_ms, read(unpacked(line, NAME), NAME))
            for position, (time_ms, line) in enumerate(lines, start)
        ]

    async def pick(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        """Return the records at some positions, in the order of the log."""
        session_named(session)
        log = self._logs.get(session)
        there = sorted({position for position in positions if log and 0 <= position < len(log.records)})
        lines = [(position, *log.records[position]) for position in there] if log else []
        return [StoredRecord(position, time_ms, read(unpacked(line, NAME), NAME)) for position, time_ms, line in lines]

    async def length(self, session: str) -> int:
        """Return how many records a log has; 0 for a session that is not there."""
        session_named(session)
        log = self._logs.get(session)
        return len(log.records) if log else 0

    async def put_blob(self, content: bytes) -> str:
        """Keep some content and return its hash."""
        digest = digest_of(content)
        if digest not in self._blobs:
            self._blobs[digest] = packed(content)
        return digest

    async def get_blob(self, digest: str) -> bytes:
        """Return some content by its hash."""
        if digest not in self._blobs:
            raise MissingBlobError(digest)
        return unpacked(self._blobs[digest], NAME)

    async def search(
        self, words: str, *, session: str | None = None, limit: int = 20, start: int = 0, stop: int | None = None
    ) -> list[Hit]:
        """Return where words stand, the best first."""
        terms = terms_of(words)
        places = [
            (name, position, counts)
            for name, log in self._logs.items()
            if session in {None, name}
            for position, counts in log.words.items()
            if session is None or (start <= position and (stop is None or position < stop))
        ]
        holding = [[_times(term, counts) for term in terms] for *_, counts in places]
        weights = [rarity(sum(map(bool, column)), len(places)) for column in zip(*holding, strict=True)]
        hits = [
            Hit(name, position, _score(times, weights, counts.total()))
            for (name, position, counts), times in zip(places, holding, strict=True)
            if any(times)
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.session, -hit.position))[:limit]

    async def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        """Return sessions whose id begins with `prefix`, newest change first."""
        infos = [log.info for name, log in self._logs.items() if name.startswith(prefix)]
        later = [info for info in infos if before is None or (info.updated_ms, info.id) < before]
        return sorted(later, key=lambda info: (info.updated_ms, info.id), reverse=True)[:limit]

    async def rename(self, session: str, name: str) -> None:
        """Give a session a name for people."""
        session_named(session)
        written_down("name", name)
        log = self._known(session)
        log.info = replace(log.info, name=name)

    async def delete(self, session: str) -> bool:
        """Delete a session, and say whether there was one."""
        session_named(session)
        log = self._logs.pop(session, None)
        if log is None:
            return False
        self._forget_unused(log.blobs)
        self._facts = {key: value for key, value in self._facts.items() if not is_about(key, session)}
        return True

    async def put_snapshot(self, session: str, snapshot: Snapshot) -> bool:
        """Keep a shortcut in the place of an older one, and say whether the log still had that length."""
        session_named(session)
        log = self._logs.get(session)
        if log is None or len(log.records) != snapshot.length:
            return False
        log.snapshot = snapshot
        return True

    async def get_snapshot(self, session: str) -> Snapshot | None:
        """Return the shortcut of a session, if there is one."""
        session_named(session)
        log = self._logs.get(session)
        return log.snapshot if log else None

    async def put_fact(self, key: str, value: Record) -> None:
        """Keep a value under a key; an older one goes."""
        self._facts[key] = written(value)

    async def get_fact(self, key: str) -> Record | None:
        """Return the value of a key."""
        return read(self._facts[key], NAME) if key in self._facts else None

    async def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    def _forget_unused(self, digests: Iterable[str]) -> None:
        used = {digest for log in self._logs.values() for digest in log.blobs}
        for digest in set(digests) - used:
            self._blobs.pop(digest, None)

    def _known(self, session: str) -> _Log:
        if session not in self._logs:
            raise UnknownSessionError(session)
        return self._logs[session]


def _times(term: Term, counts: Counter[str]) -> int:
    """Return how often a message holds a term; words that stand together are taken to if all of them are there."""
    if not term.is_stem:
        return min(counts[word] for word in term.words)
    stem = term.words[0]
    return sum(count for word, count in counts.items() if word.startswith(stem))


def _score(times: Sequence[int], weights: Sequence[float], size: int) -> float:
    return sum(weight * count / (count + 0.5 + 0.01 * size) for weight, count in zip(weights, times, strict=True))
