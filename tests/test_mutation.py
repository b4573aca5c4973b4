"""`make mutation`: which changes are drawn, which tests run for them, and what the command says."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="make mutation installs it")

from scripts import mutation
from scripts.mutants import Mutant, draw_mutants, places_in
from scripts.mutation import Result, Statement, read_results, render_summary, statement_at

SOURCE = '''\
"""A module."""

from typing import override

Number = int | float
LIMIT = 8


class Bill(Base):
    @override
    def total(self, *, discount: int | None = None) -> int | None:
        if self.amount > LIMIT and discount is None:
            return self.amount
        return None
'''

PROJECT = {
    "pyproject.toml": """\
[tool.pytest.ini_options]
addopts = ["-q", "-p", "no:langsmith_plugin", "-p", "no:asyncio", "-p", "no:anyio"]
pythonpath = ["src"]
[tool.coverage.run]
source = ["src"]
branch = true
parallel = true
""",
    "src/shop/prices.py": """\
def price(amount, each):
    return amount * each


def is_many(amount, limit):
    return amount > limit
""",
    "tests/conftest.py": """\
from hypothesis import settings
settings.register_profile("same-examples")
""",
    "tests/test_prices.py": """\
from shop.prices import is_many, price
def test_a_price():
    assert price(2, 3) == 6
def test_few():
    assert is_many(1, 5) is not None
def test_nothing():
    assert True
""",
}


def project(folder: Path, **changed: str) -> Path:
    for name, text in PROJECT.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changed.get(path.stem, text))
    return folder


def drawn(folder: Path, source: str, seed: int, wanted: int = 3) -> list[tuple[str, str]]:
    (folder / "bill.py").write_text(source)
    return [(mutant.operator, mutant.diff) for mutant in draw_mutants(folder, ["."], seed, wanted)]


def test_only_code_that_runs_is_changed() -> None:
    places = list(places_in("bill.py", SOURCE))

    texts = [SOURCE.splitlines()[place.line - 1].strip() for place in places]
    assert texts == [
        "LIMIT = 8",
        "if self.amount > LIMIT and discount is None:",
        "if self.amount > LIMIT and discount is None:",
        "if self.amount > LIMIT and discount is None:",
        "if self.amount > LIMIT and discount is None:",
    ]
    assert {name for place in places for name, _ in place.changes if "Is" in name} == {
        "core/ReplaceComparisonOperator_Gt_Is",
        "core/ReplaceComparisonOperator_Gt_IsNot",
        "core/ReplaceComparisonOperator_Is_IsNot",
    }


def test_a_seed_draws_the_same_mutants_whatever_is_edited_elsewhere(tmp_path: Path) -> None:
    first = drawn(tmp_path, SOURCE, seed=1)

    assert drawn(tmp_path, SOURCE.replace('"""A module."""', '"""A module of bills."""\n\n'), seed=1) == first
    assert [drawn(tmp_path, SOURCE, seed) != first for seed in range(2, 6)].count(True) > 0


def test_each_mutant_is_another_place_and_another_program(tmp_path: Path) -> None:
    (tmp_path / "bill.py").write_text(SOURCE)

    mutants = draw_mutants(tmp_path, ["."], 1, 100)

    assert draw_mutants(tmp_path, ["bill.py"], 1, 100) == mutants
    assert len(mutants) == len({mutant.key for mutant in mutants}) == 5
    for mutant in mutants:
        changed = mutant.apply(SOURCE)
        compile(changed, "changed", "exec")
        removed, added = (line[1:] for line in mutant.diff.splitlines())
        assert SOURCE.replace(removed, added, 1) == changed != SOURCE


def test_a_dotted_name_in_a_list_of_exceptions_is_left_as_it_is(tmp_path: Path) -> None:
    source = "import os\n\ntry:\n    os.getcwd()\nexcept (os.error, ValueError):\n    pass\n"

    assert drawn(tmp_path, source, seed=1) == [
        (
            "core/ExceptionReplacer",
            "-except (os.error, ValueError):\n+except (os.error, CosmicRayTestingException):",
        )
    ]


def test_the_statement_of_a_line_ends_before_its_body_and_knows_what_it_defines() -> None:
    assert statement_at(SOURCE, 6) == Statement(range(6, 7), range(0), ("LIMIT",))
    assert statement_at(SOURCE, 10) == Statement(range(10, 12), range(12, 15), ("total",))
    assert statement_at(SOURCE, 12) == Statement(range(12, 13), range(13, 14), ("total",), is_definition=False)
    assert statement_at("x = f(\n    1,\n    2,\n)\n", 3) == Statement(range(1, 5), range(0), ("x",))


def test_the_last_result_of_a_mutant_counts_and_survivors_are_listed_with_their_change(tmp_path: Path) -> None:
    one = Mutant("src/holdfast/core/prices.py", 2, "core/NumberReplacer", 0, "-    a = 1\n+    a = 2", "1111")
    two = Mutant("src/holdfast/wire/media.py", 9, "core/AddNot", 4, "-    if a:\n+    if not a:", "2222")
    results = [
        Result(one, "survived", tests=4, seconds=1.5),
        Result(two, "survived", tests=3, seconds=2.0),
        Result(one, "killed", "tests/test_prices.py::test_a_price", 5, 2.5),
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(asdict(result)) + "\n" for result in results))

    read = read_results(path)

    assert read == {"1111": results[2], "2222": results[1]}
    assert render_summary(7, list(read.values())) == [
        "package    mutants  killed",
        "core             1 100.0 %",
        "wire             1   0.0 %",
        "all              2  50.0 %   (seed 7)",
        "",
        "survived    2.0 s    3 tests  wire/media.py:9 AddNot",
        "-    if a:\n+    if not a:",
    ]


def test_a_mutant_that_no_test_notices_is_named_until_a_test_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = project(tmp_path / "project")
    source = (root / "src/shop/prices.py").read_bytes()
    monkeypatch.setattr(mutation, "ROOT", root)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    (root / "build").mkdir()

    assert mutation.main(["--seed", "1", "src/shop"]) == 1

    said = capsys.readouterr().out
    survived = [line for line in said.splitlines() if "survived" in line]
    assert survived, said
    assert all("prices.py:6" in line for line in survived), said
    assert "all              2  50.0 %   (seed 1)" in said
    assert "test_nothing" not in (root / "build/mutation/seed-1.jsonl").read_text()
    assert (root / "src/shop/prices.py").read_bytes() == source

    more = "def test_many():\n    assert [is_many(5, 5), is_many(6, 5)] == [False, True]\n"
    project(root, test_prices=PROJECT["tests/test_prices.py"] + more)
    status = mutation.main(["--seed", "1", "--again", "src/shop"])

    said = capsys.readouterr().out
    assert (status, "100.0 %   (seed 1)" in said) == (0, True), said


def test_a_folder_without_code_is_an_error_that_says_what_to_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.mutation", "docs/images"],
        capture_output=True,
        text=True,
        check=False,
        cwd=mutation.ROOT,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("There is nothing to change in docs/images. Name files or folders below ")
