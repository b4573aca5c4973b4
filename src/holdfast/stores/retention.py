"""Retention: a session expires only if its own policy said so, and never because of one reading of a clock.

How many days a session is kept is recorded as a value of that session, by the policy under which messages were last
recorded in it. A session without such a value never expires. A clock may be wrong for a while, so an expired session is
first marked as due. It is deleted when it is still expired a day or more after the mark; if the session has changed, or
the clock was corrected, the mark is removed.

Files of a session outside the store are deleted after it: only the store can tell at once whether somebody has gone on
with it. A value names the session until its files are gone, so that a later run deletes what a killed one has left.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from holdfast.errors import HoldfastError
from holdfast.stores.base import MS_PER_DAY, JsonRecord, SessionInfo, Store, iter_sessions, session_value_key

RETENTION_PREFIX = session_value_key("", "retention")
DAYS_KEY, DUE_KEY = "days", "dueMs"
FILES_PREFIX = "files-of-deleted:"
"""Before the id of a session that is deleted, or about to be, whose files outside the store are not deleted yet."""


async def stored_retention(store: Store, session: str) -> int | None:
    """Return for how many days a session is kept; None means for ever."""
    return _number(await store.get_value(session_value_key(session, "retention")) or {}, DAYS_KEY)


async def record_retention(store: Store, session: str, days: int | None) -> None:
    """Record for how many days a session is kept; None keeps it for ever."""
    await store.put_value(session_value_key(session, "retention"), {} if days is None else {DAYS_KEY: days})


async def delete_expired_sessions(
    store: Store, *, now_ms: int, keep: str, delete_files: Callable[[str], object] | None = None
) -> list[str]:
    """Delete sessions that are due and still expired, except `keep`; mark what has expired since. Return their ids.

    `delete_files` removes what belongs to a session outside the store; it is called in a thread. What it has not
    removed in earlier runs it is called for first.
    """
    if delete_files is not None:
        await delete_remaining_files(store, delete_files)
    kept_days = {
        key.removeprefix(RETENTION_PREFIX): (days, _number(value, DUE_KEY))
        for key, value in (await store.values(RETENTION_PREFIX)).items()
        if (days := _number(value, DAYS_KEY)) is not None
    }
    if not kept_days:
        return []
    first_ms = now_ms - min(days for days, _ in kept_days.values()) * MS_PER_DAY
    old = {info.id: info async for info in iter_sessions(store, changed_before_ms=first_ms)}
    deleted: list[str] = []
    for session, (days, due_ms) in kept_days.items():
        key = session_value_key(session, "retention")
        info = None if session == keep else old.get(session)
        if info is None or info.updated_ms >= now_ms - days * MS_PER_DAY:
            if due_ms is not None:
                await _mark(store, key, days, None)
        elif due_ms is None or due_ms > now_ms:
            await _mark(store, key, days, now_ms)
        elif now_ms - due_ms >= MS_PER_DAY and await delete_unchanged(store, info, delete_files):
            deleted.append(session)
    return deleted


async def delete_unchanged(store: Store, info: SessionInfo, delete_files: Callable[[str], object] | None) -> bool:
    """Delete a session and its files, unless somebody has gone on with it since it was listed; return whether it was.

    Files that `delete_files` cannot remove now are left to `delete_remaining_files`.
    """
    if delete_files is None:
        return await store.delete(info.id, length=info.length)
    await store.put_value(f"{FILES_PREFIX}{info.id}", {})
    is_deleted = await store.delete(info.id, length=info.length)
    await _delete_files(store, info.id, delete_files)
    return is_deleted


async def delete_remaining_files(store: Store, delete_files: Callable[[str], object]) -> None:
    """Delete the files of sessions that were deleted without them, by a process that was killed or could not."""
    for key in await store.values(FILES_PREFIX):
        await _delete_files(store, key.removeprefix(FILES_PREFIX), delete_files)


async def _delete_files(store: Store, session: str, delete_files: Callable[[str], object]) -> None:
    """Delete the files of a session that is not in the store any more, and the value that names it."""
    with suppress(HoldfastError, OSError):  # others are not to wait for a folder that cannot be deleted
        if not await store.length(session):
            await asyncio.to_thread(delete_files, session)
        await store.delete_value(f"{FILES_PREFIX}{session}")


async def _mark(store: Store, key: str, days: int, due_ms: int | None) -> None:
    """Mark a session as due, or remove the mark, unless another policy has recorded other days since they were read."""
    if _number(await store.get_value(key) or {}, DAYS_KEY) == days:
        await store.put_value(key, {DAYS_KEY: days} if due_ms is None else {DAYS_KEY: days, DUE_KEY: due_ms})


def _number(value: Mapping[str, object] | JsonRecord, key: str) -> int | None:
    number = value.get(key)
    return number if isinstance(number, int) else None
