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

from holdfast.core.history.ledger.calls import clip_to_line
from holdfast.core.history.ledger.cues import (
    ADOPTION_CUE,
    CHOICE_CUE,
    COMPLETION_CUE,
    CONSTRAINT_CUE,
    DECISION_CUE,
    FILLER_WORDS,
    HAN_FILLERS,
    NEGATION_CUE,
    REJECTION_CUE,
    REPLACEMENT_CUE,
    matches_cue,
)
from holdfast.core.history.ledger.work import add_source

ConstraintStatus: TypeAlias = Literal["active", "superseded", "done"]
ConstraintKind: TypeAlias = Literal["constraint", "decision"]
ConstraintSpeaker: TypeAlias = Literal["user", "assistant"]

MAX_CONSTRAINTS = 400
MAX_CONSTRAINTS_PER_MESSAGE = 40
MIN_SENTENCE_CHARS, MAX_SENTENCE_CHARS = 4, 300
"""A longer sentence is a specification or a paste, and stays where it stands."""
MAX_CODE_SHARE = 0.05
"""The share of brackets and the like above which a line is code, a log or a table."""
SCANNED_CHARS = 20_000
SAME_SUBJECT = 0.5
"""The share of its words by which a statement is about the same thing as another."""
REPLACEMENT_REACH_MESSAGES = 20
"""How many messages back "use that instead" reaches when it does not name what it replaces."""
_CODE = r"(?s)```.*?(?:```|\Z)|<([\w-]{1,40})>.{0,2000}?</\1>"
_SENTENCE_END = r"(?<=[.!?;])\s+|(?<=[。！？；])|[\n\u2028\u2029]"
_CODE_MARK = r"[][{}<>\\=|;$`]"
_LIST_MARK = r"^(?:[-*•]|\d{1,2}[.)])\s+"
_WORD = r"[^\W\d_][\w.+#'’/-]*[\w+#]|[^\W\d_]|\d{2,}"
_HAN = r"[\u4e00-\u9fff]+"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint or a decision, in the words it was given."""

    text: str
    kind: ConstraintKind
    speaker: ConstraintSpeaker
    sources: tuple[int, ...]
    """The positions at which it was said: the first and the latest."""
    status: ConstraintStatus = "active"
    settled_by: int | None = None
    """The position of what superseded it or closed it."""

    def __str__(self) -> str:
        # What a person lays down stands to the letter; only what could break a line is taken out of it.
        text = self.text if self.speaker == "user" and self.text.isprintable() else clip_to_line(self.text)
        said = f"“{text}” #{self.sources[-1]}"
        return said if self.status == "active" else f"{said} ({self.status} by #{self.settled_by})"


@dataclass(slots=True)
class Constraints:
    """Constraints and decisions, the latest last; grows by one text at a time."""

    _constraints: dict[str, Constraint] = field(default_factory=dict[str, Constraint])

    def __iter__(self) -> Iterator[Constraint]:
        return iter(self._constraints.values())

    def observe(self, text: str, speaker: ConstraintSpeaker, position: int) -> None:
        """Take in what a person or the model said."""
        count = 0
        for sentence in _sentences(text):
            lower = sentence.lower()
            if speaker == "user" and matches_cue(COMPLETION_CUE, lower) and self._close(lower, position):
                continue
            if kind := _kind(lower, speaker):
                self._supersede(lower, speaker, position)
                self._add(Constraint(sentence, kind, speaker, (position,)))
                count += 1
            if count == MAX_CONSTRAINTS_PER_MESSAGE:
                break

    def _add(self, constraint: Constraint) -> None:
        key = " ".join(constraint.text.lower().split())
        if known := self._constraints.pop(key, None):
            constraint = replace(constraint, sources=add_source(known.sources, constraint.sources[-1]))
        self._constraints[key] = constraint
        if len(self._constraints) > MAX_CONSTRAINTS:
            settled = (key for key, wish in self._constraints.items() if wish.status != "active")
            del self._constraints[next(settled, next(iter(self._constraints)))]

    def _supersede(self, lower: str, speaker: ConstraintSpeaker, position: int) -> None:
        """Mark what a statement replaces as superseded."""
        # What a person laid down, the model cannot lift.
        standing = {
            key: wish.text.lower()
            for key, wish in self._constraints.items()
            if wish.status == "active" and (speaker == "user" or wish.speaker == "assistant") and key != lower
        }
        replaced = [key for key, old in standing.items() if _contradicts(lower, old)]
        if not replaced and _is_bare_replacement(lower):
            recent = (
                key
                for key in reversed(standing)
                if position - self._constraints[key].sources[-1] <= REPLACEMENT_REACH_MESSAGES
            )
            replaced = [key for key in recent if matches_cue(ADOPTION_CUE, standing[key])][:1]
        for key in replaced:
            self._constraints[key] = replace(self._constraints[key], status="superseded", settled_by=position)

    def _close(self, lower: str, position: int) -> bool:
        """Mark what a sentence says is done; return whether that was anything."""
        said = _cached_subject(lower)
        closed = [
            key
            for key, wish in self._constraints.items()
            if wish.status == "active"
            and len(said & (subject := _cached_subject(wish.text.lower()))) > len(subject) / 2
        ]
        for key in closed:
            self._constraints[key] = replace(self._constraints[key], status="done", settled_by=position)
        return bool(closed)


def conflicting_constraints(constraints: Iterable[Constraint]) -> Iterator[str]:
    """Yield where the model has settled something that a person's standing word speaks against; neither gives way."""
    active = [wish for wish in constraints if wish.status == "active"]
    own = [wish for wish in active if wish.speaker == "user"]
    for settled in (wish for wish in active if wish.speaker == "assistant"):
        for asked in own:
            if _contradicts(settled.text.lower(), asked.text.lower()):
                yield f"the model settled {settled}, the user asked for {asked}"


