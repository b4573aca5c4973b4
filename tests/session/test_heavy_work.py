"""What takes long for a long conversation is done in threads, so that the event loop goes on meanwhile."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Session, counter_for
from holdfast.core.conversation.messages import user
from holdfast.core.history.history import History
from holdfast.session import heavy_work, prepare
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message

LOOP = "MainThread"
COUNTING, PLANNING, RECORDING = "holdfast-counting_0", "holdfast-planning_0", "holdfast-recording_0"
ThreadsOf = Callable[[object, str], list[str]]


@pytest.fixture
def threads_of(monkeypatch: pytest.MonkeyPatch) -> ThreadsOf:
    """Return a function that collects the names of the threads in which a function of a module is called."""

    def watch(module: object, name: str) -> list[str]:
        threads, original = list[str](), getattr(module, name)

        def called(*args: Any, **named: Any) -> Any:
            threads.append(threading.current_thread().name)
            return original(*args, **named)

        monkeypatch.setattr(module, name, called)
        return threads

    return watch


async def test_a_long_message_is_counted_in_a_thread_and_a_short_one_at_once(
    threads_of: ThreadsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heavy_work, "_counted_bytes", {counter_for("gpt-5").name: heavy_work.COLD_BYTES})
    counted = threads_of(heavy_work, "message_tokens")
    session = await Session.open("long", store=MemoryStore(), model="gpt-5")

    await session.record([user_message("hello")])
    short = [*counted]
    counted.clear()
    await session.record([assistant_message("timber and salt and coal " * 20_000)])

    assert ({*short}, {*counted}) == ({LOOP}, {COUNTING})


async def test_a_counter_counts_short_messages_in_a_thread_until_it_has_counted_some(
    threads_of: ThreadsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heavy_work, "_counted_bytes", {})
    counted = threads_of(heavy_work, "request_tokens")

    for number in range(4):
        await heavy_work.count_messages([user(f"{number}" * 2_500)], counter_for("gpt-5"))

    assert counted == [COUNTING, COUNTING]


async def test_a_long_request_is_planned_in_a_thread_and_a_short_one_at_once(threads_of: ThreadsOf) -> None:
    planned = threads_of(prepare, "view_of")
    session = await Session.open("long", store=MemoryStore(), model="gpt-5")

    await session.record([user_message("hello")])
    await session.prepare(20_000)
    short = [*planned]
    planned.clear()
    for number in range(60):
        await session.record([assistant_message(f"{number} " + "so " * 400), user_message(f"why {number}? " * 80)])
    request = await session.prepare(20_000)

    assert request.receipt.compacted
    assert {*short} == {LOOP}
    assert planned[0] == PLANNING, "what is left after the compaction is short, and planned at once"


async def test_what_a_record_reads_for_the_next_compaction_waits_for_no_plan_of_another_session(
    threads_of: ThreadsOf,
) -> None:
    read = threads_of(History, "ledger")
    session = await Session.open("near", store=MemoryStore(), model="gpt-5")
    await session.record([user_message("salt " * 20_000), assistant_message("coal " * 4_000)])
    await session.prepare(40_000)

    for number in range(4):
        read.clear()
        await session.record([user_message(f"and {number}"), assistant_message("yes")])
        if read:
            break

    assert read == [RECORDING]


def test_a_vocabulary_is_loaded_in_a_thread() -> None:
    program = (
        "import asyncio, threading\n"
        "from holdfast import Session\n"
        "from holdfast.counters import vocabularies\n"
        "load = vocabularies.tokenizer\n"
        "def noted(name):\n"
        "    print(threading.current_thread().name)\n"
        "    return load(name)\n"
        "vocabularies.tokenizer = noted\n"
        "async def main():\n"
        "    async with Session.open('one', model='gpt-5') as session:\n"
        "        await session.record([{'role': 'user', 'content': 'hello'}])\n"
        "        await session.prepare(16_000)\n"
        "asyncio.run(main())"
    )

    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert done.stdout.split() == [COUNTING]


async def test_an_error_of_a_plan_whose_caller_was_cancelled_is_not_reported_by_the_event_loop() -> None:
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    started, may_end = asyncio.Event(), threading.Event()

    def fail() -> None:
        loop.call_soon_threadsafe(started.set)
        may_end.wait(60)
        raise ValueError("it does not fit")

    caller = asyncio.ensure_future(heavy_work.plan_in_thread(fail))
    await started.wait()
    caller.cancel()
    await asyncio.sleep(0)
    may_end.set()

    with suppress(asyncio.CancelledError):
        await caller
    was_cancelled = caller.cancelled()
    del caller
    await heavy_work.plan_in_thread(gc.collect)

    assert (was_cancelled, reported) == (True, [])
