"""Writes tests/corpus/schema-1: logs as the present program writes them, with every kind of event.

Only until the first release, whenever the shape of a record changes; see tests/corpus/README.md.

    python scripts/write_corpus.py
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.core.history import events as log
from holdfast.core.history.records import SCHEMA, to_record
from holdfast.session.scrub import scrub
from holdfast.session.session import Session
from holdfast.session.transfer import outgoing
from holdfast.stores.jsonl import export_lines
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import Json, answered, called, returned, said, told
from holdfast.testing.contents import call_part, model_turn, response_part, user_turn, words
from holdfast.testing.items import function_call, function_output, output_message, reasoning
from holdfast.testing.requests import answer, call, prompt, request, response
from holdfast.testing.requests import result as returning
from holdfast.testing.requests import told as opening

FOLDER = Path(__file__).parent.parent / f"tests/corpus/schema-{SCHEMA}"
BUDGET = 16_000
TOOLS: list[Json] = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
SECRET = "sk-corpus-0123456789"  # noqa: S105 - it opens nothing
LISTING = "\n".join(f"{number:03} total = total + price" for number in range(60))


class Writer:
    """A session with a clock of its own, and a pen for what no method of a session writes."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def tell(self, *events: log.Event) -> None:
        """Append events as another program would."""
        store, name = self.session.store, self.session.id
        records = [to_record(event) for event in events]
        await store.append(name, records, after=await store.length(name), time_ms=self.session.clock())
        await self.session.catch_up()
        if self.session.damage:
            raise ValueError(self.session.damage)

    async def export(self) -> str:
        """Return the log as an export."""
        store, name = self.session.store, self.session.id
        return "".join(export_lines(name, f"Corpus: {name}", [stored async for stored in outgoing(store, name)]))


async def begun(name: str, *, policy: str = "default") -> Writer:
    """Return an empty session whose clock ticks in whole seconds."""
    ticks = itertools.count(1_700_000_000_000, 1_000)
    session = await Session.open(name, store=MemoryStore(), policy=policy, clock=lambda: next(ticks))
    return Writer(session)


async def every_kind() -> Writer:
    """Return a log with every kind of event, and a request after each that changes what is sent."""
    parent = (await begun("parent")).session
    turns = [message for n in range(6) for message in (said(f"Question {n}?"), answered(f"Answer {n}."))]
    work = [called("a", "b"), returned("a", LISTING), returned("b", "Error: no such file"), answered("Tabs.")]
    await parent.record([told("Never push."), said("Why does it fail?"), *work, *turns, said("Fix it.")])
    await parent.pin(1)
    writer = Writer(await parent.fork("every-kind"))
    await facts(writer)
    await delegation(writer)
    await shortening(writer)
    await time_travel(writer)
    return writer


async def facts(writer: Writer) -> None:
    """Tell what is true besides what was said."""
    session = writer.session
    await writer.tell(
        log.PlanChanged(text="1. read 2. mend"),
        log.TodosChanged(text="[ ] tests"),
        log.SkillInvoked(name="review", instructions="Read twice."),
        log.AgentChanged(name="reviewer", summary="Reads every change twice."),
        log.ModelSwitched(model="gpt-5", window=400_000),
        log.ProviderSignalled(signal="compaction", payload={"type": "compaction", "encrypted_content": "gAAAAB"}),
    )
    await session.prepare(BUDGET, system="Be brief.", tools=TOOLS)
    bill = {"input_tokens": 812, "output_tokens": 40, "cache_read_tokens": 300}
    await session.record([answered("Mended.")], usage=bill, duration_ms=1_250, agent="coder")
    await session.pin(3)
    await session.unpin(3)
    await session.record([said("Is it tested? ✓ \u2028 日本語")])
    await session.prepare(BUDGET, system="Be thorough.", tools=TOOLS)


async def delegation(writer: Writer) -> None:
    """Let another agent do a part, in a scope of its own."""
    session = writer.session
    await writer.tell(log.DelegationStarted(scope="scout", agent="scout", task="Find the tests."))
    await session.record([said("Find the tests.")], scope="scout", agent="main")
    await session.record([called("c"), returned("c", "tests/test_totals.py")], scope="scout", agent="scout")
    await session.prepare(BUDGET, scope="scout", system="You are a scout.")
    await session.record([answered("In tests/test_totals.py.")], scope="scout", agent="scout")
    await writer.tell(log.DelegationFinished(scope="scout", answer="In tests/test_totals.py."))
    await session.record([said("Run them.")])
    await session.prepare(BUDGET, system="Be thorough.", tools=TOOLS)


