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

from holdfast.stores.packing import DEFLATED, LEVEL, unpacked
from holdfast.stores.sqlite_search import Rows, found
from holdfast.stores.terms import Term
from holdfast.stores.words import body_of

MAX_NOTES, MAX_NOTED_CHARS = 64, 65_536
"""So many notes, or so much text, are worth taking in; a search that comes first does it in some milliseconds."""
TOKENS = "tokenize = 'unicode61 remove_diacritics 0'"
"""Words are cut by us, so that every store finds the same."""
Found: TypeAlias = tuple[int, float]
"""The row of a message, and how well it fits."""


class Index:
    """The words of one file; what changes it is called inside a transaction."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection, self._name = connection, name
        # Whoever was killed here has left some.
        self._notes: int = connection.execute("SELECT count(*) FROM noted").fetchone()[0]
        self._chars = 0

    @property
    def is_behind(self) -> bool:
        """Whether there are notes enough to be taken in."""
        return self._notes >= MAX_NOTES or self._chars >= MAX_NOTED_CHARS

    def put(self, texts: Sequence[tuple[int, str]]) -> None:
        """Note what messages are to be found by, or take them in at once where they are many."""
        chars = sum(len(text) for _, text in texts)
        if len(texts) >= MAX_NOTES or chars >= MAX_NOTED_CHARS:
            self._take_in(texts)
            return
        note = "INSERT OR REPLACE INTO noted (id, text) VALUES (?, ?)"
        # Half of a surrogate pair is part of no word.
        self._connection.executemany(note, [(row_id, text.encode("utf-8", "replace")) for row_id, text in texts])
        self._notes += len(texts)
        self._chars += chars

    def catch_up(self) -> None:
        """Take in every note."""
        # Should this fail it is tried again when as much has come together as before.
        self._notes = self._chars = 0
        self._take_in(self._noted())
        self._connection.execute("DELETE FROM noted")

    def _noted(self) -> list[tuple[int, str]]:
        rows = self._connection.execute("SELECT id, text FROM noted ORDER BY id").fetchall()
        return [(row_id, text.decode()) for row_id, text in rows]

    def _take_in(self, texts: Iterable[tuple[int, str]]) -> None:
        write = self._connection.execute
        for row_id, text in texts:
            body = body_of(text)
            # The index holds no text, and a row can only be forgotten by saying what it held.
            kept = _kept(body)
            insert = "INSERT OR IGNORE INTO indexed (id, body) VALUES (?, ?)"
            if not write(insert, (row_id, kept)).rowcount:
                self.forget(row_id, row_id + 1)
                write(insert, (row_id, kept))
            write("INSERT INTO words (rowid, body) VALUES (?, ?)", (row_id, body))

    def forget(self, first: int, last: int) -> None:
        """Take what some messages were found by out of the index; no note may be left."""
        span = "FROM indexed WHERE id >= ? AND id < ?"
        rows = self._connection.execute(f"SELECT id, body {span}", (first, last)).fetchall()
        if not rows:
            return
        self._connection.executemany(
            "INSERT INTO words (words, rowid, body) VALUES ('delete', ?, ?)",
            [(row_id, unpacked(body, self._name).decode()) for row_id, body in rows],
        )
        self._connection.execute(f"DELETE {span}", (first, last))

    def optimize(self) -> None:
        """Leave nothing of what was forgotten: an index forgets by adding."""
        self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")

    def has_notes(self) -> bool:
        """Return whether a search would miss something."""
        return self._connection.execute("SELECT 1 FROM noted LIMIT 1").fetchone() is not None

    def search(self, terms: Sequence[Term], rows: Rows, limit: int) -> list[Found]:
        """Return what fits some terms, the best first; of what was noted too."""
        # The notes first: what is taken in meanwhile is then found twice, and not missed.
        hits = dict(self._apart(terms, rows, limit)) if self.has_notes() else {}
        hits |= dict(found(self._connection, terms, rows, limit))
        return sorted(hits.items(), key=lambda hit: (-hit[1], -hit[0]))[:limit]

    def _apart(self, terms: Sequence[Term], rows: Rows, limit: int) -> list[Found]:
        """Return what fits among the notes; how well is measured by the notes alone."""
        with closing(sqlite3.connect(":memory:")) as apart:
            apart.execute(f"CREATE VIRTUAL TABLE words USING fts5 (body, {TOKENS})")
            apart.execute("CREATE TABLE indexed (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
            for row_id, text in self._noted():
                body = body_of(text)
                apart.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (row_id, body))
                apart.execute("INSERT INTO indexed (id, body) VALUES (?, ?)", (row_id, _kept(body)))
            return found(apart, terms, rows, limit)


def _kept(body: str) -> bytes:
    return DEFLATED + zlib.compress(body.encode(), LEVEL)
