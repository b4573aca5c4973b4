"""OpenAI Responses: a conversation as a list of items.

A message, a piece of reasoning, a call and an output are items, and a turn of the model is a run of them. Reasoning is
valid only together with the item after it. Each kind of tool has its own pair of item types: functions and custom tools
carry text; computers, shells and patches carry an object; an approval request is answered by yes or no. Unknown kinds
pair by their `call_id`. If responses are not stored (`store=false`), no item can be referenced and reasoning has to be
encrypted; that is another contract, and so another format.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.conversation.batching import CALLS_AS_ITEMS
from holdfast.core.conversation.frames import neutralize
from holdfast.core.conversation.json_values import parse_json
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
)
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD_BYTES, message_bytes, utf8_length
from holdfast.core.conversation.transcript import MessageMeasures
from holdfast.dataclass import dataclass
from holdfast.text import lazy_pattern
from holdfast.wire.json_reader import (
    InputPath,
    extra_fields,
    is_list,
    is_mapping,
    json_type_name,
    preview_value,
    replace_items,
)
from holdfast.wire.media import (
    IMAGE_TOKENS,
    SMALL_IMAGE_TOKENS,
    data_tokens,
    encrypted_tokens,
    image_tokens,
    image_url,
    opaque_block,
    pdf_name,
    pdf_url,
)

OPENAI_RESPONSES_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
TEXT_BLOCK_TYPES = frozenset({"input_text", "output_text", "text"})
MEDIA_BLOCK_TYPES = frozenset({"input_image", "input_file", "input_audio"})
_BLOCK_FIELDS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(TEXT_BLOCK_TYPES, frozenset({"type", "text"})),
    "input_image": frozenset({"type", "image_url", "file_id", "detail"}),
    "input_file": frozenset({"type", "file_data", "file_id", "file_url", "filename"}),
    "input_audio": frozenset({"type", "input_audio"}),
}
COMPACTION_ITEM_TYPES = frozenset({"compaction", "compaction_summary"})
SETTING_ITEM_TYPES = frozenset({"additional_tools", "configuration_update"})
"""Items that hold until a later one changes them. Without them the model has other tools, another effort or another
form of answer, so they are treated as system text."""
ITEM_ID_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
"""The prefixes of item ids that the provider checks; calls and outputs pair by another id."""
ROLELESS_ITEM_TYPES = frozenset(
    {"additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "compaction",
     "compaction_summary", "computer_call", "computer_call_output", "configuration_update", "custom_tool_call",
     "custom_tool_call_output", "file_search_call", "function_call", "function_call_output", "image_generation_call",
     "item_reference", "local_shell_call", "local_shell_call_output", "mcp_approval_request",
     "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output", "reasoning", "shell_call",
     "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call"}
)  # fmt: skip
"""The items of a conversation that have no role."""
_TOOL_NAME = lazy_pattern(r"[a-zA-Z0-9_-]+")
_FIELDS = frozenset({"type", "id", "status", "role", "content", "phase"})
_CALL_FIELDS = frozenset(
    {"type", "id", "status", "call_id", "name", "arguments", "input", "action", "actions", "operation"}
)
_OUTPUT_FIELDS = frozenset({"type", "id", "status", "call_id", "approval_request_id", "output"})


class OpenAIResponses:
    """Reads and writes the items of a request."""

    batching = CALLS_AS_ITEMS
    has_separate_system = True
    max_cache_marks: int | None = None
    max_text_chars: int | None = 10_485_760
    max_images = 500

    def __init__(self, *, is_stored: bool = True) -> None:
        self.name = "openai-responses" if is_stored else "openai-responses-stateless"
        self._is_stored = is_stored

    def measure(self, natives: Sequence[Any], start: int) -> MessageMeasures:
        measures = MessageMeasures([], [], [])
        for index, native in enumerate(natives, start):
            try:
                role, size = _measure_item(native)
                is_prompt = role == "user"
            except (KeyError, TypeError, AttributeError, ValueError):
                message = self.decode(native, index)
                role, size, is_prompt = message.role, message_bytes(message), message.is_prompt
            measures.sizes.append(size + MESSAGE_OVERHEAD_BYTES)
            if is_prompt:
                measures.prompts.append(index)
            elif role == "system":
                measures.systems.append(index)
        return measures

    def decode(self, native: object, index: int) -> Message:
        place = InputPath(index)
        native = place.require_message(native)
        kind = _kind(native, place)
        native = _repair_item(place.sendable_message(native), kind, place)
        if not self._is_stored and (note := _unsendable_reason(native, kind)):
            return Message("assistant", (), native, (), (*place.repair_notes, note))
        role, parts = _decode_item(native, kind, place)
        return Message(role, parts, native, parts, tuple(place.repair_notes), _extras(native, kind))

    def encode(self, message: Message) -> Mapping[str, Any]:
        if message.is_unedited and message.native is not None:
            return message.native
        if message.results:
            return _encode_output(message.results[0])
        if message.calls:
            return _encode_call(message.calls[0])
        native = message.native
        if native is not None and "role" not in native:
            if not is_event_output(str(native.get("type")), native):
                return native
            is_blank = all(isinstance(part, Opaque) and part.native is native for part in message.parts)
            return native if is_blank else {**native, "output": _content_json(message.parts, native["output"], "user")}
        content = _content_json(message.parts, native.get("content") if native else None, message.role)
        return {**(native or {"role": message.role}), "content": content}


def _kind(native: Mapping[str, Any], place: InputPath) -> str:
    kind = native.get("type")
    if kind is None:
        return "message" if "role" in native or "id" not in native else "item_reference"
    return place.require_text(kind, ".type")


def _measure_item(native: Mapping[str, Any]) -> tuple[Role, int]:
    """Return the role and size of a plain item; raises if it is not plain."""
    kind = native.get("type")
    if kind == "function_call_output" and type(native["call_id"]) is str and type(output := native["output"]) is str:
        return "tool", utf8_length(output)
    if kind == "function_call" and type(native["call_id"]) is str and type(native["name"]) is str:
        return "assistant", utf8_length(native["arguments"])
    if kind not in {None, "message"}:
        raise ValueError(kind)
    content = native["content"]
    if type(content) is str:
        return OPENAI_RESPONSES_ROLES[native["role"]], utf8_length(content)
    if not is_list(content) or not all(block["type"] in TEXT_BLOCK_TYPES for block in content):
        raise ValueError(kind)
    return OPENAI_RESPONSES_ROLES[native["role"]], sum(utf8_length(block["text"]) for block in content)


def _unsendable_reason(native: Mapping[str, Any], kind: str) -> str | None:
    """Return why an item cannot be sent when responses are not stored."""
    if kind == "item_reference":
        return "left out a reference to a stored item: responses are not stored"
    if kind == "reasoning" and not native.get("encrypted_content") and native.get("id") is not None:
        return "left out reasoning that is neither stored nor encrypted"
    return None


def _decode_item(native: Mapping[str, Any], kind: str, place: InputPath) -> tuple[Role, tuple[Part, ...]]:
    if kind == "message":
        role = place.require_role(native, OPENAI_RESPONSES_ROLES)
        return role, place.decode_blocks(native.get("content"), TRUST_OF_ROLE[role], ".content", _block)
    if kind == "reasoning":
        return "assistant", (_reasoning(native, place),)
    if kind in COMPACTION_ITEM_TYPES:
        # It replaces everything before it and must not change, so it is treated as system text.
        encrypted = place.require_text(native.get("encrypted_content"), ".encrypted_content")
        return "system", (Opaque(kind, "", "summary", native, encrypted_tokens(encrypted)),)
    if kind in SETTING_ITEM_TYPES:
        return "system", (Opaque(kind, place.json_text(native, ""), "system", native),)
    if kind == "compaction_trigger":
        return "user", (Opaque(kind, "", "user", native, is_final=True),)
    if kind in PROGRAM_ITEM_TYPES:
        call_id = place.require_text(native.get("call_id"), ".call_id")
        use, result = (call_id, "") if kind == "program" else ("", call_id)
        text = place.json_text(native, "")
        return "assistant", (Opaque(kind, text, "model", native, server_use=use, server_result=result),)
    if tool := call_kind_of(kind, native):
        return "assistant", (_decode_call(kind, tool, native, place),)
    if is_event_output(kind, native):
        told = place.decode_blocks(native.get("output"), "tool", ".output", _block)
        is_blank = all(isinstance(part, Text) and part.is_blank for part in told)
        # That a timer has run out is told by the name of the tool alone.
        return "user", (Opaque(kind, "", "tool", native),) if is_blank else told
    if tool := output_kind_of(kind, native):
        return "tool", (_decode_output(tool, native, place),)
    return "assistant", (_item_of_provider(native, kind, place),)


def _item_of_provider(native: Mapping[str, Any], kind: str, place: InputPath) -> Opaque:
    if kind == "image_generation_call":
        prompt = native.get("revised_prompt")
        return Opaque(kind, prompt if isinstance(prompt, str) else "", "model", native, IMAGE_TOKENS)
    return opaque_block(kind, native, "model", place, "")


def _reasoning(native: Mapping[str, Any], place: InputPath) -> Thinking:
    texts: list[str] = []
    for field in ("summary", "content"):
        blocks = native.get(field)
        if blocks is not None and not is_list(blocks):
            place.fail(f".{field}", f"must be a list, not {preview_value(blocks)}")
        for number, block in enumerate(blocks or ()):
            path = f".{field}[{number}]"
            texts.append(place.require_text(place.require_mapping(block, path).get("text"), f"{path}.text"))
    encrypted = native.get("encrypted_content")
    signature = None if encrypted is None else place.require_text(encrypted, ".encrypted_content")
    return Thinking("\n".join(texts), signature, native=native)


def _extras(native: Mapping[str, Any], kind: str) -> str:
    """Return everything that is sent but that no part represents, as JSON text."""
    if kind == "message":
        return extra_fields(native, _FIELDS) + _block_extras(native.get("content"))
    if kind in TOOL_CALL_KINDS:
        return extra_fields(native, _CALL_FIELDS)
    if is_event_output(kind, native) or output_kind_of(kind, native):
        return extra_fields(native, _OUTPUT_FIELDS) + _block_extras(native.get("output")) + _shell_extras(native)
    return ""


def _repair_item(native: Mapping[str, Any], kind: str, place: InputPath) -> Mapping[str, Any]:
    """Return an item that the provider accepts, with a note for each repair."""
    changes: dict[str, Any] = {}
    if kind in {"function_call", "custom_tool_call"}:
        changes |= place.repair_text_call(native, TOOL_CALL_KINDS[kind].arguments[0], "", _TOOL_NAME)
    if kind in TEXT_OUTPUT_TYPES and native.get("output") is None:
        place.repair_notes.append("added an empty output to an item without one")
        changes["output"] = ""
    if kind == "message" and is_list(native.get("content")):
        native = replace_items(native, "content", [_repair_block(one, native, place) for one in native["content"]])
    prefix, item_id = ITEM_ID_PREFIXES.get(kind), native.get("id")
    if prefix and item_id is not None and not (isinstance(item_id, str) and item_id.startswith(prefix)):
        place.repair_notes.append(f"left out an item id that does not begin with {prefix!r}")
        native = {key: value for key, value in native.items() if key != "id"}
    return {**native, **changes} if changes else native


def _repair_block(block: Any, message: Mapping[str, Any], place: InputPath) -> Any:
    """Return a text under the type of its author: the model's is `output_text`, everybody else's `input_text`."""
    kind = "output_text" if message.get("role") == "assistant" else "input_text"
    if not is_mapping(block) or block.get("type") == kind or block.get("type") not in ("output_text", "input_text"):
        return block
    place.repair_notes.append(f"wrote a text of the {message.get('role')} as {kind}")
    return {"type": kind, "text": block.get("text")}


def _block(block: Mapping[str, Any], kind: str, trust: Trust, place: InputPath, path: str) -> Content:
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
    return opaque_block(kind, block, trust, place, path)


def _block_extras(blocks: object) -> str:
    """Return every field of blocks that no part represents, as JSON text."""
    text = ""
    for block in filter(is_mapping, blocks if is_list(blocks) else ()):
        known = _BLOCK_FIELDS.get(str(block.get("type")))
        if known is not None and not block.keys() <= known:
            # Every output has an empty list of annotations; it costs nothing.
            text += extra_fields({key: value for key, value in block.items() if value not in (None, [])}, known)
    return text


def _content_json(parts: Iterable[Part], original: object, role: Role) -> object:
    """Return content as a string if it was one or can be one, else as a list of blocks."""
    inline = [part for part in parts if isinstance(part, Text | Media | Opaque)]
    if not is_list(original) and all(isinstance(part, Text) and part.native is None for part in inline):
        return "\n".join(part.text for part in inline if isinstance(part, Text))
    return [_encode_block(part, role) for part in inline]


def _encode_block(part: Content, role: Role) -> Mapping[str, Any]:
    text_type = "output_text" if role == "assistant" else "input_text"
    if isinstance(part, Text):
        if is_mapping(part.native):
            return {**part.native, "text": part.text} if part.is_edited else part.native
        return {"type": text_type, "text": part.text}
    if isinstance(part, Media) and not (is_mapping(part.native) and part.native.get("type") in MEDIA_BLOCK_TYPES):
        if (pdf := pdf_url(part)) is not None and role != "assistant":
            return {"type": "input_file", "filename": pdf_name(part), "file_data": pdf}
        url = image_url(part)
        if url is None or role == "assistant":  # a model's message holds text alone
            return {"type": text_type, "text": f"[{part.kind} not carried over]"}
        return {"type": "input_image", "image_url": url}
    return part.native if is_mapping(part.native) else {"type": text_type, "text": f"[{part.kind}]"}


BLANK_IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
"""One pixel: the output of a computer has to be an image and cannot hold text."""
OUTPUT_FRAME_TOKENS = 48
"""The most that the fields around the text of an output cost."""


@dataclass(frozen=True, slots=True)
class ToolItemKind:
    """The item types and fields of one kind of tool."""

    output: str
    """The type of its outputs."""
    arguments: tuple[str, ...]
    """The fields that may hold the arguments of a call; the first one present counts."""
    synthesize: Callable[[str], dict[str, Any]] | None = None
    """Makes the fields of a missing output from a text; None if the output is the text."""
    result_overhead_tokens: int = 0
    """What a synthesized output costs besides its text."""
    is_text: bool = False
    """Whether arguments are text or an object."""
    call_key: str = "call_id"
    output_keys: tuple[str, ...] = ("call_id",)
    """The fields that may hold the id of the answered call."""

    def arguments_key(self, item: Mapping[str, Any]) -> str | None:
        """Return the field of a call that holds its arguments; None if its other fields are the arguments."""
        return next((key for key in self.arguments if key in item), self.arguments[0] if self.is_text else None)


TOOL_CALL_KINDS: Mapping[str, ToolItemKind] = {
    "function_call": ToolItemKind("function_call_output", ("arguments",), is_text=True),
    "custom_tool_call": ToolItemKind("custom_tool_call_output", ("input",), is_text=True),
    "computer_call": ToolItemKind(
        "computer_call_output",
        ("action", "actions"),
        lambda _: {"output": {"type": "computer_screenshot", "image_url": BLANK_IMAGE}},
        SMALL_IMAGE_TOKENS,
    ),
    "shell_call": ToolItemKind(
        "shell_call_output",
        ("action",),
        lambda text: {"output": [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}]},
        OUTPUT_FRAME_TOKENS,
    ),
    "local_shell_call": ToolItemKind("local_shell_call_output", ("action",), output_keys=("call_id", "id")),
    "apply_patch_call": ToolItemKind(
        "apply_patch_call_output",
        ("operation",),
        lambda text: {"status": "failed", "output": text},
        OUTPUT_FRAME_TOKENS,
    ),
    "tool_search_call": ToolItemKind(
        "tool_search_output", ("arguments",), lambda _: {"tools": []}, OUTPUT_FRAME_TOKENS
    ),
    "mcp_approval_request": ToolItemKind(
        "mcp_approval_response",
        ("arguments",),
        lambda text: {"approve": False, "reason": text},
        OUTPUT_FRAME_TOKENS,
        is_text=True,
        call_key="id",
        output_keys=("approval_request_id",),
    ),
}
TOOL_OUTPUT_KINDS: Mapping[str, ToolItemKind] = {tool.output: tool for tool in TOOL_CALL_KINDS.values()}
PROGRAM_ITEM_TYPES = frozenset({"program", "program_output"})
"""A program of the model that the provider runs, and its result; the calls of the program come between them."""
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
    return ToolItemKind(f"{kind}_output", ()) if is_call else None


def is_event_output(kind: str, item: Mapping[str, Any]) -> bool:
    """Return whether an item tells of an event: the output of a tool that no call has asked for.

    Codex adds such items for its timers, and for what other threads send. OpenAI accepts them without a call; they are
    not the user's words.
    """
    return kind == "function_call_output" and item.get("call_id") is None


def tool_of_event(item: Mapping[str, Any]) -> str:
    """Return the name of the tool that tells of an event, with its namespace, as it may stand in a line of ours."""
    names = (name for key in ("namespace", "name") if isinstance(name := item.get(key), str) and name)
    return repr(neutralize(".".join(names), "name"))


def output_kind_of(kind: str, item: Mapping[str, Any]) -> ToolItemKind | None:
    """Return the kind of an output, or None if the item is not an output of the client."""
    if kind in PROGRAM_ITEM_TYPES or (kind == "tool_search_output" and item.get("call_id") is None):
        return None
    if is_event_output(kind, item):
        return None
    if kind in TOOL_OUTPUT_KINDS:
        return TOOL_OUTPUT_KINDS[kind]
    is_output = kind.endswith("_output") and isinstance(item.get("call_id"), str)
    return ToolItemKind(kind, ()) if is_output else None


def _decode_call(kind: str, tool: ToolItemKind, item: Mapping[str, Any], place: InputPath) -> ToolCall:
    name = place.require_text(item.get("name"), ".name") if kind in NAMED_CALL_TYPES else kind.removesuffix("_call")
    if key := tool.arguments_key(item):
        value, path = item.get(key), f".{key}"
    else:
        value, path = {key: item[key] for key in item if key not in {"type", "id", "call_id", "status"}}, ""
    arguments = place.require_text(value, path) if tool.is_text else place.json_text(value, path)
    call_id = place.optional_text(item, tool.call_key)
    return ToolCall(
        call_id,
        name,
        arguments,
        native=item,
        result_overhead_tokens=tool.result_overhead_tokens,
        result_kind=tool.output,
        caller=_caller(item),
    )


def _decode_output(tool: ToolItemKind, item: Mapping[str, Any], place: InputPath) -> ToolResult:
    key = next((key for key in tool.output_keys if item.get(key) is not None), tool.output_keys[0])
    content = _output(tool.output, item.get("output"), place)
    return ToolResult(place.optional_text(item, key), content, native=item, kind=tool.output, caller=_caller(item))


def _caller(item: Mapping[str, Any]) -> str:
    """Return the id of the program that made a call; empty if the model made it directly."""
    return str(caller.get("caller_id") or "") if is_mapping(caller := item.get("caller")) else ""


def _output(kind: str, value: object, place: InputPath) -> tuple[Content, ...]:
    if kind == "shell_call_output" and is_list(value):
        chunks = ((place.require_mapping(chunk, path := f".output[{at}]"), path) for at, chunk in enumerate(value))
        return tuple(
            Text(place.require_text(chunk.get(stream, ""), f"{path}.{stream}"), "tool")
            for chunk, path in chunks
            for stream in _streams(chunk)
        )
    if kind in TEXT_OUTPUT_TYPES or value is None or isinstance(value, str) or is_list(value):
        return place.decode_blocks(value, "tool", ".output", _block)
    if not is_mapping(value):
        place.fail(".output", f"must be a string, a list or an object, not {json_type_name(value)}")
    text, tokens = "", None
    if "image_url" in value or "file_id" in value:
        tokens = SMALL_IMAGE_TOKENS if value.get("image_url") == BLANK_IMAGE else IMAGE_TOKENS
    else:
        text = place.json_text(value, ".output")
    return (Opaque(str(value.get("type")), text, "tool", value, tokens),)


def outcome_of(output: object) -> str:
    """Return in words what an output says in fields besides its text; empty if they say nothing."""
    item: Mapping[str, Any] = output if is_mapping(output) else {}
    kind, value = item.get("type"), item.get("output")
    if kind == "mcp_approval_response":
        decision = "approved" if item.get("approve") else "not approved"
        return f"{decision}: {reason}" if isinstance(reason := item.get("reason"), str) and reason else decision
    if kind == "tool_search_output":
        return json.dumps(item.get("tools"), ensure_ascii=False)
    if kind == "apply_patch_call_output":
        return "" if value or item.get("status") != "failed" else "failed"
    if kind != "shell_call_output" or not is_list(value):
        return ""
    outcomes = [chunk["outcome"] for chunk in value if is_mapping(chunk) and is_mapping(chunk.get("outcome"))]
    ended = ["timed out" if one.get("type") == "timeout" else f"exit code {one.get('exit_code')}" for one in outcomes]
    return "\n".join(text for text in ended if text not in {"exit code 0", "exit code None"})


def _streams(chunk: Mapping[str, Any]) -> Sequence[str]:
    """Return the fields of a shell's output that are texts; an empty one is only if there is no other."""
    errors = chunk.get("stderr")
    if not isinstance(errors, str) or not errors:
        return ("stdout",)
    return ("stdout", "stderr") if chunk.get("stdout") else ("stderr",)


