"""Whole turns go or are reduced to words, as CowAgent has it.

The older half of the complete turns goes when there are too many of them. If tokens are still over the
budget, the older half goes again, or, with few turns left, each keeps only what was asked and answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.core.conversation.clip import clip_outputs, clip_text
from holdfast.core.conversation.groups import turns
from holdfast.core.conversation.messages import Message, Text
from holdfast.core.conversation.view import Entry
from holdfast.core.conversation.words import in_words, turns_in_words
from holdfast.core.planning.settings import check_settings, whole
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    NOTHING,
    AwaitSummary,
    FoldSpan,
    Leaves,
    Line,
    Outlook,
    Proposal,
    ReduceToText,
    Summary,
)

FEW_TURNS = 5
KEPT_TURNS = 2
"""What stays when the user asks for a compaction."""


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
    return turns_in_words(entries, keep_last=1)


def recent_as_text(entries: Sequence[Entry], max_turns: int) -> list[Entry]:
    """Return the newest turns as words alone: what a session is restored with."""
    spans = turns(entries)[-restored_turns(max_turns) :]
    return [entry for span in spans for entry in in_words([entries[index] for index in span])]


def restored_turns(max_turns: int) -> int:
    """Return how many turns a session is restored with."""
    return max(3, max_turns // 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emergency:
    """What is left after a provider's refusal, before the context is cleared: little of little."""

    offers_recall: ClassVar[bool] = False
    notices_loops: ClassVar[bool] = False

    max_chars: int = field(default=10_000, metadata=whole(64, 10**9))
    """Of each tool result and each user text; the newest prompt is exempt."""
    max_turns: int = field(default=5, metadata=whole(1, 10**9))
    first: int = field(default=1, metadata=whole(1, 10**3))
    """After how many refusals it begins; after one more the context is cleared."""

    def __post_init__(self) -> None:
        check_settings(self, "emergency")

    def propose(self, outlook: Outlook) -> Proposal:
        """Return what empties the context when even that was refused; prompt and pins stay, and so does the log."""
        shown, prompt = outlook.shown, outlook.shown.newest_prompt
        free = [
            index for index, entry in enumerate(shown.entries) if entry.message.role != "system" and index != prompt
        ]
        if outlook.situation.refusals <= self.first or not free:
            return NOTHING
        kept = () if prompt is None else (shown.entries[prompt].position or 0,)
        step = FoldSpan(
            start=0,
            stop=shown.position(len(shown)),
            kept=kept,
            by="nothing",
            count=len(shown),
            trigger="context_limit_retry",
        )
        return Proposal(now=(step,), reasons=("the provider refused even that, so the context was cleared",))

    def manual(self, outlook: Outlook) -> FoldSpan | None:
        """Return nothing: nobody asks for an emergency."""
        del outlook

    def replacement(self, outlook: Outlook, step: FoldSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return nothing: nothing takes the place of a context that was cleared."""
        del outlook, step, summary
        return ()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HalveTurns:
    """Trims the older half of the complete turns at once; a summary of them comes into the first prompt later."""

    RULE: ClassVar[str] = "halve-turns"
    offers_recall: ClassVar[bool] = False
    notices_loops: ClassVar[bool] = False

    max_turns: int = field(default=20, metadata=whole(1, 10**9))
    max_tokens: int = field(default=50_000, metadata=whole(64, 10**12))
    """Of a request, system text and tools included."""

    def __post_init__(self) -> None:
        check_settings(self, "fold")

    def propose(self, outlook: Outlook) -> Proposal:
        """Return the trim, the reduction to words, or the summary that an earlier trim still lacks."""
        entries, count = outlook.entries, len(turns(outlook.entries))
        if outlook.situation.has_ready_summary and self._is_next_turn(outlook):
            return Proposal(now=(AwaitSummary(),), reasons=("the summary of the trimmed turns is ready",))
        line = trim_line(entries, self.max_turns)
        if line:
            return self._trim(outlook, line, f"{count:,} turns are more than {self.max_turns:,}")
        limit = min(self.max_tokens, outlook.situation.usable_tokens)
        if outlook.tokens <= limit or outlook.fixed_tokens >= limit:
            return self._summary(outlook)
        why = f"{outlook.tokens:,} tokens are more than {limit:,}"
        if not must_reduce_to_text(entries):
            return self._trim(outlook, half_line(entries), why)
        current = turns(entries)[-1].start if count else 0
        step = ReduceToText(line=outlook.shown.position(current))
        if not current or step.line <= outlook.shown.context.standing.text_line:
            return self._summary(outlook)
        return Proposal(now=(step,), reasons=(f"{why}, and there are fewer than {FEW_TURNS} turns",))

    def leaves(self, outlook: Outlook, tokens: int) -> Leaves:
        """Return what a trim is expected to leave: the newer half, and a summary that comes into it later."""
        has_summariser = outlook.situation.has_summariser
        return Leaves(tokens - tokens // 2, MAX_SUMMARY_TOKENS if has_summariser else 0, by_model=has_summariser)

    def line(self, outlook: Outlook) -> Line:
        """Return which of its two limits is nearer."""
        by_turns = Line(len(turns(outlook.entries)), self.max_turns, "turns")
        by_tokens = Line(outlook.tokens, min(self.max_tokens, outlook.situation.usable_tokens), "tokens")
        return max(by_turns, by_tokens, key=lambda line: line.fill)

    def manual(self, outlook: Outlook) -> FoldSpan | None:
        """Return the fold of all turns but the last two."""
        spans = turns(outlook.entries)[:-KEPT_TURNS]
        if not spans:
            return None
        stop = outlook.shown.position(spans[-1].stop)
        return FoldSpan(start=0, stop=stop, by="summary", count=len(spans), trigger="manual", is_merged=True)

    def replacement(self, outlook: Outlook, step: FoldSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the text for the first prompt that stays; nothing as long as there is no summary."""
        del outlook
        if summary is None:
            return ()
        head = f"[System: Previous conversation summary — {step.count} turns were compacted]"
        return (f"{head}\n\n{summary.text}\n\nThe recent conversation continues below.\n\n---\n\n",)

    @staticmethod
    def _is_next_turn(outlook: Outlook) -> bool:
        """Return whether the user has said something since the last trim."""
        prompt, changed_at = outlook.shown.newest_prompt, outlook.shown.context.standing.changed_at
        return prompt is not None and outlook.shown.position(prompt) >= changed_at

    def _trim(self, outlook: Outlook, line: int, why: str) -> Proposal:
        gone = sum(span.start < line for span in turns(outlook.entries))
        step = FoldSpan(start=0, stop=outlook.shown.position(line), by="nothing", count=gone)
        return Proposal(now=(step,), reasons=(f"{why}: the oldest {gone:,} turns were trimmed",))

    def _summary(self, outlook: Outlook) -> Proposal:
        """Return the summary of the last trim, if it has none yet, none is being written, and the last did not fail."""
        folds, facts = outlook.shown.context.standing.folds, outlook.history.facts
        is_wanted = outlook.situation.has_summariser and not outlook.is_summarising
        if not folds or folds[-1].replacement or not is_wanted or folds[-1].stop == facts.failed_stop:
            return NOTHING
        fold = folds[-1]
        count = len(outlook.prompts_between(fold.start, fold.stop))
        step = FoldSpan(start=fold.start, stop=fold.stop, by="summary", count=count, is_merged=True)
        return Proposal(later=(step,), reasons=("a summary of the trimmed turns is written for the next turn",))
