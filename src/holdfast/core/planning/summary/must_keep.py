"""The facts that must survive a compaction, and the test whether they do.

The facts come from the ledger, so a rule selects them and each has a source: the user's constraints, calls without a
result, unresolved errors, decisions, written files, and the names that are most likely needed again. Names and paths
must survive verbatim. A sentence survives verbatim, or as a line with most of its words. For a constraint, the line
must also agree in negation: "never" may replace "do not", "do" may not.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal, TypeAlias

from holdfast.core.ledger.actions import ACTION_CLIP_CHARS
from holdfast.core.ledger.constraints import NEGATION_CUE, matches_cue, subject_words
from holdfast.core.ledger.ledger import Ledger
from holdfast.core.ledger.names import is_name_in
from holdfast.dataclass import dataclass
from holdfast.text import clip_to_line, lazy_pattern

MustKeepKind: TypeAlias = Literal["constraint", "undone", "error", "decision", "file", "name"]

MUST_KEEP_WEIGHTS: Mapping[MustKeepKind, float] = {
    "constraint": 4,
    "undone": 2,
    "error": 2,
    "decision": 2,
    "file": 2,
    "name": 2,
}
"""The weight of each kind in the score, whatever the number of its facts."""
MAX_PER_KIND: Mapping[MustKeepKind, int] = {
    "constraint": 400,
    "undone": 5,
    "error": 5,
    "decision": 20,
    "file": 30,
    "name": 40,
}
"""The most facts of each kind, newest or likeliest first. An old call without a result was probably abandoned, and an
old error that never came up again was probably worked around."""
MIN_WORD_SHARE: Mapping[MustKeepKind, float] = {"constraint": 0.8, "undone": 0.6, "error": 0.5, "decision": 0.7}
"""The share of a sentence's words that a line needs to count as the sentence."""
MUST_KEEP_LABELS: Mapping[MustKeepKind, str] = {
    "constraint": "The user asked to keep to: “{}”",
    "undone": "No result yet: {}",
    "error": "Went wrong, unresolved: {}",
    "decision": "Decided: “{}”",
    "file": "Written: {}",
    "name": "{}",
}
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
_TOKEN = lazy_pattern(rf"[{_CJK}]|(?:(?![{_CJK}])\w)+")


@dataclass(frozen=True, slots=True)
class MustKeep:
    """A fact that must survive a compaction."""

    kind: MustKeepKind
    text: str
    """The fact, verbatim."""
    position: int
    """The position of the message that last states it."""
    evidence: tuple[str, ...] = ()
    """Texts that prove its survival, if its own text is not the proof."""

    def __str__(self) -> str:
        return f"{MUST_KEEP_LABELS[self.kind].format(self.text)} [#{self.position}]"


