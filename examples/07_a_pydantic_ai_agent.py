"""A pydantic-ai agent without a length limit: every request fits, and the history stays whole.

The model here reads from a script, so that this runs anywhere; name a real one instead, such as "openai:gpt-5-mini".
Needs the extra `pydantic-ai`.
"""

import asyncio

from pydantic_ai import Agent, ModelMessage, ModelResponse

from holdfast.adapters.pydantic_ai import Holdfast
from holdfast.testing.agents import ScriptedAgentModel, tool_call_response

LISTING = "".join(f"{number:03} total = total + price\n" for number in range(40))


def model(messages: list[ModelMessage]) -> str | ModelResponse:
    """Read a file for every question, then answer."""
    is_asked = any(part.part_kind == "user-prompt" for part in messages[-1].parts)
    return tool_call_response("read", f"call_{len(messages)}", path="totals.py") if is_asked else "It adds the prices."


async def main() -> None:
    """Ask until there are a few compactions, and show what they did."""
    async with Holdfast(budget=3_000) as governed:
        agent = Agent(ScriptedAgentModel(model), capabilities=[governed], instructions="Be brief.")

        @agent.tool_plain
        def read(path: str) -> str:
            """Read a file."""
            return f"{path}\n{LISTING}"

        for number in range(16):
            result = await agent.run(f"Question {number}: what does line {number} do?", conversation_id="totals")
            if governed.last_request:
                print(f"{len(result.all_messages()):2} messages so far, sent {governed.last_request.tokens}")

        session = await governed.open("totals")
        for receipt in await session.receipts():
            print(f"\n{receipt}")
        print(f"\nin the log, unchanged: {len(await session.messages())} messages")


if __name__ == "__main__":
    asyncio.run(main())
