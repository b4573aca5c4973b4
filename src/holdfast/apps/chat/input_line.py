"""The input line of the terminal: history, completion, several lines, and questions.

The line stays open for the whole chat, so no keystroke is lost. Enter submits; Alt-Enter starts a new line. The user
answers a question with a word and Enter, never with a single key, so that a user who is still typing does not agree by
accident. Afterwards the line shows the earlier text again. Ctrl-C stops the running action; if there is none, it clears
the line and saves its text in the history. Ctrl-D on an empty line leaves.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prompt_toolkit import Application, PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from holdfast.stores.files import create_private_file

PROMPT_MARK = "› "
MAX_KEPT_PROMPT_CHARS = 1_000
"""A longer text is a paste, which the file of the prompt history does not keep."""
PROMPT_STYLE = Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack", "mark": "bold", "asked": "bold"})
CompletionSource = Callable[[str], Iterable[tuple[str, str]]]
"""Returns completions for the last word of a line, each with its meaning."""


@dataclass(slots=True)
class _Question:
    """A question that interrupts the user's typing; its text is already on the screen."""

    answers: Mapping[str, str]
    """The answers by letter; empty if the user edits a text."""
    answer: "asyncio.Future[str | None]"
    typed: Document
    """The text of the line before the question."""


class _InputCompleter(Completer):
    def __init__(self, suggest: CompletionSource) -> None:
        self._suggest = suggest

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        text = document.text_before_cursor
        if "\n" not in text:
            last = text.rpartition(" ")[2]
            for word, meaning in self._suggest(text):
                yield Completion(word, start_position=-len(last), display_meta=meaning)


class PromptHistory(FileHistory):
    """Keeps what the user typed, and no large pastes: those belong to a conversation and are deleted with it."""

    def store_string(self, string: str) -> None:
        """Write a text to the file, unless it is a paste."""
        if len(string) <= MAX_KEPT_PROMPT_CHARS:
            super().store_string(string)


class InputLine:
    """Reads what the user types."""

    def __init__(
        self,
        *,
        history: Path,
        completions: CompletionSource,
        above: Callable[[], str],
        below: Callable[[], str],
        has_color: bool,
    ) -> None:
        """`above` and `below` return the text around the line."""
        create_private_file(history)
        self._above = above
        self.interrupt: Callable[[], bool] = lambda: False
        """Stops the running turn or compaction; returns whether there was one."""
        self._question: _Question | None = None
        self._question_lock = asyncio.Lock()
        self.is_drawn = asyncio.Event()
        """Set when the line is on the screen."""
        self._submitted: asyncio.Queue[str | None] = asyncio.Queue()
        self._prompt_task: asyncio.Task[None] | None = None
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            bottom_toolbar=below,
            history=PromptHistory(history),
            completer=_InputCompleter(completions),
            complete_while_typing=True,
            key_bindings=self._bindings(),
            multiline=True,
            prompt_continuation="  ",
            erase_when_done=True,
            style=PROMPT_STYLE,
            color_depth=None if has_color else ColorDepth.DEPTH_1_BIT,
            refresh_interval=0.5,
        )
        self._session.app.after_render += self._mark_drawn

    def _mark_drawn(self, _: Application[str]) -> None:
        self.is_drawn.set()

    async def read(self) -> str | None:
        """Return the next submitted text; None when the user leaves."""
        if self._prompt_task is None:
            self._prompt_task = asyncio.create_task(self._open())
        line = await self._submitted.get()
        if line is None:
            await self._prompt_task
            self._prompt_task = None
        return line

    async def _open(self) -> None:
        """Keep the line open until the user leaves."""
        try:
            with suppress(EOFError):
                await self._session.prompt_async()
        finally:
            self._submitted.put_nowait(None)

    def refresh(self) -> None:
        """Redraw the line and the text around it."""
        self._session.app.invalidate()

    def close(self) -> None:
        """Close the line."""
        if self._session.app.is_running:
            self._session.app.exit(exception=EOFError)

    async def ask(self, answers: Mapping[str, str], text: str = "") -> str | None:
        """Return the answer, which the user types as a letter or in full; None if the user dismisses the question.

        Without `answers`, return `text` as the user has edited it.
        """
        async with self._question_lock:
            buffer = self._session.default_buffer
            self._question = current = _Question(answers, asyncio.get_running_loop().create_future(), buffer.document)
            buffer.document = Document(text)
            self.refresh()
            try:
                return await current.answer
            finally:
                self._question = None
                buffer.document = current.typed
                self.refresh()

    def _message(self) -> StyleAndTextTuples:
        above = self._above()
        shown: StyleAndTextTuples = [("", f"{above}\n")] if above else []
        if self._question is not None:
            keys = "  ".join(f"[{key}] {answer}" for key, answer in self._question.answers.items())
            hint = f"{keys}, and Enter" if keys else "Enter accepts it, Ctrl-C rejects it"
            shown.append(("class:asked", f"{hint}\n"))
        return [*shown, ("class:mark", PROMPT_MARK)]

    def _resolve_question(self, answer: str | None) -> None:
        if self._question is not None and not self._question.answer.done():
            self._question.answer.set_result(answer)

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        bindings.add("enter")(self._submit)
        # Before the terminal is in raw mode, the end of a line arrives as another key.
        bindings.add("c-j")(self._submit)
        bindings.add("escape", "enter")(self._insert_newline)
        bindings.add("c-c")(self._interrupt_or_clear)
        bindings.add("c-d")(self._leave)
        return bindings

    def _submit(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if self._question is not None:
            self._accept_answer(self._question, buffer)
        elif buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif buffer.text.strip():
            self._submitted.put_nowait(buffer.text)
            buffer.append_to_history()
            buffer.reset()

    def _insert_newline(self, event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    def _interrupt_or_clear(self, event: KeyPressEvent) -> None:
        if self._question is not None:
            self._resolve_question(None)
        elif not self.interrupt() and event.current_buffer.text:
            event.current_buffer.append_to_history()
            event.current_buffer.reset()

    def _leave(self, event: KeyPressEvent) -> None:
        if self._question is not None:
            self._resolve_question(None)
        elif not event.current_buffer.text:
            event.app.exit(exception=EOFError)

    def _accept_answer(self, question: _Question, buffer: Buffer) -> None:
        """Accept the line as the answer if it is valid; else keep its text for later."""
        text = buffer.text.strip().lower()
        if not question.answers:
            self._resolve_question(buffer.text)
        elif text in question.answers or text in question.answers.values():
            self._resolve_question(question.answers.get(text, text))
        else:
            question.typed = Document(question.typed.text + buffer.text)
            buffer.reset()
