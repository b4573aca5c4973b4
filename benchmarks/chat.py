"""A long working session in the chat: many tool calls in a small window.

    python -m benchmarks.chat [--calls 300] [--window 32000] [--json FILE]

A scripted provider on this machine lets the model of a chat read one file after the other, ten in each turn. It refuses
a request that is larger than the window, counted with the vocabulary of gpt-5, and one whose calls and results do not
match. Each file holds a fact. Measured are the refusals, the longest time for which the event loop of the chat was busy
without a pause (processor time, so that other programs on the machine do not count), and how many of the facts one
recall finds at the end.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.loop import count_orphans, overflow_reply, refusal_reply, request_tokens
from benchmarks.reporting import print_progress, save_figures, verdict
from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.events import ChatEvent, Consent
from holdfast.apps.settings.sources import load_settings
from holdfast.core.recall.query import RecallQuery
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.endpoint import ReceivedRequest, ResponsePiece, ScriptedEndpoint, text_stream, tool_call_stream

CALLS, WINDOW, CALLS_PER_TURN, FILE_LINES = 300, 32_000, 10, 60
MAX_PAUSE_SECONDS = 0.1
TICK_SECONDS = 0.002
RECALLED_TOKENS = 1_500


@dataclass(slots=True)
class ChatSessionFigures:
    """What one session showed."""

    calls: int
    window: int
    requests: int = 0
    refused: int = 0
    invalid: int = 0
    compactions: int = 0
    facts_found: int = 0
    longest_pause_ms: float = 0.0
    processor_seconds: float = 0.0


def fact_of(number: int) -> str:
    """Return the fact in a file."""
    return f"The berth of ship SV-{number:04d} is B{number * 7919 % 100_000:05d}."


def write_files(folder: Path, count: int) -> None:
    """Write files with a fact each."""
    for number in range(count):
        lines = [f"{line:03d} log of ship {number}: wind {line % 9}, all well" for line in range(FILE_LINES)]
        lines[number % FILE_LINES] = fact_of(number)
        (folder / f"ship-{number}.txt").write_text("\n".join(lines))


class QuietScreen:
    """A screen for a user who agrees to everything."""

    def show(self, event: ChatEvent) -> None:
        """Ignore an event."""

    def show_busy(self, what: str) -> None:
        """Ignore what the program is waiting for."""

    async def ask_consent(self, question: str, *, has_always: bool = False) -> Consent:
        """Agree."""
        del question, has_always
        return "yes"

    async def edit_text(self, question: str, text: str) -> str | None:
        """Accept."""
        del question
        return text


class Provider:
    """Lets the model read the files in their order, and refuses what is too long or not valid."""

    def __init__(self, figures: ChatSessionFigures) -> None:
        self._figures = figures
        self._read = 0

    def reply(self, received: ReceivedRequest) -> Sequence[ResponsePiece]:
        """Return the answer to a request."""
        messages: Any = received.body["messages"]
        figures, tokens = self._figures, request_tokens(messages, received.body.get("tools"))
        figures.requests += 1
        if count_orphans(messages):
            figures.invalid += 1
            return refusal_reply("tool calls and results do not match", "invalid_value")
        if tokens > figures.window:
            figures.refused += 1
            return overflow_reply(figures.window, tokens)
        if messages[-1]["role"] == "user" or self._read % CALLS_PER_TURN:
            self._read += 1
            return tool_call_stream(("read_file", {"path": f"ship-{self._read - 1}.txt"}), input_tokens=tokens)
        return text_stream(f"The logs up to ship {self._read - 1} are read.", input_tokens=tokens)


async def longest_pause(done: asyncio.Event) -> float:
    """Return the longest processor time that the loop's thread used between two of its turns."""
    longest, last = 0.0, time.thread_time()
    while not done.is_set():
        await asyncio.sleep(TICK_SECONDS)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest


async def run_session(folder: Path, calls: int, window: int) -> ChatSessionFigures:
    """Run a session and return what it showed."""
    figures, done = ChatSessionFigures(calls, window), asyncio.Event()
    (folder / "files").mkdir()
    write_files(folder / "files", calls)
    started = time.process_time()
    async with ScriptedEndpoint(Provider(figures).reply) as endpoint:
        flags = {"model": f"{endpoint.url}#gpt-5", "max_context_tokens": str(window), "summarization_model": "none"}
        settings = load_settings(flags=flags, cwd=folder, environ={"HOLDFAST_HOME": str(folder / "home")})
        chat = Chat(settings, QuietScreen(), folder=folder / "files", store=SqliteStore(folder / "chats.db"))
        await chat.open_conversation()
        await chat.warm_up()  # loads libraries, which the program does while the user types
        pause = asyncio.create_task(longest_pause(done))
        for turn in range(calls // CALLS_PER_TURN):
            outcome = await chat.take_turn(
                f"Read the next {CALLS_PER_TURN} logs, from ship {turn * CALLS_PER_TURN} on."
            )
            if outcome != "done":
                print_progress(f"turn {turn + 1}: {outcome}")
        done.set()
        figures.longest_pause_ms = 1_000 * await pause
        figures.compactions = len(await chat.session.receipts())
        for number in range(calls):
            query = RecallQuery(query=f"berth of ship SV-{number:04d}", max_tokens=RECALLED_TOKENS)
            found = await chat.session.recall(query)
            figures.facts_found += any(fact_of(number) in excerpt.text for excerpt in found.excerpts)
        await chat.close()
    figures.processor_seconds = time.process_time() - started
    return figures


def main() -> None:
    """Run a session and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(run_session(Path(folder), args.calls, args.window))
    is_smooth = figures.longest_pause_ms < 1_000 * MAX_PAUSE_SECONDS
    print(f"{figures.calls} tool calls in a window of {figures.window:,} tokens, {figures.requests} requests")
    print(
        f"refused {figures.refused}, invalid {figures.invalid}: {verdict(is_met=not figures.refused + figures.invalid)}"
    )
    print(f"facts that one recall finds: {figures.facts_found}: {verdict(is_met=figures.facts_found == figures.calls)}")
    print(f"longest pause of the event loop: {figures.longest_pause_ms:.0f} ms: {verdict(is_met=is_smooth)}")
    print(f"changes of the context: {figures.compactions}; processor time: {figures.processor_seconds:.1f} s")
    save_figures(asdict(figures), args.json)


if __name__ == "__main__":
    main()
