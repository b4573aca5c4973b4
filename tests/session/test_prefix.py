"""A summary that is asked for after the conversation's own last request, and where it is asked as data instead."""

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast import Policy, Session, validate
from holdfast.core.history import events as log
from holdfast.core.planning.policy import PRESETS
from holdfast.errors import ModelAccessError, ModelOverflowError, ModelRefusedError
from holdfast.models.base import CachedPrefix, SummaryPrompt
from holdfast.models.retry import RetryLimits
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import (
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.models import ScriptedModel, ScriptLine
from tests.support import SUMMARY, WORDS, record_turns

TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
BUDGET = 8_000


def writer(lines: Iterable[ScriptLine] = (SUMMARY,), **settings: Any) -> ScriptedModel:
    """Return the conversation's own model."""
    own: dict[str, Any] = {"name": "gpt-5", "window": 32_000, "prefix_formats": ["openai-chat"]}
    return ScriptedModel(lines, **own | settings)


async def opened(model: ScriptedModel, policy: str | Policy = "default", **how: Any) -> Session:
    compaction = CompactionOptions(automatic=model, **how)
    return await Session.open("p1", store=MemoryStore(), model="gpt-5", policy=policy, compaction=compaction)


async def talked(session: Session, turns: int = 4) -> None:
    await session.record([system_message("Count.")])
    for number in range(turns):
        await session.record([user_message(f"question {number}: {WORDS}")])
        await session.prepare(BUDGET, system="Be brief.", tools=TOOLS)
        await session.record([assistant_message(f"answer {number}: {WORDS}")])


def ways(model: ScriptedModel) -> list[str]:
    return ["data" if ask.prefix is None else "behind" for ask in model.prompts]


async def test_the_conversations_own_model_is_asked_after_the_request_that_was_last_sent() -> None:
    model = writer()
    session = await opened(model)
    await talked(session)
    request = await session.prepare(BUDGET, system="Be brief.", tools=TOOLS)

    done = await session.compact(focus="the letters")

    (ask,) = model.prompts
    assert ask.prefix is not None
    assert ask.prefix == CachedPrefix(
        format="openai-chat",
        messages=request.messages,
        system="Be brief.",
        tools=TOOLS,
        positions=request.positions,
    )
    recorded = [position for position in request.positions if position is not None]
    assert [*ask.prefix.messages][: len(recorded)] == [(await session.messages_at(one))[0] for one in recorded]
    assert ("question 3" in ask.text, WORDS in ask.text) == (True, False), "the positions, and not the messages"
    assert "The messages in question are #0 to #7." in ask.text
    assert "the letters" in ask.text
    assert (done.success, done.summary.by_model, done.summary.score) == (True, "gpt-5", 1.0)


@pytest.mark.seed("C-13a")
async def test_a_summary_in_the_background_is_asked_for_after_the_request_that_goes_out() -> None:
    model = writer()
    session = await opened(model, "copilot")
    await talked(session, 9)
    await session.record([user_message("next?")])
    request = await session.prepare(3_600, system="Be brief.", tools=TOOLS)
    await session._compactor.wait()

    (ask,) = model.prompts
    assert ask.prefix is not None
    assert ask.prefix.messages == request.messages
    assert validate([*request.messages, user_message(ask.text)], "openai") == []


async def test_what_the_request_does_not_show_goes_with_the_question() -> None:
    model = writer()
    session = await opened(model)
    await talked(session)
    long = f"the output: {WORDS}"
    await session.record(
        [
            user_message("read it"),
            tool_call_message("a"),
            tool_result_message("a", long),
            assistant_message("read"),
            user_message("so?"),
        ]
    )

    await session.compact()

    (ask,) = model.prompts
    assert ask.prefix is not None
    assert (long in ask.text, f"question 3: {WORDS}" in ask.text) == (True, False)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"behind"}),
        ({"name": "gpt-5-mini"}, {"data"}),
        ({"prefix_formats": ["anthropic-messages"]}, {"data"}),
        ({"window": 2_300}, {"data"}),
    ],
    ids=["its own", "another model", "another format", "no room"],
)
async def test_only_the_own_model_with_room_left_is_asked_so(settings: dict[str, Any], expected: set[str]) -> None:
    model = writer([SUMMARY] * 2, **settings)
    session = await opened(model)
    await talked(session)

    await session.compact()

    assert {*ways(model)} == expected


async def test_a_conversation_that_nothing_was_sent_of_is_data() -> None:
    model = writer()
    session = await opened(model)
    await record_turns(session, 4)

    await session.compact()

    assert ways(model) == ["data"]


