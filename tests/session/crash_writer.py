"""Records numbered messages and acknowledges each on its output, until somebody kills it."""

import asyncio
import sys

from holdfast.session.session import Session
from holdfast.testing.chat import user_message

MOST = 500
"""A test that cannot run for a second, on a busy machine, would else find more messages than a search does."""


async def main(url: str) -> None:
    async with Session.open("crash", store=url) as session:
        start = len(session)
        for number in range(start, start + MOST):
            await session.record([user_message(f"message {number}")])
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
