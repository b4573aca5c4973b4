"""Tools with which a model changes and creates files of one folder. The user sees each change and is asked first.

Nothing outside the folder is written, whatever a path, `..` or a link says, nothing of version control, and no file
that the model may not read. A file that configures Holdfast itself is asked about even if the user accepts every
change. A file that was changed after the user agreed is left alone.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat, takewhile
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeAlias

from holdfast.apps.chat.events import Consent
from holdfast.apps.chat.tools.configuration import ConfigurationFiles, folded_name
from holdfast.apps.chat.tools.files import MAX_FILE_BYTES, FileTools, ToolRefusal, may_hold_secrets
from holdfast.apps.settings.settings import Settings
from holdfast.text import pluralize

UNCHANGED_FOLDERS = frozenset({".git", ".hg", ".svn"})
"""A file in these can make another program run a command."""
ALWAYS_ASKED_REASON = "it may configure Holdfast or hold secrets, so you are asked each time"
CONTEXT_LINES = 3
_LINE_END = re.compile(r"\r?\n")
LINE_END_NAMES = {"\n": "LF", "\r\n": "CRLF", "\r": "CR", "": "no line end"}
CHANGE_REFUSED = "the user did not allow this change; do without it, or ask what to do instead"


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of a file that a model proposes."""

    path: str
    added: int
    removed: int
    diff: str
    is_new: bool
    is_always_asked: bool = False
    """Whether the user is asked even if every change is accepted."""

    def __str__(self) -> str:
        return f"{'Create' if self.is_new else 'Change'} {self.path} (+{self.added:,} −{self.removed:,} lines)"


AskChange: TypeAlias = Callable[[FileChange], Awaitable[Consent]]


class EditTools:
    """The tools that change files of one folder."""

    def __init__(
        self, files: FileTools, ask: AskChange, *, is_accepted: bool = False, settings: Settings | None = None
    ) -> None:
        """`is_accepted` applies changes without asking; `settings` say which other files configure Holdfast."""
        self._files = files
        self._configuration = ConfigurationFiles(files.root, settings)
        self._ask = ask
        self._is_accepted = is_accepted
        self._question_lock = asyncio.Lock()

    async def edit_file(self, path: str, old_text: str, new_text: str, *, replace_all: bool = False) -> str:
        """Replace a text in a file by another; the user is asked first.

        Args:
            path: The file, relative to the working folder.
            old_text: The text to replace, exactly as it is in the file; it must be there once.
            new_text: The text to write instead.
            replace_all: Replace the text wherever it is.
        """
        found = self._resolve(path)
        if isinstance(found, str):
            return found
        before = await asyncio.to_thread(_read_exactly, found)
        if before is None:
            if not found.exists():
                return ToolRefusal(f"{path} is not a text file; write_file creates one")
            return ToolRefusal(f"{path} {await asyncio.to_thread(_why_no_text, found)}, and stays as it is")
        count, after = _replace_text(before, old_text, new_text) if old_text else (0, before)
        if not count:
            return ToolRefusal(f"old_text is not in {path} as it is written there; read the file again")
        if count > 1 and not replace_all:
            return ToolRefusal(f"old_text is in {path} {count:,} times; add lines around it, or set replace_all")
        return await self._apply(found, before, after)

    async def write_file(self, path: str, text: str) -> str:
        """Create a file, or replace all that is in it; the user is asked first.

        Args:
            path: The file, relative to the working folder; folders that are missing are created.
            text: What the file holds afterwards.
        """
        found = self._resolve(path)
        if isinstance(found, str):
            return found
        before = await asyncio.to_thread(_read_exactly, found)
        if before is None and found.exists():
            return ToolRefusal(f"{path} {await asyncio.to_thread(_why_no_text, found)}, and stays as it is")
        return await self._apply(found, before, text)

    def _resolve(self, path: str) -> Path | ToolRefusal:
        found = self._files.resolve_inside(path)
        if isinstance(found, str):
            return found
        if UNCHANGED_FOLDERS & {folded_name(part) for part in found.relative_to(self._files.root).parts}:
            return ToolRefusal(f"{path} belongs to version control, and is not changed by hand")
        if _is_secret(found) and found.exists():
            return ToolRefusal(f"{path} may hold secrets; only the user can read and change it")
        return found

    async def _apply(self, path: Path, before: str | None, after: str) -> str:
        name = str(path.relative_to(self._files.root))
        if len(after.encode("utf-8", "surrogatepass")) > MAX_FILE_BYTES:
            return ToolRefusal(f"{name} would be larger than {MAX_FILE_BYTES:,} bytes")
        if after == before:
            return f"{name} holds that already"
        text = f"{before or ''}\n{after}"
        is_always_asked = _is_secret(path) or await asyncio.to_thread(self._configuration.has, path, text)
        change = replace(describe_change(name, before, after), is_always_asked=is_always_asked)
        async with self._question_lock:
            consent = "yes" if self._is_accepted and not is_always_asked else await self._ask(change)
        self._is_accepted = self._is_accepted or (consent == "always" and not is_always_asked)
        if consent == "no":
            return ToolRefusal(CHANGE_REFUSED)
        try:
            is_written = await asyncio.to_thread(_replace_file, path, before, after)
        except (OSError, UnicodeError) as error:
            return ToolRefusal(f"{name} could not be written: {error}")
        if not is_written:
            return ToolRefusal(f"{name} was changed meanwhile; read it again")
        done = "created" if before is None else "changed"
        return f"{done} {name}: {pluralize(change.added, 'line')} added, {change.removed:,} removed"


