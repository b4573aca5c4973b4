"""The messages that always stay in a request: system text, pins, the newest prompt, and the last exchange.

A call and its results are protected together, because providers reject one without the other.
"""

from bisect import bisect_left
from collections.abc import Sequence

from holdfast.core.conversation.cuts import MessageSequence, uncuttable_span
from holdfast.core.conversation.messages import Entry, EntryMessages, Message, Thinking
from holdfast.core.conversation.transcript import Transcript

MAX_PAIR_DISTANCE = 100_000
"""How far to search for the other half of an exchange that is not adjacent."""
SYSTEM_PART = "the system text"
TOOLS_PART = "the tool definitions"
PINS_PART = "the pinned messages"
PROMPT_PART = "the newest prompt"
LAST_EXCHANGE_PART = "the last exchange"


class Protection:
    """The protected positions of a transcript."""

    def __init__(self, transcript: Transcript, pins: frozenset[int]) -> None:
        self._transcript = transcript
        length = len(transcript)
        self.system_indices = transcript.system_indices_before(length)
        self.prompt_index = self._newest_prompt()
        last = range(*uncuttable_span(transcript, length - 1)) if length else range(0)
        self.limit = last.start
        """Where the last exchange begins: no cut falls after it."""
        self.pinned = self._exchanges(pins)
        """The pinned messages, each with its whole exchange, because a call needs its result."""
        prompted = () if self.prompt_index is None else range(*uncuttable_span(transcript, self.prompt_index))
        late = self._with_distant_pairs(last)
        self._kept = sorted({*self.system_indices, *self.pinned, *prompted, *late})
        self.fixed = frozenset({*self.system_indices, *self.pinned})
        """Positions of messages that are never shortened."""
        self.whole = self.fixed if self.prompt_index is None else self.fixed | {self.prompt_index}
        """The same with the newest prompt, of which only tool results may be shortened, as the last resort."""

    @property
    def last(self) -> range:
        """The last exchange."""
        return range(self.limit, len(self._transcript))

    def protected_before(self, compact_before: int) -> list[int]:
        """Return the positions before a cut that stay, in order."""
        kept = self._kept[: bisect_left(self._kept, compact_before)]
        return sorted({*kept, *self._reasoning_before(compact_before)}) if self.prompt_index is not None else kept

    def part_name(self, index: int) -> str:
        """Return the name of the protected part that a position belongs to."""
        if self._transcript[index].role == "system":
            return SYSTEM_PART
        if index in self.pinned:
            return PINS_PART
        return PROMPT_PART if index == self.prompt_index else LAST_EXCHANGE_PART

    def _newest_prompt(self) -> int | None:
        for number in range(self._transcript.prompts_before(len(self._transcript)) - 1, -1, -1):
            position = self._transcript.prompt_index(number)
            if self._transcript[position].is_prompt:
                return position
        return None

    def _exchanges(self, pins: frozenset[int]) -> frozenset[int]:
        found: set[int] = set()
        for pin in sorted(pins):
            if pin not in found:
                found |= self._exchange(pin)
        return frozenset(found)

    def _exchange(self, index: int) -> set[int]:
        return self._with_distant_pairs(range(*uncuttable_span(self._transcript, index)))

    def _with_distant_pairs(self, unit: range) -> set[int]:
        """Return the positions of an exchange, and of its calls and results that are not adjacent."""
        outlines = [self._transcript[position].outline for position in unit]
        calls = {call_id for outline in outlines for call_id in outline.call_ids}
        results = {call_id for outline in outlines for call_id in outline.result_ids}
        found = set(unit)
        if results - calls:
            found |= self._search(range(unit.start - 1, max(-1, unit.start - MAX_PAIR_DISTANCE), -1), results - calls)
        if calls - results:
            found |= self._search(
                range(unit.stop, min(len(self._transcript), unit.stop + MAX_PAIR_DISTANCE)), calls - results
            )
        return found

    def _search(self, positions: range, call_ids: set[str]) -> set[int]:
        """Return the exchanges of the nearest messages that hold the other half of calls or results."""
        found: set[int] = set()
        for position in positions:
            outline = self._transcript[position].outline
            halves = call_ids.intersection(outline.call_ids if positions.step < 0 else outline.result_ids)
            if halves:
                found.update(range(*uncuttable_span(self._transcript, position)))
                call_ids = call_ids - halves
            if not call_ids:
                break
        return found

    def _reasoning_before(self, compact_before: int) -> range:
        return (
            range(0)
            if self.prompt_index is None
            else reasoning_exchange(self._transcript, self.prompt_index, compact_before)
        )


def pinned_exchanges(entries: Sequence[Entry], pins: frozenset[int]) -> frozenset[int]:
    """Return the indices that pins keep: each pinned exchange whole, because a call needs its result."""
    found = [index for index, entry in enumerate(entries) if entry.position in pins]
    return frozenset(at for index in found for at in range(*uncuttable_span(EntryMessages(entries), index)))


def reasoning_exchange(messages: MessageSequence, prompt: int, compact_before: int) -> range:
    """Return the exchange that holds the open turn's reasoning, if the messages after the cut have none.

    With thinking switched on, Anthropic requires the running turn to begin with a reasoning block. Models that do not
    think between tool calls have only one, at the start of the turn. It stays, and the steps after it are compacted.
    """
    if compact_before <= prompt + 1 or compact_before >= len(messages):
        return range(0)
    if not _has_reasoning(messages[prompt + 1]) or _has_reasoning(messages[compact_before]):
        return range(0)
    nearest = next(index for index in range(compact_before - 1, prompt, -1) if _has_reasoning(messages[index]))
    return range(*uncuttable_span(messages, nearest))


def _has_reasoning(message: Message) -> bool:
    return any(isinstance(part, Thinking) and part.native is not None for part in message.parts)
