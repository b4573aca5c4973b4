"""A pool of worker processes that uses all cores and keeps the finished results after an interrupt.

Only the parent process handles SIGINT and SIGTERM. Workers start with both signals blocked, so that none dies with a
traceback, however early the signal comes. Each worker is a process pool of size one, so that a worker that dies loses
only the item it was working on.
"""

import asyncio
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar, cast

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
BLOCKED_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
WORKER_DIED = "the worker process has died"
CANCELLED_ELSEWHERE = "the executor has cancelled it"


class WorkerPool(Generic[ItemT, ResultT]):
    """Applies one function to many items at once."""

    def __init__(
        self,
        work: Callable[[ItemT], ResultT],
        failure_result: Callable[[str], ResultT],
        *,
        workers: int | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`work` is a function at module level; `failure_result` returns the result of an item that failed.

        `executor` does the work instead of processes of this machine, and is the caller's to shut down.
        """
        self._executor = executor
        self._work = work
        self._failure_result = failure_result
        self._workers = max(1, workers or os.cpu_count() or 1)
        self.signal = 0
        """The signal that stopped the pool; 0 if none did."""

    async def run(
        self, items: Sequence[ItemT], order: Sequence[int], on_result: Callable[[int, ResultT], object]
    ) -> None:
        """Work on all items in an order and report each result; return early after an interrupt."""
        if self._executor is not None:
            await self._run_elsewhere(self._executor, items, order, on_result)
            return
        waiting = deque(order)
        others = {*active_children()}
        # A pool starts the resource tracker, which unblocks signals, so all pools are created before any is blocked.
        pools = [ProcessPoolExecutor(1, mp_context=get_context("spawn")) for _ in range(min(self._workers, len(order)))]
        with self._stop_on_sigterm(), TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                await asyncio.gather(*(self._feed(pool, items, waiting, on_result, Path(folder)) for pool in pools))
                for number in waiting:
                    on_result(number, self._failure_result(WORKER_DIED))
            except asyncio.CancelledError:
                self._note_interrupt()
            finally:
                for process in {*active_children()} - others:
                    process.kill()
                for pool in pools:
                    pool.shutdown()

    async def _run_elsewhere(
        self,
        executor: Executor,
        items: Sequence[ItemT],
        order: Sequence[int],
        on_result: Callable[[int, ResultT], object],
    ) -> None:
        """Hand everything to an executor, and report each result as it comes."""
        futures = {asyncio.wrap_future(executor.submit(self._work, items[number])): number for number in order}
        waiting = set(futures)
        with self._stop_on_sigterm():
            try:
                while waiting:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for future in done:
                        on_result(futures[future], self._result_of(future))
            except asyncio.CancelledError:
                self._note_interrupt()
                for future in waiting:
                    future.cancel()

    def _result_of(self, future: "asyncio.Future[ResultT]") -> ResultT:
        if future.cancelled():
            return self._failure_result(CANCELLED_ELSEWHERE)
        error = future.exception()
        return self._failure_result(f"{type(error).__name__}: {error}") if error else future.result()

    def _note_interrupt(self) -> None:
        """Let the task go on that an interrupt, or SIGTERM, has cancelled."""
        self.signal = self.signal or signal.SIGINT
        cast("asyncio.Task[object]", asyncio.current_task()).uncancel()

    async def _feed(
        self,
        pool: ProcessPoolExecutor,
        items: Sequence[ItemT],
        waiting: deque[int],
        on_result: Callable[[int, ResultT], object],
        folder: Path,
    ) -> None:
        """Pass items to one worker, one at a time, until none is left or the worker has died.

        An item travels in a file: Python before 3.11.5 waits for ever for a worker that was killed while a long item
        was still on its way to it.
        """
        is_alive = True
        while waiting and is_alive:
            number = waiting.popleft()
            path = folder / str(number)
            try:
                await asyncio.to_thread(_write_item, path, items[number])
                with _blocked_signals():
                    future = pool.submit(_work_on_file, self._work, path)
                result = await asyncio.wrap_future(future)
            except BrokenProcessPool:
                is_alive, result = False, self._failure_result(WORKER_DIED)
            except Exception as error:  # noqa: BLE001 - any error is reported, and the others continue
                result = self._failure_result(f"{type(error).__name__}: {error}")
            on_result(number, result)

    @contextmanager
    def _stop_on_sigterm(self) -> Generator[None]:
        """Handle SIGTERM like an interrupt."""
        loop, task = asyncio.get_running_loop(), cast("asyncio.Task[object]", asyncio.current_task())

        def stop() -> None:
            self.signal = signal.SIGTERM
            task.cancel()

        with suppress(RuntimeError, ValueError, NotImplementedError):  # only the main thread may handle signals
            loop.add_signal_handler(signal.SIGTERM, stop)
        try:
            yield
        finally:
            with suppress(RuntimeError, ValueError, NotImplementedError):
                loop.remove_signal_handler(signal.SIGTERM)


def _write_item(path: Path, item: object) -> None:
    path.write_bytes(pickle.dumps(item))


def _work_on_file(work: Callable[[ItemT], ResultT], path: Path) -> ResultT:
    """Work on an item that is in a file, in a worker."""
    item: ItemT = pickle.loads(path.read_bytes())  # noqa: S301 - written by our own parent process
    path.unlink()
    return work(item)


@contextmanager
def _blocked_signals() -> Generator[None]:
    """Block signals, so that processes started meanwhile inherit the blocked state."""
    if sys.platform == "win32":  # pragma: no cover - processes inherit no blocked signals there
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
