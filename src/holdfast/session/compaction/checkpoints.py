"""The summaries of a session as files that people can read: `checkpoints/NNN-title.md`.

A checkpoint file is written atomically, once, and never deleted. A second file lists the numbers that a rewind or an
undo has taken out of force. `index.md` and `summary_count` in `workspace.yaml` are derived from these files and are
rebuilt when they are missing, damaged or out of date. No file and no title contains what looks like a key: a digest
quotes the messages, and only the log keeps them whole.

Several processes may write. Each claims a number by creating a file exclusively. After a write, each rebuilds the
derived files until a scan of the folder finds no further change.
"""

import asyncio
import json
import os
import re
import unicodedata
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from holdfast.core.planning.summary.prompt import TITLE_ELEMENT
from holdfast.dataclass import dataclass
from holdfast.redaction import redact_text
from holdfast.session.memory.locked_files import (
    read_if_exists,
    set_yaml_number,
    translate_disk_errors,
    write_atomically,
)
from holdfast.stores.files import PRIVATE_FILE_MODE, create_private_folder
from holdfast.text import lazy_pattern

CHECKPOINT_FOLDER, INDEX_FILE, WORKSPACE_FILE, COUNT_KEY = "checkpoints", "index.md", "workspace.yaml", "summary_count"
UNDONE_FILE = ".undone.json"
NO_CHECKPOINTS = "No checkpoints yet. Checkpoints are created when context is compacted."
MAX_TITLE_CHARS, MAX_SLUG_CHARS = 60, 30
MAX_REFRESH_ROUNDS = 20
"""How often one write rebuilds the derived files; if other writers are still busy after that, they rebuild them."""
MAX_FRONT_MATTER_BYTES = 2_048
_FILE_NAME = lazy_pattern(r"(?P<number>[0-9]{3,9})-(?P<slug>.+)\.md")
_FRONT_MATTER = lazy_pattern(
    r"---\r?\nnumber: [0-9]+\r?\ntitle: (?P<title>\".*\")\r?\nstop: (?P<stop>[0-9]{1,18})\r?\n---\r?\n"
)
_TITLE_LINE = lazy_pattern(r"[#*_\s]*title[*_]*\s*[:：][*_]*(.+)", re.IGNORECASE)
_HEADING = lazy_pattern(r"#\s+(.+)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One stored summary."""

    number: int
    title: str
    path: Path
    stop: int | None
    """The summary covers messages before this position; None if the file no longer says which."""


@dataclass(frozen=True, slots=True)
class _CheckpointFiles:
    """The checkpoint files on disk, and the numbers that are no longer in force."""

    all: tuple[Checkpoint, ...] = ()
    undone: frozenset[int] = frozenset()

    @property
    def in_force(self) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self.all if checkpoint.number not in self.undone]


def summary_title(summary: str) -> str | None:
    """Return the title that a summary gives itself, as one short line, or None.

    The first of these counts: the text of a `<checkpoint_title>` element anywhere; a first line `Title: …`; a first
    line that is a heading of level one. Deeper headings name sections.
    """
    if tag := TITLE_ELEMENT.search(summary):
        return _one_line(tag[1]) or None
    first = next((line.strip() for line in summary.split("\n") if line.strip()), "")
    found = _TITLE_LINE.fullmatch(first) or _HEADING.fullmatch(first)
    return (_one_line(found[1]) or None) if found else None


def title_slug(title: str) -> str:
    """Return a title as part of a file's name: letters, digits and hyphens, in any script."""
    # Keep category M too: many scripts write vowel signs as marks, not as letters.
    kept = [char if char.isalnum() or unicodedata.category(char)[0] == "M" else " " for char in title.lower()]
    slug = "-".join(unicodedata.normalize("NFC", "".join(kept)).split())
    return slug[:MAX_SLUG_CHARS].rstrip("-") or "checkpoint"


def _one_line(text: str) -> str:
    """Return a text as one line, without emphasis marks and invisible characters, cut between words."""
    seen = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text)
    words = " ".join(seen.split()).strip("*_`#| ")
    if len(words) <= MAX_TITLE_CHARS:
        return words
    whole_words = words[:MAX_TITLE_CHARS].rpartition(" ")[0]
    return f"{whole_words or words[: MAX_TITLE_CHARS - 1]}…"


