"""How each wire format carries a batch: parallel tool calls and their results.

There are four ways. In chat formats one message holds all calls of a batch, and each result is a separate
message. Anthropic puts all results in one user message, and pydantic-ai in one request. In formats where
each call is a separate item, consecutive items of the model form the batch. Gemini has turns: one for the
calls, directly after a user turn, and one for all results. Only this module knows these rules; repair asks
it what a valid history looks like.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

_UNSAFE_ID_CHARS = r"[^a-zA-Z0-9_-]"
_MAX_ID_CHARS = 64
_MAX_CHAT_ID_CHARS = 40


class Batching(NamedTuple):
    """The form of calls and results in one family of formats."""

    is_grouped: bool = False
    """All results of a batch are in one user message, before any other part."""
    is_itemized: bool = False
    """Calls and reasoning are separate items, and consecutive items of the model form one batch."""
    calls_follow_user: bool = False
    """A message with calls directly follows a user message."""
    pairs_by_name: bool = False
    """Ids must differ only within a batch, and a result without an id is matched by tool name."""
    accepts_id: Callable[[str], bool] | None = None
    """Returns whether the provider accepts an id; None accepts every id."""
    max_id_chars: int = _MAX_ID_CHARS
    """The length of the longest id that is made here."""
    system_follows_user: bool = False
    """System text within a conversation directly follows a message of the user and precedes one of the model."""
    reasoned_types: frozenset[str] = frozenset()
    """The types of items that need the reasoning before them while they have an id, and are accepted without both."""


def is_short_id(call_id: str) -> bool:
    """Return whether an id is within the length limit of OpenAI Responses."""
    return len(call_id) <= _MAX_ID_CHARS


def is_chat_id(call_id: str) -> bool:
    """Return whether an id is within the length limit of OpenAI Chat Completions."""
    return len(call_id) <= _MAX_CHAT_ID_CHARS


def is_plain_id(call_id: str) -> bool:
    """Return whether an id is short and has only characters that Anthropic accepts."""
    return is_short_id(call_id) and not re.search(_UNSAFE_ID_CHARS, call_id)


def made_id(call_id: str, ending: str, max_chars: int) -> str:
    """Return an id with an ending, shortened and cleaned so that every provider accepts it."""
    stem = re.sub(_UNSAFE_ID_CHARS, "_", call_id)[:40] or "call"
    return stem[: max(0, max_chars - len(ending))] + ending


def id_from_name(name: str, number: int) -> str:
    """Return an id for a call or result without one: the tool name and its number among calls of that tool."""
    return f"{name}#{number}"


def is_id_from_name(call_id: str) -> bool:
    """Return whether `id_from_name` made an id."""
    _, mark, number = call_id.rpartition("#")
    return bool(mark) and number.isdecimal()


ONE_RESULT_PER_MESSAGE = Batching(accepts_id=is_chat_id, max_id_chars=_MAX_CHAT_ID_CHARS)
"""OpenAI Chat Completions."""
RESULTS_IN_ONE_MESSAGE = Batching(is_grouped=True, accepts_id=is_plain_id, system_follows_user=True)
"""Anthropic Messages."""
CALLS_AS_ITEMS = Batching(
    is_itemized=True,
    accepts_id=is_short_id,
    reasoned_types=frozenset({"message", "function_call", "custom_tool_call"}),
)
"""OpenAI Responses."""
CALL_AND_RESPONSE_TURNS = Batching(is_grouped=True, calls_follow_user=True, pairs_by_name=True)
"""Gemini."""
RESULTS_IN_ONE_REQUEST = Batching(is_grouped=True)
"""pydantic-ai."""
