"""The screen of the chat in a real pseudo-terminal: what stands where, at any size, and how it is written.

Each test starts the program once and checks many things in it.
"""

import re
from pathlib import Path

import pytest

from holdfast.testing.endpoint import text_stream, tool_call_stream
from tests.chat.conftest import Person, Served, Sit

CTRL_C, CTRL_D, ESC, TAB = "\x03", "\x04", "\x1b", "\t"
BEGIN_UPDATE, END_UPDATE, ERASE_BELOW = b"\x1b[?2026h", b"\x1b[?2026l", b"\x1b[J"
COLORS = re.compile(rb"\x1b\[(?:\d+;)*(?:[349]\d|10\d)(?:;\d+)*m")
ANSWER = "# Tides\n\nThe *moon*\nand the sun.\n\n- ebb\n- flood\n\n```python\nheight = 2.1\n```\n\nThat is all.\n"


def cursor_line(person: Person) -> str:
    """Return the line of the cursor up to the cursor."""
    return person.screen.display[person.screen.cursor.y][: person.screen.cursor.x]


def test_the_line_below_the_input_and_the_line_above_it_say_what_is_going_on(sit: Sit, served: Served) -> None:
    served.script += [
        text_stream("Once", None),
        text_stream(None),
        text_stream(*re.findall(r".{1,5}", ANSWER, re.DOTALL)),
    ]
    person = sit()
    person.sees("/help lists the commands")
    person.waits(lambda: cursor_line(person) == "› ", "the cursor behind the mark")
    person.waits(
        lambda: "/96,000 tokens (1%)" in person.screen.display[person.screen.cursor.y + 1],
        "the size of the first request below the input",
    )

    person.says("a story")
    person.sees("Once", "writing · ", "Esc stops")
    person.says("/history")
    person.sees("are in the log")
    person.types(ESC)
    person.sees("Interrupted by user.")
    person.says("slowly")
    person.sees("reading ", "Esc stops")
    person.types(CTRL_C)
    person.waits(lambda: person.text.count("Interrupted by user.") == 2, "the second interrupt")
    person.says("Tell me about tides.")
    person.sees("That is all.")
    person.waits(lambda: "Esc stops" not in "\n".join(person.screen.display), "the end of the activity")

    answer = person.text.split("› Tell me about tides.")[1].split("\n›")[0].strip("\n")
    assert answer.split("\n") == [
        "Tides", "", "The moon", "and the sun.", "", " • ebb", " • flood", "", " height = 2.1", "", "That is all.",
    ]  # fmt: skip
    person.says("exit")
    assert person.leaves() == 0


@pytest.mark.seed("C-50")
def test_a_compaction_has_a_line_of_its_own(sit: Sit) -> None:
    person = sit(HOLDFAST_MAX_CONTEXT_TOKENS="4000", HOLDFAST_SUMMARIZATION_MODEL="none")
    for number in range(5):
        person.says(f"question {number}: " + "why is that so? " * 20)
        person.sees(f"you said: question {number}")

    person.says("/compact")
    person.sees("by rule")
    person.says("exit")
    assert person.leaves() == 0

    line = r"^─── Conversation Compacted: [\d,]+ → [\d,]+ tokens; /undo reverts it ───$"
    assert re.search(line, person.text, re.MULTILINE)


def test_what_is_drawn_again_is_sent_in_one_update(sit: Sit, served: Served) -> None:
    served.script.append(text_stream(*(f"- item {number}\n" for number in range(60))))
    person = sit(rows=20)
    person.says("List.")
    person.sees("item 59")
    person.says("/quit")
    assert person.leaves() == 0

    parts = bytes(person.written).split(BEGIN_UPDATE)
    # The first drawing is no update; when the program leaves, the line is erased before it says what it saved.
    assert len(parts) > 4
    for part in parts[2:-2]:
        inside, _, outside = part.partition(END_UPDATE)
        assert ERASE_BELOW in inside
        assert ERASE_BELOW not in outside
    shown = re.findall(r"^ • item (\d+)$", person.text, re.MULTILINE)
    assert shown == [str(number) for number in range(60)]
    # From the upper left corner, tmux would keep what is erased in its history.
    assert re.findall(rb"(?<!\x1b\[C)\x1b\[0?J", bytes(person.written)) == []


def test_commands_files_and_models_are_completed_and_lines_are_edited(sit: Sit, served: Served, tmp_path: Path) -> None:
    (tmp_path / "folder" / "notes.txt").write_text("the tide is at nine")
    person = sit(columns=40, rows=12, NO_COLOR="1")
    person.sees("›")
    person.types("/con")
    person.sees("/config", "/context")
    person.types("t" + TAB + "\r\r")
    person.sees("PART", "free")
    person.types("/policy co")
    person.sees("co-cli", "copilot")
    person.types(CTRL_C)
    person.types("/model emb")
    person.sees("embedded")
    person.types(CTRL_C)
    person.types("look at @no")
    person.sees("@notes.txt")
    person.types(TAB + "\r")
    person.types("\\\r")
    person.says("second line")
    person.sees("you said: look at")
    person.waits(lambda: "Esc stops" not in "\n".join(person.screen.display), "the end of the answer")
    person.types("\x1b[A")
    person.waits(lambda: cursor_line(person) == "  second line", "the last prompt")
    person.types(CTRL_C)
    person.says("quit")

    assert person.leaves() == 0
    assert served.prompts[0].startswith("look at @notes.txt\nsecond line\n\n[attached: notes.txt, 1 lines]")
    assert "the tide is at nine" in served.prompts[0]
    assert not COLORS.search(bytes(person.written))


