"""What the recorder makes of single exchanges: of each kind of list, and of each way in which an answer can end."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.apps.gateway.recording import identity
from holdfast.apps.gateway.recording import recorder as recording
from holdfast.apps.gateway.recording.client_body import texts_of
from holdfast.apps.gateway.recording.exchange import ClientRequest, Ending, Exchange, ReadRequest, read_request
from holdfast.apps.gateway.recording.governing import requested_governing
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.ledger.ledger import Ledger
from holdfast.counters.vocabularies import VocabularyCounter, counter_for
from holdfast.errors import ConcurrentWriteError, RecordingError, StoreUnavailableError
from holdfast.session.conversation import Conversation
from holdfast.session.maintenance.scrub import TOMBSTONE, scrub
from holdfast.stores.base import SessionInfo, StoredRecord, session_value_key
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events, whole_answer
from holdfast.wire.answers import JsonMapping, Wire
from tests.gateway.serving import WaitingStore
from tests.gateway.simulated_clients import SUMMARY_ORDER
from tests.support import wait_until

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


def read(request: ClientRequest) -> ReadRequest:
    reading = read_request(request, None)
    assert reading is not None
    return reading


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
    exchange.work_ahead(has_answer=True)


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


async def test_no_client_waits_until_the_messages_for_the_next_compaction_are_read(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, ledger = list[int](), History.ledger

    def noted(history: History, scope: str, stop: int) -> Ledger:
        read.append(stop)
        return ledger(history, scope, stop)

    recorder, said = Recorder(store, budget=4_000), list[str]()
    monkeypatch.setattr(History, "ledger", noted)
    while_waiting, afterwards = list[int](), list[int]()
    for turn in range(5):
        said.append(f"prompt {turn} " + "word " * 500)
        await answered(recorder, chat(*said, name="s"), f"Answer {turn}.")
        said.append(f"Answer {turn}.")
        while_waiting.append(len(read))
        for _ in range(10):
            await asyncio.sleep(0)
        afterwards.append(len(read))

    assert while_waiting == [0, *afterwards[:-1]]
    assert read == sorted(set(read)) != []
    assert await kinds(recorder, "s") == []
    await recorder.close()


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


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "s"}], ids=["unnamed", "named"])
@pytest.mark.parametrize(
    "beside",
    [{"annotations": [{"type": "url_citation"}]}, {"provider_specific_fields": {"a": 1}}, {"reasoning_text": "Hm."}],
    ids=["references", "fields", "reasoning"],
)
async def test_a_conversation_goes_on_without_what_its_client_leaves_out_of_an_answer(
    recorder: Recorder, beside: Json, headers: dict[str, str]
) -> None:
    listed: list[Json] = [{"role": "user", "content": "hi"}]
    sessions: set[str] = set()
    for number in range(3):
        exchange = await recorder.receive(sent(json.dumps({"model": "m", "messages": listed}).encode(), headers))
        said = {"role": "assistant", "content": f"Answer {number}."}
        exchange.feed(json.dumps({"choices": [{"index": 0, "message": said | beside}]}).encode())
        await exchange.finish("complete", 200)
        sessions.add(exchange.session_id)
        listed += [said, {"role": "user", "content": f"more {number}"}]

    [session_id] = sessions
    async with recorder.session(session_id) as opened:
        natives = await opened.session.messages()
    assert natives == [one | (beside if one["role"] == "assistant" else {}) for one in listed[:-1]]
    assert await kinds(recorder, session_id) == []


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


async def test_a_conversation_without_a_name_goes_on_after_an_answer_for_which_it_offered_no_tools(
    recorder: Recorder,
) -> None:
    session_id = await answered(recorder, chat("hi"), "Hello there.")
    beside = await answered(recorder, chat("hi", "Hello there.", "now answer", tools=[]), "Forty-two.")
    listed = ("hi", "Hello there.", "now answer", "Forty-two.", "and then?")
    after = await answered(recorder, chat(*listed), "Then that.")
    again = await answered(recorder, chat(*listed, "Then that.", "answer again", tools=[]), "Forty-three.")

    assert {beside, after, again} == {session_id}
    assert await messages(recorder, session_id) == [*listed, "Then that.", "answer again", "Forty-three."]
    assert await kinds(recorder, session_id) == ["SideCallRecorded"]
    assert len(await recorder.store.sessions()) == 1


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


@pytest.mark.parametrize(("ended", "status"), [("refused", 529), ("cut", 200), ("client_left", 200)])
async def test_a_first_prompt_without_a_name_that_is_sent_again_has_one_session(
    recorder: Recorder, ended: Ending, status: int
) -> None:
    request = chat("hi")
    failed = [await recorder.receive(request)]
    await failed[0].finish(ended, status)
    failed.append(await recorder.receive(request))
    await failed[1].finish(ended, status)
    assert failed[1].body == request.body
    again = await answered(recorder, request, "Hello there.")
    later = await answered(recorder, chat("hi", "Hello there.", "more"), "Yes.")

    assert {*[one.session_id for one in failed], again, later} == {again}
    assert await messages(recorder, again) == ["hi", "Hello there.", "more", "Yes."]


async def test_only_the_same_request_goes_on_in_the_session_of_one_without_an_answer(recorder: Recorder) -> None:
    refused = await recorder.receive(chat("hi"))
    await refused.finish("refused", 529)
    others = [
        await answered(recorder, request, "Hello there.")
        for request in (
            chat("hi", system="You are a pirate. Be loud."),
            chat("hi", tools=[]),
            chat("hi", namespace="other"),
            chat("hi", name="mine"),
            chat("hi there"),
        )
    ]
    running = await recorder.receive(chat("hi"))
    beside = await answered(recorder, chat("hi"), "Hello again.")
    await finish(running, chat("hi"), "Hello there.")

    assert running.session_id == refused.session_id
    assert len({refused.session_id, *others, beside}) == 7
    assert await messages(recorder, refused.session_id) == ["hi", "Hello there."]


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
    fingerprint = identity.essential_fingerprint

    def noting(wire: Wire, native: JsonMapping) -> bytes | None:
        compared.append(native["content"])
        return fingerprint(wire, native)

    monkeypatch.setattr(identity, "essential_fingerprint", noting)
    session_id = await answered(recorder, chat(*listed, "Noted.", "more"), "Yes.")

    assert set(compared) == {"Noted.", "more", "Yes."}
    assert await messages(recorder, session_id) == [*listed, "Noted.", "more", "Yes."]


@pytest.mark.parametrize("fields", [{}, {"store": True}])
async def test_a_response_that_the_provider_keeps_is_continued(recorder: Recorder, fields: Json) -> None:
    first = await answered(recorder, responses("hi", **fields), "Hello there.", 1)
    second = await answered(recorder, responses("more", previous_response_id="resp_1"), "Yes.", 2)

    assert second == first
    async with recorder.session(first) as opened:
        texts = [str(native["content"]) for native in await opened.session.messages()]
    assert [("hi" in texts[0]), "Hello there." in texts[1], "more" in texts[2], "Yes." in texts[3]] == [True] * 4


@pytest.mark.parametrize(
    ("fields", "format_name"),
    [({}, "openai-responses"), ({"store": True}, "openai-responses"), ({"store": False}, "openai-responses-stateless")],
)
async def test_a_response_that_the_provider_does_not_keep_is_recorded_as_such(
    recorder: Recorder, fields: Json, format_name: str
) -> None:
    session_id = await answered(recorder, responses("hi", **fields), "Hello there.", 1)

    async with recorder.session(session_id) as opened:
        assert opened.session.history.format == format_name


async def test_a_continuation_of_a_response_that_was_refused_and_is_sent_again_is_recorded_once(
    recorder: Recorder,
) -> None:
    session_id = await answered(recorder, responses("hi"), "Hello there.", 1)
    request = responses("more", previous_response_id="resp_1")
    for _ in range(2):
        await (await recorder.receive(request)).finish("refused", 429)
    await answered(recorder, request, "Yes.", 2)
    await answered(recorder, responses("more", previous_response_id="resp_2"), "Again.", 3)

    async with recorder.session(session_id) as opened:
        said = [entry.message.text for entry in opened.session.history.entries]
    assert said == ["hi", "Hello there.", "more", "Yes.", "more", "Again."]


async def test_a_continuation_whose_answer_was_cut_and_that_is_sent_again_is_recorded_once(recorder: Recorder) -> None:
    session_id = await answered(recorder, responses("hi"), "Hello there.", 1)
    request = responses("more", previous_response_id="resp_1")
    exchange = await recorder.receive(request)
    for name, event in [*stream_events(request.wire, ProviderReply("Well, yes and no."), 2)][:-3]:
        exchange.feed(event_bytes(name, event))
    await exchange.finish("cut", 200)
    cut = await messages(recorder, session_id)
    await answered(recorder, request, "Yes.", 3)

    said = await messages(recorder, session_id)

    assert ["Well" in str(content) for content in cut] == [False, False, False, True]
    assert ["more" in str(content) for content in said] == [False, False, True, False]
    assert "Yes." in str(said[3])


async def test_several_requests_that_continue_one_response_at_once_have_a_session_each(recorder: Recorder) -> None:
    first = await answered(recorder, responses("hi"), "Hello there.", 1)
    asked = [responses(text, previous_response_id="resp_1") for text in ("one", "two", "three")]
    exchanges = [await recorder.receive(request) for request in asked]
    await exchanges[2].finish("refused", 429)
    exchanges[2] = await recorder.receive(asked[2])
    for number, exchange in enumerate(exchanges, 2):
        await finish(exchange, asked[number - 2], f"Answer {number}.", number)
    again = [
        await answered(recorder, responses("so?", previous_response_id=f"resp_{number}"), "So.", number + 3)
        for number in (2, 3, 4)
    ]

    said = [await messages(recorder, exchange.session_id) for exchange in exchanges]

    assert again == [exchange.session_id for exchange in exchanges]
    assert (again[0], len({*again})) == (first, 3)
    for number, text in enumerate(("one", "two", "three")):
        expected = ["hi", "Hello there.", text, f"Answer {number + 2}.", "so?", "So."]
        assert [part in str(content) for part, content in zip(expected, said[number], strict=True)] == [True] * 6
    assert {session.id for session in await recorder.store.sessions(limit=9)} == {*again}


async def test_a_session_with_a_name_continues_the_response_that_its_request_names(recorder: Recorder) -> None:
    for number, text in enumerate(("hi", "more", "again"), 1):
        kept = {"previous_response_id": f"resp_{number - 1}"} if number > 1 else {}
        request = replace(responses(text, **kept), session_in_path="s")
        assert await answered(recorder, request, f"Answer {number}.", number) == "s"
    order = replace(responses("Sum up.", previous_response_id="resp_3"), session_in_path="s")
    await answered(recorder, replace(order, headers={"x-interaction-type": "conversation-compaction"}), "Summed up.", 4)

    said = await messages(recorder, "s")

    expected = ["hi", "Answer 1.", "more", "Answer 2.", "again", "Answer 3."]
    assert [text in str(content) for text, content in zip(expected, said, strict=True)] == [True] * 6
    assert await kinds(recorder, "s") == ["SideCallRecorded"]


async def test_a_response_that_continues_an_earlier_one_takes_its_place(recorder: Recorder) -> None:
    session_id = await answered(recorder, responses("hi"), "Hello there.", 1)
    await answered(recorder, responses("more", previous_response_id="resp_1"), "Yes.", 2)
    await answered(recorder, responses("less", previous_response_id="resp_1"), "No.", 3)
    await answered(recorder, responses("so?", previous_response_id="resp_3"), "So.", 4)

    said = await messages(recorder, session_id)

    expected = ["hi", "Hello there.", "less", "No.", "so?", "So."]
    assert [text in str(content) for text, content in zip(expected, said, strict=True)] == [True] * 6


async def answer_items(recorder: Recorder, request: ClientRequest, items: list[Json], number: int) -> None:
    """Record a request with an answer that has these items."""
    exchange = await recorder.receive(request)
    answer = {"id": f"resp_{number}", "object": "response", "status": "completed", "output": items}
    exchange.feed(json.dumps(answer).encode())
    await exchange.finish("complete", 200)


def thought(name: str) -> Json:
    return {"type": "reasoning", "id": f"rs_{name}", "summary": [], "encrypted_content": f"sealed-{name}"}


def spoken(name: str) -> Json:
    content = [{"type": "output_text", "text": f"Answer {name}.", "annotations": []}]
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": content}


async def test_an_answer_that_is_asked_for_again_is_taken_back_with_its_reasoning(recorder: Recorder) -> None:
    prompt: Json = {"role": "user", "content": "hi"}
    for number, name in enumerate(("one", "two"), 1):
        request = replace(responses([prompt], store=False), headers={"thread-id": "s"})
        await answer_items(recorder, request, [thought(name), spoken(name)], number)

    async with recorder.session("s") as opened:
        assert await opened.session.messages() == [prompt, thought("two"), spoken("two")]


@pytest.mark.parametrize(
    "added",
    [
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "compaction_trigger"},
    ],
    ids=lambda added: added["type"],
)
async def test_an_item_without_a_role_that_a_client_adds_to_the_first_answer_continues_its_conversation(
    recorder: Recorder, added: Json
) -> None:
    prompt: Json = {"role": "user", "content": "hi"}
    asked: Json = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "x", "arguments": "{}"}

    await answer_items(recorder, responses([prompt], store=False), [asked], 1)
    await answer_items(recorder, responses([prompt, asked, added], store=False), [spoken("two")], 2)

    [session] = await recorder.store.sessions(limit=9)
    async with recorder.session(session.id) as opened:
        assert await opened.session.messages() == [prompt, asked, added, spoken("two")]


@pytest.mark.parametrize("budget", [None, 2_000])
async def test_reasoning_of_an_answer_that_the_log_does_not_have_is_recorded_and_sent_with_its_call(
    store: MemoryStore, budget: int | None
) -> None:
    recorder = Recorder(store, budget=budget)
    prompt: Json = {"role": "user", "content": "hi " * 3_000}
    call: Json = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}"}
    result: Json = {"type": "function_call_output", "call_id": "c1", "output": "A text."}
    last: Json = {"role": "user", "content": "go on"}
    listed = [prompt, spoken("one"), last]
    named = {"thread-id": "s"}
    await (await recorder.receive(replace(responses(listed, store=False), headers=named))).finish("refused", 529)
    listed += [thought("two"), call, result]
    exchange = await recorder.receive(replace(responses(listed, store=False), headers=named))

    async with recorder.session(exchange.session_id) as opened:
        entries = opened.session.history.entries
        assert [entry.message.native for entry in entries] == listed
    assert json.loads(exchange.body)["input"][-4:] == listed[-4:]
    assert exchange.headers.get("x-holdfast-compacted") == (None if budget is None else "1")
    await exchange.finish("refused", 529)
    await recorder.close()


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


async def test_what_sub_agents_say_is_no_part_of_the_clients_request_and_within_recall(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    child = replace(chat("look around", system="You explore."), headers={"x-session-id": "s", "x-agent-id": "a1"})
    await answered(recorder, child, "Roses. " * 1_000)
    later = chat("hi", "Hello there.", "go on", name="s")
    exchange = await recorder.receive(later)

    async with recorder.session("s") as opened:
        found = str(await opened.session.recall("roses"))
    assert exchange.body == later.body
    assert int(exchange.headers["x-holdfast-tokens"]) < 100
    assert "Roses." in found
    await exchange.finish("cut", 200)


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


async def test_gateways_that_take_turns_compare_only_what_the_others_have_added(
    recorder: Recorder, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, said, compared = Recorder(store), ["hi"], list[JsonMapping]()
    plain = identity.essential_fingerprint

    def noted(wire: Wire, native: JsonMapping) -> bytes | None:
        compared.append(native)
        return plain(wire, native)

    for turn in range(6):
        if turn == 4:
            monkeypatch.setattr(identity, "essential_fingerprint", noted)
        await answered(other if turn % 2 else recorder, chat(*said, name="s"), f"Answer {turn}.")
        said += [f"Answer {turn}.", f"prompt {turn}"]
    await other.close()

    assert await messages(recorder, "s") == said[:-1]
    assert await kinds(recorder, "s") == []
    # In each turn: what the other has recorded, what is new in the list, and the answer.
    assert [native["content"] for native in compared] == [
        *("prompt 2", "Answer 3.", "Answer 2.", "prompt 2", "Answer 3.", "prompt 3", "Answer 4."),
        *("prompt 3", "Answer 4.", "Answer 3.", "prompt 3", "Answer 4.", "prompt 4", "Answer 5."),
    ]


async def test_a_session_that_was_just_opened_is_not_read_again_for_what_others_may_have_written() -> None:
    class Reads(MemoryStore):
        count = 0

        async def read(self, *args: Any, **options: Any) -> list[StoredRecord]:
            self.count += 1
            return await super().read(*args, **options)

    store = Reads()
    recorder, other = Recorder(store), Recorder(store)
    recorder.sessions.has_other_writers = True
    counts: list[int] = []
    for gateway, texts in (
        (other, ("hi",)),
        (recorder, ("hi", "Yes.", "more")),
        (recorder, ("hi", "Yes.", "more", "Yes.", "and now?")),
    ):
        before = store.count
        await answered(gateway, chat(*texts, name="a"), "Yes.")
        counts.append(store.count - before)

    assert counts == [1, 1, 1]
    await recorder.close()
    await other.close()


class Rounds(MemoryStore):
    """Answers what is asked at the same time together, as a server far away does."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[list[str]] = []
        """What each round asked for."""
        self._asked: list[tuple[str, asyncio.Event]] = []

    async def _answer(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        asked, self._asked = self._asked, []
        self.rounds.append(sorted(name for name, _ in asked))
        for _, answered in asked:
            answered.set()

    async def _ask(self, name: str) -> None:
        answered = asyncio.Event()
        self._asked.append((name, answered))
        if len(self._asked) == 1:
            self._answering = asyncio.create_task(self._answer())
        await answered.wait()

    async def append(self, *args: Any, **options: Any) -> int:
        await self._ask("append")
        return await super().append(*args, **options)

    async def read(self, *args: Any, **options: Any) -> list[StoredRecord]:
        await self._ask("read")
        return await super().read(*args, **options)

    async def read_from_snapshot(self, session: str, *, limit: int | None = None) -> Any:
        await self._ask("read_from_snapshot")
        snapshot = await self.get_snapshot(session)
        start = snapshot.length if snapshot else 0
        return snapshot, await super().read(session, start=start, limit=limit)

    async def get_value(self, key: str) -> Any:
        await self._ask(key.partition(":")[0])
        return await super().get_value(key)


async def test_a_session_of_another_gateway_is_opened_in_one_round_before_its_prompt_is_stored() -> None:
    store = Rounds()
    recorder, other = Recorder(store), Recorder(store)
    await answered(other, chat("hi", name="a"), "Yes.")
    await other.close()
    store.rounds.clear()

    exchange = await recorder.receive(chat("hi", "Yes.", "more", name="a"))

    assert store.rounds == [
        ["calibration", "client", "governing", "limit", "read_from_snapshot", "retention"],
        ["append"],
    ]
    await finish(exchange, chat("hi", "Yes.", "more", name="a"), "Good.")
    assert await messages(recorder, "a") == ["hi", "Yes.", "more", "Good."]
    await recorder.close()


@pytest.mark.parametrize("model", ["gpt-5", "gemini-3-pro"])
async def test_each_message_is_counted_with_the_vocabulary_of_its_model_alone(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    counted: list[tuple[str, str]] = []

    def count(self: VocabularyCounter, text: str) -> int:
        if "lighthouse" in text:
            counted.append((self.name, text))
        return VocabularyCounter._count(self, text)

    monkeypatch.setattr(VocabularyCounter, "count", count)
    request = chat("The lighthouse.", name="s", model=model)
    if model.startswith("gemini"):
        body = {"contents": [{"role": "user", "parts": [{"text": "The lighthouse."}]}]}
        path = f"/v1beta/models/{model}:generateContent"
        raw = json.dumps(body).encode()
        request = ClientRequest("gemini", path, None, {"x-session-id": "s"}, raw, "", "gemini")

    exchange = await recorder.receive(request)

    assert counted == [(counter_for(model).name, "The lighthouse.")]
    await exchange.finish("refused", 500)
    client = await recorder.store.get_value(session_value_key("s", "client"))
    assert client is not None
    assert client["model"] == model


@pytest.mark.parametrize("changes", ["a rewind", "a secret is taken out"])
async def test_a_gateway_reads_the_list_again_whose_beginning_another_one_has_changed(
    recorder: Recorder, store: MemoryStore, changes: str
) -> None:
    other = Recorder(store)
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    await answered(other, chat("hi", "Hello there.", "key=abcdefgh12", name="s"), "No.")
    await answered(recorder, chat("hi", "Hello there.", "key=abcdefgh12", "No.", "more", name="s"), "Yes.")
    said = ["hi", "Hello there.", "key=abcdefgh12", "No.", "more", "Yes."]
    if changes == "a rewind":
        await answered(other, chat("hi", "Hello there.", "again", name="s"), "Well.")
        said = ["hi", "Hello there.", "again", "Well."]
    else:
        await scrub(store, "s", "abcdefgh12", time_ms=1)
        said[2] = f"key={TOMBSTONE}"

    await answered(recorder, chat(*said, "so", name="s"), "End.")

    assert await messages(recorder, "s") == [*said, "so", "End."]
    assert await kinds(recorder, "s") == ["Rewound" if changes == "a rewind" else "SessionScrubbed"]
    await other.close()


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


async def read_the_messages(recorder: Recorder) -> None:
    async with recorder.session("s") as opened:
        await opened.session.messages()


async def recall_a_message(recorder: Recorder) -> None:
    async with recorder.session("s") as opened:
        await opened.session.recall("hi")


@pytest.mark.parametrize("learns", [read_the_messages, recall_a_message])
async def test_what_a_gateway_has_read_of_another_ones_turn_is_not_recorded_again(
    recorder: Recorder, store: MemoryStore, learns: Callable[[Recorder], Awaitable[None]]
) -> None:
    other = Recorder(store)
    await answered(recorder, chat("hi", name="s"), "Hello.", 1)
    await answered(other, chat("hi", "Hello.", "more", name="s"), "Yes.", 2)
    await learns(recorder)
    await answered(recorder, chat("hi", "Hello.", "more", "Yes.", "less", name="s"), "No.", 3)

    assert await messages(other, "s") == ["hi", "Hello.", "more", "Yes.", "less", "No."]
    await other.close()


@pytest.mark.parametrize("kind", ["agent", "auxiliary"])
async def test_a_turn_of_another_gateway_is_recorded_once_although_a_call_ends_here_after_it(
    recorder: Recorder, store: MemoryStore, kind: str
) -> None:
    other, late = Recorder(store), chat("hi", "Hello.", "more", name="s")
    await answered(recorder, chat("hi", name="s"), "Hello.", 1)
    exchange = await recorder.receive(replace(late, headers={**late.headers, "x-interaction-type": kind}))
    await answered(other, late, "Yes.", 2)
    if kind == "auxiliary":
        await finish(exchange, late, "A title")
    else:
        await exchange.finish("client_left", 200)
    await answered(recorder, chat("hi", "Hello.", "more", "Yes.", "less", name="s"), "No.", 3)

    assert await messages(other, "s") == ["hi", "Hello.", "more", "Yes.", "less", "No."]
    await other.close()


async def test_what_a_gateway_reads_of_another_ones_turn_while_it_compares_a_list_is_not_recorded_again(
    recorder: Recorder, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, take_forms = Recorder(store), recorder._take_client_forms
    await answered(recorder, chat("hi", name="s"), "Hello.", 1)
    await recorder.receive(chat("hi", "Hello.", "more", name="s"))
    await answered(other, chat("hi", "Hello.", "more", name="s"), "Yes.", 2)
    seen: list[object] = []

    async def reading(opened: Any, *args: Any) -> Any:
        seen.append(await opened.session.refresh())
        return await take_forms(opened, *args)

    monkeypatch.setattr(recorder, "_take_client_forms", reading)
    await answered(recorder, chat("hi", "Hello.", "more", "Yes.", "less", name="s"), "No.", 3)

    assert (seen[0] != 0, seen[1:]) == (True, [0])
    assert await messages(other, "s") == ["hi", "Hello.", "more", "Yes.", "less", "No."]
    await other.close()


async def test_the_answer_of_a_sub_agent_is_recorded_while_another_gateway_was_faster_with_the_main_agent(
    recorder: Recorder, store: MemoryStore
) -> None:
    def request(*listed: Json, **headers: str) -> ClientRequest:
        named = {"thread-id": "s", **{name.replace("_", "-"): value for name, value in headers.items()}}
        return replace(responses([*listed], store=False), headers=named)

    other, prompt, second = Recorder(store), {"role": "user", "content": "hi"}, {"role": "user", "content": "more"}
    await answer_items(recorder, request(prompt), [spoken("one")], 1)
    task = await recorder.receive(request({"role": "user", "content": "Count."}, x_agent_id="counter"))
    await answer_items(other, request(prompt, spoken("one"), second), [spoken("two")], 2)
    task.feed(json.dumps({"id": "resp_3", "status": "completed", "output": [spoken("three")]}).encode())
    listed = [prompt, spoken("one"), second, spoken("two"), {"role": "user", "content": "so?"}]
    exchange, _ = await asyncio.gather(recorder.receive(request(*listed)), task.finish("complete", 200))
    await exchange.finish("refused", 429)

    async with recorder.session("s") as opened:
        said = [entry.message.text for entry in opened.session.history.entries]
    assert sorted(said) == ["Answer one.", "Answer three.", "Answer two.", "Count.", "hi", "more", "so?"]
    await other.close()


async def said_by_scope(recorder: Recorder, session_id: str) -> list[tuple[str, str]]:
    """Return who said what in a session, without system messages; agents are named without their number."""
    async with recorder.session(session_id) as opened:
        await opened.session.refresh()
        history = opened.session.history
        pairs = zip(history.message_scopes, history.entries, strict=True)
        return [(scope.split(":")[0], one.message.text) for scope, one in pairs if one.message.role != "system"]


async def delegations(recorder: Recorder, session_id: str) -> list[tuple[str, str]]:
    async with recorder.session(session_id) as opened:
        return [(one.state, one.answer) for one in await opened.session.delegations()]


@pytest.mark.parametrize("headers", [{"x-session-id": "s", "x-agent-id": "a1"}, {"x-session-id": "s"}, {}])
async def test_a_sub_agent_goes_on_in_its_scope_at_another_gateway_and_after_a_restart(
    store: MemoryStore, headers: dict[str, str]
) -> None:
    one, other, task = Recorder(store), Recorder(store), "look around the garden"
    said: list[str] = [task]
    exchange = await one.receive(chat("have a look", name=headers.get("x-session-id", "")))
    for event in stream_events("openai-chat", ProviderReply(tool="agent", arguments={"prompt": task})):
        exchange.feed(event_bytes(*event))
    await exchange.finish("complete", 200)
    for number, gateway in enumerate([one, other, one, other], 1):
        found = replace(chat(*said, system="You explore."), headers=headers)
        assert await answered(gateway, found, f"Answer {number}.", number) == exchange.session_id
        said += [f"Answer {number}.", f"prompt {number}"]
    await one.close()
    await other.close()
    again = Recorder(store)
    await answered(again, replace(chat(*said, system="You explore."), headers=headers), "The end.", 5)

    expected = [("main", "have a look"), ("main", ""), *(("agent", text) for text in [*said, "The end."])]
    assert await said_by_scope(again, exchange.session_id) == expected
    assert await delegations(again, exchange.session_id) == [("running", "")]
    await again.close()
    assert await delegations(again, exchange.session_id) == [("silent", "")]


async def test_a_sub_agent_ends_with_its_answer_at_whatever_gateway_the_main_agent_hears_it(
    recorder: Recorder, store: MemoryStore
) -> None:
    child, other = {"x-session-id": "s", "x-agent-id": "a1"}, Recorder(store)
    await answered(recorder, chat("hi", name="s"), "Hello.", 1)
    await answered(recorder, replace(chat("look", system="You explore."), headers=child), "Roses.", 2)
    await answered(other, chat("hi", "Hello.", "it said: Roses.", name="s"), "Fine.", 3)
    ended = await delegations(other, "s")
    goes_on = replace(chat("look", "Roses.", "more", system="You explore."), headers=child)
    await answered(recorder, goes_on, "Weeds.", 4)

    assert ended == [("answered", "Roses.")]
    assert await delegations(other, "s") == [("running", "")]
    assert await said_by_scope(other, "s") == [
        *(("main", "hi"), ("main", "Hello."), ("agent", "look"), ("agent", "Roses.")),
        *(("main", "it said: Roses."), ("main", "Fine."), ("agent", "more"), ("agent", "Weeds.")),
    ]
    await other.close()


_OUTPUT = {"type": "function_call_output", "call_id": "call_0001", "output": "It said: Roses."}
_CALL = {"type": "function_call", "call_id": "call_0001", "name": "agent", "arguments": '{"prompt": "look"}'}
_TEXTS = [{"type": "input_text", "text": "Roses."}]
_PART = {"functionCall": {"name": "agent", "args": {"prompt": "look"}}}
_RESULT = {"functionResponse": {"name": "agent", "response": {"result": {"said": "Roses."}}}}


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        ("openai-responses", {"input": [{"role": "user", "content": "hi"}, _CALL, _OUTPUT]}),
        ("openai-responses", {"input": [{"role": "user", "content": "hi"}, _CALL, _OUTPUT | {"output": _TEXTS}]}),
        ("openai-responses", {"input": [_OUTPUT], "previous_response_id": "resp_1"}),
        ("gemini", {"contents": [*({"role": role, "parts": [part]} for role, part in (
            ("user", {"text": "hi"}), ("model", _PART), ("user", _RESULT),
        ))]}),
    ],
)  # fmt: skip
async def test_a_sub_agent_ends_when_the_result_of_a_call_has_its_answer(
    recorder: Recorder, wire: Wire, body: Json
) -> None:
    def request(body: Json, **headers: str) -> ClientRequest:
        path = {"gemini": "/v1beta/models/m:streamGenerateContent"}.get(wire, "/v1/responses")
        named = {"x-session-id": "s"} | {name.replace("_", "-"): value for name, value in headers.items()}
        return ClientRequest(wire, path, None, named, json.dumps({"model": "m"} | body).encode(), "", wire)

    def prompt(text: str) -> Json:
        gemini = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
        return gemini if wire == "gemini" else {"input": [{"role": "user", "content": text}]}

    exchange = await recorder.receive(request(prompt("hi")))
    for event in stream_events(wire, ProviderReply(tool="agent", arguments={"prompt": "look"}), 1):
        exchange.feed(event_bytes(*event))
    await exchange.finish("complete", 200)
    await answered(recorder, request(prompt("look"), x_agent_id="a1"), "Roses.", 2)
    await answered(recorder, request(body), "Fine.", 3)

    assert await delegations(recorder, "s") == [("answered", "Roses.")]


async def test_a_late_answer_of_a_sub_agent_that_goes_on_at_another_gateway_stays_beside_it(
    recorder: Recorder, store: MemoryStore
) -> None:
    child, other = {"x-session-id": "s", "x-agent-id": "a1"}, Recorder(store)
    request = replace(chat("look", system="You explore."), headers=child)
    await answered(recorder, chat("hi", name="s"), "Hello.", 1)
    late = await recorder.receive(request)
    await answered(other, request, "Roses.", 2)
    await finish(late, request, "Weeds.", 3)
    await answered(other, replace(chat("look", "Roses.", "more", system="You explore."), headers=child), "Trees.", 4)

    said = [("agent", text) for text in ("look", "Roses.", "more", "Trees.")]
    assert await said_by_scope(recorder, "s") == [("main", "hi"), ("main", "Hello."), *said]
    async with recorder.session("s") as opened:
        events = await opened.session.events()
    assert [one.answer for one in events if isinstance(one, log.SideCallRecorded)] == ["Weeds."]
    await other.close()


async def test_a_new_sub_agent_with_the_id_of_an_ended_one_has_a_scope_of_its_own(
    recorder: Recorder, store: MemoryStore
) -> None:
    child = {"x-session-id": "s", "x-agent-id": "explorer"}
    await answered(recorder, chat("hi", name="s"), "Hello.", 1)
    await answered(recorder, replace(chat("look", system="You explore."), headers=child), "Roses.", 2)
    await answered(recorder, chat("hi", "Hello.", "it said: Roses.", name="s"), "Fine.", 3)
    other = Recorder(store)
    await answered(other, replace(chat("count", system="You explore."), headers=child), "Seven.", 4)

    assert await delegations(other, "s") == [("answered", "Roses."), ("running", "")]
    async with other.session("s") as opened:
        assert len(set(opened.session.history.message_scopes)) == 3
    await other.close()


async def test_a_session_that_is_read_again_is_not_closed_to_make_room_for_another() -> None:
    store = WaitingStore()
    recorder, other = Recorder(store, max_open_sessions=1), Recorder(store)
    await answered(recorder, chat("hi", name="s"), "Hello.", 1)
    await answered(other, chat("hi", "Hello.", "more", name="s"), "Fine.", 2)
    await answered(recorder, chat("hi", "Hello.", "more", "Fine.", "and", name="s"), "Yes.", 3)
    store.waits = True
    again = asyncio.ensure_future(answered(recorder, chat("hi", "Hello.", "again", name="s"), "Well.", 4))
    await store.reached.wait()
    await answered(recorder, chat("hi", name="another"), "Hey.", 1)
    store.opened.set()

    assert await again == "s"
    assert await messages(recorder, "s") == ["hi", "Hello.", "again", "Well."]
    for one in (recorder, other):
        await one.close()


@pytest.mark.parametrize("is_whole", [True, False], ids=["edited", "cut"])
async def test_a_sub_agent_that_begins_anew_is_the_only_one_that_runs(recorder: Recorder, *, is_whole: bool) -> None:
    child = {"x-session-id": "s", "x-agent-id": "a1"}
    request = replace(chat("look", system="You explore.", stream=True), headers=child)
    await answered(recorder, chat("hi", name="s"), "Hello.", 1)
    if is_whole:
        await answered(recorder, request, "Nothing.", 2)
    else:
        await cut(await recorder.receive(request))
    await answered(recorder, request, "Roses.", 3)
    running = await delegations(recorder, "s")
    await answered(recorder, chat("hi", "Hello.", "it said: Roses.", name="s"), "Fine.", 4)

    assert running == [("cancelled", ""), ("running", "")]
    assert await delegations(recorder, "s") == [("cancelled", ""), ("answered", "Roses.")]


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
    store.append = fail
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


async def test_sessions_with_large_requests_are_closed_before_many_small_ones(store: MemoryStore) -> None:
    recorder = Recorder(store, max_open_bytes=20_000)

    def open_ones() -> list[str]:
        return [name for name in ("a", "b", "c", "d", "e") if recorder.sessions.get(name) is not None]

    await answered(recorder, chat("x" * 9_000, name="a"), "Yes.")
    await answered(recorder, chat("x" * 9_000, name="b"), "Yes.")
    for name in ("c", "d"):
        await answered(recorder, chat("hi", name=name), "Yes.")
    first = open_ones()
    await answered(recorder, chat("x" * 9_000, name="e"), "Yes.")
    second = open_ones()
    await recorder.sessions.delete("b")
    await answered(recorder, chat("x" * 9_000, "Yes.", "more", name="a"), "No.")
    third = open_ones()
    await answered(recorder, chat("x" * 50_000, name="d"), "Yes.")

    assert first == ["a", "b", "c", "d"]
    assert second == ["b", "c", "d", "e"]
    assert third == ["a", "c", "d", "e"]
    assert open_ones() == ["d"]
    assert await messages(recorder, "a") == ["x" * 9_000, "Yes.", "more", "No."]
    await recorder.close()


async def test_a_session_that_is_closed_for_others_does_not_wait_for_the_garbage_collector(store: MemoryStore) -> None:
    def histories() -> list[History]:
        return [one for one in gc.get_objects() if isinstance(one, History)]

    recorder = Recorder(store, max_open_sessions=1)
    gc.disable()
    try:
        before = histories()  # those of other tests may go meanwhile
        for name in ("a", "b", "c"):
            await answered(recorder, chat("hi", name=name), "Yes.")

        assert len([one for one in histories() if all(one is not other for other in before)]) == 1
    finally:
        gc.enable()
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


async def test_a_gateway_loads_what_counts_for_the_models_of_the_last_conversations_or_for_most_models(
    recorder: Recorder, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await answered(recorder, chat("hello", name="one", model="gpt-5"), "hi")
    await answered(recorder, chat("hello", name="two", model="claude-sonnet-4-5"), "hi")
    await answered(recorder, chat("hello", name="three", model="gpt-5"), "hi")
    loaded = list[str | None]()
    monkeypatch.setattr(recording, "load_vocabulary", loaded.append)
    started, first = Recorder(store), Recorder(MemoryStore())

    await started.warm_up()
    again = sorted(map(str, loaded))
    loaded.clear()
    await first.warm_up()

    assert (again, loaded) == (["claude-sonnet-4-5", "gpt-5"], [None])
    await started.close()
    await first.close()


async def test_a_gateway_starts_although_its_store_cannot_be_read_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Away(MemoryStore):
        async def sessions(self, **_: object) -> list[SessionInfo]:
            raise StoreUnavailableError("postgresql", "the server cannot be reached")

    recorder = Recorder(Away())

    await recorder.warm_up()

    assert caplog.messages == ["nothing can be recorded yet: postgresql: the server cannot be reached"]
    assert (await recorder.receive(chat("hello", name="one"))).session_id == "one"
    await recorder.close()


def search(request: ClientRequest, query: str, *later: str) -> tuple[list[bytes], ClientRequest]:
    """Return the answer to a request that searches for some words, and the request that has what was found."""
    reply = ProviderReply(tool="search", arguments={"query": query})
    body = json.loads(request.body)
    [choice] = whole_answer("openai-chat", reply)["choices"]
    body["messages"] += [choice["message"], {"role": "tool", "tool_call_id": "call_0001", "content": "10 results"}]
    body["messages"] += [{"role": "user", "content": text} for text in later]
    events = [event_bytes(*event) for event in stream_events("openai-chat", reply)]
    return events, replace(request, body=json.dumps(body).encode())


@pytest.mark.parametrize("name", ["", "s"])
async def test_a_search_with_the_words_of_the_prompt_makes_no_sub_agent_of_the_conversation(
    recorder: Recorder, name: str
) -> None:
    request = chat("tutorials for children", name=name)
    exchange = await recorder.receive(request)
    events, with_results = search(request, "tutorials for children")
    for event in events:
        exchange.feed(event)
    await exchange.finish("complete", 200)

    again = await answered(recorder, with_results, "Here are ten.")

    assert again == exchange.session_id
    assert await messages(recorder, again) == ["tutorials for children", "", "10 results", "Here are ten."]
    async with recorder.session(again) as opened:
        assert await opened.session.delegations() == []


@pytest.mark.parametrize("name", ["", "other"])
async def test_a_conversation_goes_on_although_another_one_searched_for_its_first_words(
    recorder: Recorder, name: str
) -> None:
    other = await answered(recorder, chat("tutorials for children", name=name), "For which age?")
    exchange = await recorder.receive(chat("find me something", name="s"))
    for event in search(chat("find me something"), "tutorials for children")[0]:
        exchange.feed(event)
    await exchange.finish("complete", 200)

    again = await answered(recorder, chat("tutorials for children", "For which age?", "Ten.", name=name), "Here.")
    unrelated = await answered(recorder, chat("something else altogether"), "Well.")

    assert again == other
    assert await messages(recorder, other) == ["tutorials for children", "For which age?", "Ten.", "Here."]
    assert unrelated not in {other, "s"}
    async with recorder.session("s") as opened:
        assert await opened.session.delegations() == []


def anthropic(*natives: Json, path: str = "/v1/messages", **headers: str) -> ClientRequest:
    body = json.dumps({"model": "claude-opus-5-5", "max_tokens": 9, "messages": natives}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ClientRequest("anthropic", path, None, named, body, "", "anthropic")


HELLO: Json = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize("headers", [{}, {"x_session_id": "s"}], ids=["unnamed", "named"])
async def test_a_sub_agent_of_another_provider_has_a_session_there(recorder: Recorder, headers: dict[str, str]) -> None:
    exchange = await recorder.receive(chat("have a look", name="s"))
    reply = ProviderReply(tool="agent", arguments={"prompt": "look around the garden"})
    for event in stream_events("openai-chat", reply):
        exchange.feed(event_bytes(*event))
    await exchange.finish("complete", 200)
    task: Json = {"role": "user", "content": [{"type": "text", "text": "look around the garden"}]}
    called: Json = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}]}
    result: Json = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Roses."}]}

    child = await answered(recorder, anthropic(task, called, result, **headers), "There are roses.")

    assert child == "s.anthropic" if headers else child.startswith("conversation-")
    async with recorder.session(child) as opened:
        assert (await opened.session.messages())[:3] == [task, called, result]
    async with recorder.session("s") as opened:
        assert await opened.session.delegations() == []


