"""What is decided about the next request, whatever happened before."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    CannotFitError,
    EmptyConversationError,
    MalformedInputError,
    PendingToolCallsError,
    counter_for,
    read_policy,
    validate,
)
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.events import Summary
from holdfast.core.planning.changes import compaction_completed_event
from holdfast.core.planning.plan import MAX_PLAN_ROUNDS, plan_input_of
from holdfast.core.planning.policy import PRESETS, Policy
from holdfast.core.planning.receipt import View
from holdfast.core.planning.situation import PROVIDER_PRICES, Budget, Situation
from holdfast.core.planning.steps import CompactSpan, OffloadOutputs
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.sessions import generate_session
from holdfast.testing.strategies.chat import chat_histories, valid_chat_histories
from holdfast.wire.formats import format_named
from tests.support import RecordedHistory, appended, decide, history_of, situation

COUNTER, CHAT = counter_for("gpt-5"), format_named("openai-chat")
DEFAULT = PRESETS["default"]


def settle(history: RecordedHistory, policy: Policy, how: Situation) -> View:
    """Carry out what needs nobody's help, and return what is sent."""
    for _ in range(MAX_PLAN_ROUNDS - 1):
        for step in decide(history, policy, how).now:
            assert isinstance(step, CompactSpan)
            rule = policy.compaction or policy.emergency
            assert rule is not None
            history.append(compaction_completed_event(step, rule, plan_input_of(history, policy, how)))
    return decide(history, policy, how).view


def sent(view: View) -> list[Any]:
    return [CHAT.encode(entry.message) for entry in view.entries]


# What holds for every policy


@given(chat_histories(), st.sampled_from(sorted(PRESETS)), st.sampled_from([700, 3_000, 100_000]), st.booleans())
def test_every_view_is_valid_and_fits_whatever_came_before(
    messages: list[JsonMessage],
    name: str,
    budget: int,
    has_summarizer: bool,  # noqa: FBT001
) -> None:
    history, how = history_of(messages), situation(budget, has_summarizer=has_summarizer)
    try:
        plan = decide(history, PRESETS[name], how)
    except (EmptyConversationError, CannotFitError):
        return

    assert validate(sent(plan.view), "openai-chat") == []
    assert plan.view.tokens <= how.message_budget


@given(chat_histories(), st.sampled_from(sorted(PRESETS)), st.sampled_from([700, 3_000]))
def test_the_same_log_gives_the_same_plan(messages: list[JsonMessage], name: str, budget: int) -> None:
    history, how = history_of(messages), situation(budget, has_summarizer=True)
    try:
        plan = decide(history, PRESETS[name], how)
    except (EmptyConversationError, CannotFitError):
        return

    assert decide(history, PRESETS[name], how) == plan
    assert decide(RecordedHistory.replay(history.events, format_named), PRESETS[name], how) == plan


@given(valid_chat_histories(), st.sampled_from(sorted(PRESETS)))
def test_the_floor_leaves_alone_what_a_preset_gives_for_a_sound_history(messages: list[JsonMessage], name: str) -> None:
    view = decide(history_of(messages), PRESETS[name], situation(1_000_000, has_summarizer=True)).view

    assert not view.is_fitted
    assert sent(view) == messages


@given(valid_chat_histories(max_turns=12), st.sampled_from(sorted(PRESETS)), st.integers(1_500, 6_000))
def test_the_newest_prompt_and_system_text_are_sent_to_the_letter(
    messages: list[JsonMessage], name: str, budget: int
) -> None:
    history, how = history_of(messages), situation(budget)
    try:
        view = settle(history, PRESETS[name], how) if name == "default" else decide(history, PRESETS[name], how).view
    except CannotFitError:
        return

    prompt = [message for message in messages if message["role"] == "user"][-1]
    out = sent(view)
    assert any(str(one["content"]).endswith(str(prompt["content"])) for one in out if one["role"] == "user")
    assert [one for one in out if one["role"] == "system"] == [one for one in messages if one["role"] == "system"]


