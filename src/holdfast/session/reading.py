"""Looking at a conversation: what stands, what happened, and what was said, to the letter."""

from collections.abc import Mapping

from holdfast.core.conversation.view import Entry
from holdfast.core.history import events as log
from holdfast.core.planning.change import ChangeReceipt, receipts_of
from holdfast.errors import MalformedInputError
from holdfast.session.fetching import fetching
from holdfast.session.given import position, scope_named
from holdfast.session.travelling import Traveller


class Reader(Traveller):
    """Reads; nothing is changed by it."""

    @fetching
    async def shown(self, scope: str = log.MAIN) -> list[Entry]:
        """Return what stands of the conversation for an agent, before anything is done to make it fit."""
        named = await self._keeper.scope(scope_named(scope))
        async with self._keeper.turn:
            await self._keeper.take_in()
            return self.history.context(named).shown()

    async def receipts(self) -> list[ChangeReceipt]:
        """Return what every change of context did, the oldest first, compactions that came to nothing included."""
        self._keeper.turn.check()
        timed = await self._keeper.log.timed()
        return receipts_of((event for _, event in timed), (time_ms for time_ms, _ in timed))

    async def events(self) -> list[log.Event]:
        """Return everything that happened, from the log."""
        self._keeper.turn.check()
        return await self._keeper.log.events()

    @fetching
    async def recall(self, start: int, stop: int | None = None) -> list[Mapping[str, object]]:
        """Return messages as they were recorded, byte for byte, whatever has become of them in view.

        Never what stands before a clear: that is forgotten.
        """
        first = position("recall.start", start)
        last = first + 1 if stop is None else position("recall.stop", stop)
        async with self._keeper.turn:
            await self._keeper.take_in()
        cleared = self.history.version.of(log.MAIN).cleared_at
        if not cleared <= first < last <= len(self.history):
            raise MalformedInputError("recall", f"there are messages {cleared} to {len(self.history) - 1}")
        self.history.entries.need(range(first, last))
        self._keeper.check_there(range(first, last))
        return [self.history.entries.native(at) for at in range(first, last)]

    @fetching
    async def messages(self, *, scope: str = log.MAIN) -> list[Mapping[str, object]]:
        """Return the messages that stand, as they were recorded, folded ones too: what a client's own list would hold.

        Never what stands before a clear, nor what a rewind took out, nor what others said in their own scopes, nor a
        note from memory.
        """
        async with self._keeper.turn:
            await self._keeper.take_in()
        context = self.history.context(scope_named(scope))
        start, entries = context.standing.cleared_at, self.history.entries
        own = [at for at in range(start, context.length) if context.said_in[at] == scope and context.stands(at)]
        entries.need(own)
        return [entries.native(position) for position in own if not entries[position].message.is_from_memory]
