"""Messages, their parts, and the entries of a view, as values.

A `Message` is one element of a provider's list (a chat message, an Anthropic message, …). It keeps the
provider's JSON together with its parts, so that an unedited message is sent exactly as it was read. Each
part keeps the block it was read from, so that an edit changes only that block. Identity (positions, record
ids) belongs to storage; an `Entry` pairs a message with its position.

Every part has a trust label that names its author. Shortening, moving or compacting a part never changes
its label.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Literal, NamedTuple, TypeAlias

from holdfast.dataclass import dataclass

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Trust: TypeAlias = Literal["system", "user", "agent", "model", "tool", "memory", "attachment", "summary"]
"""The author of a part; `agent` marks a user message that one agent sends to another, `attachment` pasted text."""

TRUST_OF_ROLE: Mapping[Role, Trust] = {
    "system": "system",
    "user": "user",
    "assistant": "model",
    "tool": "tool",
}

NOT_BY_USER: frozenset[Trust] = frozenset({"summary", "system", "memory", "attachment", "tool"})
"""Labels of text in user messages that the user did not write."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text content."""

    text: str
    trust: Trust
    native: object = field(default=None, compare=False, repr=False)
    """The block this was read from, the name of the field, or None if the content is a bare string."""
    is_edited: bool = field(default=False, compare=False, repr=False)
    counts: tuple[object, ...] = field(default=(), init=False, compare=False, repr=False)
    """A counter that has counted the text, then the tokens, then the next counter: few objects for each text."""

    def with_text(self, text: str) -> "Text":
        """Return the part with another text and the same native block."""
        return replace(self, text=text, is_edited=True)

    @property
    def is_blank(self) -> bool:
        """Whether a provider would reject this text as empty."""
        return not self.text or self.text.isspace()


@dataclass(frozen=True, slots=True)
class Thinking:
    """A model's reasoning: sent back byte for byte, or not at all."""

    text: str
    signature: str | None = None
    trust: Trust = "model"
    native: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound or a document."""

    kind: Literal["image", "audio", "document"]
    trust: Trust
    tokens: int = 0
    """The estimated cost: providers bill media by size and detail, not by text."""
    native: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Opaque:
    """Content that only the provider understands: server tools, citations, block types newer than this code."""

    kind: str
    text: str
    """The text or the JSON of the block, for counting."""
    trust: Trust
    native: object = field(default=None, compare=False, repr=False)
    tokens: int | None = None
    """The estimated cost if the text does not determine it: encrypted content, nested images."""
    server_use: str = ""
    """The id of a tool use that the provider carries out itself, if this is one."""
    server_result: str = ""
    """The id of the provider's own tool use that this answers, if it answers one."""
    is_final: bool = False
    """Whether nothing may follow it in a request."""
    is_fixed: bool = field(default=False, repr=False)
    """Whether every later request needs it, because the provider reads it in place of everything before it."""
    is_first: bool = field(default=False, repr=False)
    """Whether nothing may come before it in a request."""
    encoded_tokens: int = field(default=0, repr=False)
    """The estimated cost of encrypted or encoded data within the block, which the text leaves out."""

    @property
    def is_field_of_next(self) -> bool:
        """Whether this only counts a field of the part after it, such as its signature."""
        return not self.text and self.native == self.kind


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str
    trust: Trust = "model"
    native: object = field(default=None, compare=False, repr=False)
    is_edited: bool = field(default=False, compare=False, repr=False)
    result_overhead_tokens: int = field(default=0, compare=False, repr=False)
    """The extra tokens of a synthetic result for this call, if the format requires more than text."""
    result_kind: str = field(default="", compare=False, repr=False)
    """The kind of result that the call needs, if the format has several."""
    caller: str = field(default="", repr=False)
    """The id of the provider's own tool use whose program made the call; empty if the model made it directly."""

    def with_id(self, call_id: str) -> "ToolCall":
        """Return the call with another id."""
        return replace(self, id=call_id, is_edited=True)

    def without_caller(self) -> "ToolCall":
        """Return the call as one of the model."""
        return replace(self, caller="", is_edited=True)

    def with_arguments(self, arguments: str) -> "ToolCall":
        """Return the call with other arguments."""
        return replace(self, arguments=arguments, is_edited=True)


