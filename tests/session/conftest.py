"""The stores that tests of sessions run with."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Yield a store in memory, then one in a file."""
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "chats.db")
    yield made
    await made.close()
