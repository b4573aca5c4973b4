"""Every message is found at any time, although it is indexed a little later."""

import os
import sqlite3
from collections.abc import AsyncIterator, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.core.conversation.json_values import encode_json
from holdfast.errors import StoreUnavailableError
from holdfast.stores.base import IndexEntry
from holdfast.stores.encoding import compress
from holdfast.stores.search_terms import search_terms
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite import search as search_module
from holdfast.stores.sqlite.schema import POSITION_BITS, POSITION_MASK, SQLITE_MIGRATIONS, migrate_sqlite
from holdfast.stores.sqlite.search import MAX_PENDING_CHARS, MAX_PENDING_TEXTS, FullTextIndex
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.store_contract import NOW_MS, message_record

SECRET = "correcthorsebatterystaple"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats" / "chats.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    await store.close()


async def say(store: SqliteStore, text: str, position: int, session: str = "s") -> None:
    await store.append(
        session, [message_record(text)], after=position, time_ms=NOW_MS, index=[IndexEntry(position, text)]
    )


async def found(store: SqliteStore, words: str, session: str | None = "s") -> list[int]:
    """Return the positions of all messages with a word, in the order of the log."""
    return sorted(hit.position for hit in await store.search(words, session=session, limit=10_000))


def notes(path: Path) -> int:
    """Return how many texts are pending."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM noted").fetchone()[0]


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the write lock of a file, as another process would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def test_every_message_is_found_as_soon_as_it_is_recorded(store: SqliteStore) -> None:
    for position in range(5):
        await say(store, f"word{position} common", position)

        assert await found(store, f"word{position}") == [position]
        assert await found(store, "common") == list(range(position + 1))


async def test_pending_texts_are_limited(store: SqliteStore, path: Path) -> None:
    for position in range(3 * MAX_PENDING_TEXTS):
        await say(store, f"word{position} common", position)
        await store.length("s")
        assert notes(path) < MAX_PENDING_TEXTS

    assert await found(store, "common") == list(range(3 * MAX_PENDING_TEXTS))
    assert notes(path) == 0


@pytest.mark.parametrize(
    "texts", [["many"] * MAX_PENDING_TEXTS, ["large " * MAX_PENDING_CHARS]], ids=["many at once", "a large one"]
)
async def test_many_or_long_texts_are_indexed_at_once(store: SqliteStore, path: Path, texts: list[str]) -> None:
    index = [IndexEntry(position, text) for position, text in enumerate(texts)]

    await store.append("s", [message_record(text) for text in texts], after=0, time_ms=NOW_MS, index=index)

    assert notes(path) == 0
    assert await found(store, texts[0][:5]) == list(range(len(texts)))


async def test_pending_texts_of_a_killed_process_are_found_and_indexed(path: Path) -> None:
    # A store that is never closed is as good as killed.
    left = [SqliteStore(path) for _ in range(3)]
    for number, store in enumerate(left):
        for position in range(number * 30, (number + 1) * 30):
            await say(store, f"word{position} common", position)
        await store.length("s")

    reader = SqliteStore(path)
    assert notes(path) < MAX_PENDING_TEXTS
    assert await found(reader, "common") == list(range(90))
    for store in (*left, reader):
        await store.close()


async def test_closing_a_store_indexes_everything(store: SqliteStore, path: Path) -> None:
    await say(store, "findme", 0)
    assert notes(path) == 1

    await store.close()

    assert notes(path) == 0
    assert await found(store, "findme") == [0]


async def test_a_search_during_the_write_of_another_process_neither_waits_nor_misses_a_message(
    store: SqliteStore, path: Path
) -> None:
    await say(store, "alpha beta", 0)
    await found(store, "alpha")
    await say(store, "alpha gamma", 1)
    await say(store, "nothing of the kind", 2)

    with locked(path):
        assert [hit.position for hit in await store.search("gamma alpha", session="s", limit=1)] == [1]
        assert await found(store, "alpha") == [0, 1]
        assert await found(store, "alpha", session=None) == [0, 1]
        assert await found(store, "alpha", session="nobody") == []
        await store.close()

    assert notes(path) == 2
    assert await found(store, "alpha") == [0, 1]
    assert notes(path) == 0


async def test_a_search_on_a_full_disk_finds_everything(path: Path) -> None:
    store = SqliteStore(path, max_bytes=1_000_000)
    for position in range(MAX_PENDING_TEXTS - 1):
        await say(store, f"common {os.urandom(400).hex()}", position)
    for size in (100_000, 4_000):
        with suppress(StoreUnavailableError):
            for _ in range(20):
                await store.put_blob(os.urandom(size))

    assert await found(store, "common") == list(range(MAX_PENDING_TEXTS - 1))
    assert notes(path) == MAX_PENDING_TEXTS - 1
    await store.close()


async def test_indexing_a_message_again_replaces_its_old_text(store: SqliteStore) -> None:
    await say(store, "old", 0)
    await found(store, "old")

    await store.append("s", [message_record("x")], after=1, time_ms=NOW_MS, index=[IndexEntry(0, "new")])

    assert (await found(store, "old"), await found(store, "new")) == ([], [0])


async def test_lone_surrogates_separate_words(store: SqliteStore) -> None:
    await store.append(
        "s", [message_record("x")], after=0, time_ms=NOW_MS, index=[IndexEntry(0, "left\ud800right \udfff")]
    )

    assert (await found(store, "left"), await found(store, "right"), await found(store, "leftright")) == ([0], [0], [])


@pytest.mark.parametrize("how", ["delete", "rewrite", "search, delete", "search, rewrite"])
async def test_nothing_of_a_removed_text_is_left_in_the_file(store: SqliteStore, path: Path, how: str) -> None:
    for position in range(20):
        await say(store, f"{SECRET} and {'other words ' * 100}", position)
        await say(store, f"what {SECRET[:7]} said", position, "t")
    if how.startswith("search"):
        await found(store, SECRET)

    if how.endswith("delete"):
        await store.delete("s")
    else:
        index = [IndexEntry(position, "gone") for position in range(20)]
        records = {position: message_record("gone") for position in range(20)}
        await store.rewrite("s", records, tombstone=message_record("told"), after=20, time_ms=NOW_MS, index=index)

    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert SECRET.encode() not in files
    assert await found(store, SECRET, session=None) == []
    assert await found(store, SECRET[:7], session="t") == list(range(20))


def first_made(path: Path, texts: list[str]) -> None:
    """Write a file with one session in the first schema, which had no pending texts."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        for statement in SQLITE_MIGRATIONS[0]:
            connection.execute(statement)
        insert = "INSERT INTO sessions (name_id, length, created_ms, updated_ms) VALUES ('s', ?, ?, ?)"
        connection.execute(insert, (len(texts), NOW_MS, NOW_MS))
        for position, text in enumerate(texts):
            row_id = (1 << POSITION_BITS) | position
            connection.execute(
                "INSERT INTO events VALUES (?, ?, ?)", (row_id, NOW_MS, compress(encode_json(message_record(text))))
            )
            connection.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (row_id, text))
            connection.execute("INSERT INTO indexed VALUES (?, ?)", (row_id, compress(text.encode())))
        connection.execute("PRAGMA user_version = 1")
        connection.commit()


