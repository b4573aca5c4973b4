"""Leases: names for the owner of unfinished work in a log, from which another process sees whether it has exited."""

import os
import socket

HELD_HERE: set[str] = set()
"""The leases that tasks of this process hold.

All sessions of the process share the set, because a lease names the process and not the session. Without it, a session
would treat another session's running compaction as abandoned. A holder adds its lease before it records it, and
discards it when it ends.
"""


def new_owner_id() -> str:
    """Return a new lease: the host, the process, and a random number."""
    return f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"


def has_owner_exited(owner: str) -> bool:
    """Return whether the owner has certainly ended; False for an owner on another host, which cannot be checked."""
    host, process = owner.split(":")[:2] if owner.count(":") > 1 else ("", "0")
    if owner in HELD_HERE or host != socket.gethostname() or not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return int(process) == os.getpid()
