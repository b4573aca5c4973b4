"""What of an answer a person is shown as it comes in pieces: what stands for a tool's output is left out."""

from holdfast.core.history.artifacts import REFERENCE

MARK = "[artifact:"
MAX_HELD_CHARS = 4_000
"""What has not ended by then is no reference."""


class Curtain:
    """Holds back what may be the beginning of a reference until that is clear."""

    def __init__(self) -> None:
        self._held = ""

    def passes(self, piece: str) -> str:
        """Return what can be shown by now."""
        self._held += piece
        shown = ""
        while (start := _mark_in(self._held)) is not None:
            shown, self._held = shown + self._held[:start], self._held[start:]
            if found := REFERENCE.match(self._held):
                self._held = self._held[found.end() :]
            elif "\n\n" in self._held or len(self._held) > MAX_HELD_CHARS:
                shown, self._held = shown + self._held[: len(MARK)], self._held[len(MARK) :]
            else:
                return shown
        start = len(self._held) - _begun(self._held)
        shown, self._held = shown + self._held[:start], self._held[start:]
        return shown

    def rest(self) -> str:
        """Return what was held back and is shown all the same, now that nothing follows."""
        held, self._held = self._held, ""
        return REFERENCE.sub("", held)


def _mark_in(text: str) -> int | None:
    """Return where what may be a reference begins."""
    at = text.find("[")
    while at >= 0 and text[at : at + len(MARK)].lower() != MARK:
        at = text.find("[", at + 1)
    return at if at >= 0 else None


def _begun(text: str) -> int:
    """Return how much of the end of a text may be the beginning of a reference."""
    end = text[1 - len(MARK) :].lower()
    return next((size for size in range(len(end), 0, -1) if end.endswith(MARK[:size])), 0)
