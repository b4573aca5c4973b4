"""LangChain agents keep the promises of the contract, and more that only LangChain has."""

import asyncio
import copy
import gc
import json
import pickle
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import Any, ClassVar
from unittest.mock import MagicMock
from weakref import ref

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, SummarizationMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from langsmith import Client, tracing_context
from pydantic import BaseModel, Field

from holdfast import Budget, SettingsError
from holdfast.adapters.langchain import MESSAGES, HoldfastMiddleware
from holdfast.core.history import events as log
from holdfast.testing.agent_contract import (
    CONTRACT_BUDGET,
    CONTRACT_SESSION,
    AgentContract,
    AgentHarness,
    ScriptedCalls,
    look_result,
)
from tests.support import run_example, run_page


class ScriptedChatModel(BaseChatModel):
    """Replies as the harness says."""

    harness: Any
    names: tuple[str, ...] = ()

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return ScriptedChatModel(harness=self.harness, names=tuple(one.name for one in tools))

    async def _reply(self, messages: list[BaseMessage]) -> AIMessage:
        natives = [dict(MESSAGES.encode(one)) for one in messages if not isinstance(one, SystemMessage)]
        reply = await self.harness.next_reply(natives, self.names)
        if not isinstance(reply, ScriptedCalls):
            return AIMessage(content=reply)
        number = len(self.harness.calls)
        calls = [
            {"name": name, "args": dict(given), "id": f"call_{number}_{index}", "type": "tool_call"}
            for index, (name, given) in enumerate(reply.calls)
        ]
        return AIMessage(content="", tool_calls=calls)

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=await self._reply(messages))])

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        whole = await self._reply(messages)
        chunk = AIMessageChunk(content=whole.content, tool_calls=whole.tool_calls, chunk_position="last")
        yield ChatGenerationChunk(message=chunk)

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError


class LangChainHarness(AgentHarness):
    format: ClassVar[str] = "openai-chat"

    def __init__(self, store_url: str) -> None:
        super().__init__(store_url)
        self.checkpoints = InMemorySaver()
        self.build()

    def build(self) -> None:
        self.middleware = HoldfastMiddleware(store=self.store_url, budget=CONTRACT_BUDGET)
        model = ScriptedChatModel(harness=self)

        @tool
        def look(query: str) -> str:
            """Look something up."""
            return look_result(query)

        helper = create_agent(model, [look], middleware=[self.middleware], system_prompt="You help.")

        @tool
        async def delegate_task(task: str) -> str:
            """Give a task to the helper."""
            state = await helper.ainvoke({"messages": [HumanMessage(task)]})
            return state["messages"][-1].text

        retry = ModelRetryMiddleware(
            max_retries=2,
            initial_delay=0.0,
            jitter=False,
            retry_on=lambda error: getattr(error, "status_code", 0) == 503,
        )
        self.agent = create_agent(
            model,
            [look, delegate_task],
            middleware=[retry, self.middleware],
            checkpointer=self.checkpoints,
            system_prompt="Be brief.",
        )

    async def turn(self, prompt: str, *, is_streamed: bool = False) -> str:
        config: Any = {"configurable": {"thread_id": CONTRACT_SESSION}}
        given: Any = {"messages": [HumanMessage(prompt)]}
        if not is_streamed:
            return (await self.agent.ainvoke(given, config))["messages"][-1].text
        pieces = [piece async for piece, _ in self.agent.astream(given, config, stream_mode="messages")]
        return "".join(piece.text for piece in pieces if isinstance(piece, AIMessageChunk))

    async def restart(self) -> None:
        await self.close()
        self.build()

    async def close(self) -> None:
        await self.middleware.aclose()


class TestLangChain(AgentContract):
    @pytest.fixture
    async def agent(self, tmp_path: Path) -> AsyncIterator[AgentHarness]:
        harness = LangChainHarness(f"sqlite:///{tmp_path / 'chats.db'}")
        yield harness
        await harness.close()


