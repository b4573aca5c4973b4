"""A program that is forked from the tests' server does what a fresh one does."""

import json
import os
import signal
from pathlib import Path

import pytest

from holdfast.blocking import Session
from tests import programs
from tests.programs import open_terminal, run_program


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["config", "--json"], {}),
        (["config", "set", "preset", "nope"], {}),
        (["sessions", "--wröng"], {}),
        (["sessions", "--wröng"], {"PYTHONIOENCODING": "ascii:strict"}),
        ([], {}),
    ],
    ids=[
        "reads the environment and the folder",
        "fails",
        "exits in the parser",
        "is told an encoding",
        "has no arguments",
    ],
)
def test_a_forked_program_writes_and_returns_what_a_fresh_one_does(
    tmp_path: Path, arguments: list[str], more: dict[str, str]
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "holdfast.toml").write_text('preset = "copilot"\n')
    env = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "HOLDFAST_BUDGET": "12345", **more}

    forked, fresh = (run_program(*arguments, env=env, folder=tmp_path, is_fresh=is_fresh) for is_fresh in (False, True))

    assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


@pytest.mark.parametrize("locale", [{"PYTHONUTF8": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_a_session_is_named_in_any_language_in_any_locale(tmp_path: Path, locale: dict[str, str]) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    env = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "HOLDFAST_STORE": store, **locale}
    with Session.open("réunion", store=store) as session:
        session.record([{"role": "user", "content": "bonjour"}])

    done = [
        run_program(*arguments, env=env, folder=tmp_path, is_fresh=True)
        for arguments in (
            ("export", "réu", "-o", "log.jsonl"),
            ("import", "log.jsonl", "--as", "réunion d'été"),
            ("sessions", "--prefix", "réu", "--json"),
        )
    ]

    assert [one.returncode for one in done] == [0, 0, 0], done
    assert sorted(one["id"] for one in json.loads(done[-1].stdout)) == ["réunion", "réunion d'été"]


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_program_has_a_terminal_of_its_own_and_is_ended_by_a_signal(tmp_path: Path, *, is_fresh: bool) -> None:
    env = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "TERM": "xterm-256color"}
    model = "http://127.0.0.1:9/v1#nobody"
    program = open_terminal("chat", "--model", model, env=env, folder=tmp_path, rows=24, columns=80, is_fresh=is_fresh)
    program.expect("/help lists the commands")

    program.kill(signal.SIGKILL)
    program.wait()
    program.close()

    assert (program.exitstatus, program.signalstatus) == (None, signal.SIGKILL)


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_program_that_does_not_end_holds_no_test_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_fresh: bool
) -> None:
    monkeypatch.setattr(programs, "TIMEOUT_SECONDS", 1)
    env = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}

    with pytest.raises(TimeoutError, match="the program still ran after"):
        run_program("gateway", "--port=0", env=env, folder=tmp_path, is_fresh=is_fresh)
