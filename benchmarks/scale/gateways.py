"""Four gateways on one PostgreSQL behind PgBouncer, while gateways are killed and the server is restarted.

    python -m benchmarks.scale.gateways [--duration 600] [--sessions 1000] [--streams 50] [--gateways 4]

Clients converse in a thousand sessions, so many of them that fifty get an answer at any time; each reads its answer for
up to a second before the next prompt. Each turn goes to any gateway, and its answer is a stream of 60 events over 3 s.
A gateway is killed every 20 s and started again; PostgreSQL is restarted twice, once as in a crash. A client that gets
no whole answer repeats its request at another gateway, after as long as OpenAI's library waits, and so do some clients
that leave in the middle of an answer. The gateways are strict: a turn is acknowledged when its last event has arrived,
because a strict gateway stores the answer before. At the end every acknowledged message is looked for in the logs, and
every request is built again.

The same load goes through as many bare pass-throughs first. `p99_added_ms` is the difference of the 99th percentiles of
whole answers, without those that met a restart of PostgreSQL. What it consists of is printed: how long the slowest
answers took until the provider had their request, while it answered, and after its last event; and how much processor
time each kind of program used, and how long it waited for a core. `taken_over` are turns that another gateway has
finished after the one that began them was killed. The last line is one JSON object.

With `--plain`, pass-throughs that only store each prompt and each answer with plain SQL take the place of the gateways.
They show what storing alone costs under this load; nothing is looked for in the logs, because there are none.

With `--together`, clients read nothing and repeat a request after a tenth of a second. As every answer takes 3 s, those
that have lost a gateway in the same moment, or have waited for PostgreSQL, ask in the same moments until the end.
"""

import argparse
import asyncio
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from benchmarks.gateway import BARE, free_port
from benchmarks.reporting import print_progress
from benchmarks.scale.processor_time import ProcessorTime
from benchmarks.scale.servers import (
    Server,
    new_database,
    pgbouncer,
    pgbouncer_program,
    start_again,
    started_server,
    stop_server,
    wait_for_port,
)
from holdfast import Session
from holdfast.session.log.sent_body import sent_body
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.open import open_store

EVENTS, STREAM_SECONDS = 60, 3.0
AFTER_A_KILL_SECONDS = 1.0
READING_SECONDS = 1.0
"""How long a client reads an answer, at most; half of it on average."""
RETRY_SECONDS, MAX_RETRY_SECONDS, RETRY_SPREAD = 0.5, 8.0, 0.25
"""After how long a request is repeated: the first wait, which doubles, the longest, and the share that is random."""
KILL_SECONDS = 20.0
START_SECONDS = 60.0
SETTLE_SECONDS = 5.0
"""How long after a restart answers are not counted as ordinary ones."""
BUDGET = 6_000
POOL_SIZE = 8
"""How many connections PgBouncer has to the server."""
PROMPT_WORDS = 300
HOT_SHARE = 10
"""Each of these many sessions is used as often as all others together, so that some conversations are compacted."""
LEAVING_SHARE = 0.02
"""How many clients leave in the middle of an answer, and repeat the request elsewhere."""
MAX_ERROR_BYTES = 200
"""How much of an error's body is shown."""
TURN = re.compile(rb"\[s(\d+) t(\d+)\]")
Turn = tuple[int, int]
STORING = """
import asyncio, sys, aiohttp, psycopg, uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route
upstream, url, idle, box = sys.argv[1], sys.argv[3], [], {}
async def store(name, data):
    async with box["slots"]:
        connection = idle.pop() if idle else await psycopg.AsyncConnection.connect(
            url, autocommit=True, prepare_threshold=None)
        try:
            await connection.execute("INSERT INTO turns (name, data) VALUES (%s, %s)", (name, data))
        except BaseException:
            await connection.close()
            raise
        idle.append(connection)
async def relay(request):
    body = await request.body()
    if not box: box.update(session=aiohttp.ClientSession(auto_decompress=False), slots=asyncio.Semaphore(4))
    name = request.headers["x-session-id"]
    headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
    await store(name, body[body.rindex(b'{"role": "user"'):])
    answer = await box["session"].post(upstream + request.url.path, data=body, headers=headers)
    async def pieces():
        received = []
        async for piece in answer.content.iter_any():
            if received: yield received[-1]
            received.append(piece)
        await store(name, b"".join(received))
        yield received[-1]
    return StreamingResponse(pieces(), answer.status, {"content-type": answer.headers["content-type"]})
uvicorn.run(Starlette(routes=[Route("/{p:path}", relay, methods=["POST"])]), port=int(sys.argv[2]), log_level="error")
"""
"""A pass-through that stores each prompt before its request is passed on, and each answer before its last event."""


