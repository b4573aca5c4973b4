"""Whether what a model wrote may take the place of what was said.

A summary is refused by name: for what it is (nothing, half of one, a refusal, an echo, a call), for what it costs, or
for what it loses. What must survive is known from the ledger; whether it does is looked up in the summary and in
what stands beside it. What was lost is put back to the letter as far as an allowance goes, the user's own rules
first; where too much is lost even so, one made by rule is better. The same text is judged the same way every time.

What a text is that should have been a summary.

Models that are small, tired or cautious answer with something else: a refusal, the same words over and over,
the instructions themselves, or a call of a tool that is not there. Each can be told by its form alone.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from holdfast.core.conversation.json_values import parse_json
from holdfast.core.conversation.tokens import Counter
from holdfast.core.ledger.names import is_name_in
from holdfast.core.planning.summary.framing import neutralize_frames
from holdfast.core.planning.summary.must_keep import FactReader, MustKeep, survival_score
from holdfast.core.planning.summary.prompt import PREFIX_PROMPT_TEXTS as WORDS_BEHIND
from holdfast.core.planning.summary.prompt import SUMMARY_PROMPT_TEXTS
from holdfast.core.planning.summary.sanitize import CITATION, sanitize_summary

NotASummary: TypeAlias = Literal["no words", "repeats itself", "a refusal", "an echo", "a tool call"]

RUN_WORDS = 4
"""So many words in a row make a run: two texts that share many runs share their sentences."""
MIN_RUNS = 20
MAX_REPEATED_SHARE = 0.6
"""The share of runs that were there before from which on a text is stuck."""
MAX_ECHOED_SHARE = 0.3
"""The share of runs that are the instructions' from which on a text is their echo."""
MAX_COPIED_HEADINGS = 4
"""More lines that begin messages, as the material has them, make a text a copy of it."""
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|\w+")
_HEADING = re.compile(r"(?m)^\W{0,8}\[#[-\d]{1,9} [^\]\n]{1,200}\]")
_REFUSAL = re.compile(
    r"(?i)\W{0,8}(?:i['’]?m (?:really |very )?sorry|i apologi[sz]e|sorry,|unfortunately,? i\b|as an ai\b"
    r"|i (?:can(?:no|['’])?t|am (?:not able|unable)|won['’]?t|must decline)\b|i['’]m (?:not able|unable)\b"
    r"|es tut mir leid|ich kann (?:dir |ihnen )?(?:dabei |das )?nicht|lo siento|no puedo\b"
    r"|je suis désolée?|je ne peux pas|抱歉|对不起|我无法|我不能|申し訳)"
)
_CALL = re.compile(
    r"(?i)\s*(?:[`~]{3}\w*\s*)?(?:[<‹\[|]{1,3}(?:tool_calls?|function_calls?|tool_use|invoke|function|python_tag)\b"
    r"|functions\.\w+\s?[({:])"
)


def not_a_summary_reasons(text: str) -> Iterator[NotASummary]:
    """Yield what a text, cleaned, is besides a summary."""
    words = _WORD.findall(text.casefold())
    if text and not _LETTER.search(text):
        yield "no words"
    if _repeats_itself(words):
        yield "repeats itself"
    if _REFUSAL.match(text) and not re.search(CITATION, text):
        yield "a refusal"
    if _echoes_prompt(words) or len(_HEADING.findall(text)) > MAX_COPIED_HEADINGS:
        yield "an echo"
    if _CALL.match(text) or _is_json_call(text):
        yield "a tool call"


def _repeats_itself(words: list[str]) -> bool:
    runs = list(_word_runs(words))
    return len(runs) >= MIN_RUNS and 1 - len(set(runs)) / len(runs) > MAX_REPEATED_SHARE


def _echoes_prompt(words: list[str]) -> bool:
    runs = set(_word_runs(words))
    return bool(runs) and len(runs & _prompt_runs()) > MAX_ECHOED_SHARE * len(runs)


@cache
def _prompt_runs() -> frozenset[tuple[str, ...]]:
    return frozenset(_word_runs(_WORD.findall(f"{SUMMARY_PROMPT_TEXTS}\n{WORDS_BEHIND}".casefold())))


def _word_runs(words: list[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[start : start + RUN_WORDS]) for start in range(len(words) - RUN_WORDS + 1))


def _is_json_call(text: str) -> bool:
    """Return whether a text is a call, or a list of calls, as JSON and nothing else."""
    if text[:1] not in {"{", "["}:
        return False
    try:
        value = parse_json(text)
    except ValueError:
        return False
    calls = value if isinstance(value, list) else [value]
    named = ({"name", "tool", "function", "tool_name"} & call.keys() for call in calls if isinstance(call, dict))
    return bool(calls) and all(named) and all(isinstance(call, dict) for call in calls)


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
