"""The check that decides whether a model's summary may replace messages.

Small or cautious models sometimes answer with something other than a summary: a refusal, one phrase over and over, the
instructions themselves, or a call of a tool that does not exist. The form of the text is enough to recognize each of
these. The check also rejects a summary that is empty, cut off, too large, or that loses too many facts.

The ledger names the facts that must survive. The check looks for them in the summary and in the texts that stay in
view next to it. It appends missing facts verbatim within a token allowance, the user's constraints first. If too much
is still missing, a digest made by rule is better. The check is deterministic: the same text gets the same verdict.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Literal, TypeAlias

from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.json_values import parse_json
from holdfast.core.conversation.tokens import Counter
from holdfast.core.ledger.names import is_name_in
from holdfast.core.planning.summary.must_keep import FactReader, MustKeep, survival_score
from holdfast.core.planning.summary.prompt import PREFIX_PROMPT_TEXTS, SUMMARY_PROMPT_TEXTS
from holdfast.core.planning.summary.sanitize import CITATION, sanitize_summary
from holdfast.dataclass import dataclass
from holdfast.text import lazy_pattern

NotASummary: TypeAlias = Literal["no words", "repeats itself", "a refusal", "an echo", "a tool call"]

RUN_WORDS = 4
"""The length of a run of consecutive words: two texts that share many runs share their sentences."""
MIN_RUNS = 20
MAX_REPEATED_SHARE = 0.6
"""A text with a larger share of repeated runs repeats itself."""
MAX_ECHOED_SHARE = 0.3
"""A text that takes a larger share of its runs from the instructions is an echo of them."""
MAX_COPIED_HEADINGS = 4
"""A text with more message headings, in the format of the input, is a copy of the input."""
_LETTER = lazy_pattern(r"[^\W\d_]")
_WORD = lazy_pattern(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|\w+")
_HEADING = lazy_pattern(r"(?m)^\W{0,8}\[#[-\d]{1,9} [^\]\n]{1,200}\]")
_REFUSAL = lazy_pattern(
    r"(?i)\W{0,8}(?:i['’]?m (?:really |very )?sorry|i apologi[sz]e|sorry,|unfortunately,? i\b|as an ai\b"
    r"|i (?:can(?:no|['’])?t|am (?:not able|unable)|won['’]?t|must decline)\b|i['’]m (?:not able|unable)\b"
    r"|es tut mir leid|ich kann (?:dir |ihnen )?(?:dabei |das )?nicht|lo siento|no puedo\b"
    r"|je suis désolée?|je ne peux pas|抱歉|对不起|我无法|我不能|申し訳)"
)
_CALL = lazy_pattern(
    r"(?i)\s*(?:[`~]{3}\w*\s*)?(?:[<‹\[|]{1,3}(?:tool_calls?|function_calls?|tool_use|invoke|function|python_tag)\b"
    r"|functions\.\w+\s?[({:])"
)


def not_a_summary_reasons(text: str) -> Iterator[NotASummary]:
    """Yield why a sanitized text is not a summary."""
    runs = list(_word_runs(text))
    distinct = set(runs)
    if text and not _LETTER.search(text):
        yield "no words"
    if len(runs) >= MIN_RUNS and 1 - len(distinct) / len(runs) > MAX_REPEATED_SHARE:
        yield "repeats itself"
    if _REFUSAL.match(text) and not re.search(CITATION, text):
        yield "a refusal"
    is_echo = bool(distinct) and len(distinct & _prompt_runs()) > MAX_ECHOED_SHARE * len(distinct)
    if is_echo or len(_HEADING.findall(text)) > MAX_COPIED_HEADINGS:
        yield "an echo"
    if _CALL.match(text) or _is_json_call(text):
        yield "a tool call"


@cache
def _prompt_runs() -> frozenset[tuple[str, ...]]:
    return frozenset(_word_runs(f"{SUMMARY_PROMPT_TEXTS}\n{PREFIX_PROMPT_TEXTS}"))


def _word_runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _WORD.findall(text.casefold())
    return (tuple(words[start : start + RUN_WORDS]) for start in range(len(words) - RUN_WORDS + 1))


def _is_json_call(text: str) -> bool:
    """Return whether the whole text is one tool call, or a list of them, as JSON."""
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
"""A summary with a lower score, restored facts included, is rejected."""
MANY_FACTS = 12
"""With at least this many facts, a summary that contains none of them is rejected as off topic."""
PUT_BACK_HEADING, NAMES_LABEL = "Also, to the letter:", "- Names:"

SummaryProblem: TypeAlias = (
    NotASummary
    | Literal[
        "empty", "cut off", "no smaller than what it replaces", "drops a constraint", "loses too much", "tells nothing"
    ]
)


@dataclass(frozen=True, slots=True)
class SummaryVerdict:
    """The result of checking a summary."""

    text: str
    """The model's text, sanitized."""
    problems: tuple[SummaryProblem, ...]
    """Why the summary is rejected; empty if it is accepted."""
    score: float
    """The weighted share, from 0 to 1, of the facts that the summary or the texts next to it contain."""
    missing: tuple[MustKeep, ...]
    """The facts that neither the summary nor the texts next to it contain."""
    final_score: float
    """The same share, restored facts included."""
    put_back: tuple[str, ...]
    """The lines that restore missing facts after the summary."""
    tokens: int
    """The size of the summary, restored lines included."""
    still_missing: tuple[MustKeep, ...] = ()
    """The facts that did not fit even so; the model can still recall them."""

    @property
    def is_accepted(self) -> bool:
        """Whether the summary has no problems."""
        return not self.problems

    @property
    def restored_facts(self) -> tuple[MustKeep, ...]:
        """The missing facts that the appended lines restore."""
        return tuple(fact for fact in self.missing if fact not in self.still_missing)

    @property
    def full_text(self) -> str:
        """The summary followed by the restored lines."""
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
    """Return the verdict on a summary.

    `facts` must survive (see `must_keep_of`). `span` holds the positions that the summary may cite. `adjacent_texts`
    stay in view next to it: the user's messages, the rendered ledger, the tail. `put_back_tokens` should have room for
    the user's constraints: a summary is rejected if one of them is neither kept nor restored.
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
    """Return the facts that fit an allowance, in the order of `missing`; none is shortened."""
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
    """Yield facts as list items; all names share one line."""
    yield from (_fact_line(fact) for fact in facts if fact.kind != "name")
    if names := [fact.text for fact in facts if fact.kind == "name"]:
        yield neutralize(f"{NAMES_LABEL} {' '.join(names)}")


def _fact_line(fact: MustKeep) -> str:
    """Return a fact as one line, so that tool output in it cannot start a line of its own."""
    return neutralize(f"- {' '.join(str(fact).split())}")


def _with_lines(text: str, lines: Iterable[str]) -> str:
    kept = "\n".join(lines)
    return f"{text}\n\n{PUT_BACK_HEADING}\n{kept}" if kept else text
