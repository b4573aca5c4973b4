"""An event loop in a thread of its own, for callers that have none, or a different one for each call.

A session belongs to one event loop. Threads, scripts, and frameworks that start a loop for each run use their sessions
on this loop: there is one for each process, started at its first use and again after a fork.
"""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import TypeVar

from holdfast.errors import WrongEventLoopError

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines of any thread or loop on one event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of a coroutine; if the caller is interrupted meanwhile, the coroutine is cancelled."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def await_result(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of a coroutine, for a caller on another event loop.

        If the caller is cancelled meanwhile, the coroutine is too. Frameworks come here twice in each model call:
        `wrap_future(start(work))` does the same with one more future, its locks and its callbacks.
        """
        loop, caller = self._loop_for(work), asyncio.get_running_loop()
        result: asyncio.Future[T] = caller.create_future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            if not result.cancelled():
                tasks.append(loop.create_task(work))
                tasks[0].add_done_callback(finish)
            else:
                work.close()

        def finish(task: asyncio.Task[T]) -> None:
            with suppress(RuntimeError):  # the caller's loop has ended, and nobody waits
                caller.call_soon_threadsafe(pass_on, task)

        def pass_on(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                result.cancel()
            elif (error := task.exception()) is not None:
                if not result.done():
                    result.set_exception(error)
            elif not result.done():
                result.set_result(task.result())

        loop.call_soon_threadsafe(start)
        try:
            return await result
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            raise

    async def await_completion(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of a coroutine that runs to its end even if the caller is cancelled meanwhile."""
        return await asyncio.shield(asyncio.wrap_future(self.start(work)))

    def call_soon(self, work: Callable[[], object]) -> None:
        """Call a function on the loop, after what was started before, without waiting for it."""
        self._running_loop().call_soon_threadsafe(work)

    def start(self, work: Coroutine[object, object, T]) -> "concurrent.futures.Future[T]":
        """Start a coroutine on the loop; raises `WrongEventLoopError` on the loop itself, where waiting would hang."""
        return asyncio.run_coroutine_threadsafe(work, self._loop_for(work))

    def _loop_for(self, work: Coroutine[object, object, object]) -> asyncio.AbstractEventLoop:
        loop = self._running_loop()
        if _current_loop() is loop:
            work.close()
            problem = "would wait for itself for ever here, as in a callback; call it in another thread"
            raise WrongEventLoopError("a blocking method", problem)
        return loop

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                # It keeps the context in which it is made, and so what a framework has there of its first run.
                self._loop, self._process = Context().run(asyncio.new_event_loop), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="holdfast-loop", daemon=True).start()
            return self._loop


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


BACKGROUND_LOOP = BackgroundLoop()
"""The background loop of this process."""
