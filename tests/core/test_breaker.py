"""A compaction that would not help is not made, and the reason is given."""

from typing import Any

import pytest

from holdfast import counter_for
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record, to_record
from holdfast.core.planning.changes import compaction_completed_event
from holdfast.core.planning.context_report import context_report
from holdfast.core.planning.plan import plan_input_of
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.rules.default import MAX_PROGRESS_MARKS, DefaultCompaction
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import CompactSpan, describe_breakdown
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.wire.formats import format_named
from tests.support import RecordedHistory, decide

COUNTER, DEFAULT = counter_for("gpt-5"), PRESETS["default"]
TASK = user_message("Make the tests pass.")


def situation(budget: int = 4_000, **fields: Any) -> Situation:
    return Situation(budget=Budget(budget), counter=COUNTER, is_interrupted=True, **fields)


def looked(files: int, turn: int, seconds: float = 1.0) -> list[JsonMessage]:
    """Return how an agent reads the same files, the same way every turn."""
    return [
        one
        for number in range(files)
        for one in (
            tool_call_message(f"r{turn}-{number}", arguments={"path": f"src/part_{number}.py"}),
            tool_result_message(f"r{turn}-{number}", f"part {number}: " + "word " * 300 + f"read in {seconds}s"),
        )
    ]


def heard(*messages: JsonMessage) -> RecordedHistory:
    appended = [log.MessageAppended(format="openai-chat", native=native) for native in messages]
    return RecordedHistory.replay(appended, format_named)


def hear(history: RecordedHistory, *messages: JsonMessage) -> None:
    for native in messages:
        history.append(log.MessageAppended(format="openai-chat", native=native))


def compacted(history: RecordedHistory, how: Situation) -> RecordedHistory:
    """Carry out what the default wants done with a history that is full."""
    (step,) = decide(history, DEFAULT, how).now
    assert isinstance(step, CompactSpan)
    assert DEFAULT.compaction is not None
    history.append(compaction_completed_event(step, DEFAULT.compaction, plan_input_of(history, DEFAULT, how)))
    return history


@pytest.mark.parametrize("has_summarizer", [False, True])
def test_an_agent_that_repeats_itself_after_a_compaction_is_reported_and_not_compacted_again(
    has_summarizer: bool,  # noqa: FBT001
) -> None:
    history = compacted(heard(TASK, *looked(12, 1)), situation())
    hear(history, *looked(12, 2, seconds=2.5))

    how = situation(has_summarizer=has_summarizer)
    plan = decide(history, DEFAULT, how)

    assert (plan.now, plan.later) == ((), ())
    assert plan.reasons[0].startswith(
        "the agent made no progress since the last compaction: 12 calls returned the same results as before, without "
        "a new prompt or decision; another compaction would only restart the loop (of "
    )
    assert plan.view.tokens <= how.message_budget, "what is sent fits all the same"
    assert context_report(plan_input_of(history, DEFAULT, how), DEFAULT).loop_reason == plan.reasons[0]


@pytest.mark.parametrize(
    "news",
    [
        [
            tool_call_message("n", name="read_file", arguments={"path": "src/new.py"}),
            tool_result_message("n", "something else"),
        ],
        [
            tool_call_message("n", name="read_file", arguments={"path": "src/part_1.py"}),
            tool_result_message("n", "it has changed"),
        ],
        [assistant_message("Let's use expandTabs instead of a table.")],
        [user_message("Go on.")],
    ],
)
def test_anything_new_ends_that(news: list[JsonMessage]) -> None:
    history = compacted(heard(TASK, *looked(12, 1)), situation())
    hear(history, *looked(11, 2), *news, *looked(3, 3))

    assert DefaultCompaction().loop_reason(plan_input_of(history, DEFAULT, situation())) == ""
    assert len(decide(history, DEFAULT, situation()).now) == 1


