"""Which messages are recall's own: the calls that asked for something, and the answers.

An answer repeats what was said before. So it is left as it is where outputs are shortened, and nobody finds it again
in the place of what it repeats.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.core.conversation.handles import RECALL
from holdfast.core.conversation.messages import Message

MAX_OPEN = 64
"""How many calls without an answer are remembered."""


@dataclass(slots=True)
class Answers:
    """Grows by one message at a time."""

    answers: set[int] = field(default_factory=set[int])
    """Positions of answers."""
    calls: set[int] = field(default_factory=set[int])
    """Positions of messages that call for nothing else."""
    open: list[str] = field(default_factory=list[str])
    """Ids of calls that have no answer yet."""

    @classmethod
    def of(cls, answers: Iterable[int], calls: Iterable[int], open_ids: Iterable[str]) -> "Answers":
        """Return what was known when a history was left."""
        return cls(set(answers), set(calls), list(open_ids))

    def observe(self, message: Message, position: int) -> None:
        """Take in what was said."""
        if self.open and not set(self.open).isdisjoint(message.outline.result_ids):
            self.answers.add(position)
            answered = set(message.outline.result_ids)
            self.open = [call_id for call_id in self.open if call_id not in answered]
        if message.outline.call_ids and (made := [call for call in message.calls if call.name == RECALL]):
            self.open = [*self.open, *(call.id for call in made)][-MAX_OPEN:]
            if len(made) == len(message.calls) and not message.text.strip():
                self.calls.add(position)

    def are_recalls(self, position: int) -> bool:
        """Return whether a message is nothing but a call of recall, or its answer."""
        return position in self.answers or position in self.calls
