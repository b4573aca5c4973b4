"""What people do today: the policies that every other one is held against.

Each takes the whole conversation so far and gives back what it would send. Those that remember
anything between two requests do so in the object. `floor` is ours without a memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from holdfast.core.conversation.cuts import next_cut
from holdfast.core.conversation.transcript import Transcript
from holdfast.govern import govern
from holdfast.session.request import Request
from holdfast.testing.chat import JsonMessage, user_message

PLACEHOLDER_SUMMARY = "[Summary of the conversation so far.]"
MASKED_OUTPUT = "[output left out]"
PLACEHOLDER_SUMMARY_TOKENS = 1_000
"""What a summary by a model is taken to cost when it is written."""


@dataclass(frozen=True, slots=True)
class SummaryCost:
    """What one call for a summary would have taken, in tokens."""

    fresh_tokens: int
    """Read for the first time."""
    output_tokens: int = PLACEHOLDER_SUMMARY_TOKENS
    cached_tokens: int = 0
    """Read again from the provider's cache."""


@dataclass(slots=True)
class ReplayResult:
    """What a policy would send, and what it spent on deciding that."""

    messages: Sequence[Mapping[str, object]]
    summaries: Sequence[SummaryCost] = ()
    """The calls to a model that were made for it."""
    waited_seconds: float = 0.0
    """How long the request had to wait for one of them."""
    is_compacted: bool = False
    """Whether messages were folded for this request."""


class ReplayPolicy(Protocol):
    """Prepares each request of a session in turn."""

    async def prepare(self, replay_request: "ReplayRequest") -> ReplayResult:
        """Return what would be sent for the conversation so far."""
        ...


@dataclass(slots=True)
class MessageSizes:
    """The cost of each message of a session, counted once."""

    transcript: Transcript
    static: int
    """System text and tools that every request carries besides."""
    _sums: list[int] = field(default_factory=lambda: [0])

    def tokens_between(self, start: int, stop: int) -> int:
        """Return the tokens of messages from `start` up to `stop`."""
        while len(self._sums) <= stop:
            self._sums.append(self._sums[-1] + self.transcript.tokens(len(self._sums) - 1))
        return self._sums[stop] - self._sums[start]

    def start_within(self, stop: int, tokens: int) -> int:
        """Return where the longest part begins that ends at `stop` and fits `tokens`."""
        start = stop
        while start > 0 and self.tokens_between(start - 1, stop) <= tokens:
            start -= 1
        return start


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A request that a policy has to prepare."""

    messages: list[JsonMessage]
    """Everything said so far."""
    sizes: MessageSizes
    budget: int
    idle_seconds: float = 0.0
    """Since the request before."""

    @property
    def system_count(self) -> int:
        """How many messages at the beginning are system text."""
        return next((index for index, one in enumerate(self.messages) if one["role"] != "system"), len(self.messages))

    @property
    def available_tokens(self) -> int:
        """The tokens that other messages may take."""
        return self.budget - self.sizes.static - self.sizes.tokens_between(0, self.system_count)


class FullHistory:
    """Sends everything, whatever the budget."""

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return all messages."""
        return ReplayResult(replay_request.messages)


@dataclass(slots=True)
class SlidingWindow:
    """Sends system messages and the newest others that fit; the window moves with every request."""

    is_pair_safe: bool = False
    """Whether the window begins at a user's message, so that no call is parted from its result."""

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return the window."""
        messages, sizes, head, room = (
            replay_request.messages,
            replay_request.sizes,
            replay_request.system_count,
            replay_request.available_tokens,
        )
        start = max(head, sizes.start_within(len(messages), room))
        if self.is_pair_safe:
            while start < len(messages) and messages[start]["role"] != "user":
                start += 1
        return ReplayResult([*messages[:head], *messages[start:]])


@dataclass(slots=True)
class HysteresisWindow:
    """Cuts to half of the budget when it is exceeded, and then leaves the window alone."""

    keep_share: float = 0.5
    start: int = 0

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return everything from the last cut on."""
        messages, sizes, head, room = (
            replay_request.messages,
            replay_request.sizes,
            replay_request.system_count,
            replay_request.available_tokens,
        )
        self.start = max(head, self.start)
        if sizes.tokens_between(self.start, len(messages)) > room:
            wanted = sizes.start_within(len(messages), int(room * self.keep_share))
            self.start = max(self.start, next_cut(sizes.transcript, wanted))
        return ReplayResult([*messages[:head], *messages[self.start :]])


@dataclass(slots=True)
class ThresholdCompaction:
    """Summarises everything but a tail by a model when the budget is exceeded; the summary says nothing."""

    keep_share: float = 0.1
    start: int = 0

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return the summary, if there is one, and everything behind it."""
        messages, sizes, head, room = (
            replay_request.messages,
            replay_request.sizes,
            replay_request.system_count,
            replay_request.available_tokens - PLACEHOLDER_SUMMARY_TOKENS,
        )
        self.start = max(head, self.start)
        spent: list[SummaryCost] = []
        if sizes.tokens_between(self.start, len(messages)) > room:
            spent = [SummaryCost(sizes.tokens_between(self.start, len(messages)))]
            wanted = sizes.start_within(len(messages), int(room * self.keep_share))
            self.start = max(self.start, next_cut(sizes.transcript, wanted))
        summary = [user_message(PLACEHOLDER_SUMMARY + " x" * PLACEHOLDER_SUMMARY_TOKENS)] if self.start > head else []
        return ReplayResult([*messages[:head], *summary, *messages[self.start :]], spent, is_compacted=bool(spent))


@dataclass(slots=True)
class HeadAndTail:
    """Sends a quarter of what fits from the beginning and the rest from the end, decided anew each time."""

    head_share: float = 0.25

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return both ends."""
        messages, sizes, head, room = (
            replay_request.messages,
            replay_request.sizes,
            replay_request.system_count,
            replay_request.available_tokens,
        )
        if sizes.tokens_between(head, len(messages)) <= room:
            return ReplayResult(messages)
        stop = head
        while sizes.tokens_between(head, stop + 1) <= room * self.head_share:
            stop += 1
        start = max(stop, sizes.start_within(len(messages), room - sizes.tokens_between(head, stop)))
        return ReplayResult([*messages[:stop], *messages[start:]])


@dataclass(slots=True)
class OutputMasking:
    """Sends everything, with all but the newest tool outputs left out; whether that fits is not asked."""

    keep_last: int = 10
    masked_messages: dict[int, JsonMessage] = field(default_factory=dict[int, JsonMessage])

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return all messages, old outputs masked."""
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
    """Holdfast: the floor under a list that only grows."""

    model: str = "gpt-5"
    previous: Request | None = None

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        """Return the governed request."""
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
