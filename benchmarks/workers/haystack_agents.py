"""Haystack: its compactors, by themselves and as a hook of its agent. It stores no conversations on disk."""

from typing import Any

from haystack import component
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.hooks.compaction import CompactionHook, SlidingWindowCompactor, SummarizationCompactor
from haystack.token_counters import ApproximateTokenCounter
from haystack.tools import Tool
from haystack.utils import Secret
from serving import AGENT, KEEP, SLIDE_TO, SUMMARIZER, SUMMARY, SYSTEM, TRIGGER, Json, Loop, Way, serve

PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}


@component
class Recording:
    """Writes the same summary for every prompt, and stores the prompt."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> Any:
        self.shown.append("\n".join(message.text or "" for message in messages))
        return {"replies": [ChatMessage.from_assistant(SUMMARY)]}


class Compacting(Way):
    """A compactor as the hook calls it; its output replaces the list."""

    def __init__(self, budget: int, *, summarises: bool) -> None:
        writer = Recording()
        self.shown = writer.shown if summarises else None
        self._at, self._to = budget * TRIGGER, int(budget * (KEEP if summarises else SLIDE_TO))
        self._compactor = SummarizationCompactor(writer) if summarises else SlidingWindowCompactor()
        self._counter = ApproximateTokenCounter()
        self.messages: list[ChatMessage] = []

    def take(self, messages: list[Json]) -> None:
        self.messages = [*self.messages, *map(ChatMessage.from_openai_dict_format, messages)]

    def prepare(self) -> None:
        if self._counter.count(self.messages) >= self._at:
            done = self._compactor.compact(self.messages, target_tokens=self._to, token_counter=self._counter)
            self.messages = done or self.messages

    def sent(self) -> list[Json]:
        return [message.to_openai_dict_format() for message in self.messages]


def generator(model: str, loop: Loop) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(Secret.from_token("none"), model, api_base_url=loop.url, max_retries=0)


def run_with(compactor: Any, loop: Loop, to: float) -> str:
    hook = CompactionHook(compactor, context_window=loop.window, compact_at=TRIGGER, compact_to=to)
    tool = Tool("read_part", "Read a part of the document.", PARAMETERS, loop.read_part)
    agent = Agent(
        chat_generator=generator(AGENT, loop),
        tools=[tool],
        system_prompt=SYSTEM,
        hooks={"before_llm": [hook]},
        max_agent_steps=1_000,
    )
    return agent.run(messages=[ChatMessage.from_user(loop.prompt)])["last_message"].text


def run_summarising(loop: Loop) -> str:
    return run_with(SummarizationCompactor(generator(SUMMARIZER, loop)), loop, KEEP)


SLIDING, SUMMARISING = "Haystack SlidingWindow", "Haystack Summarization"
serve(
    ways={
        SLIDING: lambda budget: Compacting(budget, summarises=False),
        SUMMARISING: lambda budget: Compacting(budget, summarises=True),
    },
    runs={SLIDING: lambda loop: run_with(SlidingWindowCompactor(), loop, SLIDE_TO), SUMMARISING: run_summarising},
)
