"""One key of a file changes, and not a letter beside it."""

import errno
import os
import stat
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tomlkit import item

from holdfast.apps.settings.save import remove_setting, save_setting, with_setting
from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.toml_lines import key_lines
from holdfast.errors import SettingsError
from holdfast.stores import files

Setup = Callable[..., Settings]

FILE = """# my settings
model = "openai:gpt-5"   # the one with the "#" in mind
tools = [
  "read",  # files
]

# servers
[mcp.files]
command = "files"  # a program
"""


CHANGES = {"max_steps": "31", "theme": "dark", "preset": "inkeep", "colour": "never", "retention_days": "7"}


def test_changes_that_are_saved_at_once_are_all_in_the_file(settings: Setup, home: Path) -> None:
    current, barrier = settings("# mine\n"), Barrier(len(CHANGES))

    def save(name: str) -> None:
        barrier.wait()
        save_setting(current, name, CHANGES[name])

    with ThreadPoolExecutor(len(CHANGES)) as threads:
        list(threads.map(save, CHANGES))
    saved = tomllib.loads((home / "holdfast.toml").read_text())
    with ThreadPoolExecutor(len(CHANGES)) as threads:
        removed = list(threads.map(partial(remove_setting, current), CHANGES))

    assert {name: str(value) for name, value in saved.items()} == CHANGES
    assert (removed, (home / "holdfast.toml").read_text()) == ([True] * len(CHANGES), "# mine\n")


def test_a_setting_is_replaced_in_its_line_and_its_comment_stays() -> None:
    assert with_setting(FILE, "model", "a#b") == FILE.replace('"openai:gpt-5"', '"a#b"')


def test_a_setting_over_several_lines_is_replaced_whole() -> None:
    assert with_setting(FILE, "tools", ["read", "run"]) == FILE.replace(
        'tools = [\n  "read",  # files\n]\n', 'tools = ["read", "run"]\n'
    )


