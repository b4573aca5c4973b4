"""However slow the summarizer is, the default's requests go out at once, fit, and use what it wrote."""

import asyncio
import re
from itertools import count

import pytest

from holdfast import Session, validate
from holdfast.core.history import events as log
from holdfast.models.base import SummaryPrompt
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.models import ScriptedModel
from holdfast.testing.sessions import generate_session
from holdfast.wire.request import Request

MESSAGES, BUDGET = 600, 16_000
STEP_SECONDS = 4.0
"""From a message to the next, on the simulated clock."""
STUCK_SECONDS = 30.0
"""Of real time. Nobody turns the clock while a request is made, so one that waits for a summary would never come."""
FILE, NUMBER = re.compile(r"src/\w+/\w+\.py"), re.compile(r"summary number (\d+)")


def summarizer(clock: SimulatedClock, seconds: float) -> ScriptedModel:
    """Return a model that takes its time, and numbers what it writes."""
    numbers = count()

    def written(ask: SummaryPrompt) -> str:
        files = "\n".join(f"- {path}" for path in sorted({*FILE.findall(ask.text)}))
        return f"Intent: work through the files; this is summary number {next(numbers)}.\nFiles:\n{files}"

    return ScriptedModel(iter(lambda: written, None), seconds=seconds, sleep=clock.sleep)


async def opened(clock: SimulatedClock, model: ScriptedModel) -> Session:
    return await Session.open("n1", store=MemoryStore(), model="gpt-5", summarizer=model, clock=clock.time_ms)


async def requested(session: Session, clock: SimulatedClock) -> tuple[Request, int]:
    """Return a request and how many milliseconds it was waited for."""
    before = clock.time_ms()
    async with asyncio.timeout(STUCK_SECONDS):
        request = await session.prepare(BUDGET)
    return request, clock.time_ms() - before


async def conversed(session: Session, clock: SimulatedClock, seed: int) -> list[tuple[Request, int]]:
    """Play a coding session: each answer and each step of the agent is a request."""
    made: list[tuple[Request, int]] = []
    for message in generate_session(MESSAGES, seed=seed):
        if message["role"] == "assistant":
            made.append(await requested(session, clock))
        await session.record([message])
        await clock.advance(STEP_SECONDS)
    return made


def unused(events: list[log.Event], asks: list[SummaryPrompt]) -> list[str]:
    """Return the summaries that neither the next compaction quotes nor the next summary was to update."""
    shown = {number for ask in asks for number in NUMBER.findall(ask.text)}
    found: list[str] = []
    for at, event in enumerate(events):
        if isinstance(event, log.SummaryWritten):
            (number,) = NUMBER.findall(event.summary.text)
            later = [
                compaction
                for compaction in events[at:]
                if isinstance(compaction, log.CompactionCompleted) and compaction.success
            ]
            if later and NUMBER.findall("\n".join(later[0].replacement)) != [number] and number not in shown:
                found.append(number)
    return found


async def nobody_waited(session: Session, made: list[tuple[Request, int]]) -> None:
    """See that every request went out at once, fits, is valid, and is the same when it is made again."""
    assert len(made) > 250
    assert [waited for _, waited in made if waited] == []
    assert [request.tokens.total for request, _ in made if request.tokens.total > BUDGET] == []
    assert [found for request, _ in made if (found := validate(request.messages, "openai"))] == []
    assert [request.number for request in rebuilt_requests(await session.events()) if not request.is_same] == []


@pytest.mark.seed("C-15")
@pytest.mark.parametrize("seconds", [0, 5, 60])
async def test_no_request_waits_for_a_summarizer_that_takes_seconds_and_each_fits(seconds: float) -> None:
    clock = SimulatedClock()
    session = await opened(clock, summarizer(clock, seconds))

    made = await conversed(session, clock, seed=2)

    await nobody_waited(session, made)
    await session.close()


@pytest.mark.parametrize("seconds", [0, 5])
async def test_a_summary_that_comes_in_time_is_what_every_compaction_is_made_of(seconds: float) -> None:
    clock = SimulatedClock()
    model = summarizer(clock, seconds)
    session = await opened(clock, model)
    made = await conversed(session, clock, seed=1)

    await nobody_waited(session, made)
    events = await session.events()
    compactions = [event for event in events if isinstance(event, log.CompactionCompleted)]
    assert [(compaction.success, compaction.summary.by_model) for compaction in compactions] == [(True, "scripted")] * 9
    assert unused(events, model.prompts) == []
    assert NUMBER.findall(str(made[-1][0].messages)) == ["8"]
    await session.close()


async def test_a_summary_that_comes_after_the_compaction_it_was_meant_for_is_in_the_next_one() -> None:
    clock = SimulatedClock()
    model = summarizer(clock, 60)
    session = await opened(clock, model)
    made = await conversed(session, clock, seed=1)

    await nobody_waited(session, made)
    events = await session.events()
    compactions = [event for event in events if isinstance(event, log.CompactionCompleted)]
    late = [compaction for compaction in compactions if not compaction.success]
    by_rule = [
        NUMBER.findall("\n".join(compaction.replacement))
        for compaction in compactions
        if compaction.success and not compaction.summary.by_model
    ]
    assert [(compaction.is_cancelled, (compaction.error or "").partition(";")[2]) for compaction in late] == [
        (True, " the summary is kept for the next compaction")
    ] * 7
    assert by_rule == [[], ["0"], ["1"], ["2"], ["3"], ["5"], ["6"]], (
        "the last one that was written, not what it updated"
    )
    assert unused(events, model.prompts) == []
    await session.close()
