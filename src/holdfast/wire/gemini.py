"""Gemini contents: turns of user and model, made of parts, with system text outside.

Calls may come without ids; then a response pairs by the name of its function and by order. From Gemini 3 on the first
call of a turn carries a signature that has to be sent back unchanged. Older models sign nothing and need no signature;
that is another contract, and so another format. Dumps of the Python SDK spell some fields differently, and older
clients give responses a role of their own: decoding repairs both.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.conversation.batching import CALL_AND_RESPONSE_TURNS, id_from_name, is_id_from_name
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
from holdfast.text import lazy_pattern
from holdfast.wire.anthropic import arguments_object
from holdfast.wire.json_reader import (
    InputPath,
    as_object,
    extra_fields,
    is_list,
    is_mapping,
    json_type_name,
    measure_messages,
    replace_items,
)
from holdfast.wire.media import PDF_TYPE, data_tokens, image_source, image_tokens, opaque_block, pdf_data

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
    "tool_call": "toolCall",
    "tool_response": "toolResponse",
    "media_resolution": "mediaResolution",
    "media_processing": "mediaProcessing",
    "part_metadata": "partMetadata",
    "speech_metadata": "speechMetadata",
    "audio_transcription": "audioTranscription",
}
_INNER_SPELLINGS = {
    "mime_type": "mimeType",
    "file_uri": "fileUri",
    "display_name": "displayName",
    "tool_type": "toolType",
    "start_offset": "startOffset",
    "end_offset": "endOffset",
    "will_continue": "willContinue",
}
_ROLES = {None: "user", "function": "user", "user": "user", "model": "model"}
GEMINI_ROLES: Mapping[str, Role] = {"user": "user", "model": "assistant"}
REPORT_START = "For context: below is a transcript of what another agent did, quoted between "
"""How Google's ADK begins the report of another agent's work; the report itself follows in parts of its own."""
OLD_REPORT_START, OLD_REPORT_LINES = "For context:", ("said:", "called tool ", "`")
"""The whole first part of such a report in ADK before version 2, and how the next goes on after `[agent] `."""
SIGNATURE_FIELD = "thoughtSignature"
CHARS_PER_SIGNATURE_TOKEN = 4
_FIELDS = frozenset({"role", "parts"})
_PART_FIELDS = frozenset(
    {"text", "thought", SIGNATURE_FIELD, "functionCall", "functionResponse", "inlineData", "fileData"}
)
_TOOL_NAME = lazy_pattern(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
"""What a function may be called when it is declared; the API gives lengths of 64 and, newer, of 128."""
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
        self.name = "gemini" if is_signed else "gemini-2"
        self._is_signed = is_signed

    def measure(self, natives: Sequence[Any], start: int) -> MessageMeasures:
        return measure_messages(natives, start, _measure_turn, self.decode)

    def decode(self, native: object, index: int) -> Message:
        place = InputPath(index)
        native = place.sendable_message(place.require_message(native))
        native = _repair_turn(native, place, is_signed=self._is_signed)
        role = place.require_role(native, GEMINI_ROLES)
        trust: Trust = "tool" if role == "user" and _is_report(native.get("parts")) else TRUST_OF_ROLE[role]
        parts = tuple(_parts(native.get("parts"), trust, place))
        return Message(role, parts, native, parts, tuple(place.repair_notes), _extras(native))

    def encode(self, message: Message) -> Mapping[str, Any]:
        if message.is_unedited and message.native is not None:
            return message.native
        role = "model" if message.role == "assistant" else "user"
        count = len(message.results) if message.outline.has_results_first else len(message.parts)
        # A response that comes from another format is text; its media follow after all responses of the turn.
        media = [item for part in message.results if not is_mapping(part.native) for item in part.content]
        parts = [encoded for part in message.parts[:count] for encoded in _encode_part(part)]
        parts += [_encode_media(item) for item in media if isinstance(item, Media)]
        parts += [encoded for part in message.parts[count:] for encoded in _encode_part(part)]
        if self._is_signed:
            _sign_first_call(parts)
        return {**(message.native or {"role": role}), "parts": parts}


def _is_report(parts: Any) -> bool:
    """Return whether parts tell what another agent has done, which Google's ADK writes in the role of the user."""
    if not is_list(parts) or len(parts) < 2 or not is_mapping(parts[0]):  # noqa: PLR2004 - how it begins, and itself
        return False
    first, second = parts[0].get("text"), as_object(parts[1]).get("text")
    if first == OLD_REPORT_START and isinstance(second, str) and second.startswith("["):
        return second.partition("] ")[2].startswith(OLD_REPORT_LINES)
    return isinstance(first, str) and first.startswith(REPORT_START)


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
    if is_signed and _sign_first_call(repaired):
        place.repair_notes.append("marked a call without a signature as another model's")
    return replace_items(native, "parts", repaired)


