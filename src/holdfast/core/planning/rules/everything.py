"""Compresses all that came before, or all that a run has produced, as Inkeep has it.

At half of the window everything before the newest prompt becomes a summary; while an agent works, what it
has gathered since that prompt becomes one at a share that grows with the window, and the task itself stays.
Large tool results become artifacts: the summary refers to them, they are not in it. Without a model to write
summaries there are fixed limits instead.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.core.conversation.cuts import unit_around
from holdfast.core.conversation.messages import Message, user
from holdfast.core.conversation.view import Entry
from holdfast.core.history.artifacts import LARGE_TOKENS, Artifact, artifacts_of
from holdfast.core.planning.protection import exchanges_of
from holdfast.core.planning.settings import check_settings, share, whole
from holdfast.core.planning.steps import (
    MAX_SUMMARY_TOKENS,
    NOTHING,
    FoldSpan,
    Leaves,
    Line,
    Outlook,
    Proposal,
    Summary,
    fold_of_all,
)
from holdfast.core.planning.triggers import mid_run_fraction

MAX_ARTIFACTS = 12
FRAME = "[Summary of the conversation so far, for reference.]"
ADVICE = (
    "The task and all before it stand above. Go on from what was found; do not call again what it answers.",
    "The results begin to repeat. Call a tool only for what is still missing, and then conclude.",
    "Stop calling tools. Answer the task now with what was found, and say what is still open.",
)
"""By how often a run was compressed."""
_CYCLE = re.compile(r"\[Compression (\d{1,6}) of this run\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldEverything:
    """Folds all that came before the newest prompt, or all that was done since."""

    RULE: ClassVar[str] = "everything"
    offers_recall: ClassVar[bool] = True
    notices_loops: ClassVar[bool] = False

    fraction: float = field(default=0.5, metadata=share())
    """Of the window: where the conversation is compressed."""
    artifact_tokens: int = field(default=LARGE_TOKENS, metadata=whole(1, 10**9))
    """A tool result larger than this is referred to by name."""

    def __post_init__(self) -> None:
        check_settings(self, "fold")

    def propose(self, outlook: Outlook) -> Proposal:
        """Return the compression that is due; it happens before the request goes out."""
        if not outlook.situation.has_summariser:
            return NOTHING
        window, is_working = outlook.window, _is_working(outlook)
        part = mid_run_fraction(window) if is_working else self.fraction
        if outlook.tokens < part * window:
            return NOTHING
        # While an agent works, what it was asked and all before that stays to the letter as long as that can be.
        step = (self._since_prompt(outlook) if is_working else None) or self._before_prompt(outlook)
        why = f"{outlook.tokens:,} tokens are {part:.0%} of the window or more"
        return Proposal(now=(step,), reasons=(why,)) if step else NOTHING

    def line(self, outlook: Outlook) -> Line:
        """Return how near the next compression is."""
        return Line(outlook.tokens, int(self.fraction * outlook.window), "tokens")

    def leaves(self, outlook: Outlook, tokens: int) -> Leaves | None:
        """Return what a compression is expected to leave: the prompt and a summary."""
        del tokens
        has_summariser = outlook.situation.has_summariser
        return Leaves(outlook.prompt_tokens, MAX_SUMMARY_TOKENS, by_model=True) if has_summariser else None

    def manual(self, outlook: Outlook) -> FoldSpan | None:
        """Return the fold of everything."""
        return fold_of_all(outlook)

    def replacement(self, outlook: Outlook, step: FoldSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the summary with references to the artifacts of the span."""
        if summary is None:
            return ()
        found = list(artifacts(outlook, step, self.artifact_tokens))[-MAX_ARTIFACTS:]
        lines = [FRAME, summary.text, *(["", *map(str, found)] if found else [])]
        if step.start > 0:
            lines += ["", _advice(_cycles(outlook, step) + 1)]
        return ("\n".join(lines),)

    def asked_by_agent(self, outlook: Outlook) -> FoldSpan | None:
        """Return the fold that a working agent asks for: of what it has gathered, else of what came before."""
        return self._since_prompt(outlook) or self._before_prompt(outlook)

    @staticmethod
    def _before_prompt(outlook: Outlook) -> FoldSpan | None:
        prompt = outlook.shown.newest_prompt
        if prompt is None:
            return None
        return _span(outlook, 0, prompt)

    @staticmethod
    def _since_prompt(outlook: Outlook) -> FoldSpan | None:
        shown = outlook.shown
        if shown.newest_prompt is None:
            return None
        last = unit_around(shown, len(shown) - 1)[0]
        return _span(outlook, shown.newest_prompt + 1, last)


