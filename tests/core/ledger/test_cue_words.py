"""A cheap look at the words of a text must never hide what the patterns would find."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.core.ledger import actions, constraints
from holdfast.core.ledger.constraints import (
    CHOICE_CUE,
    COMPLETION_CUE,
    CONSTRAINT_CUE,
    DECISION_CUE,
    REPLACEMENT_CUE,
    Constraints,
    Cue,
    cue_words,
)
from holdfast.core.ledger.identifiers import distinct_identifiers
from holdfast.redaction import redact_keys

ASCII = st.characters(codec="ascii", exclude_characters="ABCDEFGHIJKLMNOPQRSTUVWXYZ")
CUES = CHOICE_CUE, COMPLETION_CUE, CONSTRAINT_CUE, DECISION_CUE, REPLACEMENT_CUE


def matching_sentences(cue: Cue) -> st.SearchStrategy[str]:
    """Return sentences in ASCII that one of the alternatives of a cue matches."""
    patterns = "|".join(cue._patterns).replace("['’]", "'").replace("–—", "")
    branches = [one for one in constraints._branches(patterns) if one.isascii()]
    return st.sampled_from(branches).flatmap(lambda one: st.from_regex(re.compile(one), alphabet=ASCII))


@pytest.mark.parametrize("cue", CUES)
@given(data=st.data())
def test_every_ascii_sentence_that_matches_a_cue_has_one_of_its_words(cue: Cue, data: st.DataObject) -> None:
    sentence = data.draw(matching_sentences(cue)).lower()
    assume(sentence.isascii() and cue.search(sentence))

    assert cue.may_match(cue_words(sentence))


@given(matching_sentences(DECISION_CUE), st.text(ASCII, max_size=20))
def test_every_ascii_text_with_a_decision_of_the_model_has_one_of_its_phrases(sentence: str, before: str) -> None:
    assume(sentence.isascii() and DECISION_CUE.search(sentence.lower()))

    assert DECISION_CUE.may_occur(f"{before}\n{sentence}")


@given(st.from_regex(actions._ID_IN_RESULT.pattern, alphabet=st.characters(codec="ascii")))
def test_every_ascii_result_with_the_id_of_a_task_has_the_words_for_one(result: str) -> None:
    assert actions._may_name_task(result)


@pytest.mark.parametrize("cue", CUES)
@given(data=st.data())
def test_every_ascii_text_with_a_statement_of_the_user_may_state_one(cue: Cue, data: st.DataObject) -> None:
    sentence = data.draw(matching_sentences(cue))
    assume(sentence.isascii() and cue.search(sentence.lower()))

    assert constraints._may_state(sentence, "user")


def test_a_sentence_without_such_words_is_searched_by_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    def search(_: Cue, sentence: str) -> bool:
        searched.append(sentence)
        return False

    monkeypatch.setattr(constraints, "matches_cue", search)

    Constraints().observe("The tides and the boats are here. The third row holds seven names.", "user", 0)

    assert searched == []


@given(st.from_regex(r"\A[0-9a-f]{7,64}\Z") | st.from_regex(r"\A(?:[a-z]{4,40}|[A-Z][a-z]{3,40}|[A-Z]{4,40})\Z"))
def test_hashes_and_plain_words_contain_no_key(run: str) -> None:
    is_hash = re.search("[0-9]", run) is not None and re.search("[a-f]", run) is not None

    assert redact_keys(run) == run or not is_hash
    assert distinct_identifiers(run) == ({run} if is_hash else {run} if run.isdigit() else set())
