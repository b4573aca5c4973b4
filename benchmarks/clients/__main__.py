"""Drive real clients through the gateway to an upstream double, and hold what was recorded against what happened.

    python -m benchmarks.clients [--only claude-code,codex] [--folder FOLDER] [--round recorded|budget|kill]

Each client talks in two conversations, in folders of their own: a turn, a tool call, a resumed turn, a sub-agent, its
own compaction and a fork, where it has them. Between client and gateway a tap keeps the bytes that the client sent.
In the round `budget` a conversation outgrows a small budget: requests are valid, within it, end as they came and keep
their prefix between compactions, recall reaches everything, and undo brings the old context back. In the round `kill`
the gateway is killed at random moments: nothing that was answered is lost or doubled. The last line is a JSON object
with the figures of each client.
"""

import argparse
import asyncio
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from benchmarks.clients.programs import PROGRAMS, Program, arguments_of, environment_of
from benchmarks.clients.rounds import BudgetFigures, Control, GatewayProcess, KillFigures, budget_round, kill_round
from benchmarks.clients.upstream import USE_A_TOOL, USE_AN_AGENT, Received, UpstreamDouble
from benchmarks.reporting import print_progress
from holdfast.core.history import events as log
from holdfast.session.session import Session
from holdfast.stores.base import iter_sessions
from holdfast.stores.open import open_store
from holdfast.wire.formats import format_named

STEP_SECONDS = 90
GATEWAY_SECONDS = 30
ORDER_CHARS = 200
HOP_HEADERS = {"host", "content-length", "transfer-encoding", "connection"}


@dataclass(slots=True)
class Step:
    """One run of a client: which conversation it belongs to, and what it says."""

    label: str
    prompt: str
    arguments: Sequence[str]
    is_compacting: bool = False
    exit_code: int | None = None


@dataclass(slots=True)
class Figures:
    """What was found for one client."""

    requests: int = 0
    sessions: int = 0
    messages_in_wrong_session: int = 0
    conversations_split: int = 0
    false_rewinds: int = 0
    side_calls: int = 0
    side_calls_in_conversation: int = 0
    bodies_changed: int = 0
    prompts_not_recalled: int = 0
    compactions_of_client: int = 0
    compactions_recorded: int = 0
    delegations: int = 0
    forks: int = 0
    failed_runs: list[str] = field(default_factory=list[str])

    @property
    def is_clean(self) -> bool:
        """Whether nothing was recorded wrongly."""
        return not any(
            (
                self.messages_in_wrong_session,
                self.conversations_split,
                self.false_rewinds,
                self.side_calls_in_conversation,
                self.bodies_changed,
                self.prompts_not_recalled,
            )
        )


def steps_of(program: Program) -> list[Step]:
    """Return the runs of a client, in order."""
    name = program.name
    tool = USE_A_TOOL if program.has_tools else "no tool here"
    steps = [Step("alpha", "Hello", program.first("Hello")), Step("beta", "Hello", program.first("Hello"))]

    def say(label: str, number: int, words: str = "please", *, is_compacting: bool = False) -> None:
        prompt = f"{name}-{label}-{number} {words}"
        steps.append(Step(label, prompt, program.resume(prompt), is_compacting))

    say("alpha", 2, tool)
    say("beta", 2)
    say("alpha", 3)
    if program.has_agents:
        say("alpha", 4, USE_AN_AGENT)
    if program.compact:
        steps.append(Step("alpha", "", program.compact))
    elif program.compacting or program.compacting_arguments or program.compacting_files:
        say("alpha", 5, "word " * program.compacting_words + "please", is_compacting=True)
        say("alpha", 6, is_compacting=True)
    say("alpha", 7)
    if program.fork:
        prompt = f"{name}-fork-8 please"
        steps.append(Step("fork", prompt, program.fork(prompt)))
    say("beta", 3, tool)
    return steps


class Tap:
    """Passes everything on to the gateway, and keeps what clients sent."""

    def __init__(self, target: str) -> None:
        self.bodies: list[bytes] = []
        self.errors: list[str] = []
        """What the gateway said that it could not do for a request."""
        self._target = target

    def app(self, client: ClientSession) -> web.Application:
        """Return the server."""

        async def serve(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_HEADERS}
            if request.method == "POST" and body:
                self.bodies.append(body)
            url = f"{self._target}{request.path_qs}"
            try:
                answer = await client.request(request.method, url, data=body or None, headers=headers)
            except ClientError:
                return self._hang_up(request)
            async with answer:
                self.errors += [error] if (error := answer.headers.get("x-holdfast-error")) else []
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_HEADERS | {"date", "server"}}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                try:
                    async for chunk in answer.content.iter_any():
                        await response.write(chunk)
                except ClientError:
                    return self._hang_up(request)
                return response

        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", serve)
        return app

    def _hang_up(self, request: web.Request) -> web.StreamResponse:
        """Close the client's connection, as it would see without a tap."""
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=502)


