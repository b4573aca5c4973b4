"""Builders for OpenAI chat messages."""

import json
from collections.abc import Mapping

JsonMessage = dict[str, object]


def user_message(text: str) -> JsonMessage:
    """Return a user message."""
    return {"role": "user", "content": text}


def assistant_message(text: str) -> JsonMessage:
    """Return an assistant message."""
    return {"role": "assistant", "content": text}


def system_message(text: str) -> JsonMessage:
    """Return a system message."""
    return {"role": "system", "content": text}


def tool_call_message(
    *call_ids: str, name: str = "read_file", arguments: Mapping[str, object] | None = None
) -> JsonMessage:
    """Return an assistant message that calls a tool once for each id."""
    function = {"name": name, "arguments": json.dumps(arguments or {"path": "src/a.py"})}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in call_ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def tool_result_message(call_id: str, text: str = "ok") -> JsonMessage:
    """Return a tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}
