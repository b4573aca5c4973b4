"""Plays a long conversation with tools against a provider that bills exactly what it is sent.

The provider refuses what is invalid or too long, so that a test need not look for either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast import Budget, Request, Session, validate
from holdfast.core.history import events as log
from holdfast.session.log.records import StoredLog
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from tests.support import wait_until

SYSTEM = "You are a careful engineer. Never push to main."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
COMPACTION_EVENTS = (
    log.CompactionStarted,
    log.SummaryWritten,
    log.CompactionCompleted,
    log.TurnsReducedToText,
    log.OutputsOffloaded,
    log.RequestTruncated,
    log.UsageMeasured,
    log.RequestPrepared,
)


@dataclass(frozen=True)
class Turn:
    """One turn of the script: a prompt, tool steps, and an answer."""

    prompt: JsonMessage
    steps: Sequence[Sequence[JsonMessage]]
    answer: JsonMessage

    @property
    def messages(self) -> list[JsonMessage]:
        return [self.prompt, *(message for step in self.steps for message in step), self.answer]


def made_output(number: int, step: int, chars: int) -> str:
    """Return an output of an exact length that no other call has."""
    line = f"turn {number} step {step} found row {{}} of the table in src/module_{number}.py\n"
    lines = "".join(line.format(row) for row in range(chars // 40))
    return lines[:chars]


def made_turn(number: int, *, chars: int, steps: int = 1) -> Turn:
    calls = [f"call-{number}-{step}" for step in range(steps)]
    return Turn(
        user_message(f"Prompt {number}: please look into src/module_{number}.py."),
        [
            (
                tool_call_message(call, arguments={"path": f"src/module_{number}.py", "step": step}),
                tool_result_message(call, made_output(number, step, chars)),
            )
            for step, call in enumerate(calls)
        ],
        assistant_message(f"Answer {number}: src/module_{number}.py is as it should be."),
    )


@dataclass
class Play:
    """A conversation while it is played."""

    session: Session
    budget: int | Budget | None = None
    window: int = 10**9
    """What the provider accepts."""
    requests: list[Request] = field(default_factory=list[Request])
    recorded: int = 0
    _happened: list[list[log.Event]] = field(default_factory=lambda: [[]])

    def __post_init__(self) -> None:
        self._read = StoredLog(self.session.store, self.session.id)

    async def ask(self) -> Request:
        """Send the next request, and return it."""
        request = await self.session.prepare(self.budget, system=SYSTEM, tools=TOOLS)
        assert validate(request.messages, "openai") == []
        assert request.tokens.counted <= self.window
        self.requests.append(request)
        await self.settle()
        return request

    async def settle(self) -> None:
        """Wait until no summary is being written."""
        state = self.session.history
        await wait_until(
            lambda: state.session_state.running_compaction is None or state.session_state.ready_summary is not None
        )

    async def record(self, *messages: JsonMessage) -> None:
        """Record messages; what an assistant says was billed for the last request."""
        usage: Any = None
        if messages[0]["role"] == "assistant":
            usage = {"input_tokens": self.requests[-1].tokens.counted}
        await self.session.record(messages[:1], usage=usage)
        if len(messages) > 1:
            await self.session.record(messages[1:])
        self.recorded += len(messages)

    async def take(self, turn: Turn) -> list[Request]:
        """Play a turn, and return its requests."""
        await self.record(turn.prompt)
        sent = [await self.ask()]
        for step in turn.steps:
            await self.record(*step)
            sent.append(await self.ask())
        await self.record(turn.answer)
        return sent

    async def timeline(self) -> list[list[log.Event]]:
        """Return what happened for each request: its compactions, its measures, and itself."""
        for _, event in await self._read.read_new():
            if isinstance(event, COMPACTION_EVENTS):
                self._happened[-1].append(event)
            if isinstance(event, log.RequestPrepared):
                self._happened.append([])
        return self._happened[:-1]


def kinds(events: Sequence[log.Event]) -> list[str]:
    return [event.KIND for event in events]
