"""The files a conversation has read or written, which lines, and a hash of the content.

A call names a file; only its result proves that the file was read or written. The hash shows whether two readings
differ without storing either.
"""

import re
from collections.abc import Iterator
from dataclasses import field, replace
from hashlib import sha256

from holdfast.core.ledger.tool_calls import LineRange, ObservedCall
from holdfast.dataclass import dataclass

MAX_LEDGER_FILES = 2_000
HASH_CHARS = 12
# The line numbers of `cat -n` and most tools that read files.
_NUMBERED = r"\s*(\d+)(?:\t|→|\||:\s)"


@dataclass(frozen=True, slots=True)
class FileAccess:
    """A single read or write of a file."""

    position: int
    lines: LineRange | None
    """The first and last line, if the arguments or the output name them."""
    content_hash: str
    """A hash of the text that was read or written; empty if that is unknown."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file, with its latest read and its latest write."""

    path: str
    first: int
    last: int
    """The positions of the first and last messages about it."""
    last_read: FileAccess | None = None
    last_write: FileAccess | None = None

    def __str__(self) -> str:
        accesses = [
            f"{verb} {f'{access.lines[0]}-{access.lines[1]} ' if access.lines else ''}#{access.position}"
            for verb, access in (("wrote", self.last_write), ("read", self.last_read))
            if access
        ]
        return f"{self.path}: {', '.join(accesses)}" if accesses else f"{self.path} #{self.last}"


@dataclass(slots=True)
class FileRecords:
    """Files by path, the most recently used last."""

    _files: dict[str, FileRecord] = field(default_factory=dict[str, FileRecord])

    def __iter__(self) -> Iterator[FileRecord]:
        return iter(self._files.values())

    def observe_call(self, call: ObservedCall) -> None:
        """Record the files that a call names."""
        for path in call.paths:
            self._keep(path, call.position)

    def observe_result(self, call: ObservedCall, output: str, position: int) -> None:
        """Record the read or write of a successful call."""
        if call.kind != "file":
            return
        file = self._keep(call.subject, position)
        if call.is_write:
            file = replace(file, last_write=FileAccess(position, call.lines, _hash(call.content)))
        else:
            file = replace(file, last_read=FileAccess(position, _numbered_range(output) or call.lines, _hash(output)))
        self._files[file.path] = file

    def _keep(self, path: str, position: int) -> FileRecord:
        known = self._files.pop(path, None)
        file = replace(known, last=position) if known else FileRecord(path, position, position)
        self._files[path] = file
        if len(self._files) > MAX_LEDGER_FILES:
            del self._files[next(iter(self._files))]
        return file


def _numbered_range(output: str) -> LineRange | None:
    """Return the first and last line number of an output; None if its lines are not numbered."""
    lines = output.strip("\n")
    first = re.match(_NUMBERED, lines[:40])
    last = re.match(_NUMBERED, lines[lines.rfind("\n") + 1 :][:40])
    if first and last and int(first[1]) <= int(last[1]):
        return int(first[1]), int(last[1])
    return None


def _hash(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()[:HASH_CHARS] if text else ""
