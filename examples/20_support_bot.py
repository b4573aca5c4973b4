"""A support bot: one session for each customer, rules that stay, and a conversation that goes on for weeks.

The model is a function here, so that this runs anywhere; put your client's call in its place.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast import Session

RULES = "You are the support of a bicycle shop. Never promise a refund; offer a repair first."
SMALL_WINDOW = 2_000
LONG_ADVICE = "Please check the chain, the brakes and the lights before you ride. " * 12


def ask_model(messages: Sequence[Mapping[str, object]]) -> str:
    """Stand for a call to a provider with these messages."""
    prompt = str(messages[-1]["content"])
    return f"About “{prompt[:40]}”: {LONG_ADVICE}"


async def answer(store: str, customer: str, prompt: str) -> str:
    """Answer one message of a customer. Each call may happen in another process, days after the last one."""
    async with Session.open(f"customer-{customer}", store=store, model="gpt-5") as session:
        if len(session) == 0:
            await session.record([{"role": "system", "content": RULES}])
        await session.record([{"role": "user", "content": prompt}])
        request = await session.prepare(SMALL_WINDOW)
        text = ask_model(request.messages)
        await session.record([{"role": "assistant", "content": text}])
        return f"{len(session):3} messages stored, {request.tokens.total:5,} tokens sent"


async def main(store: str) -> None:
    """Talk to two customers for some weeks."""
    print("ada  ", await answer(store, "ada", "My order is R-2291. The frame is blue, size 54."))
    for week in range(1, 13):
        print("ada  ", await answer(store, "ada", f"Week {week}: the brake squeaks again."))
    print("boris", await answer(store, "boris", "Do you sell bells?"))

    async with Session.open("customer-ada", store=store, model="gpt-5") as session:
        request = await session.prepare(SMALL_WINDOW)
        sent = " ".join(str(message["content"]) for message in request.messages)
        print(f"\nThe rules are in the request: {RULES in sent}; the order number too: {'R-2291' in sent}")
        found = await session.recall("Which frame does the customer have?")
        print(f"recall {found.excerpts[0].ref}: {found.excerpts[0].text}")
        print(f"\n{(await session.receipts())[-1]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{Path(folder).as_posix()}/support.db"))
