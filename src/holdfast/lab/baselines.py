"""What people do today: the policies that every other one is held against.

Each takes the whole conversation so far and gives back what it would send. Those that remember
anything between two requests do so in the object. `floor` is ours without a memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from holdfast.core.conversation.cuts import next_cut
from holdfast.core.conversation.transcript import Transcript
from holdfast.govern import Request, govern
from holdfast.testing.chat import Json, said

SUMMARY = "[Summary of the conversation so far.]"
MASK = "[output left out]"
SUMMARY_TOKENS = 1_000
"""What a summary by a model is taken to cost when it is written."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What one call for a summary would have taken, in tokens."""

    fresh: int
    """Read for the first time."""
    output: int = SUMMARY_TOKENS
    held: int = 0
    """Read again from the provider's cache."""


@dataclass(slots=True)
class Prepared:
    """What a policy would send, and what it spent on deciding that."""

    messages: Sequence[Mapping[str, object]]
    summaries: Sequence[Spent] = ()
    """The calls to a model that were made for it."""
    waited_seconds: float = 0.0
    """How long the request had to wait for one of them."""
    is_folded: bool = False
    """Whether messages were folded for this request."""


class ReplayPolicy(Protocol):
    """Prepares each request of a session in turn."""

    async def prepare(self, asked: "Asked") -> Prepared:
        """Return what would be sent for the conversation so far."""
        ...


@dataclass(slots=True)
class Sizes:
    """The cost of each message of a session, counted once."""

    transcript: Transcript
    static: int
    """System text and tools that every request carries besides."""
    _sums: list[int] = field(default_factory=lambda: [0])

    def between(self, start: int, stop: int) -> int:
        """Return the tokens of messages from `start` up to `stop`."""
        while len(self._sums) <= stop:
            self._sums.append(self._sums[-1] + self.transcript.tokens(len(self._sums) - 1))
        return self._sums[stop] - self._sums[start]

    def start_within(self, stop: int, tokens: int) -> int:
        """Return where the longest part begins that ends at `stop` and fits `tokens`."""
        start = stop
        while start > 0 and self.between(start - 1, stop) <= tokens:
            start -= 1
        return start


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a policy has to prepare."""

    messages: list[Json]
    """Everything said so far."""
    sizes: Sizes
    budget: int
    idle_seconds: float = 0.0
    """Since the request before."""

    @property
    def head(self) -> int:
        """How many messages at the beginning are system text."""
        return next((index for index, one in enumerate(self.messages) if one["role"] != "system"), len(self.messages))

    @property
    def room(self) -> int:
        """The tokens that other messages may take."""
        return self.budget - self.sizes.static - self.sizes.between(0, self.head)


class Full:
    """Sends everything, whatever the budget."""

    async def prepare(self, asked: Asked) -> Prepared:
        """Return all messages."""
        return Prepared(asked.messages)


@dataclass(slots=True)
class Sliding:
    """Sends system messages and the newest others that fit; the window moves with every request."""

    is_pair_safe: bool = False
    """Whether the window begins at a user's message, so that no call is parted from its result."""

    async def prepare(self, asked: Asked) -> Prepared:
        """Return the window."""
        messages, sizes, head, room = asked.messages, asked.sizes, asked.head, asked.room
        start = max(head, sizes.start_within(len(messages), room))
        if self.is_pair_safe:
            while start < len(messages) and messages[start]["role"] != "user":
                start += 1
        return Prepared([*messages[:head], *messages[start:]])


@dataclass(slots=True)
class Hysteresis:
    """Cuts to half of the budget when it is exceeded, and then leaves the window alone."""

    keep_share: float = 0.5
    start: int = 0

    async def prepare(self, asked: Asked) -> Prepared:
        """Return everything from the last cut on."""
        messages, sizes, head, room = asked.messages, asked.sizes, asked.head, asked.room
        self.start = max(head, self.start)
        if sizes.between(self.start, len(messages)) > room:
            wanted = sizes.start_within(len(messages), int(room * self.keep_share))
            self.start = max(self.start, next_cut(sizes.transcript, wanted))
        return Prepared([*messages[:head], *messages[self.start :]])


@dataclass(slots=True)
class Threshold:
    """Summarises everything but a tail by a model when the budget is exceeded; the summary says nothing."""

    keep_share: float = 0.1
    start: int = 0

    async def prepare(self, asked: Asked) -> Prepared:
        """Return the summary, if there is one, and everything behind it."""
        messages, sizes, head, room = asked.messages, asked.sizes, asked.head, asked.room - SUMMARY_TOKENS
        self.start = max(head, self.start)
        spent: list[Spent] = []
        if sizes.between(self.start, len(messages)) > room:
            spent = [Spent(sizes.between(self.start, len(messages)))]
            wanted = sizes.start_within(len(messages), int(room * self.keep_share))
            self.start = max(self.start, next_cut(sizes.transcript, wanted))
        summary = [said(SUMMARY + " x" * SUMMARY_TOKENS)] if self.start > head else []
        return Prepared([*messages[:head], *summary, *messages[self.start :]], spent, is_folded=bool(spent))


@dataclass(slots=True)
class HeadTail:
    """Sends a quarter of what fits from the beginning and the rest from the end, decided anew each time."""

    head_share: float = 0.25

    async def prepare(self, asked: Asked) -> Prepared:
        """Return both ends."""
        messages, sizes, head, room = asked.messages, asked.sizes, asked.head, asked.room
        if sizes.between(head, len(messages)) <= room:
            return Prepared(messages)
        stop = head
        while sizes.between(head, stop + 1) <= room * self.head_share:
            stop += 1
        start = max(stop, sizes.start_within(len(messages), room - sizes.between(head, stop)))
        return Prepared([*messages[:stop], *messages[start:]])


@dataclass(slots=True)
class Masking:
    """Sends everything, with all but the newest tool outputs left out; whether that fits is not asked."""

    kept: int = 10
    masked: dict[int, Json] = field(default_factory=dict[int, Json])

    async def prepare(self, asked: Asked) -> Prepared:
        """Return all messages, old outputs masked."""
        outputs = [index for index, one in enumerate(asked.messages) if one["role"] == "tool"]
        hidden = set(outputs[: -self.kept])
        return Prepared(
            [self._masked(index, one) if index in hidden else one for index, one in enumerate(asked.messages)]
        )

    def _masked(self, index: int, message: Json) -> Json:
        if index not in self.masked:
            self.masked[index] = {**message, "content": MASK}
        return self.masked[index]


@dataclass(slots=True)
class Governed:
    """Holdfast: the floor under a list that only grows."""

    model: str = "gpt-5"
    previous: Request | None = None

    async def prepare(self, asked: Asked) -> Prepared:
        """Return the governed request."""
        room = asked.budget - asked.sizes.static
        self.previous = govern(asked.messages, budget=room, model=self.model, previous=self.previous, interrupted=True)
        return Prepared(self.previous.messages)


Maker: TypeAlias = Callable[[], ReplayPolicy]
BASELINES: Mapping[str, Maker] = {
    "full": Full,
    "sliding": Sliding,
    "pair-safe": lambda: Sliding(is_pair_safe=True),
    "head-tail": HeadTail,
    "masking": Masking,
    "hysteresis": Hysteresis,
    "threshold": Threshold,
    "floor": Governed,
}
