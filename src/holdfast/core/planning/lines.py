"""Where the lines of a long conversation stand.

Everything before the fold line is folded into a digest, everything before the clip line has its tool
output shortened. Without a memory of earlier requests, a line that followed every new message would
break the cached prefix every time. So lines stand only at multiples of a step, measured from the
beginning of the conversation, moved to the next legal cut: a list that only grows keeps its lines,
and its prefix, until it has grown by a step.
"""

from bisect import bisect_left
from typing import NamedTuple

from holdfast.core.conversation.cuts import next_cut
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.situation import Budget

CUT_GRID_BYTES_PER_TOKEN = 4
"""About what prose, code and Chinese have alike; a step of digits or hashes is larger in tokens."""


class CutGrid(NamedTuple):
    """The possible positions of a line, numbered from 0, the beginning."""

    transcript: Transcript
    budget: Budget
    max_tokens: int
    step_share: float
    limit: int
    """No line passes this position."""

    def load(self, index: int) -> float:
        """Return how many times the budget the messages before `index` would fill, in all its units."""
        weight = self.transcript.bytes_before(index)
        load = weight / (max(1, self.max_tokens) * CUT_GRID_BYTES_PER_TOKEN)
        if self.budget.messages:
            load += index / self.budget.messages
        if self.budget.bytes:
            load += weight / self.budget.bytes
        if self.budget.turns:
            load += self.transcript.prompts_before(index) / self.budget.turns
        return load

    def cut_at(self, number: int) -> int:
        """Return the position of a line: the first legal cut at or after its multiple of a step."""
        if number <= 0:
            return 0
        key = (self.budget, self.max_tokens, self.step_share)
        known = self.transcript.cached_cuts(key)
        position = known.get(number)
        if position is None:
            position = self._find_cut(number)
            if position < self.limit:
                # What stands before a line does not change any more, so neither does the line.
                known[number] = position
        return min(position, self.limit)

    def _find_cut(self, number: int) -> int:
        target = number * self.step_share
        if self.budget.messages or self.budget.bytes or self.budget.turns:
            index = bisect_left(range(self.limit), target, key=self.load)
        else:
            index = self.transcript.index_at_bytes(target * self.max_tokens * CUT_GRID_BYTES_PER_TOKEN, self.limit)
        return next_cut(self.transcript, index)

    def number_of_cut(self, index: int) -> int:
        """Return the number of the first line that stands at or after `index`."""
        number = max(0, int(self.load(index) / self.step_share))
        while self.cut_at(number) < index:
            number += 1
        # A unit can carry several lines to its end: the first of them is meant.
        while number and self.cut_at(number - 1) >= index:
            number -= 1
        return number
