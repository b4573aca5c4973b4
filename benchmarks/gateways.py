"""Coding sessions through gateways: what each sends on, what that costs, and what happens when something breaks.

    python -m benchmarks.gateways FILE.jsonl … [--sample N] [--turns N] [--budget TOKENS] [--only holdfast litellm]

Three parts, each with a process of its own for each gateway, in front of an upstream that keeps what arrives:

- Recorded sessions. A client sends each turn with its whole list, as coding agents do, and the upstream answers with
  the message that was recorded. What arrives is compared with what was sent: bytes, messages, the part of the request
  before that is still its beginning, and the provider's rules. Costs are those of the input, with the unchanged
  beginning of a request as a cache read; a token is four bytes here, for everybody alike.
- Real coding agents (those of `make clients`, installed below HOLDFAST_CLIENTS): four turns, one with a tool call.
- Faults: the upstream refuses a request as too long; its stream breaks off; the gateway is killed and started again.

Peers are installed under `.peers`, with their default settings, and have no access to the network. With all gateways
and all agents the table in RESULTS.md is renewed.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from benchmarks.beside import GATEWAYS_HEADING, RESULTS, describe_machine, gateways_section
from benchmarks.clients.__main__ import Step, Tap, place_of, run_step, serve_app
from benchmarks.clients.__main__ import install as install_client
from benchmarks.clients.programs import PROGRAMS
from benchmarks.clients.rounds import FORMATS
from benchmarks.clients.upstream import USE_A_TOOL, Received, UpstreamDouble, wire_of
from benchmarks.gateway import CANDIDATES, Candidate, cpu_seconds, free_port, memory_mb, process_tree, running
from benchmarks.peers import PeerError, install
from benchmarks.reporting import print_progress
from benchmarks.tables import DASH, markdown_table, render_share
from benchmarks.validity import read_sessions
from holdfast import validate
from holdfast.apps.gateway.recording.client_body import read_body
from holdfast.core.history.events import MessageAppended, Usage
from holdfast.counters.models import dollars_of
from holdfast.stores.open import open_store

MODEL, BYTES_PER_TOKEN = "gpt-5", 4
PRICE_LISTS = ("gpt-5", "claude-sonnet-4-5", "gemini-2.5-pro")
ANSWER_SECONDS = 120
AGENTS = ("claude-code", "codex", "copilot")
LIMIT_TOKENS = 8_000
"""The window of the upstream that refuses; the request that it refuses has at least twice as much."""
CUT_AFTER = 3
RESTART_TURNS = 6
WARM_UP = 3

Session = tuple[str, list[dict[str, Any]]]


class RecordedUpstream:
    """Answers with what was recorded, and keeps what arrives."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.answer: dict[str, Any] = {"role": "assistant", "content": "Done."}
        self.limit_tokens: int | None = None
        self.is_cut = False
        self.double: UpstreamDouble | None = None
        """Answers instead, while real agents talk."""

    def app(self) -> web.Application:
        """Return the server."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if self.double is not None:
            return await self.double.serve(request)
        self.bodies.append(await request.read())
        tokens = len(self.bodies[-1]) // BYTES_PER_TOKEN
        if self.limit_tokens is not None and tokens > self.limit_tokens:
            return web.Response(status=400, body=refusal(tokens, self.limit_tokens), content_type="application/json")
        named = {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL}
        if self.is_cut:
            return await self._break_off(request, named)
        choice = {"index": 0, "message": self.answer, "finish_reason": "stop"}
        usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
        return web.json_response({**named, "choices": [choice], "usage": usage})

    async def _break_off(self, request: web.Request, named: Mapping[str, object]) -> web.StreamResponse:
        """Send the first events of a stream, then reset the connection."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for number in range(CUT_AFTER):
            delta = {"role": "assistant", "content": f"word{number} "}
            event = {**named, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await asyncio.sleep(0.05)
        if request.transport is not None:
            request.transport.abort()
        return response


def refusal(tokens: int, limit: int) -> bytes:
    """Return what OpenAI answers to a request that is too long."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens."
    )
    error = {"message": message, "type": "invalid_request_error", "param": "messages"}
    return json.dumps({"error": {**error, "code": "context_length_exceeded"}}).encode()


@dataclass(slots=True)
class Traffic:
    """What a gateway made of requests."""

    requests: int = 0
    failed: int = 0
    """Requests that did not arrive once, with an answer; of agents, runs that failed."""
    bytes_changed: int = 0
    """Requests with other bytes but the same messages; of agents, all with other bytes."""
    messages_changed: int = 0
    invalid: int = 0
    invalid_as_sent: int = 0
    """Of those, requests that the client had sent as invalid."""
    kept_bytes: int = 0
    earlier_bytes: int = 0
    sent_bytes: int = 0
    costs: dict[str, float] = field(default_factory=dict[str, float])
    seconds: list[float] = field(default_factory=list[float])

    def compare(self, before: Sequence[bytes], pieces: Sequence[bytes], models: Sequence[str]) -> None:
        """Add a request that follows another: what it kept of that one's beginning, and what its input costs."""
        same = next((at for at, pair in enumerate(zip(before, pieces, strict=False)) if pair[0] != pair[1]), None)
        shared = min(len(before), len(pieces)) if same is None else same
        kept, whole = sum(map(len, pieces[:shared])), sum(map(len, pieces))
        self.kept_bytes += kept
        self.earlier_bytes += sum(map(len, before))
        read, rest = kept // BYTES_PER_TOKEN, (whole - kept) // BYTES_PER_TOKEN
        for model in models:
            is_written = model.startswith("claude")  # what is cached later is paid for there
            usage = Usage(
                input_tokens=0 if is_written else rest,
                cache_write_tokens=rest if is_written else 0,
                cache_read_tokens=read,
            )
            self.costs[model] = self.costs.get(model, 0.0) + (dollars_of(usage, model) or 0.0)


@dataclass(slots=True)
class Findings:
    """All that was found for one gateway."""

    name: str
    failure: str = ""
    """Why it could not be measured."""
    recorded: Traffic = field(default_factory=Traffic)
    agents: Traffic = field(default_factory=Traffic)
    start_seconds: float = 0.0
    cpu_ms: float = 0.0
    memory_mb: float = 0.0
    overflow: str = DASH
    cut_stream: str = DASH
    restart: str = DASH


@dataclass(frozen=True, slots=True)
class Stand:
    """A gateway that runs in front of an upstream."""

    port: int
    pid: int
    client: ClientSession
    start_seconds: float
    upstream: RecordedUpstream

    async def ask(self, name: str, messages: Sequence[Mapping[str, Any]], **more: object) -> tuple[int, bytes, bool]:
        """Send a list; return the status, the body, and whether the body is whole."""
        sent = json.dumps({"model": MODEL, "messages": messages, **more}).encode()
        headers = {"content-type": "application/json", "authorization": "Bearer x", "x-session-id": name}
        url, body = f"http://127.0.0.1:{self.port}/v1/chat/completions", bytearray()
        try:
            async with self.client.post(url, data=sent, headers=headers) as answer:
                status = answer.status
                try:
                    async for chunk in answer.content.iter_any():
                        body += chunk
                except ClientError:
                    return status, bytes(body), False
                return status, bytes(body), True
        except (ClientError, TimeoutError):
            return 0, bytes(body), False


@asynccontextmanager
async def standing(
    candidate: Candidate, upstream: RecordedUpstream, address: str, folder: Path, port: int
) -> AsyncGenerator[Stand]:
    """Run a gateway in front of an upstream."""
    base = candidate.peer.environ if candidate.peer else dict(os.environ)
    environ = {**base, "HOME": str(folder), "OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x"}
    environ |= {"HOLDFAST_CONTROL_TOKEN": "t", **candidate.environ(address)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    async with (
        running(candidate.command(address, port, folder), port, environ) as pid,
        ClientSession(timeout=ClientTimeout(total=ANSWER_SECONDS), auto_decompress=False) as client,
    ):
        yield Stand(port, pid, client, time.perf_counter() - started, upstream)


# Recorded sessions.


async def pass_sessions(stand: Stand, sessions: Sequence[Session], turns: int, findings: Findings) -> None:
    """Send every turn of the sessions through a gateway."""
    traffic, upstream = findings.recorded, stand.upstream
    for _ in range(WARM_UP):
        await stand.ask("warm-up", [{"role": "user", "content": "Hello."}])
    before_cpu = cpu_seconds(stand.pid)
    for name, messages in sessions:
        before: list[bytes] = []
        for place in _answers_in(messages)[:turns]:
            upstream.answer = messages[place]
            arrived = len(upstream.bodies)
            started = time.perf_counter()
            status, body, is_whole = await stand.ask(name, messages[:place])
            traffic.seconds.append(time.perf_counter() - started)
            traffic.requests += 1
            is_answered = status == web.HTTPOk.status_code and bool(body) and is_whole
            traffic.failed += not is_answered or len(upstream.bodies) != arrived + 1
            if len(upstream.bodies) > arrived:
                before = _compare_recorded(traffic, messages[:place], upstream.bodies[-1], before)
        print_progress(f"{findings.name}: {name}")
    findings.cpu_ms = (cpu_seconds(stand.pid) - before_cpu) * 1e3 / max(1, traffic.requests)
    findings.memory_mb = memory_mb(stand.pid)


def _answers_in(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    return [place for place, one in enumerate(messages) if one.get("role") == "assistant" and place]


def _compare_recorded(
    traffic: Traffic, given: Sequence[Mapping[str, Any]], arrived: bytes, before: list[bytes]
) -> list[bytes]:
    """Compare a request with what arrived, and return the messages that did."""
    sent = json.dumps({"model": MODEL, "messages": given}).encode()
    messages = json.loads(arrived)["messages"]
    traffic.sent_bytes += len(sent)
    traffic.messages_changed += given != messages
    traffic.bytes_changed += given == messages and sent != arrived
    is_invalid = bool(validate(messages, "openai-chat"))
    traffic.invalid += is_invalid
    traffic.invalid_as_sent += is_invalid and bool(validate(list(given), "openai-chat"))
    pieces = [_essential(one) for one in messages]
    traffic.compare(before, pieces, PRICE_LISTS)
    return pieces


def _essential(value: object) -> bytes:
    """Return JSON without cache marks, which clients move along and providers do not count."""
    return json.dumps(_without_marks(value), sort_keys=True).encode()


def _without_marks(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_marks(one) for name, one in value.items() if name != "cache_control"}
    return [_without_marks(one) for one in value] if isinstance(value, list) else value


# Real coding agents.


async def pass_agents(stand: Stand, clients: Path, findings: Findings) -> None:
    """Let real agents talk through a gateway; what they sent is held against what arrived."""
    for program in (one for one in PROGRAMS if one.name in AGENTS):
        if problem := await install_client(program, clients):
            raise PeerError(f"{program.name}: {problem}")
        double = stand.upstream.double = UpstreamDouble("a.txt")
        work = Path(tempfile.mkdtemp(prefix="holdfast-gateways-"))
        try:
            async with AsyncExitStack() as stack:
                tap = Tap(f"http://127.0.0.1:{stand.port}")
                url = await serve_app(stack, tap.app(stand.client))
                for number, words in enumerate(("please", USE_A_TOOL, "please", "please")):
                    prompt = f"{program.name}-{number} {words}"
                    step = Step("alpha", prompt, program.resume(prompt) if number else program.first(prompt))
                    await run_step(program, step, url=url, work=work / program.name, place=place_of(program, clients))
                    findings.agents.failed += step.exit_code != 0
                    if step.exit_code:
                        break
                _compare_agent(findings.agents, double.received, tap.bodies)
        finally:
            stand.upstream.double = None
            shutil.rmtree(work, ignore_errors=True)
        print_progress(f"{findings.name}: {program.name}")


def _compare_agent(traffic: Traffic, received: Sequence[Received], sent: Sequence[bytes]) -> None:
    traffic.requests += len(received)
    traffic.bytes_changed += sum((Counter(sent) - Counter(one.body for one in received)).values())
    before: list[bytes] = []
    for one in received:
        value, wire = json.loads(one.body), wire_of(one.path)
        if one.kind not in {"answer", "call"} or not value.get("tools"):
            continue
        found = read_body(wire, one.body)
        if validate([*found.leading_messages(), *found.messages()], FORMATS[wire]):
            traffic.invalid += 1
            traffic.invalid_as_sent += one.body in sent
        beside = [_essential(value.get(name)) for name in ("tools", "system", "instructions")]
        pieces = [*beside, *map(_essential, [*found.leading_messages(), *found.messages()])]
        traffic.compare(before, pieces, [str(value.get("model"))])
        before = pieces


# Faults.


async def overflow(stand: Stand, session: Session) -> str:
    """Return what a client gets when the upstream refuses its request as too long."""
    # Words of its own, because a gateway may have cached the answers to what was sent before.
    own = [{"role": "user", "content": "This one is refused."}, {"role": "assistant", "content": "Yes."}]
    name, messages = session[0], [*session[1][:1], *own, *session[1][1:]]
    least = 2 * LIMIT_TOKENS * BYTES_PER_TOKEN
    place = next(place for place in _answers_in(messages) if len(json.dumps(messages[:place])) > least)
    before, stand.upstream.limit_tokens = len(stand.upstream.bodies), LIMIT_TOKENS
    status, body, _ = await stand.ask(f"{name}-overflow", messages[:place])
    stand.upstream.limit_tokens = None
    arrived = stand.upstream.bodies[before:]
    if status == web.HTTPOk.status_code:
        return f"answer, at request {len(arrived)}"
    own = refusal(len(arrived[-1]) // BYTES_PER_TOKEN, LIMIT_TOKENS) if arrived else b""
    words = "the upstream's words" if body == own else "words of its own"
    return f"error {status}, {words}" + (f", after {len(arrived)} requests" if len(arrived) > 1 else "")


async def cut_stream(stand: Stand) -> str:
    """Return what a client sees of a stream that the upstream breaks off."""
    before, stand.upstream.is_cut = len(stand.upstream.bodies), True
    status, body, is_whole = await stand.ask("cut", [{"role": "user", "content": "Go on."}], stream=True)
    stand.upstream.is_cut = False
    words = sum(f"word{number} ".encode() in body for number in range(CUT_AFTER))
    tries = len(stand.upstream.bodies) - before
    if not words:
        seen = f"error {status}" if status else "no answer"
    elif not is_whole:
        seen = "the break"
    elif b"[DONE]" in body and b'"error"' not in body:
        seen = "a whole answer: **not told**"
    else:
        seen = "an error event" if b'"error"' in body else "an early end"
    return f"{words} of {CUT_AFTER} pieces, then {seen}" + (f"; sent {tries} times" if tries > 1 else "")


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A conversation whose gateway was killed."""

    name: str
    messages: list[dict[str, Any]]
    places: list[int]
    pieces: list[bytes]
    """The messages of the last request before the kill."""


async def interrupt(stand: Stand, session: Session) -> Interrupted:
    """Hold some turns of a conversation, and kill the gateway."""
    # Words of its own, because a gateway may have cached the answers to what was sent before.
    own = [{"role": "user", "content": "This one is interrupted."}, {"role": "assistant", "content": "Yes."}]
    name, messages = f"{session[0]}-killed", [*session[1][:1], *own, *session[1][1:]]
    places = _answers_in(messages)[-RESTART_TURNS:]
    for place in places[:-1]:
        stand.upstream.answer = messages[place]
        await stand.ask(name, messages[:place])
    pieces = [_essential(one) for one in json.loads(stand.upstream.bodies[-1])["messages"]]
    for one in list(process_tree(stand.pid)):
        os.kill(one, signal.SIGKILL)
    return Interrupted(name, messages, places, pieces)


async def resume(stand: Stand, before: Interrupted, folder: Path | None) -> str:
    """Return what is left of a conversation after the gateway was killed and started again."""
    said = before.places[-2] + 1
    recorded = f"{await count_recorded(folder, before.name)} of {said} messages on record" if folder else "no record"
    arrived = len(stand.upstream.bodies)
    stand.upstream.answer = before.messages[before.places[-1]]
    status, _, _ = await stand.ask(before.name, before.messages[: before.places[-1]])
    after = Traffic()
    if len(stand.upstream.bodies) > arrived:
        now = [_essential(one) for one in json.loads(stand.upstream.bodies[-1])["messages"]]
        after.compare(before.pieces, now, ())
    answered = "answered" if status == web.HTTPOk.status_code else f"error {status}"
    return f"{answered}, prefix kept {render_share(after.kept_bytes, after.earlier_bytes)}; {recorded}"


async def count_recorded(folder: Path, session: str) -> int:
    """Return how many messages of a conversation our store has."""
    store = open_store(f"sqlite:///{folder}/chats.db")
    try:
        return sum(one.record["type"] == MessageAppended.KIND for one in await store.read(session))
    finally:
        await store.close()


# The table.


def table(found: Sequence[Findings]) -> str:
    """Return what was found, a column for each gateway."""

    def cells(render: Callable[[Findings], str]) -> list[str]:
        return [DASH if one.failure else render(one) for one in found]

    def traffic_rows(part: Callable[[Findings], Traffic], models: Sequence[str], what: str) -> list[list[str]]:
        def share(one: Findings) -> str:
            return render_share(part(one).kept_bytes, part(one).earlier_bytes)

        rows = [
            [f"{what}: prefix kept", *cells(share)],
            [
                f"{what}: invalid (as the client sent it)",
                *cells(lambda one: f"{part(one).invalid:,} ({part(one).invalid_as_sent:,})"),
            ],
        ]
        costs = [[f"{what}: input cost, {model}", *cells(partial(_dollars, part, model))] for model in models]
        return [*rows, *costs]

    recorded = "recorded sessions"
    rows = [
        [f"{recorded}: requests", *cells(lambda one: f"{one.recorded.requests:,}")],
        [f"{recorded}: not delivered once, with an answer", *cells(lambda one: f"{one.recorded.failed:,}")],
        [f"{recorded}: other bytes, same messages", *cells(lambda one: f"{one.recorded.bytes_changed:,}")],
        [f"{recorded}: messages changed", *cells(lambda one: f"{one.recorded.messages_changed:,}")],
        *traffic_rows(lambda one: one.recorded, PRICE_LISTS, recorded),
        [f"{recorded}: median latency", *cells(lambda one: f"{statistics.median(one.recorded.seconds) * 1e3:,.1f} ms")],
        [f"{recorded}: processor time a request", *cells(lambda one: f"{one.cpu_ms:,.1f} ms")],
        ["memory after them", *cells(lambda one: f"{one.memory_mb:,.0f} MB")],
        ["start until it listens", *cells(lambda one: f"{one.start_seconds:.1f} s")],
        ["agents: requests", *cells(lambda one: f"{one.agents.requests:,}")],
        ["agents: runs that failed", *cells(lambda one: f"{one.agents.failed:,}")],
        ["agents: requests with other bytes", *cells(lambda one: f"{one.agents.bytes_changed:,}")],
        *traffic_rows(lambda one: one.agents, (), "agents"),
        ["agents: input cost, each one's model", *cells(lambda one: f"${sum(one.agents.costs.values()):.3f}")],
        ["the upstream refuses a request as too long", *cells(lambda one: one.overflow)],
        ["the upstream's stream breaks off", *cells(lambda one: one.cut_stream)],
        ["kill -9, start, next request", *cells(lambda one: one.restart)],
    ]
    return markdown_table(["", *(one.name for one in found)], rows)


def _dollars(part: Callable[[Findings], Traffic], model: str, one: Findings) -> str:
    return f"${part(one).costs.get(model, 0.0):.2f}"


async def measure(candidate: Candidate, sessions: Sequence[Session], options: argparse.Namespace) -> Findings:
    """Return all that is found for one gateway; its part of the table is empty if it cannot be run."""
    findings, upstream, port = Findings(candidate.name), RecordedUpstream(), free_port()
    longest = max(sessions, key=lambda one: len(one[1]))
    short = (longest[0], longest[1][: options.turns * 2])
    try:
        if candidate.peer is not None:
            await install(candidate.peer)
        async with AsyncExitStack() as stack:
            address = await serve_app(stack, upstream.app())
            folder, fresh = (
                Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-gateways-"))) for _ in range(2)
            )
            async with standing(candidate, upstream, address, folder, port) as stand:
                findings.start_seconds = stand.start_seconds
                await pass_sessions(stand, sessions, options.turns, findings)
                findings.cut_stream = await cut_stream(stand)
                if not options.no_agents:
                    await pass_agents(stand, options.clients, findings)
                interrupted = await interrupt(stand, short)
            async with standing(candidate, upstream, address, folder, port) as stand:
                keeps_log = candidate.name.startswith("holdfast")
                findings.restart = await resume(stand, interrupted, folder if keeps_log else None)
            # A gateway may learn the smaller window, and may have cached answers: this one knows nothing yet.
            async with standing(candidate, upstream, address, fresh, port) as stand:
                findings.overflow = await overflow(stand, longest)
    except PeerError as error:
        findings.failure = str(error)
    return findings


async def main(options: argparse.Namespace) -> int:
    """Run the gateways, print the table, and renew it in RESULTS.md if all took part."""
    sessions = list(read_sessions(options.files))[: options.sample]
    own = CANDIDATES["holdfast"]

    def with_budget(upstream: str, port: int, folder: Path) -> list[str]:
        return [*own.command(upstream, port, folder), "--budget", str(options.budget)]

    candidates = {
        "bare": replace(CANDIDATES["bare"], name="bare pass-through"),
        "holdfast": replace(own, name="holdfast"),
        "budget": replace(own, name=f"holdfast, --budget {options.budget}", command=with_budget),
        "litellm": CANDIDATES["litellm"],
        "headroom": CANDIDATES["headroom"],
    }
    machine = describe_machine()
    found: list[Findings] = []
    for name, candidate in candidates.items():
        if name in (options.only or candidates):
            found.append(await measure(candidate, sessions, options))
    failures = [f"{one.name} did not run: {one.failure}." for one in found if one.failure]
    section = "\n\n".join([GATEWAYS_HEADING, _about(sessions, found, options, machine), table(found), *failures])
    print(section)
    if not options.only and not options.no_agents:
        text = RESULTS.read_text()
        RESULTS.write_text(text.replace(gateways_section(text), "").rstrip() + f"\n\n{section}\n")
        print_progress(f"written to {RESULTS}")
    return int(bool(failures))


def _about(sessions: Sequence[Session], found: Sequence[Findings], options: argparse.Namespace, machine: str) -> str:
    files = ", ".join(path.name for path in options.files)
    sent = next((one.recorded for one in found if one.recorded.requests), Traffic())
    size = sent.sent_bytes / max(1, sent.requests) / 1e3
    peers = ", ".join(line for one in CANDIDATES.values() if one.peer for line in one.peer.packages)
    lines = [
        f"`make bench-gateways WORKLOADS=…` on {time.strftime('%Y-%m-%d', time.gmtime())}, written by the command.",
        f"{files}: {len(sessions)} sessions, at most {options.turns} turns each, {size:,.0f} KB a request.",
        f"Agents: {', '.join(AGENTS)}; four turns each, one with a tool call. {peers}; {machine}.",
        "",
        "Prefix kept: the share of a request that the next one begins with. Costs are those of the input: the kept",
        "prefix as a cache read, the rest as new (at Claude as a cache write), four bytes a token. Latency, processor",
        "time: requests without a stream, one at a time, the gateway's whole process tree. The upstream that refuses",
        f"has a window of {LIMIT_TOKENS:,} tokens; the stream that breaks off has sent {CUT_AFTER} pieces.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="recorded sessions in chat format, one a line")
    parser.add_argument("--sample", type=int, default=8, help="how many sessions")
    parser.add_argument("--turns", type=int, default=60, help="how many turns of each")
    parser.add_argument("--budget", type=int, default=16_000, help="the small budget of the second column of ours")
    parser.add_argument("--only", nargs="*", help="run these gateways, and write nothing")
    parser.add_argument("--no-agents", action="store_true", help="leave the real agents out, and write nothing")
    kept = Path(os.environ.get("HOLDFAST_CLIENTS") or Path.home() / ".cache/holdfast-clients")
    parser.add_argument("--clients", type=Path, default=kept, help="where the agents are installed")
    sys.exit(asyncio.run(main(parser.parse_args())))
