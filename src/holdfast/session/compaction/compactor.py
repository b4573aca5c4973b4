"""Compaction in the background: start a summary, let requests continue meanwhile, check it, and apply it.

The log coordinates all processes. A start is recorded, so only one summary runs at a time. A finished summary is
recorded before it is applied, so a crash in between loses nothing. It is applied only if the context has not changed
since the start; a summary that comes too late is kept for the next compaction.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import field, replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol, TypeAlias

from holdfast.core.conversation.json_values import replace_surrogates
from holdfast.core.history import events as log
from holdfast.core.history.events import Summary
from holdfast.core.history.projection import Projection
from holdfast.core.planning.changes import (
    compaction_abandoned_event,
    compaction_completed_event,
    compaction_started_event,
)
from holdfast.core.planning.context_report import SummaryAuthor
from holdfast.core.planning.plan import plan_input_of
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Prices, Situation
from holdfast.core.planning.steps import CompactSpan, PlanInput
from holdfast.core.planning.summary.chunks import RedactText
from holdfast.core.schema import is_integer, short_repr
from holdfast.counters.models import prices_of_model
from holdfast.dataclass import dataclass
from holdfast.errors import (
    CompactionFailedError,
    HoldfastError,
    ModelAccessError,
    SessionClosedError,
    SettingsError,
    StoreError,
)
from holdfast.models.base import Closable, Summarizer, supports_prefix
from holdfast.models.open import open_summarizer
from holdfast.models.retry import RetryLimits
from holdfast.redaction import redact_text
from holdfast.session.compaction.hooks import Hooks
from holdfast.session.compaction.observers import CompactionObservers, ObserverRunner
from holdfast.session.compaction.summarizer import SentRequest, SummaryJob, summarize, summary_job
from holdfast.session.compaction.telemetry import Telemetry
from holdfast.session.heavy_work import plan_in_thread
from holdfast.session.log.event_log import SessionLog, locked
from holdfast.session.log.leases import HELD_HERE, has_owner_exited, new_owner_id
from holdfast.session.request import policy_hash

if TYPE_CHECKING:
    from holdfast.session.compaction.memory_writer import MemoryWriter
    from holdfast.session.memory.daily import DailyMemory

LEASE_MS = 600_000
"""A compaction that has not ended after this long counts as abandoned."""
POLL_SECONDS = 0.2
"""How often to check whether another process has finished."""
JOB_OWNER = "job"
"""How the owner of a compaction begins that was left to a worker."""
REQUESTED_TRIGGERS = ("manual", "agent_request")
CANCEL_GRACE_SECONDS = 5.0
"""How long to wait for a cancelled summarizer."""
COMPACTING_TEXT = "Compacting conversation history"
CONTEXT_HAS_CHANGED = "the context has changed meanwhile"
WAS_SCRUBBED = "the session was scrubbed or begun again meanwhile, and the summary may hold what is gone; compact again"

Approval: TypeAlias = Callable[["SummaryDraft"], Awaitable[bool | str] | bool | str]
"""Returns, or returns to `await`, whether a summary may be applied; a returned text replaces the summary."""


class CompactionQueue(Protocol):
    """Where started compactions wait for a worker, which may be on another machine; see `Session.run_compaction`."""

    async def submit(self, session: str, owner: str, trigger: log.CompactionTrigger) -> None:
        """Store a job durably. `owner` names the compaction in the session's log; there is nothing else to know."""
        ...

    async def cancel(self, owner: str) -> None:
        """Cancel a job that waits or runs."""
        ...


