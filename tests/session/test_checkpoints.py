"""Summaries are kept as files, and what tells of them is true after every change, crash and damage."""

import asyncio
import errno
import os
import random
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError, WorkspaceUnavailableError
from holdfast.session.compaction import checkpoints as checkpoints_module
from holdfast.session.compaction.checkpoints import NO_CHECKPOINTS, Checkpoint, Checkpoints, summary_title, title_slug
from holdfast.session.memory.locked_files import (
    is_flat_yaml_mapping,
    set_yaml_number,
    translate_disk_errors,
    with_yaml_number,
)

WRITER = Path(__file__).parent / "checkpoint_writer.py"
TAKEN_BACK = "Taken back by a rewind or an undo, and kept"


def table(*rows: str) -> str:
    return "\n".join(["# Checkpoints", "", "| # | Title | File |", "|---|---|---|", *rows, ""])


def state_of(folder: Path) -> tuple[str, str]:
    """Return the index and the workspace file."""
    return (folder / "checkpoints/index.md").read_text(), (folder / "workspace.yaml").read_text()


def modes_of(folder: Path) -> dict[str, str]:
    paths = [folder, *folder.rglob("*")]
    return {
        str(path.relative_to(folder.parent)): oct(stat.S_IMODE(path.stat().st_mode)) for path in paths if path.exists()
    }


async def three(folder: Path) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for number, title in enumerate(("One", "Two", "Three")):
        await checkpoints.add(f"# {title}\nWords.", stop=number * 10)
    return checkpoints


ROWS = ["| 1 | One | 001-one.md |", "| 2 | Two | 002-two.md |", "| 3 | Three | 003-three.md |"]


