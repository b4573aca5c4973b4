"""Measures what a session costs: its requests, its compactions, its start, and how long it blocks the event loop.

    python -m benchmarks.session [FOLDER] [--json FILE] [--only ROW,ROW] [--sample N]

FOLDER has recorded sessions in OpenAI chat format, one a line (`*.jsonl`, default `../shared/workloads`); without it
only generated sessions are measured. Times are processor time of the whole process, its threads and its children
included, because other load does not change it much. A block is the longest processor time that one callback of the
event loop takes. Each row names its aim. Peers are measured by `benchmarks.prepare` and `benchmarks.imports`.
"""

import argparse
import asyncio
import gc
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from asyncio.events import Handle
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache, partial
from itertools import accumulate, islice, takewhile
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from benchmarks import turns
from benchmarks.reporting import print_progress, save_figures, verdict
from benchmarks.tables import markdown_table
from holdfast import HoldfastError, Session, govern
from holdfast.counters.vocabularies import tokenizer
from holdfast.session.maintenance.scrub import scrub
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message

MODEL, BUDGET, LONG_TOKENS = "gpt-5", 100_000, 110_000
ROOMY_BUDGET = 400_000
"""What a session needs that must not compact by itself: it takes thousands of turns while others do."""
DEFAULT_FOLDER = Path("../shared/workloads")
LONG_CHARS, MAX_MEMORY_SESSIONS = 330_000, 8
START_RUNS = 7
GOVERN_RUNS = 9
LONG_INPUT_RUNS = 5
STARTS = {
    "python -c pass": ("pass", None),
    "import holdfast": ("import holdfast", 80),
    "from holdfast import govern, one call": (
        f"from holdfast import govern; govern([{{'role': 'user', 'content': 'hello'}}], budget=1000, model={MODEL!r})",
        150,
    ),
    "holdfast --version": ("from holdfast.apps.cli.main import main; main(['--version'])", 120),
    "Session in memory, first prepare": (
        (
            "import asyncio; from holdfast import Session\n"
            "async def main():\n"
            "    async with Session.open('one') as session:\n"
            "        await session.record([{'role': 'user', 'content': 'hello'}])\n"
            "        await session.prepare(16_000)\n"
            "asyncio.run(main())"
        ),
        250,
    ),
}
Row = dict[str, Any]
Measured = TypeVar("Measured")


def row(name: str, value: float, unit: str, aim: float | None, **facts: Any) -> Row:
    """Return one measured figure with its aim, which it must not exceed."""
    return {"name": name, "value": value, "unit": unit, "aim": aim, **facts}


