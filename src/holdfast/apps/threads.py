"""Threads of the programs: for input that may never end, and for work that nobody waits for yet."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
NICENESS = 10
"""Of 0 to 19: beside a program that uses the whole core, such work gets a tenth of it."""


async def run_in_daemon_thread(work: Callable[[], T]) -> T:
    """Return the result of work that is done in a thread of its own, which does not keep the program from ending.

    Whoever waits for it can be cancelled, as by a signal; the work then goes on until it ends, or the program does.
    """
    from asyncio import wrap_future  # noqa: PLC0415 - a large part of what `import_at_low_priority` is for
    from concurrent.futures import Future  # noqa: PLC0415 - as above

    ended: Future[T] = Future()
    ended.set_running_or_notify_cancel()  # so that it can be settled after it was cancelled

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the work is awaited
            ended.set_exception(error)

    threading.Thread(target=run, name="holdfast-thread", daemon=True).start()
    return await wrap_future(ended)


async def run_at_low_priority(work: Callable[[], T]) -> T:
    """Return the result of work in a thread that has a low priority where threads can have one.

    Only Linux gives threads priorities of their own, and nobody but root may raise one again. The work may start no
    threads that outlive it: they would have its priority.
    """

    def run() -> T:
        _lower_priority()
        return work()

    return await run_in_daemon_thread(run)


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
