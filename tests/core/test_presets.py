"""Each preset does what its system does, to the letter, request by request."""

from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest

from holdfast import Session, counter_for, read_policy
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.events import Summary
from holdfast.core.history.history import History
from holdfast.core.planning.changes import compaction_completed_event
from holdfast.core.planning.plan import plan_input_of, usage_measured_event
from holdfast.core.planning.policy import PRESETS, Policy
from holdfast.core.planning.rules.copilot import CompactedHistory, user_reminder
from holdfast.core.planning.rules.inkeep import FixedLimits
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import AwaitSummary, CompactSpan, OffloadOutputs, ReduceTurnsToText
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.models import ScriptedModel
from holdfast.testing.responses import (
    function_call_item,
    function_output_item,
    output_message_item,
    reasoning_item,
)
from holdfast.wire.formats import format_named
from tests.support import anthropic_step, decide, tool_turn

COUNTER = counter_for("gpt-5")
CO_CLI, INKEEP, COPILOT, COWAGENT = (PRESETS[name] for name in ("co-cli", "inkeep", "copilot", "cowagent"))


async def open_session(policy: Policy, *, summary: str | None = "It went well.") -> Session:
    """Return a session whose summaries all say the same; with None nobody writes any."""
    summarizer = ScriptedModel(repeat(summary)) if summary is not None else None
    return await Session.open("s", policy=policy, model="gpt-5", summarizer=summarizer)


async def ask(
    session: Session, messages: list[JsonMessage], window: int = 1_000_000, format_name: str | None = None
) -> list[Any]:
    """Return what is sent of a conversation; a summary that is begun is there at the next request."""
    await session.record(messages[len(session) :], format=format_name)
    request = await session.prepare(window)
    await SimulatedClock().advance(0)
    return list(request.messages)


def situation(window: int = 1_000_000, **fields: Any) -> Situation:
    settings: dict[str, Any] = {"has_summarizer": True, **fields}
    return Situation(budget=Budget(window), window=window, counter=COUNTER, **settings)


def recorded(messages: list[JsonMessage]) -> History:
    events = [log.MessageAppended(format="openai-chat", native=native) for native in messages]
    return History.replay(events, format_named)


def chatted(turns: int, more: str = "") -> list[JsonMessage]:
    return [
        message
        for number in range(turns)
        for message in (user_message(f"q{number}{more}"), assistant_message(f"a{number}{more}"))
    ]


# co-cli


@pytest.mark.seed("A-2", "A-17", "A-18", "A-20", "A-21", "A-22")
async def test_co_cli_keeps_the_first_run_and_the_newest_twenty_around_one_marker() -> None:
    session, talk = await open_session(CO_CLI), [*chatted(20), user_message("q20")]

    assert await ask(session, talk[:-1][:39]) == talk[:39]
    sent = await ask(session, talk)

    assert sent == [*talk[:2], user_message("[Summary of 19 earlier messages]\nIt went well."), *talk[-20:]]


@pytest.mark.seed("A-18", "A-19", "A-21", "A-22", "A-23")
@pytest.mark.parametrize("summary", ["It went well.", None])
async def test_co_cli_leaves_its_marker_alone_if_the_first_run_is_longer_than_the_window_has_room_for(
    summary: str | None,
) -> None:
    def marked(count: int) -> JsonMessage:
        static = f"[Earlier conversation trimmed — {count} messages removed to stay within context budget]"
        return user_message(f"[Summary of {count} earlier messages]\n{summary}" if summary else static)

    steps = [message for number in range(13) for message in tool_turn(number)[1:3]]
    first_run = [user_message("start"), *steps, assistant_message("done")]
    session, talk = await open_session(CO_CLI, summary=summary), [*first_run, *chatted(14), user_message("now")]

    assert await ask(session, talk) == [*first_run, marked(9), *talk[-20:]]
    assert await ask(session, talk) == [*first_run, marked(9), *talk[-20:]]
    talk += [assistant_message("sure"), user_message("next")]
    assert await ask(session, talk) == [*first_run, marked(3), *talk[-20:]]
    happened = [event.KIND for event in await session.events() if isinstance(event, log.CompactionCompleted)]
    assert len(happened) == 2


@pytest.mark.seed("A-22")
async def test_co_cli_leaves_its_marker_alone_if_only_a_pinned_exchange_stands_beside_it() -> None:
    steps = [message for number in range(15) for message in tool_turn(number)[1:3]]
    first_run = [user_message("start"), *steps, assistant_message("done")]
    pinned = tool_turn(20)
    session, talk = await open_session(CO_CLI), [*first_run, *pinned, *chatted(14), user_message("now")]
    await session.record(talk)
    await session.pin(len(first_run) + 1)

    sent = await ask(session, talk)

    assert [message["content"] for message in sent if "Summary of" in str(message["content"])] == [
        "[Summary of 12 earlier messages]\nIt went well."
    ]
    assert [message in sent for message in pinned] == [False, True, True, False]


