"""A worker that converses until a compaction is queued, begins to write its summary, and never ends."""

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
        options = CompactionOptions(automatic=EndlessModel(), queue=jobs)
        async with Session.open("s", store=url, compaction=options) as session:
            started = await converse_until_started(session)
            sys.stdout.write(f"{started.owner}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
