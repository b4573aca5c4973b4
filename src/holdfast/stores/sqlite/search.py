"""The full-text index of a SQLite store.

Indexing many messages at once costs far less than one at a time. So an append only stores the texts as pending, in its
own transaction. Pending texts are indexed when there are enough, before a search, before a delete or a rewrite, and on
close. If the file cannot be written then, a search indexes them in memory.

A search takes hardly longer when there are more messages. FTS5's own `bm25()` visits every message that holds any of
the words: a fifth of a second for common words in a hundred thousand messages. Here rare words select the candidates
and common words only rank them; if all words are common, a candidate must hold two of them. The score is BM25 with
each word counted once.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import combinations
from typing import NamedTuple, TypeAlias

from holdfast.stores.encoding import COMPRESSION_LEVEL, DEFLATED, decompress
from holdfast.stores.search_terms import SearchTerm, index_body, rarity_weight

COMMON_WORD_MESSAGES = 1_000
"""A word in this many messages is common, and counting stops there."""
MAX_STEMMED_MESSAGES = 200
"""A word in more messages than this is not searched in its other forms."""
MAX_CANDIDATES = 1_000
"""Candidates for one word, and about as many for all rare words together."""
MAX_RARE_WORDS, MAX_COMMON_WORDS, MAX_PAIRED_WORDS = 12, 4, 3
"""Rare words in a query, common words that rank their candidates, and common words in pairs if none is rare."""
MAX_LENGTH_WEIGHED = 300
"""How many of the best candidates are weighted by their length."""
BM25_B, BM25_K1 = 0.5, 1.2
RowRange: TypeAlias = tuple[int, int]
"""The first row, and the row after the last."""


class _Word(NamedTuple):
    """A term in FTS5's syntax, and how many messages hold it."""

    match: str
    messages: int


def search_rows(
    connection: sqlite3.Connection, terms: Sequence[SearchTerm], rows: RowRange, limit: int
) -> list[tuple[int, float]]:
    """Return the best rows and their scores, best first."""
    counted = (_word(connection, term, rows) for term in terms)
    words = sorted((word for word in counted if word.messages), key=lambda word: word.messages)
    rare, common = _split(words)
    if not words:
        return []
    index = _Lookup(connection, rows)
    holding = index.rows_with_rare(rare, common) if rare else index.rows_with_pairs(common)
    total = _message_count(connection, rows)
    weights = [rarity_weight(word.messages, total) for word in (*rare, *common)]
    sums = {
        words: sum(weight for number, weight in enumerate(weights) if words >> number & 1)
        for words in set(holding.values())
    }
    return _weigh_by_length(connection, {row: sums[words] for row, words in holding.items()}, limit)


class _Lookup:
    """Finds the rows that hold words; each row comes with one bit for each word it holds."""

    def __init__(self, connection: sqlite3.Connection, rows: RowRange) -> None:
        self._connection = connection
        self._rows = rows

    def rows_with_rare(self, rare: Sequence[_Word], common: Sequence[_Word]) -> dict[int, int]:
        """Return the rows that hold a rare word, with all the words they hold."""
        holding: dict[int, int] = {}
        for number, word in enumerate(rare):
            for row in self._newest(word.match):
                holding[row] = holding.get(row, 0) | 1 << number
        either = " OR ".join(word.match for word in rare)
        for number, word in enumerate(common, len(rare)):
            for row in self._newest(f"({either}) AND {word.match}"):
                holding[row] = holding.get(row, 0) | 1 << number
        return holding

    def rows_with_pairs(self, common: Sequence[_Word]) -> dict[int, int]:
        """Return the newest rows that hold two common words; if there are none, those with the rarest word."""
        holding: dict[int, int] = {}
        for (one, word), (two, other) in combinations(enumerate(common[:MAX_PAIRED_WORDS]), 2):
            for row in self._newest(f"{word.match} AND {other.match}"):
                holding[row] = holding.get(row, 0) | 1 << one | 1 << two
        return holding or dict.fromkeys(self._newest(common[0].match), 1)

    def _newest(self, match: str) -> list[int]:
        query = "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rowid DESC LIMIT ?"
        return [row for (row,) in self._connection.execute(query, (match, *self._rows, MAX_CANDIDATES))]


def _word(connection: sqlite3.Connection, term: SearchTerm, rows: RowRange) -> _Word:
    """Return a term and how common it is; a common word is searched in its written form only."""
    plain = '"' + " ".join(term.words) + '"'
    held = _count(connection, plain, rows)
    if not term.is_stem or held > MAX_STEMMED_MESSAGES:
        return _Word(plain, held)
    return _Word(f"{plain} *", _count(connection, f"{plain} *", rows))


def _split(words: Sequence[_Word]) -> tuple[list[_Word], list[_Word]]:
    """Return the rare words, which select candidates, and the common ones, which rank them."""
    rare: list[_Word] = []
    candidates = 0
    for word in words[:MAX_RARE_WORDS]:
        candidates += word.messages
        if word.messages >= COMMON_WORD_MESSAGES or (rare and candidates > MAX_CANDIDATES):
            break
        rare.append(word)
    return rare, list(words[len(rare) :][:MAX_COMMON_WORDS])


