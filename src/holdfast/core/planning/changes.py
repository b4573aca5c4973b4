"""How steps become the events that tell of them.

What a change of context does to the next request: its tokens, and what of a prompt cache it gives up.

A provider's cache holds the beginning of the last request. From where a change begins, nothing of that can be read any
more, and what takes its place is paid as new: that is what a change costs, beside a summary. Where nothing was sent
yet, or the cache has forgotten it anyway, a change gives up nothing.

What a fold would lose sight of: facts that must not be forgotten and that nothing in view shows after it.

For who looks at a fold before it is made. Nothing is lost for good: each fact names the message that it was read off.

What a session goes on with when it is opened again, where that is less than all of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, TypeVar

from holdfast.core.conversation.cuts import turn_ranges
from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.shorten import turns_as_text
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.history.events import CompactionCompleted
from holdfast.core.history.projection import Projection
from holdfast.core.planning.breaker import progress_marks
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.replacement import message_texts, quoted_positions
from holdfast.core.planning.rules.cowagent import CowAgentCompaction, restored_turn_count
from holdfast.core.planning.situation import Situation
from holdfast.core.planning.steps import (
    CompactSpan,
    OffloadOutputs,
    Plan,
    PlanInput,
    ReduceTurnsToText,
    Summary,
)
from holdfast.core.planning.summary.must_keep import FactReader, must_keep_lines, must_keep_of, must_keep_redacted
from holdfast.errors import MalformedInputError

ChangedT = TypeVar("ChangedT", bound=log.OutputsOffloaded | log.TurnsReducedToText | log.ContextCleared | log.Rewound)


def add_effect(event: ChangedT, plan_input: PlanInput) -> ChangedT:
    """Return a change that tells what it does to what an agent is shown."""
    return replace(
        event, effect=context_effect(plan_input.projection, projection_after(event, plan_input), plan_input.situation)
    )


def projection_after(event: log.Event, plan_input: PlanInput) -> Projection:
    """Return what would be shown after a change; raises `MalformedInputError` where it cannot be made."""
    context = plan_input.projection.context
    version = context.version.after(event, context.length)
    return plan_input.history.project(
        replace(context, version=version or context.version), plan_input.situation.counter
    )


def context_effect(before: Projection, after: Projection, situation: Situation) -> log.Effect:
    """Return what becomes of the next request when one thing is shown instead of another."""
    same = _common_entries(before.entries, after.entries)
    held = 0 if situation.is_cache_cold else before.cumulative_tokens[_last_answer_index(before.entries)]
    lost = max(0, held - before.cumulative_tokens[same])
    # What was said since the last request is new to the cache whatever is shown before it.
    rewritten = max(0, after.tokens - after.cumulative_tokens[same] - (before.tokens - held)) if lost else 0
    return log.Effect(
        tokens_before=before.tokens,
        tokens_after=after.tokens,
        provenance=situation.counter.provenance,
        prefix_lost=lost,
        rewritten=rewritten,
        rewrite_dollars=situation.prices.dollars_to_write(rewritten) if situation.prices else None,
    )


def _common_entries(one: Sequence[Entry], other: Sequence[Entry]) -> int:
    """Return how many entries two lists begin with alike."""
    pairs = zip(one, other, strict=False)
    changed = (index for index, (mine, its) in enumerate(pairs) if mine is not its and mine != its)
    return next(changed, min(len(one), len(other)))


def _last_answer_index(entries: Sequence[Entry]) -> int:
    """Return the index of the last answer: what stands before it was the last request that was sent."""
    answers = (
        index
        for index in range(len(entries) - 1, -1, -1)
        if entries[index].position is not None and entries[index].message.role == "assistant"
    )
    return next(answers, 0)


class CompactionRule(Protocol):
    """Decides when and what to fold, and what takes its place."""

    offers_recall: ClassVar[bool]
    """Whether what takes its place ends with a line on how to look it up, for an agent that can."""
    detects_loops: ClassVar[bool]
    """Whether it does not fold again where nothing was done since the last time."""

    def propose(self, plan_input: PlanInput) -> Plan:
        """Return what is to be done now and later, and why."""
        ...

    def manual_step(self, plan_input: PlanInput) -> CompactSpan | None:
        """Return what the user's own word folds, whatever the lines say; None where there is nothing to fold."""
        ...

    def replacement_texts(self, plan_input: PlanInput, step: CompactSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the texts that stand for a span, the user's first; `summary` is None where none could be had."""
        ...


def step_event(step: OffloadOutputs | ReduceTurnsToText, plan_input: PlanInput, reason: str = "") -> log.Event:
    """Return the event of a step that needs nobody's help."""
    scope = plan_input.situation.scope
    if isinstance(step, ReduceTurnsToText):
        return add_effect(log.TurnsReducedToText(line=step.before, reason=reason, scope=scope), plan_input)
    event = log.OutputsOffloaded(line=step.before, max_chars=step.max_chars, reason=reason, scope=scope)
    return add_effect(event, plan_input)


def compaction_started_event(step: CompactSpan, plan_input: PlanInput, focus: str = "") -> log.CompactionStarted:
    """Return the event that a summary was begun; `focus` is what the user wants it to be about."""
    situation = plan_input.situation
    return log.CompactionStarted(
        trigger=step.trigger,
        start=step.start,
        stop=step.stop,
        kept=step.kept,
        count=step.count,
        is_merged=step.is_merged,
        basis=plan_input.history.change_count,
        custom_instructions=focus or None,
        tokens=log.TokenBreakdown(
            system_tokens=situation.system_tokens,
            conversation_tokens=plan_input.message_tokens,
            tool_definitions_tokens=situation.tools_tokens,
        ),
        scope=situation.scope,
    )


def step_from_event(event: log.CompactionStarted) -> CompactSpan:
    """Return the step that a compaction was started with."""
    return CompactSpan(
        start=event.start,
        stop=event.stop,
        kept=event.kept,
        count=event.count,
        is_merged=event.is_merged,
        by="summary",
        trigger=event.trigger,
    )


def summary_written_event(started: log.CompactionStarted, summary: Summary) -> log.SummaryWritten:
    """Return the event that the summary which was begun is there."""
    return log.SummaryWritten(
        start=started.start,
        stop=started.stop,
        text=summary.text,
        by_model=summary.by_model,
        usage=summary.usage,
        duration_ms=summary.duration_ms,
        score=summary.score,
        dollars=summary.dollars,
        request_id=summary.request_id,
        put_back=summary.put_back,
        left_out=summary.left_out,
        redacted=summary.redacted,
        scope=started.scope,
    )


def summary_from_event(event: log.SummaryWritten) -> Summary:
    """Return the summary that an event tells of."""
    return Summary(
        event.text,
        by_model=event.by_model,
        usage=event.usage,
        duration_ms=event.duration_ms,
        score=event.score,
        dollars=event.dollars,
        request_id=event.request_id,
        put_back=event.put_back,
        left_out=event.left_out,
        redacted=event.redacted,
    )


def compaction_completed_event(
    step: CompactSpan, rule: CompactionRule, plan_input: PlanInput, summary: Summary | None = None
) -> log.CompactionCompleted:
    """Return the event of a fold; a failed one where the replacement would not make anything smaller."""
    if summary is not None and not summary.text.strip():
        summary = None
    texts = rule.replacement_texts(plan_input, step, summary)
    if step.by == "summary" and summary is None and (step.trigger == "manual" or not texts):
        return compaction_failed_event(step, plan_input, "the summary is empty")
    event = log.CompactionCompleted(
        success=True,
        trigger=step.trigger,
        start=step.start,
        stop=step.stop,
        kept=step.kept,
        replacement=texts,
        quoted=quoted_positions(texts, plan_input) if rule.offers_recall else (),
        offers_recall=rule.offers_recall,
        summary_content=summary.text if summary else "\n".join(texts),
        is_merged=step.is_merged,
        by_model=summary.by_model if summary else None,
        # What stands for a span names agents that are at work, whoever wrote it.
        read_to=len(plan_input.history) if summary or plan_input.history.session_state.running_delegates else 0,
        usage=summary.usage if summary else None,
        duration_ms=summary.duration_ms if summary else None,
        score=summary.score if summary else None,
        dollars=summary.dollars if summary else None,
        request_id=summary.request_id if summary else None,
        marks=progress_marks(plan_input) if rule.detects_loops else (),
        put_back=summary.put_back if summary else (),
        left_out=summary.left_out if summary else (),
        redacted=summary.redacted if summary else (),
        ends_run=step.by == "summary",
        count=step.count,
        scope=plan_input.situation.scope,
    )
    try:
        done = with_measured_effect(event, plan_input)
    except MalformedInputError as error:
        return compaction_failed_event(step, plan_input, f"its span does not stand any more: {error.problem}")
    before, after = done.pre_compaction_tokens, done.post_compaction_tokens
    if after < before or step.is_merged:
        return done
    problem = f"the replacement would be no smaller: {after:,} tokens instead of {before:,}"
    return replace(done, success=False, error=problem, effect=None)


def with_measured_effect(event: log.CompactionCompleted, plan_input: PlanInput) -> log.CompactionCompleted:
    """Return a fold that tells what it does to what is shown; raises `MalformedInputError` where it cannot be made."""
    before, after = plan_input.projection, projection_after(event, plan_input)
    return replace(
        event,
        pre_compaction_tokens=before.tokens,
        post_compaction_tokens=after.tokens,
        tokens_removed=before.tokens - after.tokens,
        messages_removed=len(before) - len(after),
        effect=context_effect(before, after, plan_input.situation),
    )


def compaction_abandoned_event(
    started: log.CompactionStarted, error: str, *, is_cancelled: bool = False
) -> log.CompactionCompleted:
    """Return the event that a compaction which was started came to nothing."""
    return log.CompactionCompleted(
        success=False,
        trigger=started.trigger,
        start=started.start,
        stop=started.stop,
        error=error,
        is_cancelled=is_cancelled,
        scope=started.scope,
    )


def compaction_failed_event(step: CompactSpan, plan_input: PlanInput, error: str) -> log.CompactionCompleted:
    """Return the event of a compaction that came to nothing."""
    return log.CompactionCompleted(
        success=False,
        trigger=step.trigger,
        start=step.start,
        stop=step.stop,
        error=error,
        pre_compaction_tokens=plan_input.projection.tokens,
        post_compaction_tokens=plan_input.projection.tokens,
        ends_run=step.by == "summary",
        scope=plan_input.situation.scope,
    )


def lost_facts(
    compaction: CompactionCompleted, plan_input: PlanInput, hide: Callable[[str], str] = str
) -> tuple[str, ...]:
    """Return the facts that would not be in view after a fold, a line each; `hide` takes out what nobody may see."""
    facts = must_keep_redacted(
        must_keep_of(plan_input.history.ledger(plan_input.situation.scope, compaction.stop)), hide
    )
    sight = FactReader(map(hide, message_texts(projection_after(compaction, plan_input).entries)))
    return must_keep_lines(fact for fact in facts if not sight.contains(fact))


def restore_events(context: Context, policy: Policy) -> list[log.Event]:
    """Return what is to happen to what stands: of the newest turns the words stay, where the policy wants that."""
    if policy.restore != "recent_text" or not isinstance(policy.fold, CowAgentCompaction):
        return []
    events: list[log.Event] = []
    shown, folded = context.visible_entries(), max((fold.stop for fold in context.state.compactions), default=0)
    spans = turn_ranges(shown)
    newest = spans[-restored_turn_count(policy.fold.max_turns) :]
    line = (shown[newest[0].start].position or 0) if newest else 0
    # What a fold kept for a pin stands behind it with an older position: there is nothing more to fold before it.
    if len(newest) < len(spans) and line > folded:
        events.append(log.CompactionCompleted(success=True, trigger="restore", stop=line))
    recent = [shown[index] for span in newest for index in span]
    if turns_as_text(recent, keep_last=0) != recent:
        events.append(log.TurnsReducedToText(line=context.length))
    return events