Content: TypeAlias = Text | Media | Opaque


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    call_id: str
    content: tuple[Content, ...]
    is_error: bool = False
    trust: Trust = "tool"
    native: object = field(default=None, compare=False, repr=False)
    is_edited: bool = field(default=False, compare=False, repr=False)
    answered_call: ToolCall | None = field(default=None, compare=False, repr=False)
    """The call of a synthetic result: some formats need the tool's name or kind in addition to the id."""
    kind: str = field(default="", compare=False, repr=False)
    """The kind of result, if the format has several."""
    is_recall_answer: bool = field(default=False, compare=False, repr=False)
    """Whether this is an answer of the recall tool, which repeats earlier messages."""
    caller: str = field(default="", repr=False)
    """The caller of the answered call, if the format repeats it here."""

    @property
    def text(self) -> str:
        """The texts of the result, joined by line breaks."""
        if len(self.content) == 1 and isinstance(only := self.content[0], Text):
            return only.text
        return "\n".join(part.text for part in self.content if isinstance(part, Text))

    def with_call_id(self, call_id: str) -> "ToolResult":
        """Return the result with another call id."""
        return replace(self, call_id=call_id, is_edited=True)

    def without_caller(self) -> "ToolResult":
        """Return the result of a call of the model."""
        return replace(self, caller="", is_edited=True)

    def with_content(self, content: tuple[Content, ...]) -> "ToolResult":
        """Return the result with other content."""
        return replace(self, content=content, is_edited=True)


Part: TypeAlias = Text | Thinking | ToolCall | ToolResult | Media | Opaque
_OWN_CONTENT = (Media, Opaque)
"""What a user sends besides text; tool results are not the user's own."""


class MessageOutline(NamedTuple):
    """The facts about a message that cut and repair rules need."""

    call_ids: tuple[str, ...]
    result_ids: tuple[str, ...]
    has_no_empty_text: bool
    """Whether the message has content besides reasoning and holds no empty text block."""
    has_results_first: bool
    is_reasoning_only: bool
    """Whether the message holds only reasoning."""
    server_uses: tuple[str, ...]
    """Ids of the provider's own tool uses without a result in this message."""
    server_results: tuple[str, ...]
    """Ids of results of the provider's own tools without their use in this message; empty for a repeated use."""
    work_chars: int = 0
    """The length of its tool calls and results."""
    has_earlier_caller: bool = False
    """Whether a program that began in an earlier message made one of the calls."""
    has_server_tools: bool = False
    """Whether what a provider runs itself begins in this message and ends in another, or the other way round."""
    is_final: bool = False
    """Whether nothing may follow the message in a request."""
    is_fixed: bool = False
    """Whether every later request needs the message, as it needs system text."""
    is_first: bool = False
    """Whether nothing may come before the message in a request."""


TEXT_OUTLINE = MessageOutline(
    (), (), has_no_empty_text=True, has_results_first=True, is_reasoning_only=False, server_uses=(), server_results=()
)
_BLANK_OUTLINE = TEXT_OUTLINE._replace(has_no_empty_text=False)
"""The outlines of messages that are one text."""


