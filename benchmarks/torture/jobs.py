"""Workers on DBOS that are killed while they converse and compact: another one ends their work, and no word is lost.

Each case starts a worker in a process of its own, kills it after some of its messages were acknowledged, and lets a
second worker take over. It must end within its time with no compaction left running; what was acknowledged is in the
log once, and the session goes on.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from benchmarks.torture.observed import differing_requests, messages_of
from holdfast import Session, validate
from holdfast.testing.chat import user_message

ROOT = Path(__file__).parent.parent.parent
STUCK_SECONDS = 120.0
BUDGET = 3_000
CASES = st.fixed_dictionaries(
    {
        "sessions": st.integers(1, 2),
        "turns": st.integers(4, 12),
        "killed_after": st.integers(1, 24),
        "is_here": st.booleans(),
        "model": st.sampled_from(["answers", "hangs", "fails", "empty"]),
    }
)
STRATEGIES = (CASES,)


def check(case: Mapping[str, Any]) -> None:
    """Kill a worker, let another take over, and look at the logs."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/chats.db"
        acknowledged = _killed_worker(url, case)
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.torture.jobs_worker", url, json.dumps(case)]
        done = subprocess.run(
            [*command, "take-over"], capture_output=True, text=True, timeout=STUCK_SECONDS, cwd=ROOT, check=False
        )
        assert done.stdout.endswith('"done"\n'), f"not taken over: {done.stderr[-300:]}"
        asyncio.run(_check_sessions(url, acknowledged))


def _killed_worker(url: str, case: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Run a worker until it is killed, and return what it had acknowledged."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.torture.jobs_worker",
        url,
        json.dumps(case),
        "converse",
    ]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
    acknowledged: list[tuple[str, int]] = []
    assert worker.stdout is not None
    try:
        for line in worker.stdout:
            told = json.loads(line)
            if told == "done":
                break
            acknowledged.append((told[0], told[1]))
            if len(acknowledged) >= case["killed_after"]:
                break
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
    assert acknowledged, "the worker did not begin"
    return acknowledged


async def _check_sessions(url: str, acknowledged: list[tuple[str, int]]) -> None:
    for name in sorted({name for name, _ in acknowledged}):
        async with Session.open(name, store=url, model="gpt-5") as session:
            events = await session.events()
            said = [str(message["content"]).partition(":")[0] for message in messages_of(events)]
            words = [f"{owner} says {number}" for owner, number in acknowledged if owner == name]
            assert [said.count(word) for word in words] == [1] * len(words), "lost or doubled"
            assert session.damage == [], "damaged"
            assert session.history.session_state.running_compaction is None, "a compaction is left running"
            assert differing_requests(events) == [], "a request differs when it is rebuilt"
            await session.record([user_message("And now?")])
            request = await session.prepare(BUDGET)
            assert request.tokens.total <= BUDGET, "over budget"
            assert validate(request.messages, "openai-chat") == [], "not valid"
