"""A worker on DBOS as a process of its own: it converses in some sessions, or takes over what a killed one has left.

    python -m benchmarks.torture.jobs_worker URL CASE converse|take-over

It prints a line of JSON for each message that was acknowledged, and at the end "done".
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from holdfast import HoldfastError, Session
from holdfast.apps import jobs as jobs_module
from holdfast.compaction import CompactionOptions, ModelReply, SummaryPrompt
from holdfast.jobs import BackgroundJobs
from holdfast.testing.chat import assistant_message, user_message

BUDGET = 3_000
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa " * 12
POLL_SECONDS = 0.05
TIMES = {"HEARTBEAT_SECONDS": 0.2, "SILENT_SECONDS": 1.0, "JOB_POLL_SECONDS": 0.1}
"""So that what takes minutes takes seconds."""


class OddModel:
    """A summarizer that answers, fails, lies or hangs."""

    name = "odd"
    window = None

    def __init__(self, way: str) -> None:
        self._way = way

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Answer as a case says."""
        del prompt
        match self._way:
            case "hangs":
                await asyncio.Event().wait()
            case "fails":
                raise OSError("the network is gone")
            case _:
                await asyncio.sleep(POLL_SECONDS)
        return ModelReply(text="" if self._way == "empty" else "Intent: go on. Done: all of it.", model="odd")


async def run(url: str, case: Mapping[str, Any], part: str) -> None:
    """Do the work of a worker."""
    model = OddModel(case["model"] if part == "converse" else "answers")
    async with BackgroundJobs(url, lambda name: Session.open(name, store=url, summarizer=model)) as jobs:
        if part == "converse":
            queue = jobs.here if case["is_here"] else jobs
            await asyncio.gather(*(_converse(url, f"s{one}", case, model, queue) for one in range(case["sessions"])))
        else:
            await asyncio.gather(*(_wait_for_end(url, f"s{one}") for one in range(case["sessions"])))
    _tell("done")


async def _converse(url: str, name: str, case: Mapping[str, Any], model: OddModel, queue: Any) -> None:
    options = CompactionOptions(automatic=model, queue=queue)
    async with Session.open(name, store=url, compaction=options, model="gpt-5") as session:
        for number in range(case["turns"]):
            await session.record([user_message(f"{name} says {number}: {WORDS}")])
            _tell([name, number])
            await session.prepare(BUDGET)
            await session.record([assistant_message(f"answer {number}: {WORDS}")])


async def _wait_for_end(url: str, name: str) -> None:
    """Wait until no compaction of a session is running any more."""
    async with Session.open(name, store=url) as session:
        while session.history.session_state.running_compaction:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await session.refresh()
            except HoldfastError:  # a file that another worker has locked
                continue


def _tell(line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for constant, seconds in TIMES.items():
        setattr(jobs_module, constant, seconds)
    asyncio.run(run(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]))
