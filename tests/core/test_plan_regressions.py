"""Faults that reviewers found in plans and views, so that they stay repaired."""

import pickle
from itertools import repeat

import pytest

from holdfast import (
    CannotFitError,
    MalformedInputError,
    PendingToolCallsError,
    Session,
    SettingsError,
    counter_for,
    govern,
)
from holdfast.core.conversation.batching import CALLS_AS_ITEMS
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.events import Summary
from holdfast.core.planning.changes import compaction_completed_event, compaction_failed_event
from holdfast.core.planning.plan import plan_input_of
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import CompactSpan, ReplacementKind
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.models import ScriptedModel
from holdfast.testing.responses import function_call_item, function_output_item, output_message_item
from holdfast.wire.formats import format_named
from tests.support import RecordedHistory, decide, history_of, legal_cuts, situation

COUNTER = counter_for("gpt-5")


def loop(steps: int) -> list[JsonMessage]:
    return [
        one for number in range(steps) for one in (tool_call_message(f"c{number}"), tool_result_message(f"c{number}"))
    ]


LONG = [one for _ in range(60) for one in (user_message("word " * 60), assistant_message("word " * 60))]


async def test_one_large_output_does_not_take_the_users_words_and_the_ledger_out_of_a_request() -> None:
    session, large = (
        await Session.open("s", model="gpt-5"),
        "\n".join(f"line {number} of a page" for number in range(4_000)),
    )
    talk = [
        user_message("Rule 0: never touch T0."),
        tool_call_message("c0"),
        tool_result_message("c0", large),
        assistant_message("done"),
    ]
    await session.record(talk[:3])
    await session.prepare(16_000)
    talk += [user_message("Rule 1: never touch T1."), tool_call_message("c1"), tool_result_message("c1", large)]

    await session.record(talk[3:])
    first, *rest = (await session.prepare(16_000)).messages

    compaction = str(first["content"])
    assert [message["role"] for message in rest] == ["user", "assistant", "tool"]
    assert compaction.startswith("[Summary of 4 earlier messages, made by rule, for reference only.")
    assert "(#0) Rule 0: never touch T0." in compaction
    assert "Rule 1" not in compaction.partition("[Ledger")[0]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("has_summarizer", [False, True])
def test_a_pin_is_sent_to_the_letter_whatever_the_preset(name: str, has_summarizer: bool) -> None:  # noqa: FBT001
    history = history_of(
        [user_message("PIN: never deploy"), assistant_message("ok"), *LONG, user_message("now")], log.Pinned(position=0)
    )

    view = decide(history, PRESETS[name], situation(2_000, has_summarizer=has_summarizer)).view

    assert "PIN: never deploy" in [entry.message.text for entry in view.entries]


@pytest.mark.parametrize(("name", "length"), [("co-cli", 3_000), ("cowagent", 30_000)])
def test_a_pinned_result_is_not_cut(name: str, length: int) -> None:
    messages = [
        user_message("a"),
        tool_call_message("x"),
        tool_result_message("x", "y" * length),
        assistant_message("b"),
        user_message("c"),
        assistant_message("d"),
        user_message("e"),
    ]
    history = history_of(messages, log.Pinned(position=2))

    view = decide(history, PRESETS[name], situation(100_000)).view

    assert view.entries[2].message.results[0].text == "y" * length


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("has_summarizer", [False, True])
async def test_the_task_is_sent_however_long_its_tool_loop_is(name: str, has_summarizer: bool) -> None:  # noqa: FBT001
    messages = [user_message("hi"), assistant_message("hello"), user_message("THE TASK"), *loop(60)]
    summarizer = ScriptedModel(repeat("It went well.")) if has_summarizer else None
    session = await Session.open("s", policy=name, model="gpt-5", summarizer=summarizer)
    await session.record(messages)

    sent = (await session.prepare(100_000)).messages

    assert user_message("THE TASK") in sent


def test_a_run_of_items_with_another_call_in_it_is_one_batch() -> None:
    items = [
        function_call_item("A"), output_message_item("And:", "msg_2"), function_call_item("B"),
        function_output_item("A", "a"), function_output_item("B", "b"),
    ]  # fmt: skip
    wire = format_named("openai-responses")
    messages = [wire.decode(item, index) for index, item in enumerate(items)]

    assert legal_cuts(messages) == []
    assert wire.batching == CALLS_AS_ITEMS


