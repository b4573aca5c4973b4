"""Rank found messages, memory notes and names by how well they answer a query.

A store scores each message by its words. In a conversation the answer seldom has the words of the question
but follows soon after them, so a message lends part of its score to its neighbors. A speaker whom the
question names is likelier to have said it. With several questions the best of each come first, and a newer
message comes before an older one that is as good.

A text of memory scores by the rarity of the words it shares with the query and by its length. A name scores
by its rank in the ledger and by the words it shares with the question: in work, people mostly search for a
name to be used again, such as a path, a method or an id.
"""

import collections
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from holdfast.core.conversation.tokens import Counter
from holdfast.core.ledger.names import RankedName, pack_names

NEIGHBOR_SHARES: Mapping[int, float] = {-4: 0.05, -3: 0.1, -2: 0.2, -1: 0.4, 1: 0.5, 2: 0.3, 3: 0.2, 4: 0.1}
"""What share of its score a message lends to one so much further on: more to what follows than to what led to it."""
SPEAKER_FACTOR = 2.0
"""What it counts for that a message is by somebody the question names."""
PAIR_FACTOR = 4.0
"""What it counts for that a name and a number stand side by side as in the question: any page of numbers has both."""
SECOND_RANKING_SHARE = 1e-3
"""What a place in further rankings counts for beside the best one."""
MAX_QUESTIONS = 4
MAX_QUERY_WORDS = 16
"""How many words of a question are looked for, the most telling first."""
_SPEAKER = re.compile(r"(?:\[[^\]\n]{0,120}\]\s*)?([^\W\d_][\w.'’-]{0,30}(?: [^\W\d_][\w.'’-]{0,30}){0,2}):\s")
_QUESTIONS = re.compile(r"[?？;；\n]+")
_WORD = re.compile(r"[^\W_]+(?:['’_.\-/][^\W_]+)*")
_IDENTIFIER = re.compile(r"[a-z][A-Z]|[_/\d]|\w[.\-]\w|[A-Z]{2}")
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
"""Words that say nothing of what is looked for."""


def split_questions(query: str) -> list[str]:
    """Return what is asked, each question for itself; all of it first, where there are several."""
    asked = [part.strip() for part in _QUESTIONS.split(query) if _WORD.search(part)]
    if len(asked) > MAX_QUESTIONS:
        # Something that was pasted rather than asked.
        return [" ".join(asked)]
    return [" ".join(asked), *asked] if len(asked) > 1 else asked


def search_words(question: str) -> str:
    """Return the words worth looking for: names and rare forms before the rest, those that say nothing not at all."""
    words = list(dict.fromkeys(_WORD.findall(question)))
    telling = [word for word in words if word.lower() not in STOP_WORDS] or words
    if len(telling) > MAX_QUERY_WORDS:
        best = sorted(telling, key=_word_priority)[:MAX_QUERY_WORDS]
        telling = [word for word in telling if word in best]
    return " ".join(telling)


def name_number_pairs(question: str) -> list[str]:
    """Return the names of a question that a number tells apart, such as `depot 17`; small letters."""
    words = _WORD.findall(question.lower())
    return [f"{one} {other}" for one, other in pairwise(words) if one.isdigit() != other.isdigit()]


def contains_pair(text: str, pairs: Sequence[str]) -> bool:
    """Return whether one of the pairs of a question stands in a text."""
    patterns = (r"\W{1,3}".join(map(re.escape, pair.split())) for pair in pairs)
    return any(re.search(rf"\b{pattern}\b", text, re.IGNORECASE) for pattern in patterns)


def _word_priority(word: str) -> tuple[bool, int]:
    return _IDENTIFIER.search(word) is None, -len(word)


def spread_scores(scores: Mapping[int, float]) -> dict[int, float]:
    """Return scores by position with what neighbours lend each other."""
    whole = dict(scores)
    for position, score in scores.items():
        for step, share in NEIGHBOR_SHARES.items():
            near = position + step
            whole[near] = whole.get(near, 0.0) + share * score
    return whole


def rank_positions(scores: Mapping[int, float]) -> list[int]:
    """Return positions, the best first; of those that are as good, the newest."""
    return sorted(scores, key=lambda position: (-scores[position], -position))


def fuse_rankings(rankings: Sequence[Sequence[int]]) -> dict[int, float]:
    """Return one score for each position of several rankings: high where it stands high in any of them."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, position in enumerate(ranking):
            here, so_far = 1.0 / (1 + rank), scores.get(position, 0.0)
            scores[position] = max(here, so_far) + SECOND_RANKING_SHARE * min(here, so_far)
    return scores


def speaker_of(text: str) -> str:
    """Return who says it, where a text begins with a name and a colon; small letters."""
    found = _SPEAKER.match(text)
    return found[1].lower() if found else ""


def is_by_named_speaker(text: str, questions: Iterable[str]) -> bool:
    """Return whether a text is by somebody whom a question names."""
    speaker = speaker_of(text)
    if not speaker:
        return False
    asked = {word.lower().removesuffix("'s").removesuffix("’s") for one in questions for word in _WORD.findall(one)}
    return not asked.isdisjoint(speaker.split())


MATCH_RANK = 3.0
"""What a word in common counts for: as much as eight times the use."""
MAX_RANKED = 2_500
"""How many of the likeliest are looked at."""
NAME_STEM_CHARS = 5
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")


def relevant_names(
    questions: Iterable[str], items: Sequence[RankedName], allowance: int, counter: Counter, *, exclude_text: str
) -> str:
    """Return names under a heading, the likeliest first and none that occurs in `exclude_text`, as many as fit."""
    asked = {piece for question in questions for piece in _name_words(question)} - STOP_WORDS
    ranked = sorted(items, key=lambda item: -(item.rank + MATCH_RANK * len(asked & _name_words(item.text))))
    return pack_names((item.text for item in ranked), allowance, counter, exclude_text=exclude_text)


def _name_words(text: str) -> set[str]:
    return {piece.lower()[:NAME_STEM_CHARS] for piece in _PIECE.findall(text) if len(piece) > 1}


NOTE_TERM_SATURATION, NOTE_LENGTH_WEIGHT = 1.2, 0.75
"""How soon a repeated word says no more, and how much a long text has to say it more often."""


class WordCounts(NamedTuple):
    """The words of a text, counted."""

    counts: Mapping[str, int]
    length: int

    @classmethod
    def from_words(cls, words: Sequence[str]) -> "WordCounts":
        """Return words, counted."""
        return cls(collections.Counter(words), len(words))


def rank_texts(query_words: Sequence[str], texts: Sequence[WordCounts]) -> list[int]:
    """Return which texts contain words of the query: the best first, of equals the last."""
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