@pytest.mark.seed("A-17", "A-19", "A-20", "A-22")
async def test_co_cli_counts_the_items_of_one_response_as_one_message() -> None:
    def turn(number: int) -> list[JsonMessage]:
        calls = [f"c{number}", f"d{number}"]
        return [
            user_message(f"q{number}"),
            reasoning_item(f"rs_{number}"),
            *map(function_call_item, calls),
            *map(function_output_item, calls),
            reasoning_item(f"rs_{number}b"),
            output_message_item(f"a{number}", f"msg_{number}"),
        ]

    session, talk = await open_session(CO_CLI), [item for number in range(10) for item in turn(number)]

    assert await ask(session, talk[:-2], format_name="openai-responses") == talk[:-2]
    sent = await ask(session, [*talk, user_message("now")])

    marker = user_message("[Summary of 17 earlier messages]\nIt went well.")
    assert sent == [*talk[:8], marker, *talk[8 * 5 + 1 :], user_message("now")]


@pytest.mark.seed("A-23")
async def test_co_cli_puts_a_static_marker_where_no_summary_can_be_had() -> None:
    talk = [*chatted(20), user_message("q20")]

    sent = await ask(await open_session(CO_CLI, summary=None), talk)

    marker = "[Earlier conversation trimmed — 19 messages removed to stay within context budget]"
    assert sent == [*talk[:2], user_message(marker), *talk[-20:]]


@pytest.mark.seed("A-18", "A-21")
async def test_co_cli_compacts_its_own_marker_the_next_time() -> None:
    session, talk = await open_session(CO_CLI), [*chatted(20), user_message("q20")]
    await ask(session, talk)
    for number in range(20, 30):
        talk += [assistant_message(f"a{number}"), user_message(f"q{number + 1}")]

    sent = await ask(session, talk)

    assert sent == [*talk[:2], user_message("[Summary of 21 earlier messages]\nIt went well."), *talk[-20:]]


@pytest.mark.seed("A-2", "A-9", "A-10", "A-11", "A-15")
async def test_co_cli_cuts_old_outputs_in_every_request_and_leaves_the_history_whole() -> None:
    talk = [*tool_turn(0, "x" * 2_001), *tool_turn(1, "y" * 3_000)[:3]]
    session = await open_session(CO_CLI)

    sent = await ask(session, talk)

    assert sent[2]["content"] == "x" * 2_000 + "\n[…truncated, 2001 chars total]"
    assert sent[-1] == talk[-1]
    assert session.history.entries[2].message.results[0].text == "x" * 2_001


@pytest.mark.seed("A-18", "A-20")
async def test_co_cli_may_cut_a_pair_and_the_fitter_repairs_it_and_says_so() -> None:
    talk = [*chatted(9), *(message for number in range(7) for message in tool_turn(number))][:-1]
    session = await open_session(read_policy('base = "co-cli"\ncompaction.max_messages = 42'))

    sent = await ask(session, talk)

    assert talk[-21] == tool_result_message("c1", "ok")
    assert sent == [*talk[:2], user_message("[Summary of 22 earlier messages]\nIt went well."), *talk[-20:]]
    assert any(
        "repaired so that the provider accepts" in reason
        for reason in (await session.prepare(1_000_000)).receipt.reasons
    )


# Inkeep


@pytest.mark.seed("B-2", "B-4", "B-5", "B-9", "B-14")
async def test_inkeep_compresses_everything_before_the_prompt_at_half_of_the_window() -> None:
    talk = [system_message("be"), *chatted(30), user_message("now")]
    tokens = sum(recorded(talk).projection(COUNTER).entry_tokens()) + 3
    session = await open_session(INKEEP)

    assert await ask(session, talk, window=2 * tokens + 1) == talk
    assert await ask(session, talk, window=2 * tokens) == [
        talk[0], user_message("[Summary of the conversation so far, for reference.]\nIt went well."),
        user_message("now"),
    ]  # fmt: skip


@pytest.mark.seed("B-5", "B-15")
async def test_inkeep_compresses_what_a_run_has_gathered_and_keeps_the_task() -> None:
    steps = [message for number in range(6) for message in tool_turn(number, "data " * 300)[1:3]]
    session = await open_session(INKEEP)

    sent = await ask(session, [user_message("analyse this"), *steps], window=2_600)

    assert [message["role"] for message in sent] == ["user", "user", "assistant", "tool"]
    assert sent[0] == user_message("analyse this")
    assert sent[1]["content"].startswith("[Summary of the conversation so far, for reference.]\nIt went well.")
    assert sent[2:] == steps[-2:]


