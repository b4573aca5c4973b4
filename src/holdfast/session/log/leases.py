"""Leases: names for the owner of unfinished work in a log, from which another process sees whether it has exited."""

import os
import socket
import sys

HELD_HERE: set[str] = set()
"""The leases that tasks of this process hold.

All sessions of the process share the set, because a lease names the process and not the session. Without it, a session
would treat another session's running compaction as abandoned. A holder adds its lease before it records it, and
discards it when it ends.
"""
QUERY_LIMITED_INFORMATION, NO_SUCH_PROCESS, STILL_ACTIVE = 0x1000, 87, 259
"""Numbers of the Windows API."""


def new_owner_id() -> str:
    """Return a new lease: the host, the process, and a random number."""
    from secrets import token_hex  # noqa: PLC0415 - most sessions need no owner

    return f"{socket.gethostname()}:{os.getpid()}:{token_hex(4)}"


def has_owner_exited(owner: str) -> bool:
    """Return whether the owner has certainly ended; False for an owner on another host, which cannot be checked."""
    host, process = owner.split(":")[:2] if owner.count(":") > 1 else ("", "0")
    if owner in HELD_HERE or host != socket.gethostname() or not process.isdecimal():
        return False
    # A lease of this process that is not held is from an earlier process with the same number.
    return int(process) == os.getpid() or not is_process_running(int(process))


def is_process_running(process: int) -> bool:
    """Return whether a process of this machine runs; True if that cannot be found out."""
    if sys.platform == "win32":  # pragma: no cover - written for a platform that the tests do not have
        return _is_windows_process_running(process)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _is_windows_process_running(process: int) -> bool:  # pragma: no cover - as above
    # `os.kill` with 0 is no question there: it sends the process a Ctrl-C.
    import ctypes  # noqa: PLC0415 - for this platform only

    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - unknown to type checkers elsewhere
    handle = kernel.OpenProcess(QUERY_LIMITED_INFORMATION, 0, process)
    if not handle:
        return kernel.GetLastError() != NO_SUCH_PROCESS
    try:
        code = ctypes.c_ulong()
        return not kernel.GetExitCodeProcess(handle, ctypes.byref(code)) or code.value == STILL_ACTIVE
    finally:
        kernel.CloseHandle(handle)
