"""What a provider keeps in a conversation besides its words: its own compaction, changes of tools and of settings.

Anthropic reads a compaction in place of everything before it, refuses anything before a signed one, and offers the
model the tools that messages have added.
"""

from typing import Any

import pytest

from holdfast import Session, convert, govern, validate

Json = dict[str, Any]
POLICIES = ("default", "co-cli", "inkeep", "copilot", "cowagent")
SIGNED = {"type": "compaction", "content": "The boat is called Albatross.", "signature": "c2ln"}
UNSIGNED = {"type": "compaction", "content": "The boat is called Albatross."}
GO_ON = {"type": "text", "text": "Go on."}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "the log"}
TOOL: Json = {"type": "tool_definition", "definition": {"name": "steer", "input_schema": {"type": "object"}}}
ADDITION: Json = {"role": "system", "content": [{"type": "tool_addition", "tool": TOOL}]}
PROMPT = {"role": "user", "content": "Where are we?"}


def _turns(count: int) -> list[Json]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": f"line {n}: " + "word " * 120} for n in range(2 * count)]


BEGINNINGS: dict[str, tuple[list[Json], list[Json]]] = {
    "alone": ([{"role": "assistant", "content": [SIGNED]}], [{"role": "assistant", "content": [SIGNED]}]),
    "in the first prompt": (
        [{"role": "user", "content": [SIGNED, GO_ON]}, {"role": "assistant", "content": "Yes."}],
        [{"role": "user", "content": [SIGNED, GO_ON]}],
    ),
    "in an answer": (
        [*_turns(2), PROMPT, {"role": "assistant", "content": [UNSIGNED, GO_ON]}],
        [{"role": "assistant", "content": [UNSIGNED, GO_ON]}],
    ),
    "before a call": (
        [
            *_turns(2),
            PROMPT,
            {"role": "assistant", "content": [UNSIGNED, CALL]},
            {"role": "user", "content": [RESULT]},
            {"role": "assistant", "content": "Read."},
        ],
        [{"role": "assistant", "content": [UNSIGNED, CALL]}, {"role": "user", "content": [RESULT]}],
    ),
}


@pytest.mark.parametrize("place", BEGINNINGS)
def test_a_compaction_of_the_provider_begins_every_shorter_request(place: str) -> None:
    before, kept = BEGINNINGS[place]

    request = govern([*before, *_turns(30), PROMPT], budget=3_000, format="anthropic-messages")

    assert request.messages[: len(kept)] == kept
    assert str(request.messages[len(kept)]["content"]).startswith("[Summary of ")
    assert validate(request.messages, "anthropic-messages") == []


def test_nothing_is_put_before_a_compaction_that_begins_a_conversation() -> None:
    messages = [{"role": "assistant", "content": [SIGNED]}, PROMPT]

    request = govern(messages, budget=16_000, format="anthropic-messages")

    assert request.messages == messages
    assert request.receipt.repairs == ()
    assert validate(messages, "anthropic-messages") == []


async def test_what_a_signed_compaction_stands_for_is_not_sent_before_it() -> None:
    compaction: Json = {"role": "assistant", "content": [SIGNED]}
    before, after = [*_turns(2), PROMPT], [compaction, PROMPT]
    options: Json = {"model": "claude-sonnet-4-5", "format": "anthropic-messages"}
    async with Session.open("s", store="memory://", **options) as session:
        await session.record([*before, compaction])
        await session.record([PROMPT])
        prepared = await session.prepare(16_000)
        assert await session.messages() == [*before, *after]

    governed = govern([*before, *after], budget=16_000, format="anthropic-messages")

    for request in (prepared, governed):
        assert request.messages == after
        assert [(one.position, one.description) for one in request.receipt.repairs] == [
            (position, "left out what the provider's compaction after it stands for") for position in range(5)
        ]


def test_validate_names_a_signed_compaction_that_is_not_first() -> None:
    messages = [PROMPT, {"role": "assistant", "content": [GO_ON, SIGNED]}, PROMPT]

    found = [(one.rule, one.path) for one in validate(messages, "anthropic-messages")]

    assert found == [("compaction-place", "messages[1].content[1]")]


def test_a_compaction_that_failed_is_no_more_than_any_other_block() -> None:
    failed = {"role": "assistant", "content": [{"type": "compaction", "content": None}, GO_ON]}

    request = govern([PROMPT, failed, *_turns(30), PROMPT], budget=3_000, format="anthropic-messages")

    assert failed not in request.messages


