"""The names that go with a question: of all that were used and are not in view, those likeliest to be needed.

In work, what is looked for is mostly a name to be used again: a path, a method, an id. A ledger knows which are likely
to be; those that share words with the question are likelier still.
"""

import re
from collections.abc import Iterable, Sequence

from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.ledger.names import RankedName, pack_names
from holdfast.core.history.recall.ranking import STOP_WORDS

MATCH_RANK = 3.0
"""What a word in common counts for: as much as eight times the use."""
MAX_RANKED = 2_500
"""How many of the likeliest are looked at."""
NAME_STEM_CHARS = 5
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")


def relevant_names(
    questions: Iterable[str], items: Sequence[RankedName], allowance: int, counter: Counter, *, exclude_text: str
) -> str:
    """Return names under a heading, the likeliest first and none that stands in the text `beside`, as many as fit."""
    asked = {piece for question in questions for piece in _name_words(question)} - STOP_WORDS
    ranked = sorted(items, key=lambda item: -(item.rank + MATCH_RANK * len(asked & _name_words(item.text))))
    return pack_names((item.text for item in ranked), allowance, counter, exclude_text=exclude_text)


def _name_words(text: str) -> set[str]:
    return {piece.lower()[:NAME_STEM_CHARS] for piece in _PIECE.findall(text) if len(piece) > 1}
