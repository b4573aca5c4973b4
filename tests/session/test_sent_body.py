"""The bytes of every request can be put together again from the log."""

import asyncio
import json
import threading
from collections.abc import Iterator
from copy import deepcopy
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history import events as log
from holdfast.errors import SettingsError
from holdfast.session.log.sent_body import MAX_CHAIN, SentBodies, sent_body
from holdfast.session.maintenance.scrub import TOMBSTONE, scrub
from holdfast.session.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.wire.request import Request

MARK = {"type": "ephemeral"}


def prepared(body: tuple[Any, ...], digest: str, scope: str = log.MAIN) -> log.RequestPrepared:
    return log.RequestPrepared(
        view=(), payload_hash="", policy="default", engine="", body=body, body_hash=digest, scope=scope
    )


WORDS = st.sampled_from(["a", 'b{"role":1}', "caf\u00e9 \u2028", "{}", "d" * 80, "e" * 80])
BODIES = st.tuples(st.sampled_from(["main", "other"]), st.lists(st.tuples(WORDS, st.booleans()), max_size=6))


STYLES = [
    {"ensure_ascii": ascii_only, "separators": separators}
    for ascii_only in (False, True)
    for separators in ((",", ":"), (", ", ": "), (" ,  ", ":"))
]


@given(
    said=st.lists(st.tuples(BODIES, st.booleans(), st.integers(0, 2), st.sampled_from(STYLES)), min_size=1, max_size=8),
)
def test_any_bodies_of_any_writers_are_put_together_again_to_the_byte(
    said: list[tuple[tuple[str, list[tuple[str, bool]]], bool, int, dict[str, Any]]],
) -> None:
    writers, events, bodies = [SentBodies(), SentBodies()], list[log.Event](), list[bytes]()
    natives: list[dict[str, Any]] = []
    for (scope, words), is_longer, number, style in said:
        messages = [
            {"content": [{"text": word} | ({"cache_control": MARK} if is_marked else {})]} for word, is_marked in words
        ]
        first = 0 if is_longer else len(natives)  # the list grows, or begins anew
        natives += messages
        events += [log.MessageAppended(format="anthropic-messages", native=one, scope=scope) for one in messages]
        body = json.dumps({"messages": natives[first:], "x": {}}, **style).encode()
        if number == len(writers):  # a session that was opened just now
            writers[0] = SentBodies()
            observe_all(writers[0], events)
        pieces = writers[number % 2].pieces(scope, body, [None, *range(first, len(natives))], natives.__getitem__)
        assert pieces is not None
        events.append(prepared(*pieces, scope))
        for writer in writers:
            observe_all(writer, events[-1:])
        bodies.append(body)

    found = [sent_body(events, number) for number in range(len(said))]

    assert [one and (one.content, one.is_same) for one in found] == [(body, True) for body in bodies]


def observe_all(bodies: SentBodies, events: list[log.Event]) -> None:
    for event in events:
        if isinstance(event, log.RequestPrepared):
            bodies.observe(event)


def test_what_follows_the_new_messages_is_not_stored_again() -> None:
    sent, natives = SentBodies(), [{"role": "user", "content": f"{number} " + "word " * 40} for number in range(3)]
    tools = [{"name": f"tool_{number}", "description": "what it does " * 20} for number in range(20)]

    def pieces(count: int) -> str:
        body = json.dumps({"messages": natives[:count], "tools": tools}).encode()
        found = sent.pieces(log.MAIN, body, range(count), natives.__getitem__)
        assert found is not None
        sent.observe(prepared(*found))
        return json.dumps(found)

    assert len(pieces(2)) > 4_000
    assert len(pieces(3)) < 300


@pytest.mark.parametrize(
    ("style", "flags", "between"),
    [
        ({"ensure_ascii": False, "separators": (",", ":")}, {}, ","),
        ({"ensure_ascii": True, "separators": (",", ":")}, {"escaped": True}, ","),
        ({"ensure_ascii": False}, {"spaced": True}, ", "),
        ({}, {"spaced": True, "escaped": True}, ", "),
    ],
)
def test_messages_are_found_however_the_client_writes_json(
    style: dict[str, Any], flags: dict[str, bool], between: str
) -> None:
    natives = [{"role": "user", "content": f"caf\u00e9 {number} " + "word " * 40} for number in range(9)]
    body = json.dumps({"messages": natives, "n": 1}, **style)
    head, tail = body[: body.index("[") + 1], body[body.rindex("]") :]

    stored = SentBodies().pieces(log.MAIN, body.encode(), range(9), natives.__getitem__)

    assert stored is not None
    assert stored[0] == (
        {"text": head},
        {"message": 0, **flags, "until": 9, "between": between},
        {"text": tail},
    )


