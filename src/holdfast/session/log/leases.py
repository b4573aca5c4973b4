"""Who is at something that was begun in a log: a name by which another process sees whether anybody still is."""

import os
import secrets
import socket

HELD_HERE: set[str] = set()
"""The leases that tasks of this process hold.

Shared by all sessions of the process, because a lease names the process and not the session: without it, a session
would take the running compaction of another one for abandoned. A holder adds its lease before it records it, and
discards it when it ends.
"""


def new_owner_id() -> str:
    """Return a name for who begins something here: a host, a process and a number."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def has_owner_exited(owner: str) -> bool:
    """Return whether it is certain that nobody is at it any more: of another host that cannot be known."""
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
