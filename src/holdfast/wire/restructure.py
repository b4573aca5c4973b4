"""Brings messages into the turn structure of another format.

Formats differ in which message carries tool results and whether two messages of one role may follow each other. These
functions split and join messages; what a target cannot carry is left out, with a note.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from holdfast.core.conversation.batching import is_id_from_name
from holdfast.core.conversation.messages import (
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
)
from holdfast.wire.json_reader import is_mapping

_UNSAFE_NAME_CHARS = r"[^a-zA-Z0-9_-]"
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Restructuring:
    """One conversion, with notes on what could not be carried over."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be carried over, each once, in order."""
        return tuple(self._notes)

    def note(self, what: str) -> None:
        """Note what could not be carried over."""
        self._notes[what] = None

    def portable(self, message: Message) -> Message:
        """Return a message without its JSON and without what only its own provider understands."""
        parts = tuple(part for raw in message.parts if (part := self._portable_part(raw, message.role)) is not None)
        return Message(message.role, parts)

    def _portable_part(self, part: Part, role: Role) -> Part | None:
        if isinstance(part, Thinking):
            self.note("reasoning was left out: it is only valid with the provider that wrote it")
            return None
        if isinstance(part, Opaque):
            return self._portable_opaque(part, role)
        if isinstance(part, Text):
            return Text(part.text, part.trust)
        if isinstance(part, ToolCall):
            return self._portable_call(part)
        if isinstance(part, ToolResult):
            inner = [self._portable_part(item, role) for item in part.content]
            # An empty text is a valid result, but not next to other content.
            content: tuple[Content, ...] = tuple(
                item
                for item in inner
                if isinstance(item, Media | Opaque)
                or (isinstance(item, Text) and not (item.is_blank and len(inner) > 1))
            )
            return replace(part, content=content, native=None)
        return part

    def _portable_call(self, call: ToolCall) -> ToolCall:
        name = safe_name(call.name)
        if name != call.name:
            self.note(f"the tool {call.name!r} was renamed to {name!r}")
        return replace(call, name=name, native=None)

    def _portable_opaque(self, part: Opaque, role: Role) -> Text | None:
        if part.kind == "refusal":
            return Text(part.text, part.trust)
        source = part.native.get("source") if is_mapping(part.native) else None
        text = source.get("data") if is_mapping(source) and source.get("type") == "text" else None
        if isinstance(text, str) and text.strip():
            return Text(text, part.trust)
        self.note(f"a block of type {part.kind!r} was left out")
        # A user's block leaves a placeholder, so that the prompt does not disappear with it.
        return None if role in {"assistant", "system"} else Text(f"[{part.kind} not carried over]", part.trust)


def safe_name(name: str) -> str:
    """Return a tool name that every provider accepts."""
    return re.sub(_UNSAFE_NAME_CHARS, "_", name)[:64] or "tool"


def separate_system(messages: Iterable[Message]) -> tuple[list[str], list[Message]]:
    """Return the system texts, and the messages without them."""
    systems: list[str] = []
    others: list[Message] = []
    for message in messages:
        if message.role != "system":
            others.append(message)
        elif message.text:
            systems.append(message.text)
    return systems, others