@pytest.mark.seed("C-42")
async def test_a_summary_becomes_a_file_a_row_and_one_more_in_the_count(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    checkpoints = Checkpoints(folder)

    added = await checkpoints.add("# Fix the parser\n\nDone: totals.", stop=128)

    assert added == Checkpoint(1, "Fix the parser", folder / "checkpoints/001-fix-the-parser.md", 128)
    assert added.path.read_text() == (
        '---\nnumber: 1\ntitle: "Fix the parser"\nstop: 128\n---\n\n# Fix the parser\n\nDone: totals.\n'
    )
    assert state_of(folder) == (table("| 1 | Fix the parser | 001-fix-the-parser.md |"), "summary_count: 1\n")
    assert modes_of(folder) == {
        "session": "0o700",
        "session/checkpoints": "0o700",
        "session/checkpoints/001-fix-the-parser.md": "0o600",
        "session/checkpoints/index.md": "0o600",
        "session/workspace.yaml": "0o600",
    }


@pytest.mark.seed("C-42")
async def test_a_title_that_is_given_goes_before_the_one_in_the_summary_and_the_number_stands_in_for_both(
    tmp_path: Path,
) -> None:
    checkpoints = Checkpoints(tmp_path)

    added = [
        await checkpoints.add("# Mine", title="Given | by \\ hand", stop=1),
        await checkpoints.add("# Mine", title=" \n", stop=2),
        await checkpoints.add("No title.", stop=3),
        await checkpoints.add("lone \ud83d surrogate", title="lone \ud83d", stop=4),
    ]

    assert [(checkpoint.title, checkpoint.path.name) for checkpoint in added] == [
        ("Given | by \\ hand", "001-given-by-hand.md"),
        ("Mine", "002-mine.md"),
        ("Checkpoint 3", "003-checkpoint-3.md"),
        ("lone", "004-lone.md"),
    ]
    assert r"| 1 | Given \| by \\ hand | 001-given-by-hand.md |" in await checkpoints.describe()
    assert added[3].path.read_text().endswith("\n\nlone ? surrogate\n")


async def test_a_title_stays_readable_in_its_own_script(tmp_path: Path) -> None:
    added = await Checkpoints(tmp_path).add("Done.", title="修复解析器", stop=5)

    assert added.path.read_text() == '---\nnumber: 1\ntitle: "修复解析器"\nstop: 5\n---\n\nDone.\n'


@pytest.mark.parametrize(
    ("summary", "title"),
    [
        ("# Fix the parser\nText", "Fix the parser"),
        ("\n\n  # **Fix** the `parser`  \nText", "Fix** the `parser"),
        ("Title: Fix the parser\n# Other", "Fix the parser"),
        ("**Title:** Fix the parser", "Fix the parser"),
        ("## TITLE: Fix", "Fix"),
        ("title：修复解析器", "修复解析器"),
        ("<overview>a</overview>\n<checkpoint_title>\n Fix it\n</checkpoint_title>", "Fix it"),
        ("# One\n<checkpoint_title>Two</checkpoint_title>", "Two"),
        ("# " + "word " * 40, "word " * 11 + "word…"),
        ("# " + "x" * 100, "x" * 59 + "…"),
        ("# a\x00b\u202ec\u2028d\te", "a b c d e"),
        ("## Intent\nText", None),
        ("Text\n# Later", None),
        ("#no heading", None),
        ("Title:", None),
        ("# **", None),
        ("<checkpoint_title></checkpoint_title>", None),
        ("", None),
    ],
)
@pytest.mark.seed("C-42")
def test_a_summary_may_give_itself_a_title(summary: str, title: str | None) -> None:
    assert summary_title(summary) == title


@pytest.mark.parametrize(
    ("title", "slug"),
    [
        ("Fix the parser!", "fix-the-parser"),
        ("../../etc/passwd", "etc-passwd"),
        ("/absolute\\path:C", "absolute-path-c"),
        ("..", "checkpoint"),
        ("???", "checkpoint"),
        ("修复解析器", "修复解析器"),
        ("हिन्दी में", "हिन्दी-में"),
        ("Cafe\u0301 ÉTÉ", "café-été"),
        ("🚀 launch\n--now", "launch-now"),
        ("a" * 29 + " b c", "a" * 29),
        ("CON", "con"),
    ],
)
def test_a_file_is_named_after_its_title_in_any_script(title: str, slug: str) -> None:
    assert title_slug(title) == slug


@given(st.text())
def test_no_title_makes_a_name_that_a_disk_refuses_or_that_leads_elsewhere(title: str) -> None:
    name = f"{7:03}-{title_slug(title)}.md"

    assert Path(name).name == name
    assert len(name.encode()) <= 255
    assert not re.search(r'[\x00-\x1f<>:"/\\|?*\s]', name)


@pytest.mark.seed("C-43")
async def test_where_there_are_no_checkpoints_it_is_said_when_there_will_be_some(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "session")

    await checkpoints.mark_current([])

    assert await checkpoints.describe() == NO_CHECKPOINTS
    assert "created when context is compacted" in NO_CHECKPOINTS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.seed("C-43")
async def test_the_listing_is_the_index(tmp_path: Path) -> None:
    checkpoints = await three(tmp_path)

    assert await checkpoints.describe() == table(*ROWS) == state_of(tmp_path)[0]


@pytest.mark.seed("C-45")
async def test_index_and_count_follow_rewind_undo_and_redo_and_no_file_goes(tmp_path: Path) -> None:
    checkpoints = await three(tmp_path)
    files = {path: path.read_text() for path in (tmp_path / "checkpoints").glob("0*.md")}

    await checkpoints.mark_current([1])
    rewound = state_of(tmp_path)
    await checkpoints.add("# Four", stop=15)
    grown = state_of(tmp_path)
    await checkpoints.mark_current([])
    emptied = state_of(tmp_path)
    await checkpoints.mark_current({1, 2, 3})
    redone = state_of(tmp_path)

    four = "| 4 | Four | 004-four.md |"
    assert rewound == (f"{table(ROWS[0])}\n{TAKEN_BACK}: 002-two.md, 003-three.md\n", "summary_count: 1\n")
    assert grown == (f"{table(ROWS[0], four)}\n{TAKEN_BACK}: 002-two.md, 003-three.md\n", "summary_count: 2\n")
    assert emptied == (
        f"# Checkpoints\n\n{NO_CHECKPOINTS}\n\n{TAKEN_BACK}: 001-one.md, 002-two.md, 003-three.md, 004-four.md\n",
        "summary_count: 0\n",
    )
    assert redone == (f"{table(*ROWS)}\n{TAKEN_BACK}: 004-four.md\n", "summary_count: 3\n")
    assert {path: path.read_text() for path in files} == files


@pytest.mark.seed("C-45")
async def test_a_number_is_given_once_even_if_its_checkpoint_no_longer_stands(tmp_path: Path) -> None:
    checkpoints = await three(tmp_path)
    await checkpoints.mark_current([])

    assert (await checkpoints.add("# Three", stop=1)).path.name == "004-three.md"
    await checkpoints.mark_current([])
    (tmp_path / "checkpoints/004-three.md").unlink()
    assert (await checkpoints.add("# Five", stop=1)).path.name == "005-five.md"
    assert state_of(tmp_path)[1] == "summary_count: 1\n"


async def test_nothing_is_written_where_nothing_changes(tmp_path: Path) -> None:
    checkpoints = await three(tmp_path)
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*")}

    await checkpoints.mark_current([1, 2, 3])
    await checkpoints.describe()

    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("damage", [None, b"", b"\x00" * 50, b"\xff\xfe", b"| 1 | other |", b"summary_cou"])
async def test_what_is_missing_or_damaged_is_made_again_from_the_files(tmp_path: Path, damage: bytes | None) -> None:
    checkpoints = await three(tmp_path)
    await checkpoints.mark_current([1, 3])
    good = state_of(tmp_path)
    for path in (tmp_path / "checkpoints/index.md", tmp_path / "workspace.yaml"):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)

    assert await checkpoints.describe() == good[0]
    assert state_of(tmp_path) == good
    aside = tmp_path / "workspace.yaml.damaged"
    assert (aside.read_bytes() if aside.exists() else b"") == (damage or b"")


