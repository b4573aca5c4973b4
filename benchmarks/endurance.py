"""A simulated agent at work for tens of thousands of turns: whether it gets slower, larger or wrong.

    python -m benchmarks.endurance [--turns 50000] [--seconds 600] [--budget 16000] [--json FILE]

One session of the default policy in SQLite. A turn is a prompt, a tool's result and an answer, with a request before
each answer of the model. Every request is held against OpenAI's rules and counted anew; every thousand turns the
session is closed, opened from the disk, and has to make the request again that it has just made. Every fifty turns a
fact is planted in a prompt, an answer or a result; in the end each has to be in view, or in one answer of the recall
tool. Times and sizes are those of the last thousand turns beside the first: all that counts is whether they grow.
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

from benchmarks.reporting import progress, save, verdict
from holdfast import Session, counter_for, validate
from holdfast.core.conversation.tokens import REPLY_OVERHEAD, message_tokens
from holdfast.session.request import PreparedRequest
from holdfast.testing.chat import Json, answered, called, returned, said
from holdfast.testing.sessions import STORY
from holdfast.wire.formats import format_named

MODEL, SYSTEM = "gpt-5", "You are a careful engineer. Run the tests before you answer."
PLACES: tuple[str, ...] = ("prompt", "answer", "result")
PLANT_EVERY, STRETCH = 50, 1_000
ANSWER_TOKENS = 1_000
MOST_GROWTH = 1.5
"""How much more the last stretch may take than the first: the machine's own speed swings by as much."""
SIGNS = ("amber", "cobalt", "crimson", "indigo", "ochre", "teal", "umber", "violet")


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was said once."""

    number: int
    place: str
    sign: str

    @property
    def text(self) -> str:
        """The sentence that is planted."""
        return f"The signal of buoy {self.number} is {self.sign}-{7 * self.number + 3}."

    @property
    def question(self) -> str:
        """What a model would ask for."""
        return f"signal of buoy {self.number}"


@dataclass(slots=True)
class Stretch:
    """A thousand turns, measured."""

    turns: int = 0
    milliseconds: float = 0.0
    """Half of the requests took no longer."""
    log_bytes: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class Found:
    """What a run has shown."""

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
        """Whether nothing was wrong, whatever it took."""
        wrong = self.invalid + self.oversized + self.differing
        return not wrong and self.in_view + self.recalled == self.facts

    def growth(self) -> dict[str, float]:
        """Return what the last stretch took beside the first: time for a request, bytes of log, memory."""
        first, last = self.stretches[0], self.stretches[-1]
        return {
            "time": last.milliseconds / first.milliseconds,
            "log": (last.log_bytes / last.turns) / (first.log_bytes / first.turns),
            "memory": last.memory_bytes / first.memory_bytes,
        }


class Agent:
    """One conversation that goes on and on."""

    def __init__(self, path: Path, budget: int, seed: int = 1) -> None:
        self.path, self.budget = path, budget
        self.chance = random.Random(seed)
        self.counter, self.wire = counter_for(MODEL), format_named("openai-chat")
        self.counted: dict[str, int] = {}
        self.facts: list[Fact] = []
        self.found = Found()
        self.stretch = Stretch()
        self.took: list[float] = []
        """Milliseconds of each request of this stretch."""
        self.now_ms = 1_700_000_000_000

    async def run(self, turns: int, seconds: float, stretch: int = STRETCH) -> Found:
        """Work for so many turns, or so long, and return what was found."""
        began, session = time.monotonic(), await self._opened()
        while self.found.turns < turns and time.monotonic() - began < seconds:
            await self._turn(session)
            if self.found.turns % stretch == 0:
                session = await self._resumed(session)
                self._measure()
        await session.record([said("And now?")])
        await self._reach(session, await self._asked(session))
        await session.close()
        if not self.found.stretches:
            self._measure()
        return self.found

    async def _opened(self) -> Session:
        return await Session.open("agent", store=f"sqlite:///{self.path}", model=MODEL, clock=lambda: self.now_ms)

    async def _turn(self, session: Session) -> None:
        number = self.found.turns
        told: dict[str, str] = dict.fromkeys(PLACES, "")
        if number % PLANT_EVERY == 0:
            fact = Fact(number, PLACES[number // PLANT_EVERY % len(PLACES)], self.chance.choice(SIGNS))
            self.facts.append(fact)
            told[fact.place] = f" {fact.text}"
        for message in self._messages(number, told):
            await session.record([message])
            self.now_ms += 5_000
            if message["role"] != "assistant":
                await self._asked(session)
        self.found.turns += 1
        self.stretch.turns += 1

    def _messages(self, number: int, told: dict[str, str]) -> Iterator[Json]:
        path = f"src/part{number % 97}/step{number % 31}.py"
        yield said(f"Look at {path}: {self._prose(12)}.{told['prompt']}")
        yield called(f"call_{number}", arguments={"path": path, "start": number % 400})
        yield returned(f"call_{number}", f"# {path}\n{self._prose(self.chance.choice((20, 80, 300)))}.{told['result']}")
        yield answered(f"Step {number} is done: {self._prose(25)}.{told['answer']}")

    def _prose(self, words: int) -> str:
        return " ".join(self.chance.choices(STORY.split(), k=words))

    async def _asked(self, session: Session) -> PreparedRequest:
        """Make a request, and hold it against what must hold."""
        started = time.perf_counter()
        request = await session.prepare(self.budget, system=SYSTEM, has_recall=True)
        self.took.append(1_000 * (time.perf_counter() - started))
        self.found.requests += 1
        self.found.invalid += bool(validate(request.messages, "openai-chat"))
        self.found.oversized += self._tokens(request) > self.budget
        return request

    def _tokens(self, request: PreparedRequest) -> int:
        """Return what a request costs, counted anew; what was counted once is known by its hash."""
        sizes: dict[str, int] = {}
        for index, (name, native) in enumerate(zip(request.hashes, request.messages, strict=True)):
            if (known := self.counted.get(name)) is None:
                known = sum(message_tokens(self.wire.decode(native, index), self.counter))
            sizes[name] = known
        self.counted = sizes
        return sum(sizes[name] for name in request.hashes) + self.counter.count(SYSTEM) + REPLY_OVERHEAD

    async def _resumed(self, session: Session) -> Session:
        """Return the session opened from the disk; it has to go on with the request that comes next."""
        await session.record([said(f"Where were we at {self.found.turns}?")])
        before = await self._asked(session)
        await session.close()
        opened = await self._opened()
        after = await self._asked(opened)
        self.found.resumed += 1
        self.found.differing += before.messages != after.messages
        await opened.record([answered("Here.")])
        return opened

    def _measure(self) -> None:
        """End a stretch."""
        gc.collect()
        so_far = sum(stretch.log_bytes for stretch in self.found.stretches)
        files = self.path.parent.glob(f"{self.path.name}*")
        self.stretch.log_bytes = sum(file.stat().st_size for file in files) - so_far
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.stretch.memory_bytes = pages * os.sysconf("SC_PAGE_SIZE")
        self.found.stretches.append(self.stretch)
        self.stretch.milliseconds = statistics.median(self.took)
        taken = f"{self.stretch.milliseconds:.2f} ms for a request"
        sizes = f"{self.stretch.log_bytes / 1e6:.1f} MB of log, {self.stretch.memory_bytes / 1e6:.0f} MB of memory"
        progress(f"{self.found.turns:,} turns: {taken}, {sizes}")
        self.stretch, self.took = Stretch(), []

    async def _reach(self, session: Session, request: PreparedRequest) -> None:
        """Look for every fact in view, and else ask for it once."""
        view = "\n".join(str(native.get("content")) for native in request.messages)
        tool = session.recall_tool(max_tokens=ANSWER_TOKENS)
        self.found.facts = len(self.facts)
        for fact in self.facts:
            if fact.text in view:
                self.found.in_view += 1
            elif fact.text in await tool.call({"query": fact.question}):
                self.found.recalled += 1
            else:
                progress(f"lost: {fact.text} (in {fact.place})")


def told(found: Found) -> Iterator[str]:
    """Yield the lines of a report."""
    growth = found.growth()
    reached = found.in_view + found.recalled
    yield f"{found.turns:,} turns, {found.requests:,} requests"
    is_sendable, is_same = not found.invalid + found.oversized, not found.differing
    yield f"invalid {found.invalid}, oversized {found.oversized}: {verdict(is_met=is_sendable)}"
    yield f"resumed {found.resumed} times, {found.differing} with another request: {verdict(is_met=is_same)}"
    yield (
        f"facts {found.facts}: {found.in_view} in view, {found.recalled} after one recall: "
        f"{verdict(is_met=reached == found.facts)}"
    )
    for name, ratio in growth.items():
        yield f"{name}, last stretch beside the first: ×{ratio:.2f}: {verdict(is_met=ratio <= MOST_GROWTH)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="as many turns as can be had meanwhile")
    parser.add_argument("--budget", type=int, default=16_000)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(Path(folder) / "agent.db", chosen.budget)
        found = asyncio.run(agent.run(chosen.turns, chosen.seconds))
    print("\n".join(told(found)))
    save({**asdict(found), "growth": found.growth()}, chosen.json)
    return 0 if found.is_sound and max(found.growth().values()) <= MOST_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
