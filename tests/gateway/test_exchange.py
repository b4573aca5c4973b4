"""What the gateway does with one request, from its first byte to the last of its answer."""

import asyncio
import errno
import gc
import gzip
import json
import os
import random
import zlib
from collections.abc import AsyncGenerator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import aiohappyeyeballs
import aiohttp
import httpx
import pytest
import zstandard
from aiohttp.base_protocol import BaseProtocol
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast import Session
from holdfast.apps.gateway import relay as relay_module
from holdfast.apps.gateway import upstream as upstream_module
from holdfast.apps.gateway.access import Access, KeyEntry, Keys, key_hash
from holdfast.apps.gateway.app import PROVIDER_PATHS, close_gateway, gateway_app
from holdfast.apps.gateway.recording.exchange import Exchange
from holdfast.apps.gateway.relay import (
    MAX_OVERFLOW_RETRIES,
    MAX_REFUSAL_BYTES,
    ClientConnection,
    RelaySettings,
)
from holdfast.apps.gateway.telemetry.tracing import ExchangeTracer
from holdfast.apps.gateway.upstream import PhaseTimeouts, next_chunk
from holdfast.errors import StoreUnavailableError
from holdfast.session.compaction.telemetry import flush_spans
from holdfast.session.conversation import Conversation
from holdfast.stores.base import JsonRecord, SessionInfo
from holdfast.stores.memory import MemoryStore
from holdfast.testing.endpoint import ScriptedEndpoint, http_response
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.gateway.serving import RawClient, Seen, ask, running_gateway, served
from tests.support import closed_port

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
        assert "not recorded" in (seen.header("x-holdfast-error") or "")


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/g:generateContent"]
)
async def test_an_empty_body_is_forwarded_and_the_answer_says_that_nothing_was_recorded(path: str) -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream, running_gateway(upstream.url) as url:
        seen = await ask(url, path=path)

        assert (seen.status, seen.body, upstream.requests[0].body) == (200, ANSWER, b"")
        assert seen.header("x-holdfast-error") == "not recorded: the body is empty"


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
        await asyncio.wait_for(upstream.client_left.wait(), 60)


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


async def test_an_event_has_ended_for_a_ping_although_the_empty_line_after_it_came_by_itself() -> None:
    is_seen = asyncio.Event()

    async def provider(_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": SSE[0] + SSE[1][:-1], "more_body": True})
        await is_seen.wait()
        await send({"type": "http.response.body", "body": b"\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    settings = RelaySettings(ping_seconds=0.02)
    async with served(provider) as upstream, running_gateway(upstream, settings=settings) as url:
        client = RawClient(url)
        await client.send("POST", "/v1/chat/completions", CHAT)
        await client.read(until=SSE[1][:-1])
        is_seen.set()
        await asyncio.wait_for(client.read_more(until=b": ping\n\n"), 60)
        client.leave()

    assert client.body.startswith(SSE[0] + SSE[1] + b": ping\n\n")


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
        while not upstream.request_received.is_set():  # on a busy machine, the time is over before it is connected
            seen = await ask(url, path="/v1/messages", body=CHAT)

        assert (seen.status, json.loads(seen.body)["error"]["type"]) == (504, "timeout_error")
        await asyncio.wait_for(upstream.client_left.wait(), 60)


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
    assert "holdfast_gateway_answers_total{" not in metrics  # which counts the answers on record


async def test_the_end_of_a_last_event_of_megabytes_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    item = {"type": "image_generation_call", "id": "i", "status": "completed", "result": "QUJD" * 500_000}
    response = {"id": "r", "object": "response", "status": "completed", "output": [item]}
    event = json.dumps({"type": "response.completed", "response": response}).encode()
    body = b"event: response.completed\ndata: %s\n\n" % event
    pieces = [body[start : start + 20_000] for start in range(0, len(body), 20_000)]
    searched, find = [0], relay_module.has_event_end

    def counted(data: bytes) -> bool:
        searched[0] += len(data)
        return find(data)

    monkeypatch.setattr(relay_module, "has_event_end", counted)
    async with (
        FaultyUpstream(FaultyAnswer(headers=STREAM, pieces=pieces, framing="chunked")) as upstream,
        running_gateway(upstream.url) as url,
    ):
        seen = await ask(url, path="/v1/responses", body=b'{"model":"m","input":"draw","stream":true}')

    assert (seen.status, seen.body == body, seen.is_whole) == (200, True, True)
    assert searched[0] < 2 * len(body)


async def test_an_answer_that_a_strict_gateway_withholds_counts_against_the_tokens_of_its_key() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":90,"completion_tokens":10,"total_tokens":100}}\n\n'
    answer = FaultyAnswer(headers=STREAM, pieces=[*SSE[:2], usage, SSE[2]], framing="chunked")
    entry = KeyEntry(name="alice", sha256=key_hash("hf-a"), namespace="alice", tokens_per_day=100)
    access = Access(keys=Keys([entry], clock=lambda: 0.0))  # no day ends meanwhile
    options = {"store": FullStore(), "settings": RelaySettings(is_strict=True), "access": access}
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url, **options) as url:
        seen = [await ask(url, body=CHAT, authorization="Bearer hf-a") for _ in range(2)]

    assert [(one.status, one.is_whole) for one in seen] == [(200, False), (429, True)]


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


async def test_an_unknown_upstream_is_told_with_the_others_as_paths_name_them_to_who_has_a_key() -> None:
    keys = Keys([KeyEntry(name="alice", sha256=key_hash("hf-a"), namespace="alice")])
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream,
        running_gateway("", upstreams={"team/qwen 3": upstream.url}, access=Access(keys=keys)) as url,
    ):
        foreign = await ask(url, path="/u/team/v1/chat/completions", body=CHAT)
        unknown = await ask(url, path="/u/team/v1/chat/completions", body=CHAT, x_holdfast_key="hf-a")
        seen = await ask(url, path="/u/team%2Fqwen%203/v1/chat/completions", body=CHAT, x_holdfast_key="hf-a")

    names = "openai, anthropic, gemini, team%2Fqwen%203"
    assert (foreign.status, b"qwen" in foreign.body) == (401, False)
    assert json.loads(unknown.body)["error"]["message"] == f"no upstream is called 'team'; there are {names}"
    assert (unknown.status, seen.status, seen.body) == (404, 200, ANSWER)


async def test_a_provider_that_cannot_be_reached_is_an_error_of_its_own_kind() -> None:
    timeouts = PhaseTimeouts(retries=0)
    with closed_port() as port:
        gone = f"http://127.0.0.1:{port}"
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


async def test_a_gateway_that_cannot_read_its_store_says_why_it_is_not_ready() -> None:
    class LostStore(MemoryStore):
        async def sessions(self, **_: object) -> list[SessionInfo]:
            raise StoreUnavailableError("postgresql", "the server has no free connection; raise max_connections")

    async with running_gateway("http://127.0.0.1:9/v1", store=LostStore()) as url:
        seen = await ask(url, "GET", "/readyz")

    assert (seen.status, json.loads(seen.body)) == (
        503,
        {"status": "the store cannot be read: the server has no free connection; raise max_connections"},
    )


async def test_a_gateway_that_may_open_no_more_files_does_not_blame_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", refuse)
    async with running_gateway("http://127.0.0.1:9/v1", timeouts=PhaseTimeouts(retries=0)) as url:
        seen = await ask(url, body=CHAT)

    assert (seen.status, json.loads(seen.body)["error"]["message"]) == (
        502,
        "the gateway got no answer: http://127.0.0.1:9 cannot be reached: Too many open files; allow more open files "
        "(`ulimit -n`)",
    )


async def test_a_websocket_is_refused_so_that_the_client_goes_over_to_http() -> None:
    async with FaultyUpstream() as upstream, running_gateway(upstream.url) as url:
        seen = await ask(
            url, "GET", "/v1/responses", connection="Upgrade", upgrade="websocket",
            sec_websocket_version="13", sec_websocket_key="x",
        )  # fmt: skip

    assert (seen.status, error_of(seen)) == (426, "this gateway speaks HTTP only; send the request with POST")
    assert upstream.requests == []


async def test_a_gateway_whose_disk_is_full_is_not_ready_until_there_is_room() -> None:
    class Disk(MemoryStore):
        is_full = True

        async def put_value(self, key: str, value: JsonRecord) -> None:
            if self.is_full:
                raise StoreUnavailableError("chats.db", "the disk is full; free some space and try again")
            await super().put_value(key, value)

    store = Disk()
    async with FaultyUpstream() as upstream, running_gateway(upstream.url, store=store) as url:
        full = await ask(url, "GET", "/readyz")
        store.is_full = False
        free = await ask(url, "GET", "/readyz")

    problem = "the store cannot be written: the disk is full; free some space and try again"
    assert [(one.status, json.loads(one.body)) for one in (full, free)] == [
        (503, {"status": problem}),
        (200, {"status": "ok"}),
    ]


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


async def test_a_span_of_what_only_passes_through_names_no_conversation() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[b"{}"])) as upstream,
        running_gateway(upstream.url, tracer=ExchangeTracer(provider)) as url,
    ):
        await ask(url, "GET", "/v1/models")

    assert flush_spans()
    [span] = exporter.get_finished_spans()
    assert (span.name, dict(span.attributes or {})) == (
        "GET openai",
        {
            "http.request.method": "GET",
            "url.path": "/v1/models",
            "gen_ai.provider.name": "openai",
            "holdfast.upstream": "openai",
            "http.response.status_code": 200,
        },
    )