class RepeatingChatModel(BaseChatModel):
    """Answers every request with a long text, with and without async, and keeps the requests."""

    requests: list[list[BaseMessage]]
    errors: list[Exception] = Field(default_factory=list[Exception])
    answer: str = "word " * 60

    @property
    def _llm_type(self) -> str:
        return "repeating"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.requests.append(list(messages))
        if self.errors:
            raise self.errors.pop()
        usage: Any = {
            "input_tokens": 100, "output_tokens": 5, "total_tokens": 105, "input_token_details": {"cache_read": 60},
        }  # fmt: skip
        message = AIMessage(self.answer, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])


def configured(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


@pytest.fixture
def middleware() -> Iterator[HoldfastMiddleware]:
    made = HoldfastMiddleware(budget=CONTRACT_BUDGET)
    yield made
    made.close()


def test_an_agent_without_async_is_governed_too_and_its_state_stays_whole(middleware: HoldfastMiddleware) -> None:
    model = RepeatingChatModel(requests=[])
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())

    state: Any = {}
    for number in range(60):
        state = agent.invoke({"messages": [HumanMessage(f"{number} " + "say it " * 40)]}, configured("t"))

    assert len(state["messages"]) == 120
    assert len(model.requests[-1]) < 60
    request = middleware.last_request("t")
    assert request is not None
    assert request.tokens.total <= CONTRACT_BUDGET
    assert request.receipt.compacted
    assert middleware.last_request("other") is None


def test_a_message_that_stays_as_it_was_is_sent_as_the_same_object(middleware: HoldfastMiddleware) -> None:
    model = RepeatingChatModel(requests=[])
    agent = create_agent(model, middleware=[middleware], system_prompt="Be brief.")
    thought: Any = [{"type": "thinking", "thinking": "hm", "signature": "s1"}, {"type": "text", "text": "fine"}]
    messages = [HumanMessage("one"), AIMessage(thought), HumanMessage("two")]

    given: Any = {"messages": messages}
    agent.invoke(given, configured("t"))

    assert [message.content for message in model.requests[0]] == ["Be brief.", "one", thought, "two"]
    assert model.requests[0][2] is messages[1]


@pytest.mark.parametrize(
    "file",
    [
        {"type": "image", "base64": "AAAA" * 50_000, "mime_type": "image/png"},
        {"type": "media", "data": b"\x00" * 150_000, "mime_type": "image/png"},
    ],
)
def test_an_image_as_langchain_has_it_is_sent_as_it_is_and_not_counted_as_text(
    middleware: HoldfastMiddleware, file: dict[str, Any]
) -> None:
    model = RepeatingChatModel(requests=[])
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    content: Any = [{"type": "text", "text": "What is this?"}, file]

    agent.invoke({"messages": [HumanMessage(content)]}, configured("t"))
    agent.invoke({"messages": [HumanMessage("and now?")]}, configured("t"))

    assert [message.content for message in model.requests[1]] == [content, model.answer, "and now?"]
    assert middleware.session("t").messages()[0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {name: "AAAA" * 50_000 if name in {"base64", "data"} else value for name, value in file.items()},
    ]


def test_what_the_provider_billed_is_recorded_without_cached_tokens(middleware: HoldfastMiddleware) -> None:
    agent = create_agent(RepeatingChatModel(requests=[]), middleware=[middleware])

    agent.invoke({"messages": [HumanMessage("one")]}, configured("t"))

    events = middleware.session("t").events()
    [_, answer, *_] = [event for event in events if isinstance(event, log.MessageAppended)]
    assert answer.usage == log.Usage(input_tokens=40, output_tokens=5, cache_read_tokens=60)


def test_an_overflow_that_langchain_recognized_is_answered_with_a_smaller_request(
    middleware: HoldfastMiddleware,
) -> None:
    model = RepeatingChatModel(requests=[])
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    for _ in range(6):
        agent.invoke({"messages": [HumanMessage("say it " * 100)]}, configured("t"))
    model.errors.append(ContextOverflowError("too long"))

    agent.invoke({"messages": [HumanMessage("and now?")]}, configured("t"))

    assert len(str(model.requests[-1])) < len(str(model.requests[-2]))
    assert model.requests[-1][-1].content == "and now?"


