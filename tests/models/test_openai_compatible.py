"""What a chat endpoint can do to a client, over a real connection."""

import asyncio
import json
import socket
from collections.abc import Sequence

import pytest

from holdfast.core.history.events import Usage
from holdfast.errors import (
    HoldfastError,
    ModelAccessError,
    ModelBusyError,
    ModelOverflowError,
    ModelRefusedError,
    ModelUnreachableError,
    SettingsError,
)
from holdfast.models.base import CachedPrefix, ModelReply, SummaryPrompt, supports_prefix
from holdfast.models.openai_compatible import ChatSummarizer
from holdfast.testing.chat import system_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.endpoint import (
    ResponsePiece,
    ScriptedEndpoint,
    http_response,
    sse_event,
    stream_response,
    text_chunk,
)
from tests.support import closed_port

KEY = "a-key-that-has-no-known-shape"
ASK = SummaryPrompt(system="Be brief.", text="Tell me of the sea.", max_output_tokens=50)
DONE = sse_event("[DONE]")
USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}}


async def written(reply: Sequence[ResponsePiece], ask: SummaryPrompt = ASK) -> ModelReply:
    async with ScriptedEndpoint([reply]) as endpoint:
        return await ChatSummarizer(endpoint.url, "m", api_key=KEY).write(ask)


async def failure(reply: Sequence[ResponsePiece]) -> HoldfastError:
    with pytest.raises(HoldfastError) as raised:
        await written(reply)
    return raised.value


@pytest.mark.seed("C-12")
async def test_the_request_has_the_ask_and_says_what_it_is_for() -> None:
    async with ScriptedEndpoint([stream_response(text_chunk("ok", "stop"), DONE)]) as endpoint:
        writer = ChatSummarizer(
            endpoint.url + "/", "m", api_key=KEY, options={"temperature": 0}, headers={"X-Team": "a"}
        )
        await writer.write(ASK)
    (request,) = endpoint.requests

    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    assert {name: request.headers[name] for name in ("x-interaction-type", "authorization", "x-team")} == {
        "x-interaction-type": "conversation-compaction",
        "authorization": f"Bearer {KEY}",
        "x-team": "a",
    }
    assert request.body == {
        "temperature": 0,
        "model": "m",
        "messages": [system_message("Be brief."), user_message("Tell me of the sea.")],
        "max_tokens": 50,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_an_answer_is_put_together_from_its_stream() -> None:
    answer = await written(
        stream_response(
            ": ping\n\n",
            sse_event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}], "usage": None}),
            text_chunk("Water, "),
            text_chunk("salt."),
            text_chunk(finish="stop"),
            sse_event({"id": "chatcmpl-7", "model": "served", "choices": [], "usage": USAGE}),
            DONE,
        )
    )

    assert answer == ModelReply(
        text="Water, salt.",
        model="served",
        usage=Usage(input_tokens=40, output_tokens=7, cache_read_tokens=60),
        is_cut_off=False,
        request_id="chatcmpl-7",
    )


async def test_an_answer_stopped_by_the_output_limit_is_cut_off() -> None:
    answer = await written(stream_response(text_chunk("Water and"), text_chunk(finish="length"), DONE))

    assert answer == ModelReply(text="Water and", model="served", is_cut_off=True)


async def test_an_empty_answer_is_an_answer() -> None:
    answer = await written(stream_response(text_chunk(finish="stop"), DONE))

    assert answer == ModelReply(text="", model="served")


async def test_a_stream_may_break_its_pieces_anywhere() -> None:
    whole = (text_chunk("日本") + text_chunk("語", "stop") + DONE).encode()

    answer = await written(stream_response(*(whole[place : place + 1] for place in range(len(whole)))))

    assert answer.text == "日本語"


async def test_line_ends_of_unicode_stay_inside_a_text() -> None:
    text = "one\u2028two\u0085three\x0bfour\x1cfive"

    answer = await written(stream_response(text_chunk(text, "stop"), DONE))

    assert answer.text == text


@pytest.mark.parametrize(
    "lines",
    [
        'data: {"choices": [{"delta": {"content": "ok"},\ndata: "finish_reason": "stop"}]}\n\n',
        'data:{"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}\r\n\r\n',
        'id: 1\nevent: message\ndata: {"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}]}',
        'data: {"choices":[{"delta":{"content":[{"type":"text","text":"ok"}]},"finish_reason":"stop"}]}\n\n',
    ],
    ids=["two lines of data", "carriage returns", "no blank line at the end", "content in blocks"],
)
async def test_every_way_to_write_an_event_is_read(lines: str) -> None:
    assert (await written(stream_response(lines))).text == "ok"


async def test_a_reply_of_a_server_that_does_not_stream_is_read_too() -> None:
    whole = {"model": "served", "choices": [{"message": {"content": "ok"}, "finish_reason": "length"}], "usage": USAGE}

    answer = await written(http_response(200, whole))

    assert answer == ModelReply(
        text="ok", model="served", usage=Usage(input_tokens=40, output_tokens=7, cache_read_tokens=60), is_cut_off=True
    )


