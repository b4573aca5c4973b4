"""Pack lines under headings into a token budget.

Each section has a share of the budget. A line is included in full or not at all. A second round gives the
unused tokens to the sections in order. The caller ranks the lines of a section.
"""

from collections.abc import Sequence
from typing import TypeAlias

from holdfast.core.conversation.tokens import Counter
from holdfast.dataclass import dataclass

MAX_SKIPPED_LINES = 3
"""The number of lines that may be skipped because they do not fit, to try shorter ones."""
ChosenLines: TypeAlias = list[set[int]]
"""The indices of the chosen lines of each section."""


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under one heading, in display order."""

    heading: str
    share: float
    """The share of the budget that the section may use in the first round."""
    lines: Sequence[str]
    ranking: Sequence[int]
    """The indices of the lines, most important first."""


def first_then_newest(count: int) -> list[int]:
    """Return a ranking: the first line, which states the subject, then the others from newest to oldest."""
    return [*range(min(1, count)), *range(count - 1, 0, -1)]


def pack_sections(sections: Sequence[Section], max_tokens: int, counter: Counter) -> list[str]:
    """Return as many lines as fit: each section first within its share, then with the unused tokens."""
    chosen, left = choose_within_shares(sections, max_tokens, counter)
    return section_lines(sections, choose_more(sections, chosen, left, counter))


def choose_within_shares(sections: Sequence[Section], max_tokens: int, counter: Counter) -> tuple[ChosenLines, int]:
    """Return the lines that fit the share of each section, and the unused tokens."""
    chosen: ChosenLines = [set() for _ in sections]
    left = max_tokens
    for section, own in zip(sections, chosen, strict=True):
        left -= _choose_lines(section, own, min(left, int(max_tokens * section.share)), counter)
    return chosen, left


def choose_more(sections: Sequence[Section], chosen: ChosenLines, left: int, counter: Counter) -> ChosenLines:
    """Return the chosen lines and as many more as fit into `left` tokens, section by section."""
    more = [set(own) for own in chosen]
    for section, own in zip(sections, more, strict=True):
        left -= _choose_lines(section, own, left, counter)
    return more


def section_lines(sections: Sequence[Section], chosen: ChosenLines) -> list[str]:
    """Return the chosen lines under their headings."""
    return [
        line
        for section, own in zip(sections, chosen, strict=True)
        if own
        for line in (section.heading, *(f"- {section.lines[index]}" for index in sorted(own)))
    ]


def _choose_lines(section: Section, own: set[int], allowance: int, counter: Counter) -> int:
    """Add lines that fit to `own`; return their tokens."""
    spent, misses = 0, 0
    for index in section.ranking:
        if index in own:
            continue
        if misses == MAX_SKIPPED_LINES:
            break
        # A list item costs its text, a dash and a line break; the first one adds the heading.
        heading = 0 if own else counter.count(section.heading) + 1
        cost = heading + counter.count(section.lines[index]) + 3
        if spent + cost <= allowance:
            own.add(index)
            spent += cost
        else:
            misses += 1
    return spent
