"""Builders for Gemini contents."""

from collections.abc import Mapping

from holdfast.testing.chat import JsonMessage


def user_turn(*parts: JsonMessage) -> JsonMessage:
    """Return a user turn."""
    return {"role": "user", "parts": list(parts)}


def model_turn(*parts: JsonMessage) -> JsonMessage:
    """Return a model turn."""
    return {"role": "model", "parts": list(parts)}


def text_part(text: str) -> JsonMessage:
    """Return a text part."""
    return {"text": text}


def function_call_part(name: str = "run", call_id: str | None = None, signature: str | None = "c2ln") -> JsonMessage:
    """Return a function call, with or without an id and a signature."""
    function: JsonMessage = {"name": name, "args": {"path": "src/a.py"}}
    part: JsonMessage = {"functionCall": {"id": call_id, **function} if call_id else function}
    return {**part, "thoughtSignature": signature} if signature else part


def function_response_part(
    name: str = "run", call_id: str | None = None, response: Mapping[str, object] | str | None = "ok"
) -> JsonMessage:
    """Return a function response, with or without an id."""
    value = {"output": response} if isinstance(response, str) else response
    function: JsonMessage = {"name": name, "response": value}
    return {"functionResponse": {"id": call_id, **function} if call_id else function}
