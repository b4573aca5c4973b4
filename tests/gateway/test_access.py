"""Who may speak to the gateway."""

import asyncio
import json
import os
import stat
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from holdfast.apps.gateway import access as access_module
from holdfast.apps.gateway.access import (
    Access,
    KeyEntry,
    Keys,
    control_token,
    create_key,
    key_hash,
    load_keys,
)
from holdfast.apps.serving import AccessDeniedError
from holdfast.errors import SettingsError
from holdfast.stores import files
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.gateway.serving import ask, running_gateway

CHAT = b'{"model":"gpt-5","messages":[{"role":"user","content":"hi"}]}'
TOKEN = "t0ken"
ROUTES = ["/", "/health", "/metrics", "/v1/models", "/v1/chat/completions", "/holdfast/v1/sessions", "/made/up"]


def entry(key: str = "hf-a", **limits: object) -> KeyEntry:
    return KeyEntry(name="alice", sha256=key_hash(key), namespace="alice", **limits)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:80"},
        {"host": ""},
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "null"},
        {"origin": "http://[::1"},
        {"sec_fetch_site": "cross-site"},
    ],
)
async def test_every_route_refuses_web_pages_and_foreign_names(path: str, headers: dict[str, str]) -> None:
    async with FaultyUpstream() as upstream, running_gateway(upstream.url, access=Access(control_token=TOKEN)) as url:
        seen = await ask(url, "GET", path, b"", authorization=f"Bearer {TOKEN}", **headers)

    assert (seen.status, upstream.requests) == (403, [])


@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "localhost", "LOCALHOST:8787", "[::1]:8787", "app.localhost", "127.0.0.9"]
)
def test_every_name_of_the_loopback_interface_is_served(host: str) -> None:
    Access().check_source({"host": host})
    Access().check_source({"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"})


async def test_a_client_that_is_refused_by_its_name_can_send_its_whole_body_and_read_why() -> None:
    async with FaultyUpstream() as upstream, running_gateway(upstream.url) as url:
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: llm.example\r\ncontent-length: %d\r\n\r\n" % len(CHAT)
        answers: list[tuple[bytes, bool]] = []
        for _ in range(2):
            writer.write(head)
            line, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            length = next(int(one[15:]) for one in rest.split(b"\r\n") if one.startswith(b"content-length:"))
            told = await reader.readexactly(length)
            answers.append((line, b"see the setting gateway_hosts" in told))
            writer.write(CHAT)
        writer.close()

    assert answers == [(b"HTTP/1.1 403 Forbidden", True)] * 2


def test_beyond_loopback_addresses_and_configured_names_are_served() -> None:
    access = Access(host="0.0.0.0", keys=Keys([entry()]), hosts=frozenset({"llm.example"}))  # noqa: S104

    access.check_source({"host": "10.0.0.7:8787"})
    access.check_source({"host": "llm.example"})
    with pytest.raises(AccessDeniedError):
        access.check_source({"host": "evil.example"})


def test_a_gateway_beyond_loopback_needs_keys() -> None:
    with pytest.raises(SettingsError, match="which needs --keys FILE"):
        Access(host="0.0.0.0")  # noqa: S104


@pytest.mark.parametrize("header", ["authorization", "x_api_key", "x_goog_api_key", "x_holdfast_key"])
async def test_a_key_of_ours_is_taken_from_the_request_and_never_forwarded(
    header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-gateway")
    value = "Bearer hf-a" if header == "authorization" else "hf-a"
    access = Access(keys=Keys([entry()]))
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[b"{}"])) as upstream,
        running_gateway(upstream.url, access=access) as url,
    ):
        seen = await ask(url, body=CHAT, **{header: value})

    sent = dict(upstream.requests[0].headers)
    assert (seen.status, sent.get("authorization"), "hf-a" in str(sent)) == (200, "Bearer sk-of-the-gateway", False)
    assert (seen.header("x-holdfast-session") or "").startswith("alice/")


async def test_a_key_of_the_client_is_passed_through_beside_ours() -> None:
    access = Access(keys=Keys([entry()]))
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[b"{}"])) as upstream,
        running_gateway(upstream.url, access=access) as url,
    ):
        await ask(url, body=CHAT, authorization="Bearer sk-own", x_holdfast_key="hf-a")
        await ask(url, path="/v1beta/models/g:generateContent?key=hf-a&alt=sse", body=CHAT)

    assert upstream.requests[0].header("authorization") == "Bearer sk-own"
    assert upstream.requests[1].line == "POST /v1beta/models/g:generateContent?alt=sse HTTP/1.1"


