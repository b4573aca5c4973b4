"""Compaction beside the conversation: nobody waits who need not, and nothing counts that was not checked."""

import asyncio
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from holdfast import Session, counter_for, validate
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.rules.default import MAX_QUOTED_SHARE, DefaultCompaction
from holdfast.core.planning.steps import CompactSpan
from holdfast.errors import (
    CompactionCancelledError,
    CompactionFailedError,
    CompactionRunningError,
    ModelAccessError,
    ModelRefusedError,
    ModelUnreachableError,
    NoContextError,
    NothingToCompactError,
    RemoteCompactionError,
    SessionClosedError,
    SettingsError,
    StoreUnavailableError,
)
from holdfast.models.base import ModelReply, SummaryPrompt
from holdfast.models.retry import _ABANDONED_CALLS, RetryLimits
from holdfast.session.compaction import compactor as compactor_module
from holdfast.session.compaction import summarizer
from holdfast.session.compaction.compactor import HELD_HERE, CompactionOptions, SummaryDraft
from holdfast.session.compaction.summarizer import SummaryJob
from holdfast.session.requested_compaction import PREVIEW_IS_OLD
from holdfast.session.session import RemoteSession
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import FailingModel, ScriptedModel
from tests.support import (
    SUMMARY,
    WORDS,
    compactions,
    endless_summarizer,
    open_session,
    record_turns,
    wait_until,
)


async def kinds(session: Session) -> list[str]:
    return [event.KIND.removeprefix("session.") for event in await session.events() if "compaction" in event.KIND
            or "summary" in event.KIND]  # fmt: skip


async def wait_for_summary(session: Session) -> None:
    """Wait until no summary is being written."""
    await wait_until(
        lambda: (
            session.history.session_state.running_compaction is None
            or session.history.session_state.ready_summary is not None
        )
    )


BUDGET = 4_000


@pytest.mark.seed("C-19")
@pytest.mark.seed("C-15")
async def test_a_summary_is_written_while_requests_go_on_and_put_in_place_at_the_next_one() -> None:
    session = await open_session(summarizer=endless_summarizer())
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    before = await session.prepare(BUDGET)
    assert await kinds(session) == ["compaction_start"]

    await wait_for_summary(session)
    await session.record([assistant_message("so")])
    await session.record([user_message("and now?")])
    after = await session.prepare(BUDGET)

    assert await kinds(session) == ["compaction_start", "summary_written", "compaction_complete"]
    assert len(before.messages) == 21
    assert after.tokens.total < before.tokens.total * 0.75
    assert SUMMARY.split(".", maxsplit=1)[0] in str(after.messages[0]["content"])
    assert validate(after.messages, "openai") == []
    (compaction,) = await compactions(session)
    assert (compaction.success, compaction.summary.by_model, compaction.trigger) == (True, "scripted", "threshold")
    assert compaction.summary.score is not None


async def test_the_default_never_waits_and_keeps_a_late_summary_for_the_next_compaction() -> None:
    gate = asyncio.Event()

    async def held(_: float) -> None:
        await gate.wait()

    session = await open_session(summarizer=ScriptedModel(iter(lambda: SUMMARY, None), seconds=60, sleep=held))
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET)
    await record_turns(session, 3, 10)
    await session.record([user_message("more?")])

    full = await session.prepare(BUDGET)

    (compaction,) = await compactions(session)
    assert compaction.summary.by_model is None
    assert full.tokens.total < DefaultCompaction().soft_share * BUDGET, "else the next summary were due at once"
    assert compaction.post_compaction_tokens <= MAX_QUOTED_SHARE * compaction.pre_compaction_tokens
    gate.set()
    await wait_for_summary(session)
    await session.record([assistant_message("ok"), user_message("and?")])
    await session.prepare(BUDGET)
    assert [(compaction.success, compaction.is_cancelled) for compaction in await compactions(session)] == [
        (True, False),
        (False, True),
    ]
    assert session.history.session_state.compaction_failures == 0
    await record_turns(session, 12, 20)
    await session.record([user_message("again?")])
    text = str((await session.prepare(BUDGET)).messages[0]["content"])
    assert "counts in Greek letters" in text


@pytest.mark.seed("C-16")
@pytest.mark.seed("C-51")
async def test_copilot_waits_where_its_buffer_is_exhausted_and_what_is_said_meanwhile_is_recorded() -> None:
    gate, told = asyncio.Event(), list[str]()

    async def held(_: float) -> None:
        await gate.wait()

    model = ScriptedModel([SUMMARY], seconds=60, sleep=held)
    session = await open_session(policy="copilot", compaction=CompactionOptions(automatic=model, progress=told.append))
    await record_turns(session, 13)
    await session.record([user_message("next?")])
    waiting = asyncio.create_task(session.prepare(BUDGET))
    await wait_until(lambda: bool(told))

    assert await session.record([user_message("one more thing")]) == range(27, 28)
    assert not waiting.done()
    gate.set()
    request = await waiting

    assert told == ["Compacting conversation history", ""]
    assert [message["content"] for message in request.messages[-2:]] == ["next?", "one more thing"]
    assert (await compactions(session))[0].success


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "<checkpoint_title>Parser</checkpoint_title>",
        "<summary>\n<CHECKPOINT_TITLE>Parser</checkpoint_title>\n</summary>",
    ],
)
@pytest.mark.seed("C-58")
async def test_an_answer_without_a_word_beside_its_title_is_a_failed_compaction(answer: str) -> None:
    session = await open_session(policy="copilot", summarizer=ScriptedModel(repeat(answer)))
    await record_turns(session, 10)
    before = await session.prepare(100_000)

    with pytest.raises(CompactionFailedError, match="the summary is empty"):
        await session.compact()

    assert await kinds(session) == ["compaction_start", "compaction_complete"]
    (compaction,) = await compactions(session)
    assert (compaction.success, compaction.replacement) == (False, ())
    assert (await session.prepare(100_000)).messages == before.messages


