"""A session's own tools among those of an agent."""

from collections.abc import Callable
from typing import Any

from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import FunctionToolset

from holdfast.session.tools import COMPACT_CONTEXT, COMPACT_DESCRIPTION, COMPACT_PARAMETERS, ModelTool


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
