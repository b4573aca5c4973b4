"""Processor time that Holdfast adds to each model call of an agent, over the bare framework.

    python -m benchmarks.adapters [--calls | --instructions] [--only FRAMEWORK] [LENGTH …]

Each framework has a conversation of so many messages (by default 10, 1,000 and 10,000) and runs three more turns, each
with twenty tool calls, one after the other, and an answer, with a model that is a script. The turn before them is not
measured: it records the conversation. The time is that of all threads, divided by the number of model calls. Turns
without any hooks, the framework's own share, and turns with hooks that do nothing, what the framework takes for calling
them, alternate with those with Holdfast; a turn is compared with the turn without hooks next to it, which is as long,
and the median of the differences counts. Messages have about 15 tokens, and the budget holds all of them. The first row
is a session in a loop of one's own: what is above it is the adapter's.

With `--calls` it counts the calls of functions instead, those of the interpreter included. They are the same in every
run, whatever else the machine does; but they do not show what one function does to a long list. With `--instructions`
it counts the instructions of the processor in one more turn, of all threads and without the kernel's; it needs valgrind
and about a minute for each number.
"""

import argparse
import asyncio
import gc
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from benchmarks.tables import markdown_table

LENGTHS = (10, 1_000, 10_000)
STEPS, TURNS = 20, 3
BUDGET = 400_000
CALL_NUMBERS = count()
"""Each call has an id of its own: a request in which one is repeated is repaired, which takes longer."""
RunTurn = Callable[[str], Awaitable[object]]
Hooks = Literal["none", "idle", "Holdfast"]
"""What runs before and after a model call: nothing, hooks that do nothing, or those of Holdfast."""


def past_texts(length: int) -> list[str]:
    return [f"Message {number} of a conversation about the tides and the boats in it." for number in range(length)]


def session_turn(length: int, *, hooks: Hooks) -> RunTurn:
    from holdfast import Session
    from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

    opened: list[Session] = []

    async def turn(prompt: str) -> None:
        if hooks != "Holdfast":
            return
        if not opened:
            opened.append(await Session.open("c"))
            texts = enumerate(past_texts(length))
            await opened[0].record([user_message(one) if at % 2 == 0 else assistant_message(one) for at, one in texts])
        await opened[0].record([user_message(prompt)])
        for step in range(STEPS):
            await opened[0].prepare(BUDGET)
            await opened[0].record([tool_call_message(f"{prompt}{step}", name="look", arguments={})])
            await opened[0].record([tool_result_message(f"{prompt}{step}", "nothing")])
        await opened[0].prepare(BUDGET)
        await opened[0].record([assistant_message("done")])

    return turn