@pytest.mark.seed("C-60")
@pytest.mark.parametrize(
    "failure", ["empty", "garbage", "truncated", "inflated", "refusing", "overflow", "unreachable"]
)
@pytest.mark.parametrize("policy", ["default", "copilot", "co-cli", "inkeep", "cowagent"])
async def test_every_failure_leaves_a_working_conversation(failure: Any, policy: str) -> None:
    model = FailingModel(failure)
    how = CompactionOptions(automatic=model, retry_limits=RetryLimits(attempts=1))
    session = await open_session(policy=policy, compaction=how)
    for number in range(40):
        await session.record([user_message(f"question {number}: {WORDS}")])
        request = await session.prepare(BUDGET)
        assert request.tokens.total <= BUDGET
        assert validate(request.messages, "openai") == []
        await session.record([assistant_message(f"answer {number}: {WORDS}")])
        await wait_for_summary(session)

    # The breaker has opened: most of the forty turns have not asked at all. To a preset, garbage is a summary.
    is_refused = policy == "default" or failure != "garbage"
    turns = (await kinds(session)).count("compaction_start")
    assert 0 < turns <= (16 if is_refused else 40)
    assert 0 < len(model.prompts) <= 4 * turns
    assert await session.messages_at(0, 80) == [
        message
        for number in range(40)
        for message in (user_message(f"question {number}: {WORDS}"), assistant_message(f"answer {number}: {WORDS}"))
    ]
    if policy == "default":
        assert not any(compaction.summary.by_model for compaction in await compactions(session) if compaction.success)


@pytest.mark.parametrize("policy", ["co-cli", "inkeep", "copilot", "cowagent", "default"])
async def test_half_a_character_in_a_summary_breaks_no_request(policy: str) -> None:
    session = await open_session(policy=policy, summarizer=endless_summarizer(f"{SUMMARY} \ud83d"))
    for number in range(20):
        await record_turns(session, 1, start=number)
        await session.record([user_message("next?")])
        assert (await session.prepare(BUDGET)).tokens.total <= BUDGET
        await wait_for_summary(session)

    summaries = [event.summary.text for event in await session.events() if isinstance(event, log.SummaryWritten)]
    assert [text for text in summaries if "\ud83d" in text] == []
    assert summaries


async def test_a_model_for_which_everything_is_too_long_is_asked_with_less_three_times() -> None:
    model = FailingModel("overflow")
    session = await open_session(summarizer=model)
    await record_turns(session, 12)

    await session.compact(budget=4_000)

    assert len(model.prompts) == 4


@pytest.mark.parametrize(("policy", "budget"), [("cowagent", 2_000), ("default", 4_000)])
async def test_a_summarizer_that_never_helps_is_left_alone_though_compactions_by_rule_go_well(
    policy: str, budget: int
) -> None:
    model = FailingModel("empty")
    session = await open_session(
        policy=policy, compaction=CompactionOptions(automatic=model, retry_limits=RetryLimits(attempts=1))
    )
    for number in range(60):
        await record_turns(session, 1, start=number)
        await session.record([user_message("next?")])
        await session.prepare(budget)
        await wait_for_summary(session)

    assert len([compaction for compaction in await compactions(session) if compaction.success]) > 10
    # Three times, and then once for every twenty messages of the hundred and eighty.
    assert len(model.prompts) <= 3 + 180 // 20


@pytest.mark.seed("A-23")
async def test_co_cli_puts_a_marker_where_no_summary_could_be_had() -> None:
    session = await open_session(policy="co-cli", compaction=CompactionOptions(automatic=FailingModel("refusing")))
    await record_turns(session, 21)
    await session.record([user_message("next?")])

    request = await session.prepare(128_000)

    markers = [message["content"] for message in request.messages if "Earlier conversation" in str(message["content"])]
    assert markers == ["[Earlier conversation trimmed — 21 messages removed to stay within context budget]"]
    assert await kinds(session) == ["compaction_start", "compaction_complete", "compaction_complete"]


@pytest.mark.seed("A-22")
@pytest.mark.seed("A-39")
async def test_co_cli_summarizes_inline_and_two_messages_stand_for_all_on_the_users_word() -> None:
    session = await open_session(policy="co-cli", summarizer=endless_summarizer("short"))
    await record_turns(session, 21)
    await session.record([user_message("next?")])

    request = await session.prepare(128_000)
    assert request.messages[2]["content"] == "[Summary of 21 earlier messages]\nshort"

    await session.record([assistant_message("so")])
    await session.compact()
    assert [entry.message.text for entry in await session.visible_messages()] == [
        "[Compacted conversation summary]\nshort", "Understood. I have the conversation context.",
    ]  # fmt: skip


@pytest.mark.seed("C-61")
async def test_a_summary_is_thrown_away_where_its_span_does_not_stand_any_more() -> None:
    session = await open_session(summarizer=endless_summarizer())
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET)
    await wait_for_summary(session)

    await session.rewind(to=4)
    await session.record([user_message("instead")])
    request = await session.prepare(BUDGET)

    assert [message["content"] for message in request.messages][-1] == "instead"
    assert len(request.messages) == 5
    assert [(compaction.success, compaction.is_cancelled) for compaction in await compactions(session)] == [
        (False, True)
    ]


