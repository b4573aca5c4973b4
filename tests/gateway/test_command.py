"""`holdfast gateway` as a program."""

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from starlette.applications import Starlette

from holdfast import Session
from holdfast.apps.cli.main import main
from holdfast.apps.gateway.access import create_key
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.apps.serving import COLLECTION_THRESHOLDS, AppServer, serve_app
from holdfast.stores.memory import MemoryStore
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.gateway.serving import RawClient, ask
from tests.programs import RunningProgram, start_program

Program: TypeAlias = "subprocess.Popen[str] | RunningProgram"

CHAT = b'{"model":"gpt-5","stream":true,"messages":[{"role":"user","content":"hi"}]}'
STREAM = (("content-type", "text/event-stream"),)
SSE = [b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n', b"data: [DONE]\n\n"]


@asynccontextmanager
async def started(
    folder: Path, *arguments: str, hang_up: signal.Handlers = signal.SIG_DFL, is_fresh: bool = False
) -> AsyncGenerator[tuple[Program, str, list[str]]]:
    """Start the program, and yield it with its address and the lines before that."""
    command = ("gateway", "--port", "0", "--store", f"sqlite:///{folder}/a.db", *arguments)
    before = signal.signal(signal.SIGHUP, hang_up)  # `nohup`, if it runs the tests, makes programs ignore it
    process = start_program(*command, env={**os.environ, "HOME": str(folder)}, folder=Path.cwd(), is_fresh=is_fresh)
    signal.signal(signal.SIGHUP, before)
    with process:
        assert process.stderr is not None
        lines: list[str] = []
        try:
            while not (line := (await asyncio.to_thread(process.stderr.readline)).strip()).startswith("listening on "):
                assert line, lines
                lines.append(line)
            yield process, line.removeprefix("listening on "), lines
        finally:
            if process.poll() is None:
                process.kill()


async def ended(process: Program) -> int:
    """Wait until the program has ended, and return its exit code."""
    return await asyncio.to_thread(process.wait, 20)


async def assert_it_goes_on(process: Program) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        await asyncio.to_thread(process.wait, 0.5)


@pytest.mark.parametrize("stopped_by", [signal.SIGTERM, signal.SIGHUP])
async def test_it_says_where_it_listens_and_where_its_token_is_and_finishes_streams_before_it_stops(
    tmp_path: Path, stopped_by: signal.Signals
) -> None:
    at = len(FaultyAnswer(headers=STREAM, framing="close").encoded()[0]) + len(SSE[0])
    answer = FaultyAnswer(headers=STREAM, pieces=SSE, framing="close", fault="stall", at=at)
    async with (
        FaultyUpstream(answer) as upstream,
        started(tmp_path, "--upstream", f"openai={upstream.url}/v1", is_fresh=stopped_by == signal.SIGTERM) as one,
    ):
        process, url, lines = one
        client = RawClient(url)
        await client.send("POST", "/v1/chat/completions", CHAT)
        first = await client.read(until=SSE[0])
        process.send_signal(stopped_by)
        await assert_it_goes_on(process)
        await upstream.drop_connections()
        code = await ended(process)
        client.leave()

    assert (first.status, first.body, code) == (200, SSE[0], 0)
    token_file = tmp_path / "a.db.token"
    assert lines == [f"holdfast: the token of the control API, and of the pages at /ui, is in {token_file}"]
    assert token_file.stat().st_mode & 0o777 == 0o600


async def test_a_gateway_beyond_loopback_makes_no_token_and_names_the_key_that_its_control_api_needs(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys.toml"
    key = create_key(keys, "ops", control=True)

    async with started(tmp_path, "--host", "0.0.0.0", "--keys", str(keys)) as (_, url, lines):  # noqa: S104
        refused = await ask(url, "GET", "/holdfast/v1/sessions", authorization="Bearer t0ken")
        answered = await ask(url, "GET", "/holdfast/v1/sessions", authorization=f"Bearer {key}")

    assert (lines, [*tmp_path.glob("*.token")]) == ([], [])
    assert (refused.status, json.loads(refused.body), answered.status) == (
        401,
        {"error": "the control API needs a key with control = true: Authorization: Bearer KEY"},
        200,
    )


async def test_a_session_that_is_deleted_over_http_takes_its_files_along(tmp_path: Path) -> None:
    async with Session.open("report", store=f"sqlite:///{tmp_path}/a.db") as session:
        await session.record([{"role": "user", "content": "hi"}])
    folders = [
        tmp_path / ".holdfast" / kind / name for kind in ("checkpoints", "attachments") for name in ("report", "x")
    ]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "001.md").write_text("what was said")

    async with started(tmp_path) as (_, url, _):
        token = (tmp_path / "a.db.token").read_text().strip()
        path = "/holdfast/v1/sessions/report"
        deleted = await ask(url, "DELETE", path, authorization=f"Bearer {token}")

    assert (deleted.status, json.loads(deleted.body)) == (200, {"deleted": True})
    assert [folder.exists() for folder in folders] == [False, True, False, True]


async def test_sessions_that_expire_in_a_gateway_take_their_files_along() -> None:
    day, now, deleted, store = 86_400_000, [1_900_000_000_000], list[str](), MemoryStore()
    async with Session.open("old", store=store, policy="cowagent", clock=lambda: now[0]) as session:
        await session.record([{"role": "user", "content": "hi"}])
    recorder = Recorder(store, policy="cowagent", delete_files=deleted.append, clock=lambda: now[0])

    for name, days in (("a", 31), ("b", 2)):
        now[0] += days * day
        async with recorder.session(name):
            pass
    await recorder.close()

    assert (deleted, await store.length("old")) == (["old"], 0)


async def test_a_gateway_under_nohup_goes_on_after_its_terminal_is_closed(tmp_path: Path) -> None:
    async with started(tmp_path, hang_up=signal.SIG_IGN, is_fresh=True) as (process, url, _):
        process.send_signal(signal.SIGHUP)
        seen = [(await ask(url, "GET", "/health")).status for _ in range(2)]

    assert (seen, process.poll()) == ([200, 200], -signal.SIGKILL)


async def test_a_second_interrupt_cuts_running_answers_stores_their_parts_and_says_nothing(tmp_path: Path) -> None:
    at = len(FaultyAnswer(headers=STREAM, framing="close").encoded()[0]) + len(SSE[0])
    answer = FaultyAnswer(headers=STREAM, pieces=SSE, framing="close", fault="stall", at=at)
    async with FaultyUpstream(answer) as upstream, started(tmp_path, "--upstream", f"openai={upstream.url}/v1") as one:
        process, url, _ = one
        client = RawClient(url)
        await client.send("POST", "/v1/chat/completions", CHAT, {"x-holdfast-session": "s"})
        await client.read(until=SSE[0])
        process.send_signal(signal.SIGINT)
        await assert_it_goes_on(process)
        process.send_signal(signal.SIGINT)
        code = await ended(process)
        assert process.stderr is not None
        printed = await asyncio.to_thread(process.stderr.read)
        client.leave()
    async with Session.open("s", store=f"sqlite:///{tmp_path}/a.db") as session:
        stored = [one["content"] for one in await session.messages_at(0, len(session))]

    assert (code, printed, stored) == (0, "", ["hi", "Hi"])


async def test_a_recorded_conversation_is_there_after_a_kill(tmp_path: Path) -> None:
    answer = FaultyAnswer(headers=STREAM, pieces=SSE, framing="chunked")
    async with FaultyUpstream(answer) as upstream:
        option = ("--upstream", f"openai={upstream.url}/v1")
        async with started(tmp_path, *option) as (process, url, _):
            await ask(url, body=CHAT, x_holdfast_session="s")
            process.kill()
            await ended(process)
        async with started(tmp_path, *option) as (_, url, _):
            token = (tmp_path / "a.db.token").read_text().strip()
            seen = await ask(url, "GET", "/holdfast/v1/sessions/s/messages", authorization=f"Bearer {token}")

    assert [one["message"]["content"] for one in json.loads(seen.body)["messages"]] == ["hi", "Hi"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "--host: 0.0.0.0 can be reached from elsewhere, which needs --keys FILE"),  # noqa: S104
        (["--upstream", "local"], "--upstream: 'local' must be NAME=URL"),
        (["--upstream", "local=ftp://h"], "upstream: local: 'ftp://h' is not a base URL"),
        (["--upstream", "local=http://[::1"], "upstream: local: 'http://[::1' is not a base URL"),
        (["--upstream", "local=http://h:99999/v1"], "upstream: local: 'http://h:99999/v1' is not a base URL"),
        (["--keys", "/nonexistent/keys.toml"], "keys: No such file or directory"),
        (["--policy", "other"], "'other' is not known; choose one of: default"),
        (["--budget", "much"], "--budget: "),
    ],
)
def test_a_wrong_option_is_one_line_on_standard_error(
    arguments: Sequence[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["gateway", "--store", f"sqlite:///{tmp_path}/a.db", *arguments])

    [line] = capsys.readouterr().err.splitlines()
    assert code == 2
    assert message in line


def test_background_jobs_of_a_gateway_need_a_store_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))

    code = main(["gateway", "--store", "memory://", "--jobs", "--port", "0"])

    assert (code, capsys.readouterr().err.splitlines()[-1]) == (
        2,
        "holdfast: store: background jobs need a store on disk: postgresql://… or sqlite:///file",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.token"]


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_an_ipv6_address_may_have_brackets_and_is_shown_with_them(host: str, tmp_path: Path) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")

    async with started(tmp_path, "--host", host) as (_, url, _):
        _, _, port = url.rpartition(":")
        seen = await ask(url, "GET", "/health")

    assert (url, seen.status) == (f"http://[::1]:{port}", 200)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_in_use_is_one_line_on_standard_error(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("there is no IPv6 here")
    with server as taken:
        port = taken.getsockname()[1]
        code = main(["gateway", "--store", f"sqlite:///{tmp_path}/a.db", "--host", host, "--port", str(port)])

    line = capsys.readouterr().err.splitlines()[-1]
    assert code == 2
    shown = f"[{host}]" if ":" in host else host
    assert line.startswith(f"holdfast: gateway: cannot listen on {shown}:{port}: ")
    assert line.endswith("choose another with --port and --host")


def test_a_key_is_printed_once_and_its_hash_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["gateway", "key", "alice", "--keys", str(tmp_path / "keys.toml")])

    key = capsys.readouterr().out.strip()
    assert (code, key[:3], key in (tmp_path / "keys.toml").read_text()) == (0, "hf-", False)


def test_the_collector_rests_until_the_gateway_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, tuple[int, int, int]]] = []
    startup = AppServer.startup

    async def noted(self: AppServer, sockets: list[socket.socket] | None = None) -> None:
        seen.append((gc.isenabled(), gc.get_threshold()))
        await startup(self, sockets)
        seen.append((gc.isenabled(), gc.get_threshold()))
        self.should_exit = True

    monkeypatch.setattr(AppServer, "startup", noted)
    monkeypatch.setenv("HOLDFAST_CONTROL_TOKEN", "t")
    thresholds = gc.get_threshold()
    try:
        code = main(["gateway", "--store", f"sqlite:///{tmp_path}/a.db", "--port", "0"])
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()

    assert (code, gc.isenabled()) == (0, True)
    assert seen == [(False, thresholds), (True, COLLECTION_THRESHOLDS)]


