"""Work that is done behind all other programs of the machine."""

import asyncio
import os
import subprocess
import sys
import threading
from ast import literal_eval

import pytest

from holdfast.apps import threads
from holdfast.apps.threads import NICENESS, import_at_low_priority, run_at_low_priority


def priority_of_this_thread() -> tuple[int, int]:
    thread = threading.get_native_id()
    return thread, os.getpriority(os.PRIO_PROCESS, thread)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives threads priorities of their own")
async def test_the_work_has_a_low_priority_and_the_rest_of_the_program_keeps_its_own() -> None:
    before = priority_of_this_thread()

    thread, niceness = await run_at_low_priority(priority_of_this_thread)

    assert thread != before[0]
    assert niceness == max(NICENESS, before[1])
    assert priority_of_this_thread() == before


async def test_where_threads_have_no_priorities_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def set_priority(*args: object) -> None:
        asked.append(args)

    monkeypatch.setattr(threads.sys, "platform", "darwin")
    monkeypatch.setattr(os, "setpriority", set_priority)

    assert (await run_at_low_priority(lambda: 7), asked) == (7, [])


async def test_a_priority_that_may_not_be_set_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)

    assert await run_at_low_priority(lambda: 7) == 7


async def test_an_error_of_the_work_is_raised_where_it_is_awaited() -> None:
    def fail() -> None:
        raise LookupError("not there")

    with pytest.raises(LookupError, match="not there"):
        await run_at_low_priority(fail)


def test_a_program_that_is_interrupted_does_not_wait_for_the_work() -> None:
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        released.wait(60)
        ended.set()

    async def interrupt() -> None:
        working = asyncio.ensure_future(run_at_low_priority(work))
        await asyncio.to_thread(begun.wait, 30)
        working.cancel()
        await asyncio.wait([working])
        assert working.cancelled()

    asyncio.run(interrupt())

    assert not ended.is_set()
    released.set()
    assert ended.wait(60), "the work goes on, and its end disturbs nobody"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives threads priorities of their own")
def test_the_modules_of_a_gateway_are_imported_at_a_low_priority_except_for_those_that_import_the_others() -> None:
    program = """
import os, sys, threading
found = {}
class Watch:
    def find_spec(self, name, path=None, target=None):
        found[name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return None
own = os.getpriority(os.PRIO_PROCESS, 0)
import holdfast
from holdfast.apps.cli.main import main
sys.meta_path.insert(0, Watch())
try:
    main(["gateway", "--help"])
except SystemExit:
    pass
print(sorted(name for name, niceness in found.items() if niceness == own))
"""
    if os.getpriority(os.PRIO_PROCESS, 0) >= NICENESS:
        pytest.skip("these tests have a low priority themselves")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    at_own_priority = literal_eval(done.stdout.splitlines()[-1])
    assert [name for name in at_own_priority if "holdfast" in name] == ["holdfast.apps.threads"]


def test_what_cannot_be_imported_is_left_to_those_that_need_it() -> None:
    def fail() -> None:
        raise ImportError("not installed")

    import_at_low_priority(fail)
