"""What the model will see: messages, each with the position it came from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.conversation.messages import Message


class Entry(NamedTuple):
    """One message of a view."""

    message: Message
    position: int | None = None
    """Its index in the history; None for a message that was made for this view."""

    def with_message(self, message: Message) -> "Entry":
        """Return the entry with its message replaced."""
        return Entry(message, self.position)


@dataclass(frozen=True, slots=True)
class EntryMessages:
    """Entries as the messages they hold."""

    entries: Sequence[Entry]

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int, /) -> Message:
        return self.entries[index].message