@pytest.mark.seed("B-5", "B-15")
async def test_inkeep_leaves_what_came_before_a_task_alone_while_an_agent_works_on_it() -> None:
    before = [*chatted(12, " and so on" * 20), user_message("analyse this")]
    steps = [message for number in range(3) for message in tool_turn(number, "data " * 300)[1:3]]
    tokens = recorded([*before, *steps]).projection(COUNTER).tokens

    sent = await ask(await open_session(INKEEP), [*before, *steps], window=int(tokens / 0.76))
    unchanged = await ask(await open_session(INKEEP), [*before, *steps], window=int(tokens / 0.74))

    assert unchanged == [*before, *steps]
    assert sent[: len(before)] == before
    assert len(sent) == len(before) + 3


@pytest.mark.seed("B-14", "B-15")
async def test_inkeep_leaves_a_prompt_its_call_if_it_also_brings_the_result() -> None:
    talk = [user_message("look"), *anthropic_step("a", output="data " * 300), *anthropic_step("b", "and be quick")]

    sent = await ask(await open_session(INKEEP), talk, window=700, format_name="anthropic-messages")

    assert sent == [user_message("[Summary of the conversation so far, for reference.]\nIt went well."), *talk[3:]]


@pytest.mark.seed("B-15")
async def test_inkeep_tells_a_run_to_conclude_when_it_is_compressed_again_and_again() -> None:
    session, talk = await open_session(INKEEP), [user_message("analyse this")]
    advice: list[str] = []
    for number in range(24):
        talk += tool_turn(number, "data " * 300)[1:3]
        sent = await ask(session, talk, window=2_600)
        if len(sent) > 1 and "[Compression" in str(sent[1]["content"]):
            assert sent[0] == user_message("analyse this")
            advice.append(sent[1]["content"].rpartition("\n")[2])

    assert list(dict.fromkeys(text[:27] for text in advice))[:3] == [
        "[Compression 1 of this run.", "[Compression 2 of this run.", "[Compression 3 of this run.",
    ]  # fmt: skip
    assert "Stop calling tools." in advice[-1]


@pytest.mark.seed("B-15")
async def test_inkeep_counts_the_compressions_of_each_run_anew() -> None:
    session, talk = await open_session(INKEEP), [user_message("analyse this")]
    for number in range(6):
        talk += tool_turn(number, "data " * 300)[1:3]
    await ask(session, talk, window=2_600)
    talk += [assistant_message("done"), user_message("and that")]
    for number in range(6, 12):
        talk += tool_turn(number, "data " * 300)[1:3]

    sent = await ask(session, talk, window=2_600)

    assert [str(message["content"]).count("[Compression 1 of this run.") for message in sent].count(1) >= 1
    assert "[Compression 2" not in str(sent)


@pytest.mark.seed("B-10", "B-16")
async def test_inkeep_refers_to_large_results_by_name_where_it_has_compressed_them() -> None:
    large = "word " * 2_500
    talk = [*tool_turn(0, large), *tool_turn(1, "small"), user_message("now")]

    sent = await ask(await open_session(INKEEP), talk, window=4_000)

    text = sent[0]["content"]
    assert text.count("[Artifact:") == 1
    assert '[Artifact: "read_file" (id: compress_read_file_c0_' in text
    assert len(text) < 1_000


@pytest.mark.seed("B-2", "B-6", "B-12")
async def test_inkeep_without_a_summarizer_sends_the_newest_fifty_messages() -> None:
    talk = [system_message("be"), *chatted(40), user_message("now")]

    sent = await ask(await open_session(INKEEP, summary=None), talk)

    marker = user_message("[Previous conversation history truncated - 31 earlier messages]")
    assert sent == [talk[0], marker, *talk[-50:]]


@pytest.mark.seed("B-7", "B-12")
async def test_inkeep_without_a_summarizer_sends_at_most_eight_thousand_tokens_of_earlier_messages() -> None:
    talk = [
        user_message("a"),
        assistant_message("b " * 5_000),
        user_message("c"),
        assistant_message("d " * 5_000),
        user_message("now"),
    ]

    sent = await ask(await open_session(INKEEP, summary=None), talk)

    assert [message["content"][:3] for message in sent] == ["[Pr", "c", "d d", "now"]


@pytest.mark.seed("B-12")
async def test_inkeep_without_a_summarizer_leaves_a_prompt_its_long_call_if_it_also_brings_the_result() -> None:
    _, answer = anthropic_step("a", "and be quick")
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {"text": "b " * 9_000}}
    call: JsonMessage = {"role": "assistant", "content": [use]}
    talk = [user_message("write"), call, answer]

    sent = await ask(await open_session(INKEEP, summary=None), talk, format_name="anthropic-messages")

    assert sent == [user_message("[Previous conversation history truncated - 1 earlier messages]"), call, answer]


