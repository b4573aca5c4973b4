"""Processes and tasks that write at once, each under a name, and tell what was acknowledged.

    python -m benchmarks.torture.writer URL CASE

Forked before there is any thread, so ten processes cost one start. A line out is what was acknowledged and where.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast import Session, counter_for
from holdfast.errors import CannotFitError, CompactionError, EmptyConversationError, PendingToolCallsError
from holdfast.testing.chat import assistant_message, user_message

MODEL, BUDGET = "gpt-5", 1_500


def session_of(case: Mapping[str, Any], process: int, task: int) -> str:
    """Return the session that one of the writers writes to."""
    return f"s{(process + task) % case['sessions']}"


async def write(session: Session, name: str, case: Mapping[str, Any]) -> None:
    """Record numbered messages, and request compactions and requests in between, which succeed or fail by name."""
    for number in range(case["each"]):
        text = f"{name} {number} " + "word " * case["words"][number % len(case["words"])]
        positions = await session.record([(user_message if number % 2 == 0 else assistant_message)(text)])
        print_line({"session": session.id, "writer": name, "number": number, "position": positions.start})
        if name == case["killed"] and number == case["each"] // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if case["asks"] and number % 3 == 1:
            with suppress(CannotFitError, EmptyConversationError, PendingToolCallsError):
                await session.prepare(BUDGET)
        if case["asks"] and number % 5 == 4:
            with suppress(CompactionError):
                await session.compact(budget=BUDGET)


def print_line(line: object) -> None:
    """Write a line at once: it is shorter than what a pipe takes in one piece."""
    os.write(sys.stdout.fileno(), f"{json.dumps(line)}\n".encode())


async def run_process(url: str, case: Mapping[str, Any], process: int) -> None:
    """Let the tasks of one process write; those of one session share it."""
    names = {session_of(case, process, task) for task in range(case["tasks"])}
    sessions = {name: await Session.open(name, store=url, model=MODEL) for name in sorted(names)}
    async with asyncio.TaskGroup() as tasks:
        for task in range(case["tasks"]):
            session = sessions[session_of(case, process, task)]
            tasks.create_task(write(session, f"p{process}t{task}", case))
    for session in sessions.values():
        await session.close()


def main(url: str, written: str) -> None:
    case = json.loads(written)
    if case["asks"]:
        # The vocabulary is loaded once for all of them.
        counter_for(MODEL).count("word")
    own = next((process for process in range(1, case["processes"]) if not os.fork()), 0)
    asyncio.run(run_process(url, case, own))
    with suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
