"""Markdown that is still being written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.chat.markdown import split_finished_blocks


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", ""),
        ("one", ""),
        ("one\n\n", ""),
        ("one\n\ntwo", ""),
        ("one\n\ntwo\n", "one\n\n"),
        ("```python\na\n\nb\n", ""),
        ("```python\na\n\nb\n```\n\nafter\n", "```python\na\n\nb\n```\n\n"),
        ("- a\n\n- b\n", ""),
        ("- a\n\n- b\n\nafter\n", "- a\n\n- b\n\n"),
        ("1. a\n\n   more of a\n", ""),
    ],
)
def test_a_block_is_whole_when_nothing_that_follows_can_change_it(text: str, whole: str) -> None:
    assert split_finished_blocks(text) == (whole, text[len(whole) :])


@given(st.lists(st.sampled_from(["a", "\n", "\n\n", "```\n", "- b\n", "# c\n", "    d\n", "~~~\n"])).map("".join))
def test_nothing_is_lost_and_what_was_whole_stays_whole(text: str) -> None:
    shown, rest = "", ""
    for letter in text:
        whole, rest = split_finished_blocks(rest + letter)
        shown += whole

    assert shown + rest == text