@dataclass(frozen=True, slots=True)
class Message:
    """One element of a conversation."""

    role: Role
    parts: tuple[Part, ...]
    native: Mapping[str, object] | None = field(default=None, compare=False, repr=False)
    """The provider's JSON this was read from; None for a generated message."""
    decoded: tuple[Part, ...] = field(default=(), compare=False, repr=False)
    """The parts as they were read; an encoder rewrites only parts that differ."""
    repair_notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The repairs that decoding required; `native` then holds the repaired JSON."""
    extra_fields_json: str = field(default="", compare=False, repr=False)
    """Fields that no part represents, as JSON text; they are sent, so their tokens count."""
    counts: tuple[object, ...] = field(default=(), init=False, compare=False, repr=False)
    """A counter that has counted the message, the tokens of its text and of its media, then the next counter."""
    outline: MessageOutline = field(init=False, compare=False, repr=False)
    """The outline of the parts. Each request reads it a dozen times, so reading it takes no call.

    It is made with the message. A `__getattr__` that makes it later would slow down every other attribute, too.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "outline", _outline_of(self.parts))

    @property
    def is_unedited(self) -> bool:
        """Whether the provider's JSON still matches the parts."""
        return self.native is not None and self.parts is self.decoded

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the message."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The tool results of the message."""
        return tuple(part for part in self.parts if isinstance(part, ToolResult))

    @property
    def text(self) -> str:
        """The texts of the message, joined by line breaks, without tool output and reasoning."""
        if len(self.parts) == 1 and isinstance(only := self.parts[0], Text):
            return only.text
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def chat_chars(self) -> int:
        """The length of its own text."""
        if len(self.parts) == 1 and isinstance(only := self.parts[0], Text):
            return len(only.text)
        return len(self.text)

    @property
    def media_count(self) -> int:
        """The number of media in the message, including those inside tool results."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Text):
            return 0
        return sum(
            isinstance(part, Media)
            + (sum(isinstance(inner, Media) for inner in part.content) if isinstance(part, ToolResult) else 0)
            for part in self.parts
        )

    @property
    def is_prompt(self) -> bool:
        """Whether this is a user message with content besides tool results and generated text."""
        if self.role != "user":
            return False
        for part in self.parts:
            if isinstance(part, Text):
                if part.trust not in NOT_BY_USER and not part.is_blank:
                    return True
            elif isinstance(part, _OWN_CONTENT) and part.trust != "tool":
                return True
        return False

    @property
    def is_task(self) -> bool:
        """Whether this is a task that one agent gives another."""
        return any(isinstance(part, Text) and part.trust == "agent" for part in self.parts)

    @property
    def is_report(self) -> bool:
        """Whether this tells what another agent has done: its role is the user's, and no user has written it."""
        return self.role == "user" and any(isinstance(part, Text) and part.trust == "tool" for part in self.parts)

    @property
    def is_from_memory(self) -> bool:
        """Whether the message was inserted from memory: it is reference only, and no client's list contains it."""
        return any(isinstance(part, Text) and part.trust == "memory" for part in self.parts)

    @property
    def is_attachment(self) -> bool:
        """Whether the message is an attachment, which no request carries and recall reads in parts."""
        return any(isinstance(part, Text) and part.trust == "attachment" for part in self.parts)

    @property
    def speaker(self) -> str:
        """The author for display: `memory`, `attachment`, `tool` or `task` where these apply, otherwise the role."""
        if self.is_from_memory or self.is_attachment:
            return "memory" if self.is_from_memory else "attachment"
        if self.role == "user" and (self.outline.result_ids or self.is_report) and not self.is_prompt:
            return "tool"
        return "task" if self.is_task else self.role

    def with_trust(self, trust: Trust) -> "Message":
        """Return the message with another trust label on its texts and unchanged JSON."""
        parts = tuple(replace(part, trust=trust) if isinstance(part, Text) else part for part in self.parts)
        return replace(self, parts=parts, decoded=parts)

    @property
    def has_thinking(self) -> bool:
        """Whether the message holds reasoning."""
        return any(isinstance(part, Thinking) for part in self.parts)

    def without_thinking(self) -> "Message":
        """Return the message without its reasoning."""
        return self.with_parts(tuple(part for part in self.parts if not isinstance(part, Thinking)))

    def without_item_id(self, note: str) -> "Message":
        """Return an item without the id by which its provider knows it, with a note that says why."""
        native = {key: value for key, value in (self.native or {}).items() if key != "id"}
        parts = tuple(replace(part, native=native) if isinstance(part, ToolCall) else part for part in self.parts)
        return replace(self, parts=parts, native=native, decoded=(), repair_notes=(*self.repair_notes, note))

    def with_parts(self, parts: tuple[Part, ...]) -> "Message":
        """Return the message with other parts; it keeps its JSON for the encoder."""
        return replace(self, parts=parts)


def _outline_of(parts: Sequence[Part]) -> MessageOutline:
    if len(parts) == 1 and isinstance(only := parts[0], Text):
        return _BLANK_OUTLINE if only.is_blank else TEXT_OUTLINE  # most messages are one text
    calls = [part for part in parts if isinstance(part, ToolCall)]
    results = [part for part in parts if isinstance(part, ToolResult)]
    is_reasoning = all(isinstance(part, Thinking) for part in parts)
    server_uses, others = unpaired_server_parts(parts)
    has_earlier_caller = _has_earlier_caller(parts)
    return MessageOutline(
        tuple(call.id for call in calls),
        tuple(result.call_id for result in results),
        not is_reasoning and not any(map(_is_blank, parts)),
        all(isinstance(part, ToolResult) for part in parts[: len(results)]),
        is_reasoning and bool(parts),
        tuple(part.server_use for part in server_uses),
        tuple(part.server_result for part in others),
        sum(len(call.name) + len(call.arguments) for call in calls) + sum(len(result.text) for result in results),
        has_earlier_caller,
        bool(server_uses or others or has_earlier_caller),
        any(isinstance(part, Opaque) and part.is_final for part in parts),
        any(isinstance(part, Opaque) and part.is_fixed for part in parts),
        any(isinstance(part, Opaque) and part.is_first for part in parts),
    )


