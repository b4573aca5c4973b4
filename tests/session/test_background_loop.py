"""The background loop runs coroutines for callers on other loops: results, errors and cancellations go both ways."""

import asyncio
import gc
import threading
from contextvars import ContextVar, copy_context
from weakref import ref

import pytest

from holdfast.session.background_loop import BACKGROUND_LOOP, BackgroundLoop

WORD: ContextVar[str] = ContextVar("word", default="")


async def test_a_coroutine_runs_on_the_other_loop_in_the_callers_context() -> None:
    async def work() -> tuple[bool, str]:
        return asyncio.get_running_loop() is caller, WORD.get()

    caller = asyncio.get_running_loop()
    WORD.set("said here")

    assert await BACKGROUND_LOOP.await_result(work()) == (False, "said here")


def test_what_the_first_caller_has_in_its_context_is_not_kept() -> None:
    class Held:
        """What a framework keeps in the context of a run."""

    async def work() -> bool:
        return variable.get() is not None

    async def where() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        return asyncio.get_running_loop(), threading.current_thread()

    def first_run() -> tuple[bool, ref[Held]]:
        held = Held()
        variable.set(held)
        return background.run(work()), ref(held)

    variable, background = ContextVar[Held | None]("variable", default=None), BackgroundLoop()
    was_there, held = copy_context().run(first_run)
    loop, thread = background.run(where())
    gc.collect()

    assert (was_there, held()) == (True, None)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_an_error_is_raised_where_the_result_is_awaited() -> None:
    async def work() -> None:
        raise LookupError("nothing here")

    with pytest.raises(LookupError, match="nothing here"):
        await BACKGROUND_LOOP.await_result(work())


async def test_a_caller_that_is_cancelled_cancels_the_coroutine() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(BACKGROUND_LOOP.await_result(work()))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 10)


async def test_a_coroutine_that_has_not_begun_when_its_caller_is_cancelled_never_does() -> None:
    released, is_blocked, begun = threading.Event(), threading.Event(), list[str]()

    async def block() -> None:
        is_blocked.set()
        released.wait()  # the loop can start nothing meanwhile

    async def work() -> None:
        begun.append("work")

    blocking = BACKGROUND_LOOP.start(block())
    await asyncio.to_thread(is_blocked.wait)
    waiting = asyncio.create_task(BACKGROUND_LOOP.await_result(work()))
    await asyncio.sleep(0)  # until it waits
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    released.set()

    await asyncio.wrap_future(blocking)
    assert await BACKGROUND_LOOP.await_result(_read(begun)) == []


async def test_a_coroutine_that_cancels_itself_ends_the_wait() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await BACKGROUND_LOOP.await_result(work())


def test_a_result_for_a_loop_that_has_ended_is_dropped() -> None:
    released, ended = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            await asyncio.to_thread(released.wait)
        finally:
            ended.set()

    loop = asyncio.new_event_loop()
    waiting = loop.create_task(BACKGROUND_LOOP.await_result(work()))
    loop.run_until_complete(asyncio.sleep(0))
    waiting.get_coro().close()  # as at the end of the interpreter: nobody waits, and nobody was cancelled
    loop.set_exception_handler(_ignore)  # it reports a task that never ended
    loop.close()
    released.set()

    assert ended.wait(60)
    assert BACKGROUND_LOOP.run(_read(["the loop goes on"])) == ["the loop goes on"]


async def _read(found: list[str]) -> list[str]:
    return found


def _ignore(loop: asyncio.AbstractEventLoop, problem: dict[str, object]) -> None:
    del loop, problem
