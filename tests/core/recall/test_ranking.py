"""Words in texts, the best text first."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.recall.ranking import rank_texts


def texts(*lines: str) -> list[Counter[str]]:
    return [Counter(line.split()) for line in lines]


def test_a_rare_word_says_more_than_a_common_one() -> None:
    assert rank_texts(["the", "keys"], texts("the boat", "the keys", "the the the"))[0] == 1


def test_of_equals_the_last_is_first_and_what_has_no_word_is_not_found() -> None:
    assert rank_texts(["keys"], texts("keys", "boat", "keys")) == [2, 0]


def test_nothing_is_found_of_nothing() -> None:
    assert (rank_texts([], texts("a")), rank_texts(["a"], []), rank_texts(["a"], texts(""))) == ([], [], [])


def bm25(query: list[str], text: Counter[str], every: list[Counter[str]]) -> float:
    """Return the score of a text as the formula is printed, with k1 = 1.2 and b = 0.75."""
    average, score = sum(one.total() for one in every) / len(every), 0.0
    for word in query:
        holding = sum(word in one for one in every)
        rarity = math.log((len(every) - holding + 0.5) / (holding + 0.5) + 1)
        score += rarity * text[word] * 2.2 / (text[word] + 1.2 * (0.25 + 0.75 * text.total() / average))
    return score


@given(st.lists(st.text("abc ", min_size=1, max_size=30).map(" ".join).filter(str.strip), min_size=1, max_size=8))
def test_texts_come_in_the_order_of_their_bm25_scores(lines: list[str]) -> None:
    every = texts(*lines)
    scores = [round(bm25(["a", "b"], text, every), 9) for text in every]

    ranked = rank_texts(["a", "b"], every)

    assert sorted(ranked) == [number for number, score in enumerate(scores) if score]
    assert [scores[number] for number in ranked] == sorted(filter(None, scores), reverse=True)
