"""Private files that several processes and a person write: locked, replaced atomically, readable by the owner only.

An update locks the folder, reads the current file, and replaces it. The operating system releases the lock when the
process exits. A file that cannot be read completely is not written, because a person's text would be lost. If a path is
a symbolic link, the file it points to is changed and the link is kept.

Other programs write `workspace.yaml` too. Only the line of the one number that Holdfast keeps there changes, and every
other line is kept byte for byte. A file that is not a flat mapping is renamed.
"""

import codecs
import errno
import os
import re
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import WorkspaceUnavailableError
from holdfast.stores.files import (
    PRIVATE_FILE_MODE,
    create_private_folder,
    disk_remedy,
    is_own_file,
    replace_file,
    wait_for_lock,
)
from holdfast.text import lazy_pattern

PATH_REMEDIES = {
    errno.EACCES: "let this user write there, or choose another folder",
    errno.EPERM: "let this user write there, or choose another folder",
    errno.ENOTDIR: "a file stands where a folder should be; move it away",
    errno.EEXIST: "a file stands where a folder should be; move it away",
    errno.EISDIR: "a folder stands where a file should be; move it away",
}
_BOM = codecs.BOM_UTF8
_TOP_LINE = lazy_pattern(
    r"""(?:[ \t]|$|\#|%|---|\.\.\.|-[ ]|[\]}])  # what belongs to the line before, or holds nothing
    |(?:(?:"[^"]*"|'[^']*')[ \t]*|[\w.$][^:\#]*):(?:[ \t]|$)  # or a key""",
    re.VERBOSE,
)


@contextmanager
def translate_disk_errors(path: Path) -> Generator[None]:
    """Raise an `OSError` as a `WorkspaceUnavailableError` that says what to do."""
    try:
        yield
    except OSError as error:
        where = str(error.filename or path)
        remedy = disk_remedy(error, PATH_REMEDIES.get(error.errno or 0, "check the path"))
        raise WorkspaceUnavailableError(where, f"{error.strerror or error}; {remedy}") from error


def read_if_exists(path: Path) -> bytes | None:
    """Return the content of a file, or None if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file unless it is the same; a power failure right after that leaves the new file there."""
    if read_if_exists(path) == content:
        return
    replace_file(path, [content])
    with suppress(OSError):  # some systems cannot open a folder, and sync it themselves
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def set_yaml_number(path: Path, key: str, number: int) -> None:
    """Set a number under a key of a YAML file; a file that is not a flat mapping is first renamed to `….damaged`."""
    content = read_if_exists(path) or b""
    if not is_flat_yaml_mapping(content):
        path.replace(_name_of_damaged(path, content))
        content = b""
    write_atomically(path, with_yaml_number(content, key, number))


def _name_of_damaged(path: Path, content: bytes) -> Path:
    """Return where a file is moved: to the first name that is free, or that a file with the same content has."""
    aside, number = path.with_name(f"{path.name}.damaged"), 1
    while read_if_exists(aside) not in {None, content}:
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    return aside


def is_flat_yaml_mapping(content: bytes) -> bool:
    """Return whether every line of a YAML file fits a mapping with one key per line."""
    try:
        lines = [line.decode() for line in content.removeprefix(_BOM).splitlines()]
    except UnicodeDecodeError:
        return False
    return b"\0" not in content and all(_TOP_LINE.match(line) for line in lines)


def with_yaml_number(content: bytes, key: str, number: int) -> bytes:
    """Return a YAML mapping with a number under a key; other lines, and a comment after the number, are kept."""
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
        elif is_inside and line.startswith((b" ", b"\t", b"- ")) and not _is_blank_or_comment(line):
            continue  # the line continues the value that was replaced
        else:
            lines.append(line)
            is_inside = is_inside and _is_blank_or_comment(line)
    if not is_there:
        _insert_line(lines, value)
    return b"".join(lines)


def _is_blank_or_comment(line: bytes) -> bool:
    return not line.strip() or line.lstrip().startswith(b"#")


def _insert_line(lines: list[bytes], line: bytes) -> None:
    """Insert a line at the end of the first document, with the line ending that the file uses."""
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


LOCK_FILE = ".lock"
MAX_MEMORY_FILE_BYTES = 4_000_000
"""The size limit of a file to read; neither Holdfast nor a person writes a larger one."""


def update_file(path: Path, update: Callable[[str], str]) -> bool:
    """Replace the content of a file by a function of it, and return whether it changed.

    Raises `WorkspaceUnavailableError` if the file cannot be read completely, and leaves it unchanged.
    """
    with translate_disk_errors(path), folder_lock(path.parent):
        target = _resolve_link(path)
        before = _read_strictly(target)
        after = update(before)
        if after != before:
            write_atomically(target, after.encode(errors="replace"))
        return after != before


def read_text(path: Path) -> str:
    """Return the text of a file up to the size limit, with undecodable bytes replaced; empty if it does not exist."""
    with translate_disk_errors(path):
        return _read_bytes(path)[:MAX_MEMORY_FILE_BYTES].decode(errors="replace").removeprefix("\ufeff")


def _read_strictly(path: Path) -> str:
    """Return the exact text of a file; raises if it is too large or is not UTF-8."""
    content = _read_bytes(path)
    if len(content) > MAX_MEMORY_FILE_BYTES:
        problem = f"is larger than {MAX_MEMORY_FILE_BYTES:,} bytes, the most that is read; move a part of it elsewhere"
        raise WorkspaceUnavailableError(str(path), problem)
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        problem = f"is not in UTF-8 from byte {error.start:,} on; save it in UTF-8"
        raise WorkspaceUnavailableError(str(path), problem) from error


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file, cut just above the size limit; empty if it does not exist."""
    try:
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            # Opening a pipe would block until another process writes to it.
            raise WorkspaceUnavailableError(str(path), "is no plain file; move it away")
        with path.open("rb") as file:
            return file.read(MAX_MEMORY_FILE_BYTES + 1)
    except FileNotFoundError:
        return b""


def _resolve_link(path: Path) -> Path:
    """Return the file that a path refers to; the target of a link must be a regular file of this user."""
    if not path.is_symlink():
        return path
    try:
        target = path.resolve(strict=True)
        found = target.stat()
    except (OSError, RuntimeError):  # a loop of links raises one or the other
        problem = "is a link to a file that does not exist; create the file, or remove the link"
        raise WorkspaceUnavailableError(str(path), problem) from None
    if not stat.S_ISREG(found.st_mode) or not is_own_file(found):
        problem = f"is a link to {target}, which is not a regular file of this user; remove the link"
        raise WorkspaceUnavailableError(str(path), problem)
    return target


@contextmanager
def folder_lock(folder: Path) -> Generator[None]:
    """Hold the lock of a folder, which is created if it does not exist."""
    create_private_folder(folder)
    descriptor = os.open(folder / LOCK_FILE, os.O_CREAT | os.O_RDWR, PRIVATE_FILE_MODE)
    try:
        try:
            wait_for_lock(descriptor)
        except TimeoutError as error:
            raise WorkspaceUnavailableError(str(folder), str(error)) from error
        yield
    finally:
        os.close(descriptor)
