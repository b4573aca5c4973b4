"""The text of a message, as recall gives it: the words of its parts, to the letter, one after the other.

Lines and characters are counted in this text. A call is its tool's name and its arguments as they were sent; an
image, a sound or a document has no words, so it is told what is known of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from holdfast.core.conversation.messages import Media, Message, Opaque, Part, Text, Thinking, ToolCall, ToolResult

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
