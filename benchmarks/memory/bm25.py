"""Plain BM25 over a list of texts that grows."""

import math
from collections import Counter as Tally
from collections import defaultdict
from dataclasses import dataclass, field

from benchmarks.recall import K1, B
from holdfast.stores.search_terms import index_words


@dataclass(slots=True)
class GrowingBm25:
    """Ranks texts for a question by their unchanged words."""

    texts: list[str] = field(default_factory=list[str])
    _lengths: list[int] = field(default_factory=list[int])
    _places: defaultdict[str, dict[int, int]] = field(default_factory=lambda: defaultdict[str, dict[int, int]](dict))
    """How often each text has a word."""

    def add(self, text: str) -> None:
        """Add a text to the end of the list."""
        counts = Tally(index_words(text))
        for word, count in counts.items():
            self._places[word][len(self.texts)] = count
        self._lengths.append(counts.total())
        self.texts.append(text)

    def ranked(self, question: str) -> list[int]:
        """Return the indices of the texts that have a word of the question, best first."""
        scores: defaultdict[int, float] = defaultdict(float)
        usual = sum(self._lengths) / max(1, len(self._lengths))
        for word in set(index_words(question)):
            places = self._places.get(word, {})
            weight = math.log(1 + (len(self.texts) - len(places) + 0.5) / (len(places) + 0.5))
            for index, count in places.items():
                length = K1 * (1 - B + B * self._lengths[index] / usual)
                scores[index] += weight * count * (K1 + 1) / (count + length)
        return sorted(scores, key=lambda index: (-scores[index], index))
