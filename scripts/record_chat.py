"""Records a chat in a terminal and draws its last screen: docs/images/chat.svg.

python scripts/record_chat.py docs/images/chat.svg

The model follows a script, on an endpoint of this machine, so that the picture is the same each time: it reads a file,
writes down its tasks, changes the file after asking, and the conversation is compacted.
"""

import argparse
import asyncio
import io
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.text import Text

from holdfast.testing.endpoint import ReceivedRequest, ResponsePiece, ScriptedEndpoint, text_stream, tool_call_stream

ROWS, COLUMNS = 46, 100
HEX_DIGITS = 6
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
NOTES = "".join(f"{hour:02d}:00 wind {hour % 7} from the west, all boats moored\n" for hour in range(24))
PROGRAM = "def height(hours):\n    return 2 * cos(hours)\n"
ANSWERS: Sequence[Sequence[ResponsePiece]] = (
    text_stream(
        "The log of the night is calm: **no boat moved**.\n\n- wind 0 to 6, always from the west\n- all moored\n"
    ),
    tool_call_stream(("read_file", {"path": "tides.py"})),
    tool_call_stream(
        (
            "update_todos",
            {
                "todos": [
                    {"task": "correct height()", "status": "in_progress"},
                    {"task": "run the tests", "status": "open"},
                ]
            },
        )
    ),
    tool_call_stream(
        ("edit_file", {"path": "tides.py", "old_text": "2 * cos(hours)", "new_text": "2.1 * cos(hours / 2)"})
    ),
    text_stream("`height` now has the *half-daily* tide:\n\n```python\nreturn 2.1 * cos(hours / 2)\n```\n"),
)
STEPS = (
    ("Is there anything unusual in @night.log?", 2.5),
    ("The tide in tides.py has the wrong period. Correct it.", 3.0),
    ("y", 2.5),
    ("/compact", 2.5),
    ("/context", 2.0),
)


class ScriptedProvider:
    """Serves the answers, one after the other, from a thread."""

    def __init__(self) -> None:
        self._answers = iter(ANSWERS)
        self._endpoint = ScriptedEndpoint(self._reply)
        self._is_up = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._is_up.wait()

    @property
    def url(self) -> str:
        """The address of the endpoint."""
        return self._endpoint.url

    def _reply(self, request: ReceivedRequest) -> Sequence[ResponsePiece]:
        if not request.body.get("stream"):
            return text_stream("")
        return next(self._answers, text_stream("That is all."))

    async def _serve(self) -> None:
        async with self._endpoint:
            self._is_up.set()
            await asyncio.Event().wait()


class TerminalRecording:
    """A terminal with scripted input."""

    def __init__(self, home: Path, url: str) -> None:
        folder = home / "harbor"
        folder.mkdir()
        (folder / "night.log").write_text(NOTES)
        (folder / "tides.py").write_text(PROGRAM)
        env = {**os.environ, "HOLDFAST_HOME": str(home / "home"), "TERM": "xterm-256color"}
        arguments = ["chat", "--base-url", url, "--model", "gpt-5", "--budget", "8000"]
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self._child = pexpect.spawn(
            HOLDFAST,
            arguments,
            env={**env, "HOLDFAST_SUMMARIZATION_MODEL": "none"},
            cwd=str(folder),
            dimensions=(ROWS, COLUMNS),
        )

    def wait_until_still(self, seconds: float) -> None:
        """Wait until nothing has changed for a while."""
        shown, since = None, time.monotonic()
        while time.monotonic() - since < seconds:
            with suppress(pexpect.TIMEOUT):
                self._stream.feed(self._child.read_nonblocking(65_536, timeout=0.2))
            if list(self.screen.display) != shown:
                shown, since = list(self.screen.display), time.monotonic()

    def type_line(self, text: str) -> None:
        """Type a line."""
        self._child.send(f"{text}\r")

    def close(self) -> None:
        """Leave."""
        self._child.send("\x04")
        self._child.expect(pexpect.EOF)
        self._child.close()


def render_svg(screen: pyte.Screen) -> str:
    """Return the screen as SVG, without the empty lines at its end."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    last = max(row for row in range(ROWS) if screen.display[row].strip())
    for row in range(last + 1):
        line = Text()
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            style = ("bold " if cell.bold else "") + ("" if cell.fg == "default" else _color(cell.fg))
            line.append(cell.data, style=style.strip() or None)
        line.rstrip()
        console.print(line)
    # The picture must load nothing from the network.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="holdfast chat"), flags=re.DOTALL)


def _color(name: str) -> str:
    named = {"brightblack": "bright_black", "brown": "yellow"}
    is_hex = len(name) == HEX_DIGITS and all(letter in "0123456789abcdef" for letter in name)
    return f"#{name}" if is_hex else named.get(name, name)


def main() -> None:
    """Record, and draw the last screen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        recording = TerminalRecording(Path(home), ScriptedProvider().url)
        recording.wait_until_still(4)
        for text, seconds in STEPS:
            recording.type_line(text)
            recording.wait_until_still(seconds)
        args.output.write_text(render_svg(recording.screen))
        print("\n".join(line.rstrip() for line in recording.screen.display))
        recording.close()


if __name__ == "__main__":
    main()