def test_an_error_that_is_no_overflow_arrives_unchanged(middleware: HoldfastMiddleware) -> None:
    model = RepeatingChatModel(requests=[], errors=[ValueError("no such model")])
    agent = create_agent(model, middleware=[middleware])

    with pytest.raises(ValueError, match="no such model"):
        agent.invoke({"messages": [HumanMessage("one")]}, configured("t"))

    assert len(model.requests) == 1


def test_without_a_thread_id_the_error_says_what_to_pass(middleware: HoldfastMiddleware) -> None:
    agent = create_agent(RepeatingChatModel(requests=[]), middleware=[middleware])

    with pytest.raises(SettingsError, match="thread_id: pass config="):
        agent.invoke({"messages": [HumanMessage("one")]})


def test_one_session_for_all_threads_is_found_by_any_thread_id() -> None:
    middleware = HoldfastMiddleware(session="one", budget=CONTRACT_BUDGET)
    agent = create_agent(RepeatingChatModel(requests=[]), middleware=[middleware])

    agent.invoke({"messages": [HumanMessage("hello")]}, configured("t"))

    request = middleware.last_request("t")
    assert request is not None
    assert request.messages == [{"role": "user", "content": "hello"}]
    assert middleware.last_request() is request
    middleware.close()


def test_langchains_own_summary_counts_as_a_compaction_so_that_recall_still_reaches_the_messages_before_it() -> None:
    middleware = HoldfastMiddleware(budget=CONTRACT_BUDGET)
    model = RepeatingChatModel(requests=[])
    summaries = SummarizationMiddleware(
        RepeatingChatModel(requests=[], answer="they spoke"), trigger=("messages", 7), keep=("messages", 2)
    )
    agent = create_agent(model, middleware=[summaries, middleware], checkpointer=InMemorySaver())

    agent.invoke({"messages": [HumanMessage("the code is KESTREL")]}, configured("t"))
    state: Any = {}
    for _ in range(5):
        state = agent.invoke({"messages": [HumanMessage("go on")]}, configured("t"))

    assert len(state["messages"]) < 12
    session = middleware.session("t")
    done = [one for one in session.events() if isinstance(one, log.CompactionCompleted)]
    assert {event.trigger for event in done} == {"client"}
    assert "the code is KESTREL" in str(session.recall("KESTREL"))
    middleware.close()


def test_a_deep_agent_and_its_sub_agent_share_one_session() -> None:
    middleware = HoldfastMiddleware(budget=60_000)
    calls: Any = [{"name": "task", "args": {"description": "count", "subagent_type": "counter"}, "id": "c1"}]
    replies = iter([AIMessage("", tool_calls=calls), AIMessage("seven"), AIMessage("there are seven")])
    model = ScriptedReplies(replies=replies)
    helper: Any = {
        "name": "counter", "description": "counts", "system_prompt": "Count.", "model": model, "tools": [],
        "middleware": [middleware],
    }  # fmt: skip
    agent = create_deep_agent(model, subagents=[helper], middleware=[middleware])

    state = agent.invoke({"messages": [HumanMessage("how many?")]}, configured("t"))

    [delegation] = middleware.session("t").delegations()
    assert state["messages"][-1].text == "there are seven"
    assert (delegation.started.agent, delegation.started.task, delegation.answer) == ("counter", "count", "seven")
    middleware.close()


class ScriptedReplies(BaseChatModel):
    """Returns one message after the other."""

    replies: Any

    @property
    def _llm_type(self) -> str:
        return "replies"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=next(self.replies))])


class KeepingReplies(ScriptedReplies):
    """Returns one message after the other, and keeps what it was asked."""

    asked: list[list[str]] = Field(default_factory=list[list[str]])
    both_asked: Any = None

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.asked.append([message.text for message in messages])
        if self.both_asked is not None:
            self.both_asked.wait()
        return super()._generate()


class AskedReplies(ScriptedReplies):
    """Returns one message after the other, and keeps the messages that it was asked."""

    requests: list[list[BaseMessage]] = Field(default_factory=list[list[BaseMessage]])

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.requests.append(list(messages))
        return super()._generate()


def told(task: str) -> Any:
    return {"messages": [HumanMessage(task)]}


