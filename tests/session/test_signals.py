"""A provider that compacts by itself: its signals are recorded, and change nothing."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import CompactionPart, ModelResponse, TextPart

from holdfast import Session
from holdfast.adapters.pydantic_ai import Holdfast
from holdfast.core.history import events as log
from holdfast.testing.agents import ScriptedAgentModel
from holdfast.testing.chat import assistant_message, user_message


class SdkEvent:
    """An event as an SDK returns it."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, **_: object) -> dict[str, Any]:
        return self.fields


async def stream_of(*events: Any) -> AsyncIterator[Any]:
    for event in events:
        yield event


async def signals(session: Session) -> list[tuple[str, dict[str, object]]]:
    found = [event for event in await session.events() if isinstance(event, log.ProviderSignalled)]
    return [(event.signal, dict(event.payload)) for event in found]


DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "so far"}}
STREAMS: dict[str, tuple[list[Any], list[str]]] = {
    "a thread": ([{"type": "agent.thread_context_compacted", "turns": 4}], ["agent.thread_context_compacted"]),
    "deltas": ([DELTA, DELTA, DELTA], ["compaction_delta"]),
    "an SDK's delta": ([SdkEvent(**DELTA)], ["compaction_delta"]),
    "a control": ([{"type": "message_start", "compactionControl": {"enabled": True}}], ["compactionControl"]),
    "a block": ([{"type": "content_block_start", "content_block": {"type": "compaction"}}], ["compaction"]),
    "an item": ([{"type": "response.output_item.done", "item": {"type": "compaction", "id": "c1"}}], ["compaction"]),
    "words about it": ([{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "compaction"}}], []),
    "no events": (["compaction", None, 4, {"type": ["compaction"]}], []),
}


@pytest.mark.seed("C-56")
@pytest.mark.parametrize("name", STREAMS)
async def test_signals_in_a_stream_are_recorded_once_and_its_events_pass_unchanged(name: str) -> None:
    events, expected = STREAMS[name]
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([user_message("one"), assistant_message("two"), user_message("three")])
        before = await session.prepare(16_000)

        passed = [event async for event in session.watch(stream_of(*events))]
        after = await session.prepare(16_000)

        assert passed == events
        assert await signals(session) == [(signal, {"source": "stream"}) for signal in expected]
    assert after.messages == before.messages


ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": (
        "anthropic",
        {"role": "assistant", "content": [{"type": "compaction", "content": "so far"}, {"type": "text", "text": "go"}]},
    ),
    "responses": ("openai-responses", {"type": "compaction", "id": "cmp_1", "encrypted_content": "x" * 40}),
}


@pytest.mark.seed("C-56")
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("way", ["record", "sync"])
async def test_an_answer_that_holds_a_providers_compaction_leaves_a_signal(name: str, way: str) -> None:
    format_name, answer = ANSWERS[name]
    async with Session.open("c1") as session:
        said = [user_message("one"), answer]
        await getattr(session, way)(said, format=format_name)

        assert await signals(session) == [("compaction", {"position": 1})]
        assert await session.messages() == said


@pytest.mark.seed("C-56")
async def test_an_agents_answer_that_holds_a_providers_compaction_leaves_a_signal() -> None:
    answer = ModelResponse(parts=[CompactionPart("so far", provider_name="anthropic"), TextPart("done")])
    async with Holdfast(session="c1") as governed:
        await Agent(ScriptedAgentModel([answer]), capabilities=[governed]).run("Go.")

        assert await signals(await governed.open()) == [("compaction", {"position": 1})]
