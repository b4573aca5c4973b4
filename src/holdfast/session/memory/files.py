"""Files that several processes and a person write to: one at a time, whole or not at all, for their owner's eyes only.

Who changes one holds the lock of its folder, reads it as it is then, and puts the new one in its place. A lock dies
with the process that holds it. What was not read whole, to the letter, is not written: a person's words would be lost.
A link stays one, and the file that it means is changed.
"""

import fcntl
import os
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import WorkspaceUnavailableError
from holdfast.session.workspace import (
    WORKSPACE_FILE_MODE,
    create_private_folder,
    translate_disk_errors,
    write_atomically,
)

LOCK_FILE = ".lock"
LOCK_TIMEOUT_SECONDS, LOCK_POLL_SECONDS = 10.0, 0.01
MAX_MEMORY_FILE_BYTES = 4_000_000
"""Of a file that is read: more was not written by us, nor by a person."""


def update_file(path: Path, update: Callable[[str], str]) -> bool:
    """Give a file another content, made of the one it has now; return whether that was another one.

    Raises `WorkspaceUnavailableError` where it cannot be read whole, and then it stays as it is.
    """
    with translate_disk_errors(path), folder_lock(path.parent):
        meant = _resolve_link(path)
        before = _read_strictly(meant)
        after = update(before)
        if after != before:
            write_atomically(meant, after.encode(errors="replace"))
        return after != before


def read_text(path: Path) -> str:
    """Return what a file says, as far as it can be read; nothing where there is none."""
    return _read_bytes(path)[:MAX_MEMORY_FILE_BYTES].decode(errors="replace").removeprefix("\ufeff")


def _read_strictly(path: Path) -> str:
    """Return what a file says, to the letter."""
    content = _read_bytes(path)
    if len(content) > MAX_MEMORY_FILE_BYTES:
        limit = f"{MAX_MEMORY_FILE_BYTES:,} bytes"
        problem = f"is larger than {limit}, which is more than is read of it; move a part of it elsewhere"
        raise WorkspaceUnavailableError(str(path), problem)
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        problem = f"is not in UTF-8 from byte {error.start:,} on; save it in UTF-8"
        raise WorkspaceUnavailableError(str(path), problem) from error


def _read_bytes(path: Path) -> bytes:
    """Return what a file holds, and not much more than may be read of it; nothing where there is none."""
    try:
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            # Whoever opens a pipe waits for somebody to write into it.
            raise WorkspaceUnavailableError(str(path), "is no plain file; move it away")
        with path.open("rb") as file:
            return file.read(MAX_MEMORY_FILE_BYTES + 1)
    except FileNotFoundError:
        return b""


def _resolve_link(path: Path) -> Path:
    """Return the file that a path means: where that is a link, the one it points to, if that is this user's own."""
    if not path.is_symlink():
        return path
    try:
        meant = path.resolve(strict=True)
        found = meant.stat()
    except (OSError, RuntimeError):  # a circle of links is the one or the other
        raise WorkspaceUnavailableError(str(path), "is a link to nothing; make the file, or remove it") from None
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        problem = f"is a link to {meant}, which is no plain file of this user; remove it"
        raise WorkspaceUnavailableError(str(path), problem)
    return meant


@contextmanager
def folder_lock(folder: Path) -> Generator[None]:
    """Hold the lock of a folder, which is made where it is not there."""
    create_private_folder(folder)
    descriptor = os.open(folder / LOCK_FILE, os.O_CREAT | os.O_RDWR, WORKSPACE_FILE_MODE)
    try:
        _acquire(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                problem = f"another process has been writing there for {LOCK_TIMEOUT_SECONDS:g} s; see what it is doing"
                raise WorkspaceUnavailableError(str(folder), problem) from None
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return