async def run_with_a_tool(middleware: Sequence[HoldfastMiddleware]) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    calls: Any = [{"name": "look", "args": {}, "id": "c1"}]
    model = ScriptedReplies(replies=iter([AIMessage("", tool_calls=calls), AIMessage("done")]))
    await create_agent(model, [look], middleware=middleware).ainvoke(told("go"), configured("t"))


def test_an_async_agent_that_is_not_traced_visits_no_more_threads_than_without_the_middleware(
    middleware: HoldfastMiddleware, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits: list[object] = []
    run_in_executor = asyncio.BaseEventLoop.run_in_executor

    def counted(loop: Any, executor: Any, work: Any, *args: Any) -> Any:
        if executor is None:  # not one of Holdfast's own, in which it counts tokens
            visits.append(work)
        return run_in_executor(loop, executor, work, *args)

    monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", counted)

    asyncio.run(run_with_a_tool([]))
    without = len(visits)
    asyncio.run(run_with_a_tool([middleware]))

    assert len(visits) == 2 * without


def test_requests_are_changed_without_the_warning_filters_which_all_threads_share(
    middleware: HoldfastMiddleware, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    enter = warnings.catch_warnings.__enter__

    def noted(catching: Any) -> Any:
        threads.append(threading.current_thread().name)
        return enter(catching)

    monkeypatch.setattr(warnings.catch_warnings, "__enter__", noted)

    asyncio.run(run_with_a_tool([middleware]))

    assert set(threads) == {"MainThread"}


def test_a_traced_agent_shows_the_model_and_the_tool_inside_the_spans_of_the_middleware() -> None:
    spans: dict[object, dict[str, Any]] = {}

    class KeepingClient(Client):
        def create_run(self, name: str, inputs: Any, run_type: Any, **fields: Any) -> None:
            del inputs, run_type
            spans[fields["id"]] = {"name": name, "parent": fields.get("parent_run_id")}

        def update_run(self, run_id: Any, **fields: Any) -> None:
            spans[run_id]["outputs"] = fields.get("outputs")

    client = KeepingClient(api_key="none", auto_batch_tracing=False, session=MagicMock())
    with tracing_context(enabled=True, client=client):
        middleware = HoldfastMiddleware(budget=CONTRACT_BUDGET)
        asyncio.run(run_with_a_tool([middleware]))
    middleware.close()

    parents = {one["name"]: spans[one["parent"]] for one in spans.values() if one["parent"] in spans}
    assert parents["ScriptedReplies"]["name"] == "HoldfastMiddleware.awrap_model_call"
    assert parents["look"]["name"] == "HoldfastMiddleware.awrap_tool_call"
    assert parents["look"]["outputs"]["content"] == "nothing"


@pytest.mark.parametrize("tasks", [("count", "weigh"), ("count", "count")])
@pytest.mark.parametrize("is_parallel", [False, True])
def test_agents_that_run_inside_one_tool_call_have_a_delegation_each(
    middleware: HoldfastMiddleware, tasks: tuple[str, str], *, is_parallel: bool
) -> None:
    both_asked = Barrier(2, timeout=60) if is_parallel else None
    models = [KeepingReplies(replies=iter([AIMessage(text)]), both_asked=both_asked) for text in ("seven", "a ton")]
    helpers = [create_agent(model, middleware=[middleware]) for model in models]

    @tool
    async def ask_both() -> str:
        """Ask both."""
        runs = [helper.ainvoke(told(task)) for helper, task in zip(helpers, tasks, strict=True)]
        states = await asyncio.gather(*runs) if is_parallel else [await run for run in runs]
        return " and ".join(state["messages"][-1].text for state in states)

    calls: Any = [{"name": "ask_both", "args": {}, "id": "c1"}]
    main = KeepingReplies(replies=iter([AIMessage("", tool_calls=calls), AIMessage("done")]))
    agent = create_agent(main, [ask_both], middleware=[middleware])

    asyncio.run(agent.ainvoke(told("go"), configured("t")))

    assert [model.asked for model in models] == [[[task]] for task in tasks]
    assert main.asked == [["go"], ["go", "", "seven and a ton"]]
    delegations = middleware.session("t").delegations()
    assert sorted((one.started.task, one.answer) for one in delegations) == sorted(
        zip(tasks, ("seven", "a ton"), strict=True)
    )


@pytest.mark.parametrize(
    ("most", "before", "after"), [(1, ["running"], ["answered"]), (0, ["failed"], ["failed", "answered"])]
)
def test_an_agent_that_is_interrupted_inside_a_tool_call_goes_on_in_its_delegation_unless_too_many_wait(
    middleware: HoldfastMiddleware, monkeypatch: pytest.MonkeyPatch, most: int, before: list[str], after: list[str]
) -> None:
    monkeypatch.setattr("holdfast.adapters.langchain.MAX_PAUSED_CALLS", most)

    @tool
    def ask(question: str) -> str:
        """Ask a person."""
        return f"a person says {interrupt(question)}"

    asks: Any = [{"name": "ask", "args": {"question": "sure?"}, "id": "s1"}]
    inner = KeepingReplies(replies=iter([AIMessage("", tool_calls=asks), AIMessage("sent")]))
    helper = create_agent(inner, [ask], middleware=[middleware])

    @tool
    def send(what: str) -> str:
        """Send something."""
        return helper.invoke(told(what))["messages"][-1].text

    sends: Any = [{"name": "send", "args": {"what": "a letter"}, "id": "c1"}]
    model = KeepingReplies(replies=iter([AIMessage("", tool_calls=sends), AIMessage("done")]))
    agent = create_agent(model, [send], middleware=[middleware], checkpointer=InMemorySaver())

    agent.invoke(told("go"), configured("t"))
    assert [one.state for one in middleware.session("t").delegations()] == before
    agent.invoke(Command(resume="yes"), configured("t"))

    [*_, delegation] = delegations = middleware.session("t").delegations()
    assert ([one.state for one in delegations], delegation.answer) == (after, "sent")
    own = middleware.session("t").messages(scope=delegation.started.scope)
    assert [one["content"] for one in own] == ["a letter", "", "a person says yes", "sent"]
    assert inner.asked == [["a letter"], ["a letter", "", "a person says yes"]]


def test_an_agent_that_is_interrupted_inside_a_tool_call_is_cancelled_when_the_user_goes_on_instead(
    middleware: HoldfastMiddleware,
) -> None:
    @tool
    def ask(question: str) -> str:
        """Ask a person."""
        return f"a person says {interrupt(question)}"

    asks: Any = [{"name": "ask", "args": {"question": "sure?"}, "id": "s1"}]
    helper = create_agent(
        KeepingReplies(replies=iter([AIMessage("", tool_calls=asks)])), [ask], middleware=[middleware]
    )

    @tool
    def send(what: str) -> str:
        """Send something."""
        return helper.invoke(told(what))["messages"][-1].text

    sends: Any = [{"name": "send", "args": {"what": "a letter"}, "id": "c1"}]
    model = KeepingReplies(replies=iter([AIMessage("", tool_calls=sends), AIMessage("then not")]))
    agent = create_agent(model, [send], middleware=[middleware], checkpointer=InMemorySaver())
    agent.invoke(told("go"), configured("t"))

    agent.invoke(told("no, leave it"), configured("t"))

    [delegation] = middleware.session("t").delegations()
    assert (delegation.state, delegation.answer) == ("cancelled", "")
    assert [one.active_runs for one in middleware._pool.conversations] == [0]


def test_agents_that_run_at_once_in_one_thread_each_have_their_answer_after_their_prompt(
    middleware: HoldfastMiddleware,
) -> None:
    both_asked = Barrier(2, timeout=60)
    models = [KeepingReplies(replies=iter([AIMessage(text)]), both_asked=both_asked) for text in ("seven", "a ton")]
    agents = [create_agent(model, middleware=[middleware]) for model in models]

    async def run() -> None:
        tasks = zip(agents, ("count", "weigh"), strict=True)
        await asyncio.gather(*(agent.ainvoke(told(task), configured("t")) for agent, task in tasks))

    asyncio.run(run())

    assert [model.asked for model in models] == [[["count"]], [["weigh"]]]
    events = [one for one in middleware.session("t").events() if isinstance(one, log.MessageAppended | log.Rewound)]
    said = ["|" if isinstance(one, log.Rewound) else str(one.native["content"]) for one in events]
    assert {("count", "seven"), ("weigh", "a ton")} <= set(pairwise(said))


def test_a_conversation_stays_open_while_its_model_is_asked(
    middleware: HoldfastMiddleware, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.adapters.session_pool.MAX_OPEN_SESSIONS", 1)
    all_asked = Barrier(3, timeout=60)
    models = [KeepingReplies(replies=iter([AIMessage("fine")]), both_asked=all_asked) for _ in range(3)]
    agents = [create_agent(model, middleware=[middleware]) for model in models]

    async def run() -> list[Any]:
        asked = [agent.ainvoke(told("hello"), configured(f"t{number}")) for number, agent in enumerate(agents)]
        return await asyncio.gather(*asked)

    results = asyncio.run(run())

    assert [result["messages"][-1].text for result in results] == ["fine"] * 3
    middleware.session("t3")
    assert [one.session.id for one in middleware._pool.conversations] == ["t3"]


class Weather(BaseModel):
    """What the weather is like."""

    degrees: int = Field(description="The temperature in the shade. " * 100)


@pytest.mark.parametrize(
    "made", [Weather, ToolStrategy(Weather), ProviderStrategy(Weather), Weather.model_json_schema()]
)
def test_the_definition_of_a_structured_output_is_counted(made: Any, middleware: HoldfastMiddleware) -> None:
    call: ToolCall = {"name": "Weather", "args": {"degrees": 7}, "id": "c1"}
    calls = [] if isinstance(made, ProviderStrategy) else [call]
    for thread, response_format in (("plain", None), ("structured", made)):
        reply = AIMessage('{"degrees": 7}', tool_calls=calls if response_format else [])
        model = KeepingReplies(replies=iter([reply]))
        agent = create_agent(model, middleware=[middleware], response_format=response_format)
        agent.invoke(told("How warm is it?"), configured(thread))

    plain, structured = middleware.last_request("plain"), middleware.last_request("structured")

    assert plain is not None
    assert structured is not None
    assert 500 < structured.tokens.total - plain.tokens.total < 1_000


def test_tools_that_are_made_for_each_run_are_not_kept(middleware: HoldfastMiddleware) -> None:
    def run() -> "ref[StructuredTool]":
        def look(query: str) -> str:
            """Look something up."""
            return look_result(query)

        made = StructuredTool.from_function(look)
        create_agent(RepeatingChatModel(requests=[]), [made], middleware=[middleware]).invoke(
            told("hello"), configured("t")
        )
        return ref(made)

    earlier, _ = run(), run()
    gc.collect()

    assert earlier() is None


def test_a_shortened_or_made_message_becomes_an_object_again() -> None:
    natives: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "tool", "tool_call_id": "c", "content": "t"},
        {"role": "assistant", "content": "a", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"query": "x"}'}},
        ]},
    ]  # fmt: skip

    assert [MESSAGES.encode(MESSAGES.decode(native)) for native in natives] == natives


