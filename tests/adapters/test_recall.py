"""Recall among the tools of a pydantic-ai agent: it is offered as soon as messages have left the view."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, ToolDefinition, UserError
from pydantic_ai.capabilities import PrepareTools
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart
from pydantic_ai.toolsets import FunctionToolset

from holdfast.adapters.pydantic_ai import Holdfast
from holdfast.testing.agents import ScriptedAgentModel, tool_call_response

SECRET_PLACE = "The key lies under the third flower pot."


def talking(extra: ModelResponse | None = None) -> ScriptedAgentModel:
    """Return a model that talks for a long time, asks for something if it is told to, and answers."""
    asking = [extra] if extra else []
    return ScriptedAgentModel([*["word " * 150] * 29, *asking, "It is under the flower pot."])


async def long_talk(governed: Holdfast, model: ScriptedAgentModel) -> list[ModelMessage]:
    agent = Agent(model, capabilities=[governed])
    await agent.run(SECRET_PLACE)
    for number in range(28):
        await agent.run(f"prompt {number}")
    return (await agent.run("Where is the key?")).all_messages()


def returned(messages: list[ModelMessage]) -> list[str]:
    return [
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def tools_of(model: ScriptedAgentModel) -> list[list[str]]:
    return [[tool.name for tool in info.function_tools] for info in model.request_infos]


async def test_the_tool_comes_with_the_first_request_that_leaves_something_out() -> None:
    governed, model = (
        Holdfast(session="c1", budget=4_000),
        talking(tool_call_response("recall", "r", query="key flower pot")),
    )

    await long_talk(governed, model)

    offered = [names == ["recall"] for names in tools_of(model)]
    compacted = ["earlier messages" in str(request) for request in model.requests]
    assert offered == compacted
    assert (offered[0], offered[-1]) == (False, True)
    assert "recall with ref #" in str(model.requests[-1])


async def test_the_model_sees_again_what_was_compacted() -> None:
    governed, model = Holdfast(session="c1", budget=4_000), talking(tool_call_response("recall", "r", ref="#0"))

    messages = await long_talk(governed, model)

    (answer,) = returned(messages)
    assert answer.splitlines()[0] == "[Recall: 1, to the letter, for reference only.]"
    assert answer.splitlines()[2] == SECRET_PLACE


@pytest.mark.parametrize("arguments", [{}, {"ref": "#999"}, {"ref": "nonsense ("}, {"query": "???"}, {"other": 1}])
async def test_whatever_a_model_asks_it_gets_words_back(arguments: dict[str, object]) -> None:
    governed, model = Holdfast(session="c1", budget=4_000), talking(tool_call_response("recall", "r", **arguments))

    messages = await long_talk(governed, model)

    (answer,) = returned(messages)
    assert answer.startswith("[Recall: ")
    assert messages[-1].parts[-1].content == "It is under the flower pot."  # type: ignore[union-attr]


async def test_it_can_be_left_out_and_then_no_marker_names_it() -> None:
    governed, model = Holdfast(session="c1", budget=4_000, recall=False), talking()

    await long_talk(governed, model)

    assert all(names == [] for names in tools_of(model))
    assert "earlier messages" in str(model.requests[-1])
    assert "recall" not in str(model.requests[-1])


async def test_a_small_window_is_not_filled_with_it() -> None:
    governed, model = Holdfast(session="c1", budget=2_000), talking()

    await long_talk(governed, model)

    assert all(names == [] for names in tools_of(model))
    assert "recall" not in str(model.requests[-1])


async def test_an_agents_own_tool_of_that_name_is_not_ours() -> None:
    agent = Agent(ScriptedAgentModel(["hi"]), capabilities=[Holdfast(session="c1")])
    own = Agent(
        ScriptedAgentModel([tool_call_response("recall", "r", what="x"), "hi"]), capabilities=[Holdfast(recall=False)]
    )

    for one in (agent, own):

        @one.tool_plain
        def recall(what: str) -> str:
            """Remember something."""
            return what.upper()

    with pytest.raises(UserError, match="RecallToolset 'holdfast-recall' defines a tool whose name conflicts"):
        await agent.run("hello")
    assert returned((await own.run("hello")).all_messages()) == ["X"]


async def test_another_capability_can_hide_it() -> None:
    def without_recall(_: RunContext[Any], tools: list[ToolDefinition]) -> list[ToolDefinition]:
        seen.append([tool.name for tool in tools])
        return [tool for tool in tools if tool.name != "recall"]

    seen: list[list[str]] = []
    governed, model = Holdfast(session="c1", budget=4_000), talking()
    agent = Agent(model, capabilities=[PrepareTools[Any](without_recall), governed])

    await agent.run(SECRET_PLACE)
    for number in range(29):
        await agent.run(f"prompt {number}")

    assert seen[0] == ["recall"]
    assert "earlier messages" in str(model.requests[-1])
    assert all(names == [] for names in tools_of(model))


async def test_it_is_the_last_tool_also_of_a_run_with_other_toolsets_than_the_agents() -> None:
    def look() -> str:
        """Look."""
        return "seen"

    governed, model = Holdfast(session="c1", budget=4_000, compact_context=True), talking()
    agent = Agent(model, capabilities=[governed])
    await agent.run(SECRET_PLACE)
    with agent.override(toolsets=[FunctionToolset([look])]):
        for number in range(28):
            await agent.run(f"prompt {number}")

    first, last = tools_of(model)[0], tools_of(model)[-1]
    assert first == ["compact_context"]
    assert (last[-1], "look" in last) == ("recall", True)


async def test_it_starts_no_tasks() -> None:
    def started(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
        tasks.append(work)
        return asyncio.Task(work, loop=loop, **options)

    async def tasks_of_a_run(*, recall: bool) -> int:
        model = ScriptedAgentModel([tool_call_response("look", "c1"), "done"])
        agent = Agent(model, capabilities=[Holdfast(recall=recall)])

        @agent.tool_plain
        def look() -> str:
            """Look."""
            return "nothing"

        tasks.clear()
        await agent.run("go")
        return len(tasks)

    tasks: list[object] = []
    asyncio.get_running_loop().set_task_factory(started)

    without = await tasks_of_a_run(recall=False)

    assert await tasks_of_a_run(recall=True) == without
