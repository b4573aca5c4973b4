"""What one PostgreSQL, or one SQLite file, carries: writers side by side, and a store with a million messages.

    python -m benchmarks.scale [--sessions 100000 | --ten-million] [--only writers|large|memory] [--json FILE]

Writers: 1, 2 and 4 processes with 16 sessions each write durably to one store: appends alone, messages with the request
after each, and plain SQL that does the writes of an append. Large: a small store (1,000 sessions of 10 messages) and a
large one are filled at once, and everyday operations are timed in both. Memory: what a process needs for each session.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.reporting import print_progress, save_figures, verdict
from benchmarks.scale.large import measure_large
from benchmarks.scale.memory import measure_memory
from benchmarks.scale.servers import new_database, started_server
from benchmarks.scale.writers import KINDS
from benchmarks.tables import markdown_table
from holdfast.stores.open import open_store

PROCESSES = (1, 2, 4)
SMALL_SESSIONS = 1_000
MAX_RATIO, MAX_SEARCH_MS = 2.0, 300.0
UNCOMPARED = "bytes a message"


async def count_writes(kind: str, url: str, processes: int, seconds: float) -> float:
    """Return how many writes a second some processes make together."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scale.writers", kind, url, str(seconds)]
    pipe = asyncio.subprocess.PIPE
    started = [
        await asyncio.create_subprocess_exec(*command, f"{processes}-{number}", stdin=pipe, stdout=pipe)
        for number in range(processes)
    ]
    for process in started:
        assert process.stdout  # noqa: S101 - a pipe was asked for
        await process.stdout.readline()
    counts = await asyncio.gather(*(process.communicate(b"go\n") for process in started))
    return sum(int(output) for output, _ in counts) / seconds


async def run_writers(urls: dict[str, str], seconds: float) -> dict[str, dict[str, float]]:
    """Measure every kind of writer on each store."""
    figures: dict[str, dict[str, float]] = {}
    for store, url in urls.items():
        for kind in KINDS:
            row = figures[f"{store}, {kind}"] = {}
            for processes in PROCESSES:
                print_progress(f"{store}, {kind}, {processes} processes …")
                row[str(processes)] = await count_writes(kind, url, processes, seconds)
    head = ["durable writes a second", *(f"{processes} processes" for processes in PROCESSES)]
    print(markdown_table(head, [[name, *(f"{one:,.0f}" for one in row.values())] for name, row in figures.items()]))
    return figures


async def run_memory(url: str) -> dict[str, dict[str, float]]:
    """Measure what a process needs for sessions of 10 and of 100 messages."""
    store, figures = open_store(url), dict[str, dict[str, float]]()
    for messages in (10, 100):
        figures[f"{messages} messages"] = await measure_memory(store, messages)
    await store.close()
    head = ["KB a session", *next(iter(figures.values()))]
    print(markdown_table(head, [[name, *(f"{one:,.0f}" for one in row.values())] for name, row in figures.items()]))
    return figures


def report_large(small: dict[str, float], large: dict[str, float], kind: str, sessions: int) -> None:
    """Print what operations take in a small store and in a large one, and whether the aims are met."""
    rows: list[list[str]] = []
    for name, value in large.items():
        ratio = value / small[name]
        is_met = value <= MAX_SEARCH_MS if name.startswith("search all") else ratio <= MAX_RATIO
        aim = "" if name == UNCOMPARED else verdict(is_met=is_met)
        rows.append([name, f"{small[name]:,.2f}", f"{value:,.2f}", f"×{ratio:.1f}", aim])
    print(markdown_table([f"{kind}, ms", f"{SMALL_SESSIONS:,} sessions", f"{sessions:,}", "", "within the aim"], rows))


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure everything that was asked for."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-scale-") as folder, started_server() as server:
        if args.only in {None, "memory"}:
            figures["memory"] = await run_memory(f"sqlite:///{folder}/memory.db")
        if args.only in {None, "writers"}:
            urls = {"postgresql": new_database(server), "sqlite": f"sqlite:///{folder}/writers.db"}
            figures["writers"] = await run_writers(urls, args.seconds)
        for kind in ("postgresql", "sqlite") if args.only in {None, "large"} else ():
            found: dict[int, dict[str, float]] = {}
            for sessions in (SMALL_SESSIONS, args.sessions):
                print_progress(f"{kind}: filling {sessions:,} sessions …")
                url = new_database(server) if kind == "postgresql" else f"sqlite:///{folder}/{sessions}.db"
                found[sessions] = await measure_large(kind, url, sessions)
            report_large(found[SMALL_SESSIONS], found[args.sessions], kind, args.sessions)
            figures[kind] = {str(sessions): one for sessions, one in found.items()}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long writers write")
    parser.add_argument("--sessions", type=int, default=100_000, help="how many sessions of 10 messages are large")
    parser.add_argument(
        "--ten-million", dest="sessions", action="store_const", const=1_000_000, help="ten times as many"
    )
    parser.add_argument("--only", choices=["writers", "large", "memory"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    save_figures(asyncio.run(run(args)), args.json)


if __name__ == "__main__":
    main()
