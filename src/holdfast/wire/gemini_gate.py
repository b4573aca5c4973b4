"""What Gemini refuses in a turn, repaired when it is read, with a note.

Dumps of its Python SDK have other names for the same fields; older clients give responses a role of their own.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.wire.reading import InputPath, is_list, is_mapping

FOREIGN_SIGNATURE = "skip_thought_signature_validator"
"""What Gemini 3 accepts in place of its own signature on a call that another model made."""
FIELD_SPELLINGS = {
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "inline_data": "inlineData",
    "file_data": "fileData",
    "thought_signature": "thoughtSignature",
    "executable_code": "executableCode",
    "code_execution_result": "codeExecutionResult",
    "video_metadata": "videoMetadata",
}
_INNER_SPELLINGS = {"mime_type": "mimeType", "file_uri": "fileUri", "display_name": "displayName"}
_ROLES = {None: "user", "function": "user", "user": "user", "model": "model"}


def repair_turn(native: Mapping[str, Any], place: InputPath, *, is_signed: bool) -> Mapping[str, Any]:
    """Return a turn without what its provider refuses in it, noting what that took."""
    spelled = native.get("role")
    role = _ROLES.get(spelled) if spelled is None or isinstance(spelled, str) else None
    if role is not None and role != spelled:
        place.repair_notes.append("gave a turn without a known role the user's")
        native = {**native, "role": role}
    parts = native.get("parts")
    if not is_list(parts):
        return native
    mended = [part for raw in parts if (part := _repair_part(raw, role, place)) is not None]
    if is_signed:
        _sign_as_foreign(mended, place)
    is_same = len(mended) == len(parts) and all(new is old for new, old in zip(mended, parts, strict=True))
    return native if is_same else {**native, "parts": mended}


def _repair_part(part: Any, role: str | None, place: InputPath) -> Any:
    if not is_mapping(part):
        return part
    if None in part.values() or not FIELD_SPELLINGS.keys().isdisjoint(part):
        place.repair_notes.append("spelled the fields of a part as the API does")
        part = {
            FIELD_SPELLINGS.get(key, key): _camel_case_keys(value) for key, value in part.items() if value is not None
        }
    if not part or (part.get("thought") and part.get("text") == "" and not part.get("thoughtSignature")):
        place.repair_notes.append("left out an empty part")
        return None
    for key, owner in (("functionCall", "model"), ("functionResponse", "user")):
        if key in part and role is not None and role != owner:
            place.repair_notes.append(f"left out a {key} in a turn of the {role}")
            return None
    if is_mapping(call := part.get("functionCall")):
        return _with_changes(part, "functionCall", call, _call_changes(call, place))
    if is_mapping(response := part.get("functionResponse")):
        return _with_changes(part, "functionResponse", response, _response_changes(response, place))
    return part


def _camel_case_keys(value: Any) -> Any:
    if not is_mapping(value) or _INNER_SPELLINGS.keys().isdisjoint(value):
        return value
    return {_INNER_SPELLINGS.get(key, key): item for key, item in value.items() if item is not None}


def _with_changes(part: Any, key: str, function: Mapping[str, Any], changes: dict[str, Any]) -> Any:
    return {**part, key: {**function, **changes}} if changes else part


def _call_changes(call: Mapping[str, Any], place: InputPath) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if call.get("args") is not None and not is_mapping(call["args"]):
        changes["args"] = {"arguments": call["args"]}
        place.repair_notes.append("wrapped the arguments of a call that were no object")
    if not call.get("name"):
        changes["name"] = "tool"
        place.repair_notes.append("gave a call without a name one")
    return changes


def _response_changes(response: Mapping[str, Any], place: InputPath) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if not is_mapping(response.get("response")):
        changes["response"] = {} if response.get("response") is None else {"output": response["response"]}
        place.repair_notes.append("wrapped a response that was no object")
    if not response.get("name"):
        changes["name"] = "tool"
        place.repair_notes.append("gave a response without a name one")
    return changes


def _sign_as_foreign(parts: list[Any], place: InputPath) -> None:
    """Sign the first of a turn's calls as foreign if nobody has signed it."""
    for number, part in enumerate(parts):
        if is_mapping(part) and "functionCall" in part:
            if not part.get("thoughtSignature"):
                place.repair_notes.append("marked a call without a signature as another model's")
                parts[number] = {**part, "thoughtSignature": FOREIGN_SIGNATURE}
            return
