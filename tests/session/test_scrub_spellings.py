"""A scrub finds a secret however a client has written it in JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.gateway.recording.exchange import ClientRequest
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.history.events import MessageAppended
from holdfast.session.log.sent_body import sent_body
from holdfast.session.maintenance.scrub import TOMBSTONE, replace_secret, replace_secret_in_text, scrub
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.session import Session
from holdfast.stores.memory import MemoryStore

SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def spellings(character: str) -> list[str]:
    """Return every way in which JSON may write a character."""
    units = [int.from_bytes(pair, "big") for pair in zip(*[iter(character.encode("utf-16-be"))] * 2, strict=True)]
    ways = ["".join(f"\\u{unit:04x}" for unit in units), "".join(f"\\u{unit:04X}" for unit in units)]
    if character in SHORT_ESCAPES:
        ways.append(SHORT_ESCAPES[character])
    if character not in '"\\' and character >= " ":
        ways.append(character)
    return ways


@st.composite
def spelled_texts(draw: st.DrawFn) -> tuple[str, str, str]:
    """Return a secret, a JSON text that holds it in any spelling, and the same text with the tombstone in its place."""
    secret = "zq" + draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=2, max_size=12)) + "qz"
    head, tail = draw(st.text('ab\\/"{é😀', max_size=6)), draw(st.text('ab\\/"{é😀', max_size=6))
    parts = head, secret, tail
    for _ in range(draw(st.integers(1, 3))):
        parts = tuple("".join(draw(st.sampled_from(spellings(one))) for one in part) for part in parts)
        parts = f'{{"p":"{parts[0]}', parts[1], f'{parts[2]}"}}'
    return secret, "".join(parts), parts[0] + TOMBSTONE + parts[2]


@given(spelled_texts())
def test_a_secret_is_replaced_in_every_spelling_of_json_and_nothing_else_is(case: tuple[str, str, str]) -> None:
    secret, text, scrubbed = case

    assert replace_secret_in_text(text, secret) == (scrubbed, 1)


@pytest.mark.parametrize(
    ("value", "scrubbed", "count"),
    [
        ({"native": {"card": 4111111111111111}}, {"native": {"card": TOMBSTONE}}, 1),
        ({"native": {"card": [941111111111111112, True]}}, {"native": {"card": [TOMBSTONE, True]}}, 1),
        ({"native": {"card": 4.111111111111111e15}}, {"native": {"card": TOMBSTONE}}, 1),
        ({"native": {"card": 411111111111111}}, {"native": {"card": 411111111111111}}, 0),
        ({"native": '{"card": 4.111111111111111E+15}'}, {"native": f'{{"card": {TOMBSTONE}}}'}, 1),
        ({"timeMs": 4111111111111111, "tools": 4111111111111111}, None, 0),
    ],
)
def test_a_secret_of_digits_is_replaced_in_the_numbers_of_others_and_never_in_ours(
    value: dict[str, Any], scrubbed: dict[str, Any] | None, count: int
) -> None:
    assert replace_secret(value, "4111111111111111") == (value if scrubbed is None else scrubbed, count)


SECRET = "p&ss<w0rd>/ä+x"
NUMBER = 4111111111111111
TOOL_CALL = {
    "id": "a",
    "type": "function",
    "function": {
        "name": "pay",
        "arguments": '{"p":"p\\u0026ss\\u003Cw0rd>\\/\\u00E4\\u002Bx","card":4111111111111111}',
    },
}
MESSAGES = [
    {"role": "user", "content": f"my password is {SECRET}"},
    {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
    {"role": "tool", "tool_call_id": "a", "content": f"paid with {NUMBER}"},
]


@pytest.mark.parametrize(
    ("written", "spelled"),
    [("&", "\\u0026"), ("<", "\\u003c"), ("/", "\\/"), ("\\u00e4", "\\u00E4"), ("+", "\\u002B")],
)
async def test_a_body_that_another_language_has_written_is_scrubbed(written: str, spelled: str) -> None:
    store = MemoryStore()
    recorder = Recorder(store)
    body = json.dumps({"model": "gpt-5", "messages": MESSAGES}).replace(written, spelled)
    request = ClientRequest(
        wire="openai-chat",
        path="/v1/chat/completions",
        session_in_path="talk",
        headers={},
        body=body.encode(),
        namespace="",
        upstream="x",
    )
    await recorder.receive(request)
    await recorder.close()

    counts = [(await scrub(store, "talk", secret, time_ms=1)).count for secret in (SECRET, str(NUMBER))]

    async with Session.open("talk", store=store) as session:
        events = await session.events()
    arguments = f'{{"p":"{TOMBSTONE}","card":{TOMBSTONE}}}'
    natives = [dict(event.native) for event in events if isinstance(event, MessageAppended)]
    assert natives == [
        {"role": "user", "content": f"my password is {TOMBSTONE}"},
        {**MESSAGES[1], "tool_calls": [{**TOOL_CALL, "function": {"name": "pay", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "a", "content": f"paid with {TOMBSTONE}"},
    ]
    sent = sent_body(events, 0)
    assert sent is not None
    assert (json.loads(sent.content)["messages"], sent.is_scrubbed) == (natives, True)
    assert [(one.is_same, one.is_scrubbed) for one in rebuilt_requests(events)] == [(False, True)]
    assert [count > 0 for count in counts] == [True, True]


async def test_a_number_that_was_scrubbed_is_not_found_by_search() -> None:
    store = MemoryStore()
    block = {"type": "tool_use", "id": "a", "name": "pay", "input": {"card": NUMBER}}
    async with Session.open("s", store=store, format="anthropic-messages") as session:
        await session.record([{"role": "user", "content": "pay"}, {"role": "assistant", "content": [block]}])
    found = [len(await store.search(str(NUMBER)))]

    done = await scrub(store, "s", str(NUMBER), time_ms=1)

    found.append(len(await store.search(str(NUMBER))))
    assert (found, done.count) == ([1, 0], 1)
