"""The embedded model for the tests that want a real one."""

import asyncio
from pathlib import Path

import pytest

from holdfast.errors import ModelError
from holdfast.models.embedded.weights import fetched


@pytest.fixture(scope="session")
def weights() -> Path:
    """Return the embedded model's weights; fetched once for all workers, which wait for each other."""
    try:
        return asyncio.run(fetched())
    except ModelError as error:
        pytest.skip(f"the embedded model's weights cannot be had here: {error}")
