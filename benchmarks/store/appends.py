"""Durable appends: `Session.record` of one message at a time, compared with raw inserts of the same bytes.

The two alternate on the same disk, and alternate in going first, so that other load affects both alike; the ratio is
the median of the ratios of the rounds. The latency of a flush decides what is compared: on a disk that takes
milliseconds both mostly wait for it, and on one that answers from its cache only processor time counts. So the report
has the latency and the processor time too.
"""

import os
import sqlite3
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.reporting import verdict
from benchmarks.store.files import message_bytes, sqlite_url
from holdfast import Session
from holdfast.testing.chat import JsonMessage
from holdfast.testing.sessions import generate_session

ROUNDS = 40
APPENDS = 50
"""In one round."""
MIN_RATIO = 0.5
"""The target: appends of Holdfast per raw insert."""
FLUSH_COUNT, PAGE_BYTES = 200, 4_096


class Round(NamedTuple):
    """The seconds of one append in a round: wall-clock and processor time."""

    clock: float
    processor: float


async def measure(folder: Path) -> dict[str, Any]:
    """Return appends per second, of Holdfast and raw; the first round does not count."""
    messages = generate_session((ROUNDS + 1) * APPENDS)
    rounds = [messages[start : start + APPENDS] for start in range(0, (ROUNDS + 1) * APPENDS, APPENDS)]
    ours: list[Round] = []
    raw: list[Round] = []
    with closing(open_raw_database(folder / "raw.db")) as connection:
        async with Session.open("appends", store=sqlite_url(folder / "appends.db")) as session:
            for number, batch in enumerate(rounds):
                if number % 2:
                    raw.append(time_inserts(connection, batch))
                ours.append(await time_records(session, batch))
                if not number % 2:
                    raw.append(time_inserts(connection, batch))
    ratios = [other.clock / one.clock for one, other in zip(ours[1:], raw[1:], strict=True)]
    return {
        "rounds": ROUNDS,
        "appends": APPENDS,
        "bytes": sum(len(message_bytes(message)) for batch in rounds[1:] for message in batch),
        "flush_ms": flush_milliseconds(folder / "flushed"),
        "ours_per_second": 1 / statistics.median(one.clock for one in ours[1:]),
        "raw_per_second": 1 / statistics.median(one.clock for one in raw[1:]),
        "ours_processor_ms": statistics.median(one.processor for one in ours[1:]) * 1000,
        "raw_processor_ms": statistics.median(one.processor for one in raw[1:]) * 1000,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "aim": MIN_RATIO,
    }


def open_raw_database(path: Path) -> sqlite3.Connection:
    """Return a database with the same guarantees: every insert is a commit, and every commit is flushed."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    return connection


def time_inserts(connection: sqlite3.Connection, messages: Sequence[JsonMessage]) -> Round:
    """Insert messages one at a time; writing JSON is not timed."""
    lines = [message_bytes(message) for message in messages]
    started, worked = time.perf_counter(), time.process_time()
    for line in lines:
        connection.execute("INSERT INTO messages (data) VALUES (?)", (line,))
    return Round((time.perf_counter() - started) / len(lines), (time.process_time() - worked) / len(lines))


async def time_records(session: Session, messages: Sequence[JsonMessage]) -> Round:
    """Record messages one at a time."""
    started, worked = time.perf_counter(), time.process_time()
    for message in messages:
        await session.record([message])
    return Round((time.perf_counter() - started) / len(messages), (time.process_time() - worked) / len(messages))


def flush_milliseconds(path: Path) -> float:
    """Return how many milliseconds the disk takes to flush a page."""
    times: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(FLUSH_COUNT):
            file.write(bytes(PAGE_BYTES))
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def report(figures: dict[str, Any]) -> str:
    """Return the figures in lines."""
    average = figures["bytes"] / figures["rounds"] / figures["appends"]
    rounds = f"{figures['rounds']} alternating rounds of {figures['appends']}, {average:,.0f} bytes on average"
    lines = [
        f"durable appends ({rounds}; this disk flushes a page in {figures['flush_ms']:.3f} ms; medians)",
        f"  {'':44}{'a second':>12}{'ms each':>10}{'ms of CPU':>11}{'ratio':>8}",
    ]
    ratio, aim, ratios = figures["ratio"], figures["aim"], figures["ratios"]
    aimed = f"({min(ratios):.2f}–{max(ratios):.2f}; aim ≥ {aim}: {verdict(is_met=ratio >= aim)})"
    names = {"ours": "Session.record, one message each", "raw": "raw sqlite3, WAL, FULL, one commit each"}
    for key, share, note in (("ours", ratio, aimed), ("raw", 1, "")):
        rate, processor = figures[f"{key}_per_second"], figures[f"{key}_processor_ms"]
        lines.append(
            f"  {names[key]:44}{rate:>12,.0f}{1000 / rate:>10.3f}{processor:>11.3f}{share:>8.2f}  {note}".rstrip()
        )
    return "\n".join(lines)
