"""A ledger of the identifiers a conversation has used, ranked by how likely they are to be needed again.

What people and models say they will say again; what was said lately, and often, all the more. What only
stood in a tool's output is seldom asked for. The ledger takes in one message at a time, knows the positions
an identifier came from, and packs the best of what it holds, verbatim, into an allowance of tokens.
"""

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.core.conversation.messages import Text, ToolCall, ToolResult
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.view import Entry
from holdfast.core.history.identifiers import argument_text, distinct_identifiers

SAID, RETURNED = 3.0, 0.2
"""What a use counts for: by a person or the model, in words or in a call; and in a tool's output."""
HALF_LIFE = 150
"""After how many messages a use counts for half."""
NUMBER_SHARE = 0.3
"""Numbers are everywhere and seldom needed again."""
LENGTH_POWER = 0.3
"""Long identifiers take the place of several short ones; a little of that counts against them."""
HEADING = "Identifiers used so far, most likely needed first:"


class Item(NamedTuple):
    """An identifier, and where it came from."""

    text: str
    first: int
    last: int
    """The positions of its first and last use."""
    score: float
    """What its uses counted for when it was last used."""


class Ledger:
    """Identifiers with their uses; grows by one message at a time."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._length = 0

    def __len__(self) -> int:
        return len(self._items)

    def observe(self, entry: Entry) -> None:
        """Take in what a message uses."""
        position = self._length if entry.position is None else entry.position
        self._length = position + 1
        used: dict[str, float] = {}
        for part in entry.message.parts:
            if isinstance(part, ToolCall):
                _note(used, distinct_identifiers(argument_text(part.arguments)), SAID)
            elif isinstance(part, ToolResult):
                _note(used, distinct_identifiers(part.text), RETURNED)
            elif isinstance(part, Text):
                _note(used, distinct_identifiers(part.text), SAID)
        for text, weight in used.items():
            known = self._items.get(text)
            if known is None:
                self._items[text] = Item(text, position, position, weight)
            else:
                faded = known.score * _faded(position - known.last)
                self._items[text] = Item(text, known.first, position, faded + weight)

    def ranked(self) -> list[Item]:
        """Return the identifiers, those most likely needed again first."""
        now = self._length
        return sorted(self._items.values(), key=lambda item: (-_likelihood(item, now), -item.last, item.text))

    def pack(self, allowance_tokens: int, counter: Counter) -> str:
        """Return as many identifiers as fit, verbatim; empty where not even one does."""
        return pack((item.text for item in self.ranked()), allowance_tokens, counter)


def pack(texts: Iterable[str], allowance_tokens: int, counter: Counter) -> str:
    """Return texts on one line as far as they fit an allowance; one that stands inside another is not repeated."""
    left = allowance_tokens - counter.count(HEADING) - 2
    line = ""
    for text in texts:
        if text in line:
            continue
        cost = counter.count(f" {text}")
        if cost > left:
            break
        line += f" {text}"
        left -= cost
    return f"{HEADING}\n{line.strip()}" if line else ""


def _likelihood(item: Item, now: int) -> float:
    """Return how likely an identifier is to be needed again, in no particular unit."""
    share = NUMBER_SHARE if item.text.isdigit() else 1.0
    return share * item.score * _faded(now - item.last) / len(item.text) ** LENGTH_POWER


def _note(used: dict[str, float], found: Iterable[str], weight: float) -> None:
    for text in found:
        used[text] = max(used.get(text, 0.0), weight)


def _faded(messages: int) -> float:
    return 0.5 ** (messages / HALF_LIFE)