@given(valid_chat_histories(max_turns=12), st.integers(1_500, 6_000))
def test_a_view_of_the_default_extends_the_one_before_unless_an_event_says_why(
    messages: list[JsonMessage], budget: int
) -> None:
    history, how = RecordedHistory(format_named), situation(budget, is_interrupted=False)
    before: list[Any] = []
    for native in messages:
        changes = len(history.events)
        history.append(appended(native))
        if native["role"] not in {"user", "tool"}:
            continue
        try:
            view = settle(history, DEFAULT, how)
        except PendingToolCallsError:
            continue
        except CannotFitError:
            return
        out = sent(view)
        is_changed = any(not isinstance(event, log.MessageAppended) for event in history.events[changes:])
        assert is_changed or view.is_fitted or out[: len(before)] == before
        before = out


def test_a_history_in_which_nothing_was_said_cannot_be_sent() -> None:
    with pytest.raises(EmptyConversationError):
        decide(RecordedHistory(format_named), DEFAULT, situation())


# The default


def test_nothing_is_touched_below_the_lines() -> None:
    messages = generate_session(60)

    plan = decide(history_of(messages), DEFAULT, situation(100_000))

    assert (plan.now, plan.later, plan.reasons) == ((), (), ())
    assert sent(plan.view) == [*messages]


@pytest.mark.seed("A-45")
def test_at_the_hard_threshold_everything_but_a_short_tail_is_compacted_at_once() -> None:
    history, how = history_of(generate_session(300)), situation(16_000)

    view = settle(history, DEFAULT, how)

    compaction = history.events[-1]
    assert isinstance(compaction, log.CompactionCompleted)
    assert compaction.success
    assert compaction.post_compaction_tokens == view.tokens < 0.2 * how.message_budget
    assert view.entries[0].message.role == "system"
    assert view.entries[1].message.text.startswith("[Summary of ")
    assert not view.is_fitted


def test_the_reason_says_how_full_it_was_and_when_the_compaction_pays() -> None:
    plan = decide(history_of(generate_session(300)), DEFAULT, situation(16_000, prices=PROVIDER_PRICES["gpt-4o"]))

    assert "for messages (threshold 95%); compacting to about" in plan.reasons[0]
    assert "requests (gpt-4o prices)" in plan.reasons[0]


def grown_to(share: float, how: Situation) -> RecordedHistory:
    """Return a conversation whose messages fill this share of their room."""
    history = RecordedHistory(format_named)
    for number in range(10_000):
        history.append(appended(user_message(f"question {number} " + "word " * 40)))
        if history.projection(COUNTER).tokens >= share * how.message_budget:
            break
        history.append(appended(assistant_message(f"answer {number} " + "word " * 40)))
    return history


def test_between_the_thresholds_a_compaction_waits_until_the_prefix_was_read_often_enough() -> None:
    how = situation(16_000)
    often = grown_to(0.85, how)
    seldom = history_of(
        [
            user_message("word " * 13_000),
            assistant_message("b"),
            user_message("c"),
            assistant_message("d"),
            user_message("e"),
        ]
    )

    assert 0.8 < seldom.projection(COUNTER).tokens / how.message_budget < 0.95
    assert decide(often, DEFAULT, how).now != ()
    assert "the cached prefix was read" in decide(often, DEFAULT, how).reasons[0]
    assert decide(seldom, DEFAULT, how).now == ()


def test_where_reading_a_prefix_is_no_cheaper_a_compaction_does_not_wait() -> None:
    few = history_of(
        [*({"role": "user", "content": "w " * 2_000} for _ in range(5)), assistant_message("x"), user_message("now")]
    )

    assert decide(few, DEFAULT, situation(12_000, prices=PROVIDER_PRICES["none"])).now != ()
    assert decide(few, DEFAULT, situation(12_000, prices=PROVIDER_PRICES["deepseek"])).now == ()


def test_where_reading_a_prefix_is_no_cheaper_a_compaction_comes_as_early_as_with_an_expired_cache() -> None:
    how = situation(16_000, prices=PROVIDER_PRICES["none"])
    written = situation(16_000, prices=PROVIDER_PRICES["none"], has_summarizer=True)

    early = decide(grown_to(0.65, how), DEFAULT, how)

    assert "cached tokens are no cheaper, so a new prefix costs nothing extra" in early.reasons[0]
    assert len(early.now) == 1
    assert decide(grown_to(0.55, how), DEFAULT, how).now == ()
    assert decide(grown_to(0.65, written), DEFAULT, written).now == (), "a digest must not preempt the summary"


