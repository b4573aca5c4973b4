"""Converts messages from one provider's format to another's.

Everything that the target allows is carried over; the rest is left out, with a note. The result satisfies the target's
rules for ids, turns and results. Bedrock Converse, which no other module reads or writes, is encoded here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.conversation.batching import (
    CALLS_AS_ITEMS,
    ONE_RESULT_PER_MESSAGE,
    RESULTS_IN_ONE_MESSAGE,
    RESULTS_IN_ONE_REQUEST,
    Batching,
)
from holdfast.core.conversation.json_values import replace_surrogates
from holdfast.core.conversation.messages import Entry, Media, Message, Part, Text, ToolCall, ToolResult
from holdfast.core.conversation.messages import system as system_message
from holdfast.core.conversation.repair import repair_entries
from holdfast.core.conversation.transcript import MessageFormat
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.wire.anthropic import (
    AnthropicMessages,
    arguments_object,
    count_cache_marks,
    drop_excess_cache_marks,
)
from holdfast.wire.formats import FORMAT_ALIASES, FORMATS, format_named, split_elements
from holdfast.wire.gemini import Gemini
from holdfast.wire.json_reader import InputPath, check_list, is_list, is_mapping, json_type_name
from holdfast.wire.media import image_source
from holdfast.wire.openai_chat import OpenAIChat
from holdfast.wire.pydantic_ai import PydanticAI
from holdfast.wire.responses import OpenAIResponses
from holdfast.wire.restructure import (
    Restructuring,
    in_call_order,
    join_assistant_runs,
    join_same_side,
    limit_images,
    nine_char_id,
    separate_system,
    split_calls,
    split_results,
    with_answered_calls,
    with_new_ids,
    with_unique_ids,
)

MAX_SYSTEM_DEPTH = 8
NO_FAILURE_FLAG = "that a tool failed is not marked there"


@dataclass(frozen=True, slots=True)
class Converted:
    """Messages in the target format, and what could not be carried over."""

    messages: list[Mapping[str, Any]]
    system: Any = None
    """System text, if the target wants it outside the messages."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatTranscript:
    """Messages in OpenAI's chat format, not repaired."""

    messages: list[Mapping[str, Any]]
    source_indices: list[int]
    """The index of the input message that each comes from."""
    notes: tuple[str, ...] = ()
    """What could not be carried over."""


def convert(messages: Sequence[Mapping[str, Any]], *, source: str, target: str, system: object = None) -> Converted:
    """Return messages of one format in another.

    `source` is any format of `govern`; `target` is one of these, `mistral` or `bedrock`; `system` is system text that
    the source keeps outside its messages. A call without a result yet stays without one.
    """
    reader = format_named(source, "source")
    name = FORMAT_ALIASES.get(target, target) if isinstance(target, str) else ""
    converter = CONVERTERS.get(name)
    if converter is None:
        raise SettingsError("target", f"{target!r} is not known; choose one of: {', '.join(CONVERTERS)}")
    opening = plain_system_text(system)
    own = FORMATS.get(name)
    if own is not None and type(own) is type(reader):
        return _in_same_format(messages, own, system, opening)
    restructuring = Restructuring(name)
    _, portable = _portable(messages, reader, restructuring)
    if reader.batching.is_itemized:
        # An item that cannot be carried over is dropped; the rest of its run becomes one message.
        portable = join_assistant_runs(message for message in portable if message.parts)
    return converter([system_message(opening), *portable] if opening else portable, restructuring)


def as_chat_messages(messages: Sequence[Mapping[str, Any]], *, source: str) -> ChatTranscript:
    """Return messages of any format in OpenAI's chat format, without repairs."""
    reader, restructuring = format_named(source, "source"), Restructuring(OpenAIChat.name)
    found: list[tuple[int, Message]] = []
    for place, message in zip(*_portable(messages, reader, restructuring), strict=True):
        is_next = reader.batching.is_itemized and found and message.role == found[-1][1].role == "assistant"
        if is_next:
            found[-1] = place, join_assistant_runs((found[-1][1], message))[0]
        elif message.parts:
            found.append((place, message))
    carried = [
        (place, OpenAIChat().encode(_text_only_results(part, restructuring)))
        for place, message in found
        for part in split_results([message])
    ]
    return ChatTranscript([native for _, native in carried], [place for place, _ in carried], restructuring.notes)


