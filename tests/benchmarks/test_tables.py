"""What the benchmarks write: Markdown in which nothing that failed looks like a figure."""

from benchmarks.beside import render_document
from benchmarks.peers import Peer
from benchmarks.prepare import render_markdown
from benchmarks.tables import failed_cells, markdown_table, render_ratio, render_share


def test_a_table_has_a_rule_and_figures_to_the_right() -> None:
    written = markdown_table(["", "bytes"], [["SQLite", "12"]])

    assert written == "|  | bytes |\n| --- | --: |\n| SQLite | 12 |"


def test_a_peer_that_failed_is_a_row_of_the_same_width_that_says_why() -> None:
    row = {"name": "litellm", "failed": "cannot be installed: no match for certifi | mirror"}

    cells = failed_cells(row, 4)

    assert cells == ["litellm", "**failed:** cannot be installed: no match for certifi \\| mirror", "", ""]


def test_ratios_have_as_many_digits_as_mean_something() -> None:
    written = [render_ratio(value, 2.0) for value in (2.0, 5.0, 4_000.0, 0.1)]

    assert written == ["×1.0", "×2.5", "×2,000", "×0.05"]


def test_without_a_baseline_there_is_no_ratio_and_without_a_whole_no_share() -> None:
    assert (render_ratio(3.0, None), render_share(1, 0), render_share(1, 3)) == ("–", "–", "33%")


def test_a_size_that_a_peer_did_not_finish_leaves_its_other_sizes() -> None:
    figures = {"valid": True, "fits": False, "prompt": True, "median_first": 0.004, "median_next": 0.002}
    rows = [
        {"name": "Holdfast, a list", "case": "100 prompt last", **figures},
        {"name": "slow", "case": "100 prompt last", "failed": "TimeoutError: not finished"},
        {"name": "slow", "case": "100 mid-loop", **figures},
        {"name": "absent", "failed": "cannot be installed"},
    ]

    lines = render_markdown(rows, [100]).splitlines()[2:]

    assert lines == [
        "| Holdfast, a list | 4.0 ms (×1.0) | 2.0 ms (×1.0) | yes | **no** | yes | – | – | – |",
        "| slow | TimeoutError: not finished |  | – | – | – | yes | **no** | yes |",
        "| absent | **failed:** cannot be installed |  |  |  |  |  |  |  |",
    ]


def test_the_report_names_versions_machine_and_only_the_parts_that_were_measured() -> None:
    figures = {"imports": [{"name": "holdfast", "seconds": 0.2, "bare": 0.02, "modules": 7}]}

    written = render_document(figures, [Peer("agno", "agno_agents.py", ("agno==3.1.10",))], "two cores")

    headings = [line for line in written.splitlines() if line.startswith("#")]
    assert headings == ["# Comparison with peers", "## Loading"]
    assert "two cores.\n" in written
    assert "- agno==3.1.10\n" in written
    assert written.endswith("| holdfast | 200 ms | ×1.0 | ×10.0 | 7 |\n")
