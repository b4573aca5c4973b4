"""Brings messages into the turn structure of another format.

Formats differ in who carries tool results and whether two turns of one role may follow each other.
Here a message is parted or joined with others; what a target cannot carry is left out and said.
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
    """One conversion: what could not be carried over is noted here."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be carried over, in the order in which it came up."""
        return tuple(self._notes)

    def note(self, what: str) -> None:
        """Say what could not be carried over, once."""
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
            # An empty text is a result, but not beside something else.
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
            self.note(f"the tool {call.name!r} is called {name!r} there")
        return replace(call, name=name, native=None)

    def _portable_opaque(self, part: Opaque, role: Role) -> Text | None:
        if part.kind == "refusal":
            return Text(part.text, part.trust)
        source = part.native.get("source") if is_mapping(part.native) else None
        words = source.get("data") if is_mapping(source) and source.get("type") == "text" else None
        if isinstance(words, str) and words.strip():
            return Text(words, part.trust)
        self.note(f"a block of type {part.kind!r} was left out")
        # What a user showed leaves a trace, so that the prompt does not vanish with it.
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
    """Yield messages with each tool result in a message of its own."""
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
    """Return messages with the model's elements that follow each other in one."""
    joined: list[Message] = []
    for message in messages:
        if joined and message.role == joined[-1].role == "assistant":
            joined[-1] = Message("assistant", (*joined[-1].parts, *message.parts))
        else:
            joined.append(message)
    return joined


def split_calls(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages with each call in one of its own, behind what the model says with it."""
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
    """Return messages with neighbours of one side joined, tool results standing on the user's."""
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
    """Return messages with the results of each batch in the order of its calls, before anything else."""
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
    """Return messages with every call id replaced, on calls and results alike."""

    def renamed(part: Part) -> Part:
        if isinstance(part, ToolCall):
            return replace(part, id=rename(part.id))
        return replace(part, call_id=rename(part.call_id)) if isinstance(part, ToolResult) else part

    return [message.with_parts(tuple(map(renamed, message.parts))) for message in messages]


def with_unique_ids(messages: Sequence[Message]) -> list[Message]:
    """Return messages whose calls, where they went by name alone, have ids that occur nowhere else."""
    current: dict[str, str] = {}
    placed: list[Message] = []

    def by_place(call_id: str) -> str:
        return current.get(call_id, call_id)

    for index, message in enumerate(messages):
        for number, call in enumerate(message.calls):
            if is_id_from_name(call.id):
                current[call.id] = f"{safe_name(call.name)[:40]}_{index}_{number}"
        placed += with_new_ids([message], by_place)
    return placed


def with_answered_calls(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages whose results know the call they answer: some formats name its tool beside them."""
    calls: dict[str, ToolCall] = {}

    def informed(part: Part) -> Part:
        return replace(part, answered_call=calls.get(part.call_id)) if isinstance(part, ToolResult) else part

    for message in messages:
        calls |= {call.id: call for call in message.calls}
        yield message.with_parts(tuple(map(informed, message.parts))) if message.results else message


def nine_char_id(call_id: str) -> str:
    """Return an id of nine letters and digits; the same id for the same id."""
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
    """Return messages with the oldest images beyond `most` replaced by a word."""
    excess = sum(isinstance(part, Media) for message in messages for part in _flat_parts(message.parts)) - max_images
    if excess <= 0:
        return list(messages)
    restructuring.note(f"{excess} image(s) were left out: {restructuring.target} takes {max_images}")

    def thinned(part: Part) -> Part:
        nonlocal excess
        if isinstance(part, Media) and excess > 0:
            excess -= 1
            return Text(f"[{part.kind} elided]", part.trust)
        if isinstance(part, ToolResult):
            inner = tuple(map(thinned, part.content))
            return replace(part, content=tuple(item for item in inner if isinstance(item, Text | Media | Opaque)))
        return part

    return [message.with_parts(tuple(map(thinned, message.parts))) for message in messages]


def _flat_parts(parts: Iterable[Part]) -> Iterator[Part]:
    for part in parts:
        yield part
        if isinstance(part, ToolResult):
            yield from part.content
