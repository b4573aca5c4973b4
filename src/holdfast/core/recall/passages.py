"""The text of a message as recall quotes it, and the best passage of a long text.

The text of a message is the verbatim text of its parts, joined by line feeds. References count lines and characters
in this text. A call contributes its tool's name and its arguments as sent. Media have no text, so a description
replaces them. What the texts cite comes last, by title and address. The best passage consists of the lines around the
place with most of the search words.
"""

import collections
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import TypeAlias, cast

from holdfast.core.conversation.messages import Media, Message, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.dataclass import dataclass
from holdfast.text import inflected_stem, lazy_pattern, plain_letters

LEAD_CHARS = 200
"""How much text before a match to include if its line is too long to include whole."""
MAX_MATCHES = 2_000
"""More matches would not change the choice of a passage."""
MIN_PASSAGE_STEM_CHARS = 4
_ESCAPE = lazy_pattern(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])')
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
TextMatches: TypeAlias = list[tuple[int, str]]
"""Pairs of an offset in the text and the word stem that matches there."""


def best_passage(text: str, matches: TextMatches, max_chars: int) -> tuple[int, int]:
    """Return the start and end of the passage of at most `max_chars` that covers the most matches."""
    if len(text) <= max_chars:
        return 0, len(text)
    if not matches:
        return 0, line_end(text, 0, max_chars)
    # A word that occurs more often weighs less.
    counts = collections.Counter(word for _, word in matches)
    weights = {word: 1.0 / (1.0 + count) ** 0.5 for word, count in counts.items()}
    best, best_weight = 0, -1.0
    first, held = 0, collections.Counter[str]()
    for last, (at, word) in enumerate(matches):
        held[word] += 1
        while at - matches[first][0] > max_chars // 2:
            held[matches[first][1]] -= 1
            first += 1
        weight = sum(weights[name] for name, count in held.items() if count) + 0.01 * (last - first)
        if weight > best_weight:
            best, best_weight = first, weight
    return _passage_at(text, matches[best][0], max_chars)


def find_matches(text: str, words: Sequence[str], literal: str = "") -> TextMatches:
    """Return where words, or other words with the same stem, occur in a text, in text order.

    Arguments of calls and blocks of providers are JSON. The letter of an escaped line break is no part of the word that
    follows it, so a text with escapes is also read without them.
    """
    readings = [replace(reading, text=_folded(reading.text)) for reading in readings_of(text)]
    for reading in readings if literal else ():
        if (at := reading.text.find(_folded(literal))) >= 0:
            return [(reading.offset_in_original(at), literal)]
    by_word: list[TextMatches] = []
    for stem in dict.fromkeys(map(_word_stem, words)):
        word = re.escape(stem)
        # The lookbehind comes after the word, so that the pattern begins with a literal, which is fast.
        alone = rf"{word}(?<![^\W_]{word})" if stem[0].isascii() else word
        # No digit may follow a number: 17 does not match 170.
        pattern = rf"{alone}(?!\d)" if stem[-1].isdigit() else alone
        by_word.append([(at, stem) for at in _offsets_of(pattern, readings)])
    found: TextMatches = []
    for matches in sorted(by_word, key=len):
        # A word that is everywhere in a long text would take the places of a rare one.
        if not found or len(found) + len(matches) <= MAX_MATCHES:
            found += matches
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Reading:
    """A text in which words are looked for, and where its characters are in the original."""

    text: str
    piece_starts: Sequence[int] = (0,)
    """Where each piece of the original begins in this text."""
    piece_origins: Sequence[int] = (0,)
    """Where each piece begins in the original."""

    def offset_in_original(self, at: int) -> int:
        """Return the offset in the original of a character of this text."""
        piece = bisect_right(self.piece_starts, at) - 1
        return self.piece_origins[piece] + at - self.piece_starts[piece]


def readings_of(text: str) -> list[Reading]:
    """Return a text as it is, and, if it has JSON escapes, with the characters that they stand for."""
    readings = [Reading(text)]
    if "\\" not in text:
        return readings
    pieces, starts, origins = list[str](), [0], [0]
    length, done = 0, 0
    for escape in _ESCAPE.finditer(text):
        code = escape[0][1:]
        pieces += (text[done : escape.start()], chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code))
        length += escape.start() - done + 1
        done = escape.end()
        starts.append(length)
        origins.append(done)
    return [*readings, Reading("".join((*pieces, text[done:])), starts, origins)]


def _offsets_of(pattern: str, readings: Sequence[Reading]) -> list[int]:
    """Return where a pattern occurs in a text, however the text is read."""
    found = {
        reading.offset_in_original(place.start())
        for reading in readings
        for place in islice(re.finditer(pattern, reading.text), MAX_MATCHES)
    }
    return sorted(found)[:MAX_MATCHES]


def _folded(text: str) -> str:
    """Return a text in lower case, without accents and full-width forms, in which every character keeps its place."""
    if text.isascii():
        return text.lower()
    return text.translate({ord(letter): (plain_letters(letter).casefold() or letter)[0] for letter in {*text}})


def _word_stem(word: str) -> str:
    """Return the beginning that the inflected forms of a word share."""
    small = word.lower() if word.isascii() else plain_letters(word).casefold()
    for ending in ("ing", "ies", "ed", "es", "s", "e", "y"):
        if small.isascii() and small.endswith(ending) and len(small) - len(ending) >= MIN_PASSAGE_STEM_CHARS:
            return small[: -len(ending)]
    return inflected_stem(small)


