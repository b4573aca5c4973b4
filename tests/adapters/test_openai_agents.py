"""Agents of the OpenAI Agents SDK keep the promises of the contract, and those of the SDK's own sessions."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from agents import (
    Agent,
    AgentHooks,
    AgentOutputSchema,
    ModelProvider,
    ModelSettings,
    RunConfig,
    Runner,
    RunState,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from agents.extensions.handoff_filters import remove_all_tools
from agents.memory import Session as SdkSession
from agents.memory import SessionSettings
from agents.retry import ModelRetryBackoffSettings, ModelRetrySettings
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from pydantic import BaseModel

from holdfast import CannotFitError, govern
from holdfast.adapters.openai_agents import ITEMS, HoldfastSession
from holdfast.session.background_loop import BACKGROUND_LOOP
from holdfast.testing.agent_contract import (
    CONTRACT_BUDGET,
    CONTRACT_SESSION,
    DELEGATE_TASK_TOOL,
    OVERFLOW_TEXT,
    AgentContract,
    AgentHarness,
    ScriptedCalls,
    ScriptedProviderError,
    look_result,
)
from tests.support import run_example, run_page


@pytest.fixture(autouse=True)
def no_tracing() -> Iterator[None]:
    """Traces would be sent to a server."""
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


class DelegatedTask(BaseModel):
    task: str


def task_of(given: Any) -> str:
    """Return what the helper is asked."""
    return given["params"]["task"]


def is_outage(context: Any) -> bool:
    """Return whether the SDK is to ask again."""
    return context.error.status_code == 503


class OpenAIAgentsHarness(AgentHarness):
    format: ClassVar[str] = "openai-responses"

    def __init__(self, store_url: str) -> None:
        super().__init__(store_url)
        self.build()

    def build(self) -> None:
        self.kept = HoldfastSession(CONTRACT_SESSION, store=self.store_url, budget=CONTRACT_BUDGET)
        model = self.kept.recovering(ScriptedModel([ModelStep.respond(self.respond) for _ in range(60)]))

        @function_tool
        def look(query: str) -> str:
            """Look something up."""
            return look_result(query)

        helper = Agent(name="counter", model=model, tools=[look, self.kept.recall_tool])
        delegate_task = helper.as_tool(
            tool_name=DELEGATE_TASK_TOOL,
            tool_description="Counts.",
            parameters=DelegatedTask,
            input_builder=task_of,
        )
        retry = ModelRetrySettings(
            max_retries=2,
            backoff=ModelRetryBackoffSettings(initial_delay=0.0, max_delay=0.0),
            policy=is_outage,
        )
        self.config = self.kept.run_config()
        self.agent = Agent(
            name="main",
            instructions="Be brief.",
            model=model,
            model_settings=ModelSettings(retry=retry),
            tools=[look, delegate_task, self.kept.recall_tool],
        )

    async def respond(self, call: Any) -> ModelStep:
        items = [dict(item) for item in call.input]
        reply = await self.next_reply(items, [tool.name for tool in call.tools])
        number = len(self.calls)
        if not isinstance(reply, ScriptedCalls):
            return ModelStep(output=[assistant_message(reply, item_id=f"msg_{number}")])
        calls = [
            function_call(name, json.dumps(given), call_id=f"call_{number}_{index}", item_id=f"fc_{number}_{index}")
            for index, (name, given) in enumerate(reply.calls)
        ]
        return ModelStep(output=calls)

    async def turn(self, prompt: str, *, is_streamed: bool = False) -> str:
        if not is_streamed:
            return (await Runner.run(self.agent, prompt, session=self.kept, run_config=self.config)).final_output
        result = Runner.run_streamed(self.agent, prompt, session=self.kept, run_config=self.config)
        async for _ in result.stream_events():
            pass
        return result.final_output

    async def restart(self) -> None:
        await self.close()
        self.build()

    async def close(self) -> None:
        await self.kept.close()


class TestOpenAIAgents(AgentContract):
    @pytest.fixture
    async def agent(self, tmp_path: Path) -> AsyncIterator[AgentHarness]:
        harness = OpenAIAgentsHarness(f"sqlite:///{tmp_path / 'chats.db'}")
        yield harness
        await harness.close()


async def test_it_is_a_session_of_the_sdk_and_nothing_that_is_taken_back_is_lost() -> None:
    kept = HoldfastSession("s")
    one: Any = {"role": "user", "content": "one"}
    two: Any = {"role": "assistant", "content": "two"}

    await kept.add_items([one, two])

    assert isinstance(kept, SdkSession)
    assert await kept.get_items() == [one, two]
    assert await kept.get_items(limit=1) == [two]
    assert await kept.pop_item() == two
    assert await kept.get_items() == [one]
    await kept.clear_session()
    assert await kept.get_items() == []
    assert await kept.pop_item() is None
    assert await asyncio.to_thread(lambda: kept.session().undo())
    assert await kept.get_items() == [one]
    await kept.close()


async def test_what_was_cleared_or_taken_back_does_not_come_back_with_the_next_items() -> None:
    kept = HoldfastSession("s")
    one: Any = {"role": "user", "content": "one"}
    two: Any = {"role": "assistant", "content": "two"}
    await kept.add_items([one, two])

    await kept.pop_item()
    await kept.add_items([two])
    assert await kept.get_items() == [one, two]
    await kept.clear_session()
    await kept.add_items([two])

    assert await kept.get_items() == [two]
    await kept.close()


async def test_what_is_said_twice_is_recorded_twice() -> None:
    kept = HoldfastSession("s")
    yes: Any = {"role": "user", "content": "yes"}
    sure: Any = {"role": "assistant", "content": "Sure?"}

    for item in (yes, sure, yes):
        await kept.add_items([item])

    assert await kept.get_items() == [yes, sure, yes]
    await kept.close()


async def test_items_that_several_threads_add_at_once_are_all_kept(tmp_path: Path) -> None:
    kept = HoldfastSession("s", store=f"sqlite:///{tmp_path / 'chats.db'}")
    items: list[Any] = [{"role": "user", "content": f"prompt {number}"} for number in range(10)]

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, kept.add_items([item])) for item in items))

    assert sorted(str(item) for item in await kept.get_items()) == sorted(map(str, items))
    await kept.close()


async def test_two_sessions_with_one_id_see_what_the_other_adds(tmp_path: Path) -> None:
    one, other = (HoldfastSession("s", store=f"sqlite:///{tmp_path / 'chats.db'}") for _ in range(2))
    items: list[Any] = [{"role": "user", "content": f"prompt {number}"} for number in range(12)]

    await asyncio.gather(*((one, other)[at % 2].add_items([item]) for at, item in enumerate(items)))

    assert sorted(str(item) for item in await one.get_items()) == sorted(map(str, items))
    assert await other.get_items() == await one.get_items()
    for kept in (one, other):
        await kept.close()


async def test_items_that_say_the_same_as_stored_ones_are_added_in_a_new_process(tmp_path: Path) -> None:
    item: Any = {"role": "user", "content": "hello"}
    items: list[Any] = []

    for _ in range(2):
        kept = HoldfastSession("s", store=f"sqlite:///{tmp_path / 'chats.db'}")
        await kept.add_items([item])
        items = await kept.get_items()
        await kept.close()

    assert items == [item, item]


async def test_the_settings_of_the_sdks_sessions_may_be_given_as_an_object_or_a_dict() -> None:
    one: Any = {"role": "user", "content": "one"}
    two: Any = {"role": "assistant", "content": "two"}
    for settings in (SessionSettings(limit=1), {"limit": 1}):
        kept = HoldfastSession("s", session_settings=settings)
        await kept.add_items([one, two])

        assert await kept.get_items() == [two]
        assert await kept.get_items(limit=2) == [one, two]
        await kept.close()
    assert HoldfastSession("s").session_settings == SessionSettings()
    with pytest.raises(TypeError):
        HoldfastSession("s", session_settings={"limitt": 1})


@pytest.fixture
def own_loop() -> Iterator[None]:
    """`run_sync` leaves the event loop of its thread open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.usefixtures("own_loop")
