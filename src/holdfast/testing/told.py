"""A history that remembers the events it was told."""

from dataclasses import dataclass, field

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.history import History


@dataclass
class ToldHistory(History):
    """A history with its log beside it, as a session keeps it in a store."""

    events: list[log.Event] = field(default_factory=list[log.Event])

    def append(self, event: log.Event, message: Message | None = None) -> None:
        """Take in what happened next, and remember it."""
        super().append(event, message)
        self.events.append(event)