async def serve_app(stack: AsyncExitStack, app: web.Application) -> str:
    """Serve an application on a free port, and return its address."""
    runner = web.AppRunner(app)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


async def start_gateway(stack: AsyncExitStack, command: str, store: str, upstream: str) -> str:
    """Start the gateway, and return its address."""
    options = ["--port", "0", "--store", store, "--upstream", f"openai={upstream}/v1"]
    options += ["--upstream", f"anthropic={upstream}", "--upstream", f"gemini={upstream}"]
    process = await asyncio.create_subprocess_exec(*shlex.split(command), *options, stderr=asyncio.subprocess.PIPE)

    async def stop() -> None:
        if process.returncode is None:
            process.terminate()
            await process.wait()

    stack.push_async_callback(stop)
    if process.stderr is None:
        raise RuntimeError("the gateway has no standard error")
    async with asyncio.timeout(GATEWAY_SECONDS):
        while line := (await process.stderr.readline()).decode():
            if "listening on " in line:
                stack.push_async_callback(_drain(process.stderr))
                return line.split("listening on ")[1].split()[0]
            print_progress(line.rstrip())
    raise RuntimeError("the gateway ended before it listened")


def _drain(stream: asyncio.StreamReader) -> Any:
    task = asyncio.ensure_future(stream.read())

    async def stop() -> None:
        task.cancel()

    return stop


def place_of(program: Program, folder: Path) -> Path:
    """Return where a client is installed."""
    package = program.packages[0].rpartition("@")[0].strip("@").replace("/", "-")
    return folder / (program.name if program.is_python else package)


