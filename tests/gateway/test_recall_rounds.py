"""The recall tool for clients that ask for it: the gateway answers it, and the client sees one answer."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from starlette.types import Receive, Scope, Send

from holdfast import validate
from holdfast.apps.gateway import provider_apis as provider_apis_module
from holdfast.apps.gateway import relay as relay_module
from holdfast.apps.gateway.access import Access, KeyEntry, Keys, key_hash
from holdfast.apps.gateway.provider_apis import answer_events
from holdfast.apps.gateway.recording import recall_rounds as recall_rounds_module
from holdfast.apps.gateway.recording.client_body import read_body
from holdfast.apps.gateway.recording.exchange import ClientRequest, Exchange
from holdfast.apps.gateway.recording.recall_rounds import (
    MAX_RECALL_ROUNDS,
    AnswerRounds,
    RecallCall,
    error_event,
    joined_answer,
    recall_calls,
    summed_usage,
    tools_with_recall,
)
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.apps.gateway.upstream import PhaseTimeouts
from holdfast.core.history.events import Rewound
from holdfast.errors import StoreUnavailableError
from holdfast.session.log.sent_body import sent_body
from holdfast.session.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.testing.endpoint import ScriptedEndpoint, http_response, stream_response
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events, whole_answer
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from holdfast.wire.answers import Wire, answer_text, read_answer
from tests.gateway.serving import RawClient, Seen, ask, running_gateway, served

WIRES: tuple[Wire, ...] = ("openai-chat", "openai-responses", "anthropic", "gemini")
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
USAGE: dict[Wire, tuple[str, str]] = {
    "openai-chat": ("prompt_tokens", "completion_tokens"),
    "openai-responses": ("input_tokens", "output_tokens"),
    "anthropic": ("input_tokens", "output_tokens"),
    "gemini": ("promptTokenCount", "candidatesTokenCount"),
}
SETTLING_ROUNDS = 50
"""Ticks of the event loop in which a piece of a refusal arrives alone."""
ASKS = ProviderReply("Let me look that up. ", tool="recall", arguments={"query": "boat"}, tokens=100)
SAYS = ProviderReply("The boat is called Albatross.", tokens=200)


async def settle(rounds: int) -> None:
    """Let other tasks run."""
    for _ in range(rounds):
        await asyncio.sleep(0)


@dataclass
class Provider:
    """A provider that gives its answers in turn, and keeps what it was asked."""

    wire: Wire
    replies: list[ProviderReply | bytes] = field(default_factory=list[ProviderReply | bytes])
    """What is answered: an answer, or the body of a refusal, which is sent in two pieces."""
    refusal_status: int = 429
    bodies: list[bytes] = field(default_factory=list[bytes])
    stalls: asyncio.Event | None = None
    """If set, the next stream stops in the middle, and this is set."""
    stalls_at: int = 0
    """The number of the request whose answer stops; 0 for the next one."""
    is_cut: bool = False
    """Whether the next stream ends in the middle, and its connection with it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        reply, number = self.replies.pop(0), len(self.bodies)
        status, is_stream = 200, b'"stream"' in body or "alt=sse" in scope["query_string"].decode()
        if isinstance(reply, bytes):
            status, pieces = self.refusal_status, [reply[:20], reply[20:]]
        elif is_stream:
            pieces = [event_bytes(*event) for event in stream_events(self.wire, reply, number)]
        elif scope["path"].endswith(":streamGenerateContent"):
            events = [event for _, event in stream_events(self.wire, reply, number)]
            pieces = [json.dumps(events).encode()]
        else:
            pieces = [json.dumps(whole_answer(self.wire, reply, number)).encode()]
        kind = b"text/event-stream" if is_stream and status < 400 else b"application/json"
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        for number, piece in enumerate(pieces):
            if self.stalls is not None and self.stalls_at in {0, len(self.bodies)} and number == len(pieces) // 2:
                self.stalls.set()
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
            if self.is_cut and number == len(pieces) // 2:
                return
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await settle(SETTLING_ROUNDS if isinstance(reply, bytes) else 0)
        await send({"type": "http.response.body", "body": b""})

    def list_of(self, number: int) -> list[dict[str, Any]]:
        """Return the messages of a request, counted from 0."""
        return json.loads(self.bodies[number])[LISTS[self.wire]]


@dataclass
class Client:
    """A client that keeps its own list, and knows nothing of the recall tool."""

    wire: Wire
    url: str
    is_stream: bool
    session: str = "talk"
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    seen: Seen = field(default_factory=Seen)

    @property
    def path(self) -> str:
        """Where it sends its requests."""
        method = "streamGenerateContent?alt=sse" if self.is_stream else "generateContent"
        return {
            "openai-chat": "/v1/chat/completions",
            "openai-responses": "/v1/responses",
            "anthropic": "/v1/messages",
            "gemini": f"/v1beta/models/gemini-2.5-flash:{method}",
        }[self.wire]

    def body(self) -> bytes:
        """Return the next request."""
        members: dict[str, Any] = {} if self.wire == "gemini" else {"model": "m", "store": False}
        members |= {"stream": True} if self.is_stream and self.wire != "gemini" else {}
        return json.dumps(
            {**members, LISTS[self.wire]: self.messages, **({"tools": self.tools} if self.tools else {})}
        ).encode()

    def add_prompt(self, text: str) -> None:
        """Add a prompt to the list."""
        if self.wire == "gemini":
            self.messages.append({"role": "user", "parts": [{"text": text}]})
        else:
            self.messages.append({"role": "user", "content": text})

    async def prompt(self, text: str, **headers: str) -> str:
        """Send a prompt, take the answer into the list, and return its text."""
        self.add_prompt(text)
        return await self.send(**headers)

    async def send(self, **headers: str) -> str:
        """Send the list."""
        named = {"x_holdfast_recall": "on", "x_holdfast_session": self.session} | headers
        self.seen = await ask(self.url, path=self.path, body=self.body(), **named)
        answer = read_answer(self.wire, answer_events(self.wire, self.seen.body))
        if self.seen.status == 200 and answer.is_complete:
            self.messages += answer.messages
        return answer_text(answer)

    def add_results(self) -> None:
        """Answer all calls of the last answer."""
        called = self.messages[-1]
        match self.wire:
            case "openai-chat":
                self.messages += [
                    {"role": "tool", "tool_call_id": call["id"], "content": "42 lines"} for call in called["tool_calls"]
                ]
            case "openai-responses":
                self.messages.append(
                    {"type": "function_call_output", "call_id": called["call_id"], "output": "42 lines"}
                )
            case "anthropic":
                blocks = [
                    {"type": "tool_result", "tool_use_id": block["id"], "content": "42 lines"}
                    for block in called["content"]
                    if block["type"] == "tool_use"
                ]
                self.messages.append({"role": "user", "content": blocks})
            case "gemini":
                names = [part["functionCall"]["name"] for part in called["parts"] if "functionCall" in part]
                parts = [{"functionResponse": {"name": name, "response": {"output": "42 lines"}}} for name in names]
                self.messages.append({"role": "user", "parts": parts})


