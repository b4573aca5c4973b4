"""Converts messages from one provider's format to another's.

Formats differ in which message carries tool results and whether two messages of one role may follow each other, so
messages are split and joined. Everything that the target allows is carried over; the rest is left out, with a note. The
result satisfies the target's rules for ids, turns and results. Bedrock Converse, which no other module reads or writes,
is encoded here.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.conversation.batching import (
    CALLS_AS_ITEMS,
    ONE_RESULT_PER_MESSAGE,
    RESULTS_IN_ONE_MESSAGE,
    RESULTS_IN_ONE_REQUEST,
    Batching,
    is_id_from_name,
)
from holdfast.core.conversation.json_values import replace_surrogates
from holdfast.core.conversation.messages import (
    Content,
    Entry,
    Media,
    Message,
    Opaque,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from holdfast.core.conversation.messages import system as system_message
from holdfast.core.conversation.repair import repair_entries
from holdfast.core.conversation.transcript import MessageFormat
from holdfast.errors import EmptyConversationError, MalformedInputError, SettingsError
from holdfast.wire.anthropic import (
    AnthropicMessages,
    arguments_object,
    count_cache_marks,
    drop_excess_cache_marks,
    place_system_messages,
)
from holdfast.wire.formats import FORMAT_ALIASES, FORMATS, format_named, split_elements
from holdfast.wire.gemini import Gemini
from holdfast.wire.json_reader import InputPath, check_list, is_list, is_mapping, json_type_name, safe_tool_name
from holdfast.wire.media import image_source, pdf_data, unreadable_image
from holdfast.wire.openai_chat import OpenAIChat, is_chat_media, with_call_ids
from holdfast.wire.pydantic_ai import PydanticAI
from holdfast.wire.responses import MEDIA_BLOCK_TYPES, OpenAIResponses, is_event_output, outcome_of, tool_of_event

MAX_SYSTEM_DEPTH = 8
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
NO_CITATIONS = "citations were left out: only the text that cites is carried over"
NO_FAILURE_FLAG = "failed tool results are not marked as failed: the target has no field for it"


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


class Conversion:
    """One conversion, with notes on what could not be carried over."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be carried over, each once, in order."""
        return tuple(self._notes)

    def note(self, what: str) -> None:
        """Note what could not be carried over."""
        self._notes[what] = None

    def portable(self, message: Message) -> Message:
        """Return a message without its JSON and without what only its own provider understands."""
        native: Mapping[str, Any] = message.native or {}
        if "role" in native and native["role"] != "tool" and isinstance(native.get("name"), str):
            self.note("the names of speakers were left out: the target has no field for them")
        if native.get("annotations"):
            self.note(NO_CITATIONS)
        parts = tuple(part for raw in message.parts if (part := self._portable_part(raw, message.role)) is not None)
        if parts and is_event_output(str(native.get("type")), native):
            # Without this line, what a tool has said would be the user's words.
            parts = (Text(f"[Output of the tool {tool_of_event(native)}, which no call asked for:]", "tool"), *parts)
        # The text of a provider's compaction is no system text: a model has written it.
        role = "assistant" if message.role == "system" and message.outline.is_fixed else message.role
        return Message(role, parts)

    def _portable_part(self, part: Part, role: Role) -> Part | None:
        if isinstance(part, Thinking):
            self.note("reasoning was left out: it is only valid with the provider that wrote it")
            return None
        if isinstance(part, Opaque):
            return self._portable_opaque(part, role)
        if isinstance(part, Text):
            if is_mapping(part.native) and (part.native.get("citations") or part.native.get("annotations")):
                self.note(NO_CITATIONS)
            return Text(part.text, part.trust)
        if isinstance(part, Media) and role == "assistant" and not self.target.startswith("gemini"):
            self.note(f"{part.kind} in an answer was left out: the target has media in prompts only")
            return Text(f"[{part.kind} not carried over]", part.trust)
        if isinstance(part, Media) and not self.target.startswith(("gemini", "pydantic")):
            return self._portable_media(part)
        if isinstance(part, ToolCall):
            return self._portable_call(part)
        if isinstance(part, ToolResult):
            outcome = outcome_of(part.native)
            told = (*part.content, Text(outcome, "tool")) if outcome else part.content
            inner = [self._portable_part(item, role) for item in told]
            # An empty text is a valid result, but not next to other content.
            content: tuple[Content, ...] = tuple(
                item
                for item in inner
                if isinstance(item, Media | Opaque)
                or (isinstance(item, Text) and not (item.is_blank and len(inner) > 1))
            )
            has_failed = is_mapping(part.native) and part.native.get("status") == "failed"
            return replace(part, content=content, is_error=part.is_error or has_failed, native=None)
        return part

    def _portable_media(self, part: Media) -> Media | Text:
        if not (kind := unreadable_image(part)):
            return part
        self.note(f"an image was left out: the target cannot read {kind!r}")
        return Text(f"[{part.kind} not carried over]", part.trust)

    def _portable_call(self, call: ToolCall) -> ToolCall:
        name = safe_tool_name(call.name)
        if self.target.startswith("gemini") and not re.match("[a-zA-Z_]", name):
            name = safe_tool_name(f"_{name}")
        if name != call.name:
            self.note(f"the tool {call.name!r} was renamed to {name!r}")
        return replace(call, name=name, native=None)

    def with_sendable_arguments(self, message: Message) -> Message:
        """Return a message in which the arguments of each call are an object, as most servers demand."""
        if not any(_is_no_object(call.arguments) for call in message.calls):
            return message
        if any(call.arguments and _is_no_object(call.arguments) for call in message.calls):
            self.note("arguments that were no object were wrapped in one")
        return message.with_parts(tuple(map(_with_object_arguments, message.parts)))

    def _portable_opaque(self, part: Opaque, role: Role) -> Text | None:
        if part.kind == "refusal":
            return Text(part.text, part.trust)
        if (text := _document_text(part)).strip():
            block: Mapping[str, Any] = part.native if is_mapping(part.native) else {}
            about = [one for name in ("title", "source", "context") if isinstance(one := block.get(name), str) and one]
            return Text("\n".join((*about, text)), part.trust)
        self.note(f"a block of type {part.kind!r} was left out")
        # A user's block leaves a placeholder, so that the prompt does not disappear with it.
        is_left_out = role in {"assistant", "system"} or part.trust == "system"
        return None if is_left_out else Text(f"[{part.kind} not carried over]", part.trust)


