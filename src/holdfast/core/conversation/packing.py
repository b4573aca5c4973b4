"""Pack lines under headings into a token budget.

Each section has a share of the budget, and a line is included whole or not at all. Later sections may use
what a section leaves of its share. The caller ranks the lines of a section.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.core.conversation.tokens import Counter

MAX_SKIPPED_LINES = 3
"""How many lines that do not fit are skipped for shorter ones."""
ChosenLines: TypeAlias = list[set[int]]
"""For each section, which of its lines."""


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under one heading, in the order they are shown."""

    heading: str
    share: float
    """The share of the budget it may use in the first round."""
    lines: Sequence[str]
    ranking: Sequence[int]
    """The lines by number, the most important first."""


def first_then_newest(count: int) -> list[int]:
    """Return a ranking: the first line, which states the subject, then the newest backwards."""
    return [*range(min(1, count)), *range(count - 1, 0, -1)]


def pack_sections(sections: Sequence[Section], max_tokens: int, counter: Counter) -> list[str]:
    """Return as many lines as fit: each section within its share first, then more of each in a second round."""
    chosen, left = choose_within_shares(sections, max_tokens, counter)
    return section_lines(sections, choose_more(sections, chosen, left, counter))


def choose_within_shares(sections: Sequence[Section], max_tokens: int, counter: Counter) -> tuple[ChosenLines, int]:
    """Return the lines that fit the share of each section, and the tokens left."""
    chosen: ChosenLines = [set() for _ in sections]
    left = max_tokens
    for section, own in zip(sections, chosen, strict=True):
        left -= _choose_lines(section, own, min(left, int(max_tokens * section.share)), counter)
    return chosen, left


def choose_more(sections: Sequence[Section], chosen: ChosenLines, left: int, counter: Counter) -> ChosenLines:
    """Return the chosen lines and as many more as fit the tokens left, section by section."""
    more = [set(own) for own in chosen]
    for section, own in zip(sections, more, strict=True):
        left -= _choose_lines(section, own, left, counter)
    return more


def section_lines(sections: Sequence[Section], chosen: ChosenLines) -> list[str]:
    """Return chosen lines under their headings."""
    return [
        line
        for section, own in zip(sections, chosen, strict=True)
        if own
        for line in _section_with_heading(section, sorted(own))
    ]


def _choose_lines(section: Section, own: set[int], allowance: int, counter: Counter) -> int:
    """Choose lines while they fit; return what they cost."""
    spent, misses = 0, 0
    for index in section.ranking:
        if index in own:
            continue
        if misses == MAX_SKIPPED_LINES:
            break
        # A line of a list costs its words, a dash and a line break; the first one brings the heading.
        heading = 0 if own else counter.count(section.heading) + 1
        cost = heading + counter.count(section.lines[index]) + 3
        if spent + cost <= allowance:
            own.add(index)
            spent += cost
        else:
            misses += 1
    return spent


def _section_with_heading(section: Section, chosen: list[int]) -> Iterator[str]:
    yield section.heading
    for index in chosen:
        yield f"- {section.lines[index]}"
