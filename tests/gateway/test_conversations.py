"""Which conversation a request belongs to, on traffic as real clients send it."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.history import events as log
from holdfast.session.session import Session
from holdfast.stores.base import Store, iter_sessions
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider_streams import event_bytes, stream_events
from holdfast.wire.formats import format_named
from tests.gateway.simulated_clients import CLIENTS, Sent, SimulatedClient

SESSIONS = 20


async def exchange(recorder: Recorder, sent: Sent) -> str:
    """Record a request and its answer, and return the session."""
    received = await recorder.receive(sent.request)
    assert received.body == sent.request.body
    for name, event in stream_events(sent.request.wire, sent.reply, sent.number):
        received.feed(event_bytes(name, event))
    await received.finish("complete", 200)
    return received.session_id


def texts_of(format_name: str, natives: list[Any]) -> list[str]:
    """Return what messages say, without calls and results."""
    texts = [format_named(format_name).decode(native, 0) for native in natives]
    return [one.text.strip() for one in texts if one.role in {"user", "assistant"} and one.text.strip()]


FORMATS = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses-stateless",
    "anthropic": "anthropic-messages",
    "gemini": "gemini-2",
}


async def check(store: Store, clients: list[SimulatedClient]) -> None:
    """Compare every session of a store with the lists of the clients."""
    recorded: Counter[tuple[str, ...]] = Counter()
    side_answers = {text for client in clients for text in client.side_answers}
    async for info in iter_sessions(store):
        async with Session.open(info.id, store=store) as session:
            events = await session.events()
            assert not [event for event in events if isinstance(event, log.Rewound)], info.id
            natives = await session.messages()
            texts = texts_of(session.history.message_format.name, natives)
            recorded[tuple(texts)] += 1
            said = {
                text
                for event in events
                if isinstance(event, log.MessageAppended)
                for text in texts_of(event.format, [event.native])
                if event.native.get("role") != "user"
            }
            assert not said & side_answers
            names = {client.name for client in clients if any(f"{client.name} says" in text for text in texts)}
            assert len(names) <= 1
            owner = next((client for client in clients if client.name in names), None)
            for prompt in owner.said[1:] if owner else ():
                assert prompt in str(await session.recall(prompt))
    expected = Counter(tuple(texts_of(FORMATS[client.wire], client.kept)) for client in clients if client.turns)
    assert recorded == expected


@given(
    order=st.lists(st.integers(0, SESSIONS - 1), min_size=30, max_size=60),
    restarts=st.sets(st.integers(0, 60), max_size=2),
    max_open=st.sampled_from([4, 64]),
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_interleaved_conversations_of_every_client_are_kept_apart(
    order: list[int], restarts: set[int], max_open: int
) -> None:
    store = MemoryStore()
    clients: list[SimulatedClient] = [CLIENTS[number % len(CLIENTS)](f"c{number}z") for number in range(SESSIONS)]
    recorder, running = Recorder(store, max_open_sessions=max_open), [client.turn() for client in clients]

    for step, number in enumerate(order):
        sent = next(running[number], None)
        if sent is None:
            running[number] = clients[number].turn()
            sent = next(running[number])
        await exchange(recorder, sent)
        if step in restarts:
            await recorder.close()
            recorder = Recorder(store, max_open_sessions=max_open)
    for sent in (sent for turn in running for sent in turn):
        await exchange(recorder, sent)
    await recorder.close()

    await check(store, clients)


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
async def test_a_long_conversation_of_each_client_is_one_session(kind: type[SimulatedClient]) -> None:
    store, client = MemoryStore(), kind("czz")
    recorder = Recorder(store)

    for sent in (sent for _ in range(11) for sent in client.turn()):
        await exchange(recorder, sent)
    await recorder.close()

    await check(store, [client])