async def test_a_token_count_in_a_conversation_changes_nothing_in_it(recorder: Recorder) -> None:
    await answered(recorder, anthropic(HELLO, x_session_id="s"), "Hi.")
    counting = await recorder.receive(anthropic(HELLO, path="/v1/messages/count_tokens?beta=true", x_session_id="s"))
    counting.feed(b'{"input_tokens": 3}')
    await counting.finish("complete", 200)

    assert (counting.session_id, counting.headers["x-holdfast-session"]) == ("s", "s")
    assert await messages(recorder, "s") == ["Hello", [{"type": "text", "text": "Hi."}]]
    assert await kinds(recorder, "s") == []


async def test_a_conversation_that_goes_on_with_another_provider_has_a_session_there(recorder: Recorder) -> None:
    first = await answered(recorder, chat("hi", name="s"), "Hello there.")
    second = await answered(recorder, anthropic(HELLO, x_session_id="s"), "Hi.")
    third = await answered(recorder, chat("hi", "Hello there.", "more", name="s"), "Yes.")

    assert (first, second, third) == ("s", "s.anthropic", "s")
    assert await messages(recorder, "s") == ["hi", "Hello there.", "more", "Yes."]
    assert await messages(recorder, "s.anthropic") == ["Hello", [{"type": "text", "text": "Hi."}]]


