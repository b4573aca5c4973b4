"""OpenAI Chat Completions, and compatible endpoints."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from holdfast.core.conversation.batching import ONE_RESULT_PER_MESSAGE
from holdfast.core.conversation.messages import (
    TRUST_OF_ROLE,
    Content,
    Media,
    Message,
    Opaque,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Trust,
    plain_message,
)
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD_BYTES, message_bytes, utf8_length
from holdfast.core.conversation.transcript import MessageMeasures
from holdfast.text import lazy_pattern
from holdfast.wire.json_reader import InputPath, extra_fields, is_list, is_mapping, replace_items
from holdfast.wire.media import (
    data_block_media,
    data_tokens,
    image_tokens,
    image_url,
    is_data_block,
    opaque_block,
    pdf_name,
    pdf_url,
)

OPENAI_CHAT_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""`function` is the older form of `tool`: it answers the `function_call` before it, without an id."""
_OUTPUT_ROLES = frozenset(name for name, role in OPENAI_CHAT_ROLES.items() if role == "tool")
_ALTERNATING_ROLES = ("user", "assistant")
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
OPAQUE_FIELDS = ("refusal", "audio", "function_call")
_FIELDS: Mapping[Role, frozenset[str]] = {
    "system": frozenset({"role", "content"}),
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "tool_calls", *REASONING_FIELDS, *OPAQUE_FIELDS}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
}
"""The fields that parts represent, by role; other fields are sent too, and counted as JSON."""
_BLOCK_FIELDS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "text"}),
    "refusal": frozenset({"type", "refusal"}),
    "image_url": frozenset({"type", "image_url"}),
    "input_audio": frozenset({"type", "input_audio"}),
    "file": frozenset({"type", "file"}),
}
_MEDIA_KINDS = frozenset({"image_url", "input_audio", "file"})
_CALL_FIELDS = frozenset({"id", "type", "function", "custom", "index"})
_FUNCTION_FIELDS = frozenset({"name", "arguments"})
_TOOL_NAME = lazy_pattern(r"[a-zA-Z0-9_-]{1,64}")
_PLAIN_FIELD_COUNT = 2
"""The number of fields of a message with only role and content."""


class OpenAIChat:
    """Reads and writes chat messages."""

    name = "openai-chat"
    batching = ONE_RESULT_PER_MESSAGE
    has_separate_system = False
    max_cache_marks: int | None = None
    max_text_chars: int | None = 1_048_576
    max_images = 500

    def measure(self, natives: Sequence[Any], start: int) -> MessageMeasures:
        measures = MessageMeasures([], [], [])
        sizes, prompts, systems = measures
        add, add_prompt, overhead = sizes.append, prompts.append, MESSAGE_OVERHEAD_BYTES
        for index, native in enumerate(natives, start):
            # This loop visits every message of a history, so it measures plain shapes in place. Any other shape is
            # decoded, which refuses it if it has to.
            try:
                role, content = native["role"], native["content"]
                size = overhead
                if type(content) is str:
                    size += len(content) if content.isascii() else utf8_length(content)
                elif content is not None:
                    size += message_bytes(self.decode({"role": role, "content": content}, index))
                if role == "assistant":
                    size += _measure_fields(native) if len(native) > _PLAIN_FIELD_COUNT else 0
                elif role == "user":
                    add_prompt(index)
                elif role in _OUTPUT_ROLES:
                    if type(native["tool_call_id"]) is not str:
                        self.decode(native, index)
                else:
                    (prompts if OPENAI_CHAT_ROLES[role] == "user" else systems).append(index)
            except (KeyError, TypeError, AttributeError):
                message = self.decode(native, index)
                size = message_bytes(message) + MESSAGE_OVERHEAD_BYTES
                if message.role in {"user", "system"}:
                    (prompts if message.role == "user" else systems).append(index)
            add(size)
        return measures

    def decode(self, native: object, index: int) -> Message:
        plain = cast("dict[str, object]", native)
        if type(plain) is dict and len(plain) == _PLAIN_FIELD_COUNT:
            # Most messages have only a text and a role of its own. They need none of what follows.
            role, text = plain.get("role"), plain.get("content")
            if type(text) is str and type(role) is str and text and role in _ALTERNATING_ROLES and text.isascii():
                return plain_message("user" if role == "user" else "assistant", text, plain)
        place = InputPath(index)
        native = place.require_message(native)
        role = place.require_role(native, OPENAI_CHAT_ROLES)
        native = place.sendable_message(native)
        spoken = _transcript(native) if role == "assistant" else ""
        native = _repair_message(native, role, place)
        content = place.decode_blocks(native.get("content"), TRUST_OF_ROLE[role], ".content", _block)
        parts: tuple[Part, ...] = content
        if native["role"] == "tool":
            parts = (ToolResult(place.optional_text(native, "tool_call_id"), content),)
        elif len(native) > 1 + ("content" in native):
            thinking = [Thinking(text, native=name) for name, text in _fields(native, REASONING_FIELDS, place)]
            others = [
                Text(spoken, "model", name) if spoken and name == "audio" else Opaque(name, text, "model", name)
                for name, text in _fields(native, OPAQUE_FIELDS, place)
            ]
            parts = (*thinking, *content, *others, *_calls(native, place))
        return Message(role, parts, native, parts, tuple(place.repair_notes), _extras(native, role))

    def encode(self, message: Message) -> Mapping[str, Any]:
        if message.is_unedited and message.native is not None:
            return message.native
        if message.results:
            return _encode_result(message, message.results[0])
        native = dict(message.native or {"role": message.role})
        keyed = {part.native for part in message.parts if isinstance(part.native, str)}
        for name in (*REASONING_FIELDS, *OPAQUE_FIELDS):
            if native.get(name) and name not in keyed:
                del native[name]
        calls = [_call_block(call) for call in message.calls]
        content = _content_json(message.parts, native.get("content"))
        if content is not None or "content" in native or not calls:
            native["content"] = content
        if calls:
            native["tool_calls"] = calls
        else:
            native.pop("tool_calls", None)
        return native


