"""A projection that was extended is the same as one that is built at once."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast import MalformedInputError, counter_for
from holdfast.core.conversation.batching import (
    CALL_AND_RESPONSE_TURNS,
    CALLS_AS_ITEMS,
    ONE_RESULT_PER_MESSAGE,
    RESULTS_IN_ONE_MESSAGE,
)
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.repair import positioned, positioned_repair, repair_entries
from holdfast.core.conversation.spans import Span
from holdfast.core.conversation.tokens import message_tokens
from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record
from holdfast.core.history.projection import Projection
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.wire.formats import format_named
from tests.support import RecordedHistory, appended

COUNTER = counter_for("gpt-5")
SCOPES = st.sampled_from([log.MAIN, "d1", "d2"])
POSITIONS = st.integers(0, 12)
MESSAGES: list[JsonMessage] = [
    user_message("a question"), assistant_message("an answer"), tool_call_message("a"),
    tool_result_message("a", "x" * 400), system_message("be brief"), user_message("more"),
]  # fmt: skip


def compaction(start: int, length: int, kept: int, scope: str, *, is_merged: bool) -> log.Event:
    return log.CompactionCompleted(
        success=True,
        span=Span(start=start, stop=start + length, kept=(kept,), is_merged=is_merged),
        replacement=("then", "yes"),
        scope=scope,
    )


EVENTS: st.SearchStrategy[log.Event] = st.one_of(
    st.builds(appended, st.sampled_from(MESSAGES), SCOPES),
    st.builds(appended, st.sampled_from(MESSAGES)),
    st.builds(compaction, POSITIONS, POSITIONS, POSITIONS, SCOPES, is_merged=st.booleans()),
    st.builds(
        log.OutputsOffloaded, line=POSITIONS, max_chars=st.just(100), is_per_output=st.sampled_from([None, True])
    ),
    st.builds(log.TurnsReducedToText, line=POSITIONS),
    st.builds(log.Rewound, to=POSITIONS),
    st.builds(log.Pinned, position=POSITIONS),
    st.builds(log.Unpinned, position=POSITIONS),
    st.builds(log.DelegationStarted, scope=SCOPES, agent=st.just("x"), parent=SCOPES),
    st.sampled_from([log.ContextCleared(), log.ChangeUndone(), log.ChangeRedone(), log.TurnInterrupted()]),
)


def state(seen: Projection) -> tuple[object, ...]:
    return (
        seen.entries,
        seen.cumulative_tokens,
        seen.answered_tokens,
        seen.media_count,
        seen.largest_bytes,
        seen.newest_prompt,
    )


@given(st.lists(st.tuples(EVENTS, st.booleans()), max_size=40), SCOPES)
def test_a_projection_that_grew_is_the_one_made_anew(events: list[tuple[log.Event, bool]], scope: str) -> None:
    live = RecordedHistory(format_named)
    for event, is_asked in events:
        try:
            live.append(event)
        except MalformedInputError:
            continue
        if is_asked:
            live.projection(COUNTER, scope).repaired(ONE_RESULT_PER_MESSAGE, is_interrupted=False)

    replayed = RecordedHistory.replay(live.events, format_named)

    grown, anew = live.projection(COUNTER, scope), replayed.projection(COUNTER, scope)
    assert state(grown) == state(anew)
    for batching in (ONE_RESULT_PER_MESSAGE, RESULTS_IN_ONE_MESSAGE, CALLS_AS_ITEMS, CALL_AND_RESPONSE_TURNS):
        numbered = [Entry(entry.message, index) for index, entry in enumerate(anew.entries)]
        whole = repair_entries(numbered, is_interrupted=True, batching=batching)
        repaired = grown.repaired(batching, is_interrupted=True)
        assert repaired.entries == [positioned(entry, anew.entries) for entry in whole.entries]
        assert repaired.repairs == [positioned_repair(repair, anew.entries) for repair in whole.repairs]
        assert repaired.tokens == sum(sum(message_tokens(entry.message, COUNTER)) for entry in whole.entries)


def test_only_new_messages_are_looked_at_when_nothing_else_has_changed() -> None:
    history = RecordedHistory.replay([appended(user_message("a")), appended(assistant_message("b"))], format_named)
    before = history.projection(COUNTER)

    history.append(appended(user_message("c")))
    after = history.projection(COUNTER)

    assert after is before
    assert [entry.message.text for entry in after.entries] == ["a", "b", "c"]
    assert after.newest_prompt == 2


def test_a_tail_is_as_long_as_its_tokens_allow_up_to_all_messages() -> None:
    talk = [appended(user_message("a")), appended(assistant_message("b")), appended(user_message("c"))]
    projection = RecordedHistory.replay(talk, format_named).projection(COUNTER)
    one = projection.tokens // 3

    assert projection.entry_tokens() == [one, one, one]
    starts = [projection.tail_start(tokens) for tokens in (0, one - 1, one, 2 * one, 3 * one - 1, 3 * one, 4 * one)]
    assert starts == [3, 3, 2, 1, 1, 0, 0]


def test_pins_and_system_text_are_shown_out_of_a_compaction_with_the_exchange_they_belong_to() -> None:
    talk = [
        system_message("be"),
        user_message("a"),
        tool_call_message("x"),
        tool_result_message("x", "y"),
        assistant_message("done"),
        user_message("b"),
    ]
    compacted = log.CompactionCompleted(success=True, span=Span(start=0, stop=5), replacement=("so far",))
    history = RecordedHistory.replay([*map(appended, talk), compacted, log.Pinned(position=3)], format_named)

    shown = [(entry.position, entry.message.role) for entry in history.projection(COUNTER).entries]

    assert shown == [(0, "system"), (None, "user"), (2, "assistant"), (3, "tool"), (5, "user")]


def test_two_compactions_of_different_spans_stand_side_by_side() -> None:
    talk = [
        user_message("a"),
        assistant_message("b"),
        user_message("c"),
        tool_call_message("x"),
        tool_result_message("x", "y"),
        assistant_message("d"),
    ]
    early = log.CompactionCompleted(success=True, span=Span(start=0, stop=2), replacement=("before",))
    late = log.CompactionCompleted(success=True, span=Span(start=3, stop=5), replacement=("gathered",))
    history = RecordedHistory.replay([*map(appended, talk), early, late], format_named)

    assert [entry.message.text for entry in history.projection(COUNTER).entries] == ["before", "c", "gathered", "d"]


def test_words_alone_are_shown_of_turns_before_the_text_line_and_outputs_as_previews() -> None:
    talk = [
        user_message("a"),
        tool_call_message("x"),
        tool_result_message("x", "y" * 500),
        assistant_message("b"),
        user_message("c"),
        tool_call_message("z"),
    ]
    talk.append(tool_result_message("z", "z" * 500))
    lines = [log.OutputsOffloaded(line=7, max_chars=100), log.TurnsReducedToText(line=4)]
    history = RecordedHistory.replay([*map(appended, talk), *lines], format_named)

    shown = history.projection(COUNTER).entries

    assert [(entry.position, entry.message.text) for entry in shown] == [(0, "a"), (3, "b"), (4, "c"), (5, ""), (6, "")]
    assert len(shown[-1].message.results[0].text) <= 100
    assert history.entries[6].message.results[0].text == "z" * 500


def test_a_log_of_an_earlier_version_shows_the_previews_that_were_sent() -> None:
    texts = ["a" * 90, "b" * 90, "c" * 300]
    talk = [
        user_message("a"),
        tool_call_message("x"),
        {**tool_result_message("x"), "content": [{"type": "text", "text": text} for text in texts]},
    ]
    earlier = from_record({"type": "context.outputs_offloaded", "data": {"line": 3, "maxChars": 100}})
    history = RecordedHistory.replay([*map(appended, talk), earlier], format_named)

    (result,) = history.projection(COUNTER).entries[2].message.results

    notice = "\n[… 248 characters cut …]\n"
    assert result.text == "\n".join([*texts[:2], "c" * 34 + notice + "c" * 18])


def test_a_ledger_goes_on_where_it_was_and_begins_anew_when_the_past_changes() -> None:
    history = RecordedHistory.replay(
        [appended(user_message("see src/a.py")), appended(user_message("see src/b.py"))], format_named
    )

    first = history.ledger(log.MAIN, 1)
    assert history.ledger(log.MAIN, 2) is first
    history.append(log.Rewound(to=1))
    anew = history.ledger(log.MAIN, 2)

    assert "src/b.py" in first.names.pack(200, COUNTER)
    assert "src/b.py" not in anew.names.pack(200, COUNTER)
