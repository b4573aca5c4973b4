"""Agents of Google's ADK keep the promises of the contract, and more that only ADK has."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from google.adk.agents import BaseAgent, LlmAgent, RunConfig
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.run_config import StreamingMode  # pyright: ignore[reportPrivateImportUsage] - as its docs say
from google.adk.apps import App
from google.adk.events import Event
from google.adk.models import BaseLlm, Gemini
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins import BasePlugin
from google.adk.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService
from google.adk.tools import AgentTool
from google.genai import Client, types
from pydantic import BaseModel, Field, TypeAdapter

from holdfast import SettingsError
from holdfast.adapters.google_adk import CONTENTS, HoldfastPlugin
from holdfast.core.history import events as log
from holdfast.stores.memory import MemoryStore
from holdfast.testing.agent_contract import (
    CONTRACT_BUDGET,
    CONTRACT_SESSION,
    DELEGATE_TASK_TOOL,
    AgentContract,
    AgentHarness,
    ScriptedCalls,
    ScriptedProviderError,
    look_result,
)
from tests.support import run_example, run_page


class ScriptedLlm(BaseLlm):
    """Replies as the harness says."""

    model: str = "gemini-3-pro"
    harness: Any

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - as in ADK
    ) -> AsyncGenerator[LlmResponse, None]:
        natives = [dict(CONTENTS.encode(content)) for content in llm_request.contents]
        try:
            reply = await self.harness.next_reply(natives, list(llm_request.tools_dict))
        except ScriptedProviderError as error:
            if error.status_code != 503:
                raise
            # Google's client retries by itself.
            reply = await self.harness.next_reply(natives, list(llm_request.tools_dict))
        if not isinstance(reply, ScriptedCalls):
            if stream:
                yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=reply[:2])]), partial=True)
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=reply)]))
            return
        number = len(self.harness.calls)
        parts = [
            types.Part(
                function_call=types.FunctionCall(name=name, args=dict(given), id=f"call_{number}_{index}"),
                thought_signature=b"signed" if index == 0 else None,
            )
            for index, (name, given) in enumerate(reply.calls)
        ]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def look(query: str) -> str:
    """Look something up."""
    return look_result(query)


class AdkHarness(AgentHarness):
    format: ClassVar[str] = "gemini"

    def __init__(self, store_url: str) -> None:
        super().__init__(store_url)
        self.events = InMemorySessionService()
        self.build()

    def build(self) -> None:
        self.plugin = HoldfastPlugin(store=self.store_url, budget=CONTRACT_BUDGET)
        model = ScriptedLlm(harness=self)
        helper = LlmAgent(name=DELEGATE_TASK_TOOL, model=model, tools=[look], input_schema=None)
        agent = LlmAgent(name="main", model=model, instruction="Be brief.", tools=[look, TaskTool(agent=helper)])
        app = App(name="app", root_agent=agent, plugins=[self.plugin])
        self.runner = Runner(app=app, session_service=self.events, auto_create_session=True)

    async def turn(self, prompt: str, *, is_streamed: bool = False) -> str:
        config = RunConfig(streaming_mode=StreamingMode.SSE if is_streamed else StreamingMode.NONE)
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        answer = ""
        async for event in self.runner.run_async(
            user_id="u", session_id=CONTRACT_SESSION, new_message=message, run_config=config
        ):
            if event.is_final_response() and event.content and not event.partial:
                answer = CONTENTS.text(event.content)
        return answer

    async def restart(self) -> None:
        await self.close()
        self.build()

    async def close(self) -> None:
        await self.plugin.close()


class TaskTool(AgentTool):
    """ADK's tool for agents, with the name of the argument that the contract uses."""

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        return await super().run_async(args={"request": args["task"]}, tool_context=tool_context)


# AgentTool makes its runner in a way that ADK itself calls deprecated.
@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")
class TestGoogleAdk(AgentContract):
    @pytest.fixture
    async def agent(self, tmp_path: Path) -> AsyncIterator[AgentHarness]:
        harness = AdkHarness(f"sqlite:///{tmp_path / 'chats.db'}")
        yield harness
        await harness.close()


