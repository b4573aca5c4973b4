"""A unified diff between two readings of a file, within a token budget.

The diff is the only text that recall generates instead of quoting. Every line of it begins with a diff sign, so no
line of the file can look like a heading or a note of the answer.
"""

import difflib
from collections.abc import Sequence

from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.tokens import Counter
from holdfast.dataclass import dataclass
from holdfast.text import lazy_pattern

MAX_DIFF_LINES = 4_000
"""The limit for each reading; longer ones must be compared in pieces, by line range."""
MAX_DIFF_LINE_CHARS = 500
_NUMBERED = lazy_pattern(r"\s*\d+(?:\t|→|\||: )")


@dataclass(frozen=True, slots=True)
class FileReading:
    """The content of a file as it was read once."""

    ref: str
    position: int
    text: str
    time: str = ""
    path: str = ""
    """Empty if the text is not from a file."""
    lines: tuple[int, int] | None = None
    """The first and last line that the call asked for."""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The difference between two readings."""

    before: FileReading
    after: FileReading
    text: str
    """As many lines of the diff as fit the budget."""
    shown_lines: int = 0
    """How many lines `text` has."""
    total_lines: int = 0
    """How many lines the whole diff has; 0 if both readings are equal."""

    @property
    def heading(self) -> str:
        """The first line of the answer."""
        what = f" in {neutralize(self.after.path, 'name')}" if self.after.path else ""
        between = f"{self.before.ref} ({self.before.time}) to {self.after.ref} ({self.after.time})"
        if not self.total_lines:
            return f"[Recall: nothing changed{what} from {between}.]"
        return f"[Recall: what changed{what} from {between}, for reference only.]"


def diff_lines(before: FileReading, after: FileReading) -> list[str]:
    """Return the lines of a unified diff; empty if both readings are equal."""
    old, new = _unnumbered_lines(before.text), _unnumbered_lines(after.text)
    return [
        line if len(line) <= MAX_DIFF_LINE_CHARS else f"{line[:MAX_DIFF_LINE_CHARS]}… ({len(line):,} characters)"
        for line in difflib.unified_diff(old, new, before.ref, after.ref, lineterm="")
    ]


def lines_within(lines: Sequence[str], counter: Counter, allowance: int) -> list[str]:
    """Return as many leading lines as fit an allowance in tokens."""
    taken: list[str] = []
    for line in lines:
        allowance -= counter.count(line) + 1
        if allowance < 0:
            break
        taken.append(line)
    return taken


def _unnumbered_lines(text: str) -> list[str]:
    """Return the lines of a text, without line numbers if all have one: an inserted line changes all that follow."""
    lines = text.splitlines()
    numbered = [_NUMBERED.match(line) for line in lines]
    if not all(numbered):
        return lines
    return [line[match.end() :] for line, match in zip(lines, numbered, strict=True) if match]
