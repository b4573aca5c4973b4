"""Builders for pydantic-ai messages."""

from holdfast.testing.chat import JsonMessage


def request_message(*parts: JsonMessage) -> JsonMessage:
    """Return a request."""
    return {"parts": list(parts), "instructions": None, "kind": "request"}


def response_message(*parts: JsonMessage) -> JsonMessage:
    """Return a response."""
    return {"parts": list(parts), "usage": {"input_tokens": 5}, "model_name": "m", "kind": "response"}


def user_prompt_part(content: object) -> JsonMessage:
    """Return a prompt: a text, or a list of items."""
    return {"content": content, "part_kind": "user-prompt"}


def system_prompt_part(text: str) -> JsonMessage:
    """Return system text."""
    return {"content": text, "dynamic_ref": None, "part_kind": "system-prompt"}


def text_reply_part(text: str) -> JsonMessage:
    """Return text of the model."""
    return {"content": text, "id": None, "part_kind": "text"}


def tool_call_part(call_id: str, name: str = "run", args: object = None) -> JsonMessage:
    """Return a tool call."""
    return {"tool_name": name, "args": args, "tool_call_id": call_id, "part_kind": "tool-call"}


def tool_return_part(call_id: str, content: object = "ok", name: str = "run", **fields: object) -> JsonMessage:
    """Return the result of a tool."""
    return {"tool_name": name, "content": content, "tool_call_id": call_id, "part_kind": "tool-return", **fields}
