"""Which sessions are old enough to go, and their going; off unless a policy or a person says otherwise."""

from holdfast.stores.base import SessionInfo, Store
from holdfast.stores.listing import iter_sessions

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