def test_the_hash_is_that_of_the_bytes_after_another_writer_began_anew() -> None:
    natives = [{"role": "user", "content": f"{number} " + "word " * 40} for number in range(6)]
    one, other, events, bodies = SentBodies(), SentBodies(), list[log.Event](), list[bytes]()
    events += [log.MessageAppended(format="openai-chat", native=native) for native in natives]
    for writer, positions in ((one, [0, 1]), (one, [0, 1, 2]), (other, [2, 3, 4]), (one, [2, 3, 4, 5])):
        bodies.append(json.dumps({"messages": [natives[position] for position in positions]}).encode())
        pieces = writer.pieces(log.MAIN, bodies[-1], positions, natives.__getitem__)
        assert pieces is not None
        events.append(prepared(*pieces))
        observe_all(one, events[-1:])
        observe_all(other, events[-1:])

    found = [sent_body(events, number) for number in range(4)]

    assert [body and (body.content, body.is_same) for body in found] == [(body, True) for body in bodies]


def test_a_body_after_one_that_cannot_be_put_together_is_stored_whole() -> None:
    natives = [{"role": "user", "content": "word " * 40}]
    bodies = [json.dumps({"n": number, "messages": natives}).encode() for number in range(2)]
    first = SentBodies().pieces(log.MAIN, bodies[0], [0], natives.__getitem__)
    assert first is not None
    changed = prepared(({"text": "not what was sent"},), first[1])
    sent = SentBodies()
    sent.observe(changed)

    second = sent.pieces(log.MAIN, bodies[1], [0], natives.__getitem__)

    assert second is not None
    found = sent_body([log.MessageAppended(format="openai-chat", native=natives[0]), changed, prepared(*second)], 1)
    assert found is not None
    assert (found.content, found.is_same) == (bodies[1], True)


def test_a_message_that_is_in_no_log_does_not_hide_the_others() -> None:
    natives = [{"role": "user", "content": f"{number} " + "word " * 40} for number in range(3)]
    body = json.dumps({"messages": natives}, separators=(",", ":")).encode()

    stored = SentBodies().pieces(log.MAIN, body, [0, None, 1, None], natives.__getitem__)

    assert stored is not None
    assert [piece for piece in stored[0] if "message" in piece] == [{"message": 0, "until": 2, "between": ","}]


async def talk(session: Session, count: int) -> list[bytes]:
    """Talk as a client that marks its newest message for the cache, and return the bodies that it sent."""
    messages: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    for number in range(count):
        text = f"question {number}: " + "a long word and another " * 40
        messages.append({"role": "user", "content": [{"type": "text", "text": text, "cache_control": MARK}]})
        await session.sync(deepcopy(messages), format="anthropic-messages")
        body = json.dumps({"model": "m", "messages": messages, "tools": []}, separators=(",", ":")).encode()

        def encode(_request: Request, body: bytes = body) -> bytes:
            return body

        await session.prepare(10**6, encode_body=encode)
        bodies.append(body)
        del messages[-1]["content"][0]["cache_control"]
        messages.append({"role": "assistant", "content": f"answer {number}"})
        await session.record(messages[-1:])
    return bodies


async def test_a_request_is_stored_as_what_is_new_in_it() -> None:
    async with Session.open("s") as session:
        bodies = await talk(session, 12)
        events = await session.events()

    requests = [event for event in events if isinstance(event, log.RequestPrepared)]
    assert [one.content for number in range(12) if (one := sent_body(events, number))] == bodies
    stored = [len(json.dumps(event.body)) for event in requests]
    assert max(stored) < 600, "neither the marks that move nor the length of the list cost much"


async def talk_in_turns(sessions: Iterator[Session], count: int) -> list[bytes]:
    """Talk as a client of Python's `requests`, each turn in the next session, and return the bodies that it sent."""
    messages: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    tools = [{"name": f"tool_{number}", "description": "what it does " * 20} for number in range(20)]
    for number, session in zip(range(count), sessions, strict=False):
        messages.append({"role": "user", "content": f"question {number}: " + "a long word and another " * 40})
        await session.sync(deepcopy(messages))
        body = json.dumps({"model": "m", "tools": tools, "messages": messages}).encode()
        await session.prepare(10**6, encode_body=lambda _, body=body: body)
        bodies.append(body)
        messages.append({"role": "assistant", "content": f"answer {number}"})
        await session.record(messages[-1:])
    return bodies


async def test_programs_that_take_turns_store_what_is_new_and_nothing_wrong() -> None:
    store = MemoryStore()
    async with Session.open("s", store=store) as one, Session.open("s", store=store) as other:
        bodies = await talk_in_turns(cycle([one, one, other]), 12)
        events = await one.events()

    requests = [event for event in events if isinstance(event, log.RequestPrepared)]
    found = [sent_body(events, number) for number in range(12)]
    assert [one and (one.content, one.is_same) for one in found] == [(body, True) for body in bodies]
    assert max(len(json.dumps(event.body)) for event in requests[1:]) < 600


