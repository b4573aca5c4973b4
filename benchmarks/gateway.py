"""What a gateway costs: added latency and processor time, beside a bare pass-through and other proxies.

    python -m benchmarks.gateway [--sizes 2 200 2000] [--requests 200] [--long 100000] [--peers litellm headroom]

Every candidate is a process of its own in front of one fast upstream, which answers each request with a stream of 60
events. The client grows conversations: each request sends the whole list, with the last answer and one more prompt.
Processor time is that of the candidate's whole process tree, so that other work on the machine matters little. The
bare pass-through is Starlette with uvicorn and aiohttp, and nothing else. Peers are installed under `.peers`, and run
without network access. Needs Linux, for /proc.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers import Peer, PeerError, install
from benchmarks.reporting import print_progress, save_figures, verdict
from benchmarks.tables import DASH, markdown_table

EVENTS = 60
WORD = "word "
ANSWER = "".join(f"w{number} " for number in range(EVENTS))
START_SECONDS = 90.0
WARM_UP = 10
CONCURRENT = 8
AIMS = {"cpu_ms": 1.5, "p50_ms": 5.0, "first_byte_ms": 5.0}
AIM_STREAMS = 300
TICKS = os.sysconf("SC_CLK_TCK")

BARE = """
import sys, aiohttp, uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route
upstream, box = sys.argv[1], {}
async def relay(request):
    body = await request.body()
    if "session" not in box: box["session"] = aiohttp.ClientSession(auto_decompress=False)
    headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
    answer = await box["session"].post(upstream + request.url.path, data=body, headers=headers)
    return StreamingResponse(answer.content.iter_any(), answer.status, {"content-type": answer.headers["content-type"]})
