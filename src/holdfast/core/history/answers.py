"""What of the messages is recall's own: the calls that asked for something, and the answers.

An answer repeats what was said before. So it is left as it is where outputs are shortened, and nobody finds it again
in the place of what it repeats. It may stand in one message with what other tools gave back: those are like any others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.core.conversation.handles import RECALL
from holdfast.core.conversation.messages import Message, ToolResult

MAX_OPEN = 64
"""How many calls without an answer are remembered."""


class KeptAnswers(NamedTuple):
    """What is known when a history is left."""

    parts: tuple[tuple[int, tuple[int, ...]], ...]
    alone: tuple[int, ...]
    open: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Answers:
    """Grows by one message at a time."""

    parts: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """By the position of a message, which of its parts are answers, counted from 0."""
    alone: set[int] = field(default_factory=set[int])
    """Positions of messages that hold calls of recall or its answers and nothing else."""
    open: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Scopes and ids of calls that have no answer yet: two agents may give their calls the same ids."""

    @classmethod
    def of(cls, kept: KeptAnswers) -> "Answers":
        """Return what was known when a history was left."""
        return cls(dict(kept.parts), set(kept.alone), list(kept.open))

    def kept(self) -> KeptAnswers:
        """Return what is to be known by who goes on."""
        return KeptAnswers(tuple(sorted(self.parts.items())), tuple(sorted(self.alone)), tuple(self.open))

    def ahead(self) -> "Answers":
        """Return what observes messages that are not part of the history yet."""
        return Answers(open=list(self.open))

    def observe(self, message: Message, position: int, scope: str) -> Message:
        """Take in what was said, and return it with the answers marked."""
        if self.open and message.outline.result_ids:
            self._take_answers(message, position, scope)
        if message.outline.call_ids:
            self._take_calls(message, position, scope)
        return self.marked(message, position)

    def marked(self, message: Message, position: int) -> Message:
        """Return a message with the parts marked that are answers."""
        if position not in self.parts:
            return message
        answers = self.parts[position]
        parts = tuple(
            replace(part, is_recalled=True) if number in answers and isinstance(part, ToolResult) else part
            for number, part in enumerate(message.parts)
        )
        return replace(message, parts=parts, decoded=parts if message.is_untouched else message.decoded)

    def are_recalls(self, position: int) -> bool:
        """Return whether a message is nothing but calls of recall, or its answers."""
        return position in self.alone

    def _take_answers(self, message: Message, position: int, scope: str) -> None:
        wanted = {call_id for asker, call_id in self.open if asker == scope}
        found = _results(message, wanted)
        if found:
            self.parts[position] = tuple(found)
            if len(found) == len(message.parts):
                self.alone.add(position)
            self._close(scope, {*found.values()})

    def _take_calls(self, message: Message, position: int, scope: str) -> None:
        calls = message.calls
        others = {call.id for call in calls if call.name != RECALL}
        made = [call.id for call in calls if call.name == RECALL and call.id not in others]
        # A call whose id was used before begins anew: the one before it was never answered.
        self._close(scope, {call.id for call in calls})
        self.open = [*self.open, *((scope, call_id) for call_id in made)][-MAX_OPEN:]
        if len(made) == len(calls) and not message.text.strip():
            self.alone.add(position)

    def _close(self, scope: str, call_ids: set[str]) -> None:
        self.open = [one for one in self.open if one[0] != scope or one[1] not in call_ids]


def _results(message: Message, call_ids: set[str]) -> Mapping[int, str]:
    """Return which parts of a message answer one of some calls, with its id."""
    return {
        number: part.call_id
        for number, part in enumerate(message.parts)
        if isinstance(part, ToolResult) and part.call_id in call_ids
    }
