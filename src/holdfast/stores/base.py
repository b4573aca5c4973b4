"""The contract of a store; `holdfast.testing.store_contract` holds every store to it.

A store keeps one log for each session and never loses an acknowledged record.

*Names.* A session id is a non-empty text without NUL and without lone surrogates, so that every store can write it.
Every method raises a `SettingsError` for any other id.

*Appending.* A log only grows. `append` takes the length that the caller believes the log to have. If another writer
was faster, it raises `SequenceConflictError` and writes nothing. It writes all records of a call or none. When it
returns, they survive a killed process and a power cut (a memory store promises that only for its own lifetime).
Appending to an unknown session creates it. Appends may be made at the same time, and each has its own result: what is
wrong with one fails no other. A caller that is cancelled has appended everything or nothing.

*Reading.* `read` returns the records from a position on, in order and unchanged, with their times. An unknown session
has no records. `read_at` returns single records by their positions, in one call.

*Blobs.* Large content is stored once under its hash, however many sessions refer to it. It is durable when `put_blob`
returns, and may be deleted with the last session that refers to it. So an append that refers to a missing blob
raises `MissingBlobError` and writes nothing: no record refers to a missing blob.

*Searching.* Messages are found by their words, by other forms of those words, and by the parts of a name. A hit names
session and position. Rare words count more than common ones, short messages more than long ones, and the newest of
equal hits comes first. Only what a session puts into the index is found.

*Listing.* Sessions are listed by last change, newest first, in pages. A page starts after the end of the one before,
so that a session that changes meanwhile is not skipped for good.

*Values.* A small table of values outside the logs, such as the limits of a model. The key of a value about one session
ends with its id. `delete` removes it, because a later session of the same name is another conversation.

*Deleting.* Only `delete` removes a session, and always a whole one. Given the length that the caller believes the log
to have, it removes nothing if another writer has appended since. Blobs that other sessions refer to stay.

*Rewriting.* `rewrite` is the only exception to "a log only grows". It replaces records, to remove a secret, and appends
a record that says so. It does all of this or nothing. It also removes the index entries of those messages, the
snapshot, and blobs without references.

*Purging.* A database may keep the bytes of deleted and replaced rows for a while. `purge` overwrites them wherever the
store can reach them, and returns what remains and how to finish. It may be called again at any time.

*Snapshots.* A snapshot is stored only while the log has exactly the length that the snapshot describes. Otherwise
a writer with an outdated view could restore what another writer, above all a rewrite, has removed.
`read_from_snapshot` returns it with the records after it. If a rewrite comes between the two, they say so.

*Failing.* Every error of a driver arrives as a `StoreError` that says what to do; the log is unchanged.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from holdfast.core.conversation.json_values import is_utf8
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError, UnknownSessionError

JsonRecord: TypeAlias = Mapping[str, object]
"""A JSON object."""
MAX_SHOWN_CHARS = 60
LAST_CHARACTER = chr(0x10FFFF)
"""A prefix followed by it is after every text that begins with the prefix."""


def check_session_id(session: object) -> str:
    """Return a session id; raises a `SettingsError` for one that some store could not write."""
    if not isinstance(session, str) or not session:
        raise SettingsError("session", f"needs a name, not {session!r:.{MAX_SHOWN_CHARS}}")
    return check_storable_text("session", session)


def check_storable_text(setting: str, text: str) -> str:
    """Return a text; raises a `SettingsError` for one that some store could not write."""
    if "\0" in text or not (text.isascii() or is_utf8(text)):
        problem = "holds a NUL or half of a character, which not every store can write down; choose another"
        raise SettingsError(setting, f"{text!r:.{MAX_SHOWN_CHARS}} {problem}")
    return text


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record of a log."""

    position: int
    """Its index in the log, from 0."""
    time_ms: int
    """When it was appended, in milliseconds since 1970."""
    record: JsonRecord


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session in a list."""

    id: str
    name: str
    length: int
    """The number of records in its log."""
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The text of one message, for the search index."""

    position: int
    """The position of the message among the messages of its session."""
    text: str


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A message that a search found."""

    session: str
    position: int
    score: float
    """Larger is better; comparable within one search only."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cached state of a session after a number of records; it may be deleted at any time."""

    length: int
    data: bytes


class AppendTimes(NamedTuple):
    """The times of appended records, as stores need them."""

    each: Sequence[int]
    first: int
    latest: int

    @classmethod
    def of(cls, time_ms: int | Sequence[int], count: int) -> "AppendTimes":
        """Return the times of a number of records."""
        if isinstance(time_ms, int):
            return cls([time_ms] * count, time_ms, time_ms)
        each = time_ms
        if len(each) != count:
            raise SettingsError("time_ms", f"must be one time, or one for each of {count:,} records, not {len(each):,}")
        first = each[0] if each else 0
        return cls(each, first, max(each, default=first))


