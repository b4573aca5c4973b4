"""Find again what left the view: by words, by reference, line by line; and what the model's own tool answers."""

import asyncio

from holdfast import Session
from holdfast.recall import RecallQuery
from holdfast.testing.sessions import generate_session


async def main() -> None:
    """Talk until the beginning was folded, and look it up."""
    async with Session.open("trip", store="memory://", model="gpt-5") as session:
        await session.record(
            [
                {"role": "user", "content": "The ferry leaves at 9:40 from pier 3.\nThe spare key is under the pot."},
                {"role": "assistant", "content": "Noted."},
            ]
        )
        for message in generate_session(200):
            await session.record([message])
        request = await session.prepare(8_000)
        print(f"{len(session)} messages were said, {len(request.messages)} are sent")

        found = await session.recall(RecallQuery(query="when does the ferry leave?", max_tokens=200))
        print(found.excerpts[0].ref, found.excerpts[0].text)
        print(await session.recall("#0:L2-L2"))

        tool = (
            session.recall_tool()
        )  # tool.name, tool.description, tool.parameters: for whoever offers tools to a model
        print(await tool.call({"query": "spare key", "max_tokens": 200}))


if __name__ == "__main__":
    asyncio.run(main())