async def test_a_key_of_ours_in_several_places_is_forwarded_in_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-gateway")
    access = Access(keys=Keys([entry("hf-a"), entry("hf-b")]))
    everywhere = {"x_api_key": "hf-a", "x_goog_api_key": "hf-a", "api_key": "hf-b", "x_holdfast_key": "hf-a"}
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[b"{}"])) as upstream,
        running_gateway(upstream.url, access=access) as url,
    ):
        path = "/v1/chat/completions?a=1&key=hf-b&%6bey=hf-a&monkey=2"
        await ask(url, path=path, body=CHAT, authorization="Bearer hf-a", **everywhere)

    [sent] = upstream.requests
    credentials = [pair for pair in sent.headers if "hf-" in pair[1] or "key" in pair[0] or pair[0] == "authorization"]
    assert sent.line == "POST /v1/chat/completions?a=1&monkey=2 HTTP/1.1"
    assert credentials == [("authorization", "Bearer sk-of-the-gateway")]


async def test_a_request_without_a_key_gets_an_error_of_its_api() -> None:
    async with FaultyUpstream() as upstream, running_gateway(upstream.url, access=Access(keys=Keys([entry()]))) as url:
        missing = await ask(url, path="/v1/messages", body=CHAT)
        wrong = await ask(url, body=CHAT, authorization="Bearer hf-b")

    assert (missing.status, json.loads(missing.body)["error"]["type"]) == (401, "authentication_error")
    assert (wrong.status, upstream.requests) == (401, [])


async def test_sessions_of_two_keys_never_meet() -> None:
    bob = KeyEntry(name="bob", sha256=key_hash("hf-b"), namespace="bob", control=True)
    access = Access(keys=Keys([entry(control=True), bob]))
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[b"{}"])) as upstream,
        running_gateway(upstream.url, access=access) as url,
    ):
        for key in ("hf-a", "hf-b"):
            await ask(url, body=CHAT, authorization=f"Bearer {key}", x_session_id="same")
        listed = json.loads((await ask(url, "GET", "/holdfast/v1/sessions", authorization="Bearer hf-b")).body)
        foreign = await ask(url, "GET", "/holdfast/v1/sessions/alice%2Fsame", authorization="Bearer hf-b")

    assert [one["id"] for one in listed["sessions"]] == ["same"]
    assert foreign.status == 404


def test_requests_above_the_rate_of_a_key_are_told_when_to_come_back() -> None:
    now = [1_000.0]
    keys = Keys([entry(requests_per_minute=2)], clock=lambda: now[0])

    keys.admit(entry(requests_per_minute=2))
    keys.admit(entry(requests_per_minute=2))
    with pytest.raises(AccessDeniedError) as denied:
        keys.admit(entry(requests_per_minute=2))
    now[0] += 30
    keys.admit(entry(requests_per_minute=2))

    assert (denied.value.status, denied.value.retry_after_seconds) == (429, 30)


def test_the_tokens_of_a_key_are_counted_from_midnight_to_midnight() -> None:
    now = [86_400.0 * 10 + 3_600]
    one = entry(tokens_per_day=100)
    keys = Keys([one], clock=lambda: now[0])

    keys.spend(one, 60)
    keys.admit(one)
    keys.spend(one, 60)
    with pytest.raises(AccessDeniedError) as denied:
        keys.admit(one)
    now[0] += 82_800
    keys.admit(one)

    assert denied.value.retry_after_seconds == 82_800


def test_a_keys_file_holds_hashes_only_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"

    first, second = create_key(path, "alice"), create_key(path, "bob", control=True)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first not in path.read_text() and second not in path.read_text()  # noqa: PT018
    assert load_keys(path).find(first) == KeyEntry(name="alice", sha256=key_hash(first), namespace="alice")
    assert load_keys(path).find(second) == KeyEntry(name="bob", sha256=key_hash(second), namespace="bob", control=True)
    with pytest.raises(SettingsError, match="already has a key 'bob'"):
        create_key(path, "bob")


@pytest.mark.parametrize(("limit", "most"), [("requests_per_minute", 10**9), ("tokens_per_day", 10**15)])
def test_a_limit_of_a_key_lies_between_its_bounds(tmp_path: Path, limit: str, most: int) -> None:
    path = tmp_path / "keys.toml"
    for value in (1, most):
        path.write_text(f'[alice]\nsha256 = "{key_hash("hf-key")}"\n{limit} = {value}')
        assert getattr(load_keys(path).find("hf-key"), limit) == value
    for value in (0, most + 1):
        path.write_text(f'[alice]\nsha256 = "{key_hash("hf-key")}"\n{limit} = {value}')
        with pytest.raises(SettingsError, match=rf"{limit}: must be a whole number from 1 to {most:,}, not {value}"):
            load_keys(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alice = 3", "alice: must be a table with the sha256 of a key"),
        ('[alice]\nsha256 = "x"\nrate = 3', "alice.rate: is not known"),
        ('[alice]\nsha256 = "x"\nrequests_per_minute = 0', "must be a whole number from 1"),
        ('[alice]\nsha256 = "x"\ncontrol = "yes"', "control: must be bool"),
        ("[alice", "keys: "),
    ],
)
def test_an_error_in_a_keys_file_names_its_place(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "keys.toml").write_text(text)

    with pytest.raises(SettingsError) as error:
        load_keys(tmp_path / "keys.toml")

    assert problem in str(error.value)
    assert str(tmp_path / "keys.toml") in str(error.value)


