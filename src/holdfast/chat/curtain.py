"""What of an answer a person is shown as it comes in pieces: what stands for a tool's output is left out."""

from holdfast.core.history.artifacts import ARTIFACT_REFERENCE

REFERENCE_START = "[artifact:"
MAX_HELD_CHARS = 4_000
"""What has not ended by then is no reference."""


class ReferenceFilter:
    """Holds back what may be the beginning of a reference until that is clear."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return what can be shown by now."""
        self._held += piece
        shown = ""
        while (start := _find_start(self._held)) is not None:
            shown, self._held = shown + self._held[:start], self._held[start:]
            if found := ARTIFACT_REFERENCE.match(self._held):
                self._held = self._held[found.end() :]
            elif "\n\n" in self._held or len(self._held) > MAX_HELD_CHARS:
                shown, self._held = shown + self._held[: len(REFERENCE_START)], self._held[len(REFERENCE_START) :]
            else:
                return shown
        start = len(self._held) - _partial_start_chars(self._held)
        shown, self._held = shown + self._held[:start], self._held[start:]
        return shown

    def flush(self) -> str:
        """Return what was held back and is shown all the same, now that nothing follows."""
        held, self._held = self._held, ""
        return ARTIFACT_REFERENCE.sub("", held)


def _find_start(text: str) -> int | None:
    """Return where what may be a reference begins."""
    at = text.find("[")
    while at >= 0 and text[at : at + len(REFERENCE_START)].lower() != REFERENCE_START:
        at = text.find("[", at + 1)
    return at if at >= 0 else None


def _partial_start_chars(text: str) -> int:
    """Return how much of the end of a text may be the beginning of a reference."""
    end = text[1 - len(REFERENCE_START) :].lower()
    return next((size for size in range(len(end), 0, -1) if end.endswith(REFERENCE_START[:size])), 0)
