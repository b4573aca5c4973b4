"""Shorten messages: clip tool output, drop media, and reduce old turns to text.

Clipped output keeps its beginning and end; clipping it again changes nothing. If the model has the recall
tool, the notice names the tool and a handle: `#` and a position, and the number of the part if a message has
several. Without the tool the notice has no handle, because an unusable handle is worse than none.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from holdfast.core.conversation.cuts import prompt_ranges
from holdfast.core.conversation.json_values import Json, dump_json, parse_json, replace_surrogates
from holdfast.core.conversation.messages import Content, Entry, Media, Message, Part, Text, ToolCall, ToolResult


def turn_as_text(turn: Sequence[Entry]) -> list[Entry]:
    """Return only the first user text and the last assistant reply of a turn."""
    replies = [entry for entry in turn if entry.message.role == "assistant" and entry.message.text.strip()]
    texts: list[Entry] = []
    for entry in (turn[0], *replies[-1:]):
        parts = tuple(part for part in entry.message.parts if isinstance(part, Text))
        texts.append(entry if parts == entry.message.parts else entry.with_message(entry.message.with_parts(parts)))
    return texts


def turns_as_text(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with each turn reduced to text; entries before the first prompt stay unchanged.

    What the user wrote beside a tool result stays, as a prompt of its own.
    """
    spans = prompt_ranges(entries)
    before = entries[: spans[0].start] if spans else entries
    return [*before, *(entry for span in spans for entry in turn_as_text(entries[span.start : span.stop]))]


DEFAULT_ARTIFACT_TOKENS = 2_000
"""A tool result above this size is an artifact, unless a policy sets another size."""
RECALL_TOOL = "recall"
"""The name of the recall tool. Its answers are not shortened or offloaded, and it does not find them again."""


def recall_range_hint(start: int, stop: int) -> str:
    """Return the line below a replacement that says how to recall the replaced messages."""
    return f"[All of it can be looked up: {RECALL_TOOL} with ref #{start}-#{stop - 1}, or with a query.]"


def _recall_hint(handle: str) -> str:
    """Return the end of a notice, which tells the model how to recall the rest; empty without a handle."""
    return f": {RECALL_TOOL} {handle}" if handle else ""


CLIP_HEAD_SHARE = 2 / 3
"""The share of the head: outputs start with their subject and end with their outcome."""
NOTICE_ROOM = 48


def clip_text(text: str, max_chars: int, handle: str = "") -> str:
    """Return the text, or its head and tail with a notice between, in at most `max_chars` characters.

    `handle` is the handle with which the model can recall the full text.
    """
    if len(text) <= max_chars:
        return text
    how = _recall_hint(handle)
    keep = max(0, max_chars - NOTICE_ROOM - len(how))
    head = int(keep * CLIP_HEAD_SHARE)
    tail = keep - head
    notice = f"\n[… {len(text) - keep:,} characters cut{how} …]\n"
    return text[:head] + notice + (text[len(text) - tail :] if tail else "")


def clip_outputs(
    message: Message,
    max_chars: int,
    position: int | None = None,
    *,
    keep_recall_answers: bool = False,
    is_per_text: bool = False,
) -> Message:
    """Return the message with its tool output clipped; the message itself if there is nothing to clip.

    `position` is the position of the message if the model can recall the rest, otherwise None.
    `keep_recall_answers` leaves answers of the recall tool unchanged. `max_chars` is the length of a whole output; with
    `is_per_text` that of each of its texts, as in logs of earlier versions.
    """
    parts = list(message.parts)
    for number, part in enumerate(parts):
        if (
            isinstance(part, ToolResult)
            and _longest_text(part, is_per_text=is_per_text) > max_chars
            and not (keep_recall_answers and part.is_recall_answer)
        ):
            handle = part_handles(message, position)[number]
            if is_per_text or output_chars(part) == _longest_text(part, is_per_text=True):
                content = tuple(_clip_content(inner, max_chars, handle) for inner in part.content)
            else:
                content = tuple(_clip_texts(part.content, output_chars(part), max_chars, handle))
            parts[number] = part.with_content(content)
    return message.with_parts(tuple(parts)) if any(map(operator.is_not, parts, message.parts)) else message


def output_chars(result: ToolResult) -> int:
    """Return the length of all texts of an output."""
    return sum(len(part.text) for part in result.content if isinstance(part, Text))


def _longest_text(result: ToolResult, *, is_per_text: bool) -> int:
    if not is_per_text:
        return output_chars(result)
    return max((len(part.text) for part in result.content if isinstance(part, Text)), default=0)


PartT = TypeVar("PartT", Content, Part)


