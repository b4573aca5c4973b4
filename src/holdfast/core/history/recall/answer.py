"""What recall gives back: excerpts to the letter, and how to ask for more.

For a model it is one text. Each excerpt has a heading that names where it comes from; should a text hold a line that
looks like such a heading, all headings carry a mark that no text can have foreseen.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from holdfast.core.conversation.messages import Role
from holdfast.core.history.recall.asking import Recall

MARK_CHARS = 6
_HEADING_LIKE = re.compile(r"(?m)^#\d+\S* (?:system|user|assistant|tool)\b")
DAY_CHARS = len("2026-01-31")


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A piece of a message, exactly as it was said."""

    position: int
    role: Role
    text: str
    start: int
    stop: int
    """Which characters of the message's text it is."""
    total: int
    """How many there are."""
    time_ms: int
    time: str = ""
    """The same for people: `2026-01-31 10:02`, in UTC."""
    tool: str = ""
    """The tool that was called or that answers."""
    part: int | None = None
    """Which part of the message, where only one was asked for; then characters are counted in that part."""
    is_neighbour: bool = False

    @property
    def ref(self) -> str:
        """How to ask for it."""
        return f"#{self.position}" if self.part is None else f"#{self.position}.{self.part}"

    @property
    def is_whole(self) -> bool:
        """Whether it is all that the message says."""
        return self.start == 0 and self.stop == self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """An answer; as a text it is what a model gets."""

    excerpts: tuple[Excerpt, ...] = ()
    found: int = 0
    """How many messages were found, shown here or not."""
    names: str = ""
    """Identifiers that are not in view and go with what is asked, likeliest first."""
    notes: tuple[str, ...] = ()
    """What could not be had, and why."""
    more: Recall | None = None
    """What to ask for the rest."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield heading_of(self.excerpts, self.found)
        mark = mark_for(self.excerpts)
        if mark:
            yield f"[Excerpts begin at lines with the mark {mark}.]"
        before: Excerpt | None = None
        for excerpt in self.excerpts:
            yield headed(excerpt, before, mark)
            before = excerpt
        if self.names:
            yield self.names
        for note in self.notes:
            yield f"[{note}]"
        if self.more:
            yield f"[More: recall {json.dumps(self.more.arguments(), ensure_ascii=False)}]"


def heading_of(excerpts: Sequence[Excerpt], found: int) -> str:
    """Return the first line of an answer."""
    if not excerpts:
        return "[Recall: nothing was found.]" if not found else "[Recall: nothing that fits into the answer.]"
    of = f" of {found:,}" if found > len(excerpts) else ""
    return f"[Recall: {len(excerpts):,}{of} messages, to the letter, for reference only.]"


def headed(excerpt: Excerpt, before: Excerpt | None, mark: str) -> str:
    """Return an excerpt under its heading; what stands in the heading before it is not said again."""
    pieces = [f"{excerpt.ref}{mark}", excerpt.role]
    if excerpt.tool:
        pieces.append(excerpt.tool)
    day = excerpt.time[:DAY_CHARS]
    if day and (before is None or before.time[:DAY_CHARS] != day):
        pieces.append(day)
    if not excerpt.is_whole:
        pieces.append(f"characters {excerpt.start}-{excerpt.stop} of {excerpt.total}")
    return f"{' '.join(pieces)}:\n{excerpt.text}"


def looks_like_heading(text: str) -> bool:
    """Return whether a line of a text could be taken for one of our headings."""
    return _HEADING_LIKE.search(text) is not None


def mark_for(excerpts: Sequence[Excerpt]) -> str:
    """Return what tells our headings from lines of the texts that look like them; empty where none does."""
    texts = [excerpt.text for excerpt in excerpts]
    if not any(map(looks_like_heading, texts)):
        return ""
    digest = sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()
    return f"~{digest[:MARK_CHARS]}"