def _repair_part(part: Any, role: str | None, place: InputPath) -> Any:
    if not is_mapping(part):
        return part
    if (spelled := _spelled_part(part)) is not part:
        place.repair_notes.append("spelled the fields of a part as the API does")
        part = spelled
    if not part or (part.get("thought") and part.get("text") == "" and not part.get("thoughtSignature")):
        place.repair_notes.append("left out an empty part")
        return None
    for key, owner in (("functionCall", "model"), ("functionResponse", "user")):
        if key in part and role is not None and role != owner:
            place.repair_notes.append(f"left out a {key} in a turn of the {role}")
            return None
    for key in ("functionCall", "functionResponse"):
        if is_mapping(function := part.get(key)):
            changes = _function_changes(key, function, place)
            return {**part, key: {**function, **changes}} if changes else part
    return part


def _spelled_part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part, or one within a response, as the API spells it; itself if it is spelled so."""
    if None not in part.values() and FIELD_SPELLINGS.keys().isdisjoint(part):
        return part
    return {FIELD_SPELLINGS.get(key, key): camel_case_keys(value) for key, value in part.items() if value is not None}


def camel_case_keys(value: Any) -> Any:
    """Return an object with its members named as the API names them; Google's library has some in snake case."""
    if not is_mapping(value) or _INNER_SPELLINGS.keys().isdisjoint(value):
        return value
    return {_INNER_SPELLINGS.get(key, key): item for key, item in value.items() if item is not None}


def _function_changes(key: str, function: Mapping[str, Any], place: InputPath) -> dict[str, Any]:
    """Return the changes that a call or a response needs: an object as its content, and a name."""
    changes: dict[str, Any] = {}
    is_call = key == "functionCall"
    if is_call and function.get("args") is not None and not is_mapping(function["args"]):
        changes["args"] = {"arguments": function["args"]}
        place.repair_notes.append("wrapped the arguments of a call that were not an object")
    if not is_call and not is_mapping(function.get("response")):
        changes["response"] = {} if function.get("response") is None else {"output": function["response"]}
        place.repair_notes.append("wrapped a response that was not an object")
    if not is_call and is_list(parts := function.get("parts")):
        spelled = [_spelled_part(part) if is_mapping(part) else part for part in parts]
        if any(new is not old for new, old in zip(spelled, parts, strict=True)):
            changes["parts"] = spelled
            place.repair_notes.append("spelled the fields of a part as the API does")
    if not function.get("name"):
        changes["name"] = "tool"
        place.repair_notes.append(f"added a missing name to a {'call' if is_call else 'response'}")
    return changes | place.repair_name(function.get("name"), _TOOL_NAME)


def _sign_first_call(parts: list[Any]) -> bool:
    """Mark the first call of a turn as another model's if it has no signature; only the first needs one."""
    first = next((number for number, part in enumerate(parts) if is_mapping(part) and "functionCall" in part), None)
    if first is None or parts[first].get(SIGNATURE_FIELD):
        return False
    parts[first] = {**parts[first], SIGNATURE_FIELD: FOREIGN_SIGNATURE}
    return True


def _measure_turn(native: Any) -> tuple[Role, int, bool]:
    return GEMINI_ROLES[native["role"]], *_measure_parts(native["parts"])


def _measure_parts(parts: Any) -> tuple[int, bool]:
    """Return the size of plain parts and whether they are more than responses; raises if they are not plain."""
    size, is_prompt = 0, False
    if _is_report(parts):
        raise ValueError
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
        signature = part.get(SIGNATURE_FIELD)
        if signature is not None:
            place.require_text(signature, f"{path}.{SIGNATURE_FIELD}")
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
    text = _response_text(value)
    content: tuple[Content, ...] = (Text(text, "tool"),) if text else ()
    for number, inner in enumerate(media or ()):
        content += (_content(place.require_mapping(inner, f"{path}.parts[{number}]"), "tool", place, path),)
    call_id = _id(response, name, numbers, place, path)
    return ToolResult(call_id, content, [*value] == ["error"], native=part)


