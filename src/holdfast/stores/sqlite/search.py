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
from holdfast.stores.sqlite.schema import INDEX_TABLES, write_rows

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
RowScore: TypeAlias = tuple[int, float]
"""The row of a message, and its score."""


class _Word(NamedTuple):
    """A term in FTS5's syntax, and how many messages hold it."""

    match: str
    messages: int
    rows: Sequence[int] = ()
    """The rows of a phrase, or of a word in all its forms, in fewer than `MAX_CANDIDATES` messages."""
    newest: Sequence[int] = ()
    """The newest rows of a word in all its forms, if there are more."""


class _IndexSearch:
    """A search in some rows of an index. A set of words is an integer with one bit for each word."""

    def __init__(self, connection: sqlite3.Connection, rows: RowRange) -> None:
        self._connection = connection
        self._rows = rows

    def best_rows(self, terms: Sequence[SearchTerm], limit: int) -> list[RowScore]:
        """Return the best rows and their scores, best first."""
        counted = (self._word(term) for term in terms)
        words = sorted((word for word in counted if word.messages), key=lambda word: word.messages)
        if not words:
            return []
        rare, common = _split(words)
        holding = self._rows_with_rare(rare, common) if rare else self._rows_with_pairs(common)
        total = self._message_count()
        weights = [rarity_weight(word.messages, total) for word in (*rare, *common)]
        sums = {
            words: sum(weight for number, weight in enumerate(weights) if words >> number & 1)
            for words in set(holding.values())
        }
        return self._weigh_by_length({row: sums[words] for row, words in holding.items()}, limit)

    def _word(self, term: SearchTerm) -> _Word:
        """Return a term and how common it is; a common word is searched in its written form only."""
        plain = '"' + " ".join(term.words) + '"'
        if len(term.words) > 1:
            # Comparing the positions of words takes far longer than fetching the rows, so that is done only once.
            rows = self._rows_with(plain)
            return _Word(plain, len(rows), rows if len(rows) < MAX_CANDIDATES else ())
        held = self._count(plain)
        if not term.is_stem or held > MAX_STEMMED_MESSAGES:
            return _Word(plain, held)
        # FTS5 puts the rows of all words with that beginning together first, so that is done only once, too.
        rows = self._newest(f"{plain} *")
        is_rare = len(rows) < MAX_CANDIDATES
        return _Word(f"{plain} *", len(rows), rows if is_rare else (), () if is_rare else rows)

    def _count(self, match: str) -> int:
        query = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? LIMIT ?)"
        return self._connection.execute(query, (match, *self._rows, COMMON_WORD_MESSAGES)).fetchone()[0]

    def _message_count(self) -> int:
        """Return about how many messages there are: the rows of a session are consecutive."""
        ends = "SELECT (SELECT min(id) FROM indexed WHERE id >= ?), (SELECT max(id) FROM indexed WHERE id < ?)"
        first, last = self._connection.execute(ends, self._rows).fetchone()
        return 0 if first is None or last is None else last - first + 1

    def _rows_with_rare(self, rare: Sequence[_Word], common: Sequence[_Word]) -> dict[int, int]:
        """Return the rows that hold a rare word, with all the words they hold."""
        holding: dict[int, int] = {}
        for number, word in enumerate(rare):
            for row in word.rows or self._rows_with(word.match):
                holding[row] = holding.get(row, 0) | 1 << number
        either = " OR ".join(word.match for word in rare)
        for number, word in enumerate(common, start=len(rare)):
            for row in holding.keys() & word.rows if word.rows else self._rows_with(f"({either}) AND {word.match}"):
                holding[row] = holding.get(row, 0) | 1 << number
        return holding

    def _rows_with_pairs(self, common: Sequence[_Word]) -> dict[int, int]:
        """Return the newest rows that hold two common words; if there are none, those with the rarest word."""
        holding: dict[int, int] = {}
        for (one, word), (two, other) in combinations(enumerate(common[:MAX_PAIRED_WORDS]), 2):
            for row in self._newest(f"{word.match} AND {other.match}"):
                holding[row] = holding.get(row, 0) | 1 << one | 1 << two
        return holding or dict.fromkeys(common[0].newest or self._newest(common[0].match), 1)

    def _rows_with(self, match: str) -> list[int]:
        """Return the rows that match, from the oldest on: FTS5 reads positions backward half as fast."""
        query = """
            SELECT json_group_array(rowid)
            FROM (SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? LIMIT ?)
        """
        return json.loads(self._connection.execute(query, (match, *self._rows, MAX_CANDIDATES)).fetchone()[0])

    def _newest(self, match: str) -> list[int]:
        query = "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rowid DESC LIMIT ?"
        return [row for (row,) in self._connection.execute(query, (match, *self._rows, MAX_CANDIDATES))]

    def _weigh_by_length(self, scores: Mapping[int, float], limit: int) -> list[RowScore]:
        """Return the best rows, with lower scores for longer messages."""
        best = sorted(scores, key=lambda row: (-scores[row], -row))[: max(MAX_LENGTH_WEIGHED, limit)]
        query = "SELECT id, length(body) FROM indexed WHERE id IN (SELECT value FROM json_each(?))"
        sizes = dict(self._connection.execute(query, (json.dumps(best),)).fetchall())
        usual = sum(sizes.values()) / max(1, len(sizes))

        def weighted(row: int) -> float:
            size = sizes.get(row, usual)
            return scores[row] * ((BM25_K1 + 1) / (1 + BM25_K1 * (1 - BM25_B + BM25_B * size / max(1.0, usual))))

        return _best_first(((row, weighted(row)) for row in best), limit)


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


