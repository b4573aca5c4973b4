"""Examples and documents are run as they stand."""

import json
import re
import runpy
import shlex
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast import Receipt, Session
from holdfast.apps.cli.main import main
from holdfast.apps.cli.parser import COMMAND_GROUPS, parse_arguments
from holdfast.apps.settings.sources import load_settings
from holdfast.core.planning.context_report import ContextReport
from tests.test_public_api import FACADES
from tests.test_seed_names import is_there

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
ADAPTER_PAGES = [
    ROOT / "docs" / "frameworks" / f"{name}.md"
    for name in ("claude-agent-sdk", "google-adk", "langchain", "openai-agents")
]
"""Their code, and the examples of the adapters, run in the tests of each adapter, which import its framework once."""
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "_generated"),
]
DOCUMENTS = [page for page in PAGES if page not in ADAPTER_PAGES]
ADAPTER_EXAMPLES = sorted((ROOT / "examples" / "adapters").glob("*.py"))


def page_name(path: Path) -> str:
    """Return the name of a page for the name of its test."""
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_says_something(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")

    assert capsys.readouterr().out


BLOCK = re.compile(r"^```(python|console|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY_LINES, ANY_END = "(?s:.*?)", ".*"
SETTINGS_PAGE = ROOT / "docs" / "reference" / "settings.md"
"""Its commands are run by tests/app/test_documents.py, in a home and a project of its own."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=page_name)
def test_the_code_of_a_document_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:///tutorial.db")
    names: dict[str, object] = {}
    before = ""
    for kind, block in BLOCK.findall(path.read_text()):
        if kind == "python":
            capsys.readouterr()
            exec(compile(block, str(path), "exec"), names)  # noqa: S102
        elif kind == "text":
            if before == "python":
                assert_lines(block, capsys.readouterr().out)
        elif path != SETTINGS_PAGE:
            assert_commands_print(block, capsys)
        before = kind


def assert_commands_print(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the commands of a block and compare what they print with its lines."""
    capsys.readouterr()
    for command, expected in re.findall(r"^\$ holdfast (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        main(shlex.split(command))
        assert_lines(expected, capsys.readouterr().out)


def assert_lines(expected: str, printed: str) -> None:
    """Compare lines with what was printed; `…` alone stands for any lines, at an end for the rest of a line."""
    lines = [
        ANY_LINES if line == "…" else re.escape(line.removesuffix("…")) + (ANY_END if line.endswith("…") else "") + "\n"
        for line in expected.splitlines()
    ]
    assert re.fullmatch("".join(lines), printed.rstrip("\n") + "\n"), printed


WEB_LINK = re.compile(r"\]\((https?://[^)\s]+)\)")


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *PAGES], ids=page_name)
def test_the_web_links_of_a_document_are_whole_and_lead_to_no_registry(path: Path) -> None:
    for link in WEB_LINK.findall(path.read_text()):
        parts = urlsplit(link)
        assert (parts.scheme, "." in parts.netloc, "pypi" in parts.netloc) == ("https", True, False), link


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *PAGES])
def test_the_links_of_a_document_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


ENDED_MODELS = re.compile(r"claude-(?:sonnet|opus|haiku)-4[\w-]*|claude-3[\w-]*")
"""Models that have reached their end of life, or will soon."""


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES, *ADAPTER_EXAMPLES], ids=page_name)
def test_the_documentation_names_no_model_that_has_ended(path: Path) -> None:
    # The list of findings quotes what was wrong.
    assert path.name == "findings.md" or ENDED_MODELS.findall(path.read_text()) == []


