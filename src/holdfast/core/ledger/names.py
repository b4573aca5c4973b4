"""The identifiers a conversation has used, ranked by how likely they are needed again.

A name that the model uses is likely to be used again, more so if the use is recent or frequent. A name that occurs
only in a tool's output is seldom needed. The weight of every use halves after the same number of messages, so the
order of two names changes only when one of them is used again. Each name therefore has a rank that does not depend on
the current position. Packing chooses the likeliest names per token, verbatim, and omits names that are part of another.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from itertools import accumulate, starmap
from math import log2
from typing import NamedTuple, TypeAlias

from holdfast.core.conversation.frames import IDENTIFIERS_HEADING
from holdfast.core.conversation.tokens import Counter
from holdfast.core.ledger.identifiers import IDENTIFIER_MIN_CHARS, distinct_identifiers
from holdfast.dataclass import dataclass
from holdfast.text import lazy_pattern

FILE_USE_WEIGHT, MODEL_USE_WEIGHT, USER_USE_WEIGHT, OUTPUT_USE_WEIGHT = 6.0, 3.0, 1.0, 0.5
"""The weight of a use: as the file of a call; by the model, in text or in a call; by the user, who pastes much and
whose messages are kept anyway; and in a tool's output."""
REPEAT_POWER = 1.5
"""With this exponent two uses count for more than one, but not for twice as much."""
HALF_LIFE = 100
"""The number of messages after which the weight of a use halves."""
NUMBER_SHARE = 0.3
"""The weight of numbers relative to other names; they are common and seldom needed again."""
MAX_KEPT_NAMES, MAX_HELD_NAMES = 6_000, 9_000
"""Above the second number of names, all but the best are evicted; the first number is how many remain."""
MIN_NAME_TOKENS = 2
"""Few names cost a single token, so packing considers one candidate for this many tokens of the allowance."""
ENDING_CHARS = (IDENTIFIER_MIN_CHARS, 2 * IDENTIFIER_MIN_CHARS)
_WORD = lazy_pattern(r"[A-Z]*[a-z0-9]+|[A-Z]+|[^A-Za-z0-9]")
"""The words of a text in ASCII and what separates them; `_is_word_boundary` says where one ends."""


class RankedName(NamedTuple):
    """An identifier with its rank and the positions of its uses."""

    rank: float
    """Higher means likelier needed again per token. Ranks are comparable within one ledger at any time."""
    text: str
    first: int
    last: int
    """The positions of its first and last use."""


_Item: TypeAlias = tuple[float, str, int, int]
"""The fields of a `RankedName`."""


class _NameTable(Mapping[str, _Item]):
    """The identifiers of a conversation, of which there are thousands, with their ranks and positions in arrays.

    An object for each takes more memory than the text that it comes from, and Python's garbage collector visits it.
    """

    __slots__ = ("_firsts", "_indices", "_lasts", "_ranks")

    def __init__(self, items: Iterable[_Item] = ()) -> None:
        self._indices: dict[str, int] = {}
        """The index of each identifier in the arrays; they have the same order."""
        self._ranks = array("d")
        self._firsts, self._lasts = array("I"), array("I")
        for rank, text, first, last in items:
            self.add(text, rank, first, last)

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[str]:
        return iter(self._indices)

    def __getitem__(self, text: str) -> _Item:
        index = self._indices[text]
        return self._ranks[index], text, self._firsts[index], self._lasts[index]

    def add(self, text: str, rank: float, first: int, last: int) -> None:
        """Add an identifier that is not in the table."""
        self._indices[text] = len(self._ranks)
        self._ranks.append(rank)
        self._firsts.append(first)
        self._lasts.append(last)

    def observe(self, weights: Mapping[str, float], position: int) -> None:
        """Record the names of one message, each with the weight of its use."""
        indices, ranks, lasts, age = self._indices, self._ranks, self._lasts, position / HALF_LIFE
        for text, weight in weights.items():
            index, prior = indices.get(text), _prior(len(text), text.isdigit())
            if index is None:
                self.add(text, log2(weight) + age + prior, position, position)
            else:
                last = max(position, lasts[index])
                faded = 2.0 ** (REPEAT_POWER * (ranks[index] - prior - last / HALF_LIFE))
                score = log2(faded + weight**REPEAT_POWER) / REPEAT_POWER
                ranks[index], lasts[index] = score + last / HALF_LIFE + prior, last

    def best(self, limit: int | None) -> list[_Item]:
        """Return all items, or the best `limit` of them, best first."""
        items: Iterable[_Item] = zip(self._ranks, self._indices, self._firsts, self._lasts, strict=True)
        if limit is not None and 0 < limit < len(self):
            # Numbers sort several times faster than items, so only items of the likeliest names are made and sorted.
            least = sorted(self._ranks)[-limit]
            items = [item for item in items if item[0] >= least]
        return sorted(items, reverse=True)[:limit]


