"""An upstream double for real clients: it answers OpenAI chat and Responses, Anthropic Messages and Gemini.

Each answer is another one, so that conversations can be told apart. A prompt that contains a command word gets a call:
`use-a-tool` a call of a tool that reads, `use-an-agent` a call of a tool that starts a sub-agent. An order for a
summary or a title gets one. Every request is kept, byte for byte.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

READING_TOOLS = ("Read", "read_file", "read", "view", "ReadFile", "exec_command", "shell_command", "shell", "bash")
AGENT_TOOLS = ("Agent", "Task", "task", "agent")
USE_A_TOOL, USE_AN_AGENT = "use-a-tool", "use-an-agent"
SUMMARY_ORDER = re.compile(r"(?is)(summar|handoff|checkpoint).{0,2000}(conversation|context|history|work)")
TITLE_ORDER = re.compile(r"(?i)\btitle\b")

Kind = Literal["answer", "call", "agent", "summary", "side", "count"]


@dataclass(slots=True)
class Received:
    """A request that the double received, and how it answered."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    kind: Kind = "answer"
    answer: str = ""


@dataclass(slots=True)
class Reply:
    """An answer: a text, or one call of a tool."""

    text: str = ""
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def pieces(self) -> list[str]:
        """The text as a stream sends it."""
        return re.findall(r"\S+\s*", self.text)


class UpstreamDouble:
    """Answers requests of clients, and keeps them."""

    def __init__(self, file_to_read: str) -> None:
        self.received: list[Received] = []
        self._file = file_to_read
        self._count = 0

    def app(self) -> web.Application:
        """Return the server."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body, path = await request.read(), request.path
        if request.method != "POST" or not body:
            return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(path, headers, body)
        self.received.append(received)
        value = json.loads(body)
        if path.endswith(("count_tokens", ":countTokens")):
            received.kind = "count"
            return web.json_response({"input_tokens": 100, "totalTokens": 100})
        reply = self._reply(received, value)
        received.answer = reply.text
        wire = _wire(path)
        if not (value.get("stream") or "streamGenerateContent" in path):
            return web.json_response(_whole(wire, reply, self._count))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for name, event in _events(wire, reply, self._count):
            line = event if isinstance(event, str) else json.dumps(event)
            await response.write((f"event: {name}\n" if name else "").encode() + f"data: {line}\n\n".encode())
        return response

    def _reply(self, received: Received, body: Mapping[str, Any]) -> Reply:
        self._count += 1
        number = self._count
        messages = body.get("messages") or body.get("contents") or body.get("input") or []
        messages = messages if isinstance(messages, list) else [{"role": "user", "content": messages}]
        last = _last_prompt(messages)
        tools = _tools(body)
        hint = " ".join(
            received.headers.get(name, "") for name in ("x-claude-code-request-class", "x-interaction-type")
        )
        hint += received.headers.get("x-codex-turn-metadata", "")
        system = " ".join(_texts([body.get("system"), body.get("instructions"), *messages[:1]]))
        if "compaction" in hint or (len(last) > 100 and SUMMARY_ORDER.search(last)):
            received.kind = "summary"
            words = " ".join(f"point{number}x{index}" for index in range(30))
            return Reply(f"<summary>This is summary {number} of the work done: {words}</summary>")
        if not tools and (TITLE_ORDER.search(system[:3000]) or TITLE_ORDER.search(last[:300])):
            received.kind = "side"
            return Reply(f"Title {number}")
        is_fresh = bool(messages) and _is_prompt(messages[-1])
        for word, names, kind in ((USE_A_TOOL, READING_TOOLS, "call"), (USE_AN_AGENT, AGENT_TOOLS, "agent")):
            name = next((one for one in names if one in tools), None)
            if is_fresh and name and word in last:
                received.kind = kind
                return Reply(tool=name, arguments=self._arguments(tools[name], number))
        return Reply(f"Answer {number}: this is what I have to say about it, no more.")

    def _arguments(self, schema: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return arguments that a tool accepts, by the names and types of its parameters."""
        found: dict[str, Any] = {}
        properties = schema.get("properties") or {}
        for name in schema.get("required") or properties:
            kind = properties.get(name, {})
            lower, choices = name.lower(), kind.get("enum")
            if choices:
                found[name] = choices[0]
            elif "path" in lower or "file" in lower:
                found[name] = self._file
            elif lower in {"cmd", "command"}:
                is_list = kind.get("type") == "array"
                found[name] = ["cat", self._file] if is_list else f"cat {self._file}"
            elif lower == "subagent_type":
                found[name] = "general-purpose" if "general-purpose" in json.dumps(schema) else "general"
            elif kind.get("type") == "boolean":
                found[name] = False
            elif kind.get("type") in {"integer", "number"}:
                found[name] = 1
            else:
                found[name] = f"sub-task {number}"
        return found


def _wire(path: str) -> str:
    if path.endswith("/messages"):
        return "anthropic"
    if "enerateContent" in path:
        return "gemini"
    return "openai-responses" if "/responses" in path else "openai-chat"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        for name in ("text", "content", "parts"):
            yield from _texts(value.get(name))


def _is_prompt(message: Mapping[str, Any]) -> bool:
    content = message.get("content", message.get("parts"))
    blocks = content if isinstance(content, list) else [content]
    is_text = any(
        isinstance(one, str) or (isinstance(one, dict) and isinstance(one.get("text"), str)) for one in blocks
    )
    return message.get("role") == "user" and is_text


def _last_prompt(messages: list[Any]) -> str:
    prompts = [message for message in messages if isinstance(message, dict) and _is_prompt(message)]
    texts = list(_texts(prompts[-1])) if prompts else []
    return texts[-1] if texts else ""


