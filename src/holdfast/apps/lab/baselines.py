"""The baselines: common policies of today, with which all others are compared.

Each baseline receives the whole conversation so far and returns the messages it would send. A baseline with state keeps
it in the object. `floor` is Holdfast's `govern`, which keeps no state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from holdfast.bare_list import govern
from holdfast.core.conversation.cuts import next_cut
from holdfast.core.conversation.transcript import Transcript
from holdfast.testing.chat import JsonMessage, user_message
from holdfast.wire.request import Request

PLACEHOLDER_SUMMARY = "[Summary of the conversation so far.]"
MASKED_OUTPUT = "[output left out]"
PLACEHOLDER_SUMMARY_TOKENS = 1_000
"""The assumed size of a summary by a model."""


@dataclass(frozen=True, slots=True)
class SummaryCost:
    """The cost of one call to a summarizer, in tokens."""

    fresh_tokens: int
    """Input that the provider reads for the first time."""
    output_tokens: int = PLACEHOLDER_SUMMARY_TOKENS
    cached_tokens: int = 0
    """Input that the provider reads from its cache."""


@dataclass(slots=True)
class ReplayResult:
    """The request of a policy, and what preparing it cost."""

    messages: Sequence[Mapping[str, object]]
    summaries: Sequence[SummaryCost] = ()
    """The calls to a summarizer."""
    waited_seconds: float = 0.0
    """How long the request waited for a summary."""
    is_compacted: bool = False
    """Whether messages were compacted for this request."""


class ReplayPolicy(Protocol):
    """Prepares the requests of a session one after the other."""

    async def prepare(self, replay_request: "ReplayRequest") -> ReplayResult:
        """Return the request for the conversation so far."""
        ...


@dataclass(slots=True)
class MessageSizes:
    """The cost of each message of a session, counted once."""

    transcript: Transcript
    static: int
    """Tokens of system text and tools in every request."""
    _sums: list[int] = field(default_factory=lambda: [0])

    def tokens_between(self, start: int, stop: int) -> int:
        """Return the tokens of messages from `start` up to `stop`."""
        while len(self._sums) <= stop:
            self._sums.append(self._sums[-1] + self.transcript.tokens(len(self._sums) - 1))
        return self._sums[stop] - self._sums[start]

    def start_within(self, stop: int, tokens: int) -> int:
        """Return the start of the longest part that ends at `stop` and fits `tokens`."""
        start = stop
        while start > 0 and self.tokens_between(start - 1, stop) <= tokens:
            start -= 1
        return start


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request that a policy has to prepare."""

    messages: list[JsonMessage]
    """The conversation so far."""
    sizes: MessageSizes
    budget: int
    idle_seconds: float = 0.0
    """The time since the previous request."""

    @property
    def system_count(self) -> int:
        """How many messages at the beginning are system text."""
        return next((index for index, one in enumerate(self.messages) if one["role"] != "system"), len(self.messages))

    @property
    def available_tokens(self) -> int:
        """How many tokens are left for the messages after the system text."""
        return self.budget - self.sizes.static - self.sizes.tokens_between(0, self.system_count)


class FullHistory:
    """Sends everything and ignores the budget."""

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        return ReplayResult(replay_request.messages)


@dataclass(slots=True)
class SlidingWindow:
    """Sends system messages and the newest others that fit; the window moves with every request."""

    is_pair_safe: bool = False
    """Whether the window begins at a user's message, so that no call is separated from its result."""

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        messages, head = replay_request.messages, replay_request.system_count
        start = max(head, replay_request.sizes.start_within(len(messages), replay_request.available_tokens))
        if self.is_pair_safe:
            while start < len(messages) and messages[start]["role"] != "user":
                start += 1
        return ReplayResult([*messages[:head], *messages[start:]])


