"""pydantic-ai-harness: its compactions, and its StepPersistence."""

import asyncio
from typing import Any

from opentelemetry.trace import NoOpTracer
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_ai_harness.compaction import (
    ClearToolResults,
    SlidingWindowCompaction,
    SummarizingCompaction,
    TieredCompaction,
)
from pydantic_ai_harness.step_persistence import SqliteStepStore, StepPersistence, continue_run
from serving import AGENT, KEEP, SLIDE_TO, SUMMARIZER, SUMMARY, SYSTEM, TRIGGER, Json, Loop, Way, bytes_in, serve

UNLIMITED = UsageLimits(request_limit=None)


def to_native(messages: list[Json]) -> list[ModelMessage]:
    names: dict[str, str] = {}
    out: list[ModelMessage] = []
    for message in messages:
        role, content = message["role"], message.get("content")
        if role == "assistant":
            calls = message.get("tool_calls") or []
            names |= {call["id"]: call["function"]["name"] for call in calls}
            parts = [TextPart(content)] if content else []
            tools = [
                ToolCallPart(call["function"]["name"], call["function"]["arguments"], tool_call_id=call["id"])
                for call in calls
            ]
            out.append(ModelResponse(parts=[*parts, *tools]))
            continue
        if role == "tool":
            part = ToolReturnPart(names[message["tool_call_id"]], content, tool_call_id=message["tool_call_id"])
        else:
            part = SystemPromptPart(content) if role == "system" else UserPromptPart(content)
        if out and isinstance(out[-1], ModelRequest):
            out[-1] = ModelRequest(parts=[*out[-1].parts, part])
        else:
            out.append(ModelRequest(parts=[part]))
    return out


def to_chat(messages: list[ModelMessage]) -> list[Json]:
    out: list[Json] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            calls = [
                {
                    "id": part.tool_call_id,
                    "type": "function",
                    "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
                }
                for part in message.parts
                if isinstance(part, ToolCallPart)
            ]
            text = "".join(part.content for part in message.parts if isinstance(part, TextPart))
            out.append({"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})})
            continue
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                out.append({"role": "tool", "tool_call_id": part.tool_call_id, "content": str(part.content)})
            else:
                role = "system" if isinstance(part, SystemPromptPart) else "user"
                out.append({"role": role, "content": str(getattr(part, "content", ""))})
    return out


def strategies(budget: int, model: Any) -> dict[str, Any]:
    """Return the three strategies, with the same sizes as the other peers."""
    trigger, keep = int(budget * TRIGGER), int(budget * KEEP)
    summarising = SummarizingCompaction(model=model, max_tokens=trigger, keep_tokens=keep)
    last = SummarizingCompaction(model=model, max_messages=1, keep_tokens=keep)
    return {
        "harness SlidingWindow": SlidingWindowCompaction(max_tokens=trigger, keep_tokens=int(budget * SLIDE_TO)),
        "harness Summarizing": summarising,
        "harness Tiered": TieredCompaction(tiers=[ClearToolResults(max_tokens=1), last], target_tokens=trigger),
    }


class Compacting(Way):
    """A strategy as an agent's run calls it before each request; its output replaces the list."""

    def __init__(self, budget: int, name: str) -> None:
        self.shown = None if name.endswith("Window") else []
        self._model = FunctionModel(self._summarised)
        self._strategy = strategies(budget, self._model)[name]
        self.messages: list[ModelMessage] = []
        self._runner = asyncio.Runner()

    def _summarised(self, messages: list[ModelMessage], info: Any) -> ModelResponse:
        texts = [str(getattr(part, "content", "")) for message in messages for part in message.parts]
        self.shown.append("\n".join([info.instructions or "", *texts]))
        return ModelResponse(parts=[TextPart(SUMMARY)])

    def take(self, messages: list[Json]) -> None:
        added = to_native(messages)
        if self.messages and isinstance(self.messages[-1], ModelRequest) and isinstance(added[0], ModelRequest):
            parts = [*self.messages[-1].parts, *added[0].parts]
            self.messages, added = [*self.messages[:-1], ModelRequest(parts=parts)], added[1:]
        self.messages = [*self.messages, *added]

    def prepare(self) -> None:
        self.messages = self._runner.run(self._prepared())

    async def _prepared(self) -> list[ModelMessage]:
        """Return what an agent's run would send; the strategy itself decides when to compact."""
        model, messages = self._model, self.messages
        run = RunContext(deps=None, model=model, usage=RunUsage(), tracer=NoOpTracer(), messages=messages)
        request = ModelRequestContext(
            model=model,
            messages=messages,
            model_settings=None,
            model_request_parameters=ModelRequestParameters(),
        )
        return (await self._strategy.before_model_request(run, request)).messages

    def sent(self) -> list[Json]:
        return to_chat(self.messages)


def model_of(name: str, loop: Loop) -> OpenAIChatModel:
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=loop.url, api_key="none"))


def run_with(name: str, loop: Loop) -> str:
    strategy = strategies(loop.window, model_of(SUMMARIZER, loop))[name]
    agent = Agent(model_of(AGENT, loop), system_prompt=SYSTEM, tools=[loop.read_part], capabilities=[strategy])
    return agent.run_sync(loop.prompt, usage_limits=UNLIMITED).output


async def kept(steps: list[list[Json]], folder: str) -> Json:
    """Run an agent through the steps, each stored as it is made."""
    store = SqliteStepStore(database=f"{folder}/steps.db")
    (system, prompt), *rest = steps
    replies, results = iter(rest), {m["tool_call_id"]: m["content"] for step in rest for m in step[1:]}

    def reply(_: list[ModelMessage], __: Any) -> ModelMessage:
        step = next(replies, None)
        return to_native(step[:1])[0] if step else ModelResponse(parts=[TextPart("done")])

    def read(ctx: RunContext[None], path: str, start: int, end: int) -> str:  # noqa: ARG001 - as the model calls it
        return results[ctx.tool_call_id]

    keeping = StepPersistence(store=store, run_id="run")
    agent = Agent(FunctionModel(reply), system_prompt=system["content"], capabilities=[keeping])
    agent.tool(read, name=rest[0][0]["tool_calls"][0]["function"]["name"])
    await agent.run(prompt["content"], usage_limits=UNLIMITED)
    back = to_chat(await continue_run(store, run_id="run"))
    return {"bytes": bytes_in(folder), "messages": len(back) - 1}  # the run ends with one answer more


NAMES = ("harness SlidingWindow", "harness Summarizing", "harness Tiered")
serve(
    ways={name: lambda budget, name=name: Compacting(budget, name) for name in NAMES},
    runs={name: lambda loop, name=name: run_with(name, loop) for name in NAMES},
    keeps={"harness StepPersistence": lambda steps, folder: asyncio.run(kept(steps, folder))},
)