def _portable(
    messages: Sequence[Mapping[str, Any]], reader: MessageFormat, restructuring: Restructuring
) -> tuple[Sequence[int], list[Message]]:
    """Return the index of each message, and the messages without what only their own provider understands."""
    natives, places = split_elements(reader, check_list(messages))
    decoded = [reader.decode(native, index) for index, native in zip(places, natives, strict=True)]
    for message in decoded:
        for note in message.repair_notes:
            restructuring.note(note)
    portable = [restructuring.portable(message) for message in decoded]
    return places, with_unique_ids(portable) if reader.batching.pairs_by_name else portable


def _in_same_format(
    messages: Sequence[Mapping[str, Any]], reader: MessageFormat, system: object, opening: str
) -> Converted:
    """Return messages that already have the target format, repaired where needed."""
    natives, places = split_elements(reader, check_list(messages))
    entries = [Entry(reader.decode(native, index), index) for index, native in zip(places, natives, strict=True)]
    repaired = repair_entries(entries, batching=reader.batching)
    notes = [note for entry in entries for note in entry.message.repair_notes] + [
        repair.description for repair in repaired.repairs
    ]
    encoded = [reader.encode(entry.message) for entry in repaired.entries]
    if not reader.has_separate_system:
        return Converted([*([reader.encode(system_message(opening))] if opening else []), *encoded], None, tuple(notes))
    if reader.max_cache_marks is not None:
        encoded = drop_excess_cache_marks(encoded, reader.max_cache_marks - count_cache_marks(system))
    return Converted(encoded, None if system is None else InputPath("system").sendable_value(system), tuple(notes))


def plain_system_text(value: object, depth: int = 0) -> str:
    """Return the system text of any provider as one string."""
    if value is None:
        return ""
    if isinstance(value, str):
        return replace_surrogates(value)
    if depth < MAX_SYSTEM_DEPTH and is_mapping(value):
        return plain_system_text(value.get("parts") or value.get("text"), depth + 1)
    if depth < MAX_SYSTEM_DEPTH and is_list(value):
        return "\n\n".join(text for item in value if (text := plain_system_text(item, depth + 1)))
    raise MalformedInputError("system", f"must be a string or a list of text blocks, not {json_type_name(value)}")


def _repair(messages: Sequence[Message], restructuring: Restructuring, batching: Batching) -> list[Message]:
    repaired = repair_entries([Entry(message, index) for index, message in enumerate(messages)], batching=batching)
    for repair in repaired.repairs:
        restructuring.note(repair.description)
    if repaired.pending:
        restructuring.note(
            f"no result yet for {', '.join(map(repr, repaired.pending))}: not to be sent before it is there"
        )
    return [entry.message for entry in repaired.entries]


def _to_openai(messages: list[Message], restructuring: Restructuring) -> Converted:
    flat = _repair(
        [_text_only_results(message, restructuring) for message in split_results(messages)],
        restructuring,
        ONE_RESULT_PER_MESSAGE,
    )
    return Converted([OpenAIChat().encode(message) for message in flat], None, restructuring.notes)


def _to_responses(messages: list[Message], restructuring: Restructuring) -> Converted:
    for message in messages:
        if any(result.is_error for result in message.results):
            restructuring.note(NO_FAILURE_FLAG)
    items = _repair(list(split_calls(split_results(messages))), restructuring, CALLS_AS_ITEMS)
    limited = limit_images(items, OpenAIResponses.max_images, restructuring)
    return Converted([OpenAIResponses().encode(message) for message in limited], None, restructuring.notes)