@pytest.mark.seed("C-6")
@pytest.mark.seed("C-7")
@pytest.mark.seed("C-8")
@pytest.mark.seed("C-9")
@pytest.mark.seed("C-57")
async def test_what_cannot_be_compacted_is_refused_by_name() -> None:
    alone = await open_session(policy="copilot")
    with pytest.raises(NothingToCompactError):
        await alone.compact()
    await record_turns(alone, 2)
    with pytest.raises(NoContextError):
        await alone.compact()
    await alone.record([user_message("so?")])
    await alone.prepare(BUDGET)
    with pytest.raises(ModelAccessError, match="no model to write the summary"):
        await alone.compact()
    busy = await open_session(summarizer=FailingModel("hanging"))
    await record_turns(busy, 4)
    first = asyncio.create_task(busy.compact())
    await wait_until(lambda: busy.history.session_state.running_compaction is not None)

    with pytest.raises(CompactionRunningError):
        await busy.compact()

    assert await busy.cancel_compaction()
    with pytest.raises(CompactionCancelledError):
        await first


@pytest.mark.seed("C-62")
async def test_a_handle_on_a_session_of_another_process_reads_it_and_refuses_to_compact_it() -> None:
    store = MemoryStore()
    session = await open_session(store, policy="copilot", summarizer=endless_summarizer("short"))
    await record_turns(session, 3)
    await session.prepare()
    await session.compact()
    handle = RemoteSession("c1", store=store)
    before = await session.events()

    assert await handle.events() == before
    assert list(map(str, await handle.receipts())) == list(map(str, await session.receipts()))
    with pytest.raises(RemoteCompactionError) as refused:
        await handle.compact(focus="the letters")

    assert str(refused.value) == "RemoteSession.compactHistory() is not implemented yet."
    assert refused.value.session == "c1"
    assert await session.events() == before


@pytest.mark.seed("C-7")
async def test_a_single_message_is_too_little_to_compact_and_two_are_enough() -> None:
    session = await open_session(policy="copilot", summarizer=endless_summarizer("short"))
    await session.record([user_message(f"question: {WORDS}")])
    await session.prepare(BUDGET)

    with pytest.raises(NothingToCompactError):
        await session.compact()

    await session.record([assistant_message(f"answer: {WORDS}")])
    assert (await session.compact()).span.stop == 2


@pytest.mark.seed("C-4", "C-13", "C-47")
async def test_the_call_for_a_summary_gives_back_its_words_and_what_it_took() -> None:
    usage = log.Usage(input_tokens=900, output_tokens=30, cache_read_tokens=100)
    model = ScriptedModel([ModelReply(text=SUMMARY, model="scripted", usage=usage)])
    session = await open_session(policy="copilot", summarizer=model)
    await record_turns(session, 4)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET)

    done = await session.compact()

    assert (done.summary.text, done.summary.usage, done.summary.by_model) == (SUMMARY, usage, "scripted")
    assert (done.span.stop, done.messages_removed) == (8, 7)
    assert done.tokens_removed == done.pre_compaction_tokens - done.post_compaction_tokens > 0


@pytest.mark.seed("B-2", "B-11")
async def test_inkeep_has_a_model_put_the_older_parts_in_its_own_words() -> None:
    model = endless_summarizer("Three injection risks in auth.py [#1]; the fix is open.")
    session = await open_session(policy="inkeep", summarizer=model)
    await record_turns(session, 8)
    await session.record([user_message("next?")])

    request = await session.prepare(BUDGET)

    assert [message["content"] for message in request.messages] == [
        "[Summary of the conversation so far, for reference.]\nThree injection risks in auth.py [#1]; the fix is open.",
        "next?",
    ]
    assert all(f"question {number}: alpha" in model.prompts[0].text for number in range(8))
    assert "next?" not in model.prompts[0].text.split("<tail", maxsplit=1)[0]


@pytest.mark.seed("C-61")
async def test_what_a_model_writes_after_its_compaction_was_cancelled_is_thrown_away() -> None:
    gate = asyncio.Event()

    async def held(_: float) -> None:
        await gate.wait()

    model = FailingModel("stubborn", text=SUMMARY, sleep=held)
    session = await open_session(summarizer=model)
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET)
    await wait_until(lambda: bool(model.prompts))
    before = await session.visible_messages()

    assert await session.cancel_compaction()
    gate.set()
    await wait_until(lambda: not _ABANDONED_CALLS)

    assert await session.visible_messages() == before
    assert await kinds(session) == ["compaction_start", "compaction_complete"]
    assert [(compaction.success, compaction.is_cancelled) for compaction in await compactions(session)] == [
        (False, True)
    ]


@pytest.mark.seed("C-61")
async def test_a_summary_of_a_process_whose_compaction_another_has_ended_is_thrown_away() -> None:
    gate, store = asyncio.Event(), MemoryStore()

    async def held(_: float) -> None:
        await gate.wait()

    model = ScriptedModel([SUMMARY], seconds=60, sleep=held)
    slow = await open_session(store, summarizer=model)
    await record_turns(slow, 10)
    await slow.record([user_message("next?")])
    await slow.prepare(BUDGET)
    await wait_until(lambda: bool(model.prompts))
    HELD_HERE.clear()

    other = await open_session(store)
    assert other.history.session_state.running_compaction is None
    gate.set()
    await wait_until(lambda: not slow._compactor.is_running)
    await slow._compactor.wait()
    await other.refresh()

    assert await kinds(other) == ["compaction_start", "compaction_complete"]
    assert [(compaction.success, compaction.is_cancelled) for compaction in await compactions(other)] == [(False, True)]


@pytest.mark.seed("D-21", "D-24")
@pytest.mark.parametrize("policy", ["default", "copilot"])
async def test_no_summarizer_reads_the_summary_of_what_was_cleared(policy: str) -> None:
    model = endless_summarizer()
    session = await open_session(policy=policy, summarizer=model)
    for clears in (True, False):
        await record_turns(session, 10)
        await session.prepare(100_000)
        await session.compact()
        if clears:
            await session.clear()

    first = SUMMARY.split(".", maxsplit=1)[0]
    assert (await compactions(session))[0].summary.text.startswith(first)
    assert first not in model.prompts[-1].text


