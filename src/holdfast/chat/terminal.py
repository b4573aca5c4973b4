"""The chat in a terminal: the answer grows above, the line below can be edited all the while.

Finished blocks of Markdown are printed for good; the block that is still being written stands above the line until it
is whole. What is typed while a turn runs is queued, and everything typed is in the history file: nothing is ever lost.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.table import Table as Columns
from rich.text import Text

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
from holdfast.chat.plain import one_line, safe

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
        self._console = Console(no_color=not has_colour, highlight=False)
        self.line = Line(
            history=history,
            suggest=self._suggested,
            above=self._unfinished,
            below=self._status,
            stop=self._stopped,
            has_colour=has_colour,
        )

    def _stopped(self) -> bool:
        return self.stop()

    def attach(self, chat: Chat) -> None:
        """Show the state of a chat."""
        self._chat = chat

    def said(self, text: str) -> None:
        """Show what the person said, where it stays."""
        lines = safe(text).splitlines()
        more = [f"… {len(lines) - LIVE_LINES:,} more lines"] if len(lines) > LIVE_LINES else []
        self._print(Text(MARK + "\n  ".join([*lines[:LIVE_LINES], *more]), style="bold"))

    def show(self, happening: Happening) -> None:
        """Show what happened."""
        if isinstance(happening, Words):
            self._busy = ""
            self._words += happening.text
            whole, self._words = whole_blocks(self._words)
            if whole.strip():
                self._print(Markdown(safe(whole)))
        elif isinstance(happening, Thoughts):
            self._busy = THINKING
        else:
            self._flush()
            for renderable in self._rendered(happening):
                self._print(renderable)
        self.line.refresh()

    def busy(self, what: str) -> None:
        """Show what is being waited for."""
        self._busy = what
        self.line.refresh()

    async def consent(self, question: str, *, has_always: bool = False) -> Consent:
        """Ask by one key."""
        answers = {"y": "yes", **({"a": "always"} if has_always else {}), "n": "no"}
        answer = await self.line.ask(one_line(question, 500), answers)
        return CONSENTS.get(answer or "no", "no")

    async def edited(self, question: str, text: str) -> str | None:
        """Let the person edit a text on the line."""
        return await self.line.edit(question, text)

    @staticmethod
    def _rendered(happening: Happening) -> Iterator[RenderableType]:
        match happening:
            case CallBegan(tool=tool, arguments=arguments):
                yield Text(f"⚙ {tool} {one_line(arguments)}", style="cyan")
            case CallEnded(result=result, is_error=is_error):
                yield Text(f"  {'✗' if is_error else '✓'} {one_line(result)}", style="red" if is_error else "dim")
            case Notice(text, level):
                yield Text(safe(text), style=STYLES[level])
            case Told(text):
                yield Markdown(safe(text))
            case Table():
                columns = Columns(*happening.columns, title=happening.title or None, box=None, header_style="bold")
                for row in happening.rows:
                    columns.add_row(*(Text(safe(cell)) for cell in row))
                yield columns
            case _:
                return

    def _flush(self) -> None:
        """Print what is left of the answer."""
        rest, self._words = self._words, ""
        if rest.strip():
            self._print(Markdown(safe(rest)))

    def _print(self, renderable: RenderableType) -> None:
        self._console.print(renderable)

    def _unfinished(self) -> str:
        """Return the end of the block that is being written, wrapped: what stands above the line is not."""
        width = max(1, shutil.get_terminal_size().columns - 1)
        text = Text(safe(self._words[-LIVE_LINES * width :]).strip("\n"))
        lines = [line.plain.rstrip() for line in text.wrap(self._console, width)] if text.plain else []
        return "\n".join(lines[-LIVE_LINES:])

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
