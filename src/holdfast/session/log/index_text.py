"""The indexed text of a message: its words, and those of its calls, its results, its sources and the provider's blocks.

In a very long message, words beyond the limit are indexed only once each.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from holdfast.core.conversation.messages import Media, Message, Opaque, Text
from holdfast.core.ledger.identifiers import argument_text
from holdfast.core.recall.passages import describe_citations, describe_media
from holdfast.stores.base import IndexEntry
from holdfast.text import lazy_pattern

MAX_INDEXED_CHARS = 200_000
"""This many characters of a message are indexed as they are, plus as many of its further words, each once."""
MAX_INDEXED_INPUT_CHARS = 8_000_000
SCANNED_CHARS_AT_ONCE = 100_000
PARTLY_INDEXED_MARK = "holdfastindexedinpart"
"""Marks a message in the index whose words are not all indexed."""
UNSPOKEN_FIELDS = frozenset({"type", "id", "tool_use_id", "call_id", "status", "media_type"})
"""Fields of a provider's block that say what it is, not what it holds."""
_WORD = lazy_pattern(r"\w+(?:[-./_]\w+)*")
_ENCODED = lazy_pattern(r"[A-Za-z0-9+/_-]{100,}={0,2}")
"""Encrypted or encoded content, which has no words."""


def index_entries(messages: Iterable[tuple[int, Message]]) -> list[IndexEntry]:
    """Return the index entries of messages."""
    return [IndexEntry(position, text) for position, message in messages if (text := index_text_of(message))]


def index_text_of(message: Message) -> str:
    """Return the indexed text of a message; recall answers are left out, because their source is indexed already."""
    if len(message.parts) == 1 and isinstance(first := message.parts[0], Text):  # as most messages are
        block = cast("Mapping[str, object]", first.native) if isinstance(first.native, dict) else None
        is_cited = block is not None and ("citations" in block or "annotations" in block)
        if not is_cited and "annotations" not in (message.native or ()):
            return first.text if len(first.text) <= MAX_INDEXED_CHARS else _limited(first.text)
    results = [result for result in message.results if not result.is_recall_answer]
    parts = (*message.parts, *(inner for result in results for inner in result.content))
    pieces = [message.text, *(result.text for result in results)]
    pieces += [f"{call.name} {argument_text(call.arguments)}" for call in message.calls]
    pieces += [describe_media(part) for part in parts if isinstance(part, Media)]
    pieces += [text for part in parts if isinstance(part, Opaque) for text in _spoken_texts(part)]
    pieces.append(describe_citations(message))
    return _limited("\n".join(piece for piece in pieces if piece))


def _spoken_texts(block: Opaque) -> Iterator[str]:
    """Yield the texts within a block that only its provider understands, such as a document or a search result."""
    native = block.native
    waiting: list[object] = [cast("object", native) if isinstance(native, Mapping) else block.text]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            fields = cast("Mapping[str, object]", value)
            waiting += reversed([inner for name, inner in fields.items() if name not in UNSPOKEN_FIELDS])
        elif isinstance(value, str):
            if not _ENCODED.fullmatch(value):
                yield value
        elif isinstance(value, Sequence):
            waiting += reversed(cast("Sequence[object]", value))


def _limited(text: str) -> str:
    return text if len(text) <= MAX_INDEXED_CHARS else text[:MAX_INDEXED_CHARS] + _remaining_words(text)


def _remaining_words(text: str) -> str:
    """Return the words of a long text that its first part lacks, each once; a mark says if some are left out."""
    known, words = {*_WORD.findall(text, 0, MAX_INDEXED_CHARS)}, list[str]()
    # Start a little earlier, because the first part may end within a word.
    start, stop, chars = MAX_INDEXED_CHARS - 200, min(len(text), MAX_INDEXED_INPUT_CHARS), 0
    while start < stop and chars <= MAX_INDEXED_CHARS:
        end = text.find(" ", start + SCANNED_CHARS_AT_ONCE, stop)
        end = stop if end < 0 else end
        for word in _WORD.findall(text, start, end):
            if word not in known:
                known.add(word)
                words.append(word)
                chars += len(word) + 1
        start = end
    found = " ".join(words)
    is_whole = len(text) <= MAX_INDEXED_INPUT_CHARS and len(found) <= MAX_INDEXED_CHARS
    return f" {found[:MAX_INDEXED_CHARS]}{'' if is_whole else f' {PARTLY_INDEXED_MARK}'}"
