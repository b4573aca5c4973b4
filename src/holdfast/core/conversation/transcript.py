"""A long list of provider messages, decoded on demand.

Selecting what to send from ten thousand messages needs the size of all of them and the content of a few. A
transcript measures every message once, cheaply, and decodes and counts only messages that are read. When the
list grows, a continuation of the transcript reuses the measures and decoded messages.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol, cast

from holdfast.core.conversation.batching import Batching
from holdfast.core.conversation.json_values import dump_json
from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.tokens import MESSAGE_OVERHEAD_BYTES, Counter, message_bytes, message_tokens


class MessageMeasures(NamedTuple):
    """The sizes and roles of messages, measured without decoding."""

    sizes: list[int]
    """The size of each message in bytes of text."""
    prompts: list[int]
    """The indices of user prompts."""
    systems: list[int]


class MessageFormat(Protocol):
    """How a provider represents messages."""

    name: str
    batching: Batching
    """How the format carries a batch of tool calls and their results."""
    has_separate_system: bool
    """Whether system text can be sent outside the messages."""
    max_cache_marks: int | None
    """The most cache marks that a request may carry; None if the format has no such marks."""
    max_text_chars: int | None
    """The longest text that the provider accepts in one string."""
    max_images: int

    def measure(self, natives: Sequence[object], start: int) -> "MessageMeasures":
        """Return the sizes and roles of messages, the first of which has the index `start`."""
        ...

    def decode(self, native: object, index: int) -> Message:
        """Return a decoded message; `index` names its place in an error."""
        ...

    def encode(self, message: Message) -> Mapping[str, object]:
        """Return a message as JSON: its original JSON, changed only where it was edited."""
        ...


def json_bytes(message_format: MessageFormat, message: Message) -> int:
    """Return the size of a message in bytes of JSON as it would be sent."""
    return len(dump_json(message_format.encode(message)).encode())


_entry_of = cast("Callable[[tuple[Message, int]], Entry]", partial(tuple.__new__, Entry))  # pyright: ignore[reportUnknownMemberType]
"""Makes an entry of a pair, in half the time of a call of the class."""


class Transcript:
    """Provider messages with known sizes, decoded and counted on demand."""

    def __init__(
        self,
        natives: Sequence[object],
        reader: MessageFormat,
        counter: Counter,
        positions: Sequence[int | None] | None = None,
    ) -> None:
        self.reader = reader
        self._positions = positions
        """The history positions of the messages, if they differ from the indices of this list."""
        self.counter = counter
        self._natives: list[object] = []
        self._offsets: list[int] = [0]
        self._prompts: list[int] = []
        self._systems: list[int] = []
        self._length = 0
        self.largest_bytes = 0
        """The size of the largest message, in bytes of text."""
        self._entries: dict[int, Entry] = {}
        self.edited_entries: defaultdict[object, dict[int, Entry]] = defaultdict(dict)
        """Messages edited as a key says, which the next request reuses."""
        self.cached_costs: defaultdict[object, dict[int, tuple[int, int]]] = defaultdict(dict)
        """What messages cost in full and shortened as a key says."""
        self.cached_cuts: defaultdict[object, dict[int, int]] = defaultdict(dict)
        """Cuts that were placed as a key says."""
        self.uncuttable = range(0)
        """Indices that all have the last of them as their first legal cut: a long batch of calls is searched once."""
        self._grow(self.reader.measure(natives, 0), natives)

    @classmethod
    def of_entries(cls, entries: Sequence[Entry], reader: MessageFormat, counter: Counter) -> "Transcript":
        """Return a transcript of decoded messages, numbered by their index in `entries`."""
        transcript = cls((), reader, counter, [entry.position for entry in entries])
        transcript._entries = {index: Entry(entry.message, index) for index, entry in enumerate(entries)}
        said = [entry.message for entry in entries]
        measures = MessageMeasures(
            [MESSAGE_OVERHEAD_BYTES + message_bytes(message) for message in said],
            [at for at, one in enumerate(said) if one.role == "user" and entries[at].position is not None],
            [at for at, one in enumerate(said) if one.role == "system" or one.outline.is_fixed],
        )
        transcript._grow(measures, entries)
        return transcript

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int, /) -> Message:
        return self.entry(index).message

    def entry(self, index: int) -> Entry:
        """Return a message with its index in this transcript as position."""
        entry = self._entries.get(index)
        if entry is None:
            entry = self._entries[index] = Entry(self.reader.decode(self._natives[index], index), index)
        return entry

    def entries(self, indices: Sequence[int]) -> list[Entry]:
        """Return messages with their indices as positions. Those that are read for the first time are, last first."""
        known, natives, decode = self._entries, self._natives, self.reader.decode
        missing = [index for index in reversed(indices) if index not in known]
        messages = [decode(natives[index], index) for index in missing]
        known.update(zip(missing, map(_entry_of, zip(messages, missing, strict=True)), strict=True))
        return [known[index] for index in indices]

    def entry_as_positioned(self, index: int) -> Entry:
        """Return a message with its history position."""
        entry = self.entry(index)
        return entry if self._positions is None else Entry(entry.message, self._positions[index])

    @property
    def total_bytes(self) -> int:
        """The size of all messages, in bytes of text."""
        return self._offsets[self._length]

    def bytes_before(self, index: int) -> int:
        """Return the size of all messages before `index`, in bytes of text."""
        return self._offsets[index]

    def bytes_of(self, index: int) -> int:
        """Return the size of one message, in bytes of text."""
        return self._offsets[index + 1] - self._offsets[index]

    def prompts_before(self, index: int) -> int:
        """Return the number of user prompts before `index`."""
        return bisect_left(self._prompts, index)

    def prompt_index(self, number: int) -> int:
        """Return the index of the user prompt with this number, counted from 0."""
        return self._prompts[number]

    def system_indices_before(self, index: int) -> list[int]:
        """Return the indices of messages before `index` that every request needs."""
        return self._systems[: bisect_left(self._systems, index)]

    def start_of_last_bytes(self, stop: int, size_bytes: float) -> int:
        """Return the first index from which the messages before `stop` have at most `size_bytes` bytes of text."""
        return bisect_left(self._offsets, self._offsets[stop] - size_bytes, 0, stop)

    def index_at_bytes(self, size_bytes: float, limit: int) -> int:
        """Return the first index up to `limit` before which there are at least `size_bytes` bytes of text."""
        return bisect_left(self._offsets, size_bytes, 0, limit)

    def tokens(self, index: int) -> int:
        """Return the tokens of the unedited message at `index`."""
        return sum(self.tokens_of(self[index]))

    def tokens_of(self, message: Message) -> tuple[int, int]:
        """Return the tokens of a message, for text and for media."""
        return message_tokens(message, self.counter)

    def counted_by(self, counter: Counter) -> "Transcript":
        """Return the same messages for another counter; what was measured and decoded is shared."""
        if counter is self.counter:
            return self
        other: Transcript = copy(self)
        other.counter = counter
        other.edited_entries, other.cached_costs = defaultdict(dict), defaultdict(dict)
        other.cached_cuts = defaultdict(dict)
        return other

    def continue_with(self, natives: list[object]) -> "Transcript | None":
        """Return this transcript extended to `natives`, or None if `natives` do not begin with its messages.

        The result is also None if another continuation has extended the shared arrays with other messages.
        """
        known = self._natives if len(natives) >= len(self._natives) else self._natives[: len(natives)]
        try:
            is_begun = len(natives) >= self._length and natives[: len(known)] == known
        except RecursionError:
            return None
        # Equal messages may differ (1 and True), so decoded ones must be the same objects.
        count = len(known)
        if not is_begun or [index for index in self._entries if index < count and natives[index] is not known[index]]:
            return None
        return self._continuation(natives)

    def _continuation(self, natives: list[object]) -> "Transcript":
        """Return a transcript that shares the arrays, which only grow; each transcript knows its own length."""
        grown: Transcript = copy(self)
        known = len(self._natives)
        added = natives[known:]
        grown._grow(self.reader.measure(added, known), added)
        grown._positions, grown._length, grown.uncuttable = None, len(natives), range(0)
        sizes = (self.bytes_of(index) for index in range(self._length, len(natives)))
        grown.largest_bytes = max(self.largest_bytes, max(sizes, default=0))
        return grown

    def has_unchanged_sizes(self) -> bool:
        """Return whether all decoded messages still have their measured sizes; detects edits in place."""
        offsets, positions = self._offsets, [index for index in self._entries if index < self._length]
        weights = self.reader.measure([self._natives[position] for position in positions], 0).sizes
        return weights == [offsets[position + 1] - offsets[position] for position in positions]

    def _grow(self, measures: MessageMeasures, natives: Sequence[object]) -> None:
        running = accumulate(measures.sizes, initial=self._offsets.pop())
        self._offsets.extend(running)
        self.largest_bytes = max(self.largest_bytes, max(measures.sizes, default=0))
        self._prompts.extend(measures.prompts)
        self._systems.extend(measures.systems)
        self._natives.extend(natives)
        self._length = len(self._natives)