@pytest.mark.parametrize("second", ["conv_1", {"id": "conv_1"}])
async def test_a_conversation_that_the_provider_keeps_gets_what_each_list_adds(
    recorder: Recorder, second: str | Json
) -> None:
    first = await answered(recorder, responses("hi", conversation="conv_1"), "Hello there.", 1)
    await answered(recorder, responses("more", conversation=second), "Yes.", 2)

    async with recorder.session("conv_1") as opened:
        said = [texts_of(native) for native in await opened.session.messages()]
    assert (first, said) == ("conv_1", [["hi"], ["Hello there."], ["more"], ["Yes."]])
    assert await kinds(recorder, "conv_1") == []


@pytest.mark.parametrize(
    "metadata", [{"session_id": "m1"}, {"user_id": '{"device": "d", "session_id": "m1"}'}], ids=["own", "user"]
)
async def test_metadata_in_the_body_may_name_the_conversation(recorder: Recorder, metadata: Json) -> None:
    assert await answered(recorder, chat("hi", metadata=metadata), "Hello there.") == "m1"


@pytest.mark.parametrize("user", ["{odd", "[]", "somebody", '{"device": "d"}', '{"session_id": 7}'])
async def test_a_user_in_the_metadata_names_no_conversation(recorder: Recorder, user: str) -> None:
    session_id = await answered(recorder, chat("hi", metadata={"user_id": user}), "Hello there.")

    assert session_id.startswith("conversation-")


