"""Gemini contents: turns of user and model, made of parts, with system text outside.

Calls may come without ids; then a response pairs by the name of its function and by order. From Gemini 3 on the first
call of a turn carries a signature that has to be sent back unchanged. Older models sign nothing and need no signature;
that is another contract, and so another format. Dumps of the Python SDK spell some fields differently, and older
clients give responses a role of their own: decoding repairs both.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.core.conversation.batching import CALL_AND_RESPONSE_TURNS, id_from_name
from holdfast.core.conversation.messages import (
    TRUST_OF_ROLE,
    Content,
    Media,
    Message,
    Opaque,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Trust,
)
from holdfast.core.conversation.tokens import utf8_length
from holdfast.core.conversation.transcript import MessageMeasures
from holdfast.wire.gemini_encode import encode_parts, response_media, response_text
from holdfast.wire.json_reader import (
    InputPath,
    extra_fields,
    is_list,
    is_mapping,
    json_bytes,
    json_type_name,
    measure_messages,
    replace_items,
)
from holdfast.wire.media import data_tokens, image_tokens

FOREIGN_SIGNATURE = "skip_thought_signature_validator"
"""What Gemini 3 accepts instead of its own signature on a call of another model."""
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


def _repair_turn(native: Mapping[str, Any], place: InputPath, *, is_signed: bool) -> Mapping[str, Any]:
    """Return a turn that the provider accepts, with a note for each repair."""
    spelled = native.get("role")
    role = _ROLES.get(spelled) if spelled is None or isinstance(spelled, str) else None
    if role is not None and role != spelled:
        place.repair_notes.append("set the role of a turn without a known role to user")
        native = {**native, "role": role}
    parts = native.get("parts")
    if not is_list(parts):
        return native
    repaired = [part for raw in parts if (part := _repair_part(raw, role, place)) is not None]
    if is_signed:
        _sign_as_foreign(repaired, place)
    return replace_items(native, "parts", repaired)


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
        place.repair_notes.append("wrapped the arguments of a call that were not an object")
    if not call.get("name"):
        changes["name"] = "tool"
        place.repair_notes.append("added a missing name to a call")
    return changes


def _response_changes(response: Mapping[str, Any], place: InputPath) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if not is_mapping(response.get("response")):
        changes["response"] = {} if response.get("response") is None else {"output": response["response"]}
        place.repair_notes.append("wrapped a response that was not an object")
    if not response.get("name"):
        changes["name"] = "tool"
        place.repair_notes.append("added a missing name to a response")
    return changes


def _sign_as_foreign(parts: list[Any], place: InputPath) -> None:
    """Sign the first call of a turn as foreign if it has no signature."""
    for number, part in enumerate(parts):
        if is_mapping(part) and "functionCall" in part:
            if not part.get("thoughtSignature"):
                place.repair_notes.append("marked a call without a signature as another model's")
                parts[number] = {**part, "thoughtSignature": FOREIGN_SIGNATURE}
            return


GEMINI_FORMAT_NAME = "gemini"
GEMINI_UNSIGNED_FORMAT_NAME = "gemini-2"
GEMINI_ROLES: Mapping[str, Role] = {"user": "user", "model": "assistant"}
SIGNATURE_FIELD = "thoughtSignature"
CHARS_PER_SIGNATURE_TOKEN = 4
_FIELDS = frozenset({"role", "parts"})
_PART_FIELDS = frozenset(
    {"text", "thought", SIGNATURE_FIELD, "functionCall", "functionResponse", "inlineData", "fileData"}
)
_CALL_FIELDS = frozenset({"id", "name", "args"})
_RESPONSE_FIELDS = frozenset({"id", "name", "response", "parts"})


class Gemini:
    """Reads and writes contents."""

    batching = CALL_AND_RESPONSE_TURNS
    has_separate_system = True
    max_cache_marks: int | None = None
    max_text_chars: int | None = None
    max_images = 3_000

    def __init__(self, *, is_signed: bool = True) -> None:
        self.name = GEMINI_FORMAT_NAME if is_signed else GEMINI_UNSIGNED_FORMAT_NAME
        self._is_signed = is_signed

    def measure(self, natives: Sequence[Any], start: int) -> MessageMeasures:
        """Return the sizes and roles of turns."""
        return measure_messages(
            natives,
            start,
            role_key="role",
            roles=GEMINI_ROLES,
            content_key="parts",
            measure_content=_measure_parts,
            decode=self.decode,
        )

    def decode(self, native: object, index: int) -> Message:
        """Return a turn with its parts."""
        place = InputPath(index)
        native = place.sendable_message(place.require_message(native))
        native = _repair_turn(native, place, is_signed=self._is_signed)
        role = place.require_role(native, GEMINI_ROLES)
        parts = tuple(_parts(native.get("parts"), TRUST_OF_ROLE[role], place))
        return Message(role, parts, native, parts, tuple(place.repair_notes), _extras(native))

    def encode(self, message: Message) -> Mapping[str, Any]:
        """Return a turn as JSON: its original JSON, changed only where it was edited."""
        if message.is_unedited and message.native is not None:
            return message.native
        role = "model" if message.role == "assistant" else "user"
        parts = encode_parts(message.parts)
        if self._is_signed:
            parts = _sign_first_call(parts)
        return {**(message.native or {"role": role}), "parts": parts}

    def json_bytes(self, message: Message) -> int:
        """Return the size of a turn as it would be sent."""
        return json_bytes(self.encode(message))


def _sign_first_call(parts: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return parts with the first call signed; only the first of parallel calls needs a signature."""
    first = next((number for number, part in enumerate(parts) if "functionCall" in part), None)
    if first is None or parts[first].get(SIGNATURE_FIELD):
        return parts
    return [*parts[:first], {**parts[first], SIGNATURE_FIELD: FOREIGN_SIGNATURE}, *parts[first + 1 :]]