@pytest.mark.seed("B-12")
def test_inkeep_falls_back_to_its_limits_when_the_summarizer_fails() -> None:
    history = recorded([*chatted(40), user_message("now")])
    window = history.projection(COUNTER).tokens * 2
    history.append(log.CompactionCompleted(success=False, error="timeout"))

    view = decide(history, INKEEP, situation(window)).view

    assert len(view.entries) == 51
    assert "there is no summary" in view.reasons[0]


@pytest.mark.parametrize(
    ("steps", "share", "filled_by", "is_limited"),
    [
        (0, 0.49, "all", False),
        (0, 0.51, "all", True),
        (30, 0.51, "messages before the run", True),
        (60, 0.74, "all", False),
        (60, 0.76, "all", True),
    ],
)
@pytest.mark.seed("B-4", "B-5", "B-12")
def test_inkeep_applies_its_limits_after_a_failure_only_while_a_summary_is_due(
    steps: int,
    share: float,
    filled_by: str,
    is_limited: bool,  # noqa: FBT001
) -> None:
    before = [*chatted(60, " and so on" * 20), user_message("now")]
    run = [
        message
        for number in range(steps)
        for message in (tool_call_message(f"c{number}"), tool_result_message(f"c{number}", "seen " * 40))
    ]
    filling = [*before, *run] if filled_by == "all" else before
    window = int(recorded(filling).projection(COUNTER).tokens / share)
    history = recorded([*before, *run])
    history.append(log.CompactionCompleted(success=False, error="timeout"))

    view = decide(history, INKEEP, situation(window)).view

    assert (view.entries[0].position is None) is is_limited
    assert is_limited or len(view.entries) == len(before) + len(run)


def delegated_amid_noise() -> History:
    """Return a history whose last fifty messages are mostly those of another delegate than `d1`."""
    history = recorded([user_message("task"), *chatted(3)])
    for scope in ("d1", "d2"):
        history.append(log.DelegationStarted(scope=scope, agent=scope))
    spoken = [
        ("d1", user_message("look"), 1),
        ("d1", assistant_message("seen"), 1),
        ("d2", assistant_message("noise"), 48),
        ("d1", user_message("on"), 1),
    ]
    for scope, native, times in spoken:
        for _ in range(times):
            history.append(log.MessageAppended(format="openai-chat", native=native, scope=scope))
    return history


@pytest.mark.seed("B-6", "B-17")
def test_inkeep_retrieves_its_newest_messages_before_it_asks_who_may_see_them() -> None:
    view = decide(delegated_amid_noise(), INKEEP, situation(scope="d1", has_summarizer=False)).view

    assert [entry.position for entry in view.entries] == [None, 8, 57]
    assert view.entries[0].message.text == "[Previous conversation history truncated - 8 earlier messages]"


@pytest.mark.seed("B-3", "B-17")
def test_inkeep_with_a_summarizer_retrieves_its_newest_messages_first_too() -> None:
    policy = replace(INKEEP, limits=FixedLimits(max_retrieved=50))

    view = decide(delegated_amid_noise(), policy, situation(scope="d1")).view

    assert [entry.position for entry in view.entries if entry.position is not None] == [8, 57]
    assert view.reasons[0] == "only the newest 50 messages are sent"


@pytest.mark.seed("B-12", "B-14")
def test_inkeep_counts_an_earlier_summary_among_what_it_falls_back_to() -> None:
    history = recorded([*chatted(4)])
    history.append(log.CompactionCompleted(success=True, span=Span(start=0, stop=8), replacement=("[summary]",)))
    for native in (user_message("so"), assistant_message("yes"), user_message("now")):
        history.append(log.MessageAppended(format="openai-chat", native=native))
    history.append(log.CompactionCompleted(success=False, error="timeout"))

    view = decide(history, INKEEP, situation()).view

    assert [entry.position for entry in view.entries] == [None, 8, 9, 10]


@pytest.mark.seed("B-17", "B-19", "B-20", "B-21")
def test_what_a_delegate_may_see_is_settled_before_anything_is_compressed() -> None:
    history = recorded([user_message("task")])
    for scope, secret in (("d1", "one"), ("d2", "two")):
        history.append(log.DelegationStarted(scope=scope, agent=scope))
        for native in (
            tool_call_message(scope),
            tool_result_message(scope, secret),
            assistant_message(f"done {secret}"),
        ):
            history.append(log.MessageAppended(format="openai-chat", native=native, scope=scope))
    history.append(log.MessageAppended(format="openai-chat", native=user_message("go on"), scope="d1"))

    view = decide(history, INKEEP, situation(scope="d1")).view

    assert [entry.position for entry in view.entries] == [0, 1, 2, 3, 7]