def _to_mistral(messages: list[Message], restructuring: Restructuring) -> Converted:
    systems, others = separate_system(split_results(messages))
    plain = [_text_only_results(message, restructuring) for message in with_new_ids(others, nine_char_id)]
    # A repair may rename an id, so ids are made nine characters long again.
    flat = with_new_ids(_repair(plain, restructuring, ONE_RESULT_PER_MESSAGE), nine_char_id)
    limited = limit_images(flat, 8, restructuring)
    opening = [system_message("\n\n".join(systems))] if systems else []
    return Converted([OpenAIChat().encode(message) for message in (*opening, *limited)], None, restructuring.notes)


def _text_only_results(message: Message, restructuring: Restructuring) -> Message:
    """Return a tool message with text only: chat formats accept nothing else there."""
    if message.role != "tool":
        return message
    result = message.results[0]
    if result.is_error:
        restructuring.note(NO_FAILURE_FLAG)
    if any(not isinstance(part, Text) for part in result.content):
        restructuring.note("media in tool results were left out")
    text = "\n".join(part.text if isinstance(part, Text) else f"[{part.kind}]" for part in result.content)
    return Message("tool", (replace(result, content=(Text(text, "tool"),), is_error=False),))


def _alternating_turns(
    messages: list[Message], restructuring: Restructuring, max_images: int
) -> tuple[list[str], list[Message]]:
    """Return system texts, and strictly alternating turns with all results of a batch in one message."""
    systems, others = separate_system(messages)
    turns = join_same_side(_repair(join_same_side(others), restructuring, RESULTS_IN_ONE_MESSAGE))
    return systems, limit_images(in_call_order(turns), max_images, restructuring)


def _to_anthropic(messages: list[Message], restructuring: Restructuring) -> Converted:
    systems, turns = _alternating_turns(messages, restructuring, 100)
    encoded = [AnthropicMessages().encode(message) for message in turns]
    return Converted(encoded, "\n\n".join(systems) or None, restructuring.notes)


def _to_gemini(messages: list[Message], restructuring: Restructuring) -> Converted:
    systems, turns = _alternating_turns(messages, restructuring, Gemini.max_images)
    instruction = {"parts": [{"text": text} for text in systems]} if systems else None
    encode = format_named(restructuring.target).encode
    return Converted([encode(message) for message in with_answered_calls(turns)], instruction, restructuring.notes)


def _to_pydantic_ai(messages: list[Message], restructuring: Restructuring) -> Converted:
    turns = in_call_order(_repair(join_same_side(messages), restructuring, RESULTS_IN_ONE_REQUEST))
    limited = limit_images(turns, PydanticAI.max_images, restructuring)
    return Converted(
        [PydanticAI().encode(message) for message in with_answered_calls(limited)], None, restructuring.notes
    )


def _to_bedrock(messages: list[Message], restructuring: Restructuring) -> Converted:
    systems, turns = _alternating_turns(messages, restructuring, 20)
    return Converted(encode_converse(turns), [{"text": text} for text in systems] or None, restructuring.notes)


CONVERTERS: Mapping[str, Callable[[list[Message], Restructuring], Converted]] = {
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


def encode_converse(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """Return alternating messages as Converse messages."""
    return [
        {
            "role": "assistant" if message.role == "assistant" else "user",
            "content": [block for part in message.parts if (block := _converse_block(part))],
        }
        for message in messages
    ]


def _converse_block(part: Part) -> Mapping[str, Any] | None:
    if isinstance(part, Text):
        return {"text": part.text}
    if isinstance(part, ToolCall):
        return {"toolUse": {"toolUseId": part.id, "name": part.name, "input": arguments_object(part.arguments)}}
    if isinstance(part, ToolResult):
        content = [block for item in part.content if (block := _converse_block(item))] or [{"text": "(no output)"}]
        return {
            "toolResult": {
                "toolUseId": part.call_id,
                "content": content,
                "status": "error" if part.is_error else "success",
            }
        }
    return _converse_image(part) if isinstance(part, Media) else None


def _converse_image(media: Media) -> Mapping[str, Any]:
    source = image_source(media)
    if source is None or source[0] == "url":
        return {"text": f"[{media.kind} not carried over]"}
    return {"image": {"format": source[0].rpartition("/")[2], "source": {"bytes": source[1]}}}
