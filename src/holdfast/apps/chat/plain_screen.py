"""Screens without an interactive terminal: text for pipes and simple terminals, and JSON lines for programs.

Answers and the output of commands go to standard output, everything else to standard error. A user at a simple terminal
answers questions with a line. In a pipe there is nobody to ask, so every action is rejected that the settings do not
allow.
"""

import asyncio
import errno
import json
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from typing import cast

from holdfast.apps.chat.events import (
    ChangeProposed,
    ChatEvent,
    ChatNotice,
    CommandReply,
    CommandTable,
    Consent,
    ConversationCompacted,
    ConversationOpened,
    LostOutputError,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEnded,
)
from holdfast.core.conversation.json_values import finite_json
from holdfast.core.history.codec import EventRecord, to_record
from holdfast.core.history.events import Event
from holdfast.redaction import redact_text
from holdfast.session.subscription import event_name

MAX_LINE_PREVIEW_CHARS = 160
MAX_DIFF_LINES_SHOWN, MAX_DIFF_LINE_SHOWN_CHARS = 60, 400
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that change the direction of text."""


def replace_control_characters(text: str) -> str:
    """Return a text without control characters: output of a model or a tool must not control the terminal."""
    return _CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text)


@contextmanager
def survive_closed_terminal() -> Generator[None]:
    """Write to a terminal that may be gone: then drop this and all later output, so that the chat can end in order."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        os.close(nowhere)


def preview_line(text: str, max_chars: int = MAX_LINE_PREVIEW_CHARS) -> str:
    """Return the beginning of a text on one line, without secrets, because output ends up in logs."""
    line = redact_text(" ".join(replace_control_characters(text).split())[: 8 * max_chars])
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def clip_diff(diff: str) -> str:
    """Return as many lines of a diff as fit a screen."""
    lines = diff.split("\n")
    more = [f"… {len(lines) - MAX_DIFF_LINES_SHOWN:,} more lines"] if len(lines) > MAX_DIFF_LINES_SHOWN else []
    return "\n".join([*map(_clip_diff_line, lines[:MAX_DIFF_LINES_SHOWN]), *more])


def _clip_diff_line(line: str) -> str:
    """Return the beginning of a line; what is left out is named, because the user agrees to it, too."""
    rest = len(line) - MAX_DIFF_LINE_SHOWN_CHARS
    shown = replace_control_characters(line[:MAX_DIFF_LINE_SHOWN_CHARS])
    return f"{shown} … {rest:,} more characters" if rest > 0 else shown


def align_columns(table: CommandTable) -> str:
    """Return a table as aligned text."""
    rows = [table.columns, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return replace_control_characters("\n".join([*([table.title] if table.title else []), *lines]))


def _describe(event: ChangeProposed | ConversationCompacted) -> str:
    return f"--- {event}" if isinstance(event, ConversationCompacted) else clip_diff(event.diff)


@contextmanager
def _report_lost_output() -> Generator[None]:
    """Write to a pipe or a file; its errors end the program, and are not taken for those of a turn."""
    try:
        yield
    except BrokenPipeError:  # the reader has enough
        raise
    except OSError as error:
        raise LostOutputError(error.errno, error.strerror) from error


class TypedLines:
    """The lines of standard input, read by a daemon thread that does not keep the program alive."""

    def __init__(self) -> None:
        self._lines: deque[str | None] = deque()
        self._has_lines = asyncio.Event()
        self._thread: threading.Thread | None = None

    async def read(self) -> str | None:
        """Return the next line; None at the end of the input, as often as it is asked."""
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._read_all, args=(loop,), daemon=True)
            self._thread.start()
        while not self._lines:
            self._has_lines.clear()
            await self._has_lines.wait()
        line = self._lines[0]
        if line is not None:
            self._lines.popleft()
        return line

    @contextmanager
    def keep_earlier(self) -> Generator[None]:
        """Keep the lines that were typed before for later: they do not answer a question that comes now."""
        earlier = self._lines
        self._lines = deque([None] if None in earlier else [])  # nothing comes after the end of the input
        try:
            yield
        finally:
            self._lines.extendleft(reversed(earlier))

    def _read_all(self, loop: asyncio.AbstractEventLoop) -> None:
        line: str | None = ""
        while line is not None:
            try:
                line = sys.stdin.readline() or None
            except OSError:  # the terminal is gone
                line = None
            loop.call_soon_threadsafe(self._add, line)

    def _add(self, line: str | None) -> None:
        self._lines.append(line)
        self._has_lines.set()


