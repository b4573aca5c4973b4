"""A model served over real HTTP, and a user at a real pseudo-terminal."""

import asyncio
import fcntl
import os
import signal
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import cast

import pexpect
import pyte
import pytest

from holdfast.testing.chat import JsonMessage
from holdfast.testing.endpoint import ReceivedRequest, ResponsePiece, ScriptedEndpoint, http_response, text_stream
from tests.programs import TIMEOUT_SECONDS, ForkedTerminal, open_terminal


def messages_of(request: ReceivedRequest) -> list[JsonMessage]:
    return cast("list[JsonMessage]", request.body["messages"])


class Served:
    """A model that answers from a script; without one it repeats the prompt."""

    def __init__(self) -> None:
        self.script: deque[Sequence[ResponsePiece]] = deque()
        self.listed_models: list[str] = []
        """The models that its endpoint lists."""
        self.answer: Callable[[str], str] = lambda prompt: f"you said: {prompt}"
        self._endpoint = ScriptedEndpoint(self._reply)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_up = threading.Event()

    def start(self) -> None:
        self._thread.start()
        assert self._is_up.wait(TIMEOUT_SECONDS)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(TIMEOUT_SECONDS)

    @property
    def model(self) -> str:
        return f"{self._endpoint.url}#served"

    @property
    def requests(self) -> list[ReceivedRequest]:
        """The requests for answers, with their headers."""
        return [request for request in self._endpoint.requests if request.line.startswith("POST")]

    @property
    def asked(self) -> list[list[JsonMessage]]:
        """The messages of each request."""
        return [messages_of(request) for request in self.requests]

    @property
    def tools(self) -> list[list[str]]:
        """The names of the tools of each request."""
        listed = [cast("list[JsonMessage]", request.body.get("tools", [])) for request in self.requests]
        return [[str(cast("JsonMessage", tool["function"])["name"]) for tool in tools] for tools in listed]

    @property
    def prompts(self) -> list[str]:
        """The last message of each request."""
        return [str(messages[-1]["content"]) for messages in self.asked]

    def _reply(self, request: ReceivedRequest) -> Sequence[ResponsePiece]:
        if request.line.startswith("GET"):
            return http_response(200, {"data": [{"id": name} for name in self.listed_models]})
        if self.script:
            return self.script.popleft()
        messages = messages_of(request)
        return text_stream(self.answer(str(messages[-1]["content"])), input_tokens=len(str(messages)) // 4)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._done = asyncio.Event()
        async with self._endpoint:
            self._is_up.set()
            await self._done.wait()


@pytest.fixture
def served() -> Iterator[Served]:
    model = Served()
    model.start()
    yield model
    model.stop()


CURSOR_QUESTION = b"\x1b[6n"


class Person:
    """A user who types, and reads the terminal."""

    def __init__(self, child: "pexpect.spawn[bytes] | ForkedTerminal", rows: int, columns: int) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=5_000)
        self._stream = pyte.ByteStream(self.screen)
        self._child = child
        self._above: list[tuple[object, str]] = []
        """The lines above the screen and their texts: a line that has left the screen changes no more."""
        self.written = bytearray()
        """Everything that the program has written."""

    def types(self, text: str) -> None:
        data = text.encode()
        while data:  # a signal ends a long write to a terminal early
            data = data[self._child.send(data) :]

    def says(self, text: str) -> None:
        self.types(text + "\r")

    def sees(self, *texts: str) -> None:
        """Wait until all texts are on the screen or above it."""
        self._until(lambda: all(text in self.text for text in texts), f"{texts} to be seen")

    def glimpses(self, text: str) -> None:
        """Wait until a text is on the screen, over which the program soon writes something else."""
        self._until(lambda: text in self.text, f"{text} to be seen", max_bytes=64)

    def waits(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition is true."""
        self._until(condition, what)

    def leaves(self) -> int:
        """Wait for the end, and return the exit code."""
        while True:
            try:
                self._feed(self._child.read_nonblocking(65_536, timeout=TIMEOUT_SECONDS))
            except pexpect.EOF:
                self._child.close()
                return -1 if self._child.exitstatus is None else self._child.exitstatus

    def resizes(self, rows: int, columns: int) -> None:
        """Give the window another size; like xterm, it cuts off what no longer fits."""
        fcntl.ioctl(self._child.child_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def ends(self) -> None:
        """Tell the program to end."""
        self._child.kill(signal.SIGTERM)

    def hangs_up(self) -> int:
        """Close the terminal, wait for the end of the program, and return its exit code."""
        self._child.close()
        return -1 if self._child.exitstatus is None else self._child.exitstatus

    def has_child(self, command: str) -> bool:
        """Return whether the program has started a command that still runs."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if path.read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode() == command:
                    return True
        return False

    def kills(self) -> None:
        self._child.kill(9)
        self.leaves()

    @property
    def text(self) -> str:
        """Everything on the screen and above it."""
        lines = list(self.screen.history.top)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1][0], zip(lines, self._above, strict=False)))
        self._above[same:] = [
            (line, "".join(line[column].data for column in range(self.screen.columns)).rstrip())
            for line in lines[same:]
        ]
        return "\n".join([*(text for _, text in self._above), *(line.rstrip() for line in self.screen.display)])

    def _until(self, condition: Callable[[], bool], what: str, *, max_bytes: int = 65_536) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited for {what}; the screen is:\n{self.text}")
            try:
                self._feed(self._child.read_nonblocking(max_bytes, timeout=0.1))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                raise AssertionError(f"it ended before {what}; the screen was:\n{self.text}") from None

    def _feed(self, data: bytes) -> None:
        # A terminal answers where its cursor is; prompt_toolkit asks, and a question may come in two pieces.
        for _ in range((self.written[1 - len(CURSOR_QUESTION) :] + data).count(CURSOR_QUESTION)):
            self._child.send(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")
        self.written += data
        self._stream.feed(data)

    def close(self) -> None:
        if self._child.isalive():
            self._child.kill(signal.SIGKILL)
            self._child.wait()
        self._child.close()


Sit = Callable[..., Person]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with an empty home."""
    ours = ("HOLDFAST_", "XDG_", "COLUMNS", "LINES", "NO_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "HOLDFAST_HOME": str(tmp_path / "home"), "TERM": "xterm-256color", "LANG": "C.UTF-8"}


@pytest.fixture
def sit(tmp_path: Path, env: dict[str, str], served: Served) -> Iterator[Sit]:
    """Start chats with the served model."""
    people: list[Person] = []
    folder = tmp_path / "folder"
    folder.mkdir()

    def down(*arguments: str, rows: int = 24, columns: int = 80, is_fresh: bool = False, **more: str) -> Person:
        model = () if any(argument == "--model" for argument in arguments) else ("--model", served.model)
        child = open_terminal(
            *("chat", *model, *arguments),
            env={**env, **more},
            folder=folder,
            rows=rows,
            columns=columns,
            is_fresh=is_fresh,
        )
        person = Person(child, rows, columns)
        people.append(person)
        return person

    yield down
    for person in people:
        person.close()
