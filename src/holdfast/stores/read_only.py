"""A store that can only be read, whatever the store behind it allows."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from holdfast.errors import StoreUnavailableError
from holdfast.stores.base import IndexEntry, JsonRecord, SearchHit, SessionInfo, Snapshot, Store, StoredRecord


class ReadOnlyStore:
    """Reads from another store; every method that writes raises `StoreUnavailableError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _refuse(self) -> NoReturn:
        raise StoreUnavailableError("the store", "it was opened to be read only")

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
        self._refuse()

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
        self._refuse()

    async def purge(self) -> tuple[str, ...]:
        self._refuse()

    async def put_blob(self, content: bytes) -> str:
        self._refuse()

    async def rename(self, session: str, name: str) -> None:
        self._refuse()

    async def delete(self, session: str) -> bool:
        self._refuse()

    async def put_snapshot(self, session: str, snapshot: Snapshot) -> bool:
        self._refuse()

    async def put_value(self, key: str, value: JsonRecord) -> None:
        self._refuse()

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        return await self._store.read(session, start=start, limit=limit)

    async def read_at(self, session: str, positions: Sequence[int]) -> list[StoredRecord]:
        return await self._store.read_at(session, positions)

    async def length(self, session: str) -> int:
        return await self._store.length(session)

    async def get_blob(self, digest: str) -> bytes:
        return await self._store.get_blob(digest)

    async def search(
        self, words: str, *, session: str | None = None, limit: int = 20, start: int = 0, stop: int | None = None
    ) -> list[SearchHit]:
        return await self._store.search(words, session=session, limit=limit, start=start, stop=stop)

    async def sessions(
        self, *, prefix: str = "", before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[SessionInfo]:
        return await self._store.sessions(prefix=prefix, before=before, limit=limit)

    async def get_snapshot(self, session: str) -> Snapshot | None:
        return await self._store.get_snapshot(session)

    async def get_value(self, key: str) -> JsonRecord | None:
        return await self._store.get_value(key)

    async def values(self, prefix: str) -> dict[str, JsonRecord]:
        return await self._store.values(prefix)

    async def close(self) -> None:
        await self._store.close()
