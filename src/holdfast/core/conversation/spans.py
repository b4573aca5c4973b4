"""Positions of messages, as ranges.

Reports on a hundred thousand messages stay small because they list ranges instead of single positions. All
code that joins, subtracts, counts or formats ranges of positions lives here.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeAlias

from holdfast.dataclass import dataclass

PositionRanges: TypeAlias = tuple[range, ...]
"""Positions as ascending, non-adjacent ranges."""
PositionPairs: TypeAlias = tuple[tuple[int, int], ...]
"""Positions as pairs of start and stop, the form in which events store them."""
MAX_SHOWN_RANGES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The messages that a compaction replaces: positions from `start` to before `stop`."""

    start: int = 0
    stop: int
    kept: tuple[int, ...] = ()
    """Positions inside the span that stay unchanged after the replacement, such as the prompt being answered."""
    count: int = 0
    """The number of replaced messages, as the policy counts them; 0 in old logs."""
    is_merged: bool = False
    """Whether the text is prepended to the first remaining prompt, instead of sent as a separate message."""

    @property
    def positions(self) -> range:
        """All positions of the span."""
        return range(self.start, self.stop)

    @property
    def replaced(self) -> PositionRanges:
        """The positions that the compaction replaces."""
        return ranges_without(self.stop, self.kept, start=self.start)

    @property
    def message_count(self) -> int:
        """The number of replaced messages, which the replacement's text states."""
        return self.count or max(0, self.stop - self.start - len(self.kept))

    def overlaps(self, other: "Span") -> bool:
        """Return whether the two spans share a position."""
        return self.start < other.stop and other.start < self.stop

    def contains(self, other: "Span") -> bool:
        """Return whether the other span lies inside this one."""
        return self.start <= other.start and other.stop <= self.stop


def position_ranges(positions: Iterable[int]) -> PositionRanges:
    """Return ascending positions as ranges."""
    ranges: list[range] = []
    for position in positions:
        if ranges and ranges[-1].stop == position:
            ranges[-1] = range(ranges[-1].start, position + 1)
        else:
            ranges.append(range(position, position + 1))
    return tuple(ranges)


def position_pairs(positions: Iterable[int]) -> PositionPairs:
    """Return positions in any order as pairs of start and stop."""
    return tuple((one.start, one.stop) for one in position_ranges(sorted(positions)))


def ranges_without(stop: int, kept: Iterable[int], *, start: int = 0) -> PositionRanges:
    """Return the positions from `start` to before `stop` that are not in `kept`; `kept` is ascending."""
    edges = [start - 1, *(position for position in kept if start <= position < stop), stop]
    return tuple(range(before + 1, after) for before, after in pairwise(edges) if before + 1 < after)


def is_in_ranges(position: int, ranges: PositionRanges) -> bool:
    """Return whether one of ascending ranges holds a position."""
    number = bisect_right(ranges, position, key=lambda one: one.start) - 1
    return number >= 0 and position in ranges[number]


def merge_ranges(*groups: Iterable[range]) -> PositionRanges:
    """Return the union of groups of ranges; adjacent ranges become one."""
    merged: list[range] = []
    for one in sorted((one for group in groups for one in group if one), key=lambda one: one.start):
        if merged and one.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, one.stop))
        else:
            merged.append(one)
    return tuple(merged)


def subtract_ranges(ranges: Iterable[range], others: Iterable[range]) -> PositionRanges:
    """Return the parts of ranges that lie in none of the others."""
    left = list(ranges)
    for other in others:
        left = [
            part
            for one in left
            for part in (range(one.start, min(one.stop, other.start)), range(max(one.start, other.stop), one.stop))
            if part
        ]
    return tuple(left)


def position_count(positions: PositionRanges) -> int:
    """Return the number of positions."""
    return sum(map(len, positions))


def format_positions(positions: PositionRanges) -> str:
    """Return positions as text for display, with at most `MAX_SHOWN_RANGES` ranges."""
    texts = [f"#{one[0]}" if len(one) == 1 else f"#{one[0]}–#{one[-1]}" for one in positions[:MAX_SHOWN_RANGES]]
    return ", ".join(texts) + (
        f" and {len(positions) - MAX_SHOWN_RANGES:,} more" if len(positions) > MAX_SHOWN_RANGES else ""
    )
