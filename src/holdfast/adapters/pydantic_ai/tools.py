"""The recall tool among the tools of an agent: what a run is not shown any more, its model can ask for.

A session's own tools among those of an agent.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai.tools import RunContext, Tool, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.recall.query import RECALL_DESCRIPTION, RECALL_PARAMETERS
from holdfast.session.tools import COMPACT_CONTEXT, COMPACT_DESCRIPTION, COMPACT_PARAMETERS, ModelTool

MIN_RECALL_BUDGET = 4_000
"""In a smaller window the words that tell of the tool would take more than a twentieth: there it is left out."""
ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))
"""Recall itself answers what it cannot understand, in words that say what would do."""


def without_recall(tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
    """Return tools without this one: a conversation that is in view as a whole has no use for it."""
    return [tool for tool in tools if tool.name != RECALL_TOOL]


class RecallToolset(AbstractToolset[Any]):
    """One tool, for the session of one run."""

    def __init__(self, get_tool: Callable[[], ModelTool | None]) -> None:
        """`found` returns the session's tool once the run has opened it."""
        self._get_tool = get_tool

    @property
    def id(self) -> str:
        """How those know it that keep track of toolsets."""
        return "holdfast-recall"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tool, always; whether a request tells of it is decided when it is prepared."""
        del ctx
        told = ToolDefinition(
            name=RECALL_TOOL, description=RECALL_DESCRIPTION, parameters_json_schema=dict(RECALL_PARAMETERS)
        )
        return {RECALL_TOOL: ToolsetTool(toolset=self, tool_def=told, max_retries=1, args_validator=ANY_OBJECT)}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        """Answer, whatever is asked."""
        del name, ctx, tool
        recall = self._get_tool()
        return "[Recall: nothing was said yet.]" if recall is None else await recall.call(tool_args)


def compaction_toolset(get_tool: Callable[[], ModelTool | None]) -> FunctionToolset[Any]:
    """Return the tool by which the model asks for a compaction; `found` has it once the run has opened its session."""

    async def compact_context(**arguments: object) -> str:
        tool = get_tool()
        return "nothing was said yet" if tool is None else await tool.call(arguments)

    # Alone: what other calls of the same step give back is still to come, and must not be folded before it is read.
    tool = Tool[Any].from_schema(
        compact_context, COMPACT_CONTEXT, COMPACT_DESCRIPTION, dict(COMPACT_PARAMETERS), sequential=True
    )
    return FunctionToolset([tool], id="holdfast-compacting")
