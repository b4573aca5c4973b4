"""An append as a value, so that a store can write the appends of many sessions at once.

Each append of a batch has its own result. What cannot be written with the batch is written alone, so an append fails
only for a reason of its own.
"""

from collections.abc import Sequence

from holdfast.dataclass import dataclass
from holdfast.stores.base import AppendTimes, IndexEntry, JsonRecord, check_session_id, check_storable_text
from holdfast.stores.encoding import pack_record

MAX_BATCH = 256
"""How many appends one transaction or statement writes at most."""
MAX_BATCHED_RECORDS, MAX_BATCHED_CHARS = 8, 100_000
"""An append with more records or more text is written alone, so that small ones do not wait for it."""
MAX_BATCHED_TIME_MS = 1 << 60
"""A time that a database may not be able to store is its append's own problem."""


@dataclass(slots=True)
class Append:
    """One call of `Store.append`."""

    session: str
    records: Sequence[JsonRecord]
    after: int
    times: AppendTimes
    index: Sequence[IndexEntry]
    blobs: Sequence[str]
    name: str = ""
    _lines: Sequence[bytes] = ()

    @classmethod
    def of(
        cls,
        session: str,
        records: Sequence[JsonRecord],
        *,
        after: int,
        time_ms: int | Sequence[int],
        index: Sequence[IndexEntry] = (),
        blobs: Sequence[str] = (),
        name: str = "",
    ) -> "Append":
        """Return the append that these parameters of `Store.append` ask for."""
        check_session_id(session)
        if name:
            check_storable_text("name", name)
        return cls(session, records, after, AppendTimes.of(time_ms, len(records)), index, blobs, name)

    @property
    def length(self) -> int:
        """The length of the log once this is written."""
        return self.after + len(self.records)

    @property
    def is_batchable(self) -> bool:
        """Whether it may share a batch: it is small, names no session, and refers to no blob that might be missing."""
        return (
            not self.blobs
            and not self.name
            and len(self.records) <= MAX_BATCHED_RECORDS
            and max(map(abs, self.times.each), default=0) < MAX_BATCHED_TIME_MS
            and sum([len(entry.text) for entry in self.index]) <= MAX_BATCHED_CHARS
        )

    def lines(self) -> Sequence[bytes]:
        """Return the records as the bytes that are stored."""
        if not self._lines:
            self._lines = [*map(pack_record, self.records)]
        return self._lines
