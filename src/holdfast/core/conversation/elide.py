"""Replaces images, sounds and documents of old turns by a word."""

from collections.abc import Iterable

from holdfast.core.conversation.clip import part_handles
from holdfast.core.conversation.handles import recall_hint
from holdfast.core.conversation.messages import Content, Media, Message, Part, Text, ToolResult
from holdfast.core.conversation.view import Entry


def drop_media(message: Message, *, results_only: bool = False, position: int | None = None) -> Message:
    """Return the message with its media replaced by a notice; itself if it has none.

    `position` is where it stands, for a model that can ask what they were.
    """
    if not count_media(message):
        return message
    places = part_handles(message, position)
    return message.with_parts(
        tuple(
            part if results_only and isinstance(part, Media) else _drop_part_media(part, place)
            for part, place in zip(message.parts, places, strict=True)
        )
    )


def count_media(message: Message) -> int:
    """Return how many media a message holds, inside tool results too."""
    return sum(
        isinstance(part, Media)
        + (sum(isinstance(inner, Media) for inner in part.content) if isinstance(part, ToolResult) else 0)
        for part in message.parts
    )


def count_all_media(entries: Iterable[Entry]) -> int:
    """Return how many media a view holds."""
    return sum(count_media(entry.message) for entry in entries)


def _drop_part_media(part: Part, handle: str) -> Part:
    if isinstance(part, Media):
        return _media_notice(part, handle)
    if isinstance(part, ToolResult) and any(isinstance(inner, Media) for inner in part.content):
        content: tuple[Content, ...] = tuple(
            _media_notice(inner, handle) if isinstance(inner, Media) else inner for inner in part.content
        )
        return part.with_content(content)
    return part


def _media_notice(media: Media, handle: str) -> Text:
    how = f": {recall_hint(handle)}" if handle else ""
    return Text(f"[{media.kind} elided{how}]", media.trust, is_edited=True)
