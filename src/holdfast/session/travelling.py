"""Going back and forth in a conversation: clear, rewind, undo, redo, pins. Nothing is deleted by any of it."""

from collections.abc import Sequence

from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.planning.effect import with_effect
from holdfast.session.circumstances import Wanted
from holdfast.session.compactor import Compactor
from holdfast.session.fetching import fetching
from holdfast.session.given import scope_named
from holdfast.session.keeping import Keeper
from holdfast.session.log import checked_record
from holdfast.session.preparer import Preparer


class Traveller:
    """Changes how a conversation stands, and can take each change back."""

    model: str | None
    """Who answers."""

    def __init__(self, keeper: Keeper, compactor: Compactor, preparer: Preparer) -> None:
        self._keeper = keeper
        self._compactor = compactor
        self._preparer = preparer

    @property
    def history(self) -> History:
        """How everything stands; of what was said long ago perhaps not all is in memory."""
        return self._keeper.history

    async def fetch(self, positions: Sequence[int]) -> None:
        """Read messages of the past into memory."""
        async with self._keeper.turn:
            await self._keeper.fetch(positions)

    async def clear(self) -> None:
        """Let the conversation begin anew; nothing is deleted."""
        await self._changed(log.ContextCleared())

    async def rewind(self, *, to: int) -> None:
        """Go on from before the message at a position; what followed it does not stand any more."""
        await self._changed(log.Rewound(to=to))

    @fetching
    async def undo(self) -> bool:
        """Take back the last change of context, and say whether there was one."""
        async with self._keeper.turn:
            await self._keeper.take_in()
            if not self.history.can_undo:
                return False
            await self._keeper.change(log.ChangeUndone())
            await self._compactor.companions.align()
            return True

    @fetching
    async def redo(self) -> bool:
        """Let a change that was taken back stand again, and say whether there was one."""
        async with self._keeper.turn:
            await self._keeper.take_in()
            if not self.history.can_redo:
                return False
            await self._keeper.change(log.ChangeRedone())
            await self._compactor.companions.align()
            return True

    async def pin(self, position: int) -> None:
        """Keep a message whole, whatever happens."""
        await self._changed(log.Pinned(position=position))

    async def unpin(self, position: int) -> None:
        """Let a message go when it has to."""
        await self._changed(log.Unpinned(position=position))

    async def interrupt(self, *, scope: str = log.MAIN) -> None:
        """Say that the turn was stopped: calls without a result will never have one."""
        await self._changed(log.TurnInterrupted(scope=scope_named(scope)))

    @fetching
    async def _changed(self, event: log.Event) -> None:
        async with self._keeper.turn:
            await self._keeper.take_in()
            await self._keeper.change(self._told(event))
            if isinstance(event, log.Rewound | log.ContextCleared):
                await self._compactor.companions.align()
                self._compactor.companions.remember()

    def _told(self, event: log.Event) -> log.Event:
        """Return an event that tells what it does to the next request, if it changes what is shown."""
        if not isinstance(event, log.Rewound | log.ContextCleared):
            return event
        checked_record(event)
        return with_effect(event, self._preparer.outlook(Wanted(model=self.model)))
