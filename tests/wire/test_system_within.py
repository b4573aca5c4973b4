"""Anthropic's system messages within a conversation: accepted, recorded, and never sent where the API refuses them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Session, convert, govern, validate
from holdfast.core.conversation.repair import JOINED_SYSTEM_NOTE
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.wire.anthropic import place_system_messages

Json = dict[str, Any]
POLICIES = ("default", "co-cli", "inkeep", "copilot", "cowagent")
NOTE = {"role": "system", "content": [{"type": "text", "text": "From now on answer in French."}]}


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    """Return a conversation with tools and system messages where the API accepts them; it ends with the user."""
    messages: list[Json] = []

    def add_user(content: object) -> None:
        messages.append({"role": "user", "content": content})
        if draw(st.booleans()):
            messages.append({**NOTE, "content": "rule " * draw(st.integers(1, 60))})

    for turn in range(draw(st.integers(1, 6))):
        add_user(f"prompt {turn} " + "word " * draw(st.integers(1, 150)))
        for step in range(draw(st.integers(0, 2))):
            call = {"type": "tool_use", "id": f"toolu_{turn}_{step}", "name": "read", "input": {}}
            messages.append({"role": "assistant", "content": [call]})
            output = "line " * draw(st.integers(1, 600))
            add_user([{"type": "tool_result", "tool_use_id": call["id"], "content": output}])
        messages.append({"role": "assistant", "content": "answer " * draw(st.integers(1, 60))})
    add_user("the newest prompt")
    return messages


@given(conversations(), st.sampled_from([500, 1_500, 4_000]))
@settings(max_examples=40)
def test_a_list_with_system_messages_is_valid_at_every_budget(messages: list[Json], budget: int) -> None:
    request = govern(messages, budget=budget, format="anthropic-messages")

    assert validate(request.messages, "anthropic-messages") == []
    assert {"role": "user", "content": "the newest prompt"} in request.messages


@pytest.mark.parametrize("said_before", [[], [{"role": "assistant", "content": "Yes."}]])
def test_a_short_list_with_a_system_message_that_has_lost_its_place_is_repaired(said_before: list[Json]) -> None:
    first, last = {"role": "user", "content": "go"}, {"role": "user", "content": "and?"}
    messages = [first, *said_before, NOTE, last]
    sent = [first, *said_before, {**NOTE, "role": "user"}, last]

    request = govern(messages, budget=16_000, format="anthropic-messages")
    converted = convert(messages, source="anthropic-messages", target="anthropic-messages")

    assert request.messages == sent
    assert [str(repair.description) for repair in request.receipt.repairs] == [
        "sent system text as the user's: its place was after a user message"
    ]
    assert converted.messages == sent


@pytest.mark.parametrize("policy", POLICIES)
@given(messages=conversations())
@settings(max_examples=8)
async def test_every_request_of_a_session_with_system_messages_is_valid(policy: str, messages: list[Json]) -> None:
    async with Session.open("s", model="claude-sonnet-4-5", policy=policy, format="anthropic-messages") as session:
        for message in messages:
            if message["role"] == "assistant":
                request = await session.prepare(2_500)
                assert validate(request.messages, "anthropic-messages") == []
            await session.record([message])
        assert await session.messages() == messages


def _long_talk(note: Json) -> list[Json]:
    roles = ("user", "assistant")
    turns: list[Json] = [{"role": roles[n % 2], "content": f"line {n}: " + "word " * 120} for n in range(60)]
    return [turns[0], note, *turns[1:], {"role": "user", "content": "the newest prompt"}]


@pytest.mark.parametrize("policy", POLICIES)
async def test_system_text_within_a_conversation_stays(policy: str) -> None:
    messages = _long_talk(NOTE)
    options: Json = {"model": "claude-sonnet-4-5", "policy": policy, "format": "anthropic-messages"}
    async with Session.open("s", store="memory://", **options) as session:
        await session.record(messages)

        prepared = await session.prepare(3_000)

    for request in (prepared, govern(messages, budget=3_000, format="anthropic-messages")):
        assert len(request.messages) < len(messages)
        assert [one["content"] for one in request.messages].count(NOTE["content"]) == 1
        assert validate(request.messages, "anthropic-messages") == []


def test_system_text_that_ends_with_its_turn_is_compacted_with_it() -> None:
    note = {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}
    talk = _long_talk(note)

    request = govern([*talk, note], budget=3_000, format="anthropic-messages")

    assert [one["content"] for one in request.messages].count("Be brief.") == 1
    assert request.messages[-2:] == [talk[-1], note]


def test_system_text_within_a_conversation_yields_before_a_request_fails() -> None:
    rules: Json = {"role": "system", "content": "rule " * 2_000}
    talk = _long_talk(rules)

    request = govern(talk, budget=1_500, format="anthropic-messages")

    assert rules["content"] not in [one["content"] for one in request.messages]
    assert request.messages[-1] == talk[-1]


def test_system_text_within_a_conversation_stays_system_text_in_another_format() -> None:
    first, answer = {"role": "user", "content": "go"}, {"role": "assistant", "content": "Yes."}

    converted = convert([first, NOTE, answer, first], source="anthropic-messages", target="openai-chat")

    assert [message["role"] for message in converted.messages] == ["user", "system", "assistant", "user"]


@pytest.mark.parametrize(
    ("roles", "placed"),
    [
        ("user system assistant user", "user system assistant user"),
        ("user system", "user system"),
        ("system user", "user user"),
        ("user assistant system user", "user assistant user user"),
        ("user system user", "user user user"),
        ("user system system", "user user user"),
    ],
)
def test_a_system_message_that_has_lost_its_place_is_sent_as_the_users(roles: str, placed: str) -> None:
    messages = [{"role": role, "content": role} for role in roles.split()]

    found = place_system_messages(messages)

    assert [message["role"] for message in found] == placed.split()
    assert [message["content"] for message in found] == roles.split()


OTHER_NOTE: Json = {"role": "system", "content": "Be brief.", "output_config": {"effort": "low"}}


@pytest.mark.parametrize("policy", POLICIES)
async def test_system_texts_that_a_compaction_makes_neighbors_stay_system_text(policy: str) -> None:
    talk = _long_talk(NOTE)
    messages = [*talk[:22], OTHER_NOTE, *talk[22:]]
    options: Json = {"model": "claude-sonnet-4-5", "policy": policy, "format": "anthropic-messages"}
    joined = {
        "role": "system",
        "content": [*NOTE["content"], {"type": "text", "text": "Be brief."}],
        "output_config": {"effort": "low"},
    }
    async with Session.open("s", store="memory://", **options) as session:
        await session.record(messages)
        prepared = await session.prepare(3_000)
        rebuilt = list(rebuilt_requests(await session.events()))

    for request in (prepared, govern(messages, budget=3_000, format="anthropic-messages")):
        assert [one for one in request.messages if one["role"] == "system"] == [joined]
        assert len(request.messages) < len(messages)
        assert validate(request.messages, "anthropic-messages") == []
        assert (22, JOINED_SYSTEM_NOTE) in [(one.position, one.description) for one in request.receipt.repairs]
    assert [(one.is_same, one.messages) for one in rebuilt] == [(True, prepared.messages)]


async def test_system_text_keeps_its_place_while_the_conversation_grows() -> None:
    talk = _long_talk(NOTE)
    options: Json = {"model": "claude-sonnet-4-5", "format": "anthropic-messages"}
    async with Session.open("s", store="memory://", **options) as session:
        await session.record(talk)
        before = await session.prepare(3_000)
        for number in range(4):
            question = {"role": "user", "content": f"and {number}?"}
            await session.record([{"role": "assistant", "content": "Yes."}, question])
            after = await session.prepare(3_000)
            assert after.messages[: len(before.messages)] == before.messages
            before = after

    assert [one for one in before.messages if one["role"] == "system"] == [NOTE]
