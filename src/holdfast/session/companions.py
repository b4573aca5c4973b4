"""What goes with a compaction: hooks that are told, a checkpoint that people can read, telemetry, and memory.

None of them can hurt the session: what goes wrong is reported, and the compaction goes on.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from holdfast.core.history import events as log
from holdfast.errors import SessionClosedError, WorkspaceUnavailableError
from holdfast.session.checkpoints import Checkpoints
from holdfast.session.hooks import HookCall, Hooks, run_hooks
from holdfast.session.keeping import Keeper
from holdfast.session.memory.daily import DailyMemory
from holdfast.session.memory.remembering import Remembering
from holdfast.session.telemetry import Telemetry, Watched

Notice: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class With:
    """What goes with the compactions of a session."""

    hooks: Hooks = field(default_factory=Hooks)
    checkpoints: Checkpoints | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    memory: DailyMemory | None = None
    """Where what leaves the view is written down, by day."""
    notice: Notice | None = None
    """Hears what went wrong beside a compaction, a line each."""


class Companions:
    """Lets them know, each at its time."""

    def __init__(self, keeper: Keeper, those: With, remembering: Callable[[DailyMemory], Remembering]) -> None:
        """`remembering` makes what writes into a memory."""
        self._keeper = keeper
        self._made = remembering
        self._memory: Remembering | None = None
        self.those = With()
        self.follow(those)
        self._remembering: asyncio.Task[None] | None = None
        self._reported: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, those: With) -> None:
        """Go with others from now on; a memory that stays the same goes on where it is."""
        before, now = self.those.memory, those.memory
        if now is None:
            self._memory = None
        elif self._memory is None or before is None or before.folder != now.folder:
            self._memory = self._made(now)
        self.those = those

    def watch(self, event: log.CompactionStarted) -> AbstractContextManager[Watched]:
        """Tell telemetry that a compaction has begun, for as long as its summary is being written."""
        return self.those.telemetry.compaction_started(self._keeper.session, event)

    def call(self, model: str) -> AbstractContextManager[Watched]:
        """Tell telemetry of a call for a summary."""
        return self.those.telemetry.summary_call(self._keeper.session, model)

    async def before(self, event: log.CompactionStarted) -> None:
        """Tell the hooks that a compaction begins, and wait for them."""
        call = HookCall(
            name="preCompact",
            session=self._keeper.session,
            trigger=event.trigger,
            focus=event.custom_instructions or "",
            tokens=event.tokens,
        )
        self._report(await run_hooks(self.those.hooks, call))

    async def checkpointed(self, event: log.CompactionCompleted) -> log.CompactionCompleted:
        """Return a fold with the number and the file of its checkpoint, where there are checkpoints."""
        if self.those.checkpoints is None or not event.success:
            return event
        try:
            made = await self.those.checkpoints.add(event.summary_content, stop=event.stop)
        except WorkspaceUnavailableError as error:
            self._report([str(error)])
            return event
        return replace(event, checkpoint_number=made.number, checkpoint_path=str(made.path))

    def after(self, event: log.CompactionCompleted) -> None:
        """Tell everybody how a compaction ended; nobody waits for the hooks."""
        self.remember()
        after = len(self._keeper.history.entries)
        self.those.telemetry.compaction_completed(
            self._keeper.session,
            event,
            conversation_messages_before=after,
            conversation_messages_after=max(0, after - event.messages_removed),
            error_type=None if event.success else "cancelled" if event.is_cancelled else "failed",
        )
        call = HookCall(
            name="postCompact",
            session=self._keeper.session,
            trigger=event.trigger,
            success=event.success,
            summary=event.summary_content,
            error=event.error,
            checkpoint_path=event.checkpoint_path,
        )
        if self.those.hooks.post_compact:
            self._begin(self._run(call))

    async def align(self) -> None:
        """Let the checkpoints tell of those compactions only that still stand."""
        if self.those.checkpoints is not None:
            try:
                await self.those.checkpoints.align([number for number, _ in self._keeper.history.version.checkpoints])
            except WorkspaceUnavailableError as error:
                self._report([str(error)])

    def remember(self) -> None:
        """Write down what has left the view since, beside everything else."""
        if self._memory is not None and (self._remembering is None or self._remembering.done()):
            self._remembering = asyncio.ensure_future(self._remembered(self._memory))
        elif self._memory is not None:
            self._memory.is_due = True

    async def close(self) -> None:
        """Wait for the hooks that are still running, each has its own limit; no model is waited for any more."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._memory is not None:
            self._memory.is_ending = True
            if self._remembering is not None and not self._remembering.done():
                self._remembering.cancel()
                await asyncio.wait({self._remembering})
            await self._remembered(self._memory)

    async def _remembered(self, memory: Remembering) -> None:
        """Let memory catch up; what is wrong with it is reported, once, and tried again when something else leaves."""
        try:
            await memory.catch_up()
        except SessionClosedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever a disk or a store does, the session goes on
            if str(error) not in self._reported:
                self._reported.add(str(error))
                self._report([f"memory: {error}"])

    async def _run(self, call: HookCall) -> None:
        self._report(await run_hooks(self.those.hooks, call))

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, problems: list[str]) -> None:
        for problem in problems:
            if self.those.notice is not None:
                with suppress(Exception):
                    self.those.notice(problem)