@pytest.mark.seed("C-10")
@pytest.mark.seed("C-59")
async def test_a_cancelled_compaction_changes_nothing() -> None:
    session = await open_session(summarizer=FailingModel("hanging"))
    await record_turns(session, 4)
    before = await session.visible_messages()
    task = asyncio.create_task(session.compact())
    await wait_until(lambda: session.history.session_state.running_compaction is not None)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await session.visible_messages() == before
    assert session.history.session_state.running_compaction is None
    assert [(done.success, done.is_cancelled, done.error) for done in await compactions(session)] == [
        (False, True, "it was cancelled")
    ]


async def test_an_abandoned_compaction_is_taken_over() -> None:
    store = MemoryStore()
    gone = await open_session(store, summarizer=FailingModel("hanging"))
    await record_turns(gone, 10)
    await gone.record([user_message("next?")])
    await gone.prepare(BUDGET)
    run = gone.history.session_state.running_compaction
    assert run is not None
    # As if its process had been killed: nobody is left who could finish or cancel it.
    gone._compactor._task.cancel = lambda: False

    HELD_HERE.clear()
    again = await open_session(store, summarizer=endless_summarizer())
    await again.record([assistant_message("ok"), user_message("and?")])
    await again.prepare(BUDGET)
    await wait_for_summary(again)
    await again.record([assistant_message("ok"), user_message("go on")])
    await again.prepare(BUDGET)

    assert [(compaction.success, compaction.is_cancelled) for compaction in await compactions(again)] == [
        (False, True),
        (True, False),
    ]


async def test_opening_a_session_ends_a_compaction_that_nobody_is_at_any_more() -> None:
    store = MemoryStore()
    gone = await open_session(store, summarizer=FailingModel("hanging"))
    await record_turns(gone, 10)
    await gone.record([user_message("next?")])
    await gone.prepare(BUDGET)
    HELD_HERE.clear()

    again = await open_session(store)

    assert again.history.session_state.running_compaction is None
    assert [(compaction.success, compaction.error) for compaction in await compactions(again)] == [
        (False, "the process that started it did not finish it")
    ]
    await gone.close()


@pytest.mark.seed("A-30")
async def test_a_cheaper_model_writes_by_itself_and_the_primary_one_when_asked() -> None:
    cheap, primary = endless_summarizer(), endless_summarizer()
    session = await open_session(compaction=CompactionOptions(automatic=cheap, manual=primary))
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET)
    await wait_for_summary(session)
    await session.prepare(BUDGET)
    await record_turns(session, 4, 10)

    await session.compact(focus="the letters")

    assert (len(cheap.prompts), len(primary.prompts)) == (1, 1)
    assert "the letters" in primary.prompts[0].text
    assert "Greek letters" in primary.prompts[0].text, "the previous summary is shown in its own slot"
    assert "question 3" not in primary.prompts[0].text, "what it stands for is not shown again"


@pytest.mark.parametrize(("policy", "asks"), [("copilot", (0, 1)), ("inkeep", (1, 0)), ("co-cli", (0, 1))])
async def test_a_preset_says_who_writes_when_somebody_asks(policy: str, asks: tuple[int, int]) -> None:
    cheap, primary = endless_summarizer(), endless_summarizer()
    session = await open_session(policy=policy, compaction=CompactionOptions(automatic=cheap, manual=primary))
    await record_turns(session, 3)
    await session.record([user_message("so?")])
    await session.prepare(16_000)

    await session.compact()

    assert (len(cheap.prompts), len(primary.prompts)) == asks


async def test_a_summary_counts_only_when_it_was_approved() -> None:
    drafts: list[SummaryDraft] = []

    async def refuse(draft: SummaryDraft) -> bool:
        drafts.append(draft)
        return False

    async def edit(draft: SummaryDraft) -> str:
        return draft.summary.text + " Edited by hand."

    session = await open_session(compaction=CompactionOptions(automatic=endless_summarizer(), approve=refuse))
    await record_turns(session, 4)
    with pytest.raises(CompactionCancelledError):
        await session.compact()
    assert len(await session.visible_messages()) == 8
    assert [draft.summary.by_model for draft in drafts] == ["scripted"]
    other = await open_session(compaction=CompactionOptions(automatic=endless_summarizer(), approve=edit))
    await record_turns(other, 4)
    await other.compact()
    assert "Edited by hand." in (await other.visible_messages())[0].message.text


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (False, "it was not approved"),
        (None, "it was not approved: `approve` must return True, False or a text, not None"),
        (KeyError("q"), "it was not approved: `approve` raised KeyError"),
    ],
)
async def test_the_error_of_a_summary_that_was_not_approved_says_why(verdict: Any, why: str) -> None:
    async def decide(_: SummaryDraft) -> bool:
        if isinstance(verdict, KeyError):
            raise verdict
        return verdict

    session = await open_session(compaction=CompactionOptions(automatic=endless_summarizer(), approve=decide))
    await record_turns(session, 4)

    with pytest.raises(CompactionCancelledError) as refused:
        await session.compact()

    assert str(refused.value) == f"the compaction was not made: {why}"
    assert [done.error for done in await compactions(session)] == [why]


async def test_a_plain_function_may_approve_a_summary() -> None:
    options = CompactionOptions(automatic=endless_summarizer(), approve=lambda draft: bool(draft.summary.text))
    session = await open_session(compaction=options)
    await record_turns(session, 4)

    assert (await session.compact()).summary.by_model == "scripted"