async def test_a_session_that_was_opened_again_stores_what_is_new() -> None:
    store = MemoryStore()
    async with Session.open("s", store=store) as session:
        first = await talk_in_turns(cycle([session]), 3)
    async with Session.open("s", store=store) as session:
        messages = [*json.loads(first[-1])["messages"], {"role": "user", "content": "and now?"}]
        await session.sync(messages)
        body = json.dumps(json.loads(first[-1]) | {"messages": messages}).encode()
        await session.prepare(10**6, encode_body=lambda _: body)
        events = await session.events()

    found = sent_body(events, 3)
    assert found is not None
    assert (found.content, found.is_same) == (body, True)
    requests = [event for event in events if isinstance(event, log.RequestPrepared)]
    assert len(json.dumps(requests[3].body)) < 300


async def test_the_bytes_of_a_long_session_that_was_opened_again_are_divided_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []
    divide = SentBodies.pieces

    def noting(*args: Any) -> object:
        threads.append(threading.current_thread())
        return divide(*args)

    monkeypatch.setattr(SentBodies, "pieces", noting)
    store = MemoryStore()
    messages = [{"role": ("user", "assistant")[number % 2], "content": f"message {number}"} for number in range(301)]
    for _ in range(2):
        async with Session.open("s", store=store) as session:
            await session.sync(messages)
            await session.prepare(10**6, encode_body=lambda _: json.dumps(messages).encode())
            await session.prepare(10**6, encode_body=lambda _: json.dumps(messages).encode())

    assert [thread is threading.main_thread() for thread in threads] == [False, True, False, True]


async def test_few_bodies_have_to_be_put_together_for_one() -> None:
    sent, events = SentBodies(), list[log.RequestPrepared]()
    for number in range(200):
        pieces = sent.pieces("main", b'{"a":{}}' + b" " * number, (), lambda _: {})
        assert pieces is not None
        events.append(prepared(*pieces))
        sent.observe(events[-1])

    whole = [number for number, event in enumerate(events) if not any("from" in piece for piece in event.body)]

    assert whole == [0, MAX_CHAIN, 2 * MAX_CHAIN, 3 * MAX_CHAIN]


async def test_a_scrubbed_secret_is_not_in_the_bytes_any_more() -> None:
    store = MemoryStore()
    async with Session.open("s", store=store) as session:
        messages = [{"role": "user", "content": "the key is sk-very-secret-1"}]
        await session.sync(messages)
        body = json.dumps({"messages": messages}, indent=2).encode()
        await session.prepare(10**6, encode_body=lambda _: body)

    await scrub(store, "s", "sk-very-secret-1", time_ms=1)

    async with Session.open("s", store=store) as session:
        found = sent_body(await session.events(), 0)
    assert found is not None
    assert (found.is_same, found.content) == (False, body.replace(b"sk-very-secret-1", TOMBSTONE.encode()))


@given(
    said=st.lists(st.tuples(st.sampled_from(["main", "other"]), st.booleans()), min_size=1, max_size=6),
    style=st.sampled_from(STYLES),
)
def test_every_request_after_a_scrub_has_all_bytes_but_the_secret(
    said: list[tuple[str, bool]], style: dict[str, Any]
) -> None:
    secret, store = 'sk-"very"-secret-1', MemoryStore()

    async def scrubbed() -> tuple[list[bytes], list[log.Event]]:
        messages: list[dict[str, Any]] = []
        bodies: list[bytes] = []
        async with Session.open("s", store=store) as session:
            for number, (tool, is_secret) in enumerate(said):
                text = f"caf\u00e9 {number}" + (f" the key is {secret}, as I said" if is_secret else "") + " word" * 20
                messages.append({"role": "user", "content": text})
                await session.sync(deepcopy(messages))
                body = json.dumps({"tools": [{"name": tool}], "messages": messages, "n": 1}, **style).encode()
                await session.prepare(10**6, encode_body=lambda _, body=body: body)
                bodies.append(body)
                messages.append({"role": "assistant", "content": f"answer {number}"})
                await session.record(messages[-1:])
        await scrub(store, "s", secret, time_ms=1)
        async with Session.open("s", store=store) as session:
            return bodies, await session.events()

    bodies, events = asyncio.run(scrubbed())

    spelled, tombstone = json.dumps(secret)[1:-1].encode(), TOMBSTONE.encode()
    found = [sent_body(events, number) for number in range(len(said))]
    assert [one and (one.content, one.is_scrubbed) for one in found] == [
        (body.replace(spelled, tombstone), spelled in body) for body in bodies
    ]


@pytest.mark.parametrize("wrong", [5, str, bool])
async def test_a_body_that_is_no_bytes_is_refused_and_nothing_is_recorded(wrong: Any) -> None:
    async with Session.open("s", store="memory://", model="gpt-5") as session:
        await session.record([{"role": "user", "content": "hi"}])
        before = await session.events()

        with pytest.raises(SettingsError, match="encode_body: must be a function that returns the bytes"):
            await session.prepare(5_000, encode_body=wrong)

        assert [event for event in await session.events() if isinstance(event, log.RequestPrepared)] == []
        assert (await session.events())[: len(before)] == before
