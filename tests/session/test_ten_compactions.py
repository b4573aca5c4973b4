"""What was said before the first of ten compactions is in view after the last, or one recall away."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import count, islice

import pytest

from holdfast import Session, validate
from holdfast.core.history import events as log
from holdfast.models.base import SummaryPrompt
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.models import ScriptedModel
from holdfast.testing.sessions import generate_session
from holdfast.wire.request import Request

COMPACTIONS = 10
CONSTRAINTS = (
    "Never touch the table ledger_entries_2019.",
    "Always answer in British English.",
    "Do not add a dependency to requirements-prod.txt.",
)
PLANTED: list[JsonMessage] = [
    user_message(f"We migrate invoices of customer CUST-48213 to the new schema. {CONSTRAINTS[0]} {CONSTRAINTS[1]}"),
    tool_call_message("p1", arguments={"path": "services/billing/migrations/0042_split_totals.sql"}),
    tool_result_message("p1", "-- checksum 9f3b1c7e44\nALTER TABLE invoices ADD COLUMN vat_rate numeric(5,4);"),
    assistant_message("We decided to backfill in batches of 7350 rows, on port 55437, under ticket OPS-7719."),
    user_message(f"Fine. The staging host is db-stage-17.internal. {CONSTRAINTS[2]}"),
    tool_call_message("p2", name="run", arguments={"command": "psql -h db-stage-17.internal -p 55437 -f check.sql"}),
    tool_result_message("p2", "ERROR 23505: duplicate key value violates unique constraint uq_invoice_no_8817"),
    assistant_message("The run failed; the offending row is 3d6f0a52-8c1e-4b7f-9e55-71c2ab90de13."),
]
FACTS = (
    *CONSTRAINTS,
    "CUST-48213",
    "services/billing/migrations/0042_split_totals.sql",
    "9f3b1c7e44",
    "vat_rate",
    "7350",
    "55437",
    "OPS-7719",
    "db-stage-17.internal",
    "uq_invoice_no_8817",
    "3d6f0a52-8c1e-4b7f-9e55-71c2ab90de13",
)
NAME = re.compile(r"[\w./-]*\d[\w./-]*\w|[\w-]+(?:/[\w.-]+)+")
RULE = re.compile(r"(?:Never|Always|Do not) [^.]+\.(?:txt\.)?")


def plausible(ask: SummaryPrompt) -> str:
    """Return what a fair model might write: the rules, and the names it sees most."""
    rules = dict.fromkeys(RULE.findall(ask.text))
    names = islice(dict.fromkeys(NAME.findall(ask.text)), 24)
    return "\n".join(["Intent: go on with the work.", *rules, f"Files and names: {', '.join(names)}."])


def forgetful(_: SummaryPrompt) -> str:
    """Return what a poor model writes."""
    return "The user and the assistant worked on some files. Most of it went well, and work goes on."


def turns() -> Iterator[JsonMessage]:
    """Yield the messages of coding sessions without end, in which nobody sets a rule."""
    for seed in count(1):
        for message in generate_session(200, seed=seed)[1:-1]:
            yield (
                user_message(str(message["content"]).replace("never", "seldom"))
                if message["role"] == "user"
                else message
            )


async def compactions(session: Session) -> list[log.CompactionCompleted]:
    events = await session.events()
    return [event for event in events if isinstance(event, log.CompactionCompleted) and event.success]


async def conversed(session: Session, clock: SimulatedClock, budget: int) -> list[Request]:
    """Go on until there were ten compactions, and return the requests from the first of them on."""
    await session.record(PLANTED)
    made: list[Request] = []
    heads: list[object] = []
    for message in turns():
        if message["role"] == "assistant":
            request = await session.prepare(budget)
            if request.messages[0] not in heads:
                heads.append(request.messages[0])
            if len(heads) > 1:
                made.append(request)
            if len(heads) > COMPACTIONS:
                return made
        await session.record([message])
        await clock.advance(4)
    raise AssertionError


async def recalled(session: Session, fact: str) -> bool:
    """Return whether the first hit of a search, recalled, says it."""
    (hit, *_) = await session.store.search(fact, session=session.id)
    return fact in json.dumps(await session.messages_at(hit.position))


def shows(request: Request, fact: str) -> bool:
    return fact in json.dumps(request.messages)


@pytest.mark.parametrize(
    ("writer", "budget"), [(plausible, 4_000), (forgetful, 4_000), (None, 4_000), (plausible, 16_000)]
)
async def test_ten_compactions_keep_every_fact_in_view_or_one_recall_away(
    writer: Callable[[SummaryPrompt], str] | None, budget: int
) -> None:
    clock = SimulatedClock()
    model = ScriptedModel(iter(lambda: writer, None), sleep=clock.sleep) if writer else None
    async with Session.open(
        "ten", store=MemoryStore(), model="gpt-5", summarizer=model, clock=clock.time_ms
    ) as session:
        made = await conversed(session, clock, budget)

        out_of_view = [fact for fact in FACTS if not shows(made[-1], fact)]
        assert [fact for fact in out_of_view if not await recalled(session, fact)] == []
        assert [(n, rule) for n, request in enumerate(made) for rule in CONSTRAINTS if not shows(request, rule)] == []
        assert [found for request in made if (found := validate(request.messages, "openai"))] == []
        assert [request.tokens.total for request in made if request.tokens.total > budget] == []
        assert [request.number for request in rebuilt_requests(await session.events()) if not request.is_same] == []
        authors = [compaction.summary.by_model for compaction in await compactions(session)]
        assert (len(authors), "scripted" in authors) == (COMPACTIONS, writer is plausible)
        assert await session.messages_at(0, len(PLANTED)) == PLANTED
