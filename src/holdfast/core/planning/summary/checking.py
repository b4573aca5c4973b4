"""Whether what a model wrote may take the place of what was said.

A summary is refused by name: for what it is (nothing, half of one, a refusal, an echo, a call), for what it costs, or
for what it loses. What must survive is known from the ledger; whether it does is looked up in the summary and in
what stands beside it. What was lost is put back to the letter as far as an allowance goes, the user's own rules
first; where too much is lost even so, one made by rule is better. The same text is judged the same way every time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from holdfast.core.conversation.tokens import Counter
from holdfast.core.history.ledger.names import is_name_in
from holdfast.core.planning.summary.cleaning import sanitize_summary
from holdfast.core.planning.summary.frames import neutralize_frames
from holdfast.core.planning.summary.nature import NotASummary, not_a_summary_reasons
from holdfast.core.planning.summary.survival import FactReader, MustKeep, survival_score

MIN_SCORE = 0.5
"""Where less than this survives, with what was put back, the summary is refused."""
MANY_FACTS = 12
"""A summary that shows not one of so many was written about something else, or about nothing."""
PUT_BACK_HEADING, NAMES_LABEL = "Also, to the letter:", "- Names:"

SummaryProblem: TypeAlias = (
    NotASummary
    | Literal[
        "empty", "cut off", "no smaller than what it replaces", "drops a constraint", "loses too much", "tells nothing"
    ]
)


@dataclass(frozen=True, slots=True)
class SummaryVerdict:
    """What is to be thought of a summary."""

    text: str
    """What the model wrote, cleaned."""
    problems: tuple[SummaryProblem, ...]
    """Why it may not count; empty where it may."""
    score: float
    """The share of what must survive that does, from 0 to 1, by weight: in the summary or beside it."""
    missing: tuple[MustKeep, ...]
    """What does not."""
    final_score: float
    """The same share with what was put back."""
    put_back: tuple[str, ...]
    """What of it goes with the summary, line by line."""
    tokens: int
    """What the summary costs with what was put back."""
    still_missing: tuple[MustKeep, ...] = ()
    """What is missing still, because it had no room: it is one recall away."""

    @property
    def is_accepted(self) -> bool:
        """Whether it may count."""
        return not self.problems

    @property
    def restored_facts(self) -> tuple[MustKeep, ...]:
        """What was missing, and is not any more."""
        return tuple(fact for fact in self.missing if fact not in self.still_missing)

    @property
    def full_text(self) -> str:
        """The summary with what was put back."""
        return _with_lines(self.text, self.put_back)


def check_summary(
    text: str,
    *,
    is_cut_off: bool,
    span: range,
    facts: Sequence[MustKeep],
    adjacent_texts: Iterable[str],
    counter: Counter,
    replaced_tokens: int,
    put_back_tokens: int,
    min_score: float = MIN_SCORE,
) -> SummaryVerdict:
    """Return what is to be thought of a summary.

    `facts` are what must survive (`must_keep_of` a ledger); `span` are the positions it may cite; `beside` the texts
    that
    stay in view next to it: the user's words, the rendered ledger, the tail. `put_back_tokens` should have room
    for the rules the user set: one that is neither kept nor put back refuses the summary.
    """
    summary = sanitize_summary(text, span)
    sight = FactReader([summary, *adjacent_texts])
    missing = [fact for fact in facts if not sight.contains(fact)]
    room = min(put_back_tokens, replaced_tokens - counter.count(summary) - 1)
    lines = tuple(_fact_lines(_facts_within(missing, room, counter)))
    own, returned = FactReader([summary]), FactReader(lines)
    lost = [fact for fact in missing if not returned.contains(fact)]
    tokens, final_score = counter.count(_with_lines(summary, lines)), survival_score(facts, lost)
    found: tuple[tuple[SummaryProblem, bool], ...] = (
        ("empty", not summary),
        ("cut off", is_cut_off),
        ("no smaller than what it replaces", tokens >= replaced_tokens),
        ("drops a constraint", any(fact.kind == "constraint" for fact in lost)),
        ("loses too much", final_score < min_score),
        ("tells nothing", len(facts) >= MANY_FACTS and not any(map(own.contains, facts))),
    )
    problems: tuple[SummaryProblem, ...] = (
        *(problem for problem, is_so in found if is_so),
        *not_a_summary_reasons(summary),
    )
    score = survival_score(facts, missing)
    return SummaryVerdict(summary, problems, score, tuple(missing), final_score, lines, tokens, tuple(lost))


def _facts_within(missing: Sequence[MustKeep], allowance: int, counter: Counter) -> list[MustKeep]:
    """Return the facts that fit an allowance, the weightiest first; none is shortened."""
    left = allowance - counter.count(f"{PUT_BACK_HEADING}\n{NAMES_LABEL}") - 3
    chosen: list[MustKeep] = []
    said = ""
    for fact in missing:
        line = f" {fact.text}" if fact.kind == "name" else f"\n{_fact_line(fact)}"
        cost = counter.count(line)
        if cost <= left and not (fact.kind == "name" and is_name_in(fact.text, said)):
            chosen.append(fact)
            said += line
            left -= cost
    while chosen and counter.count(_with_lines("", _fact_lines(chosen))) > allowance:
        chosen.pop()
    return chosen


def _fact_lines(facts: Sequence[MustKeep]) -> Iterator[str]:
    """Yield facts as lines of a list; the names share one."""
    yield from (_fact_line(fact) for fact in facts if fact.kind != "name")
    if names := [fact.text for fact in facts if fact.kind == "name"]:
        yield neutralize_frames(f"{NAMES_LABEL} {' '.join(names)}")


def _fact_line(fact: MustKeep) -> str:
    """Return a fact as a line: what a tool said in it cannot become a line of its own."""
    return neutralize_frames(f"- {' '.join(str(fact).split())}")


def _with_lines(text: str, lines: Iterable[str]) -> str:
    kept = "\n".join(lines)
    return f"{text}\n\n{PUT_BACK_HEADING}\n{kept}" if kept else text
