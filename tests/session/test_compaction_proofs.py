"""Promises of compaction that only show over time, across processes, or on the outside."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Session
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.errors import CompactionError, CompactionFailedError, NothingToCompactError, UnknownSessionError
from holdfast.models.base import ModelReply, Summarizer
from holdfast.models.embedded.server import EmbeddedServer, EmbeddedSummarizer
from holdfast.models.embedded.weights import fetch_file
from holdfast.models.retry import RetryLimits
from holdfast.session.compaction.compactor import LEASE_MS, CompactionOptions
from holdfast.session.compaction.telemetry import Telemetry, flush_spans
from holdfast.testing.chat import (
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.models import FailingModel, ScriptedModel
from tests.support import SUMMARY, WORDS, compactions, open_session, record_turns, wait_until

BUDGET = 4_000


async def test_a_compaction_after_which_the_provider_counts_no_less_is_a_failure() -> None:
    session = await open_session()
    await record_turns(session, 6)
    done = await session.compact(budget=BUDGET)

    await session.record([assistant_message("so")], usage={"input_tokens": done.pre_compaction_tokens})
    assert (session.history.session_state.compaction_failures, session.history.session_state.failed_stop) == (1, 13)
    helped = await open_session()
    await record_turns(helped, 6)
    done = await helped.compact(budget=BUDGET)
    await helped.record([assistant_message("so")], usage={"input_tokens": done.post_compaction_tokens})
    assert (
        helped.history.session_state.compaction_failures,
        helped.history.session_state.tokens_before_compaction,
    ) == (0, None)


async def test_one_summary_is_begun_in_a_turn_whatever_becomes_of_it() -> None:
    model = FailingModel("refusing")
    session = await open_session(compaction=CompactionOptions(automatic=model, retry_limits=RetryLimits(attempts=1)))
    await record_turns(session, 10)
    await session.record([user_message("go")])
    for number in range(3):
        await session.prepare(BUDGET)
        await wait_until(lambda: session.history.session_state.running_compaction is None)
        await session.record([tool_call_message(f"c{number}"), tool_result_message(f"c{number}", "ok " * 20)])

    assert len(model.prompts) == 1
    await session.record([assistant_message("done"), user_message("next turn")])
    await session.prepare(BUDGET)
    await wait_until(lambda: len(model.prompts) == 2)


@pytest.mark.parametrize("jump_ms", [LEASE_MS + 1, -30 * 3_600_000], ids=["expired", "the clock was set back"])
async def test_a_run_of_another_machine_is_taken_over_when_its_lease_has_expired(jump_ms: int) -> None:
    now = 1_700_000_000_000
    session = await open_session(summarizer=ScriptedModel(repeat(SUMMARY)), clock=lambda: now)
    await record_turns(session, 10)
    await session.record([user_message("go")])
    await session._log.append(log.CompactionStarted(span=Span(stop=4), owner="elsewhere:1:ab", basis=0))
    await session.prepare(BUDGET)
    assert session.history.session_state.running_compaction is not None
    assert session.history.session_state.running_compaction.owner == "elsewhere:1:ab"

    now += jump_ms
    await session.prepare(BUDGET)

    assert [(compaction.is_cancelled, compaction.error) for compaction in await compactions(session)][:1] == [
        (True, "the process that started it did not finish it")
    ]
    assert (
        session.history.session_state.running_compaction is None
        or session.history.session_state.running_compaction.owner != "elsewhere:1:ab"
    )


async def test_a_summary_that_takes_longer_than_all_of_its_time_is_given_up() -> None:
    how = CompactionOptions(automatic=FailingModel("hanging"), retry_limits=RetryLimits(deadline_seconds=0.01))
    session = await open_session(policy="co-cli", compaction=how)
    await record_turns(session, 3)

    with pytest.raises(CompactionFailedError, match=r"longer than 0\.01 s"):
        await session.compact()

    assert len(await session.visible_messages()) == 6


async def test_a_summary_is_shown_as_the_one_before_only_where_it_is_of_the_same_span() -> None:
    model = ScriptedModel(repeat(SUMMARY))
    session = await open_session(policy="inkeep", summarizer=model)
    await record_turns(session, 10)
    await session.record([user_message("now work")])
    await session.prepare(BUDGET)
    for number in range(18):
        await session.record(
            [tool_call_message(f"c{number}"), tool_result_message(f"c{number}", f"result {number} {WORDS}")]
        )
    await session.prepare(BUDGET)

    first, within = [compaction for compaction in await compactions(session) if compaction.success]
    assert (first.span.start, within.span.start >= first.span.stop) == (0, True)
    assert "Greek letters" not in model.prompts[-1].text
    assert "now work" not in model.prompts[-1].text.partition("result 0")[0].rpartition("[#")[2]


async def test_why_a_compaction_was_made_is_in_the_log() -> None:
    session = await open_session(
        compaction=CompactionOptions(automatic=FailingModel("empty"), retry_limits=RetryLimits(attempts=1))
    )
    await record_turns(session, 6)
    returned_event = await session.compact(budget=BUDGET)
    await record_turns(session, 14)
    await session.record([user_message("go")])
    await session.prepare(BUDGET)

    receipts = [receipt for receipt in await session.receipts() if receipt.event.success]
    assert receipts[0].event == returned_event
    assert receipts[0].event.reason.startswith("a digest, because the compaction failed")
    assert "for messages (threshold" in receipts[-1].event.reason


@pytest.mark.seed("C-49")
async def test_telemetry_sees_every_compaction() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    reply = ModelReply(text=SUMMARY, model="scripted-2", request_id="chatcmpl-1")
    how = CompactionOptions(automatic=ScriptedModel(repeat(reply)), telemetry=Telemetry(tracer_provider=provider))
    session = await open_session(compaction=how)
    await record_turns(session, 6)
    await session.compact(budget=BUDGET)
    await session.close()

    assert flush_spans(5)
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["chat scripted", "compact_messages"]
    [call] = [span.attributes or {} for span in spans if span.name == "chat scripted"]
    assert (call["gen_ai.response.model"], call["gen_ai.response.id"]) == ("scripted-2", "chatcmpl-1")
    told = [event.name for event in spans[1].events]
    assert told == ["session_compaction_start", "session_compaction_complete"]
    provider.shutdown()


async def spans_of(summarizer: Summarizer, work: Callable[[Session], Awaitable[object]]) -> list[tuple[str, str]]:
    """Return the name and the failure of each span of some work on a session that is then closed."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    how = CompactionOptions(
        automatic=summarizer, telemetry=Telemetry(tracer_provider=provider), retry_limits=RetryLimits(attempts=1)
    )
    session = await open_session(compaction=how)
    await record_turns(session, 6)
    await work(session)
    await session.close()
    assert flush_spans(5)
    provider.shutdown()
    return [(span.name, str((span.attributes or {}).get("error.type"))) for span in exporter.get_finished_spans()]