@pytest.mark.parametrize("extensions", [{}, {"websocket.http.response": {}}], ids=["close", "answer"])
async def test_a_server_that_speaks_websockets_refuses_them_too(extensions: dict[str, Any]) -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "websocket.connect"}

    app = gateway_app()
    headers = [(b"host", b"localhost"), (b"upgrade", b"websocket")]
    scope = {"type": "websocket", "path": "/v1/responses", "headers": headers, "extensions": extensions}
    await app(scope, receive, send)
    await close_gateway(app)

    text = "this gateway speaks HTTP only; send the request with POST"
    if extensions:
        assert [(one["type"], one.get("status")) for one in sent] == [
            ("websocket.http.response.start", 426),
            ("websocket.http.response.body", None),
        ]
        assert json.loads(sent[1]["body"])["error"]["message"] == text
    else:
        assert sent == [{"type": "websocket.close", "code": 1008, "reason": text}]


async def test_no_page_of_the_gateway_begins_like_a_path_of_a_provider() -> None:
    app = gateway_app()
    *own, everything = app.routes
    paths = [str(getattr(route, "path", "")) for route in own]
    await close_gateway(app)

    assert getattr(everything, "path", "") == "/{path:path}"
    assert [path for path in paths if path.startswith(PROVIDER_PATHS)] == []


def chat_of(*texts: str, **members: Any) -> bytes:
    """Return a request whose messages are alternately the user's and the model's."""
    listed = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]
    return json.dumps({"model": "gpt-5", "messages": listed, **members}).encode()


LONG_TALK = [f"line {number}: " + "the quick brown fox reads a long report " * 12 for number in range(41)]
TOO_LONG = {"error": {"message": "This model's maximum context length is 2048 tokens, you requested 5000 tokens"}}


async def test_a_request_that_the_provider_refuses_as_too_long_is_made_smaller_and_sent_again() -> None:
    async with (
        ScriptedEndpoint([http_response(400, TOO_LONG), http_response(200, json.loads(ANSWER))]) as provider,
        running_gateway(provider.url.removesuffix("/v1"), **CONTROL) as url,
    ):
        seen = await ask(url, body=chat_of(*LONG_TALK), x_holdfast_session="s", content_md5="of other bytes")
        metrics = (await ask(url, "GET", "/metrics")).body.decode()
        recorded = await said(url, "s")

    first, second = provider.requests
    assert (seen.status, json.loads(seen.body), seen.header("x-holdfast-compacted")) == (200, json.loads(ANSWER), "1")
    lists: list[Any] = [one.body["messages"] for one in provider.requests]
    assert [message["content"] for message in lists[0]] == LONG_TALK
    assert lists[1][-1]["content"] == LONG_TALK[-1]
    assert len(json.dumps(second.body)) < 8_000 < len(json.dumps(first.body))
    assert [one.headers.get("content-md5") for one in (first, second)] == ["of other bytes", None]
    assert recorded == [*LONG_TALK, "Hi"]
    assert "holdfast_gateway_overflow_retries_total 1.0" in metrics


NOT_ALTERNATING = {"error": {"message": "Conversation roles must alternate user/assistant/user/assistant/..."}}


@pytest.mark.parametrize(("path", "status"), [("/v1/chat/completions", 500), ("/v1/messages", 400)])
async def test_a_server_that_wants_alternating_roles_gets_them_once_it_has_said_so(path: str, status: int) -> None:
    refused, accepted = http_response(status, NOT_ALTERNATING), http_response(200, json.loads(ANSWER))
    async with (
        ScriptedEndpoint([refused, accepted, accepted]) as provider,
        running_gateway(provider.url.removesuffix("/v1"), budget=2_500) as url,
    ):
        for session in ("first", "second"):
            seen = await ask(url, path=path, body=chat_of(*LONG_TALK), x_holdfast_session=session)
            assert (seen.status, json.loads(seen.body)) == (200, json.loads(ANSWER))

    lists: list[Any] = [one.body["messages"] for one in provider.requests]
    first, second, third = lists
    assert [one["role"] for one in first] == ["user", "user"]
    assert second == third == [{"role": "user", "content": f"{first[0]['content']}\n\n{LONG_TALK[-1]}"}]


async def test_a_list_of_the_client_with_neighbors_of_one_role_is_refused_as_the_server_refuses_it() -> None:
    body = json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": one} for one in "ab"]}).encode()
    async with (
        ScriptedEndpoint([http_response(400, NOT_ALTERNATING)]) as provider,
        running_gateway(provider.url.removesuffix("/v1")) as url,
    ):
        seen = await ask(url, body=body)

    assert (seen.status, json.loads(seen.body), len(provider.requests)) == (400, NOT_ALTERNATING, 1)


