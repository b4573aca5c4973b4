"""The commands about settings, run as people run them."""

import json
import tomllib
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.apps.cli.main import main
from holdfast.apps.settings.schema import SETTING_DECLARATIONS
from tests.cli.conftest import run

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder and a project to stand in."""
    (tmp_path / "project" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def rows(out: str) -> dict[str, list[str]]:
    return {
        line.split("  ")[0]: [cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()
    }


def test_every_setting_is_shown_with_its_value_and_source(
    home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_COLOUR", "never")
    home.mkdir()
    (home / "holdfast.toml").write_text("preset = 'cowagent'\n\nmax_context_turns = 30\n")

    code, out, problems = run(capsys, "config")

    table = rows(out)
    assert (code, problems) == (0, "")
    assert [*table] == ["SETTING", *SETTING_DECLARATIONS]
    assert table["max_context_turns"] == ["max_context_turns", "30", f"{home}/holdfast.toml:3"]
    assert table["max_steps"] == ["max_steps", "15", "preset cowagent"]
    assert table["colour"] == ["colour", "never", "$HOLDFAST_COLOUR"]
    assert table["compression_threshold"] == ["compression_threshold", "–", "no effect with preset cowagent"]


def test_programs_get_every_setting_as_json(capsys: Captured) -> None:
    code, out, _ = run(capsys, "config", "--json")

    listed = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert [*listed] == [*SETTING_DECLARATIONS]
    assert listed["max_steps"] == {
        "name": "max_steps",
        "value": 50,
        "text": "50",
        "source": {"kind": "preset", "name": "default", "line": None, "text": "preset default"},
        "help": "The most steps of an agent in a turn; 0 means no limit",
        "note": "",
        "also": ["agent_max_steps"],
        "variables": ["HOLDFAST_MAX_STEPS"],
    }
    assert (listed["tools"]["value"], listed["system"]["value"], listed["mcp"]["value"]) == (
        ["read", "edit", "run", "plan"],
        None,
        {},
    )


def test_one_setting_is_explained(home: Path, capsys: Captured) -> None:
    home.mkdir()
    (home / "holdfast.toml").write_text("[mcp.web]\nurl = 'https://x'\nheaders.Authorization = 'Bearer abcdefgh1234'\n")

    steps = run(capsys, "config", "agent_max_steps")
    servers = run(capsys, "config", "mcp")

    assert steps[:2] == (
        0,
        "max_steps = 50\n  from preset default\n  The most steps of an agent in a turn; 0 means no limit\n"
        "  expects a whole number from 1 to 1,000,000, or 0 for none\n"
        "  other names: agent_max_steps, $HOLDFAST_MAX_STEPS\n",
    )
    assert f"  web: https://x  ({home}/holdfast.toml:1)\n" in servers[1]
    assert "abcdefgh1234" not in "".join(servers[1:])
    assert json.loads(run(capsys, "config", "max_steps", "--json")[1])["value"] == 50


def test_no_key_in_a_list_or_a_table_is_shown(home: Path, capsys: Captured) -> None:
    home.mkdir()
    key = "sk-proj-abcdefghijklmnop1234567890"
    (home / "holdfast.toml").write_text(
        f"allow = ['curl -H Authorization:Bearer:{key}', 'ls']\n[agents.helper]\ndescription = 'sends {key}'\n"
    )

    listed, agents = (json.loads(run(capsys, "config", name, "--json")[1]) for name in ("allow", "agents"))
    shown = run(capsys, "config", "agents")[1].splitlines()[2]

    assert listed["value"] == ["curl -H Authorization:Bearer:sk-[redacted]", "ls"]
    described = "sends sk-[redacted]; tools read; sees everything; the preset says what the main agent sees of it"
    assert agents["value"] == {"helper": described}
    assert shown == f"  helper: {described}  ({home}/holdfast.toml:2)"


def test_the_password_in_the_address_of_a_model_is_not_listed(capsys: Captured) -> None:
    address = "http://me:marmalade7@127.0.0.1:9/v1#own"

    code, out, _ = run(capsys, "models", "own", "--model", address)
    listed = json.loads(run(capsys, "models", "own", "--model", address, "--json")[1])

    assert (code, [*rows(out)]) == (0, ["MODEL", "http://me:[redacted]@127.0.0.1:9/v1#own"])
    assert [one["name"] for one in listed] == ["http://me:[redacted]@127.0.0.1:9/v1#own"]


def test_a_setting_is_kept_and_forgotten(home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TRUST", str(Path.cwd()))
    assert run(capsys, "config", "max_steps", "30") == (0, f"max_steps = 30, saved in {home}/holdfast.toml\n", "")
    assert run(capsys, "config", "max_steps", "40", "--project")[0] == 0
    assert tomllib.loads((home / "holdfast.toml").read_text()) == {"max_steps": 30}
    assert tomllib.loads(Path("holdfast.toml").read_text()) == {"max_steps": 40}

    code, out, problems = run(capsys, "config", "max_steps", "50", "--user")
    assert (code, out) == (0, f"max_steps = 40, saved in {home}/holdfast.toml\n")
    assert problems.endswith("holdfast.toml:1 overrides this file, so max_steps stays 40\n")
    run(capsys, "config", "max_steps", "--unset", "--project")
    assert run(capsys, "config", "max_steps", "--unset")[1] == f"max_steps = 50, removed from {home}/holdfast.toml\n"


@pytest.mark.parametrize("before", [None, "# mine\npreset = 'cowagent'\n"])
def test_a_setting_that_the_file_does_not_have_is_not_said_to_be_removed(
    before: str | None, home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "holdfast.toml"
    monkeypatch.setenv("HOLDFAST_MAX_STEPS", "9")
    if before is not None:
        home.mkdir()
        file.write_text(before)

    done = run(capsys, "config", "max_steps", "--unset")

    assert done == (0, f"max_steps = 9, not set in {file}\n", "")
    assert (file.read_text() if file.exists() else None) == before


def test_a_setting_kept_in_an_untrusted_project_is_said_to_be_left_out_and_why(home: Path, capsys: Captured) -> None:
    code, out, problems = run(capsys, "config", "tools", "+run", "--project")

    project = Path.cwd()
    assert not home.exists()
    assert (code, out) == (0, f"tools = read, edit, run, plan, saved in {project}/holdfast.toml\n")
    assert problems == (
        f"holdfast: {project}/holdfast.toml:1: tools is ignored, because an untrusted project may not set it; "
        f"to trust this project: holdfast config trust +{project} --user\n"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["config", "max_stepz"], "max_stepz: is not a setting; did you mean 'max_steps'?"),
        (["config", "max_steps", "many"], "max_steps: must be a whole number"),
        (["config", "--preset", "x"], "ignored: --preset: 'x' is not known"),
        (["models", "--preset", "x"], "--preset: 'x' is not known; choose one of: default, co-cli"),
        (["models", "no-such-model"], "models: no model name contains 'no-such-model'"),
        (["config", "--unset"], "--unset: needs the name of a setting: holdfast config KEY --unset"),
        (["config", "max_steps", "9", "--unset"], "--unset: takes no value: holdfast config max_steps --unset"),
    ],
)
def test_what_goes_wrong_is_one_line(arguments: list[str], problem: str, capsys: Captured) -> None:
    code, _, problems = run(capsys, *arguments)

    assert code in {1, 2}
    assert any(line.startswith(f"holdfast: {problem}") for line in problems.splitlines())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["background_compaction_threshold", "0.99"],
            "background_compaction_threshold: does not go with buffer_exhaustion_threshold: "
            "must be at least 0.99 (soft_share), not 0.95",
        ),
        (
            ["buffer_exhaustion_threshold", "0.5", "--project"],
            "buffer_exhaustion_threshold: must be at least 0.8 (soft_share), not 0.5",
        ),
        (
            ["policy", "mine.toml"],
            "policy: {project}/mine.toml:1: policy.max_steps: must be a whole number from 1 to 1,000,000, not 0",
        ),
    ],
)
def test_a_value_that_does_not_go_with_the_others_is_not_saved(
    home: Path, capsys: Captured, arguments: list[str], problem: str
) -> None:
    Path("mine.toml").write_text("max_steps = 0\n")
    assert run(capsys, "config", "trust", "+.")[0] == 0
    before = (home / "holdfast.toml").read_text()

    assert run(capsys, "config", *arguments) == (
        2,
        "",
        f"holdfast: {problem.format(project=Path.cwd())}\n",
    )

    assert ((home / "holdfast.toml").read_text(), Path("holdfast.toml").exists()) == (before, False)
    assert run(capsys, "sessions")[0] == 0


def test_a_value_goes_with_another_of_the_same_file(home: Path, capsys: Captured) -> None:
    codes = [
        run(capsys, "config", *said.split())[0]
        for said in ("buffer_exhaustion_threshold 0.99", "background_compaction_threshold 0.98")
    ]

    assert (codes, tomllib.loads((home / "holdfast.toml").read_text())) == (
        [0, 0],
        {"buffer_exhaustion_threshold": 0.99, "background_compaction_threshold": 0.98},
    )


def test_a_file_with_a_typo_is_shown_around_and_named(home: Path, capsys: Captured) -> None:
    home.mkdir()
    (home / "holdfast.toml").write_text("modle = 'x'\nmax_steps = 3\n")

    code, out, problems = run(capsys, "config")

    assert code == 1
    assert rows(out)["max_steps"][1] == "3"
    assert problems == f"holdfast: ignored: {home}/holdfast.toml:1: modle: is not a setting; did you mean 'model'?\n"
    assert run(capsys, "sessions") == (
        2,
        "",
        f"holdfast: {home}/holdfast.toml:1: modle: is not a setting; did you mean 'model'?\n",
    )


def test_the_store_of_other_commands_is_a_setting_too(home: Path, capsys: Captured) -> None:
    home.mkdir()
    (home / "holdfast.toml").write_text("store = 'sqlite:///gone.db'")

    assert run(capsys, "sessions") == (
        2,
        "",
        f"holdfast: {home}/gone.db: there is no such file; check {home}/holdfast.toml:1\n",
    )
    assert run(capsys, "sessions", "--store", "memory://") == (0, "", "holdfast: no sessions\n")


def test_the_lab_needs_no_store_to_replay_a_file(
    home: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:///{home}/gone.db")
    empty = tmp_path / "empty.jsonl"
    empty.touch()

    assert run(capsys, "lab", "run", str(empty)) == (
        2,
        "",
        f"holdfast: {empty}: it is empty\n"
        "holdfast: SOURCE: there is nothing to replay; name a file of conversations or a session\n",
    )
    assert run(capsys, "lab", "run", str(empty), "some-session") == (
        2,
        "",
        f"holdfast: {home}/gone.db: there is no such file; check $HOLDFAST_STORE\n",
    )


@pytest.mark.seed("B-13")
def test_models_are_listed_with_their_lines(capsys: Captured) -> None:
    code, out, _ = run(capsys, "models", "gpt-4o-mini", "--preset", "inkeep")
    listed = json.loads(run(capsys, "models", "embedded", "--preset", "copilot", "--json")[1])

    table = rows(out)
    assert code == 0
    assert table["MODEL"] == ["MODEL", "WINDOW", "OUTPUT", "COMPACTED AT", "COMPACTED IN A RUN AT"]
    assert table["gpt-4o-mini"] == ["gpt-4o-mini", "128,000", "16,384", "55,808", "92,641"]
    assert [(one["name"], one["max_input_tokens"]) for one in listed] == [("embedded", 8_192)]
    assert listed[0]["lines"] == [
        {"what": "summary starts", "at": 4_177, "unit": "tokens"},
        {"what": "request waits", "at": 4_960, "unit": "tokens"},
        {"what": "truncated", "at": 5_222, "unit": "tokens"},
    ]


def test_every_model_that_is_known_is_listed(home: Path, capsys: Captured) -> None:
    home.mkdir()
    (home / "holdfast.toml").write_text("[models.mine]\nwindow = 1000\n")

    code, out, _ = run(capsys, "models")

    assert (code, len(out.splitlines()) > 2_800) == (0, True)
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["embedded", "mine"]
    for preset in ("co-cli", "inkeep", "copilot", "cowagent"):
        code, out, _ = run(capsys, "models", "mine", "--preset", preset)
        assert (code, [line.split()[0] for line in out.splitlines()[1:]][:1]) == (0, ["mine"])


def test_holdfast_alone_says_what_it_is_and_what_to_try(home: Path, capsys: Captured) -> None:
    code, out, problems = run(capsys)

    assert (code, problems) == (0, "")
    assert out.startswith("Holdfast: long conversations that fit the context window and lose nothing.\n")
    assert f"Sessions are stored in sqlite:///{home}/chats.db.\n" in out
    assert sum(line.startswith("  holdfast ") for line in out.splitlines()) == 3
    assert not home.exists()


def test_an_agent_is_shown_as_a_line_of_words(home: Path, capsys: Captured) -> None:
    home.mkdir()
    (home / "holdfast.toml").write_text("[agents.scout]\ndescription = 'looks around'\n")

    code, out, _ = run(capsys, "config", "agents")

    told = "looks around; tools read; sees everything; the preset says what the main agent sees of it"
    assert (code, out.splitlines()[2]) == (0, f"  scout: {told}  ({home}/holdfast.toml:1)")


def test_the_version_is_said(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {__version__}\n"


def test_the_usage_of_sessions_says_that_nothing_more_need_be_said(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["sessions", "--help"])

    assert "[rm | prune]" in capsys.readouterr().out.replace("\n", " ")
