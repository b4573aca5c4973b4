"""The JSON of a snapshot is read as it was written, or not at all."""

from dataclasses import dataclass
from types import MappingProxyType

import pytest

from holdfast.core.history.snapshot import from_snapshot_json, to_snapshot_json


@dataclass(frozen=True)
class Kept:
    name: str
    places: range
    seen: frozenset[int] = frozenset()


def test_a_record_comes_back_as_it_was() -> None:
    kept = Kept("a", range(2, 5), frozenset({3, 1}))

    assert to_snapshot_json(kept) == '["a",[2,5],[1,3]]'
    assert from_snapshot_json(Kept, to_snapshot_json(kept)) == kept
    assert to_snapshot_json(MappingProxyType({"a": 1})) == '{"a":1}'


@pytest.mark.parametrize("text", ["7", '["a"]', '["a",7,[]]', "{", "null"])
def test_what_another_make_has_written_is_no_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"the text is not a snapshot|Expecting|shorter|longer"):
        from_snapshot_json(Kept, text)


def test_what_has_no_place_in_it_is_refused() -> None:
    with pytest.raises(TypeError, match="a snapshot cannot hold a value of type object"):
        to_snapshot_json(object())
