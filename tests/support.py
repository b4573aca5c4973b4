"""What tests of several folders share: how to build a conversation, and how to open one."""

from dataclasses import dataclass, field

from holdfast.core.conversation.messages import Message
from holdfast.core.history import events as log
from holdfast.core.history.history import History


@dataclass
class RecordedHistory(History):
    """A history that keeps its events too, as a session keeps them in a store."""

    events: list[log.Event] = field(default_factory=list[log.Event])

    def append(self, event: log.Event, message: Message | None = None) -> None:
        """Replay one more event, and keep it."""
        super().append(event, message)
        self.events.append(event)
