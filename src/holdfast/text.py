"""Small texts for people, and patterns that are compiled late or matched where lines begin.

The texts are counts in the singular or the plural, the first line of a longer text, plain letters.
"""

import unicodedata
from collections.abc import Iterator
from re import Match, Pattern
from re import compile as compile_pattern
from typing import cast

_POINTS = (range(0x591, 0x5C8), range(0x610, 0x61B), range(0x64B, 0x660), (0x670,), range(0x6D6, 0x6EE))
_UNWRITTEN = (0xAD, 0x640, 0x200C, 0x200D, 0x2060)
"""What stands within words for the eye alone: hyphens that may break them, and what joins or stretches letters."""
_ACCENTS = dict.fromkeys(
    code
    for codes in (range(0x300, 0x370), *_POINTS, _UNWRITTEN)
    for code in codes
    if code in _UNWRITTEN or unicodedata.category(chr(code)) == "Mn"
)


MIN_INFLECTED_STEM_CHARS, MAX_ENDING_CHARS = 4, 3


class LazyPattern:
    """A regular expression that is compiled when it is first used."""

    def __init__(self, source: str, flags: int = 0) -> None:
        self._source, self._flags = source, flags

    def compiled(self) -> Pattern[str]:
        """Return the compiled expression."""
        return compile_pattern(self._source, self._flags)

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self.compiled(), name)
        setattr(self, name, found)
        return found


def lazy_pattern(source: str, flags: int = 0) -> Pattern[str]:
    """Return a pattern for a module that is imported at every start: compiling all of them takes 80 ms."""
    return cast("Pattern[str]", LazyPattern(source, flags))


def matches_at_lines(pattern: Pattern[str], text: str) -> list[Match[str]]:
    """Return the matches of a pattern that only matches where a line begins, as `finditer` does.

    `finditer` would try the pattern at each character.
    """
    if text.isprintable():  # so it is one line
        return [match] if (match := pattern.match(text)) else []
    found: list[Match[str]] = []
    start = end = 0
    for line in (*text.splitlines(keepends=True), ""):
        if start >= end and (match := pattern.match(text, start)):
            end = match.end()
            found.append(match)
        start += len(line)
    return found


def matches_after_openings(pattern: Pattern[str], text: str, openings: str) -> Iterator[Match[str]]:
    """Yield the matches of a pattern that begins with one of a few characters, as `finditer` does, at a tenth the time.

    A match is never empty.
    """
    places: list[int] = []
    for opening in openings:
        at = text.find(opening)
        while at >= 0:
            places.append(at)
            at = text.find(opening, at + 1)
    end = 0
    for start in sorted(places):
        if start >= end and (match := pattern.match(text, start)):
            end = match.end()
            yield match


def pluralize(count: int, what: str) -> str:
    """Return a count with its noun, such as `1 message` or `1,024 messages`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def clip_to_line(text: str, max_chars: int = 160) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(text[: 4 * max_chars].split())
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def plain_letters(text: str) -> str:
    """Return a text without accents and without other forms of the same characters, such as full-width ones.

    The vowel points of Hebrew and Arabic are accents too: most people leave them out.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKD", text).translate(_ACCENTS))


_INFLECTED = lazy_pattern(r"[\u0370-\u03ff\u0400-\u052f\u0531-\u0587\u10d0-\u10ff]+")
"""A word in Greek, Cyrillic, Armenian or Georgian letters."""


def may_be_stem(word: str) -> bool:
    """Return whether a word of these letters may be the stem of longer forms: `ключ` of `ключи`."""
    return len(word) >= MIN_INFLECTED_STEM_CHARS and not word.isascii() and _INFLECTED.fullmatch(word) is not None


def inflected_stem(word: str) -> str:
    """Return about the beginning that the forms of a word in Greek, Cyrillic, Armenian or Georgian letters share.

    Words of these languages have many endings, of one to three letters: `квартира`, `квартиру`, `квартирами`. Any other
    word is returned as it is.
    """
    if word.isascii() or not _INFLECTED.fullmatch(word):
        return word
    ending = min(MAX_ENDING_CHARS, len(word) // 3, len(word) - MIN_INFLECTED_STEM_CHARS)
    return word[:-ending] if ending > 0 else word
