"""Parse references: a message, a range of messages, one part of a message, or a span of its text.

References such as `#12` are short because markers, summaries and ledger lines carry them. Models copy them loosely,
so the parser accepts them with or without the sign, in brackets, and as `#12-20` or `#12–#20`.
"""

from holdfast.dataclass import dataclass
from holdfast.errors import MalformedInputError
from holdfast.text import lazy_pattern

MAX_REFERENCE_DIGITS = 12
MAX_REFERENCES = 200
LINEAR_SCAN_CHARS = 4_096
REVERSED_RANGE = "goes from behind to front; give the smaller number first"
_SEPARATORS = lazy_pattern(r"[,;\s]+")
_WRAPPING = "()[]{}<>\"'`."
_PLACE = lazy_pattern(
    rf"#?(\d{{1,{MAX_REFERENCE_DIGITS}}})(?:\.(\d{{1,4}}))?(?::([lL]?)(\d{{1,{MAX_REFERENCE_DIGITS}}})?-[lL]?(\d{{1,{MAX_REFERENCE_DIGITS}}})?)?"
)
_RUN = lazy_pattern(rf"#?(\d{{1,{MAX_REFERENCE_DIGITS}}})(?:-|\.\.)#?(\d{{1,{MAX_REFERENCE_DIGITS}}})")
_SPAN = lazy_pattern(rf"[lL]?(\d{{1,{MAX_REFERENCE_DIGITS}}})?-[lL]?(\d{{1,{MAX_REFERENCE_DIGITS}}})?")
_DASHES = lazy_pattern(r"(?<!\s)\s*+[-‐‑‒–—]\s*+(?=[#lL\d]|$)")
_NOUN = lazy_pattern(r"(?i)(?<!\w)(?:messages?|msg|ref)(?=[\s:]*#?\d)[\s:]*")
_CALL_ID = lazy_pattern(r"\w[\w.:|/+=@~-]{0,499}")


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A piece of a text: characters from 0, the last not included, or lines from 1, the last included."""

    start: int
    stop: int | None
    """None for the end of the text."""
    is_lines: bool = False

    def __str__(self) -> str:
        mark = "L" if self.is_lines else ""
        return f"{mark}{self.start}-{'' if self.stop is None else f'{mark}{self.stop}'}"

    def bounds_in(self, text: str) -> tuple[int, int]:
        """Return the start and end of the piece in a text; both are equal if the piece lies past the end."""
        if not self.is_lines:
            start = min(self.start, len(text))
            return start, len(text) if self.stop is None else max(start, min(self.stop, len(text)))
        start = _line_start(text, max(1, self.start) - 1)
        return start, len(text) if self.stop is None else max(start, _line_start(text, self.stop))


@dataclass(frozen=True, slots=True)
class MessageReference:
    """A reference to messages, by position or by the id of a call."""

    first: int = 0
    last: int = 0
    """The last position, inclusive."""
    part: int | None = None
    """The part of the message, counted from 1; None for all parts."""
    span: TextSpan | None = None
    call_id: str = ""
    """The id of a call or the name of an artifact; for a bare number, the id to try if it is not a position."""

    def __str__(self) -> str:
        if not self.is_position:
            return self.call_id
        if self.last > self.first:
            return f"#{self.first}-#{self.last}"
        part = "" if self.part is None else f".{self.part}"
        return f"#{self.first}{part}" + (f":{self.span}" if self.span else "")

    @property
    def is_position(self) -> bool:
        """Whether it is a position; a bare number is tried as a position first."""
        return not self.call_id or self.call_id.isdecimal()


def is_reference_text(text: str) -> bool:
    """Return whether a line consists of references only; a bare number or name counts as a search word."""
    try:
        found = parse_references(text)
    except MalformedInputError:
        # An invalid reference alone on its line should raise an error later instead of being searched for.
        alone = _DASHES.sub("-", text.strip())
        return alone.startswith("#") and bool(_RUN.fullmatch(alone) or _PLACE.fullmatch(alone))
    return "#" in text and all(place.is_position for place in found)


def parse_references(text: str) -> list[MessageReference]:
    """Return the references of a text in order. Raise MalformedInputError if a piece of it is not a reference."""
    joined = _DASHES.sub("-", _NOUN.sub(" ", text))
    pieces = [piece for raw in _SEPARATORS.split(joined) if (piece := raw.strip(_WRAPPING))]
    found = [_parse_reference(piece) for piece in pieces[:MAX_REFERENCES]]
    if not found:
        raise MalformedInputError("recall.ref", f"{text!r:.60} is no reference; give one such as #12 or #12-#20")
    if len(pieces) > MAX_REFERENCES:
        raise MalformedInputError("recall.ref", f"{len(pieces)} references are too many; give at most {MAX_REFERENCES}")
    return found


def _parse_reference(piece: str) -> MessageReference:
    if run := _RUN.fullmatch(piece):
        first, last = int(run[1]), int(run[2])
        if last < first:
            raise MalformedInputError("recall.ref", f"#{first}-#{last} {REVERSED_RANGE}")
        return MessageReference(first, last)
    if place := _PLACE.fullmatch(piece):
        position, part = int(place[1]), int(place[2]) if place[2] else None
        span = _make_span(place[4], place[5], is_lines=bool(place[3])) if ":" in piece else None
        return MessageReference(position, position, part, span, piece if piece.isdecimal() else "")
    if _CALL_ID.fullmatch(piece):
        return MessageReference(call_id=piece)
    raise MalformedInputError("recall.ref", f"{piece!r:.60} is no reference; give one such as #12 or #12-#20")


def parse_span(setting: str, text: str, *, is_lines: bool) -> TextSpan:
    """Return the span for `40-80`, `40-`, `-80` or `40`."""
    given = _DASHES.sub("-", text.strip())
    if given.isdecimal() and len(given) <= MAX_REFERENCE_DIGITS:
        given = f"{given}-{given}" if is_lines else f"{given}-{int(given) + 1}"
    found = _SPAN.fullmatch(given)
    if found is None or not (found[1] or found[2]):
        raise MalformedInputError(setting, f"{text!r:.60} is no range; give one such as 40-80")
    return _make_span(found[1], found[2], is_lines=is_lines)


def _make_span(start: str | None, stop: str | None, *, is_lines: bool) -> TextSpan:
    first = int(start) if start else int(is_lines)
    last = int(stop) if stop else None
    if last is not None and last < first:
        raise MalformedInputError("recall.ref", f"{first}-{last} {REVERSED_RANGE}")
    return TextSpan(first, last, is_lines)


def line_count(text: str) -> int:
    """Return how many lines a text has; only a line feed ends a line."""
    return text.count("\n") + bool(text and not text.endswith("\n"))


def _line_start(text: str, number: int) -> int:
    """Return the offset of a line, counted from 0; the end of the text if there is no such line."""
    low, high = 0, len(text)
    while number and high - low > LINEAR_SCAN_CHARS:
        # Bisecting by line count is faster than stepping through the lines: a log may have millions of them.
        middle = (low + high) // 2
        count = text.count("\n", low, middle)
        low, high, number = (low, middle, number) if count >= number else (middle, high, number - count)
    for _ in range(number):
        low = text.find("\n", low) + 1
        if not low:
            return len(text)
    return low
