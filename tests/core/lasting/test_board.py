"""A board: read from what people leave in its file, bounded, and never at the cost of a line of theirs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history.lasting.board import MAX_CHARS, MAX_ENTRIES, MAX_TOKENS, Board, Entry, parsed
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError

COUNTER = counter_for(None)
DAY, LATER = "2026-11-15", "2026-11-20"


def test_an_entry_keeps_its_age_its_use_and_its_sources_in_the_file() -> None:
    board = Board().added("Use tabs.", day=DAY, sources=("s1 #12", "s1 #40"))
    board = board.used([board.entries[0].id], LATER)

    again = parsed(str(board))

    assert again == board
    (entry,) = again.entries
    assert (entry.text, entry.added, entry.used, entry.last, entry.sources) == (
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

    board = parsed(by_hand)

    assert [entry.text for entry in board.entries] == ["Use tabs", "Tests run with make", "wrong facts"]
    assert board.damage == ["line 6: no entry at all", 'line 7: - half a comment <!-- {"id": "ab -->']
    assert str(board.added("One more", day=DAY)).startswith("# My board\n<!-- a comment -->\n\n- Use tabs <!-- ")
    assert 'no entry at all\n- half a comment <!-- {"id": "ab -->\n' in str(board.pruned(board.entries[0].id))


@pytest.mark.parametrize("line", ["- a{}b", "- a{}<!-- {{", "- a <!-- {}", "*{}", "- a <!-- {{}} -->{}x"])
def test_a_line_with_many_spaces_is_read_at_once(line: str) -> None:
    content = line.format(" " * 200_000)

    board = parsed(content)

    assert len(board.lines) == 1
    assert [entry.text for entry in board.entries] == (["a b"] if line == "- a{}b" else [])


def test_the_same_said_again_is_one_entry_with_more_sources() -> None:
    board = Board().added("Use tabs.", day=DAY, sources=("s1 #1",)).added("use  TABS", day=LATER, sources=("s2 #3",))

    (entry,) = board.entries
    assert (entry.text, entry.sources, entry.last) == ("Use tabs.", ("s1 #1", "s2 #3"), LATER)
    assert board.added("Use tabs", day=LATER, sources=("s1 #1",)) == board


def test_what_a_person_writes_is_the_persons_whether_it_was_proposed_before_or_after() -> None:
    proposed = Board().added("Use tabs.", day=DAY, sources=("s1 #1",))
    written = Board().added("Use tabs.", day=DAY)

    (after,) = proposed.added("use tabs", day=LATER).entries
    (before,) = written.added("use tabs", day=LATER, sources=("s2 #3",)).entries

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
    board = Board().added(text, day=DAY)

    found = board.same(text)

    assert found is not None
    assert found.text == kept
    assert board.added(text, day=LATER) == board


def test_an_entry_is_found_by_a_beginning_of_its_id_and_an_unknown_one_says_which_there_are() -> None:
    board = Board().added("Use tabs", day=DAY)
    (entry,) = board.entries

    assert board.named(f"[{entry.id[:2]}]") == entry
    assert board.pruned(entry.id).entries == ()
    with pytest.raises(MalformedInputError, match=entry.id):
        board.pruned("zz")
    with pytest.raises(MalformedInputError):
        board.pruned("")


@pytest.mark.parametrize("text", ["", "  \n\t", "\0", "<!-- -->", "x" * (MAX_CHARS + 1)])
def test_an_entry_needs_words_and_not_too_many(text: str) -> None:
    with pytest.raises(MalformedInputError):
        Board().added(text, day=DAY)


def test_a_full_board_lets_go_of_the_least_that_was_proposed_and_never_of_what_a_person_wrote() -> None:
    board = Board().added("written by hand", day="2020-01-01")
    board = board.added("proposed twice", day="2020-01-01", sources=("s1 #1", "s2 #1"))
    for number in range(MAX_ENTRIES):
        board = board.added(f"proposed {number:02}", day=DAY, sources=("s3 #1",))
    newest = board.entries[-1]

    kept = board.bounded(COUNTER, keep=newest.id)

    texts = [entry.text for entry in kept.entries]
    assert len(texts) == MAX_ENTRIES
    assert {"written by hand", "proposed twice", newest.text} <= {*texts}
    assert "proposed 00" not in texts


def test_a_board_full_of_what_people_wrote_says_that_it_is_full() -> None:
    board = Board()
    for number in range(MAX_ENTRIES + 1):
        board = board.added(f"by hand {number}", day=DAY)

    with pytest.raises(MalformedInputError, match="prune one first"):
        board.bounded(COUNTER)


def test_what_is_offered_fits_and_is_what_is_worth_most() -> None:
    board = Board()
    for number in range(20):
        board = board.added(f"proposed number {number} " + "words " * 20, day=DAY, sources=("s1 #1",))
    board = board.added("by hand", day=DAY)

    offered = board.offered(100, COUNTER)

    assert offered[-1].text == "by hand"
    assert sum(COUNTER.count(entry.text) for entry in offered) <= 100
    assert board.offered(0, COUNTER) == ()


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
    board = parsed(content)
    others = [line for line in board.lines if isinstance(line, str)]
    try:
        more = board.added(text, day=DAY, sources=("s > 1 #1",))
    except MalformedInputError:
        more = board

    again = parsed(str(more))

    assert again.entries == more.entries
    assert [line for line in more.lines if isinstance(line, str)] == others
    assert len({entry.id for entry in again.entries}) == len(again.entries)


def test_bounds_are_those_of_a_few_lines() -> None:
    long = [Entry(id=f"{number:04x}", text="word " * 70, sources=("s1 #1",)) for number in range(60)]

    assert Board(tuple(long)).bounded(COUNTER).tokens(COUNTER) <= MAX_TOKENS


@pytest.mark.parametrize("noted", ["{", "[1]", "7"])
def test_a_line_whose_note_says_nothing_is_a_line_of_a_person_and_stays(noted: str) -> None:
    content = f"# Board\n\n- Use tabs. <!-- {noted} -->\n"

    assert (parsed(content).entries, str(parsed(content))) == ((), content)
