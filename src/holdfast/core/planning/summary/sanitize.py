"""Removes from a model's summary what must not enter a conversation.

Models wrap a summary in reasoning, a code fence, a preface, a closing question, or the tags of their prompt. They cite
messages outside the span. Text that they quote may try to close the frame around the summary. The sanitizer removes or
neutralizes all of this, and repeats until nothing changes. So sanitizing a sanitized text changes nothing.
"""

import re
from collections.abc import Callable, Container

from holdfast.core.conversation.frames import FRAME_MARK_CHARS, FRAME_NAMES, INVISIBLE_CHARS, neutralize
from holdfast.core.conversation.json_values import replace_surrogates
from holdfast.text import lazy_pattern

MAX_UNWRAP_ROUNDS = 16
"""A text that still changes after this many rounds is not a summary."""
CITATION = r"\[\s?#\d{1,9}(?:\s?[-–—]\s?#?\d{1,9})?(?:\s?[,;]\s?#?\d{1,9}(?:\s?[-–—]\s?#?\d{1,9})?){0,40}\s?\](?!\()"

_BREAK = lazy_pattern(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_REASONING = lazy_pattern(r"(?is)\A\s*<(think|thinking|thought|reasoning|analysis)>.*?(?:</\1>|\Z)")
_FENCE = lazy_pattern(r"\s*+(```|~~~)[`~]*+\s*+([\w-]*+)\s*+")
_WRAPPER = lazy_pattern(r"(?i)<(summary|output|answer|response)>")
_ECHO = lazy_pattern(rf"(?i)</?(?:{'|'.join(FRAME_NAMES)})-[0-9a-f]{{{FRAME_MARK_CHARS}}}\s?>")
_SUMMARY = (
    r"summar|overview|zusammenfassung|resumen|résumé|riassunto|resumo|samenvatting|сводк|резюме"
    r"|摘要|总结|總結|要約|요약"
)
_PREFACE = lazy_pattern(
    r"(?i)(?:sure|certainly|of course|okay|ok|absolutely|understood|got it)[,.!:]?"
    r"(?: (?:here|below|this is|i['’]ll|i will|let me)\b.{0,120})?"
    r"|(?:here(?:['’]s| is| are)|below is|this is|the following is|i(?:['’]ve| have)|hier (?:ist|die|volgt)"
    rf"|aqu[íi] (?:está|tienes)|voici|ecco|以下|下面|这是|вот)[^#]{{0,60}}?(?:{_SUMMARY})[^#]{{0,60}}"
    rf"|[#*_ ]{{0,8}}(?:(?:updated|new|conversation|the) ){{0,3}}(?:{_SUMMARY})\w{{0,6}}"
    r"(?: of the conversation)?[*_: ]{0,8}"
)
_CLOSING = lazy_pattern(
    r"(?i)(?:(?:please )?let me know|i hope th|feel free|would you like|if you (?:need|want|have|would like)\b"
    r"|is there anything|shall i|do you want|please confirm)[^#]{0,300}"
)
_RANGE = lazy_pattern(r"#?(\d+)(?:\s?[-–—]\s?#?(\d+))?")


def sanitize_summary(text: str, span: Container[int]) -> str:
    """Return a summary without its wrapping, with citations of messages of the span only.

    Return an empty text if it still changes after `MAX_UNWRAP_ROUNDS` rounds.
    """
    steps: tuple[Callable[[str], str], ...] = (
        _visible_text,
        _unwrap,
        lambda one: _with_citations(one, span),
        neutralize,
    )
    for _ in range(MAX_UNWRAP_ROUNDS):
        before = text
        for step in steps:
            text = step(text)
        if text == before:
            return text
    return ""


def _visible_text(text: str) -> str:
    """Return a text without invisible characters, trailing blanks, and repeated empty lines."""
    text = INVISIBLE_CHARS.sub("", _BREAK.sub("\n", replace_surrogates(text)))
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip()


def _unwrap(text: str) -> str:
    """Return a text without reasoning, fence, wrapper tags, preface, closing question, and echoed frame tags."""
    for _ in range(MAX_UNWRAP_ROUNDS):
        before = text
        for layer in (without_reasoning, _without_fence, _without_wrapper, _without_preface, _without_closing):
            text = layer(text).strip()
        if text == before:
            break
    return _ECHO.sub("", text)


def without_reasoning(text: str) -> str:
    """Return an answer without the reasoning that it begins with; empty if the reasoning does not end."""
    return _REASONING.sub("", text)


def _without_fence(text: str) -> str:
    """Return the content of a fence around the whole text; a text that starts and ends with two fences stays."""
    first, _, rest = text.partition("\n")
    inner, _, last = rest.rpartition("\n")
    opening, closing = _FENCE.fullmatch(first), _FENCE.fullmatch(last)
    if not opening or not closing or opening[1] != closing[1] or closing[2]:
        return text
    fences = (found for line in inner.split("\n") if (found := _FENCE.fullmatch(line)) and found[1] == opening[1])
    nested = next(fences, None)
    return inner if nested is None or nested[2] else text


def _without_wrapper(text: str) -> str:
    opening = _WRAPPER.match(text)
    if not opening:
        return text
    return re.sub(rf"(?i)</{opening[1]}>\Z", "", text[opening.end() :])


def _without_preface(text: str) -> str:
    first, _, rest = text.partition("\n")
    return rest if rest.strip() and _PREFACE.fullmatch(first.strip()) else text


def _without_closing(text: str) -> str:
    rest, _, last = text.rpartition("\n")
    return rest if rest.strip() and _CLOSING.fullmatch(last.strip()) else text


def _with_citations(text: str, span: Container[int]) -> str:
    """Return a text whose citations all point into a span and have the same format."""

    def kept(match: re.Match[str]) -> str:
        inside = [told for first, last in _RANGE.findall(match[2]) if (told := _format_citation(first, last, span))]
        return f"{match[1]}[{', '.join(inside)}]" if inside else ""

    return re.sub(rf"([ \t]?)({CITATION})", kept, text)


def _format_citation(first: str, last: str, span: Container[int]) -> str:
    start, stop = int(first), int(last or first)
    if start not in span or stop not in span or start > stop:
        return ""
    return f"#{start}" if start == stop else f"#{start}-{stop}"
