"""A clock that a test advances by hand, so that a minute takes no time and tests are deterministic."""

import asyncio
import heapq
from collections.abc import Awaitable
from itertools import count
from typing import TypeVar

from holdfast.session.heavy_work import wait_for_threads

T = TypeVar("T")
SETTLE_ROUNDS = 50
"""Event-loop ticks after which everything that was woken is assumed to have run; fewer where the loop is idle."""
REAL_TIMEOUT_SECONDS = 5.0
"""Real time for work that waits for something real, such as a file or a thread."""
REAL_POLL_SECONDS = 0.01


class SimulatedClock:
    """Time that passes when a test says so: pass `time_ms` and `sleep` to the code under test."""

    def __init__(self, start_ms: int = 0) -> None:
        self._now = start_ms / 1000
        self._numbers = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def time_ms(self) -> int:
        """Return the time in milliseconds."""
        return round(self._now * 1000)

    async def sleep(self, seconds: float) -> None:
        """Return when that much time has passed on this clock."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Let time pass; every sleeper wakes at its own time and may sleep again."""
        end = self._now + seconds
        await self._settle()
        while (due := self._next_due()) is not None and due <= end:
            await self._jump(due)
        self._now = end

    async def run(self, work: Awaitable[T]) -> T:
        """Return the result of an awaitable; time jumps ahead whenever it sleeps."""
        task = asyncio.ensure_future(work)
        waited = 0.0
        try:
            while not task.done():
                await self._settle()
                due = self._next_due()
                if task.done():
                    break
                if due is not None:
                    await self._jump(due)
                    continue
                if waited > REAL_TIMEOUT_SECONDS:
                    raise TimeoutError("the awaitable neither ends nor sleeps on this clock")
                await asyncio.wait({task}, timeout=REAL_POLL_SECONDS)
                waited += REAL_POLL_SECONDS
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return task.result()

    def _next_due(self) -> float | None:
        """Return when the next sleeper is due; cancelled ones are dropped."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    async def _jump(self, due: float) -> None:
        self._now = due
        _, _, woken = heapq.heappop(self._sleepers)
        woken.set_result(None)
        await self._settle()

    async def _settle(self) -> None:
        """Let everything run that needs no time, also in threads: it does not sleep on this clock."""
        await self._run_callbacks()
        while await wait_for_threads():
            await self._run_callbacks()

    async def _run_callbacks(self) -> None:
        # The callbacks that wait for the next tick. A loop that is not asyncio's own may not have this list.
        ready = getattr(asyncio.get_running_loop(), "_ready", (None,))
        for _ in range(SETTLE_ROUNDS):
            await asyncio.sleep(0)
            if not ready:
                return
