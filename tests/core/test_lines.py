"""Where lines may stand: multiples of a step from the beginning, moved to the next legal cut."""

from holdfast import Budget, counter_for
from holdfast.core.conversation.cuts import next_cut
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.lines import BYTES_PER_TOKEN, Lines
from holdfast.testing.sessions import generated_session
from holdfast.wire.formats import format_named

ROOM, SHARE = 1_000, 0.25


def transcript(length: int) -> Transcript:
    return Transcript(generated_session(200)[:length], format_named("openai-chat"), counter_for("gpt-5"))


def lines(told: Transcript, budget: Budget | None = None) -> Lines:
    return Lines(told, budget or Budget(ROOM), ROOM, SHARE, len(told))


def test_a_line_is_the_first_legal_cut_at_or_after_its_multiple_of_a_step() -> None:
    told = transcript(200)
    step = ROOM * SHARE * BYTES_PER_TOKEN

    for number in range(1, 40):
        first = next(index for index in range(len(told)) if told.offset(index) >= number * step)
        assert lines(told).position(number) == next_cut(told, first)
    assert lines(told).position(0) == 0


def test_a_growing_list_keeps_its_lines() -> None:
    short, long = transcript(120), transcript(200)

    drawn = [lines(short).position(number) for number in range(20)]

    assert drawn[-1] < len(short) - 10
    assert [lines(long).position(number) for number in range(20)] == drawn


def test_the_number_of_a_position_is_that_of_the_first_line_at_or_after_it() -> None:
    told = transcript(200)

    for index in range(0, len(told), 7):
        number = lines(told).number_at(index)
        assert lines(told).position(number) >= index
        assert number == 0 or lines(told).position(number - 1) < index


def test_a_limit_on_messages_draws_lines_by_messages() -> None:
    told = transcript(200)
    by_count = lines(told, Budget(10**9, messages=40))._replace(room_tokens=10**9)

    assert [by_count.position(number) for number in range(1, 5)] == [
        next_cut(told, 10 * number) for number in range(1, 5)
    ]


def test_no_line_passes_the_limit() -> None:
    told = transcript(200)

    assert lines(told)._replace(limit=50).position(10**6) == 50
