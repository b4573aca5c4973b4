"""A worker that converses in two sessions until their compactions are queued, begins to write, and never ends.

One compaction is left to all workers (`shared`), the other to this process (`here`).
"""

import asyncio
import sys

from holdfast import Session
from holdfast.compaction import CompactionOptions, ModelReply, SummaryPrompt
from holdfast.jobs import BackgroundJobs
from tests.jobs.conversing import converse_until_started


class EndlessModel:
    """Says when it is asked, and never answers."""

    name = "endless"
    window = None

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        del prompt
        sys.stdout.write("asked\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
        return ModelReply(text="", model="")


async def main(url: str) -> None:
    async with BackgroundJobs(url, lambda name: Session.open(name, store=url, summarizer=EndlessModel())) as jobs:
        for name, queue in (("shared", jobs), ("here", jobs.here)):
            options = CompactionOptions(automatic=EndlessModel(), queue=queue)
            session = await Session.open(name, store=url, compaction=options)
            sys.stdout.write(f"{(await converse_until_started(session)).owner}\n")
            sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