def test_a_shortened_message_keeps_a_call_whose_arguments_lie_thousands_deep() -> None:
    deep = '{"query":' + "[" * 100_000
    bad = {"name": "look", "args": deep, "id": "c", "error": None, "type": "invalid_tool_call"}
    answer = AIMessage("a long text", invalid_tool_calls=[bad])

    short = MESSAGES.decode({**MESSAGES.encode(answer), "content": "short"}, answer)

    assert isinstance(short, AIMessage)
    assert (short.content, short.tool_calls, short.invalid_tool_calls) == ("short", [], [bad])


def test_a_shortened_message_keeps_the_fields_that_the_log_does_not_know() -> None:
    result = ToolMessage(
        "long " * 9, tool_call_id="c1", status="error", name="look", id="m1", artifact={"rows": 3},
        additional_kwargs={"cached": True}, response_metadata={"ms": 5},
    )  # fmt: skip
    signed: Any = {"__gemini_function_call_thought_signatures__": {"c1": "c2ln"}, "tool_calls": [{"id": "c1"}]}
    invalid: Any = {"type": "invalid_tool_call", "id": "c2", "name": "look", "args": "{'a", "error": "no JSON"}
    answer = AIMessage(
        "long " * 9, id="m2", name="a", tool_calls=[ToolCall(name="look", args={"query": "x" * 99}, id="c1")],
        invalid_tool_calls=[invalid], additional_kwargs=signed, response_metadata={"model_provider": "google"},
    )  # fmt: skip
    calls = [
        {"id": f"c{number}_1", "type": "function", "function": {"name": "look", "arguments": text}}
        for number, text in ((1, '{"query": "x"}'), (2, "{"))
    ]

    short_result = MESSAGES.decode({"role": "tool", "tool_call_id": "c1_1", "content": "long"}, result)
    short_answer = MESSAGES.decode({"role": "assistant", "content": "long", "tool_calls": calls}, answer)

    assert short_result == result.model_copy(update={"content": "long", "tool_call_id": "c1_1"})
    assert short_answer == AIMessage(
        "long", id="m2", name="a", tool_calls=[ToolCall(name="look", args={"query": "x"}, id="c1_1")],
        invalid_tool_calls=[{**invalid, "id": "c2_1", "args": "{"}],
        additional_kwargs={"__gemini_function_call_thought_signatures__": {"c1": "c2ln"}},
        response_metadata={"model_provider": "google"},
    )  # fmt: skip
    assert (result.content, answer.tool_calls[0]["id"]) == ("long " * 9, "c1")
    summary = {"role": "user", "content": "They spoke."}
    assert MESSAGES.decode(summary, answer) == HumanMessage("They spoke.")
    assert MESSAGES.encode(MESSAGES.decode({"role": "assistant", "content": "long"}, answer)) == {
        "role": "assistant", "content": "long",
    }  # fmt: skip


