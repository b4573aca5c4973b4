"""What the gateway does with one request, from its first byte to the last of its answer."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.apps.gateway.access import Access
from holdfast.apps.gateway.app import close_gateway, gateway_app
from holdfast.apps.gateway.exchange import RelaySettings
from holdfast.apps.gateway.telemetry.tracing import ExchangeTracer
from holdfast.apps.gateway.upstream import PhaseTimeouts
from holdfast.errors import StoreUnavailableError
from holdfast.session.compaction.telemetry import flush_spans
from holdfast.stores.memory import MemoryStore
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.gateway.serving import RawClient, Seen, ask, running_gateway, served

CHAT = b'{ "model":"gpt-5","messages":[{"role":"user","content":"caf\\u00e9"}],"x":1.0e0 }\n'
ANSWER = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}
).encode()
STREAM = (("content-type", "text/event-stream"),)
SSE = [
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
]


def error_of(seen: Seen) -> str:
    return json.loads(seen.body)["error"]["message"]


TOKEN = "t0ken"
CONTROL = {"access": Access(control_token=TOKEN)}


async def said(url: str, session: str) -> list[object]:
    """Return the texts of a session, as the control API tells them."""
    seen = await ask(url, "GET", f"/holdfast/v1/sessions/{session}/messages", authorization=f"Bearer {TOKEN}")
    return [one["message"]["content"] for one in json.loads(seen.body)["messages"]]


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstandard.ZstdCompressor().compress)],
)
async def test_a_compressed_body_travels_as_it_came_and_is_recorded(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream, running_gateway(upstream.url) as url:
        body = compress(CHAT)
        seen = await ask(url, body=body, content_encoding=encoding, x_holdfast_session="s")

        assert (upstream.requests[0].body, upstream.requests[0].header("content-encoding")) == (body, encoding)
        assert (seen.status, seen.header("x-holdfast-session"), seen.header("x-holdfast-error")) == (200, "s", None)


@pytest.mark.parametrize(
    "body", [b"not gzip at all", gzip.compress(CHAT, mtime=0)[:-9], b""], ids=["other", "cut", "none"]
)
async def test_a_body_that_cannot_be_opened_is_forwarded_and_says_so(body: bytes) -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream, running_gateway(upstream.url) as url:
        seen = await ask(url, body=body, content_encoding="gzip")

        assert (seen.status, seen.body, upstream.requests[0].body) == (200, ANSWER, body)
        assert bool(body) == ("not recorded" in (seen.header("x-holdfast-error") or ""))


@pytest.mark.parametrize("encoding", ["gzip", "zstd", ""])
async def test_a_body_above_the_limit_is_refused_however_small_it_was_compressed(encoding: str) -> None:
    bomb = b'{"messages": "' + b" " * 3_000_000 + b'"}'
    compress = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress, "": bytes}[encoding]
    settings = RelaySettings(max_body_bytes=1_000_000)
    async with FaultyUpstream() as upstream, running_gateway(upstream.url, settings=settings) as url:
        headers = {"content_encoding": encoding} if encoding else {}
        seen = await ask(url, path="/v1/messages", body=compress(bomb), **headers)

        assert seen.status == 413
        assert json.loads(seen.body)["error"]["type"] == "request_too_large"
        assert upstream.requests == []


async def test_headers_travel_except_those_about_a_connection_and_our_own() -> None:
    answer = FaultyAnswer(
        headers=(("content-type", "application/json"), ("anthropic-ratelimit-unified-status", "ok"),
                 ("set-cookie", "a=1"), ("set-cookie", "b=2"), ("keep-alive", "timeout=5")),
        pieces=[ANSWER],
    )  # fmt: skip
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url) as url:
        seen = await ask(
            url, body=CHAT, authorization="Bearer k", anthropic_beta="made-up", x_unknown="1", te="trailers",
            connection="x-hop", x_hop="1", x_holdfast_session="s", accept_encoding="br, gzip;q=0.5",
        )  # fmt: skip
        got = dict(upstream.requests[0].headers)

    assert seen.provider_headers == [
        ("anthropic-ratelimit-unified-status", "ok"),
        ("content-type", "application/json"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
    ]
    assert got == {
        "host": upstream.url.removeprefix("http://"),
        "content-type": "application/json",
        "content-length": str(len(CHAT)),
        "authorization": "Bearer k",
        "anthropic-beta": "made-up",
        "x-unknown": "1",
        "accept-encoding": "gzip;q=0.5",
    }


async def test_a_compressed_stream_passes_as_it_came_and_is_recorded() -> None:
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(one) + packer.flush(zlib.Z_SYNC_FLUSH) for one in SSE]
    answer = FaultyAnswer(
        headers=(*STREAM, ("content-encoding", "gzip")), pieces=[*pieces, packer.flush()], framing="chunked"
    )
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url, **CONTROL) as url:
        seen = await ask(url, body=CHAT, x_holdfast_session="s")

        assert gzip.decompress(seen.body) == b"".join(SSE)
        assert await said(url, "s") == ["café", "Hi"]


async def test_an_answer_is_stored_before_its_last_event_is_passed_on() -> None:
    whole = FaultyAnswer(headers=STREAM, pieces=SSE, framing="chunked")
    size = sum(map(len, whole.encoded()[:-1]))
    stalled = FaultyAnswer(headers=STREAM, pieces=SSE, framing="chunked", fault="stall", at=size)
    async with FaultyUpstream(stalled) as upstream, running_gateway(upstream.url, **CONTROL) as url:
        client = RawClient(url)
        await client.send("POST", "/v1/chat/completions", CHAT, {"x-holdfast-session": "s"})
        await client.read(until=b"[DONE]")

        assert await said(url, "s") == ["café", "Hi"]
        client.leave()


async def test_a_prompt_is_stored_before_the_provider_is_called() -> None:
    async with FaultyUpstream(FaultyAnswer(fault="stall")) as upstream, running_gateway(upstream.url, **CONTROL) as url:
        client = RawClient(url)
        await client.send("POST", "/v1/chat/completions", CHAT, {"x-holdfast-session": "s"})
        await upstream.request_received.wait()

        assert await said(url, "s") == ["café"]
        client.leave()
        await asyncio.wait_for(upstream.client_left.wait(), 10)


async def test_an_answer_that_was_cut_is_on_record_as_far_as_it_came() -> None:
    whole = FaultyAnswer(headers=STREAM, pieces=SSE, framing="chunked")
    cut = FaultyAnswer(
        headers=STREAM, pieces=SSE, framing="chunked", fault="close", at=sum(map(len, whole.encoded()[:2]))
    )
    async with FaultyUpstream(cut) as upstream, running_gateway(upstream.url, **CONTROL) as url:
        seen = await ask(url, body=CHAT, x_holdfast_session="s")

        assert (seen.body, seen.is_whole) == (SSE[0], False)
        assert await said(url, "s") == ["café", "Hi"]
        assert 'holdfast_gateway_answers_total{ended="cut"} 1.0' in (await ask(url, "GET", "/metrics")).body.decode()


@pytest.mark.parametrize(
    ("path", "ping"),
    [("/v1/chat/completions", b": ping\n\n"), ("/v1/messages", b'event: ping\ndata: {"type": "ping"}\n\n')],
)
async def test_silence_between_events_is_filled_with_pings(path: str, ping: bytes) -> None:
    at = len(FaultyAnswer(headers=STREAM, framing="chunked").encoded()[0]) + len(b"%x\r\n" % len(SSE[0])) + len(SSE[0])
    stalled = FaultyAnswer(headers=STREAM, pieces=SSE, framing="chunked", fault="stall", at=at)
    settings = RelaySettings(ping_seconds=0.02)
    async with FaultyUpstream(stalled) as upstream, running_gateway(upstream.url, settings=settings) as url:
        client = RawClient(url)
        await client.send("POST", path, CHAT)
        seen = await client.read(until=ping * 2)
        client.leave()

    assert seen.body.startswith(SSE[0] + ping * 2)


async def test_no_ping_interrupts_an_event() -> None:
    at = len(FaultyAnswer(headers=STREAM, framing="close").encoded()[0]) + len(SSE[0]) - 1
    stalled = FaultyAnswer(headers=STREAM, pieces=SSE, framing="close", fault="stall", at=at)
    timeouts = PhaseTimeouts(silence_seconds=0.2)
    async with (
        FaultyUpstream(stalled) as upstream,
        running_gateway(upstream.url, settings=RelaySettings(ping_seconds=0.02), timeouts=timeouts) as url,
    ):
        seen = await ask(url, body=CHAT)

    assert (seen.body, seen.is_whole) == (SSE[0][:-1], False)


async def test_a_provider_that_does_not_answer_in_time_is_a_gateway_timeout() -> None:
    timeouts = PhaseTimeouts(first_byte_seconds=0.05)
    async with (
        FaultyUpstream(FaultyAnswer(fault="stall")) as upstream,
        running_gateway(upstream.url, timeouts=timeouts) as url,
    ):
        seen = await ask(url, path="/v1/messages", body=CHAT)

        assert (seen.status, json.loads(seen.body)["error"]["type"]) == (504, "timeout_error")
        await asyncio.wait_for(upstream.client_left.wait(), 10)


async def test_a_connection_that_the_provider_closed_while_idle_is_made_again() -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream, running_gateway(upstream.url) as url:
        first = await ask(url, body=CHAT)
        await upstream.drop_connections()
        second = await ask(url, body=CHAT)

    assert [first.status, second.status] == [200, 200]
    assert (upstream.connections, len(upstream.requests)) == (2, 2)


async def test_a_request_that_the_provider_has_read_is_never_sent_twice() -> None:
    async with FaultyUpstream(FaultyAnswer(fault="close")) as upstream, running_gateway(upstream.url) as url:
        seen = await ask(url, body=CHAT)

    assert (seen.status, len(upstream.requests)) == (502, 1)


async def test_a_request_that_the_provider_has_read_on_a_used_connection_is_not_sent_twice_either() -> None:
    timeouts = PhaseTimeouts(stale_seconds=0.0)  # whatever time the provider takes, it had time to read
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream,
        running_gateway(upstream.url, timeouts=timeouts) as url,
    ):
        first = await ask(url, body=CHAT)
        upstream.answer = FaultyAnswer(fault="close")
        second = await ask(url, body=CHAT)

    assert [first.status, second.status] == [200, 502]
    assert (upstream.connections, len(upstream.requests)) == (1, 2)


async def test_unknown_paths_and_methods_pass_through() -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[b"{}"])) as upstream, running_gateway(upstream.url) as url:
        big = b"x" * 3_000_000
        lines = [
            await ask(url, "GET", "/v1/models?limit=1000", x_api_key="k"),
            await ask(url, "DELETE", "/v1/responses/resp_1"),
            await ask(url, "POST", "/v1/files%2Fodd/a", big),
            await ask(url, "PATCH", "/v1/made/up", b"1"),
            await ask(url, "HEAD", "/api/hello"),
        ]

    assert [one.status for one in lines] == [200] * 5
    assert lines[-1].header("content-length") == "2"
    assert [(one.line, len(one.body)) for one in upstream.requests] == [
        ("GET /v1/models?limit=1000 HTTP/1.1", 0),
        ("DELETE /v1/responses/resp_1 HTTP/1.1", 0),
        ("POST /v1/files%2Fodd/a HTTP/1.1", len(big)),
        ("PATCH /v1/made/up HTTP/1.1", 1),
        ("HEAD /v1/api/hello HTTP/1.1", 0),
    ]


async def test_a_store_that_fails_does_not_stop_the_request_and_a_header_says_so(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/folder/chats.db"
    (tmp_path / "folder").write_text("a file where the folder should be")
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream,
        running_gateway(upstream.url, store=store) as url,
    ):
        seen = await ask(url, body=CHAT)
        metrics = (await ask(url, "GET", "/metrics")).body.decode()
        health = [(await ask(url, "GET", path)).status for path in ("/health", "/livez", "/readyz")]

    assert health == [200, 200, 503]
    assert (seen.status, seen.body, upstream.requests[0].body) == (200, ANSWER, CHAT)
    assert (seen.header("x-holdfast-error") or "").startswith("not recorded: ")
    assert 'holdfast_gateway_recording_failures_total{stage="request"} 1.0' in metrics


class FullStore(MemoryStore):
    """A store whose disk has room for one more append."""

    def __init__(self) -> None:
        super().__init__()
        self.appends = 0

    async def append(self, *args: Any, **kwargs: Any) -> int:
        self.appends += 1
        if self.appends > 1:
            raise StoreUnavailableError("memory", "the disk is full")
        return await super().append(*args, **kwargs)


@pytest.mark.parametrize("is_strict", [False, True])
async def test_an_answer_that_cannot_be_stored_passes_unless_the_gateway_is_strict(*, is_strict: bool) -> None:
    answer = FaultyAnswer(headers=STREAM, pieces=SSE, framing="chunked")
    options = {"store": FullStore(), "settings": RelaySettings(is_strict=is_strict)}
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url, **options) as url:
        seen = await ask(url, body=CHAT, x_holdfast_session="s")
        metrics = (await ask(url, "GET", "/metrics")).body.decode()

    assert (seen.status, seen.header("x-holdfast-session")) == (200, "s")
    assert (seen.body, seen.is_whole) == ((b"".join(SSE[:2]), False) if is_strict else (b"".join(SSE), True))
    assert 'holdfast_gateway_recording_failures_total{stage="answer"} 1.0' in metrics


async def test_a_strict_gateway_refuses_what_it_cannot_record(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/folder/chats.db"
    (tmp_path / "folder").write_text("a file where the folder should be")
    settings = RelaySettings(is_strict=True)
    async with FaultyUpstream() as upstream, running_gateway(upstream.url, store=store, settings=settings) as url:
        seen = await ask(url, path="/v1/messages", body=CHAT)

        assert (seen.status, upstream.requests) == (503, [])
        assert "could not be recorded" in json.loads(seen.body)["error"]["message"]


async def test_a_named_upstream_and_a_session_are_read_from_the_path() -> None:
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream,
        running_gateway("", upstreams={"local": f"{upstream.url}/api/v4"}, **CONTROL) as url,
    ):
        seen = await ask(url, path="/u/local/s/mine/v1/chat/completions", body=CHAT)
        unknown = await ask(url, path="/u/other/v1/messages", body=CHAT)
        messages = await said(url, "mine")

    assert (seen.status, seen.header("x-holdfast-session"), messages) == (200, "mine", ["café", "Hi"])
    assert upstream.requests[0].line == "POST /api/v4/chat/completions HTTP/1.1"
    assert (unknown.status, json.loads(unknown.body)["error"]["type"]) == (404, "not_found_error")


async def test_a_provider_that_cannot_be_reached_is_an_error_of_its_own_kind() -> None:
    async with FaultyUpstream() as upstream:
        gone = upstream.url
    timeouts = PhaseTimeouts(retries=0)
    async with running_gateway(gone, timeouts=timeouts) as url:
        chat = await ask(url, body=CHAT)
        messages = await ask(url, path="/v1/messages", body=CHAT)
        gemini = await ask(url, path="/v1beta/models/g:generateContent", body=CHAT)

    assert [one.status for one in (chat, messages, gemini)] == [502] * 3
    assert json.loads(chat.body)["error"]["type"] == "server_error"
    assert json.loads(messages.body)["error"]["type"] == "api_error"
    assert json.loads(gemini.body)["error"] == {
        "code": 502,
        "message": f"the gateway got no answer: {gone} cannot be reached: Connect call failed "
        f"('127.0.0.1', {gone.rpartition(':')[2]}); check --upstream and the network",
        "status": "INTERNAL",
    }


async def test_a_websocket_is_refused_so_that_the_client_goes_over_to_http() -> None:
    async with FaultyUpstream() as upstream, running_gateway(upstream.url) as url:
        seen = await ask(
            url, "GET", "/v1/responses", connection="Upgrade", upgrade="websocket",
            sec_websocket_version="13", sec_websocket_key="x",
        )  # fmt: skip

    assert (seen.status, error_of(seen)) == (426, "this gateway speaks HTTP only; send the request with POST")
    assert upstream.requests == []


async def test_it_mounts_in_another_program() -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream:
        gateway = gateway_app(upstreams={"openai": f"{upstream.url}/v1"})
        async with served(Starlette(routes=[Mount("/llm", gateway)])) as url:
            seen = await ask(url, path="/llm/v1/chat/completions", body=CHAT)
            health = await ask(url, "GET", "/llm/health")
            ready = await ask(url, "GET", "/llm/readyz")
        await close_gateway(gateway)

    assert (seen.status, seen.body, health.status, ready.status) == (200, ANSWER, 200, 200)
    assert upstream.requests[0].line == "POST /v1/chat/completions HTTP/1.1"


async def test_an_exchange_is_a_span_that_continues_the_clients_trace() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream,
        running_gateway(upstream.url, tracer=ExchangeTracer(provider)) as url,
    ):
        await ask(url, body=CHAT, traceparent=parent, x_holdfast_session="s")

    assert flush_spans()
    [span] = exporter.get_finished_spans()
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert (span.name, dict(span.attributes or {})) == (
        "POST openai-chat",
        {
            "http.request.method": "POST",
            "url.path": "/v1/chat/completions",
            "gen_ai.provider.name": "openai",
            "holdfast.upstream": "openai",
            "http.response.status_code": 200,
            "gen_ai.conversation.id": "s",
            "holdfast.answer": "complete",
        },
    )
    assert upstream.requests[0].header("traceparent") == parent


async def test_no_page_of_the_gateway_begins_like_a_path_of_a_provider() -> None:
    app = gateway_app()
    forwarding, *own, everything = app.routes
    paths = [str(getattr(route, "path", "")) for route in own]
    await close_gateway(app)

    assert (getattr(forwarding, "path", ""), getattr(everything, "path", "")) == ("/{path:provider}", "/{path:path}")
    assert [path for path in paths if path.startswith(("/v1", "/s/", "/u/", "/p/"))] == []
