"""What a store promises, in words; `holdfast.testing.store_contract` holds every store to it.

A store keeps logs, one a session, and nothing that was acknowledged is ever lost.

*Names.* A session's id is a text that every store can write down: not empty, without NUL and without half of a
character. Another one is refused by name, whatever is asked about it.

*Appending.* A log only grows. `append` takes the length the caller believes the log to have; if another writer
was faster it raises `SequenceConflictError`, and nothing was written. All records of one call are written, or
none. When it returns, they survive a killed process and a pulled plug (a memory store promises that only for
as long as it lives). Appending to a session that is not there creates it.

*Reading.* `read` gives the records from a position on, in order, exactly as they were given, and their times.
A session that is not there has no records. `pick` gives single records by their positions, in one go.

*Blobs.* Large pieces are kept apart under the hash of their content, once, whoever refers to them. A blob is
durable when `put_blob` returns. It may go with the last session that refers to it, so an append that refers to one
that is not there raises `MissingBlobError`, and nothing was written: a record never does.

*Searching.* What was said can be found by its words, in other forms of them too, and by the parts of a name; a hit
names session and position. Rare words count for more than common ones, long messages for less than short ones, and
of what is as good the newest comes first. What a session does not want found, it does not index.

*Listing.* Sessions are listed newest change first, in pages; a page begins behind the last one's end, so a
session that changes meanwhile is not skipped for good.

*Facts.* A small table of values that belong to no session, such as what a model's limits turned out to be.

*Deleting.* Only whole sessions go, and only by `delete`, with the facts about them (`holdfast.stores.base`). Blobs
that others refer to stay.

*Rewriting.* The only exception to "a log only grows": `rewrite` puts records in the place of others, for a secret
that must not stand anywhere. It appends a record that tells of it, and is done as a whole or not at all. What the
index held of those messages, the snapshot, and content that nobody refers to any more go with it.

*Snapshots.* A shortcut is taken only while the log has exactly the length it speaks of: whoever was overtaken, by
a scrub above all, must not bring back what is gone.

*Failing.* Whatever a driver raises arrives as a `StoreError` that says what to do; the log is as it was.

Facts about a session: what is known of it besides its log, such as how far somebody has read it.

They stand among all other facts, under keys that name the session at their end, and go when it is deleted: another
conversation may have the same name, and would be taken for the one that was read.

All sessions of a store, a page at a time.

Which sessions are old enough to go, and their going; off unless a policy or a person says otherwise.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from holdfast.core.conversation.json_values import is_utf8
from holdfast.errors import SettingsError, UnknownSessionError

JsonRecord: TypeAlias = Mapping[str, object]
"""A JSON object."""
MAX_SHOWN_CHARS = 60


def check_session_id(session: object) -> str:
    """Return the id of a session; one that not every store could write down is refused."""
    if not isinstance(session, str) or not session:
        raise SettingsError("session", f"needs a name, not {session!r:.{MAX_SHOWN_CHARS}}")
    return check_storable_text("session", session)


def check_storable_text(setting: str, text: str) -> str:
    """Return a text that every store can write down."""
    if "\0" in text or not is_utf8(text):
        problem = "holds a NUL or half of a character, which not every store can write down; choose another"
        raise SettingsError(setting, f"{text!r:.{MAX_SHOWN_CHARS}} {problem}")
    return text


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it stands in a log."""

    position: int
    """Its place in the log, counted from 0."""
    time_ms: int
    """When it was appended, in milliseconds since 1970."""
    record: JsonRecord


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a list of sessions shows."""

    id: str
    name: str
    length: int
    """How many records its log has."""
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What is to be found: the words of one message."""

    position: int
    """The position of the message among those of its session."""
    text: str


@dataclass(frozen=True, slots=True)
class SearchHit:
    """Where words were found."""

    session: str
    position: int
    score: float
    """Larger is better; comparable within one answer."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A shortcut to how a log stands at a length: a cache, to be thrown away at any time."""

    length: int
    data: bytes


