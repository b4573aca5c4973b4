"""The tools that a session offers to the model, as values for any framework."""

from collections.abc import Awaitable, Callable, Mapping

from holdfast.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ModelTool:
    """A tool: its definition and its function."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments."""
    call: Callable[[Mapping[str, object]], Awaitable[str]]
    """Returns the answer as text; never raises, whatever arguments a model passes."""


COMPACT_CONTEXT = "compact_context"
COMPACT_DESCRIPTION = (
    "Replace what you have gathered so far by a summary, to make room for more work. The task, the newest exchange and"
    " what was pinned stay as they are. Call it alone, when much of what you have read is not needed to the letter any"
    " more."
)
COMPACT_PARAMETERS: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "focus": {"type": "string", "description": "What the summary must hold above all, in a few words."},
        "note": {
            "type": "string",
            "description": "A note to yourself, kept as you write it: what is done, what was decided, what comes next.",
        },
    },
    "required": [],
    "additionalProperties": False,
}
