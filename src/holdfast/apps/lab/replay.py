"""Replays a recorded conversation under a policy and passes every request of the policy to the metrics.

For each assistant turn the policy prepares a request from the messages before it. The replay compares the request with
the previous one and then appends the recorded turn. It calls no provider and computes the costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.apps.lab.baselines import MessageSizes, ReplayPolicy, ReplayRequest, ReplayResult, SummaryCost
from holdfast.apps.lab.recordings import Recording
from holdfast.apps.lab.simulation import LAB_FORMAT, LAB_MODEL, full_message_text
from holdfast.core.conversation.tokens import Counter, message_tokens
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.situation import Prices, request_cost
from holdfast.counters.vocabularies import counter_for
from holdfast.wire.formats import format_named

DEFAULT_STATIC_TOKENS = 3_000
"""Tokens of system text and tools in every request, if a recording does not say."""


@dataclass(frozen=True, slots=True)
class ReplayTurn:
    """One request that a policy would have made."""

    sent_tokens: int
    """The tokens of the request, including system text and tools."""
    shared_tokens: int
    """The tokens of the prefix that it shares with the previous request."""
    is_extension: bool
    """Whether the previous request is its prefix."""
    output_tokens: int
    gap_seconds: float
    """The time since the previous request."""
    summaries: Sequence[SummaryCost] = ()
    waited_seconds: float = 0.0
    is_compacted: bool = False

    def cached_tokens(self, prices: Prices) -> int:
        """Return how many tokens of the request the provider's cache would still hold."""
        is_cold = prices.ttl_seconds is not None and self.gap_seconds > prices.ttl_seconds
        return 0 if is_cold else self.shared_tokens

    def cost(self, prices: Prices) -> float:
        """Return the cost of the request and its summaries, in plain input tokens."""
        held = self.cached_tokens(prices)
        own = request_cost(prices, cached=held, fresh=self.sent_tokens - held, output=self.output_tokens)
        # A summarizer reads its input once, so caching that input is not worth the price.
        return own + sum(
            one.fresh_tokens + prices.read * one.cached_tokens + prices.output * one.output_tokens
            for one in self.summaries
        )


@dataclass(frozen=True, slots=True)
class ObservedRequest:
    """One request, with all that a metric may need."""

    index: int
    """The index of the recorded message that answers the request."""
    recording: Recording
    request: ReplayRequest
    messages: Sequence[Mapping[str, object]]
    turn: ReplayTurn
    text: str
    """The text of all its messages."""


class Metric(Protocol):
    """Observes a replay and reports figures."""

    async def observe(self, observed: ObservedRequest) -> None:
        """Observe one request."""
        ...

    async def figures(self) -> Mapping[str, float]:
        """Return the figures, by name."""
        ...


@dataclass(slots=True)
class TurnCollector:
    """A base for metrics that need all turns."""

    turns: list[ReplayTurn] = field(default_factory=list[ReplayTurn], init=False)

    async def observe(self, observed: ObservedRequest) -> None:
        """Store the turn."""
        self.turns.append(observed.turn)


@dataclass(slots=True)
class Replayer:
    """Replays one recording under one policy at one budget."""

    recording: Recording
    policy: ReplayPolicy
    budget: int
    static: int = DEFAULT_STATIC_TOKENS
    counter: Counter = field(default_factory=lambda: counter_for(LAB_MODEL))
    turns: list[ReplayTurn] = field(default_factory=list[ReplayTurn])
    _counted: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    """Tokens and text by `id` of the message; `_kept` keeps the message alive, so that no id is reused."""
    _kept: list[Mapping[str, object]] = field(default_factory=list[Mapping[str, object]])

    async def play(self, metrics: Sequence[Metric] = ()) -> dict[str, float]:
        """Replay to the end and return the figures of the metrics."""
        recording, messages = self.recording, self.recording.messages
        sizes = self.message_sizes()
        before: Sequence[Mapping[str, object]] = ()
        asked_at = None
        for index in recording.turns:
            time = recording.times[index]
            gap = 0.0 if asked_at is None or time is None else max(0.0, time - asked_at)
            asked = ReplayRequest(messages[:index], sizes, self.budget, gap)
            prepared = await self.policy.prepare(asked)
            turn = self._measure_turn(prepared, before, gap, sizes.transcript.tokens(index))
            self.turns.append(turn)
            if metrics:
                text = "\n".join(self._measure_message(message)[1] for message in prepared.messages)
                seen = ObservedRequest(index, recording, asked, prepared.messages, turn, text)
                for metric in metrics:
                    await metric.observe(seen)
            before, asked_at = prepared.messages, time
        found: dict[str, float] = {"turns": len(self.turns)}
        for metric in metrics:
            found |= await metric.figures()
        return found

    def message_sizes(self) -> MessageSizes:
        """Return the size of each message of the recording."""
        return MessageSizes(Transcript(self.recording.messages, format_named(LAB_FORMAT), self.counter), self.static)

    def _measure_turn(
        self, prepared: ReplayResult, before: Sequence[Mapping[str, object]], gap: float, output: int
    ) -> ReplayTurn:
        tokens = [self._measure_message(message)[0] for message in prepared.messages]
        common = _common_prefix_length(before, prepared.messages)
        return ReplayTurn(
            sent_tokens=self.static + sum(tokens),
            shared_tokens=(self.static if before else 0) + sum(tokens[:common]),
            is_extension=common == len(before),
            output_tokens=output,
            gap_seconds=gap,
            summaries=tuple(prepared.summaries),
            waited_seconds=prepared.waited_seconds,
            is_compacted=prepared.is_compacted,
        )

    def _measure_message(self, message: Mapping[str, object]) -> tuple[int, str]:
        """Return the tokens and the text of a message, computed once."""
        known = self._counted.get(id(message))
        if known is None:
            decoded = format_named(LAB_FORMAT).decode(message, 0)
            known = self._counted[id(message)] = sum(message_tokens(decoded, self.counter)), full_message_text(message)
            self._kept.append(message)
        return known


def _common_prefix_length(before: Sequence[Mapping[str, object]], after: Sequence[Mapping[str, object]]) -> int:
    count = 0
    for one, other in zip(before, after, strict=False):
        if one is not other and one != other:
            break
        count += 1
    return count
