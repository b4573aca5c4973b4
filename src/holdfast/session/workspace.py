"""Files beside a session: for their owner's eyes only, and replaced whole or not at all.

`workspace.yaml` belongs to others too, so the one number we keep in it is changed in its own line and every
other line stays as it is, byte for byte. What is not the plain mapping such a file should be is put aside.
"""

import codecs
import errno
import os
import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import WorkspaceUnavailableError

WORKSPACE_FILE_MODE, WORKSPACE_FOLDER_MODE = 0o600, 0o700
DISK_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EACCES: "let this user write there, or choose another folder",
    errno.EPERM: "let this user write there, or choose another folder",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENOTDIR: "a file stands where a folder should be; move it away",
    errno.EEXIST: "a file stands where a folder should be; move it away",
    errno.EISDIR: "a folder stands where a file should be; move it away",
}
_BOM = codecs.BOM_UTF8
_TOP_LINE = re.compile(
    r"""(?:[ \t]|$|\#|%|---|\.\.\.|-[ ]|[\]}])  # what belongs to the line before, or holds nothing
    |(?:"[^"]*"|'[^']*'|[\w.$][^:\#]*?)[ \t]*:(?:[ \t]|$)  # or a key""",
    re.VERBOSE,
)


@contextmanager
def translate_disk_errors(path: Path) -> Generator[None]:
    """Say what is wrong with a disk in our own words."""
    try:
        yield
    except OSError as error:
        where = str(error.filename or path)
        remedy = DISK_REMEDIES.get(error.errno or 0, "check the path")
        raise WorkspaceUnavailableError(where, f"{error.strerror or error}; {remedy}") from error


def create_private_folder(path: Path) -> None:
    """Make a folder that only its owner can open, and those above it, where they are not there yet."""
    if not path.parent.exists():
        create_private_folder(path.parent)
    path.mkdir(WORKSPACE_FOLDER_MODE, exist_ok=True)


def read_if_exists(path: Path) -> bytes | None:
    """Return what a file holds; None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write_atomically(path: Path, content: bytes) -> None:
    """Put a file in the place of an older one; after a crash at any moment there is the one or the other, whole."""
    if read_if_exists(path) == content:
        return
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, WORKSPACE_FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _fsync_folder(path.parent)


def _fsync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every system lets a folder be opened; then it sees to this itself
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def set_yaml_number(path: Path, key: str, number: int) -> None:
    """Keep a number under a key of a YAML file; what is not a mapping is put aside, under a name that says so."""
    content = read_if_exists(path) or b""
    if not is_flat_yaml_mapping(content):
        path.replace(path.with_name(f"{path.name}.damaged"))
        content = b""
    write_atomically(path, with_yaml_number(content, key, number))


def is_flat_yaml_mapping(content: bytes) -> bool:
    """Return whether every line of a YAML file is what it would be in a mapping of one key a line."""
    try:
        lines = [line.decode() for line in content.removeprefix(_BOM).splitlines()]
    except UnicodeDecodeError:
        return False
    return b"\0" not in content and all(_TOP_LINE.match(line) for line in lines)


def with_yaml_number(content: bytes, key: str, number: int) -> bytes:
    """Return a YAML mapping with a number under a key; other lines, and a comment behind it, stay as they are."""
    value = b"%b: %d" % (key.encode(), number)
    ours = re.compile(
        rb"""(?P<mark>%b)?(["']?)%b\2[ \t]*:(?:[ \t][^\r\n]*?)??(?P<comment>[ \t]+#[^\r\n]*)?(?P<end>[\r\n]*)"""
        % (_BOM, re.escape(key.encode()))
    )
    lines: list[bytes] = []
    is_there = is_inside = False
    for line in content.splitlines(keepends=True):
        if found := ours.fullmatch(line):
            lines.append(b"%b%b%b%b" % (found["mark"] or b"", value, found["comment"] or b"", found["end"]))
            is_there = is_inside = True
        elif is_inside and _is_continuation(line):
            continue
        else:
            lines.append(line)
            is_inside = is_inside and _is_blank_or_comment(line)
    if not is_there:
        _insert_line(lines, value)
    return b"".join(lines)


def _is_continuation(line: bytes) -> bool:
    """Return whether a line goes on with the value of the key before it."""
    return line.startswith((b" ", b"\t", b"- ")) and not _is_blank_or_comment(line)


def _is_blank_or_comment(line: bytes) -> bool:
    return not line.strip() or line.lstrip().startswith(b"#")


def _insert_line(lines: list[bytes], line: bytes) -> None:
    """Put a line at the end of the first document, with the line ending of its neighbours."""
    ending = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
    has_content, last = False, len(lines)
    for at, other in enumerate(lines):
        is_mark = other.startswith((b"---", b"..."))
        if is_mark and (has_content or other.startswith(b"...")):
            last = at
            break
        has_content = has_content or not (is_mark or other.startswith(b"%") or _is_blank_or_comment(other))
    if last and not lines[last - 1].endswith((b"\n", b"\r")):
        lines[last - 1] += ending
    lines.insert(last, line + ending)
