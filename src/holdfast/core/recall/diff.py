"""A unified diff between two readings of a file, within a token budget.

It is the only text that recall produces instead of quoting. Every line begins with a sign of its own, so
nothing that was read can look like a heading or a line of ours.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.conversation.tokens import Counter
from holdfast.core.recall.references import line_count

MAX_DIFF_LINES = 4_000
"""Of each reading; what is longer is compared piece by piece, by lines that are named."""
MAX_DIFF_LINE_CHARS = 500
_NUMBERED = re.compile(r"\s*\d+(?:\t|→|\||: )")


@dataclass(frozen=True, slots=True)
class FileReading:
    """What was read of a file once."""

    ref: str
    position: int
    text: str
    time: str = ""
    path: str = ""
    """Empty where it is no file that was read."""
    lines: tuple[int, int] | None = None
    """Which lines were asked for."""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What changed from one reading to another."""

    before: FileReading
    after: FileReading
    text: str
    """As many lines of the diff as there was room for."""
    shown_lines: int = 0
    """How many of its lines these are."""
    total_lines: int = 0
    """How many it has; 0 where both say the same."""

    @property
    def heading(self) -> str:
        """What it is, on one line."""
        what = f" in {self.after.path}" if self.after.path else ""
        between = f"{self.before.ref} ({self.before.time}) to {self.after.ref} ({self.after.time})"
        if not self.total_lines:
            return f"[Recall: nothing changed{what} from {between}.]"
        return f"[Recall: what changed{what} from {between}, for reference only.]"


def diff_lines(before: FileReading, after: FileReading) -> list[str]:
    """Return the lines of a unified diff; empty where both readings say the same."""
    old, new = _unnumbered_lines(before.text), _unnumbered_lines(after.text)
    return [_clip_line(line) for line in difflib.unified_diff(old, new, before.ref, after.ref, lineterm="")]


def is_too_long_to_diff(reading: FileReading) -> bool:
    """Return whether a reading has too many lines to be compared whole."""
    return line_count(reading.text) > MAX_DIFF_LINES


def lines_within(lines: Sequence[str], counter: Counter, allowance: int) -> list[str]:
    """Return as many lines as an allowance holds, from the first on."""
    taken: list[str] = []
    for line in lines:
        allowance -= counter.count(line) + 1
        if allowance < 0:
            break
        taken.append(line)
    return taken


def _unnumbered_lines(text: str) -> list[str]:
    """Return the lines of a text, without their numbers where all have one: those change with every line before."""
    lines = text.splitlines()
    numbered = [_NUMBERED.match(line) for line in lines]
    if not all(numbered):
        return lines
    return [line[match.end() :] for line, match in zip(lines, numbered, strict=True) if match]


def _clip_line(line: str) -> str:
    return line if len(line) <= MAX_DIFF_LINE_CHARS else f"{line[:MAX_DIFF_LINE_CHARS]}… ({len(line):,} characters)"
