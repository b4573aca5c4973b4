"""A pydantic-ai model that follows a script: it replies, calls tools or fails, whole or as a stream.

Needs the extra `pydantic-ai`.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeAlias

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

ScriptedReply: TypeAlias = "str | ModelResponse | Exception"


def tool_call_response(name: str = "look", /, call_id: str = "call", **arguments: object) -> ModelResponse:
    """Return a response that calls one tool."""
    return ModelResponse(parts=[ToolCallPart(name, arguments, call_id)])


class ScriptedAgentModel(FunctionModel):
    """Returns one reply after the other, and records its requests.

    A reply is a text, a response or an error to raise; a function may make each from the messages.
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
        """The tools, settings and instructions of each request."""
        super().__init__(self._next, stream_function=self._streamed, model_name=name)

    @property
    def parts(self) -> list[list[str]]:
        """The kinds of the parts of the last request, by message."""
        return [[part.part_kind for part in message.parts] for message in self.requests[-1]]

    @property
    def prompts(self) -> list[str]:
        """The texts of the prompts in the last request."""
        requests = [message for message in self.requests[-1] if isinstance(message, ModelRequest)]
        contents = [part.content for message in requests for part in message.parts if part.part_kind == "user-prompt"]
        return [content for content in contents if isinstance(content, str)]

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = len(self.requests)
        self.requests.append(list(messages))
        self.request_infos.append(info)
        reply = self._replies(messages) if callable(self._replies) else self._replies[number]
        if isinstance(reply, Exception):
            raise reply
        return ModelResponse(parts=[TextPart(reply)]) if isinstance(reply, str) else reply

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
