"""What of a folder a model may change, and only after the user has seen it."""

import stat
from pathlib import Path

import pytest

from holdfast.apps.chat.events import ChangeProposed, Consent, ToolCallFinished
from holdfast.apps.chat.plain_screen import clip_diff
from holdfast.apps.chat.tools.editing import CHANGE_REFUSED, EditTools, FileChange, describe_change
from holdfast.apps.chat.tools.files import MAX_FILE_BYTES, FileTools, ToolRefusal
from holdfast.apps.settings.sources import load_settings
from holdfast.testing.endpoint import text_stream, tool_call_stream
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen
from tests.chat.test_turns import chat_with


class User:
    """Answers each question with the next answer."""

    def __init__(self, *answers: Consent) -> None:
        self.answers = list(answers)
        self.changes: list[FileChange] = []

    async def ask(self, change: FileChange) -> Consent:
        self.changes.append(change)
        return self.answers.pop(0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / "a.py").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "secret.txt").write_text("outside")
    (root / "link").symlink_to(tmp_path / "secret.txt")
    (root / "folder-link").symlink_to(tmp_path)
    return root


async def test_a_change_is_shown_asked_for_and_written(root: Path) -> None:
    (root / "a.py").chmod(0o750)
    user = User("yes", "yes")
    tools = EditTools(FileTools(root), user.ask)

    said = await tools.edit_file("a.py", "two", "2\n2.5")
    created = await tools.write_file("src/new.py", "print()\n")

    assert (said, created) == ("changed a.py: 2 lines added, 1 removed", "created src/new.py: 1 line added, 0 removed")
    assert [str(change) for change in user.changes] == [
        "Change a.py (+2 −1 lines)", "Create src/new.py (+1 −0 lines)",
    ]  # fmt: skip
    assert user.changes[0].diff == " one\n-two\n+2\n+2.5\n three"
    assert (root / "a.py").read_bytes() == b"one\n2\n2.5\nthree\n"
    assert stat.S_IMODE((root / "a.py").stat().st_mode) == 0o750
    assert sorted(path.name for path in root.rglob("*.py")) == ["a.py", "new.py"]


@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "/etc/hosts", "link", "folder-link/secret.txt", "src/../../secret.txt", ".git/hooks/pre-commit",
     "folder-link/new.txt", "\0", "~/x"[:0] + "../new.txt"],
)  # fmt: skip
async def test_nothing_outside_the_folder_and_nothing_of_version_control_is_written(root: Path, path: str) -> None:
    user = User()
    tools = EditTools(FileTools(root), user.ask, is_accepted=True)
    before = {file: file.read_bytes() for file in root.parent.rglob("*") if file.is_file()}

    replies = [await tools.write_file(path, "owned"), await tools.edit_file(path, "outside", "owned")]

    assert all(isinstance(reply, ToolRefusal) for reply in replies)
    assert {file: file.read_bytes() for file in root.parent.rglob("*") if file.is_file()} == before


async def test_a_change_that_the_user_refuses_or_that_does_not_fit_is_not_made(root: Path) -> None:
    (root / "twice.txt").write_text("x = 1\nx = 1\n")
    (root / "binary").write_bytes(b"\0\1")
    user = User("no")
    tools = EditTools(FileTools(root), user.ask)

    replies = [
        await tools.edit_file("a.py", "two", "2"),
        await tools.edit_file("a.py", "four", "4"),
        await tools.edit_file("a.py", "", "4"),
        await tools.edit_file("twice.txt", "x = 1", "x = 2"),
        await tools.edit_file("missing.py", "a", "b"),
        await tools.write_file("binary", "text"),
        await tools.write_file("a.py", "one\ntwo\nthree\n"),
    ]

    assert replies == [
        CHANGE_REFUSED,
        "old_text is not in a.py as it is written there; read the file again",
        "old_text is not in a.py as it is written there; read the file again",
        "old_text is in twice.txt 2 times; add lines around it, or set replace_all",
        "missing.py is not a text file; write_file creates one",
        "binary is not a text file, and stays as it is",
        "a.py holds that already",
    ]
    assert len(user.changes) == 1
    assert (root / "a.py").read_text() == "one\ntwo\nthree\n"