# Copilot CLI


def filled(share: float, *, turns: int = 4) -> tuple[list[JsonMessage], int]:
    """Return a conversation and the window of which it fills this share."""
    talk = [system_message("be"), *chatted(turns, " and so on" * 20), user_message("now")]
    return talk, int((recorded(talk).projection(COUNTER).tokens + 3) / share)


@pytest.mark.seed("C-14", "C-18", "C-19", "C-21")
def test_copilot_starts_a_summary_in_the_background_at_eighty_percent() -> None:
    talk, window = filled(0.81)
    early = decide(recorded(talk), COPILOT, situation(int(window * 1.1)))
    due = decide(recorded(talk), COPILOT, situation(window))

    assert (early.now, early.later) == ((), ())
    assert due.now == ()
    assert due.later == (CompactSpan(span=Span(start=0, stop=9, count=8), by="summary"),)


@pytest.mark.seed("C-23")
def test_copilot_takes_the_window_of_an_unknown_model_from_its_settings() -> None:
    talk, window = filled(0.85)
    policy = read_policy(f'base = "copilot"\nunknown_window = {max(1_000, window)}')
    long = [*talk[:-1], *chatted(30, " and so on" * 20), user_message("now")]
    how = Situation(budget=Budget(10**6), counter=COUNTER, has_summarizer=True)

    assert len(decide(recorded(long), policy, how).now) == 1
    assert decide(recorded(long), COPILOT, how).now == ()


@pytest.mark.seed("C-14")
def test_copilot_counts_tool_definitions() -> None:
    talk, window = filled(0.5)

    plan = decide(recorded(talk), COPILOT, situation(window, tools_tokens=int(window * 0.35)))

    assert len(plan.later) == 1


@pytest.mark.seed("C-16", "C-20")
def test_copilot_starts_and_waits_at_ninety_five_percent_and_after_a_refusal() -> None:
    talk, window = filled(0.96)
    full = decide(recorded(talk), COPILOT, situation(window))
    refused = decide(recorded(talk), COPILOT, situation(window * 9, refusals=1))

    assert full.now == (CompactSpan(span=Span(start=0, stop=9, count=8), by="summary"),)
    assert refused.now == (
        CompactSpan(span=Span(start=0, stop=9, count=8), by="summary", trigger="context_limit_retry"),
    )


@pytest.mark.seed("C-15", "C-16", "C-17")
def test_copilot_applies_what_is_ready_and_waits_for_what_is_running_only_when_it_must() -> None:
    talk, window = filled(0.96)
    history = recorded(talk)
    history.append(log.CompactionStarted(span=Span(stop=9)))

    ready = decide(history, COPILOT, situation(window * 9, has_ready_summary=True))
    running = decide(history, COPILOT, situation(int(window * 1.1)))
    exhausted = decide(history, COPILOT, situation(window))

    assert (ready.now, running.now, exhausted.now) == ((AwaitSummary(),), (), (AwaitSummary(),))
    assert running.later == ()


@pytest.mark.seed("C-1", "C-13d", "C-39", "C-41")
async def test_copilot_replaces_everything_before_the_boundary_and_keeps_what_came_after() -> None:
    talk, window = filled(0.85)
    session = await open_session(COPILOT)

    assert await ask(session, talk, window) == talk
    talk += [assistant_message("a"), user_message("later")]
    sent = await ask(session, talk, window)

    assert sent[0] == talk[0]
    assert sent[1]["content"].startswith("Some of the conversation history has been summarized")
    assert "<summary>\nIt went well.\n</summary>" in sent[1]["content"]
    assert sent[2:] == [user_message("now"), assistant_message("a"), user_message("later")]


@pytest.mark.seed("C-41")
def test_copilot_moves_the_boundary_before_an_exchange_that_is_open() -> None:
    talk = [
        *chatted(4, " and so on" * 20),
        user_message("now"),
        tool_call_message("x", "y"),
        tool_result_message("x"),
        tool_result_message("y"),
    ]
    window = int((recorded(talk).projection(COUNTER).tokens + 3) / 0.85)

    plan = decide(recorded(talk), COPILOT, situation(window))

    assert plan.later == (CompactSpan(span=Span(start=0, stop=9, kept=(8,), count=9), by="summary"),)


@pytest.mark.seed("C-1", "C-22", "C-26", "C-32", "C-35")
def test_copilot_truncates_a_single_request_and_the_history_stays_whole() -> None:
    talk, window = filled(1.5, turns=40)
    history = recorded(talk)

    plan = decide(history, COPILOT, situation(window, has_summarizer=False))

    assert plan.view.truncated is not None
    assert plan.view.truncated.performed_by == "BasicTruncator"
    assert plan.view.truncated.messages_removed == len(talk) - len(plan.view.entries) > 0
    assert not plan.view.is_fitted
    assert len(history) == len(talk)


