"""An agent of the OpenAI Agents SDK without a length limit: every model call fits, and the session keeps every item.

The model here is a script, so that this runs anywhere; name a real one instead. Needs the extra `openai-agents`.
"""

import asyncio

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from holdfast.adapters.openai_agents import HoldfastSession


@function_tool
def read(path: str) -> str:
    """Read a file."""
    return f"{path}\n" + "".join(f"{number:03} total = total + price\n" for number in range(40))


async def main() -> None:
    """Ask until there are a few compactions, and show what was sent."""
    set_tracing_disabled(disabled=True)
    kept = HoldfastSession("totals", store="memory://", budget=5_000)
    steps = [
        step
        for number in range(16)
        for step in (
            [function_call("read", {"path": "totals.py"}, call_id=f"call_{number}")],
            [assistant_message("It adds the prices.", item_id=f"msg_{number}")],
        )
    ]
    agent = Agent(name="reader", model=ScriptedModel(steps), tools=[read, kept.recall_tool])
    for number in range(16):
        question = f"Question {number}: what does line {number} do?"
        await Runner.run(agent, question, session=kept, run_config=kept.run_config())
        request = kept.last_request
        print(f"{len(await kept.get_items()):2} items so far, sent {request.tokens if request else '-'}")
    await kept.close()


if __name__ == "__main__":
    asyncio.run(main())
