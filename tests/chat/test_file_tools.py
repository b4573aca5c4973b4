"""What of a folder a model may read."""

import os
from pathlib import Path

import pytest

from holdfast.apps.chat.tools import files
from holdfast.apps.chat.tools.files import (
    MAX_FILE_BYTES,
    MAX_FILE_HITS,
    MAX_LISTED_FILES,
    MAX_READ_LINE_CHARS,
    MAX_READ_LINES,
    FileTools,
)


@pytest.fixture
def folder(tmp_path: Path) -> FileTools:
    root = tmp_path / "work"
    (root / "src").mkdir(parents=True)
    (root / "node_modules").mkdir()
    (root / "README.md").write_text("# Title\nA parser for tabs.\n")
    (root / "src" / "parser.py").write_text("def parse(tabs):\n    return tabs.split()\n")
    (root / "node_modules" / "big.js").write_text("parse parse parse")
    (root / "image.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "secret.txt").write_text("the password")
    return FileTools(root)


def test_a_folder_is_listed_by_name(folder: FileTools) -> None:
    assert folder.list_files() == "README.md\nimage.png\nnode_modules/\nsrc/"
    assert folder.list_files("src") == "src/parser.py"
    assert folder.list_files(pattern="**/*.py") == "src/parser.py"
    assert folder.list_files(pattern="*.rs") == "nothing in . matches *.rs"
    assert folder.list_files("README.md") == "README.md is a file; use read_file"


def test_a_file_is_read_by_lines(folder: FileTools) -> None:
    assert folder.read_file("README.md") == "# Title\nA parser for tabs."
    assert folder.read_file("README.md", start_line=2) == "A parser for tabs.\n[lines 2–2 of 2]"
    assert folder.read_file("README.md", start_line=9) == "README.md has 2 lines"
    assert folder.read_file("image.png") == "image.png is not a text file, or larger than 10,000,000 bytes"
    assert folder.read_file("src") == "src is a folder; use list_files"


def test_a_long_file_is_read_in_pieces_and_says_so(folder: FileTools) -> None:
    (folder.root / "long.txt").write_text("\n".join(str(number) for number in range(1, 1001)))

    text = folder.read_file("long.txt", lines=10**9)

    assert text.splitlines()[0] == "1"
    assert text.splitlines()[-1] == f"[lines 1–{MAX_READ_LINES} of 1,000]"


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "src/../../secret.txt", "link", "linked/secret.txt"])
def test_nothing_outside_the_folder_is_read_whatever_a_path_or_a_link_says(folder: FileTools, path: str) -> None:
    (folder.root / "link").symlink_to(folder.root.parent / "secret.txt")
    (folder.root / "linked").symlink_to(folder.root.parent)

    outside = f"{path} is outside the working folder; only what is inside can be read or changed"
    assert folder.read_file(path) == outside
    assert folder.search_files("password", path) == outside
    assert folder.search_files("password") == "'password' is in no file of ."


def test_a_path_that_is_none_is_answered_in_words(folder: FileTools) -> None:
    assert folder.read_file("REDME.md") == "there is no REDME.md"
    assert folder.read_file("READ.md") == "there is no READ.md; there is: README.md"
    assert "cannot be read" in folder.read_file("a\0b")
    assert "there is no" in folder.read_file("x" * 300) or "cannot be read" in folder.read_file("x" * 300)


def test_a_search_is_literal_and_says_where(folder: FileTools) -> None:
    assert folder.search_files("PARSE") == ("README.md:2: A parser for tabs.\nsrc/parser.py:1: def parse(tabs):")
    assert folder.search_files("parse(", pattern="*.py") == "src/parser.py:1: def parse(tabs):"
    assert folder.search_files("(a+)+$") == "'(a+)+$' is in no file of ."
    assert folder.search_files("  ") == "say what to look for"


def test_an_attachment_is_read_by_its_name(folder: FileTools) -> None:
    folder.attachments["paste-1.txt"] = "one\ntwo"

    assert folder.read_file("paste-1.txt", start_line=2) == "two\n[lines 2–2 of 2]"


def test_what_is_too_much_is_cut_and_said_to_be(folder: FileTools) -> None:
    many = folder.root / "many"
    many.mkdir()
    for number in range(MAX_LISTED_FILES + 1):
        (many / f"{number:04}.txt").write_text("tide\n")
    (folder.root / "wide.txt").write_text("x" * (MAX_READ_LINE_CHARS + 9))
    (folder.root / "huge.txt").touch()
    os.truncate(folder.root / "huge.txt", MAX_FILE_BYTES + 1)

    listed, found = folder.list_files("many").splitlines(), folder.search_files("tide", "many").splitlines()

    assert (len(listed), listed[-1]) == (
        MAX_LISTED_FILES + 1, f"… more than {MAX_LISTED_FILES}: ask for a folder below, or with a narrower pattern",
    )  # fmt: skip
    assert (len(found), found[-1]) == (MAX_FILE_HITS + 1, f"… more than {MAX_FILE_HITS}: look for something rarer")
    assert folder.read_file("wide.txt") == f"{'x' * MAX_READ_LINE_CHARS} … [9 more characters in this line]"
    assert folder.read_file("huge.txt") == "huge.txt is not a text file, or larger than 10,000,000 bytes"
    assert folder.list_files("../") == "../ is outside the working folder; only what is inside can be read or changed"


def test_a_search_that_does_not_reach_every_file_says_so(folder: FileTools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_SEARCHED_CHARS", 1_000)
    (folder.root / "a_first.txt").write_text("heron\n" + "x" * 900)
    (folder.root / "b_second.txt").write_text("a heron and an egret\n" + "x" * 900)

    omitted = "… more than 1,000 characters: look in a folder below, or in fewer"
    assert folder.search_files("heron", pattern="*_*.txt") == f"a_first.txt:1: heron\n{omitted}"
    assert folder.search_files("egret", pattern="*_*.txt") == f"'egret' was not found so far\n{omitted}"
    assert folder.search_files("egret", pattern="b_*.txt") == "b_second.txt:1: a heron and an egret"


def test_a_file_that_is_too_large_to_be_read_hides_no_other_one(
    folder: FileTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_SEARCHED_CHARS", 1_000)
    with (folder.root / "a_movie.bin").open("wb") as movie:
        movie.truncate(files.MAX_FILE_BYTES + 1)
    (folder.root / "b_notes.txt").write_text("a heron\n")

    assert folder.search_files("heron", pattern="*_*") == "b_notes.txt:1: a heron"
    assert folder.list_files(pattern="**/b_*") == "b_notes.txt"
    assert folder.complete_path("_note") == ["b_notes.txt"]
