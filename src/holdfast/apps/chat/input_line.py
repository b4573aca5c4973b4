"""The lower part of the terminal: the growing answer, what is going on, the input line, and the status below it.

The line stays open for the whole chat, so no keystroke is lost. Finished output is written above it in one update of
the screen, so that nothing flickers. Enter submits; Alt-Enter, or a backslash before Enter, starts a new line. The user
answers a question with a word and Enter, never with a single key, so that a user who is still typing does not agree by
accident. Afterwards the line shows the earlier text again. Esc and Ctrl-C stop the running action; if there is none,
Ctrl-C clears the line and saves its text in the history. Ctrl-D on an empty line leaves.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from prompt_toolkit import Application
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Always, Condition, has_completions, is_searching
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, Dimension, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output import ColorDepth, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.search import accept_search, stop_search
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

from holdfast.apps.chat.pastes import PastedTexts
from holdfast.apps.chat.plain_screen import survive_closed_terminal
from holdfast.stores.files import create_private_file

PROMPT_MARK = "› "
MAX_KEPT_PROMPT_CHARS = 1_000
"""A longer text is a paste, which the file of the prompt history does not keep."""
MAX_UNDO_CHARS = 10_000_000
"""How long the earlier texts of the line that Ctrl-_ brings back may be together."""
MAX_MENU_ROWS = 8
MAX_FILE_WORD_CHARS = 1_000
KEY_SEQUENCE_SECONDS = 0.05
"""How long a lone Esc waits for a second key."""
ANIMATION_SECONDS, IDLE_REFRESH_SECONDS = 0.12, 0.5
BEGIN_SCREEN_UPDATE, END_SCREEN_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know these draw everything between them at once; the others ignore them."""
PROMPT_STYLE = Style.from_dict(
    {
        "status": "fg:ansibrightblack",
        "activity": "fg:ansicyan",
        "mark": "bold",
        "asked": "bold",
        "completion-menu": "noreverse bg:default fg:default",
        "completion-menu.completion": "noreverse bg:default fg:default",
        "completion-menu.completion.current": "reverse bg:default fg:default",
        "completion-menu.meta.completion": "noreverse bg:default fg:ansibrightblack",
        "completion-menu.meta.completion.current": "noreverse bg:default fg:default",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "reverse",
    }
)
CompletionSource = Callable[[str], Iterable[tuple[str, str]]]
"""Returns completions, each with its meaning: of a line that is a command, or of a word that names a file."""
ATTACH_COMMAND = "/attach "
_MENTIONED_FILE = re.compile(r"(?:^|\s)(@(?:\"[^\"\n]*|[^\s\"]*))\Z")


@dataclass(slots=True)
class _Question:
    """A question that interrupts the user's typing; its text is already on the screen."""

    answers: Mapping[str, str]
    """The answers by letter; empty if the user edits a text."""
    answer: "asyncio.Future[str | None]"
    typed: Document
    """The text of the line before the question."""
    rejected: str = ""
    """What the user typed last, if it is none of the answers."""


class _InputCompleter(Completer):
    def __init__(self, commands: CompletionSource, files: CompletionSource) -> None:
        self._commands = commands
        self._files = files

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        text = document.text_before_cursor
        if (file := _file_word(text)) is not None:
            replaced, found = file, self._files(file)
        elif text.startswith("/") and "\n" not in text:
            name, space, arguments = text.partition(" ")
            replaced, found = arguments if space else name, self._commands(text)
        else:
            return
        for word, meaning in found:
            yield Completion(word, start_position=-len(replaced), display_meta=meaning)

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion]:
        # A folder may hold very many files.
        if _file_word(document.text_before_cursor) is not None:
            found = await asyncio.to_thread(lambda: list(self.get_completions(document, complete_event)))
        else:
            found = list(self.get_completions(document, complete_event))
        for one in found:
            yield one


def _file_word(text: str) -> str | None:
    """Return the end of a text that names a file: `@name`, `@"a name` or what follows /attach; None if it is none."""
    line = text.rpartition("\n")[2]
    if mentioned := _MENTIONED_FILE.search(line[-MAX_FILE_WORD_CHARS:]):
        return mentioned[1]
    return text.removeprefix(ATTACH_COMMAND) if text.startswith(ATTACH_COMMAND) and line == text else None


class PromptHistory(FileHistory):
    """Keeps what the user typed, and no large pastes: those belong to a conversation and are deleted with it.

    Where the file cannot be written, on a full disk or in a read-only home, the history lasts as long as the program.
    """

    def __init__(self, path: Path) -> None:
        with suppress(OSError):
            create_private_file(path)
        super().__init__(path)

    def is_stored(self, string: str) -> bool:
        """Return whether the file has a text."""
        with suppress(OSError):
            return string in self.load_history_strings()
        return False

    def store_string(self, string: str) -> None:
        """Write a text to the file, unless it is a paste."""
        if len(string) <= MAX_KEPT_PROMPT_CHARS:
            with suppress(OSError):
                super().store_string(string)