async def test_each_workspace_file_that_is_not_flat_is_kept_aside_once(tmp_path: Path) -> None:
    checkpoints, workspace = Checkpoints(tmp_path), tmp_path / "workspace.yaml"
    for content in (b"[first]", b"[second]", b"[first]"):
        workspace.write_bytes(content)
        await checkpoints.add("A summary.", stop=1)

    aside = {path.name: path.read_bytes() for path in tmp_path.glob("workspace.yaml.*")}
    assert aside == {"workspace.yaml.damaged": b"[first]", "workspace.yaml.damaged-2": b"[second]"}
    assert workspace.read_bytes() == b"summary_count: 3\n"


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"---\nnumber: 2\n", b'---\nnumber: 2\ntitle: "a\nstop: x\n---'])
async def test_a_damaged_checkpoint_is_told_by_its_name(tmp_path: Path, damage: bytes) -> None:
    checkpoints = await three(tmp_path)
    (tmp_path / "checkpoints/002-two.md").write_bytes(damage)

    assert await checkpoints.describe() == table(ROWS[0], "| 2 | two | 002-two.md |", ROWS[2])
    assert (tmp_path / "checkpoints/002-two.md").read_bytes() == damage


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b'{"a": 1}', b'["1", null]', b"[" * 100_000])
async def test_where_it_is_not_known_what_was_taken_back_everything_stands(tmp_path: Path, damage: bytes) -> None:
    checkpoints = await three(tmp_path)
    await checkpoints.mark_current([1])
    (tmp_path / "checkpoints/.undone.json").write_bytes(damage)

    assert await checkpoints.describe() == table(*ROWS)
    await checkpoints.mark_current([1])
    assert state_of(tmp_path)[1] == "summary_count: 1\n"


async def test_what_is_not_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    checkpoints = await three(tmp_path)
    folder = tmp_path / "checkpoints"
    (folder / "notes.md").write_text("mine")
    (folder / "004-folder.md").mkdir()
    (folder / "005-link.md").symlink_to(folder / "notes.md")
    os.mkfifo(folder / "006-pipe.md")
    Path(os.fsdecode(os.fsencode(folder) + b"/007-\xff|\t.md")).write_text("")

    assert await checkpoints.describe() == table(*ROWS, "| 7 |  | 007-?\\|?.md |")
    assert (await checkpoints.add("# Next", stop=1)).number == 8
    assert (folder / "notes.md").read_text() == "mine"


async def test_writers_at_the_same_time_never_write_over_each_other(tmp_path: Path) -> None:
    async def write(name: str) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(WRITER), str(tmp_path), name, "4", stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0]

    said = await asyncio.gather(*(write(f"writer{name}") for name in range(3)))

    numbers = sorted(int(line) for lines in said for line in lines.split())
    index, workspace = state_of(tmp_path)
    assert numbers == list(range(1, 13))
    assert sorted(path.name[10:-5] for path in (tmp_path / "checkpoints").glob("0*.md")) == sorted(
        f"{name}" for name in range(3) for _ in range(4)
    )
    assert [int(row) for row in re.findall(r"^\| (\d+) \|", index, re.MULTILINE)] == numbers
    assert workspace == "summary_count: 12\n"
    assert list((tmp_path / "checkpoints").glob(".*")) == []


async def test_what_another_writer_adds_meanwhile_is_in_the_index_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "checkpoints/002-other.md"

    def overtaken(path: Path, key: str, number: int) -> None:
        set_yaml_number(path, key, number)
        other.touch()

    monkeypatch.setattr(checkpoints_module, "set_yaml_number", overtaken)
    await Checkpoints(tmp_path).add("# Mine", stop=1)

    assert state_of(tmp_path) == (
        table("| 1 | Mine | 001-mine.md |", "| 2 | other | 002-other.md |"),
        "summary_count: 2\n",
    )


