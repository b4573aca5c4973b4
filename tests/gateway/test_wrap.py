"""`holdfast wrap` starts an agent behind the gateway and changes nothing else."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from holdfast.apps.cli import wrap as wrap_module
from holdfast.apps.cli.main import main
from holdfast.apps.cli.wrap import DEFAULT_PORT, PROGRAMS, RUN_HOLDFAST, is_gateway
from holdfast.apps.cli.wrap import _own_addresses as own_addresses
from holdfast.apps.cli.wrap import _run_program as run_program
from holdfast.errors import SettingsError
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from tests.gateway.serving import RawClient

AGENT = """\
#!{python}
import json, os, sys
from urllib.request import urlopen
given = next((one for one in sys.argv if "base_url" in one), "")
url = os.environ.get("ANTHROPIC_BASE_URL") or given.split("base_url=")[1].split(chr(34))[1].removesuffix("/v1")
print(json.dumps({{"arguments": sys.argv[1:], "url": url, "health": urlopen(url + "/health").status}}))
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def no_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what the environment of the test run says."""
    for variable in {one for known in PROGRAMS.values() for one in known.addresses()}:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for what a gateway says of itself as long as a busy machine takes."""
    monkeypatch.setattr(wrap_module, "HEALTH_SECONDS", 60.0)


def wrapped(folder: Path, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "HOME": str(home), "PATH": path, "HOLDFAST_STORE": f"sqlite:///{folder}/chats.db"}
    command = [sys.executable, "-c", RUN_HOLDFAST, "wrap", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_an_agent_gets_the_gateways_address_and_its_own_arguments(tmp_path: Path, name: str) -> None:
    program = tmp_path / "bin" / name
    program.parent.mkdir()
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o700)

    done = wrapped(tmp_path, name, "--budget", "9000", "--", "-p", "What is this?", path=str(program.parent))

    assert done.stdout, done.stderr
    seen = json.loads(done.stdout)
    assert (done.returncode, seen["health"], seen["arguments"][-2:]) == (7, 200, ["-p", "What is this?"])
    port = seen["url"].rpartition(":")[2]
    assert done.stderr.startswith(
        f"holdfast: gateway: {seen['url']}; "
        f"by hand: holdfast gateway --port={port} --budget=9000, and in another terminal: "
    )
    assert sorted(one.name for one in (tmp_path / "home").rglob("*") if one.is_file()) == []


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["claude", "-p", "What is this?"], "claude -- -p 'What is this?'"),
        (["claude", "-p", "--", "What is this?"], "claude -- -p 'What is this?'"),
        (["codex", "--budget", "9000", "exec", "Run it"], "codex --budget 9000 -- exec 'Run it'"),
    ],
)
def test_an_agents_argument_that_does_not_follow_the_dashes_is_refused_with_the_command_that_works(
    tmp_path: Path, arguments: list[str], command: str
) -> None:
    done = wrapped(tmp_path, *arguments, path=str(tmp_path))

    told = f"the agent's own arguments follow after --: holdfast wrap {command}"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"holdfast: wrap: {told}\n")


