"""Prints the coverage of each package, and fails if one is too low.

coverage json -o - | python -m scripts.covered

`make coverage` runs the suite first and includes the workers of the run and the programs that tests start. A killed
process writes no report, so what runs only there counts as not covered. The coverage of a package is that of its lines
or of its branches, whichever is lower.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

PACKAGE = "holdfast"
MIN_PERCENT = {"core": 98.0, "wire": 98.0}
"""The lowest coverage of a package, in percent."""
MIN_OTHERS_PERCENT = 94.0
"""The lowest coverage of all other packages together."""
FIRST_EXACT_PYTHON = (3, 12)
"""Python 3.11 does not say which lines a coroutine runs after an error that came out of what it awaited."""
TOO_LOW = "measured with Python 3.11, which leaves out lines after awaited errors: use 3.12 or later for the figures"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The lines and branches of one or more files, and how many of them were run."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def __add__(self, other: "Coverage") -> "Coverage":
        return Coverage(
            self.lines + other.lines,
            self.lines_run + other.lines_run,
            self.branches + other.branches,
            self.branches_run + other.branches_run,
        )

    @property
    def percent(self) -> float:
        """Return the lower of the two figures."""
        return min(_percent(self.lines_run, self.lines), _percent(self.branches_run, self.branches))


def coverage_by_package(report: str) -> dict[str, Coverage]:
    """Return the coverage of each package from the JSON report."""
    packages: dict[str, Coverage] = {}
    for name, file in sorted(json.loads(report)["files"].items()):
        seen = file["summary"]
        one = Coverage(seen["num_statements"], seen["covered_lines"], seen["num_branches"], seen["covered_branches"])
        package = package_of(name)
        packages[package] = packages.get(package, Coverage()) + one
    return dict(sorted(packages.items()))


def package_of(name: str) -> str:
    """Return the top-level package of a file, or `PACKAGE` for a file of the root."""
    parts = PurePath(name).parts
    inside = parts[parts.index(PACKAGE) + 1 :]
    return inside[0] if len(inside) > 1 else PACKAGE


def render_table(packages: Mapping[str, Coverage]) -> list[str]:
    """Return a line for each package, and one for all of them."""
    head = f"{'package':<10} {'lines':>7} {'run':>7} {'branches':>10} {'run':>7}"
    return [head, *(_line(package, one) for package, one in packages.items()), _line("all", _total(packages))]


def find_problems(packages: Mapping[str, Coverage]) -> list[str]:
    """Return the packages with too low coverage, one line each."""
    asked = [(package, packages.get(package, Coverage()), least) for package, least in MIN_PERCENT.items()]
    others = {package: one for package, one in packages.items() if package not in MIN_PERCENT}
    asked.append(("all others", _total(others), MIN_OTHERS_PERCENT))
    return [
        f"{name}: {one.percent:.1f} % was run, and {least:.0f} % is asked for"
        for name, one, least in asked
        if one.percent < least
    ]


def _total(packages: Mapping[str, Coverage]) -> Coverage:
    return sum(packages.values(), Coverage())


def _line(name: str, one: Coverage) -> str:
    lines, branches = _percent(one.lines_run, one.lines), _percent(one.branches_run, one.branches)
    return f"{name:<10} {one.lines:>7,} {lines:>5.1f} % {one.branches:>10,} {branches:>5.1f} %"


def _percent(run: int, everything: int) -> float:
    return 100 * run / everything if everything else 100.0


def main() -> int:
    """Print the table of the report on standard input; return whether a package has too low coverage."""
    packages = coverage_by_package(sys.stdin.read())
    found = find_problems(packages)
    print("\n".join([*render_table(packages), *found, *([] if sys.version_info >= FIRST_EXACT_PYTHON else [TOO_LOW])]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