def _is_no_object(arguments: str) -> bool:
    try:
        return not is_mapping(json.loads(arguments))
    except (ValueError, RecursionError):
        return True


def _with_object_arguments(part: Part) -> Part:
    if not isinstance(part, ToolCall) or not _is_no_object(part.arguments):
        return part
    return replace(part, arguments=json.dumps(arguments_object(part.arguments), ensure_ascii=False))


def _document_text(part: Opaque) -> str:
    """Return the text of a document, a search result or a compaction of Anthropic; empty if it has none."""
    block: Mapping[str, Any] = part.native if is_mapping(part.native) else {}
    source = block.get("source")
    if is_mapping(source) and source.get("type") == "text":
        return text if isinstance(text := source.get("data"), str) else ""
    has_content = part.kind in {"search_result", "compaction"}
    content = source.get("content") if is_mapping(source) else block.get("content") if has_content else ""
    if isinstance(content, str):
        return content
    texts = [one.get("text") for one in content if is_mapping(one)] if is_list(content) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def convert(messages: Sequence[Mapping[str, Any]], *, source: str, target: str, system: object = None) -> Converted:
    """Return messages of one format in another.

    `source` is any format of `govern`; `target` is one of these, `mistral` or `bedrock`; `system` is system text that
    the source keeps outside its messages. A call without a result yet stays without one. Raise
    `EmptyConversationError` if none of the messages can be carried over.
    """
    reader = format_named(source, "source")
    name = FORMAT_ALIASES.get(target, target) if isinstance(target, str) else ""
    converter = CONVERTERS.get(name)
    if converter is None:
        raise SettingsError("target", f"{target!r} is not known; choose one of: {', '.join(CONVERTERS)}")
    opening = plain_system_text(system)
    own = FORMATS.get(name)
    if own is not None and type(own) is type(reader):
        return _checked(_in_same_format(messages, own, system, opening), messages)
    conversion = Conversion(name)
    _, read = _portable(messages, reader, conversion)
    portable = [conversion.with_sendable_arguments(message) for message in read]
    if reader.batching.is_itemized:
        # An item that cannot be carried over is dropped; the rest of its run becomes one message.
        portable = _join(
            (message for message in portable if message.parts),
            lambda before, after: before.role == after.role == "assistant",
        )
    return _checked(converter([system_message(opening), *portable] if opening else portable, conversion), messages)


def _checked(converted: Converted, messages: Sequence[object]) -> Converted:
    """Return messages in the target format; raise if none of the given ones is left: no provider accepts that."""
    if messages and not converted.messages:
        raise EmptyConversationError
    return converted