async def test_a_summary_that_fails_is_a_span_of_its_own_beside_that_of_its_digest() -> None:
    async def compact(session: Session) -> None:
        await session.compact(budget=BUDGET)

    assert await spans_of(FailingModel("empty"), compact) == [
        ("chat failing:empty", "CompactionFailedError"),
        ("compact_messages", "CompactionFailedError"),
        ("compact_messages", "None"),
    ]


async def test_the_span_of_a_compaction_that_is_cancelled_ends_once() -> None:
    async def cancel(session: Session) -> None:
        task = asyncio.ensure_future(session.compact(budget=BUDGET))
        await wait_until(lambda: session.history.session_state.running_compaction is not None)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert await spans_of(ScriptedModel([SUMMARY], seconds=60.0), cancel) == [
        ("chat scripted", "None"),
        ("compact_messages", "cancelled"),
    ]


@pytest.mark.seed("C-49")
async def test_telemetry_counts_the_messages_of_the_context_that_is_compacted() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    how = CompactionOptions(automatic=ScriptedModel(repeat(SUMMARY)), telemetry=Telemetry(tracer_provider=provider))
    session = await open_session(policy="copilot", compaction=how)
    contexts: list[int] = []
    async with session.delegate("helper") as helper:
        await helper.record([user_message("count to three"), assistant_message("one, two, three")])
    for number in (0, 6):
        await record_turns(session, 6, number)
        await session.prepare(100_000)
        contexts.append(len(await session.visible_messages()))
        await session.compact()
        contexts.append(len(await session.visible_messages()))
    await session.close()

    assert flush_spans(5)
    names = ("compaction.messages_before", "compaction.messages_after")
    told = [dict(span.attributes or {}) for span in exporter.get_finished_spans()]
    assert [one[name] for one in told for name in names if name in one] == contexts
    provider.shutdown()


async def test_a_writer_that_was_named_is_made_once_and_closed_with_the_session() -> None:
    try:
        await fetch_file()
    except Exception as error:  # noqa: BLE001 - whatever keeps us from the weights
        pytest.skip(f"the embedded model's weights cannot be had here: {error}")
    session = await open_session(summarizer="embedded")
    writer = session._compactor.summarizer_for("threshold")
    assert isinstance(writer, EmbeddedSummarizer)
    assert session._compactor.summarizer_for("manual") is writer
    server: EmbeddedServer = writer._server
    await server.start()

    await session.close()

    assert not server.is_running


