"""The identifiers a conversation has used, ranked by how likely they are needed again.

A name that the model uses is likely to be used again, more so if the use is recent or frequent. A name that occurs
only in a tool's output is seldom needed. The weight of every use halves after the same number of messages, so the
order of two names changes only when one of them is used again. Each name therefore has a rank that does not depend on
the current position. Packing chooses the likeliest names per token, verbatim, and omits names that are part of another.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cache
from itertools import accumulate, starmap
from math import log2
from typing import NamedTuple

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


@dataclass(slots=True)
class UsedNames:
    """The identifiers that a conversation has used."""

    _items: dict[str, tuple[float, str, int, int]] = field(default_factory=dict[str, tuple[float, str, int, int]])
    """The fields of a `RankedName` by its text. Python's garbage collector soon stops visiting plain tuples of numbers
    and texts; of named tuples it would visit thousands in each session, whenever it runs."""

    def __len__(self) -> int:
        return len(self._items)

    def observe(self, weights: Mapping[str, float], position: int) -> None:
        """Record the names of one message, each with the weight of its use."""
        items, age = self._items, position / HALF_LIFE
        for text, weight in weights.items():
            known, prior = items.get(text), _prior(len(text), text.isdigit())
            if known is None:
                items[text] = (log2(weight) + age + prior, text, position, position)
            else:
                rank, _, first, known_last = known
                last = max(position, known_last)
                faded = 2.0 ** (REPEAT_POWER * (rank - prior - last / HALF_LIFE))
                score = log2(faded + weight**REPEAT_POWER) / REPEAT_POWER
                items[text] = (score + last / HALF_LIFE + prior, text, first, last)
        if len(items) > MAX_HELD_NAMES:
            self._items = {item[1]: item for item in self._likeliest(MAX_KEPT_NAMES)}

    def ranked(self, limit: int | None = None) -> list[RankedName]:
        """Return the identifiers, or the best `limit` of them, most likely needed first."""
        return list(starmap(RankedName, self._best(limit)))

    def _best(self, limit: int | None) -> list[tuple[float, str, int, int]]:
        if limit is not None and 0 < limit < len(self._items):
            return sorted(self._likeliest(limit), reverse=True)
        return sorted(self._items.values(), reverse=True)[:limit]

    def _likeliest(self, limit: int) -> list[tuple[float, str, int, int]]:
        """Return the best items, in any order; there are more than `limit`."""
        items = self._items.values()
        # Numbers sort several times faster than items, and then only items of the same rank remain to sort.
        least = sorted([item[0] for item in items])[-limit]
        best = [item for item in items if item[0] > least]
        others = sorted([item for item in items if item[0] == least], reverse=True)
        return [*best, *others[: limit - len(best)]]

    def pack(self, allowance_tokens: int, counter: Counter, *, exclude_text: str = "") -> str:
        """Return as many identifiers as fit, verbatim, except those in `exclude_text`."""
        priced: list[tuple[float, str, int]] = []
        for rank, text, _, _ in self._best(max(0, allowance_tokens // MIN_NAME_TOKENS)):
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