def as_chat_messages(messages: Sequence[Mapping[str, Any]], *, source: str) -> ChatTranscript:
    """Return messages of any format in OpenAI's chat format, without repairs."""
    reader, conversion = format_named(source, "source"), Conversion(OpenAIChat.name)
    found: list[tuple[int, Message]] = []
    for place, message in zip(*_portable(messages, reader, conversion), strict=True):
        is_next = reader.batching.is_itemized and found and message.role == found[-1][1].role == "assistant"
        if is_next:
            found[-1] = place, Message("assistant", (*found[-1][1].parts, *message.parts))
        elif message.parts:
            found.append((place, message))
    carried = [
        (place, _text_only_results(part, conversion)) for place, message in found for part in _split_results([message])
    ]
    plain = _with_noted_media([message for _, message in carried], conversion)
    return ChatTranscript(list(map(OpenAIChat().encode, plain)), [place for place, _ in carried], conversion.notes)


def _portable(
    messages: Sequence[Mapping[str, Any]], reader: MessageFormat, conversion: Conversion
) -> tuple[Sequence[int], list[Message]]:
    """Return the index of each message, and the messages without what only their own provider understands."""
    natives, places = split_elements(reader, check_list(messages))
    if isinstance(reader, OpenAIChat):
        natives = with_call_ids(natives)
    decoded = [reader.decode(native, index) for index, native in zip(places, natives, strict=True)]
    for message in decoded:
        for note in message.repair_notes:
            conversion.note(note)
    portable = [conversion.portable(message) for message in decoded]
    return places, _with_unique_ids(portable) if reader.batching.pairs_by_name else portable


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
        placed = place_system_messages(encoded)
        encoded = drop_excess_cache_marks(placed, reader.max_cache_marks - count_cache_marks(system))
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


def _repair(messages: Sequence[Message], conversion: Conversion, batching: Batching) -> list[Message]:
    repaired = repair_entries([Entry(message, index) for index, message in enumerate(messages)], batching=batching)
    for repair in repaired.repairs:
        conversion.note(repair.description)
    if repaired.pending:
        conversion.note(
            f"no result yet for {', '.join(map(repr, repaired.pending))}: add it before you send the messages"
        )
    return [entry.message for entry in repaired.entries]


def _to_openai(messages: list[Message], conversion: Conversion) -> Converted:
    plain = [_text_only_results(message, conversion) for message in _split_results(messages)]
    flat = _with_noted_media(_repair(plain, conversion, ONE_RESULT_PER_MESSAGE), conversion)
    return Converted([OpenAIChat().encode(message) for message in flat], None, conversion.notes)


def _to_responses(messages: list[Message], conversion: Conversion) -> Converted:
    for message in messages:
        if any(result.is_error for result in message.results):
            conversion.note(NO_FAILURE_FLAG)
    items = _repair(list(_split_calls(_split_results(messages))), conversion, CALLS_AS_ITEMS)
    limited = _with_noted_media(_limit_images(items, OpenAIResponses.max_images, conversion), conversion)
    return Converted([OpenAIResponses().encode(message) for message in limited], None, conversion.notes)


def _to_mistral(messages: list[Message], conversion: Conversion) -> Converted:
    systems, others = _separate_system(list(_split_results(messages)))
    read = [_without_files(message, conversion) for message in others]
    plain = [_text_only_results(message, conversion) for message in _with_new_ids(read, _nine_char_id)]
    # A repair may rename an id, so ids are made nine characters long again.
    flat = _with_new_ids(_repair(plain, conversion, ONE_RESULT_PER_MESSAGE), _nine_char_id)
    limited = _with_noted_media(_limit_images(flat, 8, conversion), conversion)
    opening = [system_message("\n\n".join(systems))] if systems else []
    return Converted([OpenAIChat().encode(message) for message in (*opening, *limited)], None, conversion.notes)


def _without_files(message: Message, conversion: Conversion) -> Message:
    """Return a message with a notice in place of each file."""
    if not any(isinstance(part, Media) and part.kind == "document" for part in message.parts):
        return message
    conversion.note("files were left out: the target accepts none in messages")
    return message.with_parts(
        tuple(
            Text(f"[{part.kind} not carried over]", part.trust)
            if isinstance(part, Media) and part.kind == "document"
            else part
            for part in message.parts
        )
    )


def _text_only_results(message: Message, conversion: Conversion) -> Message:
    """Return a tool message with text only: chat formats accept nothing else there."""
    if message.role != "tool":
        return message
    result = message.results[0]
    if result.is_error:
        conversion.note(NO_FAILURE_FLAG)
    if any(not isinstance(part, Text) for part in result.content):
        conversion.note("media in tool results were left out")
    text = "\n".join(part.text if isinstance(part, Text) else f"[{part.kind}]" for part in result.content)
    return Message("tool", (replace(result, content=(Text(text, "tool"),), is_error=False),))