def read_sessions(folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the recorded sessions of a folder without annotations."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            recorded = json.loads(line)
            messages = [
                {key: value for key, value in message.items() if not key.startswith("x_")}
                for message in recorded["messages"]
            ]
            yield f"{path.stem}/{recorded['id']}", messages


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile in milliseconds."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1000 if values else 0.0


class LoopBlocks:
    """Measures the longest processor time of one callback on the event loop while it is entered."""

    def __init__(self) -> None:
        self.longest = 0.0

    def __enter__(self) -> Self:
        self._run = run = Handle._run  # noqa: SLF001 - asyncio has no other place to measure callbacks

        blocks = self

        def measured(self: Handle) -> None:
            began = time.thread_time()
            run(self)
            blocks.longest = max(blocks.longest, time.thread_time() - began)

        Handle._run = measured  # noqa: SLF001 - as above
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Handle._run = self._run  # noqa: SLF001 - as above


class CollectorPauses:
    """Measures the longest processor time of one garbage collection, as one of `gc.callbacks`."""

    def __init__(self) -> None:
        self.longest = self._began = 0.0

    def __call__(self, phase: str, _facts: Mapping[str, int]) -> None:
        """Note the begin or the end of one collection."""
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.longest = max(self.longest, time.thread_time() - self._began)


async def timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Return the processor seconds of some work, and the longest block of the loop."""
    began = time.process_time()
    with LoopBlocks() as blocks:
        # A task of its own, so that each step of it is a callback of the loop.
        result = await asyncio.ensure_future(_awaited(work))
        seconds = time.process_time() - began
    del result
    return seconds, blocks.longest


async def _awaited(work: Callable[[], Awaitable[Any]]) -> object:
    return await work()  # returned, because it is the caller who frees it


def tokenizer_seconds(texts: Sequence[str]) -> float:
    """Return the time that the tokenizer itself takes for texts that it has not seen."""
    encode = tokenizer("o200k_base")
    began = time.process_time()
    for text in texts:
        encode.encode_ordinary(text)
    return time.process_time() - began


def texts_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts and tool arguments of messages."""
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    return [
        *(text for message in messages if isinstance(text := message.get("content"), str)),
        *(str(call["function"]["arguments"]) for call in calls),
    ]


def log_lines(count: int, seed: int) -> list[str]:
    """Return log lines of about 50 tokens that nobody has counted yet."""
    chance = random.Random(seed)
    return [
        f"2026-03-{chance.randint(1, 28):02} worker-{chance.randint(1, 40)} GET /api/v2/{chance.getrandbits(96):024x} "
        f"{chance.choice((200, 204, 404))} {chance.randint(1, 900)}ms {chance.getrandbits(64):x}"
        for _ in range(count)
    ]


def session_of_tokens(tokens: int, seed: int = 1) -> list[Any]:
    """Return a generated session of about a number of tokens with log lines as outputs, which ends with a prompt."""
    messages = list[Any]()
    lines = log_lines(tokens // 50, seed)
    for number in range(len(lines) // 10):
        if number % 10 == 0:
            messages += [assistant_message(f"Part {number} is done.")] if number else []
            messages.append(user_message(f"Please read part {number} of log {seed}, and report what is wrong in it."))
        messages.append(tool_call_message(f"call_{seed}_{number}", arguments={"part": number}))
        output = "\n".join(lines[10 * number : 10 * number + 10])
        messages.append(tool_result_message(f"call_{seed}_{number}", output))
    return [*messages, assistant_message("All parts are read."), user_message("Go on.")]


def lines_as_messages(count: int, seed: int) -> list[Any]:
    """Return a conversation of log lines, one a message."""
    return [
        assistant_message(line) if number % 2 else user_message(line)
        for number, line in enumerate(log_lines(count, seed))
    ]


async def replay(messages: list[dict[str, Any]], store: str) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of each `prepare` without and with a compaction, and the longest block of each of the latter.

    A request is prepared before each recorded answer. The work that a store does after `record` belongs to `record`,
    so it is awaited first.
    """
    plain, compacting, blocks = list[float](), list[float](), list[float]()
    async with Session.open("replayed", store=store, model=MODEL) as session:
        start = 0
        for stop in (index for index, message in enumerate(messages) if message["role"] == "assistant" and index):
            await session.record(messages[start:stop])
            start = stop
            await session.store.length("replayed")
            changes = session.history.change_count
            try:
                seconds, block = await timed(lambda: session.prepare(BUDGET))
            except HoldfastError:
                continue
            if session.history.change_count == changes:
                plain.append(seconds)
            else:
                compacting.append(seconds)
                blocks.append(block)
    return plain, compacting, blocks


async def recorded_requests(folder: Path, sample: int) -> list[Row]:
    """Measure each request of recorded sessions, stored in SQLite."""
    rows: list[Row] = []
    every, with_compaction, all_blocks = list[float](), list[float](), list[float]()
    worst = [0.0, 0.0]
    for name, messages in islice(read_sessions(folder), None, None, sample):
        gc.collect()  # what the session before has left must not be collected in a request of this one
        with tempfile.TemporaryDirectory() as home:
            plain, compacting, blocks = await replay(messages, f"sqlite:///{home}/sessions.db")
        print_progress(f"  {name}: {percentile(plain, 0.5):.2f} / {percentile(plain, 0.99):.2f} ms")
        every += plain
        with_compaction += compacting
        all_blocks += blocks
        worst = [max(worst[0], percentile(plain, 0.5)), max(worst[1], percentile(plain, 0.99))]
    if every:
        rows += [
            row("prepare, recorded sessions: p50", percentile(every, 0.5), "ms", 1.0, requests=len(every)),
            row("prepare, recorded sessions: p99", percentile(every, 0.99), "ms", 5.0),
            row("the same, p50 of the slowest session", worst[0], "ms", 1.0),
            row("the same, p99 of the slowest session", worst[1], "ms", 5.0),
        ]
    if with_compaction:
        count = len(with_compaction)
        rows += [
            row("prepare with a digest: median", percentile(with_compaction, 0.5), "ms", 60.0, requests=count),
            row("prepare with a digest: longest block of the loop", percentile(all_blocks, 1), "ms", 10.0),
        ]
    return rows


class LongInput(NamedTuple):
    """What is recorded at once."""

    generate: Callable[[int], list[Any]]
    """Returns the messages of a seed."""
    budget: int | None
    """Of the request that is prepared then; None if none is."""
    aim: float | None = 1.5
    """How many times as long as the tokenizer it may take."""


def _long_message(seed: int) -> list[Any]:
    return [user_message("\n".join(log_lines(55_000, seed))[:5_000_000])]


def _many_messages(seed: int) -> list[Any]:
    return [*lines_as_messages(20_000, seed), user_message("Go on.")]


LONG_INPUTS = {
    "first count of 110,000 tokens": LongInput(partial(session_of_tokens, LONG_TOKENS), ROOMY_BUDGET),
    "first prepare of 110,000 tokens, which compacts": LongInput(partial(session_of_tokens, LONG_TOKENS), BUDGET, None),
    "record of a message of 5 MB": LongInput(_long_message, None),
    "first prepare after 20,000 messages at once": LongInput(_many_messages, BUDGET),
}


async def long_inputs() -> list[Row]:
    """Measure a first count, a very long message, and many messages at once, beside the tokenizer itself.

    Session and tokenizer run in new processes, one after the other: what the tokenizer builds for its first words is
    part of both. The medians of a few runs count.
    """
    rows: list[Row] = []
    for name, one in LONG_INPUTS.items():
        alone, measured = list[float](), list[tuple[float, float]]()
        for _ in range(LONG_INPUT_RUNS):
            alone.append(await asyncio.to_thread(_in_new_process, _tokenizer_on_input, name))
            measured.append(await asyncio.to_thread(_in_new_process, _session_on_input, name))
        own, seconds = statistics.median(alone), statistics.median(seconds for seconds, _ in measured)
        block = statistics.median(block for _, block in measured)
        facts = {"tokenizer_ms": own * 1000}
        rows.append(row(f"{name}: times the tokenizer", seconds / own, "×", one.aim, seconds=seconds, **facts))
        rows.append(row(f"{name}: longest block of the loop", block * 1000, "ms", 10.0))
    return rows


def _in_new_process(work: Callable[[str], Measured], name: str) -> Measured:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, name).result()


def _tokenizer_on_input(name: str) -> float:
    return tokenizer_seconds(texts_of(LONG_INPUTS[name].generate(101)))


def _session_on_input(name: str) -> tuple[float, float]:
    generate, budget, _ = LONG_INPUTS[name]
    messages = generate(101)

    async def measured() -> tuple[float, float]:
        async with Session.open("loaded", model=MODEL) as session:  # modules and vocabulary are a matter of `starts`
            await session.record([user_message("hello")])
            await session.prepare(BUDGET)
        async with Session.open("long", model=MODEL) as session:
            return await timed(partial(_record, session, messages, budget))

    return asyncio.run(measured())


async def _record(session: Session, messages: list[Any], budget: int | None) -> None:
    await session.record(messages)
    if budget is not None:
        await session.prepare(budget)


async def _reopen(session: Session) -> None:
    async with Session.open(session.id, store=session.store, model=MODEL) as again:
        await again.prepare(BUDGET)


@cache
def long_work() -> list[Any]:
    """Return 20,000 messages of a tool loop."""
    return [
        message
        for number, line in enumerate(log_lines(5_000, 601))
        for message in (
            user_message(f"What does line {number} say?"),
            tool_call_message(f"call_{number}", arguments={"line": number}),
            tool_result_message(f"call_{number}", line),
            assistant_message("Nothing new."),
        )
    ]


OPERATIONS: dict[str, Callable[[Session], Awaitable[object]]] = {
    "opening it again, and its first prepare": _reopen,
    "sync of all and one more": lambda session: session.sync([*long_work(), user_message("Go on.")]),
    "sync with other messages from the middle on": lambda session: session.sync([*long_work()[:10_000], *long_work()]),
    "messages": lambda session: session.messages(),
    "recall": lambda session: session.recall("which worker answered 404?"),
    "artifacts": lambda session: session.artifacts(),
    "receipts": lambda session: session.receipts(),
    "preview": lambda session: session.preview(),
    "compact": lambda session: session.compact(),
    "rewind": lambda session: session.rewind(to=10_000),
    "fork": lambda session: session.fork("fork"),
    "clear": lambda session: session.clear(),
    "scrub": lambda session: scrub(session.store, session.id, "worker-7", time_ms=session.clock()),
}


async def operations() -> list[Row]:
    """Measure the longest block of the loop by each operation on a session of 20,000 messages in SQLite.

    Collections of Python's garbage are left out.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as home:
        whole = Path(home, "whole.db")
        async with Session.open("long", store=f"sqlite:///{whole}", model=MODEL) as session:
            await session.record(long_work())
            await session.prepare(ROOMY_BUDGET)
            await session.recall("anything")  # imports what recall needs
        for name, operation in OPERATIONS.items():
            copy = shutil.copyfile(whole, Path(home, f"{len(rows)}.db"))
            async with Session.open("long", store=f"sqlite:///{copy}", model=MODEL) as session:
                await session.prepare(ROOMY_BUDGET)
                gc.collect()
                gc.disable()  # a collection goes through everything that a program holds, whatever the operation is
                seconds, block = await timed(partial(operation, session))
                gc.enable()
            rows.append(
                row(f"{name}, 20,000 messages: longest block of the loop", block * 1000, "ms", 10.0, seconds=seconds)
            )
    long_work.cache_clear()  # what later parts measure shall not hold it
    return rows


async def neighbors() -> list[Row]:
    """Measure the turn of one session, which itself has room enough, while twenty others compact."""
    others = [await Session.open(f"other-{number}", model=MODEL) for number in range(20)]
    for number, other in enumerate(others):
        await other.record(session_of_tokens(LONG_TOKENS, seed=number + 1))

    async def turn(session: Session, number: int) -> float:
        began = time.perf_counter()
        await session.record([user_message(f"Question {number}: what is next in the list of things to do?")])
        await session.prepare(ROOMY_BUDGET)
        await session.record([assistant_message(f"Answer {number}: the next one in the list.")])
        return time.perf_counter() - began

    pauses = CollectorPauses()
    async with Session.open("own", model=MODEL) as own:
        await turn(own, 0)
        alone = statistics.median([await turn(own, number) for number in range(1, 20)])
        work = [asyncio.ensure_future(other.prepare(BUDGET)) for other in others]
        beside: list[float] = []
        gc.callbacks.append(pauses)
        while not all(task.done() for task in work):
            # A turn in memory never waits, so it is a task of its own, and the others get theirs.
            beside.append(await asyncio.ensure_future(turn(own, 20 + len(beside))))
        gc.callbacks.remove(pauses)
        await asyncio.gather(*work)
    for other in others:
        await other.close()
    return [
        row("a turn alone (wall time)", alone * 1000, "ms", None),
        row("a turn while twenty compact: more than alone, at worst", (max(beside) - alone) * 1000, "ms", 50.0),
        row("the same, median", (statistics.median(beside) - alone) * 1000, "ms", 50.0, turns=len(beside)),
        row("longest collection of Python's garbage meanwhile", pauses.longest * 1000, "ms", None),
    ]


async def starts() -> list[Row]:
    """Measure new processes: imports, first calls, and the command line; bytecode is written before."""
    rows: list[Row] = []
    for name, (program, aim) in STARTS.items():
        seconds: list[float] = []
        for _ in range(START_RUNS + 1):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-c", program]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
            await process.wait()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        rows.append(row(name, statistics.median(seconds[1:]) * 1000, "ms", aim))
    return rows


async def first_govern() -> list[Row]:
    """Measure `govern` on lists of 10,000 messages that it has never seen, beside the tokenizer."""
    count = len(govern(lines_as_messages(10_000, 201), budget=BUDGET, model=MODEL).messages)
    gc.collect()  # what earlier rows have left is not to be collected here
    shares: list[float] = []
    for seed in range(GOVERN_RUNS):
        messages = lines_as_messages(10_000, 300 + seed)
        own = tokenizer_seconds(texts_of(lines_as_messages(count, 400 + seed)))
        began = time.process_time()
        govern(messages, budget=BUDGET, model=MODEL)
        shares.append((time.process_time() - began) / (1.5 * own + len(messages) * 1e-6))
    share = statistics.median(shares)
    return [row("govern, first call at 10,000 messages: share of its limit", share, "×", 1, shares=shares)]


async def memory_of_session(folder: Path) -> list[Row]:
    """Measure the memory of an open session beside its text, generated and recorded, in memory and in SQLite.

    In memory, the store's own copy counts too. A recorded session is cut at about 100,000 tokens.
    """
    generated = await _memory_beside_text(session_of_tokens(BUDGET - 10_000), "memory://")
    rows = [row("memory of an open session at 90,000 tokens, beside its text", generated, "×", 3.0)]
    shares: dict[str, list[float]] = {"memory": [], "SQLite": []}
    for _, messages in read_sessions(folder):
        sizes = accumulate(sum(map(len, texts_of([message]))) for message in messages)
        start = [*takewhile(lambda size: size < LONG_CHARS, sizes)]
        if len(start) == len(messages) or len(shares["memory"]) == MAX_MEMORY_SESSIONS:
            continue
        with tempfile.TemporaryDirectory() as home:
            for store, url in (("memory", "memory://"), ("SQLite", f"sqlite:///{home}/sessions.db")):
                with suppress(HoldfastError):  # some recordings end within their system text
                    shares[store].append(await _memory_beside_text(messages[: len(start) + 1], url))
    return rows + [
        row(f"the same, recorded sessions in {store}: median", statistics.median(found), "×", 3.0, all=found)
        for store, found in shares.items()
        if found
    ]


async def _memory_beside_text(messages: Sequence[Mapping[str, Any]], store: str) -> float:
    """Return how many times the size of its texts a session takes that was recorded and prepared."""
    encoded = json.dumps(messages)
    text_bytes = sum(len(text.encode()) for text in texts_of(json.loads(encoded)))

    async def prepared(name: str, measure: Callable[[], int]) -> int:
        async with Session.open(name, store=store, model=MODEL) as session:
            await session.record(json.loads(encoded))
            await session.prepare(BUDGET)
            gc.collect()
            return measure()

    await prepared("warm", lambda: 0)
    gc.collect()
    tracemalloc.start()
    try:
        return await prepared("measured", lambda: tracemalloc.get_traced_memory()[0]) / text_bytes
    finally:
        tracemalloc.stop()


async def durable_turns() -> list[Row]:
    """Measure durable turns a second of wall time; `benchmarks.turns` compares them with raw SQL."""
    rows: list[Row] = []
    for store, aim in turns.AIMS.items():
        # It runs event loops of its own.
        figures = await asyncio.to_thread(turns.measure, store)
        rows.append(
            row(f"durable turns a second, {store}: share of the aim", aim / figures["turns_per_second"], "×", 1)
        )
    return rows


def render(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""

    def cells(one: Row) -> list[str]:
        aim = "–" if one["aim"] is None else f"≤ {one['aim']:g} {one['unit']}"
        is_met = "" if one["aim"] is None else verdict(is_met=one["value"] <= one["aim"])
        return [one["name"], f"{one['value']:.2f} {one['unit']}", aim, is_met]

    return markdown_table(["", "measured", "aim", "met"], [cells(one) for one in rows])


async def measure(folder: Path, only: Sequence[str], sample: int) -> list[Row]:
    """Return all rows, or those of some parts."""
    parts: dict[str, Callable[[], Awaitable[list[Row]]]] = {
        "starts": starts,
        "requests": lambda: recorded_requests(folder, sample),
        "inputs": long_inputs,
        "operations": operations,
        "neighbors": neighbors,
        "govern": first_govern,
        "memory": lambda: memory_of_session(folder),
        "turns": durable_turns,
    }
    rows: list[Row] = []
    for name, part in parts.items():
        if not only or name in only:
            print_progress(f"session: {name} …")
            rows += await part()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER, help="recorded sessions")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--only", default="", help="starts, requests, inputs, operations, neighbors, …")
    parser.add_argument("--sample", type=int, default=1, help="replay only every Nth recorded session")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.folder, [one for one in options.only.split(",") if one], options.sample))
    print(render(rows))
    save_figures(rows, options.json)


if __name__ == "__main__":
    main()
