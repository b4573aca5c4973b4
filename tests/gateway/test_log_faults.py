"""Whatever fails, at whatever point of an exchange: the log stays whole, and the client sees its provider's answer."""

import asyncio
import json
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Session
from holdfast.apps.gateway.relay import RelaySettings
from holdfast.core.history import events as log
from holdfast.errors import StoreUnavailableError
from holdfast.stores.memory import MemoryStore
from holdfast.testing.upstream import AnswerFault, AnswerFraming, FaultyAnswer, FaultyUpstream
from tests.gateway.serving import RawClient, Seen, ask, running_gateway

STREAM_HEADERS = (("content-type", "text/event-stream"),)
ANSWER_TEXT = "Hi, how are you?"
PIECES = [
    b"data: "
    + json.dumps({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}).encode()
    + b"\n\n"
    for word in ("Hi, ", "how ", "are ", "you?")
]
LAST = [b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n', b"data: [DONE]\n\n"]
MESSAGE = {"role": "assistant", "content": ANSWER_TEXT}
WHOLE = json.dumps({"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}).encode()
STREAM = FaultyAnswer(headers=STREAM_HEADERS, pieces=[*PIECES, *LAST], framing="chunked")
JSON = FaultyAnswer(pieces=[WHOLE])


class FailingStore(MemoryStore):
    """Fails some of its writes, counted from now on."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: frozenset[int] = frozenset()
        self._writes = 0

    def fail(self, *numbers: int) -> None:
        """Fail these writes, the first being 0; none if there are none."""
        self.failing, self._writes = frozenset(numbers), 0

    def _write(self) -> None:
        number, self._writes = self._writes, self._writes + 1
        if number in self.failing:
            raise StoreUnavailableError("memory", "the disk is full")

    async def append(self, *args: Any, **kwargs: Any) -> int:
        self._write()
        return await super().append(*args, **kwargs)

    async def put_value(self, *args: Any, **kwargs: Any) -> None:
        self._write()
        await super().put_value(*args, **kwargs)

    async def put_blob(self, content: bytes) -> str:
        self._write()
        return await super().put_blob(content)


@dataclass(repr=False)
class Running:
    """An upstream, and in front of it a gateway and a strict one, each with a store."""

    runner: asyncio.Runner
    upstream: FaultyUpstream
    gateways: dict[bool, str] = field(default_factory=dict[bool, str])
    stores: dict[bool, FailingStore] = field(default_factory=dict[bool, FailingStore])
    sessions: int = 0

    def new_session(self) -> str:
        self.sessions += 1
        return f"s{self.sessions}"

    async def ask(self, session: str, said: Sequence[object], *, is_strict: bool = False) -> Seen:
        return await ask(self.gateways[is_strict], body=body_of(said), x_holdfast_session=session)

    async def recorded(self, session: str, *, is_strict: bool = False) -> tuple[list[tuple[str, str]], set[str]]:
        """Return the messages of a session and the kinds of its events; its log must be readable to the last record."""
        async with Session.open(session, store=self.stores[is_strict]) as opened:
            assert opened.damage == []
            messages = [(str(one["role"]), str(one.get("content"))) for one in await opened.messages()]
            return messages, {type(event).__name__ for event in await opened.events()}


@pytest.fixture(scope="module")
def running() -> Generator[Running]:
    stack, upstream = AsyncExitStack(), FaultyUpstream()

    async def start(found: Running) -> None:
        await stack.enter_async_context(upstream)
        for is_strict in (False, True):
            store = found.stores[is_strict] = FailingStore()
            rules = RelaySettings(is_strict=is_strict)
            gateway = running_gateway(upstream.url, store=store, settings=rules)
            found.gateways[is_strict] = await stack.enter_async_context(gateway)

    with asyncio.Runner() as runner:
        found = Running(runner, upstream)
        runner.run(start(found))
        yield found
        runner.run(stack.aclose())


def body_of(said: Sequence[object]) -> bytes:
    roles = ("user", "assistant")
    listed = [{"role": roles[index % 2], "content": text} for index, text in enumerate(said)]
    return json.dumps({"model": "gpt-5", "messages": listed, "stream": True}).encode()


def conversation(*texts: str) -> list[tuple[str, str]]:
    return [(("user", "assistant")[index % 2], text) for index, text in enumerate(texts)]


@settings(max_examples=40)
@given(failing=st.sets(st.integers(0, 5), max_size=4), turn=st.integers(0, 1), answer=st.sampled_from([STREAM, JSON]))
def test_a_store_that_fails_at_any_write_changes_nothing_for_the_client_and_is_made_good_by_the_next_request(
    running: Running, failing: set[int], turn: int, answer: FaultyAnswer
) -> None:
    session, store = running.new_session(), running.stores[False]
    running.upstream.answer = answer

    async def talk() -> list[Seen]:
        seen: list[Seen] = []
        said: list[str] = []
        for number in range(3):
            store.fail(*(failing if number == turn else ()))
            said.append(f"prompt {number}")
            seen.append(await running.ask(session, said))
            said.append(ANSWER_TEXT)
        return seen

    seen = running.runner.run(talk())
    messages, _ = running.runner.run(running.recorded(session))

    assert [(one.status, one.body, one.is_whole) for one in seen] == [(200, b"".join(answer.pieces), True)] * 3
    expected = conversation("prompt 0", ANSWER_TEXT, "prompt 1", ANSWER_TEXT, "prompt 2", ANSWER_TEXT)
    assert messages == expected


@settings(max_examples=40)
@given(failing=st.sets(st.integers(0, 5), max_size=4), answer=st.sampled_from([STREAM, JSON]))
def test_what_a_client_of_a_strict_gateway_has_seen_whole_is_in_the_log(
    running: Running, failing: set[int], answer: FaultyAnswer
) -> None:
    session, store = running.new_session(), running.stores[True]
    running.upstream.answer = answer
    before = len(running.upstream.requests)

    async def talk() -> Seen:
        store.fail(*failing)
        seen = await running.ask(session, ["hello"], is_strict=True)
        store.fail()
        return seen

    seen = running.runner.run(talk())
    messages, _ = running.runner.run(running.recorded(session, is_strict=True))

    was_asked = len(running.upstream.requests) > before
    assert (seen.status == 503) is not was_asked
    assert not was_asked or messages[:1] == conversation("hello")
    if seen.status == 200 and seen.is_whole:
        assert (seen.body, messages) == (b"".join(answer.pieces), conversation("hello", ANSWER_TEXT))


@st.composite
def broken_answers(draw: st.DrawFn) -> FaultyAnswer:
    """Return an answer that breaks at any byte."""
    framings: list[AnswerFraming] = ["length", "chunked", "close"]
    faults: list[AnswerFault] = ["none", "close", "reset"]
    whole = replace(draw(st.sampled_from([STREAM, JSON])), framing=draw(st.sampled_from(framings)))
    size = sum(map(len, whole.encoded()))
    return replace(whole, fault=draw(st.sampled_from(faults)), at=draw(st.integers(0, size)))


def check_recorded(messages: list[tuple[str, str]], kinds: set[str], prompt: str) -> None:
    """Check that a log has a prompt, and of its answer the beginning, which it calls one if it is not all."""
    first, *rest = messages
    assert first == ("user", prompt)
    texts = [text for role, text in rest if role == "assistant"]
    assert len(rest) == len(texts) <= 1
    assert ANSWER_TEXT.startswith("".join(texts))
    assert texts in ([], [ANSWER_TEXT]) or "TurnInterrupted" in kinds


@given(answer=broken_answers())
def test_an_answer_that_breaks_anywhere_is_in_the_log_as_far_as_it_came(running: Running, answer: FaultyAnswer) -> None:
    session = running.new_session()
    running.upstream.answer = answer
    seen = running.runner.run(running.ask(session, ["hello"]))
    messages, kinds = running.runner.run(running.recorded(session))

    check_recorded(messages, kinds, "hello")
    if seen.is_whole and seen.status == 200 and answer.fault == "none":
        assert messages == conversation("hello", ANSWER_TEXT)


@settings(max_examples=30)
@given(
    answer=st.sampled_from([STREAM, JSON]),
    missing=st.sampled_from([0, 0, 1, 20]),
    place=st.integers(0, 2_000),
)
def test_a_client_that_hangs_up_anywhere_leaves_a_log_that_its_next_request_continues(
    running: Running, answer: FaultyAnswer, missing: int, place: int
) -> None:
    session, upstream = running.new_session(), running.upstream
    sent = body_of(["hello"])
    uploaded = len(sent) - missing
    # An answer that is whole gives its connection back, so the last byte of it never comes here.
    stalls_at = place % sum(map(len, answer.encoded()))

    async def leave() -> None:
        upstream.answer = replace(answer, fault="stall", at=stalls_at)
        upstream.client_left.clear()
        upstream.request_received.clear()
        client = RawClient(running.gateways[False])
        headers = {"x-holdfast-session": session, "content-length": str(len(sent))}
        await client.send("POST", "/v1/chat/completions", sent[:uploaded], headers)
        if uploaded < len(sent):
            client.leave()
            return
        await asyncio.wait_for(upstream.request_received.wait(), 60)
        client.leave()
        await asyncio.wait_for(upstream.client_left.wait(), 60)

    async def go_on() -> Seen:
        upstream.answer = answer
        return await running.ask(session, ["hello"])

    running.runner.run(leave())
    seen = running.runner.run(go_on())
    messages, _ = running.runner.run(running.recorded(session))

    assert (seen.status, seen.body, seen.is_whole) == (200, b"".join(answer.pieces), True)
    assert messages == conversation("hello", ANSWER_TEXT)


@settings(max_examples=30)
@given(prompts=st.lists(st.sampled_from(["one", "two", "three"]), min_size=2, max_size=5), is_named=st.booleans())
def test_requests_of_one_session_at_once_get_their_own_answers_and_leave_a_whole_log(
    running: Running, prompts: list[str], *, is_named: bool
) -> None:
    session = running.new_session()
    running.upstream.answer = STREAM
    headers = {"x_holdfast_session": session} if is_named else {}

    async def at_once() -> list[Seen]:
        first = await ask(running.gateways[False], body=body_of([session]), **headers)
        bodies = [body_of([session, ANSWER_TEXT, prompt]) for prompt in prompts]
        return [first, *await asyncio.gather(*(ask(running.gateways[False], body=one, **headers) for one in bodies))]

    seen = running.runner.run(at_once())
    recorded = {one.header("x-holdfast-session") or "" for one in seen}
    logs = [running.runner.run(running.recorded(name))[0] for name in recorded]

    assert [(one.status, one.body) for one in seen] == [(200, b"".join(STREAM.pieces))] * (1 + len(prompts))
    assert all(messages[:2] == conversation(session, ANSWER_TEXT) for messages in logs)
    assert all(len(messages) <= 4 for messages in logs)
    assert not is_named or recorded == {session}
    assert {*map(str, logs)} <= {
        str(conversation(session, ANSWER_TEXT, *rest)) for prompt in prompts for rest in ((prompt, ANSWER_TEXT), ())
    }


async def test_two_gateways_on_one_store_lose_nothing(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/chats.db"
    async with (
        FaultyUpstream(STREAM) as upstream,
        running_gateway(upstream.url, store=store) as one,
        running_gateway(upstream.url, store=store) as other,
    ):
        said: list[str] = []
        for number in range(6):
            said.append(f"prompt {number}")
            seen = await ask((one, other)[number % 2], body=body_of(said), x_holdfast_session="s")
            assert (seen.status, seen.header("x-holdfast-error")) == (200, None)
            said.append(ANSWER_TEXT)

    async with Session.open("s", store=store) as session:
        events = await session.events()
        said_there = [(str(one["role"]), one["content"]) for one in await session.messages()]
    assert said_there == conversation(*said)
    assert not [event for event in events if isinstance(event, log.Rewound)]