def pydantic_ai_turn(length: int, *, hooks: Hooks) -> RunTurn:
    from pydantic_ai import Agent, ModelRequest, ModelResponse, TextPart, UserPromptPart
    from pydantic_ai.capabilities import AbstractCapability

    from holdfast.adapters.pydantic_ai import Holdfast
    from holdfast.testing.agents import ScriptedAgentModel, tool_call_response

    steps = {"left": STEPS}

    def reply(_: object) -> Any:
        steps["left"] -= 1
        return tool_call_response("look", f"call_{next(CALL_NUMBERS)}") if steps["left"] >= 0 else "done"

    class Idle(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            del ctx
            return request_context

        async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
            del ctx, request_context
            return response

    chosen: dict[Hooks, list[Any]] = {"none": [], "idle": [Idle()], "Holdfast": [Holdfast(budget=BUDGET)]}
    agent = Agent(ScriptedAgentModel(reply), capabilities=chosen[hooks])

    @agent.tool_plain
    def look() -> str:
        """Look."""
        return "nothing"

    history: list[Any] = [
        ModelRequest(parts=[UserPromptPart(text)]) if number % 2 == 0 else ModelResponse(parts=[TextPart(text)])
        for number, text in enumerate(past_texts(length))
    ]

    async def turn(prompt: str) -> None:
        steps["left"] = STEPS
        result = await agent.run(prompt, message_history=history, conversation_id="c")
        history[:] = result.all_messages()

    return turn


def langchain_turn(length: int, *, hooks: Hooks) -> RunTurn:
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool
    from langgraph.checkpoint.memory import InMemorySaver

    from holdfast.adapters.langchain import HoldfastMiddleware

    steps = {"left": STEPS}

    class Script(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "script"

        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

        def _generate(self, *_: Any, **__: Any) -> ChatResult:
            steps["left"] -= 1
            call: Any = {"name": "look", "args": {}, "id": f"call_{next(CALL_NUMBERS)}"}
            answer = AIMessage("", tool_calls=[call]) if steps["left"] >= 0 else AIMessage("done")
            return ChatResult(generations=[ChatGeneration(message=answer)])

    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    class Idle(AgentMiddleware[Any, Any, Any]):
        # No coroutine functions, as those of Holdfast are none: each call of one visits a thread twice.
        def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

        def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

    chosen: dict[Hooks, list[Any]] = {
        "none": [], "idle": [Idle()], "Holdfast": [HoldfastMiddleware(budget=BUDGET)],
    }  # fmt: skip
    agent = create_agent(Script(), [look], middleware=chosen[hooks], checkpointer=InMemorySaver())
    past = [HumanMessage(text) if at % 2 == 0 else AIMessage(text) for at, text in enumerate(past_texts(length))]
    config: Any = {"configurable": {"thread_id": "c"}, "recursion_limit": 10 * STEPS}

    async def turn(prompt: str) -> None:
        steps["left"] = STEPS
        given: Any = {"messages": [*past, HumanMessage(prompt)]}
        past.clear()
        await agent.ainvoke(given, config)

    return turn


def openai_agents_turn(length: int, *, hooks: Hooks) -> RunTurn:
    from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
    from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

    from holdfast.adapters.openai_agents import HoldfastSession

    set_tracing_disabled(disabled=True)
    kept, steps = HoldfastSession("c", budget=BUDGET), {"left": STEPS, "number": 0}

    def respond(_: object) -> ModelStep:
        steps["left"] -= 1
        steps["number"] += 1
        call = function_call("look", "{}", call_id=f"call_{steps['number']}")
        answer = assistant_message("done", item_id=f"msg_{steps['number']}")
        return ModelStep(output=[call if steps["left"] >= 0 else answer])

    @function_tool
    def look() -> str:
        """Look."""
        return "nothing"

    agent = Agent(
        name="a",
        model=ScriptedModel([ModelStep.respond(respond) for _ in range((TURNS + 1) * (STEPS + 1))]),
        tools=[look],
    )
    items: list[Any] = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": text}
        for number, text in enumerate(past_texts(length))
    ]

    async def turn(prompt: str) -> None:
        steps["left"] = STEPS
        idle = RunConfig(call_model_input_filter=lambda data: data.model_data)
        config = {"none": RunConfig(), "idle": idle, "Holdfast": kept.run_config()}[hooks]
        given: Any = [*items, {"role": "user", "content": prompt}]
        result = await Runner.run(agent, given, run_config=config, max_turns=2 * STEPS)
        items[:] = result.to_input_list()

    return turn


def google_adk_turn(length: int, *, hooks: Hooks) -> RunTurn:  # noqa: C901 - the model, the tool and the hooks of ADK
    from google.adk.agents import LlmAgent
    from google.adk.apps import App
    from google.adk.events import Event
    from google.adk.models import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins import BasePlugin
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    from holdfast.adapters.google_adk import HoldfastPlugin

    steps = {"left": STEPS}

    class Script(BaseLlm):
        async def generate_content_async(self, *_: Any, **__: Any) -> AsyncGenerator[LlmResponse, None]:
            steps["left"] -= 1
            call = types.FunctionCall(name="look", args={}, id=f"call_{next(CALL_NUMBERS)}")
            # Gemini 3 signs its calls; a call without a signature is repaired in every request.
            signed = types.Part(function_call=call, thought_signature=b"signed")
            part = signed if steps["left"] >= 0 else types.Part(text="done")
            yield LlmResponse(content=types.Content(role="model", parts=[part]))

    def look() -> str:
        """Look."""
        return "nothing"

    agent = LlmAgent(name="a", model=Script(model="gemini-3-pro"), tools=[look])

    class Idle(BasePlugin):
        async def before_model_callback(self, **_: Any) -> None:
            return None

        async def after_model_callback(self, **_: Any) -> None:
            return None

        async def before_tool_callback(self, **_: Any) -> None:
            return None

        async def after_tool_callback(self, **_: Any) -> None:
            return None

    chosen: dict[Hooks, list[Any]] = {"none": [], "idle": [Idle("idle")], "Holdfast": [HoldfastPlugin(budget=BUDGET)]}
    runner = InMemoryRunner(app=App(name="app", root_agent=agent, plugins=chosen[hooks]))
    texts = past_texts(length)

    async def turn(prompt: str) -> None:
        steps["left"] = STEPS
        if texts:
            session = await runner.session_service.create_session(app_name="app", user_id="u", session_id="c")
            for number, text in enumerate(texts):
                role, author = ("user", "user") if number % 2 == 0 else ("model", "a")
                content = types.Content(role=role, parts=[types.Part(text=text)])
                await runner.session_service.append_event(session, Event(author=author, content=content))
            texts.clear()
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        async for _ in runner.run_async(user_id="u", session_id="c", new_message=message):
            pass

    return turn


FRAMEWORKS: dict[str, Callable[..., RunTurn]] = {
    "a session alone": session_turn,
    "pydantic-ai": pydantic_ai_turn,
    "LangChain": langchain_turn,
    "OpenAI Agents SDK": openai_agents_turn,
    "Google ADK": google_adk_turn,
}


async def call_milliseconds(make: Callable[..., RunTurn], length: int) -> tuple[float, float, float]:
    """Return the processor time of one model call, in milliseconds: without hooks, and what idle ones and ours add."""
    turns = [make(length, hooks=hooks) for hooks in get_args(Hooks)]
    times: list[list[float]] = [[] for _ in turns]
    for turn in turns:
        await turn("And now?")
    for number in range(TURNS):
        for turn, measured in zip(turns, times, strict=True):
            gc.collect()
            gc.freeze()  # else a collection of all that frameworks keep falls into one turn or another
            began = time.process_time()
            await turn(f"And then, {number}?")
            measured.append(1_000 * (time.process_time() - began) / (STEPS + 1))
    own, idle, governed = times
    return (
        median(own),
        median(with_hooks - without for with_hooks, without in zip(idle, own, strict=True)),
        median(with_hooks - without for with_hooks, without in zip(governed, own, strict=True)),
    )


async def function_calls(make: Callable[..., RunTurn], length: int) -> tuple[float, float, float]:
    """Return the calls of functions in one model call: without hooks, and what idle ones and ours add."""
    from holdfast.session.background_loop import BACKGROUND_LOOP

    def note(_: object, event: str, __: object) -> None:
        if event in {"call", "c_call"}:
            counted[-1] += 1

    async def profile_background(function: Callable[..., None] | None) -> None:
        sys.setprofile(function)  # of the thread that runs this

    counted: list[int] = []
    for hooks in get_args(Hooks):
        turn = make(length, hooks=hooks)
        for prompt in ("And now?", "And then?"):
            await turn(prompt)
        counted.append(0)
        await BACKGROUND_LOOP.await_result(profile_background(note))
        sys.setprofile(note)
        await turn("And more?")
        sys.setprofile(None)
        await BACKGROUND_LOOP.await_result(profile_background(None))
    own, idle, governed = (count / (STEPS + 1) for count in counted)
    return own, idle - own, governed - own


async def thousand_instructions(make: Callable[..., RunTurn], length: int) -> tuple[float, float, float]:
    """Return the instructions of one model call, in thousands: without hooks, and what idle ones and ours add."""
    name = next(name for name, one in FRAMEWORKS.items() if one is make)
    own, idle, governed = (turn_instructions(name, length, hooks) / (STEPS + 1) / 1_000 for hooks in get_args(Hooks))
    return own, idle - own, governed - own


def turn_instructions(name: str, length: int, hooks: Hooks) -> int:
    with TemporaryDirectory() as folder:
        valgrind = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts")
        child = (sys.executable, "-m", "benchmarks.adapters", "--turn", hooks, "--only", name, str(length))
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        subprocess.run([*valgrind, *child], check=True, capture_output=True, env=environment)
        # The second dump is of nothing but a dump, the third of a turn and a dump.
        dumps = [Path(folder, f"counts.{number}").read_text() for number in (2, 3)]
    nothing, turn = (int(text.rpartition("\ntotals: ")[2].split()[0]) for text in dumps)
    return turn - nothing


async def run_counted_turn(make: Callable[..., RunTurn], length: int, hooks: Hooks) -> None:
    """Run a turn between two dumps of callgrind, under which this process runs."""

    def control(option: str) -> None:
        subprocess.run(["callgrind_control", option, str(os.getpid())], check=True, capture_output=True)

    turn = make(length, hooks=hooks)
    for prompt in ("And now?", "And then?"):
        await turn(prompt)
    gc.collect()
    gc.freeze()
    for option in ("--instr=on", "--dump", "--dump"):
        control(option)
    await turn("And more?")
    control("--dump")


def adapter_rows(frameworks: Sequence[str], lengths: Sequence[int], unit: str) -> list[list[str]]:
    measure, digits = UNITS[unit]
    rows: list[list[str]] = []
    for name in frameworks:
        cells: list[str] = []
        for length in lengths:
            own, idle, governed = asyncio.run(measure(FRAMEWORKS[name], length))
            cells.append(f"{governed:,.{digits}f} (idle hooks {idle:,.{digits}f}, own {own:,.{digits}f})")
        rows.append([name, *cells])
        print(markdown_table(["", *map(str, lengths)], rows[-1:]).splitlines()[-1], file=sys.stderr)
    return rows


UNITS: dict[str, tuple[Callable[..., Any], int]] = {
    "Milliseconds of processor time": (call_milliseconds, 1),
    "Calls of functions": (function_calls, 0),
    "Thousand instructions": (thousand_instructions, 0),
}
"""What to measure, with the digits after the point."""


def main() -> None:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lengths", nargs="*", type=int, metavar="LENGTH", help="messages of the conversation")
    unit = parser.add_mutually_exclusive_group()
    unit.add_argument("--calls", action="store_true", help="count the calls of functions, not the time")
    unit.add_argument("--instructions", action="store_true", help="count instructions with valgrind, not the time")
    unit.add_argument("--turn", choices=get_args(Hooks), help=argparse.SUPPRESS)  # in the process that valgrind runs
    parser.add_argument("--only", choices=list(FRAMEWORKS), metavar="FRAMEWORK", help=", ".join(FRAMEWORKS))
    options = parser.parse_args()
    lengths: list[int] = options.lengths or list(LENGTHS)
    if options.turn is not None:
        asyncio.run(run_counted_turn(FRAMEWORKS[options.only], lengths[0], options.turn))
        return
    what = list(UNITS)[1 if options.calls else 2 if options.instructions else 0]
    print(f"{what} that Holdfast adds to a model call; of them, hooks that do nothing; and the framework's own")
    print("share:\n")
    rows = adapter_rows([options.only] if options.only else list(FRAMEWORKS), lengths, what)
    print(markdown_table(["framework", *(f"{length:,} messages" for length in lengths)], rows))


if __name__ == "__main__":
    main()
