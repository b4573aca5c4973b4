"""agno: its Compaction, and its SqliteDb."""

import tempfile
from collections.abc import Iterator
from functools import cache
from typing import Any
from uuid import uuid4

from agno.agent import Agent
from agno.compaction.compaction import Compaction
from agno.db.sqlite import SqliteDb
from agno.models.base import Model
from agno.models.message import Message
from agno.models.openai import OpenAIChat
from agno.models.response import ModelResponse
from serving import AGENT, KEEP, SUMMARIZER, SUMMARY, SYSTEM, TRIGGER, Json, Loop, Way, bytes_in, serve


class Scripted(Model):
    """Answers from a script, and stores what it received."""

    def __init__(self, replies: Iterator[ModelResponse]) -> None:
        super().__init__(id="scripted")
        self.replies = replies
        self.shown: list[str] = []

    def invoke(self, messages: list[Message], **_: Any) -> ModelResponse:
        self.shown.append("\n".join(message.get_content_string() for message in messages))
        return next(self.replies)

    async def ainvoke(self, *_: Any, **__: Any) -> ModelResponse:
        raise NotImplementedError

    def invoke_stream(self, *_: Any, **__: Any) -> Iterator[ModelResponse]:
        raise NotImplementedError

    def ainvoke_stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def _parse_provider_response(self, response: Any, **_: Any) -> ModelResponse:
        return response

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        return response


def summaries() -> Iterator[ModelResponse]:
    while True:
        yield ModelResponse(role="assistant", content=SUMMARY)


def database(folder: str) -> SqliteDb:
    return SqliteDb(db_file=f"{folder}/agno.db")


@cache
def shared_database() -> SqliteDb:
    """Return one for all that are timed, so that tables are made once."""
    return database(tempfile.mkdtemp())


def compaction(size: int, model: Any) -> Compaction:
    return Compaction(
        model=model,
        compact_at_tokens=int(size * TRIGGER),
        uncompacted_tokens=int(size * KEEP),
        on_context_overflow=True,
    )


class Compacting(Way):
    """Compaction between the runs of an agent: a record next to the whole list, and a view made of both."""

    def __init__(self, budget: int) -> None:
        writer = Scripted(summaries())
        self.shown = writer.shown
        self._compaction = compaction(budget, writer)
        self._db, self._session = shared_database(), uuid4().hex
        self._record: Any = None
        self.messages: list[Message] = []
        self.request: list[Message] = []

    def take(self, messages: list[Json]) -> None:
        self.messages = [*self.messages, *(Message(**message) for message in messages)]

    def prepare(self) -> None:
        # The agent's own system prompt is no part of the history.
        system, rest = self.messages[:1], self.messages[1:]
        view = self._compaction.apply_record(rest, self._record) if self._record else rest
        if self._compaction.should_compact([*system, *view]):
            record = self._compaction.compact(
                rest, session_id=self._session, db=self._db, previous=self._record, context_prefix=system
            )
            self._record = record or self._record
            view = self._compaction.apply_record(rest, self._record) if self._record else rest
        self.request = [*system, *view]

    def sent(self) -> list[Json]:
        fields = ("role", "content", "tool_calls", "tool_call_id")
        plain = [{name: getattr(message, name) for name in fields} for message in self.request]
        return [{name: value for name, value in one.items() if value or name == "content"} for one in plain]

    def found(self, query: str) -> str:
        tools = self._compaction.tools_for(self._session, self._db)
        return tools[0](query) if tools else ""


def run_compacting(loop: Loop) -> str:
    def asked(name: str) -> OpenAIChat:
        return OpenAIChat(id=name, base_url=loop.url, api_key="none", max_retries=0)

    agent = Agent(
        model=asked(AGENT),
        instructions=SYSTEM,
        tools=[loop.read_part],
        db=database(tempfile.mkdtemp()),
        compaction=compaction(loop.window, asked(SUMMARIZER)),
        telemetry=False,
    )
    run = agent.run(loop.prompt, session_id="s")
    if run.status.value != "COMPLETED":
        raise RuntimeError(str(run.content))
    return str(run.content)


def kept(steps: list[list[Json]], folder: str) -> Json:
    """Run an agent through the steps."""
    (system, prompt), *rest = steps
    results = [message["content"] for step in rest for message in step[1:]]
    said = iter(results)

    def read_file(path: str, start: int, end: int) -> str:  # noqa: ARG001 - as the model calls it
        return next(said)

    name = rest[0][0]["tool_calls"][0]["function"]["name"]
    read_file.__name__ = name
    replies = [
        ModelResponse(role="assistant", content=step[0].get("content"), tool_calls=step[0]["tool_calls"])
        for step in rest
    ]
    script = Scripted(iter([*replies, ModelResponse(role="assistant", content="done")]))
    db = database(folder)
    agent = Agent(
        model=script,
        system_message=system["content"],
        tools=[read_file],
        db=db,
        telemetry=False,
    )
    agent.run(prompt["content"], session_id="s")
    messages = agent.get_session_messages(session_id="s", skip_roles=[])
    return {"bytes": bytes_in(folder), "messages": len(messages) - 1}  # the run ends with one answer more


serve(ways={"agno Compaction": Compacting}, runs={"agno Compaction": run_compacting}, keeps={"agno SqliteDb": kept})