@pytest.mark.seed("C-60")
async def test_a_model_that_does_not_let_itself_be_stopped_costs_its_time_and_is_heard_no_more() -> None:
    gate = asyncio.Event()

    async def held(_: float) -> None:
        await gate.wait()

    model = FailingModel("stubborn", text=SUMMARY, sleep=held)
    how = CompactionOptions(automatic=model, retry_limits=RetryLimits(timeout_seconds=0.05, attempts=1))
    session = await open_session(compaction=how)
    await record_turns(session, 4)
    before = await session.visible_messages()

    with pytest.raises(ModelUnreachableError, match=r"no answer within 0\.05 s"):
        await session.compact()

    assert session.history.session_state.running_compaction is None
    gate.set()
    await wait_until(lambda: not _ABANDONED_CALLS)
    assert await session.visible_messages() == before
    assert await kinds(session) == ["compaction_start", "compaction_complete"]


async def test_closing_does_not_wait_for_a_model_that_goes_on() -> None:
    gate = asyncio.Event()

    async def held(_: float) -> None:
        await gate.wait()

    model, store = FailingModel("stubborn", text=SUMMARY, sleep=held), MemoryStore()
    session = await open_session(store, summarizer=model)
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET)
    await wait_until(lambda: bool(model.prompts))

    await session.close()

    assert [
        (compaction.success, compaction.is_cancelled) for compaction in await compactions(await open_session(store))
    ] == [(False, True)]
    gate.set()
    await wait_until(lambda: not _ABANDONED_CALLS)


async def test_a_summarizer_that_was_opened_by_its_name_is_closed_with_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Server(ScriptedModel):
        async def close(self) -> None:
            closed.append(self.name)

    opened: list[str] = []
    closed: list[str] = []

    def open_named(name: str) -> Server:
        opened.append(name)
        return Server(repeat(SUMMARY), name=name)

    monkeypatch.setattr(compactor_module, "open_summarizer", open_named)
    session = await open_session(compaction=CompactionOptions(automatic="small-model"))
    await record_turns(session, 10)
    for _ in range(2):
        await session.compact()
        await record_turns(session, 4, 10)
    before = list(closed)

    await session.close()

    assert (opened, before, closed) == (["small-model"], [], ["small-model"])


async def test_a_summary_that_never_got_to_be_asked_for_is_ended_too() -> None:
    model, store = endless_summarizer(), MemoryStore()
    session = await open_session(store, summarizer=model)
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET)

    await session.close()

    assert model.prompts == []
    assert [
        (compaction.success, compaction.is_cancelled) for compaction in await compactions(await open_session(store))
    ] == [(False, True)]


@pytest.mark.seed("C-39")
@pytest.mark.seed("C-40")
@pytest.mark.parametrize("budget", [1_200, 2_000])
async def test_copilot_shortens_the_users_words_and_keeps_the_summary_where_the_room_is_small(budget: int) -> None:
    session = await open_session(policy="copilot", summarizer=endless_summarizer())
    await session.record_state(log.PlanChanged(text="1. count on"))
    for number in range(12):
        await session.record([user_message(f"question {number}: {WORDS}")])
        request = await session.prepare(budget)
        await session.record([assistant_message(f"answer {number}: {WORDS}")])
        await wait_for_summary(session)

    request = await session.prepare(budget)

    text = str(request.messages[0]["content"])
    assert f"<summary>\n{SUMMARY}\n</summary>" in text
    assert "<plan>\n1. count on\n</plan>" in text
    assert "...<truncated>..." in text
    assert request.tokens.total <= budget


@pytest.mark.seed("C-39")
async def test_a_compaction_on_the_users_word_is_made_for_the_budget_of_the_last_request() -> None:
    session = await open_session(policy="copilot", summarizer=endless_summarizer())
    await record_turns(session, 9)
    await session.record([user_message("so?")])
    await session.prepare(4_000)
    await session.record_state(log.PlanChanged(text="step " * 5_000))

    done = await session.compact()

    assert f"<summary>\n{SUMMARY}\n</summary>" in done.replacement[0]
    assert done.post_compaction_tokens <= 0.8 * 4_000
    assert f"<summary>\n{SUMMARY}\n</summary>" in str((await session.prepare(4_000)).messages[0]["content"])


async def test_a_compaction_by_rule_ends_no_run_of_a_summarizer() -> None:
    session = await open_session()
    await record_turns(session, 40)
    await session.record([user_message("next?")])
    await session.prepare(2_000)

    assert {(compaction.success, compaction.ends_run) for compaction in await compactions(session)} == {(True, False)}


@pytest.mark.parametrize(("policy", "author"), [("copilot", "primary"), ("inkeep", "cheap"), ("default", "cheap")])
async def test_the_preset_says_which_model_writes_automatic_summaries(policy: str, author: str) -> None:
    cheap, primary = (ScriptedModel([SUMMARY], name=name) for name in ("cheap", "primary"))
    session = await open_session(policy=policy, compaction=CompactionOptions(automatic=cheap, manual=primary))

    chosen = session._compactor._configured_summarizer("threshold")

    assert not isinstance(chosen, str)
    assert chosen is not None
    assert chosen.name == author