def _measure_parts(parts: Any) -> tuple[int, bool]:
    """Return the size of plain parts and whether they are more than responses; raises if they are not plain."""
    size, is_prompt = 0, False
    for part in parts:
        if type(part.get(SIGNATURE_FIELD, "")) is not str:
            raise TypeError
        if (text := part.get("text")) is not None:
            size += utf8_length(text)
            is_prompt = True
        elif (call := part.get("functionCall")) is not None:
            size += len(call.get("id", "") + call["name"] + json.dumps(call.get("args") or {}, allow_nan=False))
        else:
            size += _measure_response(part["functionResponse"])
    return size, is_prompt


def _measure_response(response: Any) -> int:
    if "parts" in response:
        raise ValueError
    value = response["response"]
    values = list(value.values())
    size = len(response.get("id", "") + response["name"])
    if len(values) == 1 and type(values[0]) is str:
        return size + utf8_length(values[0])
    return size + len(json.dumps(value, allow_nan=False))


def _parts(value: object, trust: Trust, place: InputPath) -> Iterator[Part]:
    if value is None:
        return
    if not is_list(value):
        place.fail(".parts", f"must be a list of parts, not {json_type_name(value)}")
    calls: Counter[str] = Counter()
    responses: Counter[str] = Counter()
    for number, raw in enumerate(value):
        path = f".parts[{number}]"
        part = place.require_mapping(raw, path)
        signature = (
            None
            if part.get(SIGNATURE_FIELD) is None
            else place.require_text(part[SIGNATURE_FIELD], f"{path}.{SIGNATURE_FIELD}")
        )
        if "functionCall" in part:
            read: Part = _call(part, calls, place, f"{path}.functionCall")
        elif "functionResponse" in part:
            read = _response(part, responses, place, f"{path}.functionResponse")
        elif "text" in part:
            read = _text(part, signature, trust, place, path)
        else:
            read = _content(part, trust, place, path)
        if signature and not isinstance(read, Thinking | Opaque):
            tokens = len(signature) // CHARS_PER_SIGNATURE_TOKEN
            yield Opaque(SIGNATURE_FIELD, "", trust, SIGNATURE_FIELD, tokens)
        yield read


def _text(part: Mapping[str, Any], signature: str | None, trust: Trust, place: InputPath, path: str) -> Text | Thinking:
    text = place.require_text(part["text"], f"{path}.text")
    # A signature may arrive on a part without text, and has to be sent back on it.
    if part.get("thought") is True or (signature and not text.strip()):
        return Thinking(text, signature, native=part)
    return Text(text, trust, part)


def _id(function: Mapping[str, Any], name: str, numbers: Counter[str], place: InputPath, path: str) -> str:
    if function.get("id"):
        return place.require_text(function["id"], f"{path}.id")
    numbers[name] += 1
    return id_from_name(name, numbers[name])


def _call(part: Mapping[str, Any], numbers: Counter[str], place: InputPath, path: str) -> ToolCall:
    call = place.require_mapping(part["functionCall"], path)
    name = place.require_text(call.get("name"), f"{path}.name")
    arguments = place.json_text(call.get("args") or {}, f"{path}.args")
    return ToolCall(_id(call, name, numbers, place, path), name, arguments, native=part)


def _response(part: Mapping[str, Any], numbers: Counter[str], place: InputPath, path: str) -> ToolResult:
    response = place.require_mapping(part["functionResponse"], path)
    name = place.require_text(response.get("name"), f"{path}.name")
    value = place.require_mapping(response.get("response"), f"{path}.response")
    media = response.get("parts")
    if media is not None and not is_list(media):
        place.fail(f"{path}.parts", f"must be a list of parts, not {json_type_name(media)}")
    text = response_text(value)
    content: tuple[Content, ...] = (Text(text, "tool"),) if text else ()
    for number, inner in enumerate(media or ()):
        content += (_content(place.require_mapping(inner, f"{path}.parts[{number}]"), "tool", place, path),)
    call_id = _id(response, name, numbers, place, path)
    return ToolResult(call_id, content, [*value] == ["error"], native=part)


def _content(part: Mapping[str, Any], trust: Trust, place: InputPath, path: str) -> Content:
    for key in ("inlineData", "fileData"):
        if is_mapping(data := part.get(key)):
            mime = str(data.get("mimeType"))
            if mime.startswith("image/"):
                return Media("image", trust, image_tokens(), part)
            return Media(
                "audio" if mime.startswith("audio/") else "document", trust, data_tokens(data.get("data")), part
            )
    kind = next((key for key in part if key not in {"thought", SIGNATURE_FIELD}), "part")
    return Opaque(kind, place.json_text(part, path), trust, part)


def _extras(native: Mapping[str, Any]) -> str:
    """Return everything that is sent but that no part represents, as JSON text."""
    extras = extra_fields(native, _FIELDS)
    for part in native.get("parts") or ():
        if not part.keys().isdisjoint(_PART_FIELDS - {"thought", SIGNATURE_FIELD}):
            extras += extra_fields(part, _PART_FIELDS)
        extras += extra_fields(part.get("functionCall"), _CALL_FIELDS)
        if is_mapping(response := part.get("functionResponse")):
            extras += extra_fields(response, _RESPONSE_FIELDS)
            extras += "".join(f'{{"inlineData": "{kind}"}}' for kind in response_media(response))
    return extras
