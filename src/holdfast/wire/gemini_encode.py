"""Encodes the parts of Gemini turns: the original part, changed only where it was edited."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.core.conversation.batching import is_id_from_name
from holdfast.core.conversation.messages import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.wire.anthropic import arguments_object
from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.media import image_source


def encode_parts(parts: Iterable[Part]) -> list[Mapping[str, Any]]:
    """Return parts as JSON."""
    return [encoded for part in parts for encoded in _part(part)]


def _part(part: Part) -> Iterator[Mapping[str, Any]]:
    if isinstance(part, ToolCall):
        yield _call(part)
    elif isinstance(part, ToolResult):
        yield _response(part)
        if not is_mapping(part.native):
            # A response that comes from another format is text; its media follow as parts of the same turn.
            yield from (_media(item) for item in part.content if isinstance(item, Media))
    elif isinstance(part, Media):
        yield _media(part)
    elif isinstance(part, Text):
        native: Mapping[str, Any] = part.native if is_mapping(part.native) else {}
        yield {**native, "text": part.text} if part.is_edited or not native else native
    elif isinstance(part, Thinking | Opaque) and is_mapping(part.native):
        yield part.native


def _call(call: ToolCall) -> Mapping[str, Any]:
    part: Mapping[str, Any] = call.native if is_mapping(call.native) else {}
    if part and not call.is_edited:
        return part
    function = {**part.get("functionCall", {}), "name": call.name, "args": arguments_object(call.arguments)}
    if not is_id_from_name(call.id):
        function["id"] = call.id
    return {**part, "functionCall": function}


def _response(result: ToolResult) -> Mapping[str, Any]:
    part: Mapping[str, Any] = result.native if is_mapping(result.native) else {}
    if part and not result.is_edited:
        return part
    original: Mapping[str, Any] = part.get("functionResponse", {})
    name = original.get("name") or (result.answered_call.name if result.answered_call else "tool")
    function = {**original, "name": name, "response": _response_value(result, original.get("response"))}
    if not is_id_from_name(result.call_id):
        function["id"] = result.call_id
    media = [item.native for item in result.content if not isinstance(item, Text) and is_mapping(item.native)]
    if media and part:
        function["parts"] = media
    else:
        function.pop("parts", None)
    return {**part, "functionResponse": function}


def _response_value(result: ToolResult, original: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the original result of a function, or the edited text instead of it."""
    if original is not None and result.text == response_text(original):
        return original
    key = next(iter(original)) if original and _is_single_text(original) else "error" if result.is_error else "output"
    return {key: result.text}


def _is_single_text(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and all(isinstance(item, str) for item in value.values())


def response_text(value: Mapping[str, Any]) -> str:
    """Return the result of a function: its text if it is a single one, else its JSON."""
    if not value:
        return ""
    return next(iter(value.values())) if _is_single_text(value) else json.dumps(value, ensure_ascii=False)


def response_media(response: Mapping[str, Any]) -> list[str]:
    """Return the media types in a response."""
    inner = response.get("parts")
    blocks = [block.get("inlineData") for block in inner if is_mapping(block)] if is_list(inner) else []
    return [str(block.get("mimeType")) for block in blocks if is_mapping(block)]


def _media(media: Media) -> Mapping[str, Any]:
    if is_mapping(media.native) and ("inlineData" in media.native or "fileData" in media.native):
        return media.native
    source = image_source(media)
    if source is None:
        return {"text": f"[{media.kind} not carried over]"}
    kind, data = source
    if kind == "url":
        return {"fileData": {"fileUri": data}}
    return {"inlineData": {"mimeType": kind, "data": data}}
