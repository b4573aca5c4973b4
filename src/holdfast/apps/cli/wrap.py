"""`holdfast wrap`: start a coding agent behind the gateway, for this one process.

No file of the agent is changed: its address is set in the environment, or by arguments. A gateway that runs already is
used; otherwise one runs as long as the agent does.
"""

import argparse
import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, build_opener, getproxies

from holdfast.apps.cli.output import port_number, warn
from holdfast.errors import SettingsError
from holdfast.models.http_endpoint import is_loopback, split_http_url
from holdfast.stores.base import Store
from holdfast.wire.json_reader import as_object, is_mapping

DEFAULT_PORT = 8787
HEALTH_SECONDS = 1.0
OPENCODE_VARIABLE = "OPENCODE_CONFIG_CONTENT"
"""Holds a configuration that opencode lays over those of its files."""
GATEWAY_START_SECONDS = 30.0
LISTENING = "listening on "
RUN_HOLDFAST = "import sys; from holdfast.apps.cli.main import main; sys.exit(main())"
"""Runs this installation, wherever its command is."""
RUN_GATEWAY = f"from holdfast.apps.cli.wrap import stop_with_parent; stop_with_parent(); {RUN_HOLDFAST}"


@dataclass(frozen=True, slots=True)
class WrappedProgram:
    """How an agent is told the address of its provider."""

    command: str
    install: str
    environment: Callable[[str], Mapping[str, str]]
    arguments: Callable[[str], Sequence[str]] = lambda _: ()
    addresses: Callable[[], Mapping[str, str]] = dict[str, str]
    """By the variables that give it an address, the providers that are reached there."""


def _codex_arguments(url: str) -> list[str]:
    provider = f'{{name="holdfast",base_url="{url}/v1",env_key="OPENAI_API_KEY",wire_api="responses"}}'
    return ["-c", "model_provider=holdfast", "-c", f"model_providers.holdfast={provider}"]


def _copilot_addresses() -> dict[str, str]:
    speaks_anthropic = os.environ.get("COPILOT_PROVIDER_TYPE") == "anthropic"
    return {"COPILOT_PROVIDER_BASE_URL": "anthropic" if speaks_anthropic else "openai"}


def _copilot_environment(url: str) -> dict[str, str]:
    [(variable, provider)] = _copilot_addresses().items()
    key = os.environ.get("COPILOT_PROVIDER_API_KEY") or os.environ.get(f"{provider.upper()}_API_KEY")
    address = url if provider == "anthropic" else f"{url}/v1"
    return {variable: address, **({"COPILOT_PROVIDER_API_KEY": key} if key else {})}


def _around_proxies() -> dict[str, str]:
    """Return what keeps a program from asking a proxy of the environment for the gateway on this machine."""
    proxies = getproxies()
    excepted = proxies.get("no", "")
    if not {"http", "all"} & proxies.keys() or excepted == "*":
        return {}
    names = ",".join(filter(None, (excepted, "127.0.0.1,localhost")))
    return {"NO_PROXY": names, "no_proxy": names}


def _opencode_environment(url: str) -> dict[str, str]:
    try:
        known: object = json.loads(os.environ.get(OPENCODE_VARIABLE) or "{}")
    except (ValueError, RecursionError) as error:
        raise SettingsError(OPENCODE_VARIABLE, f"is not JSON: {error}") from error
    if not is_mapping(known) or not is_mapping(providers := known.get("provider", {})):
        raise SettingsError(OPENCODE_VARIABLE, "must be a JSON object, and its member provider, too")
    reached: dict[str, object] = {**providers}
    for name in ("openai", "anthropic"):
        given = as_object(providers.get(name))
        options = as_object(given.get("options"))
        if options.get("baseURL"):
            warn(f"{OPENCODE_VARIABLE} gives {name} a baseURL of its own: its requests do not go through the gateway")
        reached[name] = {**given, "options": {"baseURL": f"{url}/v1", **options}}
    return {OPENCODE_VARIABLE: json.dumps({**known, "provider": reached})}