class TalkingLlm(BaseLlm):
    """Answers from a list."""

    model: str = "gemini-3-pro"
    replies: list[Any]
    requests: list[list[types.Content]] = Field(default_factory=list[list[types.Content]])

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - as in ADK
    ) -> AsyncGenerator[LlmResponse, None]:
        del stream
        self.requests.append(list(llm_request.contents))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        parts = [types.Part(text=reply) if isinstance(reply, str) else types.Part(function_call=reply)]
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=90, cached_content_token_count=60, candidates_token_count=5, total_token_count=95
        )
        yield LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=usage)


async def said(runner: Runner, prompt: str, user: str = "u", session: str = "s") -> str:
    message = types.Content(role="user", parts=[types.Part(text=prompt)])
    events = [one async for one in runner.run_async(user_id=user, session_id=session, new_message=message)]
    return CONTENTS.text(events[-1].content or types.Content())


def runner_of(agent: BaseAgent, plugin: HoldfastPlugin, service: BaseSessionService | None = None) -> Runner:
    app = App(name="app", root_agent=agent, plugins=[plugin])
    return Runner(app=app, session_service=service or InMemorySessionService(), auto_create_session=True)


async def test_an_agent_that_takes_the_conversation_over_has_a_session_of_its_own() -> None:
    plugin = HoldfastPlugin(budget=16_000)
    moved = types.FunctionCall(name="transfer_to_agent", args={"agent_name": "harbour"})
    expert = LlmAgent(name="harbour", model=TalkingLlm(replies=["at four", "at ten"]), description="knows the tides")
    root = LlmAgent(name="front", model=TalkingLlm(replies=[moved]), sub_agents=[expert])
    runner = runner_of(root, plugin)

    assert await said(runner, "when is high water?") == "at four"
    assert await said(runner, "and low water?") == "at ten"

    first, own = plugin.last_request("s"), plugin.last_request("s.harbour")
    assert first is not None
    assert own is not None
    assert (len(first.messages), len(own.messages)) == (1, 5)
    await plugin.close()


async def test_an_agent_that_took_the_conversation_over_keeps_its_session_in_a_new_process(tmp_path: Path) -> None:
    service, store = InMemorySessionService(), f"sqlite:///{tmp_path / 'chats.db'}"

    def process(*replies: Any) -> tuple[Runner, HoldfastPlugin]:
        plugin = HoldfastPlugin(store=store, budget=16_000)
        expert = LlmAgent(name="harbour", model=TalkingLlm(replies=list(replies[1:])), description="knows the tides")
        root = LlmAgent(name="front", model=TalkingLlm(replies=list(replies[:1])), sub_agents=[expert])
        return runner_of(root, plugin, service), plugin

    first, before = process(types.FunctionCall(name="transfer_to_agent", args={"agent_name": "harbour"}), "at four")
    await said(first, "when is high water?")
    await before.close()
    second, after = process("never asked", "at ten")
    assert await said(second, "and low water?") == "at ten"

    front: list[Any] = await asyncio.to_thread(lambda: after.session("s").messages())
    harbour: list[Any] = await asyncio.to_thread(lambda: after.session("s.harbour").messages())
    assert [message["role"] for message in front] == ["user", "model"]
    assert [message["parts"][-1]["text"] for message in harbour[-3:]] == ["at four", "and low water?", "at ten"]
    await after.close()


async def test_the_prompt_stays_the_newest_one_where_other_agents_reports_follow_it() -> None:
    plugin, prompt = HoldfastPlugin(budget=CONTRACT_BUDGET), "when? " + " ".join(map(str, range(300)))
    calls = [types.FunctionCall(name="look", args={"query": f"tide {number}"}) for number in range(20)]
    moved = types.FunctionCall(name="transfer_to_agent", args={"agent_name": "harbour"})
    model = TalkingLlm(replies=["at four"])
    expert = LlmAgent(name="harbour", model=model, description="knows the tides")
    front = LlmAgent(name="front", model=TalkingLlm(replies=[*calls, moved]), sub_agents=[expert], tools=[look])

    assert await said(runner_of(front, plugin), prompt) == "at four"

    [asked] = model.requests
    assert [CONTENTS.text(content) for content in asked].count(prompt) == 1
    request = plugin.last_request("s.harbour")
    assert request is not None
    assert request.receipt.compacted
    await plugin.close()


