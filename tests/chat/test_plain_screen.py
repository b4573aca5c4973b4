"""Screens for pipes and programs."""

import asyncio
import json
import sys
from io import StringIO

import pytest

from holdfast.apps.chat.events import (
    ChatEvent,
    ChatNotice,
    CommandReply,
    CommandTable,
    ConversationCompacted,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEnded,
)
from holdfast.apps.chat.plain_screen import JsonScreen, PlainScreen, TypedLines

EVENTS: list[ChatEvent] = [
    ThinkingDelta("hm"),
    TextDelta("one "),
    ToolCallStarted("c1", "read_file", '{"path": "x"}'),
    ToolCallFinished("c1", "read_file", "text\nof it"),
    ToolCallFinished("c2", "run", "no", is_error=True),
    TextDelta("two"),
    TurnEnded("done", 10, 5, 2, 1),
    ChatNotice("look out", "warning"),
    ChatNotice("by the way"),
    CommandReply("**said**"),
    CommandTable(("A", "B"), [("1", "long"), ("22", "x")], title="T"),
]


def test_the_answer_goes_to_standard_output_and_the_rest_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()

    for event in EVENTS:
        screen.show(event)

    shown = capsys.readouterr()
    assert shown.out == "one \ntwo\n**said**\nT\nA   B\n1   long\n22  x\n"
    assert shown.err == ('· read_file {"path": "x"}\n  text of it\n  failed: no\nwarning: look out\nby the way\n')


def test_a_program_gets_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    screen = JsonScreen()

    for event in EVENTS:
        screen.show(event)
    screen.show_busy("starting")

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == {"event": "text", "text": "one "}
    assert lines[6] == {
        "event": "turn_end", "outcome": "done",
        "input_tokens": 10, "cached_tokens": 5, "output_tokens": 2, "requests": 1,
        "finish_reason": "", "session": "", "text": "", "cost": None,
    }  # fmt: skip
    assert [line["event"] for line in lines] == [
        "thinking", "text", "tool_call", "tool_result", "tool_result", "text", "turn_end", "notice", "notice", "answer",
        "table", "busy",
    ]  # fmt: skip


async def test_nobody_can_be_asked_behind_a_pipe_so_nothing_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()

    assert await screen.ask_consent("Run: rm -rf /") == "no"
    assert await screen.edit_text("This summary", "text") is None
    assert capsys.readouterr().err == (
        "not allowed, because there is no user to ask: Run: rm -rf /\n"
        "rejected, because there is no user to ask: This summary\n"
    )


def test_what_a_model_says_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    PlainScreen().show(TextDelta("\x1b]0;title\x07\x1b[2Jgone\x9b31m\r"))

    assert capsys.readouterr().out == "\ufffd]0;title\ufffd\ufffd[2Jgone\ufffd31m\ufffd"


def test_the_name_of_a_tool_that_a_model_invents_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    PlainScreen().show(ToolCallStarted("c1", "\x1b]0;title\x07look\x9b\u202e\nerror: none", '{"a": 1}'))

    assert capsys.readouterr().err == '· \ufffd]0;title\ufffdlook\ufffd\ufffd error: none {"a": 1}\n'


@pytest.mark.seed("C-50")
def test_a_compaction_is_told_in_a_pipe_and_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    compacted = ConversationCompacted(12_000, 3_400, 22, "served")

    PlainScreen().show(compacted)
    JsonScreen().show(compacted)

    out, err = capsys.readouterr()
    assert err == "--- Conversation Compacted: 12,000 → 3,400 tokens\n"
    assert json.loads(out) == {
        "event": "compacted",
        "tokens_before": 12_000,
        "tokens_after": 3_400,
        "messages": 22,
        "by_model": "served",
    }


async def test_whoever_ends_the_input_at_a_question_does_not_agree_and_the_chat_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("a\n"))
    lines = TypedLines()
    screen = PlainScreen(lines)

    async with asyncio.timeout(60):
        assert await screen.ask_consent("Run: make") == "no"
        assert [await lines.read(), await lines.read()] == [None, None]
        assert await screen.ask_consent("Run: ls", has_always=True) == "no"

    choice = "[y] yes  [n] no, and Enter"
    assert capsys.readouterr().err == (
        f"Run: make\n{choice}\n{choice}\nRun: ls\n[y] yes  [a] always  [n] no, and Enter\n"
    )
