"""What may never leave a request: system text, pins, the newest prompt, and the last exchange."""

from bisect import bisect_left

from holdfast.core.conversation.cuts import unit_around
from holdfast.core.conversation.messages import Thinking
from holdfast.core.conversation.transcript import Transcript

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
        self.limit = unit_around(transcript, length - 1)[0] if length else 0
        """Where the last exchange begins: no line passes it."""
        self.pinned = frozenset(position for pin in pins for position in range(*unit_around(transcript, pin)))
        """A pin keeps all of its exchange: a call is nothing without its result."""
        prompted = () if self.prompt is None else range(*unit_around(transcript, self.prompt))
        self._kept = sorted({*self.systems, *self.pinned, *prompted})
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
        if index in self.systems:
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

    def _reasoning_before(self, fold: int) -> range:
        """Return the exchange that holds the open turn's reasoning, if the rest of the turn has none.

        With thinking switched on, Anthropic wants the running turn to begin with a reasoning block. Models
        that do not think between tool calls have only one, at its start: it stays, and the fold takes
        the steps behind it.
        """
        transcript, prompt = self._transcript, self.prompt
        if prompt is None or fold <= prompt + 1 or fold >= len(transcript):
            return range(0)
        if not self._reasons(prompt + 1) or self._reasons(fold):
            return range(0)
        nearest = next(index for index in range(fold - 1, prompt, -1) if self._reasons(index))
        return range(*unit_around(transcript, nearest))

    def _reasons(self, index: int) -> bool:
        return any(isinstance(part, Thinking) and part.native is not None for part in self._transcript[index].parts)
