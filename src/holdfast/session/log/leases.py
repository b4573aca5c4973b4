"""Owners of compactions and delegations, by which another process sees whether the work was abandoned."""

import os
import secrets
import socket

HELD_HERE: set[str] = set()
"""The owners at work in this process."""


def new_owner_id() -> str:
    """Return a new owner id: a host, a process and a random number."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def has_owner_exited(owner: str) -> bool:
    """Return whether the owning process has certainly exited; on another host that cannot be known."""
    host, process = owner.split(":")[:2] if owner.count(":") > 1 else ("", "0")
    if owner in HELD_HERE or host != socket.gethostname() or not process.isdecimal():
        return False
    return int(process) == os.getpid() or not _is_alive(int(process))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
