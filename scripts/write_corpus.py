"""Writes tests/corpus/schema-1: logs of the current version, with every kind of event.

Run it only before the first release, when the shape of a record changes; see tests/corpus/README.md.

    python scripts/write_corpus.py
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.codec import RECORD_SCHEMA, to_record
from holdfast.session.maintenance.scrub import scrub
from holdfast.session.maintenance.transfer import export_records
from holdfast.session.session import Session
from holdfast.stores.jsonl import export_lines
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.gemini import function_call_part, function_response_part, model_turn, text_part, user_turn
from holdfast.testing.pydantic_ai import (
    request_message,
    response_message,
    text_reply_part,
    tool_call_part,
    user_prompt_part,
)
from holdfast.testing.pydantic_ai import system_prompt_part as opening
from holdfast.testing.pydantic_ai import tool_return_part as returning
from holdfast.testing.responses import function_call_item, function_output_item, output_message_item, reasoning_item

FOLDER = Path(__file__).parent.parent / f"tests/corpus/schema-{RECORD_SCHEMA}"
BUDGET = 16_000
TOOLS: list[JsonMessage] = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
SECRET = "sk-corpus-0123456789"  # noqa: S105 - it opens nothing
LISTING = "\n".join(f"{number:03} total = total + price" for number in range(60))


class CorpusWriter:
    """A session with a simulated clock, and direct access to the log for events that no method of a session writes."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def append_events(self, *events: log.Event) -> None:
        """Append events as another program would."""
        store, name = self.session.store, self.session.id
        records = [to_record(event) for event in events]
        await store.append(name, records, after=await store.length(name), time_ms=self.session.clock())
        await self.session.refresh()
        if self.session.damage:
            raise ValueError(self.session.damage)

    async def export(self) -> str:
        """Return the log as an export."""
        store, name = self.session.store, self.session.id
        return "".join(export_lines(name, f"Corpus: {name}", [stored async for stored in export_records(store, name)]))


async def new_log(name: str, *, policy: str = "default") -> CorpusWriter:
    """Return an empty session whose clock ticks in whole seconds."""
    ticks = itertools.count(1_700_000_000_000, 1_000)
    session = await Session.open(name, store=MemoryStore(), policy=policy, clock=lambda: next(ticks))
    return CorpusWriter(session)


async def every_kind() -> CorpusWriter:
    """Return a log with every kind of event, and a request after each that changes what is sent."""
    parent = (await new_log("parent")).session
    turns = [
        message for n in range(6) for message in (user_message(f"Question {n}?"), assistant_message(f"Answer {n}."))
    ]
    work = [
        tool_call_message("a", "b"),
        tool_result_message("a", LISTING),
        tool_result_message("b", "Error: no such file"),
        assistant_message("Tabs."),
    ]
    await parent.record(
        [system_message("Never push."), user_message("Why does it fail?"), *work, *turns, user_message("Fix it.")]
    )
    await parent.pin(1)
    writer = CorpusWriter(await parent.fork("every-kind"))
    await write_facts(writer)
    await write_delegation(writer)
    await write_shortening(writer)
    await write_time_travel(writer)
    return writer


async def write_facts(writer: CorpusWriter) -> None:
    """Record a plan, todos, a skill, an agent, a model, billed usage and a pin."""
    session = writer.session
    await writer.append_events(
        log.PlanChanged(text="1. read 2. mend"),
        log.TodosChanged(text="[ ] tests"),
        log.SkillInvoked(name="review", instructions="Read twice."),
        log.AgentChanged(name="reviewer", summary="Reads every change twice."),
        log.ModelSwitched(model="gpt-5", window=400_000),
        log.ProviderSignalled(signal="compaction", payload={"type": "compaction", "encrypted_content": "gAAAAB"}),
    )
    await session.prepare(BUDGET, system="Be brief.", tools=TOOLS)
    bill = {"input_tokens": 812, "output_tokens": 40, "cache_read_tokens": 300}
    await session.record([assistant_message("Mended.")], usage=bill, duration_ms=1_250, agent="coder")
    await session.pin(3)
    await session.unpin(3)
    await session.record([user_message("Is it tested? ✓ \u2028 日本語")])
    await session.prepare(BUDGET, system="Be thorough.", tools=TOOLS)


async def write_delegation(writer: CorpusWriter) -> None:
    """Delegate a task to another agent, in its own scope."""
    session = writer.session
    await writer.append_events(log.DelegationStarted(scope="scout", agent="scout", task="Find the tests."))
    await session.record([user_message("Find the tests.")], scope="scout", agent="main")
    await session.record(
        [tool_call_message("c"), tool_result_message("c", "tests/test_totals.py")], scope="scout", agent="scout"
    )
    await session.prepare(BUDGET, scope="scout", system="You are a scout.")
    await session.record([assistant_message("In tests/test_totals.py.")], scope="scout", agent="scout")
    await writer.append_events(log.DelegationFinished(scope="scout", answer="In tests/test_totals.py."))
    await session.record([user_message("Run them.")])
    await session.prepare(BUDGET, system="Be thorough.", tools=TOOLS)