async def test_a_file_that_a_newer_program_brings_up_to_date_first_keeps_its_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_made(path, ["alpha beta"])
    newer = SQLITE_MIGRATIONS

    def migrate_as_newer(statement: str) -> None:
        if statement == "BEGIN IMMEDIATE":
            connection.set_trace_callback(None)
            monkeypatch.setattr(schema, "SQLITE_MIGRATIONS", newer)
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                migrate_sqlite(other, "the file")
            monkeypatch.setattr(schema, "SQLITE_MIGRATIONS", newer[:2])

    monkeypatch.setattr(schema, "SQLITE_MIGRATIONS", newer[:2])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.set_trace_callback(migrate_as_newer)
        with pytest.raises(StoreUnavailableError, match="written by a newer Holdfast; update Holdfast"):
            migrate_sqlite(connection, "the file")
    monkeypatch.setattr(schema, "SQLITE_MIGRATIONS", newer)

    store = SqliteStore(path)
    assert [stored.record for stored in await store.read("s")] == [message_record("alpha beta")]
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(newer),)


async def test_a_file_of_the_first_schema_opens_and_everything_in_it_is_found(store: SqliteStore, path: Path) -> None:
    first_made(path, ["alpha beta", "beta " + "gamma " * 50])

    assert [stored.record for stored in await store.read("s")] == [
        message_record("alpha beta"),
        message_record("beta " + "gamma " * 50),
    ]
    assert (await found(store, "beta"), await found(store, "gamma")) == ([0, 1], [1])
    await say(store, "beta delta", 2)
    assert (await found(store, "beta"), await found(store, "delta")) == ([0, 1, 2], [2])
    await store.delete("s")
    assert await found(store, "beta", session=None) == []