def _content(part: Mapping[str, Any], trust: Trust, place: InputPath, path: str) -> Content:
    for key in ("inlineData", "fileData"):
        if is_mapping(data := camel_case_keys(part.get(key))):
            mime = str(data.get("mimeType"))
            if mime.startswith("image/"):
                return Media("image", trust, image_tokens(), part)
            kind = "audio" if mime.startswith("audio/") else "document"
            return Media(kind, trust, data_tokens(data.get("data")), part)
    field = next((key for key in part if key not in {"thought", SIGNATURE_FIELD}), "part")
    # The provider's own tools pair by id like functions, and a response may come in a later turn than its call.
    use, result = (_server_id(part, key, place, path) for key in ("toolCall", "toolResponse"))
    return replace(opaque_block(field, part, trust, place, path), server_use=use, server_result=result)


def _server_id(part: Mapping[str, Any], key: str, place: InputPath, path: str) -> str:
    """Return the id of a call of the provider's own tool, or of its response; empty if the part is none."""
    return place.optional_text(one, "id", f"{path}.{key}") if is_mapping(one := part.get(key)) else ""


def _extras(native: Mapping[str, Any]) -> str:
    """Return everything that is sent but that no part represents, as JSON text."""
    extras = extra_fields(native, _FIELDS)
    for part in native.get("parts") or ():
        if not part.keys().isdisjoint(_PART_FIELDS - {"thought", SIGNATURE_FIELD}):
            extras += extra_fields(part, _PART_FIELDS)
        extras += extra_fields(part.get("functionCall"), _CALL_FIELDS)
        if is_mapping(response := part.get("functionResponse")):
            extras += extra_fields(response, _RESPONSE_FIELDS)
            inline = [camel_case_keys(part.get("inlineData")) for part in response.get("parts") or ()]
            extras += "".join(f'{{"inlineData": "{data.get("mimeType")}"}}' for data in inline if is_mapping(data))
    return extras


def _encode_part(part: Part) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, ToolCall):
        yield _encode_call(part)
    elif isinstance(part, ToolResult):
        yield _encode_response(part)
    elif isinstance(part, Media):
        yield _encode_media(part)
    elif isinstance(part, Text):
        native: Mapping[str, Any] = part.native if is_mapping(part.native) else {}
        yield {**native, "text": part.text} if part.is_edited or not native else native
    elif isinstance(part, Thinking | Opaque) and is_mapping(part.native):
        yield part.native


def _encode_call(call: ToolCall) -> Mapping[str, Any]:
    part: Mapping[str, Any] = call.native if is_mapping(call.native) else {}
    if part and not call.is_edited:
        return part
    function = {**part.get("functionCall", {}), "name": call.name, "args": arguments_object(call.arguments)}
    if not is_id_from_name(call.id):
        function["id"] = call.id
    return {**part, "functionCall": function}


def _encode_response(result: ToolResult) -> Mapping[str, Any]:
    part: Mapping[str, Any] = result.native if is_mapping(result.native) else {}
    if part and not result.is_edited:
        return part
    original: Mapping[str, Any] = part.get("functionResponse", {})
    name = original.get("name") or (result.answered_call.name if result.answered_call else "tool")
    function = {**original, "name": name, "response": _response_value(result, original.get("response"))}
    if not is_id_from_name(result.call_id):
        function["id"] = result.call_id
    media = [item.native for item in result.content if not isinstance(item, Text) and is_mapping(item.native)]
    if media and part:
        function["parts"] = media
    else:
        function.pop("parts", None)
    return {**part, "functionResponse": function}


def _response_value(result: ToolResult, original: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the original result of a function, or the edited text instead of it."""
    if original is not None and result.text == _response_text(original):
        return original
    key = next(iter(original)) if original and _is_single_text(original) else "error" if result.is_error else "output"
    return {key: result.text}


def _is_single_text(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and all(isinstance(item, str) for item in value.values())


def _response_text(value: Mapping[str, Any]) -> str:
    """Return the result of a function: its text if it is a single one, else its JSON."""
    if not value:
        return ""
    return next(iter(value.values())) if _is_single_text(value) else json.dumps(value, ensure_ascii=False)


def _encode_media(media: Media) -> Mapping[str, Any]:
    if is_mapping(media.native) and ("inlineData" in media.native or "fileData" in media.native):
        return media.native
    if (pdf := pdf_data(media)) is not None:
        return {"inlineData": {"mimeType": PDF_TYPE, "data": pdf}}
    source = image_source(media)
    if source is None:
        return {"text": f"[{media.kind} not carried over]"}
    kind, data = source
    if kind == "url":
        return {"fileData": {"fileUri": data}}
    return {"inlineData": {"mimeType": kind, "data": data}}
