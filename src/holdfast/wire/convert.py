"""From one provider's format to another's.

Everything the target allows is carried over; the rest is left out and said. The result satisfies
the target's rules: ids, turns and results take the form it wants.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.conversation.batching import EACH, GROUPED, ITEMS, REQUESTS, Batching
from holdfast.core.conversation.json_values import cleaned_text
from holdfast.core.conversation.mend import mend
from holdfast.core.conversation.messages import Message, Text
from holdfast.core.conversation.messages import system as system_message
from holdfast.core.conversation.view import Entry
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.wire import bedrock
from holdfast.wire.anthropic_messages import (
    AnthropicMessages,
    count_cache_marks,
    without_excess_marks,
)
from holdfast.wire.formats import ALIASES, FORMATS, Format, elements_of, format_named
from holdfast.wire.gemini import Gemini
from holdfast.wire.openai_chat import OpenAIChat
from holdfast.wire.openai_responses import OpenAIResponses
from holdfast.wire.pydantic_ai import PydanticAI
from holdfast.wire.reading import Place, check_list, is_list, is_mapping, kind_of
from holdfast.wire.shaping import (
    Shaping,
    alternating,
    fewer_images,
    hoisted,
    in_call_order,
    itemised,
    joined_runs,
    short_id,
    split_results,
    with_callers,
    with_ids,
    with_ids_by_place,
)

MAX_SYSTEM_DEPTH = 8
NO_FAILURE_MARK = "that a tool failed is not marked there"


@dataclass(frozen=True, slots=True)
class Converted:
    """Messages in the target's format, and what could not be carried over."""

    messages: list[Mapping[str, Any]]
    system: Any = None
    """System text where the target wants it apart from the messages."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Carried:
    """Messages in OpenAI's chat format that nobody has mended."""

    messages: list[Mapping[str, Any]]
    places: list[int]
    """From which of the messages given each was made."""
    notes: tuple[str, ...] = ()
    """What could not be carried over."""


def convert(messages: Sequence[Mapping[str, Any]], *, source: str, target: str, system: object = None) -> Converted:
    """Return messages of one format in another.

    `source` is any format that `govern` takes; `target` any of these, `mistral` or `bedrock`; `system` is system
    text that the source has outside its messages. Calls that still wait for a result are left waiting.
    """
    reader = format_named(source, "source")
    name = ALIASES.get(target, target) if isinstance(target, str) else ""
    shape = TARGETS.get(name)
    if shape is None:
        raise SettingsError("target", f"{target!r} is not known; choose one of: {', '.join(TARGETS)}")
    opening = plain_system_text(system)
    own = FORMATS.get(name)
    if own is not None and type(own) is type(reader):
        return _as_is(messages, own, system, opening)
    shaping = Shaping(name)
    _, portable = _portable(messages, reader, shaping)
    if reader.batching.is_itemised:
        # An item that cannot be carried over leaves nothing behind; the rest of its run is one message.
        portable = joined_runs(message for message in portable if message.parts)
    return shape([system_message(opening), *portable] if opening else portable, shaping)


def carried_over(messages: Sequence[Mapping[str, Any]], *, source: str) -> Carried:
    """Return messages of any format in that of OpenAI's chat, as they were said: what is broken stays broken."""
    reader, shaping = format_named(source, "source"), Shaping(OpenAIChat.name)
    found: list[tuple[int, Message]] = []
    for place, message in zip(*_portable(messages, reader, shaping), strict=True):
        is_next = reader.batching.is_itemised and found and message.role == found[-1][1].role == "assistant"
        if is_next:
            found[-1] = place, joined_runs((found[-1][1], message))[0]
        elif message.parts:
            found.append((place, message))
    carried = [
        (place, OpenAIChat().encode(_text_only_results(part, shaping)))
        for place, message in found
        for part in split_results([message])
    ]
    return Carried([native for _, native in carried], [place for place, _ in carried], shaping.notes)


def _portable(
    messages: Sequence[Mapping[str, Any]], reader: Format, shaping: Shaping
) -> tuple[Sequence[int], list[Message]]:
    """Return messages without what only their own provider understands, and where each stood."""
    natives, places = elements_of(reader, check_list(messages))
    decoded = [reader.decode(native, index) for index, native in zip(places, natives, strict=True)]
    for message in decoded:
        for note in message.notes:
            shaping.note(note)
    portable = [shaping.portable(message) for message in decoded]
    return places, with_ids_by_place(portable) if reader.batching.pairs_by_name else portable


def _as_is(messages: Sequence[Mapping[str, Any]], reader: Format, system: object, opening: str) -> Converted:
    """Return messages that already are in the target's format, mended where they have to be."""
    natives, places = elements_of(reader, check_list(messages))
    entries = [Entry(reader.decode(native, index), index) for index, native in zip(places, natives, strict=True)]
    mended = mend(entries, batching=reader.batching)
    notes = [note for entry in entries for note in entry.message.notes] + [repair.what for repair in mended.repairs]
    encoded = [reader.encode(entry.message) for entry in mended.entries]
    if not reader.has_system_apart:
        return Converted([*([reader.encode(system_message(opening))] if opening else []), *encoded], None, tuple(notes))
    if reader.max_cache_marks is not None:
        encoded = without_excess_marks(encoded, reader.max_cache_marks - count_cache_marks(system))
    return Converted(encoded, None if system is None else Place("system").value(system), tuple(notes))


