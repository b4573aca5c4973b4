"""What the tests of the viewer share."""

import asyncio
from collections.abc import AsyncGenerator
from copy import deepcopy

import pytest

from holdfast.stores.memory import MemoryStore
from tests.viewer.visiting import Browser, record_conversation, visiting


@pytest.fixture(scope="package")
def recorded() -> MemoryStore:
    """A store with one conversation that was compacted, of which each test gets a copy."""
    kept = MemoryStore()
    asyncio.run(record_conversation(kept))
    return kept


@pytest.fixture
async def store(recorded: MemoryStore) -> AsyncGenerator[MemoryStore]:
    kept = deepcopy(recorded)
    yield kept
    await kept.close()


@pytest.fixture
async def browser(store: MemoryStore) -> AsyncGenerator[Browser]:
    """A browser on the pages of that store."""
    async with visiting(store) as one:
        yield one