@pytest.mark.parametrize(
    ("answer", "sent_back"),
    [
        ({"content": None, "refusal": "I cannot."}, {"content": "", "refusal": "I cannot."}),
        (
            {"content": None, "audio": {"id": "audio_1", "data": "AAAA", "transcript": "Hello"}},
            {"audio": {"id": "audio_1"}},
        ),
    ],
    ids=["refusal", "speech"],
)
async def test_an_answer_without_content_is_recorded_once_and_with_its_words(
    answer: dict[str, Any], sent_back: dict[str, Any]
) -> None:
    whole = {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", **answer}, "finish_reason": "stop"}]}
    prompts: list[Any] = [{"role": "user", "content": text} for text in ("one", "two")]
    lists: list[list[Any]] = [prompts[:1], [prompts[0], {"role": "assistant", **sent_back}, prompts[1]]]
    async with (
        ScriptedEndpoint(lambda _: http_response(200, whole)) as provider,
        running_gateway(provider.url.removesuffix("/v1"), **CONTROL) as url,
    ):
        for messages in lists:
            await ask(url, body=json.dumps({"model": "gpt-5", "messages": messages}).encode(), x_holdfast_session="s")
        seen = await ask(url, "GET", "/holdfast/v1/sessions/s/messages", authorization=f"Bearer {TOKEN}")

    said_words = {name: {**value} if name == "audio" else value for name, value in answer.items()}
    if "audio" in said_words:
        del said_words["audio"]["data"]
    recorded = {"role": "assistant", **said_words}
    assert [one["message"] for one in json.loads(seen.body)["messages"]] == [prompts[0], recorded, prompts[1], recorded]


async def test_a_compressed_refusal_as_too_long_is_read_too() -> None:
    refusal = gzip.compress(json.dumps(TOO_LONG).encode(), mtime=0)
    head = f"HTTP/1.1 400 -\r\ncontent-encoding: gzip\r\ncontent-length: {len(refusal)}\r\n\r\n".encode()
    async with (
        ScriptedEndpoint([[head, refusal], http_response(200, json.loads(ANSWER))]) as provider,
        running_gateway(provider.url.removesuffix("/v1"), **CONTROL) as url,
    ):
        seen = await ask(url, body=chat_of(*LONG_TALK), x_holdfast_session="s", accept_encoding="gzip")
        recorded = await said(url, "s")

    assert (seen.status, seen.header("content-encoding"), json.loads(seen.body)) == (200, None, json.loads(ANSWER))
    assert (len(provider.requests), recorded) == (2, [*LONG_TALK, "Hi"])


ANNOUNCED = [
    {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": [], "error": None}},
    {"type": "response.in_progress", "response": {"id": "r", "status": "in_progress", "output": [], "error": None}},
]
NO_ROOM = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}
FAILED = {"type": "response.failed", "response": {"id": "r", "status": "failed", "output": [], "error": NO_ROOM}}
SPOKEN = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
COMPLETED = {"type": "response.completed", "response": {"id": "r2", "status": "completed", "output": [SPOKEN]}}


def event_stream(*events: object) -> bytes:
    """Return the events of a stream."""
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


@pytest.mark.parametrize(
    ("path", "refusal"),
    [
        ("/v1/responses", [*ANNOUNCED, {"type": "error", "error": NO_ROOM}, FAILED]),
        ("/v1/responses", [*ANNOUNCED, FAILED]),
        ("/v1/chat/completions", [{"id": "x", "choices": [], "error": TOO_LONG["error"]}]),
    ],
    ids=["error", "failed", "chat"],
)
@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_refusal_as_too_long_within_a_stream_is_answered_by_a_smaller_request(
    path: str, refusal: list[object], encoding: str
) -> None:
    key = "input" if path == "/v1/responses" else "messages"
    long = json.loads(chat_of(*LONG_TALK))["messages"]
    raw = b": a comment\n\n" + event_stream(*refusal)
    sent = gzip.compress(raw, mtime=0) if encoding == "gzip" else raw
    head = f"HTTP/1.1 200 -\r\ncontent-type: text/event-stream\r\ncontent-encoding: {encoding}\r\n".encode()
    chunk = b"HTTP/1.1 200 -\r\ncontent-type: text/event-stream\r\n"
    delta = {"id": "c", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}
    answer = event_stream(*ANNOUNCED, COMPLETED) if key == "input" else event_stream(delta) + b"data: [DONE]\n\n"
    replies = [
        [head + b"content-length: %d\r\n\r\n" % len(sent), sent[:30], sent[30:]],
        [chunk + b"content-length: %d\r\n\r\n" % len(answer), answer],
    ]
    async with (
        ScriptedEndpoint(replies) as provider,
        running_gateway(provider.url.removesuffix("/v1"), **CONTROL) as url,
    ):
        body = json.dumps({"model": "gpt-5", "stream": True, key: long}).encode()
        seen = await ask(url, path=path, body=body, x_holdfast_session="s")
        recorded = await said(url, "s")

    assert (seen.status, seen.body, seen.header("x-holdfast-compacted")) == (200, answer, "1")
    first, second = [len(json.dumps(one.body)) for one in provider.requests]
    assert second < first * 0.75
    assert recorded == [*LONG_TALK, SPOKEN["content"] if key == "input" else "Hi"]


@pytest.mark.parametrize(
    "events",
    [[{"type": "error", "error": {"message": "Overloaded"}}], [*ANNOUNCED, {"type": "response.failed"}], ["odd"]],
)
async def test_another_error_within_a_stream_reaches_the_client_as_it_came(events: list[object]) -> None:
    answer = FaultyAnswer(headers=STREAM, pieces=[event_stream(*events)], framing="chunked")
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url) as url:
        body = json.dumps({"model": "gpt-5", "stream": True, "input": "Hello"}).encode()
        seen = await ask(url, path="/v1/responses", body=body)

    assert (seen.status, seen.body, len(upstream.requests)) == (200, event_stream(*events), 1)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_a_refusal_as_too_long_with_the_status_of_an_answer_is_answered_by_a_smaller_request(kind: str) -> None:
    refusal, answer = json.dumps(TOO_LONG).encode(), b"".join(SSE) if kind == "text/event-stream" else ANSWER
    head = f"HTTP/1.1 200 -\r\ncontent-type: {kind}\r\n".encode()
    replies = [
        [head + b"content-length: %d\r\n\r\n" % len(refusal), refusal[:9], refusal[9:]],
        [head + b"content-length: %d\r\n\r\n" % len(answer), answer],
    ]
    async with ScriptedEndpoint(replies) as provider, running_gateway(provider.url.removesuffix("/v1")) as url:
        seen = await ask(url, body=chat_of(*LONG_TALK))

    assert (seen.status, seen.body, seen.header("x-holdfast-compacted")) == (200, answer, "1")


@pytest.mark.parametrize("first", [b'{"error":null,"choices":[]}', b'{"error":{"message":"overloaded"}}', b"\n{}"])
async def test_an_answer_that_is_no_refusal_passes_however_it_begins(first: bytes) -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[first])) as upstream, running_gateway(upstream.url) as url:
        seen = await ask(url, body=chat_of(*LONG_TALK))

    assert (seen.status, seen.body, len(upstream.requests)) == (200, first, 1)


async def test_the_beginning_of_a_stream_that_stalls_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.apps.gateway.relay.OPENING_SECONDS", 0.01)
    begun = event_stream(*ANNOUNCED)
    answer = FaultyAnswer(headers=STREAM, pieces=[begun], framing="close", fault="stall", at=1 << 20)
    async with (
        FaultyUpstream(answer) as upstream,
        running_gateway(upstream.url) as url,
        aiohttp.ClientSession() as http,
    ):
        body = {"model": "gpt-5", "stream": True, "input": "Hello"}
        async with http.post(f"{url}/v1/responses", json=body) as response:
            seen = await response.content.readexactly(len(begun))

    assert seen == begun


async def test_a_provider_that_refuses_every_size_is_asked_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    async def retry(*_: object, **__: object) -> None:
        """Say that the request was made smaller."""

    monkeypatch.setattr(Conversation, "retry", retry)
    async with (
        ScriptedEndpoint(lambda _: http_response(400, TOO_LONG)) as provider,
        running_gateway(provider.url.removesuffix("/v1")) as url,
    ):
        seen = await ask(url, body=CHAT)

    assert (seen.status, json.loads(seen.body)) == (400, TOO_LONG)
    assert len(provider.requests) == 1 + MAX_OVERFLOW_RETRIES