async def test_a_file_that_changes_while_the_user_reads_the_question_is_left_alone(root: Path) -> None:
    async def change_meanwhile(_: FileChange) -> Consent:
        (root / "a.py").write_text("mine\n")
        return "yes"

    said = await EditTools(FileTools(root), change_meanwhile).edit_file("a.py", "two", "2")

    assert said == "a.py was changed meanwhile; read it again"
    assert (root / "a.py").read_text() == "mine\n"


async def test_always_means_every_further_change_and_line_ends_stay(root: Path) -> None:
    (root / "dos.txt").write_bytes(b"a\r\nb\r\nc\r\n")
    user = User("always")
    tools = EditTools(FileTools(root), user.ask)

    await tools.edit_file("dos.txt", "a\nb", "x\ny")
    await tools.edit_file("a.py", "e", "E", replace_all=True)

    assert len(user.changes) == 1
    assert (root / "dos.txt").read_bytes() == b"x\r\ny\r\nc\r\n"
    assert (root / "a.py").read_text() == "onE\ntwo\nthrEE\n"


def test_a_change_shows_the_lines_that_differ_and_three_around_them() -> None:
    before = "".join(f"line {number}\n" for number in range(20))

    change = describe_change("a", before, before.replace("line 9\n", "nine\n"))

    assert change.diff.splitlines() == [
        " line 6", " line 7", " line 8", "-line 9", "+nine", " line 10", " line 11", " line 12",
    ]  # fmt: skip


def test_a_change_of_line_ends_alone_shows_them() -> None:
    changes = [
        describe_change("a", "one\r\ntwo\r\n", "one\r\ntwo\n"),
        describe_change("a", "one\n", "one"),
        describe_change("a", "# note\u2028run()\n", "# note\nrun()\n"),
        describe_change("a", "# note\x0crun()\n", "# note\nrun()\n"),
        describe_change("a", "one\r\ntwo\r\n", "one\r\n2\r\n"),
    ]

    assert [(change.removed, change.added, change.diff) for change in changes] == [
        (1, 1, " one [CRLF]\n-two [CRLF]\n+two [LF]"),
        (1, 1, "-one [LF]\n+one [no line end]"),
        (1, 2, "-# note\u2028run()\n+# note\n+run()"),
        (1, 2, "-# note\x0crun()\n+# note\n+run()"),
        (1, 1, " one\n-two\n+2"),
    ]


def test_a_diff_says_what_of_it_is_not_shown() -> None:
    change = describe_change("a", None, f"x = 1{' ' * 500}run()\n" + "pass\n" * 60)

    shown = clip_diff(change.diff).split("\n")

    assert shown == [f"+x = 1{' ' * 394} … 111 more characters", *["+pass"] * 59, "… 1 more lines"]


async def test_in_a_chat_the_diff_is_shown_and_a_refusal_is_no_success(tmp_path: Path, served: Served) -> None:
    (tmp_path / "a.py").write_text("one\n")
    (tmp_path / ".env").write_text("TOKEN=marmalade-7f")
    served.script += [
        tool_call_stream(("edit_file", {"path": "a.py", "old_text": "one", "new_text": "1"})),
        tool_call_stream(("edit_file", {"path": "a.py", "old_text": "1", "new_text": "2"})),
        tool_call_stream(("read_file", {"path": ".env"})),
        text_stream("Done."),
    ]
    screen = RecordingScreen("yes", "no")
    chat = await chat_with(tmp_path, served.model, screen)

    await chat.take_turn("Change it.")
    await chat.close()

    assert [event.diff for event in screen.events if isinstance(event, ChangeProposed)] == ["-one\n+1", "-1\n+2"]
    assert screen.always_offered == [True, True]
    assert [event.is_error for event in screen.events if isinstance(event, ToolCallFinished)] == [False, True, True]
    assert (tmp_path / "a.py").read_text() == "1\n"
    assert "marmalade-7f" not in str(served.asked)


async def test_a_change_that_makes_a_file_too_large_is_refused(root: Path) -> None:
    said = await EditTools(FileTools(root), User().ask).write_file("big.txt", "x" * (MAX_FILE_BYTES + 1))

    assert said == "big.txt would be larger than 10,000,000 bytes"
    assert not (root / "big.txt").exists()


