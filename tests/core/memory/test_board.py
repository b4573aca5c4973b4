"""A board: read from what people leave in its file, bounded, and never at the cost of a line of theirs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.memory.board import (
    MAX_BOARD_ENTRIES,
    MAX_BOARD_TOKENS,
    MAX_NOTE_CHARS,
    Board,
    BoardNote,
    parse_board,
)
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError

COUNTER = counter_for(None)
DAY, LATER = "2026-11-15", "2026-11-20"


def test_an_entry_keeps_its_age_its_use_and_its_sources_in_the_file() -> None:
    board = Board().with_note("Use tabs.", day=DAY, sources=("s1 #12", "s1 #40"))
    board = board.with_uses([board.notes[0].id], LATER)

    again = parse_board(str(board))

    assert again == board
    (entry,) = again.notes
    assert (entry.text, entry.added_on, entry.offered_count, entry.last_used_on, entry.sources) == (
        "Use tabs.",
        DAY,
        1,
        LATER,
        ("s1 #12", "s1 #40"),
    )


def test_what_people_write_is_read_and_what_cannot_be_is_reported_and_kept() -> None:
    by_hand = (
        "# My board\n"
        "<!-- a comment -->\n"
        "\n"
        "- Use tabs\n"
        "*  Tests run   with make\n"
        "no entry at all\n"
        '- half a comment <!-- {"id": "ab -->\n'
        '- wrong facts <!-- {"used": "often", "added": 7, "id": "../x", "from": "s1"} -->\n'
    )

    board = parse_board(by_hand)

    assert [entry.text for entry in board.notes] == ["Use tabs", "Tests run with make", "wrong facts"]
    assert board.unreadable_lines == ["line 6: no entry at all", 'line 7: - half a comment <!-- {"id": "ab -->']
    assert str(board.with_note("One more", day=DAY)).startswith("# My board\n<!-- a comment -->\n\n- Use tabs <!-- ")
    assert 'no entry at all\n- half a comment <!-- {"id": "ab -->\n' in str(board.without_note(board.notes[0].id))


@pytest.mark.parametrize("line", ["- a{}b", "- a{}<!-- {{", "- a <!-- {}", "*{}", "- a <!-- {{}} -->{}x"])
def test_a_line_with_many_spaces_is_read_at_once(line: str) -> None:
    content = line.format(" " * 200_000)

    board = parse_board(content)

    assert len(board.lines) == 1
    assert [entry.text for entry in board.notes] == (["a b"] if line == "- a{}b" else [])


def test_the_same_said_again_is_one_entry_with_more_sources() -> None:
    board = (
        Board()
        .with_note("Use tabs.", day=DAY, sources=("s1 #1",))
        .with_note("use  TABS", day=LATER, sources=("s2 #3",))
    )

    (entry,) = board.notes
    assert (entry.text, entry.sources, entry.last_used_on) == ("Use tabs.", ("s1 #1", "s2 #3"), LATER)
    assert board.with_note("Use tabs", day=LATER, sources=("s1 #1",)) == board


def test_what_a_person_writes_is_the_persons_whether_it_was_proposed_before_or_after() -> None:
    proposed = Board().with_note("Use tabs.", day=DAY, sources=("s1 #1",))
    written = Board().with_note("Use tabs.", day=DAY)

    (after,) = proposed.with_note("use tabs", day=LATER).notes
    (before,) = written.with_note("use tabs", day=LATER, sources=("s2 #3",)).notes

    assert (after.sources, before.sources) == ((), ())


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("\U0001f469\u200d\U0001f4bb writes tests", "\U0001f469 \U0001f4bb writes tests"),
        ("use tabs <!-- for now -->", "use tabs for now"),
        ("half a character \ud83d", "half a character"),
        ("the key is sk-abcdefghijklmnop1234", "the key is sk-[redacted]"),
    ],
)
def test_what_was_added_is_found_by_the_words_it_was_added_with(text: str, kept: str) -> None:
    board = Board().with_note(text, day=DAY)

    found = board.note_with_text(text)

    assert found is not None
    assert found.text == kept
    assert board.with_note(text, day=LATER) == board


def test_an_entry_is_found_by_a_beginning_of_its_id_and_an_unknown_one_says_which_there_are() -> None:
    board = Board().with_note("Use tabs", day=DAY)
    (entry,) = board.notes

    assert board.note_by_id(f"[{entry.id[:2]}]") == entry
    assert board.without_note(entry.id).notes == ()
    with pytest.raises(MalformedInputError, match=entry.id):
        board.without_note("zz")
    with pytest.raises(MalformedInputError):
        board.without_note("")


@pytest.mark.parametrize("text", ["", "  \n\t", "\0", "<!-- -->", "x" * (MAX_NOTE_CHARS + 1)])
def test_an_entry_needs_words_and_not_too_many(text: str) -> None:
    with pytest.raises(MalformedInputError):
        Board().with_note(text, day=DAY)


def test_a_full_board_lets_go_of_the_least_that_was_proposed_and_never_of_what_a_person_wrote() -> None:
    board = Board().with_note("written by hand", day="2020-01-01")
    board = board.with_note("proposed twice", day="2020-01-01", sources=("s1 #1", "s2 #1"))
    for number in range(MAX_BOARD_ENTRIES):
        board = board.with_note(f"proposed {number:02}", day=DAY, sources=("s3 #1",))
    newest = board.notes[-1]

    kept = board.within_limits(COUNTER, keep_id=newest.id)

    texts = [entry.text for entry in kept.notes]
    assert len(texts) == MAX_BOARD_ENTRIES
    assert {"written by hand", "proposed twice", newest.text} <= {*texts}
    assert "proposed 00" not in texts


def test_a_board_full_of_what_people_wrote_says_that_it_is_full() -> None:
    board = Board()
    for number in range(MAX_BOARD_ENTRIES + 1):
        board = board.with_note(f"by hand {number}", day=DAY)

    with pytest.raises(MalformedInputError, match="prune an entry first"):
        board.within_limits(COUNTER)


def test_what_is_offered_fits_and_is_what_is_worth_most() -> None:
    board = Board()
    for number in range(20):
        board = board.with_note(f"proposed number {number} " + "words " * 20, day=DAY, sources=("s1 #1",))
    board = board.with_note("by hand", day=DAY)

    offered = board.notes_within(100, COUNTER)

    assert offered[-1].text == "by hand"
    assert sum(COUNTER.count(entry.text) for entry in offered) <= 100
    assert board.notes_within(0, COUNTER) == ()


FILES = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.text(max_size=40).map(lambda text: f"- {text}"),
        st.text(max_size=40).map(lambda text: f'- {text} <!-- {{"id": "abcd", "used": 1}} -->'),
    ),
    max_size=8,
).map("\n".join)


@given(FILES, st.text(max_size=60))
def test_whatever_stands_in_a_file_stays_there_and_a_board_reads_what_it_wrote(content: str, text: str) -> None:
    board = parse_board(content)
    others = [line for line in board.lines if isinstance(line, str)]
    try:
        more = board.with_note(text, day=DAY, sources=("s > 1 #1",))
    except MalformedInputError:
        more = board

    again = parse_board(str(more))

    assert again.notes == more.notes
    assert [line for line in more.lines if isinstance(line, str)] == others
    assert len({entry.id for entry in again.notes}) == len(again.notes)


def test_bounds_are_those_of_a_few_lines() -> None:
    long = [BoardNote(id=f"{number:04x}", text="word " * 70, sources=("s1 #1",)) for number in range(60)]

    assert Board(tuple(long)).within_limits(COUNTER).tokens(COUNTER) <= MAX_BOARD_TOKENS


@pytest.mark.parametrize("noted", ["{", "[1]", "7"])
def test_a_line_whose_note_says_nothing_is_a_line_of_a_person_and_stays(noted: str) -> None:
    content = f"# Board\n\n- Use tabs. <!-- {noted} -->\n"

    assert (parse_board(content).notes, str(parse_board(content))) == ((), content)


def test_what_a_person_notes_in_the_json_of_a_comment_stays_when_the_entry_is_offered() -> None:
    by_hand = (
        '- Use tabs <!-- {"ticket": "OPS-12", "why": {"by": "x > y"}} -->\n'
        '- Run make <!-- {"from": "the handbook", "added": "last May", "used": "often"} -->\n'
        '- No cron <!-- {"id": "abcd", "added": "2026-11-15", "used": 2, "ticket": "OPS-13"} -->\n'
    )
    board = parse_board(by_hand)
    ids = [entry.id for entry in board.notes]

    offered = parse_board(str(board.with_uses(ids, LATER))).with_uses(ids, LATER)

    assert str(offered) == (
        f'- Use tabs <!-- {{"ticket": "OPS-12", "why": {{"by": "x \\u003e y"}}, "id": "{ids[0]}", "used": 2, '
        f'"last": "{LATER}"}} -->\n'
        f'- Run make <!-- {{"from": "the handbook", "added": "last May", "id": "{ids[1]}", "used": 2, '
        f'"last": "{LATER}"}} -->\n'
        f'- No cron <!-- {{"ticket": "OPS-13", "id": "abcd", "added": "{DAY}", "used": 4, "last": "{LATER}"}} -->\n'
    )
