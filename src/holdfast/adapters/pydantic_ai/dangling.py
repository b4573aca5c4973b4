"""Calls that nobody will answer any more, as co-cli closes them.

When a turn is stopped, its last response may hold calls without a result, and no provider takes such a history. One
request with a result for each of them makes it whole again.
"""

from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

from holdfast.core.conversation.pairing import INTERRUPTED_RESULT


def patch_dangling_tool_calls(
    messages: Sequence[ModelMessage], error_message: str = INTERRUPTED_RESULT
) -> list[ModelMessage]:
    """Return the messages, and a result for each call of the last response that has none."""
    open_calls = _dangling_calls(messages)
    if not open_calls:
        return list(messages)
    results = [
        ToolReturnPart(call.tool_name, error_message, call.tool_call_id, outcome="interrupted") for call in open_calls
    ]
    return [*messages, ModelRequest(parts=results)]


def has_dangling_calls(messages: Sequence[ModelMessage]) -> bool:
    """Return whether the last response made calls that nobody has answered."""
    return bool(_dangling_calls(messages))


def _dangling_calls(messages: Sequence[ModelMessage]) -> list[ToolCallPart]:
    """Return the calls of the last response that have no result behind it."""
    last = next((at for at in range(len(messages) - 1, -1, -1) if isinstance(messages[at], ModelResponse)), None)
    if last is None:
        return []
    behind = [part for message in messages[last + 1 :] for part in message.parts]
    if any(not isinstance(part, ToolReturnPart) for part in behind):
        return []
    answered = {part.tool_call_id for part in behind if isinstance(part, ToolReturnPart)}
    calls = [part for part in messages[last].parts if isinstance(part, ToolCallPart)]
    return [call for call in calls if call.tool_call_id not in answered]
