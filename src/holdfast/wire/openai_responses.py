"""OpenAI Responses: a conversation as a list of items.

A message, a piece of reasoning, a call, an output, each is an item of its own, and a turn of the model is a run of
them. Reasoning is only valid together with the item behind it. Where responses are not stored (`store=false`)
an item cannot be referred to, and reasoning comes back encrypted or not at all; that is a contract of its own,
so it is a format of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.conversation.batching import ITEMS
from holdfast.core.conversation.messages import TRUST_OF_ROLE, Message, Opaque, Part, Role, Thinking
from holdfast.core.conversation.transcript import Survey
from holdfast.core.conversation.weight import MESSAGE_WEIGHT, utf8_length, weight_of
from holdfast.wire.media import IMAGE_TOKENS
from holdfast.wire.reading import (
    Place,
    extra_fields,
    is_list,
    is_mapping,
    json_bytes,
    shown,
)
from holdfast.wire.responses_blocks import TEXT_KINDS, block_extras, content_json, contents, sealed_tokens
from holdfast.wire.responses_tools import (
    TEXT_OUTPUTS,
    TOOLS,
    read_call,
    read_output,
    shell_extras,
    tool_of_call,
    tool_of_output,
    written_call,
    written_output,
)

NAME = "openai-responses"
STATELESS = "openai-responses-stateless"
ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
COMPACTIONS = frozenset({"compaction", "compaction_summary"})
ID_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
"""How the ids of items begin, where the provider looks at that; calls and outputs pair by another id."""
_FIELDS = frozenset({"type", "id", "status", "role", "content", "phase"})
_CALL_FIELDS = frozenset(
    {"type", "id", "status", "call_id", "name", "arguments", "input", "action", "actions", "operation"}
)
_OUTPUT_FIELDS = frozenset({"type", "id", "status", "call_id", "approval_request_id", "output"})


class OpenAIResponses:
    """Reads and writes the items of a response's input."""

    batching = ITEMS
    has_system_apart = True
    max_cache_marks: int | None = None
    max_text_chars: int | None = 10_485_760
    max_images = 500

    def __init__(self, *, is_stored: bool = True) -> None:
        self.name = NAME if is_stored else STATELESS
        self._is_stored = is_stored

    def survey(self, natives: Sequence[Any], start: int) -> Survey:
        """Return the sizes and roles of items."""
        survey = Survey([], [], [])
        for index, native in enumerate(natives, start):
            try:
                role, weight = _weigh(native)
            except (KeyError, TypeError, AttributeError, ValueError):
                message = self.decode(native, index)
                role, weight = message.role, weight_of(message)
            survey.weights.append(weight + MESSAGE_WEIGHT)
            if role == "user":
                survey.prompts.append(index)
            elif role == "system":
                survey.systems.append(index)
        return survey

    def decode(self, native: object, index: int) -> Message:
        """Return an item with its parts."""
        place = Place(index)
        if not is_mapping(native):
            place.refuse("", f"must be an object, not {type(native).__name__}; turn SDK objects into dicts first")
        kind = _kind(native, place)
        native = _repaired(place.sendable(native), kind, place)
        if not self._is_stored and (note := _unsendable(native, kind)):
            return Message("assistant", (), native, (), (*place.notes, note))
        role, parts = _read(native, kind, place)
        return Message(role, parts, native, parts, tuple(place.notes), _extras(native, kind))

    def encode(self, message: Message) -> Mapping[str, Any]:
        """Return an item as JSON: the JSON it came from, changed only where it was edited."""
        if message.is_untouched and message.native is not None:
            return message.native
        if message.results:
            return written_output(message.results[0])
        if message.calls:
            return written_call(message.calls[0])
        native = message.native
        if native is not None and "role" not in native:
            return native
        was = native.get("content") if native else None
        content = content_json(message.parts, was, message.role)
        return {**(native or {"role": message.role}), "content": content}

    def json_bytes(self, message: Message) -> int:
        """Return the size of an item as it would be sent."""
        return json_bytes(self.encode(message))


def _kind(native: Mapping[str, Any], place: Place) -> str:
    kind = native.get("type")
    if kind is None:
        if "role" in native or "id" not in native:
            return "message"
        return "item_reference"
    return place.text(kind, ".type")


