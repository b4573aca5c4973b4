"""What a client sent: the members of a request body that say who is speaking and what was said.

A body is read without building its messages: each stays a slice of the bytes that came, so that unchanged messages can
be compared and sent as bytes. Only messages that are new are parsed. A body that begins like the last one of its
conversation is read from the end of that one's last message on.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple, TypeAlias, TypeVar, cast

import msgspec
import orjson

from holdfast.core.conversation.json_values import sendable_json
from holdfast.dataclass import dataclass
from holdfast.wire.answers import JsonObject, Wire
from holdfast.wire.json_reader import is_list, is_mapping

_NULL = msgspec.Raw(b"null")
_NO_TOOLS = (_NULL, msgspec.Raw(b"[]"))
_SYSTEM_ROLES = ("system", "developer")
"""A tuple, because what a client wrote may be anything: a list can be looked for in a tuple, but not in a set."""


class _Members(msgspec.Struct):
    """The members of a body that the gateway reads; all others are passed on and never read."""

    input: msgspec.Raw = _NULL
    model: msgspec.Raw = _NULL
    system: msgspec.Raw = _NULL
    instructions: msgspec.Raw = _NULL
    system_instruction: msgspec.Raw = msgspec.field(default=_NULL, name="systemInstruction")
    snake_instruction: msgspec.Raw = msgspec.field(default=_NULL, name="system_instruction")
    """The same in its other spelling, which Gemini accepts."""
    tools: msgspec.Raw = _NULL
    functions: msgspec.Raw = _NULL
    """The tools of chat requests in their older form."""
    response_format: msgspec.Raw = _NULL
    text: msgspec.Raw = _NULL
    output_format: msgspec.Raw = _NULL
    output_config: msgspec.Raw = _NULL
    generation_config: msgspec.Raw = msgspec.field(default=_NULL, name="generationConfig")
    snake_config: msgspec.Raw = msgspec.field(default=_NULL, name="generation_config")
    tool_choice: msgspec.Raw = _NULL
    metadata: msgspec.Raw = _NULL
    prompt_cache_key: msgspec.Raw = _NULL
    conversation: msgspec.Raw = _NULL
    previous_response_id: msgspec.Raw = _NULL
    thread: msgspec.Raw = _NULL
    store: msgspec.Raw = _NULL


class _ChatMembers(_Members):
    messages: list[msgspec.Raw] = []


class _GeminiMembers(_Members):
    contents: list[msgspec.Raw] = []


_MEMBERS: Mapping[Wire, msgspec.json.Decoder[_Members]] = {
    "openai-chat": msgspec.json.Decoder(_ChatMembers),
    "anthropic": msgspec.json.Decoder(_ChatMembers),
    "gemini": msgspec.json.Decoder(_GeminiMembers),
    "openai-responses": msgspec.json.Decoder(_Members),
}
_DEFINITION_MEMBERS: Mapping[Wire, tuple[str, ...]] = {
    "openai-chat": ("functions", "response_format"),
    "openai-responses": ("text",),
    "anthropic": ("output_format", "output_config"),
    "gemini": ("generation_config", "snake_config"),
}
"""The fields of `_Members` that may hold functions, or the schema of the answer: the model reads them like tools."""
LIST_MEMBERS: Mapping[Wire, str] = {
    "openai-chat": "messages",
    "anthropic": "messages",
    "gemini": "contents",
    "openai-responses": "input",
}
"""The member of a body that has its messages."""
_LIST_STARTS: Mapping[Wire, re.Pattern[bytes]] = {
    wire: re.compile(rb'"%s"\s*:\s*\[' % name.encode()) for wire, name in LIST_MEMBERS.items()
}
"""Where a list of messages begins. No text of a message matches: its quotes are escaped."""
_BETWEEN_MESSAGES = b" \t\r\n,"
_ALL_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
T = TypeVar("T")


def read_json(raw: bytes | msgspec.Raw) -> object:
    """Return a JSON value; raises `ValueError`."""
    try:
        return orjson.loads(memoryview(raw))
    except orjson.JSONDecodeError:
        try:
            return json.loads(bytes(raw))  # accepts half a surrogate pair
        except RecursionError:
            raise ValueError("nested too deep") from None


_LINE_ENDS = "\x85\u2028\u2029"
"""Line ends of Unicode that JSON holds as they are."""


def write_json(value: object) -> bytes:
    """Return a value as JSON: half a surrogate pair is escaped, and a number that JSON does not have becomes null."""
    try:
        return orjson.dumps(value, default=str)
    except TypeError:
        pass
    try:
        return json.dumps(value, default=str, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(sendable_json(value), default=str, separators=(",", ":")).encode()


def write_json_line(value: object) -> bytes:
    """Return a value as JSON for an event of a stream, with every character escaped that ends a line in Python.

    Google's library, and others that read lines with httpx, split an event in the middle of its JSON there.
    """
    written = write_json(value)
    for character in _LINE_ENDS:
        written = written.replace(character.encode(), b"\\u%04x" % ord(character))
    return written


# Half a surrogate pair: clients cut texts in the middle of a character, and providers accept them. msgspec does not, so
# it reads a body in which each half is a mark and its digits, and the slices get the halves back. Another mark stands
# before a character that looks like one of the two marks.
_OWN_MARK, _HALF_MARK = "\ue000", "\ue001"
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|u(?P<half>[dD][89a-fA-F][0-9a-fA-F]{2})|(?P<escaped>u[eE]00[01])|.)|(?P<mark>\xee\x80[\x80\x81])",
    re.DOTALL,
)
_MARKED = re.compile(rb"\\(?:ue000(?P<own>\\u[eE]00[01]|\xee\x80[\x80\x81])|ue001(?P<half>.{4})|.)", re.DOTALL)
_MARKED_TEXT = re.compile(f"{_OWN_MARK}(?P<own>.)|{_HALF_MARK}(?P<half>.{{4}})", re.DOTALL)


def _without_halves(raw: bytes) -> bytes:
    """Return a body in which marks stand for the halves of surrogate pairs."""

    def replaced(found: re.Match[bytes]) -> bytes:
        if half := found["half"]:
            return b"\\ue001" + half
        return b"\\ue000" + found[0] if found["escaped"] or found["mark"] else found[0]

    return _ESCAPE.sub(replaced, raw)


def _with_halves(slice_: msgspec.Raw) -> msgspec.Raw:
    """Return a slice as it was in the body."""

    def restored(found: re.Match[bytes]) -> bytes:
        return found["own"] or (b"\\u" + found["half"] if found["half"] else found[0])

    return msgspec.Raw(_MARKED.sub(restored, bytes(slice_)))


def _name_with_halves(name: str) -> str:
    return _MARKED_TEXT.sub(lambda found: found["own"] or chr(int(found["half"], 16)), name)


def _restored(value: T) -> T:
    """Return slices, or a collection of them, as they were in the body."""
    if isinstance(value, msgspec.Raw):
        return cast("T", _with_halves(value))
    if isinstance(value, list):
        return cast("T", [_restored(one) for one in cast("list[object]", value)])
    if isinstance(value, dict):
        named = cast("dict[str, object]", value).items()
        return cast("T", {_name_with_halves(name): _restored(one) for name, one in named})
    assert isinstance(value, msgspec.Struct)  # noqa: S101 - a decoder of a body returns nothing else
    return type(value)(**{name: _restored(getattr(value, name)) for name in value.__struct_fields__})


def _slices(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Return a body, or a part of it, as slices; raises `ValueError` if it is not JSON."""
    try:
        try:
            return decoder.decode(raw)
        except msgspec.DecodeError:
            if b"\\u" not in raw:
                raise
            return _restored(decoder.decode(_without_halves(raw)))
    except RecursionError:
        raise ValueError("nested too deep") from None


