"""Converses with a daily memory beside it and tells each message on its output, until somebody kills it."""

import asyncio
import sys
from hashlib import sha256

from holdfast.models.base import SummaryPrompt
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.session import Session, SessionOpener
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import ScriptedModel

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa " * 6
CLEARED_EVERY = 90


def summary(ask: SummaryPrompt) -> str:
    """Return another summary every time: lines that are there already are not written again."""
    return f"The user counts in Greek letters, as in {sha256(ask.text.encode()).hexdigest()[:12]}."


def opened(url: str, folder: str) -> SessionOpener:
    """Open the session that is killed."""
    how = CompactionOptions(memory=DailyMemory(folder), automatic=ScriptedModel(iter(lambda: summary, None)))
    return Session.open("killed", store=url, policy="cowagent", model="gpt-5", compaction=how)


async def main(url: str, folder: str) -> None:
    """Record, ask and answer, and clear from time to time."""
    async with opened(url, folder) as session:
        number = len(session)
        while True:
            await session.record([(assistant_message if number % 2 else user_message)(f"message {number}: {WORDS}")])
            if number % 2 == 0:
                await session.prepare(60_000)
            if number % CLEARED_EVERY == CLEARED_EVERY - 1:
                await session.clear()
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
            number += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
