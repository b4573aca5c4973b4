"""The chat in a terminal: the answer grows above an input line that stays editable.

Finished blocks of Markdown are printed permanently. The unfinished block is redrawn above the line until it is
complete. A status below the line says how full the context is. Lines that the user submits during a turn are queued
and saved in the history file.
"""

import re
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.apps.chat.chat import Chat, ChatStatus
from holdfast.apps.chat.dispatch import SLASH_COMMANDS
from holdfast.apps.chat.events import (
    ChatEvent,
    ChatNotice,
    CommandReply,
    CommandTable,
    Consent,
    ConversationCompacted,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from holdfast.apps.chat.input_line import PROMPT_MARK, InputLine
from holdfast.apps.chat.plain_screen import preview_line
from holdfast.session.compaction.compactor import COMPACTING_TEXT
from holdfast.text import pluralize

if TYPE_CHECKING:
    from holdfast.apps.chat.markdown import MarkdownPrinter

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_LIST_LINE = re.compile(r"^\s*([-*+]|\d{1,9}[.)])\s|^\s+\S")
"""A line of a list, or one that is indented and may belong to one."""


def split_finished_blocks(text: str) -> tuple[str, str]:
    """Return the part that can be printed permanently, and the rest.

    A block ends at an empty line outside a code fence. Later text does not change how it is rendered, except for lists,
    which continue over empty lines.
    """
    end, fence, is_list, offset = 0, "", False, 0
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        marked = _FENCE.match(line)
        if fence:
            fence = "" if marked and marked[1].startswith(fence) and not line.strip(" `~\n") else fence
        elif marked:
            fence = marked[1]
        elif not line.strip():
            following = lines[number + 1] if number + 1 < len(lines) else ""
            if following.strip() and following.endswith("\n") and not (is_list and _LIST_LINE.match(following)):
                end = offset + len(line)
                is_list = False
        elif _LIST_LINE.match(line):
            is_list = True
        offset += len(line)
    return text[:end], text[end:]


PROVENANCE_MARKS = {"reported": "", "counted": "", "calibrated": "≈", "estimated": "~"}
"""The mark for how exact a token count is: reported or counted with the vocabulary, calibrated, or estimated."""


def render_status_line(status: ChatStatus, *, busy: str = "", queued: int = 0, width: int = 80) -> str:
    """Return the status on one line, the most important part first, cut to the width."""
    share = status.tokens / max(1, status.budget)
    mark = PROVENANCE_MARKS.get(status.provenance, "~") if status.tokens else ""
    counts, percent = f"{mark}{status.tokens:,}/{status.budget:,}", f"{share:.0%}"
    forms = (f"{counts} tokens ({percent})", f"{counts} ({percent})", f"{percent} full", percent)
    parts = [next((form for form in forms if len(form) <= width), percent)]
    if busy or status.is_compacting:
        parts.insert(0, busy or COMPACTING_TEXT)
    if queued:
        parts.append(f"{queued} queued")
    parts.append(status.model)
    if status.compactions:
        parts.append(pluralize(status.compactions, "compaction"))
    if status.provenance:
        parts.append(status.provenance)
    if status.cost is not None:
        parts.append(f"${status.cost:.4f}")
    line = ""
    for part in parts:
        longer = f"{line} · {part}" if line else part
        if len(longer) > width:
            break
        line = longer
    return line or parts[0][: max(0, width)]


NOTICE_STYLES = {"info": "dim", "warning": "yellow", "error": "red"}
MAX_LIVE_LINES = 12
"""How many lines of an unfinished block or a long prompt are displayed."""
CONSENT_ANSWERS: dict[str, Consent] = {"yes": "yes", "always": "always", "no": "no"}
THINKING_STATUS = "thinking …"


class TerminalScreen:
    """A screen with an input line."""

    def __init__(self, history: Path, *, has_color: bool = True) -> None:
        self.queued_lines = 0
        self.chat: Chat | None = None
        """The chat whose status is displayed below the line."""
        self._unprinted_text = ""
        """The part of the answer that is not printed yet."""
        self._busy = ""
        self._has_color = has_color
        self.input_line = InputLine(
            history=history,
            completions=self._completions,
            above=self._unfinished_lines,
            below=self._status,
            has_color=has_color,
        )

    @cached_property
    def _printer(self) -> "MarkdownPrinter":
        from holdfast.apps.chat.markdown import MarkdownPrinter  # noqa: PLC0415 - the user can type before that

        return MarkdownPrinter(has_color=self._has_color)

    def show_prompt(self, text: str) -> None:
        """Print a prompt of the user permanently."""
        lines = text.splitlines()
        more = [f"… {len(lines) - MAX_LIVE_LINES:,} more lines"] if len(lines) > MAX_LIVE_LINES else []
        self._printer.print_text(PROMPT_MARK + "\n  ".join([*lines[:MAX_LIVE_LINES], *more]), "bold")

    def show(self, event: ChatEvent) -> None:
        """Show an event."""
        if isinstance(event, TextDelta):
            self._busy = ""
            self._unprinted_text += event.text
            whole, self._unprinted_text = split_finished_blocks(self._unprinted_text)
            if whole.strip():
                self._printer.print_markdown(whole)
        elif isinstance(event, ThinkingDelta):
            self._busy = THINKING_STATUS
        else:
            self._flush()
            self._show(event)
        self.input_line.refresh()

    def show_busy(self, what: str) -> None:
        """Show what the program is waiting for."""
        self._busy = what
        self.input_line.refresh()

    async def ask_consent(self, question: str, *, has_always: bool = False) -> Consent:
        """Print the question permanently, and ask for an answer."""
        self._flush()
        self._printer.print_text(question, "bold yellow")
        answers = {"y": "yes", **({"a": "always"} if has_always else {}), "n": "no"}
        answer = await self.input_line.ask(answers)
        return CONSENT_ANSWERS.get(answer or "no", "no")

    async def edit_text(self, question: str, text: str) -> str | None:
        """Let the user edit a text in the input line."""
        self._printer.print_text(question, "bold yellow")
        return await self.input_line.ask({}, text)

    def _show(self, event: ChatEvent) -> None:
        match event:
            case ToolCallStarted(tool=tool, arguments=arguments):
                self._printer.print_text(f"⚙ {tool} {preview_line(arguments)}", "cyan")
            case ToolCallFinished(result=result, is_error=is_error):
                self._printer.print_text(
                    f"  {'✗' if is_error else '✓'} {preview_line(result)}", "red" if is_error else "dim"
                )
            case ConversationCompacted():
                self._printer.print_text(f"─── {event} ───", "dim")
            case ChatNotice(text, level):
                self._printer.print_text(text, NOTICE_STYLES[level])
            case CommandReply(text):
                self._printer.print_markdown(text)
            case CommandTable():
                self._printer.print_table(event)
            case _:
                return

    def _flush(self) -> None:
        """Print the rest of the answer."""
        rest, self._unprinted_text = self._unprinted_text, ""
        if rest.strip():
            self._printer.print_markdown(rest)

    def _unfinished_lines(self) -> str:
        """Return the end of the unfinished block, wrapped, because the prompt does not wrap it."""
        if not self._unprinted_text:
            return ""
        width = max(1, shutil.get_terminal_size().columns - 1)
        return "\n".join(self._printer.wrap(self._unprinted_text[-MAX_LIVE_LINES * width :], width)[-MAX_LIVE_LINES:])

    def _status(self) -> str:
        if self.chat is None:
            return self._busy
        width = shutil.get_terminal_size().columns
        return render_status_line(self.chat.status, busy=self._busy, queued=self.queued_lines, width=width)

    def _completions(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield completions for a line that is a command."""
        if not text.startswith("/") or self.chat is None:
            return
        name, space, argument = text[1:].partition(" ")
        if not space:
            yield from (
                (f"/{command.name}", command.summary) for command in SLASH_COMMANDS if command.name.startswith(name)
            )
            return
        command = next((command for command in SLASH_COMMANDS if command.name == name or name in command.aliases), None)
        if command is not None and command.completes is not None:
            yield from ((word, "") for word in command.completes(self.chat) if word.startswith(argument))
