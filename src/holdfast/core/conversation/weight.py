"""How heavy a message is, in bytes of text: known without a tokenizer, and enough to say where lines stand."""

from holdfast.core.conversation.messages import Media, Message, Opaque, Part, Text, ToolResult

MESSAGE_OVERHEAD_BYTES = 16
"""Bytes that a message weighs besides its text."""
BYTES_PER_MEDIA_TOKEN = 3


def utf8_length(text: str) -> int:
    """Return the size of a text in bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def message_bytes(message: Message) -> int:
    """Return the size of a decoded message in bytes of text."""
    return sum(map(_part_bytes, message.parts))


def _part_bytes(part: Part) -> int:
    if isinstance(part, Media | Opaque) and part.tokens is not None:
        return part.tokens * BYTES_PER_MEDIA_TOKEN
    if isinstance(part, ToolResult):
        return sum(map(_part_bytes, part.content))
    if isinstance(part, Text | Opaque):
        return utf8_length(part.text)
    return utf8_length(getattr(part, "arguments", "") or getattr(part, "text", ""))
