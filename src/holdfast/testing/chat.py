"""Chat messages in OpenAI's shape, in few words."""

import json
from collections.abc import Mapping

Json = dict[str, object]


def said(text: str) -> Json:
    """Return a user message."""
    return {"role": "user", "content": text}


def answered(text: str) -> Json:
    """Return an assistant message."""
    return {"role": "assistant", "content": text}


def told(text: str) -> Json:
    """Return a system message."""
    return {"role": "system", "content": text}


def called(*call_ids: str, name: str = "read_file", arguments: Mapping[str, object] | None = None) -> Json:
    """Return an assistant message that calls a tool once for each id."""
    function = {"name": name, "arguments": json.dumps(arguments or {"path": "src/a.py"})}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in call_ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def returned(call_id: str, text: str = "ok") -> Json:
    """Return a tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}
