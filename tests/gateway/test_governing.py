"""What the gateway sends once a conversation has outgrown its budget."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast import Session, validate
from holdfast.apps.gateway.recording.client_body import read_body
from holdfast.apps.gateway.recording.client_list import MAIN_AGENT
from holdfast.apps.gateway.recording.exchange import ClientRequest, Exchange
from holdfast.apps.gateway.recording.governing import governed_body, requested_governing
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.planning.policy import PRESETS
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import CannotFitError, HoldfastError, RecordingError
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events, whole_answer
from holdfast.wire.answers import Wire, read_answer

BUDGET = 2_500
WORDS = "the quick brown fox reads every line of a long report " * 12
PATHS: dict[Wire, str] = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/gemini-2.5-flash:streamGenerateContent",
}
LISTS: dict[Wire, str] = {
    "openai-chat": "messages",
    "openai-responses": "input",
    "anthropic": "messages",
    "gemini": "contents",
}
FORMATS: dict[Wire, str] = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses-stateless",
    "anthropic": "anthropic-messages",
    "gemini": "gemini-2",
}


class Talk:
    """A client that sends its whole list with each prompt, in bytes of its own style."""

    def __init__(self, recorder: Recorder, wire: Wire, **members: Any) -> None:
        self.recorder, self.members = recorder, members
        self.wire: Wire = wire
        self.messages: list[dict[str, Any]] = []
        self.number = 0
        self.raw = b""
        """The last body, as it was sent."""

    def prompt(self, text: str) -> dict[str, Any]:
        """Return a prompt as this wire has it."""
        if self.wire == "gemini":
            return {"role": "user", "parts": [{"text": text}]}
        return {"role": "user", "content": text}

    def body(self) -> bytes:
        """Return the request, with spaces that no encoder of ours would write."""
        body = {**self.members, LISTS[self.wire]: self.messages, "zz_unknown": {"b": 1, "a": [1.0, 1e3]}}
        return json.dumps(body, indent=1, separators=(" ,", " : "), ensure_ascii=True).encode()

    async def ask(self, text: str, **headers: str) -> Exchange:
        """Send a prompt, and take the answer into the list."""
        self.messages.append(self.prompt(text))
        return await self.send(**headers)

    async def send(self, **headers: str) -> Exchange:
        """Send the list as it is, and take the answer into it."""
        self.number += 1
        self.raw = self.body()
        request = ClientRequest(
            wire=self.wire,
            path=PATHS[self.wire],
            session_in_path="talk",
            headers=headers,
            body=self.raw,
            namespace="",
            upstream="x",
            governing=requested_governing({name.replace("_", "-"): value for name, value in headers.items()}, None),
        )
        exchange = await self.recorder.receive(request)
        reply = ProviderReply(f"answer {self.number}: {WORDS}")
        for name, event in stream_events(self.wire, reply, self.number):
            exchange.feed(event_bytes(name, event))
        await exchange.finish("complete", 200)
        self.messages += read_answer(self.wire, [whole_answer(self.wire, reply, self.number)]).messages
        return exchange


def members_of(wire: Wire) -> dict[str, Any]:
    """Return the members beside the list."""
    return {} if wire == "gemini" else {"model": "gpt-5", "stream": True, "store": False}


def slices_of(raw: bytes, wire: Wire) -> list[dict[str, Any]]:
    return json.loads(raw)[LISTS[wire]]


@pytest.mark.parametrize("wire", PATHS)
async def test_a_conversation_over_its_budget_is_compacted_and_everything_else_stays_as_it_was(wire: Wire) -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, wire, **members_of(wire))
    compacted: list[int] = []

    for number in range(30):
        prompt = f"prompt {number}: what about café {number} \\ud83d\\ude00?"
        exchange = await talk.ask(prompt)
        listed = slices_of(exchange.body, wire)
        is_compacted = exchange.headers.get("x-holdfast-compacted") == "1"
        compacted += [number] * is_compacted
        assert int(exchange.headers["x-holdfast-tokens"]) <= BUDGET == int(exchange.headers["x-holdfast-budget"])
        assert validate(listed, FORMATS[wire]) == []
        assert listed[-1] == talk.prompt(prompt)
        if is_compacted:
            given, kept = json.loads(exchange.body), json.loads(talk.raw)
            del given[LISTS[wire]], kept[LISTS[wire]]
            assert list(given.items()) == list(kept.items())
            slices = [bytes(one) for one in read_body(wire, talk.raw).slices]
            untouched = b",".join(slices[-(len(listed) - 1) :])
            assert untouched in exchange.body, "messages behind the summary keep their bytes"

    assert compacted
    assert compacted == list(range(compacted[0], 30)), "a compacted conversation stays so"
    async with recorder.session("talk") as opened:
        for number in (0, 7, 29):
            assert f"answer {number + 1}:" in str(await opened.session.recall(f"answer {number + 1}"))
    await recorder.close()


LONG_SCHEMA = {"type": "object", "description": "one more rule " * 500}
BESIDE_MESSAGES: list[tuple[Wire, dict[str, Any]]] = [
    ("gemini", {"systemInstruction": {"parts": [{"text": "one more rule " * 500}]}}),
    ("gemini", {"system_instruction": {"parts": [{"text": "one more rule " * 500}]}}),
    ("gemini", {"generationConfig": {"temperature": 0, "responseSchema": LONG_SCHEMA}}),
    ("gemini", {"generation_config": {"response_json_schema": LONG_SCHEMA}}),
    ("anthropic", {"system": "one more rule " * 500}),
    ("anthropic", {"output_format": {"type": "json_schema", "schema": LONG_SCHEMA}}),
    ("anthropic", {"output_config": {"format": {"type": "json_schema", "schema": LONG_SCHEMA}}}),
    ("openai-responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": LONG_SCHEMA}}}),
    ("openai-chat", {"functions": [{"name": "f", "parameters": LONG_SCHEMA}]}),
    ("openai-chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": LONG_SCHEMA}}}),
]


@pytest.mark.parametrize(("wire", "member"), BESIDE_MESSAGES)
async def test_what_the_model_reads_beside_the_messages_counts_in_every_spelling(
    wire: Wire, member: dict[str, Any]
) -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, wire, **members_of(wire), **member)

    first, *others = [await talk.ask(f"and {number}?") for number in range(13)]

    assert 1_500 < int(first.headers["x-holdfast-tokens"]) < 1_700
    assert [one for one in others if not 1_500 < int(one.headers["x-holdfast-tokens"]) <= BUDGET] == []
    assert others[-1].headers["x-holdfast-compacted"] == "1"
    [name] = member
    assert json.loads(others[-1].body)[name] == member[name]
    await recorder.close()


@pytest.mark.parametrize(("repeats", "is_sent_as_it_came", "tokens"), [(1, True, 85), (60, False, 8)])
async def test_a_result_that_no_call_asked_for_counts_as_long_as_it_is_sent(
    repeats: int, tokens: int, *, is_sent_as_it_came: bool
) -> None:
    orphan = {"role": "tool", "tool_call_id": "call_a", "content": "lorem ipsum dolor " * 20 * repeats}
    talk = Talk(Recorder(MemoryStore(), budget=BUDGET), "openai-chat", **members_of("openai-chat"))
    talk.messages = [orphan]

    exchange = await talk.ask("hello")

    assert (exchange.body == talk.raw) is is_sent_as_it_came
    assert slices_of(exchange.body, "openai-chat") == [*([orphan] * is_sent_as_it_came), talk.prompt("hello")]
    assert int(exchange.headers["x-holdfast-tokens"]) == tokens


@pytest.mark.parametrize("policy", PRESETS)
async def test_contents_of_gemini_without_a_role_have_one_once_their_list_is_compacted(policy: str) -> None:
    talk = Talk(Recorder(MemoryStore(), budget=BUDGET, policy=policy), "gemini")
    compacted: list[bool] = []
    for number in range(14):
        prompt: dict[str, Any] = {"parts": [{"text": f"prompt {number} {WORDS}"}], "role": None}
        talk.messages.append({key: value for key, value in prompt.items() if value is not None or number % 2})

        exchange = await talk.send()

        compacted.append(exchange.body != talk.raw)
        if compacted[-1]:
            assert validate(slices_of(exchange.body, "gemini"), "gemini-2") == []
    assert (compacted[0], compacted[-1]) == (False, True)


@pytest.mark.parametrize("policy", PRESETS)
@pytest.mark.parametrize("wire", PATHS)
async def test_no_request_exceeds_its_budget_whatever_the_policy(wire: Wire, policy: str) -> None:
    talk = Talk(Recorder(MemoryStore(), budget=BUDGET, policy=policy), wire, **members_of(wire))
    counter = counter_for("gemini-2.5-flash" if wire == "gemini" else "gpt-5")
    sizes: list[int] = []

    for number in range(30):
        exchange = await talk.ask(f"prompt {number}: {WORDS}")
        texts = "".join(json.dumps(one) for one in slices_of(exchange.body, wire))
        sizes.append(counter.count(texts))

    assert max(sizes) < BUDGET * 1.5, "with the names of members; a list that is sent whole has three times as many"


async def test_calls_of_the_older_form_are_recorded_and_compacted_like_others() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, "openai-chat", **members_of("openai-chat"))
    call = {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": "{}"}}
    compacted: list[bool] = []
    for number in range(12):
        talk.messages += [talk.prompt("go"), call, {"role": "function", "name": "read", "content": f"{number} {WORDS}"}]

        exchange = await talk.ask(f"prompt {number}")

        compacted.append(exchange.headers.get("x-holdfast-compacted") == "1")
        assert "x-holdfast-error" not in exchange.headers
        assert (exchange.body == talk.raw) is not compacted[-1]
        assert int(exchange.headers["x-holdfast-tokens"]) <= BUDGET
    async with recorder.session("talk") as opened:
        assert await opened.session.messages_at(0, len(talk.messages)) == talk.messages
    assert (compacted[0], compacted[-1]) == (False, True)


def tool_use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "run", "input": {"path": call_id}}


def tool_result(call_id: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": f"ran {call_id}"}]}


def model_turn(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": [*parts]}


def function_call(name: str) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {"path": name}}}


def function_response(name: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": {"output": f"ran {name}"}}}]}


TWO_CALLS = {"role": "assistant", "content": [tool_use("a"), tool_use("b")]}
SAID = {"text": "looking"}


@pytest.mark.parametrize(
    ("wire", "messages"),
    [
        pytest.param("anthropic", [TWO_CALLS, tool_result("a"), tool_result("b")], id="results in two messages"),
        pytest.param(
            "anthropic",
            [TWO_CALLS, tool_result("a"), {"role": "user", "content": "wait"}, tool_result("b")],
            id="a late result",
        ),
        pytest.param(
            "anthropic",
            [TWO_CALLS, tool_result("a"), {"role": "assistant", "content": "well"}],
            id="a result that never came",
        ),
        pytest.param("gemini", [model_turn(SAID), model_turn(function_call("a"))], id="a turn in two messages"),
        pytest.param(
            "gemini",
            [
                model_turn(SAID),
                model_turn(function_call("a")),
                model_turn(function_call("b")),
                function_response("b"),
            ],
            id="a turn in three messages",
        ),
        pytest.param(
            "gemini",
            [model_turn(function_call("a"), function_call("b")), function_response("a"), function_response("b")],
            id="responses in two messages",
        ),
    ],
)
async def test_what_only_a_repair_would_put_elsewhere_goes_on_as_the_client_sent_it(
    wire: Wire, messages: list[dict[str, Any]]
) -> None:
    recorder = Recorder(MemoryStore(), budget=100_000)
    talk = Talk(recorder, wire, **members_of(wire))
    talk.messages = [talk.prompt("go"), *messages]

    for _ in range(2):
        exchange = await talk.ask("and now?")

        assert exchange.body == talk.raw
        assert "x-holdfast-compacted" not in exchange.headers


async def test_a_content_without_a_role_is_the_users_in_a_compacted_list() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, "gemini")
    exchange = await talk.ask(WORDS)
    while not exchange.is_compacted:
        exchange = await talk.ask(WORDS)
    talk.messages.append({"parts": [{"text": "by the way"}]})
    exchange = await talk.ask("and now?")
    await recorder.close()

    listed = json.loads(exchange.body)["contents"]
    assert {"role": "user", "parts": [{"text": "by the way"}]} in listed
    assert validate(listed, "gemini-2") == []


@pytest.mark.parametrize("wire", PATHS)
async def test_what_is_beside_the_messages_keeps_its_bytes(wire: Wire) -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, wire, model="gpt-5", temperature=0.5)
    exchange = await talk.ask(WORDS)
    while not exchange.is_compacted:
        exchange = await talk.ask(WORDS)
    await recorder.close()

    name = f'"{LISTS[wire]}" : ['.encode()
    end = talk.raw.rindex(b"]", 0, talk.raw.index(b'"zz_unknown"'))
    head, tail = talk.raw[: talk.raw.index(name) + len(name)], talk.raw[end:]
    assert (exchange.body[: len(head)], exchange.body[-len(tail) :]) == (head, tail)


def test_messages_are_replaced_also_where_another_member_looks_like_them() -> None:
    raw = b'{"metadata": {"messages": []}, "messages": [{"role": "user"}], "n": 1}'

    body = read_body("openai-chat", raw)

    assert body.around_messages(raw) == (b'{"metadata":{"messages": []},"messages":[', b'],"n":1}')


class CountingList(list[int]):
    """A list that counts what is taken from it."""

    taken = 0

    def __getitem__(self, index: Any) -> Any:
        self.taken += not isinstance(index, slice)
        return super().__getitem__(index)


async def test_of_a_compacted_conversation_only_new_messages_are_placed() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, "openai-chat", model="gpt-5")
    for _ in range(12):
        await talk.ask(WORDS)
    async with recorder.session("talk") as opened:
        agent_list = opened.agent_lists[MAIN_AGENT]
        agent_list.positions = counted = CountingList(agent_list.positions)

    exchange = await talk.ask(WORDS)
    await recorder.close()

    assert (exchange.is_compacted, len(talk.messages)) == (True, 26)
    assert counted.taken < 6


async def test_between_two_compactions_the_prefix_stays_the_same_bytes() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, "anthropic", **members_of("anthropic"))

    bodies = [(await talk.ask(f"prompt {number}")).body for number in range(40)]
    lists = [slices_of(body, "anthropic") for body in bodies]
    breaks = [number for number in range(1, 40) if lists[number][: len(lists[number - 1])] != lists[number - 1]]

    async with recorder.session("talk") as opened:
        count = len(await opened.session.receipts())
    await recorder.close()
    assert len(breaks) == count >= 2


@pytest.mark.parametrize("wire", ["anthropic", "gemini"])
async def test_the_beginning_of_an_answer_that_a_client_wants_continued_stays_the_last_message(wire: Wire) -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, wire, **members_of(wire))
    for number in range(20):
        message = talk.prompt(f"line {number}: {WORDS}")
        answer = message | {"role": "model" if wire == "gemini" else "assistant"}
        talk.messages.append(answer if number % 2 else message)
    talk.messages.append(talk.prompt("Answer in JSON."))
    begun = talk.prompt("{") | {"role": "model" if wire == "gemini" else "assistant"}
    talk.messages.append(begun)

    exchange = await talk.send()

    await recorder.close()
    assert exchange.headers["x-holdfast-compacted"] == "1"
    assert slices_of(exchange.body, wire)[-2:] == [talk.prompt("Answer in JSON."), begun]


async def test_a_cache_mark_in_a_compacted_message_moves_to_its_replacement() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, "anthropic", **members_of("anthropic"))
    mark = {"type": "ephemeral", "ttl": "1h"}
    for number in range(3):
        await talk.ask(f"prompt {number}")
    marked = talk.messages[2]
    marked["content"] = [{"type": "text", "text": marked["content"], "cache_control": mark}]

    while (exchange := await talk.ask("more")).headers.get("x-holdfast-compacted") != "1":
        pass

    found = [
        (index, block["cache_control"])
        for index, message in enumerate(slices_of(exchange.body, "anthropic"))
        for block in (message["content"] if isinstance(message["content"], list) else [])
        if "cache_control" in block
    ]
    await recorder.close()
    assert found == [(0, mark)]


async def test_a_cache_mark_moves_only_while_the_provider_takes_another_one() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    mark = {"type": "ephemeral"}
    system = [{"type": "text", "text": f"Rule {number}.", "cache_control": mark} for number in range(4)]
    talk = Talk(recorder, "anthropic", **members_of("anthropic"), system=system)
    for number in range(20):
        talk.messages.append({"role": ("user", "assistant")[number % 2], "content": f"line {number}: {WORDS}"})
    talk.messages[0]["content"] = [{"type": "text", "text": WORDS, "cache_control": mark}]

    exchange = await talk.ask("and now?")

    await recorder.close()
    assert exchange.headers["x-holdfast-compacted"] == "1"
    assert json.loads(exchange.body)["system"] == system
    assert "cache_control" not in json.dumps(slices_of(exchange.body, "anthropic"))


@pytest.mark.parametrize("is_changed", [False, True], ids=["as it came", "changed"])
async def test_reasoning_of_a_running_turn_is_sent_only_as_the_model_said_it(*, is_changed: bool) -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, "openai-responses", **members_of("openai-responses"))
    for number in range(30):
        talk.messages.append({"role": ("user", "assistant")[number % 2], "content": f"line {number}: {WORDS}"})
    talk.messages.append(talk.prompt("read it"))
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "secret"}
    answer = whole_answer("openai-responses", ProviderReply(tool="read", arguments={"path": "a.txt"}))
    answer["output"] = [reasoning, *answer["output"]]

    async def receive() -> Exchange:
        request = ClientRequest("openai-responses", PATHS["openai-responses"], "talk", {}, talk.body(), "", "x")
        return await recorder.receive(request)

    first = await receive()
    first.feed(json.dumps(answer).encode())
    await first.finish("complete", 200)
    result = {"type": "function_call_output", "call_id": "call_0001", "output": "42 lines"}
    talk.messages += [reasoning | {"encrypted_content": "made up"} if is_changed else reasoning]
    talk.messages += [*answer["output"][1:], result]
    second = await receive()
    await second.finish("refused", 500)

    await recorder.close()
    assert second.headers["x-holdfast-compacted"] == "1"
    said = [] if is_changed else [reasoning]
    assert slices_of(second.body, "openai-responses")[-3 - len(said) :] == [
        talk.prompt("read it"),
        *said,
        answer["output"][1],
        result,
    ]


async def test_reasoning_that_the_client_has_is_sent_as_the_request_has_it() -> None:
    listed: list[dict[str, Any]] = [
        {"role": "user", "content": "read it"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "as it came"},
        {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42 lines"},
    ]
    raw = json.dumps({"input": listed}).encode()
    slices = {position: msgspec.Raw(json.dumps(one).encode()) for position, one in enumerate(listed)}
    async with Session.open("s", store=MemoryStore(), format="openai-responses-stateless") as session:
        await session.record(listed)
        request = await session.prepare(16_000)
    changed = [*listed]
    changed[1] = listed[1] | {"encrypted_content": None}
    request = replace(request, messages=changed, receipt=replace(request.receipt, kept=(0, 2, 3)))
    body = read_body("openai-responses", raw)

    sent = [
        slices_of(governed_body(raw, body, of_client, request), "openai-responses")
        for of_client in (slices, {position: one for position, one in slices.items() if position != 1})
    ]

    assert sent == [changed, [*listed[:1], *listed[2:]]], "and left out where the client has left it out"


async def test_a_refusal_as_too_long_makes_the_same_request_smaller() -> None:
    recorder = Recorder(MemoryStore(), budget=100_000)
    talk = Talk(recorder, "openai-chat", **members_of("openai-chat"))
    for number in range(20):
        await talk.ask(f"prompt {number}")
    talk.messages.append(talk.prompt("and now?"))
    raw = talk.body()
    exchange = await recorder.receive(
        ClientRequest(
            wire="openai-chat",
            path=PATHS["openai-chat"],
            session_in_path="talk",
            headers={},
            body=raw,
            namespace="",
            upstream="x",
        )
    )
    assert exchange.body == raw
    assert exchange.shrink is not None

    await exchange.shrink("This model's maximum context length is 2048 tokens, however you requested 5000 tokens", 400)

    assert len(exchange.body) < len(raw) // 2
    assert exchange.headers["x-holdfast-compacted"] == "1"
    assert slices_of(exchange.body, "openai-chat")[-1] == talk.prompt("and now?")
    await exchange.finish("refused", 400)
    await recorder.close()


async def test_the_refusal_of_a_request_makes_no_later_request_of_its_session_smaller() -> None:
    recorder = Recorder(MemoryStore(), budget=100_000)
    talk = Talk(recorder, "openai-chat", **members_of("openai-chat"))
    for number in range(20):
        await talk.ask(f"prompt {number}")
    exchanges = list[Exchange]()
    for text in ("and now?", "and this?"):
        talk.messages.append(talk.prompt(text))
        request = ClientRequest("openai-chat", PATHS["openai-chat"], "talk", {}, talk.body(), "", "x")
        exchanges.append(await recorder.receive(request))
    bodies = [exchange.body for exchange in exchanges]
    shrink = exchanges[0].shrink
    assert shrink is not None

    with pytest.raises(RecordingError, match="another request of the same agent came meanwhile"):
        await shrink("This model's maximum context length is 2048 tokens, however you requested 5000 tokens", 400)

    assert [exchange.body for exchange in exchanges] == bodies
    for exchange in exchanges:
        await exchange.finish("refused", 400)
    await recorder.close()


@pytest.mark.parametrize("wire", PATHS)
async def test_a_prompt_over_the_budget_that_is_refused_with_its_list_is_sent_without_it(wire: Wire) -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, wire, **members_of(wire))
    for number in range(20):
        await talk.ask(f"prompt {number}")
    pasted = talk.prompt("a pasted log " * BUDGET)
    talk.messages.append(pasted)
    raw = talk.body()
    exchange = await recorder.receive(
        ClientRequest(
            wire=wire, path=PATHS[wire], session_in_path="talk", headers={}, body=raw, namespace="", upstream="x"
        )
    )
    shrink, as_it_came = exchange.shrink, exchange.body
    assert shrink is not None

    with pytest.raises(CannotFitError):
        await shrink("your key is not known", 400)
    after_another_refusal = exchange.body
    await shrink("This model's maximum context length is 9000 tokens, however you requested 12000 tokens", 400)

    assert (as_it_came, after_another_refusal) == (raw, raw)
    assert slices_of(exchange.body, wire)[-1] == pasted
    assert len(exchange.body) < len(json.dumps(pasted)) + 2_000
    assert exchange.headers["x-holdfast-error"].startswith("over budget: ")
    assert exchange.shrink is None
    await exchange.finish("refused", 400)
    await recorder.close()


async def test_a_window_that_one_upstream_reports_applies_to_its_own_requests_alone() -> None:
    recorder = Recorder(MemoryStore())
    body = json.dumps({**members_of("openai-chat"), "messages": [{"role": "user", "content": WORDS}]}).encode()

    async def asked(session: str, upstream: str, refusal: str = "") -> str:
        exchange = await recorder.receive(
            ClientRequest("openai-chat", PATHS["openai-chat"], session, {}, body, "", upstream)
        )
        if refusal and exchange.shrink is not None:
            with pytest.raises(HoldfastError):
                await exchange.shrink(refusal, 400)
        await exchange.finish("refused", 400)
        return exchange.headers["x-holdfast-budget"]

    here, there = "openai=http://127.0.0.1:9001/v1", "local=http://127.0.0.1:9002/v1"
    whole = await asked("one", here, "This model's maximum context length is 2048 tokens, you requested 5000 tokens")
    budgets = [await asked("two", here), await asked("three", there)]

    await recorder.close()
    assert int(budgets[0]) < 2048
    assert budgets[1] == whole


async def test_from_the_first_compaction_on_the_provider_is_told_to_drop_thinking_that_no_longer_fits() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    asked: dict[str, Any] = {"type": "enabled", "budget_tokens": 9}
    talk = Talk(recorder, "anthropic", **members_of("anthropic") | {"model": "claude-sonnet-5-5", "thinking": asked})
    told = asked | {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    seen: list[tuple[bool, object, str]] = []

    for number in range(16):
        exchange = await talk.ask(f"prompt {number}")
        is_compacted = exchange.headers.get("x-holdfast-compacted") == "1"
        assert is_compacted or exchange.body == talk.raw, "before it not a byte changes"
        seen.append((is_compacted, json.loads(exchange.body)["thinking"], exchange.beta))
    async with recorder.session("talk") as opened:
        while await opened.session.undo():
            pass
    undone = await talk.ask("after the undo", x_holdfast_compaction="off")

    await recorder.close()
    assert {is_compacted for is_compacted, _, _ in seen} == {False, True}
    assert [(thinking, beta) for _, thinking, beta in seen] == [
        (told, "thinking-binding-controls-2026-08-01") if is_compacted else (asked, "") for is_compacted, _, _ in seen
    ]
    assert json.loads(undone.body)["thinking"] == told


@pytest.mark.parametrize(
    ("model", "thinking"),
    [
        ("claude-sonnet-4-5", {"type": "enabled", "budget_tokens": 9}),
        ("claude-sonnet-5-5", {"type": "disabled"}),
        ("claude-sonnet-5-5", {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}),
        ("claude-sonnet-5-5", None),
    ],
)
async def test_thinking_stays_as_the_client_has_it_where_nothing_has_to_be_said(
    model: str, thinking: dict[str, Any] | None
) -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    talk = Talk(recorder, "anthropic", **members_of("anthropic") | {"model": model, "thinking": thinking})

    exchanges = [await talk.ask(f"prompt {number}") for number in range(16)]

    await recorder.close()
    assert exchanges[-1].headers["x-holdfast-compacted"] == "1"
    assert {(str(json.loads(one.body)["thinking"]), one.beta) for one in exchanges} == {(str(thinking), "")}


@pytest.mark.parametrize(("policy", "sent"), [("copilot", [2, 2, 2]), ("inkeep", [2, 2, 2]), ("default", [2, 3, 3])])
async def test_messages_that_leave_no_room_for_a_digest_are_left_out_or_replaced_by_a_line(
    policy: str, sent: list[int]
) -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET, policy=policy)
    talk = Talk(recorder, "openai-chat", **members_of("openai-chat"))
    talk.messages.append({"role": "system", "content": "be good " * 700})

    exchanges = [await talk.ask(f"prompt {number} " + "word " * 930) for number in range(3)]

    await recorder.close()
    assert [len(slices_of(one.body, "openai-chat")) for one in exchanges] == sent
    assert [one.headers.get("x-holdfast-compacted") for one in exchanges] == [None, "1", "1"]
