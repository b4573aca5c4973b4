"""Messages, their parts, and the entries of a view, as values.

One `Message` is one element of a provider's list (a chat message, an Anthropic message, …). It keeps
the provider's own JSON next to its parts, so that an unedited message is sent exactly as it was read. Each
part keeps the block it was read from, so that an edit changes that block and nothing else. Identity
(positions, record ids) belongs to storage; an `Entry` pairs a message with its position.

Every part carries a trust label that says who wrote it. Shortening, moving or compacting a part never
changes its label.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Trust: TypeAlias = Literal["system", "user", "agent", "model", "tool", "memory", "summary"]
"""Who wrote something; `agent` is what one agent tells another, in a user's place."""

TRUST_OF_ROLE: Mapping[Role, Trust] = {
    "system": "system",
    "user": "user",
    "assistant": "model",
    "tool": "tool",
}

NOT_BY_USER: frozenset[Trust] = frozenset({"summary", "system", "memory"})
"""Who writes in a user's place without being the user."""


@dataclass(frozen=True, slots=True)
class Text:
    """Words."""

    text: str
    trust: Trust
    native: object = field(default=None, compare=False, repr=False)
    """The block this was read from, the name of the field, or None where the content is a bare string."""
    is_edited: bool = field(default=False, compare=False, repr=False)

    def with_text(self, text: str) -> "Text":
        """Return the same part with other words, still tied to its block."""
        return replace(self, text=text, is_edited=True)

    @property
    def is_blank(self) -> bool:
        """Whether a provider would refuse this text as empty."""
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
    """What it is estimated to cost: providers bill media by size and detail, not by words."""
    native: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something only the provider understands: server tools, citations, blocks newer than this code."""

    kind: str
    text: str
    """Its words or its JSON, for counting."""
    trust: Trust
    native: object = field(default=None, compare=False, repr=False)
    tokens: int | None = None
    """What it is estimated to cost where its text does not tell: encrypted content, images inside."""


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
    """What a made-up result costs besides its words, where it has to be more than words."""

    def with_id(self, call_id: str) -> "ToolCall":
        """Return the same call under another id."""
        return replace(self, id=call_id, is_edited=True)

    def with_arguments(self, arguments: str) -> "ToolCall":
        """Return the same call with other arguments."""
        return replace(self, arguments=arguments, is_edited=True)


Content: TypeAlias = Text | Media | Opaque


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool gave back."""

    call_id: str
    content: tuple[Content, ...]
    is_error: bool = False
    trust: Trust = "tool"
    native: object = field(default=None, compare=False, repr=False)
    is_edited: bool = field(default=False, compare=False, repr=False)
    answered_call: ToolCall | None = field(default=None, compare=False, repr=False)
    """The call, where the result was made up for it: some formats name the tool or its kind beside the id."""
    is_recall_answer: bool = field(default=False, compare=False, repr=False)
    """Whether it is recall's answer, which repeats what was said before."""

    @property
    def text(self) -> str:
        """Its words, joined."""
        return "\n".join(part.text for part in self.content if isinstance(part, Text))

    def with_call_id(self, call_id: str) -> "ToolResult":
        """Return the same result for another call id."""
        return replace(self, call_id=call_id, is_edited=True)

    def with_content(self, content: tuple[Content, ...]) -> "ToolResult":
        """Return the same result with other content."""
        return replace(self, content=content, is_edited=True)


Part: TypeAlias = Text | Thinking | ToolCall | ToolResult | Media | Opaque


class MessageOutline(NamedTuple):
    """What the rules of structure ask of a message."""

    call_ids: tuple[str, ...]
    result_ids: tuple[str, ...]
    has_no_empty_text: bool
    """Whether it says something and holds no empty text block."""
    has_results_first: bool
    is_reasoning_only: bool
    """Whether it is reasoning and nothing else."""


@dataclass(frozen=True, slots=True)
class Message:
    """One element of a conversation."""

    role: Role
    parts: tuple[Part, ...]
    native: Mapping[str, object] | None = field(default=None, compare=False, repr=False)
    """The provider's JSON this was read from; None for a message of our own making."""
    decoded: tuple[Part, ...] = field(default=(), compare=False, repr=False)
    """The parts as they were read: an encoder rewrites only what differs."""
    repair_notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """What was repaired to read it at all; its JSON is then the repaired one."""
    extra_fields_json: str = field(default="", compare=False, repr=False)
    """Fields that no part stands for, as JSON text: they are sent with it, so they count."""
    _outline: MessageOutline | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def outline(self) -> MessageOutline:
        """What the rules of structure ask of it, worked out once."""
        outline = self._outline
        if outline is None:
            outline = _outline_of(self.parts)
            object.__setattr__(self, "_outline", outline)
        return outline

    @property
    def is_unedited(self) -> bool:
        """Whether the provider's JSON still says exactly this."""
        return self.native is not None and self.parts is self.decoded

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls it makes."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The tool results it carries."""
        return tuple(part for part in self.parts if isinstance(part, ToolResult))

    @property
    def text(self) -> str:
        """Its own words, joined: neither tool output nor reasoning."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def is_prompt(self) -> bool:
        """Whether a person says something here: a user message that is more than tool results."""
        return self.role == "user" and any(
            (isinstance(part, Text) and not part.is_blank and part.trust not in NOT_BY_USER)
            or isinstance(part, Media | Opaque)
            for part in self.parts
        )

    @property
    def is_task(self) -> bool:
        """Whether an agent tells another here what to do."""
        return any(isinstance(part, Text) and part.trust == "agent" for part in self.parts)

    @property
    def is_from_memory(self) -> bool:
        """Whether it was put here from memory: reference that nobody has said, and no client's own list holds."""
        return any(isinstance(part, Text) and part.trust == "memory" for part in self.parts)

    @property
    def speaker(self) -> str:
        """Whose word it is, for people: its role, unless it is memory's, a tool's, or tells an agent what to do."""
        if self.is_from_memory:
            return "memory"
        if self.role == "user" and self.outline.result_ids and not self.is_prompt:
            return "tool"
        return "task" if self.is_task else self.role

    def with_trust(self, trust: Trust) -> "Message":
        """Return the same message with its words under another label, and its JSON as it was."""
        parts = tuple(replace(part, trust=trust) if isinstance(part, Text) else part for part in self.parts)
        return replace(self, parts=parts, decoded=parts)

    def with_parts(self, parts: tuple[Part, ...]) -> "Message":
        """Return the same message saying something else; its JSON stays beside it for the encoder."""
        return replace(self, parts=parts)


def _outline_of(parts: tuple[Part, ...]) -> MessageOutline:
    results = tuple(part.call_id for part in parts if isinstance(part, ToolResult))
    says_nothing = all(isinstance(part, Thinking) for part in parts)
    return MessageOutline(
        tuple(part.id for part in parts if isinstance(part, ToolCall)),
        results,
        not says_nothing and not any(map(_is_blank, parts)),
        all(isinstance(part, ToolResult) for part in parts[: len(results)]),
        says_nothing and bool(parts),
    )


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
    """Return an assistant message: reasoning, then words, then tool calls."""
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
    """Its index in the history; None for a message that was made for this view."""

    def with_message(self, message: Message) -> "Entry":
        """Return the entry with its message replaced."""
        return Entry(message, self.position)


@dataclass(frozen=True, slots=True)
class EntryMessages:
    """Entries as the messages they hold."""

    entries: Sequence[Entry]

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int, /) -> Message:
        return self.entries[index].message
