"""Options that no adapter can work with are refused where they are given, before the first run."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from holdfast import Session, SettingsError
from holdfast.adapters import session_pool
from holdfast.adapters.google_adk import HoldfastPlugin
from holdfast.adapters.langchain import HoldfastMiddleware
from holdfast.adapters.openai_agents import HoldfastSession
from holdfast.adapters.pydantic_ai import Holdfast
from holdfast.blocking import Session as BlockingSession
from holdfast.errors import SessionClosedError
from holdfast.session.background_loop import BACKGROUND_LOOP

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

    asyncio.run(asyncio.wait_for(governed.close(), timeout=60))

    assert not governed.sessions
    with pytest.raises(SessionClosedError):
        still.run_until_complete(opened.clear())
    still.close()


def test_sessions_of_loops_that_run_or_have_ended_are_closed_from_another_loop(tmp_path: Path) -> None:
    governed = Holdfast(store=f"sqlite:///{tmp_path / 'chats.db'}", budget=16_000)
    agent, both = Agent(TestModel(), capabilities=[governed]), Barrier(3)

    def run(name: str) -> None:
        async def work() -> None:
            await agent.run("one", conversation_id=name)
            both.wait()  # each thread has a loop of its own, and neither finds one that has ended

        asyncio.run(work())

    BACKGROUND_LOOP.run(agent.run("one", conversation_id="c"))
    with ThreadPoolExecutor() as threads:
        ended = [threads.submit(run, name) for name in ("a", "b")]
        both.wait()
        for one in ended:
            one.result()
    opened = governed.sessions
    assert sorted(opened) == ["a", "b", "c"]

    asyncio.run(asyncio.wait_for(governed.close(), timeout=60))

    assert not governed.sessions
    for name, run_on_loop in (("a", asyncio.run), ("b", asyncio.run), ("c", BACKGROUND_LOOP.run)):
        with pytest.raises(SessionClosedError):
            run_on_loop(opened[name].clear())


def test_a_run_on_a_new_loop_continues_what_was_open_on_one_that_has_ended(tmp_path: Path) -> None:
    governed = Holdfast(store=f"sqlite:///{tmp_path / 'chats.db'}", budget=16_000)
    agent = Agent(TestModel(), capabilities=[governed])

    asyncio.run(agent.run("one", conversation_id="c"))
    opened = governed.sessions["c"]
    result = asyncio.run(agent.run("two", conversation_id="c"))

    assert governed.sessions["c"] is opened
    assert len(result.all_messages()) == 4
    asyncio.run(governed.close())


async def test_idle_conversations_of_a_store_on_disk_are_closed_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pool, "MAX_OPEN_SESSIONS", 1)
    async with Holdfast(store=f"sqlite:///{tmp_path / 'chats.db'}", budget=16_000) as governed:
        agent = Agent(TestModel(), capabilities=[governed])
        for name in ("a", "b", "a"):
            result = await agent.run("hello", conversation_id=name)

            assert list(governed.sessions) == [name]

    assert len(result.all_messages()) == 4


async def test_an_open_session_has_siblings_for_other_conversations() -> None:
    async with Session.open("first") as session, Holdfast(session=session) as governed:
        agent = Agent(TestModel(), capabilities=[governed])
        await agent.run("hello", conversation_id="first")

        other = await governed.open("second")

        assert (other.id, other.store is session.store, len(await other.messages())) == ("second", True, 0)