PROGRAMS = {
    "claude": WrappedProgram(
        "claude",
        "npm install -g @anthropic-ai/claude-code",
        lambda url: {"ANTHROPIC_BASE_URL": url, "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1"},
        addresses=lambda: {"ANTHROPIC_BASE_URL": "anthropic"},
    ),
    "codex": WrappedProgram(
        "codex",
        "npm install -g @openai/codex",
        lambda _: {},
        _codex_arguments,
        addresses=lambda: {"OPENAI_BASE_URL": "openai"},
    ),
    "copilot": WrappedProgram(
        "copilot", "npm install -g @github/copilot", _copilot_environment, addresses=_copilot_addresses
    ),
    "gemini": WrappedProgram(
        "gemini",
        "npm install -g @google/gemini-cli",
        lambda url: {"GOOGLE_GEMINI_BASE_URL": url},
        addresses=lambda: {"GOOGLE_GEMINI_BASE_URL": "gemini"},
    ),
    "opencode": WrappedProgram("opencode", "npm install -g opencode-ai", _opencode_environment),
    "aider": WrappedProgram(
        "aider",
        "pip install aider-chat",
        lambda url: {"OPENAI_API_BASE": f"{url}/v1", "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_BASE": url},
        addresses=lambda: {
            "OPENAI_API_BASE": "openai",
            "ANTHROPIC_BASE_URL": "anthropic",
            "ANTHROPIC_API_BASE": "anthropic",
        },
    ),
}


async def run_wrapped(args: argparse.Namespace, store: Store) -> int:
    """Start a coding agent behind the gateway; its conversations are recorded and never outgrow the window.

    Only this one process is told the address; no file is changed. Its own arguments follow after `--`. A gateway on
    port 8787 is used if one runs there, otherwise one is started and ends with the agent. With --policy, --budget,
    --upstream or --store one is always started.

    holdfast wrap claude -- -p "What does this project do?"
    holdfast wrap codex --budget 100000 -- exec "Run the tests"
    """
    del store
    program = PROGRAMS[args.program]
    found = shutil.which(program.command)
    if found is None:
        raise SettingsError("wrap", f"there is no program {program.command!r} on the path; {program.install}")
    async with _gateway(args, program.addresses()) as (url, start_by_hand):
        environment = {**program.environment(url), **_around_proxies()}
        arguments = [*program.arguments(url), *args.wrapped]
        shown = [_assignment(name, value) for name, value in environment.items()]
        by_hand = " ".join([*shown, program.command, *map(shlex.quote, arguments)])
        warn(f"gateway: {url}; by hand: {start_by_hand}{by_hand}")
        return await _run_program([found, *arguments], environment)


async def _run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program on this terminal, and return its exit code; what the user interrupts is the program."""
    loop, early = asyncio.get_running_loop(), list[signal.Signals]()
    process: asyncio.subprocess.Process | None = None

    def pass_on(number: signal.Signals) -> None:
        if process is None:
            early.append(number)
        elif number != signal.SIGINT:  # which the terminal has sent to it, too
            _pass_on(process, number)

    # Before the program starts: what it prints at once may be why somebody ends it.
    with suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, pass_on, signal.SIGINT)
        loop.add_signal_handler(signal.SIGTERM, pass_on, signal.SIGTERM)
        # A terminal that is closed ends the agent. The gateway, which has no terminal, must be ended here.
        if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, pass_on, signal.SIGHUP)
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **environment})
    for number in early:
        _pass_on(process, number)
    code = await process.wait()
    return 128 - code if code < 0 else code


def _pass_on(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a program a signal, unless it has ended.

    `Process.send_signal` would wait for a program that is ending, and asyncio then never learns its exit code.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


@asynccontextmanager
async def _gateway(args: argparse.Namespace, addresses: Mapping[str, str]) -> AsyncGenerator[tuple[str, str]]:
    """Yield the address of a gateway: the one that runs, or one that runs as long as it is needed.

    With it comes the command that starts the second kind by hand, which is gone when the agent ends. A new one sends
    requests where the agent would send them by itself: `addresses` are the variables that say so, and the providers.
    """
    port = args.port or DEFAULT_PORT
    url = f"http://127.0.0.1:{port}"
    is_running = await asyncio.to_thread(is_gateway, url)
    options = [f"--{name}={value}" for name in ("store", "policy", "budget") if (value := getattr(args, name, None))]
    options += [f"--upstream={one}" for one in args.upstream or ()]
    given = {one.partition("=")[0].strip() for one in args.upstream or ()}
    own = await asyncio.to_thread(_own_addresses, addresses, given, port)
    if is_running and not options:
        for variable in own:
            warn(f"{variable} is set, but the gateway that runs at {url} has its own --upstream")
        yield url, ""
        return
    options += own.values()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", RUN_GATEWAY, "gateway", f"--port={args.port or 0}", *options),
        stdin=asyncio.subprocess.PIPE,  # it ends when this process does, however that ends
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # an interrupt is for the agent alone
    )
    try:
        url = await _started_url(process)
        # The URL of a store may hold a password.
        shown = ["--store=…" if one.startswith("--store=") and "@" in one else shlex.quote(one) for one in options]
        start = " ".join(["holdfast gateway", f"--port={url.rpartition(':')[2]}", *shown])
        yield url, f"{start}, and in another terminal: "
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _own_addresses(addresses: Mapping[str, str], given: set[str], port: int) -> dict[str, str]:
    """Return the options that have a new gateway send requests where the agent would, by the variables that say so."""
    options: dict[str, str] = {}
    for variable, provider in addresses.items():
        address = os.environ.get(variable, "").strip()
        if address and provider not in given and not _leads_to_gateway(address, port):
            given = given | {provider}
            options[variable] = f"--upstream={provider}={address}"
    return options


def _leads_to_gateway(address: str, port: int) -> bool:
    """Return whether an agent's address is that of a gateway, which may not run: then its requests go on from there."""
    parts = split_http_url(address)
    if parts is None:
        return False  # the new gateway says what is wrong with it
    is_ours = is_loopback(parts.hostname or "") and parts.port == port
    return is_ours or is_gateway(address.rstrip("/").removesuffix("/v1"))


