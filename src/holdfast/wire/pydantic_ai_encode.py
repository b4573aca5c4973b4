"""Parts of pydantic-ai's requests and responses, written: the part each was read from, changed only where edited.

What is made up here is as short as pydantic-ai lets it be: it fills in the rest when it reads it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.core.conversation.json_values import parse_json
from holdfast.core.conversation.messages import (
    Content,
    Media,
    Message,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from holdfast.wire.json_reader import InputPath, is_list, is_mapping, replace_items
from holdfast.wire.media import PromptPiece, image_source
from holdfast.wire.pydantic_ai_decode import is_not_decoded, result_content

SYNTHESIZED_RETURN = {"pydantic_ai_synthesized_tool_return": True}
"""How pydantic-ai itself marks a result that no tool gave."""


def encode_request(message: Message) -> Mapping[str, Any]:
    """Return what is said to the model as JSON; what nobody sees stays where it was."""
    native: Mapping[str, Any] = message.native or {"kind": "request"}
    was: list[Mapping[str, Any]] = list(native.get("parts", ()))
    places: dict[int, list[int]] = {}
    for number in reversed(range(len(was))):
        # One object may stand in a list more than once.
        places.setdefault(id(was[number]), []).append(number)
    hidden = [(number, part) for number, part in enumerate(was) if is_not_decoded(part)]
    parts: list[Mapping[str, Any]] = []
    for origin, written in _request_parts(message):
        stood = places.get(id(origin))
        place = stood.pop() if stood else -1
        while hidden and hidden[0][0] < place:
            parts.append(hidden.pop(0)[1])
        parts.append(written)
    return {**native, "parts": [*parts, *(part for _, part in hidden)]}


def encode_response(message: Message) -> Mapping[str, Any]:
    """Return what the model said as JSON."""
    native: Mapping[str, Any] = message.native or {"kind": "response"}
    return {**native, "parts": [_response_part(part) for part in message.parts]}


# What is said to the model.


def _request_parts(message: Message) -> Iterator[tuple[object, Mapping[str, Any]]]:
    """Yield parts, the pieces of one prompt together, each with what it was read from."""
    parent: Mapping[str, Any] | None = None
    items: list[Any] = []
    for part in message.parts:
        if isinstance(part.native, PromptPiece):
            if parent is not None and (part.native.is_first or part.native.part is not parent):
                yield parent, _prompt(parent, items)
                items = []
            parent = part.native.part
            items += _items(part, part.native)
        elif parent is not None and part.native is None and isinstance(part, Text):
            # A word in the place of a piece, such as an image that was elided.
            items.append(part.text)
        else:
            if parent is not None:
                yield parent, _prompt(parent, items)
                parent, items = None, []
            yield part.native, _request_part(part, message)
    if parent is not None:
        yield parent, _prompt(parent, items)


def _prompt(parent: Mapping[str, Any], items: list[Any]) -> Mapping[str, Any]:
    return replace_items(parent, "content", items)


def _items(part: Part, piece: PromptPiece) -> Iterable[Any]:
    if not isinstance(part, Text) or not part.is_edited:
        return piece.items
    spoken = piece.items[piece.item_index]
    said = {**spoken, "content": part.text} if is_mapping(spoken) else part.text
    return (*piece.items[: piece.item_index], said, *piece.items[piece.item_index + 1 :])


def _request_part(part: Part, message: Message) -> Mapping[str, Any]:
    if isinstance(part, ToolResult):
        return _result(part)
    if isinstance(part, Text):
        return _text(part, message)
    if is_mapping(part.native) and "part_kind" in part.native:
        return part.native
    if isinstance(part, Media):
        return {"part_kind": "user-prompt", "content": [_media(part)]}
    return {"part_kind": "user-prompt", "content": part.text if isinstance(part, Opaque | Thinking) else ""}


def _text(part: Text, message: Message) -> Mapping[str, Any]:
    if is_mapping(part.native):
        return _with_new_text(part, part.native) if part.is_edited else part.native
    if message.role == "system":
        return {"part_kind": "system-prompt", "content": part.text}
    if part.trust == "summary" and message.native is None:
        return {"part_kind": "compaction", "content": part.text}
    return {"part_kind": "user-prompt", "content": part.text}


def _with_new_text(part: Text, native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part with other words; what a provider has under its own name for it does not hold any more."""
    unnamed = {**native, "id": None} if native.get("id") else native
    return {**unnamed, ("transcript" if native.get("part_kind") == "speech" else "content"): part.text}


