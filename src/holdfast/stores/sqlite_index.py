"""What can be found in a SQLite store: the words of messages, taken into the index a little after they were said.

An index takes in many messages at once for far less than one at a time. So an append only notes what is to be found,
in its own transaction, and a note is as durable as the record it belongs to. Notes are taken in when there are some,
before anybody searches, before anything is deleted or rewritten, and at the end. Whoever cannot write just then,
because the file is read-only or the disk is full, searches the notes apart.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TypeAlias

from holdfast.stores.packing import COMPRESSION_LEVEL, DEFLATED, decompress
from holdfast.stores.sqlite_search import RowRange, search_rows
from holdfast.stores.terms import SearchTerm
from holdfast.stores.words import index_body

MAX_PENDING_TEXTS, MAX_PENDING_CHARS = 64, 65_536
"""So many notes, or so much text, are worth taking in; a search that comes first does it in some milliseconds."""
TOKENIZER = "tokenize = 'unicode61 remove_diacritics 0'"
"""Words are cut by us, so that every store finds the same."""
RowScore: TypeAlias = tuple[int, float]
"""The row of a message, and how well it fits."""


class FullTextIndex:
    """The words of one file; what changes it is called inside a transaction."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection, self._name = connection, name
        # Whoever was killed here has left some.
        self._pending_count: int = connection.execute("SELECT count(*) FROM noted").fetchone()[0]
        self._pending_chars = 0

    @property
    def needs_indexing(self) -> bool:
        """Whether there are notes enough to be taken in."""
        return self._pending_count >= MAX_PENDING_TEXTS or self._pending_chars >= MAX_PENDING_CHARS

    def add(self, texts: Sequence[tuple[int, str]]) -> None:
        """Note what messages are to be found by, or take them in at once where they are many."""
        chars = sum(len(text) for _, text in texts)
        if len(texts) >= MAX_PENDING_TEXTS or chars >= MAX_PENDING_CHARS:
            self._index_texts(texts)
            return
        note = "INSERT OR REPLACE INTO noted (id, text) VALUES (?, ?)"
        # Half of a surrogate pair is part of no word.
        self._connection.executemany(note, [(row_id, text.encode("utf-8", "replace")) for row_id, text in texts])
        self._pending_count += len(texts)
        self._pending_chars += chars

    def index_pending(self) -> None:
        """Take in every note."""
        # Should this fail it is tried again when as much has come together as before.
        self._pending_count = self._pending_chars = 0
        self._index_texts(self._pending_texts())
        self._connection.execute("DELETE FROM noted")

    def _pending_texts(self) -> list[tuple[int, str]]:
        rows = self._connection.execute("SELECT id, text FROM noted ORDER BY id").fetchall()
        return [(row_id, text.decode()) for row_id, text in rows]

    def _index_texts(self, texts: Iterable[tuple[int, str]]) -> None:
        write = self._connection.execute
        for row_id, text in texts:
            body = index_body(text)
            # The index holds no text, and a row can only be forgotten by saying what it held.
            kept = _compressed(body)
            insert = "INSERT OR IGNORE INTO indexed (id, body) VALUES (?, ?)"
            if not write(insert, (row_id, kept)).rowcount:
                self.remove(row_id, row_id + 1)
                write(insert, (row_id, kept))
            write("INSERT INTO words (rowid, body) VALUES (?, ?)", (row_id, body))

    def remove(self, first: int, last: int) -> None:
        """Take what some messages were found by out of the index; no note may be left."""
        span = "FROM indexed WHERE id >= ? AND id < ?"
        rows = self._connection.execute(f"SELECT id, body {span}", (first, last)).fetchall()
        if not rows:
            return
        self._connection.executemany(
            "INSERT INTO words (words, rowid, body) VALUES ('delete', ?, ?)",
            [(row_id, decompress(body, self._name).decode()) for row_id, body in rows],
        )
        self._connection.execute(f"DELETE {span}", (first, last))

    def optimize(self) -> None:
        """Leave nothing of what was forgotten: an index forgets by adding."""
        self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")

    def has_pending(self) -> bool:
        """Return whether a search would miss something."""
        return self._connection.execute("SELECT 1 FROM noted LIMIT 1").fetchone() is not None

    def search(self, terms: Sequence[SearchTerm], rows: RowRange, limit: int) -> list[RowScore]:
        """Return what fits some terms, the best first; of what was noted too."""
        # The notes first: what is taken in meanwhile is then found twice, and not missed.
        hits = dict(self._search_pending(terms, rows, limit)) if self.has_pending() else {}
        hits |= dict(search_rows(self._connection, terms, rows, limit))
        return sorted(hits.items(), key=lambda hit: (-hit[1], -hit[0]))[:limit]

    def _search_pending(self, terms: Sequence[SearchTerm], rows: RowRange, limit: int) -> list[RowScore]:
        """Return what fits among the notes; how well is measured by the notes alone."""
        with closing(sqlite3.connect(":memory:")) as apart:
            apart.execute(f"CREATE VIRTUAL TABLE words USING fts5 (body, {TOKENIZER})")
            apart.execute("CREATE TABLE indexed (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
            for row_id, text in self._pending_texts():
                body = index_body(text)
                apart.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (row_id, body))
                apart.execute("INSERT INTO indexed (id, body) VALUES (?, ?)", (row_id, _compressed(body)))
            return search_rows(apart, terms, rows, limit)


def _compressed(body: str) -> bytes:
    return DEFLATED + zlib.compress(body.encode(), COMPRESSION_LEVEL)