def members_of(raw: bytes) -> dict[str, msgspec.Raw]:
    """Return all members of a body, in their order; raises `ValueError`."""
    return _slices(_ALL_MEMBERS, raw)


class _BodyStart(NamedTuple):
    """How a body begins, up to the end of its last message: a body that begins with the same bytes continues it."""

    raw: bytes
    """The whole body."""
    end: int
    """Where its last message ends."""
    members: _Members
    """The members before its messages."""


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
    definition_slices: list[msgspec.Raw]
    """The members beside the tools that may hold definitions, such as the schema of the answer."""
    members: _Members
    """The members that all of this was read from, beside the messages."""
    size: int
    """How many bytes it has."""
    fields: JsonObject = field(default_factory=JsonObject)
    """Members that may name the conversation."""
    start: _BodyStart | None = None
    """How it begins; None if no later body can be read as its continuation."""
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

    def replace_message(self, index: int, native: JsonObject) -> None:
        """Read a message as another one; its bytes stay as they came."""
        self._parsed[index] = native

    def messages(self, start: int = 0, stop: int | None = None) -> list[JsonObject]:
        """Return the messages after the leading ones, from an index on and before another."""
        return [self.message(index) for index in range(start, min(stop or len(self.slices), len(self.slices)))]

    def leading_messages(self) -> list[JsonObject]:
        """Return the leading system messages of the list."""
        return [cast("JsonObject", read_json(raw)) for raw in self.leading]

    def around_messages(self, raw: bytes) -> tuple[bytes, bytes]:
        """Return what the body, which came as `raw`, has before the first of its messages and after the last."""
        opening = _LIST_STARTS[self.wire].search(raw)
        if self.start is not None and opening is not None:
            return raw[: opening.end()], raw[raw.index(b"]", self.start.end) :]
        name = LIST_MEMBERS[self.wire]
        members = [(one, b"%s:%s" % (write_json(one), bytes(value))) for one, value in members_of(raw).items()]
        before = [*takewhile(lambda one: one[0] != name, members), (name, b"%s:[" % write_json(name))]
        after = [(name, b"]"), *members[len(before) :]]
        return b"{" + b",".join(text for _, text in before), b",".join(text for _, text in after) + b"}"

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
    def beside_count(self) -> int:
        """How many of the system slices are beside the messages; the others are leading messages."""
        return len(self.system_slices) - len(self.leading)

    @property
    def has_tools(self) -> bool:
        """Whether the model may call a tool."""
        return self.tools_slice not in _NO_TOOLS