class WaitingJobs:
    """A queue in memory whose jobs wait until a test runs them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.jobs: list[tuple[str, str, log.CompactionTrigger]] = []
        self.cancelled: list[str] = []

    async def submit(self, session: str, owner: str, trigger: log.CompactionTrigger) -> None:
        if self.error is not None:
            raise self.error
        self.jobs.append((session, owner, trigger))

    async def cancel(self, owner: str) -> None:
        self.cancelled.append(owner)


async def queued(queue: WaitingJobs, store: MemoryStore, *, scale: int = 1, **settings: Any) -> Session:
    """Return a session that needs a summary and has left it to a queue."""
    options = CompactionOptions(automatic=endless_summarizer(), queue=queue)
    session = await open_session(store, compaction=options, **settings)
    await record_turns(session, 11, words=WORDS * scale)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET * scale)
    return session


async def test_a_summary_that_is_left_to_a_queue_is_written_by_a_worker_and_applied_by_the_next_request() -> None:
    queue, store = WaitingJobs(), MemoryStore()
    session = await queued(queue, store)
    [(name, owner, trigger)] = queue.jobs
    worker = await open_session(store, summarizer=endless_summarizer())

    outcomes = [await worker.run_compaction(owner), await worker.run_compaction(owner)]
    await session.record([assistant_message("so"), user_message("and now?")])
    await session.prepare(BUDGET)

    assert ((name, trigger), outcomes) == (("c1", "threshold"), ["summary", "not wanted"])
    assert await kinds(session) == ["compaction_start", "summary_written", "compaction_complete"]
    assert [(one.success, one.summary.by_model) for one in await compactions(session)] == [(True, "scripted")]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "this worker has no model to write a summary"),
        ({"summarizer": FailingModel("unauthorized")}, "failing:unauthorized: 401 invalid key"),
        ({"compaction": CompactionOptions(manual=endless_summarizer())}, "summarizer: there is no model"),
    ],
    ids=["no model", "no key", "a model for requested summaries only"],
)
async def test_a_worker_that_cannot_write_a_summary_ends_the_compaction_in_a_digest(
    settings: dict[str, Any], why: str
) -> None:
    queue, store = WaitingJobs(), MemoryStore()
    await queued(queue, store, scale=3)
    worker = await open_session(store, **settings)

    outcome = await worker.run_compaction(queue.jobs[0][1])

    done = (await compactions(worker))[-1]
    assert (outcome, done.success, done.summary.by_model) == ("digest", True, None)
    assert done.reason.startswith("a digest, because ")
    assert why in done.reason


class FullForSummaries(MemoryStore):
    """A store that has no room for a summary."""

    async def append(self, session: str, records: Any, **options: Any) -> int:
        if any(record["type"] == log.SummaryWritten.KIND for record in records):
            raise StoreUnavailableError("store", "the disk is full")
        return await super().append(session, records, **options)


async def test_a_worker_whose_summary_the_store_refuses_ends_the_compaction_in_a_digest_and_says_so() -> None:
    queue, store = WaitingJobs(), FullForSummaries()
    await queued(queue, store, scale=3)
    worker = await open_session(store, summarizer=endless_summarizer())

    outcome = await worker.run_compaction(queue.jobs[0][1])

    assert (outcome, await kinds(worker)) == ("digest", ["compaction_start", "compaction_complete"])
    [done] = await compactions(worker)
    assert (done.success, done.reason) == (True, "a digest, because store: the disk is full")


async def test_a_requested_compaction_whose_summary_the_store_refuses_says_that_it_was_refused() -> None:
    session = await open_session(FullForSummaries(), policy="copilot", summarizer=endless_summarizer())
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    await session.prepare(16_000)

    with pytest.raises(StoreUnavailableError, match="the disk is full"):
        await session.compact()


@pytest.mark.parametrize("verdict", [False, "cancelled"])
async def test_a_worker_reports_no_summary_where_it_was_not_approved_or_was_cancelled(*, verdict: bool | str) -> None:
    async def refuse(draft: SummaryDraft) -> bool:
        del draft
        if verdict == "cancelled":
            raise asyncio.CancelledError
        return False

    queue, store = WaitingJobs(), MemoryStore()
    await queued(queue, store)
    options = CompactionOptions(automatic=endless_summarizer(), approve=refuse)
    worker = await open_session(store, compaction=options)

    outcome = await worker.run_compaction(queue.jobs[0][1])

    assert (outcome, await kinds(worker)) == ("not wanted", ["compaction_start", "compaction_complete"])
    assert [one.success for one in await compactions(worker)] == [False]


@pytest.mark.parametrize("settings", [{}, {"summarizer": FailingModel("unauthorized")}], ids=["no model", "no key"])
async def test_a_worker_leaves_a_context_alone_that_has_changed_since_its_job_was_queued(
    settings: dict[str, Any],
) -> None:
    queue, store = WaitingJobs(), MemoryStore()
    session = await queued(queue, store, scale=3)
    await session.rewind(to=2)
    worker = await open_session(store, **settings)

    outcome = await worker.run_compaction(queue.jobs[0][1])
    await session.record([user_message("another question")])
    request = await session.prepare(BUDGET)

    assert outcome == "not wanted"
    assert [(one.success, one.error) for one in await compactions(session)] == [
        (False, "the context has changed meanwhile")
    ]
    assert request.messages == await session.messages()


class RewindingModel:
    """A model during whose answer the user rewinds the session."""

    name, window = "rewinding", None

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.session: Session | None = None

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        del prompt
        assert self.session is not None
        await self.session.rewind(to=2)
        if not self.answers:
            raise ModelRefusedError(self.name, "no")
        return ModelReply(text=SUMMARY, model=self.name)


async def test_a_worker_whose_model_fails_leaves_a_context_alone_that_has_changed_meanwhile() -> None:
    queue, store, model = WaitingJobs(), MemoryStore(), RewindingModel(answers=False)
    model.session = await queued(queue, store, scale=3)
    worker = await open_session(store, summarizer=model)

    outcome = await worker.run_compaction(queue.jobs[0][1])

    assert (outcome, [one.success for one in await compactions(worker)]) == ("not wanted", [False])


class CancellingModel:
    """A model that fails while the user cancels the compaction in another process."""

    name, window = "cancelling", None

    def __init__(self, session: Session) -> None:
        self.session = session

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        del prompt
        await self.session.cancel_compaction()
        raise ModelRefusedError(self.name, "no")


async def test_a_cancelled_compaction_becomes_no_digest_if_the_model_of_its_worker_fails() -> None:
    queue, store = WaitingJobs(), MemoryStore()
    session = await queued(queue, store, scale=3)
    worker = await open_session(store, summarizer=CancellingModel(session))

    outcome = await worker.run_compaction(queue.jobs[0][1])

    assert outcome == "not wanted"
    assert [(one.success, one.error) for one in await compactions(session)] == [(False, "it was cancelled")]


async def test_a_worker_that_is_stopped_records_nothing_so_that_another_one_writes_the_summary() -> None:
    queue, store, author = WaitingJobs(), MemoryStore(), BlockedAuthor()
    session = await queued(queue, store)
    stopped = await open_session(store, summarizer=author)
    [(_, owner, _)] = queue.jobs
    writing = asyncio.ensure_future(stopped.run_compaction(owner))
    await author.is_asked.wait()
    writing.cancel()
    await asyncio.wait({writing})
    worker = await open_session(store, summarizer=endless_summarizer())

    outcome = await worker.run_compaction(owner)

    assert (writing.cancelled(), outcome) == (True, "summary")
    assert await kinds(session) == ["compaction_start", "summary_written"]


@pytest.mark.parametrize("answers", [False, True])
async def test_a_requested_compaction_fails_if_the_user_rewinds_meanwhile(*, answers: bool) -> None:
    model = RewindingModel(answers=answers)
    session = model.session = await open_session(summarizer=model)
    await record_turns(session, 11, words=WORDS * 3)

    with pytest.raises(CompactionFailedError, match="the context has changed meanwhile"):
        await session.compact()

    assert [one.success for one in await compactions(session)] == [False]


async def test_a_queue_that_cannot_be_reached_ends_the_compaction_and_the_session_goes_on() -> None:
    session = await queued(WaitingJobs(OSError("no route to the queue")), MemoryStore())

    [ended] = await compactions(session)
    assert (ended.success, ended.error) == (
        False,
        f"it could not be queued: {CompactionFailedError('OSError: no route to the queue')}",
    )
    assert await session.cancel_compaction() is False


class SlowQueue(WaitingJobs):
    """A queue that does not answer at first."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.answers = asyncio.Event(), False

    async def submit(self, session: str, owner: str, trigger: log.CompactionTrigger) -> None:
        self.is_asked.set()
        if not self.answers:
            await asyncio.Event().wait()
        await super().submit(session, owner, trigger)


