"""Long pasted texts: the input line shows a short mark for each, and what is submitted holds the whole text."""

import re

from holdfast.text import pluralize

MAX_INLINE_PASTE_CHARS = 1_000
MAX_INLINE_PASTE_LINES = 12
"""A paste that is longer is shown as a mark."""
_PASTE_MARK = re.compile(r"\[paste \d{1,9}: [^\[\]\n]{1,80}\]")


class PastedTexts:
    """The long pastes since the program started."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def shorten(self, text: str) -> str:
        """Return a pasted text, or the mark that stands for it if it is long."""
        lines = text.count("\n") + 1
        if len(text) <= MAX_INLINE_PASTE_CHARS and lines <= MAX_INLINE_PASTE_LINES:
            return text
        mark = f"[paste {len(self._texts) + 1}: {pluralize(lines, 'line')}, {len(text):,} characters]"
        self._texts[mark] = text
        return mark

    def expand(self, text: str) -> str:
        """Return a text with each mark replaced by the paste that it stands for."""
        return _PASTE_MARK.sub(lambda found: self._texts.get(found[0], found[0]), text)
