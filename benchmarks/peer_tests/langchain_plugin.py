"""A plugin for pytest: in the tests of LangChain, every agent has `HoldfastMiddleware`, next to the model."""

from typing import Any

import langchain.agents
import langchain.agents.factory

from holdfast.adapters.langchain import HoldfastMiddleware

bare_create_agent = langchain.agents.create_agent


def create_agent(*args: Any, middleware: Any = (), **kwargs: Any) -> Any:
    """Create an agent whose conversations are in a session."""
    last = HoldfastMiddleware(session="test", recall=False)
    return bare_create_agent(*args, middleware=[*middleware, last], **kwargs)


def pytest_configure() -> None:
    """Take the place before pytest imports the tests."""
    for module in (langchain.agents, langchain.agents.factory):
        setattr(module, "create_agent", create_agent)  # noqa: B010 - tests import it from either