@asynccontextmanager
async def between(
    wire: Wire, replies: Sequence[ProviderReply | bytes], *, is_stream: bool = True, **options: Any
) -> AsyncGenerator[tuple[Client, Provider]]:
    """Run a gateway between a client and a provider."""
    provider = Provider(wire, [*replies])
    async with served(provider) as upstream, running_gateway(upstream, **options) as url:
        yield Client(wire, url, is_stream), provider


def called_tools(message: dict[str, Any]) -> list[str]:
    """Return the tools that a message or an item calls."""
    blocks = [*(message.get("tool_calls") or ()), *(message.get("parts") or ()), message]
    blocks += message["content"] if isinstance(message.get("content"), list) else []
    found = [block.get("function", block.get("functionCall", block)).get("name") for block in blocks]
    return [name for name in found if name]


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_the_client_sees_one_answer_and_later_requests_have_what_it_did_not_see(
    wire: Wire, *, is_stream: bool
) -> None:
    replies = [ProviderReply("Fine, I remember: the boat is Albatross."), ASKS, SAYS, ProviderReply("Yes.")]
    async with between(wire, replies, is_stream=is_stream) as (client, provider):
        await client.prompt("My boat is called Albatross.")
        assert await client.prompt("What is my boat called?") == ASKS.text + SAYS.text
        answers = read_answer(wire, answer_events(wire, client.seen.body))
        assert [called for message in answers.messages for called in called_tools(message)] == []
        usage = answers.usage or {}
        assert tuple(usage[name] for name in USAGE[wire]) == (300, 40), "the client is told what both rounds cost"
        assert client.seen.header("x-holdfast-recall") == "on"

        await client.prompt("Are you sure?")

        first, again, later = (provider.list_of(number) for number in (1, 2, 3))
        assert again[: len(first)] == first
        assert later[: len(again)] == again
        assert "recall" in called_tools(again[-2])
        assert "Albatross" in json.dumps(again[-1])
        assert [validate(listed, FORMATS[wire]) for listed in (first, again, later)] == [[], [], []]
        tools = [json.loads(body)["tools"] for body in provider.bodies]
        assert tools == [tools[0]] * 4
        assert "recall" in json.dumps(tools[0])
        assert later[-1] == client.messages[-2], "the newest prompt"
        assert list(json.loads(provider.bodies[0]))[-1] == "tools", "the rest of the body stays as it came"


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_call_of_the_clients_own_beside_recall_reaches_it_and_both_get_their_results(
    wire: Wire, *, is_stream: bool
) -> None:
    both = ProviderReply("Looking. ", calls=[("recall", {"query": "boat"}), ("read", {"path": "a.txt"})])
    async with between(wire, [both, SAYS, ProviderReply("Yes.")], is_stream=is_stream) as (client, provider):
        client.tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
        if wire == "gemini":
            client.tools = [{"functionDeclarations": [{"name": "read"}]}]

        await client.prompt("Compare my boat with a.txt.")
        assert [name for message in client.messages for name in called_tools(message)] == ["read"]
        assert len(provider.bodies) == 1, "the client's tool has to answer first"
        client.add_results()
        assert await client.send() == SAYS.text
        await client.prompt("Sure?")

        again, later = provider.list_of(1), provider.list_of(2)
        assert [name for message in again for name in called_tools(message) if name in {"recall", "read"}] == [
            "recall",
            "read",
        ]
        assert later[: len(again)] == again
        assert validate(again, FORMATS[wire]) == validate(later, FORMATS[wire]) == []
        assert "42 lines" in json.dumps(again)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_restarted_gateway_still_knows_the_conversation_and_what_was_hidden(wire: Wire) -> None:
    store = MemoryStore()
    async with between(wire, [ASKS, SAYS], store=store) as (client, before):
        await client.prompt("What is my boat called?")
        messages = client.messages
    async with between(wire, [ProviderReply("Yes.")], store=store) as (client, after):
        client.messages = messages
        await client.prompt("Sure?", x_holdfast_recall="")

        assert after.list_of(0)[: len(before.list_of(1))] == before.list_of(1)
        assert json.loads(after.bodies[0])["tools"] == json.loads(before.bodies[0])["tools"]
        assert client.seen.header("x-holdfast-session") == "talk"
        assert validate(after.list_of(0), FORMATS[wire]) == []


async def test_without_a_name_the_conversation_is_found_by_what_the_client_saw() -> None:
    async with between("openai-chat", [ASKS, SAYS, ProviderReply("Yes.")]) as (client, provider):
        client.session = ""
        await client.prompt("What is my boat called?")
        first = client.seen.header("x-holdfast-session")
        await client.prompt("Sure?")

        assert client.seen.header("x-holdfast-session") == first
        assert provider.list_of(2)[: len(provider.list_of(1))] == provider.list_of(1)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_that_never_stops_recalling_is_stopped(wire: Wire, *, is_stream: bool) -> None:
    asks = ProviderReply(tool="recall", arguments={"query": "boat"})
    async with between(wire, [asks] * 20, is_stream=is_stream) as (client, provider):
        await client.prompt("What is my boat called?")

        assert client.seen.status == 200
        assert client.seen.is_whole
        assert len(provider.bodies) == MAX_RECALL_ROUNDS + 2
        assert "which is the limit" in json.dumps(provider.list_of(-1)[-1])
        assert [name for message in client.messages[1:] for name in called_tools(message)] == []
        provider.replies = [SAYS]
        client.messages = client.messages[:1]
        assert await client.prompt("Go on.") == SAYS.text
        assert validate(provider.list_of(-1), FORMATS[wire]) == []


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_every_round_counts_against_the_tokens_of_a_key(*, is_stream: bool) -> None:
    key = KeyEntry(name="alice", sha256=key_hash("hf-a"), namespace="alice", tokens_per_day=340)
    access = Access(keys=Keys([key], clock=lambda: 0.0))  # no day ends meanwhile
    async with between("openai-chat", [ASKS, SAYS], is_stream=is_stream, access=access) as (client, provider):
        await client.prompt("What is my boat called?", authorization="Bearer hf-a")
        first = client.seen.status
        await client.prompt("Sure?", authorization="Bearer hf-a")

        assert (first, client.seen.status, len(provider.bodies)) == (200, 429, 2)


