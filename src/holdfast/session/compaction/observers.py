"""Records how a compaction ended, and calls its observers: hooks, checkpoint files, telemetry, and memory.

No observer can harm the session: a problem is reported, and the compaction continues.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from holdfast.core.history import events as log
from holdfast.dataclass import dataclass
from holdfast.errors import SessionClosedError, WorkspaceUnavailableError
from holdfast.session.compaction.hooks import HookCall, Hooks, run_hooks
from holdfast.session.compaction.telemetry import CompactionSpan, Telemetry
from holdfast.session.heavy_work import plan_in_thread, record_in_thread
from holdfast.session.log.event_log import SessionLog

if TYPE_CHECKING:
    from holdfast.session.compaction.checkpoints import Checkpoints
    from holdfast.session.compaction.memory_writer import MemoryWriter
    from holdfast.session.memory.daily import DailyMemory

ProblemListener: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionObservers:
    """The observers of a session's compactions."""

    hooks: Hooks = field(default_factory=Hooks)
    checkpoints: "Checkpoints | None" = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    memory: "DailyMemory | None" = None
    """The memory that receives notes about evicted messages."""
    notice: ProblemListener | None = None
    """Called with each problem of an observer, as one line."""


class ObserverRunner:
    """Calls each observer at the right moment."""

    def __init__(self, session_log: SessionLog) -> None:
        self._log = session_log
        self._memory_writer: MemoryWriter | None = None
        self.observers = CompactionObservers()
        self._memory_task: asyncio.Task[None] | None = None
        self._reported: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open_span: tuple[log.CompactionStarted, CompactionSpan] | None = None

    def set_observers(
        self, observers: CompactionObservers, make_memory_writer: "Callable[[DailyMemory], MemoryWriter]"
    ) -> None:
        """Use other observers from now on; a memory in the same folder keeps its writer, others get a new one."""
        before, now = self.observers.memory, observers.memory
        if now is None:
            self._memory_writer = None
        elif self._memory_writer is None or before is None or before.folder != now.folder:
            self._memory_writer = make_memory_writer(now)
        self.observers = observers

    def compaction_span(self, event: log.CompactionStarted) -> AbstractContextManager[CompactionSpan]:
        """Return the telemetry span of a compaction, which is current while the summary is written.

        It stays open until the compaction is recorded as completed.
        """
        self._end_span()
        span = self.observers.telemetry.compaction_started(self._log.session, event).keep_open()
        self._open_span = event, span
        return span

    def summary_call_span(self, model: str) -> AbstractContextManager[CompactionSpan]:
        """Return the telemetry span of a summarizer call."""
        return self.observers.telemetry.summary_call(self._log.session, model)

    async def run_pre_compact_hooks(self, event: log.CompactionStarted) -> None:
        """Call the hooks before a compaction, and wait for them."""
        await self._run_hooks(
            HookCall(
                name="preCompact",
                session=self._log.session,
                trigger=event.trigger,
                focus=event.custom_instructions or "",
                tokens=event.tokens,
            )
        )

    async def add_checkpoint(self, event: log.CompactionCompleted) -> log.CompactionCompleted:
        """Return a compaction event with the number and the file of its checkpoint, if checkpoints are written."""
        if self.observers.checkpoints is None or not event.success:
            return event
        try:
            made = await self.observers.checkpoints.add(event.summary.text, stop=event.span.stop)
        except WorkspaceUnavailableError as error:
            self._report([str(error)])
            return event
        return replace(event, checkpoint_number=made.number, checkpoint_path=str(made.path))

    async def record_completed(self, event: log.CompactionCompleted, *, with_next: bool = False) -> None:
        """Record how a compaction ended, and notify the observers; does not wait for the hooks.

        With `with_next` it is written with what follows, if nobody acts on it before: the same write as its request.
        """
        if self.observers.telemetry.must_load:
            # That imports OpenTelemetry, which takes tens of milliseconds.
            await record_in_thread(self.observers.telemetry.load)
        observers = self.observers.checkpoints, self._memory_writer
        is_observed = bool(self.observers.hooks.post_compact) or observers != (None, None)
        await self._log.append(event, with_next=with_next and not is_observed)
        self.start_memory_update()
        after = await self._count_messages(event.scope) if self.observers.telemetry.has_tracer else 0
        self.observers.telemetry.compaction_completed(
            self._log.session,
            event,
            conversation_messages_before=after + event.messages_removed,
            conversation_messages_after=after,
            error_type=None if event.success else "cancelled" if event.is_cancelled else "failed",
            span=self._span_of(event),
        )
        if self.observers.hooks.post_compact:
            call = HookCall(
                name="postCompact",
                session=self._log.session,
                trigger=event.trigger,
                success=event.success,
                summary=event.summary.text,
                error=event.error,
                checkpoint_path=event.checkpoint_path,
            )
            task = asyncio.ensure_future(self._run_hooks(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await self.update_checkpoints()

    def _span_of(self, event: log.CompactionCompleted) -> CompactionSpan | None:
        """Return the span in which the summary of a compaction was written here, if there is one."""
        if self._open_span is None:
            return None
        started, span = self._open_span
        if (started.scope, started.trigger) != (event.scope, event.trigger):
            return None
        self._open_span = None
        return span

    def _end_span(self) -> None:
        if self._open_span is not None:
            self._open_span[1].end()
            self._open_span = None

    async def _count_messages(self, scope: str) -> int:
        """Return the number of messages in the context of a scope."""

        def count() -> int:
            return len(self._log.history.context(scope).visible_entries())

        return await self._log.load_and_retry(partial(plan_in_thread, count))

    async def update_checkpoints(self) -> None:
        """Mark which checkpoints belong to compactions that are in force."""
        if self.observers.checkpoints is not None:
            try:
                await self.observers.checkpoints.mark_current(
                    [number for number, _ in self._log.history.version.checkpoints]
                )
            except WorkspaceUnavailableError as error:
                self._report([str(error)])

    def start_memory_update(self) -> None:
        """Start to write notes about newly evicted messages, in the background."""
        if self._memory_writer is not None and (self._memory_task is None or self._memory_task.done()):
            self._memory_task = asyncio.ensure_future(self._update_memory(self._memory_writer))
        elif self._memory_writer is not None:
            self._memory_writer.is_due = True

    async def close(self) -> None:
        """Wait for the running hooks, each up to its timeout, and for memory, which no longer asks a model."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._memory_writer is not None:
            self._memory_writer.is_closing = True
            if self._memory_task is not None and not self._memory_task.done():
                self._memory_task.cancel()
                await asyncio.wait({self._memory_task})
            await self._update_memory(self._memory_writer)

    def release(self) -> None:
        """Drop what refers to the session."""
        self._end_span()
        self._memory_writer = self._memory_task = None

    async def _update_memory(self, writer: "MemoryWriter") -> None:
        """Write the pending notes; a problem is reported once, and the next eviction retries."""
        try:
            await writer.update()
        except SessionClosedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever a disk or a store does, the session goes on
            if str(error) not in self._reported:
                self._reported.add(str(error))
                self._report([f"memory: {error}"])

    async def _run_hooks(self, call: HookCall) -> None:
        self._report(await run_hooks(self.observers.hooks, call))

    def _report(self, problems: list[str]) -> None:
        for problem in problems:
            if self.observers.notice is not None:
                with suppress(Exception):
                    self.observers.notice(problem)
