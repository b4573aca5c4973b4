"""An event loop in a thread of its own, for callers that have none, or a different one for each call.

A session belongs to one event loop. Threads, scripts, and frameworks that start a loop for each run use their sessions
on this loop: there is one for each process, started at its first use and again after a fork.
"""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
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
        """Return the result of a coroutine, for a caller on another event loop."""
        return await asyncio.wrap_future(self.start(work))

    def start(self, work: Coroutine[object, object, T]) -> "concurrent.futures.Future[T]":
        """Start a coroutine on the loop; raises `WrongEventLoopError` on the loop itself, where waiting would hang."""
        loop = self._running_loop()
        if _current_loop() is loop:
            work.close()
            problem = "would wait for itself for ever here, as in a callback; call it in another thread"
            raise WrongEventLoopError("a blocking method", problem)
        return asyncio.run_coroutine_threadsafe(work, loop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="holdfast-loop", daemon=True).start()
            return self._loop


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


BACKGROUND_LOOP = BackgroundLoop()
"""The background loop of this process."""