def _start_after_cut(replay_request: ReplayRequest, start: int, room: int, keep_share: float) -> int:
    """Return the start of the window. Once the messages exceed `room`, move it so that they fill a share of `room`."""
    sizes, count = replay_request.sizes, len(replay_request.messages)
    if sizes.tokens_between(start, count) <= room:
        return start
    return max(start, next_cut(sizes.transcript, sizes.start_within(count, int(room * keep_share))))


@dataclass(slots=True)
class HysteresisWindow:
    """Cuts to half of the budget when it is exceeded, and does not move the window until the next cut."""

    keep_share: float = 0.5
    start: int = 0

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        messages, head, room = replay_request.messages, replay_request.system_count, replay_request.available_tokens
        self.start = _start_after_cut(replay_request, max(head, self.start), room, self.keep_share)
        return ReplayResult([*messages[:head], *messages[self.start :]])


@dataclass(slots=True)
class ThresholdCompaction:
    """Replaces everything but a tail by a model's summary when the budget is exceeded; the summary is a placeholder."""

    keep_share: float = 0.1
    start: int = 0

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        messages, head = replay_request.messages, replay_request.system_count
        room = replay_request.available_tokens - PLACEHOLDER_SUMMARY_TOKENS
        self.start = max(head, self.start)
        tokens = replay_request.sizes.tokens_between(self.start, len(messages))
        spent = [SummaryCost(tokens)] if tokens > room else []
        self.start = _start_after_cut(replay_request, self.start, room, self.keep_share)
        summary = [user_message(PLACEHOLDER_SUMMARY + " x" * PLACEHOLDER_SUMMARY_TOKENS)] if self.start > head else []
        return ReplayResult([*messages[:head], *summary, *messages[self.start :]], spent, is_compacted=bool(spent))


@dataclass(slots=True)
class HeadAndTail:
    """Sends a quarter of what fits from the beginning and the rest from the end, decided for each request."""

    head_share: float = 0.25

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        messages, sizes = replay_request.messages, replay_request.sizes
        head, room = replay_request.system_count, replay_request.available_tokens
        if sizes.tokens_between(head, len(messages)) <= room:
            return ReplayResult(messages)
        stop = head
        while sizes.tokens_between(head, stop + 1) <= room * self.head_share:
            stop += 1
        start = max(stop, sizes.start_within(len(messages), room - sizes.tokens_between(head, stop)))
        return ReplayResult([*messages[:stop], *messages[start:]])


@dataclass(slots=True)
class OutputMasking:
    """Sends all messages, with all but the newest tool outputs masked, even if that exceeds the budget."""

    keep_last: int = 10
    masked_messages: dict[int, JsonMessage] = field(default_factory=dict[int, JsonMessage])

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        outputs = [index for index, one in enumerate(replay_request.messages) if one["role"] == "tool"]
        hidden = set(outputs[: -self.keep_last])
        return ReplayResult(
            [self._mask(index, one) if index in hidden else one for index, one in enumerate(replay_request.messages)]
        )

    def _mask(self, index: int, message: JsonMessage) -> JsonMessage:
        if index not in self.masked_messages:
            self.masked_messages[index] = {**message, "content": MASKED_OUTPUT}
        return self.masked_messages[index]


@dataclass(slots=True)
class GovernedList:
    """Holdfast's `govern` for a list that only grows."""

    model: str = "gpt-5"
    previous: Request | None = None

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        room = replay_request.budget - replay_request.sizes.static
        self.previous = govern(
            replay_request.messages, budget=room, model=self.model, previous=self.previous, interrupted=True
        )
        return ReplayResult(self.previous.messages)


PolicyFactory: TypeAlias = Callable[[], ReplayPolicy]
BASELINES: Mapping[str, PolicyFactory] = {
    "full": FullHistory,
    "sliding": SlidingWindow,
    "pair-safe": lambda: SlidingWindow(is_pair_safe=True),
    "head-tail": HeadAndTail,
    "masking": OutputMasking,
    "hysteresis": HysteresisWindow,
    "threshold": ThresholdCompaction,
    "floor": GovernedList,
}