async def test_an_agent_that_gets_nothing_but_another_agents_report_answers_it() -> None:
    plugin, model = HoldfastPlugin(budget=CONTRACT_BUDGET), TalkingLlm(replies=["shorter"])
    first = LlmAgent(name="first", model=TalkingLlm(replies=["long"]))
    second = LlmAgent(name="second", model=model, include_contents="none")

    assert await said(runner_of(Sequence(name="both", sub_agents=[first, second]), plugin), "go") == "shorter"

    [[report]] = model.requests
    assert "[first] said:" in CONTENTS.text(report)
    await plugin.close()


class Sequence(BaseAgent):
    """Lets its agents speak one after the other, and calls no model itself."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event]:
        for agent in self.sub_agents:
            async for event in agent.run_async(ctx):
                yield event


async def test_the_first_step_of_a_sequence_has_the_session_of_the_conversation() -> None:
    plugin = HoldfastPlugin(budget=16_000)
    steps = [LlmAgent(name=name, model=TalkingLlm(replies=[f"said by {name}"])) for name in ("first", "second")]
    runner = runner_of(Sequence(name="both", sub_agents=list(steps)), plugin)

    assert await said(runner, "go") == "said by second"

    sessions = {name: plugin.last_request(name) for name in ("s", "s.second", "s.first")}
    assert [name for name, request in sessions.items() if request is not None] == ["s", "s.second"]
    await plugin.close()


async def test_what_was_billed_is_recorded_without_cached_tokens() -> None:
    plugin = HoldfastPlugin(budget=16_000)

    await said(runner_of(LlmAgent(name="a", model=TalkingLlm(replies=["two"])), plugin), "one")

    events = await asyncio.to_thread(lambda: plugin.session("s").events())
    [_, answer] = [event for event in events if isinstance(event, log.MessageAppended)]
    assert answer.usage == log.Usage(input_tokens=30, output_tokens=5, cache_read_tokens=60)
    await plugin.close()


async def test_a_session_with_the_id_of_another_users_is_refused_with_the_remedy() -> None:
    plugin = HoldfastPlugin(budget=16_000)
    runner = runner_of(LlmAgent(name="a", model=TalkingLlm(replies=["two", "four"])), plugin)
    await said(runner, "one")

    with pytest.raises(RuntimeError, match="session_id: two users have a session 's', and one") as raised:
        await said(runner, "secret", user="another")

    assert isinstance(raised.value.__cause__, SettingsError)
    assert await said(runner, "three") == "four"
    assert "secret" not in str(await asyncio.to_thread(lambda: plugin.session("s").events()))
    await plugin.close()


class SilentLlm(TalkingLlm):
    """Gives no response at all where its reply is None."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - as in ADK
    ) -> AsyncGenerator[LlmResponse, None]:
        if self.replies[0] is None:
            self.replies.pop(0)
            return
        async for response in super().generate_content_async(llm_request, stream):
            yield response


async def test_an_overflow_whose_smaller_request_gets_no_response_arrives_unchanged() -> None:
    plugin = HoldfastPlugin(budget=16_000)
    text = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
    overflow = RuntimeError(f"400 INVALID_ARGUMENT. {{'error': {{'code': 400, 'message': '{text}'}}}}")
    model = SilentLlm(replies=["word " * 500, overflow, None])
    runner = runner_of(LlmAgent(name="main", model=model), plugin)
    await said(runner, "hello " * 200)

    with pytest.raises(RuntimeError, match="exceeds the maximum") as raised:
        await said(runner, "and now? " * 200)

    assert (raised.value, model.replies) == (overflow, [])
    await plugin.close()


class Weather(BaseModel):
    degrees: int


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (Weather, Weather.model_json_schema()),
        (list[Weather], TypeAdapter(list[Weather]).json_schema()),
        (Weather.model_json_schema(), Weather.model_json_schema()),
        (types.Schema(type=types.Type.STRING), {"type": "STRING"}),
    ],
)
async def test_the_schema_of_the_output_is_counted(made: Any, told: object) -> None:
    plugin = HoldfastPlugin(budget=CONTRACT_BUDGET)
    model = TalkingLlm(replies=['{"degrees": 7}'])
    agent = LlmAgent(name="main", model=model, output_schema=made)

    await said(runner_of(agent, plugin), "How warm is it?")

    request = plugin.last_request("s")
    assert request is not None
    assert request.tools == [{"name": "output", "parameters": told}]
    assert request.tokens.tools > 0
    await plugin.close()


