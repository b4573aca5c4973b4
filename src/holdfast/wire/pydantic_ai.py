"""Requests and responses of pydantic-ai, as its `ModelMessagesTypeAdapter` dumps them.

A response comes from the model; a request holds prompts, the results of a whole batch, and system text. A request
that starts with system text and continues with something else is two elements here, because the first always stays and
the second may be compacted; see `split_system_text`. Instructions, times and run ids are stored but not sent with
a message, so no part represents them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.conversation.batching import RESULTS_IN_ONE_REQUEST
from holdfast.core.conversation.messages import Message, Role
from holdfast.core.conversation.tokens import utf8_length
from holdfast.core.conversation.transcript import MessageMeasures
from holdfast.wire.json_reader import InputPath, is_list, is_mapping, json_bytes, measure_messages, preview_value
from holdfast.wire.pydantic_ai_decode import (
    MESSAGE_KINDS,
    is_not_decoded,
    is_permanent_system,
    request_parts,
    response_parts,
    undecoded_text,
)
from holdfast.wire.pydantic_ai_encode import encode_arguments, encode_request, encode_response

PYDANTIC_AI_FORMAT_NAME = "pydantic-ai"
_ROLES: Mapping[str, Role] = {"request": "user", "response": "assistant"}
_CANONICAL_FIELDS = ("part_kind", "content", "tool_name", "tool_call_id", "args", "transcript", "file_id")


class PydanticAI:
    """Reads and writes pydantic-ai messages."""

    name = PYDANTIC_AI_FORMAT_NAME
    batching = RESULTS_IN_ONE_REQUEST
    has_separate_system = True
    max_cache_marks: int | None = None
    max_text_chars: int | None = None
    max_images = 100

    def measure(self, natives: Sequence[Any], start: int) -> MessageMeasures:
        """Return the sizes and roles of messages."""
        return measure_messages(
            natives,
            start,
            role_key="kind",
            roles=_ROLES,
            content_key="parts",
            measure_content=_measure_parts,
            decode=self.decode,
        )

    def decode(self, native: object, index: int) -> Message:
        """Return a message with its parts."""
        place = InputPath(index)
        hint = "dump them with ModelMessagesTypeAdapter.dump_python(mode='json') first"
        native = place.require_message(native, hint)
        kind = native.get("kind")
        if not isinstance(kind, str) or kind not in MESSAGE_KINDS:
            place.fail(".kind", f"{preview_value(kind)} is not a kind of message; use 'request' or 'response'")
        if not is_list(native.get("parts")):
            place.fail(".parts", f"must be a list of parts, not {type(native.get('parts')).__name__}")
        native = place.sendable_message(native)
        parts, whole = (request_parts if kind == "request" else response_parts)(native, place)
        role: Role = "assistant" if kind == "response" else "user"
        if role == "user" and whole["parts"] and all(map(is_permanent_system, whole["parts"])):
            role = "system"
        return Message(role, parts, whole, parts, tuple(place.repair_notes), undecoded_text(whole))

    def encode(self, message: Message) -> Mapping[str, Any]:
        """Return a message as JSON: its original JSON, changed only where it was edited."""
        if message.is_unedited and message.native is not None:
            return message.native
        return encode_response(message) if message.role == "assistant" else encode_request(message)

    def json_bytes(self, message: Message) -> int:
        """Return the size of a message as it would be stored."""
        return json_bytes(self.encode(message))


def _measure_parts(parts: Any) -> tuple[int, bool]:
    """Return the size of plain parts and whether one is a prompt; raises if they are not plain."""
    size, is_prompt = 0, False
    for part in parts:
        kind = part["part_kind"]
        if kind not in {"user-prompt", "text", "tool-return"} or not isinstance(part["content"], str):
            raise ValueError(kind)
        size += utf8_length(part["content"])
        is_prompt = is_prompt or (kind == "user-prompt" and not part["content"].isspace())
    return size, is_prompt


def is_pydantic_ai_message(value: object) -> bool:
    """Return whether a value is a request or a response."""
    return is_mapping(value) and value.get("kind") in MESSAGE_KINDS and is_list(value.get("parts"))


def split_messages(natives: Sequence[object]) -> tuple[list[object], list[int]]:
    """Return the elements of a history, and the index of the message that each comes from."""
    elements, indices = list[object](), list[int]()
    for index, native in enumerate(natives):
        pieces = split_system_text(native) if is_mapping(native) else [native]
        elements += pieces
        indices += [index] * len(pieces)
    return elements, indices


def split_system_text(native: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the elements of one message: itself, or its leading system text and the rest."""
    parts: Any = native.get("parts") if native.get("kind") == "request" else None
    if not is_list(parts):
        return [native]
    count = next((number for number, part in enumerate(parts) if not is_permanent_system(part)), len(parts))
    if not 0 < count < len(parts):
        return [native]
    return [{**native, "parts": list(parts[:count])}, {**native, "parts": list(parts[count:])}]


def canonical_form(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a message says, without times, ids and other metadata."""
    return {
        "kind": native["kind"],
        "parts": [_canonical_part(part) for part in native["parts"] if not is_not_decoded(part)],
    }


def _canonical_part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    if part.get("dynamic_ref") is not None:
        # System text that is generated for every run counts as the same text, whatever it says this time.
        return {"dynamic_ref": part["dynamic_ref"]}
    fields = {key: part[key] for key in _CANONICAL_FIELDS if part.get(key) is not None}
    if isinstance(fields.get("args"), str):
        # The arguments of one call may come as text or as an object.
        fields["args"] = encode_arguments(fields["args"])
    return {**fields, "args": fields.get("args") or {}} if part.get("part_kind") == "tool-call" else fields
