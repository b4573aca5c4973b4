"""Replays a policy in a real session, with a simulated clock that follows the recording and a simulated summarizer.

The summarizer takes a fixed time and writes the most frequent names of its input. It remembers its input, so that
metrics can measure how much of a span it received.
"""

import re
import time
from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from holdfast.apps.lab.baselines import ReplayRequest, ReplayResult, SummaryCost
from holdfast.apps.lab.identifiers import extract_identifiers
from holdfast.core.conversation.tokens import Counter, message_tokens
from holdfast.core.history import events as log
from holdfast.core.history.events import Usage
from holdfast.core.ledger.identifiers import argument_text
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Prices
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import PendingToolCallsError
from holdfast.models.base import ModelReply, SummaryPrompt
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import SimulatedClock
from holdfast.wire.formats import format_named
from holdfast.wire.request import Request

LAB_FORMAT, LAB_MODEL = "openai-chat", "gpt-5"
DEFAULT_TURN_SECONDS = 10.0
"""How long a turn takes if a recording does not say."""
MAX_SUMMARY_PARTS, MAX_NAMES_PER_PART = 24, 6
"""How many sentences a simulated summary has, and how many names each sentence has."""
MAX_LAB_RECALL_TOKENS = 1_000
CLOCK_START_MS = 1_700_000_000_000
_PLACE = re.compile(r"#(\d+)")


@dataclass(slots=True)
class SimulatedSummarizer:
    """A summarizer that calls no model."""

    name: str
    clock: SimulatedClock
    seconds: float
    counter: Counter
    window: int | None = None
    prefix_formats: frozenset[str] = frozenset({LAB_FORMAT})
    inputs: list[str] = field(default_factory=list[str])
    """The input of each call."""
    costs: list[SummaryCost] = field(default_factory=list[SummaryCost])

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return a summary made of the most frequent names of the input."""
        await self.clock.sleep(self.seconds)
        prefix = prompt.prefix.messages if prompt.prefix else ()
        decoded = (format_named(LAB_FORMAT).decode(native, 0) for native in prefix)
        cached = sum(sum(message_tokens(message, self.counter)) for message in decoded)
        before = "\n".join(map(full_message_text, prefix))
        self.inputs.append(f"{before}\n{prompt.text}")
        text = _summarize(self.inputs[-1])
        fresh, output = self.counter.count(prompt.system) + self.counter.count(prompt.text), self.counter.count(text)
        self.costs.append(SummaryCost(fresh, output, cached))
        usage = Usage(input_tokens=fresh, output_tokens=output, cache_read_tokens=cached)
        return ModelReply(text=text, model=self.name, usage=usage)


class SimulatedSession:
    """One policy on one growing conversation."""

    def __init__(
        self,
        policy: Policy,
        *,
        model: str = LAB_MODEL,
        prices: Prices | None = None,
        summary_seconds: float | None = None,
    ) -> None:
        """`summary_seconds` is how long a summary takes; None if there is no summarizer."""
        self._policy = policy
        self._model = model
        self._clock = SimulatedClock(CLOCK_START_MS)
        self.summarizer = None
        if summary_seconds is not None:
            self.summarizer = SimulatedSummarizer(model, self._clock, summary_seconds, counter_for(model))
        self._compaction = CompactionOptions(automatic=self.summarizer, prices=prices)
        self._session: Session | None = None
        self._reported_costs = 0
        self.cpu_seconds: list[float] = []
        """The processor time of each request."""

    async def __aenter__(self) -> Self:
        self._session = await Session.open(
            "lab",
            store=MemoryStore(),
            policy=self._policy,
            model=self._model,
            compaction=self._compaction,
            clock=self._clock.time_ms,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    @property
    def session(self) -> Session:
        """The real session."""
        if self._session is None:
            raise RuntimeError("use it with `async with`")
        return self._session

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return the request for the conversation so far."""
        new = replay_request.messages[len(self.session) :]
        if new:
            await self.session.record(new)
        await self._clock.advance(replay_request.idle_seconds or DEFAULT_TURN_SECONDS)
        changes, began, busy = self.session.history.change_count, self._clock.time_ms(), time.process_time()
        request = await self._clock.run(self._request(replay_request))
        self.cpu_seconds.append(time.process_time() - busy)
        spent = self.summarizer.costs[self._reported_costs :] if self.summarizer else []
        self._reported_costs += len(spent)
        return ReplayResult(
            request.messages,
            spent,
            waited_seconds=(self._clock.time_ms() - began) / 1000,
            is_compacted=self.session.history.change_count > changes,
        )

    async def _request(self, replay_request: ReplayRequest) -> Request:
        budget = replay_request.budget - replay_request.sizes.static
        try:
            return await self.session.prepare(budget, has_recall=True)
        except PendingToolCallsError:
            # The recorded client continued without an answer.
            await self.session.interrupt()
            return await self.session.prepare(budget, has_recall=True)

    async def is_reproducible(self, replay_request: ReplayRequest) -> bool:
        """Return whether a copy of the session, opened from the log, makes the same request."""
        first = await self._clock.run(self._request(replay_request))
        other = await self.session.fork()
        try:
            budget = replay_request.budget - replay_request.sizes.static
            return first.hash == (await self._clock.run(other.prepare(budget, has_recall=True))).hash
        finally:
            await other.close()

    async def recall(self, query: str) -> str:
        """Return the answer of one recall."""
        return await self.session.recall_tool(max_tokens=MAX_LAB_RECALL_TOKENS).call({"query": query})

    async def count_lost_messages(self, messages: list[dict[str, object]]) -> int:
        """Return how many messages differ in any byte when another session reads them from the log."""
        async with Session.open("lab", store=self.session.store, policy=self._policy, model=self._model) as other:
            found = await other.messages_at(0, len(messages))
        return sum(one != other for one, other in zip(found, messages, strict=False)) + abs(len(found) - len(messages))

    async def count_differing_requests(self) -> int:
        """Return how many requests cannot be rebuilt from the log."""
        return sum(not request.is_same for request in rebuilt_requests(await self.session.events()))

    async def model_summaries(self) -> list[log.SummaryWritten]:
        """Return the summaries that a model wrote, whether a compaction used them or not."""
        return [
            event
            for event in await self.session.events()
            if isinstance(event, log.SummaryWritten) and event.summary.by_model
        ]


def _summarize(text: str) -> str:
    """Return a sentence for each part of a text: its most frequent names, and its position."""
    lines = ["What was done so far, part by part, by the names that it turned on:"]
    step = len(text) // MAX_SUMMARY_PARTS + 1
    place = "0"
    for start in range(0, len(text), step):
        part = text[start : start + step]
        place = found[1] if (found := _PLACE.search(part)) else place
        names = [name for name, _ in Tally(extract_identifiers(part)).most_common(MAX_NAMES_PER_PART)]
        if names:
            lines.append(f"- Done: the work went on with {', '.join(names)} [#{place}].")
    return "\n".join([*lines, "Next: go on from the newest message."])


def full_message_text(native: Mapping[str, object]) -> str:
    """Return the text of a message with the arguments and results of its calls."""
    message = format_named(LAB_FORMAT).decode(native, 0)
    pieces = [message.text, *(result.text for result in message.results)]
    return "\n".join([*pieces, *(argument_text(call.arguments) for call in message.calls)])