IMPORT = re.compile(r"^\s*(?:from|import) (holdfast[\w.]*)", re.MULTILINE)
MAPS = {"seeds.md", "unique.md", "decisions.md"}
"""Pages that say in which module something lives; a reader looks it up there and does not import it."""


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES, *ADAPTER_EXAMPLES], ids=page_name)
def test_a_reader_is_shown_the_root_the_facades_the_errors_the_test_kit_and_the_adapters_only(path: Path) -> None:
    text = path.read_text()
    named = [] if path.name in MAPS else [name for span in SPAN.findall(text) for name in NAME.findall(span)]
    modules = {name.split(".")[1] for name in [*IMPORT.findall(text), *named] if "." in name}

    assert modules - {*FACADES, "errors", "testing", "adapters", "toml", "db"} == set()


SHELL_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
TOML_BLOCK = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands_of(path: Path) -> list[list[str]]:
    """Return the command lines of a document that are ours."""
    blocks = [block.replace("\\\n", " ") for block in SHELL_BLOCK.findall(path.read_text())]
    lines = [line for block in blocks for line in block.splitlines()]
    words = [shlex.split(re.split(r" [<>] ", line.rpartition("|")[2])[0], comments=True) for line in lines]
    return [command for command in words if command[:1] in (["holdfast"], ["make"])]


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_every_command_line_of_a_document_can_be_said(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, *arguments in commands_of(path):
        if program == "make":
            assert arguments[0] in targets
        else:
            parse_arguments(arguments)


SPAN = re.compile(r"`([^`\n]+)`")
NAME = re.compile(r"\bholdfast(?:\.\w+)+")
TARGET = re.compile(r"\bmake ([a-z-]+)")


@pytest.mark.parametrize("path", [*PAGES, *ROOT.glob("*.md")], ids=page_name)
def test_what_a_document_names_in_passing_is_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    spans = SPAN.findall(path.read_text())
    names = [name for span in spans for name in NAME.findall(span) if not name.endswith((".toml", ".db"))]
    commands = [span.split()[1] for span in spans if span.startswith("holdfast ")]

    assert [name for name in names if not is_there(name)] == []
    assert [word for word in commands if word not in COMMAND_GROUPS and not word.startswith("-")] == []
    assert {target for span in spans for target in TARGET.findall(span)} - targets == set()


VALUES = (
    (r"\bsession\.([a-z_]+)\(", Session),
    (r"context_breakdown\(\)\)\.(\w+)", ContextReport),
    (r"\brequest\.receipt\.(\w+)", Receipt),
)
"""A method of a session or a field, as a span of a document names it, and the type that has it."""


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_an_attribute_that_a_document_names_in_passing_is_there(path: Path) -> None:
    spans = SPAN.findall(path.read_text())
    named = [(kind, name) for span in spans for pattern, kind in VALUES for name in re.findall(pattern, span)]

    assert [name for kind, name in named if not hasattr(kind, name)] == []


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_the_json_of_a_document_is_json(path: Path) -> None:
    for block in re.findall(r"^```json\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        json.loads(block)


@pytest.mark.parametrize("path", DOCUMENTS, ids=page_name)
def test_the_settings_of_a_document_can_be_read(path: Path, tmp_path: Path) -> None:
    for number, block in enumerate(TOML_BLOCK.findall(path.read_text())):
        home = tmp_path / str(number)
        home.mkdir()
        (home / "holdfast.toml").write_text(block)
        load_settings(flags={}, cwd=home, environ={"HOLDFAST_HOME": str(home)})


def test_the_page_on_installing_names_every_extra_for_users() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    spans = " ".join(SPAN.findall((ROOT / "docs" / "install.md").read_text()))

    named = {extra for extra in extras if re.search(rf"(?<![\w-]){extra}(?![\w-])", spans)}
    assert set(extras) - named == {"browser", "dev", "docs", "mutation"}


def test_each_of_the_twenty_asks_has_an_answer() -> None:
    rows = [line.split(" | ") for line in (ROOT / "docs" / "asks.md").read_text().splitlines() if line[:3] != "| |"]
    answered = [cells for cells in rows if cells[0].removeprefix("| ").isdecimal()]

    assert [int(cells[0].removeprefix("| ")) for cells in answered] == [*range(1, 21)]
    assert [len(cells) for cells in answered] == [4] * 20
