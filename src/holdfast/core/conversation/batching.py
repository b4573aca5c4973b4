"""How each wire format carries a batch: the tool calls a model makes at once, and their results.

There are four ways. In chat formats one message makes all calls of a batch, and each result is a message
of its own. Anthropic gathers the results in one user message, and pydantic-ai in one request. Where every
call is an element of its own, a run of the model's elements is the batch. Gemini has turns: one for the
calls, directly after the user's, and one for all results. Repair asks here what a valid history looks like;
nothing else knows.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

_UNSAFE_ID_CHARS = r"[^a-zA-Z0-9_-]"
_MAX_ID_CHARS = 64


class Batching(NamedTuple):
    """What calls and results look like in one family of formats."""

    is_grouped: bool = False
    """All results of a batch travel in one user message, before anything else in it."""
    is_itemized: bool = False
    """Calls and reasoning are elements of their own, and consecutive elements of the model one batch."""
    calls_follow_user: bool = False
    """A message with calls stands directly behind one of the user's."""
    pairs_by_name: bool = False
    """Ids need to differ within a batch only, and a result without one goes by the name of the tool."""
    accepts_id: Callable[[str], bool] | None = None
    """Whether an id can be sent; None takes any."""


def is_short_id(call_id: str) -> bool:
    """Return whether an id is no longer than OpenAI's Responses take."""
    return len(call_id) <= _MAX_ID_CHARS


def is_plain_id(call_id: str) -> bool:
    """Return whether an id has only what Anthropic takes."""
    return is_short_id(call_id) and not re.search(_UNSAFE_ID_CHARS, call_id)


def safe_id_stem(call_id: str) -> str:
    """Return what every provider takes of an id."""
    return re.sub(_UNSAFE_ID_CHARS, "_", call_id)[:40] or "call"


def id_from_name(name: str, number: int) -> str:
    """Return the id of a call or result that came without one: its tool's name, and which of these it is."""
    return f"{name}#{number}"


def is_id_from_name(call_id: str) -> bool:
    """Return whether an id was made of a name because there was none."""
    _, mark, number = call_id.rpartition("#")
    return bool(mark) and number.isdecimal()


ONE_RESULT_PER_MESSAGE = Batching()
"""OpenAI Chat Completions."""
RESULTS_IN_ONE_MESSAGE = Batching(is_grouped=True, accepts_id=is_plain_id)
"""Anthropic Messages."""
CALLS_AS_ITEMS = Batching(is_itemized=True, accepts_id=is_short_id)
"""OpenAI Responses."""
CALL_AND_RESPONSE_TURNS = Batching(is_grouped=True, calls_follow_user=True, pairs_by_name=True)
"""Gemini."""
RESULTS_IN_ONE_REQUEST = Batching(is_grouped=True)
"""pydantic-ai."""
