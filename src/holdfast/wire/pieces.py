"""Pieces of a prompt: pydantic-ai writes the words and files of one prompt as items of one part."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class PromptPiece(NamedTuple):
    """What one part of ours was read from, where a prompt has several items."""

    part: Mapping[str, Any]
    """The prompt."""
    items: tuple[Any, ...]
    """The item itself, and marks beside it that nobody sees, such as cache points: they travel with it."""
    item_index: int
    """Which of them is the item itself."""
    is_first: bool
    """Whether the prompt begins with them."""
