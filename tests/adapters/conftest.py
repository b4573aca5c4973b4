"""What the tests of the pydantic-ai adapter share."""

from pydantic_ai.messages import ModelMessage, ToolReturnPart


def is_return(message: ModelMessage) -> bool:
    """Return whether a message holds the result of a tool call."""
    return any(isinstance(part, ToolReturnPart) for part in message.parts)


def kinds(messages: list[ModelMessage]) -> list[list[str]]:
    """Return the kinds of the parts of each message."""
    return [[part.part_kind for part in message.parts] for message in messages]


def twice(number: int) -> int:
    """Return a number twice."""
    return 2 * number