# The upstream.


def serve_upstream(port: int, log: Path) -> None:
    """Answer every request with a stream of 60 events over 3 s, and note which bytes came for which turn."""
    numbers = iter(range(1 << 40))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(size[1]) if size else 0)
                arrived = time.monotonic()
                session, turn = (int(one) for one in TURN.findall(body)[-1])
                number = next(numbers)
                note = {"turn": [session, turn], "sha256": hashlib.sha256(body).hexdigest()}
                notes.write(json.dumps(note) + "\n")
                notes.flush()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                words = [f"answer {number} to s{session} t{turn}", *["word"] * (EVENTS - 2)]
                started = time.monotonic()
                for place, word in enumerate([*words, None, b"[DONE]"]):
                    await asyncio.sleep(max(0.0, started + place * STREAM_SECONDS / EVENTS - time.monotonic()))
                    data = word if isinstance(word, bytes) else _event(word)
                    event = b"data: " + data + b"\n\n"
                    writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                notes.write(json.dumps({"answer": number, "arrived": arrived, "ended": time.monotonic()}) + "\n")
                notes.flush()
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 22)
        await server.serve_forever()

    with log.open("a") as notes:
        asyncio.run(run())


def _event(word: str | None) -> bytes:
    delta = {} if word is None else {"content": f"{word} "}
    choice = {"index": 0, "delta": delta, "finish_reason": "stop" if word is None else None}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5", "choices": [choice]}
    return json.dumps(chunk).encode()


# The clients.


@dataclass
class Talk:
    """One conversation, as its client knows it."""

    number: int
    said: list[tuple[str, str]] = field(default_factory=list)
    """The acknowledged messages: role and text."""
    prompt: str = ""

    def next_prompt(self) -> None:
        """Say something new."""
        turn = len(self.said) // 2
        chosen = random.Random(f"{self.number} {turn}")
        words = " ".join(f"w{chosen.randrange(5_000)}" for _ in range(PROMPT_WORDS))
        self.prompt = f"[s{self.number} t{turn}] {words}"

    def body(self) -> bytes:
        """Return the request: all that was said, and the prompt."""
        messages = [{"role": role, "content": text} for role, text in (*self.said, ("user", self.prompt))]
        return json.dumps({"model": "gpt-5", "stream": True, "messages": messages}).encode()

    @property
    def name(self) -> str:
        """The name of its session."""
        return f"talk-{self.number}"


@dataclass(frozen=True)
class Answer:
    """A whole answer: its text, and when its request was sent and its end had arrived."""

    text: str
    began: float
    ended: float

    @property
    def added(self) -> float:
        """How many seconds it took beyond those of its stream."""
        return self.ended - self.began - STREAM_SECONDS


class AnswerError(Exception):
    """Raised when there is no whole answer."""


async def ask(port: int, talk: Talk, *, leaves: bool = False) -> Answer:
    """Send the request of a talk, and return its whole answer."""
    began = time.monotonic()
    writer = None
    try:
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
            body = talk.body()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                b"authorization: Bearer x\r\nx-session-id: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
                % (talk.name.encode(), len(body))
            )
            writer.write(body)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"http/1.1 200") or b"x-holdfast-error" in head:
                why = re.sub(rb"\d+", b"N", await reader.read(MAX_ERROR_BYTES)).decode(errors="replace")
                raise AnswerError(f"{head.splitlines()[0].decode()}: {why}")
            received = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                received += (await reader.readexactly(size + 2))[:-2]
                if leaves and len(received) > 2_000:
                    raise AnswerError("the client left")
            if not received.endswith(b"data: [DONE]\n\n"):
                raise AnswerError("cut")
    except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError) as error:
        raise AnswerError(type(error).__name__) from error
    finally:
        if writer is not None:
            writer.close()
    events = [json.loads(line[6:]) for line in received.split(b"\n\n")[:-2]]
    text = "".join(one["choices"][0]["delta"].get("content", "") for one in events)
    return Answer(text, began, time.monotonic())


