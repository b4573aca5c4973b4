"""Sub-agents: a tool that runs another agent inside a delegation of the same session.

The sub-agent's run is governed like any other, in a scope of its own: it sees what was chosen for it, and its history
is folded for its own window. What it says in the end is the result of the call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.tools import RunContext, Tool
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RunUsage, UsageLimits

from holdfast.adapters.pydantic_ai.conversation import AgentConversation, SessionOptions, SessionPool
from holdfast.adapters.pydantic_ai.run import CURRENT_CONVERSATION, GovernedRun
from holdfast.core.history.events import Usage
from holdfast.core.history.scopes import MainVisibility
from holdfast.core.history.visibility import SEES_EVERYTHING, Visibility
from holdfast.core.planning.situation import Budget
from holdfast.errors import SettingsError
from holdfast.session.request import Request
from holdfast.session.session import Session

DELEGATE_TOOL = "delegate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAgent:
    """An agent that others may ask."""

    agent: Agent[Any, Any]
    description: str = ""
    """What it is for, as the model is told."""
    sees: Visibility = SEES_EVERYTHING
    main_sees: MainVisibility = "nothing"
    """What the main agent sees of its work beside the answer, which is the result of its call."""
    timeout_seconds: float | None = None
    max_steps: int | None = None
    """How many requests it may make."""
    budget: int | Budget | None = None
    """The largest input in tokens; without it the model says, or the table of models."""
    model: str | None = None
    """Its name in that table, where its own is not the one there."""
    recall: bool = True
    """Whether it has the tool of that name once something is out of its view."""


@dataclass
class _SubAgentConfig:
    """What the runs of a sub-agent share: its own model and window, and nothing of the one who asked."""

    conversations: SessionPool
    budget: int | Budget | None
    model: str | None
    recall: bool
    recall_from: Sequence[str] = ()
    compact_context: bool = False
    last_request: Request | None = None
    last_usage: Usage | None = None

    def run_started(self, session: Session) -> None:
        """Hear that a run takes part in a session."""


class SubAgentCapability(AbstractCapability[Any]):
    """Governs one run of a sub-agent."""

    id = "holdfast"

    def __init__(self, sub_agent: SubAgent, conversation: AgentConversation) -> None:
        self._sub_agent = sub_agent
        self._conversation = conversation

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """Return what governs it."""
        conversations = SessionPool(SessionOptions(), self._conversation.session)
        asked = self._sub_agent
        governor = _SubAgentConfig(conversations, asked.budget, asked.model or ctx.model.model_id, asked.recall)
        return _DelegatedRun(governor, self._conversation)


class _DelegatedRun(GovernedRun):
    """A run whose conversation is a delegation's."""

    def __init__(self, config: _SubAgentConfig, conversation: AgentConversation) -> None:
        super().__init__(config, conversation.session.id, is_nested=True)
        self._delegated_conversation = conversation

    async def _open_conversation(self) -> AgentConversation:
        return self._delegated_conversation


def delegation_toolset(agents: Mapping[str, SubAgent]) -> FunctionToolset[Any]:
    """Return the tool `delegate`, by which the model of a governed agent asks one of some others."""
    if not agents:
        raise SettingsError("agents", "is empty: there is nobody to delegate to")

    async def delegate(ctx: RunContext[Any], agent: str, task: str) -> str:
        asked = agents.get(agent)
        if asked is None:
            return f"there is no agent {agent!r:.80}; ask one of: {', '.join(agents)}"
        if not task.strip():
            return "say what the agent is to do: it knows only what you tell it and what it is shown"
        spent = RunUsage()
        try:
            return await _run_sub_agent(agent, task, asked, spent)
        finally:
            # What it cost is part of the run that asked; its requests are steps of its own.
            ctx.usage.incr(replace(spent, requests=0, tool_calls=0))

    tool = Tool[Any].from_schema(delegate, DELEGATE_TOOL, _description(agents), _parameters(agents), takes_ctx=True)
    return FunctionToolset([tool], id="holdfast-delegating")


async def _run_sub_agent(name: str, task: str, sub_agent: SubAgent, usage: RunUsage) -> str:
    """Return what a sub-agent answers, or why it does not, in words: the one who asked is to go on."""
    current = CURRENT_CONVERSATION.get()
    if current is None:
        raise SettingsError("delegate", "is for agents that Holdfast governs: capabilities=[Holdfast(…)]")
    limits = UsageLimits(request_limit=sub_agent.max_steps)
    sending = current.delegator.delegate(
        name,
        task=task,
        sees=sub_agent.sees,
        main_sees=sub_agent.main_sees,
        timeout_seconds=sub_agent.timeout_seconds,
        adds_task_message=False,
    )
    try:
        async with sending as child:
            governed = SubAgentCapability(sub_agent, AgentConversation(current.session, child))
            result = await sub_agent.agent.run(
                child.opening_prompt, capabilities=[governed], usage_limits=limits, usage=usage
            )
            return str(await child.answer(str(result.output)))
    except Exception as error:  # noqa: BLE001 - whatever it was, the log has it, and the one who asked is told
        why = "its time ran out" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
        return f"{name} has not answered: {why:.500}"


def _description(agents: Mapping[str, SubAgent]) -> str:
    listed = [f"- {name}: {one.description}" if one.description else f"- {name}" for name, one in agents.items()]
    return "\n".join(["Give a task to another agent and get its answer back. Agents:", *listed])


def _parameters(agents: Mapping[str, SubAgent]) -> dict[str, Any]:
    told = "What it is to do and to give back, with all that it has to know."
    return {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "enum": list(agents)},
            "task": {"type": "string", "description": told},
        },
        "required": ["agent", "task"],
        "additionalProperties": False,
    }
