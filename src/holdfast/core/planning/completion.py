"""How steps become the events that tell of them."""

from dataclasses import replace
from typing import ClassVar, Protocol

from holdfast.core.history import events as log
from holdfast.core.planning.breaker import marks_of
from holdfast.core.planning.effect import effect_of, seen_after, with_effect
from holdfast.core.planning.reference import quoted_in
from holdfast.core.planning.steps import FoldSpan, OffloadOutputs, Outlook, Proposal, ReduceToText, Summary
from holdfast.errors import MalformedInputError


class FoldRule(Protocol):
    """Decides when and what to fold, and what takes its place."""

    offers_recall: ClassVar[bool]
    """Whether what takes its place ends with a line on how to look it up, for an agent that can."""
    notices_loops: ClassVar[bool]
    """Whether it does not fold again where nothing was done since the last time."""

    def propose(self, outlook: Outlook) -> Proposal:
        """Return what is to be done now and later, and why."""
        ...

    def manual(self, outlook: Outlook) -> FoldSpan | None:
        """Return what the user's own word folds, whatever the lines say; None where there is nothing to fold."""
        ...

    def replacement(self, outlook: Outlook, step: FoldSpan, summary: Summary | None) -> tuple[str, ...]:
        """Return the texts that stand for a span, the user's first; `summary` is None where none could be had."""
        ...


def told(step: OffloadOutputs | ReduceToText, outlook: Outlook, reason: str = "") -> log.Event:
    """Return the event of a step that needs nobody's help."""
    scope = outlook.situation.scope
    if isinstance(step, ReduceToText):
        return with_effect(log.TurnsReducedToText(line=step.line, reason=reason, scope=scope), outlook)
    event = log.OutputsOffloaded(line=step.line, max_chars=step.max_chars, reason=reason, scope=scope)
    return with_effect(event, outlook)


def started(step: FoldSpan, outlook: Outlook, focus: str = "") -> log.CompactionStarted:
    """Return the event that a summary was begun; `focus` is what the user wants it to be about."""
    situation = outlook.situation
    return log.CompactionStarted(
        trigger=step.trigger,
        start=step.start,
        stop=step.stop,
        kept=step.kept,
        count=step.count,
        is_merged=step.is_merged,
        basis=outlook.history.changes,
        custom_instructions=focus or None,
        tokens=log.Breakdown(
            system_tokens=situation.system_tokens,
            conversation_tokens=outlook.message_tokens,
            tool_definitions_tokens=situation.tools_tokens,
        ),
        scope=situation.scope,
    )


def step_of(event: log.CompactionStarted) -> FoldSpan:
    """Return the step that a compaction was started with."""
    return FoldSpan(
        start=event.start,
        stop=event.stop,
        kept=event.kept,
        count=event.count,
        is_merged=event.is_merged,
        by="summary",
        trigger=event.trigger,
    )


def written(run: log.CompactionStarted, summary: Summary) -> log.SummaryWritten:
    """Return the event that the summary which was begun is there."""
    return log.SummaryWritten(
        start=run.start,
        stop=run.stop,
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
        scope=run.scope,
    )


def summary_of(event: log.SummaryWritten) -> Summary:
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


def completed(
    step: FoldSpan, rule: FoldRule, outlook: Outlook, summary: Summary | None = None
) -> log.CompactionCompleted:
    """Return the event of a fold; a failed one where the replacement would not make anything smaller."""
    if summary is not None and not summary.text.strip():
        summary = None
    texts = rule.replacement(outlook, step, summary)
    if step.by == "summary" and summary is None and (step.trigger == "manual" or not texts):
        return failed(step, outlook, "the summary is empty")
    event = log.CompactionCompleted(
        success=True,
        trigger=step.trigger,
        start=step.start,
        stop=step.stop,
        kept=step.kept,
        replacement=texts,
        quoted=quoted_in(texts, outlook) if rule.offers_recall else (),
        offers_recall=rule.offers_recall,
        summary_content=summary.text if summary else "\n".join(texts),
        is_merged=step.is_merged,
        by_model=summary.by_model if summary else None,
        # What stands for a span names agents that are at work, whoever wrote it.
        read_to=len(outlook.history) if summary or outlook.history.facts.delegates else 0,
        usage=summary.usage if summary else None,
        duration_ms=summary.duration_ms if summary else None,
        score=summary.score if summary else None,
        dollars=summary.dollars if summary else None,
        request_id=summary.request_id if summary else None,
        marks=marks_of(outlook) if rule.notices_loops else (),
        put_back=summary.put_back if summary else (),
        left_out=summary.left_out if summary else (),
        redacted=summary.redacted if summary else (),
        ends_run=step.by == "summary",
        count=step.count,
        scope=outlook.situation.scope,
    )
    try:
        done = measured(event, outlook)
    except MalformedInputError as error:
        return failed(step, outlook, f"its span does not stand any more: {error.problem}")
    before, after = done.pre_compaction_tokens, done.post_compaction_tokens
    if after < before or step.is_merged:
        return done
    problem = f"the replacement would be no smaller: {after:,} tokens instead of {before:,}"
    return replace(done, success=False, error=problem, effect=None)


def measured(event: log.CompactionCompleted, outlook: Outlook) -> log.CompactionCompleted:
    """Return a fold that tells what it does to what is shown; raises `MalformedInputError` where it cannot be made."""
    before, after = outlook.shown, seen_after(event, outlook)
    return replace(
        event,
        pre_compaction_tokens=before.tokens,
        post_compaction_tokens=after.tokens,
        tokens_removed=before.tokens - after.tokens,
        messages_removed=len(before) - len(after),
        effect=effect_of(before, after, outlook.situation),
    )


def given_up(run: log.CompactionStarted, error: str, *, is_cancelled: bool = False) -> log.CompactionCompleted:
    """Return the event that a compaction which was started came to nothing."""
    return log.CompactionCompleted(
        success=False,
        trigger=run.trigger,
        start=run.start,
        stop=run.stop,
        error=error,
        is_cancelled=is_cancelled,
        scope=run.scope,
    )


def failed(step: FoldSpan, outlook: Outlook, error: str) -> log.CompactionCompleted:
    """Return the event of a compaction that came to nothing."""
    return log.CompactionCompleted(
        success=False,
        trigger=step.trigger,
        start=step.start,
        stop=step.stop,
        error=error,
        pre_compaction_tokens=outlook.shown.tokens,
        post_compaction_tokens=outlook.shown.tokens,
        ends_run=step.by == "summary",
        scope=outlook.situation.scope,
    )
