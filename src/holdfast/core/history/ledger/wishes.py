"""What the user wants kept to, and what the two have settled; and whether it still holds.

Read off sentences by their cues. Only a person's own words make a constraint, and only what a person or the
model said makes a decision: the text of a tool never does, whatever it says. A later statement on the same
subject supersedes an earlier one; a person's word that something is done closes it. What is not clear stays
active.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from holdfast.core.history.ledger.calls import one_line
from holdfast.core.history.ledger.cues import (
    ADOPTION,
    CHOICE,
    COMPLETION,
    CONSTRAINT,
    DECISION,
    FILLERS,
    HAN_FILLERS,
    NEGATION,
    REJECTED,
    REPLACEMENT,
    has,
)
from holdfast.core.history.ledger.work import with_source

Status: TypeAlias = Literal["active", "superseded", "done"]
Kind: TypeAlias = Literal["constraint", "decision"]
Speaker: TypeAlias = Literal["user", "assistant"]

MOST_WISHES = 400
MOST_IN_A_MESSAGE = 40
MIN_CHARS, MAX_CHARS = 4, 300
"""A longer sentence is a specification or a paste, and stays where it stands."""
MOST_CODE = 0.05
"""The share of brackets and the like above which a line is code, a log or a table."""
SCANNED_CHARS = 20_000
SAME_SUBJECT = 0.5
"""The share of its words by which a statement is about the same thing as another."""
NEARBY = 20
"""How many messages back "use that instead" reaches when it does not name what it replaces."""
_CODE = r"(?s)```.*?(?:```|\Z)|<([\w-]{1,40})>.{0,2000}?</\1>"
_SENTENCE_END = r"(?<=[.!?;])\s+|(?<=[。！？；])|[\n\u2028\u2029]"
_CODE_MARK = r"[][{}<>\\=|;$`]"
_LIST_MARK = r"^(?:[-*•]|\d{1,2}[.)])\s+"
_WORD = r"[^\W\d_][\w.+#'’/-]*[\w+#]|[^\W\d_]|\d{2,}"
_HAN = r"[\u4e00-\u9fff]+"


@dataclass(frozen=True, slots=True)
class Wish:
    """A constraint or a decision, in the words it was given."""

    text: str
    kind: Kind
    speaker: Speaker
    sources: tuple[int, ...]
    """The positions at which it was said: the first and the latest."""
    status: Status = "active"
    settled_by: int | None = None
    """The position of what superseded it or closed it."""

    def __str__(self) -> str:
        # What a person lays down stands to the letter; only what could break a line is taken out of it.
        text = self.text if self.speaker == "user" and self.text.isprintable() else one_line(self.text)
        said = f"“{text}” #{self.sources[-1]}"
        return said if self.status == "active" else f"{said} ({self.status} by #{self.settled_by})"


@dataclass(slots=True)
class Wishes:
    """Constraints and decisions, the latest last; grows by one text at a time."""

    _wishes: dict[str, Wish] = field(default_factory=dict[str, Wish])

    def __iter__(self) -> Iterator[Wish]:
        return iter(self._wishes.values())

    def hear(self, text: str, speaker: Speaker, position: int) -> None:
        """Take in what a person or the model said."""
        count = 0
        for sentence in _sentences(text):
            lower = sentence.lower()
            if speaker == "user" and has(COMPLETION, lower) and self._close(lower, position):
                continue
            if kind := _kind(lower, speaker):
                self._replace(lower, speaker, position)
                self._keep(Wish(sentence, kind, speaker, (position,)))
                count += 1
            if count == MOST_IN_A_MESSAGE:
                break

    def _keep(self, wish: Wish) -> None:
        key = " ".join(wish.text.lower().split())
        if known := self._wishes.pop(key, None):
            wish = replace(wish, sources=with_source(known.sources, wish.sources[-1]))
        self._wishes[key] = wish
        if len(self._wishes) > MOST_WISHES:
            settled = (key for key, wish in self._wishes.items() if wish.status != "active")
            del self._wishes[next(settled, next(iter(self._wishes)))]

    def _replace(self, lower: str, speaker: Speaker, position: int) -> None:
        """Mark what a statement replaces as superseded."""
        # What a person laid down, the model cannot lift.
        standing = {
            key: wish.text.lower()
            for key, wish in self._wishes.items()
            if wish.status == "active" and (speaker == "user" or wish.speaker == "assistant") and key != lower
        }
        replaced = [key for key, old in standing.items() if _contradicts(lower, old)]
        if not replaced and _is_bare_replacement(lower):
            recent = (key for key in reversed(standing) if position - self._wishes[key].sources[-1] <= NEARBY)
            replaced = [key for key in recent if has(ADOPTION, standing[key])][:1]
        for key in replaced:
            self._wishes[key] = replace(self._wishes[key], status="superseded", settled_by=position)

    def _close(self, lower: str, position: int) -> bool:
        """Mark what a sentence says is done; return whether that was anything."""
        said = _subject(lower)
        closed = [
            key
            for key, wish in self._wishes.items()
            if wish.status == "active" and len(said & (subject := _subject(wish.text.lower()))) > len(subject) / 2
        ]
        for key in closed:
            self._wishes[key] = replace(self._wishes[key], status="done", settled_by=position)
        return bool(closed)


def conflicts(wishes: Iterable[Wish]) -> Iterator[str]:
    """Yield where the model has settled something that a person's standing word speaks against; neither gives way."""
    active = [wish for wish in wishes if wish.status == "active"]
    own = [wish for wish in active if wish.speaker == "user"]
    for settled in (wish for wish in active if wish.speaker == "assistant"):
        for asked in own:
            if _contradicts(settled.text.lower(), asked.text.lower()):
                yield f"the model settled {settled}, the user asked for {asked}"


