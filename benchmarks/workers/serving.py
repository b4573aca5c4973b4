"""How every worker carries out a task: it reads a task as JSON and writes rows as JSON.

It runs in the environments of all peers, so it needs only the standard library. A method that fails gets a row with the
reason, and the others continue. What a library prints goes to standard error.
"""

import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

SUMMARY = (
    "Done: src/billing/model.py, src/auth/views.py and src/search/tasks.py were read, what was wrong in them was "
    "fixed, and the tests passed. Next: go on with the newest task."
)
"""What every fake summarizer writes."""
AGENT, SUMMARIZER = "gpt-5", "gpt-5-mini"
"""The endpoint tells models apart by these names."""
SYSTEM = "You read a document part by part with the tool `read_part`, and answer when you have read all of it."
TRIGGER, KEEP, SLIDE_TO = 0.75, 0.25, 0.5
"""When compaction starts, and how much a summarizing and a sliding library keeps, as shares of the budget."""
LIMIT_SECONDS = 120
"""The most seconds for one measurement."""

Json: TypeAlias = dict[str, Any]


class Way(ABC):
    """One method to keep a conversation within a budget, with its own state between requests."""

    shown: list[str] | None = None
    """The inputs of its summarizer; None if there is no summarizer."""
    has_state = True
    """Whether a request depends on those before it."""

    @abstractmethod
    def take(self, messages: list[Json]) -> None:
        """Add the new messages, in the library's own format."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the next request: the only thing that is timed."""

    @abstractmethod
    def sent(self) -> list[Json]:
        """Return that request in OpenAI chat format."""

    def found(self, query: str) -> str | None:  # noqa: ARG002 - most cannot
        """Return what the library's own tool returns for a query; None if it has no tool."""
        return None


Ways: TypeAlias = Mapping[str, Callable[[int], Way]]
"""Each makes a method for a budget."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One prompt, and a tool that is called again and again before it is answered."""

    url: str
    window: int
    prompt: str
    parts: list[str]

    @property
    def trigger(self) -> int:
        """At how many tokens to compact."""
        return int(self.window * TRIGGER)

    @property
    def keep(self) -> int:
        """How many tokens stay unchanged."""
        return int(self.window * KEEP)

    def read_part(self, number: int) -> str:
        """Return a part of the document."""
        return self.parts[number - 1]


Runs: TypeAlias = Mapping[str, Callable[[Loop], str]]
"""Each runs an agent to its end and returns its answer."""
Keeps: TypeAlias = Mapping[str, Callable[[list[list[Json]], str], Json]]
"""Each stores an agent's steps in a folder, and returns their bytes and how many messages can be read back."""


def serve(*, ways: Ways | None = None, runs: Runs | None = None, keeps: Keeps | None = None) -> None:
    """Carry out the task on standard input; do nothing if this library has no method for it."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.load(sys.stdin)
    signal.signal(signal.SIGALRM, _give_up)
    doing: dict[str, Callable[[], Iterator[Json]]] = {
        "prepare": lambda: _prepared(ways or {}, task),
        "needles": lambda: _searched(ways or {}, task),
        "loop": lambda: _looped(runs or {}, task),
        "keep": lambda: _kept(keeps or {}, task),
    }
    json.dump(list(doing[task["do"]]()), out)
    out.flush()


def _prepared(ways: Ways, task: Json) -> Iterator[Json]:
    for case in task["cases"]:
        for name, make in ways.items():
            if case is task["cases"][0]:
                _row({}, lambda make=make, case=case: _timed(make, case, {**task, "repeats": 1}))  # loads what is lazy
            yield _row({"name": name, "case": case["name"]}, lambda make=make, case=case: _timed(make, case, task))


def _timed(make: Callable[[int], Way], case: Json, task: Json) -> Json:
    """Return how long a new list takes, and how long the next request takes, one message later."""
    first: list[float] = []
    following: list[float] = []
    sent: list[Json] = []
    while len(first) < task["repeats"] and sum(first) < task["seconds"]:
        way = make(task["budget"])
        way.take(case["messages"])
        first.append(_seconds(way.prepare))
        sent = way.sent()
        way.take([task["more"]])
        following.append(_seconds(way.prepare))
    return {"seconds": first, "following": following, "messages": sent}


def _seconds(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _searched(ways: Ways, task: Json) -> Iterator[Json]:
    for name, make in ways.items():
        yield _row({"name": name}, lambda make=make: _looked(make(task["budget"]), task))


def _looked(way: Way, task: Json) -> Json:
    """Let a conversation grow turn by turn, with a request for each; without state, only the last one is made."""
    turns = task["turns"] if way.has_state else [list(chain.from_iterable(task["turns"]))]
    for turn in turns:
        way.take(turn)
        way.prepare()
    return {"messages": way.sent(), "shown": way.shown, "found": [way.found(query) for query in task["queries"]]}


def _looped(runs: Runs, task: Json) -> Iterator[Json]:
    for number, (name, run) in enumerate(runs.items()):
        loop = Loop(f"{task['url']}/{number}", task["window"], task["prompt"], task["parts"])
        yield _row({"name": name, "path": str(number)}, lambda run=run, loop=loop: {"answer": run(loop)})


def _kept(keeps: Keeps, task: Json) -> Iterator[Json]:
    for number, (name, keep) in enumerate(keeps.items()):
        folder = os.path.join(task["folder"], f"{task['peer']}{number}")  # noqa: PTH118 - handed to libraries as text
        os.mkdir(folder)  # noqa: PTH102
        yield _row({"name": name}, lambda keep=keep, folder=folder: keep(task["steps"], folder))


def _row(named: Json, measure: Callable[[], Json]) -> Json:
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    try:
        return {**named, **measure()}
    except _TooSlowError:
        return {**named, "failed": f"not finished after {LIMIT_SECONDS} s"}
    except Exception as error:  # noqa: BLE001 - whatever a library raises is its row
        return {**named, "failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class _TooSlowError(BaseException):
    """Not an `Exception`, so that no library handles it as its own error and continues."""


def _give_up(*_: object) -> None:
    raise _TooSlowError


def bytes_in(folder: str) -> int:
    """Return the size of the files in a folder."""
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())


def text_of(content: Any) -> str:
    """Return the text of a message's content in any shape."""
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, dict):
        return str(content.get("text", ""))
    return "" if content is None else str(content)