def test_a_refused_request_is_compacted_whatever_the_agent_does() -> None:
    history = compacted(heard(TASK, *looked(12, 1)), situation())
    hear(history, *looked(12, 2))

    plan = decide(history, DEFAULT, situation(refusals=1))

    assert [type(step) for step in plan.now] == [CompactSpan]


@pytest.mark.parametrize(("calls", "is_stuck"), [(0, False), (2, False), (3, True)])
def test_few_calls_say_nothing_about_an_agent(calls: int, is_stuck: bool) -> None:  # noqa: FBT001
    history = compacted(heard(TASK, *looked(12, 1)), situation())
    hear(history, *looked(calls, 3))

    assert bool(DefaultCompaction().loop_reason(plan_input_of(history, DEFAULT, situation()))) is is_stuck


def test_what_was_done_is_kept_in_the_compaction_over_many_compactions_and_bounded() -> None:
    how = situation(8_000)
    history = heard(TASK, *looked(4, 0))
    for turn in range(30):
        new = (
            one
            for number in range(12)
            for one in (
                tool_call_message(f"n{turn}-{number}"),
                tool_result_message(f"n{turn}-{number}", f"{turn}-{number} " * 200),
            )
        )
        hear(history, *new)
        if decide(history, DEFAULT, how).now:
            compacted(history, how)

    compaction = history.version.state_of(log.MAIN).compactions[-1]
    assert len(compaction.marks) == MAX_PROGRESS_MARKS
    assert from_record(to_record(compaction)) == compaction
    assert set(DefaultCompaction().progress_marks(plan_input_of(history, DEFAULT, how))) >= set(compaction.marks[-50:])


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "default"])
def test_the_presets_of_other_systems_keep_no_marks(name: str) -> None:
    policy, history = PRESETS[name], heard(TASK, *looked(4, 1), assistant_message("done"))
    how = plan_input_of(history, policy, situation(has_summarizer=True))
    assert policy.compaction is not None

    event = compaction_completed_event(
        CompactSpan(span=Span(start=0, stop=5, count=5), by="marker"), policy.compaction, how
    )

    assert event.marks == ()


@pytest.mark.parametrize(
    ("messages", "fields", "remedy"),
    [
        ([user_message("q " * 50)], {"tools_tokens": 3_300}, "offer fewer tools"),
        ([user_message("q " * 50)], {"system_tokens": 3_300}, "shorten the system text"),
        (
            [system_message("be brief " * 1_300), user_message("q " * 50)],
            {"tools_tokens": 700},
            "shorten the system text",
        ),
        ([user_message("word " * 3_000)], {"tools_tokens": 700}, "shorten the newest prompt, or put it into a file"),
    ],
)
def test_where_no_compaction_can_help_the_reason_names_the_parts_and_what_to_do(
    messages: list[JsonMessage], fields: dict[str, Any], remedy: str
) -> None:
    talk = [one for number in range(3) for one in (user_message(f"q{number}"), assistant_message(f"a{number}"))]
    history = heard(*talk, *messages)

    how = situation(4_000, window=4_000, has_summarizer=True, **fields)
    (reason, *_) = decide(history, PRESETS["copilot"], how).reasons

    outlook = plan_input_of(history, PRESETS["copilot"], how)
    assert reason.startswith("system text, tools, pins and the newest prompt alone exceed 80% of the limit: ")
    assert reason.endswith(f"compaction cannot help ({describe_breakdown(outlook)}; {remedy})")
    assert describe_breakdown(outlook).startswith(f"of {outlook.tokens:,} tokens: ")


def test_the_default_names_the_parts_too() -> None:
    history = heard(
        system_message("Be brief."),
        user_message("a"),
        assistant_message("b"),
        user_message("c"),
        assistant_message("d"),
        user_message("word " * 3_850),
    )

    plan = decide(history, DEFAULT, situation())

    assert plan.now == ()
    assert plan.reasons[0].startswith(
        "system text, pins and the newest prompt alone exceed 80% of the budget: a compaction cannot help"
    )
    assert "(of 3,8" in plan.reasons[0]
    assert "newest prompt 3,8" in plan.reasons[0]
