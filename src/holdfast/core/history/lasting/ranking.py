"""Finding words in texts: the rarer a word and the shorter a text, the more a hit says; the newest wins a tie."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NOTE_TERM_SATURATION, NOTE_LENGTH_WEIGHT = 1.2, 0.75
"""How soon a repeated word says no more, and how much a long text has to say it more often."""


class WordCounts(NamedTuple):
    """The words of a text, counted."""

    counts: Mapping[str, int]
    length: int

    @classmethod
    def from_words(cls, words: Sequence[str]) -> "WordCounts":
        """Return words, counted."""
        return cls(Counter(words), len(words))


def rank_texts(query_words: Sequence[str], texts: Sequence[WordCounts]) -> list[int]:
    """Return which texts have wanted words in them: the best first, of equals the last."""
    average = sum(text.length for text in texts) / max(1, len(texts)) or 1.0
    scores: dict[int, float] = {}
    for word in dict.fromkeys(query_words):
        holding = [number for number, text in enumerate(texts) if word in text.counts]
        weight = math.log(1 + (len(texts) - len(holding) + 0.5) / (len(holding) + 0.5))
        for number in holding:
            many = texts[number].counts[word]
            damp = NOTE_TERM_SATURATION * (1 - NOTE_LENGTH_WEIGHT + NOTE_LENGTH_WEIGHT * texts[number].length / average)
            scores[number] = scores.get(number, 0.0) + weight * many * (NOTE_TERM_SATURATION + 1) / (many + damp)
    return sorted(scores, key=lambda number: (scores[number], number), reverse=True)
