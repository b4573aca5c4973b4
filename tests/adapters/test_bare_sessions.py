"""A session in a loop of one's own, async or blocking, keeps what the adapters of frameworks promise."""

import asyncio
import concurrent.futures
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast import Session, blocking
from holdfast.delegation import SEES_NOTHING
from holdfast.testing.agent_contract import (
    CONTRACT_BUDGET,
    CONTRACT_SESSION,
    DELEGATE_TASK_TOOL,
    LOOK_TOOL,
    AgentContract,
    AgentHarness,
    ScriptedCalls,
    ScriptedProviderError,
    look_result,
)
from holdfast.testing.chat import JsonMessage, tool_result_message, user_message
from holdfast.wire.request import Request

TOOLS: list[Mapping[str, object]] = [{"name": LOOK_TOOL}, {"name": DELEGATE_TASK_TOOL}, {"name": "recall"}]


class BareHarness(AgentHarness):
    """A loop around the model as a program without a framework has it."""

    format: ClassVar[str] = "openai-chat"

    async def ask(self, request: Request, number: int) -> JsonMessage:
        """Return the model's reply to a request."""
        reply = await self.next_reply([dict(one) for one in request.messages], [str(tool["name"]) for tool in TOOLS])
        if isinstance(reply, ScriptedCalls):
            functions = [{"name": name, "arguments": json.dumps(given)} for name, given in reply.calls]
            calls = [
                {"id": f"call_{number}_{index}", "type": "function", "function": function}
                for index, function in enumerate(functions)
            ]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        return {"role": "assistant", "content": reply}


class AsyncHarness(BareHarness):
    session: Session | None = None

    async def turn(self, prompt: str, *, is_streamed: bool = False) -> str:
        del is_streamed
        if self.session is None:
            self.session = await Session.open(CONTRACT_SESSION, store=self.store_url)
        await self.session.record([user_message(prompt)])
        return await self.work(self.session)

    async def work(self, agent: Any) -> str:
        try:
            return await self.steps(agent)
        except asyncio.CancelledError:
            await agent.interrupt()
            raise

    async def steps(self, agent: Any) -> str:
        while True:
            request = await agent.prepare(CONTRACT_BUDGET, has_recall=True)
            while True:
                try:
                    reply = await self.ask(request, len(self.calls))
                    break
                except ScriptedProviderError as error:
                    is_outage = error.status_code == 503
                    request = await (agent.prepare(CONTRACT_BUDGET) if is_outage else agent.retry(error))
            await agent.record([reply])
            calls: Any = reply.get("tool_calls")
            if not calls:
                return str(reply["content"])
            for call in calls:
                await agent.record([tool_result_message(call["id"], await self.tool(agent, call["function"]))])

    async def tool(self, agent: Any, function: Any) -> str:
        arguments = json.loads(function["arguments"])
        if function["name"] == LOOK_TOOL:
            return look_result(arguments["query"])
        if function["name"] == "recall":
            return await agent.recall_tool().call(arguments)
        async with agent.delegate("counter", task=arguments["task"], sees=SEES_NOTHING, main_sees="recall") as child:
            answer = await self.work(child)
            return str(await child.answer(answer))

    async def restart(self) -> None:
        await self.close()
        self.session = None

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()


class BlockingHarness(BareHarness):
    """The same loop without async, in a thread."""

    session: blocking.Session | None = None
    asked: concurrent.futures.Future[JsonMessage] | None = None

    async def turn(self, prompt: str, *, is_streamed: bool = False) -> str:
        del is_streamed
        thread = asyncio.ensure_future(asyncio.to_thread(self.blocking_turn, prompt, asyncio.get_running_loop()))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            # What a thread waits for can be stopped, the thread itself cannot.
            assert self.asked is not None
            self.asked.cancel()
            await asyncio.wait({thread})
            raise

    def blocking_turn(self, prompt: str, loop: asyncio.AbstractEventLoop) -> str:
        if self.session is None:
            self.session = blocking.Session.open(CONTRACT_SESSION, store=self.store_url)
        self.session.record([user_message(prompt)])
        try:
            return self.work(self.session, loop)
        except concurrent.futures.CancelledError:
            self.session.interrupt()
            raise

    def work(self, agent: Any, loop: asyncio.AbstractEventLoop) -> str:
        while True:
            request = agent.prepare(CONTRACT_BUDGET, has_recall=True)
            while True:
                try:
                    self.asked = asyncio.run_coroutine_threadsafe(self.ask(request, len(self.calls)), loop)
                    reply = self.asked.result()
                    break
                except ScriptedProviderError as error:
                    request = agent.prepare(CONTRACT_BUDGET) if error.status_code == 503 else agent.retry(error)
            agent.record([reply])
            calls: Any = reply.get("tool_calls")
            if not calls:
                return str(reply["content"])
            for call in calls:
                agent.record([tool_result_message(call["id"], self.tool(agent, call["function"], loop))])

    def tool(self, agent: Any, function: Any, loop: asyncio.AbstractEventLoop) -> str:
        arguments = json.loads(function["arguments"])
        if function["name"] == LOOK_TOOL:
            return look_result(arguments["query"])
        if function["name"] == "recall":
            return agent.recall_tool().call(arguments)
        with agent.delegate("counter", task=arguments["task"], sees=SEES_NOTHING, main_sees="recall") as child:
            return str(child.answer(self.work(child, loop)))

    async def restart(self) -> None:
        await self.close()
        self.session = None

    async def close(self) -> None:
        if self.session is not None:
            await asyncio.to_thread(self.session.close)


class TestAsyncSession(AgentContract):
    @pytest.fixture
    async def agent(self, tmp_path: Path) -> AsyncIterator[AgentHarness]:
        harness = AsyncHarness(f"sqlite:///{tmp_path / 'chats.db'}")
        yield harness
        await harness.close()


class TestBlockingSession(AgentContract):
    @pytest.fixture
    async def agent(self, tmp_path: Path) -> AsyncIterator[AgentHarness]:
        harness = BlockingHarness(f"sqlite:///{tmp_path / 'chats.db'}")
        yield harness
        await harness.close()
