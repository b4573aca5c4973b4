"""Says how much of each room the suite has run, and fails where that is too little.

coverage json -o - | python -m scripts.covered

`make coverage` runs the suite first, and what is measured includes the workers of the run and the programs that tests
start. A process that is killed writes nothing down: what runs only there counts as not run. A room has two figures, its
lines and the ways its branches can go, and is as good as the worse of them.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

PACKAGE = "holdfast"
LEAST = {"core": 98.0, "wire": 98.0}
"""What must have been run of a room, in per cent."""
LEAST_OF_ALL = 92.0


@dataclass(frozen=True, slots=True)
class Covered:
    """What there is of a file, or of several, and what of it was run."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def __add__(self, other: "Covered") -> "Covered":
        return Covered(
            self.lines + other.lines,
            self.lines_run + other.lines_run,
            self.branches + other.branches,
            self.branches_run + other.branches_run,
        )

    @property
    def percent(self) -> float:
        """Return the worse of the two figures."""
        return min(_percent(self.lines_run, self.lines), _percent(self.branches_run, self.branches))


def rooms_of(report: str) -> dict[str, Covered]:
    """Return what was run of each room, read from the report of coverage as JSON."""
    rooms: dict[str, Covered] = {}
    for name, file in sorted(json.loads(report)["files"].items()):
        seen = file["summary"]
        one = Covered(seen["num_statements"], seen["covered_lines"], seen["num_branches"], seen["covered_branches"])
        room = room_of(name)
        rooms[room] = rooms.get(room, Covered()) + one
    return dict(sorted(rooms.items()))


def room_of(name: str) -> str:
    """Return the room a file of the package stands in; the package itself where it stands in none."""
    parts = PurePath(name).parts
    inside = parts[parts.index(PACKAGE) + 1 :]
    return inside[0] if len(inside) > 1 else PACKAGE


def table(rooms: Mapping[str, Covered]) -> list[str]:
    """Return the rooms a line each, and all of them together."""
    head = f"{'room':<10} {'lines':>7} {'run':>7} {'branches':>10} {'run':>7}"
    return [head, *(_line(room, one) for room, one in rooms.items()), _line("all", _together(rooms))]


def problems(rooms: Mapping[str, Covered]) -> list[str]:
    """Return what was not run enough, a line each."""
    asked = [(room, rooms.get(room, Covered()), least) for room, least in LEAST.items()]
    asked.append(("all", _together(rooms), LEAST_OF_ALL))
    return [
        f"{name}: {one.percent:.1f} % was run, and {least:.0f} % is asked for"
        for name, one, least in asked
        if one.percent < least
    ]


def _together(rooms: Mapping[str, Covered]) -> Covered:
    return sum(rooms.values(), Covered())


def _line(name: str, one: Covered) -> str:
    lines, branches = _percent(one.lines_run, one.lines), _percent(one.branches_run, one.branches)
    return f"{name:<10} {one.lines:>7,} {lines:>5.1f} % {one.branches:>10,} {branches:>5.1f} %"


def _percent(run: int, everything: int) -> float:
    return 100 * run / everything if everything else 100.0


def main() -> int:
    """Print the table of the report that comes in; return whether something was not run enough."""
    rooms = rooms_of(sys.stdin.read())
    found = problems(rooms)
    print("\n".join([*table(rooms), *found]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
