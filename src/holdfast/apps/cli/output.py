"""How commands print results, warnings and progress, and what several of them read from their arguments."""

import argparse
import codecs
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.spans import position_ranges
from holdfast.errors import SettingsError
from holdfast.redaction import redact_text
from holdfast.session.log.event_log import now_ms
from holdfast.stores.base import SessionInfo

MAX_COUNT_DIGITS = 9
MAX_COLUMN_CHARS = 80
"""A longer cell is printed whole, and only its own row is wider for it."""
AGE_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


class ProgressCounter:
    """Shows a count: updated in place on a terminal after one second, elsewhere as a line from time to time."""

    def __init__(self, what: str, *, line_seconds: float = float("inf")) -> None:
        """`line_seconds` is the time between two lines without a terminal; by default none is written."""
        self._what = what
        self._is_line = not sys.stderr.isatty()
        self._pause = line_seconds if self._is_line else 0.2
        self._next = time.monotonic() + (line_seconds if self._is_line else 1)
        self._is_shown = False

    def __call__(self, count: int) -> None:
        """Show the count."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._pause
        if self._is_line:
            write_notice(f"{count:,} {self._what}")
        else:
            self._is_shown = True
            write_notice(f"\r{count:,} {self._what}", end="")

    def done(self) -> None:
        """Clear the line."""
        if self._is_shown:
            write_notice("\r\x1b[K", end="")


def write_notice(text: str, *, end: str = "\n") -> None:
    """Write to standard error. If nobody reads that, the command goes on, and ends with its own exit code."""
    with suppress(BrokenPipeError):
        print(text, end=end, file=sys.stderr, flush=True)


def warn(problem: str) -> None:
    """Print a problem to standard error, as one line."""
    write_notice(f"holdfast: {redact_text(escape_line(problem))}")


def confirm(args: argparse.Namespace, question: str) -> None:
    """Ask the user before something is deleted; raise unless the user agrees."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError("--yes", f"{question} there is no terminal to ask; pass --yes to agree")
    write_notice(f"{question} [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise KeyboardInterrupt


def print_result(args: argparse.Namespace, text: str, result: Mapping[str, object]) -> None:
    """Print the result of a command: text for people, or JSON for programs."""
    if args.json:
        print_json(result)
    else:
        print(text)


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under titles, in columns."""
    cells = [[escape_line(cell) for cell in row] for row in [titles, *rows]]
    widths = [min(MAX_COLUMN_CHARS, max(map(len, column))) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def render_for_terminal(message: Message, number: int, speaker: str = "") -> str:
    """Return a message as text for people; `speaker` replaces its role if it is not empty."""
    texts = [message.text] if message.text else []
    texts += [f"→ {call.name}({call.arguments})" for call in message.calls]
    texts += [f"← {result.text}" for result in message.results]
    return "\n".join([f"{number} {speaker or message.role}", *map(indent_text, texts)])


def indent_text(text: str) -> str:
    """Return text of others with each line indented, so that none looks like a line of ours."""
    return "\n".join(f"  {line}" for line in escape_control_characters(text).split("\n"))


def escape_control_characters(text: str) -> str:
    """Return a text that cannot control a terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def escape_line(text: str) -> str:
    """Return a text, such as the id of a session, that can neither control a terminal nor begin a line of its own."""
    return escape_control_characters(text).replace("\n", "\\n")


def session_age(info: SessionInfo) -> str:
    """Return the time since the last change of a session."""
    age = max(0, now_ms() - info.updated_ms)
    return next((f"{age // unit} {name}" for unit, name in AGE_UNITS if age >= unit), "now")


def render_positions(positions: Sequence[int]) -> str:
    """Return positions as text, consecutive ones as ranges."""
    ranges = position_ranges(positions)
    return ", ".join(f"{one[0]}" if len(one) == 1 else f"{one[0]}–{one[-1]}" for one in ranges)


def configure_output(*, is_utf8: bool) -> None:
    """Configure the standard streams so that they never fail, whatever the encoding, even if one is closed.

    Bytes of the input that its encoding does not know become lone surrogates. A pipe that is said to be ASCII may hold
    UTF-8, and one of a Windows program may begin with a byte order mark.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as the program
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace", **({"encoding": "utf-8"} if is_utf8 else {}))
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:
        is_unicode = codecs.lookup(sys.stdin.encoding).name in {"ascii", "utf-8"}
        encoding = {"encoding": "utf-8-sig"} if is_unicode and not sys.stdin.isatty() else {}
        reconfigure(errors="surrogateescape", **encoding)


def typed_text(text: str) -> str:
    """Return an argument as the text that was typed; in an ASCII locale, the bytes of other characters are UTF-8.

    Paths stay as they are: the locale names the file.
    """
    try:
        return os.fsencode(text).decode()
    except UnicodeError:
        return text


def port_number(text: str) -> int:
    """Return a port that was given as an argument; 0 takes a free one."""
    if not text.isdecimal() or int(text) > 65_535:  # noqa: PLR2004 - the largest port
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, not {text!r}")
    return int(text)


def positive_number(text: str) -> int:
    """Return the number of an argument that counts something."""
    if not text.isdecimal() or len(text) > MAX_COUNT_DIGITS or int(text) < 1:
        largest = 10**MAX_COUNT_DIGITS - 1
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 to {largest:,}, not {text!r:.60}")
    return int(text)
