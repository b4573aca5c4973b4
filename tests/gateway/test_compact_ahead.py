"""Once a client has its whole answer, the gateway makes the digest that the next request would else wait for."""

import asyncio
import json
from dataclasses import replace

import pytest

from holdfast.apps.gateway.recording.exchange import ClientRequest, Exchange
from holdfast.apps.gateway.recording.governing import requested_governing
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.history import events as log
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.gateway.serving import RawClient, ask, running_gateway
from tests.gateway.test_recording import chat
from tests.support import wait_until

BUDGET, TURNS, READY = 4_000, 16, 12
"""After the last number of turns, the next request would be compacted."""


async def answer(exchange: Exchange, request: ClientRequest, text: str) -> None:
    for name, event in stream_events(request.wire, ProviderReply(text), 1):
        exchange.feed(event_bytes(name, event))
    await exchange.finish("complete", 200)


async def count_compactions(recorder: Recorder, session_id: str) -> int:
    async with recorder.session(session_id) as opened:
        events = await opened.session.events()
    return sum(isinstance(event, log.CompactionCompleted) for event in events)


async def conversed(
    recorder: Recorder, *, has_answer: bool = True, mode: str | None = None
) -> tuple[list[int], list[int]]:
    """Return the turns that compacted in the request, and those that did after the answer."""
    said, while_waiting, afterwards, known = list[str](), list[int](), list[int](), 0
    for turn in range(TURNS):
        said.append(f"prompt {turn} " + "word " * 300)
        request = chat(*said, name="s")
        if mode is not None:
            request = replace(request, governing=requested_governing({"x-holdfast-compaction": mode}, ""))
        exchange = await recorder.receive(request)
        count = await count_compactions(recorder, "s")
        while_waiting += [turn] * (count - known)
        said.append(f"Answer {turn}.")
        await answer(exchange, request, said[-1])
        exchange.work_ahead(has_answer=has_answer)
        opened = recorder.sessions.get("s")
        assert opened is not None
        await wait_until(lambda opened=opened: not opened.users)
        known = await count_compactions(recorder, "s")
        afterwards += [turn] * (known - count)
    return while_waiting, afterwards


async def test_no_request_of_a_chat_waits_for_a_digest() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)

    while_waiting, afterwards = await conversed(recorder)
    await recorder.close()

    assert (while_waiting, len(afterwards) >= 2) == ([], True)


async def test_a_client_without_its_whole_answer_may_ask_again_so_nothing_changes_before_it_does() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)

    while_waiting, afterwards = await conversed(recorder, has_answer=False)
    await recorder.close()

    assert (len(while_waiting) >= 2, afterwards) == (True, [])


@pytest.mark.parametrize("mode", ["off", "ask"])
async def test_nothing_is_compacted_ahead_where_a_request_would_not_compact(mode: str) -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)

    compacted = await conversed(recorder, mode=mode)
    await recorder.close()

    assert compacted == ([], [])


async def test_the_next_request_is_sent_as_compacted_and_its_headers_say_so() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    _, afterwards = await conversed(recorder)
    said = [text for turn in range(TURNS) for text in (f"prompt {turn} " + "word " * 300, f"Answer {turn}.")]

    exchange = await recorder.receive(chat(*said, "And now?", name="s"))
    await exchange.give_up()
    await recorder.close()

    assert afterwards
    assert exchange.headers["x-holdfast-compacted"] == "1"
    assert int(exchange.headers["x-holdfast-tokens"]) <= BUDGET


STREAM = b"".join(event_bytes(*event) for event in stream_events("openai-chat", ProviderReply("Done."), 1))
CHUNKED = FaultyAnswer(headers=(("content-type", "text/event-stream"),), pieces=[STREAM], framing="chunked")
SAID, COMPACTED = log.MessageAppended.KIND, log.CompactionCompleted.KIND


async def logged(store: MemoryStore) -> list[str]:
    """Return what the log of the session holds, as it is stored."""
    return [str(one.record["type"]) for one in await store.read("s")]


async def compacted_log(store: MemoryStore) -> list[str]:
    """Return the log as soon as it ends with a compaction."""
    async with asyncio.timeout(60):
        while True:
            if (kinds := await logged(store))[-1] == COMPACTED:
                return kinds
            await asyncio.sleep(0)


def chat_body(turn: int) -> bytes:
    """Return a request with a new prompt after so many turns."""
    prompts = ({"role": "user", "content": f"prompt {number} " + "word " * 300} for number in range(turn + 1))
    said = [message for prompt in prompts for message in (prompt, {"role": "assistant", "content": "Done."})][:-1]
    return json.dumps({"model": "gpt-5", "stream": True, "messages": said}).encode()


async def test_the_gateway_compacts_when_the_client_has_its_answer_and_not_when_it_has_left() -> None:
    store = MemoryStore()
    async with FaultyUpstream(CHUNKED) as upstream, running_gateway(upstream.url, store=store, budget=BUDGET) as url:
        for turn in range(READY - 1):
            await ask(url, body=chat_body(turn), x_session_id="s")
        upstream.answer = replace(CHUNKED, fault="stall", at=len(STREAM))
        leaving = RawClient(url)
        await leaving.send("POST", "/v1/chat/completions", chat_body(READY - 1), {"x-session-id": "s"})
        await leaving.read(until=b"Done")
        leaving.leave()
        await upstream.client_left.wait()
        upstream.answer = CHUNKED
        seen = await ask(url, body=chat_body(READY - 1), x_session_id="s")
        kinds = await compacted_log(store)

    assert (seen.status, seen.body) == (200, STREAM)
    assert kinds.count(COMPACTED) == 1
    assert kinds[-4:] == [log.UsageMeasured.KIND, log.RequestPrepared.KIND, SAID, COMPACTED]
