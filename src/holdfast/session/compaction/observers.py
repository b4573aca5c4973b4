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
from holdfast.session.compaction.checkpoints import Checkpoints
from holdfast.session.compaction.hooks import HookCall, Hooks, run_hooks
from holdfast.session.compaction.memory_writer import MemoryWriter
from holdfast.session.compaction.telemetry import CompactionSpan, Telemetry
from holdfast.session.log.event_log import SessionLog
from holdfast.session.memory.daily import DailyMemory

ProblemListener: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionObservers:
    """What goes with the compactions of a session."""

    hooks: Hooks = field(default_factory=Hooks)
    checkpoints: Checkpoints | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    memory: DailyMemory | None = None
    """Where what leaves the view is written down, by day."""
    notice: ProblemListener | None = None
    """Hears what went wrong beside a compaction, a line each."""


class ObserverRunner:
    """Lets them know, each at its time."""

    def __init__(
        self,
        session_log: SessionLog,
        observers: CompactionObservers,
        make_memory_writer: Callable[[DailyMemory], MemoryWriter],
    ) -> None:
        """`remembering` makes what writes into a memory."""
        self._log = session_log
        self._make_memory_writer = make_memory_writer
        self._memory_writer: MemoryWriter | None = None
        self.observers = CompactionObservers()
        self.set_observers(observers)
        self._memory_task: asyncio.Task[None] | None = None
        self._reported: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def set_observers(self, observers: CompactionObservers) -> None:
        """Go with others from now on; a memory that stays the same goes on where it is."""
        before, now = self.observers.memory, observers.memory
        if now is None:
            self._memory_writer = None
        elif self._memory_writer is None or before is None or before.folder != now.folder:
            self._memory_writer = self._make_memory_writer(now)
        self.observers = observers

    def compaction_span(self, event: log.CompactionStarted) -> AbstractContextManager[CompactionSpan]:
        """Tell telemetry that a compaction has begun, for as long as its summary is being written."""
        return self.observers.telemetry.compaction_started(self._log.session, event)

    def summary_call_span(self, model: str) -> AbstractContextManager[CompactionSpan]:
        """Tell telemetry of a call for a summary."""
        return self.observers.telemetry.summary_call(self._log.session, model)

    async def run_pre_compact_hooks(self, event: log.CompactionStarted) -> None:
        """Tell the hooks that a compaction begins, and wait for them."""
        call = HookCall(
            name="preCompact",
            session=self._log.session,
            trigger=event.trigger,
            focus=event.custom_instructions or "",
            tokens=event.tokens,
        )
        self._report(await run_hooks(self.observers.hooks, call))

    async def add_checkpoint(self, event: log.CompactionCompleted) -> log.CompactionCompleted:
        """Return a fold with the number and the file of its checkpoint, where there are checkpoints."""
        if self.observers.checkpoints is None or not event.success:
            return event
        try:
            made = await self.observers.checkpoints.add(event.summary.text, stop=event.span.stop)
        except WorkspaceUnavailableError as error:
            self._report([str(error)])
            return event
        return replace(event, checkpoint_number=made.number, checkpoint_path=str(made.path))

    def announce_completed(self, event: log.CompactionCompleted) -> None:
        """Tell everybody how a compaction ended; nobody waits for the hooks."""
        self.start_memory_update()
        after = len(self._log.history.entries)
        self.observers.telemetry.compaction_completed(
            self._log.session,
            event,
            conversation_messages_before=after,
            conversation_messages_after=max(0, after - event.messages_removed),
            error_type=None if event.success else "cancelled" if event.is_cancelled else "failed",
        )
        call = HookCall(
            name="postCompact",
            session=self._log.session,
            trigger=event.trigger,
            success=event.success,
            summary=event.summary.text,
            error=event.error,
            checkpoint_path=event.checkpoint_path,
        )
        if self.observers.hooks.post_compact:
            self._start_task(self._run_post_compact_hooks(call))

    async def update_checkpoints(self) -> None:
        """Let the checkpoints tell of those compactions only that still stand."""
        if self.observers.checkpoints is not None:
            try:
                await self.observers.checkpoints.mark_current(
                    [number for number, _ in self._log.history.version.checkpoints]
                )
            except WorkspaceUnavailableError as error:
                self._report([str(error)])

    def start_memory_update(self) -> None:
        """Write down what has left the view since, beside everything else."""
        if self._memory_writer is not None and (self._memory_task is None or self._memory_task.done()):
            self._memory_task = asyncio.ensure_future(self._update_memory(self._memory_writer))
        elif self._memory_writer is not None:
            self._memory_writer.is_due = True

    async def close(self) -> None:
        """Wait for the hooks that are still running, each has its own limit; no model is waited for any more."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._memory_writer is not None:
            self._memory_writer.is_closing = True
            if self._memory_task is not None and not self._memory_task.done():
                self._memory_task.cancel()
                await asyncio.wait({self._memory_task})
            await self._update_memory(self._memory_writer)

    async def _update_memory(self, writer: MemoryWriter) -> None:
        """Let memory catch up; what is wrong with it is reported, once, and tried again when something else leaves."""
        try:
            await writer.update()
        except SessionClosedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever a disk or a store does, the session goes on
            if str(error) not in self._reported:
                self._reported.add(str(error))
                self._report([f"memory: {error}"])

    async def _run_post_compact_hooks(self, call: HookCall) -> None:
        self._report(await run_hooks(self.observers.hooks, call))

    def _start_task(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, problems: list[str]) -> None:
        for problem in problems:
            if self.observers.notice is not None:
                with suppress(Exception):
                    self.observers.notice(problem)
