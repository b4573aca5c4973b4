"""A store that was filled with many sessions at once, and what everyday operations take in it."""

import asyncio
import random
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psycopg

from holdfast import Session
from holdfast.stores.base import Store
from holdfast.stores.encoding import pack_record
from holdfast.stores.open import open_store
from holdfast.stores.search_terms import index_body
from holdfast.stores.sqlite.schema import POSITION_BITS

MESSAGES = 10
"""How many messages each session has."""
OPERATIONS = 40
"""How often each operation is measured."""
FIRST_MS = 1_700_000_000_000
WORDS = [f"{stem}{number}" for stem in ("report", "invoice", "server", "budget") for number in range(500)]
RARE_EVERY = 5_000
"""In every so manieth session one message has a word of its own."""


class MadeMessage(NamedTuple):
    """A message of a made-up session."""

    position: int
    data: bytes
    words: str


def made_session(number: int) -> Iterator[MadeMessage]:
    """Yield the messages of a session: some words that every message has, and a few that not many have."""
    chosen = random.Random(number)
    for position in range(MESSAGES):
        rare = f" marmalade{number}" if number % RARE_EVERY == 0 and position == 0 else ""
        text = f"please look at the table of {' '.join(chosen.choices(WORDS, k=12))} number {number} {position}{rare}"
        role = "assistant" if position % 2 else "user"
        native = {"role": role, "content": text}
        data = {"format": "openai-chat", "native": native, "scope": "main"}
        record = pack_record({"type": "message.appended", "schema": 1, "data": data})
        yield MadeMessage(position, record, index_body(text))


async def fill_postgres(url: str, sessions: int) -> None:
    """Fill an empty store on PostgreSQL."""
    store = open_store(url)
    await store.length("any")
    await store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("DROP INDEX holdfast.words_by_body")
        connection.execute("CREATE TEMP TABLE texts (session bigint, position bigint, body text)")
        with connection.cursor().copy("COPY holdfast.sessions (id, length, created_ms, updated_ms) FROM STDIN") as copy:
            for number in range(sessions):
                copy.write_row((f"made-{number}", MESSAGES, FIRST_MS + number, FIRST_MS + number * 60_000))
        columns = "COPY holdfast.events (session, position, time_ms, data) FROM STDIN (FORMAT binary)"
        with connection.cursor().copy(columns) as copy:
            copy.set_types(["int8", "int8", "int8", "bytea"])
            for number in range(sessions):
                for one in made_session(number):
                    copy.write_row((number + 1, one.position, FIRST_MS + number * 60_000, one.data))
        with connection.cursor().copy("COPY texts FROM STDIN") as copy:
            for number in range(sessions):
                for one in made_session(number):
                    copy.write_row((number + 1, one.position, one.words))
        connection.execute(
            "INSERT INTO holdfast.words SELECT session, position, to_tsvector('simple', body) FROM texts"
        )
        connection.execute("SET maintenance_work_mem = '512MB'")
        connection.execute(
            "CREATE INDEX words_by_body ON holdfast.words USING gin (body) WITH (gin_pending_list_limit = 256)"
        )
        connection.execute("VACUUM ANALYZE holdfast.sessions, holdfast.events, holdfast.words")


async def fill_sqlite(url: str, sessions: int) -> None:
    """Fill an empty store in a SQLite file."""
    store = open_store(url)
    await store.append("made-first", [{"type": "x"}], after=0, time_ms=1)
    await store.delete("made-first")
    await store.close()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        for number in range(sessions):
            row = (number + 2, f"made-{number}", MESSAGES, FIRST_MS + number, FIRST_MS + number * 60_000)
            insert = "INSERT INTO sessions (id, name_id, length, created_ms, updated_ms) VALUES (?, ?, ?, ?, ?)"
            connection.execute(insert, row)
            made = [((number + 2) << POSITION_BITS | one.position, one) for one in made_session(number)]
            events = [(row_id, FIRST_MS + number * 60_000, one.data) for row_id, one in made]
            connection.executemany("INSERT INTO events (id, time_ms, data) VALUES (?, ?, ?)", events)
            bodies = [(row_id, one.words) for row_id, one in made]
            connection.executemany("INSERT INTO words (rowid, body) VALUES (?, ?)", bodies)
            texts = [(row_id, b"\0" + words.encode()) for row_id, words in bodies]
            connection.executemany("INSERT INTO indexed (id, body) VALUES (?, ?)", texts)
    connection.close()


async def timed(action: Callable[[int], Awaitable[object]], count: int = OPERATIONS) -> float:
    """Return how many milliseconds an action takes, as a median."""
    took: list[float] = []
    for number in range(count):
        started = time.perf_counter()
        await action(number)
        took.append(time.perf_counter() - started)
    return statistics.median(took) * 1e3


@dataclass
class Everyday:
    """The everyday operations in a store that was filled."""

    store: Store
    sessions: int

    def _name(self, number: int) -> str:
        return f"made-{random.Random(number).randrange(self.sessions // 2, self.sessions)}"

    async def _open(self, number: int) -> None:
        async with Session.open(self._name(number), store=self.store):
            pass

    async def _append(self, number: int) -> None:
        await self.store.append(f"new-{number}", [{"type": "x"}], after=0, time_ms=FIRST_MS)

    async def _search_session(self, number: int) -> None:
        found = await self.store.search("table report17", session=self._name(number), limit=20)
        assert found  # noqa: S101 - every message has the first word

    async def _list(self, number: int) -> None:
        before = (FIRST_MS + random.Random(number).randrange(self.sessions) * 60_000, "") if number % 2 else None
        await self.store.sessions(before=before, limit=50)

    async def _prune(self, number: int) -> None:
        assert await self.store.delete(f"made-{number + 1}")  # noqa: S101 - the oldest ones

    async def measure(self) -> dict[str, float]:
        """Return the milliseconds of each operation."""
        return {
            "open": await timed(self._open),
            "append": await timed(self._append),
            "search a session": await timed(self._search_session),
            "list": await timed(self._list),
            "prune": await timed(self._prune, 20),
            "search all, a common word": await timed(lambda _: self.store.search("table", limit=50), 5),
            "search all, two words": await timed(
                lambda number: self.store.search(f"report{number} invoice7", limit=50), 5
            ),
            "search all, a rare word": await timed(lambda _: self.store.search(f"marmalade{RARE_EVERY}", limit=50), 5),
        }


async def measure_large(kind: str, url: str, sessions: int) -> dict[str, float]:
    """Fill a store, and return what each operation takes in it."""
    await (fill_postgres if kind == "postgresql" else fill_sqlite)(url, sessions)
    store = open_store(url)
    try:
        figures = await Everyday(store, sessions).measure()
    finally:
        await store.close()
    figures["bytes a message"] = await asyncio.to_thread(stored_bytes, url) / (sessions * MESSAGES)
    return figures


def stored_bytes(url: str) -> int:
    """Return the size of a store on disk, with its indexes."""
    if url.startswith("sqlite"):
        return Path(url.removeprefix("sqlite:///")).stat().st_size
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return row[0] if row else 0
