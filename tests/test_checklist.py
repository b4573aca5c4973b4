"""What is asked for is shown, and the page that says so is true."""

import re
from pathlib import Path

import pytest

from holdfast.apps.chat.dispatch import SLASH_COMMANDS
from holdfast.apps.cli.parser import parse_arguments
from scripts.checklist import ROOT, TARGET, Checklist, Proofs, find_problems, proofs_of, read_checklist, render_tables
from tests.test_seed_names import is_there

LISTED = read_checklist()


@pytest.fixture(scope="module")
def proofs(collected: list[pytest.Item]) -> Proofs:
    """The proofs of the whole suite; part of it cannot say what is missing."""
    tests = (ROOT / "tests").rglob("test_*.py")
    marked = {path for path in tests if "mark.seed(" in path.read_text(encoding="utf-8")}
    if not marked <= {item.path for item in collected}:
        pytest.skip("only a run of the whole suite has all tests; `make checklist` collects them by itself")
    return proofs_of(collected)


def numbered(letter: str, count: int) -> list[str]:
    return [f"{letter}-{number}" for number in range(1, count + 1)]


def test_every_behaviour_of_the_four_systems_is_listed_once_in_order() -> None:
    copilot = [*numbered("C", 13), "C-13a", "C-13b", "C-13c", "C-13d", *numbered("C", 63)[13:]]

    assert list(LISTED.requirements) == [*numbered("A", 48), *numbered("B", 25), *copilot, *numbered("D", 25)]
    assert all(LISTED.requirements.values())


def test_every_behaviour_has_a_test_or_a_page_and_every_mark_is_an_id(proofs: Proofs) -> None:
    assert find_problems(LISTED, proofs) == []


def test_the_page_is_what_the_command_would_write(proofs: Proofs) -> None:
    assert render_tables(LISTED, proofs) in TARGET.read_text(encoding="utf-8"), "run `make checklist`"


def test_what_is_not_shown_is_named() -> None:
    listed = Checklist(
        systems={"X": "x"},
        requirements={"X-1": "it hums", "X-2": "it sings"},
        documented={"X-2": {"page": "docs/maintainers/seeds.md#no-such-heading", "reason": "r"}},
    )

    assert find_problems(listed, {"X-9": ["test_a.py::test_b"]}) == [
        "X-1: no test carries it: it hums",
        "X-9: is no id, but test_a.py::test_b carries it",
        "X-2: docs/maintainers/seeds.md#no-such-heading does not exist",
    ]


@pytest.mark.parametrize("case", [1, 2])
def test_a_test_with_cases_counts_once(case: int, request: pytest.FixtureRequest) -> None:
    item = request.node
    item.add_marker(pytest.mark.seed("X-1", "X-2"))

    assert proofs_of([item, item]) == {
        one: [f"{Path(__file__).name}::test_a_test_with_cases_counts_once"] for one in ("X-1", "X-2")
    }
    assert case


UNIQUE = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (ROOT / "docs" / "unique.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d", line)
]


@pytest.mark.parametrize("row", UNIQUE, ids=[row[0] for row in UNIQUE])
def test_what_no_other_agent_has_is_where_the_page_says_and_shown_by_a_test(row: list[str]) -> None:
    _, what, met, where, shown, missing = row
    names = re.findall(r"`(holdfast\.[\w.]+)`", where)
    tests = [test.split("::") for test in re.findall(r"`(tests/[\w./]+::\w+)`", shown)]

    assert names
    assert [name for name in names if not is_there(name)] == []
    assert tests
    assert [name for path, name in tests if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")] == []
    assert what
    assert missing
    commands = re.findall(r"`/(\w+)", met)
    assert [name for name in commands if name not in {one.name for one in SLASH_COMMANDS}] == []
    for line in re.findall(r"`holdfast ([a-z][^`]*)`", met):
        parse_arguments(line.split())


def test_there_are_seventeen() -> None:
    assert [row[0] for row in UNIQUE] == [str(number) for number in range(1, 18)]