def _passage_at(text: str, at: int, max_chars: int) -> tuple[int, int]:
    """Return the range of whole lines around an offset, or a piece of its line if that is too long."""
    lead = max_chars // 4
    first = text.rfind("\n", 0, at) + 1
    while first > 0 and at - (before := text.rfind("\n", 0, first - 1) + 1) <= lead:
        first = before
    start = first if at - first <= max_chars // 2 else max(0, at - min(LEAD_CHARS, max_chars // 4))
    return start, line_end(text, start, max_chars)


def line_end(text: str, start: int, max_chars: int) -> int:
    """Return where to end a piece that begins at `start`: after a line end, if that keeps at least half of it."""
    stop = min(len(text), start + max_chars)
    if stop == len(text):
        return stop
    end = text.rfind("\n", start + max_chars // 2, stop)
    return stop if end < 0 else end + 1


MEDIA_DESCRIPTION_KEYS = (
    "title", "filename", "file_name", "name", "alt", "description", "media_type", "mime_type", "mimeType", "format",
    "url", "uri", "fileUri", "file_uri", "image_url", "file_id",
)  # fmt: skip
"""Keys under which providers and people describe media."""
CITATION_KEYS = ("title", "document_title", "filename", "url", "uri", "source")
"""Keys under which providers name what a text cites."""
CITATION_LISTS = ("citations", "annotations")
MAX_DESCRIPTION_CHARS = 300
MAX_CITATION_CHARS = 2_000
"""Addresses may be long; browsers and servers take about as much."""
MAX_DESCRIPTION_DEPTH = 4


@dataclass(frozen=True, slots=True)
class MessageBody:
    """The text of a message, and where its parts begin in it."""

    text: str
    part_starts: tuple[int, ...]
    """The offset of each part."""

    def part_range(self, number: int | None) -> tuple[int, int] | None:
        """Return the start and end of a part, counted from 1, or of the whole text; None if there is no such part."""
        if number is None:
            return 0, len(self.text)
        if not 1 <= number <= len(self.part_starts):
            return None
        # The line feed between two parts belongs to neither.
        stop = len(self.text) if number == len(self.part_starts) else self.part_starts[number] - 1
        return self.part_starts[number - 1], stop


def message_body(message: Message) -> MessageBody:
    """Return the text of a message."""
    texts = [_part_text(part) for part in message.parts]
    starts = accumulate((len(text) + 1 for text in texts), initial=0)
    # After all parts, so that the places of their texts are the same with and without it.
    cited = [text for text in (describe_citations(message),) if text]
    return MessageBody("\n".join(texts + cited), tuple(starts)[: len(texts)])


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that a query selected, with its time and tool."""

    position: int
    message: Message
    time_ms: int
    time: str
    tool: str = ""
    call_arguments: str = ""
    """The arguments of the calls whose results it holds."""
    is_neighbor: bool = False

    @property
    def body(self) -> MessageBody:
        """The text of the message."""
        return message_body(self.message)

    @property
    def searchable_texts(self) -> list[tuple[int | None, str]]:
        """The texts to search: the whole message, or its other parts if some are answers of recall itself."""
        parts = list(enumerate(self.message.parts, 1))
        others = [
            (number, part) for number, part in parts if not (isinstance(part, ToolResult) and part.is_recall_answer)
        ]
        if not others or len(others) == len(parts):
            return [(None, self.body.text)]
        return [(number, _part_text(part)) for number, part in others]


def _part_text(part: Part) -> str:
    if isinstance(part, Text | Thinking | Opaque):
        return part.text
    if isinstance(part, ToolCall):
        return f"{part.name} {part.arguments}"
    if isinstance(part, ToolResult):
        return "\n".join(describe_media(inner) if isinstance(inner, Media) else inner.text for inner in part.content)
    return describe_media(part)


def describe_media(media: Media) -> str:
    """Return a description of an image, a sound or a document from its metadata, and what was said about it."""
    texts = dict.fromkeys(_description_texts(media.native, MEDIA_DESCRIPTION_KEYS, MAX_DESCRIPTION_CHARS))
    described = f"[{media.kind}: {', '.join(texts)}]" if texts else f"[{media.kind}]"
    native = media.native
    context = cast("Mapping[str, object]", native).get("context") if isinstance(native, Mapping) else None
    return f"{described}\n{context}" if isinstance(context, str) and context else described


def describe_citations(message: Message) -> str:
    """Return the titles and addresses of what a message cites; empty if it cites nothing."""
    cited: dict[str, None] = {}
    for native in (message.native, *(part.native for part in message.parts if isinstance(part, Text))):
        if not isinstance(native, Mapping):
            continue
        fields = cast("Mapping[str, object]", native)
        for value in (fields.get(name) for name in CITATION_LISTS):
            for citation in cast("list[object]", value) if isinstance(value, list) else ():
                texts = dict.fromkeys(_description_texts(citation, CITATION_KEYS, MAX_CITATION_CHARS))
                cited |= dict.fromkeys([", ".join(texts)] if texts else ())
    return f"[cited: {'; '.join(cited)}]" if cited else ""


def _description_texts(value: object, keys: Sequence[str], max_chars: int, depth: int = 0) -> Iterator[str]:
    if not isinstance(value, Mapping) or depth > MAX_DESCRIPTION_DEPTH:
        return
    fields = cast("Mapping[object, object]", value)
    for key in keys:
        text = fields.get(key)
        if isinstance(text, str) and text and len(text) <= max_chars and not text.startswith("data:"):
            yield " ".join(text.split())
    for inner in fields.values():
        yield from _description_texts(inner, keys, max_chars, depth + 1)
