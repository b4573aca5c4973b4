"""What a client sent: the members of a request body that say who is speaking and what was said.

A body is read without building its messages: each stays a slice of the bytes that came, so that unchanged messages can
be compared and sent as bytes. Only messages that are new are parsed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import msgspec
import orjson

from holdfast.wire.answers import JsonObject, Wire
from holdfast.wire.json_reader import is_list, is_mapping

_NULL = msgspec.Raw(b"null")
_SYSTEM_ROLES = frozenset({"system", "developer"})


class _Members(msgspec.Struct):
    """The members of a body that the gateway reads; all others are passed on and never read."""

    messages: list[msgspec.Raw] = []
    contents: list[msgspec.Raw] = []
    input: msgspec.Raw = _NULL
    model: msgspec.Raw = _NULL
    system: msgspec.Raw = _NULL
    instructions: msgspec.Raw = _NULL
    system_instruction: msgspec.Raw = msgspec.field(default=_NULL, name="systemInstruction")
    tools: msgspec.Raw = _NULL
    tool_choice: msgspec.Raw = _NULL
    metadata: msgspec.Raw = _NULL
    prompt_cache_key: msgspec.Raw = _NULL
    conversation: msgspec.Raw = _NULL
    previous_response_id: msgspec.Raw = _NULL
    store: msgspec.Raw = _NULL


_MEMBERS = msgspec.json.Decoder(_Members)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def read_json(raw: bytes | msgspec.Raw) -> object:
    """Return a JSON value; raises `ValueError`."""
    try:
        return orjson.loads(memoryview(raw))
    except orjson.JSONDecodeError:
        return json.loads(bytes(raw))  # accepts half a surrogate pair


@dataclass(frozen=True)
class ClientBody:
    """A request body of a client."""

    wire: Wire
    model: str | None
    system_slices: list[msgspec.Raw]
    """The system text beside the messages, and the leading system messages of the list."""
    slices: list[msgspec.Raw]
    """The messages after the leading system messages, as the bytes that came."""
    leading: list[msgspec.Raw]
    """The leading system messages of the list."""
    tools_slice: msgspec.Raw
    fields: JsonObject = field(default_factory=JsonObject)
    """Members that may name the conversation."""
    _parsed: dict[int, JsonObject] = field(default_factory=dict[int, JsonObject])

    def message(self, index: int) -> JsonObject:
        """Return a message after the leading ones; raises `ValueError` if it is not an object. Each is parsed once."""
        known = self._parsed.get(index)
        if known is not None:
            return known
        value = read_json(self.slices[index])
        if not isinstance(value, dict):
            raise ValueError(f"message {index} is not an object")  # noqa: TRY004 - the body is at fault, not the caller
        message = self._parsed[index] = cast("JsonObject", value)
        return message

    def messages(self, start: int = 0, stop: int | None = None) -> list[JsonObject]:
        """Return the messages after the leading ones, from an index on and before another."""
        return [self.message(index) for index in range(start, min(stop or len(self.slices), len(self.slices)))]

    def leading_messages(self) -> list[JsonObject]:
        """Return the leading system messages of the list."""
        return [cast("JsonObject", read_json(raw)) for raw in self.leading]

    @cached_property
    def system_text(self) -> str:
        """All system text of the request."""
        return "\n".join(text for raw in self.system_slices for text in texts_of(read_json(raw)))

    @cached_property
    def tool_names(self) -> frozenset[str]:
        """The names of the tools that the model may call."""
        tools = read_json(self.tools_slice)
        return frozenset(name for tool in tools for name in _names_of(tool)) if is_list(tools) else frozenset()

    @property
    def has_tools(self) -> bool:
        """Whether the model may call a tool."""
        return self.tools_slice not in (_NULL, msgspec.Raw(b"[]"))


def read_body(wire: Wire, raw: bytes) -> ClientBody:
    """Return what a request body says; raises `ValueError` if it has no messages of its wire."""
    members = _MEMBERS.decode(raw)
    slices = {"gemini": members.contents, "openai-responses": []}.get(wire, members.messages)
    if wire == "openai-responses" and members.input != _NULL:
        given = bytes(members.input)
        is_text = given.startswith(b'"')
        slices = [_user_item(given)] if is_text else _LIST.decode(given)
    leading = 0
    if wire in {"openai-chat", "openai-responses"}:
        while leading < len(slices) and _is_system(slices[leading]):
            leading += 1
    beside = {
        "anthropic": members.system,
        "openai-responses": members.instructions,
        "gemini": members.system_instruction,
    }.get(wire, _NULL)
    model = read_json(members.model)
    names = ("metadata", "prompt_cache_key", "conversation", "previous_response_id", "store", "tool_choice")
    found = {name: getattr(members, name) for name in names}
    return ClientBody(
        wire=wire,
        model=model if isinstance(model, str) else None,
        system_slices=[*([] if beside == _NULL else [beside]), *slices[:leading]],
        slices=slices[leading:],
        leading=slices[:leading],
        tools_slice=members.tools,
        fields={name: read_json(value) for name, value in found.items() if value != _NULL},
    )


def texts_of(value: object) -> list[str]:
    """Return the texts of a message or of system content, in order: strings, blocks and parts."""
    if isinstance(value, str):
        return [value]
    if is_list(value):
        return [text for one in value for text in texts_of(one)]
    if not is_mapping(value):
        return []
    members: Sequence[object] = [value.get(name) for name in ("text", "content", "parts")]
    return [text for member in members for text in texts_of(member)]


def _user_item(text: bytes) -> msgspec.Raw:
    return msgspec.Raw(b'{"role":"user","content":' + text + b"}")


def _is_system(raw: msgspec.Raw) -> bool:
    value = read_json(raw)
    return is_mapping(value) and value.get("role") in _SYSTEM_ROLES


def _names_of(tool: object) -> list[str]:
    """Return the names in a tool: its own, that of its function, or those of its function declarations."""
    if not is_mapping(tool):
        return []
    declared = tool.get("functionDeclarations") or tool.get("function_declarations")
    inner = [tool.get("function"), *(declared if is_list(declared) else ())]
    names = [tool.get("name"), *(one.get("name") for one in inner if is_mapping(one)), tool.get("type")]
    return [name for name in names if isinstance(name, str) and name != "function"]
