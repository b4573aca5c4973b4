"""Finding words in texts: the rarer a word and the shorter a text, the more a hit says; the newest wins a tie."""

import math
from collections import Counter
from collections.abc import Sequence

SATURATION, LENGTH_SHARE = 1.2, 0.75
"""How soon a repeated word says no more, and how much a long text has to say it more often."""


def ranked(wanted: Sequence[str], texts: Sequence[Sequence[str]]) -> list[int]:
    """Return which texts, each given by its words, have wanted words in them: the best first, of equals the last."""
    words = set(wanted)
    counts = [Counter(word for word in text if word in words) for text in texts]
    holding = Counter(word for count in counts for word in count)
    average = sum(map(len, texts)) / max(1, len(texts)) or 1.0
    weights = {word: math.log(1 + (len(texts) - many + 0.5) / (many + 0.5)) for word, many in holding.items()}

    def score(number: int) -> float:
        damp = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * len(texts[number]) / average)
        return sum(weights[word] * many * (SATURATION + 1) / (many + damp) for word, many in counts[number].items())

    found = [(score(number), number) for number, count in enumerate(counts) if count]
    return [number for _, number in sorted(found, reverse=True)]