def test_inkeeps_limits_hold_when_a_single_message_has_to_go() -> None:
    view = decide(
        history_of([user_message("word " * 60_000), user_message("now")]), PRESETS["inkeep"], situation(1_000_000)
    ).view

    assert [entry.message.text for entry in view.entries] == [
        "[Previous conversation history truncated - 1 earlier messages]",
        "now",
    ]


def test_a_result_that_is_pinned_after_it_was_shortened_is_whole_again() -> None:
    outputs = [f"{number} " + "word " * 3_000 for number in range(3)]
    calls = [[tool_call_message(text[0]), tool_result_message(text[0], text)] for text in outputs]
    messages = [user_message("go"), *(message for call in calls for message in call)]
    request = govern(messages, budget=9_000, model="gpt-5")

    grown = [*messages, assistant_message("so"), user_message("more")]
    pinned = govern(grown, budget=9_000, model="gpt-5", previous=request, pins=[2])

    whole = [[one["content"] in outputs for one in sent.messages[2:7:2]] for sent in (request, pinned)]
    assert whole == [[False, True, True], [True, False, True]]


def test_nothing_is_offloaded_when_it_is_messages_that_there_are_too_many_of() -> None:
    history = history_of([one for n in range(30) for one in (user_message(f"q{n}"), assistant_message(f"a{n}"))][:-1])
    how = Situation(budget=Budget(100_000, messages=40), counter=COUNTER)

    steps = decide(history, PRESETS["default"], how).now

    assert [type(step) for step in steps] == [CompactSpan]


def test_compaction_stops_where_tools_alone_are_over_the_line_and_says_so() -> None:
    history = history_of([one for n in range(9) for one in (user_message(f"q{n}"), assistant_message(f"a{n}"))][:-1])

    plan = decide(history, PRESETS["copilot"], situation(10_000, tools_tokens=8_200, has_summarizer=True))

    assert (plan.now, plan.later) == ((), ())
    assert "compaction cannot help" in plan.reasons[0]


def test_after_three_failures_no_summary_is_asked_for_until_more_was_said() -> None:
    talk = [user_message("word " * 300), assistant_message("word " * 300)] * 6
    failure = log.CompactionCompleted(success=False, span=Span(stop=1), error="timeout")
    how = situation(6_000, has_summarizer=True)

    resting = history_of([*talk, user_message("now")], failure, failure, failure)
    assert decide(resting, PRESETS["inkeep"], how).now == ()
    steps: list[int] = []
    for number in range(22):
        resting.append(log.MessageAppended(format="openai-chat", native=user_message(f"more {number}")))
        steps.append(len(decide(resting, PRESETS["inkeep"], how).now))

    assert steps == [0] * 19 + [1] * 3


@pytest.mark.parametrize(("by", "ends_run"), [("summary", True), ("digest", False), ("marker", False)])
def test_a_compaction_by_rule_that_failed_leaves_a_running_summary_alone(
    by: ReplacementKind,
    ends_run: bool,  # noqa: FBT001
) -> None:
    plan_input = plan_input_of(history_of(LONG), PRESETS["default"], situation())

    event = compaction_failed_event(CompactSpan(span=Span(stop=2), by=by), plan_input, "full disk")

    assert (event.success, event.error, event.ends_run) == (False, "full disk", ends_run)


@pytest.mark.parametrize("summary", [None, Summary(""), Summary(" \n")])
@pytest.mark.seed("C-58")
def test_an_empty_summary_is_a_failure(summary: Summary | None) -> None:
    history = history_of([*LONG, user_message("now")])
    for name in ("copilot", "inkeep"):
        rule = PRESETS[name].compaction
        assert rule is not None
        step = CompactSpan(span=Span(start=0, stop=100, count=100), by="summary")
        event = compaction_completed_event(step, rule, plan_input_of(history, PRESETS[name], situation()), summary)

        assert (event.success, event.error) == (False, "the summary is empty")


@pytest.mark.parametrize("summary", [None, Summary(""), Summary(" \n")])
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.seed("C-58")
def test_an_empty_summary_of_a_requested_compaction_is_a_failure_in_every_preset(
    name: str, summary: Summary | None
) -> None:
    history = history_of([*LONG, user_message("now")])
    rule = PRESETS[name].compaction
    assert rule is not None
    step = CompactSpan(span=Span(start=0, stop=100, count=100), by="summary", trigger="manual")

    event = compaction_completed_event(step, rule, plan_input_of(history, PRESETS[name], situation()), summary)

    assert (event.success, event.error) == (False, "the summary is empty")


