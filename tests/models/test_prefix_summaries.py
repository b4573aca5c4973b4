"""Summaries that continue the conversation's last request, on Anthropic Messages and OpenAI Responses."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from holdfast import Session
from holdfast.core.history.events import Usage
from holdfast.errors import ModelOverflowError, ModelRefusedError, ModelUnreachableError
from holdfast.models.anthropic_messages import MessagesSummarizer
from holdfast.models.base import SummaryPrompt
from holdfast.models.open import open_summarizer
from holdfast.models.openai_responses import ResponsesSummarizer
from holdfast.testing.endpoint import (
    ReceivedRequest,
    ResponsePiece,
    ScriptedEndpoint,
    http_response,
    sse_event,
    stream_response,
)

SUMMARY = "The user asked to keep the harbor log; entries 0 to 5 are written, and the rules are settled."
MARK = {"cache_control": {"type": "ephemeral"}}
SYSTEM = [{"type": "text", "text": "You keep the harbor's log.", **MARK}]
TOOLS = [{"name": "look_up", "input_schema": {"type": "object"}, **MARK}]
ASK = SummaryPrompt(system="Summarize.", text="the data", max_output_tokens=500)


def messages_stream(text: str, stop: str = "end_turn") -> list[ResponsePiece]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 20, "output_tokens": 1}
    return stream_response(
        sse_event({"type": "message_start", "message": {"id": "msg_1", "model": "served", "usage": usage}}),
        sse_event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        sse_event({"type": "ping"}),
        sse_event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
        sse_event({"type": "content_block_stop", "index": 0}),
        sse_event({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 40}}),
        sse_event({"type": "message_stop"}),
    )


def compaction_stream(text: str | None) -> list[ResponsePiece]:
    block = {"type": "compaction", "content": text, "signature": "c2lnbmVk"}
    spent = {"type": "compaction", "input_tokens": 7, "cache_read_input_tokens": 800, "output_tokens": 60}
    return stream_response(
        sse_event({"type": "message_start", "message": {"id": "msg_2", "model": "served", "usage": {}}}),
        sse_event({"type": "content_block_start", "index": 0, "content_block": block}),
        sse_event({"type": "message_delta", "delta": {"stop_reason": "compaction"}, "usage": {"iterations": [spent]}}),
        sse_event({"type": "message_stop"}),
    )


def responses_stream(text: str, status: str = "completed", reason: str | None = None) -> list[ResponsePiece]:
    usage = {"input_tokens": 1_000, "input_tokens_details": {"cached_tokens": 950}, "output_tokens": 40}
    response: dict[str, Any] = {"id": "resp_1", "model": "served", "status": status, "usage": usage}
    if reason:
        response["incomplete_details"] = {"reason": reason}
    return stream_response(
        sse_event({"type": "response.created", "response": {"id": "resp_1"}}),
        sse_event({"type": "response.output_text.delta", "delta": text}),
        sse_event({"type": f"response.{status}", "response": response}),
    )


def answering(request: ReceivedRequest) -> list[ResponsePiece]:
    if "compaction" in request.body:
        return compaction_stream(SUMMARY)
    return responses_stream(SUMMARY) if "/responses" in request.line else messages_stream(SUMMARY)


@pytest_asyncio.fixture
async def endpoint() -> AsyncGenerator[ScriptedEndpoint]:
    async with ScriptedEndpoint(answering) as made:
        yield made


def base_of(endpoint: ScriptedEndpoint) -> str:
    return endpoint.url.removesuffix("/v1")


async def talk(session: Session, format_name: str, **extras: Any) -> list[Any]:
    """Talk until there is something to compact, and return the messages of the last request."""
    marked = {"type": "text", "text": "Write entry 0.", **MARK}
    sent: list[Any] = []
    for number in range(8):
        content = [marked] if format_name == "anthropic-messages" and not number else f"Write entry {number}."
        await session.record([{"role": "user", "content": content}], format=format_name)
        sent = list((await session.prepare(20_000, **extras)).messages)
        answer = {"role": "assistant", "content": f"Entry {number}: " + "the Aurora came in with timber. " * 40}
        await session.record([answer], format=format_name)
    return sent


async def test_a_summary_after_an_anthropic_request_sends_its_bytes_and_one_more_user_message(
    endpoint: ScriptedEndpoint,
) -> None:
    writer = MessagesSummarizer("claude-opus-5-5", base_url=base_of(endpoint), api_key="key")
    async with Session.open("s", model="claude-opus-5-5", policy="copilot", summarizer=writer) as session:
        sent = await talk(session, "anthropic-messages", system=SYSTEM, tools=TOOLS)
        done = await session.compact()

    (request,) = endpoint.requests
    assert request.line == "POST /v1/messages HTTP/1.1"
    assert {name: request.headers.get(name) for name in ("x-api-key", "anthropic-version", "anthropic-beta")} == {
        "x-api-key": "key",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": None,
    }
    *before, last = request.body["messages"]  # pyright: ignore[reportGeneralTypeIssues]
    assert (before, request.body["system"], request.body["tools"]) == (sent, SYSTEM, TOOLS)
    assert last["role"] == "user"
    assert "tool_choice" not in request.body
    assert done.success
    assert SUMMARY in done.summary.text
    assert done.summary.usage == Usage(input_tokens=10, output_tokens=40, cache_read_tokens=900, cache_write_tokens=20)


@pytest.mark.parametrize("format_name", ["openai-responses", "openai-responses-stateless"])
async def test_a_summary_after_a_responses_request_sends_its_items_and_one_more_user_message(
    endpoint: ScriptedEndpoint, format_name: str
) -> None:
    tools = [{"type": "function", "name": "look_up", "parameters": {"type": "object"}}]
    writer = ResponsesSummarizer(endpoint.url, "gpt-5", api_key="key")
    async with Session.open("s", model="gpt-5", policy="copilot", summarizer=writer) as session:
        sent = await talk(session, format_name, system="You keep the log.", tools=tools)
        done = await session.compact()

    (request,) = endpoint.requests
    *before, last = request.body["input"]  # pyright: ignore[reportGeneralTypeIssues]
    assert request.line == "POST /v1/responses HTTP/1.1"
    assert (before, request.body["instructions"], request.body["tools"]) == (sent, "You keep the log.", tools)
    assert last["role"] == "user"
    assert request.body["tool_choice"] == "none"
    assert request.body.get("store") == (False if format_name == "openai-responses-stateless" else None)
    assert done.success
    assert done.summary.usage == Usage(input_tokens=50, output_tokens=40, cache_read_tokens=950)


async def test_the_providers_own_compaction_is_checked_and_recorded_like_every_summary(
    endpoint: ScriptedEndpoint,
) -> None:
    writer = MessagesSummarizer("claude-opus-5-5", base_url=base_of(endpoint), api_key="key", compacts_on_demand=True)
    async with Session.open("s", model="claude-opus-5-5", summarizer=writer) as session:
        await session.record([{"role": "user", "content": "Never push to main."}], format="anthropic-messages")
        await session.record([{"role": "assistant", "content": "I will not."}], format="anthropic-messages")
        sent = await talk(session, "anthropic-messages", system=SYSTEM, tools=TOOLS)
        done = await session.compact()
        (receipt,) = await session.receipts()
        request_after = await session.prepare(20_000, system=SYSTEM, tools=TOOLS)

    request = endpoint.requests[0]
    compaction: Any = request.body["compaction"]
    assert request.headers["anthropic-beta"] == "compact-2026-09-04"
    assert (request.body["messages"], request.body["system"]) == (sent, SYSTEM)
    assert compaction["type"] == "summarize"
    assert "Never push to main." in str(request_after.messages)
    assert done.summary.by_model == "served"
    assert SUMMARY in done.summary.text
    assert done.summary.usage == Usage(input_tokens=7, output_tokens=60, cache_read_tokens=800)
    assert str(receipt).splitlines()[0].endswith("by served")


async def test_without_a_prefix_the_data_is_one_user_message(endpoint: ScriptedEndpoint) -> None:
    for writer in (
        MessagesSummarizer("m", base_url=base_of(endpoint)),
        MessagesSummarizer("m", base_url=base_of(endpoint), compacts_on_demand=True),
        ResponsesSummarizer(endpoint.url, "m"),
    ):
        assert (await writer.write(ASK)).text == SUMMARY

    plain, compacting, responses = (request.body for request in endpoint.requests)
    data = [{"role": "user", "content": "the data"}]
    assert (plain["system"], plain["messages"], plain["max_tokens"]) == ("Summarize.", data, 500)
    assert compacting["messages"] == data
    assert compacting["compaction"] == {"type": "summarize", "instructions": "Summarize."}
    assert (responses["instructions"], responses["input"]) == ("Summarize.", data)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (compaction_stream(None), ModelRefusedError),
        (messages_stream("no", "refusal"), ModelRefusedError),
        (messages_stream("half")[:4], ModelUnreachableError),
        (
            http_response(
                400,
                {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 5"}},
            ),
            ModelOverflowError,
        ),
    ],
)
async def test_what_goes_wrong_at_anthropic_is_an_error_with_a_type(
    reply: list[ResponsePiece], error: type[Exception]
) -> None:
    async with ScriptedEndpoint([reply]) as endpoint:
        with pytest.raises(error):
            await MessagesSummarizer("m", base_url=base_of(endpoint)).write(ASK)


async def test_a_reply_that_reached_its_limit_is_cut_off() -> None:
    replies = [messages_stream("half", "max_tokens"), responses_stream("half", "incomplete", "max_output_tokens")]
    async with ScriptedEndpoint(replies) as endpoint:
        first = await MessagesSummarizer("m", base_url=base_of(endpoint)).write(ASK)
        second = await ResponsesSummarizer(endpoint.url, "m").write(ASK)

    assert [(reply.text, reply.is_cut_off) for reply in (first, second)] == [("half", True), ("half", True)]


async def test_replies_that_are_not_streamed_are_read_whole() -> None:
    message = {"type": "message", "id": "m", "model": "served", "content": [{"type": "text", "text": "so"}]}
    output = [{"type": "message", "content": [{"type": "output_text", "text": "so"}]}]
    replies = [
        http_response(200, {**message, "stop_reason": "end_turn", "usage": {"input_tokens": 3}}),
        http_response(200, {"object": "response", "id": "r", "status": "completed", "output": output}),
    ]
    async with ScriptedEndpoint(replies) as endpoint:
        texts = [
            (await writer.write(ASK)).text
            for writer in (
                MessagesSummarizer("m", base_url=base_of(endpoint)),
                ResponsesSummarizer(endpoint.url, "m"),
            )
        ]

    assert texts == ["so", "so"]


def test_the_end_of_an_address_says_which_api_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    opened = [
        open_summarizer(name)
        for name in (
            "https://api.anthropic.com/v1/messages#claude-opus-5-5",
            "http://127.0.0.1:1/v1/responses#gpt-5",
            "http://127.0.0.1:1/v1#gpt-5",
            "anthropic-compaction:claude-opus-5-5",
        )
    ]

    assert [repr(writer) for writer in opened] == [
        "MessagesSummarizer('claude-opus-5-5', base_url='https://api.anthropic.com')",
        "ResponsesSummarizer('http://127.0.0.1:1/v1', 'gpt-5')",
        "ChatSummarizer('http://127.0.0.1:1/v1', 'gpt-5')",
        "MessagesSummarizer('claude-opus-5-5', base_url='https://api.anthropic.com')",
    ]


async def test_the_key_of_the_environment_goes_to_the_provider_only(
    endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    await MessagesSummarizer("m", base_url=base_of(endpoint)).write(ASK)
    await ResponsesSummarizer(endpoint.url, "m").write(ASK)

    assert all("secret" not in str(request.headers) for request in endpoint.requests)


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({"type": "response.refusal.done"}, "the model declined"),
        ({"type": "error", "message": "out of order"}, "out of order"),
        ({"type": "response.failed", "response": {"status": "failed", "error": {"message": "it broke"}}}, "it broke"),
        (
            {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "content_filter"}}},
            "content filter",
        ),
    ],
    ids=["refusal", "error", "failed", "filtered"],
)
async def test_a_response_that_ends_without_an_answer_is_a_refusal_that_says_why(
    event: dict[str, object], problem: str
) -> None:
    async with ScriptedEndpoint([stream_response(sse_event(event))] * 9) as failing:
        with pytest.raises(ModelRefusedError, match=problem):
            await ResponsesSummarizer(failing.url, "m").write(ASK)


async def test_parts_of_a_message_that_are_no_text_are_left_out_of_a_summary() -> None:
    thought = {"type": "thinking", "thinking": "hm"}
    events = (
        {"type": "message_start", "message": {"id": "msg_1", "model": "served", "usage": None}},
        {"type": "content_block_start", "index": 0, "content_block": thought},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_start", "index": 1, "content_block": None},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": SUMMARY}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 40}},
        {"type": "message_stop"},
    )
    async with ScriptedEndpoint([stream_response(*map(sse_event, events))]) as endpoint:
        reply = await MessagesSummarizer("m", base_url=base_of(endpoint)).write(ASK)

    assert reply.text == SUMMARY


@pytest.mark.parametrize(
    ("usage", "billed"),
    [
        (
            {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 90, "cache_write_tokens": 5}},
            Usage(input_tokens=10, cache_read_tokens=90, cache_write_tokens=5),
        ),
        ({"input_tokens": "many"}, None),
    ],
)
async def test_a_bill_of_responses_is_read_as_every_other_one(usage: dict[str, object], billed: Usage | None) -> None:
    def answer(_: ReceivedRequest) -> list[ResponsePiece]:
        response = {"id": "resp_1", "model": "served", "status": "completed", "usage": usage}
        return stream_response(
            sse_event({"type": "response.output_text.delta", "delta": "Done."}),
            sse_event({"type": "response.completed", "response": response}),
        )

    async with ScriptedEndpoint(answer) as made:
        reply = await ResponsesSummarizer(made.url, "gpt-5", api_key="key").write(ASK)

    assert (reply.text, reply.usage) == ("Done.", billed)


async def test_what_anthropic_wrote_to_its_cache_by_lifetime_is_billed() -> None:
    usage = {"input_tokens": 10, "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}}

    def answer(_: ReceivedRequest) -> list[ResponsePiece]:
        return stream_response(
            sse_event({"type": "message_start", "message": {"id": "msg_1", "model": "served", "usage": usage}}),
            sse_event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Done."}}),
            sse_event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}),
            sse_event({"type": "message_stop"}),
        )

    async with ScriptedEndpoint(answer) as made:
        reply = await MessagesSummarizer("claude-opus-5-5", base_url=base_of(made), api_key="key").write(ASK)

    assert reply.usage == Usage(input_tokens=10, output_tokens=2, cache_write_tokens=7)
