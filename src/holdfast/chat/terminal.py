"""The chat in a terminal: the answer grows above, the line below can be edited all the while.

Finished blocks of Markdown are printed for good; the block that is still being written stands above the line until it
is whole. What is typed while a turn runs is queued, and everything typed is in the history file: nothing is ever lost.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.chat.blocks import whole_blocks
from holdfast.chat.chat import Chat
from holdfast.chat.commands.every import COMMANDS
from holdfast.chat.happenings import (
    CallBegan,
    CallEnded,
    Consent,
    Happening,
    Notice,
    Table,
    Thoughts,
    Told,
    Words,
)
from holdfast.chat.line import MARK, Line
from holdfast.chat.meter import meter
from holdfast.chat.plain import one_line

if TYPE_CHECKING:
    from holdfast.chat.painting import Painter

STYLES = {"info": "dim", "warning": "yellow", "error": "red"}
LIVE_LINES = 12
"""How much of an unfinished block is shown, and of what was pasted."""
CONSENTS: dict[str, Consent] = {"yes": "yes", "always": "always", "no": "no"}
THINKING = "thinking …"


class Terminal:
    """A screen with a line to type on."""

    def __init__(self, history: Path, *, has_colour: bool = True) -> None:
        self.queued = 0
        self.stop: Callable[[], bool] = lambda: False
        """Stops what runs, and says whether anything did."""
        self._chat: Chat | None = None
        self._words = ""
        """What of the answer is not printed yet."""
        self._busy = ""
        self._has_colour = has_colour
        self.line = Line(
            history=history,
            suggest=self._suggested,
            above=self._unfinished,
            below=self._status,
            stop=self._stopped,
            has_colour=has_colour,
        )

    @cached_property
    def _paint(self) -> "Painter":
        from holdfast.chat.painting import Painter  # noqa: PLC0415 - a person can type before that is loaded

        return Painter(has_colour=self._has_colour)

    def _stopped(self) -> bool:
        return self.stop()

    def attach(self, chat: Chat) -> None:
        """Show the state of a chat."""
        self._chat = chat

    def said(self, text: str) -> None:
        """Show what the person said, where it stays."""
        lines = text.splitlines()
        more = [f"… {len(lines) - LIVE_LINES:,} more lines"] if len(lines) > LIVE_LINES else []
        self._paint.text(MARK + "\n  ".join([*lines[:LIVE_LINES], *more]), "bold")

    def show(self, happening: Happening) -> None:
        """Show what happened."""
        if isinstance(happening, Words):
            self._busy = ""
            self._words += happening.text
            whole, self._words = whole_blocks(self._words)
            if whole.strip():
                self._paint.markdown(whole)
        elif isinstance(happening, Thoughts):
            self._busy = THINKING
        else:
            self._flush()
            self._show(happening)
        self.line.refresh()

    def busy(self, what: str) -> None:
        """Show what is being waited for."""
        self._busy = what
        self.line.refresh()

    async def consent(self, question: str, *, has_always: bool = False) -> Consent:
        """Show all that is asked about, where it stays, and ask for a word."""
        self._flush()
        self._paint.text(question, "bold yellow")
        answers = {"y": "yes", **({"a": "always"} if has_always else {}), "n": "no"}
        answer = await self.line.ask("", answers)
        return CONSENTS.get(answer or "no", "no")

    async def edited(self, question: str, text: str) -> str | None:
        """Let the person edit a text on the line."""
        self._paint.text(question, "bold yellow")
        return await self.line.edit("", text)

    def _show(self, happening: Happening) -> None:
        match happening:
            case CallBegan(tool=tool, arguments=arguments):
                self._paint.text(f"⚙ {tool} {one_line(arguments)}", "cyan")
            case CallEnded(result=result, is_error=is_error):
                self._paint.text(f"  {'✗' if is_error else '✓'} {one_line(result)}", "red" if is_error else "dim")
            case Notice(text, level):
                self._paint.text(text, STYLES[level])
            case Told(text):
                self._paint.markdown(text)
            case Table():
                self._paint.table(happening)
            case _:
                return

    def _flush(self) -> None:
        """Print what is left of the answer."""
        rest, self._words = self._words, ""
        if rest.strip():
            self._paint.markdown(rest)

    def _unfinished(self) -> str:
        """Return the end of the block that is being written, wrapped: what stands above the line is not."""
        if not self._words:
            return ""
        width = max(1, shutil.get_terminal_size().columns - 1)
        return "\n".join(self._paint.wrapped(self._words[-LIVE_LINES * width :], width)[-LIVE_LINES:])

    def _status(self) -> str:
        if self._chat is None:
            return self._busy
        width = shutil.get_terminal_size().columns
        return meter(self._chat.status, busy=self._busy, queued=self.queued, width=width)

    def _suggested(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield what may follow on a line that is a command."""
        if not text.startswith("/") or self._chat is None:
            return
        name, space, argument = text[1:].partition(" ")
        if not space:
            yield from ((f"/{command.name}", command.summary) for command in COMMANDS if command.name.startswith(name))
            return
        command = next((command for command in COMMANDS if command.name == name or name in command.aliases), None)
        if command is not None and command.completes is not None:
            yield from ((word, "") for word in command.completes(self._chat) if word.startswith(argument))
