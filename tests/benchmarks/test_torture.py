"""Torture in the suite: a short share of each round from a fixed seed, and everything that was ever found."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from benchmarks.torture import __main__ as program
from benchmarks.torture import batches
from benchmarks.torture.batches import FOUND_FOLDER, run_batch
from benchmarks.torture.rounds import ROUNDS, Round

SEED = 20_261_115
SHARE, SLOW_SHARE = 15, 400
"""Cases of a batch in the suite; of slow rounds so many by what one weighs."""
KEPT = sorted(FOUND_FOLDER.glob("*.json"))


def batches_of(name: str) -> list[int]:
    """Return which batches the suite tries: of histories every format once, each under another preset.

    Interleavings and jobs have tests of their own.
    """
    if name in {"interleavings", "jobs"}:
        return []
    kinds = len(ROUNDS[name].strategies)
    return [6 * number % kinds for number in range(7)] if name == "histories" else list(range(kinds))


@pytest.mark.parametrize(("name", "number"), [(name, number) for name in ROUNDS for number in batches_of(name)])
def test_what_must_hold_holds_for_a_share_of_every_round(name: str, number: int) -> None:
    share = min(SHARE, max(2, SLOW_SHARE // ROUNDS[name].weight))

    assert run_batch(name, number, SEED, share).failure is None


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_torture_has_found_stays_repaired(path: Path) -> None:
    kept = json.loads(path.read_text())

    ROUNDS[kept["round"]].check(kept["case"])


def fails_from_ten_on(case: dict[str, Any]) -> None:
    assert case["number"] < 10, "too large"


@pytest.fixture
def painful(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put one round in place of all others, in which cases fail, and return where they are kept."""
    numbers = (st.fixed_dictionaries({"number": st.integers(0, 10**6)}),)
    monkeypatch.setitem(batches.ROUNDS, "painful", Round("numbers", numbers, fails_from_ten_on))
    return tmp_path / "found"


def test_a_failure_is_made_small_and_kept_with_its_seed_and_reason(painful: Path) -> None:
    batch = run_batch("painful", 3, SEED, 50)

    assert batch.failure is not None
    kept = json.loads(batch.failure.save(painful).read_text())
    assert (kept["round"], kept["seed"], kept["case"]) == ("painful", SEED + 3, {"number": 10})
    assert kept["reason"].startswith("AssertionError: too large")
    assert run_batch("painful", 3, SEED, 50) == batch


def test_the_program_says_its_seed_and_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["histories", "--cases", "1", "--seed", "7", "--cores", "1"]) == 0

    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"histories, seed 7: {ROUNDS['histories'].title}"
    assert said[1].startswith("  histories: ")
    assert said[1].endswith("none failed (seed 7)")


def test_a_round_that_nobody_knows_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["rack"])

    assert "no round is called rack; there are: histories" in capsys.readouterr().err