def split_results(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages, each tool result in its own message."""
    for message in messages:
        results = message.results
        if not results:
            yield message
            continue
        for result in results:
            yield Message("tool", (result,))
        besides = tuple(part for part in message.parts if not isinstance(part, ToolResult))
        if besides:
            yield Message("user", besides)


def join_assistant_runs(messages: Iterable[Message]) -> list[Message]:
    """Return messages with consecutive assistant messages joined."""
    joined: list[Message] = []
    for message in messages:
        if joined and message.role == joined[-1].role == "assistant":
            joined[-1] = Message("assistant", (*joined[-1].parts, *message.parts))
        else:
            joined.append(message)
    return joined


def split_calls(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages, each call in its own message after the text it came with."""
    for message in messages:
        if not message.calls:
            yield message
            continue
        besides = tuple(part for part in message.parts if not isinstance(part, ToolCall))
        if besides:
            yield Message(message.role, besides)
        for call in message.calls:
            yield Message(message.role, (call,))


def join_same_side(messages: Iterable[Message]) -> list[Message]:
    """Return messages with consecutive messages of one side joined; tool results count as the user's."""
    joined: list[Message] = []
    for message in messages:
        role = "user" if message.role == "tool" else message.role
        if not message.parts:
            continue
        if joined and joined[-1].role == role:
            joined[-1] = Message(role, (*joined[-1].parts, *message.parts))
        else:
            joined.append(Message(role, message.parts))
    return joined


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Return messages with the results of each batch first, in the order of its calls."""
    ordered: list[Message] = []
    calls: list[str] = []
    for message in messages:
        if message.results and message.role == "user":
            rank = {call_id: number for number, call_id in enumerate(calls)}
            results = sorted(message.results, key=lambda result: rank.get(result.call_id, len(rank)))
            besides = tuple(part for part in message.parts if not isinstance(part, ToolResult))
            ordered.append(message.with_parts((*results, *besides)))
        else:
            ordered.append(message)
        calls = [call.id for call in message.calls]
    return ordered


def with_new_ids(messages: Iterable[Message], rename: Callable[[str], str]) -> list[Message]:
    """Return messages with every call id replaced, in calls and results."""

    def renamed(part: Part) -> Part:
        if isinstance(part, ToolCall):
            return replace(part, id=rename(part.id))
        return replace(part, call_id=rename(part.call_id)) if isinstance(part, ToolResult) else part

    return [message.with_parts(tuple(map(renamed, message.parts))) for message in messages]


def with_unique_ids(messages: Sequence[Message]) -> list[Message]:
    """Return messages with unique ids for calls that had only a name."""
    current: dict[str, str] = {}
    renamed: list[Message] = []

    for index, message in enumerate(messages):
        for number, call in enumerate(message.calls):
            if is_id_from_name(call.id):
                current[call.id] = f"{safe_name(call.name)[:40]}_{index}_{number}"
        renamed += with_new_ids([message], lambda call_id: current.get(call_id, call_id))
    return renamed


def with_answered_calls(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages whose results know the call they answer: some formats name its tool in the result."""
    calls: dict[str, ToolCall] = {}

    def informed(part: Part) -> Part:
        return replace(part, answered_call=calls.get(part.call_id)) if isinstance(part, ToolResult) else part

    for message in messages:
        calls |= {call.id: call for call in message.calls}
        yield message.with_parts(tuple(map(informed, message.parts))) if message.results else message


def nine_char_id(call_id: str) -> str:
    """Return an id of nine letters and digits, always the same for the same id."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():  # noqa: PLR2004
        return call_id
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which few conversions need

    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()[:8])
    letters: list[str] = []
    for _ in range(9):
        number, digit = divmod(number, 62)
        letters.append(BASE62[digit])
    return "".join(letters)


def limit_images(messages: Sequence[Message], max_images: int, restructuring: Restructuring) -> list[Message]:
    """Return messages with the oldest images beyond `max_images` replaced by a text."""
    excess = sum(isinstance(part, Media) for message in messages for part in _flat_parts(message.parts)) - max_images
    if excess <= 0:
        return list(messages)
    restructuring.note(f"{excess} image(s) were left out: {restructuring.target} accepts {max_images}")

    def limited(part: Part) -> Part:
        nonlocal excess
        if isinstance(part, Media) and excess > 0:
            excess -= 1
            return Text(f"[{part.kind} elided]", part.trust)
        if isinstance(part, ToolResult):
            inner = tuple(map(limited, part.content))
            return replace(part, content=tuple(item for item in inner if isinstance(item, Text | Media | Opaque)))
        return part

    return [message.with_parts(tuple(map(limited, message.parts))) for message in messages]


def _flat_parts(parts: Iterable[Part]) -> Iterator[Part]:
    for part in parts:
        yield part
        if isinstance(part, ToolResult):
            yield from part.content
