"""What tests of several folders share: how to build a conversation, and how to open one."""

import asyncio
import re
import runpy
import socket
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import holdfast
from holdfast import Session
from holdfast.core.conversation.cuts import can_cut
from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.planning.plan import make_plan, plan_input_of, view_of
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.receipt import View
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.planning.steps import Step
from holdfast.counters.vocabularies import counter_for
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel
from holdfast.wire.formats import format_named


def anthropic_step(call_id: str, *texts: str, output: str = "seen") -> list[JsonMessage]:
    """Return a call, and a user's message with its result and what the user wrote beside it."""
    result = {"type": "tool_result", "tool_use_id": call_id, "content": output}
    blocks = [result, *({"type": "text", "text": text} for text in texts)]
    call = {"type": "tool_use", "id": call_id, "name": "look", "input": {}}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": blocks}]


def legal_cuts(messages: Sequence[Message]) -> list[int]:
    """Return each index between two messages at which their history may be cut."""
    return [index for index in range(1, len(messages)) if can_cut(messages[index - 1], messages[index])]


@dataclass
class RecordedHistory(History):
    """A history that keeps its events too, as a session keeps them in a store."""

    events: list[log.Event] = field(default_factory=list[log.Event])

    def append(self, event: log.Event, message: Message | None = None) -> None:
        """Replay one more event, and keep it."""
        super().append(event, message)
        self.events.append(event)


class Decision(NamedTuple):
    """The plan and the view of one moment."""

    now: tuple[Step, ...]
    later: tuple[Step, ...]
    reasons: tuple[str, ...]
    view: View


def decide(history: History, policy: Policy, situation: Situation) -> Decision:
    """Return what a session would do next and what it would send, with the reasons for both."""
    plan_input = plan_input_of(history, policy, situation)
    plan, view = make_plan(plan_input, policy), view_of(plan_input, policy)
    return Decision(plan.now, plan.later, (*plan.reasons, *view.reasons), view)


def appended(native: JsonMessage, scope: str = log.MAIN) -> log.MessageAppended:
    """Return the event of one message in OpenAI's chat format."""
    return log.MessageAppended(format="openai-chat", native=native, scope=scope)


def history_of(messages: list[JsonMessage], *events: log.Event, format_name: str = "openai-chat") -> RecordedHistory:
    """Return the history of some messages, followed by other events."""
    said = [log.MessageAppended(format=format_name, native=native) for native in messages]
    return RecordedHistory.replay([*said, *events], format_named)


def situation(budget: int = 16_000, **fields: Any) -> Situation:
    """Return a situation of gpt-5 in which no tool is running any more."""
    settings: dict[str, Any] = {"window": budget, "is_interrupted": True, **fields}
    return Situation(budget=Budget(budget), counter=counter_for("gpt-5"), **settings)


def tool_turn(number: int, output: str = "ok") -> list[JsonMessage]:
    """Return a turn with one tool call and an answer."""
    return [
        user_message(f"q{number}"),
        tool_call_message(f"c{number}"),
        tool_result_message(f"c{number}", output),
        assistant_message(f"a{number}"),
    ]


WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa " * 12
SUMMARY = "The user counts in Greek letters [#0]. Done: alpha to kappa [#1]. Next: go on."


def open_session(store: str | Store | None = None, session_id: str = "c1", **settings: Any) -> Any:
    """Open a session of gpt-5, in memory unless a store is given; tests reach into it, so it is typed as anything."""
    return Session.open(session_id, store=store or MemoryStore(), model="gpt-5", **settings)


async def record_turns(session: Session, turns: int, start: int = 0, words: str = WORDS) -> None:
    """Record numbered questions, each with its answer."""
    for number in range(start, start + turns):
        await session.record(
            [user_message(f"question {number}: {words}"), assistant_message(f"answer {number}: {words}")]
        )


def endless_summarizer(text: str = SUMMARY) -> ScriptedModel:
    """Return a model that writes the same summary whenever it is asked."""
    return ScriptedModel(repeat(text))


async def compactions(session: Session) -> list[log.CompactionCompleted]:
    """Return how each compaction of a session ended."""
    return [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]


@contextmanager
def closed_port() -> Generator[int]:
    """Hold a port at which nobody listens; one that was given back may be that of another test at any moment."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def wait_until(condition: Callable[[], bool]) -> None:
    """Let other tasks and threads run until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is no event
            await asyncio.sleep(0)


class InThisProcess:
    """Stands for the processes of the laboratory: each takes longer to start than to play a short recording."""

    def __init__(self, work: Callable[[Any], object], *_: object, **__: object) -> None:
        self._work = work
        self.signal = 0

    async def run(self, pieces: Sequence[Any], order: Sequence[int], heard: Callable[[int, object], object]) -> None:
        for number in order:
            heard(number, await asyncio.to_thread(self._work, pieces[number]))


ROOT = Path(__file__).parent.parent


def run_page(name: str) -> None:
    """Run the code of an adapter's page from top to bottom."""
    page, names = ROOT / "docs" / "frameworks" / f"{name}.md", dict[str, object]()
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(block, str(page), "exec"), names)  # noqa: S102


def run_example(name: str) -> None:
    """Run the example of an adapter; run by its path, it would hide a package of the same name."""
    runpy.run_path(str(ROOT / "examples" / "adapters" / f"{name}.py"), run_name="__main__")


@contextmanager
def lines_of_the_package() -> Generator[Counter[str]]:
    """Count the lines that the package executes on this thread, by function: a loop over the history has many."""
    done, package = Counter[str](), str(Path(holdfast.__file__).parent)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(package):
            return None
        if event == "line":
            done[code.co_qualname] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield done
    finally:
        sys.settrace(before)
