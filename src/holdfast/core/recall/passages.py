"""The text of a message as recall quotes it, and the best passage of a long text.

The text of a message is the text of its parts, verbatim, one after the other. Lines and characters are
counted in it. A call is its tool's name and its arguments as sent; media have no text and are described. The
best passage is the lines around the place with most of the words that are searched for.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias, cast

from holdfast.core.conversation.messages import Media, Message, Opaque, Part, Text, Thinking, ToolCall, ToolResult

LEAD_CHARS = 200
"""What is shown before a match in a line that is too long to be shown."""
MAX_MATCHES = 2_000
"""More say no more."""
MIN_PASSAGE_STEM_CHARS = 4
TextMatches: TypeAlias = list[tuple[int, str]]
"""Where something stands that is asked for, and what."""
_WORD = re.compile(r"[^\W_]+")


def best_passage(text: str, matches: TextMatches, max_chars: int) -> tuple[int, int]:
    """Return where the passage of at most `max_chars` begins and ends that holds most of some matches."""
    if len(text) <= max_chars:
        return 0, len(text)
    if not matches:
        return 0, _line_end(text, 0, max_chars)
    weights = _match_weights(matches)
    best, best_weight = 0, -1.0
    first, held = 0, dict[str, int]()
    for last, (at, word) in enumerate(matches):
        held[word] = held.get(word, 0) + 1
        while at - matches[first][0] > max_chars // 2:
            held[matches[first][1]] -= 1
            first += 1
        weight = sum(weights[name] for name, count in held.items() if count) + 0.01 * (last - first)
        if weight > best_weight:
            best, best_weight = first, weight
    return _passage_at(text, matches[best][0], max_chars)


def matched_word_count(text: str, words: Sequence[str], literal: str = "") -> int:
    """Return how many of the words that are asked for stand in a text."""
    return len({word for _, word in find_matches(text, words, literal)})


def find_matches(text: str, words: Sequence[str], literal: str = "") -> TextMatches:
    """Return where words stand, or words that begin as they do, in the order of the text."""
    lower = text.lower()
    if len(lower) != len(text):
        # A few letters become two when they are made small: places would not be those of the text.
        lower = text
    found: list[tuple[int, str]] = []
    if literal:
        at = lower.find(literal.lower())
        if at >= 0:
            return [(at, literal)]
    for stem in dict.fromkeys(map(_word_stem, words)):
        word = re.escape(stem)
        # What must not stand before it is looked at behind it: so the pattern begins with plain letters, which is fast.
        alone = rf"{word}(?<![^\W_]{word})" if stem[0].isascii() else word
        # No number goes on behind it: 17 is not 170.
        places = re.finditer(rf"{alone}(?!\d)" if stem[-1].isdigit() else alone, lower)
        found += [(place.start(), stem) for place in islice(places, MAX_MATCHES - len(found))]
    return sorted(found)


def _match_weights(matches: Sequence[tuple[int, str]]) -> Mapping[str, float]:
    """Return what each word counts for: the less the more often it stands in the text."""
    counts: dict[str, int] = {}
    for _, word in matches:
        counts[word] = counts.get(word, 0) + 1
    return {word: 1.0 / (1.0 + count) ** 0.5 for word, count in counts.items()}


def _word_stem(word: str) -> str:
    """Return the beginning that the forms of a word have in common."""
    small = word.lower()
    for ending in ("ing", "ies", "ed", "es", "s", "e", "y"):
        if small.isascii() and small.endswith(ending) and len(small) - len(ending) >= MIN_PASSAGE_STEM_CHARS:
            return small[: -len(ending)]
    return small


def _passage_at(text: str, at: int, max_chars: int) -> tuple[int, int]:
    """Return whole lines from a little before a place on; a piece of the line where it is too long."""
    lead = max_chars // 4
    first = text.rfind("\n", 0, at) + 1
    while first > 0 and at - (before := text.rfind("\n", 0, first - 1) + 1) <= lead:
        first = before
    start = first if at - first <= max_chars // 2 else max(0, at - min(LEAD_CHARS, max_chars // 4))
    return start, _line_end(text, start, max_chars)


def _line_end(text: str, start: int, max_chars: int) -> int:
    """Return where to end a piece that begins at `start`: behind a line, if that leaves at least half of it."""
    stop = min(len(text), start + max_chars)
    if stop == len(text):
        return stop
    end = text.rfind("\n", start + max_chars // 2, stop)
    return stop if end < 0 else end + 1


MEDIA_DESCRIPTION_KEYS = (
    "title", "filename", "file_name", "name", "alt", "description", "media_type", "mime_type", "mimeType", "format",
    "url", "uri", "fileUri", "file_uri", "image_url", "file_id",
)  # fmt: skip
"""Where providers and people say what a medium is."""
MAX_DESCRIPTION_CHARS = 300
MAX_DESCRIPTION_DEPTH = 4


@dataclass(frozen=True, slots=True)
class MessageBody:
    """What a message says, as one text."""

    text: str
    part_starts: tuple[int, ...]
    """Where each part begins."""

    def part_range(self, number: int) -> tuple[int, int] | None:
        """Return where a part begins and ends, counted from 1; None where there is no such part."""
        if not 1 <= number <= len(self.part_starts):
            return None
        # Parts are set apart by a line feed that belongs to none of them.
        stop = len(self.text) if number == len(self.part_starts) else self.part_starts[number] - 1
        return self.part_starts[number - 1], stop


def message_body(message: Message) -> MessageBody:
    """Return the text of a message."""
    texts = [part_text(part) for part in message.parts]
    starts: list[int] = []
    at = 0
    for text in texts:
        starts.append(at)
        at += len(text) + 1
    return MessageBody("\n".join(texts), tuple(starts))


def part_text(part: Part) -> str:
    """Return what a part says."""
    if isinstance(part, Text | Thinking | Opaque):
        return part.text
    if isinstance(part, ToolCall):
        return f"{part.name} {part.arguments}"
    if isinstance(part, ToolResult):
        return "\n".join(describe_media(inner) if isinstance(inner, Media) else inner.text for inner in part.content)
    return describe_media(part)


def describe_media(media: Media) -> str:
    """Return what is known of an image, a sound or a document besides its bytes."""
    told = dict.fromkeys(_description_texts(media.native, 0))
    return f"[{media.kind}: {', '.join(told)}]" if told else f"[{media.kind}]"


def _description_texts(value: object, depth: int) -> Iterator[str]:
    if not isinstance(value, Mapping) or depth > MAX_DESCRIPTION_DEPTH:
        return
    fields = cast("Mapping[object, object]", value)
    for key in MEDIA_DESCRIPTION_KEYS:
        text = fields.get(key)
        if isinstance(text, str) and text and len(text) <= MAX_DESCRIPTION_CHARS and not text.startswith("data:"):
            yield " ".join(text.split())
    for inner in fields.values():
        yield from _description_texts(inner, depth + 1)