@dataclass(slots=True)
class UsedNames:
    """The identifiers that a conversation has used."""

    _items: Mapping[str, _Item] = field(default_factory=_NameTable)
    """The fields of a `RankedName` by its text; a snapshot has them as an ordinary object."""

    def __len__(self) -> int:
        return len(self._items)

    def _table(self) -> _NameTable:
        items = self._items
        if not isinstance(items, _NameTable):
            self._items = items = _NameTable(items.values())
        return items

    def observe(self, weights: Mapping[str, float], position: int) -> None:
        """Record the names of one message, each with the weight of its use."""
        table = self._table()
        table.observe(weights, position)
        if len(table) > MAX_HELD_NAMES:
            self._items = _NameTable(table.best(MAX_KEPT_NAMES))

    def ranked(self, limit: int | None = None) -> list[RankedName]:
        """Return the identifiers, or the best `limit` of them, most likely needed first."""
        return list(starmap(RankedName, self._table().best(limit)))

    def pack(self, allowance_tokens: int, counter: Counter, *, exclude_text: str = "") -> str:
        """Return as many identifiers as fit, verbatim, except those in `exclude_text`."""
        priced: list[tuple[float, str, int]] = []
        for rank, text, _, _ in self._table().best(max(0, allowance_tokens // MIN_NAME_TOKENS)):
            cost = max(1, counter.count(f" {text}"))
            priced.append((rank + log2(_estimated_cost(len(text)) / cost), text, cost))
        priced.sort(reverse=True)
        return _pack_priced(((text, cost) for _, text, cost in priced), allowance_tokens, counter, exclude_text)


def pack_names(texts: Iterable[str], allowance_tokens: int, counter: Counter, *, exclude_text: str = "") -> str:
    """Return as many texts as fit an allowance, on one line under a heading; empty if none fits.

    A text that is part of another or occurs in `exclude_text` is left out.
    """
    return _pack_priced(((text, counter.count(f" {text}")) for text in texts), allowance_tokens, counter, exclude_text)


def _pack_priced(priced: Iterable[tuple[str, int]], allowance_tokens: int, counter: Counter, exclude_text: str) -> str:
    left = allowance_tokens - counter.count(IDENTIFIERS_HEADING) - 2
    seen = distinct_identifiers(exclude_text)
    chosen: dict[str, int] = {}
    endings: dict[str, list[str]] = {}
    inner: set[str] = set()
    """The endings of all names in the texts that were chosen."""
    line = ""
    for text, cost in priced:
        if left < MIN_NAME_TOKENS:
            break
        ending = _ending(text)
        if text in seen or ((ending in inner or len(text) < IDENTIFIER_MIN_CHARS) and is_name_in(text, line)):
            continue
        own = _endings_in(text)
        ends = (short for end in endings.keys() & own for short in endings[end])
        inside = {short for short in ends if short in chosen and is_name_in(short, text)}
        if cost - sum(chosen[short] for short in inside) > left:
            continue
        left += sum(chosen.pop(short) for short in inside) - cost
        chosen[text] = cost
        inner |= own
        endings.setdefault(ending, []).append(text)
        line = " ".join(chosen) if inside else f"{line} {text}"
    texts = list(chosen)
    while texts:
        whole = f"{IDENTIFIERS_HEADING}\n{' '.join(texts)}"
        if counter.count(whole) <= allowance_tokens:
            return whole
        texts.pop()  # Together the texts may cost more than one by one.
    return ""


def _endings_in(text: str) -> set[str]:
    """Return the ending of every name that may be part of a text as a whole."""
    stops = accumulate(map(len, _WORD.findall(text))) if text.isascii() else range(1, len(text) + 1)
    return {text[stop - chars : stop] for stop in stops for chars in ENDING_CHARS if stop >= chars}


def _ending(text: str) -> str:
    """Return the end of a text as its index key: paths begin alike but end in different names."""
    short, long = ENDING_CHARS
    return text[-long:] if len(text) >= long else text[-short:]


def is_name_in(short: str, text: str) -> bool:
    """Return whether a text contains a name as a whole: `view` in `login_view.py`, but not `page_1` in `page_10`."""
    at = text.find(short)
    while at >= 0 and not (_is_word_boundary(text, at) and _is_word_boundary(text, at + len(short))):
        at = text.find(short, at + 1)
    return at >= 0


def _is_word_boundary(text: str, at: int) -> bool:
    """Return whether a word begins or ends here: at a separator, or at a capital that follows no capital."""
    if not 0 < at < len(text):
        return True
    before, after = text[at - 1], text[at]
    return not (before.isalnum() and after.isalnum()) or (after.isupper() and not before.isupper())


@cache
def _prior(chars: int, is_number: bool) -> float:  # noqa: FBT001 - named arguments take three times as long
    """Return the part of a rank that depends on the name alone; names are at most `IDENTIFIER_MAX_CHARS` long."""
    return log2((NUMBER_SHARE if is_number else 1.0) / _estimated_cost(chars))


def _estimated_cost(chars: int) -> float:
    return 1 + chars / 4
