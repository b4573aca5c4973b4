"""The control API tells what is on record."""

import asyncio
import json
from collections.abc import AsyncGenerator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest

from benchmarks.torture import asgi_client
from benchmarks.torture.asgi_client import AsgiRequest
from holdfast import Session
from holdfast.apps.gateway import control as control_module
from holdfast.apps.gateway.access import Access
from holdfast.apps.gateway.app import close_gateway, gateway_app, stop_live_streams
from holdfast.apps.gateway.control import DamagedRequestError, _title_of
from holdfast.core.history import events as log
from holdfast.core.history.codec import to_record
from holdfast.errors import StoreUnavailableError, UnknownSessionError
from holdfast.stores.base import SessionInfo, StoredRecord
from holdfast.stores.jsonl import load_file
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import system_message, user_message
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.gateway.serving import RawClient, Seen, WaitingStore, ask, running_gateway, served

TOKEN = "t0ken"
ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Noted."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100},
}


async def control(url: str, path: str, method: str = "GET", body: bytes = b"") -> Seen:
    return await ask(url, method, f"/holdfast/v1{path}", body, authorization=f"Bearer {TOKEN}")


async def value(url: str, path: str, method: str = "GET", body: bytes = b"") -> Any:
    seen = await control(url, path, method, body)
    assert seen.status == 200, seen.body
    return json.loads(seen.body)


async def talk(url: str, session: str, *texts: str) -> None:
    """Say something in a session, and get an answer each time."""
    messages: list[dict[str, str]] = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        body = json.dumps({"model": "gpt-5", "messages": messages}).encode()
        await ask(url, body=body, x_holdfast_session=session, user_agent="test/1")
        messages.append({"role": "assistant", "content": "Noted."})


@pytest.fixture
async def upstream() -> AsyncGenerator[FaultyUpstream]:
    async with FaultyUpstream(FaultyAnswer(pieces=[json.dumps(ANSWER).encode()])) as double:
        yield double


@pytest.fixture
async def url(upstream: FaultyUpstream) -> AsyncGenerator[str]:
    async with running_gateway(upstream.url, access=Access(control_token=TOKEN), budget=3_000) as address:
        yield address


async def test_sessions_are_listed_in_pages_the_newest_change_first(url: str) -> None:
    for name in ("first", "second", "third"):
        await talk(url, name, f"hello from {name}")

    page = await value(url, "/sessions?limit=2")
    rest = await value(url, f"/sessions?limit=2&after={page['next']}")
    found = await value(url, "/sessions?q=from%20second")

    assert [[one["id"] for one in part["sessions"]] for part in (page, rest, found)] == [
        ["third", "second"],
        ["first"],
        ["second"],
    ]
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("time_ms", "shown"), [(10**17, "9999-12-31T23:59:59+00:00"), (-(10**17), "1970-01-01T00:00:00+00:00")]
)
async def test_a_time_that_no_calendar_has_is_the_nearest_one(
    upstream: FaultyUpstream, time_ms: int, shown: str
) -> None:
    store, hello = MemoryStore(), {"role": "user", "content": "hello"}
    said = log.MessageAppended(format="openai-chat", native=hello)
    await store.append("adrift", [to_record(said)], after=0, time_ms=time_ms)

    async with running_gateway(upstream.url, access=Access(control_token=TOKEN), store=store) as url:
        one = await value(url, "/sessions/adrift")

    assert (one["id"], one["updated_at"]) == ("adrift", shown)


async def test_a_session_says_what_it_is(url: str) -> None:
    await talk(url, "report", "Why does the parser fail on tabs?", "And on spaces?")

    one = await value(url, "/sessions/report")

    assert str(one.pop("updated_at")).endswith("+00:00")
    assert float(str(one.pop("cost"))) > 0
    assert one == {
        "id": "report",
        "title": "Why does the parser fail on tabs?",
        "client": "test/1",
        "model": "gpt-5",
        "messages": 4,
        "tokens": 100,
        "compactions": 0,
        "compaction_due": "",
    }


async def test_messages_and_events_come_in_pages(url: str) -> None:
    await talk(url, "s", "one", "two")

    page = await value(url, "/sessions/s/messages?limit=3")
    rest = await value(url, f"/sessions/s/messages?after={page['next']}")
    events = await value(url, "/sessions/s/events?limit=1")

    assert [one["message"]["content"] for part in (page, rest) for one in part["messages"]] == [
        "one", "Noted.", "two", "Noted.",
    ]  # fmt: skip
    assert (rest["next"], [one["position"] for one in events["events"]], events["next"]) == (None, [0], 0)
    assert await value(url, "/sessions/s/messages?limit=0") == {"messages": [], "next": None}
    assert await value(url, "/sessions/s/events?limit=0") == {"events": [], "next": None}


