"""What every way of running an agent with Holdfast promises, as tests for any framework.

Subclass `AgentContract` in a test module and give it a fixture `agent`: an `AgentHarness` that runs agents of the
framework, with a model that follows a script. Needs `pytest` and `pytest-asyncio`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import pytest

from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.tokens import request_tokens
from holdfast.core.history import events as log
from holdfast.counters.vocabularies import counter_for
from holdfast.session.background_loop import BACKGROUND_LOOP
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.session import Session
from holdfast.testing.chat import JsonMessage
from holdfast.wire.formats import format_named
from holdfast.wire.validate.provider import validate

CONTRACT_BUDGET = 4_000
"""The budget of every request of the contract, in tokens."""
CONTRACT_SESSION = "contract"
LOOK_TOOL, DELEGATE_TASK_TOOL = "look", "delegate_task"
"""The tools that the agent of the contract has: `look(query)` and `delegate_task(task)`."""
OVERFLOW_TEXT = "This model's maximum context length is 3000 tokens. However, your messages resulted in 3900 tokens."
UNAVAILABLE_TEXT = "503 the model is overloaded"
NEEDLE = "the harbour code is 4711-KESTREL"


def look_result(query: str) -> str:
    """Return what the tool `look` finds: a few hundred tokens."""
    return f"{query}: {NEEDLE if query == 'first' else 'nothing special'}\n" + f"line about {query} and the tide\n" * 40


@dataclass(frozen=True, slots=True)
class ScriptedCalls:
    """A reply that calls tools, by name and arguments."""

    calls: tuple[tuple[str, Mapping[str, object]], ...]


@dataclass(frozen=True, slots=True)
class ScriptedOverflow:
    """The provider rejects the request as too long."""


@dataclass(frozen=True, slots=True)
class ScriptedOutage:
    """The provider fails for a moment; the framework retries by itself."""


@dataclass(frozen=True, slots=True)
class ScriptedSilence:
    """The provider never answers; the harness sets `is_waiting`."""


class ScriptedProviderError(Exception):
    """The error of a provider, as its library raises it."""

    def __init__(self, text: str, status_code: int) -> None:
        super().__init__(text)
        self.status_code = status_code


AgentReply: TypeAlias = str | ScriptedCalls | ScriptedOverflow | ScriptedOutage | ScriptedSilence


def call_tools(*calls: tuple[str, Mapping[str, object]]) -> ScriptedCalls:
    """Return a reply that calls tools."""
    return ScriptedCalls(calls)


@dataclass(frozen=True, slots=True)
class ModelCallSeen:
    """A call of the model."""

    messages: list[JsonMessage]
    """The request as the model received it, in the format of the harness, without system text."""
    tools: frozenset[str]
    """The names of the tools that it could call."""
    logged_prompts: list[str] = field(default_factory=list[str])
    """The prompts that the log held at that time."""


class AgentHarness(ABC):
    """Runs agents of one framework on one conversation, with a model that follows a script."""

    format: ClassVar[str]
    """The format of the session's messages."""
    impossible: ClassVar[Mapping[str, str]] = {}
    """By the name of a test, why the framework makes it impossible."""

    def __init__(self, store_url: str) -> None:
        self.store_url = store_url
        self.calls: list[ModelCallSeen] = []
        self.script: list[AgentReply] = []
        self.is_waiting = asyncio.Event()

    @abstractmethod
    async def turn(self, prompt: str, *, is_streamed: bool = False) -> str:
        """Give the agent a prompt, and return its answer; the model replies as `script` says."""

    @abstractmethod
    async def restart(self) -> None:
        """Go on as a new process would: with a new agent on the same store."""

    @abstractmethod
    async def close(self) -> None:
        """Close what the harness has opened."""

    async def next_reply(self, messages: Sequence[JsonMessage], tools: Sequence[str]) -> str | ScriptedCalls:
        """Record a call of the model, and return its reply, fail or wait for ever, as the script says."""
        prompts = await BACKGROUND_LOOP.await_result(self._logged_prompts())
        self.calls.append(ModelCallSeen(list(messages), frozenset(tools), prompts))
        reply = self.script.pop(0)
        if isinstance(reply, ScriptedOverflow):
            raise ScriptedProviderError(OVERFLOW_TEXT, 400)
        if isinstance(reply, ScriptedOutage):
            raise ScriptedProviderError(UNAVAILABLE_TEXT, 503)
        if isinstance(reply, ScriptedSilence):
            self.is_waiting.set()
            return await asyncio.get_running_loop().create_future()
        return reply

    def texts(self, messages: Sequence[Mapping[str, object]]) -> list[str]:
        """Return the text of each message, of the user, the model or a tool."""
        decoded = self.decode(messages)
        return [one.text or "\n".join(result.text for result in one.results) for one in decoded]

    def decode(self, messages: Sequence[Mapping[str, object]]) -> list[Message]:
        """Return messages as values."""
        message_format = format_named(self.format)
        return [message_format.decode(native, index) for index, native in enumerate(messages)]

    async def _logged_prompts(self) -> list[str]:
        async with Session.open(CONTRACT_SESSION, store=self.store_url) as session:
            return await recorded_prompts(session)


