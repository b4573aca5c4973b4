"""One of several processes that write to one store at the same time, or do the same writes with plain SQL.

Started by `benchmarks.scale` as `python -m benchmarks.scale.writers KIND URL SECONDS NUMBER`. It prints `ready`, waits
for a line, writes for that long, and prints how many durable writes it has made.
"""

import asyncio
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from holdfast import Session
from holdfast.stores.base import IndexEntry
from holdfast.stores.encoding import pack_record
from holdfast.stores.open import open_store
from holdfast.stores.search_terms import index_body

SESSIONS_AT_ONCE = 16
TEXT = (
    "Please read src/report/totals.py and say why the sum of the second table differs from the first by 3.7 percent. "
)
RECORD = {"type": "message.appended", "schema": 1, "data": {"format": "openai-chat", "native": {"role": "user", "content": TEXT}, "scope": "main"}}  # fmt: skip  # noqa: E501
SQLITE_TABLES = """
    CREATE TABLE IF NOT EXISTS raw_sessions (id TEXT PRIMARY KEY, length INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS raw_events (session TEXT, position INTEGER, data BLOB, PRIMARY KEY (session, position));
    CREATE VIRTUAL TABLE IF NOT EXISTS raw_words USING fts5 (body, content = '');
"""
POSTGRES_TABLES = """
    CREATE TABLE IF NOT EXISTS raw_sessions (id text PRIMARY KEY, length bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS raw_events (session text, position bigint, data bytea, PRIMARY KEY (session, position));
    CREATE TABLE IF NOT EXISTS raw_words (session text, position bigint, body tsvector,
        PRIMARY KEY (session, position));
    CREATE INDEX IF NOT EXISTS raw_words_by_body ON raw_words USING gin (body);
"""
Write = Callable[[str, int], Awaitable[object]]
"""Writes the message of a session at a position."""


async def write_until(ends: float, name: str, write: Write) -> int:
    """Write one message after another to a session until the time is over, and return how many."""
    count = 0
    while time.monotonic() < ends:
        count += 1
        await write(name, count)
    return count


async def append_writer(url: str) -> Write:
    """Return what appends to a store of Holdfast."""
    store = open_store(url)
    await store.length("any")

    async def write(name: str, position: int) -> None:
        await store.append(name, [RECORD], after=position, time_ms=1, index=[IndexEntry(position, TEXT)])

    return write


async def request_writer(url: str) -> Write:
    """Return what records a message in a session and prepares the request after it."""
    sessions: dict[str, Session] = {}

    async def write(name: str, position: int) -> None:
        session = sessions.get(name)
        if session is None:
            session = sessions[name] = await Session.open(name, store=url, model="gpt-5")
        role = "assistant" if position % 2 else "user"
        await session.record([{"role": role, "content": f"{position} {TEXT}"}])
        await session.prepare(16_000)

    return write


async def raw_writer(url: str) -> Write:
    """Return what does the writes of an append with plain SQL: session, record and words, in one durable commit."""
    body, data = index_body(TEXT), pack_record(RECORD)
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        with suppress(sqlite3.OperationalError):  # another process makes them at this moment
            connection.executescript(SQLITE_TABLES)

        async def write_sqlite(name: str, position: int) -> None:
            await asyncio.sleep(0)
            connection.execute("BEGIN IMMEDIATE")
            session = "INSERT INTO raw_sessions VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET length = excluded.length"
            connection.execute(session, (name, position + 1))
            connection.execute("INSERT INTO raw_events VALUES (?, ?, ?)", (name, position, data))
            connection.execute("INSERT INTO raw_words (body) VALUES (?)", (body,))
            connection.execute("COMMIT")

        return write_sqlite
    import psycopg  # noqa: PLC0415 - an optional extra

    with suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable), psycopg.connect(url) as owner:
        owner.execute(POSTGRES_TABLES)
    pool: asyncio.Queue[psycopg.AsyncConnection] = asyncio.Queue()
    for _ in range(4):
        pool.put_nowait(await psycopg.AsyncConnection.connect(url, autocommit=True))

    async def write_postgres(name: str, position: int) -> None:
        connection = await pool.get()
        try:
            async with connection.transaction():
                session = (
                    "INSERT INTO raw_sessions VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET length = excluded.length"
                )
                await connection.execute(session, (name, position + 1))
                await connection.execute("INSERT INTO raw_events VALUES (%s, %s, %s)", (name, position, data))
                words = "INSERT INTO raw_words VALUES (%s, %s, to_tsvector('simple', %s))"
                await connection.execute(words, (name, position, body))
        finally:
            pool.put_nowait(connection)

    return write_postgres


KINDS = {"appends": append_writer, "requests": request_writer, "raw SQL": raw_writer}


async def run(kind: str, url: str, seconds: float, number: str) -> int:
    """Write with several sessions at once, once a line has come, and return how many writes were made."""
    write = await KINDS[kind](url)
    names = [f"{kind}-{number}-{one}" for one in range(SESSIONS_AT_ONCE)]
    for name in names:
        await write(name, 0)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    ends = time.monotonic() + seconds
    return sum(await asyncio.gather(*(write_until(ends, name, write) for name in names)))


if __name__ == "__main__":
    kind, url, seconds, number = sys.argv[1:]
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(exist_ok=True)
    print(asyncio.run(run(kind, url, float(seconds), number)), flush=True)
