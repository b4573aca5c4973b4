"""deepagents: its SummarizationMiddleware, which stores what it compacts in files that the agent can search."""

import tempfile
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents.middleware.summarization import create_summarization_middleware
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_chat import Recording, RecordingWay, agent_model, summary_model, tool_of
from langchain_core.messages import AIMessage
from serving import SYSTEM, Loop, serve

CONFIG: Any = {"recursion_limit": 1_000_000}


def backend() -> FilesystemBackend:
    return FilesystemBackend(root_dir=tempfile.mkdtemp(), virtual_mode=True)


class Summarising(RecordingWay):
    """The middleware as deepagents configures it: it compacts at 85 % of the window and keeps 10 %."""

    def __init__(self, budget: int) -> None:
        super().__init__()
        self._model = Recording(shown=self.shown, profile={"max_input_tokens": budget})
        self._backend = backend()
        self._middleware = create_summarization_middleware(self._model, self._backend)
        self._state: Any = {}

    def prepare(self) -> None:
        system, rest = self.messages[0], self.messages[1:]
        state = {**self._state, "messages": rest}
        request = ModelRequest(model=self._model, messages=rest, system_message=system, state=state, tools=[])
        response = self._middleware.wrap_model_call(request, self._handled)
        if isinstance(response, ExtendedModelResponse) and response.command:
            self._state = {**self._state, **response.command.update}

    def _handled(self, request: Any) -> ModelResponse:
        self.request = [request.system_message, *request.messages]
        return ModelResponse(result=[AIMessage("done")])

    def found(self, query: str) -> str:
        matches = self._backend.grep(query, "/").matches or []
        return "\n".join(match["text"] for match in matches)


def run_deep(loop: Loop) -> str:
    files, model = backend(), agent_model(loop)
    middleware = create_summarization_middleware(model, files, summarizer=summary_model(loop))
    agent = create_deep_agent(model, [tool_of(loop)], system_prompt=SYSTEM, middleware=[middleware], backend=files)
    return agent.invoke({"messages": [("user", loop.prompt)]}, CONFIG)["messages"][-1].text


NAME = "deepagents"
serve(ways={NAME: Summarising}, runs={NAME: run_deep})
