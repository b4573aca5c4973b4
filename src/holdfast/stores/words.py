"""How text is cut into words for searching, the same for every store.

Identifiers are found whole and by their parts: `src/report/totals.py` also as `report`, `parseTotals` also as
`totals`. Chinese, Japanese and Korean have no spaces between words: they are indexed as pairs of characters.
"""

import re
from collections.abc import Iterator

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
