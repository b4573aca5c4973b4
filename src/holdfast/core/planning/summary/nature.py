"""What a text is that should have been a summary.

Models that are small, tired or cautious answer with something else: a refusal, the same words over and over,
the instructions themselves, or a call of a tool that is not there. Each can be told by its form alone.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Literal, TypeAlias

from holdfast.core.conversation.json_values import parse_json
from holdfast.core.planning.summary.asking import SUMMARY_PROMPT_TEXTS
from holdfast.core.planning.summary.behind import PREFIX_PROMPT_TEXTS as WORDS_BEHIND
from holdfast.core.planning.summary.cleaning import CITATION

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
