"""Files that only their owner can read."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from holdfast.errors import DamagedStoreError, StoreUnavailableError

PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE = 0o600, 0o700


def create_private_file(path: Path) -> None:
    """Create a file and its folder so that only their owner can read them."""
    if path.is_dir():
        raise DamagedStoreError(str(path), "it is a folder")
    path.parent.mkdir(mode=PRIVATE_FOLDER_MODE, parents=True, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, PRIVATE_FILE_MODE))
    elif stat.S_IMODE(path.stat().st_mode) & 0o077 and path.stat().st_uid == os.getuid():
        path.chmod(PRIVATE_FILE_MODE)


def write_private_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a private file; an older file is replaced only when everything is written."""
    part = path.with_name(f"{path.name}.part")
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, PRIVATE_FILE_MODE)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.writelines(lines)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreUnavailableError(str(path), f"{error.strerror or error}; check the path") from error


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