@dataclass
class Load:
    """Clients that converse until the time is over."""

    ports: Sequence[int]
    talks: Sequence[Talk]
    ends: float = 0.0
    down: set[int] = field(default_factory=set)
    """The ports where nobody listens, as far as a load balancer knows."""
    answers: list[Answer] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    together: bool = False
    """Whether clients read nothing, and repeat their requests in the same moment."""
    taken_over: int = 0
    """How many turns another gateway has finished after the one that began them was killed."""

    async def run(self, streams: int, seconds: float, *, leaving: float) -> None:
        """Converse with a number of streams at once; a client ends after its turn."""
        self.ends = time.monotonic() + seconds
        reading = 0.0 if self.together else READING_SECONDS / 2
        clients = round(streams * (STREAM_SECONDS + reading) / STREAM_SECONDS)
        hot = len(self.talks) // HOT_SHARE
        queues = asyncio.Queue[Talk](), asyncio.Queue[Talk]()
        for number, talk in enumerate(self.talks):
            queues[number >= hot].put_nowait(talk)
        await asyncio.gather(*(self._client(queues[number % 2], number, leaving) for number in range(clients)))

    async def _client(self, talks: asyncio.Queue[Talk], number: int, leaving: float) -> None:
        chosen = random.Random(number)
        await asyncio.sleep(chosen.random() * STREAM_SECONDS)
        while time.monotonic() < self.ends:
            talk = await talks.get()
            talk.next_prompt()
            answer = await self._turn(talk, chosen, leaving)
            talk.said += [("user", talk.prompt), ("assistant", answer.text)]
            talks.put_nowait(talk)
            if not self.together:
                await asyncio.sleep(chosen.random() * READING_SECONDS)

    async def _turn(self, talk: Talk, chosen: random.Random, leaving: float) -> Answer:
        """Repeat a request until one gateway has answered it."""
        last, was_killed, attempts = 0, False, 0
        while True:
            ports = [port for port in self.ports if port not in self.down and port != last] or list(self.ports)
            last = chosen.choice(ports)
            try:
                answer = await ask(last, talk, leaves=chosen.random() < leaving)
            except AnswerError as error:
                self.failures[str(error)] += 1
                wait = min(RETRY_SECONDS * 2**attempts, MAX_RETRY_SECONDS) * (1 - RETRY_SPREAD * chosen.random())
                attempts += 1
                was_killed = was_killed or last in self.down
                await asyncio.sleep(0.1 if self.together else wait)
            else:
                self.answers.append(answer)
                self.taken_over += was_killed
                return answer


# The gateways.


@dataclass
class Gateway:
    """A program at a port that may be killed and started again."""

    command: list[str]
    port: int
    environ: dict[str, str]
    process: asyncio.subprocess.Process | None = None
    is_starting: bool = False
    starting_seconds: float = 0.0
    serving_seconds: float = 0.0
    """The processor time of all its runs, until it listened and afterwards."""

    async def start(self) -> None:
        """Run it, and wait until it listens."""
        quiet, self.is_starting = asyncio.subprocess.DEVNULL, True
        self.process = await asyncio.create_subprocess_exec(
            *self.command, env=self.environ, stdin=quiet, stdout=quiet, stderr=quiet
        )
        if not await wait_for_port(self.port, START_SECONDS):
            raise SystemExit(f"{self.command[0]} does not listen on {self.port}")
        self.is_starting = False
        spent = processor_seconds(self.process.pid)
        self.starting_seconds += spent
        self.serving_seconds -= spent

    async def kill(self) -> None:
        """Kill it without a warning."""
        if self.process is not None:
            self.serving_seconds += processor_seconds(self.process.pid)
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()


def processor_seconds(pid: int) -> float:
    """Return the processor time of a program so far."""
    # The name of the program stands in parentheses and may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def running(gateways: Sequence[Gateway]) -> AsyncGenerator[None]:
    """Run programs until the end."""
    try:
        await asyncio.gather(*(one.start() for one in gateways))
        yield
    finally:
        await asyncio.gather(*(one.kill() for one in gateways))


