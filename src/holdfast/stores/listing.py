"""All sessions of a store, a page at a time."""

from collections.abc import AsyncIterator

from holdfast.stores.base import SessionInfo, Store


async def every_session(store: Store, prefix: str = "") -> AsyncIterator[SessionInfo]:
    """Yield every session whose id begins with `prefix`, newest change first."""
    before: tuple[int, str] | None = None
    while page := await store.sessions(prefix=prefix, before=before):
        for info in page:
            yield info
        before = page[-1].updated_ms, page[-1].id