def test_a_filter_of_ones_own_runs_first_and_runs_without_async_share_the_session() -> None:
    kept = HoldfastSession("s")
    seen: list[int] = []

    def own(data: Any) -> Any:
        seen.append(len(data.model_data.input))
        return data.model_data

    config = kept.run_config(RunConfig(call_model_input_filter=own))
    agent = Agent(name="a", model=ScriptedModel([[assistant_message("two")], [assistant_message("four")]]))

    assert Runner.run_sync(agent, "one", session=kept, run_config=config).final_output == "two"
    assert Runner.run_sync(agent, "three", session=kept, run_config=config).final_output == "four"

    assert seen == [1, 3]
    assert kept.last_request is not None
    assert len(kept.last_request.messages) == 3
    BACKGROUND_LOOP.run(kept._pool.close())


async def test_a_run_without_the_filter_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    kept = HoldfastSession("s")
    await kept.add_items([{"role": "user", "content": "zero"}, {"role": "assistant", "content": "none"}])
    assert caplog.messages == []
    agent = Agent(name="a", model=ScriptedModel([[assistant_message("two")], [assistant_message("four")]]))

    await Runner.run(agent, "one", session=kept)
    await Runner.run(agent, "three", session=kept)

    assert caplog.messages == [
        "Session 's' runs without its filter, so no model call is kept within the budget: "
        "pass run_config=kept.run_config() to Runner.run, with the HoldfastSession as kept"
    ]
    await kept.close()


async def test_a_run_with_the_filter_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    agent = Agent(name="a", model=ScriptedModel([[assistant_message("two")]]))

    await Runner.run(agent, "one", session=kept, run_config=kept.run_config())

    assert caplog.messages == []
    await kept.close()


async def test_a_named_model_recovers_from_an_overflow_too() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    inner = ScriptedModel([ScriptedProviderError(OVERFLOW_TEXT, 400), [assistant_message("ok")]])

    class OneModel(ModelProvider):
        def get_model(self, model_name: str | None) -> Any:
            del model_name
            return inner

    config = kept.run_config(RunConfig(model_provider=OneModel()))
    past: Any = [{"role": role, "content": "word " * 150} for _ in range(10) for role in ("user", "assistant")]

    given: Any = [*past, {"role": "user", "content": "go"}]
    result = await Runner.run(Agent(name="a", model="gpt-5"), given, run_config=config)

    assert result.final_output == "ok"
    assert len(str(inner.calls[1].input)) < len(str(inner.calls[0].input))
    await kept.close()


async def test_an_error_that_is_no_overflow_arrives_unchanged() -> None:
    kept = HoldfastSession("s")
    agent = Agent(name="a", model=kept.recovering(ScriptedModel([ValueError("no such model")])))

    with pytest.raises(ValueError, match="no such model"):
        await Runner.run(agent, "one", session=kept, run_config=kept.run_config())

    await kept.close()


def test_the_page_and_the_example_run_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("openai-agents")
    run_example("openai_agents_agent")

    assert capsys.readouterr().out


async def test_a_prompt_that_no_model_takes_raises_the_providers_own_error_with_a_note() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    errors = [ScriptedProviderError(OVERFLOW_TEXT, 400) for _ in range(20)]
    agent = Agent(name="a", model=kept.recovering(ScriptedModel(errors)))

    with pytest.raises(ScriptedProviderError) as governed:
        await Runner.run(agent, "one", session=kept, run_config=kept.run_config())
    assert [note.partition(":")[0] for note in governed.value.__notes__] == [
        "Holdfast could not make the request small enough"
    ]
    await kept.close()


async def test_an_overflow_of_a_run_without_the_filter_arrives_unchanged() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    agent = Agent(name="a", model=kept.recovering(ScriptedModel([ScriptedProviderError(OVERFLOW_TEXT, 400)])))

    with pytest.raises(ScriptedProviderError) as raised:
        await Runner.run(agent, "one", session=kept)

    assert not getattr(raised.value, "__notes__", [])
    await kept.close()


def texts(items: Any) -> list[str]:
    return [ITEMS.text(dict(item)) for item in items]


async def kept_texts(kept: HoldfastSession) -> tuple[list[str], list[str]]:
    """Return the texts of the session, and the tasks of its delegations."""
    session = kept.session()
    delegations = await asyncio.to_thread(session.delegations)
    return texts(await kept.get_items()), [one.started.task for one in delegations]


