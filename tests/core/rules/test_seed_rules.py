"""The rules of the four systems, to the letter."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast import SettingsError, counter_for, govern
from holdfast.core.conversation.cuts import exchange_ranges, turn_ranges
from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.shorten import turn_as_text
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.planning.plan import plan_input_of
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.rules.clip_tool_outputs import KeepEnds, KeepHeads, content_length, head_of
from holdfast.core.planning.rules.co_cli import (
    CoCliCompaction,
    CompactionWindow,
    first_run_end,
    manual_compaction_texts,
    plan_window,
    static_marker,
    summary_marker,
)
from holdfast.core.planning.rules.copilot import CompactionMove, PendingCompaction, TwoThresholds
from holdfast.core.planning.rules.cowagent import (
    CowAgentCompaction,
    Emergency,
    half_cut,
    has_few_turns,
    trim_cut,
)
from holdfast.core.planning.rules.inkeep import InkeepCompaction, mid_run_fraction
from holdfast.core.planning.rules.truncator import BasicTruncator
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import CompactSpan, PlanInput
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.responses import output_message_item
from holdfast.wire.formats import format_named
from tests.support import anthropic_step, tool_turn

CHAT = format_named("openai-chat")


def view(*messages: JsonMessage) -> list[Entry]:
    return [Entry(CHAT.decode(native, index), index) for index, native in enumerate(messages)]


def sent(entries: list[Entry]) -> list[Any]:
    return [CHAT.encode(entry.message) for entry in entries]


def planned(preset: str, messages: list[JsonMessage]) -> PlanInput:
    """Return what the rules of a preset are asked about, with a window of 100,000 tokens and a summarizer."""
    events = [log.MessageAppended(format="openai-chat", native=native) for native in messages]
    how = Situation(
        budget=Budget(100_000), window=100_000, counter=counter_for("gpt-5"), has_summarizer=True, is_interrupted=True
    )
    return plan_input_of(History.replay(events, format_named), PRESETS[preset], how)


def dialogue(count: int) -> list[JsonMessage]:
    """Return so many messages of alternating prompts and answers."""
    return [
        user_message(f"q{number}") if number % 2 == 0 else assistant_message(f"a{number}") for number in range(count)
    ]


# co-cli


@pytest.mark.seed("A-11", "A-15")
def test_an_output_longer_than_the_threshold_keeps_its_head_and_says_how_long_it_was() -> None:
    assert head_of("x" * 2_000, 2_000) == "x" * 2_000
    assert head_of("x" * 2_001, 2_000) == "x" * 2_000 + "\n[…truncated, 2001 chars total]"


@pytest.mark.seed("A-15")
def test_an_output_that_was_cut_before_goes_on_saying_how_long_it_was() -> None:
    messages = [*tool_turn(0, "x" * 5_000), user_message("now")]

    once = govern(messages, policy="co-cli", budget=100_000, model="gpt-4o").messages
    again = govern(once, policy="co-cli", budget=100_000, model="gpt-4o").messages

    assert once[2]["content"] == "x" * 2_000 + "\n[…truncated, 5000 chars total]"
    assert again == once


@pytest.mark.seed("A-11")
def test_a_shell_result_of_several_commands_is_cut_without_losing_how_they_ended() -> None:
    def chunk(stdout: str, code: int) -> dict[str, Any]:
        return {"stdout": stdout, "stderr": f"e{code}", "outcome": {"type": "exit", "exit_code": code}}

    call = {"type": "shell_call", "call_id": "s", "action": {"commands": ["a", "b"]}, "status": "completed"}
    output = {"type": "shell_call_output", "call_id": "s", "output": [chunk("x" * 5_000, 0), chunk("second", 1)]}
    messages = [user_message("go"), call, output, output_message_item("ok"), user_message("now")]

    request = govern(messages, format="openai-responses", policy="co-cli", budget=100_000, model="gpt-5")

    head = "x" * 2_000 + "\n[…truncated, 5010 chars total]"
    assert request.messages[2] == {
        **output,
        "output": [{**chunk(head, 0), "stderr": ""}, {**chunk("", 1), "stderr": ""}],
    }


@pytest.mark.seed("A-12", "A-48")
def test_an_object_is_measured_as_json_and_becomes_a_clipped_string() -> None:
    content = {"rows": ["x" * 50]}
    text = json.dumps(content)

    assert content_length(content) == len(text)
    assert head_of(content, len(text)) is content
    assert head_of(content, 20) == f"{text[:20]}\n[…truncated, {len(text)} chars total]"


@pytest.mark.seed("A-9", "A-10", "A-13")
def test_outputs_are_cut_in_all_but_the_last_two_messages_and_keep_their_call() -> None:
    messages = [
        user_message("go"),
        tool_call_message("a"),
        tool_result_message("a", "x" * 30),
        tool_call_message("b"),
        tool_result_message("b", "y" * 30),
    ]

    cut = sent(KeepHeads(max_chars=10).apply(view(*messages)))

    assert cut[2] == tool_result_message("a", "x" * 10 + "\n[…truncated, 30 chars total]")
    assert [cut[index] for index in (0, 1, 3, 4)] == [messages[index] for index in (0, 1, 3, 4)]


@pytest.mark.seed("A-10")
def test_an_output_in_the_last_message_but_one_stays_whole_until_another_message_follows() -> None:
    messages = [user_message("go"), tool_call_message("a"), tool_result_message("a", "x" * 5_000)]
    answered = [*messages, assistant_message("done")]
    head = tool_result_message("a", "x" * 2_000 + "\n[…truncated, 5000 chars total]")

    assert sent(KeepHeads().apply(view(*answered))) == answered
    request = govern([*answered, user_message("now")], policy="co-cli", budget=100_000, model="gpt-4o")
    assert request.messages == [*messages[:2], head, answered[3], user_message("now")]
    assert govern(answered, policy="co-cli", budget=100_000, model="gpt-4o").messages[:4] == answered


@pytest.mark.seed("A-14")
def test_a_threshold_of_zero_switches_it_off() -> None:
    messages = [
        user_message("go"),
        tool_call_message("a"),
        tool_result_message("a", "x" * 9_000),
        assistant_message("b"),
        user_message("c"),
    ]

    assert sent(KeepHeads(max_chars=0).apply(view(*messages))) == messages


@pytest.mark.seed("A-17")
def test_a_window_is_planned_only_above_the_limit() -> None:
    assert plan_window(view(*dialogue(40)), 40) is None
    assert plan_window(view(*dialogue(41)), 40) is not None
    assert plan_window(view(*dialogue(200)), 0) is None


@pytest.mark.seed("A-18", "A-20", "A-21")
def test_a_window_has_a_head_a_dropped_middle_and_a_tail() -> None:
    assert plan_window(view(*dialogue(41)), 40) == CompactionWindow(range(2), range(2, 21), range(21, 41), 19)
    assert plan_window(view(*dialogue(11)), 6) == CompactionWindow(range(2), range(2, 7), range(7, 11), 5)


@pytest.mark.seed("A-20")
@pytest.mark.parametrize(("limit", "tail"), [(1, 4), (8, 4), (9, 4), (10, 5), (11, 5), (41, 20)])
def test_the_tail_is_half_of_the_limit_rounded_down_and_four_messages_at_least(limit: int, tail: int) -> None:
    window = plan_window(view(*dialogue(60)), limit)

    assert window is not None
    assert window.tail == range(60 - tail, 60)


@pytest.mark.seed("A-11")
def test_an_output_of_exactly_the_threshold_stays_whole_in_a_request() -> None:
    messages = [*tool_turn(0, "x" * 2_000), *tool_turn(1, "y" * 2_001), user_message("now")]

    texts = [entry.message.results[0].text for entry in KeepHeads().apply(view(*messages)) if entry.message.results]

    assert texts == ["x" * 2_000, "y" * 2_000 + "\n[…truncated, 2001 chars total]"]


@pytest.mark.seed("A-19")
def test_the_head_ends_with_the_first_answer_in_words() -> None:
    first_run = [
        user_message("go"),
        tool_call_message("a"),
        tool_result_message("a"),
        tool_call_message("b"),
        tool_result_message("b"),
        assistant_message("done"),
    ]
    entries = view(*first_run, *dialogue(60))

    window = plan_window(entries, 40)

    assert first_run_end(entries) == 5
    assert window is not None
    assert window.head == range(6)


@pytest.mark.seed("A-19")
def test_without_an_answer_in_words_nothing_is_pinned() -> None:
    messages: list[JsonMessage] = [user_message("go")]
    for step in range(30):
        messages += [tool_call_message(f"c{step}"), tool_result_message(f"c{step}")]
    entries = view(*messages)

    window = plan_window(entries, 40)

    assert first_run_end(entries) is None
    assert window is not None
    assert window.head == range(0)


def test_a_head_that_meets_the_tail_leaves_everything_as_it_is() -> None:
    messages: list[JsonMessage] = [user_message("go")]
    for step in range(18):
        messages += [tool_call_message(f"c{step}"), tool_result_message(f"c{step}")]

    assert plan_window(view(*messages, assistant_message("done"), *dialogue(6)), 40) is None


def test_requests_are_runs_of_what_is_said_to_the_model() -> None:
    messages = [
        system_message("be"),
        user_message("go"),
        tool_call_message("a", "b"),
        tool_result_message("a"),
        tool_result_message("b"),
        user_message("and"),
        assistant_message("ok"),
    ]

    assert exchange_ranges(view(*messages)) == [range(2), range(2, 3), range(3, 6), range(6, 7)]


@pytest.mark.seed("A-22", "A-23", "A-39")
def test_markers_to_the_letter() -> None:
    assert summary_marker(19, "It went well.") == "[Summary of 19 earlier messages]\nIt went well."
    assert static_marker(19) == "[Earlier conversation trimmed — 19 messages removed to stay within context budget]"
    assert manual_compaction_texts("It went well.") == (
        "[Compacted conversation summary]\nIt went well.",
        "Understood. I have the conversation context.",
    )


# Inkeep


@pytest.mark.seed("B-5", "B-9")
@pytest.mark.parametrize(
    ("window", "share"),
    [(32_000, 0.75), (99_999, 0.75), (100_000, 0.83), (499_999, 0.83), (500_000, 0.91), (1_000_000, 0.91)],
)
def test_the_share_at_which_a_run_is_compressed_grows_with_the_window(window: int, share: float) -> None:
    assert mid_run_fraction(window) == share


@pytest.mark.seed("B-5", "B-14")
def test_a_conversation_is_compressed_at_half_of_its_window() -> None:
    talk = planned("inkeep", dialogue(5))

    def reasons(tokens: int) -> tuple[str, ...]:
        return InkeepCompaction(fraction=0.5).propose(replace(talk, message_tokens=tokens - REPLY_OVERHEAD)).reasons

    assert reasons(49_999) == ()
    assert reasons(50_000) == ("50,000 tokens are 50% of the limit of 100,000 or more",)
    with pytest.raises(SettingsError, match=r"policy\.compaction\.fraction: must lie between 0.001 and 1, not 1.5"):
        InkeepCompaction(fraction=1.5)


def test_a_rule_acts_above_its_limit_and_says_which() -> None:
    messages, turns = CoCliCompaction(max_messages=40), CowAgentCompaction(max_turns=20, max_tokens=50_000)

    assert messages.propose(planned("co-cli", dialogue(40))).reasons == ()
    assert messages.propose(planned("co-cli", dialogue(41))).reasons == ("41 messages are more than 40",)
    assert turns.propose(planned("cowagent", dialogue(40))).reasons == ()
    assert turns.propose(planned("cowagent", dialogue(41))).reasons == (
        "21 turns are more than 20: the oldest 10 turns were trimmed",
    )
    assert CoCliCompaction(max_messages=0).propose(planned("co-cli", dialogue(1_000))).reasons == ()


# Copilot CLI


@pytest.mark.parametrize(
    ("utilisation", "pending", "messages", "was_refused", "move"),
    [
        pytest.param(0.5, PendingCompaction.COMPLETED, 9, False, CompactionMove.APPLY, marks=pytest.mark.seed("C-15")),
        pytest.param(0.95, PendingCompaction.RUNNING, 9, False, CompactionMove.WAIT, marks=pytest.mark.seed("C-16")),
        pytest.param(
            0.94, PendingCompaction.RUNNING, 9, False, CompactionMove.CONTINUE, marks=pytest.mark.seed("C-17")
        ),
        pytest.param(0.79, PendingCompaction.NONE, 9, False, CompactionMove.CONTINUE, marks=pytest.mark.seed("C-18")),
        pytest.param(0.80, PendingCompaction.NONE, 3, False, CompactionMove.CONTINUE, marks=pytest.mark.seed("C-19")),
        pytest.param(
            0.80, PendingCompaction.NONE, 4, False, CompactionMove.START, marks=pytest.mark.seed("C-19", "C-21")
        ),
        pytest.param(
            0.96, PendingCompaction.NONE, 4, False, CompactionMove.START_AND_WAIT, marks=pytest.mark.seed("C-16")
        ),
        pytest.param(
            0.10, PendingCompaction.NONE, 4, True, CompactionMove.START_AND_WAIT, marks=pytest.mark.seed("C-20")
        ),
        pytest.param(
            0.10, PendingCompaction.NONE, 2, True, CompactionMove.START_AND_WAIT, marks=pytest.mark.seed("C-20")
        ),
        pytest.param(0.10, PendingCompaction.RUNNING, 4, True, CompactionMove.WAIT, marks=pytest.mark.seed("C-20")),
    ],
)
def test_what_is_done_about_compaction_before_a_request(
    utilisation: float,
    pending: PendingCompaction,
    messages: int,
    was_refused: bool,  # noqa: FBT001
    move: CompactionMove,
) -> None:
    found = TwoThresholds().next_move(
        utilization=utilisation, pending=pending, messages=messages, was_refused=was_refused
    )

    assert found is move


@pytest.mark.seed("C-21")
def test_the_two_lines_have_their_defaults_and_an_order() -> None:
    assert TwoThresholds() == TwoThresholds(background=0.8, exhausted=0.95, min_messages=4)
    with pytest.raises(SettingsError, match=r"0\.9 must lie below 0\.8"):
        TwoThresholds(background=0.9, exhausted=0.8)


def flat(size: int) -> Callable[[Message], int]:
    return lambda _message: size


SYSTEM, PROMPT = system_message("be"), user_message("newest")
OLD = [
    user_message("old1"),
    tool_call_message("a"),
    tool_result_message("a"),
    assistant_message("x"),
    user_message("old2"),
    assistant_message("y"),
]


@pytest.mark.seed("C-25", "C-35")
def test_a_request_that_fits_loses_only_orphaned_results_and_no_event_tells_of_what_did_not_happen() -> None:
    truncator = BasicTruncator()

    whole = truncator.truncate(view(SYSTEM, *OLD, PROMPT), limit=10_000, tools_tokens=0, tokens_of=flat(10))
    orphan = truncator.truncate(
        view(PROMPT, tool_result_message("gone")), limit=10_000, tools_tokens=0, tokens_of=flat(10)
    )

    assert (sent(whole.entries), whole.event) == ([SYSTEM, *OLD, PROMPT], None)
    assert (sent(orphan.entries), orphan.event) == ([PROMPT], None)


@pytest.mark.seed("B-7")
@pytest.mark.parametrize(("size", "kept"), [(4_000, 2), (4_001, 1)])
def test_inkeep_without_a_summarizer_counts_eight_thousand_tokens_before_the_newest_prompt(
    size: int, kept: int
) -> None:
    limits = PRESETS["inkeep"].limits
    entries = view(user_message("a"), assistant_message("b"), user_message("c"), assistant_message("d"), PROMPT)
    assert limits is not None

    left = limits.keep_limited(entries, 0, flat(size), frozenset())

    marker = f"[Previous conversation history truncated - {4 - kept} earlier messages]"
    assert sent(left) == [user_message(marker), *sent(entries[4 - kept :])]


@pytest.mark.seed("C-26", "C-28", "C-30", "C-31")
def test_older_answers_go_first_with_their_results() -> None:
    truncated = BasicTruncator().truncate(view(SYSTEM, *OLD, PROMPT), limit=60, tools_tokens=0, tokens_of=flat(10))

    assert sent(truncated.entries) == [
        SYSTEM,
        user_message("old1"),
        user_message("old2"),
        assistant_message("y"),
        PROMPT,
    ]


@pytest.mark.seed("C-27", "C-28")
def test_then_older_prompts_go_and_never_the_newest_one_or_system_text() -> None:
    truncated = BasicTruncator().truncate(view(SYSTEM, *OLD, PROMPT), limit=25, tools_tokens=0, tokens_of=flat(10))

    assert sent(truncated.entries) == [SYSTEM, PROMPT]


@pytest.mark.seed("C-27")
def test_the_newest_prompt_and_what_follows_it_stay_however_small_the_limit_is() -> None:
    running = [PROMPT, tool_call_message("b"), tool_result_message("b"), assistant_message("so far")]

    truncated = BasicTruncator().truncate(view(SYSTEM, *OLD, *running), limit=5, tools_tokens=0, tokens_of=flat(10))

    assert sent(truncated.entries) == [SYSTEM, *running]


@pytest.mark.seed("C-26", "C-27")
@pytest.mark.parametrize(("limit", "left"), [(65, [0, 2, 3, 4, 5, 6]), (40, [4, 5, 6]), (5, [5, 6])])
def test_a_prompt_that_also_answers_a_call_is_removed_like_a_prompt_and_never_if_it_is_the_newest(
    limit: int, left: list[int]
) -> None:
    wire = format_named("anthropic-messages")
    older, newest = anthropic_step("a", "and so on"), anthropic_step("b", "stop, do that instead")
    plain = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "old"}]
    messages = [{"role": "user", "content": "first"}, *older, *plain, *newest]
    entries = [Entry(wire.decode(native, index), index) for index, native in enumerate(messages)]

    done = BasicTruncator().truncate(entries, limit=limit, tools_tokens=0, tokens_of=flat(10))

    without_results = {"role": "user", "content": [{"type": "text", "text": "and so on"}]}
    expected = [{**message} if index != 2 else without_results for index, message in enumerate(messages)]
    assert [wire.encode(entry.message) for entry in done.entries] == [expected[index] for index in left]


@pytest.mark.seed("C-26", "C-27")
def test_the_newest_prompt_keeps_all_results_of_the_calls_that_it_answers_also_those_in_earlier_messages() -> None:
    wire = format_named("anthropic-messages")
    answers = [anthropic_step("a")[1], anthropic_step("b", "stop, do that instead")[1]]
    uses = [{"type": "tool_use", "id": call_id, "name": "look", "input": {}} for call_id in ("a", "b")]
    batch: JsonMessage = {"role": "assistant", "content": uses}
    messages = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "x"}, batch, *answers]
    entries = [Entry(wire.decode(native, index), index) for index, native in enumerate(messages)]

    done = BasicTruncator().truncate(entries, limit=5, tools_tokens=0, tokens_of=flat(10))

    assert [wire.encode(entry.message) for entry in done.entries] == messages[2:]


@pytest.mark.seed("C-29", "C-35")
def test_results_without_their_call_go_with_the_messages_that_are_removed_and_count_among_them() -> None:
    messages = [SYSTEM, tool_result_message("gone"), *OLD, PROMPT]

    truncated = BasicTruncator().truncate(view(*messages), limit=80, tools_tokens=0, tokens_of=flat(10))

    event = truncated.event
    assert sent(truncated.entries) == [SYSTEM, *OLD[:1], *OLD[3:], PROMPT]
    assert event is not None
    assert (event.tokens_removed, event.messages_removed) == (30, 3)


@pytest.mark.seed("C-36", "C-54")
def test_copilot_compacts_by_force_after_a_refusal_though_there_is_room_and_there_are_few_messages() -> None:
    rule, asked = PRESETS["copilot"].compaction, planned("copilot", [user_message("old"), PROMPT])
    assert rule is not None

    plans = [rule.propose(replace(asked, situation=replace(asked.situation, refusals=count))) for count in (0, 1)]

    assert (plans[0].now, plans[0].later) == ((), ())
    assert [(step.by, step.trigger, step.span.stop) for step in plans[1].now if isinstance(step, CompactSpan)] == [
        ("summary", "context_limit_retry", 1)
    ]


@pytest.mark.seed("C-19", "C-21")
@pytest.mark.parametrize(("count", "starts"), [(3, 0), (4, 1)])
def test_copilot_counts_no_system_text_among_its_four_messages(count: int, starts: int) -> None:
    rule = PRESETS["copilot"].compaction
    asked = planned("copilot", [system_message("be"), system_message("brief"), *dialogue(count)])
    assert rule is not None

    plan = rule.propose(replace(asked, message_tokens=80_000 - REPLY_OVERHEAD))

    assert (len(plan.now), len(plan.later)) == (0, starts)


@pytest.mark.seed("C-30")
def test_copilot_leaves_a_twentieth_of_the_limit_free_when_it_removes_messages() -> None:
    truncator = PRESETS["copilot"].truncator
    entries = view(*(assistant_message(str(number)) for number in range(100)), PROMPT)
    assert truncator is not None

    whole = truncator.truncate(entries[1:], limit=1_000, tools_tokens=0, tokens_of=flat(10))
    cut = truncator.truncate(entries, limit=1_000, tools_tokens=0, tokens_of=flat(10))

    assert (whole.entries, whole.event) == (entries[1:], None)
    assert cut.entries == entries[-95:]


@pytest.mark.seed("C-24")
def test_tool_definitions_count() -> None:
    alone = BasicTruncator().truncate(view(SYSTEM, *OLD, PROMPT), limit=100, tools_tokens=0, tokens_of=flat(10))
    with_tools = BasicTruncator().truncate(view(SYSTEM, *OLD, PROMPT), limit=100, tools_tokens=50, tokens_of=flat(10))

    assert len(alone.entries) == 8
    assert len(with_tools.entries) == 4


@pytest.mark.seed("C-29", "C-35")
def test_what_was_removed_is_told_with_its_numbers() -> None:
    event = BasicTruncator().truncate(view(SYSTEM, *OLD, PROMPT), limit=60, tools_tokens=5, tokens_of=flat(10)).event

    assert event is not None
    assert (event.performed_by, event.token_limit) == ("BasicTruncator", 60)
    assert (event.pre_truncation_tokens, event.pre_truncation_messages) == (85, 8)
    assert (event.post_truncation_tokens, event.post_truncation_messages) == (55, 5)
    assert (event.tokens_removed, event.messages_removed) == (30, 3)


@pytest.mark.seed("C-29", "C-41")
def test_a_batch_leaves_whole() -> None:
    batch = [
        user_message("old"),
        tool_call_message("a", "b"),
        tool_result_message("a"),
        tool_result_message("b"),
        assistant_message("x"),
        PROMPT,
    ]

    truncated = BasicTruncator().truncate(view(*batch), limit=40, tools_tokens=0, tokens_of=flat(10))

    assert sent(truncated.entries) == [user_message("old"), assistant_message("x"), PROMPT]


@pytest.mark.seed("C-37")
def test_after_refusals_without_a_number_the_target_falls_up_to_a_half() -> None:
    buffers = [BasicTruncator().after_refusals(refusals).retry_buffer for refusals in range(5)]

    assert buffers == [0, 0.25, 0.5, 0.5, 0.5]


# CowAgent


@pytest.mark.seed("D-8")
def test_long_results_of_historical_turns_keep_both_ends_and_the_current_turn_is_left_alone() -> None:
    long = "BEGIN" + "x" * 30_000 + "END"
    messages = [*tool_turn(0, long), user_message("now"), tool_call_message("b"), tool_result_message("b", long)]

    cut = sent(KeepEnds().apply(view(*messages)))

    assert cut[2]["content"].startswith("BEGIN")
    assert cut[2]["content"].endswith("END")
    assert "characters cut" in cut[2]["content"]
    assert len(cut[2]["content"]) <= 20_000
    assert cut[-1] == messages[-1]
    assert sent(KeepEnds().apply(view(*tool_turn(0, "x" * 20_000), user_message("now")))) == [
        *tool_turn(0, "x" * 20_000),
        user_message("now"),
    ]


@pytest.mark.seed("D-8")
def test_a_long_result_of_several_texts_keeps_both_ends_too() -> None:
    pages = [{"type": "text", "text": letter * 9_000} for letter in "abc"]
    messages = [
        user_message("go"),
        tool_call_message("a"),
        {**tool_result_message("a"), "content": pages},
        user_message("now"),
    ]

    cut = sent(KeepEnds().apply(view(*messages)))

    notice = "\n[… 7,048 characters cut …]\n"
    assert [page["text"] for page in cut[2]["content"]] == ["a" * 9_000, "b" * 4_301 + notice, "c" * 6_651]
    assert (cut[:2], cut[3:]) == (messages[:2], messages[3:])


@pytest.mark.seed("D-2")
def test_a_turn_reaches_from_one_prompt_to_the_next() -> None:
    assert turn_ranges(view(system_message("be"), *tool_turn(0), *tool_turn(1), user_message("now"))) == [
        range(1, 5),
        range(5, 9),
        range(9, 10),
    ]


@pytest.mark.seed("D-2")
def test_a_message_of_the_user_that_only_answers_calls_begins_no_turn() -> None:
    wire = format_named("anthropic-messages")
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "seen"}]},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "and?"},
    ]

    turns = turn_ranges([Entry(wire.decode(native, index), index) for index, native in enumerate(messages)])

    assert turns == [range(4), range(4, 5)]


@pytest.mark.seed("D-2", "D-8", "D-15")
def test_what_is_written_beside_a_result_begins_no_turn() -> None:
    wire = format_named("anthropic-messages")
    long = "x" * 30_000
    messages: list[Any] = [
        {"role": "user", "content": "look"},
        *anthropic_step("a", "remember the rules", output=long),
        *anthropic_step("b", f"stop, {long}", output=long),
    ]
    entries = [Entry(wire.decode(native, index), index) for index, native in enumerate(messages)]

    emergency: list[Any] = [wire.encode(entry.message) for entry in Emergency().shrink(entries)]

    assert turn_ranges(entries) == [range(5)]
    assert KeepEnds().apply(entries) == entries
    assert [emergency[index] for index in (0, 1, 3)] == [messages[index] for index in (0, 1, 3)]
    assert [emergency[index]["content"][1] for index in (2, 4)] == [messages[index]["content"][1] for index in (2, 4)]
    clipped = "x" * 6_634 + "\n[… 20,048 characters cut …]\n" + "x" * 3_318
    assert [emergency[index]["content"][0]["content"] for index in (2, 4)] == [clipped, clipped]


@pytest.mark.seed("D-13")
def test_a_turn_as_text_is_its_prompt_and_its_last_reply_and_no_word_from_between() -> None:
    between = {**tool_call_message("a"), "content": "I look first."}
    turn = [user_message("q"), between, tool_result_message("a"), assistant_message("so far"), assistant_message("a")]

    assert sent(turn_as_text(view(*turn))) == [turn[0], turn[-1]]


@pytest.mark.seed("D-5", "D-9")
def test_the_oldest_half_of_complete_turns_goes_when_there_are_too_many() -> None:
    messages = [message for number in range(20) for message in tool_turn(number)]

    assert trim_cut(view(*messages), 20) == 0
    assert trim_cut(view(*messages, user_message("now")), 20) == 10 * 4


@pytest.mark.seed("D-9")
@pytest.mark.parametrize(("complete", "dropped"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 3), (21, 10)])
def test_half_of_an_odd_number_of_complete_turns_is_rounded_down(complete: int, dropped: int) -> None:
    messages = [message for number in range(complete) for message in tool_turn(number)]

    assert trim_cut(view(*messages, user_message("now")), complete) == dropped * 4


@pytest.mark.seed("D-4", "D-13", "D-14")
@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (9, "50,001 tokens are more than 50,000: the oldest 2 turns were trimmed"),
        (7, "50,001 tokens are more than 50,000, and there are fewer than 5 turns: each is reduced to its text"),
    ],
)
def test_exactly_fifty_thousand_tokens_are_within_the_limit(messages: int, reason: str) -> None:
    talk = [*tool_turn(0), *dialogue(messages)[2:]]
    rule, asked = CowAgentCompaction(), planned("cowagent", talk)

    plans = [rule.propose(replace(asked, message_tokens=tokens - REPLY_OVERHEAD)) for tokens in (50_000, 50_001)]

    assert [plan.reasons for plan in plans] == [(), (reason,)]


@pytest.mark.seed("D-14")
def test_with_five_turns_or_more_the_first_half_goes_again() -> None:
    entries = view(*(message for number in range(5) for message in tool_turn(number)))

    assert not has_few_turns(entries)
    assert half_cut(entries) == 2 * 4


@pytest.mark.seed("D-15")
def test_in_an_emergency_five_turns_stay_with_short_results_and_short_user_texts() -> None:
    long = "x" * 12_000
    messages = [
        system_message("be"),
        *(message for number in range(7) for message in tool_turn(number, long)),
        user_message(long),
    ]
    messages[21]["content"] = long

    left = sent(Emergency().shrink(view(*messages), pins=frozenset({1})))

    assert left[:2] == [system_message("be"), user_message("q0")]
    assert len([message for message in left if message["role"] == "user"]) == 6
    assert all(len(message["content"] or "") <= 10_000 for message in left[:-1])
    assert left[-1] == user_message(long)


@pytest.mark.seed("D-15")
def test_in_an_emergency_a_result_of_10_000_characters_stays_whole() -> None:
    messages = [*tool_turn(0, "x" * 10_000), *tool_turn(1, "y" * 10_001), user_message("now")]

    results = [one["content"] for one in sent(Emergency().shrink(view(*messages), pins=frozenset({0})))]

    assert "x" * 10_000 in results
    assert "y" * 10_001 not in results


def test_of_several_texts_the_later_ones_go_and_what_has_no_words_stays() -> None:
    image = {"type": "image_url", "image_url": {"url": "u"}}
    texts = [{"type": "text", "text": "x" * 30}, image, {"type": "text", "text": "y" * 30}]
    output: JsonMessage = {"role": "tool", "tool_call_id": "a", "content": texts}

    (cut,) = [
        one
        for one in sent(
            KeepHeads(max_chars=20).apply(view(user_message("go"), tool_call_message("a"), output, *dialogue(4)))
        )
        if one["role"] == "tool"
    ]

    assert [block["type"] for block in cut["content"]] == ["text", "image_url"]
    assert cut["content"][0]["text"].startswith("x" * 20)


def test_a_head_that_was_cut_before_still_says_how_long_the_whole_was() -> None:
    once = head_of("x" * 50, 20)

    assert head_of(once, 20) == once
