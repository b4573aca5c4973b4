"""What of an answer a person is shown as it comes in pieces: what stands for a tool's output is left out."""

from holdfast.core.history.artifacts import without_references

MARK = "[Artifact: "


class Curtain:
    """Holds back what may be the beginning of a reference until that is clear."""

    def __init__(self) -> None:
        self._held = ""

    def passes(self, piece: str) -> str:
        """Return what can be shown by now."""
        self._held += piece
        shown = ""
        while (start := self._held.find(MARK)) >= 0:
            end = self._held.find("\n", start)
            shown, self._held = shown + self._held[:start], self._held[start:]
            if end < 0:
                return shown
            line, self._held = self._held[: end - start], self._held[end - start :]
            shown += without_references(line)
        start = len(self._held) - _begun(self._held)
        shown, self._held = shown + self._held[:start], self._held[start:]
        return shown

    def rest(self) -> str:
        """Return what was held back and is shown all the same, now that nothing follows."""
        held, self._held = self._held, ""
        return without_references(held)


def _begun(text: str) -> int:
    """Return how much of the end of a text may be the beginning of a reference."""
    return next((size for size in range(len(MARK) - 1, 0, -1) if text.endswith(MARK[:size])), 0)
