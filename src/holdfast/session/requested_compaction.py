"""Compactions that a caller requests: a person, an agent, a switch to a smaller model, a process short of memory.

The caller needs to know the outcome. An automatic compaction fails silently; a requested one raises, and nothing has
changed then. A digest replaces a rejected summary only if the policy allows it.
"""

import asyncio
import gc
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

from holdfast.core.history import events as log
from holdfast.core.history.events import Summary
from holdfast.core.planning.changes import compaction_completed_event, lost_facts, with_measured_effect
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.replacement import digest_text
from holdfast.core.planning.situation import MIN_BUDGET_TOKENS, Situation
from holdfast.core.planning.steps import CompactSpan, PlanInput
from holdfast.core.planning.summary.must_keep import MustKeepKind
from holdfast.errors import (
    CompactionCancelledError,
    CompactionError,
    CompactionFailedError,
    CompactionRunningError,
    HoldfastError,
    ModelAccessError,
    ModelError,
    ModelUnreachableError,
    NoContextError,
    NothingToCompactError,
    SettingsError,
)
from holdfast.session.compaction.compactor import CONTEXT_HAS_CHANGED, REQUESTED_TRIGGERS, Compactor
from holdfast.session.compaction.summarizer import SentRequest, SummaryJob
from holdfast.session.heavy_work import plan_in_thread
from holdfast.session.log.event_log import SessionLog, locked
from holdfast.session.prepare import RequestBuilder, RequestOptions

JobOutcome: TypeAlias = Literal["summary", "digest", "not wanted", "failed"]
"""What came of a compaction left to a worker; `not wanted` if it was ended meanwhile, or not approved."""
STATM_PATH = "/proc/self/statm"
LAID_DOWN: tuple[MustKeepKind, ...] = "constraint", "decision"
MIN_COMPACTED_TOKENS = 100
"""Fewer tokens are compacted on request only if nothing that is laid down is lost: they leave no room for it."""
MESSAGES_BETWEEN_MEMORY_CHECKS = 20
"""After a compaction for want of memory, or an attempt, the next one waits for this many messages."""
MAX_SWITCH_PREVIEWS = 4
"""How often a lower budget is tried, so that a compaction leaves what a new model can hold."""
PREVIEW_IS_OLD = "the context has changed since the preview; ask for another one"