async def test_a_phrase_is_looked_up_once_whatever_else_is_searched(store: SqliteStore, path: Path) -> None:
    texts = [f"plain word {number % 7} of flask 2 3 1" if number % 10 else "nothing" for number in range(200)]
    entries = [IndexEntry(number, text) for number, text in enumerate(texts)]
    await store.append("s", list(map(message_record, texts)), after=0, time_ms=NOW_MS, index=entries)
    await store.close()
    statements: list[str] = []

    with closing(sqlite3.connect(path)) as connection:
        connection.set_trace_callback(statements.append)
        hits = FullTextIndex(connection, "s").search(search_terms("flask 2.3.1 plain word"), (0, 2**62), 200)

    assert len(hits) == 180
    assert sum("""MATCH '"2 3 1"' """ in statement for statement in statements) == 1


@pytest.mark.parametrize(("count", "shown"), [(300, 300), (1_200, 1_000)])
async def test_the_forms_of_a_word_are_looked_up_once(store: SqliteStore, path: Path, count: int, shown: int) -> None:
    texts = [f"{'tables' if number % 2 else 'table'} {number}" for number in range(count)]
    entries = [IndexEntry(number, text) for number, text in enumerate(texts)]
    await store.append("s", list(map(message_record, texts)), after=0, time_ms=NOW_MS, index=entries)
    await store.close()
    statements: list[str] = []

    with closing(sqlite3.connect(path)) as connection:
        connection.set_trace_callback(statements.append)
        hits = FullTextIndex(connection, "s").search(search_terms("table"), (0, 2**62), count)

    newest = range(count - shown, count)
    assert sorted(row & POSITION_MASK for row, _ in hits) == [*newest]
    assert sum("""MATCH '"tabl" *' """ in statement for statement in statements) == 1


async def test_of_words_that_are_all_common_the_newest_messages_with_two_of_them_are_found(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "COMMON_WORD_MESSAGES", 3)
    monkeypatch.setattr(search_module, "MAX_CANDIDATES", 4)
    texts = [f"{first} {second}" for first in ("red", "green", "blue") for second in ("apple", "pear", "plum", "fig")]
    for position, text in enumerate(texts * 2):
        await say(store, text, position)

    both, either = [
        {texts[hit.position % 12] for hit in await store.search(words, session="s", limit=9)}
        for words in ("green pear", "red green blue")
    ]

    assert both == {"green pear"}
    assert {text.split()[0] for text in either} <= {"red", "green", "blue"}
    assert len(either) == 4


async def test_a_removed_text_is_not_found_in_a_large_index_and_all_others_are(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "MAX_OPTIMIZED_MESSAGES", 1)
    for position in range(3):
        await say(store, f"a {SECRET} of {position}", position)
        await say(store, f"another {SECRET}", position, session="t")

    await store.delete("t")

    assert (await found(store, SECRET), await found(store, SECRET, session=None)) == ([0, 1, 2], [0, 1, 2])