@pytest.mark.parametrize(
    ("refusal", "headers", "requests"),
    [
        (b'{"error": {"message": "the tool read is odd"}}', {}, 1),
        (gzip.compress(json.dumps(TOO_LONG).encode(), mtime=0), {"content-encoding": "gzip"}, 3),
        (gzip.compress(json.dumps(TOO_LONG).encode(), mtime=0)[:-9], {"content-encoding": "gzip"}, 1),
        (gzip.compress(b" " * (MAX_REFUSAL_BYTES + 1), mtime=0), {"content-encoding": "gzip"}, 1),
        (json.dumps(TOO_LONG).encode(), {"content-encoding": "br"}, 1),
        (json.dumps(TOO_LONG).encode() + b" " * MAX_REFUSAL_BYTES, {}, 1),
        (b'{"error": {"message": "the tool read is odd"}}' + b" " * MAX_REFUSAL_BYTES, {"content-length": ""}, 1),
        (b'{"error": {"message": "prompt is too long"}}', {}, 3),
    ],
    ids=["other", "compressed", "cut", "bomb", "unknown encoding", "large", "large in chunks", "always"],
)
async def test_a_refusal_that_no_smaller_request_answers_reaches_the_client_as_it_came(
    refusal: bytes, headers: dict[str, str], requests: int
) -> None:
    lines = {"content-type": "application/json", "content-length": str(len(refusal)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    reply = [f"HTTP/1.1 400 -\r\nconnection: close\r\n{head}\r\n".encode(), refusal[:70], refusal[70:]]
    async with (
        ScriptedEndpoint(lambda _: reply) as provider,
        running_gateway(provider.url.removesuffix("/v1"), **CONTROL) as url,
    ):
        seen = await ask(url, body=chat_of(*LONG_TALK), x_holdfast_session="s")
        recorded = await said(url, "s")

    assert (seen.status, seen.body, seen.header("content-encoding")) == (400, refusal, headers.get("content-encoding"))
    assert (len(provider.requests), recorded) == (requests, LONG_TALK)


@pytest.mark.parametrize(
    ("named", "sent"),
    [
        ("", "thinking-binding-controls-2026-08-01"),
        ("made-up", "made-up,thinking-binding-controls-2026-08-01"),
        ("thinking-binding-controls-2026-08-01", "thinking-binding-controls-2026-08-01"),
    ],
)
async def test_a_compacted_request_names_the_feature_that_drops_thinking_once(named: str, sent: str) -> None:
    thinking = {"type": "enabled", "budget_tokens": 9}
    body = chat_of(*LONG_TALK, model="claude-sonnet-5-5", max_tokens=10, thinking=thinking)
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[b"{}"])) as upstream,
        running_gateway(upstream.url, budget=2_500) as url,
    ):
        headers = {"anthropic_beta": named} if named else {}
        seen = await ask(url, path="/v1/messages", body=body, **headers)

    assert (seen.header("x-holdfast-compacted"), upstream.requests[0].header("anthropic-beta")) == ("1", sent)


async def test_features_that_a_client_names_in_several_lines_are_all_sent_with_a_compacted_request() -> None:
    thinking = {"type": "enabled", "budget_tokens": 9}
    body = chat_of(*LONG_TALK, model="claude-sonnet-5-5", max_tokens=10, thinking=thinking)
    lines = [b"one", b"two,three"]
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[b"{}"])) as upstream,
        gateway_to(upstream, upstreams={"anthropic": upstream.url}, budget=2_500) as app,
    ):
        await Caller(app, path="/v1/messages", body=body, headers=[(b"anthropic-beta", one) for one in lines]).running

    named = [value for name, value in upstream.requests[0].headers if name == "anthropic-beta"]
    assert named == ["one,two,three,thinking-binding-controls-2026-08-01"]


async def test_a_large_body_travels_as_it_came_plain_or_compressed() -> None:
    odd = random.Random(7).randbytes(700_000).hex()  # so that it does not compress
    plain = chat_of("café", x=odd)
    packed = gzip.compress(plain, 1)
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream, running_gateway(upstream.url) as url:
        seen = [
            await ask(url, body=plain, x_holdfast_session="s"),
            await ask(url, body=packed, x_holdfast_session="t", content_encoding="gzip"),
            await ask(url, body=plain, x_holdfast_session="u", content_encoding="identity"),
        ]

    assert [one.body for one in upstream.requests] == [plain, packed, plain]
    assert [(one.header("x-holdfast-session"), one.header("x-holdfast-error")) for one in seen] == [
        ("s", None),
        ("t", None),
        ("u", None),
    ]


class SlowStore(MemoryStore):
    """A store whose appends wait after the first ones, until they are let through."""

    def __init__(self, passing: int = 0) -> None:
        super().__init__()
        self.passing, self.reached, self.opened = passing, asyncio.Event(), asyncio.Event()

    async def append(self, *args: Any, **kwargs: Any) -> int:
        self.passing -= 1
        if self.passing < 0:
            self.reached.set()
            await self.opened.wait()
        return await super().append(*args, **kwargs)


async def test_a_store_that_takes_too_long_does_not_stop_the_request_and_a_header_says_so() -> None:
    store, settings = SlowStore(), RelaySettings(recording_seconds=0.01)
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream,
        running_gateway(upstream.url, store=store, settings=settings) as url,
    ):
        seen = await ask(url, body=CHAT, x_holdfast_session="s")
        store.opened.set()

    assert (seen.status, seen.body) == (200, ANSWER)
    assert seen.header("x-holdfast-error") == "not recorded: recording took longer than 0.01 s"


async def test_a_request_that_was_recorded_too_late_is_not_taken_for_one_that_waits_for_its_answer() -> None:
    store, settings = SlowStore(), RelaySettings(recording_seconds=0.01)
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream,
        gateway_to(upstream, store=store, settings=settings) as app,
    ):
        await Caller(app, body=chat_of("one")).running
        await store.reached.wait()
        object.__setattr__(settings, "recording_seconds", 60.0)  # this one is not too late, however busy the machine is
        edited = Caller(app, body=chat_of("one, edited"))
        store.opened.set()
        await edited.running
        users = app.state.recorder.sessions.get("s").users

    assert (await said_in(store), users) == (["one, edited", "Hi"], 0)


def compressed(encoding: str, pieces: Sequence[bytes]) -> list[bytes]:
    """Return the pieces of a stream in an encoding, each of them readable when it arrives."""
    if encoding == "deflate":
        packer = zlib.compressobj()
        return [packer.compress(one) + packer.flush(zlib.Z_SYNC_FLUSH) for one in pieces] + [packer.flush()]
    zstd = zstandard.ZstdCompressor().compressobj()
    packed = [zstd.compress(one) + zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for one in pieces]
    return [*packed, zstd.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)]


@pytest.mark.parametrize("encoding", ["deflate", "zstd"])
async def test_a_stream_in_any_encoding_that_was_asked_for_is_recorded(encoding: str) -> None:
    pieces = compressed(encoding, SSE)
    answer = FaultyAnswer(headers=(*STREAM, ("content-encoding", encoding)), pieces=pieces, framing="chunked")
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url, **CONTROL) as url:
        seen = await ask(url, body=CHAT, x_holdfast_session="s")

        assert (seen.body, seen.is_whole, await said(url, "s")) == (b"".join(pieces), True, ["café", "Hi"])


@pytest.mark.parametrize("encoding", ["br", "gzip", "zstd"])
@pytest.mark.parametrize("is_strict", [False, True])
async def test_an_answer_that_cannot_be_read_passes_unless_the_gateway_is_strict(
    encoding: str, *, is_strict: bool
) -> None:
    pieces = [b"no such bytes", b" at all"]
    answer = FaultyAnswer(headers=(("content-encoding", encoding),), pieces=pieces, framing="chunked")
    options = {"settings": RelaySettings(is_strict=is_strict), **CONTROL}
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url, **options) as url:
        seen = await ask(url, body=CHAT, x_holdfast_session="s")
        metrics = (await ask(url, "GET", "/metrics")).body.decode()

        assert (seen.is_whole, seen.body == b"".join(pieces)) == ((False, False) if is_strict else (True, True))
        assert 'holdfast_gateway_recording_failures_total{stage="answer"} 1.0' in metrics
        assert await said(url, "s") == ["café"]


