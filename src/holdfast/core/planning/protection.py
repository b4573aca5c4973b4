"""What may never leave a request: system text, pins, the newest prompt, and the last exchange."""

from bisect import bisect_left
from collections.abc import Sequence

from holdfast.core.conversation.cuts import Messages, unit_around
from holdfast.core.conversation.messages import Message, Thinking
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.conversation.view import Entry, Spoken

FAR = 100_000
"""How many messages away the other half of an exchange is looked for, where it does not stand beside it."""
SYSTEM = "the system text"
TOOLS = "the tool definitions"
PINS = "the pinned messages"
PROMPT = "the newest prompt"
LAST = "the last exchange"


class Protection:
    """The positions of a transcript that are not free to go."""

    def __init__(self, transcript: Transcript, pins: frozenset[int]) -> None:
        self._transcript = transcript
        length = len(transcript)
        self.systems = transcript.systems_before(length)
        self.prompt = self._newest_prompt()
        last = range(*unit_around(transcript, length - 1)) if length else range(0)
        self.limit = last.start
        """Where the last exchange begins: no line passes it."""
        self.pinned = self._exchanges(pins)
        """A pin keeps all of its exchange: a call is nothing without its result."""
        prompted = () if self.prompt is None else range(*unit_around(transcript, self.prompt))
        late = self._with_far_halves(last)
        self._kept = sorted({*self.systems, *self.pinned, *prompted, *late})
        self.fixed = frozenset({*self.systems, *self.pinned})
        """Positions where not a character is removed, whatever happens."""
        self.whole = self.fixed if self.prompt is None else self.fixed | {self.prompt}
        """The same with the newest prompt, whose tool results, if it has any, go as the last resort."""

    @property
    def last(self) -> range:
        """The last exchange."""
        return range(self.limit, len(self._transcript))

    def before(self, fold: int) -> list[int]:
        """Return the positions before the fold line that stay, in order."""
        kept = self._kept[: bisect_left(self._kept, fold)]
        return sorted({*kept, *self._reasoning_before(fold)}) if self.prompt is not None else kept

    def name_of(self, index: int) -> str:
        """Return what a position is protected as."""
        if self._transcript[index].role == "system":
            return SYSTEM
        if index in self.pinned:
            return PINS
        return PROMPT if index == self.prompt else LAST

    def _newest_prompt(self) -> int | None:
        for number in range(self._transcript.prompts_before(len(self._transcript)) - 1, -1, -1):
            position = self._transcript.prompt(number)
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
        return self._with_far_halves(range(*unit_around(self._transcript, index)))

    def _with_far_halves(self, unit: range) -> set[int]:
        """Return the positions of a unit, and of calls and results that stand apart from it."""
        outlines = [self._transcript[position].outline for position in unit]
        calls = {call_id for outline in outlines for call_id in outline.call_ids}
        results = {call_id for outline in outlines for call_id in outline.result_ids}
        found = set(unit)
        if results - calls:
            found |= self._search(range(unit.start - 1, max(-1, unit.start - FAR), -1), results - calls)
        if calls - results:
            found |= self._search(range(unit.stop, min(len(self._transcript), unit.stop + FAR)), calls - results)
        return found

    def _search(self, positions: range, call_ids: set[str]) -> set[int]:
        """Return the units of the nearest messages that hold the other half of calls or results."""
        found: set[int] = set()
        for position in positions:
            outline = self._transcript[position].outline
            halves = call_ids.intersection(outline.call_ids if positions.step < 0 else outline.result_ids)
            if halves:
                found.update(range(*unit_around(self._transcript, position)))
                call_ids = call_ids - halves
            if not call_ids:
                break
        return found

    def _reasoning_before(self, fold: int) -> range:
        return range(0) if self.prompt is None else reasoning_exchange(self._transcript, self.prompt, fold)


def exchanges_of(entries: Sequence[Entry], pins: frozenset[int]) -> frozenset[int]:
    """Return the indices that pins keep: all of each exchange, for a call is nothing without its result."""
    found = [index for index, entry in enumerate(entries) if entry.position in pins]
    return frozenset(at for index in found for at in range(*unit_around(Spoken(entries), index)))


def reasoning_exchange(messages: Messages, prompt: int, fold: int) -> range:
    """Return the exchange that holds the open turn's reasoning, if what follows the fold line has none.

    With thinking switched on, Anthropic wants the running turn to begin with a reasoning block. Models
    that do not think between tool calls have only one, at its start: it stays, and the fold takes
    the steps behind it.
    """
    if fold <= prompt + 1 or fold >= len(messages):
        return range(0)
    if not _reasons(messages[prompt + 1]) or _reasons(messages[fold]):
        return range(0)
    nearest = next(index for index in range(fold - 1, prompt, -1) if _reasons(messages[index]))
    return range(*unit_around(messages, nearest))


def _reasons(message: Message) -> bool:
    return any(isinstance(part, Thinking) and part.native is not None for part in message.parts)
