"""The libraries of OpenAI and Anthropic take a request as it is, and their answers are recorded as they come.

The type checker reads this file too: `messages=`, `tools=`, `system=` and `input=` are passed without a cast.
"""

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

from anthropic import Anthropic
from openai import OpenAI

from holdfast.blocking import Session

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}


class Upstream:
    """A server that answers every request with the same body, and remembers what it got."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        bodies = self.bodies = list[dict[str, Any]]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server says
                del format, args

        self._server = HTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_openais_chat_client_takes_a_request_and_its_answer_is_recorded() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    usage = {"prompt_tokens": 90, "completion_tokens": 7, "total_tokens": 97}
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    upstream, tools = Upstream(answer), [{"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}]
    with (
        upstream as url,
        OpenAI(api_key="none", base_url=url) as client,
        Session.open("s", format="openai-chat") as session,
    ):
        session.record([{"role": "user", "content": "Read it."}])
        request = session.prepare(16_000, model="gpt-5", tools=tools)
        response = client.chat.completions.create(model="gpt-5", messages=request.messages, tools=request.tools)
        session.record([response.choices[0].message], usage=response.usage)

        assert upstream.bodies == [
            {"model": "gpt-5", "messages": [{"role": "user", "content": "Read it."}], "tools": tools}
        ]
        assert session.messages()[1] == {"role": "assistant", "tool_calls": [call]}


def test_openais_responses_client_takes_a_request_and_its_answer_is_recorded() -> None:
    content = [{"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}]
    output = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 90, "output_tokens": 7, "total_tokens": 97, **details}
    answer = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [output], "usage": usage}
    upstream = Upstream({**answer, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []})
    tools = [{"type": "function", "name": "read", "parameters": PARAMETERS, "strict": False}]
    with (
        upstream as url,
        OpenAI(api_key="none", base_url=url) as client,
        Session.open("s", format="openai-responses") as session,
    ):
        session.record([{"role": "user", "content": "Read it."}])
        request = session.prepare(16_000, model="gpt-5", system="Be brief.", tools=tools)
        response = client.responses.create(
            model="gpt-5", input=request.messages, instructions=request.system, tools=request.tools
        )
        session.record(response.output, usage=response.usage)

        assert upstream.bodies == [
            {
                "model": "gpt-5",
                "input": [{"role": "user", "content": "Read it."}],
                "instructions": "Be brief.",
                "tools": tools,
            }
        ]
        assert session.messages()[1]["content"] == content


def test_anthropics_client_takes_a_request_and_its_answer_is_recorded() -> None:
    block = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}}
    usage = {"input_tokens": 90, "output_tokens": 7, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    answer = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": [block], "usage": usage}
    upstream = Upstream({**answer, "stop_reason": "tool_use", "stop_sequence": None})
    tools = [{"name": "read", "input_schema": PARAMETERS}]
    with (
        upstream as url,
        Anthropic(api_key="none", base_url=url) as client,
        Session.open("s", format="anthropic") as session,
    ):
        session.record([{"role": "user", "content": "Read it."}])
        request = session.prepare(16_000, model="claude-sonnet-5", system="Be brief.", tools=tools)
        response = client.messages.create(
            model="claude-sonnet-5",
            max_tokens=100,
            messages=request.messages,
            system=request.system,
            tools=request.tools,
        )
        session.record([{"role": "assistant", "content": response.content}], usage=response.usage)

        assert upstream.bodies == [
            {
                "model": "claude-sonnet-5",
                "max_tokens": 100,
                "messages": [{"role": "user", "content": "Read it."}],
                "system": "Be brief.",
                "tools": tools,
            }
        ]
        assert session.messages()[1] == {"role": "assistant", "content": [block]}