@dataclass
class Outages:
    """What was killed and restarted, and when PostgreSQL was away."""

    kills: int = 0
    starts: list[tuple[float, float]] = field(default_factory=list)
    """When gateways were started again, each until it listened."""
    restarts: list[tuple[float, float]] = field(default_factory=list)

    async def kill_gateways(self, gateways: Sequence[Gateway], load: Load) -> None:
        """Kill one gateway after another, and start each again."""
        while True:
            for gateway in gateways:
                await asyncio.sleep(KILL_SECONDS)
                load.down.add(gateway.port)
                await gateway.kill()
                self.kills += 1
                began = time.monotonic()
                await gateway.start()
                self.starts.append((began, time.monotonic()))
                load.down.discard(gateway.port)

    async def restart_server(self, server: Server, seconds: float) -> None:
        """Restart PostgreSQL twice, evenly over the time."""
        for mode in ("immediate", "fast"):
            await asyncio.sleep(seconds / 3)
            self.restarts.append((time.monotonic(), math.inf))
            await asyncio.to_thread(stop_server, server, mode)
            await asyncio.to_thread(start_again, server)
            self.restarts[-1] = self.restarts[-1][0], time.monotonic() + SETTLE_SECONDS

    def is_met_by(self, answer: Answer) -> bool:
        """Return whether an answer was under way while PostgreSQL was away."""
        return _meets(answer, self.restarts)

    def starts_met_by(self, answer: Answer) -> bool:
        """Return whether a gateway was started while an answer was under way."""
        return _meets(answer, self.starts)

    def follows_a_kill(self, answer: Answer) -> bool:
        """Return whether an answer was asked for when others, whose gateway was just killed, asked again."""
        return any(0 <= answer.began - killed < AFTER_A_KILL_SECONDS for killed, _ in self.starts)


def _meets(answer: Answer, times: Sequence[tuple[float, float]]) -> bool:
    return any(answer.began < until and answer.ended > since for since, until in times)


# What became of it.


async def look_for_messages(url: str, talks: Sequence[Talk]) -> Counter[str]:
    """Return how many acknowledged messages are lost and doubled, and how many requests cannot be built again."""
    found: Counter[str] = Counter()
    store = open_store(url)
    for talk in talks:
        if not talk.said:
            continue
        async with Session.open(talk.name, store=store) as session:
            texts = Counter(str(native["content"]).rstrip() for native in await session.messages())
            # Those that a rewind took back are still in the log.
            logged = Counter(entry.message.text.rstrip() for entry in session.history.entries)
            found["requests"] += 1
            events = await session.events()
            for number, request in enumerate(rebuilt_requests(events)):
                body = sent_body(events, number)
                found["rebuilt"] += 1
                found["not_the_same"] += not (
                    body is not None and body.is_same and request.is_same and request.is_chained
                )
            found["compactions"] += len(await session.receipts())
        for _, text in talk.said:
            is_lost, is_doubled = text.rstrip() not in texts, logged[text.rstrip()] > 1
            found["acknowledged"] += 1
            found["lost"] += is_lost
            found["doubled"] += is_doubled
            if is_lost or is_doubled:
                print(f"{'lost' if is_lost else 'doubled'} in {talk.name}: {text[:40]}")
    await store.close()
    return found


def different_bytes(log: Path) -> tuple[int, int]:
    """Return for how many turns the upstream got different bytes, and how many it got more than once."""
    hashes: dict[Turn, list[str]] = {}
    for note in map(json.loads, log.read_text().splitlines()):
        if "turn" in note:
            hashes.setdefault((note["turn"][0], note["turn"][1]), []).append(note["sha256"])
    return sum(len({*one}) > 1 for one in hashes.values()), sum(len(one) > 1 for one in hashes.values())


def percentile(answers: Sequence[Answer], share: float) -> float:
    """Return how many milliseconds an answer took at a percentile, beyond the time its stream takes."""
    took = sorted(one.added for one in answers) or [0.0]
    return took[min(len(took) - 1, int(len(took) * share))] * 1e3


PHASES = "until the upstream had the request", "while it sent the answer", "after its last event"


