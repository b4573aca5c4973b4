"""Work in processes of its own, on all cores; whoever is interrupted keeps what is done.

Only the process that was started hears of an interrupt or a request to terminate: the others are born deaf to both, so
that none dies with a traceback, however early it comes. They share nothing but a pipe each, so nothing is left behind,
and one that dies costs only what it was at.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Generic, Protocol, TypeVar, cast

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
IGNORED_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
WORKER_DIED = "the process that was at it has ended"


class PipeEnd(Protocol):
    """One end of a pipe."""

    def send(self, obj: object, /) -> None:
        """Send something."""
        ...

    def recv(self) -> object:
        """Return what was sent, when it is there."""
        ...

    def close(self) -> None:
        """Need it no more."""
        ...


class WorkerPool(Generic[ItemT, ResultT]):
    """Does one kind of work to many things at once."""

    def __init__(
        self, work: Callable[[ItemT], ResultT], failure_result: Callable[[str], ResultT], *, workers: int | None = None
    ) -> None:
        """`work` is a function of a module; `failed` says what became of a piece of work that could not be done."""
        self._work = work
        self._failure_result = failure_result
        self._workers = max(1, workers or os.cpu_count() or 1)
        self.signal = 0
        """What it was stopped by."""

    async def run(
        self, items: Sequence[ItemT], order: Sequence[int], on_result: Callable[[int, ResultT], object]
    ) -> None:
        """Do everything in an order, and tell of each piece when it is done; return early when interrupted."""
        waiting = deque(order)
        with self._stop_on_sigterm():
            started = [_start_worker() for _ in range(min(self._workers, len(order)))]
            try:
                serving = (self._feed_worker(pipe, items, waiting, on_result) for _, pipe in started)
                await asyncio.gather(*serving)
                for number in waiting:
                    on_result(number, self._failure_result(WORKER_DIED))
            except asyncio.CancelledError:
                self.signal = self.signal or signal.SIGINT
                if (task := asyncio.current_task()) is not None:
                    task.uncancel()
            finally:
                for process, pipe in started:
                    process.kill()
                    process.join()
                    pipe.close()

    async def _feed_worker(
        self,
        pipe: PipeEnd,
        items: Sequence[ItemT],
        waiting: deque[int],
        on_result: Callable[[int, ResultT], object],
    ) -> None:
        """Give one process something to do until nothing is left."""
        # Pieces are large: each process gets all of them once, and what goes through the pipe later is small.
        is_alive = await asyncio.to_thread(_send, pipe, (self._work, list(items)))
        while waiting and is_alive:
            number = waiting.popleft()
            answer = await asyncio.to_thread(_request_result, pipe, number)
            is_alive = answer is not None
            result, problem = answer or (None, WORKER_DIED)
            on_result(number, self._failure_result(problem) if problem else cast("ResultT", result))

    @contextmanager
    def _stop_on_sigterm(self) -> Generator[None]:
        """Let a request to terminate end the work as an interrupt does."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            self.signal = signal.SIGTERM
            if task is not None:
                task.cancel()

        with suppress(RuntimeError, ValueError, NotImplementedError):  # only the main thread may listen
            loop.add_signal_handler(signal.SIGTERM, stop)
        try:
            yield
        finally:
            with suppress(RuntimeError, ValueError, NotImplementedError):
                loop.remove_signal_handler(signal.SIGTERM)


def _start_worker() -> tuple[SpawnProcess, PipeEnd]:
    """Return a process that waits for something to do, and the pipe to it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    # It would end our deafness, were it started together with the first process.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        process = context.Process(target=_worker_loop, args=(theirs,), daemon=True)
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    return process, ours


def _worker_loop(pipe: PipeEnd) -> None:
    """Do what is asked for, until nobody asks any more."""
    with suppress(EOFError, OSError):
        work, pieces = cast("tuple[Callable[[object], object], Sequence[object]]", pipe.recv())
        while True:
            number = cast("int", pipe.recv())
            try:
                answer: tuple[object, str] = work(pieces[number]), ""
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and the others go on
                answer = None, f"{type(error).__name__}: {error}"
            pipe.send(answer)


def _send(pipe: PipeEnd, what: object) -> bool:
    """Send something to a process, and return whether it is there to take it."""
    try:
        pipe.send(what)
    except OSError:
        return False
    return True


def _request_result(pipe: PipeEnd, number: int) -> tuple[object, str] | None:
    """Have a piece of work done, and return what came of it; None where the process has ended."""
    try:
        pipe.send(number)
        return cast("tuple[object, str]", pipe.recv())
    except (EOFError, OSError):
        return None