def test_a_compaction_is_free_when_the_cache_has_expired_anyway() -> None:
    how = situation(16_000, prices=PROVIDER_PRICES["anthropic"])
    talk = grown_to(0.65, how)

    assert decide(talk, DEFAULT, how).now == ()
    cold = decide(talk, DEFAULT, situation(16_000, prices=PROVIDER_PRICES["anthropic"], idle_seconds=301))
    assert "the prompt cache has expired" in cold.reasons[0]
    assert len(cold.now) == 1


def test_with_a_summarizer_a_summary_is_asked_for_at_the_soft_threshold_and_only_once() -> None:
    how = situation(16_000, has_summarizer=True)
    talk = grown_to(0.85, how)

    plan = decide(talk, DEFAULT, how)
    talk.append(log.CompactionStarted(span=Span(stop=1)))

    assert plan.now == ()
    assert [step.by for step in plan.later if isinstance(step, CompactSpan)] == ["summary"]
    assert decide(talk, DEFAULT, how).later == ()


def test_at_the_hard_line_nobody_waits_for_a_summary() -> None:
    how = situation(16_000, has_summarizer=True)

    plan = decide(grown_to(0.96, how), DEFAULT, how)

    assert [step.by for step in plan.now if isinstance(step, CompactSpan)] == ["digest"]


def test_a_compaction_in_the_middle_of_a_tool_loop_keeps_the_prompt_that_is_being_answered() -> None:
    steps = [
        one for n in range(120) for one in (tool_call_message(f"c{n}"), tool_result_message(f"c{n}", f"line {n} " * 60))
    ]
    messages = [
        system_message("be"),
        user_message("old"),
        assistant_message("yes"),
        user_message("Find all callers, never edit."),
        *steps,
    ]
    history = history_of(messages)

    out = sent(settle(history, DEFAULT, situation(16_000)))

    assert out[0] == messages[0]
    assert out[2] == messages[3]
    assert out[-1] == messages[-1]
    assert validate(out, "openai-chat") == []


def test_a_compaction_keeps_a_prompt_whose_client_sends_a_reminder_as_a_message_after_it() -> None:
    prompt = [
        user_message("Find all callers, never edit."),
        user_message("<system-reminder>Be brief.</system-reminder>"),
    ]
    steps = [
        one for n in range(120) for one in (tool_call_message(f"c{n}"), tool_result_message(f"c{n}", f"line {n} " * 60))
    ]
    history = history_of([user_message("old"), assistant_message("yes"), *prompt, *steps])

    out = sent(settle(history, DEFAULT, situation(16_000)))

    assert out[1:3] == prompt
    assert out[-1] == steps[-1]
    assert validate(out, "openai-chat") == []


def test_a_prompt_that_would_fill_the_window_with_what_its_client_adds_is_not_kept_whole() -> None:
    reminder = user_message("<system-reminder>Be brief.</system-reminder>")
    steps = [one for n in range(60) for one in (tool_call_message(f"c{n}"), tool_result_message(f"c{n}", "line " * 60))]
    history = history_of([user_message("paste " * 7_500), reminder, *steps])

    out = sent(settle(history, DEFAULT, situation(8_000)))

    assert out[1] == reminder
    assert out[-1] == steps[-1]


def test_a_compaction_keeps_the_users_words_and_the_names_that_were_used() -> None:
    talk: list[JsonMessage] = [
        user_message("Always use spaces, never tabs, in src/report/totals.py."),
        assistant_message("Noted."),
    ]
    for number in range(200):
        talk += [
            user_message(f"step {number}"),
            tool_call_message(f"c{number}"),
            tool_result_message(f"c{number}", "out " * 60),
            assistant_message("done"),
        ]
    history = history_of([*talk, user_message("now")])

    summary = sent(settle(history, DEFAULT, situation(16_000)))[0]["content"]

    assert "(#0) Always use spaces, never tabs, in src/report/totals.py." in summary
    assert "for reference only" in summary
    assert summary.count("Always use spaces") == 1


