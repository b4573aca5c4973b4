"""How text is split into words for the search index, and a query into terms; the same for every store.

An identifier is indexed whole and by its parts: `src/report/totals.py` is found as `report`, `parseTotals` as
`totals`. Chinese, Japanese and Korean have no spaces between words, so they are indexed as pairs of characters, and the
last character of a run alone: a single character is then the beginning of one of them. Accents, full-width forms and
case make no difference: `naive` finds "naïve", `STRASSE` finds "Straße".

Arabic and Hebrew write "the", "and", "in" and their like as one word with the next, so a word that begins like one of
these is indexed without it too.

An index holds words as they were written. A query may use other forms ("camping", "camped"), so a longer word is
searched by the stem that its forms share. A name of several words is searched word by word and also as a phrase,
which is rarer and therefore counts more. Hindi and its like write vowels as marks beside a letter, and the pieces of a
word between them are indexed; nearly every text has them, so such a word is searched only as the phrase of its pieces.
"""

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from holdfast.text import inflected_stem, may_be_stem, plain_letters

MAX_WORD_CHARS = 64
_WORD = r"[^\W_]+"
_CJK = r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]"
_RUN = rf"{_CJK}+|(?:(?!{_CJK})\w)+"
_INDIC = r"[\u0900-\u0963\u0966-\u096f\u0971-\u0df3]"
"""What words of the scripts of India and Sri Lanka consist of: their blocks without full stops."""
_ATTACHED = r"(?:[وفبكل]?ال|[وف]?لل|و)(?=\w{3})|[ובכלמשה](?=\w{3})"
"""What may stand before a word in Arabic and in Hebrew without a space: an article, prepositions, "and"."""
MAX_ATTACHED = 2
"""How many of these a word may have that is indexed without them: `ובבית`, "and at home"."""
_SEMITIC = r"[\u05d0-\u05ea\u0620-\u064a\u0671-\u06d3]{3,}"
"""A word in Hebrew or Arabic letters that may have an ending."""
_PART = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+"
_BETWEEN = {code: " " for code in range(128) if not chr(code).isalnum()}
"""The ASCII characters that separate words."""


def index_words(text: str) -> list[str]:
    """Return the words under which a text is indexed, in order."""
    return index_body(text).split()


def index_body(text: str) -> str:
    """Return the words under which a text is indexed, separated by spaces."""
    if not text.isascii():
        return " ".join(map(_word_forms, re.findall(_WORD, plain_letters(text))))
    # Nearly every word is indexed as it is, so that case is the fast one: first a whole text of such words.
    found = text.translate(_BETWEEN).split()
    if text == text.lower() and max(map(len, found), default=0) <= MAX_WORD_CHARS:
        return " ".join(found)
    return " ".join([word if word.islower() and len(word) <= MAX_WORD_CHARS else _word_forms(word) for word in found])


def _word_forms(word: str) -> str:
    if not word.isascii() and (folded := word.casefold()).isascii():
        word = folded
    if word.isascii() and (word.islower() or word.isdigit() or (word.isalpha() and word[1:].islower())):
        return word[:MAX_WORD_CHARS].lower()
    if word.isascii():
        return " ".join(_parts(word))
    return " ".join([form for run in re.findall(_RUN, word) for form in _run_forms(run, is_whole=run == word)])


def _run_forms(run: str, *, is_whole: bool) -> Iterator[str]:
    if re.match(_CJK, run):
        yield from (run[index : index + 2] for index in range(len(run)))
    elif is_whole:
        yield from _parts(run)
        for _ in range(MAX_ATTACHED):
            attached = re.match(_ATTACHED, run)
            if attached is None:
                break
            run = run[attached.end() :]
            yield run[:MAX_WORD_CHARS]
    else:
        yield _word_forms(run)


def _parts(word: str) -> Iterator[str]:
    parts = re.findall(_PART, word)
    if len(parts) > 1 and word.isascii():
        yield word.lower()[:MAX_WORD_CHARS]
    yield from (part.casefold()[:MAX_WORD_CHARS] for part in parts)


MAX_TERMS = 32
MAX_NAME_WORDS = 12
MIN_TERM_STEM_CHARS = 4
RARITY_POWER = 1.5
"""The rarest word of a query says the most. For short messages BM25's own weight is too small."""
WORD_ENDINGS = ("ing", "ies", "ed", "es", "s", "e", "y")
UNDOUBLED_LETTERS = frozenset("lsz")
"""Letters that words end with twice: `call`, `miss`, `buzz`."""


class SearchTerm(NamedTuple):
    """One word, or a phrase of several."""

    words: tuple[str, ...]
    is_stem: bool = False
    """Whether the last word may continue."""


def search_terms(query: str) -> list[SearchTerm]:
    """Return the terms of a query, each once, in its order."""
    terms: dict[SearchTerm, None] = {}
    for token in query.split():
        words = _without_run_ends(index_words(token))
        if words and re.search(_INDIC, token):
            terms[SearchTerm(tuple(words[:MAX_NAME_WORDS]))] = None
            continue
        if 1 < len(words) <= MAX_NAME_WORDS:
            terms[SearchTerm(tuple(words))] = None
        for word in words:
            stem = word_stem(word)
            has_forms = stem != word or _has_forms(word) or may_be_stem(word)
            may_continue = has_forms or _is_character(word) or re.fullmatch(_SEMITIC, word)
            terms[SearchTerm((stem,), is_stem=bool(may_continue))] = None
    return list(terms)[:MAX_TERMS]


def _without_run_ends(words: list[str]) -> list[str]:
    """Return words without the last character of each run of characters, which its pairs hold already."""
    return [
        word
        for before, word in pairwise(["", *words])
        if not (_is_character(word) and len(before) > 1 and before[-1] == word and re.match(_CJK, before))
    ]


def _is_character(word: str) -> bool:
    return len(word) == 1 and re.match(_CJK, word) is not None


def word_stem(word: str) -> str:
    """Return the stem that the forms of a word share; the word itself if it is short or not made of letters."""
    if not _has_forms(word) or word.endswith("ss"):
        return inflected_stem(word)
    for ending in WORD_ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= MIN_TERM_STEM_CHARS:
            stem = word[: -len(ending)]
            is_doubled = len(stem) > MIN_TERM_STEM_CHARS and stem[-1] == stem[-2] and stem[-1] not in UNDOUBLED_LETTERS
            return stem[:-1] if is_doubled else stem
    return word


def rarity_weight(holding: float, total: float) -> float:
    """Return the weight of a word that `holding` of `total` messages hold: the fewer, the larger."""
    return math.log(1 + max(1.0, total - holding + 0.5) / (holding + 0.5)) ** RARITY_POWER


def _has_forms(word: str) -> bool:
    return len(word) > MIN_TERM_STEM_CHARS and word.isascii() and word.isalpha()