def _alternating_turns(
    messages: list[Message], conversion: Conversion, max_images: int
) -> tuple[list[str], list[Message]]:
    """Return system texts, and strictly alternating turns with all results of a batch in one message."""
    systems, others = _separate_system(messages)
    turns = _join_same_side(_repair(_join_same_side(others), conversion, RESULTS_IN_ONE_MESSAGE))
    limited = _limit_images(_in_call_order(turns), max_images, conversion)
    return systems, _with_noted_media(limited, conversion)


def _to_anthropic(messages: list[Message], conversion: Conversion) -> Converted:
    systems, turns = _alternating_turns(messages, conversion, 100)
    results = [result for message in turns for result in message.results]
    if any(result.is_error and any(isinstance(item, Media) for item in result.content) for result in results):
        conversion.note("failed tool results with media are not marked as failed: the target accepts only text there")
    encoded = [AnthropicMessages().encode(message) for message in turns]
    return Converted(encoded, "\n\n".join(systems) or None, conversion.notes)


def _to_gemini(messages: list[Message], conversion: Conversion) -> Converted:
    systems, turns = _alternating_turns(messages, conversion, Gemini.max_images)
    instruction = {"parts": [{"text": text} for text in systems]} if systems else None
    encode = format_named(conversion.target).encode
    return Converted([encode(message) for message in _with_answered_calls(turns)], instruction, conversion.notes)


def _to_pydantic_ai(messages: list[Message], conversion: Conversion) -> Converted:
    turns = _in_call_order(_repair(_join_same_side(messages), conversion, RESULTS_IN_ONE_REQUEST))
    limited = _with_noted_media(_limit_images(turns, PydanticAI.max_images, conversion), conversion)
    if all(message.role == "system" for message in limited):
        # A history of system text alone has nothing that an agent could answer.
        limited = []
    return Converted(
        [PydanticAI().encode(message) for message in _with_answered_calls(limited)], None, conversion.notes
    )


def _to_bedrock(messages: list[Message], conversion: Conversion) -> Converted:
    systems, turns = _alternating_turns(messages, conversion, 20)
    encoded: list[Mapping[str, Any]] = [
        {"role": message.role, "content": [block for part in message.parts if (block := _converse_block(part))]}
        for message in turns
    ]
    return Converted(encoded, [{"text": text} for text in systems] or None, conversion.notes)


