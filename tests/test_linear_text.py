"""Every text operation takes time that grows with the text: no output of a tool stops the process."""

from time import process_time

import pytest

from holdfast.core.planning import breaker
from holdfast.core.recall.answer import looks_like_heading
from holdfast.errors import MalformedInputError
from holdfast.stores.jsonl import load_bytes

GENEROUS_S = 10
"""Of processor time, for what takes less than one: the old patterns took minutes."""


def test_a_long_list_of_numbers_is_searched_for_durations_once() -> None:
    numbers = f"[{'255,0,17,' * 110_000}0]"
    started = process_time()

    assert breaker.without_durations(numbers) == numbers
    assert process_time() - started < GENEROUS_S


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("ran in 1.5s", "ran in "),
        ("took 1:02:03 seconds, then 4 ms.", "took , then ."),
        ("x86,2s", "x86,"),
        ("a1s 1,2 3 s", "a1s 1,2 "),
        ("12 sheep", "12 sheep"),
    ],
)
def test_durations_are_left_out_and_other_numbers_stay(text: str, left: str) -> None:
    assert breaker.without_durations(text) == left


def test_a_line_of_digits_is_searched_for_a_heading_once() -> None:
    started = process_time()

    assert not looks_like_heading(f"#{'1' * 1_000_000}")
    assert looks_like_heading(f"#{'1' * 1_000_000} user")
    assert process_time() - started < GENEROUS_S


@pytest.mark.parametrize("line", [b"[[],\n", b"[[],\n1,\n", b'[",\n', b"{}", b'{"a":1 ', b'{"a":[0,'])
def test_a_file_of_beginnings_is_refused_in_time_that_grows_with_it(line: bytes) -> None:
    started = process_time()

    with pytest.raises(MalformedInputError):
        load_bytes(line * (200_000 // len(line)))

    assert process_time() - started < GENEROUS_S
