"""A thread that does one thing after another for whoever awaits it.

What a disk takes is nobody's to know beforehand, so an event loop never waits for one. An executor from the standard
library does the same for twice the time, and that is paid for every message that is recorded.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

T = TypeVar("T")
_Queue: TypeAlias = "SimpleQueue[Callable[[], object] | None]"


class WorkerThread:
    """Begins with the first thing to do, and ends with its owner."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: _Queue | None = None

    async def run(self, action: Callable[[], T]) -> T:
        """Return what an action comes to; one that was given up before its turn is not done."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(lambda: None if future.cancelled() else _run_and_settle(action, future, loop))
        return await future

    def submit(self, action: Callable[[], object]) -> None:
        """Do something that nobody waits for, in its turn; whatever it raises is told to nobody."""
        self._put(action)

    def _put(self, action: Callable[[], object]) -> None:
        if self._queue is None:
            self._queue = SimpleQueue()
            # A program may end without waiting for it: what was not acknowledged may be missing, nothing is half done.
            threading.Thread(target=_work, args=(self._queue,), name=self._name, daemon=True).start()
            weakref.finalize(self, self._queue.put, None)
        self._queue.put(action)


def _work(queue: _Queue) -> None:
    while (action := queue.get()) is not None:
        with suppress(Exception):
            action()
        # While there is nothing to do nobody is to be kept alive by what was done last.
        del action


def _run_and_settle(action: Callable[[], T], future: "asyncio.Future[T]", loop: asyncio.AbstractEventLoop) -> None:
    try:
        settle = partial(future.set_result, action())
    except BaseException as error:  # noqa: BLE001 - it is raised where the action is awaited
        settle = partial(future.set_exception, error)
    # Where the loop was closed meanwhile there is nobody to tell.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: future.done() or settle())
