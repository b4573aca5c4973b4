"""Files that only their owner can read, and how one is told from another in its place."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from holdfast.errors import DamagedStoreError, StoreUnavailableError

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def make_private(path: Path) -> None:
    """Create file and folder so that nobody else can read them."""
    if path.is_dir():
        raise DamagedStoreError(str(path), "it is a folder")
    path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, PRIVATE_FILE))
    elif stat.S_IMODE(path.stat().st_mode) & 0o077 and path.stat().st_uid == os.getuid():
        path.chmod(PRIVATE_FILE)


def write_private(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file that only its owner can read; an older one goes only when all is written."""
    part = path.with_name(f"{path.name}.part")
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, PRIVATE_FILE)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.writelines(lines)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreUnavailableError(str(path), f"{error.strerror or error}; check the path") from error


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from any other that may take its place; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
