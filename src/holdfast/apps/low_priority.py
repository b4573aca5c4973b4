"""Run work that nobody waits for yet behind all other programs of the machine."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
NICENESS = 10
"""Of 0 to 19: beside a program that uses the whole core, such work gets a tenth of it."""


async def run_at_low_priority(work: Callable[[], T]) -> T:
    """Return the result of work that is done in a thread of its own, at a low priority where threads can have one.

    Only Linux gives threads priorities of their own, and nobody but root may raise one again. The work may start no
    threads that outlive it: they would have its priority.
    """
    import asyncio  # noqa: PLC0415 - a large part of what `import_at_low_priority` is for

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(result)  # pyright: ignore[reportArgumentType]

    def run() -> None:
        _lower_priority()
        try:
            result, error = work(), None
        except BaseException as raised:  # noqa: BLE001 - raised where the work is awaited
            result, error = None, raised
        with suppress(RuntimeError):  # the loop may have been closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="holdfast-low-priority", daemon=True).start()
    return await ended


def import_at_low_priority(imports: Callable[[], None]) -> None:
    """Import as `run_at_low_priority` does, before there is an event loop; what fails is raised when it is needed."""

    def run() -> None:
        _lower_priority()
        with suppress(Exception):
            imports()

    thread = threading.Thread(target=run, name="holdfast-low-priority", daemon=True)
    thread.start()
    thread.join()


def _lower_priority() -> None:
    """Lower the priority of this thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
