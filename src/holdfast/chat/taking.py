"""Taking what was typed: a command if it begins with a slash, else a prompt."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator

from holdfast.chat.chat import Chat
from holdfast.chat.commands.every import run_slash_command
from holdfast.chat.happenings import TurnOutcome


async def submit_line(chat: Chat, line: str) -> TurnOutcome:
    """Take one line: a command if its first word is a slash and a name, else a prompt."""
    if is_command(line):
        return "done" if await run_slash_command(chat, line) else "failed"
    return await chat.take_turn(line)


def is_command(line: str) -> bool:
    """Return whether a line is a command; one that begins with a path is none."""
    first = line.split(maxsplit=1)[0] if line.strip() else ""
    return first.startswith("/") and "/" not in first[1:]


async def answer_stdin(chat: Chat, prompt: str | None = None) -> TurnOutcome:
    """Take a prompt, if there is one, and standard input line by line; return how the last turn ended."""
    outcome: TurnOutcome = await submit_line(chat, prompt) if prompt else "done"
    async for line in _stdin_lines():
        if line.strip():
            outcome = await submit_line(chat, line)
        if chat.is_over or outcome == "interrupted":
            break
    return outcome


async def _stdin_lines() -> AsyncIterator[str]:
    """Yield the lines of standard input; the thread that waits for them holds nobody up."""
    loop = asyncio.get_running_loop()
    coming: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        line: str | None = ""
        while line is not None:
            line = sys.stdin.readline() or None
            loop.call_soon_threadsafe(coming.put_nowait, line)

    threading.Thread(target=read, daemon=True).start()
    while (line := await coming.get()) is not None:
        yield line
