"""Message histories of pydantic-ai, read as OpenAI chat messages.

A history is a list of requests and responses, each with parts. A response is one assistant message; of a request
every part is a message of its own. What has no place in a chat message is left out, and named.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.wire.reading import is_list, is_mapping, shown

KINDS = frozenset({"request", "response"})
RETRY = "\n\nFix the errors and try again."
"""What pydantic-ai puts behind the words of a retry."""


def is_pydantic_ai(value: object) -> bool:
    """Return whether a value is one request or response of such a history."""
    return is_mapping(value) and value.get("kind") in KINDS and is_list(value.get("parts"))


def chat_messages(turn: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the chat messages of one request or response, and what of it was left out."""
    left_out: list[str] = []
    parts: list[Mapping[str, Any]] = []
    for part in turn["parts"]:
        if is_mapping(part):
            parts.append(part)
        else:
            left_out.append(f"a part must be an object, not {shown(part)}")
    if turn["kind"] == "response":
        return _response(parts, left_out), left_out
    messages: list[dict[str, Any]] = []
    if isinstance(turn.get("instructions"), str) and turn["instructions"]:
        messages.append({"role": "system", "content": turn["instructions"]})
    messages += [message for part in parts for message in _request(part, left_out)]
    return messages, left_out


def _request(part: Mapping[str, Any], left_out: list[str]) -> Iterator[dict[str, Any]]:
    kind, content = part.get("part_kind"), part.get("content")
    if kind == "system-prompt":
        yield {"role": "system", "content": _text(content)}
    elif kind == "user-prompt":
        yield {"role": "user", "content": _prompt(content, left_out)}
    elif kind == "tool-return":
        yield _result(part, _text(content))
    elif kind == "retry-prompt":
        words = content if isinstance(content, str) else f"validation errors: {_text(content)}"
        yield _result(part, words + RETRY) if part.get("tool_name") else {"role": "user", "content": words + RETRY}
    else:
        left_out.append(f"a part of the kind {shown(kind)} has no place in a chat message")


def _result(part: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": str(part.get("tool_call_id") or ""), "content": text}


def _response(parts: Sequence[Mapping[str, Any]], left_out: list[str]) -> list[dict[str, Any]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in parts:
        kind = part.get("part_kind")
        if kind == "text":
            texts.append(_text(part.get("content")))
        elif kind == "thinking":
            thoughts.append(_text(part.get("content")))
        elif kind == "tool-call":
            calls.append(_call(part))
        else:
            left_out.append(f"a part of the kind {shown(kind)} has no place in a chat message")
    message: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(texts) or None}
    if any(thoughts):
        message["reasoning_content"] = "\n\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message] if texts or calls or any(thoughts) else []


def _call(part: Mapping[str, Any]) -> dict[str, Any]:
    arguments = part.get("args")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    function = {"name": str(part.get("tool_name") or ""), "arguments": text or "{}"}
    return {"id": str(part.get("tool_call_id") or ""), "type": "function", "function": function}


def _prompt(content: object, left_out: list[str]) -> str | list[dict[str, Any]]:
    if not is_list(content):
        return _text(content)
    return [block for item in content for block in _block(item, left_out)]


def _block(item: object, left_out: list[str]) -> Iterator[dict[str, Any]]:
    if isinstance(item, str):
        yield {"type": "text", "text": item}
        return
    kind = item.get("kind") if is_mapping(item) else None
    if is_mapping(item) and kind == "image-url":
        yield {"type": "image_url", "image_url": {"url": str(item.get("url"))}}
    elif is_mapping(item) and kind == "binary" and str(item.get("media_type")).startswith("image/"):
        # pydantic-ai writes bytes in the alphabet for URLs; a data URL wants the usual one.
        data = str(item.get("data")).replace("-", "+").replace("_", "/")
        yield {"type": "image_url", "image_url": {"url": f"data:{item['media_type']};base64,{data}"}}
    else:
        left_out.append(f"content of the kind {shown(kind or item)} has no place in a chat message")


def _text(content: object) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