@pytest.mark.parametrize("seed", range(3))
async def test_after_a_kill_every_acknowledged_checkpoint_is_there_and_whole(tmp_path: Path, seed: int) -> None:
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(tmp_path), "w", "1000"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(random.Random(seed).randint(1, 12))]
    process.send_signal(signal.SIGKILL)
    process.communicate()

    checkpoints = Checkpoints(tmp_path)
    added = await checkpoints.add("# After", stop=1)
    files = sorted((tmp_path / "checkpoints").glob("0*.md"))

    assert {int(path.name[:3]) for path in files} >= {*acknowledged, added.number}
    assert all(len(path.read_text().split()) > 2_000 for path in files[:-1])
    assert state_of(tmp_path)[1] == f"summary_count: {len(files)}\n"


async def test_what_a_disk_refuses_is_an_error_that_says_what_to_do_and_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoints = await three(tmp_path)
    good = state_of(tmp_path)
    (tmp_path / "checkpoints/index.md").unlink()
    (tmp_path / "checkpoints/index.md").mkdir()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())

    with pytest.raises(WorkspaceUnavailableError, match="a folder stands where a file should be") as refused:
        await checkpoints.add("# Four", stop=1)

    assert isinstance(refused.value, HoldfastError)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == names
    assert await checkpoints.describe() == good[0]


@pytest.mark.parametrize("at", [".", "checkpoints"])
async def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path, at: str) -> None:
    place = tmp_path / "session" / at
    place.parent.mkdir(exist_ok=True)
    place.write_text("a file")
    checkpoints = Checkpoints(tmp_path / "session")

    for attempt in (checkpoints.add("# One", stop=1), checkpoints.mark_current([1]), checkpoints.describe()):
        if at == "." and attempt.__name__ != "add":
            await attempt
            continue
        with pytest.raises(WorkspaceUnavailableError, match="a file stands where a folder should be"):
            await attempt


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "choose a folder that can be written to"),
        (errno.EACCES, "let this user write there, or choose another folder"),
        (errno.EIO, "check the path"),
    ],
)
def test_each_refusal_of_a_disk_comes_with_what_to_do(number: int, remedy: str) -> None:
    with pytest.raises(WorkspaceUnavailableError) as refused, translate_disk_errors(Path("/some/folder")):
        raise OSError(number, os.strerror(number))

    assert str(refused.value) == f"/some/folder: {os.strerror(number)}; {remedy}"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "summary_count: 7\n"),
        ("id: c1", "id: c1\nsummary_count: 7\n"),
        ("id: c1\r\n", "id: c1\r\nsummary_count: 7\r\n"),
        ("a: 1\nsummary_count: 3\nb: 2\n", "a: 1\nsummary_count: 7\nb: 2\n"),
        ("summary_count: 3 # ours\n", "summary_count: 7 # ours\n"),
        ("summary_count: # ours", "summary_count: 7 # ours"),
        ("'summary_count' : three\r\n", "summary_count: 7\r\n"),
        ("summary_count: 1\nsummary_count: 2\n", "summary_count: 7\nsummary_count: 7\n"),
        ("summary_count:\n  - 1\n  # why\n- 2\nb: 2\n", "summary_count: 7\n  # why\nb: 2\n"),
        ("notes: |\n  summary_count: 3\n\nsummary_counts: 9\n", None),
        ("# c\n---\na: 1\n...\n---\nb: 2\n", "# c\n---\na: 1\nsummary_count: 7\n...\n---\nb: 2\n"),
        ("%YAML 1.2\n---\n", "%YAML 1.2\n---\nsummary_count: 7\n"),
        ("\ufeffsummary_count: 3\nü: ß\n", "\ufeffsummary_count: 7\nü: ß\n"),
    ],
)
def test_one_line_of_a_yaml_file_is_changed_and_no_other(content: str, expected: str | None) -> None:
    assert is_flat_yaml_mapping(content.encode())
    assert with_yaml_number(content.encode(), "summary_count", 7).decode() == (
        expected or f"{content}summary_count: 7\n"
    )


@given(st.lists(st.from_regex(r"[a-z_]{1,9}: [^\r\n\x00]{0,9}|  - [a-z]*|# [^\r\n\x00]*", fullmatch=True)))
def test_other_lines_of_a_yaml_file_stay_as_they_are(lines: list[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()

    once = with_yaml_number(content, "summary_count", 7)

    assert once == content + b"summary_count: 7\n"
    assert with_yaml_number(once, "summary_count", 8) == content + b"summary_count: 8\n"


@pytest.mark.parametrize("content", ["{a: 1}\n", "[1]\n", "torn", "a: 1\ntor", "a:1\n"])
def test_a_yaml_file_that_is_no_plain_mapping_is_known_for_one(content: str) -> None:
    assert not is_flat_yaml_mapping(content.encode())