def _weigh(native: Mapping[str, Any]) -> tuple[Role, int]:
    """Return the role and size of a plain item; raise where it is not plain."""
    kind = native.get("type")
    if kind == "function_call_output" and type(native["call_id"]) is str and type(output := native["output"]) is str:
        return "tool", utf8_length(output)
    if kind == "function_call" and type(native["call_id"]) is str and type(native["name"]) is str:
        return "assistant", utf8_length(native["arguments"])
    if kind not in {None, "message"}:
        raise ValueError(kind)
    content = native["content"]
    if type(content) is str:
        return ROLES[native["role"]], utf8_length(content)
    if not is_list(content) or not all(block["type"] in TEXT_KINDS for block in content):
        raise ValueError(kind)
    return ROLES[native["role"]], sum(utf8_length(block["text"]) for block in content)


def _unsendable(native: Mapping[str, Any], kind: str) -> str | None:
    """Return why an item cannot be sent where nothing is stored."""
    if kind == "item_reference":
        return "left out a reference to an item: nothing is stored that it could mean"
    if kind == "reasoning" and not native.get("encrypted_content") and native.get("id") is not None:
        return "left out reasoning that is neither stored nor encrypted"
    return None


def _read(native: Mapping[str, Any], kind: str, place: Place) -> tuple[Role, tuple[Part, ...]]:
    if kind == "message":
        spelled = native.get("role")
        role = ROLES.get(spelled) if isinstance(spelled, str) else None
        if role is None:
            place.refuse(".role", f"{shown(spelled)} is not a role; use one of: {', '.join(ROLES)}")
        return role, contents(native.get("content"), TRUST_OF_ROLE[role], place, ".content")
    if kind == "reasoning":
        return "assistant", (_reasoning(native, place),)
    if kind in COMPACTIONS:
        # It stands for everything before it and is not to be touched: system text, as far as we are concerned.
        sealed = place.text(native.get("encrypted_content"), ".encrypted_content")
        return "system", (Opaque(kind, "", "summary", native, sealed_tokens(sealed)),)
    if tool := tool_of_call(kind, native):
        return "assistant", (read_call(kind, tool, native, place),)
    if tool := tool_of_output(kind, native):
        return "tool", (read_output(tool, native, place),)
    if kind == "image_generation_call":
        return "assistant", (Opaque(kind, "", "model", native, IMAGE_TOKENS),)
    return "assistant", (Opaque(kind, place.json(native, ""), "model", native),)


def _reasoning(native: Mapping[str, Any], place: Place) -> Thinking:
    texts: list[str] = []
    for field in ("summary", "content"):
        blocks = native.get(field)
        if blocks is not None and not is_list(blocks):
            place.refuse(f".{field}", f"must be a list, not {shown(blocks)}")
        for number, block in enumerate(blocks or ()):
            path = f".{field}[{number}]"
            texts.append(place.text(place.mapping(block, path).get("text"), f"{path}.text"))
    sealed = native.get("encrypted_content")
    signature = None if sealed is None else place.text(sealed, ".encrypted_content")
    return Thinking("\n".join(texts), signature, native=native)


def _extras(native: Mapping[str, Any], kind: str) -> str:
    """Return everything that is sent and that no part stands for, as JSON text."""
    if kind == "message":
        return extra_fields(native, _FIELDS) + block_extras(native.get("content"))
    if kind in TOOLS:
        return extra_fields(native, _CALL_FIELDS)
    if tool_of_output(kind, native):
        return extra_fields(native, _OUTPUT_FIELDS) + block_extras(native.get("output")) + shell_extras(native)
    return ""


def _repaired(native: Mapping[str, Any], kind: str, place: Place) -> Mapping[str, Any]:
    """Return an item without what its provider refuses in it, noting what that took."""
    changes: dict[str, Any] = {}
    if kind in {"function_call", "custom_tool_call"}:
        changes |= _repaired_call(native, TOOLS[kind].arguments[0], place)
    if kind in TEXT_OUTPUTS and native.get("output") is None:
        place.notes.append("gave an output without content an empty one")
        changes["output"] = ""
    prefix, item_id = ID_PREFIXES.get(kind), native.get("id")
    if prefix and item_id is not None and not (isinstance(item_id, str) and item_id.startswith(prefix)):
        place.notes.append(f"left out an item id that does not begin with {prefix!r}")
        native = {key: value for key, value in native.items() if key != "id"}
    return {**native, **changes} if changes else native


def _repaired_call(native: Mapping[str, Any], key: str, place: Place) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if not isinstance(native.get(key), str):
        value = native.get(key)
        changes[key] = "{}" if value is None else place.json(value, f".{key}")
        place.notes.append("wrote the arguments of a call as JSON text")
    if native.get("name") == "":
        changes["name"] = "tool"
        place.notes.append("gave a call without a name one")
    return changes