def _is_working(outlook: Outlook) -> bool:
    """Return whether an agent has done something since it was asked."""
    prompt = outlook.shown.newest_prompt
    return prompt is not None and prompt < len(outlook.shown) - 1


def _cycles(outlook: Outlook, step: FoldSpan) -> int:
    """Return how often this run was compressed before."""
    within = [fold for fold in outlook.shown.context.standing.folds if step.start <= fold.start < step.stop]
    found = [match for fold in within for text in fold.replacement for match in _CYCLE.findall(text)]
    return max(map(int, found), default=0)


def _advice(cycle: int) -> str:
    """Return what an agent is told that goes on from its own summary; the more often, the more urgently."""
    return f"[Compression {cycle} of this run. {ADVICE[min(cycle, len(ADVICE)) - 1]}]"


def _span(outlook: Outlook, first: int, last: int) -> FoldSpan | None:
    """Return the fold of a part of what is shown, unless there is nothing new in it."""
    shown = outlook.shown
    new = [
        entry for entry in shown.entries[first:last] if entry.position is not None and entry.message.role != "system"
    ]
    if not new:
        return None
    start, stop = 0 if first == 0 else shown.position(first), shown.position(last)
    # What an earlier fold kept stands behind it with an older position: it stays kept.
    kept = [entry.position for entry in shown.entries[last:] if entry.position is not None and entry.position < stop]
    return FoldSpan(start=start, stop=stop, kept=tuple(kept), by="summary", count=len(new))


def artifacts(outlook: Outlook, step: FoldSpan, min_tokens: int) -> Iterator[Artifact]:
    """Yield the large tool results of a span."""
    spoken = outlook.shown.context.between(step.start, step.stop)
    return artifacts_of(spoken, min_tokens, outlook.situation.counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLimits:
    """What is sent where nobody can summarise: the newest messages, and of those before the prompt few tokens."""

    max_messages: int = field(default=50, metadata=whole(1, 10**9))
    max_tokens: int = field(default=8_000, metadata=whole(1, 10**9))
    """Of the messages before the newest prompt."""
    max_retrieved: int = field(default=10_000, metadata=whole(1, 10**9))
    """How many of the newest messages are looked at where summaries can be had."""

    def __post_init__(self) -> None:
        check_settings(self, "limits")

    def retrieved(self, entries: Sequence[Entry], line: int, pins: frozenset[int] = frozenset()) -> list[Entry]:
        """Return what was retrieved, and what always stays: system text, summaries, pins, the newest prompt.

        `line` is the position at which the newest messages of the whole conversation begin: how many there are is
        counted before it is asked which of them an agent may see.
        """
        staying = _staying(entries, pins)
        return [entry for index, entry in enumerate(entries) if index in staying or not _is_before(entry, line)]

    def apply(
        self, entries: Sequence[Entry], line: int, tokens_of: Callable[[Message], int], pins: frozenset[int]
    ) -> list[Entry]:
        """Return the entries that stay of those that were retrieved, with a marker for those that went."""
        staying = _staying(entries, pins)
        prompt = _newest_prompt(entries)
        spoken = [index for index, entry in enumerate(entries) if entry.message.role != "system"]
        older = (index for index in reversed(spoken) if index not in staying and _is_before(entries[index], line))
        first = next(older, -1) + 1
        left, start = self.max_tokens, prompt
        for index in range(prompt - 1, first - 1, -1):
            message = entries[index].message
            if message.role == "system":
                continue
            left -= tokens_of(message)
            if left < 0:
                break
            start = index
        start = max(first, start)
        gone = sum(index < start and index not in staying for index in spoken)
        if not gone:
            return list(entries)
        kept = [entry for index, entry in enumerate(entries[:start]) if index in staying]
        systems = [entry for entry in kept if entry.message.role == "system"]
        others = [entry for entry in kept if entry.message.role != "system"]
        marker = f"[Previous conversation history truncated - {gone} earlier messages]"
        return [*systems, Entry(user(marker, trust="summary")), *others, *entries[start:]]


def _is_before(entry: Entry, line: int) -> bool:
    return entry.position is not None and entry.position < line


def _newest_prompt(entries: Sequence[Entry]) -> int:
    return max((index for index, entry in enumerate(entries) if entry.message.is_prompt), default=0)


def _staying(entries: Sequence[Entry], pins: frozenset[int]) -> frozenset[int]:
    """Return the indices that no limit takes away."""
    systems = (index for index, entry in enumerate(entries) if entry.message.role == "system")
    return frozenset({*systems, *exchanges_of(entries, pins), _newest_prompt(entries)})
