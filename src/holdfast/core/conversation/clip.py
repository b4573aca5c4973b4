"""Shortens tool output to its beginning and end.

Where the model has a way to ask for the rest, the notice carries a handle; of a bare list it has none, and the notice
is plain. Clipping what is already clipped changes nothing.
"""

from holdfast.core.conversation.handles import message_handle, recall_hint
from holdfast.core.conversation.json_values import Json, dump_json, parse_json, replace_surrogates
from holdfast.core.conversation.messages import Content, Message, Part, Text, ToolCall, ToolResult

CLIP_HEAD_SHARE = 2 / 3
"""Outputs say what they are at the beginning and how it ended at the end."""
NOTICE_ROOM = 48


def clip_text(text: str, max_chars: int, handle: str = "") -> str:
    """Return the text, or its head and tail with a notice between, in at most `max_chars` characters.

    `place` is the handle by which a model asks for all of it.
    """
    if len(text) <= max_chars:
        return text
    how = f": {recall_hint(handle)}" if handle else ""
    keep = max(0, max_chars - NOTICE_ROOM - len(how))
    head = int(keep * CLIP_HEAD_SHARE)
    tail = keep - head
    notice = f"\n[… {len(text) - keep:,} characters cut{how} …]\n"
    return text[:head] + notice + (text[len(text) - tail :] if tail else "")


def clip_outputs(
    message: Message, max_chars: int, position: int | None = None, *, keep_recall_answers: bool = False
) -> Message:
    """Return the message with its tool output clipped; itself if there was nothing to clip.

    `position` is where it stands, for a model that can ask for the rest. `keep_recall_answers` leaves recall's answers.
    """
    long = [
        isinstance(part, ToolResult)
        and _has_long_text(part, max_chars)
        and not (keep_recall_answers and part.is_recall_answer)
        for part in message.parts
    ]
    if not any(long):
        return message
    places = part_handles(message, position)
    return message.with_parts(
        tuple(
            _clip_part(part, max_chars, place) if is_long else part
            for part, place, is_long in zip(message.parts, places, long, strict=True)
        )
    )


def part_handles(message: Message, position: int | None) -> list[str]:
    """Return the handle of each part of a message; empty where nobody can ask for it."""
    count = len(message.parts)
    if position is None:
        return [""] * count
    return [message_handle(position, number if count > 1 else None) for number in range(1, count + 1)]


def _has_long_text(result: ToolResult, max_chars: int) -> bool:
    return any(isinstance(part, Text) and len(part.text) > max_chars for part in result.content)


def _clip_part(part: Part, max_chars: int, handle: str) -> Part:
    if not isinstance(part, ToolResult):
        return part
    return part.with_content(tuple(_clip_content(content, max_chars, handle) for content in part.content))


def _clip_content(content: Content, max_chars: int, handle: str) -> Content:
    if isinstance(content, Text) and len(content.text) > max_chars:
        return content.with_text(clip_text(content.text, max_chars, handle))
    return content


def clip_arguments(message: Message, max_chars: int) -> Message:
    """Return the message with long strings in its calls' arguments clipped; the arguments stay JSON."""
    if not any(len(call.arguments) > max_chars for call in message.calls):
        return message
    return message.with_parts(
        tuple(
            part.with_arguments(_clip_arguments_json(part.arguments, max_chars))
            if isinstance(part, ToolCall) and len(part.arguments) > max_chars
            else part
            for part in message.parts
        )
    )


def _clip_arguments_json(arguments: str, max_chars: int) -> str:
    try:
        shorter = dump_json(_clip_strings(parse_json(arguments), max_chars))
    except (ValueError, RecursionError):
        # Broken JSON is sent to nobody's parser but the model's: quote what can be kept of it.
        shorter = dump_json({"clipped": clip_text(replace_surrogates(arguments), max_chars)})
    return shorter if len(shorter) < len(arguments) else arguments


def _clip_strings(value: Json, max_chars: int) -> Json:
    if isinstance(value, str):
        return clip_text(value, max_chars)
    if isinstance(value, dict):
        return {key: _clip_strings(item, max_chars) for key, item in value.items()}
    if isinstance(value, list):
        return [_clip_strings(item, max_chars) for item in value]
    return value
