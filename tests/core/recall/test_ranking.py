"""Words in texts, the best text first."""

from collections import Counter

from holdfast.core.recall.ranking import rank_texts


def texts(*lines: str) -> list[Counter[str]]:
    return [Counter(line.split()) for line in lines]


def test_a_rare_word_says_more_than_a_common_one() -> None:
    assert rank_texts(["the", "keys"], texts("the boat", "the keys", "the the the"))[0] == 1


def test_of_equals_the_last_is_first_and_what_has_no_word_is_not_found() -> None:
    assert rank_texts(["keys"], texts("keys", "boat", "keys")) == [2, 0]


def test_nothing_is_found_of_nothing() -> None:
    assert (rank_texts([], texts("a")), rank_texts(["a"], []), rank_texts(["a"], texts(""))) == ([], [], [])