class Store(Protocol):
    """Keeps logs; what each method promises stands above."""

    async def append(
        self,
        session: str,
        records: Sequence[JsonRecord],
        *,
        after: int,
        time_ms: int,
        index: Sequence[IndexEntry] = (),
        blobs: Sequence[str] = (),
    ) -> int:
        """Append records to a log that has `after` records, and return how many it has now.

        `index` is what is to be found of them, `blobs` are the hashes of the content they refer to.
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
        """Replace records by their positions, append the one that tells of it, and return the length of the log.

        `index` takes the place of what could be found of those messages, `blobs` are the hashes that the new
        records refer to, and `dropped` those that the log does not refer to any more.
        """
        ...

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        """Return the records of a log from a position on."""
        ...

    async def read_at(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        """Return the records at some positions, in the order of the log; those that are not there are left out."""
        ...

    async def length(self, session: str) -> int:
        """Return how many records a log has; 0 for a session that is not there."""
        ...

    async def put_blob(self, content: bytes) -> str:
        """Keep some content and return its hash, the SHA-256 in hexadecimal."""
        ...

    async def get_blob(self, digest: str) -> bytes:
        """Return some content by its hash; raises `MissingBlobError`."""
        ...

    async def search(
        self, words: str, *, session: str | None = None, limit: int = 20, start: int = 0, stop: int | None = None
    ) -> list[SearchHit]:
        """Return where words stand, the best first; of one session, only from position `start` on and before `stop`."""
        ...

    async def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        """Return sessions whose id begins with `prefix`, newest change first, behind (`updated_ms`, `id`)."""
        ...

    async def rename(self, session: str, name: str) -> None:
        """Give a session a name for people."""
        ...

    async def delete(self, session: str) -> bool:
        """Delete a session, and say whether there was one."""
        ...

    async def put_snapshot(self, session: str, snapshot: Snapshot) -> bool:
        """Keep a shortcut in the place of an older one, and say whether the log still had that length."""
        ...

    async def get_snapshot(self, session: str) -> Snapshot | None:
        """Return the shortcut of a session, if there is one."""
        ...

    async def put_value(self, key: str, value: JsonRecord) -> None:
        """Keep a value under a key; an older one goes."""
        ...

    async def get_value(self, key: str) -> JsonRecord | None:
        """Return the value of a key."""
        ...

    async def close(self) -> None:
        """Give back what the store holds open."""
        ...


SessionValueKind: TypeAlias = Literal["memory", "board", "consolidated"]
_PLAIN_KINDS = ("memory", "board")
_QUALIFIED_KINDS = ("consolidated",)
"""Of which there is one for each of something else, whose name holds no colon."""


def session_value_key(session: str, kind: SessionValueKind, qualifier: str = "") -> str:
    """Return the key of a fact about a session; `within` names what else it is about, and holds no colon."""
    return f"{kind}:{qualifier}:{session}" if qualifier else f"{kind}:{session}"


def is_session_value_key(key: str, session: str) -> bool:
    """Return whether a fact is about a session."""
    kind, _, rest = key.partition(":")
    return (kind in _PLAIN_KINDS and rest == session) or (
        kind in _QUALIFIED_KINDS and rest.partition(":")[2] == session
    )


MAX_LISTED_IDS = 6
"""So many ids are named where a beginning does not say which."""


async def iter_sessions(store: Store, prefix: str = "") -> AsyncIterator[SessionInfo]:
    """Yield every session whose id begins with `prefix`, newest change first."""
    before: tuple[int, str] | None = None
    while page := await store.sessions(prefix=prefix, before=before):
        for info in page:
            yield info
        before = page[-1].updated_ms, page[-1].id


async def resolve_session_id(store: Store, prefix: str) -> str:
    """Return the id that a beginning of it means; a whole id means itself."""
    if prefix and await store.length(prefix):
        return prefix
    infos = await store.sessions(prefix=prefix, limit=MAX_LISTED_IDS) if prefix else []
    if len(infos) != 1:
        raise UnknownSessionError(prefix, [info.id for info in infos])
    return infos[0].id


MS_PER_DAY = 86_400_000


async def expired_sessions(store: Store, *, days: int, now_ms: int) -> list[SessionInfo]:
    """Return the sessions that nothing was added to for a number of days."""
    limit = now_ms - days * MS_PER_DAY
    return [info async for info in iter_sessions(store) if info.updated_ms < limit]


async def delete_expired_sessions(store: Store, *, days: int | None, now_ms: int, keep: str) -> list[str]:
    """Delete the sessions that have expired, but never the one to keep; None keeps all."""
    if days is None:
        return []
    old = [info.id for info in await expired_sessions(store, days=days, now_ms=now_ms) if info.id != keep]
    return [session for session in old if await store.delete(session)]
