"""The history: the state that is replayed from a log."""

import json
from dataclasses import FrozenInstanceError
from inspect import Parameter, signature
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import MalformedInputError
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.codec import EVENT_TYPES, from_record, to_record
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.wire.formats import format_named
from tests.support import RecordedHistory, appended

DONE = log.CompactionCompleted(
    success=True, span=Span(stop=2), replacement=("Summary so far.",), summary=log.Summary("so far")
)


@pytest.mark.parametrize("kind", EVENT_TYPES.values())
def test_an_event_names_each_of_its_values_and_cannot_change_once_it_has_happened(kind: Any) -> None:
    event = kind.__new__(kind)

    assert {one.kind for one in signature(kind).parameters.values()} <= {Parameter.KEYWORD_ONLY}

    with pytest.raises(FrozenInstanceError):
        event.KIND = "another"


def history(*events: log.Event) -> RecordedHistory:
    return RecordedHistory.replay(events, format_named)


def texts(told: RecordedHistory, scope: str = log.MAIN) -> list[str]:
    return [entry.message.text or str(entry.message.outline) for entry in told.context(scope).visible_entries()]


TALK = [
    appended(user_message("one")),
    appended(assistant_message("1")),
    appended(user_message("two")),
    appended(assistant_message("2")),
]


def test_a_rewind_before_the_end_of_a_clients_compaction_shows_all_that_it_had_left_out() -> None:
    span = Span(stop=4, kept=(1,))
    told = history(*TALK, log.CompactionCompleted(success=True, trigger="client", span=span, replacement=("Short.",)))
    assert texts(told) == ["Short.", "1"]

    told.append(log.Rewound(to=3))

    assert texts(told) == ["one", "1", "two"]


def test_a_compaction_replaces_its_span_and_undo_brings_it_back() -> None:
    told = history(*TALK, DONE)

    assert texts(told) == ["Summary so far.", "two", "2"]
    spans = [compaction.span for compaction in told.context().state.compactions]
    replaced = [entry for span in spans for entry in told.context().entries_between(span.start, span.stop)]
    assert [entry.message.text for entry in replaced] == ["one", "1"]
    told.append(log.ChangeUndone())
    assert texts(told) == ["one", "1", "two", "2"]
    told.append(log.ChangeRedone())
    assert texts(told) == ["Summary so far.", "two", "2"]
    assert len(told) == 4


def test_what_is_said_after_a_change_stays_when_the_change_is_undone() -> None:
    told = history(*TALK, DONE, appended(user_message("three")), log.ChangeUndone())

    assert texts(told) == ["one", "1", "two", "2", "three"]


def test_a_new_change_ends_what_could_be_redone() -> None:
    told = history(*TALK, DONE, log.ChangeUndone(), log.ContextCleared(), log.ChangeRedone())

    assert texts(told) == []
    assert not told.can_redo


def test_what_leaves_the_memory_makes_nothing_that_could_be_undone() -> None:
    told = history(*TALK)

    assert (told.evict(keep_newest=1), told.can_undo) == ([], False)
    told.append(DONE)
    assert (told.evict(keep_newest=1), told.can_undo) == ([0, 1], True)


def test_undo_and_redo_with_nothing_to_do_change_nothing() -> None:
    told = history(*TALK, log.ChangeUndone(), log.ChangeRedone())

    assert texts(told) == ["one", "1", "two", "2"]


@pytest.mark.seed("A-39")
def test_a_replacement_of_two_texts_is_a_prompt_and_an_answer() -> None:
    compaction = log.CompactionCompleted(
        success=True, span=Span(stop=4), replacement=("[Compacted conversation summary]\nx", "Understood.")
    )

    roles = [
        (entry.message.role, entry.message.text) for entry in history(*TALK, compaction).context().visible_entries()
    ]

    assert roles == [("user", "[Compacted conversation summary]\nx"), ("assistant", "Understood.")]


@pytest.mark.seed("A-21")
def test_a_compaction_can_leave_a_head_in_front() -> None:
    compaction = log.CompactionCompleted(success=True, span=Span(start=1, stop=3), replacement=("middle",))

    assert texts(history(*TALK, compaction)) == ["one", "middle", "2"]


