"""A coding agent: a loop of tool calls whose output outgrows the window many times over.

Summaries are written in the background, recall is a tool of the agent, and a provider's refusal is recovered from. The
model is a script here, so that this runs anywhere.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence

from holdfast import Request, Session
from holdfast.testing.models import ScriptedModel

TASK = "Find the file that opens the port twice, and say which line. Change nothing under vendor/."
FILES = [f"src/server_{number}.py" for number in range(24)]
GUILTY = "src/server_17.py"
SUMMARY = (
    "Intent: find the file that opens the port twice, change nothing under vendor/ [#0]. Next: read the next file."
)


class TooLongError(Exception):
    """What a provider answers to a request that is too long."""


class Provider:
    """Stands for a provider: reads the files one after the other, and refuses one request."""

    def __init__(self) -> None:
        self.step = 0
        self.refusals = 1

    def complete(self, messages: Sequence[Mapping[str, object]]) -> dict[str, object]:
        """Return the next message of the model."""
        if self.step == 12 and self.refusals:  # noqa: PLR2004 - in the middle of the loop
            self.refusals -= 1
            raise TooLongError("prompt is too long: 5200 tokens > 5000 maximum")
        if TASK not in str(messages):
            return {"role": "assistant", "content": "I have forgotten the task."}
        if self.step == len(FILES):
            return {"role": "assistant", "content": f"{GUILTY} opens the port on line 40 and on line 88."}
        call = {"name": "read_file", "arguments": json.dumps({"path": FILES[self.step]})}
        self.step += 1
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call_{self.step}", "type": "function", "function": call}],
        }


def read_file(path: str) -> str:
    """Stand for a tool with long output."""
    lines = [f"{number:4}  handler.register({path!r}, {number})" for number in range(1, 90)]
    if path == GUILTY:
        lines[39] = lines[87] = "  listener = socket.create_server(('', 8080))"
    return "\n".join(lines)


async def send(session: Session, provider: Provider, request: Request) -> dict[str, object]:
    """Send a request, and a smaller one if the provider refuses it as too long."""
    while True:
        try:
            return provider.complete(request.messages)
        except TooLongError as error:
            request = await session.retry(error)
            print(f"refused as too long; sent again with {request.tokens.total:,} tokens")


async def main() -> None:
    """Run the loop until the model answers."""
    provider, summarizer = Provider(), ScriptedModel([SUMMARY] * 20)
    async with Session.open("hunt", store="memory://", model="gpt-5", summarizer=summarizer) as session:
        await session.record([{"role": "user", "content": TASK}])
        while True:
            request = await session.prepare(8_000, has_recall=True)
            reply = await send(session, provider, request)
            await session.record([reply])
            calls = reply.get("tool_calls")
            if not isinstance(calls, list):
                break
            arguments = json.loads(calls[0]["function"]["arguments"])
            result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": read_file(**arguments)}
            await session.record([result])
        tool = session.recall_tool()
        looked_up = await tool.call({"text": "create_server", "file": GUILTY})
        print(reply["content"])
        print(f"{len(session)} messages, {len(await session.receipts())} changes of context")
        print(f"the model can still look it up: {looked_up.count('create_server')} lines found")


if __name__ == "__main__":
    asyncio.run(main())