async def test_a_connection_lost_after_the_finish_reason_costs_nothing() -> None:
    answer = await written(stream_response(text_chunk("ok", "stop"), is_cut=True))

    assert answer.text == "ok"


async def test_a_model_that_does_not_stop_is_stopped() -> None:
    endless = text_chunk("word " * 2_000)

    answer = await written(stream_response(*([endless] * 10), None))

    assert (answer.is_cut_off, 65_536 < len(answer.text) <= 80_000) == (True, True)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (stream_response(text_chunk("Water and")), "the stream was cut after 9 characters"),
        (stream_response(text_chunk("Water and"), 'data: {"choi'), "the stream was cut inside an event: '{\"choi'"),
        (
            stream_response(text_chunk("Water and"), is_cut=True),
            "peer closed connection without sending complete message body (incomplete chunked read)",
        ),
        ([], "Server disconnected without sending a response."),
    ],
    ids=["between events", "inside an event", "inside the transfer", "before the answer"],
)
async def test_a_stream_that_is_cut_is_an_error(reply: Sequence[ResponsePiece], problem: str) -> None:
    error = await failure(reply)

    assert (type(error), getattr(error, "problem", "")) == (ModelUnreachableError, problem)


@pytest.mark.parametrize(
    "reply",
    [
        stream_response(),
        stream_response(DONE),
        stream_response(": ping\n\n"),
        stream_response(sse_event({"choices": []}), DONE),
    ],
    ids=["nothing", "only the end", "only a ping", "no choice"],
)
async def test_a_stream_without_an_answer_is_a_refusal(reply: Sequence[ResponsePiece]) -> None:
    error = await failure(reply)

    assert str(error) == (
        "m: the stream ended without an event; send less (some servers answer like this when a request is too long), "
        "or choose another model"
    )


EXCEEDED = {
    "error": {
        "code": 400,
        "message": "request (1739 tokens) exceeds the available context size (1024 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 1739,
        "n_ctx": 1024,
    }
}


@pytest.mark.parametrize(
    "reply",
    [
        http_response(400, EXCEEDED),
        http_response(200, EXCEEDED),
        stream_response(sse_event(EXCEEDED)),
        stream_response(f"event: error\n{sse_event(EXCEEDED['error'])}"),
        stream_response("error: " + sse_event(EXCEEDED).removeprefix("data: ")),
    ],
    ids=["refused", "under 200", "in the stream", "as an error event", "as an error line"],
)
async def test_a_request_that_is_too_long_raises_an_error_with_the_limit(reply: Sequence[ResponsePiece]) -> None:
    error = await failure(reply)

    assert isinstance(error, ModelOverflowError)
    assert (error.model, error.limit, error.size) == ("m", 1_024, 1_739)


async def test_a_window_exceeded_in_mid_answer_is_an_overflow() -> None:
    error = await failure(stream_response(text_chunk("Wat"), text_chunk(finish="model_context_window_exceeded"), DONE))

    assert type(error) is ModelOverflowError


async def test_a_busy_provider_says_when_to_come_back() -> None:
    error = await failure(
        http_response(429, {"error": {"message": "Rate limit reached"}}, headers={"Retry-After": "12"})
    )

    assert isinstance(error, ModelBusyError)
    assert error.retry_after == 12.0


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (http_response(500, "<html>oops</html>"), 500),
        (http_response(404, {"error": {"message": "no such model"}}), 404),
        (http_response(301, "", headers={"Location": "http://127.0.0.1:1/"}), 301),
        (stream_response(text_chunk("I"), text_chunk(finish="content_filter"), DONE), 200),
        (stream_response(sse_event({"choices": [{"delta": {"refusal": "I will not"}}]}), DONE), 200),
        (stream_response(sse_event("[1, 2]")), 200),
        (stream_response("event: error\ndata: out of luck\n\n"), 200),
    ],
    ids=["server", "no model", "redirect", "filter", "declined", "no object", "words"],
)
async def test_any_other_answer_is_a_refusal(reply: Sequence[ResponsePiece], status: int) -> None:
    error = await failure(reply)

    assert isinstance(error, ModelRefusedError)
    assert error.status == status


async def test_a_key_that_the_provider_repeats_is_in_no_error() -> None:
    error = await failure(http_response(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}))

    assert type(error) is ModelAccessError
    assert str(error) == (
        "m: Incorrect API key provided: [redacted]; check the API key, and that it may use this model"
    )
    assert KEY not in repr(ChatSummarizer("http://127.0.0.1/v1", "m", api_key=KEY))


async def test_a_closed_port_is_unreachable() -> None:
    with closed_port() as port, pytest.raises(ModelUnreachableError, match="All connection attempts failed"):
        await ChatSummarizer(f"http://127.0.0.1:{port}/v1", "m").write(ASK)