def read_body(wire: Wire, raw: bytes, before: ClientBody | None = None) -> ClientBody:
    """Return what a request body says; raises `ValueError` if it has no messages of its wire.

    `before` is an earlier body of the same conversation: what both begin with is not read again.
    """
    continued = _continued(wire, raw, before) if before is not None else None
    members, slices, start = continued or _whole(wire, raw)
    same = before if before is not None and continued else None
    """The body before, whose messages this one begins with."""
    leading = len(same.leading) if same else 0
    if wire in {"openai-chat", "openai-responses"} and not (same and same.slices):
        while leading < len(slices) and _is_system(slices[leading]):
            leading += 1
    if same and same.members is members:  # then they need not be parsed again
        model, fields, beside = same.model, same.fields, same.system_slices[: same.beside_count]
    else:
        model, fields, beside = _beside_messages(wire, members)
    return ClientBody(
        wire=wire,
        model=model,
        system_slices=[*beside, *slices[:leading]],
        slices=slices[leading:] if leading else slices,
        leading=slices[:leading],
        tools_slice=members.tools,
        definition_slices=[one for name in _DEFINITION_MEMBERS[wire] if (one := getattr(members, name)) != _NULL],
        members=members,
        size=len(raw),
        fields=fields,
        start=start,
    )