@pytest.mark.seed("D-11")
def test_a_merged_summary_stands_before_the_first_prompts_own_words() -> None:
    compaction = log.CompactionCompleted(
        success=True, span=Span(stop=1, is_merged=True), replacement=("Before: x\n\n",)
    )

    assert texts(history(*TALK, compaction)) == ["1", "Before: x\n\ntwo", "2"]


def test_a_merged_summary_stands_before_a_prompt_that_has_no_words() -> None:
    picture: JsonMessage = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}
    compaction = log.CompactionCompleted(success=True, span=Span(stop=2, is_merged=True), replacement=("Before: x",))

    (merged,) = (
        history(appended(user_message("one")), appended(assistant_message("1")), appended(picture), compaction)
        .context()
        .visible_entries()
    )

    assert [type(part).__name__ for part in merged.message.parts] == ["Text", "Media"]
    assert merged.message.text == "Before: x"


@pytest.mark.seed("D-21", "D-24")
def test_after_a_clear_nothing_earlier_is_shown_and_nothing_is_gone() -> None:
    told = history(*TALK, DONE, log.ContextCleared(), appended(user_message("new")))

    assert texts(told) == ["new"]
    assert len(told) == 5
    assert len(told.events) == 7


def test_a_rewind_hides_what_followed_and_a_compaction_that_spoke_of_it() -> None:
    told = history(
        *TALK,
        log.CompactionCompleted(success=True, span=Span(stop=3), replacement=("x",)),
        log.Rewound(to=2),
        appended(user_message("2b")),
    )

    assert texts(told) == ["one", "1", "2b"]
    told.append(log.ChangeUndone())
    assert texts(told) == ["x", "2", "2b"]


@pytest.mark.seed("C-33", "C-32", "C-56")
def test_observations_change_nothing() -> None:
    usage = log.UsageMeasured(token_limit=100, current_tokens=50, messages_length=4)
    cut = log.RequestTruncated(
        performed_by="BasicTruncator", token_limit=100, pre_truncation_tokens=120, pre_truncation_messages=4,
        post_truncation_tokens=90, post_truncation_messages=3, tokens_removed=30, messages_removed=1,
    )  # fmt: skip
    plain, observed = history(*TALK), history(*TALK, usage, cut, log.ProviderSignalled(signal="compaction_delta"))

    assert texts(plain) == texts(observed)
    assert plain.version == observed.version


@pytest.mark.seed("C-60")
def test_a_failed_compaction_is_counted_and_destroys_nothing() -> None:
    told = history(
        *TALK, log.CompactionStarted(span=Span(stop=2)), log.CompactionCompleted(success=False, error="timeout")
    )

    assert texts(told) == ["one", "1", "two", "2"]
    assert told.session_state.compaction_failures == 1
    assert told.session_state.running_compaction is None
    told.append(DONE)
    assert told.session_state.compaction_failures == 0


def test_facts_are_those_last_told() -> None:
    told = history(
        *TALK,
        log.PlanChanged(text="a"), log.PlanChanged(text="b"), log.TodosChanged(text="t"),
        log.SkillInvoked(name="x", instructions="1"), log.SkillInvoked(name="y"),
        log.SkillInvoked(name="x", instructions="2"),
        log.SystemChanged(text="s"), log.ToolsChanged(tools=({"name": "run"},)), log.ModelSwitched(model="m"),
        log.Pinned(position=0), log.Pinned(position=2), log.Unpinned(position=0), log.TurnInterrupted(),
    )  # fmt: skip

    assert (told.session_state.plan, told.session_state.todos, dict(told.session_state.skills)) == (
        "b",
        "t",
        {"y": "", "x": "2"},
    )
    assert (told.session_state.system, told.session_state.tools, told.session_state.model) == (
        "s",
        ({"name": "run"},),
        "m",
    )
    assert told.session_state.pins == frozenset({2})
    assert told.was_interrupted(log.MAIN)
    told.append(appended(user_message("on")))
    assert not told.was_interrupted(log.MAIN)