async def write_shortening(writer: CorpusWriter) -> None:
    """Shorten the context in every way, and fail once."""
    session = writer.session
    await writer.append_events(log.OutputsOffloaded(line=6, max_chars=80))
    await session.prepare(BUDGET)
    await session.prepare(BUDGET, has_recall=True)
    await writer.append_events(
        log.CompactionStarted(
            trigger="agent_request",
            span=Span(stop=10),
            tokens=log.TokenBreakdown(system_tokens=9, conversation_tokens=900, tool_definitions_tokens=30),
            custom_instructions="Keep the paths.",
        ),
        log.SummaryWritten(
            start=0, stop=10, summary=log.Summary("Everything was tried [#3].", by_model="scripted", score=0.9)
        ),
        log.CompactionCompleted(
            success=False, trigger="agent_request", span=Span(stop=10), error="the model did not answer"
        ),
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
    await writer.append_events(log.TurnsReducedToText(line=len(session)))
    await session.prepare(BUDGET)


async def write_time_travel(writer: CorpusWriter) -> None:
    """Interrupt a turn, rewind, scrub a secret, and clear the context."""
    session = writer.session
    await session.record([tool_call_message("d")])
    await session.interrupt()
    await session.prepare(BUDGET)
    await session.rewind(to=len(session) - 1)
    await session.record([assistant_message("They pass."), user_message(f"Use {SECRET}.")])
    await session.prepare(BUDGET)
    await scrub(session.store, session.id, SECRET, time_ms=session.clock())
    await session.refresh()
    await session.prepare(BUDGET)
    await session.clear()
    await session.record([user_message("Something else: " + "a large message is kept apart. " * 600)])
    await session.prepare(BUDGET)


async def format_log(name: str, turn: Sequence[Mapping[str, object]], prompt: JsonMessage) -> CorpusWriter:
    """Return a log in another format: some turns, a compaction, a rewind and an undo."""
    writer = await new_log(name)
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


async def client_lists() -> CorpusWriter:
    """Return a log with bound thinking, a call beside the conversation, and a compaction by the client."""
    writer = await new_log("client-lists")
    session, name = writer.session, "anthropic-messages"
    session.model = "claude-opus-5-5"
    thinking = {"type": "thinking", "thinking": "Tabs, perhaps.", "signature": "c2lnbmVk"}
    talk: list[JsonMessage] = [
        user_message("Why?"),
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "Tabs."}]},
    ]
    await session.sync(talk[:1], format=name)
    await session.prepare(BUDGET, system="Be brief.")
    await session.sync([*talk, user_message("And then?")], format=name)
    await session.prepare(BUDGET, system="Be brief.")
    await session.record_side_call("<summary>It was tabs.</summary>", purpose="summary", model="small")
    await session.sync([user_message("Before: It was tabs."), user_message("Go on.")], format=name)
    await session.prepare(BUDGET, system="Be brief.")
    return writer


async def delegates() -> CorpusWriter:
    """Return a log with a delegate that has ended, and then goes on."""
    writer = await new_log("delegates")
    session, scope = writer.session, "scout:1"
    await session.record([user_message("Look.")])
    await writer.append_events(log.DelegationStarted(scope=scope, agent="scout", task="Find it.", key="task-1"))
    await session.record([user_message("Find it."), assistant_message("Tests.")], scope=scope, agent="scout")
    await writer.append_events(log.DelegationFinished(scope=scope, answer="Tests."))
    await session.record([user_message("It found tests."), assistant_message("Fine.")])
    await writer.append_events(log.DelegationResumed(scope=scope, owner="host:1:00000001"))
    await session.record([user_message("And more?")], scope=scope, agent="scout")
    await session.prepare(BUDGET, scope=scope, system="You are a scout.")
    return writer


async def all_logs() -> dict[str, str]:
    """Return every log by the name of its file."""
    thought = {"type": "thinking", "thinking": "Read it first.", "signature": "c2lnbmVk"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "src/a.py"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": LISTING[:200], "is_error": False}
    anthropic = [{"role": "assistant", "content": [thought, use]}, {"role": "user", "content": [result]}]
    responses = [
        reasoning_item(),
        function_call_item("call_1"),
        function_output_item("call_1", LISTING[:200]),
        output_message_item("Tabs."),
    ]
    gemini = [
        model_turn(function_call_part()),
        user_turn(function_response_part(response=LISTING[:200])),
        model_turn(text_part("Tabs.")),
    ]
    agent = [
        response_message(tool_call_part("call_1", args={"path": "a"})),
        request_message(returning("call_1", {"lines": LISTING[:200]})),
    ]
    asked = request_message(opening("Be brief."), user_prompt_part("Why?"))
    return {
        "every_kind": await (await every_kind()).export(),
        "client_lists": await (await client_lists()).export(),
        "delegates": await (await delegates()).export(),
        "anthropic": await (
            await format_log("anthropic-messages", [*anthropic, assistant_message("Tabs.")], user_message("Why?"))
        ).export(),
        "responses": await (await format_log("openai-responses", responses, user_message("Why?"))).export(),
        "gemini": await (await format_log("gemini", gemini, user_turn(text_part("Why?")))).export(),
        "pydantic_ai": await (
            await format_log("pydantic-ai", [*agent, response_message(text_reply_part("Tabs."))], asked)
        ).export(),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for stem, text in asyncio.run(all_logs()).items():
        (FOLDER / f"{stem}.jsonl").write_text(text, encoding="utf-8")