def test_a_failed_tools_output_that_a_request_shortens_is_sent_as_failed(middleware: HoldfastMiddleware) -> None:
    whole = "no such boat " * CONTRACT_BUDGET

    @tool
    def fail() -> str:
        """Fail."""
        raise ToolException(whole)

    fail.handle_tool_error = True
    calls: Any = [{"name": "fail", "args": {}, "id": "c1"}]
    model = AskedReplies(replies=iter([AIMessage("", tool_calls=calls), AIMessage("done")]))
    agent = create_agent(model, [fail], middleware=[middleware])

    state = agent.invoke(told("go"), configured("t"))

    [*_, sent] = model.requests[-1]
    [*_, kept, _] = state["messages"]
    assert len(sent.content) < len(whole)
    assert sent == kept.model_copy(update={"content": sent.content})
    assert (kept.status, kept.name, kept.content) == ("error", "fail", whole)


def test_the_page_and_the_example_run_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("langchain")
    run_example("langchain_agent")

    assert capsys.readouterr().out


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_delegated", [False, True])
def test_a_tool_that_fails_raises_and_ends_the_delegation_of_an_agent_inside_it(
    middleware: HoldfastMiddleware, *, is_async: bool, is_delegated: bool
) -> None:
    calls: Any = [{"name": "ask", "args": {}, "id": "c1"}]
    model = ScriptedReplies(replies=iter([AIMessage("", tool_calls=calls)]))
    helper = create_agent(RepeatingChatModel(requests=[], errors=[ValueError("no network")]), middleware=[middleware])

    def ask() -> str:
        """Ask the helper."""
        if is_delegated:
            helper.invoke({"messages": [HumanMessage("help")]})
        raise ValueError("no network")

    async def ask_later() -> str:
        if is_delegated:
            await helper.ainvoke({"messages": [HumanMessage("help")]})
        raise ValueError("no network")

    agent = create_agent(model, [StructuredTool.from_function(ask, ask_later, name="ask")], middleware=[middleware])
    asked: Any = {"messages": [HumanMessage("go")]}

    def run() -> None:
        if is_async:
            asyncio.run(agent.ainvoke(asked, configured("t")))
        else:
            agent.invoke(asked, configured("t"))

    with pytest.raises(ValueError, match="no network"):
        run()

    delegations = middleware.session("t").delegations()
    assert [one.state for one in delegations] == ["failed"] * is_delegated