@pytest.mark.seed("C-1", "C-22")
async def test_what_a_compaction_has_made_small_enough_is_not_truncated() -> None:
    talk, window = filled(1.5, turns=40)

    sent = await ask(await open_session(COPILOT), talk, window)

    assert [message["role"] for message in sent] == ["system", "user", "user"]
    assert "<summary>\nIt went well.\n</summary>" in sent[1]["content"]
    assert sent[2] == user_message("now")


@pytest.mark.seed("C-37", "C-38")
def test_copilot_prunes_harder_after_each_refusal() -> None:
    talk, window = filled(0.9, turns=40)
    sizes = [
        decide(recorded(talk), COPILOT, situation(window, has_summarizer=False, refusals=refusals)).view.tokens
        for refusals in range(4)
    ]

    assert sizes[0] > sizes[1] > sizes[2] == sizes[3]
    assert sizes[2] <= window * 0.95 * 0.5


@pytest.mark.seed("C-39")
def test_a_replacement_is_built_from_whatever_there_is() -> None:
    history = CompactedHistory(
        "S", user_messages=["one", "two"], plan="P", todos="T", skills={"old": "x", "new": "do it"}, agent_summary="A"
    )
    *_, shortest = history.shorter_versions()
    without_oldest = next(one for one in history.shorter_versions() if one.skills != history.skills)

    assert str(history) == (
        "Some of the conversation history has been summarized to free up context.\n\n"
        "<user_messages>\n<user_message>\none\n</user_message>\n<user_message>\ntwo\n</user_message>\n"
        "</user_messages>\n\n"
        "<summary>\nS\n</summary>\n\n"
        "<current_state>\n<plan>\nP\n</plan>\n<todos>\nT\n</todos>\n</current_state>\n\n"
        '<invoked_skills>\n<skill name="old">\nx\n</skill>\n<skill name="new">\ndo it\n</skill>\n</invoked_skills>\n\n'
        "<agent_summary>\nA\n</agent_summary>"
    )
    assert without_oldest.skills == {"old": "", "new": "do it"}
    assert list(shortest.skills) == ["old", "new"]
    assert str(CompactedHistory("S", is_manual=True)) == (
        "The conversation history has been summarized to free up context.\n\n<summary>\nS\n</summary>"
    )


@pytest.mark.seed("C-40")
def test_only_the_reminder_of_the_users_words_is_clipped() -> None:
    many = list(user_reminder([f"m{number}" for number in range(30)]))
    long = list(user_reminder(["x" * 50_000]))

    assert len(many) == 21
    assert many[4] == "... 10 messages omitted ..."
    assert (many[3], many[5]) == ("<user_message>\nm3\n</user_message>", "<user_message>\nm14\n</user_message>")
    assert long == ["<user_message>\n" + "x" * 30_000 + "...<truncated>...\n</user_message>"]
    assert (
        list(user_reminder(["first " + "x" * 5_990, "second", "NEWEST"]))[-1]
        == "<user_message>\nNEWEST\n</user_message>"
    )
    crowded = list(user_reminder(["y" * 6_900 for _ in range(12)]))
    assert sum("omitted" in line for line in crowded) == 1


# CowAgent


@pytest.mark.seed("D-3", "D-5", "D-9", "D-12")
async def test_cowagent_trims_the_oldest_half_at_once_and_tells_the_summary_in_the_next_turn() -> None:
    talk = [message for number in range(20) for message in tool_turn(number)]
    session = await open_session(COWAGENT)

    assert await ask(session, talk[:-1]) == talk[:-1]
    talk.append(user_message("now"))
    assert await ask(session, talk) == talk[40:]
    talk += [tool_call_message("x"), tool_result_message("x")]
    assert await ask(session, talk) == talk[40:]
    talk += [assistant_message("sure"), user_message("next")]
    sent = await ask(session, talk)

    assert sent[0]["content"].endswith("\n\n---\n\nq10")
    assert sent[1:] == talk[41:]


