"""However a run is started, stopped or nested, its session holds its messages, and the next run can begin."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    AgentRunResultEvent,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelResponse,
    ModelRetry,
    RunContext,
    TextPart,
    ToolCallPart,
    ToolReturn,
    UsageLimits,
)
from pydantic_ai.capabilities import Capability, Hooks, ProcessHistory
from pydantic_ai.exceptions import UsageLimitExceeded, UserError
from pydantic_ai.messages import (
    CompactionPart,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.tools import Tool

from holdfast import Session, validate
from holdfast.adapters.pydantic_ai import Holdfast, model_messages, native_messages
from holdfast.adapters.pydantic_ai.messages import dump_messages, validate_messages
from holdfast.core.history import events as log
from holdfast.errors import StoreUnavailableError
from holdfast.stores.memory import MemoryStore
from holdfast.testing.agents import ScriptedAgentModel, tool_call_response
from tests.adapters.conftest import kinds, twice


async def kept(governed: Holdfast, conversation_id: str | None = None) -> list[ModelMessage]:
    return model_messages(await (await governed.open(conversation_id)).messages())


async def counted(session: Session, kind: type[log.Event]) -> int:
    return sum(isinstance(event, kind) for event in await session.events())


def fine(_messages: list[ModelMessage]) -> str:
    return "fine"


# Ways to drive a run.


async def by_run(agent: Agent[None, str], text: str) -> str:
    return (await agent.run(text)).output


async def by_stream(agent: Agent[None, str], text: str) -> str:
    async with agent.run_stream(text) as stream:
        return await stream.get_output()


async def by_events(agent: Agent[None, str], text: str) -> str:
    async with agent.run_stream_events(text) as events:
        results = [event.result.output async for event in events if isinstance(event, AgentRunResultEvent)]
    return results[0]


async def by_nodes(agent: Agent[None, str], text: str) -> str:
    async with agent.iter(text) as run:
        async for _ in run:
            pass
    assert run.result is not None
    return run.result.output


@pytest.mark.parametrize("drive", [by_run, by_stream, by_events, by_nodes])
async def test_every_way_to_drive_a_run_is_governed_and_recorded(
    drive: Callable[[Agent[None, str], str], Any],
) -> None:
    replies = [tool_call_response("twice", "a", number=2), "four", tool_call_response("twice", "b", number=4), "eight"]
    governed, model = Holdfast(session="c1"), ScriptedAgentModel(replies)
    agent = Agent(model, tools=[twice], capabilities=[governed])

    outputs = [await drive(agent, "Twice two?"), await drive(agent, "And again?")]

    assert [output.strip() for output in outputs] == ["four", "eight"]
    assert kinds(await kept(governed)) == [["user-prompt"], ["tool-call"], ["tool-return"], ["text"]] * 2
    assert model.prompts == ["Twice two?", "And again?"]
    session = await governed.open()
    assert await counted(session, log.RequestPrepared) == 4
    assert await counted(session, log.Rewound) == 0


async def test_results_of_calls_that_come_with_a_streamed_output_are_recorded() -> None:
    class Tide(BaseModel):
        height: int

    def fail() -> str:
        raise ModelRetry("not now")

    async def answer(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if len(messages) > 1:
            yield {0: DeltaToolCall(name="final_result", json_args='{"height": 3}', tool_call_id="c")}
            yield {1: DeltaToolCall(name="final_result", json_args='{"height": 4}', tool_call_id="d")}
            yield {2: DeltaToolCall(name="wave", json_args="{}", tool_call_id="e")}
            return
        yield "I will look."
        yield {1: DeltaToolCall(name="wave", json_args="{}", tool_call_id="a")}
        yield {2: DeltaToolCall(name="fail", json_args="{}", tool_call_id="b")}

    def wave() -> ToolReturn[str]:
        return ToolReturn("high", content="A picture of it.")

    governed = Holdfast(session="c1")
    tools = [Tool(wave), Tool(fail)]
    agent = Agent(FunctionModel(stream_function=answer), tools=tools, capabilities=[governed])
    hasty = Agent(agent.model, output_type=Tide, tools=tools, capabilities=[governed], end_strategy="early")

    async with agent.run_stream("Look.") as first:
        assert await first.get_output() == "I will look."
    async with hasty.run_stream("How high?") as second:
        assert await second.get_output() == Tide(height=3)
    recorded = await kept(governed)
    returns = [part for message in recorded for part in message.parts if isinstance(part, ToolReturnPart)]

    assert [(part.tool_call_id, part.content, part.outcome) for part in returns] == [
        ("a", "high", "success"),
        ("b", "not now", "retried"),
        ("c", "Final result processed.", "success"),
        ("d", "Output tool not used - a final result was already processed.", "success"),
        ("e", "Tool not executed - a final result was already processed.", "success"),
    ]
    assert kinds(recorded) == kinds(second.all_messages())
    assert await counted(await governed.open(), log.Rewound) == 0


@pytest.mark.parametrize("is_continued", [True, False])
@pytest.mark.parametrize("is_reopened", [True, False])
async def test_a_history_whose_requests_pydantic_ai_has_joined_is_the_same_history(
    *, is_continued: bool, is_reopened: bool
) -> None:
    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        return ModelResponse([ToolCallPart("final_result", {"response": 3}, f"call-{len(messages)}")])

    store = MemoryStore()
    governed, history = Holdfast(session="c1", store=store), None
    for number in range(5):
        if is_reopened:
            governed = Holdfast(session="c1", store=store)
        agent = Agent(FunctionModel(answer), system_prompt="Count.", output_type=int, capabilities=[governed])
        past = None if is_continued and number < 3 else history
        history = (await agent.run(f"prompt {number}", message_history=past)).all_messages()

    session = await governed.open()
    assert await counted(session, log.Rewound) == 0
    assert await counted(session, log.MessageAppended) == 1 + 5 * 3
    assert [part for message in await kept(governed) for part in message.parts] == [
        part for message in history or () for part in message.parts
    ]


def test_a_synchronous_run_is_governed_too() -> None:
    governed, model = Holdfast(session="c1"), ScriptedAgentModel(fine)
    agent = Agent(model, capabilities=[governed])

    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        agent.run_sync("one")
        agent.run_sync("two")
        asyncio.set_event_loop(None)

    assert model.prompts == ["one", "two"]


async def test_structured_output_leaves_a_history_that_can_be_gone_on_with() -> None:
    governed = Holdfast(session="c1")
    model = ScriptedAgentModel([tool_call_response("final_result", f"f{n}", response=n) for n in range(2)])
    agent = Agent(model, output_type=int, capabilities=[governed])

    outputs = [(await agent.run(f"Number {n}?")).output for n in range(2)]

    assert outputs == [0, 1]
    assert kinds(await kept(governed)) == [["user-prompt"], ["tool-call"], ["tool-return"]] * 2
    assert validate(native_messages(model.requests[-1]), "pydantic-ai") == []


# Deferred tools.


async def test_calls_that_wait_for_approval_are_gone_on_with_by_conversation_alone() -> None:
    governed = Holdfast(session="c1")
    model = ScriptedAgentModel([tool_call_response("erase", "e1", path="a"), "erased", "fine"])
    agent = Agent(
        model,
        output_type=[str, DeferredToolRequests],
        tools=[Tool(lambda path: f"{path} is gone", name="erase", requires_approval=True)],
        capabilities=[governed],
    )

    asked = (await agent.run("Erase a.")).output
    assert isinstance(asked, DeferredToolRequests)
    answer = await agent.run(deferred_tool_results=DeferredToolResults(approvals={"e1": True}))
    await agent.run("Thanks.")

    assert answer.output == "erased"
    assert kinds(await kept(governed)) == [
        ["user-prompt"], ["tool-call"], ["tool-return"], ["text"], ["user-prompt"], ["text"],
    ]  # fmt: skip
    assert await counted(await governed.open(), log.TurnInterrupted) == 0


def streaming_agent(
    governed: Holdfast, other: DeltaToolCall, tool: Callable[..., object], *, says: str
) -> Agent[None, str | DeferredToolRequests]:
    """Return an agent that streams a call which needs an approval and another call, and then says something."""

    async def answer(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if len(messages) > 1:
            yield says
            return
        yield {0: DeltaToolCall(name="erase", json_args='{"path": "a"}', tool_call_id="e1")}
        yield {1: other}

    return Agent(
        FunctionModel(stream_function=answer),
        output_type=[str, DeferredToolRequests],
        tools=[Tool(lambda path: f"{path} is gone", name="erase", requires_approval=True), tool],
        capabilities=[governed],
    )


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_result_that_comes_later_beside_one_with_contents_stays_in_the_session(*, is_restarted: bool) -> None:
    store = MemoryStore()
    calls = ModelResponse([ToolCallPart("draw", {}, "c1"), ToolCallPart("ask", {}, "c2")])
    model = ScriptedAgentModel([calls, "thanks", "one", "two"])

    def draw() -> ToolReturn:
        return ToolReturn("drawn", content=["a picture"])

    def ask() -> str:
        raise CallDeferred

    def governed_agent() -> tuple[Holdfast, Agent[None, Any]]:
        governed = Holdfast(session="s", store=store)
        output: Any = [str, DeferredToolRequests]
        return governed, Agent(model, output_type=output, tools=[draw, ask], capabilities=[governed])

    governed, agent = governed_agent()
    await agent.run("begin")
    await agent.run(deferred_tool_results=DeferredToolResults(calls={"c2": "it is blue"}))
    for prompt in ("first", "second"):
        if is_restarted:
            await governed.close()
            governed, agent = governed_agent()
        await agent.run(prompt)

    session = await governed.open()
    said = [
        ["user-prompt"], ["tool-call", "tool-call"], ["tool-return", "user-prompt"], ["tool-return"], ["text"],
        ["user-prompt"], ["text"], ["user-prompt"], ["text"],
    ]  # fmt: skip
    first: Any = next(one.parts for one in model.requests[-1] if isinstance(one.parts[0], ToolReturnPart))
    assert kinds(await kept(governed)) == said
    assert [part.content for part in first] == ["drawn", "it is blue", ["a picture"]]
    assert await counted(session, log.Rewound) == 0
    await governed.close()


async def test_calls_that_wait_for_approval_after_a_stream_are_gone_on_with_by_conversation_alone() -> None:
    governed = Holdfast(session="c1")
    other = DeltaToolCall(name="twice", json_args='{"number": 2}', tool_call_id="t1")
    agent = streaming_agent(governed, other, twice, says="both are gone")

    async with agent.run_stream("Erase a.") as first:
        asked = await first.get_output()
    assert isinstance(asked, DeferredToolRequests)
    approved = DeferredToolResults(approvals={"e1": True})
    async with agent.run_stream(deferred_tool_results=approved) as second:
        assert await second.get_output() == "both are gone"
    recorded = await kept(governed)
    returns = [part for message in recorded for part in message.parts if isinstance(part, ToolReturnPart)]

    assert sorted((part.tool_call_id, part.content) for part in returns) == [("e1", "a is gone"), ("t1", 4)]


async def test_a_call_whose_tool_defers_it_inside_a_stream_takes_its_result_later() -> None:
    def build() -> str:
        raise CallDeferred

    governed = Holdfast(session="c1")
    other = DeltaToolCall(name="build", json_args="{}", tool_call_id="b1")
    agent = streaming_agent(governed, other, build, says="all done")

    async with agent.run_stream("Erase a, and build.") as first:
        await first.get_output()
    given = DeferredToolResults(approvals={"e1": True}, calls={"b1": "it is built"})
    async with agent.run_stream(deferred_tool_results=given) as second:
        assert await second.get_output() == "all done"
    recorded = await kept(governed)
    returns = [part for message in recorded for part in message.parts if isinstance(part, ToolReturnPart)]

    assert sorted((part.tool_call_id, part.content) for part in returns) == [("b1", "it is built"), ("e1", "a is gone")]


async def test_whoever_talks_on_instead_of_approving_gets_an_answer() -> None:
    governed = Holdfast(session="c1")
    model = ScriptedAgentModel([tool_call_response("erase", "e1", path="a"), "As you wish."])
    agent = Agent(
        model,
        output_type=[str, DeferredToolRequests],
        tools=[Tool(lambda path: f"{path} is gone", name="erase", requires_approval=True)],
        capabilities=[governed],
    )
    await agent.run("Erase a.")

    result = await agent.run("Rather not.")

    assert result.output == "As you wish."
    (part,) = model.requests[-1][2].parts[:1]
    assert isinstance(part, ToolReturnPart)
    assert (part.tool_call_id, part.content) == ("e1", "Interrupted by user.")


# Runs inside runs.


@pytest.mark.parametrize("session", [None, "c1"])
async def test_agents_inside_agents_have_sessions_of_their_own(session: str | None) -> None:
    governed = Holdfast(session=session)
    helper_model = ScriptedAgentModel(lambda messages: f"helped: {messages[-1].parts[-1].content}")  # type: ignore[union-attr]
    helper = Agent(helper_model, capabilities=[governed])
    calls = ModelResponse(parts=[ToolCallPart("delegate", {"task": f"task {n}"}, f"d{n}") for n in range(3)])
    model = ScriptedAgentModel([calls, "all done", "fine"])
    agent = Agent(model, capabilities=[governed])

    @agent.tool_plain
    async def delegate(task: str) -> str:
        return (await helper.run(task)).output

    await agent.run("Do three things.", conversation_id="c1")
    last = governed.last_request
    await agent.run("And?", conversation_id="c1")

    main = await kept(governed, "c1")
    assert kinds(main) == [
        ["user-prompt"], ["tool-call"] * 3, ["tool-return"] * 3, ["text"], ["user-prompt"], ["text"],
    ]  # fmt: skip
    assert [part.content for part in main[2].parts] == [f"helped: task {n}" for n in range(3)]  # type: ignore[union-attr]
    assert [len(request) for request in helper_model.requests] == [1, 1, 1]
    others = [one for name, one in governed.sessions.items() if name != "c1"]
    assert [len(one) for one in others] == [2, 2, 2]
    assert last is not None
    assert len(last.messages) == 3
    assert governed.session is await governed.open("c1")


async def test_an_agent_inside_itself_with_the_same_conversation_does_not_disturb_it() -> None:
    governed = Holdfast()
    model = ScriptedAgentModel([tool_call_response("again", "a"), "inner", "outer"])
    agent = Agent(model, capabilities=[governed])

    @agent.tool
    async def again(ctx: RunContext[Any]) -> str:
        return (await agent.run("Inside.", conversation_id=ctx.conversation_id)).output

    result = await agent.run("Outside.", conversation_id="c1")

    assert result.output == "outer"
    assert kinds(await kept(governed, "c1")) == [["user-prompt"], ["tool-call"], ["tool-return"], ["text"]]
    assert kinds(model.requests[1]) == [["user-prompt"]]


async def test_many_conversations_at_once_stay_apart() -> None:
    governed = Holdfast(budget=1_000)
    model = ScriptedAgentModel(lambda messages: f"re: {messages[-1].parts[-1].content} " + "word " * 40)  # type: ignore[union-attr]
    agent = Agent(model, capabilities=[governed])

    async def talk(name: str) -> list[ModelMessage]:
        for number in range(8):
            result = await agent.run(f"{name} {number}", conversation_id=name)
        return result.all_messages()  # pyright: ignore[reportPossiblyUnboundVariable]

    names = ["ann", "bob", "cleo"]
    histories = await asyncio.gather(*map(talk, names))

    for name, history in zip(names, histories, strict=True):
        assert await kept(governed, name) == history
        assert [part.content for m in history[::2] for part in m.parts] == [f"{name} {n}" for n in range(8)]  # type: ignore[union-attr]
    for request in model.requests:
        assert sum(name in str(request) for name in names) == 1


async def test_two_runs_of_one_conversation_at_once_each_get_what_they_asked() -> None:
    governed = Holdfast()
    model = ScriptedAgentModel(lambda messages: f"re: {messages[-1].parts[-1].content}")  # type: ignore[union-attr]
    agent = Agent(model, capabilities=[governed])

    results = await asyncio.gather(*(agent.run(f"prompt {n}", conversation_id="c1") for n in range(4)))

    assert [result.output for result in results] == [f"re: prompt {n}" for n in range(4)]


class Overlapping:
    """An agent whose tool `wait` waits until it is allowed to go on; a prompt that begins with "wait" calls it once."""

    def __init__(self, store: str | MemoryStore) -> None:
        self.waits, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.governed, self.asked = Holdfast(store=store), list[list[str]]()
        tools, capabilities = [Tool(self.wait)], [self.governed]
        self.agent = Agent(FunctionModel(self._answer), tools=tools, capabilities=capabilities, system_prompt="brief")

    async def wait(self) -> str:
        self.waits.set()
        await self.may_go_on.wait()
        return "gone on"

    def _answer(self, messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        self.asked.append(texts_of(messages))
        prompt = [part.content for m in messages for part in m.parts if isinstance(part, UserPromptPart)][-1]
        if f"{prompt}".startswith("wait") and not isinstance(messages[-1].parts[-1], ToolReturnPart):
            return ModelResponse(parts=[ToolCallPart("wait", {}, "w1")])
        return ModelResponse(parts=[TextPart(f"re: {prompt}")])


def texts_of(messages: Sequence[ModelMessage]) -> list[str]:
    return [str(getattr(part, "content", part.part_kind)) for message in messages for part in message.parts]


async def test_what_a_run_says_during_another_one_of_its_conversation_stays_in_the_context() -> None:
    talk = Overlapping("memory://")
    await talk.agent.run("hello", conversation_id="c1")

    slow = asyncio.create_task(talk.agent.run("wait for it", conversation_id="c1"))
    await talk.waits.wait()
    await talk.agent.run("meanwhile", conversation_id="c1")
    talk.may_go_on.set()
    await slow
    after = await talk.agent.run("after", conversation_id="c1")

    begun = ["brief", "hello", "re: hello"]
    assert talk.asked[2:4] == [[*begun, "meanwhile"], [*begun, "wait for it", "tool-call", "gone on"]]
    both = [*begun, "wait for it", "tool-call", "gone on", "re: wait for it", "meanwhile", "re: meanwhile"]
    assert texts_of(after.all_messages()) == [*both, "after", "re: after"]
    assert texts_of(await kept(talk.governed, "c1")) == [*both, "after", "re: after"]


async def test_a_run_that_is_stopped_leaves_what_another_one_has_said_meanwhile() -> None:
    talk = Overlapping("memory://")

    slow = asyncio.create_task(talk.agent.run("wait for it", conversation_id="c1"))
    await talk.waits.wait()
    await talk.agent.run("meanwhile", conversation_id="c1")
    slow.cancel()
    await asyncio.wait([slow])

    said = ["brief", "wait for it", "tool-call", "meanwhile", "re: meanwhile"]
    assert texts_of(await kept(talk.governed, "c1")) == said


async def test_what_another_process_says_during_a_run_stays_in_the_context() -> None:
    store = MemoryStore()
    here, there = Overlapping(store), Overlapping(store)
    await here.agent.run("hello", conversation_id="c1")

    slow = asyncio.create_task(here.agent.run("wait for it", conversation_id="c1"))
    await here.waits.wait()
    await there.agent.run("meanwhile", conversation_id="c1")
    here.may_go_on.set()
    await slow

    begun = ["brief", "hello", "re: hello"]
    both = [*begun, "wait for it", "tool-call", "gone on", "re: wait for it", "meanwhile", "re: meanwhile"]
    assert texts_of(await kept(there.governed, "c1")) == both


# Runs that are stopped.


class Slow:
    """A model that says a few words and then waits to be stopped, and a tool that does."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.model = FunctionModel(self._whole, stream_function=self._streamed)

    async def stop(self) -> None:
        self.waits.set()
        await asyncio.Event().wait()

    async def _whole(self, _messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        await self.stop()
        raise AssertionError

    async def _streamed(
        self, _messages: list[ModelMessage], _info: AgentInfo
    ) -> AsyncGenerator[str | dict[int, DeltaToolCall]]:
        yield "I was about "
        yield "to say "
        await self.stop()


async def stopped(task: asyncio.Task[Any], slow: Slow) -> None:
    await slow.waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_run_that_is_stopped_while_the_model_thinks_keeps_the_prompt() -> None:
    slow, governed = Slow(), Holdfast(session="c1")
    agent = Agent(ScriptedAgentModel(["fine"]), capabilities=[governed])

    await stopped(asyncio.create_task(agent.run("one", model=slow.model)), slow)
    result = await agent.run("two")

    assert result.output == "fine"
    assert kinds(await kept(governed)) == [["user-prompt"], ["user-prompt"], ["text"]]


async def test_a_run_that_is_stopped_in_one_of_several_tools_keeps_the_results_of_those_that_had_ended() -> None:
    slow, governed, has_sent = Slow(), Holdfast(session="c1"), asyncio.Event()

    async def note(_ctx: object, *, call: ToolCallPart, result: Any, **_: object) -> Any:
        if call.tool_name == "send":
            has_sent.set()
        return result

    async def send() -> ToolReturn[str]:
        return ToolReturn("sent", content="a picture of it", metadata={"id": 1})

    async def wait() -> str:
        await has_sent.wait()
        return str(await slow.stop())

    calls = [ToolCallPart("send", {}, "c1"), ToolCallPart("wait", {}, "c2")]
    model = ScriptedAgentModel([ModelResponse(calls), "fine", "good"])
    agent = Agent(model, capabilities=[Hooks(after_tool_execute=note), governed], tools=[send, wait])

    await stopped(asyncio.create_task(agent.run("one")), slow)
    assert kinds(await kept(governed)) == [["user-prompt"], ["tool-call", "tool-call"], ["tool-return"]]
    for prompt in ("two", "three"):
        await agent.run(prompt)

    returned = [part for message in model.requests[-1] for part in message.parts if isinstance(part, ToolReturnPart)]
    assert [(part.tool_call_id, part.content) for part in returned] == [("c1", "sent"), ("c2", "Interrupted by user.")]
    assert validate(native_messages(model.requests[-1]), "pydantic-ai") == []
    assert await counted(await governed.open(), log.Rewound) == 0
    await governed.close()


async def test_a_stream_that_is_stopped_keeps_what_was_said_so_far() -> None:
    slow, governed = Slow(), Holdfast(session="c1")
    model = ScriptedAgentModel(["fine"])
    agent = Agent(model, capabilities=[governed])

    async def listen() -> None:
        async with agent.run_stream_events("one", model=slow.model) as events:
            async for _ in events:
                pass

    await stopped(asyncio.create_task(listen()), slow)
    await agent.run("two")

    assert kinds(model.requests[0]) == [["user-prompt"], ["text"], ["user-prompt"]]
    assert model.requests[0][1].parts == [TextPart("I was about to say ")]


@pytest.mark.parametrize("drive", [by_run, by_events, by_nodes])
async def test_a_run_that_is_stopped_in_a_tool_leaves_a_history_that_can_be_gone_on_with(
    drive: Callable[[Agent[None, str], str], Any],
) -> None:
    slow, governed = Slow(), Holdfast(session="c1")
    both = ModelResponse(parts=[ToolCallPart("wait", {}, "w"), ToolCallPart("twice", {"number": 2}, "t")])
    model = ScriptedAgentModel([both, "fine"])
    agent = Agent(model, tools=[twice], capabilities=[governed])

    @agent.tool_plain
    async def wait() -> str:
        await slow.stop()
        raise AssertionError

    await stopped(asyncio.create_task(drive(agent, "one")), slow)
    session = await governed.open()
    left = len(session)
    await drive(agent, "two")

    assert left in {2, 3}
    returns = {part.tool_call_id for m in model.requests[1] for part in m.parts if isinstance(part, ToolReturnPart)}
    assert returns == {"w", "t"}
    assert validate(native_messages(model.requests[1]), "pydantic-ai") == []


async def test_a_process_that_died_in_a_tool_call_is_gone_on_with() -> None:
    async with Session.open("c1") as session:
        asked = ModelRequest(parts=[UserPromptPart("Look.")])
        called = ModelResponse(parts=[ToolCallPart("look", {}, "l")])
        await session.record(native_messages([asked, called]), format="pydantic-ai")
        model = ScriptedAgentModel(["fine"])

        result = await Agent(model, capabilities=[Holdfast(session=session)]).run("Still there?")

    assert result.output == "fine"
    assert kinds(model.requests[0]) == [["user-prompt"], ["tool-call"], ["tool-return", "user-prompt"]]
    assert model.requests[0][2].parts[0].content == "Interrupted by user."  # type: ignore[union-attr]


async def test_whoever_leaves_a_loop_over_nodes_leaves_what_was_said() -> None:
    governed, model = Holdfast(session="c1"), ScriptedAgentModel([tool_call_response("twice", "a", number=2), "fine"])
    agent = Agent(model, tools=[twice], capabilities=[governed])

    async with agent.iter("one") as run:
        async for node in run:
            if Agent.is_call_tools_node(node):
                break
    await agent.run("two")

    assert kinds(model.requests[-1])[:2] == [["user-prompt"], ["tool-call"]]
    assert validate(native_messages(model.requests[-1]), "pydantic-ai") == []


async def test_a_limit_that_stops_a_run_leaves_a_history_that_can_be_gone_on_with() -> None:
    governed, model = Holdfast(session="c1"), ScriptedAgentModel([tool_call_response("twice", "a", number=2), "fine"])
    agent = Agent(model, tools=[twice], capabilities=[governed])

    with pytest.raises(UsageLimitExceeded):
        await agent.run("one", usage_limits=UsageLimits(request_limit=1))
    result = await agent.run("two")

    assert result.output == "fine"
    assert validate(native_messages(model.requests[-1]), "pydantic-ai") == []


async def test_a_tool_that_raises_ends_the_run_and_the_next_one_goes_on() -> None:
    governed, model = Holdfast(session="c1"), ScriptedAgentModel([tool_call_response("fail", "a"), "fine"])
    agent = Agent(model, capabilities=[governed])

    @agent.tool_plain
    def fail() -> str:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        await agent.run("one")
    result = await agent.run("two")

    assert result.output == "fine"
    assert validate(native_messages(model.requests[-1]), "pydantic-ai") == []


async def test_a_run_that_cannot_begin_leaves_the_session_as_it_was() -> None:
    governed, model = Holdfast(session="c1"), ScriptedAgentModel(fine)
    agent = Agent(model, capabilities=[governed])
    await agent.run("one")
    open_call: list[ModelMessage] = [ModelRequest.user_text_prompt("?"), tool_call_response("look", "l")]

    with pytest.raises(UserError, match="unprocessed tool calls"):
        await agent.run("two", message_history=open_call)

    assert kinds(await kept(governed)) == [["user-prompt"], ["text"]]


async def test_a_store_that_is_gone_when_a_run_fails_does_not_hide_why_it_failed() -> None:
    class Failing(MemoryStore):
        is_gone = False

        async def append(self, *args: Any, **kwargs: Any) -> int:
            if self.is_gone:
                raise StoreUnavailableError("memory", "the disk is full")
            return await super().append(*args, **kwargs)

    store = Failing()
    agent = Agent(ScriptedAgentModel([tool_call_response("fail", "a")]), capabilities=[Holdfast(store=store)])

    @agent.tool_plain
    def fail() -> str:
        store.is_gone = True
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone") as failed:
        await agent.run("one")

    assert "Holdfast could not record the last messages: " in failed.value.__notes__[0]


# Beside other capabilities.


async def test_what_other_capabilities_put_into_a_request_reaches_the_model() -> None:
    async def remind(_ctx: RunContext[Any], request_context: ModelRequestContext) -> ModelRequestContext:
        note = ModelRequest(parts=[UserPromptPart("[It is late.]")])
        request_context.messages = [*request_context.messages, note]
        return request_context

    governed, model = Holdfast(session="c1"), ScriptedAgentModel(fine)
    agent = Agent(model, capabilities=[Hooks(before_model_request=remind), governed])

    await agent.run("one")
    result = await agent.run("two")

    assert model.prompts == ["one", "two", "[It is late.]"]
    assert await kept(governed) == result.all_messages()


async def test_a_processor_that_shortens_the_history_is_obeyed() -> None:
    governed, model = Holdfast(session="c1"), ScriptedAgentModel(fine)
    newest: ProcessHistory[Any] = ProcessHistory(lambda messages: messages[-3:])
    agent = Agent(model, capabilities=[governed, newest])

    for text in ("one", "two", "three", "four"):
        result = await agent.run(text)

    assert model.prompts == ["three", "four"]
    assert await kept(governed) == result.all_messages()
    assert len(await governed.open()) > 8


async def test_a_capability_that_is_given_to_a_run_takes_the_place_of_the_agents() -> None:
    usual, special = Holdfast(session="usual"), Holdfast(session="special")
    agent = Agent(ScriptedAgentModel(fine), capabilities=[usual])

    await agent.run("one")
    await agent.run("two", capabilities=[special])

    assert [len(await kept(one)) for one in (usual, special)] == [2, 2]


async def test_an_answer_that_another_capability_changes_is_recorded_as_it_was_left() -> None:
    async def shout(
        _ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        del request_context
        return ModelResponse(parts=[TextPart(str(response.text).upper())])

    governed = Holdfast(session="c1")
    agent = Agent(ScriptedAgentModel(fine), capabilities=[Hooks(after_model_request=shout), governed])

    await agent.run("one")

    assert (await kept(governed))[1].parts == [TextPart("FINE")]


# Text that changes from run to run.


async def test_every_message_of_a_long_run_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    to_json: list[int] = []
    from_json: list[int] = []

    def dumped(messages: Sequence[ModelMessage]) -> Any:
        to_json.append(len(messages))
        return dump_messages(messages)

    def validated(natives: Sequence[Any]) -> Any:
        from_json.append(len(natives))
        return validate_messages(natives)

    monkeypatch.setattr("holdfast.adapters.pydantic_ai.conversation.dump_messages", dumped)
    monkeypatch.setattr("holdfast.adapters.pydantic_ai.conversation.validate_messages", validated)
    calls = iter([tool_call_response("twice", f"c{number}", number=number) for number in range(20)])
    model = ScriptedAgentModel(lambda _: next(calls, "done"))
    agent = Agent(model, capabilities=[Holdfast(session="c1", budget=100_000)], tools=[twice])

    result = await agent.run("go")

    assert len(result.all_messages()) == 42
    assert (to_json, sum(from_json)) == ([1] * 42, 0)
    for request in model.requests:
        assert all(one.parts == other.parts for one, other in zip(request, result.all_messages(), strict=False))


async def test_a_message_that_was_edited_in_place_is_recorded_and_sent_as_it_is_now() -> None:
    governed, model = Holdfast(session="c1"), ScriptedAgentModel(fine)
    agent = Agent(model, capabilities=[governed])
    for text in ("one", "two", "three"):
        history = (await agent.run(text)).all_messages()

    part = history[2].parts[0]
    assert isinstance(part, UserPromptPart)
    part.content = "two, corrected"
    await agent.run("four", message_history=history)

    said = ["one", "two, corrected", "three", "four"]
    assert model.prompts == said
    recorded = [part.content for one in await kept(governed) for part in one.parts if isinstance(part, UserPromptPart)]
    assert recorded == said


async def test_an_object_of_a_tool_that_cannot_be_compared_does_no_harm() -> None:
    class Opaque:
        def __eq__(self, other: object) -> bool:
            raise ValueError("no truth value")

        __hash__ = object.__hash__

    def look() -> ToolReturn[str]:
        """Look."""
        return ToolReturn("nothing", metadata=Opaque())

    governed, calls = Holdfast(session="c1"), iter([tool_call_response("look", "c1")])
    agent = Agent(ScriptedAgentModel(lambda _: next(calls, "done")), capabilities=[governed], tools=[look])
    history = (await agent.run("one")).all_messages()
    result = history[2].parts[0]
    assert isinstance(result, ToolReturnPart)
    result.metadata = Opaque()

    assert (await agent.run("two", message_history=history)).output == "done"


async def test_system_text_that_is_made_anew_goes_out_as_it_is_now_and_costs_no_history() -> None:
    governed, model = Holdfast(session="c1"), ScriptedAgentModel(fine)
    agent = Agent(model, capabilities=[governed], system_prompt="Be brief.")
    runs = iter(range(9))

    @agent.system_prompt(dynamic=True)
    def clock() -> str:
        return f"It is {next(runs)} o'clock."

    for text in ("one", "two", "three"):
        await agent.run(text)

    session = await governed.open()
    assert [part.content for part in model.requests[-1][0].parts] == ["Be brief.", "It is 2 o'clock.", "one"]  # type: ignore[union-attr]
    assert model.prompts == ["one", "two", "three"]
    assert await counted(session, log.Rewound) == 0
    assert len(session) == 7
    assert "It is 2 o'clock." in session.history.session_state.system


async def test_instructions_that_change_cost_no_history() -> None:
    governed, model = Holdfast(session="c1"), ScriptedAgentModel(fine)
    agent = Agent(model, capabilities=[governed])
    runs = iter(range(9))

    @agent.instructions
    def clock() -> str:
        return f"It is {next(runs)} o'clock."

    for text in ("one", "two"):
        await agent.run(text)

    session = await governed.open()
    assert model.request_infos[-1].instructions == "It is 1 o'clock."
    assert await counted(session, log.Rewound) == 0
    assert len(session) == 4


# What is in force.


def after(opening: ModelResponse) -> ScriptedAgentModel:
    """Return a model that begins with a call, and then talks until there is a compaction."""
    return ScriptedAgentModel([opening, *["word " * 150] * 20])


async def test_tools_that_were_found_before_a_compaction_are_still_there_after_it() -> None:
    governed, model = (
        Holdfast(session="c1", budget=1_500),
        after(tool_call_response("search_tools", "s", queries=["weather"])),
    )
    agent = Agent(model, capabilities=[governed], tools=[twice])

    @agent.tool_plain(defer_loading=True)
    def get_weather(city: str) -> str:
        """Tell the weather of a city."""
        return f"rain in {city}"

    @agent.tool_plain(defer_loading=True)
    def play_music(title: str) -> str:
        """Play a song."""
        return f"la la {title}"

    for number in range(12):
        await agent.run(f"prompt {number}")

    assert isinstance(model.requests[-1][0].parts[0], CompactionPart)
    assert not any(isinstance(part, ToolCallPart) for message in model.requests[-1] for part in message.parts)
    assert model.request_infos[-1].model_request_parameters.revealed_tool_names == {"get_weather"}


async def test_a_capability_that_was_loaded_before_a_compaction_is_still_loaded_after_it() -> None:
    weather = Capability[Any](
        id="weather", instructions="Always name the wind.", tools=[twice], description="Weather.", defer_loading=True
    )
    governed, model = (
        Holdfast(session="c1", budget=1_500),
        after(tool_call_response("load_capability", "l", id="weather")),
    )
    agent = Agent(model, capabilities=[governed, weather])

    for number in range(12):
        await agent.run(f"prompt {number}")

    assert isinstance(model.requests[-1][0].parts[0], CompactionPart)
    assert "Always name the wind." in str(model.requests[-1])
    assert model.request_infos[-1].model_request_parameters.revealed_tool_names == {"twice"}
    assert len((await governed.open()).history.session_state.pins) == 1


async def test_instructions_that_were_changed_before_a_compaction_are_still_changed_after_it() -> None:
    governed, model = Holdfast(session="c1", budget=1_500), ScriptedAgentModel(lambda _: "word " * 150)
    agent = Agent(model, capabilities=[governed])
    speeds = iter(["slow", "slow", *["fast"] * 20])

    @agent.instructions(name="speed", on_change="append")
    def speed() -> InstructionPart:
        return InstructionPart(f"Be {next(speeds)}.", name="speed", on_change="append", dynamic=True)

    for number in range(12):
        await agent.run(f"prompt {number}")

    assert isinstance(model.requests[-1][0].parts[0], CompactionPart)
    assert "Be fast." in str([*model.requests[-1], model.request_infos[-1].instructions])


async def test_a_run_goes_on_from_what_was_said_to_it_and_not_from_notes_and_delegates() -> None:
    def request(text: str) -> dict[str, Any]:
        return {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": text}]}

    def response(text: str) -> dict[str, Any]:
        return {"kind": "response", "parts": [{"part_kind": "text", "content": text}]}

    session: Session = await Session.open("c1", store=MemoryStore())
    await session.add_memory_note("[Inbox]\n- Use tabs.", format="pydantic-ai")
    await session.record([request("hello"), response("hi")], format="pydantic-ai")
    await session.record([request("look"), response("seen")], format="pydantic-ai", scope="scout")
    length = len(session)

    result = await Agent(ScriptedAgentModel(fine), capabilities=[Holdfast(session=session)]).run("go on")

    said = [getattr(part, "content", "") for message in result.all_messages() for part in message.parts]
    assert said[:3] == ["hello", "hi", "go on"]
    assert len(session) == length + 2
