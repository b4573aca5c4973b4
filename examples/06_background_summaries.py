"""A model writes summaries in the background; every summary is checked before it takes effect.

The model here reads from a script, so that this runs anywhere. Name a real one instead: "openai:gpt-5-mini", an
endpoint as "http://127.0.0.1:8080/v1#name", or "embedded".
"""

import asyncio

from holdfast import Session
from holdfast.testing.models import ScriptedModel

SUMMARY = "Intent: count apples and pears [#0]. Done: rows 0 to 9 are counted [#1-19]. Next: count row 10."


async def main() -> None:
    """Talk until a summary is due, and show its receipt."""
    summarizer = ScriptedModel([SUMMARY, SUMMARY, SUMMARY])
    async with Session.open("counting", store="memory://", model="gpt-5", summarizer=summarizer) as session:
        for row in range(18):
            question = f"Row {row}: " + "apple pear " * 120
            await session.record([{"role": "user", "content": question}])
            request = await session.prepare(4_000)
            print(f"row {row:2}: {len(request.messages):2} messages, {request.tokens.total:,} tokens")
            await session.record([{"role": "assistant", "content": f"Row {row} has 120 of each."}])
            await asyncio.sleep(0.01)
        for receipt in await session.receipts():
            print(f"\n{receipt}")
        print(f"\nin the log, unchanged: {len(await session.messages_at(0, len(session)))} messages")


if __name__ == "__main__":
    asyncio.run(main())
