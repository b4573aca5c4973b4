"""The chat in a terminal: the answer grows above an input line that stays editable.

Finished lines of Markdown are printed permanently. The unfinished ones are redrawn above the line until they are
complete. While the user waits, a line says for what, for how long, and how to stop it. A status below the line says how
full the context is. Lines that the user submits during a turn are queued and saved in the history file.
"""

import asyncio
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.apps.chat.chat import Activity, Chat, ChatStatus
from holdfast.apps.chat.dispatch import SLASH_COMMANDS
from holdfast.apps.chat.events import (
    ChangeProposed,
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
    TurnEnded,
)
from holdfast.apps.chat.input_line import PROMPT_MARK, InputLine
from holdfast.apps.chat.plain_screen import clip_diff, preview_line
from holdfast.session.compaction.compactor import COMPACTING_TEXT
from holdfast.text import pluralize

if TYPE_CHECKING:
    from holdfast.apps.chat.markdown import MarkdownRenderer, StreamedMarkdown

PROVENANCE_MARKS = {"reported": "", "counted": "", "calibrated": "≈", "estimated": "~"}
"""The mark for how exact a token count is: reported or counted with the vocabulary, calibrated, or estimated."""


SHORTENED_NEXT_TEXT = "the next request is shortened"


def render_status_line(status: ChatStatus, *, queued: int = 0, width: int = 80) -> str:
    """Return the status on one line, the most important part first, cut to the width."""
    if status.tokens is None:
        forms = (f"…/{status.budget:,} tokens", "…")
    else:
        mark = PROVENANCE_MARKS.get(status.provenance, "~") if status.tokens else ""
        counts, percent = f"{mark}{status.tokens:,}/{status.budget:,}", f"{status.tokens / max(1, status.budget):.0%}"
        forms = (f"{counts} tokens ({percent})", f"{counts} ({percent})", f"{percent} full", percent)
    parts = [next((form for form in forms if len(form) <= width), forms[-1])]
    if status.is_compacting:
        parts.insert(0, COMPACTING_TEXT)
    elif status.is_shortened_next:
        parts.append(SHORTENED_NEXT_TEXT)
    if queued:
        parts.append(f"{queued} queued")
    parts.append(status.model)
    if status.compactions:
        parts.append(pluralize(status.compactions, "compaction"))
    if status.provenance and status.tokens is not None:
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


SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPINNER_FRAME_SECONDS = 0.12
STOP_HINT = "Esc stops"


def render_activity(activity: Activity, now: float, width: int = 80) -> str:
    """Return what the user is waiting for, on one line: what, how long, how much, and how to stop it."""
    elapsed = max(0.0, now - activity.started)
    minutes, seconds = divmod(int(elapsed), 60)
    spent = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    frame = SPINNER[int(elapsed / SPINNER_FRAME_SECONDS) % len(SPINNER)]
    line = f"{frame} {activity.what}"
    for part in (spent, STOP_HINT):
        if len(longer := f"{line} · {part}") <= width:
            line = longer
    return line[: max(0, width)]


NOTICE_STYLES = {"info": "dim", "warning": "yellow", "error": "red"}
MAX_LIVE_LINES = 12
"""How many lines of an unfinished block or a long prompt are displayed."""
MIN_FIXED_ROWS = 5
"""The rows of a low window that the unfinished block leaves to the input line and the lines around it."""
MAX_PROMPT_LINE_CHARS = 2_000
UPDATE_SECONDS, RENDERING_SHARE = 0.05, 0.25
"""Pieces of an answer that arrive within this time are rendered together; on a slow machine, within a longer time, so
that rendering takes no larger share of it."""
CONSENT_ANSWERS: dict[str, Consent] = {"yes": "yes", "always": "always", "no": "no"}


