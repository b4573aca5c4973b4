"""Requests and responses of pydantic-ai, as its `ModelMessagesTypeAdapter` dumps them.

A response comes from the model; a request holds prompts, the results of a whole batch, and system text. A request
that starts with system text and continues with something else is two elements here, because the first always stays and
the second may be compacted; see `split_system_text`. Instructions, times and run ids are stored but not sent with
a message, so no part represents them. Some parts only record state, such as the available tools. They must not be
edited, and they do not turn a request into a prompt, so they are not decoded either. New parts hold only the fields
that pydantic-ai requires; it fills in the rest when it loads them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.conversation.batching import RESULTS_IN_ONE_REQUEST
from holdfast.core.conversation.json_values import dump_json, parse_json
from holdfast.core.conversation.messages import (
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
)
from holdfast.core.conversation.pairing import MADE_RESULTS
from holdfast.core.conversation.tokens import utf8_length
from holdfast.core.conversation.transcript import MessageMeasures
from holdfast.wire.equivalence import essential_value
from holdfast.wire.json_reader import (
    InputPath,
    is_list,
    is_mapping,
    json_type_name,
    measure_messages,
    preview_value,
    replace_items,
)
from holdfast.wire.media import PDF_TYPE, PromptPiece, data_tokens, image_source, image_tokens, opaque_block, pdf_data

PYDANTIC_AI_FORMAT_NAME = "pydantic-ai"
MESSAGE_KINDS = frozenset({"request", "response"})
STATE_PART_KINDS = frozenset({
    "instruction-baseline", "instruction-delta", "tool-availability-delta", "capability-load-delta",
    "model-settings-delta",
})  # fmt: skip
"""Parts that record state."""
SENT_STATE_PART_KINDS = frozenset({"instruction-delta", "tool-availability-delta"})
"""Those of them that may be sent to a model."""
FILE_KINDS = frozenset({"image-url", "audio-url", "document-url", "video-url", "binary", "uploaded-file"})
FAILED_OUTCOMES = frozenset({"failed", "retried"})
_RESPONSE_PART_KINDS = frozenset({"text", "thinking", "tool-call", "builtin-tool-call", "builtin-tool-return", "file"})
_REQUEST_PART_KINDS = frozenset({"system-prompt", "user-prompt", "tool-return", "retry-prompt", "retry-feedback"})
SYNTHESIZED_RETURN = {"pydantic_ai_synthesized_tool_return": True}
"""How pydantic-ai itself marks a result that no tool returned."""
_ROLES: Mapping[str, Role] = {"request": "user", "response": "assistant"}
_CANONICAL_FIELDS = ("part_kind", "content", "tool_name", "tool_call_id", "args", "transcript", "file_id")


class PydanticAI:
    """Reads and writes pydantic-ai messages."""

    name = PYDANTIC_AI_FORMAT_NAME
    batching = RESULTS_IN_ONE_REQUEST
    has_separate_system = True
    max_cache_marks: int | None = None
    max_text_chars: int | None = None
    max_images = 100

    def measure(self, natives: Sequence[Any], start: int) -> MessageMeasures:
        return measure_messages(natives, start, _measure_message, self.decode)

    def decode(self, native: object, index: int) -> Message:
        place = InputPath(index)
        hint = "dump them with ModelMessagesTypeAdapter.dump_python(mode='json') first"
        native = place.require_message(native, hint)
        kind = native.get("kind")
        if not isinstance(kind, str) or kind not in MESSAGE_KINDS:
            place.fail(".kind", f"{preview_value(kind)} is not a kind of message; use 'request' or 'response'")
        if not is_list(native.get("parts")):
            place.fail(".parts", f"must be a list of parts, not {json_type_name(native.get('parts'))}")
        native = _drop_foreign_parts(place.sendable_message(native), place)
        found: list[Part] = []
        for number, part in enumerate(native["parts"]):
            if not is_not_decoded(part):
                decode_part = _request_part if kind == "request" else _response_part
                found += decode_part(part, place, f".parts[{number}]")
        is_system = kind == "request" and native["parts"] and all(map(is_permanent_system, native["parts"]))
        # State parts may be sent to a model although no part of ours represents them.
        sent = [part for part in native["parts"] if part.get("part_kind") in SENT_STATE_PART_KINDS]
        extras = json.dumps(sent, ensure_ascii=False) if sent else ""
        parts = tuple(found)
        return Message("system" if is_system else _ROLES[kind], parts, native, parts, tuple(place.repair_notes), extras)

    def encode(self, message: Message) -> Mapping[str, Any]:
        if message.is_unedited and message.native is not None:
            return message.native
        if message.role != "assistant":
            return _encode_request(message)
        return {**(message.native or {"kind": "response"}), "parts": [*map(_encode_response_part, message.parts)]}


def _measure_message(native: Any) -> tuple[Role, int, bool]:
    """Return the role and size of a plain message, and whether it holds a prompt; raises if it is not plain."""
    role, size, is_prompt = _ROLES[native["kind"]], 0, False
    for part in native["parts"]:
        kind = part["part_kind"]
        if kind not in {"user-prompt", "text", "tool-return"} or not isinstance(part["content"], str):
            raise ValueError(kind)
        size += utf8_length(part["content"])
        is_prompt = is_prompt or (kind == "user-prompt" and not part["content"].isspace())
    return role, size, is_prompt


def is_pydantic_ai_message(value: object) -> bool:
    """Return whether a value is a request or a response."""
    return is_mapping(value) and value.get("kind") in MESSAGE_KINDS and is_list(value.get("parts"))


def split_messages(natives: Sequence[object]) -> tuple[list[object], list[int]]:
    """Return the elements of a history, and the index of the message that each comes from."""
    elements, indices = list[object](), list[int]()
    for index, native in enumerate(natives):
        pieces = split_system_text(native) if is_mapping(native) else [native]
        elements += pieces
        indices += [index] * len(pieces)
    return elements, indices


def split_system_text(native: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the elements of one message: itself, or its leading system text and the rest."""
    parts: Any = native.get("parts") if native.get("kind") == "request" else None
    if not is_list(parts):
        return [native]
    count = next((number for number, part in enumerate(parts) if not is_permanent_system(part)), len(parts))
    if not 0 < count < len(parts):
        return [native]
    return [{**native, "parts": list(parts[:count])}, {**native, "parts": list(parts[count:])}]


