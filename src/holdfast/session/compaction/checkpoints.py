"""The summaries of a session as files that people can read: `checkpoints/NNN-title.md`.

A file is written once, whole, and never deleted. Which of them no longer stand after a rewind or an undo is kept
beside them, and everything else (`index.md`, `summary_count` in `workspace.yaml`) follows from these two and is
made again wherever it is missing, damaged or behind. Several processes may write: a number is claimed by a file
that only one of them can make, and whoever has written looks again until what he wrote is what is there.
"""

import asyncio
import json
import os
import re
import unicodedata
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from holdfast.session.memory.files import (
    WORKSPACE_FILE_MODE,
    create_private_folder,
    read_if_exists,
    set_yaml_number,
    translate_disk_errors,
    write_atomically,
)

CHECKPOINT_FOLDER, INDEX_FILE, WORKSPACE_FILE, COUNT_KEY = "checkpoints", "index.md", "workspace.yaml", "summary_count"
UNDONE_FILE = ".undone.json"
NO_CHECKPOINTS = "No checkpoints yet. Checkpoints are created when context is compacted."
MAX_TITLE_CHARS, MAX_SLUG_CHARS = 60, 30
MAX_REFRESH_ROUNDS = 20
"""So often what was written is looked at again; where others still write after that, they do the rest."""
MAX_FRONT_MATTER_BYTES = 2_048
_FILE_NAME = re.compile(r"(?P<number>[0-9]{3,9})-(?P<slug>.+)\.md")
_FRONT_MATTER = re.compile(
    r"---\r?\nnumber: [0-9]+\r?\ntitle: (?P<title>\".*\")\r?\nstop: (?P<stop>[0-9]{1,18})\r?\n---\r?\n"
)
_TITLE_TAG = re.compile(r"<checkpoint_title>(.{0,500}?)</checkpoint_title>", re.DOTALL | re.IGNORECASE)
_TITLE_LINE = re.compile(r"[#*_\s]*title[*_]*\s*[:：][*_]*(.+)", re.IGNORECASE)
_HEADING = re.compile(r"#\s+(.+)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One summary that was kept."""

    number: int
    title: str
    path: Path
    stop: int | None
    """Messages before this position are in it; None where the file does not say so any more."""


@dataclass(frozen=True, slots=True)
class _CheckpointFiles:
    """What is on the disk, and what no longer stands of it."""

    all: tuple[Checkpoint, ...] = ()
    undone: frozenset[int] = frozenset()

    @property
    def in_force(self) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self.all if checkpoint.number not in self.undone]


def summary_title(summary: str) -> str | None:
    """Return the title that a summary gives itself, on one line and not too long; None if it gives none.

    In this order: what stands in `<checkpoint_title>`, wherever that is; a first line `Title: …`; a first line
    that is a heading of the first level. Deeper headings are names of sections.
    """
    if tag := _TITLE_TAG.search(summary):
        return _one_line(tag[1]) or None
    first = next((line.strip() for line in summary.split("\n") if line.strip()), "")
    found = _TITLE_LINE.fullmatch(first) or _HEADING.fullmatch(first)
    return (_one_line(found[1]) or None) if found else None


def title_slug(title: str) -> str:
    """Return a title as part of a file's name: letters, digits and hyphens, in any script."""
    # Category M: the vowel signs of many scripts are marks and not letters.
    kept = [char if char.isalnum() or unicodedata.category(char)[0] == "M" else " " for char in title.lower()]
    slug = "-".join(unicodedata.normalize("NFC", "".join(kept)).split())
    return slug[:MAX_SLUG_CHARS].rstrip("-") or "checkpoint"


def _one_line(text: str) -> str:
    """Return a text on one line, without marks of emphasis and what cannot be seen, cut at a word."""
    seen = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text)
    words = " ".join(seen.split()).strip("*_`#| ")
    if len(words) <= MAX_TITLE_CHARS:
        return words
    whole_words = words[:MAX_TITLE_CHARS].rpartition(" ")[0]
    return f"{whole_words or words[: MAX_TITLE_CHARS - 1]}…"


class Checkpoints:
    """The checkpoints of one session, in a folder of its own."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files = self.folder / CHECKPOINT_FOLDER

    async def add(self, summary: str, *, title: str | None = None, stop: int) -> Checkpoint:
        """Keep a summary of the messages before a position, and return where; durable when this returns.

        Without a title it has the one that it gives itself, or its number. A failure leaves nothing behind; a
        caller that is cancelled may find it there all the same, until the next `align`.
        """
        return await asyncio.to_thread(self._add, summary, title, stop)

    async def mark_current(self, numbers: Collection[int]) -> None:
        """Let the index and the count tell of these only, by number; to be called whenever the context has changed.

        No file goes: a checkpoint that stands again after a redo is there as it was.
        """
        await asyncio.to_thread(self._mark_current, frozenset(numbers))

    async def describe(self) -> str:
        """Return what there is, for people to read."""
        return await asyncio.to_thread(self._describe)

    def _add(self, summary: str, title: str | None, stop: int) -> Checkpoint:
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
            with suppress(OSError):  # who may only read is told all the same
                self._refresh()
            return _render_index(self._scan())

    @contextmanager
    def _claim_number(self) -> Generator[int]:
        """Give a number that nobody else has: no file has it, and no other writer can make the claim we hold."""
        found = self._scan()
        # A number that was taken back would be so again.
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
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, WORKSPACE_FILE_MODE))
        except FileExistsError:
            return None
        # A writer whose claim is gone has left a file.
        if any(checkpoint.number == number for checkpoint in self._scan().all):
            claim.unlink(missing_ok=True)
            return None
        return claim

    def _refresh(self) -> None:
        """Make what follows from the files follow from them."""
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
    """Return what a file says of itself, and where it does not, what its name says."""
    name = _FILE_NAME.fullmatch(path.name)
    if name is None:
        return None
    head = None
    try:
        with path.open("rb") as file:
            head = _FRONT_MATTER.match(file.read(MAX_FRONT_MATTER_BYTES).decode(errors="replace"))
    except FileNotFoundError:  # a writer that failed has taken it away again
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
    """Return the numbers in a file; none where it cannot be read."""
    with suppress(ValueError, RecursionError):
        listed: object = json.loads(content or b"[]")
        if isinstance(listed, list):
            return frozenset(number for number in cast("list[object]", listed) if isinstance(number, int))
    return frozenset()


def _render_index(found: _CheckpointFiles) -> str:
    """Return the index: what stands in a table, and the names of what does not."""
    standing = found.in_force
    parts = ["# Checkpoints", _table(standing) if standing else NO_CHECKPOINTS]
    if undone := [_table_cell(checkpoint.path.name) for checkpoint in found.all if checkpoint.number in found.undone]:
        parts.append(f"Taken back by a rewind or an undo, and kept: {', '.join(undone)}")
    return "\n\n".join(parts) + "\n"


def _table(checkpoints: Sequence[Checkpoint]) -> str:
    rows = [
        f"| {checkpoint.number} | {_table_cell(checkpoint.title)} | {_table_cell(checkpoint.path.name)} |"
        for checkpoint in checkpoints
    ]
    return "\n".join(["| # | Title | File |", "|---|---|---|", *rows])


def _table_cell(text: str) -> str:
    """Return a text that can stand in a table; a file that others have put there may be called anything."""
    return re.sub(r"([|\\])", r"\\\1", "".join(char if char.isprintable() else "?" for char in text))
