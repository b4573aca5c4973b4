"""Answers that break the rules of their own format: what can be read is recorded as it is, and the rest as text.

Servers that only speak like a provider send blocks without a type, names that are null, and texts that are numbers. One
of them must not cost the rest of the answer.
"""

from collections.abc import Sequence

from holdfast.apps.gateway.recording.client_body import write_json
from holdfast.errors import HoldfastError
from holdfast.wire.answers import JsonMapping, JsonObject
from holdfast.wire.formats import format_named
from holdfast.wire.json_reader import is_list

_LISTS = ("content", "parts", "tool_calls", "summary")
"""Members with what a message says, piece by piece."""


def readable_messages(name: str, natives: Sequence[JsonMapping]) -> list[JsonMapping]:
    """Return the messages of an answer so that each can be recorded in a format."""
    return [native if _is_readable(name, native) else _readable(name, native) for native in natives]


def _readable(name: str, native: JsonMapping) -> JsonMapping:
    kept: JsonObject = {**native}
    odd: list[object] = []
    for member in _LISTS:
        pieces = kept.get(member)
        if not is_list(pieces):
            continue
        bare = {key: value for key, value in kept.items() if key not in _LISTS}
        flags = [_is_readable(name, {**bare, member: [piece]}) for piece in pieces]
        odd += [piece for piece, is_sound in zip(pieces, flags, strict=True) if not is_sound]
        kept[member] = [piece for piece, is_sound in zip(pieces, flags, strict=True) if is_sound]
        if not kept[member] and member == "tool_calls":
            del kept[member]
    said = _with_text(name, kept, [_written(piece) for piece in odd])
    return said if odd and _is_readable(name, said) else _with_text(name, {}, [_written(native)])


def _with_text(name: str, native: JsonMapping, texts: Sequence[str]) -> JsonMapping:
    """Return a message of the model with more texts in it."""
    if name.startswith("gemini"):
        parts = native.get("parts")
        added: list[object] = [{"text": text} for text in texts]
        return {"role": "model", **native, "parts": [*(parts if is_list(parts) else ()), *added]}
    kind = "output_text" if name.startswith("openai-responses") else "text"
    blocks: list[object] = [{"type": kind, "text": text} for text in texts]
    start: JsonObject = {"type": "message"} if kind == "output_text" and not native else {}
    content = native.get("content")
    before: list[object] = [{"type": kind, "text": content}] if content and isinstance(content, str) else []
    return {**start, "role": "assistant", **native, "content": [*(content if is_list(content) else before), *blocks]}


def _written(value: object) -> str:
    return write_json(value).decode(errors="replace")


def _is_readable(name: str, native: JsonMapping) -> bool:
    try:
        format_named(name).decode(native, 0)
    except (HoldfastError, ValueError, TypeError):
        return False
    return True