class RequestedCompaction:
    """Compacts a session on request."""

    def __init__(self, session_log: SessionLog, compactor: Compactor, builder: RequestBuilder) -> None:
        self._log = session_log
        self._compactor = compactor
        self._builder = builder
        self._relieved_at = -MESSAGES_BETWEEN_MEMORY_CHECKS
        """The number of messages when the process was last short of memory."""

    @property
    def _policy(self) -> Policy:
        return self._compactor.policy

    async def compact(
        self, options: RequestOptions, trigger: log.CompactionTrigger, focus: str = ""
    ) -> log.CompactionCompleted:
        """Compact, and return the result; if it raises a `CompactionError` or a `ModelError`, nothing has changed."""
        options = replace(self._builder.with_last_budget(options), is_requested=trigger in REQUESTED_TRIGGERS)
        async with self._log.locked():
            await self._compactor.end_stale_run()
            await self._compactor.shelve_ready_summary()
            if self._log.history.session_state.running_compaction is not None:
                raise CompactionRunningError(self._log.session)
            step, plan_input = await self._plan(options, trigger)
            if step.by != "summary" or not plan_input.situation.has_summarizer:
                return await self._compact_by_rule(step, plan_input, options)
            sent = self._builder.last_requests.get(options.scope)
            await self._compactor.start(step, plan_input, focus, last_request=sent)
            basis = self._log.history.change_count
        try:
            await self._compactor.wait()
        except asyncio.CancelledError:
            await self._compactor.cancel()
            raise
        event = await self._commit(step, options, basis)
        if not event.success:
            raise CompactionFailedError(event.error or "it did not help")
        return event

    async def run_started(self, options: RequestOptions, owner: str) -> JobOutcome:
        """Write the summary of a compaction that another process has left to this one, and return what came of it.

        Without a model, or without a key for it, the messages are replaced by a digest.
        """
        async with self._log.locked():
            run = await self._wanted_run(owner)
            if run is None:
                return "not wanted"
            options = self._builder.with_last_budget(replace(options, scope=run.scope))
            step = CompactSpan(span=run.span, by="summary", trigger=run.trigger)
            if not self._compactor.has_summarizer:
                return await self._end_in_digest(step, options, "this worker has no model to write a summary")
            # The process that has sent the last request can ask after its prefix, which the provider has cached.
            sent = self._builder.last_requests.get(run.scope)
            focus = run.custom_instructions or ""
            job = await self._log.load_and_retry(lambda: self._make_job(step, options, focus, sent))
        if await self._compactor.run_job(job, run):
            return "summary"
        problem = self._compactor.last_error
        if problem is None:
            return "not wanted"
        async with self._log.locked():
            if await self._wanted_run(owner) is None:  # it was cancelled, or its context has changed
                return "not wanted"
            return await self._end_in_digest(step, options, str(problem))

    async def _wanted_run(self, owner: str) -> log.CompactionStarted | None:
        """Return a compaction that still lacks its summary; ends it if its context has changed since it started."""
        state = self._log.history.session_state
        run = state.running_compaction
        if run is None or run.owner != owner or state.ready_summary is not None:
            return None
        if run.basis != self._log.history.change_count:
            await self._compactor.end_outdated_run(run)
            return None
        return run

    async def _end_in_digest(self, step: CompactSpan, options: RequestOptions, problem: str) -> JobOutcome:
        """Compact by rule what no model could summarize. Caller must hold the lock."""
        reason = f"a digest, because {problem}"

        async def completed() -> log.CompactionCompleted:
            return await self._completed_event(step, await self._builder.current_plan_input(options))

        event = await self._log.load_and_retry(completed)
        await self._compactor.observers.record_completed(replace(event, reason=reason))
        return "digest" if event.success else "failed"

    @locked
    async def _commit(self, step: CompactSpan, options: RequestOptions, basis: int) -> log.CompactionCompleted:
        """Commit the finished summary, unless a request has committed it meanwhile."""
        event = await self._compactor.commit(self._builder.situation(options))
        if event is not None:
            await self._record_usage(event, options)
            return event
        compactions = self._log.history.version.state_of(options.scope).compactions
        made = [one for one in compactions if one.span.positions == step.span.positions and one.summary.by_model]
        return made[-1] if made else await self._compact_without_summary(step, options, basis)

    async def relieve_memory(self, options: RequestOptions, limit_bytes: int) -> log.CompactionCompleted | None:
        """Compact if the process uses too much memory, unless that was tried a few messages ago."""
        messages = len(self._log.history)
        if messages - self._relieved_at < MESSAGES_BETWEEN_MEMORY_CHECKS or resident_bytes() <= limit_bytes:
            return None
        self._relieved_at = messages
        return await self.compact_above_memory_limit(options, limit_bytes)

    async def compact_above_memory_limit(
        self, options: RequestOptions, limit_bytes: int
    ) -> log.CompactionCompleted | None:
        """Compact if the process uses too much memory even after a garbage collection."""
        if resident_bytes() > limit_bytes:
            gc.collect()
        if resident_bytes() > limit_bytes:
            with suppress(CompactionError, ModelError):
                return await self.compact(options, "memory_pressure")
        return None

    async def switch_model(self, options: RequestOptions) -> log.CompactionCompleted | None:
        """Record a switch to another model; compacts first if the context is too long for it."""
        if not options.model or not isinstance(options.model, str):
            raise SettingsError("model", f"needs a name, not {options.model!r}")
        await self._builder.read_calibration(options)
        async with self._log.locked():
            # The tokens that the switched session would send, against the limit that the new model has.
            plan_input = await self._builder.current_plan_input(options) if self._log.history.format else None
            situation = plan_input.situation if plan_input else self._builder.situation(options)
            tokens = plan_input.message_tokens if plan_input else 0
        done = None
        if tokens > situation.message_budget:
            with suppress(CompactionError, ModelError):
                done = await self.compact(await self._fitting_options(options, situation), "model_switch")
        async with self._log.locked():
            await self._log.append(log.ModelSwitched(model=options.model, window=situation.window))
            if done is not None:
                await self._record_usage(done, options)
        return done

    async def _fitting_options(self, options: RequestOptions, situation: Situation) -> RequestOptions:
        """Return options whose budget is so low that what a compaction leaves fits the budget of a new model.

        A compaction keeps the last exchange whole, and quotes some of the rest: with a long last exchange, too much.
        """
        budget = replace(situation.budget, source="user")
        for _ in range(MAX_SWITCH_PREVIEWS):
            draft = await self.preview(replace(options, budget=budget))
            over = draft.post_compaction_tokens - situation.message_budget
            lower = budget.tokens - 2 * over
            if over <= 0 or lower < situation.extras_tokens + MIN_BUDGET_TOKENS:
                break
            budget = replace(budget, tokens=lower)
        return replace(options, budget=budget)

    @locked
    async def preview(self, options: RequestOptions) -> log.CompactionCompleted:
        """Return what a compaction by rule would do, and record nothing."""
        options = replace(self._builder.with_last_budget(options), without_summarizer=True)
        return await self._draft_event(*await self._plan(options, "manual", is_preview=True))

    @locked
    async def compact_with(
        self, options: RequestOptions, texts: tuple[str, ...], span: range
    ) -> log.CompactionCompleted:
        """Compact the span of a preview, and put texts of the caller in its place."""
        options = replace(self._builder.with_last_budget(options), without_summarizer=True)
        step, plan_input = await self._plan(options, "manual", is_preview=True)
        if step.span.positions != span:
            raise CompactionFailedError("the conversation went on since the preview; look at a new one")
        event = replace(
            await self._completed_event(step, plan_input),
            success=True,
            error=None,
            replacement=texts,
            quoted=(),
            summary=Summary("\n".join(texts)),
            reason="the summary was edited",
        )
        return await self._record(with_measured_effect(event, plan_input), options)

    async def draft(self, options: RequestOptions, focus: str = "") -> log.CompactionCompleted:
        """Return what a compaction with a model's summary would do; raises as `compact` does, and records nothing."""
        options = replace(self._builder.with_last_budget(options), is_requested=True)
        async with self._log.locked():
            step, plan_input = await self._plan(options, "manual")
            if step.by != "summary" or not plan_input.situation.has_summarizer:
                return await self._draft_event(step, plan_input)
            job = await self._make_job(step, options, focus, self._builder.last_requests.get(options.scope))
            basis = self._log.history.change_count
        summary = await self._compactor.draft_summary(job)
        async with self._log.locked():
            self._compactor.check_not_scrubbed(job)
            if self._log.history.change_count != basis:
                raise CompactionFailedError(CONTEXT_HAS_CHANGED)

            async def drafted() -> log.CompactionCompleted:
                return await self._draft_event(step, await self._builder.current_plan_input(options), summary)

            return await self._log.load_and_retry(drafted)

    @locked
    async def apply_preview(self, options: RequestOptions, preview: log.CompactionCompleted) -> log.CompactionCompleted:
        """Record a compaction that was previewed; raises if the messages that it replaces have changed since."""
        options = replace(self._builder.with_last_budget(options), is_requested=True)
        await self._compactor.shelve_ready_summary()
        by_model = preview.summary.by_model is not None
        # Without a model, a policy that asks for a summary gets a digest in its form.
        step = CompactSpan(span=preview.span, by="summary" if preview.ends_run else "digest", trigger="manual")
        plan_input = await self._builder.current_plan_input(replace(options, without_summarizer=not by_model))
        try:
            event = await self._completed_event(step, plan_input, preview.summary if by_model else None)
        except (ValueError, IndexError) as error:
            raise CompactionFailedError(PREVIEW_IS_OLD) from error
        if event.replacement != preview.replacement:
            raise CompactionFailedError(PREVIEW_IS_OLD)
        return await self._record(event, options)

    async def _make_job(
        self, step: CompactSpan, options: RequestOptions, focus: str, last_request: SentRequest | None
    ) -> SummaryJob:
        plan_input = await self._builder.current_plan_input(options)
        make_job = partial(self._compactor.make_job, step, plan_input, focus, last_request=last_request)
        return await plan_in_thread(make_job)

    async def _plan(
        self, options: RequestOptions, trigger: log.CompactionTrigger, *, is_preview: bool = False
    ) -> tuple[CompactSpan, PlanInput]:
        """Return the span to compact and the input it was chosen from; raises if there is nothing to compact."""
        if self._compactor.is_policy_by_model:
            self._compactor.use_model(options.model)
        plan_input = await self._builder.current_plan_input(options)
        spoken = sum(entry.message.role != "system" for entry in plan_input.projection.entries)
        if spoken < self._policy.manual_min_messages:
            raise NothingToCompactError(spoken)
        needs_context = self._policy.needs_context and not is_preview
        if needs_context and self._log.last_request_ms is None:
            raise NoContextError(self._log.session)
        rule = self._policy.compaction
        if trigger == "agent_request":
            # Keeps the working agent's prompt, and the call that requests the compaction.
            step = rule.agent_requested_step(plan_input) if rule else None
        else:
            step = rule.manual_step(plan_input) if rule else None
        if step is None:
            raise NothingToCompactError(spoken)
        if needs_context and not plan_input.situation.has_summarizer:
            remedy = "open the session with summarizer=…"
            raise ModelAccessError("summarizer", "there is no model to write the summary", remedy)
        return replace(step, trigger=trigger), plan_input

    async def _completed_event(
        self, step: CompactSpan, plan_input: PlanInput, summary: Summary | None = None
    ) -> log.CompactionCompleted:
        """Return the compaction of a span, by rule if no model has written a summary."""
        rule = self._policy.compaction
        if rule is None:  # pragma: no cover - there is no step without a rule
            raise AssertionError

        def completed() -> log.CompactionCompleted:
            # If the step requires a summary and no model can write one, a digest serves as the summary.
            is_digest = summary is None and step.by == "summary"
            written = Summary(digest_text(plan_input, step)) if is_digest else summary
            return compaction_completed_event(step, rule, plan_input, written)

        return await plan_in_thread(completed)

    async def _draft_event(
        self, step: CompactSpan, plan_input: PlanInput, summary: Summary | None = None
    ) -> log.CompactionCompleted:
        """Return a compaction that lists the facts it would lose; a checked summary lists them already."""
        event = await self._completed_event(step, plan_input, summary)
        if not event.success or event.summary.score is not None:
            return event
        lost = await plan_in_thread(partial(lost_facts, event, plan_input, self._compactor.redact))
        return replace(event, summary=replace(event.summary, left_out=lost))

    async def _compact_by_rule(
        self, step: CompactSpan, plan_input: PlanInput, options: RequestOptions, reason: str = ""
    ) -> log.CompactionCompleted:
        made = await self._completed_event(step, plan_input)
        await self._check_loss(made, step, plan_input)
        event = await self._record(replace(made, reason=reason), options)
        if not event.success:
            raise CompactionFailedError(event.error or "it did not help")
        return event

    async def _check_loss(self, event: log.CompactionCompleted, step: CompactSpan, plan_input: PlanInput) -> None:
        """Raise if so little is compacted that its replacement has no room for what the user has laid down."""
        rule = self._policy.compaction
        if not event.success or rule is None or not rule.has_ledger:
            return
        tokens = plan_input.projection.tokens - plan_input.tokens_outside(step.span)
        if tokens >= MIN_COMPACTED_TOKENS:
            return
        find_lost = partial(lost_facts, event, plan_input, self._compactor.redact, kinds=LAID_DOWN)
        if lost := await plan_in_thread(find_lost):
            raise CompactionFailedError(f"{tokens:,} tokens are too few to compact: this would be lost: {lost[0]}")

    async def _record(self, event: log.CompactionCompleted, options: RequestOptions) -> log.CompactionCompleted:
        """Record a compaction with its checkpoint, and how full the context is after it."""
        event = await self._compactor.observers.add_checkpoint(event)
        await self._compactor.observers.record_completed(event)
        await self._record_usage(event, options)
        return event

    async def _record_usage(self, event: log.CompactionCompleted, options: RequestOptions) -> None:
        """Record how full the context is after a compaction; without it, the next request records the same."""
        if event.success:
            with suppress(HoldfastError):
                await self._log.append(await self._log.load_and_retry(partial(self._builder.measure_usage, options)))

    async def _compact_without_summary(
        self, step: CompactSpan, options: RequestOptions, basis: int
    ) -> log.CompactionCompleted:
        """Compact by rule if the policy allows it and the model was reachable; otherwise raise the summary's error."""
        problem: HoldfastError | None = self._compactor.last_error
        # If so, the span and what it was chosen for are those of a context that is gone.
        has_changed = self._log.history.change_count != basis
        if problem is None:
            if has_changed:
                raise CompactionFailedError(CONTEXT_HAS_CHANGED)
            rejection = self._compactor.last_rejection
            raise CompactionCancelledError(rejection) if rejection else CompactionCancelledError
        if self._policy.on_failure != "digest" or isinstance(problem, ModelAccessError | ModelUnreachableError):
            raise problem
        if has_changed:
            raise CompactionFailedError(CONTEXT_HAS_CHANGED)
        reason = f"a digest, because {problem}"
        by_rule = replace(step, by="digest")
        plan_input = await self._builder.current_plan_input(options)
        return await self._compact_by_rule(by_rule, plan_input, options, reason)


def resident_bytes() -> int:
    """Return how much memory the process uses; where only the peak is known, the peak, and 0 where nothing is."""
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415 - not on every platform

    try:
        with open(STATM_PATH) as statm:  # noqa: PTH123 - without `pathlib`, which takes longer to import
            return int(statm.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
