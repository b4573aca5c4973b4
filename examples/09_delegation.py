"""Delegate to agents: each sees what was chosen for it and nothing of the others, in the same log."""

import asyncio

from holdfast import Session
from holdfast.delegation import Visibility


async def main() -> None:
    """Delegate to two agents at once, and show what each saw."""
    async with Session.open("release", store="memory://", model="gpt-5") as session:
        await session.record([{"role": "user", "content": "Is the release ready? Never push to main."}])

        async def asked(agent: str, task: str, says: str) -> None:
            async with session.delegate(agent, task=task, sees=Visibility(turns=1, ledger=True)) as child:
                request = await child.prepare(8_000)  # what to send to that agent's model
                print(f"{agent} is sent {[message['content'] for message in request.messages]}")
                await child.record([{"role": "assistant", "content": says}])
                await child.answer(says)

        await asyncio.gather(
            asked("reviewer", "Read the diff.", "One test is missing."),
            asked("writer", "Check the notes.", "The notes are complete."),
        )
        for one in await session.delegations():
            print(f"{one.started.agent} ({one.state}) saw {one.description} and says: {one.answer}")


if __name__ == "__main__":
    asyncio.run(main())
