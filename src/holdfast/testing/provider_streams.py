"""Answers of providers as they send them: whole, or as the events of a stream, on each wire."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.wire.answers import JsonObject, Wire


@dataclass(slots=True)
class ProviderReply:
    """An answer: a text, calls of tools, or both."""

    text: str = ""
    tool: str | None = None
    """The tool that is called, with the arguments below; several calls are in `calls`."""
    tokens: int = 0
    """The size of the prompt, as it is billed."""
    arguments: JsonObject = field(default_factory=JsonObject)
    calls: Sequence[tuple[str, JsonObject]] = ()
    """Tools that are called, with their arguments."""

    @property
    def all_calls(self) -> list[tuple[str, JsonObject]]:
        """The calls, in order."""
        return [*([(self.tool, self.arguments)] if self.tool else ()), *self.calls]

    @property
    def pieces(self) -> list[str]:
        """The text as a stream sends it."""
        return re.findall(r"\S+\s*", self.text)


def _usage(wire: Wire, tokens: int) -> dict[str, int]:
    """Return a usage report, in the names of a wire."""
    match wire:
        case "openai-chat":
            return {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20}
        case "gemini":
            return {"promptTokenCount": tokens, "candidatesTokenCount": 20, "totalTokenCount": tokens + 20}
        case "anthropic":
            return {"input_tokens": tokens, "output_tokens": 20}
        case _:
            return {"input_tokens": tokens, "output_tokens": 20, "total_tokens": tokens + 20}


def whole_answer(wire: Wire, reply: ProviderReply, number: int = 1) -> JsonObject:
    """Return an answer without a stream."""
    usage = _usage(wire, reply.tokens)
    match wire:
        case "anthropic":
            end = {"stop_reason": "tool_use" if reply.all_calls else "end_turn"}
            return _anthropic_message(reply, number) | {"content": _anthropic_blocks(reply, number)} | end
        case "gemini":
            return _gemini_chunk(reply, _gemini_parts(reply), is_last=True)
        case "openai-responses":
            return _response(reply, number, _response_items(reply, number))
        case _:
            message: JsonObject = {
                "role": "assistant",
                "content": reply.text if reply.text or not reply.all_calls else None,
            }
            if reply.all_calls:
                message["tool_calls"] = _chat_calls(reply, number)
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.all_calls else "stop"}
            return {
                "id": f"c{number}",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [choice],
                "usage": usage,
            }


def stream_events(wire: Wire, reply: ProviderReply, number: int = 1) -> Iterator[tuple[str, JsonObject | str]]:
    """Yield the events of a stream, with their names."""
    match wire:
        case "anthropic":
            yield from _anthropic_events(reply, number)
        case "gemini":
            texts: list[JsonObject] = [{"text": piece} for piece in reply.pieces]
            parts = [*texts, *_gemini_parts(reply)[bool(texts) :]]
            for index, part in enumerate(parts):
                yield "", _gemini_chunk(reply, [part], is_last=index == len(parts) - 1)
        case "openai-responses":
            yield from _response_events(reply, number)
        case _:
            yield from _chat_events(reply, number)


def _call_number(number: int, index: int) -> str:
    """Return the number of a call, which tells it from all others."""
    return f"{number:04d}" + (f"_{index}" if index else "")


def _anthropic_message(reply: ProviderReply, number: int) -> JsonObject:
    message: JsonObject = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "m", "content": []}
    return message | {"stop_reason": None, "stop_sequence": None, "usage": _usage("anthropic", reply.tokens)}


def _anthropic_blocks(reply: ProviderReply, number: int) -> list[JsonObject]:
    texts: list[JsonObject] = [{"type": "text", "text": reply.text}] if reply.text or not reply.all_calls else []
    return texts + [
        {"type": "tool_use", "id": f"toolu_{_call_number(number, index)}", "name": name, "input": dict(arguments)}
        for index, (name, arguments) in enumerate(reply.all_calls)
    ]


def _anthropic_events(reply: ProviderReply, number: int) -> Iterator[tuple[str, JsonObject]]:
    yield "message_start", {"type": "message_start", "message": _anthropic_message(reply, number)}
    for index, block in enumerate(_anthropic_blocks(reply, number)):
        is_call = block["type"] == "tool_use"
        empty: JsonObject = block | ({"input": {}} if is_call else {"text": ""})
        if is_call:
            half = len(arguments := json.dumps(block["input"])) // 2
            parts = (arguments[:half], arguments[half:])
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        else:
            deltas = [{"type": "text_delta", "text": piece} for piece in reply.pieces]
        yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": empty}
        yield "ping", {"type": "ping"}
        for delta in deltas:
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    end = {"stop_reason": "tool_use" if reply.all_calls else "end_turn", "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": end, "usage": {"output_tokens": 20}}
    yield "message_stop", {"type": "message_stop"}


def _gemini_parts(reply: ProviderReply) -> list[JsonObject]:
    texts: list[JsonObject] = [{"text": reply.text}] if reply.text or not reply.all_calls else []
    return texts + [{"functionCall": {"name": name, "args": dict(arguments)}} for name, arguments in reply.all_calls]


def _gemini_chunk(reply: ProviderReply, parts: list[JsonObject], *, is_last: bool) -> JsonObject:
    candidate: JsonObject = {"content": {"role": "model", "parts": parts}, "index": 0}
    if is_last:
        candidate["finishReason"] = "STOP"
    return {"candidates": [candidate], "usageMetadata": _usage("gemini", reply.tokens), "modelVersion": "m"}


def _response_items(reply: ProviderReply, number: int) -> list[JsonObject]:
    content: list[JsonObject] = [{"type": "output_text", "text": reply.text, "annotations": []}]
    message: JsonObject = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
    texts = [message | {"content": content}] if reply.text or not reply.all_calls else []
    calls: list[JsonObject] = [
        {"type": "function_call", "id": f"fc_{number}" + (f"_{index}" if index else ""), "name": name}
        | {"call_id": f"call_{_call_number(number, index)}", "arguments": json.dumps(arguments), "status": "completed"}
        for index, (name, arguments) in enumerate(reply.all_calls)
    ]
    return texts + calls


def _response(reply: ProviderReply, number: int, output: list[JsonObject], status: str = "completed") -> JsonObject:
    usage = _usage("openai-responses", reply.tokens) | {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": "m", "status": status}
    fixed: JsonObject = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "metadata": {}}
    fixed |= {"incomplete_details": None, "instructions": None, "temperature": 1.0, "top_p": 1.0}
    return response | {"output": output, "usage": usage} | fixed


def _response_events(reply: ProviderReply, number: int) -> Iterator[tuple[str, JsonObject]]:
    items, count = _response_items(reply, number), iter(range(10_000))

    def event(kind: str, **members: object) -> tuple[str, JsonObject]:
        return kind, {"type": kind, "sequence_number": next(count), **members}

    yield event("response.created", response=_response(reply, number, [], "in_progress") | {"usage": None})
    for index, item in enumerate(items):
        place: JsonObject = {"item_id": item["id"], "output_index": index}
        is_call = item["type"] == "function_call"
        empty: JsonObject = {"arguments": ""} if is_call else {"content": []}
        yield event("response.output_item.added", output_index=index, item=item | {"status": "in_progress"} | empty)
        if is_call:
            yield event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            yield event("response.function_call_arguments.done", **place, arguments=item["arguments"])
        else:
            part: JsonObject = {"type": "output_text", "text": "", "annotations": []}
            yield event("response.content_part.added", **place, content_index=0, part=part)
            for piece in reply.pieces:
                yield event("response.output_text.delta", **place, content_index=0, delta=piece)
            yield event("response.output_text.done", **place, content_index=0, text=reply.text)
            yield event("response.content_part.done", **place, content_index=0, part=part | {"text": reply.text})
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=_response(reply, number, items))


def _chat_calls(reply: ProviderReply, number: int) -> list[JsonObject]:
    return [
        {
            "id": f"call_{_call_number(number, index)}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for index, (name, arguments) in enumerate(reply.all_calls)
    ]


def _chat_events(reply: ProviderReply, number: int) -> Iterator[tuple[str, JsonObject | str]]:
    def chunk(delta: JsonObject, end: str | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "finish_reason": end}
        return {"id": f"c{number}", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    yield "", chunk({"role": "assistant", "content": ""})
    for piece in reply.pieces:
        yield "", chunk({"content": piece})
    for index, call in enumerate(_chat_calls(reply, number)):
        arguments = call["function"]["arguments"]
        yield "", chunk({"tool_calls": [{"index": index, **call, "function": call["function"] | {"arguments": ""}}]})
        for part in (arguments[:5], arguments[5:]):
            yield "", chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield "", chunk({}, "tool_calls" if reply.all_calls else "stop")
    yield "", chunk({}) | {"choices": [], "usage": _usage("openai-chat", reply.tokens)}
    yield "", "[DONE]"


def event_bytes(name: str, event: JsonObject | str) -> bytes:
    """Return an event as a stream sends it."""
    text = event if isinstance(event, str) else json.dumps(event)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()
