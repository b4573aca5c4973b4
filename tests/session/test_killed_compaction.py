"""A process that is killed while it compacts leaves a session that is compacted or is not, and that goes on."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.history import events as log
from holdfast.session.compaction.compactor import HELD_HERE
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.session import Session
from holdfast.testing.chat import JsonMessage, assistant_message, user_message
from holdfast.testing.models import ScriptedModel
from tests.session.compaction_writer import SUMMARY, WORDS

WRITER = Path(__file__).parent / "compaction_writer.py"
KILLS = int(os.environ.get("HOLDFAST_KILLS", "6"))
"""A short run; `make crash` asks for a thousand."""
BUDGET = 2_000
STUCK_SECONDS = 30.0
FOLLOWS = {
    None: {log.CompactionStarted, log.CompactionCompleted},
    log.CompactionStarted: {log.SummaryWritten, log.CompactionCompleted},
    log.SummaryWritten: {log.CompactionCompleted},
}
"""What may come after what in the log of one compaction; a digest ends none and begins none."""


def message(number: int) -> JsonMessage:
    return (assistant_message if number % 2 else user_message)(f"message {number}: {WORDS}")


def killed_writer(url: str, seed: int) -> int:
    """Start a writer, kill it at some step of some compaction, and return the last message it acknowledged."""
    chance = random.Random(seed)
    step, times = chance.choice(("writing", "written", "0")), chance.randint(1, 3)
    process = subprocess.Popen([sys.executable, str(WRITER), url, str(seed)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told: list[str] = []
    while sum(line.endswith(step) for line in told) < times:
        told.append(process.stdout.readline().strip())
    told += [process.stdout.readline().strip() for _ in range(chance.randint(0, 3))]
    process.send_signal(signal.SIGKILL)
    told += process.stdout.read().split("\n")[:-1]
    process.wait()
    process.stdout.close()
    return max(int(line) for line in told if line.isdigit())


def folds_of(events: list[log.Event]) -> list[log.CompactionCompleted]:
    return [event for event in events if isinstance(event, log.CompactionCompleted) and event.success]


def out_of_order(events: list[log.Event]) -> list[log.Event]:
    """Return the events of compactions that come where they must not."""
    found: list[log.Event] = []
    last: type[log.Event] | None = None
    for event in events:
        if isinstance(event, log.CompactionStarted | log.SummaryWritten | log.CompactionCompleted):
            if type(event) not in FOLLOWS[last]:
                found.append(event)
            is_beside = isinstance(event, log.CompactionCompleted) and event.success and event.summary.by_model is None
            last = last if is_beside else None if isinstance(event, log.CompactionCompleted) else type(event)
    return found


async def assert_is_compacted_or_not(session: Session) -> None:
    """What is shown is the last compaction and all that it left, or, before the first, everything."""
    shown, compactions = await session.visible_messages(), folds_of(await session.events())
    positions = [entry.position for entry in shown if entry.position is not None]
    texts = [entry.message.text for entry in shown if entry.position is None]
    if compactions:
        last = compactions[-1]
        assert texts == list(last.replacement)
        assert positions == [*last.span.kept, *range(last.span.stop, len(session))]
    else:
        assert (texts, positions) == ([], list(range(len(session))))


async def went_on(session: Session, turns: int) -> None:
    """Talk on; a summary that is begun is there before the next turn."""
    for _ in range(turns):
        await session.record([message(len(session))])
        if len(session) % 2:
            assert (await session.prepare(BUDGET)).tokens.total <= BUDGET
            run = session.history.session_state.running_compaction
            assert run is None or run.owner in HELD_HERE or session.history.session_state.ready_summary is not None
            async with asyncio.timeout(STUCK_SECONDS):
                while session._compactor.is_running:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(KILLS))
async def test_a_session_killed_in_mid_compaction_is_compacted_or_is_not_and_goes_on(tmp_path: Path, seed: int) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    acknowledged = killed_writer(url, seed)

    model = ScriptedModel(iter(lambda: SUMMARY, None))
    async with Session.open("killed", store=url, model="gpt-5", summarizer=model) as session:
        assert session.damage == []
        assert len(session) > acknowledged
        assert await session.messages_at(0, len(session)) == [message(number) for number in range(len(session))]
        await assert_is_compacted_or_not(session)
        before = len(folds_of(await session.events()))

        await went_on(session, 40)

        events = await session.events()
        assert [compaction.summary.by_model for compaction in folds_of(events)[before:]].count("scripted") >= 2
        assert out_of_order(events) == []
        assert [request.number for request in rebuilt_requests(events) if not request.is_same] == []
        await assert_is_compacted_or_not(session)
