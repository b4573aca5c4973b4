"""Caps on the tool output of older messages, as two systems have them.

co-cli keeps the head and says how long it was; CowAgent keeps both ends. Both leave what the model is
still working with alone: the last two messages, or the turn that is running.

Shows large, settled tool outputs as a preview, all at once, when that frees enough.

It breaks the prefix like a fold and keeps the conversation itself whole, so it is worth it only where a few
outputs hold most of the tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.core.conversation.cuts import exchange_ranges, next_cut, turn_ranges, uncuttable_span
from holdfast.core.conversation.messages import Content, Entry, Message, Text, ToolResult
from holdfast.core.conversation.shorten import clip_outputs
from holdfast.core.planning.steps import NO_STEPS, OffloadOutputs, Plan, PlanInput
from holdfast.core.schema import check_fields, integer_bounds, share_bounds

_NOTICE = re.compile(r"\n\[…truncated, \d+ chars total\]")


def content_length(content: str | Mapping[str, object]) -> int:
    """Return the length of a tool's return value; an object counts as its JSON."""
    return len(content if isinstance(content, str) else json.dumps(content))


def head_of(content: str | Mapping[str, object], max_chars: int) -> str | Mapping[str, object]:
    """Return a tool's return value, or the head of it and its length; an object becomes its JSON then."""
    length = content_length(content)
    if max_chars == 0 or length <= max_chars:
        return content
    text = content if isinstance(content, str) else json.dumps(content)
    if _NOTICE.fullmatch(text, max_chars):
        # Who keeps what was cut shows it again: it still says how long the whole was.
        return content
    return text[:max_chars] + truncation_notice(length)


def truncation_notice(length: int) -> str:
    """Return what stands behind the head of an output that was cut."""
    return f"\n[…truncated, {length} chars total]"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepHeads:
    """Keeps the head of long outputs in all but the newest messages."""

    RULE: ClassVar[str] = "heads"

    max_chars: int = field(default=2_000, metadata=integer_bounds(0, 10**9))
    """0 switches it off."""
    protect_last: int = field(default=2, metadata=integer_bounds(1, 10**9))
    """How many of the newest requests and responses are left alone."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.outputs")

    def apply(
        self, entries: Sequence[Entry], pins: frozenset[int] = frozenset(), *, keep_recall_answers: bool = False
    ) -> list[Entry]:
        """Return the entries with older outputs cut, pinned ones excepted, and recall's answers if so wanted."""
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
    """Return a result with the head of its words; of several texts the later ones go first."""
    total = sum(len(part.text) for part in result.content if isinstance(part, Text))
    if max_chars == 0 or total <= max_chars:
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
    return result.with_content(tuple(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepEnds:
    """Keeps both ends of long outputs in the turns that are over."""

    RULE: ClassVar[str] = "ends"

    max_chars: int = field(default=20_000, metadata=integer_bounds(64, 10**9))

    def __post_init__(self) -> None:
        check_fields(self, "policy.outputs")

    def apply(
        self, entries: Sequence[Entry], pins: frozenset[int] = frozenset(), *, keep_recall_answers: bool = False
    ) -> list[Entry]:
        """Return the entries with the outputs of historical turns cut, as `KeepHeads` does."""
        spans = turn_ranges(entries)
        stop = spans[-1].start if spans else 0
        return [
            entry.with_message(clip_outputs(entry.message, self.max_chars, keep_recall_answers=keep_recall_answers))
            if index < stop and entry.message.results and entry.position not in pins
            else entry
            for index, entry in enumerate(entries)
        ]


OFFLOAD_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Shares are of the room that system text and tools leave to the messages."""

    at_share: float = field(default=0.8, metadata=share_bounds())
    """How full it has to be."""
    max_left_share: float = field(default=0.2, metadata=share_bounds())
    """What may be left afterwards; where more would be, a fold is the better break."""
    tail_share: float = field(default=0.05, metadata=share_bounds())
    """Outputs among the newest messages stay whole: the model is usually still reading them."""
    max_chars: int = field(default=2_000, metadata=integer_bounds(64, 10**9))
    """What is shown of an output."""

    def __post_init__(self) -> None:
        check_fields(self, "policy.offload")

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return the pass over everything before the tail, if it frees enough."""
        shown, room = plan_input.projection, plan_input.situation.message_budget
        if plan_input.token_fill < self.at_share or not len(shown):
            return NO_STEPS
        last = uncuttable_span(shown, len(shown) - 1)[0]
        cut = min(next_cut(shown, max(shown.first_uncompacted, shown.tail_start(int(self.tail_share * room)))), last)
        gain = sum(self._freed_tokens(plan_input, index) for index in range(cut))
        if gain < self.max_left_share * room or shown.tokens - gain > self.max_left_share * room:
            return NO_STEPS
        step = OffloadOutputs(before=shown.position_at(cut), max_chars=self.max_chars)
        before = shown.context.state.offloaded
        if before is not None and step.before <= before.line:
            return NO_STEPS
        why = f"tool outputs before #{step.before} hold about {gain:,} tokens: they are shown as previews from now on"
        return Plan(now=(step,), reasons=(why,))

    def _freed_tokens(self, plan_input: PlanInput, index: int) -> int:
        entry = plan_input.projection.entries[index]
        if entry.position is None or entry.position in plan_input.history.session_state.pins:
            return 0
        spares = plan_input.projection.context.has_recall
        results = (result for result in entry.message.results if not (spares and result.is_recall_answer))
        texts = (part.text for result in results for part in result.content if isinstance(part, Text))
        return sum(max(0, len(text) - self.max_chars) for text in texts) // OFFLOAD_CHARS_PER_TOKEN
