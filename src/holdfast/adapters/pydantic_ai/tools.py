"""The tools of a session, recall and compaction, as pydantic-ai toolsets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import RunContext, Tool, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset
from pydantic_core import SchemaValidator, core_schema

from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.recall.query import RECALL_DESCRIPTION, RECALL_PARAMETERS
from holdfast.session.tools import COMPACT_CONTEXT, COMPACT_DESCRIPTION, COMPACT_PARAMETERS, ModelTool

ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))
"""Accepts any arguments: recall itself answers invalid ones with a text that says what would be valid."""


def without_recall(tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
    """Return tools without recall, which is of no use while the whole conversation is in view."""
    return [tool for tool in tools if tool.name != RECALL_TOOL]


def tool_json(tool: ToolDefinition) -> Mapping[str, object]:
    """Return a tool as requests of a session record it."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters_json_schema}


RECALL_TOOLSET_ID = "holdfast-recall"
RECALL_DEFINITION = ToolDefinition(
    name=RECALL_TOOL,
    description=RECALL_DESCRIPTION,
    parameters_json_schema=dict(RECALL_PARAMETERS),
    toolset_id=RECALL_TOOLSET_ID,  # else pydantic-ai adds it in every step, to a copy
)


class RecallToolset(AbstractToolset[Any]):
    """The recall tool, for the session of one run."""

    def __init__(self, get_tool: Callable[[], ModelTool | None]) -> None:
        """`get_tool` returns the session's tool once the run has opened it."""
        self._get_tool = get_tool

    @property
    def id(self) -> str:
        """The id of the toolset."""
        return RECALL_TOOLSET_ID

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tool for every step. Preparing a request decides whether that request offers it."""
        del ctx
        tool = ToolsetTool(toolset=self, tool_def=RECALL_DEFINITION, max_retries=1, args_validator=ANY_OBJECT)
        return {RECALL_TOOL: tool}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        """Return the answer of recall, also for invalid arguments."""
        del name, ctx, tool
        recall = self._get_tool()
        return "[Recall: nothing was said yet.]" if recall is None else await recall.call(tool_args)


@dataclass
class WithRecall(WrapperToolset[Any]):
    """The toolsets of an agent, and recall.

    If recall were one more toolset of the agent, pydantic-ai would start six tasks in every step.
    """

    recall: RecallToolset

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools of the run for a step, and recall as the last one."""
        tools = await self.wrapped.get_tools(ctx)
        if (other := tools.get(RECALL_TOOL)) is not None:
            problem = f"defines a tool whose name conflicts with existing tool from {other.toolset.label}"
            raise UserError(f"{self.recall.label} {problem}: {RECALL_TOOL!r}. {self.recall.tool_name_conflict_hint}")
        return tools | await self.recall.get_tools(ctx)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Return the result of a tool."""
        toolset = self.recall if name == RECALL_TOOL else self.wrapped
        return await toolset.call_tool(name, tool_args, ctx, tool)


def with_recall(toolset: AbstractToolset[Any], recall: RecallToolset) -> AbstractToolset[Any]:
    """Return the toolset of a run with recall beside those of the agent, inside what prepares and filters them."""
    if isinstance(toolset, WrapperToolset):
        return replace(toolset, wrapped=with_recall(toolset.wrapped, recall))
    return WithRecall(toolset, recall)


def compaction_toolset(get_tool: Callable[[], ModelTool | None]) -> FunctionToolset[Any]:
    """Return the toolset with which a model requests a compaction; `get_tool` is the same as for `RecallToolset`."""

    async def compact_context(**arguments: object) -> str:
        tool = get_tool()
        return "nothing was said yet" if tool is None else await tool.call(arguments)

    # Sequential: results of other calls of the same step must not be compacted before the model has read them.
    tool = Tool[Any].from_schema(
        compact_context, COMPACT_CONTEXT, COMPACT_DESCRIPTION, dict(COMPACT_PARAMETERS), sequential=True
    )
    return FunctionToolset([tool], id="holdfast-compacting")