class Store(Protocol):
    """Keeps logs; the docstring of `holdfast.stores.base` says what each method promises."""

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
        """Append records to a log that has `after` records, and return its new length.

        `time_ms` is the time of all records, or one time for each. `index` holds the texts that a search finds, `blobs`
        the hashes of the blobs that the records refer to. A `name` becomes the display name of the session.
        """
        ...

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
        """Replace records by position, append the tombstone, and return the new length of the log.

        `index` replaces the index entries of those messages, `blobs` are the hashes that the new records refer to,
        and `dropped` the hashes that the log no longer refers to.
        """
        ...

    async def purge(self) -> tuple[str, ...]:
        """Overwrite what was deleted and replaced; return where such content remains, each with what to do about it."""
        ...

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        """Return the records of a log from a position on."""
        ...

    async def read_at(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        """Return the records at some positions, in log order; unknown positions are skipped."""
        ...

    async def length(self, session: str) -> int:
        """Return the number of records in a log; 0 for an unknown session."""
        ...

    async def put_blob(self, content: bytes) -> str:
        """Store content and return its hash, the SHA-256 in hexadecimal."""
        ...

    async def get_blob(self, digest: str) -> bytes:
        """Return content by its hash; raises `MissingBlobError`."""
        ...

    async def search(
        self, words: str, *, session: str | None = None, limit: int = 20, start: int = 0, stop: int | None = None
    ) -> list[SearchHit]:
        """Return the best hits first; within one session, only positions from `start` on and before `stop`."""
        ...

    async def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        """Return sessions whose id starts with `prefix`, newest change first, after (`updated_ms`, `id`)."""
        ...

    async def rename(self, session: str, name: str) -> None:
        """Set the display name of a session."""
        ...

    async def delete(self, session: str, *, length: int | None = None) -> bool:
        """Delete a session, with `length` only if its log has that many records; return whether it was deleted."""
        ...

    async def put_snapshot(self, session: str, snapshot: Snapshot) -> bool:
        """Replace the snapshot of a session, and return whether its log still had that length."""
        ...

    async def get_snapshot(self, session: str) -> Snapshot | None:
        """Return the snapshot of a session, if there is one."""
        ...

    async def read_from_snapshot(
        self, session: str, *, limit: int | None = None
    ) -> tuple[Snapshot | None, list[StoredRecord]]:
        """Return the snapshot of a session, if there is one, and the records after it: all that opening it reads.

        A store that cannot read both at once takes this method as it is.
        """
        snapshot = await self.get_snapshot(session)
        return snapshot, await self.read(session, start=snapshot.length if snapshot else 0, limit=limit)

    async def put_value(self, key: str, value: JsonRecord) -> None:
        """Store a value under a key, replacing an older one."""
        ...

    async def get_value(self, key: str) -> JsonRecord | None:
        """Return the value of a key."""
        ...

    async def values(self, prefix: str) -> dict[str, JsonRecord]:
        """Return the values whose keys start with `prefix`, by key."""
        ...

    async def delete_value(self, key: str) -> None:
        """Delete the value of a key, if there is one."""
        ...

    async def close(self) -> None:
        """Close files and connections."""
        ...


SessionValueKind: TypeAlias = Literal[
    "memory", "board", "retention", "consolidated", "client", "governing", "answer", "import", "copied"
]
_PLAIN_KINDS = ("memory", "board", "retention", "client", "governing", "import", "copied")
_QUALIFIED_KINDS = ("consolidated", "answer")
"""Kinds whose key also names something else, without a colon in it."""


def session_value_key(session: str, kind: SessionValueKind, qualifier: str = "") -> str:
    """Return the key of a value about a session; `qualifier` names what else it is about, without a colon."""
    return f"{kind}:{qualifier}:{session}" if qualifier else f"{kind}:{session}"


def plain_value_keys(session: str) -> list[str]:
    """Return the keys of all values about a session that have no qualifier."""
    return [f"{kind}:{session}" for kind in _PLAIN_KINDS]


def is_session_value_key(key: str, session: str) -> bool:
    """Return whether a key belongs to a value about this session."""
    kind, _, rest = key.partition(":")
    return (kind in _PLAIN_KINDS and rest == session) or (
        kind in _QUALIFIED_KINDS and rest.partition(":")[2] == session
    )


MAX_LISTED_IDS = 6
"""How many ids an error lists when a prefix is ambiguous."""


async def iter_sessions(
    store: Store, prefix: str = "", *, changed_before_ms: int | None = None
) -> AsyncIterator[SessionInfo]:
    """Yield every session whose id starts with `prefix`, newest change first."""
    before = None if changed_before_ms is None else (changed_before_ms, "")
    while page := await store.sessions(prefix=prefix, before=before):
        for info in page:
            yield info
        before = page[-1].updated_ms, page[-1].id


async def session_info(store: Store, session: str) -> SessionInfo | None:
    """Return what a list of sessions says about one of them; None if there is no such session."""
    for _ in range(2):  # one that changes while the pages are read may be on the first one, which was read already
        async for info in iter_sessions(store, session):
            if info.id == session:
                return info
    return None


async def resolve_session_id(store: Store, prefix: str) -> str:
    """Return the only session id that starts with `prefix`; a complete id matches itself."""
    if prefix and await store.length(prefix):
        return prefix
    infos = await store.sessions(prefix=prefix, limit=MAX_LISTED_IDS) if prefix else []
    if len(infos) != 1:
        raise UnknownSessionError(prefix, [info.id for info in infos])
    return infos[0].id


MS_PER_DAY = 86_400_000


async def expired_sessions(store: Store, *, days: int, now_ms: int) -> list[SessionInfo]:
    """Return the sessions that have not changed for a number of days."""
    limit = now_ms - days * MS_PER_DAY
    return [info async for info in iter_sessions(store, changed_before_ms=limit)]