def with_call_ids(natives: Sequence[object]) -> list[object]:
    """Return messages with calls and outputs of the older form, which have no ids, in the form of tools."""
    renewed: list[object] = []
    call_id = ""
    for index, native in enumerate(natives):
        message: object = native
        if is_mapping(native) and is_mapping(native.get("function_call")):
            call_id = f"call_{index}"
            call = {"id": call_id, "type": "function", "function": native["function_call"]}
            kept = {name: value for name, value in native.items() if name != "function_call"}
            calls = native.get("tool_calls")
            message = {**kept, "tool_calls": [*(calls if is_list(calls) else ()), call]}
        elif is_mapping(native) and native.get("role") == "function":
            message = {"role": "tool", "tool_call_id": call_id, "content": native.get("content")}
        renewed.append(message)
    return renewed


def join_same_roles(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages of a request with neighbors of one role joined, as some servers and chat templates demand.

    After a compaction two messages of the user may follow each other: the summary and a prompt. Messages of OpenAI chat
    completions and of Anthropic can be joined. A message with tool calls is not continued, because results follow it.
    """
    joined: list[Mapping[str, Any]] = []
    for message in messages:
        last = joined[-1] if joined else {}
        role = message.get("role")
        if role in _ALTERNATING_ROLES and role == last.get("role") and not last.get("tool_calls"):
            joined[-1] = {**last, **message, "content": _joined_content(last.get("content"), message.get("content"))}
        else:
            joined.append(message)
    return joined


def _joined_content(first: object, second: object) -> object:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [
        block
        for content in (first, second)
        for block in (content if is_list(content) else [{"type": "text", "text": content}])
    ]


def _extras(native: Mapping[str, Any], role: Role) -> str:
    """Return everything that is sent but that no part represents, as JSON text."""
    extras = extra_fields(native, _FIELDS[role])
    if is_list(blocks := native.get("content")):
        extras += "".join(_block_extras(block) for block in blocks)
    if role == "assistant" and is_list(calls := native.get("tool_calls")):
        for call in calls:
            extras += extra_fields(call, _CALL_FIELDS)
            if is_mapping(function := call.get("function")):
                extras += extra_fields(function, _FUNCTION_FIELDS)
    return extras


def _block_extras(block: Mapping[str, Any]) -> str:
    known = None if is_data_block(block) else _BLOCK_FIELDS.get(str(block["type"]))
    return extra_fields(block, known)


def _measure_fields(native: Mapping[str, Any]) -> int:
    """Return the size of an assistant message's other fields; raises if they are not plain."""
    size = 0
    for call in native.get("tool_calls") or ():
        function = call["function"]
        arguments = function["arguments"]
        if type(arguments) is not str or type(function["name"]) is not str:
            raise TypeError
        size += len(arguments)
    if len(native) > _PLAIN_FIELD_COUNT + ("tool_calls" in native):
        size += sum(len("" + (native.get(name) or "")) for name in REASONING_FIELDS[:2])
    return size


def _transcript(native: Mapping[str, Any]) -> str:
    """Return the words of a spoken answer; empty if it has none."""
    text = audio.get("transcript") if is_mapping(audio := native.get("audio")) else None
    return text if isinstance(text, str) else ""


def _repair_message(native: Mapping[str, Any], role: Role, place: InputPath) -> Mapping[str, Any]:
    """Return a message that the provider accepts, with a note for each repair."""
    if role == "assistant" and is_mapping(audio := native.get("audio")) and "id" in audio and len(audio) > 1:
        # A spoken answer comes with its sound and its words, and is sent back by its id.
        place.repair_notes.append("left out all but the id of a spoken answer")
        native = {**native, "audio": {"id": audio["id"]}}
    if role == "tool" and native.get("content") is None:
        place.repair_notes.append("added empty content to a tool message without content")
        native = {**native, "content": ""}
    elif native.get("content") == [] and (role == "tool" or any(map(native.get, ("tool_calls", *OPAQUE_FIELDS)))):
        place.repair_notes.append("replaced an empty list of content")
        native = {**native, "content": "" if role == "tool" else None}
    if is_list(blocks := native.get("content")):
        native = replace_items(native, "content", [_repair_image(block, place) for block in blocks])
    if role == "tool" and (renamed := place.repair_name(native.get("name"), _TOOL_NAME)):
        native = {**native, **renamed}
    if "tool_calls" not in native:
        return native
    calls = native["tool_calls"]
    if calls == [] or role != "assistant":
        place.repair_notes.append("left out a list of tool calls that was empty or not the assistant's")
        return {key: value for key, value in native.items() if key != "tool_calls"}
    if not is_list(calls):
        return native
    repaired = [_repair_call(call, place, f".tool_calls[{number}]") for number, call in enumerate(calls)]
    return replace_items(native, "tool_calls", repaired)


def _repair_image(block: Any, place: InputPath) -> Any:
    if not (is_mapping(block) and block.get("type") == "image_url"):
        return block
    image = block.get("image_url")
    address = image.get("url") if is_mapping(image) else image
    if not isinstance(address, str) or not address:
        place.repair_notes.append("replaced an image without an address")
        return {"type": "text", "text": "[image without an address]"}
    if image is not address:
        return block
    place.repair_notes.append("wrote the address of an image as an object")
    return {**block, "image_url": {"url": address}}


def _repair_call(call: Any, place: InputPath, path: str) -> Any:
    custom = call.get("custom") if is_mapping(call) and call.get("type") == "custom" else None
    if is_mapping(custom):
        if custom.get("name") != "":
            return call
        place.repair_notes.append("added a missing name to a call")
        return {**call, "custom": {**custom, "name": "tool"}}
    function = call.get("function") if is_mapping(call) else None
    if not is_mapping(function):
        return call
    if call.get("type") is None:
        place.repair_notes.append("added a missing type to a call")
        call = {**call, "type": "function"}
    changes = place.repair_text_call(function, "arguments", f"{path}.function", _TOOL_NAME)
    return {**call, "function": {**function, **changes}} if changes else call


def _block(block: Mapping[str, Any], kind: str, trust: Trust, place: InputPath, path: str) -> Content:
    if kind == "text":
        return Text(place.require_text(block.get("text"), f"{path}.text"), trust, block)
    if kind == "refusal":
        return Opaque(kind, place.require_text(block.get("refusal"), f"{path}.refusal"), trust, block)
    if kind == "image_url":
        image = block.get("image_url")
        return Media("image", trust, image_tokens(image.get("detail") if is_mapping(image) else None), block)
    if kind == "input_audio" and is_mapping(audio := block.get("input_audio")):
        return Media("audio", trust, data_tokens(audio.get("data")), block)
    if kind == "file" and is_mapping(file := block.get("file")):
        return Media("document", trust, data_tokens(file.get("file_data")), block)
    if is_data_block(block):
        return data_block_media(block, trust)
    return opaque_block(kind, block, trust, place, path)


def _fields(native: Mapping[str, Any], names: Sequence[str], place: InputPath) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each field that is not empty."""
    for name in names:
        if value := native.get(name):
            if name in OPAQUE_FIELDS:
                yield name, place.text_or_json(value, f".{name}")
            else:
                read = place.json_text if name == "reasoning_details" else place.require_text
                yield name, read(value, f".{name}")


def _calls(native: Mapping[str, Any], place: InputPath) -> list[ToolCall]:
    value = native.get("tool_calls")
    if value is None:
        return []
    if not is_list(value):
        place.fail(".tool_calls", f"must be a list, not {type(value).__name__}")
    return [_call(call, place, f".tool_calls[{number}]") for number, call in enumerate(value)]


def _call(value: object, place: InputPath, path: str) -> ToolCall:
    call = place.require_mapping(value, path)
    call_id = place.optional_text(call, "id", path)
    if call.get("type") == "custom" and is_mapping(custom := call.get("custom")):
        name = place.require_text(custom.get("name"), f"{path}.custom.name")
        arguments = place.require_text(custom.get("input"), f"{path}.custom.input")
    else:
        function = place.require_mapping(call.get("function"), f"{path}.function", "an object with name and arguments")
        name = place.require_text(function.get("name"), f"{path}.function.name")
        arguments = place.require_text(function.get("arguments"), f"{path}.function.arguments")
    return ToolCall(call_id, name, arguments, native=call)


def _encode_result(message: Message, result: ToolResult) -> Mapping[str, Any]:
    native = {**(message.native or {"role": "tool"}), "tool_call_id": result.call_id}
    if message.native is None or result.is_edited:
        native["content"] = _content_json(result.content, native.get("content")) or ""
    return native


def _content_json(parts: tuple[Part, ...] | tuple[Content, ...], original: object) -> object:
    """Return content as a string if it was one or can be one, else as a list of blocks."""
    inline = [part for part in parts if isinstance(part, Text | Media | Opaque) and not isinstance(part.native, str)]
    if not inline and not original:
        return original
    if not isinstance(original, list | tuple) and all(
        isinstance(part, Text) and part.native is None for part in inline
    ):
        return "\n".join(part.text for part in inline if isinstance(part, Text)) or None
    return [_content_block(part) for part in inline]


def _content_block(part: Content) -> Mapping[str, Any]:
    if isinstance(part, Text):
        block = part.native if is_mapping(part.native) else {"type": "text"}
        return {**block, "text": part.text} if part.is_edited or not block.get("text") else block
    if isinstance(part, Media) and not is_chat_media(part.native):
        if (pdf := pdf_url(part)) is not None:
            return {"type": "file", "file": {"filename": pdf_name(part), "file_data": pdf}}
        url = image_url(part)
        if url is None:
            return {"type": "text", "text": f"[{part.kind} not carried over]"}
        return {"type": "image_url", "image_url": {"url": url}}
    return part.native if is_mapping(part.native) else {"type": "text", "text": f"[{part.kind}]"}


def is_chat_media(block: object) -> bool:
    """Return whether a block is an image, a sound or a file in the form of chat messages, or in LangChain's own."""
    return is_mapping(block) and (block.get("type") in _MEDIA_KINDS or is_data_block(block))


def _call_block(call: ToolCall) -> Mapping[str, Any]:
    block: Mapping[str, Any] = call.native if is_mapping(call.native) else {"type": "function"}
    if call.native is not None and not call.is_edited and ("function" in block or "custom" in block):
        return block
    if block.get("type") == "custom" and is_mapping(custom := block.get("custom")):
        return {**block, "id": call.id, "custom": {**custom, "input": call.arguments}}
    function = block["function"] if is_mapping(block.get("function")) else {"name": call.name}
    return {**block, "id": call.id, "function": {**function, "arguments": call.arguments}}
