"""What can be found in a SQLite store: the words of messages, taken into the index a little after they were said.

An index takes in many messages at once for far less than one at a time. So an append only notes what is to be found,
in its own transaction, and a note is as durable as the record it belongs to. Notes are taken in when there are some,
before anybody searches, before anything is deleted or rewritten, and at the end. Whoever cannot write just then,
because the file is read-only or the disk is full, searches the notes apart.

Searches a full-text index of SQLite in a time that hardly grows with the number of messages.

FTS5's own `bm25()` looks at every message that holds any of the words, which takes a fifth of a second for common
words in a hundred thousand messages. Here the rare words say which messages are looked at, and the common ones only
how good those are; where all words are common, two of them have to stand together. Each word counts for the more
the fewer messages hold it, and a message for the less the longer it is: BM25, with each word counted once.
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
"""From so many messages on a word is common, and nobody counts further."""
MAX_STEMMED_MESSAGES = 200
"""A word that so many messages hold as it stands needs no other forms."""
MAX_CANDIDATES = 1_000
"""How many messages are looked at for one word, and about how many for all that are rare."""
MAX_RARE_WORDS, MAX_COMMON_WORDS, MAX_PAIRED_WORDS = 12, 4, 3
"""How many rare words are looked for, how many common ones beside them, and how many two by two where there are no
rare ones."""
MAX_LENGTH_WEIGHED = 300
"""Of how many of the best the length is asked for."""
BM25_B, BM25_K1 = 0.5, 1.2
"""BM25's b and k1."""
RowRange: TypeAlias = tuple[int, int]
"""From which row on, and before which."""


class _Word(NamedTuple):
    """A term as FTS5 reads it, and how many messages hold it."""

    match: str
    messages: int


def search_rows(
    connection: sqlite3.Connection, terms: Sequence[SearchTerm], rows: RowRange, limit: int
) -> list[tuple[int, float]]:
    """Return the rows that fit best, the best first, each with its score."""
    counted = (_word(connection, term, rows) for term in terms)
    words = sorted((word for word in counted if word.messages), key=lambda word: word.messages)
    telling, common = _split(words)
    looked_for = [*telling, *common]
    if not looked_for:
        return []
    index = _Lookup(connection, rows)
    holding = index.rows_with_rare(telling, common) if telling else index.rows_with_pairs(common)
    total = _message_count(connection, rows)
    weights = [rarity_weight(word.messages, total) for word in looked_for]
    sums = {
        words: sum(weight for number, weight in enumerate(weights) if words >> number & 1)
        for words in set(holding.values())
    }
    return _weigh_by_length(connection, {row: sums[words] for row, words in holding.items()}, limit)


class _Lookup:
    """Says which rows hold which words: of each row, a bit for each of them."""

    def __init__(self, connection: sqlite3.Connection, rows: RowRange) -> None:
        self._connection = connection
        self._rows = rows

    def rows_with_rare(self, rare: Sequence[_Word], common: Sequence[_Word]) -> dict[int, int]:
        """Return the rows that hold a telling word, with all the words they hold."""
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
        """Return the newest rows that hold two of some common words; the rarest, where no two stand together."""
        holding: dict[int, int] = {}
        for (one, word), (two, other) in combinations(enumerate(common[:MAX_PAIRED_WORDS]), 2):
            for row in self._newest(f"{word.match} AND {other.match}"):
                holding[row] = holding.get(row, 0) | 1 << one | 1 << two
        return holding or dict.fromkeys(self._newest(common[0].match), 1)

    def _newest(self, match: str) -> list[int]:
        query = "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rowid DESC LIMIT ?"
        return [row for (row,) in self._connection.execute(query, (match, *self._rows, MAX_CANDIDATES))]


def _word(connection: sqlite3.Connection, term: SearchTerm, rows: RowRange) -> _Word:
    """Return a term with how common it is; of a common word only the form that was asked for is looked for."""
    plain = '"' + " ".join(term.words) + '"'
    held = _count(connection, plain, rows)
    if not term.is_stem or held > MAX_STEMMED_MESSAGES:
        return _Word(plain, held)
    return _Word(f"{plain} *", _count(connection, f"{plain} *", rows))


def _split(words: Sequence[_Word]) -> tuple[list[_Word], list[_Word]]:
    """Return the words that say which messages are looked at, and those that are looked for in them."""
    telling: list[_Word] = []
    looked_at = 0
    for word in words[:MAX_RARE_WORDS]:
        looked_at += word.messages
        if word.messages >= COMMON_WORD_MESSAGES or (telling and looked_at > MAX_CANDIDATES):
            break
        telling.append(word)
    return telling, list(words[len(telling) :][:MAX_COMMON_WORDS])


def _count(connection: sqlite3.Connection, match: str, rows: RowRange) -> int:
    query = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? LIMIT ?)"
    return connection.execute(query, (match, *rows, COMMON_WORD_MESSAGES)).fetchone()[0]


def _message_count(connection: sqlite3.Connection, rows: RowRange) -> int:
    """Return about how many messages there are: the rows of one session follow each other."""
    ends = "SELECT (SELECT min(id) FROM indexed WHERE id >= ?), (SELECT max(id) FROM indexed WHERE id < ?)"
    first, last = connection.execute(ends, rows).fetchone()
    return 0 if first is None or last is None else last - first + 1


def _weigh_by_length(
    connection: sqlite3.Connection, scores: Mapping[int, float], limit: int
) -> list[tuple[int, float]]:
    """Return the best rows with their scores made smaller for those that are longer than others."""
    best = sorted(scores, key=lambda row: (-scores[row], -row))[: max(MAX_LENGTH_WEIGHED, limit)]
    sizes = dict(
        connection.execute(
            "SELECT id, length(body) FROM indexed WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(best),)
        ).fetchall()
    )
    usual = sum(sizes.values()) / max(1, len(sizes))
    weighed = {row: scores[row] * _length_factor(sizes.get(row, usual), usual) for row in best}
    return sorted(weighed.items(), key=lambda item: (-item[1], -item[0]))[:limit]


def _length_factor(size: float, usual: float) -> float:
    return (BM25_K1 + 1) / (1 + BM25_K1 * (1 - BM25_B + BM25_B * size / max(1.0, usual)))


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
