"""Clients as they were seen on the wire, small and with texts of our own: how each repeats its list, and what else it
sends beside the conversation.

Each keeps its list itself, sends it whole with every request, and rewrites messages the way the real client does.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from holdfast.apps.gateway.recording.exchange import ClientRequest
from holdfast.testing.provider_streams import ProviderReply, whole_answer
from holdfast.wire.answers import Wire, read_answer

Json: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["main", "side", "summary", "agent"]
PATHS: dict[Wire, str] = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages?beta=true",
    "gemini": "/v1beta/models/gemini-2.5-pro:generateContent",
}
LISTS: dict[Wire, str] = {
    "openai-chat": "messages",
    "openai-responses": "input",
    "anthropic": "messages",
    "gemini": "contents",
}
SUMMARY_ORDER = (
    "Your task is to create a detailed summary of the conversation so far. Answer with text only, do not call tools, "
    "and leave out nothing that is needed to continue the work without the messages before it."
)


@dataclass
class Sent:
    """A request that a client sends: what it is, and what the provider answers."""

    request: ClientRequest
    kind: Kind
    reply: ProviderReply
    number: int = 1
    """Distinguishes the calls of a conversation."""


@dataclass
class SimulatedClient:
    """A client with one conversation, and the agent that speaks in it."""

    name: str
    wire: ClassVar[Wire] = "openai-chat"
    model: ClassVar[str] = "m"
    system: ClassVar[str] = "You are a coding agent. Be brief. Ask before you delete."
    tools: ClassVar[tuple[str, ...]] = ("read", "write", "run", "search")
    kept: list[Json] = field(default_factory=list[Json])
    turns: int = 0
    said: list[str] = field(default_factory=list[str])
    """Every prompt so far."""
    side_answers: list[str] = field(default_factory=list[str])

    def headers(self) -> dict[str, str]:
        """Return the headers that name the conversation."""
        return {}

    def fields(self) -> Json:
        """Return the members of the body that name the conversation."""
        return {}

    def turn(self) -> Iterator[Sent]:
        """Yield the requests of one turn."""
        self.turns += 1
        prompt = "Hello" if self.turns == 1 else f"{self.name} says {self.turns}"
        self.said.append(prompt)
        self.kept.append(self.prompt(prompt))
        if self.turns % 3 == 2:
            reply = ProviderReply(tool="read", arguments={"path": "a.txt", "limit": self.turns})
            yield self.main(reply)
            self.kept.append(self.result(self.kept[-1], f"text of {self.name} {self.turns}"))
        yield self.main(
            ProviderReply("All done, as you asked.") if self.turns < 3 else ProviderReply(f"Done {self.turns}.")
        )

    def main(self, reply: ProviderReply) -> Sent:
        """Return a request of the conversation; its answer is appended to the list."""
        sent = Sent(self.request(self.kept, self.system, self.tools), "main", reply, self.turns)
        self.kept += self.answer(reply)
        return sent

    def side(self, messages: list[Json], system: str, tools: tuple[str, ...], text: str, kind: Kind = "side") -> Sent:
        """Return a request beside the conversation."""
        self.side_answers.append(text)
        return Sent(self.request(messages, system, tools), kind, ProviderReply(text))

    def request(self, messages: list[Json], system: str, tools: tuple[str, ...], **headers: str) -> ClientRequest:
        """Return a request as the client sends it."""
        body = {"model": self.model, **self.body(copy.deepcopy(messages), system, tools), **self.fields()}
        return ClientRequest(
            wire=self.wire,
            path=PATHS[self.wire],
            session_in_path=None,
            headers=self.headers() | headers,
            body=json.dumps(body).encode(),
            namespace="",
            upstream="openai",
        )

    def body(self, messages: list[Json], system: str, tools: tuple[str, ...]) -> Json:
        """Return a body of the wire."""
        return {
            "messages": [{"role": "system", "content": system}, *messages],
            "tools": [{"type": "function", "function": {"name": tool, "parameters": {}}} for tool in tools],
            "stream": True,
        }

    def prompt(self, text: str) -> Json:
        """Return a prompt as a message."""
        return {"role": "user", "content": text}

    def result(self, call: Json, text: str) -> Json:
        """Return the result of the call in a message."""
        return {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": text}

    def answer(self, reply: ProviderReply) -> list[Json]:
        """Return an answer as the client repeats it."""
        return read_answer(self.wire, [whole_answer(self.wire, reply, self.turns)]).messages


class Pi(SimulatedClient):
    """No name at all; texts as blocks; null beside calls."""

    def prompt(self, text: str) -> Json:
        return {"role": "user", "content": [{"type": "text", "text": text}]}


class Copilot(SimulatedClient):
    """No name; writes arguments again, drops `refusal` and adds fields of its own when it resumes."""

    def turn(self) -> Iterator[Sent]:
        for message in self.kept:
            message.pop("refusal", None)
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
            if message["role"] == "tool":
                message["__copilotMessageSource"] = {"kind": "tool"}
        yield from super().turn()

    def answer(self, reply: ProviderReply) -> list[Json]:
        [message] = super().answer(reply)
        return [{**message, "refusal": None, "content": message["content"] or None}]


class Opencode(SimulatedClient):
    """Names its session in two headers, and asks for a title under the same name before its first turn."""

    def headers(self) -> dict[str, str]:
        return {"x-session-id": f"ses_{self.name}", "x-session-affinity": f"ses_{self.name}"}

    def turn(self) -> Iterator[Sent]:
        if not self.turns:
            order = [self.prompt("Generate a title for this conversation:\n"), self.prompt('"Hello"')]
            yield self.side(order, "You write titles. Nothing else.", (), f"Title of {self.name}")
        yield from super().turn()


class Qwen(SimulatedClient):
    """No name; begins each conversation with the same words; an agent for memory repeats the list after each turn."""

    def turn(self) -> Iterator[Sent]:
        if not self.turns:
            self.kept += [
                self.prompt("This is the setting: linux."),
                {"role": "assistant", "content": "Got it. Thanks!"},
            ]
        yield from super().turn()
        order = [*self.kept, self.prompt("Extract from the above what is worth remembering.")]
        text = f"remembered {self.turns} of {self.name}"
        yield self.side(order, "You extract memories. You see the messages of another agent.", ("read_memory",), text)


class Kimi(SimulatedClient):
    """Names its session in the body, and sends another `max_tokens` each time."""

    def fields(self) -> Json:
        return {"prompt_cache_key": f"session_{self.name}", "max_tokens": 32_000 - self.turns}


class SharedKey(SimulatedClient):
    """Every conversation has the same `prompt_cache_key`, which routes requests and names none of them."""

    def fields(self) -> Json:
        return {"prompt_cache_key": "my-application"}


class Gemini(SimulatedClient):
    """No name; gives ids to calls and signatures to parts that had none; repeats a result when it resumes."""

    wire = "gemini"

    def body(self, messages: list[Json], system: str, tools: tuple[str, ...]) -> Json:
        declared = [{"name": tool} for tool in tools]
        instruction = {"role": "user", "parts": [{"text": system}]}
        return {"contents": messages, "systemInstruction": instruction, "tools": [{"functionDeclarations": declared}]}

    def turn(self) -> Iterator[Sent]:
        for message in self.kept:
            if "functionResponse" in message["parts"][0]:
                message["parts"] = message["parts"][:1] * 2
        yield from super().turn()

    def prompt(self, text: str) -> Json:
        return {"role": "user", "parts": [{"text": text}]}

    def result(self, call: Json, text: str) -> Json:
        name, own = call["parts"][0]["functionCall"]["name"], call["parts"][0]["functionCall"]["id"]
        return {
            "role": "user",
            "parts": [{"functionResponse": {"id": own, "name": name, "response": {"output": text}}}],
        }

    def answer(self, reply: ProviderReply) -> list[Json]:
        [message] = super().answer(reply)
        for part in message["parts"]:
            if "functionCall" in part:
                part["functionCall"]["id"] = f"{self.name}-{self.turns}"
                part["thoughtSignature"] = "none"
        return [message]


class Claude(SimulatedClient):
    """Names its session in a header; moves its cache mark; has sub-agents; compacts, and keeps the newest messages."""

    wire = "anthropic"

    def headers(self) -> dict[str, str]:
        return {"x-claude-code-session-id": self.name}

    def body(self, messages: list[Json], system: str, tools: tuple[str, ...]) -> Json:
        messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        declared = [{"name": tool, "input_schema": {"type": "object"}} for tool in tools]
        return {"messages": messages, "system": [{"type": "text", "text": system}], "tools": declared, "stream": True}

    def prompt(self, text: str) -> Json:
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    def result(self, call: Json, text: str) -> Json:
        block = {"type": "tool_result", "tool_use_id": call["content"][0]["id"], "content": text}
        return {"role": "user", "content": [block]}

    def turn(self) -> Iterator[Sent]:
        if self.turns % 5 == 4:
            yield from self.compaction()
        yield from super().turn()
        if self.turns % 5 == 2:
            task = [self.prompt(f"a task of {self.name}")]
            headers = {"x-claude-code-agent-id": f"agent-{self.turns}", "x-claude-code-agent-type": "explorer"}
            request = self.request(task, "You are a sub-agent that explores.", ("read", "find"), **headers)
            yield Sent(request, "agent", ProviderReply(f"explored for {self.name}"))

    def compaction(self) -> Iterator[Sent]:
        """Order a summary of all but the newest messages, and begin a new list with it."""
        summarized, kept = self.kept[:-3], self.kept[-3:]
        order = copy.deepcopy(summarized)
        if order[-1]["role"] == "user":
            order[-1]["content"].append({"type": "text", "text": SUMMARY_ORDER})
        else:
            order.append(self.prompt(SUMMARY_ORDER))
        text = f"<summary>What {self.name} said until turn {self.turns}, in a few words of its own.</summary>"
        yield self.side(order, self.system, self.tools, text, "summary")
        inner = text.removeprefix("<summary>").removesuffix("</summary>")
        first = self.prompt(f"This conversation goes on from an earlier one.\n\nSummary:\n{inner}")
        self.kept = [first, *(kept if kept[0]["role"] == "assistant" else kept[1:])]


class Codex(SimulatedClient):
    """Names its thread in headers; its list begins with developer messages; compacts without tools."""

    wire = "openai-responses"
    window: int = 0

    def headers(self) -> dict[str, str]:
        return {"thread-id": self.name, "session-id": self.name, "x-codex-window-id": f"{self.name}:{self.window}"}

    def fields(self) -> Json:
        return {"prompt_cache_key": self.name, "store": False}

    def body(self, messages: list[Json], system: str, tools: tuple[str, ...]) -> Json:
        developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": system}]}
        declared = [{"type": "function", "name": tool, "parameters": {}} for tool in tools]
        return {"input": [developer, *messages], "tools": declared, "stream": True}

    def prompt(self, text: str) -> Json:
        return {
            "type": "message",
            "id": f"msg_{self.turns}",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
        }

    def result(self, call: Json, text: str) -> Json:
        return {"type": "function_call_output", "call_id": call["call_id"], "output": text}

    def turn(self) -> Iterator[Sent]:
        if self.turns % 5 == 4:
            text = f"Handoff of {self.name} after turn {self.turns}: everything that matters is here."
            order = [*self.kept, self.prompt(SUMMARY_ORDER)]
            headers = {"x-codex-turn-metadata": json.dumps({"request_kind": "compaction"})}
            self.side_answers.append(text)
            yield Sent(self.request(order, self.system, (), **headers), "summary", ProviderReply(text))
            self.window += 1
            prompts = [item for item in self.kept if item.get("role") == "user" and "Summary of" not in str(item)]
            self.kept = [*prompts, self.prompt(f"Summary of the work so far: {text}")]
        yield from super().turn()


CLIENTS = (Pi, Copilot, Opencode, Qwen, Kimi, SharedKey, Gemini, Claude, Codex)