def _kind(lower: str, speaker: ConstraintSpeaker) -> ConstraintKind | None:
    """Return what a sentence is, said by one of the two; a constraint only a person can make."""
    if matches_cue(DECISION_CUE, lower):
        return "decision"
    if speaker == "assistant":
        return None
    if matches_cue(CONSTRAINT_CUE, lower):
        return "constraint"
    return (
        "decision"
        if matches_cue(CHOICE_CUE, lower) or (matches_cue(REPLACEMENT_CUE, lower) and matches_cue(ADOPTION_CUE, lower))
        else None
    )


def _contradicts(new: str, old: str) -> bool:
    """Return whether a statement gives up what an older one, on the same subject, asked for."""
    said, before = _sentence_traits(new), _sentence_traits(old)
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


@lru_cache(maxsize=4 * MAX_CONSTRAINTS)
def _sentence_traits(lower: str) -> _Traits:
    given_up = re.search(REJECTION_CUE, lower)
    return _Traits(
        _cached_subject(lower),
        _cached_subject(given_up[1]) if given_up else frozenset(),
        _cached_subject(re.sub(REJECTION_CUE, " ", lower)),
        matches_cue(NEGATION_CUE, lower),
        matches_cue(ADOPTION_CUE, lower),
        matches_cue(REPLACEMENT_CUE, lower),
    )


def _is_bare_replacement(lower: str) -> bool:
    """Return whether a statement takes up one thing in place of another that it does not name."""
    return matches_cue(REPLACEMENT_CUE, lower) and matches_cue(ADOPTION_CUE, lower) and len(_cached_subject(lower)) == 1


def subject_words(lower: str) -> frozenset[str]:
    """Return the words a sentence is about; of scripts without spaces, their pairs of characters."""
    words = {word.rstrip(".'’") for word in re.findall(_WORD, re.sub(_HAN, " ", lower))}
    runs = re.findall(_HAN, re.sub(HAN_FILLERS, " ", lower))
    pairs = {run[at : at + 2] for run in runs for at in range(max(1, len(run) - 1))}
    return frozenset(words - FILLER_WORDS) | pairs


@lru_cache(maxsize=4 * MAX_CONSTRAINTS)
def _cached_subject(lower: str) -> frozenset[str]:
    """Return the same, worked out once: each new wish is held against all others."""
    return subject_words(lower)


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text that could be wishes: no code, no quotations, no questions."""
    for piece in re.split(_SENTENCE_END, re.sub(_CODE, "\n", text[:SCANNED_CHARS])):
        sentence = re.sub(_LIST_MARK, "", (piece or "").strip())
        if _looks_spoken(sentence):
            yield sentence


def _looks_spoken(sentence: str) -> bool:
    """Return whether a line reads like words somebody said, and not like a quotation, a question or a paste."""
    if not MIN_SENTENCE_CHARS <= len(sentence) <= MAX_SENTENCE_CHARS or sentence[0] in ">|+" or sentence[-1] in "?？":
        return False
    return len(re.findall(_CODE_MARK, sentence)) <= MAX_CODE_SHARE * len(sentence)
