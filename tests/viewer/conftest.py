"""What the tests of the viewer share."""

from collections.abc import AsyncGenerator

import pytest

from holdfast.stores.memory import MemoryStore
from tests.viewer.visiting import Browser, record_conversation, visiting


@pytest.fixture
async def store() -> AsyncGenerator[MemoryStore]:
    """A store with one conversation that was compacted."""
    kept = MemoryStore()
    await record_conversation(kept)
    yield kept
    await kept.close()


@pytest.fixture
async def browser(store: MemoryStore) -> AsyncGenerator[Browser]:
    """A browser on the pages of that store."""
    async with visiting(store) as one:
        yield one
