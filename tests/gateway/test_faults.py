"""Whatever happens to an answer, at whatever byte: a client behind the gateway sees what it would see without it."""

import asyncio
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing.upstream import AnswerFault, AnswerFraming, FaultyAnswer, FaultyUpstream
from tests.gateway.serving import RawClient, Seen, ask, running_gateway

STREAM_HEADERS = (("content-type", "text/event-stream"), ("x-request-id", "req_1"), ("cache-control", "no-cache"))
JSON_HEADERS = (("content-type", "application/json"), ("x-request-id", "req_1"), ("x-odd", "a, b"))


@dataclass(frozen=True)
class Call:
    """A request of one API, and the answers that its provider may give."""

    path: str
    body: bytes
    stream: Sequence[bytes]
    answer: bytes


def _body(**members: object) -> bytes:
    return json.dumps({"model": "gpt-5", **members}).encode()


def _events(*events: Mapping[str, object], named: bool = False, last: bytes = b"") -> list[bytes]:
    lines = [
        (b"event: %s\n" % str(one["type"]).encode() if named else b"") + b"data: " + json.dumps(one).encode() + b"\n\n"
        for one in events
    ]
    return [*lines, last] if last else lines


SAID = [{"role": "user", "content": "hello"}]
CHAT_ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [{"type": "text", "text": "Hi"}]}
RESPONSE = {
    "id": "r", "object": "response", "status": "completed",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}],
}  # fmt: skip
GEMINI = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}
CALLS = {
    "openai-chat": Call(
        "/v1/chat/completions",
        _body(messages=SAID, stream=True),
        _events(
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "H[DONE]"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {"content": "i"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            last=b"data: [DONE]\n\n",
        ),
        json.dumps(CHAT_ANSWER).encode(),
    ),
    "openai-responses": Call(
        "/v1/responses",
        _body(input="hello", stream=True),
        _events(
            {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
            {"type": "response.output_text.delta", "delta": "Hi", "output_index": 0, "content_index": 0},
            {"type": "response.completed", "response": RESPONSE},
            named=True,
        ),
        json.dumps(RESPONSE).encode(),
    ),
    "anthropic": Call(
        "/v1/messages?beta=true",
        _body(messages=SAID, max_tokens=10, stream=True),
        _events(
            {"type": "message_start", "message": {**MESSAGE, "content": []}},
            {"type": "ping"},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
            named=True,
        ),
        json.dumps(MESSAGE).encode(),
    ),
    "gemini": Call(
        "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse",
        _body(contents=[{"role": "user", "parts": [{"text": "hello"}]}]),
        _events({"candidates": [{"content": {"role": "model", "parts": [{"text": "H"}]}}]}, GEMINI),
        json.dumps(GEMINI).encode(),
    ),
}
FAILED_EVENTS = {
    "openai-chat": b'data: {"error": {"message": "overloaded", "code": 529}}\n\n',
    "openai-responses": b'event: error\ndata: {"type": "error", "message": "overloaded"}\n\n',
    "anthropic": b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\n',
    "gemini": b'data: {"error": {"code": 503, "status": "UNAVAILABLE"}}\n\n',
}
ERRORS = [
    (400, b'{"type":"error","error":{"type":"invalid_request_error","message":"odd \xc3\xa9"} }'),
    (429, b'{"error":{"message":"slow"}}'),
    (500, b"<html>oops</html>"),
    (529, b'{"type":"error","error":{"type":"overloaded_error"}}'),
]


@st.composite
def bodies(draw: st.DrawFn, wire: str) -> tuple[int, Sequence[tuple[str, str]], Sequence[bytes]]:
    """Return status, headers and body of an answer: a stream, JSON, an error, nothing, or what no client expects."""
    call = CALLS[wire]
    kind = draw(st.sampled_from(["stream", "json", "error", "empty", "failed", "invalid"]))
    if kind == "error":
        status, body = draw(st.sampled_from(ERRORS))
        return status, (("content-type", "application/json"), ("retry-after", "7"), ("x-should-retry", "true")), [body]
    if kind == "json":
        return 200, JSON_HEADERS, [call.answer]
    if kind == "empty":
        return 200, draw(st.sampled_from([STREAM_HEADERS, JSON_HEADERS])), []
    events = list(call.stream)
    place = draw(st.integers(0, len(events) - 1))
    if kind == "failed":
        events[place:] = [FAILED_EVENTS[wire]]
    elif kind == "invalid":
        events.insert(place, draw(st.sampled_from([b"data: {not json\n\n", b"\xff\xfe\n\n", b": comment\n\n", b"\n"])))
    return 200, STREAM_HEADERS, events


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, FaultyAnswer]:
    """Return an API, and an answer that breaks somewhere."""
    wire = draw(st.sampled_from(sorted(CALLS)))
    status, headers, pieces = draw(bodies(wire))
    framings: list[AnswerFraming] = ["length", "chunked", "close"]
    faults: list[AnswerFault] = ["none", "close", "reset"]
    whole = FaultyAnswer(status=status, headers=headers, pieces=pieces, framing=draw(st.sampled_from(framings)))
    size = sum(map(len, whole.encoded()))
    return wire, replace(whole, fault=draw(st.sampled_from(faults)), at=draw(st.integers(0, size)))


@dataclass
class Running:
    """An upstream, and a gateway in front of it, on an event loop of their own."""

    runner: asyncio.Runner
    upstream: FaultyUpstream
    gateway: str


@pytest.fixture(scope="module")
def running() -> Generator[Running]:
    stack, upstream = AsyncExitStack(), FaultyUpstream()

    async def start() -> str:
        await stack.enter_async_context(upstream)
        return await stack.enter_async_context(running_gateway(upstream.url))

    with asyncio.Runner() as runner:
        yield Running(runner, upstream, runner.run(start()))
        runner.run(stack.aclose())


def is_gateway_error(wire: str, seen: Seen) -> bool:
    """Return whether the gateway says, in the words of the API, that it got no answer."""
    if seen.status != 502 or not seen.is_whole:
        return False
    error = json.loads(seen.body)
    is_clear = any(words in error["error"]["message"] for words in ("closed the connection", "did not answer in HTTP"))
    return is_clear and (wire == "anthropic") == (error.get("type") == "error")


def is_what_a_client_sees(wire: str, answer: FaultyAnswer, direct: Seen, seen: Seen) -> bool:
    if direct.status is None and is_gateway_error(wire, seen):
        return True
    same = (direct.status, direct.provider_headers, direct.body, direct.is_whole)
    if same == (seen.status, seen.provider_headers, seen.body, seen.is_whole):
        return True
    # A reset may overtake what was sent before it, on either way.
    is_beginning = seen.status == answer.status and b"".join(answer.pieces).startswith(seen.body)
    return answer.fault == "reset" and (is_gateway_error(wire, seen) or is_beginning)


@given(case=cases())
def test_a_client_sees_what_it_would_see_without_the_gateway(running: Running, case: tuple[str, FaultyAnswer]) -> None:
    wire, running.upstream.answer = case
    call = CALLS[wire]

    async def both() -> tuple[Seen, Seen]:
        direct = await ask(running.upstream.url, path=call.path, body=call.body)
        return direct, await ask(running.gateway, path=call.path, body=call.body)

    direct, seen = running.runner.run(both())

    assert is_what_a_client_sees(wire, case[1], direct, seen), (direct, seen)


@given(wire=st.sampled_from(sorted(CALLS)), data=st.data())
def test_a_stalled_answer_passes_every_event_that_came_and_ends_when_the_client_leaves(
    running: Running, wire: str, data: st.DataObject
) -> None:
    call, upstream = CALLS[wire], running.upstream
    events = [one for one in call.stream[:-1] if one]
    passed = events[: data.draw(st.integers(1, len(events)))]
    head = len(FaultyAnswer(headers=STREAM_HEADERS, framing="close").encoded()[0])
    stalled = FaultyAnswer(
        headers=STREAM_HEADERS, pieces=call.stream, framing="close", fault="stall", at=head + sum(map(len, passed))
    )

    async def hang_up() -> bytes:
        upstream.answer = stalled
        upstream.client_left.clear()
        client = RawClient(running.gateway)
        await client.send("POST", call.path, call.body)
        seen = await client.read(until=b"".join(passed))
        client.leave()
        await asyncio.wait_for(upstream.client_left.wait(), 60)
        return seen.body

    assert running.runner.run(hang_up()) == b"".join(passed)


@pytest.mark.parametrize("wire", sorted(CALLS))
def test_the_last_event_passes_even_if_the_provider_keeps_the_connection(running: Running, wire: str) -> None:
    call, upstream = CALLS[wire], running.upstream
    whole = FaultyAnswer(headers=STREAM_HEADERS, pieces=call.stream, framing="chunked")
    size = sum(map(len, whole.encoded()[:-1]))

    async def read() -> bytes:
        upstream.answer = replace(whole, fault="stall", at=size)
        client = RawClient(running.gateway)
        await client.send("POST", call.path, call.body)
        seen = await client.read(until=call.stream[-1])
        client.leave()
        return seen.body

    assert running.runner.run(read()) == b"".join(call.stream)


@pytest.mark.parametrize(
    "body", [b'{"model": "gpt-5", "messages": [', b"", b"\xff", b"[]", b'{"messages": 3}', b"null"]
)
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "multipart/form-data"])
def test_a_malformed_request_reaches_the_provider_as_it_came(running: Running, body: bytes, content_type: str) -> None:
    refusal = FaultyAnswer(status=400, pieces=[b'{"error":{"message":"bad"}}'])

    async def send() -> Seen:
        running.upstream.answer = refusal
        return await ask(running.gateway, body=body, content_type=content_type)

    seen = running.runner.run(send())

    assert (seen.status, seen.body) == (400, b'{"error":{"message":"bad"}}')
    assert running.upstream.requests[-1].body == body
    assert running.upstream.requests[-1].header("content-type") == content_type
    assert "not recorded" in (seen.header("x-holdfast-error") or "")


def test_two_requests_of_one_session_at_once_get_their_own_answers(running: Running) -> None:
    async def both() -> list[Seen]:
        running.upstream.answer = FaultyAnswer(pieces=[CALLS["openai-chat"].answer])
        bodies = [_body(messages=[{"role": "user", "content": text}]) for text in ("one", "two", "three")]
        return await asyncio.gather(*(ask(running.gateway, body=body, x_holdfast_session="s") for body in bodies))

    answers = running.runner.run(both())

    assert [(one.status, one.body) for one in answers] == [(200, CALLS["openai-chat"].answer)] * 3
