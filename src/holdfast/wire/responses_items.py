"""The content of OpenAI Responses items: blocks of text and media, tool calls, and their outputs.

Each kind of tool has its own pair of item types. Functions and custom tools carry text; computers, shells and patches
carry an object; an approval request is answered by yes or no. Unknown kinds pair by their `call_id`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.core.conversation.json_values import parse_json
from holdfast.core.conversation.messages import Content, Media, Opaque, Part, Role, Text, ToolCall, ToolResult, Trust
from holdfast.wire.json_reader import InputPath, extra_fields, is_list, is_mapping, json_type_name
from holdfast.wire.media import IMAGE_TOKENS, SMALL_IMAGE_TOKENS, data_tokens, image_source, image_tokens

TEXT_BLOCK_TYPES = frozenset({"input_text", "output_text", "text"})
MEDIA_BLOCK_TYPES = frozenset({"input_image", "input_file", "input_audio"})
ENCRYPTED_CHARS_PER_TOKEN = 4
"""Characters of encrypted content for one token."""
_TEXT_FIELDS = frozenset({"type", "text"})
_BLOCK_FIELDS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(TEXT_BLOCK_TYPES, _TEXT_FIELDS),
    "input_image": frozenset({"type", "image_url", "file_id", "detail"}),
    "input_file": frozenset({"type", "file_data", "file_id", "file_url", "filename"}),
    "input_audio": frozenset({"type", "input_audio"}),
}


def encrypted_tokens(value: object) -> int:
    """Return what encrypted content is likely to cost."""
    return len(value) // ENCRYPTED_CHARS_PER_TOKEN if isinstance(value, str) else 0


def decode_blocks(value: object, trust: Trust, place: InputPath, path: str) -> tuple[Content, ...]:
    """Return the parts of a content or an output."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (Text(value, trust),) if value else ()
    if not is_list(value):
        place.fail(path, f"must be a string or a list of parts, not {json_type_name(value)}")
    return tuple(_block(block, trust, place, f"{path}[{number}]") for number, block in enumerate(value))


def _block(value: object, trust: Trust, place: InputPath, path: str) -> Content:
    block = place.require_mapping(value, path, "an object with a type")
    kind = place.require_text(block.get("type"), f"{path}.type")
    if kind in TEXT_BLOCK_TYPES:
        return Text(place.require_text(block.get("text"), f"{path}.text"), trust, block)
    if kind == "refusal":
        return Opaque(kind, place.require_text(block.get("refusal"), f"{path}.refusal"), trust, block)
    if kind == "input_image":
        return Media("image", trust, image_tokens(block.get("detail")), block)
    if kind == "input_file":
        return Media("document", trust, data_tokens(block.get("file_data")), block)
    if kind == "input_audio" and is_mapping(audio := block.get("input_audio")):
        return Media("audio", trust, data_tokens(audio.get("data")), block)
    if kind == "encrypted_content":
        return Opaque(kind, "", trust, block, encrypted_tokens(block.get(kind)))
    return Opaque(kind, place.json_text(block, path), trust, block)


def block_extra_fields(blocks: object) -> str:
    """Return every field of blocks that no part represents, as JSON text."""
    text = ""
    for block in filter(is_mapping, blocks if is_list(blocks) else ()):
        known = _BLOCK_FIELDS.get(str(block.get("type")))
        if known is not None and not block.keys() <= known:
            # Every output has an empty list of annotations; it costs nothing.
            text += extra_fields({key: value for key, value in block.items() if value not in (None, [])}, known)
    return text


def encode_content(parts: Iterable[Part], original: object, role: Role) -> object:
    """Return content as a string if it was one or can be one, else as a list of blocks."""
    inline = [part for part in parts if isinstance(part, Text | Media | Opaque)]
    if not is_list(original) and all(isinstance(part, Text) and part.native is None for part in inline):
        return "\n".join(part.text for part in inline if isinstance(part, Text))
    return [_encode_block(part, role) for part in inline]


def _encode_block(part: Content, role: Role) -> Mapping[str, Any]:
    if isinstance(part, Text):
        if is_mapping(part.native):
            return {**part.native, "text": part.text} if part.is_edited else part.native
        return {"type": "output_text" if role == "assistant" else "input_text", "text": part.text}
    if isinstance(part, Media) and not (is_mapping(part.native) and part.native.get("type") in MEDIA_BLOCK_TYPES):
        return _foreign_media(part)
    return part.native if is_mapping(part.native) else {"type": "input_text", "text": f"[{part.kind}]"}


