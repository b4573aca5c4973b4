"""Words in texts, the best text first."""

from holdfast.core.history.lasting.ranking import Words, ranked


def texts(*lines: str) -> list[Words]:
    return [Words.of(line.split()) for line in lines]


def test_a_rare_word_says_more_than_a_common_one() -> None:
    assert ranked(["the", "keys"], texts("the boat", "the keys", "the the the"))[0] == 1


def test_of_equals_the_last_is_first_and_what_has_no_word_is_not_found() -> None:
    assert ranked(["keys"], texts("keys", "boat", "keys")) == [2, 0]


def test_nothing_is_found_of_nothing() -> None:
    assert (ranked([], texts("a")), ranked(["a"], []), ranked(["a"], texts(""))) == ([], [], [])