def test_a_new_setting_is_put_after_the_others_and_before_the_tables() -> None:
    assert with_setting(FILE, "max_steps", 9) == FILE.replace("]\n\n# servers", "]\nmax_steps = 9\n\n# servers")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "max_steps = 9\n"),
        ("# only words", "# only words\nmax_steps = 9\n"),
        ("# only words\n", "# only words\nmax_steps = 9\n"),
        ("a = 1", "a = 1\nmax_steps = 9\n"),
        ("agent_max_steps = 3 # theirs\n", "max_steps = 9 # theirs\n"),
        ("\ufeffa = 1\r\nb = 2\r\n", "\ufeffa = 1\r\nb = 2\r\nmax_steps = 9\r\n"),
        ("# about x\n[x]\na = 1\n", "max_steps = 9\n\n# about x\n[x]\na = 1\n"),
        ("[x]\nmax_steps = 3\n", "max_steps = 9\n\n[x]\nmax_steps = 3\n"),
        ('s = """\nmax_steps = 3\n"""\n', 's = """\nmax_steps = 3\n"""\nmax_steps = 9\n'),
    ],
)
def test_whatever_the_file_looks_like_one_line_is_new(before: str, after: str) -> None:
    assert with_setting(before, "max_steps", 9) == after
    assert tomllib.loads(after.removeprefix("\ufeff"))["max_steps"] == 9


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.one_of(
    TEXTS,
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.lists(TEXTS, max_size=3),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(VALUES)
def test_what_is_written_is_read_back(value: object) -> None:
    assert tomllib.loads(with_setting("", "model", value))["model"] == value


@given(
    st.dictionaries(st.sampled_from(["model", "a", "b.c", '"d e"']), VALUES),
    VALUES,
    TEXTS.filter(lambda text: "\n" not in text),
)
def test_nothing_else_of_a_file_changes(table: dict[str, object], value: object, comment: str) -> None:
    words = "".join(char for char in comment if char.isprintable())
    before = (
        "".join(f"{key} = {item(inner).as_string()} # {words}\n# {words}\n" for key, inner in table.items())
        + "[t]\nx = 1\n"
    )

    after = with_setting(before, "model", value)

    assert tomllib.loads(after) == {**tomllib.loads(before), "model": value}
    assert after.count(f"# {words}\n") == before.count(f"# {words}\n")
    assert with_setting(after, "model", value) == after


def test_lines_are_counted_as_people_do() -> None:
    assert key_lines(FILE) == {
        ("model",): 2,
        ("tools",): 3,
        ("mcp",): 8,
        ("mcp", "files"): 8,
        ("mcp", "files", "command"): 9,
    }
    assert key_lines("[[a]]\nx = 1\n[b]\nc = { d = 1 }") == {
        ("a",): 1, ("a", "x"): 2, ("b",): 3, ("b", "c"): 4, ("b", "c", "d"): 4
    }  # fmt: skip


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "choose a folder that can be written to"),
        (errno.EACCES, "check the permissions"),
    ],
)
def test_a_setting_that_cannot_be_written_comes_with_advice_that_fits(
    settings: Setup, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    loaded = settings()
    monkeypatch.setattr(files.os, "fsync", refuse)

    with pytest.raises(SettingsError) as refused:
        save_setting(loaded, "max_steps", "30", scope="project")

    assert refused.value.problem == f"cannot be written: {os.strerror(number)}; {remedy}"


def test_the_users_file_is_for_his_eyes_only_and_the_projects_is_not(
    settings: Setup, home: Path, project: Path
) -> None:
    (home / "holdfast.toml").unlink(missing_ok=True)

    own = save_setting(settings(), "agent_max_steps", "30")
    shared = save_setting(settings(), "max_steps", "40", scope="project")

    assert (own, own.read_text(), stat.S_IMODE(own.stat().st_mode)) == (
        home / "holdfast.toml",
        "max_steps = 30\n",
        0o600,
    )
    assert (shared, stat.S_IMODE(shared.stat().st_mode)) == (project / "holdfast.toml", 0o644)
    assert settings(environ={"HOLDFAST_TRUST": str(project)}).max_steps == 40
    assert list(home.iterdir()) == [own]


def test_a_link_stays_a_link(settings: Setup, home: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfile").write_text("# mine\n")
    (home / "holdfast.toml").symlink_to(tmp_path / "dotfile")

    save_setting(settings(), "max_steps", "30")

    assert (home / "holdfast.toml").is_symlink()
    assert (tmp_path / "dotfile").read_text() == "# mine\nmax_steps = 30\n"


def test_a_link_to_something_that_is_no_file_is_named_and_left_alone(
    settings: Setup, home: Path, tmp_path: Path
) -> None:
    pipe, loaded = tmp_path / "pipe", settings()
    os.mkfifo(pipe)
    (home / "holdfast.toml").symlink_to(pipe)

    with pytest.raises(SettingsError, match="is a device or a pipe; remove it first"):
        save_setting(loaded, "max_steps", "30")

    assert pipe.is_fifo()


@pytest.mark.parametrize("elsewhere", ["environment", "flag", "project"])
def test_a_list_that_is_added_to_takes_nothing_along_that_was_allowed_elsewhere(
    elsewhere: str, settings: Setup, home: Path, project: Path
) -> None:
    loaded = settings(
        f'trust = ["{project}"]\n',
        'allow = ["rm"]\n' if elsewhere == "project" else "",
        environ={"HOLDFAST_ALLOW": "rm"} if elsewhere == "environment" else {},
        flags={"allow": "rm"} if elsewhere == "flag" else {},
    )

    save_setting(loaded, "allow", "+ls")
    save_setting(loaded, "tools", "+run")

    saved = tomllib.loads((home / "holdfast.toml").read_text())
    assert (loaded.value("allow"), saved["allow"]) == (("rm",), ["ls"])
    assert saved["tools"] == ["read", "edit", "run", "plan"], "the default is added to"


def test_paths_are_kept_as_their_file_would_name_them(settings: Setup, home: Path, project: Path) -> None:
    (project / "system.md").write_text("Be brief.")

    save_setting(settings(), "system", "system.md", scope="project")
    save_setting(settings(), "store", "sqlite:///chats.db", scope="project")
    save_setting(settings(), "gateway_policies", "a=rules/a.toml, b=/srv/b.toml", scope="project")
    save_setting(settings(), "system", "system.md")
    save_setting(settings(), "trust", "+.")
    save_setting(settings(), "trust", "+..")

    assert tomllib.loads((project / "holdfast.toml").read_text()) == {
        "system": "system.md",
        "store": "sqlite:///chats.db",
        "gateway_policies": ["a=rules/a.toml", "b=/srv/b.toml"],
    }
    assert tomllib.loads((home / "holdfast.toml").read_text()) == {
        "system": str(project / "system.md"),
        "trust": [str(project), str(project.parent)],
    }


@pytest.mark.parametrize(
    ("key", "text", "scope", "problem"),
    [
        ("max_steps", "many", "user", "max_steps: must be a whole number"),
        ("model", "x sk-abcdefgh12345", "user", "model: looks like a key or a password"),
        ("store", "postgresql://me:$hunter2@db/x", "user", "store: looks like a key or a password"),
        ("trust", "/", "project", "trust: cannot be set by a project"),
        ("mcp", "x", "user", "mcp: is a table"),
    ],
)
def test_what_cannot_be_kept_leaves_the_file_as_it_was(
    key: str, text: str, scope: str, problem: str, *, settings: Setup, home: Path
) -> None:
    found = settings(FILE)

    with pytest.raises(SettingsError) as wrong:
        save_setting(found, key, text, scope=scope)  # pyright: ignore[reportArgumentType]

    assert str(wrong.value).startswith(problem)
    assert (home / "holdfast.toml").read_text() == FILE


def test_a_wrong_value_can_be_put_right_and_a_broken_file_is_not_touched(settings: Setup, home: Path) -> None:
    wrong = settings("max_steps = 'many'", is_tolerant=True)
    save_setting(wrong, "max_steps", "3")
    assert settings().max_steps == 3

    broken = settings("max_steps = ", is_tolerant=True)
    with pytest.raises(SettingsError, match="cannot be read as TOML"):
        save_setting(broken, "max_steps", "3")
    assert (home / "holdfast.toml").read_text() == "max_steps = "


def test_a_limit_that_is_switched_off_is_saved_as_none(settings: Setup, home: Path) -> None:
    save_setting(settings(), "max_steps", "off")

    assert (home / "holdfast.toml").read_text() == "max_steps = 0\n"
    assert settings().max_steps is None


def test_a_file_from_which_a_setting_is_removed_keeps_its_readers(settings: Setup, home: Path, project: Path) -> None:
    loaded = settings("max_steps = 3\n", "max_steps = 4\n")
    (project / "holdfast.toml").chmod(0o664)

    removed = [remove_setting(loaded, "max_steps", scope=scope) for scope in ("user", "project")]

    modes = [stat.S_IMODE((folder / "holdfast.toml").stat().st_mode) for folder in (home, project)]
    assert (removed, modes) == ([True, True], [0o600, 0o664])


def test_a_setting_is_forgotten_and_the_rest_stays(settings: Setup, home: Path) -> None:
    found = settings(FILE)

    remove_setting(found, "tools")
    remove_setting(found, "max_steps")

    assert (home / "holdfast.toml").read_text() == FILE.replace('tools = [\n  "read",  # files\n]\n', "")


@pytest.mark.parametrize(
    ("table", "line", "name"),
    [
        ("[hooks]\npre_compact = [['x']]\n", 2, "hooks"),
        ("# mine\n[mcp.a]\ncommand = 'x'\n[mcp.b]\ncommand = 'y'\n", 3, "mcp"),
    ],
)
def test_a_table_is_not_forgotten_and_whoever_asks_for_it_is_told(
    table: str, line: int, name: str, settings: Setup, home: Path
) -> None:
    text = f"max_steps = 3\n{table}"
    found = settings(text)

    with pytest.raises(SettingsError) as refusal:
        remove_setting(found, name)

    assert str(refusal.value) == (
        f"{home}/holdfast.toml:{line}: {name}: is a table; remove [{name}], and what is inside it, in the file"
    )
    assert (home / "holdfast.toml").read_text() == text


def test_a_table_in_one_line_or_under_dotted_keys_is_forgotten(settings: Setup, home: Path) -> None:
    found = settings(
        "hooks.timeout_seconds = 3\nhooks.pre_compact = [['x']]\nmcp = {a = {command = 'x'}}\nmax_steps = 3\n"
    )

    remove_setting(found, "hooks")
    remove_setting(found, "mcp")

    assert (home / "holdfast.toml").read_text() == "max_steps = 3\n"


def test_a_folder_that_cannot_be_written_is_named(settings: Setup, home: Path) -> None:
    found = settings()
    home.rmdir()
    home.write_text("a file in the way")

    with pytest.raises(SettingsError, match=r"holdfast.toml: the file: cannot be"):
        save_setting(found, "max_steps", "3")