def test_names_with_spaces_are_completed_whole_and_the_menu_shrinks(sit: Sit, served: Served, tmp_path: Path) -> None:
    served.listed_models = ["served", "smaller"]
    for name in ("my notes.txt", "main.py", "mast.py"):
        (tmp_path / "folder" / name).write_text(f"this is {name}")
    person = sit()
    person.sees("tokens (1%)")
    person.types("compare @m")
    person.sees("@main.py", "@mast.py", '@"my notes.txt"')
    person.types("y")
    person.waits(lambda: "tokens" in person.screen.display[person.screen.cursor.y + 2], "a menu of one row")
    person.types(TAB + "\r and @mai" + TAB)
    person.waits(
        lambda: cursor_line(person).endswith("@main.py"), "a completion that was asked for before it was found"
    )
    person.types("\r\r")
    person.sees('you said: compare @"my notes.txt" and @main.py')
    person.waits(lambda: "Esc stops" not in "\n".join(person.screen.display), "the end of the answer")
    person.types("/attach my no")
    person.sees("/attach my no")
    person.types(TAB)
    person.waits(lambda: cursor_line(person) == "› /attach my notes.txt", "the whole path")
    person.types(CTRL_C)
    person.types("/model sma")
    person.sees("#smaller")
    person.types(CTRL_C)
    person.says("quit")

    assert person.leaves() == 0
    assert "this is my notes.txt" in served.prompts[0]
    assert "this is main.py" in served.prompts[0]


def test_enter_runs_a_command_that_was_just_completed(sit: Sit) -> None:
    person = sit(columns=60, rows=16)
    person.sees("›")
    person.types("/contex")
    person.sees("/context")
    person.types(TAB + "\r")
    person.sees("PART", "free")
    person.types(CTRL_D)

    assert person.leaves() == 0


def test_a_paste_of_a_megabyte_and_a_window_of_any_size(sit: Sit) -> None:
    paste = "".join(f"line {number:05d} of a log, which goes on and on\r" for number in range(26_000))
    person = sit("--budget", "4000", rows=24, columns=80, COLORFGBG="0;15", XTERM_VERSION="XTerm(390)")
    person.sees("/help lists the commands")

    person.types("Look: ")
    person.types(f"\x1b[200~{paste}\x1b[201~")
    person.sees("[paste 1: 26,001 lines,")
    person.types(" Why?")
    for rows, columns in ((10, 33), (24, 80), (40, 200), (8, 27)):
        person.resizes(rows, columns)
        person.waits(lambda: cursor_line(person).endswith("Why?"), f"the line in {columns} columns")
        row = person.screen.cursor.y
        person.waits(lambda row=row: "%" in person.screen.display[row + 1], "the status below the line")
        assert not any("%" in line for line in person.screen.display[:row])
    person.resizes(24, 80)
    person.waits(lambda: cursor_line(person).endswith("Why?"), "the line in 80 columns")
    person.says("")
    person.sees("too much for a budget", "[y] yes")
    person.says("n")
    person.sees("not sent; the Up key brings it back")
    person.types("\x1b[A")
    person.waits(lambda: cursor_line(person).endswith("Why?"), "the prompt again")
    person.says("")
    person.waits(lambda: person.text.count("too much for a budget") == 2, "the question again")
    person.says("maybe")
    person.sees("“maybe” is no answer: [y] yes")
    person.says("y")
    person.sees("you said: [attached: paste-1.txt, 26,001 lines")
    person.waits(lambda: cursor_line(person) == "› maybe", "the text that was no answer")
    person.types("\x15" + CTRL_D)

    assert person.leaves() == 0
    assert max(len(line) for line in person.screen.display) <= 80


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(sit: Sit, served: Served) -> None:
    served.script += [tool_call_stream(("read_file", {"path": "missing"})), text_stream("No *such* file.")]
    person = sit(TERM="dumb")

    person.sees("/help lists the commands, Ctrl-D leaves")
    person.says("Look.")
    person.sees("· read_file", "failed: there is no missing", "No *such* file.")
    person.says("exit")

    assert person.leaves() == 0
    assert b"\x1b" not in bytes(person.written)


def test_a_user_at_a_terminal_without_a_cursor_answers_questions_and_stops_answers(sit: Sit, served: Served) -> None:
    served.script += [
        tool_call_stream(("run_command", {"command": "echo allowed"})),
        text_stream("It ran."),
        tool_call_stream(("run_command", {"command": "echo forbidden"})),
        text_stream("Once upon", None),
    ]
    person = sit(TERM="dumb")

    person.sees("Ctrl-D leaves")
    person.says("Run it.")
    person.sees("Run: echo allowed", "[y] yes  [a] always  [n] no, and Enter")
    person.says("maybe")
    person.waits(lambda: person.text.count("and Enter") == 2, "the question again")
    person.says("y")
    person.sees("It ran.")
    person.says("Run another.")
    person.sees("Run: echo forbidden")
    person.types(CTRL_C)
    person.sees("Interrupted by user.")
    person.says("A story.")
    person.sees("Once upon")
    person.types(CTRL_C)
    person.waits(lambda: person.text.count("Interrupted by user.") == 2, "the end of the answer")
    person.types(CTRL_C)
    person.sees("nothing runs; Ctrl-D leaves")
    person.types(CTRL_D)

    assert person.leaves() == 0
    assert re.search(r"saved; continue with: \S*holdfast chat --resume", person.text)
    assert "forbidden" not in str([messages[-1] for messages in served.asked if messages[-1]["role"] == "tool"])