async def shortening(writer: Writer) -> None:
    """Shorten what is shown in every way, and fail to."""
    session = writer.session
    await writer.tell(log.OutputsOffloaded(line=6, max_chars=80))
    await session.prepare(BUDGET)
    await session.prepare(BUDGET, has_recall=True)
    await writer.tell(
        log.CompactionStarted(
            trigger="agent_request",
            stop=10,
            tokens=log.Breakdown(system_tokens=9, conversation_tokens=900, tool_definitions_tokens=30),
            custom_instructions="Keep the paths.",
        ),
        log.SummaryWritten(start=0, stop=10, text="Everything was tried [#3].", by_model="scripted", score=0.9),
        log.CompactionCompleted(success=False, trigger="agent_request", stop=10, error="the model did not answer"),
        log.RequestTruncated(
            performed_by="BasicTruncator",
            token_limit=BUDGET,
            pre_truncation_tokens=900,
            pre_truncation_messages=25,
            post_truncation_tokens=700,
            post_truncation_messages=20,
            tokens_removed=200,
            messages_removed=5,
        ),
    )
    await session.compact(budget=1_000)
    await session.prepare(BUDGET)
    await session.undo()
    await session.prepare(BUDGET)
    await session.redo()
    await session.prepare(BUDGET)
    await writer.tell(log.TurnsReducedToText(line=len(session)))
    await session.prepare(BUDGET)


async def time_travel(writer: Writer) -> None:
    """Stop a turn, go back, take a secret out, and begin anew."""
    session = writer.session
    await session.record([called("d")])
    await session.interrupt()
    await session.prepare(BUDGET)
    await session.rewind(to=len(session) - 1)
    await session.record([answered("They pass."), said(f"Use {SECRET}.")])
    await session.prepare(BUDGET)
    await scrub(session.store, session.id, SECRET, time_ms=session.clock())
    await session.catch_up()
    await session.prepare(BUDGET)
    await session.clear()
    await session.record([said("Something else: " + "a large message is kept apart. " * 600)])
    await session.prepare(BUDGET)


async def spoken(name: str, turn: Sequence[Mapping[str, object]], prompt: Json) -> Writer:
    """Return a log in another format: some turns, folded, rewound and undone."""
    writer = await begun(name)
    session = writer.session
    for _ in range(8):
        await session.record([prompt, *turn], format=name)
    await session.record([prompt], format=name)
    await session.prepare(BUDGET, system="Be brief.")
    await session.compact(budget=600)
    await session.prepare(BUDGET, system="Be brief.")
    await session.rewind(to=len(session) - 1)
    await session.undo()
    await session.prepare(600, system="Be brief.")
    return writer


async def logs() -> dict[str, str]:
    """Return every log by the name of its file."""
    thought = {"type": "thinking", "thinking": "Read it first.", "signature": "c2lnbmVk"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "src/a.py"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": LISTING[:200], "is_error": False}
    anthropic = [{"role": "assistant", "content": [thought, use]}, {"role": "user", "content": [result]}]
    responses = [
        reasoning(),
        function_call("call_1"),
        function_output("call_1", LISTING[:200]),
        output_message("Tabs."),
    ]
    gemini = [model_turn(call_part()), user_turn(response_part(response=LISTING[:200])), model_turn(words("Tabs."))]
    agent = [response(call("call_1", args={"path": "a"})), request(returning("call_1", {"lines": LISTING[:200]}))]
    asked = request(opening("Be brief."), prompt("Why?"))
    return {
        "every_kind": await (await every_kind()).export(),
        "anthropic": await (await spoken("anthropic-messages", [*anthropic, answered("Tabs.")], said("Why?"))).export(),
        "responses": await (await spoken("openai-responses", responses, said("Why?"))).export(),
        "gemini": await (await spoken("gemini", gemini, user_turn(words("Why?")))).export(),
        "pydantic_ai": await (await spoken("pydantic-ai", [*agent, response(answer("Tabs."))], asked)).export(),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for stem, text in asyncio.run(logs()).items():
        (FOLDER / f"{stem}.jsonl").write_text(text, encoding="utf-8")