def _tools(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for tool in body.get("tools") or []:
        declared = tool.get("functionDeclarations") or [tool.get("function") or tool]
        for one in declared:
            schema = one.get("parameters") or one.get("input_schema") or one.get("parametersJsonSchema") or {}
            found[one.get("name") or ""] = schema
    return found


USAGE = {
    "openai-chat": {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020},
    "openai-responses": {"input_tokens": 1000, "output_tokens": 20, "total_tokens": 1020},
    "anthropic": {"input_tokens": 1000, "output_tokens": 20},
    "gemini": {"promptTokenCount": 1000, "candidatesTokenCount": 20, "totalTokenCount": 1020},
}


def _whole(wire: str, reply: Reply, number: int) -> dict[str, Any]:
    """Return an answer without a stream."""
    usage = USAGE[wire]
    match wire:
        case "anthropic":
            return _anthropic_message(number) | {"content": [_anthropic_block(reply, number)], "usage": usage}
        case "gemini":
            return _gemini_chunk([_gemini_part(reply)], is_last=True)
        case "openai-responses":
            return _response(number, [_item(reply, number)])
        case _:
            message = {"role": "assistant", "content": None if reply.tool else reply.text}
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


def _events(wire: str, reply: Reply, number: int) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield the events of a stream, with their names."""
    match wire:
        case "anthropic":
            yield from _anthropic_events(reply, number)
        case "gemini":
            parts = [_gemini_part(reply)] if reply.tool else [{"text": piece} for piece in reply.pieces]
            for index, part in enumerate(parts):
                yield "", _gemini_chunk([part], is_last=index == len(parts) - 1)
        case "openai-responses":
            yield from _response_events(reply, number)
        case _:
            yield from _chat_events(reply, number)


def _anthropic_message(number: int) -> dict[str, Any]:
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "m", "content": []}
    return message | {"stop_reason": None, "stop_sequence": None, "usage": USAGE["anthropic"]}


def _anthropic_block(reply: Reply, number: int) -> dict[str, Any]:
    if reply.tool:
        return {"type": "tool_use", "id": f"toolu_{number:04d}", "name": reply.tool, "input": dict(reply.arguments)}
    return {"type": "text", "text": reply.text}


def _anthropic_events(reply: Reply, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    block = _anthropic_block(reply, number)
    if reply.tool:
        empty, half = block | {"input": {}}, len(arguments := json.dumps(reply.arguments)) // 2
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in (arguments[:half], arguments[half:])]
    else:
        empty, deltas = block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in reply.pieces]
    yield "message_start", {"type": "message_start", "message": _anthropic_message(number)}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": empty}
    yield "ping", {"type": "ping"}
    for delta in deltas:
        yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": "tool_use" if reply.tool else "end_turn", "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": end, "usage": {"output_tokens": 20}}
    yield "message_stop", {"type": "message_stop"}


def _gemini_part(reply: Reply) -> dict[str, Any]:
    if reply.tool:
        return {"functionCall": {"name": reply.tool, "args": dict(reply.arguments)}}
    return {"text": reply.text}


def _gemini_chunk(parts: list[dict[str, Any]], *, is_last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if is_last:
        candidate["finishReason"] = "STOP"
    return {"candidates": [candidate], "usageMetadata": USAGE["gemini"], "modelVersion": "m"}


def _item(reply: Reply, number: int) -> dict[str, Any]:
    if reply.tool:
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number:04d}", "name": reply.tool}
        return call | {"arguments": json.dumps(reply.arguments), "status": "completed"}
    content = [{"type": "output_text", "text": reply.text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}


def _response(number: int, output: list[dict[str, Any]], status: str = "completed") -> dict[str, Any]:
    usage = USAGE["openai-responses"] | {
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    response = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": "m", "status": status}
    fixed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "metadata": {}}
    fixed |= {"incomplete_details": None, "instructions": None, "temperature": 1.0, "top_p": 1.0}
    return response | {"output": output, "usage": usage} | fixed


def _response_events(reply: Reply, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    item, count = _item(reply, number), iter(range(10_000))

    def event(kind: str, **members: Any) -> tuple[str, dict[str, Any]]:
        return kind, {"type": kind, "sequence_number": next(count), **members}

    place: dict[str, Any] = {"item_id": item["id"], "output_index": 0}
    yield event("response.created", response=_response(number, [], "in_progress") | {"usage": None})
    empty: dict[str, Any] = {"arguments": ""} if reply.tool else {"content": []}
    yield event("response.output_item.added", output_index=0, item=item | {"status": "in_progress"} | empty)
    if reply.tool:
        yield event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        yield event("response.function_call_arguments.done", **place, arguments=item["arguments"])
    else:
        part = {"type": "output_text", "text": "", "annotations": []}
        yield event("response.content_part.added", **place, content_index=0, part=part)
        for piece in reply.pieces:
            yield event("response.output_text.delta", **place, content_index=0, delta=piece)
        yield event("response.output_text.done", **place, content_index=0, text=reply.text)
        yield event("response.content_part.done", **place, content_index=0, part=part | {"text": reply.text})
    yield event("response.output_item.done", output_index=0, item=item)
    yield event("response.completed", response=_response(number, [item]))


def _chat_call(reply: Reply, number: int) -> dict[str, Any]:
    function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
    return {"id": f"call_{number:04d}", "type": "function", "function": function}


def _chat_events(reply: Reply, number: int) -> Iterator[tuple[str, dict[str, Any] | str]]:
    def chunk(delta: dict[str, Any], end: str | None = None) -> dict[str, Any]:
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
    yield "", chunk({}) | {"choices": [], "usage": USAGE["openai-chat"]}
    yield "", "[DONE]"
