"""The time from opening a session to its first prepared request, for sessions of several lengths.

Each session is built once, in batches that end with a prompt, with a request after each, and closed. It is then opened
in this process as often as time allows: with the snapshot in the store, and without it, if there is one. The first
request that compacts is measured separately, on a copy: to compact, a session must load what it has read, and a session
that is opened after its prompt cache has expired may have to compact at once.
"""

import gc
import shutil
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.reporting import print_progress, verdict
from benchmarks.store.files import BUDGET, MODEL, database_bytes, sqlite_url
from holdfast import Session
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.chat import JsonMessage
from holdfast.testing.sessions import generate_session

SIZES = (1_000, 10_000, 100_000)
REQUEST_EVERY = 50
"""The fewest messages that are recorded before the next request."""
NEW_MESSAGES = 150
"""How many messages make a compaction certain."""
REPEATS = 7
SECONDS = 10.0
"""The most seconds for repetitions of one measurement."""
MAX_OPEN_MS = 150
MAX_GROWTH = 10
SESSION_ID = "opening"


async def measure(folder: Path, sizes: Sequence[int]) -> dict[str, Any]:
    """Return the times of each size."""
    return {
        "budget": BUDGET,
        "rows": [await measure_size(folder / f"{size}.db", size) for size in sizes],
        "aim_ms": MAX_OPEN_MS,
        "aim_growth": MAX_GROWTH,
    }


async def measure_size(path: Path, size: int) -> dict[str, Any]:
    """Return how long opening a session of a size takes."""
    started = time.perf_counter()
    row: dict[str, Any] = {
        "messages": await build_session(path, size),
        "build_seconds": time.perf_counter() - started,
        **await stored_sizes(path),
    }
    print_progress(f"opening {size:,} messages …")
    both = await repeat(lambda: time_opening(path))
    row |= {"open_ms": to_milliseconds(one for one, _ in both), "prepare_ms": to_milliseconds(two for _, two in both)}
    row |= {"ms": to_milliseconds(map(sum, both)), "runs": len(both)}
    row["first_fold_ms"] = to_milliseconds(await repeat(lambda: time_compaction(path)))
    if row["snapshot_bytes"]:
        row["without_snapshot_ms"] = to_milliseconds(
            map(sum, await repeat(lambda: time_opening(path, has_snapshot=False)))
        )
    return row


async def build_session(path: Path, size: int) -> int:
    """Record a session of about a size, with a request after each batch, close it, and return its size."""
    messages = generate_session(size)
    async with Session.open(SESSION_ID, store=sqlite_url(path), model=MODEL) as session:
        for batch in request_batches(messages):
            before = len(session)
            await session.record(batch)
            await session.prepare(BUDGET)
            if before // 10_000 < len(session) // 10_000 or len(session) == len(messages):
                print_progress(f"building: {len(session):,} of {len(messages):,} messages")
    return len(messages)


def request_batches(messages: Sequence[JsonMessage]) -> Iterator[list[JsonMessage]]:
    """Yield messages in batches that end where a model is called."""
    batch: list[JsonMessage] = []
    for message in messages:
        batch.append(message)
        if len(batch) >= REQUEST_EVERY and message["role"] == "user":
            yield batch
            batch = []
    if batch:
        yield batch


async def stored_sizes(path: Path) -> dict[str, Any]:
    """Return how many events a session has, and how large its file and its snapshot are; 0 if there is none."""
    store = SqliteStore(path)
    snapshot = await store.get_snapshot(SESSION_ID)
    events = await store.length(SESSION_ID)
    await store.close()
    size = database_bytes(path)
    return {"events": events, "file_bytes": size, "snapshot_bytes": len(snapshot.data) if snapshot else 0}


async def time_opening(path: Path, *, has_snapshot: bool = True) -> tuple[float, float]:
    """Return how long it takes to open a session, and to prepare its first request."""
    if not has_snapshot:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM snapshots")
    started = time.perf_counter()
    session = await Session.open(SESSION_ID, store=sqlite_url(path), model=MODEL)
    midway = time.perf_counter()
    await session.prepare(BUDGET)
    ended = time.perf_counter()
    await session.close()
    return midway - started, ended - midway


async def time_compaction(path: Path) -> float:
    """Return how long the first request that compacts takes, in a copy of a session that was just opened."""
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    session = await Session.open(SESSION_ID, store=sqlite_url(copy), model=MODEL)
    before = len(session)
    await session.record(generate_session(NEW_MESSAGES, seed=2)[1:])
    started = time.perf_counter()
    request = await session.prepare(BUDGET)
    ended = time.perf_counter()
    await session.close()
    copy.unlink()
    if request.receipt.compacted[-1].stop <= before:
        raise AssertionError(f"{NEW_MESSAGES} messages did not make a compaction at {BUDGET:,} tokens")
    return ended - started


async def repeat(action: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Return the results of several runs of an action, each without garbage of the run before."""
    results: list[Any] = []
    begun = time.perf_counter()
    while len(results) < REPEATS and (not results or time.perf_counter() - begun < SECONDS):
        gc.collect()
        results.append(await action())
    return results


def to_milliseconds(seconds: Iterator[float] | list[float]) -> float:
    return statistics.median(seconds) * 1000


def report(figures: dict[str, Any]) -> str:
    """Return the figures in lines."""
    rows = figures["rows"]
    first, last = rows[0], rows[-1]
    head = f"  {'messages':>9}{'events':>9}{'MB':>7}{'snapshot':>10}{'open':>10}{'prepare':>9}{'both':>10}{'ratio':>7}"
    lines = [
        f"opening a session to its first prepared request (budget {figures['budget']:,}, medians in ms)",
        f"{head}{'no snapshot':>13}{'ratio':>7}{'compacts':>12}{'ratio':>7}{'runs':>6}",
    ]
    for row in rows:
        snapshot = f"{row['snapshot_bytes'] / 1000:,.0f} kB" if row["snapshot_bytes"] else "none"
        size = f"{row['messages']:>9,}{row['events']:>9,}{row['file_bytes'] / 1e6:>7.1f}{snapshot:>10}"
        both = "".join(
            render_time(row, first, name, width) for name, width in (("ms", 10), ("without_snapshot_ms", 13))
        )
        fold = render_time(row, first, "first_fold_ms", 12)
        lines.append(f"  {size}{row['open_ms']:>10,.1f}{row['prepare_ms']:>9,.1f}{both}{fold}{row['runs']:>6}")
    growth, aim_ms, aim_growth = last["ms"] / first["ms"], figures["aim_ms"], figures["aim_growth"]
    if last["messages"] >= SIZES[-1]:  # the aims are those of the longest
        lines.append(
            f"  {last['messages']:,} against {first['messages']:,} messages: × {growth:.1f} "
            f"(aim ≤ {aim_growth}: {verdict(is_met=growth <= aim_growth)}), {last['ms']:,.0f} ms "
            f"(aim < {aim_ms}: {verdict(is_met=last['ms'] < aim_ms)})"
        )
    return "\n".join(lines)


def render_time(row: dict[str, Any], first: dict[str, Any], name: str, width: int) -> str:
    """Return a time and its ratio to that of the shortest session, if both were measured."""
    if name not in row:
        return f"{'–':>{width}}{'–':>7}"
    ratio = f"{row[name] / first[name]:.1f}" if name in first else "–"
    return f"{row[name]:>{width},.1f}{ratio:>7}"