async def test_a_session_that_was_deleted_meanwhile_says_so(tmp_path: Path) -> None:
    session = await Session.open("gone", store=f"sqlite:///{tmp_path}/a.db")
    await session.record([user_message("one")])
    await session.store.delete("gone")

    with pytest.raises(UnknownSessionError):
        await session.record([user_message("two")])

    await session.close()


async def test_each_agent_climbs_a_ladder_of_its_own() -> None:
    session = await open_session()
    await record_turns(session, 6)
    await session.record_state(log.PlanChanged(text="delegate"))
    await session._log.append(log.DelegationStarted(scope="sub", agent="scout"))
    await session.record([user_message("your task " + WORDS)], scope="sub")
    await session.record([user_message("for the user")])
    main = await session.prepare(16_000)
    await session.prepare(16_000, scope="sub")

    smaller = await session.retry("prompt is too long", status=400)

    assert smaller.messages[-1] == main.messages[-1]
    assert smaller.tokens.total < main.tokens.total


LONG_SUMMARY = "They greeted each other and said what they want to do next, in many words. " * 20


@pytest.mark.seed("A-39", "A-40")
@pytest.mark.parametrize("count", [1, 2, 4])
async def test_co_cli_compacts_any_conversation_that_is_not_empty_into_exactly_two_messages(count: int) -> None:
    talk = [user_message("hi"), assistant_message("hello"), user_message("well?"), assistant_message("yes")][:count]
    async with Session.open("c1", policy="co-cli", summarizer=ScriptedModel([LONG_SUMMARY])) as session:
        await session.record(talk)

        await session.compact()
        seen = [(entry.message.role, entry.message.text) for entry in await session.visible_messages()]

    assert seen == [
        ("user", f"[Compacted conversation summary]\n{LONG_SUMMARY.strip()}"),
        ("assistant", "Understood. I have the conversation context."),
    ]


@pytest.mark.seed("C-7")
async def test_copilot_compacts_from_two_messages_on_however_short_they_are() -> None:
    async with Session.open("c1", policy="copilot", summarizer=ScriptedModel([LONG_SUMMARY])) as session:
        await session.record([system_message("be brief"), user_message("hi")])
        await session.prepare()
        with pytest.raises(NothingToCompactError, match="nothing to compact: of 1 messages none can be compacted"):
            await session.compact()
        await session.record([assistant_message("hello")])

        done = await session.compact()

    assert (done.success, done.span.count, done.summary.text) == (True, 2, LONG_SUMMARY.strip())
    assert done.post_compaction_tokens > done.pre_compaction_tokens


@pytest.mark.seed("A-21", "A-22", "A-23")
async def test_co_cli_puts_a_summary_that_is_longer_than_what_it_replaces_between_head_and_tail() -> None:
    talk = [message for number in range(20) for message in (user_message(f"q{number}"), assistant_message("ok"))]
    async with Session.open("c1", policy="co-cli", summarizer=ScriptedModel([LONG_SUMMARY])) as session:
        await session.record([*talk, user_message("now")])

        request = await session.prepare()

    marker = user_message(f"[Summary of 19 earlier messages]\n{LONG_SUMMARY.strip()}")
    assert request.messages == [*talk[:2], marker, *talk[21:], user_message("now")]


async def test_the_default_refuses_a_compaction_that_frees_nothing() -> None:
    async with Session.open("c1", summarizer=ScriptedModel([LONG_SUMMARY])) as session:
        await session.record([user_message("hi"), assistant_message("hello")])

        with pytest.raises(CompactionError):
            await session.compact()

        assert [entry.message.text for entry in await session.visible_messages()] == ["hi", "hello"]


@pytest.mark.seed("A-39", "A-40", "C-7")
@pytest.mark.parametrize("policy", ["co-cli", "copilot", "inkeep"])
@given(sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2)), min_size=1, max_size=4), is_open=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_manual_compaction_of_any_short_conversation_is_made_and_leaves_no_message_but_an_open_prompt(
    policy: str, sizes: list[tuple[int, int]], *, is_open: bool
) -> None:
    async def compacted() -> tuple[bool, list[int | None]]:
        async with Session.open("c1", policy=policy, summarizer=ScriptedModel([LONG_SUMMARY])) as session:
            for number, (words, steps) in enumerate(sizes):
                await session.record([user_message("word " * words)])
                for step in range(steps):
                    call = f"c{number}-{step}"
                    await session.record([tool_call_message(call), tool_result_message(call, "x" * words)])
                await session.record([assistant_message("done")])
            if is_open:
                await session.record([user_message("and now?")])
            await session.prepare()
            done = await session.compact()
            return done.success, [entry.position for entry in await session.visible_messages()]

    success, positions = asyncio.run(compacted())

    newest = sum(2 + 2 * steps for _, steps in sizes)
    assert success
    assert [position for position in positions if position is not None] == ([newest] if is_open else [])
