"""A model for agents that reads from a script: it answers, calls tools or refuses, at once or in a stream.

Needs the extra `pydantic-ai`.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeAlias

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

ScriptedReply: TypeAlias = "str | ModelResponse | Exception"


def tool_call_response(name: str = "look", /, call_id: str = "call", **arguments: object) -> ModelResponse:
    """Return an answer that calls one tool."""
    return ModelResponse(parts=[ToolCallPart(name, arguments, call_id)])


class ScriptedAgentModel(FunctionModel):
    """Gives one reply after the other, and remembers what it was asked.

    A reply is a text, a response, an error to raise, or a function that makes one of what was asked.
    """

    def __init__(
        self,
        replies: Sequence[ScriptedReply] | Callable[[list[ModelMessage]], ScriptedReply],
        *,
        name: str = "scripted",
    ) -> None:
        self._replies = replies
        self.requests: list[list[ModelMessage]] = []
        """The messages of each request."""
        self.request_infos: list[AgentInfo] = []
        """What came with them: tools, settings, instructions."""
        super().__init__(self._whole, stream_function=self._streamed, model_name=name)

    @property
    def parts(self) -> list[list[str]]:
        """The kinds of the parts of the newest request, message by message."""
        return [[part.part_kind for part in message.parts] for message in self.requests[-1]]

    @property
    def prompts(self) -> list[str]:
        """The texts of the prompts in the newest request."""
        requests = [message for message in self.requests[-1] if isinstance(message, ModelRequest)]
        said = [part.content for message in requests for part in message.parts if part.part_kind == "user-prompt"]
        return [content for content in said if isinstance(content, str)]

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = len(self.requests)
        self.requests.append(list(messages))
        self.request_infos.append(info)
        reply = self._replies(messages) if callable(self._replies) else self._replies[number]
        if isinstance(reply, Exception):
            raise reply
        return ModelResponse(parts=[TextPart(reply)]) if isinstance(reply, str) else reply

    def _whole(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return self._next(messages, info)

    async def _streamed(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncGenerator[str | dict[int, DeltaToolCall]]:
        response = self._next(messages, info)
        for number, part in enumerate(response.parts):
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield f"{word} "
            elif isinstance(part, ToolCallPart):
                yield {number: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}