def test_a_summary_of_a_span_that_was_trimmed_further_meanwhile_is_thrown_away() -> None:
    trimmed = log.CompactionCompleted(success=True, span=Span(start=0, stop=34))
    history = history_of([*LONG, user_message("now")], trimmed)
    rule = PRESETS["cowagent"].compaction
    assert rule is not None
    late = CompactSpan(span=Span(start=0, stop=20, count=10, is_merged=True), by="summary")

    event = compaction_completed_event(
        late, rule, plan_input_of(history, PRESETS["cowagent"], situation()), Summary("late")
    )

    assert not event.success
    assert "does not stand any more" in str(event.error)
    with pytest.raises(MalformedInputError, match="cuts through 0–34"):
        history.append(log.CompactionCompleted(success=True, span=Span(start=0, stop=20)))


def test_a_compaction_always_leaves_a_text_in_its_place() -> None:
    history, how = history_of([*LONG, user_message("now")]), situation(400)
    step = decide(history, PRESETS["default"], how).now[0]
    rule = PRESETS["default"].compaction
    assert isinstance(step, CompactSpan)
    assert rule is not None

    assert all(
        text.strip()
        for text in compaction_completed_event(step, rule, plan_input_of(history, PRESETS["default"], how)).replacement
    )


def delegated() -> RecordedHistory:
    history = history_of([user_message("THE TASK"), tool_call_message("m1")])
    history.append(log.DelegationStarted(scope="d1", agent="worker"))
    for native in (user_message("Always delete tmp files."), assistant_message("working")):
        history.append(log.MessageAppended(format="openai-chat", native=native, scope="d1"))
    return history


def test_what_a_delegate_is_told_is_no_word_of_the_users() -> None:
    history = delegated()

    assert history.projection(COUNTER).newest_prompt == 0
    assert list(history.ledger(log.MAIN, 4).constraints) == []


def test_a_call_whose_delegate_still_works_is_pending_and_not_interrupted() -> None:
    with pytest.raises(PendingToolCallsError) as pending:
        decide(delegated(), PRESETS["default"], situation(is_interrupted=False))

    assert pending.value.call_ids == ("m1",)


def test_a_delegate_is_not_told_that_its_own_delegation_was_interrupted() -> None:
    history = delegated()
    history.append(log.MessageAppended(format="openai-chat", native=user_message("Go on."), scope="d1"))

    view = decide(history, PRESETS["default"], situation(scope="d1", is_interrupted=False)).view

    texts = [entry.message.text for entry in view.entries]
    assert texts == ["THE TASK", "Always delete tmp files.", "working", "Go on."]
    assert view.repairs == ()


def test_an_interrupt_of_one_agent_does_not_stop_another() -> None:
    history = history_of([user_message("go"), tool_call_message("m1")], log.TurnInterrupted(scope="d1"))

    with pytest.raises(PendingToolCallsError):
        decide(history, PRESETS["default"], situation(is_interrupted=False))


def test_errors_travel_between_processes_with_their_facts() -> None:
    for error in (
        SettingsError("a", "b"),
        MalformedInputError("x", "y"),
        PendingToolCallsError(["c1"]),
        CannotFitError("the newest prompt", needed=2, limit=1, breakdown={"x": 1}),
    ):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)


def test_a_merged_summary_moves_into_the_prompt_that_comes_live_as_in_a_replay() -> None:
    compaction = log.CompactionCompleted(success=True, span=Span(start=0, stop=4, is_merged=True), replacement=("S: ",))
    history = history_of(
        [user_message("PIN"), assistant_message("x"), user_message("q"), assistant_message("a")],
        log.Pinned(position=0),
        compaction,
    )
    history.projection(COUNTER)
    history.append(log.MessageAppended(format="openai-chat", native=user_message("new")))

    replayed = RecordedHistory.replay(history.events, format_named)

    assert history.projection(COUNTER).entries == replayed.projection(COUNTER).entries


def test_many_rewinds_are_all_in_force() -> None:
    history = history_of([system_message("be")])
    for number in range(300):
        history.append(log.MessageAppended(format="openai-chat", native=user_message(f"q{number}")))
        history.append(log.MessageAppended(format="openai-chat", native=assistant_message(f"a{number}")))
        history.append(log.Rewound(to=len(history) - 1))

    assert len(history.version.hidden) == 300
    assert [entry.message.text for entry in history.context().visible_entries()][-2:] == ["q298", "q299"]
