"""Lists the tests that prove each required behavior of the four systems that the presets follow.

python -m scripts.checklist

tests/checklist.toml has the behaviors, one line for each id. A test that proves one carries its id as a mark, so the
command only collects the suite and runs no test. It writes the tables of docs/maintainers/checklist.md from both and
leaves the rest of the page. It fails for an id that no test carries, a mark that is no id, and a documented id whose
page does not have the named heading.
"""

import contextlib
import io
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "tests" / "checklist.toml"
TARGET = ROOT / "docs" / "maintainers" / "checklist.md"
BLOCK = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)

Proofs = Mapping[str, list[str]]
"""The tests that prove each id, as `file::name` from the folder of the tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """The required behaviors, and those that no test can prove."""

    systems: Mapping[str, str]
    """The name of the system for each letter."""
    requirements: Mapping[str, str]
    """The behavior of each id, in one line."""
    documented: Mapping[str, Mapping[str, str]]
    """The page with its heading and the reason, for each id that no test can prove."""


class Collector:
    """Stores what pytest has collected."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Store the items before any is deselected."""
        self.items = list(items)


def read_checklist() -> Checklist:
    """Return the required behaviors from the file."""
    return Checklist(**tomllib.loads(SOURCE.read_text(encoding="utf-8")))


def proofs_of(items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """Return the tests that carry each id; the cases of a test count as one."""
    found: dict[str, dict[str, None]] = {}
    for item in items:
        name = getattr(item, "originalname", None) or item.name
        test = f"{item.path.relative_to(ROOT / 'tests').as_posix()}::{name}"
        for mark in item.iter_markers("seed"):
            for one in mark.args:
                found.setdefault(str(one), {})[test] = None
    return {one: sorted(tests) for one, tests in found.items()}


def find_problems(listed: Checklist, proofs: Proofs) -> list[str]:
    """Return the problems, one line each."""
    unproved = [one for one in listed.requirements if one not in proofs and one not in listed.documented]
    unknown = [one for one in proofs if one not in listed.requirements]
    unlisted = [one for one in listed.documented if one not in listed.requirements]
    unwritten = [(one, said["page"]) for one, said in listed.documented.items() if not heading_exists(said["page"])]
    return [
        *(f"{one}: no test carries it: {listed.requirements[one]}" for one in unproved),
        *(f"{one}: is no id, but {proofs[one][0]} carries it" for one in unknown),
        *(f"{one}: is documented, but is no id" for one in unlisted),
        *(f"{one}: {page} does not exist" for one, page in unwritten),
    ]


def heading_exists(place: str) -> bool:
    """Return whether a page has the named heading."""
    path, _, anchor = place.partition("#")
    page = ROOT / path
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE) if page.exists() else []
    return anchor in {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def _table_cell(text: str) -> str:
    return text.replace("|", r"\|")


def render_tables(listed: Checklist, proofs: Proofs) -> str:
    """Return the tables of the page, one for each system."""
    shown = sum(one in proofs for one in listed.requirements)
    said = sum(one not in proofs for one in listed.documented)
    lines = [f"\n{len(listed.requirements)} behaviors: {shown} proven by tests, {said} documented.\n"]
    for letter, system in listed.systems.items():
        lines.append(f"\n## {system}\n\n| id | behavior | proven by |\n|---|---|---|\n")
        lines += [
            f"| {one} | {_table_cell(text)} | {'<br>'.join(evidence_links(one, listed, proofs))} |\n"
            for one, text in listed.requirements.items()
            if one.startswith(f"{letter}-")
        ]
    return "".join([*lines, "\n"])


def evidence_links(one: str, listed: Checklist, proofs: Proofs) -> Iterator[str]:
    """Yield the links to the proofs of an id."""
    if said := listed.documented.get(one):
        page = os.path.relpath(said["page"], TARGET.parent.relative_to(ROOT))
        yield f"*documented:* [{said['page']}]({page}); {said['reason']}"
    for test in proofs.get(one, ()):
        path, _, name = test.partition("::")
        yield f"[`{name}`](../../tests/{path})"


def collect_proofs() -> dict[str, list[str]]:
    """Return the proofs of the whole suite, collected in this process."""
    collector, output = Collector(), io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-qq", "-p", "no:xdist", str(ROOT / "tests")], plugins=[collector])
    if code != pytest.ExitCode.OK:
        sys.exit(f"the suite cannot be collected:\n{output.getvalue()}")
    return proofs_of(collector.items)


def main() -> None:
    """Print every id with its tests, write the page, and fail if an id is not proved."""
    listed, proofs = read_checklist(), collect_proofs()
    for one, text in listed.requirements.items():
        print(f"{one}\t{text}".expandtabs(8))
        for line in (*(said["page"] for said in [listed.documented.get(one)] if said), *proofs.get(one, ())):
            print(f"\t{line}".expandtabs(8))
    page = TARGET.read_text(encoding="utf-8")
    TARGET.write_text(BLOCK.sub(lambda _: render_tables(listed, proofs), page), encoding="utf-8")
    if found := find_problems(listed, proofs):
        sys.exit("\n".join(found))
    print(
        f"\n{len(listed.requirements)} ids: {len(proofs)} proven by tests, "
        f"{len(listed.requirements) - len(proofs)} documented"
    )


if __name__ == "__main__":
    main()