async def test_what_has_changed_since_the_last_request_is_data() -> None:
    model = writer()
    session = await opened(model)
    await talked(session)
    await session.rewind(to=7)

    await session.compact()

    assert ways(model) == ["data"]


async def test_a_request_with_a_secret_is_not_sent_to_be_summarized() -> None:
    model = writer([SUMMARY] * 2)
    session = await opened(model)
    await talked(session)
    await session.record([user_message("it is sk-abcdef123456")])
    await session.prepare(BUDGET)
    await session.record([assistant_message("noted")])

    await session.compact()
    assert ways(model) == ["data"]

    open_hearted = writer()
    session = await opened(open_hearted, redact=False)
    await talked(session)
    await session.record([user_message("it is sk-abcdef123456")])
    await session.prepare(BUDGET)
    await session.compact()
    assert ways(open_hearted) == ["behind"]


@pytest.mark.parametrize(
    "first",
    [
        ModelOverflowError("gpt-5", "too long"),
        ModelRefusedError("gpt-5", "roles must alternate", status=400),
        "",
        "I can't.",
    ],
    ids=["overflow", "refused", "empty", "a refusal"],
)
async def test_where_that_does_not_work_out_the_messages_are_shown_as_data(first: ScriptLine) -> None:
    model = writer([first, SUMMARY])
    session = await opened(model)
    await talked(session)

    done = await session.compact()

    assert ways(model) == ["behind", "data"]
    assert f"question 0: {WORDS.strip()}" in model.prompts[1].text
    assert (done.success, done.summary.by_model) == (True, "gpt-5")


async def test_who_may_not_be_asked_is_not_asked_twice() -> None:
    model = writer([ModelAccessError("gpt-5", "401")])
    session = await opened(model)
    await talked(session)

    with pytest.raises(ModelAccessError):
        await session.compact()

    assert ways(model) == ["behind"]


async def test_both_calls_are_on_the_bill() -> None:
    model = writer(["I can't.", SUMMARY])
    session = await opened(model)
    await talked(session)

    done = await session.compact()

    asked = [(len(ask.system) + len(ask.text)) // 4 for ask in model.prompts]
    assert done.summary.usage == log.Usage(input_tokens=sum(asked), output_tokens=2 + len(SUMMARY) // 4)


@pytest.mark.seed("A-27")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [("default", "behind"), ("copilot", "behind"), ("co-cli", "data"), ("inkeep", "data"), ("cowagent", "data")],
)
async def test_a_preset_asks_as_its_system_does(policy: str, expected: str) -> None:
    model = writer()
    session = await opened(model, policy)
    await talked(session)

    await session.compact()

    assert (ways(model), PRESETS[policy].reuses_prefix) == ([expected], expected == "behind")


async def test_a_second_summary_updates_the_first_one_although_a_sub_agent_had_one_meanwhile() -> None:
    model = writer([SUMMARY, "Looked at alpha to kappa [#9].", "Done: alpha to kappa, twice [#9]."], prefix_formats=[])
    session = await opened(model)
    await talked(session)
    await session.compact()
    async with session.delegate("looker", task="Look.") as delegate:
        for number in range(4):
            await delegate.record([user_message(f"look {number}: {WORDS}"), assistant_message(f"seen: {WORDS}")])
        await delegate.compact()
    await talked(session)

    await session.compact()

    assert model.prompts[2].text.count(SUMMARY) == 1
    assert "Update the previous summary" in model.prompts[2].text


async def test_a_second_summary_updates_the_first_one_after_the_request_that_shows_it() -> None:
    model = writer([SUMMARY, "Done: alpha to kappa, twice [#9]."])
    session = await opened(model)
    await talked(session)
    await session.compact()
    await talked(session)

    await session.compact()

    assert ways(model) == ["behind", "behind"]
    ask: SummaryPrompt = model.prompts[1]
    assert ask.text.count(SUMMARY) == 1
    assert "Update the previous summary" in ask.text
    assert "The messages in question are #8 to #16." in ask.text


async def test_a_provider_that_is_down_is_not_asked_in_another_way() -> None:
    down = ModelRefusedError("gpt-5", "503 overloaded", status=503)
    model = writer([down] * 9)
    session = await opened(model, retry_limits=RetryLimits(attempts=1))
    await talked(session)

    done = await session.compact()

    assert set(ways(model)) == {"behind"}
    assert (done.success, done.summary.by_model) == (True, None)
