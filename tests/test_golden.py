"""What the engine sends, stores, asks and answers is what it was: see `scripts.golden`."""

from functools import cache
from pathlib import Path

import pytest

from scripts import golden


@cache
def kept(file: Path) -> dict[str, golden.Hashes]:
    return golden.kept(file)


def of_group(file: Path, name: str, preset: str) -> dict[str, golden.Hashes]:
    return {case: hashes for case, hashes in kept(file).items() if case.rsplit("/", 1)[0] == f"{name}/{preset}"}


@pytest.mark.parametrize(("name", "preset"), golden.groups(), ids=str)
def test_a_session_is_played_to_the_same_requests_and_the_same_receipts(name: str, preset: str) -> None:
    hashes = {case: trace.hashes() for case, trace in golden.traces(name, preset).items()}

    fixed = {case: one for case, (one, _) in hashes.items()}
    people = {case: one for case, (_, one) in hashes.items()}

    assert golden.differences(of_group(golden.REQUESTS, name, preset), fixed) == []
    assert golden.differences(of_group(golden.RECEIPTS, name, preset), people) == []


@pytest.mark.parametrize("file", [golden.REQUESTS, golden.RECEIPTS], ids=lambda file: file.stem)
def test_every_kept_case_is_still_played(file: Path) -> None:
    assert {case.rsplit("/", 1)[0] for case in kept(file)} == {"/".join(group) for group in golden.groups()}


def test_a_difference_is_told_with_the_number_of_the_first_request_that_differs() -> None:
    before = {"loop-chat/default/500": {"requests": ["a", "b", "c"], "records": ["r"]}}
    after = {"loop-chat/default/500": {"requests": ["a", "x", "c"], "records": ["r"]}}

    assert golden.differences(before, after) == [
        "session loop-chat, preset default, budget 500: requests number 2 differs; see --show loop-chat/default/500"
    ]