def events_in(body: bytes) -> list[dict[str, str]]:
    """Return the events of a stream, each with its fields."""
    found = [one for one in body.decode().split("\n\n") if one and not one.startswith(":")]
    return [dict(line.split(": ", 1) for line in one.splitlines() if ": " in line) for one in found]


async def test_events_are_streamed_as_they_happen_and_resume_after_the_last_one(url: str) -> None:
    await talk(url, "s", "one")
    watcher = RawClient(url)
    headers = {"authorization": f"Bearer {TOKEN}", "accept": "text/event-stream"}
    await watcher.send("GET", "/holdfast/v1/sessions/s/events", b"", headers)
    before = await watcher.read(until=b"Noted.")
    await talk(url, "s", "one", "two")

    await watcher.read_more(until=b'"content":"two"')
    live = events_in(bytes(watcher.body).rpartition(b"\n\n")[0])
    watcher.leave()
    again = RawClient(url)
    resumed_from = live[2]["id"]
    await again.send("GET", "/holdfast/v1/sessions/s/events", b"", headers | {"last-event-id": resumed_from})
    rest = events_in((await again.read(until=b'"content":"two"')).body.rpartition(b"\n\n")[0])
    again.leave()
    listed = (await value(url, "/sessions/s/events"))["events"]

    assert (before.status, before.header("content-type")) == (200, "text/event-stream; charset=utf-8")
    assert [json.loads(one["data"]) for one in live] == listed[: len(live)]
    assert [(one["id"], one["event"]) for one in live] == [
        (str(one["position"]), one["record"]["type"]) for one in listed[: len(live)]
    ]
    assert [int(one["id"]) for one in rest] == list(range(3, 3 + len(rest)))


async def test_an_event_with_line_ends_of_unicode_is_one_line_of_its_stream(url: str) -> None:
    prompt = "one\u2028two\u2029three\x85four"
    await talk(url, "s", prompt)
    watcher = RawClient(url)
    headers = {"authorization": f"Bearer {TOKEN}", "accept": "text/event-stream"}
    await watcher.send("GET", "/holdfast/v1/sessions/s/events", b"", headers)

    seen = await watcher.read(until=b"Noted.")
    watcher.leave()

    live = events_in(seen.body.rpartition(b"\n\n")[0])
    listed = (await value(url, "/sessions/s/events"))["events"]
    assert prompt in json.dumps(listed, ensure_ascii=False)
    assert [json.loads(one["data"]) for one in live] == listed[: len(live)]


@pytest.mark.parametrize("last", ["two", "-1", "1" * 16, "9" * 5_000])
async def test_a_stream_resumes_only_after_the_id_of_an_event(url: str, last: str) -> None:
    await talk(url, "s", "one")
    headers = {"authorization": f"Bearer {TOKEN}", "accept": "text/event-stream", "last-event-id": last}
    watcher = RawClient(url)

    await watcher.send("GET", "/holdfast/v1/sessions/s/events", b"", headers)
    refused = await watcher.read()
    watcher.leave()

    assert (refused.status, json.loads(refused.body)["error"].partition(",")[0]) == (
        400,
        "Last-Event-ID: must be the id of an event",
    )


async def test_a_stream_of_events_ends_with_its_session(url: str) -> None:
    await talk(url, "s", "one")
    watcher = RawClient(url)
    headers = {"authorization": f"Bearer {TOKEN}", "accept": "text/event-stream"}
    await watcher.send("GET", "/holdfast/v1/sessions/s/events?after=0", b"", headers)
    await watcher.read(until=b"Noted.")

    await value(url, "/sessions/s", "DELETE")

    assert await watcher.read_more()
    watcher.leave()


