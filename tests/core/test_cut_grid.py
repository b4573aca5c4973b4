"""Where a view may be cut: at multiples of a step from the beginning, moved to the next legal cut."""

from holdfast import Budget, counter_for
from holdfast.core.conversation.cuts import next_cut
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.fit import CUT_GRID_BYTES_PER_TOKEN, CutGrid
from holdfast.testing.sessions import generate_session
from holdfast.wire.formats import format_named

ROOM, SHARE = 1_000, 0.25


def transcript(length: int) -> Transcript:
    return Transcript(generate_session(200)[:length], format_named("openai-chat"), counter_for("gpt-5"))


def grid(told: Transcript, budget: Budget | None = None) -> CutGrid:
    return CutGrid(told, budget or Budget(ROOM), ROOM, SHARE, len(told))


def test_a_cut_is_the_first_legal_one_at_or_after_its_multiple_of_a_step() -> None:
    told = transcript(200)
    step = ROOM * SHARE * CUT_GRID_BYTES_PER_TOKEN

    for number in range(1, 40):
        first = next(index for index in range(len(told)) if told.bytes_before(index) >= number * step)
        assert grid(told).cut_at(number) == next_cut(told, first)
    assert grid(told).cut_at(0) == 0


def test_a_growing_list_keeps_its_cuts() -> None:
    short, long = transcript(120), transcript(200)

    drawn = [grid(short).cut_at(number) for number in range(20)]

    assert drawn[-1] < len(short) - 10
    assert [grid(long).cut_at(number) for number in range(20)] == drawn


def test_the_number_of_a_position_is_that_of_the_first_cut_at_or_after_it() -> None:
    told = transcript(200)

    for index in range(0, len(told), 7):
        number = grid(told).number_of_cut(index)
        assert grid(told).cut_at(number) >= index
        assert number == 0 or grid(told).cut_at(number - 1) < index


def test_a_limit_on_messages_places_cuts_by_messages() -> None:
    told = transcript(200)
    by_count = grid(told, Budget(10**9, messages=40))._replace(max_tokens=10**9)

    assert [by_count.cut_at(number) for number in range(1, 5)] == [
        next_cut(told, 10 * number) for number in range(1, 5)
    ]


def test_no_cut_is_after_the_limit() -> None:
    told = transcript(200)

    assert grid(told)._replace(limit=50).cut_at(10**6) == 50
