"""The input line, in a terminal that a test types into: keys, questions, and what runs beside an answer."""

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prompt_toolkit import Application
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast.apps.chat import input_line
from holdfast.apps.chat.events import (
    ChangeProposed,
    ChatEvent,
    ChatNotice,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEnded,
)
from holdfast.apps.chat.input_line import InputLine
from holdfast.apps.chat.loop import run_chat_loop
from holdfast.apps.chat.terminal_screen import TerminalScreen
from tests.chat.conftest import Served
from tests.chat.recording_screen import open_chat
from tests.chat.test_attached_files import PIXEL

CTRL_C, CTRL_D, CTRL_R, CTRL_V, ESC = "\x03", "\x04", "\x12", "\x16", "\x1b"
CTRL_UNDERSCORE = "\x1f"


class Typist:
    """Types into a line, and records which of its callbacks are called."""

    def __init__(self, folder: Path, type_text: Callable[[str], None]) -> None:
        self.called: list[str] = []
        self.type_text = type_text
        self.line = InputLine(
            history=folder / "prompts",
            commands=lambda _: (),
            files=lambda _: (),
            above=lambda: "",
            activity=lambda: "",
            below=lambda: "",
            has_color=False,
        )
        self.line.interrupt = lambda: self.called.append("interrupt") is not None  # nothing runs
        self.line.idle_interrupt = lambda: self.called.append("idle")

    async def read(self) -> str | None:
        async with asyncio.timeout(60):
            return await self.line.read()


@asynccontextmanager
async def typing(folder: Path) -> AsyncGenerator[Typist]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        typist = Typist(folder, keys.send_text)
        yield typist


@pytest.mark.parametrize(
    ("keys", "read", "called"),
    [
        (f"tea{CTRL_C}milk\r", ["milk"], ["interrupt"]),
        (CTRL_C, [], ["interrupt", "idle"]),
        (f"tea{CTRL_D} please\r", ["tea please"], []),
        (f"{CTRL_R}te\rmilk\r", ["milk"], []),
        (f"black tea\r{CTRL_R}te{CTRL_C}milk\r", ["black tea", "milk"], ["interrupt"]),
        (f"black tea\r{CTRL_R}te{CTRL_D}milk\r", ["black tea", "milk"], []),
        (f"{ESC}[31mred{ESC}[0m tea\r", ["red tea"], []),
    ],
    ids=[
        "clear",
        "nothing runs",
        "not empty",
        "search",
        "stop search",
        "leave search",
        "colors that are pasted as keys",
    ],
)
async def test_a_key_does_what_it_does_in_a_shell(
    tmp_path: Path, keys: str, read: list[str], called: list[str]
) -> None:
    lines: list[str] = []
    async with typing(tmp_path) as typist:
        typist.type_text(keys + CTRL_D)
        while (line := await typist.read()) is not None:
            lines.append(line)

    assert (lines, typist.called) == (read, called)


@pytest.mark.parametrize(
    ("keys", "answer", "called"),
    [
        ("y\r", "yes", []),
        ("no\r", "no", []),
        ("maybe\ry\r", "yes", []),
        (f"y\r{CTRL_D}", "yes", []),
        (CTRL_C, None, ["interrupt"]),
        (ESC, None, ["interrupt"]),
        (CTRL_D, None, []),
    ],
)
async def test_a_question_takes_an_answer_and_a_user_who_dismisses_it_stops_the_turn(
    tmp_path: Path, keys: str, answer: str | None, called: list[str]
) -> None:
    async with typing(tmp_path) as typist:
        reading = asyncio.create_task(typist.read())
        await typist.line.is_drawn.wait()
        asking = asyncio.create_task(typist.line.ask({"y": "yes", "n": "no"}))
        await asyncio.sleep(0)
        typist.type_text(keys)

        async with asyncio.timeout(60):
            assert await asking == answer
        typist.line.close()
        await reading

    assert typist.called == called


async def test_the_earlier_texts_of_a_line_are_kept_up_to_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_line, "MAX_UNDO_CHARS", 100)
    async with typing(tmp_path) as typist:
        typist.type_text("abcdefghijklmnopqrst" + 50 * CTRL_UNDERSCORE + "\r" + CTRL_D)
        line = await typist.read()

    assert line == "abcdefghijklmnop"


