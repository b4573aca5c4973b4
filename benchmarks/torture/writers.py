"""Many writers at once: what was acknowledged is recorded once and in its order.

Up to ten processes with up to ten tasks each write to one file: to sessions of their own, or to the same ones. One of
them may be killed on the way.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from benchmarks.torture.observed import differing_requests, messages_of
from benchmarks.torture.writer import session_of
from holdfast import Session
from holdfast.testing.chat import assistant_message

ROOT = Path(__file__).parent.parent.parent
STUCK_SECONDS = 120.0


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draw who writes how much to how many sessions, and whether one of them is killed."""
    processes = draw(st.integers(2, 10))
    tasks = draw(st.sampled_from([1, 2, 10] if processes == 2 else [1, 2] if processes < 6 else [1]))
    names = [f"p{process}t{task}" for process in range(1, processes) for task in range(tasks)]
    return {
        "processes": processes,
        "tasks": tasks,
        "sessions": draw(st.sampled_from([1, 2, processes])),
        "each": draw(st.integers(3, 7)),
        "words": draw(st.lists(st.sampled_from([1, 40, 3_400]), min_size=1, max_size=3)),
        "asks": draw(st.booleans()),
        "killed": draw(st.one_of(st.just(""), st.sampled_from(names))),
    }


STRATEGIES = (cases(),)


def check(case: Mapping[str, Any]) -> None:
    """Let them write, and look at what is there."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/chats.db"
        command = [sys.executable, "-m", "benchmarks.torture.writer", url, json.dumps(case)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=STUCK_SECONDS,
            cwd=ROOT,
            check=False,
            start_new_session=True,
        )
        assert done.stderr == "", done.stderr.splitlines()[-1]
        told = [json.loads(line) for line in done.stdout.splitlines()]
        asyncio.run(_check_store(url, case, told))


async def _check_store(url: str, case: Mapping[str, Any], told: Sequence[Mapping[str, Any]]) -> None:
    acknowledged: dict[str, dict[int, tuple[str, int]]] = defaultdict(dict)
    for line in told:
        places = acknowledged[line["session"]]
        assert line["position"] not in places, "two messages have one position"
        places[line["position"]] = line["writer"], line["number"]
    _check_complete(case, told)
    for name, places in acknowledged.items():
        async with Session.open(name, store=url) as session:
            events = await session.events()
            found = {at: _parse_message(message) for at, message in enumerate(messages_of(events))}
            assert session.damage == []
            assert differing_requests(events) == []
            assert await session.record([assistant_message("after")]) == range(len(found), len(found) + 1)
        unknown = {at: said for at, said in found.items() if at not in places}
        assert {at: found[at] for at in places} == places, "acknowledged, and not there"
        assert all(_is_of_killed(case, writer) for writer, _ in unknown.values()), "recorded, but not acknowledged"
        assert len(set(found.values())) == len(found), "doubled"
        for writer in {writer for writer, _ in found.values()}:
            numbers = [number for who, number in found.values() if who == writer]
            assert numbers == list(range(len(numbers))), "out of order"


def _check_complete(case: Mapping[str, Any], acknowledged: Sequence[Mapping[str, Any]]) -> None:
    """Compare what was acknowledged with what was to be written."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for line in acknowledged:
        counts[line["session"], line["writer"]] += 1
    for process in range(case["processes"]):
        for task in range(case["tasks"]):
            name = f"p{process}t{task}"
            if not _is_of_killed(case, name):
                assert counts[session_of(case, process, task), name] == case["each"], "not all was acknowledged"


def _parse_message(message: Mapping[str, object]) -> tuple[str, int]:
    name, number, _ = str(message["content"]).split(" ", 2)
    return name, int(number)


def _is_of_killed(case: Mapping[str, Any], writer: str) -> bool:
    """Return whether a writer was in the process that was killed."""
    return bool(case["killed"]) and writer.partition("t")[0] == case["killed"].partition("t")[0]