class _UnfrozenText:
    """A `Text` whose fields are being filled: in half the time that the initializer of a frozen class takes."""

    __slots__ = ("counts", "is_edited", "native", "text", "trust")
    text: str
    trust: Trust
    native: None
    is_edited: bool
    counts: tuple[object, ...]


class _UnfrozenMessage:
    """A `Message` whose fields are being filled."""

    __slots__ = ("counts", "decoded", "extra_fields_json", "native", "outline", "parts", "repair_notes", "role")
    role: Role
    parts: tuple[_UnfrozenText, ...]
    native: Mapping[str, object]
    decoded: tuple[_UnfrozenText, ...]
    repair_notes: tuple[str, ...]
    extra_fields_json: str
    counts: tuple[object, ...]
    outline: MessageOutline


def plain_message(role: Role, text: str, native: Mapping[str, object]) -> Message:
    """Return a message that was read as one text, as most are: a first request reads thousands of them."""
    part = _UnfrozenText()
    part.text = text
    part.trust = TRUST_OF_ROLE[role]
    part.native = None
    part.is_edited = False
    part.counts = ()
    part.__class__ = Text  # pyright: ignore[reportAttributeAccessIssue]
    message = _UnfrozenMessage()
    message.role = role
    message.parts = message.decoded = (part,)
    message.native = native
    message.repair_notes = ()
    message.extra_fields_json = ""
    message.counts = ()
    message.outline = _BLANK_OUTLINE if text.isspace() or not text else TEXT_OUTLINE
    message.__class__ = Message  # pyright: ignore[reportAttributeAccessIssue]
    return message  # pyright: ignore[reportReturnType]


def _has_earlier_caller(parts: Sequence[Part]) -> bool:
    callers = {part.caller for part in parts if isinstance(part, ToolCall) and part.caller}
    return bool(callers) and not callers.issubset(part.server_use for part in parts if isinstance(part, Opaque))


def unpaired_server_parts(parts: Sequence[Part]) -> tuple[list[Opaque], list[Opaque]]:
    """Return the provider's own tool uses that have no result here, and parts that cannot be paired here.

    Those are results without their use before them, and uses that repeat the id of an open one.
    """
    uses: dict[str, Opaque] = {}
    others: list[Opaque] = []
    for part in parts:
        if not isinstance(part, Opaque):
            continue
        if part.server_use and part.server_use not in uses:
            uses[part.server_use] = part
        elif part.server_use or (part.server_result and uses.pop(part.server_result, None) is None):
            others.append(part)
    return list(uses.values()), others


def tool_texts(message: Message) -> list[str]:
    """Return the arguments and the outputs of a message, without the blank texts that a repair removes."""
    return [*(call.arguments for call in message.calls), *map(_output_text, message.results)]


def _output_text(result: ToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, Text) and not part.is_blank)


def _is_blank(part: Part) -> bool:
    """Return whether a part holds an empty text block; a bare empty string is a legal tool result."""
    if isinstance(part, Text):
        return part.is_blank
    return isinstance(part, ToolResult) and any(
        isinstance(inner, Text) and inner.native is not None and inner.is_blank for inner in part.content
    )


def system(text: str) -> Message:
    """Return a system message."""
    return Message("system", (Text(text, "system"),))


def user(text: str, *, trust: Trust = "user") -> Message:
    """Return a user message."""
    return Message("user", (Text(text, trust),))


def assistant(text: str = "", *calls: ToolCall, thinking: Thinking | None = None) -> Message:
    """Return an assistant message: reasoning, then text, then tool calls."""
    parts: list[Part] = [thinking] if thinking else []
    if text:
        parts.append(Text(text, "model"))
    return Message("assistant", (*parts, *calls))


def tool_result(call_id: str, text: str, *, is_error: bool = False) -> Message:
    """Return a tool message with one result."""
    return Message("tool", (ToolResult(call_id, (Text(text, "tool"),), is_error),))


class Entry(NamedTuple):
    """One message of a view."""

    message: Message
    position: int | None = None
    """The index in the history; None for a message generated for this view."""

    def with_message(self, message: Message) -> "Entry":
        """Return the entry with its message replaced."""
        return Entry(message, self.position)


@dataclass(frozen=True, slots=True)
class EntryMessages:
    """The messages of entries, as a sequence."""

    entries: Sequence[Entry]

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int, /) -> Message:
        return self.entries[index].message