def stop_with_parent() -> None:
    """Send this process SIGTERM once its standard input ends, which the process that started it holds open."""

    def wait() -> None:
        # Not through `sys.stdin`: the end of the interpreter would wait for its lock.
        while os.read(0, 1_024):
            pass
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=wait, name="holdfast-parent", daemon=True).start()


async def _started_url(process: asyncio.subprocess.Process) -> str:
    """Return the address that a starting gateway prints; pass on what it says if it does not start."""
    said: list[str] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(GATEWAY_START_SECONDS):
            while process.stderr is not None and (line := await process.stderr.readline()):
                text = line.decode(errors="replace").strip()
                if text.startswith(LISTENING):
                    drain = asyncio.ensure_future(process.stderr.read())  # so that its pipe never fills
                    drain.add_done_callback(lambda task: None if task.cancelled() else task.exception())
                    return text.removeprefix(LISTENING)
                said.append(text.removeprefix("holdfast: ").removeprefix("gateway: "))
            await process.wait()  # it is ending: a signal now would race with asyncio's own wait, which then warns
    raise SettingsError("gateway", "; ".join(said) or f"did not start within {GATEWAY_START_SECONDS:.0f} seconds")


def is_gateway(url: str) -> bool:
    """Return whether one of our gateways answers at an address, and not another program that has a /health, too."""
    return is_health_of_gateway(health_of(url))


def is_health_of_gateway(health: bytes) -> bool:
    """Return whether this is what one of our gateways says when it is asked how it is."""
    try:
        return as_object(json.loads(health)).get("server") == "holdfast"
    except (ValueError, RecursionError):
        return False


def health_of(url: str) -> bytes:
    """Return what a server says when it is asked how it is, an error too; empty if it does not answer in HTTP."""
    try:
        with opener_for(url).open(f"{url}/health", timeout=HEALTH_SECONDS) as answer:
            return answer.read(1_000)
    except HTTPError as error:
        with error:
            return f"{error.code} {error.reason}".encode()
    except (OSError, ValueError, HTTPException):
        return b""


def opener_for(url: str) -> OpenerDirector:
    """Return what opens an address: through the environment's proxy, unless the address is on this machine."""
    return build_opener(ProxyHandler({})) if is_loopback(urlsplit(url).hostname or "") else build_opener()


def _assignment(name: str, value: str) -> str:
    """Return what sets a variable in a shell; a key is named by the variable that holds it, and not shown."""
    if name == OPENCODE_VARIABLE and os.environ.get(name):
        return f"{name}=…"  # the user's own configuration may hold keys
    if not name.endswith(("KEY", "TOKEN")):
        return f"{name}={shlex.quote(value)}"
    source = next((one for one, held in os.environ.items() if held == value), name)
    return f'{name}="${source}"'


def add_wrap_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `holdfast wrap`."""
    parser.add_argument("program", choices=sorted(PROGRAMS), help="the agent; its own arguments follow after --")
    port = f"the port of the gateway (default: {DEFAULT_PORT} if one runs there, else a free one)"
    parser.add_argument("--port", type=port_number, metavar="N", help=port)
    parser.add_argument("--policy", metavar="NAME", help="the policy of a new gateway (default: the setting `preset`)")
    budget = "the largest request of a new gateway in tokens (default: what the model accepts)"
    parser.add_argument("--budget", metavar="TOKENS", help=budget)
    upstream = "the base URL that a new gateway sends a provider's requests to: openai, anthropic or gemini"
    parser.add_argument("--upstream", action="append", metavar="NAME=URL", help=f"{upstream}; may be repeated")
    parser.usage = (
        "holdfast wrap [-h] [--port N] [--policy NAME] [--budget TOKENS] [--upstream NAME=URL] [--store URL] PROGRAM "
        "[-- ARGUMENT ...]"
    )