def canonical_form(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a message says, without times, ids and other metadata."""
    return {
        "kind": native["kind"],
        "parts": [_canonical_part(part) for part in native["parts"] if not is_not_decoded(part)],
    }


def _canonical_part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    if part.get("dynamic_ref") is not None:
        # System text that is generated for every run counts as the same text, whatever it says this time.
        return {"dynamic_ref": part["dynamic_ref"]}
    fields = {key: part[key] for key in _CANONICAL_FIELDS if part.get(key) is not None}
    if isinstance(fields.get("args"), str):
        # The arguments of one call may come as text or as an object.
        fields["args"] = encode_arguments(fields["args"])
    if part.get("part_kind") == "tool-call":
        fields["args"] = essential_value(fields.get("args") or {})
    return fields


def is_permanent_system(part: object) -> bool:
    """Return whether a part is system text that stays for the whole conversation."""
    return is_mapping(part) and part.get("part_kind") == "system-prompt" and part.get("scope") != "request"


def is_not_decoded(part: Mapping[str, Any]) -> bool:
    """Return whether no part of ours represents it."""
    kind, content = part.get("part_kind"), part.get("content")
    if kind == "user-prompt":
        return is_list(content) and all(map(_is_marker, content))
    return kind in STATE_PART_KINDS or (
        kind == "compaction" and content is None and part.get("provider_details") is None
    )


def _drop_foreign_parts(native: Mapping[str, Any], place: InputPath) -> Mapping[str, Any]:
    """Return a message without parts of the other side, which pydantic-ai itself refuses to load."""
    foreign_kinds = _RESPONSE_PART_KINDS if native["kind"] == "request" else _REQUEST_PART_KINDS
    kept: list[Mapping[str, Any]] = []
    for number, value in enumerate(native["parts"]):
        part = place.require_mapping(value, f".parts[{number}]", "an object with a part_kind")
        kind = place.require_text(part.get("part_kind"), f".parts[{number}].part_kind")
        if kind in foreign_kinds:
            place.repair_notes.append(f"left out a part of the kind {kind} in a {native['kind']}")
        else:
            kept.append(part)
    return native if len(kept) == len(native["parts"]) else {**native, "parts": kept}


def _request_part(part: Mapping[str, Any], place: InputPath, path: str) -> list[Part]:
    kind, content = part["part_kind"], part.get("content")
    if kind == "user-prompt":
        return _prompt(part, place, path)
    if kind == "system-prompt":
        return [Text(place.require_text(content, f"{path}.content"), "system", part)]
    if kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name")):
        call_id = place.require_text(part.get("tool_call_id") or "", f"{path}.tool_call_id")
        is_error = kind == "retry-prompt" or str(part.get("outcome")) in FAILED_OUTCOMES
        return [ToolResult(call_id, _result_content(part, place, path), is_error, native=part)]
    if kind in {"retry-prompt", "retry-feedback"}:
        return [Text(_retry_text(content, place, f"{path}.content"), "system", part)]
    if kind == "compaction" and isinstance(content, str):
        return [Text(content, "summary", part)]
    if kind == "speech":
        return [_speech(part, "user")]
    return [Opaque(kind, place.json_text(part, path), "user", part)]


def _prompt(part: Mapping[str, Any], place: InputPath, path: str) -> list[Part]:
    content = part.get("content")
    if isinstance(content, str):
        return [Text(content, "user", part)]
    if not is_list(content):
        place.fail(f"{path}.content", f"must be a string or a list, not {json_type_name(content)}")
    visible = [number for number, item in enumerate(content) if not _is_marker(item)]
    edges = [0, *visible[1:], len(content)]
    found: list[Part] = []
    for number, start, stop in zip(visible, edges[:-1], edges[1:], strict=True):
        piece = PromptPiece(part, tuple(content[start:stop]), number - start, is_first=start == 0)
        found.append(_item(content[number], piece, place, f"{path}.content[{number}]"))
    return found


def _is_marker(item: object) -> bool:
    return is_mapping(item) and item.get("kind") == "cache-point"


def _item(item: object, piece: PromptPiece, place: InputPath, path: str) -> Content:
    if isinstance(item, str):
        return Text(item, "user", piece)
    value = place.require_mapping(item, path, "a string or an object with a kind")
    kind = place.require_text(value.get("kind"), f"{path}.kind")
    if kind in FILE_KINDS:
        return _media(value, "user", piece)
    if isinstance(value.get("content"), str):
        return Text(value["content"], "user", piece)
    return Opaque(kind, place.json_text(value, path), "user", piece)


def _media(value: Mapping[str, Any], trust: Trust, native: object) -> Media:
    kind, media_type = str(value.get("kind")), str(value.get("media_type") or "")
    if kind == "image-url" or media_type.startswith("image/"):
        metadata = value.get("vendor_metadata")
        return Media("image", trust, image_tokens(metadata.get("detail") if is_mapping(metadata) else None), native)
    is_audio = kind == "audio-url" or media_type.startswith("audio/")
    return Media("audio" if is_audio else "document", trust, data_tokens(value.get("data")), native)


def _result_content(part: Mapping[str, Any], place: InputPath, path: str = "") -> tuple[Content, ...]:
    """Return the result of a tool: text, or JSON as text, and files."""
    content = part.get("content")
    if part["part_kind"] == "retry-prompt":
        return (Text(_retry_text(content, place, f"{path}.content"), "tool"),)
    if part.get("tool_kind") is not None and not isinstance(content, str):
        # pydantic-ai parses the results of such tools again, so they have to keep their shape.
        return (Opaque(str(part["tool_kind"]), place.json_text(content, f"{path}.content"), "tool", content),)
    # A tool may return an object that only looks like a file; then pydantic-ai recorded no digest for it.
    are_files = part.get("content_file_digests") != []
    if is_mapping(content) and _is_file(content, are_files=are_files):
        return (_media(content, "tool", content),)
    if is_list(content) and any(_is_file(item, are_files=are_files) for item in content):
        return tuple(
            _media(item, "tool", item)
            if _is_file(item, are_files=are_files)
            else Text(place.text_or_json(item, f"{path}.content[{number}]"), "tool", item or None)
            for number, item in enumerate(content)
        )
    return (Text(place.text_or_json(content, f"{path}.content"), "tool"),)


def _is_file(value: Any, *, are_files: bool) -> bool:
    # A tool returns what it likes, also objects with something else than a text as their kind.
    kind = value.get("kind") if is_mapping(value) else None
    return kind == "binary" or (are_files and isinstance(kind, str) and kind in FILE_KINDS)


def _retry_text(content: object, place: InputPath, path: str) -> str:
    return content if isinstance(content, str) else f"validation errors: {place.json_text(content, path)}"


def _speech(part: Mapping[str, Any], trust: Trust) -> Part:
    if is_mapping(part.get("audio")):
        return Media("audio", trust, data_tokens(part["audio"].get("data")), part)
    return Text(str(part.get("transcript") or ""), trust, part)


def _response_part(part: Mapping[str, Any], place: InputPath, path: str) -> list[Part]:
    kind, content = part["part_kind"], part.get("content")
    if kind == "text":
        return [Text(place.require_text(content, f"{path}.content"), "model", part)]
    if kind == "thinking":
        signature = part.get("signature")
        text = place.require_text(content or "", f"{path}.content")
        return [Thinking(text, signature if isinstance(signature, str) else None, native=part)]
    if kind == "tool-call":
        return [_call(part, place, path)]
    if kind == "speech":
        return [_speech(part, "model")]
    if kind == "file" and is_mapping(content):
        return [_media(content, "model", part)]
    names = ("tool_name", "args", "content", "provider_details")
    fields = {name: part[name] for name in names if part.get(name) is not None}
    trust: Trust = "tool" if kind == "builtin-tool-return" else "summary" if kind == "compaction" else "model"
    return [replace(opaque_block(kind, fields or part, trust, place, path), native=part)]


def _call(part: Mapping[str, Any], place: InputPath, path: str) -> ToolCall:
    arguments = part.get("args")
    if not isinstance(arguments, str):
        # pydantic-ai sends them like this.
        arguments = dump_json(place.sendable_value(arguments, f"{path}.args")) if arguments else "{}"
    name = place.require_text(part.get("tool_name") or "", f"{path}.tool_name")
    call_id = place.require_text(part.get("tool_call_id") or "", f"{path}.tool_call_id")
    return ToolCall(call_id, name, arguments or "{}", native=part)


def _encode_request(message: Message) -> Mapping[str, Any]:
    """Return a request as JSON; parts that are not decoded stay where they were."""
    native: Mapping[str, Any] = message.native or {"kind": "request"}
    originals: list[Mapping[str, Any]] = list(native.get("parts", ()))
    indices: dict[int, list[int]] = {}
    for index in reversed(range(len(originals))):
        # A list may hold one object more than once.
        indices.setdefault(id(originals[index]), []).append(index)
    hidden = [(index, part) for index, part in enumerate(originals) if is_not_decoded(part)]
    parts: list[Mapping[str, Any]] = []
    for origin, encoded in _encode_request_parts(message):
        left = indices.get(id(origin))
        index = left.pop() if left else -1
        while hidden and hidden[0][0] < index:
            parts.append(hidden.pop(0)[1])
        parts.append(encoded)
    return {**native, "parts": [*parts, *(part for _, part in hidden)]}


def _encode_request_parts(message: Message) -> Iterator[tuple[object, Mapping[str, Any]]]:
    """Yield each encoded part and its origin; the items of one prompt are one part."""
    parent: Mapping[str, Any] | None = None
    items: list[Any] = []
    for part in message.parts:
        if isinstance(part.native, PromptPiece):
            if parent is not None and (part.native.is_first or part.native.part is not parent):
                yield parent, replace_items(parent, "content", items)
                items = []
            parent = part.native.part
            items += _items(part, part.native)
        elif parent is not None and part.native is None and isinstance(part, Text):
            # A text that replaces an item, such as an image that was left out.
            items.append(part.text)
        else:
            if parent is not None:
                yield parent, replace_items(parent, "content", items)
                parent, items = None, []
            yield part.native, _encode_request_part(part, message)
    if parent is not None:
        yield parent, replace_items(parent, "content", items)


def _items(part: Part, piece: PromptPiece) -> Iterable[Any]:
    if not isinstance(part, Text) or not part.is_edited:
        return piece.items
    original = piece.items[piece.item_index]
    item = {**original, "content": part.text} if is_mapping(original) else part.text
    return (*piece.items[: piece.item_index], item, *piece.items[piece.item_index + 1 :])


def _encode_request_part(part: Part, message: Message) -> Mapping[str, Any]:
    if isinstance(part, ToolResult):
        return _encode_result(part)
    if isinstance(part, Text):
        return _encode_text(part, message)
    if is_mapping(part.native) and "part_kind" in part.native:
        return part.native
    if isinstance(part, Media):
        return {"part_kind": "user-prompt", "content": [_encode_media(part)]}
    return {"part_kind": "user-prompt", "content": part.text if isinstance(part, Opaque | Thinking) else ""}


def _encode_text(part: Text, message: Message) -> Mapping[str, Any]:
    if is_mapping(part.native):
        return _with_new_text(part, part.native) if part.is_edited else part.native
    if message.role == "system":
        return {"part_kind": "system-prompt", "content": part.text}
    if part.trust == "summary" and message.native is None:
        return {"part_kind": "compaction", "content": part.text}
    return {"part_kind": "user-prompt", "content": part.text}


def _with_new_text(part: Text, native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part with new text, without the provider's id: the provider stored the old text under it."""
    unnamed = {**native, "id": None} if native.get("id") else native
    return {**unnamed, ("transcript" if native.get("part_kind") == "speech" else "content"): part.text}


def _encode_result(result: ToolResult) -> Mapping[str, Any]:
    part = result.native if is_mapping(result.native) and "part_kind" in result.native else None
    if part is None:
        return _new_result(result)
    if not result.is_edited:
        return part
    edited = {**part, "tool_call_id": result.call_id}
    is_same_text = not any(isinstance(item, Text) and item.is_edited for item in result.content)
    if is_same_text and len(result.content) == len(_result_content(part, InputPath("result"))):
        return edited
    return {**edited, "content": _encode_content(result, part)}


def _new_result(result: ToolResult) -> Mapping[str, Any]:
    part: dict[str, Any] = {
        "part_kind": "tool-return",
        "tool_name": (result.answered_call.name if result.answered_call else "") or "tool",
        "tool_call_id": result.call_id,
        "content": _encode_content(result, {}),
    }
    if result.is_error and result.text in MADE_RESULTS:
        return {**part, "outcome": "interrupted", "metadata": SYNTHESIZED_RETURN}
    return {**part, "outcome": "failed"} if result.is_error else part


def _encode_content(result: ToolResult, part: Mapping[str, Any]) -> Any:
    items = [_content_item(item) for item in result.content]
    if len(items) == 1 and not is_list(part.get("content")):
        return items[0]
    if all(isinstance(item, str) for item in items):
        return "\n".join(items)
    return items


def _content_item(item: Content) -> Any:
    if isinstance(item, Media):
        return _encode_media(item)
    if isinstance(item, Text) and (item.is_edited or item.native is None):
        return item.text
    return item.native if item.native is not None else item.text


def _encode_media(media: Media) -> Any:
    """Return a file as an item of a prompt or a result."""
    if is_mapping(media.native) and "kind" in media.native:
        return media.native
    pdf = pdf_data(media)
    source = image_source(media) if pdf is None else (PDF_TYPE, pdf)
    if source is None:
        return f"[{media.kind} not carried over]"
    kind, data = source
    if kind == "url":
        return {"kind": "image-url", "url": data}
    return {"kind": "binary", "media_type": kind, "data": data.replace("+", "-").replace("/", "_")}


def _encode_response_part(part: Part) -> Mapping[str, Any]:
    native = part.native if is_mapping(part.native) and "part_kind" in part.native else None
    if isinstance(part, ToolCall):
        return _encode_call(part, native)
    if isinstance(part, Text):
        if native is None:
            return {"part_kind": "text", "content": part.text}
        return _with_new_text(part, native) if part.is_edited else native
    if native is not None:
        return native
    if isinstance(part, Thinking):
        return {"part_kind": "thinking", "content": part.text}
    if isinstance(part, Media):
        return {"part_kind": "text", "content": f"[{part.kind} not carried over]"}
    return {"part_kind": "text", "content": part.text if isinstance(part, Opaque) else ""}


def _encode_call(call: ToolCall, native: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if native is not None and not call.is_edited:
        return native
    part = {**native, "id": None} if native and native.get("id") else native or {"part_kind": "tool-call"}
    edited = {**part, "tool_name": call.name or "tool", "tool_call_id": call.id}
    original = native.get("args") if native else ""
    return {**edited, "args": call.arguments if isinstance(original, str) else encode_arguments(call.arguments)}


def encode_arguments(text: str) -> Any:
    """Return arguments as an object if they are one, else as text: pydantic-ai accepts both."""
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return value if is_mapping(value) else text