@dataclass(frozen=True, slots=True)
class SummaryDraft:
    """A summary that awaits approval."""

    step: CompactSpan
    summary: Summary
    """Includes the facts that were restored, and lists those that it lacks."""
    replaced_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions(CompactionObservers):
    """Which models write summaries, and who observes the compactions."""

    automatic: str | Summarizer | None = None
    """The summarizer for automatic compactions; a cheaper model is enough."""
    manual: str | Summarizer | None = None
    """The summarizer for requested compactions."""
    retry_limits: RetryLimits = field(default_factory=RetryLimits)
    approve: Approval | None = None
    progress: Callable[[str], None] | None = None
    """Called with a text that says what the session waits for, and with an empty text when the wait is over."""
    prices: Prices | None = None
    """Token prices that replace those of the model table."""
    redact: bool = True
    """Whether to hide texts that look like keys from the summarizer; the stored messages keep them."""
    queue: CompactionQueue | None = None
    """Where automatic summaries are left to workers; without it this process writes them."""
    memory_limit_bytes: int | None = None
    """If the process still uses more memory after a garbage collection, the session compacts before a request."""

    def __post_init__(self) -> None:
        for name in ("automatic", "manual"):
            value: object = getattr(self, name)
            if value is not None and not isinstance(value, str):
                _check_summarizer("summarizer" if name == "automatic" else f"compaction.{name}", value)
        limit: object = self.memory_limit_bytes
        if limit is not None and (not is_integer(limit) or limit < 1):
            problem = f"must be a number of bytes above 0, not {limit!r:.60}"
            raise SettingsError("compaction.memory_limit_bytes", problem)
        for name, kind in (("retry_limits", RetryLimits), ("hooks", Hooks), ("telemetry", Telemetry)):
            if not isinstance(value := getattr(self, name), kind):
                raise _option_error(name, f"a {kind.__name__}", value)
        for name in ("approve", "progress", "notice"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise _option_error(name, "a function", value)
        prices: object = self.prices
        if prices is not None and not isinstance(prices, Prices):
            raise _option_error("prices", "a holdfast.compaction.Prices", prices)
        self._check_folders()

    def _check_folders(self) -> None:
        """Raise a `SettingsError` for what is no memory and no checkpoints, such as the path of their folder."""
        memory: object = self.memory
        checkpoints: object = self.checkpoints
        if memory is not None:
            from holdfast.session.memory.daily import DailyMemory  # noqa: PLC0415 - most sessions have no memory

            if not isinstance(memory, DailyMemory):
                raise SettingsError("compaction.memory", f"must be a DailyMemory(folder), not {memory!r:.60}")
        if checkpoints is not None:
            from holdfast.session.compaction.checkpoints import Checkpoints  # noqa: PLC0415 - nor checkpoints

            if not isinstance(checkpoints, Checkpoints):
                raise _option_error("checkpoints", "Checkpoints(folder)", checkpoints)


def _option_error(name: str, needed: str, value: object) -> SettingsError:
    return SettingsError(f"compaction.{name}", f"must be {needed}, not {value!r:.60}")


def _check_summarizer(setting: str, value: object) -> None:
    """Raise a `SettingsError` for an object that is no summarizer, because callers write their own."""
    if isinstance(value, type) or not callable(getattr(value, "write", None)):
        problem = f"must be the name of a model, or a holdfast.compaction.Summarizer, not {value!r:.60}"
        raise SettingsError(setting, problem)
    if not isinstance(name := getattr(value, "name", None), str):
        raise SettingsError(setting, f"needs a `name` that is text, not {name!r:.60}")
    window: object = getattr(value, "window", False)
    if window is not None and (not is_integer(window) or window < 1):
        problem = "needs a `window`: a number of tokens, or None for that of the table of models"
        raise SettingsError(setting, problem if window is False else f"{problem}, not {window!r:.60}")


class Compactor:
    """Starts, watches and ends the compactions of one session.

    Callers of what reads or writes the log must hold the session's lock, except for `wait`, `cancel`, `run_job`,
    `draft_summary` and `close`, which must be called without it.
    """

    def __init__(self, session_log: SessionLog, policy: Policy, options: CompactionOptions) -> None:
        self._log = session_log
        self._task: asyncio.Task[bool] | None = None
        self.observers = ObserverRunner(session_log)
        self.set_policy(policy, options)
        self._running_owner = ""
        self._opened_summarizers: dict[str, Summarizer] = {}
        """The summarizers that the compactor opened by name, and therefore closes."""
        self._started_in_prompt: int | None = None
        """The prompt in whose turn the last summary was started."""
        self.last_error: HoldfastError | None = None
        """Why the last compaction failed."""
        self.last_rejection: str | None = None
        """Why the last summary was not approved."""

    def set_policy(self, policy: Policy, options: CompactionOptions | None = None) -> None:
        """Use another policy from now on, and other options if there are any."""
        self._configured_policy = policy
        """The policy as it was set; it may have other settings for some models."""
        self.policy = policy
        """The policy in force; every part of the session reads it from here."""
        self.policy_hash = policy_hash(policy)
        self.is_policy_by_model = bool(policy.models)
        if options is not None:
            self.options = options
            self.has_summarizer = options.manual is not None or options.automatic is not None
            """Whether a model writes the summary of a requested compaction."""
            self.observers.set_observers(options, self._memory_writer)
        self.has_automatic_summarizer = self._configured_summarizer("threshold") is not None

    def use_model(self, model: str | None) -> None:
        """Use the policy for a model from now on."""
        self.policy = self._configured_policy.for_model(model)
        self.policy_hash = policy_hash(self.policy)
        self.has_automatic_summarizer = self._configured_summarizer("threshold") is not None

    def _memory_writer(self, daily: "DailyMemory") -> "MemoryWriter":
        from holdfast.session.compaction.memory_writer import MemoryWriter  # noqa: PLC0415 - as above

        return MemoryWriter(
            self._log,
            daily,
            has_summarizer=lambda: self.has_summarizer,
            get_summarizer=lambda: self.summarizer_for("manual"),
        )

    @property
    def is_running(self) -> bool:
        """Whether a summary is being written, in this process or another."""
        state = self._log.history.session_state
        return state.running_compaction is not None and state.ready_summary is None

    def may_start(self, plan_input: PlanInput) -> bool:
        """Return whether a summary may be started: only one at a time, and only one per turn."""
        prompt = _answered_prompt(plan_input.projection)
        is_first = prompt is None or prompt != self._started_in_prompt
        return is_first and self._log.history.session_state.running_compaction is None

    async def end_stale_run(self) -> None:
        """End a compaction whose owner abandoned it, or whose context has changed since it started."""
        history = self._log.history
        run, done = history.session_state.running_compaction, history.session_state.ready_summary
        if run is None:
            return
        if done is not None and run.basis != history.change_count:
            why = f"{CONTEXT_HAS_CHANGED}; the summary is kept for the next compaction"
            await self._record_abandoned(run, why)
        elif done is None and self._is_abandoned(run):
            await self._record_abandoned(run, "the process that started it did not finish it")

    async def end_outdated_run(self, run: log.CompactionStarted) -> None:
        """End a compaction without a summary, because the context has changed since it started."""
        await self._record_abandoned(run, CONTEXT_HAS_CHANGED)

    async def shelve_ready_summary(self, *, except_scope: str | None = None) -> None:
        """Set a ready summary aside for a later compaction, so that another compaction can start."""
        state = self._log.history.session_state
        run = state.running_compaction
        if run is not None and state.ready_summary is not None and run.scope != except_scope:
            why = "another compaction replaces it; the summary is kept for the next compaction"
            await self._record_abandoned(run, why)

    async def start(
        self, step: CompactSpan, plan_input: PlanInput, focus: str = "", *, last_request: SentRequest | None = None
    ) -> None:
        """Start a summary of a span in the background; `last_request` is the prefix to ask after."""
        queue = self.options.queue
        if queue is not None and step.trigger not in REQUESTED_TRIGGERS:
            await self._submit(queue, step, plan_input, focus)
            return
        job = self.make_job(step, plan_input, focus, last_request=last_request)
        summarizer, owner = self.summarizer_for(step.trigger), new_owner_id()
        event = compaction_started_event(step, plan_input, focus, owner=owner)
        HELD_HERE.add(owner)
        try:
            await self._log.append(event)
        except BaseException:
            HELD_HERE.discard(owner)
            raise
        self._started_in_prompt = _answered_prompt(plan_input.projection)
        self.last_error = self.last_rejection = None
        self._running_owner = owner
        self._task = asyncio.create_task(self._run(job, event, summarizer))

    async def _submit(self, queue: CompactionQueue, step: CompactSpan, plan_input: PlanInput, focus: str) -> None:
        """Leave a compaction to a worker; if there is no queue to be reached, end it again."""
        event = compaction_started_event(step, plan_input, focus, owner=f"{JOB_OWNER}:{token_hex(8)}")
        await self._log.append(event)
        self._started_in_prompt = _answered_prompt(plan_input.projection)
        self.last_error = self.last_rejection = None
        try:
            await queue.submit(self._log.session, event.owner, step.trigger)
        except asyncio.CancelledError:
            # Whether it was queued is not known; a worker that finds it ended writes nothing.
            await self._record_abandoned(event, "it was cancelled before it was queued")
            raise
        except Exception as error:  # noqa: BLE001 - whatever the queue raises, the session goes on
            self.last_error = self._as_holdfast_error(error)
            await self._record_abandoned(event, f"it could not be queued: {self.last_error}")

    async def run_job(self, job: SummaryJob, event: log.CompactionStarted) -> bool:
        """Write the summary of a compaction that was left to a worker, and return whether it was recorded.

        If it was not, `last_error` says why it failed, and nothing is recorded; None if it was not approved or not
        wanted any more. If this is cancelled, nothing is recorded: another worker may write the summary.
        """
        self.last_error = self.last_rejection = None
        try:
            outcome = await self._summary_event(job, event, self.summarizer_for(job.step.trigger))
            return await self._record_outcome(event, outcome, job)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            await self._record_outcome(event, compaction_abandoned_event(event, "it was cancelled", is_cancelled=True))
        except Exception as error:  # noqa: BLE001 - whatever a caller's code raises, the compaction ends
            self.last_error = self._as_holdfast_error(error)
        return False

    def make_job(
        self, step: CompactSpan, plan_input: PlanInput, focus: str = "", *, last_request: SentRequest | None = None
    ) -> SummaryJob:
        """Return the job of summarizing a span of the current context."""
        redacts, restarts = self.options.redact, self._log.restarts
        job = summary_job(step, plan_input, self.policy, focus, redacts=redacts, last_request=last_request)
        return replace(job, restarts=restarts)

    def check_not_scrubbed(self, job: SummaryJob) -> None:
        """Raise if a secret was scrubbed since the messages of a job were read. Caller must hold the refreshed log."""
        if job.restarts != self._log.restarts:
            raise CompactionFailedError(WAS_SCRUBBED)

    @property
    def redact(self) -> RedactText:
        """The function that hides secrets from a summarizer."""
        return redact_text if self.options.redact else str

    async def draft_summary(self, job: SummaryJob) -> Summary:
        """Return a checked summary without recording it."""
        summarizer = self.summarizer_for(job.step.trigger)
        self._report_progress(COMPACTING_TEXT)
        try:
            return await self._summarize(job, summarizer)
        except TimeoutError as error:
            raise self._as_holdfast_error(error) from None
        finally:
            self._report_progress("")

    async def _summarize(self, job: SummaryJob, summarizer: Summarizer) -> Summary:
        with self.observers.summary_call_span(summarizer.name) as call:
            async with asyncio.timeout(self.options.retry_limits.deadline_seconds):
                summary = await summarize(job, summarizer, self.options.retry_limits)
            call.record_reply(summary.usage, model=summary.by_model, response_id=summary.request_id)
        return summary

    @property
    def owned_summarizers(self) -> list[Summarizer]:
        """The summarizers that are opened by name; a wrong name is skipped here and raises when it is used."""
        for name in (self.options.automatic, self.options.manual):
            if isinstance(name, str):
                with suppress(SettingsError):
                    self._open_summarizer(name)
        return list(self._opened_summarizers.values())

    def summarizer_for(self, trigger: log.CompactionTrigger) -> Summarizer:
        """Return the summarizer that the policy chooses: often a cheap model, but the primary one on request."""
        named = self._configured_summarizer(trigger)
        if named is None:
            raise ModelAccessError("summarizer", "there is no model to write the summary", "name one: summarizer=…")
        return self._open_summarizer(named) if isinstance(named, str) else named

    def _configured_summarizer(self, trigger: log.CompactionTrigger) -> str | Summarizer | None:
        cheap, primary, choice = self.options.automatic, self.options.manual, self.policy.summarizer_choice
        if choice == "cheap_then_primary":
            # Without a model for them, automatic compactions are made by rule.
            return (primary or cheap) if trigger in REQUESTED_TRIGGERS else cheap
        return (primary or cheap) if choice == "session" else (cheap or primary)

    def next_summarizer(self, model: str | None, format: str | None) -> SummaryAuthor | None:  # noqa: A002 - as users say
        """Return who would write the next summary for a model's conversation in a format, or None."""
        named = self._configured_summarizer("threshold")
        if named is None:
            return None
        name = named if isinstance(named, str) else named.name
        prices = prices_of_model(name)
        if name != model:
            return SummaryAuthor(prices)
        supports_it = not isinstance(named, str) and supports_prefix(named, format or "")
        return SummaryAuthor(self.options.prices or prices, reuses_prefix=supports_it and self.policy.reuses_prefix)

    def _open_summarizer(self, name: str) -> Summarizer:
        """Return a named summarizer. Each is opened once, because opening one may start a server."""
        if name not in self._opened_summarizers:
            self._opened_summarizers[name] = open_summarizer(name)
        return self._opened_summarizers[name]

    async def commit(self, situation: Situation) -> log.CompactionCompleted | None:
        """Apply the ready summary; return None if there is none or the context has changed."""
        await self.end_stale_run()
        state, rule = self._log.history.session_state, self.policy.compaction
        run, done = state.running_compaction, state.ready_summary
        if run is None or done is None or rule is None or run.scope != situation.scope:
            return None
        step = CompactSpan(span=run.span, by="summary", trigger=run.trigger)

        def completed() -> log.CompactionCompleted:
            plan_input = plan_input_of(self._log.history, self.policy, situation)
            return compaction_completed_event(step, rule, plan_input, done.summary)

        event = await self._log.load_and_retry(partial(plan_in_thread, completed))
        event = await self.observers.add_checkpoint(event)
        await self.observers.record_completed(event)
        return event

    async def wait(self) -> None:
        """Wait until the running summary is written or has failed. The caller must not hold the lock."""
        self._report_progress(COMPACTING_TEXT)
        try:
            if self._task is not None and not self._task.done():
                await asyncio.wait({self._task})
                return
            while True:
                if not await self._is_still_running():
                    return
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._report_progress("")

    @locked
    async def _is_still_running(self) -> bool:
        await self.end_stale_run()
        return self.is_running

    async def cancel(self) -> bool:
        """Cancel the summary that this process is writing or has left to a worker; return whether there was one."""
        run, queue = self._log.history.session_state.running_compaction, self.options.queue
        if run is not None and queue is not None and run.owner.startswith(f"{JOB_OWNER}:") and self.is_running:
            await queue.cancel(run.owner)
            await self._end_cancelled_job(run.owner)
            return True
        return await self._cancel_task()

    async def _cancel_task(self) -> bool:
        task = self._task
        if task is None or task.done():
            return False
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_GRACE_SECONDS)
        # A task that never ran, or that ignores the cancellation, cannot release its lease itself.
        HELD_HERE.discard(self._running_owner)
        with suppress(StoreError):
            await self._is_still_running()
        return True

    @locked
    async def _end_cancelled_job(self, owner: str) -> None:
        run = self._log.history.session_state.running_compaction
        if run is not None and run.owner == owner and self.is_running:
            await self._record_abandoned(run, "it was cancelled")

    async def _run(self, job: SummaryJob, event: log.CompactionStarted, summarizer: Summarizer) -> bool:
        """Write a summary, and record it or the reason of its failure; return whether a summary was recorded."""
        try:
            return await self._record_outcome(event, await self._summary_event(job, event, summarizer), job)
        except asyncio.CancelledError:
            await self._record_outcome(event, compaction_abandoned_event(event, "it was cancelled", is_cancelled=True))
        except Exception as error:  # noqa: BLE001 - whatever a caller's code raises, the session goes on
            self.last_error = self._as_holdfast_error(error)
            await self._record_outcome(event, compaction_abandoned_event(event, str(self.last_error)))
        finally:
            HELD_HERE.discard(event.owner)
        return False

    def _as_holdfast_error(self, error: Exception) -> HoldfastError:
        if isinstance(error, HoldfastError):
            return error
        if isinstance(error, TimeoutError):
            return CompactionFailedError(f"it took longer than {self.options.retry_limits.deadline_seconds:g} s")
        return CompactionFailedError(f"{type(error).__name__}: {error}")

    async def _summary_event(
        self, job: SummaryJob, event: log.CompactionStarted, summarizer: Summarizer
    ) -> log.SummaryWritten | log.CompactionCompleted:
        """Return the event for a written summary, or for one that was not approved."""
        with self.observers.compaction_span(event):
            await self.observers.run_pre_compact_hooks(event)
            summary = await self._summarize(job, summarizer)
        if self.options.approve is not None:
            draft = SummaryDraft(job.step, summary, job.replaced_tokens)
            approved = await _ask_approval(self.options.approve, draft)
            if isinstance(approved, str):
                self.last_rejection = approved
                return compaction_abandoned_event(event, approved, is_cancelled=True)
            summary = approved
        span = event.span
        return log.SummaryWritten(start=span.start, stop=span.stop, summary=summary, scope=event.scope)

    async def _record_outcome(
        self,
        started: log.CompactionStarted,
        event: log.SummaryWritten | log.CompactionCompleted,
        job: SummaryJob | None = None,
    ) -> bool:
        """Record the outcome if this process still holds the lease and the store can be written.

        Returns whether a summary was recorded. One that the store refuses is lost, and `last_error` says so.
        """
        try:
            return await self._record_if_current(started, event, job)
        except StoreError as error:
            if isinstance(event, log.SummaryWritten):
                self.last_error = error
        except SessionClosedError:
            pass
        return False

    @locked
    async def _record_if_current(
        self,
        started: log.CompactionStarted,
        event: log.SummaryWritten | log.CompactionCompleted,
        job: SummaryJob | None,
    ) -> bool:
        now = self._log.history.session_state.running_compaction
        if now is None or now.owner != started.owner:
            return False
        if job is not None:
            try:
                self.check_not_scrubbed(job)
            except CompactionFailedError as error:
                self.last_error, event = error, compaction_abandoned_event(started, str(error))
        if isinstance(event, log.CompactionCompleted):
            await self.observers.record_completed(event)
            return False
        await self._log.append(event)
        self.observers.start_memory_update()
        return True

    async def close(self) -> None:
        """Cancel the running summary, wait for the observers, and close the summarizers that the compactor opened.

        Closes all of them, and raises the error of one that could not be closed.
        """
        async with AsyncExitStack() as closing:
            closing.callback(self._opened_summarizers.clear)
            for summarizer in self._opened_summarizers.values():
                if isinstance(summarizer, Closable):
                    closing.push_async_callback(summarizer.close)
            await self._cancel_task()
            await self.observers.close()

    def release(self) -> None:
        """Drop what refers to a session that is closed: else it would wait for the garbage collector."""
        self.last_error = self.last_rejection = None
        self.observers.release()

    async def _record_abandoned(self, started: log.CompactionStarted, why: str) -> None:
        await self.observers.record_completed(compaction_abandoned_event(started, why, is_cancelled=True))

    def _is_abandoned(self, started: log.CompactionStarted) -> bool:
        """Return whether the owner has exited, or its lease has expired."""
        if started.owner in HELD_HERE:
            return False
        if has_owner_exited(started.owner):
            return True
        began = self._log.compaction_started_ms
        # A start time in the future means that the clock was set back.
        return began is None or abs(self._log.clock() - began) > LEASE_MS

    def _report_progress(self, text: str) -> None:
        if self.options.progress is not None:
            with suppress(Exception):
                self.options.progress(text)


async def _ask_approval(approve: Approval, draft: SummaryDraft) -> Summary | str:
    """Return the approved summary, or why it is not approved; only True and a text approve it."""
    try:
        answer = approve(draft)
        verdict: object = await answer if isinstance(answer, Awaitable) else answer
    except Exception as error:  # noqa: BLE001 - whatever a caller's code raises, the session goes on
        return f"it was not approved: `approve` raised {type(error).__name__}"
    if isinstance(verdict, str) and verdict.strip():
        # The check has not seen the edited text.
        return replace(draft.summary, text=replace_surrogates(verdict), score=None, put_back=(), left_out=())
    if verdict is True:
        return draft.summary
    reason = "" if verdict is False else f": `approve` must return True, False or a text, not {short_repr(verdict)}"
    return f"it was not approved{reason}"


def _answered_prompt(projection: Projection) -> int | None:
    """Return the position of the prompt that is being answered."""
    return None if projection.newest_prompt is None else projection.entries[projection.newest_prompt].position