@pytest.mark.parametrize(
    "event",
    [
        log.CompactionCompleted(success=True, span=Span(start=3, stop=2)),
        log.CompactionCompleted(success=True, span=Span(stop=9)),
        log.Rewound(to=9),
        log.Pinned(position=4),
        log.OutputsOffloaded(line=2, max_chars=-1),
        appended({"role": "robot"}),
    ],
)
def test_an_event_that_cannot_be_true_is_refused_and_leaves_no_trace(event: log.Event) -> None:
    told = history(*TALK)

    with pytest.raises(MalformedInputError):
        told.append(event)

    assert told.events == TALK
    assert texts(told) == ["one", "1", "two", "2"]


DELEGATED = [
    appended(user_message("task")),
    appended(tool_call_message("m1")), appended(tool_result_message("m1", "top result")),
    log.DelegationStarted(scope="d1", agent="researcher"),
    log.DelegationStarted(scope="d2", agent="writer"),
    appended(tool_call_message("a1"), "d1"), appended(tool_result_message("a1", "d1 result"), "d1"),
    appended(assistant_message("d1 answer"), "d1"),
    appended(tool_call_message("b1"), "d2"), appended(tool_result_message("b1", "d2 result"), "d2"),
]  # fmt: skip


def results(told: RecordedHistory, scope: str) -> list[str]:
    return [result.text for entry in told.context(scope).visible_entries() for result in entry.message.results]


@pytest.mark.seed("B-1", "D-1", "D-3")
def test_what_was_said_done_and_exchanged_between_agents_is_all_part_of_a_history() -> None:
    seen = [entry.message for entry in history(*DELEGATED).context().visible_entries()]

    assert [(message.role, message.text, [call.id for call in message.calls]) for message in seen] == [
        ("user", "task", []),
        ("assistant", "", ["m1"]),
        ("tool", "", []),
        ("assistant", "", ["a1"]),
        ("tool", "", []),
        ("assistant", "d1 answer", []),
        ("assistant", "", ["b1"]),
        ("tool", "", []),
    ]
    assert [result.text for message in seen for result in message.results] == ["top result", "d1 result", "d2 result"]


@pytest.mark.seed("B-18", "B-22")
def test_the_main_agent_sees_all_delegated_results() -> None:
    assert results(history(*DELEGATED), log.MAIN) == ["top result", "d1 result", "d2 result"]


@pytest.mark.seed("B-19", "B-20", "B-21")
def test_a_delegate_sees_its_own_and_the_top_level_results_and_no_others() -> None:
    assert results(history(*DELEGATED), "d1") == ["top result", "d1 result"]
    assert results(history(*DELEGATED), "d2") == ["top result", "d2 result"]


@pytest.mark.seed("B-25")
def test_a_delegate_sees_the_conversation_at_the_top() -> None:
    assert texts(history(*DELEGATED), "d2")[0] == "task"


@pytest.mark.seed("B-18")
def test_the_main_agent_can_be_limited_to_its_delegates_answers() -> None:
    told = history(*DELEGATED)
    told.scopes.main_sees = "answers"

    assert results(told, log.MAIN) == ["top result"]
    assert "d1 answer" in texts(told)


def test_a_delegates_delegate_sees_what_its_parent_did() -> None:
    told = history(
        *DELEGATED, log.DelegationStarted(scope="d3", agent="x", parent="d1"), appended(assistant_message("deep"), "d3")
    )

    assert results(told, "d3") == ["top result", "d1 result"]


def test_the_names_others_know_are_kept() -> None:
    kinds = {"session.compaction_start", "session.compaction_complete", "session.truncation", "session.usage_info"}

    assert kinds <= set(EVENT_TYPES)
    assert len(EVENT_TYPES) == len(get_args(log.Event)) - 1


