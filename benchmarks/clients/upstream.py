"""An upstream double for real clients: it answers OpenAI chat and Responses, Anthropic Messages and Gemini.

Each answer is another one, so that conversations can be told apart. A prompt that contains a command word gets a call:
`use-a-tool` a call of a tool that reads, `use-an-agent` a call of a tool that starts a sub-agent. An order for a
summary or a title gets one. Every request is kept, byte for byte.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web

from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events, whole_answer
from holdfast.wire.answers import Wire

READING_TOOLS = ("Read", "read_file", "read", "view", "ReadFile", "exec_command", "shell_command", "shell", "bash")
AGENT_TOOLS = ("Agent", "Task", "task", "agent", "spawn_agent", "invoke_agent")
GEMINI_AGENT = "generalist"
"""An agent that the Gemini CLI always has; its tool names none."""
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
    order: str = ""
    """What was said last."""


class UpstreamDouble:
    """Answers requests of clients, and keeps them."""

    def __init__(self, file_to_read: str) -> None:
        self.received: list[Received] = []
        self._file = file_to_read
        self._count = 0

    def app(self) -> web.Application:
        """Return the server."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self.serve)
        return app

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
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
        reply.tokens = len(body) // 4
        received.answer = reply.text
        wire = wire_of(path)
        if not (value.get("stream") or "streamGenerateContent" in path):
            return web.json_response(whole_answer(wire, reply, self._count))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for name, event in stream_events(wire, reply, self._count):
            await response.write(event_bytes(name, event))
        return response

    def _reply(self, received: Received, body: Mapping[str, Any]) -> ProviderReply:
        self._count += 1
        number = self._count
        messages = body.get("messages") or body.get("contents") or body.get("input") or []
        messages = messages if isinstance(messages, list) else [{"role": "user", "content": messages}]
        said = _last_prompts(messages)
        last = received.order = "\n".join(said)
        tools = _tools(body)
        hint = " ".join(
            received.headers.get(name, "") for name in ("x-claude-code-request-class", "x-interaction-type")
        )
        hint += received.headers.get("x-codex-turn-metadata", "")
        system = " ".join(_texts([body.get("system"), body.get("instructions"), *messages[:1]]))
        newest = next(reversed([*_texts(messages[-1:])]), "")
        is_order = len(newest) > 100 and SUMMARY_ORDER.search(newest[-6000:]) and _is_prompt(messages[-1])
        if "compaction" in hint or is_order:
            received.kind = "summary"
            words = " ".join(f"point{number}x{index}" for index in range(30))
            return ProviderReply(f"<summary>This is summary {number} of the work done: {words}</summary>")
        if not tools and (TITLE_ORDER.search(system[:3000]) or TITLE_ORDER.search(last[:300])):
            received.kind = "side"
            return ProviderReply(f"Title {number}")
        schema = (body.get("generationConfig") or {}).get("responseJsonSchema")
        if schema and not tools:
            received.kind = "side"
            return ProviderReply(json.dumps(self._arguments(schema, number)))
        is_fresh = bool(messages) and _is_prompt(messages[-1])
        orders: tuple[tuple[str, tuple[str, ...], Kind], ...] = (
            (USE_A_TOOL, READING_TOOLS, "call"),
            (USE_AN_AGENT, AGENT_TOOLS, "agent"),
        )
        for word, names, kind in orders:
            name = next((one for one in names if one in tools), None)
            is_ordered = any(text.strip(' "\n').endswith(word) for text in said)
            if is_fresh and name and is_ordered:
                received.kind = kind
                return ProviderReply(tool=name, arguments=self._arguments(tools[name], number))
        return ProviderReply(f"Answer {number}: this is what I have to say about it, no more.")

    def _arguments(self, schema: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return arguments that a tool accepts, by the names and types of its parameters."""
        found: dict[str, Any] = {}
        properties = schema.get("properties") or {}
        for name in schema.get("required") or properties:
            kind = properties.get(name, {})
            kind = {**kind, "type": str(kind.get("type")).lower()}
            lower, choices = name.lower(), kind.get("enum")
            if choices:
                found[name] = choices[0]
            elif "path" in lower or "file" in lower:
                found[name] = self._file
            elif lower in {"cmd", "command"}:
                is_list = kind.get("type") == "array"
                found[name] = ["cat", self._file] if is_list else f"cat {self._file}"
            elif lower == "agent_name":
                found[name] = GEMINI_AGENT
            elif lower == "subagent_type":
                found[name] = "general-purpose" if "general-purpose" in json.dumps(schema) else "general"
            elif kind.get("type") == "boolean":
                found[name] = False
            elif kind.get("type") in {"integer", "number"}:
                found[name] = 1
            else:
                found[name] = f"sub-task {number}"
        return found


def wire_of(path: str) -> Wire:
    """Return the API that a path belongs to."""
    path = path.partition("?")[0]
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


def _last_prompts(messages: list[Any]) -> list[str]:
    """Return the texts that were said after the last answer, or last before it."""
    texts: list[str] = []
    for message in reversed([one for one in messages if isinstance(one, dict)]):
        if _is_prompt(message):
            texts[:0] = list(_texts(message))
        elif texts:
            break
    return texts


def _tools(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for tool in body.get("tools") or []:
        declared = tool.get("functionDeclarations") or [tool.get("function") or tool]
        for one in declared:
            schema = one.get("parameters") or one.get("input_schema") or one.get("parametersJsonSchema") or {}
            found[one.get("name") or ""] = schema
    return found
