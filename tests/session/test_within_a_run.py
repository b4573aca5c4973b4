"""While an agent works: what it gathers is compacted, what it was asked is not, and it may ask for that itself."""

from typing import Any

import pytest

from holdfast import validate
from holdfast.core.history import events as log
from holdfast.session.session import Session
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel


def step(number: int) -> list[dict[str, object]]:
    return [tool_call_message(f"c{number}"), tool_result_message(f"c{number}", f"step {number}: " + "data " * 300)]


@pytest.mark.seed("B-5", "B-15")
async def test_each_cycle_shows_the_summarizer_only_what_is_new() -> None:
    writer = ScriptedModel(["first findings", "second findings", "third findings"])
    async with Session.open("c1", model="gpt-5", policy="inkeep", summarizer=writer) as session:
        await session.record([user_message("analyse this")])
        for number in range(13):
            await session.record(step(number))
            request = await session.prepare(2_600)
            assert validate(request.messages, "openai-chat") == []
            assert request.messages[0] == user_message("analyse this")

    asked = [str(ask) for ask in writer.prompts]
    assert len(asked) == 2
    assert "first findings" in asked[1]
    assert ["step 0:" in text for text in asked] == [True, False]


@pytest.mark.parametrize("policy", ["default", "inkeep", "copilot", "co-cli", "cowagent"])
async def test_a_model_asks_for_a_compaction_in_the_middle_of_its_work(policy: str) -> None:
    writer = ScriptedModel(["what was found"] * 3)
    async with Session.open("c1", model="gpt-5", policy=policy, summarizer=writer) as session:
        await session.record([user_message("hello"), assistant_message("hi"), user_message("analyse this")])
        for number in range(8):
            await session.record(step(number))
        await session.prepare(50_000)
        await session.record([tool_call_message("x", name="compact_context", arguments={"focus": "paths"})])

        told = await session.compact_tool().call({"focus": "paths"})
        await session.record([tool_result_message("x", told)])
        request = await session.prepare(50_000)

    assert told.startswith("Done: ")
    assert validate(request.messages, "openai-chat") == []
    assert user_message("analyse this") in request.messages
    assert request.messages[-2:] == [
        tool_call_message("x", name="compact_context", arguments={"focus": "paths"}), tool_result_message("x", told),
    ]  # fmt: skip
    done = [event for event in await session_events(session) if isinstance(event, log.CompactionCompleted)]
    assert [(event.trigger, event.success) for event in done][-1] == ("agent_request", True)


async def test_the_note_that_a_model_writes_with_its_request_outlives_later_compactions() -> None:
    note = "Milestone: the parser is done and frozen; the tests in tests/parse are next."
    async with Session.open("c1", model="gpt-5") as session:
        tool = session.compact_tool()
        assert "note" in str(tool.parameters)
        await session.record([user_message("analyse this")])
        for number in range(8):
            await session.record(step(number))
        await session.prepare(50_000)
        await session.record([tool_call_message("x", name=tool.name, arguments={"note": note})])
        await session.record([tool_result_message("x", await tool.call({"note": note}))])
        for number in range(8, 30):
            await session.prepare(4_000)
            await session.record(step(number))
        request = await session.prepare(4_000)

    assert tool_call_message("x", name=tool.name, arguments={"note": note}) not in request.messages
    assert note in str(request.messages[:2])
    assert validate(request.messages, "openai-chat") == []


async def session_events(session: Session) -> list[Any]:
    async with Session.open(session.id, store=session.store) as again:
        return list(await again.events())


async def test_a_model_that_asks_too_early_is_told_so() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([user_message("hello"), tool_call_message("x", name="compact_context")])

        told = await session.compact_tool().call({"focus": 3})

    assert told.startswith("[compact_context: nothing was changed: ")


async def test_a_delegate_asks_for_a_compaction_of_its_own() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([user_message("hello"), assistant_message("hi")])
        async with session.delegate("digger", task="dig", main_sees="nothing") as child:
            for number in range(8):
                await child.record(step(number))
            await child.record([tool_call_message("x", name="compact_context")])
            told = await child.compact_tool().call({})
            await child.record([tool_result_message("x", told)])
            request = await child.prepare(50_000)
        unchanged = await session.visible_messages()

    assert told.startswith("Done: ")
    assert user_message("dig") in request.messages
    assert len(request.messages) < 18
    assert [entry.message.text for entry in unchanged] == ["hello", "hi"]
