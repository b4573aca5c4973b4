"""The page about settings says what is true."""

import re
from pathlib import Path

import pytest

from holdfast.apps.cli.main import main
from holdfast.apps.settings.schema import SETTING_DECLARATIONS
from holdfast.apps.settings.sources import load_settings
from scripts.reference import render_settings

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who stands in a project of his."""
    (tmp_path / "project" / ".git").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def test_the_tables_have_every_setting_that_is_declared() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| .* \| (.+) \| .*\|$", render_settings().partition("### What a project")[0], re.MULTILINE
    )

    assert dict(rows) == {one.name: one.help for one in SETTING_DECLARATIONS.values()}
    assert "../_generated/settings.md" in PAGE


@pytest.mark.parametrize("text", blocks("toml"))
def test_an_example_of_a_file_can_be_used(text: str, home: Path) -> None:
    (home / ".config" / "holdfast").mkdir(parents=True)
    (home / ".config" / "holdfast" / "holdfast.toml").write_text(text, encoding="utf-8")

    found = load_settings()

    assert (found.problems, found.notes) == ((), ())


def test_what_the_commands_answer_is_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("console"):
        said = ""
        for line in block.splitlines():
            if line.startswith("$ holdfast "):
                main(line.removeprefix("$ holdfast ").split())
                captured = capsys.readouterr()
                said += f"{line}\n{captured.out}{captured.err}"
        assert said == block