def test_a_terminal_that_is_closed_ends_the_gateway_too(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text(
        f"#!{sys.executable}\nimport os, time\nprint(os.environ['ANTHROPIC_BASE_URL'], flush=True)\ntime.sleep(60)\n"
    )
    program.chmod(0o700)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": str(tmp_path)}
    command = [sys.executable, "-c", RUN_HOLDFAST, "wrap", "claude", "--budget", "9000"]
    pipe = subprocess.PIPE
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup`, if it runs the tests, makes programs ignore it
    with subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        signal.signal(signal.SIGHUP, before)
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        was_running = is_gateway(url)
        os.killpg(process.pid, signal.SIGHUP)
        code = process.wait(60)

    assert (was_running, code, is_gateway(url)) == (True, 128 + signal.SIGHUP, False)


def test_a_signal_in_the_moment_in_which_the_agent_starts_reaches_it(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text("#!/bin/sh\nkill -TERM $PPID\nexec /bin/sleep 60\n")
    program.chmod(0o700)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": str(tmp_path)}
    command = [sys.executable, "-c", RUN_HOLDFAST, "wrap", "claude", "--budget", "9000"]

    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)

    assert done.returncode == 128 + signal.SIGTERM


async def test_a_signal_that_comes_before_the_agent_is_known_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.create_subprocess_exec

    async def starting(*words: str, **settings: Any) -> asyncio.subprocess.Process:
        process = await start(*words, **settings)
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(10):  # the event loop reads which signal came, and calls who waits for it
            await asyncio.sleep(0)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", starting)
    # Where nobody waits for the signal, the agent goes on to its end.
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    try:
        code = await run_program(["/bin/sleep", "3"], {})
    finally:
        signal.signal(signal.SIGTERM, before)

    assert code == 128 + signal.SIGTERM


async def test_a_wrap_that_is_killed_ends_its_gateway_which_finishes_its_streams(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text(f"#!{sys.executable}\nimport os\nprint(os.environ['ANTHROPIC_BASE_URL'], flush=True)\ninput()\n")
    program.chmod(0o700)
    headers, first = (("content-type", "text/event-stream"),), b"event: ping\ndata: {}\n\n"
    at = len(FaultyAnswer(headers=headers, framing="close").encoded()[0]) + len(first)
    answer = FaultyAnswer(headers=headers, pieces=[first, first], framing="close", fault="stall", at=at)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": str(tmp_path)}
    async with FaultyUpstream(answer) as upstream:
        command = [sys.executable, "-c", RUN_HOLDFAST, "wrap", "claude", "--upstream", f"anthropic={upstream.url}"]
        with subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
            assert process.stdout is not None
            url = (await asyncio.to_thread(process.stdout.readline)).strip()
            client = RawClient(url)
            body = b'{"model":"claude-sonnet-4-5","stream":true,"messages":[{"role":"user","content":"hi"}]}'
            await client.send("POST", "/v1/messages", body)
            seen = await client.read(until=first)
            process.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(60):
                    while await asyncio.to_thread(is_gateway, url):
                        pass
            is_serving, is_streaming = is_gateway(url), not client.is_at_end
            await upstream.drop_connections()
            await client.read_more()
            client.leave()

    assert (seen.status, bytes(client.body), is_serving, is_streaming) == (200, first, False, True)


def test_an_agent_reaches_the_gateway_past_a_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "intranet.example")

    done = wrapped(tmp_path, "claude", "--budget", "9000", path=str(program.parent))

    assert done.stdout, done.stderr
    assert json.loads(done.stdout)["health"] == 200
    assert "NO_PROXY=intranet.example,127.0.0.1,localhost no_proxy=intranet.example" in done.stderr


def test_the_command_by_hand_names_a_key_and_does_not_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "copilot"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o700)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    monkeypatch.delenv("COPILOT_PROVIDER_API_KEY", raising=False)

    done = wrapped(tmp_path, "copilot", "--upstream", "openai=http://127.0.0.1:9/v1", path=str(program.parent))

    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith('/v1 COPILOT_PROVIDER_API_KEY="$OPENAI_API_KEY" copilot\n')
    assert "sk-of-the-user" not in done.stderr


@pytest.mark.parametrize(
    ("options", "upstream"),
    [([], "anthropic=http://127.0.0.1:9/corp"), (["--upstream", "anthropic=http://127.0.0.1:9"], None)],
)
def test_an_agents_own_address_is_where_a_new_gateway_sends_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], upstream: str | None
) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o700)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9/corp")

    done = wrapped(tmp_path, "claude", "--budget", "9000", *options, path=str(program.parent))

    assert done.returncode == 0, done.stderr
    shown = done.stderr.partition(", and in another terminal")[0].split(" ")
    upstreams = [one.removeprefix("--upstream=") for one in shown if one.startswith("--upstream=")]
    assert upstreams == [upstream or options[-1]]


@pytest.mark.parametrize(
    ("name", "variables", "found"),
    [
        ("claude", {"ANTHROPIC_BASE_URL": "http://localhost:8787", "OPENAI_BASE_URL": "http://127.0.0.1:9"}, {}),
        (
            "copilot",
            {"COPILOT_PROVIDER_BASE_URL": "http://127.0.0.1:9/v1"},
            {"COPILOT_PROVIDER_BASE_URL": "--upstream=openai=http://127.0.0.1:9/v1"},
        ),
        (
            "copilot",
            {"COPILOT_PROVIDER_TYPE": "anthropic", "COPILOT_PROVIDER_BASE_URL": "http://127.0.0.1:9"},
            {"COPILOT_PROVIDER_BASE_URL": "--upstream=anthropic=http://127.0.0.1:9"},
        ),
        (
            "aider",
            {"OPENAI_API_BASE": "http://127.0.0.1:9/v1", "ANTHROPIC_BASE_URL": "http://127.0.0.1:8787"},
            {"OPENAI_API_BASE": "--upstream=openai=http://127.0.0.1:9/v1"},
        ),
    ],
)
def test_every_agent_has_variables_of_its_own_for_its_address_and_the_gateways_is_none(
    monkeypatch: pytest.MonkeyPatch, name: str, variables: dict[str, str], found: dict[str, str]
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)

    assert own_addresses(PROGRAMS[name].addresses(), set(), DEFAULT_PORT) == found


def test_copilot_gets_an_address_that_fits_the_api_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("COPILOT_PROVIDER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    seen: list[object] = []
    for kind in ("openai", "anthropic"):
        monkeypatch.setenv("COPILOT_PROVIDER_TYPE", kind)
        seen.append(PROGRAMS["copilot"].environment("http://127.0.0.1:8787"))

    assert seen == [
        {"COPILOT_PROVIDER_BASE_URL": "http://127.0.0.1:8787/v1"},
        {"COPILOT_PROVIDER_BASE_URL": "http://127.0.0.1:8787"},
    ]


OPENCODE = """\
#!{python}
import os
print(os.environ["OPENCODE_CONFIG_CONTENT"])
"""


@pytest.mark.parametrize("own_url", [None, "http://127.0.0.1:9/v1"])
def test_what_the_environment_says_of_opencodes_providers_is_kept_and_they_are_reached_through_the_gateway(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], own_url: str | None
) -> None:
    models = {"gpt-5": {"name": "Mine"}}
    options = {"timeout": 5} | ({"baseURL": own_url} if own_url else {})
    known = {"theme": "dark", "provider": {"openai": {"models": models, "options": options}, "local": {"npm": "x"}}}
    monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", json.dumps(known))

    environment = PROGRAMS["opencode"].environment("http://127.0.0.1:8787")

    gateway = "http://127.0.0.1:8787/v1"
    assert json.loads(environment["OPENCODE_CONFIG_CONTENT"]) == {
        "theme": "dark",
        "provider": {
            "openai": {"models": models, "options": {"timeout": 5, "baseURL": own_url or gateway}},
            "local": {"npm": "x"},
            "anthropic": {"options": {"baseURL": gateway}},
        },
    }
    assert ("openai a baseURL of its own" in capfd.readouterr().err) == (own_url is not None)


@pytest.mark.parametrize("content", ["{ // mine\n}", "[]", '{"provider": [1]}', "[" * 100_000])
def test_a_configuration_of_opencode_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", content)

    with pytest.raises(SettingsError) as wrong:
        PROGRAMS["opencode"].environment("http://127.0.0.1:8787")

    assert str(wrong.value).startswith("OPENCODE_CONFIG_CONTENT: ")


def test_the_users_own_configuration_of_opencode_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "opencode"
    program.write_text(OPENCODE.format(python=sys.executable))
    program.chmod(0o700)
    own = {"provider": {"other": {"options": {"apiKey": "of-another"}}}}
    monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", json.dumps(own))

    done = wrapped(tmp_path, "opencode", "--budget", "9000", path=str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["provider"]["other"] == {"options": {"apiKey": "of-another"}}
    assert done.stderr.endswith(", and in another terminal: OPENCODE_CONFIG_CONTENT=… opencode\n")


def test_an_agent_that_is_not_installed_is_named_with_the_way_to_install_it(tmp_path: Path) -> None:
    done = wrapped(tmp_path, "gemini", path=str(tmp_path))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (f"holdfast: wrap: there is no program 'gemini' on the path; {PROGRAMS['gemini'].install}\n")


def test_a_gateway_that_does_not_start_says_why_once(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o700)

    done = wrapped(tmp_path, "claude", "--policy", "other", path=str(program.parent))

    assert (done.returncode, done.stderr.count("holdfast:"), done.stderr.count("\n")) == (2, 1, 1)
    assert done.stderr.startswith("holdfast: gateway: --policy: 'other' is not known")


class Health(BaseHTTPRequestHandler):
    """Answers as a gateway does that is asked how it is."""

    content = b'{"status": "ok", "server": "holdfast"}'

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the standard library
        del format, args


def test_a_gateway_that_runs_is_used_and_goes_on_after_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "claude"
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server, ThreadPoolExecutor() as threads:
        threads.submit(server.serve_forever)
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            code = main(["wrap", "claude", "--port", str(server.server_port), "--", "-p", "hello"])
            is_running = is_gateway(url)
        finally:
            server.shutdown()

    out, told = capfd.readouterr()
    assert (code, is_running) == (7, True)
    assert json.loads(out) == {"arguments": ["-p", "hello"], "url": url, "health": 200}
    assert told == (
        f"holdfast: ANTHROPIC_BASE_URL is set, but the gateway that runs at {url} has its own --upstream\n"
        f"holdfast: gateway: {url}; by hand: ANTHROPIC_BASE_URL={url} CLAUDE_CODE_GATEWAY_HINT_HEADERS=1 "
        "claude -p hello\n"
    )


@pytest.mark.parametrize("said", [b'{"status": "ok"}', b'["status", "holdfast"]', b"status: holdfast", b"[" * 900])
def test_another_program_that_answers_at_the_port_gets_no_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], said: bytes
) -> None:
    class Other(Health):
        """Another program on this port, which has a `/health`, too."""

        content = said

    program = tmp_path / "claude"
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:///{tmp_path}/chats.db")
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server, ThreadPoolExecutor() as threads:
        threads.submit(server.serve_forever)
        monkeypatch.setattr(wrap_module, "DEFAULT_PORT", server.server_port)
        try:
            code = main(["wrap", "claude"])
        finally:
            server.shutdown()

    seen = json.loads(capfd.readouterr().out)
    assert (code, seen["health"], seen["url"] == f"http://127.0.0.1:{server.server_port}") == (7, 200, False)


def test_a_gateway_on_this_machine_is_not_looked_for_at_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server, ThreadPoolExecutor() as threads:
        threads.submit(server.serve_forever)
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("http_proxy", url)  # it answers as a gateway for whatever it is asked
        try:
            is_here, is_elsewhere = is_gateway("http://127.0.0.1:1"), is_gateway("http://gateway.example")
        finally:
            server.shutdown()

    assert (is_here, is_elsewhere) == (False, True)
