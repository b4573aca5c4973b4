"""The lock of a session: in order, and never lost by a task that is cancelled while it waits."""

import asyncio
from collections.abc import Coroutine

from holdfast.errors import SessionClosedError
from holdfast.session.log.event_log import SessionLock


class Tasks:
    """Tasks that take one lock, and the order in which they had it."""

    def __init__(self) -> None:
        self.lock = SessionLock("s")
        self.order: list[str] = []

    async def take(self, name: str) -> None:
        async with self.lock:
            self.order.append(name)
            await asyncio.sleep(0)

    async def start(self, *names: str) -> list[asyncio.Task[None]]:
        """Start a task for each name; the first has the lock, and the others wait."""
        tasks = [asyncio.create_task(self.take(name)) for name in names]
        await asyncio.sleep(0)
        return tasks


async def test_tasks_get_the_lock_one_after_another_in_the_order_in_which_they_asked() -> None:
    tasks = Tasks()

    await asyncio.gather(*await tasks.start("a", "b", "c"), tasks.take("d"))

    assert tasks.order == ["a", "b", "c", "d"]


async def test_a_task_that_is_cancelled_while_it_waits_is_passed_over() -> None:
    tasks = Tasks()
    first, second, third = await tasks.start("a", "b", "c")
    second.cancel()

    done = await asyncio.gather(first, second, third, return_exceptions=True)

    assert [type(one) for one in done] == [type(None), asyncio.CancelledError, type(None)]
    assert tasks.order == ["a", "c"]


async def test_a_task_that_is_cancelled_as_it_gets_the_lock_passes_it_on() -> None:
    tasks = Tasks()
    await tasks.lock.__aenter__()
    first, second = await tasks.start("a", "b")

    await tasks.lock.__aexit__()
    first.cancel()
    await asyncio.wait([first, second])

    assert first.cancelled()
    assert tasks.order == ["b"]


async def test_a_wait_that_is_closed_instead_of_cancelled_is_passed_over() -> None:
    tasks = Tasks()
    await tasks.lock.__aenter__()
    waiting: Coroutine[object, object, None] = tasks.take("a")
    waiting.send(None)
    waiting.close()

    await tasks.lock.__aexit__()
    await tasks.take("b")

    assert tasks.order == ["b"]


async def test_tasks_that_wait_when_the_session_is_closed_are_all_refused() -> None:
    tasks = Tasks()
    await tasks.lock.__aenter__()
    waiting = await tasks.start("a", "b")

    tasks.lock.is_closed = True
    await tasks.lock.__aexit__()
    done = await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(one) for one in done] == [SessionClosedError] * 2
    assert tasks.order == []


def test_the_lock_that_a_loop_held_when_it_ended_is_free_in_the_next_one() -> None:
    tasks = Tasks()

    async def hold() -> None:
        await tasks.lock.__aenter__()
        await tasks.start("a")

    asyncio.run(hold())
    asyncio.run(tasks.take("b"))

    assert tasks.order == ["b"]
