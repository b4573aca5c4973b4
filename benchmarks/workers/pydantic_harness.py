"""pydantic-ai-harness' compactions; run inside an environment that has it."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

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
from pydantic_ai.models.test import TestModel
from pydantic_ai_harness.compaction import (
    ClearToolResults,
    SlidingWindowCompaction,
    SummarizingCompaction,
    TieredCompaction,
    compact_now,
)

MODEL = TestModel(custom_output_text="Summary of the conversation so far: files were read and fixed.")


def to_native(messages: list[dict[str, Any]]) -> list[ModelMessage]:
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


def to_chat(messages: list[ModelMessage]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            calls = [
                {
                    "id": part.tool_call_id,
                    "type": "function",
                    "function": {"name": part.tool_name, "arguments": part.args},
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


def strategies(budget: int) -> dict[str, Any]:
    keep = budget * 7 // 8
    return {
        "harness sliding window": SlidingWindowCompaction(max_tokens=budget, keep_tokens=keep),
        "harness tiered": TieredCompaction(
            tiers=[
                ClearToolResults(max_tokens=1),
                SummarizingCompaction(model=MODEL, max_messages=1, keep_tokens=keep // 2),
            ],
            target_tokens=budget,
        ),
    }


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    answers: list[dict[str, Any]] = []
    for case in task["cases"]:
        native = to_native(case["messages"])
        for name, strategy in strategies(task["budget"]).items():
            times: list[float] = []
            result: list[ModelMessage] = []
            while len(times) < task["repeats"] and sum(times) < task["seconds"]:
                started = time.perf_counter()
                result = asyncio.run(compact_now(strategy, native, model=MODEL))
                times.append(time.perf_counter() - started)
            answers.append({"name": name, "case": case["name"], "seconds": times, "messages": to_chat(result)})
    print(json.dumps(answers))


main()