REFUSALS: dict[Wire, bytes] = {
    "openai-chat": b'{"error": {"message": "slow down", "type": "rate_limit_error"}}',
    "openai-responses": b'{"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate"}}',
    "anthropic": b'{"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}',
    "gemini": b'{"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}',
}


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_refusal_in_the_second_round_is_told_and_the_next_request_begins_before_it(
    wire: Wire, *, is_stream: bool
) -> None:
    replies = [ASKS, REFUSALS[wire], SAYS, ProviderReply("Yes.")]
    async with between(wire, replies, is_stream=is_stream) as (client, provider):
        await client.prompt("What is my boat called?")
        if is_stream:
            assert client.seen.status == 200
            error = json.loads(client.seen.body.rstrip().rpartition(b"data: ")[2])
            assert error["error"] == json.loads(REFUSALS[wire])["error"]
        else:
            assert (client.seen.status, client.seen.body) == (429, REFUSALS[wire])

        assert await client.send() == SAYS.text
        await client.prompt("Sure?")

        assert provider.list_of(2) == provider.list_of(0), "as if the answer that failed had not begun"
        assert validate(provider.list_of(3), FORMATS[wire]) == []
        assert "recall" not in json.dumps(provider.list_of(3))


@pytest.mark.parametrize("wire", WIRES)
async def test_a_client_that_leaves_in_the_second_round_can_go_on(wire: Wire) -> None:
    async with between(wire, [ASKS, ProviderReply("One two three four."), SAYS, ProviderReply("Yes.")]) as (
        client,
        provider,
    ):
        client.add_prompt("What is my boat called?")
        raw = RawClient(client.url)
        stalled = asyncio.Event()
        headers = {"x-holdfast-recall": "on", "x-holdfast-session": "talk"}
        await raw.send("POST", client.path, client.body(), headers)
        await raw.read(until=b"look")
        provider.stalls = stalled
        await stalled.wait()
        raw.leave()
        provider.stalls = None
        assert await client.send() == SAYS.text
        await client.prompt("Sure?")

        assert provider.list_of(2) == provider.list_of(0)
        assert validate(provider.list_of(3), FORMATS[wire]) == []


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_that_is_cut_while_recall_is_called_leaves_no_open_call(wire: Wire) -> None:
    asks = ProviderReply("One two three. ", calls=[("recall", {"query": "a boat"})])
    async with between(wire, [asks, SAYS]) as (client, provider):
        provider.is_cut = True
        await client.prompt("What is my boat called?")
        assert not client.seen.is_whole
        provider.is_cut = False
        assert await client.prompt("And again?") == SAYS.text

        assert len(provider.bodies) == 2
        assert validate(provider.list_of(1), FORMATS[wire]) == []


