"""Answers that break the rules of their own format: nothing of them is lost."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.apps.gateway.recording.client_body import LIST_MEMBERS
from holdfast.apps.gateway.recording.exchange import ClientRequest
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events
from holdfast.wire.answers import Wire, read_answer

Json = dict[str, Any]
PATHS: dict[Wire, str] = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/g:streamGenerateContent",
}


async def recorded(wire: Wire, raw: bytes) -> list[Any]:
    """Return what is recorded of an answer."""
    recorder = Recorder(MemoryStore())
    prompt = {"role": "user", "parts": [{"text": "hi"}]} if wire == "gemini" else {"role": "user", "content": "hi"}
    body = json.dumps({"model": "gpt-5", LIST_MEMBERS[wire]: [prompt]}).encode()
    exchange = await recorder.receive(ClientRequest(wire, PATHS[wire], "talk", {}, body, "", "x"))
    exchange.feed(raw)
    await exchange.finish("complete", 200)
    async with recorder.session("talk") as opened:
        natives = [*await opened.session.messages()]
    await recorder.close()
    return natives[1:]


ODD_BLOCK = {"type": None, "text": "what?"}
ODD_ANSWERS: dict[str, tuple[Wire, Json, list[Json]]] = {
    "a block without a type": (
        "anthropic",
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Yes."}, ODD_BLOCK]},
        [{"role": "assistant", "content": [
            {"type": "text", "text": "Yes."},
            {"type": "text", "text": '{"type":null,"text":"what?"}'},
        ]}],
    ),
    "a call whose id is a list": (
        "openai-chat",
        {"choices": [{"index": 0, "finish_reason": "stop", "message": {
            "role": "assistant",
            "content": "Yes.",
            "tool_calls": [{"id": [1], "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        }}]},
        [{"role": "assistant", "content": [
            {"type": "text", "text": "Yes."},
            {"type": "text", "text": '{"id":[1],"type":"function","function":{"name":"f","arguments":"{}"}}'},
        ]}],
    ),
    "an item without a name beside a message": (
        "openai-responses",
        {"id": "r", "object": "response", "status": "completed", "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
            {"type": "function_call", "call_id": "c", "name": None, "arguments": "{}"},
        ]},
        [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text",
                 "text": '{"type":"function_call","call_id":"c","name":null,"arguments":"{}"}'},
            ]},
        ],
    ),
    "a text that is a number": (
        "gemini",
        {"candidates": [{"finishReason": "STOP", "content": {"role": "model", "parts": [
            {"functionCall": {"name": "f", "args": {}}}, {"inlineData": 7}, {"text": 7},
        ]}}], "modelVersion": {"odd": 1}, "responseId": 7},
        [{"role": "model", "parts": [
            {"functionCall": {"name": "f", "args": {}}}, {"inlineData": 7}, {"text": '{"text":7}'},
        ]}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_ANSWERS)
async def test_what_breaks_the_rules_of_a_format_is_recorded_as_text_beside_the_rest(name: str) -> None:
    wire, answer, messages = ODD_ANSWERS[name]

    assert await recorded(wire, json.dumps(answer).encode()) == messages


def test_the_pieces_of_a_block_that_was_never_started_say_what_it_is() -> None:
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        for text in ("Hel", "lo")
    ]

    answer = read_answer("anthropic", [*deltas, {"type": "message_stop"}])

    assert answer.messages == [{"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}]


ODD_VALUES = st.sampled_from([None, "", 0, 7, True, [], {}, "x", [None], [[]], {"a": 1}])
REPLIES = (
    ProviderReply("Hello there, my friend.", tokens=7),
    ProviderReply("I look.", calls=[("read", {"path": "a.txt"}), ("run", {"lines": [1, 2]})], tokens=7),
)


def paths_in(value: object) -> list[tuple[str | int, ...]]:
    """Return the path of each value within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *path) for key, one in inner for path in paths_in(one))]


@settings(max_examples=60, deadline=None)
@given(wire=st.sampled_from(sorted(PATHS)), reply=st.sampled_from(REPLIES), data=st.data())
async def test_events_with_odd_values_in_any_order_are_recorded_without_an_error(
    wire: Wire, reply: ProviderReply, data: st.DataObject
) -> None:
    events = [(name, json.loads(json.dumps(event))) for name, event in stream_events(wire, reply)]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(events) - 1))
        match data.draw(st.sampled_from(["change", "change", "drop", "repeat", "move"])):
            case "change":
                *steps, last = data.draw(st.sampled_from(paths_in(events[place][1])[1:] or [("type",)]))
                inner = events[place][1]
                for step in steps:
                    inner = inner[step]
                if isinstance(inner, dict | list):
                    inner[last] = data.draw(ODD_VALUES)  # pyright: ignore[reportArgumentType, reportCallIssue]
            case "drop" if len(events) > 1:
                del events[place]
            case "repeat":
                events.insert(place, (events[place][0], json.loads(json.dumps(events[place][1]))))
            case _:
                events.insert(data.draw(st.integers(0, len(events) - 1)), events.pop(place))

    natives = await recorded(wire, b"".join(event_bytes(name, event) for name, event in events))

    assert len(natives) <= len(events)
