"""`holdfast lab run`: from files and sessions to a table, rows for programs, and a report."""

import asyncio
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from holdfast.apps.cli.main import main
from holdfast.apps.lab import runner
from holdfast.apps.lab.policies import find_policy
from holdfast.apps.lab.prices import prices_for
from holdfast.apps.lab.runner import PolicyResult
from holdfast.apps.lab.tables import TABLE_WIDTH, build_table, shorten_names
from holdfast.core.planning.situation import PROVIDER_PRICES, Prices
from holdfast.errors import SettingsError
from holdfast.session.session import Session
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.sessions import generate_session
from tests.support import InThisProcess

Captured = pytest.CaptureFixture[str]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
ASKED = [
    "M1.far", "M1.far_recall", "M4.lost", "M5.hit_share", "M5.breaks_per_100", "M6.anthropic.total",
    "M6.anthropic.vs_threshold", "M6.none.vs_threshold", "M7.growth", "M8.invalid", "M9.over", "M9.over_claude",
    "M10.stall_ms_max", "M11.calls", "M12.cpu_ms_p50", "M13.verbatim", "M14.differences",
]  # fmt: skip


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return written_to(tmp_path / "sessions.jsonl")


def written_to(path: Path) -> Path:
    """Write two sessions and a line that is none to a file."""
    probes = [{"question": "What was first?", "answer": "x", "evidence": ["first"]}]
    messages = [{"role": "user", "content": "The harbour is Bergen.", "x_id": "first"}, *generate_session(64)]
    lines = [{"id": "one", "messages": generate_session(48)}, {"id": "two", "messages": messages, "probes": probes}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\nnot a line\n")
    return path


def ran(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    with patch.object(runner, "WorkerPool", InThisProcess):
        code = main(["lab", "run", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


class Looking(HTMLParser):
    """Finds out what a page is made of, and whether its tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        assert not any(name in {"src", "href", "onload"} for name, _ in attrs), "it needs nothing but itself"
        if tag not in {"meta", "line", "circle", "polyline", "rect", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "figcaption":
            self.titles.append(data)


class WholeRun(NamedTuple):
    """What a run with everything that it can write has told and written."""

    code: int
    out: str
    problems: str
    sessions: Path
    html: Path
    table: Path


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    folder = tmp_path_factory.mktemp("run")
    sessions, html, table = written_to(folder / "sessions.jsonl"), folder / "report.html", folder / "figures.csv"
    arguments = [
        "lab", "run", str(sessions), "--budget", "7000", "--prices", "anthropic,none", "--json", "--html", str(html),
        "--csv", str(table), "--jobs", "2",
    ]  # fmt: skip
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as problems,
    ):
        patch.setenv("HOLDFAST_HOME", str(folder / "home"))
        code = main(arguments)
    return WholeRun(code, out.getvalue(), problems.getvalue(), sessions, html, table)


def test_a_run_tells_people_programs_and_a_browser(whole_run: WholeRun) -> None:
    rows = json.loads(whole_run.out)
    assert f"holdfast: {whole_run.sessions}, line 3: " in whole_run.problems
    assert whole_run.code == 1, "something could not be read"
    assert {(row["session"], row["policy"]) for row in rows if row["policy"] in {"default", "threshold"}} == {
        ("one", "default"), ("two", "default"), ("one", "threshold"), ("two", "threshold"),
    }  # fmt: skip
    (ours,) = [row for row in rows if row["policy"] == "default" and row["session"] == "two"]
    assert [name for name in ASKED if name not in ours] == []
    assert (ours["M4.lost"], ours["M8.invalid"], ours["M9.over"], ours["M14.differences"]) == (0, 0, 0, 0)
    assert (ours["M2"]["questions_recall"], ours["M2.questions_recall"]) == (1.0, 1.0)
    assert ours["M6"]["anthropic"]["vs_threshold"] == ours["M6.anthropic.vs_threshold"]
    assert len(list(csv.DictReader(io.StringIO(whole_run.table.read_text())))) == len(rows)
    looking = Looking()
    looking.feed(whole_run.html.read_text())
    assert looking.found.count("svg") == len(looking.titles) >= 2 * 4
    assert {"table", "polyline", "circle", "rect"} <= {*looking.found}
    assert "script" not in looking.found


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
def test_a_real_browser_draws_the_report_and_complains_of_nothing(whole_run: WholeRun, tmp_path: Path) -> None:
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    looking = [
        str(CHROMIUM),
        *quiet,
        f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr",
        "--dump-dom",
    ]

    command = [*looking, whole_run.html.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    assert shown.stdout.count("<svg") == whole_run.html.read_text().count("<svg") > 0
    assert "</html>" in shown.stdout
    assert "CONSOLE" not in shown.stderr


def test_the_table_explains_its_columns(sessions: Path, capsys: Captured) -> None:
    code, out, _ = ran(capsys, str(sessions), "--budget", "7000", "--concat", "--baselines", "threshold")

    assert code == 1
    heading, *lines = out.splitlines()
    titles = heading.split()
    assert titles[:6] == ["SESSION", "BUDGET", "POLICY", "×THRESHOLD", "FAR", "+RECALL"]
    assert [line.split()[3:5] for line in lines[:2]] == [["threshold", "1.00"], ["▸", "default"]]
    explained = [line.split()[0] for line in lines[lines.index("") + 1 :]]
    assert explained[: len(titles) - 3] == [title for title in titles[3:] if title != "MS"] + ["▸"]
    assert max(map(len, out.splitlines())) <= TABLE_WIDTH


def test_a_session_of_the_store_is_played_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:///{tmp_path}/chats.db")

    async def talk() -> None:
        async with Session.open("report-1", store=f"sqlite:///{tmp_path}/chats.db") as session:
            for number in range(20):
                await session.record([user_message(f"question {number}"), assistant_message(f"answer {number}")])

    asyncio.run(talk())

    code, out, _ = ran(capsys, "report", "--budget", "9000", "--baselines", "", "--json")

    (row,) = json.loads(out)
    assert (code, row["session"], row["turns"], row["M8.invalid"]) == (0, "report-1", 20, 0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--policy", "defalt"], "--policy: 'defalt' is not known; did you mean 'default'? presets: default, co-cli,"),
        (["--baselines", "foo"], "--baselines: 'foo' is not known; did you mean 'floor'? presets: "),
        (
            ["--policy", "mine.toml"],
            "--policy: mine.toml: policy.compaction.sofd_share: is not a setting; did you mean",
        ),
        (["--policy", "default+what"], "--policy: 'what' is not known; write default+summary"),
        (["--policy", "my.toml"], "--policy: my.toml cannot be read: No such file"),
        (["--budget", "many"], "--budget: 'many' is not a list of budgets above 3,000 tokens"),
        (["--budget", "9" * 5_000], "is not a list of budgets above 3,000 tokens"),
        (["--prices", "acme"], "--prices: 'acme' is not known; choose from anthropic"),
        (["--prices", "prices.toml"], "--prices: prices.toml: [mine] needs output"),
        (["--prices", "empty.toml"], "--prices: empty.toml has no prices; write a table for each list: "),
    ],
)
def test_a_mistake_is_told_in_a_line(
    sessions: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, arguments: list[str], problem: str
) -> None:
    monkeypatch.chdir(sessions.parent)
    Path("mine.toml").write_text("[compaction]\nsofd_share = 0.5\n")
    Path("prices.toml").write_text("[mine]\nread = 0.1\nwrite = 1.0\n")
    Path("empty.toml").touch()

    code, out, problems = ran(capsys, str(sessions), *arguments)

    assert (code, out) == (2, "")
    assert problem in problems


def test_a_file_that_is_no_conversation_is_named_and_the_others_are_played(
    sessions: Path, tmp_path: Path, capsys: Captured
) -> None:
    odd = tmp_path / "odd.bin"
    odd.write_bytes(b"\x00\x01\xff nothing of use")

    code, out, problems = ran(
        capsys, str(odd), "/nowhere.jsonl", str(sessions), "--budget", "9000", "--baselines", "", "--json"
    )

    assert (code, len(json.loads(out))) == (1, 2)
    assert str(odd) in problems
    assert "/nowhere.jsonl" in problems


def test_a_figure_that_has_to_be_nothing_and_is_not_is_told(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "torn.jsonl"
    messages = [
        user_message("go"),
        tool_call_message("a"),
        user_message("still there?"),
        assistant_message("yes"),
        user_message("and now?"),
        assistant_message("done"),
    ]
    path.write_text(json.dumps({"id": "torn", "messages": messages}) + "\n")

    code, _, problems = ran(capsys, str(path), "--budget", "9000", "--policy", "full", "--baselines", "")

    assert code == 1
    assert "holdfast: torn, full at 9,000: M8.invalid is 2 and must be 0" in problems


def test_prices_have_names_models_have_prices_and_so_do_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[mine]\nread = 0.2\nwrite = 1\noutput = 3\nttl_seconds = 60\n")

    found = prices_for(f"openai, anthropic,claude, {path}, gpt-4o-mini")

    assert found[:3] == [
        PROVIDER_PRICES["gpt-5"],
        PROVIDER_PRICES["anthropic"],
        Prices(name="mine", read=0.2, write=1.0, output=3.0, ttl_seconds=60.0),
    ]
    assert [one.name for one in found[3:]] == ["gpt-4o-mini"]
    with pytest.raises(SettingsError, match="names no price list"):
        prices_for(" , ")


def test_a_policy_is_a_preset_or_a_file_with_or_without_a_summarizer(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "copilot"\n')

    assert (find_policy("default")[0].name, find_policy("default")[1]) == ("default", False)
    assert (find_policy(f"{path}+summary")[0].compaction, find_policy(f"{path}+summary")[1]) == (
        find_policy("copilot")[0].compaction,
        True,
    )


def test_rows_are_in_the_order_of_the_recordings_after_those_of_all_and_summaries_only_where_asked_for() -> None:
    figures = {"M11.coverage": 0.5, "M5.hit_share": 0.9, "M8.invalid": 1.0}
    entries = [
        PolicyResult(session, policy, 9_000, dict(figures))
        for session in ("b", "a")
        for policy in ("threshold", "default", "default+summary")
    ]

    found = build_table(entries)

    assert found.heading == ["SESSION", "BUDGET", "POLICY", "HIT", "INVALID", "COVERED"]
    assert [(line[0], line[2], *line[4:]) for line in found.rows] == [
        ("all", "  threshold", "2", ""), ("all", "▸ default", "2", ""), ("all", "▸ default+summary", "2", "0.500"),
        ("b", "  threshold", "1", ""), ("b", "▸ default", "1", ""), ("b", "▸ default+summary", "1", "0.500"),
        ("a", "  threshold", "1", ""), ("a", "▸ default", "1", ""), ("a", "▸ default+summary", "1", "0.500"),
    ]  # fmt: skip


def test_cost_is_told_in_tokens_where_there_is_no_threshold_compaction_beside_it() -> None:
    found = build_table([PolicyResult("a", "default", 9_000, {"M6.none.total": 12_345.6})])

    assert (found.heading[3], found.rows[0][3]) == ("COST none", "12,346")
    assert found.legend[0] == "COST none  cost in plain input tokens, at the prices of none (M6)"


def test_names_are_shortened_and_stay_apart() -> None:
    apart = ["short", "airline-support-1", "coding-session-2"]
    near = ["short", "airline-support-1", "airline-support-2"]
    nearer = ["short", "airline-support-1-again", "airline-support-2-again"]

    assert [*shorten_names(apart, 10).values()] == ["short", "airline-s…", "coding-se…"]
    assert [*shorten_names(near, 10).values()] == ["short", "airl…ort-1", "airl…ort-2"]
    assert [*shorten_names(nearer, 10).values()] == ["short", "airline-…2", "airline-…3"]


def test_a_report_that_cannot_be_written_does_not_cost_the_table(sessions: Path, capsys: Captured) -> None:
    file = sessions.parent / "nowhere" / "report.csv"
    code, table, problems = ran(
        capsys, str(sessions), "--budget", "16000", "--baselines", "full", "--policy", "sliding", "--csv", str(file)
    )

    assert code == 2
    assert table.startswith("SESSION")
    assert problems.endswith(f"holdfast: {file}: No such file or directory; check the path\n")


def test_figures_go_to_standard_output_in_place_of_the_table(sessions: Path, capsys: Captured) -> None:
    _, output, problems = ran(
        capsys, str(sessions), "--budget", "16000", "--baselines", "full", "--policy", "sliding", "--csv", "-"
    )

    assert [row["policy"] for row in csv.DictReader(io.StringIO(output))] == ["full", "sliding"] * 2
    assert ("wrote" in problems, Path("-").exists()) == (False, False)


@pytest.mark.parametrize("option", [["--limit", "-5"], ["--limit", "0"], ["--jobs", "0"], ["--jobs", "9" * 30]])
def test_a_number_of_sessions_or_replays_is_one_or_more(option: list[str], sessions: Path, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lab", "run", str(sessions), *option])

    assert ended.value.code == 2
    assert f"argument {option[0]}: must be a whole number, 1 to 999,999,999, not" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "-1", "inf", "1e9", "soon"])
def test_a_summary_takes_a_number_of_seconds(seconds: str, sessions: Path, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lab", "run", str(sessions), f"--seconds={seconds}"])

    assert ended.value.code == 2
    assert f"argument --seconds: must be a number, 0 to 86,400, not {seconds!r}" in capsys.readouterr().err


def test_system_text_has_no_fewer_than_no_tokens(sessions: Path, capsys: Captured) -> None:
    told = ran(capsys, str(sessions), "--static", "-1")

    assert told == (2, "", "holdfast: --static: must be a whole number, 0 or more, not -1\n")


@contextmanager
def begun(tmp_path: Path, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """Start a run that would take long, and go on when its processes are there; at the end none is."""
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"id": "long", "messages": generate_session(3_000)}) + "\n")
    env = {**os.environ, "HOLDFAST_HOME": str(tmp_path)}
    command = [HOLDFAST, "lab", "run", str(path), "--budget", "16000,50000", "--policy", "default", *arguments]
    # A suite that a shell has started in the background ignores interrupts, and so would what it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True, start_new_session=True
    )
    signal.signal(signal.SIGINT, before)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and not children.read_text().split()[1:]:
        pass  # the first is the one that watches over what they share; the second plays
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs to see the processes of this machine")
def test_an_interrupt_keeps_what_is_done_and_says_how_much_that_is(tmp_path: Path) -> None:
    with begun(tmp_path, "--jobs", "1", "--json") as process:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the processes that play get it too
        out, problems = process.communicate(timeout=60)

    assert process.returncode == 130
    assert problems.splitlines()[-1].startswith("holdfast: interrupted after ")
    assert " of 22 replays" in problems.splitlines()[-1]
    assert "Traceback" not in problems
    assert all(row["is_partial"] for row in json.loads(out))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs to see the processes of this machine")
def test_a_run_that_is_terminated_leaves_nothing_behind(tmp_path: Path) -> None:
    with begun(tmp_path, "--jobs", "2") as process:
        process.send_signal(signal.SIGTERM)
        _, problems = process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGTERM
    assert "interrupted after " in problems
    assert "semaphore" not in problems


def test_baselines_and_every_list_of_prices_have_their_figures(tmp_path: Path, capsys: Captured) -> None:
    messages = [user_message("Look at src/first.py")]
    for number in range(6):
        result = tool_result_message(f"c{number}", f"src/found_{number}.py " * 120)
        messages += [tool_call_message(f"c{number}"), result, assistant_message("Seen."), user_message("Go on.")]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"id": "talk", "messages": [*messages, assistant_message("Done.")]}) + "\n")

    code, out, _ = ran(
        capsys,
        str(path),
        "--budget",
        "6000",
        "--baselines",
        "head-tail,masking",
        "--prices",
        "anthropic,none",
        "--json",
    )

    rows = {row["policy"]: row for row in json.loads(out)}
    assert (code, list(rows)) == (0, ["head-tail", "masking", "default"])
    assert all(0 < row["M6.anthropic.total"] < row["M6.none.total"] for row in rows.values())
    assert all(row["M9.over"] == 0 for name, row in rows.items() if name != "masking")


def test_where_nothing_can_be_replayed_the_reasons_are_told(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")

    code, out, problems = ran(capsys, str(tmp_path / "empty.jsonl"), "--budget", "6000")

    assert (code, out) == (2, "")
    assert problems.splitlines()[-1] == (
        "holdfast: SOURCE: there is nothing to replay; name a file of conversations or a session"
    )
