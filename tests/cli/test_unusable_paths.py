"""A path that cannot even be looked at, such as one in the folder of another user, is named in one line."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.apps.settings.trust import is_trusted
from holdfast.importers.programs import find_sessions, program_named
from holdfast.importers.source import ReadReport
from tests.cli.conftest import run

Captured = pytest.CaptureFixture[str]
NOBODY = 65_534
TOO_LONG = "a" * 300
"""A name of which the system says neither that it is there nor that it is not; that is so for root too."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing was done yet."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def locked_folder() -> Iterator[Path]:
    """Yield a folder with one that this user may not open: permissions do not restrict root."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-locked-"))
    (made / "locked").mkdir(mode=0)
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(made, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield made
    if is_root:
        os.seteuid(0)
    (made / "locked").chmod(0o700)
    shutil.rmtree(made)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["sessions", "--store", f"sqlite:////{TOO_LONG}"], f"/{TOO_LONG}: File name too long; check the path"),
        (["import", "--from", "pi", f"/{TOO_LONG}"], f"PATH: /{TOO_LONG}: File name too long"),
        (["recover", f"/{TOO_LONG}"], f"/{TOO_LONG}: File name too long; check the path"),
        (
            ["gateway", "key", "ada", "--keys", f"/{TOO_LONG}"],
            f"/{TOO_LONG}: keys: File name too long; make one with: holdfast gateway key NAME --keys /{TOO_LONG}",
        ),
        (
            ["gateway", "key", "ada", "--keys", "/dev/null/keys.toml"],
            "/dev/null/keys.toml: the file: cannot be used: File exists; check the path",
        ),
        (
            ["gateway", "--store", "sqlite:////dev/null/chats.db"],
            "/dev/null/chats.db.token: the file: cannot be used: File exists; check the path, or set "
            "HOLDFAST_CONTROL_TOKEN to a token",
        ),
        (
            ["sessions", "--store", "sqlite:///~nobody-has-this-name/chats.db"],
            "store: '~nobody-has-this-name/chats.db' names an unknown home folder; set HOME, or write the whole path",
        ),
    ],
)
def test_a_path_that_cannot_be_looked_at_is_named(arguments: list[str], problem: str, capsys: Captured) -> None:
    assert run(capsys, *arguments) == (2, "", f"holdfast: {problem}\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["export", "s1", "-o", "loop"], "loop: Too many levels of symbolic links; check the path"),
        (["import", "--from", "claude-code", "loop"], "PATH: loop: Too many levels of symbolic links"),
        (
            ["gateway", "key", "ada", "--keys", "loop"],
            "loop: keys: Too many levels of symbolic links; make one with: holdfast gateway key NAME --keys loop",
        ),
    ],
)
def test_links_that_lead_to_each_other_are_named(
    arguments: list[str], problem: str, capsys: Captured, tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to("pool")
    (tmp_path / "pool").symlink_to("loop")
    (tmp_path / "s1.jsonl").write_text('{"role": "user", "content": "hello"}\n')
    run(capsys, "import", "s1.jsonl")

    assert run(capsys, *arguments) == (2, "", f"holdfast: {problem}\n")
    assert (tmp_path / "loop").is_symlink()


def test_a_trusted_folder_that_became_a_link_to_itself_trusts_nobody_and_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")

    assert not is_trusted(tmp_path, [tmp_path / "loop"])
    assert is_trusted(tmp_path, [tmp_path / "loop", tmp_path.parent])


def test_settings_that_cannot_be_looked_at_are_named(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", f"/{TOO_LONG}")
    file = f"/{TOO_LONG}/holdfast.toml"

    code, _, told = run(capsys, "config")
    refused = run(capsys, "config", "model", "openai:gpt-5")

    assert (code, told) == (
        1,
        f"holdfast: ignored: {file}: the file: cannot be read: File name too long; "
        "check its permissions, or move it away\n",
    )
    assert refused == (
        2,
        "",
        f"holdfast: {file}: the file: cannot be read: [Errno 36] File name too long: {file!r}; correct it first\n",
    )


def test_the_check_up_tells_of_a_home_that_cannot_be_looked_at(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOLDFAST_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, f"/{TOO_LONG}")

    code, shown, _ = run(capsys, "doctor")

    assert (code, f"fail  store     /{TOO_LONG}/chats.db: File name too long; check the path" in shown) == (1, True)


def test_a_user_without_a_home_folder_gets_a_remedy(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    for variable in ("HOME", "XDG_CACHE_HOME", "HOLDFAST_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)

    listed = run(capsys, "sessions")
    imported = run(capsys, "import", "--from", "codex", "--store", "memory://")
    code, checked, _ = run(capsys, "doctor")

    remedy = "store: '~/.holdfast/chats.db' names an unknown home folder; set HOME, or write the whole path"
    assert listed == (2, "", f"holdfast: {remedy}\n")
    assert imported == (
        2,
        "",
        "holdfast: HOME: is not set, and this user has no home folder; give a folder as PATH\n",
    )
    assert (code, f"fail  store     {remedy}" in checked) == (1, True)


def test_a_folder_of_sessions_that_may_not_be_opened_is_told(locked_folder: Path) -> None:
    search = ReadReport()

    found = find_sessions(program_named("claude-code"), locked_folder, search)

    assert (found, search.search_problems) == ([], [f"not read: {locked_folder}/locked: Permission denied"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["chat", "-p", "hi", "--model", "embedded"],
        ["config", "model", "embedded", "--project"],
        ["config", "model", "--unset", "--project"],
        ["config", "trust", "+."],
    ],
)
def test_a_command_about_a_working_folder_that_was_deleted_says_so(
    arguments: list[str], tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    done = run(capsys, *arguments)

    assert done == (2, "", "holdfast: the working folder: was deleted; change to another one, such as: cd ~\n")
    assert sorted(path.name for path in tmp_path.rglob("holdfast.toml")) == []


def test_the_home_folder_is_no_project_of_a_working_folder_that_was_deleted(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "holdfast.toml").write_text('model = "openai:gpt-5"\n')
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert run(capsys, "config", "model", "--json")[::2] == (0, "")
    assert run(capsys, "config", "max_steps", "7") == (0, "max_steps = 7, saved in ~/home/holdfast.toml\n", "")