@pytest.mark.parametrize("round_", [1, 2])
async def test_a_whole_answer_that_stalls_in_a_round_is_a_timeout_and_the_client_can_go_on(round_: int) -> None:
    timeouts = PhaseTimeouts(silence_seconds=0.1)
    replies = [ASKS, SAYS] if round_ == 2 else [SAYS]
    async with between("openai-chat", [*replies, SAYS], is_stream=False, timeouts=timeouts) as (client, provider):
        provider.stalls, provider.stalls_at = asyncio.Event(), round_
        await asyncio.wait_for(client.prompt("What is my boat called?"), 60)
        provider.stalls = None
        stalled, again = client.seen, await client.send()

    error = {
        "message": "the provider sent nothing for 0.1 s in the middle of its answer",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert (stalled.status, json.loads(stalled.body)) == (504, {"error": error})
    assert again == SAYS.text


async def test_a_whole_answer_that_is_cut_in_a_round_is_an_error_in_the_words_of_its_api() -> None:
    async with between("anthropic", [ASKS, SAYS], is_stream=False) as (client, provider):
        provider.is_cut = True
        await client.prompt("What is my boat called?")

    error = {"type": "api_error", "message": "the provider closed the connection in the middle of its answer"}
    assert (client.seen.status, json.loads(client.seen.body)) == (502, {"type": "error", "error": error})


async def test_a_cache_mark_on_the_answer_goes_to_the_last_of_its_rounds() -> None:
    async with between("anthropic", [ASKS, SAYS, SAYS]) as (client, provider):
        await client.prompt("What is my boat called?")
        client.messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        await client.prompt("Sure?")

        marked = [index for index, one in enumerate(provider.list_of(2)) if "cache_control" in json.dumps(one)]
        assert marked == [3]


async def test_nothing_is_added_for_a_client_that_did_not_ask_from_the_beginning() -> None:
    replies = [ProviderReply("One."), ProviderReply("Two."), ProviderReply("Three.")]
    async with between("openai-chat", replies) as (client, provider):
        await client.prompt("First.", x_holdfast_recall="off")
        assert "tools" not in json.loads(provider.bodies[0])
        assert client.seen.header("x-holdfast-recall") is None

        client.add_prompt("Second.")
        sent = [client.body()]
        await client.send()

        assert provider.bodies[1:] == sent, "never a tool in mid-session"
        assert client.seen.header("x-holdfast-recall") == "off"
        client.session = "another"
        client.messages = []
        seen = await ask(client.url, path=client.path, body=b"{}", x_holdfast_recall="perhaps")
        assert (seen.status, "on or off" in seen.body.decode()) == (400, True)


async def test_the_setting_offers_it_to_every_new_conversation_but_never_beside_a_tool_of_that_name() -> None:
    async with between("anthropic", [SAYS] * 3, offers_recall=True) as (client, provider):
        await client.prompt("Hello.", x_holdfast_recall="")
        client.session, client.messages = "other", []
        client.tools = [{"name": "recall", "input_schema": {"type": "object"}}]
        await client.prompt("Hello.", x_holdfast_recall="")
        client.session, client.messages, client.tools = "third", [], []
        await client.prompt("Hello.", x_holdfast_recall="off")

        tools = [json.loads(body).get("tools") for body in provider.bodies]
        assert [[tool["name"] for tool in listed or ()] for listed in tools] == [["recall"], ["recall"], []]
        assert tools[1] == [{"name": "recall", "input_schema": {"type": "object"}}]


async def test_a_gemini_stream_without_sse_is_one_list() -> None:
    async with between("gemini", [ASKS, SAYS], is_stream=False) as (client, _provider):
        client.add_prompt("What is my boat called?")
        path = "/v1beta/models/gemini-2.5-flash:streamGenerateContent"
        seen = await ask(client.url, path=path, body=client.body(), x_holdfast_recall="on")

        events = json.loads(seen.body)
        texts = [part.get("text") for event in events for part in event["candidates"][0]["content"]["parts"]]
        assert "".join(texts) == ASKS.text + SAYS.text
        assert [event["candidates"][0].get("finishReason") for event in events][-1] == "STOP"
        assert sum("finishReason" in event["candidates"][0] for event in events) == 1


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_a_response_that_the_provider_keeps_is_continued_after_its_last_round(*, is_stream: bool) -> None:
    replies = [ASKS, SAYS, ASKS, SAYS]
    async with between("openai-responses", replies, is_stream=is_stream) as (client, provider):
        sdk = openai.AsyncOpenAI(
            base_url=f"{client.url}/v1", api_key="x", max_retries=0, default_headers={"x-holdfast-recall": "on"}
        )
        async with sdk:
            first = await sdk.responses.create(model="m", input="What is my boat called?")
            second = await sdk.responses.create(model="m", input="Sure?", previous_response_id=first.id)

        assert first.output_text == second.output_text == ASKS.text + SAYS.text
        bodies = [json.loads(body) for body in provider.bodies]
        assert [body.get("previous_response_id") for body in bodies] == [None, None, "resp_2", "resp_2"]
        assert [len(body["tools"]) for body in bodies] == [1, 1, 1, 1]
        kinds = [item.get("type", item.get("role")) for item in bodies[3]["input"]]
        assert kinds == ["user", "message", "function_call", "function_call_output"]


async def test_a_thread_that_anthropic_keeps_is_continued_after_its_last_round() -> None:
    async with between("anthropic", [ASKS, SAYS, SAYS], is_stream=False) as (client, provider):
        for text, thread in (
            ("What is my boat called?", {"type": "create"}),
            ("Sure?", {"type": "continue", "previous_message_id": "msg_1"}),
        ):
            asked = [{"role": "user", "content": text}]
            body = {"model": "m", "max_tokens": 99, "messages": asked, "thread": thread}
            await ask(client.url, path=client.path, body=json.dumps(body).encode(), x_holdfast_recall="on")

    threads = [json.loads(body)["thread"] for body in provider.bodies]
    assert threads == [{"type": "create"}] * 2 + [{"type": "continue", "previous_message_id": "msg_2"}]
    assert [one["role"] for one in provider.list_of(1)] == ["user", "assistant", "user"]
    assert [one["content"] for one in provider.list_of(2)] == ["Sure?"]


async def test_the_openai_library_reads_a_chat_stream_of_two_rounds_with_calls_of_its_own() -> None:
    last = ProviderReply("Now I read. ", calls=[("recall", {"query": "x"}), ("read", {"path": "a.txt"})], tokens=5)
    async with between("openai-chat", [ASKS, last]) as (client, _provider):
        sdk = openai.AsyncOpenAI(
            base_url=f"{client.url}/v1", api_key="x", max_retries=0, default_headers={"x-holdfast-recall": "on"}
        )
        async with (
            sdk,
            sdk.chat.completions.stream(
                model="m", messages=[{"role": "user", "content": "Look."}], stream_options={"include_usage": True}
            ) as stream,
        ):
            whole = await stream.get_final_completion()

        message = whole.choices[0].message
        assert message.content == ASKS.text + last.text
        assert [(call.id, call.function.name) for call in message.tool_calls or ()] == [("call_0002_1", "read")]
        assert whole.choices[0].finish_reason == "tool_calls"
        assert whole.id == "c1"
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (105, 40)


async def test_the_openai_library_reads_a_responses_stream_of_two_rounds() -> None:
    async with between("openai-responses", [ASKS, SAYS]) as (client, _provider):
        sdk = openai.AsyncOpenAI(
            base_url=f"{client.url}/v1", api_key="x", max_retries=0, default_headers={"x-holdfast-recall": "on"}
        )
        async with sdk, sdk.responses.stream(model="m", input="Look.", store=False) as stream:
            events = [event async for event in stream]
            whole = await stream.get_final_response()

        assert whole.output_text == ASKS.text + SAYS.text
        assert [event.sequence_number for event in events if event.type.startswith("response.output_item")] == sorted(
            event.sequence_number for event in events if event.type.startswith("response.output_item")
        )
        added = [event.output_index for event in events if event.type == "response.output_item.added"]
        assert added == [0, 1]
        assert (whole.id, [item.type for item in whole.output]) == ("resp_1", ["message", "message"])
        assert whole.usage is not None
        assert (whole.usage.input_tokens, whole.usage.output_tokens) == (300, 40)


async def test_the_anthropic_library_reads_a_stream_of_two_rounds_with_calls_of_its_own() -> None:
    last = ProviderReply("Now I read. ", calls=[("recall", {"query": "x"}), ("read", {"path": "a.txt"})], tokens=5)
    async with between("anthropic", [ASKS, last]) as (client, _provider):
        sdk = anthropic.AsyncAnthropic(
            base_url=client.url, api_key="x", max_retries=0, default_headers={"x-holdfast-recall": "on"}
        )
        async with (
            sdk,
            sdk.messages.stream(model="m", max_tokens=100, messages=[{"role": "user", "content": "Look."}]) as stream,
        ):
            whole = await stream.get_final_message()

        assert [(block.type, getattr(block, "name", None)) for block in whole.content] == [
            ("text", None),
            ("text", None),
            ("tool_use", "read"),
        ]
        assert (whole.id, whole.stop_reason) == ("msg_1", "tool_use")
        assert (whole.usage.input_tokens, whole.usage.output_tokens) == (105, 40)


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_the_google_library_reads_a_stream_of_two_rounds() -> None:
    async with between("gemini", [ASKS, SAYS]) as (client, _provider):
        options = genai.types.HttpOptions(base_url=client.url, headers={"x-holdfast-recall": "on"})
        sdk = genai.Client(api_key="x", http_options=options)
        async with sdk.aio as aio:
            stream = await aio.models.generate_content_stream(model="gemini-2.5-flash", contents="Look.")
            pieces = [piece async for piece in stream]

        assert "".join(piece.text or "" for piece in pieces) == ASKS.text + SAYS.text
        usage = pieces[-1].usage_metadata
        assert usage is not None
        assert (usage.prompt_token_count, usage.candidates_token_count) == (300, 40)


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_a_library_that_splits_lines_as_python_does_reads_texts_with_line_ends_of_unicode() -> None:
    text = "One\u2028two\u2029three\x85four."
    async with between("gemini", [ASKS, ProviderReply(text)]) as (client, _provider):
        options = genai.types.HttpOptions(base_url=client.url, headers={"x-holdfast-recall": "on"})
        sdk = genai.Client(api_key="x", http_options=options)

        def said() -> list[str]:
            stream = sdk.models.generate_content_stream(model="gemini-2.5-flash", contents="Look.")
            return [piece.text or "" for piece in stream]

        assert "".join(await asyncio.to_thread(said)) == ASKS.text + text


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_a_chat_of_the_google_library_goes_on_after_two_rounds_and_keeps_its_prefix() -> None:
    store, replies = MemoryStore(), [ProviderReply("Fine, I remember."), ASKS, SAYS, ProviderReply("Yes, I am.")]
    async with between("gemini", replies, store=store) as (client, provider):
        headers = {"x-holdfast-recall": "on"}
        options = genai.types.HttpOptions(base_url=client.url, headers=headers)
        async with genai.Client(api_key="x", http_options=options).aio as aio:
            chat = aio.chats.create(model="gemini-2.5-flash")
            for prompt in ("My boat is called Albatross.", "What is my boat called?", "Are you sure?"):
                async for _ in await chat.send_message_stream(prompt):
                    pass

        first, again, later = (provider.list_of(number) for number in (1, 2, 3))
        assert again[: len(first)] == first
        assert later[: len(again)] == again
        assert [validate(listed, "gemini") for listed in (first, again, later)] == [[], [], []]
    [info] = await store.sessions()
    async with Session.open(info.id, store=store) as session:
        roles = [native["role"] for _, native in await session.numbered_messages()]
        assert roles == ["user", "model", "user", "model", "user", "model", "user", "model"]
        assert not any(isinstance(event, Rewound) for event in await session.events())


async def test_the_beginning_of_an_answer_of_gemini_is_sent_once_with_the_rounds_that_follow_it() -> None:
    async with between("gemini", [ASKS, SAYS, ProviderReply("Yes.")]) as (client, provider):
        begun = {"role": "model", "parts": [{"text": "Well: "}]}
        client.add_prompt("What is my boat called?")
        client.messages.append(begun)
        await client.send()
        await client.prompt("Are you sure?")

        again, later = provider.list_of(1), provider.list_of(2)
        said = [part.get("text") for content in later for part in content["parts"] if content["role"] == "model"]
        assert said == ["Well: ", ASKS.text, None, SAYS.text]
        assert later[: len(again)] == again
        assert validate(later, "gemini") == []


async def test_every_round_is_on_record_with_its_bytes_and_its_cost() -> None:
    store = MemoryStore()
    async with between("anthropic", [ASKS, SAYS], store=store) as (client, provider):
        await client.prompt("What is my boat called?")

    async with Session.open("talk", store=store) as session:
        events = await session.events()
        bodies = [sent_body(events, number) for number in (0, 1)]
        assert [body and body.content for body in bodies] == provider.bodies
        roles = [native["role"] for _, native in await session.numbered_messages()]
        assert roles == ["user", "assistant", "user", "assistant"]
        usages = [usage.input_tokens for event in events if (usage := getattr(event, "usage", None))]
        assert usages == [100, 200]


def test_the_usage_of_two_rounds_is_added_up_and_what_one_of_them_leaves_out_is_kept() -> None:
    first = {"prompt": 3, "cached": {"read": 1}, "details": [{"modality": "TEXT", "tokenCount": 3}], "tier": "a"}
    second = {"prompt": 4, "cached": {"read": 2}, "details": None, "tier": "b"}

    assert summed_usage(first, second) == {
        "prompt": 7,
        "cached": {"read": 3},
        "details": [{"modality": "TEXT", "tokenCount": 3}],
        "tier": "b",
    }


def test_gemini_gets_the_tool_beside_the_functions_of_the_client() -> None:
    tools = [{"googleSearch": {}}, {"functionDeclarations": [{"name": "run"}]}]
    body = read_body("gemini", json.dumps({"contents": [], "tools": tools}).encode())

    search, functions = json.loads(tools_with_recall(body) or b"null")

    assert search == {"googleSearch": {}}
    assert [one["name"] for one in functions["functionDeclarations"]] == ["run", "recall"]


async def test_a_conversation_that_the_provider_keeps_gets_only_the_results_of_recall() -> None:
    async with between("openai-responses", [ASKS, SAYS], is_stream=False) as (client, provider):
        body = json.dumps({"model": "m", "input": "What is my boat called?", "conversation": "conv_1"}).encode()
        seen = await ask(client.url, path=client.path, body=body, x_holdfast_recall="on")

    answer = read_answer("openai-responses", answer_events("openai-responses", seen.body))
    first, second = map(json.loads, provider.bodies)
    [result] = second["input"]
    assert (answer_text(answer), seen.header("x-holdfast-session")) == (ASKS.text + SAYS.text, "conv_1")
    assert (first["input"], result["type"], result["call_id"]) == (
        "What is my boat called?",
        "function_call_output",
        "call_0001",
    )
    assert [one["conversation"] for one in (first, second)] == ["conv_1", "conv_1"]
    assert first["tools"] == second["tools"]


async def test_a_continued_response_that_failed_after_a_recall_is_asked_for_again() -> None:
    replies = [SAYS, ASKS, REFUSALS["openai-responses"], ProviderReply("Yes.")]
    store = MemoryStore()
    async with between("openai-responses", replies, is_stream=False, store=store) as (client, provider):
        asked = [{"role": "user", "content": "What is my boat called?"}]
        bodies = [json.dumps({"model": "m", "input": asked, **more}).encode() for more in CONTINUED]
        seen = [await ask(client.url, path=client.path, body=body, x_holdfast_recall="on") for body in bodies]
        session = seen[-1].header("x-holdfast-session") or ""

    assert [(one.status, one.header("x-holdfast-session")) for one in seen] == [
        (200, session),
        (429, session),
        (200, session),
    ]
    assert [json.loads(body)["previous_response_id"] for body in provider.bodies[1:]] == ["resp_1"] * 3
    inputs = [[item.get("type", item.get("role")) for item in provider.list_of(number)] for number in (1, 2, 3)]
    assert inputs == [["user"], ["user", "message", "function_call", "function_call_output"], ["user"]]
    async with Session.open(session, store=store) as log:
        kinds = {one.get("type", one.get("role")) for one in await log.messages()}
    assert kinds == {"user", "message"}, "no call is left that nobody answered"


CONTINUED: tuple[dict[str, Any], ...] = ({}, {"previous_response_id": "resp_1"}, {"previous_response_id": "resp_1"})


async def test_a_fork_of_a_conversation_with_recall_has_it_too_and_after_a_restart() -> None:
    store = MemoryStore()
    async with between("openai-chat", [ASKS, SAYS, SAYS], store=store) as (client, provider):
        await client.prompt("What is my boat called?")
        client.session = "fork"
        await client.prompt("Sure?", x_holdfast_recall="")
        messages = client.messages
    async with between("openai-chat", [ProviderReply("Yes.")], store=store) as (client, after):
        client.session, client.messages = "fork", messages
        await client.prompt("Really?", x_holdfast_recall="")

    tools = [json.loads(body)["tools"] for body in (*provider.bodies, *after.bodies)]
    assert tools == [tools[0]] * 4
    assert after.list_of(0)[: len(provider.list_of(2))] == provider.list_of(2)
    assert [called for message in after.list_of(0) for called in called_tools(message)] == ["recall"]


@pytest.mark.parametrize(
    ("status", "is_stream"), [(400, True), (400, False), (200, True)], ids=["stream", "whole", "within a stream"]
)
async def test_a_second_round_that_is_too_long_is_made_smaller(status: int, *, is_stream: bool) -> None:
    too_long = b'{"error": {"message": "maximum context length is 2048 tokens, you requested 5000 tokens"}}'
    if status == 200:
        too_long = b"data: " + too_long + b"\n\n"
    async with between("openai-chat", [ASKS, too_long, SAYS], is_stream=is_stream) as (client, provider):
        provider.refusal_status = status
        for number in range(20):
            client.add_prompt(f"line {number}: " + "the quick brown fox reads a long report " * 12)
            client.messages.append({"role": "assistant", "content": f"Noted {number}."})

        assert await client.prompt("What is my boat called?") == ASKS.text + SAYS.text

    lists = [provider.list_of(number) for number in range(3)]
    assert lists[1][: len(lists[0])] == lists[0]
    assert len(json.dumps(lists[2])) < len(json.dumps(lists[1])) // 2
    assert [called for message in lists[2] for called in called_tools(message)] == ["recall"]


async def test_a_provider_that_goes_away_before_the_second_round_is_told_in_the_stream() -> None:
    events = [event_bytes(*event) for event in stream_events("openai-chat", ASKS)]
    async with (
        ScriptedEndpoint([stream_response(*events), []]) as provider,
        running_gateway(provider.url.removesuffix("/v1")) as url,
    ):
        client = Client("openai-chat", url, is_stream=True)
        client.add_prompt("What is my boat called?")
        seen = await ask(url, path=client.path, body=client.body(), x_holdfast_recall="on")

    told = json.loads(seen.body.rstrip().rpartition(b"data: ")[2])
    base = provider.url.removesuffix("/v1")
    assert (seen.status, seen.is_whole, len(provider.requests)) == (200, True, 2)
    assert told["error"]["message"] == f"the gateway got no answer: {base} closed the connection before it answered"


async def test_what_a_provider_sends_after_its_last_event_is_left_out_between_two_rounds() -> None:
    is_seen = asyncio.Event()
    bodies: list[bytes] = []

    async def provider(_scope: Scope, receive: Receive, send: Send) -> None:
        bodies.append((await receive()).get("body", b""))
        kind = [(b"content-type", b"text/event-stream")]
        events = [event_bytes(*event) for event in stream_events("openai-chat", ASKS if len(bodies) == 1 else SAYS)]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
        await is_seen.wait()
        if len(bodies) == 1:
            await send({"type": "http.response.body", "body": b": bye\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with served(provider) as upstream, running_gateway(upstream) as url:
        client = Client("openai-chat", url, is_stream=True)
        client.add_prompt("What is my boat called?")
        raw = RawClient(url)
        await raw.send("POST", client.path, client.body(), {"x-holdfast-recall": "on"})
        await raw.read(until=b"look")
        is_seen.set()
        is_whole = await raw.read_more()
        raw.leave()

    answer = read_answer("openai-chat", answer_events("openai-chat", bytes(raw.body)))
    assert (answer_text(answer), is_whole, len(bodies)) == (ASKS.text + SAYS.text, True, 2)
    assert b": bye" not in raw.body


@pytest.mark.parametrize(
    "odd", [b"data: {}\n\n", b"data: ping\n\n", b'data: {"x": "\xff"}\n\n'], ids=["empty", "text", "no UTF-8"]
)
@pytest.mark.parametrize("wire", WIRES)
def test_an_event_that_is_none_of_the_api_ends_no_answer(wire: Wire, odd: bytes) -> None:
    first, *rest = [event_bytes(*event) for event in stream_events(wire, SAYS)]
    rounds = AnswerRounds(wire, is_stream=True)

    begun = rounds.add(first) + rounds.add(odd)
    is_over = rounds.is_over
    shown = begun + b"".join(map(rounds.add, rest)) + rounds.end()

    assert (begun, is_over) == (first + odd, False)
    assert answer_text(read_answer(wire, answer_events(wire, shown))) == SAYS.text


@pytest.mark.parametrize("kind", ["text/plain", ""])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_recall_in_a_stream_with_another_type_or_none_is_answered(wire: Wire, kind: str) -> None:
    replies, is_seen = [ASKS, SAYS], asyncio.Event()

    async def provider(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        headers = [(b"content-type", kind.encode())] if kind else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number, event in enumerate(stream_events(wire, replies.pop(0))):
            if number == 4 and replies:
                await is_seen.wait()
            await send({"type": "http.response.body", "body": event_bytes(*event), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with served(provider) as upstream, running_gateway(upstream) as url:
        client = Client(wire, url, is_stream=True)
        client.add_prompt("What is my boat called?")
        raw = RawClient(url)
        await raw.send("POST", client.path, client.body(), {"x-holdfast-recall": "on"})
        seen = await asyncio.wait_for(raw.read(until=b"data:"), 60)
        is_seen.set()
        await raw.read_more()
        raw.leave()

    answer = read_answer(wire, answer_events(wire, bytes(raw.body)))
    assert (seen.header("content-type"), answer_text(answer)) == (kind or None, ASKS.text + SAYS.text)
    assert [name for message in answer.messages for name in called_tools(message)] == []


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_recall_is_answered_although_another_process_has_written_to_the_session(
    wire: Wire, rounds: int
) -> None:
    store, client = MemoryStore(), Client(wire, "", is_stream=False)
    recorder = Recorder(store, offers_recall=True)
    client.add_prompt("What is my boat called?")
    exchange = await recorder.receive(ClientRequest(wire, client.path, "talk", {}, client.body(), "", "x"))
    bodies = list[bytes]()
    for number in range(rounds):
        exchange.feed(json.dumps(whole_answer(wire, ASKS, number)).encode())
        async with Session.open("talk", store=store) as other:
            await other.record_side_call("Boats", purpose="title")
        bodies.append(await exchange.continue_answer() or b"")
    exchange.feed(json.dumps(whole_answer(wire, SAYS)).encode())
    await exchange.finish("complete", 200)
    async with recorder.session("talk") as opened:
        recorded = await opened.session.messages()
    await recorder.close()

    sent = [json.loads(body)[LISTS[wire]] for body in bodies]
    assert [called_tools(listed[-2]) for listed in sent] == [["recall"]] * rounds
    assert [called_tools(dict(one)) for one in recorded[: len(sent[-1])]] == [called_tools(one) for one in sent[-1]]
    assert SAYS.text in json.dumps(recorded[len(sent[-1]) :])
    assert validate(sent[-1], FORMATS[wire]) == []


class FailingStore(MemoryStore):
    """A store that fails once some appends were made."""

    appends_left = 2

    async def append(self, *args: Any, **kwargs: Any) -> int:
        self.appends_left -= 1
        if self.appends_left < 0:
            raise StoreUnavailableError("memory", "the disk is full")
        return await super().append(*args, **kwargs)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_a_recall_that_cannot_be_recorded_ends_the_answer(*, is_stream: bool) -> None:
    async with between("openai-chat", [ASKS, SAYS], is_stream=is_stream, store=FailingStore()) as (client, provider):
        text = await client.prompt("What is my boat called?")
        metrics = (await ask(client.url, "GET", "/metrics")).body.decode()

    assert (text, client.seen.is_whole, len(provider.bodies)) == (ASKS.text, True, 1)
    assert [name for message in client.messages for name in called_tools(message)] == []
    assert 'holdfast_gateway_recording_failures_total{stage="answer"} 2.0' in metrics


@pytest.mark.parametrize("wire", WIRES)
async def test_a_recall_in_an_answer_that_its_client_no_longer_waits_for_is_answered_beside_the_log(wire: Wire) -> None:
    recorder = Recorder(MemoryStore(), offers_recall=True)
    client = Client(wire, "", is_stream=False)

    async def receive(text: str) -> Exchange:
        client.add_prompt(text)
        request = ClientRequest(wire, client.path, "talk", {}, client.body(), "", "x")
        return await recorder.receive(request)

    first = await receive("What is my boat called?")
    answer = whole_answer(wire, ASKS)
    if wire == "openai-responses":
        answer["output"] = [{"type": "reasoning", "id": "rs_1", "summary": []}, *answer["output"]]
    answer = {name: value for name, value in answer.items() if name not in {"usage", "usageMetadata"}}
    first.feed(json.dumps(answer).encode())
    second = await receive("Something else.")
    before = first.body
    body = await first.continue_answer()
    for exchange in (first, second):
        await exchange.finish("refused", 500)

    listed, sent = (json.loads(raw or b"{}")[LISTS[wire]] for raw in (body, before))
    async with recorder.session("talk") as opened:
        recorded = await opened.session.messages()
    await recorder.close()
    assert listed[: len(sent)] == sent
    assert "recall" in called_tools(listed[-2])
    assert validate(listed, FORMATS[wire]) == []
    assert "reasoning" not in [one.get("type") for one in listed], "the provider does not have it"
    assert recorded == client.messages


@pytest.mark.parametrize("count", [1, 2])
async def test_only_a_gemini_request_for_one_candidate_has_recall(count: int) -> None:
    async with between("gemini", [SAYS], is_stream=False) as (client, provider):
        client.add_prompt("Look.")
        body = json.loads(client.body()) | {"generationConfig": {"candidateCount": count}}
        seen = await ask(client.url, path=client.path, body=json.dumps(body).encode(), x_holdfast_recall="on")

    assert seen.header("x-holdfast-recall") == ("on" if count == 1 else "off")
    assert ("tools" in json.loads(provider.bodies[0])) is (count == 1)


async def test_gemini_tools_that_no_function_may_join_stay_as_they_are() -> None:
    async with between("gemini", [SAYS], is_stream=False) as (client, provider):
        client.tools = [{"googleSearch": {}}]
        await client.prompt("Look.")

    assert (client.seen.header("x-holdfast-recall"), json.loads(provider.bodies[0])["tools"]) == ("off", client.tools)


@pytest.mark.parametrize("arguments", ["{cut", "[]", "3"])
async def test_arguments_of_recall_that_are_no_object_get_an_answer_that_says_what_it_needs(arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "recall", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    asks = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    replies = [http_response(200, asks), http_response(200, whole_answer("openai-chat", SAYS))]
    async with (
        ScriptedEndpoint(replies) as provider,
        running_gateway(provider.url.removesuffix("/v1")) as url,
    ):
        client = Client("openai-chat", url, is_stream=False)
        assert await client.prompt("What is my boat called?") == SAYS.text

    listed: Any = provider.requests[1].body["messages"]
    assert (listed[-1]["tool_call_id"], listed[-1]["content"].startswith("[Recall:")) == ("c1", True)


def rounds_of(wire: Wire, *rounds: Sequence[object], is_list: bool = False) -> bytes:
    """Return what a client sees of rounds, each given as its events, or as the whole of its answer."""
    joined = AnswerRounds(wire, is_stream=not is_list, is_list=is_list)
    seen = b""
    for number, events in enumerate(rounds):
        if number:
            seen += joined.next_round()
        if is_list:
            joined.add(json.dumps(events).encode())
        for event in () if is_list else events:
            raw = event if isinstance(event, bytes) else b"data: %s\n\n" % json.dumps(event).encode()
            seen += joined.add(raw)
        joined.end_round()
    return seen + joined.end()


def test_comments_and_events_without_choices_pass_between_the_pieces_of_a_chat() -> None:
    moderation: dict[str, Any] = {"choices": [], "prompt_filter_results": []}
    events = [b": ping\n\n", moderation, {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]}]

    assert rounds_of("openai-chat", events) == b": ping\n\n" + b"".join(
        b"data: %s\n\n" % json.dumps(event).encode() for event in events[1:]
    )


def test_a_server_with_an_empty_finish_reason_in_every_event_is_streamed() -> None:
    events = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": ""}]} for text in ("Hi", " you")]
    joined = AnswerRounds("openai-chat", is_stream=True)

    sent = [b"data: %s\n\n" % json.dumps(event).encode() for event in events]

    assert [joined.add(raw) for raw in sent] == sent


def gemini_event(*parts: dict[str, Any], reason: str = "", **members: Any) -> dict[str, Any]:
    end = {"finishReason": reason} if reason else {}
    return {"candidates": [{"content": {"role": "model", "parts": [*parts]}, **end}], **members}


def test_text_beside_a_recall_in_the_last_chunk_of_a_gemini_round_reaches_the_client() -> None:
    call = {"functionCall": {"name": "recall", "args": {"query": "boat"}}}
    details = [{"modality": "TEXT", "tokenCount": 3}]
    asks = [gemini_event({"text": "Let me see. "}, call, reason="STOP", usageMetadata={"promptTokensDetails": details})]
    says = [
        gemini_event({"text": "It is "}),
        gemini_event({"text": "Albatross."}, reason="STOP", usageMetadata={"promptTokensDetails": details}),
    ]

    shown = json.loads(rounds_of("gemini", asks, says, is_list=True))

    assert shown == [
        gemini_event({"text": "Let me see. "}, usageMetadata={"promptTokensDetails": details}),
        gemini_event({"text": "It is "}),
        gemini_event(
            {"text": "Albatross."},
            reason="STOP",
            usageMetadata={"promptTokensDetails": [{"modality": "TEXT", "tokenCount": 6}]},
        ),
    ]


def test_no_piece_of_a_recall_whose_arguments_are_streamed_reaches_the_client() -> None:
    own = {"functionCall": {"name": "look", "willContinue": True}}
    rest = {"functionCall": {"partialArgs": [{"jsonPath": "$.at", "stringValue": "sea"}]}}
    asks = [
        gemini_event({"functionCall": {"name": "recall", "willContinue": True}}),
        gemini_event(
            {"functionCall": {"partialArgs": [{"jsonPath": "$.query", "stringValue": "boat"}], "willContinue": True}},
            {"text": "Let me see. "},
        ),
        gemini_event({"functionCall": {}}, reason="STOP"),
    ]
    says = [gemini_event(own), gemini_event(rest, reason="STOP")]

    shown = json.loads(rounds_of("gemini", asks, says, is_list=True))

    assert shown == [gemini_event({"text": "Let me see. "}), *says]


@pytest.mark.parametrize(
    ("first", "second", "summed"),
    [
        (
            [{"modality": "TEXT", "tokenCount": 3}, {"modality": "IMAGE", "tokenCount": 9}],
            [{"modality": "TEXT", "tokenCount": 4}],
            [{"modality": "TEXT", "tokenCount": 7}, {"modality": "IMAGE", "tokenCount": 9}],
        ),
        ([{"modality": "TEXT"}], [{"modality": "TEXT", "tokenCount": 4}], [{"modality": "TEXT", "tokenCount": 4}]),
        (["odd"], [], []),
    ],
    ids=["summed", "no count", "odd"],
)
def test_counts_by_modality_are_summed_where_both_rounds_have_them(
    first: list[Any], second: list[Any], summed: list[Any]
) -> None:
    assert summed_usage({"details": first}, {"details": second}) == {"details": summed}


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_that_is_no_json_is_told_as_a_text_in_the_stream(wire: Wire) -> None:
    event = json.loads(error_event(wire, b"<html>oops</html>").partition(b"data: ")[2])

    assert event["error"] == {"type": "api_error", "message": "<html>oops</html>"}


def test_answers_that_came_without_a_bill_are_joined_without_one() -> None:
    rounds, stops = AnswerRounds("openai-chat", is_stream=False), list[str]()
    for reply in (ASKS, SAYS):
        rounds.next_round()
        answer = whole_answer("openai-chat", reply)
        del answer["usage"]
        rounds.add(json.dumps(answer).encode())
        stops.append(rounds.end_round())

    joined = json.loads(rounds.end())

    [choice] = joined["choices"]
    assert stops == ["called", "called"]
    assert (choice["message"]["content"], "usage" in joined) == (ASKS.text + SAYS.text, False)


def test_answers_in_blocks_are_joined_with_texts_and_their_reasoning() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    details = [{"type": "reasoning.text", "text": text, "index": 0} for text in ("One", "Two")]
    call = {"id": "r", "type": "function", "function": {"name": "recall", "arguments": '{"query": "boat"}'}}
    messages = [
        {"content": "I look. ", "reasoning_details": details[:1], "tool_calls": [call]},
        {"content": [thought, {"type": "text", "text": "Albatross."}], "reasoning_details": details[1:]},
    ]
    rounds = AnswerRounds("openai-chat", is_stream=False)
    for message, reason in zip(messages, ("tool_calls", "stop"), strict=True):
        rounds.next_round()
        answer = {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}]}
        rounds.add(json.dumps(answer).encode())
        rounds.end_round()

    [choice] = json.loads(rounds.end())["choices"]

    blocks = [{"type": "text", "text": "I look. "}, thought, {"type": "text", "text": "Albatross."}]
    assert choice["message"] == {"role": "assistant", "content": blocks, "reasoning_details": details}


def test_the_joined_answer_of_gemini_is_the_last_one_with_the_parts_of_all() -> None:
    first = {"content": {"parts": [{"text": "First."}]}, "index": 0}
    last = {"content": {"role": "model", "parts": [{"text": "Then."}]}, "finishReason": "STOP"}

    joined = joined_answer("gemini", [{"candidates": [first]}, {"candidates": [last], "modelVersion": "g"}])

    content = {"role": "model", "parts": [{"text": "First."}, {"text": "Then."}]}
    assert joined == {"candidates": [{"content": content, "finishReason": "STOP"}], "modelVersion": "g"}


def test_a_call_of_recall_whose_arguments_lie_thousands_deep_asks_for_nothing() -> None:
    function = {"name": "recall", "arguments": '{"query":' + "[" * 100_000}
    answer = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}

    assert recall_calls("openai-chat", [answer]) == [RecallCall("a", {})]


def test_an_event_of_megabytes_is_split_in_proportion_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Albatross " * 200_000
    raw = b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()
    searched, find = [0], provider_apis_module.has_event_end

    def counted(data: bytes) -> bool:
        searched[0] += len(data)
        return find(data)

    monkeypatch.setattr(provider_apis_module, "has_event_end", counted)
    rounds = AnswerRounds("openai-chat", is_stream=True)
    seen = b"".join(rounds.add(raw[start : start + 1_000]) for start in range(0, len(raw), 1_000))

    assert seen + rounds.end() == raw
    assert len(raw) <= searched[0] < 2 * len(raw)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_events_are_the_same_wherever_their_bytes_are_parted(end: bytes) -> None:
    events = [b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}%s' % (number, end) for number in range(3)]
    raw = b": ping" + end + b"".join(events)

    seen: set[bytes] = set()
    for size in range(1, len(raw)):
        rounds = AnswerRounds("openai-chat", is_stream=True)
        seen.add(b"".join(rounds.add(raw[start : start + size]) for start in range(0, len(raw), size)) + rounds.end())

    assert seen == {raw}


async def test_a_stream_with_an_event_that_never_ends_is_passed_on_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_rounds_module, "MAX_ROUND_BYTES", 1_000)
    first = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"}}]}\n\n'
    endless = b'data: {"choices":[' + b" " * 2_000
    answer = FaultyAnswer(
        headers=[("content-type", "text/event-stream")], pieces=[first, endless, b"more of it"], framing="chunked"
    )
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url) as url:
        client = Client("openai-chat", url, is_stream=True)
        await client.prompt("Hello")

    assert (client.seen.status, client.seen.body, client.seen.is_whole) == (200, first + endless + b"more of it", True)


async def test_a_whole_answer_that_is_too_large_to_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_rounds_module, "MAX_ROUND_BYTES", 1_000)
    monkeypatch.setattr(relay_module, "MAX_ROUND_BYTES", 1_000)
    async with between("openai-chat", [ProviderReply("word " * 500)], is_stream=False) as (client, _):
        await client.prompt("Hello")

    problem = "the answer is larger than 1,000 bytes, and in this conversation `recall` is to be read"
    error = {"message": problem, "type": "server_error", "param": None, "code": None}
    assert (client.seen.status, json.loads(client.seen.body)) == (502, {"error": error})


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_in_an_encoding_that_only_its_client_can_read_reaches_it(*, is_stream: bool) -> None:
    kind = "text/event-stream" if is_stream else "application/json"
    answer = FaultyAnswer(headers=[("content-type", kind), ("content-encoding", "br")], pieces=[b"\x0b\x02\x80Hi\x03"])
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url) as url:
        client = Client("openai-chat", url, is_stream=is_stream)
        await client.prompt("Hello")

    seen = client.seen
    assert (seen.status, seen.header("content-encoding"), seen.body) == (200, "br", b"\x0b\x02\x80Hi\x03")


async def test_a_compressed_answer_that_is_damaged_is_told_where_recall_would_be_read() -> None:
    answer = FaultyAnswer(
        headers=[("content-type", "application/json"), ("content-encoding", "gzip")], pieces=[b"no gzip at all"]
    )
    async with FaultyUpstream(answer) as upstream, running_gateway(upstream.url) as url:
        client = Client("openai-chat", url, is_stream=False)
        await client.prompt("Hello")

    error = {
        "message": "the encoding of the answer cannot be read",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert (client.seen.status, json.loads(client.seen.body)) == (502, {"error": error})
