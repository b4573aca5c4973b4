"""Tools of a real MCP server, over stdio, in the agents of each framework: recorded once, counted and sent validly."""

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent as SdkAgent
from agents import RunConfig, set_tracing_disabled
from agents import Runner as SdkRunner
from agents.mcp import MCPServerStdio
from agents.testing import ScriptedModel, assistant_message, function_call
from fastmcp.client.transports import StdioTransport
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from google.genai import types
from mcp import StdioServerParameters
from pydantic import Field
from pydantic_ai import Agent, BinaryImage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.function import FunctionModel

from holdfast import validate
from holdfast.adapters.google_adk import CONTENTS, HoldfastPlugin
from holdfast.adapters.openai_agents import HoldfastSession
from holdfast.adapters.pydantic_ai import Holdfast
from tests.adapters.mcp_tide_server import PNG, TABLE

SERVER = [str(Path(__file__).with_name("mcp_tide_server.py"))]
STEPS = (("words",), ("chart",), ("table",), ("broken",), ("words", "chart"))
"""The tools that the model calls, one step after the other; the last two at once."""
ARGUMENTS = {"place": "Kiel"}
TEXT = "High water at Kiel is 12:40."
DATA = b64encode(PNG).decode()
ERROR = "Error executing tool broken"
TOOLS = ["broken", "chart", "table", "words"]
SECONDS = 60


def call_id(step: int, index: int) -> str:
    return f"call_{step}_{index}"


async def test_pydantic_ai_records_what_the_tools_of_a_server_return() -> None:
    requests: list[Any] = []

    def reply(messages: Any, _: object) -> ModelResponse:
        step = len(requests)
        requests.append(messages)
        names = STEPS[step] if step < len(STEPS) else ()
        calls = [ToolCallPart(name, ARGUMENTS, call_id(step, index)) for index, name in enumerate(names)]
        return ModelResponse(parts=calls or [TextPart("done")])

    holdfast = Holdfast(session="s", budget=16_000)
    server = MCPToolset(
        StdioTransport(sys.executable, SERVER, keep_alive=False), init_timeout=SECONDS, read_timeout=SECONDS
    )
    agent = Agent(FunctionModel(reply), toolsets=[server], capabilities=[holdfast], retries=2)

    async with agent, holdfast:
        result = await agent.run("look")
        recorded = await (await holdfast.open()).messages()

        parts = [part for message in result.all_messages() for part in message.parts]
        returned = [part.content for part in parts if isinstance(part, ToolReturnPart)]
        image = BinaryImage(PNG, media_type="image/png")
        assert returned == [TEXT, image, TABLE, ERROR, TEXT, image]
        assert len(recorded) == len(result.all_messages()) == 2 * len(STEPS) + 2
        assert not validate(recorded[:-1], "pydantic-ai")
        request = holdfast.last_request
        assert request is not None
        assert sorted(tool["name"] for tool in request.tools or ()) == TOOLS
        # A later run gets them as they were.
        await agent.run("and now?")
        replayed = [part for one in requests[-1] for part in one.parts if isinstance(part, ToolReturnPart)]
        assert [part.content for part in replayed] == returned


async def test_the_agents_sdk_records_what_the_tools_of_a_server_return_and_counts_their_definitions() -> None:
    set_tracing_disabled(True)
    kept = HoldfastSession("s", budget=16_000)
    steps: Any = [
        [function_call(name, json.dumps(ARGUMENTS), call_id=call_id(step, index)) for index, name in enumerate(names)]
        for step, names in enumerate(STEPS)
    ]
    model = ScriptedModel([*steps, [assistant_message("done")]])

    async with MCPServerStdio(
        {"command": sys.executable, "args": SERVER}, client_session_timeout_seconds=SECONDS
    ) as server:
        agent = SdkAgent(name="a", model=model, mcp_servers=[server])
        await SdkRunner.run(agent, "look", session=kept, run_config=kept.run_config(RunConfig()))

    items: Any = await kept.get_items()
    table = json.dumps(TABLE, indent=2)
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"}
    assert [item["output"] for item in items if item.get("type") == "function_call_output"] == [
        [{"type": "input_text", "text": TEXT}],
        [image],
        [{"type": "input_text", "text": table}],
        [{"type": "input_text", "text": ERROR}],
        [{"type": "input_text", "text": TEXT}],
        [image],
    ]
    assert len(items) == 1 + 2 * sum(map(len, STEPS)) + 1
    sent: list[Any] = [call.input for call in model.calls]
    assert [validate(one, "openai-responses") for one in sent] == [[]] * len(sent)
    request = kept.last_request
    assert request is not None
    assert sorted(tool["name"] for tool in request.tools or ()) == TOOLS
    await kept.close()
    set_tracing_disabled(False)


class CallingLlm(BaseLlm):
    """Calls the tools of the steps, then answers."""

    model: str = "gemini-3-pro"
    requests: list[list[types.Content]] = Field(default_factory=list[list[types.Content]])

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - as in ADK
    ) -> AsyncGenerator[LlmResponse, None]:
        del stream
        step = len(self.requests)
        self.requests.append(list(llm_request.contents))
        names = STEPS[step] if step < len(STEPS) else ()
        calls = [types.FunctionCall(name=one, args=ARGUMENTS, id=call_id(step, at)) for at, one in enumerate(names)]
        signed = [types.Part(function_call=call, thought_signature=b"signed") for call in calls]
        yield LlmResponse(content=types.Content(role="model", parts=signed or [types.Part(text="done")]))


# ADK reads a field by its old name, which FastMCP answers with a warning.
@pytest.mark.filterwarnings("ignore:Accessing `")
async def test_adk_records_what_the_tools_of_a_server_return() -> None:
    plugin, model = HoldfastPlugin(budget=16_000), CallingLlm()
    parameters = StdioServerParameters(command=sys.executable, args=SERVER)
    tools = McpToolset(connection_params=StdioConnectionParams(server_params=parameters, timeout=SECONDS))
    app = App(name="app", root_agent=LlmAgent(name="a", model=model, tools=[tools]), plugins=[plugin])
    runner = Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)

    message = types.Content(role="user", parts=[types.Part(text="look")])
    async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
        pass
    await tools.close()

    recorded: Any = await asyncio.to_thread(lambda: plugin.session("s").messages())
    parts = [part for one in recorded for part in one["parts"]]
    responses = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
    text = {"content": [{"type": "text", "text": TEXT}], "structuredContent": {"result": TEXT}, "isError": False}
    image = {"content": [{"type": "image", "data": DATA, "mimeType": "image/png"}], "isError": False}
    table = {"content": [{"type": "text", "text": json.dumps(TABLE, indent=2)}], "structuredContent": TABLE}
    error = {"content": [{"type": "text", "text": ERROR}], "isError": True}
    assert responses == [text, image, {**table, "isError": False}, error, text, image]
    assert len(recorded) == 2 * len(STEPS) + 2
    sent = [[dict(CONTENTS.encode(one)) for one in contents] for contents in model.requests]
    assert [validate(one, "gemini") for one in sent] == [[]] * len(sent)
    request = plugin.last_request("s")
    assert request is not None
    assert sorted(tool["name"] for tool in request.tools or ()) == TOOLS
    await plugin.close()
