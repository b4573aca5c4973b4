"""Adds checkpoints to a folder and says each number when it is durable; to be killed, or not to be alone."""

import asyncio
import sys

from holdfast.session.compaction.checkpoints import Checkpoints


async def main(folder: str, name: str, count: int) -> None:
    checkpoints = Checkpoints(folder)
    for number in range(count):
        added = await checkpoints.add(f"# {name} {number}\n" + "words " * 2_000, stop=number)
        sys.stdout.write(f"{added.number}\n")
        sys.stdout.flush()


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
