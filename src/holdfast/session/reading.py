"""Looking at a conversation: what stands, what happened, and what was said, to the letter."""

from collections.abc import Mapping

from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.planning.change import ChangeReceipt, change_receipts
from holdfast.errors import MalformedInputError
from holdfast.session.fetching import retry_when_not_loaded
from holdfast.session.given import check_position, check_scope
from holdfast.session.travelling import Traveller


class Reader(Traveller):
    """Reads; nothing is changed by it."""

    @retry_when_not_loaded
    async def visible_messages(self, scope: str = log.MAIN) -> list[Entry]:
        """Return what stands of the conversation for an agent, before anything is done to make it fit."""
        named = await self._log.check_scope(check_scope(scope))
        async with self._log.lock:
            await self._log.refresh()
            return self.history.context(named).visible_entries()

    async def receipts(self) -> list[ChangeReceipt]:
        """Return what every change of context did, the oldest first, compactions that came to nothing included."""
        self._log.lock.check_open()
        timed = await self._log.stored.timed_events()
        return change_receipts((event for _, event in timed), (time_ms for time_ms, _ in timed))

    async def events(self) -> list[log.Event]:
        """Return everything that happened, from the log."""
        self._log.lock.check_open()
        return await self._log.stored.events()

    @retry_when_not_loaded
    async def messages_at(self, start: int, stop: int | None = None) -> list[Mapping[str, object]]:
        """Return messages as they were recorded, byte for byte, whatever has become of them in view.

        Never what stands before a clear: that is forgotten.
        """
        first = check_position("recall.start", start)
        last = first + 1 if stop is None else check_position("recall.stop", stop)
        async with self._log.lock:
            await self._log.refresh()
        cleared = self.history.version.state_of(log.MAIN).cleared_at
        if not cleared <= first < last <= len(self.history):
            raise MalformedInputError("recall", f"there are messages {cleared} to {len(self.history) - 1}")
        self.history.entries.require(range(first, last))
        self._log.require_content(range(first, last))
        return [self.history.entries.native(at) for at in range(first, last)]

    @retry_when_not_loaded
    async def messages(self, *, scope: str = log.MAIN) -> list[Mapping[str, object]]:
        """Return the messages that stand, as they were recorded, folded ones too: what a client's own list would hold.

        Never what stands before a clear, nor what a rewind took out, nor what others said in their own scopes, nor a
        note from memory.
        """
        async with self._log.lock:
            await self._log.refresh()
        context = self.history.context(check_scope(scope))
        start, entries = context.state.cleared_at, self.history.entries
        own = [
            at for at in range(start, context.length) if context.message_scopes[at] == scope and context.is_visible(at)
        ]
        entries.require(own)
        return [entries.native(position) for position in own if not entries[position].message.is_from_memory]
