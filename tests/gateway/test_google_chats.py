"""Chats of Google's library, which sends each chunk of a streamed answer back as a content of its own."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google import genai
from google.genai import types
from starlette.types import Message, Receive, Scope, Send

from holdfast import validate
from holdfast.apps.gateway.app import close_gateway, gateway_app
from holdfast.core.history import events as log
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider_streams import event_bytes
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.gateway.serving import served

Json = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
SIGNATURE = "c2lnbmVk"
WORDS = "word " * 60


def stream(*parts: Json) -> FaultyAnswer:
    """Return an answer with a part in each chunk."""
    candidates: list[Json] = [{"content": {"role": "model", "parts": [part]}, "index": 0} for part in parts]
    candidates[-1]["finishReason"] = "STOP"
    events = [event_bytes("", {"candidates": [one], "modelVersion": "gemini-3-pro"}) for one in candidates]
    return FaultyAnswer(headers=[("content-type", "text/event-stream")], pieces=events, framing="chunked")


class Chatting:
    """A chat of the library through a gateway, which may be another one for each request."""

    def __init__(self, store: Store, upstream: FaultyUpstream, **options: Any) -> None:
        self.store, self.upstream, self._options = store, upstream, options
        self.sent: list[bytes] = []
        """The bodies of the client."""
        self.compacted: list[bool] = []
        self.history: list[Any] = []

    @asynccontextmanager
    async def through_a_gateway(self, *, name: str | None, **config: Any) -> AsyncGenerator[Any]:
        """Run a gateway, and yield the chat as far as it came."""
        upstreams = {"gemini": self.upstream.url}
        app = gateway_app(store=self.store, upstreams=upstreams, **self._options)

        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            self.sent.append(b"")

            async def received() -> Message:
                message = await receive()
                self.sent[-1] += message.get("body", b"")
                return message

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self.compacted.append((b"x-holdfast-compacted", b"1") in message["headers"])
                await send(message)

            await app(scope, received, noted)

        try:
            async with served(noting) as url:
                headers = {"x-holdfast-session": name} if name else {}
                options = types.HttpOptions(base_url=url, headers=headers)
                async with genai.Client(api_key="x", http_options=options).aio as aio:
                    settings = types.GenerateContentConfig(**config) if config else None
                    chat = aio.chats.create(model="gemini-3-pro", config=settings, history=self.history)
                    yield chat
                    self.history = chat.get_history(curated=True)
        finally:
            await close_gateway(app)

    @property
    def arrived(self) -> list[bytes]:
        """The bodies that the provider got."""
        return [request.body for request in self.upstream.requests]

    async def logs(self) -> list[tuple[list[Json], int]]:
        """Return the messages of each session, and how often it went back."""
        found: list[tuple[list[Json], int]] = []
        for info in await self.store.sessions():
            async with Session.open(info.id, store=self.store) as session:
                natives, events = await session.messages(), await session.events()
                found.append(([dict(one) for one in natives], sum(isinstance(one, log.Rewound) for one in events)))
        return found


async def say(chat: Any, upstream: FaultyUpstream, prompt: str, *answers: Sequence[Json]) -> None:
    """Send a prompt; the first answer is to it, and each further one to the results of calls in the one before."""
    waiting = [stream(*parts) for parts in answers]
    upstream.answer = waiting.pop(0)
    async for chunk in await chat.send_message_stream(prompt):
        if chunk.candidates[0].finish_reason and waiting:
            upstream.answer = waiting.pop(0)


def user(*texts: str) -> Json:
    return {"role": "user", "parts": [{"text": text} for text in texts]}


def model(*parts: Json) -> Json:
    return {"role": "model", "parts": [*parts]}


ANSWERS: Sequence[tuple[Sequence[Json], Json]] = [
    ([{"text": "Hel"}, {"text": "lo "}, {"text": "you"}, {"text": ""}], model({"text": "Hello you"})),
    (
        [
            {"text": "I think", "thought": True},
            {"text": " so.", "thought": True},
            {"text": "Yes"},
            {"text": "."},
            {"text": "", "thoughtSignature": SIGNATURE},
        ],
        model({"text": "I think so.", "thought": True}, {"text": "Yes.", "thoughtSignature": SIGNATURE}),
    ),
    (
        [{"text": "Yes"}, {"text": "."}, {"thoughtSignature": SIGNATURE}, {"text": ""}],
        model({"text": "Yes."}, {"thoughtSignature": SIGNATURE}, {"text": ""}),
    ),
    ([{"text": "Yes"}, {"text": "."}], model({"text": "Yes."})),
]
"""Answers in chunks, and how each is recorded; two that say the same follow each other."""


@pytest.mark.parametrize("name", ["talk", None], ids=["named", "unnamed"])
@pytest.mark.parametrize("gateways", ["one", "restarted", "two"])
async def test_a_chat_whose_answers_come_in_chunks_is_one_session_and_arrives_as_it_was_sent(
    name: str | None, gateways: str
) -> None:
    recorded: list[Json] = []
    async with FaultyUpstream() as upstream:
        chatting = Chatting(MemoryStore(), upstream)
        turns = [(f"prompt {number}", *answer) for number, answer in enumerate([*ANSWERS, *ANSWERS])]
        recorded = [one for prompt, _, answer in turns for one in (user(prompt), answer)]
        if gateways == "one":
            async with chatting.through_a_gateway(name=name) as chat:
                for prompt, parts, _ in turns:
                    await say(chat, upstream, prompt, parts)
        elif gateways == "restarted":
            for prompt, parts, _ in turns:
                async with chatting.through_a_gateway(name=name) as chat:
                    await say(chat, upstream, prompt, parts)
        else:
            async with chatting.through_a_gateway(name=name) as one, chatting.through_a_gateway(name=name) as other:
                for number, (prompt, parts, _) in enumerate(turns):
                    chat, last = (one, other) if number % 2 else (other, one)
                    chat._curated_history = last._curated_history
                    await say(chat, upstream, prompt, parts)

    assert await chatting.logs() == [(recorded, 0)]
    assert chatting.arrived == chatting.sent
    assert len(json.loads(chatting.sent[-1])["contents"]) == sum(1 + len(parts) for parts, _ in ANSWERS) * 2 - 2


def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"rain in {city} {WORDS}"


CALLS: Sequence[Json] = [
    {"functionCall": {"name": "weather", "args": {"city": "Bonn"}}, "thoughtSignature": SIGNATURE},
    {"functionCall": {"name": "weather", "args": {"city": "Graz"}}},
]
RESULTS: Json = {
    "role": "user",
    "parts": [
        {"functionResponse": {"name": "weather", "response": {"result": weather(city)}}} for city in ("Bonn", "Graz")
    ],
}


async def test_parallel_calls_in_chunks_of_their_own_are_one_answer_and_their_results_follow_it() -> None:
    async with FaultyUpstream() as upstream:
        chatting = Chatting(MemoryStore(), upstream)
        for prompt in ("How is it?", "And now?"):
            async with chatting.through_a_gateway(name=None, tools=[weather]) as chat:
                calling = [{"text": "I "}, {"text": "look."}, *CALLS, {"text": ""}]
                await say(chat, upstream, prompt, calling, [{"text": "Rain"}, {"text": " twice."}])

    answered = [model({"text": "I look."}, *CALLS, {"text": ""}), RESULTS, model({"text": "Rain twice."})]
    assert await chatting.logs() == [([user("How is it?"), *answered, user("And now?"), *answered], 0)]
    assert chatting.arrived == chatting.sent


@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "restarted"])
async def test_a_chat_that_outgrows_its_budget_is_sent_as_a_valid_list_with_whole_answers(
    *, is_restarted: bool
) -> None:
    turns = [
        [[{"text": f"answer {number}"}, {"text": f" {WORDS}"}, {"text": "", "thoughtSignature": SIGNATURE}]]
        if number % 3
        else [[{"text": "I look."}, *CALLS, {"text": ""}], [{"text": f"answer {number}"}, {"text": "."}, {"text": ""}]]
        for number in range(15)
    ]
    async with FaultyUpstream() as upstream:
        chatting = Chatting(MemoryStore(), upstream, budget=1_200)
        for some in [[one] for one in turns] if is_restarted else [turns]:
            async with chatting.through_a_gateway(name=None, tools=[weather]) as chat:
                for answers in some:
                    await say(chat, upstream, f"prompt {turns.index(answers)}: {WORDS}", *answers)

    [(natives, rewinds)] = await chatting.logs()
    assert (len(natives), rewinds, chatting.compacted[-1]) == (40, 0, True)
    for number, (sent, arrived) in enumerate(zip(chatting.sent, chatting.arrived, strict=True)):
        got = json.loads(arrived)["contents"]
        if chatting.compacted[number]:
            recorded = [
                one | {"parts": [p for p in one["parts"] if p != {"text": ""}]} for one in natives[: 2 * number + 1]
            ]
            assert got[1:] == recorded[len(recorded) - len(got) + 1 :]
            assert validate(got, "gemini") == []
        else:
            assert arrived == sent


async def test_a_turn_that_the_library_drops_is_taken_back() -> None:
    async with FaultyUpstream() as upstream:
        chatting = Chatting(MemoryStore(), upstream)
        async with chatting.through_a_gateway(name=None) as chat:
            await say(chat, upstream, "hi", [{"text": "Hel"}, {"text": "lo"}])
            await say(chat, upstream, "what?", [{"text": "Not kept."}, {}])
            await say(chat, upstream, "again", [{"text": "We"}, {"text": "ll"}])

    assert await chatting.logs() == [
        ([user("hi"), model({"text": "Hello"}), user("again"), model({"text": "Well"})], 1)
    ]
    assert chatting.arrived == chatting.sent
