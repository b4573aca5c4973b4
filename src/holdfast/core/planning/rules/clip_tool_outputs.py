"""Rules that clip long tool outputs of older messages, decided again for every request.

`KeepHeads`, from co-cli, keeps the head and states the full length. `KeepEnds`, from CowAgent, keeps both ends. Both
spare the outputs that the model is still working with: those in the last two messages, or in the running turn.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import ClassVar

from holdfast.core.conversation.cuts import exchange_ranges, turn_ranges
from holdfast.core.conversation.messages import Content, Entry, Message, Text, ToolResult
from holdfast.core.conversation.shorten import clip_outputs, output_chars, text_instead
from holdfast.core.schema import check_fields, integer_bounds
from holdfast.dataclass import dataclass
from holdfast.text import lazy_pattern

_NOTICE = lazy_pattern(r"\n\[…truncated, \d+ chars total\]")


def content_length(content: str | Mapping[str, object]) -> int:
    """Return the length of a tool's return value; an object counts as its JSON."""
    return len(content if isinstance(content, str) else json.dumps(content))


def head_of(content: str | Mapping[str, object], max_chars: int) -> str | Mapping[str, object]:
    """Return a tool's return value; if it is too long, the head of its text or JSON with the full length."""
    length = content_length(content)
    if max_chars == 0 or length <= max_chars:
        return content
    text = content if isinstance(content, str) else json.dumps(content)
    if _NOTICE.fullmatch(text, max_chars):
        # The output was cut before, and its notice already states the full length.
        return content
    return text[:max_chars] + truncation_notice(length)


def truncation_notice(length: int) -> str:
    """Return the text after the head of an output that was cut."""
    return f"\n[…truncated, {length} chars total]"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepHeads:
    """Keeps the head of long outputs in all but the newest messages."""

    RULE: ClassVar[str] = "heads"

    max_chars: int = field(default=2_000, metadata=integer_bounds(0, 10**9))
    """The length of the head; 0 switches the rule off."""
    protect_last: int = field(default=2, metadata=integer_bounds(1, 10**9))
    """How many of the newest requests and responses stay whole."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.outputs")

    def apply(
        self, entries: Sequence[Entry], pins: frozenset[int] = frozenset(), *, keep_recall_answers: bool = False
    ) -> list[Entry]:
        """Return the entries with older outputs cut, except pinned messages and, if asked, answers of recall."""
        groups = exchange_ranges(entries)
        stop = groups[-self.protect_last].start if len(groups) >= self.protect_last else 0
        return [
            entry.with_message(_with_heads(entry.message, self.max_chars, keep_recall_answers=keep_recall_answers))
            if index < stop and entry.message.results and entry.position not in pins
            else entry
            for index, entry in enumerate(entries)
        ]


def _with_heads(message: Message, max_chars: int, *, keep_recall_answers: bool) -> Message:
    parts = tuple(
        _with_head(part, max_chars)
        if isinstance(part, ToolResult) and not (keep_recall_answers and part.is_recall_answer)
        else part
        for part in message.parts
    )
    return message if parts == message.parts else message.with_parts(parts)


def _with_head(result: ToolResult, max_chars: int) -> ToolResult:
    """Return a result with the head of its text; if it has several texts, the later ones are dropped first."""
    total = output_chars(result)
    if max_chars == 0 or total <= max_chars or _was_cut(result, max_chars):
        return result
    content: list[Content] = []
    left = max_chars
    for part in result.content:
        if not isinstance(part, Text):
            content.append(part)
        elif left > 0:
            kept = part.text[:left]
            left -= len(kept)
            notice = "" if left > 0 else truncation_notice(total)
            content.append(part if kept == part.text and not notice else part.with_text(kept + notice))
        else:
            content += text_instead(part, "")
    return result.with_content(tuple(content))


def _was_cut(result: ToolResult, max_chars: int) -> bool:
    """Return whether an output was cut before, so that its notice already states the full length."""
    text = "".join(part.text for part in result.content if isinstance(part, Text))
    return _NOTICE.fullmatch(text, max_chars) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepEnds:
    """Keeps both ends of long outputs in finished turns."""

    RULE: ClassVar[str] = "ends"

    max_chars: int = field(default=20_000, metadata=integer_bounds(64, 10**9))

    def __post_init__(self) -> None:
        check_fields(self, "policy.outputs")

    def apply(
        self, entries: Sequence[Entry], pins: frozenset[int] = frozenset(), *, keep_recall_answers: bool = False
    ) -> list[Entry]:
        """Return the entries with the outputs of finished turns cut, with the exceptions of `KeepHeads`."""
        spans = turn_ranges(entries)
        stop = spans[-1].start if spans else 0
        return [
            entry.with_message(clip_outputs(entry.message, self.max_chars, keep_recall_answers=keep_recall_answers))
            if index < stop and entry.message.results and entry.position not in pins
            else entry
            for index, entry in enumerate(entries)
        ]
