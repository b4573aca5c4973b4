"""Answers that a client has in another form than the log: joined with their beginning, or with a call that was cut."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import validate
from holdfast.apps.gateway.recording.client_body import LIST_MEMBERS
from holdfast.apps.gateway.recording.exchange import ClientRequest, Exchange
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.history import events as log
from holdfast.errors import RecordingError
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events
from holdfast.wire.answers import Wire

Json = dict[str, Any]
WORDS = "word " * 120
WIRES: tuple[Wire, ...] = ("anthropic", "openai-chat", "gemini")
PATHS: dict[Wire, str] = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/g:generateContent",
}


def said(wire: Wire, role: str, *texts: str) -> Json:
    """Return a message of a wire; several texts are blocks of it."""
    if wire == "gemini":
        return {"role": "model" if role == "assistant" else role, "parts": [{"text": text} for text in texts]}
    return {"role": role, "content": texts[0] if len(texts) == 1 else [{"type": "text", "text": t} for t in texts]}


class Client:
    """Sends lists to a recorder, and gets answers."""

    def __init__(self, recorder: Recorder, wire: Wire, name: str | None = "talk") -> None:
        self.recorder, self.name, self.session_id = recorder, name, ""
        self.wire: Wire = wire

    async def send(self, *messages: Json) -> Exchange:
        body = json.dumps({"model": "m", "max_tokens": 9, LIST_MEMBERS[self.wire]: [*messages]}).encode()
        exchange = await self.recorder.receive(ClientRequest(self.wire, PATHS[self.wire], self.name, {}, body, "", "x"))
        assert exchange.body == body
        self.session_id = exchange.session_id
        return exchange

    async def ask(self, text: str, *messages: Json, number: int = 1) -> None:
        exchange = await self.send(*messages)
        for name, event in stream_events(self.wire, ProviderReply(text), number):
            exchange.feed(event_bytes(name, event))
        await exchange.finish("complete", 200)

    async def log(self) -> tuple[list[Any], int]:
        """Return what the session has as its conversation, and how often it went back."""
        async with self.recorder.session(self.session_id) as opened:
            natives, events = await opened.session.messages(), await opened.session.events()
        return [*natives], sum(isinstance(event, log.Rewound) for event in events)


def texts_in(natives: list[Any]) -> list[str]:
    """Return the text of each message."""
    contents = [native.get("content", native.get("parts")) for native in natives]
    return [one if isinstance(one, str) else "".join(block["text"] for block in one) for one in contents]


@pytest.mark.parametrize("name", ["talk", None], ids=["named", "unnamed"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize("form", ["one text", "two blocks", "two messages"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_prefilled_answer_is_the_same_however_the_client_joins_it(
    wire: Wire, form: str, name: str | None, *, is_restarted: bool
) -> None:
    store = MemoryStore()
    client = Client(Recorder(store), wire, name)
    prompt, begun, rest = said(wire, "user", "in JSON"), said(wire, "assistant", "{"), '"a": 1}'
    await client.ask(rest, prompt, begun)
    first = client.session_id
    joined = {
        "one text": [said(wire, "assistant", "{" + rest)],
        "two blocks": [said(wire, "assistant", "{", rest)],
        "two messages": [begun, said(wire, "assistant", rest)],
    }[form]

    if is_restarted:
        await client.recorder.close()
        client.recorder = Recorder(store)
    await client.ask("one", prompt, *joined, said(wire, "user", "how many?"), number=2)
    if is_restarted:
        await client.recorder.close()
        client.recorder = Recorder(store)
    last = [*joined, said(wire, "user", "how many?"), said(wire, "assistant", "one"), said(wire, "user", "thanks")]
    await client.ask("bye", prompt, *last, number=3)

    natives, rewinds = await client.log()
    assert texts_in(natives) == ["in JSON", "{", rest, "how many?", "one", "thanks", "bye"]
    assert (client.session_id, rewinds) == (first, 0)
    await client.recorder.close()


@pytest.mark.parametrize(("count", "rewinds"), [(15, 0), (40, 1)])
async def test_a_long_run_of_messages_is_compared_with_one_only_as_far_as_a_limit(count: int, rewinds: int) -> None:
    client = Client(Recorder(MemoryStore()), "anthropic")
    prompt, run = said("anthropic", "user", "count"), [said("anthropic", "assistant", f"{n} ") for n in range(count)]
    whole = "".join(f"{n} " for n in range(count)) + "end"

    await client.ask("end", prompt, *run)
    await client.ask(
        "bye", prompt, said("anthropic", "assistant", whole), said("anthropic", "user", "thanks"), number=2
    )

    assert (await client.log())[1] == rewinds
    await client.recorder.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_that_is_continued_twice_and_joined_each_time_never_goes_back(wire: Wire) -> None:
    client = Client(Recorder(MemoryStore()), wire)
    prompt = said(wire, "user", "a long one")

    await client.ask("one two ", prompt)
    await client.ask("three ", prompt, said(wire, "assistant", "one two "), number=2)
    await client.ask("four", prompt, said(wire, "assistant", "one two three "), number=3)
    whole = [prompt, said(wire, "assistant", "one two three four"), said(wire, "user", "thanks")]
    await client.ask("bye", *whole, number=4)

    natives, rewinds = await client.log()
    assert (texts_in(natives), rewinds) == (["a long one", "one two ", "three ", "four", "thanks", "bye"], 0)
    await client.recorder.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_another_answer_to_the_same_beginning_takes_the_place_of_the_first_one(wire: Wire) -> None:
    client = Client(Recorder(MemoryStore()), wire)
    prompt, begun = said(wire, "user", "in JSON"), said(wire, "assistant", "{")

    await client.ask('"a": 1}', prompt, begun)
    await client.ask('"a": 2}', prompt, begun, number=2)

    natives, rewinds = await client.log()
    assert (texts_in(natives), rewinds) == (["in JSON", "{", '"a": 2}'], 1)
    await client.recorder.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_that_the_client_edits_after_its_beginning_is_an_edit(wire: Wire) -> None:
    client = Client(Recorder(MemoryStore()), wire)
    prompt, begun = said(wire, "user", "in JSON"), said(wire, "assistant", "{")

    await client.ask('"a": 1}', prompt, begun)
    await client.ask("yes", prompt, said(wire, "assistant", '{"a": 7}'), said(wire, "user", "sure?"))

    natives, rewinds = await client.log()
    assert (texts_in(natives), rewinds) == (["in JSON", '{"a": 7}', "sure?", "yes"], 1)
    await client.recorder.close()


async def test_a_joined_answer_is_sent_once_when_other_messages_are_compacted() -> None:
    recorder, wire = Recorder(MemoryStore(), budget=2_000), "anthropic"
    listed: list[Json] = []
    sent: list[Json] = []
    for number in range(24):
        listed.append(said(wire, "user", f"prompt {number}: {WORDS}"))
        body = json.dumps({"model": "m", "max_tokens": 9, "messages": [*listed, said(wire, "assistant", "{")]})
        exchange = await recorder.receive(ClientRequest(wire, PATHS[wire], "talk", {}, body.encode(), "", "x"))
        for name, event in stream_events(wire, ProviderReply(f'"answer": {number}}}'), number):
            exchange.feed(event_bytes(name, event))
        await exchange.finish("complete", 200)
        listed.append(said(wire, "assistant", f'{{"answer": {number}}}'))
        sent.append(json.loads(exchange.body))

    for number, body in enumerate(sent):
        answers = texts_in([message for message in body["messages"] if message["role"] == "assistant"])
        kept = range(number + 1 - len(answers), number)
        assert answers == [*(f'{{"answer": {one}}}' for one in kept), "{"]
    assert len(sent[-1]["messages"]) < len(listed)
    async with recorder.session("talk") as opened:
        assert not any(isinstance(event, log.Rewound) for event in await opened.session.events())
    await recorder.close()


# Chunks.


def chunk(*parts: Json) -> Json:
    return {"role": "model", "parts": [*parts]}


def called(name: str, given_id: str | None = None) -> Json:
    call = {"name": name, "args": {"path": "src/a.py"}} | ({"id": given_id} if given_id else {})
    return {"functionCall": call, "thoughtSignature": "c2lnbmVk"}


def returned(*names: str, given_ids: Sequence[str] = ()) -> Json:
    results = [{"name": name, "response": {"output": WORDS}} for name in names]
    results = [one | {"id": given} for one, given in zip(results, given_ids, strict=True)] if given_ids else results
    return {"role": "user", "parts": [{"functionResponse": one} for one in results]}


async def answer_in_chunks(exchange: Exchange, *contents: Json) -> None:
    """Answer a request in chunks of Gemini."""
    candidates = [{"content": one} for one in contents] + [{"finishReason": "STOP"}]
    for one in candidates:
        exchange.feed(event_bytes("", {"candidates": [one]}))
    await exchange.finish("complete", 200)


async def test_a_content_that_a_client_adds_to_an_answer_in_chunks_follows_it_in_the_log() -> None:
    client = Client(Recorder(MemoryStore()), "gemini")
    listed, chunks = [said("gemini", "user", "hi")], [chunk({"text": "Hel"}), chunk({"text": "lo"})]

    await answer_in_chunks(await client.send(*listed), *chunks)
    listed += [*chunks, said("gemini", "assistant", "I mean: "), said("gemini", "user", "more")]
    await client.ask("Yes.", *listed)
    listed += [said("gemini", "assistant", "Yes."), said("gemini", "user", "sure?")]
    await client.ask("No.", *listed)

    natives, rewinds = await client.log()
    assert (texts_in(natives), rewinds) == (["hi", "Hello", "I mean: ", "more", "Yes.", "sure?", "No."], 0)
    await client.recorder.close()


@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "restarted"])
async def test_an_answer_in_chunks_that_the_client_edits_is_recorded_again_from_there(*, is_restarted: bool) -> None:
    store = MemoryStore()
    client = Client(Recorder(store), "gemini")
    first, chunks = said("gemini", "user", "hi"), [chunk({"text": "Hel"}), chunk({"text": "lo"})]
    await answer_in_chunks(await client.send(first), *chunks)
    await answer_in_chunks(await client.send(first, *chunks, said("gemini", "user", "more")), *chunks)

    if is_restarted:
        await client.recorder.close()
        client.recorder = Recorder(store)
    edited = [first, chunks[0], chunk({"text": "p"}), said("gemini", "user", "more")]
    await answer_in_chunks(await client.send(*edited), *chunks)

    natives, rewinds = await client.log()
    assert (texts_in(natives), rewinds) == (["hi", "Help", "more", "Hello"], 1)
    await client.recorder.close()


async def test_two_prompts_and_answers_that_say_the_same_are_both_recorded() -> None:
    client = Client(Recorder(MemoryStore()), "gemini", None)
    turn = [said("gemini", "user", "again"), chunk({"text": "O"}), chunk({"text": "k"})]

    for count in range(3):
        await answer_in_chunks(await client.send(*turn * count, turn[0]), *turn[1:])

    natives, rewinds = await client.log()
    assert (texts_in(natives), rewinds) == (["again", "Ok"] * 3, 0)
    await client.recorder.close()


async def test_a_call_whose_arguments_come_in_chunks_is_the_same_call_in_these_chunks() -> None:
    client = Client(Recorder(MemoryStore()), "gemini", None)
    pieces = [{"jsonPath": "$.path", "stringValue": one, "willContinue": True} for one in ("src/", "a.py")]
    chunks = [
        chunk({"functionCall": {"name": "read", "willContinue": True}, "thoughtSignature": "c2lnbmVk"}),
        *(chunk({"functionCall": {"partialArgs": [piece], "willContinue": True}}) for piece in pieces),
        chunk({"functionCall": {}}),
    ]
    prompt = said("gemini", "user", "read it")

    await answer_in_chunks(await client.send(prompt), *chunks)
    await client.ask("Done.", prompt, *chunks, returned("read"))

    natives, rewinds = await client.log()
    assert (natives, rewinds) == ([prompt, chunk(called("read")), returned("read"), chunk({"text": "Done."})], 0)
    await client.recorder.close()


async def test_chunks_of_a_list_that_no_gateway_has_seen_are_recorded_as_one_answer() -> None:
    client = Client(Recorder(MemoryStore()), "gemini")
    chunks = [chunk({"text": "I look."}), chunk(called("read")), chunk(called("run")), chunk({"text": ""})]
    listed = [said("gemini", "user", "look"), *chunks, returned("read", "run")]

    await client.ask("Yes.", *listed)
    await client.ask("No.", *listed, said("gemini", "assistant", "Yes."), said("gemini", "user", "sure?"), number=2)

    natives, rewinds = await client.log()
    answer = chunk({"text": "I look."}, called("read"), called("run"), {"text": ""})
    answered = [
        said("gemini", "assistant", "Yes."),
        said("gemini", "user", "sure?"),
        said("gemini", "assistant", "No."),
    ]
    assert (natives, rewinds) == ([listed[0], answer, listed[-1], *answered], 0)
    await client.recorder.close()


@pytest.mark.parametrize("parts", [True, ["text"], [{"text": 5}]], ids=str)
async def test_a_content_that_breaks_the_rules_is_not_hidden_by_the_chunks_beside_it(parts: object) -> None:
    client = Client(Recorder(MemoryStore()), "gemini")
    prompt, chunks = said("gemini", "user", "hi"), [chunk({"text": "Hel"}), chunk({"text": "lo"})]
    await answer_in_chunks(await client.send(prompt), *chunks)

    with pytest.raises(RecordingError, match=r"parts.*must be"):
        await client.send(prompt, *chunks, {"role": "model", "parts": parts}, said("gemini", "user", "more"))

    await client.recorder.close()


@pytest.mark.parametrize("gives_ids", [False, True], ids=["", "with ids of the client"])
async def test_calls_in_chunks_and_their_results_are_sent_together_when_others_are_compacted(
    *, gives_ids: bool
) -> None:
    recorder, listed, sent = Recorder(MemoryStore(), budget=2_000), list[Json](), list[list[Json]]()
    for number in range(12):
        listed.append(said("gemini", "user", f"prompt {number}: {WORDS}"))
        chunks = [[chunk({"text": "I look."}), chunk(called("read")), chunk(called("run"))], [chunk({"text": "Done."})]]
        for answer in chunks:
            body = json.dumps({"contents": listed}).encode()
            exchange = await recorder.receive(ClientRequest("gemini", PATHS["gemini"], "talk", {}, body, "", "x"))
            sent.append(json.loads(exchange.body)["contents"])
            await answer_in_chunks(exchange, *answer)
            listed += answer
            if answer is chunks[0]:
                ids = [f"read-{number}", f"run-{number}"] if gives_ids else []
                listed[-2:] = [chunk(called(*one)) for one in zip(("read", "run"), ids or (None, None), strict=True)]
                listed.append(returned("read", "run", given_ids=ids))

    call = chunk({"text": "I look."}, called("read"), called("run"))
    compacted = [one for one in sent if not one[0]["parts"][0]["text"].startswith("prompt")]
    assert [validate(one, "gemini") for one in compacted] == [[]] * len(compacted)
    assert [one for one in compacted[-1] if "functionCall" in str(one)][-1:] == [call]
    assert [one for one in compacted[-1] if "functionResponse" in str(one)][-1:] == [returned("read", "run")]
    async with recorder.session("talk") as opened:
        assert (len(await opened.session.messages()), len(compacted) > 4) == (48, True)
    await recorder.close()


# Calls that were cut.

CUT = '{"path": "src/a.py", "text": "def f'
CALLS: dict[Wire, Json] = {
    "anthropic": {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I write."},
            {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {"arguments": CUT}},
        ],
    },
    "openai-chat": {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "write", "arguments": CUT}}],
    },
    "openai-responses": {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "write",
        "arguments": CUT,
        "status": "incomplete",
    },
}
"""What is recorded of a call whose arguments were cut."""


def cut_call(wire: Wire) -> bytes:
    """Return the stream of an answer that reached its limit in the middle of a call's arguments."""
    half = len(CUT) // 2
    pieces = (CUT[:half], CUT[half:])
    if wire == "openai-responses":
        ended = {"id": "r1", "status": "incomplete", "output": [CALLS[wire]]}
        events: list[Json] = [
            *({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": one} for one in pieces),
            {"type": "response.incomplete", "response": ended},
        ]
    elif wire == "openai-chat":
        start = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "write", "arguments": ""}}
        deltas = [start, *({"index": 0, "function": {"arguments": piece}} for piece in pieces)]
        events = [{"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]} for one in deltas]
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    else:
        call = {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {}}
        events = [
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "I write."}},
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_start", "index": 1, "content_block": call},
            *(
                {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": one}}
                for one in pieces
            ),
            {"type": "content_block_stop", "index": 1},
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}},
            {"type": "message_stop"},
        ]
    return b"".join(event_bytes(str(event.get("type") or ""), event) for event in events)


