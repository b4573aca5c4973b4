"""Runs a simulated agent for tens of thousands of turns and checks that it gets neither slower, nor larger, nor wrong.

    python -m benchmarks.endurance [--turns 50000] [--seconds 600] [--budget 16000] [--json FILE]

The agent uses one session with the default policy in SQLite. A turn is a prompt, a tool's result and an answer, with a
request before each answer of the model. Every request is checked against OpenAI's rules and counted again. After every
thousand turns the session is closed and opened from the disk, and must prepare the same request again. Every fifty
turns a fact is planted in a prompt, an answer or a result; at the end each fact must be in view or in one answer of the
recall tool. Times and sizes of the last thousand turns are compared with those of the first.
"""

import argparse
import asyncio
import gc
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.reporting import print_progress, save_figures, verdict
from holdfast import Session, counter_for, validate
from holdfast.core.conversation.tokens import REPLY_OVERHEAD, message_tokens
from holdfast.testing.chat import JsonMessage, assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.sessions import SAMPLE_PROSE
from holdfast.wire.formats import format_named
from holdfast.wire.request import Request

MODEL, SYSTEM = "gpt-5", "You are a careful engineer. Run the tests before you answer."
FACT_PLACES: tuple[str, ...] = ("prompt", "answer", "result")
PLANT_EVERY, STRETCH_TURNS = 50, 1_000
ANSWER_TOKENS = 1_000
MAX_GROWTH = 1.5
"""The largest ratio of the last stretch to the first; the speed of the machine itself varies by as much."""
COLORS = ("amber", "cobalt", "crimson", "indigo", "ochre", "teal", "umber", "violet")


@dataclass(frozen=True, slots=True)
class Fact:
    """A planted fact."""

    number: int
    place: str
    color: str

    @property
    def text(self) -> str:
        """The sentence that is planted."""
        return f"The signal of buoy {self.number} is {self.color}-{7 * self.number + 3}."

    @property
    def question(self) -> str:
        """What a model would ask for."""
        return f"signal of buoy {self.number}"


@dataclass(slots=True)
class Stretch:
    """A thousand turns, measured."""

    turns: int = 0
    milliseconds: float = 0.0
    """The median time of a request."""
    log_bytes: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class EnduranceResult:
    """The result of a run."""

    turns: int = 0
    requests: int = 0
    invalid: int = 0
    oversized: int = 0
    resumed: int = 0
    differing: int = 0
    """Resumed from disk with another next request."""
    facts: int = 0
    in_view: int = 0
    recalled: int = 0
    stretches: list[Stretch] = field(default_factory=list[Stretch])

    @property
    def is_sound(self) -> bool:
        """Whether every request was valid and every fact was found, however long it took."""
        wrong = self.invalid + self.oversized + self.differing
        return not wrong and self.in_view + self.recalled == self.facts

    def growth(self) -> dict[str, float]:
        """Return the ratios of the last stretch to the first: time for a request, bytes of log, memory."""
        first, last = self.stretches[0], self.stretches[-1]
        return {
            "time": last.milliseconds / first.milliseconds,
            "log": (last.log_bytes / last.turns) / (first.log_bytes / first.turns),
            "memory": last.memory_bytes / first.memory_bytes,
        }