CONVERTERS: Mapping[str, Callable[[list[Message], Conversion], Converted]] = {
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


def _converse_block(part: Part) -> Mapping[str, Any] | None:
    if isinstance(part, Text):
        return {"text": part.text}
    if isinstance(part, ToolCall):
        return {"toolUse": {"toolUseId": part.id, "name": part.name, "input": arguments_object(part.arguments)}}
    if isinstance(part, ToolResult):
        content = [block for item in part.content if (block := _converse_block(item))] or [{"text": "(no output)"}]
        status = "error" if part.is_error else "success"
        return {"toolResult": {"toolUseId": part.call_id, "content": content, "status": status}}
    if not isinstance(part, Media):
        return None
    source = image_source(part)
    if source is None or source[0] == "url":
        return {"text": f"[{part.kind} not carried over]"}
    return {"image": {"format": source[0].rpartition("/")[2], "source": {"bytes": source[1]}}}


def _separate_system(messages: Sequence[Message]) -> tuple[list[str], list[Message]]:
    """Return the system texts, and the messages without them."""
    systems = [message.text for message in messages if message.role == "system" and message.text]
    return systems, [message for message in messages if message.role != "system"]


def _split_results(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages, each tool result in its own message."""
    for message in messages:
        results = message.results
        if not results:
            yield message
            continue
        for result in results:
            yield Message("tool", (result,))
        besides = tuple(part for part in message.parts if not isinstance(part, ToolResult))
        if besides:
            yield Message("user", besides)


def _join_same_side(messages: Iterable[Message]) -> list[Message]:
    """Return messages with consecutive messages of one side joined; tool results count as the user's."""
    sides = (Message("user" if one.role == "tool" else one.role, one.parts) for one in messages if one.parts)
    return _join(sides, lambda before, after: before.role == after.role)


def _join(messages: Iterable[Message], belong_together: Callable[[Message, Message], bool]) -> list[Message]:
    """Return messages with consecutive ones joined if they belong together."""
    runs: list[list[Message]] = []
    for message in messages:
        if runs and belong_together(runs[-1][-1], message):
            runs[-1].append(message)
        else:
            runs.append([message])
    return [run[0] if len(run) == 1 else Message(run[0].role, tuple(_parts_of(run))) for run in runs]


def _parts_of(messages: Iterable[Message]) -> Iterator[Part]:
    return (part for message in messages for part in message.parts)


def _split_calls(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages, each call in its own message after the text it came with."""
    for message in messages:
        if not message.calls:
            yield message
            continue
        besides = tuple(part for part in message.parts if not isinstance(part, ToolCall))
        if besides:
            yield Message(message.role, besides)
        for call in message.calls:
            yield Message(message.role, (call,))


def _in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Return messages with the results of each batch first, in the order of its calls."""
    ordered: list[Message] = []
    calls: list[str] = []
    for message in messages:
        if message.results and message.role == "user":
            rank = {call_id: number for number, call_id in enumerate(calls)}
            results = sorted(message.results, key=lambda result: rank.get(result.call_id, len(rank)))
            besides = tuple(part for part in message.parts if not isinstance(part, ToolResult))
            ordered.append(message.with_parts((*results, *besides)))
        else:
            ordered.append(message)
        calls = [call.id for call in message.calls]
    return ordered


def _with_new_ids(messages: Iterable[Message], rename: Callable[[str], str]) -> list[Message]:
    """Return messages with every call id replaced, in calls and results."""

    def renamed(part: Part) -> Part:
        if isinstance(part, ToolCall):
            return replace(part, id=rename(part.id))
        return replace(part, call_id=rename(part.call_id)) if isinstance(part, ToolResult) else part

    return [message.with_parts(tuple(map(renamed, message.parts))) for message in messages]


def _with_unique_ids(messages: Sequence[Message]) -> list[Message]:
    """Return messages with unique ids for calls that had only a name."""
    current: dict[str, str] = {}
    renamed: list[Message] = []

    for index, message in enumerate(messages):
        for number, call in enumerate(message.calls):
            if is_id_from_name(call.id):
                current[call.id] = f"{safe_tool_name(call.name)[:40]}_{index}_{number}"
        renamed += _with_new_ids([message], lambda call_id: current.get(call_id, call_id))
    return renamed


def _with_answered_calls(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages whose results know the call they answer: some formats name its tool in the result."""
    calls: dict[str, ToolCall] = {}

    def informed(part: Part) -> Part:
        return replace(part, answered_call=calls.get(part.call_id)) if isinstance(part, ToolResult) else part

    for message in messages:
        calls |= {call.id: call for call in message.calls}
        yield message.with_parts(tuple(map(informed, message.parts))) if message.results else message


def _nine_char_id(call_id: str) -> str:
    """Return an id of nine letters and digits, always the same for the same id."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():  # noqa: PLR2004
        return call_id
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which few conversions need

    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()[:8])
    return "".join(BASE62[number // 62**place % 62] for place in range(9))


def _with_noted_media(messages: Sequence[Message], conversion: Conversion) -> list[Message]:
    """Return messages, and note which of their media the encoder of the target replaces by a text."""
    for message in messages:
        inner = [item for result in message.results for item in result.content]
        for part in (*message.parts, *inner):
            if isinstance(part, Media) and not _is_carried(part, conversion.target):
                conversion.note(f"{part.kind} was left out: the target does not take it in this form")
    return list(messages)


def _is_carried(media: Media, target: str) -> bool:
    source = image_source(media)
    if target == "bedrock":
        return source is not None and source[0] != "url"
    if source is not None or pdf_data(media) is not None:
        return True
    if target.startswith("openai-responses"):
        return is_mapping(media.native) and media.native.get("type") in MEDIA_BLOCK_TYPES
    return target in {"openai-chat", "mistral"} and is_chat_media(media.native)


def _limit_images(messages: Sequence[Message], max_images: int, conversion: Conversion) -> list[Message]:
    """Return messages with the oldest images beyond `max_images` replaced by a text."""
    parts = [part for message in messages for part in message.parts]
    inner = [item for part in parts if isinstance(part, ToolResult) for item in part.content]
    excess = sum(isinstance(part, Media) for part in (*parts, *inner)) - max_images
    if excess <= 0:
        return list(messages)
    conversion.note(f"{excess} image(s) were left out: {conversion.target} accepts {max_images}")

    def limited(part: Part) -> Part:
        nonlocal excess
        if isinstance(part, Media) and excess > 0:
            excess -= 1
            return Text(f"[{part.kind} elided]", part.trust)
        if isinstance(part, ToolResult):
            content = map(limited, part.content)
            return replace(part, content=tuple(item for item in content if isinstance(item, Text | Media | Opaque)))
        return part

    return [message.with_parts(tuple(map(limited, message.parts))) for message in messages]