async def test_very_long_names_are_shortened_and_stay_apart(recorder: Recorder) -> None:
    names = ["n" * 300 + end for end in ("1", "2")]
    first, second = [await answered(recorder, chat("hi", name=name), "Hello there.") for name in names]
    again = await answered(recorder, chat("hi", "Hello there.", "more", name=names[0]), "Yes.")

    assert (first == again, first == second) == (True, False)
    assert [(one[:101], len(one)) for one in (first, second)] == [("n" * 100 + "~", 133)] * 2


async def test_a_new_name_with_a_list_that_its_conversation_no_longer_has_begins_anew(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    await answered(recorder, chat("good day", name="s"), "Good day to you.")
    await answered(recorder, chat("hi", "Hello there.", "two", name="f"), "Second.")

    assert await messages(recorder, "f") == ["hi", "Hello there.", "two", "Second."]
    assert (await kinds(recorder, "f"), await messages(recorder, "s")) == ([], ["good day", "Good day to you."])


async def test_a_list_whose_session_was_deleted_begins_a_new_one(recorder: Recorder) -> None:
    first = await answered(recorder, chat("hi"), "Hello there.")
    await recorder.sessions.delete(first)
    second = await answered(recorder, chat("hi", "Hello there.", "more"), "Yes.")

    assert first != second
    assert await messages(recorder, second) == ["hi", "Hello there.", "more", "Yes."]
    assert await kinds(recorder, second) == []


@pytest.mark.parametrize("kind", ["the agent", "a side call"])
async def test_the_answer_of_a_session_that_was_deleted_meanwhile_ends_without_a_failure_and_leaves_nothing(
    recorder: Recorder, store: MemoryStore, kind: str
) -> None:
    request = chat("hi", name="s")
    exchange = await recorder.receive(request)
    if kind == "a side call":
        await finish(exchange, request, "Hello there.")
        request = chat("hi", "Hello there.", "Write a title for this conversation.", name="s", max_tokens=10)
        exchange = await recorder.receive(request)
    await recorder.sessions.delete("s")
    await finish(exchange, request, "Late.")

    assert (exchange.tokens > 0, await store.length("s"), recorder.sessions.get("s")) == (True, 0, None)
    await answered(recorder, chat("hi", "Late.", "more", name="s"), "Yes.")
    assert await messages(recorder, "s") == ["hi", "Late.", "more", "Yes."]


async def test_two_deletes_and_a_request_that_wait_for_one_session_all_succeed(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    async with recorder.session("s") as opened:
        await opened.lock.acquire()
        deletes = [recorder.sessions.delete("s") for _ in range(2)]
        turn = answered(recorder, chat("hi", "Hello there.", "b", name="s"), "Yes.")
        waiting = asyncio.gather(*deletes, turn)
        while opened.users < 4:  # noqa: ASYNC110 - a number of ours has no event
            await asyncio.sleep(0)
        opened.lock.release()
        results = await waiting

    assert results == [True, False, "s"]
    assert await messages(recorder, "s") == ["hi", "Hello there.", "b", "Yes."]


async def test_a_conversation_without_a_name_is_found_again_by_the_summary_that_its_client_made(
    recorder: Recorder,
) -> None:
    listed = ("the code word is marzipan", "Noted.")
    first = await answered(recorder, chat(listed[0]), listed[1])
    summary = "<summary>The user told a code word, and the model noted it.</summary>"
    ordered = await answered(recorder, chat(*listed, SUMMARY_ORDER), summary)
    new = "Continued from before. Summary: The user told a code word, and the model noted it.\n\nGo on."
    again = await answered(recorder, chat(new), "On it.")

    assert (ordered, again) == (first, first)
    assert await messages(recorder, first) == [new, "On it."]
    assert await kinds(recorder, first) == ["SideCallRecorded", "CompactionCompleted"]


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"x-claude-code-context-compacted": "true"}), ({"x-codex-window-id": "w1"}, {"x-codex-window-id": "w2"})],
    ids=["told", "window"],
)
async def test_a_client_may_say_that_it_has_compacted(
    recorder: Recorder, before: dict[str, str], after: dict[str, str]
) -> None:
    request = chat("the code word is marzipan", name="s")
    await answered(recorder, replace(request, headers={**request.headers, **before}), "Noted.")
    request = chat("There was a code word. Go on.", name="s")
    await answered(recorder, replace(request, headers={**request.headers, **after}), "On it.")

    assert await messages(recorder, "s") == ["There was a code word. Go on.", "On it."]
    assert await kinds(recorder, "s") == ["CompactionCompleted"]