def _best_first(scores: Iterable[RowScore], limit: int) -> list[RowScore]:
    return sorted(scores, key=lambda item: (-item[1], -item[0]))[:limit]


MAX_SMALL_RANGE = 100
"""Up to how many messages of a session are searched without the index of all sessions."""
MAX_OPTIMIZED_MESSAGES, MERGED_PAGES = 10_000, 64
"""Up to how many messages the whole index is rewritten after a deletion, and how many pages of a larger one."""
MAX_PENDING_TEXTS, MAX_PENDING_CHARS = 64, 65_536
"""With this many pending texts or characters, indexing is worthwhile. A search indexes fewer in milliseconds."""
INSERT_PENDING = "INSERT OR REPLACE INTO noted (id, text) VALUES {rows}"
INSERT_INDEXED = "INSERT OR FAIL INTO indexed (id, body) VALUES {rows}"
INSERT_WORDS = (
    "INSERT INTO words (rowid, body) SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?)"
)


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
        chars = sum([len(text) for _, text in texts])
        if len(texts) >= MAX_PENDING_TEXTS or chars >= MAX_PENDING_CHARS:
            self._index_texts(texts)
            return
        self.add_pending(texts)

    def add_pending(self, texts: Sequence[tuple[int, str]]) -> None:
        """Store texts as pending."""
        # A lone surrogate is not part of any word.
        contents = [(row_id, text.encode("utf-8", "replace")) for row_id, text in texts]
        write_rows(self._connection, INSERT_PENDING, contents)
        self._pending_count += len(texts)
        self._pending_chars += sum([len(text) for _, text in texts])

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
        by_row = dict(texts)
        known = "SELECT json_group_array(id) FROM indexed WHERE id IN (SELECT value FROM json_each(?))"
        for row_id in json.loads(self._connection.execute(known, (json.dumps([*by_row]),)).fetchone()[0]):
            self.remove(row_id, row_id + 1)
        _index_texts(self._connection, by_row)

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

    def optimize_if_small(self) -> None:
        """Purge deleted entries now if the index is small; merge a part of a large one, which `optimize` rewrites."""
        count = "SELECT count(*) FROM (SELECT 1 FROM indexed LIMIT ?)"
        if self._connection.execute(count, (MAX_OPTIMIZED_MESSAGES,)).fetchone()[0] < MAX_OPTIMIZED_MESSAGES:
            self.optimize()
        else:
            self._connection.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (MERGED_PAGES,))

    def has_pending(self) -> bool:
        """Return whether texts are pending."""
        return self._connection.execute("SELECT 1 FROM noted LIMIT 1").fetchone() is not None

    def search(self, terms: Sequence[SearchTerm], rows: RowRange, limit: int) -> list[RowScore]:
        """Return the rows that match, best first, pending texts included."""
        # Pending texts first: what another process indexes meanwhile is then found twice, not missed.
        hits = dict(self._search_pending(terms, rows, limit)) if self.has_pending() else {}
        small = self._small_range(rows)
        if small is not None:
            hits |= dict(_search_bodies(small, terms, rows, limit))
        else:
            hits |= dict(_IndexSearch(self._connection, rows).best_rows(terms, limit))
        return _best_first(hits.items(), limit)

    def _small_range(self, rows: RowRange) -> dict[int, str] | None:
        """Return the words of a range with few messages: the index would read those of all messages for a stem."""
        query = "SELECT id, body FROM indexed WHERE id >= ? AND id < ? LIMIT ?"
        found = self._connection.execute(query, (*rows, MAX_SMALL_RANGE + 1)).fetchall()
        if len(found) > MAX_SMALL_RANGE:
            return None
        return {row_id: decompress(body, self._name).decode() for row_id, body in found}

    def _search_pending(self, terms: Sequence[SearchTerm], rows: RowRange, limit: int) -> list[RowScore]:
        """Return the pending texts that match, scored among themselves."""
        bodies = {row_id: index_body(text) for row_id, text in self._pending_texts()}
        return _search_bodies(bodies, terms, rows, limit)


def _search_bodies(
    bodies: Mapping[int, str], terms: Sequence[SearchTerm], rows: RowRange, limit: int
) -> list[RowScore]:
    """Search the words of a few messages, in an index of their own."""
    with closing(sqlite3.connect(":memory:")) as memory:
        for statement in INDEX_TABLES:
            memory.execute(statement)
        _index_bodies(memory, [*bodies.items()])
        return _IndexSearch(memory, rows).best_rows(terms, limit)


def _index_texts(connection: sqlite3.Connection, texts: Mapping[int, str]) -> None:
    """Index texts by their rows."""
    _index_bodies(connection, [(row_id, index_body(text)) for row_id, text in texts.items()])


def _index_bodies(connection: sqlite3.Connection, bodies: Sequence[tuple[int, str]]) -> None:
    """Index the words of texts by their rows, in a few statements."""
    connection.execute(INSERT_WORDS, (json.dumps(bodies, ensure_ascii=False),))
    # The index holds no text, and FTS5 deletes a row only if it is given the indexed text.
    packed = [(row_id, DEFLATED + zlib.compress(body.encode(), COMPRESSION_LEVEL)) for row_id, body in bodies]
    write_rows(connection, INSERT_INDEXED, packed)
