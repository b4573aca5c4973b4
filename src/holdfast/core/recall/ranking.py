"""Rank found messages, memory notes and names by how well they answer a query.

A store scores each message by its words. In a conversation the answer seldom contains the words of the question but
follows soon after them, so a message adds part of its score to its neighbors. If the question names a speaker, the
messages of that speaker score higher. With several questions, the best messages of each come first. Of two messages
with equal scores, the newer comes first.

A memory note scores by the rarity of the words it shares with the query and by its length. A name scores by its rank
in the ledger and by the words it shares with the question, because agents mostly search for names that they need
again, such as a path, a method or an id.
"""

import collections
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from unicodedata import normalize

from holdfast.core.conversation.tokens import Counter
from holdfast.core.ledger.names import RankedName, pack_names
from holdfast.text import lazy_pattern

NEIGHBOR_SHARES: Mapping[int, float] = {-4: 0.05, -3: 0.1, -2: 0.2, -1: 0.4, 1: 0.5, 2: 0.3, 3: 0.2, 4: 0.1}
"""The share of its score that a message adds to the message at each offset; those after it get more."""
SPEAKER_FACTOR = 2.0
"""Multiplies the score of a message whose speaker the question names."""
PAIR_FACTOR = 4.0
"""Multiplies the score if a name and a number are adjacent as in the question; many texts contain both apart."""
SECOND_RANKING_SHARE = 1e-3
"""The weight of a position's place in further rankings, relative to its best one."""
MAX_QUESTIONS = 4
MAX_QUERY_WORDS = 16
"""How many words of a question to search for, the most specific first."""
_SPEAKER = lazy_pattern(r"(?:\[[^\]\n]{0,120}\]\s*)?([^\W\d_][\w.'’-]{0,30}(?: [^\W\d_][\w.'’-]{0,30}){0,2}):\s")
_QUESTIONS = lazy_pattern(r"[?？;；\n]+")
# The scripts of India and Sri Lanka write vowels as marks beside a letter, which are part of the word.
_WORD = lazy_pattern(r"[^\W_]+(?:['’_.\-/][^\W_]+|[\u0900-\u0963\u0966-\u096f\u0971-\u0df3]+[^\W_]*)*")
_IDENTIFIER = lazy_pattern(r"[a-z][A-Z]|[_/\d]|\w[.\-]\w|[A-Z]{2}")
_STOP_WORDS = (
    "a about above after again against all also am an and any are as at be because been before being below "
    "between both but by can cannot could did do does doing done down during each ever few for from further get "
    "gets got had has have having he her here hers herself him himself his how i if in into is it its itself just "
    "kind let like ll long many may me might more most much must my myself name no nor not now of off often on "
    "once only or other our ours ourselves out over own please re same shall she should since so some such tell "
    "than that the their theirs them themselves then there these they this those through to too type under until "
    "up us ve very was we were what when where which while who whom whose why will with would yet you your yours "
    "yourself yourselves s t d m aren couldn didn doesn don hadn hasn haven isn shouldn wasn weren won wouldn"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words too common to search for."""


def split_questions(query: str) -> list[str]:
    """Return the questions of a query; if there are several, all of them together come first."""
    asked = [part.strip() for part in _QUESTIONS.split(query) if _WORD.search(part)]
    if len(asked) > MAX_QUESTIONS:
        # So many questions are probably pasted text.
        return [" ".join(asked)]
    return [" ".join(asked), *asked] if len(asked) > 1 else asked


def search_words(question: str) -> str:
    """Return the words to search for: no stop words, and if there are too many, identifiers and long words first."""
    # A letter and its accent may be two characters, as in names of files on macOS; only together are they of a word.
    words = list(dict.fromkeys(_WORD.findall(normalize("NFC", question))))
    telling = [word for word in words if word.lower() not in STOP_WORDS] or words
    if len(telling) > MAX_QUERY_WORDS:
        best = sorted(telling, key=lambda word: (_IDENTIFIER.search(word) is None, -len(word)))[:MAX_QUERY_WORDS]
        telling = [word for word in telling if word in best]
    return " ".join(telling)


def name_number_pairs(question: str) -> list[str]:
    """Return the adjacent pairs of a word and a number in a question, such as `depot 17`, in lower case."""
    words = _WORD.findall(question.lower())
    return [f"{one} {other}" for one, other in pairwise(words) if one.isdigit() != other.isdigit()]


def contains_pair(text: str, pairs: Sequence[str]) -> bool:
    """Return whether a text contains one of the pairs of a question."""
    patterns = (r"\W{1,3}".join(map(re.escape, pair.split())) for pair in pairs)
    return any(re.search(rf"\b{pattern}\b", text, re.IGNORECASE) for pattern in patterns)


def spread_scores(scores: Mapping[int, float]) -> dict[int, float]:
    """Return scores by position, with the shares that neighbors add to each other."""
    whole = dict(scores)
    for position, score in scores.items():
        for step, share in NEIGHBOR_SHARES.items():
            near = position + step
            whole[near] = whole.get(near, 0.0) + share * score
    return whole


def rank_positions(scores: Mapping[int, float]) -> list[int]:
    """Return positions, best first; of equal ones, the newest first."""
    return sorted(scores, key=lambda position: (-scores[position], -position))


def fuse_rankings(rankings: Sequence[Sequence[int]]) -> dict[int, float]:
    """Return one score for each position in several rankings; a high rank in any of them gives a high score."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, position in enumerate(ranking):
            here, so_far = 1.0 / (1 + rank), scores.get(position, 0.0)
            scores[position] = max(here, so_far) + SECOND_RANKING_SHARE * min(here, so_far)
    return scores


def is_by_named_speaker(text: str, questions: Iterable[str]) -> bool:
    """Return whether a text begins with a name and a colon, and one of the questions has that name."""
    speaker = _SPEAKER.match(text)
    if speaker is None:
        return False
    asked = {word.lower().removesuffix("'s").removesuffix("’s") for one in questions for word in _WORD.findall(one)}
    return not asked.isdisjoint(speaker[1].lower().split())


MATCH_RANK = 3.0
"""Added to a name's rank for each shared word. Ranks are binary logarithms, so this equals eight times the use."""
MAX_RANKED = 2_500
"""How many of the likeliest names to consider."""
NAME_STEM_CHARS = 5
_PIECE = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")


def relevant_names(
    questions: Iterable[str], items: Sequence[RankedName], allowance: int, counter: Counter, *, exclude_text: str
) -> str:
    """Return as many names as fit, under a heading, likeliest first, except those in `exclude_text`."""
    asked = {piece for question in questions for piece in _name_words(question)} - STOP_WORDS
    ranked = sorted(items, key=lambda item: -(item.rank + MATCH_RANK * len(asked & _name_words(item.text))))
    return pack_names((item.text for item in ranked), allowance, counter, exclude_text=exclude_text)


def _name_words(text: str) -> set[str]:
    return {piece.lower()[:NAME_STEM_CHARS] for piece in _PIECE.findall(text) if len(piece) > 1}


NOTE_TERM_SATURATION, NOTE_LENGTH_WEIGHT = 1.2, 0.75
"""The BM25 parameters k1 and b: how soon repetition stops adding score, and how much length reduces it."""


def rank_texts(query_words: Sequence[str], texts: Sequence[collections.Counter[str]]) -> list[int]:
    """Return the indexes of the texts that contain words of the query, best first; of equal ones, the last first.

    Each text is given as the counts of its words.
    """
    lengths = [text.total() for text in texts]
    average = sum(lengths) / max(1, len(texts)) or 1.0
    scores: dict[int, float] = {}
    for word in dict.fromkeys(query_words):
        holding = [number for number, text in enumerate(texts) if word in text]
        weight = math.log(1 + (len(texts) - len(holding) + 0.5) / (len(holding) + 0.5))
        for number in holding:
            many = texts[number][word]
            damp = NOTE_TERM_SATURATION * (1 - NOTE_LENGTH_WEIGHT + NOTE_LENGTH_WEIGHT * lengths[number] / average)
            scores[number] = scores.get(number, 0.0) + weight * many * (NOTE_TERM_SATURATION + 1) / (many + damp)
    return sorted(scores, key=lambda number: (scores[number], number), reverse=True)