def test_a_prompt_that_no_model_takes_raises_the_providers_own_error_with_a_note(
    middleware: HoldfastMiddleware,
) -> None:
    model = RepeatingChatModel(requests=[], errors=[ContextOverflowError("too long") for _ in range(20)])
    agent = create_agent(model, middleware=[middleware])

    with pytest.raises(ContextOverflowError) as raised:
        agent.invoke({"messages": [HumanMessage("one")]}, configured("t"))

    assert raised.value.__notes__[0].startswith("Holdfast could not make the request small enough: ")


def test_a_blocking_agent_recalls_and_outside_of_one_the_tool_says_where_it_works(
    middleware: HoldfastMiddleware,
) -> None:
    [recall] = middleware.tools
    calls: Any = [{"name": recall.name, "args": {"query": "KESTREL"}, "id": "c1"}]
    model = ScriptedReplies(replies=iter([AIMessage("Noted."), AIMessage("", tool_calls=calls), AIMessage("Yes.")]))
    provided: Any = {"type": "web_search_20250305", "name": "web_search"}
    agent = create_agent(model, [provided], middleware=[middleware], checkpointer=InMemorySaver())
    agent.invoke({"messages": [HumanMessage("the code is KESTREL")]}, configured("t"))

    state = agent.invoke({"messages": [HumanMessage("what was it?")]}, configured("t"))
    outside = [recall.invoke({"query": "x"}), asyncio.run(recall.ainvoke({"query": "x"}))]

    assert "the code is KESTREL" in state["messages"][-2].text
    assert outside == ["[Recall: this tool works only in an agent with HoldfastMiddleware.]"] * 2


