"""Requests and responses of pydantic-ai, in few words."""

from holdfast.testing.chat import Json


def request(*parts: Json) -> Json:
    """Return what is said to the model."""
    return {"parts": list(parts), "instructions": None, "kind": "request"}


def response(*parts: Json) -> Json:
    """Return what the model says."""
    return {"parts": list(parts), "usage": {"input_tokens": 5}, "model_name": "m", "kind": "response"}


def prompt(content: object) -> Json:
    """Return a prompt: a text, or a list of items."""
    return {"content": content, "part_kind": "user-prompt"}


def told(text: str) -> Json:
    """Return system text."""
    return {"content": text, "dynamic_ref": None, "part_kind": "system-prompt"}


def answer(text: str) -> Json:
    """Return words of the model's."""
    return {"content": text, "id": None, "part_kind": "text"}


def call(call_id: str, name: str = "run", args: object = None) -> Json:
    """Return a tool call."""
    return {"tool_name": name, "args": args, "tool_call_id": call_id, "part_kind": "tool-call"}


def result(call_id: str, content: object = "ok", name: str = "run", **fields: object) -> Json:
    """Return what a tool gave back."""
    return {"tool_name": name, "content": content, "tool_call_id": call_id, "part_kind": "tool-return", **fields}
