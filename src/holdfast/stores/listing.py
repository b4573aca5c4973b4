"""All sessions of a store, a page at a time."""

from collections.abc import AsyncIterator

from holdfast.errors import UnknownSessionError
from holdfast.stores.base import SessionInfo, Store

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