@pytest.mark.parametrize(
    ("first", "seen", "rest"),
    [(b"".join(SSE[:2]) + b"data: [DONE]", SSE[1], b"\n\n"), (b"".join(SSE), SSE[2], b": bye\n\n")],
    ids=["its own end", "something else"],
)
async def test_whatever_comes_after_the_mark_of_the_last_event_passes(first: bytes, seen: bytes, rest: bytes) -> None:
    is_seen = asyncio.Event()

    async def provider(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", STREAM[0][1].encode())]}
        )
        await send({"type": "http.response.body", "body": first, "more_body": True})
        await is_seen.wait()
        await send({"type": "http.response.body", "body": rest})

    async with served(provider) as upstream, running_gateway(upstream, **CONTROL) as url:
        client = RawClient(url)
        await client.send("POST", "/v1/chat/completions", CHAT, {"x-holdfast-session": "s"})
        await client.read(until=seen)
        is_seen.set()
        is_whole = await client.read_more()
        client.leave()

        assert (bytes(client.body), is_whole, await said(url, "s")) == (first + rest, True, ["café", "Hi"])


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/octet-stream", "application/json"])
@pytest.mark.parametrize("start", [b"", b"\n", b"d", b": hello"], ids=["", "blank", "letter", "comment"])
async def test_no_event_of_a_stream_with_another_type_or_none_waits_for_the_next_one(
    content_type: str | None, start: bytes
) -> None:
    stream = (start if start != b"d" else b"") + b"\n\n" * (start == b": hello") + b"".join(SSE)
    firsts = [piece for piece in (start, stream[len(start) : stream.index(SSE[1])]) if piece]
    pieces, seen = [b"".join(firsts[:-1]), firsts[-1], *SSE[1:]], [asyncio.Event() for _ in range(len(SSE) + 1)]

    async def provider(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-type", content_type.encode())] if content_type else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece, is_seen in zip(pieces, seen, strict=True):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await is_seen.wait()
        await send({"type": "http.response.body", "body": b""})

    async with served(provider) as upstream, running_gateway(upstream, **CONTROL) as url:
        client = RawClient(url)
        await client.send("POST", "/v1/chat/completions", CHAT, {"x-holdfast-session": "s"})
        seen[0].set()
        async with asyncio.timeout(60):
            await client.read(until=pieces[1])
            for piece, before in zip(pieces[2:], seen[1:], strict=False):
                before.set()
                await client.read_more(until=piece)
        seen[-1].set()
        is_whole = await client.read_more()
        client.leave()

        assert (bytes(client.body), is_whole, await said(url, "s")) == (stream, True, ["café", "Hi"])


async def test_empty_lines_with_which_a_server_shows_that_it_works_are_passed_on_before_its_answer() -> None:
    is_seen = asyncio.Event()

    async def provider(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while not is_seen.is_set():
            await send({"type": "http.response.body", "body": b"\n", "more_body": True})
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": ANSWER})

    async with served(provider) as upstream, running_gateway(upstream, **CONTROL) as url:
        client = RawClient(url)
        await client.send("POST", "/v1/chat/completions", CHAT, {"x-holdfast-session": "s"})
        await client.read(until=b"\n\n")
        is_seen.set()
        is_whole = await client.read_more()
        client.leave()

        assert (bytes(client.body).lstrip(b"\n"), is_whole, await said(url, "s")) == (ANSWER, True, ["café", "Hi"])


class Caller:
    """A client without a network: the moment at which the gateway notices that it leaves is known."""

    def __init__(
        self,
        app: ASGIApp,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        body: bytes = CHAT,
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        named = [(b"host", b"localhost"), (b"content-length", b"%d" % len(body)), (b"x-holdfast-session", b"s")]
        headers = [*named, *headers]
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers, "app": app}
        # A server may say more than once that the body is over.
        end = {"type": "http.request", "body": b"", "more_body": False}
        self._messages = [end | {"body": body}, end]
        self._leaving = asyncio.Event()
        self.noticed, self.got = asyncio.Event(), asyncio.Event()
        self.sent: list[MutableMapping[str, Any]] = []
        self.running = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._messages:
            return self._messages.pop(0)
        await self._leaving.wait()
        self.noticed.set()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.got.set()

    async def leave(self) -> None:
        """Leave, and return when the gateway knows it."""
        self._leaving.set()
        await self.noticed.wait()

    @property
    def body(self) -> bytes:
        """What came of the answer."""
        return b"".join(message.get("body", b"") for message in self.sent)


STALLED = FaultyAnswer(
    headers=STREAM,
    pieces=SSE,
    framing="close",
    fault="stall",
    at=len(FaultyAnswer(headers=STREAM, framing="close").encoded()[0]) + len(SSE[0]),
)


@asynccontextmanager
async def gateway_to(upstream: FaultyUpstream | ScriptedEndpoint, **options: Any) -> AsyncGenerator[Starlette]:
    """Make a gateway in front of one upstream, without a server."""
    upstreams = {"openai": f"{upstream.url.removesuffix('/v1')}/v1"}
    app = gateway_app(upstreams=options.pop("upstreams", upstreams), **options)
    try:
        yield app
    finally:
        await close_gateway(app)


async def metrics_of(app: Starlette) -> list[str]:
    """Return what the gateway has counted."""
    client = Caller(app, "GET", "/metrics", b"")
    await client.running
    return [line for line in client.body.decode().splitlines() if not line.startswith("#")]


async def said_in(store: MemoryStore) -> list[object]:
    async with Session.open("s", store=store) as session:
        return [native["content"] for native in await session.messages()]


@pytest.mark.parametrize(
    ("answer", "last"),
    [(FaultyAnswer(pieces=[ANSWER]), ANSWER), (FaultyAnswer(headers=STREAM, pieces=[b"".join(SSE)]), SSE[-1])],
    ids=["whole", "stream"],
)
async def test_the_last_bytes_of_an_answer_are_sent_with_its_end(answer: FaultyAnswer, last: bytes) -> None:
    async with FaultyUpstream(answer) as upstream, gateway_to(upstream, store=MemoryStore()) as app:
        client = Caller(app)
        await client.running

        assert client.body == b"".join(answer.pieces)
        assert client.sent[-1] == {"type": "http.response.body", "body": last, "more_body": False}


async def test_a_client_that_leaves_while_its_answer_is_stored_leaves_it_whole() -> None:
    store = SlowStore(passing=1)
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream, gateway_to(upstream, store=store) as app:
        client = Caller(app)
        await store.reached.wait()
        await client.leave()
        store.opened.set()
        await client.running

    assert (client.body, await said_in(store)) == (b"", ["café", "Hi"])


async def test_a_client_that_leaves_while_its_request_is_made_smaller_does_not_interrupt_the_log() -> None:
    store = SlowStore(passing=1)
    async with ScriptedEndpoint([http_response(400, TOO_LONG)]) as provider, gateway_to(provider, store=store) as app:
        client = Caller(app, body=chat_of(*LONG_TALK))
        await store.reached.wait()
        await client.leave()
        store.opened.set()
        await client.running

    async with Session.open("s", store=store) as session:
        kinds = [type(event).__name__ for event in await session.events()]
    assert (len(provider.requests), client.sent) == (1, [])
    assert [kind for kind in kinds if kind in {"RequestPrepared", "CompactionCompleted"}] == [
        "RequestPrepared",
        "CompactionCompleted",
        "RequestPrepared",
    ]


async def test_a_server_that_stops_in_the_middle_of_an_answer_leaves_what_came_of_it() -> None:
    store = MemoryStore()
    async with FaultyUpstream(STALLED) as upstream, gateway_to(upstream, store=store) as app:
        client = Caller(app)
        await client.got.wait()
        client.running.cancel()
        await asyncio.wait([client.running])
        await asyncio.wait_for(upstream.client_left.wait(), 60)

    assert (client.running.cancelled(), client.body) == (True, SSE[0])
    assert await said_in(store) == ["café", "Hi"]


async def test_a_server_that_stops_ends_what_only_passes_through() -> None:
    async with FaultyUpstream(STALLED) as upstream, gateway_to(upstream) as app:
        client = Caller(app, "GET", "/v1/files/1/content", b"")
        await client.got.wait()
        client.running.cancel()
        await asyncio.wait([client.running])
        await asyncio.wait_for(upstream.client_left.wait(), 60)

    assert (client.running.cancelled(), client.body) == (True, SSE[0])


async def test_a_client_that_leaves_ends_what_only_passes_through() -> None:
    async with FaultyUpstream(STALLED) as upstream, gateway_to(upstream) as app:
        client = Caller(app, "GET", "/v1/files/1/content", b"")
        await client.got.wait()
        await client.leave()
        await client.running
        await asyncio.wait_for(upstream.client_left.wait(), 60)
        counted = await metrics_of(app)

    assert client.body == SSE[0]
    assert 'holdfast_gateway_requests_total{status="499",wire="other"} 1.0' in counted
    assert [message["type"] for message in client.sent] == ["http.response.start", "http.response.body"]


async def test_a_client_that_leaves_after_a_long_upload_ends_its_answer() -> None:
    async with FaultyUpstream(STALLED) as upstream, gateway_to(upstream) as app, served(app) as url:
        client = RawClient(url)
        await client.send("POST", "/v1/audio/transcriptions", b"a" * (3 << 20))
        seen = await client.read(until=SSE[0])
        client.leave()
        await asyncio.wait_for(upstream.client_left.wait(), 60)

    assert seen.body == SSE[0]


async def test_a_client_that_leaves_in_a_long_upload_is_no_failure_of_the_provider() -> None:
    reached, left = asyncio.Event(), asyncio.Event()

    async def provider(_scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            reached.set()
        left.set()

    async with served(provider) as upstream:
        app = gateway_app(upstreams={"openai": f"{upstream}/v1"})
        async with served(app) as url:
            client = RawClient(url)
            await client.send("POST", "/v1/files", b"a" * (2 << 20), {"content-length": str(3 << 20)})
            await asyncio.wait_for(reached.wait(), 60)
            client.leave()
            await asyncio.wait_for(left.wait(), 60)
        counted = await metrics_of(app)
        await close_gateway(app)

    assert 'holdfast_gateway_requests_total{status="499",wire="other"} 1.0' in counted
    assert not [line for line in counted if line.startswith("holdfast_gateway_upstream_failures_total")]


async def test_the_end_of_a_silent_answer_that_only_passes_through_is_no_error_of_the_gateway() -> None:
    timeouts = PhaseTimeouts(silence_seconds=0.05)
    async with FaultyUpstream(STALLED) as upstream, gateway_to(upstream, timeouts=timeouts) as app:
        client = Caller(app, "GET", "/v1/files/1/content", b"")
        await client.running
        counted = await metrics_of(app)

    assert [message["type"] for message in client.sent] == ["http.response.start", "http.response.body"]
    assert 'holdfast_gateway_requests_total{status="200",wire="other"} 1.0' in counted


async def test_a_client_that_leaves_its_answer_is_counted_as_such() -> None:
    async with FaultyUpstream(STALLED) as upstream, gateway_to(upstream) as app:
        client = Caller(app)
        await client.got.wait()
        await client.leave()
        await client.running
        counted = await metrics_of(app)

    assert 'holdfast_gateway_requests_total{status="499",wire="openai-chat"} 1.0' in counted
    assert 'holdfast_gateway_answers_total{ended="client_left"} 1.0' in counted


async def test_nothing_is_left_of_an_answer_that_was_recorded() -> None:
    async with FaultyUpstream(FaultyAnswer(headers=STREAM, pieces=SSE)) as upstream, gateway_to(upstream) as app:
        before = asyncio.all_tasks()
        client = Caller(app)
        await client.running
        counted = await metrics_of(app)
        watchers = {task for task in asyncio.all_tasks() - before if "_watch" in repr(task.get_coro())}
        await asyncio.wait_for(asyncio.gather(*watchers, return_exceptions=True), 60)

    assert client.body == b"".join(SSE)
    assert (b"x-accel-buffering", b"no") in client.sent[0]["headers"]
    assert not [line for line in counted if line.startswith("holdfast_gateway_recording_failures_total")]


async def test_nothing_of_an_exchange_waits_for_the_garbage_collector() -> None:
    def exchanges() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, Exchange | ClientConnection)]

    async with FaultyUpstream(FaultyAnswer(headers=STREAM, pieces=SSE)) as upstream, gateway_to(upstream) as app:
        gc.disable()
        try:
            before = exchanges()
            client = Caller(app)
            await client.running
            del client
            for _ in range(10):  # the task that watched the client ends
                await asyncio.sleep(0)
            left = [one for one in exchanges() if one not in before]
        finally:
            gc.enable()

    assert left == []


async def test_a_last_event_in_two_pieces_is_passed_on_after_the_answer_is_stored() -> None:
    is_seen = asyncio.Event()

    async def provider(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-type", STREAM[0][1].encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"".join(SSE)[:-2], "more_body": True})
        await is_seen.wait()
        await send({"type": "http.response.body", "body": SSE[2][-2:]})

    store = SlowStore(passing=1)
    async with served(provider) as upstream:
        app = gateway_app(store=store, upstreams={"openai": f"{upstream}/v1"})
        client = Caller(app)
        await client.got.wait()
        is_seen.set()
        await store.reached.wait()
        before = client.body
        store.opened.set()
        await client.running
        await close_gateway(app)

    assert (before, client.body) == (b"".join(SSE[:2]), b"".join(SSE))


async def test_a_body_in_one_piece_above_the_limit_is_refused_too() -> None:
    settings = RelaySettings(max_body_bytes=len(CHAT) - 1)
    async with FaultyUpstream() as upstream, gateway_to(upstream, settings=settings) as app:
        client = Caller(app)
        await client.running

    assert (client.sent[0]["status"], upstream.requests) == (413, [])


async def test_every_ping_is_counted() -> None:
    async with (
        FaultyUpstream(STALLED) as upstream,
        gateway_to(upstream, settings=RelaySettings(ping_seconds=0.02)) as app,
    ):
        client = Caller(app)
        while b": ping" not in client.body:
            client.got.clear()
            await client.got.wait()
        await client.leave()
        await client.running
        counted = await metrics_of(app)

    pings = [message for message in client.sent if message.get("body") == b": ping\n\n"]
    assert f"holdfast_gateway_pings_total {len(pings)}.0" in counted


async def test_a_provider_that_was_just_heard_gets_no_ping() -> None:
    calls: list[str] = []

    async def receive() -> MutableMapping[str, Any]:
        calls.append("receive")
        await asyncio.sleep(0.05)  # many ticks
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        calls.append(message["type"])

    client = ClientConnection(receive, send, ping_seconds=0.001, silence_seconds=1_000)
    client.ping = b": ping"
    await client.start(200, [])
    client.watch()
    client.active_at += 1_000
    assert client._watcher is not None
    await client._watcher
    client.close()

    assert calls == ["http.response.start", "receive"]


async def test_what_somebody_else_cancels_stays_cancelled() -> None:
    found: list[object] = []
    begun = asyncio.Event()

    async def serve() -> None:
        client = ClientConnection(asyncio.Event().wait, asyncio.sleep, ping_seconds=1_000, silence_seconds=1_000)  # pyright: ignore[reportArgumentType]
        client.watch()
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            task = asyncio.current_task()
            found.extend([client.interruption(), task.cancelling() if task else None])
            client.close()

    serving = asyncio.create_task(serve())
    await begun.wait()
    serving.cancel()
    await asyncio.wait([serving])

    assert (serving.cancelled(), found) == (True, [None, 1])


async def test_an_error_without_an_end_reaches_the_client_while_it_lasts() -> None:
    head = FaultyAnswer(status=400, framing="close").encoded()[0]
    size = MAX_REFUSAL_BYTES + 100
    endless = FaultyAnswer(status=400, pieces=[b"x" * 2 * size], framing="close", fault="stall", at=len(head) + size)
    async with FaultyUpstream(endless) as upstream, gateway_to(upstream) as app:
        client = Caller(app)
        await client.got.wait()
        await client.leave()
        await client.running

    assert client.body[:MAX_REFUSAL_BYTES] == b"x" * MAX_REFUSAL_BYTES


async def test_a_refusal_that_comes_in_pieces_is_read_to_its_end() -> None:
    said = json.dumps({"error": {"message": "prompt is too long"}}).encode()
    calls: list[str] = []

    async def provider(scope: Scope, _receive: Receive, send: Send) -> None:
        calls.append(scope["path"])
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": said[:20], "more_body": True})
        for _ in range(50):
            await asyncio.sleep(0)  # so that the gateway gets the first piece alone
        await send({"type": "http.response.body", "body": said[20:]})

    async with served(provider) as upstream, running_gateway(upstream) as url:
        seen = await ask(url, body=chat_of(*LONG_TALK))

    assert (seen.status, seen.body) == (400, said)
    assert len(calls) == 3


async def test_an_event_that_only_may_be_the_last_ends_no_gemini_answer() -> None:
    def event(text: str) -> bytes:
        found = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}
        return b"data: %s\n\n" % json.dumps({"candidates": [found]}).encode()

    is_seen = asyncio.Event()

    async def provider(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-type", STREAM[0][1].encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": event("Hel"), "more_body": True})
        await is_seen.wait()
        await send({"type": "http.response.body", "body": event("lo")})

    store, body = MemoryStore(), b'{"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}'
    async with served(provider) as upstream:
        app = gateway_app(store=store, upstreams={"gemini": upstream})
        client = Caller(app, path="/v1beta/models/gemini-3-pro:streamGenerateContent", body=body)
        await client.got.wait()
        is_seen.set()
        await client.running
        await close_gateway(app)

    async with Session.open("s", store=store) as session:
        answers = [native for native in await session.messages() if native["role"] == "model"]
    assert answers == [{"role": "model", "parts": [{"text": "Hello"}]}]