@pytest.mark.parametrize("place", BEGINNINGS)
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_session_never_loses_a_compaction_of_the_provider(policy: str, place: str) -> None:
    before, kept = BEGINNINGS[place]
    options: Json = {"model": "claude-sonnet-4-5", "policy": policy, "format": "anthropic-messages"}
    async with Session.open("s", store="memory://", **options) as session:
        await session.record([*before, *_turns(30), PROMPT])

        request = await session.prepare(3_000)

        start = request.messages.index(kept[0])
        assert request.messages[start : start + len(kept)] == kept
        assert validate(request.messages, "anthropic-messages") == []


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_tool_that_a_message_has_added_stays(policy: str) -> None:
    messages = [PROMPT, ADDITION, *_turns(30)[1:], PROMPT]
    options: Json = {"model": "claude-sonnet-4-5", "policy": policy, "format": "anthropic-messages"}
    async with Session.open("s", store="memory://", **options) as session:
        await session.record(messages)

        prepared = await session.prepare(3_000)

    for request in (prepared, govern(messages, budget=3_000, format="anthropic-messages")):
        assert [one["content"] for one in request.messages if TOOL["type"] in str(one)] == [ADDITION["content"]]
        assert validate(request.messages, "anthropic-messages") == []


def test_a_message_that_only_changes_the_effort_is_sent_as_it_is() -> None:
    messages = [
        PROMPT,
        {"role": "system", "output_config": {"effort": "high"}},
        {"role": "assistant", "content": "Here."},
    ]

    request = govern([*messages, PROMPT], budget=16_000, format="anthropic-messages")

    assert request.messages == [*messages, PROMPT]
    assert validate(request.messages, "anthropic-messages") == []


def test_a_system_message_that_is_sent_as_the_users_loses_the_fields_of_system_messages() -> None:
    note = {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}
    setting = {"role": "system", "output_config": {"effort": "high"}}

    request = govern([PROMPT, note, setting, PROMPT], budget=16_000, format="anthropic-messages")

    assert request.messages[1:3] == [
        {"role": "user", "content": "Be brief."},
        {"role": "user", "content": "[Setting of the conversation: effort high]"},
    ]


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_setting_that_an_item_has_changed_stays(policy: str) -> None:
    update: Json = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    items = [PROMPT, _turns(1)[1], update, *_turns(30), PROMPT]
    options: Json = {"model": "gpt-5", "policy": policy, "format": "openai-responses"}
    async with Session.open("s", store="memory://", **options) as session:
        await session.record(items)

        prepared = await session.prepare(3_000)

    for request in (prepared, govern(items, budget=3_000, format="openai-responses")):
        assert len(request.messages) < len(items)
        assert update in request.messages
        assert validate(request.messages, "openai-responses") == []


def test_reasoning_is_not_followed_by_a_setting_that_the_client_changes() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}}

    found = validate([PROMPT, reasoning, update, PROMPT], "openai-responses")

    assert [(one.rule, one.path) for one in found] == [("reasoning-followed", "messages[1]")]


def test_a_compaction_never_becomes_system_text_of_another_provider() -> None:
    messages = [{"role": "assistant", "content": [SIGNED]}, PROMPT]

    converted = convert(messages, source="anthropic-messages", target="openai-chat")

    assert [(one["role"], one["content"]) for one in converted.messages[-2:]] == [
        ("assistant", SIGNED["content"]),
        ("user", PROMPT["content"]),
    ]


def test_a_change_of_the_effort_leaves_nothing_in_another_format_but_a_note() -> None:
    setting = {"role": "system", "output_config": {"effort": "high"}}

    converted = convert([PROMPT, setting], source="anthropic-messages", target="openai-chat")

    assert converted.messages == [PROMPT]
    assert "a block of type 'output_config' was left out" in converted.notes


@pytest.mark.parametrize("policy", ["default", "copilot", "cowagent"])  # the others limit the number of messages, too
async def test_what_the_provider_reads_a_compaction_in_place_of_takes_no_room(policy: str) -> None:
    before, after = _turns(40), [{"role": "assistant", "content": [UNSIGNED, GO_ON]}, *_turns(2), PROMPT]
    options: Json = {"model": "claude-sonnet-4-5", "policy": policy, "format": "anthropic-messages"}
    async with Session.open("s", store="memory://", **options) as session:
        await session.record(before)
        await session.record(after)
        prepared = await session.prepare(3_000)

    governed = govern([*before, *after], budget=3_000, format="anthropic-messages", model="claude-sonnet-4-5")
    alone = govern(after, budget=3_000, format="anthropic-messages", model="claude-sonnet-4-5")

    for request in (prepared, governed):
        assert request.messages == [*before, *after]
        assert request.receipt.is_unchanged
        assert request.tokens.conversation == alone.tokens.conversation


async def test_a_conversation_that_outgrows_its_budget_after_the_providers_compaction_is_compacted() -> None:
    compaction = {"role": "assistant", "content": [UNSIGNED, GO_ON]}
    messages = [*_turns(10), PROMPT, compaction, *_turns(40), PROMPT]
    options: Json = {"model": "claude-sonnet-4-5", "format": "anthropic-messages"}
    async with Session.open("s", store="memory://", **options) as session:
        await session.record(messages)
        prepared = await session.prepare(3_000)

    for request in (prepared, govern(messages, budget=3_000, format="anthropic-messages")):
        assert request.messages[0] == compaction
        assert request.messages[-1] == PROMPT
        assert request.tokens.total <= 3_000
        assert validate(request.messages, "anthropic-messages") == []
