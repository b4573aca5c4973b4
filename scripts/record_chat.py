"""Records a chat with the embedded model in a small terminal window and draws the last screen: docs/images/chat.svg.

python scripts/record_chat.py docs/images/chat.svg
"""

import argparse
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.text import Text

ROWS, COLUMNS = 30, 100
HEX_DIGITS = 6
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
TYPED_LINES = (
    "My boat is called Aurora, and she is moored at berth 7.",
    "What is a tide? Answer in two sentences.",
    "And a spring tide?",
    "What is a knot, at sea?",
    "What does a harbour pilot do?",
    "What is a breakwater for?",
    "Name three kinds of sails.",
    "What is the name of my boat?",
    "/context",
)


class TerminalRecording:
    """A terminal with scripted input."""

    def __init__(self, home: str) -> None:
        env = {**os.environ, "HOLDFAST_HOME": home, "HOLDFAST_N_CTX": "1024", "TERM": "xterm-256color"}
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self._child = pexpect.spawn(HOLDFAST, ["chat", "--model", "embedded"], env=env, dimensions=(ROWS, COLUMNS))

    def wait_until_still(self, seconds: float) -> None:
        """Wait until nothing has changed for a while."""
        shown, since = None, time.monotonic()
        while time.monotonic() - since < seconds:
            try:
                data = self._child.read_nonblocking(65_536, timeout=0.2)
            except pexpect.TIMEOUT:
                data = b""
            for _ in range(data.count(b"\x1b[6n")):
                self._child.send(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")
            self._stream.feed(data)
            if list(self.screen.display) != shown:
                shown, since = list(self.screen.display), time.monotonic()

    def type_line(self, text: str) -> None:
        """Type a line."""
        self._child.send(f"{text}\r")

    def close(self) -> None:
        """Leave."""
        self._child.close(force=True)


def render_svg(screen: pyte.Screen) -> str:
    """Return the screen as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for row in range(ROWS):
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
        recording = TerminalRecording(home)
        recording.wait_until_still(5)
        for text in TYPED_LINES:
            recording.type_line(text)
            recording.wait_until_still(12)
        args.output.write_text(render_svg(recording.screen))
        recording.close()


if __name__ == "__main__":
    main()