@pytest.mark.parametrize("status", [101, 600, 999])
async def test_a_status_that_no_answer_has_is_told_as_an_error_and_the_next_request_goes_on(status: int) -> None:
    strange = FaultyAnswer(status=status, pieces=[ANSWER])
    async with FaultyUpstream(strange) as upstream, running_gateway(upstream.url) as url:
        seen = [await ask(url, body=CHAT), await ask(url, "GET", "/v1/models")]
        upstream.answer = FaultyAnswer(pieces=[ANSWER])
        seen += [await ask(url, body=CHAT), await ask(url, "GET", "/v1/models")]

    problem = (
        f"the gateway got no answer: {upstream.url} answered with the status {status}, which no answer has in HTTP"
    )
    told = [json.loads(one.body)["error"]["message"] for one in seen[:2]]
    assert ([one.status for one in seen], told) == ([502, 502, 200, 200], [problem] * 2)


async def test_a_header_that_cannot_be_sent_is_left_out_of_an_answer() -> None:
    headers = [("content-type", "application/json"), ("x-trace", "a\x01b"), ("x-tab", "a\tb"), ("x-del", "\x7f")]
    strange = FaultyAnswer(headers=headers, pieces=[ANSWER])
    async with FaultyUpstream(strange) as upstream, running_gateway(upstream.url) as url:
        seen = [await ask(url, body=CHAT), await ask(url, "GET", "/v1/models")]

    kept = [("content-type", "application/json"), ("x-tab", "a\tb")]
    assert [(one.status, one.body, one.provider_headers) for one in seen] == [(200, ANSWER, kept)] * 2


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/models")])
@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_is_whole_although_it_tells_a_length(
    status: int, method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    bodiless = FaultyAnswer(status=status, headers=[("etag", '"1"'), ("content-length", "55")], framing="close")
    async with FaultyUpstream(bodiless) as upstream, running_gateway(upstream.url) as url:
        seen = await ask(url, method, path, body=CHAT)

    assert (seen.status, seen.provider_headers, seen.header("content-length")) == (status, [("etag", '"1"')], None)
    assert caplog.messages == []


async def test_a_long_wait_for_an_answer_is_no_silence_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ClientConnection.watch

    def watch_for_hours(client: ClientConnection) -> None:
        watch(client)
        client.active_at -= 10_000

    monkeypatch.setattr(ClientConnection, "watch", watch_for_hours)
    head = FaultyAnswer(headers=STREAM, framing="close").encoded()[0]
    silent = FaultyAnswer(headers=STREAM, framing="close", pieces=SSE, fault="stall", at=len(head))
    timeouts, settings = PhaseTimeouts(silence_seconds=1_000), RelaySettings(ping_seconds=0.01)
    async with (
        FaultyUpstream(silent) as upstream,
        running_gateway(upstream.url, timeouts=timeouts, settings=settings) as url,
    ):
        client = RawClient(url)
        await client.send("POST", "/v1/chat/completions", CHAT)
        seen = await client.read(until=b": ping")
        client.leave()

    assert (seen.status, seen.body[:8]) == (200, b": ping\n\n")


async def test_an_error_that_stalls_is_passed_on_as_far_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "OPENING_SECONDS", 0.01)
    refused = FaultyAnswer(status=400, pieces=[b'{"error": ', b'{"message": "no"}}'], framing="chunked")
    whole = b"".join(refused.encoded()[:2])
    stalled = replace(refused, fault="stall", at=len(whole))
    async with FaultyUpstream(stalled) as upstream, running_gateway(upstream.url) as url:
        client = RawClient(url)
        await client.send("POST", "/v1/chat/completions", CHAT)
        seen = await asyncio.wait_for(client.read(until=b'{"error": '), 60)
        client.leave()

    assert (seen.status, seen.body, seen.is_whole) == (400, b'{"error": ', False)


