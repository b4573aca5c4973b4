"""Stored bytes and hashes are those of Python's own JSON encoder, whichever encoder writes them."""

import json
import sys
from enum import StrEnum
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.conversation.json_values import encode_canonical_json, encode_json, is_certainly_shorter

TEXTS = (
    st.text() | st.text(alphabet=st.characters(codec="utf-8")) | st.sampled_from(["\x7f", "é\x1f\u2028", "😀", '"\\'])
)
NUMBERS = (
    st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from([0.0, -0.0, 1.0, 1e-4, 9.9e-5, 1e16, 1e15, 123456789012345.67, 5e-324, 1e22, float("nan")])
)
VALUES = st.recursive(
    TEXTS | NUMBERS | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(TEXTS | st.integers(0, 9), inner),
    max_leaves=20,
)


class Color(StrEnum):
    """A text that is not plainly one."""

    RED = "red"


@given(VALUES)
def test_a_record_has_the_bytes_of_pythons_compact_encoding(value: object) -> None:
    try:
        expected = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        expected = json.dumps(value, separators=(",", ":")).encode()

    assert encode_json(value) == expected


@given(VALUES.filter(lambda value: not isinstance(value, dict) or len({*map(type, value)}) <= 1))
def test_a_hash_is_made_of_pythons_sorted_ascii_encoding(value: object) -> None:
    try:
        expected = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()
    except TypeError:  # keys of several types have no order
        with pytest.raises(TypeError):
            encode_canonical_json(value)
        return

    assert encode_canonical_json(value) == expected


@pytest.mark.parametrize("text", ["où est la clé – là ", "привет, мир: как дела? ", "漢字 a 仮名 b ", "👩‍👧 ok "])
def test_a_hash_of_a_long_text_in_any_script_takes_no_call_for_each_of_its_words(text: str) -> None:
    def calls(repeats: int) -> int:
        count = 0

        def note(_: FrameType, event: str, __: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            encode_canonical_json({"role": "user", "content": text * repeats})
        finally:
            sys.setprofile(None)
        return count

    encode_canonical_json(text)  # loads the encoder

    assert calls(1_000) == calls(1)


@given(VALUES)
def test_no_value_is_taken_for_shorter_than_python_writes_it(value: object) -> None:
    size = len(json.dumps(value))

    assert not is_certainly_shorter(value, size)


@pytest.mark.parametrize("value", ["\x7f" * 1_000, {"text": "é" * 1_000}, [0] * 1_000])
def test_a_value_that_grows_most_when_python_writes_it_is_taken_for_shorter_only_if_it_is(value: object) -> None:
    size = len(json.dumps(value))

    assert [is_certainly_shorter(value, size * share) for share in (1, 6)] == [False, True]


@pytest.mark.parametrize("number", [0.0, -0.0, 1e-4, 9.9e-5, 1.5e-7, 1e15, 1e16, float("inf"), float("nan")])
def test_a_number_is_written_as_python_writes_it(number: float) -> None:
    expected = json.dumps({"n": [number]}, separators=(",", ":")).encode()

    assert (encode_json({"n": [number]}), encode_canonical_json({"n": [number]})) == (expected, expected)


def test_values_that_only_one_encoder_knows_are_written_as_python_writes_them() -> None:
    assert encode_json({"color": Color.RED, 1: True}) == b'{"color":"red","1":true}'
    assert encode_canonical_json({"none": {1}}) == b'{"none":"{1}"}'
    with pytest.raises(TypeError):
        encode_json({"none": {1}})


def test_a_value_that_contains_itself_is_refused() -> None:
    circular: list[object] = []
    circular.append(circular)

    with pytest.raises((ValueError, RecursionError)):
        encode_json(circular)


def test_encoding_a_text_does_not_make_it_keep_its_bytes() -> None:
    text = "é…" * 1_000
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    size = sys.getsizeof(text)

    encode_json(message)
    encode_canonical_json(message)
    is_certainly_shorter(message, 100)

    assert sys.getsizeof(text) == size
