"""litellm: trim_messages and compress, and a loop of its own calls. It has no agent and stores nothing on disk."""

import json
from collections.abc import Callable
from typing import Any

import litellm
from litellm.compression import compress
from litellm.utils import trim_messages
from serving import AGENT, SYSTEM, TRIGGER, Json, Loop, Way, serve

litellm.telemetry = False
TOOL = {
    "type": "function",
    "function": {
        "name": "read_part",
        "description": "Read a part of the document.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}


class Calling(Way):
    """Both are stateless: they receive the whole list each time."""

    has_state = False

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self.request: list[Json] = []

    def take(self, messages: list[Json]) -> None:
        self.messages = [*self.messages, *messages]

    def sent(self) -> list[Json]:
        return self.request


class Trimming(Calling):
    """trim_messages, to the budget."""

    def __init__(self, budget: int) -> None:
        super().__init__()
        self._budget = budget

    def prepare(self) -> None:
        self.request = trim_messages(self.messages, model=AGENT, max_tokens=self._budget)


class Compressing(Calling):
    """Compress: stubs replace what seems least relevant, and a tool returns it by its key."""

    def __init__(self, budget: int) -> None:
        super().__init__()
        self._budget = budget
        self._cache: dict[str, str] = {}

    def prepare(self) -> None:
        target = int(self._budget * TRIGGER)
        done = compress(self.messages, AGENT, compression_trigger=self._budget, compression_target=target)
        self.request, self._cache = done["messages"], done["cache"]

    def found(self, query: str) -> str:
        return "\n".join(text for text in self._cache.values() if query in text)


def looped(loop: Loop, fitting: Callable[[list[Json]], list[Json]]) -> str:
    messages: list[Json] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": loop.prompt}]
    while True:
        response: Any = litellm.completion(
            f"openai/{AGENT}", fitting(messages), tools=[TOOL], api_base=loop.url, api_key="none", max_retries=0
        )
        answer = response.choices[0].message
        if not answer.tool_calls:
            return answer.content
        messages.append({**answer.model_dump(include={"role", "tool_calls"}), "content": answer.content or ""})
        for call in answer.tool_calls:
            number = json.loads(call.function.arguments)["number"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": loop.read_part(number)})


def run_trimming(loop: Loop) -> str:
    return looped(loop, lambda messages: trim_messages(messages, model=AGENT, max_tokens=loop.trigger))


def run_compressing(loop: Loop) -> str:
    sizes: Any = {"compression_trigger": loop.trigger, "compression_target": loop.window // 2}
    return looped(loop, lambda messages: compress(messages, AGENT, **sizes)["messages"])


serve(
    ways={"litellm trim_messages": Trimming, "litellm compress": Compressing},
    runs={"litellm trim_messages": run_trimming, "litellm compress": run_compressing},
)