async def recorded_prompts(session: Session) -> list[str]:
    """Return the texts of the user in a session, in all scopes, in order."""
    messages = [event for event in await session.events() if isinstance(event, log.MessageAppended)]
    decoded = [format_named(event.format).decode(event.native, index) for index, event in enumerate(messages)]
    return [one.text for one in decoded if one.role == "user" and one.text]


class AgentContract:
    """One test for each promise."""

    @pytest.fixture(autouse=True)
    def _skip_what_is_impossible(self, request: pytest.FixtureRequest, agent: AgentHarness) -> None:
        if why := agent.impossible.get(request.node.originalname):
            pytest.skip(why)

    async def open_session(self, agent: AgentHarness) -> Session:
        """Open the conversation's session beside the agent, as another process would."""
        return await Session.open(CONTRACT_SESSION, store=agent.store_url)

    async def talk(self, agent: AgentHarness, turns: int) -> None:
        """Let the agent work for some turns, with tool calls and parallel ones, until messages left the view."""
        for number in range(turns):
            word = "first" if number == 0 else f"word{number}"
            looks: list[tuple[str, Mapping[str, object]]] = [(LOOK_TOOL, {"query": word})]
            looks += [(LOOK_TOOL, {"query": f"{word}-again"})] if number % 2 else []
            agent.script += [call_tools(*looks), f"answer {number}"]
            assert await agent.turn(f"prompt {number}: look for {word}") == f"answer {number}"

    def check_requests(self, agent: AgentHarness) -> None:
        """Check that every request is valid and within the budget."""
        assert agent.calls
        for call in agent.calls:
            assert validate(call.messages, agent.format) == []
            assert request_tokens(agent.decode(call.messages), counter_for(None)) <= CONTRACT_BUDGET

    @pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
    async def test_a_prompt_is_in_the_log_before_the_model_is_asked_and_the_answer_after_it(
        self, agent: AgentHarness, is_streamed: bool
    ) -> None:
        agent.script = [call_tools((LOOK_TOOL, {"query": "tide"})), "four"]

        assert await agent.turn("what is two and two?", is_streamed=is_streamed) == "four"

        session = await self.open_session(agent)
        assert [call.logged_prompts for call in agent.calls] == [["what is two and two?"]] * 2
        texts = agent.texts(await session.messages())
        assert (texts[0], texts[-1]) == ("what is two and two?", "four")
        assert texts.count(look_result("tide")) == 1
        await session.close()

    async def test_every_request_is_valid_within_the_budget_and_ends_with_the_newest_exchange(
        self, agent: AgentHarness
    ) -> None:
        await self.talk(agent, 9)

        self.check_requests(agent)
        for number, call in enumerate(agent.calls):
            prompt = f"prompt {number // 2}: look for {'first' if number < 2 else f'word{number // 2}'}"
            assert agent.texts(call.messages).count(prompt) == 1
        session = await self.open_session(agent)
        proofs = list(rebuilt_requests(await session.events()))
        assert len(proofs) >= len(agent.calls)
        assert all(proof.is_same for proof in proofs)
        assert any(isinstance(event, log.CompactionCompleted) for event in await session.events())
        await session.close()

    async def test_a_prompt_that_nearly_fills_the_budget_is_sent_word_for_word(self, agent: AgentHarness) -> None:
        await self.talk(agent, 3)
        long = "Mind this list: " + " ".join(f"item-{number}" for number in range(500))
        agent.script = ["noted"]

        assert await agent.turn(long) == "noted"

        self.check_requests(agent)
        assert agent.texts(agent.calls[-1].messages).count(long) == 1

    async def test_recall_reaches_what_has_left_the_view(self, agent: AgentHarness) -> None:
        await self.talk(agent, 9)
        assert not any(NEEDLE in text for text in agent.texts(agent.calls[-1].messages))
        assert "recall" in agent.calls[-1].tools
        agent.script = [call_tools(("recall", {"query": "harbour code"})), "it is 4711-KESTREL"]

        await agent.turn("what was the harbour code?")

        [*_, found] = agent.texts(agent.calls[-1].messages)
        assert NEEDLE in found
        session = await self.open_session(agent)
        for number in range(9):
            assert f"answer {number}" in str(await session.recall(f'"answer {number}"'))
        await session.close()

    async def test_a_sub_agent_works_in_a_scope_of_its_own(self, agent: AgentHarness) -> None:
        agent.script = [
            call_tools((DELEGATE_TASK_TOOL, {"task": "count the boats"})),
            call_tools((LOOK_TOOL, {"query": "boats"})),
            "there are seven boats",
            "seven",
        ]

        assert await agent.turn("how many boats are there?") == "seven"

        self.check_requests(agent)
        seen = agent.texts(agent.calls[-1].messages)
        assert (seen[0], seen[-1]) == ("how many boats are there?", "there are seven boats")
        assert look_result("boats") not in seen
        session = await self.open_session(agent)
        [delegation] = await session.delegations()
        assert (delegation.state, delegation.answer) == ("answered", "there are seven boats")
        main = agent.texts(await session.messages())
        assert look_result("boats") not in main
        assert (main[0], main[-1]) == ("how many boats are there?", "seven")
        own = agent.texts(await session.messages(scope=delegation.started.scope))
        assert (own[0], own[-1]) == ("count the boats", "there are seven boats")
        assert look_result("boats") in own
        assert "line about boats and the tide" in str(await session.recall("tide"))
        await session.close()

    async def test_a_sub_agent_recalls_its_own_work_and_nothing_of_its_callers(self, agent: AgentHarness) -> None:
        words = ["first", *(f"boats{number}" for number in range(15))]
        looks = [[(LOOK_TOOL, {"query": word}) for word in words[start : start + 4]] for start in range(0, 16, 4)]
        agent.script = [
            "noted",
            call_tools((DELEGATE_TASK_TOOL, {"task": "count the boats"})),
            *(call_tools(*some) for some in looks),
            call_tools(("recall", {"query": "harbour code"})),
            call_tools(("recall", {"query": "password of the captain"})),
            "there are seven boats",
            "seven",
        ]

        await agent.turn("the password of the captain is MARLIN")
        assert await agent.turn("how many boats are there?") == "seven"

        self.check_requests(agent)
        *_, recalling, found_own, found_nothing, _ = agent.calls
        assert "recall" in recalling.tools
        assert NEEDLE in agent.texts(found_own.messages)[-1]
        assert "MARLIN" not in str(found_nothing.messages)

    async def test_a_retry_of_the_framework_records_nothing_twice(self, agent: AgentHarness) -> None:
        agent.script = [ScriptedOutage(), "back again"]

        assert await agent.turn("are you there?") == "back again"

        session = await self.open_session(agent)
        assert agent.texts(await session.messages()) == ["are you there?", "back again"]
        assert len(agent.calls) == 2
        await session.close()

    async def test_a_request_that_the_provider_rejects_as_too_long_is_sent_again_smaller(
        self, agent: AgentHarness
    ) -> None:
        await self.talk(agent, 4)
        agent.script = [ScriptedOverflow(), "now it fits"]

        assert await agent.turn("and now?") == "now it fits"

        rejected, sent = agent.calls[-2:]
        assert len(str(sent.messages)) < len(str(rejected.messages))
        assert agent.texts(sent.messages).count("and now?") == 1
        assert validate(sent.messages, agent.format) == []
        session = await self.open_session(agent)
        assert agent.texts(await session.messages())[-2:] == ["and now?", "now it fits"]
        await session.close()

    async def test_a_cancelled_turn_leaves_a_log_that_the_next_turn_continues(self, agent: AgentHarness) -> None:
        agent.script = [call_tools((LOOK_TOOL, {"query": "tide"})), ScriptedSilence()]
        turn = asyncio.ensure_future(agent.turn("this one is stopped"))
        waiting = asyncio.ensure_future(agent.is_waiting.wait())
        await asyncio.wait({turn, waiting}, return_when="FIRST_COMPLETED")
        assert waiting.done()
        turn.cancel()
        await asyncio.wait({turn})
        agent.script = ["all is well"]

        assert await agent.turn("and this one is answered") == "all is well"

        self.check_requests(agent)
        session = await self.open_session(agent)
        assert session.damage == []
        assert await recorded_prompts(session) == ["this one is stopped", "and this one is answered"]
        assert agent.texts(await session.messages())[-1] == "all is well"
        await session.close()

    async def test_a_new_process_continues_the_conversation(self, agent: AgentHarness) -> None:
        agent.script = ["noted"]
        await agent.turn("my boat is called Kittiwake")
        await agent.restart()
        agent.script = ["Kittiwake"]

        assert await agent.turn("what is my boat called?") == "Kittiwake"

        assert agent.texts(agent.calls[-1].messages) == [
            "my boat is called Kittiwake",
            "noted",
            "what is my boat called?",
        ]
        session = await self.open_session(agent)
        assert await recorded_prompts(session) == ["my boat is called Kittiwake", "what is my boat called?"]
        await session.close()
