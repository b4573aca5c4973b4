"""A team of agents: a lead delegates, each agent sees what was chosen for it, and findings are checked.

The agents' models are functions here, so that this runs anywhere.
"""

import asyncio

from holdfast import Session
from holdfast.delegation import DelegateFinding, Visibility

TEAM = {
    "reader": ("Where is the retry logic?", "The retry logic is in src/client.py."),
    "tester": ("Which tests cover it?", "tests/test_client.py covers two of three cases."),
    "writer": ("What do the docs say?", "The docs do not mention retries."),
}


async def work(session: Session, agent: str) -> str:
    """Give one agent its task, and return its answer."""
    task, says = TEAM[agent]
    sees = Visibility(pins=True, ledger=True, turns=1)
    async with session.delegate(agent, task=task, sees=sees, timeout_seconds=60) as child:
        request = await child.prepare(4_000)  # for that agent's own model and window
        await child.record([{"role": "assistant", "content": says}])
        # A source that the agent never saw is reported as unverified.
        seen, unseen = "#0", "src/elsewhere.py"
        finding = DelegateFinding(claim=says, sources=(seen if agent != "writer" else unseen,), status="confirmed")
        answer = await child.answer(says, findings=[finding])
        unverified = [source for one in answer.findings for source in one.unverified]
        print(f"{agent}: sent {len(request.messages)} messages; unverified sources: {unverified or 'none'}")
        return str(answer)


async def main() -> None:
    """Ask the team at once, and let the lead conclude."""
    async with Session.open("retries", store="memory://", model="gpt-5") as session:
        await session.record([{"role": "user", "content": "Are retries done right? Do not change public names."}])
        await session.pin(0)
        answers = await asyncio.gather(*(work(session, agent) for agent in TEAM))
        await session.record([{"role": "assistant", "content": "\n\n".join(answers)}])
        print()
        for one in await session.delegations():
            print(f"{one.started.agent:7} {one.state}: {one.started.task} It saw {one.description}.")


if __name__ == "__main__":
    asyncio.run(main())
