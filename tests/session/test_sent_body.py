"""The bytes of every request can be put together again from the log."""

import json
from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.history import events as log
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


@given(said=st.lists(BODIES, min_size=1, max_size=8), has_spaces=st.booleans())
def test_any_bodies_are_put_together_again_to_the_byte(
    said: list[tuple[str, list[tuple[str, bool]]]], *, has_spaces: bool
) -> None:
    sent, events, bodies, natives = SentBodies(), list[log.Event](), list[bytes](), list[dict[str, Any]]()
    for scope, words in said:
        messages = [
            {"content": [{"text": word} | ({"cache_control": MARK} if is_marked else {})]} for word, is_marked in words
        ]
        first, separators = len(natives), None if has_spaces else (",", ":")
        natives += messages
        events += [log.MessageAppended(format="anthropic-messages", native=one, scope=scope) for one in messages]
        body = json.dumps({"messages": messages, "x": {}}, ensure_ascii=False, separators=separators).encode()
        pieces = sent.pieces(scope, body, [None, *range(first, len(natives))], natives.__getitem__)
        assert pieces is not None
        events.append(prepared(*pieces, scope))
        bodies.append(body)

    found = [sent_body(events, number) for number in range(len(said))]

    assert [one and (one.content, one.is_same) for one in found] == [(body, True) for body in bodies]


def test_what_follows_the_new_messages_is_not_stored_again() -> None:
    sent, natives = SentBodies(), [{"role": "user", "content": f"{number} " + "word " * 40} for number in range(3)]
    tools = [{"name": f"tool_{number}", "description": "what it does " * 20} for number in range(20)]

    def pieces(count: int) -> str:
        body = json.dumps({"messages": natives[:count], "tools": tools}).encode()
        return json.dumps(sent.pieces(log.MAIN, body, range(count), natives.__getitem__))

    assert len(pieces(2)) > 4_000
    assert len(pieces(3)) < 1_000


def test_a_message_that_is_in_no_log_does_not_hide_the_others() -> None:
    natives = [{"role": "user", "content": f"{number} " + "word " * 40} for number in range(3)]
    body = json.dumps({"messages": natives}, separators=(",", ":")).encode()

    stored = SentBodies().pieces(log.MAIN, body, [0, None, 1, None], natives.__getitem__)

    assert stored is not None
    assert [piece for piece in stored[0] if "message" in piece] == [{"message": 0}, {"message": 1}]


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


async def test_few_bodies_have_to_be_put_together_for_one() -> None:
    sent = SentBodies()
    events = [
        prepared(*(sent.pieces("main", b'{"a":{}}' + b" " * number, (), lambda _: {}) or ((), "")))
        for number in range(200)
    ]

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
