"""What `make coverage` prints, and when it fails."""

import json

from scripts.covered import Coverage, coverage_by_package, find_problems, render_table


def measured(**files: tuple[int, int, int, int]) -> str:
    """Return a report of coverage: for each file its lines, those that were run, and the same of its branches."""
    names = ("num_statements", "covered_lines", "num_branches", "covered_branches")
    return json.dumps(
        {
            "files": {
                f"src/holdfast/{name.replace('__', '/')}.py": {"summary": dict(zip(names, numbers, strict=True))}
                for name, numbers in files.items()
            }
        }
    )


def test_files_are_added_up_by_package_and_those_of_the_root_count_as_holdfast() -> None:
    report = measured(
        core__planning__plan=(90, 90, 20, 18),
        core__history__facts=(10, 9, 0, 0),
        wire__media=(5, 5, 2, 2),
        govern=(4, 4, 0, 0),
    )

    packages = coverage_by_package(report)

    assert packages == {
        "core": Coverage(lines=100, lines_run=99, branches=20, branches_run=18),
        "holdfast": Coverage(lines=4, lines_run=4),
        "wire": Coverage(lines=5, lines_run=5, branches=2, branches_run=2),
    }
    assert render_table(packages) == [
        "package      lines     run   branches     run",
        "core           100  99.0 %         20  90.0 %",
        "holdfast         4 100.0 %          0 100.0 %",
        "wire             5 100.0 %          2 100.0 %",
        "all            109  99.1 %         22  90.9 %",
    ]


def test_a_package_whose_branches_were_not_run_enough_is_named_whatever_its_lines_say() -> None:
    packages = {
        "core": Coverage(lines=100, lines_run=100, branches=1000, branches_run=979),
        "wire": Coverage(lines=1000, lines_run=980, branches=10, branches_run=10),
        "chat": Coverage(lines=100, lines_run=90, branches=1000, branches_run=1000),
        "stores": Coverage(lines=100, lines_run=97, branches=0, branches_run=0),
    }

    assert find_problems(packages) == [
        "core: 97.9 % was run, and 98 % is asked for",
        "all others: 93.5 % was run, and 94 % is asked for",
    ]