class FactReader:
    """Texts, indexed for looking up facts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = [text for text in texts if text]
        self._spelled = [_normalized_words(text) for text in self._texts]
        self._lines = [line.lower() for text in self._texts for line in text.splitlines()]
        self._saying: dict[str, list[int]] = {}
        for number, line in enumerate(self._lines):
            for word in subject_words(line):
                self._saying.setdefault(word, []).append(number)

    def contains(self, item: MustKeep) -> bool:
        """Return whether the texts contain a fact."""
        wanted = item.evidence or (item.text,)
        if item.kind in {"name", "file"}:
            return any(is_name_in(name, text) for name in wanted for text in self._texts)
        return any(
            self._contains_sentence(one, MIN_WORD_SHARE[item.kind], is_constraint=item.kind == "constraint")
            for one in wanted
        )

    def _contains_sentence(self, sentence: str, least: float, *, is_constraint: bool) -> bool:
        """Return whether the texts contain a sentence, or a line that is close enough to it."""
        spelled = _normalized_words(sentence)
        if any(spelled in text for text in self._spelled):
            return True
        lower = sentence.lower()
        words = subject_words(lower)
        found = Tally(number for word in words for number in self._saying.get(word, ()))
        close = [number for number, count in found.items() if count >= least * len(words)]
        is_negated = matches_cue(NEGATION_CUE, lower)
        return any(
            not is_constraint or matches_cue(NEGATION_CUE, self._lines[number]) == is_negated for number in close
        )


def must_keep_of(ledger: Ledger) -> list[MustKeep]:
    """Return the facts that must survive: the user's constraints first, and each kind newest or likeliest first."""
    wishes = [wish for wish in ledger.constraints if wish.status == "active"][::-1]
    unresolved = [error for error in ledger.actions.errors.values() if not error.is_resolved][::-1]
    found: dict[MustKeepKind, Iterator[MustKeep]] = {
        "constraint": (MustKeep("constraint", one.text, one.sources[-1]) for one in wishes if one.kind == "constraint"),
        "undone": (
            MustKeep("undone", call.label, call.position, (call.subject,))
            for call in reversed(ledger.open_calls.values())
        ),
        "error": (
            MustKeep(
                "error",
                f"{one.call}: {one.text}",
                one.sources[-1],
                (clip_to_line(one.text or one.call, ACTION_CLIP_CHARS),),
            )
            for one in unresolved
        ),
        "decision": (MustKeep("decision", one.text, one.sources[-1]) for one in wishes if one.kind == "decision"),
        "file": _written_files(ledger),
        "name": (
            MustKeep("name", text, position)
            for text, position in dict.fromkeys(
                [
                    *((one.id, one.position) for one in reversed(ledger.work.tasks.values()) if not one.has_ended),
                    *((item.text, item.last) for item in ledger.names.ranked(MAX_PER_KIND["name"])),
                ]
            )
        ),
    }
    return [fact for kind, facts in found.items() for fact in islice(facts, MAX_PER_KIND[kind])]


def must_keep_redacted(facts: Iterable[MustKeep], hide: Callable[[str], str]) -> Iterator[MustKeep]:
    """Yield the facts with their secrets redacted; a name that is itself a secret is left out."""
    for fact in facts:
        told = replace(fact, text=hide(fact.text), evidence=tuple(map(hide, fact.evidence)))
        if fact.kind != "name" or told == fact:
            yield told


def must_keep_lines(facts: Iterable[MustKeep]) -> tuple[str, ...]:
    """Return facts as readable lines, one each; a name that an earlier line contains is left out."""
    lines: list[str] = []
    for fact in facts:
        if fact.kind != "name" or not any(is_name_in(fact.text, line) for line in lines):
            lines.append(" ".join(str(fact).split()))
    return tuple(lines)


def survival_score(facts: Sequence[MustKeep], missing: Sequence[MustKeep]) -> float:
    """Return the share of facts that survive, each kind by its weight; 1 if there are no facts."""
    of: Tally[MustKeepKind] = Tally(fact.kind for fact in facts)
    lost: Tally[MustKeepKind] = Tally(fact.kind for fact in missing)
    weight = sum(MUST_KEEP_WEIGHTS[kind] for kind in of)
    return sum(MUST_KEEP_WEIGHTS[kind] * (1 - lost[kind] / count) for kind, count in of.items()) / weight if of else 1.0


def _written_files(ledger: Ledger) -> Iterator[MustKeep]:
    """Yield the written files, with the path suffixes that are unambiguous as evidence."""
    files = list(ledger.files)
    endings = Tally(ending for file in files for ending in _path_suffixes(file.path))
    for file in reversed(files):
        if file.last_write:
            known = tuple(ending for ending in _path_suffixes(file.path) if endings[ending] == 1)
            yield MustKeep("file", file.path, file.last_write.position, (file.path, *known))


def _path_suffixes(path: str) -> Iterator[str]:
    """Yield the suffixes of a path that may name its file: `b/c.py` and `c.py` for `a/b/c.py`."""
    steps = path.split("/")
    return ("/".join(steps[start:]) for start in range(1, len(steps)) if steps[-1])


def _normalized_words(text: str) -> str:
    """Return only the words of a text, so that punctuation, case and line breaks do not matter."""
    return f" {' '.join(_TOKEN.findall(text.casefold()))} "
