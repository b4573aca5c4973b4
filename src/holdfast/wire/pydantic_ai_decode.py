"""Decodes the parts of pydantic-ai requests and responses.

Some parts only record state, such as the available tools or the instructions in force. They must not be edited, and
they do not turn a request into a prompt, so they stay in the native message and are not decoded.
"""

import json
from collections.abc import Mapping
from typing import Any

from holdfast.core.conversation.json_values import dump_json
from holdfast.core.conversation.messages import (
    Content,
    Media,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Trust,
)
from holdfast.wire.json_reader import InputPath, is_list, is_mapping, json_type_name
from holdfast.wire.media import PromptPiece, data_tokens, image_tokens

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


def undecoded_text(native: Mapping[str, Any]) -> str:
    """Return what is sent of a message although no part represents it, as JSON text."""
    sent = [part for part in native["parts"] if part.get("part_kind") in SENT_STATE_PART_KINDS]
    return json.dumps(sent, ensure_ascii=False) if sent else ""


def request_parts(native: Mapping[str, Any], place: InputPath) -> tuple[tuple[Part, ...], Mapping[str, Any]]:
    """Return the parts of a request, and the request without foreign parts."""
    whole = _drop_foreign_parts(native, _RESPONSE_PART_KINDS, place)
    found: list[Part] = []
    for number, part in enumerate(whole["parts"]):
        if not is_not_decoded(part):
            found += _request_part(part, place, f".parts[{number}]")
    return tuple(found), whole


def response_parts(native: Mapping[str, Any], place: InputPath) -> tuple[tuple[Part, ...], Mapping[str, Any]]:
    """Return the parts of a response, and the response without foreign parts."""
    whole = _drop_foreign_parts(native, _REQUEST_PART_KINDS, place)
    parts = enumerate(whole["parts"])
    return tuple(_response_part(part, place, f".parts[{n}]") for n, part in parts if not is_not_decoded(part)), whole


def _drop_foreign_parts(
    native: Mapping[str, Any], foreign_kinds: frozenset[str], place: InputPath
) -> Mapping[str, Any]:
    """Return a message without parts of the other side, which pydantic-ai itself refuses to load."""
    kept: list[Mapping[str, Any]] = []
    for number, value in enumerate(native["parts"]):
        part = place.require_mapping(value, f".parts[{number}]", "an object with a part_kind")
        kind = place.require_text(part.get("part_kind"), f".parts[{number}].part_kind")
        if kind in foreign_kinds:
            place.repair_notes.append(f"left out a part of the kind {kind} in a {native['kind']}")
        else:
            kept.append(part)
    return native if len(kept) == len(native["parts"]) else {**native, "parts": kept}


# Requests.


def _request_part(part: Mapping[str, Any], place: InputPath, path: str) -> list[Part]:
    kind, content = part["part_kind"], part.get("content")
    if kind == "user-prompt":
        return _prompt(part, place, path)
    if kind == "system-prompt":
        return [Text(place.require_text(content, f"{path}.content"), "system", part)]
    if kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name")):
        return [_result(part, place, path)]
    if kind in {"retry-prompt", "retry-feedback"}:
        return [Text(_retry_text(content, place, f"{path}.content"), "system", part)]
    if kind == "compaction" and isinstance(content, str):
        return [Text(content, "summary", part)]
    if kind == "speech":
        return [_assistant_part(part, "user")]
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


def _result(part: Mapping[str, Any], place: InputPath, path: str) -> ToolResult:
    call_id = place.require_text(part.get("tool_call_id") or "", f"{path}.tool_call_id")
    is_error = part["part_kind"] == "retry-prompt" or part.get("outcome") in FAILED_OUTCOMES
    return ToolResult(call_id, result_content(part, place, path), is_error, native=part)


def result_content(part: Mapping[str, Any], place: InputPath, path: str = "") -> tuple[Content, ...]:
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
        items = enumerate(content)
        return tuple(_returned_content(item, place, f"{path}.content[{n}]", are_files=are_files) for n, item in items)
    return (Text(content if isinstance(content, str) else place.json_text(content, f"{path}.content"), "tool"),)


def _returned_content(item: Any, place: InputPath, path: str, *, are_files: bool) -> Content:
    if _is_file(item, are_files=are_files):
        return _media(item, "tool", item)
    return Text(item if isinstance(item, str) else place.json_text(item, path), "tool", item or None)


def _is_file(value: Any, *, are_files: bool) -> bool:
    return is_mapping(value) and (value.get("kind") == "binary" or (are_files and value.get("kind") in FILE_KINDS))


def _retry_text(content: object, place: InputPath, path: str) -> str:
    if isinstance(content, str):
        return content
    return f"validation errors: {place.json_text(content, path)}"


def _assistant_part(part: Mapping[str, Any], trust: Trust) -> Part:
    if is_mapping(part.get("audio")):
        return Media("audio", trust, data_tokens(part["audio"].get("data")), part)
    return Text(str(part.get("transcript") or ""), trust, part)


# Responses.


def _response_part(part: Mapping[str, Any], place: InputPath, path: str) -> Part:
    kind, content = part["part_kind"], part.get("content")
    if kind == "text":
        return Text(place.require_text(content, f"{path}.content"), "model", part)
    if kind == "thinking":
        signature = part.get("signature")
        text = place.require_text(content or "", f"{path}.content")
        return Thinking(text, signature if isinstance(signature, str) else None, native=part)
    if kind == "tool-call":
        return _call(part, place, path)
    if kind == "speech":
        return _assistant_part(part, "model")
    if kind == "file" and is_mapping(content):
        return _media(content, "model", part)
    fields = {
        key: part[key] for key in ("tool_name", "args", "content", "provider_details") if part.get(key) is not None
    }
    trust: Trust = "tool" if kind == "builtin-tool-return" else "summary" if kind == "compaction" else "model"
    return Opaque(kind, place.json_text(fields or part, path), trust, part)


def _call(part: Mapping[str, Any], place: InputPath, path: str) -> ToolCall:
    arguments = part.get("args")
    if not isinstance(arguments, str):
        # pydantic-ai sends them like this.
        arguments = dump_json(place.sendable_value(arguments, f"{path}.args")) if arguments else "{}"
    name = place.require_text(part.get("tool_name") or "", f"{path}.tool_name")
    call_id = place.require_text(part.get("tool_call_id") or "", f"{path}.tool_call_id")
    return ToolCall(call_id, name, arguments or "{}", native=part)
