"""Agents in the settings: what can be said of one, and what cannot."""

from pathlib import Path

import pytest

from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.sources import load_settings
from holdfast.apps.settings.tables import AgentSettings
from holdfast.delegation import Visibility
from holdfast.errors import SettingsError


def settings(folder: Path, text: str) -> Settings:
    (folder / "holdfast.toml").write_text(text)
    return load_settings(flags={}, cwd=folder, environ={"HOLDFAST_HOME": str(folder)})


def test_an_agent_has_everything_that_is_said_of_it(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        """
[agents.reviewer]
description = "reads changes"
instructions = "You review."
model = "openai:gpt-5"
tools = ["read", "run"]
sees = ["pins", "ledger", "files"]
main_sees = "answers"
turns = 2
max_tokens = 4_000
max_steps = 20
timeout_seconds = 60
""",
    )

    assert dict(found.agents) == {
        "reviewer": AgentSettings(
            name="reviewer",
            description="reads changes",
            instructions="You review.",
            model="openai:gpt-5",
            tools=("read", "run"),
            sees=Visibility(pins=True, ledger=True, files=True, turns=2, max_tokens=4_000),
            main_sees="answers",
            max_steps=20,
            timeout_seconds=60,
        )
    }


@pytest.mark.parametrize(
    ("text", "sees"),
    [
        ("", Visibility(everything=True)),
        ('sees = "nothing"', Visibility()),
        ("turns = 1", Visibility(turns=1)),
        ("max_tokens = 500", Visibility(everything=True, max_tokens=500)),
    ],
)
def test_an_agent_sees_everything_unless_something_is_chosen(tmp_path: Path, text: str, sees: Visibility) -> None:
    assert settings(tmp_path, f"[agents.a]\n{text}").agents["a"].sees == sees


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[agents.a]\nmodle = 'x'", "agents.a.modle: is not a setting; did you mean 'model'?"),
        ("[agents.a]\ntools = ['write']", "agents.a.tools: 'write' is not known"),
        ("[agents.a]\nsees = 3", "agents.a.sees: must be a list of words, not 3"),
        ("[agents.a]\nsees = ['pin']", "agents.a.sees: 'pin' is not known; did you mean 'pins'?"),
        ("[agents.a]\nturns = -1", "agents.a.turns: must be a whole number, 0 or more, not -1"),
        ("[agents.a]\nmax_steps = true", "agents.a.max_steps: must be a whole number, 1 or more, not True"),
        ("[agents.a]\nmain_sees = 'some'", "agents.a.main_sees: 'some' is not known"),
        ("[agents.a]\nmodel = ''", "agents.a.model: must be a text, not ''"),
        ("agents = 3", "agents: must be a table, not 3"),
    ],
)
def test_what_cannot_be_is_told_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _ = settings(tmp_path, text).agents

    assert problem in str(refused.value)


def test_a_project_that_is_not_trusted_sends_nothing_to_its_agents(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    (project / ".git").mkdir(parents=True)
    (project / "holdfast.toml").write_text('[agents.spy]\nmodel = "https://elsewhere.example/v1#m"')

    found = load_settings(flags={}, cwd=project, environ={"HOLDFAST_HOME": str(home)})

    assert dict(found.agents) == {}
    assert "agents is ignored, because an untrusted project may not set it" in found.notes[0]


def test_what_is_wrong_with_one_agent_leaves_the_others(tmp_path: Path) -> None:
    text = "[agents.good]\ndescription = 'reads'\n[agents.bad]\nmodle = 'x'\n[agents.last]\n"
    (tmp_path / "holdfast.toml").write_text(text)

    found = load_settings(flags={}, cwd=tmp_path, environ={"HOLDFAST_HOME": str(tmp_path)}, is_tolerant=True)

    assert [*found.agents] == ["good", "last"]
    assert [problem.setting for problem in found.problems] == ["agents.bad.modle"]


def test_an_agent_is_told_in_a_line() -> None:
    full = AgentSettings(
        name="reviewer",
        description="reads changes",
        model="openai:gpt-5",
        tools=("read", "run"),
        sees=Visibility(pins=True, turns=2, max_tokens=4_000),
        main_sees="answers",
        max_steps=20,
    )

    assert str(full) == (
        "reads changes; model openai:gpt-5; tools read, run; sees pins, turns = 2 in at most 4,000 tokens; "
        "the main agent sees answers of it; at most 20 steps"
    )
    assert str(AgentSettings(name="a")) == "tools read; sees everything; the preset says what the main agent sees of it"