@pytest.mark.parametrize("limits", [{"limit": 2}, {}])
async def test_a_run_that_gets_only_a_part_of_the_conversation_leaves_the_session_whole(limits: Any) -> None:
    kept = HoldfastSession("s", session_settings=limits, budget=CONTRACT_BUDGET)
    model = ScriptedModel([[assistant_message(f"answer {number}")] for number in range(3)])
    own = None if limits else RunConfig(session_input_callback=lambda past, new: [*past[-2:], *new])

    for number in range(3):
        agent = Agent(name="a", model=model, tools=[kept.recall_tool])
        await Runner.run(agent, f"prompt {number}", session=kept, run_config=kept.run_config(own))

    kept.session_settings = None
    everything = [f"{kind} {number}" for number in range(3) for kind in ("prompt", "answer")]
    assert await kept_texts(kept) == (everything, [])
    assert texts(model.calls[-1].input) == ["prompt 1", "answer 1", "prompt 2"]
    await kept.close()


async def test_what_the_filter_of_a_handoff_leaves_out_stays_in_the_session() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    billing = ScriptedModel([[assistant_message("paid")]])
    first = ScriptedModel(
        [[function_call("find", {}, call_id="c1")], [function_call("transfer_to_billing", {}, call_id="c2")]]
    )

    @function_tool
    def find() -> str:
        """Find it."""
        return "found"

    agent = Agent(name="a", model=first, tools=[find], handoffs=[Agent(name="billing", model=billing)])
    config = kept.run_config(RunConfig(handoff_input_filter=remove_all_tools))

    await Runner.run(agent, "pay it", session=kept, run_config=config)

    assert texts(billing.calls[0].input) == ["pay it"]
    assert await kept_texts(kept) == (["pay it", "", "found", "paid"], [])
    await kept.close()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_the_filter_of_a_handoff_leaves_out_of_earlier_runs_stays_in_the_session(
    *, is_streamed: bool
) -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    billing = ScriptedModel([[assistant_message("paid")]])
    first = ScriptedModel(
        [
            [function_call("find", {}, call_id="c1")],
            [assistant_message("it is there")],
            [function_call("transfer_to_billing", {}, call_id="c2")],
            [assistant_message("bye")],
        ]
    )

    @function_tool
    def find() -> str:
        """Find it."""
        return "found"

    agent = Agent(name="a", model=first, tools=[find], handoffs=[Agent(name="billing", model=billing)])
    config = kept.run_config(RunConfig(handoff_input_filter=remove_all_tools))

    for prompt in ("find it", "pay it", "thanks"):
        if is_streamed:
            stream = Runner.run_streamed(agent, prompt, session=kept, run_config=config)
            async for _ in stream.stream_events():
                pass
        else:
            await Runner.run(agent, prompt, session=kept, run_config=config)

    assert texts(billing.calls[0].input) == ["find it", "it is there", "pay it"]
    said = ["find it", "", "found", "it is there", "pay it", "paid", "thanks"]
    assert texts(first.calls[-1].input) == said
    assert await kept_texts(kept) == ([*said, "bye"], [])
    await kept.close()


async def test_runs_of_one_session_at_once_leave_all_items_in_it() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    agent = Agent(name="a", model=ScriptedModel([[assistant_message("ok")] for _ in range(3)]))

    async def run(prompt: str) -> None:
        await Runner.run(agent, prompt, session=kept, run_config=kept.run_config())

    await run("zero")
    await asyncio.gather(run("one"), run("two"))

    said, tasks = await kept_texts(kept)
    assert (sorted(said), tasks) == (["ok", "ok", "ok", "one", "two", "zero"], [])
    await kept.close()


