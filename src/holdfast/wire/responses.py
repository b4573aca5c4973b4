"""OpenAI Responses: a conversation as a list of items.

A message, a piece of reasoning, a call and an output are items, and a turn of the model is a run of them. Reasoning is
valid only together with the item after it. If responses are not stored (`store=false`), no item can be referenced and
reasoning has to be encrypted; that is another contract, and so another format.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.conversation.batching import CALLS_AS_ITEMS
from holdfast.core.conversation.messages import TRUST_OF_ROLE, Message, Opaque, Part, Role, Thinking
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD_BYTES, message_bytes, utf8_length
from holdfast.core.conversation.transcript import MessageMeasures
from holdfast.wire.json_reader import (
    InputPath,
    extra_fields,
    is_list,
    json_bytes,
    preview_value,
)
from holdfast.wire.media import IMAGE_TOKENS
from holdfast.wire.responses_items import (
    TEXT_BLOCK_TYPES,
    TEXT_OUTPUT_TYPES,
    TOOL_CALL_KINDS,
    block_extra_fields,
    call_kind_of,
    decode_blocks,
    decode_call_item,
    decode_output_item,
    encode_call_item,
    encode_content,
    encode_output_item,
    encrypted_tokens,
    output_kind_of,
    shell_extra_fields,
)

OPENAI_RESPONSES_FORMAT_NAME = "openai-responses"
OPENAI_RESPONSES_STATELESS_FORMAT_NAME = "openai-responses-stateless"
OPENAI_RESPONSES_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
COMPACTION_ITEM_TYPES = frozenset({"compaction", "compaction_summary"})
ITEM_ID_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
"""The prefixes of item ids that the provider checks; calls and outputs pair by another id."""
_FIELDS = frozenset({"type", "id", "status", "role", "content", "phase"})
_CALL_FIELDS = frozenset(
    {"type", "id", "status", "call_id", "name", "arguments", "input", "action", "actions", "operation"}
)
_OUTPUT_FIELDS = frozenset({"type", "id", "status", "call_id", "approval_request_id", "output"})


class OpenAIResponses:
    """Reads and writes the items of a request."""

    batching = CALLS_AS_ITEMS
    has_separate_system = True
    max_cache_marks: int | None = None
    max_text_chars: int | None = 10_485_760
    max_images = 500

    def __init__(self, *, is_stored: bool = True) -> None:
        self.name = OPENAI_RESPONSES_FORMAT_NAME if is_stored else OPENAI_RESPONSES_STATELESS_FORMAT_NAME
        self._is_stored = is_stored

    def measure(self, natives: Sequence[Any], start: int) -> MessageMeasures:
        """Return the sizes and roles of items."""
        measures = MessageMeasures([], [], [])
        for index, native in enumerate(natives, start):
            try:
                role, size = _measure_item(native)
            except (KeyError, TypeError, AttributeError, ValueError):
                message = self.decode(native, index)
                role, size = message.role, message_bytes(message)
            measures.sizes.append(size + MESSAGE_OVERHEAD_BYTES)
            if role == "user":
                measures.prompts.append(index)
            elif role == "system":
                measures.systems.append(index)
        return measures

    def decode(self, native: object, index: int) -> Message:
        """Return an item with its parts."""
        place = InputPath(index)
        native = place.require_message(native)
        kind = _kind(native, place)
        native = _repair_item(place.sendable_message(native), kind, place)
        if not self._is_stored and (note := _unsendable_reason(native, kind)):
            return Message("assistant", (), native, (), (*place.repair_notes, note))
        role, parts = _decode_item(native, kind, place)
        return Message(role, parts, native, parts, tuple(place.repair_notes), _extras(native, kind))

    def encode(self, message: Message) -> Mapping[str, Any]:
        """Return an item as JSON: its original JSON, changed only where it was edited."""
        if message.is_unedited and message.native is not None:
            return message.native
        if message.results:
            return encode_output_item(message.results[0])
        if message.calls:
            return encode_call_item(message.calls[0])
        native = message.native
        if native is not None and "role" not in native:
            return native
        content = encode_content(message.parts, native.get("content") if native else None, message.role)
        return {**(native or {"role": message.role}), "content": content}

    def json_bytes(self, message: Message) -> int:
        """Return the size of an item as it would be sent."""
        return json_bytes(self.encode(message))


def _kind(native: Mapping[str, Any], place: InputPath) -> str:
    kind = native.get("type")
    if kind is None:
        if "role" in native or "id" not in native:
            return "message"
        return "item_reference"
    return place.require_text(kind, ".type")


def _measure_item(native: Mapping[str, Any]) -> tuple[Role, int]:
    """Return the role and size of a plain item; raises if it is not plain."""
    kind = native.get("type")
    if kind == "function_call_output" and type(native["call_id"]) is str and type(output := native["output"]) is str:
        return "tool", utf8_length(output)
    if kind == "function_call" and type(native["call_id"]) is str and type(native["name"]) is str:
        return "assistant", utf8_length(native["arguments"])
    if kind not in {None, "message"}:
        raise ValueError(kind)
    content = native["content"]
    if type(content) is str:
        return OPENAI_RESPONSES_ROLES[native["role"]], utf8_length(content)
    if not is_list(content) or not all(block["type"] in TEXT_BLOCK_TYPES for block in content):
        raise ValueError(kind)
    return OPENAI_RESPONSES_ROLES[native["role"]], sum(utf8_length(block["text"]) for block in content)


def _unsendable_reason(native: Mapping[str, Any], kind: str) -> str | None:
    """Return why an item cannot be sent when responses are not stored."""
    if kind == "item_reference":
        return "left out a reference to a stored item: responses are not stored"
    if kind == "reasoning" and not native.get("encrypted_content") and native.get("id") is not None:
        return "left out reasoning that is neither stored nor encrypted"
    return None


def _decode_item(native: Mapping[str, Any], kind: str, place: InputPath) -> tuple[Role, tuple[Part, ...]]:
    if kind == "message":
        role = place.require_role(native, OPENAI_RESPONSES_ROLES)
        return role, decode_blocks(native.get("content"), TRUST_OF_ROLE[role], place, ".content")
    if kind == "reasoning":
        return "assistant", (_reasoning(native, place),)
    if kind in COMPACTION_ITEM_TYPES:
        # It replaces everything before it and must not change, so it is treated as system text.
        encrypted = place.require_text(native.get("encrypted_content"), ".encrypted_content")
        return "system", (Opaque(kind, "", "summary", native, encrypted_tokens(encrypted)),)
    if tool := call_kind_of(kind, native):
        return "assistant", (decode_call_item(kind, tool, native, place),)
    if tool := output_kind_of(kind, native):
        return "tool", (decode_output_item(tool, native, place),)
    if kind == "image_generation_call":
        return "assistant", (Opaque(kind, "", "model", native, IMAGE_TOKENS),)
    return "assistant", (Opaque(kind, place.json_text(native, ""), "model", native),)


def _reasoning(native: Mapping[str, Any], place: InputPath) -> Thinking:
    texts: list[str] = []
    for field in ("summary", "content"):
        blocks = native.get(field)
        if blocks is not None and not is_list(blocks):
            place.fail(f".{field}", f"must be a list, not {preview_value(blocks)}")
        for number, block in enumerate(blocks or ()):
            path = f".{field}[{number}]"
            texts.append(place.require_text(place.require_mapping(block, path).get("text"), f"{path}.text"))
    encrypted = native.get("encrypted_content")
    signature = None if encrypted is None else place.require_text(encrypted, ".encrypted_content")
    return Thinking("\n".join(texts), signature, native=native)


def _extras(native: Mapping[str, Any], kind: str) -> str:
    """Return everything that is sent but that no part represents, as JSON text."""
    if kind == "message":
        return extra_fields(native, _FIELDS) + block_extra_fields(native.get("content"))
    if kind in TOOL_CALL_KINDS:
        return extra_fields(native, _CALL_FIELDS)
    if output_kind_of(kind, native):
        return (
            extra_fields(native, _OUTPUT_FIELDS) + block_extra_fields(native.get("output")) + shell_extra_fields(native)
        )
    return ""


def _repair_item(native: Mapping[str, Any], kind: str, place: InputPath) -> Mapping[str, Any]:
    """Return an item that the provider accepts, with a note for each repair."""
    changes: dict[str, Any] = {}
    if kind in {"function_call", "custom_tool_call"}:
        changes |= place.repair_text_call(native, TOOL_CALL_KINDS[kind].arguments[0], "")
    if kind in TEXT_OUTPUT_TYPES and native.get("output") is None:
        place.repair_notes.append("added an empty output to an item without one")
        changes["output"] = ""
    prefix, item_id = ITEM_ID_PREFIXES.get(kind), native.get("id")
    if prefix and item_id is not None and not (isinstance(item_id, str) and item_id.startswith(prefix)):
        place.repair_notes.append(f"left out an item id that does not begin with {prefix!r}")
        native = {key: value for key, value in native.items() if key != "id"}
    return {**native, **changes} if changes else native
