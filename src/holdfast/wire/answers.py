"""The answer of a provider, put together from its stream, as a client sends it back with its next request.

Each wire sends an answer in pieces of its own. `read_answer` takes the events of a stream, or the one object of a
response without a stream, and returns the same messages for both. A stream may end at any point: what came is
returned, without calls whose arguments are not whole, and the answer says that it is not complete.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from holdfast.wire.json_reader import is_list, is_mapping

Wire: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic", "gemini"]
"""A provider's API: its paths, its requests and its streams."""
JsonObject: TypeAlias = dict[str, Any]
_APPENDED_TEXTS = ("content", "refusal", "reasoning_content", "reasoning")
_RESPONSE_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


@dataclass(slots=True)
class Answer:
    """What a provider answered, as far as it came."""

    messages: list[JsonObject] = field(default_factory=list[JsonObject])
    """The messages or items of the answer, in the format of the request."""
    is_complete: bool = False
    """Whether the provider said that the answer ends here."""
    usage: Mapping[str, object] | None = None
    """What was billed, as the provider reported it."""
    model: str | None = None
    response_id: str | None = None


def read_answer(wire: Wire, events: Iterable[object]) -> Answer:
    """Return the answer of a stream's events; a response without a stream is one event."""
    return _READERS[wire]([event for event in events if is_mapping(event)])


def answer_text(answer: Answer) -> str:
    """Return the text of an answer, without thinking and calls."""
    texts: list[str] = []
    for message in answer.messages:
        content = message.get("content", message.get("parts"))
        if isinstance(content, str):
            texts.append(content)
        for block in content if is_list(content) else ():
            if is_mapping(block) and not block.get("thought") and isinstance(text := block.get("text"), str):
                texts.append(text)
    return "".join(texts)


def _read_chat(events: Sequence[Mapping[str, Any]]) -> Answer:
    answer, texts, calls = Answer(), dict[str, list[str]](), dict[int, JsonObject]()
    is_empty = True
    for event in events:
        if (usage := event.get("usage")) and is_mapping(usage):
            answer.usage = usage
        choice = _first_choice(event.get("choices"))
        if choice is None:
            continue
        if (whole := choice.get("message")) and is_mapping(whole):
            answer.messages = [dict(whole)]
            answer.is_complete = True
            continue
        if choice.get("finish_reason") is not None:
            answer.is_complete = True
        if is_mapping(delta := choice.get("delta")):
            is_empty = False
            for name, value in delta.items():
                if name in _APPENDED_TEXTS and isinstance(value, str):
                    texts.setdefault(name, []).append(value)
            if pieces := delta.get("tool_calls"):
                for number, piece in enumerate(_objects(pieces)):
                    _add_call(calls, piece, number)
    _read_last_names(answer, events)
    message = JsonObject(role="assistant", content=None) | {name: "".join(pieces) for name, pieces in texts.items()}
    if whole_calls := _finished_calls(calls, answer):
        message["tool_calls"] = whole_calls
    has_content = any(message.get(name) for name in (*_APPENDED_TEXTS, "tool_calls"))
    if not answer.messages and not is_empty and (answer.is_complete or has_content):
        answer.messages = [message]
    return answer


def _first_choice(choices: object) -> Mapping[str, Any] | None:
    for one in choices if is_list(choices) else ():
        if is_mapping(one) and not one.get("index"):
            return one
    return None


def _finished_calls(calls: Mapping[int, JsonObject], answer: Answer) -> list[JsonObject]:
    """Return the calls in order; of an answer that was cut, only those whose arguments are whole."""
    return [call for _, call in sorted(calls.items()) if answer.is_complete or _is_json(call["function"]["arguments"])]