@pytest.mark.seed("C-35")
def test_a_truncation_is_written_in_its_spelling() -> None:
    record = to_record(
        log.RequestTruncated(
            performed_by="BasicTruncator", token_limit=100, pre_truncation_tokens=120, pre_truncation_messages=4,
            post_truncation_tokens=90, post_truncation_messages=3, tokens_removed=30, messages_removed=1,
        )
    )  # fmt: skip

    assert record == {
        "type": "session.truncation",
        "schema": 1,
        "data": {
            "performedBy": "BasicTruncator",
            "tokenLimit": 100,
            "preTruncationTokens": 120,
            "preTruncationMessages": 4,
            "postTruncationTokens": 90,
            "postTruncationMessages": 3,
            "tokensRemoved": 30,
            "messagesRemoved": 1,
        },
    }


@pytest.mark.seed("C-34")
def test_fields_are_written_in_their_spelling() -> None:
    record = to_record(
        log.UsageMeasured(
            token_limit=100, current_tokens=50, messages_length=4, is_initial=True,
            tokens=log.TokenBreakdown(system_tokens=1, conversation_tokens=2, tool_definitions_tokens=3),
        )
    )  # fmt: skip

    assert record == {
        "type": "session.usage_info",
        "schema": 1,
        "data": {
            "tokenLimit": 100,
            "currentTokens": 50,
            "messagesLength": 4,
            "tokens": {"systemTokens": 1, "conversationTokens": 2, "toolDefinitionsTokens": 3},
            "isInitial": True,
            "provenance": "counted",
        },
    }


@pytest.mark.seed("C-44", "C-46", "C-47")
def test_a_compaction_is_written_down_with_all_that_rebuilds_what_it_left() -> None:
    begun = log.CompactionStarted(
        trigger="manual",
        span=Span(stop=2),
        custom_instructions="mind the tests",
        tokens=log.TokenBreakdown(system_tokens=1, conversation_tokens=2, tool_definitions_tokens=3),
    )
    ended = log.CompactionCompleted(
        success=True,
        trigger="manual",
        span=Span(stop=3, kept=(2,)),
        replacement=("Summary so far.",),
        summary=log.Summary(
            "so far", by_model="m", request_id="r", duration_ms=7, usage=log.Usage(input_tokens=8, output_tokens=2)
        ),
        pre_compaction_tokens=9,
        post_compaction_tokens=4,
        tokens_removed=5,
        messages_removed=2,
        checkpoint_number=1,
        checkpoint_path="checkpoints/001-x.md",
    )
    live = history(*TALK, begun, ended)

    records = json.loads(json.dumps([to_record(event) for event in (begun, ended)]))
    replayed = history(*TALK, *map(from_record, records))

    assert records[0]["data"]["tokens"] == {"systemTokens": 1, "conversationTokens": 2, "toolDefinitionsTokens": 3}
    assert records[1]["data"]["checkpointPath"] == "checkpoints/001-x.md"
    assert replayed.events == live.events
    assert texts(replayed) == texts(live) == ["Summary so far.", "two", "2"]
    assert replayed.session_state == live.session_state
    assert replayed.session_state.running_compaction is None
    assert replayed.version.checkpoints == ((1, 3),)