@pytest.mark.parametrize(
    ("recorded", "listed", "happened"),
    [
        (["two"], ["two", "Write it all down."], "SideCallRecorded"),
        (["two"], ["2", "Write it all down."], "Rewound"),
        (["two", "too"], ["two"], "Rewound"),
        ("two", ["two", "Write it all down."], "SideCallRecorded"),
    ],
    ids=["added", "changed", "shorter", "added to a text"],
)
async def test_an_order_that_is_added_to_an_earlier_message_is_for_a_summary_of_a_part(
    recorder: Recorder, recorded: str | list[str], listed: list[str], happened: str
) -> None:
    def said(texts: str | list[str]) -> Json:
        blocks = texts if isinstance(texts, str) else [{"type": "text", "text": text} for text in texts]
        return {"role": "user", "content": blocks}

    first, second = ({"role": "assistant", "content": text} for text in ("First.", "Second."))
    await answered(recorder, anthropic(HELLO, x_session_id="s"), "First.")
    await answered(recorder, anthropic(HELLO, first, said(recorded), x_session_id="s"), "Second.")
    await answered(recorder, anthropic(HELLO, first, said(recorded), second, HELLO, x_session_id="s"), "Third.")
    await answered(recorder, anthropic(HELLO, first, said(listed), x_session_id="s"), "All of it.")

    assert await kinds(recorder, "s") == [happened]