uvicorn.run(Starlette(routes=[Route("/{p:path}", relay, methods=["POST"])]), port=int(sys.argv[2]), log_level="error")
"""
LITELLM = Peer("litellm-proxy", "", ["litellm[proxy]==1.106.2"])
HEADROOM = Peer("headroom-proxy", "", ["headroom-ai[proxy]==0.42.0"])


@dataclass(frozen=True)
class Candidate:
    """A program that stands between the client and the upstream."""

    name: str
    command: Callable[[str, int, Path], list[str]]
    """From the address of the upstream, the port to listen on, and a folder for files."""
    peer: Peer | None = None
    environ: Callable[[str], Mapping[str, str]] = field(default=lambda _: {})


def _bare(upstream: str, port: int, folder: Path) -> list[str]:
    (folder / "bare.py").write_text(BARE)
    return [sys.executable, str(folder / "bare.py"), upstream, str(port)]


def _holdfast(upstream: str, port: int, folder: Path) -> list[str]:
    program = str(Path(sys.executable).with_name("holdfast"))
    store = f"sqlite:///{folder}/chats.db"
    upstreams = ["--upstream", f"openai={upstream}/v1", "--upstream", f"anthropic={upstream}"]
    return [program, "gateway", "--port", str(port), "--store", store, *upstreams]


def _litellm(upstream: str, port: int, folder: Path) -> list[str]:
    addresses = {"gpt-*": f"{upstream}/v1", "claude-*": upstream}
    providers = {"gpt-*": "openai", "claude-*": "anthropic"}
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": f"{providers[name]}/{name}", "api_base": address, "api_key": "x"},
        }
        for name, address in addresses.items()
    ]
    config = {"model_list": models}
    (folder / "litellm.yaml").write_text(json.dumps(config))
    program = str(LITELLM.python.with_name("litellm"))
    return [program, "--config", str(folder / "litellm.yaml"), "--port", str(port), "--host", "127.0.0.1"]


def _headroom(_upstream: str, port: int, _folder: Path) -> list[str]:
    return [str(HEADROOM.python.with_name("headroom")), "proxy", "--port", str(port), "--no-rate-limit"]


CANDIDATES = {
    "bare": Candidate("bare pass-through", _bare),
    "holdfast": Candidate("holdfast gateway", _holdfast),
    "litellm": Candidate(
        "LiteLLM proxy", _litellm, LITELLM, lambda _: {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    ),
    "headroom": Candidate(
        "headroom proxy",
        _headroom,
        HEADROOM,
        lambda url: {"OPENAI_TARGET_API_URL": url, "ANTHROPIC_TARGET_API_URL": url},
    ),
}


# The upstream.


def stream_of_answer() -> bytes:
    """Return the HTTP answer of the upstream."""
    chunks = [
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5", "choices": [one]}
        for one in (
            *({"index": 0, "delta": {"content": word}, "finish_reason": None} for word in ANSWER.split(" ") if word),
            {"index": 0, "delta": {}, "finish_reason": "stop"},
        )
    ]
    events = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks] + [b"data: [DONE]\n\n"]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in events) + b"0\r\n\r\n"


def serve_upstream(port: int) -> None:
    """Answer every request at once, in a process of its own."""
    answer = stream_of_answer()
    events = answer.split(b"\r\n\r\n", 1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                return
            named = {name.lower(): value for name, _, value in (line.partition(b": ") for line in head.split(b"\r\n"))}
            if named.get(b"transfer-encoding") == b"chunked":
                while size := int(await reader.readline(), 16):
                    await reader.readexactly(size + 2)
                await reader.readline()
            else:
                await reader.readexactly(int(named.get(b"content-length", b"0")))
            writer.write(events[0] + b"\r\n\r\n")
            pieces = events[1].split(b"data: ")
            for start in range(0, len(pieces), 6):
                writer.write(
                    b"data: ".join(pieces[start : start + 6]) + (b"data: " if start + 6 < len(pieces) else b"")
                )
                await asyncio.sleep(0)

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 22)
        await server.serve_forever()

    asyncio.run(run())


# The client.


@dataclass
class Conversation:
    """A conversation of a certain size that grows with every request."""

    name: str
    messages: bytes
    turn: int = 0

    @classmethod
    def of_size(cls, name: str, kilobytes: int) -> "Conversation":
        """Return a conversation that is as large as its body should be."""
        turns: list[dict[str, str]] = []
        while sum(len(one["content"]) + 32 for one in turns) < kilobytes * 1_000 - 400:
            number = len(turns)
            turns.append({"role": "user", "content": f"{name} question {number}: " + WORD * min(180, 20 * kilobytes)})
            turns.append({"role": "assistant", "content": f"answer {number}: " + WORD * min(120, 20 * kilobytes)})
        return cls(name, json.dumps(turns)[1:-1].encode())

    def next_body(self) -> bytes:
        """Return the body of the next request: all that was said, the last answer, and one more prompt."""
        said = {"role": "assistant", "content": "".join(ANSWER.split(" "))}
        if self.turn:
            self.messages += b", " + json.dumps(said).encode()
        prompt = json.dumps({"role": "user", "content": f"{self.name}: go on, step {self.turn}"}).encode()
        self.messages += (b", " if self.messages else b"") + prompt
        self.turn += 1
        return b'{"model": "gpt-5", "stream": true, "messages": [' + self.messages + b"]}"


class LoadClient:
    """A client with one connection that measures its answers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, conversation: Conversation) -> tuple[float, float]:
        """Send a request; return the seconds to the first byte and to the end."""
        body = conversation.next_body()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        reader, writer = self._streams
        started = time.perf_counter()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer x\r\nx-session-id: %s\r\ncontent-length: %d\r\n\r\n"
            % (conversation.name.encode(), len(body))
        )
        writer.write(body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        first = time.perf_counter() - started
        if not head.startswith(b"http/1.1 200"):
            raise PeerError(f"answered {head.splitlines()[0].decode()}")
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
        if b"connection: close" in head:
            self.close()
        return first, time.perf_counter() - started

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


# Measuring.


def process_tree(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from process_tree(int(child))


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process tree."""
    total = 0
    for one in process_tree(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rsplit(") ", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process tree."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in process_tree(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_files(pid: int) -> int:
    """Return how many files and connections a process tree has open."""
    return sum(len(list(Path(f"/proc/{one}/fd").iterdir())) for one in process_tree(pid))


@asynccontextmanager
async def running(command: Sequence[str], port: int, environ: Mapping[str, str]) -> AsyncGenerator[int]:
    """Run a program until it listens, and yield its process id."""
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError as error:
                if process.returncode is not None or time.monotonic() > deadline:
                    raise PeerError(f"does not listen (ended with {process.returncode})") from error
                await asyncio.sleep(0.1)
        yield process.pid
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), 20)
            except TimeoutError:
                process.kill()
                await process.wait()


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@dataclass(frozen=True)
class Figures:
    """What one candidate takes for bodies of one size."""

    name: str
    kilobytes: int
    cpu_ms: float
    p50_ms: float
    p99_ms: float
    first_byte_ms: float
    streams_per_core_second: float
    """With several connections at once."""


async def measure(candidate: Candidate, kilobytes: int, upstream: str, requests: int) -> Figures:
    """Return the figures of one candidate: one connection for latency, then several for throughput."""
    folder, port = Path(tempfile.mkdtemp()), free_port()
    base = candidate.peer.environ if candidate.peer else dict(os.environ)
    environ = {**base, "HOME": str(folder), "HOLDFAST_CONTROL_TOKEN": "t", **candidate.environ(upstream)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        async with running(candidate.command(upstream, port, folder), port, environ) as pid:
            client, conversation = LoadClient(port), Conversation.of_size("latency", kilobytes)
            for _ in range(WARM_UP):
                await client.send(conversation)
            before = cpu_seconds(pid)
            times = [await client.send(conversation) for _ in range(requests)]
            cpu = (cpu_seconds(pid) - before) / requests
            client.close()
            many = [Conversation.of_size(f"many-{number}", kilobytes) for number in range(CONCURRENT)]
            await asyncio.gather(*(_grow(port, one, 1) for one in many))
            before, each = cpu_seconds(pid), max(1, requests // CONCURRENT)
            await asyncio.gather(*(_grow(port, one, each) for one in many))
            streams = each * CONCURRENT / max(1 / TICKS, cpu_seconds(pid) - before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    whole = sorted(last for _, last in times)
    return Figures(
        candidate.name,
        kilobytes,
        cpu * 1e3,
        statistics.median(whole) * 1e3,
        whole[int(len(whole) * 0.99) - 1] * 1e3,
        statistics.median(first for first, _ in times) * 1e3,
        streams,
    )


async def _grow(port: int, conversation: Conversation, requests: int) -> None:
    client = LoadClient(port)
    for _ in range(requests):
        await client.send(conversation)
    client.close()


class Growth(NamedTuple):
    """What the gateway holds after so many requests."""

    requests: int
    memory_mb: float
    open_files: int


async def measure_growth(requests: int, upstream: str) -> list[Growth]:
    """Return what the gateway holds over many requests, in conversations that end after fifty turns."""
    folder, port = Path(tempfile.mkdtemp()), free_port()
    environ = {**os.environ, "HOME": str(folder), "HOLDFAST_CONTROL_TOKEN": "t"}
    found: list[Growth] = []
    try:
        async with running(_holdfast(upstream, port, folder), port, environ) as pid:
            done, step = 0, max(1, requests // 10)
            while done < requests:
                part = min(step, requests - done)
                each = part // CONCURRENT
                await asyncio.gather(*(_many(port, f"m{done}-{one}", each) for one in range(CONCURRENT)))
                done += part
                found.append(Growth(done, memory_mb(pid), open_files(pid)))
                print_progress(f"{done:,} requests: {found[-1].memory_mb:.0f} MB, {found[-1].open_files} open files")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


async def _many(port: int, name: str, requests: int) -> None:
    client, conversation = LoadClient(port), Conversation.of_size(f"{name}-0", 2)
    for number in range(requests):
        if conversation.turn >= 50:
            conversation = Conversation.of_size(f"{name}-{number}", 2)
        await client.send(conversation)
    client.close()


def report(rows: Sequence[Figures | tuple[str, int, str]]) -> str:
    """Return the table: each candidate with what it adds to the bare pass-through."""
    bare = {row.kilobytes: row for row in rows if isinstance(row, Figures) and row.name == CANDIDATES["bare"].name}
    lines: list[list[str]] = []
    for row in rows:
        if not isinstance(row, Figures):
            lines.append([row[0], f"{row[1]:,} KB", f"**failed:** {row[2]}", *[DASH] * 4])
            continue
        base = bare.get(row.kilobytes)
        added = [
            f"{value:.2f}" + (f" (+{value - getattr(base, name):.2f})" if base and base is not row else "")
            for name, value in (("cpu_ms", row.cpu_ms), ("p50_ms", row.p50_ms), ("p99_ms", row.p99_ms),
                                ("first_byte_ms", row.first_byte_ms))
        ]  # fmt: skip
        lines.append([row.name, f"{row.kilobytes:,} KB", *added, f"{row.streams_per_core_second:,.0f}"])
    head = ["", "body", "CPU ms", "p50 ms", "p99 ms", "first byte ms", "streams/s and core"]
    return markdown_table(head, lines)


def aims(rows: Sequence[Figures | tuple[str, int, str]]) -> list[str]:
    """Return whether each aim for bodies of 200 KB is met."""
    at = {row.name: row for row in rows if isinstance(row, Figures) and row.kilobytes == 200}
    bare, ours = at.get(CANDIDATES["bare"].name), at.get(CANDIDATES["holdfast"].name)
    if bare is None or ours is None:
        return []
    added = {name: getattr(ours, name) - getattr(bare, name) for name in AIMS}
    lines = [
        f"{name} added {added[name]:.2f}, aim {AIMS[name]}: {verdict(is_met=added[name] <= AIMS[name])}"
        for name in AIMS
    ]
    small = next(
        (row for row in rows if isinstance(row, Figures) and row.name == ours.name and row.kilobytes == 2), ours
    )
    streams = small.streams_per_core_second
    return [*lines, f"streams/s and core {streams:,.0f}, aim {AIM_STREAMS}: {verdict(is_met=streams >= AIM_STREAMS)}"]


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all candidates, and print the tables."""
    port, rows = free_port(), list[Figures | tuple[str, int, str]]()
    command = [sys.executable, "-m", "benchmarks.gateway", "--serve-upstream", str(port)]
    async with running(command, port, dict(os.environ)):
        upstream = f"http://127.0.0.1:{port}"
        for name in ("bare", "holdfast", *args.peers):
            candidate = CANDIDATES[name]
            for kilobytes in args.sizes:
                print_progress(f"{candidate.name}, {kilobytes:,} KB …")
                try:
                    if candidate.peer:
                        await install(candidate.peer)
                    rows.append(await measure(candidate, kilobytes, upstream, args.requests))
                except (PeerError, asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
                    rows.append((candidate.name, kilobytes, str(error)[:120]))
        print(report(rows))
        for line in aims(rows):
            print(line)
        growth = await measure_growth(args.long, upstream) if args.long else []
    if growth:
        first, *_, last = (one for one in growth if one.requests >= args.long // 2)
        print(
            f"memory from {first.memory_mb:.0f} to {last.memory_mb:.0f} MB, open files from {first.open_files} to "
            f"{last.open_files} in the second half of {args.long:,} requests"
        )
    figures = [asdict(row) if isinstance(row, Figures) else {"name": row[0], "failed": row[2]} for row in rows]
    return {"figures": figures, "growth": [one._asdict() for one in growth]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 200, 2_000], metavar="KB")
    parser.add_argument("--requests", type=int, default=200, help="measured requests for each size")
    parser.add_argument("--long", type=int, default=0, help="also send this many requests and watch the memory")
    parser.add_argument("--peers", nargs="*", default=[], choices=["litellm", "headroom"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--serve-upstream", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_upstream:
        serve_upstream(args.serve_upstream)
        return
    save_figures(asyncio.run(run(args)), args.json)


if __name__ == "__main__":
    main()