async def test_more_conversations_at_once_than_stay_open_all_get_their_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.adapters.session_pool.MAX_OPEN_SESSIONS", 1)
    plugin = HoldfastPlugin(store=f"sqlite:///{tmp_path / 'chats.db'}", budget=CONTRACT_BUDGET)
    runner = runner_of(LlmAgent(name="main", model=TalkingLlm(replies=["fine"] * 20)), plugin)

    answers = await asyncio.gather(*(said(runner, "hello", session=f"s{number}") for number in range(20)))

    assert answers == ["fine"] * 20
    await plugin.close()


async def test_an_error_that_is_no_overflow_arrives_unchanged() -> None:
    plugin = HoldfastPlugin(budget=16_000)
    runner = runner_of(LlmAgent(name="a", model=TalkingLlm(replies=[ValueError("no such model")])), plugin)

    with pytest.raises(ValueError, match="no such model"):
        await said(runner, "one")

    await plugin.close()


def test_the_page_and_the_example_run_as_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("google-adk")
    run_example("google_adk_agent")

    assert capsys.readouterr().out


class Changing(BasePlugin):
    """Changes each request before other plugins see it."""

    def __init__(self, change: Callable[[LlmRequest], None]) -> None:
        super().__init__("changing")
        self._change = change

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        del callback_context
        self._change(llm_request)


@pytest.mark.parametrize(
    "given",
    [
        "Be brief.\nBe kind.",
        types.Content(parts=[types.Part(text="Be brief."), types.Part(text="Be kind.")]),
        ["Be brief.", types.Part(text="Be kind.")],
        types.Part(text="Be brief.\nBe kind."),
    ],
    ids=["text", "content", "list", "part"],
)
async def test_system_text_is_recorded_in_whatever_form_it_comes(given: Any) -> None:
    def instruct(request: LlmRequest) -> None:
        request.config.system_instruction = given

    plugin = HoldfastPlugin(budget=16_000)
    app = App(
        name="app",
        root_agent=LlmAgent(name="a", model=TalkingLlm(replies=["two"])),
        plugins=[Changing(instruct), plugin],
    )
    runner = Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)

    assert await said(runner, "one") == "two"

    request = plugin.last_request("s")
    assert request is not None
    assert request.system == "Be brief.\nBe kind."
    await plugin.close()


async def test_a_tool_of_the_agents_own_that_is_called_recall_is_not_named_by_summaries() -> None:
    def recall(product: str) -> str:
        """Call a product back."""
        return f"{product} is called back"

    plugin = HoldfastPlugin(budget=CONTRACT_BUDGET)
    agent = LlmAgent(name="a", model=TalkingLlm(replies=["word " * 60] * 40), tools=[recall])
    runner = runner_of(agent, plugin)

    for _ in range(40):
        await said(runner, "say it " * 40)

    request = plugin.last_request("s")
    assert request is not None
    assert request.receipt.compacted
    assert "recall" not in str(request.messages)
    await plugin.close()


async def test_a_request_without_contents_is_left_alone() -> None:
    plugin, model = HoldfastPlugin(budget=16_000), TalkingLlm(replies=["two"])
    app = App(
        name="app",
        root_agent=LlmAgent(name="a", model=model),
        plugins=[Changing(lambda request: request.contents.clear()), plugin],
    )
    runner = Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)

    assert await said(runner, "one") == "two"

    assert (model.requests, plugin.last_request("s")) == ([[]], None)
    await plugin.close()


# AgentTool makes its runner in a way that ADK itself calls deprecated.
@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")
async def test_an_agent_in_a_tool_that_fails_ends_its_delegation_with_the_error() -> None:
    plugin = HoldfastPlugin(budget=16_000)
    helper = LlmAgent(name="helper", model=TalkingLlm(replies=[ValueError("no network")]))
    call = types.FunctionCall(name="helper", args={"request": "help"}, id="c1")
    agent = LlmAgent(name="a", model=TalkingLlm(replies=[call]), tools=[AgentTool(agent=helper)])

    with pytest.raises(ValueError, match="no network"):
        await said(runner_of(agent, plugin), "go")

    [delegation] = await asyncio.to_thread(lambda: plugin.session("s").delegations())
    assert (delegation.started.agent, delegation.state) == ("helper", "failed")
    await plugin.close()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")