def describe_change(path: str, before: str | None, after: str) -> FileChange:
    """Return a change with the lines that differ, and some lines around them; their ends, if only these differ."""
    old, new = _lines_with_ends(before or ""), _lines_with_ends(after)
    head = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    rest = zip(reversed(old[head:]), reversed(new[head:]), strict=False)
    tail = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))
    removed, added = old[head : len(old) - tail], new[head : len(new) - tail]
    around = old[max(0, head - CONTEXT_LINES) : head], old[len(old) - tail :][:CONTEXT_LINES]
    signed = ((" ", around[0]), ("-", removed), ("+", added), (" ", around[1]))
    is_about_ends = [*map(_without_end, removed)] == [*map(_without_end, added)]
    shown = _with_named_end if is_about_ends else _without_end
    diff = "\n".join(f"{sign}{shown(line)}" for sign, lines in signed for line in lines)
    return FileChange(path, len(added), len(removed), diff, is_new=before is None)


def _lines_with_ends(text: str) -> list[str]:
    """Return the lines of a text. Only a line feed ends one: other programs ignore what else `splitlines` splits at."""
    *ended, rest = text.split("\n")
    return [f"{line}\n" for line in ended] + ([rest] if rest else [])


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _with_named_end(line: str) -> str:
    bare = _without_end(line)
    return f"{bare} [{LINE_END_NAMES[line.removeprefix(bare)]}]"


def _replace_text(text: str, old: str, new: str) -> tuple[int, str]:
    """Return how often a text is in another one, and that with each of them replaced.

    A model sees no carriage returns, so a line feed in `old` stands for any line end. Each line of `new` gets the end
    that this line had in the text, or else the end of the line before it.
    """
    if "\r" in old or "\r\n" not in text:
        return text.count(old), text.replace(old, new)
    ends = _LINE_END.findall(text)
    parts = text.replace("\r\n", "\n").split(old)
    new_lines = new.replace("\r\n", "\n").split("\n")
    used = 0
    pieces: list[str] = []
    for number, part in enumerate(parts):
        if number:
            after = used + old.count("\n")
            own = ends[used:after] or ends[used : used + 1] or ends[-1:]
            pieces.append(_join_lines(new_lines, own))
            used = after
        lines = part.split("\n")
        pieces.append(_join_lines(lines, ends[used : used + len(lines) - 1]))
        used += len(lines) - 1
    return len(parts) - 1, "".join(pieces)


def _join_lines(lines: Sequence[str], ends: Sequence[str]) -> str:
    """Return lines with their ends; the last end stands for those that are missing."""
    following = chain(ends, repeat(ends[-1] if ends else "\n"))
    return "".join(chain.from_iterable(zip(lines[:-1], following, strict=False))) + lines[-1]


def _why_no_text(path: Path) -> str:
    """Return why `_read_exactly` does not return what is there."""
    try:
        if path.is_dir():
            return "is a folder"
        if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
            return f"is larger than {MAX_FILE_BYTES:,} bytes"
        return "is not a text file" if not path.is_file() or b"\0" in path.read_bytes() else "is not UTF-8"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _is_secret(path: Path) -> bool:
    return may_hold_secrets(path.name) or may_hold_secrets(folded_name(path.name))


def _read_exactly(path: Path) -> str | None:
    """Return a file as text, line ends included; None if there is none, or it is not text."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return None
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeError):
        return None
    return None if "\0" in text else text


def _replace_file(path: Path, before: str | None, after: str) -> bool:
    """Write a file whole or not at all; return False if it does not hold `before` any more."""
    if _read_exactly(path) != before:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("wb", dir=path.parent, prefix=".holdfast-", delete=False) as new:
        try:
            new.write(after.encode("utf-8"))
            new.flush()
            os.fsync(new.fileno())
            mode = path.stat().st_mode & 0o777 if before is not None else 0o666 & ~_umask()
            Path(new.name).chmod(mode)
            Path(new.name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(new.name).unlink()
            raise
    return True


def _umask() -> int:
    """Return the mask of new files; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