class SimulatedAgent:
    """One long conversation."""

    def __init__(self, path: Path, budget: int, seed: int = 1) -> None:
        self.path, self.budget = path, budget
        self.rng = random.Random(seed)
        self.counter, self.wire = counter_for(MODEL), format_named("openai-chat")
        self.counted: dict[str, int] = {}
        self.facts: list[Fact] = []
        self.result = EnduranceResult()
        self.stretch = Stretch()
        self.request_ms: list[float] = []
        """Milliseconds of each request of this stretch."""
        self.now_ms = 1_700_000_000_000

    async def run(self, turns: int, seconds: float, stretch: int = STRETCH_TURNS) -> EnduranceResult:
        """Run for a number of turns or seconds, and return the result."""
        began, session = time.monotonic(), await self._open()
        while self.result.turns < turns and time.monotonic() - began < seconds:
            await self._turn(session)
            if self.result.turns % stretch == 0:
                session = await self._resume(session)
                self._end_stretch()
        await session.record([user_message("And now?")])
        await self._count_reachable(session, await self._check_request(session))
        await session.close()
        if not self.result.stretches:
            self._end_stretch()
        return self.result

    async def _open(self) -> Session:
        return await Session.open("agent", store=f"sqlite:///{self.path}", model=MODEL, clock=lambda: self.now_ms)

    async def _turn(self, session: Session) -> None:
        number = self.result.turns
        told: dict[str, str] = dict.fromkeys(FACT_PLACES, "")
        if number % PLANT_EVERY == 0:
            fact = Fact(number, FACT_PLACES[number // PLANT_EVERY % len(FACT_PLACES)], self.rng.choice(COLORS))
            self.facts.append(fact)
            told[fact.place] = f" {fact.text}"
        for message in self._messages(number, told):
            await session.record([message])
            self.now_ms += 5_000
            if message["role"] != "assistant":
                await self._check_request(session)
        self.result.turns += 1
        self.stretch.turns += 1

    def _messages(self, number: int, planted: dict[str, str]) -> Iterator[JsonMessage]:
        path = f"src/part{number % 97}/step{number % 31}.py"
        yield user_message(f"Look at {path}: {self._prose(12)}.{planted['prompt']}")
        yield tool_call_message(f"call_{number}", arguments={"path": path, "start": number % 400})
        yield tool_result_message(
            f"call_{number}", f"# {path}\n{self._prose(self.rng.choice((20, 80, 300)))}.{planted['result']}"
        )
        yield assistant_message(f"Step {number} is done: {self._prose(25)}.{planted['answer']}")

    def _prose(self, words: int) -> str:
        return " ".join(self.rng.choices(SAMPLE_PROSE.split(), k=words))

    async def _check_request(self, session: Session) -> Request:
        """Prepare a request and check it."""
        started = time.perf_counter()
        request = await session.prepare(self.budget, system=SYSTEM, has_recall=True)
        self.request_ms.append(1_000 * (time.perf_counter() - started))
        self.result.requests += 1
        self.result.invalid += bool(validate(request.messages, "openai-chat"))
        self.result.oversized += self._tokens(request) > self.budget
        return request

    def _tokens(self, request: Request) -> int:
        """Return the tokens of a request, counted independently; messages are cached by their hash."""
        sizes: dict[str, int] = {}
        for index, (name, native) in enumerate(zip(request.hashes, request.messages, strict=True)):
            if (known := self.counted.get(name)) is None:
                known = sum(message_tokens(self.wire.decode(native, index), self.counter))
            sizes[name] = known
        self.counted = sizes
        return sum(sizes[name] for name in request.hashes) + self.counter.count(SYSTEM) + REPLY_OVERHEAD

    async def _resume(self, session: Session) -> Session:
        """Close the session, open it from the disk, and check that it prepares the same request."""
        await session.record([user_message(f"Where were we at {self.result.turns}?")])
        before = await self._check_request(session)
        await session.close()
        opened = await self._open()
        after = await self._check_request(opened)
        self.result.resumed += 1
        self.result.differing += before.messages != after.messages
        await opened.record([assistant_message("Here.")])
        return opened

    def _end_stretch(self) -> None:
        """End a stretch."""
        gc.collect()
        so_far = sum(stretch.log_bytes for stretch in self.result.stretches)
        files = self.path.parent.glob(f"{self.path.name}*")
        self.stretch.log_bytes = sum(file.stat().st_size for file in files) - so_far
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.stretch.memory_bytes = pages * os.sysconf("SC_PAGE_SIZE")
        self.result.stretches.append(self.stretch)
        self.stretch.milliseconds = statistics.median(self.request_ms)
        taken = f"{self.stretch.milliseconds:.2f} ms for a request"
        sizes = f"{self.stretch.log_bytes / 1e6:.1f} MB of log, {self.stretch.memory_bytes / 1e6:.0f} MB of memory"
        print_progress(f"{self.result.turns:,} turns: {taken}, {sizes}")
        self.stretch, self.request_ms = Stretch(), []

    async def _count_reachable(self, session: Session, request: Request) -> None:
        """Look for every fact in view, and recall each one that is not there."""
        view = "\n".join(str(native.get("content")) for native in request.messages)
        tool = session.recall_tool(max_tokens=ANSWER_TOKENS)
        self.result.facts = len(self.facts)
        for fact in self.facts:
            if fact.text in view:
                self.result.in_view += 1
            elif fact.text in await tool.call({"query": fact.question}):
                self.result.recalled += 1
            else:
                print_progress(f"lost: {fact.text} (in {fact.place})")


def report_lines(result: EnduranceResult) -> Iterator[str]:
    """Yield the lines of a report."""
    growth = result.growth()
    reached = result.in_view + result.recalled
    yield f"{result.turns:,} turns, {result.requests:,} requests"
    is_sendable, is_same = not result.invalid + result.oversized, not result.differing
    yield f"invalid {result.invalid}, oversized {result.oversized}: {verdict(is_met=is_sendable)}"
    yield f"resumed {result.resumed} times, {result.differing} with another request: {verdict(is_met=is_same)}"
    yield (
        f"facts {result.facts}: {result.in_view} in view, {result.recalled} after one recall: "
        f"{verdict(is_met=reached == result.facts)}"
    )
    for name, ratio in growth.items():
        yield f"{name}, last stretch compared with the first: ×{ratio:.2f}: {verdict(is_met=ratio <= MAX_GROWTH)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=50_000, help="stop after this many turns (default: 50000)")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after this many seconds (default: no limit)"
    )
    parser.add_argument("--budget", type=int, default=16_000, help="the largest request in tokens (default: 16000)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        agent = SimulatedAgent(Path(folder) / "agent.db", chosen.budget)
        found = asyncio.run(agent.run(chosen.turns, chosen.seconds))
    print("\n".join(report_lines(found)))
    save_figures({**asdict(found), "growth": found.growth()}, chosen.json)
    return 0 if found.is_sound and max(found.growth().values()) <= MAX_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
