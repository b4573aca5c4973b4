"""What leaves the view, read off a log, once each."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.memory.evictions import EMERGENCY_VIEW_KEY, Eviction, Evictions

SAID = log.MessageAppended(format="openai-chat", native={})
CLEARED = log.ContextCleared()
REFUSED = log.RequestPrepared(view=(), payload_hash="", policy="", engine="", situation={EMERGENCY_VIEW_KEY: True})


def compaction(
    start: int,
    stop: int,
    *,
    by: str | None = None,
    text: str = "",
    kept: tuple[int, ...] = (),
    is_merged: bool = False,
    trigger: log.CompactionTrigger = "threshold",
    scope: str = log.MAIN,
) -> log.CompactionCompleted:
    return log.CompactionCompleted(
        success=True,
        trigger=trigger,
        span=Span(start=start, stop=stop, kept=kept, is_merged=is_merged),
        summary=log.Summary(text, by_model=by),
        replacement=(text,) if text else (),
        scope=scope,
    )


def written(start: int, stop: int, text: str) -> log.SummaryWritten:
    return log.SummaryWritten(start=start, stop=stop, summary=log.Summary(text))


def told(events: Sequence[log.Event], *, may_wait: bool = False) -> list[tuple[str, list[int], str]]:
    """What left, in short: why, which messages, and what a model says of them."""
    leavings = Evictions()
    found: list[Eviction] = []
    for number, event in enumerate(events):
        found += leavings.observe(event, number, may_await_summary=may_wait)
    return [(one.cause, [at for span in one.ranges for at in span], one.summary) for one in found]


def test_a_compaction_tells_of_its_span_with_what_a_model_wrote_of_it() -> None:
    assert told([*[SAID] * 6, compaction(0, 4, by="m", text="greek")]) == [("trimmed", [0, 1, 2, 3], "greek")]


def test_a_compaction_by_rule_tells_of_its_span_without_a_summary() -> None:
    assert told([*[SAID] * 6, compaction(0, 4, text="a digest")]) == [("trimmed", [0, 1, 2, 3], "")]


def test_a_summary_is_told_only_of_what_it_covers() -> None:
    events = [*[SAID] * 9, compaction(0, 3), compaction(4, 6), written(4, 6, "of the second")]

    assert told(events, may_wait=True) == [("trimmed", [4, 5], "of the second")]


def test_what_a_compaction_keeps_has_not_left() -> None:
    assert told([*[SAID] * 6, compaction(0, 4, text="a digest", kept=(2,))]) == [("trimmed", [0, 1, 3], "")]


def test_a_compaction_over_an_earlier_one_tells_only_of_what_is_new() -> None:
    events = [*[SAID] * 6, compaction(0, 4, text="a"), compaction(0, 6, text="b"), compaction(0, 6, text="c")]

    assert told(events) == [("trimmed", [0, 1, 2, 3], ""), ("trimmed", [4, 5], "")]


def test_a_trim_waits_for_the_summary_that_comes_after_it() -> None:
    events = [
        *[SAID] * 6,
        compaction(0, 4),
        SAID,
        written(0, 4, "greek"),
        compaction(0, 4, by="m", text="greek", is_merged=True),
    ]

    assert told(events, may_wait=True) == [("trimmed", [0, 1, 2, 3], "greek")]


def test_a_trim_waits_for_nobody_where_nobody_writes() -> None:
    assert told([*[SAID] * 6, compaction(0, 4)]) == [("trimmed", [0, 1, 2, 3], "")]


def test_a_summary_that_failed_leaves_the_trim_without_one() -> None:
    failed = log.CompactionCompleted(success=False, span=Span(start=0, stop=4), error="no")

    assert told([*[SAID] * 6, compaction(0, 4), failed], may_wait=True) == [("trimmed", [0, 1, 2, 3], "")]


def test_a_summary_of_two_trims_is_told_once() -> None:
    events = [*[SAID] * 6, compaction(0, 2), compaction(0, 4), written(0, 4, "greek")]

    assert told(events, may_wait=True) == [("trimmed", [0, 1, 2, 3], "greek")]


def test_a_clear_tells_of_everything_that_was_not_told_before() -> None:
    events = [*[SAID] * 6, compaction(0, 4, text="a"), CLEARED, SAID, CLEARED]

    assert told(events) == [("trimmed", [0, 1, 2, 3], ""), ("cleared", [4, 5], ""), ("cleared", [6], "")]


def test_after_a_refusal_everything_is_told_and_the_emptied_context_tells_nothing_more() -> None:
    emptied = compaction(0, 6, trigger="context_limit_retry", kept=(5,))

    assert told([*[SAID] * 6, REFUSED, emptied]) == [("overflow", [0, 1, 2, 3, 4, 5], "")]


def test_what_waits_for_its_summary_leaves_with_the_rest_when_all_of_it_goes() -> None:
    events = [*[SAID] * 6, compaction(0, 4), REFUSED]

    assert told(events, may_wait=True) == [("overflow", [0, 1, 2, 3, 4, 5], "")]


def test_what_another_agent_compacts_is_not_the_conversations() -> None:
    scout = log.ContextCleared(scope="scout")

    assert told([*[SAID] * 6, scout, compaction(0, 4, text="a", scope="scout")]) == []


EVENTS = st.lists(
    st.one_of(
        st.just(SAID),
        st.just(CLEARED),
        st.just(REFUSED),
        st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda span: compaction(min(span), max(span))),
        st.tuples(st.integers(0, 9), st.integers(0, 9)).map(
            lambda span: compaction(min(span), max(span), by="m", text="s")
        ),
        st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda span: written(min(span), max(span), "w")),
    ),
    max_size=30,
)


@given(EVENTS, st.integers(0, 30))
def test_no_message_leaves_twice_and_who_was_stopped_goes_on_alike(events: list[log.Event], stop: int) -> None:
    whole, stopped = Evictions(), Evictions()
    one: list[Eviction] = []
    other: list[Eviction] = []

    for number, event in enumerate(events):
        one += whole.observe(event, number, may_await_summary=True)
        if number == stop:
            stopped = Evictions.from_json(stopped.to_json())
        other += stopped.observe(event, number, may_await_summary=True)
    one += whole.release_awaiting()
    other += stopped.release_awaiting()

    assert one == other
    positions = [at for leaving in one for span in leaving.ranges for at in span]
    assert len(positions) == len(set(positions))


def test_a_record_that_cannot_be_read_begins_anew() -> None:
    for record in ({"place": -1}, {"place": "x"}, {"told": 3}, {"awaited": [{}]}, {"awaited": [{"cause": "?"}]}):
        assert Evictions.from_json(record) == Evictions()