def with_arguments(wire: Wire, arguments: Json) -> Json:
    """Return the call as a client has it that could not parse the arguments that came."""
    copy: Json = json.loads(json.dumps(CALLS[wire]))
    if wire == "anthropic":
        copy["content"][1]["input"] = arguments
    elif wire == "openai-chat":
        copy["tool_calls"][0]["function"]["arguments"] = json.dumps(arguments)
    else:
        copy["arguments"] = json.dumps(arguments)
    return copy


def result(wire: Wire) -> Json:
    if wire == "anthropic":
        block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "bad input", "is_error": True}
        return {"role": "user", "content": [block]}
    if wire == "openai-chat":
        return {"role": "tool", "tool_call_id": "call_1", "content": "bad input"}
    return {"type": "function_call_output", "call_id": "call_1", "output": "bad input"}


@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize(
    ("arguments", "name"),
    [(None, "talk"), ({}, "talk"), ({"path": "src/a.py"}, "talk"), (None, None), ({}, None)],
    ids=["as they came", "none", "those that were whole", "as they came, unnamed", "none, unnamed"],
)
@pytest.mark.parametrize("wire", CALLS)
async def test_a_call_that_was_cut_keeps_what_came_whatever_the_client_makes_of_it(
    wire: Wire, arguments: Json | None, name: str | None, *, is_restarted: bool
) -> None:
    store = MemoryStore()
    client = Client(Recorder(store), wire, name)
    prompt = said(wire, "user", "write it")
    exchange = await client.send(prompt)
    first = exchange.session_id
    exchange.feed(cut_call(wire))
    await exchange.finish("complete", 200)
    call = CALLS[wire] if arguments is None else with_arguments(wire, arguments)

    if is_restarted:
        await client.recorder.close()
        client.recorder = Recorder(store)
    await client.ask("again", prompt, call, result(wire))
    if is_restarted:
        await client.recorder.close()
        client.recorder = Recorder(store)
    await client.send(prompt, call, result(wire), said(wire, "assistant", "again"), said(wire, "user", "go on"))

    natives, rewinds = await client.log()
    assert (natives[1], client.session_id, len(natives), rewinds) == (CALLS[wire], first, 5, 0)
    await client.recorder.close()


async def test_a_call_that_was_cut_after_the_beginning_of_its_answer_is_known_without_arguments() -> None:
    client = Client(Recorder(MemoryStore()), "anthropic", None)
    opening = [said("anthropic", "user", "write it"), said("anthropic", "assistant", "So,")]
    exchange = await client.send(*opening)
    exchange.feed(cut_call("anthropic"))
    await exchange.finish("complete", 200)

    await client.send(*opening, with_arguments("anthropic", {}), result("anthropic"))

    natives, rewinds = await client.log()
    assert (natives, rewinds) == ([*opening, CALLS["anthropic"], result("anthropic")], 0)
    await client.recorder.close()


def test_a_call_that_was_cut_is_valid_in_the_next_request_as_it_was_recorded() -> None:
    listed = [said("anthropic", "user", "write it"), CALLS["anthropic"], result("anthropic")]

    assert [*validate(listed, "anthropic")] == []
