"""A compaction that somebody asks for: refused by name where it cannot be made, and waited for.

The person who asks wants to know. So what an automatic one does quietly is an error here, and nothing has changed
then; only where the policy can do without a model is a summary that is not good enough replaced by a digest.

Compactions that circumstances ask for: a model with a smaller window, a process with too much in its memory.
"""

import asyncio
import gc
import resource
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from holdfast.core.history import events as log
from holdfast.core.planning.changes import compaction_completed_event, lost_facts
from holdfast.core.planning.plan import plan_input_of
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.replacement import digest_text
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import CompactSpan, Summary
from holdfast.errors import (
    CompactionCancelledError,
    CompactionError,
    CompactionFailedError,
    CompactionRunningError,
    ConcurrentWriteError,
    HoldfastError,
    ModelAccessError,
    ModelError,
    ModelUnreachableError,
    NoContextError,
    NothingToCompactError,
    SettingsError,
)
from holdfast.session.compaction.compactor import Compactor
from holdfast.session.log.event_log import SessionLog
from holdfast.session.prepare import RequestBuilder, RequestOptions


class ManualCompaction:
    """Compacts a session on somebody's word."""

    def __init__(self, session_log: SessionLog, compactor: Compactor, builder: RequestBuilder, policy: Policy) -> None:
        self._log = session_log
        self._compactor = compactor
        self._builder = builder
        self._policy = policy

    def set_policy(self, policy: Policy) -> None:
        """Go by another policy from now on."""
        self._policy = policy

    async def compact(
        self, options: RequestOptions, trigger: log.CompactionTrigger, focus: str = ""
    ) -> log.CompactionCompleted:
        """Return what was done; raises a `CompactionError` or a `ModelError`, and then nothing has changed."""
        options = self._builder.with_last_budget(options)
        async with self._log.lock:
            await self._log.refresh()
            await self._compactor.end_stale_run()
            await self._compactor.shelve_ready_summary()
            if self._log.history.session_state.running_compaction is not None:
                raise CompactionRunningError(self._log.session)
            step, situation = self._plan(options, trigger)
            if step.by != "summary" or not situation.has_summarizer:
                return await self._compact_by_rule(step, situation)
            await self._compactor.start(step, situation, focus, last_request=self._builder.last_request(options.scope))
        try:
            await self._compactor.wait()
        except asyncio.CancelledError:
            await self._compactor.cancel()
            raise
        event = None
        while event is None:
            with suppress(ConcurrentWriteError):
                event = await self._commit(step, options)
        if not event.success:
            raise CompactionFailedError(event.error or "it did not help")
        return event

    async def _commit(self, step: CompactSpan, options: RequestOptions) -> log.CompactionCompleted:
        """Return the fold of what was waited for; a request that came in between may have made it already."""
        async with self._log.lock:
            await self._log.refresh()
            event = await self._compactor.commit(self._builder.situation(options))
            if event is not None:
                return event
            folds = self._log.history.version.state_of(options.scope).compactions
            made = [fold for fold in folds if (fold.start, fold.stop) == (step.start, step.stop) and fold.by_model]
            return made[-1] if made else await self._compact_without_summary(step, options)

    def preview(self, options: RequestOptions) -> log.CompactionCompleted:
        """Return what a compaction by rule would do; by who holds the turn."""
        self._check_length()
        situation = replace(self._builder.situation(self._builder.with_last_budget(options)), has_summarizer=False)
        return self._with_losses(self._completed_event(self._plan_step(situation), situation), situation)

    async def draft(self, options: RequestOptions, focus: str = "") -> log.CompactionCompleted:
        """Return what a compaction with a model's summary would do; raises as `compact` does, and records nothing."""
        options = self._builder.with_last_budget(options)
        async with self._log.lock:
            await self._log.refresh()
            step, situation = self._plan(options, "manual")
            if step.by != "summary" or not situation.has_summarizer:
                return self._with_losses(self._completed_event(step, situation), situation)
            job = self._compactor.make_job(
                step, situation, focus, last_request=self._builder.last_request(options.scope)
            )
            basis = self._log.history.change_count
        summary = await self._compactor.draft_summary(job)
        async with self._log.lock:
            await self._log.refresh()
            if self._log.history.change_count != basis:
                raise CompactionFailedError("the context has changed meanwhile")
            return await self._log.load_and_retry(
                lambda: self._drafted_event(step, self._builder.situation(options), summary)
            )

    def _plan_step(self, situation: Situation) -> CompactSpan:
        rule, history = self._policy.fold, self._log.history
        step = rule.manual_step(plan_input_of(history, self._policy, situation)) if rule else None
        if step is None:
            raise NothingToCompactError(len(history))
        return step

    def _plan_agent_step(self, situation: Situation) -> CompactSpan:
        """Return a fold for an agent in the middle of its work: its prompt stays, and the call by which it asks."""
        outlook, rule = plan_input_of(self._log.history, self._policy, situation), self._policy.fold
        step = rule.agent_requested_step(outlook) if rule else None
        if step is None:
            raise NothingToCompactError(len(self._log.history))
        return step

    def _completed_event(
        self, step: CompactSpan, situation: Situation, summary: Summary | None = None
    ) -> log.CompactionCompleted:
        """Return the fold of a span, by rule where nobody has written a summary."""
        rule = self._policy.fold
        if rule is None:  # pragma: no cover - there is no step without a rule
            raise AssertionError
        outlook = plan_input_of(self._log.history, self._policy, situation)
        if summary is None and step.by == "summary":
            # Where a rule asks for a summary and nobody can write one, a digest is the summary.
            summary = Summary(digest_text(outlook, step))
        return compaction_completed_event(step, rule, outlook, summary)

    def _drafted_event(self, step: CompactSpan, situation: Situation, summary: Summary) -> log.CompactionCompleted:
        return self._with_losses(self._completed_event(step, situation, summary), situation)

    def _with_losses(self, event: log.CompactionCompleted, situation: Situation) -> log.CompactionCompleted:
        """Return a fold that lists what it would lose sight of; one that was judged does so already."""
        if not event.success or event.score is not None:
            return event
        outlook = plan_input_of(self._log.history, self._policy, situation)
        return replace(event, left_out=lost_facts(event, outlook, self._compactor.redact))

    def _check_length(self) -> None:
        if (said := len(self._log.history)) < self._policy.manual_min_messages:
            raise NothingToCompactError(said)

    def _plan(self, options: RequestOptions, trigger: log.CompactionTrigger) -> tuple[CompactSpan, Situation]:
        """Return what is to be folded, or refuse by name."""
        self._check_length()
        if self._policy.needs_context and self._log.last_request_ms is None:
            raise NoContextError(self._log.session)
        situation = replace(self._builder.situation(options), has_summarizer=self._compactor.has_summarizer)
        step = self._plan_agent_step(situation) if trigger == "agent_request" else self._plan_step(situation)
        if self._policy.needs_context and not situation.has_summarizer:
            remedy = "open the session with summariser=…"
            raise ModelAccessError("summariser", "there is no model to write the summary", remedy)
        return replace(step, trigger=trigger), situation

    async def _compact_by_rule(
        self, step: CompactSpan, situation: Situation, reason: str = ""
    ) -> log.CompactionCompleted:
        event = replace(self._completed_event(step, situation), reason=reason)
        event = await self._compactor.observers.add_checkpoint(event)
        await self._compactor.record_completed(event)
        if not event.success:
            raise CompactionFailedError(event.error or "it did not help")
        return event

    async def _compact_without_summary(self, step: CompactSpan, options: RequestOptions) -> log.CompactionCompleted:
        """Fold by rule where the policy can do that and the model was there; else say why nothing was done."""
        problem: HoldfastError | None = self._compactor.last_error
        if problem is None:
            raise CompactionCancelledError
        if self._policy.on_failure != "digest" or isinstance(problem, ModelAccessError | ModelUnreachableError):
            raise problem
        reason = f"a digest, because {problem}"
        return await self._compact_by_rule(replace(step, by="digest"), self._builder.situation(options), reason)


