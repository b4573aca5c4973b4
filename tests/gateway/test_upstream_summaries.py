"""The model of a conversation writes its summaries, after the cached prefix, with the key of its client."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from starlette.applications import Starlette

from holdfast.apps.gateway import upstream_summarizer
from holdfast.apps.gateway.app import close_gateway, gateway_app
from holdfast.apps.gateway.relay import headers_of
from holdfast.apps.gateway.upstream_summarizer import ClientAccess, Payment, UpstreamSummarizer
from holdfast.core.history import events as log
from holdfast.errors import ModelAccessError
from holdfast.models.base import SummaryPrompt
from holdfast.session.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.testing.endpoint import ReceivedRequest, ScriptedEndpoint
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events
from holdfast.wire.answers import Wire, read_answer
from tests.gateway.serving import ask, served

WIRES: Mapping[Wire, tuple[str, str, str]] = {
    "openai-chat": ("/v1/chat/completions", "messages", "authorization"),
    "openai-responses": ("/v1/responses", "input", "authorization"),
    "anthropic": ("/v1/messages", "messages", "x-api-key"),
}
LONG = "the report says a number of things that matter to nobody in particular " * 8
SUMMARY = "The user asked questions about the report. Each got a long answer that says what matters to nobody."
KEY = "sk-client-key-of-nobody"


def is_summary_call(request: ReceivedRequest) -> bool:
    return request.headers.get("x-interaction-type") == "conversation-compaction"


def answering(wire: Wire) -> Callable[[ReceivedRequest], list[bytes | None]]:
    """Return a provider that streams a long answer, or a summary."""
    numbers = iter(range(1, 1_000))

    def answer(request: ReceivedRequest) -> list[bytes | None]:
        number = next(numbers)
        reply = ProviderReply(SUMMARY if is_summary_call(request) else f"answer {number}: {LONG}")
        events = b"".join(event_bytes(name, event) for name, event in stream_events(wire, reply, number))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        return [head, events]

    return answer


async def talk(
    wire: Wire, credential: str, payment: Payment | None = "key", count: int = 24
) -> tuple[list[ReceivedRequest], MemoryStore]:
    """Converse through a gateway with a small budget, and return what the provider received.

    A `payment` of None is what a gateway does that was told nothing.
    """
    path, name, header = WIRES[wire]
    store = MemoryStore()
    async with ScriptedEndpoint(answering(wire)) as provider:
        base = provider.url.removesuffix("/v1")
        new_gateway = gateway_app if payment is None else partial(gateway_app, payment=payment)
        app = new_gateway(store=store, budget=2_000, upstreams={"openai": provider.url, "anthropic": base})
        messages: list[Any] = []
        async with served(app) as url:
            for number in range(count):
                messages.append({"role": "user", "content": f"question {number}?"})
                members = {"model": "gpt-5", "stream": True, "store": False, "max_tokens": 100}
                body = json.dumps({**members, name: messages}).encode()
                seen = await ask(url, path=f"/s/s{path}", body=body, **({header: credential} if credential else {}))
                assert seen.status == 200, seen.body
                lines = [line[6:] for line in seen.body.decode().splitlines() if line.startswith("data: {")]
                messages += read_answer(wire, list(map(json.loads, lines))).messages
                await summary_written(app)
        await close_gateway(app)
        return list(provider.requests), store


async def summary_written(app: Starlette) -> None:
    """Wait for the summary that is being written, if one is."""
    async with app.state.recorder.session("s") as opened:
        session: Session = opened.session
        with session.subscribe("session.summary_written", "session.compaction_complete") as written:
            state = session.history.session_state
            if state.running_compaction is not None and state.ready_summary is None:
                await anext(written)


async def events_of(store: MemoryStore) -> list[log.Event]:
    async with Session.open("s", store=store) as session:
        return await session.events()


@pytest.mark.parametrize("wire", WIRES)
async def test_the_upstream_model_summarizes_after_the_cached_prefix_with_the_clients_key(wire: Wire) -> None:
    _, name, header = WIRES[wire]
    credential = KEY if header == "x-api-key" else f"Bearer {KEY}"

    requests, store = await talk(wire, credential)

    calls = [index for index, request in enumerate(requests) if is_summary_call(request)]
    assert calls
    before, call = requests[calls[0] - 1], requests[calls[0]]
    assert call.headers[header] == credential
    prefix: Any = before.body[name]
    asked: Any = call.body[name]
    assert asked[: len(prefix)] == prefix, "the request before it is its prefix"
    assert len(asked) == len(prefix) + 1
    done = [event for event in await events_of(store) if isinstance(event, log.CompactionCompleted) and event.success]
    assert done[0].summary.by_model
    assert "questions about the report" in done[0].summary.text
    stored = [record.record for record in await store.read("s")]
    assert KEY not in json.dumps(stored)


@pytest.mark.parametrize(
    ("credential", "payment"),
    [
        ("Bearer eyJhbGciOi.eyJzdWIi.c2ln", "key"),
        (f"Bearer {KEY}", "digest"),
        (f"Bearer {KEY}", None),
        ("Bearer sk-ant-oat01-abc", "key"),
    ],
)
async def test_without_a_key_that_may_pay_the_digest_is_used(credential: str, payment: Payment | None) -> None:
    requests, store = await talk("openai-chat", credential, payment)

    assert not any(map(is_summary_call, requests))
    done = [event for event in await events_of(store) if isinstance(event, log.CompactionCompleted)]
    assert {event.summary.by_model for event in done} == {None}


async def test_the_key_of_the_gateway_pays_where_the_client_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-key-of-the-gateway")

    requests, _ = await talk("openai-chat", "")

    assert {one.headers["authorization"] for one in requests} == {"Bearer sk-key-of-the-gateway"}
    assert any(map(is_summary_call, requests))


async def test_an_api_that_takes_no_order_for_a_summary_gets_none() -> None:
    access = ClientAccess.of("https://api.example/v1beta/models/g:generateContent", {}, {"x-goog-api-key": "abc"})
    summarizer = UpstreamSummarizer()

    assert summarizer.use("gemini", "gemini-3-pro", access, b"{}") is False
    summarizer.note_answer()
    with pytest.raises(ModelAccessError, match="there is no key of a client"):
        await summarizer.write(SummaryPrompt(system="", text="Summarize.", max_output_tokens=9))


async def test_a_summary_waits_no_longer_than_a_limit_for_the_conversations_own_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_summarizer, "FIRST_BYTE_SECONDS", 0)
    access = ClientAccess.of("https://api.example/v1/chat/completions", {}, {"authorization": "abc"})
    summarizer = UpstreamSummarizer()

    assert summarizer.use("openai-chat", "gpt-5", access, b"{}") is True
    with pytest.raises(ModelAccessError, match="the conversation's own request gets no answer"):
        await summarizer.write(SummaryPrompt(system="", text="Summarize.", max_output_tokens=9))


async def test_a_login_pays_only_if_that_is_switched_on() -> None:
    requests, _ = await talk("openai-chat", "Bearer eyJhbGciOi.eyJzdWIi.c2ln", "login")

    assert any(map(is_summary_call, requests))


@pytest.mark.parametrize(
    ("headers", "is_login"),
    [
        ({"authorization": "Bearer sk-proj-abc"}, False),
        ({"x-api-key": "sk-ant-api03-abc"}, False),
        ({"x-api-key": "sk-ant-oat01-abc"}, True),
        ({"authorization": "Bearer abc", "chatgpt-account-id": "1"}, True),
        ({"authorization": "Bearer abc", "anthropic-beta": "oauth-2025-04-20,other"}, True),
        ({"authorization": "Bearer gho_abc"}, True),
    ],
)
def test_logins_are_told_from_keys(headers: dict[str, str], is_login: bool) -> None:  # noqa: FBT001 - a case
    keys = {name: value for name, value in headers.items() if name in {"authorization", "x-api-key"}}
    access = ClientAccess.of("https://api.example/v1/messages", headers, keys)

    assert (access.is_login, access.pays("key"), access.pays("login"), access.pays("digest")) == (
        is_login,
        not is_login,
        True,
        False,
    )
    assert "abc" not in repr(access)


def test_a_login_is_known_by_a_feature_in_any_of_several_lines() -> None:
    lines = [(b"anthropic-beta", b"oauth-2025-04-20"), (b"authorization", b"Bearer abc"), (b"anthropic-beta", b"other")]
    headers = headers_of({"type": "http", "headers": lines})

    assert ClientAccess.of("https://api.example/v1/messages", headers, {}).is_login