def slowest_answers(answers: Sequence[Answer], log: Path, outages: Outages) -> str:
    """Return what the slowest hundredth of answers waited for, in milliseconds at the mean."""
    notes = {note["answer"]: note for note in map(json.loads, log.read_text().splitlines()) if "answer" in note}
    slowest = sorted(answers, key=lambda one: one.added)[-max(1, len(answers) // 100) :]
    waits: list[tuple[float, float, float]] = []
    for one in slowest:
        note = notes[int(one.text.split()[1])]
        sending = note["ended"] - note["arrived"] - STREAM_SECONDS
        waits.append((note["arrived"] - one.began, sending, one.ended - note["ended"]))
    means = [sum(each) / len(waits) * 1e3 for each in zip(*waits, strict=True)]
    shown = ", ".join(f"{mean:.0f} ms {name}" for mean, name in zip(means, PHASES, strict=False))
    starts = sum(map(outages.starts_met_by, slowest))
    return f"{shown}; {starts} of {len(slowest)} while a gateway was started"


async def run(args: argparse.Namespace, program: str, folder: Path) -> dict[str, object]:
    """Run the load beside a bare pass-through, and return the figures."""
    upstream, log = free_port(), folder / "upstream.jsonl"
    environ = {**os.environ, "HOME": str(folder), "HOLDFAST_CONTROL_TOKEN": "t"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    serving = [sys.executable, "-m", "benchmarks.scale.gateways", "--serve-upstream", str(upstream), str(log)]
    (folder / "bare.py").write_text(BARE)
    talks = [Talk(number) for number in range(args.sessions)]
    standing = Gateway(serving, upstream, environ)
    async with running([standing]):
        at = f"http://127.0.0.1:{upstream}"
        ports = [free_port() for _ in range(args.gateways)]
        bare = [Gateway([sys.executable, str(folder / "bare.py"), at, str(port)], port, environ) for port in ports]
        before = [Talk(number) for number in range(args.sessions)]
        bare_run = await run_gateways(args, None, bare, before, standing, seconds=min(60.0, args.duration / 2))
        bare_log = folder / "bare.jsonl"
        bare_log.write_text(log.read_text())
        log.write_text("")
        with started_server() as server:
            url = new_database(server)
            with pgbouncer(program, url, server.system_user, pool_size=POOL_SIZE) as pooled:
                make = storing_pass_throughs if args.plain else strict_gateways
                gateways = make(args.gateways, pooled, at, environ)
                ours = await run_gateways(args, server, gateways, talks, standing, seconds=args.duration)
            print_progress("looking for every acknowledged message …")
            found = Counter[str]() if args.plain else await look_for_messages(url, talks)
    different, repeated = different_bytes(log)
    for name, part, programs, noted in (
        ("bare pass-through", bare_run, bare, bare_log),
        ("pass-through that stores" if args.plain else "gateway", ours, gateways, log),
    ):
        answers = part.load.answers
        for kind, shown in (name, part.calm), (f"{name}, with restarts of PostgreSQL", answers):
            if kind == name or len(shown) > len(part.calm):
                each = ", ".join(f"p{share * 100:g} {percentile(shown, share):.1f} ms" for share in (0.5, 0.9, 0.99))
                print(f"{kind}: {len(shown):,} answers, beyond their {STREAM_SECONDS:g} s: {each}")
        unmet = [one for one in part.calm if not part.outages.starts_met_by(one)]
        print(f"  while no gateway was started: p99 {percentile(unmet, 0.99):.1f} ms of {len(unmet):,}")
        after = [one for one in part.calm if part.outages.follows_a_kill(one)]
        others = [one for one in part.calm if not part.outages.follows_a_kill(one)]
        shares = ", ".join(f"p{share * 100:g} {percentile(after, share):.1f} ms" for share in (0.5, 0.9, 0.99))
        print(
            f"  asked for within {AFTER_A_KILL_SECONDS:g} s after a kill: {shares} of {len(after):,}; "
            f"all others: p99 {percentile(others, 0.99):.1f} ms of {len(others):,}"
        )
        print(f"  the slowest hundredth: {slowest_answers(part.calm, noted, part.outages)}")
        turn = sum(one.serving_seconds for one in programs) / max(1, len(answers)) * 1e3
        start = sum(one.starting_seconds for one in programs) / (len(programs) + part.outages.kills)
        print(f"  processor time: {turn:.1f} ms for each answer, {start:.2f} s for each start")
        print(f"  of {os.cpu_count()} cores: {'; '.join(part.processor.lines())}")
    for why, count in ours.load.failures.most_common():
        print(f"attempts without a whole answer: {count:,} {why}")
    print(f"turns the upstream got again: {repeated:,}")
    print(f"requests built again from the logs: {found['rebuilt']:,}; changes of context: {found['compactions']:,}")
    return {
        "acknowledged": found["acknowledged"],
        "lost": found["lost"],
        "doubled": found["doubled"],
        "different_bytes": different + found["not_the_same"],
        "kills": ours.outages.kills,
        "restarts": len(ours.outages.restarts),
        "taken_over": ours.load.taken_over,
        "p99_added_ms": round(percentile(ours.calm, 0.99) - percentile(bare_run.calm, 0.99), 1),
    }


def strict_gateways(count: int, url: str, upstream: str, environ: dict[str, str]) -> list[Gateway]:
    """Return gateways on one store, not yet started."""
    holdfast = str(Path(sys.executable).with_name("holdfast"))
    options = ["--store", url, "--upstream", f"openai={upstream}/v1", "--budget", str(BUDGET), "--strict"]
    ports = [free_port() for _ in range(count)]
    return [Gateway([holdfast, "gateway", "--port", str(port), *options], port, environ) for port in ports]


def storing_pass_throughs(count: int, url: str, upstream: str, environ: dict[str, str]) -> list[Gateway]:
    """Return pass-throughs that store with plain SQL, not yet started."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE turns (number BIGSERIAL PRIMARY KEY, name TEXT NOT NULL, data BYTEA NOT NULL)")
    ports = [free_port() for _ in range(count)]
    return [Gateway([sys.executable, "-c", STORING, upstream, str(port), url], port, environ) for port in ports]


@dataclass(frozen=True)
class Run:
    """What came of a load."""

    load: Load
    outages: Outages
    processor: ProcessorTime

    @property
    def calm(self) -> list[Answer]:
        """The answers that met no restart of PostgreSQL."""
        return [one for one in self.load.answers if not self.outages.is_met_by(one)]


async def run_gateways(
    args: argparse.Namespace,
    server: Server | None,
    gateways: Sequence[Gateway],
    talks: Sequence[Talk],
    upstream: Gateway,
    *,
    seconds: float,
) -> Run:
    """Converse through gateways that are killed, on a server, if they have one, that is restarted."""
    load, outages = Load([one.port for one in gateways], talks, together=args.together), Outages()
    what = "bare pass-throughs" if server is None else "gateways"

    def programs() -> dict[int, str]:
        named = {os.getpid(): "clients"}
        for one in gateways:
            if one.process is not None:
                named[one.process.pid] = f"{what} that start" if one.is_starting else what
        if upstream.process is not None:
            named[upstream.process.pid] = "upstream"
        if server is not None:
            with suppress(OSError, ValueError):
                named[int((server.pgdata / "postmaster.pid").read_text().split()[0])] = "PostgreSQL"
        return named

    processor = ProcessorTime(programs)
    async with running(gateways):
        print_progress(f"{args.streams} streams through {args.gateways} {what} for {seconds:g} s …")
        others = [asyncio.create_task(processor.watch())]
        if not args.calm:
            others.append(asyncio.create_task(outages.kill_gateways(gateways, load)))
        if not args.calm and server is not None:
            others.append(asyncio.create_task(outages.restart_server(server, seconds)))
        try:
            await load.run(args.streams, seconds, leaving=0.0 if server is None else args.leaving)
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
    return Run(load, outages, processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duration", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--sessions", type=int, default=1_000, metavar="N")
    parser.add_argument("--streams", type=int, default=50, metavar="N")
    parser.add_argument("--gateways", type=int, default=4, metavar="N")
    parser.add_argument(
        "--leaving",
        type=float,
        default=LEAVING_SHARE,
        metavar="SHARE",
        help="how many clients leave in the middle of an answer and ask another gateway (%(default)s)",
    )
    parser.add_argument("--calm", action="store_true", help="kill and restart nothing")
    parser.add_argument("--together", action="store_true", help="let clients read nothing and ask again together")
    parser.add_argument(
        "--plain", action="store_true", help="measure pass-throughs that store with plain SQL instead of gateways"
    )
    parser.add_argument("--serve-upstream", nargs=2, metavar=("PORT", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_upstream:
        serve_upstream(int(args.serve_upstream[0]), Path(args.serve_upstream[1]))
        return
    program = pgbouncer_program()
    if program is None:
        raise SystemExit("this needs PgBouncer: install your system's package, such as apt-get install pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-scale-"))
    try:
        figures = asyncio.run(run(args, program, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(figures))
    if any(figures[name] for name in ("lost", "doubled", "different_bytes")):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
