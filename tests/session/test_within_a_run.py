"""While an agent works: what it gathers is folded, what it was asked is not, and it may ask for that itself."""

from typing import Any

import pytest

from holdfast import validate
from holdfast.core.history import events as log
from holdfast.session.session import Session
from holdfast.testing.chat import answered, called, returned, said
from holdfast.testing.models import ScriptedModel


def step(number: int) -> list[dict[str, object]]:
    return [called(f"c{number}"), returned(f"c{number}", f"step {number}: " + "data " * 300)]


@pytest.mark.seed("B-5", "B-15")
async def test_each_cycle_shows_the_summariser_only_what_is_new() -> None:
    writer = ScriptedModel(["first findings", "second findings", "third findings"])
    async with Session.open("c1", model="gpt-5", policy="inkeep", summariser=writer) as session:
        await session.record([said("analyse this")])
        for number in range(13):
            await session.record(step(number))
            request = await session.prepare(2_600)
            assert validate(request.messages, "openai-chat") == []
            assert request.messages[0] == said("analyse this")

    asked = [str(ask) for ask in writer.asks]
    assert len(asked) == 2
    assert "first findings" in asked[1]
    assert ["step 0:" in text for text in asked] == [True, False]


@pytest.mark.parametrize("policy", ["default", "inkeep", "copilot", "co-cli", "cowagent"])
async def test_a_model_asks_for_a_compaction_in_the_middle_of_its_work(policy: str) -> None:
    writer = ScriptedModel(["what was found"] * 3)
    async with Session.open("c1", model="gpt-5", policy=policy, summariser=writer) as session:
        await session.record([said("hello"), answered("hi"), said("analyse this")])
        for number in range(8):
            await session.record(step(number))
        await session.prepare(50_000)
        await session.record([called("x", name="compact_context", arguments={"focus": "paths"})])

        told = await session.compact_tool().call({"focus": "paths"})
        await session.record([returned("x", told)])
        request = await session.prepare(50_000)

    assert told.startswith("Done: ")
    assert validate(request.messages, "openai-chat") == []
    assert said("analyse this") in request.messages
    assert request.messages[-2:] == [
        called("x", name="compact_context", arguments={"focus": "paths"}), returned("x", told),
    ]  # fmt: skip
    done = [event for event in await session_events(session) if isinstance(event, log.CompactionCompleted)]
    assert [(event.trigger, event.success) for event in done][-1] == ("agent_request", True)


async def session_events(session: Session) -> list[Any]:
    async with Session.open(session.id, store=session.store) as again:
        return list(await again.events())


async def test_a_model_that_asks_too_early_is_told_so() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([said("hello"), called("x", name="compact_context")])

        told = await session.compact_tool().call({"focus": 3})

    assert told.startswith("[compact_context: nothing was changed: ")


async def test_a_delegate_asks_for_a_compaction_of_its_own() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([said("hello"), answered("hi")])
        async with session.delegate("digger", task="dig", main_sees="nothing") as child:
            for number in range(8):
                await child.record(step(number))
            await child.record([called("x", name="compact_context")])
            told = await child.compact_tool().call({})
            await child.record([returned("x", told)])
            request = await child.prepare(50_000)
        unchanged = await session.shown()

    assert told.startswith("Done: ")
    assert said("dig") in request.messages
    assert len(request.messages) < 18
    assert [entry.message.text for entry in unchanged] == ["hello", "hi"]