async def install(program: Program, folder: Path) -> str | None:
    """Install a client below a folder if it is not there, and return what is missing."""
    place = place_of(program, folder)
    if all((place / part).exists() for part in program.command):
        return None
    if not program.is_python and shutil.which("npm") is None:
        return "npm is not installed"
    place.mkdir(parents=True, exist_ok=True)
    print_progress(f"installing {' '.join(program.packages)}")
    if program.is_python:
        made = [sys.executable, "-m", "venv", str(place)]
        commands = [made, [str(place / "bin/pip"), "install", "-q", *program.packages]]
    else:
        (place / "package.json").write_text('{"private": true}')
        commands = [["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *program.packages]]
    for command in commands:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=place, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        if process.returncode:
            lines = output.decode(errors="replace").strip().splitlines()
            return f"could not be installed: {lines[-1] if lines else process.returncode}"
    return None


async def run_step(program: Program, step: Step, *, url: str, work: Path, place: Path) -> None:
    """Run a client once, in its own home and in the folder of its conversation."""
    label = "alpha" if step.label == "fork" else step.label
    home, project = work / f"home-{label}", work / label
    for folder in (home, project):
        folder.mkdir(parents=True, exist_ok=True)
    (project / "a.txt").write_text("hello world\n")
    files = program.compacting_files if step.is_compacting and program.compacting_files else program.files
    for name, content in files(url).items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)
    extra = program.compacting_arguments if step.is_compacting else ()
    arguments = arguments_of(step.arguments, url=url, home=str(home), extra=extra)
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    environment |= {"HOME": str(home), "NO_COLOR": "1", "XDG_CONFIG_HOME": f"{home}/.config", "NO_PROXY": "127.0.0.1"}
    environment |= environment_of(program, url, is_compacting=step.is_compacting)
    command = [str(place / part) for part in program.command]
    process = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        cwd=project,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(STEP_SECONDS):
            output, _ = await process.communicate()
        step.exit_code = process.returncode
        if step.exit_code:
            print_progress(f"{program.name}: {step.prompt!r}: {output.decode(errors='replace')[-600:]}")
    except TimeoutError:
        process.kill()
        await process.wait()
        step.exit_code = 124


@dataclass(slots=True)
class Recorded:
    """A session as it was recorded."""

    id: str
    texts: list[str]
    """The text of every message of every agent."""
    answers: list[str]
    """The texts that a model said."""
    counts: Counter[str]


async def read_sessions(store_url: str) -> list[Recorded]:
    """Return every session of a store."""
    store = open_store(store_url)
    found: list[Recorded] = []
    async for info in iter_sessions(store):
        async with Session.open(info.id, store=store) as session:
            texts, answers, counts = list[str](), list[str](), Counter[str]()
            for event in await session.events():
                counts[type(event).__name__] += 1
                if isinstance(event, log.CompactionCompleted):
                    counts["client compaction"] += event.trigger == "client"
                if isinstance(event, log.MessageAppended):
                    message = format_named(event.format).decode(event.native, 0)
                    texts.append(message.text + " ".join(result.text for result in message.results))
                    answers += [message.text] if message.role == "assistant" else []
            found.append(Recorded(info.id, texts, answers, counts))
    await store.close()
    return found


async def figures_for(
    program: Program, steps: Sequence[Step], received: Sequence[Received], sent: Sequence[bytes], store_url: str
) -> Figures:
    """Return the figures of one client."""
    everything = await read_sessions(store_url)
    labels: dict[str, list[str]] = {}
    for step in steps:
        if step.prompt.startswith(program.name) and step.exit_code == 0:
            labels.setdefault(step.label, []).append(step.prompt.split(" ")[0])
    own = [one for one in everything if any(f"{program.name}-" in text for text in one.texts)]
    figures = Figures(requests=len(received), sessions=len(own))
    figures.failed_runs = [f"{step.prompt or 'compact'}: {step.exit_code}" for step in steps if step.exit_code]
    holders: dict[str, list[str]] = {}
    for one in own:
        joined = "\n".join(one.texts)
        here = {label for label, prompts in labels.items() if any(_has(prompt, joined) for prompt in prompts)}
        others = here - ({"alpha", "fork"} if "fork" in here else {min(here)} if here else set())
        figures.messages_in_wrong_session += sum(_has(p, joined) for label in others for p in labels[label])
        for label in here:
            if all(_has(prompt, joined) for prompt in labels[label]):
                holders.setdefault(label, []).append(one.id)
        figures.false_rewinds += one.counts["Rewound"]
        figures.compactions_recorded += one.counts["client compaction"]
        figures.delegations += one.counts["DelegationStarted"]
        figures.forks += one.counts["Forked"]
    figures.conversations_split = sum(label not in holders for label in labels)
    side = [one for one in received if one.kind in {"summary", "side"}]
    figures.side_calls = len(side)
    figures.compactions_of_client = sum(one.kind == "summary" for one in side)
    said = {answer for one in everything for answer in one.answers}
    # After its compaction a client may keep the summary as an answer, but never the order.
    written = "\n".join(text for one in everything for text in one.texts)
    orders = [one.order[-ORDER_CHARS:] for one in side if one.kind == "summary"]
    titles = [one.answer for one in side if one.kind == "side"]
    figures.side_calls_in_conversation = sum(text in said for text in titles) + sum(text in written for text in orders)
    figures.bodies_changed = sum((Counter(sent) - Counter(one.body for one in received)).values())
    store = open_store(store_url)
    for label, prompts in labels.items():
        for prompt in prompts:
            figures.prompts_not_recalled += not await _is_recalled(store, holders.get(label, [""])[-1], prompt)
    await store.close()
    if program.is_rewound_each_turn:
        figures.conversations_split = figures.prompts_not_recalled = 0
    return figures


def _has(prompt: str, text: str) -> bool:
    return f"{prompt} " in text or f"{prompt}\n" in text


async def _is_recalled(store: Any, session_id: str, prompt: str) -> bool:
    if not session_id:
        return False
    async with Session.open(session_id, store=store) as session:
        return prompt in str(await session.recall(prompt))


async def run_round(options: argparse.Namespace) -> int:
    """Run the clients in one of the harder rounds, each with a store and a gateway of its own."""
    results: dict[str, BudgetFigures | KillFigures] = {}
    missing: dict[str, str] = {}
    folder: Path = options.folder.absolute()
    wanted = set(options.only.split(",")) if options.only else None
    for program in [one for one in PROGRAMS if wanted is None or one.name in wanted]:
        if problem := await install(program, folder):
            missing[program.name] = problem
            continue
        work = Path(tempfile.mkdtemp(prefix="holdfast-clients-"))
        store, double = f"sqlite:///{work}/gateway.db", UpstreamDouble("a.txt")
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                ClientSession(timeout=ClientTimeout(total=None), auto_decompress=False)
            )
            gateway = GatewayProcess(options.gateway, store, await serve_app(stack, double.app()))
            await gateway.start()
            stack.push_async_callback(gateway.end)
            tap = Tap(gateway.url)
            url = await serve_app(stack, tap.app(client))
            if program.is_rewound_each_turn:
                url = f"{url}/s/{program.name}"  # as its page says
            said: list[str] = []

            async def say(
                prompt: str, program: Program = program, url: str = url, work: Path = work, said: list[str] = said
            ) -> int | None:
                arguments = program.resume(prompt) if said else program.first(prompt)
                step = Step("alpha", prompt, [*arguments, *program.growing_arguments])
                await run_step(program, step, url=url, work=work / program.name, place=place_of(program, folder))
                said.append(prompt)
                return step.exit_code

            if options.round == "budget":
                control = Control(client, gateway.url)
                figures = await budget_round(
                    program, say, control, received=double.received, sent=tap.bodies, errors=tap.errors
                )
            else:
                figures = await kill_round(program, say, gateway, tap.bodies, store)
        results[program.name] = figures
        state = "as promised" if figures.is_clean else "WRONG"
        print(f"{program.name}: {state}: {json.dumps(asdict(figures))}", flush=True)
        if options.keep:
            print_progress(f"kept in {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    is_clean = all(one.is_clean for one in results.values())
    shown = {name: asdict(one) for name, one in results.items()}
    print(json.dumps({"round": options.round, "clients": shown, "missing": missing, "clean": is_clean}))
    return 0 if is_clean and results else 1


async def main(options: argparse.Namespace) -> int:
    """Run the clients in the round that was asked for, and return the exit code."""
    if options.round != "recorded":
        return await run_round(options)
    folder: Path = options.folder.absolute()
    wanted = set(options.only.split(",")) if options.only else None
    programs = [program for program in PROGRAMS if wanted is None or program.name in wanted]
    missing: dict[str, str] = {}
    results: dict[str, Figures] = {}
    work = Path(tempfile.mkdtemp(prefix="holdfast-clients-"))
    store = f"sqlite:///{work}/gateway.db"
    async with AsyncExitStack() as stack:
        double = UpstreamDouble("a.txt")
        upstream = await serve_app(stack, double.app())
        client = await stack.enter_async_context(
            ClientSession(timeout=ClientTimeout(total=None), auto_decompress=False)
        )
        gateway = await start_gateway(stack, options.gateway, store, upstream)
        tap = Tap(gateway)
        url = await serve_app(stack, tap.app(client))
        for program in programs:
            if problem := await install(program, folder):
                missing[program.name] = problem
                print_progress(f"{program.name}: {problem}")
                continue
            steps, requests, sent = steps_of(program), len(double.received), len(tap.bodies)
            for step in steps:
                await run_step(program, step, url=url, work=work / program.name, place=place_of(program, folder))
            found = await figures_for(program, steps, double.received[requests:], tap.bodies[sent:], store)
            results[program.name] = found
            print(
                f"{program.name}: {'as it happened' if found.is_clean else 'WRONG'}: {json.dumps(asdict(found))}",
                flush=True,
            )
    if not options.keep:
        shutil.rmtree(work, ignore_errors=True)
    else:
        kept = [
            {
                "path": one.path,
                "headers": dict(one.headers),
                "body": json.loads(one.body),
                "kind": one.kind,
                "answer": one.answer,
            }
            for one in double.received
        ]
        (work / "received.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in kept))
        print_progress(f"kept in {work}")
    is_clean = all(one.is_clean for one in results.values())
    shown = {name: asdict(one) for name, one in results.items()}
    print(json.dumps({"clients": shown, "missing": missing, "clean": is_clean}))
    return 0 if is_clean and results else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="names of clients, with commas between them")
    kept = Path(os.environ.get("HOLDFAST_CLIENTS") or Path.home() / ".cache/holdfast-clients")
    parser.add_argument("--folder", type=Path, default=kept, help="where clients are installed, outside the repository")
    parser.add_argument("--gateway", default=f"{Path(sys.executable).parent / 'holdfast'} gateway")
    parser.add_argument("--round", choices=("recorded", "budget", "kill"), default="recorded")
    parser.add_argument("--keep", action="store_true", help="keep the store and the homes of the clients")
    sys.exit(asyncio.run(main(parser.parse_args())))