class TerminalOutput(Vt100_Output):
    """Output that the terminal receives in whole updates of the screen."""

    _is_held = False

    def flush(self) -> None:
        """Send what was written, unless it is part of an update."""
        if not self._is_held:
            with survive_closed_terminal():
                super().flush()

    def erase_down(self) -> None:
        """Erase from the cursor, which is at the left edge, to the end of the screen.

        If the cursor is in the upper left corner, tmux takes that for a clear, and keeps the erased lines in its
        history. So the first line is erased by itself, and the rest from its second column.
        """
        self.write_raw("\x1b[2K\x1b[C\x1b[J\x1b[D")

    @contextmanager
    def one_update(self) -> Generator[None]:
        """Hold back what is written within, and send it as one update of the screen."""
        self._is_held = True
        self.write_raw(BEGIN_SCREEN_UPDATE)
        try:
            yield
        finally:
            self.write_raw(END_SCREEN_UPDATE)
            self._is_held = False
            self.flush()


def open_terminal_output() -> TerminalOutput:
    """Return the output to the terminal, which is never asked where its cursor is: the layout does not depend on it."""
    output = cast("TerminalOutput", TerminalOutput.from_pty(sys.stdout, term=os.environ.get("TERM")))
    output.enable_cpr = False
    return output


class _ChatApplication(Application[None]):
    """Draws the lower part of the terminal, and draws it again where it was when the window becomes narrower."""

    def _on_resize(self) -> None:
        # A narrower terminal breaks the lines that no longer fit, which moves the cursor down; xterm cuts them off.
        screen = self.renderer.last_rendered_screen
        if screen is not None and "XTERM_VERSION" not in os.environ:
            columns = max(1, self.output.get_size().columns)
            cursor = screen.get_cursor_position(self.layout.current_window)
            rows = (screen.data_buffer[row].items() for row in range(cursor.y))
            last_columns = [max((column for column, cell in row if cell.char != " "), default=0) for row in rows]
            self.output.cursor_up(sum(last // columns for last in last_columns) + cursor.x // columns)
        super()._on_resize()


class _LineBuffer(Buffer):
    """A text that keeps its latest earlier states, so that a paste that a terminal types key by key fits in memory.

    prompt_toolkit keeps the whole text for each key that was typed.
    """

    def save_to_undo_stack(self, clear_redo_stack: bool = True) -> None:  # noqa: FBT001, FBT002 - as the buffer has it
        super().save_to_undo_stack(clear_redo_stack)
        # The latest texts are about as long as this one.
        del self._undo_stack[: -max(1, MAX_UNDO_CHARS // max(1, len(self.text)))]


class InputLine:
    """Reads what the user types, and owns the terminal."""

    def __init__(
        self,
        *,
        history: Path,
        commands: CompletionSource,
        files: CompletionSource,
        above: Callable[[], str],
        activity: Callable[[], str],
        below: Callable[[], str],
        has_color: bool,
    ) -> None:
        """`above` and `below` return the text around the line, `activity` what the user waits for, if anything."""
        self._activity, self._below = activity, below
        self.interrupt: Callable[[], bool] = lambda: False
        """Stops the running turn or compaction; returns whether there was one."""
        self.idle_interrupt: Callable[[], None] = lambda: None
        """Called on Ctrl-C if nothing runs and the line is empty."""
        self.attach_clipboard: Callable[[], None] = lambda: None
        """Attaches the image of the clipboard to the next prompt."""
        self.image_word: Callable[[str], str | None] = lambda _: None
        """Returns the word that attaches an image, if a pasted text is the path of one."""
        self.pastes = PastedTexts()
        self._question: _Question | None = None
        self.is_drawn = asyncio.Event()
        """Set when the line is on the screen."""
        self._submitted: asyncio.Queue[str | None] = asyncio.Queue()
        self._app_task: asyncio.Task[None] | None = None
        self.history = PromptHistory(history)
        self._buffer = _LineBuffer(
            history=self.history,
            completer=_InputCompleter(commands, files),
            complete_while_typing=True,
            multiline=True,
            on_completions_changed=self._select_awaited_completion,
            on_text_changed=self._forget_awaited_completion,
        )
        self._awaits_completion = False
        """Whether Tab was pressed before there were completions."""
        self._output = create_output() if sys.platform == "win32" else open_terminal_output()
        self._app = self._build_app(above, activity, below, has_color=has_color)
        self._app.after_render += self._mark_drawn
        # A lone Esc must stop the answer at once.
        self._app.timeoutlen = self._app.ttimeoutlen = KEY_SEQUENCE_SECONDS

    def _build_app(
        self, above: Callable[[], str], activity: Callable[[], str], below: Callable[[], str], *, has_color: bool
    ) -> _ChatApplication:
        output = self._output
        search = SearchToolbar(ignore_case=True)
        line = Window(
            BufferControl(self._buffer, search_buffer_control=search.control, preview_search=True),
            wrap_lines=True,
            dont_extend_height=True,
            height=lambda: Dimension(min=1, max=max(1, output.get_size().rows // 2)),
            get_line_prefix=lambda number, wraps: (
                [("class:mark", PROMPT_MARK)] if not (number or wraps) else [("", " " * len(PROMPT_MARK))]
            ),
        )
        answer = Window(FormattedTextControl(lambda: ANSI(above())), dont_extend_height=True)
        waiting = Window(FormattedTextControl(lambda: [("class:activity", activity())]), height=1)
        menu = CompletionsMenu(max_height=MAX_MENU_ROWS)
        # Else the menu keeps its rows when fewer completions are left.
        cast("Window", menu.content).dont_extend_height = Always()
        asked = Window(FormattedTextControl(self._question_hint), dont_extend_height=True, wrap_lines=True)
        status = Window(FormattedTextControl(lambda: [("class:status", below())]), height=1)
        return _ChatApplication(
            layout=Layout(
                HSplit(
                    [
                        ConditionalContainer(answer, Condition(lambda: bool(above()))),
                        ConditionalContainer(waiting, Condition(lambda: bool(activity()))),
                        ConditionalContainer(asked, Condition(lambda: self._question is not None)),
                        line,
                        search,
                        ConditionalContainer(menu, has_completions),
                        status,
                        Window(),
                    ]
                ),
                focused_element=line,
            ),
            key_bindings=self._bindings(),
            style=PROMPT_STYLE,
            color_depth=None if has_color else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
            output=output,
        )

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        return max(1, self._app.output.get_size().columns)

    @property
    def rows(self) -> int:
        """The height of the terminal."""
        return max(1, self._app.output.get_size().rows)

    def _mark_drawn(self, _: Application[None]) -> None:
        self.is_drawn.set()

    async def read(self) -> str | None:
        """Return the next submitted text; None when the user leaves."""
        if self._app_task is None:
            self._app_task = asyncio.create_task(self._open())
        line = await self._submitted.get()
        if line is None:
            await self._app_task
            self._app_task = None
        return line

    async def _open(self) -> None:
        """Keep the line open until the user leaves."""
        animation = asyncio.create_task(self._animate())
        try:
            with suppress(EOFError):
                await self._app.run_async()
        finally:
            animation.cancel()
            self._submitted.put_nowait(None)

    async def _animate(self) -> None:
        drawn = ""
        while True:
            activity = self._activity()
            # Drawing moves the cursor, so nothing is drawn that has not changed.
            if (shown := activity + self._below()) != drawn:
                drawn = shown
                self.refresh()
            await asyncio.sleep(ANIMATION_SECONDS if activity else IDLE_REFRESH_SECONDS)

    def refresh(self) -> None:
        """Redraw the line and the text around it."""
        self._app.invalidate()

    def write_above(self, text: str) -> None:
        """Write finished lines above everything that can still change, in one update of the screen."""
        output, is_running = self._output, self._app.is_running
        with output.one_update() if isinstance(output, TerminalOutput) else nullcontext():
            if is_running:
                self._app.renderer.erase(leave_alternate_screen=False)
            output.write_raw(text.replace("\n", "\r\n"))
            if is_running:
                self._app.renderer.render(self._app, self._app.layout)
        output.flush()

    def close(self) -> None:
        """Close the line."""
        if self._app.is_running:
            self._app.exit(exception=EOFError)

    async def ask(self, answers: Mapping[str, str], text: str = "") -> str | None:
        """Return the answer, which the user types as a letter or in full; None if the user dismisses the question.

        Without `answers`, return `text` as the user has edited it. Only one question may wait at a time.
        """
        buffer = self._buffer
        with set_app(self._app):
            stop_search()
        self._question = current = _Question(answers, asyncio.get_running_loop().create_future(), buffer.document)
        buffer.document = Document(text)
        self.refresh()
        try:
            return await current.answer
        finally:
            self._question = None
            buffer.document = current.typed
            self.refresh()

    @property
    def is_asking(self) -> bool:
        """Whether a question waits for the user."""
        return self._question is not None

    def _question_hint(self) -> StyleAndTextTuples:
        if self._question is None:
            return []
        keys = "  ".join(f"[{key}] {answer}" for key, answer in self._question.answers.items())
        rejected = f"“{self._question.rejected:.20}” is no answer: " if self._question.rejected else ""
        return [("class:asked", f"{rejected}{keys}, and Enter" if keys else "Enter accepts it, Ctrl-C rejects it")]

    def _resolve_question(self, answer: str | None) -> None:
        if self._question is not None and not self._question.answer.done():
            self._question.answer.set_result(answer)

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        has_menu = Condition(lambda: self._buffer.complete_state is not None)
        bindings.add("enter")(self._submit)
        # Before the terminal is in raw mode, the end of a line arrives as another key.
        bindings.add("c-j")(self._submit)
        bindings.add("escape", "enter")(self._insert_newline)
        bindings.add("escape", filter=has_menu)(self._close_menu)
        bindings.add("escape", filter=~has_menu)(self._stop)
        bindings.add("tab", filter=~is_searching)(self._complete)
        bindings.add("c-c")(self._interrupt_or_clear)
        bindings.add("c-d")(self._leave)
        bindings.add("c-z")(self._suspend)
        bindings.add("c-v")(self._paste_image)
        bindings.add(Keys.BracketedPaste)(self._paste)
        bindings.add(Keys.Vt100MouseEvent)(self._ignore_click)
        return bindings

    def _submit(self, event: KeyPressEvent) -> None:
        buffer = self._buffer
        if event.app.layout.is_searching:
            accept_search()
        elif self._question is not None:
            self._accept_answer(self._question, buffer)
        elif self._is_choosing(buffer):
            buffer.complete_state = None
        elif buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        elif buffer.text.strip():
            self._submitted.put_nowait(self.pastes.expand(buffer.text))
            buffer.append_to_history()
            buffer.reset()

    @staticmethod
    def _is_choosing(buffer: Buffer) -> bool:
        """Return whether Enter accepts a completion and the line goes on; a command is whole and is submitted."""
        state = buffer.complete_state
        is_whole_command = buffer.text.startswith("/") and not buffer.text.endswith("/")
        return state is not None and state.current_completion is not None and not is_whole_command

    def _insert_newline(self, event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    def _paste(self, event: KeyPressEvent) -> None:
        """Insert pasted text; a long one as a short mark, because the line could not show it."""
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(self.image_word(text) or self.pastes.shorten(text))

    def _ignore_click(self, _: KeyPressEvent) -> None:
        """Do nothing: the mouse is not used, but a color in text that a terminal pastes as keys looks like a click."""

    def _paste_image(self, _: KeyPressEvent) -> None:
        self.attach_clipboard()

    def _complete(self, _: KeyPressEvent) -> None:
        """Choose the next completion; if they are still looked for, the first one as soon as it is found."""
        state = self._buffer.complete_state
        if state is not None and state.completions:
            self._buffer.complete_next()
        else:
            self._awaits_completion = True
            self._buffer.start_completion()

    def _select_awaited_completion(self, buffer: Buffer) -> None:
        state = buffer.complete_state
        if self._awaits_completion and state is not None and state.completions:
            self._awaits_completion = False
            buffer.go_to_completion(0)

    def _forget_awaited_completion(self, _: Buffer) -> None:
        self._awaits_completion = False

    def _close_menu(self, _: KeyPressEvent) -> None:
        self._buffer.cancel_completion()

    def _stop(self, _: KeyPressEvent) -> None:
        if not self._dismiss_question():
            self.interrupt()

    def _interrupt_or_clear(self, event: KeyPressEvent) -> None:
        if self._dismiss_question() or self.interrupt():
            return
        if event.app.layout.is_searching:
            stop_search()
        elif self._buffer.text:
            self._buffer.append_to_history()
            self._buffer.reset()
        else:
            self.idle_interrupt()

    def _dismiss_question(self) -> bool:
        """Leave a question without an answer, and return whether there was one; the turn that asks it stops too."""
        question = self._question
        if question is None:
            return False
        self._resolve_question(None)
        if question.answers:
            self.interrupt()
        return True

    def _leave(self, event: KeyPressEvent) -> None:
        if self._question is not None:
            self._resolve_question(None)
        elif event.app.layout.is_searching:
            stop_search()
        elif not self._buffer.text:
            event.app.exit(exception=EOFError)

    @staticmethod
    def _suspend(event: KeyPressEvent) -> None:
        """Stop this program and those that it has started, until the shell's `fg`; does nothing where none can."""
        event.app.suspend_to_background()

    def _accept_answer(self, question: _Question, buffer: Buffer) -> None:
        """Accept the line as the answer if it is valid; else keep its text for later."""
        text = buffer.text.strip().lower()
        if not question.answers:
            self._resolve_question(buffer.text)
        elif text in question.answers or text in question.answers.values():
            self._resolve_question(question.answers.get(text, text))
        else:
            question.typed = Document(question.typed.text + buffer.text)
            question.rejected = buffer.text.strip()
            buffer.reset()
