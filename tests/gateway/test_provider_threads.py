"""Conversations that Anthropic keeps (`thread`): a request holds only what is new, as with `previous_response_id`."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.apps.gateway.recording.exchange import ClientRequest
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.history import events as log
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events

CREATE = {"type": "create"}


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    one = Recorder(MemoryStore())
    yield one
    await one.close()


def _after(message_id: str) -> dict[str, str]:
    return {"type": "continue", "previous_message_id": message_id}


def _asked(text: str, thread: dict[str, str], name: str = "") -> ClientRequest:
    body: dict[str, Any] = {"model": "claude-sonnet-4-5", "max_tokens": 99, "thread": thread}
    raw = json.dumps(body | {"messages": [{"role": "user", "content": text}]}).encode()
    headers = {"x-session-id": name} if name else {}
    return ClientRequest("anthropic", "/v1/messages", None, headers, raw, "", "anthropic")


async def _answered(recorder: Recorder, request: ClientRequest, text: str, number: int) -> str:
    """Record a request and its answer, whose id is `msg_NUMBER`; return the session."""
    exchange = await recorder.receive(request)
    assert exchange.body == request.body
    for name, event in stream_events(request.wire, ProviderReply(text), number):
        exchange.feed(event_bytes(name, event))
    await exchange.finish("complete", 200)
    return exchange.session_id


async def _said(recorder: Recorder, session_id: str) -> list[str]:
    async with recorder.session(session_id) as opened:
        events = await opened.session.events()
        assert not any(isinstance(event, log.Rewound) for event in events)
        return [entry.message.text for entry in opened.session.history.entries]


@pytest.mark.parametrize("name", ["", "s"])
async def test_a_thread_is_one_conversation(recorder: Recorder, name: str) -> None:
    first = await _answered(recorder, _asked("one", CREATE, name), "One.", 1)
    second = await _answered(recorder, _asked("two", _after("msg_1"), name), "Two.", 2)
    third = await _answered(recorder, _asked("three", _after("msg_2"), name), "Three.", 3)

    assert first == second == third
    assert await _said(recorder, first) == ["one", "One.", "two", "Two.", "three", "Three."]


async def test_two_threads_that_begin_alike_are_two_conversations(recorder: Recorder) -> None:
    first = await _answered(recorder, _asked("one", CREATE), "One.", 1)
    other = await _answered(recorder, _asked("one", CREATE), "Uno.", 2)
    await _answered(recorder, _asked("two", _after("msg_1")), "Two.", 3)
    await _answered(recorder, _asked("due", _after("msg_2")), "Due.", 4)

    assert await _said(recorder, first) == ["one", "One.", "two", "Two."]
    assert await _said(recorder, other) == ["one", "Uno.", "due", "Due."]


async def test_a_thread_that_is_continued_by_an_unknown_message_is_recorded(recorder: Recorder) -> None:
    session_id = await _answered(recorder, _asked("more", _after("msg_9")), "Yes.", 10)
    again = await _answered(recorder, _asked("and", _after("msg_10")), "No.", 11)

    assert again == session_id
    assert await _said(recorder, session_id) == ["more", "Yes.", "and", "No."]
