"""Messages for display: every part as text, cut where a page has many."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from holdfast.apps.viewer.session_index import LoadedMessage
from holdfast.core.conversation.messages import Media, Message, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.core.history import events as log

LINE_CHARS = 80
MAX_PART_CHARS = 4_000
"""A longer text is cut on a page of many messages; the page of the message has all of it."""


@dataclass(frozen=True, slots=True)
class PartValue:
    """One part of a message, as text."""

    kind: Literal["text", "thinking", "call", "result", "media", "other"]
    text: str
    name: str = ""
    call_id: str = ""
    is_error: bool = False
    hidden_chars: int = 0
    """How many characters are not shown here."""


@dataclass(frozen=True, slots=True)
class MessageValue:
    """A message for display."""

    position: int | None
    speaker: str
    parts: tuple[PartValue, ...]
    scope: str = log.MAIN
    time_ms: int | None = None
    usage: log.Usage | None = None
    is_pinned: bool = False


def part_values(parts: Iterable[Part], max_chars: int | None) -> tuple[PartValue, ...]:
    """Return the parts of a message as text, each cut to `max_chars`."""
    return tuple(_part_value(part, max_chars) for part in parts)


def _part_value(part: Part, max_chars: int | None) -> PartValue:
    match part:
        case Text(text=text):
            return _cut(PartValue("text", text), max_chars)
        case Thinking(text=text):
            return _cut(PartValue("thinking", text or "(encrypted)"), max_chars)
        case ToolCall(id=call_id, name=name, arguments=arguments):
            return _cut(PartValue("call", _readable_json(arguments), name, call_id), max_chars)
        case ToolResult(call_id=call_id, is_error=is_error):
            others = [f"[{inner.kind}]" for inner in part.content if not isinstance(inner, Text)]
            text = "\n".join([part.text, *others]) if others else part.text
            return _cut(PartValue("result", text, "", call_id, is_error), max_chars)
        case Media(kind=kind, tokens=tokens):
            return PartValue("media", f"{kind}, about {tokens:,} tokens")
        case Opaque(kind=kind, text=text):
            return _cut(PartValue("other", text, kind), max_chars)


def _cut(value: PartValue, max_chars: int | None) -> PartValue:
    if max_chars is None or len(value.text) <= max_chars:
        return value
    return replace(value, text=value.text[:max_chars], hidden_chars=len(value.text) - max_chars)


def _readable_json(text: str) -> str:
    """Return the arguments of a call with line breaks if they are long."""
    if len(text) < LINE_CHARS:
        return text
    with suppress(ValueError, RecursionError):
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    return text


def message_value(
    message: Message,
    position: int | None,
    max_chars: int | None,
    loaded: LoadedMessage | None = None,
    *,
    is_pinned: bool = False,
) -> MessageValue:
    """Return a message for display."""
    return MessageValue(
        position,
        "summary" if position is None and message.role == "user" else message.speaker,
        part_values(message.parts, max_chars),
        loaded.event.scope if loaded else log.MAIN,
        loaded.time_ms if loaded else None,
        loaded.event.usage if loaded else None,
        is_pinned,
    )