def plain_system_text(value: object, depth: int = 0) -> str:
    """Return system text, however a provider writes it, as one string."""
    if value is None:
        return ""
    if isinstance(value, str):
        return cleaned_text(value)
    if depth < MAX_SYSTEM_DEPTH and is_mapping(value):
        return plain_system_text(value.get("parts") or value.get("text"), depth + 1)
    if depth < MAX_SYSTEM_DEPTH and is_list(value):
        return "\n\n".join(text for item in value if (text := plain_system_text(item, depth + 1)))
    raise MalformedInputError("system", f"must be a string or a list of text blocks, not {kind_of(value)}")


def _mended(messages: Sequence[Message], shaping: Shaping, batching: Batching) -> list[Message]:
    mended = mend([Entry(message, index) for index, message in enumerate(messages)], batching=batching)
    for repair in mended.repairs:
        shaping.note(repair.what)
    if mended.pending:
        shaping.note(f"no result yet for {', '.join(map(repr, mended.pending))}: not to be sent before it is there")
    return [entry.message for entry in mended.entries]


def _to_openai(messages: list[Message], shaping: Shaping) -> Converted:
    flat = _mended([_text_only_results(message, shaping) for message in split_results(messages)], shaping, EACH)
    return Converted([OpenAIChat().encode(message) for message in flat], None, shaping.notes)


def _to_responses(messages: list[Message], shaping: Shaping) -> Converted:
    for message in messages:
        if any(result.is_error for result in message.results):
            shaping.note(NO_FAILURE_MARK)
    items = _mended(list(itemised(split_results(messages))), shaping, ITEMS)
    thin = fewer_images(items, OpenAIResponses.max_images, shaping)
    return Converted([OpenAIResponses().encode(message) for message in thin], None, shaping.notes)


def _to_mistral(messages: list[Message], shaping: Shaping) -> Converted:
    systems, others = hoisted(split_results(messages))
    plain = [_text_only_results(message, shaping) for message in with_ids(others, short_id)]
    # Mending may have to rename an id; the new name takes the nine characters too.
    flat = with_ids(_mended(plain, shaping, EACH), short_id)
    thin = fewer_images(flat, 8, shaping)
    opening = [system_message("\n\n".join(systems))] if systems else []
    return Converted([OpenAIChat().encode(message) for message in (*opening, *thin)], None, shaping.notes)


def _text_only_results(message: Message, shaping: Shaping) -> Message:
    """Return a tool message of words alone: chat formats take nothing else there."""
    if message.role != "tool":
        return message
    result = message.results[0]
    if result.is_error:
        shaping.note(NO_FAILURE_MARK)
    if any(not isinstance(part, Text) for part in result.content):
        shaping.note("media in tool results were left out")
    text = "\n".join(part.text if isinstance(part, Text) else f"[{part.kind}]" for part in result.content)
    return Message("tool", (replace(result, content=(Text(text, "tool"),), is_error=False),))


def _turns(messages: list[Message], shaping: Shaping, most_images: int) -> tuple[list[str], list[Message]]:
    """Return system texts, and strictly alternating turns with all results of a batch in one."""
    systems, others = hoisted(messages)
    turns = alternating(_mended(alternating(others), shaping, GROUPED))
    return systems, fewer_images(in_call_order(turns), most_images, shaping)


def _to_anthropic(messages: list[Message], shaping: Shaping) -> Converted:
    systems, turns = _turns(messages, shaping, 100)
    encoded = [AnthropicMessages().encode(message) for message in turns]
    return Converted(encoded, "\n\n".join(systems) or None, shaping.notes)


def _to_gemini(messages: list[Message], shaping: Shaping) -> Converted:
    systems, turns = _turns(messages, shaping, Gemini.max_images)
    instruction = {"parts": [{"text": text} for text in systems]} if systems else None
    wire = format_named(shaping.target)
    return Converted([wire.encode(message) for message in with_callers(turns)], instruction, shaping.notes)


def _to_pydantic_ai(messages: list[Message], shaping: Shaping) -> Converted:
    turns = in_call_order(_mended(alternating(messages), shaping, REQUESTS))
    thin = fewer_images(turns, PydanticAI.max_images, shaping)
    return Converted([PydanticAI().encode(message) for message in with_callers(thin)], None, shaping.notes)


def _to_bedrock(messages: list[Message], shaping: Shaping) -> Converted:
    systems, turns = _turns(messages, shaping, 20)
    return Converted(bedrock.encode(turns), [{"text": text} for text in systems] or None, shaping.notes)


TARGETS: Mapping[str, Callable[[list[Message], Shaping], Converted]] = {
    "openai-chat": _to_openai,
    "openai-responses": _to_responses,
    "openai-responses-stateless": _to_responses,
    "anthropic-messages": _to_anthropic,
    "gemini": _to_gemini,
    "gemini-2": _to_gemini,
    "mistral": _to_mistral,
    "bedrock": _to_bedrock,
    "pydantic-ai": _to_pydantic_ai,
}
