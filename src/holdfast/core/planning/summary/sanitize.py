"""What a model wrote, as it can stand in a conversation.

Models wrap a summary: in reasoning, a fence, a preface, a question at the end, the tags they were shown. They
cite messages that were not in the span. And what they quote may try to end the frame it will stand in. All of
it is taken off or made plain, again and again until nothing is left to do, so that cleaning what is clean
changes nothing.
"""

import re
from collections.abc import Callable, Container

from holdfast.core.conversation.json_values import replace_surrogates
from holdfast.core.planning.summary.framing import FRAME_MARK_CHARS, FRAME_NAMES, INVISIBLE_CHARS, neutralize_frames

MAX_UNWRAP_ROUNDS = 16
"""What is wrapped more often than this is no summary."""
CITATION = r"\[\s?#\d{1,9}(?:\s?[-–—]\s?#?\d{1,9})?(?:\s?[,;]\s?#?\d{1,9}(?:\s?[-–—]\s?#?\d{1,9})?){0,40}\s?\](?!\()"

_BREAK = re.compile(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_REASONING = re.compile(r"(?is)\A\s*<(think|thinking|thought|reasoning|analysis)>.*?(?:</\1>|\Z)")
_FENCE = re.compile(r"\s*+(```|~~~)[`~]*+\s*+([\w-]*+)\s*+")
_WRAPPER = re.compile(r"(?i)<(summary|output|answer|response)>")
_ECHO = re.compile(rf"(?i)</?(?:{'|'.join(FRAME_NAMES)})-[0-9a-f]{{{FRAME_MARK_CHARS}}}\s?>")
_SUMMARY = (
    r"summar|overview|zusammenfassung|resumen|résumé|riassunto|resumo|samenvatting|сводк|резюме"
    r"|摘要|总结|總結|要約|요약"
)
_PREFACE = re.compile(
    r"(?i)(?:sure|certainly|of course|okay|ok|absolutely|understood|got it)[,.!:]?"
    r"(?: (?:here|below|this is|i['’]ll|i will|let me)\b.{0,120})?"
    r"|(?:here(?:['’]s| is| are)|below is|this is|the following is|i(?:['’]ve| have)|hier (?:ist|die|volgt)"
    rf"|aqu[íi] (?:está|tienes)|voici|ecco|以下|下面|这是|вот)[^#]{{0,60}}?(?:{_SUMMARY})[^#]{{0,60}}"
    rf"|[#*_ ]{{0,8}}(?:(?:updated|new|conversation|the) ){{0,3}}(?:{_SUMMARY})\w{{0,6}}"
    r"(?: of the conversation)?[*_: ]{0,8}"
)
_CLOSING = re.compile(
    r"(?i)(?:(?:please )?let me know|i hope th|feel free|would you like|if you (?:need|want|have|would like)\b"
    r"|is there anything|shall i|do you want|please confirm)[^#]{0,300}"
)
_RANGE = re.compile(r"#?(\d+)(?:\s?[-–—]\s?#?(\d+))?")


def sanitize_summary(text: str, span: Container[int]) -> str:
    """Return a summary without what a model puts around it, citing only messages of the span.

    Empty where it is wrapped too often to be one.
    """
    steps: tuple[Callable[[str], str], ...] = (
        _visible_text,
        _unwrap,
        lambda one: _with_citations(one, span),
        neutralize_frames,
    )
    for _ in range(MAX_UNWRAP_ROUNDS):
        before = text
        for step in steps:
            text = step(text)
        if text == before:
            return text
    return ""


def _visible_text(text: str) -> str:
    """Return a text of visible characters, without blanks at the ends of lines and more than one empty line."""
    text = INVISIBLE_CHARS.sub("", _BREAK.sub("\n", replace_surrogates(text)))
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip()


def _unwrap(text: str) -> str:
    """Return a text without what stands around it."""
    for _ in range(MAX_UNWRAP_ROUNDS):
        before = text
        for layer in (_without_reasoning, _without_fence, _without_wrapper, _without_preface, _without_closing):
            text = layer(text).strip()
        if text == before:
            break
    return _ECHO.sub("", text)


def _without_reasoning(text: str) -> str:
    return _REASONING.sub("", text)


def _without_fence(text: str) -> str:
    """Return what stands in a fence around the whole; fences that only begin and end it are left alone."""
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
    """Return a text whose citations all point into a span, written one way."""

    def kept(match: re.Match[str]) -> str:
        inside = [told for first, last in _RANGE.findall(match[2]) if (told := _format_citation(first, last, span))]
        return f"{match[1]}[{', '.join(inside)}]" if inside else ""

    return re.sub(rf"([ \t]?)({CITATION})", kept, text)


def _format_citation(first: str, last: str, span: Container[int]) -> str:
    start, stop = int(first), int(last or first)
    if start not in span or stop not in span or start > stop:
        return ""
    return f"#{start}" if start == stop else f"#{start}-{stop}"