@pytest.mark.parametrize("is_other_process", [False, True])
async def test_a_run_takes_away_nothing_that_another_one_has_said_during_its_tool(
    *, is_other_process: bool, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    kept = HoldfastSession("s", store=url, budget=CONTRACT_BUDGET)
    other = HoldfastSession("s", store=url, budget=CONTRACT_BUDGET) if is_other_process else kept
    may_go_on, waits, may_answer, asked = (asyncio.Event() for _ in range(4))

    @function_tool
    async def wait() -> str:
        waits.set()
        await may_go_on.wait()
        return "gone on"

    async def answer(call: object) -> ModelStep:
        del call
        asked.set()
        await may_answer.wait()
        return ModelStep(output=[assistant_message("yes")])

    async def run(session: HoldfastSession, prompt: str, answers: list[Any]) -> None:
        agent = Agent(name="a", model=ScriptedModel(answers), tools=[wait])
        await Runner.run(agent, prompt, session=session, run_config=session.run_config())

    await run(kept, "zero", [[assistant_message("ok")]])
    calls = [[function_call("wait", "{}", call_id=f"w{n}")] for n in range(5)]
    slow = asyncio.create_task(run(kept, "slow", [*calls, [assistant_message("done")]]))
    await waits.wait()
    if is_other_process:
        may_answer.set()
    meanwhile = asyncio.create_task(run(other, "meanwhile", [ModelStep.respond(answer)]))
    await (meanwhile if is_other_process else asked.wait())
    may_go_on.set()
    await slow
    may_answer.set()
    await meanwhile

    said = [one.get("content") or one.get("output") or one["call_id"] for one in map(dict, await kept.get_items())]
    texts_said = [one if isinstance(one, str) else one[0]["text"] for one in said]  # type: ignore[index]
    called = [*(f"w{n}" for n in range(5)), *["gone on"] * 5]
    assert sorted(texts_said) == sorted(["zero", "ok", "slow", *called, "done", "meanwhile", "yes"])
    await kept.close()
    await other.close()


async def test_a_run_that_asks_after_others_have_begun_takes_none_of_their_items_away() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    may_ask, waits = asyncio.Event(), asyncio.Event()

    async def wait(context: object, agent: object) -> str:
        del context, agent
        waits.set()
        await may_ask.wait()
        return "Be brief."

    async def run(prompt: str, instructions: Any = None) -> None:
        agent = Agent(name="a", instructions=instructions, model=ScriptedModel([[assistant_message("ok")]]))
        await Runner.run(agent, prompt, session=kept, run_config=kept.run_config())

    first = asyncio.create_task(run("one", wait))
    await waits.wait()
    await asyncio.create_task(run("two"))
    await asyncio.create_task(kept.get_items())
    may_ask.set()
    await first

    assert (await kept_texts(kept))[0] == ["one", "two", "ok", "ok"]
    await kept.close()


class Question(BaseModel):
    text: str
    times: int


@pytest.mark.parametrize("arguments", [{"input": "count"}, {"text": "count", "times": 2}])
async def test_an_agent_as_a_tool_has_its_own_delegation_whatever_it_is_asked(arguments: Any) -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    counting = ScriptedModel([[assistant_message("seven")]])
    model = ScriptedModel([[function_call("count", arguments, call_id="c1")], [assistant_message("done")]])
    schema: Any = {"parameters": Question} if "times" in arguments else {}
    tool = Agent(name="counter", model=counting).as_tool("count", "Counts.", **schema)

    await Runner.run(Agent(name="a", model=model, tools=[tool]), "count", session=kept, run_config=kept.run_config())

    [delegation] = await asyncio.to_thread(kept.session().delegations)
    assert (delegation.state, delegation.answer) == ("answered", "seven")
    assert await kept_texts(kept) == (["count", "", "seven", "done"], texts(counting.calls[0].input))
    await kept.close()


@function_tool
def look(query: str) -> str:
    """Look something up."""
    return look_result(query)


def looking(*words: str) -> Any:
    """Return the output of a model that looks words up."""
    return [function_call(look.name, {"query": word}, call_id=f"look_{word}") for word in words]


def delegating(tool: str, *call_ids: str) -> Any:
    """Return the output of a model that gives an agent the same task in each call."""
    return [function_call(tool, {"input": "count"}, call_id=call_id) for call_id in call_ids]


async def test_an_agent_as_a_tool_that_calls_another_one_has_that_in_its_delegation() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    inner = ScriptedModel([looking("boats"), [assistant_message("seven")], [assistant_message("eight")]])
    counter = Agent(name="inner", model=inner, tools=[look]).as_tool("count", "Counts.")
    ends = [[assistant_message("done")], [assistant_message("again")]]
    outer = ScriptedModel([delegating("count", "i1"), ends[0], delegating("count", "i2"), ends[1]])
    helper = Agent(name="outer", model=outer, tools=[counter]).as_tool("help", "Helps.")
    model = ScriptedModel([delegating("help", "o1"), ends[0], delegating("help", "o2"), ends[1]])
    agent = Agent(name="a", model=model, tools=[helper])

    for prompt in ("one", "two"):
        await Runner.run(agent, prompt, session=kept, run_config=kept.run_config())

    ended = await asyncio.to_thread(kept.session().delegations)
    outers = [one for one in ended if one.started.agent == "outer"]
    assert [(one.state, one.answer, one.started.parent) for one in outers] == [
        ("answered", "done", "main"),
        ("answered", "again", "main"),
    ]
    assert [(one.state, one.answer, one.started.parent) for one in ended if one.started.agent == "inner"] == [
        ("answered", "seven", outers[0].started.scope),
        ("answered", "eight", outers[1].started.scope),
    ]
    assert [texts(call.input) for call in inner.calls] == [["count"], ["count", "", look_result("boats")], ["count"]]
    await kept.close()


async def test_agents_with_the_same_task_at_once_have_a_delegation_each() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    inner = ScriptedModel([looking("a"), looking("b"), [assistant_message("seven")], [assistant_message("eight")]])
    counter = Agent(name="counter", model=inner, tools=[look]).as_tool("count", "Counts.")
    model = ScriptedModel([delegating("count", "c1", "c2"), [assistant_message("good")]])
    agent = Agent(name="a", model=model, tools=[counter])

    await Runner.run(agent, "count twice", session=kept, run_config=kept.run_config())

    ended = await asyncio.to_thread(kept.session().delegations)
    assert sorted((one.state, one.answer) for one in ended) == [("answered", "eight"), ("answered", "seven")]
    assert [texts(call.input) for call in inner.calls] == [
        ["count"],
        ["count"],
        ["count", "", look_result("a")],
        ["count", "", look_result("b")],
    ]
    await kept.close()


async def test_an_agent_as_a_tool_knows_nothing_of_a_run_that_was_cancelled() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    waits = asyncio.Event()

    @function_tool
    async def wait() -> str:
        """Wait for ever."""
        waits.set()
        return await asyncio.get_running_loop().create_future()

    inner = ScriptedModel([looking("a"), [function_call(wait.name, {}, call_id="w")], [assistant_message("seven")]])
    counter = Agent(name="counter", model=inner, tools=[look, wait]).as_tool("count", "Counts.")
    model = ScriptedModel([delegating("count", "c1"), delegating("count", "c2"), [assistant_message("good")]])
    agent = Agent(name="a", model=model, tools=[counter])
    stopped = asyncio.create_task(Runner.run(agent, "count", session=kept, run_config=kept.run_config()))
    await waits.wait()
    stopped.cancel()
    await asyncio.wait({stopped})

    await Runner.run(agent, "again", session=kept, run_config=kept.run_config())

    assert [texts(call.input) for call in inner.calls] == [["count"], ["count", "", look_result("a")], ["count"]]
    ended = await asyncio.to_thread(kept.session().delegations)
    assert [(one.state, one.answer) for one in ended] == [("cancelled", ""), ("answered", "seven")]
    await kept.close()


class Waiting(AgentHooks):
    """An agent with a sub-agent and a tool that waits for ever, either in the sub-agent or beside it."""

    def __init__(self, kept: HoldfastSession, *, does_sub_agent_wait: bool) -> None:
        self.kept = kept
        self.has_begun = asyncio.Event()
        self._has_counted = asyncio.Event()
        self._does_sub_agent_wait = does_sub_agent_wait
        wait = function_tool(self._wait, name_override="wait", description_override="Wait for ever.")
        waits: Any = function_call("wait", {}, call_id="w")
        inner = ScriptedModel([[waits] if does_sub_agent_wait else [assistant_message("seven")]])
        counter = Agent(name="counter", model=inner, tools=[wait]).as_tool("count", "Counts.")
        calls = delegating("count", "c1") + ([] if does_sub_agent_wait else [waits])
        model = ScriptedModel([looking("a"), calls, [assistant_message("good")]])
        self.agent = Agent(name="a", model=model, tools=[counter, wait, look], hooks=self)

    async def _wait(self) -> str:
        if not self._does_sub_agent_wait:
            await self._has_counted.wait()
        self.has_begun.set()
        return await asyncio.get_running_loop().create_future()

    async def on_tool_end(self, context: object, agent: object, tool: Any, result: object) -> None:
        del context, agent, result
        if tool.name == "count":
            self._has_counted.set()

    async def run(self, prompt: str) -> None:
        await Runner.run(self.agent, prompt, session=self.kept, run_config=self.kept.run_config())

    async def stream(self, prompt: str) -> None:
        result = Runner.run_streamed(self.agent, prompt, session=self.kept, run_config=self.kept.run_config())
        async for _ in result.stream_events():
            pass

    async def states(self, *, has_ended: bool = True) -> list[str]:
        """Return the states of the delegations; if they have to end, once they have."""
        async with asyncio.timeout(60):
            while True:
                found = [one.state for one in await asyncio.to_thread(self.kept.session().delegations)]
                if not has_ended or "running" not in found:
                    return found


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("does_sub_agent_wait", [False, True])
async def test_an_agent_as_a_tool_ends_its_delegation_when_its_run_or_its_callers_is_cancelled(
    *, is_streamed: bool, does_sub_agent_wait: bool
) -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    waiting = Waiting(kept, does_sub_agent_wait=does_sub_agent_wait)
    stopped = asyncio.create_task(waiting.stream("count") if is_streamed else waiting.run("count"))
    await waiting.has_begun.wait()
    assert await waiting.states(has_ended=False) == ["running"]

    stopped.cancel()

    assert await waiting.states() == ["cancelled"]
    await kept.close()


async def test_an_agent_as_a_tool_whose_answer_was_never_added_ends_with_the_next_run_of_the_same_task() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    waiting = Waiting(kept, does_sub_agent_wait=False)
    states: list[list[str]] = []

    async def talk() -> None:
        with suppress(asyncio.CancelledError):
            await waiting.run("count")
        states.append(await waiting.states(has_ended=False))
        await waiting.run("again")
        states.append(await waiting.states(has_ended=False))

    talking = asyncio.create_task(talk())
    await waiting.has_begun.wait()
    talking.cancel()
    await talking

    assert states == [["running"], ["silent"]]
    await kept.close()


async def test_an_agent_as_a_tool_that_the_first_response_of_a_stream_calls_has_its_delegation() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    counter = Agent(name="counter", model=ScriptedModel([[assistant_message("seven")]])).as_tool("count", "Counts.")
    model = ScriptedModel([delegating("count", "c1"), [assistant_message("good")]])

    agent = Agent(name="a", model=model, tools=[counter])
    result = Runner.run_streamed(agent, "how many?", session=kept, run_config=kept.run_config())
    async for _ in result.stream_events():
        pass

    [delegation] = await asyncio.to_thread(kept.session().delegations)
    assert (delegation.started.task, delegation.state, delegation.answer) == ("count", "answered", "seven")
    assert await kept_texts(kept) == (["how many?", "", "seven", "good"], ["count"])
    await kept.close()


def deleting(kept: HoldfastSession, main: Any, inner: Any) -> Agent[Any]:
    """Return an agent whose sub-agent has a tool that a person has to approve, with the outputs of their models."""

    @function_tool(needs_approval=True)
    def delete(path: str) -> str:
        """Delete a file."""
        return f"{path} is deleted"

    helper = Agent(name="helper", model=ScriptedModel(inner), tools=[delete, kept.recall_tool])
    return Agent(name="a", model=ScriptedModel(main), tools=[helper.as_tool("help_me", "Helps.")])


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_an_agent_as_a_tool_that_waits_for_a_person_goes_on_and_leaves_the_session_whole(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    store = f"sqlite:///{tmp_path / 'chats.db'}"
    kept = HoldfastSession("s", store=store, budget=CONTRACT_BUDGET)
    helps: Any = [function_call("help_me", {"input": "remove x"}, call_id="h1")]
    deletes: Any = [function_call("delete", {"path": "x"}, call_id="d1")]
    ends: Any = [[assistant_message("done")], [assistant_message("removed")]]
    agent = deleting(kept, [helps, ends[0]], [deletes, ends[1]])
    paused = await Runner.run(agent, "tidy up", session=kept, run_config=kept.run_config())
    state = paused.to_state()
    if is_restarted:
        await kept.close()
        kept = HoldfastSession("s", store=store, budget=CONTRACT_BUDGET)
        agent = deleting(kept, [ends[0]], [ends[1]])
        state = await RunState.from_string(agent, state.to_string())
    [waiting] = state.get_interruptions()
    state.approve(waiting)

    result = await Runner.run(agent, state, session=kept, run_config=kept.run_config())

    assert result.final_output == "done"
    assert await kept_texts(kept) == (["tidy up", "", "removed", "done"], ["remove x"])
    [delegation] = await asyncio.to_thread(kept.session().delegations)
    if not is_restarted:
        own = await asyncio.to_thread(lambda: kept.session().messages(scope=delegation.started.scope))
        assert (delegation.state, delegation.answer) == ("answered", "removed")
        assert texts(own) == ["remove x", "", "x is deleted", "removed"]
    await kept.close()


async def test_the_nested_history_of_a_handoff_is_sent_as_the_sdk_has_written_it() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    billing = ScriptedModel([[assistant_message("paid")]])
    first = ScriptedModel([[function_call("transfer_to_billing", {}, call_id="c1")]])
    agent = Agent(name="a", model=first, handoffs=[Agent(name="billing", model=billing)])

    config = kept.run_config(RunConfig(nest_handoff_history=True))
    await Runner.run(agent, "pay it", session=kept, run_config=config)

    [asked] = [[dict(item) for item in call.input] for call in billing.calls]
    assert [item["role"] for item in asked] == ["assistant"]
    assert "pay it" in asked[0]["content"]
    assert (await kept_texts(kept))[0] == ["pay it", "", '{"assistant": "billing"}', "paid"]
    await kept.close()


@pytest.mark.parametrize("can_recall", [False, True])
async def test_a_nested_history_that_is_larger_than_the_budget_is_sent_with_its_beginning_and_its_end(
    *, can_recall: bool
) -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    tools: list[Any] = [kept.recall_tool] if can_recall else []
    answers: Any = [[assistant_message("word " * 300)] for _ in range(20)]
    first = ScriptedModel([*answers, [function_call("transfer_to_billing", {}, call_id="c1")]])
    billing = ScriptedModel([[assistant_message("paid")]])
    agent = Agent(name="a", model=first, tools=tools, handoffs=[Agent(name="billing", model=billing, tools=tools)])
    config = kept.run_config(RunConfig(nest_handoff_history=True))
    for number in range(20):
        await Runner.run(agent, f"prompt {number}", session=kept, run_config=config)

    result = await Runner.run(agent, "pay it", session=kept, run_config=config)

    [asked] = [[dict(item) for item in call.input] for call in billing.calls]
    [item] = asked
    beginning, _, end = item["content"].partition("\n[… ")
    notice, _, end = end.partition(" …]\n")
    assert (result.final_output, item["role"]) == ("paid", "assistant")
    assert beginning.startswith("For context")
    assert "1. user: prompt 0\n" in beginning
    assert "user: pay it\n" in end
    assert end.endswith("</CONVERSATION HISTORY>")
    assert (": recall with a query" in notice) is can_recall
    assert CONTRACT_BUDGET * 0.6 < govern(asked, format=ITEMS.format, budget=10**6).tokens.total < CONTRACT_BUDGET
    assert len(await kept.get_items()) == 44
    await kept.close()


async def test_a_nested_history_is_not_shortened_to_nothing_for_a_system_text_that_is_too_large() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    first = ScriptedModel([[function_call("transfer_to_billing", {}, call_id="c1")]])
    billing = Agent(name="billing", model=ScriptedModel([]), instructions="word " * 5_000)
    agent = Agent(name="a", model=first, handoffs=[billing])

    config = kept.run_config(RunConfig(nest_handoff_history=True))
    with pytest.raises(CannotFitError) as refused:
        await Runner.run(agent, "pay it " * 500, session=kept, run_config=config)

    assert refused.value.part == "the system text"
    assert 100 < refused.value.breakdown["the last exchange"] < 400
    await kept.close()


def exchanges(items: Any) -> list[tuple[str, str]]:
    """Return the prompts and the answers, and each call with the output that has its id."""
    outputs = {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}
    calls = [item for item in items if item.get("type") == "function_call"]
    assert len(outputs) == len(calls)
    return [(json.loads(item["arguments"])["query"], outputs[item["call_id"]]) for item in calls]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_calls_whose_ids_start_over_in_each_turn_are_all_kept_and_sent(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    words, store = ["a", "b", "c"], f"sqlite:///{tmp_path / 'chats.db'}"
    kept, model = HoldfastSession("s", store=store, budget=CONTRACT_BUDGET), ScriptedModel([])
    for number, word in enumerate(words):
        if is_restarted and number:
            await kept.close()
            kept = HoldfastSession("s", store=store, budget=CONTRACT_BUDGET)
        call = function_call(look.name, {"query": word}, call_id="call_1")
        model = ScriptedModel([[call], [assistant_message(f"answer {word}")]])
        agent = Agent(name="a", model=model, tools=[look])
        await Runner.run(agent, f"prompt {word}", session=kept, run_config=kept.run_config())

    whole = [text for word in words for text in (f"prompt {word}", "", look_result(word), f"answer {word}")]
    pairs = [(word, look_result(word)) for word in words]
    items = await kept.get_items()
    recorded: Any = await asyncio.to_thread(lambda: kept.session().messages())
    assert (texts(items), exchanges(items)) == (whole, pairs)
    assert (texts(model.calls[-1].input), exchanges(model.calls[-1].input)) == (whole[:-1], pairs)
    assert [item["call_id"] for item in recorded if "call_id" in item] == ["call_1"] * 6
    await kept.close()


async def test_an_agent_as_a_tool_does_not_take_the_output_of_a_later_call_with_the_same_id() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    waiting = Waiting(kept, does_sub_agent_wait=True)
    stopped = asyncio.create_task(waiting.run("count"))
    await waiting.has_begun.wait()
    stopped.cancel()
    await asyncio.wait({stopped})
    call = function_call(look.name, {"query": "count"}, call_id="c1")

    model = ScriptedModel([[call], [assistant_message("good")]])
    agent = Agent(name="a", model=model, tools=[look])
    await Runner.run(agent, "again", session=kept, run_config=kept.run_config())

    [delegation] = await asyncio.to_thread(kept.session().delegations)
    assert (delegation.state, delegation.answer) == ("cancelled", "")
    await kept.close()


async def test_a_recall_that_is_nested_too_deeply_is_answered_as_one_without_arguments() -> None:
    kept = HoldfastSession("s")
    await kept.add_items([{"role": "user", "content": "one"}])
    context: Any = None

    answers = [await kept.recall_tool.on_invoke_tool(context, text) for text in ("[" * 100_000, "{}", "{")]

    assert len({*answers}) == 1
    await kept.close()


async def test_a_tool_of_the_agents_own_that_is_called_recall_is_not_named_by_summaries() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    model = ScriptedModel([[assistant_message("word " * 60)] for _ in range(40)])
    own = function_tool(look_result, name_override="recall", description_override="Call a product back.")
    agent = Agent(name="a", model=model, tools=[own])

    for _ in range(40):
        await Runner.run(agent, "say it " * 40, session=kept, run_config=kept.run_config())

    request = kept.last_request
    assert request is not None
    assert request.receipt.compacted
    assert "recall" not in str(request.messages)
    await kept.close()


async def test_an_overflow_of_an_agent_as_a_tool_is_answered_with_less_of_its_own_request() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    overflow = ModelStep.raise_error(ScriptedProviderError(OVERFLOW_TEXT, 400))
    inner = ScriptedModel([looking("a", "b", "c", "d", "e"), overflow, [assistant_message("seven")]])
    counter = Agent(name="counter", model=kept.recovering(inner), tools=[look]).as_tool("count", "Counts.")
    model = ScriptedModel([delegating("count", "c1"), [assistant_message("good")]])
    agent = Agent(name="a", model=model, tools=[counter])

    await Runner.run(agent, "how many boats?", session=kept, run_config=kept.run_config())

    _, rejected, sent = inner.calls
    assert texts(sent.input)[0] == "count"
    assert len(str(sent.input)) < len(str(rejected.input))
    await kept.close()


async def test_a_part_with_an_output_that_no_call_asked_for_is_made_to_fit() -> None:
    event: Any = {"type": "function_call_output", "name": "timer", "output": "the time is over"}
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    model = ScriptedModel([[assistant_message("word " * 4 * CONTRACT_BUDGET)], [assistant_message("ok")]])
    last_of_past = RunConfig(session_input_callback=lambda past, new: [*past[-1:], event, *new])

    for prompt in ("one", "two"):
        await Runner.run(Agent(name="a", model=model), prompt, session=kept, run_config=kept.run_config(last_of_past))

    sent = texts(model.calls[-1].input)
    assert (sent[-2:], len("".join(sent)) < 5 * CONTRACT_BUDGET) == (["the time is over", "two"], True)
    await kept.close()


SERVER_STATE: list[dict[str, Any]] = [{"conversation_id": "conv_1"}, {"auto_previous_response_id": True}]
"""How the provider is asked to keep the conversation; the SDK then passes only what is new."""


@pytest.mark.parametrize("state", SERVER_STATE)
async def test_what_a_provider_gets_that_keeps_the_conversation_is_left_as_it_is(state: Any) -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    steps: Any = [
        [function_call("look_up", "{}", call_id="c1")],
        [assistant_message("ok")],
        [assistant_message("yes")],
    ]
    model = ScriptedModel(steps)

    @function_tool
    def look_up() -> str:
        """Look something up."""
        return "found"

    agent = Agent(name="a", model=model, tools=[look_up])
    for prompt in ("one", "two"):
        await Runner.run(agent, prompt, run_config=kept.run_config(), **state)

    assert [call.input for call in model.calls] == [
        [{"role": "user", "content": "one"}],
        [{"type": "function_call_output", "call_id": "c1", "output": "found"}],
        [{"role": "user", "content": "two"}],
    ]
    assert await asyncio.to_thread(kept.session().delegations) == []
    await kept.close()


@pytest.mark.parametrize("count", [1, 2])
async def test_agents_as_tools_end_their_delegations_where_the_provider_keeps_the_conversation(count: int) -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    counting = ScriptedModel([[assistant_message("seven")] for _ in range(count)])
    calls = [function_call("count", {"input": f"count {number}"}, call_id=f"c{number}") for number in range(count)]
    model = ScriptedModel([calls, [assistant_message("done")]])
    tool = Agent(name="counter", model=counting).as_tool("count", "Counts.")

    agent = Agent(name="a", model=model, tools=[tool])
    await Runner.run(agent, "go", run_config=kept.run_config(), conversation_id="conv_1")

    delegations = await asyncio.to_thread(kept.session().delegations)
    # With several outputs nothing tells whose answer each one is.
    expected = [("answered", "seven")] if count == 1 else [("silent", "")] * 2
    assert [(one.state, one.answer) for one in delegations] == expected
    await kept.close()


async def test_the_definitions_of_handoffs_are_counted() -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    other, third = Agent(name="other", handoff_description="Knows more."), Agent(name="third")
    model = ScriptedModel([[assistant_message("done")]])

    def note(context: object, given: Question) -> None:
        del context, given

    agent = Agent(name="a", model=model, handoffs=[other, handoff(third, input_type=Question, on_handoff=note)])

    await Runner.run(agent, "go", session=kept, run_config=kept.run_config())

    request = kept.last_request
    assert request is not None
    tools: Any = request.tools
    assert [tool["name"] for tool in tools] == ["transfer_to_other", "transfer_to_third"]
    assert sorted(tools[1]["parameters"]["properties"]) == ["text", "times"]
    await kept.close()


@pytest.mark.parametrize("made", [Question, AgentOutputSchema(Question, strict_json_schema=False)])
async def test_the_definition_of_a_structured_output_is_counted(made: Any) -> None:
    kept = HoldfastSession("s", budget=CONTRACT_BUDGET)
    answer = assistant_message('{"text": "how?", "times": 2}')
    agent = Agent(name="a", model=ScriptedModel([[answer]]), output_type=made)

    result = await Runner.run(agent, "go", session=kept, run_config=kept.run_config())

    request = kept.last_request
    assert request is not None
    tools: Any = request.tools
    assert [sorted(tool["parameters"]["properties"]) for tool in tools] == [["text", "times"]]
    assert request.tokens.tools > 0
    assert result.final_output == Question(text="how?", times=2)
    await kept.close()


async def test_an_overflow_of_a_part_of_the_conversation_arrives_unchanged() -> None:
    kept = HoldfastSession("s", session_settings={"limit": 1}, budget=CONTRACT_BUDGET)
    steps: Any = [[assistant_message("ok")], ScriptedProviderError(OVERFLOW_TEXT, 400)]
    agent = Agent(name="a", model=kept.recovering(ScriptedModel(steps)))
    await Runner.run(agent, "one", session=kept, run_config=kept.run_config())

    with pytest.raises(ScriptedProviderError) as raised:
        await Runner.run(agent, "two", session=kept, run_config=kept.run_config())

    assert not getattr(raised.value, "__notes__", [])
    await kept.close()


class BreakingModel(ScriptedModel):
    """Breaks off each stream after its first event."""

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for event in super().stream_response(*args, **kwargs):
            yield event
            raise ScriptedProviderError(OVERFLOW_TEXT, 400)


async def test_a_stream_is_opened_again_smaller_unless_it_has_begun() -> None:
    past: Any = [{"role": role, "content": "word " * 150} for _ in range(10) for role in ("user", "assistant")]
    given: Any = [*past, {"role": "user", "content": "go"}]
    refused = ScriptedModel([ScriptedProviderError(OVERFLOW_TEXT, 400), [assistant_message("ok")]])
    broken = BreakingModel([[assistant_message("one")], [assistant_message("two")]])

    async def streamed(name: str, model: ScriptedModel) -> Any:
        kept = HoldfastSession(name, budget=CONTRACT_BUDGET)
        agent = Agent(name="a", model=kept.recovering(model))
        result = Runner.run_streamed(agent, given, run_config=kept.run_config())
        async for _ in result.stream_events():
            pass
        await kept.close()
        return result.final_output

    assert await streamed("s", refused) == "ok"
    assert len(str(refused.calls[1].input)) < len(str(refused.calls[0].input))
    with pytest.raises(ScriptedProviderError):
        await streamed("t", broken)
    assert len(broken.calls) == 1


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_prompt_that_is_said_instead_of_an_approval_is_recorded_once(*, is_streamed: bool) -> None:
    @function_tool(needs_approval=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        return path

    kept = HoldfastSession("s")
    call = function_call("delete", '{"path": "a"}', call_id="call_1", item_id="fc_1")
    model = ScriptedModel([[call], [assistant_message("fine", item_id="msg_1")]])
    agent = Agent(name="a", model=model, tools=[delete])

    for prompt in ("delete a", "no, leave it"):
        if is_streamed:
            stream = Runner.run_streamed(agent, prompt, session=kept, run_config=kept.run_config())
            async for _ in stream.stream_events():
                pass
        else:
            await Runner.run(agent, prompt, session=kept, run_config=kept.run_config())
    items: list[Any] = [dict(item) for item in await kept.get_items()]
    sent: list[Any] = [dict(item) for item in model.calls[-1].input]
    await kept.close()

    prompts = [{"role": "user", "content": "delete a"}, {"role": "user", "content": "no, leave it"}]
    assert sent == prompts
    assert [ITEMS.text(item) for item in items] == ["delete a", "no, leave it", "fine"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_call_that_is_approved_after_the_user_has_gone_on_takes_nothing_away(*, is_streamed: bool) -> None:
    @function_tool(needs_approval=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        return f"deleted {path}"

    kept = HoldfastSession("s")
    call = function_call("delete", '{"path": "a"}', call_id="call_1", item_id="fc_1")
    answers = [[assistant_message(text, item_id=f"msg_{text}")] for text in ("fine", "done", "bye")]
    model = ScriptedModel([[call], *answers])
    agent = Agent(name="a", model=model, tools=[delete])

    async def run(given: Any) -> Any:
        if not is_streamed:
            return await Runner.run(agent, given, session=kept, run_config=kept.run_config())
        stream = Runner.run_streamed(agent, given, session=kept, run_config=kept.run_config())
        async for _ in stream.stream_events():
            pass
        return stream

    state = (await run("delete a")).to_state()
    await run("wait, what is in it?")
    state.approve(state.get_interruptions()[0])
    await run(state)
    await run("thanks")

    assert texts(model.calls[2].input) == ["delete a", "", "deleted a"]
    said = ["delete a", "wait, what is in it?", "fine", "", "deleted a", "done", "thanks"]
    assert texts(model.calls[3].input) == said
    assert await kept_texts(kept) == ([*said, "bye"], [])
    await kept.close()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("second", ["no, wait", "delete a"])
async def test_a_late_approval_leaves_a_turn_that_had_no_answer_in_the_session(
    tmp_path: Path, second: str, *, is_restarted: bool
) -> None:
    @function_tool(needs_approval=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        return f"deleted {path}"

    def open_kept() -> HoldfastSession:
        return HoldfastSession("s", store=f"sqlite:///{tmp_path / 'chats.db'}")

    kept = open_kept()
    call = function_call("delete", '{"path": "a"}', call_id="call_1", item_id="fc_1")
    answers = [[assistant_message(text, item_id=f"msg_{text}")] for text in ("done", "bye")]
    model = ScriptedModel([[call], ModelStep(error=RuntimeError("down")), *answers])
    agent = Agent(name="a", model=model, tools=[delete])

    async def run(given: Any) -> Any:
        return await Runner.run(agent, given, session=kept, run_config=kept.run_config())

    state = (await run("delete a")).to_state()
    with pytest.raises(RuntimeError):
        await run(second)
    if is_restarted:
        await kept.close()
        kept = open_kept()
        state = await RunState.from_string(agent, state.to_string())
    state.approve(state.get_interruptions()[0])
    await run(state)
    await run("thanks")

    said = ["delete a", second, "", "deleted a", "done", "thanks"]
    assert texts(model.calls[3].input) == said
    assert await kept_texts(kept) == ([*said, "bye"], [])
    items: list[Any] = [dict(item) for item in await kept.get_items()]
    assert [item.get("call_id") for item in items[2:4]] == ["call_1", "call_1"]
    await kept.close()


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_run_that_is_resumed_after_a_filtered_handoff_leaves_what_was_filtered_out_in_the_session(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    @function_tool
    async def look(path: str) -> str:
        """Look at a file."""
        return f"{path} is here"

    @function_tool(needs_approval=True)
    async def delete(path: str) -> str:
        """Delete a file."""
        return f"deleted {path}"

    def open_kept() -> HoldfastSession:
        return HoldfastSession("s", store=f"sqlite:///{tmp_path / 'chats.db'}")

    kept = open_kept()
    calls = [
        [function_call(name, arguments, call_id=f"call_{at}", item_id=f"fc_{at}")]
        for at, (name, arguments) in enumerate(
            [("look", '{"path": "a"}'), ("transfer_to_cleaner", "{}"), ("delete", '{"path": "a"}')]
        )
    ]
    model = ScriptedModel([*calls, [assistant_message("done", item_id="msg_1")]])
    cleaner = Agent(name="cleaner", model=model, tools=[delete])
    agent = Agent(name="a", model=model, tools=[look], handoffs=[handoff(cleaner, input_filter=remove_all_tools)])
    state = (await Runner.run(agent, "delete a", session=kept, run_config=kept.run_config())).to_state()
    if is_restarted:
        await kept.close()
        kept = open_kept()
        state = await RunState.from_string(agent, state.to_string())
    state.approve(state.get_interruptions()[0])

    await Runner.run(agent, state, session=kept, run_config=kept.run_config())

    assert texts(model.calls[-1].input) == ["delete a", "", "deleted a"]
    assert await kept_texts(kept) == (["delete a", "", "a is here", "", "deleted a", "done"], [])
    await kept.close()
