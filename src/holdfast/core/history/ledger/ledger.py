"""The ledger: what a conversation must not forget, taken in one message at a time.

A pure fold of the messages, so that the same messages give the same ledger.
"""

from holdfast.core.conversation.messages import Text, ToolCall, ToolResult, Trust
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.view import Entry
from holdfast.core.history.identifiers import argument_text, distinct_identifiers
from holdfast.core.history.ledger.names import ASKED, RETURNED, SAID, Item, Names


class Ledger:
    """Identifiers with their uses; grows by one message at a time."""

    def __init__(self) -> None:
        self._names = Names()
        self._length = 0

    def __len__(self) -> int:
        return len(self._names)

    def observe(self, entry: Entry) -> None:
        """Take in a message."""
        position = self._length if entry.position is None else entry.position
        self._length = position + 1
        used: dict[str, float] = {}
        for part in entry.message.parts:
            if isinstance(part, ToolCall):
                _note(used, argument_text(part.arguments), SAID)
            elif isinstance(part, ToolResult):
                _note(used, part.text, RETURNED)
            elif isinstance(part, Text):
                _note(used, part.text, _weight(part.trust))
        self._names.use(used, position)

    def ranked(self, limit: int | None = None) -> list[Item]:
        """Return the identifiers, or the best of them, those most likely needed again first."""
        return self._names.ranked(limit)

    def pack(self, allowance_tokens: int, counter: Counter, *, beside: str = "") -> str:
        """Return as many identifiers as fit, verbatim, leaving out those that stand beside it anyway."""
        return self._names.pack(allowance_tokens, counter, beside=beside)


def _weight(trust: Trust) -> float:
    if trust == "model":
        return SAID
    return RETURNED if trust == "tool" else ASKED


def _note(used: dict[str, float], text: str, weight: float) -> None:
    for name in distinct_identifiers(text):
        if used.get(name, 0.0) < weight:
            used[name] = weight
