"""Going back and forth in a conversation: clear, rewind, undo, redo, pins. Nothing is deleted by any of it."""

from collections.abc import Sequence

from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.planning.effect import add_effect
from holdfast.session.circumstances import RequestOptions
from holdfast.session.compactor import Compactor
from holdfast.session.fetching import retry_when_not_loaded
from holdfast.session.given import check_scope
from holdfast.session.keeping import SessionLog
from holdfast.session.log import encode_event
from holdfast.session.preparer import RequestBuilder


class Traveller:
    """Changes how a conversation stands, and can take each change back."""

    model: str | None
    """Who answers."""

    def __init__(self, session_log: SessionLog, compactor: Compactor, builder: RequestBuilder) -> None:
        self._log = session_log
        self._compactor = compactor
        self._builder = builder

    @property
    def history(self) -> History:
        """How everything stands; of what was said long ago perhaps not all is in memory."""
        return self._log.history

    async def load_messages(self, positions: Sequence[int]) -> None:
        """Read messages of the past into memory."""
        async with self._log.lock:
            await self._log.load_messages(positions)

    async def clear(self) -> None:
        """Let the conversation begin anew; nothing is deleted."""
        await self._append_change(log.ContextCleared())

    async def rewind(self, *, to: int) -> None:
        """Go on from before the message at a position; what followed it does not stand any more."""
        await self._append_change(log.Rewound(to=to))

    @retry_when_not_loaded
    async def undo(self) -> bool:
        """Take back the last change of context, and say whether there was one."""
        async with self._log.lock:
            await self._log.refresh()
            if not self.history.can_undo:
                return False
            await self._log.append(log.ChangeUndone())
            await self._compactor.observers.update_checkpoints()
            return True

    @retry_when_not_loaded
    async def redo(self) -> bool:
        """Let a change that was taken back stand again, and say whether there was one."""
        async with self._log.lock:
            await self._log.refresh()
            if not self.history.can_redo:
                return False
            await self._log.append(log.ChangeRedone())
            await self._compactor.observers.update_checkpoints()
            return True

    async def pin(self, position: int) -> None:
        """Keep a message whole, whatever happens."""
        await self._append_change(log.Pinned(position=position))

    async def unpin(self, position: int) -> None:
        """Let a message go when it has to."""
        await self._append_change(log.Unpinned(position=position))

    async def interrupt(self, *, scope: str = log.MAIN) -> None:
        """Say that the turn was stopped: calls without a result will never have one."""
        await self._append_change(log.TurnInterrupted(scope=check_scope(scope)))

    @retry_when_not_loaded
    async def _append_change(self, event: log.Event) -> None:
        async with self._log.lock:
            await self._log.refresh()
            await self._log.append(self._with_effect(event))
            if isinstance(event, log.Rewound | log.ContextCleared):
                await self._compactor.observers.update_checkpoints()
                self._compactor.observers.start_memory_update()

    def _with_effect(self, event: log.Event) -> log.Event:
        """Return an event that tells what it does to the next request, if it changes what is shown."""
        if not isinstance(event, log.Rewound | log.ContextCleared):
            return event
        encode_event(event)
        return add_effect(event, self._builder.plan_input(RequestOptions(model=self.model)))