def _kind(lower: str, speaker: Speaker) -> Kind | None:
    """Return what a sentence is, said by one of the two; a constraint only a person can make."""
    if has(DECISION, lower):
        return "decision"
    if speaker == "assistant":
        return None
    if has(CONSTRAINT, lower):
        return "constraint"
    return "decision" if has(CHOICE, lower) or (has(REPLACEMENT, lower) and has(ADOPTION, lower)) else None


def _contradicts(new: str, old: str) -> bool:
    """Return whether a statement gives up what an older one, on the same subject, asked for."""
    said, before = _traits(new), _traits(old)
    shared = len(said.subject & before.subject)
    if not shared:
        return False
    if said.rejected and said.rejected <= before.adopted:
        return True
    if said.is_negated != before.is_negated:
        return shared > SAME_SUBJECT * len(said.subject | before.subject)
    is_replacement = said.is_replacement and said.is_adoption and before.is_adoption
    return is_replacement and shared >= SAME_SUBJECT * min(len(said.subject), len(before.subject))


class _Traits(NamedTuple):
    """What a sentence is about and does, worked out once: each new wish is held against all others."""

    subject: frozenset[str]
    rejected: frozenset[str]
    """What it says shall not be."""
    adopted: frozenset[str]
    """What it is about besides that."""
    is_negated: bool
    is_adoption: bool
    is_replacement: bool


@lru_cache(maxsize=4 * MOST_WISHES)
def _traits(lower: str) -> _Traits:
    given_up = re.search(REJECTED, lower)
    return _Traits(
        _subject(lower),
        _subject(given_up[1]) if given_up else frozenset(),
        _subject(re.sub(REJECTED, " ", lower)),
        has(NEGATION, lower),
        has(ADOPTION, lower),
        has(REPLACEMENT, lower),
    )


def _is_bare_replacement(lower: str) -> bool:
    """Return whether a statement takes up one thing in place of another that it does not name."""
    return has(REPLACEMENT, lower) and has(ADOPTION, lower) and len(_subject(lower)) == 1


def subject_of(lower: str) -> frozenset[str]:
    """Return the words a sentence is about; of scripts without spaces, their pairs of characters."""
    words = {word.rstrip(".'’") for word in re.findall(_WORD, re.sub(_HAN, " ", lower))}
    runs = re.findall(_HAN, re.sub(HAN_FILLERS, " ", lower))
    pairs = {run[at : at + 2] for run in runs for at in range(max(1, len(run) - 1))}
    return frozenset(words - FILLERS) | pairs


@lru_cache(maxsize=4 * MOST_WISHES)
def _subject(lower: str) -> frozenset[str]:
    """Return the same, worked out once: each new wish is held against all others."""
    return subject_of(lower)


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text that could be wishes: no code, no quotations, no questions."""
    for piece in re.split(_SENTENCE_END, re.sub(_CODE, "\n", text[:SCANNED_CHARS])):
        sentence = re.sub(_LIST_MARK, "", (piece or "").strip())
        if _could_be_said(sentence):
            yield sentence


def _could_be_said(sentence: str) -> bool:
    """Return whether a line reads like words somebody said, and not like a quotation, a question or a paste."""
    if not MIN_CHARS <= len(sentence) <= MAX_CHARS or sentence[0] in ">|+" or sentence[-1] in "?？":
        return False
    return len(re.findall(_CODE_MARK, sentence)) <= MOST_CODE * len(sentence)
