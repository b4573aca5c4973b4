"""Taking what was typed: a command if it begins with a slash, else a prompt."""

import asyncio
import sys

from holdfast.chat.chat import Chat
from holdfast.chat.commands.every import carry_out
from holdfast.chat.happenings import Outcome


async def take(chat: Chat, line: str) -> Outcome:
    """Take one line: a command if it begins with a slash, else a prompt."""
    if line.lstrip().startswith("/"):
        await carry_out(chat, line)
        return "done"
    return await chat.say(line)


async def answer_lines(chat: Chat, prompt: str | None = None) -> Outcome:
    """Take a prompt, if there is one, and standard input line by line; return how the last turn ended."""
    outcome: Outcome = await take(chat, prompt) if prompt else "done"
    while not chat.is_over:
        line = await asyncio.to_thread(sys.stdin.readline)
        if not line:
            break
        if line.strip():
            outcome = await take(chat, line)
            if outcome == "interrupted":
                break
    return outcome
