"""An agent of Google's ADK without a length limit: every model call fits, and ADK's events stay whole.

The model here is a script, so that this runs anywhere; name a real one instead, such as "gemini-3-pro". Needs the extra
`google-adk`.
"""

import asyncio
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from holdfast.adapters.google_adk import HoldfastPlugin


class Reader(BaseLlm):
    """Reads a file for every question, then answers."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - as in ADK
    ) -> AsyncGenerator[LlmResponse, None]:
        """Return the next step of the script."""
        del stream
        parts = llm_request.contents[-1].parts or []
        is_read = any(part.function_response for part in parts)
        call = types.FunctionCall(name="read", args={"path": "totals.py"})
        part = types.Part(text="It adds the prices.") if is_read else types.Part(function_call=call)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def read(path: str) -> str:
    """Read a file."""
    return f"{path}\n" + "".join(f"{number:03} total = total + price\n" for number in range(40))


async def main() -> None:
    """Ask until there are a few compactions, and show what was sent."""
    holdfast = HoldfastPlugin(store="memory://", budget=5_000)
    agent = LlmAgent(name="reader", model=Reader(model="gemini-3-pro"), tools=[read])
    runner = InMemoryRunner(app=App(name="totals", root_agent=agent, plugins=[holdfast]))
    await runner.session_service.create_session(app_name="totals", user_id="me", session_id="totals")
    for number in range(16):
        question = f"Question {number}: what does line {number} do?"
        prompt = types.Content(role="user", parts=[types.Part(text=question)])
        events = [one async for one in runner.run_async(user_id="me", session_id="totals", new_message=prompt)]
        request = holdfast.last_request("totals")
        print(f"{len(events)} events, sent {request.tokens if request else '-'}")
    await holdfast.close()


if __name__ == "__main__":
    asyncio.run(main())