class PlainScreen:
    """Writes events as text; a user who types `lines` answers questions."""

    def __init__(self, lines: TypedLines | None = None) -> None:
        self._lines = lines
        self._is_line_open = False
        """Whether a line of the answer has not ended yet."""
        self._busy = ""

    def show(self, event: ChatEvent) -> None:
        """Write an event."""
        match event:
            case TextDelta(text):
                self._write(replace_control_characters(text))
            case CommandReply(text):
                self._write(f"{replace_control_characters(text)}\n")
            case CommandTable():
                self._write(f"{align_columns(event)}\n")
            case TurnEnded():
                self._end_line()
            case ToolCallStarted(tool=tool, arguments=arguments):
                self._write_stderr(f"· {preview_line(tool)} {preview_line(arguments)}")
            case ToolCallFinished(result=result, is_error=is_error):
                self._write_stderr(f"  {'failed: ' if is_error else ''}{preview_line(result)}")
            case ChangeProposed() | ConversationCompacted():
                self._write_stderr(_describe(event))
            case ChatNotice(text, level):
                self._write_stderr(
                    replace_control_characters(text)
                    if level == "info"
                    else f"{level}: {replace_control_characters(text)}"
                )
            case ThinkingDelta() | ConversationOpened():
                return

    def show_busy(self, what: str) -> None:
        """Print once what the program is waiting for."""
        beginning = what.partition(":")[0]
        if beginning and beginning != self._busy:
            self._write_stderr(f"{beginning} …")
        self._busy = beginning

    async def ask_consent(self, question: str, *, has_always: bool = False) -> Consent:
        """Ask for a line; refuse if there is nobody who could type it."""
        if self._lines is None:
            self._write_stderr(f"not allowed, because there is no user to ask: {preview_line(question)}")
            return "no"
        answers: dict[str, Consent] = {"y": "yes", "yes": "yes", "n": "no", "no": "no"}
        if has_always:
            answers |= {"a": "always", "always": "always"}
        self._write_stderr(replace_control_characters(question))
        with self._lines.keep_earlier():
            while True:
                self._write_stderr(f"[y] yes  {'[a] always  ' if has_always else ''}[n] no, and Enter")
                line = await self._lines.read()
                if line is None:
                    return "no"
                if (answer := answers.get(line.strip().lower())) is not None:
                    return answer

    async def edit_text(self, question: str, text: str) -> str | None:
        """Refuse, because this screen cannot edit a text."""
        del text
        self._write_stderr(f"rejected, because there is no user to ask: {preview_line(question)}")

    def _write(self, text: str) -> None:
        with self._output():
            sys.stdout.write(text)
            sys.stdout.flush()
        self._is_line_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._is_line_open:
            self._write("\n")

    def _write_stderr(self, text: str) -> None:
        self._end_line()
        with self._output(), suppress(BrokenPipeError):  # the answer may have a reader nevertheless
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def _output(self) -> AbstractContextManager[None]:
        """Return the context to write in; an error of a pipe or a file ends the program."""
        return _report_lost_output() if self._lines is None else survive_closed_terminal()


CHAT_EVENT_NAMES = {
    TextDelta: "text",
    ThinkingDelta: "thinking",
    ToolCallStarted: "tool_call",
    ToolCallFinished: "tool_result",
    ChangeProposed: "change_proposed",
    TurnEnded: "turn_end",
    ConversationOpened: "session",
    ConversationCompacted: "compacted",
    ChatNotice: "notice",
    CommandReply: "answer",
    CommandTable: "table",
}


SHOWN_SESSION_EVENTS = ("session.", "delegation.", "context.", "provider.")
"""How the names of the log's events begin that a program gets; messages are shown while they are written."""


class JsonScreen(PlainScreen):
    """Writes one JSON object per line; its key `event` names the event."""

    def show(self, event: ChatEvent) -> None:
        """Write an event."""
        self._write_json({"event": CHAT_EVENT_NAMES[type(event)], **asdict(event)})

    def show_session_event(self, event: Event) -> None:
        """Write an event of the session's log under the name that it has there."""
        name = event_name(event)
        if name.startswith(SHOWN_SESSION_EVENTS):
            self._write_json({"event": name, **cast("EventRecord", to_record(event)["data"])})

    def show_busy(self, what: str) -> None:
        """Write what the program is waiting for."""
        self._write_json({"event": "busy", "what": what})

    def _write_stderr(self, text: str) -> None:
        self._write_json({"event": "notice", "text": text, "level": "warning"})

    @staticmethod
    def _write_json(value: dict[str, object]) -> None:
        with _report_lost_output():
            sys.stdout.write(json.dumps(finite_json(value), ensure_ascii=False) + "\n")
            sys.stdout.flush()