def _beside_messages(wire: Wire, members: _Members) -> tuple[str | None, JsonObject, list[msgspec.Raw]]:
    """Return the model of a body, the members that may name its conversation, and its system text, if it has one."""
    system = {
        "anthropic": members.system,
        "openai-responses": members.instructions,
        "gemini": members.system_instruction if members.system_instruction != _NULL else members.snake_instruction,
    }.get(wire, _NULL)
    model = read_json(members.model)
    at_provider = ("conversation", "previous_response_id", "thread", "store")
    names = ("metadata", "prompt_cache_key", *at_provider, "tool_choice")
    found = {name: getattr(members, name) for name in names}
    fields = {name: read_json(value) for name, value in found.items() if value != _NULL}
    return model if isinstance(model, str) else None, fields, [] if system == _NULL else [system]


_BodyParts: TypeAlias = tuple[_Members, list[msgspec.Raw], _BodyStart | None]
"""The members of a body, its messages, and how it begins."""


def _whole(wire: Wire, raw: bytes) -> _BodyParts:
    """Read a body from its first byte on."""
    members = _slices(_MEMBERS[wire], raw)
    slices = _listed(wire, members)
    if wire == "openai-responses" and members.input != _NULL:
        given = bytes(members.input)
        prompt = msgspec.Raw(b'{"role":"user","content":%s}' % given)
        slices = [prompt] if given.startswith(b'"') else _slices(_LIST, given)
    opening = _LIST_STARTS[wire].search(raw)
    if opening is None:
        return members, slices, None
    try:
        # If that list were inside of another member, this would not be whole.
        head = _MEMBERS[wire].decode(raw[: opening.end()] + b"]}")
    except (msgspec.DecodeError, RecursionError):
        return members, slices, None
    end = _end_of(slices, raw, opening.end())
    return members, slices, None if end is None else _BodyStart(raw, end, head)


def _continued(wire: Wire, raw: bytes, before: ClientBody) -> _BodyParts | None:
    """Read a body from the end of the last message of `before` on; None if it does not begin with the same bytes."""
    start, name = before.start, LIST_MEMBERS[wire].encode()
    if start is None or before.wire != wire or not raw.startswith(memoryview(start.raw)[: start.end]):
        return None
    rest = raw[start.end :]
    if rest.find(b'"%s"' % name) >= 0:  # there may be a second list, which would count instead
        return None
    try:
        members = _MEMBERS[wire].decode(b'{"%s":[null%s' % (name, rest))
        listed = _LIST.decode(members.input) if wire == "openai-responses" else _listed(wire, members)
    except (msgspec.DecodeError, RecursionError):
        return None
    new, known = listed[1:], [*before.leading, *before.slices] if before.leading else before.slices
    beside = [one for one in _Members.__struct_fields__ if one != LIST_MEMBERS[wire]]
    after = {one: value for one in beside if (value := getattr(members, one)) != _NULL}
    members = msgspec.structs.replace(start.members, **after) if after else start.members
    end = _end_of(new, raw, start.end)
    return None if end is None else (members, known + new, _BodyStart(raw, end, start.members))


def _listed(wire: Wire, members: _Members) -> list[msgspec.Raw]:
    return getattr(members, LIST_MEMBERS[wire]) if wire != "openai-responses" else []


def _end_of(slices: Sequence[msgspec.Raw], raw: bytes, end: int) -> int | None:
    """Return where the last of some messages ends, which follow each other from a place on; None if they do not."""
    for one in slices:
        content = bytes(one)
        place = raw.find(content, end)
        if place < 0 or raw[end:place].strip(_BETWEEN_MESSAGES):
            return None
        end = place + len(content)
    return end


def texts_of(value: object) -> list[str]:
    """Return the texts of a message or of system content, in order: strings, blocks and parts, however deep."""
    found: list[str] = []
    rest: list[object] = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            found.append(one)
        elif is_list(one):
            rest.extend(reversed(one))
        elif is_mapping(one):
            rest.extend(one.get(name) for name in ("parts", "content", "text"))
    return found


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
