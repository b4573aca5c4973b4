"""Finding words in texts: the rarer a word and the shorter a text, the more a hit says; the newest wins a tie."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

SATURATION, LENGTH_SHARE = 1.2, 0.75
"""How soon a repeated word says no more, and how much a long text has to say it more often."""


class Words(NamedTuple):
    """The words of a text, counted."""

    counts: Mapping[str, int]
    length: int

    @classmethod
    def of(cls, words: Sequence[str]) -> "Words":
        """Return words, counted."""
        return cls(Counter(words), len(words))


def ranked(wanted: Sequence[str], texts: Sequence[Words]) -> list[int]:
    """Return which texts have wanted words in them: the best first, of equals the last."""
    average = sum(text.length for text in texts) / max(1, len(texts)) or 1.0
    scores: dict[int, float] = {}
    for word in dict.fromkeys(wanted):
        holding = [number for number, text in enumerate(texts) if word in text.counts]
        weight = math.log(1 + (len(texts) - len(holding) + 0.5) / (len(holding) + 0.5))
        for number in holding:
            many = texts[number].counts[word]
            damp = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * texts[number].length / average)
            scores[number] = scores.get(number, 0.0) + weight * many * (SATURATION + 1) / (many + damp)
    return sorted(scores, key=lambda number: (scores[number], number), reverse=True)