async def test_a_silence_that_is_too_long_is_unreachable() -> None:
    async with ScriptedEndpoint([stream_response(text_chunk("Wat"), None)]) as endpoint:
        with pytest.raises(ModelUnreachableError, match="ReadTimeout"):
            await ChatSummarizer(endpoint.url, "m", idle_seconds=0.05).write(ASK)


async def test_a_proxy_is_not_asked_for_what_is_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    assert (await written(stream_response(text_chunk("ok", "stop"), DONE))).text == "ok"


async def test_cancelling_closes_the_connection() -> None:
    async with ScriptedEndpoint([stream_response(text_chunk("Wat"), None)]) as endpoint:
        task = asyncio.create_task(ChatSummarizer(endpoint.url, "m").write(ASK))
        await endpoint.request_received.wait()
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(endpoint.client_left.wait(), timeout=60)


TOOL = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("system", "first"),
    [
        (None, []),
        ("Be good.", [system_message("Be good.")]),
        ({"role": "developer", "content": "Be good."}, [{"role": "developer", "content": "Be good."}]),
        (
            [system_message("Be good."), system_message("Be quick.")],
            [system_message("Be good."), system_message("Be quick.")],
        ),
    ],
)
async def test_after_a_conversation_the_prompt_comes_last_and_no_tool_may_run(
    system: object, first: list[dict[str, object]]
) -> None:
    messages = [user_message("Look."), tool_call_message("a"), tool_result_message("a", "found")]
    ask = SummaryPrompt(
        system="Summarise.",
        text="What was said?",
        max_output_tokens=9,
        prefix=CachedPrefix(format="openai-chat", messages=messages, system=system, tools=[TOOL]),
    )
    async with ScriptedEndpoint([stream_response(text_chunk("ok", "stop"), DONE)]) as endpoint:
        await ChatSummarizer(endpoint.url, "m", output_field="max_completion_tokens").write(ask)
    (request,) = endpoint.requests

    # As text, since a provider's cache sees the order of the keys too.
    assert json.dumps(request.body) == json.dumps(
        {
            "model": "m",
            "messages": [*first, *messages, user_message("Summarise.\n\nWhat was said?")],
            "tools": [TOOL],
            "tool_choice": "none",
            "max_completion_tokens": 9,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def test_the_output_limit_has_the_name_that_the_address_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup, bodies = socket.getaddrinfo, list[object]()

    def find_here(host: object, port: object, *args: object, **options: object) -> object:
        here = "127.0.0.1" if host in {"api.openai.com", b"api.openai.com"} else host
        return lookup(here, port, *args, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(socket, "getaddrinfo", find_here)
    for host in ("127.0.0.1", "api.openai.com"):
        async with ScriptedEndpoint([stream_response(text_chunk("ok", "stop"), DONE)]) as endpoint:
            url = endpoint.url.replace("127.0.0.1", host)
            await ChatSummarizer(url, "m").write(SummaryPrompt(system="", text="What?", max_output_tokens=9))
        bodies += [request.body for request in endpoint.requests]

    rest = {
        "model": "m",
        "messages": [user_message("What?")],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # OpenAI's newer models refuse `max_tokens`, and many other servers do not know its new name.
    assert bodies == [{**rest, "max_tokens": 9}, {**rest, "max_completion_tokens": 9}]


async def test_a_conversation_of_another_format_is_left_aside() -> None:
    prefix = CachedPrefix(format="anthropic-messages", messages=[user_message("Look.")], tools=[TOOL])
    ask = SummaryPrompt(system="", text="What was said?", max_output_tokens=9, prefix=prefix)
    async with ScriptedEndpoint([stream_response(text_chunk("ok", "stop"), DONE)]) as endpoint:
        writer = ChatSummarizer(endpoint.url, "m")
        await writer.write(ask)
    (request,) = endpoint.requests

    assert (request.body["messages"], "tools" in request.body, "tool_choice" in request.body) == (
        [user_message("What was said?")],
        False,
        False,
    )
    assert [supports_prefix(writer, name) for name in ("openai-chat", "anthropic-messages")] == [True, False]


@pytest.mark.parametrize(
    ("url", "model", "key", "setting"),
    [
        ("localhost:8080", "m", None, "base_url"),
        ("file:///etc/passwd", "m", None, "base_url"),
        ("http://127.0.0.1/v1", "", None, "model"),
        ("http://127.0.0.1/v1", "m", "two\nlines", "api_key"),
        ("http://127.0.0.1/v1", "m", "smart“quotes”", "api_key"),
    ],
)
def test_settings_that_cannot_work_are_named(url: str, model: str, key: str | None, setting: str) -> None:
    with pytest.raises(SettingsError) as raised:
        ChatSummarizer(url, model, api_key=key)

    assert raised.value.setting == setting
    assert not key or key not in str(raised.value)
