"""Agents of pydantic-ai keep the promises of the contract."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from holdfast.adapters.pydantic_ai import Holdfast, SubAgent, delegation_toolset, native_messages
from holdfast.core.conversation.messages import Text
from holdfast.delegation import Visibility
from holdfast.testing.agent_contract import (
    CONTRACT_BUDGET,
    CONTRACT_SESSION,
    DELEGATE_TASK_TOOL,
    AgentContract,
    AgentHarness,
    ScriptedProviderError,
    look_result,
)

HTTP_UNAVAILABLE = 503
HELPER = "counter"


def is_outage(error: Exception) -> bool:
    """Return whether pydantic-ai is to ask again."""
    return isinstance(error, ModelHTTPError) and error.status_code == HTTP_UNAVAILABLE


class PydanticAIHarness(AgentHarness):
    format: ClassVar[str] = "pydantic-ai"

    def __init__(self, store_url: str) -> None:
        super().__init__(store_url)
        self.build()

    def build(self) -> None:
        self.governed = Holdfast(session=CONTRACT_SESSION, store=self.store_url, budget=CONTRACT_BUDGET)
        scripted = FunctionModel(self.respond, stream_function=self.stream, model_name="scripted")
        model = FallbackModel(scripted, scripted, fallback_on=is_outage)

        def look(query: str) -> str:
            """Look something up."""
            return look_result(query)

        helper = Agent(scripted, tools=[look])
        asked = SubAgent(agent=helper, description="counts", sees=Visibility(), budget=CONTRACT_BUDGET)
        delegates = delegation_toolset({HELPER: asked})
        self.agent = Agent(model, tools=[look], toolsets=[delegates], capabilities=[self.governed])

    async def respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        tools = [tool.name for tool in info.function_tools]
        try:
            reply = await self.next_reply([dict(one) for one in native_messages(messages)], tools)
        except ScriptedProviderError as error:
            raise ModelHTTPError(error.status_code, "scripted", {"message": str(error)}) from error
        if isinstance(reply, str):
            return ModelResponse(parts=[TextPart(reply)])
        number = len(self.calls)
        parts = [
            ToolCallPart("delegate", {"agent": HELPER, "task": given["task"]}, f"call_{number}_{index}")
            if name == DELEGATE_TASK_TOOL
            else ToolCallPart(name, dict(given), f"call_{number}_{index}")
            for index, (name, given) in enumerate(reply.calls)
        ]
        return ModelResponse(parts=parts)

    async def stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncGenerator[str | dict[int, DeltaToolCall]]:
        response = await self.respond(messages, info)
        for number, part in enumerate(response.parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                yield {number: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}

    def texts(self, messages: Sequence[Mapping[str, object]]) -> list[str]:
        """Return each text: a request of pydantic-ai holds a summary and the prompt after it as parts of their own."""
        found: list[str] = []
        for message in self.decode(messages):
            found += [part.text for part in message.parts if isinstance(part, Text)]
            found += [result.text for result in message.results]
        return found

    async def turn(self, prompt: str, *, is_streamed: bool = False) -> str:
        if not is_streamed:
            return (await self.agent.run(prompt)).output
        async with self.agent.run_stream(prompt) as stream:
            return await stream.get_output()

    async def restart(self) -> None:
        await self.close()
        self.build()

    async def close(self) -> None:
        await self.governed.close()


class TestPydanticAI(AgentContract):
    @pytest.fixture
    async def agent(self, tmp_path: Path) -> AsyncIterator[AgentHarness]:
        harness = PydanticAIHarness(f"sqlite:///{tmp_path / 'chats.db'}")
        yield harness
        await harness.close()