def _add_call(calls: dict[int, JsonObject], piece: Mapping[str, Any], number: int) -> None:
    index = piece.get("index")
    call = calls.setdefault(
        index if isinstance(index, int) else number,
        {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
    )
    call["id"] = piece.get("id") or call["id"]
    call["type"] = piece.get("type") or call["type"]
    call.update({key: value for key, value in piece.items() if key not in {"index", "id", "type", "function"}})
    if is_mapping(function := piece.get("function")):
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def _read_anthropic(events: Sequence[Mapping[str, Any]]) -> Answer:
    answer, blocks, arguments = Answer(), dict[int, JsonObject](), dict[int, list[str]]()
    ended: set[int] = set()
    usage: dict[str, object] = {}
    has_started = False
    for event in events:
        kind, index = event.get("type"), event.get("index", 0)
        if kind == "message":
            has_started = answer.is_complete = True
            _read_names(answer, event)
            blocks = dict(enumerate(map(dict, _objects(event.get("content")))))
            ended = set(blocks)
            usage |= _mapping(event.get("usage"))
        elif kind == "message_start":
            has_started, message = True, _mapping(event.get("message"))
            _read_names(answer, message)
            usage |= _mapping(message.get("usage"))
        elif kind == "content_block_start":
            blocks[index] = dict(_mapping(event.get("content_block")))
        elif kind == "content_block_delta" and index in blocks:
            _add_to_block(blocks[index], _mapping(event.get("delta")), arguments.setdefault(index, []))
        elif kind == "content_block_stop":
            ended.add(index)
        elif kind == "message_delta":
            usage |= {key: value for key, value in _mapping(event.get("usage")).items() if value is not None}
        elif kind == "message_stop":
            answer.is_complete = True
    content: list[JsonObject] = []
    for index, block in sorted(blocks.items()):
        if pieces := "".join(arguments.get(index, ())):
            if not _is_json(pieces):
                continue
            block["input"] = json.loads(pieces)
        elif block.get("type") == "tool_use" and index not in ended:
            continue
        if block.get("type") in {"thinking", "redacted_thinking"} and index not in ended:
            continue  # without its signature it cannot be sent again
        content.append(block)
    if content or (has_started and answer.is_complete):
        answer.messages = [{"role": "assistant", "content": content}]
    answer.usage = usage or None
    return answer


def _add_to_block(block: JsonObject, delta: Mapping[str, Any], arguments: list[str]) -> None:
    if isinstance(pieces := delta.get("partial_json"), str):
        arguments.append(pieces)
    elif delta.get("type") == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
    else:
        for name, value in delta.items():
            if name != "type":
                before = block.get(name)
                block[name] = before + value if isinstance(before, str) and isinstance(value, str) else value


def _read_responses(events: Sequence[Mapping[str, Any]]) -> Answer:
    answer, items, texts = Answer(), dict[int, JsonObject](), dict[int, list[str]]()
    started: dict[int, JsonObject] = {}
    for event in events:
        kind, index = event.get("type"), event.get("output_index", 0)
        response = event if event.get("object") == "response" or "output" in event else _mapping(event.get("response"))
        if response:
            _read_names(answer, response)
            if is_mapping(usage := response.get("usage")):
                answer.usage = usage
        if kind in _RESPONSE_ENDS or (kind is None and "output" in event):
            answer.is_complete = response.get("status") not in {"failed", "in_progress", "queued"}
            items = dict(enumerate(map(dict, _objects(response.get("output"))))) or items
        elif kind == "response.output_item.added":
            started[index] = dict(_mapping(event.get("item")))
        elif kind == "response.output_text.delta" and isinstance(text := event.get("delta"), str):
            texts.setdefault(index, []).append(text)
        elif kind == "response.output_item.done":
            items[index] = dict(_mapping(event.get("item")))
    for index, pieces in texts.items():
        if index not in items and started.get(index, {}).get("type") == "message":
            content = [{"type": "output_text", "text": "".join(pieces), "annotations": []}]
            items[index] = started[index] | {"content": content, "status": "incomplete"}
    answer.messages = [item for _, item in sorted(items.items())]
    return answer


def _read_gemini(events: Sequence[Mapping[str, Any]]) -> Answer:
    answer, parts = Answer(), list[JsonObject]()
    for event in events:
        answer.model = event.get("modelVersion") or answer.model
        answer.response_id = event.get("responseId") or answer.response_id
        if is_mapping(usage := event.get("usageMetadata")):
            answer.usage = usage
        candidate = next((one for one in _objects(event.get("candidates")) if not one.get("index")), {})
        answer.is_complete = answer.is_complete or bool(candidate.get("finishReason"))
        for part in _objects(_mapping(candidate.get("content")).get("parts")):
            _add_part(parts, dict(part))
    if parts or answer.is_complete:
        answer.messages = [{"role": "model", "parts": parts}]
    return answer


def _add_part(parts: list[JsonObject], part: JsonObject) -> None:
    """Append a part, or continue the text of the last one, as clients do."""
    last = parts[-1] if parts else {}
    is_continued = "text" in last and "text" in part and "thoughtSignature" not in last
    if is_continued and bool(last.get("thought")) == bool(part.get("thought")):
        parts[-1] = last | part | {"text": f"{last['text']}{part['text']}"}
    else:
        parts.append(part)


_READERS: Mapping[Wire, Callable[[Sequence[Mapping[str, Any]]], Answer]] = {
    "openai-chat": _read_chat,
    "openai-responses": _read_responses,
    "anthropic": _read_anthropic,
    "gemini": _read_gemini,
}


def _read_names(answer: Answer, event: Mapping[str, Any]) -> None:
    model, response_id = event.get("model"), event.get("id")
    answer.model = model if isinstance(model, str) else answer.model
    answer.response_id = response_id if isinstance(response_id, str) else answer.response_id


def _read_last_names(answer: Answer, events: Sequence[Mapping[str, Any]]) -> None:
    """Read model and id from the last events that name them; a stream repeats both in each."""
    for event in reversed(events):
        if answer.model is None and isinstance(model := event.get("model"), str):
            answer.model = model
        if answer.response_id is None and isinstance(response_id := event.get("id"), str):
            answer.response_id = response_id
        if answer.model is not None and answer.response_id is not None:
            return


def _mapping(value: object) -> Mapping[str, Any]:
    return value if is_mapping(value) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if is_mapping(one)] if is_list(value) else []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