async def test_an_interrupt_before_a_server_listens_ends_it_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, addresses = Starlette(), list[str]()

    async def serve() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # as asyncio does at Ctrl-C; it is raised at the next await
        return await serve_app(
            app, name="view", host="127.0.0.1", port=0, remedy="", drain_seconds=1, announce=addresses.append
        )

    before = asyncio.all_tasks()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(serve())

    assert (asyncio.all_tasks() - before, addresses, caplog.messages) == (set(), [], [])


def test_a_wrong_policy_is_named_by_the_option_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["gateway", "--store", "memory://", "--policy", "nope"])

    problem = "'nope' is not known; choose one of: default, co-cli, inkeep, copilot, cowagent"
    assert (code, capsys.readouterr().err) == (2, f"holdfast: --policy: {problem}\n")


async def test_a_client_that_leaves_in_its_body_is_no_error_in_the_log(tmp_path: Path) -> None:
    async with FaultyUpstream() as upstream, started(tmp_path, "--upstream", f"openai={upstream.url}/v1") as one:
        process, url, _ = one
        token = (tmp_path / "a.db.token").read_text().strip()
        await ask(url, body=CHAT, x_holdfast_session="s")
        for path in ("/ui/sign-in", "/holdfast/v1/sessions/s/undo", "/v1/files", "/v1/chat/completions"):
            client = RawClient(url)
            headers = {"authorization": f"Bearer {token}", "content-length": "100", "expect": "100-continue"}
            await client.send("POST", path, b"", headers)
            begun = await client.read(until=b"")  # it is told to go on once its body is read
            client.leave()
            assert begun.status == 100
        process.send_signal(signal.SIGTERM)
        code = await ended(process)
        assert process.stderr is not None
        logged = await asyncio.to_thread(process.stderr.read)

    assert (logged, code) == ("", 0)