def _clip_texts(content: Sequence[PartT], total: int, max_chars: int, handle: str) -> Iterator[PartT | Text]:
    """Yield the parts of several texts: those at the beginning and the end, with a notice between."""
    how = _recall_hint(handle)
    keep = max(0, max_chars - NOTICE_ROOM - len(how))
    head = int(keep * CLIP_HEAD_SHARE)
    tail_start = total - (keep - head)
    notice, start = f"\n[… {total - keep:,} characters cut{how} …]\n", 0
    for part in content:
        if not isinstance(part, Text):
            yield part
            continue
        stop = start + len(part.text)
        if stop <= head or start >= tail_start:
            yield part
        else:
            # The notice stands in the first text that is cut.
            kept = part.text[: max(0, head - start)] + notice + part.text[max(0, tail_start - start) :]
            yield from text_instead(part, kept)
            notice = ""
        start = stop


def text_instead(part: Text, text: str) -> Iterator[Text]:
    """Yield what remains of a text of an output.

    Nothing does if it is blank, unless the text is a field of its own, such as the output of one of a shell's commands.
    """
    if text.strip() or part.native is None:
        yield part.with_text(text)


def clip_user_texts(message: Message, max_chars: int, *, is_per_text: bool = False) -> Message:
    """Return a user's message with its text clipped; the message itself if there is nothing to clip.

    `max_chars` is the length of all its texts; with `is_per_text` that of each, as in logs of earlier versions.
    """
    lengths = [len(part.text) for part in message.parts if isinstance(part, Text)]
    if message.role != "user" or (max(lengths, default=0) if is_per_text else sum(lengths)) <= max_chars:
        return message
    if not is_per_text and sum(lengths) > max(lengths):
        return message.with_parts(tuple(_clip_texts(message.parts, sum(lengths), max_chars, "")))
    return message.with_parts(
        tuple(
            part.with_text(clip_text(part.text, max_chars))
            if isinstance(part, Text) and len(part.text) > max_chars
            else part
            for part in message.parts
        )
    )


def part_handles(message: Message, position: int | None) -> list[str]:
    """Return the handle of each part of a message; empty strings if the model cannot recall the message."""
    count = len(message.parts)
    if position is None:
        return [""] * count
    return [f"#{position}"] if count == 1 else [f"#{position}.{number}" for number in range(1, count + 1)]


def _clip_content(content: Content, max_chars: int, handle: str) -> Content:
    if isinstance(content, Text) and len(content.text) > max_chars:
        return content.with_text(clip_text(content.text, max_chars, handle))
    return content


def clip_arguments(message: Message, max_chars: int) -> Message:
    """Return the message with long strings in call arguments clipped; the arguments stay valid JSON."""
    if not any(len(call.arguments) > max_chars for call in message.calls):
        return message
    return message.with_parts(
        tuple(
            _clip_call(part, max_chars) if isinstance(part, ToolCall) and len(part.arguments) > max_chars else part
            for part in message.parts
        )
    )


def _clip_call(call: ToolCall, max_chars: int) -> ToolCall:
    try:
        shorter = dump_json(_clip_strings(parse_json(call.arguments), max_chars))
    except (ValueError, RecursionError):
        # Only the model reads broken JSON, so a clipped quotation of it is enough.
        shorter = dump_json({"clipped": clip_text(replace_surrogates(call.arguments), max_chars)})
    return call.with_arguments(min(call.arguments, shorter, key=len))


def _clip_strings(value: Json, max_chars: int) -> Json:
    if isinstance(value, str):
        return clip_text(value, max_chars)
    if isinstance(value, dict):
        return {key: _clip_strings(item, max_chars) for key, item in value.items()}
    if isinstance(value, list):
        return [_clip_strings(item, max_chars) for item in value]
    return value


def drop_media(message: Message, *, results_only: bool = False, position: int | None = None) -> Message:
    """Return the message with its media replaced by a notice; the message itself if it has none.

    `position` is the position of the message if the model can recall the media, otherwise None.
    """
    if not message.media_count:
        return message
    parts = zip(message.parts, part_handles(message, position), strict=True)
    return message.with_parts(
        tuple(
            part if results_only and isinstance(part, Media) else _drop_part_media(part, handle)
            for part, handle in parts
        )
    )


def count_all_media(entries: Iterable[Entry]) -> int:
    """Return the number of media in a view."""
    return sum(entry.message.media_count for entry in entries)


def _drop_part_media(part: Part, handle: str) -> Part:
    if isinstance(part, Media):
        return _media_notice(part, handle)
    if isinstance(part, ToolResult) and any(isinstance(inner, Media) for inner in part.content):
        return part.with_content(
            tuple(_media_notice(inner, handle) if isinstance(inner, Media) else inner for inner in part.content)
        )
    return part


def _media_notice(media: Media, handle: str) -> Text:
    return Text(f"[{media.kind} elided{_recall_hint(handle)}]", media.trust, is_edited=True)