async def test_a_failed_agent_whose_error_another_plugin_handles_has_not_answered(*, is_first: bool) -> None:
    plugin, retrying = HoldfastPlugin(budget=16_000), ReflectAndRetryToolPlugin(max_retries=2)
    helper = LlmAgent(name="helper", model=TalkingLlm(replies=[ValueError("no network"), "helped"]))
    calls = [types.FunctionCall(name="helper", args={"request": "help"}, id=name) for name in ("c1", "c2")]
    agent = LlmAgent(name="a", model=TalkingLlm(replies=[*calls, "done"]), tools=[AgentTool(agent=helper)])
    app = App(name="app", root_agent=agent, plugins=[retrying, plugin] if is_first else [plugin, retrying])

    runner = Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)
    assert await said(runner, "go") == "done"

    recorded, delegations = await asyncio.to_thread(
        lambda: (plugin.session("s").messages(), plugin.session("s").delegations())
    )
    assert len(recorded) == 6
    assert [(one.state, one.answer) for one in delegations] == [("failed", ""), ("answered", "helped")]
    await plugin.close()


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")
async def test_an_agent_to_which_one_in_a_tool_hands_over_has_a_delegation_under_its_own_name() -> None:
    plugin = HoldfastPlugin(budget=16_000)
    moved = types.FunctionCall(name="transfer_to_agent", args={"agent_name": "expert"})
    expert = LlmAgent(name="expert", model=TalkingLlm(replies=["at four"]), description="knows the tides")
    helper = LlmAgent(name="helper", model=TalkingLlm(replies=[moved]), sub_agents=[expert])
    call = types.FunctionCall(name="helper", args={"request": "when?"}, id="c1")
    agent = LlmAgent(name="a", model=TalkingLlm(replies=[call, "done"]), tools=[AgentTool(agent=helper)])

    assert await said(runner_of(agent, plugin), "go") == "done"

    delegations = await asyncio.to_thread(lambda: plugin.session("s").delegations())
    assert [(one.started.agent, one.started.task, one.state, one.answer) for one in delegations] == [
        ("helper", "when?", "answered", ""),
        ("expert", "when?", "answered", "at four"),
    ]
    await plugin.close()


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")
async def test_nothing_is_kept_of_the_sessions_that_agents_in_tools_had() -> None:
    plugin = HoldfastPlugin(budget=16_000)
    helper = LlmAgent(name="helper", model=TalkingLlm(replies=["helped"] * 3))
    calls = [types.FunctionCall(name="helper", args={"request": "help"}, id=f"c{number}") for number in range(3)]
    agent = LlmAgent(name="a", model=TalkingLlm(replies=[*calls, "done"]), tools=[AgentTool(agent=helper)])

    assert await said(runner_of(agent, plugin), "go") == "done"
    gc.collect()

    kept = plugin._first_agents, dict(plugin._first_agents_inside), plugin._owners, plugin._calls
    assert kept == ({"s": "a"}, {}, {"s": ("app", "u")}, {})
    await plugin.close()


class Replacing(BasePlugin):
    """Replaces the results of tools, or waits for ever before it does."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__("replacing")
        self.has_begun = asyncio.Event()
        self._waits = waits

    async def after_tool_callback(self, **given: Any) -> dict[str, str]:
        del given
        self.has_begun.set()
        if self._waits:
            await asyncio.get_running_loop().create_future()
        return {"result": "replaced"}


def helping(plugin: HoldfastPlugin, other: BasePlugin) -> Runner:
    """Return a runner whose agent asks a helper, with a plugin before Holdfast's."""
    helper = LlmAgent(name="helper", model=TalkingLlm(replies=["helped"]))
    call = types.FunctionCall(name="helper", args={"request": "help"}, id="c1")
    agent = LlmAgent(name="a", model=TalkingLlm(replies=[call, "done"]), tools=[AgentTool(agent=helper)])
    app = App(name="app", root_agent=agent, plugins=[other, plugin])
    return Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")