def test_the_control_token_is_made_once_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "store" / "chats.db.token"

    first, made = control_token(path, {})
    again, _ = control_token(path, {})

    assert (made, again, path.read_text().strip()) == (path, first, first)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert control_token(path, {"HOLDFAST_CONTROL_TOKEN": "mine"}) == ("mine", None)


def overtaken(monkeypatch: pytest.MonkeyPatch, work: Callable[[str], str]) -> list[str]:
    """Return what work gives twice at once: the second begins when the first is about to write."""
    write, lock = access_module.write_private_lines, files.try_lock
    pool, second, is_there = ThreadPoolExecutor(1), list[Future[str]](), Event()

    def slow_write(path: Path, lines: Iterable[str]) -> None:
        if second:
            is_there.set()
        else:
            second.append(pool.submit(work, "second"))
            assert is_there.wait(60)
        write(path, lines)

    def noted_lock(descriptor: int) -> bool:
        is_locked = lock(descriptor)
        if not is_locked:
            is_there.set()
        return is_locked

    monkeypatch.setattr(access_module, "write_private_lines", slow_write)
    monkeypatch.setattr(files, "try_lock", noted_lock)
    with pool:
        return [work("first"), second[0].result()]


def test_of_two_keys_that_are_made_at_once_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "keys.toml"

    made = overtaken(monkeypatch, lambda name: create_key(path, name))

    keys = load_keys(path)
    assert [entry.name if (entry := keys.find(key)) else None for key in made] == ["first", "second"]


def test_no_key_is_made_while_another_process_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_TIMEOUT_SECONDS", 0.0)
    held = os.open(tmp_path, os.O_RDONLY)
    assert files.try_lock(held)

    with pytest.raises(SettingsError, match="another process has held the lock"):
        create_key(tmp_path / "keys.toml", "first")

    os.close(held)
    assert not (tmp_path / "keys.toml").exists()


def test_two_gateways_that_start_at_once_have_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "chats.db.token"

    made = overtaken(monkeypatch, lambda _: control_token(path, {})[0])

    assert {*made, path.read_text().strip()} == {made[0]}


@pytest.mark.parametrize(
    ("token", "status"), [("", 401), ("Bearer wrong", 401), ("Basic t0ken", 401), ("Bearer t0ken", 200)]
)
async def test_the_control_api_needs_its_token_on_loopback_too(token: str, status: int) -> None:
    async with FaultyUpstream() as upstream, running_gateway(upstream.url, access=Access(control_token=TOKEN)) as url:
        seen = await ask(url, "GET", "/holdfast/v1/sessions", authorization=token)

    assert seen.status == status


def test_a_key_without_the_right_may_not_use_the_control_api() -> None:
    access = Access(host="0.0.0.0", keys=Keys([entry()]), control_token=TOKEN)  # noqa: S104

    for token, status in (("hf-a", 403), ("t0ken", 401)):
        with pytest.raises(AccessDeniedError) as denied:
            access.check_control({"authorization": f"Bearer {token}"})
        assert denied.value.status == status


