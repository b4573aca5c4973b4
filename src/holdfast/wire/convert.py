"""From one provider's format to another's.

Everything the target allows is carried over; the rest is left out and said. The result satisfies
the target's rules: ids, turns and results take the form it wants.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.conversation.mend import mend
from holdfast.core.conversation.messages import Message, Text, system
from holdfast.core.conversation.view import Entry
from holdfast.errors import SettingsError
from holdfast.wire import bedrock, gemini
from holdfast.wire.anthropic_messages import AnthropicMessages
from holdfast.wire.formats import ALIASES, Format, format_named
from holdfast.wire.openai_chat import OpenAIChat
from holdfast.wire.reading import check_list, is_list, is_mapping
from holdfast.wire.shaping import (
    Shaping,
    alternating,
    fewer_images,
    hoisted,
    in_call_order,
    plain_id,
    short_id,
    split_results,
    with_ids,
)


@dataclass(frozen=True, slots=True)
class Converted:
    """Messages in the target's format, and what could not be carried over."""

    messages: list[Mapping[str, Any]]
    system: Any = None
    """System text where the target wants it apart from the messages."""
    notes: tuple[str, ...] = ()


def convert(
    messages: Sequence[Mapping[str, Any]], *, source: str, target: str, system_text: object = None
) -> Converted:
    """Return messages of one format in another.

    `target` is `openai-chat`, `anthropic-messages`, `gemini`, `mistral` or `bedrock`.
    """
    reader = format_named(source)
    shape = TARGETS.get(ALIASES.get(target, target))
    if shape is None:
        raise SettingsError("target", f"{target!r} is not known; choose one of: {', '.join(TARGETS)}")
    if reader.name == ALIASES.get(target, target):
        return _as_is(messages, reader, system_text)
    shaping = Shaping(target)
    decoded = [reader.decode(native, index) for index, native in enumerate(check_list(messages))]
    for message in decoded:
        for note in message.notes:
            shaping.note(note)
    opening = plain_system_text(system_text)
    portable = [shaping.portable(message) for message in decoded]
    return shape([system(opening), *portable] if opening else portable, shaping)


def _as_is(messages: Sequence[Mapping[str, Any]], reader: Format, system_text: object) -> Converted:
    """Return messages that already are in the target's format, mended where they have to be."""
    entries = [Entry(reader.decode(native, index), index) for index, native in enumerate(check_list(messages))]
    mended = mend(entries, groups_results=reader.groups_results)
    notes = [note for entry in entries for note in entry.message.notes] + [repair.what for repair in mended.repairs]
    return Converted([reader.encode(entry.message) for entry in mended.entries], system_text, tuple(notes))


def plain_system_text(value: object) -> str:
    """Return system text, however a provider writes it, as one string."""
    if isinstance(value, str):
        return value
    if is_mapping(value):
        return plain_system_text(value.get("parts") or value.get("text"))
    if is_list(value):
        return "\n\n".join(text for item in value if (text := plain_system_text(item)))
    return ""


def _mended(messages: Sequence[Message], shaping: Shaping, *, groups_results: bool) -> list[Message]:
    mended = mend([Entry(message, index) for index, message in enumerate(messages)], groups_results=groups_results)
    for repair in mended.repairs:
        shaping.note(repair.what)
    return [entry.message for entry in mended.entries]


def _to_openai(messages: list[Message], shaping: Shaping) -> Converted:
    flat = _mended(list(split_results(messages)), shaping, groups_results=False)
    return Converted([OpenAIChat().encode(message) for message in flat], None, tuple(shaping.notes))


def _to_mistral(messages: list[Message], shaping: Shaping) -> Converted:
    systems, others = hoisted(split_results(messages))
    flat = _mended(with_ids(others, short_id), shaping, groups_results=False)
    # Mending may have to rename an id; the new name takes the nine characters too.
    thin = fewer_images([_text_only_results(message) for message in with_ids(flat, short_id)], 8, shaping)
    opening = [system("\n\n".join(systems))] if systems else []
    return Converted([OpenAIChat().encode(message) for message in (*opening, *thin)], None, tuple(shaping.notes))


def _text_only_results(message: Message) -> Message:
    if message.role != "tool":
        return message
    result = message.results[0]
    text = "\n".join(part.text if isinstance(part, Text) else f"[{part.kind}]" for part in result.content)
    return Message("tool", (result.with_content((Text(text, "tool"),)),))


def _turns(messages: list[Message], shaping: Shaping, most_images: int) -> tuple[list[str], list[Message]]:
    """Return system texts, and strictly alternating turns with all results of a batch in one."""
    systems, others = hoisted(messages)
    turns = alternating(_mended(alternating(others), shaping, groups_results=True))
    return systems, fewer_images(with_ids(in_call_order(turns), plain_id), most_images, shaping)


def _to_anthropic(messages: list[Message], shaping: Shaping) -> Converted:
    systems, turns = _turns(messages, shaping, 100)
    encoded = [AnthropicMessages().encode(message) for message in turns]
    return Converted(encoded, "\n\n".join(systems) or None, tuple(shaping.notes))


def _to_gemini(messages: list[Message], shaping: Shaping) -> Converted:
    systems, turns = _turns(messages, shaping, 3_000)
    instruction = {"parts": [{"text": text} for text in systems]} if systems else None
    return Converted(gemini.encode(turns), instruction, tuple(shaping.notes))


def _to_bedrock(messages: list[Message], shaping: Shaping) -> Converted:
    systems, turns = _turns(messages, shaping, 20)
    return Converted(bedrock.encode(turns), [{"text": text} for text in systems] or None, tuple(shaping.notes))


TARGETS: Mapping[str, Callable[[list[Message], Shaping], Converted]] = {
    "openai-chat": _to_openai,
    "anthropic-messages": _to_anthropic,
    "gemini": _to_gemini,
    "mistral": _to_mistral,
    "bedrock": _to_bedrock,
}
