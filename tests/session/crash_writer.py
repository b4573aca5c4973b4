"""Records numbered messages and acknowledges each on its output, until somebody kills it."""

import asyncio
import sys

from holdfast.session.session import Session
from holdfast.testing.chat import user_message


async def main(url: str) -> None:
    async with Session.open("crash", store=url) as session:
        number = len(session)
        while True:
            await session.record([user_message(f"message {number}")])
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()
            number += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
