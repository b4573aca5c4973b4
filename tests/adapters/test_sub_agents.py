"""Agents that delegate to other agents, each in a delegation of the same session."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, ModelResponse, ToolCallPart
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart

from holdfast import Policy, Session, SettingsError, read_policy
from holdfast.adapters.pydantic_ai import Holdfast, SubAgent, delegation_toolset
from holdfast.core.history import events as log
from holdfast.delegation import MainVisibility, Visibility
from holdfast.testing.agents import ScriptedAgentModel, tool_call_response


def asking(*tasks: tuple[str, str]) -> ModelResponse:
    """Return an answer that gives a task to each of some agents."""
    return ModelResponse(
        parts=[
            ToolCallPart("delegate", {"agent": agent, "task": task}, f"d{number}")
            for number, (agent, task) in enumerate(tasks)
        ]
    )


def results_of(messages: list[ModelMessage]) -> list[str]:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]


def text_of(messages: list[ModelMessage]) -> str:
    return str([message.parts for message in messages])


async def test_a_sub_agent_works_in_a_scope_of_its_own_and_its_answer_comes_back() -> None:
    inner = ScriptedAgentModel([tool_call_response("look", "i1"), "It is in app.py."])
    sub = Agent(inner, instructions="You look.")

    @sub.tool_plain
    def look() -> str:
        return "secret working"

    outer = ScriptedAgentModel([asking(("looker", "Find it.")), "Found."])
    governed = Holdfast(session="c1")
    toolset = delegation_toolset({"looker": SubAgent(agent=sub, description="finds things")})
    agent = Agent(outer, toolsets=[toolset], capabilities=[governed])

    result = await agent.run("Where is it?")
    session = await governed.open()
    (delegation,) = await session.delegations()

    assert result.output == "Found."
    assert results_of(outer.requests[-1]) == ["It is in app.py."]
    assert "secret working" not in text_of(outer.requests[-1])
    assert "Where is it?" in text_of(inner.requests[0])
    assert "Find it." in text_of(inner.requests[0])
    assert "secret working" in text_of(inner.requests[1])
    assert (delegation.started.agent, delegation.started.task, delegation.state) == ("looker", "Find it.", "answered")
    assert delegation.answer == "It is in app.py."
    assert len(await session.messages()) == 4
    assert (result.usage.requests, result.usage.tool_calls) == (2, 1)
    await governed.close()


@pytest.mark.seed("B-18")
@pytest.mark.parametrize(
    ("policy", "limit", "is_seen"),
    [
        ("inkeep", None, True),
        ("inkeep", "nothing", False),
        (read_policy('base = "inkeep"\nmain_sees = "answers"'), None, False),
        ("default", None, False),
        ("default", "everything", True),
    ],
    ids=["inkeep", "inkeep, told otherwise", "inkeep, limited", "default", "default, told otherwise"],
)
async def test_the_main_agent_sees_what_a_sub_agent_did_as_its_policy_says(
    policy: str | Policy, limit: MainVisibility | None, *, is_seen: bool
) -> None:
    sub = Agent(ScriptedAgentModel([tool_call_response("look", "i1"), "It is in app.py."]))

    @sub.tool_plain
    def look() -> str:
        return "what the tool found"

    outer = ScriptedAgentModel([asking(("looker", "Find it.")), "Found.", "Yes."])
    async with Holdfast(session="c1", policy=policy) as governed:
        toolset = delegation_toolset({"looker": SubAgent(agent=sub, main_sees=limit)})
        agent = Agent(outer, toolsets=[toolset], capabilities=[governed])
        await agent.run("Where is it?")
        await agent.run("Are you sure?")

    assert ("what the tool found" in text_of(outer.requests[-1])) is is_seen


@pytest.mark.seed("B-21")
async def test_sub_agents_that_work_at_once_do_not_see_each_other() -> None:
    models = {name: ScriptedAgentModel([tool_call_response("look", name), f"{name} is done."]) for name in ("a", "b")}
    both = asyncio.Barrier(2)

    def made(name: str) -> Agent[None, str]:
        agent = Agent(models[name])

        @agent.tool_plain
        async def look() -> str:
            await both.wait()
            return f"secret of {name}"

        return agent

    outer = ScriptedAgentModel([asking(("a", "task a"), ("b", "task b")), "Both are done."])
    governed = Holdfast(session="c1")
    toolset = delegation_toolset({name: SubAgent(agent=made(name)) for name in models})
    agent = Agent(outer, toolsets=[toolset], capabilities=[governed])

    await agent.run("Go.")

    assert results_of(outer.requests[-1]) == ["a is done.", "b is done."]
    for mine, other in (("a", "b"), ("b", "a")):
        seen = text_of(models[mine].requests[-1])
        assert (f"secret of {mine}" in seen, f"secret of {other}" in seen, f"task {other}" in seen) == (
            True,
            False,
            False,
        )
    await governed.close()


async def test_a_sub_agent_sees_what_was_chosen_for_it() -> None:
    inner = ScriptedAgentModel(["Nothing was shown to me."])
    outer = ScriptedAgentModel(["Hello.", asking(("blind", "Guess.")), "Done."])
    governed = Holdfast(session="c1")
    toolset = delegation_toolset({"blind": SubAgent(agent=Agent(inner), sees=Visibility())})
    agent = Agent(outer, toolsets=[toolset], capabilities=[governed])

    await agent.run("My name is Ada.")
    await agent.run("Ask the other one.")

    assert "Ada" not in text_of(inner.requests[0])
    assert inner.prompts == ["Guess."]
    await governed.close()


async def test_a_sub_agent_sends_out_others() -> None:
    deepest = ScriptedAgentModel(["deep answer"])
    middle = ScriptedAgentModel([asking(("deep", "dig")), "middle answer"])
    outer = ScriptedAgentModel([asking(("middle", "go")), "Done."])
    deep_tools = delegation_toolset({"deep": SubAgent(agent=Agent(deepest))})
    tools = delegation_toolset({"middle": SubAgent(agent=Agent(middle, toolsets=[deep_tools]))})
    governed = Holdfast(session="c1")
    agent = Agent(outer, toolsets=[tools], capabilities=[governed])

    await agent.run("Go.")
    session = await governed.open()
    first, second = await session.delegations()

    assert (first.started.parent, second.started.parent) == ("main", first.started.scope)
    assert (first.answer, second.answer) == ("middle answer", "deep answer")
    await governed.close()


@pytest.mark.parametrize(
    ("inner", "settings", "told", "state"),
    [
        ([RuntimeError("no network")], {}, "sub has not answered: RuntimeError: no network", "failed"),
        (
            [tool_call_response("wait", "w1")],
            {"timeout_seconds": 0.05},
            "sub has not answered: its time ran out",
            "timed_out",
        ),
        (
            [tool_call_response("quick", "q1"), "never"],
            {"max_steps": 1},
            "sub has not answered: UsageLimitExceeded",
            "failed",
        ),
    ],
)
async def test_whoever_asked_is_told_why_there_is_no_answer(inner: Any, settings: Any, told: str, state: str) -> None:
    sub = Agent(ScriptedAgentModel(inner))

    @sub.tool_plain
    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    @sub.tool_plain
    def quick() -> str:
        return "so"

    outer = ScriptedAgentModel([asking(("sub", "try")), "I go on.", "Still here."])
    governed = Holdfast(session="c1")
    agent = Agent(
        outer, toolsets=[delegation_toolset({"sub": SubAgent(agent=sub, **settings)})], capabilities=[governed]
    )

    assert (await agent.run("Go.")).output == "I go on."
    assert results_of(outer.requests[-1])[0].startswith(told)
    assert (await agent.run("And now?")).output == "Still here."
    assert [one.state for one in await (await governed.open()).delegations()] == [state]
    await governed.close()


async def test_an_agent_nobody_knows_and_a_task_that_says_nothing_are_answered_in_words() -> None:
    outer = ScriptedAgentModel([asking(("other", "x"), ("sub", " ")), "I see."])
    governed = Holdfast(session="c1")
    toolset = delegation_toolset({"sub": SubAgent(agent=Agent(ScriptedAgentModel([])))})

    await Agent(outer, toolsets=[toolset], capabilities=[governed]).run("Go.")

    assert results_of(outer.requests[-1]) == [
        "there is no agent 'other'; ask one of: sub",
        "say what the agent is to do: it knows only what you tell it and what it is shown",
    ]
    await governed.close()


async def test_delegation_needs_somebody_to_ask_and_a_session() -> None:
    with pytest.raises(SettingsError, match="is empty; pass at least one agent"):
        delegation_toolset({})
    toolset = delegation_toolset({"sub": SubAgent(agent=Agent(ScriptedAgentModel([])))})
    bare = Agent(ScriptedAgentModel([asking(("sub", "x"))]), toolsets=[toolset])
    with pytest.raises(SettingsError, match="needs an agent with Holdfast"):
        await bare.run("Go.")


async def test_a_session_with_delegates_goes_on_in_another_process(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/chats.db"
    toolset = delegation_toolset(
        {"sub": SubAgent(agent=Agent(ScriptedAgentModel(["so it is"])), main_sees="everything")}
    )
    async with Holdfast(session="c1", store=store) as governed:
        outer = ScriptedAgentModel([asking(("sub", "x")), "Done."])
        await Agent(outer, toolsets=[toolset], capabilities=[governed]).run("Go.")

    async with Holdfast(session="c1", store=store) as governed:
        again = ScriptedAgentModel(["Hello again."])
        result = await Agent(again, capabilities=[governed]).run("Still there?")

    assert len(result.all_messages()) == 6
    async with Session.open("c1", store=store) as session:
        assert not any(isinstance(event, log.Rewound) for event in await session.events())


async def test_a_model_asks_for_a_compaction_itself() -> None:
    replies = [
        *[tool_call_response("look", f"c{number}", n=4) for number in range(8)],
        tool_call_response("compact_context", "x"),
        "Done.",
    ]
    model, governed = ScriptedAgentModel(replies), Holdfast(session="c1", compact_context=True)
    agent = Agent(model, capabilities=[governed])

    @agent.tool_plain
    def look(n: int) -> str:
        return "line of output\n" * 40 * n

    await agent.run("Look at everything.")
    session = await governed.open()
    done = [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]

    assert [(event.trigger, event.success) for event in done] == [("agent_request", True)]
    assert results_of(model.requests[-1])[-1].startswith("Done: ")
    assert len(model.requests[-1]) < len(model.requests[-2])
    assert "Look at everything." in model.prompts
    await governed.close()
