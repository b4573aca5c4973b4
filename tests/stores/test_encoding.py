"""How records become bytes, and bytes records again."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.encoding import decode_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(value=VALUES, is_ascii=st.booleans())
def test_json_is_read_as_pythons_own_decoder_reads_it(*, value: object, is_ascii: bool) -> None:
    raw = json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass")

    assert repr(decode_json(raw)) == repr(json.loads(raw))


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"9223372036854775808", 2**63),
        (b"-18446744073709551617", -(2**64) - 1),
        (b"1" + b"0" * 40, 10**40),
        (b"[Infinity]", [math.inf]),
        (b'"\\ud800"', "\ud800"),
        (b'"\xed\xa0\x80"', "\ud800"),
        (b"\xef\xbb\xbf{}", {}),
        (b'{"a":1,"b":2,"a":3}', {"a": 3, "b": 2}),
    ],
)
def test_what_only_pythons_decoder_reads_is_read(raw: bytes, value: object) -> None:
    assert decode_json(raw) == value


@pytest.mark.parametrize("raw", [b"", b"{", b"[1,]", b'"\x01"', b"\xff"])
def test_what_is_no_json_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each decoder has words of its own
        decode_json(raw)
