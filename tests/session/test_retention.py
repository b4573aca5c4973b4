"""Retention belongs to the session whose policy set it, and no single reading of a clock deletes anything."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StoreUnavailableError
from holdfast.session.session import Session
from holdfast.stores.base import MS_PER_DAY, SessionInfo, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.retention import delete_expired_sessions
from holdfast.testing.chat import user_message
from holdfast.testing.store_contract import NOW_MS


async def talked(store: Store, name: str, policy: str, time_ms: int = NOW_MS) -> None:
    async with Session.open(name, store=store, policy=policy, clock=lambda: time_ms) as session:
        await session.record([user_message("one")])


async def opened(store: Store, policy: str, time_ms: int) -> list[str]:
    """Open a session, and return which ones that has deleted."""
    async with Session.open("own", store=store, policy=policy, clock=lambda: time_ms) as session:
        return session.expired_sessions


async def names(store: Store) -> list[str]:
    return sorted(info.id for info in await store.sessions())


@pytest.mark.seed("D-19")
async def test_a_session_whose_own_policy_has_a_retention_is_deleted_when_it_is_over(store: Store) -> None:
    await talked(store, "old", "cowagent")
    await talked(store, "new", "cowagent", NOW_MS + 2 * MS_PER_DAY)
    expired_ms = NOW_MS + 30 * MS_PER_DAY + 1

    assert await opened(store, "cowagent", expired_ms - 2) == []
    assert await opened(store, "cowagent", expired_ms) == [], "one reading of the clock deletes nothing"
    assert await opened(store, "cowagent", expired_ms + MS_PER_DAY - 1) == []
    assert await opened(store, "cowagent", expired_ms + MS_PER_DAY) == ["old"]

    assert await names(store) == ["new"]
    assert list(await store.values("retention:")) == ["retention:new"]


class ContinuedStore(MemoryStore):
    """Somebody goes on with a session just before it is deleted."""

    async def delete(self, session: str, *, length: int | None = None) -> bool:
        await talked(self, session, "cowagent", NOW_MS + 40 * MS_PER_DAY)
        return await super().delete(session, length=length)


async def test_an_expired_session_stays_if_somebody_goes_on_with_it_while_others_are_deleted() -> None:
    store = ContinuedStore()
    await talked(store, "old", "cowagent")
    for day in (38, 40):
        assert await delete_expired_sessions(store, now_ms=NOW_MS + day * MS_PER_DAY, keep="") == []

    async with Session.open("old", store=store) as session:
        assert len(await session.messages()) == 2


class KeptFromNowOn(MemoryStore):
    """Somebody goes on with a session under a policy that keeps it for ever, just after the old ones were listed."""

    async def sessions(self, **options: Any) -> list[SessionInfo]:
        page = await super().sessions(**options)
        if any(info.length == 1 for info in page):
            await talked(self, "old", "default", NOW_MS + 31 * MS_PER_DAY)
        return page


async def test_a_session_that_is_kept_for_ever_while_expired_ones_are_marked_has_no_retention_again() -> None:
    store = KeptFromNowOn()
    await talked(store, "old", "cowagent")

    assert await delete_expired_sessions(store, now_ms=NOW_MS + 31 * MS_PER_DAY, keep="") == []

    assert await store.values("retention:") == {"retention:old": {}}


async def test_a_session_that_somebody_goes_on_with_while_it_is_deleted_keeps_its_files() -> None:
    store, deleted = ContinuedStore(), list[str]()
    await talked(store, "old", "cowagent")
    for day in (38, 40):
        await delete_expired_sessions(store, now_ms=NOW_MS + day * MS_PER_DAY, keep="", delete_files=deleted.append)

    assert (await names(store), deleted, await store.values("files-of-deleted:")) == (["old"], [], {})


class KilledAfterDeleting(MemoryStore):
    """A store whose process ends just after a session was deleted."""

    async def delete(self, session: str, *, length: int | None = None) -> bool:
        await super().delete(session, length=length)
        raise asyncio.CancelledError


async def test_no_files_stay_behind_when_a_retention_is_killed_and_what_cannot_be_deleted_is_tried_again() -> None:
    files, locked = {"stuck", "old"}, {"stuck"}

    def delete_files(session: str) -> None:
        if session in locked:
            raise StoreUnavailableError(session, "delete it by hand")
        files.discard(session)

    store = KilledAfterDeleting()
    for name in ("stuck", "old"):
        await talked(store, name, "cowagent")
    found = list[set[str]]()
    for day in (31, 33, 35, 37, 39):
        if day == 39:
            locked.clear()
        with suppress(asyncio.CancelledError):
            now_ms = NOW_MS + day * MS_PER_DAY
            await delete_expired_sessions(store, now_ms=now_ms, keep="", delete_files=delete_files)
        found.append(files.copy())

    assert found == [{"stuck", "old"}, {"stuck", "old"}, {"stuck", "old"}, {"stuck"}, set()]
    assert (await names(store), await store.values("files-of-deleted:")) == ([], {})


async def test_the_files_of_a_session_that_expired_are_deleted_by_the_opening_after_one_that_was_killed() -> None:
    store, files = KilledAfterDeleting(), list[str]()
    await talked(store, "old", "cowagent")
    for day in (31, 33, 33):
        with suppress(asyncio.CancelledError):
            now_ms = NOW_MS + day * MS_PER_DAY
            async with Session.open(
                "own", store=store, policy="cowagent", clock=lambda now_ms=now_ms: now_ms, delete_files=files.append
            ):
                pass

    assert (await names(store), files) == ([], ["old"])


async def test_opening_with_a_retention_leaves_the_sessions_of_other_policies_alone(store: Store) -> None:
    for policy in ("default", "copilot", "inkeep", "co-cli"):
        await talked(store, policy, policy)

    for day in range(400):
        await opened(store, "cowagent", NOW_MS + day * MS_PER_DAY)

    assert await names(store) == ["co-cli", "copilot", "default", "inkeep"]


async def test_a_policy_without_a_retention_deletes_nothing_even_if_something_has_expired(store: Store) -> None:
    await talked(store, "old", "cowagent")

    for day in range(60):
        assert await opened(store, "default", NOW_MS + day * MS_PER_DAY) == []


async def test_the_policy_that_last_recorded_a_message_decides_and_looking_does_not(store: Store) -> None:
    await talked(store, "kept", "cowagent")
    await talked(store, "kept", "default")
    await talked(store, "looked at", "cowagent")
    async with Session.open("looked at", store=store, clock=lambda: NOW_MS) as session:
        await session.messages()
    async with Session.open("switched", store=store, clock=lambda: NOW_MS) as session:
        await session.record([user_message("one")])
        await session.set_policy("cowagent")
        await session.record([user_message("two")])
        fork = await session.fork("forked")
        await fork.close()

    for day in (31, 33):
        await opened(store, "cowagent", NOW_MS + day * MS_PER_DAY)

    assert await names(store) == ["kept"]


async def test_a_clock_that_was_fast_for_one_opening_deletes_nothing(store: Store) -> None:
    await talked(store, "s", "cowagent")

    for _ in range(5):
        assert await opened(store, "cowagent", NOW_MS + 31 * MS_PER_DAY) == []
    assert await opened(store, "cowagent", NOW_MS + MS_PER_DAY) == []
    assert await opened(store, "cowagent", NOW_MS + 32 * MS_PER_DAY) == [], "the correction has removed the mark"

    assert await names(store) == ["s"]


@given(st.lists(st.tuples(st.integers(1, 20), st.sampled_from([0, 0, 31, -31, 400, 4_000])), max_size=60))
async def test_whatever_the_clock_says_in_between_nothing_goes_before_its_time(
    openings: list[tuple[int, int]],
) -> None:
    store, hour_ms, true_ms = MemoryStore(), MS_PER_DAY // 24, NOW_MS
    await talked(store, "limited", "cowagent")
    await talked(store, "unlimited", "default")

    for hours, error_days in openings:
        true_ms += hours * hour_ms
        # A wrong clock is corrected within a day.
        for clock_ms in (true_ms + error_days * MS_PER_DAY, true_ms):
            await delete_expired_sessions(store, now_ms=clock_ms, keep="own")

    is_over = true_ms - NOW_MS > 30 * MS_PER_DAY
    assert await names(store) == ["limited", "unlimited"] or (is_over and await names(store) == ["unlimited"])
