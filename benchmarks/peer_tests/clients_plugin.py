"""A plugin for pytest: the clients that the tests of the openai and anthropic SDKs send their requests with.

They take the place of the fixtures in the SDKs' own `conftest.py`, which needs recorders of HTTP.
"""

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio


def options(strict: object) -> dict[str, Any]:
    """Return the options of a client, which checks answers strictly or not."""
    address = os.environ["TEST_API_BASE_URL"]
    return {"base_url": address, "api_key": "a key", "max_retries": 0, "_strict_response_validation": bool(strict)}


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client."""
    make: Any = openai.OpenAI if os.environ["TEST_SDK"] == "openai" else anthropic.Anthropic
    with make(**options(getattr(request, "param", True))) as one:
        yield one


@pytest_asyncio.fixture
async def async_client(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """A client for async code."""
    given = getattr(request, "param", True)
    if isinstance(given, dict):
        if "http_client" in given:
            pytest.skip("needs aiohttp as the client's transport")
        given = given.get("strict", True)
    make: Any = openai.AsyncOpenAI if os.environ["TEST_SDK"] == "openai" else anthropic.AsyncAnthropic
    async with make(**options(given)) as one:
        yield one
