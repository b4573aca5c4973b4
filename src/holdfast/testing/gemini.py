"""Gemini contents, in few words."""

from collections.abc import Mapping

from holdfast.testing.chat import JsonMessage


def user_turn(*parts: JsonMessage) -> JsonMessage:
    """Return a turn of the user's."""
    return {"role": "user", "parts": list(parts)}


def model_turn(*parts: JsonMessage) -> JsonMessage:
    """Return a turn of the model's."""
    return {"role": "model", "parts": list(parts)}


def text_part(text: str) -> JsonMessage:
    """Return a part of words."""
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
    said = {"output": response} if isinstance(response, str) else response
    function: JsonMessage = {"name": name, "response": said}
    return {"functionResponse": {"id": call_id, **function} if call_id else function}
