"""A compaction that somebody asks for: refused by name where it cannot be made, and waited for.

The person who asks wants to know. So what an automatic one does quietly is an error here, and nothing has changed
then; only where the policy can do without a model is a summary that is not good enough replaced by a digest.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace

from holdfast.core.history import events as log
from holdfast.core.planning.completion import completed
from holdfast.core.planning.losses import losses
from holdfast.core.planning.plan import outlook_of
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.reference import digest_of
from holdfast.core.planning.rules.everything import FoldEverything
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import FoldSpan, Summary, fold_of_all, short_of_open_work
from holdfast.errors import (
    CompactionCancelledError,
    CompactionFailedError,
    CompactionRunningError,
    HoldfastError,
    ModelAccessError,
    ModelUnreachableError,
    NoContextError,
    NothingToCompactError,
    OvertakenError,
)
from holdfast.session.circumstances import Wanted
from holdfast.session.compactor import Compactor
from holdfast.session.keeping import Keeper
from holdfast.session.preparer import Preparer


class ManualCompaction:
    """Compacts a session on somebody's word."""

    def __init__(self, keeper: Keeper, compactor: Compactor, preparer: Preparer, policy: Policy) -> None:
        self._keeper = keeper
        self._compactor = compactor
        self._preparer = preparer
        self._policy = policy

    def follow(self, policy: Policy) -> None:
        """Go by another policy from now on."""
        self._policy = policy

    async def compact(self, wanted: Wanted, trigger: log.Trigger, focus: str = "") -> log.CompactionCompleted:
        """Return what was done; raises a `CompactionError` or a `ModelError`, and then nothing has changed."""
        wanted = self._preparer.as_last(wanted)
        async with self._keeper.turn:
            await self._keeper.take_in()
            await self._compactor.tidy()
            await self._compactor.set_aside()
            if self._keeper.history.facts.running is not None:
                raise CompactionRunningError(self._keeper.session)
            step, situation = self._planned(wanted, trigger)
            if step.by != "summary" or not situation.has_summariser:
                return await self._by_rule(step, situation)
            await self._compactor.begin(step, situation, focus, sent=self._preparer.last(wanted.scope))
        try:
            await self._compactor.wait()
        except asyncio.CancelledError:
            await self._compactor.cancel()
            raise
        event = None
        while event is None:
            with suppress(OvertakenError):
                event = await self._committed(step, wanted)
        if not event.success:
            raise CompactionFailedError(event.error or "it did not help")
        return event

    async def _committed(self, step: FoldSpan, wanted: Wanted) -> log.CompactionCompleted:
        """Return the fold of what was waited for; a request that came in between may have made it already."""
        async with self._keeper.turn:
            await self._keeper.take_in()
            event = await self._compactor.commit(self._preparer.situation(wanted))
            if event is not None:
                return event
            folds = self._keeper.history.version.of(wanted.scope).folds
            made = [fold for fold in folds if (fold.start, fold.stop) == (step.start, step.stop) and fold.by_model]
            return made[-1] if made else await self._without_summary(step, wanted)

    def preview(self, wanted: Wanted) -> log.CompactionCompleted:
        """Return what a compaction by rule would do; by who holds the turn."""
        self._refuse_short()
        situation = replace(self._preparer.situation(self._preparer.as_last(wanted)), has_summariser=False)
        return self._compared(self._folded(self._step(situation), situation), situation)

    async def draft(self, wanted: Wanted, focus: str = "") -> log.CompactionCompleted:
        """Return what a compaction with a model's summary would do; raises as `compact` does, and records nothing."""
        wanted = self._preparer.as_last(wanted)
        async with self._keeper.turn:
            await self._keeper.take_in()
            step, situation = self._planned(wanted, "manual")
            if step.by != "summary" or not situation.has_summariser:
                return self._compared(self._folded(step, situation), situation)
            job = self._compactor.job(step, situation, focus, sent=self._preparer.last(wanted.scope))
            basis = self._keeper.history.changes
        summary = await self._compactor.draft(job)
        async with self._keeper.turn:
            await self._keeper.take_in()
            if self._keeper.history.changes != basis:
                raise CompactionFailedError("the context has changed meanwhile")
            return await self._keeper.decided(lambda: self._drafted(step, self._preparer.situation(wanted), summary))

    def _step(self, situation: Situation) -> FoldSpan:
        rule, history = self._policy.fold, self._keeper.history
        step = rule.manual(outlook_of(history, self._policy, situation)) if rule else None
        if step is None:
            raise NothingToCompactError(len(history))
        return step

    def _asked_by_agent(self, situation: Situation) -> FoldSpan:
        """Return a fold for an agent in the middle of its work: its prompt stays, and the call by which it asks."""
        outlook, rule = outlook_of(self._keeper.history, self._policy, situation), self._policy.fold
        if isinstance(rule, FoldEverything):
            step = rule.asked_by_agent(outlook)
        else:
            step = (rule.manual(outlook) if rule else None) or fold_of_all(outlook)
            step = short_of_open_work(step, outlook) if step else None
        if step is None:
            raise NothingToCompactError(len(self._keeper.history))
        return step

    def _folded(self, step: FoldSpan, situation: Situation, summary: Summary | None = None) -> log.CompactionCompleted:
        """Return the fold of a span, by rule where nobody has written a summary."""
        rule = self._policy.fold
        if rule is None:  # pragma: no cover - there is no step without a rule
            raise AssertionError
        outlook = outlook_of(self._keeper.history, self._policy, situation)
        if summary is None and step.by == "summary":
            # Where a rule asks for a summary and nobody can write one, a digest is the summary.
            summary = Summary(digest_of(outlook, step))
        return completed(step, rule, outlook, summary)

    def _drafted(self, step: FoldSpan, situation: Situation, summary: Summary) -> log.CompactionCompleted:
        return self._compared(self._folded(step, situation, summary), situation)

    def _compared(self, fold: log.CompactionCompleted, situation: Situation) -> log.CompactionCompleted:
        """Return a fold that lists what it would lose sight of; one that was judged does so already."""
        if not fold.success or fold.score is not None:
            return fold
        outlook = outlook_of(self._keeper.history, self._policy, situation)
        return replace(fold, left_out=losses(fold, outlook, self._compactor.hide))

    def _refuse_short(self) -> None:
        if (said := len(self._keeper.history)) < self._policy.manual_min_messages:
            raise NothingToCompactError(said)

    def _planned(self, wanted: Wanted, trigger: log.Trigger) -> tuple[FoldSpan, Situation]:
        """Return what is to be folded, or refuse by name."""
        self._refuse_short()
        if self._policy.needs_context and self._keeper.asked_ms is None:
            raise NoContextError(self._keeper.session)
        situation = replace(self._preparer.situation(wanted), has_summariser=self._compactor.can_write)
        step = self._asked_by_agent(situation) if trigger == "agent_request" else self._step(situation)
        if self._policy.needs_context and not situation.has_summariser:
            remedy = "open the session with summariser=…"
            raise ModelAccessError("summariser", "there is no model to write the summary", remedy)
        return replace(step, trigger=trigger), situation

    async def _by_rule(self, step: FoldSpan, situation: Situation, reason: str = "") -> log.CompactionCompleted:
        event = replace(self._folded(step, situation), reason=reason)
        event = await self._compactor.companions.checkpointed(event)
        await self._compactor.record(event)
        if not event.success:
            raise CompactionFailedError(event.error or "it did not help")
        return event

    async def _without_summary(self, step: FoldSpan, wanted: Wanted) -> log.CompactionCompleted:
        """Fold by rule where the policy can do that and the model was there; else say why nothing was done."""
        problem: HoldfastError | None = self._compactor.problem
        if problem is None:
            raise CompactionCancelledError
        if self._policy.on_failure != "digest" or isinstance(problem, ModelAccessError | ModelUnreachableError):
            raise problem
        reason = f"a digest, because {problem}"
        return await self._by_rule(replace(step, by="digest"), self._preparer.situation(wanted), reason)
