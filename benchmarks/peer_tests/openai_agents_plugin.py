"""A plugin for pytest: in the tests of openai-agents, `SQLiteSession` is a session of Holdfast."""

from pathlib import Path
from typing import Any

import agents
import agents.memory

from holdfast.adapters.openai_agents import HoldfastSession


class SessionUnderTest(HoldfastSession):
    """`HoldfastSession` with the constructor that the tests call."""

    def __init__(self, session_id: str, db_path: str | Path = ":memory:", *_: object, **options: Any) -> None:
        store = None if str(db_path) == ":memory:" else f"sqlite:///{db_path}"
        super().__init__(session_id, store=store, session_settings=options.get("session_settings"))


def pytest_configure() -> None:
    """Take the place before pytest imports the tests."""
    for module in (agents, agents.memory):
        setattr(module, "SQLiteSession", SessionUnderTest)  # noqa: B010 - tests import it from either
