"""Clients of OpenAI Responses that send the ids of items in place of the items, because the provider keeps them."""

import json
from typing import Any

import pytest

from holdfast import validate
from holdfast.apps.gateway.recording.client_body import read_body
from holdfast.apps.gateway.recording.exchange import ClientRequest, Exchange
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.apps.gateway.recording.references import MAX_KNOWN_BYTES, ReferredItems
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events

Json = dict[str, Any]
ASKED: Json = {"role": "user", "content": [{"type": "input_text", "text": "What is my boat called?"}]}
LOOKED: Json = {"type": "function_call_output", "call_id": "call_0001", "output": "Albatross"}
AGAIN: Json = {"role": "user", "content": [{"type": "input_text", "text": "Are you sure?"}]}
REPLIES = (ProviderReply(tool="look", arguments={"at": "bow"}), ProviderReply("Albatross."), ProviderReply("Yes."))


def feed(exchange: Exchange, reply: ProviderReply, number: int) -> list[Json]:
    """Give an exchange the stream of an answer, and return the answer's items."""
    items: list[Json] = []
    events: Any = stream_events("openai-responses", reply, number)
    for kind, event in events:
        exchange.feed(event_bytes(kind, event))
        items += [event["item"]] if kind == "response.output_item.done" else []
    return items


def reference_to(item: Json) -> Json:
    return {"type": "item_reference", "id": item["id"]}


async def ask(store: Store, name: str | None, listed: list[Json], number: int) -> tuple[str, list[Json], bytes]:
    """Send a list to a gateway that has just started; return its session, the answer's items, and what was sent."""
    recorder = Recorder(store)
    body = json.dumps({"model": "m", "input": listed}).encode()
    exchange = await recorder.receive(ClientRequest("openai-responses", "/v1/responses", name, {}, body, "", "x"))
    done = feed(exchange, REPLIES[number - 1], number)
    await exchange.finish("complete", 200)
    await recorder.close()
    return exchange.session_id, done, exchange.body


@pytest.mark.parametrize("name", ["talk", None], ids=["named", "unnamed"])
async def test_a_list_with_references_continues_its_conversation_and_the_log_has_the_items(name: str | None) -> None:
    store = MemoryStore()

    first, [call], _ = await ask(store, name, [ASKED], 1)
    second, [answer], sent = await ask(store, name, [ASKED, reference_to(call), LOOKED], 2)
    listed = [ASKED, reference_to(call), LOOKED, reference_to(answer), AGAIN]
    third, [last], _ = await ask(store, name, listed, 3)

    async with Recorder(store).session(first) as opened:
        recorded = [*await opened.session.messages()]
        kinds = {type(event).__name__ for event in await opened.session.events()}
    assert first == second == third
    assert recorded == [ASKED, call, LOOKED, answer, AGAIN, last]
    assert validate(recorded[:-1], "openai-responses") == []
    assert "Rewound" not in kinds
    assert json.loads(sent)["input"][1] == reference_to(call)


async def test_a_reference_to_what_no_session_has_is_recorded_as_it_came() -> None:
    store, unknown = MemoryStore(), {"type": "item_reference", "id": "msg_9"}

    session_id, [call], _ = await ask(store, None, [unknown, ASKED], 1)

    async with Recorder(store).session(session_id) as opened:
        assert [*await opened.session.messages()] == [unknown, ASKED, call]


async def test_the_items_of_another_namespace_are_never_found() -> None:
    store = MemoryStore()
    _, [call], _ = await ask(store, None, [ASKED], 1)
    recorder = Recorder(store)
    body = json.dumps({"model": "m", "input": [reference_to(call), ASKED]}).encode()

    request = ClientRequest("openai-responses", "/v1/responses", None, {}, body, "other", "x")
    exchange = await recorder.receive(request)

    async with recorder.session(exchange.session_id) as opened:
        assert (await opened.session.messages())[0] == reference_to(call)
    await exchange.finish("complete", 200)
    await recorder.close()


async def test_a_list_of_references_that_is_made_smaller_keeps_each_call_with_its_result() -> None:
    recorder, items, listed = Recorder(MemoryStore(), budget=3_000), dict[str, Json](), list[Json]()
    violations, sizes = list[Any](), list[tuple[int, int]]()
    for turn in range(16):
        if turn % 2:
            output = {"type": "function_call_output", "call_id": f"call_{turn:04}", "output": "out " * 200}
        else:
            output = {"role": "user", "content": [{"type": "input_text", "text": f"{turn} " + "word " * 100}]}
        listed.append(output)
        body = json.dumps({"model": "gpt-5", "input": listed}).encode()
        exchange = await recorder.receive(ClientRequest("openai-responses", "/v1/responses", "s", {}, body, "", "x"))
        sent: list[Any] = [items.get(str(one.get("id")), one) for one in json.loads(exchange.body)["input"]]
        violations += validate(sent, "openai-responses")
        sizes.append((len(body), len(exchange.body)))
        reply = ProviderReply("answer " * 50) if turn % 2 else ProviderReply(tool="look", arguments={"a": "x " * 100})
        for item in feed(exchange, reply, turn + 1):
            items[item["id"]] = item
            listed.append(reference_to(item))
        await exchange.finish("complete", 200)
    await recorder.close()

    assert violations == []
    assert sizes[0][0] == sizes[0][1]
    assert sizes[-1][0] > sizes[-1][1]


async def test_the_items_in_memory_have_a_limit_of_bytes_and_the_log_has_the_others() -> None:
    store = MemoryStore()
    _, [call], _ = await ask(store, "talk", [ASKED], 1)
    recorder = Recorder(store)
    items = ReferredItems(recorder.sessions)
    items.note("", [{"id": f"ig_{number}", "result": "x" * 1_000_000} for number in range(40)])
    full = items.size
    body = read_body("openai-responses", sent := json.dumps({"input": [ASKED, reference_to(call)]}).encode())

    await items.resolve("", body, sent)
    await recorder.close()

    assert MAX_KNOWN_BYTES - 1_100_000 < full <= MAX_KNOWN_BYTES
    assert (items.size <= MAX_KNOWN_BYTES, body.message(1)) == (True, call)