@pytest.mark.seed("D-2", "D-9", "D-12")
async def test_cowagent_leaves_tool_chains_whole_though_the_user_writes_beside_their_results() -> None:
    def turn(number: int, steps: int) -> list[JsonMessage]:
        chain = [one for step in range(steps) for one in anthropic_step(f"c{number}-{step}", "go on")]
        return [user_message(f"q{number}"), *chain, assistant_message(f"a{number}")]

    session, talk = await open_session(COWAGENT), turn(0, 30)
    for number in range(1, 20):
        talk += turn(number, 2)

    assert await ask(session, talk[:-1], format_name="anthropic-messages") == talk[:-1]
    talk += [user_message("now"), *anthropic_step("x", "and this")]
    newer = talk[62 + 9 * 6 :]
    assert newer[0] == user_message("q10")
    assert await ask(session, talk) == newer
    talk += [*anthropic_step("y", "and that")]
    assert await ask(session, talk) == [*newer, *talk[-2:]], "the same turn"
    talk += [assistant_message("sure"), user_message("next")]
    sent = await ask(session, talk)
    assert sent[0]["content"].startswith("[System: Previous conversation summary — 10 turns were compacted]\n\nIt went")
    assert sent[1:] == [*newer, *talk[-4:]][1:]


@pytest.mark.seed("D-11")
async def test_cowagent_puts_the_summary_before_the_first_prompts_own_words() -> None:
    talk = [*(message for number in range(20) for message in tool_turn(number)), user_message("now")]
    session = await open_session(COWAGENT)

    await ask(session, talk)
    sent = await ask(session, [*talk, assistant_message("sure"), user_message("next")])

    assert sent[0] == user_message(
        "[System: Previous conversation summary — 10 turns were compacted]\n\nIt went well.\n\n"
        "The recent conversation continues below.\n\n---\n\nq10"
    )


@pytest.mark.seed("D-4", "D-13")
async def test_cowagent_reduces_few_turns_to_words_when_tokens_are_over() -> None:
    talk = [
        *tool_turn(0, "data " * 3_000),
        *tool_turn(1, "data " * 3_000),
        user_message("now"),
        tool_call_message("x"),
        tool_result_message("x"),
    ]
    history = recorded(talk)

    plan = decide(history, COWAGENT, situation(6_000))
    sent = await ask(await open_session(COWAGENT), talk, window=6_000)

    assert plan.now == (ReduceTurnsToText(before=8),)
    assert sent == [user_message("q0"), assistant_message("a0"), user_message("q1"), assistant_message("a1"), *talk[8:]]


@pytest.mark.seed("D-14")
async def test_cowagent_trims_the_first_half_again_when_there_are_five_turns_or_more() -> None:
    talk = [*(message for number in range(6) for message in tool_turn(number, "data " * 900)), user_message("now")]

    sent = await ask(await open_session(COWAGENT), talk, window=4_500)

    assert sent == talk[12:]


@pytest.mark.seed("D-8", "D-4")
async def test_cowagent_counts_after_it_has_cut_old_outputs() -> None:
    talk = [*tool_turn(0, "data " * 20_000), user_message("now")]

    sent = await ask(await open_session(COWAGENT), talk, window=6_000)

    assert len(sent) == 5
    assert len(sent[2]["content"]) <= 20_000


@pytest.mark.seed("D-15")
def test_cowagent_sends_little_after_a_refusal_and_empties_the_context_after_two() -> None:
    talk = [
        system_message("be"),
        *(message for number in range(9) for message in tool_turn(number, "x" * 12_000)),
        user_message("now"),
    ]
    history = recorded(talk)
    history.append(log.Pinned(position=1))

    once = decide(history, COWAGENT, situation(refusals=1))
    twice = decide(history, COWAGENT, situation(refusals=2))

    assert once.now == (
        CompactSpan(span=Span(start=0, stop=21, count=5), by="nothing", trigger="context_limit_retry"),
        OffloadOutputs(before=38, max_chars=10_000, prompts_before=37),
    )
    assert sum(entry.message.is_prompt for entry in once.view.entries) == 6
    assert all(len(result.text) <= 10_000 for entry in once.view.entries for result in entry.message.results)
    assert twice.now == (
        CompactSpan(span=Span(start=0, stop=38, kept=(37,), count=38), by="nothing", trigger="context_limit_retry"),
    )


# On the user's word


def asked_for(policy: Policy, messages: list[JsonMessage]) -> list[Any]:
    """Return what is sent after a compaction that the user asked for."""
    history, how = recorded(messages), situation()
    outlook = plan_input_of(history, policy, how)
    assert policy.compaction is not None
    step = policy.compaction.manual_step(outlook)
    assert step is not None
    history.append(compaction_completed_event(step, policy.compaction, outlook, Summary("It went well.")))
    return [format_named("openai-chat").encode(entry.message) for entry in history.projection(COUNTER).entries]


LONG = [message for number in range(6) for message in tool_turn(number, "data " * 100)]


@pytest.mark.seed("A-8", "A-39")
def test_a_compaction_by_hand_leaves_exactly_two_messages_in_co_cli() -> None:
    assert asked_for(CO_CLI, LONG) == [
        user_message("[Compacted conversation summary]\nIt went well."),
        assistant_message("Understood. I have the conversation context."),
    ]


