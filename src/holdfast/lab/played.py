"""A policy played in a real session, on a clock that follows the recording: only time and the model are made up.

The model that writes summaries is a stand-in: it takes the time it is told to take, and writes down the names that
stand most often in what it was shown. What that was is remembered, so that it is known how much of a span reached it.
"""

import re
import time
from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from holdfast.core.conversation.tokens import Counter, message_tokens
from holdfast.core.history import events as log
from holdfast.core.history.events import Usage
from holdfast.core.history.identifiers import argument_text
from holdfast.core.planning.cost import Prices
from holdfast.core.planning.policy import Policy
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import PendingToolCallsError
from holdfast.lab.baselines import Asked, Prepared, Spent
from holdfast.lab.demands import demanded
from holdfast.models.base import Answer, Ask
from holdfast.session.compactor import Compaction
from holdfast.session.request import PreparedRequest
from holdfast.session.session import Session
from holdfast.session.verify import requests_of
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import SimulatedClock
from holdfast.wire.formats import format_named

FORMAT, MODEL = "openai-chat", "gpt-5"
PACE_SECONDS = 10.0
"""How long a turn takes where a recording does not say."""
SUMMARY_PARTS, PART_NAMES = 24, 6
"""How many sentences a stand-in writes, and how many names go into each."""
RECALL_TOKENS = 1_000
START_MS = 1_700_000_000_000
_PLACE = re.compile(r"#(\d+)")


@dataclass(slots=True)
class StandIn:
    """Writes summaries in place of a model."""

    name: str
    clock: SimulatedClock
    seconds: float
    counter: Counter
    window: int | None = None
    prefix_formats: frozenset[str] = frozenset({FORMAT})
    shown: list[str] = field(default_factory=list[str])
    """All that each call could read."""
    spent: list[Spent] = field(default_factory=list[Spent])

    async def write(self, ask: Ask) -> Answer:
        """Return a summary made of the names that stand most often in what is to be summarised."""
        await self.clock.sleep(self.seconds)
        held = sum(map(self._tokens, ask.prefix.messages)) if ask.prefix else 0
        before = "\n".join(text_of(native) for native in ask.prefix.messages) if ask.prefix else ""
        shown = f"{before}\n{ask.text}"
        self.shown.append(shown)
        text = _written(shown)
        fresh, output = self.counter.count(ask.system) + self.counter.count(ask.text), self.counter.count(text)
        self.spent.append(Spent(fresh, output, held))
        usage = Usage(input_tokens=fresh, output_tokens=output, cache_read_tokens=held)
        return Answer(text=text, model=self.name, usage=usage)

    def _tokens(self, native: Mapping[str, object]) -> int:
        return sum(message_tokens(format_named(FORMAT).decode(native, 0), self.counter))


class Played:
    """One policy on one growing conversation."""

    def __init__(
        self,
        policy: Policy,
        *,
        model: str = MODEL,
        prices: Prices | None = None,
        summary_seconds: float | None = None,
    ) -> None:
        """`summary_seconds` is how long a summary takes; None where there is nobody to write one."""
        self._policy = policy
        self._model = model
        self._clock = SimulatedClock(START_MS)
        self.writer = None
        if summary_seconds is not None:
            self.writer = StandIn(model, self._clock, summary_seconds, counter_for(model))
        self._how = Compaction(automatic=self.writer, prices=prices)
        self._session: Session | None = None
        self._told = 0
        self.busy_seconds: list[float] = []
        """What each request took of the processor."""

    async def __aenter__(self) -> Self:
        self._session = await Session.open(
            "lab",
            store=MemoryStore(),
            policy=self._policy,
            model=self._model,
            compaction=self._how,
            clock=self._clock.time_ms,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    @property
    def session(self) -> Session:
        """The session that is played in."""
        if self._session is None:
            raise RuntimeError("use it with `async with`")
        return self._session

    async def prepare(self, asked: Asked) -> Prepared:
        """Return what is sent for the conversation so far."""
        new = asked.messages[len(self.session) :]
        if new:
            await self.session.record(new)
        await self._clock.advance(asked.idle_seconds or PACE_SECONDS)
        changes, began, busy = self.session.history.changes, self._clock.time_ms(), time.process_time()
        request = await self._clock.run(self._request(asked))
        self.busy_seconds.append(time.process_time() - busy)
        spent = self.writer.spent[self._told :] if self.writer else []
        self._told += len(spent)
        return Prepared(
            request.messages,
            spent,
            waited_seconds=(self._clock.time_ms() - began) / 1000,
            is_folded=self.session.history.changes > changes,
        )

    async def _request(self, asked: Asked) -> PreparedRequest:
        budget = asked.budget - asked.sizes.static
        try:
            return await self.session.prepare(budget, has_recall=True)
        except PendingToolCallsError:
            # Whoever was recorded went on without an answer.
            await self.session.interrupt()
            return await self.session.prepare(budget, has_recall=True)

    async def again(self, asked: Asked) -> bool:
        """Return whether a copy of the session, opened from the log, makes the same request."""
        first = await self._clock.run(self._request(asked))
        other = await self.session.fork()
        try:
            return (
                first.hash
                == (await self._clock.run(other.prepare(asked.budget - asked.sizes.static, has_recall=True))).hash
            )
        finally:
            await other.close()

    async def recall(self, query: str) -> str:
        """Return what one recall finds."""
        return await self.session.recall_tool(max_tokens=RECALL_TOKENS).call({"query": query})

    async def lost(self, messages: list[dict[str, object]]) -> int:
        """Return how many messages do not come back from the log byte for byte, read by somebody else."""
        async with Session.open("lab", store=self.session.store, policy=self._policy, model=self._model) as other:
            found = await other.recall(0, len(messages))
        return sum(one != other for one, other in zip(found, messages, strict=False)) + abs(len(found) - len(messages))

    async def differing(self) -> int:
        """Return how many requests cannot be made again from the log."""
        return sum(not request.is_same for request in requests_of(await self.session.events()))

    async def written(self) -> list[log.SummaryWritten]:
        """Return the summaries that a model has written, whether a fold used them or not."""
        return [
            event for event in await self.session.events() if isinstance(event, log.SummaryWritten) and event.by_model
        ]


def _written(shown: str) -> str:
    """Return a sentence for each part of a text: which names it turns on, and where it stands."""
    lines, step = (
        ["What was done so far, part by part, by the names that it turned on:"],
        len(shown) // SUMMARY_PARTS + 1,
    )
    place = "0"
    for start in range(0, len(shown), step):
        part = shown[start : start + step]
        place = found[1] if (found := _PLACE.search(part)) else place
        names = [name for name, _ in Tally(demanded(part)).most_common(PART_NAMES)]
        if names:
            lines.append(f"- Done: the work went on with {', '.join(names)} [#{place}].")
    return "\n".join([*lines, "Next: go on from the newest message."])


def text_of(native: Mapping[str, object]) -> str:
    """Return all that a message says: its text, and the arguments and results of calls."""
    message = format_named(FORMAT).decode(native, 0)
    pieces = [message.text, *(result.text for result in message.results)]
    return "\n".join([*pieces, *(argument_text(call.arguments) for call in message.calls)])
