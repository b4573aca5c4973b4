"""Converses with a summarizer beside it and tells each step on its output, until somebody kills it."""

import asyncio
import random
import sys

from holdfast.models.base import SummaryPrompt
from holdfast.session.session import Session
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import ScriptedModel

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa " * 6
SUMMARY = "The user counts in Greek letters [#0]. Done: alpha to kappa [#1]. Next: go on."
BUDGET = 2_000


def tell(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def main(url: str, chance: random.Random) -> None:
    """Record, ask and answer; a summary takes some rounds of the loop, so that it ends now here and now there."""

    async def some_rounds(_: float) -> None:
        tell("writing")
        for _ in range(chance.choice((0, 20, 400))):
            await asyncio.sleep(0)

    def written(_: SummaryPrompt) -> str:
        tell("written")
        return SUMMARY

    model = ScriptedModel(iter(lambda: written, None), seconds=1, sleep=some_rounds)
    async with Session.open("killed", store=url, model="gpt-5", summarizer=model) as session:
        number = len(session)
        while True:
            await session.record([(assistant_message if number % 2 else user_message)(f"message {number}: {WORDS}")])
            tell(str(number))
            if number % 2 == 0:
                await session.prepare(BUDGET)
            number += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], random.Random(int(sys.argv[2]))))