async def test_a_request_that_is_cancelled_while_its_compaction_is_queued_blocks_no_later_compaction() -> None:
    queue = SlowQueue()
    options = CompactionOptions(automatic=endless_summarizer(), queue=queue)
    session = await open_session(compaction=options)
    await record_turns(session, 11)
    await session.record([user_message("next?")])
    request = asyncio.ensure_future(session.prepare(BUDGET))
    await queue.is_asked.wait()
    request.cancel()
    await asyncio.wait({request})
    queue.answers = True

    await session.record([assistant_message("so"), user_message("and now?")])
    await session.prepare(BUDGET)

    assert (request.cancelled(), len(queue.jobs)) == (True, 1)
    assert [(one.is_cancelled, one.error) for one in await compactions(session)] == [
        (True, "it was cancelled before it was queued")
    ]


async def test_a_job_that_waits_in_a_queue_is_cancelled_there_and_in_the_log() -> None:
    queue = WaitingJobs()
    session = await queued(queue, MemoryStore())

    cancelled = [await session.cancel_compaction(), await session.cancel_compaction()]

    [ended] = await compactions(session)
    assert (cancelled, queue.cancelled) == ([True, False], [queue.jobs[0][1]])
    assert (ended.success, ended.error) == (False, "it was cancelled")


async def test_a_request_that_must_wait_for_a_worker_goes_on_as_soon_as_the_summary_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compactor_module, "POLL_SECONDS", 0)
    queue, store = WaitingJobs(), MemoryStore()
    session = await queued(queue, store, policy="copilot")
    await record_turns(session, 4, 10)
    await session.record([user_message("more?")])
    waiting = asyncio.ensure_future(session.prepare(BUDGET))
    worker = await open_session(store, summarizer=endless_summarizer())

    outcome = await worker.run_compaction(queue.jobs[0][1])
    request = await waiting

    assert (outcome, request.tokens.total < BUDGET) == ("summary", True)
    assert [(one.success, one.summary.by_model) for one in await compactions(session)] == [(True, "scripted")]


async def test_a_requested_compaction_sets_a_ready_summary_aside() -> None:
    session = await open_session(summarizer=endless_summarizer())
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET)
    await wait_for_summary(session)

    done = await session.compact()

    first, second = await compactions(session)
    assert (first.success, first.error) == (
        False,
        "another compaction replaces it; the summary is kept for the next compaction",
    )
    assert (done.success, second.trigger) == (True, "manual")


@pytest.mark.parametrize("limit", [0, -1, 2.5, "1", True])
def test_a_limit_of_memory_is_a_number_of_bytes(limit: Any) -> None:
    with pytest.raises(SettingsError, match="must be a number of bytes above 0"):
        CompactionOptions(memory_limit_bytes=limit)


@pytest.mark.parametrize("preset", sorted(PRESETS))
async def test_a_preview_of_every_preset_can_be_applied_as_it_was_shown(preset: str) -> None:
    session = await open_session(policy=preset)
    await record_turns(session, 10)
    await session.prepare(BUDGET)
    preview = await session.preview(budget=BUDGET)

    applied = await session.apply_preview(preview, budget=BUDGET)

    assert (applied.success, applied.span, applied.replacement) == (True, preview.span, preview.replacement)
    assert applied.post_compaction_tokens == preview.post_compaction_tokens
    assert await session.receipts()


async def test_a_preview_whose_messages_are_gone_is_refused() -> None:
    session = await open_session()
    await record_turns(session, 10)
    preview = await session.preview(budget=BUDGET)
    await session.rewind(to=2)

    with pytest.raises(CompactionFailedError) as refused:
        await session.apply_preview(preview, budget=BUDGET)

    assert str(refused.value) == str(CompactionFailedError(PREVIEW_IS_OLD))


