"""Screens without a person at a terminal: text for pipes and simple terminals, and JSON lines for programs.

The answer, and what a command answers, go to standard output; everything else to standard error. Nobody is there to be
asked, so nothing is allowed that was not allowed before.
"""

import json
import re
import sys
from dataclasses import asdict

from holdfast.chat.happenings import (
    CallBegan,
    CallEnded,
    Consent,
    Happening,
    Notice,
    Table,
    Thoughts,
    Told,
    TurnEnded,
    Words,
)
from holdfast.redaction import redacted

SHOWN_CHARS = 160
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of what follows."""


def safe(text: str) -> str:
    """Return a text that cannot steer a terminal: what a model or a tool said is shown, never obeyed."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, most: int = SHOWN_CHARS) -> str:
    """Return the beginning of a text on one line, without keys: what a screen shows ends up in the logs of others."""
    line = redacted(" ".join(safe(text).split())[: 8 * most])
    return line if len(line) <= most else line[: most - 1] + "…"


def columns(table: Table) -> str:
    """Return a table as aligned text."""
    rows = [table.columns, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return safe("\n".join([*([table.title] if table.title else []), *lines]))


class PlainScreen:
    """Writes text."""

    def __init__(self) -> None:
        self._is_open = False
        """Whether a line of the answer has not ended yet."""
        self._busy = ""

    def show(self, happening: Happening) -> None:
        """Write what happened."""
        match happening:
            case Words(text):
                self._put(safe(text))
            case Told(text):
                self._put(f"{safe(text)}\n")
            case Table():
                self._put(f"{columns(happening)}\n")
            case TurnEnded():
                self._close()
            case CallBegan(tool=tool, arguments=arguments):
                self._aside(f"· {tool} {one_line(arguments)}")
            case CallEnded(result=result, is_error=is_error):
                self._aside(f"  {'failed: ' if is_error else ''}{one_line(result)}")
            case Notice(text, level):
                self._aside(safe(text) if level == "info" else f"{level}: {safe(text)}")
            case Thoughts():
                return

    def busy(self, what: str) -> None:
        """Say once what is being waited for."""
        beginning = what.partition(":")[0]
        if beginning and beginning != self._busy:
            self._aside(f"{beginning} …")
        self._busy = beginning

    async def consent(self, question: str, *, has_always: bool = False) -> Consent:
        """Refuse: nobody can be asked."""
        del has_always
        self._aside(f"not allowed, because nobody can be asked: {one_line(question)}")
        return "no"

    async def edited(self, question: str, text: str) -> str | None:
        """Refuse: nobody can be asked."""
        del text
        self._aside(f"refused, because nobody can be asked: {one_line(question)}")

    def _put(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._is_open = not text.endswith("\n")

    def _close(self) -> None:
        if self._is_open:
            self._put("\n")

    def _aside(self, text: str) -> None:
        self._close()
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


NAMES = {
    Words: "text",
    Thoughts: "thinking",
    CallBegan: "tool_call",
    CallEnded: "tool_result",
    TurnEnded: "turn_end",
    Notice: "notice",
    Told: "answer",
    Table: "table",
}


class JsonScreen(PlainScreen):
    """Writes one JSON object a line: `event` says what happened."""

    def show(self, happening: Happening) -> None:
        """Write what happened."""
        self._line({"event": NAMES[type(happening)], **asdict(happening)})

    def busy(self, what: str) -> None:
        """Say what is being waited for."""
        self._line({"event": "busy", "what": what})

    def _aside(self, text: str) -> None:
        self._line({"event": "notice", "text": text, "level": "warning"})

    @staticmethod
    def _line(value: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
        sys.stdout.flush()
