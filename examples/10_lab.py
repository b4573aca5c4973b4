"""Replay one conversation under several policies, and compare their figures."""

import asyncio

from holdfast.compaction import PRESETS
from holdfast.lab import BudgetAdherence, PrefixStability, Recording, Replayer, RequestValidity, SimulatedSession
from holdfast.testing.sessions import generate_session


async def main() -> None:
    """Print the figures of every policy; `holdfast lab run` has tables, prices and a report."""
    messages = generate_session(200)
    recording = Recording("generated", messages, [None] * len(messages), [None] * len(messages))
    for name, policy in PRESETS.items():
        async with SimulatedSession(policy) as played:
            player = Replayer(recording, played, 8_000)
            figures = await player.play([PrefixStability(), RequestValidity(), BudgetAdherence()])
        sent = sum(turn.sent_tokens for turn in player.turns)
        shown = ", ".join(f"{figure} {value:g}" for figure, value in figures.items())
        print(f"{name:9} {len(player.turns)} requests, {sent:,} tokens; {shown}")


if __name__ == "__main__":
    asyncio.run(main())