CONFIGURATION = ["holdfast.toml", "deep/er/HoldFast.TOML", "holdfast.toml.", ".claude/skills/x/SKILL.md",
                 "any/skill.md", ".Claude/Skills/x/run.sh", ".agents/skills/x/run.sh", ".holdfast/notes.txt",
                 "sub/../holdfast.toml", "linked/new/run.sh", "to-settings", ".env", ".Env", "id_rsa"]  # fmt: skip


@pytest.mark.parametrize("path", CONFIGURATION)
async def test_a_file_that_configures_holdfast_is_asked_about_although_every_change_is_accepted(
    root: Path, path: str
) -> None:
    (root / ".claude").mkdir()
    (root / "our-skills").mkdir()
    (root / ".claude" / "skills").symlink_to(root / "our-skills")
    (root / "linked").symlink_to(root / "our-skills")
    (root / "to-settings").symlink_to(root / "holdfast.toml")
    user = User("always", "always", "no")
    tools = EditTools(FileTools(root), user.ask)

    written = [
        await tools.write_file("a.py", "1\n"),
        await tools.write_file(path, "[mcp.x]\n"),
        await tools.write_file(f"{path}.new/SKILL.md", "text"),
        await tools.write_file("b.py", "2\n"),
    ]

    asked = [change.is_always_asked for change in user.changes]
    assert (asked, written[2]) == ([False, True, True], CHANGE_REFUSED)
    assert (root / "b.py").exists()


async def test_files_that_the_settings_name_are_asked_about_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "work"
    monkeypatch.setenv("HOME", str(root))
    root.mkdir()
    (root / "linked.toml").write_text(
        'system = "prompt.md"\npolicy = "rules.toml"\nmemory = "notes"\nboards = "boards"\n'
        'gateway_policies = ["a=~/a.toml", "b=deep/b.toml"]\n'
        '[mcp.x]\ncommand = "python"\nargs = ["tools/server.py"]\n[hooks]\npre_compact = [["./hook.sh", "-q"]]\n'
    )
    (root / "holdfast.toml").symlink_to(root / "linked.toml")
    for name in ("prompt.md", "rules.toml"):
        (root / name).write_text("")
    (root / "config.json").write_text("{}")
    settings = load_settings(flags={"trust": str(root)}, cwd=root, environ={"HOLDFAST_HOME": str(tmp_path / "home")})
    answers: list[Consent] = ["no"] * 10
    user = User(*answers)
    tools = EditTools(FileTools(root), user.ask, is_accepted=True, settings=settings)

    for path in ("prompt.md", "rules.toml", "notes/2026-01-01.md", "boards/x.md", "tools/server.py", "hook.sh",
                 "linked.toml", "a.toml", "deep/b.toml", "tools/other.py"):  # fmt: skip
        await tools.write_file(path, "owned")
    for text in ('{"port": 1}', '{"port": 1, "agent_tools": "run"}'):
        await tools.write_file("config.json", text)

    assert [change.path for change in user.changes] == [
        "prompt.md", "rules.toml", "notes/2026-01-01.md", "boards/x.md", "tools/server.py", "hook.sh", "linked.toml",
        "a.toml", "deep/b.toml", "config.json",
    ]  # fmt: skip
    assert ((root / "tools" / "other.py").read_text(), (root / "config.json").read_text()) == ("owned", '{"port": 1}')


@pytest.mark.parametrize("path", [".env", ".ENV", "link-to-env", "keys/server.pem", ".env.", "sub/../.env"])
async def test_a_file_that_the_model_may_not_read_is_not_changed_by_it(root: Path, path: str) -> None:
    (root / "keys").mkdir()
    for name in (".env", ".ENV", ".env.", "keys/server.pem"):
        (root / name).write_text("TOKEN=marmalade-7f\n")
    (root / "link-to-env").symlink_to(root / ".env")
    tools = EditTools(FileTools(root), User().ask, is_accepted=True)

    replies = [await tools.write_file(path, "TOKEN=\n"), await tools.edit_file(path, "TOKEN=m", "TOKEN=n")]

    assert replies == [f"{path} may hold secrets; only the user can read and change it"] * 2
    assert {(root / name).read_text() for name in (".env", ".ENV", ".env.", "keys/server.pem")} == {
        "TOKEN=marmalade-7f\n"
    }


