"""An agent with Holdfast: its requests fit, its history stays whole, and its session can be continued."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelResponse, NativeOutput, PromptedOutput, TextPart, ToolCallPart, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    CompactionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.profiles import ModelProfile

from holdfast import Budget, MalformedInputError, Session, SettingsError, validate
from holdfast.adapters.pydantic_ai import Holdfast, model_messages, native_messages
from holdfast.core.history import events as log
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.testing.agents import ScriptedAgentModel, tool_call_response
from holdfast.testing.models import ScriptedModel
from tests.adapters.conftest import is_return, kinds

OUTPUT = "line of output\n" * 80


def looking(messages: list[ModelMessage]) -> str | ModelResponse:
    """Look something up for every prompt, then answer."""
    return "It is there. " * 10 if is_return(messages[-1]) else tool_call_response(call_id=f"c{len(messages)}", n=1)


def agent_with(governed: Holdfast, model: ScriptedAgentModel, **settings: Any) -> Agent[None, str]:
    agent = Agent(model, capabilities=[governed], **settings)

    @agent.tool_plain
    def look(n: int) -> str:
        return OUTPUT * n

    return agent


async def kept(session: Session) -> list[ModelMessage]:
    return model_messages(await session.messages())


async def events_of(session: Session, kind: type[log.Event]) -> list[Any]:
    return [event for event in await session.events() if isinstance(event, kind)]


# Requests and history.


async def test_requests_fit_and_the_history_stays_whole() -> None:
    governed, model = Holdfast(budget=2_000), ScriptedAgentModel(looking)
    agent = agent_with(governed, model, system_prompt="Be brief.", instructions="Say where it is.")

    for number in range(12):
        result = await agent.run(f"Where is thing {number}?", conversation_id="c1")

    history = result.all_messages()  # pyright: ignore[reportPossiblyUnboundVariable]
    assert kinds(history) == [
        ["system-prompt", "user-prompt"],
        *[["tool-call"], ["tool-return"], ["text"], ["user-prompt"]] * 11,
        *[["tool-call"], ["tool-return"], ["text"]],
    ]
    session = await governed.open("c1")
    assert await kept(session) == history
    assert len(model.requests) == 24
    assert max(len(request) for request in model.requests) < 20
    assert [request[0].parts[0].content for request in model.requests] == ["Be brief."] * 24  # type: ignore[union-attr]
    prepared = await events_of(session, log.RequestPrepared)
    assert len(prepared) == 24
    assert all(event.situation["tokens"] <= 2_000 for event in prepared)
    assert all(request.is_same for request in rebuilt_requests(await session.events()))


async def test_a_summary_is_pydantic_ais_own_compaction_part_after_the_system_text() -> None:
    governed, model = Holdfast(budget=1_200), ScriptedAgentModel(looking)
    agent = agent_with(governed, model, system_prompt="Be brief.")

    for number in range(6):
        await agent.run(f"Where is thing {number}?", conversation_id="c1")

    first = model.requests[-1][0]
    assert [type(part) for part in first.parts[:3]] == [SystemPromptPart, CompactionPart, UserPromptPart]
    assert isinstance(first.parts[1], CompactionPart)
    assert "Where is thing 0?" in str(first.parts[1].content)


async def test_requests_in_the_middle_of_a_tool_loop_are_governed_too() -> None:
    steps = 12
    replies: list[str | ModelResponse] = [tool_call_response(call_id=f"c{n}", n=1) for n in range(steps)]
    governed, model = Holdfast(budget=1_500), ScriptedAgentModel([*replies, "done"])
    agent = agent_with(governed, model)

    result = await agent.run("Look everywhere.", conversation_id="c1")

    assert result.output == "done"
    assert len(result.all_messages()) == 2 * steps + 2
    assert max(len(request) for request in model.requests) < steps
    assert all("Look everywhere." in str(request) for request in model.requests)
    for request in model.requests:
        assert validate(native_messages(request), "pydantic-ai") == []


async def test_instructions_and_tools_count() -> None:
    governed, bare = Holdfast(), Holdfast()
    agent = agent_with(governed, ScriptedAgentModel(["hi"]), instructions="word " * 1_000)

    await agent.run("hello")
    await Agent(ScriptedAgentModel(["hi"]), capabilities=[bare]).run("hello")

    assert governed.last_request is not None
    assert bare.last_request is not None
    assert (bare.last_request.tokens.system, bare.last_request.tokens.tools) == (0, 0)
    assert governed.last_request.tokens.system >= 1_000
    assert governed.last_request.tokens.tools > 10
    assert governed.last_request.system == "word " * 999 + "word"


async def test_old_output_is_offloaded_in_requests_and_whole_in_the_history() -> None:
    governed = Holdfast(budget=4_000)
    model = ScriptedAgentModel(looking)
    agent = agent_with(governed, model)

    @agent.tool_plain
    def read() -> str:
        return "word " * 3_000

    model = ScriptedAgentModel([tool_call_response("read", "r"), "read it", "yes", "yes", "yes"])
    agent.model = model
    for text in ("Read it.", "And?", "So?", "Well?"):
        result = await agent.run(text, conversation_id="c1")

    returns = [part for request in model.requests[2:] for m in request for part in m.parts if is_return(m)]
    assert all(len(str(part.content)) < 15_000 for part in returns)  # type: ignore[union-attr]
    whole = [part for m in result.all_messages() for part in m.parts if isinstance(part, ToolReturnPart)]
    assert [part.content for part in whole] == ["word " * 3_000]
    assert all("characters cut: recall #2 …]" in str(part.content) for part in returns)  # type: ignore[union-attr]


async def test_a_seeds_marker_is_a_prompt_to_the_letter() -> None:
    governed, model = Holdfast(policy="co-cli"), ScriptedAgentModel(lambda _: "fine")
    agent = Agent(model, capabilities=[governed])

    for number in range(25):
        await agent.run(f"prompt {number}", conversation_id="c1")

    assert model.prompts[:2] == [
        "prompt 0", "[Earlier conversation trimmed — 19 messages removed to stay within context budget]",
    ]  # fmt: skip
    assert not any(isinstance(part, CompactionPart) for m in model.requests[-1] for part in m.parts)


# Sessions.


async def test_a_conversation_is_found_again_by_its_id_in_another_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'chats.db'}"
    async with Holdfast(store=store) as first:
        agent = agent_with(first, ScriptedAgentModel(["hi Ann"]), system_prompt="Be kind.")
        before = (await agent.run("I am Ann.", conversation_id="ann")).all_messages()

    async with Holdfast(store=store) as second:
        model = ScriptedAgentModel(["You are Ann."])
        result = await agent_with(second, model, system_prompt="Be kind.").run("Who am I?", conversation_id="ann")

    assert kinds(model.requests[0]) == [["system-prompt", "user-prompt"], ["text"], ["user-prompt"]]
    assert model.prompts == ["I am Ann.", "Who am I?"]
    assert kinds(result.new_messages()) == [["user-prompt"], ["text"]]
    assert result.all_messages()[: len(before)] == before


async def test_another_conversation_knows_nothing_of_it() -> None:
    governed, model = Holdfast(), ScriptedAgentModel(lambda _: "fine")
    agent = Agent(model, capabilities=[governed])

    await agent.run("one", conversation_id="c1")
    await agent.run("two", conversation_id="c2")
    await agent.run("three")

    assert model.prompts == ["three"]
    assert sorted(map(len, governed.sessions.values())) == [2, 2, 2]
    assert {"c1", "c2"} < set(governed.sessions)


async def test_a_history_that_is_passed_counts_and_what_it_lacks_does_not_stand_any_more() -> None:
    governed, model = Holdfast(), ScriptedAgentModel(lambda messages: f"answer {len(messages)}")
    agent = Agent(model, capabilities=[governed])
    first = await agent.run("one", conversation_id="c1")
    await agent.run("two", conversation_id="c1")

    result = await agent.run("another two", conversation_id="c1", message_history=first.all_messages())

    assert model.prompts == ["one", "another two"]
    session = await governed.open("c1")
    assert await kept(session) == result.all_messages()
    assert len(await events_of(session, log.Rewound)) == 1
    assert len(session) == 6


async def test_a_history_from_json_or_from_a_frontend_is_known_again() -> None:
    governed, model = Holdfast(), ScriptedAgentModel(looking)
    agent = agent_with(governed, model)
    first = await agent.run("one", conversation_id="c1")
    stored = ModelMessagesTypeAdapter.validate_json(first.all_messages_json())
    shown: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("one")]),
        ModelResponse(parts=[ToolCallPart("look", '{"n": 1}', "c1")]),
        ModelRequest(parts=[ToolReturnPart("look", OUTPUT, "c1")]),
        ModelResponse(parts=[TextPart("It is there. " * 10)]),
    ]

    await agent.run("two", conversation_id="c1", message_history=stored)
    session = await governed.open("c1")
    await session.rewind(to=4)
    await agent.run("three", conversation_id="c1", message_history=shown)

    assert len(await events_of(session, log.Rewound)) == 1
    assert len(session) == 12


async def test_the_session_may_be_given_open_and_stays_open() -> None:
    async with Session.open("mine") as session:
        governed, model = Holdfast(session=session), ScriptedAgentModel(lambda _: "fine")
        agent = Agent(model, capabilities=[governed])

        await agent.run("one")
        await agent.run("two", conversation_id="whatever")
        await governed.close()

        assert model.prompts == ["one", "two"]
        assert governed.session is session
        assert await governed.open() is session
        assert len(await session.messages()) == 4


async def test_the_session_may_be_named_for_all_runs() -> None:
    governed, model = Holdfast(session="mine"), ScriptedAgentModel(lambda _: "fine")
    agent = Agent(model, capabilities=[governed])

    await agent.run("one")
    await agent.run("two")

    assert model.prompts == ["one", "two"]
    assert list(governed.sessions) == ["mine"]


async def test_what_becomes_of_the_session_between_runs_is_respected() -> None:
    governed, model = Holdfast(session="mine"), ScriptedAgentModel(lambda _: "fine")
    agent = Agent(model, capabilities=[governed])
    for text in ("one", "two", "three"):
        await agent.run(text)
    session = await governed.open()

    await session.rewind(to=4)
    await agent.run("another three")
    after_rewind = model.prompts
    await session.clear()
    await agent.run("anew")
    after_clear = model.prompts
    await session.undo()
    await agent.run("as before")

    assert after_rewind == ["one", "two", "another three"]
    assert after_clear == ["anew"]
    assert model.prompts == ["one", "two", "another three", "anew", "as before"]


async def test_a_compaction_on_the_users_word_shows_in_the_next_request() -> None:
    async with Session.open("mine", summarizer=ScriptedModel(["They counted to three [#0-5]."])) as session:
        governed, model = Holdfast(session=session), ScriptedAgentModel(lambda _: "fine " * 50)
        agent = Agent(model, capabilities=[governed])
        for text in ("one", "two", "three"):
            await agent.run(f"{text} " * 50)

        done = await session.compact()
        result = await agent.run("four")

    assert done.success
    assert model.parts[0][0] == "compaction"
    assert "They counted to three" in str(model.requests[-1][0].parts[0])
    assert len(result.all_messages()) == 8


async def test_settings_that_an_open_session_has_are_refused_beside_it() -> None:
    async with Session.open("mine") as session:
        with pytest.raises(SettingsError, match="policy: cannot be combined with an open session"):
            Holdfast(session=session, policy="copilot")


async def test_a_session_of_another_format_is_refused_by_name() -> None:
    async with Session.open("chat") as session:
        await session.record([{"role": "user", "content": "hello"}])

        with pytest.raises(SettingsError, match="session 'chat' has the format openai-chat"):
            Holdfast(session=session)
        agent = Agent(ScriptedAgentModel(["hi"]), capabilities=[Holdfast(store=session.store)])
        with pytest.raises(SettingsError, match="session 'chat' has the format openai-chat"):
            await agent.run("hello", conversation_id="chat")


async def test_a_part_that_this_pydantic_ai_does_not_know_is_named() -> None:
    async with Session.open("new") as session:
        unknown = {"kind": "request", "parts": [{"part_kind": "hologram", "rays": 3}]}
        await session.record([unknown], format="pydantic-ai")
        agent = Agent(ScriptedAgentModel(["hi"]), capabilities=[Holdfast(session=session)])

        with pytest.raises(MalformedInputError, match=r"messages\[0\].*: this version of pydantic-ai cannot read it"):
            await agent.run("hello")


async def test_without_a_conversation_there_is_none_to_open() -> None:
    with pytest.raises(SettingsError, match="conversation_id"):
        await Holdfast().open()


async def test_only_so_many_conversations_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.adapters.session_pool.MAX_OPEN_SESSIONS", 2)
    governed = Holdfast()
    agent = Agent(ScriptedAgentModel(lambda _: "fine"), capabilities=[governed])

    for number in range(4):
        await agent.run("hello", conversation_id=f"c{number}")

    assert list(governed.sessions) == ["c2", "c3"]


class Weather(BaseModel):
    """What the weather is like."""

    degrees: int


@pytest.mark.parametrize("output_type", [NativeOutput(Weather), PromptedOutput(Weather), ToolOutput(Weather)])
async def test_the_form_of_the_output_is_counted_once(output_type: Any) -> None:
    governed = Holdfast()
    model = TestModel(
        custom_output_text=None if isinstance(output_type, ToolOutput) else '{"degrees": 7}',
        profile=ModelProfile(supports_json_schema_output=True),
    )
    agent: Any = Agent(model, output_type=output_type, capabilities=[governed])

    await agent.run("How warm is it?")

    assert governed.last_request is not None
    tools: Any = governed.last_request.tools
    assert [list(tool["parameters"]["properties"]) for tool in tools] == [["degrees"]]
    assert governed.last_request.tokens.tools > 0


async def test_more_runs_at_once_than_conversations_stay_open_all_get_their_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.adapters.session_pool.MAX_OPEN_SESSIONS", 2)
    all_asked = asyncio.Barrier(4)

    async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        await all_asked.wait()
        return ModelResponse([TextPart(f"{len(messages)}")])

    async with Holdfast() as governed:
        agent = Agent(FunctionModel(reply), capabilities=[governed])
        results = await asyncio.gather(*(agent.run("hello", conversation_id=f"c{number}") for number in range(4)))

        assert [result.output for result in results] == ["1"] * 4


# Models, budgets and bills.


async def test_the_budget_is_the_users_else_the_models_window_else_the_tables() -> None:
    def budget_of(governed: Holdfast) -> Budget:
        assert governed.last_request is not None
        return governed.last_request.receipt.budget

    given, known, named, unknown = Holdfast(budget=5_000), Holdfast(), Holdfast(model="gpt-4o"), Holdfast()
    windowed = ScriptedAgentModel(["hi"])
    windowed._profile = {"context_window": 10_000}
    for governed, model in (
        (given, ScriptedAgentModel(["hi"])),
        (known, windowed),
        (named, ScriptedAgentModel(["hi"])),
        (unknown, ScriptedAgentModel(["hi"])),
    ):
        await Agent(model, capabilities=[governed]).run("hello")

    assert [budget_of(one) for one in (given, known, named, unknown)] == [
        Budget(5_000),
        Budget(7_500, source="provider"),
        Budget(111_616, source="table"),
        Budget(96_000, source="default"),
    ]


async def test_a_bill_is_recorded_with_cached_tokens_apart_and_calibrates() -> None:
    from pydantic_ai.usage import RequestUsage  # noqa: PLC0415

    usage = RequestUsage(input_tokens=100, cache_read_tokens=60, cache_write_tokens=10, output_tokens=7)
    model = ScriptedAgentModel([ModelResponse(parts=[TextPart("hi")], usage=usage)])
    model._system = "somebody"
    governed = Holdfast()

    await Agent(model, capabilities=[governed]).run("hello " * 40, conversation_id="c1")

    billed = log.Usage(input_tokens=30, output_tokens=7, cache_read_tokens=60, cache_write_tokens=10)
    assert governed.last_usage == billed
    appended = await events_of(await governed.open("c1"), log.MessageAppended)
    assert [event.usage for event in appended] == [None, billed]


class ServedModel(ScriptedAgentModel):
    """A model at an address, with a key in it."""

    @property
    def base_url(self) -> str | None:
        return "https://me:secret@here.example/v1/"


async def test_what_a_bill_teaches_belongs_to_the_address_of_the_agents_model() -> None:
    from pydantic_ai.usage import RequestUsage  # noqa: PLC0415

    response = ModelResponse(parts=[TextPart("hi")], usage=RequestUsage(input_tokens=400))
    governed, known = Holdfast(), list[str]()
    for model in (ServedModel([response]), ServedModel(["hi"]), ScriptedAgentModel(["hi"])):
        model._system = "somebody"
        await Agent(model, capabilities=[governed]).run("word " * 300, conversation_id=f"c{len(known)}")
        assert governed.last_request is not None
        known.append(governed.last_request.tokens.provenance)

    assert known == ["estimated", "calibrated", "estimated"]
    assert (await governed.open("c0")).endpoint == "https://here.example/v1"


async def test_models_that_make_up_their_bills_do_not_calibrate() -> None:
    governed = Holdfast()

    await Agent(TestModel(), capabilities=[governed]).run("hello", conversation_id="c1")

    appended = await events_of(await governed.open("c1"), log.MessageAppended)
    assert [event.usage for event in appended] == [None, None]


# Refusals.


def refusal(limit: int, size: int) -> ModelHTTPError:
    message = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {size} tokens."
    )
    body = {"message": message, "code": "context_length_exceeded"}
    return ModelHTTPError(400, "scripted", body)


async def test_a_request_that_is_refused_as_too_long_is_sent_again_smaller_each_time() -> None:
    def narrow(messages: list[ModelMessage]) -> Any:
        size = len(str(messages)) // 4
        return refusal(3_000, 9_000) if size > 900 else "fits"

    governed, roomy = Holdfast(session="c1"), ScriptedAgentModel(lambda _: "word " * 200)
    agent = Agent(roomy, capabilities=[governed])
    for number in range(15):
        await agent.run(f"prompt {number} " + "word " * 60)
    model = ScriptedAgentModel(narrow)

    result = await agent.run("and now?", model=model)

    sizes = [len(str(request)) for request in model.requests]
    assert result.output == "fits"
    assert len(sizes) > 1
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    assert len(result.all_messages()) == 32
    assert all("and now?" in str(request) for request in model.requests)


async def test_a_stream_that_is_refused_as_too_long_is_opened_again_smaller() -> None:
    def narrow(messages: list[ModelMessage]) -> Any:
        return refusal(2_000, 9_000) if len(messages) > 10 else "fits"

    governed, roomy = Holdfast(session="c1"), ScriptedAgentModel(lambda _: "word " * 200)
    agent = Agent(roomy, capabilities=[governed])
    for number in range(15):
        await agent.run(f"prompt {number}")
    model = ScriptedAgentModel(narrow)

    async with agent.run_stream("and now?", model=model) as stream:
        output = await stream.get_output()

    assert output == "fits "
    assert len(model.requests) > 1


async def test_a_rate_limit_is_raised_as_it_is_and_nothing_is_sent_again() -> None:
    limit = ModelHTTPError(429, "scripted", {"message": "Rate limit reached", "code": "rate_limit_exceeded"})
    model = ScriptedAgentModel([limit])

    with pytest.raises(ModelHTTPError) as raised:
        await Agent(model, capabilities=[Holdfast()]).run("hello")

    assert raised.value is limit
    assert len(model.requests) == 1
    assert getattr(limit, "__notes__", []) == []


async def test_a_prompt_that_no_model_takes_raises_the_providers_own_error_with_a_note() -> None:
    always = refusal(600, 5_000)
    model = ScriptedAgentModel(lambda _: always)

    with pytest.raises(ModelHTTPError) as raised:
        await Agent(model, capabilities=[Holdfast()]).run("word " * 800, conversation_id="c1")

    assert raised.value is always
    assert "Holdfast could not make the request small enough" in always.__notes__[0]


@pytest.mark.parametrize("problem", [RuntimeError("no"), ValueError("odd"), OSError("gone")])
async def test_a_model_that_raises_leaves_the_prompt_and_the_next_run_goes_on(problem: Exception) -> None:
    governed, model = Holdfast(session="c1"), ScriptedAgentModel([problem, "fine"])
    agent = Agent(model, capabilities=[governed])

    with pytest.raises(type(problem)):
        await agent.run("one")
    result = await agent.run("two")

    assert model.prompts == ["one", "two"]
    assert result.output == "fine"
    assert len(await (await governed.open()).messages()) == 3
