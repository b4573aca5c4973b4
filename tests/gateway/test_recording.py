"""What the recorder makes of single exchanges: of each kind of list, and of each way in which an answer can end."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.apps.gateway import lanes, recording
from holdfast.apps.gateway.client_body import texts_of
from holdfast.apps.gateway.recording import ClientRequest, Exchange, Recorder
from holdfast.core.history import events as log
from holdfast.errors import ConcurrentWriteError, RecordingError, StoreUnavailableError
from holdfast.session.conversation import Conversation
from holdfast.stores.base import SessionInfo
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events, whole_answer
from holdfast.wire.answers import JsonMapping, Wire
from tests.gateway.simulated_clients import SUMMARY_ORDER

Json = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("read", "write", "run")]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def recorder(store: MemoryStore) -> AsyncIterator[Recorder]:
    one = Recorder(store)
    yield one
    await one.close()


def chat(
    *texts: str, system: str = "You help. Be brief.", name: str = "", namespace: str = "", **fields: Any
) -> ClientRequest:
    """Return a request whose messages are alternately the user's and the model's."""
    roles = ("user", "assistant")
    listed = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    body = {"model": "m", "messages": [{"role": "system", "content": system}, *listed], "tools": TOOLS} | fields
    return sent(json.dumps(body).encode(), {"x-session-id": name} if name else {}, namespace)


def sent(body: bytes, headers: dict[str, str], namespace: str = "") -> ClientRequest:
    return ClientRequest("openai-chat", "/v1/chat/completions", None, headers, body, namespace, "openai")


def responses(given: str | list[Json], **fields: Any) -> ClientRequest:
    body = json.dumps({"model": "m", "input": given} | fields).encode()
    return ClientRequest("openai-responses", "/v1/responses", None, {}, body, "", "openai")


async def answered(recorder: Recorder, request: ClientRequest, text: str, number: int = 1) -> str:
    """Record a request with a whole answer, and return its session."""
    exchange = await recorder.receive(request)
    await finish(exchange, request, text, number)
    return exchange.session_id


async def finish(exchange: Exchange, request: ClientRequest, text: str, number: int = 1) -> None:
    for name, event in stream_events(request.wire, ProviderReply(text), number):
        exchange.feed(event_bytes(name, event))
    await exchange.finish("complete", 200)


async def messages(recorder: Recorder, session_id: str) -> list[object]:
    """Return the content of a session's messages as its client's list has them, without system messages."""
    async with recorder.session(session_id) as opened:
        natives = await opened.session.messages()
    return [native["content"] for native in natives if native.get("role") != "system"]


async def kinds(recorder: Recorder, session_id: str) -> list[str]:
    """Return what happened in a session besides messages and requests."""
    async with recorder.session(session_id) as opened:
        events = await opened.session.events()
    of_requests = (log.RequestPrepared, log.UsageMeasured, log.SystemChanged, log.ToolsChanged)
    return [type(event).__name__ for event in events if not isinstance(event, (log.MessageAppended, *of_requests))]


async def test_the_new_messages_are_stored_before_the_answer_comes(recorder: Recorder) -> None:
    exchange = await recorder.receive(chat("hi", name="s"))

    assert (exchange.session_id, await messages(recorder, "s")) == ("s", ["hi"])
    assert exchange.headers["x-holdfast-session"] == "s"


async def test_a_list_that_goes_on_is_appended_and_its_bill_recorded(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    await answered(recorder, chat("hi", "Hello there.", "more", name="s"), "Yes.")

    async with recorder.session("s") as opened:
        events = await opened.session.events()
    usage = [event.usage.output_tokens for event in events if isinstance(event, log.MessageAppended) and event.usage]
    assert await messages(recorder, "s") == ["hi", "Hello there.", "more", "Yes."]
    assert (usage, await kinds(recorder, "s")) == ([20, 20], [])


async def test_a_conversation_without_a_name_is_found_again_by_its_answers(recorder: Recorder) -> None:
    first = await answered(recorder, chat("hi"), "Hello there.")
    other = await answered(recorder, chat("hi"), "Good day.")
    again = await answered(recorder, chat("hi", "Hello there.", "more"), "Yes.")

    assert (again == first, other == first) == (True, False)
    assert await messages(recorder, first) == ["hi", "Hello there.", "more", "Yes."]


async def test_a_conversation_without_a_name_is_found_again_after_a_restart(store: MemoryStore) -> None:
    before = Recorder(store)
    first = await answered(before, chat("hi"), "Hello there.")
    await before.close()
    after = Recorder(store)

    assert await answered(after, chat("hi", "Hello there.", "more"), "Yes.") == first
    assert await messages(after, first) == ["hi", "Hello there.", "more", "Yes."]
    await after.close()


async def test_the_same_first_words_of_a_client_identify_no_conversation(recorder: Recorder) -> None:
    preamble = ("The setting is linux.", "Got it.")
    first = await answered(recorder, chat(*preamble, "one"), "Done one.")
    second = await answered(recorder, chat(*preamble, "two"), "Done two.")

    assert first != second


async def test_conversations_of_two_keys_never_meet(recorder: Recorder) -> None:
    mine = await answered(recorder, chat("hi", namespace="me"), "Hello there.")
    theirs = await answered(recorder, chat("hi", "Hello there.", "more", namespace="them"), "Yes.")
    named = await answered(recorder, chat("hi", name="s", namespace="me"), "Hello there.")
    plain = await answered(recorder, chat("hi", name="me/s"), "Hello there.")

    assert (mine.split("/")[0], theirs.split("/")[0]) == ("me", "them")
    assert (named, plain) == ("me/s", "me%2Fs")


async def test_an_edit_under_the_same_name_rewinds(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    await answered(recorder, chat("hi", "Hello there.", "one", name="s"), "First.")
    await answered(recorder, chat("hi", "Hello there.", "two", name="s"), "Second.")

    assert await messages(recorder, "s") == ["hi", "Hello there.", "two", "Second."]
    assert await kinds(recorder, "s") == ["Rewound"]


async def test_a_new_name_with_a_known_list_is_a_fork(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    await answered(recorder, chat("hi", "Hello there.", "one", name="s"), "First.")
    await answered(recorder, chat("hi", "Hello there.", "two", name="f"), "Second.")

    assert await messages(recorder, "f") == ["hi", "Hello there.", "two", "Second."]
    assert (await kinds(recorder, "f"), await kinds(recorder, "s")) == (["Forked"], [])


async def test_a_call_of_another_agent_is_put_on_the_record_beside_the_conversation(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    await answered(recorder, chat("Summarize: hi", name="s", system="You write titles.", tools=[]), "A greeting")
    await answered(recorder, chat("hi", "Hello there.", "more", name="s"), "Yes.")

    assert await messages(recorder, "s") == ["hi", "Hello there.", "more", "Yes."]
    async with recorder.session("s") as opened:
        [side] = [event for event in await opened.session.events() if isinstance(event, log.SideCallRecorded)]
    assert (side.answer, side.usage and side.usage.output_tokens) == ("A greeting", 20)


async def test_an_unnamed_title_call_belongs_to_the_conversation_that_it_quotes(recorder: Recorder) -> None:
    first = await answered(recorder, chat("paint the shed green"), "Done.")
    order = chat("title for paint the shed green", system="Make a title of three words.", tools=[])

    assert await answered(recorder, order, "Green garden shed") == first
    assert await messages(recorder, first) == ["paint the shed green", "Done."]


async def test_a_prompt_after_the_answer_of_a_side_call_shows_that_it_was_none(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    plan: Json = {
        "system": "You plan and never write a file.",
        "tools": [{"type": "function", "function": {"name": "ask"}}],
    }
    await answered(recorder, chat("hi", "Hello there.", "plan it", name="s", **plan), "First this.")
    listed = ("hi", "Hello there.", "plan it", "First this.", "and then?")
    await answered(recorder, chat(*listed, name="s", **plan), "Then that.")

    assert await messages(recorder, "s") == [*listed, "Then that."]
    assert await kinds(recorder, "s") == ["SideCallRecorded"]


async def test_a_compaction_of_the_client_leaves_everything_within_recall(recorder: Recorder) -> None:
    await answered(recorder, chat("the code word is marzipan", name="s"), "Noted.")
    listed = ("the code word is marzipan", "Noted.")
    summary = "<summary>The user told a code word, and the model noted it.</summary>"
    await answered(recorder, chat(*listed, SUMMARY_ORDER, name="s"), summary)
    new = "Continued from before. Summary: The user told a code word, and the model noted it.\n\nGo on."
    await answered(recorder, chat(new, name="s"), "On it.")

    assert await messages(recorder, "s") == [new, "On it."]
    assert await kinds(recorder, "s") == ["SideCallRecorded", "CompactionCompleted"]
    async with recorder.session("s") as opened:
        assert "the code word is marzipan" in str(await opened.session.recall("marzipan"))


async def test_a_compaction_order_beside_a_running_turn_is_a_side_call_of_that_session(recorder: Recorder) -> None:
    session_id = await answered(recorder, chat("hi"), "Hello there.")
    turn = chat("hi", "Hello there.", "go on")
    running = await recorder.receive(turn)
    order = chat("hi", "Hello there.", "go on\n\nWrite down what was said.")
    order = replace(order, headers={"x-interaction-type": "conversation-compaction"})
    ordered = await answered(recorder, order, "All that was said, written down.")
    await finish(running, turn, "Going on.", 2)

    assert ordered == session_id
    assert await messages(recorder, session_id) == ["hi", "Hello there.", "go on", "Going on."]
    assert await kinds(recorder, session_id) == ["SideCallRecorded"]


async def test_a_shared_cache_key_names_no_conversation(recorder: Recorder) -> None:
    key = {"prompt_cache_key": "my-application"}
    first = await answered(recorder, chat("hi", **key), "Hello there.")
    second = await answered(recorder, chat("something else", **key), "Well.")
    third = await answered(recorder, chat("hi", "Hello there.", "more", **key), "Yes.")

    assert (first, third) == ("my-application", "my-application")
    assert second != first


async def test_a_first_prompt_that_is_sent_again_stays_in_the_session_of_its_cache_key(recorder: Recorder) -> None:
    request = chat("hi", prompt_cache_key="my-application")
    refused = await recorder.receive(request)
    await refused.finish("refused", 429)
    again = await answered(recorder, request, "Hello there.")

    assert (refused.session_id, again) == ("my-application", "my-application")
    assert await messages(recorder, again) == ["hi", "Hello there."]


async def test_a_title_call_with_the_cache_key_of_a_conversation_is_beside_it(recorder: Recorder) -> None:
    key = {"prompt_cache_key": "my-application"}
    first = await answered(recorder, chat("hi", **key), "Hello there.")
    side = await answered(recorder, chat("Name it.", system="You write titles.", tools=[], **key), "A greeting")

    assert (first, side) == ("my-application", "my-application")
    assert await messages(recorder, first) == ["hi", "Hello there."]
    assert await kinds(recorder, first) == ["SideCallRecorded"]


async def test_of_an_unnamed_list_that_goes_on_only_new_messages_are_compared(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [f"line {number}" for number in range(99)]
    await answered(recorder, chat(*listed), "Noted.")
    compared: list[object] = []
    fingerprint = lanes.essential_fingerprint

    def noting(wire: Wire, native: JsonMapping) -> bytes | None:
        compared.append(native["content"])
        return fingerprint(wire, native)

    monkeypatch.setattr(lanes, "essential_fingerprint", noting)
    session_id = await answered(recorder, chat(*listed, "Noted.", "more"), "Yes.")

    assert set(compared) == {"Noted.", "more", "Yes."}
    assert await messages(recorder, session_id) == [*listed, "Noted.", "more", "Yes."]


async def test_a_response_that_the_provider_keeps_is_continued(recorder: Recorder) -> None:
    first = await answered(recorder, responses("hi"), "Hello there.", 1)
    second = await answered(recorder, responses("more", previous_response_id="resp_1"), "Yes.", 2)

    assert second == first
    async with recorder.session(first) as opened:
        texts = [str(native["content"]) for native in await opened.session.messages()]
    assert [("hi" in texts[0]), "Hello there." in texts[1], "more" in texts[2], "Yes." in texts[3]] == [True] * 4


async def test_a_sub_agent_works_in_a_scope_of_its_own(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    child = chat("look around", system="You explore.")
    headers = {"x-session-id": "child", "x-parent-session-id": "s"}
    await answered(recorder, replace(child, headers=headers), "Nothing there.")
    await answered(recorder, chat("hi", "Hello there.", "it said: Nothing there.", name="s"), "Well.")

    assert await messages(recorder, "s") == ["hi", "Hello there.", "it said: Nothing there.", "Well."]
    async with recorder.session("s") as opened:
        [delegation] = await opened.session.delegations()
    assert (delegation.answer, delegation.state) == ("Nothing there.", "answered")


async def test_a_sub_agent_without_a_name_is_known_by_the_call_that_gave_it_its_task(recorder: Recorder) -> None:
    request = chat("have a look")
    exchange = await recorder.receive(request)
    reply = ProviderReply(tool="agent", arguments={"prompt": "look around the garden"})
    for event in stream_events("openai-chat", reply):
        exchange.feed(event_bytes(*event))
    await exchange.finish("complete", 200)
    child = await answered(recorder, chat("look around the garden", system="You explore."), "Roses.")
    again = await answered(recorder, chat("look around the garden", "Roses.", "more", system="You explore."), "Weeds.")

    assert (child, again) == (exchange.session_id, exchange.session_id)
    assert await messages(recorder, child) == ["have a look", ""]
    async with recorder.session(child) as opened:
        assert len(await opened.session.delegations()) == 1


async def cut(exchange: Exchange) -> None:
    """Record the first words of an answer that ends there."""
    events = [event_bytes(*event) for event in stream_events("openai-chat", ProviderReply("Hello there my friend."))]
    for event in events[:3]:
        exchange.feed(event)
    await exchange.finish("cut", 200)


async def test_an_answer_that_is_cut_is_recorded_as_cut(recorder: Recorder) -> None:
    await cut(await recorder.receive(chat("hi", name="s", stream=True)))

    assert await messages(recorder, "s") == ["hi", "Hello there "]
    assert await kinds(recorder, "s") == ["TurnInterrupted"]


async def test_a_repeated_request_after_a_cut_answer_takes_the_cut_answer_back(recorder: Recorder) -> None:
    await test_an_answer_that_is_cut_is_recorded_as_cut(recorder)
    await answered(recorder, chat("hi", name="s"), "Hello there my friend.")

    assert await messages(recorder, "s") == ["hi", "Hello there my friend."]


async def test_a_turn_that_another_gateway_took_over_is_recorded_once(recorder: Recorder, store: MemoryStore) -> None:
    await test_an_answer_that_is_cut_is_recorded_as_cut(recorder)
    other = Recorder(store)
    await answered(other, chat("hi", name="s"), "Hello there my friend.")

    await answered(recorder, chat("hi", "Hello there my friend.", "go on", name="s"), "Gladly.")
    await answered(other, chat("hi", "Hello there my friend.", "go on", "Gladly.", "more", name="s"), "Yes.")

    expected = ["hi", "Hello there my friend.", "go on", "Gladly.", "more", "Yes."]
    assert await messages(other, "s") == expected
    async with recorder.session("s") as opened:
        events = await opened.session.events()
    said = [event.native["content"] for event in events if isinstance(event, log.MessageAppended)]
    assert said[1:] == ["hi", "Hello there ", *expected[1:]]
    await other.close()


@pytest.mark.parametrize("gateways", [1, 2])
async def test_a_cut_answer_gives_way_to_the_one_that_its_client_has_asked_for_again(
    recorder: Recorder, store: MemoryStore, gateways: int
) -> None:
    other = Recorder(store) if gateways > 1 else recorder
    request = chat("hi", name="s", stream=True)
    left, asked_again = await recorder.receive(request), await other.receive(request)

    await cut(left)
    await finish(asked_again, request, "Hello there my friend.")
    await answered(recorder, chat("hi", "Hello there my friend.", "go on", name="s"), "Gladly.")

    async with recorder.session("s") as opened:
        events = await opened.session.events()
    said = [event.native["content"] for event in events if isinstance(event, log.MessageAppended)]
    assert said[1:] == ["hi", "Hello there my friend.", "go on", "Gladly."], "nothing is recorded twice"
    assert await kinds(recorder, "s") == ["SideCallRecorded"]
    await other.close()


async def test_a_cut_answer_that_is_recorded_while_its_client_asks_another_gateway_is_taken_back(
    recorder: Recorder, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, request = Recorder(store), chat("hi", name="s", stream=True)
    open_exchanges = [await recorder.receive(request)]
    prepare = Conversation.prepare

    async def prepare_too_late(self: Conversation, *args: Any, **options: Any) -> Any:
        if open_exchanges:
            await cut(open_exchanges.pop())
        return await prepare(self, *args, **options)

    monkeypatch.setattr(Conversation, "prepare", prepare_too_late)
    asked_again = await other.receive(request)
    await finish(asked_again, request, "Hello there my friend.")
    await answered(recorder, chat("hi", "Hello there my friend.", "go on", name="s"), "Gladly.")

    assert asked_again.body == request.body
    async with recorder.session("s") as opened:
        events = await opened.session.events()
    said = [event.native["content"] for event in events if isinstance(event, log.MessageAppended)]
    assert said[1:] == ["hi", "Hello there ", "Hello there my friend.", "go on", "Gladly."], "nothing is recorded twice"
    await other.close()


async def test_of_two_whole_answers_of_two_gateways_the_first_is_the_conversations(
    recorder: Recorder, store: MemoryStore
) -> None:
    other, request = Recorder(store), chat("hi", name="s")
    first, second = await recorder.receive(request), await other.receive(request)
    await finish(first, request, "Hello there.")
    await finish(second, request, "Good day.")

    assert await messages(recorder, "s") == ["hi", "Hello there."]
    assert await kinds(recorder, "s") == ["SideCallRecorded"]
    await other.close()


async def test_an_answer_follows_what_another_gateway_has_changed_beside_the_conversation(
    recorder: Recorder, store: MemoryStore
) -> None:
    other, request = Recorder(store), chat("hi", name="s")
    exchange = await recorder.receive(request)
    async with other.session("s") as opened:
        await opened.session.pin(0)
    await finish(exchange, request, "Hello there.")

    assert await messages(other, "s") == ["hi", "Hello there."]
    assert await kinds(other, "s") == ["Pinned"]
    await other.close()


async def test_a_refused_request_leaves_its_messages_and_no_answer(recorder: Recorder) -> None:
    exchange = await recorder.receive(chat("hi", name="s"))
    await exchange.finish("refused", 429)
    await answered(recorder, chat("hi", name="s"), "Hello there.")

    assert (await messages(recorder, "s"), await kinds(recorder, "s")) == (["hi", "Hello there."], [])


async def test_two_requests_of_one_session_at_once_leave_a_whole_log(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    request, other = (chat("hi", "Hello there.", text, name="s") for text in ("one", "two"))
    first, second = await asyncio.gather(recorder.receive(request), recorder.receive(other))
    await asyncio.gather(finish(first, request, "First."), finish(second, other, "Second."))
    await answered(recorder, chat("hi", "Hello there.", "one", "First.", "three", name="s"), "Third.")

    assert await messages(recorder, "s") == ["hi", "Hello there.", "one", "First.", "three", "Third."]
    assert "Rewound" not in await kinds(recorder, "s")


async def test_the_same_request_twice_at_once_is_recorded_once(recorder: Recorder) -> None:
    request = chat("hi", name="s")
    first, second = await recorder.receive(request), await recorder.receive(request)
    await finish(first, request, "Hello there.")
    await finish(second, request, "Good day.")

    assert await messages(recorder, "s") == ["hi", "Hello there."]
    assert await kinds(recorder, "s") == ["SideCallRecorded"]


async def test_a_cancelled_client_leaves_its_message_and_the_next_request_goes_on(recorder: Recorder) -> None:
    task = asyncio.ensure_future(recorder.receive(chat("hi", name="s")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await answered(recorder, chat("hi", name="s"), "Hello there.")

    assert (await messages(recorder, "s"), await kinds(recorder, "s")) == (["hi", "Hello there."], [])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": 3}', b'{"messages": []}', b'{"messages": [7]}'])
async def test_a_body_that_is_no_request_is_passed_on_and_not_recorded(recorder: Recorder, body: bytes) -> None:
    exchange = await recorder.receive(sent(body, {}))
    exchange.feed(b"{}")
    await exchange.finish("refused", 400)

    assert (exchange.body, exchange.session_id) == (body, "")


async def test_a_store_that_fails_is_told_as_an_error_of_the_recording(recorder: Recorder, store: MemoryStore) -> None:
    async def fail(*_: object, **__: object) -> int:
        raise StoreUnavailableError("memory", "it is full; make room")

    before = store.append
    store.append = fail  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RecordingError, match="it is full"):
        await recorder.receive(chat("hi", name="s"))
    store.append = before
    await answered(recorder, chat("hi", name="s"), "Hello there.")

    assert await messages(recorder, "s") == ["hi", "Hello there."]


@pytest.mark.parametrize(
    ("error", "times"), [(StoreUnavailableError("memory", "it restarts"), 1), (ConcurrentWriteError("s"), 99)]
)
async def test_a_request_is_not_sent_as_it_came_because_its_log_could_not_be_read(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, error: Exception, times: int
) -> None:
    prepare = Conversation.prepare
    failures = [error] * times

    async def fail_first(self: Conversation, *args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await prepare(self, *args, **options)

    monkeypatch.setattr(Conversation, "prepare", fail_first)

    with pytest.raises(RecordingError):
        await recorder.receive(chat("hi", name="s"))
    failures.clear()
    exchange = await recorder.receive(chat("hi", name="s"))
    await finish(exchange, chat("hi", name="s"), "Hello there.")

    assert "x-holdfast-error" not in exchange.headers
    assert await messages(recorder, "s") == ["hi", "Hello there."]


async def test_few_sessions_are_open_at_once_and_all_are_found_again(store: MemoryStore) -> None:
    recorder = Recorder(store, max_open_sessions=2)
    for turn in range(2):
        for number in range(5):
            texts: Sequence[str] = ("hi", "Hello there.", "more")[: 2 * turn + 1]
            await answered(recorder, chat(*texts, name=f"s{number}"), "Hello there." if not turn else "Yes.")

    found = [await messages(recorder, f"s{number}") for number in range(5)]
    assert found == [["hi", "Hello there.", "more", "Yes."]] * 5
    await recorder.close()


async def test_a_token_count_is_no_conversation(recorder: Recorder, store: MemoryStore) -> None:
    request = replace(chat("hi", name="s"), wire="anthropic", path="/v1/messages/count_tokens?beta=true")
    exchange = await recorder.receive(request)
    exchange.feed(json.dumps({"input_tokens": 3}).encode())
    await exchange.finish("complete", 200)

    assert (exchange.session_id, await store.length("s")) == ("", 0)


async def test_an_answer_without_a_stream_is_recorded_like_one_with_a_stream(recorder: Recorder) -> None:
    exchange = await recorder.receive(chat("hi", name="s"))
    exchange.feed(json.dumps(whole_answer("openai-chat", ProviderReply("Hello there."))).encode())
    await exchange.finish("complete", 200)

    assert await messages(recorder, "s") == ["hi", "Hello there."]


async def test_a_very_long_answer_is_recorded_whole(recorder: Recorder) -> None:
    text = "word " * 20_000
    session_id = await answered(recorder, chat("hi", name="s"), text)

    assert await messages(recorder, session_id) == ["hi", text]


def gemini(*contents: Json) -> ClientRequest:
    declared = [{"functionDeclarations": [{"name": "read_file"}]}]
    body = json.dumps({"contents": contents, "tools": declared}).encode()
    path = "/v1beta/models/gemini-2.5-pro:generateContent"
    return ClientRequest("gemini", path, None, {"x-session-id": "s"}, body, "", "gemini")


async def test_results_of_calls_that_gemini_sent_without_ids_are_governed_whatever_the_client_calls_them(
    recorder: Recorder,
) -> None:
    def call(**names: str) -> Json:
        return {"role": "model", "parts": [{"functionCall": {"name": "read_file", "args": {"path": "a"}} | names}]}

    prompt = {"role": "user", "parts": [{"text": "read it"}]}
    response = {"name": "read_file", "response": {"output": "hello"}}
    results = {"role": "user", "parts": [{"functionResponse": response | {"id": "given_1"}}]}
    first = await recorder.receive(gemini(prompt))
    first.feed(json.dumps({"candidates": [{"content": call(), "finishReason": "STOP", "index": 0}]}).encode())
    await first.finish("complete", 200)

    request = gemini(prompt, call(id="given_1"), results)
    second = await recorder.receive(request)

    assert (second.headers.get("x-holdfast-error"), second.body) == (None, request.body)
    async with recorder.session("s") as opened:
        natives = await opened.session.messages()
    assert natives == [prompt, call(), {"role": "user", "parts": [{"functionResponse": response}]}]


async def test_the_choice_of_a_model_before_each_turn_of_the_gemini_cli_is_no_turn(recorder: Recorder) -> None:
    def listed(*texts: str, **members: Any) -> ClientRequest:
        # The context is a message of its own in a call before the first turn, and a part of the first prompt after it.
        first = [[{"text": "the folder"}, {"text": texts[0]}]]
        if len(texts) == 1 and "tools" not in members:
            first = [[{"text": "the folder"}], [{"text": texts[0]}]]
        contents = [{"role": "user", "parts": parts} for parts in first]
        roles = ("model", "user")
        contents += [{"role": roles[at % 2], "parts": [{"text": text}]} for at, text in enumerate(texts[1:])]
        headers, path = {"user-agent": "GeminiCLI-tui/0.61.0"}, "/v1beta/models/gemini-2.5-pro:generateContent"
        body = json.dumps({"contents": contents, **members}).encode()
        return ClientRequest("gemini", path, None, headers, body, "", "gemini")

    def turn(*texts: str) -> ClientRequest:
        return listed(*texts, tools=[{"functionDeclarations": [{"name": "read_file"}]}])

    def choice(*texts: str) -> ClientRequest:
        return listed(*texts, generationConfig={"responseMimeType": "application/json"})

    asked = [choice("hi"), choice("hi"), turn("hi"), choice("hi", "Hello.", "go on"), turn("hi", "Hello.", "go on")]
    asked += [choice("hi"), turn("hi")]
    answers = ["{}", "{}", "Hello.", "{}", "Gone on.", "{}", "Hello again."]

    found = [await answered(recorder, one, text) for one, text in zip(asked, answers, strict=True)]

    assert found[:5] == [found[0]] * 5
    assert found[5:] == [found[5]] * 2 != found[:2]
    async with recorder.session(found[0]) as opened:
        said = [texts_of(native)[-1] for native in await opened.session.messages()]
        side_calls = [one for one in await opened.session.events() if isinstance(one, log.SideCallRecorded)]
    assert said == ["hi", "Hello.", "go on", "Gone on."]
    assert [(one.purpose, one.answer) for one in side_calls] == [("other", "{}")] * 3


async def test_a_system_message_within_an_anthropic_conversation_is_recorded_and_may_be_written_again_as_text(
    recorder: Recorder,
) -> None:
    def listed(*natives: Json) -> ClientRequest:
        body = json.dumps({"model": "claude-opus-5-5", "max_tokens": 9, "messages": natives}).encode()
        headers = {"x-claude-code-session-id": "c1"}
        return ClientRequest("anthropic", "/v1/messages", None, headers, body, "", "anthropic")

    hello = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    as_block = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    as_text = {"role": "system", "content": "Be brief."}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}

    first = await answered(recorder, listed(hello, as_block), "Hi")
    second = await answered(recorder, listed(hello, as_text, answer, {"role": "user", "content": "More"}), "Yes", 2)

    assert first == second
    async with recorder.session(first) as opened:
        natives = await opened.session.messages()
    assert [(native["role"], native["content"]) for native in natives[:2]] == [
        ("user", hello["content"]),
        ("system", as_block["content"]),
    ]
    assert len(natives) == 5
    assert await kinds(recorder, first) == []


async def test_a_gateway_that_starts_again_loads_what_counts_for_the_models_of_the_last_conversations(
    recorder: Recorder, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await answered(recorder, chat("hello", name="one", model="gpt-5"), "hi")
    await answered(recorder, chat("hello", name="two", model="claude-sonnet-4-5"), "hi")
    await answered(recorder, chat("hello", name="three", model="gpt-5"), "hi")
    counted = list[str]()

    class Noting:
        def __init__(self, model: str) -> None:
            self._model = model

        def count(self, text: str) -> None:
            del text
            counted.append(self._model)

    monkeypatch.setattr(recording, "counter_for", Noting)
    started = Recorder(store)
    await started.warm_up()

    assert sorted(counted) == ["claude-sonnet-4-5", "gpt-5"]
    await started.close()


async def test_a_gateway_starts_although_its_store_cannot_be_read() -> None:
    class Away(MemoryStore):
        async def sessions(self, **_: object) -> list[SessionInfo]:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise StoreUnavailableError("postgresql", "the server cannot be reached")

    recorder = Recorder(Away())

    await recorder.warm_up()

    assert (await recorder.receive(chat("hello", name="one"))).session_id == "one"
    await recorder.close()