class AwayStore(MemoryStore):
    """A store that can be away for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away, self.was_missed = False, asyncio.Event()

    async def read(self, session: str, *, start: int = 0, limit: int | None = None) -> list[StoredRecord]:
        if self.is_away:
            self.was_missed.set()
            raise StoreUnavailableError("postgresql", "the server cannot be reached")
        return await super().read(session, start=start, limit=limit)


async def test_a_stream_of_events_goes_on_when_its_store_is_back(
    upstream: FaultyUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "POLL_SECONDS", 0.01)
    store = AwayStore()
    async with running_gateway(upstream.url, access=Access(control_token=TOKEN), store=store) as url:
        await talk(url, "s", "one")
        watcher = RawClient(url)
        headers = {"authorization": f"Bearer {TOKEN}", "accept": "text/event-stream"}
        await watcher.send("GET", "/holdfast/v1/sessions/s/events", b"", headers)
        await watcher.read(until=b"Noted.")
        store.is_away = True
        await store.was_missed.wait()
        store.is_away = False
        await talk(url, "s", "one", "two")
        is_over = await watcher.read_more(until=b'"content":"two"')
        watcher.leave()

    found = events_in(bytes(watcher.body).rpartition(b"\n\n")[0])
    assert ([int(one["id"]) for one in found], is_over) == ([*range(len(found))], False)
    assert b'"content":"two"' in watcher.body


async def test_recall_returns_exact_excerpts_with_their_references(url: str) -> None:
    await talk(url, "s", "the token of file_3.py is K023757", "something else")

    answer = await value(url, "/sessions/s/recall", "POST", b'{"query": "token of file_3.py", "tokens": 500}')

    assert "K023757" in str(answer["text"])
    assert "#0" in list(answer["references"])


async def test_a_method_that_a_route_does_not_take_is_refused_as_every_error(url: str) -> None:
    seen = await control(url, "/sessions/s", "PUT", b"{}")

    assert (seen.status, json.loads(seen.body)) == (
        405,
        {"error": "/holdfast/v1/sessions/s does not take PUT; see /holdfast/v1/openapi.json"},
    )


async def test_a_compaction_that_needs_a_model_where_there_is_none_is_a_conflict(url: str) -> None:
    await talk(url, "s", *LONG)
    await value(url, "/sessions/s/settings", "POST", b'{"policy": "copilot"}')

    seen = await control(url, "/sessions/s/compact", "POST")

    assert (seen.status, json.loads(seen.body)) == (
        409,
        {"error": "summarizer: there is no model to write the summary; open the session with summarizer=…"},
    )


@pytest.mark.parametrize("path", ["/nothing", "/", ""])
async def test_a_route_that_there_is_not_is_refused_as_every_error(url: str, path: str) -> None:
    seen = await control(url, path)
    nobody = await ask(url, "GET", f"/holdfast/v1{path}")

    said = {"error": f"there is no /holdfast/v1{path}; see /holdfast/v1/openapi.json"}
    assert (seen.status, json.loads(seen.body), nobody.status) == (404, said, 401)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/holdfast/v1/nothing", 404), ("PUT", "/holdfast/v1/sessions/s", 405), ("GET", "/ui/no/such/page", 401)],
)
async def test_a_query_of_bytes_that_are_no_utf_8_is_answered_as_another(method: str, path: str, status: int) -> None:
    app = gateway_app(store="memory://", access=Access(control_token=TOKEN))
    headers = [("host", "127.0.0.1"), ("authorization", f"Bearer {TOKEN}")]

    plain, odd = [await asgi_client.ask(app, AsgiRequest(method, path + one, headers)) for one in ("", "?q=\x80")]
    await close_gateway(app)

    assert (plain.status, odd.status, odd.body) == (status, status, plain.body)


async def test_a_deleted_session_is_gone_and_its_name_can_be_used_again(url: str) -> None:
    await talk(url, "s", "one")

    deleted = await value(url, "/sessions/s", "DELETE")
    missing = await control(url, "/sessions/s/messages")
    await talk(url, "s", "another")

    assert (deleted, missing.status) == ({"deleted": True}, 404)
    assert [one["message"]["content"] for one in (await value(url, "/sessions/s/messages"))["messages"]] == [
        "another",
        "Noted.",
    ]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/sessions/unknown", b"", 404),
        ("GET", "/sessions?limit=x", b"", 400),
        ("GET", "/sessions?after=x", b"", 400),
        ("GET", f"/sessions?after={10**30}:s", b"", 400),
        ("GET", "/sessions?after=1:%00", b"", 400),
        ("GET", "/sessions/s/requests/9", b"", 404),
        ("GET", "/sessions/s/requests/9/receipt", b"", 404),
        ("GET", "/sessions/unknown/events", b"", 404),
        ("POST", "/sessions/s/settings", b'{"budget": 1000000000001}', 400),
        ("POST", "/sessions/s/recall", b"{", 400),
        ("POST", "/sessions/s/recall", b'{"query": 3}', 400),
        ("POST", "/sessions/s/recall", b'{"query": "a", "tokens": 0}', 400),
        ("POST", "/sessions/s/recall", b'{"query": ""}', 400),
    ],
)
async def test_a_wrong_request_gets_an_error_that_says_what_is_wrong(
    url: str, method: str, path: str, body: bytes, status: int
) -> None:
    await talk(url, "s", "one")

    seen = await control(url, path, method, body)

    assert (seen.status, bool(json.loads(seen.body)["error"])) == (status, True)


LONG = [f"question {number}: " + "a word of the report and " * 40 for number in range(8)]


OPERATIONS: tuple[tuple[str, str, object], ...] = (
    ("GET", "/sessions", None),
    ("GET", "/sessions/{id}", None),
    ("GET", "/sessions/{id}/messages", None),
    ("GET", "/sessions/{id}/requests", None),
    ("GET", "/sessions/{id}/requests/{number}/receipt", None),
    ("GET", "/sessions/{id}/events", None),
    ("GET", "/sessions/{id}/settings", None),
    ("POST", "/sessions/{id}/settings", {"compaction": "ask", "budget": 3000}),
    ("POST", "/sessions/{id}/recall", {"query": "report", "tokens": 500}),
    ("POST", "/sessions/{id}/preview", {"focus": "the report"}),
    ("POST", "/sessions/{id}/compact", {}),
    ("GET", "/sessions/{id}/receipts", None),
    ("POST", "/sessions/{id}/undo", None),
    ("POST", "/sessions/{id}/redo", None),
    ("POST", "/sessions/{id}/pin", {"position": 0}),
    ("POST", "/sessions/{id}/unpin", {"position": 0}),
    ("POST", "/sessions/{id}/fork", {"id": "copy"}),
    ("POST", "/sessions/{id}/rewind", {"to": 2}),
    ("DELETE", "/sessions/{id}", None),
)
"""Every operation with an answer in JSON that has a type, and a body that it takes."""


def strict(described: Any) -> dict[str, Any]:
    """Return the components of a description, so that an answer may have no member beyond them."""
    schemas = json.loads(json.dumps(described["components"]["schemas"]))
    for one in schemas.values():
        if "properties" in one:
            one["additionalProperties"] = False
    return {"components": {"schemas": schemas}}


async def test_every_operation_takes_and_returns_what_the_description_says(url: str) -> None:
    await talk(url, "talk", *LONG)
    described = await value(url, "/openapi.json")
    components, tried = strict(described), set[tuple[str, str]]()
    for method, path, body in OPERATIONS:
        operation = described["paths"][f"/holdfast/v1{path}"][method.lower()]
        if body is not None:
            taken = operation["requestBody"]["content"]["application/json"]["schema"]
            jsonschema.validate(body, taken | components)
        place = path.replace("{id}", "talk").replace("{number}", "1")
        answer = await value(url, place, method, b"" if body is None else json.dumps(body).encode())
        returned = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(answer, returned | components)
        tried.add((method.lower(), f"/holdfast/v1{path}"))

    has_no_type = {
        ("get", "/holdfast/v1/openapi.json"),
        ("get", "/holdfast/v1/sessions/{id}/requests/{number}"),
        ("get", "/holdfast/v1/sessions/{id}/export"),
    }
    named = {(method, path) for path, methods in described["paths"].items() for method in methods}
    assert named == tried | has_no_type


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("settings", {"compaction": "sometimes"}),
        ("settings", {"budget": 10}),
        ("settings", {"colour": "red"}),
        ("recall", {}),
        ("settings", {"budget": 10**12 + 1}),
        ("recall", {"query": "x", "tokens": 99}),
        ("recall", {"query": "x", "tokens": 100_001}),
        ("preview", {"draft": "yes"}),
        ("preview", {"budget": 63}),
        ("compact", {"budget": 10**12 + 1}),
        ("rewind", {"to": -1}),
        ("pin", {"position": "first"}),
        ("fork", {"at": 1.5}),
    ],
)
async def test_what_the_description_excludes_is_refused_and_says_why(url: str, path: str, body: object) -> None:
    await talk(url, "talk", "hello")
    described = await value(url, "/openapi.json")
    operation = described["paths"][f"/holdfast/v1/sessions/{{id}}/{path}"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, schema | {"components": described["components"]})
    seen = await control(url, f"/sessions/talk/{path}", "POST", json.dumps(body).encode())
    assert seen.status == 400
    refusal = operation["responses"]["400"]["content"]["application/json"]["schema"]
    jsonschema.validate(json.loads(seen.body), refusal | strict(described))


async def test_a_body_that_is_too_large_is_refused_as_the_description_says(url: str) -> None:
    described = await value(url, "/openapi.json")
    named = {
        (method, path.rpartition("/")[2])
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        if "413" in operation["responses"]
    }
    await talk(url, "talk", "hello")
    seen = {name: await control(url, f"/sessions/talk/{name}", "POST", b" " * (1 << 20) + b"{}") for _, name in named}

    assert {name: one.status for name, one in seen.items()} == dict.fromkeys(seen, 413)
    assert named == {
        (method, path.rpartition("/")[2])
        for path, methods in described["paths"].items()
        for method in methods
        if method == "post"
    }


async def test_the_description_names_every_route(url: str) -> None:
    described = await value(url, "/openapi.json")

    assert sorted(described["paths"]) == [
        "/holdfast/v1/openapi.json",
        "/holdfast/v1/sessions",
        "/holdfast/v1/sessions/{id}",
        "/holdfast/v1/sessions/{id}/compact",
        "/holdfast/v1/sessions/{id}/events",
        "/holdfast/v1/sessions/{id}/export",
        "/holdfast/v1/sessions/{id}/fork",
        "/holdfast/v1/sessions/{id}/messages",
        "/holdfast/v1/sessions/{id}/pin",
        "/holdfast/v1/sessions/{id}/preview",
        "/holdfast/v1/sessions/{id}/recall",
        "/holdfast/v1/sessions/{id}/receipts",
        "/holdfast/v1/sessions/{id}/redo",
        "/holdfast/v1/sessions/{id}/requests",
        "/holdfast/v1/sessions/{id}/requests/{number}",
        "/holdfast/v1/sessions/{id}/requests/{number}/receipt",
        "/holdfast/v1/sessions/{id}/rewind",
        "/holdfast/v1/sessions/{id}/settings",
        "/holdfast/v1/sessions/{id}/undo",
        "/holdfast/v1/sessions/{id}/unpin",
    ]


async def test_a_compaction_can_be_seen_made_undone_and_redone(url: str) -> None:
    await talk(url, "s", *LONG)

    preview = await value(url, "/sessions/s/preview", "POST")
    before = await value(url, "/sessions/s/receipts")
    done = await value(url, "/sessions/s/compact", "POST", b'{"focus": "the report"}')
    undone = await value(url, "/sessions/s/undo", "POST")
    redone = await value(url, "/sessions/s/redo", "POST")
    again = await value(url, "/sessions/s/redo", "POST")
    [receipt] = (await value(url, "/sessions/s/receipts"))["receipts"]

    assert before == {"receipts": []}
    assert (preview["success"], done["success"], done["trigger"]) == (True, True, "manual")
    assert done["tokens_after"] < done["tokens_before"]
    assert "question 0" in done["summary"][0]
    assert (undone, redone, again) == ({"undone": True}, {"redone": True}, {"redone": False})
    assert receipt["kind"] == "session.compaction_complete"
    assert (await value(url, "/sessions/s"))["compactions"] == 1


async def test_a_session_beyond_ascii_is_found_by_its_name_and_by_the_id_it_was_stored_with(
    upstream: FaultyUpstream,
) -> None:
    store, access = MemoryStore(), Access(control_token=TOKEN)
    for session_id in ("b\u00e5t", "s%C3%B8"):  # of the library, and of an earlier version of the gateway
        async with Session.open(session_id, store=store, model="gpt-5") as session:
            await session.record([user_message("ahoy")], format="openai-chat")
    async with running_gateway(upstream.url, access=access, store=store) as url:
        for name in ("b%C3%A5t", "s%C3%B8", "ny%2F%C3%A5"):
            await talk(url, name, "ahoy", "again")
        listed = {one["id"] for one in (await value(url, "/sessions"))["sessions"]}
        lengths = [
            len((await value(url, f"/sessions/{quote(one, safe='')}/messages"))["messages"])
            for one in ("b\u00e5t", "s\u00f8", "s%C3%B8", "ny/\u00e5", "ny%2F\u00e5")
        ]

    assert listed == {"b\u00e5t", "s%C3%B8", "ny%2F\u00e5"}
    assert len(set(lengths)) == 1


@pytest.mark.parametrize("path", ["requests/3", "requests/3/receipt"])
async def test_a_request_that_is_not_there_is_named_as_a_request(url: str, path: str) -> None:
    await talk(url, "s", "one", "two")

    seen = await control(url, f"/sessions/s/{path}")

    assert (seen.status, json.loads(seen.body)) == (
        404, {"error": "there is no request 3; the session has 2 requests"},
    )  # fmt: skip


@pytest.mark.parametrize("body", [b"[1]", b"nope", b'{"unknown": 1}'])
async def test_a_change_is_not_undone_by_a_body_that_is_wrong(url: str, body: bytes) -> None:
    await talk(url, "s", *LONG)
    await value(url, "/sessions/s/compact", "POST")

    refused = [(await control(url, f"/sessions/s/{verb}", "POST", body)).status for verb in ("undo", "redo")]
    undone = await value(url, "/sessions/s/undo", "POST", b"{}")

    assert (refused, undone) == ([400, 400], {"undone": True})


async def test_a_session_is_pinned_rewound_forked_and_exported(url: str, tmp_path: Path) -> None:
    await talk(url, "s", "one", "two", "three")

    pinned = await value(url, "/sessions/s/pin", "POST", b'{"position": 0}')
    forked = await value(url, "/sessions/s/fork", "POST", b'{"id": "other", "at": 2}')
    rewound = await value(url, "/sessions/s/rewind", "POST", b'{"to": 4}')
    unpinned = await value(url, "/sessions/s/unpin", "POST", b'{"position": 0}')
    other = await value(url, "/sessions/other/messages")
    receipt = await value(url, "/sessions/s/requests/1/receipt")
    exported = await control(url, "/sessions/s/export")

    assert (pinned, forked, rewound, unpinned) == (
        {"pinned": 0},
        {"id": "other"},
        {"rewound_to": 4},
        {"unpinned": 0},
    )
    assert [one["message"]["content"] for one in other["messages"]] == ["one", "Noted."]
    assert receipt["number"] == 1
    file = tmp_path / "s.jsonl"
    file.write_bytes(exported.body)
    [conversation] = load_file(file).conversations
    recorded: list[Any] = [record["data"] for _, _, record in conversation.records]
    assert [one["native"]["content"] for one in recorded if "native" in one] == [
        "one",
        "Noted.",
        "two",
        "Noted.",
        "three",
        "Noted.",
    ]


async def test_after_undo_and_redo_a_session_has_what_the_next_list_of_its_client_has(upstream: FaultyUpstream) -> None:
    store, said = MemoryStore(), list[list[object]]()

    async def say(*texts: str) -> None:
        listed = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
        body = json.dumps({"model": "gpt-5", "messages": listed}).encode()
        await ask(url, body=body, x_holdfast_session="s")
        async with Session.open("s", store=store) as session:
            said.append([native["content"] for native in await session.messages()])

    async with running_gateway(upstream.url, access=Access(control_token=TOKEN), store=store) as url:
        await say("one")
        await say("one", "Noted.", "two")
        await say("one", "Noted.", "other")
        undone = await value(url, "/sessions/s/undo", "POST")
        await say("one", "Noted.", "other", "Noted.", "three")
        await value(url, "/sessions/s/undo", "POST")
        redone = await value(url, "/sessions/s/redo", "POST")
        await say("one", "Noted.", "other", "Noted.", "three", "Noted.", "four")

    assert (undone, redone) == ({"undone": True}, {"redone": True})
    assert [texts[::2] for texts in said] == [
        ["one"],
        ["one", "two"],
        ["one", "other"],
        ["one", "other", "three"],
        ["one", "other", "three", "four"],
    ]


async def test_every_request_is_there_with_the_bytes_that_were_sent(url: str, upstream: FaultyUpstream) -> None:
    await talk(url, "s", *LONG, *LONG)

    listed = (await value(url, "/sessions/s/requests"))["requests"]
    found = [await control(url, f"/sessions/s/requests/{one['number']}") for one in listed]
    receipts = [await value(url, f"/sessions/s/requests/{one['number']}/receipt") for one in listed]

    sent = [one.body for one in upstream.requests]
    assert [seen.body for seen in found] == sent
    assert sent != sorted(sent, key=len), "it was compacted"
    assert [one["sha256"] for one in listed] == [sha256(body).hexdigest() for body in sent]
    assert [seen.header("x-holdfast-sha256") for seen in found] == [one["sha256"] for one in listed]
    assert [(one["number"], one["body_hash"]) for one in receipts] == [(one["number"], one["sha256"]) for one in listed]


async def test_what_cannot_be_compacted_is_a_conflict(url: str) -> None:
    await talk(url, "s", "one")

    seen = await control(url, "/sessions/s/compact", "POST")

    assert (seen.status, bool(json.loads(seen.body)["error"])) == (409, True)


async def test_a_preview_that_would_not_help_says_why(url: str) -> None:
    await talk(url, "s", "a", "b")
    for position in range(4):
        await value(url, "/sessions/s/pin", "POST", b'{"position": %d}' % position)

    preview = await value(url, "/sessions/s/preview", "POST")

    tokens = f"{preview['tokens_after']} tokens instead of {preview['tokens_before']}"
    assert (preview["success"], preview["reason"]) == (False, f"the replacement would be no smaller: {tokens}")


async def test_a_request_keeps_its_policy_while_a_preview_is_made_with_that_of_its_session(
    upstream: FaultyUpstream,
) -> None:
    store = WaitingStore()
    async with running_gateway(upstream.url, access=Access(control_token=TOKEN), store=store) as url:
        await talk(url, "s", "one", "two", "three")
        body = json.dumps({"model": "another", "messages": [{"role": "user", "content": "one"}]}).encode()
        store.waits = True
        asking = asyncio.ensure_future(ask(url, body=body, x_holdfast_session="s", x_holdfast_policy="copilot"))
        await store.reached.wait()
        previewing = asyncio.ensure_future(control(url, "/sessions/s/preview", "POST"))
        await asyncio.wait([previewing], timeout=0.2)  # it waits for the request
        store.opened.set()
        await asyncio.gather(asking, previewing)
        requests = (await value(url, "/sessions/s/requests"))["requests"]

    assert [one["policy"].partition(":")[0] for one in requests] == ["default", "default", "default", "copilot"]


async def test_half_a_character_and_a_huge_number_are_told_as_they_were_said(url: str) -> None:
    said = {"role": "user", "content": "cut \ud83d", "x_size": 10**30}
    body = json.dumps({"model": "gpt-5", "messages": [said]}).encode()
    assert (await ask(url, body=body, x_holdfast_session="halves")).status == 200

    messages = await value(url, "/sessions/halves/messages")
    assert messages["messages"][0]["message"]["x_size"] == 10**30
    for path in ("/sessions", "/sessions/halves", "/sessions/halves/events", "/sessions/halves/requests"):
        assert (await control(url, path)).status == 200


@pytest.mark.parametrize("method", ["OPTIONS", "HEAD", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", ["/holdfast", "/holdfast/v2/sessions", "/holdfast/v1/sessions"])
async def test_no_method_takes_the_token_of_the_control_api_to_a_provider(
    url: str, upstream: FaultyUpstream, method: str, path: str
) -> None:
    seen = await ask(url, method, path, authorization=f"Bearer {TOKEN}")

    assert seen.status in {200, 404, 405}
    assert upstream.requests == []


async def test_a_number_that_no_log_has_is_no_path(url: str) -> None:
    await talk(url, "talk", "hello")

    assert (await control(url, f"/sessions/talk/requests/{'9' * 5_000}")).status == 404


async def test_the_title_of_a_session_is_its_first_prompt_among_four_messages() -> None:
    session: Session = await Session.open("s", store=MemoryStore(), model="gpt-5")
    await session.record([system_message(f"Rule {number}.") for number in range(3)])
    before = _title_of(session)
    await session.record([user_message("Fix  the\nparser.")])

    assert (before, _title_of(session)) == ("", "Fix the parser.")


async def test_every_session_that_a_search_finds_is_on_one_of_its_pages(url: str) -> None:
    for name in ("red-1", "red-2", "blue-1", "red-3", "red-4"):
        await talk(url, name, "hello")

    pages, after = list[list[str]](), "&"
    while after and len(pages) < 9:
        page = await value(url, f"/sessions?limit=3&q=red{after}")
        pages.append([one["id"] for one in page["sessions"]])
        after = f"&after={page['next']}" if page["next"] else ""

    assert pages == [["red-4", "red-3", "red-2"], ["red-1"]]
    assert await value(url, "/sessions?limit=0") == {"sessions": [], "next": None}


async def test_a_session_is_told_from_others_whose_names_begin_with_its_own(url: str) -> None:
    for name in ("report", "report-2"):
        await talk(url, name, f"hello from {name}")

    assert [(await value(url, f"/sessions/{name}"))["title"] for name in ("report", "report-2")] == [
        "hello from report",
        "hello from report-2",
    ]


async def test_of_many_previews_the_oldest_are_forgotten(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "MAX_PREVIEWS", 1)
    await talk(url, "s", *LONG)

    previews = [(await value(url, "/sessions/s/preview", "POST"))["id"] for _ in range(2)]
    tried = [
        await control(url, "/sessions/s/compact", "POST", json.dumps({"preview": number}).encode())
        for number in previews
    ]

    assert [one.status for one in tried] == [404, 200]
    made_again = "make one: POST …/preview (the last 1 of a session are kept)"
    assert json.loads(tried[0].body)["error"] == f"there is no preview {previews[0]!r}; {made_again}"


async def test_a_quiet_stream_of_events_gets_pings_and_ends_when_the_gateway_stops(
    upstream: FaultyUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(control_module, "PING_SECONDS", 0.0)
    app = gateway_app(upstreams={"openai": f"{upstream.url}/v1"}, access=Access(control_token=TOKEN))
    headers = {"authorization": f"Bearer {TOKEN}", "accept": "text/event-stream"}
    async with served(app) as url:
        await talk(url, "s", "one")
        watcher = RawClient(url)
        await watcher.send("GET", "/holdfast/v1/sessions/s/events", b"", headers)
        await watcher.read(until=b"\n\n: ping\n\n")
        stop_live_streams(app)
        is_whole = await watcher.read_more()
        watcher.leave()
    await close_gateway(app)

    assert (is_whole, bytes(watcher.body).endswith(b"\n\n: ping\n\n")) == (True, True)


class OddStore(MemoryStore):
    """A store that can say a wrong length, or fail."""

    wrong_length = 0
    fails = False

    async def length(self, session: str) -> int:
        return await super().length(session) or self.wrong_length

    async def sessions(self, **options: Any) -> list[SessionInfo]:
        if self.fails:
            raise StoreUnavailableError("memory", "it is gone; bring it back")
        return await super().sessions(**options)


async def test_a_store_that_fails_and_a_session_that_just_went_are_told_apart(upstream: FaultyUpstream) -> None:
    store = OddStore()
    async with running_gateway(upstream.url, access=Access(control_token=TOKEN), store=store) as url:
        store.fails = True
        failing = await control(url, "/sessions")
        store.fails, store.wrong_length = False, 1
        gone = await control(url, "/sessions/s")

    assert (failing.status, json.loads(failing.body)) == (503, {"error": "memory: it is gone; bring it back"})
    assert (gone.status, json.loads(gone.body)) == (404, {"error": str(UnknownSessionError("s"))})


async def test_a_request_is_refused_whose_bytes_are_unknown_or_no_longer_those_that_were_sent(
    upstream: FaultyUpstream,
) -> None:
    store, access = MemoryStore(), Access(control_token=TOKEN)
    async with running_gateway(upstream.url, access=access, store=store) as url:
        await talk(url, "changed", "hello there")
    records = await store.read("changed")
    changed = {
        one.position: json.loads(json.dumps(one.record).replace("hello there", "good bye"))
        for one in records
        if "hello there" in json.dumps(one.record)
    }
    tombstone: dict[str, object] = {"type": "test", "schema": 1, "data": {}}
    await store.rewrite("changed", changed, tombstone=tombstone, after=len(records), time_ms=1)
    async with Session.open("elsewhere", store=store, model="gpt-5") as session:
        await session.record([user_message("hello")])
        await session.prepare()
    async with running_gateway(upstream.url, access=access, store=store) as url:
        seen = [await control(url, f"/sessions/{name}/requests/1") for name in ("changed", "elsewhere")]

    assert [(one.status, json.loads(one.body)["error"]) for one in seen] == [
        (500, str(DamagedRequestError(1))),
        (404, "the bytes of request 1 were not recorded; its receipt is there"),
    ]


@pytest.mark.parametrize("path", ["/holdfast/v1/sessions/talk/pin", "/holdfast/v1/sessions/talk/undo", "/mcp"])
async def test_a_body_for_the_gateway_itself_is_refused_as_soon_as_it_is_larger_than_a_megabyte(
    url: str, path: str
) -> None:
    await talk(url, "talk", "hello")
    client, headers = RawClient(url), {"authorization": f"Bearer {TOKEN}", "content-length": "5000000000"}

    await client.send("POST", path, b" " * ((1 << 20) + 1), headers)
    refused = await client.read(until=b"}")
    client.leave()

    assert (refused.status, json.loads(refused.body)) == (
        413,
        {"error": "the body is too large: it may have at most 1,048,576 bytes"},
    )
    largest = b'{"position": 0' + b" " * ((1 << 20) - 15) + b"}"
    assert await value(url, "/sessions/talk/pin", "POST", largest) == {"pinned": 0}
