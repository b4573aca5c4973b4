"""Gemini contents, in few words."""

from collections.abc import Mapping

from holdfast.testing.chat import Json


def user_turn(*parts: Json) -> Json:
    """Return a turn of the user's."""
    return {"role": "user", "parts": list(parts)}


def model_turn(*parts: Json) -> Json:
    """Return a turn of the model's."""
    return {"role": "model", "parts": list(parts)}


def words(text: str) -> Json:
    """Return a part of words."""
    return {"text": text}


def call_part(name: str = "run", call_id: str | None = None, signature: str | None = "c2ln") -> Json:
    """Return a function call, with or without an id and a signature."""
    function: Json = {"name": name, "args": {"path": "src/a.py"}}
    part: Json = {"functionCall": {"id": call_id, **function} if call_id else function}
    return {**part, "thoughtSignature": signature} if signature else part


def response_part(
    name: str = "run", call_id: str | None = None, response: Mapping[str, object] | str | None = "ok"
) -> Json:
    """Return a function response, with or without an id."""
    said = {"output": response} if isinstance(response, str) else response
    function: Json = {"name": name, "response": said}
    return {"functionResponse": {"id": call_id, **function} if call_id else function}