async def test_an_agent_in_a_tool_whose_result_another_plugin_replaces_has_answered() -> None:
    plugin = HoldfastPlugin(budget=16_000)

    assert await said(helping(plugin, Replacing(waits=False)), "go") == "done"

    [delegation] = await asyncio.to_thread(lambda: plugin.session("s").delegations())
    assert (delegation.state, delegation.answer) == ("answered", "helped")
    await plugin.close()


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")
async def test_an_agent_in_a_tool_ends_its_delegation_when_it_is_cancelled_in_another_plugin() -> None:
    plugin, other = HoldfastPlugin(budget=16_000), Replacing(waits=True)
    stopped = asyncio.create_task(said(helping(plugin, other), "go"))
    await other.has_begun.wait()

    stopped.cancel()
    await asyncio.wait({stopped})

    [delegation] = await asyncio.to_thread(lambda: plugin.session("s").delegations())
    assert (delegation.state, delegation.answer) == ("cancelled", "")
    await plugin.close()


class SlowStore(MemoryStore):
    """Takes its time to write the beginning of a delegation: the thread of its loop waits."""

    def __init__(self, has_begun: asyncio.Event) -> None:
        super().__init__()
        self.has_begun = has_begun
        self.loop = asyncio.get_running_loop()
        self.may_go_on = threading.Event()

    async def append(self, session: str, records: Any, **given: Any) -> int:
        if "delegation.started" in str(records):
            self.loop.call_soon_threadsafe(self.has_begun.set)
            self.may_go_on.wait(60)
        return await super().append(session, records, **given)


class Releasing(BasePlugin):
    """Lets a store go on once the plugins after this one know of an error."""

    def __init__(self, store: SlowStore) -> None:
        super().__init__("releasing")
        self._store = store

    async def on_tool_error_callback(self, **given: Any) -> None:
        del given
        self._store.loop.call_soon(self._store.may_go_on.set)


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning")
async def test_an_agent_in_a_tool_that_is_cancelled_while_its_delegation_begins_ends_it() -> None:
    store = SlowStore(asyncio.Event())
    plugin = HoldfastPlugin(store=store, budget=16_000)
    stopped = asyncio.create_task(said(helping(plugin, Releasing(store)), "go"))
    await store.has_begun.wait()

    stopped.cancel()
    await asyncio.wait({stopped})

    [delegation] = await asyncio.to_thread(lambda: plugin.session("s").delegations())
    assert (delegation.state, delegation.answer) == ("cancelled", "")
    await plugin.close()


async def test_conversations_at_once_whose_calls_have_the_same_id_do_not_disturb_each_other() -> None:
    plugin, both_run, first_ended = HoldfastPlugin(budget=16_000), asyncio.Barrier(2), asyncio.Event()

    async def nap(name: str) -> str:
        """Wait until both conversations are in their tools."""
        await both_run.wait()
        if name == "second":
            await first_ended.wait()
        return f"{name} slept"

    async def talk(name: str) -> str:
        call = types.FunctionCall(name="nap", args={"name": name}, id="functions.nap:0")
        agent = LlmAgent(name="a", model=TalkingLlm(replies=[call, f"{name} done"]), tools=[nap])
        try:
            return await said(runner_of(agent, plugin), "sleep", session=name)
        finally:
            first_ended.set()

    assert await asyncio.gather(talk("first"), talk("second")) == ["first done", "second done"]
    await plugin.close()


async def test_a_response_that_gemini_gives_after_an_outage_is_recorded_once() -> None:
    answer = {"candidates": [{"content": {"role": "model", "parts": [{"text": "here again"}]}, "finishReason": "STOP"}]}
    bodies = [(503, {"error": {"code": 503, "status": "UNAVAILABLE", "message": "later"}}), (200, answer)]
    asked: list[bytes] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(request.content)
        status, body = bodies[len(asked) - 1]
        return httpx.Response(status, json=body)

    retries = types.HttpRetryOptions(attempts=3, initial_delay=0.001, max_delay=0.001)
    options = types.HttpOptions(
        retry_options=retries, httpx_async_client=httpx.AsyncClient(transport=httpx.MockTransport(respond))
    )
    model = Gemini(model="gemini-3-pro", retry_options=retries)
    vars(model)["api_client"] = Client(api_key="none", http_options=options)
    plugin = HoldfastPlugin(budget=16_000)

    assert await said(runner_of(LlmAgent(name="a", model=model), plugin), "go") == "here again"

    recorded = await asyncio.to_thread(lambda: plugin.session("s").messages())
    assert len(asked) == 2
    assert [one["role"] for one in recorded] == ["user", "model"]
    await plugin.close()
