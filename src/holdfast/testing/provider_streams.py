"""Answers of providers as they send them: whole, or as the events of a stream, on each wire."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.wire.answers import JsonObject, Wire


@dataclass(slots=True)
class ProviderReply:
    """An answer: a text, or one call of a tool."""

    text: str = ""
    tool: str | None = None
    tokens: int = 0
    """The size of the prompt, as it is billed."""
    arguments: JsonObject = field(default_factory=JsonObject)

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
            return _anthropic_message(reply, number) | {"content": [_anthropic_block(reply, number)]}
        case "gemini":
            return _gemini_chunk(reply, [_gemini_part(reply)], is_last=True)
        case "openai-responses":
            return _response(reply, number, [_item(reply, number)])
        case _:
            message: JsonObject = {"role": "assistant", "content": None if reply.tool else reply.text}
            if reply.tool:
                message["tool_calls"] = [_chat_call(reply, number)]
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.tool else "stop"}
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
            parts = [_gemini_part(reply)] if reply.tool else [{"text": piece} for piece in reply.pieces]
            for index, part in enumerate(parts):
                yield "", _gemini_chunk(reply, [part], is_last=index == len(parts) - 1)
        case "openai-responses":
            yield from _response_events(reply, number)
        case _:
            yield from _chat_events(reply, number)


def _anthropic_message(reply: ProviderReply, number: int) -> JsonObject:
    message: JsonObject = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "m", "content": []}
    return message | {"stop_reason": None, "stop_sequence": None, "usage": _usage("anthropic", reply.tokens)}


def _anthropic_block(reply: ProviderReply, number: int) -> JsonObject:
    if reply.tool:
        return {"type": "tool_use", "id": f"toolu_{number:04d}", "name": reply.tool, "input": dict(reply.arguments)}
    return {"type": "text", "text": reply.text}


def _anthropic_events(reply: ProviderReply, number: int) -> Iterator[tuple[str, JsonObject]]:
    block = _anthropic_block(reply, number)
    empty: JsonObject = block | ({"input": {}} if reply.tool else {"text": ""})
    if reply.tool:
        half = len(arguments := json.dumps(reply.arguments)) // 2
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in (arguments[:half], arguments[half:])]
    else:
        deltas = [{"type": "text_delta", "text": piece} for piece in reply.pieces]
    yield "message_start", {"type": "message_start", "message": _anthropic_message(reply, number)}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": empty}
    yield "ping", {"type": "ping"}
    for delta in deltas:
        yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": "tool_use" if reply.tool else "end_turn", "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": end, "usage": {"output_tokens": 20}}
    yield "message_stop", {"type": "message_stop"}


def _gemini_part(reply: ProviderReply) -> JsonObject:
    if reply.tool:
        return {"functionCall": {"name": reply.tool, "args": dict(reply.arguments)}}
    return {"text": reply.text}


def _gemini_chunk(reply: ProviderReply, parts: list[JsonObject], *, is_last: bool) -> JsonObject:
    candidate: JsonObject = {"content": {"role": "model", "parts": parts}, "index": 0}
    if is_last:
        candidate["finishReason"] = "STOP"
    return {"candidates": [candidate], "usageMetadata": _usage("gemini", reply.tokens), "modelVersion": "m"}


def _item(reply: ProviderReply, number: int) -> JsonObject:
    if reply.tool:
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number:04d}", "name": reply.tool}
        return call | {"arguments": json.dumps(reply.arguments), "status": "completed"}
    content: list[JsonObject] = [{"type": "output_text", "text": reply.text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}


def _response(reply: ProviderReply, number: int, output: list[JsonObject], status: str = "completed") -> JsonObject:
    usage = _usage("openai-responses", reply.tokens) | {
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": "m", "status": status}
    fixed: JsonObject = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "metadata": {}}
    fixed |= {"incomplete_details": None, "instructions": None, "temperature": 1.0, "top_p": 1.0}
    return response | {"output": output, "usage": usage} | fixed


def _response_events(reply: ProviderReply, number: int) -> Iterator[tuple[str, JsonObject]]:
    item, count = _item(reply, number), iter(range(10_000))

    def event(kind: str, **members: object) -> tuple[str, JsonObject]:
        return kind, {"type": kind, "sequence_number": next(count), **members}

    place: JsonObject = {"item_id": item["id"], "output_index": 0}
    yield event("response.created", response=_response(reply, number, [], "in_progress") | {"usage": None})
    empty: JsonObject = {"arguments": ""} if reply.tool else {"content": []}
    yield event("response.output_item.added", output_index=0, item=item | {"status": "in_progress"} | empty)
    if reply.tool:
        yield event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        yield event("response.function_call_arguments.done", **place, arguments=item["arguments"])
    else:
        part: JsonObject = {"type": "output_text", "text": "", "annotations": []}
        yield event("response.content_part.added", **place, content_index=0, part=part)
        for piece in reply.pieces:
            yield event("response.output_text.delta", **place, content_index=0, delta=piece)
        yield event("response.output_text.done", **place, content_index=0, text=reply.text)
        yield event("response.content_part.done", **place, content_index=0, part=part | {"text": reply.text})
    yield event("response.output_item.done", output_index=0, item=item)
    yield event("response.completed", response=_response(reply, number, [item]))


def _chat_call(reply: ProviderReply, number: int) -> JsonObject:
    function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
    return {"id": f"call_{number:04d}", "type": "function", "function": function}


def _chat_events(reply: ProviderReply, number: int) -> Iterator[tuple[str, JsonObject | str]]:
    def chunk(delta: JsonObject, end: str | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "finish_reason": end}
        return {"id": f"c{number}", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    yield "", chunk({"role": "assistant", "content": ""})
    if reply.tool:
        call = _chat_call(reply, number)
        arguments = call["function"]["arguments"]
        yield "", chunk({"tool_calls": [{"index": 0, **call, "function": call["function"] | {"arguments": ""}}]})
        for part in (arguments[:5], arguments[5:]):
            yield "", chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
    for piece in reply.pieces:
        yield "", chunk({"content": piece})
    yield "", chunk({}, "tool_calls" if reply.tool else "stop")
    yield "", chunk({}) | {"choices": [], "usage": _usage("openai-chat", reply.tokens)}
    yield "", "[DONE]"


def event_bytes(name: str, event: JsonObject | str) -> bytes:
    """Return an event as a stream sends it."""
    text = event if isinstance(event, str) else json.dumps(event)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()