async def test_the_tokens_that_a_provider_reports_count_against_the_limit_of_a_key() -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
    message = {"role": "assistant", "content": "Hi"}
    answer = json.dumps(
        {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    ).encode()
    access = Access(keys=Keys([entry(tokens_per_day=100)], clock=lambda: 0.0))  # no day ends meanwhile
    async with (
        FaultyUpstream(FaultyAnswer(pieces=[answer])) as upstream,
        running_gateway(upstream.url, access=access) as url,
    ):
        first = await ask(url, body=CHAT, authorization="Bearer hf-a")
        second = await ask(url, body=CHAT, authorization="Bearer hf-a")

    assert (first.status, second.status, len(upstream.requests)) == (200, 429, 1)
    assert int(second.header("retry-after") or 0) > 0
    assert "has used its 100 tokens of today" in json.loads(second.body)["error"]["message"]


@pytest.mark.parametrize("why", ["store", "encoding", "no list"])
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_an_answer_that_is_not_recorded_counts_against_the_limit_of_a_key(
    tmp_path: Path, why: str, *, is_stream: bool
) -> None:
    usage = {"input_tokens": 90, "output_tokens": 10, "total_tokens": 100}
    response: dict[str, object] = {"id": "r", "object": "response", "status": "completed", "output": [], "usage": usage}
    event = json.dumps({"type": "response.completed", "response": response}).encode()
    whole = json.dumps(response).encode()
    kind = "text/event-stream" if is_stream else "application/json"
    pieces = [b"event: response.completed\ndata: %s\n\n" % event if is_stream else whole]
    body = b'{"model":"m","prompt":{"id":"p"}}' if why == "no list" else b'{"model":"m","input":"hi"}'
    store = f"sqlite:///{tmp_path}/no/chats.db" if why == "store" else "memory://"
    (tmp_path / "no").write_text("a file where the folder should be")
    encoding = {"content_encoding": "br"} if why == "encoding" else {}
    access = Access(keys=Keys([entry(tokens_per_day=100)], clock=lambda: 0.0))  # no day ends meanwhile
    async with (
        FaultyUpstream(FaultyAnswer(headers=[("content-type", kind)], pieces=pieces)) as upstream,
        running_gateway(upstream.url, access=access, store=store) as url,
    ):
        seen = [
            await ask(url, path="/v1/responses", body=body, authorization="Bearer hf-a", **encoding) for _ in range(2)
        ]
        counted = (await ask(url, "GET", "/metrics")).body.decode()

    assert [(one.status, one.is_whole) for one in seen] == [(200, True), (429, True)]
    assert [line for line in counted.splitlines() if line.startswith("holdfast_gateway_answers_total")] == []


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/metrics"])
async def test_a_path_of_the_gateway_itself_is_forwarded_by_no_method(path: str) -> None:
    async with FaultyUpstream() as upstream, running_gateway(upstream.url) as url:
        seen = [await ask(url, method, path, b"") for method in ("POST", "OPTIONS")]

    said = [json.loads(one.body)["error"].partition(";")[0] for one in seen]
    assert ([one.status for one in seen], said, upstream.requests) == (
        [405, 405],
        [f"{path} does not take POST", f"{path} does not take OPTIONS"],
        [],
    )


@pytest.mark.parametrize("path", ["/holdfast", "/holdfast/v1", "/holdfast/v2/sessions", "/holdfast/v1/made/up"])
async def test_a_token_is_never_forwarded_to_a_provider(path: str) -> None:
    async with FaultyUpstream() as upstream, running_gateway(upstream.url, access=Access(control_token=TOKEN)) as url:
        seen = [await ask(url, method, path, b"", authorization=f"Bearer {TOKEN}") for method in ("GET", "POST")]

    assert ({one.status for one in seen} <= {404, 405}, upstream.requests) == (True, [])


def test_what_is_allowed_is_said_with_names() -> None:
    with pytest.raises(TypeError):
        Access("127.0.0.1")  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("name", ["", "a b", "é", "a/b", "-_"])
def test_the_name_of_a_key_has_letters_digits_and_dashes_only(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="must be of letters, digits, - and _"):
        create_key(tmp_path / "keys.toml", name)

    assert list(tmp_path.iterdir()) == []


def status_of(access: Access, key: str) -> int:
    """Return the status of a request with a key: 200, or that of its refusal."""
    try:
        access.identify({"x-api-key": key}, "")
    except AccessDeniedError as denied:
        return denied.status
    return 200


def test_a_changed_keys_file_counts_from_the_next_request_on(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    alice = create_key(path, "alice")
    access = Access(host="0.0.0.0", keys=load_keys(path))  # noqa: S104
    first = path.read_text()
    bob = create_key(path, "bob")

    assert [status_of(access, key) for key in (alice, bob)] == [200, 200]
    path.write_text(path.read_text().removeprefix(first))
    assert [status_of(access, key) for key in (alice, bob)] == [401, 200]
    path.write_text("[bob\n")
    assert [status_of(access, key) for key in (alice, bob)] == [401, 200]
    path.unlink()
    assert [status_of(access, key) for key in (alice, bob)] == [401, 200]
    path.write_text(f"{first}requests_per_minute = 1\n")
    assert [status_of(access, key) for key in (alice, bob, alice)] == [200, 401, 429]


def test_what_a_key_has_used_stays_known_while_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    alice = create_key(path, "alice")
    limited = f"{path.read_text()}tokens_per_day = 10\n"
    path.write_text(limited)
    access = Access(keys=load_keys(path))
    caller = access.identify({"x-api-key": alice}, "")
    path.write_text("")
    refused = status_of(access, alice)
    access.spend(caller, 10)  # of an answer that began before
    path.write_text(limited)

    assert (refused, status_of(access, alice)) == (401, 429)
