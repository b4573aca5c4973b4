"""Bodies that no honest client sends, or only by mistake: they are recorded and governed like all others."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.gateway.recording.client_body import members_of, read_body, write_json
from holdfast.apps.gateway.recording.exchange import ClientRequest, Exchange
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.history import events as log
from holdfast.errors import RecordingError
from holdfast.stores.memory import MemoryStore

BUDGET = 2_000
HALVES = rb'{"x\udFff": "\uD8aB","messages":[{"role":"user","content":"\ud83d cut \uDBFF\uDFFF \\ud800"}], "n":1e999}'

PIECES = [
    rb"\ud83d", rb"\uDFfF", rb"\ud83d\ude00", rb"\ue000", rb"\uE000", rb"\ue001", rb"\uE001", rb"\ue7ff",
    "\ue000".encode(), "\ue001".encode(), rb"\\ue001", rb"\\", b"d83d", b"a",
]  # fmt: skip
"""Half characters, whole ones, and what looks like the marks that stand for halves."""


async def receive(recorder: Recorder, body: bytes) -> Exchange:
    return await recorder.receive(
        ClientRequest(
            wire="openai-chat",
            path="/v1/chat/completions",
            session_in_path="talk",
            headers={},
            body=body,
            namespace="",
            upstream="openai",
        )
    )


async def recorded(recorder: Recorder) -> list[Any]:
    async with recorder.session("talk") as opened:
        return [event.native for event in await opened.session.events() if isinstance(event, log.MessageAppended)]


async def test_tools_that_are_no_objects_are_passed_on_and_the_messages_are_recorded() -> None:
    recorder, said = Recorder(MemoryStore()), {"role": "user", "content": "hi"}
    body = json.dumps({"messages": [said], "tools": ["odd", 7, None, {"type": "web_search"}]}).encode()

    exchange = await receive(recorder, body)

    assert (exchange.body, exchange.headers.get("x-holdfast-error"), await recorded(recorder)) == (body, None, [said])
    await recorder.close()


async def test_a_text_that_a_client_cut_in_the_middle_of_a_character_is_recorded() -> None:
    recorder = Recorder(MemoryStore())

    exchange = await receive(recorder, HALVES)

    assert exchange.body == HALVES
    assert "x-holdfast-error" not in exchange.headers
    assert [message["content"].split()[1:] for message in await recorded(recorder)] == [
        ["cut", "\U0010ffff", "\\ud800"]
    ]
    await recorder.close()


@given(
    st.lists(
        st.sampled_from(PIECES),
        max_size=8,
    ).map(b"".join)
)
def test_half_characters_beside_private_ones_come_back_as_they_were(text: bytes) -> None:
    message = b'{"role":"user","content":"%s"}' % text
    body = b'{"%s":"%s","messages":[%s],"half":"\\ud800"}' % (text, text, message)

    assert [*map(bytes, read_body("openai-chat", body).slices)] == [message]
    assert [(name, bytes(value)) for name, value in members_of(body).items()] == [
        (json.loads(b'"%s"' % text), b'"%s"' % text),
        ("messages", b"[%s]" % message),
        ("half", rb'"\ud800"'),
    ]


def test_slices_of_a_body_with_half_characters_are_the_bytes_that_came() -> None:
    [message] = read_body("openai-chat", HALVES).slices

    assert bytes(message) == rb'{"role":"user","content":"\ud83d cut \uDBFF\uDFFF \\ud800"}'
    assert {name: bytes(value) for name, value in members_of(HALVES).items()} == {
        "x\udfff": rb'"\uD8aB"',
        "messages": b"[%s]" % bytes(message),
        "n": b"1e999",
    }


def test_what_json_cannot_hold_is_written_nevertheless() -> None:
    assert (
        write_json({"half": "\ud800", "huge": 10**30}) == rb'{"half":"\ud800","huge":1000000000000000000000000000000}'
    )
    assert json.loads(write_json({"half": "\ud800", "endless": float("inf")})) == {"half": "�", "endless": None}


@pytest.mark.parametrize("members", [{"contents": None}, {"contents": "x"}, {"input": 5}, {"tools": {}}, {"n": [1]}])
async def test_members_of_other_apis_do_not_keep_a_request_from_being_recorded(members: dict[str, object]) -> None:
    recorder = Recorder(MemoryStore(), offers_recall=True)

    exchange = await receive(
        recorder, json.dumps({"messages": [{"role": "user", "content": "hi"}], **members}).encode()
    )

    assert "x-holdfast-error" not in exchange.headers
    assert await recorded(recorder) == [{"role": "user", "content": "hi"}]
    await recorder.close()


@pytest.mark.parametrize("role", [[], {}, ["user"]])
async def test_a_role_that_is_no_text_is_refused_by_its_place(role: object) -> None:
    recorder = Recorder(MemoryStore())
    messages = [{"role": role, "content": "a"}, {"role": "user", "content": "b"}]

    with pytest.raises(RecordingError, match=r"messages\[0\]\.role"):
        await receive(recorder, json.dumps({"messages": messages}).encode())

    await recorder.close()


async def test_a_body_that_is_nested_without_end_is_passed_on_and_says_so() -> None:
    recorder = Recorder(MemoryStore())
    body = b'{"messages":[{"role":"user","content":"hi"}],"x":%s%s}' % (b"[" * 20_000, b"]" * 20_000)

    exchange = await receive(recorder, body)

    assert (exchange.body, exchange.headers["x-holdfast-error"]) == (
        body,
        "not recorded: the body has no messages of openai-chat",
    )
    await recorder.close()


async def test_a_call_whose_arguments_alone_exceed_the_budget_is_sent_shortened() -> None:
    recorder = Recorder(MemoryStore(), budget=BUDGET)
    arguments = json.dumps({"path": "a.txt", "content": "word " * 6_000})
    call = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": arguments}}
    body = json.dumps(
        {
            "messages": [
                {"role": "user", "content": "write it"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "done"},
            ]
        }
    ).encode()

    exchange = await receive(recorder, body)

    assert exchange.headers["x-holdfast-compacted"] == "1"
    assert len(exchange.body) < 4 * BUDGET
    sent = json.loads(exchange.body)["messages"][1]["tool_calls"][0]
    assert (sent["id"], json.loads(sent["function"]["arguments"])["path"]) == ("c1", "a.txt")
    await recorder.close()


async def test_repairs_alone_change_no_byte_of_a_request() -> None:
    recorder = Recorder(MemoryStore())
    contents = [
        {"role": "user", "parts": [{"text": "compare"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "run", "args": {"n": n}}} for n in (1, 2)]},
        {"role": "user", "parts": [{"functionResponse": {"name": "run", "response": {"output": "one"}}}]},
        {"role": "user", "parts": [{"text": "and the other?"}]},
    ]
    body = json.dumps({"contents": contents}).encode()

    exchange = await recorder.receive(
        ClientRequest(
            wire="gemini",
            path="/v1beta/models/gemini-2.5-pro:generateContent",
            session_in_path="talk",
            headers={},
            body=body,
            namespace="",
            upstream="gemini",
        )
    )

    assert exchange.body is body
    assert "x-holdfast-compacted" not in exchange.headers
    await recorder.close()
