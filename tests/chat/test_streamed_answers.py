"""An answer while it streams: rendered piece by piece as it looks at the end, and stopped if it repeats itself."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent, BinaryContent

from holdfast.apps.chat.attachments import PreparedPrompt
from holdfast.apps.chat.events import ToolCallFinished
from holdfast.apps.chat.markdown import MAX_BLOCK_CHARS, MarkdownRenderer, StreamedMarkdown
from holdfast.apps.chat.turn import RepetitionDetector, turn_events
from holdfast.testing.agents import ScriptedAgentModel, tool_call_response
from tests.adapters.conftest import is_return

STYLE = re.compile(r"\x1b\[[0-9;]*m")
PIECES = [
    "word ",
    "two\nlines ",
    "\n\n",
    "- item\n",
    "1. one\n",
    "# head\n\n",
    "```python\nx = 1\n\ny = 2\n```\n\n",
    "*b* ",
]


def streamed(pieces: list[str], max_live: int = 3) -> tuple[list[str], list[int]]:
    """Return the lines that were taken, and how many lines were live after each piece."""
    answer = StreamedMarkdown(MarkdownRenderer(has_color=True))
    taken, live = "", list[int]()
    for piece in pieces:
        answer.feed(piece)
        taken += answer.take_finished(40, max_live)
        live.append(len(answer.live_lines))
    taken += answer.take_rest(40)
    assert answer.live_lines == []
    return STYLE.sub("", taken).splitlines(), live


@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_every_word_is_taken_once_and_in_order_however_the_answer_arrives(pieces: list[str]) -> None:
    pieces = [piece.replace("word", f"word{number}") for number, piece in enumerate(pieces)]
    lines, live = streamed(pieces)

    wanted = re.findall(r"word\d+", "".join(pieces))
    assert re.findall(r"word\d+", "\n".join(lines)) == wanted
    assert all(count <= 3 for count in live)


@given(st.lists(st.integers(12, 70), min_size=1, max_size=12), st.sampled_from(["", "> ", "- ", "1. "]))
def test_no_word_is_left_out_and_no_line_comes_twice_when_the_window_changes(widths: list[int], mark: str) -> None:
    answer = StreamedMarkdown(MarkdownRenderer(has_color=True))
    taken, words = "", [f"word{number}" for number in range(12 * len(widths))]
    answer.feed(mark)
    for number, width in enumerate(widths):
        answer.feed("".join(f"{word} " for word in words[12 * number : 12 * number + 12]))
        taken += answer.take_finished(width, 2)
    taken += answer.take_rest(widths[-1])

    drawn = re.findall(r"word\d+", STYLE.sub("", taken))
    assert list(dict.fromkeys(drawn)) == words
    # Only the words of a line that was drawn in part come again, once for each change of the width.
    changes = sum(1 for before, after in pairwise(widths) if before != after)
    assert len(drawn) - len(words) <= changes * (max(widths) // len("word0 "))


def test_a_line_looks_the_same_before_and_after_it_is_finished() -> None:
    text = "Some *text*\nin two lines.\n\n- a\n- b\n\n```text\ncode\n\nmore\n```\n\nThe end."

    whole, _ = streamed([text], max_live=100)
    by_letter, _ = streamed(list(text), max_live=100)

    assert by_letter == whole == [
        "Some text", "in two lines.", "", " • a", " • b", "", " code", "", " more", "", "The end.",
    ]  # fmt: skip


def test_a_block_of_code_that_is_longer_than_any_screen_is_finished_in_parts_without_gaps() -> None:
    code = [f"line_{number} = {number}" for number in range(MAX_BLOCK_CHARS // 8)]
    pieces = ["```text\n", *("\n".join(code[start : start + 9]) + "\n" for start in range(0, len(code), 9)), "```\n"]

    lines, live = streamed(pieces, max_live=5)

    assert [line.strip() for line in lines] == code
    assert max(live) <= 5


def test_an_answer_that_repeats_itself_is_noticed_and_a_table_is_not() -> None:
    def is_stopped(text: str) -> bool:
        detector = RepetitionDetector()
        return any(detector.feed(text[start : start + 7]) for start in range(0, len(text), 7))

    assert is_stopped("It begins well. " + "He sailed across the Indian Ocean, and he sailed on. " * 60)
    assert is_stopped("na " * 1_000)
    assert not is_stopped("".join(f"| {number} | a value | another value |\n" for number in range(400)))
    assert not is_stopped("".join(f"- item {number} of the list is like the others\n" for number in range(400)))
    assert not is_stopped("-" * 4_000)
    assert not is_stopped("A text that ends before it repeats itself often enough. " * 5)


@pytest.mark.parametrize("background", ["dark", "light"])
def test_code_has_no_background_and_only_colors_of_the_terminals_theme(background: str) -> None:
    shown = MarkdownRenderer(has_color=True, background=background).markdown("`a` and\n\n```python\nx = 'b'\n```\n", 60)

    codes = {code for found in STYLE.findall(shown) for code in found[2:-1].split(";") if code}
    assert codes
    assert not codes & {str(number) for number in (*range(40, 50), 38, 48, *range(100, 108))}


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (BinaryContent(b"\x89PNG" * 500_000, media_type="image/png"), "[image/png, 2,000,000 bytes]"),
        (b"\xff" * 3_000, "[3,000 bytes]"),
        (
            ["the tides", BinaryContent(b"\x89PNG", media_type="image/png")],
            '["the tides", "[image/png, 4 bytes]"]',
        ),
        ({"deep": [{"data": b"\xff\xfe"}]}, '{"deep": [{"data": "[2 bytes]"}]}'),
        ({"port": "Brest", "high": 4.5}, '{"port": "Brest", "high": 4.5}'),
        (None, ""),
    ],
)
async def test_of_a_file_that_a_tool_returns_its_type_and_size_are_shown(result: Any, shown: str) -> None:
    model = ScriptedAgentModel(lambda messages: "done" if is_return(messages[-1]) else tool_call_response(n=1))
    agent = Agent(model)

    @agent.tool_plain
    def look(n: int) -> Any:
        del n
        return result

    events = [event async for event in turn_events(agent, PreparedPrompt("Look."), None)]

    assert [event.result for event in events if isinstance(event, ToolCallFinished)] == [shown]