@pytest.mark.parametrize(
    ("kind", "data", "problem"),
    [
        ("session.rewound", {"to": "3"}, r"session\.rewound\.to: must be int, not '3'"),
        ("session.rewound", {"to": True}, r"session\.rewound\.to: must be int, not True"),
        ("message.appended", {"format": "x", "native": []}, r"native: must be Mapping"),
        ("session.compaction_complete", {"success": True, "replacement": [1]}, r"replacement: must be tuple"),
        ("session.compaction_start", {"stop": 1, "trigger": "whim"}, r"trigger: must be one of threshold, manual"),
        ("session.compaction_complete", {"success": False, "usage": 5}, r"usage: must be"),
        ("session.compaction_complete", {"success": False, "usage": {"inputTokens": "5"}}, r"inputTokens: must be int"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(kind: str, data: dict[str, Any], problem: str) -> None:
    with pytest.raises(MalformedInputError, match=problem):
        from_record({"type": kind, "schema": 1, "data": data})


def test_a_kind_nobody_knows_and_a_newer_schema_are_kept_as_they_are() -> None:
    for record in (
        {"type": "session.dreamt", "schema": 1, "data": {"of": ["sheep"]}},
        {"type": "message.appended", "schema": 99, "data": {"format": "x", "native": {}}},
    ):
        event = from_record(record)
        assert isinstance(event, log.UnknownEvent)
        assert to_record(event) == record
        assert texts(history(*TALK, event)) == ["one", "1", "two", "2"]


def test_a_field_nobody_knows_is_ignored_and_a_missing_one_is_named() -> None:
    assert from_record(
        {"type": "session.plan_changed", "schema": 1, "data": {"text": "x", "mood": 1}}
    ) == log.PlanChanged(text="x")
    with pytest.raises(MalformedInputError, match=r"session\.plan_changed: a field is missing: .*'text'"):
        from_record({"type": "session.plan_changed", "schema": 1, "data": {}})


@pytest.mark.parametrize(
    "record",
    [
        None, 5, {}, {"type": 5}, {"type": "x", "schema": "1"}, {"type": "x", "data": []},
        {"type": "x", "schema": 0}, {"type": "x", "schema": True},
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(record: Any) -> None:
    with pytest.raises(MalformedInputError):
        from_record(record)


def compacted(start: int, stop: int, *, is_merged: bool) -> log.Event:
    first, last = min(start, stop), max(start, stop)
    return log.CompactionCompleted(
        success=True, span=Span(start=first, stop=last, is_merged=is_merged), replacement=("s",)
    )


POSITIONS = st.integers(0, 6)
WORDS = st.sampled_from(
    [user_message("hi"), assistant_message("yes"), tool_call_message("a"), tool_result_message("a")]
)
CHANGES: st.SearchStrategy[log.Event] = st.one_of(
    st.builds(appended, WORDS),
    st.builds(compacted, POSITIONS, POSITIONS, is_merged=st.booleans()),
    st.builds(log.Rewound, to=POSITIONS),
    st.sampled_from([log.ChangeUndone(), log.ChangeRedone(), log.ContextCleared(), log.TurnInterrupted()]),
    st.builds(
        log.OutputsOffloaded, line=POSITIONS, max_chars=st.just(100), is_per_output=st.sampled_from([None, True])
    ),
    st.builds(log.PlanChanged, text=st.text(max_size=3)),
)


@given(st.lists(CHANGES, max_size=25))
def test_replay_equals_live_and_what_was_written_down_is_what_happened(events: list[log.Event]) -> None:
    live = RecordedHistory(format_named)
    for event in events:
        try:
            live.append(event)
        except MalformedInputError:
            continue

    written = json.loads(json.dumps([to_record(event) for event in live.events]))
    replayed = RecordedHistory.replay(map(from_record, written), format_named)

    assert replayed.events == live.events
    assert replayed.context().visible_entries() == live.context().visible_entries()
    assert (replayed.session_state, replayed.version) == (live.session_state, live.version)


@given(st.lists(CHANGES, max_size=20))
def test_a_snapshot_does_not_change_and_nothing_said_is_ever_lost(events: list[log.Event]) -> None:
    told = history(*TALK)
    snapshot, before = told.context(), told.context().visible_entries()
    said_so_far = list(told.entries)
    for event in events:
        try:
            told.append(event)
        except MalformedInputError:
            continue

    assert snapshot.visible_entries() == before
    assert told.entries[: len(said_so_far)] == said_so_far


def test_a_history_that_nothing_has_changed_has_no_compaction_to_take_back() -> None:
    assert not history(*TALK).is_last_change_a_compaction
    assert history(*TALK, DONE).is_last_change_a_compaction


def test_a_ledger_that_covers_more_is_not_read_again_from_the_beginning() -> None:
    told = history(*TALK)

    whole = told.ledger(log.MAIN, 4)

    assert told.ledger_covering(log.MAIN, 2) is whole
    assert told.ledger_covering(log.MAIN, 4).spoken_chars == {"user": 6, "assistant": 2}
    assert history(*TALK).ledger_covering(log.MAIN, 2).spoken_chars == {"user": 3, "assistant": 1}