def _result(result: ToolResult) -> Mapping[str, Any]:
    part = result.native if is_mapping(result.native) and "part_kind" in result.native else None
    if part is None:
        return _new_result(result)
    if not result.is_edited:
        return part
    edited = {**part, "tool_call_id": result.call_id}
    return edited if _is_same_content(result, part) else {**edited, "content": _content(result, part)}


def _new_result(result: ToolResult) -> Mapping[str, Any]:
    made: dict[str, Any] = {
        "part_kind": "tool-return",
        "tool_name": (result.answered_call.name if result.answered_call else "") or "tool",
        "tool_call_id": result.call_id,
        "content": _content(result, {}),
    }
    if result.answered_call is not None and result.is_error:
        return {**made, "outcome": "interrupted", "metadata": SYNTHESIZED_RETURN}
    return {**made, "outcome": "failed"} if result.is_error else made


def _is_same_content(result: ToolResult, part: Mapping[str, Any]) -> bool:
    is_edited = any(isinstance(item, Text) and item.is_edited for item in result.content)
    return not is_edited and len(result.content) == len(result_content(part, InputPath("result")))


def _content(result: ToolResult, part: Mapping[str, Any]) -> Any:
    items = [_content_item(item) for item in result.content]
    if len(items) == 1 and not is_list(part.get("content")):
        return items[0]
    if all(isinstance(item, str) for item in items):
        return "\n".join(items)
    return items


def _content_item(item: Content) -> Any:
    if isinstance(item, Media):
        return _media(item)
    if isinstance(item, Text) and (item.is_edited or item.native is None):
        return item.text
    return item.native if item.native is not None else item.text


def _media(media: Media) -> Any:
    """Return a file as an item of a prompt or a result."""
    if is_mapping(media.native) and "kind" in media.native:
        return media.native
    source = image_source(media)
    if source is None:
        return f"[{media.kind} not carried over]"
    kind, data = source
    if kind == "url":
        return {"kind": "image-url", "url": data}
    return {"kind": "binary", "media_type": kind, "data": data.replace("+", "-").replace("/", "_")}


# What the model says.


def _response_part(part: Part) -> Mapping[str, Any]:
    native = part.native if is_mapping(part.native) and "part_kind" in part.native else None
    if isinstance(part, ToolCall):
        return _call(part, native)
    if isinstance(part, Text):
        if native is None:
            return {"part_kind": "text", "content": part.text}
        return _with_new_text(part, native) if part.is_edited else native
    if native is not None:
        return native
    if isinstance(part, Thinking):
        return {"part_kind": "thinking", "content": part.text}
    words = (
        part.text if isinstance(part, Opaque) else f"[{part.kind} not carried over]" if isinstance(part, Media) else ""
    )
    return {"part_kind": "text", "content": words}


def _call(call: ToolCall, native: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if native is not None and not call.is_edited:
        return native
    part = {**native, "id": None} if native and native.get("id") else native or {"part_kind": "tool-call"}
    edited = {**part, "tool_name": call.name or "tool", "tool_call_id": call.id}
    was = native.get("args") if native else ""
    return {**edited, "args": call.arguments if isinstance(was, str) else encode_arguments(call.arguments)}


def encode_arguments(text: str) -> Any:
    """Return arguments as an object where they are one, else as they are: pydantic-ai takes both."""
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return value if is_mapping(value) else text