def _foreign_media(media: Media) -> Mapping[str, Any]:
    source = image_source(media)
    if source is None:
        return {"type": "input_text", "text": f"[{media.kind} not carried over]"}
    kind, data = source
    return {"type": "input_image", "image_url": data if kind == "url" else f"data:{kind};base64,{data}"}


BLANK_IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
"""One pixel: the output of a computer has to be an image and cannot hold text."""
OUTPUT_FRAME_TOKENS = 48
"""The most that the fields around the text of an output cost."""


class ToolItemKind(NamedTuple):
    """The item types and fields of one kind of tool."""

    output: str
    """The type of its outputs."""
    arguments: tuple[str, ...]
    """The fields that may hold the arguments of a call; the first one present counts."""
    synthesize: Callable[[str], dict[str, Any]] | None
    """Makes the fields of a missing output from a text; None if the output is the text."""
    is_text: bool = False
    """Whether arguments are text or an object."""
    call_key: str = "call_id"
    output_keys: tuple[str, ...] = ("call_id",)
    """The fields that may hold the id of the answered call."""

    @property
    def result_overhead_tokens(self) -> int:
        """What a synthesized output costs besides its text."""
        if self.synthesize is None:
            return 0
        return SMALL_IMAGE_TOKENS if self.synthesize is _screenshot else OUTPUT_FRAME_TOKENS


def _screenshot(_text: str) -> dict[str, Any]:
    return {"output": {"type": "computer_screenshot", "image_url": BLANK_IMAGE}}


def _shell_output(text: str) -> dict[str, Any]:
    return {"output": [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}]}


TOOL_CALL_KINDS: Mapping[str, ToolItemKind] = {
    "function_call": ToolItemKind("function_call_output", ("arguments",), None, is_text=True),
    "custom_tool_call": ToolItemKind("custom_tool_call_output", ("input",), None, is_text=True),
    "computer_call": ToolItemKind("computer_call_output", ("action", "actions"), _screenshot),
    "shell_call": ToolItemKind("shell_call_output", ("action",), _shell_output),
    "local_shell_call": ToolItemKind("local_shell_call_output", ("action",), None, output_keys=("call_id", "id")),
    "apply_patch_call": ToolItemKind(
        "apply_patch_call_output", ("operation",), lambda text: {"status": "failed", "output": text}
    ),
    "tool_search_call": ToolItemKind("tool_search_output", ("arguments",), lambda _text: {"tools": []}),
    "mcp_approval_request": ToolItemKind(
        "mcp_approval_response",
        ("arguments",),
        lambda text: {"approve": False, "reason": text},
        is_text=True,
        call_key="id",
        output_keys=("approval_request_id",),
    ),
}
TOOL_OUTPUT_KINDS: Mapping[str, ToolItemKind] = {tool.output: tool for tool in TOOL_CALL_KINDS.values()}
NAMED_CALL_TYPES = frozenset({"function_call", "custom_tool_call", "mcp_approval_request"})
"""Calls that name their tool; for the others the type names it."""
TEXT_OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})
"""Items that must have an output, even if it is empty."""


def call_kind_of(kind: str, item: Mapping[str, Any]) -> ToolItemKind | None:
    """Return the kind of a call, or None if the item is not a call that the client answers."""
    # A tool that the provider runs has no call id, and the client does not answer it.
    if kind == "tool_search_call" and item.get("call_id") is None:
        return None
    if kind in TOOL_CALL_KINDS:
        return TOOL_CALL_KINDS[kind]
    is_call = kind.endswith("_call") and isinstance(item.get("call_id"), str)
    return ToolItemKind(f"{kind}_output", (), None) if is_call else None


def output_kind_of(kind: str, item: Mapping[str, Any]) -> ToolItemKind | None:
    """Return the kind of an output, or None if the item is not an output."""
    if kind == "tool_search_output" and item.get("call_id") is None:
        return None
    if kind in TOOL_OUTPUT_KINDS:
        return TOOL_OUTPUT_KINDS[kind]
    is_output = kind.endswith("_output") and isinstance(item.get("call_id"), str)
    return ToolItemKind(kind, (), None) if is_output else None


def decode_call_item(kind: str, tool: ToolItemKind, item: Mapping[str, Any], place: InputPath) -> ToolCall:
    """Return the call of an item."""
    name = place.require_text(item.get("name"), ".name") if kind in NAMED_CALL_TYPES else kind.removesuffix("_call")
    key = next((key for key in tool.arguments if key in item), None)
    if key is None:
        arguments = (
            place.require_text(None, f".{tool.arguments[0]}")
            if tool.is_text
            else place.json_text(
                {key: value for key, value in item.items() if key not in {"type", "id", "call_id", "status"}}, ""
            )
        )
    else:
        arguments = place.require_text(item[key], f".{key}") if tool.is_text else place.json_text(item[key], f".{key}")
    call_id = _id(item, (tool.call_key,), place)
    return ToolCall(call_id, name, arguments, native=item, result_overhead_tokens=tool.result_overhead_tokens)


