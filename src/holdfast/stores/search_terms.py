"""What a search looks for: the words of a question, in their other forms too, and names as a whole.

An index holds words as they were said. A question says them in other forms ("camping", "camped"), so a longer word is
looked for by the beginning that its forms share. A name of several words (`src/report/totals.py`, a run of Chinese)
is looked for word by word, and as a whole besides: that is rarer, and counts for more.

How text is cut into words for searching, the same for every store.

Identifiers are found whole and by their parts: `src/report/totals.py` also as `report`, `parseTotals` also as
`totals`. Chinese, Japanese and Korean have no spaces between words: they are indexed as pairs of characters.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_WORD_CHARS = 64
_WORD = r"[^\W_]+"
_CJK = r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]"
_PART = rf"{_CJK}+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+"
_BETWEEN = {code: " " for code in range(128) if not chr(code).isalnum()}
"""What stands between words, where there is nothing but ASCII."""


def index_words(text: str) -> list[str]:
    """Return the words under which a text is found, in its order."""
    return index_body(text).split()


def index_body(text: str) -> str:
    """Return the words under which a text is found, with spaces between them."""
    if not text.isascii():
        return " ".join(map(_word_forms, re.findall(_WORD, text)))
    # Nearly every word of nearly every text is found as it stands.
    found = text.translate(_BETWEEN).split()
    return " ".join([word if word.islower() and len(word) <= MAX_WORD_CHARS else _word_forms(word) for word in found])


def _word_forms(word: str) -> str:
    if word.isascii() and (word.islower() or word.isdigit() or (word.isalpha() and word[1:].islower())):
        return word[:MAX_WORD_CHARS].lower()
    return " ".join(_parts(word))


def _parts(word: str) -> Iterator[str]:
    parts = re.findall(_PART, word)
    if len(parts) > 1 and word.isascii():
        yield word.lower()[:MAX_WORD_CHARS]
    for part in parts:
        if re.match(_CJK, part):
            yield from _pairs(part)
        else:
            yield part.lower()[:MAX_WORD_CHARS]


def _pairs(run: str) -> Iterator[str]:
    yield from (run[index : index + 2] for index in range(max(1, len(run) - 1)))


MAX_TERMS = 32
MAX_NAME_WORDS = 12
MIN_TERM_STEM_CHARS = 4
RARITY_POWER = 1.5
"""Of a question's words the rarest says most; BM25's own measure of that is too even for messages as short as talk."""
WORD_ENDINGS = ("ing", "ies", "ed", "es", "s", "e", "y")
UNDOUBLED_LETTERS = frozenset("lsz")
"""Letters that stand twice at the end of a word by themselves: `call`, `miss`, `buzz`."""


class SearchTerm(NamedTuple):
    """Words that stand one after the other."""

    words: tuple[str, ...]
    is_stem: bool = False
    """Whether the last of them may go on."""


def search_terms(question: str) -> list[SearchTerm]:
    """Return what is looked for, each once, in the order of the question."""
    terms: dict[SearchTerm, None] = {}
    for token in question.split():
        words = index_words(token)
        if 1 < len(words) <= MAX_NAME_WORDS:
            terms[SearchTerm(tuple(words))] = None
        for word in words:
            stem = word_stem(word)
            terms[SearchTerm((stem,), is_stem=stem != word or _has_forms(word))] = None
    return list(terms)[:MAX_TERMS]


def word_stem(word: str) -> str:
    """Return the beginning that the forms of a word share; the word itself where it is short or no word of letters."""
    if not _has_forms(word) or word.endswith("ss"):
        return word
    for ending in WORD_ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= MIN_TERM_STEM_CHARS:
            stem = word[: -len(ending)]
            is_doubled = len(stem) > MIN_TERM_STEM_CHARS and stem[-1] == stem[-2] and stem[-1] not in UNDOUBLED_LETTERS
            return stem[:-1] if is_doubled else stem
    return word


def rarity_weight(holding: float, total: float) -> float:
    """Return what a word counts for that some of all messages hold: the more the fewer they are."""
    return math.log(1 + max(1.0, total - holding + 0.5) / (holding + 0.5)) ** RARITY_POWER


def _has_forms(word: str) -> bool:
    return len(word) > MIN_TERM_STEM_CHARS and word.isascii() and word.isalpha()
