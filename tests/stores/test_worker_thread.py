"""The worker thread runs actions in order, returns their results, and does not delay the exit of the program."""

import asyncio
import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.stores.sqlite.store import WorkerThread

NAME = "holdfast-test"
LEFT_OPEN = """
import asyncio, sys
from holdfast.stores.sqlite.store import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    print(await store.append("s", [{"n": 1}], after=0, time_ms=1))

asyncio.run(main())
"""


LEFT_WORKING = """
import asyncio, sys, threading
from holdfast.stores.sqlite.store import SqliteStore

began, never = threading.Event(), threading.Event()

async def main():
    store = SqliteStore(sys.argv[1])
    await store.length("s")
    running = asyncio.ensure_future(store.run_in_thread(lambda database: (began.set(), never.wait())))
    await asyncio.to_thread(began.wait)
    print("working")
    running.cancel()

asyncio.run(main())
"""


async def test_actions_run_one_after_another_in_order() -> None:
    thread, done = WorkerThread(NAME), list[tuple[int, str]]()

    def note(number: int) -> int:
        done.append((number, threading.current_thread().name))
        return -number

    results = await asyncio.gather(*(thread.run(lambda n=number: note(n)) for number in range(20)))

    assert results == [-number for number in range(20)]
    assert done == [(number, NAME) for number in range(20)]


async def test_the_error_of_an_action_is_raised_where_it_is_awaited_and_the_thread_continues() -> None:
    thread = WorkerThread(NAME)

    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    thread.submit(lambda: 1 // 0)

    assert await thread.run(lambda: 1) == 1


async def test_an_action_cancelled_before_it_starts_does_not_run() -> None:
    thread, gate, done = WorkerThread(NAME), threading.Event(), list[str]()
    first = asyncio.ensure_future(thread.run(gate.wait))
    second = asyncio.ensure_future(thread.run(lambda: done.append("second")))
    await asyncio.sleep(0)

    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.set()

    assert await first is True
    assert await thread.run(lambda: done) == []


async def test_an_action_cancelled_while_it_runs_runs_to_its_end() -> None:
    thread, began, gate, done = WorkerThread(NAME), threading.Event(), threading.Event(), list[str]()

    def act() -> None:
        began.set()
        gate.wait()
        done.append("done")

    task = asyncio.ensure_future(thread.run(act))
    await asyncio.to_thread(began.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()

    assert await thread.run(lambda: done) == ["done"]


def test_a_closed_event_loop_does_not_stop_the_thread() -> None:
    thread, began, gate = WorkerThread(NAME), threading.Event(), threading.Event()

    async def leave() -> None:
        task = asyncio.ensure_future(thread.run(lambda: (began.set(), gate.wait())))
        await asyncio.to_thread(began.wait)
        task.cancel()

    asyncio.run(leave())
    gate.set()

    assert asyncio.run(thread.run(lambda: 1)) == 1


def test_the_thread_ends_with_its_owner() -> None:
    owner = WorkerThread(NAME)
    thread = asyncio.run(owner.run(threading.current_thread))
    assert thread.is_alive()

    del owner
    gc.collect()
    thread.join(timeout=60)

    assert not thread.is_alive()


def test_a_program_that_never_closes_its_store_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", LEFT_OPEN, str(tmp_path / "chats.db")]

    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_program_that_ends_while_its_store_works_does_not_wait_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEFT_WORKING, str(tmp_path / "chats.db")]

    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)

    assert done.stdout == "working\n"