async def test_a_draft_that_takes_too_long_is_refused() -> None:
    limits = RetryLimits(deadline_seconds=0.01)
    options = CompactionOptions(automatic=FailingModel("hanging"), retry_limits=limits)
    session = await open_session(compaction=options)
    await record_turns(session, 10)

    with pytest.raises(CompactionFailedError, match=r"it took longer than 0\.01 s"):
        await session.preview(budget=BUDGET, draft=True)


async def test_a_job_that_ended_before_its_cancellation_keeps_its_summary() -> None:
    store = MemoryStore()

    class Finished(WaitingJobs):
        async def cancel(self, owner: str) -> None:
            worker = await open_session(store, summarizer=endless_summarizer())
            outcomes.append(await worker.run_compaction(owner))

    outcomes = list[str]()
    session = await queued(Finished(), store)

    was_there = await session.cancel_compaction()
    await session.record([assistant_message("so"), user_message("and now?")])
    await session.prepare(BUDGET)

    assert (was_there, outcomes) == (True, ["summary"])
    assert await kinds(session) == ["compaction_start", "summary_written", "compaction_complete"]
    assert [(one.success, one.summary.by_model) for one in await compactions(session)] == [(True, "scripted")]


class BlockedAuthor:
    """Writes a summary once it may."""

    name, window = "author", None

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        del prompt
        self.is_asked.set()
        await self.may_answer.wait()
        return ModelReply(text=SUMMARY, model="author")


class NotedQueue:
    """Keeps jobs that no worker takes, and notes which are cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def submit(self, session: str, owner: str, trigger: log.CompactionTrigger) -> None: ...

    async def cancel(self, owner: str) -> None:
        self.cancelled.append(owner)


@pytest.mark.parametrize("is_queued", [True, False])
async def test_a_fork_does_not_wait_for_a_summary_of_its_parent_nor_cancels_it(*, is_queued: bool) -> None:
    queue, author = NotedQueue(), BlockedAuthor()
    options = CompactionOptions(automatic=author, queue=queue if is_queued else None)
    session = await open_session(compaction=options)
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET)
    assert session.history.session_state.running_compaction is not None

    fork = await session.fork("f")

    assert fork.history.session_state.running_compaction is None
    assert not await fork.cancel_compaction()
    assert queue.cancelled == []
    assert session.history.session_state.running_compaction is not None
    author.may_answer.set()
    assert (await fork.compact(budget=BUDGET)).summary.by_model == "author"
    await fork.close()
    await session.close()


async def test_a_fork_has_a_summary_that_its_parent_has_not_applied_yet() -> None:
    session = await open_session(summarizer=endless_summarizer())
    await record_turns(session, 10)
    await session.record([user_message("next?")])
    await session.prepare(BUDGET)
    await wait_for_summary(session)

    fork = await session.fork("f")
    await fork.prepare(BUDGET)

    assert [one.summary.by_model for one in await compactions(fork)] == ["scripted"]
    assert await compactions(session) == []


async def test_a_fork_into_a_session_that_somebody_begins_meanwhile_is_refused() -> None:
    class Begun(MemoryStore):
        async def append(self, session: str, records: Any, **options: Any) -> int:
            if session == "f" and not await self.length("f"):
                async with Session.open("g", store=self) as other:
                    await other.record([user_message("mine")])
                mine = [one.record for one in await self.read("g")]
                await super().append("f", mine, after=0, time_ms=1)
            return await super().append(session, records, **options)

    store = Begun()
    session = await open_session(store)
    await session.record([user_message("hello")])

    with pytest.raises(SettingsError, match="'f' already exists; choose another id"):
        await session.fork("f")

    async with Session.open("f", store=store) as forked:
        assert await forked.messages() == [user_message("mine")]


async def test_a_summary_of_more_than_twelve_characters_for_each_token_that_was_asked_for_is_refused() -> None:
    span = CompactSpan(span=Span(start=0, stop=1), by="summary")
    job = SummaryJob(step=span, entries=(), counter=counter_for("gpt-5"), replaced_tokens=10_000, max_tokens=100)
    longest = "so " * 399 + "end"
    model, asked = (
        ScriptedModel([longest, f"{longest}."]),
        SummaryPrompt(system="Summarize.", text="a talk", max_output_tokens=100),
    )

    assert (await summarizer._ask_model(job, model, asked, RetryLimits(attempts=1))).text == longest
    with pytest.raises(CompactionFailedError, match="the summary is far longer than was asked for"):
        await summarizer._ask_model(job, model, asked, RetryLimits(attempts=1))


class UnclosableModel(ScriptedModel):
    """A summarizer whose connection is broken, so that it cannot be closed."""

    closed: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        super().__init__(repeat(SUMMARY))
        self.opened_as = name

    async def close(self) -> None:
        self.closed.append(self.opened_as)
        raise ConnectionError(self.opened_as)


async def test_a_summarizer_that_cannot_be_closed_keeps_no_other_one_and_no_session_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compactor_module, "open_summarizer", UnclosableModel)
    options, url = CompactionOptions(automatic="test:a", manual="test:b"), f"sqlite:///{tmp_path}/chats.db"
    session = await Session.open("s", store=url, compaction=options)
    names = [cast("UnclosableModel", one).opened_as for one in session.summarizers]

    with pytest.raises(ConnectionError):
        await session.close()

    assert sorted(UnclosableModel.closed) == sorted(names) == ["test:a", "test:b"]
    with pytest.raises(SessionClosedError):
        await session.messages()
    async with Session.open("s", store=url) as again:
        assert again.store is not session.store, "nobody uses that one any more, so it was closed"
