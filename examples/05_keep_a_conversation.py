"""Store a conversation in a file, open it again, rewind it, and verify its requests."""

import asyncio
import tempfile
from pathlib import Path

from holdfast import Session
from holdfast.storage import rebuilt_requests
from holdfast.testing.sessions import generate_session


async def main(folder: Path) -> None:
    """Record a session, and open it again."""
    url = f"sqlite:///{folder}/chats.db"
    async with Session.open("conversation-1", store=url, policy="default", model="gpt-5") as session:
        for message in generate_session(300):
            await session.record([message])  # durable when it returns
            if message["role"] == "user":
                await session.prepare(16_000)
        print((await session.prepare(16_000)).receipt)

    async with Session.open("conversation-1", store=url, model="gpt-5") as session:
        await session.rewind(to=250)
        print(f"after a rewind {len((await session.prepare(16_000)).messages)} messages would be sent")
        await session.undo()
        proofs = list(rebuilt_requests(await session.events()))
        print(f"{sum(proof.is_same for proof in proofs)} of {len(proofs)} requests are verified from the log")
        print(f"message 3, as it was recorded: {(await session.messages_at(3))[0]['role']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))
