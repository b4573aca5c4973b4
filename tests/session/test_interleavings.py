"""Whatever is done to a session, in whatever order and by whichever of two programs, all agree on its state."""

from pathlib import Path

import pytest

from benchmarks.torture.batches import run_batch
from benchmarks.torture.observed import observed_state
from holdfast import Session
from holdfast.stores.base import Snapshot
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import assistant_message, user_message

SEED = 20_261_115
EXAMPLES = 15
"""A short run; `make torture` goes on with others."""


def test_live_stored_and_replayed_are_one() -> None:
    assert run_batch("interleavings", 0, SEED, EXAMPLES).failure is None


@pytest.mark.parametrize("length", [0, 5, 9, 10_000])
@pytest.mark.parametrize("content", [b"", b"no shortcut at all", b"{}", b"\x80\x04N."])
async def test_a_snapshot_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, length: int, content: bytes) -> None:
    store = SqliteStore(tmp_path / "chats.db")
    session = await Session.open("c0", store=store)
    await session.record(
        [
            user_message("one"),
            assistant_message("1"),
            user_message("two"),
            assistant_message("2"),
            user_message("three"),
        ]
    )
    await session.prepare(16_000, system="Be brief.")
    await session.rewind(to=3)

    await store.put_snapshot("c0", Snapshot(length, content))

    assert await observed_state(await Session.open("c0", store=store)) == await observed_state(session)
    await store.close()
