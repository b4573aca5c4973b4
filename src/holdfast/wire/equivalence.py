"""When two messages say the same, although a client has written one of them differently.

Clients keep the conversation themselves and send it again with every request. Between two requests they add fields of
their own, leave out empty ones, write a text as a block, or move their cache marks. The essential form of a message
leaves out everything that makes no difference to what was said, so that equal forms mean equal messages. It is used to
compare messages only, never to send them.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.wire.json_reader import is_list, is_mapping

_BESIDE_CONTENT = frozenset({"refusal", "audio"})
"""Members that clients leave out later, if there is other content."""
_WITH_ITEM_ID = frozenset({"item_reference"})
"""Items that their id alone identifies."""
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})


def essential_message(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a chat message, an Anthropic message or a Responses item says."""
    message = _essential_members(native)
    kind = message.get("type")
    if kind not in _WITH_ITEM_ID and (kind is not None or "role" in message):
        message.pop("id", None)
    message.pop("status", None)
    if kind == "message":
        del message["type"]
    for key in ("content", "output"):
        if key in message:
            message[key] = _essential_content(message[key], is_prompt=message.get("role") == "user")
    if is_list(calls := message.get("tool_calls")):
        message["tool_calls"] = [_essential_call(call) for call in calls]
    if not message.get("content") and message.get("tool_calls"):
        message.pop("content", None)
    if message.get("content") or message.get("tool_calls"):
        message = {key: value for key, value in message.items() if key not in _BESIDE_CONTENT}
    return message


def _essential_members(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are neither null, nor a client's own, nor marks or notes that are empty."""
    return {
        key: item
        for key, item in value.items()
        if item is not None
        and not key.startswith("__")
        and key != "cache_control"
        and not (key in {"annotations", "logprobs", "tool_calls"} and not item)
    }


def _essential_content(content: Any, *, is_prompt: bool) -> Any:
    """Return content as a list of blocks; the white space at the end of a prompt's texts does not count."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not is_list(blocks):
        return blocks
    essential = (_essential_block(block, is_prompt=is_prompt) for block in blocks)
    return [block for block in essential if block != {"type": "text", "text": ""}]


def _essential_block(block: Any, *, is_prompt: bool) -> Any:
    if not is_mapping(block):
        return block
    members = _essential_members(block)
    if members.get("type") in _TEXT_TYPES:
        members["type"] = "text"
        if is_prompt and isinstance(text := members.get("text"), str):
            members["text"] = text.rstrip()
    if members.get("type") == "tool_result" and "content" in members:
        members["content"] = _essential_content(members["content"], is_prompt=False)
    return members


def _essential_call(call: Any) -> Any:
    if not is_mapping(call):
        return call
    members = _essential_members(call)
    members.pop("index", None)
    return members
