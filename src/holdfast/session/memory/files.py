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
from holdfast.session.workspace import PRIVATE_FILE, disk_errors_of, make_private_folder, replace_private

LOCK = ".lock"
PATIENCE_SECONDS, STEP_SECONDS = 10.0, 0.01
MAX_BYTES = 4_000_000
"""Of a file that is read: more was not written by us, nor by a person."""


def changed(path: Path, change: Callable[[str], str]) -> bool:
    """Give a file another content, made of the one it has now; return whether that was another one.

    Raises `WorkspaceUnavailableError` where it cannot be read whole, and then it stays as it is.
    """
    with disk_errors_of(path), locked(path.parent):
        meant = _meant(path)
        before = _whole_text(meant)
        after = change(before)
        if after != before:
            replace_private(meant, after.encode(errors="replace"))
        return after != before


def text_of(path: Path) -> str:
    """Return what a file says, as far as it can be read; nothing where there is none."""
    return _content(path)[:MAX_BYTES].decode(errors="replace").removeprefix("\ufeff")


def _whole_text(path: Path) -> str:
    """Return what a file says, to the letter."""
    content = _content(path)
    if len(content) > MAX_BYTES:
        problem = f"is larger than {MAX_BYTES:,} bytes, which is more than is read of it; move a part of it elsewhere"
        raise WorkspaceUnavailableError(str(path), problem)
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        problem = f"is not in UTF-8 from byte {error.start:,} on; save it in UTF-8"
        raise WorkspaceUnavailableError(str(path), problem) from error


def _content(path: Path) -> bytes:
    """Return what a file holds, and not much more than may be read of it; nothing where there is none."""
    try:
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            # Whoever opens a pipe waits for somebody to write into it.
            raise WorkspaceUnavailableError(str(path), "is no plain file; move it away")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return b""


def _meant(path: Path) -> Path:
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
def locked(folder: Path) -> Generator[None]:
    """Hold the lock of a folder, which is made where it is not there."""
    make_private_folder(folder)
    descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, PRIVATE_FILE)
    try:
        _acquire(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                problem = f"another process has been writing there for {PATIENCE_SECONDS:g} s; see what it is doing"
                raise WorkspaceUnavailableError(str(folder), problem) from None
            time.sleep(STEP_SECONDS)
        else:
            return
