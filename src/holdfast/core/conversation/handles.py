"""How a model is told that there is more: the name of the tool that has it, and a short handle.

A handle is `#` and a position, with the number of a part where a message has several. Where the model has no such
tool, nothing here is said: a handle that leads nowhere is worse than none.
"""

RECALL_TOOL = "recall"
"""The name of the tool. What it gives back is not shortened, offloaded or found by it again."""


def message_handle(position: int, part: int | None = None) -> str:
    """Return how a message, or one part of it, is asked for; parts are counted from 1."""
    return f"#{position}" if part is None else f"#{position}.{part}"


def recall_range_hint(start: int, stop: int) -> str:
    """Return the line below what stands for messages that says how to see them."""
    return f"[All of it can be looked up: {RECALL_TOOL} with ref #{start}-#{stop - 1}, or with a query.]"


def recall_hint(what: str) -> str:
    """Return the words that tell a model how to get something."""
    return f"{RECALL_TOOL} {what}"
