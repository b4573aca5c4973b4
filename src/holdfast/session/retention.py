"""Which sessions are old enough to go, and their going; off unless a policy or a person says otherwise."""

from holdfast.stores.base import SessionInfo, Store
from holdfast.stores.listing import every_session

DAY_MS = 86_400_000


async def expired(store: Store, *, days: int, now_ms: int) -> list[SessionInfo]:
    """Return the sessions that nothing was added to for a number of days."""
    limit = now_ms - days * DAY_MS
    return [info async for info in every_session(store) if info.updated_ms < limit]


async def prune(store: Store, *, days: int | None, now_ms: int, keep: str) -> list[str]:
    """Delete the sessions that have expired, but never the one to keep; None keeps all."""
    if days is None:
        return []
    old = [info.id for info in await expired(store, days=days, now_ms=now_ms) if info.id != keep]
    return [session for session in old if await store.delete(session)]
