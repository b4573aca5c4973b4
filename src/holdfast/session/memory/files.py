"""Files that several processes and a person write to: one at a time, whole or not at all, for their owner's eyes only.

Who changes one holds the lock of its folder, reads it as it is then, and puts the new one in its place. A lock dies
with the process that holds it.
"""

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import WorkspaceUnavailableError
from holdfast.session.workspace import PRIVATE_FILE, disk_errors_of, make_private_folder, read_or_none, replace_private

LOCK = ".lock"
PATIENCE_SECONDS, STEP_SECONDS = 10.0, 0.01
MAX_BYTES = 4_000_000
"""Of a file that is read: more was not written by us, nor by a person."""


def changed(path: Path, change: Callable[[str], str]) -> bool:
    """Give a file another content, made of the one it has now; return whether that was another one."""
    with disk_errors_of(path), locked(path.parent):
        before = text_of(path)
        after = change(before)
        if after != before:
            replace_private(path, after.encode(errors="replace"))
        return after != before


def text_of(path: Path) -> str:
    """Return what a file says; nothing where there is none."""
    content = read_or_none(path) or b""
    return content[:MAX_BYTES].decode(errors="replace").removeprefix("\ufeff")


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
