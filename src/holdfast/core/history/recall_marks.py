"""Marks on the calls and answers of the recall tool.

A recall answer repeats earlier messages. Shortening therefore leaves it unchanged, and a search finds the original
message instead of the answer. A message can hold recall answers together with results of other tools; only the answers
are marked.
"""

from dataclasses import field, replace
from typing import NamedTuple

from holdfast.core.conversation.messages import Message, ToolResult
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.dataclass import dataclass

MAX_OPEN = 64
"""The maximum number of unanswered calls to remember."""


class RecallMarksSnapshot(NamedTuple):
    """The recall marks as part of a history snapshot."""

    answer_parts: tuple[tuple[int, tuple[int, ...]], ...]
    recall_only: tuple[int, ...]
    open_calls: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class RecallMarks:
    """The recall calls and answers of a history, collected message by message."""

    answer_parts: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """By message position, the indices of the parts that are recall answers."""
    recall_only: set[int] = field(default_factory=set[int])
    """Positions of messages that hold only recall calls or only recall answers."""
    open_calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Scopes and ids of unanswered calls; the scope is needed because two agents can use the same call id."""

    @classmethod
    def from_snapshot(cls, snapshot: RecallMarksSnapshot) -> "RecallMarks":
        """Return the marks of a snapshot."""
        return cls(dict(snapshot.answer_parts), set(snapshot.recall_only), list(snapshot.open_calls))

    def snapshot(self) -> RecallMarksSnapshot:
        """Return the marks as a snapshot."""
        return RecallMarksSnapshot(
            tuple(sorted(self.answer_parts.items())), tuple(sorted(self.recall_only)), tuple(self.open_calls)
        )

    def for_unrecorded(self) -> "RecallMarks":
        """Return marks with the same open calls, for messages that are not part of the history yet."""
        return RecallMarks(open_calls=list(self.open_calls))

    def observe(self, message: Message, position: int, scope: str) -> Message:
        """Register the next message and return it with recall answers marked."""
        if self.open_calls and message.outline.result_ids:
            self._observe_answers(message, position, scope)
        if message.outline.call_ids:
            self._observe_calls(message, position, scope)
        return self.mark(message, position) if position in self.answer_parts else message

    def mark(self, message: Message, position: int) -> Message:
        """Return a message with its recall answers marked."""
        if position not in self.answer_parts:
            return message
        answers = self.answer_parts[position]
        parts = tuple(
            replace(part, is_recall_answer=True) if number in answers and isinstance(part, ToolResult) else part
            for number, part in enumerate(message.parts)
        )
        return replace(message, parts=parts, decoded=parts if message.is_unedited else message.decoded)

    def _observe_answers(self, message: Message, position: int, scope: str) -> None:
        call_ids = {call_id for asker, call_id in self.open_calls if asker == scope}
        found = {
            number: part.call_id
            for number, part in enumerate(message.parts)
            if isinstance(part, ToolResult) and part.call_id in call_ids
        }
        if found:
            self.answer_parts[position] = tuple(found)
            if len(found) == len(message.parts):
                self.recall_only.add(position)
            self._close(scope, {*found.values()})

    def _observe_calls(self, message: Message, position: int, scope: str) -> None:
        calls = message.calls
        others = {call.id for call in calls if call.name != RECALL_TOOL}
        made = [call.id for call in calls if call.name == RECALL_TOOL and call.id not in others]
        # A call that reuses an id replaces the earlier call, which was never answered.
        self._close(scope, {call.id for call in calls})
        self.open_calls = [*self.open_calls, *((scope, call_id) for call_id in made)][-MAX_OPEN:]
        if len(made) == len(calls) and not message.text.strip():
            self.recall_only.add(position)

    def _close(self, scope: str, call_ids: set[str]) -> None:
        self.open_calls = [one for one in self.open_calls if one[0] != scope or one[1] not in call_ids]
