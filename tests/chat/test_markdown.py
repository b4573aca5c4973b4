"""What a model writes as Markdown shows what it does, and cannot steer the terminal."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.chat.markdown import MarkdownRenderer

HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printed(text: str) -> str:
    return MarkdownRenderer(has_color=False).markdown(text, 200)


def test_a_link_shows_the_address_that_it_opens() -> None:
    shown = printed("[https://good.example](https://evil.example/steal)")

    assert "https://good.example (https://evil.example/steal)" in re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "\x1b]8;" not in shown


@pytest.mark.parametrize(
    "entity", ["&#x202e;", "&#8238;", "&rlm;", "&#x1b;[31m", "&lrm;", "&#x2066;", "&#155;", "&#x9b;31m"]
)
@pytest.mark.parametrize(
    "frame", ["a {} b", "# a {}", "- {}", "> {}", "*{}*", "[{}](https://a.example)", "| {} |\n|-|"]
)
def test_an_entity_that_stands_for_a_control_character_is_neutralized(entity: str, frame: str) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", printed(frame.format(entity)))

    assert not HIDDEN.search(shown)


@given(st.text(st.sampled_from("&#x202e;8l7mr[]()*`_~<>!|\n -ab\u202e\x1b\x9b"), max_size=80))
def test_whatever_a_model_writes_no_control_character_reaches_the_terminal(text: str) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", printed(text))

    assert not HIDDEN.search(shown)
    assert not [one for one in shown if unicodedata.bidirectional(one) in {"RLO", "LRO", "RLE", "LRE", "RLI", "LRI"}]
