"""Sub-agents: a tool that runs another agent inside a delegation of the same session.

The session records the sub-agent's run and prepares its requests like any other, in a separate scope. The sub-agent
sees only the messages that its `Visibility` allows, and its history is compacted for its own window. Its final answer
is the result of the call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.tools import RunContext, Tool
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RunUsage, UsageLimits

from holdfast.adapters.pydantic_ai.capability import CURRENT_CONVERSATION, GovernedRun, Holdfast
from holdfast.adapters.pydantic_ai.conversation import AgentConversation
from holdfast.core.history.scopes import MainVisibility
from holdfast.core.history.visibility import SEES_EVERYTHING, Visibility
from holdfast.core.planning.situation import Budget
from holdfast.errors import SettingsError

DELEGATE_TOOL = "delegate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAgent:
    """An agent that other agents may delegate tasks to."""

    agent: Agent[Any, Any]
    description: str = ""
    """The purpose of the agent, for the model that delegates."""
    sees: Visibility = SEES_EVERYTHING
    main_sees: MainVisibility | None = None
    """What the main agent sees of its work besides the answer, which is the result of the call; None for what the
    policy says."""
    timeout_seconds: float | None = None
    max_steps: int | None = None
    """How many requests it may make."""
    budget: int | Budget | None = None
    """The largest input in tokens; by default that of the model, or of the table of models."""
    model: str | None = None
    """The model's name in that table, if it differs from the model's own name."""
    recall: bool = True
    """Whether the agent gets the recall tool once messages have left its view."""


def delegation_toolset(agents: Mapping[str, SubAgent]) -> FunctionToolset[Any]:
    """Return the tool `delegate`, by which the model of an agent with Holdfast delegates to other agents."""
    if not agents:
        raise SettingsError("agents", "is empty; pass at least one agent to delegate to")

    async def delegate(ctx: RunContext[Any], agent: str, task: str) -> str:
        sub_agent = agents.get(agent)
        if sub_agent is None:
            return f"there is no agent {agent!r:.80}; ask one of: {', '.join(agents)}"
        if not task.strip():
            return "say what the agent is to do: it knows only what you tell it and what it is shown"
        usage = RunUsage()
        try:
            return await _run_sub_agent(agent, task, sub_agent, usage)
        finally:
            # The tokens of the sub-agent count toward the run that delegated; its requests and calls do not.
            ctx.usage.incr(replace(usage, requests=0, tool_calls=0))

    listed = [f"- {name}: {one.description}" if one.description else f"- {name}" for name, one in agents.items()]
    description = "\n".join(["Give a task to another agent and get its answer back. Agents:", *listed])
    tool = Tool[Any].from_schema(delegate, DELEGATE_TOOL, description, _parameters(agents), takes_ctx=True)
    return FunctionToolset([tool], id="holdfast-delegating")


async def _run_sub_agent(name: str, task: str, sub_agent: SubAgent, usage: RunUsage) -> str:
    """Return a sub-agent's answer, or the reason why there is none, as text: the agent that delegated continues."""
    current = CURRENT_CONVERSATION.get()
    if current is None:
        raise SettingsError("delegate", "needs an agent with Holdfast: Agent(…, capabilities=[Holdfast(…)])")
    limits, policy = UsageLimits(request_limit=sub_agent.max_steps), current.session.policy
    holdfast = Holdfast(
        session=current.session, budget=sub_agent.budget, model=sub_agent.model, recall=sub_agent.recall
    )
    delegation = current.agent.delegate(
        name,
        task=task,
        sees=sub_agent.sees,
        main_sees=sub_agent.main_sees or policy.main_sees_sub_agents,
        timeout_seconds=sub_agent.timeout_seconds,
        adds_task_message=False,
    )
    try:
        async with delegation as child:
            conversation = AgentConversation(current.session, child)
            run = GovernedRun(holdfast, current.session.id, conversation, is_nested=True)
            result = await sub_agent.agent.run(
                child.opening_prompt, capabilities=[run], usage_limits=limits, usage=usage
            )
            return str(await child.answer(str(result.output)))
    except Exception as error:  # noqa: BLE001 - the log has the error, and the agent that delegated reads it
        why = "its time ran out" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
        return f"{name} has not answered: {why:.500}"


def _parameters(agents: Mapping[str, SubAgent]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "enum": list(agents)},
            "task": {
                "type": "string",
                "description": "What it is to do and to give back, with all that it has to know.",
            },
        },
        "required": ["agent", "task"],
        "additionalProperties": False,
    }