STATM_PATH = Path("/proc/self/statm")


async def switch_model_and_fit(
    session_log: SessionLog, manual: ManualCompaction, builder: RequestBuilder, options: RequestOptions
) -> log.CompactionCompleted | None:
    """Let another model answer; where what stands is too long for it, a compaction comes first."""
    if not options.model or not isinstance(options.model, str):
        raise SettingsError("model", f"needs a name, not {options.model!r}")
    async with session_log.lock:
        await session_log.refresh()
        situation = builder.situation(options)
        fills = session_log.history.projection(situation.counter).tokens if session_log.history.format else 0
    done = None
    if fills > situation.message_budget:
        smaller = replace(options, budget=replace(situation.budget, source="user"))
        with suppress(CompactionError, ModelError):
            done = await manual.compact(smaller, "model_switch")
    async with session_log.lock:
        await session_log.refresh()
        await session_log.append(log.ModelSwitched(model=options.model, window=situation.window))
    return done


async def compact_above_memory_limit(
    manual: ManualCompaction, options: RequestOptions, limit_bytes: int
) -> log.CompactionCompleted | None:
    """Compact where the process holds too much even after what nobody needs was given back."""
    if resident_bytes() > limit_bytes:
        gc.collect()
    if resident_bytes() <= limit_bytes:
        return None
    with suppress(CompactionError, ModelError):
        return await manual.compact(options, "memory_pressure")
    return None


def resident_bytes() -> int:
    """Return how much memory the process holds; where the system tells only the most it ever held, that."""
    try:
        return int(STATM_PATH.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
