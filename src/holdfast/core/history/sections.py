"""Lines under headings, packed into an allowance of tokens.

Each section has a share of the room, and a line is in or out as a whole. What a section leaves of its share is
there for the others; which lines matter most in a section its maker knows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.core.conversation.tokens import Counter

MOST_MISSES = 3
"""How many lines that do not fit are passed over for ones that do."""
Chosen: TypeAlias = list[set[int]]
"""For each section, which of its lines."""


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under one heading, in the order they are shown."""

    heading: str
    share: float
    """How much of the room it may take before the others have had theirs."""
    lines: Sequence[str]
    ranking: Sequence[int]
    """The lines by number, the most important first."""


def first_then_newest(count: int) -> list[int]:
    """Return a ranking: the first, which says what it is all about, then the newest backwards."""
    return [*range(min(1, count)), *range(count - 1, 0, -1)]


def packed(sections: Sequence[Section], room: int, counter: Counter) -> list[str]:
    """Return as many lines as fit: each section within its share first, then, in a second round, whoever has more."""
    chosen, left = within_shares(sections, room, counter)
    return lines_of(sections, with_more(sections, chosen, left, counter))


def within_shares(sections: Sequence[Section], room: int, counter: Counter) -> tuple[Chosen, int]:
    """Return the lines that each section has within its share, and what of the room is left."""
    chosen: Chosen = [set() for _ in sections]
    left = room
    for section, own in zip(sections, chosen, strict=True):
        left -= _fill(section, own, min(left, int(room * section.share)), counter)
    return chosen, left


def with_more(sections: Sequence[Section], chosen: Chosen, left: int, counter: Counter) -> Chosen:
    """Return lines and as many more as fit what is left, section by section."""
    more = [set(own) for own in chosen]
    for section, own in zip(sections, more, strict=True):
        left -= _fill(section, own, left, counter)
    return more


def lines_of(sections: Sequence[Section], chosen: Chosen) -> list[str]:
    """Return chosen lines under their headings."""
    return [
        line for section, own in zip(sections, chosen, strict=True) if own for line in _render(section, sorted(own))
    ]


def _fill(section: Section, own: set[int], allowance: int, counter: Counter) -> int:
    """Choose lines while they fit; return what they cost."""
    spent, misses = 0, 0
    for index in section.ranking:
        if index in own:
            continue
        if misses == MOST_MISSES:
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


def _render(section: Section, chosen: list[int]) -> Iterator[str]:
    yield section.heading
    for index in chosen:
        yield f"- {section.lines[index]}"
