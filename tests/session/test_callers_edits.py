"""What a caller does to its own lists, or to a request that it got, changes nothing that was recorded."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast.core.history.events import RequestPrepared
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.session import Session

MODEL = "claude-sonnet-4-5"
TOOL = {"name": "read", "description": "Read a file.", "input_schema": {"type": "object", "properties": {}}}


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def opened() -> AbstractAsyncContextManager[Session]:
    return Session.open("s", store="memory://", model=MODEL, format="anthropic-messages")


async def test_a_message_that_its_caller_edits_after_recording_it_is_sent_as_it_was_recorded() -> None:
    mine = said("hello")
    async with opened() as session:
        await session.record(mine)
        mine[0]["content"][0]["text"] = "edited"

        request = await session.prepare(16_000)

        assert (request.messages, await session.messages()) == (said("hello"), said("hello"))
        assert [one.is_same for one in rebuilt_requests(await session.events())] == [True]


async def test_a_list_that_its_caller_edits_after_a_sync_is_sent_as_it_was_recorded() -> None:
    mine = said("hello")
    async with opened() as session:
        await session.sync(mine)
        mine[0]["content"][0]["text"] = "edited"

        assert (await session.prepare(16_000)).messages == said("hello")


async def test_cache_marks_that_a_caller_puts_into_a_request_reach_no_later_request_and_not_the_log() -> None:
    async with opened() as session:
        for number in range(6):
            await session.record(said(f"question {number}"))
            request = await session.prepare(16_000)
            request.messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
            await session.record([{"role": "assistant", "content": f"answer {number}"}])
        (await session.messages_at(0))[0]["content"] = "edited"  # pyright: ignore[reportIndexIssue]
        (await session.messages())[0]["content"] = "edited"  # pyright: ignore[reportIndexIssue]

        await session.record(said("last"))
        request = await session.prepare(16_000)

        expected = [
            message
            for number in range(6)
            for message in (*said(f"question {number}"), {"role": "assistant", "content": f"answer {number}"})
        ]
        assert request.messages == [*expected, *said("last")]
        assert [one.is_same for one in rebuilt_requests(await session.events())] == [True] * 7


async def test_system_text_and_tools_that_a_caller_edits_in_place_are_on_record_and_break_the_prefix() -> None:
    system: list[dict[str, Any]] = [{"type": "text", "text": "Be brief."}]
    tools: list[dict[str, Any]] = [{**TOOL, "input_schema": {"type": "object", "properties": {}}}]
    async with opened() as session:
        await session.record(said("hello"))
        await session.prepare(16_000, system=system, tools=tools)
        tools[0]["input_schema"]["properties"]["path"] = {"type": "string"}
        await session.prepare(16_000, system=system, tools=tools)
        system[0]["text"] = "Be long."
        await session.prepare(16_000, system=system, tools=tools)

        events = await session.events()

    breaks = [
        event.prefix_break.reason for event in events if isinstance(event, RequestPrepared) and event.prefix_break
    ]
    assert breaks == ["the tools changed", "the system text changed"]
    assert [(one.is_same, one.tools) for one in rebuilt_requests(events)] == [
        (True, [TOOL]),
        (True, tools),
        (True, tools),
    ]