async def test_an_exchange_that_fails_in_an_unknown_way_lets_go_of_its_session() -> None:
    class Unwilling(Caller):
        async def _send(self, message: MutableMapping[str, Any]) -> None:
            raise RuntimeError(message["type"])

    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream:
        app = gateway_app(upstreams={"openai": f"{upstream.url}/v1"})
        with pytest.raises(RuntimeError, match=r"http\.response\."):
            await Unwilling(app).running
        opened = app.state.recorder.sessions.get("s")
        held = opened.users, [one.in_flight for one in opened.agent_lists.values()]
        await close_gateway(app)

    assert held == (0, [0])


async def test_a_silent_or_broken_answer_that_only_passes_through_is_cut() -> None:
    timeouts = PhaseTimeouts(silence_seconds=0.05)
    async with FaultyUpstream(STALLED) as upstream, running_gateway(upstream.url, timeouts=timeouts) as url:
        silent = await ask(url, "GET", "/v1/files/1/content")
        upstream.answer = FaultyAnswer(
            pieces=[b"12345"], fault="close", at=len(FaultyAnswer(pieces=[b"12345"]).encoded()[0]) + 2
        )
        broken = await ask(url, "GET", "/v1/files/2/content")

    assert [(one.status, one.body, one.is_whole) for one in (silent, broken)] == [
        (200, SSE[0], False),
        (200, b"12", False),
    ]


async def test_a_provider_that_cannot_be_reached_is_told_for_what_only_passes_through_too() -> None:
    with closed_port() as port:
        async with running_gateway(f"http://127.0.0.1:{port}", timeouts=PhaseTimeouts(retries=0)) as url:
            seen = await ask(url, "GET", "/v1/models")

    assert (seen.status, "cannot be reached" in error_of(seen)) == (502, True)


