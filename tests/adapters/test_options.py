"""Options that no adapter can work with are refused where they are given, before the first run."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from holdfast import Session, SettingsError
from holdfast.adapters.google_adk import HoldfastPlugin
from holdfast.adapters.langchain import HoldfastMiddleware
from holdfast.adapters.openai_agents import HoldfastSession
from holdfast.adapters.pydantic_ai import Holdfast
from holdfast.blocking import Session as BlockingSession
from holdfast.errors import SessionClosedError

ADAPTERS: list[Callable[..., object]] = [
    Holdfast,
    HoldfastMiddleware,
    partial(HoldfastSession, "s"),
    HoldfastPlugin,
]


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"policy": "defualt"}, "policy: 'defualt' is not known; choose one of: default, "),
        ({"store": "chats.db"}, "store: 'chats.db' is not the URL of a store; choose one of: "),
        ({"summarizer": "gpt-5-mini"}, "summarizer: 'gpt-5-mini' does not name a provider; write it as provider:model"),
        ({"compaction": "deep"}, "compaction: must be a CompactionOptions, not "),
        ({"budget": "16k"}, "budget: must be a whole number, not '16k'"),
        ({"budget": 8}, "budget: 8 tokens cannot hold a conversation; give at least 64"),
    ],
)
def test_a_wrong_option_is_refused_at_once(adapter: Callable[..., object], options: Any, problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        adapter(**options)

    assert str(error.value).startswith(problem)


@pytest.mark.parametrize("adapter", [Holdfast, HoldfastMiddleware])
def test_an_empty_name_of_a_session_is_refused_at_once(adapter: Callable[..., object]) -> None:
    with pytest.raises(SettingsError, match="session: needs a name, not ''"):
        adapter(session="")


@pytest.mark.parametrize("open_session", [Session.open, BlockingSession.open])
def test_a_session_that_cannot_be_used_is_refused_with_the_way_to_open_it(open_session: Callable[[str], Any]) -> None:
    session = open_session("s")

    with pytest.raises(SettingsError, match="is not an open async session; pass its id, or open it: `async with"):
        Holdfast(session=session)


def test_no_file_is_made_for_options_alone(tmp_path: Path) -> None:
    HoldfastMiddleware(store=f"sqlite:///{tmp_path / 'chats.db'}")

    assert list(tmp_path.iterdir()) == []


def test_sessions_of_a_loop_that_stands_still_are_closed_from_another_loop(tmp_path: Path) -> None:
    governed = Holdfast(store=f"sqlite:///{tmp_path / 'chats.db'}", budget=16_000)
    agent = Agent(TestModel(), capabilities=[governed])
    still = asyncio.new_event_loop()
    still.run_until_complete(agent.run("one", conversation_id="c"))
    opened = governed.sessions["c"]

    asyncio.run(asyncio.wait_for(governed.close(), timeout=20))

    assert not governed.sessions
    with pytest.raises(SessionClosedError):
        still.run_until_complete(opened.clear())
    still.close()