def _id(item: Mapping[str, Any], keys: tuple[str, ...], place: InputPath) -> str:
    for key in keys:
        if item.get(key) is not None:
            return place.require_text(item[key], f".{key}")
    return ""


def decode_output_item(tool: ToolItemKind, item: Mapping[str, Any], place: InputPath) -> ToolResult:
    """Return the result of an item."""
    call_id = _id(item, tool.output_keys, place)
    return ToolResult(call_id, _output(tool.output, item, place), native=item)


def _output(kind: str, item: Mapping[str, Any], place: InputPath) -> tuple[Content, ...]:
    value = item.get("output")
    if kind == "shell_call_output" and is_list(value):
        return tuple(_stream(chunk, place, f".output[{number}]") for number, chunk in enumerate(value))
    if kind in TEXT_OUTPUT_TYPES or value is None or isinstance(value, str) or is_list(value):
        return decode_blocks(value, "tool", place, ".output")
    if not is_mapping(value):
        place.fail(".output", f"must be a string, a list or an object, not {json_type_name(value)}")
    if "image_url" in value or "file_id" in value:
        tokens = SMALL_IMAGE_TOKENS if value.get("image_url") == BLANK_IMAGE else IMAGE_TOKENS
        return (Opaque(str(value.get("type")), "", "tool", value, tokens),)
    return (Opaque(str(value.get("type")), place.json_text(value, ".output"), "tool", value),)


def _stream(value: object, place: InputPath, path: str) -> Text:
    chunk = place.require_mapping(value, path)
    return Text(place.require_text(chunk.get("stdout", ""), f"{path}.stdout"), "tool")


def encode_call_item(call: ToolCall) -> Mapping[str, Any]:
    """Return a call as an item: its original item, changed only where it was edited."""
    if is_mapping(call.native) and not call.is_edited:
        return call.native
    item = call.native if is_mapping(call.native) else {"type": "function_call"}
    tool = call_kind_of(str(item["type"]), item) or TOOL_CALL_KINDS["function_call"]
    key = next((key for key in tool.arguments if key in item), tool.arguments[0] if tool.is_text else None)
    edited: dict[str, Any] = {**item, tool.call_key: call.id}
    if item["type"] in NAMED_CALL_TYPES:
        edited["name"] = call.name
    if key is not None:
        edited[key] = call.arguments if tool.is_text else _arguments_object(call.arguments, item.get(key))
    return edited


def _arguments_object(arguments: str, original: object) -> object:
    try:
        value = parse_json(arguments)
    except ValueError:
        return original
    return value if type(value) is type(original) else original


def encode_output_item(result: ToolResult) -> Mapping[str, Any]:
    """Return a result as an item: its original item, changed only where it was edited."""
    if not is_mapping(result.native):
        return _new_output(result)
    if not result.is_edited:
        return result.native
    item = result.native
    tool = output_kind_of(str(item["type"]), item) or TOOL_OUTPUT_KINDS["function_call_output"]
    key = next((key for key in tool.output_keys if key in item), tool.output_keys[0])
    edited: dict[str, Any] = {**item, key: result.call_id}
    value = item.get("output")
    if tool.output == "shell_call_output" and is_list(value):
        edited["output"] = [
            {**chunk, "stdout": part.text}
            for chunk, part in zip(value, result.content, strict=True)
            if isinstance(part, Text)
        ]
    elif isinstance(value, str) or is_list(value):
        edited["output"] = encode_content(result.content, value, "tool")
    return edited


def _new_output(result: ToolResult) -> Mapping[str, Any]:
    call = result.answered_call.native if result.answered_call else None
    tool = call_kind_of(str(call.get("type")), call) if is_mapping(call) else None
    tool = tool or TOOL_CALL_KINDS["function_call"]
    head = {"type": tool.output, tool.output_keys[-1]: result.call_id}
    if tool.synthesize is None:
        return {**head, "output": encode_content(result.content, None, "tool")}
    return {**head, **tool.synthesize(result.text)}


def shell_extra_fields(item: Mapping[str, Any]) -> str:
    """Return the fields of a shell's output besides its standard output, as JSON text."""
    value = item.get("output")
    if item.get("type") != "shell_call_output" or not is_list(value):
        return ""
    rest = [{key: field for key, field in chunk.items() if key != "stdout"} for chunk in value if is_mapping(chunk)]
    return json.dumps(rest, ensure_ascii=False)