async def test_a_body_of_unknown_length_passes_through() -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(3):
            yield b"x" * 600_000

    async with (
        FaultyUpstream(FaultyAnswer(pieces=[b"{}"])) as upstream,
        running_gateway(upstream.url) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        answers = [await client.get("/v1/models"), await client.post("/v1/files", content=pieces())]

    assert [one.status_code for one in answers] == [200, 200]
    assert [(one.header("content-length"), one.header("transfer-encoding")) for one in upstream.requests] == [
        (None, None),
        (None, "chunked"),
    ]
    assert [len(one.body) for one in upstream.requests] == [0, 1_800_000]


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (aiohttp.ConnectionTimeoutError(), 504, "{} did not accept a connection in 10 s"),
        (aiohttp.ClientPayloadError(), 502, "{} did not answer in HTTP: ClientPayloadError"),
    ],
)
async def test_each_way_in_which_a_provider_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, text: str
) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", fail)
    async with FaultyUpstream() as upstream, running_gateway(upstream.url) as url:
        seen = await ask(url, body=CHAT)

    assert (seen.status, error_of(seen)) == (status, f"the gateway got no answer: {text.format(upstream.url)}")


async def test_a_provider_that_cannot_be_reached_for_a_moment_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = aiohttp.TCPConnector.connect
    refusals = [OSError(111, "Connection refused")]

    async def refuse_once(self: aiohttp.TCPConnector, request: aiohttp.ClientRequest, *rest: Any) -> Any:
        if refusals:
            raise aiohttp.ClientConnectorError(request.connection_key, refusals.pop())
        return await connect(self, request, *rest)

    monkeypatch.setattr(aiohttp.TCPConnector, "connect", refuse_once)
    monkeypatch.setattr(upstream_module, "RETRY_SECONDS", 0)
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream, running_gateway(upstream.url) as url:
        seen = await ask(url, body=CHAT)

    assert (seen.status, seen.body, len(upstream.requests)) == (200, ANSWER, 1)


async def test_what_arrived_before_a_cut_is_read_before_the_cut_is_told() -> None:
    loop = asyncio.get_running_loop()
    content = aiohttp.StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
    content.feed_data(b"the beginning")
    content.set_exception(aiohttp.ClientPayloadError("cut"))
    response: Any = SimpleNamespace(content=content)

    assert await next_chunk(response) == b"the beginning"
    with pytest.raises(aiohttp.ClientPayloadError):
        await next_chunk(response)


async def test_chunks_that_have_arrived_are_read_at_once_and_the_connection_reads_on() -> None:
    loop = asyncio.get_running_loop()
    protocol = Mock()
    content = aiohttp.StreamReader(protocol, 8, loop=loop)
    response: Any = SimpleNamespace(content=content)
    for piece in (b"one ", b"two ", b"three ", b"four "):
        content.begin_http_chunk_receiving()
        content.feed_data(piece)
        content.end_http_chunk_receiving()

    assert [*map(str, protocol.method_calls)][-1:] == ["call.pause_reading()"]
    assert await next_chunk(response) == b"one two three four "
    assert [*map(str, protocol.method_calls)][-1:] == ["call.resume_reading()"]
    content.feed_eof()
    assert await next_chunk(response) == b""


def proxied_by(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    """Have the environment name a proxy for every address."""
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("https_proxy", proxy)


async def test_a_proxy_of_the_environment_without_a_scheme_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as proxy:
        proxied_by(monkeypatch, proxy.url.removeprefix("http://"))
        async with running_gateway("http://provider.example") as url:
            seen = await ask(url, body=CHAT)

    assert (seen.status, seen.body) == (200, ANSWER)
    assert [one.line for one in proxy.requests] == ["POST http://provider.example/v1/chat/completions HTTP/1.1"]


@pytest.mark.parametrize(
    ("proxy", "problem"),
    [
        (
            "socks5://u:secret@127.0.0.1:9",
            "https://provider.example was not called: the proxy that the environment names has no address "
            "such as http://host:8080 (it begins with 'socks5'); check it",
        ),
        (
            "http://u:secret@[::1",
            "https://provider.example was not called: the proxy that the environment names has no address "
            "such as http://host:8080 (it begins with 'http'); check it",
        ),
        (
            "REFUSES",
            "https://provider.example:443 cannot be reached: the proxy that the environment names answered 407; "
            "check HTTPS_PROXY and NO_PROXY",
        ),
        (
            "http://u:secret@127.0.0.1:1",
            "https://provider.example:443 cannot be reached through the proxy that the environment names: "
            "Connect call failed ('127.0.0.1', 1); check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
        ),
    ],
)
async def test_a_proxy_of_the_environment_that_does_not_work_is_named_and_not_the_provider(
    monkeypatch: pytest.MonkeyPatch, proxy: str, problem: str
) -> None:
    async with FaultyUpstream(FaultyAnswer(status=407)) as refusing:
        proxied_by(monkeypatch, refusing.url if proxy == "REFUSES" else proxy)
        async with running_gateway("https://provider.example") as url:
            seen = [await ask(url, path=path, body=CHAT) for path in ("/v1/chat/completions", "/v1/embeddings")]

    assert [(one.status, error_of(one)) for one in seen] == [(502, f"the gateway got no answer: {problem}")] * 2


OFFER = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}
"""What Java's own HTTP client adds to a request."""


async def test_a_request_that_offers_http_2_is_served_with_its_body_on_http_1() -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream, running_gateway(upstream.url) as url:
        seen = await ask(url, body=CHAT, **OFFER, x_holdfast_session="s")

    assert (seen.status, seen.body, seen.header("x-holdfast-session")) == (200, ANSWER, "s")
    assert [(one.body, one.header("upgrade"), one.header("http2-settings")) for one in upstream.requests] == [
        (CHAT, None, None)
    ]


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_an_answer_to_http_1_0_has_no_chunks_and_ends_with_its_connection(framing: Any) -> None:
    answer = FaultyAnswer(pieces=[ANSWER[:20], ANSWER[20:]], framing=framing)
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.0\r\nhost: {host}\r\ncontent-length: {len(CHAT)}\r\n\r\n"
        writer.write(head.encode() + CHAT)
        seen = await reader.read()
        writer.close()

    headers, _, body = seen.partition(b"\r\n\r\n")
    assert body == ANSWER
    assert b"transfer-encoding" not in headers


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_offers_between_other_requests_of_a_connection_lose_nothing(size: int, *, is_chunked: bool) -> None:
    async with FaultyUpstream(FaultyAnswer(pieces=[ANSWER])) as upstream, running_gateway(upstream.url) as url:
        host, port = url.removeprefix("http://").split(":")
        framing = "transfer-encoding: chunked" if is_chunked else f"content-length: {len(CHAT)}"
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CHAT), CHAT) if is_chunked else CHAT
        raw = b""
        for number in range(3):
            offer = "".join(f"{name}: {value}\r\n" for name, value in OFFER.items()) if number != 1 else ""
            head = f"POST /s/n{number}/v1/chat/completions HTTP/1.1\r\nhost: {host}\r\n{framing}\r\n{offer}\r\n"
            raw += head.encode() + body
        reader, writer = await asyncio.open_connection(host, int(port))
        for start in range(0, len(raw), size):
            writer.write(raw[start : start + size])
            await writer.drain()
        seen: list[bytes] = []
        for _ in range(3):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            seen.append(head.split(b"x-holdfast-session: ")[1].split(b"\r\n")[0])
            assert await reader.readexactly(len(ANSWER)) == ANSWER
        writer.close()

    assert (seen, [one.body for one in upstream.requests]) == ([b"n0", b"n1", b"n2"], [CHAT] * 3)
