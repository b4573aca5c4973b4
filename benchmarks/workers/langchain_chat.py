"""What the workers of LangChain and deepagents share: messages, a fake model, and a model on the loopback."""

from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from serving import AGENT, SUMMARIZER, SUMMARY, Json, Loop, Way, text_of


class Recording(BaseChatModel):
    """Writes the same summary for every prompt, and stores the prompt."""

    shown: Any

    @property
    def _llm_type(self) -> str:
        return "recording"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.shown.append("\n".join(text_of(message.content) for message in messages))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(SUMMARY))])


class RecordingWay(Way):
    """A method over LangChain's messages."""

    def __init__(self) -> None:
        self.shown = []
        self.messages: list[BaseMessage] = []
        self.request: list[BaseMessage] = []

    def take(self, messages: list[Json]) -> None:
        self.messages = [*self.messages, *convert_to_messages(messages)]

    def sent(self) -> list[Json]:
        return convert_to_openai_messages(self.request)


def _asked(model: str, loop: Loop, window: int | None = None) -> ChatOpenAI:
    profile: Any = {"max_input_tokens": window} if window else None
    return ChatOpenAI(
        model=model, base_url=loop.url, api_key="none", use_responses_api=False, max_retries=0, profile=profile
    )


def agent_model(loop: Loop) -> ChatOpenAI:
    """Return the model that calls the tool; it knows its window."""
    return _asked(AGENT, loop, loop.window)


def summary_model(loop: Loop) -> ChatOpenAI:
    """Return the model that writes summaries."""
    return _asked(SUMMARIZER, loop, loop.window)


def tool_of(loop: Loop) -> StructuredTool:
    """Return the tool that reads a part."""
    return StructuredTool.from_function(
        func=loop.read_part, name="read_part", description="Read a part of the document."
    )
