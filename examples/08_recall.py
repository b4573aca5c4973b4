"""Recall messages that have left the view: by words, by reference, by line, and with the model's own tool."""

import asyncio

from holdfast import Session
from holdfast.recall import RecallQuery
from holdfast.testing.sessions import generate_session


async def main() -> None:
    """Talk until the beginning is compacted, and recall it."""
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
        print(f"{len(session)} messages are in the log, {len(request.messages)} are sent")

        found = await session.recall(RecallQuery(query="when does the ferry leave?", max_tokens=200))
        print(found.excerpts[0].ref, found.excerpts[0].text)
        print(await session.recall("#0:L2-L2"))

        tool = session.recall_tool()  # tool.name, tool.description, tool.parameters: for your own tool list
        print(await tool.call({"query": "spare key", "max_tokens": 200}))


if __name__ == "__main__":
    asyncio.run(main())