class Checkpoints:
    """The checkpoints of one session, in the session's own folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self._files = self.folder / CHECKPOINT_FOLDER

    async def add(self, summary: str, *, title: str | None = None, stop: int) -> Checkpoint:
        """Store a summary of the messages before a position, and return its checkpoint; durable when this returns.

        Without `title`, the summary's own title is used, or else the checkpoint's number. A failure leaves no file. A
        cancelled call may still write the file; the next `mark_current` marks it as not in force.
        """
        return await asyncio.to_thread(self._add, summary, title, stop)

    async def mark_current(self, numbers: Collection[int]) -> None:
        """List only the checkpoints with these numbers in the index and the count.

        Call it after every change of context. No file is deleted, so a redo brings a checkpoint back unchanged.
        """
        await asyncio.to_thread(self._mark_current, frozenset(numbers))

    async def describe(self) -> str:
        """Return the list of checkpoints as text for people."""
        return await asyncio.to_thread(self._describe)

    def _add(self, summary: str, title: str | None, stop: int) -> Checkpoint:
        summary, title = redact_text(summary), title and redact_text(title)
        with translate_disk_errors(self._files):
            create_private_folder(self.folder)
            create_private_folder(self._files)
            with self._claim_number() as number:
                named = _one_line(title or "") or summary_title(summary) or f"Checkpoint {number}"
                path = self._files / f"{number:03}-{title_slug(named)}.md"
                head = f"---\nnumber: {number}\ntitle: {json.dumps(named, ensure_ascii=False)}\nstop: {stop}\n---\n\n"
                write_atomically(path, (head + summary.rstrip() + "\n").encode(errors="replace"))
            try:
                self._refresh()
            except OSError:
                path.unlink(missing_ok=True)
                raise
            return Checkpoint(number, named, path, stop)

    def _mark_current(self, numbers: frozenset[int]) -> None:
        with translate_disk_errors(self._files):
            if not self._files.exists() and not (self.folder / WORKSPACE_FILE).exists():
                return
            create_private_folder(self._files)
            undone = sorted({checkpoint.number for checkpoint in self._scan().all} - numbers)
            if undone or (self._files / UNDONE_FILE).exists():
                write_atomically(self._files / UNDONE_FILE, json.dumps(undone).encode())
            self._refresh()

    def _describe(self) -> str:
        with translate_disk_errors(self._files):
            if not self._files.exists():
                return NO_CHECKPOINTS
            with suppress(OSError):  # a reader without write permission still gets the list
                self._refresh()
            return _render_index(self._scan())

    @contextmanager
    def _claim_number(self) -> Generator[int]:
        """Yield a number that no file has and no other writer can claim meanwhile."""
        found = self._scan()
        # Skip undone numbers too: a new file with such a number would count as undone.
        number = max([*(checkpoint.number for checkpoint in found.all), *found.undone], default=0) + 1
        while not (claim := self._claim(number)):
            number += 1
        try:
            yield number
        finally:
            claim.unlink(missing_ok=True)

    def _claim(self, number: int) -> Path | None:
        claim = self._files / f".{number:03}.claim"
        try:
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE_MODE))
        except FileExistsError:
            return None
        # Another writer may have written its file and released its claim since the scan.
        if any(checkpoint.number == number for checkpoint in self._scan().all):
            claim.unlink(missing_ok=True)
            return None
        return claim

    def _refresh(self) -> None:
        """Rebuild the index and the count from the checkpoint files."""
        for _ in range(MAX_REFRESH_ROUNDS):
            found = self._scan()
            write_atomically(self._files / INDEX_FILE, _render_index(found).encode())
            set_yaml_number(self.folder / WORKSPACE_FILE, COUNT_KEY, len(found.in_force))
            if self._scan() == found:
                return

    def _scan(self) -> _CheckpointFiles:
        with os.scandir(self._files) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
        found = [checkpoint for name in names if (checkpoint := _read_checkpoint(self._files / name)) is not None]
        found.sort(key=lambda checkpoint: (checkpoint.number, checkpoint.path.name))
        return _CheckpointFiles(tuple(found), _parse_numbers(read_if_exists(self._files / UNDONE_FILE)))


def _read_checkpoint(path: Path) -> Checkpoint | None:
    """Return the checkpoint in a file; if its front matter is missing or damaged, its name is used."""
    name = _FILE_NAME.fullmatch(path.name)
    if name is None:
        return None
    head = None
    try:
        with path.open("rb") as file:
            head = _FRONT_MATTER.match(file.read(MAX_FRONT_MATTER_BYTES).decode(errors="replace"))
    except FileNotFoundError:  # its writer failed and removed it
        return None
    except OSError:
        pass
    title, stop = name["slug"].replace("-", " "), None
    if head is not None:
        stop = int(head["stop"])
        with suppress(ValueError):
            title = str(json.loads(head["title"]))
    return Checkpoint(int(name["number"]), _one_line(title), path, stop)


def _parse_numbers(content: bytes | None) -> frozenset[int]:
    """Return the numbers listed in a file; none if it cannot be parsed."""
    with suppress(ValueError, RecursionError):
        listed: object = json.loads(content or b"[]")
        if isinstance(listed, list):
            return frozenset(number for number in cast("list[object]", listed) if isinstance(number, int))
    return frozenset()


def _render_index(found: _CheckpointFiles) -> str:
    """Return the index: a table of the checkpoints in force, and the file names of the undone ones."""
    rows = [
        f"| {checkpoint.number} | {_table_cell(checkpoint.title)} | {_table_cell(checkpoint.path.name)} |"
        for checkpoint in found.in_force
    ]
    table = "\n".join(["| # | Title | File |", "|---|---|---|", *rows])
    parts = ["# Checkpoints", table if rows else NO_CHECKPOINTS]
    if undone := [_table_cell(checkpoint.path.name) for checkpoint in found.all if checkpoint.number in found.undone]:
        parts.append(f"Taken back by a rewind or an undo, and kept: {', '.join(undone)}")
    return "\n\n".join(parts) + "\n"


def _table_cell(text: str) -> str:
    """Return a text escaped for a table cell; another program may have put a file with any name there."""
    return re.sub(r"([|\\])", r"\\\1", "".join(char if char.isprintable() else "?" for char in text))
