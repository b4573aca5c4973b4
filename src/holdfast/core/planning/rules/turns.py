"""Whole turns go or are reduced to words, as CowAgent has it.

The older half of the complete turns goes when there are too many of them. If tokens are still over the
budget, the older half goes again, or, with few turns left, each keeps only what was asked and answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.conversation.groups import turns
from holdfast.core.conversation.messages import Message, Part, Text
from holdfast.core.conversation.view import Entry
from holdfast.core.planning.rules.clip import clip_outputs, clip_text

FEW_TURNS = 5


def trim_line(entries: Sequence[Entry], max_turns: int) -> int:
    """Return where the retained turns begin when there are more than `max_turns`; 0 where nothing goes."""
    spans = turns(entries)
    return half_line(entries) if len(spans) > max_turns else 0


def half_line(entries: Sequence[Entry]) -> int:
    """Return where the newer half begins: the older half of the complete turns is before it."""
    spans = turns(entries)
    # The last turn is still running, so it is not among the complete ones.
    half = (len(spans) - 1) // 2
    return spans[half].start if half > 0 else 0


def must_reduce_to_text(entries: Sequence[Entry]) -> bool:
    """Return whether there are so few turns that words are all that can be saved of them."""
    return len(turns(entries)) < FEW_TURNS


def reduced_to_text(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with each complete turn reduced to its first user text and its last reply."""
    spans = turns(entries)
    if not spans:
        return list(entries)
    kept = list(entries[: spans[0].start])
    for span in spans[:-1]:
        kept += _words([entries[index] for index in span])
    return [*kept, *(entries[index] for index in spans[-1])]


def recent_as_text(entries: Sequence[Entry], max_turns: int) -> list[Entry]:
    """Return the newest turns as words alone: what a session is restored with."""
    spans = turns(entries)[-restored_turns(max_turns) :]
    return [entry for span in spans for entry in _words([entries[index] for index in span])]


def restored_turns(max_turns: int) -> int:
    """Return how many turns a session is restored with."""
    return max(3, max_turns // 6)


def _words(turn: Sequence[Entry]) -> list[Entry]:
    """Return a turn's first user text and the assistant's last reply."""
    replies = [entry for entry in turn if entry.message.role == "assistant" and entry.message.text.strip()]
    return [_only_text(entry) for entry in (turn[0], *replies[-1:])]


def _only_text(entry: Entry) -> Entry:
    parts: tuple[Part, ...] = tuple(part for part in entry.message.parts if isinstance(part, Text))
    return entry if parts == entry.message.parts else entry.saying(entry.message.with_parts(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Emergency:
    """What is left after a provider's refusal, before the context is cleared: little of little."""

    max_chars: int = 10_000
    """Of each tool result and each user text; the newest prompt is exempt."""
    max_turns: int = 5

    def apply(self, entries: Sequence[Entry], pins: frozenset[int] = frozenset()) -> list[Entry]:
        """Return the newest turns with results and user texts cut, pinned messages whole."""
        spans = turns(entries)
        start = spans[-self.max_turns].start if len(spans) >= self.max_turns else 0
        prompt = spans[-1].start if spans else None
        pinned = [entry for entry in entries[:start] if entry.position in pins or entry.message.role == "system"]
        newest = [
            entry
            if index == prompt or entry.position in pins or entry.message.role == "system"
            else entry.saying(_cut(entry.message, self.max_chars))
            for index, entry in enumerate(entries)
            if index >= start
        ]
        return [*pinned, *newest]


def _cut(message: Message, max_chars: int) -> Message:
    shorter = clip_outputs(message, max_chars)
    if message.role != "user" or not any(
        isinstance(part, Text) and len(part.text) > max_chars for part in message.parts
    ):
        return shorter
    return shorter.with_parts(
        tuple(
            part.rewritten(clip_text(part.text, max_chars))
            if isinstance(part, Text) and len(part.text) > max_chars
            else part
            for part in shorter.parts
        )
    )
