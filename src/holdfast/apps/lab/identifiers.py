"""The definition of an identifier for the metric of demand retention.

It is deliberately separate from the ledger's: an improvement of the ledger must not change the metric.
"""

import re
from collections.abc import Iterator
from itertools import chain

_PATTERN = (
    r"(?P<mail>[\w.+-]+@[\w-]+\.[\w.-]+\w)"
    r"|(?P<path>(?:~?/|\.{1,2}/|[\w@.-]+/)[\w@.+-]+(?:/[\w@.+-]+)*)"
    r"|(?P<file>\b[\w-]+\.[A-Za-z]{1,5}\b)"
    r"|(?P<hash>\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\b)"
    r"|(?P<name>\b(?:[a-z]+[a-z0-9]*(?:[A-Z][a-z0-9]*)+|(?:[A-Z][a-z0-9]+){2,}|[A-Za-z]+(?:_[A-Za-z0-9]+)+)\b)"
    r"|(?P<id>\b(?=[A-Za-z]*\d)[A-Z0-9]{5,}\b)"
    r"|(?P<number>\b\d{4,}\b)"
)
_RUN = re.compile(r"[\w@.+~/-]{4,}")
_MAX_RUN_CHARS = 1_000
"""Longer runs are data, and the pattern would take quadratic time on them."""
MIN_IDENTIFIER_CHARS, MAX_IDENTIFIER_CHARS = 4, 200
RULE_WORDS = re.compile(r"(?<!\bi )(?<!\bwe )\b(?:always|never|don['’]?t|do not|must)\b", re.IGNORECASE)
_ORDER_START = re.compile(r"(?:(?:please|and|also|so|but|just|remember),? +)*(?:always|never)\s+[a-z]", re.IGNORECASE)
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
MIN_PIECE_CHARS = 2
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n")
MIN_RULE_CHARS, MAX_RULE_CHARS = 8, 300
"""Longer sentences are pasted text."""


def extract_identifiers(text: str) -> Iterator[str]:
    """Yield the identifiers of a text, in order and as often as they occur."""
    runs = (run[0] for run in _RUN.finditer(text) if len(run[0]) <= _MAX_RUN_CHARS)
    for match in chain.from_iterable(re.finditer(_PATTERN, run) for run in runs):
        found = match.group().rstrip(".-,")
        if MIN_IDENTIFIER_CHARS <= len(found) <= MAX_IDENTIFIER_CHARS:
            yield found


def extract_rules(text: str) -> Iterator[str]:
    """Yield the sentences of a user's text that say what to do always or never; skip questions."""
    for piece in _SENTENCE_END.split(text):
        sentence = piece.strip()
        is_rule = MIN_RULE_CHARS <= len(sentence) <= MAX_RULE_CHARS and not sentence.endswith("?")
        if is_rule and RULE_WORDS.search(sentence):
            yield sentence


def extract_orders(text: str) -> Iterator[str]:
    """Yield the rules of a user's text that begin with always or never."""
    return (rule for rule in extract_rules(text) if _ORDER_START.match(rule))


def name_pieces(name: str) -> list[str]:
    """Return the words that an identifier consists of."""
    return [piece for piece in _PIECE.findall(name) if len(piece) >= MIN_PIECE_CHARS] or [name]
