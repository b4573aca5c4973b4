"""Play one conversation under several policies, and see what each would have sent, kept and broken."""

import asyncio

from holdfast.core.planning.presets import PRESETS
from holdfast.lab.metrics.prefix import Stability
from holdfast.lab.metrics.soundness import Adherence, Validity
from holdfast.lab.played import Played
from holdfast.lab.recordings import Recording
from holdfast.lab.replay import Player
from holdfast.testing.sessions import generated_session


async def main() -> None:
    """Print the figures of every policy; `holdfast lab run` has tables, prices and a report."""
    messages = generated_session(200)
    recording = Recording("generated", messages, [None] * len(messages), [None] * len(messages))
    for name, policy in PRESETS.items():
        async with Played(policy) as played:
            player = Player(recording, played, 8_000)
            figures = await player.play([Stability(), Validity(), Adherence()])
        sent = sum(turn.sent for turn in player.turns)
        told = ", ".join(f"{figure} {value:g}" for figure, value in figures.items())
        print(f"{name:9} {len(player.turns)} requests, {sent:,} tokens; {told}")


if __name__ == "__main__":
    asyncio.run(main())