async def test_a_question_that_comes_during_a_search_takes_what_is_typed_next(tmp_path: Path) -> None:
    async with typing(tmp_path) as typist:
        reading = asyncio.create_task(typist.read())
        await typist.line.is_drawn.wait()
        is_searching = asyncio.Event()

        def note_search(app: Application[None]) -> None:
            if app.layout.is_searching:
                is_searching.set()

        typist.line._app.after_render += note_search
        typist.type_text(f"milk{CTRL_R}te")
        await is_searching.wait()
        asking = asyncio.create_task(typist.line.ask({"y": "yes", "n": "no"}))
        await asyncio.sleep(0)
        typist.type_text("y\r")

        async with asyncio.timeout(60):
            assert await asking == "yes"
        typist.type_text("\r")
        assert await reading == "milk"
        typist.line.close()
        await typist.read()


@pytest.mark.parametrize(("keys", "edited"), [(" and more\r", "a summary and more"), (CTRL_C, None)])
async def test_a_text_is_edited_or_rejected_and_nothing_else_stops(
    tmp_path: Path, keys: str, edited: str | None
) -> None:
    async with typing(tmp_path) as typist:
        reading = asyncio.create_task(typist.read())
        await typist.line.is_drawn.wait()
        asking = asyncio.create_task(typist.line.ask({}, "a summary"))
        await asyncio.sleep(0)
        typist.type_text(f"\x05{keys}")

        async with asyncio.timeout(60):
            assert await asking == edited
        typist.line.close()
        await reading

    assert typist.called == []


async def test_a_terminal_shows_calls_their_results_and_changes_and_no_thoughts(tmp_path: Path) -> None:
    events: list[ChatEvent] = [
        ThinkingDelta("hm"),
        ToolCallStarted("c1", "read_file", '{"path": "x"}'),
        ToolCallFinished("c1", "read_file", "text\nof it"),
        ToolCallStarted("c2", "update_todos", "{}"),
        ToolCallFinished("c2", "update_todos", "- [x] parser\n- [ ] tests"),
        ToolCallStarted("c3", "run", "{}"),
        ToolCallStarted("c4", "look", "{}"),
        ToolCallFinished("c4", "look", "no", is_error=True),
        ChangeProposed("Change a.py", "--- a.py\n+++ a.py\n@@ -1 +1 @@\n-one\n+two\n"),
        TextDelta("Done."),
        TurnEnded("done"),
    ]
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        screen, written = TerminalScreen(tmp_path / "prompts", has_color=False), list[str]()
        screen.input_line.write_above = lambda text: written.append(text)  # noqa: PLW0108 - by its name
        for event in events:
            screen.show(event)

    assert re.sub(r"\x1b\[\d*m", "", "".join(written)).splitlines() == [
        '⚙ read_file {"path": "x"}',
        "  ✓ text of it",
        "⚙ update_todos {}",
        "  - [x] parser",
        "  - [ ] tests",
        "⚙ run {}",
        "⚙ look {}",
        "  ✗ look: no",
        "--- a.py",
        "+++ a.py",
        "@@ -1 +1 @@",
        "-one",
        "+two",
        "",
        "Done.",
    ]


async def test_words_are_completed_for_the_commands_that_take_some(tmp_path: Path) -> None:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        screen = TerminalScreen(tmp_path / "prompts", has_color=False)
        screen.chat, _ = await open_chat(tmp_path)

        found = [
            [word for word, _ in screen._command_completions(text)] for text in ("/ne", "/ctx c", "/new x", "/x y")
        ]

    assert found == [["/new"], ["clear"], [], []]


async def test_a_prompt_of_the_command_line_is_sent_with_the_image_that_was_pasted_before(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tide.png").write_bytes(PIXEL)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    chat, _ = await open_chat(tmp_path, flags={"model": served.model, "max_context_tokens": "9000"})
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        chat.screen = terminal = TerminalScreen(tmp_path / "prompts", has_color=False)
        shown = list[ChatEvent]()
        is_told = asyncio.Event()

        def show(event: ChatEvent) -> None:
            shown.append(event)
            is_told.set()

        async def paste_twice() -> None:
            for program in ("exit 1", f"cat {tmp_path / 'tide.png'}"):
                (tmp_path / "wl-paste").write_text(f"#!/bin/sh\n{program}\n")
                (tmp_path / "wl-paste").chmod(0o755)
                is_told.clear()
                keys.send_text(CTRL_V)
                await is_told.wait()
            keys.send_text("/quit\r")

        terminal.show = show
        async with asyncio.timeout(60):
            await run_chat_loop(chat, terminal, "hello", paste_twice)

    assert [event for event in shown if isinstance(event, ChatNotice)] == [
        ChatNotice("the clipboard holds no image, or no program here can read it; /attach FILE takes a file"),
        ChatNotice(f"attached to the next prompt: clipboard-1.png, {len(PIXEL)} bytes"),
    ]
    (prompt,) = served.prompts
    assert prompt.startswith("[{'text': 'hello', 'type': 'text'}")
    assert base64.b64encode(PIXEL).decode() in prompt