def _count(connection: sqlite3.Connection, match: str, rows: RowRange) -> int:
    query = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? LIMIT ?)"
    return connection.execute(query, (match, *rows, COMMON_WORD_MESSAGES)).fetchone()[0]


def _message_count(connection: sqlite3.Connection, rows: RowRange) -> int:
    """Return about how many messages there are: the rows of a session are consecutive."""
    ends = "SELECT (SELECT min(id) FROM indexed WHERE id >= ?), (SELECT max(id) FROM indexed WHERE id < ?)"
    first, last = connection.execute(ends, rows).fetchone()
    return 0 if first is None or last is None else last - first + 1


def _weigh_by_length(
    connection: sqlite3.Connection, scores: Mapping[int, float], limit: int
) -> list[tuple[int, float]]:
    """Return the best rows, with lower scores for longer messages."""
    best = sorted(scores, key=lambda row: (-scores[row], -row))[: max(MAX_LENGTH_WEIGHED, limit)]
    sizes = dict(
        connection.execute(
            "SELECT id, length(body) FROM indexed WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(best),)
        ).fetchall()
    )
    usual = sum(sizes.values()) / max(1, len(sizes))

    def weighted(row: int) -> float:
        size = sizes.get(row, usual)
        return scores[row] * ((BM25_K1 + 1) / (1 + BM25_K1 * (1 - BM25_B + BM25_B * size / max(1.0, usual))))

    return sorted(((row, weighted(row)) for row in best), key=lambda item: (-item[1], -item[0]))[:limit]


MAX_PENDING_TEXTS, MAX_PENDING_CHARS = 64, 65_536
"""With this many pending texts or characters, indexing is worthwhile. A search indexes fewer in milliseconds."""
TOKENIZER = "tokenize = 'unicode61 remove_diacritics 0'"
"""We split words ourselves, so that every store finds the same."""
RowScore: TypeAlias = tuple[int, float]
"""The row of a message, and its score."""


class FullTextIndex:
    """The index of one file; callers hold a transaction while they change it."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection, self._name = connection, name
        # A process that was killed may have left some.
        self._pending_count: int = connection.execute("SELECT count(*) FROM noted").fetchone()[0]
        self._pending_chars = 0

    @property
    def needs_indexing(self) -> bool:
        """Whether enough texts are pending."""
        return self._pending_count >= MAX_PENDING_TEXTS or self._pending_chars >= MAX_PENDING_CHARS

    def add(self, texts: Sequence[tuple[int, str]]) -> None:
        """Store texts as pending, or index them at once if there are many."""
        chars = sum(len(text) for _, text in texts)
        if len(texts) >= MAX_PENDING_TEXTS or chars >= MAX_PENDING_CHARS:
            self._index_texts(texts)
            return
        insert = "INSERT OR REPLACE INTO noted (id, text) VALUES (?, ?)"
        # A lone surrogate is not part of any word.
        self._connection.executemany(insert, [(row_id, text.encode("utf-8", "replace")) for row_id, text in texts])
        self._pending_count += len(texts)
        self._pending_chars += chars

    def index_pending(self) -> None:
        """Index every pending text."""
        # If this fails, it is tried again when as many texts are pending as before.
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
            # The index holds no text, and FTS5 deletes a row only if it is given the indexed text.
            kept = _compressed(body)
            insert = "INSERT OR IGNORE INTO indexed (id, body) VALUES (?, ?)"
            if not write(insert, (row_id, kept)).rowcount:
                self.remove(row_id, row_id + 1)
                write(insert, (row_id, kept))
            write("INSERT INTO words (rowid, body) VALUES (?, ?)", (row_id, body))

    def remove(self, first: int, last: int) -> None:
        """Remove messages from the index; no text may be pending."""
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
        """Purge deleted entries: FTS5 deletes by adding an entry."""
        self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")

    def has_pending(self) -> bool:
        """Return whether texts are pending."""
        return self._connection.execute("SELECT 1 FROM noted LIMIT 1").fetchone() is not None

    def search(self, terms: Sequence[SearchTerm], rows: RowRange, limit: int) -> list[RowScore]:
        """Return the rows that match, best first, pending texts included."""
        # Pending texts first: what another process indexes meanwhile is then found twice, not missed.
        hits = dict(self._search_pending(terms, rows, limit)) if self.has_pending() else {}
        hits |= dict(search_rows(self._connection, terms, rows, limit))
        return sorted(hits.items(), key=lambda hit: (-hit[1], -hit[0]))[:limit]

    def _search_pending(self, terms: Sequence[SearchTerm], rows: RowRange, limit: int) -> list[RowScore]:
        """Return the pending texts that match, scored among themselves."""
        with closing(sqlite3.connect(":memory:")) as memory:
            memory.execute(f"CREATE VIRTUAL TABLE words USING fts5 (body, {TOKENIZER})")
            memory.execute("CREATE TABLE indexed (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
            for row_id, text in self._pending_texts():
                body = index_body(text)
                memory.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (row_id, body))
                memory.execute("INSERT INTO indexed (id, body) VALUES (?, ?)", (row_id, _compressed(body)))
            return search_rows(memory, terms, rows, limit)


def _compressed(body: str) -> bytes:
    return DEFLATED + zlib.compress(body.encode(), COMPRESSION_LEVEL)