@pytest.mark.parametrize("messages", [[], [HumanMessage("")]])
def test_a_list_that_says_nothing_is_sent_as_it_is(middleware: HoldfastMiddleware, messages: list[BaseMessage]) -> None:
    model = RepeatingChatModel(requests=[], answer="Ahoy.")
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver(), system_prompt="Greet.")

    given: Any = {"messages": messages}
    agent.invoke(given, configured("t"))
    agent.invoke({"messages": [HumanMessage("and now?")]}, configured("t"))

    said = [message.content for message in messages]
    assert [message.content for message in model.requests[0]] == ["Greet.", *said]
    assert [one["content"] for one in middleware.session("t").messages()] == [*said, "Ahoy.", "and now?", "Ahoy."]


def test_a_tool_of_the_agents_own_that_is_called_recall_is_offered_and_called(middleware: HoldfastMiddleware) -> None:
    class ToolNamingModel(RepeatingChatModel):
        names: list[list[str]] = Field(default_factory=list[list[str]])

        def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
            self.names.append([one.name for one in tools])
            return self

    @tool
    def recall(product: str) -> str:
        """Call a product back."""
        return f"{product} is called back"

    model = ToolNamingModel(requests=[])
    agent = create_agent(model, [recall], middleware=[middleware], checkpointer=InMemorySaver())

    for _ in range(40):
        agent.invoke({"messages": [HumanMessage("say it " * 40)]}, configured("t"))

    request = middleware.last_request("t")
    assert request is not None
    assert request.receipt.compacted
    assert model.names == [["recall"]] * 40
    assert "recall" not in str(request.messages)


def test_the_budget_is_the_window_of_the_models_profile_where_none_is_given() -> None:
    middleware = HoldfastMiddleware()
    model = RepeatingChatModel(requests=[], profile={"max_input_tokens": 5_000})
    agent = create_agent(model, middleware=[middleware])

    agent.invoke({"messages": [HumanMessage("one")]}, configured("t"))

    request = middleware.last_request("t")
    assert request is not None
    assert request.receipt.budget == Budget.resolve(provider_window=5_000)
    middleware.close()


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_middleware_with_open_sessions_says_that_it_cannot_be_copied(copied: Callable[[object], object]) -> None:
    middleware = HoldfastMiddleware()
    copy.deepcopy(middleware).close()
    middleware.session("t")

    with pytest.raises(TypeError, match="open sessions, which can be neither copied nor pickled; make a new one"):
        copied(middleware)
    middleware.close()


def test_arguments_that_are_no_json_are_recorded_as_text() -> None:
    day = date(2026, 11, 17)
    call = ToolCall(name="look", args={"day": day}, id="c1")

    assert MESSAGES.encode(AIMessage("", tool_calls=[call]))["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": json.dumps({"day": repr(day)})}}
    ]
