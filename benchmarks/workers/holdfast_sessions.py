"""Holdfast itself, measured like its peers, and an agent without any library as the baseline."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from serving import AGENT, SUMMARIZER, SUMMARY, SYSTEM, Json, Loop, Way, serve

from holdfast import Session
from holdfast.adapters.pydantic_ai import Holdfast
from holdfast.core.history.events import Usage
from holdfast.models.base import ModelReply, SummaryPrompt
from holdfast.models.openai_compatible import ChatSummarizer

UNLIMITED = UsageLimits(request_limit=None)


class Recording:
    """Writes the same summary for every prompt, and stores the prompt."""

    name, window = SUMMARIZER, 200_000

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        self.shown.append(f"{prompt.system}\n{prompt.text}")
        return ModelReply(text=SUMMARY, model=self.name, usage=Usage(input_tokens=1, output_tokens=1))


class Keeping(Way):
    """A session with the default policy and a summarizer."""

    def __init__(self, budget: int) -> None:
        writer = Recording()
        self.shown = writer.shown
        self._budget = budget
        self._runner = asyncio.Runner()
        self._session = self._runner.run(self._opened(writer))
        self.request: Sequence[Any] = []

    async def _opened(self, writer: Recording) -> Session:
        return await Session.open("s", store="memory://", model=AGENT, summarizer=writer)

    def take(self, messages: list[Json]) -> None:
        self._runner.run(self._taken(messages))

    async def _taken(self, messages: list[Json]) -> None:
        await self._session.record(messages)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:  # a summary is written while the model answers
            await asyncio.wait(others)

    def prepare(self) -> None:
        self.request = self._runner.run(self._session.prepare(self._budget, has_recall=True)).messages

    def sent(self) -> list[Json]:
        return [dict(message) for message in self.request]

    def found(self, query: str) -> str:
        tool = self._session.recall_tool()
        return self._runner.run(self._asked(tool, query))

    async def _asked(self, tool: Any, query: str) -> str:
        return await tool.call({"query": query})


def agent_of(loop: Loop, *capabilities: Any) -> Agent[None, str]:
    model = OpenAIChatModel(AGENT, provider=OpenAIProvider(base_url=loop.url, api_key="none"))
    return Agent(model, system_prompt=SYSTEM, tools=[loop.read_part], capabilities=capabilities)


async def kept(loop: Loop) -> str:
    writer = ChatSummarizer(loop.url, SUMMARIZER, window=loop.window)
    async with Holdfast(store="memory://", budget=loop.window, model=AGENT, summarizer=writer) as governed:
        return (await agent_of(loop, governed).run(loop.prompt, usage_limits=UNLIMITED)).output


def run_bare(loop: Loop) -> str:
    return agent_of(loop).run_sync(loop.prompt, usage_limits=UNLIMITED).output


serve(
    ways={"Holdfast": Keeping},
    runs={"full history, no library": run_bare, "Holdfast": lambda loop: asyncio.run(kept(loop))},
)
