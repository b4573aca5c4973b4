"""A policy of your own: numbers in TOML, compared with the default on a recorded conversation.

`examples/11_a_rule_of_your_own.py` has a rule in code. `holdfast lab run FILE --policy default,mine.toml` compares on
your own sessions, with every figure.
"""

import asyncio

from holdfast import Policy, Session, read_policy
from holdfast.compaction import PRESETS, DefaultCompaction
from holdfast.testing.sessions import generate_session

MINE = """
base = "default"
name = "roomy-tail"

[compaction]
soft_share = 0.7      # start a summary earlier
hard_share = 0.9
tail_share = 0.2      # keep more of the newest messages as they are

[models."claude-*".compaction]
soft_share = 0.5      # and earlier still with these models
"""


async def replay(policy: Policy) -> str:
    """Let a policy prepare every request of a conversation, and return what it did."""
    sizes: list[int] = []
    async with Session.open(policy.name, store="memory://", model="gpt-5", policy=policy) as session:
        for message in generate_session(300):
            if message["role"] == "assistant":
                sizes.append((await session.prepare(12_000)).tokens.total)
            await session.record([message])
        compactions = len(await session.receipts())
    return (
        f"{policy.name:12} {len(sizes)} requests, {compactions} compactions, {sum(sizes):,} tokens sent, "
        f"{max(sizes):,} at most"
    )


async def main() -> None:
    """Compare the default with a policy of our own."""
    mine = read_policy(MINE)
    for policy in (PRESETS["default"], mine):
        print(await replay(policy))
    match mine.for_model("claude-sonnet-5-5").compaction:
        case DefaultCompaction(soft_share=share):
            print(f"with Claude, a summary starts at {share:.0%}")
        case other:
            print(f"another rule: {other}")


if __name__ == "__main__":
    asyncio.run(main())