def test_a_compaction_by_hand_covers_everything_in_inkeep_and_copilot() -> None:
    assert asked_for(INKEEP, [system_message("be"), *LONG]) == [
        system_message("be"), user_message("[Summary of the conversation so far, for reference.]\nIt went well."),
    ]  # fmt: skip
    text = asked_for(COPILOT, LONG)[0]["content"]
    assert text.startswith("The conversation history has been summarized to free up context.")


def test_a_compaction_by_hand_leaves_the_last_two_turns_in_cowagent() -> None:
    sent = asked_for(COWAGENT, LONG)

    assert sent[0]["content"].startswith("[System: Previous conversation summary — 4 turns were compacted]")
    assert sent[0]["content"].endswith("q4")
    assert sent[1:] == LONG[17:]


def test_a_compaction_by_hand_needs_no_line_to_be_reached_in_the_default() -> None:
    long = [*LONG, user_message("now"), tool_call_message("x"), tool_result_message("x", "y " * 60_000)]

    sent = asked_for(PRESETS["default"], long)

    assert "It went well." in sent[0]["content"]
    assert sent[-3:] == long[-3:]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.seed("A-40", "C-57")
def test_there_is_nothing_to_compact_where_nothing_was_said(name: str) -> None:
    compaction = PRESETS[name].compaction
    assert compaction is not None

    assert compaction.manual_step(plan_input_of(recorded([]), PRESETS[name], situation())) is None


# All of them


@pytest.mark.seed("B-3")
def test_no_more_than_ten_thousand_messages_are_looked_at_and_summaries_are_never_left_out() -> None:
    limits = INKEEP.limits
    assert limits is not None
    talk = [system_message("be"), user_message("[summary]"), *chatted(5_001)]
    shown = recorded(talk).projection(COUNTER)
    made = [shown.entries[0], Entry(shown.entries[1].message), *shown.entries[2:]]

    kept = limits.keep_retrieved(made, shown.context.newest_start(limits.max_retrieved))

    assert kept == [*made[:2], *made[-10_000:]]


@pytest.mark.seed("A-33", "A-34", "A-35", "A-36")
@pytest.mark.parametrize("name", PRESETS)
def test_calls_that_an_interrupt_left_open_are_answered_for_in_the_next_request(name: str) -> None:
    history = recorded([user_message("go"), tool_call_message("a", "b"), tool_result_message("a")])
    history.append(log.TurnInterrupted())

    view = decide(history, PRESETS[name], situation()).view
    sent = [format_named("openai-chat").encode(entry.message) for entry in view.entries]

    assert sent == [
        user_message("go"),
        tool_call_message("a", "b"),
        tool_result_message("a"),
        tool_result_message("b", "Interrupted by user."),
    ]


@pytest.mark.seed("B-8", "C-13c", "C-34", "C-48")
def test_the_meter_tells_system_text_conversation_and_tools_apart_before_and_after_a_compaction() -> None:
    history, how = (
        recorded([system_message("be brief"), *LONG, user_message("now")]),
        situation(tools_tokens=700, system_tokens=90),
    )

    view = decide(history, COPILOT, how).view
    before = usage_measured_event(view, view.token_count(how), how)
    outlook = plan_input_of(history, COPILOT, how)
    step = CompactSpan(span=Span(start=0, stop=25, count=24), by="summary")
    assert COPILOT.compaction is not None
    history.append(compaction_completed_event(step, COPILOT.compaction, outlook, Summary("It went well.")))
    view = decide(history, COPILOT, how).view
    after = usage_measured_event(view, view.token_count(how), how)

    assert before.tokens.tool_definitions_tokens == after.tokens.tool_definitions_tokens == 700
    assert before.tokens.system_tokens == after.tokens.system_tokens == 96
    assert before.current_tokens == 796 + before.tokens.conversation_tokens
    assert after.tokens.conversation_tokens < before.tokens.conversation_tokens / 2
    assert (before.messages_length, after.messages_length) == (26, 3)
    assert (before.is_initial, after.is_initial) == (False, True)
    assert (before.token_limit, before.provenance) == (1_000_000, "counted")


@pytest.mark.seed("B-13", "C-23", "D-6", "D-19")
def test_the_presets_have_their_systems_numbers() -> None:
    numbers = {
        name: (policy.unknown_window, policy.max_steps, policy.restore, policy.retention_days)
        for name, policy in PRESETS.items()
    }

    assert numbers == {
        "default": (128_000, 50, "replay", None),
        "co-cli": (128_000, None, "full", None),
        "inkeep": (120_000, None, "since_summary", None),
        "copilot": (128_000, None, "replay", None),
        "cowagent": (128_000, 15, "recent_text", 30),
    }
