"""Files that only their owner can read, and locks on files, on every platform."""

import errno
import os
import stat
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.errors import SettingsError, StoreUnavailableError

PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE = 0o600, 0o700
LOCK_TIMEOUT_SECONDS, LOCK_POLL_SECONDS = 10.0, 0.01
SQLITE_MAGIC = b"SQLite format 3\x00"
"""How every SQLite file begins."""
_DISK_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EROFS: "choose a folder that can be written to",
    errno.EMFILE: "allow more open files (`ulimit -n`)",
    errno.ENFILE: "close some programs: the system has no more open files",
}
"""What to do about refusals that say nothing about the path."""


def disk_remedy(error: OSError, otherwise: str = "check the path") -> str:
    """Return what to do about an error of a file."""
    return _DISK_REMEDIES.get(error.errno or 0, otherwise)


def create_private_folder(path: Path) -> None:
    """Create a folder, and its missing parents, with access for the owner only."""
    if not path.parent.exists():
        create_private_folder(path.parent)
    path.mkdir(PRIVATE_FOLDER_MODE, exist_ok=True)


def create_private_file(path: Path) -> None:
    """Create a file and its folders so that only their owner can read them; a file that is there becomes private."""
    create_missing_file(path)
    make_private(path)


def create_missing_file(path: Path) -> None:
    """Create a file and its folders so that only their owner can read them; a file that is there stays as it is."""
    if path.is_dir():
        raise StoreUnavailableError(str(path), "it is a folder; name a file in it")
    if not path.exists():
        create_private_folder(path.parent)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, PRIVATE_FILE_MODE))
    elif not path.is_file():
        # Its permissions are not ours to change: those of a device are everybody's.
        raise StoreUnavailableError(str(path), "it is a device or a pipe, and not a file; choose another path")


def make_private(path: Path) -> None:
    """Take a file away from everybody but its owner, if that is this user."""
    with suppress(OSError):  # on a read-only mount it stays as it is
        if stat.S_IMODE(path.stat().st_mode) & 0o077 and is_own_file(path.stat()):
            path.chmod(PRIVATE_FILE_MODE)


def is_missing(path: Path) -> bool:
    """Return whether there is nothing at a path; False if that cannot be checked, as in the folder of another user.

    `Path.exists` raises then. Whoever goes on to open the file gets the same error, and can say what it is about.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def real_path(path: Path) -> Path:
    """Return where a path leads, through links; raises `OSError` for links that lead to each other.

    `Path.resolve` raises `RuntimeError` for these, or returns one of them, depending on the version of Python.
    """
    try:
        found = path.resolve()
        is_loop = found.is_symlink()
    except RuntimeError:
        found, is_loop = path, True
    if is_loop:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return found


def is_own_file(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user; True where files have no numbered owners."""
    return sys.platform == "win32" or status.st_uid == os.geteuid()


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process, and return whether that worked; closing the file releases the lock."""
    try:
        if sys.platform == "win32":  # pragma: no cover - written for a platform that the tests do not have
            import msvcrt  # noqa: PLC0415 - only there

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl  # noqa: PLC0415 - not on every platform

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN, errno.EDEADLK}:
            return False
        raise
    return True


def wait_for_lock(descriptor: int) -> None:
    """Lock an open file as soon as no other process has it; raises `TimeoutError` if that takes too long."""
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process has held the lock for {LOCK_TIMEOUT_SECONDS:g} s; try again later")
        time.sleep(LOCK_POLL_SECONDS)


@contextmanager
def locked_file(path: Path) -> Generator[None]:
    """Let one process at a time read a file and replace it.

    The lock is on its folder, because the file is replaced. Where folders cannot be locked, the last writer wins.
    """
    folder = path.parent
    with suppress(OSError):  # links that lead to each other: what uses the file tells
        folder = real_path(path).parent
    try:
        create_private_folder(folder)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield  # whoever reads the file in there says what is wrong
        return
    try:
        try:
            wait_for_lock(descriptor)
        except TimeoutError as error:
            raise SettingsError("the file", str(error), where=str(folder)) from error
        except OSError:
            pass  # folders cannot be locked here
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, pieces: Iterable[bytes], mode: int = PRIVATE_FILE_MODE) -> None:
    """Replace a file; after a crash at any moment, either the old or the new file is there, complete."""
    from secrets import token_hex  # noqa: PLC0415 - most sessions write no file

    # Nobody can guess the name, and put a link there that the text would be written through.
    part = path.with_name(f".{path.name}.{token_hex(8)}.part")
    descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_private_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a private file; an older file is replaced only when everything is written.

    Devices and pipes, such as `/dev/stdout`, are written to and not replaced. A link stays, and its file is replaced.
    A SQLite file is refused: it may be the store that the lines come from, and hold much that is not in them.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8", newline="") as stream:
                stream.writelines(lines)
            return
        path = real_path(path)
        if path.exists() and _is_sqlite_file(path):
            raise StoreUnavailableError(str(path), "it is a SQLite file, which may hold sessions; choose another path")
        replace_file(path, (line.encode() for line in lines))
    except BrokenPipeError:  # the reader has enough, as of standard output
        raise
    except OSError as error:
        raise StoreUnavailableError(str(path), f"{error.strerror or error}; {disk_remedy(error)}") from error


def _is_sqlite_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def is_folder_writable(folder: Path) -> bool:
    """Return whether this process may create files in a folder: False on a read-only mount, even for root."""
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def file_identity(path: str | Path, *, with_content: bool = False) -> tuple[int, ...] | None:
    """Return the device and inode of a file, also its size and time of change; None if there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - every write asks, and a `Path` takes three times as long as its text
    except FileNotFoundError:
        return None
    identity = status.st_dev, status.st_ino
    return (*identity, status.st_size, status.st_mtime_ns) if with_content else identity