class TerminalScreen:
    """A screen with an input line."""

    def __init__(self, history: Path, *, has_color: bool = True, background: str = "dark") -> None:
        self.queued_lines = 0
        self.chat: Chat
        """The chat whose status is displayed below the line."""
        self._busy: Activity | None = None
        self._question_lock = asyncio.Lock()
        """Held while a question is printed and waits, so that the user answers the last one that was printed."""
        self._open_calls: list[str] = []
        """The tool calls that run now, by id."""
        self._has_color = has_color
        self._background = background
        self._update: asyncio.TimerHandle | None = None
        """The next rendering of the answer."""
        self._rendering_seconds = 0.0
        """How long the last one took."""
        self.input_line = InputLine(
            history=history,
            commands=self._command_completions,
            files=self._file_completions,
            above=self._unfinished_lines,
            activity=self._activity,
            below=self._status,
            has_color=has_color,
        )

    @cached_property
    def _renderer(self) -> "MarkdownRenderer":
        from holdfast.apps.chat.markdown import MarkdownRenderer  # noqa: PLC0415 - the user can type before that

        return MarkdownRenderer(has_color=self._has_color, background=self._background)

    @cached_property
    def _answer(self) -> "StreamedMarkdown":
        from holdfast.apps.chat.markdown import StreamedMarkdown  # noqa: PLC0415 - as above

        return StreamedMarkdown(self._renderer)

    @property
    def _width(self) -> int:
        # A terminal that becomes narrower breaks lines that fill it.
        return max(1, self.input_line.columns - 1)

    def show_prompt(self, text: str) -> None:
        """Print a prompt of the user permanently."""
        lines = text.splitlines()
        more = [f"… {len(lines) - MAX_LIVE_LINES:,} more lines"] if len(lines) > MAX_LIVE_LINES else []
        shown = [line[:MAX_PROMPT_LINE_CHARS] for line in lines[:MAX_LIVE_LINES]]
        self._print(PROMPT_MARK + "\n  ".join([*shown, *more]), "bold")

    def show(self, event: ChatEvent) -> None:
        """Show an event."""
        match event:
            case TextDelta(text):
                self._busy = None
                self._answer.feed(text)
                if self._update is None:
                    delay = max(UPDATE_SECONDS, self._rendering_seconds / RENDERING_SHARE)
                    self._update = asyncio.get_running_loop().call_later(delay, self._show_answer)
            case CommandReply() | CommandTable():
                # The output of a command that runs beside an answer does not end the answer's paragraph.
                self._show(event)
            case ThinkingDelta():
                pass
            case _:
                self._flush()
                self._show(event)
        self.input_line.refresh()

    def show_busy(self, what: str) -> None:
        """Show what the program is waiting for."""
        started = self._busy.started if self._busy is not None else time.monotonic()
        self._busy = Activity(what, started) if what else None
        self.input_line.refresh()

    async def ask_consent(self, question: str, *, has_always: bool = False) -> Consent:
        """Print the question permanently, and ask for an answer."""
        answers = {"y": "yes", **({"a": "always"} if has_always else {}), "n": "no"}
        async with self._question_lock:
            self._flush()
            self._print(question, "bold yellow")
            answer = await self.input_line.ask(answers)
        return CONSENT_ANSWERS.get(answer or "no", "no")

    async def edit_text(self, question: str, text: str) -> str | None:
        """Let the user edit a text in the input line."""
        async with self._question_lock:
            self._print(question, "bold yellow")
            return await self.input_line.ask({}, text)

    def _show(self, event: ChatEvent) -> None:
        match event:
            case ToolCallStarted(tool=tool, arguments=arguments):
                self._open_calls.append(event.id)
                self._print(f"⚙ {preview_line(tool)} {preview_line(arguments)}", "cyan")
            case ToolCallFinished():
                self._show_result(event)
            case TurnEnded():
                self._open_calls.clear()
            case ChangeProposed(diff=diff):
                self.input_line.write_above(self._renderer.diff(clip_diff(diff), self._width))
            case ConversationCompacted():
                self._print(f"─── {event}; /undo reverts it ───", "dim")
            case ChatNotice(text, level):
                self._print(text, NOTICE_STYLES[level])
            case CommandReply(text):
                self.input_line.write_above(self._renderer.markdown(text, self._width))
            case CommandTable():
                self.input_line.write_above(self._renderer.table(event, self._width))
            case _:
                return

    def _show_result(self, event: ToolCallFinished) -> None:
        # If other calls run beside this one, the line above its result may belong to one of them.
        of_tool = f"{preview_line(event.tool)}: " if self._open_calls != [event.id] else ""
        self._open_calls = [one for one in self._open_calls if one != event.id]
        if event.tool == "update_todos" and not event.is_error:
            self._print("\n".join(f"  {line}" for line in event.result.splitlines()), "dim")
            return
        line = f"  {'✗' if event.is_error else '✓'} {of_tool}{preview_line(event.result)}"
        self._print(line, "red" if event.is_error else "dim")

    def _print(self, text: str, style: str) -> None:
        self.input_line.write_above(self._renderer.text(text, style, self._width))

    def _show_answer(self) -> None:
        """Print what is finished of the answer, and redraw the rest."""
        started, self._update = time.thread_time(), None
        rows = max(1, min(MAX_LIVE_LINES, self.input_line.rows - MIN_FIXED_ROWS))
        if finished := self._answer.take_finished(self._width, rows):
            self.input_line.write_above(finished)
        self._rendering_seconds = time.thread_time() - started
        self.input_line.refresh()

    def _flush(self) -> None:
        """Print the rest of the answer."""
        if self._update is not None:
            self._update.cancel()
            self._update = None
        if rest := self._answer.take_rest(self._width):
            self.input_line.write_above(rest)

    def _unfinished_lines(self) -> str:
        return "".join(self._answer.live_lines).rstrip("\n") if "_answer" in self.__dict__ else ""

    def _activity(self) -> str:
        """Return what the user is waiting for; nothing while a question waits for the user."""
        if self.input_line.is_asking:
            return ""
        activity = self._busy or self.chat.activity
        return render_activity(activity, time.monotonic(), self._width) if activity else ""

    def _status(self) -> str:
        return render_status_line(self.chat.status, queued=self.queued_lines, width=self._width)

    def _command_completions(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield completions for a line that is a command."""
        name, space, argument = text[1:].partition(" ")
        if not space:
            yield from (
                (f"/{command.name}", command.summary) for command in SLASH_COMMANDS if command.name.startswith(name)
            )
            return
        command = next((command for command in SLASH_COMMANDS if command.name == name or name in command.aliases), None)
        if command is not None and command.completes is not None:
            words = command.completes(self.chat)
            begun = [word for word in words if word.startswith(argument)]
            inside = [word for word in words if argument and argument in word and word not in begun]
            yield from ((word, "") for word in (*begun, *inside))

    def _file_completions(self, word: str) -> Iterator[tuple[str, str]]:
        """Yield the files of the folder whose names continue a word, in quotation marks where a prompt needs them."""
        mark = "@" if word.startswith("@") else ""
        for name in self.chat.file_tools.complete_path(word.removeprefix(mark).removeprefix('"')):
            end = "" if name.endswith("/") else '"'
            yield f'@"{name}{end}' if mark and " " in name else f"{mark}{name}", ""