@pytest.mark.parametrize("budget", [600, 768, 1_024, 2_048])
def test_a_compaction_in_a_small_window_still_holds_what_the_user_laid_down(budget: int) -> None:
    rule = "Never touch poetry.lock, and answer in French."
    turns = [user_message(rule), assistant_message("Entendu.")]
    for number in range(12):
        turns += [
            user_message(f"Question {number}: what of the tide?"),
            assistant_message(f"Answer {number}: " + "it ebbs " * budget),
        ]
    history = history_of([*turns[: budget // 100], user_message("And now?")])

    view = settle(history, DEFAULT, situation(budget))

    assert view.entries[0].position is None, "a compaction was made"
    assert rule in view.entries[0].message.text


def test_many_compactions_in_a_row_keep_what_was_said_first() -> None:
    history, how = RecordedHistory(format_named), situation(4_000)
    history.append(appended(user_message("The launch code is 7319-ALPHA in config/launch.yaml.")))
    for number in range(400):
        history.append(appended(assistant_message(f"answer {number} " + "word " * 30)))
        history.append(appended(user_message(f"question {number} " + "word " * 30)))
        settle(history, DEFAULT, how)

    compactions = [event for event in history.events if isinstance(event, log.CompactionCompleted)]
    assert len(compactions) > 5
    assert all(
        "The launch code is 7319-ALPHA in config/launch.yaml." in compaction.replacement[0]
        for compaction in compactions
    )
    assert len(compactions[-1].replacement[0]) < 1.5 * len(compactions[2].replacement[0])


def test_a_compaction_that_would_free_too_little_is_not_made() -> None:
    messages = [
        user_message("word " * 14_000),
        *(one for n in range(6) for one in (assistant_message(f"a{n}"), user_message(f"q{n}"))),
    ]
    history = history_of(messages, log.Pinned(position=0))

    plan = decide(history, DEFAULT, situation(16_000, pins=frozenset({0})))

    assert plan.now == ()


@pytest.mark.parametrize("is_read", [True, False])
def test_few_messages_that_do_not_fit_are_compacted_only_if_the_model_has_read_them(is_read: bool) -> None:  # noqa: FBT001
    pasted = user_message("word " * 20_000)
    said = [pasted, assistant_message("I see.")] if is_read else [assistant_message("Paste it."), pasted]

    plan = decide(history_of([*said, user_message("And now?")]), DEFAULT, situation(16_000))

    assert [step.span.positions for step in plan.now if isinstance(step, CompactSpan)] == [range(1)] * is_read


@pytest.mark.seed("A-45")
def test_a_replacement_that_is_no_smaller_is_a_failure_and_changes_nothing() -> None:
    history = history_of(
        [user_message("a"), assistant_message("b"), user_message("c"), assistant_message("d"), user_message("e")]
    )
    outlook = plan_input_of(history, PRESETS["default"], situation())
    step = CompactSpan(span=Span(start=0, stop=4, count=4), by="summary")
    rule = PRESETS["default"].compaction
    assert rule is not None

    event = compaction_completed_event(step, rule, outlook, Summary("word " * 100))
    history.append(event)

    assert not event.success
    assert event.error is not None
    assert "no smaller" in event.error
    assert len(history.projection(COUNTER)) == 5


def test_a_compaction_that_failed_is_not_tried_again_until_there_is_more_to_compact() -> None:
    how = situation(16_000)
    history = grown_to(0.97, how)
    step = decide(history, DEFAULT, how).now[0]
    assert isinstance(step, CompactSpan)

    history.append(log.CompactionCompleted(success=False, span=Span(stop=step.span.stop), error="no smaller"))

    assert decide(history, DEFAULT, how).now == ()
    history.append(appended(assistant_message("more")))
    history.append(appended(user_message("and more " * 100)))
    assert len(decide(history, DEFAULT, how).now) == 1


@pytest.mark.seed("A-45")
def test_large_settled_outputs_are_shown_as_previews_when_they_hold_nearly_everything() -> None:
    talk = [
        user_message("look"),
        tool_call_message("a"),
        tool_result_message("a", "data " * 13_000),
        assistant_message("seen"),
        user_message("and now"),
    ]
    talk += [tool_call_message("b"), tool_result_message("b", "data"), assistant_message("ok"), user_message("go on")]

    plan = decide(history_of(talk), DEFAULT, situation(16_000))

    assert plan.now == (OffloadOutputs(before=3, max_chars=2_000),)


def test_the_newest_output_stays_whole_however_large_it_is() -> None:
    talk = [user_message("look"), tool_call_message("a"), tool_result_message("a", "data " * 13_000)]
    talk += [tool_call_message("b"), tool_result_message("b", "data " * 1_000)]

    plan = decide(history_of(talk), DEFAULT, situation(16_000))

    assert plan.now == (OffloadOutputs(before=3, max_chars=2_000),)


def test_other_limits_of_a_budget_call_for_a_compaction_too() -> None:
    history = history_of([one for n in range(30) for one in (user_message(f"q{n}"), assistant_message(f"a{n}"))][:-1])
    how = Situation(budget=Budget(100_000, messages=60), counter=COUNTER)

    assert [type(step) for step in decide(history, DEFAULT, how).now] == [CompactSpan]
    settle(history, DEFAULT, how)
    assert len(history.projection(COUNTER)) < 30


@pytest.mark.parametrize(
    ("budget", "share"),
    [
        (Budget(16_000, messages=10), 0.4),
        (Budget(16_000, turns=4), 0.5),
        (Budget(16_000, bytes=1_000), 0.188),
    ],
)
def test_a_conversation_is_as_full_as_the_limit_that_is_nearest(budget: Budget, share: float) -> None:
    talk = [user_message("one " * 8), assistant_message("1"), user_message("two " * 8), assistant_message("2")]
    how = Situation(budget=budget, window=16_000, counter=COUNTER)

    assert plan_input_of(history_of(talk), DEFAULT, how).fill == pytest.approx(share)


def test_a_damaged_history_is_repaired_in_every_view() -> None:
    history = history_of([user_message("a"), tool_call_message("x"), user_message("b")])

    view = decide(history, DEFAULT, situation(16_000)).view

    assert view.is_fitted
    assert [repair.description for repair in view.repairs] == ["made up a result for call 'x'"]
    assert "1 place repaired" in view.reasons[0]


MOVES = st.sampled_from(["say", "answer", "undo", "redo", "clear", "rewind", "pin", "plan"])


@given(st.lists(MOVES, max_size=40))
def test_any_interleaving_of_events_leaves_something_that_can_be_sent(moves: list[str]) -> None:
    history, how = RecordedHistory(format_named), situation(2_000)
    for number, move in enumerate(moves):
        made: dict[str, list[log.Event]] = {
            "say": [appended(user_message(f"question {number} " + "word " * 50))],
            "answer": [
                appended(tool_call_message(f"c{number}")),
                appended(tool_result_message(f"c{number}", "out " * 50)),
                appended(assistant_message("ok")),
            ],
            "undo": [log.ChangeUndone()],
            "redo": [log.ChangeRedone()],
            "clear": [log.ContextCleared()],
            "rewind": [log.Rewound(to=max(0, len(history) - 3))],
            "pin": [log.Pinned(position=max(0, len(history) - 2))],
        }
        for event in made.get(move, []):
            try:
                history.append(event)
            except MalformedInputError:
                break
        if move == "plan":
            try:
                view = settle(history, DEFAULT, how)
            except (EmptyConversationError, CannotFitError):
                continue
            assert validate(sent(view), "openai-chat") == []
            assert view.tokens <= how.message_budget


def test_settings_of_the_default_can_be_changed_in_words() -> None:
    policy = read_policy("[compaction]\nhard_share = 0.9\nsoft_share = 0.9\ntail_share = 0.3")
    history, how = history_of(generate_session(300)), situation(16_000)

    view = settle(history, policy, how)

    assert 0.2 * how.message_budget < view.tokens < 0.45 * how.message_budget
