"""`holdfast lab tune`: a policy's numbers varied, and what each version costs and keeps."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from holdfast.apps.cli.main import main
from holdfast.apps.lab import runner
from holdfast.apps.lab.runner import PolicyResult
from holdfast.apps.lab.tuning import (
    PolicyVersion,
    make_versions,
    measure_tradeoffs,
    parse_variations,
    tradeoff_rows,
    tradeoff_table,
)
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.situation import PROVIDER_PRICES
from holdfast.errors import SettingsError
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from tests.support import InThisProcess

Captured = pytest.CaptureFixture[str]
DEFAULT = PRESETS["default"]
ANTHROPIC = PROVIDER_PRICES["anthropic"]
BUDGET = 5_000


def tuned(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    with patch.object(runner, "WorkerPool", InThisProcess):
        code = main(["lab", "tune", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conversation that comes back to its first file at its end."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    messages: list[JsonMessage] = [user_message("Look at src/first_file.py"), assistant_message("I have.")]
    for number in range(20):
        messages += [user_message(f"Step {number}: " + "the tide turns " * 40), assistant_message("Done.")]
    messages += [
        user_message("And now?"),
        tool_call_message("c", arguments={"path": "src/first_file.py"}),
        tool_result_message("c"),
        assistant_message("Yes."),
    ]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"id": "talk", "messages": messages}) + "\n")
    return path


def entry(version: PolicyVersion, cost: float, far: float, missing: int = 0) -> PolicyResult:
    figures = {"M6.anthropic.vs_threshold": cost, "M1.far": far}
    return PolicyResult("talk", version.name, BUDGET, figures, missing_replays=missing)


def test_versions_are_all_combinations_beside_the_policy_as_it_is() -> None:
    wanted = parse_variations(["compaction.tail_share=0.05,0.1", "compaction.hard_share = 0.7,0.9"], DEFAULT)

    found, left_out = make_versions(DEFAULT, wanted)

    assert [(one.settings, one.is_current) for one in found] == [
        ({"compaction.tail_share": 0.02, "compaction.hard_share": 0.95}, True),
        ({"compaction.tail_share": 0.05, "compaction.hard_share": 0.9}, False),
        ({"compaction.tail_share": 0.1, "compaction.hard_share": 0.9}, False),
    ]
    assert left_out.startswith(
        "2 of 4 combinations are invalid and were skipped: policy.compaction.hard_share: must be at "
    )


@pytest.mark.parametrize("name", ["default", "co-cli", "inkeep", "cowagent"])
def test_a_preset_has_numbers_to_vary_where_nobody_says_which(name: str) -> None:
    wanted = parse_variations([], PRESETS[name])

    assert 1 <= len(wanted) <= 3
    assert len(make_versions(PRESETS[name], wanted)[0]) > 1


def test_a_policy_without_numbers_wants_to_be_told_what_to_vary() -> None:
    with pytest.raises(SettingsError, match="the compaction rule of copilot has no numbers; name a setting"):
        parse_variations([], PRESETS["copilot"])


def test_the_default_is_varied_where_it_compacts_and_in_what_it_keeps() -> None:
    assert parse_variations([], DEFAULT) == {
        "compaction.tail_share": [0.01, 0.02, 0.04],
        "compaction.summary_share": [0.05, 0.1, 0.2],
        "compaction.min_reuse": [15.0, 30.0, 60.0],
    }
    assert parse_variations([], DEFAULT, has_summary=True)["compaction.soft_share"] == [0.6, 0.8, 0.9]


@pytest.mark.parametrize(
    ("vary", "problem"),
    [
        ("compaction.tial_share=1", "--vary: policy.compaction.tial_share: is not a setting; did you mean"),
        (
            "compaction.tail_share",
            "--vary: 'compaction.tail_share' has no values; write them as in compaction.tail_share=0.05,0.1",
        ),
        ("compaction.tail_share=3", "--vary: policy.compaction.tail_share: must lie between 0.001 and 1, not 3"),
        (f"compaction.min_messages={','.join(map(str, range(1, 66)))}", "--vary: 65 combinations are more than 64;"),
    ],
)
def test_what_cannot_be_varied_is_told(vary: str, problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        make_versions(DEFAULT, parse_variations([vary], DEFAULT))

    assert str(refused.value).startswith(problem)


def test_rows_that_none_is_better_than_and_the_policy_as_it_is_are_marked() -> None:
    versions, _ = make_versions(DEFAULT, parse_variations(["compaction.tail_share=0.1,0.15,0.2,0.3"], DEFAULT))
    today, cheap, worse, dear, undone = versions
    entries = [
        entry(today, 0.8, 0.7), entry(cheap, 0.6, 0.5), entry(worse, 0.9, 0.6), entry(dear, 1.0, 0.9),
        entry(undone, 0.1, 1.0, missing=1),
    ]  # fmt: skip

    trades = measure_tradeoffs(versions, entries, ANTHROPIC)

    assert [(one.version, one.is_pareto, one.is_partial) for one in trades] == [
        (cheap, True, False), (today, True, False), (worse, False, False), (dear, True, False), (undone, False, True),
    ]  # fmt: skip
    assert [line[:4] for line in tradeoff_table(trades, ANTHROPIC).rows] == [
        ["* ", "0.1", "0.600", "0.500"], ["*▸", "0.02", "0.800", "0.700"], ["  ", "0.15", "0.900", "0.600"],
        ["* ", "0.2", "1.000", "0.900"], ["  …", "0.3", "", ""],
    ]  # fmt: skip
    assert tradeoff_rows(trades, BUDGET)[-1]["is_partial"]


def test_tuning_prints_what_each_version_costs_and_keeps(talk: Path, capsys: Captured) -> None:
    asked = [str(talk), "--budget", str(BUDGET), "--vary", "compaction.summary_share=0.02,0.3"]

    code, out, _ = tuned(capsys, *asked, "--json")

    rows = json.loads(out)
    assert code == 0
    assert {row["settings"]["compaction.summary_share"]: row["is_today"] for row in rows} == {
        0.02: False,
        0.1: True,
        0.3: False,
    }
    assert all(row["cost"] > 0 and 0 <= row["kept"] <= 1 and row["budget"] == BUDGET for row in rows)
    assert [row["cost"] for row in rows] == sorted(row["cost"] for row in rows)
    assert any(row["is_pareto"] for row in rows)


def test_tuning_wants_one_budget(talk: Path, capsys: Captured) -> None:
    code, out, problems = tuned(capsys, str(talk), "--budget", "5000,6000")

    assert (code, out) == (2, "")
    assert "--budget: '5000,6000' is more than one budget; give the one to tune for" in problems


def test_a_table_marks_the_versions_and_invalid_combinations_are_told(talk: Path, capsys: Captured) -> None:
    asked = [str(talk), "--budget", str(BUDGET), "--vary", "compaction.summary_share=0.02,7"]

    code, out, problems = tuned(capsys, *asked)

    rows = [line.split()[:2] for line in out.splitlines() if line.startswith("*") and "0." in line]
    assert (code, rows) == (0, [["*▸", "0.1"], ["*", "0.02"]])
    assert problems.startswith("holdfast: 1 of 2 combinations are invalid and were skipped: ")
