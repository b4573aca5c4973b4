"""Detects use on another event loop, thread or process.

Locks, tasks and connections of asyncio belong to one loop. A second loop would wait for ever for what only the first
can finish, so the mistake is reported at once.
"""

import asyncio
import os

from holdfast.errors import WrongEventLoopError


class EventLoopGuard:
    """Belongs to the event loop and the process of its first check."""

    def __init__(self, what: str) -> None:
        """`what` names the guarded object in the error."""
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    @property
    def has_loop_ended(self) -> bool:
        """Whether the loop was closed in this process, so that no task can still use the object."""
        return self._loop is not None and self._process == os.getpid() and self._loop.is_closed()

    def check(self) -> None:
        """Raise `WrongEventLoopError` unless this is the loop and the process of the first check."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._process = loop, os.getpid()
        elif self._loop is not loop or self._process != os.getpid():
            raise WrongEventLoopError(self._what)