@pytest.mark.parametrize("path", [".GIT/hooks/pre-commit", ".git./hooks/x", ".g\u200cit/config", "sub/.Hg/hgrc"])
async def test_version_control_is_recognized_however_its_folder_is_spelled(root: Path, path: str) -> None:
    said = await EditTools(FileTools(root), User().ask, is_accepted=True).write_file(path, "owned")

    assert said == f"{path} belongs to version control, and is not changed by hand"


async def test_a_chat_that_accepts_changes_writes_no_settings_when_nobody_can_be_asked(
    tmp_path: Path, served: Served
) -> None:
    served.script += [
        tool_call_stream(("write_file", {"path": "holdfast.toml", "text": 'allow = ["touch"]\n'})),
        tool_call_stream(("write_file", {"path": "a.py", "text": "1\n"})),
        text_stream("Done."),
    ]
    screen = RecordingScreen("no")
    chat = await chat_with(tmp_path, served.model, screen, accept_edits="true")

    await chat.take_turn("Change it.")
    await chat.close()

    assert screen.asked == [
        "Create holdfast.toml (+1 −0 lines); it may configure Holdfast or hold secrets, so you are asked each time"
    ]
    assert screen.always_offered == [False]
    assert [(tmp_path / name).exists() for name in ("holdfast.toml", "a.py")] == [False, True]


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\nb\nc\r\nd\n", "a\nb", "1\n2", b"1\n2\nc\r\nd\n"),
        (b"a\nb\nc\r\nd\n", "b\nc\nd", "2\n3\n4", b"a\n2\n3\r\n4\n"),
        (b"a\nb\nc\r\nd\n", "c\nd", "3\n3.5\n4", b"a\nb\n3\r\n3.5\r\n4\n"),
        (b"a\nb\nc\r\nd\n", "b", "1\n2", b"a\n1\n2\nc\r\nd\n"),
        (b"a\nb\nc\r\nd", "d", "1\r\n2", b"a\nb\nc\r\n1\r\n2"),
        (b"a\nb\nc\r\nd\n", "b\nc\r\n", "x\n", b"a\nx\nd\n"),
        (b"a\r\nb\r\n", "a", "1\n2", b"1\r\n2\r\nb\r\n"),
        (b"a\nb\r\na\r\nb\n", "a\nb", "1\n2", b"1\n2\r\n1\r\n2\n"),
    ],
)
async def test_a_file_with_several_kinds_of_line_ends_keeps_them(
    root: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    (root / "mixed.txt").write_bytes(before)
    tools = EditTools(FileTools(root), User().ask, is_accepted=True)

    await tools.edit_file("mixed.txt", old, new, replace_all=True)

    assert (root / "mixed.txt").read_bytes() == after


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("bl\u00e5".encode("latin-1"), "is not UTF-8"),
        (b"\0\1", "is not a text file"),
        (b"x" * (MAX_FILE_BYTES + 1), "is larger than 10,000,000 bytes"),
        (None, "is a folder"),
    ],
)
async def test_a_file_that_cannot_be_changed_is_refused_with_the_reason(
    root: Path, content: bytes | None, reason: str
) -> None:
    (root / "odd").mkdir() if content is None else (root / "odd").write_bytes(content)
    tools = EditTools(FileTools(root), User().ask)

    replies = [await tools.edit_file("odd", "a", "b"), await tools.write_file("odd", "text")]

    assert replies == [f"odd {reason}, and stays as it is"] * 2


async def test_the_token_of_a_gateway_beside_its_store_is_neither_read_nor_changed(root: Path) -> None:
    (root / "chats.db.token").write_text("marmalade-7f")
    files = FileTools(root)

    changed = await EditTools(files, User().ask, is_accepted=True).write_file("chats.db.token", "known")

    assert changed == "chats.db.token may hold secrets; only the user can read and change it"
    assert isinstance(files.read_file("chats.db.token"), ToolRefusal)
    assert files.search_files("marmalade") == "'marmalade' is in no file of ."