def _encode_call(call: ToolCall) -> Mapping[str, Any]:
    if is_mapping(call.native) and not call.is_edited:
        return call.native
    item = call.native if is_mapping(call.native) else {"type": "function_call"}
    tool = call_kind_of(str(item["type"]), item) or TOOL_CALL_KINDS["function_call"]
    edited: dict[str, Any] = {**item, tool.call_key: call.id}
    if item["type"] in NAMED_CALL_TYPES:
        edited["name"] = call.name
    if key := tool.arguments_key(item):
        edited[key] = call.arguments if tool.is_text else _arguments_object(call.arguments, item.get(key))
    if _caller(item) and not call.caller:
        del edited["caller"]
    return edited


def _arguments_object(arguments: str, original: object) -> object:
    try:
        value = parse_json(arguments)
    except ValueError:
        return original
    return value if type(value) is type(original) else original


def _encode_output(result: ToolResult) -> Mapping[str, Any]:
    if not is_mapping(result.native):
        return _new_output(result)
    if not result.is_edited:
        return result.native
    item = result.native
    tool = output_kind_of(str(item["type"]), item) or TOOL_OUTPUT_KINDS["function_call_output"]
    key = next((key for key in tool.output_keys if key in item), tool.output_keys[-1])
    edited: dict[str, Any] = {**item, key: result.call_id}
    value = item.get("output")
    if tool.output == "shell_call_output" and is_list(value):
        texts = [part.text for part in result.content if isinstance(part, Text)]
        fields = [(at, stream) for at, chunk in enumerate(value) for stream in _streams(chunk)]
        chunks = [dict(chunk) for chunk in value]
        for (at, stream), text in zip(fields, texts, strict=True):
            chunks[at][stream] = text
        edited["output"] = chunks
    elif isinstance(value, str) or is_list(value):
        edited["output"] = _content_json(result.content, value, "tool")
    if _caller(item) and not result.caller:
        del edited["caller"]
    return edited


def _new_output(result: ToolResult) -> Mapping[str, Any]:
    call = result.answered_call.native if result.answered_call else None
    tool = call_kind_of(str(call.get("type")), call) if is_mapping(call) else None
    tool = tool or TOOL_CALL_KINDS["function_call"]
    fields = (
        tool.synthesize(result.text) if tool.synthesize else {"output": _content_json(result.content, None, "tool")}
    )
    return {"type": tool.output, tool.output_keys[-1]: result.call_id, **fields}


def _shell_extras(item: Mapping[str, Any]) -> str:
    """Return the fields of a shell's output besides its texts, as JSON text."""
    value = item.get("output")
    if item.get("type") != "shell_call_output" or not is_list(value):
        return ""
    rest = [
        {key: field for key, field in chunk.items() if key not in {"stdout", *_streams(chunk)}}
        for chunk in value
        if is_mapping(chunk)
    ]
    return json.dumps(rest, ensure_ascii=False)