async def test_a_sub_agent_that_orders_a_summary_of_its_own_is_no_turn_of_it(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    child = {"x-session-id": "s", "x-agent-id": "a1"}
    await answered(recorder, replace(chat("look around", system="You explore."), headers=child), "Roses.")
    order = chat("look around", "Roses.", "Write it down.", system="You explore.")
    compaction = {**child, "x-claude-code-request-class": "compaction"}
    await answered(recorder, replace(order, headers=compaction), "There are roses.")

    async with recorder.session("s") as opened:
        events = await opened.session.events()
        [delegation] = await opened.session.delegations()
    [side] = [event for event in events if isinstance(event, log.SideCallRecorded)]
    assert (side.purpose, side.answer, delegation.message_count) == ("summary", "There are roses.", 2)


async def test_a_side_call_that_is_refused_leaves_nothing(recorder: Recorder) -> None:
    await answered(recorder, chat("hi", name="s"), "Hello there.")
    side = await recorder.receive(chat("Name it.", name="s", system="You write titles.", tools=[]))
    await side.finish("refused", 429)

    assert (await messages(recorder, "s"), await kinds(recorder, "s")) == (["hi", "Hello there."], [])


async def test_reasoning_in_the_answer_of_a_side_call_is_no_message_of_it(recorder: Recorder) -> None:
    first = await answered(recorder, responses("hi", store=False, tools=TOOLS), "Hello there.")
    order = responses("title for hi", instructions="Write titles of a conversation.", prompt_cache_key="k")
    side = await recorder.receive(order)
    answer = whole_answer("openai-responses", ProviderReply("A greeting"))
    answer["output"] = [{"type": "reasoning", "id": "rs_1", "summary": []}, *answer["output"]]
    side.feed(json.dumps(answer).encode())
    await side.finish("complete", 200)

    async with recorder.session(side.session_id) as opened:
        events = await opened.session.events()
    assert side.session_id != first
    assert [(one.purpose, one.answer) for one in events if isinstance(one, log.SideCallRecorded)] == [
        ("title", "A greeting")
    ]


async def test_a_bill_that_cannot_be_read_costs_nothing_and_the_answer_is_recorded(recorder: Recorder) -> None:
    exchange = await recorder.receive(chat("hi", name="s"))
    answer = whole_answer("openai-chat", ProviderReply("Hello there."))
    exchange.feed(json.dumps({**answer, "usage": {"prompt_tokens": "many"}}).encode())
    await exchange.finish("complete", 200)

    async with recorder.session("s") as opened:
        usage = [event.usage for event in await opened.session.events() if isinstance(event, log.MessageAppended)]
    assert (await messages(recorder, "s"), usage, exchange.tokens) == (["hi", "Hello there."], [None] * 3, 0)


async def test_only_the_last_conversations_are_searched_for_what_a_side_call_quotes(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "MAX_RECENT", 1)
    first = await answered(recorder, chat("paint the shed green"), "Done.")
    second = await answered(recorder, chat("water the roses twice"), "Done.")
    quoting = [
        await answered(recorder, chat(f"title for {text}", system="Make a title of three words.", tools=[]), "A title")
        for text in ("water the roses twice", "paint the shed green")
    ]

    assert (quoting[0], quoting[1] in {first, second}) == (second, False)


async def test_sessions_in_use_stay_open_above_the_limit(store: MemoryStore) -> None:
    recorder = Recorder(store, max_open_sessions=1)
    requests = [chat("hi", name=name) for name in ("one", "two", "three")]
    running = [await recorder.receive(request) for request in requests]
    for exchange, request in zip(running, requests, strict=True):
        await finish(exchange, request, "Hello there.")

    assert [await messages(recorder, name) for name in ("one", "two", "three")] == [["hi", "Hello there."]] * 3
    await recorder.close()


class SlowStore(MemoryStore):
    """A store whose appends wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def append(self, *args: Any, **kwargs: Any) -> int:
        self.reached.set()
        await self.opened.wait()
        return await super().append(*args, **kwargs)


async def test_a_recorder_that_closes_finishes_what_is_being_recorded() -> None:
    store = SlowStore()
    recorder = Recorder(store)
    receiving = asyncio.ensure_future(recorder.receive(chat("hi", name="s")))
    await store.reached.wait()
    receiving.cancel()
    closing = asyncio.ensure_future(recorder.close())
    await asyncio.wait([receiving])
    store.opened.set()
    await closing

    after = Recorder(store)
    assert (receiving.cancelled(), await messages(after, "s")) == (True, ["hi"])
    await after.close()


async def test_a_recording_that_takes_too_long_is_finished_nevertheless() -> None:
    store = SlowStore()
    recorder = Recorder(store)
    with pytest.raises(TimeoutError):
        await recorder.receive(chat("hi", name="s"), seconds=0.01)
    await store.reached.wait()  # before that, a busy machine has not yet opened the session
    store.opened.set()

    assert await messages(recorder, "s") == ["hi"]
    await recorder.close()


async def test_a_request_that_leaves_while_its_session_is_locked_does_not_hold_it_open(recorder: Recorder) -> None:
    session_id = await answered(recorder, chat("hi", name="s"), "Hello there.")
    opened = recorder.sessions.get(session_id)
    assert opened is not None

    async with opened.lock:
        receiving = asyncio.ensure_future(recorder._receive(read(chat("hi", "Hello there.", "more", name="s"))))
        await wait_until(lambda: opened.users == 1)
        receiving.cancel()
        await asyncio.wait([receiving])

    assert (opened.users, opened.lock.locked()) == (0, False)


@pytest.mark.parametrize("request_", [chat("hi", name="s"), responses("hi", conversation="s")], ids=["list", "kept"])
async def test_a_request_is_received_only_when_who_speaks_in_it_is_stored_too(request_: ClientRequest) -> None:
    class SlowValues(MemoryStore):
        async def put_value(self, key: str, value: Any) -> None:
            reached.set()
            await released.wait()
            await super().put_value(key, value)

    reached, released, store = asyncio.Event(), asyncio.Event(), SlowValues()
    recorder = Recorder(store)
    receiving = asyncio.ensure_future(recorder.receive(request_))
    await reached.wait()
    await wait_until(lambda: bool(store._logs))

    # Nothing else keeps it any more: it would be over after a few steps.
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert not receiving.done()
    released.set()
    await (await receiving).finish("refused", 500)
    assert await store.get_value(session_value_key("s", "client")) is not None
    await recorder.close()


def test_a_program_that_ends_while_a_session_is_opened_says_nothing_about_it() -> None:
    complaints: list[object] = []

    class Silent(MemoryStore):
        async def get_value(self, key: str) -> Any:
            del key
            reached.set()
            return await asyncio.Event().wait()

    async def end_early() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        receiving.append(asyncio.ensure_future(Recorder(Silent()).receive(chat("hi", name="s"))))
        await reached.wait()

    reached, receiving = asyncio.Event(), list[asyncio.Future[Exchange]]()
    asyncio.run(end_early())

    assert ([one.cancelled() for one in receiving], complaints) == ([True], [])


async def test_an_answer_that_other_gateways_always_overtake_is_told_as_an_error_of_the_recording(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = await recorder.receive(chat("hi", name="s"))
    attempts: list[object] = []

    async def overtaken(_: Conversation, natives: object, **__: Any) -> Any:
        attempts.append(natives)
        raise ConcurrentWriteError("s")

    with monkeypatch.context() as patch:
        patch.setattr(Conversation, "record", overtaken)
        with pytest.raises(RecordingError):
            await finish(exchange, chat("hi", name="s"), "Hello there.")
    await answered(recorder, chat("hi", name="s"), "Hello there.")

    assert len(attempts) == recording.MAX_OVERTAKEN + 1
    assert await messages(recorder, "s") == ["hi", "Hello there."]


async def test_a_request_that_cannot_be_governed_goes_on_as_it_came_and_says_so(store: MemoryStore) -> None:
    recorder = Recorder(store, budget=300)
    request = chat("word " * 1_000, name="s")
    exchange = await recorder.receive(request)
    await finish(exchange, request, "Hello there.")

    assert exchange.body == request.body
    assert exchange.headers["x-holdfast-error"].startswith("not governed: ")
    assert exchange.shrink is None
    await recorder.close()


async def test_a_compaction_that_a_request_asks_for_too_early_is_told_and_the_request_goes_on(
    recorder: Recorder,
) -> None:
    request = replace(chat("hi", name="s"), governing=requested_governing({"x-holdfast-compaction": "now"}, None))
    exchange = await recorder.receive(request)
    await finish(exchange, request, "Hello there.")

    assert (exchange.body, await messages(recorder, "s")) == (request.body, ["hi", "Hello there."])
    assert exchange.headers["x-holdfast-error"].startswith("not compacted: ")
